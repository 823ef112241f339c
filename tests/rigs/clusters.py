"""Clusters for suites that do not care whose broker answers: Apache's, ours, or any address.

    with cluster_for("apache-5.5.0", directory, conf={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        run_something(cluster.namesrv_addr)
        cluster.brokers[0].kill()   # SIGKILL
        cluster.brokers[0].start()  # the same store, the same port

A cluster is a name server and brokers as separate processes on loopback, on ports chosen when it is
made. Its directory holds one folder per node (``broker.conf``, ``log``, ``store``) and is left
behind when it closes. Closing stops brokers, then kills name servers (they keep nothing), and kills
what does not stop in time. What is always true: a node that ``start`` returned from accepts
connections, and a broker is in its name server's table under its own address.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol, Self

from tests.rigs import peers

from oberth.errors import PeerUnavailableError, RemoteProtocolError

__all__ = [
    "KINDS",
    "SUITE_CONF",
    "ApacheCluster",
    "Cluster",
    "ForeignCluster",
    "Node",
    "OberthCluster",
    "cluster_for",
    "free_port",
    "remoting_call",
    "resident_bytes",
]

KINDS: Final = ("apache-5.5.0", "apache-4.9.7", "oberth")
"""Names that cluster_for() takes, beside ``host:port`` of a name server."""

SUITE_CONF: Final[Mapping[str, str]] = {
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "traceTopicEnable": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "transactionOpBatchInterval": "500",
    "diskMaxUsedSpaceRatio": "95",
    "waitTimeMillsInSendQueue": "10000",  # a busy machine is no reason to refuse
}
"""Keys of broker.conf that the suites need wherever they run: everything switched on, and the
long periods of transactions made short."""

_PORT_RANGE: Final = range(
    20_000, 30_000
)  # below the ports that Linux gives to outgoing connections
_READY_TIMEOUT_S: Final = 300.0  # a JVM on a crowded machine; only one that hangs takes so long
_STOP_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.01
_LOG_TAIL_BYTES: Final = 3_000
_FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
_GET_BROKER_CLUSTER_INFO: Final = 106


def free_port(also: Sequence[int] = ()) -> int:
    """A port that nobody listens on now, and neither at the given distances from it."""
    ports = random.SystemRandom()
    for _ in range(1_000):
        port = ports.choice(_PORT_RANGE)
        with contextlib.ExitStack() as held:
            try:
                for number in (port, *(port + distance for distance in also)):
                    probe = held.enter_context(socket.socket())
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", number))
            except OSError:
                continue
            return port
    raise PeerUnavailableError(f"no free port in {_PORT_RANGE}")


def remoting_call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    timeout_s: float = 3.0,
) -> tuple[dict[str, object], bytes]:
    """One request on a connection of its own; gives the decoded JSON header and the body.

    Written apart from oberth.remoting on purpose: it judges servers, ours among them.

    Raises:
        OSError: no connection, or it broke.
        RemoteProtocolError: the answer is not a frame.
    """
    host, _, port = address.rpartition(":")
    header = json.dumps(
        {
            "code": code,
            "language": "OTHER",
            "version": 409,
            "opaque": 1,
            "flag": 0,
            "extFields": dict(fields or {}),
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    frame = struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body
    with socket.create_connection((host, int(port)), timeout=timeout_s) as peer:
        peer.sendall(frame)
        stream = peer.makefile("rb")
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ConnectionResetError(f"{address} closed the connection")
        size, word = struct.unpack(">iI", prefix)
        header_size = word & 0xFF_FFFF
        if not 4 + header_size <= size <= _FRAME_BYTES_MAX:
            raise RemoteProtocolError(f"{address}: frame of {size} bytes, header {header_size}")
        rest = stream.read(size - 4)
    return json.loads(rest[:header_size]), rest[header_size:]


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """A figure of /proc/PID/status in bytes: VmRSS, RssAnon, RssFile, VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise PeerUnavailableError(f"/proc/{pid}/status has no {field}")


