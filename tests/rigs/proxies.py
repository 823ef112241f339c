"""Apache's proxy in front of any cluster, and suites of the official gRPC clients through it.

    with cluster, ApacheProxy(cluster, directory) as proxy:
        for outcome in run_grpc_suite(cluster, proxy, "java", directory / "java"):
            ...

From a shell:

    python -m tests.rigs.proxies --broker oberth --brokers 3 --language python fifo-push recall

The proxy runs in cluster mode, so all that its clients do reaches the brokers as remoting requests
over the proxy's own connections. A suite is a program per language (tests/interop/grpc) that prints
one line of JSON per scenario; the scenarios have the same names and the same checks in each. Topics
and groups are made here, on every broker of the cluster, before the program starts: one topic and
one group per scenario, of the message type that it needs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import click
from tests.rigs import peers
from tests.rigs.clusters import Cluster, Node, cluster_for, free_port, remoting_call
from tests.rigs.interop import (
    Outcome,
    outcomes_of,
    run_client_suite,
    show_outcome,
    stream_json,
)

from oberth.errors import PeerUnavailableError

__all__ = [
    "DIRECT_LANGUAGES",
    "GRPC_LANGUAGES",
    "GRPC_MISSING",
    "GRPC_SCENARIOS",
    "GRPC_SMALL",
    "PROXY_CONF",
    "REMOTING_SCENARIOS",
    "REMOTING_SETTINGS",
    "ApacheProxy",
    "Endpoint",
    "OberthProxy",
    "create_group",
    "create_topic",
    "grpc_sources",
    "ledger_command",
    "run_grpc_suite",
    "run_remoting_suite",
]

GRPC_LANGUAGES: Final = ("java", "python", "node")

DIRECT_LANGUAGES: Final = (*GRPC_LANGUAGES, "go", "rust", "cpp")
"""Of the clients for Go, Rust and C++ there is no record behind Apache's proxy."""

GRPC_MISSING: Final[Mapping[str, frozenset[str]]] = {
    "go": frozenset({"recall", "priority", "lite"}),
    "cpp": frozenset({"lite"}),
    "rust": frozenset(
        {
            *("push", "push-retry", "push-tags", "push-sql92", "push-fifo", "push-fifo-retry"),
            *("simple-invisible", "recall", "priority", "lite"),
        }
    ),
}
"""Scenarios for which a client has no calls."""

GRPC_SCENARIOS: Final[Mapping[str, str]] = {
    "send-normal": "NORMAL",
    "push": "NORMAL",
    "push-retry": "NORMAL",
    "push-tags": "NORMAL",
    "push-sql92": "NORMAL",
    "push-fifo": "FIFO",
    "push-fifo-retry": "FIFO",
    "simple": "NORMAL",
    "simple-invisible": "NORMAL",
    "simple-tags": "NORMAL",
    "simple-sql92": "NORMAL",
    "simple-fifo": "FIFO",
    "delay": "DELAY",
    "recall": "DELAY",
    "transaction": "TRANSACTION",
    "transaction-check": "TRANSACTION",
    "wrong-type": "NORMAL",
    "priority": "PRIORITY",
    "lite": "LITE",
}
"""Scenario -> the message type of its topic."""

PROXY_CONF: Final[Mapping[str, str]] = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "transactionCheckMax": "1000",
    "osPageCacheBusyTimeOutMills": "30000",
}
"""Keys of broker.conf, beside the suites' own, for a cluster behind a proxy: light queues as lite
topics need them, and a busy machine is no reason to refuse or to give a transaction up."""

REMOTING_SETTINGS: Final[Mapping[str, object]] = {"enableTopicMessageTypeCheck": False}
"""Keys of rmq-proxy.json for the remoting suite, whose topics have no message type."""

GRPC_SMALL: Final = (
    "send-normal",
    "push",
    "push-sql92",
    "push-fifo",
    "simple",
    "simple-tags",
    "delay",
    "recall",
    "transaction",
    "transaction-check",
    "wrong-type",
    "lite",
)
"""Those that end within seconds and still touch every kind of message and both kinds of consumer.
"""

