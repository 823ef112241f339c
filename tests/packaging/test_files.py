"""Generated pages are current, and man shows each without a warning."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import click
import pytest

from oberth.cli.main import oberth

ROOT = Path(__file__).parents[2]


def generator(name: str) -> ModuleType:
    """A program of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_page_is_current() -> None:
    module = generator("generate_settings")
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert page == module.settings_page(), "run: python docs/generate_settings.py"


def test_man_pages_are_current() -> None:
    made = generator("generate_man").pages()
    there = {path.name: path.read_text("utf-8") for path in (ROOT / "docs" / "man").iterdir()}
    assert there == made, "run: python docs/generate_man.py"
    assert {name.removesuffix(".1") for name in made} == {
        "oberth",
        *(f"oberth-{name}" for name in oberth.list_commands(click.Context(oberth))),
    }
    assert ".SS oberth acl policy create" in made["oberth-acl.1"]


def test_man_pages_are_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    assert settings["data-files"] == {"share/man/man1": ["docs/man/*.1"]}
    assert "include docs/man/*.1" in (ROOT / "MANIFEST.in").read_text("utf-8").splitlines()


def test_man_shows_the_pages_without_a_warning() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    for path in sorted((ROOT / "docs" / "man").iterdir()):
        done = subprocess.run(
            [groff, "-man", "-Tutf8", "-Kutf8", "-ww", str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == "", path.name
        assert f"{path.stem.upper()}(1)" in done.stdout
