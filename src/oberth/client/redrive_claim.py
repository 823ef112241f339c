"""RedriveClaim: one redrive at a time sends the dead letters of a group again.

Two at the same time would each look before the other one sends, and send the same letters. So a
redrive holds a claim while it sends: the lock on queue 0 of the dead letters' topic that consumers
in order take at a broker (requests 41 and 42), under the group of the tools, which no consumer has.
It asks the master of each broker for it, one after the other by name, and holds the claim if all
that answer give it. It renews the claim every 20 s. Brokers end a claim 60 s after that
(``rebalanceLockMaxLiveTimeMs``; 60 s in RocketMQ), so a redrive that was killed keeps the others
out no longer.

A broker that starts again knows of no claims: with a single broker a second redrive may begin then,
and the first one stops when it has asked again. RocketMQ: RebalanceLockManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Collection
from typing import Final, Self

from oberth.client.admin import Admin
from oberth.client.admin.base import Silent
from oberth.errors import MQClientError, OberthError, RemotingError
from oberth.formats.names import DLQ_PREFIX, TOOLS_CONSUMER_GROUP
from oberth.remoting.bodies.base import MessageQueue

RENEWED_EVERY_S: Final = 20.0
HOLDS_S: Final = 50.0
"""After this long without a renewal the claim may be about to end: nothing is sent any more."""
_LOG: Final = logging.getLogger(__name__)


class RedriveHeldError(MQClientError):
    """Another redrive sends the same letters, or may do so."""


class RedriveClaim:
    """What a redrive holds while it sends. Lifecycle: ``async with``, once.

    Entering it raises RedriveHeldError if another redrive holds it, and RemotingError if no broker
    answers.
    """

    def __init__(
        self,
        admin: Admin,
        topics: Collection[str],
        *,
        silent: Silent | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares to claim.

        Args:
            admin: asks the brokers.
            topics: of the dead letters.
            silent: gets the error of each broker that does not answer; those in it are not asked.
            now: seconds of a clock that never goes back.
        """
        self._admin = admin
        self._topics = sorted(topics)
        self._silent: Silent = {} if silent is None else silent
        self._now = now
        self._client_id = f"redrive-{uuid.uuid4().hex}"
        self._masters: dict[str, str] = {}
        self._renewed = 0.0
        self._is_lost = False
        self._renewing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        masters = await self._admin.masters()
        asked = self._now()
        try:
            for name, addr in masters.items():
                if name in self._silent:
                    continue
                try:
                    self._masters[name] = addr
                    if held := await self._refused(name, addr):
                        raise RedriveHeldError(
                            f"another redrive of {_whose(held)} is at work, says broker {name}; "
                            "nothing was sent. One that was killed keeps others out for a minute"
                        )
                except RemotingError as error:
                    self._silent[name] = error
            if masters and all(name in self._silent for name in masters):
                raise next(iter(self._silent.values()))
        except BaseException:
            await self._release()
            raise
        self._renewed = asked
        self._renewing = asyncio.create_task(self._keep(), name="oberth-redrive-claim")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await self._release()

    def check(self) -> None:
        """Makes sure that the claim is still held, before something is sent.

        Raises:
            RedriveHeldError: it is not: another redrive may have begun.
        """
        if self._is_lost or self._now() - self._renewed > HOLDS_S:
            raise RedriveHeldError(
                f"the claim on {_whose(self._topics)} has ended, another redrive may be at work: "
                "nothing more is sent; do it again"
            )

    async def renew(self) -> None:
        """Asks all brokers for the claim once more; without any that gives it, it is lost."""
        asked = self._now()
        given, refused = 0, 0
        for name, addr in self._masters.items():
            try:
                if await self._refused(name, addr):
                    refused += 1
                else:
                    given += 1
            except OberthError as error:
                _LOG.warning("broker %s did not renew the claim of a redrive: %s", name, error)
        # One that has forgotten all claims may have given it away; the others keep it for us.
        if given:
            self._renewed = asked
        elif refused:
            self._is_lost = True

    async def _keep(self) -> None:
        while not self._is_lost:
            await asyncio.sleep(RENEWED_EVERY_S)
            await self.renew()

    async def _refused(self, name: str, addr: str) -> list[str]:
        """Asks a broker for the claim, or its renewal; the topics that another one has."""
        queues = self._queues(name)
        held = await self._admin.lock_queues(addr, TOOLS_CONSUMER_GROUP, self._client_id, queues)
        return [queue.topic for queue in queues if queue not in held]

    def _queues(self, name: str) -> list[MessageQueue]:
        return [MessageQueue(topic=topic, broker_name=name, queue_id=0) for topic in self._topics]

    async def _release(self) -> None:
        for name, addr in self._masters.items():
            if name in self._silent:
                continue
            with contextlib.suppress(OberthError):  # it ends by itself
                await self._admin.unlock_queues(
                    addr, TOOLS_CONSUMER_GROUP, self._client_id, self._queues(name)
                )


def _whose(topics: Collection[str]) -> str:
    groups = ", ".join(topic.removeprefix(DLQ_PREFIX) for topic in topics)
    return f"the dead letters of {groups}"
