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
            text = (ROOT / path).read_text("utf-8")
            assert re.search(rf"^ *(async )?def {name}\(", text, re.MULTILINE), f"{path}::{name}"
