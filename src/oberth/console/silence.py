"""Brokers that do not answer: nobody waits for the same one again and again.

A broker that hangs costs whoever asks it the whole time-out. A page asks several questions, a look
hundreds. So the first one waits, and those of the next SILENT_S get the same error at once; then
one waits again. Errors that come at once, as those of a port that nobody listens on, cost nothing
and are not remembered.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.errors import RemotingError, RemotingTimeoutError
from oberth.remoting.command import RemotingCommand

SILENT_S: Final = 10.0
"""How long an address is not asked after it has not answered."""

WAITED_S: Final = 1.0
"""An error that came sooner is not remembered."""


class Silence:
    """The addresses that did not answer lately. No socket.

    Args:
        now_s: the time.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._since: dict[str, tuple[float, str]] = {}

    def check(self, address: str, *, is_slow: bool = False) -> None:
        """Nothing if the address may be asked.

        Args:
            address: of a broker.
            is_slow: of a question with a long time-out: it does not find out who answers again.

        Raises:
            RemotingTimeoutError: it did not answer lately.
        """
        found = self._since.get(address)
        if found is None:
            return
        if is_slow or self.now_s() - found[0] < SILENT_S:
            raise RemotingTimeoutError(found[1])
        # This one asks; others that come meanwhile would wait with it.
        self._since[address] = (self.now_s(), found[1])

    def note(self, address: str, error: RemotingError, waited_s: float) -> None:
        """An address has not answered."""
        if waited_s >= WAITED_S:
            self._since[address] = (self.now_s(), str(error))
        else:
            self.forget(address)

    def forget(self, address: str) -> None:
        """An address has answered."""
        self._since.pop(address, None)


class PatientAdmin(Admin):
    """Administration that waits for a silent broker once, not in every question.

    Args:
        config: how to reach the cluster, and as whom.
        silence: is shared by all who ask.
    """

    def __init__(self, config: ClientConfig, silence: Silence) -> None:
        super().__init__(config=config)
        self._silence = silence

    async def _invoke(
        self, addr: str, request: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        # A slow question may be one that the broker hands on to a client, which hangs.
        is_slow = timeout_s > self._timeout_s
        self._silence.check(addr, is_slow=is_slow)
        started_s = self._silence.now_s()
        try:
            response = await super()._invoke(addr, request, timeout_s)
        except RemotingError as error:
            if not is_slow:
                self._silence.note(addr, error, self._silence.now_s() - started_s)
            raise
        self._silence.forget(addr)
        return response
