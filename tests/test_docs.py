"""Every command has a help text with an example that names it, and is mentioned in the docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from oberth.cli.main import oberth

ROOT = Path(__file__).parent.parent
TEXT = "\n".join(
    path.read_text("utf-8") for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
)


def commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    """Each command below a group with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{' '.join(words)} {name} is in the table and nowhere else"
        yield " ".join((*words, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


ALL = dict(commands(oberth, ("oberth",)))


@pytest.mark.parametrize("words", ALL)
def test_a_command_says_what_it_does(words: str) -> None:
    command = ALL[words]
    assert command.help, f"{words} has no docstring"
    assert command.help.strip()[0].isupper()
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{words} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("words", ALL)
def test_a_command_is_in_the_docs(words: str) -> None:
    assert words in TEXT


@pytest.mark.parametrize("words", [words for words in ALL if words.startswith("oberth store ")])
def test_a_store_command_has_an_example(words: str) -> None:
    assert f"Example: {words}" in (ALL[words].help or "")


def test_attacks_are_held_by_tests() -> None:
    """Every line of the tables in docs/attacks.md names tests that are there."""
    lines = (ROOT / "docs" / "attacks.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ") and not line.startswith("| attack |")]
    assert rows
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split("|")[-2])
        assert named, row
        for path, name in named:
            assert is_defined(path, name), f"{path}::{name}"


def is_defined(path: str, name: str) -> bool:
    """Whether a file has a test of this name."""
    text = (ROOT / path).read_text("utf-8")
    return re.search(rf"^ *(async )?def {name}\(", text, re.MULTILINE) is not None


def test_the_runbook_is_played_by_tests() -> None:
    """Every failure in the tables of docs/replication.md has a test that plays it."""
    text = (ROOT / "docs" / "replication.md").read_text("utf-8")
    entries: set[str] = set()
    for heading in ("## What a failure costs", "### Runbook"):
        (table,) = re.findall(rf"^{heading}\n\n((?:\|.*\n)+)", text, re.MULTILINE)
        entries |= {line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]}
    assert len(entries) > 15
    played: dict[str, list[str]] = {}
    for line in (ROOT / "tests" / "runbook_played.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            entry, _, test = line.partition(" :: ")
            played.setdefault(entry, []).append(test)
    assert entries == played.keys(), "what runbook_played.txt lacks or has too many"
    for test in [test for tests in played.values() for test in tests]:
        assert is_defined(*test.split("::")), test
