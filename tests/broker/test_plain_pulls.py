"""Pulls that compiled kernels serve equal those of the general way, byte for byte."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rigs.plain_requests import answers_to, frame, is_whole_request

from oberth.broker import plain_pulls
from oberth.broker.plain_pulls import DEFERRED_BYTES_MAX, SENDS_OWED_MAX, PlainRequests
from oberth.formats.consume_queue import PRE_BLANK, UNIT, UNIT_SIZE
from oberth.kernels import arguments, runtime
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand
from oberth.store.consume_queue import ConsumeQueue

MakeLive = Callable[..., Any]

pytestmark = pytest.mark.skipif(not runtime.available(), reason="compares compiled kernels")

MESSAGES = 600
QUEUES = 4
TAGS = ("a", "b", "")


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pulls, "LOOK_UP_S", 100.0)


def pull_fields(chance: random.Random, **more: object) -> dict[str, object]:
    """What a client asks that may well get messages without a filter."""
    return {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": str(chance.randrange(QUEUES)),
        "queueOffset": str(chance.randrange(MESSAGES // QUEUES - 5)),
        "maxMsgNums": str(chance.choice([1, 3, 32, 32, 32])),
        "sysFlag": str(chance.choice([0, 1, 2, 3, 4, 5, 6, 7])),
        "commitOffset": str(chance.choice([0, 7, -1])),
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": str(chance.choice([0, 1])),
        "expressionType": "TAG",
        **more,
    }


def unusual(chance: random.Random, number: int) -> bytes:
    """A pull that differs from a plain one in something."""
    fields = pull_fields(chance, sysFlag=str(chance.choice([0, 1, 4, 5])))
    more: dict[str, Any] = {"code": chance.choice([11, 11, 361])}
    body = b""
    kind = chance.randrange(16)
    if kind == 0:
        fields["queueOffset"] = str(chance.choice([148, 149, 150, 151, 10_000, -1, 1 << 40]))
    elif kind == 1:
        numbers = [" 1", "+1", "1_0", "01", "-0", "", "x", "9" * 18, "9" * 19, "9" * 25]
        names = ["queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset"]
        names += ["suspendTimeoutMillis", "subVersion"]
        fields[chance.choice(names)] = chance.choice(numbers)
    elif kind == 2:
        counts = [0, -1, 33, 255, 256, 1000, 70_000, 1 << 31]
        fields["maxMsgNums"] = str(chance.choice(counts))
    elif kind == 3:
        fields["maxMsgBytes"] = chance.choice(["0", "-1", "1", "100", "3000", "262144", "", "x"])
    elif kind == 4:
        subscriptions = ["a", "a || b", "", None, "b", "x\u00fcx", '"', "* ", "a > 3"]
        fields["subscription"] = chance.choice(subscriptions)
        fields["expressionType"] = chance.choice(["TAG", "", "SQL92", None, "NONE"])
    elif kind == 5:
        del fields[chance.choice(list(fields))]
    elif kind == 6:
        fields[chance.choice(list(fields))] = chance.choice([None, 3, True, 1.5])
    elif kind == 7:
        fields["consumerGroup"] = chance.choice(["Tags", "Broad", "Unknown", "", "a/b", "Other"])
    elif kind == 8:
        fields["topic"] = chance.choice(["U", "Big", "", "%RETRY%G", "Denied", "Big", "Odd", "Odd"])
    elif kind == 9:
        fields["queueId"] = str(chance.choice([4, -1, 1000, 1 << 31]))
    elif kind == 10:
        fields |= chance.choice(
            [
                {"AccessKey": "me", "more": "x" * 100},
                {"liteTopic": "l"},
                {"lo": "true", "bname": "b"},
                {"requestSource": "1"},
                {"requestSource": "x"},
                {"proxyFrowardClientId": "c"},
                {"consumerGroup": "G" * 1000},
            ]
        )
    elif kind == 11:
        more["flag"] = chance.choice([ONEWAY_FLAG, 4, 6, -4])
    elif kind == 12:
        more |= chance.choice(
            [{"remark": "r"}, {"remark": None}, {"version": "493"}, {"extra": 1}, {"language": 3}]
        )
    elif kind == 13:
        text = json.dumps(fields, separators=(",", ":"))
        twice = text[:-1] + ',"queueId":"1"}'
        raw = f'{{"code":11,"extFields":{twice},"flag":0,"opaque":{number},"version":1}}'
        return frame(number, {}, header=raw.encode(), code=11)
    elif kind == 14:
        body = b"a body"
    return frame(number, fields, body, blanks=chance.random() < 0.2, **more)


def some_frames(seed: int, count: int) -> list[bytes]:
    chance = random.Random(seed)
    made: list[bytes] = []
    while len(made) < count:
        number = len(made) + 1
        # Half of them come in runs: what stands behind an unusual one goes the general way too.
        what = 0.0 if len(made) // 25 % 2 else chance.random()
        if what < 0.3:
            data = frame(number, pull_fields(chance), blanks=chance.random() < 0.2, code=11)
        elif what < 0.9:
            data = unusual(chance, number)
        else:
            spoilt = bytearray(frame(number, pull_fields(chance, sysFlag="4"), code=11))
            spoilt[chance.randrange(8, len(spoilt))] = chance.randrange(256)
            data = bytes(spoilt)
        if is_whole_request(data, number, 11, 361):
            made.append(data)
    return made


async def fill(live: Any) -> None:
    """Messages for every kind of pull, and queues that are not what they should be."""
    await live.peer.heartbeat("G", {"T": "*", "Big": "*", "Odd": "*"})
    await live.peer.heartbeat("Tags", {"T": "a||b"}, client_id="client-2")
    await live.peer.heartbeat("Broad", {"T": "*"}, client_id="client-3", model="BROADCASTING")
    chance = random.Random(7)
    frames = []
    for number in range(MESSAGES):
        properties = f"UNIQ_KEY\x01K{number}"
        tag = TAGS[number % len(TAGS)]
        fields = live.peer.send_fields("T", number % QUEUES, {"TAGS": tag} if tag else {})
        fields["i"] = properties + ("\x02" + fields["i"] if tag else "")
        body = chance.randbytes(chance.choice([0, 10, 200, 200, 3000]))
        frames.append(frame(number + 1, fields, body, code=310))
    for number in range(40):
        fields = live.peer.send_fields("Big", 0, {"UNIQ_KEY": f"B{number}"})
        frames.append(frame(10_000 + number, fields, chance.randbytes(5000), code=310))
        fields = live.peer.send_fields("Odd", 0, {"UNIQ_KEY": f"O{number}"})
        frames.append(frame(20_000 + number, fields, chance.randbytes(50), code=310))
    await answers_to(live, frames, [b"".join(frames)])
    live.broker.services.dispatching.now()
    stream = live.broker.parts.store.queue("Odd", 0).stream
    units = [UNIT.unpack(stream.read(at * UNIT_SIZE, UNIT_SIZE)) for at in range(40)]
    offset, size, _ = units[20]
    for at, unit in {
        5: PRE_BLANK,
        9: UNIT.pack(*units[10]),
        15: UNIT.pack(units[15][0], units[15][1] + 1, 0),
        20: UNIT.pack(offset + 3, size, 0),
        25: UNIT.pack(1 << 40, 100, 0),
        30: UNIT.pack(units[30][0], 3, 0),
        35: UNIT.pack(units[3][0], units[3][1], 0),
    }.items():
        stream.overwrite(at * UNIT_SIZE, unit)


async def outcome(
    make_live: MakeLive, frames: list[bytes], cuts: int, **settings: str
) -> dict[str, Any]:
    """What a broker answers, and what it keeps of it."""
    settings |= {"autoCreateTopicEnable": "true", "longPollingEnable": "false"}
    live = await make_live(**settings)
    live.clock.begin_ms = 1_700_000_000_000
    random.seed(3)
    await fill(live)
    stream = b"".join(frames)
    chance = random.Random(cuts)
    at = sorted(chance.randrange(len(stream)) for _ in range(cuts))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *at, len(stream)])]
    answers = await answers_to(live, frames, pieces, rests=True)
    parts = live.broker.parts
    return {
        "answers": answers,
        "offsets": sorted(parts.offsets),
        "commits": parts.offsets.data_version.counter,
        "reached": {
            queue: parts.offsets.query_pull("G", "T", queue) for queue in range(QUEUES + 1)
        },
        "stats": [
            sorted(parts.stats.values(name)) for name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE")
        ],
        "gets": (parts.stats.broker_get.value, parts.stats.broker_get.times),
        "found": parts.store.reader.found_count,
        "served": live.broker.processors.pull.plain.served,
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_answers_and_offsets_are_those_of_the_general_way(
    make_live: MakeLive, seed: int
) -> None:
    frames = some_frames(seed, 400)
    compiled = await outcome(make_live, frames, cuts=100)
    runtime.use_reference_only(True)
    try:
        general = await outcome(make_live, frames, cuts=7)
    finally:
        runtime.use_reference_only(False)
    assert (general.pop("served"), compiled.pop("served") > 100) == (0, True)
    for what, expected in general.items():
        assert compiled[what] == expected, what


async def test_limits_of_an_answer_are_those_of_the_general_way(make_live: MakeLive) -> None:
    limits = {
        "maxTransferCountOnMessageInMemory": "7",
        "maxTransferBytesOnMessageInMemory": "4000",
    }
    frames = some_frames(4, 200)
    compiled = await outcome(make_live, frames, cuts=5, **limits)
    runtime.use_reference_only(True)
    try:
        general = await outcome(make_live, frames, cuts=5, **limits)
    finally:
        runtime.use_reference_only(False)
    assert (general.pop("served"), compiled.pop("served") > 0) == (0, True)
    assert compiled == general


async def served(live: Any, *pulls: tuple[int, dict[str, str]]) -> list[bool]:
    """Of some pulls, one after the other, which the kernels answered; all must find messages."""
    plain = live.broker.processors.pull.plain
    found = []
    for code, fields in pulls:
        before = plain.served
        assert (await live.peer.call(code, fields)).code == 0
        found.append(plain.served > before)
    return found


async def one_message(live: Any) -> dict[str, str]:
    """The fields of a pull that gets one message."""
    await live.peer.send("T", b"x", properties={"UNIQ_KEY": "0"})
    await live.peer.send("T", b"hello", properties={"UNIQ_KEY": "K"})
    fields: dict[str, str] = live.peer.pull_fields("T", 1)
    return fields


async def test_pulls_of_many_connections_in_one_turn(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    peers = [live.another() for _ in range(16)]
    for n in range(40):
        await live.peer.send("T", b"%d" % n, n % 4, {"UNIQ_KEY": f"K{n}"})
    for turn in range(1, 8):
        answers = await asyncio.gather(
            *(
                peer.pull("T", turn, n % 4, group=f"G{n % 3}", maxMsgNums="2")
                for n, peer in enumerate(peers)
            )
        )
        for n, answer in enumerate(answers):
            assert (answer.code, answer.fields["nextBeginOffset"]) == (0, str(turn + 2))
            bodies = re.findall(rb"UNIQ_KEY\x01K(\d+)", answer.body)
            assert bodies == [b"%d" % (each * 4 + n % 4) for each in (turn, turn + 1)]
    assert live.broker.processors.pull.plain.served == 7 * 16


async def test_what_those_got_who_lag_is_known(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least that a group got, of those whose place lies far before the end of a queue."""
    monkeypatch.setattr(plain_pulls, "LAG_MIN", 20)
    live = await make_live(autoCreateTopicEnable="true")
    plain = live.broker.processors.pull.plain
    peers = [live.another() for _ in range(16)]
    for n in range(120):
        await live.peer.send("T", b"%d" % n, n % 4, {"UNIQ_KEY": f"K{n}"})

    async def pull(offset: int, count: int) -> int:
        """All peers at once, 16 pulls of 16 groups; what was known behind them."""
        pulls = (
            peer.pull("T", offset, 0, group=f"G{n}", maxMsgNums=str(count + n))
            for n, peer in enumerate(peers)
        )
        for answer in await asyncio.gather(*pulls):
            assert answer.code == 0
        least = min(plain.lagging.values(), default=0)
        plain.lagging.clear()
        return least

    await pull(0, 1)
    assert await pull(1, 2) == 2
    assert await pull(20, 1) == 0


