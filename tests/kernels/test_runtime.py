"""The extension: it is there, brings no other package, may be absent, and frees the GIL."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

from oberth.kernels import _native, arguments, runtime
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.scan import find_record, scan

HEAVY = ("numba", "numpy", "llvmlite", "ctypes", "mmap", "socket")
KERNELS = Path(__file__).parents[2] / "src" / "oberth" / "kernels"


def run(code: str) -> str:
    """Runs code in an interpreter of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_brings_no_other_package() -> None:
    modules = ("scan", "queues", "index", "gather", "check", "hashing", "columns", "batch")
    imports = "; ".join(f"import oberth.kernels.{name}" for name in modules)
    work = "from oberth.kernels.scan import find_record; find_record(bytes(16 << 20))"
    show = f"print([name for name in {HEAVY} if name in sys.modules])"
    assert run(f"import sys; {imports}; {work}; {show}") == "[]"


def test_without_the_extension_everything_works() -> None:
    code = (
        "import sys; sys.modules['oberth.kernels._native'] = None; "
        "from oberth.kernels import runtime; from oberth.kernels.scan import find_record; "
        "print(runtime.available(), runtime.native('find'), find_record(bytes(1 << 20)))"
    )
    assert run(code) == "False None None"


def test_switched_off(log: Callable[..., bytes]) -> None:
    data = log([{}])
    runtime.use_reference_only(True)
    try:
        assert not runtime.available()
        assert runtime.native("scan") is None
        assert scan(data, Columns(1), TopicTable()).added == 1
    finally:
        runtime.use_reference_only(False)
    assert runtime.native("scan") is not None


def test_every_kernel_is_in_the_extension() -> None:
    compiled = {name for name in vars(_native) if not name.startswith("__")}
    assert compiled == {*runtime.KERNELS, "address", "uninitialised", "set_hash_seed", "layout"}


def test_an_extension_of_other_tables_counts_as_missing() -> None:
    """It would take addresses for something else."""
    code = (
        "import sys, types; other = types.ModuleType('oberth.kernels._native'); "
        "other.layout = 1; other.find = print; sys.modules[other.__name__] = other; "
        "from oberth.kernels import runtime; from oberth.kernels.scan import find_record; "
        "print(runtime.available(), runtime.native('find'), find_record(bytes(1 << 20)))"
    )
    assert run(code) == "False None None"
    assert _native.layout == arguments.LAYOUT


def test_the_extension_serves_every_python_from_3_11_on() -> None:
    assert _native.__file__ is not None
    assert Path(_native.__file__).name in ("_native.abi3.so", "_native.pyd")


def test_numbers_stand_in_the_python_tables_only() -> None:
    """No C source spells a magic, or the place of a field, that layout.h has from Python."""
    for path in (KERNELS / "native").glob("*.[ch]"):
        text = path.read_text()
        for number in ("626843481", "626843477", "875286124", "0xDAA320A7", "position + 28"):
            assert number not in text, path.name


@pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file with nm")
def test_the_kernels_call_nothing_but_copies_and_python() -> None:
    """No file, no socket, no clock, no allocation: what decision 1 says of kernels."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed")
    assert _native.__file__ is not None
    listed = subprocess.run(
        [nm, "-D", "--undefined-only", _native.__file__], capture_output=True, text=True, check=True
    ).stdout
    called = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    foreign = {name for name in called if not name.startswith(("Py", "_Py"))}
    compiler = {"__cxa_finalize", "__gmon_start__", "__stack_chk_fail", "__cpu_model"}
    linker = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
    copies = {"memcpy", "memcmp", "memset", "memmove", "bcmp"}
    assert foreign <= copies | compiler | linker


@pytest.mark.parametrize("wrong", [b"read-only", "text", 5, None])
def test_arguments_must_be_writable_memory(wrong: object) -> None:
    with pytest.raises((TypeError, BufferError)):
        _native.crc(wrong)  # type: ignore[arg-type]


def test_a_size_that_cannot_be_is_refused() -> None:
    for size in (-1, 1 << 62):
        with pytest.raises((SystemError, MemoryError, ValueError)):
            _native.uninitialised(size)
    with pytest.raises(OverflowError):
        _native.uninitialised(1 << 80)


def test_addresses_are_those_of_the_bytes() -> None:
    memory = array("q", [1, 2, 3])
    assert _native.address(memory) == memory.buffer_info()[0]
    assert _native.address(memoryview(memory)[1:]) == memory.buffer_info()[0] + 8
    with pytest.raises(TypeError):
        _native.address("text")  # type: ignore[arg-type]


def test_kernels_run_without_the_interpreter_lock() -> None:
    """While one thread is in a kernel, another one gets on."""
    data = bytes(64 << 20)
    started = threading.Event()
    rounds = 0

    def search() -> None:
        started.set()
        for _ in range(3):
            find_record(data)

    thread = threading.Thread(target=search)
    thread.start()
    started.wait()
    while thread.is_alive():
        rounds += 1
    thread.join()
    assert rounds > 100
