"""What errors of the first minute say: taken ports, words that are no command, wrong settings."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from oberth.__main__ import main as command
from oberth.broker.broker_config import DEFAULT_PORT as BROKER_PORT
from oberth.cli.hints import hint_for, listener_on, missing_extra, package_of, taken_port
from oberth.cli.main import main, oberth
from oberth.cli.serve import PORTS
from oberth.cli.spark_options import spark_message, stop_query
from oberth.controller.controller_config import DEFAULT_PORT as CONTROLLER_PORT
from oberth.errors import (
    MQBrokerError,
    NotFoundError,
    OberthError,
    OptionError,
    RemotingConnectError,
    RemotingSendRequestError,
    RemotingTimeoutError,
    StoreCorruptError,
    UnknownOptionError,
)
from oberth.formats.message_store_config import DEFAULT_ROOT
from oberth.namesrv.namesrv_config import DEFAULT_PORT as NAMESRV_PORT

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command line: exit code and stderr."""

    def call(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in words])
        code = ended.value.code
        return (code if isinstance(code, int) else 0), capsys.readouterr().err

    return call


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topics"], "topic"),
        (["stor"], "store"),
        (["TOPIC"], "topic"),
        (["topic", "lst"], "list"),
        (["group", "progres"], "progress"),
        (["message", "snd"], "send"),
        (["cluster", "retension"], "retention"),
        (["store", "inspct"], "inspect"),
        (["spark", "exprot"], "export"),
    ],
)
def test_a_word_that_is_no_command(run: Run, words: list[str], meant: str) -> None:
    code, err = run(*words)
    assert code == 2
    assert f"Did you mean {meant}" in err


def test_nothing_is_suggested_where_nothing_is_near(run: Run) -> None:
    assert "Did you mean" not in run("zzzzzz")[1]


