"""Apache RocketMQ and its clients as programs that tests and benchmarks can start.

Everything lands in one cache directory: ``$OBERTH_PEERS``, or ``.cache/peers`` of the checkout:

    lib-5.5.0/  lib-4.9.7/     jars of name server, broker, store and tools, copied by Maven
    lib-client-4.9.8/          jars of client and tools alone
    lib-proxy-5.5.0/           jars of the proxy
    lib-grpc-5.2.0/            the gRPC client for Java
    python-grpc-5.1.2/         the gRPC client for Python, as a directory of packages
    node-grpc-1.0.8/           the gRPC client for Node.js, in its node_modules
    classes/NAME-HASH/         our Java programs, compiled against one of the above
    go/NAME-HASH/              our Go programs
    go/promtool-v0.313.2/      Prometheus' promtool
    cpp/NAME-HASH/             our C++ programs, over what OBERTH_CPP_CLIENT names

What is there is used as it is; what is missing is brought by the ordinary clients of the registries
(``mvn``, ``go``, ``pip``, ``npm``) with whatever mirrors the machine has configured. What cannot be
had raises PeerUnavailableError with one sentence that says why, so that a caller can skip and tell.
A directory appears under its final name only when it is complete, so that a killed download or two
processes at once do no harm.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from oberth.errors import PeerUnavailableError

__all__ = [
    "ADD_OPENS",
    "CLIENT_VERSIONS",
    "GRPC_JAVA_VERSION",
    "GRPC_NODE_VERSION",
    "GRPC_PYTHON_VERSION",
    "PROMETHEUS_VERSION",
    "PROXY_VERSION",
    "SERVER_VERSIONS",
    "cache_dir",
    "checkout",
    "compile_cpp",
    "compile_go",
    "compile_java",
    "compile_rust",
    "jars",
    "java_command",
    "node_grpc",
    "promtool",
    "python_grpc",
    "tool",
]

SERVER_VERSIONS: Final = ("5.5.0", "4.9.7")
"""Releases whose broker and name server can be started."""
CLIENT_VERSIONS: Final = ("5.5.0", "4.9.8")
"""Releases of the Java client that suites are run with."""
PROXY_VERSION: Final = "5.5.0"
"""The proxy, and the newest gRPC clients that speak to it; each language counts for itself."""
GRPC_JAVA_VERSION: Final = "5.2.0"
GRPC_PYTHON_VERSION: Final = "5.1.2"
GRPC_NODE_VERSION: Final = "1.0.8"
PROMETHEUS_VERSION: Final = "v0.313.2"
"""Of its Go module."""

_MAVEN_TIMEOUT_S: Final = 600
_COMPILE_TIMEOUT_S: Final = 300
_COPY_DEPENDENCIES: Final = (
    "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy-dependencies"
)

ADD_OPENS: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""What RocketMQ needs opened to run on Java 17."""


def checkout() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """Where peers are kept; created when missing."""
    named = os.environ.get("OBERTH_PEERS")
    path = Path(named) if named else checkout() / ".cache" / "peers"
    path.mkdir(parents=True, exist_ok=True)
    return path


def tool(name: str, what_for: str) -> str:
    """The path of a program, or PeerUnavailableError that says what it is for."""
    found = shutil.which(name)
    if found is None:
        raise PeerUnavailableError(f"no {name} on this machine ({what_for})")
    return found


def _run(command: Sequence[str], *, what: str, timeout_s: float, cwd: Path | None = None) -> None:
    """Run a build tool; its last lines become the reason when it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, timeout=timeout_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise PeerUnavailableError(f"{what}: not done after {timeout_s:.0f} s") from late
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise PeerUnavailableError(f"{what}: exit code {done.returncode}: " + " | ".join(lines[:6]))


def _build(target: Path, fill: Callable[[Path], None]) -> Path:
    """Fill a directory beside ``target`` and give it its name when complete.

    One process at a time: Maven's own folder is not made for two that write into it.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (cache_dir() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            fill(work)
            work.chmod(0o755)
            work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def jars(version: str, part: str = "server") -> Path:
    """The directory with the jars of one release.

    Args:
        version: a RocketMQ release; of ``iceberg`` one of Iceberg.
        part: ``server`` (everything), ``client`` (client and tools), ``proxy``, ``grpc``
            (the gRPC client), ``integration`` (RocketMQ's own integration tests) or ``iceberg``
            (Iceberg's REST catalog).
    """
    base = cache_dir()
    server = base / f"lib-{version}"
    if part == "server" or (part == "client" and server.is_dir()):
        part, target = "server", server
    else:
        target = base / f"lib-{part}-{version}"
    if target.is_dir():
        return target
    mvn = tool("mvn", f"brings the jars of {part} {version}")
    pom = checkout() / "benchmarks" / "peers" / "pom.xml"

    def fill(work: Path) -> None:
        _run(
            [
                *(mvn, "-B", "-q", "-f", str(pom), "-P", part, f"-Dv={version}"),
                *(_COPY_DEPENDENCIES, f"-DoutputDirectory={work}"),
            ],
            what=f"Maven could not bring {part} {version}",
            timeout_s=_MAVEN_TIMEOUT_S,
        )

    return _build(target, fill)


def python_grpc(version: str = GRPC_PYTHON_VERSION) -> Path:
    """A directory for ``PYTHONPATH`` that has the gRPC client for Python."""
    target = cache_dir() / f"python-grpc-{version}"

    def fill(work: Path) -> None:
        _run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(work)),
                f"rocketmq-python-client=={version}",
            ],
            what=f"pip could not bring rocketmq-python-client {version}",
            timeout_s=_MAVEN_TIMEOUT_S,
        )

    return _build(target, fill)


