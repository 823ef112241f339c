"""Log lines of servers on stderr: as text, or each as one JSON object.

    {"time": "2026-01-31T12:00:00.123Z", "level": "WARNING", "logger": "oberth.broker",
     "message": "T queue 0: purged from 0 to 7", "template": "%s queue %d: purged …",
     "thread": "oberth-clean", "fields": {…}, "exception": {"type": …, "message": …, "stack": …}}

``time`` is UTC. ``template`` is the message before its values were put in, and is there when it had
some: lines of one kind have one template. ``fields`` is what a call gave as ``extra``; it and
``exception`` come when there is one. A line break within is escaped, so a line is an object,
always; with JSON what commands say and their errors are lines of this kind too.

What is called a secret, password, token, signature or credential is written as ``***``, in fields
and where a message says ``name=value`` or ``"name": "value"``.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from oberth.cli import output
from oberth.cli.output import printable
from oberth.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

LEVELS: Final = ("error", "warning", "info", "debug")
FORMATS: Final = ("text", "json")
LEVEL_ENVIRONMENT: Final = "OBERTH_LOG_LEVEL"
FORMAT_ENVIRONMENT: Final = "OBERTH_LOG_FORMAT"
MESSAGE_SIZE_MAX: Final = 64 * 1024
"""Characters of a message or a stack; a longer one is cut."""

HIDDEN: Final = "***"
_SECRET: Final = re.compile(r"secret|passw|credential|token|signature", re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(
    r"""(?ix)
    ( [\w.-]* (?: secret | passw | credential | token | signature ) [\w.-]* ["']? \s* [:=] \s* )
    ( "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | [^\s,;}&)\]]+ )
    """
)
_META: Final = "oberth.cli.logs"
_STANDARD: Final = frozenset(
    logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys()
    | {"message", "asctime", "taskName"}
)


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.find_root().meta.setdefault(_META, {})[parameter.name] = value


_OPTIONS: Final = (
    click.option(
        "-v", "--verbose", count=True, help="Log more (info); given twice, log everything (debug)."
    ),
    click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        envvar=LEVEL_ENVIRONMENT,
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Lowest level of log lines; warning if not given.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(FORMATS, case_sensitive=False),
        envvar=FORMAT_ENVIRONMENT,
        show_envvar=True,
        expose_value=False,
        callback=_keep,
        help="Write lines on stderr as text, or each as a JSON object.",
    ),
)


def log_options(command: F) -> F:
    """-v, --log-level and --log-format; `start_logging` reads them."""
    for decorate in reversed(_OPTIONS):
        command = decorate(command)
    return command


def start_logging(verbose: int) -> None:
    """Log lines on stderr, as the options and the environment say."""
    context = click.get_current_context(silent=True)
    options: Mapping[str, Any] = {} if context is None else context.find_root().meta.get(_META, {})
    level = options.get("log_level")
    if level is None or (verbose and not _was_given(context, "log_level")):
        level = LEVELS[min(verbose + 1, 3)]
    configure(level, options.get("log_format") or "text")


def _was_given(context: click.Context | None, name: str) -> bool:
    """Whether an option was on the command line, and not only in the environment."""
    source = None if context is None else context.get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def configure(level: str, style: str) -> None:
    """Have the root logger write to stderr.

    Raises:
        OptionError: an unknown level or format.
    """
    if level.lower() not in LEVELS:
        raise OptionError(f"log level {level!r} is none of {', '.join(LEVELS)}")
    if style.lower() not in FORMATS:
        raise OptionError(f"log format {style!r} is none of {', '.join(FORMATS)}")
    as_json = style.lower() == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    handler.addFilter(Floods())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    output.talk_to = _talk if as_json else None


def _talk(level: int, text: str) -> None:
    """A line that a command says; it is written at every level."""
    logger = logging.getLogger("oberth.cli")
    logger.handle(logger.makeRecord(logger.name, level, "", 0, text, (), None))


class Floods(logging.Filter):
    """Of lines that one place in the code logs, at most ``LINES_MAX`` in a second.

    A peer that sends a bad frame after the other would fill the disk with what is said about each.
    The first line of a later second says how many were left out.

    Args:
        clock: seconds.
    """

    LINES_MAX: Final = 20

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # By place: the second, its lines, lines that were left out. As many as the code has places.
        self._places: dict[tuple[str, int], tuple[int, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if not record.pathname:
            return True  # a line that a command says
        place = record.pathname, record.lineno
        second = int(self._clock())
        since, count, left_out = self._places.get(place, (second, 0, 0))
        if since != second:
            count = 0
        is_kept = count < self.LINES_MAX
        if is_kept and left_out:
            record.msg = f"{record.msg} [{left_out} lines like it were left out]"
        self._places[place] = (second, count + 1, 0 if is_kept else left_out + 1)
        return is_kept


def redact(text: str) -> str:
    """The text with ``***`` instead of the values of secrets."""
    if _SECRET.search(text) is None:
        return text
    return _SECRET_VALUE.sub(rf"\1{HIDDEN}", text)


class TextFormatter(logging.Formatter):
    """Lines for people, without secrets.

    Names come from peers. So a message is one line, also where it holds newlines. Only a stack
    follows on further lines, each indented: a line that begins with a time comes from a logger.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's first line."""
        line = super().formatMessage(record)
        return printable(_cut(line).replace("\r", "\\r").replace("\n", "\\n"))

    def formatException(self, ei: Any) -> str:
        """The stack, indented; what an exception says may hold line ends of a peer's."""
        stack = _cut(super().formatException(ei)).replace("\r", "\\r")
        return "    " + printable(stack).replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        """One record, with its stack on further lines."""
        return redact(super().format(record))


class JsonFormatter(logging.Formatter):
    """See the module. Every call gives a line, also one with values that JSON has not."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": redact(_cut(_message(record))),
        }
        if record.args:
            line["template"] = _cut(str(record.msg))
        line["thread"] = record.threadName
        fields = {
            name: HIDDEN if _SECRET.search(name) else _plain(value)
            for name, value in record.__dict__.items()
            if name not in _STANDARD
        }
        if fields:
            line["fields"] = fields
        if record.exc_info is not None and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["exception"] = {
                "type": type(error).__name__,
                "message": redact(_cut(_text(error))),
                "stack": redact(_cut(self.formatException(record.exc_info))),
            }
        return json.dumps(line, ensure_ascii=False)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a wrong call of ours must not cost the line
        return f"{record.msg} {record.args!r}"


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - as above
        return f"<{type(value).__name__}>"


def _plain(value: Any, depth: int = 3) -> Any:
    """The value as JSON can hold it; values of other types as text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return redact(_cut(value))
    if depth and isinstance(value, Mapping):
        return {
            _text(name): HIDDEN if _SECRET.search(_text(name)) else _plain(each, depth - 1)
            for name, each in value.items()
        }
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_plain(each, depth - 1) for each in value]
    return redact(_cut(_text(value)))


def _cut(text: str) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) <= MESSAGE_SIZE_MAX:
        return text
    return f"{text[:MESSAGE_SIZE_MAX]}… ({len(text)} characters)"