def test_senders_give_way_to_readers_that_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn takes as many sends as those before handed messages out, and who waited is first."""
    monkeypatch.setattr(plain_pulls, "SENDS_MIN", 32)
    monkeypatch.setattr(plain_pulls, "SHARED_TURNS", 1)

    class Connection:
        def __init__(self, sends: bool | None) -> None:
            self.context = None if sends is None else SimpleNamespace(sends=sends)

    sends: Any = SimpleNamespace(memory=None, frame_size=100)
    pulls: Any = SimpleNamespace()
    requests = PlainRequests(sends, pulls)
    senders = [Connection(True) for _ in range(4)]
    others = [Connection(False), Connection(None)]
    burst = bytes(64 * 100)
    waiting: dict[Any, bytes | bytearray] = {}

    def turn(handed_out: int) -> list[int]:
        """A burst of each, and a pull of the others; who of the senders was served."""
        nonlocal waiting
        pulls.lagging.clear()
        if handed_out:
            pulls.lagging.update({("G", "T"): handed_out, ("H", "T"): handed_out + 1})
        came: dict[Any, bytes | bytearray] = dict(waiting)
        for each in senders:
            came.setdefault(each, burst)
        came |= dict.fromkeys(others, b"a pull")
        waiting = requests.defer(came)
        assert all(each in came for each in others)
        assert not came.keys() & waiting.keys()
        return [senders.index(each) for each in came if each in senders]

    assert turn(0) == [0, 1, 2, 3]
    assert [turn(128) for _ in range(4)] == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert turn(1000) == [0, 1, 2, 3]
    # What one has taken beyond its share is taken from the next turns.
    assert [turn(32) for _ in range(4)] == [[0], [], [1], []]
    assert turn(0) == [2, 3, 0, 1]
    burst = bytes(1000 * 100)
    turns = [turn(1) for _ in range(2 * SENDS_OWED_MAX)]
    assert [len(each) for each in turns].count(1) == 2
    assert turn(0)
    # Their connections are read on: what waits is bounded, whatever comes.
    burst = bytes(DEFERRED_BYTES_MAX // 2)
    for _ in range(2 * SENDS_OWED_MAX):
        served = turn(1)
        assert sum(map(len, waiting.values())) <= DEFERRED_BYTES_MAX
        assert len(served) >= 2


async def test_where_the_extension_is_missing(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_extension", None)
    live = await make_live(autoCreateTopicEnable="true")
    assert await served(live, (11, await one_message(live))) == [False]


async def test_what_was_just_sent_is_found(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    for n in range(2, 6):
        await live.peer.send("T", b"%d" % n, properties={"UNIQ_KEY": f"K{n}"})
        assert await served(live, (11, {**fields, "queueOffset": str(n)})) == [True]


async def test_a_pull_at_the_end_is_held_and_woken(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    waits = {"queueOffset": "2", "sysFlag": "6", "suspendTimeoutMillis": "15000"}
    waiting = asyncio.create_task(live.peer.call(11, {**fields, **waits}))
    await live.until(lambda: len(live.broker.parts.hold))
    await live.peer.send("T", b"it", properties={"UNIQ_KEY": "K"})
    assert (await waiting).code == 0
    assert live.broker.processors.pull.plain.served == 0


async def test_a_pending_reset_is_handed_out(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    live.broker.parts.offsets.assign_reset("G", "T", 0, 0, 0)
    answer = await live.peer.call(11, fields)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (21, "0")
    assert await served(live, (11, fields)) == [True]


async def test_rights_are_looked_up_in_each_turn(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    assert await served(live, (11, fields), (361, fields)) == [True, True]
    topic = live.broker.parts.topics.get("T")
    topic.read_queue_nums = 0
    assert (await live.peer.call(11, fields)).code == ResponseCode.INVALID_PARAMETER
    topic.read_queue_nums = 4
    group = live.broker.parts.groups.get("G")
    group.group_sys_flag = 3
    answer = await live.peer.call(11, fields)
    assert (answer.code, answer.fields["groupSysFlag"]) == (0, "3")
    group.consume_enable = False
    assert (await live.peer.call(11, fields)).code == ResponseCode.NO_PERMISSION
    assert live.broker.processors.pull.plain.served == 3


async def test_changed_limits_count_at_once(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    await live.peer.send("T", b"more", properties={"UNIQ_KEY": "K"})
    assert (await live.peer.call(11, fields)).fields["nextBeginOffset"] == "3"
    body = b"maxTransferCountOnMessageInMemory=1\n"
    assert (await live.peer.call(25, {}, body)).code == 0
    assert (await live.peer.call(11, fields)).fields["nextBeginOffset"] == "2"
    assert live.broker.processors.pull.plain.served == 2


async def test_what_is_not_known_to_be_in_memory_goes_the_general_way(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    residency = live.broker.parts.store.reader.residency
    monkeypatch.setattr(type(residency), "has_old", True)
    assert await served(live, (11, fields)) == [True]
    monkeypatch.setattr(type(residency), "_is_block_resident", lambda *_: False)
    assert await served(live, (11, fields)) == [False]


async def test_who_looks_up_for_long_leaves_the_rest(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    monkeypatch.setattr(plain_pulls, "LOOK_UP_S", 0.0)
    monkeypatch.setattr(plain_pulls, "LOOK_UPS_MIN", 0)
    assert await served(live, (11, fields)) == [False]


async def test_asks_that_are_kept_are_bounded(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pulls, "ASKS_KEPT_MAX", 2)
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    asks = [(11, {**fields, "subVersion": str(n)}) for n in range(5)]
    assert await served(live, *asks) == [True] * 5
    assert len(live.broker.processors.pull.plain._asks) <= 2


async def test_a_parted_slave_and_static_topics_go_the_general_way(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    monkeypatch.setattr(live.broker.services.ha, "parted_at", 1)
    refused = await live.peer.call(11, fields)
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not live.broker.processors.pull.plain.served
    monkeypatch.setattr(live.broker.services.ha, "parted_at", None)
    monkeypatch.setattr(type(live.broker.parts.static_topics), "__bool__", lambda _: True)
    assert await served(live, (11, fields)) == [False]


async def test_the_fast_port_serves_no_pulls(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true", fastListenPort="-1")
    fields = await one_message(live)
    address = str(live.broker.fast_server.address)
    request = RemotingCommand(code=11, ext_fields=fields)
    answer = await live.peer.client.invoke(address, request, 100.0)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_disk_that_fails_is_answered_by_the_general_way(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)

    def fails(*_: object, **__: object) -> bytes:
        raise OSError(5, "no more")

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "units", fails)
        answer = await live.peer.call(11, fields)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no more" in str(answer.remark)
    assert await served(live, (11, fields)) == [True]


async def test_a_shut_segment_is_not_read(make_live: MakeLive) -> None:
    live = await make_live(autoCreateTopicEnable="true")
    fields = await one_message(live)
    segment = live.broker.parts.store.commit_log.queue.segments[0]
    position = segment.wrote_position
    segment.wrote_position = 0
    answer = await live.peer.call(11, fields)
    segment.wrote_position = position
    assert (answer.body_bytes(), live.broker.processors.pull.plain.served) == (b"", 0)


def test_numbers_are_those_of_the_protocol() -> None:
    assert RequestCode.PULL_MESSAGE.value == arguments.PULL_CODE
    assert RequestCode.LITE_PULL_MESSAGE.value == arguments.PULL_LITE_CODE
