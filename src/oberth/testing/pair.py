"""A master and its slave without a controller under one seed: power fails, and nothing is lost.

    python -m oberth.testing.pair --seed 7
    python -m oberth.testing.pair --seeds 200

The master waits for its slave (SYNC_MASTER) in half of the seeds, and in some the slave acts for
its master. Both sync late, so a power cut takes any pages of the last seconds: of one machine at a
time, as soon as the other has what that one had. A slave that comes back has to mend itself. Where
the master loses power its slave is made the master, and the old master its slave, cut by
`oberth store rejoin` where it is longer or another: what an operator does by docs/replication.md.
A SYNC_MASTER's acknowledgements must survive all of that. Of an ASYNC_MASTER's those may go with it
that its slave did not have when it was made the master, and no other; how many is counted.

What must hold: a broker that serves has at its place each acknowledged message below the end of
its queue, reads only what was sent, and in the end both logs are equal and have all of them. And
`oberth.testing.history` must explain what the client heard, and what is read in the end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.broker.log_comparison import StoreLog, compare
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.errors import OberthError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.bodies.base import MessageQueue
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.rejoin import cut_log, free_name, record_start
from oberth.testing.failover import NAMESRV, QUEUE, TOPIC, keep_sending
from oberth.testing.history import History, Outcome
from oberth.testing.simulated_loop import Machine, SimulatedLoop, simulated
from oberth.testing.simulation import (
    SETTINGS,
    MachineDisk,
    again,
    run_elsewhere,
    show_and_exit,
)

MODULE: Final = "oberth.testing.pair"
PORTS: Final = {"1": 10911, "2": 11911}
SETTLE_S: Final = 90
ENTRIES: Final = {
    **SETTINGS,
    # What is not synced lies in two segments at most.
    "mappedFileSizeCommitLog": str(1 << 20),
    "brokerName": "broker-a",
    "namesrvAddr": NAMESRV,
    "timerWheelEnable": "false",
    "defaultTopicQueueNums": "1",
    "slaveReadEnable": "true",
}


class Pair:
    """One run; `run` once."""

    def __init__(self, loop: SimulatedLoop, root: Path, bad_luck_s: float) -> None:
        self.loop = loop
        self.root = root
        self.rng = rng = loop.rng
        self.bad_luck_s = bad_luck_s
        self.is_sync = rng.random() < 0.5
        self.acts = rng.random() < 0.4
        self.master = "1"
        self.luck: Counter[str] = Counter()
        self.lives: Counter[str] = Counter()
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, MachineDisk] = {}
        self.brokers: dict[str, Broker] = {}
        self.sent: set[str] = set()
        self.acknowledged: dict[int, str] = {}
        """Body by queue offset."""
        self.history = History()
        self.is_read = False
        self.checked = 0
        self.faults: list[str] = []
        self.is_over = False
        self.flush_s = rng.choice([0.2, 1.0, 4.0])

    # Processes

    @property
    def slave(self) -> str:
        """The name of the one that is not the master."""
        return "2" if self.master == "1" else "1"

    def directory(self, name: str) -> Path:
        """The store of a broker's last life."""
        return self.root / f"{name}-{self.lives[name]}"

    def stop(self, name: str, keep: float) -> None:
        """Ends a broker, and makes the files of its next life of what is left.

        Args:
            name: which.
            keep: how likely a page that was not synced is there all the same.
        """
        self.brokers.pop(name, None)
        self.loop.kill(self.machines[name], silent_s=None if keep == 1 else 1.0)
        before = self.directory(name)
        self.lives[name] += 1
        here = self.directory(name)
        here.mkdir()
        disk = self.disks[name]
        disk.crash_image(str(here), str(before), self.rng, keep)
        disk.forget()

    def start(self, name: str) -> None:
        """A broker, on the files that `stop` left, in its role."""
        here = self.directory(name)
        here.mkdir(exist_ok=True)
        machine = self.machines[name] = Machine(name)
        disk = self.disks[name] = MachineDisk()
        disk.adopt(str(here))
        role = {"brokerId": "1", "brokerRole": "SLAVE"}
        if name == self.master:
            role = {"brokerRole": "SYNC_MASTER" if self.is_sync else "ASYNC_MASTER"}
        acting = {"enableSlaveActingMaster": "true", "totalReplicas": "2"} if self.acts else {}
        config, store_config, _ = read_configs(
            {
                **ENTRIES,
                **role,
                **acting,
                "inSyncReplicas": "2",
                "listenPort": str(PORTS[name]),
                "storePathRootDir": str(here),
            }
        )
        self.loop.trace(f"{name} begins life {self.lives[name]} as {role['brokerRole']}")

        async def live() -> None:
            broker = Broker(
                config, store_config, clock_ms=self.loop.wall_ms, files=disk, background=False
            )
            await broker.start()
            self.brokers[name] = broker
            store = broker.parts.store
            self.luck["slave damaged"] += store.damaged_from is not None
            checkpoint_at = self.loop.time() + 5
            while True:
                await asyncio.sleep(self.flush_s)
                store.flush()
                if self.loop.time() >= checkpoint_at:
                    checkpoint_at = self.loop.time() + 5
                    store.checkpoint_now()

        self.loop.spawn(machine, live())

    # Bad luck, and who sets it right

    async def _bring_bad_luck(self) -> None:
        rng = self.rng
        until = self.loop.time() + self.bad_luck_s
        while self.loop.time() < until:
            await asyncio.sleep(rng.uniform(0.5, 12.0))
            if not await self._until_whole():
                return
            luck = rng.random()
            if luck < 0.45:
                await self._lose_slave()
            elif luck < 0.75:
                await self._lose_master()
            elif luck < 0.9:
                self.luck["network parted"] += 1
                self.loop.hold(self.master, self.slave, rng.uniform(0.2, 25.0))
            elif connections := self.loop.connections():
                self.luck["connection torn"] += 1
                rng.choice(connections).tear(rng.uniform(0, 3))

    async def _lose_slave(self) -> None:
        self.luck["slave lost power"] += 1
        self.stop(self.slave, self.rng.random())
        await asyncio.sleep(self.rng.uniform(0.1, 8.0))
        if self.rng.random() < 0.3:  # and once more, before it is mended
            self.start(self.slave)
            await asyncio.sleep(self.rng.uniform(0.1, 3.0))
            self.stop(self.slave, self.rng.random())
        self.start(self.slave)

    async def _lose_master(self) -> None:
        if self.rng.random() < (0.3 if self.is_sync else 0.6):
            self.luck["master killed"] += 1
            self.stop(self.master, 1.0)
            await asyncio.sleep(self.rng.uniform(0.1, 8.0))
            self.start(self.master)
            return
        self.luck["master lost power"] += 1
        old = self.master
        if not self.is_sync:  # its slave is behind
            self.loop.hold(old, self.slave, 10.0)
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        self.stop(old, self.rng.random())
        await asyncio.sleep(self.rng.uniform(0.1, 12.0))
        if not self.is_sync:
            self._give_up_what_is_lost()
        self.stop(self.slave, 1.0)
        self.master = self.slave
        self.start(self.master)
        await asyncio.sleep(self.rng.uniform(0.1, 8.0))
        self.start(old)
        await self._mend_slave()

    async def _mend_slave(self) -> None:
        """It mends itself, or an operator reads what it says."""
        slave = self.slave
        for _ in range(60):
            await asyncio.sleep(1)
            if self._is_whole():
                return
        self.luck["rejoined"] += 1
        self.stop(slave, 1.0)
        await self._rejoin(slave)
        self.start(slave)

    def _give_up_what_is_lost(self) -> None:
        """The slave becomes the master: nothing is promised of what did not reach it."""
        self.brokers[self.slave].parts.store.dispatch_nowait()
        end = self._end_of(self.slave)
        lost = {n: body for n, body in self.acknowledged.items() if n >= end}
        self.luck["not replicated"] += len(lost)
        self.history.take_back(set(lost.values()))
        for offset in lost:
            del self.acknowledged[offset]

    async def _rejoin(self, name: str) -> None:
        """What `oberth store rejoin` does, with the master's store beside this one."""
        own, other = str(self.directory(name)), str(self.directory(self.master))
        with StoreReader(own) as reader, StoreReader(other) as master:
            here, there = StoreLog(reader), StoreLog(master)
            found = await compare(here, there)
            at = record_start(reader, found.equal_to)
        cut_log(own, at, free_name(own, at))

    def _is_whole(self) -> bool:
        """Whether both run, and the slave has and shows what the master has."""
        if len(self.brokers) < len(PORTS):
            return False
        stores = [each.parts.store for each in self.brokers.values()]
        ends = {
            (store.sound_offset, store.max_phy_offset, store.max_offset_in_queue(TOPIC, QUEUE))
            for store in stores
        }
        is_followed = bool(self.brokers[self.master].services.ha.replicas.acked)
        return len(ends) == 1 and is_followed

    async def _until_whole(self) -> bool:
        slave = self.brokers.get(self.slave)
        if slave is not None and slave.services.ha.parted_at is not None:
            # A power cut brought bytes of its life as a master back that were written over since.
            await self._mend_slave()
        for _ in range(SETTLE_S * 10):
            if self._is_whole():
                return True
            await asyncio.sleep(0.1)
        self.faults.append(f"not whole again: {self._state()}")
        return False

    def _state(self) -> str:
        return "; ".join(
            f"{name}{' (master)' if name == self.master else ''}: "
            f"log {each.parts.store.max_phy_offset}, sound {each.parts.store.sound_offset}, "
            f"queue {each.parts.store.max_offset_in_queue(TOPIC, QUEUE)}, "
            f"{each.services.comparison.said}"
            for name, each in sorted(self.brokers.items())
        )

    # The client

    async def _send(self) -> None:
        await keep_sending(
            self.rng, self._send_one, lambda: self.is_over, pause_max_s=0.1, size_max=3000
        )

    async def _send_one(self, producer: Producer, body: str) -> None:
        self.sent.add(body)
        queue = MessageQueue(topic=TOPIC, broker_name="broker-a", queue_id=QUEUE)
        begun = self.history.begin()
        try:
            sent = await producer.send(Message(TOPIC, body.encode()), mq=queue)
        except (OberthError, OSError):
            self.history.sent(body, begun, outcome=Outcome.UNKNOWN)
            return
        if sent.status is not SendStatus.SEND_OK:
            self.history.sent(body, begun, outcome=Outcome.UNKNOWN)
            return
        self.history.sent(body, begun, queue=TOPIC, offset=sent.queue_offset)
        before = self.acknowledged.setdefault(sent.queue_offset, body)
        if before != body:
            self.faults.append(
                f"offset {sent.queue_offset} was acknowledged for {before[:9]!r} and {body[:9]!r}"
            )

    async def _read(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))
            for name in sorted(self.brokers):
                end = self._end_of(name)
                low = max(end - self.rng.randrange(1, 60), 0)
                self._check(name, range(low, end))

    def _end_of(self, name: str) -> int:
        return self.brokers[name].parts.store.max_offset_in_queue(TOPIC, QUEUE)

    def _check(self, name: str, offsets: range, *, is_final: bool = False) -> None:
        """Reads messages by queue offset: acknowledged ones are there, others were sent.

        The history has only those that must be there: without a controller what nobody acknowledged
        may be read, and go with its master.
        """
        broker = self.brokers[name]
        if broker.services.ha.parted_at is not None:
            return  # it serves nobody
        found = broker.services.comparison
        if name != self.master and (found.said.startswith("not compared") or found.ahead_bytes):
            return  # once the master, it may show what went with its power until it has compared
        store = broker.parts.store
        for offset in offsets:
            unit = store.consume_queue_unit(TOPIC, QUEUE, offset)
            message = None if unit is None else store.find_message(unit.commit_log_offset)
            body = None if message is None else message.body.decode("utf-8", "replace")
            self.checked += 1
            wanted = self.acknowledged.get(offset)
            if is_final or wanted is not None:
                same = wanted if body == wanted else body  # one text for all reads
                self.history.pulled(TOPIC, offset, same, self.history.begin())
            if (wanted is not None and body != wanted) or (
                body is not None and body not in self.sent
            ):
                self.faults.append(
                    f"{self.loop.time():.1f} s: {name} has {None if body is None else body[:9]!r} "
                    f"at {offset}, acknowledged is {None if wanted is None else wanted[:9]!r}"
                )

    # The run

    async def run(self) -> list[str]:
        """Everything; gives what must not be."""
        loop = self.loop
        await loop.spawn(
            Machine("namesrv"),
            NameServer(
                NamesrvConfig(
                    listen_port=9876,
                    kv_config_path=str(self.root / "kv.json"),
                    support_acting_master=True,
                    notify_min_broker_id_changed=True,
                )
            ).start(),
        )
        for name in PORTS:
            self.start(name)
        client = Machine("client")
        sender = loop.spawn(client, self._send())
        reader = loop.spawn(client, self._read())
        await self._bring_bad_luck()
        loop.heal()
        await self._until_whole()
        self.is_over = True
        await asyncio.gather(sender, reader)
        if not self.faults and await self._until_whole():
            for name in PORTS:
                self._check(name, range(self._end_of(name)), is_final=True)
                if missing := [n for n in self.acknowledged if n >= self._end_of(name)]:
                    self.faults.append(f"{name} lacks acknowledged offsets {missing[:5]}")
            self.is_read = True
            self._compare_bytes()
        return [*self.faults, *self.history.faults(is_final=self.is_read), *loop.errors]

    def _compare_bytes(self) -> None:
        logs = [
            b"".join(
                bytes(segment.buffer[: segment.read_position])
                for segment in self.brokers[name].parts.store.commit_log.queue.segments
            )
            for name in PORTS
        ]
        if logs[0] != logs[1]:
            self.faults.append("the logs have other bytes")

    def to_json(self, seed: int) -> dict[str, Any]:
        """For programs: what was done, what went wrong by kind, and what must not be."""
        return {
            "seed": seed,
            "sent": len(self.sent),
            "acknowledged": len(self.acknowledged),
            "checked": self.checked,
            "lost": len(self.history.lost()) if self.is_read else None,
            "luck": dict(sorted(self.luck.items())),
            "faults": self.faults,
        }

    def line(self) -> str:
        """For people."""
        luck = ", ".join(f"{name} {count}" for name, count in sorted(self.luck.items()))
        state = "holds" if not self.faults else f"FAILS ({len(self.faults)})"
        kind = f"{'SYNC' if self.is_sync else 'ASYNC'}{', acting' if self.acts else ''}"
        return (
            f"{state} ({kind}): {len(self.sent)} sent, {len(self.acknowledged)} acknowledged, "
            f"{self.checked} read; {luck}; {self.loop.time():.0f} s"
        )


@click.command()
@click.option("--seed", type=int, default=0, help="The first seed.")
@click.option("--seeds", type=int, default=1, help="How many, from the first on.")
@click.option("--seconds", type=float, default=120.0, help="For how long things go wrong.")
@click.option("--history", is_flag=True, help="Write what happened.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each seed.")
def main(seed: int, seeds: int, seconds: float, history: bool, as_json: bool) -> None:
    """Run a master and a slave with bad luck, and judge what their client saw."""
    options = [f"--seconds={seconds:g}", *(["--history"] if history else [])]
    options += ["--json"] if as_json else []
    run_elsewhere(MODULE, seed, seeds, options)
    if not history:
        logging.disable()
    root = Path(tempfile.mkdtemp(prefix="oberth-pair-"))
    try:
        with simulated(seed) as loop:
            pair = Pair(loop, root, seconds)
            faults = loop.run_until_complete(pair.run())
            pair.faults = faults
            line = json.dumps(pair.to_json(seed)) if as_json else f"seed {seed} {pair.line()}"
            happened = list(loop.history)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if history:
        click.echo("\n".join(happened))
    show_and_exit(line, faults, None if as_json else again(MODULE, seed, options))


if __name__ == "__main__":
    main()
