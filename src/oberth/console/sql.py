"""Statements over the stores of this machine, each run by an `oberth spark sql` of its own.

A browser sends the statement and nothing else: the stores were named when the console was
started, and every option is written here. The process may only query views (``--only-reads``), has
bounds for time, memory and rows, runs alone, and is killed with all that it started when it is
cancelled, takes too long, or the console ends. Its rows come as a Parquet file in a directory that
only this user reads and that goes with the console.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from oberth.errors import OptionError

STATEMENT_MAX: Final = 16 * 1024
"""Characters of a statement."""

ROWS_MAX: Final = 10_000
RESULT_SIZE_MAX: Final = "64m"
"""Of Spark's ``spark.driver.maxResultSize``: more ends the statement with an error."""

DRIVER_MEMORY: Final = "1g"
LIMIT_S: Final = 300.0
ERROR_SHOWN: Final = 4000
KEPT_MAX: Final = 8
"""Results whose files are kept; the oldest go."""

MISSING: Final = "pip install 'oberth[spark]' brings what runs it"


@dataclass(slots=True)
class Job:
    """One statement.

    Attributes:
        owner: the session that sent it; others do not see it.
        state: ``running``, ``done``, ``failed`` or ``cancelled``.
        text: why it failed, or "".
        path: of its rows, as Parquet, once it is done.
    """

    identifier: str
    owner: str
    statement: str
    path: Path
    started_s: float
    state: str = "running"
    text: str = ""
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class SqlRunner:
    """Runs one statement at a time.

    Lifecycle: ``async with``.

    Args:
        stores: roots of stores on this machine.
        command: the program and its first words, without arguments.
    """

    def __init__(
        self,
        stores: Sequence[str],
        command: Sequence[str] = (sys.executable, "-m", "oberth", "spark", "sql"),
    ) -> None:
        self.stores = tuple(os.path.abspath(each) for each in stores)
        self._command = tuple(command)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._jobs: dict[str, Job] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        for job in self._jobs.values():
            await self.cancel(job)
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def is_there(self) -> bool:
        """Whether stores were named and packages are installed."""
        return bool(self.stores) and self.missing is None

    @property
    def missing(self) -> str | None:
        """A package that is not installed."""
        return next((name for name in ("pyspark", "pyarrow") if find_spec(name) is None), None)

    def job_of(self, owner: str) -> Job | None:
        """The last statement of a session."""
        return next((each for each in reversed(self._jobs.values()) if each.owner == owner), None)

    def start(self, owner: str, statement: str, now_s: float) -> Job:
        """Begin a statement.

        Raises:
            OptionError: there is nothing to run it with, it is too long, or another one runs.
        """
        if not self.is_there:
            raise OptionError(f"no SQL here: {MISSING}, and --store DIR names a store")
        if not statement.strip() or len(statement) > STATEMENT_MAX or "\0" in statement:
            raise OptionError(
                f"a statement of {len(statement)} characters, allowed 1 to {STATEMENT_MAX}"
            )
        if any(each.state == "running" for each in self._jobs.values()):
            raise OptionError("a statement is running; one runs at a time, cancel it or wait")
        identifier = secrets.token_hex(8)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="oberth-console-")
        path = Path(self._folder.name) / f"{identifier}.parquet"
        job = Job(identifier, owner, statement, path, now_s)
        self._jobs[identifier] = job
        while len(self._jobs) > KEPT_MAX:
            over = self._jobs.pop(next(iter(self._jobs)))
            over.path.unlink(missing_ok=True)
        job.task = asyncio.create_task(self._run(job), name="console runs SQL")
        job.task.add_done_callback(partial(_note_end, job))
        return job

    async def cancel(self, job: Job) -> None:
        """End a statement; one that has ended stays as it is."""
        if job.task is not None and not job.task.done():
            job.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job.task

    def _words(self, job: Job) -> list[str]:
        stores = [word for each in self.stores for word in ("--store", each)]
        bounds = {
            "spark.driver.maxResultSize": RESULT_SIZE_MAX,
            "spark.driver.memory": DRIVER_MEMORY,
        }
        confs = [word for pair in bounds.items() for word in ("--conf", "=".join(pair))]
        return [
            *self._command, *stores, *confs, "--master", "local[1]", "--only-reads",
            "--rows", str(ROWS_MAX), "--parquet", str(job.path), "--", job.statement,
        ]  # fmt: skip

    async def _run(self, job: Job) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._words(job),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # so that all it starts can be ended with it
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                said = await _tail(process.stderr)
                code = await process.wait()
        except TimeoutError:
            job.state, job.text = "failed", f"it took more than {LIMIT_S:.0f} s"
        else:
            job.state = "done" if code == 0 and job.path.exists() else "failed"
            job.text = "" if job.state == "done" else said.strip() or f"exit code {code}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _note_end(job: Job, task: asyncio.Task[None]) -> None:
    if task.cancelled():
        job.state = "cancelled"
    elif (error := task.exception()) is not None:
        job.state, job.text = "failed", f"it could not be run: {error}"


async def _tail(stream: asyncio.StreamReader) -> str:
    """The last ERROR_SHOWN bytes that a process writes, as text; earlier ones are not kept."""
    kept = b""
    while data := await stream.read(ERROR_SHOWN):
        kept = (kept + data)[-ERROR_SHOWN:]
    return kept.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a result.

    Attributes:
        names: of the columns.
        rows: values as JSON has them.
        count: of all rows in the file.
    """

    names: list[str]
    rows: list[list[Any]]
    count: int


def read_rows(path: Path, first: int, count: int) -> Rows:
    """Some rows of a result."""
    import pyarrow.parquet  # noqa: PLC0415 - of the extra spark, without which there is no result

    table = pyarrow.parquet.read_table(path)
    part = table.slice(first, count)
    columns = [part.column(number).to_pylist() for number in range(part.num_columns)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Rows(list(table.column_names), rows, table.num_rows)
