"""What the instance knows of the producers and consumers that share it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from oberth.remoting.aio.service import Service
from oberth.remoting.bodies.base import Body, MessageQueue
from oberth.remoting.bodies.clients import ConsumerData
from oberth.remoting.headers.transaction import CheckTransactionStateRequestHeader


class InnerProducer(Protocol):
    """A producer, as the instance knows it."""

    @property
    def group(self) -> str:
        """Its group."""

    def publish_topics(self) -> Iterable[str]:
        """Topics whose routes it needs."""

    def on_route(self, topic: str) -> None:
        """A route changed."""

    def on_check_transaction(
        self, addr: str, header: CheckTransactionStateRequestHeader, body: bytes
    ) -> None:
        """A broker wants to know how a transaction ended."""


class InnerConsumer(Protocol):
    """A consumer, as the instance knows it."""

    @property
    def group(self) -> str:
        """Its group."""

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes it needs."""

    def on_route(self, topic: str) -> None:
        """A route changed."""

    def consumer_data(self) -> ConsumerData | None:
        """What heartbeats say of it; None: nothing."""

    async def do_rebalance(self) -> bool:
        """Take the queues that are ours now; whether all went well."""

    async def persist_offsets(self, *, wait: bool = False) -> None:
        """Commit what changed."""

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """A tool wants us to go on elsewhere."""

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets of a topic."""

    def running_info(self) -> Body:
        """All about it."""

    async def consume_directly(self, body: bytes, broker_name: str) -> Body:
        """Consume one message at once."""


class ClientService(Service):
    """A producer, a consumer or an admin: ended by ``shutdown``."""

    @abstractmethod
    async def shutdown(self) -> None:
        """End what was started."""

    async def aclose(self) -> None:
        """The same as ``shutdown``."""
        await self.shutdown()
