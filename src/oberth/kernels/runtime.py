"""Finds, makes and keeps the kernels' machine code.

numba compiles a kernel once per machine and source; the result is kept as an object file below the
user's cache directory and loaded from then on by llvmlite alone:

    what                                       warm start, measured on two cores of an EPYC
    import numba and load its own disk cache   0.55 s
    llvmlite and numpy, load our object file   0.11 s, of which numpy is 0.07 s

which is why numba's cache is not used: opening a store after a crash may take 1.5 s in all. An
object file begins with the SHA-256 of what follows, so a torn one is made anew. Its directory is
named by everything the code depends on: the sources, the processor and its features.

Nothing here is imported before it is needed: not numba, not llvmlite, not numpy. Without numba,
`native` returns None and callers run their plain-Python reference. The first calls on few bytes do
so too, because loading costs more than they take (`WORK_BEFORE_LOAD`, `WORK_BEFORE_COMPILE`).

A kernel runs without the GIL, so several threads may run several, or the same one.
"""

from __future__ import annotations

import hashlib
import pkgutil
import sys
import threading
from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "oberth.kernels.compiled"
_MODULES = ("abi", "checks", "records", "queues", "index", "gather", "check", "encode")
_SOURCE_FILES = (
    ("oberth.kernels", "arguments.py"),
    ("oberth.formats", "message.py"),
    ("oberth.formats", "consume_queue.py"),
    ("oberth.formats", "batch_consume_queue.py"),
    ("oberth.formats", "delay_level.py"),
    ("oberth.kernels", "layout.py"),
    ("oberth.formats", "index_file.py"),
    ("oberth.formats", "properties.py"),
    ("oberth.formats", "sys_flag.py"),
    *((PACKAGE, f"{name}.py") for name in _MODULES),
)
_KERNELS = {
    "crc": "checks",
    "java_hash": "checks",
    "find": "checks",
    "scan": "records",
    "queues": "queues",
    "unit_kinds": "check",
    "compare_units": "check",
    "check_index": "check",
    "total_size": "gather",
    "renumber": "gather",
    "gather": "gather",
    "property_maps": "gather",
    "hosts": "gather",
    "message_ids": "gather",
    "encode": "encode",
    "index_keys": "index",
    "index_put": "index",
    "index_relink": "index",
}
# The reference gets through some 30 MB of log a second, and loading takes 0.05 s: worth it after a
# MiB in all. Compiling takes some 3 s and the GIL, so a server that reads a little at a time must
# never slide into it: only one call with this much work, or `prepare`, starts it. From then on
# (`_in_bulk`) every kernel that is asked for is compiled.
WORK_BEFORE_LOAD = 1 << 20
WORK_BEFORE_COMPILE = 64 << 20
_DIGEST_SIZE = 32
# Bump when the layout of the object files or the way kernels are called changes.
_CACHE_VERSION = 1
# All that the machine code may call: what LLVM itself makes of copies and fills.
_ALLOWED_SYMBOLS = frozenset({"memcpy", "memmove", "memset", "memcmp", "bcmp"})

Kernel = Callable[["array[int]"], int]

_lock = threading.Lock()  # guards the names below
_kernels: dict[str, Kernel] = {}
_failures: dict[str, str] = {}
_engines: list[Any] = []  # own the machine code; never dropped
_work_done = 0
_in_bulk = False
_cache_directory: Path | None = None
_disabled = False


def available() -> bool:
    """Whether kernels can be compiled here: numba and numpy are installed. Imports neither."""
    return not _disabled and _is_installed()


@cache
def _is_installed() -> bool:
    return find_spec("numba") is not None and find_spec("numpy") is not None


def use_cache_directory(directory: Path | None) -> None:
    """Keeps machine code below this directory instead of ``~/.cache/oberth/kernels``."""
    global _cache_directory
    with _lock:
        _cache_directory = directory


def use_reference_only(reference_only: bool) -> None:
    """Switches compiled kernels off (or on again), as if numba were not installed."""
    global _disabled
    with _lock:
        _disabled = reference_only


def prepare(*names: str) -> bool:
    """Loads, or compiles, the named kernels (all without names) now.

    For callers that know that much work is coming: a Spark worker, a rebuild, a benchmark.

    Returns:
        Whether all of them are compiled: False without numba, or where it fails (`failures`).
    """
    global _in_bulk
    _in_bulk = True
    return available() and None not in [_require(name) for name in names or _KERNELS]


def failures() -> dict[str, str]:
    """Why kernels could not be compiled or loaded here, by name; their references run instead."""
    return dict(_failures)


def native(name: str, work: int) -> Kernel | None:
    """The compiled kernel, or None where the caller should run its reference.

    Args:
        name: one of the kernels.
        work: about how many bytes the caller is going to read. Small work is done by the
            reference as long as nothing is loaded, so that it does not pay for the loading.
    """
    global _work_done, _in_bulk
    kernel = _kernels.get(name)
    if kernel is not None:
        return None if _disabled else kernel
    if name in _failures or not available():
        return None
    with _lock:
        _work_done += work
        done = _work_done
    if work >= WORK_BEFORE_COMPILE:
        _in_bulk = True
    if done < WORK_BEFORE_LOAD or not (_in_bulk or _is_cached(name)):
        return None
    return _require(name)


