"""Rivals as programs to measure against, and programs that put load on either side."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def build(directory: Path, name: str = "wire_load") -> Path:
    """The load generator, or another program of this folder, compiled.

    Raises:
        RuntimeError: no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError(f"{name}.c needs a C compiler, none was found")
    program = directory / name
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return program
