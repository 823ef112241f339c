"""SyncSet: which replicas have everything that a master has acknowledged.

A machine without a loop; log offsets, ids and the time go in. The controller elects a new master
among the members only, so a message is acknowledged when every one of them has it. What is always
true: whoever the controller may believe to be a member counts. So a change that is asked for counts
from the question on, both the old and the new members have to confirm, until it is certain what the
controller knows; and who joins counts before it is proposed, so that it lacks nothing that was
acknowledged in between.

    reports, close ──► who lags, who is level ──► `wanted` ──► the controller ──► `known`

RocketMQ: AutoSwitchHAService, with two differences: it has a slave join that has caught up with
what was acknowledged at the instant of its report, and takes a change whose answer was lost as not
made.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

JOIN_GAP: Final = 1 << 20
"""Bytes behind the log's end from which on a slave that catches up is waited for: some ms."""
SETTLED_MS: Final = 15_000
"""After which a question that was not answered is taken as lost: several times its time-out."""
JOIN_MS: Final = 2000
"""How long a slave may take for these bytes before it is not waited for any more."""


class SyncSet:
    """The members of one master's sync set.

    Args:
        own_id: of the master.
        members: ids, as the controller says; the master among them.
        epoch: of the set.
        lag_max_ms: how long a member may be behind the log's end before it leaves.
        now_ms: the time.
    """

    def __init__(
        self, own_id: int, members: Iterable[int], epoch: int, *, lag_max_ms: int, now_ms: int
    ) -> None:
        self.own_id = own_id
        self.members = frozenset(members)
        self.epoch = epoch
        self._lag_max_ms = lag_max_ms
        self._asked: frozenset[int] = frozenset()  # may be members already
        self._asked_at_epoch = -1
        self._is_asking = False
        self._is_uncertain = False
        self._asked_ms = 0
        self._settled_ms = 0  # from when on no unanswered question can arrive any more
        self._acks: dict[int, tuple[Hashable, int]] = {}
        self._level_at_ms = dict.fromkeys(self.members, now_ms)
        self._marks: dict[int, tuple[int, int]] = {}  # an end of the log, and when it was that
        self._gone: set[int] = set()
        self._joining: dict[int, tuple[int, int]] = {}  # the offset to reach, until when
        self._not_before_ms: dict[int, int] = {}
        self._confirmed = 0

    # What counts

    @property
    def counted(self) -> frozenset[int]:
        """The ids of the slaves that must have a message before it is acknowledged."""
        return (self.members | self._asked | self._joining.keys()) - {self.own_id}

    @property
    def low_ack(self) -> int | None:
        """Up to where all that count have the log; None: nobody but the master counts."""
        counted = self.counted
        if not counted:
            return None
        return min(self.ack(each) for each in counted)

    def ack(self, broker_id: int) -> int:
        """Up to where a replica has the log; 0 while it is not connected."""
        found = self._acks.get(broker_id)
        return 0 if found is None else found[1]

    def has(self, end_offset: int) -> bool:
        """Whether all that count have the log up to an offset."""
        low = self.low_ack
        return low is None or low >= end_offset

    def copies(self, end_offset: int) -> int:
        """Members that have the log up to an offset, the master included."""
        return 1 + sum(self.ack(each) >= end_offset for each in self.members - {self.own_id})

    def confirm_offset(self, end: int) -> int:
        """Up to where all have it that count; never goes back."""
        low = self.low_ack
        self._confirmed = max(self._confirmed, end if low is None else min(low, end))
        return self._confirmed

    # What happens

    def on_report(
        self,
        broker_id: int,
        connection: Hashable,
        offset: int,
        end: int,
        now_ms: int,
        *,
        may_join: bool,
    ) -> None:
        """A slave says how far its log reaches.

        Args:
            broker_id: of the slave.
            connection: over which it said so; a newer one takes the place of an older one.
            offset: the end of its log.
            end: of the master's log.
            now_ms: the time.
            may_join: whether it may become a member; learners may not.
        """
        self._acks[broker_id] = connection, offset
        self._note_level(broker_id, offset, end, now_ms)
        if broker_id in self.members and broker_id not in self._gone:
            return
        if not may_join or broker_id in self._joining:
            return
        if end - offset <= JOIN_GAP and now_ms >= self._not_before_ms.get(broker_id, now_ms):
            self._joining[broker_id] = end, now_ms + JOIN_MS

    def _note_level(self, broker_id: int, offset: int, end: int, now_ms: int) -> None:
        """Notes until when a slave had the whole log.

        While a master is sent messages its log has grown when a report comes, so no report need
        ever reach its end. Who reaches the end as it was at a report before was level then.
        """
        mark, marked_ms = self._marks.get(broker_id, (end, now_ms))
        if offset >= end:
            self._level_at_ms[broker_id] = now_ms
        elif offset >= mark:
            self._level_at_ms[broker_id] = marked_ms
        elif broker_id in self._marks:
            return
        self._marks[broker_id] = end, now_ms

    def on_close(self, broker_id: int, connection: Hashable) -> None:
        """A slave's connection is gone."""
        found = self._acks.get(broker_id)
        if found is None or found[0] != connection:
            return
        del self._acks[broker_id]
        self._joining.pop(broker_id, None)
        self._marks.pop(broker_id, None)
        if broker_id in self.members | self._asked:
            self._gone.add(broker_id)
        else:
            self._level_at_ms.pop(broker_id, None)

    def wanted(self, now_ms: int) -> frozenset[int] | None:
        """The members to ask the controller for; None: all is well, or it is being asked."""
        if self._is_asking:
            return None
        self._not_before_ms = {
            each: from_ms for each, from_ms in self._not_before_ms.items() if from_ms > now_ms
        }
        for each, (_, until_ms) in list(self._joining.items()):
            if now_ms > until_ms and self.ack(each) < self._joining[each][0]:
                del self._joining[each]
                self._not_before_ms[each] = now_ms + JOIN_MS
        stay = {
            each
            for each in self.members
            if each == self.own_id
            or (
                each not in self._gone
                and now_ms - self._level_at_ms.get(each, now_ms) <= self._lag_max_ms
            )
        }
        for each, (to, _) in list(self._joining.items()):
            if self.ack(each) >= to:
                stay.add(each)
                if each in self.members:  # it was away for less than the controller takes
                    del self._joining[each]
                    self._gone.discard(each)
        if self._asked and self._asked != stay:
            # A question without an answer may still arrive: the same one again, until it is known.
            return self._asked
        return None if stay == self.members else frozenset(stay)

    def asked(self, wanted: frozenset[int], now_ms: int) -> None:
        """The controller is being asked for these members."""
        self._is_asking = True
        self._asked = wanted
        self._asked_at_epoch = self.epoch
        self._asked_ms = now_ms

    def unanswered(self) -> None:
        """It has not answered; it may have made the change, or still make it."""
        self._is_asking = False
        self._is_uncertain = True
        self._settled_ms = self._asked_ms + SETTLED_MS

    def refused(self, now_ms: int) -> None:
        """It has answered that it does not make the change now.

        Perhaps it knows nothing of one that is to join: for a moment nobody joins, so that those
        who are gone can leave.
        """
        self._is_asking = False
        self._not_before_ms |= dict.fromkeys(self._joining, now_ms + JOIN_MS)
        self._joining.clear()
        if not self._is_uncertain:
            self._asked = frozenset()

    def answered(self, members: Iterable[int], epoch: int, now_ms: int) -> None:
        """The controller has answered the question: these are the members."""
        self._is_asking = self._is_uncertain = False
        self.known(members, epoch, now_ms)

    def known(self, members: Iterable[int], epoch: int, now_ms: int) -> None:
        """The controller says who the members are."""
        if epoch < self.epoch:
            return
        may_come = self._is_asking or (self._is_uncertain and now_ms < self._settled_ms)
        if self._asked and epoch == self._asked_at_epoch and may_come:
            return  # what was asked for may still come
        self._is_asking = self._is_uncertain = False
        self._asked = frozenset()
        former, self.members, self.epoch = self.members, frozenset(members), epoch
        for each in self.members:
            self._joining.pop(each, None)
        for each in self.members - former:
            self._level_at_ms[each] = now_ms
        # Who left and is connected has to catch up first, and joins like any other.
        self._gone &= self.members
