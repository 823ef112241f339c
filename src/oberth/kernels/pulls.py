"""Plain pulls, many at once: frames of PULL_MESSAGE and LITE_PULL_MESSAGE in, answers out.

Two steps, so that a broker can look up between them what the pulls ask for: `PlainPulls.read` finds
the plain pulls that chunks begin with, and what they ask for, once each; `PlainPulls.answer` copies
messages behind rendered heads.

What is plain is a part of what the general way serves (``broker.processors.pull``,
``store.message_reader``, ``remoting.rendered``). That way is the reference of these kernels: both
answer the same bytes. What is not plain goes the general way, and everything does where the
extension is missing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oberth.formats.consume_queue import UNIT_SIZE
from oberth.kernels import arguments as at
from oberth.kernels import runtime
from oberth.kernels.memory import address, pieces, uninitialised

if TYPE_CHECKING:
    from oberth.kernels.memory import Buffer

KEYS_MAX: Final = 128 * 1024
"""Bytes of the keys of one step."""

OUT_MAX: Final = 2 << 20
"""Bytes of the answers of one step; what does not fit goes the general way."""


class Right(NamedTuple):
    """What a pull's right to read depends on.

    Attributes:
        code: of the request.
        brings_subscription: whether what it says of its subscription counts.
        sub_version: as text.
        group: of the consumer.
        topic: that is read.
        expression_type: as the pull says; None without one.
        subscription: the expression; None without one.
    """

    code: int
    brings_subscription: bool
    sub_version: str
    group: str
    topic: str
    expression_type: str | None
    subscription: str | None

    @classmethod
    def of_key(cls, key: bytes) -> Right:
        """The right that a key of `PlainPulls.asked` stands for."""
        code, brings, version, group, topic, kind, text, _ = key.decode("ascii").split("\n")
        return cls(
            int(code),
            brings == "1",
            version,
            group,
            topic,
            kind[1:] if kind else None,
            text[1:] if text else None,
        )


class Stretch(NamedTuple):
    """A part of a queue that some pulls ask for.

    Attributes:
        number: for `PlainPulls.give`.
        right: number of the key of those who ask.
        queue_id: of the queue.
        low: the first queue offset that is asked for.
        high: behind the last one, and behind the one after that.
    """

    number: int
    right: int
    queue_id: int
    low: int
    high: int


class Served(NamedTuple):
    """What was answered of a stretch.

    Attributes:
        pulls: how many.
        messages: that they got.
        size: bytes of those.
    """

    pulls: int
    messages: int
    size: int


class PlainPulls:
    """Keeps the kernels' memory. One thread at a time.

    Args:
        frame_max: bytes of a frame.
        count_max: messages of an answer.
        bytes_max: bytes of the messages of an answer.
        end: what the header of an answer ends with, behind the opaque number.
    """

    def __init__(self, *, frame_max: int, count_max: int, bytes_max: int, end: bytes) -> None:
        assert count_max > 0, f"{count_max} messages of an answer, allowed 1 or more"
        self._end = end
        self._rows = array("q", bytes(at.PULLS_ROW_MAX * at.PULL_FIELDS * 8))
        self._rights = array("q", bytes(at.PULLS_ROW_MAX * at.RIGHT_FIELDS * 8))
        self._places = array("q", bytes(at.PULLS_ROW_MAX * at.PLACE_FIELDS * 8))
        self._slots = bytearray(2 * at.PULLS_SLOTS * 4)
        self._keys = bytearray(KEYS_MAX)
        self._out = bytearray()
        self._chunks = array("q")
        self._given: list[Any] = []  # what the kernel reads, until it has
        self._read = read = array("q", bytes(at.PULLS_ARGUMENTS * 8))
        read[at.PULLS_FRAME_MAX] = frame_max
        read[at.PULLS_COUNT_MAX] = count_max
        read[at.PULLS_ROWS] = address(self._rows)
        read[at.PULLS_RIGHTS] = address(self._rights)
        read[at.PULLS_RIGHT_SLOTS] = address(self._slots)
        read[at.PULLS_TEXT] = address(self._keys)
        read[at.PULLS_TEXT_MAX] = KEYS_MAX
        read[at.PULLS_PLACES] = address(self._places)
        read[at.PULLS_PLACE_SLOTS] = read[at.PULLS_RIGHT_SLOTS] + at.PULLS_SLOTS * 4
        self._answer = answer = array("q", bytes(at.ANSWERS_ARGUMENTS * 8))
        answer[at.ANSWERS_ROWS] = read[at.PULLS_ROWS]
        answer[at.ANSWERS_PLACES] = read[at.PULLS_PLACES]
        answer[at.ANSWERS_BYTES_MAX] = bytes_max
        answer[at.ANSWERS_END] = address(end)
        answer[at.ANSWERS_END_SIZE] = len(end)

    def read(self, chunks: Sequence[Buffer]) -> int:
        """Finds the plain pulls that chunks begin with; how many.

        `asked` and `stretches` tell what they ask for; then `answer`, or nothing.

        Args:
            chunks: what each connection brought, from the beginning of a frame on; kept by the
                caller up to `answer`.
        """
        kernel = runtime.native("pull_rows")
        if kernel is None:
            return 0
        numbers: list[int] = []
        for data in chunks:
            numbers += (address(data), len(data), 0, 0, 0, 0)  # type: ignore[arg-type]
        self._chunks = array("q", numbers)
        read = self._read
        read[at.PULLS_CHUNKS] = address(self._chunks)
        read[at.PULLS_CHUNK_COUNT] = len(chunks)
        return kernel(read)

    def asked(self) -> list[bytes]:
        """What those who ask differ in, see `Right.of_key`; by number."""
        rights = self._rights[: self._read[at.PULLS_RIGHT_COUNT] * at.RIGHT_FIELDS].tolist()
        starts, sizes = rights[at.RIGHT_KEY :: 2], rights[at.RIGHT_KEY_SIZE :: 2]
        keys = self._keys
        return [
            bytes(keys[start : start + size]) for start, size in zip(starts, sizes, strict=True)
        ]

    def stretches(self) -> list[Stretch]:
        """What they ask for."""
        fields = at.PLACE_FIELDS
        places = self._places[: self._read[at.PULLS_PLACE_COUNT] * fields].tolist()
        return [
            Stretch(number, *places[start : start + at.PLACE_UNITS])
            for number, start in enumerate(range(0, len(places), fields))
        ]

    def give(
        self,
        number: int,
        units: bytes,
        units_from: int,
        file_units: int,
        segment: memoryview,
        segment_start: int,
        start: bytes,
        middle: bytes,
    ) -> None:
        """Have a stretch answered. All that is given is kept until `answer` is done.

        Args:
            number: of the stretch.
            units: of its queue.
            units_from: queue offset of the first.
            file_units: how many a file of the queue has.
            segment: bytes of the log; a unit elsewhere goes the general way.
            segment_start: CommitLog offset of the first.
            start: of an answer's header, up to the next offset.
            middle: what stands between that and the opaque number.
        """
        self._given += (units, segment, start, middle)
        place = number * at.PLACE_FIELDS + at.PLACE_UNITS
        self._places[place : place + 11] = array(
            "q",
            (
                *(address(units), units_from, len(units) // UNIT_SIZE, file_units),
                *(address(segment), segment_start, segment.nbytes),
                *(address(start), len(start), address(middle), len(middle)),
            ),
        )

    def answer(self, young_from: int) -> int:
        """Answers what was given; how many pulls.

        Args:
            young_from: CommitLog offset; pulls of older messages go the general way.
        """
        kernel = runtime.native("pull_answers")
        assert kernel is not None, "read() found something, so the kernels are there"
        if not self._out:
            self._out = uninitialised(OUT_MAX)
        read, answer = self._read, self._answer
        answer[at.ANSWERS_CHUNKS] = read[at.PULLS_CHUNKS]
        answer[at.ANSWERS_CHUNK_COUNT] = read[at.PULLS_CHUNK_COUNT]
        answer[at.ANSWERS_OUT] = address(self._out)
        answer[at.ANSWERS_OUT_MAX] = len(self._out)
        answer[at.ANSWERS_YOUNG_FROM] = young_from
        served = kernel(answer)
        self._given.clear()
        return served

    def used(self) -> list[int]:
        """By chunk: up to where its pulls are answered."""
        return self._chunks[at.CHUNK_USED :: at.CHUNK_FIELDS].tolist()

    def answers(self) -> list[bytes]:
        """By chunk: the frames that answer its pulls."""
        return pieces(self._out, self._chunks[at.CHUNK_ANSWERS :: at.CHUNK_FIELDS])

    def served(self, number: int) -> Served:
        """What was answered of a stretch."""
        place = number * at.PLACE_FIELDS + at.PLACE_SERVED
        return Served(*self._places[place : place + 3])

    def answered(self) -> Iterator[tuple[int, int, int, int]]:
        """The pulls that were answered, in order.

        Yields:
            Number of the stretch, system flag, the offset that it commits, where the next goes on.
        """
        fields = at.PULL_FIELDS
        rows = self._rows[: self._chunks[at.CHUNK_ROWS - at.CHUNK_FIELDS] * fields].tolist()
        for found in zip(
            rows[at.PULL_PLACE :: fields],
            rows[at.PULL_SYS_FLAG :: fields],
            rows[at.PULL_COMMIT :: fields],
            rows[at.PULL_NEXT :: fields],
            strict=True,
        ):
            if found[3] >= 0:
                yield found
