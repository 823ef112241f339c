"""A real standalone master with two workers: executors that are killed lose nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from oberth.spark.runtime import QUICK_JVM, find_java, quick_spark_home

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_START_TIMEOUT_S = 120
ROWS = 1000

# Runs by itself: this process has a session of its own already, and Spark allows one.
DRIVER = """
import json, os, signal, sys
from oberth.spark.pipelines.dispatch import dispatch
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.salvage import salvage
from oberth.spark.pipelines.tasks import OnSpark
from oberth.spark.pipelines.verify import verify
from oberth.spark.runtime import QUICK_JVM, build_session

master, root, scratch = sys.argv[1:]
spark = build_session(master, quick=True, config={
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.extraJavaOptions": QUICK_JVM, "spark.deploy.maxExecutorRetries": "-1",
})

def kill_once(marker):
    # The first task to come here takes its executor's JVM with it.
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    worker = os.getppid()  # the daemon; its parent is the executor
    with open(f"/proc/{worker}/stat") as stat:
        os.kill(int(stat.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)

target = f"{scratch}/target"

def killing(rows):
    for row in rows:
        kill_once(f"{scratch}/load.killed")
        yield row

frame = spark.read.format("rocketmq").option("minPartitions", "4").load(root)
rows = frame.select("topic", "value", "key", "partition").rdd.mapPartitions(killing)
kept = spark.createDataFrame(rows, "topic string, value binary, key binary, partition int")
kept.write.format("rocketmq").mode("append").option("path", target) \\
    .option("mappedFileSizeCommitLog", "1m").save()
keys = [row.key.decode() for row in spark.read.format("rocketmq").load(target).collect()]

class Killing(OnSpark):
    def __init__(self, name):
        super().__init__(spark)
        self.marker = f"{scratch}/{name}.killed"

    def run(self, function, items, **more):
        marker = self.marker

        def work(item):
            result = function(item)  # the task has done its work when it is killed
            kill_once(marker)
            return result

        return super().run(work, items, **more)

common = {"scratch": scratch, "range_size": 20_000}
dispatched = dispatch(Killing("dispatch"), root, f"{scratch}/dispatched", **common)
found = verify(Killing("verify"), root, **common)
saved = salvage(Killing("salvage"), root, f"{scratch}/salvaged", **common)
tables = export(
    Killing("export"), root, f"{scratch}/tables", ExportSettings("delta"), range_size=20_000
)
print(json.dumps({
    "load": {"rows": len(keys), "distinct": len(set(keys))},
    "pipelines": {
        "records": dispatched.records, "findings": len(found.findings), "saved": saved.records,
        "rows": tables.rows,
    },
}))
spark.stop()
"""


def _spark_class(home: Path, java: Path, scratch: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    command = [str(home / "bin" / "spark-class"), *arguments]
    log = (scratch / f"{arguments[0].rsplit('.', 1)[1]}.log").open("ab")
    with log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=scratch)


def _wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what} within {_START_TIMEOUT_S} s")
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a master with two workers of one core."""
    home, java = quick_spark_home(), find_java().home
    scratch = tmp_path_factory.mktemp("cluster")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    started = [
        _spark_class(home, java, scratch, f"{package}.master.Master", *local, "--port", str(port))
    ]
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        _wait_for(listens, "the master did not start")
        for number in range(2):
            more = ("--cores", "1", "--memory", "1g", "-d", str(scratch / f"w{number}"), url)
            started.append(
                _spark_class(home, java, scratch, f"{package}.worker.Worker", *local, *more)
            )
        log = scratch / "Worker.log"
        registered = b"Successfully registered with master"
        _wait_for(lambda: log.read_bytes().count(registered) >= 2, "workers did not register")
        yield url
    finally:
        for process in reversed(started):
            process.kill()
            process.wait(timeout=20)


@dataclass(frozen=True)
class Killed:
    """What a driver did whose executors were killed, one in each step."""

    scratch: Path
    store: Path
    told: dict[str, Any]


@pytest.fixture(scope="module")
def killed(
    cluster: str, make_store: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Killed:
    """One session for all steps: executors and their Python take longer to start than they work."""
    scratch = tmp_path_factory.mktemp("killed")
    store = make_store(scratch / "broker-g")
    for number in range(ROWS):
        store.append("A", number % 4, b"%d" % number, keys=f"k{number}")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster, str(store.root), str(scratch)],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=scratch,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return Killed(scratch, store.root, json.loads(done.stdout.strip().splitlines()[-1]))


def test_an_executor_is_killed_in_the_middle_of_a_load(killed: Killed) -> None:
    assert (killed.scratch / "load.killed").exists()
    assert killed.told["load"] == {"rows": ROWS, "distinct": ROWS}


def test_an_executor_is_killed_in_the_middle_of_each_pipeline(
    killed: Killed, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.rebuild import rebuild
    from oberth.store.offline.verify import verify

    with StoreReader(killed.store) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
        expected = len(verify(reader).findings)
    for name in ("dispatch", "verify", "salvage", "export"):
        assert (killed.scratch / f"{name}.killed").exists()
    found = {"records": ROWS, "findings": expected, "saved": ROWS, "rows": ROWS}
    assert killed.told["pipelines"] == found
    for path in (tmp_path / "rebuilt").rglob("*"):
        if path.is_file():
            same = killed.scratch / "dispatched" / path.relative_to(tmp_path / "rebuilt")
            assert same.read_bytes() == path.read_bytes(), same
    values = DeltaTable(str(killed.scratch / "tables" / "A")).to_pyarrow_table().column("value")
    assert sorted(values.to_pylist()) == sorted(b"%d" % number for number in range(ROWS))
