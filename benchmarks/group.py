"""A group of three brokers and their controller as processes, killed and stopped under load.

One run: clients send to a few queues, read at whichever broker and commit offsets, all of it in a
`History`; meanwhile the master, a slave or the controller is killed with SIGKILL and started again,
or a broker is stopped with SIGSTOP for some seconds and goes on as if nothing had happened. Then
all are in sync again, everything is read from each of the three, and the history is judged, the
logs compared and the stores verified.

The seed decides what happens in which order. What the machine makes of that differs from run to
run, so a seed here repeats a plan and not a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from tests.rigs.clusters import Node, free_port

from oberth.broker.log_comparison import StoreLog, compare
from oberth.client.admin import Admin
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, SendStatus
from oberth.client.producer import Producer
from oberth.errors import OberthError
from oberth.formats.message import decode_record
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.base import MessageQueue
from oberth.remoting.bodies.controller import ReplicasInfo
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.store.offline.findings import Severity
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify
from oberth.testing.history import History, Outcome

NAME: Final = "broker-a"
TOPIC, CONSUMERS = "T", "G"
BROKERS: Final = 3
QUEUES: Final = 4
SENDERS: Final = 4
BEHIND_MAX: Final = 20
"""How far behind a queue's end readers look."""
SETTLE_S: Final = 240.0
ANSWER_S: Final = 5.0
_FOUND: Final = 0
SETTINGS: Final = {
    "brokerName": NAME,
    "enableControllerMode": "true",
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "diskMaxUsedSpaceRatio": "95",
    "slaveReadEnable": "true",
}


class Group:
    """The processes. Nothing runs before `start`; `kill` ends all."""

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.name_server = _node(directory, "namesrv")
        kept = str(directory / "controller" / "kept")
        self.controller = _node(directory, "controller", "--store", kept)
        self.brokers = {}
        given = {**SETTINGS, "controllerAddr": self.controller.address, **settings}
        words = [word for pair in given.items() for word in ("--set", "=".join(pair))]
        for number in range(1, BROKERS + 1):
            folder = directory / str(number)
            node = _node(folder, "broker", "--store", str(folder / "broker" / "store"), *words)
            node.command += ["-n", self.name_server.address]
            self.brokers[node.address] = node

    def start(self) -> None:
        """Start all; brokers are not waited for."""
        self.name_server.start()
        self.controller.start()
        for node in self.brokers.values():
            node.launch()

    def kill(self) -> None:
        """End all, at once."""
        for node in (*self.brokers.values(), self.controller, self.name_server):
            node.kill()


def _node(directory: Path, command: str, *options: str) -> Node:
    port = free_port(also=(-2, 1))
    line = [sys.executable, "-m", "oberth", command, "--port", str(port), *options]
    return Node(command, f"127.0.0.1:{port}", directory / command, line)