REMOTING_SCENARIOS: Final = (
    "send-sync",
    "send-async",
    "send-oneway",
    "send-batch",
    "send-selector",
    "send-compressed",
    "send-large",
    "push-concurrent",
    "push-orderly",
    "push-tags",
    "push-sql92",
    "retry-dlq",
    "lite-pull-assign",
    "timer-recall",
    "pop-push-orderly",
)
"""What the remoting client does through the proxy's remoting port. Left out are requests that the
proxy does not serve with any broker behind it (pull, lite-pull-subscribe, pop-push), and scenarios
whose short times the additional hop exceeds on a busy machine."""

QUEUES: Final = 4

_RETRY_SOON: Final = {
    "type": "EXPONENTIAL",
    "exponentialRetryPolicy": {"initial": 1000, "max": 2000, "multiplier": 2},
}

_HEAP: Final = "512m"
_READY_TIMEOUT_S: Final = 240.0
_SUITE_TIMEOUT_S: Final = 600.0
_CREATE_TOPIC: Final = 17
_CREATE_GROUP: Final = 200
_GET_ROUTE: Final = 105
_ROUTE_TIMEOUT_S: Final = 15.0
_ROUTE_POLL_S: Final = 0.05


class Endpoint(Protocol):
    """What gRPC clients are given: Apache's proxy, or a broker of ours."""

    @property
    def endpoint(self) -> str:
        """``host:port``."""


