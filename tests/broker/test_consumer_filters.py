"""SQL92 filters in a broker: results and bitmaps equal RocketMQ's on the golden filter stores.

The messages of the golden store go through the dispatcher that makes bitmaps, with the expressions
of its consumerFilter.json; units and selected messages are compared. Codes come over a socket.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.broker.broker_config import BrokerConfig
from oberth.broker.broker_controller import Broker
from oberth.broker.consumer_filters import ConsumerFilters, SqlFilter
from oberth.broker.expressions import FilterUnknownError
from oberth.broker.subscriptions import SQL92, Subscription, SubscriptionError
from oberth.client.messages import decode_messages
from oberth.formats.config_json import parse_config
from oberth.formats.message import read_dispatch_request
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.formats.properties import decode_properties
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


def broker_at(root: Path, now_ms: int = 1_795_250_980_000) -> tuple[Broker, ConsumerFilters]:
    broker = Broker(
        BrokerConfig(listen_port=0, enable_property_filter=True, enable_calc_filter_bit_map=True),
        MessageStoreConfig(store_path_root_dir=str(root), timer_wheel_enable=False),
        clock_ms=lambda: now_ms,
    )
    filters = broker.expressions
    assert isinstance(filters, ConsumerFilters)
    return broker, filters


def subscription(group: str, version: int = 1) -> Subscription:
    return Subscription("FilterTopic", EXPRESSIONS[group], SQL92, version)


@pytest.mark.parametrize("name", ["filter-5.5.0", "filter-4.9.7"])
def test_bitmaps_are_those_that_rocketmq_wrote(
    tmp_path: Path, golden_pristine: Callable[[str], Any], name: str
) -> None:
    golden = golden_pristine(name)
    _, filters = broker_at(tmp_path)
    for group in EXPRESSIONS:
        filters.register(group, [subscription(group)])
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
    filters = ConsumerFilters(broker)
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
    broker.store.load()
    found: set[int] = set()
    hidden = 0
    for queue_id in range(3):
        result = broker.store.get_message("g", "FilterTopic", queue_id, 0, 32, with_bits)
        found |= set(result.commit_log_offsets)
        queue = broker.store.queue("FilterTopic", queue_id)
        assert isinstance(queue, ConsumeQueue)
        for unit in broker.store.iterate_consume_queue("FilterTopic", queue_id, 0, 32):
            ext = queue.ext_unit(unit.tags_code)
            hidden += not with_bits.matches_consume_queue(0, ext)
        result.release()
    broker.store.shutdown()
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
    assert parse_config(filters.encode(broker.now_ms())) == parse_config(source.read_bytes())
    filters.register("CG_sql1", [subscription("CG_sql1", 9_795_250_978_588)])
    data = filters.get("FilterTopic", "CG_sql1")
    assert data is not None
    assert (data.is_dead, data.born_time) == (False, broker.now_ms())
    assert data.client_version == 9_795_250_978_588
    assert filters.encode(broker.now_ms() + 10**9).count(b'"CG_sql2"') == 0


def test_filters_live_and_die_with_their_groups(tmp_path: Path) -> None:
    broker, filters = broker_at(tmp_path)
    with pytest.raises(FilterUnknownError) as missing:
        filters.filters("CG_sql1", subscription("CG_sql1"), from_request=False)
    assert missing.value.code == ResponseCode.FILTER_DATA_NOT_EXIST
    filters.register("CG_sql1", [subscription("CG_sql1", 5)])
    filters.filters("CG_sql1", subscription("CG_sql1", 5), from_request=False)
    with pytest.raises(FilterUnknownError) as older:
        filters.filters("CG_sql1", subscription("CG_sql1", 6), from_request=False)
    assert older.value.code == ResponseCode.FILTER_DATA_NOT_LATEST
    changed = Subscription("FilterTopic", "a = 1", SQL92, 7)
    filters.register("CG_sql1", [changed])

    def state() -> tuple[str | None, bool]:
        data = filters.get("FilterTopic", "CG_sql1")
        assert data is not None
        return data.expression, data.is_dead

    assert state() == ("a = 1", False)
    filters.register("CG_sql1", [Subscription("FilterTopic", "a = 0", SQL92, 3)])
    assert state() == ("a = 1", False)
    filters.register("CG_sql1", [Subscription("Other")])
    assert state() == ("a = 1", True)
    filters.register("CG_sql1", [Subscription("FilterTopic", "a = = 1", SQL92, 9)])
    assert state() == ("a = 1", True)
    filters.register("CG_sql1", [changed])
    assert state() == ("a = 1", False)
    filters.on_time(broker.now_ms() + 60_000)  # nobody of the group is online
    assert state() == ("a = 1", True)
    with pytest.raises(SubscriptionError):
        filters.check(Subscription("T", "x", "GROOVY"))


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
        mq.broker.config.enable_property_filter = False
        assert (await pull("a = 1")).code == ResponseCode.SYSTEM_ERROR
        off = await call(RequestCode.CHECK_CLIENT_CONFIG, {}, check("a > 3"))
        assert off.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("supported", ["true", "false"])
async def test_retries_are_judged_by_the_expression_of_their_topic(
    make_live: Callable[..., Any], supported: str
) -> None:
    """A group that has narrowed its expression no longer gets retries of what it left out."""
    live = await make_live(enablePropertyFilter="true", filterSupportRetry=supported)
    filters = live.broker.expressions
    filters.register("G", [Subscription("T", "a > 5", SQL92, 1)])
    live.broker.topics.create_internal("%RETRY%G", 1)
    retries = [
        ("T", "3"),  # the expression leaves it out
        ("T", "7"),
        ("Other", "3"),  # no expression for its topic
        (None, "3"),  # nobody knows where it comes from
    ]
    for real_topic, a in retries:
        properties = {"a": a} | ({"RETRY_TOPIC": real_topic} if real_topic else {})
        message = MessageExtBrokerInner.of("%RETRY%G", b"m", properties=properties)
        assert live.broker.store.put_message(message).ok
    live.broker.store.dispatch_nowait()
    await live.peer.heartbeat("G", {"%RETRY%G": "*"})
    got = await live.peer.pull("%RETRY%G", 0, group="G")
    assert got.code == 0
    found = [
        (each.properties.get("RETRY_TOPIC"), each.properties["a"])
        for each in decode_messages(got.body_bytes())
    ]
    assert found == ([retries[1], retries[2], retries[3]] if supported == "true" else retries)
