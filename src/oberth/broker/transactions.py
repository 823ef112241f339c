"""Transactions: half messages, how they end, and asking producers that forgot to say.

    half topic   what producers prepared, out of sight of consumers; queue 0
    op topic     which half messages have ended: bodies of half-queue offsets, each with a comma
    discard      TRANS_CHECK_MAX_TIME_TOPIC: halves that were checked too often or are too old

A half message is put back to the end of the half topic each time its producer is asked, so the
half topic is a queue that is worked off from its front: offset `H` of CID_RMQ_SYS_TRANS is the
first half that has not ended, offset `O` the first op message that still names such a half.

A half is asked about, and the question counted, only while a client of its producer group is
connected. Without one it is parked where it lies: those after it are seen to, `H` stays before it,
and it is asked about within a second of the group's return. After the restart of a broker that may
take the 30 s between two heartbeats of a producer, time enough to ask in vain until the last
question is used up; so RocketMQ, which counts what it could not ask, may set committed messages
aside. An op record names what was put back, so that a restart does not look at the original again.

What survives a crash: everything that was acknowledged. The committed message is written first, and
its op record lies after it in the log, so none survives without the other. An ended transaction
whose op record was not yet written is asked about again, and its commit is stored a second time if
the producer says so again: ends that came one way wait for transactionOpBatchInterval, those that
are answered do not (see EndTransactionProcessor).
RocketMQ: TransactionalMessageServiceImpl, TransactionalMessageBridge.
"""

from __future__ import annotations

import enum
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from oberth.broker.half_messages import Lineage, OpBatch, ParkedHalves, parse_op_body
from oberth.formats import names
from oberth.formats import properties as p
from oberth.formats.java_numbers import java_long
from oberth.formats.message import MessageExt, decode_record
from oberth.formats.sys_flag import TRANSACTION_COMMIT, TRANSACTION_NOT, with_transaction_type
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult

if TYPE_CHECKING:
    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.consumer_offsets import ConsumerOffsets
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

_REAL_TOPIC: Final = p.REAL_TOPIC.encode()
_REAL_QUEUE_ID: Final = p.REAL_QUEUE_ID.encode()
_QUEUE_ID_MAX: Final = 10**9 - 1
"""Digits that are a queue id whatever they are."""
_IMMUNITY: Final = p.CHECK_IMMUNITY_TIME_IN_SECONDS.encode()

REMOVE_TAG: Final = "d"
HALF_QUEUE_ID: Final = 0
OP_PULL_NUMS: Final = 32
HALVES_PER_STEP_MAX: Final = 500
"""Half messages that one step reads; the rest waits for the next, so that sends go on."""

ENDED_PER_STEP_MAX: Final = 20_000
"""Ended half messages that one step passes, and op messages that it is done with; they are not
read."""

OPS_PER_STEP_MAX: Final = 5_000
"""Half messages that one step finds named in the op topic, some 5 ms; the rest waits for the next,
and nothing is judged before."""

OP_COST: Final = 10
"""Half messages that an op record counts as, beside those that it names."""

PARKED_MAX: Final = 200_000
"""Half messages that wait for a producer to come back. Further ones are counted as asked about, as
RocketMQ does with all."""

PARKED_SPAN_MIN: Final = 100_000
"""Half messages between the first parked one and the last one looked at, up to which nothing is
done about it. When they become more than that and than twice the parked ones, these are put back
to the end, so that a restart does not look at too many again."""

PARKED_LOOK_MS: Final = 1_000
"""How often parked halves are looked at whose producers are back."""

GONE_PER_STEP_MAX: Final = 5_000
"""Parked halves that have left the log and that one step forgets, some 5 ms."""

RETURNED_PER_STEP_MAX: Final = 5_000
"""Producer groups that came back, and may have gone since, that a step looks at: a millisecond."""

FRESH_MS: Final = 500
"""A half that was asked about so lately is not asked about again by a round that begins just then.
What lies after it is younger."""


class Verdict(enum.Enum):
    """What is to be done about a half message that has not ended."""

    WAIT = "too young: come back later, for this one and all behind it"
    PUT_BACK = "immune: put it back without asking"
    CHECK = "put it back and ask its producer"
    PARK = "nobody is there to be asked: leave it where it lies, and see to those behind it"
    DISCARD = "give it up"