class Campaign:
    """One run; `run` once.

    Attributes:
        history: what the clients did and heard.
        luck: how often what went wrong.
    """

    def __init__(self, directory: Path, seed: int, seconds: float) -> None:
        self.rng = random.Random(seed)
        self.seconds = seconds
        flush = self.rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
        self.group = Group(directory, {"flushDiskType": flush})
        self.history = History()
        self.luck: Counter[str] = Counter()
        self._ends: Counter[int] = Counter()
        self._is_over = False
        self._config = ClientConfig(
            namesrv_addr=self.group.name_server.address,
            client_ip="127.0.0.1",
            poll_name_server_interval_ms=500,
        )

    async def run(self) -> list[str]:
        """Everything; gives what must not be."""
        self.group.start()
        try:
            async with Admin(config=self._config) as admin, RemotingClient() as client:
                await self._until(lambda: self._is_whole(admin), "a group of three")
                await self._until(lambda: self._make_topic(admin), "a topic")
                tasks = [
                    asyncio.create_task(each)
                    for each in (
                        *(self._send(number) for number in range(SENDERS)),
                        self._read(client),
                        self._commit(admin),
                    )
                ]
                try:
                    await self._bring_bad_luck(admin)
                    await self._until(lambda: self._is_whole(admin), "three in sync at the end")
                finally:
                    self._is_over = True
                    await asyncio.gather(*tasks)
                await self._read_all(client)
            for node in self.group.brokers.values():
                await asyncio.to_thread(node.stop)
            faults = self.history.faults(keeps_offsets=False)
            return [*faults, *await self._differences()]
        except TimeoutError as error:
            return [str(error)]
        finally:
            self.group.kill()

    # What goes wrong

    async def _bring_bad_luck(self, admin: Admin) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        kind = 0.5  # a master is killed in any case
        while loop.time() < until:
            await asyncio.sleep(self.rng.uniform(0.5, 3.0))
            kind, now = self.rng.random(), kind
            if now < 0.15:
                await self._kill(self.group.controller, "controller killed")
                continue
            nodes = list(self.group.brokers.values())
            node = self.rng.choice(nodes)
            if now < 0.75:
                with contextlib.suppress(OberthError, OSError):
                    found = await self._replicas(admin)
                    address = "" if found is None else found.master_address or ""
                    node = self.group.brokers.get(address, node)
            if now < 0.65:
                await self._kill(node, "broker killed")
            else:
                self.luck["process stopped"] += 1
                os.kill(node.pid, signal.SIGSTOP)
                await asyncio.sleep(self.rng.uniform(0.5, 15.0))
                os.kill(node.pid, signal.SIGCONT)

    async def _kill(self, node: Node, what: str) -> None:
        self.luck[what] += 1
        await asyncio.to_thread(node.kill)
        await asyncio.sleep(self.rng.uniform(0.0, 4.0))
        node.launch()

    # The clients

    async def _send(self, number: int) -> None:
        count = 0
        async with Producer(
            f"P{number}", config=self._config, retry_times_when_send_failed=0,
            send_msg_timeout_ms=4000,
        ) as producer:  # fmt: skip
            while not self._is_over:
                count += 1
                queue_id = self.rng.randrange(QUEUES)
                queue = MessageQueue(topic=TOPIC, broker_name=NAME, queue_id=queue_id)
                body = f"{number}-{count} " + "x" * self.rng.randrange(2000)
                begun = self.history.begin()
                outcome, offset = Outcome.UNKNOWN, -1
                with contextlib.suppress(OberthError, OSError):
                    sent = await producer.send(Message(TOPIC, body.encode()), mq=queue)
                    offset = sent.queue_offset
                    if sent.status is SendStatus.SEND_OK:
                        outcome = Outcome.ACKNOWLEDGED
                        # What is answered otherwise may be gone with its master.
                        self._ends[queue_id] = max(self._ends[queue_id], offset + 1)
                self.history.sent(
                    body, begun, outcome=outcome, queue=str(queue_id), offset=offset
                )  # fmt: skip
                await asyncio.sleep(0.002 if outcome is Outcome.ACKNOWLEDGED else 0.1)

    async def _read(self, client: RemotingClient) -> None:
        while not self._is_over:
            await asyncio.sleep(self.rng.uniform(0.0, 0.1))
            queue_id = self.rng.randrange(QUEUES)
            offset = self._ends[queue_id] - self.rng.randrange(1, BEHIND_MAX)
            address = self.rng.choice(list(self.group.brokers))
            if offset >= 0:
                with contextlib.suppress(OberthError, OSError):
                    await self._pull(client, address, queue_id, offset, 1)

    async def _commit(self, admin: Admin) -> None:
        queue = MessageQueue(topic=TOPIC, broker_name=NAME, queue_id=0)
        offset = 0
        while not self._is_over:
            await asyncio.sleep(0.2)
            offset += 1
            with contextlib.suppress(OberthError, OSError):
                # Written down in any case: a commit that got no answer may have been taken.
                self.history.committed(CONSUMERS, "0", offset, self.history.begin())
                await admin.update_consume_offset(CONSUMERS, queue, offset)
                begun = self.history.begin()
                found = await admin.consumer_offset(CONSUMERS, queue)
                self.history.fetched(CONSUMERS, "0", -1 if found is None else found, begun)

    async def _pull(
        self, client: RemotingClient, address: str, queue_id: int, offset: int, count: int
    ) -> int:
        """Reads so many messages at most; gives how many there were."""
        begun = self.history.begin()
        fields = {
            "consumerGroup": CONSUMERS,
            "topic": TOPIC,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        request = RemotingCommand(code=int(RequestCode.PULL_MESSAGE), ext_fields=fields)
        answer = await client.invoke(address, request, ANSWER_S)
        if answer.code != _FOUND:
            return 0
        data, at, found = answer.body_bytes(), 0, 0
        while at < len(data):
            message = decode_record(data, at, check_crc=True)
            at += message.record_size
            found += 1
            self.history.pulled(
                str(queue_id), message.queue_offset, message.body.decode(), begun
            )  # fmt: skip
        return found

    async def _read_all(self, client: RemotingClient) -> None:
        for address in self.group.brokers:
            for queue_id in range(QUEUES):
                offset = 0

                async def reads(address: str = address, queue_id: int = queue_id) -> bool:
                    nonlocal offset
                    while found := await self._pull(client, address, queue_id, offset, 32):
                        offset += found
                    return offset >= self._ends[queue_id]

                await self._until(reads, f"all of queue {queue_id} at {address}")

    # The group

    async def _replicas(self, admin: Admin) -> ReplicasInfo | None:
        return await admin.replicas(self.group.controller.address, NAME)

    async def _is_whole(self, admin: Admin) -> bool:
        """Whether three are in sync, and the name server knows the master."""
        found = await self._replicas(admin)
        return (
            found is not None
            and len(found.in_sync_replicas) == BROKERS
            and all(each.alive for each in found.in_sync_replicas)
            and (await admin.masters()).get(NAME) == found.master_address
        )

    async def _make_topic(self, admin: Admin) -> bool:
        await admin.create_topic(TOPIC, queue_nums=QUEUES)
        return True

    async def _until(self, question: Callable[[], Awaitable[bool]], what: str) -> None:
        """Asks until the answer is yes."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while True:
                    with contextlib.suppress(OberthError, OSError):
                        if await question():
                            return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise TimeoutError(f"not in {SETTLE_S:.0f} s: {what}") from None

    async def _differences(self) -> list[str]:
        """Damage in a store, and logs that are not equal."""
        faults = []
        first, *others = (str(node.store) for node in self.group.brokers.values())
        for store in (first, *others):
            with StoreReader(store) as reader:
                damage = [
                    each for each in verify(reader).findings if each.severity is Severity.DAMAGE
                ]
            faults += [f"{store}: {each}" for each in damage]
        for store in others:
            with StoreReader(first) as one, StoreReader(store) as other:
                if one.max_offset != other.max_offset:
                    faults.append(f"logs end at {one.max_offset} and {other.max_offset}")
                found = await compare(StoreLog(one), StoreLog(other), read_all=True)
                if found.differs_at is not None:
                    faults.append(f"logs of {first} and {store} differ at {found.differs_at}")
        return faults


def run(directory: Path, seed: int, seconds: float) -> dict[str, Any]:
    """One campaign.

    Args:
        directory: gets a folder for each process, with its log and store.
        seed: of what goes wrong.
        seconds: for how long.

    Returns:
        ``seed``, ``sent``, ``acknowledged``, ``checked``, ``lost``, ``luck``, ``faults``.
    """
    campaign = Campaign(directory, seed, seconds)
    faults = asyncio.run(campaign.run())
    history = campaign.history
    outcomes = Counter(each.outcome for each in history.sends)
    return {
        "seed": seed,
        "sent": len(history.sends),
        "acknowledged": outcomes[Outcome.ACKNOWLEDGED],
        "checked": len(history.pulls),
        "lost": len(history.lost()),
        "luck": dict(sorted(campaign.luck.items())),
        "faults": faults,
    }


def main(argv: list[str]) -> None:
    """``python -m benchmarks.group DIRECTORY SEED SECONDS``: prints one line of JSON."""
    directory, seed, seconds = argv
    found = run(Path(directory), int(seed), float(seconds))
    print(json.dumps(found), flush=True)
    sys.exit(1 if found["faults"] else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
