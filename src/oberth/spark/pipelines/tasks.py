"""Runs a function over items: as tasks of a Spark job, or one after the other in this process.

A task is repeated when its process dies, so functions have to give the same result, and leave the
same files, when they are called twice. An `OberthError` in a task is an answer rather than an
accident: it is not tried again and is raised here as it was raised there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from oberth.errors import OberthError, SparkUnavailableError, StoreError
from oberth.spark.runtime import settle_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
Done = Callable[[int, int], None]

NOT_WITH_CONNECT: Final = (
    "this pipeline runs Python tasks, which Spark Connect has no way to start: use a classic "
    "session (--master local[*], spark://…, yarn, k8s://…). format('rocketmq'), sql, stats, dlq "
    "and redrive work with Spark Connect."
)
TASKS_END_WITHIN_S: Final = 600
"""How long tasks of a job that has failed are waited for."""
_PROGRESS_INTERVAL_S: Final = 0.1


class _Failed(NamedTuple):
    error: OberthError


class TaskRunner(Protocol):
    """What pipelines run their work on."""

    @property
    def parallelism(self) -> int:
        """How many tasks run at the same time."""

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        what: str,
        done: Done | None = None,
    ) -> list[Result]:
        """The results in the order of the items.

        Args:
            function: can be pickled, or is a function of a module.
            items: one task each.
            what: what Spark's UI shows.
            done: called with the number of finished tasks and of all, from any thread.
        """


class InProcess:
    """Runs tasks in this process, in order."""

    parallelism = 1

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        what: str,
        done: Done | None = None,
    ) -> list[Result]:
        """See `TaskRunner`."""
        results = []
        for number, item in enumerate(items):
            results.append(function(item))
            if done is not None:
                done(number + 1, len(items))
        return results


class InThreads:
    """Runs tasks in threads of this process; kernels and files do their work at the same time."""

    def __init__(self, threads: int) -> None:
        self.parallelism = threads

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        what: str,
        done: Done | None = None,
    ) -> list[Result]:
        """See `TaskRunner`; after an error tasks that have not begun are left out."""
        results = []
        with ThreadPoolExecutor(self.parallelism, what) as pool:
            waiting = [pool.submit(function, item) for item in items]
            try:
                for future in waiting:
                    results.append(future.result())
                    if done is not None:
                        done(len(results), len(items))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return results


class OnSpark:
    """Runs tasks on a session's executors.

    Raises:
        SparkUnavailableError: the session is a Spark Connect client, which cannot run tasks.
    """

    def __init__(self, session: SparkSession) -> None:
        from pyspark.sql import SparkSession as Classic

        if not isinstance(session, Classic):
            raise SparkUnavailableError(NOT_WITH_CONNECT)
        self._context = session.sparkContext

    @property
    def parallelism(self) -> int:
        """See `TaskRunner`."""
        return int(self._context.defaultParallelism)

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        what: str,
        done: Done | None = None,
    ) -> list[Result]:
        """See `TaskRunner`.

        Raises:
            OberthError: a task raised it.
            StoreError: a task failed for another reason, as often as Spark tries.
        """
        from py4j.protocol import Py4JJavaError

        if not items:
            return []
        context, group = self._context, f"oberth-{what}-{id(items)}"
        try:
            with job_group(context, group, what), _Watch(context, group, len(items), done):
                results = (
                    context.parallelize(list(items), len(items)).map(_Guard(function)).collect()
                )
        except Py4JJavaError as error:
            raise StoreError(f"{what}: a task failed: {_cause(error)}") from error
        for result in results:
            if isinstance(result, _Failed):
                raise result.error
        return results


class _Guard:
    """Turns errors that are answers into values."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, item: Any) -> Any:
        settle_worker()
        try:
            return self._function(item)
        except OberthError as error:
            return _Failed(error)


def _cause(error: Any) -> str:
    lines = [line.strip() for line in str(error.java_exception or error).splitlines()]
    python = [line for line in lines if line and not line.startswith(("at ", "File ", "Traceback"))]
    named = [line for line in python if "Error: " in line or "Exception: " in line]
    return (named or python or ["unknown"])[-1]


@contextmanager
def job_group(context: Any, group: str, what: str) -> Iterator[None]:
    """Puts the jobs of this thread into a group.

    Args:
        context: Spark's.
        group: its name.
        what: what Spark's UI shows.
    """
    context.setJobGroup(group, f"oberth: {what}")
    try:
        yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def _stages(context: Any, group: str) -> list[Any]:
    """What Spark knows of the stages of a group's jobs."""
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    found = [
        tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
    ]
    return [each for each in found if each is not None]


def wait_for_tasks(context: Any, group: str) -> bool:
    """Waits until no task of a group's jobs runs; those of a job that has failed may run on.

    Returns:
        Whether there were any.

    Raises:
        StoreError: some do so for longer than TASKS_END_WITHIN_S.
    """
    until = time.monotonic() + TASKS_END_WITHIN_S
    found = False
    while running := sum(each.numActiveTasks for each in _stages(context, group)):
        found = True
        if time.monotonic() > until:
            raise StoreError(f"{running} tasks of {group} run on after their job has failed")
        time.sleep(_PROGRESS_INTERVAL_S)
    return found


class _Watch:
    """Asks Spark how many tasks of a job are done, and says so."""

    def __init__(self, context: Any, group: str, total: int, done: Done | None) -> None:
        self._context = context
        self._group = group
        self._total = total
        self._done = done
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._done is not None:
            self._thread = threading.Thread(target=self._loop, name="oberth-progress", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        assert self._done is not None
        while not self._stop.wait(_PROGRESS_INTERVAL_S):
            stages = _stages(self._context, self._group)
            self._done(sum(each.numCompletedTasks for each in stages), self._total)
