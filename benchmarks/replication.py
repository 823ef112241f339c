"""A master and its slave, ours against Apache's on the same machine, in turns.

    python -m benchmarks.replication [--small] [--runs 3] [--only sync,catchup,...] [--brokers A,B]

sync      SYNC_MASTER with two copies, the official client, 1 KiB
catchup   bytes of log a second to a slave that was away, from its first piece to the log's end
delayed   the same with 2 ms of delay each way between the two (`benchmarks.peers.slow_network`)
copy      what two bare processes copy without any delay, over loopback into a mapped file
readable  from the send to the master until a reader of the slave has it, 1 000/s, ASYNC_MASTER
chain     what the checksums of the log cost a put of ours
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import random
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.rigs.clusters import ApacheCluster, Node, OberthCluster, remoting_call

from benchmarks.peers import slow_network
from benchmarks.peers.load import load
from benchmarks.peers.wire import Wire, create_topics, send_fields
from benchmarks.report import Row, add_turn_options, emit, fill_turn_options, take_turns
from oberth.formats.message import decode_record, stated_size

GROUPS = ("sync", "catchup", "delayed", "copy", "readable", "chain")
CONF = {
    "autoCreateTopicEnable": "true",
    "diskMaxUsedSpaceRatio": "95",
    "slaveReadEnable": "true",
    "slaveTimeout": "10000",
}
_CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"
DELAY_MS = 2
BODY_BYTES = 16 << 10
RATE = 1000
_TIMEOUT_S = 300
_POLL_S = 0.01
_READ_S = 0.0005
_PULL, _RUNTIME, _SEND = 11, 28, 310
_FOUND = 0

_AT_ONCE = 1 << 20
_BARE_SENDER = f"""
import mmap, socket, sys
near = "127.0.0.1", int(sys.argv[2])
with open(sys.argv[1], "rb") as file, socket.create_connection(near) as to:
    source = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    for start in range(0, len(source), {_AT_ONCE}):
        to.sendall(source[start : start + {_AT_ONCE}])
"""

Add = Callable[[str, float], None]


def rows() -> dict[str, Row]:
    """Every row of the table, by key."""
    return {
        "sync-64": Row("SYNC_MASTER, two in sync, 64 threads, 1 KiB", "1/s", 1.7),
        "sync-1": Row("SYNC_MASTER, two in sync, one thread, 1 KiB, p50", "us", 0.7, True),
        "catchup": Row("log to a slave that was away", "MB/s", 1.0),
        "delayed": Row(f"the same with {DELAY_MS} ms of delay each way", "MB/s", 5.0),
        "copy": Row("bytes that two bare processes copy over loopback", "MB/s"),
        "readable-p50": Row("append to readable on the slave at 1 000/s, p50", "ms", 0.5, True),
        "readable-p99": Row("append to readable on the slave at 1 000/s, p99", "ms", 0.5, True),
        "chain": Row("put of 1 KiB with checksums / without", "ratio", None, True, 1.03),
    }


class Pair:
    """A master and its slave under one name server.

    Args:
        kind: whose brokers.
        directory: where they keep their files.
        role: of the master.
        ha_host: the host of the master's HA port for its slave; None for its own.
    """

    def __init__(
        self, kind: str, directory: Path, role: str, *, ha_host: str | None = None
    ) -> None:
        master = {**CONF, "brokerRole": role, "inSyncReplicas": "2"}
        slave = {**CONF, "brokerRole": "SLAVE", "brokerId": "1"}
        if ha_host is not None:
            master["brokerIP2"] = ha_host
        if kind == "oberth":
            if ha_host is not None:  # Apache's is at every address, always
                master |= {"bindAddress": "0.0.0.0", "listenWithoutAccessControl": "true"}
            self.first: ApacheCluster | OberthCluster = OberthCluster(directory / "m", master)
            second: ApacheCluster | OberthCluster = OberthCluster(
                directory / "s", slave, namesrv_addr=self.first.namesrv_addr
            )
        else:
            version = kind.removeprefix("apache-")
            self.first = ApacheCluster(version, directory / "m", master, heap="1g", pretouch=True)
            second = ApacheCluster(
                version, directory / "s", slave, heap="1g", pretouch=True,
                namesrv_addr=self.first.namesrv_addr,
            )  # fmt: skip
        self.master = self.first.brokers[0]
        self.slave = second.brokers[0]
        self.namesrv_addr = self.first.namesrv_addr

    def close(self) -> None:
        """Kill everything."""
        self.slave.kill()
        self.first.kill()

    def wait_equal(self) -> None:
        """Until the slave has the whole log."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not 0 <= log_end(self.slave) == log_end(self.master):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.slave.directory}: not equal to its master")
            time.sleep(_POLL_S)


@contextlib.contextmanager
def running(kind: str, directory: Path, role: str, *, ha_host: str | None = None) -> Iterator[Pair]:
    """A pair that follows."""
    pair = Pair(kind, directory, role, ha_host=ha_host)
    try:
        pair.first.start()
        pair.slave.start()
        yield pair
    finally:
        pair.close()
        shutil.rmtree(directory, ignore_errors=True)


