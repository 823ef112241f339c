"""The pipelines that `kills` kills, each with what is true of its result at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

POLL_S = 0.1
#: Messages of the pipelines that ask or send one by one.
LETTERS_LIVE = 1_000
#: Longer than a broker keeps the claim of a redrive that was killed.
CLAIM_S = 61.0
SENT_FOLLOWED = 2_000
SEND_TRIES_MAX = 600
SEND_MAX_S = 600.0
SEND_TOGETHER = 50
"""So many are sent in a row, and then nothing for a moment: batches come while there are kills."""

LOAD = """
import sys
from oberth.spark.runtime import build_session
master, source, target = sys.argv[1:4]
spark = build_session(master, quick=True, config=dict(c.split("=", 1) for c in sys.argv[4:]))
rows = spark.read.format("rocketmq").option("minPartitions", "4").load(source)
rows = rows.selectExpr("'load' as topic", "value", "key", "partition")
rows.write.format("rocketmq").mode("append").option("path", target).option("loadId", "1").save()
"""
SINK = """
import sys
from oberth.spark.runtime import build_session
master, source, address = sys.argv[1:4]
spark = build_session(master, quick=True, config=dict(c.split("=", 1) for c in sys.argv[4:]))
rows = spark.read.format("rocketmq").option("minPartitions", "4").load(source)
rows = rows.selectExpr("'sink' as topic", "value", "key")
rows.write.format("rocketmq").mode("append").option("rocketmq.namesrv.addr", address) \\
    .option("rocketmq.timeout", "1s").save()
"""

BULK_LOAD = """
import sys
from oberth.spark.pipelines.bulk_load import load
from oberth.spark.runtime import build_session
master, source, target = sys.argv[1:4]
spark = build_session(master, quick=True, config=dict(c.split("=", 1) for c in sys.argv[4:]))
rows = spark.read.format("rocketmq").option("minPartitions", "4").load(source)
load(rows.selectExpr("'load' as topic", "value", "key", "partition"), target, {"loadId": "1"})
"""
STREAM = """
import sys
from oberth.spark.runtime import build_session
master, address, topic, out, kind = sys.argv[1:6]
spark = build_session(master, quick=True, config=dict(c.split("=", 1) for c in sys.argv[6:]))

def to_delta(rows, number):
    from deltalake import DeltaTable, transaction, write_deltalake
    path = out + "/table"
    if DeltaTable.is_deltatable(path):
        done = DeltaTable(path).transaction_version("drill")
        if done is not None and done >= number:
            return
    once = transaction.CommitProperties(app_transactions=[transaction.Transaction("drill", number)])
    write_deltalake(path, rows.toArrow(), mode="append", commit_properties=once)

def to_iceberg(rows, number):
    from pyiceberg.catalog.sql import SqlCatalog
    arrow = rows.toArrow()
    catalog = SqlCatalog("drill", uri="sqlite:///" + out + "/catalog.db", warehouse="file://" + out)
    catalog.create_namespace_if_not_exists("drill")
    table = catalog.create_table_if_not_exists(("drill", "table"), schema=arrow.schema)
    if not any(s.summary.get("drill.batch") == str(number) for s in table.snapshots()):
        table.append(arrow, snapshot_properties={"drill.batch": str(number)})

rows = spark.readStream.format("rocketmq").option("rocketmq.namesrv.addr", address) \\
    .option("subscribe", topic).option("startingOffsets", "earliest") \\
    .option("maxOffsetsPerTrigger", "300").load().select("key")
rows.writeStream.foreachBatch({"delta": to_delta, "iceberg": to_iceberg}[kind]) \\
    .option("checkpointLocation", out + "/checkpoint") \\
    .trigger(processingTime="200 milliseconds").start().awaitTermination()
