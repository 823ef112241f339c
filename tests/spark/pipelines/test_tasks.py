"""What a task of Spark does before its own work, and tasks of jobs that have failed."""

from __future__ import annotations

import fcntl
import gc
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from oberth.errors import StoreError
from oberth.spark.pipelines import tasks
from oberth.spark.pipelines.tasks import job_group, wait_for_tasks
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


def _is_held(path: Path) -> bool:
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.spark
def test_tasks_that_run_on_when_another_has_failed_are_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark ends the job at once, and the worker of the other task some seconds later."""
    held, never = tmp_path / "held", tmp_path / "never"

    def task(number: int) -> None:
        if number == 0:
            until = time.monotonic() + 60
            while not held.exists() and time.monotonic() < until:
                time.sleep(0.01)
            raise RuntimeError("failed")
        with held.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            until = time.monotonic() + 60
            while not never.exists() and time.monotonic() < until:
                time.sleep(0.01)

    context = spark.sparkContext
    assert not wait_for_tasks(context, "mine")
    with pytest.raises(Exception, match="failed"), job_group(context, "mine", "test"):
        context.parallelize(range(2), 2).foreach(task)
    assert _is_held(held)
    assert not wait_for_tasks(context, "another")
    assert wait_for_tasks(context, "mine")
    assert not _is_held(held)
    assert not wait_for_tasks(context, "mine")


def test_tasks_that_never_end_are_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "TASKS_END_WITHIN_S", 0)
    stage: Any = type("Stage", (), {"numActiveTasks": 2})
    monkeypatch.setattr(tasks, "_stages", lambda *_: [stage])
    with pytest.raises(StoreError, match="2 tasks of mine run on after their job has failed"):
        wait_for_tasks(None, "mine")
