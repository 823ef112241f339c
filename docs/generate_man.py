"""Writes docs/man: a man page of `oberth` and of each command, from the help that `--help` shows.

    python docs/generate_man.py [DIRECTORY]        docs/man if it is not given

A group's page has its sub-commands as sections. The macros are those of man(7), which every man
knows. A wheel installs the pages into share/man/man1.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from oberth.cli.main import oberth

DIRECTORY: Final = Path(__file__).with_name("man")


def pages() -> dict[str, str]:
    """Every page by the name of its file."""
    made = {"oberth.1": _page(oberth, "oberth", ["the pages of its commands: oberth-up(1) …"])}
    for name, command in _commands(oberth):
        made[f"oberth-{name}.1"] = _page(command, f"oberth {name}", ["oberth(1)"])
    return made


def _page(command: click.Command, words: str, see_also: list[str]) -> str:
    title = words.replace(" ", "-")
    lines = [
        f'.TH "{title.upper()}" 1 "" "Oberth"',
        ".SH NAME",
        f"{_escaped(title)} \\- {_escaped(_summary(command))}",
        ".SH SYNOPSIS",
        *_synopsis(command, words),
        ".SH DESCRIPTION",
        *_text(command),
    ]
    if command is not oberth:
        lines += _options(command, words, ".SH OPTIONS")
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
    if command is oberth:
        for name, each in _commands(command):
            lines += [".TP", f"\\fBoberth\\-{_escaped(name)}\\fR(1)", _line(_summary(each))]
    else:
        for path, each in _leaves(command, words):
            lines += [f".SS {_escaped(path)}", *_synopsis(each, path), ".PP", *_text(each)]
            lines += _options(each, path, "")
    lines += [
        ".SH EXIT STATUS",
        ".TP", "0", "Done.",
        ".TP", "1", "There are findings, or nothing was found.",
        ".TP", "2", "It could not be done; stderr says why.",
        ".SH SEE ALSO",
        _line(", ".join(see_also)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _commands(group: click.Command) -> Iterator[tuple[str, click.Command]]:
    assert isinstance(group, click.Group)
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            yield name, command


def _leaves(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    """The commands of a group, also those of groups in it, by all their words."""
    for name, each in _commands(command) if isinstance(command, click.Group) else ():
        if isinstance(each, click.Group):
            yield from _leaves(each, f"{words} {name}")
        else:
            yield f"{words} {name}", each


def _summary(command: click.Command) -> str:
    return command.get_short_help_str(200).rstrip(".")


def _context(command: click.Command, words: str) -> click.Context:
    return click.Context(command, info_name=words, **oberth.context_settings)


def _synopsis(command: click.Command, words: str) -> list[str]:
    pieces = " ".join(command.collect_usage_pieces(_context(command, words)))
    return [f"\\fB{_escaped(words)}\\fR {_escaped(pieces)}"]


def _text(command: click.Command) -> Iterator[str]:
    """The help: paragraphs; one that begins with a backspace keeps its lines."""
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ".PP"
        if paragraph.startswith("\b"):
            yield ".nf"
            yield from (_line(each) for each in paragraph.splitlines()[1:])
            yield ".fi"
        else:
            yield _line(" ".join(paragraph.split()))


def _options(command: click.Command, words: str, heading: str) -> Iterator[str]:
    context = _context(command, words)
    records = [
        record for each in command.params if (record := each.get_help_record(context)) is not None
    ]
    if records and heading:
        yield heading
    for names, text in records:
        if text:  # an argument without a text stands in the synopsis
            yield ".TP"
            yield f"\\fB{_escaped(names)}\\fR"
            yield _line(" ".join(text.split()))


def _line(text: str) -> str:
    """Text as one input line: no first character of it is taken for a request."""
    escaped = _escaped(text)
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")


def write(directory: Path) -> None:
    """Write every page, and remove those of commands that are gone."""
    directory.mkdir(parents=True, exist_ok=True)
    made = pages()
    for path in directory.glob("*.1"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, "utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY)