def loaded() -> tuple[str, ...]:
    """The names of the kernels whose machine code is in this process."""
    return tuple(_kernels)


def _require(name: str) -> Kernel | None:
    with _lock:
        if name not in _kernels and name not in _failures:
            try:
                _kernels[name] = _load(name)
            except Exception as error:  # noqa: BLE001 - what LLVM cannot do, the reference can
                _failures[name] = f"{type(error).__name__}: {error}"
        return _kernels.get(name)


def _directories() -> list[Path]:
    if _cache_directory is not None:
        return [_cache_directory]
    places = []
    with suppress(RuntimeError):  # no home directory can be determined
        places.append(Path.home() / ".cache" / "oberth" / "kernels")
    places.append(Path(__file__).parent / "__pycache__")
    return places


_key: str | None = None


def _cache_key() -> str:
    global _key
    if _key is None:
        import llvmlite.binding as llvm

        digest = hashlib.sha256()
        for package, file in _SOURCE_FILES:
            digest.update(pkgutil.get_data(package, file) or b"")
        for text in (
            str(_CACHE_VERSION),
            llvm.get_process_triple(),
            llvm.get_host_cpu_name(),
            llvm.get_host_cpu_features().flatten(),
        ):
            digest.update(text.encode() + b"\0")
        _key = digest.hexdigest()[:20]
    return _key


def _read_cached(name: str) -> bytes | None:
    for directory in _directories():
        try:
            raw = (directory / _cache_key() / f"{name}.kernel").read_bytes()
        except OSError:
            continue
        if hashlib.sha256(raw[_DIGEST_SIZE:]).digest() == raw[:_DIGEST_SIZE]:
            return raw[_DIGEST_SIZE:]
    return None


def _is_cached(name: str) -> bool:
    return any((d / _cache_key() / f"{name}.kernel").exists() for d in _directories())


def _write_cached(name: str, image: bytes) -> None:
    for directory in _directories():
        folder = directory / _cache_key()
        fresh = folder / f"{name}.{threading.get_ident()}.{id(image)}.new"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fresh.write_bytes(hashlib.sha256(image).digest() + image)
            fresh.replace(folder / f"{name}.kernel")
        except OSError:
            continue  # not writable, or full: the next process compiles again
        return


def _load(name: str) -> Kernel:
    image = _read_cached(name)
    if image is None:
        image = _compile(name)
        _write_cached(name, image)
    symbol, _, code = image.partition(b"\0")
    return _link(symbol.decode(), code)


def _target_machine() -> Any:
    import llvmlite.binding as llvm

    with suppress(RuntimeError):  # newer llvmlite does it by itself and says so
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="pic",
        codemodel="jitdefault",
        jit=True,
    )


def _link(symbol: str, code: bytes) -> Kernel:
    import ctypes

    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(symbol)
    if not address:
        raise RuntimeError(f"kernel object has no symbol {symbol}")
    _engines.append(engine)
    # numba's own calling convention: status = f(&result, &exception, arguments...).
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
        address
    )
    pair = ctypes.c_int64 * 2

    def kernel(arguments: array[int]) -> int:
        result = pair()
        where = ctypes.addressof(result)
        status = function(where, where + 8, arguments.buffer_info()[0])
        if status != 0:
            raise RuntimeError(f"kernel {symbol} ended with status {status}")
        return result[0]

    return kernel


def _compile(name: str) -> bytes:
    """Compiles a kernel; the name of its function, a zero byte and an object file."""
    import llvmlite.binding as llvm
    import numba

    source: Any = import_module(f"{PACKAGE}.{_KERNELS[name]}")
    signature = numba.types.int64(import_module(f"{PACKAGE}.abi").ARGUMENTS)
    make: Any = numba.cfunc
    compiled = make(signature, error_model="numpy", boundscheck=False)(getattr(source, name))
    wrapper = compiled.native_name
    symbol: str = wrapper.removeprefix("cfunc.")
    module = llvm.parse_assembly(compiled.inspect_llvm())
    module.name = name
    # The wrapper would drag numba's run time in; without it nothing but LLVM's is needed.
    for function in module.functions:
        if function.name == wrapper:
            function.linkage = llvm.Linkage.internal
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    _check_symbols(module, symbol)
    code: bytes = machine.emit_object(module)
    return symbol.encode() + b"\0" + code


def _check_symbols(module: Any, symbol: str) -> None:
    text = str(module)
    names = [f.name for f in module.functions if f.is_declaration]
    foreign = [
        n
        for n in names
        if not n.startswith("llvm.") and n not in _ALLOWED_SYMBOLS and text.count(f"@{n}(") > 1
    ]
    defined = [f.name for f in module.functions if not f.is_declaration]
    if foreign or symbol not in defined:
        raise RuntimeError(f"kernel {symbol}: calls {foreign}, defines {defined}")


if sys.byteorder != "little":  # the kernels' 16-byte CRC steps assume it
    _disabled = True