class Node:
    """One server process: started, killed and started again on the same directory.

    Args:
        name: the broker's name, or ``namesrv``.
        address: what it listens on.
        directory: its folder; ``log`` in it gets stdout and stderr of every start.
        command: what to run.
        namesrv_addr: where it must appear before start() returns; None for a name server.
        environment: added to this process's own.
    """

    def __init__(
        self,
        name: str,
        address: str,
        directory: Path,
        command: Sequence[str],
        *,
        namesrv_addr: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.directory = directory
        self.command = list(command)
        self.namesrv_addr = namesrv_addr
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def store(self) -> Path:
        """The store directory (of a broker)."""
        return self.directory / "store"

    @property
    def log(self) -> Path:
        """What the process wrote."""
        return self.directory / "log"

    @property
    def pid(self) -> int:
        """Of the running process."""
        if self._process is None:
            raise PeerUnavailableError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def launch(self) -> None:
        """Start the process without waiting for anything."""
        if self.running:
            raise PeerUnavailableError(f"{self.name} is running already, process {self.pid}")
        log: IO[bytes]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.directory,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def start(self, timeout_s: float = _READY_TIMEOUT_S) -> float:
        """Start the process and wait until it serves; gives the seconds that took."""
        began = time.monotonic()
        self.launch()
        self.wait_ready(timeout_s)
        return time.monotonic() - began

    def wait_ready(self, timeout_s: float = _READY_TIMEOUT_S) -> None:
        """Wait until the port accepts and, for a broker, its name server lists it."""
        deadline = time.monotonic() + timeout_s
        host, _, port = self.address.rpartition(":")
        while not self._accepts(host, int(port)):
            self._pause(deadline, f"nobody listens on {self.address}")
        while not self._registered():
            self._pause(deadline, f"{self.namesrv_addr} does not list {self.name}")

    @staticmethod
    def _accepts(host: str, port: int) -> bool:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            return False
        return True

    def _registered(self) -> bool:
        if self.namesrv_addr is None:
            return True
        try:
            _, body = remoting_call(self.namesrv_addr, _GET_BROKER_CLUSTER_INFO)
        except OSError:
            return False
        return self.name.encode() in body and f'"{self.address}"'.encode() in body

    def _pause(self, deadline: float, why: str) -> None:
        if not self.running:
            why, deadline = f"{self.name} ended with {self._process and self._process.poll()}", 0.0
        if time.monotonic() > deadline:
            tail = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
            self.kill()
            raise PeerUnavailableError(f"{self.name} did not start: {why}\n{tail}")
        time.sleep(_POLL_S)

    def stop(self, timeout_s: float = _STOP_TIMEOUT_S) -> float:
        """SIGTERM, and SIGKILL when that is not enough; gives the seconds it took."""
        began = time.monotonic()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        return time.monotonic() - began

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Meanwhile the process stands still, and none of its system calls is at work."""
        self._signal_and_wait(signal.SIGSTOP, os.WSTOPPED)
        try:
            yield
        finally:
            self._signal_and_wait(signal.SIGCONT, os.WCONTINUED)

    def _signal_and_wait(self, number: signal.Signals, change: int) -> None:
        os.kill(self.pid, number)
        # Or it has ended by itself, which is left to be read.
        os.waitid(os.P_PID, self.pid, change | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_STOP_TIMEOUT_S)
            self._process = None


class Cluster(Protocol):
    """What suites ask of a cluster."""

    kind: str
    namesrv_addr: str
    # Empty when the processes are not ours to stop.
    brokers: list[Node]

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class _LocalCluster:
    """Nodes in the order in which they start."""

    kind = ""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.namesrv_addr = ""
        self.name_servers: list[Node] = []
        self.brokers: list[Node] = []

    @property
    def nodes(self) -> Iterator[Node]:
        """Name servers, then brokers."""
        yield from self.name_servers
        yield from self.brokers

    @property
    def broker_addr(self) -> str:
        """Of the first broker."""
        return self.brokers[0].address

    def start(self) -> None:
        """Start what does not run."""
        for node in self.nodes:
            if not node.running:
                node.start()

    def stop(self) -> None:
        """Stop brokers, then kill name servers, which keep nothing."""
        for node in reversed(self.brokers):
            node.stop()
        for node in self.name_servers:
            node.kill()

    def kill(self) -> None:
        """SIGKILL everything."""
        for node in self.nodes:
            node.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _broker_name(number: int) -> str:
    return f"broker-{chr(ord('a') + number)}"


def _write_conf(path: Path, conf: Mapping[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()))


_LOGBACK: Final = """<configuration>
  <appender name="console" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="console"/></root>
</configuration>
"""


class ApacheCluster(_LocalCluster):
    """Apache's name server and brokers of one release.

    Args:
        version: one of peers.SERVER_VERSIONS.
        directory: where nodes keep their folders.
        conf: further keys of broker.conf.
        brokers: how many, each a master of its own.
        heap: of each broker, as Java writes it.
        pretouch: touch the heap at start, as Apache's own scripts do (measure with it).
        namesrv_addr: register there instead of starting a name server.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        conf: Mapping[str, str] | None = None,
        *,
        brokers: int = 1,
        heap: str = "512m",
        pretouch: bool = False,
        namesrv_addr: str | None = None,
    ) -> None:
        super().__init__(directory)
        self.kind = f"apache-{version}"
        self.lib = peers.jars(version)
        if namesrv_addr is None:
            self.namesrv_addr = f"127.0.0.1:{free_port()}"
            self.name_servers.append(self._name_server())
        else:
            self.namesrv_addr = namesrv_addr
        for number in range(brokers):
            self.brokers.append(self._broker(_broker_name(number), conf or {}, heap, pretouch))

    def _java(self, directory: Path, main: str, *args: str, options: Sequence[str]) -> list[str]:
        for part in ("namesrv", "broker"):  # 4.9.7 does not start without them
            logback = directory / "conf" / f"logback_{part}.xml"
            logback.parent.mkdir(parents=True, exist_ok=True)
            logback.write_text(_LOGBACK)
        common = (f"-Duser.home={directory}", "-Drocketmq.log.root.level=WARN", "-XX:+UseG1GC")
        return peers.java_command(self.lib, main, *args, options=(*common, *options))

    def _name_server(self) -> Node:
        directory = self.directory / "namesrv"
        _write_conf(
            directory / "namesrv.conf", {"listenPort": self.namesrv_addr.rpartition(":")[2]}
        )
        return Node(
            "namesrv",
            self.namesrv_addr,
            directory,
            self._java(
                directory,
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                *("-c", str(directory / "namesrv.conf")),
                options=("-Xms128m", "-Xmx128m"),
            ),
            environment={"ROCKETMQ_HOME": str(directory)},
        )

    def _broker(self, name: str, conf: Mapping[str, str], heap: str, pretouch: bool) -> Node:
        directory = self.directory / name
        port = free_port(also=(-2, 1))
        _write_conf(
            directory / "broker.conf",
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": name,
                "brokerId": "0",
                "brokerIP1": "127.0.0.1",
                "listenPort": str(port),
                "haListenPort": str(port + 1),
                "namesrvAddr": self.namesrv_addr,
                "storePathRootDir": str(directory / "store"),
                "storePathCommitLog": str(directory / "store" / "commitlog"),
                **conf,
            },
        )
        return Node(
            name,
            f"127.0.0.1:{port}",
            directory,
            self._java(
                directory,
                "org.apache.rocketmq.broker.BrokerStartup",
                *("-c", str(directory / "broker.conf")),
                options=(
                    *(f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=4g"),
                    *(["-XX:+AlwaysPreTouch"] if pretouch else []),
                ),
            ),
            namesrv_addr=self.namesrv_addr,
            environment={"ROCKETMQ_HOME": str(directory)},
        )


def _oberth_up(directory: Path, namesrv_port: int, port: int) -> list[str]:
    """The command that starts our name server and broker in one process."""
    return [
        *(sys.executable, "-m", "oberth", "up"),
        *("--store", str(directory / "store")),
        *("--namesrv-port", str(namesrv_port), "--port", str(port)),
        *("-c", str(directory / "broker.conf"), "--console-port", "-1"),
    ]


def _oberth_broker(directory: Path) -> list[str]:
    """The command that starts a further broker of ours, everything else from its broker.conf."""
    return [sys.executable, "-m", "oberth", "broker", "-c", str(directory / "broker.conf")]


def oberth_in_place_of(node: Node) -> Node:
    """Our broker with the configuration, the store and the address of another, which rests."""
    return Node(
        node.name,
        node.address,
        node.directory,
        _oberth_broker(node.directory),
        namesrv_addr=node.namesrv_addr,
    )


class OberthCluster(_LocalCluster):
    """Our name server and brokers: the first broker shares a process with the name server.

    Args:
        directory: where nodes keep their folders.
        conf: further keys of broker.conf.
        brokers: how many, each a master of its own.
        namesrv_addr: register there instead of starting a name server.
    """

    kind = "oberth"

    def __init__(
        self,
        directory: Path,
        conf: Mapping[str, str] | None = None,
        *,
        brokers: int = 1,
        namesrv_addr: str | None = None,
    ) -> None:
        if importlib.util.find_spec("oberth.cli.up") is None:
            raise PeerUnavailableError("this installation has no `oberth up`")
        super().__init__(directory)
        own_name_server = namesrv_addr is None
        self.namesrv_addr = namesrv_addr or f"127.0.0.1:{free_port()}"
        for number in range(brokers):
            name = _broker_name(number)
            folder = directory / name
            port = free_port(also=(-2, 1))
            _write_conf(
                folder / "broker.conf",
                {
                    "brokerClusterName": "DefaultCluster",
                    "brokerName": name,
                    "brokerId": "0",
                    "brokerIP1": "127.0.0.1",
                    "listenPort": str(port),
                    "namesrvAddr": self.namesrv_addr,
                    "storePathRootDir": str(folder / "store"),
                    **(conf or {}),
                },
            )
            with_name_server = own_name_server and number == 0
            namesrv_port = int(self.namesrv_addr.rpartition(":")[2])
            self.brokers.append(
                Node(
                    name,
                    f"127.0.0.1:{port}",
                    folder,
                    _oberth_up(folder, namesrv_port, port)
                    if with_name_server
                    else _oberth_broker(folder),
                    namesrv_addr=self.namesrv_addr,
                )
            )


class ForeignCluster:
    """Somebody else's cluster, known by its name server; nothing is started or stopped."""

    def __init__(self, namesrv_addr: str) -> None:
        self.kind = namesrv_addr
        self.namesrv_addr = namesrv_addr
        self.brokers: list[Node] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def cluster_for(
    kind: str, directory: Path, conf: Mapping[str, str] | None = None, *, brokers: int = 1
) -> Cluster:
    """The cluster that a name stands for, not started yet.

    Args:
        kind: one of KINDS, or ``host:port`` of a name server.
        directory: where it may write.
        conf: keys of broker.conf beside SUITE_CONF.
        brokers: how many.

    Raises:
        PeerUnavailableError: it cannot be had here.
    """
    wanted = {**SUITE_CONF, **(conf or {})}
    if kind == "oberth":
        return OberthCluster(directory, wanted, brokers=brokers)
    if kind.startswith("apache-"):
        return ApacheCluster(kind.removeprefix("apache-"), directory, wanted, brokers=brokers)
    host, _, port = kind.rpartition(":")
    if not host or not port.isdigit():
        raise PeerUnavailableError(f"{kind!r} is none of {', '.join(KINDS)}, nor host:port")
    return ForeignCluster(kind)
