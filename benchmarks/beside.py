"""Our broker and Apache's while they do two things at once, in turns, through the bare generator.

    python -m benchmarks.beside [--small] [--runs 3] [--only groups,cold,...] [--brokers A,B]
    python -m benchmarks.beside --only cores [--small] [--runs 3] [--core-share 0.4]

groups    four producers at full speed beside four groups that follow them: messages sent and
          received a second, and how many a group had still to read when time was up
pops      the same with groups that pop and acknowledge one by one
cold      a backlog of 1 KiB messages is consumed that the page cache has nothing of, beside a
          sender of 500 messages a second: messages read a second, and the sender's p99
half      64 connections that send at a rate that neither broker is at its end with: p99.9 and the
          longest answer of a minute
steady    one connection and two that send 500 messages a second: p50
cores     ``oberth up --brokers 2`` beside ``--brokers 1``: messages that 64 connections send a
          second, pop and acknowledge, send with 16 on their way each, and send to 1,000 topics.
          The generator shares the two cores: it may take a fourth of what a broker takes for a
          message, or two brokers cannot have 1.6 times the rate of one. With ``--core-share``
          each broker is given that part of a core and no more (Linux, root: the kernel's quota
          of a control group), so the generator has what is left of both cores in either turn
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.rigs.clusters import free_port

from benchmarks.broker import AnyCluster, make
from benchmarks.connections import QUEUES, Load, warm_up
from benchmarks.peers import build, wire
from benchmarks.report import Row, add_turn_options, emit_turns, fill_turn_options

GROUPS: Final = ("groups", "pops", "cold", "half", "steady")
CORES: Final = "cores"
GROUP_COUNT: Final = 4
TOPIC: Final = "beside"
TOPICS: Final = 1_000
COLD_BODY: Final = 1024
POPS: Final = 64
"""Requests on the way of a group that pops; most of them are acknowledgements."""

STEADY_RATE: Final = 500
BROKER: Final = "broker-a"
UP_READY_S: Final = 60
CGROUPS: Final = Path("/sys/fs/cgroup")
SHARE_MIN: Final = 0.05
SHARE_PERIOD_US: Final = 20_000
"""Within which a broker has its share of a core."""


def rows(wanted: Sequence[str]) -> dict[str, Row]:
    """Every wanted row of the table, by key."""
    table = {
        "groups-sent": Row("four producers beside four groups, sent", "1/s", 1.5),
        "groups-received": Row("the same, received by all groups", "1/s", 1.5),
        "groups-behind": Row("the same, not read by a group at the end", "messages", None, True),
        "pops-sent": Row("four producers beside four groups that pop, sent", "1/s", None),
        "pops-received": Row("the same, acknowledged by all groups", "1/s", None),
        "cold-read": Row("a backlog that is not in memory, 1 KiB, read", "1/s", 1.2),
        "cold-p99": Row("p99 of a sender beside it", "us", 1.0, True),
        "half-p999": Row("64 connections at half load, p99.9", "us", 0.5, True),
        "half-max": Row("the same, the longest answer", "us", 0.5, True),
        "steady-1": Row("one connection, 500 messages a second, p50", "us", 0.7, True),
        "steady-2": Row("two connections, 500 messages a second, p50", "us", 0.7, True),
        "cores-rate": Row("64 connections, two brokers beside one", "1/s", 1.6),
        "cores-bursts": Row("the same with 16 on their way each", "1/s", 1.6),
        "cores-topics": Row("the same to 1,000 topics", "1/s", 1.6),
        "cores-pops": Row("the same, popped and acknowledged", "1/s", 1.6),
    }
    return {key: row for key, row in table.items() if key.partition("-")[0] in wanted}


@dataclass(frozen=True)
class Generator:
    """Runs the generator, several of it at once if need be."""

    program: Path

    def start(
        self,
        address: str,
        shape: str,
        seconds: float,
        *,
        warm_s: float = 0,
        topic: str = TOPIC,
        kind: str = "send",
        rate: float = 0,
        group: str = "wire-load",
        broker: str = BROKER,
        topics: int = 0,
    ) -> subprocess.Popen[str]:
        """One process; `line_of` waits for it. The shape is connections x outstanding x bytes."""
        host, _, port = address.rpartition(":")
        words = [host, port, topic, *shape.split("x"), str(warm_s), str(seconds), str(QUEUES)]
        words += ["0", str(topics), kind, broker, str(rate), group]
        return subprocess.Popen([str(self.program), *words], stdout=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a generator printed.

    Raises:
        RuntimeError: it failed.
    """
    text, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    line: dict[str, Any] = json.loads(text)
    return line


