"""Tables sent to a topic: each row once, whatever is killed, lost or restarted, and a marker last.

A real broker is embedded; kills are exceptions at every step, lost answers are made by letting a
send arrive and then saying that it failed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from tests.rigs.dispatchers import dispatcher

from oberth.cli.main import oberth
from oberth.client.blocking import Admin
from oberth.client.producer import Producer
from oberth.errors import (
    DataLossError,
    MQClientError,
    OptionError,
    RecordError,
    RemotingConnectError,
    RemotingError,
    RemotingSendRequestError,
    RemotingTimeoutError,
    RemotingTooMuchRequestError,
)
from oberth.spark.connection import Connection
from oberth.spark.pipelines import backfill
from oberth.spark.pipelines.backfill import STEPS, PublishReport, PublishSettings, publish
from oberth.spark.pipelines.exact_send import PUBLISHED_AS, ExactSender
from oberth.spark.pipelines.export.compaction import compact
from oberth.spark.pipelines.export.directories import NULL_VALUE, directory_of
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.export.tables import whole_files
from oberth.spark.pipelines.tasks import InProcess
from oberth.spark.pipelines.views import read_rows
from oberth.testing.blocking import EmbeddedBroker


class _Killed(BaseException):
    """Stands for the end of a process."""


@pytest.fixture
def mq() -> Iterator[Any]:
    with EmbeddedBroker() as broker:
        with Admin(namesrv_addr=broker.namesrv_addr) as admin:
            admin.create_topic("T", queue_nums=3, cluster="DefaultCluster")
        yield broker


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For how long senders wait for what may still arrive, in s; here they do not."""
    waited: list[float] = []

    async def let_pass(_: ExactSender, seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(ExactSender, "_let_pass", let_pass)
    return waited


def connection(mq: Any) -> Connection:
    return Connection(mq.namesrv_addr)


def messages(mq: Any, topic: str = "T") -> list[dict[str, Any]]:
    """What the topic has, by queue and offset."""
    options = {"rocketmq.namesrv.addr": mq.namesrv_addr, "subscribe": topic}
    rows = [
        row for batch in read_rows(options, "partition,offset,key,tags,value,properties,uniqueKey")
        for row in batch.to_pylist()
    ]  # fmt: skip
    for row in rows:
        row["properties"] = dict(row["properties"])
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def write_table(directory: Path, counts: tuple[int, ...] = (40, 30), **more: Any) -> list[bytes]:
    """Files of rows; gives their bodies in order."""
    directory.mkdir(exist_ok=True)
    bodies: list[bytes] = []
    for number, count in enumerate(counts):
        own = [b"%d-%d" % (number, each) for each in range(count)]
        bodies += own
        columns = {
            "value": own, "key": [b"k" + each for each in own],
            "tags": ["a" if n % 2 else None for n in range(count)],
        }  # fmt: skip
        table = pa.table({**columns, **{n: [v] * count for n, v in more.items()}})
        pq.write_table(table, directory / f"part-{number:03d}.parquet", row_group_size=7)
    return bodies


def test_every_row_once_whatever_step_is_killed(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "BATCH_ROWS", 16)
    bodies = write_table(tmp_path / "t")
    settings = PublishSettings(str(tmp_path / "t"), "T", marker="the end")
    ledger = str(tmp_path / "ledger")
    kills = iter([*STEPS[:3]] * 5 + ["marker", "intend", "send", "finish"])
    victim: str | None = next(kills)
    report: PublishReport | None = None
    while report is None:

        def step(name: str, victim: str | None = victim) -> None:
            if name == victim:
                raise _Killed

        try:
            report = publish(settings, connection(mq), ledger, step=step)
        except _Killed:
            victim = next(kills, None)
    found = messages(mq)
    ends = [row for row in found if row["value"] == b"the end"]
    sent = [row for row in found if row["value"] != b"the end"]
    assert Counter(row["value"] for row in sent) == Counter(bodies)
    # Each queue's rows are in the table's order, the marker is the last, and says how many.
    for queue in range(3):
        own = [row for row in found if row["partition"] == queue]
        assert [row["value"] for row in own[:-1]] == bodies[queue::3]
        assert own[-1]["properties"]["PUBLISHED_MARKER"] == "70"
    assert len(ends) == 3
    assert sent[0]["key"] == b"k" + sent[0]["value"]
    names = {row["properties"][PUBLISHED_AS] for row in sent}
    assert len(names) == 70
    assert all(row["uniqueKey"] == row["properties"][PUBLISHED_AS] for row in found)
    assert sum(high - low + 1 for low, high in report.queues.values()) == 73
    # A publication that has ended sends nothing more.
    again = publish(settings, connection(mq), ledger)
    assert (again.sent, again.rows) == (0, 70)
    assert again.queues == report.queues
    assert len(messages(mq)) == 73


def test_sends_whose_answers_are_lost(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "BATCH_ROWS", 16)
    bodies = write_table(tmp_path / "t")
    send, lost = Producer.send, iter([True, False, True, True] * 3)

    async def unsure(self: Producer, *args: Any, **more: Any) -> Any:
        result = await send(self, *args, **more)
        if next(lost, False):
            raise RemotingError("the answer did not arrive")
        return result

    monkeypatch.setattr(Producer, "send", unsure)
    report = publish(
        PublishSettings(str(tmp_path / "t"), "T"), connection(mq), str(tmp_path / "ledger")
    )
    assert Counter(row["value"] for row in messages(mq)) == Counter(bodies)
    assert report.sent == 70


@pytest.mark.parametrize("kind", [RemotingSendRequestError, RemotingTimeoutError, RemotingError])
def test_a_send_that_is_carried_out_late_is_there_once(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[RemotingError]
) -> None:
    """The broker has read it when its connection breaks, and stores it within its time-out."""
    bodies = write_table(tmp_path / "t", (9,))
    send, late, waited = Producer.send, list[Callable[[], Awaitable[Any]]](), list[float]()
    breaks = iter([True])

    async def break_first(self: Producer, *args: Any, **more: Any) -> Any:
        if next(breaks, False):
            late.append(partial(send, self, *args, **more))
            raise kind("closed before the response")
        return await send(self, *args, **more)

    async def let_pass(_: ExactSender, seconds: float) -> None:
        waited.append(seconds)
        while late:
            await late.pop()()

    monkeypatch.setattr(Producer, "send", break_first)
    monkeypatch.setattr(ExactSender, "_let_pass", let_pass)
    settings = PublishSettings(str(tmp_path / "t"), "T")
    publish(settings, connection(mq), str(tmp_path / "ledger"))
    assert not late
    assert waited == [5.0]
    assert Counter(row["value"] for row in messages(mq)) == Counter(bodies)


def test_what_a_killed_run_had_sent_may_arrive_late(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = write_table(tmp_path / "t", (1,))
    settings, ledger = PublishSettings(str(tmp_path / "t"), "T"), str(tmp_path / "ledger")
    late, waited = list[tuple[Any, dict[str, Any]]](), list[float]()

    async def be_killed(_: Producer, *args: Any, **more: Any) -> None:
        late.append((args, more))
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send", be_killed)
        with pytest.raises(RuntimeError, match="killed"):
            publish(settings, connection(mq), ledger)
    assert len(late) == 1

    async def let_pass(self: ExactSender, seconds: float) -> None:
        waited.append(seconds)
        while late:
            args, more = late.pop()
            await self._producer.send(*args, **more)

    monkeypatch.setattr(ExactSender, "_let_pass", let_pass)
    report = publish(settings, connection(mq), ledger)
    assert not late
    assert (report.sent, report.already) == (0, 1)
    assert all(0 < seconds <= 5 for seconds in waited)
    assert Counter(row["value"] for row in messages(mq)) == Counter(bodies)


def test_a_send_without_a_connection_is_not_waited_for(
    mq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    bodies = write_table(tmp_path / "t", (9,))
    send, failures = Producer.send, iter([RemotingConnectError, RemotingTooMuchRequestError])

    async def fail_first(self: Producer, *args: Any, **more: Any) -> Any:
        kind = next(failures, None)
        if kind is not None:
            raise kind("nothing was sent")
        return await send(self, *args, **more)

    monkeypatch.setattr(Producer, "send", fail_first)
    settings = PublishSettings(str(tmp_path / "t"), "T")
    publish(settings, connection(mq), str(tmp_path / "ledger"))
    assert waits == []
    assert Counter(row["value"] for row in messages(mq)) == Counter(bodies)


def test_what_is_appended_and_not_shown_yet_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dispatch=spark; the dispatcher comes only when a second run has asked for the end."""
    bodies = write_table(tmp_path / "t", (20,))
    settings = PublishSettings(str(tmp_path / "t"), "T")
    ledger = str(tmp_path / "ledger")
    with EmbeddedBroker({"dispatch": "spark"}) as mq, ExitStack() as later:
        with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            admin.create_topic("T", queue_nums=2, cluster="DefaultCluster")

        def step(name: str) -> None:
            if name == "finish":
                raise _Killed

        with pytest.raises(_Killed):
            publish(settings, connection(mq), ledger, step=step)
        impatient = replace(connection(mq), delivery_timeout_ms=300)
        with pytest.raises(MQClientError, match="shows messages up to 0, its log has them up to"):
            publish(settings, impatient, ledger)
        end, ends = ExactSender._end, []

        async def ask(self: ExactSender, queue: Any) -> int:
            ends.append(await end(self, queue))
            if len(ends) == 2:
                later.enter_context(dispatcher(str(mq.store_dir)))
            return ends[-1]

        monkeypatch.setattr(ExactSender, "_end", ask)
        report = publish(settings, connection(mq), ledger)
        assert (report.sent, report.already) == (0, 20)
        assert Counter(row["value"] for row in messages(mq)) == Counter(bodies)


def test_the_version_of_the_first_run_is_sent(mq: Any, make_store: Any, tmp_path: Path) -> None:
    store = make_store(tmp_path / "broker")
    for number in range(5):
        store.append("old", 0, b"%d" % number, tags="x", keys=f"k{number}", properties={"a": "b"})
    lake = tmp_path / "lake"
    export(InProcess(), str(store.root), str(lake), ExportSettings("delta"))
    store.append("old", 0, b"later")
    export(InProcess(), str(store.root), str(lake), ExportSettings("delta"))
    with pytest.raises(OptionError, match=r"an export of several tables: name one of .*lake/old"):
        publish(PublishSettings(str(lake), "T"), connection(mq), str(tmp_path / "no"))
    settings = PublishSettings(str(lake / "old"), "T", as_of="0")
    report = publish(settings, connection(mq), str(tmp_path / "ledger"))
    assert (report.version, report.sent) == ("0", 5)
    found = sorted(messages(mq), key=lambda row: bytes(row["value"]))
    assert [row["value"] for row in found] == [b"%d" % number for number in range(5)]
    assert found[1]["tags"] == "x"
    assert found[1]["key"] == b"k1"
    assert found[1]["properties"]["a"] == "b"


def test_rows_without_bodies_are_json(mq: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "who": ["é", None]}), tmp_path / "part.parquet")
    settings = PublishSettings(str(tmp_path), "T", key="id")
    publish(settings, connection(mq), str(tmp_path / "ledger"))
    found = sorted(messages(mq), key=lambda row: bytes(row["key"]))
    assert [json.loads(row["value"]) for row in found] == [
        {"id": 1, "who": "é"}, {"id": 2, "who": None},
    ]  # fmt: skip
    assert [row["key"] for row in found] == [b"1", b"2"]


def test_it_waits_for_the_rate_and_for_a_group(mq: Any, tmp_path: Path) -> None:
    bodies = write_table(tmp_path / "t", (30,))
    pauses: list[float] = []
    settings = PublishSettings(str(tmp_path / "t"), "T", rate=0.001)

    def stop(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise _Killed

    slow = str(tmp_path / "slow")
    with pytest.raises(_Killed):
        publish(settings, connection(mq), slow, pause=stop, clock=lambda: 0.0)
    assert pauses == [1000.0, 2000.0, 3000.0]
    assert len(messages(mq)) == 3
    # A group that has not read those is behind; it catches up while the publication waits.
    with Admin(namesrv_addr=mq.namesrv_addr) as admin:
        admin.create_group("g", cluster="DefaultCluster")
        queues = admin.topic_queues("T")
        for queue in queues:
            admin.update_consume_offset("g", queue, 0)

        def catch_up(_: float) -> None:
            pauses.append(0)
            assert len(messages(mq)) == 3
            for queue in queues:
                admin.update_consume_offset("g", queue, admin.max_offset(queue))

        settings = PublishSettings(str(tmp_path / "t"), "T", group="g", max_lag=2)
        publish(settings, connection(mq), str(tmp_path / "paced"), pause=catch_up)
    assert pauses[3:] == [0]
    assert len(messages(mq)) == 3 + len(bodies)


def test_what_cannot_be_sent_is_named(mq: Any, tmp_path: Path) -> None:
    write_table(tmp_path / "t", (5, 5))
    settings = PublishSettings(str(tmp_path / "t"), "T")
    ledger = str(tmp_path / "ledger")

    def refused(match: str, kind: type[Exception] = OptionError, **more: str) -> None:
        given: dict[str, Any] = {"table": str(tmp_path / "t"), "topic": "T", **more}
        with pytest.raises(kind, match=match):
            publish(PublishSettings(**given), connection(mq), str(tmp_path / f"none{len(match)}"))

    refused("has no Parquet files", table=str(tmp_path / "nothing"))
    refused("which has no versions", as_of="3")
    refused("has no column 'x'", value="x")
    refused("there is no topic 'none'; make it first", topic="none")

    def step(name: str) -> None:
        if name == "send":
            raise _Killed

    with pytest.raises(_Killed):
        publish(settings, connection(mq), ledger, step=step)
    with pytest.raises(OptionError, match="was begun with topic='T', not 'U'"):
        publish(PublishSettings(str(tmp_path / "t"), "U"), connection(mq), ledger)
    write_table(tmp_path / "t", (5, 6))
    with pytest.raises(DataLossError, match=r"part-001.parquet: .* bytes, it had"):
        publish(settings, connection(mq), ledger)
    (tmp_path / "t" / "part-001.parquet").unlink()
    with pytest.raises(DataLossError, match="is gone"):
        publish(settings, connection(mq), ledger)
    assert messages(mq) == []
    pq.write_table(pa.table({"value": [b"x", b""]}), tmp_path / "t" / "part-000.parquet")
    refused("from row 0 on: row 1: the body is empty", RecordError)


def test_the_command(mq: Any, tmp_path: Path) -> None:
    write_table(tmp_path / "t", (5,))
    command = [
        "spark", "publish", "--from", str(tmp_path / "t"), "--topic", "T", "--namesrv",
        mq.namesrv_addr, "--ledger", str(tmp_path / "l"), "--marker", "end",
    ]  # fmt: skip
    done = CliRunner().invoke(oberth, [*command, "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["rows"], told["sent"], told["already"]) == (5, 5, 0)
    again = CliRunner().invoke(oberth, command)
    assert again.stdout.startswith("5 rows: 0 sent, 0 had arrived before, 5 by earlier runs")
    assert len(messages(mq)) == 8


LONG = "订" * 30
TAGS = [
    "",
    "red",
    "two words",
    "a=b/c%d",
    "é",
    NULL_VALUE,
    LONG,
    unquote(directory_of("", LONG)[1:]),
]
PARTITIONS = [(), ("tags",), ("tags", "key"), ("day=date(timestamp)", "label=tags")]


@pytest.mark.parametrize("seed", [31, 32])
@pytest.mark.parametrize("form", ["parquet", "delta", "iceberg"])
def test_any_table_of_an_export_is_sent_as_the_store_has_it(
    mq: Any, make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, seed: int
) -> None:
    """Columns that only directories say, and tables whose joining of files was killed."""
    rng = random.Random(f"{seed} {form}")
    for number, partitions in enumerate(PARTITIONS):
        store = make_store(tmp_path / f"broker-{number}")
        lake = tmp_path / f"lake-{number}"
        sent = []
        for _ in range(3):
            for _ in range(rng.randrange(5, 30)):
                tag, key = rng.choice(TAGS), f"k{rng.randrange(3)}"
                body = b"%d" % rng.getrandbits(40)
                time = 1_700_000_000_000 + rng.randrange(10) * 40_000_000
                store.append("A", rng.randrange(2), body, tags=tag, keys=key, time=time)
                sent.append((tag or None, key.encode(), body))
            settings = ExportSettings(form, partition_by=partitions)
            export(InProcess(), str(store.root), str(lake), settings)
        real, left = os.unlink, [rng.randrange(3)]

        def unlink(path: Any, left: list[int] = left, real: Any = real, **more: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise _Killed
            real(path, **more)

        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", unlink)
            try:
                compact(str(lake), 64 << 20)
            except _Killed:
                assert form == "parquet"
        topic = f"sent-{number}"
        with Admin(namesrv_addr=mq.namesrv_addr) as admin:
            admin.create_topic(topic, queue_nums=2, cluster="DefaultCluster")
        settings_ = PublishSettings(str(lake / "A"), topic)
        report = publish(settings_, connection(mq), str(tmp_path / f"ledger-{number}"))
        assert report.rows == len(sent), partitions
        found = [(row["tags"], row["key"], row["value"]) for row in messages(mq, topic)]
        assert Counter(found) == Counter(sent), partitions


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_rows_of_another_engines_partitions_are_whole(mq: Any, tmp_path: Path, form: str) -> None:
    import deltalake

    years, labels = [2025, None, 2026, 2026], ["a b", "x%2Fy/z", None, "é"]
    paid = [True, False, None, True]
    table = pa.table({"year": years, "paid": paid, "label": labels, "id": [1, 2, 3, 4]})
    names = ["year", "paid", "label"]
    root = tmp_path / "table"
    if form == "delta":
        deltalake.write_deltalake(str(root), table, partition_by=names)
        deltalake.write_deltalake(str(root), table, partition_by=names, mode="append")
    else:
        pq.write_to_dataset(table, root, partition_cols=names)
        (root / "_temporary" / "0").mkdir(parents=True)
        pq.write_table(table, root / "_temporary" / "0" / "part.parquet")
    publish(PublishSettings(str(root), "T", key="label"), connection(mq), str(tmp_path / "l"))
    found = [json.loads(row["value"]) for row in messages(mq)]
    times = 2 if form == "delta" else 1
    expected = table.to_pylist() * times
    if form != "delta":  # names of directories are text
        for row in expected:
            row["year"] = None if row["year"] is None else str(row["year"])
            row["paid"] = None if row["paid"] is None else str(row["paid"]).lower()
    assert sorted(found, key=lambda row: row["id"]) == sorted(expected, key=lambda row: row["id"])
    assert {row["key"] for row in messages(mq)} == {b"a b", b"x%2Fy/z", None, "é".encode()}


def test_files_that_are_not_their_tables_rows_are_refused(
    mq: Any, make_store: Any, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "broker")
    store.append("A", 0, b"x")
    for form in ("delta", "iceberg"):
        export(InProcess(), str(store.root), str(tmp_path / form), ExportSettings(form))
    protocol = {
        "minReaderVersion": 3, "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"],
    }  # fmt: skip
    log = tmp_path / "delta" / "A" / "_delta_log"
    (log / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(OptionError, match="uses deletionVectors, so its files are not its rows"):
        publish(PublishSettings(str(tmp_path / "delta" / "A"), "T"), connection(mq), str(log))
    lake = {"path": str(store.root), "lake": str(tmp_path / "delta")}
    with pytest.raises(OptionError, match="uses deletionVectors"):
        list(read_rows(lake, "value"))
    deleted = SimpleNamespace(delete_files=["x"], file=None)
    with pytest.raises(OptionError, match="has deleted rows"):
        whole_files([deleted], "somewhere")
    # A commit that was killed leaves a version that its catalog does not know.
    [first, *_, last] = sorted((tmp_path / "iceberg" / "A" / "metadata").glob("*.metadata.json"))
    assert first != last
    shutil.copy(first, last.with_name("99999-killed.metadata.json"))
    settings = PublishSettings(str(tmp_path / "iceberg" / "A"), "T")
    assert publish(settings, connection(mq), str(tmp_path / "ledger")).sent == 1


def test_of_an_iceberg_table_only_a_version_that_counts_is_sent(
    make_store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata without the export whose catalog it is of, under the names that tables have."""
    store = make_store(tmp_path / "broker")
    lake, versions = tmp_path / "lake", []
    for _ in range(2):
        store.append("A", 0, b"x")
        export(InProcess(), str(store.root), str(lake), ExportSettings("iceberg"))
        versions.append(max((lake / "A" / "metadata").glob("*.metadata.json")))
    alone = tmp_path / "alone" / "A"
    (alone / "metadata").mkdir(parents=True)

    def name(old: str, new: str) -> list[str]:
        for path in (alone / "metadata").iterdir():
            path.unlink()
        begun = "99999999-1234-4abc-8def-0123456789ab.metadata.json"
        for made, source in ((old, versions[0]), (new, versions[1]), (begun, versions[0])):
            shutil.copy(source, alone / "metadata" / made)
        version, files = backfill.open_table(str(alone), as_of, {})[1:]
        assert version == as_of or not as_of
        return [file.path for file in files]

    as_of = ""
    assert len(name("v9.metadata.json", "v10.metadata.json")) == 2
    assert len(name("v9.gz.metadata.json", "v10.metadata.json")) == 2
    named = ("99999-a.metadata.json", "100000-b.metadata.json")
    with pytest.raises(OptionError, match=r"a table of a catalog.*name a snapshot with --as-of"):
        name(*named)
    as_of = str(json.loads(versions[1].read_text())["current-snapshot-id"])
    assert len(name(*named)) == 2
    monkeypatch.setattr(
        "oberth.spark.storage.file_system",
        lambda *_: SubTreeFileSystem(str(tmp_path), LocalFileSystem()),
    )
    with pytest.raises(OptionError, match="is an Iceberg table that is no export; read it with"):
        backfill.open_table("s3://alone/A", "", {})
