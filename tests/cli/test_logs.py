"""Log lines of servers: each one JSON object whatever is logged, levels, and no secret in any."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.cli import output
from oberth.cli.logs import (
    MESSAGE_SIZE_MAX,
    Floods,
    JsonFormatter,
    TextFormatter,
    configure,
    log_options,
    redact,
    start_logging,
)
from oberth.errors import OptionError


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before
    logging.captureWarnings(capture=False)
    output.talk_to = None


def line_of(message: Any, *args: Any, error: BaseException | None = None, **extra: Any) -> Any:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    failure = None if error is None else (type(error), error, error.__traceback__)
    logger = logging.getLogger("oberth.test")
    # Not by a call: pytest's own handlers raise for what this one has to bear.
    handler.handle(
        logger.makeRecord(logger.name, logging.WARNING, "", 0, message, args, failure, extra=extra)
    )
    text = stream.getvalue()
    assert text.count("\n") == 1, "one line"
    return json.loads(text)


def test_the_parts_of_a_line() -> None:
    line = line_of("%s queue %d", "T", 7, topic="T", sizes=[1, 2.5], where=Path("/x"))
    assert line["level"] == "WARNING"
    assert line["logger"] == "oberth.test"
    assert line["message"] == "T queue 7"
    assert line["template"] == "%s queue %d"
    assert line["fields"] == {"topic": "T", "sizes": [1, 2.5], "where": "/x"}
    assert line["time"].endswith("Z")
    assert "exception" not in line


def test_an_exception_is_an_object() -> None:
    try:
        raise ValueError("secretKey=abcdefg is\nwrong")
    except ValueError as error:
        line = line_of("it failed", error=error)
    assert line["exception"]["type"] == "ValueError"
    assert line["exception"]["message"] == "secretKey=*** is\nwrong"
    assert "test_an_exception_is_an_object" in line["exception"]["stack"]
    assert "abcdefg" not in json.dumps(line)


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("message", "args"),
    [
        ("%d", ("no number",)),
        ("%s %s", ("one",)),
        ("a\nb\r\u2028c", ()),
        ("\ud800", ()),
        ("%s", (Hostile(),)),
        ("x" * (MESSAGE_SIZE_MAX * 2), ()),
        ({"a": 1}, ()),
    ],
)
def test_whatever_is_logged_becomes_a_line(message: Any, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], Hostile):
        # logging itself fails on its repr too: the fields are what such a value comes by.
        assert line_of("m", value=Hostile())["fields"] == {"value": "<Hostile>"}
        return
    assert len(line_of(message, *args)["message"]) <= MESSAGE_SIZE_MAX + 40


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.text(), _JSON)
def test_any_text_and_any_field(text: str, value: Any) -> None:
    line = line_of("%s", text, field=value)
    assert "field" in line["fields"]


SECRETS = [
    "secretKey=hunter22",
    "secretKey: 'hunter22', more",
    '{"secretKey":"hunter22","accessKey":"a"}',
    '{"secretKey" : "hunt\\"hunter22"}',
    "innerClientAuthenticationCredentials={hunter22",
    "Signature=hunter22&AccessKey=a",
    "initial password = hunter22",
    "SecurityToken:hunter22",
]


@pytest.mark.parametrize("text", SECRETS)
def test_no_secret_is_written(text: str) -> None:
    assert "hunter22" not in redact(text)
    assert "hunter22" not in json.dumps(line_of(text))
    assert "hunter22" not in json.dumps(line_of("refused: %s", text))
    assert "hunter22" not in json.dumps(line_of("x", entry=text))
    record = logging.LogRecord("l", logging.INFO, "", 0, text, (), None)
    assert "hunter22" not in TextFormatter().format(record)
    for fields in ({"password": "hunter22"}, {"user": {"secret_key": "hunter22", "name": "n"}}):
        assert "hunter22" not in json.dumps(line_of("x", **fields))


def test_what_is_no_secret_stays() -> None:
    text = "topic T: 3 queues, accessKey=reader, keys: a b, path=/a/b"
    assert redact(text) == text


@pytest.mark.parametrize(
    ("words", "environment", "level"),
    [
        ([], {}, "WARNING"),
        (["-v"], {}, "INFO"),
        (["-vv"], {}, "DEBUG"),
        (["--log-level", "error"], {}, "ERROR"),
        (["-v", "--log-level", "error"], {}, "ERROR"),
        ([], {"OBERTH_LOG_LEVEL": "debug"}, "DEBUG"),
        (["-v"], {"OBERTH_LOG_LEVEL": "error"}, "INFO"),
        ([], {"OBERTH_LOG_FORMAT": "json"}, "WARNING"),
    ],
)
def test_options_go_before_the_environment(
    words: list[str], environment: dict[str, str], level: str
) -> None:
    @click.command()
    @log_options
    def command(verbose: int) -> None:
        start_logging(verbose)
        root = logging.getLogger()
        click.echo(logging.getLevelName(root.level))
        click.echo(type(root.handlers[0].formatter).__name__)

    result = CliRunner().invoke(command, words, env=environment)
    style = "JsonFormatter" if "OBERTH_LOG_FORMAT" in environment else "TextFormatter"
    assert result.stdout.split() == [level, style]


def test_wrong_settings_are_named() -> None:
    with pytest.raises(OptionError, match="loud"):
        configure("loud", "json")
    with pytest.raises(OptionError, match="xml"):
        configure("info", "xml")
    result = CliRunner().invoke(
        click.command()(log_options(lambda verbose: None)), ["--log-format", "x"]
    )
    assert result.exit_code == 2


def test_a_server_writes_nothing_but_objects(tmp_path: Path) -> None:
    """Also what commands say, the warning about an unknown key, and the error it ends with."""
    process = subprocess.run(
        [
            *(sys.executable, "-m", "oberth", "broker", "--store", str(tmp_path / "s")),
            *("--log-format", "json", "-vv", "--port", "0", "--set", "nonsens=1"),
            *("--set", "brokerRole=SYNC_MASTER", "--set", "haListenPort=1"),
            *("--set", "httpPort=0", "--set", "httpAddress=203.0.113.1"),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 2
    lines = [json.loads(each) for each in process.stderr.splitlines()]
    assert any("nonsens" in line["message"] for line in lines)
    assert lines[-1]["level"] == "ERROR"


def test_a_name_does_not_forge_a_line() -> None:
    """Line ends and escapes of a peer's name are written out; a stack is indented."""
    name = "T\n2026-01-01 00:00:00,000 ERROR oberth.broker all is lost\r\x1b[2J\x9b\u202e\u2028\0"
    try:
        raise ValueError(name)
    except ValueError:
        failure = sys.exc_info()
    record = logging.LogRecord(
        "oberth.broker", logging.WARNING, "", 0, "topic %s", (name,), failure
    )
    first, *others = TextFormatter().format(record).splitlines()
    assert "topic T\\n2026-01-01" in first
    assert first.endswith(r"is lost\r\x1b[2J\x9b\u202e\u2028\x00")
    assert others
    assert all(line.startswith("    ") for line in others)
    assert not any(set(line) & set("\x1b\x9b\u202e\0") for line in others)
    assert TextFormatter().format(record).count("\r") == 0


def test_a_flood_of_lines_is_counted_instead() -> None:
    now = [7.0]
    floods = Floods(lambda: now[0])
    logger = logging.getLogger("oberth.test")

    def written(line: int) -> list[str]:
        records = [
            logger.makeRecord(logger.name, logging.INFO, "a.py", line, "code %d", (number,), None)
            for number in range(100)
        ]
        return [record.getMessage() for record in records if floods.filter(record)]

    assert written(1) == [f"code {number}" for number in range(Floods.LINES_MAX)]
    assert written(1) == []
    assert len(written(2)) == Floods.LINES_MAX  # another place in the code
    now[0] += 1
    first, *others = written(1)
    assert first == "code 0 [180 lines like it were left out]"
    assert others[0] == "code 1"
    said = logger.makeRecord(logger.name, logging.INFO, "", 0, "said", (), None)
    assert all(floods.filter(said) for _ in range(100))


def test_a_server_logs_no_line_for_every_frame(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    for number in range(1000):
        logging.getLogger("oberth.remoting").info("code %d is not served", number)
    assert capsys.readouterr().err.count("is not served") <= 2 * Floods.LINES_MAX
