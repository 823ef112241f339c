"""Output of all commands: JSON or text on stdout, talk and errors on stderr, colours."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import secrets
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, TextIO

import click

from oberth.cli.hints import hint_for
from oberth.errors import StoreFullError

CELL_SIZE_MAX: Final = 1000
"""Characters of a table's cell; --json has all of them."""

_UNPRINTED: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff"
    r"\ud800-\udfff]"
)
"""What a terminal would obey, and what looks like nothing or turns the text round."""

_NOT_REPLACED: Final = (errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS)
"""Errors of a directory that takes no new file, or of a file that keeps its place."""


class OutputFile(click.Path):
    """A file that a command writes when its work is done: before that it is seen to that it can."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click.Path."""
        path = super().convert(value, param, ctx)
        directory = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(directory):
            self.fail(
                f"{path!r} cannot be written: there is no directory {directory!r}", param, ctx
            )
        if not os.path.exists(path) and not os.access(directory, os.W_OK | os.X_OK):
            self.fail(f"{path!r} cannot be written: nor can {directory!r}", param, ctx)
        return path


def printable(text: str) -> str:
    r"""The text with control characters but line ends and tabs as ``\x1b`` and ``\u202e``."""
    return _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""The text as `printable`, and with line ends and tabs as ``\n`` and ``\t``."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def _json_text(value: Any, **style: Any) -> str:
    r"""JSON that a terminal does not obey: the same characters are written as ``\u009b``."""
    text = json.dumps(value, ensure_ascii=not _takes_unicode(), **style)
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def use_colour() -> bool:
    """Whether stderr may be coloured: it is a terminal and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and sys.stderr.isatty()


talk_to: Callable[[int, str], None] | None = None
"""Who takes talk and errors, with their level, where stderr is not for people."""


def say(text: str) -> None:
    """A line of talk, on stderr."""
    if talk_to is not None:
        talk_to(logging.INFO, text)
    else:
        click.echo(printable(text), err=True)


def tell(text: str) -> None:
    """A line of results for people, on stdout; what names of peers hold is made harmless."""
    click.echo(printable(text))


def fail(error: BaseException, running: str = "") -> None:
    """An error with a hint, on stderr; ``running`` is the command that ended with it."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    hint = hint_for(error, running)
    if talk_to is not None:
        talk_to(logging.ERROR, text if hint is None else f"{text} (hint: {hint})")
        return
    label = click.style("error:", fg="red", bold=True) if use_colour() else "error:"
    click.echo(f"{label} {printable(text)}", err=True, color=use_colour())
    if hint:
        click.echo(f"hint: {printable(hint)}", err=True)


def write_json(value: Any) -> None:
    """One JSON document on stdout, indented."""
    with until_the_reader_leaves():
        click.echo(_json_text(value, indent=2))


def write_json_line(value: Any) -> None:
    """One JSON object as a line of stdout."""
    sys.stdout.write(_json_text(value, separators=(",", ":")) + "\n")


def _takes_unicode() -> bool:
    """Whether stdout can show every character; where it cannot, JSON escapes them."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")


def open_closed_streams() -> None:
    """Opens the null device as stdin, stdout and stderr where the command was started without.

    The next file, one of a store for example, would else be opened under the number that is free,
    and get what is written to that stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        with suppress(OSError):
            os.fstat(number)
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        os.set_inheritable(number, True)
        setattr(sys, name, open(number, "r+" if number else "r", closefd=False))  # noqa: SIM115


def leave_stream(stream: TextIO) -> None:
    """Sends what is left for a stream without a reader to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@contextmanager
def until_the_reader_leaves() -> Iterator[None]:
    """Around output after which the command goes on to its exit code, also behind ``| head``."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        leave_stream(sys.stdout)


