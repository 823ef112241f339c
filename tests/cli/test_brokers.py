"""``oberth up --brokers N``: several brokers that clients use as one cluster."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.rigs.dispatchers import dispatcher

from oberth.broker.broker_config import read_configs
from oberth.cli import brokers
from oberth.cli.brokers import (
    BrokerProcess,
    JointMetrics,
    Member,
    joined,
    left_of,
    look_beside,
    members,
)
from oberth.cli.main import oberth
from oberth.client import (
    LocalTransactionState,
    Message,
    MessageExt,
    PopConsumer,
    Producer,
    TransactionProducer,
)
from oberth.client.admin import Admin
from oberth.errors import OptionError
from oberth.formats import names
from oberth.remoting.bodies.base import result_at_once
from oberth.testing.embedded_broker import EmbeddedBroker

READY = re.compile(
    r"ready: name server (?P<namesrv>\S+), brokers (?P<brokers>.+), stores (?P<stores>.+), "
    r"metrics (?P<metrics>\S+), in \S+ s"
)
BOUND_S = 120
WHO = "DefaultCluster#b"


class Up:
    """A running ``oberth up --brokers N``."""

    def __init__(self, store: Path, count: int) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oberth", "up", "--brokers", str(count)),
                *("--store", str(store), "--port", "0", "--namesrv-port", "0"),
                *("--set", "brokerName=b", "--set", "httpPort=0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.fullmatch(line.strip())
        assert found is not None, (line, self.process.communicate())
        self.ready = found.groupdict()
        self._said: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.put(line)

    def wait_said(self, wanted: str) -> str:
        """The next line that has these words."""
        while True:
            line = self._said.get(timeout=BOUND_S)
            if wanted in line:
                return line

    def run(self, *words: str) -> str:
        result = CliRunner().invoke(oberth, [*words, "-n", self.ready["namesrv"]])
        assert result.exit_code == 0, (result.output, result.exception)
        return result.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def bodies(self, topic: str) -> list[str]:
        lines = self.run("message", "tail", topic, "--from-start", "--no-follow").splitlines()
        return sorted(json.loads(line)["body"] for line in lines)

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        assert self.process.wait(BOUND_S) == (0 if number == signal.SIGTERM else -number)
        self._listener.join(BOUND_S)  # stderr ends when the last of the brokers has ended
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


def children_of(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text("ascii")
    return [int(word) for word in text.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_messages_of_all_brokers_through_growth_a_kill_and_a_drain(tmp_path: Path) -> None:
    store = tmp_path / "store"
    alone = Up(store, 1)
    alone.run("topic", "create", "Grows", "--queues", "2")
    alone.run("message", "send", "Grows", "before")
    alone.end(signal.SIGTERM)

    both = Up(store, 2)
    assert both.ready["stores"] == f"{store} {store}-2"
    both.wait_said("made where they were missing")
    for n in range(8):
        both.run("message", "send", "Grows", f"{n}")
    expected = sorted(["before", *map(str, range(8))])
    assert both.bodies("Grows") == expected
    assert all(any(Path(f"{each}/commitlog").iterdir()) for each in (store, f"{store}-2"))
    with urllib.request.urlopen(f"http://{both.ready['metrics']}/metrics") as page:
        text = page.read().decode()
    assert 'broker="b"' in text
    assert 'broker="b-2"' in text

    # One that is killed comes again, with all that was acknowledged.
    os.kill(children_of(both.process.pid)[0], signal.SIGKILL)
    both.wait_said("started again")
    both.wait_said("recovered: ")
    both.end(signal.SIGTERM)

    # Without the second its messages are read to their end, and it takes no more.
    fewer = Up(store, 1)
    assert "(drains)" in fewer.ready["brokers"]
    held = fewer.wait_said("b-2 drains: ")
    assert re.search(r"drains: no group has read [1-8] messages of Grows$", held.strip())
    fewer.run("group", "create", "g")
    fewer.run("group", "reset", "g", "Grows", "--latest")
    assert f"{store}-2 can be moved away" in fewer.wait_said("b-2 drains: all groups have read it")
    for n in range(8, 12):
        fewer.run("message", "send", "Grows", f"{n}")
    assert fewer.bodies("Grows") == sorted([*expected, *map(str, range(8, 12))])
    fewer.end(signal.SIGKILL)  # who started the brokers is gone: they end in order
    assert not (store / "abort").exists()
    assert not Path(f"{store}-2", "abort").exists()


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({"storePathCommitLog": "/tmp/one"}, "storePathCommitLog"),
        ({"brokerRole": "SLAVE", "brokerId": "1"}, "masters"),
    ],
)
def test_what_brokers_cannot_share_is_refused(
    tmp_path: Path, settings: dict[str, str], refusal: str
) -> None:
    entries = {"storePathRootDir": str(tmp_path / "s"), **settings}
    _, store_config, _ = read_configs(entries)
    with pytest.raises(OptionError, match=refusal):
        members(2, entries, store_config, "b")


def test_ports_names_and_stores_follow_the_number(tmp_path: Path) -> None:
    entries = {"storePathRootDir": str(tmp_path / "s"), "httpPort": "5557", "grpcServerPort": "81"}
    _, store_config, _ = read_configs(entries)
    (tmp_path / "s-4" / "commitlog").mkdir(parents=True)
    (tmp_path / "s-4" / "commitlog" / "00000000000000000000").touch()
    (tmp_path / "s-5" / "commitlog").mkdir(parents=True)
    made = members(2, entries, store_config, "b")
    assert [(each.number, each.name, each.drains) for each in made] == [
        (1, "b", False), (2, "b-2", False), (4, "b-4", True),
    ]  # fmt: skip
    assert [each.settings["listenPort"] for each in made] == ["10911", "10921", "10941"]
    assert [each.settings["grpcServerPort"] for each in made] == ["81", "91", "111"]
    assert [each.settings["httpPort"] for each in made] == ["5558", "5559", "5561"]
    assert [each.settings.get("brokerPermission") for each in made] == [None, None, "4"]


async def expect_left(admin: Admin, address: str, wanted: list[str]) -> None:
    """Waits until a store holds that: timers take in messages beside their senders."""
    found: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while (found := await left_of(admin, address)) != wanted:
                pass
    assert found == wanted


async def test_what_nobody_has_an_offset_of_is_left_in_a_store() -> None:
    async with EmbeddedBroker() as mq, Admin(namesrv_addr=mq.namesrv_addr) as admin:
        assert await left_of(admin, mq.address) == []
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("T", b"1", delay_ms=60_000))
            await producer.send(Message("T", b"2", delay_time_level=5))
        # Nobody has an offset, and nothing lies in a topic yet.
        await mq.wait_until(lambda: mq.broker.services.timers is not None)
        await expect_left(admin, mq.address, ["1 delayed messages wait", "timed messages wait"])
        mq.advance(seconds=70)
        await mq.wait_until(lambda: len(mq.bodies("T")) == 2)
        assert await left_of(admin, mq.address) == ["no group has read 2 messages of T"]
        await admin.create_group("g")
        await admin.reset_offsets("g", "T", 0)
        assert await left_of(admin, mq.address) == ["2 messages are left for 1 groups (g)"]
        await admin.reset_offsets("g", "T", -1)
        assert await left_of(admin, mq.address) == []


async def test_what_was_popped_is_left_until_it_is_acknowledged() -> None:
    async with EmbeddedBroker() as mq, Admin(namesrv_addr=mq.namesrv_addr) as admin:
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("T", b"1"))
        async with PopConsumer("g", {"T": "*"}, namesrv_addr=mq.namesrv_addr) as consumer:
            popped: list[MessageExt] = []
            while not popped:
                popped += await consumer.receive()
            async with asyncio.timeout(60):
                while not await left_of(admin, mq.address):
                    pass
            for each in popped:
                await consumer.ack(each)
        while await left_of(admin, mq.address):
            mq.advance(seconds=20)


async def test_replies_and_probes_are_left_for_nobody() -> None:
    async with EmbeddedBroker() as mq, Admin(namesrv_addr=mq.namesrv_addr) as admin:
        info = await admin.cluster_info()
        (cluster,), (broker,) = info.cluster_addr_table, info.broker_addr_table
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            for topic in (names.reply_topic(cluster), broker):
                await producer.send(Message(topic, b"1"))
                assert len(mq.bodies(topic)) == 1
            assert await left_of(admin, mq.address) == []
            await producer.send(Message(names.reply_topic("of-nobody"), b"1"))
        assert await left_of(admin, mq.address) == [
            "no group has read 1 messages of of-nobody_REPLY_TOPIC",
        ]  # fmt: skip


async def test_what_no_dispatcher_has_shown_is_left_in_a_store() -> None:
    async with (
        EmbeddedBroker({"dispatch": "spark"}) as mq,
        Admin(namesrv_addr=mq.namesrv_addr) as admin,
    ):
        assert await left_of(admin, mq.address) == []
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("T", b"1"))
        assert await left_of(admin, mq.address) == ["messages wait for dispatch"]
        with dispatcher(str(mq.store_dir)):
            while "messages wait for dispatch" in (left := await left_of(admin, mq.address)):
                pass
        assert left == ["no group has read 1 messages of T"]


async def test_no_store_is_called_empty_after_one_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = BrokerProcess(Member(2, "b-2", "s-2", {}, True), [])
    looks = iter([[], ["1 delayed messages wait"], [], [], [], ["1 delayed messages wait"]])

    async def look(admin: Any, address: str) -> list[str]:
        try:
            return next(looks)
        except StopIteration:
            raise asyncio.CancelledError from None

    monkeypatch.setattr(brokers, "left_of", look)
    monkeypatch.setattr(brokers, "DRAIN_LOOK_S", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await brokers.watch_drains(Admin(namesrv_addr="127.0.0.1:1"), [process])
    assert [line.partition("drains: ")[2] for line in capsys.readouterr().err.splitlines()] == [
        "1 delayed messages wait",
        "all groups have read it; s-2 can be moved away",
        "1 delayed messages wait",
    ]


async def test_a_transaction_that_is_not_ended_is_left_in_a_store() -> None:
    class Undecided:
        async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
            return LocalTransactionState.UNKNOW

        def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.UNKNOW

    async with EmbeddedBroker() as mq, Admin(namesrv_addr=mq.namesrv_addr) as admin:
        async with TransactionProducer("p", Undecided(), namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send_message_in_transaction(Message("T", b"1"))
        assert await left_of(admin, mq.address) == ["1 transactions are not ended"]


async def test_what_came_while_a_group_was_away_is_left_for_it() -> None:
    """The group has offsets at another broker alone."""
    async with EmbeddedBroker() as mq:
        async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            await producer.send(Message("T", b"1"))
        async with EmbeddedBroker() as other:

            class Both(Admin):
                async def masters(self, cluster: str | None = None) -> dict[str, str]:
                    return {"broker-a": mq.address, "broker-b": other.address}

            async with Admin(namesrv_addr=other.namesrv_addr) as elsewhere:
                await elsewhere.create_topic("T", queue_nums=1)
                await elsewhere.create_group("g")
                await elsewhere.reset_offsets("g", "T", 0)
            async with Both(namesrv_addr=mq.namesrv_addr) as both:
                assert await left_of(both, mq.address) == [
                    "1 messages are left for 1 groups (g)",
                ]  # fmt: skip


def test_metrics_of_several_brokers_are_one_page() -> None:
    page = b'# HELP x Some.\n# TYPE x counter\nx{a="1"} 2\nx 3\n# HELP y More.\ny{broker="z"} 4\n'
    assert result_at_once(joined({"b": page, "b-2": page})).decode() == (
        '# HELP x Some.\n# TYPE x counter\nx{a="1",broker="b"} 2\nx{broker="b"} 3\n'
        'x{a="1",broker="b-2"} 2\nx{broker="b-2"} 3\n# HELP y More.\ny{broker="z"} 4\n'
        'y{broker="z"} 4\n'
    )


def test_metrics_of_very_many_lines_are_joined_in_slices() -> None:
    page = b"# TYPE x counter\n" + b"".join(b'x{a="%d"} 1\n' % n for n in range(10_000))
    # Each line is read in one slice and written in another.
    assert sum(1 for _ in joined({"b": page, "b-2": page})) >= 4 * 10_000 // brokers.LINES_A_SLICE


@pytest.mark.parametrize("dawdles", ["says nothing", "does not end"])
async def test_a_broker_that_hangs_hides_the_metrics_of_no_other(
    monkeypatch: pytest.MonkeyPatch, dawdles: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(brokers, "FETCH_TIMEOUT_S", 0.5 if dawdles == "says nothing" else 100.0)
    monkeypatch.setattr(brokers, "PAGE_SIZE_MAX", 1 << 20)

    async def good(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nx 1\n")
        writer.close()

    async def hung(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while dawdles == "does not end":
                writer.write(bytes(1 << 16))
                await writer.drain()
            await reader.read()
        writer.close()

    async with (
        await asyncio.start_server(good, "127.0.0.1", 0) as one,
        await asyncio.start_server(hung, "127.0.0.1", 0) as other,
    ):
        ports = {"b": one.sockets[0].getsockname()[1], "b-2": other.sockets[0].getsockname()[1]}
        page = JointMetrics(ports)
        for _ in range(2):
            assert await page.render() == b'x{broker="b"} 1\n'
        (line,) = capsys.readouterr().err.splitlines()
        why = "no answer in 0.5 s" if dawdles == "says nothing" else "a page of more than 1048576"
        assert line.startswith(f"b-2: its metrics are left out: port {ports['b-2']}: {why}")
        page._ports["b-2"] = ports["b"]
        for _ in range(2):
            assert b'x{broker="b-2"} 1\n' in await page.render()
        assert capsys.readouterr().err == "b-2: its metrics are there again\n"


async def test_a_broker_for_which_there_was_no_process_is_started_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn = asyncio.create_subprocess_exec
    is_up = asyncio.Event()
    calls = 0

    async def exec_(*words: str, **options: Any) -> asyncio.subprocess.Process:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        program = "print('ready: broker 127.0.0.1:1, store s', flush=True)"
        if calls == 3:
            is_up.set()
            program += "; import sys; sys.stdin.read()"
        return await spawn(sys.executable, "-c", program, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", exec_)
    monkeypatch.setattr(brokers, "RESTART_S", 0.01)
    process = BrokerProcess(Member(1, "b", "s", {}, False), [])
    await process.start()
    async with asyncio.timeout(BOUND_S):
        await is_up.wait()
    await process.aclose()
    assert calls == 3
    assert f"b cannot be started: [Errno {errno.EAGAIN}]" in capsys.readouterr().err


def _with_messages(*stores: Path) -> None:
    for store in stores:
        (store / "commitlog").mkdir(parents=True)
        (store / "commitlog" / "00000000000000000000").touch()


def _as_replica(store: Path, name: str, number: int) -> None:
    _with_messages(store)
    (store / "brokerIdentity").write_text(f"DefaultCluster#{name}#{number}")


@pytest.fixture
def taken() -> Iterator[Callable[[Path], None]]:
    """Has another process open a store."""
    program = (
        "import sys; from oberth.store.store_lock import StoreLock; "
        "StoreLock(sys.argv[1]).acquire(); print('taken', flush=True); sys.stdin.read()"
    )
    with contextlib.ExitStack() as stack:

        def take(store: Path) -> None:
            words = [sys.executable, "-c", program, str(store)]
            process = stack.enter_context(
                subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            assert process.stdout is not None
            assert process.stdout.readline() == b"taken\n"

        yield take


@pytest.mark.parametrize("more", [[], ["--brokers", "2"]])
@pytest.mark.parametrize("first", ["there", "gone"])
def test_a_replica_is_not_served_alone(tmp_path: Path, more: list[str], first: str) -> None:
    store = tmp_path / "s"
    if first == "there":
        _as_replica(store, "b", 1)
    _as_replica(tmp_path / "s-r2", "b", 2)
    _as_replica(tmp_path / "s-2-r3", "b-2", 3)
    _as_replica(tmp_path / "s-r4", "another", 2)
    words = ["up", "--store", str(store), "--port", "0", "--namesrv-port", "0", *more]
    result = CliRunner().invoke(oberth, [*words, "--set", "brokerName=b"])
    assert isinstance(result.exception, OptionError)
    assert str(result.exception).startswith(f"{store}-2-r3, {store}-r2: ")
    assert "start with --brokers 2 --replicas 3, or move" in str(result.exception)


def test_a_store_that_is_no_replica_of_the_first_is_only_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slave by hand beside, or a replica of something else."""
    store = tmp_path / "s"
    _with_messages(store, tmp_path / "s-r2")
    _as_replica(tmp_path / "s-r3", "b", 2)
    look_beside(str(store), [str(store)], WHO, as_replicas=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"warning: {store}-r2, {store}-r3: messages that may be of an earlier start with "
        "--replicas 3 lie there, nobody serves them; --replicas 3 does"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows who has a store open")
def test_a_store_that_another_process_has_open_is_left_to_it(
    tmp_path: Path, taken: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "s"
    _as_replica(store, "b", 1)
    _as_replica(tmp_path / "s-r2", "b", 2)
    _with_messages(tmp_path / "s-2", tmp_path / "s-3")
    for each in ("s-r2", "s-2"):
        taken(tmp_path / each)
    look_beside(str(store), [str(store), f"{store}-3"], WHO, as_replicas=False)
    assert capsys.readouterr().err == (
        f"note: {store}-2, {store}-r2: open in another process and left to it\n"
    )
    entries = {"storePathRootDir": str(store)}
    _, store_config, _ = read_configs(entries)
    made = members(1, entries, store_config, "b")
    assert [(each.number, each.drains) for each in made] == [(1, False), (3, True)]


def test_stores_that_nobody_serves_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "s")
    _with_messages(
        tmp_path / "s-2", *(tmp_path / each for each in ("s-1", "s-65", "s-2024", "o-2"))
    )
    (tmp_path / "s-3" / "commitlog").mkdir(parents=True)
    look_beside(store, [store], WHO, as_replicas=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"warning: {store}-2: messages that may be of an earlier start with --brokers 2 lie there, "
        "nobody serves them; --brokers 2 does, --brokers 1 drains them"
    )
    _with_messages(tmp_path / "s-2-r2")
    look_beside(store, [store, f"{store}-r2"], WHO, as_replicas=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{store}-2, {store}-2-r2: " in line
    assert line.endswith("nobody serves them; --brokers 2 --replicas 2 does")
    look_beside(store, [store, f"{store}-2", f"{store}-2-r2"], WHO, as_replicas=True)
    assert capsys.readouterr().err == ""