"""


class Place:
    """What all rounds share: a source, where Spark runs, and a directory."""

    def __init__(self, root: Path, rows: int, seed: int, spark: list[str]) -> None:
        from benchmarks.spark.stores import build

        self.root = root
        self.rows = rows
        self.master, *self.confs = spark
        self.workers: list[int] = []  # processes whose children are executors
        self.source = root / "source"
        build(self.source, rows, 200, seed)
        self.keys = Counter(f"k{number}" for number in range(rows))

    def command(self, *arguments: str) -> list[str]:
        """A command of `oberth spark` on this place's Spark."""
        confs = [part for conf in self.confs for part in ("--conf", conf)]
        return [
            sys.executable,
            "-m",
            "oberth",
            "spark",
            *arguments,
            "--master",
            self.master,
            *confs,
        ]

    def script(self, text: str, *arguments: str) -> list[str]:
        """A program on this place's Spark."""
        return [sys.executable, "-c", text, self.master, *arguments, *self.confs]


class Pipeline(ABC):
    """One pipeline. A round: ``begin``, the command as often as needed, ``check``."""

    name = ""
    at_least_once = False
    victims: tuple[str, ...] = ("driver", "worker", "executor")

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def begin(self, out: Path) -> list[str]:
        """Makes what the round needs; gives the command."""

    def ended(self, out: Path) -> bool:
        """Whether a command that runs on is done."""
        return False

    @abstractmethod
    def keys(self, out: Path) -> Counter[str]:
        """The messages in the result, by key."""

    @property
    def expected(self) -> Counter[str]:
        """The messages that have to be in the result, by key."""
        return self.place.keys

    def check(self, out: Path) -> str:
        """What is wrong with the result, or ""."""
        found, expected = self.keys(out), self.expected
        missing, more = expected - found, found - expected
        if missing or (more and not self.at_least_once) or found.keys() - expected.keys():
            return f"{len(missing)} missing, {len(more)} too much"
        return ""

    def revive(self) -> None:  # noqa: B027 - only one with a broker has something to start
        """Starts the broker again."""

    def wait_until_free(self) -> None:  # noqa: B027 - most leave nothing
        """Waits for what a run that was killed keeps others out with."""

    def broker(self) -> int:
        """The broker's process, 0 for none."""
        return 0

    def drivers(self, command: int, below: Mapping[int, str]) -> list[int]:
        """The processes that are the driver, of the command's and those below it."""
        return [command]

    def strike_broker(self, command: int) -> bool:
        """Kills the broker and starts it again; whether there was one."""
        if not self.broker():
            return False
        self.revive()
        return True

    def close(self) -> None:  # noqa: B027 - most need no end
        """Ends what the pipeline needs."""


class Export(Pipeline):
    """To Parquet, Delta and Iceberg."""

    kind = ""
    topic = "load"

    def begin(self, out: Path) -> list[str]:
        """A new directory of tables."""
        return self.place.command(
            "export", str(self.place.source), "--into", str(out), "--format", self.kind
        )

    def keys(self, out: Path) -> Counter[str]:
        """By another reader than the writer."""
        import duckdb

        if self.kind == "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            from oberth.spark.pipelines.export.iceberg import NAMESPACE

            catalog = SqlCatalog(NAMESPACE, uri=f"sqlite:///{out}/catalog.db")
            tables = [t for space in catalog.list_namespaces() for t in catalog.list_tables(space)]
            columns = [catalog.load_table(table).scan().to_arrow()["key"] for table in tables]
            return Counter(bytes(key).decode() for each in columns for key in each.to_pylist())
        if self.kind == "delta":
            from deltalake import DeltaTable

            table = DeltaTable(str(out / self.topic)).to_pyarrow_table(columns=["key"])
            rows = duckdb.from_arrow(table).project("key").fetchall()
        else:
            files = str(out / self.topic / "**" / "*.parquet")
            rows = duckdb.read_parquet(files).project("key").fetchall()
        return Counter(bytes(key).decode() for (key,) in rows)


class Parquet(Export):
    """Parquet."""

    name, kind = "export-parquet", "parquet"


class Delta(Export):
    """Delta."""

    name, kind = "export-delta", "delta"


class Iceberg(Export):
    """Iceberg."""

    name, kind = "export-iceberg", "iceberg"


