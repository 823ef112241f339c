"""The kernels' extension: one wheel for every Python from 3.11 on; none without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.slow
def test_the_wheel_holds_the_kernels_once_for_all_pythons(tmp_path: Path) -> None:
    (tmp_path / "info").mkdir()
    done = build(
        *("setup.py", "-q", "build", "--build-base", str(tmp_path / "build")),
        *("egg_info", "--egg-base", str(tmp_path / "info")),
        *("bdist_wheel", "--bdist-dir", str(tmp_path / "tree")),
        *("--dist-dir", str(tmp_path / "out")),
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "out").glob("*.whl")
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert "oberth/kernels/_native.abi3.so" in names
    assert not [name for name in names if name.endswith((".c", ".h"))]
    console = ROOT / "src" / "oberth" / "console"
    files = [path for part in ("static", "templates") for path in (console / part).iterdir()]
    assert {f"oberth/console/{path.relative_to(console)}" for path in files} <= set(names)


def test_without_a_compiler_the_package_is_built_without_kernels(tmp_path: Path) -> None:
    done = build(
        "-c",
        # Not even the compiler that pip may have brought.
        "import sys; sys.modules['ziglang'] = None; sys.argv[0] = 'setup.py'; "
        "import importlib.util as u; find = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name == 'ziglang' else find(name, *a); "
        "exec(compile(open('setup.py').read(), 'setup.py', 'exec'), "
        "{'__name__': '__main__', '__file__': 'setup.py'})",
        "build_ext",
        "--build-lib",
        str(tmp_path / "lib"),
        "--build-temp",
        str(tmp_path / "temp"),
        CC="/nonexistent/cc",
    )
    assert done.returncode == 0, done.stderr
    assert "no C compiler found; the kernels run as plain Python" in done.stdout + done.stderr
    assert not list(tmp_path.rglob("*.so"))
    assert (tmp_path / "temp" / "layout.h").exists()
