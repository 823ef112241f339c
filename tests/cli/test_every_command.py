"""Every command in both forms, for people and as JSON; one that is new must get its line here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest
from tests.rigs.described_json import check_described, described_json

from oberth.cli.main import main, oberth
from oberth.client.blocking import Producer, PushConsumer
from oberth.client.messages import Message, MessageExt
from oberth.testing.blocking import EmbeddedBroker

Golden = Callable[[str], Any]
Run = Callable[..., tuple[int, str, str]]

CASES: Final[dict[str, list[str]]] = {
    "topic create": ["Fresh", "--queues", "2"],
    "topic list": [],
    "topic show": ["T"],
    "dlq list": [],
    "dlq redrive": ["Failing", "--dry-run"],
    "topic purge": ["T", "--before", "2001-01-01", "--dry-run"],
    "topic delete": ["Fresh"],
    "group create": ["Fresh"],
    "group list": [],
    "group progress": ["G", "--topic", "T"],
    "group members": ["Live"],
    "group reset": ["G", "T", "--earliest"],
    "group delete": ["Fresh"],
    "group running": ["Live"],
    "topic producers": ["L", "--group", "Makers"],
    "message resend": ["L", "MESSAGE", "--group", "Live"],
    "acl user list": [],
    "acl user create": ["USER", "--password-file", "PASSWORD"],
    "acl user update": ["owner", "--type", "Normal"],
    "acl user delete": ["Fresh"],
    "acl policy list": [],
    "acl policy create": ["owner", "--resource", "Topic:T", "--action", "Pub"],
    "acl policy update": ["owner", "--resource", "Topic:T", "--action", "Sub"],
    "acl policy delete": ["owner", "--resource", "Topic:gone"],
    "cluster list": [],
    "cluster status": ["BROKER"],
    "cluster config get": ["BROKER"],
    "cluster config diff": ["BROKER"],
    "cluster config set": ["BROKER", "fileReservedTime=71"],
    "cluster dump": ["--into", "NEW"],
    "cluster apply": ["DUMP", "--dry-run"],
    "cluster writes": ["broker-a", "on"],
    "cluster clean": ["BROKER", "--dry-run"],
    "cluster failover": ["broker-a", "--dry-run"],
    "cluster retention": [],
    "cluster compare": ["BROKER", "BROKER"],
    "top": ["--once", "--interval", "0.2"],
    "store inspect": ["STORE"],
    "store verify": ["STORE"],
    "store dump": ["STORE", "--limit", "2"],
    "store query": ["STORE", "--topic", "TopicAlpha", "--time", "0"],
    "store retention": ["STORE"],
    "store purge": ["STORE", "TopicAlpha", "--offset", "0=1", "--force"],
    "store rejoin": ["STORE", "BROKER"],
    "store recover": ["STORE"],
    "store rebuild": ["STORE", "--into", "NEW"],
    "store salvage": ["STORE", "--into", "NEW"],
}
"""By command: arguments. STORE is a copy of a store, NEW a directory that is not there,
MESSAGE the id of a message in the topic L, which a member of the group Live reads."""

JSON_ALWAYS: Final = {
    "message send": ["T", "hello"],
    "message tail": ["T", "--from-start", "--count", "1"],
    "message query": ["T", "--key", "k"],
}
"""They print JSON lines, for people too."""

TEXT: Final = {"completion"}
"""They print what no program parses."""

SERVERS: Final = {"broker", "console", "controller", "namesrv", "proxy", "up"}
"""They serve until they are stopped: test_up.py."""

EXIT_FINDINGS: Final = {
    "cluster failover": 1,
    "acl policy delete": 1,
}
"""By command the exit code of its case, unless it is 0: nothing is there, no controller."""


def test_every_commands_json_is_described() -> None:
    page = described_json()
    assert page.keys() == {name for name, _ in leaves(oberth)} - TEXT - SERVERS


def leaves(command: click.Command, *words: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield " ".join(words), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, *words, name)


def test_every_command_is_here() -> None:
    found = {name for name, _ in leaves(oberth) if not name.startswith("spark ")}
    assert found == {*CASES, *JSON_ALWAYS, *TEXT, *SERVERS}


def test_every_command_has_json() -> None:
    for name, command in leaves(oberth):
        options = {word for each in command.params for word in each.opts}
        assert ("--json" in options) == (name not in {*JSON_ALWAYS, *TEXT, *SERVERS}), name


def password_file(directory: Path) -> Path:
    path = directory / "password"
    path.write_text("long enough\n")
    return path


def dump_file(directory: Path) -> Path:
    path = directory / "dump.json"
    topics = [{"topicName": "Applied", "brokers": None}]
    path.write_text(json.dumps({"format": "oberth-cluster", "version": 1, "topics": topics}))
    return path


def test_help_shows_every_default() -> None:
    for name, command in leaves(oberth):
        context = click.Context(command, info_name=name, **oberth.context_settings)
        for each in command.params:
            if isinstance(each, click.Option) and isinstance(each.default, str | int | float):
                record = each.get_help_record(context)
                if record is not None and not each.is_flag and each.default != "":
                    assert "default: " in record[1], (name, each.name, each.default)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert not ended.value.code
    assert "_OBERTH_COMPLETE" in capsys.readouterr().out


def test_what_completes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_OBERTH_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "oberth group pro")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out == "plain,progress\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A broker with messages, a group that is behind, one with a member, and a dead letter."""
    password = str(password_file(tmp_path_factory.mktemp("secret")))
    # The machine's own disk may be fuller than a broker likes, and its hour that of cleaning.
    later = f"{(time.localtime().tm_hour + 12) % 24:02}"
    with EmbeddedBroker({"diskMaxUsedSpaceRatio": "95", "deleteWhen": later}) as made:
        for words in (
            ["acl", "user", "create", "owner", "--password-file", password],
            ["acl", "policy", "create", "owner", "--resource", "Topic:T", "--action", "Get"],
            ["topic", "create", "T", "--queues", "1"],
            ["topic", "create", "L", "--queues", "1"],
            ["topic", "create", "F", "--queues", "1"],
            ["message", "send", "T", "hello", "--key", "k"],
            ["group", "create", "G"],
            ["group", "reset", "G", "T", "--earliest"],
        ):
            with pytest.raises(SystemExit) as ended:
                main([*words, "-n", made.namesrv_addr])
            assert not ended.value.code
        config = made.client_config
        with (
            Producer("Makers", config=config) as producer,
            PushConsumer(
                "Failing", {"F": "*"}, listener=_fail, max_reconsume_times=0, config=config
            ),
        ):
            producer.send(Message("F", b"lost", keys="k"))
            made.wait_until(lambda: bool(made.dead_letters("Failing")), what="a dead letter")
        seen: list[str] = []
        with (
            Producer("Makers", config=config) as producer,
            PushConsumer(
                "Live", {"L": "*"}, listener=lambda each: seen.append(each.msg_id), config=config
            ),
        ):
            sent = producer.send(Message("L", b"read"))
            made.wait_until(lambda: sent.msg_id in seen, what="the message")
            KNOWN["MESSAGE"] = sent.msg_id
            yield made


