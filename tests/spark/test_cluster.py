"""A real standalone master with two workers: an executor killed in a load loses nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_START_TIMEOUT_S = 120
ROWS = 1000

# Runs by itself: this process has a session of its own already, and Spark allows one.
DRIVER = """
import json, os, signal, sys
from oberth.spark.runtime import build_session

master, root, target = sys.argv[1:]
spark = build_session(master, quick=True, config={
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
})
frame = spark.read.format("rocketmq").option("minPartitions", "4").load(root)

def kill_once(rows):
    # The first task to come here takes its executor's JVM with it.
    for row in rows:
        try:
            os.close(os.open(target + ".killed", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            pass
        else:
            worker = os.getppid()  # the daemon; its parent is the executor
            with open(f"/proc/{worker}/stat") as stat:
                os.kill(int(stat.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)
        yield row

rows = frame.select("topic", "value", "key", "partition").rdd.mapPartitions(kill_once)
kept = spark.createDataFrame(rows, "topic string, value binary, key binary, partition int")
kept.write.format("rocketmq").mode("append").option("path", target) \\
    .option("mappedFileSizeCommitLog", "1m").save()
keys = [row.key.decode() for row in spark.read.format("rocketmq").load(target).collect()]
print(json.dumps({"rows": len(keys), "distinct": len(set(keys))}))
spark.stop()
"""


def _spark_class(home: Path, java: Path, scratch: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java),
        "SPARK_DAEMON_MEMORY": "256m",
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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with two workers of one core."""
    from oberth.spark.runtime import find_java, quick_spark_home

    home, java = quick_spark_home(), find_java().home
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    local = ("--host", "127.0.0.1", "--webui-port", "0")
    started = [
        _spark_class(home, java, tmp_path, f"{package}.master.Master", *local, "--port", str(port))
    ]
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        _wait_for(listens, "the master did not start")
        for number in range(2):
            more = ("--cores", "1", "--memory", "1g", "-d", str(tmp_path / f"w{number}"), url)
            started.append(
                _spark_class(home, java, tmp_path, f"{package}.worker.Worker", *local, *more)
            )
        log = tmp_path / "Worker.log"
        registered = b"Successfully registered with master"
        _wait_for(lambda: log.read_bytes().count(registered) >= 2, "workers did not register")
        yield url
    finally:
        for process in reversed(started):
            process.kill()
            process.wait(timeout=20)


def test_an_executor_is_killed_in_the_middle_of_a_load(
    cluster: str, growing_store: Any, tmp_path: Path
) -> None:
    for number in range(ROWS):
        growing_store.append("A", number % 4, b"%d" % number, keys=f"k{number}")
    target = tmp_path / "target"
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster, str(growing_store.root), str(target)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "target.killed").exists()
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told == {"rows": ROWS, "distinct": ROWS}


PIPELINES = """
import json, os, signal, sys
from oberth.spark.pipelines.dispatch import dispatch
from oberth.spark.pipelines.export.exporter import export
from oberth.spark.pipelines.export.settings import ExportSettings
from oberth.spark.pipelines.salvage import salvage
from oberth.spark.pipelines.tasks import OnSpark
from oberth.spark.pipelines.verify import verify
from oberth.spark.runtime import build_session

master, root, scratch = sys.argv[1:]
spark = build_session(master, quick=True, config={
    "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.deploy.maxExecutorRetries": "-1",
})

class Killing(OnSpark):
    def __init__(self, name):
        super().__init__(spark)
        self.marker = f"{scratch}/{name}.killed"

    def run(self, function, items, **more):
        marker = self.marker

        def work(item):
            # The first task to come here has done its work, and takes its executor with it.
            result = function(item)
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return result
            with open(f"/proc/{os.getppid()}/stat") as stat:
                os.kill(int(stat.read().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)

        return super().run(work, items, **more)

common = {"scratch": scratch, "range_size": 20_000}
dispatched = dispatch(Killing("dispatch"), root, f"{scratch}/dispatched", **common)
found = verify(Killing("verify"), root, **common)
saved = salvage(Killing("salvage"), root, f"{scratch}/salvaged", **common)
tables = export(
    Killing("export"), root, f"{scratch}/tables", ExportSettings("delta"), range_size=20_000
)
print(json.dumps({
    "records": dispatched.records, "findings": len(found.findings), "saved": saved.records,
    "rows": tables.rows,
}))
spark.stop()
"""


def test_an_executor_is_killed_in_the_middle_of_each_pipeline(
    cluster: str, growing_store: Any, tmp_path: Path
) -> None:
    from deltalake import DeltaTable

    from oberth.store.offline.reader import StoreReader
    from oberth.store.offline.rebuild import rebuild
    from oberth.store.offline.verify import verify

    for number in range(ROWS):
        growing_store.append("A", number % 4, b"%d" % number, keys=f"k{number}")
    with StoreReader(growing_store.root) as reader:
        rebuild(reader, str(tmp_path / "rebuilt"))
        expected = len(verify(reader).findings)
    done = subprocess.run(
        [sys.executable, "-c", PIPELINES, cluster, str(growing_store.root), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("dispatch", "verify", "salvage", "export"):
        assert (tmp_path / f"{name}.killed").exists()
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told == {"records": ROWS, "findings": expected, "saved": ROWS, "rows": ROWS}
    for path in (tmp_path / "rebuilt").rglob("*"):
        if path.is_file():
            same = tmp_path / "dispatched" / path.relative_to(tmp_path / "rebuilt")
            assert same.read_bytes() == path.read_bytes(), same
    values = DeltaTable(str(tmp_path / "tables" / "A")).to_pyarrow_table().column("value")
    assert sorted(values.to_pylist()) == sorted(b"%d" % number for number in range(ROWS))
