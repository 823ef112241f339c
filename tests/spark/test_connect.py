"""Spark Connect with a real server: what works through it does, the rest says why it does not.

The server is a process of its own and the client another: a process has either a classic session,
as the tests do, or a remote one.
"""

from __future__ import annotations

import importlib.util
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
from click.testing import CliRunner

pytest.importorskip("pyspark")

from oberth.cli.main import oberth
from oberth.errors import SparkUnavailableError
from oberth.spark import runtime

needs_client = pytest.mark.skipif(
    importlib.util.find_spec("grpc_status") is None, reason="pyspark[connect] is not installed"
)
_START_TIMEOUT_S = 300
ROWS = 40

CLIENT = """
import json, os, sys, time, traceback
from click.testing import CliRunner
from pyspark.errors import PySparkException
from oberth.cli.main import oberth
from oberth.errors import SparkUnavailableError
from oberth.spark.pipelines.dead_letters import dead_letters, redrive
from oberth.spark.pipelines.dispatch_stream import start_dispatch
from oberth.spark.pipelines.stats import collect, stats
from oberth.spark.pipelines.tasks import OnSpark
from oberth.spark.progress import LagListener
from oberth.spark.runtime import build_session
from oberth.spark.transforms import count_by_tag

def end(*error):
    # Threads of listeners would keep the process.
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)

sys.excepthook = end
address, root, growing, scratch = sys.argv[1:]
told = {}
spark = build_session(address)
source = spark.read.format("rocketmq")
frame = source.load(root)
told["plan"] = frame.where("topic = 'A' and partition = 1").count()
told["kept"] = spark.conf.get("spark.sql.session.timeZone")
spark.sql(f"create temporary view a using rocketmq options (path '{root}', subscribe 'A')")
told["sql"] = spark.sql("select count(*), max(offset) from a").collect()[0].asDict(True)
frame.select("topic", "value", "key").write.format("rocketmq").mode("append") \\
    .option("path", scratch + "/sink").option("mappedFileSizeCommitLog", "1m").save()
told["sink"] = source.load(scratch + "/sink").count()
listener = LagListener()
spark.streams.addListener(listener)
for mode in ("executor", "driver"):
    stream = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    query = (
        stream.option("readMode", mode).load(root)
        .writeStream.format("rocketmq").option("path", scratch + "/" + mode)
        .option("mappedFileSizeCommitLog", "1m").option("checkpointLocation", scratch + "/c" + mode)
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    patience = time.monotonic() + 60
    while mode == "executor" and not listener.metrics(query.id) and time.monotonic() < patience:
        time.sleep(0.05)
    told["lag"] = told.get("lag") or listener.metrics(query.id)
    told[mode] = source.load(scratch + "/" + mode).count()
spark.streams.removeListener(listener)
try:
    spark.read.format("rocketmq").option("subscribee", "A").load(root).count()
except PySparkException as error:
    told["option"] = "the nearest known one is subscribe" in str(error)
told["letters"] = [row.consumerGroup for row in dead_letters(spark, root).collect()]
told["redriven"] = [each.status for each in redrive(spark, root, scratch + "/redriven")]
told["tags"] = [row.asDict() for row in count_by_tag(spark, root).collect()]
told["stats"] = collect(stats(spark, root))["topics"][0]["messages"]
query = start_dispatch(spark, growing, scratch + "/dispatch")
while not (query.lastProgress and query.lastProgress.numInputRows):
    time.sleep(0.05)
query.stop()
queues = spark.read.format("rocketmq").option("readOrder", "queue")
told["dispatched"] = queues.load(growing).count()
try:
    OnSpark(spark)
except SparkUnavailableError as error:
    told["tasks"] = str(error)
spark.stop()
done = CliRunner().invoke(oberth, [
    "spark", "sql", "--master", address, "--store", root, "--json", "select count(*) n from A"])
told["command"] = [done.exit_code, done.stdout]
print(json.dumps(told))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a Spark Connect server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = runtime.quick_spark_home()
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(runtime.find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": runtime.QUICK_JVM,
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    command = [
        str(home / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g",
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "spark-internal",
    ]  # fmt: skip
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail((tmp_path / "server.log").read_text()[-3000:])
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(timeout=20)


@needs_client
@pytest.mark.spark
@pytest.mark.slow
def test_source_sink_streams_and_commands(server: str, growing_store: Any, tmp_path: Path) -> None:
    for number in range(ROWS):
        growing_store.append("A", number % 4, b"%d" % number, keys=f"k{number}", tags="t")
    growing_store.append("%DLQ%g", 0, b"letter")
    growing = type(growing_store)(tmp_path / "broker-h")
    for number in range(ROWS):
        growing.append("B", 0, b"%d" % number, dispatch=False)
    where = [server, str(growing_store.root), str(growing.root), str(tmp_path)]
    # Without JAVA_HOME and SPARK_HOME: a client starts no Java.
    kept = {n: v for n, v in os.environ.items() if n not in ("JAVA_HOME", "SPARK_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, *where],
        capture_output=True, text=True, timeout=1200, cwd=tmp_path, check=False, env=kept,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["plan"] == ROWS // 4
    assert told["kept"] == "UTC"
    assert told["sql"] == {"count(1)": ROWS, "max(offset)": ROWS // 4 - 1}
    assert told["sink"] == told["executor"] == told["driver"] == ROWS
    assert told["option"] is True
    assert told["lag"][0]["maxOffsetsBehindLatest"] == 0
    assert told["letters"] == ["g"]
    assert told["redriven"] == ["no origin topic"]
    assert told["tags"] == [{"topic": "A", "tags": "t", "count": ROWS}]
    assert told["stats"] == told["dispatched"] == ROWS
    assert "Spark Connect has no way to start" in told["tasks"]
    assert told["command"] == [0, json.dumps({"n": ROWS}) + "\n"]


def test_a_command_that_needs_tasks_is_refused_before_it_connects(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    for command in (["verify", str(tmp_path)], ["export", str(tmp_path), "--into", "/tmp/none"]):
        done = CliRunner().invoke(oberth, ["spark", *command, "--master", "sc://127.0.0.1:1"])
        assert isinstance(done.exception, SparkUnavailableError | SystemExit), done.output
        assert done.exit_code != 0
        said = done.output + str(done.exception)
        assert "sc://127.0.0.1:1: this pipeline runs Python tasks" in said


def test_a_client_without_its_packages_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_can_import", lambda module: module == "pandas")
    with pytest.raises(SparkUnavailableError) as caught:
        runtime.build_session("sc://127.0.0.1:1")
    assert "needs grpcio, grpcio-status, googleapis-common-protos" in str(caught.value)
    assert "pyspark[connect]" in str(caught.value)
