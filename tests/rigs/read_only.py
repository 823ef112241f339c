"""Directories in which nothing can be written, also for users who may write everywhere."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_VERSION: Final = 0x20080522
_DAC_OVERRIDE: Final = 1 << 1
"""Linux: capability.h. Reading stays allowed, by CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Takes the right to write below a directory from this thread and those that it starts."""
    modes = {path: path.stat().st_mode for path in (directory, *directory.rglob("*"))}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    try:
        with _without_override():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


@contextlib.contextmanager
def _without_override() -> Iterator[None]:
    """As root, this thread and those that it starts obey the modes of files."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()

    def call(function: str) -> None:
        if getattr(libc, function)(ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), function)

    call("capget")
    had = sets[0].effective
    sets[0].effective = had & ~_DAC_OVERRIDE
    call("capset")
    try:
        yield
    finally:
        sets[0].effective = had
        call("capset")
