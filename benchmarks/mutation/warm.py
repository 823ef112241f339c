"""A process that has all tests collected, and forks for each change: nothing is imported again.

    python -m benchmarks.mutation.warm FD tests/store/test_flush.py ...

Started by `runs.Warm` in a copy of the tree. Over the socket FD come jobs, one line of JSON each,
with the module, the source it had, and the tests to run with the seconds after which each hangs;
back go `{"ready": n}` once, and for each job `{"pid": n}` and at its end `{"code": n}`.

The child gives the functions that are loaded the code of the changed source, which already is on
the disk for the processes that tests start. `STALE` is its exit code where that cannot be done: a
change that runs at import, or one that takes another set of variables from the function around it;
or where none of the tests was collected.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from benchmarks.mutation.runs import HANGS_S, STALE, Noted, quiet

PACKAGE = Path.cwd() / "src" / "oberth"


class _Server:
    """Stands in front of pytest's own loop, which only the children get to."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._jobs = connection.makefile("r", encoding="utf-8")
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        items: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            items[item.nodeid].append(item)
            name, bracket, _ = item.nodeid.partition("[")
            if bracket:  # a name without a case means all
                items[name].append(item)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                self._functions[each.__code__.co_filename].append(each)
        gc.collect()
        gc.freeze()  # what is loaded stays shared with the children
        self._send(ready=len(session.items))
        for line in self._jobs:
            job = json.loads(line)
            pid = os.fork()
            if pid == 0:
                self._begin(session, items, job)
                return None  # to pytest's loop
            self._send(pid=pid)
            self._send(code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return True

    def _send(self, **message: int) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def _begin(
        self, session: pytest.Session, items: dict[str, list[pytest.Item]], job: dict[str, Any]
    ) -> None:
        os.setsid()
        signal.alarm(2 * HANGS_S)  # until the first test begins
        self._connection.close()
        quiet()
        path = PACKAGE / job["module"]
        session.items[:] = [item for name in job["limits"] for item in items.get(name, ())]
        if not session.items or not self._replace(path, job["source"].encode()):
            os._exit(STALE)
        session.config.pluginmanager.register(Noted(job["limits"]))

    def _replace(self, path: Path, source: bytes) -> bool:
        # Whether the functions of a module are now those of the disk; source is what they were.
        was, now = (compile(text, str(path), "exec") for text in (source, path.read_bytes()))
        codes = {(each.co_qualname, each.co_firstlineno): new for each, new in _pairs(was, now)}
        replaced = 0
        for function in self._functions[str(path)]:
            code = function.__code__
            new = codes.get((code.co_qualname, code.co_firstlineno))
            if new is None or new == code:
                continue
            if new.co_freevars != code.co_freevars:
                return False
            function.__code__ = new
            replaced += 1
        loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        return replaced > 0 or was == now or str(path) not in loaded


def _pairs(was: CodeType, now: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    # Both trees have the same functions in the same order, but for those in what was left out.
    inner_was, inner_now = (
        [each for each in code.co_consts if isinstance(each, CodeType)] for code in (was, now)
    )
    yield was, now
    if [each.co_name for each in inner_was] == [each.co_name for each in inner_now]:
        for one, other in zip(inner_was, inner_now, strict=True):
            yield from _pairs(one, other)


def main() -> None:
    """Run it."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    arguments = [
        *("-x", "-q", "--tb=short", "-p", "no:cacheprovider", "--basetemp=tmp"),
        *("-m", "not spark and not interop", *sys.argv[2:]),
    ]
    code = pytest.main(arguments, plugins=[_Server(connection)])
    sys.stdout.flush()
    os._exit(int(code))


if __name__ == "__main__":
    main()