def drop_cache(directory: Path) -> None:
    """Has the page cache forget all files below a directory, which nobody maps."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


class Turn:
    """One cluster's turn."""

    def __init__(
        self, kind: str, place: Path, generator: Generator, options: argparse.Namespace
    ) -> None:
        self.cluster: AnyCluster = make(kind, place)
        self.place = place
        self.generator = generator
        self.options = options
        self.warms = kind.startswith("apache") and not options.small

    def measure(self, add: Callable[[str, float], None]) -> None:
        """All wanted rows."""
        try:
            self._start()
            for name in self.options.only:
                {
                    "groups": self._groups,
                    "pops": self._pops,
                    "cold": self._cold,
                    "half": self._half,
                    "steady": self._steady,
                }[name](add)
        finally:
            self.cluster.kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def _start(self) -> None:
        self.cluster.start()
        self.address = self.cluster.broker_addr
        wire.create_topics(self.address, ["connections", TOPIC, f"{TOPIC}-cold"], QUEUES)
        if self.warms:
            warm_up(Load(self.generator.program, self.cluster))

    def _groups(self, add: Callable[[str, float], None]) -> None:
        sent, received = self._beside("follow")
        add("groups-sent", sent["per_s"])
        add("groups-received", sum(line["per_s"] for line in received))
        add("groups-behind", sum(line["behind"] for line in received) / GROUP_COUNT)

    def _pops(self, add: Callable[[str, float], None]) -> None:
        sent, received = self._beside("pop")
        add("pops-sent", sent["per_s"])
        add("pops-received", sum(line["per_s"] for line in received))

    def _beside(self, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What producers and each of the groups printed that read beside them."""
        names = [f"{kind}-{n}" for n in range(GROUP_COUNT)]
        members = []
        for name in names:
            members.append(wire.Wire(self.address))
            members[-1].subscribe(name, TOPIC)
        times = {"seconds": self.options.sec, "warm_s": self.options.warm}
        shape = f"1x{POPS if kind == 'pop' else QUEUES}x0"
        readers = [
            self.generator.start(self.address, shape, kind=kind, group=name, **times)
            for name in names
        ]
        sent = line_of(self.generator.start(self.address, f"{GROUP_COUNT}x64x128", **times))
        received = [line_of(reader) for reader in readers]
        for member in members:
            member.close()
        return sent, received

    def _cold(self, add: Callable[[str, float], None]) -> None:
        topic, filled = f"{TOPIC}-cold", 0
        while filled < self.options.cold_mb << 20:
            line = line_of(self.generator.start(self.address, f"4x64x{COLD_BODY}", 1, topic=topic))
            filled += line["total"] * COLD_BODY
        self.cluster.stop()
        drop_cache(self.place)
        self._start()
        member = wire.Wire(self.address)
        member.subscribe("cold", topic)
        reader = self.generator.start(
            self.address,
            f"1x{QUEUES}x0",
            self.options.sec,
            topic=topic,
            kind="follow",
            group="cold",
        )
        sender = self.generator.start(self.address, "1x1x128", self.options.sec, rate=STEADY_RATE)
        add("cold-read", line_of(reader)["per_s"])
        add("cold-p99", line_of(sender)["p99_us"])
        member.close()

    def _half(self, add: Callable[[str, float], None]) -> None:
        line = line_of(
            self.generator.start(
                self.address,
                "64x1x128",
                self.options.half_sec,
                rate=self.options.half_rate,
                warm_s=self.options.warm,
            )
        )
        add("half-p999", line["p999_us"])
        add("half-max", line["max_us"])

    def _steady(self, add: Callable[[str, float], None]) -> None:
        for count in (1, 2):
            line = line_of(
                self.generator.start(
                    self.address,
                    f"{count}x1x128",
                    self.options.sec,
                    rate=STEADY_RATE,
                    warm_s=self.options.warm,
                )
            )
            add(f"steady-{count}", line["p50_us"])


class Up:
    """``oberth up`` with further options."""

    def __init__(self, place: Path, *more: object) -> None:
        place.mkdir(parents=True)
        options = {
            "--store": place / "store",
            "--port": free_port(),
            "--namesrv-port": free_port(),
            "--console-port": -1,
        }
        words = [str(word) for option in options.items() for word in option]
        words += ["--set", "httpPort=-1", "--set", f"brokerName={BROKER}", *map(str, more)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "oberth", "up", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        limit = threading.Timer(UP_READY_S, self.process.kill)
        limit.start()
        seen = ""
        for line in self.process.stdout:
            seen += line
            if found := re.search(r"ready: .* brokers? ([\d.: ]+\d)", line):
                break
        else:
            raise RuntimeError(f"oberth up ended with {self.process.wait()}: {seen}")
        limit.cancel()
        self.addresses = found[1].split()

    def broker_pids(self) -> list[int]:
        """Processes of its brokers: its children, or itself if it has none."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
        return [int(each) for each in children.split()] or [pid]

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.communicate()


class CoreShares:
    """Control groups of the kernel that let processes have a part of a core, until closed."""

    def __init__(self) -> None:
        self._groups: list[Path] = []

    def limit(self, share: float, pids: Sequence[int]) -> None:
        """Each of the processes has so much of a core from now on, and no more.

        Raises:
            OSError: there are no control groups with quotas, or not for this user.
        """
        for pid in pids:
            self._limit(share, pid)

    def _limit(self, share: float, pid: int) -> None:
        quota_us = round(share * SHARE_PERIOD_US)
        is_v2 = (CGROUPS / "cgroup.controllers").exists()
        group = (CGROUPS if is_v2 else CGROUPS / "cpu") / f"oberth-beside-{pid}"
        group.mkdir()
        self._groups.append(group)
        if is_v2:
            (group / "cpu.max").write_text(f"{quota_us} {SHARE_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(SHARE_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        (group / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        """Takes the groups away; their processes have ended."""
        for group in self._groups:
            group.rmdir()
        self._groups.clear()


def cores(
    generator: Generator,
    place: Path,
    count: int,
    options: argparse.Namespace,
    add: Callable[[str, float], None],
) -> None:
    """What 64 connections send, pop and acknowledge; each broker has its part of them."""
    up = Up(place, "--brokers", count)
    shares = CoreShares()

    def rate(kind: str, outstanding: int = 1, topics: int = 0) -> float:
        loads = []
        for n in range(2):
            name = BROKER if n % count == 0 else f"{BROKER}-{n + 1}"
            times = {"seconds": options.sec, "warm_s": options.warm}
            address = up.addresses[n % count]
            shape = f"32x{outstanding}x128"
            load = generator.start(address, shape, kind=kind, broker=name, topics=topics, **times)
            loads.append(load)
        return float(sum(line_of(load)["per_s"] for load in loads))

    try:
        if options.core_share:
            shares.limit(options.core_share, up.broker_pids())
        for address in up.addresses:
            many = [f"{TOPIC}-{n}" for n in range(TOPICS)]
            wire.create_topics(address, [TOPIC, *many], QUEUES)
        add("cores-rate", rate("send"))
        add("cores-pops", rate("pop"))
        add("cores-bursts", rate("send", 16))
        add("cores-topics", rate("send", topics=TOPICS))
    finally:
        up.close()
        shares.close()
        shutil.rmtree(place, ignore_errors=True)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_turn_options(parser, (*GROUPS, CORES))
    parser.add_argument("--cold-mb", type=int, help="MiB of the cold backlog (2048; 32 when small)")
    parser.add_argument("--half-sec", type=int, help="seconds of half load (60; 2 when small)")
    parser.add_argument("--half-rate", type=float, default=10_000, help="of half load, a second")
    parser.add_argument(
        "--core-share",
        type=float,
        default=0,
        help="of a core for each broker of `cores` (all of it)",
    )
    options = parser.parse_args(argv)
    if options.core_share and not SHARE_MIN <= options.core_share <= 1:
        parser.error(f"--core-share {options.core_share}, allowed {SHARE_MIN} to 1")
    sides = fill_turn_options(options, "apache-5.5.0", GROUPS, ",".join(GROUPS))
    options.cold_mb = options.cold_mb or (32 if options.small else 2048)
    options.half_sec = options.half_sec or (2 if options.small else 60)
    is_cores = options.only == [CORES]
    if options.core_share and not is_cores:
        parser.error(f"--core-share is of --only {CORES}")
    for name in options.only:
        if name not in GROUPS and not is_cores:
            parser.error(f"--only {name}, allowed {', '.join(GROUPS)}, or {CORES} alone")
    kinds = ["one", "two"] if is_cores else sides
    table = rows(options.only)
    with tempfile.TemporaryDirectory(prefix="oberth-beside-") as scratch:
        generator = Generator(build(Path(scratch)))

        def turn(kind: str, place: Path, add: Callable[[str, float], None]) -> None:
            if is_cores:
                cores(generator, place, 1 + kinds.index(kind), options, add)
            else:
                Turn(kind, place, generator, options).measure(add)

        emit_turns("beside", kinds, options, table, turn)


if __name__ == "__main__":
    main()
