"""The interface to brokers that the service uses: one in this process, or several behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.proxy.local import LocalBroker, LocalPeer, RequestHandler
from oberth.remoting.aio.address import Address
from oberth.remoting.aio.channel import Channel
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import RemotingCommand

MetricFamily = tuple[str, str, str, Iterable[tuple[tuple[tuple[str, str], ...], float]]]
"""Name, kind, text, and samples with their labels."""


@dataclass(frozen=True, slots=True)
class BrokerQueues:
    """A topic's queues on one broker.

    Attributes:
        broker_name: of the broker.
        broker_id: 0 for a master.
        read_count, write_count: queues that can be read, and written.
        may_read, may_write: the topic's permission there.
    """

    broker_name: str
    broker_id: int
    read_count: int
    write_count: int
    may_read: bool
    may_write: bool


class Peer(Protocol):
    """A gRPC client as brokers see it.

    Attributes:
        on_request: serves what a broker asks of the client; None: it cannot be asked now.
        on_rest: is told by a broker in this process for how many seconds nothing of the client is
            to be read; others read less of its connection to them.
    """

    on_request: RequestHandler | None
    on_rest: Callable[[float], None] | None

    @property
    def is_closed(self) -> bool:
        """Whether the client is gone, for the broker in this process."""

    async def call(
        self,
        broker: str,
        request: RemotingCommand,
        on_late: Callable[[RemotingCommand], None] | None = None,
    ) -> RemotingCommand:
        """A broker's answer, also one with an error code; the caller bounds the time.

        Args:
            broker: its name.
            request: the command.
            on_late: gets the answer if nobody waits for it any more when it comes.

        Raises:
            RemotingError: the broker cannot be asked.
        """

    def close(self) -> None:
        """The client is gone."""


class OwnBroker(Protocol):
    """A broker that answers in the same turn of the loop."""

    @property
    def name(self) -> str:
        """The broker's."""

    def topic(self, name: str) -> TopicConfig | None:
        """A topic, or None."""

    def peer_of(self, peer: Peer) -> LocalPeer:
        """A client of this broker, as the broker knows it."""


class Backend(Protocol):
    """Where topics, groups and messages are."""

    def now_ms(self) -> int:
        """The wall clock."""

    async def queues(self, topic: str) -> list[BrokerQueues]:
        """Where a topic has queues; nothing for an unknown one."""

    async def brokers(self) -> list[str]:
        """The names of the masters."""

    async def message_type(self, topic: str) -> str:
        """The attribute ``message.type`` of a topic, "" without one."""

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """A group's configuration, made where groups are made at their first use."""

    @property
    def body_max(self) -> int:
        """Bytes of a message's body that brokers take."""

    @property
    def own(self) -> OwnBroker | None:
        """The broker in this process, of which all can be asked at once; None: it is elsewhere."""

    def read_done(self, connection: object) -> None:
        """The calls that came in one read of a connection have begun."""

    def has_broker(self, name: str) -> bool:
        """Whether a broker of this name is served."""

    async def address(self, broker: str) -> str:
        """Where a broker is for remoting clients: ``host:port``.

        Raises:
            MQClientError: it is not known.
        """

    async def forget_offsets(self, group: str, topic: str) -> None:
        """Delete the offsets that a group has committed in a topic.

        Raises:
            MQClientError: brokers have no command for that.
        """

    def peer(self, remote: Address, local: Address) -> Peer:
        """A new client."""

    def unknown_signer(
        self, host: str, access_key: str, content: bytes, signature: bytes
    ) -> str | None:
        """Why nobody known has signed this, or None."""

    def refusal(self, host: str, access_key: str, request: RemotingCommand) -> str | None:
        """Why a known signer may not ask for this, or None."""

    @property
    def access_version(self) -> object:
        """Another one when `unknown_signer` or `refusal` may answer otherwise than before."""


class TopicLookup(Protocol):
    """A broker's topics."""

    def get(self, topic: str, /) -> TopicConfig | None:
        """A topic, or None."""


class GroupLookup(Protocol):
    """A broker's groups."""

    def find(self, group: str, /) -> SubscriptionGroupConfig | None:
        """A group, made where groups are made at their first use."""


class OffsetTable(Protocol):
    """What groups have committed."""

    def delete(self, group: str, topic: str) -> None:
        """Forget a group's offsets in a topic."""


class AccessGate(Protocol):
    """A broker's access control."""

    def unknown_signer(
        self, host: str, access_key: str, content: bytes, signature: bytes
    ) -> str | None:
        """Why nobody known has signed this, or None."""

    def needs_refusal(self, host: str, access_key: str, request: RemotingCommand) -> str | None:
        """Why a known signer may not ask for this, or None."""

    @property
    def version(self) -> object:
        """Another one when it may decide otherwise than before."""


class ServedConfig(Protocol):
    """Of a broker's options those that the gRPC port needs."""

    @property
    def broker_name(self) -> str:
        """The broker's name."""

    @property
    def broker_id(self) -> int:
        """0 for a master."""

    @property
    def listen_host(self) -> str:
        """Where it listens."""

    @property
    def grpc_server_port(self) -> int:
        """The port; 0: any free one."""

    @property
    def grpc_date_age_max_s(self) -> int:
        """How old a signed date may be; 0: any age."""

    @property
    def min_invisible_ms_for_receive(self) -> int:
        """The shortest time for which a message is handed out."""

    @property
    def grpc_poll_ms_min(self) -> int:
        """The shortest time for which a receive waits."""

    @property
    def busy_poll_us(self) -> int:
        """How long the loop stays awake for a lone caller; 0: it does not."""

    @property
    def tls_mode(self) -> str:
        """A `TlsMode`."""

    @property
    def tls_cert_path(self) -> str:
        """One's own certificate."""

    @property
    def tls_key_path(self) -> str:
        """Its key."""

    @property
    def proxy_protocol_trusted(self) -> str:
        """Whose PROXY headers are believed."""


