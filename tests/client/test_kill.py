"""Our client loses nothing while brokers are killed, started again and moved: a ledger.

Two brokers, ours or Apache's, get every kind of traffic from producers and consumers of ours. One
after the other is killed and comes back, sometimes at another address. Afterwards everything that
was acknowledged has been consumed, nothing has that was not sent, and queues have kept their order.
A failure names its seed.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clusters import (
    SUITE_CONF,
    Cluster,
    Node,
    OberthCluster,
    cluster_for,
    free_port,
)

from oberth.client import (
    ClientConfig,
    ConsumeFromWhere,
    LocalTransactionState,
    Message,
    MessageExt,
    PopConsumer,
    Producer,
    PushConsumer,
    SendResult,
    SendStatus,
    TransactionProducer,
)
from oberth.client.admin import Admin
from oberth.errors import OberthError, PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.crash]

ROUNDS = int(os.environ.get("OBERTH_KILL_ROUNDS", "3"))
ARRIVAL_S = 100.0  # a producer is asked about transactions after its next heartbeat, up to 30 s
KINDS = ("sync", "many", "batch", "order", "delay", "transaction", "retry", "pop")
PAUSE_S = 0.05


class Ledger:
    """One kind of traffic: what was sent, what was acknowledged, what arrived."""

    def __init__(self, kind: str, changed: asyncio.Event) -> None:
        self.kind = kind
        self.changed = changed  # something arrived
        self.topic = f"Kill_{kind}"
        self.sent: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.arrived: set[bytes] = set()
        self.places: dict[str, list[int]] = {}  # queue offsets of first arrivals, by queue
        self.failures: list[str] = []

    def message(self, **more: Any) -> Message:
        body = b"%s-%d" % (self.kind.encode(), len(self.sent))
        self.sent.add(body)
        return Message(self.topic, body, **more)

    def answered(self, result: SendResult, messages: Iterable[Message]) -> None:
        if result.status is SendStatus.SEND_OK:
            self.acknowledged.update(message.body for message in messages)

    def arrive(self, message: MessageExt) -> None:
        if message.body not in self.arrived:
            self.arrived.add(message.body)
            place = f"{message.broker_name}/{message.queue_id}"
            self.places.setdefault(place, []).append(message.queue_offset)
            self.changed.set()

    def verdict(self) -> list[str]:
        """What is wrong."""
        wrong = []
        if not self.acknowledged:
            wrong.append(f"nothing was acknowledged: {self.failures[:3]}")
        missing = self.acknowledged - self.arrived
        if missing:
            few = sorted(missing)[:3]
            wrong.append(f"{len(missing)} of {len(self.acknowledged)} missing, such as {few}")
        if self.arrived - self.sent:
            wrong.append(f"not sent: {sorted(self.arrived - self.sent)[:3]}")
        if self.kind == "order":
            wrong += [
                f"{place} out of order" for place, at in self.places.items() if at != sorted(at)
            ]
        return [f"{self.kind}: {each}" for each in wrong]


class Commits:
    """Every third transaction is decided only when the broker asks."""

    async def execute_local_transaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        if int(msg.body.rpartition(b"-")[2]) % 3 == 0:
            return LocalTransactionState.UNKNOW
        return LocalTransactionState.COMMIT_MESSAGE

    async def check_local_transaction(self, msg: MessageExt) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


class Traffic:
    """Producers and consumers of every kind, until told to stop."""

    def __init__(self, config: ClientConfig, kinds: Iterable[str]) -> None:
        self.config = config
        self.changed = asyncio.Event()
        self.ledgers = {kind: Ledger(kind, self.changed) for kind in kinds}
        self.stopping = False
        self.senders: list[asyncio.Task[None]] = []
        self.popper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Traffic:
        self.stack = [self._producer(), self._transactional(), *map(self._consumer, self.ledgers)]
        self.opened: list[Any] = []
        for each in self.stack:
            if each is not None:
                self.opened.append(await each.__aenter__())
        producer, transactional = self.opened[:2]
        for ledger in self.ledgers.values():
            step = self._step(ledger, producer, transactional)
            self.senders.append(asyncio.create_task(self._send(ledger, step)))
        for ledger, client in zip(self.ledgers.values(), self.stack[2:], strict=True):
            if isinstance(client, PopConsumer):
                self.popper = asyncio.create_task(self._pop(ledger, client))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stopping = True
        if self.popper is not None:
            self.popper.cancel()
            await asyncio.gather(self.popper, return_exceptions=True)
        await asyncio.gather(*self.senders, return_exceptions=True)
        for each in reversed(self.opened):
            await each.__aexit__(None, None, None)

    async def stop_sending(self) -> None:
        self.stopping = True
        await asyncio.gather(*self.senders)

    async def wait_arrivals(self) -> None:
        """Until everything acknowledged is there, for as long as that may take."""
        try:
            async with asyncio.timeout(ARRIVAL_S):
                for ledger in self.ledgers.values():
                    while not ledger.acknowledged <= ledger.arrived:
                        self.changed.clear()
                        await self.changed.wait()
        except TimeoutError:
            return

    def _producer(self) -> Producer:
        return Producer("KillP", config=self.config, send_latency_fault_enable=True)

    def _transactional(self) -> TransactionProducer:
        return TransactionProducer("KillTP", Commits(), config=self.config)

    def _consumer(self, kind: str) -> PushConsumer | PopConsumer:
        ledger = self.ledgers[kind]
        group = f"KillG_{kind}"
        if kind == "pop":
            return PopConsumer(
                group,
                {ledger.topic: "*"},
                config=self.config,
                invisible_duration_ms=10_000,
                await_duration_ms=1_000,
            )

        async def take(message: MessageExt) -> None:
            if kind == "retry" and message.reconsume_times == 0:
                raise RuntimeError("once")
            ledger.arrive(message)

        return PushConsumer(
            group,
            {ledger.topic: "*"},
            listener=take,
            orderly=kind == "order",
            config=self.config,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )

    @staticmethod
    async def _pop(ledger: Ledger, consumer: PopConsumer) -> None:
        while True:
            try:
                for message in await consumer.receive():
                    ledger.arrive(message)
                    await consumer.ack(message)
            except OberthError as error:
                ledger.failures.append(str(error))
                await asyncio.sleep(0.1)

    @staticmethod
    def _step(
        ledger: Ledger, producer: Producer, transactional: TransactionProducer
    ) -> Callable[[], Awaitable[None]]:
        async def one(message: Message) -> None:
            ledger.answered(await producer.send(message), [message])

        async def sync() -> None:
            await one(ledger.message())

        async def many() -> None:
            done = await asyncio.gather(
                *(one(ledger.message()) for _ in range(8)), return_exceptions=True
            )
            for error in done:
                if isinstance(error, BaseException):
                    raise error

        async def batch() -> None:
            messages = [ledger.message() for _ in range(8)]
            ledger.answered(await producer.send(messages), messages)

        async def order() -> None:
            await one(ledger.message(sharding_key=str(len(ledger.sent) % 8)))

        async def delay() -> None:
            await one(ledger.message(delay_time_level=1))

        async def transaction() -> None:
            message = ledger.message()
            result = await transactional.send_message_in_transaction(message)
            ledger.answered(result.send_result, [message])

        steps = {"many": many, "batch": batch, "order": order, "delay": delay,
                 "transaction": transaction}  # fmt: skip
        return steps.get(ledger.kind, sync)

    async def _send(self, ledger: Ledger, step: Callable[[], Awaitable[None]]) -> None:
        while not self.stopping:
            try:
                await step()
            except OberthError as error:
                ledger.failures.append(str(error))
            await asyncio.sleep(PAUSE_S)


def move(node: Node) -> None:
    """Give a broker that does not run another port."""
    old = int(node.address.rpartition(":")[2])
    new = free_port(also=(-2, 1))
    path = node.directory / "broker.conf"
    text = path.read_text().replace(f"listenPort={old}\n", f"listenPort={new}\n", 1)
    path.write_text(text.replace(f"haListenPort={old + 1}\n", f"haListenPort={new + 1}\n", 1))
    node.command = [str(new) if word == str(old) else word for word in node.command]
    node.address = f"127.0.0.1:{new}"


async def create_topics(addr: str, ledgers: Iterable[Ledger]) -> None:
    """On every broker, so that what one cannot take goes to the other."""
    async with Admin(namesrv_addr=addr) as admin:
        for ledger in ledgers:
            await admin.create_topic(ledger.topic, queue_nums=2, cluster="DefaultCluster")
            await admin.create_group(f"KillG_{ledger.kind}", cluster="DefaultCluster")


@pytest.fixture(params=["oberth", pytest.param("apache-5.5.0", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    conf = {**SUITE_CONF, "flushDiskType": "ASYNC_FLUSH"}
    if request.param == "oberth":
        # A name server of its own, or it would go down with the first broker.
        port = free_port()
        addr = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "oberth", "namesrv", "--port", str(port)]
        name_server = Node("namesrv", addr, tmp_path / "namesrv", command)
        name_server.start()
        try:
            with OberthCluster(tmp_path, conf, brokers=2, namesrv_addr=addr) as started:
                yield started
        finally:
            name_server.kill()
        return
    # Checks are a second apart here and heartbeats ten; RocketMQ counts a check that nobody could
    # be asked about.
    conf["transactionCheckMax"] = "1000"
    try:
        running = cluster_for(request.param, tmp_path, conf, brokers=2)
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    with running as apache:
        yield apache
        for node in apache.brokers:  # nobody reads their stores; closing them takes half a minute
            node.kill()


async def test_the_ledger_holds(cluster: Cluster) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    config = ClientConfig(
        namesrv_addr=cluster.namesrv_addr,
        poll_name_server_interval_ms=1_000,
        persist_consumer_offset_interval_ms=1_000,
        rebalance_interval_ms=5_000,
        heartbeat_broker_interval_ms=10_000,
    )
    traffic = Traffic(config, KINDS)
    await create_topics(cluster.namesrv_addr, traffic.ledgers.values())
    async with traffic:
        for number in range(ROUNDS):
            await asyncio.sleep(rng.uniform(1, 3))  # the point in the traffic is what is random
            node = cluster.brokers[number % len(cluster.brokers)]
            node.kill()
            await asyncio.sleep(rng.uniform(0, 2))
            if number % 3 == 2:
                move(node)
            await asyncio.to_thread(node.start)
        await asyncio.sleep(2)
        await traffic.stop_sending()
        await traffic.wait_arrivals()
    wrong = [each for ledger in traffic.ledgers.values() for each in ledger.verdict()]
    assert not wrong, f"seed {seed}: " + "\n".join(wrong)
