"""Proves the blocking face: the same names and arguments, real work, and its types up to date."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future

import pytest

from oberth.client import Message, MessageExt, blocking, blocking_stub
from oberth.client.blocking_face import LOOP, RENAMED, public_names
from oberth.client.consume import ConsumeStatus
from oberth.errors import MQClientError
from oberth.remoting.bodies.clients import ConsumeFromWhere
from oberth.testing import blocking_stub as testing_stub
from oberth.testing.blocking import EmbeddedBroker

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def test_stubs_are_up_to_date() -> None:
    assert blocking_stub.STUB_PATH.read_text() == blocking_stub.client_stub_text()
    assert testing_stub.STUB_PATH.read_text() == testing_stub.testing_stub_text()


@pytest.mark.parametrize(("module", "name"), blocking_stub.CLIENT_CLASSES)
def test_every_public_name_is_there(module: str, name: str) -> None:
    async_class = getattr(__import__(module, fromlist=[name]), name)
    blocking_class = getattr(blocking, name)
    for each in public_names(async_class):
        value = inspect.getattr_static(blocking_class, RENAMED.get(each, each))
        assert not inspect.iscoroutinefunction(value)


def test_send_and_consume() -> None:
    with EmbeddedBroker() as mq:
        seen: list[bytes] = []
        threads: set[str] = set()

        def handle(message: MessageExt) -> ConsumeStatus:
            seen.append(message.body)
            threads.add(threading.current_thread().name)
            # A plain listener may use blocking clients.
            producer.send(Message("Done", message.body))
            return ConsumeStatus.SUCCESS

        with (
            blocking.Producer("p", namesrv_addr=mq.namesrv_addr) as producer,
            blocking.PushConsumer(
                "g", {"T": "*"}, listener=handle, namesrv_addr=mq.namesrv_addr,
                consume_from_where=FIRST,
            ) as consumer,
        ):  # fmt: skip
            assert producer.group == "p"
            assert consumer.client_id == producer.client_id
            result = producer.send(Message("T", b"1"))
            future = producer.send_async(Message("T", b"2"))
            assert isinstance(future, Future)
            assert future.result(5).message_queue.topic == result.message_queue.topic == "T"
            mq.wait_until(lambda: len(seen) == 2)
        assert sorted(mq.bodies("Done")) == [b"1", b"2"]
        assert all(name.startswith("oberth-consume") for name in threads)
        assert mq.lag("g", "T") == 0


def test_loops_and_polls() -> None:
    with EmbeddedBroker() as mq:
        with blocking.Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            for n in range(5):
                producer.send(Message("T", b"%d" % n))
        with blocking.PushConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
        ) as consumer:
            taken = []
            for message in consumer:
                taken.append(message.body)
                if len(taken) == 5:
                    break
        assert sorted(taken) == [b"0", b"1", b"2", b"3", b"4"]
        assert mq.lag("g", "T") == 0
        assert mq.messages("SCHEDULE_TOPIC_XXXX") == [], "the block is done with the last one"
        with (
            blocking.PullConsumer(
                "h", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
            ) as puller,
            blocking.Admin(namesrv_addr=mq.namesrv_addr) as admin,
        ):
            assert len(puller.poll(5000)) > 0
            assert admin.topic_list("DefaultCluster").count("T") == 1


def test_errors_come_through_and_the_loop_is_guarded() -> None:
    with (
        EmbeddedBroker() as mq,
        blocking.Producer("p", namesrv_addr=mq.namesrv_addr) as producer,
    ):
        with pytest.raises(MQClientError):
            producer.send(Message("T", b""))

        async def on_the_loop() -> None:
            assert mq.topics() == []
            producer.send(Message("T", b"x"))

        future = asyncio.run_coroutine_threadsafe(on_the_loop(), LOOP.loop())
        with pytest.raises(MQClientError, match="blocking call"):
            future.result(5)
