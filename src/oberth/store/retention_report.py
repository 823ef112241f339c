"""What the next cleaning would take, and who has not consumed it yet.

Made by `MessageStore.retention_report` in a broker and by `offline.retention` from the files; a
broker gives it out as JSON. Two things go: whole segments, when deleteWhen or the disk asks, and
messages older than their topic's ``reserve.time``, at every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from oberth.store.lakes import NOTHING, AwaitedLake
from oberth.store.retention import Held

GroupOffsets = tuple[str, str, Mapping[int, int]]
"""Topic, group, and the next offset to consume by queue."""


class LeavingSegment(NamedTuple):
    """A segment that would be deleted; offsets are CommitLog offsets."""

    file: str
    start: int
    end: int
    age_hours: float


class LeavingMessages(NamedTuple):
    """Messages [min_offset, min_offset_after) of a queue; because of reserve.time or segment."""

    topic: str
    queue_id: int
    min_offset: int
    min_offset_after: int
    because: str

    @property
    def messages(self) -> int:
        """How many queue offsets those are."""
        return self.min_offset_after - self.min_offset


class Unread(NamedTuple):
    """Messages of those that a group has not consumed; ``offset`` -1: it has committed none."""

    topic: str
    group: str
    queue_id: int
    offset: int
    messages: int


@dataclass(slots=True, kw_only=True)
class RetentionReport:
    """See the module.

    Attributes:
        now_ms: when it was made.
        reserved_hours: fileReservedTime.
        delete_when: deleteWhen.
        due: why a run now would delete segments: disk, time or hand; None: it waits for its hour.
        log_min_offset: where the log begins.
        log_min_offset_after: where it would begin.
        segments: what would be deleted.
        held: the message whose reserve.time keeps further segments.
        lake: the export that further segments wait for, see `lakes`.
        leaving: what readers would lose.
        unread: what of it groups have not consumed.
        topics_without_group: topics that lose messages and that no group has ever consumed.
    """

    now_ms: int
    reserved_hours: int
    delete_when: str
    due: str | None
    log_min_offset: int
    log_min_offset_after: int
    segments: list[LeavingSegment] = field(default_factory=list)
    held: Held | None = None
    lake: AwaitedLake | None = None
    leaving: list[LeavingMessages] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    topics_without_group: list[str] = field(default_factory=list)

    @property
    def all_consumed(self) -> bool:
        """Whether every group has consumed all that would go."""
        return not self.unread

    def add_groups(self, offsets: Iterable[GroupOffsets]) -> None:
        """Compares what leaves with how far groups are."""
        by_topic: dict[str, list[LeavingMessages]] = {}
        for each in self.leaving:
            by_topic.setdefault(each.topic, []).append(each)
        read: set[str] = set()
        for topic, group, queues in offsets:
            if topic not in by_topic:
                continue
            read.add(topic)
            self.unread += unread_of(topic, group, queues, by_topic[topic])
        self.unread.sort()
        self.topics_without_group = sorted(by_topic.keys() - read)

    def to_json(self) -> dict[str, Any]:
        """The report under JSON names."""
        return {
            "now": self.now_ms,
            "fileReservedTime": self.reserved_hours,
            "deleteWhen": self.delete_when,
            "due": self.due,
            "allConsumed": self.all_consumed,
            "logMinOffset": self.log_min_offset,
            "logMinOffsetAfter": self.log_min_offset_after,
            "segments": [
                {"file": s.file, "start": s.start, "end": s.end, "ageHours": round(s.age_hours, 2)}
                for s in self.segments
            ],
            "heldBy": None
            if self.held is None
            else {
                "topic": self.held.topic,
                "queueId": self.held.queue_id,
                "commitLogOffset": self.held.commit_log_offset,
            },
            "waitsForLake": None
            if self.lake is None
            else {
                "lake": self.lake.lake,
                "position": None if self.lake.position == NOTHING else self.lake.position,
            },
            "queues": [
                {
                    "topic": q.topic,
                    "queueId": q.queue_id,
                    "minOffset": q.min_offset,
                    "minOffsetAfter": q.min_offset_after,
                    "messages": q.messages,
                    "because": q.because,
                }
                for q in self.leaving
            ],
            "unread": [
                {
                    "topic": u.topic,
                    "group": u.group,
                    "queueId": u.queue_id,
                    "offset": u.offset,
                    "messages": u.messages,
                }
                for u in self.unread
            ],
            "topicsWithoutGroup": self.topics_without_group,
        }


def unread_of(
    topic: str, group: str, queues: Mapping[int, int], leaving: Iterable[LeavingMessages]
) -> list[Unread]:
    """What of some messages of a topic a group has not consumed."""
    found = []
    for each in leaving:
        offset = queues.get(each.queue_id, -1)
        behind = each.min_offset_after - max(offset, each.min_offset)
        if behind > 0:
            found.append(Unread(topic, group, each.queue_id, offset, behind))
    return found
