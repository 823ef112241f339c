"""Our broker against Apache's with many connections, through a bare load generator, in turns.

    python -m benchmarks.connections [--small] [--runs 5] [--only 64x1x128,...] [--brokers A,B]

An official client puts all its sends on one connection and takes more processor time than the
broker; `peers/wire_load.c` opens as many connections as wanted and takes a fifth. A row is
connections x requests on each one's way x bytes [x connections that send] [@ topics of 8 queues
each that messages go to by chance], with another kind of request than sends in front: ``pull-``
reads 32 messages at a time, ``pop-`` takes 32 and acknowledges each, ``commit-``, ``heartbeat-``.
Its figures are messages a second, latency of a request, and the broker's processor time a message:
the steadiest of them on a machine that is shared. ``--brokers null,oberth`` has a server that only
answers in the rival's place: no broker can be seen to be faster than that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.broker import AnyCluster, make
from benchmarks.peers import build, wire
from benchmarks.report import Row, emit_turns

SHAPES: Final = {
    "64x1x128": 2.0,
    "64x1x1024": 1.5,
    "256x1x128": 1.5,
    "2000x1x128x200": 1.5,
    "64x16x128": 2.0,
    "1x64x128": 2.0,
    "1x1000x128": 4.0,
    "1x1x128": None,
    "2x1x128": None,
    "8x1x1048576": 1.2,
    "16x1x65536": 1.5,
    "64x1x128@1000": 1.5,
    "1x1000x128@1000": 1.5,
    "pull-64x1x128": None,
    "pop-64x1x128": None,
    "commit-64x1x128": None,
    "heartbeat-64x1x128": None,
}
"""What is sent, and how many times Apache's rate ours must reach."""

TOPIC: Final = "connections"
READ_TOPIC: Final = f"{TOPIC}-read"
"""What is read: messages of one size, whatever the rows of sends in front have sent."""

GROUP: Final = "wire-load"
"""The group that ``wire_load.c`` pulls, pops and commits for."""

QUEUES: Final = 4
MANY_QUEUES: Final = 8
FILL_SHAPE: Final = "4x16x128"
"""What is read was sent so."""

WARM_PIECE_S: Final = 10
WARM_PIECES_MAX: Final = 18
"""Sends before Apache's broker counts, until its rate stands still: it still grows after 15 s."""

STILL_PIECES: Final = 3
STILL_WITHIN: Final = 0.05


def stands_still(rates: Sequence[float]) -> bool:
    """Whether the last of these rates, of pieces that follow each other, differ no more."""
    last = rates[-STILL_PIECES:]
    return len(last) == STILL_PIECES and max(last) <= min(last) * (1 + STILL_WITHIN)


