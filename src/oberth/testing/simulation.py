"""A cluster under one seed: two brokers, a name server, producers and consumers, and bad luck.

    python -m oberth.testing.simulation --seed 7
    python -m oberth.testing.simulation --seeds 100

Processes are killed, power fails in the middle of a write or between two, connections tear,
networks part; then everything comes back, and the ledger is checked:

    acknowledged  ⊆ stored, consumed  committed ⊆ consumed, rolled back never
    consumed      ⊆ sent              delayed   never early
    order         of each key, by the first time that each message was consumed

broker-a syncs before it acknowledges, and its power may fail; broker-b does not, and is only
killed. A seed that fails is printed with the command that runs it again, the same in every step.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import hashlib
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, MessageExt, decode_messages
from oberth.client.pop_consumer import PopConsumer
from oberth.client.push_consumer import PushConsumer
from oberth.client.transactions import LocalTransactionState, TransactionProducer
from oberth.errors import OberthError, OptionError
from oberth.formats.message_store_config import FlushDiskType
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.bodies.base import MessageQueue
from oberth.testing.fault_disk import FaultDisk, PowerCut
from oberth.testing.simulated_loop import Machine, SimulatedLoop, simulated

NAMESRV_PORT: Final = 9876
BROKER_PORTS: Final = {"broker-a": 10911, "broker-b": 11911}

SETTINGS: Final = {
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "fastListenPort": "0",
    "flushIntervalCommitLog": "200",
    "busyPollMicros": "0",  # it goes by the real clock
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": "2000",
    "maxIndexNum": "200",
    "maxHashSlotNum": "50",
    "mappedFileSizeTimerLog": str(52 * 200),
    "timerPrecisionMs": "100",
    "transactionCheckInterval": "2000",
    "transactionTimeOut": "3000",
    "transactionCheckMax": "1000",
    "httpPort": "-1",
}
"""Of both brokers; small files, so that they roll."""

MODULE: Final = "oberth.testing.simulation"
FAULTS_SHOWN: Final = 20
TOPIC_QUEUES: Final = 3
ORDER_QUEUES: Final = 2
ORDER_KEYS: Final = 4
SETTLE_S: Final = 600
"""How long the cluster may take to bring everything to its consumers, once it is whole."""


@dataclass
class Sent:
    """One message, as its producer knows it.

    Attributes:
        kind: plain, ordered, delayed or transaction.
        key: ordered ones: whose order is kept.
        due_ms: delayed ones: not before.
        verdict: transactions: what the local transaction came to; None: it never ran.
        acknowledged: whether the broker said that it has it.
    """

    body: str
    kind: str
    key: str = ""
    due_ms: int = 0
    verdict: LocalTransactionState | None = None
    acknowledged: bool = False


class Ledger:
    """What was sent, acknowledged and consumed."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.consumed: dict[str, dict[str, int]] = {"push": {}, "pop": {}}
        """By group: body → ms since the epoch when it first came."""
        self.times_consumed: Counter[tuple[str, str]] = Counter()

    def add(self, sent: Sent) -> None:
        """About to be sent."""
        self.sent[sent.body] = sent

    def consume(self, group: str, body: str, now_ms: int) -> None:
        """A listener has got it."""
        self.consumed[group].setdefault(body, now_ms)
        self.times_consumed[group, body] += 1

    def must_come(self, sent: Sent) -> bool:
        """Whether consumers must get it: acknowledged, and committed if it is a transaction."""
        if sent.kind == "transaction":
            return sent.acknowledged and sent.verdict is LocalTransactionState.COMMIT_MESSAGE
        return sent.acknowledged

    def missing(self, group: str) -> list[str]:
        """Acknowledged, and not consumed."""
        came = self.consumed[group]
        return [
            sent.body
            for sent in self.sent.values()
            if self.must_come(sent)
            and sent.body not in came
            and (group == "push" or sent.kind == "plain")
        ]

    def faults(self) -> list[str]:
        """Everything that must not be."""
        found: list[str] = []
        for group, came in self.consumed.items():
            found += [f"{group}: lost {body}" for body in self.missing(group)]
            for body, at_ms in came.items():
                sent = self.sent.get(body)
                if sent is None:
                    found.append(f"{group}: never sent, consumed {body}")
                elif at_ms < sent.due_ms:
                    found.append(f"{group}: {body} came {sent.due_ms - at_ms} ms early")
                elif sent.kind == "transaction" and sent.verdict in (
                    None,
                    LocalTransactionState.ROLLBACK_MESSAGE,
                ):
                    found.append(f"{group}: {body} was consumed, its verdict is {sent.verdict}")
        last: dict[str, tuple[int, str]] = {}
        for body in self.consumed["push"]:
            sent = self.sent.get(body)
            if sent is None or sent.kind != "ordered" or not sent.acknowledged:
                continue
            number = int(body.rpartition("-")[2])
            before, what = last.get(sent.key, (-1, ""))
            if number < before:
                found.append(f"push: {body} came after {what}")
            else:
                last[sent.key] = (number, body)
        return found


