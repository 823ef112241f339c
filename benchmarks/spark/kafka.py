"""One Kafka node and Spark's Kafka source: the rival of the Spark benchmarks.

Jars come through Maven into the peers' cache (`tests.rigs.peers.cache_dir`): a broker of
``KAFKA_VERSION`` and the connector of ``CONNECTOR_VERSION``, which is the newest that is published.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.rigs.peers import cache_dir

from oberth.errors import PeerUnavailableError

KAFKA_VERSION = "4.3.1"
CONNECTOR_VERSION = "4.2.0"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
_BROKER = (
    (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", False),
    (f"org.apache.kafka:kafka-tools:{KAFKA_VERSION}", False),
    ("org.apache.logging.log4j:log4j-slf4j-impl:2.25.4", True),
)
# Each alone: with its dependencies Maven would ask a repository that Spark's parent POM names.
_CONNECTOR = (
    (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}", True),
    ("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1", True),
    ("org.apache.commons:commons-pool2:2.13.1", True),
    ("org.apache.kafka:kafka-clients:3.9.2", True),
)
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>oberth</groupId><artifactId>rival</artifactId><version>1</version>
<dependencies><dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
{3}</dependency></dependencies></project>"""
_ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{1}
listeners=PLAINTEXT://127.0.0.1:{0},CONTROLLER://127.0.0.1:{1}
advertised.listeners=PLAINTEXT://127.0.0.1:{0}
controller.listener.names=CONTROLLER
log.dirs={2}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_START_TIMEOUT_S = 60
_BRING_TIMEOUT_S = 900


def _bring(target: Path, artifacts: tuple[tuple[str, bool], ...]) -> Path:
    if target.is_dir():
        return target
    mvn = shutil.which("mvn")
    if mvn is None:
        raise PeerUnavailableError("no mvn on this machine (brings Kafka)")
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for coordinates, alone in artifacts:
            pom = work / "pom.xml"
            pom.write_text(_POM.format(*coordinates.split(":"), _ALONE if alone else ""))
            done = subprocess.run(
                [mvn, "-B", "-q", "-f", str(pom), _COPY, f"-DoutputDirectory={work}"],
                capture_output=True,
                text=True,
                timeout=_BRING_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise PeerUnavailableError(f"Maven could not bring {coordinates}")
        (work / "pom.xml").unlink()
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def broker_jars() -> Path:
    """The directory of a broker's jars."""
    base = cache_dir() / "kafka"
    base.mkdir(exist_ok=True)
    return _bring(base / f"kafka-{KAFKA_VERSION}", _BROKER)


def connector_jars() -> list[Path]:
    """The jars that Spark needs to read Kafka."""
    base = cache_dir() / "kafka"
    base.mkdir(exist_ok=True)
    return sorted(_bring(base / "sparkjars", _CONNECTOR).glob("*.jar"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class KafkaNode:
    """A node that runs.

    Attributes:
        servers: what clients connect to.
        jars: the broker's, which hold its tools too.
    """

    servers: str
    jars: Path

    def _tool(self, main: str, *arguments: str) -> None:
        subprocess.run(
            ["java", "-Xmx512m", "-cp", f"{self.jars}/*", main, *arguments],
            check=True,
            capture_output=True,
            timeout=_BRING_TIMEOUT_S,
        )

    def fill(self, topic: str, partitions: int, rows: int, size: int) -> None:
        """Makes a topic with so many records of one size."""
        self._tool(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", self.servers, "--create", "--topic", topic),
            *("--partitions", str(partitions)),
        )
        self._tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(rows), "--record-size", str(size)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={self.servers}"),
            *("acks=all", "linger.ms=5", "batch.size=131072"),
        )


@contextlib.contextmanager
def kafka_node(directory: Path) -> Iterator[KafkaNode]:
    """One KRaft node on loopback, with the heap and flags of Kafka's own start script."""
    jars = broker_jars()
    port, controller = _free_port(), _free_port()
    shutil.rmtree(directory, ignore_errors=True)  # a formatted one is not formatted again
    directory.mkdir(parents=True)
    properties = directory / "server.properties"
    properties.write_text(_PROPERTIES.format(port, controller, directory / "logs"))
    java = ["java", "-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
    path = ["-cp", f"{jars}/*"]
    subprocess.run(
        [
            *("java", *path, "kafka.tools.StorageTool", "format"),
            *("-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(properties)),
        ],
        check=True,
        capture_output=True,
        timeout=_START_TIMEOUT_S,
    )
    with open(directory / "server.log", "wb") as log:
        server = subprocess.Popen(
            [*java, *path, "kafka.Kafka", str(properties)], stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if server.poll() is not None or time.monotonic() > deadline:
                raise PeerUnavailableError(f"Kafka did not start; see {directory}/server.log")
            time.sleep(0.2)
        yield KafkaNode(f"127.0.0.1:{port}", jars)
    finally:
        server.terminate()
        server.wait(timeout=_START_TIMEOUT_S)
