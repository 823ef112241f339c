"""``python -m tests.rigs.spark_classes FILE``: an archive of the classes that Spark's JVMs load.

A JVM that is given it (``-XX:SharedArchiveFile``) neither looks the classes up in hundreds of jars
nor checks them again, which is half of what its start costs. One that does not fit it, because Java
or a jar is another, goes on without a word.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Final

from oberth.errors import SparkUnavailableError
from oberth.spark.runtime import build_session

_STATEMENT: Final = "select id % 3 as n, count(*), max(id) from range(99) group by 1 order by 1"


def make(path: Path) -> None:
    """Makes it by a small query in one step; nothing where Spark cannot run."""
    fresh = path.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={fresh.absolute()} -Xlog:disable"
    with contextlib.suppress(SparkUnavailableError):
        session = build_session("local[1]", app_name="classes", quick=True, quiet=True)
        session.sql(_STATEMENT).collect()
        gateway = session.sparkContext._gateway
        assert gateway is not None
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()  # it writes when it ends
        fresh.replace(path)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