class StoreLimits(Protocol):
    """Of a store's options those that the gRPC port needs."""

    @property
    def max_message_size(self) -> int:
        """Bytes of a body."""


class ServedParts(Protocol):
    """Of a broker's parts those that the gRPC port needs."""

    @property
    def config(self) -> ServedConfig:
        """Options."""

    @property
    def store_config(self) -> StoreLimits:
        """Options of its store."""

    @property
    def config_dir(self) -> Path:
        """Where the broker's own files lie."""

    @property
    def topics(self) -> TopicLookup:
        """Its topics."""

    @property
    def groups(self) -> GroupLookup:
        """Its groups."""

    @property
    def offsets(self) -> OffsetTable:
        """What groups have committed."""

    @property
    def now_ms(self) -> Callable[[], int]:
        """Its clock."""


class ServedServices(Protocol):
    """Of a broker's services those that the gRPC port needs."""

    @property
    def processors(self) -> ProcessorTable:
        """What serves commands, without the gate of access control."""

    @property
    def access(self) -> AccessGate:
        """That gate."""


class ServedClients(Protocol):
    """What hears of clients that are gone."""

    def connection_closed(self, channel: Channel) -> None:
        """A client is gone."""


class ServedProcessors(Protocol):
    """Of a broker's processors those that the gRPC port needs."""

    @property
    def clients(self) -> ServedClients:
        """What knows the clients."""

    def answer_held(self) -> None:
        """Requests that wait for messages are answered with what is there."""


class ServedBroker(Protocol):
    """A broker of this process."""

    @property
    def parts(self) -> ServedParts:
        """Configuration, tables and clock."""

    @property
    def services(self) -> ServedServices:
        """Access control and the table of commands."""

    @property
    def more_metrics(self) -> list[Callable[[], Iterable[MetricFamily]]]:
        """What further shows figures in ``/metrics``."""

    @property
    def address(self) -> Address:
        """Where remoting clients connect."""

    def not_ready(self) -> str | None:
        """Why it takes no messages, or None."""

    @property
    def processors(self) -> ServedProcessors:
        """What holds requests and knows clients."""


class LocalBackend:
    """The broker in this process, alone."""

    def __init__(self, broker: ServedBroker) -> None:
        self._parts = broker.parts
        self._served = broker
        self._access = broker.services.access
        self._broker = LocalBroker(
            broker.parts.config.broker_name,
            broker.services.processors,
            broker.processors.clients.connection_closed,
        )
        self.name = broker.parts.config.broker_name
        self.topic = broker.parts.topics.get

    def now_ms(self) -> int:
        """The broker's clock."""
        return self._parts.now_ms()

    async def queues(self, topic: str) -> list[BrokerQueues]:
        """The broker's own queues."""
        found = self._parts.topics.get(topic)
        if found is None:
            return []
        return [
            BrokerQueues(
                self._parts.config.broker_name,
                self._parts.config.broker_id,
                found.read_queue_nums,
                found.write_queue_nums,
                found.is_readable,
                found.is_writable,
            )
        ]

    async def brokers(self) -> list[str]:
        """The broker's own name."""
        return [self._parts.config.broker_name]

    async def message_type(self, topic: str) -> str:
        """The attribute of the topic."""
        found = self._parts.topics.get(topic)
        return "" if found is None else found.attributes.get("message.type", "")

    async def group(self, name: str) -> SubscriptionGroupConfig | None:
        """The broker's group."""
        return self._parts.groups.find(name)

    @property
    def body_max(self) -> int:
        """The broker's own limit."""
        return self._parts.store_config.max_message_size

    @property
    def own(self) -> LocalBackend:
        """This one."""
        return self

    def peer_of(self, peer: Peer) -> LocalPeer:
        """All clients are."""
        assert isinstance(peer, LocalPeer)
        return peer

    def read_done(self, connection: object) -> None:
        """They are served now, if no other connection sends."""
        self._broker.read_done(connection)

    def has_broker(self, name: str) -> bool:
        """The broker's own name only."""
        return name == self._parts.config.broker_name

    async def address(self, broker: str) -> str:
        """The broker's own."""
        return str(self._served.address)

    async def forget_offsets(self, group: str, topic: str) -> None:
        """In the broker's table; it is written as other changes of it are."""
        self._parts.offsets.delete(group, topic)

    def peer(self, remote: Address, local: Address) -> LocalPeer:
        """A client of the broker."""
        return LocalPeer(self._broker, remote, local)

    def unknown_signer(
        self, host: str, access_key: str, content: bytes, signature: bytes
    ) -> str | None:
        """The broker's access control decides."""
        return self._access.unknown_signer(host, access_key, content, signature)

    def refusal(self, host: str, access_key: str, request: RemotingCommand) -> str | None:
        """The broker's access control decides."""
        return self._access.needs_refusal(host, access_key, request)

    @property
    def access_version(self) -> object:
        """That of the broker's users, policies and accounts."""
        return self._access.version