class MachineDisk(FaultDisk):
    """A disk whose power cut ends its machine."""

    on_cut: Callable[[], None] = staticmethod(lambda: None)
    _cut_soon: asyncio.TimerHandle | None = None

    def cut_power(self, loop: SimulatedLoop) -> None:
        """Power fails soon: in the middle of a write or a sync, or at any moment between two."""
        if self.cut_power_at is not None or self._cut_soon is not None:
            return
        if loop.rng.random() < 0.5:
            self.cut_power_at = self.events + loop.rng.randrange(1, 200)
            return
        wait_s = loop.rng.uniform(0.0, 3.0)
        self._cut_soon = loop.call_later(wait_s, self._cut_now, context=contextvars.Context())

    def keep_power(self) -> None:
        """What was to fail does not."""
        self.cut_power_at = None
        if self._cut_soon is not None:
            self._cut_soon.cancel()

    def _cut_now(self) -> None:
        self.cut_power_at = self.events
        with contextlib.suppress(PowerCut):
            self.event("nothing was being written")

    def event(self, what: str) -> None:
        try:
            FaultDisk.event(self, what)
        except PowerCut:
            self.on_cut()
            raise


@dataclass
class _BrokerLife:
    machine: Machine
    disk: MachineDisk
    root: Path
    broker: Broker | None = None


@dataclass
class Report:
    """What a run came to.

    Attributes:
        seed: of the run.
        faults: what must not be; empty when all is well.
        digest: of everything that happened; the same for the same seed.
        luck: how often each misfortune struck.
        counts: messages sent, acknowledged, consumed, consumed more than once.
        simulated_s: how long it took, on the cluster's clock.
        lost: messages that a group had to get and did not.
        history: everything that happened.
    """

    seed: int
    faults: list[str]
    digest: str
    luck: dict[str, int]
    counts: dict[str, int]
    simulated_s: float
    lost: int
    history: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """For programs: what was done, what went wrong by kind, and what must not be."""
        return {
            "seed": self.seed,
            "sent": self.counts["sent"],
            "acknowledged": self.counts["acknowledged"],
            "checked": self.counts["consumed"] + self.counts["popped"],
            "lost": self.lost,
            "luck": dict(sorted(self.luck.items())),
            "faults": self.faults,
        }

    def line(self) -> str:
        """For people."""
        luck = ", ".join(f"{name} {count}" for name, count in sorted(self.luck.items()))
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        state = "holds" if not self.faults else f"FAILS ({len(self.faults)})"
        return (
            f"seed {self.seed} {state}: {counts}; {luck}; "
            f"{self.simulated_s:.0f} s, {self.digest[:12]}"
        )


