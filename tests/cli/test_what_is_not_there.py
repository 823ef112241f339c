"""Every command before what it cannot use: it ends soon, with 1 or 2, and says what to look at.

What it cannot use is a port where nobody listens, a name server without brokers, one that never
answers, a directory that cannot be written, or an option's value of a wrong form.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.test_every_command import (
    CASES,
    JSON_ALWAYS,
    SERVERS,
    asks,
    dump_file,
    leaves,
    password_file,
    spark_commands,
)
from tests.rigs.read_only import read_only

from oberth.cli import message
from oberth.cli.main import main, oberth
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.remoting.aio.client import RemotingClient

Golden = Callable[[str], Any]
Run = Callable[..., tuple[int, str]]

CLUSTER: Final = {name: words for name, words in {**CASES, **JSON_ALWAYS}.items() if asks(name)}
"""Arguments of the commands that ask a cluster."""

DEAD: Final = "127.0.0.1:1"
SILENCE_MS: Final = 100
"""For which a command waits for who never answers."""
QUESTIONS_MAX: Final = 2
"""That it may put to such a server, one after the other."""

LOCAL: Final = {
    "up": ["--store", "BELOW", "--namesrv-port", "0", "--port", "0"],
    "broker": ["--store", "BELOW", "--port", "0"],
    "controller": ["--store", "BELOW", "--port", "0"],
    "console": ["--allow-writes", "--audit-log", "BELOW", "--port", "0"],
    "store purge": ["STORE", "TopicAlpha", "--offset", "0=1", "--force"],
    "store recover": ["STORE"],
    "store rebuild": ["STORE", "--into", "BELOW"],
    "store salvage": ["STORE", "--into", "BELOW"],
}
"""Commands that write here. STORE is a store, BELOW a path elsewhere; both cannot be written."""
ONLY_READ: Final = ["inspect", "verify", "dump", "query", "retention"]

SPARK_LIVE: Final = {
    "sql": ["--namesrv", "ADDRESS", "select 1"],
    "audit": ["STORE", "--namesrv", "ADDRESS"],
    "export": ["--namesrv", "ADDRESS", "--into", "NEW"],
    "stats": ["--namesrv", "ADDRESS"],
    "dlq": ["--namesrv", "ADDRESS"],
    "redrive": ["STORE", "--namesrv", "ADDRESS"],
    "migrate": [
        "--from",
        "kafka://127.0.0.1:1/T",
        "--to",
        "rocketmq://ADDRESS/T",
        "--ledger",
        "NEW",
    ],
    "publish": ["--from", "TABLE", "--topic", "T", "--namesrv", "ADDRESS", "--ledger", "NEW"],
}
"""Commands of Spark's that ask name servers, before a session is started."""

SPARK_FILES: Final = {
    "sql": ["--store", "/not/there", "select 1"],
    "dispatch": ["/not/there", "--into", "NEW"],
    "verify": ["/not/there"],
    "audit": ["/not/there", "STORE"],
    "export": ["/not/there", "--into", "NEW"],
    "import": ["/not/there", "--into", "NEW"],
    "stats": ["/not/there"],
    "dlq": ["/not/there"],
    "redrive": ["/not/there"],
    "publish": ["--from", "/not/there", "--topic", "T", "--namesrv", DEAD, "--ledger", "NEW"],
    "salvage": ["/not/there", "--into", "NEW"],
}
"""Commands of Spark's that read files, before a session is started."""

TEXTS: Final = {
    "-n": "nonsense",
    "--set": "nonsense",
    "--conf": "nonsense",
    "--option": "nonsense",
    "--attribute": "nonsense",
    "--property": "nonsense",
    "--offset": "nonsense",
    "--listen": "no address",
    "--trusted-proxies": "nonsense",
    "--prometheus": "nonsense",
}
"""Options that take a text of some form, and one of another."""
ANY_TEXT: Final = {
    *(
        "--action",
        "--as-of",
        "--audit-log",
        "--broker",
        "--catalog",
        "--client",
        "--cluster",
        "--columns",
        "--expand",
    ),
    *("--filter", "--from", "--group", "--host", "--id", "--key", "--marker", "--master"),
    *(
        "--message",
        "--namespace",
        "--namesrv",
        "--partition-by",
        "--resource",
        "--source",
        "--store",
        "--tag",
    ),
    *("--to", "--topic", "--user", "--value", "--warehouse", "--where"),
}
"""Options of which a cluster, a store or Spark has to say whether they are right."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command, with what stands for its words in capitals: exit code and stderr."""
    # Of this process, in which other tests run.
    monkeypatch.setattr("oberth.cli.console.give_way", lambda: None)

    def call(words: list[str], **known: str) -> tuple[int, str]:
        known = {"MESSAGE": "0" * 32, "USER": "somebody", "NEW": str(tmp_path / "new"), **known}
        if "PASSWORD" in words:
            known["PASSWORD"] = str(password_file(tmp_path))
        if "DUMP" in words:
            known["DUMP"] = str(dump_file(tmp_path))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([known.get(each, each) for each in words])
        code, err = ended.value.code, capsys.readouterr().err
        assert "Traceback" not in err
        hints = [line for line in err.splitlines() if line.startswith("hint: ")]
        assert not any(f"`oberth {' '.join(words[:2])}" in each for each in hints), err
        return (code if isinstance(code, int) else 0), err

    return call