class NullServer:
    """``peers/wire_null.c`` in the place of a cluster: what the generator itself can reach."""

    kind = "null"

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._program = build(directory, "wire_null")
        self._process: subprocess.Popen[str] | None = None
        self.broker_addr = ""

    @property
    def nodes(self) -> list[subprocess.Popen[str]]:
        """Its one process."""
        return [] if self._process is None else [self._process]

    def start(self) -> None:
        """Start it; it listens when this returns."""
        self._process = process = subprocess.Popen(
            [str(self._program)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        self.broker_addr = f"127.0.0.1:{process.stdout.readline().strip()}"

    def kill(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def cpu_s(cluster: AnyCluster | NullServer) -> float:
    """Processor seconds that the cluster's processes have used."""
    ticks = 0
    for node in cluster.nodes:
        fields = Path(f"/proc/{node.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / 100


class Load:
    """Runs the generator against one broker."""

    def __init__(self, program: Path, cluster: AnyCluster | NullServer) -> None:
        self._program = program
        self._cluster = cluster

    def run(
        self, shape: str, warm_s: float, seconds: float, topic: str | None = None
    ) -> dict[str, Any]:
        """One shape; what the generator printed, and ``cpu_us``, the broker's time a message."""
        sizes, _, topics = shape.partition("@")
        kind, _, sizes = sizes.rpartition("-")
        words = sizes.split("x")
        topic = topic or (f"{TOPIC}-many" if topics else READ_TOPIC if kind else TOPIC)
        host, _, port = self._cluster.broker_addr.rpartition(":")
        before = cpu_s(self._cluster)
        done = subprocess.run(
            [
                *(str(self._program), host, port, topic, *words[:3]),
                *(str(warm_s), str(seconds), str(MANY_QUEUES if topics else QUEUES)),
                *(words[3] if len(words) > 3 else "0", topics or "0", kind or "send"),
            ],
            capture_output=True,
            text=True,
            timeout=warm_s + seconds + 60,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"wire_load {shape} against {self._cluster.kind}: {done.stderr}")
        line: dict[str, Any] = json.loads(done.stdout)
        if line["refused"]:
            # A broker may ask for a pause; what it refused is in no rate. One that only refuses
            # does not know what is asked.
            text = f"wire_load {shape} against {self._cluster.kind}: {done.stderr.strip()}"
            if not line["per_s"]:
                raise RuntimeError(text)
            sys.stderr.write(f"{text} ({line['refused']} refused)\n")
        line["cpu_us"] = (cpu_s(self._cluster) - before) / max(line["total"], 1) * 1e6
        return line


def warm_up(generator: Load) -> list[float]:
    """Send until the rate stands still; the rates of the pieces."""
    rates: list[float] = []
    while len(rates) < WARM_PIECES_MAX and not stands_still(rates):
        rates.append(generator.run("64x1x128", 0, WARM_PIECE_S)["per_s"])
    return rates


def prepare(address: str, generator: Load, shapes: Sequence[str], fill_s: float) -> wire.Wire:
    """Topics, a group and messages that the shapes need; the connection that the group lives by."""
    wire.create_topics(address, [TOPIC], QUEUES)
    many = max((int(shape.partition("@")[2]) for shape in shapes if "@" in shape), default=0)
    if many:
        wire.create_topics(address, [f"{TOPIC}-many-{n}" for n in range(many)], MANY_QUEUES)
    member = wire.Wire(address)
    if any("-" in shape for shape in shapes):
        wire.create_topics(address, [READ_TOPIC], QUEUES)
        member.subscribe(GROUP, READ_TOPIC)
        generator.run(FILL_SHAPE, 0, fill_s, READ_TOPIC)
    return member


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="one short run, for CI")
    parser.add_argument("--runs", type=int, help="runs of each side (5; 1 when small)")
    parser.add_argument("--sec", type=float, help="seconds of each measurement (8; 1 when small)")
    parser.add_argument("--brokers", default="apache-5.5.0,oberth", help="rival, then ours")
    parser.add_argument("--only", default="", help=f"shapes, of {','.join(SHAPES)}")
    parser.add_argument("--flush", default="ASYNC_FLUSH", help="flushDiskType of both")
    options = parser.parse_args(argv)
    options.runs = options.runs or (1 if options.small else 5)
    options.sec = options.sec or (1 if options.small else 8)
    small = "64x1x128,1x64x128,1x1x128,pop-64x1x128"
    wanted = options.only or (small if options.small else ",".join(SHAPES))
    shapes = wanted.split(",")
    kinds = options.brokers.split(",")
    if NullServer.kind in kinds:  # it only answers sends
        shapes = [shape for shape in shapes if "-" not in shape]
    table: dict[str, Row] = {}
    for shape in shapes:
        bar = None if kinds[0] == NullServer.kind else SHAPES.get(shape)
        table[f"{shape}-rate"] = Row(f"{shape}, rate", "1/s", bar)
        few = shape in ("1x1x128", "2x1x128") and kinds[0] != NullServer.kind
        table[f"{shape}-p50"] = Row(f"{shape}, p50", "us", 0.7 if few else None, True)
        table[f"{shape}-p99"] = Row(f"{shape}, p99", "us", None, True)
        table[f"{shape}-cpu"] = Row(f"{shape}, broker CPU a message", "us", None, True)

    with tempfile.TemporaryDirectory(prefix="oberth-connections-") as scratch:
        program = build(Path(scratch))

        def turn(kind: str, place: Path, add: Callable[[str, float], None]) -> None:
            cluster: AnyCluster | NullServer = (
                NullServer(place)
                if kind == NullServer.kind
                else make(kind, place, flushDiskType=options.flush)
            )
            try:
                cluster.start()
                generator = Load(program, cluster)
                member = prepare(cluster.broker_addr, generator, shapes, options.sec)
                if not options.small and kind.startswith("apache"):
                    warm_up(generator)
                for shape in shapes:
                    # What the row before left to the disk would be paid by this one: rows of
                    # large bodies leave gigabytes.
                    os.sync()
                    if "-" in shape:  # whoever says nothing for two minutes is gone
                        member.close()
                        member = wire.Wire(cluster.broker_addr)
                        member.subscribe(GROUP, READ_TOPIC)
                    line = generator.run(shape, options.sec / 4, options.sec)
                    add(f"{shape}-rate", line["per_s"])
                    add(f"{shape}-p50", line["p50_us"])
                    add(f"{shape}-p99", line["p99_us"])
                    add(f"{shape}-cpu", line["cpu_us"])
                member.close()
            finally:
                cluster.kill()
            shutil.rmtree(place, ignore_errors=True)

        emit_turns("connections", kinds, options, table, turn)


if __name__ == "__main__":
    main()