class Simulation:
    """One run; `run` once."""

    def __init__(
        self, loop: SimulatedLoop, root: Path, bad_luck_s: float, settings: Mapping[str, str]
    ) -> None:
        self.loop = loop
        self.root = root
        warnings = read_configs({**SETTINGS, **settings})[2]
        if warnings:
            raise OptionError("; ".join(warnings))
        self.settings = settings
        self.rng: random.Random = loop.rng
        self.bad_luck_s = bad_luck_s
        self.ledger = Ledger()
        self.luck: Counter[str] = Counter()
        self.brokers: dict[str, _BrokerLife] = {}
        self.clients: dict[str, Machine] = {}
        self.namesrv: Machine | None = None
        self.lives: Counter[str] = Counter()
        self.is_over = False
        self.numbers: Counter[str] = Counter()

    # Processes

    def machine(self, name: str) -> Machine:
        """A new life."""
        self.lives[name] += 1
        self.loop.trace(f"{name} begins life {self.lives[name]}")
        return Machine(name)

    def start_namesrv(self) -> None:
        """The name server; it forgets everything when it dies."""
        machine = self.namesrv = self.machine("namesrv")

        async def serve() -> None:
            config = NamesrvConfig(
                listen_host="127.0.0.1",
                listen_port=NAMESRV_PORT,
                kv_config_path=str(self.root / "kvConfig.json"),
            )
            await NameServer(config).start()

        self.loop.spawn(machine, serve())

    def start_broker(self, name: str, *, keep: float = 1.0) -> None:
        """A broker, from what is left of its files.

        Args:
            name: which.
            keep: how likely a page that was not synced is there all the same.
        """
        machine = self.machine(name)
        root = self.root / f"{name}-{self.lives[name]}"
        root.mkdir()
        before = self.brokers.get(name)
        if before is not None:
            before.disk.crash_image(str(root), str(before.root), self.rng, keep)
            before.disk.forget()
            before.broker = None
        disk = MachineDisk()
        disk.adopt(str(root))
        self.brokers[name] = life = _BrokerLife(machine, disk, root)
        disk.on_cut = lambda: self._power_is_off(name, life)
        self.loop.spawn(machine, self._serve_broker(name, life))

    async def _serve_broker(self, name: str, life: _BrokerLife) -> None:
        settings = {
            **SETTINGS,
            "brokerName": name,
            "listenPort": str(BROKER_PORTS[name]),
            "namesrvAddr": f"127.0.0.1:{NAMESRV_PORT}",
            "storePathRootDir": str(life.root),
            "flushDiskType": "SYNC_FLUSH" if name == "broker-a" else "ASYNC_FLUSH",
            **self.settings,
        }
        config, store_config, _ = read_configs(settings)
        is_sync = store_config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        flush_interval_s = store_config.flush_interval_commit_log_ms / 1000
        loop = self.loop
        broker = Broker(
            config, store_config, clock_ms=loop.wall_ms, files=life.disk, background=False
        )
        await broker.start()
        life.broker = broker
        loop.trace(f"{name} serves")
        checkpoint_at = loop.time() + 5
        while True:
            await asyncio.sleep(self.rng.uniform(0.001, 0.02) if is_sync else flush_interval_s)
            broker.parts.store.flush()
            if loop.time() >= checkpoint_at:
                checkpoint_at = loop.time() + 5
                broker.parts.store.checkpoint_now()

    def _power_is_off(self, name: str, life: _BrokerLife) -> None:
        if life.machine.is_alive:
            what = life.disk.log[-1].replace(str(self.root), "")
            self.loop.trace(f"{name} has no power: {what}")
            self.luck["power cut"] += 1
            self.loop.kill(life.machine, silent_s=self.rng.uniform(0.0, 10.0))
            self._begin_again(lambda: self.start_broker(name, keep=self.rng.random()))

    def _begin_again(self, start: Callable[[], None]) -> None:
        # Of no machine: the dead do nothing, not even come back.
        self.loop.call_later(self.rng.uniform(0.1, 12.0), start, context=contextvars.Context())

    def start_client(self, name: str) -> None:
        """A producer or consumer, by its name."""
        machine = self.clients[name] = self.machine(name)
        work: dict[str, Callable[[ClientConfig], Awaitable[None]]] = {
            "producer": self._produce,
            "consumer": self._consume,
            "popper": self._pop,
        }
        config = ClientConfig(
            namesrv_addr=f"127.0.0.1:{NAMESRV_PORT}",
            client_ip="127.0.0.1",
            instance_name=f"{name}-{self.lives[name]}",
            poll_name_server_interval_ms=5_000,
            heartbeat_broker_interval_ms=5_000,
            rebalance_interval_ms=5_000,
        )

        async def live() -> None:
            while True:
                try:
                    await work[name.partition("-")[0]](config)
                    return
                except OberthError as error:
                    self.loop.trace(f"{name} starts over: {error}")
                    await asyncio.sleep(1)

        self.loop.spawn(machine, live())

    # What clients do

    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        """Decides; now and then it does not say so at once."""
        sent: Sent = arg
        del msg
        await asyncio.sleep(self.rng.uniform(0, 0.05))
        commits = self.rng.random() < 0.7
        sent.verdict = (
            LocalTransactionState.COMMIT_MESSAGE
            if commits
            else LocalTransactionState.ROLLBACK_MESSAGE
        )
        return sent.verdict if self.rng.random() < 0.7 else LocalTransactionState.UNKNOW

    async def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        """Looks it up."""
        sent = self.ledger.sent[msg.body.decode()]
        if sent.verdict is None:
            sent.verdict = LocalTransactionState.ROLLBACK_MESSAGE
        return sent.verdict

    async def _produce(self, config: ClientConfig) -> None:
        rng = self.rng
        name = config.instance_name
        async with TransactionProducer("sim", self, config=config) as producer:
            while not self.is_over:
                await asyncio.sleep(rng.expovariate(20))
                kind = rng.choice(("plain", "plain", "ordered", "delayed", "transaction"))
                self.numbers[name] += 1
                sent = Sent(f"{name}-{kind}-{self.numbers[name]}", kind)
                try:
                    await self._send(producer, sent)
                except OberthError as error:
                    self.loop.trace(f"{sent.body}: {type(error).__name__}")
                else:
                    sent.acknowledged = True
            # Somebody has to answer for transactions.
            await self.loop.create_future()

    async def _send(self, producer: TransactionProducer, sent: Sent) -> None:
        rng = self.rng
        padding = {"pad": "x" * rng.randrange(0, 2000)}
        body = sent.body.encode()
        if sent.kind == "ordered":
            # A sequence of each producer's life and key, always in one queue of one broker.
            sent.key = f"{producer.config.instance_name}-{rng.randrange(ORDER_KEYS)}"
            queue = MessageQueue(
                topic="Ordered", broker_name="broker-a", queue_id=hash_of(sent.key) % ORDER_QUEUES
            )
            self.ledger.add(sent)
            await producer.send(
                Message("Ordered", body, keys=sent.key, properties=padding), mq=queue
            )
            return
        if sent.kind == "transaction":
            self.ledger.add(sent)
            await producer.send_message_in_transaction(Message("Plain", body), sent)
            return
        message = Message("Plain", body, properties=padding)
        if sent.kind == "delayed":
            if rng.random() < 0.5:
                delay_ms = rng.randrange(500, 20_000)
                sent.due_ms = self.loop.wall_ms() + delay_ms
                message = Message("Plain", body, deliver_time_ms=sent.due_ms)
            else:
                sent.due_ms = self.loop.wall_ms() + 5000
                message = Message("Plain", body, delay_time_level=2)
        self.ledger.add(sent)
        await producer.send(message)

    async def _consume(self, config: ClientConfig) -> None:
        async def take(message: MessageExt) -> None:
            await asyncio.sleep(self.rng.uniform(0, 0.02))
            # Each further try comes later than the one before.
            if self.rng.random() < (0.02 if message.reconsume_times else 0.2):
                raise ValueError("bad luck")
            self.ledger.consume("push", message.body.decode(), self.loop.wall_ms())

        async with (
            PushConsumer("sim-push", {"Plain": "*"}, listener=take, config=config),
            PushConsumer(
                "sim-order",
                {"Ordered": "*"},
                listener=take,
                orderly=True,
                config=dataclasses.replace(config, instance_name=config.instance_name + "-o"),
            ),
        ):
            await self.loop.create_future()

    async def _pop(self, config: ClientConfig) -> None:
        async with PopConsumer(
            "sim-pop", {"Plain": "*"}, config=config, invisible_duration_ms=10_000
        ) as consumer:
            while True:
                try:
                    for message in await consumer.receive(await_duration_ms=3000):
                        if self.rng.random() < 0.03:
                            continue
                        self.ledger.consume("pop", message.body.decode(), self.loop.wall_ms())
                        await consumer.ack(message)
                except OberthError as error:
                    self.loop.trace(f"{config.instance_name}: {type(error).__name__}")
                    await asyncio.sleep(0.5)

    # Bad luck

    async def _bring_bad_luck(self) -> None:
        rng = self.rng
        end = self.loop.time() + self.bad_luck_s
        while self.loop.time() < end:
            await asyncio.sleep(rng.uniform(0.5, 6.0))
            rng.choice(
                (
                    self._kill_broker,
                    self._kill_broker,
                    self._cut_power,
                    self._cut_power,
                    self._kill_client,
                    self._part,
                    self._tear,
                    self._tear,
                    self._kill_namesrv,
                )
            )()

    def _kill_broker(self) -> None:
        name = self.rng.choice(sorted(self.brokers))
        life = self.brokers[name]
        if life.machine.is_alive:
            self.luck["broker killed"] += 1
            self.loop.trace(f"{name} is killed")
            self.loop.kill(life.machine)
            self._begin_again(lambda: self.start_broker(name))

    def _cut_power(self) -> None:
        self.brokers["broker-a"].disk.cut_power(self.loop)

    def _kill_client(self) -> None:
        name = self.rng.choice(sorted(self.clients))
        machine = self.clients[name]
        if machine.is_alive:
            self.luck["client killed"] += 1
            self.loop.trace(f"{name} is killed")
            self.loop.kill(machine)
            self._begin_again(lambda: self.start_client(name))

    def _kill_namesrv(self) -> None:
        machine = self.namesrv
        if machine is not None and machine.is_alive:
            self.luck["name server killed"] += 1
            self.loop.trace("namesrv is killed")
            self.loop.kill(machine)
            self._begin_again(self.start_namesrv)

    def _part(self) -> None:
        one, other = self.rng.sample(["namesrv", *sorted(self.brokers), *sorted(self.clients)], 2)
        seconds = self.rng.uniform(0.2, 30.0)
        self.luck["network parted"] += 1
        self.loop.trace(f"{one} and {other} are parted for {seconds:.1f} s")
        self.loop.hold(one, other, seconds)

    def _tear(self) -> None:
        connections = self.loop.connections()
        if connections:
            torn = self.rng.choice(connections)
            self.luck["connection torn"] += 1
            self.loop.trace(f"{torn.machine.name}: a connection tears")
            torn.tear(self.rng.uniform(0, 3))

    # The run

    def _stored(self) -> set[str]:
        """Bodies of everything that can be read."""
        found: set[str] = set()
        for life in self.brokers.values():
            if life.broker is None:
                continue
            store = life.broker.parts.store
            store.dispatch_nowait()
            for topic in ("Plain", "Ordered"):
                for queue in store.queues.queues(topic):
                    for offset in range(queue.min_offset, queue.max_offset):
                        unit = store.consume_queue_unit(topic, queue.queue_id, offset)
                        record = unit and store.select_record(unit.commit_log_offset)
                        if record:
                            messages = decode_messages(bytes(record))
                            found.update(message.body.decode() for message in messages)
        return found

    async def _make_topics(self) -> None:
        config = ClientConfig(
            namesrv_addr=f"127.0.0.1:{NAMESRV_PORT}", client_ip="127.0.0.1", instance_name="admin"
        )
        while True:
            try:
                async with Admin(config=config) as admin:
                    for name, port in BROKER_PORTS.items():
                        addr = f"127.0.0.1:{port}"
                        await admin.create_topic("Plain", queue_nums=TOPIC_QUEUES, broker_addr=addr)
                        if name == "broker-a":
                            await admin.create_topic(
                                "Ordered", queue_nums=ORDER_QUEUES, broker_addr=addr
                            )
                return
            except OberthError as error:
                self.loop.trace(f"admin: {error}")
                await asyncio.sleep(0.5)

    async def run(self) -> Report:
        """Everything."""
        loop = self.loop
        self.start_namesrv()
        for name in BROKER_PORTS:
            self.start_broker(name)
        await loop.spawn(Machine("admin"), self._make_topics())
        clients = ("producer-1", "producer-2", "consumer-1", "consumer-2", "popper-1", "popper-2")
        for name in clients:
            self.start_client(name)
        await self._bring_bad_luck()
        self.is_over = True
        loop.heal()
        for life in self.brokers.values():
            life.disk.keep_power()
        loop.trace("no more bad luck")
        ledger = self.ledger
        for _ in range(SETTLE_S):
            if not ledger.missing("push") and not ledger.missing("pop"):
                break
            await asyncio.sleep(1)
        await asyncio.sleep(5)
        faults = ledger.faults()
        stored = self._stored()
        faults += [
            f"{sent.body} was acknowledged and is not stored"
            for sent in ledger.sent.values()
            if ledger.must_come(sent) and sent.body not in stored
        ]
        faults += [f"unhandled: {error}" for error in loop.errors]
        text = "\n".join(loop.history).encode()
        return Report(
            loop.seed,
            faults,
            hashlib.sha256(text).hexdigest(),
            dict(self.luck),
            {
                "sent": len(ledger.sent),
                "acknowledged": sum(sent.acknowledged for sent in ledger.sent.values()),
                "consumed": len(ledger.consumed["push"]),
                "more than once": sum(
                    count > 1
                    for (group, _), count in ledger.times_consumed.items()
                    if group == "push"
                ),
                "popped": len(ledger.consumed["pop"]),
            },
            loop.time(),
            len({*ledger.missing("push"), *ledger.missing("pop")}),
            list(loop.history),
        )