@pytest.mark.parametrize("command", ["up", "broker", "namesrv", "controller"])
def test_a_taken_port_is_named_with_who_has_it(run: Run, tmp_path: Path, command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        own = [] if command == "namesrv" else ["--store", tmp_path]
        code, err = run(command, "--port", port, *own, *(["--namesrv-port", 0] * (command == "up")))
        assert code == 2
        assert f"port {port} of 127.0.0.1 is in use by process {os.getpid()} (" in err
        assert "; --port takes another one" in err
        if command == "up":
            assert "; --namesrv-port takes" in run(command, "--namesrv-port", port, *own)[1]


def test_a_port_that_nobody_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    assert listener_on(port) is None


def test_other_errors_of_listening() -> None:
    place = "error while attempting to bind on address ('10.1.1.1', 80): no"
    text = str(taken_port(OSError(errno.EADDRNOTAVAIL, place), {}))
    assert text == "10.1.1.1 is no address of this machine; --listen chooses another one"
    text = str(taken_port(OSError(errno.EACCES, place), {80: "--port"}))
    assert text == "this user may not listen on port 80; --port takes another one"
    assert taken_port(OSError(errno.ENOSPC, "no space"), {}) is None


def test_nothing_listens(run: Run) -> None:
    code, err = run("topic", "list", "-n", "127.0.0.1:1")
    assert code == 2
    assert "hint: nothing listens there; `oberth up` starts" in err


def refused_certificate() -> RemotingConnectError:
    cause = ssl.SSLCertVerificationError("certificate verify failed: self-signed certificate")
    error = RemotingConnectError(f"no connection to a:1: {cause}")
    error.__cause__ = cause
    return error


HINTS: Final = [
    (refused_certificate(), "--tls-ca FILE"),
    (refused_certificate(), "--tls-insecure"),
    (UnknownOptionError("nonsens: no such option"), "Apache's names"),
    (OptionError("address 'x' is not host:port, where the port is a number"), None),
    (NotFoundError("/x: no such directory"), "store root"),
    (NotFoundError("topic 'T' has no ConsumeQueue"), None),
    (MQBrokerError(17, "no topic 'T'"), "topic create"),
    (MQBrokerError(17, "no broker knows group 'G'"), "group create"),
    (MQBrokerError(1, "busy"), None),
    (PermissionError(errno.EACCES, "denied", "/store/lock"), "user that the broker runs as"),
    (PermissionError(errno.EACCES, "denied"), None),
    (RemotingConnectError("no connection to a:1 within 3 s"), None),
    (RemotingSendRequestError("connection to a:1 closed before the response"), "name server"),
    (RemotingSendRequestError("queue of requests is full"), None),
    (RemotingTimeoutError("no response from a:1 to code 28 within 5 ms"), "cluster list"),
    (OberthError("anything"), None),
]
"""By error, what its hint says; None where it has none."""


@pytest.mark.parametrize(("error", "word"), HINTS)
def test_hints_stand_where_they_fit(error: Exception, word: str | None) -> None:
    hint = hint_for(error)
    assert hint is None if word is None else hint is not None and word in hint


@pytest.mark.parametrize(
    ("error", "running"),
    [
        (RemotingTimeoutError("no response from a:1 to code 106 within 5 ms"), "cluster list"),
        (StoreCorruptError("/x/config/topics.json: no JSON"), "store verify"),
    ],
)
def test_no_hint_names_the_command_that_it_is_given_by(error: Exception, running: str) -> None:
    assert f"oberth {running}" in str(hint_for(error))
    own = hint_for(error, running)
    assert own is not None
    assert f"oberth {running}" not in own


def test_packages_and_their_extras() -> None:
    text = missing_extra(ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.compute"))
    assert text is not None
    assert "pip install 'oberth[spark]'" in text
    assert package_of(ModuleNotFoundError("x", name="google.protobuf")) == "protobuf"
    assert package_of(ModuleNotFoundError("x", name="hpack.table")) == "hpack"
    assert "package protobuf" in (missing_extra(ImportError("x", name="google")) or "")
    assert "oberth[delta]" in (missing_extra(ImportError("needs deltalake >= 1")) or "")
    assert missing_extra(ModuleNotFoundError("No module named 'x'", name="x")) is None


def test_a_proxy_without_its_extra_names_the_whole_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("google", "google.protobuf", "hpack"):
        monkeypatch.setitem(sys.modules, module, None)
    code, err = run("proxy")
    assert code == 2
    assert "hint: pip install 'oberth[grpc]'" in err


def test_ctrl_c_while_the_command_line_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pressed:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "oberth.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "oberth.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Pressed(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "aborted\n"


def test_help_shows_what_is_taken_if_nothing_is_given() -> None:
    assert PORTS == {
        "broker": BROKER_PORT,
        "name server": NAMESRV_PORT,
        "controller": CONTROLLER_PORT,
    }
    text = " ".join(CliRunner().invoke(oberth, ["up", "--help"]).output.split())
    assert "Port of the broker, 10911 if not given" in text
    assert "Port of the name server, 9876 if not given" in text
    assert f"Directory of the store; {DEFAULT_ROOT} if not given" in text


@pytest.mark.parametrize("command", ["up", "broker", "namesrv", "controller"])
def test_a_wrong_setting_is_named_with_its_line(run: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "server.conf"
    path.write_text("# a comment\nlistenPort = many\n")
    code, err = run(command, "-c", path)
    assert code == 2
    assert err == f"error: {path}: line 2: listenPort: 'many' is not an integer\n"
    path.write_text("listenPort=0\n\ntlsServerMode=perhaps\n")
    assert f"error: {path}: line 3: tlsServerMode: 'perhaps' is not" in run(command, "-c", path)[1]
    wins = run(command, "-c", path, "--set", "tlsServerMode=no")[1]
    assert "line 3" not in wins, "the line is not what is wrong"


def test_a_wrong_setting_of_a_store(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("flushDiskType=OFTEN\n")
    code, err = run("store", "inspect", tmp_path, "-c", path)
    assert code == 2
    assert f"{path}: line 1: flushDiskType: 'OFTEN' is not one of" in err
    path.write_text("\nmapedFileSizeCommitLog=1\n")
    err = run("store", "inspect", tmp_path, "-c", path)[1]
    assert f"{path}: line 2: mapedFileSizeCommitLog: no such option; did you mean" in err


def test_a_setting_of_the_environment_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OBERTH_flushDiskType", "OFTEN")
    err = run("up", "--port", "0", "--namesrv-port", "0")[1]
    assert "variable OBERTH_flushDiskType: flushDiskType: 'OFTEN' is not one of" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[SYNTAX] near ')'", "[SYNTAX] near ')'"),
        ("[X] it broke\n\nJVM stacktrace:\nat org.apache.Y", "[X] it broke"),
        (
            "[PYTHON] it failed: Traceback (most recent call last):\n"
            '  File "plan.py", line 530, in open_stores\n    raise OptionError(\n'
            "oberth.errors.OptionError: path: /x is no store\n SQLSTATE: 38000",
            "path: /x is no store",
        ),
        (
            "Traceback (most recent call last):\nKeyError: 'Error: a'\n\nDuring handling\n\n"
            "Traceback (most recent call last):\n  File: 1\noberth.errors.StoreError: b",
            "b",
        ),
        ("it failed: Traceback (most recent call last):\nAssertionError", "AssertionError"),
    ],
)
def test_words_of_an_error_of_spark(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setattr(PySparkException, "getMessage", lambda self: text)
    assert spark_message(PySparkException(text)) == said


def test_a_query_is_stopped_although_ctrl_c_broke_off_a_call() -> None:
    """py4j's next call then found its connection closed, once in a while."""

    class Query:
        calls = 0

        def stop(self) -> None:
            self.calls += 1
            if self.calls == 1:
                raise Py4JNetworkError("Answer from Java side is empty")

    query = Query()
    stop_query(cast("Any", query))
    assert query.calls == 2
