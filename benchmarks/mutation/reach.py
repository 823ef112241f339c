"""Which lines of the package each test reaches; a plugin for pytest.

    OBERTH_REACH=DIR python -m pytest -p benchmarks.mutation.reach -n 2 tests/store

Each process appends one line of JSON for each test that passed to a file of its own in DIR: its
name, how long it took, and the lines by file. Lines of a function that runs all the time are looked
for `EVENTS_MAX` times in each test: looking costs more than running, and what such a test reaches
late is better seen by a shorter one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = str(Path(__file__).parents[2] / "src" / "oberth") + os.sep
EVENTS_MAX = 4000

_lines: dict[str, set[int]] = defaultdict(set)
_events: Counter[CodeType] = Counter()


def _enter(frame: FrameType, event: str, argument: object) -> Any:
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or _events[code] > EVENTS_MAX:
        return None
    lines = _lines[code.co_filename]
    lines.add(frame.f_lineno)

    def line(frame: FrameType, event: str, argument: object) -> Any:
        lines.add(frame.f_lineno)
        _events[code] += 1
        if _events[code] > EVENTS_MAX:
            frame.f_trace_lines = False
        return line

    return line


def pytest_runtest_setup() -> None:
    """From here on all that is reached counts for the test that begins."""
    if sys.gettrace() is None:
        threading.settrace(_enter)
        sys.settrace(_enter)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write down what the test reached, if it passed."""
    _lines.clear()
    _events.clear()
    _failed.clear()
    began = time.monotonic()
    result = yield
    if not _failed:
        reached = {
            path.removeprefix(PACKAGE): sorted(lines)
            for path, lines in list(_lines.items())
            if lines
        }
        record = {
            "test": item.nodeid,
            "seconds": round(time.monotonic() - began, 4),
            "lines": reached,
        }
        path = Path(os.environ["OBERTH_REACH"]) / f"{os.getpid()}.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    return result


_failed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that was skipped or failed proves nothing."""
    if not report.passed:
        _failed.append(report.nodeid)


def pytest_unconfigure() -> None:
    """Look no more: the interpreter takes its modules apart."""
    threading.settrace(None)  # type: ignore[arg-type]
    sys.settrace(None)
