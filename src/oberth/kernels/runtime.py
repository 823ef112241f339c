"""Where the compiled kernels come from: the extension module, or nowhere.

`oberth.kernels._native` is built from ``kernels/native/*.c`` when the package is built. A kernel
takes one array of int64 (numbers and addresses, see `oberth.kernels.arguments`) and returns an
int64; it never allocates, raises or touches a Python object, and runs without the GIL, so several
threads may run several kernels, or the same one. Where the extension is missing, or was built from
other tables, `native` returns None and callers run their plain-Python reference.

Importing the extension takes 0.2 ms and no other package.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import ModuleType
from typing import Final

from oberth.kernels.arguments import LAYOUT

_extension: ModuleType | None
try:
    from oberth.kernels import _native

    # One of another layout was built from an earlier checkout: its arguments are other ones.
    _extension = _native if getattr(_native, "layout", None) == LAYOUT else None
except ImportError:  # not built here, or for another Python
    _extension = None

HASH_SEED: Final = hash("a secret of this process") & 2**64 - 1
"""Where hashes of names begin in this process, see ``spread_hash`` in columns.py and checks.h.
Python begins its own hashes of text at a secret."""
if _extension is not None:
    _extension.set_hash_seed(HASH_SEED)

Kernel = Callable[["array[int]"], int]

KERNELS: Final = (
    "crc",
    "java_hash",
    "find",
    "scan",
    "queues",
    "unit_kinds",
    "compare_units",
    "check_index",
    "total_size",
    "renumber",
    "place_topics",
    "copy_records",
    "gather",
    "property_maps",
    "hosts",
    "message_ids",
    "encode",
    "index_keys",
    "index_put",
    "index_relink",
    "clean_batch",
    "batch_records",
    "send_rows",
    "send_records",
    "pull_rows",
    "pull_answers",
)

_disabled = False


def available() -> bool:
    """Whether the kernels are compiled here."""
    return _extension is not None and not _disabled


def use_reference_only(reference_only: bool) -> None:
    """Switches compiled kernels off (or on again), as if the extension were missing."""
    global _disabled
    _disabled = reference_only


def extension() -> ModuleType:
    """The extension module, which a caller that holds a kernel has."""
    assert _extension is not None
    return _extension


def native(name: str) -> Kernel | None:
    """The compiled kernel, or None where the caller should run its reference."""
    if _extension is None or _disabled:
        return None
    kernel: Kernel = getattr(_extension, name)
    return kernel
