"""What a task of Spark does before its own work."""

from __future__ import annotations

import gc
import os
import socket
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from oberth.spark.runtime import settle_worker
from oberth.spark.worker_daemon import without_traceback

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_worker_does_not_look_at_what_it_imported_after_every_task(spark: SparkSession) -> None:
    """Spark collects all garbage between two tasks: 30 ms for the modules of a worker."""

    def task(_: int) -> tuple[int, int, int]:
        settle_worker()
        return os.getpid(), gc.get_freeze_count(), len(gc.get_objects())

    found: dict[int, tuple[int, int]] = {}
    for _ in range(3):
        for worker, frozen, looked_at in (
            spark.sparkContext.parallelize(range(2), 2).map(task).collect()
        ):
            found[worker] = (frozen, looked_at)
    assert all(looked_at < 10_000 < frozen for frozen, looked_at in found.values()), found


def test_a_process_that_is_no_task_is_left_alone() -> None:
    before = gc.get_freeze_count()
    settle_worker()
    assert gc.get_freeze_count() == before


@pytest.mark.parametrize("gone", [BrokenPipeError(), ConnectionResetError()])
def test_a_worker_that_nobody_reads_ends_without_a_word(
    gone: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []

    def write(*_: object) -> int:
        raise gone

    monkeypatch.setattr("os._exit", ends.append)
    with socket.socket() as connection:
        without_traceback(write)(connection, True)
    assert ends == [1]


def test_what_else_a_worker_raises_is_spark_s() -> None:
    def write(*_: object) -> int:
        raise OSError("no space left on device")

    with socket.socket() as connection, pytest.raises(OSError, match="no space"):
        without_traceback(write)(connection, True)