def hash_of(text: str) -> int:
    """The same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def simulate(
    seed: int, bad_luck_s: float = 60.0, settings: Mapping[str, str] | None = None
) -> Report:
    """One run.

    Args:
        seed: of everything that is left to chance.
        bad_luck_s: for how long things go wrong, on the cluster's clock.
        settings: of both brokers, over the simulation's own.
    """
    root = Path(tempfile.mkdtemp(prefix="oberth-simulation-"))
    try:
        with simulated(seed) as loop:
            simulation = Simulation(loop, root, bad_luck_s, settings or {})
            return loop.run_until_complete(simulation.run())
    finally:
        shutil.rmtree(root, ignore_errors=True)


@click.command()
@click.option("--seed", type=int, default=0, help="The first seed.")
@click.option("--seeds", type=int, default=1, help="How many, from the first on.")
@click.option("--seconds", type=float, default=60.0, help="For how long things go wrong.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Of both brokers.")
@click.option("--history", type=click.Path(dir_okay=False), help="Write what happened to a file.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each seed.")
def main(
    seed: int,
    seeds: int,
    seconds: float,
    settings: tuple[str, ...],
    history: str | None,
    as_json: bool,
) -> None:
    """Run a cluster with bad luck, and check that nothing acknowledged is lost."""
    options = [f"--seconds={seconds:g}", *(f"--set={setting}" for setting in settings)]
    options += [f"--history={history}"] if history is not None and seeds == 1 else []
    options += ["--json"] if as_json else []
    run_elsewhere(MODULE, seed, seeds, options)
    logging.disable()
    report = simulate(
        seed, seconds, dict(setting.split("=", 1) for setting in settings if "=" in setting)
    )
    if history is not None:
        Path(history).write_text("\n".join(report.history) + "\n")
    shown = json.dumps(report.to_json()) if as_json else report.line()
    show_and_exit(shown, report.faults, None if as_json else again(MODULE, seed, options))


def again(module: str, seed: int, options: Sequence[str]) -> list[str]:
    """The arguments of Python that run one seed of a simulation's command."""
    return ["-m", module, "--seed", str(seed), *options]


def run_elsewhere(module: str, seed: int, seeds: int, options: Sequence[str]) -> None:
    """Run seeds in a process each and exit; returns in the process that has one seed to run.

    What dead machines left behind never comes to an end. Sets of strings are in another order in
    every process, unless they are told not to be.
    """
    if seeds == 1 and os.environ.get("PYTHONHASHSEED") == "0":
        return
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    failed = 0
    for each in range(seed, seed + seeds):
        command = [sys.executable, *again(module, each, options)]
        failed += subprocess.run(command, env=environment, check=False).returncode != 0
    sys.exit(1 if failed else 0)


def show_and_exit(line: str, faults: Sequence[str], command: Sequence[str] | None) -> NoReturn:
    """Print what a run gave and end the process, with 1 if there are faults.

    Args:
        line: about the run.
        faults: what must not be.
        command: what runs the seed again, see `again`; None for programs, which have all in
            ``line``.
    """
    click.echo(line)
    if command is not None and faults:
        for fault in faults[:FAULTS_SHOWN]:
            click.echo(f"  {fault}")
        click.echo(f"  again: python {' '.join(command)}")
    sys.stdout.flush()
    os._exit(1 if faults else 0)


if __name__ == "__main__":
    main()
