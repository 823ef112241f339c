"""KernelLoader: brings the compiled dispatch into a broker that has enough to do for it.

The kernels' machine code is loaded in a thread once the broker has dispatched LOAD_AFTER_BYTES.
Where this machine has never compiled them, another process does it first, at the lowest priority:
within the broker it would hold the interpreter for seconds. Without numba nothing happens, and
records are dispatched one by one.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Final

from oberth.kernels import runtime

_LOG: Final = logging.getLogger("oberth.broker")

LOAD_AFTER_BYTES: Final = 1 << 20
"""Bytes of the log dispatched before it is worth it."""

KERNELS: Final = ("scan", "queues", "index_keys", "index_put")
"""What ``store.bulk_dispatch`` needs."""

_COMPILE: Final = (
    "import os, sys; os.nice(19); from oberth.kernels import runtime; "
    "sys.exit(not runtime.prepare(*sys.argv[1:]))"
)


class KernelLoader:
    """Lifecycle: `on_second` until it gives False, `close` at the end."""

    __slots__ = ("_compiler", "_has_compiled", "_thread", "_wanted_at")

    def __init__(self, dispatched_offset: int) -> None:
        self._wanted_at = dispatched_offset + LOAD_AFTER_BYTES
        self._compiler: subprocess.Popen[bytes] | None = None
        self._has_compiled = False
        self._thread: threading.Thread | None = None

    def on_second(self, dispatched_offset: int) -> bool:
        """Go on; False when there is nothing left to do."""
        if self._compiler is not None:
            if self._compiler.poll() is None:
                return True
            if self._compiler.returncode:
                _LOG.info("kernels cannot be compiled here, code %d", self._compiler.returncode)
                return False
            self._compiler = None
            self._has_compiled = True
            self._load()
            return True
        if self._thread is None:
            if dispatched_offset < self._wanted_at:
                return True
            if not runtime.available():
                return False
            self._load()
            return True
        if self._thread.is_alive():
            return True
        if set(KERNELS) <= set(runtime.loaded()) or runtime.failures() or self._has_compiled:
            return False
        self._thread = None
        self._compiler = subprocess.Popen(
            [sys.executable, "-c", _COMPILE, *KERNELS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return True

    def _load(self) -> None:
        self._thread = threading.Thread(target=_load_cached, name="oberth-kernels", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop compiling."""
        if self._compiler is not None and self._compiler.poll() is None:
            self._compiler.kill()
            self._compiler.wait()


def _load_cached() -> None:
    for name in KERNELS:
        runtime.native(name, runtime.WORK_BEFORE_LOAD)
