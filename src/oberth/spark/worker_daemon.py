"""Spark's daemon of Python workers, without the traceback of a worker whose reader has enough.

A query with a limit closes the connection to a worker that still has rows. Spark's daemon lets the
worker end then, as it should, and prints ``BrokenPipeError`` with a traceback into the terminal,
once for each such query (PySpark 4.3, ``pyspark.daemon.worker``).

``spark.python.daemon.module`` names this module in local sessions of `build_session`. All else is
Spark's own: its daemon runs, and forks the workers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from pyspark import daemon

Worker = Callable[[socket.socket, bool], int]


def without_traceback(worker: Worker) -> Worker:
    """Spark's function for a worker, ending the process where nobody reads what it writes."""

    def serve(connection: socket.socket, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(1)

    return serve


if __name__ == "__main__":
    daemon.worker = without_traceback(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
