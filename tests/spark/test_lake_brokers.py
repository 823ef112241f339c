"""Several brokers in one lake: each message is in it once, and with ``lake`` in a query once.

Two stores are exported into one place in steps, killed before each of them, joined by a third, and
lose the beginning of their logs. DuckDB, deltalake and pyiceberg read the tables, and the option
``lake`` the union; both are compared with the logs as they were. Tasks run in this process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import datasource as f

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.cli import spark_export
from oberth.cli.main import main
from oberth.client import Message, MessageQueue
from oberth.client.blocking import Admin, Producer
from oberth.client.blocking_face import LOOP
from oberth.errors import DataLossError, OptionError
from oberth.spark.lake import open_lake
from oberth.spark.options import parse_read_options
from oberth.spark.pipelines.export.compaction import compact
from oberth.spark.pipelines.export.exporter import STEPS, export
from oberth.spark.pipelines.export.settings import FORMATS, ExportSettings
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.schemas import parse_columns, struct_type
from oberth.spark.source import RocketMQReader
from oberth.store.files import OsFileSystem
from oberth.store.lakes import NOTHING, awaited_lake, lake_name, lake_names, make_directory
from oberth.testing.blocking import EmbeddedBroker
from oberth.testing.embedded_broker import DEFAULT_SETTINGS

COLUMNS = "value,topic,broker,partition,offset,tags,physicalOffset"
Rows = list[tuple[Any, ...]]


class KilledError(Exception):
    """Stands for a kill."""


def _sorted(rows: Sequence[dict[str, Any]]) -> Rows:
    return sorted(tuple(str(row[name]) for name in COLUMNS.split(",")) for row in rows)


def read(where: dict[str, str], filters: Sequence[Any] = (), **options: str) -> Rows:
    """What a batch query gives; its tasks run here."""
    parsed = parse_read_options({**where, **options}, streaming=False)
    reader = RocketMQReader(parsed, struct_type(parse_columns(COLUMNS)))
    if filters:
        reader.accept_filters(list(filters))
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions():
        for batch in reader.read(partition):
            rows += batch.to_pylist()
    return _sorted(rows)


def read_by_others(into: Path, form: str) -> Rows:
    """All rows of the topics A and B, by the tool of the format."""
    rows: list[dict[str, Any]] = []
    if form == "parquet":
        found = duckdb.sql(f"select * from read_parquet('{into}/[AB]/*.parquet')")
        assert found is not None
        rows = found.to_arrow_table().to_pylist()
    elif form == "delta":
        for topic in "AB":
            rows += DeltaTable(str(into / topic)).to_pyarrow_table().to_pylist()
    else:
        catalog = SqlCatalog("oberth", uri=f"sqlite:///{into}/catalog.db")
        for topic in "AB":
            rows += catalog.load_table(f"oberth.{topic}").scan().to_arrow().to_pylist()
        catalog.close()
    return _sorted(rows)


class Brokers:
    """Stores of one cluster that are written to."""

    def __init__(self, make_store: Callable[..., Any], directory: Path, count: int = 2) -> None:
        self.stores = [
            make_store(directory / f"broker-{letter}", segment_size=1 << 13)
            for letter in "abc"[:count]
        ]
        self._count = 0

    def path(self, count: int | None = None) -> str:
        return ",".join(str(store.root) for store in self.stores[:count])

    def write(self, *counts: int) -> None:
        """So many messages into each store; their positions in the logs differ."""
        for number, (store, count) in enumerate(zip(self.stores, counts, strict=False)):
            for _ in range(count):
                body = b"%d " % self._count * (number * 5 + 1)
                tags = ("", "red")[self._count % 2]
                store.append("AB"[self._count % 3 % 2], self._count % 2, body, tags=tags)
                self._count += 1

    def lose_the_beginnings(self, ends: dict[str, int]) -> int:
        lost = 0
        for store in self.stores:
            for path, after in pairwise(sorted((store.root / "commitlog").iterdir())):
                if int(after.name) <= ends[store.root.name]:
                    path.unlink()
                    lost += 1
        return lost


def whole(brokers: Brokers) -> Rows:
    return read({"path": brokers.path()}, readOrder="commitlog")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("killed_before", STEPS)
def test_killed_at_each_step(
    make_store: Callable[..., Any], tmp_path: Path, form: str, killed_before: str
) -> None:
    """A run ends without a word in the second batch, which both stores have a part of."""
    brokers = Brokers(make_store, tmp_path)
    into, settings = tmp_path / "lake", ExportSettings(form)

    def step(name: str) -> None:
        if name == killed_before:
            raise KeyboardInterrupt

    brokers.write(60, 30)
    export(InProcess(), brokers.path(), str(into), settings, range_size=4_000)
    brokers.write(50, 90)
    with pytest.raises(KeyboardInterrupt):
        export(InProcess(), brokers.path(), str(into), settings, range_size=4_000, step=step)
    brokers.write(0, 5)
    assert read({"path": brokers.path()}, lake=str(into)) == whole(brokers)
    export(InProcess(), brokers.path(), str(into), settings, range_size=4_000)
    exported = whole(brokers)
    assert read_by_others(into, form) == exported
    assert len({row[1:5] for row in exported}) == len(exported) == 235
    assert export(InProcess(), brokers.path(), str(into), settings).batches == 0
    brokers.write(20, 20)  # in the logs alone
    everything = whole(brokers)
    assert brokers.lose_the_beginnings(dict(open_lake(str(into)).ends)) > 1
    assert len(whole(brokers)) < len(everything)
    assert read({"path": brokers.path()}, lake=str(into)) == everything
    if form != "iceberg":
        assert compact(str(into), 1 << 20) > 2
        assert read({"path": brokers.path()}, lake=str(into)) == everything


@pytest.mark.parametrize("form", FORMATS)
def test_a_broker_joins_later(make_store: Callable[..., Any], tmp_path: Path, form: str) -> None:
    brokers = Brokers(make_store, tmp_path, 3)
    into, settings = tmp_path / "lake", ExportSettings(form)
    for count in (1, 2, 3):
        brokers.write(*[40] * count)
        report = export(InProcess(), brokers.path(count), str(into), settings)
        assert report.rows == 40 * count
    assert read_by_others(into, form) == whole(brokers)
    assert [path.name for path in (into / "_oberth" / "batches").glob("*.done")] != []
    with pytest.raises(OptionError, match="holds the export of broker 'broker-a', 'broker-b', 'b"):
        export(InProcess(), brokers.path(2), str(into), settings)
    with pytest.raises(OptionError, match="name the same stores"):
        read({"path": brokers.path(2)}, lake=str(into))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("killed_before", [None, *STEPS[1:]])
def test_a_broker_that_is_named_first_joins_later(
    make_store: Callable[..., Any], tmp_path: Path, form: str, killed_before: str | None
) -> None:
    """The first run has broker-b alone and ends, or is killed in its only batch."""
    brokers = Brokers(make_store, tmp_path)
    joined, first = brokers.stores
    into, files, settings = tmp_path / "lake", OsFileSystem(), ExportSettings(form)
    for store in brokers.stores:
        make_directory(files, str(store.root))

    def step(name: str) -> None:
        if name == killed_before:
            raise KeyboardInterrupt

    brokers.write(40, 70)
    with pytest.raises(KeyboardInterrupt) if killed_before else nullcontext():
        export(InProcess(), str(first.root), str(into), settings, step=step)
    for counts in ((0, 0), (10, 5)):
        brokers.write(*counts)
        export(InProcess(), brokers.path(), str(into), settings)
        exported = whole(brokers)
        assert read_by_others(into, form) == exported
        assert len({row[1:5] for row in exported}) == len(exported) == 110 + sum(counts)
        assert read({"path": brokers.path()}, lake=str(into)) == exported
    ends = open_lake(str(into)).ends
    for store in (joined, first):
        awaited = awaited_lake(files, str(store.root), ",".join(lake_names(str(into))), 1 << 40)
        assert awaited == (lake_name(str(into)), ends[store.root.name])


def test_a_broker_is_told_of_its_own_range_when_none_is_new(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    """A killed run has finished its batch and told nobody; the next has another broker first."""
    brokers = Brokers(make_store, tmp_path)
    joined, first = brokers.stores
    into, files = str(tmp_path / "lake"), OsFileSystem()
    brokers.write(0, 30)
    export(InProcess(), str(first.root), into, ExportSettings())
    for store in brokers.stores:
        make_directory(files, str(store.root))
    assert export(InProcess(), brokers.path(), into, ExportSettings()).batches == 0
    ends = open_lake(into).ends
    awaited = awaited_lake(files, str(first.root), ",".join(lake_names(into)), 1 << 40)
    assert awaited == (lake_name(into), ends["broker-b"])
    lacks = awaited_lake(files, str(joined.root), ",".join(lake_names(into)), 1 << 40)
    assert lacks == (lake_name(into), NOTHING)


def test_conditions_reach_both_sides_of_each_broker(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    brokers = Brokers(make_store, tmp_path)
    into = str(tmp_path / "lake")
    for _ in range(2):
        brokers.write(30, 70)
        if not _:
            export(InProcess(), brokers.path(), into, ExportSettings())
    where, every = {"path": brokers.path()}, whole(brokers)
    mine = read(where, [f.EqualTo(("broker",), "broker-b")], lake=into)
    assert mine == [row for row in every if row[2] == "broker-b"]
    ends = open_lake(into).ends
    for at in (0, 100, *ends.values(), max(ends.values()) * 2):
        below = read(where, [f.LessThan(("physicalOffset",), at)], lake=into)
        assert [row for row in below if int(row[6]) < at] == [r for r in every if int(r[6]) < at]
    red = read(where, lake=into, **{"filter.tag": "red"})
    assert red == [row for row in every if row[5] == "red"]
    for cut in ("asOfOffset", "asOfTimestamp", "sinceOffset"):
        with pytest.raises(OptionError, match="a position belongs to one log, found 2 stores"):
            read(where, lake=into, **{cut: "5"})
    few = COLUMNS.replace("broker,", "")
    export(InProcess(), brokers.path(), into + "2", ExportSettings(columns=few))
    with pytest.raises(OptionError, match="has no column broker in its files"):
        read(where, lake=into + "2")
    with pytest.raises(OptionError, match="an exact export is of one store"):
        export(InProcess(), brokers.path(), into + "3", ExportSettings(exact=True))


def test_what_one_broker_lost_is_named(make_store: Callable[..., Any], tmp_path: Path) -> None:
    brokers = Brokers(make_store, tmp_path)
    into = str(tmp_path / "lake")
    brokers.write(10, 10)
    export(InProcess(), brokers.path(), into, ExportSettings())
    brokers.write(200, 10)
    first, *_ = sorted((brokers.stores[0].root / "commitlog").iterdir())
    first.unlink()
    with pytest.raises(DataLossError, match=r"broker-a: CommitLog .* is neither in the log nor"):
        read({"path": brokers.path()}, lake=into)
    with pytest.raises(DataLossError, match=r"broker-a: CommitLog .* was deleted unexported"):
        export(InProcess(), brokers.path(), into, ExportSettings())
    report = export(InProcess(), brokers.path(), into, ExportSettings(), skip_damage=True)
    assert len(report.skipped) == 1
    assert read({"path": brokers.path()}, lake=into) == read_by_others(Path(into), "parquet")


def test_each_broker_learns_how_far_its_log_is(
    make_store: Callable[..., Any], tmp_path: Path
) -> None:
    brokers = Brokers(make_store, tmp_path)
    into, files = str(tmp_path / "lake"), OsFileSystem()
    for store in brokers.stores:
        make_directory(files, str(store.root))
    brokers.write(40, 10)
    export(InProcess(), brokers.path(), into, ExportSettings())
    ends = open_lake(into).ends
    assert len(set(ends.values())) == 2
    for store in brokers.stores:
        awaited = awaited_lake(files, str(store.root), ",".join(lake_names(into)), 1 << 40)
        assert awaited is not None
        assert awaited == (lake_name(into), ends[store.root.name])


def test_files_say_whose_log_they_hold(make_store: Callable[..., Any], tmp_path: Path) -> None:
    brokers = Brokers(make_store, tmp_path)
    into = tmp_path / "lake"
    brokers.write(40, 40)
    export(InProcess(), brokers.path(), str(into), ExportSettings())

    def said() -> list[dict[bytes, bytes]]:
        return [dict(pq.read_schema(path).metadata) for path in into.glob("[AB]/*.parquet")]

    names = sorted(each[b"oberth.broker"] for each in said())
    assert names == [b"broker-a", b"broker-a", b"broker-b", b"broker-b"]
    assert compact(str(into), 1 << 20) == 4
    assert [each for each in said() if b"oberth.log.end" in each] == []  # of two logs


def test_continuous(
    make_store: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    brokers = Brokers(make_store, tmp_path)
    into = tmp_path / "lake"
    brokers.write(10, 20)
    more = [(5, 0), (0, 0), (0, 7), (3, 3)]

    @contextmanager
    def here(*_: Any, **__: Any) -> Iterator[InProcess]:
        yield InProcess()

    def pause(_: float) -> None:
        if not more:
            raise KeyboardInterrupt
        brokers.write(*more.pop(0))

    monkeypatch.setattr(spark_export, "spark_tasks", here)
    monkeypatch.setattr("oberth.cli.spark_export.time", SimpleNamespace(sleep=pause))  # not others'
    with pytest.raises(SystemExit) as ended:
        main(["spark", "export", brokers.path(), "--into", str(into), "--format", "delta",
              "--continuous", "--json"])  # fmt: skip
    assert not ended.value.code
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["rows"] for report in reports] == [30, 5, 7, 6]
    assert read_by_others(into, "delta") == whole(brokers)


async def _start(settings: Any) -> Broker:
    broker = Broker(settings[0], settings[1])
    await broker.start()
    return broker


def test_two_live_brokers(tmp_path: Path) -> None:
    """By name servers a batch has queues of all brokers; the lake meets the log in each queue."""
    into, form = tmp_path / "lake", ExportSettings("delta", topics=("A",))
    with EmbeddedBroker({"brokerName": "broker-a"}) as first:
        address = first.namesrv_addr
        settings = read_configs(
            {
                **DEFAULT_SETTINGS, "brokerName": "broker-b", "namesrvAddr": address,
                "storePathRootDir": str(tmp_path / "b"),
            }
        )  # fmt: skip
        second = LOOP.call(lambda: _start(settings))
        try:
            with Admin(namesrv_addr=address) as admin:
                admin.create_topic("A", queue_nums=2, cluster="DefaultCluster")
            where = {"rocketmq.namesrv.addr": address}
            with Producer("p", namesrv_addr=address) as producer:
                for step in range(3):
                    for number in range(20):
                        queue = MessageQueue(
                            topic="A", broker_name=f"broker-{'ab'[number % 2]}",
                            queue_id=number // 2 % 2,
                        )  # fmt: skip
                        producer.send(Message("A", b"%d %d" % (step, number)), mq=queue)
                    if step < 2:  # the last is in the logs alone
                        report = export(InProcess(), "", str(into), form, options=where)
                        assert report.rows == 20
            every = read(where, subscribe="A")
            assert len(every) == 60
            assert {row[2] for row in every} == {"broker-a", "broker-b"}
            assert read(where, subscribe="A", lake=str(into)) == every
            table = DeltaTable(str(into / "A")).to_pyarrow_table().to_pylist()
            assert _sorted(table) == [row for row in every if not row[0].startswith("b'2 ")]
        finally:
            LOOP.call(second.aclose)


@pytest.mark.parametrize("form", FORMATS)
def test_a_topic_that_was_made_again(tmp_path: Path, form: str) -> None:
    """Its old life stays, that the new one is not in the lake is told, and nothing comes twice."""
    into, settings = str(tmp_path / "lake"), ExportSettings(form, topics=("A",))

    def killed(name: str) -> None:
        if name == "finish":  # the tables have the batch, and nobody noted it
            raise KilledError

    with EmbeddedBroker() as mq, Admin(namesrv_addr=mq.namesrv_addr) as admin:
        where = {"rocketmq.namesrv.addr": mq.namesrv_addr}

        def send(life: str, count: int) -> None:
            with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
                for number in range(count):
                    producer.send(Message("A", f"{life} {number}".encode()))

        def found(**more: str) -> Counter[str]:
            return Counter(row[0] for row in read(where, subscribe="A", lake=into, **more))

        def bodies(life: str, count: int) -> Counter[str]:
            return Counter(str(f"{life} {number}".encode()) for number in range(count))

        def take_up(**more: Any) -> None:
            export(InProcess(), "", into, settings, options=where, skip_damage=True, **more)

        admin.create_topic("A", queue_nums=1, cluster="DefaultCluster")
        send("old", 3)
        take_up()
        send("old ones more", 6)
        take_up()
        old = bodies("old", 3) + bodies("old ones more", 6)
        admin.delete_topic("A", cluster="DefaultCluster")
        admin.create_topic("A", queue_nums=1, cluster="DefaultCluster")
        send("new", 11)
        with pytest.raises(DataLossError, match="read to 9, then its topic was made again"):
            found()
        assert found(failOnDataLoss="false") == old + bodies("new", 11)
        with pytest.raises(KilledError):
            take_up(step=killed)
        assert found(failOnDataLoss="false") == old + bodies("new", 11)
        assert compact(into, 64 << 20) > 0
        with pytest.raises(DataLossError, match="is known when the export's batch is done"):
            found(failOnDataLoss="false")
        take_up()
        assert found() == old + bodies("new", 11)
        send("newest", 4)
        assert found() == old + bodies("new", 11) + bodies("newest", 4)
        with pytest.raises(KilledError):
            take_up(step=killed)
        assert found() == old + bodies("new", 11) + bodies("newest", 4)
        compact(into, 64 << 20)
        assert found() == old + bodies("new", 11) + bodies("newest", 4)


def test_a_made_again_topic_that_was_taken_up_early(tmp_path: Path) -> None:
    """The lake has more of the old life than of the new one."""
    into, settings = str(tmp_path / "lake"), ExportSettings(topics=("A",))
    with EmbeddedBroker() as mq, Admin(namesrv_addr=mq.namesrv_addr) as admin:
        where = {"rocketmq.namesrv.addr": mq.namesrv_addr}
        with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            for life, count in (("old", 9), ("new", 4)):
                admin.create_topic("A", queue_nums=1, cluster="DefaultCluster")
                for number in range(count):
                    producer.send(Message("A", f"{life} {number}".encode()))
                export(InProcess(), "", into, settings, options=where, skip_damage=True)
                if life == "old":
                    admin.delete_topic("A", cluster="DefaultCluster")
            every = Counter(row[0] for row in read(where, subscribe="A", lake=into))
            assert every == Counter(
                str(f"{life} {n}".encode()) for life, n in
                [*(("old", n) for n in range(9)), *(("new", n) for n in range(4))]
            )  # fmt: skip
