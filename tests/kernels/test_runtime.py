"""Machine code: loaded late, kept on disk, made anew when broken, and done without when absent."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from zlib import crc32 as zlib_crc32

import pytest

from oberth.kernels import runtime
from oberth.kernels.columns import Columns, TopicTable
from oberth.kernels.hashing import crc32
from oberth.kernels.scan import find_record, scan

HEAVY = ("numba", "numpy", "llvmlite", "ctypes")


def run(code: str) -> str:
    """Runs code in an interpreter of its own; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SHOW_HEAVY = f"print([name for name in {HEAVY} if name in sys.modules])"


def test_importing_costs_nothing() -> None:
    modules = ("scan", "queues", "index", "gather", "check", "hashing", "columns")
    imports = "; ".join(f"import oberth.kernels.{name}" for name in modules)
    assert run(f"import sys; {imports}; {SHOW_HEAVY}") == "[]"


def test_little_work_is_done_without_loading() -> None:
    code = (
        "import sys; from oberth.kernels.scan import find_record; "
        f"find_record(bytes(1000)); {SHOW_HEAVY}"
    )
    assert run(code) == "[]"


def test_much_work_loads_machine_code_without_numba() -> None:
    code = (
        "import sys; from oberth.kernels import runtime; "
        "from oberth.kernels.scan import find_record; "
        "find_record(bytes(16 << 20)); "
        "print(runtime.loaded(), [n for n in ('numba', 'numpy') if n in sys.modules])"
    )
    assert run(code) == "('find',) []"


def test_without_numba_everything_works() -> None:
    code = (
        "import sys; sys.modules['numba'] = None; "
        "from oberth.kernels import runtime; from oberth.kernels.scan import find_record; "
        "print(runtime.available(), runtime.prepare(), find_record(bytes(16 << 20)), "
        "runtime.loaded())"
    )
    assert run(code) == "False False None ()"


def test_switched_off(log: Callable[..., bytes]) -> None:
    data = log([{}])
    runtime.use_reference_only(True)
    try:
        assert not runtime.available()
        assert runtime.native("scan", 1 << 40) is None
        assert scan(data, Columns(1), TopicTable()).added == 1
    finally:
        runtime.use_reference_only(False)
    assert runtime.native("scan", 0) is not None


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime that has loaded nothing, with a cache directory of its own."""
    monkeypatch.setattr(runtime, "_kernels", {})
    monkeypatch.setattr(runtime, "_failures", {})
    monkeypatch.setattr(runtime, "_cache_directory", tmp_path / "cache")
    return tmp_path / "cache"


def test_code_is_kept_and_a_broken_file_is_made_anew(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtime.prepare("java_hash")
    (kept,) = fresh.rglob("*.kernel")
    assert [path.name for path in fresh.rglob("*")] == [kept.parent.name, kept.name]
    image = kept.read_bytes()
    compiled: list[str] = []
    compile_ = runtime._compile

    def noted(name: str) -> bytes:
        compiled.append(name)
        return compile_(name)

    monkeypatch.setattr(runtime, "_compile", noted)
    for damage, wanted in (
        (image, []),
        (image[:-1], ["java_hash"]),
        (b"", ["java_hash"]),
        (image[:99] + bytes([image[99] ^ 1]) + image[100:], ["java_hash"]),
    ):
        compiled.clear()
        runtime._kernels.clear()
        kept.write_bytes(damage)
        assert runtime.prepare("java_hash")
        assert compiled == wanted
        assert runtime._read_cached("java_hash") is not None


def test_a_server_never_slides_into_compiling(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a little is read, only a lot at once has kernels compiled."""

    def unexpected(name: str) -> bytes:
        raise AssertionError(name)

    monkeypatch.setattr(runtime, "_in_bulk", False)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "_compile", unexpected)
        for _ in range(100):
            assert runtime.native("total_size", 16 << 20) is None
    assert runtime.native("total_size", 64 << 20) is not None
    assert runtime.native("unit_kinds", 1) is not None


def test_a_cache_that_cannot_be_written_is_done_without(fresh: Path) -> None:
    fresh.write_text("a file where the directory should be")
    assert runtime.prepare("total_size")
    assert runtime.failures() == {}


def test_what_cannot_be_compiled_is_left_to_the_reference(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> bytes:
        raise RuntimeError(f"no code for {name}")

    monkeypatch.setattr(runtime, "_compile", broken)
    assert not runtime.prepare("crc")
    assert runtime.failures() == {"crc": "RuntimeError: no code for crc"}
    assert crc32(b"123") == zlib_crc32(b"123")


def test_code_that_calls_others_is_refused() -> None:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(
        "declare i32 @system(ptr)\n"
        "define i32 @kernel(ptr %a) {\n  %b = call i32 @system(ptr %a)\n  ret i32 %b\n}\n"
    )
    with pytest.raises(RuntimeError, match=r"kernel kernel: calls \['system'\]"):
        runtime._check_symbols(module, "kernel")
    with pytest.raises(RuntimeError, match="defines"):
        runtime._check_symbols(llvm.parse_assembly(""), "kernel")


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