def _store_keys(root: Path, topic: str) -> Counter[str]:
    """The messages that the queues of a store show, without Spark; verified."""
    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.verify import verify

    with StoreReader(root) as reader:
        damage = [f for f in verify(reader).findings if str(f.severity) == "damage"]
        if damage:
            return Counter({f"{len(damage)} findings, first: {damage[0]}": 1})
        return Counter(m.keys for m in reader.messages() if m.topic == topic and m.keys)


class Load(Pipeline):
    """A bulk load with an id, so that one that came through is not written again."""

    name = "load"

    def begin(self, out: Path) -> list[str]:
        """A store that is not there."""
        return self.place.script(LOAD, str(self.place.source), str(out))

    def keys(self, out: Path) -> Counter[str]:
        """Of the store."""
        return _store_keys(out, "load")


class BulkLoad(Load):
    """The same, placed by tasks too."""

    name = "bulk-load"

    def begin(self, out: Path) -> list[str]:
        """A store that is not there."""
        return self.place.script(BULK_LOAD, str(self.place.source), str(out))


class Import(Pipeline):
    """The store of an exact export, byte for byte."""

    name = "import"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._export = place.root / "exact"
        source = str(place.source)
        exact = place.command("export", source, "--into", str(self._export), "--exact")
        subprocess.run(exact, check=True, capture_output=True)

    def begin(self, out: Path) -> list[str]:
        """A store that is not there."""
        return self.place.command("import", str(self._export), "--into", str(out))

    def keys(self, out: Path) -> Counter[str]:
        """Of the store."""
        for path in sorted((self.place.source / "commitlog").iterdir()):
            if path.read_bytes() != (out / "commitlog" / path.name).read_bytes():
                return Counter({f"{path.name} differs": 1})
        return _store_keys(out, "load")


class Follow(Pipeline):
    """Dispatch of a log by a query that follows it."""

    name = "follow"

    def begin(self, out: Path) -> list[str]:
        """A store of a log alone."""
        shutil.copytree(self.place.source / "commitlog", out / "commitlog")
        return self.place.command("dispatch", str(out), "--follow")

    def ended(self, out: Path) -> bool:
        """Every message has a unit."""
        from oberth.spark.options import parse_read_options
        from oberth.spark.plan import open_stores

        [store] = open_stores(parse_read_options({"path": str(out)}, streaming=False)).files
        try:
            ends = [store.queue("load", queue).bounds()[1] for queue in store.queue_ids("load")]
        except (OSError, LookupError):
            return False
        return sum(ends) >= self.place.rows

    def keys(self, out: Path) -> Counter[str]:
        """Of the store."""
        return _store_keys(out, "load")


class _Live(Pipeline):
    """Has two brokers; the one that is killed shares no process with the name server."""

    victims = (*Pipeline.victims, "broker")

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        from tests.rigs.clusters import OberthCluster

        self._acknowledged: list[str] = []
        self._sender = threading.Thread()
        self._cluster = OberthCluster(place.root / f"{self.name}-brokers", brokers=2)
        self._cluster.start()

    @property
    def broker_names(self) -> list[str]:
        """Of both."""
        return [node.name for node in self._cluster.brokers]

    def broker(self) -> int:
        """The broker's process."""
        process = self._cluster.brokers[1]._process
        return process.pid if process is not None else 0

    def revive(self) -> None:
        """The same files, the same port."""
        self._cluster.brokers[1].kill()
        time.sleep(1)
        self._cluster.start()

    def close(self) -> None:
        """Ends the servers."""
        self._cluster.kill()

    def _start_sending(self, namesrv: str, topic: str) -> None:
        """Begins to send in a thread."""
        self._acknowledged = []
        self._sender = threading.Thread(target=self._sends, args=(namesrv, topic), daemon=True)
        self._sender.start()

    def _sends(self, namesrv: str, topic: str) -> None:
        """Sends one after the other; a failure is tried again, as an application would."""
        from oberth.client import Message
        from oberth.client.blocking import Producer
        from oberth.errors import OberthError

        with Producer("drill", namesrv_addr=namesrv) as producer:
            for number in range(min(SENT_FOLLOWED, self.place.rows)):
                if number % SEND_TOGETHER == 0:
                    time.sleep(POLL_S)
                for _ in range(SEND_TRIES_MAX):
                    try:
                        producer.send(Message(topic, b"followed", keys=f"k{number}"))
                    except (OberthError, OSError):
                        time.sleep(POLL_S)
                        continue
                    self._acknowledged.append(f"k{number}")
                    break

    def _end_sending(self) -> None:
        if self._sender.ident is not None:
            self._sender.join(SEND_MAX_S)

    def _send(self, rows: Any) -> None:
        """Sends a record batch."""
        from oberth.spark.live_sink import send_rows
        from oberth.spark.write_options import parse_live_write_options

        where = {"rocketmq.namesrv.addr": self._cluster.namesrv_addr}
        send_rows(iter([rows]), parse_live_write_options(where), "")

    def _read(self, topic: str) -> Counter[str]:
        from oberth.spark.pipelines.views import read_rows

        where = {"rocketmq.namesrv.addr": self._cluster.namesrv_addr, "subscribe": topic}
        return Counter(
            bytes(key).decode()
            for batch in read_rows(where, "key")
            for key in batch.column(0).to_pylist()
        )

    def _forget(self, topic: str) -> None:
        """The topic begins anew."""
        from oberth.client.blocking import Admin

        with Admin(namesrv_addr=self._cluster.namesrv_addr) as admin:
            admin.delete_topic(topic, "DefaultCluster")
            admin.create_topic(topic, queue_nums=8, cluster="DefaultCluster")