def node_grpc(version: str = GRPC_NODE_VERSION) -> Path:
    """A directory whose ``node_modules`` has the gRPC client for Node.js."""
    npm = tool("npm", "brings the Node.js client")
    target = cache_dir() / f"node-grpc-{version}"

    def fill(work: Path) -> None:
        (work / "package.json").write_text('{"private": true}\n')
        _run(
            [
                *(npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts"),
                f"rocketmq-client-nodejs@{version}",
            ],
            what=f"npm could not bring rocketmq-client-nodejs {version}",
            timeout_s=_MAVEN_TIMEOUT_S,
            cwd=work,
        )

    return _build(target, fill)


def _digest(files: Iterable[Path], *more: str) -> str:
    digest = hashlib.sha256()
    for text in more:
        digest.update(text.encode() + b"\0")
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def compile_java(name: str, lib: Path, sources: Iterable[Path]) -> Path:
    """Compile our Java programs against one release; gives the directory of the classes.

    Args:
        name: what the directory in the cache begins with.
        lib: a directory of jars() to compile against.
        sources: the .java files.
    """
    javac = tool("javac", f"compiles {name}")
    files = sorted(sources)
    target = cache_dir() / "classes" / f"{name}-{_digest(files, lib.name)}"

    def fill(work: Path) -> None:
        _run(
            [
                *(javac, "-nowarn", "-proc:none", "-encoding", "UTF-8", "-cp", f"{lib}/*"),
                *("-d", str(work), *map(str, files)),
            ],
            what=f"javac {name}",
            timeout_s=_COMPILE_TIMEOUT_S,
        )

    return _build(target, fill)


def compile_go(name: str, source: Path) -> Path:
    """Build a Go module of ours; gives the executable. Modules come through the Go proxy."""
    go = tool("go", f"builds {name}")
    files = sorted(p for p in source.iterdir() if p.suffix in {".go", ".mod", ".sum"})
    target = cache_dir() / "go" / f"{name}-{_digest(files)}"

    def fill(work: Path) -> None:
        _run(
            [go, "build", "-mod=readonly", "-o", str(work / name), "."],
            what=f"go build {name}",
            timeout_s=_MAVEN_TIMEOUT_S,
            cwd=source,
        )

    return _build(target, fill) / name


def promtool(*, may_build: bool) -> Path:
    """Prometheus' tool that checks and tries alerts: the machine's own, or built from its module.

    Args:
        may_build: whether it may take the minutes of a build where it is not there yet.
    """
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    target = cache_dir() / "go" / f"promtool-{PROMETHEUS_VERSION}"
    if not may_build and not target.is_dir():
        raise PeerUnavailableError("no promtool on this machine; OBERTH_INTEROP=full builds it")
    go = tool("go", "builds promtool")
    package = "github.com/prometheus/prometheus/cmd/promtool"

    def fill(work: Path) -> None:
        # A module of its own: Prometheus' go.mod has replacements, with which `go install` refuses.
        for words in (
            ("mod", "init", "promtool"),
            ("get", f"{package}@{PROMETHEUS_VERSION}"),
            ("build", "-o", "promtool", package),
        ):
            _run([go, *words], what=f"go {words[0]}", timeout_s=_MAVEN_TIMEOUT_S, cwd=work)

    return _build(target, fill) / "promtool"


def compile_rust(name: str, source: Path) -> Path:
    """Build a crate of ours; gives the executable. Crates come through cargo."""
    cargo = tool("cargo", f"builds {name}")
    files = [source / "Cargo.toml", *sorted((source / "src").glob("*.rs"))]
    target = cache_dir() / "rust" / f"{name}-{_digest(files)}"

    def fill(work: Path) -> None:
        crate = work / "crate"
        shutil.copytree(source, crate, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
        _run(
            [cargo, "build", "--quiet", "--config", "profile.dev.debug=false"],
            what=f"cargo build {name}",
            timeout_s=_MAVEN_TIMEOUT_S,
            cwd=crate,
        )
        (crate / "target" / "debug" / name).rename(work / name)
        shutil.rmtree(crate)  # hundreds of MB

    return _build(target, fill) / name


def compile_cpp(name: str, source: Path) -> Path:
    """Compile a C++ program of ours over the gRPC client for C++; gives the executable.

    No registry has the client: ``OBERTH_CPP_CLIENT`` names a folder with its ``include`` and a
    ``lib`` that has ``librocketmq.so``, built beforehand.
    """
    client = Path(os.environ.get("OBERTH_CPP_CLIENT", ""))
    if not (client / "lib" / "librocketmq.so").exists():
        raise PeerUnavailableError(
            "OBERTH_CPP_CLIENT names no folder with include and lib/librocketmq.so"
        )
    compiler = tool("g++", f"builds {name}")
    files = sorted(source.glob("*.cpp"))
    target = cache_dir() / "cpp" / f"{name}-{_digest(files, str(client))}"
    lib = client / "lib"

    def fill(work: Path) -> None:
        _run(
            [
                *(compiler, "-std=c++17", "-o", str(work / name), f"-I{client / 'include'}"),
                *(*map(str, files), f"-L{lib}", "-lrocketmq", f"-Wl,-rpath,{lib}", "-pthread"),
            ],
            what=f"g++ {name}",
            timeout_s=_COMPILE_TIMEOUT_S,
        )

    return _build(target, fill) / name


def java_command(
    lib: Path, main: str, *args: str, classes: Path | None = None, options: Sequence[str] = ()
) -> list[str]:
    """The command line of a Java program over the jars of one release."""
    java = tool("java", f"runs {main}")
    path = f"{classes}{os.pathsep}{lib}/*" if classes else f"{lib}/*"
    return [java, *ADD_OPENS, *options, "-cp", path, main, *args]
