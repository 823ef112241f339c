"""Compares the queues of a store with the units that its CommitLog asks for.

One check per queue: `run` is given the units that the log's records should have, in order; `finish`
looks at what lies around them. Findings go to the check as a whole (`QueueCheckOwner`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

from oberth.formats import batch_consume_queue as batch
from oberth.formats import consume_queue as cq
from oberth.formats import paths
from oberth.kernels.queues import UnitRun
from oberth.store.offline.findings import Finding, FindingKind, Severity, VerifyReport
from oberth.store.offline.layout import QueueKey, StoreLayout
from oberth.store.offline.log_walk import LogEnd
from oberth.store.offline.queue_view import QueueView
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.segments import same_bytes

_UNIT_FINDINGS_PER_QUEUE: Final = 1000
_POSITION_MAX: Final = 1 << 63


class QueueCheckOwner(Protocol):
    """What the checks of queues ask of the check as a whole."""

    reader: StoreReader
    layout: StoreLayout
    report: VerifyReport
    end: LogEnd

    @property
    def has_fillers(self) -> bool:
        """Whether the log has records in the place of damaged ones."""

    def found(self, finding: Finding) -> None:
        """Lists what was found."""

    def in_damage(self, offset: int) -> bool:
        """Whether a CommitLog offset lies in a damaged range."""

    def why_deleted(self, topic: str, last: int) -> str:
        """What tells that a topic's queue was deleted; "" where nothing does."""


class QueueCheck:
    """A queue that cannot have files: nothing to compare with."""

    def __init__(self, owner: QueueCheckOwner, key: QueueKey) -> None:
        self.owner = owner
        self.key = key
        self.end: int | None = None

    def run(self, run: UnitRun) -> None:
        """Compares the units of a run."""

    def finish(self) -> None:
        """Looks at what lies before and after the units that the log speaks of."""


class MissingQueueCheck(QueueCheck):
    """A queue without files whose records the log has: it was lost, or its topic was deleted."""

    def __init__(self, owner: QueueCheckOwner, key: QueueKey, *, is_batch: bool) -> None:
        super().__init__(owner, key)
        self._directory = paths.BATCH_CONSUME_QUEUE if is_batch else paths.CONSUME_QUEUE
        self._unit_size = batch.UNIT_SIZE if is_batch else cq.UNIT_SIZE
        self._last = 0

    def run(self, run: UnitRun) -> None:
        """Notes where the last record is."""
        last = run.units[-self._unit_size :]
        self._last = max(self._last, int.from_bytes(last[:8], "big"))

    def finish(self) -> None:
        """Says that it is missing."""
        deleted = self.owner.why_deleted(self.key.topic, self._last)
        self.owner.found(
            Finding(
                FindingKind.QUEUE_MISSING,
                f"{self._directory}/{self.key.topic}/{self.key.queue_id}",
                0,
                f"no file{deleted}",
                "the queue of records that are in the CommitLog",
                Severity.NOTE if deleted else Severity.DAMAGE,
                topic=self.key.topic,
                queue_id=self.key.queue_id,
            )
        )


