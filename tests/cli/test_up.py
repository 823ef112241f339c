"""``oberth up`` as a process, and the commands for daily administration against it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oberth.cli.lake import export_words, lake_kept
from oberth.cli.main import oberth
from oberth.cli.spark_export import export_command

READY = re.compile(r"ready: name server (\S+), broker (\S+), store (\S+), in ([0-9.]+) s")


class Up:
    """A running ``oberth up``."""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oberth", "up", "--store", str(store)),
                *("--port", "0", "--namesrv-port", "0"),
                *("--set", "brokerName=broker-a", "--set", "nonsens=1"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.fullmatch(line.strip())
        assert found is not None, line
        self.namesrv, self.broker = found[1], found[2]

    def run(self, *words: str, code: int = 0, text: str = "") -> str:
        result = CliRunner().invoke(oberth, [*words, "-n", self.namesrv], input=text)
        assert result.exit_code == code, (result.output, result.exception)
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        _, talk = self.process.communicate(timeout=120)
        assert self.process.returncode == 0
        return talk


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One server for all tests of this file."""
    made = Up(tmp_path_factory.mktemp("up") / "store")
    yield made
    talk = made.stop()
    assert "nonsens: no such option" in talk


def test_a_start_after_a_kill_says_what_was_recovered(tmp_path: Path) -> None:
    first = Up(tmp_path / "store")
    first.run("message", "send", "Kept", "one")
    first.process.kill()
    first.process.communicate(timeout=120)
    second = Up(tmp_path / "store")
    read = second.run("message", "tail", "Kept", "--from-start", "--no-follow")
    assert json.loads(read)["body"] == "one"
    talk = second.stop()
    assert "recovered: the last run was not stopped in order; CommitLog to" in talk
    assert "1 messages checked from 0" in talk
    assert "is on the disk, the store is closed in order" in talk
    assert "recovered" not in Up(tmp_path / "store").stop()


def test_topics(up: Up) -> None:
    up.run("topic", "create", "Made", "--queues", "3", "--attribute", "message.type=NORMAL")
    assert "Made" in [row["topic"] for row in up.json("topic", "list")]
    assert [row["queue"] for row in up.json("topic", "show", "Made")] == [0, 1, 2]
    up.run("topic", "delete", "Made")
    assert "Made" not in [row["topic"] for row in up.json("topic", "list")]


def test_messages(up: Up) -> None:
    up.run("topic", "create", "M", "--queues", "1")
    first = json.loads(up.run("message", "send", "M", "hello", "--key", "k1", "--tag", "A"))
    assert first["status"] == "SEND_OK"
    sent = up.run("message", "send", "M", text="a\nb\n").splitlines()
    assert [json.loads(line)["queueOffset"] for line in sent] == [1, 2]
    read = up.run("message", "tail", "M", "--from-start", "--no-follow").splitlines()
    assert [json.loads(line)["body"] for line in read] == ["hello", "a", "b"]
    tagged = up.run("message", "tail", "M", "--from-start", "--tag", "A", "--count", "1")
    assert json.loads(tagged)["tags"] == "A"
    assert json.loads(up.run("message", "query", "M", "--key", "k1"))["body"] == "hello"
    by_id = up.run("message", "query", "M", "--id", first["offsetMsgId"])
    assert json.loads(by_id)["msgId"] == first["msgId"]
    up.run("message", "query", "M", "--key", "nothing", code=1)
    up.run("message", "query", "M", code=2)


def test_groups(up: Up) -> None:
    up.run("topic", "create", "T", "--queues", "1")
    up.run("message", "send", "T", "x")
    up.run("group", "create", "G", "--retries", "3")
    assert "G" in [row["group"] for row in up.json("group", "list")]
    assert up.json("group", "reset", "G", "T", "--earliest")[0]["offset"] == 0
    rows = up.json("group", "progress", "G", "--topic", "T")
    assert [row["lag"] for row in rows] == [1]
    assert up.json("group", "reset", "G", "T", "--latest")[0]["offset"] == 1
    up.run("group", "reset", "G", "T", code=2)
    up.run("group", "delete", "G")