class Sink(_Live):
    """Rows sent to a live topic: at least once, as documented."""

    name = "sink"
    at_least_once = True

    def begin(self, out: Path) -> list[str]:
        """An empty topic."""
        self._forget("sink")
        return self.place.script(SINK, str(self.place.source), self._cluster.namesrv_addr)

    def keys(self, out: Path) -> Counter[str]:
        """Of the topic."""
        return self._read("sink")


class _LiveExport(Export, _Live):
    """A topic of two brokers as a table; one of them is killed, too."""

    def __init__(self, place: Place) -> None:
        _Live.__init__(self, place)
        import pyarrow as pa

        self._forget(self.topic)
        names = list(place.keys)
        rows = {"topic": [self.topic] * len(names), "value": [b"live"] * len(names), "key": names}
        self._send(pa.RecordBatch.from_pydict(rows))

    def begin(self, out: Path) -> list[str]:
        """A new directory of tables."""
        return self.place.command(
            "export", "--namesrv", self._cluster.namesrv_addr, "--into", str(out),
            "--topic", self.topic, "--format", self.kind,
            "--option", f"rocketmq.brokers={','.join(self.broker_names)}",
        )  # fmt: skip


class LiveParquet(_LiveExport):
    """Parquet."""

    name, kind = "export-live-parquet", "parquet"


class LiveDelta(_LiveExport):
    """Delta."""

    name, kind = "export-live-delta", "delta"


class LiveIceberg(_LiveExport):
    """Iceberg."""

    name, kind = "export-live-iceberg", "iceberg"


def _make_letters(root: Path, names: list[str], topic: str) -> None:
    """Dead letters of a topic, one for each name, in a new store."""
    import pyarrow as pa

    from oberth.spark.load import StoreLoader
    from oberth.spark.load_plan import work_directory
    from oberth.spark.sink import stage
    from oberth.spark.write_options import parse_write_options

    options = parse_write_options({"path": str(root), "uniqueKeys": "true"})
    rows = pa.record_batch(
        {
            "topic": ["%DLQ%g"] * len(names),
            "value": [b"letter"] * len(names),
            "key": names,
            "properties": pa.array(
                [[("DLQ_ORIGIN_TOPIC", topic), ("DLQ_ORIGIN_MESSAGE_ID", n)] for n in names],
                pa.map_(pa.string(), pa.string()),
            ),
        }
    )
    work = work_directory(str(root), "letters")
    StoreLoader(options).commit([stage(iter([rows]), options, work)], work)