class SimpleQueueCheck(QueueCheck):
    """Compares a ConsumeQueue with the units that the log asks for."""

    def __init__(self, owner: QueueCheckOwner, key: QueueKey) -> None:
        super().__init__(owner, key)
        reader = owner.reader
        self.view: QueueView = reader.queue(key.topic, key.queue_id)
        self.first: int | None = None
        self.next = 0
        # With ordinals, and for some the CommitLog offset in whose damage they are no surprise:
        # which ranges of the log are damaged is known at its end.
        self.findings: list[tuple[int, Finding, int | None]] = []
        self._written: int | None = None
        self._no_file: tuple[int, int, int, int] | None = None

    def _found(
        self,
        kind: FindingKind,
        ordinal: int,
        found: str,
        expected: str,
        severity: Severity = Severity.DAMAGE,
        commit_log_offset: int | None = None,
        length: int | None = None,
        excused_at: int | None = None,
    ) -> None:
        if len(self.findings) >= _UNIT_FINDINGS_PER_QUEUE:
            self.owner.report.dropped[kind] += 1
            return
        position = ordinal * cq.UNIT_SIZE
        index = self.view.stream.index_of(position)
        if index is None:
            file = self.view.directory
        else:
            segment = self.view.stream.segments[index]
            file, position = self.owner.layout.relative(segment.path), position - segment.start
        finding = Finding(
            kind, file, position, found, expected, severity,
            commit_log_offset=commit_log_offset, topic=self.key.topic,
            queue_id=self.key.queue_id, queue_offset=ordinal, length=length,
        )  # fmt: skip
        self.findings.append((ordinal, finding, excused_at))

    def run(self, run: UnitRun) -> None:
        """Compares the units of a run."""
        if run.restarts:
            # What was found in the numbers that are used again was about their former life.
            self.findings = [each for each in self.findings if each[0] < run.first]
        if self.first is None or run.first < self.first:
            self.first = run.first
        elif run.skipped:
            self._stand_ins(self.next, run.first)
        self.next = run.first + run.unit_count
        stream = self.view.stream
        done = 0
        size = cq.UNIT_SIZE
        while done < run.unit_count:
            ordinal = run.first + done
            index = stream.index_of(ordinal * size)
            if index is None and (purged := self._purged(run.units[done * size :])):
                done += purged
                continue
            limit = 0 if index is None else self._end_in(index)
            count = min(run.unit_count - done, limit // size - ordinal)
            if index is None or count <= 0:
                count = min(run.unit_count - done, self._next_file(ordinal) - ordinal)
                self._missing(ordinal, count, run.units[done * size :])
                done += count
                continue
            opened = stream.map(index)
            at = ordinal * size - opened.segment.start
            expected = run.units[done * size : (done + count) * size]
            actual = opened.view[at : at + count * size]
            if not same_bytes(actual, expected):
                self._compare(ordinal, actual, expected)
            done += count

    def _end_in(self, index: int) -> int:
        """Up to which position of the queue a file counts: too long, it does not hide the next."""
        segments = self.view.stream.segments
        end = segments[index].start + len(self.view.stream.map(index))
        return end if index + 1 == len(segments) else min(end, segments[index + 1].start)

    def _next_file(self, ordinal: int) -> int:
        """The first number behind one that has its place in a file; very high if there is none."""
        position = (ordinal + 1) * cq.UNIT_SIZE
        starts = (segment.start for segment in self.view.stream.segments)
        start = next((each for each in starts if each >= position), _POSITION_MAX)
        return -(-start // cq.UNIT_SIZE)

    def _purged(self, units: memoryview) -> int:
        """How many units at the front are below the queue's floor: their files may be gone."""
        floor = self.owner.reader.floors.get(self.key, 0)
        count = 0
        for offset, _, _ in cq.UNIT.iter_unpack(units) if floor else ():
            if offset >= floor:
                break
            count += 1
        return count

    def _missing(self, ordinal: int, count: int, units: memoryview) -> None:
        lag = self.owner.layout.abort
        offset, record_size, _ = cq.UNIT.unpack_from(units, 0)
        before = self._no_file
        if before is not None and before[0] + before[1] == ordinal:
            if self.findings and self.findings[-1][0] == before[0]:
                # They go on where the last ones ended: one finding, however the log was read.
                self.findings.pop()
            ordinal, count = before[0], before[1] + count
            offset, record_size = before[2:]
        self._no_file = (ordinal, count, offset, record_size)
        self._found(
            FindingKind.UNIT_MISSING,
            ordinal,
            "no file" if count == 1 else f"no file for {count} units",
            f"a unit ({offset}, {record_size}, …)",
            Severity.NOTE if lag else Severity.DAMAGE,
            commit_log_offset=offset,
            length=count * cq.UNIT_SIZE,
        )

    def _compare(self, first: int, actual: memoryview, expected: memoryview) -> None:
        pairs = zip(cq.UNIT.iter_unpack(actual), cq.UNIT.iter_unpack(expected), strict=True)
        for number, (is_, should) in enumerate(pairs):
            ordinal = first + number
            if is_ == should:
                continue
            if self._ext_matches(is_, should):
                continue
            unit = cq.ConsumeQueueUnit(*is_)
            if is_ == (0, 0, 0):
                behind = ordinal >= self._written_end()
                if behind and self.owner.layout.abort:
                    # Dispatch had not come so far when the process ended; a start catches up.
                    self._found(
                        FindingKind.UNIT_MISSING, ordinal, "nothing yet", _text(should),
                        Severity.NOTE, should[0],
                    )  # fmt: skip
                    continue
                self._found(
                    FindingKind.UNIT_MISSING, ordinal, "zeros", _text(should),
                    commit_log_offset=should[0],
                )  # fmt: skip
            elif is_[:2] == should[:2] and cq.is_ext_address(is_[2]):
                self._found(
                    FindingKind.EXT_UNIT, ordinal,
                    f"address {is_[2]}, which leads to {self.view.ext_unit(unit)}",
                    f"an ext unit with tags code {should[2]} and the record's store time",
                    commit_log_offset=should[0],
                )  # fmt: skip
            else:
                self._found(
                    FindingKind.UNIT_WRONG, ordinal, _text(unit), _text(should),
                    commit_log_offset=should[0],
                )  # fmt: skip

    def _written_end(self) -> int:
        """The ordinal after the last unit that is not all zeros."""
        if self._written is None:
            self._written = 0
            for index in reversed(range(len(self.view.stream.segments))):
                opened = self.view.stream.map(index)
                last = opened.last_nonzero(0, len(opened))
                if last is not None:
                    self._written = (opened.segment.start + last) // cq.UNIT_SIZE + 1
                    break
        return self._written

    def _ext_matches(self, is_: tuple[Any, ...], should: tuple[Any, ...]) -> bool:
        if is_[:2] != should[:2] or not cq.is_ext_address(is_[2]):
            return False
        ext = self.view.ext_unit(cq.ConsumeQueueUnit(*is_))
        if ext is None:
            return False
        return bool(
            ext.tags_code == should[2]
            and ext.store_timestamp == self.owner.reader.store_timestamp(should[0], should[1])
        )

    def _stand_ins(self, start: int, stop: int) -> None:
        """The places of messages that the log lacks."""
        for ordinal, unit in self.view.units(start, stop):
            if unit.is_pre_blank:
                continue
            if not unit.is_message:
                self._found(
                    FindingKind.UNIT_MISSING, ordinal, _text(unit),
                    "a unit in the place of a lost message", excused_at=unit.commit_log_offset,
                )  # fmt: skip
                continue
            following = self.view.unit(stop)
            if following is not None and unit == following:
                continue
            self._found(
                FindingKind.UNIT_DANGLING, ordinal, _text(unit), "a record of this queue offset",
                commit_log_offset=unit.commit_log_offset, excused_at=unit.commit_log_offset,
            )  # fmt: skip

    def finish(self) -> None:
        """Looks at what lies before and after the units that the log speaks of."""
        owner = self.owner
        stream = self.view.stream
        first = self.first
        if first is None:
            # No record of this queue is left: all its units must be older than the log.
            first = self.next = self._end_of_expired()
        for ordinal, unit in self.view.units(self.view.first_offset, first):
            if unit.is_pre_blank or 0 <= unit.commit_log_offset < owner.reader.min_offset:
                continue
            if owner.in_damage(unit.commit_log_offset) or unit == self.view.unit(first):
                continue
            self._found(
                FindingKind.UNIT_DANGLING, ordinal, _text(unit),
                "a pre-blank unit, or one of a record that has expired",
                commit_log_offset=unit.commit_log_offset,
            )  # fmt: skip
        self.end = self.next
        self._tail(stream)
        for _, finding, excused_at in self.findings:
            if excused_at is None or not owner.in_damage(excused_at):
                owner.found(finding)
        self.view.close()

    def _repeats_last(self, unit: cq.ConsumeQueueUnit) -> bool:
        """Whether a unit holds the place of a message that was lost at the queue's end."""
        return self.owner.has_fillers and unit.is_message and unit == self.view.unit(self.next - 1)

    def _end_of_expired(self) -> int:
        end = self.view.end_offset()
        low = self.view.min_offset(self.owner.reader.min_offset, end)
        return min(low, end)

    def _tail(self, stream: Any) -> None:
        """What lies after the last unit: zeros, or what a start of the store cuts off."""
        reported = False
        for index, segment in enumerate(stream.segments):
            begin = max(0, self.next * cq.UNIT_SIZE - segment.start)
            opened = stream.map(index)
            if begin >= len(opened):
                continue
            last = opened.last_nonzero(begin, len(opened))
            if last is None:
                continue
            for at in range(begin, last + 1, cq.UNIT_SIZE):
                raw = bytes(opened.view[at : at + cq.UNIT_SIZE])
                if not raw.strip(b"\0"):
                    continue
                ordinal = (segment.start + at) // cq.UNIT_SIZE
                if len(raw) < cq.UNIT_SIZE:
                    self._found(FindingKind.QUEUE_TAIL, ordinal, f"{len(raw)} odd bytes", "zeros")
                    continue
                unit = cq.ConsumeQueueUnit(*cq.UNIT.unpack(raw))
                offset = unit.commit_log_offset
                if self.owner.in_damage(offset) or self._repeats_last(unit):
                    self.end = ordinal + 1
                    continue
                if not reported:
                    beyond = unit.is_message and offset >= self.owner.end.offset
                    reported = beyond
                    self._found(
                        FindingKind.QUEUE_TAIL,
                        ordinal,
                        _text(unit),
                        "zeros behind the queue's end"
                        + ("; the next start of the store cuts this off" if beyond else ""),
                        Severity.NOTE if beyond else Severity.DAMAGE,
                        commit_log_offset=offset,
                    )


class BatchQueueCheck(QueueCheck):
    """Compares a BatchConsumeQueue with the units that the log asks for."""

    def __init__(self, owner: QueueCheckOwner, key: QueueKey) -> None:
        super().__init__(owner, key)
        self.view = owner.reader.batch_queue(key.topic, key.queue_id)
        self.log_start = max(owner.reader.min_offset, owner.reader.floors.get(key, 0))
        self.units = self._live_units()
        self.number = 0

    def _live_units(self) -> Iterator[tuple[int, int, batch.BatchConsumeQueueUnit]]:
        for index, segment in enumerate(self.view.stream.segments):
            opened = self.view.stream.map(index)
            last = opened.last_nonzero(0, len(opened))
            if last is None:
                continue
            for at in range(0, last + 1, batch.UNIT_SIZE):
                if at + batch.UNIT_SIZE > len(opened):
                    break
                unit = batch.decode_batch_unit(opened.view, at)
                if unit.is_valid and unit.commit_log_offset < self.log_start:
                    continue
                yield index, at, unit
            del segment

    def _found(
        self, kind: FindingKind, place: tuple[int, int] | None, found: str, expected: str,
        severity: Severity = Severity.DAMAGE, offset: int | None = None,
        queue_offset: int | None = None,
    ) -> None:  # fmt: skip
        file, position = self.view.directory, 0
        if place is not None:
            segment = self.view.stream.segments[place[0]]
            file, position = self.owner.layout.relative(segment.path), place[1]
        self.owner.found(
            Finding(
                kind, file, position, found, expected, severity, commit_log_offset=offset,
                topic=self.key.topic, queue_id=self.key.queue_id, queue_offset=queue_offset,
            )
        )  # fmt: skip

    def run(self, run: UnitRun) -> None:
        """Compares the units of a run."""
        for number in range(run.unit_count):
            should = batch.decode_batch_unit(run.units, number * batch.UNIT_SIZE)
            self.end = should.next_offset
            if should.commit_log_offset < self.log_start:
                continue  # below the floor: its file may be gone
            while True:
                here = next(self.units, None)
                if here is None or not self.owner.in_damage(here[2].commit_log_offset):
                    break
            if here is None:
                self._found(
                    FindingKind.UNIT_MISSING, None, "no unit", _text(should[:3]),
                    Severity.NOTE if self.owner.layout.abort else Severity.DAMAGE,
                    should.commit_log_offset, should.message_base_offset,
                )  # fmt: skip
                continue
            index, at, unit = here
            if unit != should:
                kind, found = FindingKind.UNIT_WRONG, _text(unit)
                if not any(unit):
                    kind, found = FindingKind.UNIT_MISSING, "zeros"
                self._found(
                    kind, (index, at), found, _text(should),
                    offset=should.commit_log_offset, queue_offset=should.message_base_offset,
                )  # fmt: skip

    def finish(self) -> None:
        """Looks at what lies after the units that the log speaks of."""
        for index, at, unit in self.units:
            if self.owner.in_damage(unit.commit_log_offset):
                continue
            beyond = unit.is_valid and unit.commit_log_offset >= self.owner.end.offset
            self._found(
                FindingKind.QUEUE_TAIL, (index, at), _text(unit), "zeros behind the queue's end",
                Severity.NOTE if beyond else Severity.DAMAGE, unit.commit_log_offset,
            )  # fmt: skip
            break
        self.view.close()


def _text(unit: tuple[Any, ...]) -> str:
    return "unit (" + ", ".join(str(value) for value in unit) + ")"
