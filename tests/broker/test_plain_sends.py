"""Sends that compiled kernels serve equal those of the general way, byte for byte."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.rigs.failing_appends import copies_fail_behind_their_end
from tests.rigs.plain_requests import answers_to, is_whole_request
from tests.rigs.plain_requests import frame as request_frame

from oberth.broker.plain_sends import REFUSED_FLAGS, PlainSendService
from oberth.broker.unique_ids import UniqueIds
from oberth.formats.properties import BROKER_ONLY
from oberth.kernels import arguments, runtime
from oberth.remoting.aio import processors
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand
from oberth.store.messages import PutMessageStatus

MakeLive = Callable[..., Any]

pytestmark = pytest.mark.skipif(not runtime.available(), reason="compares compiled kernels")

WAITED = (
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.UNKNOWN_ERROR,
)


@pytest.fixture(autouse=True)
def _same_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    def next_id(self: UniqueIds) -> str:
        counter = getattr(next_id, "counter", {})
        next_id.counter = counter  # type: ignore[attr-defined]
        counter[self] = counter.get(self, 0) + 1
        return f"ID{counter[self]}"

    monkeypatch.setattr(UniqueIds, "__slots__", (), raising=False)
    monkeypatch.setattr(UniqueIds, "next", next_id)


def frame(opaque: int, fields: dict[str, object], body: bytes = b"", **more: Any) -> bytes:
    return request_frame(opaque, fields, body, **{"code": 310, **more})


def plain_fields(number: int, **more: object) -> dict[str, object]:
    return {
        "a": "PG",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": str(number % 4),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": f"UNIQ_KEY\x01KEY{number}\x02WAIT\x01true\x02TAGS\x01a",
        "j": "0",
        "k": "false",
        "m": "false",
        **more,
    }


def unusual(chance: random.Random, number: int) -> bytes:
    """A send that differs from a plain one in something."""
    key = f"UNIQ_KEY\x01U{number}"
    names = [*sorted(BROKER_ONLY), "TRAN_MSG", "_SYS_MSG_PRIORITY_", "__RMQ.TRANSIENT.x", "DELAY"]
    names += ["INNER_MULTI_DISPATCH", "TIMER_DELAY_MS", "XUNIQ_KEY", "WAIT", "KEYS", "my.name"]
    texts = [
        "",
        "KEYS\x01k",
        f"{key}\x02{key}2",
        f"X{key}\x02{key}",
        f"{key}\x02\x02A\x01b",
        f"{key}\x02A",
        f"{key}\x02\x01b",
        f"{key}\x02A\x01",
        f"{key}\x02A\x01b\x01c",
        f"{key}\x02A\x01über",
        f'{key}\x02A\x01"quoted" \\ \x7f \t',
        f"{key}\x02A\x01has DELAY in it",
        f"{key}\x02A\x01TIMER_D INNER_B",
        f"{key}\x02A\x01" + "long" * 5000,
        f'UNIQ_KEY\x01quo"te{number}\x02',
        "UNIQ_KEY\x01\x02A\x01b\x02",
        key,
        f"A\x01b\x02{key}\x02",
    ]
    texts += [f"{key}\x02{name}\x01{value}\x02" for name in names for value in ("3", "true")]
    fields = plain_fields(number, i=chance.choice(texts))
    kind = chance.randrange(14)
    more: dict[str, Any] = {}
    if kind == 0:
        fields["f"] = str(chance.choice([1, 2, 4, 8, 12, 16, 32, 64, 128, 1 << 31, -1, 256]))
    elif kind == 1:
        numbers = [" 1", "+1", "1_0", "01", "-0", "", "x", "9" * 25]
        fields[chance.choice("efgh")] = chance.choice(numbers)
    elif kind == 2:
        fields["m"] = chance.choice(["true", "False", "TRUE", "no", ""])
    elif kind == 3:
        fields["b"] = chance.choice([f"New{number % 3}", "a/b", "", "SCHEDULE_TOPIC_XXXX"])
    elif kind == 4:
        del fields[chance.choice("bcefghim")]
    elif kind == 5:
        fields[chance.choice("befghim")] = chance.choice([None, 3, True, 1.5])
    elif kind == 6:
        fields |= {"AccessKey": "me", "more": "x" * 100}
    elif kind == 7:
        more["flag"] = chance.choice([ONEWAY_FLAG, 4, 6, -4])
    elif kind == 8:
        more = chance.choice(
            [{"remark": "r"}, {"remark": None}, {"version": "493"}, {"extra": 1}, {"language": 3}]
        )
    elif kind == 9:
        fields["e"] = str(chance.choice([4, 15, 16, 1000, 1 << 40]))
    elif kind == 10:
        text = json.dumps(fields, separators=(",", ":"))
        twice = text[:-1] + ',"e":"1"}'
        raw = f'{{"code":310,"extFields":{twice},"flag":0,"opaque":{number},"version":1}}'
        return frame(number, {}, b"twice", header=raw.encode())
    return frame(
        number, fields, b"b" * chance.choice([0, 1, 50]), blanks=chance.random() < 0.2, **more
    )


def some_frames(seed: int, count: int) -> list[bytes]:
    chance = random.Random(seed)
    made: list[bytes] = []
    while len(made) < count:
        number = len(made) + 1
        # Half of them come in runs: what stands behind an unusual one goes the general way too.
        what = 0.0 if len(made) // 25 % 2 else chance.random()
        if what < 0.3:
            body = chance.randbytes(chance.choice([0, 1, 128, 1000, 40_000]))
            flag = ONEWAY_FLAG if chance.random() < 0.1 else 0
            blanks = chance.random() < 0.2
            data = frame(number, plain_fields(number), body, blanks=blanks, flag=flag)
        elif what < 0.9:
            data = unusual(chance, number)
        else:
            spoilt = bytearray(frame(number, plain_fields(number), b"spoilt"))
            spoilt[chance.randrange(8, len(spoilt))] = chance.randrange(256)
            data = bytes(spoilt)
        if is_whole_request(data, number, 310):
            made.append(data)
    return made


async def outcome(
    make_live: MakeLive, frames: list[bytes], cuts: int, **settings: str
) -> dict[str, Any]:
    """What a broker stores and answers."""
    settings |= {"autoCreateTopicEnable": "true", "mappedFileSizeCommitLog": str(1 << 20)}
    live = await make_live(**settings)
    live.clock.begin_ms = 1_700_000_000_000
    random.seed(3)
    first = frame(999_999, plain_fields(0), b"makes the topic")
    stream = b"".join([first, *frames])
    chance = random.Random(cuts)
    at = sorted(chance.randrange(len(stream)) for _ in range(cuts))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *at, len(stream)])]
    answers = await answers_to(live, [first, *frames], pieces)
    last = frame(1_000_000, plain_fields(1), b"behind all others")
    answers |= await answers_to(live, [last], [last])
    log = live.broker.parts.store.commit_log
    stats = live.broker.parts.stats
    return {
        "answers": answers,
        "log": b"".join(bytes(each.buffer[: each.read_position]) for each in log.queue.segments),
        "ends": sorted(log.queue_ends()),
        "stats": [sorted(stats.values(name)) for name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")],
        "total": stats.broker_put.value,
        "served": live.broker.processors.send.plain.served,
    }


@pytest.mark.parametrize(
    ("seed", "flush"), [(1, "ASYNC_FLUSH"), (2, "ASYNC_FLUSH"), (3, "SYNC_FLUSH")]
)
async def test_log_and_answers_are_those_of_the_general_way(
    make_live: MakeLive, seed: int, flush: str
) -> None:
    frames = some_frames(seed, 400)
    compiled = await outcome(make_live, frames, cuts=100, flushDiskType=flush)
    runtime.use_reference_only(True)
    try:
        general = await outcome(make_live, frames, cuts=7, flushDiskType=flush)
    finally:
        runtime.use_reference_only(False)
    assert (general.pop("served"), compiled.pop("served") > 100) == (0, True)
    for what, expected in general.items():
        assert compiled[what] == expected, what


async def test_sends_where_the_extension_is_missing(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_extension", None)
    live = await make_live(autoCreateTopicEnable="true")
    for number in range(3):
        answer = await live.peer.send("T", b"%d" % number, properties={"UNIQ_KEY": str(number)})
        assert answer.code == 0, answer.remark
    assert live.broker.processors.send.plain.served == 0


async def test_sends_of_many_connections_in_one_turn(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    peers = [live.another() for _ in range(16)]
    await live.peer.send("T", b"first", properties={"UNIQ_KEY": "K"})
    for turn in range(20):
        answers = await asyncio.gather(
            *(
                peer.send("T", b"%d-%d" % (turn, n), n % 4, {"UNIQ_KEY": f"{turn}-{n}"})
                for n, peer in enumerate(peers)
            )
        )
        for n, answer in enumerate(answers):
            assert (answer.code, answer.fields["transactionId"]) == (0, f"{turn}-{n}")
    found = [m.body for queue in range(4) for m in await live.peer.read("T", queue)]
    expected = {b"%d-%d" % (turn, n) for turn in range(20) for n in range(16)} | {b"first"}
    assert (len(found), set(found)) == (len(expected), expected)
    assert live.broker.processors.send.plain.served >= 300


async def test_sends_without_an_answer_have_a_size_too(make_live: MakeLive) -> None:
    """How many go into a turn beside readers that lag follows from it: none, were it 0."""
    live = await make_live(autoCreateTopicEnable="true")
    plain = live.broker.processors.send.plain
    await live.peer.send("T", b"first", properties={"UNIQ_KEY": "K"})
    sends = [frame(n, plain_fields(n), b"x", flag=ONEWAY_FLAG) for n in range(1, 9)]
    asks = frame(9, {"topic": "T", "queueId": "1"}, code=30)
    await answers_to(live, [asks], [b"".join(sends), asks])
    assert plain.served == 8
    assert plain.frame_size == sum(map(len, sends)) // 8


async def test_a_send_waits_behind_what_its_connection_asked_before(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "TURN_S", 0.0)  # each request fills a turn
    live = await make_live(autoCreateTopicEnable="true")
    await live.peer.send("T", b"first", properties={"UNIQ_KEY": "K"})
    asks = [frame(n, {"topic": "T", "queueId": "1"}, code=30) for n in range(1, 6)]
    sends = [frame(9, plain_fields(1), b"x")]
    answers = await answers_to(live, [*asks, *sends], [b"".join(asks), *sends])
    # None has seen the message that was sent behind it.
    assert all(b'"offset":"0"' in answers[n] for n in range(1, 6))


async def test_a_changed_topic_is_looked_at_again(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = {"topic": "T", "defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    fields |= {"topicSysFlag": "0", "order": "false"}
    plain = live.broker.processors.send.plain

    async def make(queues: int) -> None:
        wanted = fields | {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
        assert (await live.peer.call(17, wanted)).code == 0

    async def send(queue_id: int) -> RemotingCommand:
        answer: RemotingCommand = await live.peer.send("T", b"x", queue_id, {"UNIQ_KEY": "K"})
        return answer

    await make(4)
    assert [(await send(3)).code for _ in range(3)] == [0, 0, 0]
    assert plain.served == 2
    await make(2)
    assert (await send(3)).code != 0
    assert [(await send(1)).code for _ in range(3)] == [0, 0, 0]
    await make(8)
    assert [(await send(7)).fields["queueOffset"] for _ in range(3)] == ["0", "1", "2"]
    assert plain.served >= 5


@pytest.mark.parametrize("status", WAITED)
async def test_answers_that_wait_for_the_disk_become_what_came_of_it(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, status: PutMessageStatus
) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH", autoCreateTopicEnable="true")
    send = live.broker.processors.send
    await live.peer.send("T", b"first", properties={"UNIQ_KEY": "K"})
    pending: list[Callable[[PutMessageStatus], None]] = []
    monkeypatch.setattr(
        live.broker.services.dispatching, "when_durable", lambda _, finish: pending.append(finish)
    )
    answers = []
    for _ in range(2):
        task = asyncio.create_task(live.peer.send("T", b"x", 1, {"UNIQ_KEY": "K"}))
        await live.until(lambda: pending)
        assert not task.done()
        pending.pop()(status)
        answers.append(await task)
        assert send.plain.served == 1
        monkeypatch.setattr(send.plain, "serve", lambda came: (0, [*came.items()]))
    compiled, general = answers
    assert (compiled.code, compiled.remark) == (general.code, general.remark)
    assert compiled.fields.keys() == general.fields.keys()
    same = compiled.fields.keys() - {"msgId", "queueOffset"}
    assert all(compiled.fields[name] == general.fields[name] for name in same)


async def test_a_master_that_waits_for_replicas_takes_sends_this_way(make_live: MakeLive) -> None:
    live = await make_live(
        brokerRole="SYNC_MASTER", autoCreateTopicEnable="true", inSyncReplicas="2",
        slaveTimeout="50",
    )  # fmt: skip
    plain, options = live.broker.processors.send.plain, live.broker.parts.store_config
    for n in range(3):
        answer = await live.peer.send("T", b"x", 0, {"UNIQ_KEY": f"K{n}"})
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert plain.served == 2
    options.min_in_sync_replicas = 2
    end = live.broker.parts.store.max_phy_offset
    answer = await live.peer.send("T", b"x", 0, {"UNIQ_KEY": "K"})
    assert (answer.code, answer.remark) == (1, "in-sync replicas not enough")
    assert live.broker.parts.store.max_phy_offset == end
    assert plain.served == 2


async def test_who_does_not_wait_for_the_disk_is_answered_before_it(make_live: MakeLive) -> None:
    live = await make_live(flushDiskType="SYNC_FLUSH", autoCreateTopicEnable="true")
    plain = live.broker.processors.send.plain
    for n in range(4):
        wait = "true" if n % 2 else "false"
        properties = {"UNIQ_KEY": f"K{n}", "WAIT": wait}
        assert (await live.peer.send("T", b"x", 0, properties)).code == 0
    assert plain.served == 2


async def test_a_disk_that_fails_is_answered_and_its_records_are_not_the_logs(
    make_live: MakeLive,
) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    store, plain = live.broker.parts.store, live.broker.processors.send.plain
    await live.peer.send("T", b"first", properties={"UNIQ_KEY": "K"})
    end = store.max_phy_offset
    long = b"x" * 10_000
    with copies_fail_behind_their_end():
        answer = await live.peer.send("T", long, 0, {"UNIQ_KEY": "lost"})
    assert (answer.code != 0, store.max_phy_offset) == (True, end)
    for n in range(2):
        answer = await live.peer.send("T", b"%d" % n + long, 0, {"UNIQ_KEY": f"K{n}"})
        assert (answer.code, answer.fields["queueOffset"]) == (0, str(n + 1))
    assert plain.served == 1  # the first of the two found what is to be erased
    segment = store.commit_log.queue.segments[0]
    assert not any(segment.buffer[segment.wrote_position : segment.wrote_position + 20_000])
    found = [m.body for m in await live.peer.read("T", 0)]
    assert found == [b"first", b"0" + long, b"1" + long]


async def test_a_transient_pool_goes_the_general_way(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true", transientStorePoolEnable="true")
    for n in range(5):
        assert (await live.peer.send("T", b"x", 0, {"UNIQ_KEY": f"K{n}"})).code == 0
    assert live.broker.processors.send.plain.served == 0
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue("T", 0) == 5)


async def test_behind_a_gate_there_is_the_general_way_only(make_live: MakeLive) -> None:
    user = '{"username":"admin","password":"secret"}'
    live = await make_live(authenticationEnabled="true", initAuthenticationUser=user)
    for _ in range(3):
        assert (await live.peer.send("T", b"x", 0, {"UNIQ_KEY": "K"})).code == 16
    assert live.broker.processors.send.plain.served == 0
    assert live.broker.parts.store.max_phy_offset == 0


def test_numbers_are_those_of_the_protocol() -> None:
    assert RequestCode.SEND_MESSAGE_V2.value == arguments.SEND_CODE
    assert arguments.SEND_ONEWAY_FLAG == ONEWAY_FLAG
    assert REFUSED_FLAGS & 0x3 == 0  # compressed bodies and several tags are plain
    assert max(map(len, BROKER_ONLY)) <= arguments.SEND_NAME_MAX


async def test_long_bodies_are_stored_as_they_were_sent(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come into memory that the service gives, and go from there into the log."""
    given: list[int] = []
    memory = PlainSendService.memory

    def noted(self: PlainSendService, size: int) -> bytearray:
        given.append(size)
        return memory(self, size)

    monkeypatch.setattr(PlainSendService, "memory", noted)
    chance = random.Random(5)
    bodies = [chance.randbytes(size) for size in (100, 1_000_000, 700_000, 1_500_000, 10)]
    broker = (await make_live()).broker
    async with RemotingClient() as client:
        for opaque, body in enumerate([b"first", *bodies]):
            fields = {
                "a": "P", "b": "Long", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1",
                "h": "0", "i": f"UNIQ_KEY\x01ID{opaque}", "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            request = RemotingCommand(code=310, opaque=opaque, body=body, ext_fields=fields)
            assert (
                await client.invoke(str(broker.server.address), request, timeout_s=100.0)
            ).code == 0
        assert broker.processors.send.plain.served >= len(bodies)
        broker.services.dispatching.now()
        store = broker.parts.store
        found = []
        for offset in range(len(bodies) + 1):
            unit = store.consume_queue_unit("Long", 0, offset)
            assert unit is not None
            message = store.look_message_by_offset(unit.commit_log_offset, unit.record_size)
            assert message is not None
            found.append(message.body)
    assert found == [b"first", *bodies]
    assert len(given) == 3
