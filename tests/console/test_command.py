"""``oberth console`` and the console of ``oberth up``, as processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from oberth.cli import console as command
from oberth.cli.main import oberth
from oberth.errors import OptionError
from oberth.remoting.aio.tls import make_certificate

READY = re.compile(r"ready: name server (\S+), .* console (http://127\.0\.0\.1:\d+), in ")
TIMEOUT_S = 120


def start(
    *words: str, stderr: int | None = subprocess.PIPE, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "oberth", *words],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=env,
    )


def test_up_serves_a_console_that_ends_with_it(tmp_path: Path) -> None:
    words = ("up", "--port", "0", "--namesrv-port", "0", "--console-port", "0")
    with start(*words, "--store", str(tmp_path)) as up:
        assert up.stdout is not None
        found = READY.match(line := up.stdout.readline())
        assert found is not None, line
        page = httpx.get(found[2], timeout=TIMEOUT_S)
        assert page.status_code == 200
        assert "Read only" in page.text
        alone = ("console", "-n", found[1], "--port", "0", "--allow-writes")
        with start(*alone, "--audit-log", str(tmp_path / "state" / "audit.jsonl")) as other:
            assert other.stdout is not None
            address = other.stdout.readline().split()[2]
            assert "Changes are allowed" in httpx.get(address, timeout=TIMEOUT_S).text
            assert (tmp_path / "state" / "audit.jsonl").stat().st_mode & 0o777 == 0o600
            other.send_signal(signal.SIGTERM)
            assert other.wait(TIMEOUT_S) == 0
        up.send_signal(signal.SIGTERM)
        _, talk = up.communicate(timeout=TIMEOUT_S)
        assert up.returncode == 0, talk
        assert talk.count("stopping") == 1
    port = int(found[2].rpartition(":")[2])
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("trusts", [False, True])
def test_the_console_and_broker_processes_of_an_up_that_takes_tls_only(
    tmp_path: Path, trusts: bool
) -> None:
    pem = tmp_path / "own.pem"
    made = make_certificate(2)
    assert made is not None
    pem.write_bytes(made)
    words = ["up", "--port", "0", "--namesrv-port", "0", "--console-port", "0"]
    words += ["--set", "tlsServerMode=enforcing", "--set", f"tlsServerCertPath={pem}"]
    if trusts:
        words += ["--brokers", "2", "--set", f"tlsClientTrustCertPath={pem}"]
        (tmp_path / "store" / "config").mkdir(parents=True)
        (tmp_path / "store" / "config" / "topics.json").write_text(
            '{"topicConfigTable": {"Before": {"topicName": "Before"}}}'
        )
    with start(*words, "--store", str(tmp_path / "store"), "--set", "brokerName=guarded") as up:
        assert up.stdout is not None
        found = READY.match(line := up.stdout.readline())
        assert found is not None, line
        code = ["topic", "create", "Here", "-n", found[1]]
        assert CliRunner().invoke(oberth, code).exit_code != 0
        assert CliRunner().invoke(oberth, [*code, "--tls-ca", str(pem)]).exit_code == 0
        page = httpx.get(found[2], timeout=TIMEOUT_S)
        assert "guarded" in page.text
        assert "does not answer" not in page.text
        up.send_signal(signal.SIGTERM)
        _, talk = up.communicate(timeout=TIMEOUT_S)
        assert up.returncode == 0, talk
        # Of the command that tried it, and nobody else.
        assert talk.count("this server takes TLS only") == 1
        assert ("made where they were missing" in talk) == trusts


def test_a_console_that_cannot_start_says_why_and_refuses_browsers(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    words = ("up", "--port", "0", "--namesrv-port", "0", "--console-port", "0", "--console-writes")
    given = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    with start(*words, "--store", str(tmp_path / "store"), env=given) as up:
        assert up.stdout is not None
        assert up.stderr is not None
        found = READY.match(line := up.stdout.readline())
        assert found is not None, line
        said: list[str] = []
        while not said or "console: it ended with 2" not in said[-1]:
            said.append(up.stderr.readline())
            assert said[-1], said
        assert any(str(tmp_path / "state") in each for each in said), said
        port = int(found[2].rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=TIMEOUT_S)
        assert up.returncode == 0


def test_a_console_ends_when_its_up_is_killed(tmp_path: Path) -> None:
    words = ("up", "--port", "0", "--namesrv-port", "0", "--console-port", "0")
    # The console has the same stderr, which ends when the last of both has ended.
    with start(*words, "--store", str(tmp_path)) as up:
        assert up.stdout is not None
        assert READY.match(up.stdout.readline())
        up.kill()
        up.communicate(timeout=TIMEOUT_S)


def test_a_console_of_an_up_ends_in_order_by_a_signal_of_its_own() -> None:
    """As systemd sends it to every process of a unit."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        words = ["console", "-n", "127.0.0.1:1", "--socket-fd", str(listener.fileno())]
        with subprocess.Popen(
            [sys.executable, "-m", "oberth", *words],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # as up starts it
        ) as process:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/static/console.css"
            assert httpx.get(address, timeout=TIMEOUT_S).status_code == 200
            own = os.getpriority(os.PRIO_PROCESS, 0)
            given = os.getpriority(os.PRIO_PROCESS, process.pid)
            assert given == min(own + command.NICENESS, 19)  # it gives way to brokers
            if sys.platform == "linux":
                assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH
            session = Path(f"/proc/{process.pid}/autogroup")
            if session.exists() and (text := session.read_text()):  # else sessions share nothing
                assert text.split()[1:] == ["nice", str(command.NICENESS)]
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
            assert process.stderr is not None
            assert "Fatal" not in process.stderr.read()


async def test_without_the_extra_up_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "uvicorn" else object())
    async with command.console_served(
        "127.0.0.1:1", 0, is_wanted=False, allow_writes=False
    ) as words:
        assert words == ""
    (line,) = capsys.readouterr().err.splitlines()
    assert "uvicorn is missing" in line
    assert "pip install 'oberth[console]'" in line
    with pytest.raises(OptionError, match="uvicorn is missing"):
        async with command.console_served("127.0.0.1:1", 0, is_wanted=True, allow_writes=False):
            pass


async def test_a_taken_port_is_no_reason_not_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        async with command.console_served(
            "127.0.0.1:1", port, is_wanted=False, allow_writes=False
        ) as words:
            assert words == ""
    assert "--console-port N chooses another port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "0.0.0.0"], "a login is needed"),
        (["--login", "token", "--token-file", "TOKEN"], "at least 16"),
    ],
)
def test_what_would_be_open_to_everybody_does_not_start(
    tmp_path: Path, words: list[str], said: str
) -> None:
    token = tmp_path / "token"
    token.write_text("short\n")
    given = [str(token) if word == "TOKEN" else word for word in words]
    result = CliRunner().invoke(oberth, ["console", "--port", "0", *given])
    assert isinstance(result.exception, OptionError)
    assert said in str(result.exception)
