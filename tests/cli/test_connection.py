"""Commands sign and use TLS: against a broker that asks for both, and wrong files and keys."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from oberth.cli.connection import read_credentials
from oberth.cli.main import oberth
from oberth.errors import OptionError

READY = re.compile(r"ready: name server (\S+), broker (\S+), store (\S+), in ([0-9.]+) s")
ACCOUNTS = """
accounts:
  - accessKey: operations
    secretKey: another-long-secret
    admin: true
  - accessKey: reader-1
    secretKey: a-secret-of-a-reader
    admin: false
    defaultTopicPerm: SUB
    defaultGroupPerm: SUB
"""
KEYS = {"OBERTH_ACCESS_KEY": "operations", "OBERTH_SECRET_KEY": "another-long-secret"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a broker with accounts that takes TLS only, with RocketMQ's test mode."""
    root = tmp_path_factory.mktemp("guarded")
    accounts = root / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "oberth", "up", "--store", str(root / "store")),
            *("--port", "0", "--namesrv-port", "0", "--set", "aclEnable=true"),
            *("--set", f"aclFile={accounts}", "--set", "tlsServerMode=enforcing"),
            *("--set", "brokerName=guarded"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    found = READY.fullmatch(process.stdout.readline().strip())
    assert found is not None
    yield found[1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    process.stdout.close()


def run(namesrv: str, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(oberth, [*words, "-n", namesrv], env=env)
    return result.exit_code, f"{result.output} {result.exception}"


def test_signed_over_tls(guarded: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools.yml"
    tools.write_text("# mqadmin\naccessKey: operations\nsecretKey: 'another-long-secret'\n")
    tools.chmod(0o600)
    by_file = ["--credentials", str(tools), "--tls-insecure"]
    assert run(guarded, "topic", "create", "T", "--queues", "2", *by_file)[0] == 0
    code, text = run(guarded, "message", "send", "T", "hello", "--tls-insecure", env=KEYS)
    assert code == 0, text
    assert '"status":"SEND_OK"' in text
    code, text = run(guarded, "cluster", "list", *by_file)
    assert code == 0, text
    by_name = {"OBERTH_CREDENTIALS": str(tools)}
    assert run(guarded, "group", "list", "--tls-insecure", env=by_name)[0] == 0


def test_logs_are_compared_signed_over_tls(
    guarded: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    code, text = run(guarded, "message", "send", "C", "hello", "--tls-insecure", env=KEYS)
    assert code == 0, text
    (store,) = tmp_path_factory.getbasetemp().glob("guarded[0-9]*/store")
    compare = ["cluster", "compare", "guarded", "--json"]
    for other in ("guarded", str(store)):
        code, text = run(guarded, *compare, other, "--tls-insecure", env=KEYS)
        assert code == 0, text
        assert '"differsAt": null' in text
        assert '"equalTo": 0,' not in text
    reader = {"OBERTH_ACCESS_KEY": "reader-1", "OBERTH_SECRET_KEY": "a-secret-of-a-reader"}
    for keys in ({}, reader):
        code, text = run(guarded, *compare, "guarded", "--tls-insecure", env=keys)
        assert code != 0
        assert "equalTo" not in text, text
    code, text = run(guarded, *compare, "guarded", env=KEYS)
    assert code != 0
    assert "equalTo" not in text, text


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"OBERTH_ACCESS_KEY": "operations", "OBERTH_SECRET_KEY": "some-other-secret"},
        {"OBERTH_ACCESS_KEY": "nobody", "OBERTH_SECRET_KEY": "another-long-secret"},
        {"OBERTH_ACCESS_KEY": "reader-1", "OBERTH_SECRET_KEY": "a-secret-of-a-reader"},
    ],
)
def test_without_the_right_keys_nothing_is_done(guarded: str, keys: dict[str, str]) -> None:
    code, text = run(guarded, "topic", "create", "Not", "--tls-insecure", env=keys)
    assert code != 0
    assert "secret" not in text or "another-long-secret" not in text


def test_without_tls_or_trust_nobody_is_asked(guarded: str) -> None:
    assert run(guarded, "topic", "create", "Not", env=KEYS)[0] != 0
    code, text = run(guarded, "topic", "list", "--tls", env=KEYS)
    assert code != 0
    assert "CERTIFICATE_VERIFY_FAILED" in text or "certificate" in text.lower() or "connect" in text


def test_half_a_pair_of_keys_is_an_error(guarded: str) -> None:
    code, text = run(guarded, "topic", "list", env={"OBERTH_ACCESS_KEY": "operations"})
    assert code != 0
    assert "secretKey is missing" in text


@pytest.mark.parametrize("text", ["accessKey operations", ": x", "\0"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c"
    path.write_text(f"accessKey=a\n{text}\n")
    with pytest.raises(OptionError, match="line 2") as caught:
        read_credentials(str(path))
    assert "operations" not in str(caught.value), "a line may be the secret"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("topic list", "--credentials"),
        ("acl user create anna", "--password-file"),
        ("console --login token", "--token-file"),
        ("spark export . --into there --body json", "--schema"),
    ],
)
@pytest.mark.parametrize(("data", "said"), [(b"a: \xff", "byte 3 is no UTF-8"),
                                            (b"a" * (1 << 20) + b"b", "more than ")])  # fmt: skip
def test_a_file_that_is_no_text(
    tmp_path: Path, words: str, option: str, data: bytes, said: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    path.chmod(0o600)
    result = CliRunner().invoke(oberth, [*words.split(), option, str(path)])
    assert isinstance(result.exception, OptionError)
    assert f"{path}: {said}" in str(result.exception)


def test_a_file_that_others_read_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c"
    path.write_text('accessKey=a\nsecretKey="b=c:d"\n')
    os.chmod(path, 0o644)
    assert read_credentials(str(path)) == {
        "accessKey": "a",
        "secretKey": "b=c:d",
        "securityToken": "",
    }
    assert "chmod 600" in capsys.readouterr().err


def test_certificates_that_are_none(guarded: str, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    for option in ("--tls-ca", "--tls-cert"):
        code, text = run(guarded, "topic", "list", option, str(path))
        assert code != 0
        assert "TLS" in text
    code, text = run(guarded, "topic", "list", "--tls-ca", str(path), "--tls-insecure")
    assert "trust everybody" in text
