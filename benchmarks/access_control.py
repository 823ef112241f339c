"""What access control costs sends: a broker without, one with accounts of 4.x, one with 5.x users.

    python -m benchmarks.access_control [--small] [--runs 3] [--rounds 40] [--sec 8]

Through the official client, 64 threads, the three take turns. Bar: sends keep 85 % of their rate.
Then a bare socket has 64 requests in flight that were signed ahead, so that the broker is what
limits: the most that access control can cost anybody; turns of a few thousand. 128 bytes, header
and properties as the Java client sends them. The 5.x sender is no Super user, it has a policy.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.rigs.clusters import OberthCluster

from benchmarks.peers.load import load
from benchmarks.peers.wire import Wire, frame, send_fields, signed
from benchmarks.report import Row, emit
from oberth.errors import PeerUnavailableError

OURS: Final = "with"
BASELINE: Final = "without"
KINDS: Final = ("", "4", "5")
IN_FLIGHT: Final = 64
SIZE: Final = 128
FRAMES: Final = 4096
SENDER: Final = ("load-sender", "load-sender-secret")
ROOT: Final = ("root-user", "root-user-secret")
ACCOUNTS: Final = f"""
accounts:
- accessKey: {SENDER[0]}
  secretKey: {SENDER[1]}
  defaultTopicPerm: DENY
  topicPerms:
  - load=PUB
