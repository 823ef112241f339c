"""Live topics as tables equal the files of their store: every column and filter, without a JVM.

A broker of the test's own; each read goes through the objects that Spark would call.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In

from oberth.client import Message, MessageQueue
from oberth.client.blocking import Admin, Producer
from oberth.errors import DataLossError, OptionError, RemotingError
from oberth.testing.blocking import EmbeddedBroker

COUNT = 400


@pytest.fixture(scope="module")
def shop() -> Iterator[Any]:
    """A broker with COUNT orders in four queues, some compressed, and a few payments."""
    with EmbeddedBroker() as mq, Producer("shop", namesrv_addr=mq.namesrv_addr) as producer:
        with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            admin.create_topic("orders", queue_nums=4, cluster="DefaultCluster")
            admin.create_topic("payments", queue_nums=2, cluster="DefaultCluster")
            admin.create_topic("empty", queue_nums=3, cluster="DefaultCluster")
        for number in range(COUNT):
            body = f"order {number} ".encode() * (1000 if number % 97 == 0 else 1)
            queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=number % 4)
            message = Message(
                "orders", body, tags=f"t{number % 5}", keys=f"k{number}",
                properties={"amount": str(number), "region": "eu" if number % 2 else "us"},
            )  # fmt: skip
            producer.send(message, mq=queue)
        for number in range(20):
            producer.send(Message("payments", b"p%d" % number, tags="paid"))
        yield mq


def _store(mq: Any) -> str:
    """The store's directory, with everything in its files."""
    mq.broker.parts.store.queues.write_behind()
    return str(mq.store_dir)


def _keyed(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        tuple(sorted((name, str(value)) for name, value in row.items() if name != "x"))
        for row in rows
    )


@pytest.mark.parametrize("subscribe", ["orders", "orders,payments", "empty"])
def test_every_column_is_that_of_the_files(
    shop: Any, read_live: Callable[..., Any], read_store: Callable[..., Any], subscribe: str
) -> None:
    live = read_live(shop.namesrv_addr, subscribe=subscribe)
    files = read_store(_store(shop), brokerName="broker-a", subscribe=subscribe)
    assert _keyed(live.rows) == _keyed(files.rows)
    assert [r["offset"] for r in live.rows] == [r["offset"] for r in files.rows]
    assert live.lost == []


def test_without_a_selection_all_topics_but_the_brokers_own(
    shop: Any, read_live: Callable[..., Any]
) -> None:
    rows = read_live(shop.namesrv_addr, columns="topic").rows
    assert {row["topic"] for row in rows} == {"orders", "payments"}
    rows = read_live(shop.namesrv_addr, columns="topic", subscribePattern="pay.*").rows
    assert [row["topic"] for row in rows] == ["payments"] * 20