def test_every_command_that_asks_a_cluster_is_here() -> None:
    found = {name for name, each in leaves(oberth) if any("-n" in p.opts for p in each.params)}
    assert found == {*CLUSTER, "broker", "proxy", "console"}


def in_words(name: str) -> list[str]:
    """A command that asks a cluster, with its arguments."""
    return [*name.split(), *CLUSTER[name]]


@pytest.mark.parametrize("name", CLUSTER)
def test_nobody_listens(run: Run, golden_store: Golden, name: str) -> None:
    store = str(golden_store("basic-5.5.0").root) if "STORE" in CLUSTER[name] else ""
    code, err = run([*in_words(name), "-n", DEAD], BROKER=DEAD, STORE=store)
    assert code == 2, err
    assert f"no connection to {DEAD}" in err
    assert "hint: nothing listens there" in err


@pytest.fixture(scope="module")
def lonely() -> Iterator[str]:
    """The address of a name server that knows no broker."""
    words = [sys.executable, "-m", "oberth", "namesrv", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"name server (\S+),", process.stdout.readline())
        assert found is not None
        yield found[1]
        process.terminate()


@pytest.mark.parametrize("name", CLUSTER)
def test_a_name_server_without_brokers(
    run: Run, golden_store: Golden, lonely: str, name: str
) -> None:
    store = str(golden_store("basic-5.5.0").root) if "STORE" in CLUSTER[name] else ""
    code, err = run([*in_words(name), "-n", lonely], BROKER=lonely, STORE=store)
    assert code == 2, err
    if "BROKER" in CLUSTER[name]:
        assert lonely in err
        assert "hint: what listens there is no broker" in err
    else:
        assert f"no broker is registered at {lonely}; `oberth broker -n {lonely}` starts" in err


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that takes connections and answers nothing."""
    for function, option in (
        (Admin.__init__, "timeout_ms"),
        (ClientConfig.__init__, "connect_timeout_ms"),
        (ClientConfig.__init__, "mq_client_api_timeout_ms"),
    ):
        defaults = function.__kwdefaults__
        assert defaults is not None
        monkeypatch.setitem(defaults, option, SILENCE_MS)
    monkeypatch.setattr(message, "SEND_TIMEOUT_MS", SILENCE_MS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("name", CLUSTER)
def test_a_name_server_that_never_answers(
    run: Run, golden_store: Golden, silent: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    asked: list[str] = []
    invoke = RemotingClient.invoke

    async def counted(self: RemotingClient, addr: str, *more: Any, **options: Any) -> Any:
        asked.append(addr)
        return await invoke(self, addr, *more, **options)

    monkeypatch.setattr(RemotingClient, "invoke", counted)
    store = str(golden_store("basic-5.5.0").root) if "STORE" in CLUSTER[name] else ""
    code, err = run([*in_words(name), "-n", silent], BROKER=silent, STORE=store)
    assert code == 2, err
    assert silent in err
    assert "hint: it is very busy, stopped or out of reach" in err
    assert "stored twice" not in err
    assert 1 <= len(asked) <= QUESTIONS_MAX


def test_every_command_of_spark_is_here() -> None:
    commands = {name.split()[1]: each for name, each in leaves(oberth) if name[:6] == "spark "}
    live = {n for n, each in commands.items() if any("--namesrv" in p.opts for p in each.params)}
    assert SPARK_LIVE.keys() == {*live, "migrate"}
    assert SPARK_FILES.keys() | SPARK_LIVE.keys() == commands.keys()


def on_spark(name: str, words: list[str]) -> list[str]:
    """The command with a master that no session starts with."""
    return ["spark", name, *words, *([] if name == "publish" else ["--master", "none://"])]


@pytest.mark.parametrize("name", SPARK_FILES)
def test_a_store_that_is_not_there(run: Run, golden_pristine: Golden, name: str) -> None:
    store = str(golden_pristine("basic-5.5.0").root)
    code, err = run(on_spark(name, SPARK_FILES[name]), STORE=store)
    assert code == 2
    assert "/not/there" in err
    assert "Spark does not start" not in err


@pytest.mark.parametrize("name", SPARK_LIVE)
@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_a_name_server_of_spark_that_does_not_answer(
    run: Run, golden_pristine: Golden, tmp_path: Path, silent: str, kind: str, name: str
) -> None:
    address = DEAD if kind == "dead" else silent
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"value": ["a"]}), tmp_path / "table" / "a.parquet")
    words = [each.replace("ADDRESS", address) for each in SPARK_LIVE[name]]
    if kind == "silent":
        words += ["--option", f"rocketmq.timeout={SILENCE_MS}ms"]
    code, err = run(
        on_spark(name, words),
        STORE=str(golden_pristine("basic-5.5.0").root), TABLE=str(tmp_path / "table"),
    )  # fmt: skip
    assert code == 2
    assert address in err
    hint = "nothing listens there" if kind == "dead" else "it is very busy, stopped or out of reach"
    assert f"hint: {hint}" in err


@pytest.mark.parametrize("name", LOCAL)
def test_a_directory_that_cannot_be_written(
    run: Run, golden_store: Golden, tmp_path: Path, name: str
) -> None:
    root = golden_store("basic-5.5.0").root
    (closed := tmp_path / "closed").mkdir()
    with read_only(root), read_only(closed):
        code, err = run([*name.split(), *LOCAL[name]], STORE=str(root), BELOW=str(closed / "new"))
    assert code == 2, err
    assert str(closed if "BELOW" in LOCAL[name] else root) in err
    assert "hint: " in err


@pytest.mark.parametrize("name", ONLY_READ)
def test_what_only_reads_needs_no_right_to_write(run: Run, golden_store: Golden, name: str) -> None:
    root = golden_store("basic-5.5.0").root
    with read_only(root):
        code, err = run(["store", name, *CASES[f"store {name}"]], STORE=str(root))
    assert code == 0, err


def wrong_value(option: click.Parameter) -> str | None:
    """A value that an option or argument cannot have; None if it takes any text."""
    if isinstance(option.type, click.Path):
        return "/not/there" if option.type.exists else None
    is_text = isinstance(option.type, click.types.StringParamType)
    is_flag = isinstance(option, click.Option) and (option.is_flag or option.count)
    return None if is_text or is_flag else "nonsense"


@pytest.mark.parametrize("name", dict(leaves(oberth)))
def test_values_of_a_wrong_type(run: Run, name: str) -> None:
    command = dict(leaves(oberth))[name]
    for each in command.params:
        value = wrong_value(each)
        if value is not None and isinstance(each, click.Option):
            code, err = run([*name.split(), each.opts[-1], value])
            assert code == 2
            assert each.opts[-1] in err
            assert value in err


def texts() -> Iterator[tuple[str, str]]:
    """Command and option, of every option in `TEXTS`."""
    for name, command in leaves(oberth):
        for each in command.params:
            if isinstance(each, click.Option) and each.opts[0] in TEXTS:
                yield name, each.opts[0]


def test_every_option_that_takes_a_text_is_here() -> None:
    found = {
        each.opts[0]
        for _, command in leaves(oberth)
        for each in command.params
        if isinstance(each, click.Option) and isinstance(each.type, click.types.StringParamType)
    }
    assert found == {*TEXTS, *ANY_TEXT}


@pytest.mark.parametrize(("name", "option"), list(texts()))
def test_a_text_of_a_wrong_form(
    run: Run, golden_store: Golden, tmp_path: Path, name: str, option: str
) -> None:
    root = str(golden_store("basic-5.5.0").root)
    if name.startswith("spark "):
        (words,) = [w for w in spark_commands(root, tmp_path / "new") if w[1] == name.split()[1]]
        has_master = any("--master" in each.opts for each in dict(leaves(oberth))[name].params)
        words += ["--master", "none://"] * has_master
        if (name, option) == ("spark audit", "--option"):
            words = [*words[:3], "--namesrv", DEAD, *words[4:]]
    elif name in SERVERS:
        words = [name, *(["--port", "0"] if name != "up" else [])]
    elif (name, option) == ("topic purge", "--offset"):
        words = ["topic", "purge", "T"]
    else:
        words = [*name.split(), *{**CASES, **JSON_ALWAYS}[name]]
        words += ["-n", DEAD] * (asks(name) and option != "-n")
    code, err = run([*words, option, TEXTS[option]], BROKER=DEAD, STORE=root)
    assert code == 2, err
    assert TEXTS[option] in err, err


@pytest.mark.spark
@pytest.mark.parametrize("master", ["none://", "local[many]"])
def test_a_master_of_spark_that_is_none(golden_pristine: Golden, master: str) -> None:
    """In a process of its own: here a session may be there already, which would be used."""
    words = ["spark", "stats", str(golden_pristine("basic-5.5.0").root), "--master", master]
    done = subprocess.run(
        [sys.executable, "-m", "oberth", *words],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"error: Spark does not start with the master '{master}'" in done.stderr
