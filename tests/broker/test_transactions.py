"""Half messages end once, are asked about when nobody ends them, and survive a crash.

The first part is state machines with a virtual clock, the second a live broker and a raw producer.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.broker import consumer_offsets, half_messages, transactions
from oberth.broker.clients import ClientInfo
from oberth.broker.half_messages import ROOTS_MAX, Lineage, OpBatch, ParkedHalves, parse_op_body
from oberth.broker.producers import ProducerTable
from oberth.broker.transactions import from_half, to_half
from oberth.formats import properties as p
from oberth.formats.message import MessageExt, decode_record
from oberth.formats.message_id import decode_offset_message_id
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand
from oberth.store.messages import MessageExtBrokerInner, PutMessageResult, PutMessageStatus

COMMIT, ROLLBACK, UNKNOWN = "8", "12", "0"
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"

# ----------------------------------------------------------------------------- state machines


def test_a_batch_of_ended_offsets_is_written_when_it_is_full() -> None:
    batch = OpBatch(size_max=6, interval_ms=3000)
    assert batch.add(1, 0) is None
    assert batch.add(22, 0) is None
    assert batch.add(3, 0) == b"1,22,3,"
    assert len(batch) == 0


def test_a_batch_of_ended_offsets_is_written_when_its_time_comes() -> None:
    batch = OpBatch(size_max=4096, interval_ms=3000)
    batch.add(1, 10)
    batch.add(2, 2000)
    assert batch.on_time(3009) is None
    assert batch.on_time(3010) == b"1,2,"
    assert batch.on_time(9999) is None
    assert batch.take() is None


@given(st.lists(st.integers(0, 2**62), max_size=50))
def test_op_bodies_come_back(offsets: list[int]) -> None:
    batch = OpBatch(1 << 20, 0)
    for offset in offsets:
        batch.add(offset, 0)
    assert parse_op_body(batch.take() or b"") == offsets


@pytest.mark.parametrize(
    ("body", "offsets"), [(b"17", [17]), (b"1,2,", [1, 2]), (b"", []), (b"x,3,-1,", [3])]
)
def test_op_bodies_of_either_line(body: bytes, offsets: list[int]) -> None:
    assert parse_op_body(body) == offsets


def test_copies_share_an_end() -> None:
    lineage = Lineage()
    lineage.copied(5, 9)
    lineage.copied(9, 14)
    assert lineage.root(14) == 5
    assert not lineage.has_ended(14)
    # The producer ends it by the offset it was given first.
    assert lineage.ended(5) == {5, 14}
    assert lineage.has_ended(14)
    assert lineage.has_ended(5)
    lineage.passed(14)
    assert lineage.has_ended(5)


def test_a_copy_with_a_successor_is_not_forgotten() -> None:
    lineage = Lineage()
    for offset, copy in ((5, 9), (9, 14), (14, 20)):
        lineage.copied(offset, copy)
        lineage.passed(offset)
    assert [lineage.root(offset) for offset in (5, 9, 14, 20)] == [5] * 4
    assert lineage.ended(9) == {9, 20}
    lineage.passed(20)
    assert all(lineage.has_ended(offset) for offset in (5, 9, 14, 20))
    assert not lineage.has_ended(21)


def test_ends_are_remembered_within_limits() -> None:
    lineage = Lineage()
    for offset in range(ROOTS_MAX + 1):
        lineage.ended(offset)
    assert not lineage.has_ended(0)
    assert lineage.has_ended(ROOTS_MAX)


def test_a_half_becomes_what_it_was() -> None:
    properties = {"UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "PG"}
    topic, queue_id, sys_flag = to_half("T", 3, 0x4 | 0x1, properties)
    assert (topic, queue_id, sys_flag) == (HALF, 0, 0x1)
    half = MessageExt(
        topic=topic, queue_id=0, queue_offset=7, commit_log_offset=100, record_size=0, magic=0,
        body_crc=0, flag=5, sys_flag=sys_flag, born_timestamp=1, born_host=b"12345678",
        store_timestamp=2, store_host=b"12345678", reconsume_times=0,
        prepared_transaction_offset=0, body=b"x", properties_raw=p.encode_properties(properties),
    )  # fmt: skip
    message = from_half(half, b"87654321")
    assert message is not None
    assert (message.topic, message.queue_id, message.sys_flag) == ("T", 3, 0x8 | 0x1)
    assert message.prepared_transaction_offset == 100
    stored = p.decode_properties(message.properties_raw)
    assert stored == {
        "UNIQ_KEY": "U", "TRAN_MSG": "true", "PGROUP": "PG", "__transactionId__": "U",
    }  # fmt: skip


@pytest.mark.parametrize("real", [{}, {"REAL_TOPIC": "../x", "REAL_QID": "0"},
                                  {"REAL_TOPIC": "T", "REAL_QID": "one"},
                                  {"REAL_TOPIC": "T", "REAL_QID": "9" * 10}])  # fmt: skip
def test_a_half_that_names_no_place_becomes_nothing(real: dict[str, str]) -> None:
    half = MessageExt(
        topic=HALF, queue_id=0, queue_offset=0, commit_log_offset=0, record_size=0, magic=0,
        body_crc=0, flag=0, sys_flag=0, born_timestamp=1, born_host=b"12345678",
        store_timestamp=2, store_host=b"12345678", reconsume_times=0,
        prepared_transaction_offset=0, body=b"x", properties_raw=p.encode_properties(real),
    )  # fmt: skip
    assert from_half(half, b"87654321") is None


# --------------------------------------------------------------------------------- live broker


class Producer:
    """Sends halves, ends them, and notes what it is asked."""

    def __init__(self, live: Any) -> None:
        self.live = live
        self.asked: list[RemotingCommand] = []
        table = ProcessorTable()
        table.sync([39], self._on_check)
        self.peer = live.another(table)

    def _on_check(self, channel: object, request: RemotingCommand) -> None:
        self.asked.append(request)

    async def half(self, body: bytes, **properties: str) -> tuple[int, int]:
        """Queue offset and CommitLog offset of a new half message."""
        given = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": f"U{body.decode()}", **properties}
        response = await self.peer.send("T", body, 1, given, f="4", g=str(self.live.clock()))
        assert response.code == 0
        assert response.fields["queueId"] == "1"
        where = decode_offset_message_id(response.fields["msgId"]).commit_log_offset
        return int(response.fields["queueOffset"]), where

    async def end(
        self, half: tuple[int, int], decision: str = COMMIT, **more: str
    ) -> RemotingCommand:
        response: RemotingCommand = await self.peer.call(
            37, self.end_fields(half, decision, **more)
        )
        return response

    @staticmethod
    def end_fields(half: tuple[int, int], decision: str = COMMIT, **more: str) -> dict[str, str]:
        return {
            "producerGroup": "PG",
            "tranStateTableOffset": str(half[0]),
            "commitLogOffset": str(half[1]),
            "commitOrRollback": decision,
            "msgId": "U",
            **more,
        }

    async def committed(self) -> list[bytes]:
        return [message.body for message in await self.peer.read("T", 1)]


@pytest.fixture
async def producer(make_live: Any) -> Producer:
    live = await make_live(transactionCheckInterval="1000", transactionTimeOut="6000")
    made = Producer(live)
    await made.peer.send("T")
    await made.peer.heartbeat(producers=("PG",))
    return made


async def check(producer: Producer, ms: int) -> None:
    """Let time pass and a round of checks be done."""
    live = producer.live
    before = live.broker._next_check_ms
    await live.later(ms)
    await live.until(lambda: live.broker._next_check_ms > before and not live.broker.services.tasks)
    live.broker.services.dispatching.now()


async def test_a_half_is_seen_by_nobody_until_it_is_committed(producer: Producer) -> None:
    half = await producer.half(b"1")
    assert await producer.committed() == []
    assert (await producer.end(half)).code == 0
    (message,) = await producer.peer.read("T", 1)
    assert message.body == b"1"
    assert message.prepared_transaction_offset == half[1]
    assert message.sys_flag == 8
    assert "REAL_TOPIC" not in message.properties


async def test_a_rollback_leaves_nothing(producer: Producer) -> None:
    half = await producer.half(b"1")
    assert (await producer.end(half, ROLLBACK)).code == 0
    await check(producer, 60_000)
    assert await producer.committed() == []
    assert producer.asked == []


async def test_what_ends_twice_is_stored_once(producer: Producer) -> None:
    half = await producer.half(b"1")
    for _ in range(3):
        assert (await producer.end(half)).code == 0
    assert await producer.committed() == [b"1"]


async def test_the_ends_of_one_read_are_one_append(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [await producer.half(b"%d" % number) for number in range(6)]
    broker = producer.live.broker
    appended: list[list[bytes]] = []
    append = broker.parts.store.append_messages

    def note(messages: list[MessageExtBrokerInner]) -> list[PutMessageResult]:
        appended.append([message.body for message in messages])
        done: list[PutMessageResult] = append(messages)
        return done

    monkeypatch.setattr(broker.parts.store, "append_messages", note)

    def request(half: tuple[int, int], decision: str = COMMIT, **more: str) -> RemotingCommand:
        return RemotingCommand(code=37, ext_fields=producer.end_fields(half, decision, **more))

    requests = [
        request(halves[0]),
        request(halves[1], ROLLBACK),
        request(halves[2], producerGroup="other"),
        request(halves[3], commitLogOffset="none"),
        request(halves[4]),
        request(halves[1]),  # it was rolled back just before
        request(halves[2], UNKNOWN),
        request(halves[0], ROLLBACK),  # and this one committed
        request(halves[5]),
    ]
    channel: Any = producer
    channel.remote = "here"
    answers = broker.processors.transactions.end([channel] * len(requests), requests)
    codes = [answer and answer.code for answer in answers]
    assert codes == [0, 0, 1, 1, 0, 0, None, 0, 0]
    assert appended == [[b"0", b"4"], [b"5"]]
    requests = [request(halves[2]), request(halves[3])]
    for each in requests:
        each.flag = ONEWAY_FLAG
    assert broker.processors.transactions.end([channel] * len(requests), requests) == [None, None]
    broker.services.dispatching.now()
    assert await producer.committed() == [b"0", b"4", b"5", b"2", b"3"]
    await check(producer, 60_000)
    assert producer.asked == []


async def test_what_is_not_stored_has_not_ended(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    halves = [await producer.half(b"%d" % number) for number in range(2)]
    broker = producer.live.broker
    refused = PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
    with monkeypatch.context() as full:
        full.setattr(broker.parts.store, "append_messages", lambda _: [refused, refused])
        requests = [
            RemotingCommand(code=37, ext_fields=producer.end_fields(half)) for half in halves
        ]
        channel: Any = producer
        answers = broker.processors.transactions.end([channel] * len(requests), requests)
    assert [answer and answer.code for answer in answers] == [1, 1]
    for half in halves:
        assert (await producer.end(half)).code == 0
    assert await producer.committed() == [b"0", b"1"]


@pytest.mark.parametrize(
    ("more", "remark"),
    [
        ({"producerGroup": "other"}, "The producer group wrong"),
        ({"tranStateTableOffset": "99"}, "The transaction state table offset wrong"),
        ({"commitLogOffset": "3"}, "Find prepared transaction message failed"),
    ],
)
async def test_ends_that_do_not_fit(producer: Producer, more: dict[str, str], remark: str) -> None:
    half = await producer.half(b"1")
    response = await producer.end(half, **more)
    assert (response.code, response.remark) == (1, remark)
    assert await producer.committed() == []


async def test_a_message_that_is_no_half_cannot_be_committed(producer: Producer) -> None:
    (first,) = await producer.peer.read("T")
    response = await producer.end((0, first.commit_log_offset))
    assert response.code == 1


async def test_who_does_not_end_is_asked(producer: Producer) -> None:
    half = await producer.half(b"1")
    await check(producer, 3_000)
    assert producer.asked == []
    await check(producer, 4_000)
    await producer.live.until(lambda: len(producer.asked) == 1)
    (request,) = producer.asked
    assert request.fields["transactionId"] == "U1"
    again = (
        int(request.fields["tranStateTableOffset"]),
        int(request.fields["commitLogOffset"]),
    )
    assert again[0] > half[0]
    shown = decode_record(request.body_bytes())
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 1, b"1")
    assert (await producer.end(again, fromTransactionCheck="true")).code == 0
    assert await producer.committed() == [b"1"]
    # The late answer to the first half changes nothing.
    assert (await producer.end(half, ROLLBACK)).code == 0
    await check(producer, 60_000)
    assert await producer.committed() == [b"1"]
    assert len(producer.asked) == 1


async def test_the_first_offset_still_ends_a_half_that_was_asked_about(producer: Producer) -> None:
    half = await producer.half(b"1")
    await check(producer, 7_000)
    await producer.live.until(lambda: len(producer.asked) == 1)
    assert (await producer.end(half)).code == 0
    assert await producer.committed() == [b"1"]
    for _ in range(3):
        await check(producer, 10_000)
    assert len(producer.asked) == 1


async def test_asking_ends_after_so_many_times(make_live: Any) -> None:
    live = await make_live(transactionCheckInterval="1000", transactionCheckMax="3")
    producer = Producer(live)
    await producer.peer.heartbeat(producers=("PG",))
    await producer.half(b"1")
    for _ in range(6):
        await check(producer, 7_000)
    await live.until(lambda: len(producer.asked) == 3)
    (given_up,) = await producer.peer.read("TRANS_CHECK_MAX_TIME_TOPIC")
    assert given_up.body == b"1"
    offset_id = f"{given_up.store_host.hex().upper()}{given_up.commit_log_offset:016X}"
    assert (await producer.peer.call(323, {"msgId": offset_id})).code == 0
    await check(producer, 7_000)
    await live.until(lambda: len(producer.asked) == 4)


async def test_what_nobody_could_be_asked_about_is_not_counted(make_live: Any) -> None:
    live = await make_live(transactionCheckInterval="1000", transactionCheckMax="2")
    producer = Producer(live)
    await producer.peer.send("T")
    half = await producer.half(b"1")
    end = live.broker.parts.store.max_phy_offset
    for _ in range(5):
        await check(producer, 7_000)
    assert await producer.peer.read("TRANS_CHECK_MAX_TIME_TOPIC") == []
    assert live.broker.parts.store.max_phy_offset == end, "written again and again"
    await producer.peer.heartbeat(producers=("PG",))
    await check(producer, 1_000)
    await live.until(lambda: len(producer.asked) == 1)
    assert int(producer.asked[0].fields["tranStateTableOffset"]) > half[0]
    for _ in range(3):
        await check(producer, 7_000)
    assert len(producer.asked) == 2
    (given_up,) = await producer.peer.read("TRANS_CHECK_MAX_TIME_TOPIC")
    assert given_up.body == b"1"


async def test_a_half_without_a_producer_holds_up_nobody(producer: Producer) -> None:
    live = producer.live
    offsets = live.broker.parts.offsets
    await producer.half(b"0")
    await producer.half(b"parked", PGROUP="PX")
    await producer.half(b"2")
    ended = await producer.half(b"3")
    await producer.end(ended, ROLLBACK)
    await check(producer, 7_000)
    await live.until(lambda: len(producer.asked) == 2)
    assert [each.fields["transactionId"] for each in producer.asked] == ["U0", "U2"]
    assert offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 1
    for request in producer.asked:
        place = (
            int(request.fields["tranStateTableOffset"]),
            int(request.fields["commitLogOffset"]),
        )
        assert (await producer.end(place, fromTransactionCheck="true")).code == 0
    await check(producer, 7_000)
    assert await producer.committed() == [b"0", b"2"]
    # Those behind the parked one are not looked at again by a broker that knows only the offsets.
    await live.restart()
    again = Producer(live)
    await again.peer.heartbeat(producers=("PG",))
    await check(again, 7_000)
    assert again.asked == []
    await again.peer.heartbeat(producers=("PG", "PX"))
    await check(again, 1_000)
    await live.until(lambda: len(again.asked) == 1)
    assert again.asked[0].fields["transactionId"] == "Uparked"
    await check(again, 1_000)
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) >= 4


async def test_a_parked_half_is_asked_about_as_soon_as_its_producer_is_back(
    make_live: Any,
) -> None:
    live = await make_live(transactionCheckInterval="30000")
    producer = Producer(live)
    await producer.peer.send("T")
    for n in range(3):
        await producer.half(str(n).encode())
    await check(producer, 30_000)
    await live.later(1_000)
    assert producer.asked == []
    await producer.peer.heartbeat(producers=("PG",))
    await live.later(1_000)  # the next round is 28 s away
    await live.until(lambda: len(producer.asked) == 3)
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 3
    for n, request in enumerate(producer.asked):
        assert request.fields["transactionId"] == f"U{n}"
        place = (
            int(request.fields["tranStateTableOffset"]),
            int(request.fields["commitLogOffset"]),
        )
        assert (await producer.end(place, fromTransactionCheck="true")).code == 0
    await check(producer, 60_000)
    assert await producer.committed() == [b"0", b"1", b"2"]
    assert len(producer.asked) == 3


async def test_slow_answers_to_several_questions_commit_once(producer: Producer) -> None:
    await producer.half(b"1")
    for number in range(4):
        await producer.peer.heartbeat(producers=("PG",))
        await check(producer, 60_000)
        await producer.live.until(lambda number=number: len(producer.asked) == number + 1)
    offsets = [request.fields["tranStateTableOffset"] for request in producer.asked]
    assert len(set(offsets)) == 4, "each names the copy of its round"
    for request in producer.asked:
        place = (
            int(request.fields["tranStateTableOffset"]),
            int(request.fields["commitLogOffset"]),
        )
        assert (await producer.end(place, fromTransactionCheck="true")).code == 0
    assert await producer.committed() == [b"1"]


async def test_a_parked_half_can_still_be_ended(producer: Producer) -> None:
    half = await producer.half(b"1", PGROUP="PX")
    await check(producer, 7_000)
    assert (await producer.end(half, producerGroup="PX")).code == 0
    assert await producer.committed() == [b"1"]
    await producer.peer.heartbeat(producers=("PX",))
    await check(producer, 7_000)
    assert producer.asked == []
    assert producer.live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 1


async def test_a_parked_half_is_given_up_when_it_is_too_old(make_live: Any) -> None:
    live = await make_live(transactionCheckInterval="1000", fileReservedTime="1")
    producer = Producer(live)
    await producer.peer.send("T")
    await producer.half(b"1")
    await check(producer, 7_000)
    assert await producer.peer.read("TRANS_CHECK_MAX_TIME_TOPIC") == []
    await check(producer, 3_600_000)
    await live.later(200)
    assert len(await producer.peer.read("TRANS_CHECK_MAX_TIME_TOPIC")) == 1
    await producer.peer.heartbeat(producers=("PG",))
    await check(producer, 7_000)
    assert producer.asked == []


async def test_parked_halves_do_not_keep_a_long_past(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "PARKED_SPAN_MIN", 10)
    live = producer.live
    await producer.half(b"parked", PGROUP="PX")
    for n in range(20):
        await producer.end(await producer.half(str(n).encode()))
    await check(producer, 7_000)
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == -1
    for _ in range(3):
        await check(producer, 7_000)
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 21
    await producer.peer.heartbeat(producers=("PX",))
    await check(producer, 7_000)
    await live.until(lambda: len(producer.asked) == 1)
    assert decode_record(producer.asked[0].body_bytes()).properties["TRANSACTION_CHECK_TIMES"] == (
        "1"
    )


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_parked_halves_are_known_by_group_and_in_order(halves: list[tuple[str, bool]]) -> None:
    parked = ParkedHalves()
    for offset, (group, _) in enumerate(halves):
        parked.add(offset, group, 1000 + offset)
    for offset, (_, ends) in enumerate(halves):
        if ends:
            parked.remove(offset)
            parked.remove(offset)
    left = [offset for offset, (_, ends) in enumerate(halves) if not ends]
    assert len(parked) == len(left)
    assert parked.front() == (left[0] if left else None)
    assert parked.first(5) == left[:5]
    assert parked.born_before(1030, 100) == ([offset for offset in left if offset < 30], False)
    back = []
    for group in "abc":
        own = [offset for offset in left if halves[offset][0] == group]
        assert parked.of_group(group, 3) == own[:3]
        parked.came_back(group)
        back += [group] if own else []
    assert parked.returned(9) == back
    parked.remove_from(40)
    assert parked.first(100) == [offset for offset in left if offset < 40]
    parked.remove_below(30, 4)
    assert parked.first(100) == [offset for offset in left if offset < 30][4:] + [
        offset for offset in left if 30 <= offset < 40
    ]
    parked.remove_below(30, 100)
    assert parked.first(100) == [offset for offset in left if 30 <= offset < 40]
    groups = {halves[offset][0] for offset in left if 30 <= offset < 40}
    assert set(parked.returned(9)) == groups
    for group in groups:
        parked.left_again(group)
    assert parked.returned(9) == []


def test_the_age_of_very_many_parked_halves_is_looked_at_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a young one, or one that says it is, lies in front."""
    monkeypatch.setattr(half_messages, "AGES_AT_ONCE", 10)
    parked = ParkedHalves()
    for offset in range(25):
        parked.add(offset, f"g{offset}", 1000 if offset % 12 else 2000)
    old = [offset for offset in range(25) if offset % 12]
    assert parked.born_before(1001, 4) == (old[:4], True)
    parked.remove(old[4])
    found = [parked.born_before(1001, 100) for _ in range(3)]
    assert found == [(old[5:13], True), (old[13:], False), (old[:4] + old[5:9], True)]
    parked.remove_from(10)  # what was yet to be looked at
    assert parked.born_before(1001, 100) == (old[:4] + old[5:9], False)
    parked.clear()
    assert parked.born_before(1001, 100) == ([], False)