class Redrive(Pipeline):
    """Dead letters of a store written to their origin topic in another."""

    name = "redrive"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._letters = place.root / "letters"
        _make_letters(self._letters, list(place.keys), "load")

    def begin(self, out: Path) -> list[str]:
        """A store that is not there."""
        return self.place.command("redrive", str(self._letters), "--into", str(out))

    def keys(self, out: Path) -> Counter[str]:
        """Of the store."""
        return _store_keys(out, "load")


class LiveRedrive(_Live):
    """Dead letters of a store sent to their origin topic: at least once, as documented."""

    name = "redrive-live"
    at_least_once = True

    @property
    def expected(self) -> Counter[str]:
        """Few: the brokers are asked for each letter."""
        return Counter(dict(list(self.place.keys.items())[:LETTERS_LIVE]))

    def wait_until_free(self) -> None:
        """A redrive that was killed keeps the others out for a minute."""
        time.sleep(CLAIM_S)

    def begin(self, out: Path) -> list[str]:
        """A topic that no broker ever knew, for their index keeps what a deleted one had."""
        self._forget(out.name)
        _make_letters(out, list(self.expected), out.name)
        return self.place.command("redrive", str(out), "--namesrv", self._cluster.namesrv_addr)

    def keys(self, out: Path) -> Counter[str]:
        """Of the topic."""
        return self._read(out.name)


class FollowedBroker(_Live):
    """A broker that leaves its dispatch to a query, while messages are sent to it.

    What was acknowledged has to be in a queue, and the store has to verify. A message that was sent
    again because its answer was lost may be there twice.
    """

    name = "follow-broker"
    at_least_once = True

    def __init__(self, place: Place) -> None:
        from tests.rigs.clusters import OberthCluster

        super().__init__(place)
        self._followed: OberthCluster | None = None

    @property
    def expected(self) -> Counter[str]:
        """What was acknowledged."""
        return Counter(self._acknowledged)

    def begin(self, out: Path) -> list[str]:
        """A new broker, and somebody who sends to it."""
        from tests.rigs.clusters import OberthCluster

        from oberth.client.blocking import Admin

        self._end()
        namesrv = self._cluster.namesrv_addr
        conf = {"dispatch": "spark", "brokerName": out.name, "brokerClusterName": out.name}
        followed = OberthCluster(out, conf, namesrv_addr=namesrv)
        self._followed = followed
        followed.start()
        with Admin(namesrv_addr=namesrv) as admin:
            admin.create_topic(f"to-{out.name}", queue_nums=4, cluster=out.name)
        self._start_sending(namesrv, f"to-{out.name}")
        return self.place.command("dispatch", str(followed.brokers[0].store), "--follow")

    def ended(self, out: Path) -> bool:
        """All is sent, and consumers are shown as much."""
        if self._sender.is_alive() or self._followed is None:
            return False
        from oberth.spark.options import parse_read_options
        from oberth.spark.plan import open_stores

        root = str(self._followed.brokers[0].store)
        [store] = open_stores(parse_read_options({"path": root}, streaming=False)).files
        try:
            topic = f"to-{out.name}"
            ends = [store.queue(topic, queue).bounds()[1] for queue in store.queue_ids(topic)]
        except (OSError, LookupError):
            return False
        return sum(ends) >= len(self._acknowledged)

    def broker(self) -> int:
        """The broker that is followed."""
        node = self._followed.brokers[0] if self._followed is not None else None
        return node.pid if node is not None and node.running else 0

    def revive(self) -> None:
        """The same files, the same port."""
        assert self._followed is not None
        self._followed.kill()
        time.sleep(1)
        self._followed.start()

    def keys(self, out: Path) -> Counter[str]:
        """Of the queues of the store, once its broker has stopped."""
        assert self._followed is not None
        self._followed.stop()
        return _store_keys(self._followed.brokers[0].store, f"to-{out.name}")

    def _end(self) -> None:
        if self._followed is not None:
            self._followed.kill()
        self._end_sending()

    def close(self) -> None:
        """Ends the servers."""
        self._end()
        super().close()