KNOWN: Final[dict[str, str]] = {}
"""Words of `CASES` that the broker's fixture fills in."""


def _fail(message: MessageExt) -> None:
    raise ValueError(message.body)


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str],
    broker: EmbeddedBroker,
    golden_store: Golden,
    tmp_path: Path,
) -> Run:
    """Runs a command: exit code, stdout, stderr."""

    def call(name: str, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        known = {**KNOWN, "BROKER": broker.address, "NEW": str(tmp_path / "new")}
        known |= {"USER": tmp_path.name, "PASSWORD": str(password_file(tmp_path))}
        if "DUMP" in arguments:
            known["DUMP"] = str(dump_file(tmp_path))
        if "STORE" in arguments:
            known["STORE"] = str(golden_store("basic-5.5.0").root)
        words = [*name.split(), *(known.get(each, each) for each in arguments)]
        with pytest.raises(SystemExit) as ended:
            main([*words, "-n", broker.namesrv_addr] if asks(name) else words)
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), out, err

    return call


def asks(name: str) -> bool:
    """Whether a command asks a cluster."""
    return not name.startswith("store ") or name == "store rejoin"


def _first(run: Run, name: str) -> None:
    """What there must be before."""
    if name == "acl user delete":
        run("acl user create", "Fresh", "--password-file", "PASSWORD")
    elif name in ("topic delete", "group delete"):
        run(name.replace("delete", "create"), "Fresh")


