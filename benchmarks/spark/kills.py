"""Pipelines killed at random moments and run again: every message exactly once, or the documented words.

    python -m benchmarks.spark.kills [--count 20] [--seed N] [--only NAME,…] [--rows N] [--master URL | --cluster]

A round runs a pipeline as a command with fresh output, kills one of its processes at a random
moment of the time that an undisturbed run takes, and runs the command again until it ends well.
Then the result is read by something else: tables by DuckDB or PyIceberg, stores without Spark.

    victim      what dies
    driver      the command with its JVM and workers
    worker      one of Spark's Python workers
    executor    an executor's JVM; with local[N] that is the driver's
    broker      of the pipelines with live topics; it starts again a second later

`--cluster` starts a standalone master with two workers, for executors of their own. The log has
one line a round; the run ends with 1 if any round does not hold.
"""  # noqa: E501 - the first line

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

TRIES_MAX = 4
RUN_MAX_S = 600.0
_POLL_S = 0.1
#: A moment may come when the run is over already: then nothing was killed, and that round is extra.
ROUNDS_PER_KILL_MAX = 3
#: Messages of the pipelines that ask or send one by one.
LETTERS_LIVE = 1_000
SENT_FOLLOWED = 2_000
SEND_TRIES_MAX = 600

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

    def broker(self) -> int:
        """The broker's process, 0 for none."""
        return 0

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

        self._cluster = OberthCluster(place.root / f"{self.name}-brokers", brokers=2)
        self._cluster.start()

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
        self._acknowledged: list[str] = []
        self._sender = threading.Thread()

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
        self._acknowledged = []
        arguments = (namesrv, f"to-{out.name}")
        self._sender = threading.Thread(target=self._sends, args=arguments, daemon=True)
        self._sender.start()
        return self.place.command("dispatch", str(followed.brokers[0].store), "--follow")

    def _sends(self, namesrv: str, topic: str) -> None:
        """Sends one after the other; a failure is tried again, as an application would."""
        from oberth.client import Message
        from oberth.client.blocking import Producer
        from oberth.errors import OberthError

        with Producer("drill", namesrv_addr=namesrv) as producer:
            for number in range(SENT_FOLLOWED):
                for _ in range(SEND_TRIES_MAX):
                    try:
                        producer.send(Message(topic, b"followed", keys=f"k{number}"))
                    except (OberthError, OSError):
                        time.sleep(_POLL_S)
                        continue
                    self._acknowledged.append(f"k{number}")
                    break

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
        if self._sender.ident is not None:
            self._sender.join(RUN_MAX_S)

    def close(self) -> None:
        """Ends the servers."""
        self._end()
        super().close()


PIPELINES: dict[str, type[Pipeline]] = {
    each.name: each
    for each in (
        Parquet, Delta, Iceberg, LiveParquet, LiveDelta, LiveIceberg, Follow, FollowedBroker,
        Load, Sink, Redrive, LiveRedrive, Import,
    )
}  # fmt: skip


# Processes.


def _processes() -> dict[int, tuple[int, str]]:
    """Parent and command line of every process."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
                line = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            found[int(entry.name)] = (int(stat[1]), line.decode(errors="replace"))
    return found


def _below(*roots: int) -> dict[int, str]:
    """The processes below some, and those themselves, with their command lines."""
    every = _processes()
    below = {pid for pid in roots if pid in every}
    while more := {p for p, (parent, _) in every.items() if parent in below and p not in below}:
        below |= more
    return {pid: every[pid][1] for pid in below}


def _kill(*pids: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _strike(victim: str, driver: int, pipeline: Pipeline, rng: random.Random) -> str:
    """Kills a victim; says what it was, "" when there was none."""
    if victim == "driver":
        _kill(*_below(driver))
        return "driver"
    if victim == "broker":
        if pipeline.broker():
            pipeline.revive()
            return "broker"
        return ""
    word = "-m pyspark." if victim == "worker" else "CoarseGrainedExecutorBackend"
    below = _below(driver, *pipeline.place.workers)
    chosen = sorted(pid for pid, line in below.items() if word in line)
    if victim == "executor" and not chosen:
        chosen = sorted(pid for pid, line in below.items() if "SparkSubmit" in line)
    if not chosen:
        return ""
    _kill(rng.choice(chosen))
    return victim


def _run(
    pipeline: Pipeline,
    out: Path,
    command: list[str],
    log: Path,
    strike_s: float,
    victim: str,
    rng: random.Random,
) -> tuple[bool, str, float]:
    """Runs a command; whether it ended well, what was killed, how long it took."""  # fmt: skip
    began = time.monotonic()
    struck = ""
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent)
    try:
        while process.poll() is None:
            now = time.monotonic() - began
            # Where the victim is not there yet, as soon as it is: on a busy machine most of a run
            # is the start of its processes.
            if (
                victim
                and now >= strike_s
                and (struck := _strike(victim, process.pid, pipeline, rng))
            ):
                victim = ""
            elif pipeline.ended(out):
                process.send_signal(signal.SIGINT)
                process.wait(60)
                return True, struck, time.monotonic() - began
            elif now > RUN_MAX_S:
                return False, struck, now
            time.sleep(_POLL_S)
        return process.returncode == 0, struck, time.monotonic() - began
    finally:
        _kill(*_below(process.pid))
        process.wait()


def run_round(pipeline: Pipeline, number: int, victim: str, limit_s: float, seed: str) -> Any:
    """One round: a row of the log."""
    rng = random.Random(seed)
    out = pipeline.place.root / f"{pipeline.name}-{number}"
    log = pipeline.place.root / f"{pipeline.name}-{number}.log"
    strike_s = rng.uniform(0.0, limit_s)
    command = pipeline.begin(out)
    done, struck, took_s = _run(pipeline, out, command, log, strike_s, victim, rng)
    tries = 1
    while not done and tries < TRIES_MAX:
        done, _, _ = _run(pipeline, out, command, log, 0.0, "", rng)
        tries += 1
    wrong = pipeline.check(out) if done else f"no end after {tries} runs, see {log}"
    if not wrong:
        shutil.rmtree(out, ignore_errors=True)
    return {
        "pipeline": pipeline.name, "round": number, "victim": struck, "at_s": round(strike_s, 1),
        "runs": tries, "s": round(took_s, 1), "wrong": wrong,
    }  # fmt: skip


@contextmanager
def standalone(scratch: Path) -> Iterator[tuple[str, list[int]]]:
    """A standalone master with two workers of one core: its URL and the workers' processes."""
    from oberth.spark.runtime import find_java, quick_spark_home

    home, java = quick_spark_home(), find_java().home
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(java),
        "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    url = f"spark://127.0.0.1:{port}"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> None:
        command = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{name}"]
        local = ["--host", "127.0.0.1", "--webui-port", "0"]
        with (scratch / "cluster.log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [*command, *local, *arguments], env=environment, stdout=log, stderr=log,
                    cwd=scratch,
                )
            )  # fmt: skip

    try:
        start("master.Master", "--port", str(port))
        for number in range(2):
            directory = ("-d", str(scratch / f"worker-{number}"))
            start("worker.Worker", "--cores", "1", "--memory", "1g", *directory, url)
        deadline = time.monotonic() + 300
        log = scratch / "cluster.log"
        while log.read_bytes().count(b"Successfully registered with master") < 2:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers did not register, see {log}")
            time.sleep(_POLL_S)
        yield url, [process.pid for process in started[1:]]
    finally:
        for process in reversed(started):
            _kill(*_below(process.pid))
            process.wait()


