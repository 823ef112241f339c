"""SQL92 filters in a broker: results and bitmaps equal RocketMQ's on the golden filter stores.

The messages of the golden store go through the dispatcher that makes bitmaps, with the expressions
of its consumerFilter.json; units and selected messages are compared. Codes come over a socket.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.broker import consumer_filters
from oberth.broker.broker import Broker
from oberth.broker.broker_config import BrokerConfig
from oberth.broker.consumer_filters import (
    DEAD_MAX,
    FILTER_OVERHEAD,
    ConsumerFilters,
    RetryFilter,
    SqlFilter,
)
from oberth.broker.expressions import FilterUnknownError
from oberth.broker.subscriptions import SQL92, Subscription, SubscriptionError
from oberth.client.messages import decode_messages
from oberth.formats.config_files import ConsumerFilters as FiltersFile
from oberth.formats.config_json import parse_config
from oberth.formats.message import read_dispatch_request
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.properties import decode_properties, find_property
from oberth.formats.sql92 import compile_sql92
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.store.consume_queue import ConsumeQueue
from oberth.store.messages import MessageExtBrokerInner
from oberth.testing.embedded_broker import EmbeddedBroker

EXPRESSIONS = {
    "CG_sql1": "a > 5 AND colour IS NOT NULL",
    "CG_sql2": "TAGS = 'Tag1' OR name IN ('x', 'yy') OR a BETWEEN 2 AND 3",
}


def register(filters: ConsumerFilters, group: str, subscriptions: list[Subscription]) -> None:
    for _ in filters.register(group, subscriptions):
        pass


def broker_at(root: Path, now_ms: int = 1_795_250_980_000) -> tuple[Broker, ConsumerFilters]:
    broker = Broker(
        BrokerConfig(listen_port=0, enable_property_filter=True, enable_calc_filter_bit_map=True),
        MessageStoreConfig(store_path_root_dir=str(root), timer_wheel_enable=False),
        clock_ms=lambda: now_ms,
    )
    filters = broker.services.expressions
    return broker, filters


async def tasks_ended(broker: Broker) -> None:
    async with asyncio.timeout(100):
        await asyncio.gather(*broker.services.tasks._tasks)


def subscription(group: str, version: int = 1) -> Subscription:
    return Subscription("FilterTopic", EXPRESSIONS[group], SQL92, version)


@pytest.mark.parametrize("name", ["filter-5.5.0", "filter-4.9.7"])
def test_bitmaps_are_those_that_rocketmq_wrote(
    tmp_path: Path, golden_pristine: Callable[[str], Any], name: str
) -> None:
    golden = golden_pristine(name)
    _, filters = broker_at(tmp_path)
    for group in EXPRESSIONS:
        register(filters, group, [subscription(group)])
    log = golden.commit_log()
    checked = 0
    for queue in golden.facts["queues"]:
        for _, offset, size, _, *ext in queue["units"]:
            if not ext or not isinstance(ext[-1], dict):
                continue
            record = log.read(offset, size)
            request = read_dispatch_request(record, 0, size, offset)
            filters.calculate_bit_map(request)  # type: ignore[arg-type]
            expected = base64.b64decode(ext[-1].get("filterBitMap") or "")
            assert request.bit_map == expected  # type: ignore[union-attr]
            checked += 1
    assert checked == 60


@pytest.mark.parametrize("name", ["filter-5.5.0", "filter-4.9.7"])
@pytest.mark.parametrize("group", EXPRESSIONS)
def test_a_get_selects_what_the_expression_selects(
    golden_store: Callable[[str], Any], name: str, group: str
) -> None:
    golden = golden_store(name)
    config = MessageStoreConfig.from_properties(
        {
            "storePathRootDir": str(golden.root),
            **{
                key: value
                for key, value in golden.config.items()
                if key not in ("enableCalcFilterBitMap", "enablePropertyFilter")
            },
        }
    )
    config.disk_max_used_space_ratio = 95
    broker = Broker(BrokerConfig(listen_port=0), config)
    filters = broker.services.expressions
    filters._file.load(filters._read)
    data = filters.get("FilterTopic", group)
    assert data is not None
    assert data.is_dead
    assert data.bloom_filter_data is not None
    with_bits = SqlFilter(
        compile_sql92(EXPRESSIONS[group]), data.bloom_filter_data.bit_pos, 112, data.born_time
    )
    expression = compile_sql92(EXPRESSIONS[group])
    expected = {
        m["commitLogOffset"]
        for m in golden.facts["messages"]
        if m["topic"] == "FilterTopic"
        and expression.matches(decode_properties(m["propertiesText"]))
    }
    broker.parts.store.load()
    found: set[int] = set()
    hidden = 0
    for queue_id in range(3):
        result = broker.parts.store.get_message("g", "FilterTopic", queue_id, 0, 32, with_bits)
        found |= set(result.commit_log_offsets)
        queue = broker.parts.store.queue("FilterTopic", queue_id)
        assert isinstance(queue, ConsumeQueue)
        for unit in broker.parts.store.iterate_consume_queue("FilterTopic", queue_id, 0, 32):
            ext = queue.ext_unit(unit.tags_code)
            hidden += not with_bits.matches_consume_queue(0, ext)
        result.release()
    broker.parts.store.shutdown()
    assert found == expected
    assert 0 < len(expected) < 60
    assert hidden > 0


def test_the_file_is_read_and_written_as_rocketmq_does(
    tmp_path: Path, golden_pristine: Callable[[str], Any]
) -> None:
    source = golden_pristine("filter-5.5.0").root / "config" / "consumerFilter.json"
    (tmp_path / "config").mkdir(parents=True)
    shutil.copy(source, tmp_path / "config")
    broker, filters = broker_at(tmp_path)
    filters.load()
    assert parse_config(filters.encoder(broker.parts.now_ms())()) == parse_config(
        source.read_bytes()
    )
    register(filters, "CG_sql1", [subscription("CG_sql1", 9_795_250_978_588)])
    data = filters.get("FilterTopic", "CG_sql1")
    assert data is not None
    assert (data.is_dead, data.born_time) == (False, broker.parts.now_ms())
    assert data.client_version == 9_795_250_978_588
    assert filters.encoder(broker.parts.now_ms() + 10**9)().count(b'"CG_sql2"') == 0


def test_of_a_file_what_does_not_compile_is_left_out(tmp_path: Path) -> None:
    broker, filters = broker_at(tmp_path)
    for group in ("G1", "G2"):
        register(filters, group, [Subscription("T", "a > 1", SQL92, 1)])
    written = filters.encoder(broker.parts.now_ms())()
    assert written.count(b'"deadTime":0') == 2
    (tmp_path / "config").mkdir(parents=True)
    path = tmp_path / "config" / "consumerFilter.json"
    path.write_bytes(written.replace(b"a > 1", b"a > >", 1))
    _, again = broker_at(tmp_path)
    again.load()
    known = [again.get("T", group) is not None for group in ("G1", "G2")]
    assert sorted(known) == [False, True]


def test_a_topic_and_a_group_go_with_their_last_filter(tmp_path: Path) -> None:
    broker, filters = broker_at(tmp_path)
    subscriptions = [Subscription(topic, "a > 1", SQL92, 1) for topic in ("T", "U")]
    register(filters, "G", subscriptions)
    register(filters, "H", subscriptions[1:])
    register(filters, "G", [])
    written = filters.encoder(broker.parts.now_ms() + 10**9)()
    assert (b'"T"' in written, b'"U"' in written) == (False, True)
    assert set(filters._groups) == {"H"}


async def test_filters_live_and_die_with_their_groups(tmp_path: Path) -> None:
    broker, filters = broker_at(tmp_path)
    with pytest.raises(FilterUnknownError) as missing:
        filters.filters("CG_sql1", subscription("CG_sql1"), from_request=False)
    assert missing.value.code == ResponseCode.FILTER_DATA_NOT_EXIST
    register(filters, "CG_sql1", [subscription("CG_sql1", 5)])
    filters.filters("CG_sql1", subscription("CG_sql1", 5), from_request=False)
    with pytest.raises(FilterUnknownError) as older:
        filters.filters("CG_sql1", subscription("CG_sql1", 6), from_request=False)
    assert older.value.code == ResponseCode.FILTER_DATA_NOT_LATEST
    changed = Subscription("FilterTopic", "a = 1", SQL92, 7)
    register(filters, "CG_sql1", [changed])

    def state() -> tuple[str | None, bool]:
        data = filters.get("FilterTopic", "CG_sql1")
        assert data is not None
        return data.expression, data.is_dead

    assert state() == ("a = 1", False)
    for version in (3, 7):  # 7 has another expression already
        register(filters, "CG_sql1", [Subscription("FilterTopic", "a = 0", SQL92, version)])
        assert state() == ("a = 1", False)
    register(filters, "CG_sql1", [Subscription("Other")])
    assert state() == ("a = 1", True)
    register(filters, "CG_sql1", [Subscription("FilterTopic", "a = = 1", SQL92, 9)])
    assert state() == ("a = 1", True)
    register(filters, "CG_sql1", [changed])
    assert state() == ("a = 1", False)
    filters.on_time(broker.parts.now_ms() + 60_000)  # nobody of the group is online
    assert state() == ("a = 1", True)
    with pytest.raises(SubscriptionError):
        filters.check(Subscription("T", "x", "GROOVY"))


def test_filters_are_kept_by_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_filters, "FILTERS_SIZE_MAX", 10 * (FILTER_OVERHEAD + 100))
    _, filters = broker_at(tmp_path)

    def expression(number: int) -> str:
        return f"a = '{number:094d}'"

    def known() -> list[int]:
        return [each for each in range(30) if filters.get("T", f"G{each}") is not None]

    for number in range(12):
        register(filters, f"G{number}", [Subscription("T", expression(number), SQL92, 1)])
    assert known() == list(range(10))
    register(filters, "G0", [Subscription("T", expression(20), SQL92, 2)])  # in place of its own
    register(filters, "G1", [Subscription("T", expression(1) + " or b = 1", SQL92, 2)])
    for group, text in (("G0", expression(20)), ("G1", expression(1))):
        data = filters.get("T", group)
        assert data is not None
        assert data.expression == text
    # The dead make room for others, also where it is one of them that comes back changed.
    for number in (3, 4):
        register(filters, f"G{number}", [])
    register(filters, "G3", [Subscription("T", expression(21), SQL92, 2)])
    register(filters, "G20", [Subscription("T", expression(20), SQL92, 1)])
    register(filters, "G21", [Subscription("T", expression(21), SQL92, 1)])
    assert known() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 20]
    assert filters._size == 10 * (FILTER_OVERHEAD + 100)


async def test_the_file_is_made_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, filters = broker_at(tmp_path)
    threads = []
    encode = FiltersFile.encode

    def note(self: FiltersFile) -> bytes:
        threads.append(threading.current_thread())
        return encode(self)

    monkeypatch.setattr(FiltersFile, "encode", note)
    register(filters, "G", [Subscription("T", "a > 1", SQL92, 1)])
    filters.on_time(broker.parts.now_ms())
    path = tmp_path / "config" / "consumerFilter.json"
    await tasks_ended(broker)
    assert b"a > 1" in path.read_bytes()
    assert threads
    assert threading.main_thread() not in threads
    # Not at every look.
    register(filters, "G2", [Subscription("T", "a > 7", SQL92, 1)])
    filters.on_time(broker.parts.now_ms() + 1)
    await tasks_ended(broker)
    assert b"a > 7" not in path.read_bytes()
    # What cannot be written is written again later.
    register(filters, "G", [Subscription("T", "a > 2", SQL92, 2)])
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"no directory")
    filters.on_time(broker.parts.now_ms() + 20_000)
    await tasks_ended(broker)
    path.parent.unlink()
    filters.on_time(broker.parts.now_ms() + 40_000)
    await tasks_ended(broker)
    assert b"a > 2" in path.read_bytes()


def test_of_the_dead_the_newest_are_kept(tmp_path: Path) -> None:
    """Groups come, subscribe by an expression, and go for good."""
    broker, filters = broker_at(tmp_path)
    for number in range(DEAD_MAX + 100):
        group = f"G{number}"
        register(filters, group, [Subscription("T", f"a > {number}", SQL92, 1)])
        register(filters, group, [])
        filters.encoder(broker.parts.now_ms())()
    known = [each for each in range(DEAD_MAX + 100) if filters.get("T", f"G{each}") is not None]
    assert len(known) == len(filters._groups) == DEAD_MAX
    register(filters, "G0", [Subscription("T", "a > 0", SQL92, 1)])
    filters.encoder(broker.parts.now_ms())()
    assert filters.get("T", "G0") is not None


async def test_codes_over_the_wire() -> None:
    async with EmbeddedBroker() as mq, RemotingClient() as client:

        async def call(code: int, fields: dict[str, object], body: object = None) -> Any:
            request = RemotingCommand(
                code=code, body=b"" if body is None else json.dumps(body).encode()
            )
            request.ext_fields = {name: str(value) for name, value in fields.items()}
            return await client.invoke(mq.address, request, timeout_s=100.0)

        def check(expression: str, kind: str = SQL92) -> dict[str, object]:
            data = {"topic": "T", "subString": expression, "expressionType": kind}
            return {"clientId": "c", "group": "g", "subscriptionData": data}

        async def pull(expression: str, offset: int = 0) -> Any:
            fields: dict[str, object] = {
                "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": offset,
                "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0,
                "subVersion": 1, "subscription": expression, "expressionType": SQL92,
            }  # fmt: skip
            return await call(RequestCode.PULL_MESSAGE, fields)

        for number in range(10):
            fields: dict[str, object] = {
                "a": "P", "b": "T", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
                "i": f"a\x01{number}\x02",
            }  # fmt: skip
            request = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, body=b"%d" % number)
            request.ext_fields = {name: str(value) for name, value in fields.items()}
            assert (await client.invoke(mq.address, request, timeout_s=100.0)).code == 0
        good = await call(RequestCode.CHECK_CLIENT_CONFIG, {}, check("a > 3"))
        assert good.code == ResponseCode.SUCCESS
        bad = await call(RequestCode.CHECK_CLIENT_CONFIG, {}, check("a >"))
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        pulled = await pull("a >= 7 OR a = 2")
        assert pulled.code == ResponseCode.SUCCESS
        assert pulled.fields["nextBeginOffset"] == "10"
        assert [pulled.body.count(b"a\x01%d" % number) for number in (1, 2, 7, 8, 9)] == [
            0, 1, 1, 1, 1,
        ]  # fmt: skip
        assert (await pull("a = 99")).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (await pull("a = = 1")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        mq.broker.parts.config.enable_property_filter = False
        assert (await pull("a = 1")).code == ResponseCode.SYSTEM_ERROR
        off = await call(RequestCode.CHECK_CLIENT_CONFIG, {}, check("a > 3"))
        assert off.code == ResponseCode.SYSTEM_ERROR


def test_retries_have_the_tags_of_their_subscription(tmp_path: Path) -> None:
    _, filters = broker_at(tmp_path)
    every, some = (RetryFilter(filters, "G", frozenset(codes)) for codes in ((), (5,)))
    assert [every.matches_consume_queue(code, None) for code in (5, 6)] == [True, True]
    assert [some.matches_consume_queue(code, None) for code in (5, 6)] == [True, False]


@pytest.mark.parametrize("supported", ["true", "false"])
async def test_retries_are_judged_by_the_expression_of_their_topic(
    make_live: Callable[..., Any], supported: str
) -> None:
    """A group that has narrowed its expression no longer gets retries of what it left out."""
    live = await make_live(enablePropertyFilter="true", filterSupportRetry=supported)
    filters = live.broker.services.expressions
    register(filters, "G", [Subscription("T", "a > 5", SQL92, 1)])
    live.broker.parts.topics.create_internal("%RETRY%G", 1)
    retries = [
        ("T", "3"),  # the expression leaves it out
        ("T", "7"),
        ("Other", "3"),  # no expression for its topic
        (None, "3"),  # nobody knows where it comes from
    ]
    for real_topic, a in retries:
        properties = {"a": a} | ({"RETRY_TOPIC": real_topic} if real_topic else {})
        message = MessageExtBrokerInner.of("%RETRY%G", b"m", properties=properties)
        assert live.broker.parts.store.put_message(message).ok
    live.broker.parts.store.dispatch_nowait()
    await live.peer.heartbeat("G", {"%RETRY%G": "*"})
    got = await live.peer.pull("%RETRY%G", 0, group="G")
    assert got.code == 0
    found = [
        (each.properties.get("RETRY_TOPIC"), each.properties["a"])
        for each in decode_messages(got.body_bytes())
    ]
    assert found == ([retries[1], retries[2], retries[3]] if supported == "true" else retries)


async def test_a_read_judges_so_many_bytes_of_properties(make_live: Any) -> None:
    """However many messages with long properties there are; the next read goes on behind them."""
    live = await make_live(enablePropertyFilter="true")
    long = {"k": "x" * 20_000}
    for _ in range(9):
        await live.peer.send("T", b"m", 0, long)
    await live.peer.send("T", b"wanted", 0, {"a": "1"})
    offset, reads = 0, 0
    while True:
        fields = {
            "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subVersion": "0", "subscription": "a = '1'", "expressionType": "SQL92",
        }  # fmt: skip
        answer = await live.peer.call(11, fields)
        reads += 1
        following = int(answer.fields["nextBeginOffset"])
        if answer.code == 0:
            break
        assert 0 < following - offset <= 4
        offset = following
    assert decode_messages(answer.body, "b")[0].body == b"wanted"
    assert reads == 3


@pytest.mark.parametrize("operands", [1, 40])
def test_properties_are_found_behind_thousands_of_empty_ones(operands: int) -> None:
    expression = compile_sql92(" or ".join(["a = 'v'"] * operands))
    for raw in (
        b"a\x01v\x02" + b"a\x01\x02" * 5000,
        b"a\x01\x02" * 5000 + b"a\x01v\x02" + b"a\x01\x02",
        b"b\x01a\x02" + b"a\x01\x02" * 5000 + b"a\x01v",
    ):
        assert find_property(raw, b"a") == b"v"
        assert expression.matches_raw(raw)
    for raw in (b"a\x01\x02" * 5000, b"ba\x01v\x02" * 5000, b""):
        assert find_property(raw, b"a") is None
        assert not expression.matches_raw(raw)