@pytest.mark.parametrize("name", CASES)
def test_for_people(run: Run, name: str) -> None:
    _first(run, name)
    code, out, err = run(name, *CASES[name])
    assert code == EXIT_FINDINGS.get(name, 0), err
    assert "Traceback" not in err
    assert out or err


@pytest.mark.parametrize("name", CASES)
def test_as_json(run: Run, name: str) -> None:
    _first(run, name)
    code, out, err = run(name, *CASES[name], "--json")
    assert code == EXIT_FINDINGS.get(name, 0), err
    check_described(name, out)


@pytest.mark.parametrize("name", JSON_ALWAYS)
def test_json_lines(run: Run, name: str) -> None:
    code, out, err = run(name, *JSON_ALWAYS[name])
    assert code == 0, err
    check_described(name, out)
    assert [json.loads(line)["queueId"] for line in out.splitlines()] == [0]


@pytest.mark.parametrize("kind", ["topic", "group"])
def test_what_is_not_there_is_not_said_to_be_deleted(run: Run, kind: str) -> None:
    code, out, err = run(f"{kind} delete", "Nowhere")
    assert (code, out) == (1, "")
    assert err == f"{kind} Nowhere: there is none, nothing was deleted\n"
    code, out, _ = run(f"{kind} delete", "Nowhere", "--json")
    assert (code, json.loads(out)) == (1, {kind: "Nowhere", "deleted": False})


def test_a_report_without_anything_due_has_all_keys(run: Run, broker: EmbeddedBroker) -> None:
    _, out, _ = run("cluster retention", "--json")
    report = json.loads(out)[broker.address]
    assert report["due"] is None
    assert report["heldBy"] is None


_WITHOUT_EXTRAS = """
import importlib.abc, io, json, sys
from contextlib import redirect_stderr, redirect_stdout

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in PACKAGES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

request = json.load(sys.stdin)
PACKAGES = set(request["packages"])
sys.meta_path.insert(0, Missing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] in PACKAGES else find_spec(name, package)
)
from oberth.cli.main import main
if request["session"]:
    # One for all commands: starting it takes longer than they do.
    from oberth.spark.runtime import build_session
    build_session("local[1]", quick=True)
answers = []
for words in request["commands"]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    answers.append([code or 0, err.getvalue()])
print(json.dumps(answers))
"""

OF_SPARK: Final = ("pyspark", "pyarrow", "py4j")