#: Small executors; repeated tasks, and second copies of slow ones.
CLUSTER_CONFS = (
    "spark.executor.memory=512m", "spark.executor.cores=1", "spark.cores.max=2",
    "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
    "spark.deploy.maxExecutorRetries=-1", "spark.speculation=true",
    "spark.speculation.multiplier=1.1", "spark.speculation.interval=50ms",
)  # fmt: skip


def drill(
    root: Path,
    names: list[str],
    *,
    count: int,
    rows: int,
    seed: int,
    master: str,
    cluster: bool,
    tell: Callable[[str], None],
) -> list[Any]:
    """Runs the rounds of some pipelines; gives their rows."""
    told = []
    with ExitStack() as stack:
        workers: list[int] = []
        spark = [master]
        if cluster:
            url, workers = stack.enter_context(standalone(root))
            spark = [url, *CLUSTER_CONFS]
        place = Place(root, rows, seed, spark)
        place.workers = workers
        for name in names:
            pipeline = PIPELINES[name](place)
            stack.callback(pipeline.close)
            calm = run_round(pipeline, 0, "", 0.0, "")
            tell(json.dumps(calm))
            told.append(calm)
            killed, number, limit_s = 0, 0, calm["s"]
            while killed < count and number < ROUNDS_PER_KILL_MAX * count:
                number += 1
                victim = pipeline.victims[(number - 1) % len(pipeline.victims)]
                row = run_round(pipeline, number, victim, limit_s, f"{seed} {name} {number}")
                killed += bool(row["victim"])
                if not row["victim"]:  # it was over before its moment came
                    limit_s = min(limit_s, row["s"])
                tell(json.dumps(row))
                told.append(row)
            pipeline.close()
    return told


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="kills of each pipeline")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--only", default=",".join(PIPELINES), help=f"of {', '.join(PIPELINES)}")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--cluster", action="store_true", help="a standalone cluster of its own")
    parser.add_argument("--dir", help="where files are made; a temporary directory otherwise")
    parser.add_argument("--small", action="store_true", help="one kill of one pipeline, for CI")
    given = parser.parse_args(arguments)
    if given.small:
        given.count, given.rows, given.only = 1, 300, "export-parquet"
    names = given.only.split(",")
    if unknown := [name for name in names if name not in PIPELINES]:
        parser.error(f"--only: found {unknown[0]!r}, allowed: {', '.join(PIPELINES)}")
    with ExitStack() as stack:
        if given.dir:
            Path(given.dir).mkdir(parents=True, exist_ok=True)
        where = given.dir or stack.enter_context(tempfile.TemporaryDirectory())
        rows = drill(
            Path(where).resolve(), names, count=given.count, rows=given.rows, seed=given.seed,
            master=given.master, cluster=given.cluster, tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    wrong = [row for row in rows if row["wrong"]]
    killed = Counter(row["victim"] for row in rows if row["victim"])
    print(json.dumps({"rounds": len(rows), "killed": killed, "wrong": len(wrong)}), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
