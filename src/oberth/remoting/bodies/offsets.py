"""Bodies that carry offsets: 220, 221, 222, 223."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from oberth.errors import LocalProtocolError
from oberth.remoting.bodies.base import Body, QueueMap, render
from oberth.remoting.command import FRAME_SIZE_MAX


class ResetOffsetBody(Body):
    """Body of 220 and answer of 222. The Go client reads it as text: nothing may stand between."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {"offsetTable": int}

    offset_table: QueueMap[int] = msgspec.field(default_factory=dict)


class MessageQueueForC(Body):
    """A queue and its offset."""

    broker_name: str = ""
    offset: int = 0
    queue_id: int = 0
    topic: str = ""


class ResetOffsetBodyForC(Body):
    """Body of 220 to clients whose language is CPP."""

    offset_table: list[MessageQueueForC] = msgspec.field(default_factory=list)


class GetConsumerStatusBody(Body):
    """Answer of 221 from a client (``message_queue_table``); of 223 to a tool, by client id."""

    QUEUE_MAPS: ClassVar[Mapping[str, Any]] = {
        "consumerTable": {str: int},
        "messageQueueTable": int,
    }

    consumer_table: dict[str, QueueMap[int]] = msgspec.field(default_factory=dict)
    message_queue_table: QueueMap[int] = msgspec.field(default_factory=dict)


def offsets_told(data: bytes) -> bytes:
    """A client's entry in the table of 223, in what it answers to 221; for a thread.

    Raises:
        BodyError: see `Body.decode_answer`.
    """
    told = GetConsumerStatusBody.decode_answer(data).message_queue_table
    return render(told)


MEMBERS_A_SLICE: Final = 100


def status_body(told: Mapping[str, bytes]) -> Generator[None, None, bytearray]:
    """A `GetConsumerStatusBody` in slices, of entries that are bytes already, by client id.

    Raises:
        LocalProtocolError: it is longer than a frame may be.
    """
    done = bytearray(b'{"consumerTable":{')
    for number, (client_id, entry) in enumerate(told.items()):
        done += b"%b%b:%b" % (b"," if number else b"", msgspec.json.encode(client_id), entry)
        if len(done) > FRAME_SIZE_MAX:
            raise LocalProtocolError(
                f"the answer is longer than a frame may be, {FRAME_SIZE_MAX} bytes"
            )
        if number % MEMBERS_A_SLICE == MEMBERS_A_SLICE - 1:
            yield
    done += b'},"messageQueueTable":{}}'
    return done
