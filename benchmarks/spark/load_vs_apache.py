"""Building a store: a frame written by Spark against messages put one by one into Apache's store.

The frame lies in memory (cached and counted), so that making it is not measured. Apache's store
runs in a process of its own with one thread, asynchronous flush and no network; its figure is its
own, without the start of its JVM.

    python -m benchmarks.spark.load_vs_apache --mb 512
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, emit
from oberth.errors import PeerUnavailableError

OURS, RIVAL = "oberth", "apache"
VERSION = "5.5.0"
_RIVAL_TIMEOUT_S = 600


def _apache(directory: Path, rows: int, size: int) -> float:
    """MB a second of Apache's store."""
    from tests.rigs.peers import checkout, compile_java, jars, java_command

    lib = jars(VERSION)
    source = checkout() / "benchmarks" / "peers" / "java" / "StoreBench.java"
    if not source.is_file():
        raise PeerUnavailableError(f"{source} is not there")
    classes = compile_java("store-bench", lib, [source])
    shutil.rmtree(directory, ignore_errors=True)
    arguments = ("put", str(directory), str(rows), str(size), "async", "1")
    command = java_command(lib, "StoreBench", *arguments, classes=classes, options=("-Xmx2g",))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_RIVAL_TIMEOUT_S, check=True
    )
    for line in done.stdout.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if found.get("op") == "put":
                return float(found["mb_s"])
    raise PeerUnavailableError("StoreBench told no figure")


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--dir")
    parser.add_argument("--no-apache", action="store_true")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args(argv)
    if args.small:
        args.mb, args.runs, args.no_apache = 4, 1, True
    base = Path(args.dir or tempfile.mkdtemp(prefix="oberth-bench-"))
    rows = args.mb * 1_000_000 // args.size
    row = Row(f"bulk load, {args.size} B", "MB/s", bar=0.8)
    with contextlib.ExitStack() as stack:
        if not args.dir:
            stack.callback(shutil.rmtree, base, ignore_errors=True)
        from pyspark.sql import SparkSession

        from oberth.spark.runtime import build_session

        was_there = SparkSession.getActiveSession() is not None
        config = {"spark.driver.memory": "6g"}
        spark = build_session(args.master, app_name="bench", config=config, quick=args.small)
        if not was_there:
            stack.callback(spark.stop)
        frame = spark.range(0, rows, 1, 4).selectExpr(
            f"encode(repeat(sha2(string(id), 512), {-(-args.size // 128)}), 'utf-8') as all",
            "concat('k', id) as key",
            "'t' as tags",
            "cast(id % 4 as int) as partition",
        )
        frame = frame.selectExpr(
            f"substring(all, 1, {args.size}) as value", "key", "tags", "partition"
        )
        frame = frame.cache()
        stack.callback(frame.unpersist)
        frame.count()
        store = base / "store"
        for turn in range(args.runs + 1):
            shutil.rmtree(store, ignore_errors=True)
            begun = time.monotonic()
            writer = frame.write.format("rocketmq").mode("append").option("topic", "load")
            writer.option("path", str(store)).save()
            seconds = time.monotonic() - begun
            if turn:
                row.add(OURS, _log_bytes(store) / seconds / 1e6)
            if turn and not args.no_apache:
                try:
                    row.add(RIVAL, _apache(base / "apache", rows, args.size))
                except PeerUnavailableError as why:
                    sys.stderr.write(f"without Apache's store: {why}\n")
                    args.no_apache = True
        emit("spark_load_vs_apache", [row], OURS, RIVAL, master=args.master, mb=args.mb)


def _log_bytes(store: Path) -> int:
    from oberth.spark.storage import LocalStorage
    from oberth.spark.store_files import StoreFiles

    return StoreFiles(LocalStorage(), str(store), "").log_end()


if __name__ == "__main__":
    main()