def test_retention_and_purges(up: Up) -> None:
    up.run("topic", "create", "P", "--queues", "1")
    up.run("message", "send", "P", text="a\nb\nc\n")
    up.run("group", "create", "PG")
    up.run("group", "reset", "PG", "P", "--earliest")
    command = ("topic", "purge", "P", "--offset", "broker-a:0=2")
    up.run(*command, code=1)
    (row,) = up.json(*command, "--dry-run")
    assert (row["minOffset"], row["minOffsetAfter"]) == (0, 2)
    assert up.json(*command, "--force")[0]["minOffsetAfter"] == 2
    read = up.run("message", "tail", "P", "--from-start", "--no-follow").splitlines()
    assert [json.loads(line)["body"] for line in read] == ["c"]
    report = up.json("cluster", "retention")[up.broker]
    assert report["segments"] == []
    assert report["fileReservedTime"] == 72
    up.run("topic", "purge", "P", code=2)
    up.run("topic", "purge", "P", "--offset", "0=1", code=2)


def test_cluster(up: Up) -> None:
    (row,) = up.json("cluster", "list")
    assert (row["broker"], row["address"]) == ("broker-a", up.broker)
    assert up.json("cluster", "status", up.broker)["brokerActive"] == "true"


def test_what_does_not_exist_is_said(up: Up) -> None:
    result = CliRunner().invoke(oberth, ["topic", "show", "Nowhere", "-n", up.namesrv])
    assert result.exit_code != 0
    result = CliRunner().invoke(oberth, ["message", "send", "T", "x", "--property", "bad"])
    assert result.exit_code == 2


@pytest.mark.parametrize("command", ["up", "broker", "namesrv", "topic", "group", "message"])
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(oberth, [command, "--help"])
    assert result.exit_code == 0
    assert "Example: oberth" in result.output


async def test_the_process_of_a_lake_is_started_again_and_stopped(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    program = (
        "import sys, time\n"
        "with open(sys.argv[1], 'a') as file: file.write('x')\n"
        "time.sleep(600 if open(sys.argv[1]).read() == 'xxx' else 0)\n"
    )

    def words(store: str, into: str, form: str) -> list[str]:
        assert (store, into, form) == ("store", "lake", "delta")
        return [sys.executable, "-c", program, str(runs)]

    begun = iter([False, True])
    async with lake_kept(
        "store", "lake", "delta", is_begun=lambda: next(begun), words=words, pause_s=0.01
    ) as told:
        assert told == " lake lake,"
        while not runs.exists() or runs.read_text() != "xxx":  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
    # The third was still running and has been stopped: nothing of it is left to wait for.
    assert runs.read_text() == "xxx"
    async with lake_kept("store", "", "delta") as told:
        assert told == ""


async def test_a_lake_for_which_there_was_no_process_is_kept_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn = asyncio.create_subprocess_exec
    is_kept = asyncio.Event()
    calls = 0

    async def exec_(*words: str, **options: Any) -> asyncio.subprocess.Process:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        is_kept.set()
        return await spawn(*words, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", exec_)
    words = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    async with lake_kept("store", "lake", "delta", words=lambda *_: words, pause_s=0.01):
        async with asyncio.timeout(120):
            await is_kept.wait()
    assert "the lake's process cannot be started: " in capsys.readouterr().err


def test_what_keeps_a_lake_ends_with_who_started_it(tmp_path: Path) -> None:
    """Also when that is killed: else two would keep one lake, and the older for ever."""
    program = (
        "import asyncio, os, signal, sys\n"
        "from oberth.cli.lake import lake_kept\n"
        "child = 'import sys; from oberth.cli.serve import end_with_stdin; end_with_stdin();'"
        "'print(flush=True, file=sys.stderr); import time; time.sleep(100);'"
        "'print(flush=True, file=sys.stderr)'\n"
        "async def main():\n"
        "    words = [sys.executable, '-c', child]\n"
        "    async with lake_kept('s', 'l', 'delta', words=lambda *_: words):\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) as keeper:
        assert keeper.stderr is not None
        assert keeper.stderr.readline() == b"\n"  # the child has begun to wait
        keeper.kill()
        assert keeper.stderr.read() == b""  # and ends: who has the pipe is gone
    given = export_command.make_context("export", export_words("/s", "/l", "delta")[5:]).params
    assert given["until_stdin_ends"]


def test_what_keeps_a_lake_is_a_command_that_there_is() -> None:
    for form in ("parquet", "delta", "iceberg"):
        words = export_words("/s", "/l", form)
        assert words[1:5] == ["-m", "oberth", "spark", "export"]
        given = export_command.make_context("export", words[5:]).params
        assert (given["directory"], given["into"], given["form"]) == ("/s", "/l", form)
        assert given["continuous"]
        assert given["compact"] == 128
        assert (given["expire"] is None) == (form == "parquet")