@pytest.mark.parametrize("is_back", [True, False])
async def test_a_round_looks_at_the_age_of_all_that_are_parked(
    make_live: Any, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    """The next one may be hours away, and the file of a half that is too old is deleted soon."""
    live = await make_live(transactionCheckInterval="36000000", fileReservedTime="1")
    machine, parts = live.broker.services.transactions, live.broker.parts
    monkeypatch.setattr(half_messages, "AGES_AT_ONCE", 10)
    asked: list[str] = []
    machine._notify = lambda half, group: asked.append(group)
    put_halves(live, ["G"] * 25, live.clock() + 3_600_000)
    put_halves(live, ["H"] * 5)
    live.clock.ahead_ms += 7_000
    while machine.check()[1]:
        pass
    assert len(machine._parked) == 30
    live.clock.ahead_ms += 3_600_000
    put_halves(live, ["G"])
    live.clock.ahead_ms += 7_000
    if is_back:
        parts.producers.register("G", ClientInfo("channel", "c", "JAVA", 479, live.clock()))
    while machine.check()[1]:
        pass
    live.broker.services.dispatching.soon()
    live.broker.services.dispatching.now()
    assert parts.store.max_offset_in_queue("TRANS_CHECK_MAX_TIME_TOPIC", 0) == 5
    assert asked == (["G"] * 26 if is_back else [])
    assert len(machine._parked) == (0 if is_back else 26)


async def test_a_round_forgets_all_that_has_left_the_log(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(transactionCheckInterval="3600000")
    machine, store = live.broker.services.transactions, live.broker.parts.store
    put_halves(live, ["G"] * 35)
    live.clock.ahead_ms += 7_000
    while machine.check()[1]:
        pass
    monkeypatch.setattr(transactions, "GONE_PER_STEP_MAX", 10)
    monkeypatch.setattr(store, "min_offset_in_queue", lambda topic, queue_id: 32)
    while machine.check()[1]:
        pass
    assert machine._parked.first(9) == [32, 33, 34]
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 32


@pytest.mark.parametrize("length", [255, 256, 30_000])
@pytest.mark.parametrize("is_one", [True, False])
def test_what_a_groups_name_takes_is_bounded(length: int, is_one: bool) -> None:
    """Each half brings a text of its own, also where it is the same group's."""
    count = 200
    parked = ParkedHalves()
    tracemalloc.start()
    try:
        for offset in range(count):
            parked.add(offset, f"{0 if is_one else offset:0{length}}", 1000)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < count * 1024
    if is_one or length > 255:
        assert len(parked._groups) == 1
    for offset in range(count):
        parked.remove(offset)
    assert parked._groups == {}


def test_who_has_the_name_that_stands_for_long_ones_is_not_confused_with_them() -> None:
    """No producer can have it."""
    parked = ParkedHalves()
    table = ProducerTable()
    table.group_listeners.append(parked.came_back)
    parked.add(0, "x" * 256, 1000)
    parked.add(1, "y" * 255, 1000)
    assert parked.of_group("z" * 256, 9) == [0]
    client = ClientInfo("channel", "c", "JAVA", 479, 0)
    for group in ("x" * 256, *parked._groups):
        table.register(group, client)
    assert parked.returned(9) == ["y" * 255]


def put_halves(live: Any, groups: list[str], born_ms: int | None = None) -> None:
    """A half message of each group, born now or at a time."""
    messages = []
    for group in groups:
        properties = {"TRAN_MSG": "true", "PGROUP": group}
        topic, queue_id, sys_flag = to_half("T", 0, 0, properties)
        message = MessageExtBrokerInner(
            topic, b"x", p.encode_properties(properties), queue_id, sys_flag=sys_flag,
            born_timestamp=live.clock() if born_ms is None else born_ms,
        )  # fmt: skip
        messages.append(message)
    assert all(each.ok for each in live.broker.parts.store.append_messages(messages))
    live.broker.services.dispatching.soon()
    live.broker.services.dispatching.now()


class Walked(dict[Any, Any]):
    """A table that counts what is gone through in it."""

    count = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            Walked.count += 1
            yield each

    def __reversed__(self) -> Any:
        for each in super().__reversed__():
            Walked.count += 1
            yield each

    def keys(self) -> Any:
        return iter(self)

    def values(self) -> Any:
        return (self[each] for each in self)

    def items(self) -> Any:
        return ((each, self[each]) for each in self)


async def test_what_a_half_costs_does_not_depend_on_those_that_are_parked(
    make_live: Any,
) -> None:
    """Whoever sends halves may make a group up for each, and none of them ever has a producer."""
    live = await make_live(transactionCheckInterval="3600000")
    machine = live.broker.services.transactions
    count = 2_500
    groups = [f"g{number}" for number in range(count)]
    put_halves(live, groups)
    live.clock.ahead_ms += 7_000
    while machine.check()[1]:
        pass
    assert len(machine._parked) == count
    for name in ParkedHalves.__slots__:
        table = getattr(machine._parked, name)
        if isinstance(table, dict):
            setattr(machine._parked, name, Walked(table))

    def walked() -> int:
        found, Walked.count = Walked.count, 0
        return found

    machine.end(17)
    assert walked() <= 1
    machine.on_time(live.clock() + transactions.PARKED_LOOK_MS)
    assert walked() <= 1
    put_halves(live, [f"h{number}" for number in range(transactions.HALVES_PER_STEP_MAX)])
    live.clock.ahead_ms += 7_000
    assert machine.check() == (0, False)
    assert len(machine._parked) == count - 1 + transactions.HALVES_PER_STEP_MAX
    assert walked() <= 10
    asked: list[str] = []
    live.broker.parts.producers.register("g9", ClientInfo("channel", "c", "JAVA", 479, 0))
    machine._notify = lambda half, group: asked.append(group)
    machine.on_time(live.clock() + 3 * transactions.PARKED_LOOK_MS)
    assert asked == ["g9"]
    assert walked() <= 10


async def test_what_a_half_costs_does_not_depend_on_those_of_its_group(make_live: Any) -> None:
    live = await make_live(transactionCheckInterval="3600000")
    machine = live.broker.services.transactions
    count = transactions.HALVES_PER_STEP_MAX
    put_halves(live, ["G"] * count)
    live.clock.ahead_ms += 7_000
    while machine.check()[1]:
        pass
    own = machine._parked._groups["G"]
    assert len(own.offsets) == count
    walked = half_messages._Group("G", Walked(own.offsets))  # type: ignore[arg-type]
    machine._parked._groups["G"] = walked
    for offset, (_, born_ms) in machine._parked._halves.items():
        machine._parked._halves[offset] = walked, born_ms
    Walked.count = 0
    machine.end(0)
    put_halves(live, ["G"] * count)
    live.clock.ahead_ms += 7_000
    while machine.check()[1]:
        pass
    assert len(walked.offsets) == 2 * count - 1
    assert Walked.count <= 10


def least_s(call: Callable[[], object]) -> float:
    """What a call takes when nothing disturbs it."""
    found = []
    for _ in range(100):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def test_to_find_the_first_costs_the_same_behind_very_many_that_are_gone() -> None:
    """A plain dict looks at each place that it had for them, 60 us for 100 000."""

    def tables(gone: int) -> list[Callable[[], object]]:
        one, many = ParkedHalves(), ParkedHalves()
        for offset in range(gone + 1):
            one.add(offset, "G", 1000)
            many.add(offset, f"g{offset}", 1000)
            many.came_back(f"g{offset}")
        for offset in range(gone):
            one.remove(offset)
            many.left_again(f"g{offset}")
        assert one.of_group("G", 1) == [gone]
        assert many.returned(1) == [f"g{gone}"]
        return [one.front, lambda: one.of_group("G", 1), lambda: many.returned(1)]

    for few, very_many in zip(tables(1), tables(100_000), strict=True):
        assert least_s(very_many) < 20 * least_s(few)


async def test_a_group_that_came_back_and_left_again_is_not_asked(make_live: Any) -> None:
    live = await make_live(transactionCheckInterval="3600000")
    machine, producers = live.broker.services.transactions, live.broker.parts.producers
    put_halves(live, ["PX"])
    live.clock.ahead_ms += 7_000
    machine.check()
    asked: list[str] = []
    machine._notify = lambda half, group: asked.append(group)
    client = ClientInfo("channel", "c", "JAVA", 479, live.clock())
    assert producers.register("PX", client)
    assert producers.unregister("PX", "channel")
    assert machine.ask_returned() == 0
    assert machine._parked.returned(9) == []
    assert producers.register("PX", client)
    assert machine.ask_returned() == 1
    assert machine.ask_returned() == 0
    assert asked == ["PX"]


async def test_what_is_looked_at_again_is_parked_in_order(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that was full for a moment: the half that was to be put back is parked then."""
    live = producer.live
    machine, store = live.broker.services.transactions, live.broker.parts.store
    await producer.half(b"0")
    await producer.half(b"1", PGROUP="PX")
    live.broker.services.dispatching.now()
    live.clock.ahead_ms += 7_000
    refused = PutMessageResult(PutMessageStatus.CREATE_MAPPED_FILE_FAILED)
    with monkeypatch.context() as full:
        full.setattr(store, "append_messages", lambda messages: [refused for _ in messages])
        assert machine.check() == (0, False)
    assert len(machine._parked) == 0
    monkeypatch.setattr(machine, "_is_online", lambda group: False)
    machine.check()
    assert machine._parked.first(9) == [0, 1]
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) <= 0


async def test_what_lies_behind_a_parked_half_is_passed_in_steps(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = producer.live
    machine, offsets = live.broker.services.transactions, live.broker.parts.offsets
    parked = await producer.half(b"parked", PGROUP="PX")
    for number in range(30):
        await producer.end(await producer.half(b"%d" % number))
    await check(producer, 7_000)
    await producer.end(parked, producerGroup="PX")
    monkeypatch.setattr(transactions, "ENDED_PER_STEP_MAX", 10)
    reached = []
    more = True
    while more:
        _, more = machine.check()
        reached.append(offsets.query("CID_RMQ_SYS_TRANS", HALF, 0))
    assert reached == [10, 20, 30, 31]
    assert not machine._removed.keys() & set(range(31))


async def parked_before_ended(producer: Producer, count: int) -> None:
    """A half that waits for its producer, and behind it so many whose end has been read."""
    await producer.half(b"parked", PGROUP="PX")
    for number in range(count):
        await producer.end(await producer.half(b"%d" % number))
    await check(producer, 7_000)
    machine = producer.live.broker.services.transactions
    machine.check()
    assert len(machine._removed) == count
    assert machine._open_ops


def assert_all_is_done(producer: Producer) -> None:
    """Nothing is remembered of halves and ops, and both topics are done up to their ends."""
    parts, machine = producer.live.broker.parts, producer.live.broker.services.transactions
    assert (machine._removed, len(machine._open_ops), len(machine._parked)) == ({}, 0, 0)
    for topic in (HALF, OP):
        end = parts.store.max_offset_in_queue(topic, 0)
        assert parts.offsets.query("CID_RMQ_SYS_TRANS", topic, 0) == end


async def test_the_log_may_pass_a_parked_half(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it is born in the future, or a disk that is full takes its file early."""
    await parked_before_ended(producer, 30)
    live, lost = producer.live, 25
    machine, store = live.broker.services.transactions, live.broker.parts.store
    lows = store.min_offset_in_queue
    monkeypatch.setattr(
        store, "min_offset_in_queue",
        lambda topic, queue_id: lost if topic == HALF else lows(topic, queue_id),
    )  # fmt: skip
    monkeypatch.setattr(transactions, "ENDED_PER_STEP_MAX", 10)
    reached = []
    more = True
    while more:
        _, more = machine.check()
        reached.append(live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", HALF, 0))
    assert reached == [10, 20, 30, 31]
    assert_all_is_done(producer)


async def test_who_was_away_for_long_begins_where_the_log_does(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is remembered of what has left it, so there is nothing to pass."""
    live = producer.live
    for number in range(30):
        await producer.end(await producer.half(b"%d" % number))
    store = live.broker.parts.store
    lows = store.min_offset_in_queue
    monkeypatch.setattr(
        store, "min_offset_in_queue",
        lambda topic, queue_id: 25 if topic == HALF else lows(topic, queue_id),
    )  # fmt: skip
    monkeypatch.setattr(transactions, "ENDED_PER_STEP_MAX", 10)
    live.broker.services.transactions.flush()
    live.broker.services.dispatching.soon()
    live.broker.services.dispatching.now()
    assert live.broker.services.transactions.check() == (0, False)
    assert_all_is_done(producer)


@pytest.mark.parametrize("is_reset", [True, False])
async def test_an_offset_that_somebody_sets_is_where_it_goes_on(
    producer: Producer, is_reset: bool
) -> None:
    """A reset (222) waits for a pull, and no commit counts before; there is none here."""
    await parked_before_ended(producer, 30)
    parts, machine = producer.live.broker.parts, producer.live.broker.services.transactions
    assign = parts.offsets.assign_reset if is_reset else parts.offsets.commit
    assign("CID_RMQ_SYS_TRANS", HALF, 0, 20, producer.live.clock())
    while machine.check()[1]:
        pass
    assert_all_is_done(producer)
    assert not parts.offsets.has_reset("CID_RMQ_SYS_TRANS", HALF, 0)
    assign("CID_RMQ_SYS_TRANS", HALF, 0, 0, producer.live.clock())
    while machine.check()[1]:
        pass
    assert machine._parked.front() == 0


async def test_a_full_table_of_offsets_has_room_for_transactions(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each step would begin anew, and what is parked be looked at again."""
    monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", 0)
    await producer.end(await producer.half(b"0"))
    await producer.half(b"parked", PGROUP="PX")
    await check(producer, 7_000)
    machine, offsets = (
        producer.live.broker.services.transactions,
        producer.live.broker.parts.offsets,
    )
    for _ in range(2):
        machine.check()
        assert offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 1
        assert offsets.query("CID_RMQ_SYS_TRANS", OP, 0) == 1
        assert machine._parked.first(9) == [1]


async def test_op_messages_are_closed_in_steps(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is passed last may stand in front of very many."""
    monkeypatch.setattr(transactions, "ENDED_PER_STEP_MAX", 10)
    machine, offsets = (
        producer.live.broker.services.transactions,
        producer.live.broker.parts.offsets,
    )
    machine._open_ops.update((number, set()) for number in range(25))
    machine._op_read = 25
    reached = []
    more = True
    while more:
        more = machine._advance_ops()
        reached.append(offsets.query("CID_RMQ_SYS_TRANS", OP, 0))
    assert reached == [10, 20, 25]


async def test_an_immune_half_is_asked_about_later_and_holds_up_nobody(
    producer: Producer,
) -> None:
    immune = await producer.half(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    await producer.half(b"2")
    await check(producer, 7_000)
    await producer.live.until(lambda: len(producer.asked) == 1)
    assert producer.asked[0].fields["transactionId"] == "U2"
    assert (await producer.end(immune)).code == 0
    assert await producer.committed() == [b"immune"]


async def test_an_end_after_the_immunity_comes_too_late(producer: Producer) -> None:
    half = await producer.half(b"1", CHECK_IMMUNITY_TIME_IN_SECONDS="5", k="v")
    producer.live.clock.ahead_ms += 10_000
    assert (await producer.end(half)).code == 604


async def test_unknown_gets_no_answer(producer: Producer) -> None:
    half = await producer.half(b"1")
    fields = {
        "producerGroup": "PG",
        "tranStateTableOffset": str(half[0]),
        "commitLogOffset": str(half[1]),
        "commitOrRollback": UNKNOWN,
        "msgId": "U",
    }
    await producer.peer.oneway(37, fields)
    assert await producer.committed() == []


async def test_halves_may_be_refused(make_live: Any) -> None:
    live = await make_live(rejectTransactionMessage="true")
    response = await live.peer.send("T", b"x", 0, {"TRAN_MSG": "true", "PGROUP": "PG"}, f="4")
    assert response.code == 16
    assert "transaction message is forbidden" in (response.remark or "")


async def test_a_restart_asks_only_about_what_is_open(producer: Producer) -> None:
    live = producer.live
    ended = [await producer.half(str(n).encode()) for n in range(5)]
    for half in ended[:3]:
        await producer.end(half)
    await producer.end(ended[3], ROLLBACK)
    await live.restart()
    again = Producer(live)
    await again.peer.heartbeat(producers=("PG",))
    await check(again, 7_000)
    await live.until(lambda: len(again.asked) == 1)
    assert again.asked[0].fields["transactionId"] == "U4"
    assert await again.committed() == [b"0", b"1", b"2"]


async def test_op_messages_are_worked_off(producer: Producer) -> None:
    live = producer.live
    for n in range(30):
        await producer.end(await producer.half(str(n).encode()))
    await check(producer, 4_000)
    await check(producer, 7_000)
    offsets = live.broker.parts.offsets
    assert offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == 30
    assert offsets.query("CID_RMQ_SYS_TRANS", OP, 0) == live.broker.parts.store.max_offset_in_queue(
        OP, 0
    )
    assert producer.asked == []


async def test_a_half_that_two_op_messages_name_does_not_hold_them_up(producer: Producer) -> None:
    """It was put back, and then its producer ended it by its old offset."""
    live = producer.live
    offsets = live.broker.parts.offsets
    await producer.half(b"parked", PGROUP="PX")
    half = await producer.half(b"1")
    await check(producer, 7_000)
    await live.until(lambda: len(producer.asked) == 1)
    assert (await producer.end(half)).code == 0
    await check(producer, 7_000)
    await producer.peer.heartbeat(producers=("PG", "PX"))
    await check(producer, 7_000)
    await live.until(lambda: len(producer.asked) == 2)
    assert producer.asked[1].fields["transactionId"] == "Uparked"
    place = (
        int(producer.asked[1].fields["tranStateTableOffset"]),
        int(producer.asked[1].fields["commitLogOffset"]),
    )
    assert (await producer.end(place, fromTransactionCheck="true", producerGroup="PX")).code == 0
    for _ in range(2):
        await check(producer, 7_000)
    store = live.broker.parts.store
    assert offsets.query("CID_RMQ_SYS_TRANS", HALF, 0) == store.max_offset_in_queue(HALF, 0)
    assert offsets.query("CID_RMQ_SYS_TRANS", OP, 0) == store.max_offset_in_queue(OP, 0)
    assert not live.broker.services.transactions._open_ops
    assert not live.broker.services.transactions._removed


async def test_very_many_op_messages_are_read_in_steps(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no half is judged before all of them are read."""
    live = producer.live
    for n in range(30):
        await producer.end(await producer.half(str(n).encode()))
        assert live.broker.services.transactions.flush()
    open_half = await producer.half(b"open")
    await live.restart()
    again = Producer(live)
    await again.peer.heartbeat(producers=("PG",))
    live.clock.ahead_ms += 7_000
    monkeypatch.setattr(transactions, "OPS_PER_STEP_MAX", 7 * (1 + transactions.OP_COST))
    machine = live.broker.services.transactions
    steps, asked = 1, []
    monkeypatch.setattr(machine, "_notify", lambda half, group: asked.append(half.queue_offset))
    while machine.check()[1]:
        steps += 1
        assert asked == []
    assert steps == 5
    live.broker.services.dispatching.now()
    assert len(asked) == 1
    assert asked[0] > open_half[0]
    assert live.broker.parts.offsets.query("CID_RMQ_SYS_TRANS", OP, 0) == 30
