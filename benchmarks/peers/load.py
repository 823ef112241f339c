"""The official client under load: modes of Load.java and Features.java as functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.rigs import peers

CLIENT_VERSION = "5.5.0"
_HEAP = "768m"
_SPARE_S = 120


def java_sources() -> list[Path]:
    """The programs that measure."""
    return sorted((peers.checkout() / "benchmarks" / "peers" / "java").glob("*.java"))


def _run(main: str, args: list[str], directory: Path, timeout_s: float) -> list[dict[str, Any]]:
    lib = peers.jars(CLIENT_VERSION)
    classes = peers.compile_java("benchmarks", lib, java_sources())
    command = peers.java_command(
        lib,
        main,
        *args,
        classes=classes,
        options=(
            *(f"-Xmx{_HEAP}", f"-Duser.home={directory}"),
            "-Drocketmq.client.logLevel=ERROR",
        ),
    )
    directory.mkdir(parents=True, exist_ok=True)
    return _lines(command, directory, timeout_s)


def _lines(command: list[str], directory: Path, timeout_s: float) -> list[dict[str, Any]]:
    """What a program printed as lines of JSON."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.stderr.write(done.stderr[-2000:])
        raise RuntimeError(f"{' '.join(command[-8:])} ended with {done.returncode}")
    return lines


def load(mode: str, namesrv_addr: str, directory: Path, **options: int | str) -> dict[str, Any]:
    """Run Load.java once: mode send, async, consume or latency; see its source for options."""
    args = [mode, f"namesrv={namesrv_addr}", *(f"{key}={value}" for key, value in options.items())]
    seconds = sum(int(options.get(key, 0)) for key in ("sec", "warm"))
    return _run("Load", args, directory, seconds + _SPARE_S)[-1]


def features(mode: str, namesrv_addr: str, directory: Path, **options: int | str) -> dict[str, Any]:
    """Run Features.java once: mode pop, sql, timer or trans; see its source for options."""
    args = [mode, f"namesrv={namesrv_addr}", *(f"{key}={value}" for key, value in options.items())]
    return _run("Features", args, directory, 900)[-1]


def grpc_load(mode: str, endpoint: str, directory: Path, **options: int | str) -> dict[str, Any]:
    """Run GrpcLoad.java once: mode send or consume; see its source for options."""
    lib = peers.jars(peers.GRPC_JAVA_VERSION, "grpc")
    root = peers.checkout()
    sources = [
        *(root / "benchmarks" / "peers" / "grpc").glob("*.java"),
        root / "tests" / "interop" / "java" / "common" / "Json.java",
    ]
    command = peers.java_command(
        lib,
        "GrpcLoad",
        *(mode, f"endpoint={endpoint}", *(f"{key}={value}" for key, value in options.items())),
        classes=peers.compile_java("grpc-load", lib, sources),
        options=(
            *(f"-Xmx{_HEAP}", f"-Duser.home={directory}", "-Drocketmq.log.level=error"),
            f"-Drocketmq.log.root={directory / 'logs'}",
        ),
    )
    directory.mkdir(parents=True, exist_ok=True)
    seconds = sum(int(options.get(key, 0)) for key in ("sec", "warm"))
    return _lines(command, directory, seconds + _SPARE_S)[-1]


def store_bench(
    mode: str, store: Path, n: int, size: int, flush: str, threads: int, *, kill: bool = False
) -> list[dict[str, Any]]:
    """Run StoreBench.java: Apache's store in its own process, without a network."""
    lib = peers.jars(CLIENT_VERSION)
    classes = peers.compile_java("benchmarks", lib, java_sources())
    command = peers.java_command(
        lib,
        "StoreBench",
        *(mode, str(store), str(n), str(size), flush, str(threads)),
        *(["kill"] if kill else []),
        classes=classes,
        options=("-Xms1g", "-Xmx1g", f"-Duser.home={store.parent}"),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        sys.stderr.write(done.stderr[-2000:])
        raise RuntimeError(f"StoreBench {mode} ended with {done.returncode}")
    return lines
