"""A process beside a broker that keeps a lake: tables of what the store has, seconds behind it.

It is `oberth spark export --continuous` over the store, in a process of its own, since it is Spark.
When it ends it is started again, later each time it ends at once; an export goes on wherever it was
killed. It ends with the broker's process, whatever ends that: another broker over the store starts
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from oberth.cli.output import say
from oberth.errors import OptionError

INTERVAL_S: Final = 1.0
JOIN_MIB: Final = 128
EXPIRE_HOURS: Final = 168
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0
RAN_WELL_S: Final = 60.0
"""Who has run for so long is started again at once."""
STOP_TIMEOUT_S: Final = 20.0


def export_words(store: str, into: str, form: str) -> list[str]:
    """The command that keeps a lake of a store."""
    words = [
        sys.executable, "-m", "oberth", "spark", "export", store, "--into", into,
        "--format", form, "--continuous", "--interval", str(INTERVAL_S), "--master", "local[1]",
        "--compact", str(JOIN_MIB), "--until-stdin-ends",
    ]  # fmt: skip
    return words + ([] if form == "parquet" else ["--expire", str(EXPIRE_HOURS)])


@asynccontextmanager
async def lake_kept(
    store: str,
    into: str,
    form: str,
    *,
    is_begun: Callable[[], bool] = lambda: True,
    words: Callable[[str, str, str], Sequence[str]] = export_words,
    pause_s: float = PAUSE_S,
) -> AsyncIterator[str]:
    """Keep a lake until the block ends; gives its words in the ready line.

    Args:
        store: the broker's.
        into: the directory of the tables; "" for no lake.
        form: their format.
        is_begun: whether the log has its first message; the process starts then.
        words: the command.
        pause_s: before a process that ended at once is started again; then twice as long.

    Raises:
        OptionError: Spark is not installed.
    """
    if not into:
        yield ""
        return
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise OptionError("--lake needs Spark: pip install 'oberth[spark]'")
    keeper = asyncio.create_task(_keep(list(words(store, into, form)), pause_s, is_begun))
    try:
        yield f" lake {into},"
    finally:
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper


async def _keep(words: list[str], pause_s: float, is_begun: Callable[[], bool]) -> None:
    """Runs a command again and again, until this is cancelled."""
    pause = pause_s
    while not is_begun():  # noqa: ASYNC110 - a hook in every append would cost more than this look
        await asyncio.sleep(INTERVAL_S)
    while True:
        begun = time.monotonic()
        try:
            text = f"ended with {await _run(words)}"
        except OSError as error:  # no memory or no process number for it just now
            text = f"cannot be started: {error}"
        if time.monotonic() - begun > RAN_WELL_S:
            pause = pause_s
        say(f"the lake's process {text}; it is started again in {pause:g} s")
        await asyncio.sleep(pause)
        pause = min(pause * 2, PAUSE_MAX_S)


async def _run(words: list[str]) -> int:
    """Runs a command once, and stops it where this is cancelled; gives its exit code."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        await _stop(process)
        raise


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