def escape_what_cannot_be_shown() -> None:
    """Has stdout and stderr escape the characters that the locale's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def reader_is_gone(stream: TextIO) -> bool:
    """Whether a pipe that is written to has no reader any more, as behind ``| head -1``.

    A command that waits for news would else wait until it has something to write.
    """
    if not hasattr(select, "poll"):
        return False
    try:
        number = stream.fileno()
    except OSError:
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def write_result_file(path: str, text: str) -> None:
    """A command's result as a file, which is as it was until all of the result is on the disk.

    What is no file, as a pipe, and what stdout or stderr goes to is written to. So is a file that
    no other can take the place of: this user may make none beside it, or it is mounted by itself.

    Raises:
        OSError: it cannot be written.
        StoreFullError: the disk has no room for it.
    """
    from oberth.store.files import is_full, named  # most commands write none

    data = text.encode()
    try:
        there = os.stat(path)  # of a pipe in /dev/fd: what such a link reads is no path
    except FileNotFoundError:
        there = None
    try:
        if there is None:
            _replace(path, data, None)
        elif stream := _stream_to(there):
            with open(stream, "wb", closefd=False) as file:
                file.write(data)
        elif not stat.S_ISREG(there.st_mode):
            _write_in_place(path, data)
        else:
            try:
                _replace(path, data, stat.S_IMODE(there.st_mode))
            except OSError as error:
                if error.errno not in _NOT_REPLACED:
                    raise
                _write_in_place(path, data)
    except OSError as error:
        if is_full(error):
            raise StoreFullError(f"{path}: no room for {len(data)} bytes") from error
        raise named(error, path) from error


def _stream_to(there: os.stat_result) -> int:
    """The descriptor of stdout or stderr if it goes to a file; 0 if neither does."""
    for number in (1, 2):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), there):
                return number
    return 0


@contextmanager
def new_result_file(path: str) -> Iterator[BinaryIO]:
    """A command's result as a new file, which is there when all of the result is on the disk.

    Raises:
        OSError: it cannot be written.
        StoreFullError: the disk has no room for it.
    """
    from oberth.store.files import is_full, named  # most commands write none

    try:
        with _taking_the_place_of(path, None) as file:
            yield file
    except OSError as error:
        if is_full(error):
            raise StoreFullError(f"{path}: no room for the result") from error
        raise named(error, path) from error


def _replace(path: str, data: bytes, mode: int | None) -> None:
    """Puts a file of these bytes in the place of another."""
    with _taking_the_place_of(path, mode) as file:
        file.write(data)


@contextmanager
def _taking_the_place_of(path: str, mode: int | None) -> Iterator[BinaryIO]:
    """A file under a name that nobody has; behind the block it gets the one that is asked for."""
    from oberth.store.files import OsFileSystem  # most commands write none

    target = os.path.realpath(path)
    fresh = os.path.join(os.path.dirname(target), f".oberth-{secrets.token_hex(8)}.tmp")
    try:
        with open(fresh, "xb") as file:
            if mode is not None:
                os.chmod(fresh, mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        OsFileSystem().rename(fresh, target)
    except BaseException as error:
        with suppress(OSError):
            os.remove(fresh)
        if isinstance(error, OSError) and error.errno is not None:
            # Nobody asked for the fresh name.
            raise OSError(error.errno, error.strerror, path) from error
        raise


def _write_in_place(path: str, data: bytes) -> None:
    # Without O_CREAT, which Linux refuses for another user's file or pipe in a sticky directory.
    with open(os.open(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(data)


def write_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table on stdout: numbers to the right, columns two blanks apart, a line for each row."""
    lines = [tuple(map(_cell_text, row)) for row in rows]
    raw = [tuple(header), *lines]
    widths = [max(len(line[column]) for line in raw) for column in range(len(header))]
    numeric = [
        all(_is_number(line[column]) for line in lines) and bool(lines)
        for column in range(len(header))
    ]
    with until_the_reader_leaves():
        for line in raw:
            cells = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, numeric, strict=True)
            ]
            click.echo("  ".join(cells).rstrip())


def _cell_text(cell: Any) -> str:
    if cell is None:
        return "-"
    text = str(cell)
    return one_line(text if len(text) <= CELL_SIZE_MAX else f"{text[:CELL_SIZE_MAX]}…")


def _is_number(text: str) -> bool:
    return text == "-" or text.replace("-", "", 1).isdigit()


def time_text(timestamp_ms: int | None) -> str | None:
    """A store time as text, UTC with milliseconds."""
    if timestamp_ms is None:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


class Moment(int):
    """A time in ms since 1970: people read it as `time_text`, programs as `iso_time`."""


def iso_time(timestamp_ms: int) -> str:
    """A time as ISO 8601, UTC with milliseconds; a time outside the calendar as its number."""
    text = time_text(timestamp_ms) or ""
    return f"{text.replace(' ', 'T')}Z" if ":" in text else text


def size_text(size: int) -> str:
    """Bytes as people read them."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