class Publish(_Live):
    """A Delta table sent to a topic, without Spark."""

    name = "publish"
    victims = ("driver", "broker")

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._table = place.root / "published"
        export = ("export", str(place.source), "--into", str(self._table), "--format", "delta")
        subprocess.run(place.command(*export), check=True, capture_output=True)

    def begin(self, out: Path) -> list[str]:
        """An empty topic, and an empty ledger."""
        self._forget(out.name)
        return [
            sys.executable, "-m", "oberth", "spark", "publish", "--from", str(self._table / "load"),
            "--topic", out.name, "--namesrv", self._cluster.namesrv_addr, "--ledger", str(out),
            "--option", "rocketmq.timeout=1s",
        ]  # fmt: skip

    def keys(self, out: Path) -> Counter[str]:
        """Of the topic."""
        return self._read(out.name)


class _Fed(_Live):
    """A table of a topic to which messages are sent meanwhile: it has what the topic has, once.

    A message that was sent again because its answer was lost may be in the topic twice.
    """

    kind = ""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._log: Counter[str] | None = None

    def begin(self, out: Path) -> list[str]:
        """An empty topic, and somebody who sends to it."""
        self._end_sending()
        self._log = None
        out.mkdir()
        self._forget(out.name)
        self._start_sending(self._cluster.namesrv_addr, out.name)
        return self.start(out)

    @abstractmethod
    def start(self, out: Path) -> list[str]:
        """The command."""

    @abstractmethod
    def taken(self, out: Path) -> int:
        """How many messages the tables are known to have."""

    def log(self, out: Path) -> Counter[str]:
        """What the topic has."""
        return self._read(out.name)

    def ended(self, out: Path) -> bool:
        """All is sent, and the tables have it."""
        if self._sender.is_alive():
            return False
        if self._log is None:
            self._log = self.log(out)
        return self.taken(out) >= sum(self._log.values())

    @property
    def expected(self) -> Counter[str]:
        """What the topic has."""
        return self._log or Counter()

    def check(self, out: Path) -> str:
        """Also: what was acknowledged is in the topic."""
        if lost := Counter(self._acknowledged) - self.expected:
            return f"{len(lost)} acknowledged and not in the topic"
        return super().check(out)

    def close(self) -> None:
        """Ends the servers."""
        self._end_sending()
        super().close()


class _Continuous(_Fed, Export):
    """`export --continuous` of live topics, which joins files, too."""

    def start(self, out: Path) -> list[str]:
        """See `_Fed`."""
        self.topic = out.name
        return self.place.command(
            "export", "--namesrv", self._cluster.namesrv_addr, "--into", str(out), "--topic",
            out.name, "--format", self.kind, "--continuous", "--interval", "0.1", "--compact", "8",
            "--expire", "1",
        )  # fmt: skip

    def taken(self, out: Path) -> int:
        """The end of the last batch that is done."""
        return _last_done(out)

    def keys(self, out: Path) -> Counter[str]:
        """By another reader than the writer."""
        return Export.keys(self, out)


def _last_done(into: Path) -> int:
    """Behind the last batch that all tables of an export have; 0 for none."""
    from oberth.spark.pipelines.export.ledger import Ledger
    from oberth.spark.pipelines.export.places import LocalPlace

    batch, done = Ledger(LocalPlace(str(into))).last_batch()
    if batch is None:
        return 0
    return batch.end if done else batch.start


class ContinuousDelta(_Continuous):
    """Delta."""

    name, kind = "continuous-delta", "delta"


class ContinuousIceberg(_Continuous):
    """Iceberg."""

    name, kind = "continuous-iceberg", "iceberg"