def log_end(node: Node) -> int:
    """Where a broker's log ends; -1 while it does not say."""
    _, body = remoting_call(node.address, _RUNTIME, timeout_s=30)
    return int(json.loads(body)["table"]["commitLogMaxOffset"]) if body else -1


def fill(pair: Pair, megabytes: int) -> None:
    """Put so much into the master's log."""
    fields = send_fields("fill", 0, int(time.time() * 1000))
    body = b"x" * BODY_BYTES
    wire = Wire(pair.master.address, timeout_s=120)
    count = (megabytes << 20) // BODY_BYTES
    codes = wire.call_many((_SEND, fields, body) for _ in range(count))
    wire.close()
    if not codes.get(0):
        raise RuntimeError(f"answers while filling: {codes}")


def catch_up(pair: Pair, megabytes: int) -> float:
    """MB/s from the first piece that the slave takes to the end of the log."""
    create_topics(pair.master.address, ["fill"], 4)
    fill(pair, 1)
    pair.wait_equal()
    before = log_end(pair.slave)
    pair.slave.stop()
    fill(pair, megabytes)
    target = log_end(pair.master)
    pair.slave.launch()
    deadline = time.monotonic() + _TIMEOUT_S
    began, first, end = 0.0, 0, -1
    while end < target:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the slave is at {end} of {target}")
        time.sleep(_POLL_S)
        try:
            end = log_end(pair.slave)
        except OSError:  # it is starting
            continue
        if not began and end > before:
            began, first = time.monotonic(), end
    taken = time.monotonic() - began
    return (target - first) / taken / 1e6 if target > first else float(target) / 1e6