"""
_CREATE_USER: Final = 3001
_CREATE_ACL: Final = 3006
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    return {
        "java-4": Row("official client, 64 threads, accounts of 4.x", "1/s", 0.85),
        "java-5": Row("official client, 64 threads, users of 5.x", "1/s", 0.85),
        "rate-4": Row("bare socket, 64 in flight, accounts of 4.x", "1/s"),
        "rate-5": Row("bare socket, 64 in flight, users of 5.x", "1/s"),
        "cpu-4": Row("the broker's CPU of a send, accounts of 4.x", "us", None, True),
        "cpu-5": Row("the broker's CPU of a send, users of 5.x", "us", None, True),
    }


def make(kind: str, directory: Path) -> OberthCluster:
    """A broker, started, that a sender may send to."""
    conf = {"autoCreateTopicEnable": "true", "diskMaxUsedSpaceRatio": "95"}
    if kind == "4":
        directory.mkdir(parents=True)
        accounts = directory / "plain_acl.yml"
        accounts.write_text(ACCOUNTS)
        conf |= {"aclEnable": "true", "aclFile": str(accounts)}
    elif kind == "5":
        root = json.dumps({"username": ROOT[0], "password": ROOT[1]})
        conf |= {"authenticationEnabled": "true", "authorizationEnabled": "true"}
        conf |= {"initAuthenticationUser": root}
    cluster = OberthCluster(directory, conf)
    cluster.start()
    if kind == "5":
        wire = Wire(cluster.broker_addr)
        user = json.dumps({"password": SENDER[1], "userType": "Normal"}).encode()
        _as_root(wire, _CREATE_USER, {"username": SENDER[0]}, user)
        entry = {"resource": "Topic:load", "actions": ["Pub"], "decision": "Allow"}
        acl = json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
        _as_root(wire, _CREATE_ACL, {"subject": f"User:{SENDER[0]}"}, acl)
        wire.close()
    return cluster


def _as_root(wire: Wire, code: int, fields: Mapping[str, str], body: bytes) -> None:
    answer = wire.call(code, signed(fields, body, *ROOT), body)
    if answer:
        raise RuntimeError(f"code {code} was answered with {answer}")


def frames(kind: str) -> list[bytes]:
    """Requests, ready to be written."""
    body = b"x" * SIZE
    made = []
    for number in range(FRAMES):
        fields = send_fields("load", number % 4, 1_700_000_000_000)
        fields["i"] = f"KEYS\x01k{number}\x02UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02TAGS\x01t"
        made.append(frame(310, number, signed(fields, body, *SENDER) if kind else fields, body))
    return made


class Side:
    """One of the brokers, and a connection to it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.cluster = make(kind, directory)
        self.wire = Wire(self.cluster.broker_addr)
        requests = frames(kind)
        self.bursts = [
            (b"".join(requests[at : at + IN_FLIGHT]), IN_FLIGHT)
            for at in range(0, len(requests), IN_FLIGHT)
        ]
        self.rates: list[float] = []
        self.sent = 0
        self.cpu_s = 0.0

    def turn(self) -> None:
        """Send everything once."""
        cpu_s, began = self._cpu_s(), time.perf_counter()
        refused = 0
        for burst, count in self.bursts:
            refused += self.wire.call_burst(burst, count)
        if refused:
            raise RuntimeError(f"{refused} of {FRAMES} sends were refused")
        self.rates.append(FRAMES / (time.perf_counter() - began))
        self.cpu_s += self._cpu_s() - cpu_s
        self.sent += FRAMES

    def official(self, sec: int, warm: int) -> float:
        """Sends in a second through the official client."""
        keys: dict[str, int | str] = {"ak": SENDER[0], "sk": SENDER[1]} if self.kind else {}
        line = load(
            *("send", self.cluster.namesrv_addr, self.directory / "client"),
            **{"threads": 64, "size": SIZE, "topic": "load", "sec": sec, "warm": warm, **keys},
        )
        if line["bad"]:
            sys.stderr.write(f"{self.kind or 'open'}: {line['bad']} sends failed\n")
            if not line["ok"]:
                raise RuntimeError("every send failed")
        return float(line["per_s"])

    def _cpu_s(self) -> float:
        stat = Path(f"/proc/{self.cluster.brokers[0].pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * _TICK_S

    def forget(self) -> None:
        """What came before was warming up."""
        self.rates.clear()
        self.sent, self.cpu_s = 0, 0.0


def run(
    number: int,
    base: Path,
    options: argparse.Namespace,
    table: dict[str, Row],
    skipped: dict[str, str],
) -> None:
    """One figure of each row."""
    directory = base / str(number)
    order = (*KINDS[number % 3 :], *KINDS[: number % 3])
    sides: dict[str, Side] = {}
    rounds: int = options.rounds
    try:
        for kind in KINDS:
            sides[kind] = Side(kind, directory / (f"acl-{kind}" if kind else "open"))
        for turn in range(rounds + rounds // 4):
            if turn == rounds // 4:
                for side in sides.values():
                    side.forget()
            for kind in (*KINDS[turn % 3 :], *KINDS[: turn % 3]):
                sides[kind].turn()
        java: dict[str, float] = {}
        try:
            if not skipped:
                java = {kind: sides[kind].official(options.sec, options.warm) for kind in order}
        except PeerUnavailableError as why:
            skipped["official client"] = str(why)
            sys.stderr.write(f"skipped: official client: {why}\n")
        for kind in KINDS[1:]:
            for name, side in ((BASELINE, sides[""]), (OURS, sides[kind])):
                if java:
                    table[f"java-{kind}"].add(name, java[side.kind])
                table[f"rate-{kind}"].add(name, statistics.median(side.rates))
                table[f"cpu-{kind}"].add(name, side.cpu_s / side.sent * 1e6)
    finally:
        for side in sides.values():
            side.wire.close()
            side.cluster.kill()


def main(argv: list[str] | None = None) -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--small", action="store_true", help="a moment, to see that it runs")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40, help=f"turns of {FRAMES} sends in a run")
    parser.add_argument("--sec", type=int, default=8, help="seconds of the official client")
    parser.add_argument("--warm", type=int, default=3, help="seconds before those")
    options = parser.parse_args(argv)
    if options.small:
        options.runs, options.rounds, options.sec, options.warm = 1, 4, 2, 2
    table = rows()
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="oberth-acl-") as folder:
        for number in range(options.runs):
            run(number, Path(folder), options, table, skipped)
    emit("access_control", table.values(), OURS, BASELINE, skipped=skipped)


if __name__ == "__main__":
    main()
