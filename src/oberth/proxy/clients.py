"""The gRPC clients of a server: their settings, their Telemetry streams, what they produce.

A client is known by its id (``x-mq-client-id``), over all its connections. Its settings come over
Telemetry before anything else and decide what heartbeats register. It is forgotten when its
stream has ended, a broker serves none of its commands and it has sent no heartbeat for
`EXPIRED_S`, or when it says that it ends.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, Final
from weakref import ref

from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.proxy import messages as m
from oberth.proxy.backend import Peer
from oberth.proxy.call import Call, CallChannel
from oberth.proxy.codes import Code, StatusError

EXPIRED_S: Final = 120.0
UNNAMED_S: Final = 10.0
"""The same for a client that has sent no settings: peers choose how many there are."""

CLIENTS_MAX: Final = 50_000
CLIENT_ID_MAX: Final = 512
"""Characters of a client id."""

SETTINGS_SIZE_MAX: Final = 256 * 1024
"""Bytes of a client's settings: a hundred subscriptions with long expressions."""

SETTINGS_TOTAL_MAX: Final = 64 * 1024 * 1024
"""Bytes of all clients' settings."""

ANSWER_TIMEOUT_S: Final = 3.0

_TYPES: Final = m.enum_values("ClientType")
PRODUCER: Final = _TYPES["PRODUCER"]
PUSH_CONSUMER: Final = _TYPES["PUSH_CONSUMER"]
CONSUMERS: Final = {number: name for name, number in _TYPES.items() if name.endswith("_CONSUMER")}
LITE_CONSUMERS: Final = frozenset({_TYPES["LITE_PUSH_CONSUMER"], _TYPES["LITE_SIMPLE_CONSUMER"]})


def takes_lite_topics(
    client: GrpcClient | None, config: SubscriptionGroupConfig | None, topic: str
) -> bool:
    """Whether what a group gets of a topic are messages of its lite topics.

    So it is for a lite consumer. Behind a start of the server a client's settings may come later
    than its calls: until then it is taken for one if its group is bound to the topic.
    """
    settings = None if client is None else client.settings
    if settings is not None:
        return settings.client_type in LITE_CONSUMERS
    return config is not None and config.attributes.get("lite.bind.topic") == topic


class GrpcClient:
    """One client.

    Attributes:
        client_id: as it names itself.
        access_key: the user that it signs as; "" without access control.
        peer: how the broker sees it.
        channel: the connection of its last call, if it is still there.
        settings: the last that it sent, merged with ours; None before.
        settings_size: their bytes.
        streams: its open Telemetry calls, the newest last.
        asking: its commands that brokers have and have not answered; their time is bounded.
        last_seen: loop time of its last call, or of the last such answer.
        is_refused: whether its last stream ended because it would not be admitted any more.
    """

    __slots__ = (
        "_nonces", "_waiting", "access_key", "asking", "channel", "client_id", "is_refused",
        "last_seen", "peer", "settings", "settings_size", "streams",
    )  # fmt: skip

    def __init__(
        self, client_id: str, access_key: str, peer: Peer, channel: CallChannel, now: float
    ) -> None:
        self.client_id = client_id
        self.access_key = access_key
        self.channel = ref(channel)
        self._connect(peer)
        self.settings: Any = None
        self.settings_size = 0
        self.streams: list[Call] = []
        self.asking = 0
        self.last_seen = now
        self.is_refused = False
        self._nonces = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Any]] = {}

    def _connect(self, peer: Peer) -> None:
        self.peer = peer
        peer.on_rest = self._rest

    def reconnect(self, peer: Peer) -> None:
        """Another peer takes the place of one that the broker has closed."""
        peer.on_request = self.peer.on_request
        self._connect(peer)

    def _rest(self, seconds: float) -> None:
        channel = self.channel()
        if channel is not None:
            channel.rest(seconds)

    def is_gone(self, now: float) -> bool:
        """Whether it is to be forgotten.

        It has neither a stream nor a command at work, nor was it heard of; or it was refused.
        """
        if self.streams:
            return False
        expired_s = UNNAMED_S if self.settings is None else EXPIRED_S
        return self.is_refused or (not self.asking and now - self.last_seen > expired_s)

    @property
    def group(self) -> str:
        """The group that it consumes for, or ""."""
        if self.settings is None or not self.settings.HasField("subscription"):
            return ""
        name: str = self.settings.subscription.group.name
        return name

    @property
    def is_fifo(self) -> bool:
        """Whether its group consumes in order."""
        return self.settings is not None and bool(self.settings.subscription.fifo)

    def tell(self, command: Any) -> bool:
        """Send a command over the newest open stream; whether there is one."""
        for call in reversed(self.streams):
            if call.is_open:
                call.send(command.SerializeToString())
                return True
        return False

    async def ask(self, command: Any, body: Any) -> Any:
        """Send a command with a nonce and wait for the answer that bears it.

        Args:
            command: the TelemetryCommand.
            body: the part of it that takes the nonce.

        Raises:
            TimeoutError: the client does not answer, or has no stream.
        """
        nonce = f"{self.client_id[:64]}-{next(self._nonces)}"
        body.nonce = nonce
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[nonce] = answer
        try:
            if not self.tell(command):
                raise TimeoutError(f"{self.client_id} has no Telemetry stream")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await answer
        finally:
            self._waiting.pop(nonce, None)

    def answered(self, nonce: str, command: Any) -> None:
        """A client's answer to a command."""
        answer = self._waiting.get(nonce)
        if answer is not None and not answer.done():
            answer.set_result(command)


class ClientTable:
    """All clients, by id.

    Attributes:
        settings_bytes: of all clients' settings.
    """

    def __init__(self) -> None:
        self._clients: dict[str, GrpcClient] = {}
        self.settings_bytes = 0

    def __len__(self) -> int:
        return len(self._clients)

    def get(self, client_id: str) -> GrpcClient | None:
        """A client that is known."""
        return self._clients.get(client_id)

    def add(self, client: GrpcClient) -> None:
        """Keep a client."""
        self._clients[client.client_id] = client

    def remove(self, client: GrpcClient) -> None:
        """Forget a client: it leaves its groups."""
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]
            self.settings_bytes -= client.settings_size
        client.peer.close()

    def check_settings(self, client: GrpcClient, settings: Any) -> int:
        """The size of what a client says of itself, if there is room for it.

        Raises:
            StatusError: BAD_REQUEST, TOO_MANY_REQUESTS: there is none.
        """
        size: int = settings.ByteSize()
        if size > SETTINGS_SIZE_MAX:
            raise StatusError(
                Code.BAD_REQUEST, f"settings of {size} bytes, allowed {SETTINGS_SIZE_MAX}"
            )
        total = self.settings_bytes - client.settings_size + size
        if total > SETTINGS_TOTAL_MAX and size > SETTINGS_TOTAL_MAX // max(len(self._clients), 1):
            raise StatusError(
                Code.TOO_MANY_REQUESTS,
                f"settings of {size} bytes, of all clients {total}, allowed {SETTINGS_TOTAL_MAX}",
            )
        return size

    def keep_settings(self, client: GrpcClient, settings: Any) -> None:
        """Take over what a client says of itself.

        Raises:
            StatusError: there is no room for it.
        """
        size = self.check_settings(client, settings)
        if self._clients.get(client.client_id) is client:  # else it has ended meanwhile
            self.settings_bytes += size - client.settings_size
            client.settings, client.settings_size = settings, size

    def ids(self) -> list[str]:
        """Whose are known."""
        return list(self._clients)

    def __iter__(self) -> Any:
        return iter(list(self._clients.values()))