def without(
    packages: list[str], commands: list[list[str]], *, session: bool = False
) -> list[tuple[int, str]]:
    """Exit code and stderr of commands where packages are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_EXTRAS],
        input=json.dumps({"packages": packages, "commands": commands, "session": session}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, err) for code, err in json.loads(done.stdout)]


_WITHOUT_A_JVM: Final = ("publish",)


def spark_commands(store: str, new: Path) -> list[list[str]]:
    into = ["--into", str(new)]
    arguments = {
        "sql": ["--store", store, "select 1"],
        "dispatch": [store, *into],
        "verify": [store],
        "audit": [store, store],
        "export": [store, *into],
        "import": [store, *into],
        "stats": [store],
        "dlq": [store],
        "redrive": [store, *into],
        "migrate": [
            *("--from", "kafka://127.0.0.1:1/T", "--to", "rocketmq://127.0.0.1:1/T"),
            *("--ledger", str(new)),
        ],
        "publish": [
            "--from",
            store,
            "--topic",
            "T",
            "--namesrv",
            "127.0.0.1:1",
            "--ledger",
            str(new),
        ],
        "salvage": [store, *into],
    }
    found = {name.removeprefix("spark ") for name, _ in leaves(oberth) if name.startswith("spark ")}
    assert found == set(arguments), "a command of Spark's needs its line here"
    return [["spark", name, *words] for name, words in arguments.items()]


def test_without_pyspark_every_command_names_its_extra(
    golden_pristine: Golden, tmp_path: Path
) -> None:
    commands = spark_commands(str(golden_pristine("basic-5.5.0").root), tmp_path / "new")
    commands = [words for words in commands if words[1] not in _WITHOUT_A_JVM]
    for command, (code, err) in zip(commands, without(["pyspark"], commands), strict=True):
        assert code == 2, (command, err)
        assert "oberth[spark]" in err, (command, err)
        assert "Traceback" not in err


@pytest.mark.spark
def test_without_pyarrow_the_extra_is_named_or_not_needed(
    golden_pristine: Golden, tmp_path: Path
) -> None:
    commands = spark_commands(str(golden_pristine("basic-5.5.0").root), tmp_path / "new")
    commands = [
        [word.replace("new", f"new{number}") for word in words]
        for number, words in enumerate(commands)
        if words[1] != "import"
    ]
    answers = without(["pyarrow"], commands, session=True)
    for command, (code, err) in zip(commands, answers, strict=True):
        assert "Traceback" not in err, (command, err)
        assert code in (0, 1) or "oberth[spark]" in err, (command, err)


@pytest.mark.parametrize("extra", ["delta", "iceberg"])
def test_without_the_extra_of_a_table_format(
    golden_pristine: Golden, tmp_path: Path, extra: str
) -> None:
    """It is named before Spark is started, which this master could not be."""
    store = str(golden_pristine("basic-5.5.0").root)
    words = ["spark", "export", store, "--into", str(tmp_path / "t"), "--format", extra]
    package = {"delta": "deltalake", "iceberg": "pyiceberg"}[extra]
    ((code, err),) = without([package], [[*words, "--master", "none://"]])
    assert code == 2
    assert f"oberth[{extra}]" in err
    assert "Traceback" not in err


def test_what_needs_no_extra_works_without_any(
    golden_store: Golden, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """TLS is looked for, and done without."""
    packages = ["numpy", *OF_SPARK, "deltalake", "pyiceberg", "cryptography"]
    commands = []
    names = [name for name in CASES if not name.endswith(" delete")]
    for number, name in enumerate(names):
        known = {**KNOWN, "BROKER": broker.address, "NEW": str(tmp_path / f"new{number}")}
        known |= {"USER": tmp_path.name, "PASSWORD": str(password_file(tmp_path))}
        known["DUMP"] = str(dump_file(tmp_path))
        if "STORE" in CASES[name]:
            known["STORE"] = str(golden_store("basic-5.5.0").root)
        words = [*name.split(), *(known.get(each, each) for each in CASES[name])]
        if asks(name):
            words += ["-n", broker.namesrv_addr]
        commands.append(words)
    answers = without(packages, commands)
    for name, (code, err) in zip(names, answers, strict=True):
        assert code == EXIT_FINDINGS.get(name, 0), (name, err)


_UP_WITHOUT_TLS = """
import sys
sys.modules["cryptography"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name == "cryptography" else find_spec(name, *rest)
)
from oberth.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["up", "broker", "namesrv"])
def test_servers_without_tls_say_so(tmp_path: Path, command: str) -> None:
    own = [] if command == "namesrv" else ["--store", str(tmp_path)]
    if command == "up":
        own += ["--namesrv-port", "0"]
    words = [sys.executable, "-c", _UP_WITHOUT_TLS, command, *own, "--port", "0"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready:")
        process.send_signal(signal.SIGTERM)
        _, talk = process.communicate(timeout=120)
    (line,) = [each for each in talk.splitlines() if "TLS" in each]
    assert "oberth[tls]" in line
    refused = subprocess.run(
        [*words, "--set", "tlsServerMode=enforcing"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "tlsServerMode enforcing needs a certificate" in refused.stderr
    silent = subprocess.run(
        [*words, "--set", "tlsServerMode=nonsense"], capture_output=True, text=True, check=False
    )
    assert "TLS" not in silent.stderr