class ApacheProxy:
    """Apache's proxy of one release in cluster mode, on loopback addresses of its own.

    Args:
        cluster: what it stands before; must run when the proxy starts.
        directory: where its configuration and log go.
        version: a release that has a proxy.
        settings: further keys of rmq-proxy.json.
    """

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        *,
        version: str = peers.PROXY_VERSION,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.version = version
        lib = peers.jars(version, "proxy")
        grpc_port, remoting_port = free_port(), free_port()
        self.endpoint = f"127.0.0.1:{grpc_port}"
        self.remoting_addr = f"127.0.0.1:{remoting_port}"
        directory.mkdir(parents=True, exist_ok=True)
        configuration = directory / "rmq-proxy.json"
        configuration.write_text(
            json.dumps(
                {
                    "proxyMode": "CLUSTER",
                    "rocketMQClusterName": "DefaultCluster",
                    "namesrvAddr": cluster.namesrv_addr,
                    "localServeAddr": "127.0.0.1",
                    "remotingAccessAddr": "127.0.0.1",
                    "grpcServerPort": grpc_port,
                    "remotingListenPort": remoting_port,
                    "enablePrintJstack": False,
                    **(settings or {}),
                }
            )
        )
        self.node = Node(
            "proxy",
            self.endpoint,
            directory,
            peers.java_command(
                lib,
                "org.apache.rocketmq.proxy.ProxyStartup",
                *("-pc", str(configuration)),
                options=(
                    *("-Xms128m", f"-Xmx{_HEAP}", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=1"),
                    f"-Duser.home={directory}",
                ),
            ),
            environment={"ROCKETMQ_HOME": str(directory), "RMQ_PROXY_HOME": str(directory)},
        )

    def __enter__(self) -> Self:
        self.node.start(_READY_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.node.kill()  # it keeps nothing, and takes half a minute to stop


class OberthProxy:
    """``oberth proxy`` before a cluster.

    Args:
        cluster: what it stands before.
        directory: where its log goes.
    """

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        port = free_port()
        self.endpoint = f"127.0.0.1:{port}"
        directory.mkdir(parents=True, exist_ok=True)
        self.node = Node(
            "proxy",
            self.endpoint,
            directory,
            [
                *(sys.executable, "-m", "oberth", "proxy", "-v"),
                *("-n", cluster.namesrv_addr, "--port", str(port)),
            ],
        )

    def __enter__(self) -> Self:
        self.node.start(_READY_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.node.kill()


def create_topic(cluster: Cluster, topic: str, message_type: str, queues: int = QUEUES) -> None:
    """Make a topic on every broker of the cluster; returns when all of them are in its route."""
    attributes = f"+message.type={message_type}"
    if message_type == "LITE":
        attributes += ",+lite.topic.expiration=60"
    for broker in cluster.brokers:
        _ask(
            broker.address,
            _CREATE_TOPIC,
            {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(queues),
                "writeQueueNums": str(queues),
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
                "attributes": attributes,
            },
        )
    deadline = time.monotonic() + _ROUTE_TIMEOUT_S
    wanted = [f'"{broker.name}"'.encode() for broker in cluster.brokers]
    while True:
        header, body = remoting_call(cluster.namesrv_addr, _GET_ROUTE, {"topic": topic})
        if header["code"] == 0 and all(name in body for name in wanted):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} is not in the routes of {cluster.namesrv_addr}")
        time.sleep(_ROUTE_POLL_S)


def create_group(cluster: Cluster, group: str, **more: object) -> None:
    """Make a consumer group on every broker; ``more`` are further keys of its configuration."""
    body = json.dumps({"groupName": group, "retryMaxTimes": 4, **more}).encode()
    for broker in cluster.brokers:
        _ask(broker.address, _CREATE_GROUP, {}, body)


def _ask(address: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
    header, _ = remoting_call(address, code, fields, body, timeout_s=10)
    if header["code"] != 0:
        raise PeerUnavailableError(f"{address} refused {code}: {header.get('remark')}")


def grpc_sources(language: str) -> Path:
    """The folder with the suite of one language."""
    return peers.checkout() / "tests" / "interop" / "grpc" / language


def _java(main: str, directory: Path, *, tls: bool = False) -> list[str]:
    """The command of one of our programs over the gRPC client for Java."""
    lib = peers.jars(peers.GRPC_JAVA_VERSION, "grpc")
    common = peers.checkout() / "tests" / "interop" / "java" / "common" / "Json.java"
    classes = peers.compile_java("grpc", lib, [*grpc_sources("java").glob("*.java"), common])
    options = (
        *("-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={directory}"),
        *("-Drocketmq.log.level=warn", f"-Drocketmq.log.root={directory / 'logs'}"),
        f"-Dsuite.tls={str(tls).lower()}",
    )
    return peers.java_command(lib, main, classes=classes, options=options)


def ledger_command(
    proxy: Endpoint,
    run: str,
    directory: Path,
    *,
    ordered: bool,
    settle_s: int,
    journals: Path | None = None,
) -> list[str]:
    """The command of traffic to kill brokers in, or, with a place for journals, itself.

    ``ordered`` checks the order of message groups.
    """
    arguments = [proxy.endpoint, run, str(ordered).lower(), str(settle_s)]
    if journals is not None:
        arguments.append(str(journals))
    return [*_java("GrpcLedger", directory), *arguments]


def _command(
    language: str, directory: Path, *, tls: bool = False
) -> tuple[list[str], dict[str, str]]:
    """The suite's command without its arguments, and what it needs in its environment."""
    source = grpc_sources(language)
    if language == "java":
        return _java("GrpcSuite", directory, tls=tls), {}
    if language == "python":
        packages = peers.python_grpc()
        # -S: nothing of this environment's own packages, only those beside the client.
        return [sys.executable, "-S", str(source / "grpc_suite.py")], {
            "PYTHONPATH": str(packages),
            "HOME": str(directory),
        }
    if language == "node":
        modules = peers.node_grpc()
        return [peers.tool("node", "runs the Node.js client"), str(source / "grpc_suite.js")], {
            "NODE_PATH": str(modules / "node_modules"),
            "HOME": str(directory),
        }
    if language == "go":
        return [str(peers.compile_go("grpc", source))], {"HOME": str(directory)}
    if language == "rust":
        return [str(peers.compile_rust("grpc-suite", source))], {"HOME": str(directory)}
    if language == "cpp":
        return [str(peers.compile_cpp("grpc-suite", source))], {"HOME": str(directory)}
    raise PeerUnavailableError(f"{language!r} is none of {', '.join(DIRECT_LANGUAGES)}")


def run_grpc_suite(
    cluster: Cluster,
    proxy: Endpoint,
    language: str,
    directory: Path,
    *,
    only: Sequence[str] = (),
    parallel: int = 4,
    timeout_s: float = _SUITE_TIMEOUT_S,
    tls: bool = False,
) -> Iterator[Outcome]:
    """Run scenarios of one language's client; gives each outcome as it is known.

    Args:
        cluster: what the proxy stands before, or the broker itself.
        proxy: a running proxy, or a broker's own gRPC port.
        language: one of GRPC_LANGUAGES.
        directory: where the client may write.
        only: scenarios; when empty, all of them.
        parallel: scenarios at a time.
        timeout_s: of the whole run.
        tls: as the client for Java does it by default; the others check certificates.
    """
    missing = GRPC_MISSING.get(language, frozenset())
    names = [name for name in only or GRPC_SCENARIOS if name not in missing]
    command, environment = _command(language, directory, tls=tls)
    run = f"{language}{zlib.crc32(os.urandom(8)):08x}"
    for name in names:
        message_type = GRPC_SCENARIOS[name]
        topic = f"{run}_{name}"
        create_topic(cluster, topic, message_type)
        more: dict[str, Any] = {}
        if message_type == "FIFO":
            more["consumeMessageOrderly"] = True
        if message_type == "LITE":
            more["attributes"] = {"+lite.bind.topic": topic}
        if name == "push-retry":
            more["retryMaxTimes"] = 2
            more["groupRetryPolicy"] = _RETRY_SOON
        create_group(cluster, f"{topic}_G", **more)
    yield from outcomes_of(
        stream_json(
            [*command, proxy.endpoint, run, str(parallel), *names],
            directory,
            timeout_s=timeout_s,
            environment=environment,
        )
    )


def run_remoting_suite(
    cluster: Cluster,
    proxy: ApacheProxy,
    directory: Path,
    *,
    only: Sequence[str] = (),
    timeout_s: float = _SUITE_TIMEOUT_S,
) -> Iterator[Outcome]:
    """Run scenarios of the remoting client for Java through the proxy's remoting port."""
    yield from run_client_suite(
        cluster.namesrv_addr,
        proxy.version,
        directory,
        only=list(only) or REMOTING_SCENARIOS,
        timeout_s=timeout_s,
        front=proxy.remoting_addr,
    )


@click.command()
@click.option("--broker", default="oberth", show_default=True, help="KIND of cluster.")
@click.option("--brokers", default=1, show_default=True, help="How many brokers.")
@click.option(
    "--language", default="java", show_default=True, help="Whose client, all, or remoting."
)
@click.option(
    "--proxy",
    "proxy_kind",
    type=click.Choice(["apache", "oberth"]),
    default="apache",
    show_default=True,
    help="Whose proxy.",
)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Keys of broker.conf.")
@click.option("--proxy-conf", default="{}", help="JSON with further keys of rmq-proxy.json.")
@click.option("--observed", is_flag=True, help="Also show what was observed.")
@click.argument("scenarios", nargs=-1)
def main(
    broker: str,
    brokers: int,
    language: str,
    proxy_kind: str,
    conf: tuple[str, ...],
    proxy_conf: str,
    observed: bool,
    scenarios: tuple[str, ...],
) -> None:
    """Run scenarios of a gRPC client through a proxy before a cluster."""
    bad = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is stopped
    directory = Path(tempfile.mkdtemp(prefix="oberth-proxy-"))
    keys = {**PROXY_CONF, **dict(pair.partition("=")[::2] for pair in conf)}
    try:
        cluster = cluster_for(broker, directory, keys, brokers=brokers)
        proxy = (
            ApacheProxy(cluster, directory / "proxy", settings=json.loads(proxy_conf))
            if proxy_kind == "apache"
            else OberthProxy(cluster, directory / "proxy")
        )
        with cluster, proxy:
            languages = DIRECT_LANGUAGES if language == "all" else (language,)
            for each in languages:
                folder = directory / each
                outcomes = (
                    run_remoting_suite(cluster, proxy, folder, only=scenarios)
                    if each == "remoting" and isinstance(proxy, ApacheProxy)
                    else run_grpc_suite(cluster, proxy, each, folder, only=scenarios)
                )
                for o in outcomes:
                    bad += o.ok is False
                    show_outcome(o, f"{each:7} {o.scenario:18}", observed=observed)
    except PeerUnavailableError as why:
        raise click.ClickException(str(why)) from why
    click.echo(f"logs and store: {directory}", err=True)
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