class _Stream(_Fed):
    """A streaming query over live topics, into a table that knows its batches by their numbers."""

    def start(self, out: Path) -> list[str]:
        """See `_Fed`."""
        where = (self._cluster.namesrv_addr, out.name, str(out), self.kind)
        return self.place.script(STREAM, *where)

    def taken(self, out: Path) -> int:
        """The offsets of the last batch that is committed."""
        try:
            numbers = [int(p.name) for p in (out / "checkpoint/commits").iterdir()
                       if p.name.isdigit()]  # fmt: skip
            if not numbers:
                return 0
            lines = (out / f"checkpoint/offsets/{max(numbers)}").read_text().splitlines()
        except FileNotFoundError:
            return 0
        offsets = json.loads(lines[-1]).get(out.name, {})
        return sum(end for queues in offsets.values() for end in queues.values())

    def keys(self, out: Path) -> Counter[str]:
        """Of the table."""
        if self.kind == "delta":
            from deltalake import DeltaTable

            column = DeltaTable(str(out / "table")).to_pyarrow_table(columns=["key"])["key"]
        else:
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog("drill", uri=f"sqlite:///{out}/catalog.db")
            column = catalog.load_table(("drill", "table")).scan().to_arrow()["key"]
        return Counter(bytes(key).decode() for key in column.to_pylist())


class StreamDelta(_Stream):
    """Delta."""

    name, kind = "stream-delta", "delta"


class StreamIceberg(_Stream):
    """Iceberg."""

    name, kind = "stream-iceberg", "iceberg"


class _UpLake(_Fed, Export):
    """`oberth up --lake`: driver, worker and executor are the lake's, the broker is `up` itself."""

    topic = "fed"

    def __init__(self, place: Place) -> None:
        Pipeline.__init__(self, place)
        self._acknowledged = []
        self._sender = threading.Thread()
        self._log = None
        self._ports = (0, 0)

    def close(self) -> None:
        """Ends the sender; each round ends its broker."""
        self._end_sending()

    def start(self, out: Path) -> list[str]:
        """See `_Fed`; what is sent waits for the broker."""
        return [
            sys.executable, "-m", "oberth", "up", "--store", str(out / "store"),
            "--port", str(self._ports[0]), "--namesrv-port", str(self._ports[1]),
            "--console-port", "-1", "--set", "grpcServerPort=-1",
            "--lake", str(out / "lake"), "--lake-format", self.kind,
        ]  # fmt: skip

    def begin(self, out: Path) -> list[str]:
        """A broker of its own, on ports that stay."""
        from tests.rigs.clusters import free_port

        self._end_sending()
        self._log = None
        self._ports = (free_port(also=(-2, 1)), free_port())
        self._start_sending(f"127.0.0.1:{self._ports[1]}", self.topic)
        return self.start(out)

    def log(self, out: Path) -> Counter[str]:
        """What the store has."""
        return _store_keys(out / "store", self.topic)

    def ended(self, out: Path) -> bool:
        """All is sent, and the tables have the log."""
        from oberth.store.offline.reader import StoreReader

        if self._sender.is_alive():
            return False
        with StoreReader(out / "store") as reader:
            end = reader.max_offset
        return _last_done(out / "lake") >= end

    def taken(self, out: Path) -> int:
        """See `ended`."""
        return _last_done(out / "lake")

    def check(self, out: Path) -> str:
        """Of the store, now that its broker has stopped."""
        self._log = self.log(out)
        return super().check(out)

    def keys(self, out: Path) -> Counter[str]:
        """By another reader than the writer."""
        return Export.keys(self, out / "lake")

    def drivers(self, command: int, below: Mapping[int, str]) -> list[int]:
        """The lake's process."""
        return [pid for pid, line in below.items() if "oberth spark export" in line]

    def strike_broker(self, command: int) -> bool:
        """Kills `up` alone; the round's command starts it again, and its lake has to end."""
        os.kill(command, signal.SIGKILL)
        return True


class UpDelta(_UpLake):
    """Delta."""

    name, kind = "lake-delta", "delta"


class UpIceberg(_UpLake):
    """Iceberg."""

    name, kind = "lake-iceberg", "iceberg"


PIPELINES: dict[str, type[Pipeline]] = {
    each.name: each
    for each in (
        Parquet, Delta, Iceberg, LiveParquet, LiveDelta, LiveIceberg, ContinuousDelta,
        ContinuousIceberg, StreamDelta, StreamIceberg, UpDelta, UpIceberg, Follow, FollowedBroker,
        Load, BulkLoad, Sink, Redrive, LiveRedrive, Publish, Import,
    )
}  # fmt: skip
