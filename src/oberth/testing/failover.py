"""A group of three brokers and their controller under one seed: masters die, and nothing is lost.

    python -m oberth.testing.failover --seed 7
    python -m oberth.testing.failover --seeds 200

Brokers and the controller are killed, the network parts them, connections tear, disks fill up and
fail, clocks jump; a client sends all the while, and reads at every broker that serves, by queue and
by place in the log. In three of five seeds the brokers run with SYNC_FLUSH, and power fails in the
middle of a write, at several at once, too. Then everything comes back, and what the client saw is
judged by `oberth.testing.history`; all three logs must be equal. A seed that fails is printed with
the command that runs it again.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import click

from oberth.broker.broker_config import read_configs
from oberth.broker.controlled_broker import ControlledBroker
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.errors import OberthError
from oberth.formats.message_id import decode_offset_message_id
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.bodies.base import MessageQueue
from oberth.store.message_store import MessageStore
from oberth.testing.fault_disk import FaultDisk
from oberth.testing.history import History, Outcome
from oberth.testing.simulated_loop import Machine, SimulatedLoop, simulated
from oberth.testing.simulation import (
    SETTINGS,
    MachineDisk,
    again,
    run_elsewhere,
    show_and_exit,
)

MODULE: Final = "oberth.testing.failover"
NAMESRV: Final = "127.0.0.1:9876"
CONTROLLER_PORT: Final = 9878
PORTS: Final = {"1": 10911, "2": 11911, "3": 12911}
TOPIC, QUEUE = "T", 0
SETTLE_S: Final = 300
SYNCED_SHARE: Final = 0.6
ENTRIES: Final = {
    **SETTINGS,
    "brokerName": "broker-a",
    "namesrvAddr": NAMESRV,
    "timerWheelEnable": "false",
    "enableControllerMode": "true",
    "controllerAddr": f"127.0.0.1:{CONTROLLER_PORT}",
    "allAckInSyncStateSet": "true",
    "defaultTopicQueueNums": "1",
}


CLOCK_JUMP_MS: Final = 3_600_000


async def keep_sending(
    rng: random.Random,
    send_one: Callable[[Producer, str], Awaitable[None]],
    is_over: Callable[[], bool],
    *,
    pause_max_s: float,
    size_max: int,
) -> None:
    """Make TOPIC, however long that takes, and send to it.

    Args:
        rng: draws pauses and sizes.
        send_one: sends a body, each of which begins with a number of its own.
        is_over: ends it.
        pause_max_s: before a message.
        size_max: bytes of a body beside the number.
    """
    config = ClientConfig(
        namesrv_addr=NAMESRV, client_ip="127.0.0.1", poll_name_server_interval_ms=1000
    )
    async with Admin(config=config) as admin:
        while True:
            try:
                await admin.create_topic(TOPIC, queue_nums=1)
                break
            except (OberthError, OSError):
                await asyncio.sleep(1)
    number = 0
    async with Producer(
        "P", config=config, retry_times_when_send_failed=0, send_msg_timeout_ms=4000
    ) as producer:
        while not is_over():
            await asyncio.sleep(rng.uniform(0.0, pause_max_s))
            number += 1
            await send_one(producer, f"{number} " + "x" * rng.randrange(size_max))


class _Replica(ControlledBroker):
    """A broker whose disk is told what was cut off behind its back."""

    disk: FaultDisk

    def _cut(self, at: int) -> None:
        super()._cut(at)
        self.disk.adopt(self.root)


class Failover:
    """One run; `run` once."""

    def __init__(self, loop: SimulatedLoop, root: Path, bad_luck_s: float) -> None:
        self.loop = loop
        self.root = root
        self.rng: random.Random = loop.rng
        self.bad_luck_s = bad_luck_s
        self.history = History()
        self.luck: Counter[str] = Counter()
        self.lives: Counter[str] = Counter()
        self.machines: dict[str, Machine] = {}
        self.brokers: dict[str, ControlledBroker] = {}
        self.is_over = False
        self._places: list[int] = []
        """Where in the log answers said that messages are, confirmed or not."""
        self.is_read = False
        """Whether everything was read at the end."""
        self.is_synced = self.rng.random() < SYNCED_SHARE
        self.disks: dict[str, MachineDisk] = {}
        self.clock_off_ms: Counter[str] = Counter()

    # Processes

    def _begin(self, name: str) -> tuple[Machine, Path, Path]:
        """A new life; gives its machine and the directories of the last one and of this one."""
        before = self.root / f"{name}-{self.lives[name]}"
        self.lives[name] += 1
        here = self.root / f"{name}-{self.lives[name]}"
        machine = self.machines[name] = Machine(name)
        self.loop.trace(f"{name} begins life {self.lives[name]}")
        return machine, before, here

    def start_controller(self) -> None:
        """The controller."""
        machine, before, here = self._begin("controller")
        if before.exists():
            shutil.copytree(before, here, ignore=shutil.ignore_patterns("lock"))
        config = ControllerConfig(listen_port=CONTROLLER_PORT, store_path=str(here))
        self.loop.spawn(machine, Controller(config).start())

    def start_broker(self, name: str, *, keep: float = 1.0) -> None:
        """A broker, from what is left of its files.

        Args:
            name: which.
            keep: how likely a page that was not synced is there all the same.
        """
        machine, before, here = self._begin(name)
        self.brokers.pop(name, None)
        here.mkdir()
        old = self.disks.get(name)
        if old is not None:
            old.crash_image(str(here), str(before), self.rng, keep)
            old.forget()
        disk = self.disks[name] = MachineDisk()
        disk.adopt(str(here))
        disk.on_cut = lambda: self._power_is_off(name, machine)
        config, store_config, _ = read_configs(
            {
                **ENTRIES,
                "flushDiskType": "SYNC_FLUSH" if self.is_synced else "ASYNC_FLUSH",
                "listenPort": str(PORTS[name]),
                "storePathRootDir": str(here),
            }
        )

        async def live() -> None:
            broker = _Replica(
                config,
                store_config,
                clock_ms=lambda: self.loop.wall_ms() + self.clock_off_ms[name],
                files=disk,
                background=False,
            )
            broker.disk = disk
            await broker.start()
            self.brokers[name] = broker
            while True:
                await asyncio.sleep(0.01 if self.is_synced else 0.2)
                if broker.broker is not None:
                    broker.broker.parts.store.flush()

        self.loop.spawn(machine, live())

    def _kill(self, name: str, start: Callable[[], None]) -> None:
        machine = self.machines[name]
        if machine.is_alive:
            self.luck[f"{'controller' if name == 'controller' else 'broker'} killed"] += 1
            self.loop.trace(f"{name} is killed")
            self.brokers.pop(name, None)
            self.loop.kill(machine)
            pause_s = self.rng.uniform(0.1, 12.0)
            self.loop.call_later(pause_s, start, context=contextvars.Context())

    def _power_is_off(self, name: str, machine: Machine) -> None:
        if not machine.is_alive:
            return
        self.luck["power cut"] += 1
        self.loop.trace(f"{name} has no power: {Path(self.disks[name].log[-1]).name}")
        self.brokers.pop(name, None)
        self.loop.kill(machine, silent_s=self.rng.uniform(0.0, 10.0))
        keep = self.rng.random()
        self.loop.call_later(
            self.rng.uniform(0.1, 12.0),
            lambda: self.start_broker(name, keep=keep),
            context=contextvars.Context(),
        )

    def _spoil(self, name: str) -> None:
        """Something happens to a machine that does not end it."""
        disk = self.disks[name]
        kind = self.rng.choice(["power", "full", "failing", "clock"])
        if kind == "clock":
            self.luck["clock jumped"] += 1
            self.clock_off_ms[name] += self.rng.randrange(-CLOCK_JUMP_MS, CLOCK_JUMP_MS)
        elif name not in self.brokers:
            return  # it starts just now
        elif kind == "power":
            if self.is_synced:
                disk.cut_power(self.loop)
        elif kind == "full":
            self.luck["disk full"] += 1
            disk.fill(disk.events)
        else:
            self.luck["disk failing"] += 1
            disk.fails = True
        self.loop.call_later(
            self.rng.uniform(1.0, 15.0), self._mend, disk, context=contextvars.Context()
        )

    @staticmethod
    def _mend(disk: MachineDisk) -> None:
        disk.fill(None)
        disk.fails = False

    async def _bring_bad_luck(self) -> None:
        rng = self.rng
        for _ in range(SETTLE_S):  # something is there to lose, and a master dies in any case
            if any(each.outcome is Outcome.ACKNOWLEDGED for each in self.history.sends):
                break
            await asyncio.sleep(1)
        until = self.loop.time() + self.bad_luck_s
        luck = 0.0
        while self.loop.time() < until:
            if luck < 0.4:
                masters = self._masters()
                name = rng.choice(masters or sorted(PORTS))
                self._kill(name, lambda name=name: self.start_broker(name))  # type: ignore[misc]
            elif luck < 0.5:
                name = rng.choice(sorted(PORTS))
                self._kill(name, lambda name=name: self.start_broker(name))  # type: ignore[misc]
            elif luck < 0.55:
                self._kill("controller", self.start_controller)
            elif luck < 0.7:
                self._spoil(rng.choice(sorted(PORTS)))
            elif luck < 0.88:
                one, other = rng.sample(["controller", "client", *sorted(PORTS)], 2)
                self.luck["network parted"] += 1
                self.loop.hold(one, other, rng.uniform(0.2, 25.0))
            elif connections := self.loop.connections():
                self.luck["connection torn"] += 1
                rng.choice(connections).tear(rng.uniform(0, 3))
            await asyncio.sleep(rng.expovariate(0.25))
            luck = rng.random()
        for disk in self.disks.values():
            disk.keep_power()
            self._mend(disk)

    # The client

    def _masters(self) -> list[str]:
        """Those who believe to be the master."""
        return [
            name
            for name, each in sorted(self.brokers.items())
            if each.broker is not None and each.role is not None and each.role.is_master
        ]

    async def _send(self) -> None:
        await keep_sending(
            self.rng, self._send_one, lambda: self.is_over, pause_max_s=0.3, size_max=400
        )

    async def _send_one(self, producer: Producer, body: str) -> None:
        begun = self.history.begin()
        queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=QUEUE)
        try:
            sent = await producer.send(Message(TOPIC, body.encode()), mq=queue)
        except (OberthError, OSError):
            self.history.sent(body, begun, outcome=Outcome.UNKNOWN)
            return
        self._places.append(decode_offset_message_id(sent.offset_msg_id).commit_log_offset)
        is_ok = sent.status is SendStatus.SEND_OK
        outcome = Outcome.ACKNOWLEDGED if is_ok else Outcome.UNKNOWN
        self.history.sent(body, begun, outcome=outcome, queue=TOPIC, offset=sent.queue_offset)

    async def _read(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))
            for name, each in sorted(self.brokers.items()):  # slaves, too, and deposed masters
                if each.broker is not None:
                    self._pull(name, self.rng.randrange(0, 20))
                    self._view(each.broker.parts.store)

    def _pull(self, name: str, behind: int) -> bool:
        """Reads one message, so many before the end; whether there was one."""
        broker = self.brokers[name].broker
        assert broker is not None
        store = broker.parts.store
        end = store.max_offset_in_queue(TOPIC, QUEUE)
        offset = end - 1 - behind
        if offset < store.min_offset_in_queue(TOPIC, QUEUE) or offset < 0:
            return False
        begun = self.history.begin()
        unit = store.consume_queue_unit(TOPIC, QUEUE, offset)
        message = None if unit is None else store.find_message(unit.commit_log_offset)
        body = None if message is None else message.body.decode()
        self.history.pulled(TOPIC, offset, body, begun)
        return True

    def _view(self, store: MessageStore) -> None:
        """Reads what one of the last sends stored, by its place in the log."""
        if not self._places:
            return
        begun = self.history.begin()
        message = store.find_shown_message(self.rng.choice(self._places[-20:]))
        if message is not None and message.topic == TOPIC:
            self.history.pulled(TOPIC, message.queue_offset, message.body.decode(), begun)

    # The run

    async def run(self) -> list[str]:
        """Everything; gives what must not be."""
        loop = self.loop
        await loop.spawn(
            Machine("namesrv"),
            NameServer(
                NamesrvConfig(listen_port=9876, kv_config_path=str(self.root / "kv.json"))
            ).start(),
        )
        self.start_controller()
        for name in PORTS:
            self.start_broker(name)
        client = Machine("client")
        sender = loop.spawn(client, self._send())
        reader = loop.spawn(client, self._read())
        await self._bring_bad_luck()
        loop.heal()
        loop.trace("no more bad luck")
        for _ in range(SETTLE_S):
            await asyncio.sleep(1)
            if self._is_whole():
                break
        self.is_over = True
        await asyncio.gather(sender, reader)
        for _ in range(SETTLE_S):
            if self._is_whole() and self._are_equal():
                break
            await asyncio.sleep(1)
        else:
            return [
                f"not whole again: masters {self._masters()}, alive {sorted(self.brokers)}",
                *loop.errors,
            ]
        for name in PORTS:
            behind = 0
            while self._pull(name, behind):
                behind += 1
        self.is_read = True
        return [*self.history.faults(keeps_offsets=False), *loop.errors]

    def _is_whole(self) -> bool:
        masters = self._masters()
        if len(self.brokers) < len(PORTS) or len(masters) != 1:
            return False
        found = self.brokers[masters[0]].role
        return found is not None and found.in_sync == {1, 2, 3}

    def _are_equal(self) -> bool:
        """Whether all have the same log, dispatched."""
        logs = set()
        for each in self.brokers.values():
            if each.broker is None or each.broker.parts.store.dispatch_behind_bytes:
                return False
            store = each.broker.parts.store
            logs.add((store.max_phy_offset, store.max_offset_in_queue(TOPIC, QUEUE)))
        return len(logs) == 1

    def to_json(self, seed: int, faults: list[str]) -> dict[str, Any]:
        """For programs: what was done, what went wrong by kind, and what must not be."""
        outcomes = Counter(each.outcome for each in self.history.sends)
        return {
            "seed": seed,
            "sent": len(self.history.sends),
            "acknowledged": outcomes[Outcome.ACKNOWLEDGED],
            "checked": len(self.history.pulls),
            "lost": len(self.history.lost()) if self.is_read else None,
            "luck": dict(sorted(self.luck.items())),
            "faults": faults,
        }

    def line(self, faults: list[str]) -> str:
        """For people."""
        outcomes = Counter(each.outcome for each in self.history.sends)
        luck = ", ".join(f"{name} {count}" for name, count in sorted(self.luck.items()))
        state = "holds" if not faults else f"FAILS ({len(faults)})"
        return (
            f"{state}: {len(self.history.sends)} sent, {outcomes[Outcome.ACKNOWLEDGED]} "
            f"acknowledged, {len(self.history.pulls)} read; {luck}; {self.loop.time():.0f} s"
        )


@click.command()
@click.option("--seed", type=int, default=0, help="The first seed.")
@click.option("--seeds", type=int, default=1, help="How many, from the first on.")
@click.option("--seconds", type=float, default=60.0, help="For how long things go wrong.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each seed.")
def main(seed: int, seeds: int, seconds: float, as_json: bool) -> None:
    """Run a group with bad luck, and judge what its client saw."""
    options = [f"--seconds={seconds:g}", *(["--json"] if as_json else [])]
    run_elsewhere(MODULE, seed, seeds, options)
    logging.disable()
    root = Path(tempfile.mkdtemp(prefix="oberth-failover-"))
    try:
        with simulated(seed) as loop:
            run = Failover(loop, root, seconds)
            faults = loop.run_until_complete(run.run())
            line = f"seed {seed} {run.line(faults)}"
            found = run.to_json(seed, faults)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    shown = json.dumps(found) if as_json else line
    show_and_exit(shown, faults, None if as_json else again(MODULE, seed, options))


if __name__ == "__main__":
    main()