@pytest.mark.parametrize(
    "options",
    [
        {"minPartitions": "9"},
        {"maxRecordsPerPartition": "37"},
        {"targetPartitionBytes": "4k"},
        {"rocketmq__pull__batch__size": "3", "rocketmq__pull__requests": "1"},
        {"batchBytes": "64k"},
    ],
)
def test_however_it_is_cut_the_rows_are_the_same(
    shop: Any, read_live: Callable[..., Any], options: dict[str, str]
) -> None:
    found = read_live(
        shop.namesrv_addr, columns="partition,offset,value", subscribe="orders", **options
    )
    places = [(row["partition"], row["offset"]) for row in found.rows]
    assert places == [(queue, offset) for queue in range(4) for offset in range(COUNT // 4)]
    if "minPartitions" in options:
        assert found.partitions >= 9
    if "maxRecordsPerPartition" in options:
        assert found.partitions >= COUNT // 37


@pytest.mark.parametrize(
    "options",
    [
        {"filter__tag": "t1 || t3"},
        {"filter__sql": "amount > 100 AND region = 'eu'"},
        {"filter__sql": "amount BETWEEN 5 AND 9 OR nothing IS NOT NULL"},
        {"filter__tag": "t2", "filter__sql": "amount > 300"},
        {"assign": '{"orders": [1, 3]}'},
        {"startingOffsets": '{"orders": {"0": 3, "1": 99, "2": -2, "3": 50}}'},
        {"endingOffsets": '{"orders": {"broker-a": {"0": 3, "1": 99, "2": -1, "3": 0}}}'},
    ],
)
def test_options_mean_what_they_mean_over_files(
    shop: Any, read_live: Callable[..., Any], read_store: Callable[..., Any],
    options: dict[str, str],
) -> None:  # fmt: skip
    given = options if "assign" in options else {**options, "subscribe": "orders"}
    live = read_live(shop.namesrv_addr, columns="partition,offset,tags", **given)
    files = read_store(
        _store(shop), brokerName="broker-a", columns="partition,offset,tags", **given
    )
    assert live.rows == files.rows
    assert live.rows


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("tags",), "t4")],
        [In(("tags",), ("t4", "t0", "no such"))],
        [EqualTo(("partition",), 2), GreaterThanOrEqual(("offset",), 90)],
        [EqualTo(("topic",), "payments")],
        [EqualTo(("broker",), "another")],
    ],
)
def test_pushed_filters_leave_out_only_what_spark_would(
    shop: Any, read_live: Callable[..., Any], filters: list[Any]
) -> None:
    def keeps(row: dict[str, Any]) -> bool:
        for one in filters:
            found = row[one.attribute[0]]
            value = one.value
            if isinstance(one, In) and found not in value:
                return False
            if isinstance(one, EqualTo) and found != value:
                return False
            if isinstance(one, GreaterThanOrEqual) and found < value:
                return False
        return True

    columns = "topic,broker,partition,offset,tags"
    every = read_live(shop.namesrv_addr, columns=columns).rows
    some = read_live(shop.namesrv_addr, filters, columns=columns).rows
    assert [row for row in some if keeps(row)] == [row for row in every if keeps(row)]
    assert len(some) < len(every)


def test_a_broker_without_sql_is_read_whole_and_filtered_here(
    read_live: Callable[..., Any],
) -> None:
    settings = {"enablePropertyFilter": "false"}
    with EmbeddedBroker(settings) as mq, Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for number in range(100):
            producer.send(Message("T", b"x", properties={"n": str(number)}))
        rows = read_live(mq.namesrv_addr, subscribe="T", columns="*", filter__sql="n >= 60").rows
    assert sorted(int(dict(row["properties"])["n"]) for row in rows) == list(range(60, 100))


def test_times_are_found_to_the_message(read_live: Callable[..., Any]) -> None:
    with EmbeddedBroker() as mq, Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            admin.create_topic("T", queue_nums=1, cluster="DefaultCluster")
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        for _ in range(10):
            producer.send(Message("T", b"x"), mq=queue)
            mq.clock.advance(seconds=10)
        rows = read_live(mq.namesrv_addr, assign='{"T": [0]}', columns="*").rows
        times = [int(row["timestamp"].timestamp() * 1000) for row in rows]
        assert len(times) == 10
        for number, when in enumerate(times):
            for moment, first in ((when, number), (when - 1, number), (when + 1, number + 1)):
                given = {"assign": '{"T": [0]}', "startingTimestamp": str(moment)}
                if first == 10:
                    with pytest.raises(OptionError, match="no message at or after"):
                        read_live(mq.namesrv_addr, **given)
                    given["startingOffsetsByTimestampStrategy"] = "latest"
                found = [row["offset"] for row in read_live(mq.namesrv_addr, **given).rows]
                assert found == list(range(first, 10))
        found = read_live(mq.namesrv_addr, assign='{"T": [0]}', endingTimestamp=str(times[4])).rows
        assert [row["offset"] for row in found] == [0, 1, 2, 3]


def test_a_group_is_where_the_read_begins(shop: Any, read_live: Callable[..., Any]) -> None:
    queue = MessageQueue(topic="orders", broker_name="broker-a", queue_id=1)
    with Admin(namesrv_addr=shop.namesrv_addr) as admin:
        admin.update_consume_offset("readers", queue, 95)
    given = {"subscribe": "orders", "startingOffsets": "group", "columns": "partition,offset"}
    given["rocketmq__consumer__group"] = "readers"
    rows = read_live(shop.namesrv_addr, **given).rows
    assert sum(row["partition"] == 1 for row in rows) == 5
    assert len(rows) == 305
    rows = read_live(shop.namesrv_addr, startingGroupFallback="latest", **given).rows
    assert len(rows) == 5
    with pytest.raises(OptionError, match="has no offset there"):
        read_live(shop.namesrv_addr, startingGroupFallback="error", **given)