def readable(pair: Pair, seconds: float) -> list[float]:
    """Milliseconds from each send to the master to its coming from the slave."""
    create_topics(pair.master.address, ["fill"], 1)
    fill(pair, 1)
    pair.wait_equal()
    count = int(seconds * RATE)
    sender = threading.Thread(target=_send_at_a_rate, args=(pair.master.address, count))
    fields = {
        "consumerGroup": "bench",
        "topic": "fill",
        "queueId": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    skipped = (1 << 20) // BODY_BYTES
    found: list[float] = []
    offset = skipped
    deadline = time.monotonic() + _TIMEOUT_S
    last = fields | {"queueOffset": str(skipped - 1)}
    while remoting_call(pair.slave.address, _PULL, last)[0]["code"] != _FOUND:
        # A slave serves a topic once it has its master's tables, up to a minute later.
        if time.monotonic() > deadline:
            raise TimeoutError(f"{pair.slave.directory}: it does not know the topic")
        time.sleep(_POLL_S)
    sender.start()
    while len(found) < count and time.monotonic() < deadline:
        answer, body = remoting_call(
            pair.slave.address, _PULL, fields | {"queueOffset": str(offset)}
        )
        now = time.monotonic_ns()
        if answer["code"] != _FOUND:
            time.sleep(_READ_S)
        while answer["code"] == _FOUND and body:
            size = stated_size(body)
            sent_at = int(decode_record(body[:size]).body[:20])
            found.append((now - sent_at) / 1e6)
            body = body[size:]
            offset += 1
    sender.join()
    if len(found) < count:
        raise TimeoutError(f"the slave gave {len(found)} of {count} messages")
    return found


def _send_at_a_rate(address: str, count: int) -> None:
    wire = Wire(address, timeout_s=120)
    fields = send_fields("fill", 0, int(time.time() * 1000))
    began = time.monotonic()
    for number in range(count):
        wait_s = began + number / RATE - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        wire.call(_SEND, fields, b"%020d" % time.monotonic_ns() + b"x" * 1004)
    wire.close()


def chain(directory: Path, count: int) -> float:
    """Seconds of processor of puts with the checksums of their log, divided by those without."""
    from oberth.formats.broker_conf import read_store_config
    from oberth.store.message_store import MessageStore
    from oberth.store.messages import MessageExtBrokerInner

    message = MessageExtBrokerInner("chain", b"x" * 1024)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(10):
        summed = bool(turn % 2)
        entries = {"storePathRootDir": str(directory / str(turn)), "diskMaxUsedSpaceRatio": "95"}
        store = MessageStore(read_store_config(overrides=entries))
        store.load()
        # Without the store's own threads: the puts and the sums alone, each to its end.
        store.start(reput_thread=False, background=False)
        began = time.process_time()
        for _ in range(count):
            store.put_message(message)
        while summed and store.checksums.extend():
            pass
        taken[summed].append(time.process_time() - began)
        if not store.max_phy_offset:
            raise RuntimeError("the store takes no messages")
        store.shutdown()
        shutil.rmtree(directory / str(turn), ignore_errors=True)
    return statistics.median(taken[True]) / statistics.median(taken[False])


def bare_copy(directory: Path, megabytes: int) -> float:
    """MB/s from a mapped file over loopback into another: no master and slave here are faster."""
    directory.mkdir(parents=True)
    size = megabytes << 20
    (directory / "from").write_bytes(random.Random(1).randbytes(1 << 20) * megabytes)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = subprocess.Popen(
            [sys.executable, "-c", _BARE_SENDER, str(directory / "from"),
             str(listener.getsockname()[1])]
        )  # fmt: skip
        connection, _ = listener.accept()
    with connection, (directory / "into").open("w+b") as into:
        into.truncate(size)
        target = memoryview(mmap.mmap(into.fileno(), size))
        began, end = time.perf_counter(), 0
        while end < size:
            received = connection.recv_into(target[end : end + _AT_ONCE])
            if not received:
                raise ConnectionError(f"the sender ended at {end} of {size} bytes")
            end += received
        taken = time.perf_counter() - began
    sender.wait()
    shutil.rmtree(directory)
    return size / taken / 1e6


class Run:
    """One side's turn."""

    def __init__(self, kind: str, directory: Path, options: argparse.Namespace) -> None:
        self.kind = kind
        self.directory = directory
        self.options = options

    def measure(self, add: Add) -> None:
        """Every wanted row."""
        options, directory = self.options, self.directory
        if "sync" in options.only:
            with running(self.kind, directory / "sync", "SYNC_MASTER") as pair:
                common = {"size": 1024, "topic": "sync", "sec": options.sec, "warm": options.warm}
                client = directory / "client"
                line = load("send", pair.namesrv_addr, client, threads=64, **common)
                add("sync-64", line["per_s"])
                line = load("send", pair.namesrv_addr, client, threads=1, **common)
                add("sync-1", line["p50_us"])
        if "catchup" in options.only:
            with running(self.kind, directory / "catchup", "ASYNC_MASTER") as pair:
                add("catchup", catch_up(pair, options.mb))
        if "delayed" in options.only and options.can_delay:
            add("delayed", self._delayed())
        if "copy" in options.only and self.kind == "oberth":
            add("copy", bare_copy(directory / "copy", options.mb))
        if "readable" in options.only:
            with running(self.kind, directory / "readable", "ASYNC_MASTER") as pair:
                found = sorted(readable(pair, options.sec))
                add("readable-p50", found[len(found) // 2])
                add("readable-p99", found[len(found) * 99 // 100])
        if "chain" in options.only and self.kind == "oberth":
            add("chain", chain(directory / "chain", 5_000 if options.small else 50_000))

    def _delayed(self) -> float:
        """This program again, in a network namespace with a slow network between the two."""
        inner = ["--brokers", self.kind, "--in-namespace", str(self.directory / "delayed")]
        command = [sys.executable, "-m", "benchmarks.replication", "--mb", str(self.options.mb)]
        done = in_namespace([*command, *inner], timeout_s=_TIMEOUT_S * 2)
        if done.returncode:
            raise RuntimeError(f"with {DELAY_MS} ms of delay: {done.stderr[-2000:]}")
        return float(done.stdout.split()[-1])


def in_namespace(command: list[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A command in a network namespace of its own, whose loopback is up.

    Its TCP grows its window until a packet is lost (Reno, which every Linux has). BBR, which some
    machines are set to, takes the pace of whoever carries the packets for that of the network, and
    its rates differ by half.
    """
    script = f'ip link set lo up && echo reno >{_CONGESTION_CONTROL} && exec "$@"'
    return subprocess.run(
        ["unshare", "-n", "sh", "-c", script, "sh", *command],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def slow_packets() -> Iterator[None]:
    """`slow_network.FAR` is reached with a delay; in a network namespace only."""
    command = [sys.executable, "-m", "benchmarks.peers.slow_network", str(DELAY_MS / 1000)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as carrier:
        assert carrier.stdin is not None
        assert carrier.stdout is not None
        try:
            if carrier.stdout.readline() != b"ready\n":
                raise RuntimeError("no slow network could be made; its error is above")
            yield
        finally:
            carrier.stdin.close()


def no_delay() -> str | None:
    """Why this machine cannot have a slow network, or None."""
    command = [sys.executable, "-m", "benchmarks.peers.slow_network", "0"]
    try:
        done = in_namespace(command, timeout_s=60)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()[-500:]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_turn_options(parser, GROUPS)
    parser.add_argument("--mb", type=int, help="MiB of log to catch up (1024; 32 when small)")
    parser.add_argument("--in-namespace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    kinds = fill_turn_options(options, "apache-5.5.0", GROUPS, "catchup,readable,chain")
    options.mb = options.mb or (32 if options.small else 1024)
    if options.in_namespace is not None:
        with (
            slow_packets(),
            running(
                kinds[-1], options.in_namespace, "ASYNC_MASTER", ha_host=slow_network.FAR
            ) as pair,
        ):
            print(catch_up(pair, options.mb))
        return
    skipped: dict[str, str] = {}
    why = no_delay() if "delayed" in options.only else None
    options.can_delay = why is None
    if why is not None:
        skipped["delayed"] = why
    table = rows()
    skipped |= take_turns(
        kinds,
        options.runs,
        table,
        lambda kind, place, add: Run(kind, place, options).measure(add),
    )
    emit("replication", table.values(), ours=kinds[-1], rival=kinds[0], skipped=skipped)


if __name__ == "__main__":
    main()
