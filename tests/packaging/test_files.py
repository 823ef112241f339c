"""Unit and container file start what exists, and the page of settings is current."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
from pathlib import Path

import click
import pytest

from oberth.cli.main import oberth

ROOT = Path(__file__).parents[2]


def commands() -> list[list[str]]:
    unit = (ROOT / "packaging" / "oberth.service").read_text("utf-8")
    container = (ROOT / "packaging" / "Containerfile").read_text("utf-8")
    started = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    default = re.search(r"^CMD (.*)$", container, re.MULTILINE)
    assert started is not None
    assert default is not None
    return [shlex.split(started[1])[1:], json.loads(default[1])]


@pytest.mark.parametrize("words", commands(), ids=["unit", "container"])
def test_command_line_parses(words: list[str], tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("")
    words = [str(conf) if word.endswith("broker.conf") else word for word in words]
    context = click.Context(oberth)
    command = oberth.get_command(context, words[0])
    assert command is not None
    command.make_context(words[0], words[1:])


def test_settings_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location(
        "generate_settings", ROOT / "docs" / "generate_settings.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "settings.md").read_text("utf-8")
    assert page == module.settings_page(), "run: python docs/generate_settings.py"