class Notifier(Protocol):
    """Sends a check to a producer."""

    def __call__(self, half: MessageExt, group: str, /) -> None:
        """Ask one producer of the group about a half message as it lies in the half topic."""


def to_half(
    topic: str, queue_id: int, sys_flag: int, properties: dict[str, str]
) -> tuple[str, int, int]:
    """Topic, queue and sysFlag of a half message; its properties say what it is to become."""
    unique_key = properties.get(p.UNIQ_KEY)
    if unique_key:
        properties[p.TRANSACTION_ID] = unique_key
    properties[p.REAL_TOPIC] = topic
    properties[p.REAL_QUEUE_ID] = str(queue_id)
    return (
        names.TRANS_HALF_TOPIC,
        HALF_QUEUE_ID,
        with_transaction_type(sys_flag, TRANSACTION_NOT),
    )


def from_half(half: MessageExt, store_host: bytes) -> MessageExtBrokerInner | None:
    """The message that a commit stores; None if the half does not say where it goes."""
    raw = half.properties_raw
    topic_bytes = p.find_property(raw, _REAL_TOPIC)
    queue_bytes = p.find_property(raw, _REAL_QUEUE_ID)
    if topic_bytes is None or queue_bytes is None:
        return None
    topic = topic_bytes.decode("utf-8", "replace")
    queue_id = java_long(queue_bytes, -1)
    if not 0 <= queue_id <= _QUEUE_ID_MAX:
        return None
    if not names.is_stored_topic(topic):
        return None
    return MessageExtBrokerInner(
        topic,
        half.body,
        p.without_properties(raw, (_REAL_TOPIC, _REAL_QUEUE_ID)),
        queue_id,
        half.flag,
        with_transaction_type(half.sys_flag, TRANSACTION_COMMIT),
        half.born_timestamp,
        half.born_host,
        store_host,
        half.reconsume_times,
        half.commit_log_offset,
        # Not waited for: until the disk has it, its half is still there to be asked about.
        wait_store_ok=False,
    )


