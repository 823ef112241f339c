"""A broker with dispatch=spark: each message is shown once, when somebody else has dispatched it.

The dispatcher is a thread, a process that is killed, and a query of Spark; the broker is restarted
and killed, has a slave or is one. What was acknowledged is there at the end, once, and the store
verifies.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.rigs.clusters import OberthCluster
from tests.rigs.dispatchers import dispatcher

from oberth.broker.broker import Broker
from oberth.broker.broker_config import read_configs
from oberth.client import ConsumeFromWhere, Message
from oberth.client.blocking import Admin, Producer, PullConsumer
from oberth.errors import OberthError, OptionError
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify
from oberth.testing.blocking import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {"dispatch": "spark"}
_FOLLOW = """
import sys, time
from oberth.spark.pipelines.tail_dispatch import TailDispatcher
with TailDispatcher(sys.argv[1]) as tail:
    while True:
        if not tail.advance().records:
            time.sleep(0.003)
"""


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ends(mq: Any, topic: str) -> int:
    store = mq.broker.parts.store
    return sum(queue.max_offset for queue in store.queues.queues(topic))


def check(root: Path, topic: str, acknowledged: list[bytes]) -> None:
    """Every acknowledged message is in a queue, each message in one place, the store is whole."""
    with StoreReader(str(root), {}) as reader:
        report = verify(reader)
        bodies = [message.body for message in reader.messages() if message.topic == topic]
    assert report.clean, report.findings[:3]
    assert set(acknowledged) <= set(bodies)


def test_nothing_is_shown_before_it_is_dispatched() -> None:
    with EmbeddedBroker(SETTINGS) as mq:
        root = str(mq.store_dir)
        with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            for number in range(20):
                producer.send(Message("T", b"%d" % number, keys=f"k{number}"))
            assert ends(mq, "T") == 0
            assert mq.broker.parts.store.dispatch_behind_bytes > 0
            consumer = PullConsumer(
                "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            )  # fmt: skip
            with consumer, Admin(namesrv_addr=mq.namesrv_addr) as admin:
                assert consumer.poll(timeout_ms=200) == []
                with dispatcher(root):
                    seen: list[bytes] = []
                    deadline = time.monotonic() + 60
                    while len(seen) < 20 and time.monotonic() < deadline:
                        seen += [message.body for message in consumer.poll()]
                    assert sorted(seen, key=int) == [b"%d" % n for n in range(20)]
                    # A consumer that waits is woken by the dispatch, not by its time-out.
                    started = time.monotonic()
                    threading.Timer(0.3, lambda: producer.send(Message("T", b"20"))).start()
                    assert [m.body for m in consumer.poll(timeout_ms=14_000)] == [b"20"]
                    assert time.monotonic() - started < 10
                    found = admin.query_message("T", "k7")
                    assert [message.body for message in found] == [b"7"]
        store = Path(root)
        mq.broker.parts.store.flush()
        assert mq.broker.parts.store.dispatch_behind_bytes == 0
        check(store, "T", [b"%d" % n for n in range(21)])


def test_both_sides_are_restarted() -> None:
    sent: list[bytes] = []
    with EmbeddedBroker(SETTINGS) as mq, Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        root = str(mq.store_dir)

        def send(count: int) -> None:
            for _ in range(count):
                sent.append(b"%d" % len(sent))
                producer.send(Message("T", sent[-1], keys="k"))

        send(30)
        with dispatcher(root):
            wait_until(lambda: ends(mq, "T") == 30)
            mq.restart()  # the dispatcher steps aside and comes back
            report = mq.broker.parts.store.report
            assert report is not None
            assert not report.abnormal
            send(300)
            wait_until(lambda: ends(mq, "T") == 330)
        send(5)
        assert ends(mq, "T") == 330
        with dispatcher(root):
            wait_until(lambda: ends(mq, "T") == 335)
        send(7)
        mq.restart()  # nobody dispatches: the broker does what is left when it starts
        assert ends(mq, "T") == 342
        assert sorted(mq.bodies("T"), key=int) == sent
        with dispatcher(root):
            send(1)
            wait_until(lambda: ends(mq, "T") == 343)
        check(Path(root), "T", sent)


def test_settings_that_need_a_dispatch_of_ones_own() -> None:
    for more in ({"enableConsumeQueueExt": "true"}, {"enableCalcFilterBitMap": "true"}):
        with pytest.raises(OptionError, match="dispatch=spark does not go with"):
            EmbeddedBroker({**SETTINGS, **more}).start()
    with pytest.raises(OptionError, match="dispatch"):
        EmbeddedBroker({"dispatch": "flink"}).start()


@pytest.mark.parametrize(
    ("of_master", "of_slave"), [("spark", "broker"), ("broker", "spark"), ("spark", "spark")]
)
async def test_a_master_and_its_slave(tmp_path: Path, of_master: str, of_slave: str) -> None:
    def make(name_server: str, name: str, dispatch: str, **more: str) -> Broker:
        entries = {
            "storePathRootDir": str(tmp_path / name), "namesrvAddr": name_server,
            "brokerName": "broker-a", "listenPort": "0", "dispatch": dispatch,
            "mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000",
            "maxHashSlotNum": "100", "maxIndexNum": "1000", "timerWheelEnable": "false",
            "haSendHeartbeatInterval": "100", **more,
        }  # fmt: skip
        config, store_config, _ = read_configs(entries)
        return Broker(config, store_config)

    def put(broker: Broker, first: int, count: int) -> None:
        inner = MessageExtBrokerInner.of
        broker.parts.store.append_messages(
            [
                inner("T", b"%d" % n, keys=f"k{n}", queue_id=n % 2)
                for n in range(first, first + count)
            ]
        )
        broker.services.dispatching.soon()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - the store has no event for its growth
                await asyncio.sleep(0.005)

    def shown(broker: Broker) -> list[int]:
        return [broker.parts.store.max_offset_in_queue("T", n) for n in range(2)]

    async def until_shown(broker: Broker, number: int) -> None:
        await until(lambda: shown(broker) == [number, number])

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(NameServer(NamesrvConfig(listen_port=0)))
        address = f"127.0.0.1:{server.address.port}"
        master = await stack.enter_async_context(make(address, "m", of_master))
        put(master, 0, 300)
        for turn in range(2):  # the slave is restarted in between
            replica = make(address, "s", of_slave, brokerId="1", brokerRole="SLAVE")
            async with replica as slave:
                put(master, 300 * (turn + 1), 300)
                each = 150 * (turn + 2)
                await until(
                    lambda: slave.parts.store.max_phy_offset == master.parts.store.max_phy_offset
                )
                # A slave's log comes by itself; its queues by whoever dispatches them.
                if of_slave == "spark" and turn == 0:
                    assert shown(slave) == [0, 0]
                    await until(lambda: master.services.ha.to_body()["inSyncSlaveNums"] == 1)
                with contextlib.ExitStack() as dispatchers:
                    for name, dispatch in (("m", of_master), ("s", of_slave)):
                        if dispatch == "spark":
                            dispatchers.enter_context(dispatcher(str(tmp_path / name)))
                    await until_shown(master, each)
                    await until_shown(slave, each)
                for broker in (master, slave):
                    found = broker.parts.store.query_message("T", f"k{2 * each - 1}", 9, 0, 2**62)
                    assert len(found.commit_log_offsets) == 1
                    got = broker.parts.store.get_message("g", "T", 1, each - 1, 32)
                    assert got.message_count == 1
                    assert b"KEYS\x01k%d\x02" % (2 * each - 1) in bytes(got.records[0])
    for name in ("m", "s"):
        check(tmp_path / name, "T", [b"%d" % n for n in range(900)])


@pytest.mark.crash
def test_both_sides_are_killed(tmp_path: Path) -> None:
    conf = {**SETTINGS, "mappedFileSizeCommitLog": "1048576", "mappedFileSizeConsumeQueue": "4000"}
    acknowledged: list[bytes] = []
    with OberthCluster(tmp_path, conf) as cluster:
        broker = cluster.brokers[0]
        command = [sys.executable, "-c", _FOLLOW, str(broker.store)]
        follower = subprocess.Popen(command)
        try:
            for victim in ("dispatcher", "broker", "both"):
                with Producer("p", namesrv_addr=cluster.namesrv_addr) as producer:
                    for number in range(400):
                        body = b"%s-%d" % (victim.encode(), number)
                        try:
                            producer.send(Message("T", body.ljust(500), keys=f"k{number}"))
                        except OberthError:
                            break
                        acknowledged.append(body.ljust(500))
                        if number == 250 and victim != "broker":
                            follower.kill()
                            follower.wait()
                        if number == 300 and victim != "dispatcher":
                            broker.kill()
                if victim != "broker":
                    follower = subprocess.Popen(command)
                if victim != "dispatcher":
                    broker.start()

            def shown() -> int:
                with Admin(namesrv_addr=cluster.namesrv_addr) as admin:
                    return sum(admin.max_offset(queue) for queue in admin.topic_queues("T"))

            wait_until(lambda: shown() >= len(acknowledged))
        finally:
            follower.kill()
            follower.wait()
        # It may have been in the middle of something: whoever opens the store next repairs that.
        broker.stop()
        broker.start()
        broker.stop()
    check(broker.store, "T", acknowledged)


@pytest.mark.spark
def test_a_query_dispatches_a_broker(spark: SparkSession, tmp_path: Path) -> None:
    from oberth.spark.pipelines.dispatch_stream import start_dispatch

    sent: list[bytes] = []
    with EmbeddedBroker(SETTINGS) as mq, Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        root = str(mq.store_dir)
        for _ in range(2):
            query = start_dispatch(spark, root, str(tmp_path / "checkpoint"))
            try:
                for _ in range(40):
                    sent.append(b"%d" % len(sent))
                    producer.send(Message("T", sent[-1]))
                    if len(sent) == 20:
                        wait_until(lambda: ends(mq, "T") == 20)
                        mq.restart()
                wait_until(lambda: ends(mq, "T") == len(sent))
            finally:
                query.stop()  # Spark kills the process that dispatches
        assert sorted(mq.bodies("T"), key=int) == sent
        mq.restart()
        assert sorted(mq.bodies("T"), key=int) == sent
