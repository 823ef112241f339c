"""A history of sends, pulls and committed offsets, and whether the promise explains it.

The promise is written down in ``docs/replication.md`` (What a history may look like); each rule has
its sentence here. Times are any numbers that grow: a call begins before it ends, and of two calls
that overlap nobody knows which was first. A history of many clients is one list.

    sent = history.begin()
    status = ...
    history.sent("a", sent, queue="q", offset=7)     # acknowledged
    history.pulled("q", 7, "a", history.begin())
    assert history.faults() == []
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise


class Outcome(Enum):
    """What a sender heard."""

    ACKNOWLEDGED = "acknowledged"
    REFUSED = "refused"
    """The broker said that it has not stored it."""
    UNKNOWN = "unknown"
    """No answer, or one that says that it may be stored."""


@dataclass(frozen=True, slots=True)
class Send:
    """One send, tried once. Bodies are unique."""

    body: str
    begun: int
    ended: int
    outcome: Outcome
    queue: str = ""
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Pull:
    """One message that was read at an offset; no body: nothing was there (yet)."""

    queue: str
    offset: int
    body: str | None
    begun: int
    ended: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's offset that was committed, or found when it was asked for."""

    group: str
    queue: str
    offset: int
    begun: int
    ended: int


@dataclass
class History:
    """What clients did and heard. Not for several threads."""

    sends: list[Send] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    fetches: list[Commit] = field(default_factory=list)
    _now: int = 0

    def begin(self) -> int:
        """A call begins now."""
        self._now += 1
        return self._now

    def sent(
        self,
        body: str,
        begun: int,
        *,
        outcome: Outcome = Outcome.ACKNOWLEDGED,
        queue: str = "",
        offset: int = -1,
    ) -> None:
        """A send ends now."""
        self.sends.append(Send(body, begun, self.begin(), outcome, queue, offset))

    def pulled(self, queue: str, offset: int, body: str | None, begun: int) -> None:
        """A pull ends now."""
        self.pulls.append(Pull(queue, offset, body, begun, self.begin()))

    def committed(self, group: str, queue: str, offset: int, begun: int) -> None:
        """A commit of an offset ends now."""
        self.commits.append(Commit(group, queue, offset, begun, self.begin()))

    def fetched(self, group: str, queue: str, offset: int, begun: int) -> None:
        """A question for a committed offset ends now."""
        self.fetches.append(Commit(group, queue, offset, begun, self.begin()))

    def take_back(self, bodies: Collection[str]) -> None:
        """Makes acknowledged sends ones that nobody knows of: their only copy went with its broker.

        What was read of them does not count either.
        """
        self.sends = [
            Send(each.body, each.begun, each.ended, Outcome.UNKNOWN)
            if each.body in bodies
            else each
            for each in self.sends
        ]
        self.pulls = [each for each in self.pulls if each.body not in bodies]

    def faults(self, *, is_final: bool = True, keeps_offsets: bool = True) -> list[str]:
        """What the promise does not explain, in words.

        Args:
            is_final: whether everything was pulled at the end, from each queue's begin.
            keeps_offsets: whether no master was replaced: a new one may know older offsets.
        """
        found = [*self._sends_and_pulls(), *self._order(), *self._offsets(keeps_offsets)]
        return [*found, *self._lost()] if is_final else found

    def _sends_and_pulls(self) -> list[str]:
        faults = []
        by_body = {each.body: each for each in self.sends}
        at: dict[tuple[str, int], str] = {}
        for sent in self.sends:
            if sent.outcome is not Outcome.ACKNOWLEDGED:
                continue
            other = at.setdefault((sent.queue, sent.offset), sent.body)
            if other != sent.body:
                faults.append(
                    f"{sent.queue} {sent.offset}: acknowledged to {other} and to {sent.body}"
                )
        for pull in self.pulls:
            if pull.body is None:
                continue
            found = by_body.get(pull.body)
            where = f"{pull.queue} {pull.offset}"
            if found is None or found.begun > pull.ended:
                faults.append(f"{where}: {pull.body} was read and not sent before")
            elif found.outcome is Outcome.REFUSED:
                faults.append(f"{where}: {pull.body} was read and its sender was refused")
            other = at.setdefault((pull.queue, pull.offset), pull.body)
            if other != pull.body:
                faults.append(f"{where}: {other} is there, and {pull.body} was read")
        places: dict[str, tuple[str, int]] = {
            each.body: (each.queue, each.offset)
            for each in self.sends
            if each.outcome is Outcome.ACKNOWLEDGED
        }
        for pull in self.pulls:
            place = (pull.queue, pull.offset)
            if pull.body is not None and places.setdefault(pull.body, place) != place:
                faults.append(f"{pull.body}: sent once, and at {places[pull.body]} and {place}")
        return faults

    def _order(self) -> list[str]:
        """Of two sends to a queue, one acknowledged before the other began, the first is before."""
        faults = []
        queues: dict[str, list[Send]] = {}
        for sent in self.sends:
            if sent.outcome is Outcome.ACKNOWLEDGED:
                queues.setdefault(sent.queue, []).append(sent)
        for queue, sends in queues.items():
            sends.sort(key=lambda each: each.offset)
            latest = 0  # the begin of any send so far
            for before, after in pairwise(sends):
                latest = max(latest, before.begun)
                if after.ended < latest:
                    faults.append(f"{queue} {after.offset}: {after.body} was acknowledged first")
        return faults

    def _offsets(self, keeps_offsets: bool) -> list[str]:
        faults = []
        for asked in self.fetches:
            mine = [
                each
                for each in self.commits
                if (each.group, each.queue) == (asked.group, asked.queue)
                and each.begun < asked.ended
            ]
            allowed = {each.offset for each in mine}
            if keeps_offsets and mine:
                # Not one that another replaced before the question.
                last = max((each.begun for each in mine if each.ended < asked.begun), default=0)
                allowed = {each.offset for each in mine if each.ended >= last}
            elif not keeps_offsets:
                allowed.add(-1)
            if asked.offset not in (allowed or {-1}):
                faults.append(
                    f"{asked.group} {asked.queue}: offset {asked.offset} was found, "
                    f"allowed {sorted(allowed)}"
                )
        return faults

    def lost(self) -> list[Send]:
        """Sends that were acknowledged and are not there by the last pulls of all offsets."""
        last = {(each.queue, each.offset): each.body for each in self.pulls}
        there = {body for body in last.values() if body is not None}
        return [
            each
            for each in self.sends
            if each.outcome is Outcome.ACKNOWLEDGED and each.body not in there
        ]

    def _lost(self) -> list[str]:
        """Everything acknowledged, and everything that was read once, is read at the end."""
        last = {(each.queue, each.offset): each.body for each in self.pulls}
        read = {each.body for each in self.pulls if each.body is not None}
        there = {body for body in last.values() if body is not None}
        faults = [
            f"{each.body}: acknowledged at {each.queue} {each.offset} and lost"
            for each in self.lost()
        ]
        return faults + [f"{body}: read once and gone" for body in sorted(read - there)]