class Transactions:
    """Half messages of a broker.

    Args:
        store: where halves and op messages lie.
        offsets: of CID_RMQ_SYS_TRANS.
        config: times and limits.
        store_host: of messages that the broker writes itself.
        clock_ms: the wall clock.
        notify: asks a producer.
        is_online: whether a producer group has a client that can be asked.
        make_topic: makes a topic of one queue if it is missing.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        config: BrokerConfig,
        store_host: Callable[[], bytes],
        clock_ms: Callable[[], int],
        notify: Notifier,
        is_online: Callable[[str], bool],
        make_topic: Callable[[str], object],
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._config = config
        self._store_host = store_host
        self._clock_ms = clock_ms
        self._notify = notify
        self._is_online = is_online
        self._make_topic = make_topic
        self._batch = OpBatch(
            config.transaction_op_msg_max_size, config.transaction_op_batch_interval_ms
        )
        self._lineage = Lineage()
        # Halves that ended and whose op record has not been read back yet.
        self._ended: dict[int, None] = {}
        # Half offset -> op offset: what op messages say about halves not passed yet.
        self._removed: dict[int, int] = {}
        # Op offset -> halves it names that are not passed yet; loses its first entries.
        self._open_ops: OrderedDict[int, set[int]] = OrderedDict()
        self._op_read = -1
        # Halves from the front, which is the committed offset, up to the cursor were looked at:
        # each has ended, has a successor, is parked, or has left the log.
        self._front = -1
        self._cursor = -1
        self._parked = ParkedHalves()
        self._next_look_ms = 0
        self.to_half = to_half

    # The end

    def find_half(self, commit_log_offset: int) -> MessageExt | None:
        """The half message at an offset; None if there is none."""
        found = self._store.find_message(commit_log_offset)
        if found is None or found.topic != names.TRANS_HALF_TOPIC:
            return None
        return found

    def commit_message(self, half: MessageExt) -> MessageExtBrokerInner | None:
        """What a commit stores; None if the half does not say where it goes."""
        return from_half(half, self._store_host())

    def root(self, half_offset: int) -> int:
        """What all copies of a half message have in common: the first one's offset."""
        return self._lineage.root(half_offset)

    def has_ended(self, half_offset: int) -> bool:
        """Whether the transaction was ended before, perhaps by another offset of its half."""
        return self._lineage.has_ended(half_offset)

    def immunity_ms(self, half: MessageExt) -> int | None:
        """For how long after its birth a half is not checked; None: it says nothing itself."""
        value = p.find_property(half.properties_raw, _IMMUNITY)
        seconds = java_long(value, None)
        if seconds is None:
            return None
        return self._config.transaction_timeout_ms if seconds < 0 else seconds * 1000

    def end(self, half_offset: int) -> None:
        """A half message has ended, by commit or rollback: it is not to be asked about again."""
        for offset in self._lineage.ended(half_offset):
            self._ended[offset] = None
            self._parked.remove(offset)
            body = self._batch.add(offset, self._clock_ms())
            if body is not None:
                self._write_op(body)

    def _done_before_front_passes(self, half_offset: int) -> None:
        """A half has a successor or was given up: a restart is not to look at it again."""
        body = self._batch.add(half_offset, self._clock_ms())
        if body is not None:
            self._write_op(body)

    def on_time(self, now_ms: int) -> None:
        """Write op offsets that have waited long enough; to be called every 100 ms or so.

        Also asks about parked halves as soon as their producers are back.
        """
        body = self._batch.on_time(now_ms)
        if body is not None:
            self._write_op(body)
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + PARKED_LOOK_MS
            self.ask_returned()

    def flush(self) -> bool:
        """Write op offsets now, however long they have waited; the disk may not have them yet.

        Returns:
            Whether the log has them; else they are written later.
        """
        body = self._batch.take()
        return body is None or self._write_op(body)

    def _write_op(self, body: bytes) -> bool:
        now_ms = self._clock_ms()
        host = self._store_host()
        message = MessageExtBrokerInner(
            names.TRANS_OP_HALF_TOPIC,
            body,
            p.encode_properties({p.TAGS: REMOVE_TAG}),
            HALF_QUEUE_ID,
            born_timestamp=now_ms,
            born_host=host,
            store_host=host,
            wait_store_ok=False,
        )
        (result,) = self._store.append_messages([message])
        if not result.ok:
            _LOG.error(
                "the message of %d bytes that ends transactions could not be written: %s",
                len(body),
                result.status.name,
            )
            for offset in parse_op_body(body):
                self._batch.add(offset, now_ms)
        return result.ok

    # The check

    def check(self) -> tuple[int, bool]:
        """One step of a round over the half topic: how many producers were asked, and if more wait.

        RocketMQ: TransactionalMessageServiceImpl.check. Runs on the loop for some milliseconds.
        """
        store = self._store
        half_end = store.max_offset_in_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        half_min = max(store.min_offset_in_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID), 0)
        front = self._enter(half_min)
        if not self._read_ops(front):
            return 0, True
        started_ms = self._clock_ms()
        put_back: list[tuple[MessageExt, bool]] = []
        more_parked = self._take_parked(started_ms, put_back)
        at = self._cursor
        stop = min(half_end, at + ENDED_PER_STEP_MAX)
        left = HALVES_PER_STEP_MAX
        more = stop < half_end
        while at < stop:
            half = None
            if not self._has_ended(at):
                if not left:
                    more = True
                    break
                left -= 1
                half = self._half_at(at)
            if half is None:
                # It has ended; or its record has left the log and nothing can end it any more.
                at += 1
                continue
            verdict = self._judge(half, started_ms)
            if verdict is Verdict.WAIT:
                more = False
                break
            if verdict is Verdict.PARK:
                self._park(half)
            elif verdict is Verdict.DISCARD:
                if not self._discard(half):
                    more = False
                    break
                if self._parked:
                    self._done_before_front_passes(at)
            else:
                put_back.append((half, verdict is Verdict.CHECK))
            at += 1
        if put_back and not self._put_back(put_back):
            # What has no successor must not be passed: the same halves are looked at again.
            self._parked.remove_from(self._cursor)
            return 0, False
        self._cursor = at
        more_done = self._leave()
        more = more or more_parked or more_done or self._parked.has_below(half_min)
        return sum(checked for _, checked in put_back), more

    def renew(self, now_ms: int, take: Callable[[MessageExtBrokerInner], bool]) -> None:
        """Gives open halves that are to be asked about to somebody else, and passes those it took.

        For a slave that acts for its master: the next broker asks their producers. RocketMQ:
        renewHalfMessageInner.

        Args:
            now_ms: the time.
            take: whether a half is another broker's now; one that is not is offered again.
        """
        store = self._store
        half_end = store.max_offset_in_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        half_min = max(store.min_offset_in_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID), 0)
        front = self._enter(half_min)
        if not self._read_ops(front):
            return  # the next call goes on
        at = self._cursor
        stop = min(half_end, at + HALVES_PER_STEP_MAX)
        while at < stop:
            half = None if self._has_ended(at) else self._half_at(at)
            if half is not None:
                if self._judge(half, now_ms) is Verdict.WAIT:
                    break
                if not take(_half_again(half, half.properties, self._store_host())):
                    break
            at += 1
        self._cursor = at
        self._leave()

    def group_came_back(self, group: str) -> None:
        """A producer group has a client again: within a second it is asked what it left open."""
        self._parked.came_back(group)

    def ask_returned(self) -> int:
        """Between two rounds: ask about parked halves whose producers are back; how many."""
        if not self._parked.returned(1):
            return 0
        half_min = self._store.min_offset_in_queue(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID)
        self._enter(max(half_min, 0))
        put_back: list[tuple[MessageExt, bool]] = []
        self._take_parked(self._clock_ms(), put_back)
        if put_back and not self._put_back(put_back):
            return 0
        self._leave()
        return sum(checked for _, checked in put_back)

    def _take_parked(self, now_ms: int, put_back: list[tuple[MessageExt, bool]]) -> bool:
        """Give up parked halves or add them to what is to be put back; whether there may be more.

        What is put back is no longer parked then.
        """
        due, more = self._due_parked(now_ms)
        for at in due:
            half = self._half_at(at)
            if half is not None:
                verdict = self._judge(half, now_ms)
                if verdict is not Verdict.DISCARD:
                    put_back.append((half, verdict is Verdict.CHECK))
                    continue
                if not self._discard(half):
                    more = False
                    continue
                self._done_before_front_passes(at)
            self._parked.remove(at)
        return more

    def _enter(self, half_min: int) -> int:
        """The first half that is not done with; the committed offset has the last word about it."""
        committed = self._committed(names.TRANS_HALF_TOPIC)
        if self._cursor < 0 or committed != self._front:
            self._begin(max(committed, half_min))
        if half_min > self._front:
            self._parked.remove_below(half_min, GONE_PER_STEP_MAX)
        self._cursor = max(self._cursor, half_min)
        return max(self._front, half_min)

    def _begin(self, front: int) -> None:
        """Look at all halves from an offset on, as after a start."""
        self._parked.clear()
        self._removed.clear()
        self._open_ops.clear()
        self._op_read = -1
        self._cursor = self._front = front
        self._commit(names.TRANS_HALF_TOPIC, front)

    def _leave(self) -> bool:
        """Pass halves that are done with, as many as a step may; whether there are more.

        Also those that have left the log meanwhile: op messages may name them.
        """
        parked = self._parked.front()
        end = self._cursor if parked is None else parked
        front = self._front
        self._front = min(end, front + ENDED_PER_STEP_MAX)
        for offset in range(front, self._front):
            self._pass(offset)
        self._commit(names.TRANS_HALF_TOPIC, self._front)
        more_ops = self._advance_ops()
        return self._front < end or more_ops

    def _park(self, half: MessageExt) -> None:
        group = half.properties.get(p.PRODUCER_GROUP, "")
        if not self._parked.has_group(group):
            _LOG.warning(
                "transaction %.260s: nobody can be asked, no producer of group %.260s is online",
                half.uniq_key,
                group,
            )
        self._parked.add(half.queue_offset, group, half.born_timestamp)

    def _due_parked(self, now_ms: int) -> tuple[list[int], bool]:
        """Parked halves that something can be done about, and whether there may be more.

        Their group is back, they are too old, or there is too much between them and the cursor.
        There may be more until all ages were looked at once: what a round leaves would have left
        the log when the next ones come to it.
        """
        parked = self._parked
        front = parked.front()
        if front is None:
            return [], False
        due: list[int] = []
        for group in parked.returned(RETURNED_PER_STEP_MAX):
            if not self._is_online(group):
                parked.left_again(group)
                continue
            due += parked.of_group(group, HALVES_PER_STEP_MAX - len(due))
            if len(due) >= HALVES_PER_STEP_MAX:
                break
        more = True  # ages have the next step
        if not due:
            reserved_ms = self._store.config.file_reserved_time_hours * 3_600_000
            due, more = parked.born_before(now_ms - reserved_ms, HALVES_PER_STEP_MAX)
        if not due and self._cursor - front > max(PARKED_SPAN_MIN, 2 * len(parked)):
            due = parked.first(HALVES_PER_STEP_MAX)
        return due, more or len(due) >= HALVES_PER_STEP_MAX

    def _committed(self, topic: str) -> int:
        # A reset (222) is taken as a pull takes it: while one is pending nothing can be committed.
        self._offsets.take_reset(names.TRANS_GROUP, topic, HALF_QUEUE_ID)
        # Zero is where everything begins: the group is not seen before there was a transaction.
        return max(self._offsets.query(names.TRANS_GROUP, topic, HALF_QUEUE_ID), 0)

    def _commit(self, topic: str, offset: int) -> None:
        if offset != self._committed(topic):
            self._offsets.commit(
                names.TRANS_GROUP, topic, HALF_QUEUE_ID, offset, self._clock_ms(), is_own=True
            )

    def _read_ops(self, half_offset: int) -> bool:
        """Take in op messages that were written since the last round; whether these were all.

        Before that nobody knows which halves are open.
        """
        store = self._store
        topic = names.TRANS_OP_HALF_TOPIC
        end = store.max_offset_in_queue(topic, HALF_QUEUE_ID)
        low = max(store.min_offset_in_queue(topic, HALF_QUEUE_ID), 0)
        if self._op_read < 0:
            self._op_read = max(self._committed(topic), low)
        at = max(self._op_read, low)
        left = OPS_PER_STEP_MAX
        while at < end and left > 0:
            result = store.get_message(names.TRANS_GROUP, topic, HALF_QUEUE_ID, at, OP_PULL_NUMS)
            if result.next_begin_offset <= at:
                break
            at = result.next_begin_offset
            for op in _records(result.records):
                left -= OP_COST + self._take_op(op, half_offset)
                if left <= 0:
                    at = op.queue_offset + 1
                    break
        self._op_read = at
        return at >= end or left > 0

    def _take_op(self, op: MessageExt, half_offset: int) -> int:
        """Note the halves that an op message names, from an offset on; how many it names."""
        if op.tags != REMOVE_TAG:
            return 0
        open_halves = self._open_ops[op.queue_offset] = set()
        offsets = parse_op_body(op.body)
        for offset in offsets:
            self._ended.pop(offset, None)
            if offset >= half_offset:
                # A half that was put back may be ended by its old offset: another op named it then.
                self._close(offset)
                self._removed[offset] = op.queue_offset
                open_halves.add(offset)
        return len(offsets)

    def _has_ended(self, half_offset: int) -> bool:
        return (
            half_offset in self._removed
            or half_offset in self._ended
            or self._lineage.has_ended(half_offset)
        )

    def _pass(self, half_offset: int) -> None:
        self._lineage.passed(half_offset)
        self._close(half_offset)

    def _close(self, half_offset: int) -> None:
        """What the op topic says about a half is not needed any more."""
        op_offset = self._removed.pop(half_offset, None)
        if op_offset is not None:
            self._open_ops[op_offset].discard(half_offset)

    def _advance_ops(self) -> bool:
        """The op topic is done up to the first message that names a half not passed yet.

        Returns:
            Whether there may be more that is done; a step goes so far.
        """
        open_ops = self._open_ops
        left = ENDED_PER_STEP_MAX
        while open_ops and left:
            first = next(iter(open_ops))
            if open_ops[first]:
                break
            del open_ops[first]
            left -= 1
        done = next(iter(open_ops), self._op_read)
        if done >= 0:
            self._commit(names.TRANS_OP_HALF_TOPIC, done)
        return not left

    def _half_at(self, half_offset: int) -> MessageExt | None:
        unit = self._store.consume_queue_unit(names.TRANS_HALF_TOPIC, HALF_QUEUE_ID, half_offset)
        if unit is None or not unit.is_message:
            return None
        return self._store.look_message_by_offset(unit.commit_log_offset)

    def _judge(self, half: MessageExt, now_ms: int) -> Verdict:
        config = self._config
        times = java_long(half.properties.get(p.TRANSACTION_CHECK_TIMES), 0)
        if times and 0 <= now_ms - half.store_timestamp < FRESH_MS:
            return Verdict.WAIT
        if times >= config.transaction_check_max:
            return Verdict.DISCARD
        age_ms = now_ms - half.born_timestamp
        if age_ms > self._store.config.file_reserved_time_hours * 3_600_000:
            return Verdict.DISCARD
        immunity_ms = self.immunity_ms(half)
        if immunity_ms is not None and 0 <= age_ms < immunity_ms:
            # Those after it may be due earlier, so it must not stand in their way.
            return Verdict.PUT_BACK
        if immunity_ms is None and 0 <= age_ms < config.transaction_timeout_ms:
            return Verdict.WAIT
        if (
            self._is_online(half.properties.get(p.PRODUCER_GROUP, ""))
            or len(self._parked) >= PARKED_MAX
        ):
            return Verdict.CHECK
        return Verdict.PARK

    def _discard(self, half: MessageExt) -> bool:
        """Move a half to where nobody asks about it any more."""
        self._make_topic(names.TRANS_CHECK_MAX_TIME_TOPIC)
        host = self._store_host()
        message = MessageExtBrokerInner(
            names.TRANS_CHECK_MAX_TIME_TOPIC,
            half.body,
            half.properties_raw,
            HALF_QUEUE_ID,
            half.flag,
            with_transaction_type(half.sys_flag, TRANSACTION_NOT),
            half.born_timestamp,
            half.born_host,
            host,
            half.reconsume_times,
            wait_store_ok=False,
            convert=False,
        )
        (result,) = self._store.append_messages([message])
        if result.ok:
            _LOG.warning(
                "half message %d is given up, nobody will be asked about it again: transaction %s",
                half.queue_offset,
                half.uniq_key,
            )
        return result.ok

    def _put_back(self, halves: list[tuple[MessageExt, bool]]) -> bool:
        """Append halves to the end of the half topic, and ask about those that are marked."""
        host = self._store_host()
        results = self._store.append_messages(
            [self._again(half, host, checked=checked) for half, checked in halves]
        )
        done = all(result.ok for result in results)
        for (half, checked), result in zip(halves, results, strict=True):
            if not result.ok:
                continue
            self._lineage.copied(half.queue_offset, result.queue_offset)
            self._parked.remove(half.queue_offset)
            self._done_before_front_passes(half.queue_offset)
            if checked:
                self._ask(half, result)
        self.flush()
        return done

    @staticmethod
    def _again(half: MessageExt, host: bytes, *, checked: bool) -> MessageExtBrokerInner:
        properties = half.properties
        if checked:
            times = java_long(properties.get(p.TRANSACTION_CHECK_TIMES), 0)
            properties[p.TRANSACTION_CHECK_TIMES] = str(times + 1)
        else:
            # Immune halves move without being asked about; their producer names the first one
            # when it ends the transaction.
            properties.setdefault(p.TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
        return _half_again(half, properties, host)

    def _ask(self, half: MessageExt, result: PutMessageResult) -> None:
        record = self._store.look_message_by_offset(result.commit_log_offset)
        if record is None:
            _LOG.error(
                "half message %d was put back into its queue and cannot be read", half.queue_offset
            )
            return
        self._notify(record, half.properties.get(p.PRODUCER_GROUP, ""))

    def resume_check(self, half: MessageExt) -> PutMessageResult:
        """323: put a half, or one that was given up, back with its checks starting anew."""
        properties = half.properties
        properties[p.TRANSACTION_CHECK_TIMES] = "0"
        message = _half_again(half, properties, self._store_host())
        (result,) = self._store.append_messages([message])
        return result


def _integer(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None


def _half_again(half: MessageExt, properties: dict[str, str], host: bytes) -> MessageExtBrokerInner:
    """The half as it goes to the end of its topic, with other properties."""
    return MessageExtBrokerInner(
        names.TRANS_HALF_TOPIC,
        half.body,
        p.encode_properties(properties),
        HALF_QUEUE_ID,
        half.flag,
        half.sys_flag,
        half.born_timestamp,
        half.born_host,
        host,
        half.reconsume_times,
        wait_store_ok=False,
        convert=False,
    )


def _records(slices: list[memoryview]) -> list[MessageExt]:
    """The messages in slices of the log, each of which may hold several records."""
    messages = []
    for piece in slices:
        at = 0
        while at < len(piece):
            message = decode_record(piece, at)
            messages.append(message)
            at += message.record_size
    return messages
