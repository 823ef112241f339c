"""Bodies of assignment and POP: 400, 401, 200151. The answer of 402 is ``MessageRequestModes``."""

from __future__ import annotations

import base64
import binascii
from typing import Final, Self

import msgspec

from oberth.formats.json_values import LENIENT_SIZE_MAX
from oberth.remoting.bodies.base import Body, BodyError, MessageQueue, parse

BIT_SET_SIZE_MAX: Final = 4096
"""Bytes of one acknowledgement's bit set; a POP gives out 32 messages."""


class QueryAssignmentRequestBody(Body):
    """Body of 400."""

    client_id: str = ""
    consumer_group: str = ""
    message_model: str = "CLUSTERING"
    strategy_name: str = ""
    topic: str = ""


class MessageQueueAssignment(Body):
    """A queue and how to get its messages: PULL or POP."""

    attachments: dict[str, str] | None = None
    message_queue: MessageQueue = msgspec.field(default_factory=MessageQueue)
    mode: str = "PULL"


class QueryAssignmentResponseBody(Body):
    """Answer of 400; None: nothing could be computed, the client keeps what it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None


class SetMessageRequestModeRequestBody(Body):
    """Body of 401."""

    consumer_group: str = ""
    mode: str = "PULL"
    pop_share_queue_num: int = 0
    topic: str = ""


class BatchAck(Body, rename=None):
    """Acknowledgements of one pop in one queue.

    Attributes:
        b: bit set in Base64; bit n stands for the offset ``so`` + n.
        c: consumer group.
        it: invisible time in ms.
        pt: pop time in ms.
        q: queue id.
        r: retry flag: 0 normal, 1 retry topic, 2 retry topic v2.
        rq: revive queue id.
        so: start offset.
        t: topic.
    """

    b: str = ""
    c: str = ""
    it: int = 0
    pt: int = 0
    q: int = 0
    r: str = "0"
    rq: int = 0
    so: int = 0
    t: str = ""

    def offsets(self) -> list[int]:
        """The offsets that are acknowledged, ascending.

        Raises:
            BodyError: the bit set is not Base64, or too long.
        """
        try:
            bits = base64.b64decode(self.b, validate=True)
        except (binascii.Error, ValueError):
            raise BodyError(f"BatchAck.b: {self.b[:40]!r} is not Base64") from None
        if len(bits) > BIT_SET_SIZE_MAX:
            raise BodyError(f"BatchAck.b: {len(bits)} bytes, allowed {BIT_SET_SIZE_MAX}")
        return [
            self.so + 8 * at + bit
            for at, byte in enumerate(bits)
            for bit in range(8)
            if byte >> bit & 1
        ]


_LONG_NAMES: Final = {
    "bitSet": "b",
    "consumerGroup": "c",
    "invisibleTime": "it",
    "popTime": "pt",
    "queueId": "q",
    "retry": "r",
    "reviveQueueId": "rq",
    "startOffset": "so",
    "topic": "t",
}


class BatchAckMessageRequestBody(Body):
    """Body of 200151."""

    acks: list[BatchAck] = msgspec.field(default_factory=list)
    broker_name: str = ""

    @classmethod
    def decode(cls, data: bytes, lenient_size_max: int = LENIENT_SIZE_MAX) -> Self:
        """See ``Body.decode``; takes the fields' long names too."""
        if b'"startOffset"' in data:
            return cls.from_tree(parse(data, cls.__name__, lenient_size_max))
        return super().decode(data, lenient_size_max)

    @classmethod
    def _mend(cls, tree: dict[str, object]) -> dict[str, object]:
        acks = tree.get("acks")
        if isinstance(acks, list):
            tree["acks"] = [
                {_LONG_NAMES.get(name, name): value for name, value in ack.items()}
                if isinstance(ack, dict)
                else ack
                for ack in acks
            ]
        return tree