def test_what_is_not_there_is_named(shop: Any, read_live: Callable[..., Any]) -> None:
    with pytest.raises(OptionError, match=r"'oders' is in none of the brokers .* 'orders'"):
        read_live(shop.namesrv_addr, subscribe="oders")
    with pytest.raises(OptionError, match="queue 7 does not exist"):
        read_live(shop.namesrv_addr, assign='{"orders": [7]}')
    with pytest.raises(OptionError, match="broker 'b' is none of broker-a"):
        read_live(shop.namesrv_addr, assign='{"orders": {"b": [0]}}')
    with pytest.raises(DataLossError, match="offsets 100 to 500 are not there"):
        read_live(
            shop.namesrv_addr, assign='{"orders": [0]}', endingOffsets='{"orders": {"0": 500}}'
        )


def test_answers_that_get_lost_are_asked_for_again(
    shop: Any, read_live: Callable[..., Any]
) -> None:
    from oberth.remoting.code import RequestCode

    lost = shop.faults.disconnect([RequestCode.PULL_MESSAGE], times=3)
    rows = read_live(shop.namesrv_addr, subscribe="payments", columns="value").rows
    assert len(rows) == 20
    assert lost.hits == 3


def test_over_tls_and_past_a_dead_name_server(shop: Any, read_live: Callable[..., Any]) -> None:
    given = {"subscribe": "payments", "columns": "value", "rocketmq__tls__enable": "true"}
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        both = f"127.0.0.1:{unused.getsockname()[1]};{shop.namesrv_addr}"
        assert len(read_live(both, rocketmq__tls__verify="false", **given).rows) == 20
    with pytest.raises(RemotingError):
        # Its certificate is its own; nobody vouches for it.
        read_live(shop.namesrv_addr, rocketmq__timeout="1s", **given)
    with pytest.raises(OptionError, match=r"rocketmq\.tls: authority /nowhere/ca\.pem"):
        read_live(shop.namesrv_addr, rocketmq__tls__ca="/nowhere/ca.pem", **given)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filter__tag": "t1"},
        {"maxRecordsPerPartition": "7"},
        {
            "startingOffsets": '{"B": {"0": 5, "1": 2}}',
            "endingOffsets": '{"B": {"0": 17, "1": -1}}',
        },
    ],
)
def test_inner_batches_are_single_rows(
    read_live: Callable[..., Any], read_store: Callable[..., Any], options: dict[str, str]
) -> None:
    with EmbeddedBroker() as mq, Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            admin.create_topic(
                "B", queue_nums=2, cluster="DefaultCluster",
                attributes={"queue.type": "BatchCQ"},
            )  # fmt: skip
        number = 0
        for count in (1, 3, 10, 2, 8, 4, 9, 3):
            messages = [
                Message("B", b"%d" % (number + at), tags=f"t{at % 3}") for at in range(count)
            ]
            queue = MessageQueue(topic="B", broker_name="broker-a", queue_id=number % 2)
            producer.send(messages, mq=queue)
            number += count
        given = {**options, "subscribe": "B", "columns": "partition,offset,value,tags,innerIndex"}
        live = read_live(mq.namesrv_addr, **given)
        files = read_store(_store(mq), brokerName="broker-a", **given)
        assert live.rows == files.rows
        assert live.rows
        if not options:
            assert sorted(int(row["value"]) for row in live.rows) == list(range(40))


def test_a_live_body_that_does_not_decompress_is_a_row(
    read_live: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedBroker() as mq, Producer("shop", namesrv_addr=mq.namesrv_addr) as producer:
        producer.send(Message("poison", b"good"))
        with monkeypatch.context() as patch:
            patch.setattr("oberth.client.outgoing.compress", lambda *given: b"no zlib")
            producer.send(Message("poison", b"x" * 10_000))
        producer.send(Message("poison", b"good"))
        rows = read_live(mq.namesrv_addr, subscribe="poison", columns="value,bodyError").rows
    assert sorted(row["value"] for row in rows) == [b"good", b"good", b"no zlib"]
    assert [row["bodyError"] is None for row in rows].count(False) == 1
