"""Proves the blocking face: the same names and arguments, real work, and its types up to date."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

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


def test_what_a_loop_over_a_consumer_that_is_asked_leaves_comes_next() -> None:
    with EmbeddedBroker() as mq:
        with blocking.Producer(
            "p", namesrv_addr=mq.namesrv_addr, default_topic_queue_nums=1
        ) as producer:
            for n in range(5):
                producer.send(Message("T", b"%d" % n))
        with blocking.PullConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
        ) as consumer:
            taken = []
            for message in consumer:
                taken.append(message.body)
                if message.body == b"2":
                    break
            for message in consumer:
                taken.append(message.body)
                if message.body == b"3":
                    break
            taken += [message.body for message in consumer.poll(5000)]
        assert taken == [b"0", b"1", b"2", b"2", b"3", b"3", b"4"]
        assert mq.lag("g", "T") == 0


@pytest.mark.parametrize("when", ["before", "during", "thread ended"])
def test_a_shutdown_waits_for_no_loop_that_its_thread_has_left(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread of a pool lives on; the shutdown waited for it until it gave up."""
    in_hand, gate = threading.Event(), threading.Event()
    with EmbeddedBroker() as mq, ThreadPoolExecutor(1) as pool:
        with blocking.Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            producer.send(Message("T", b"x"))
        consumer = blocking.PushConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
        )
        consumer.start()

        def work() -> None:
            for _ in consumer:
                in_hand.set()
                gate.wait()
                break

        if when == "thread ended":
            gate.set()
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            consumer.shutdown()
        elif when == "before":
            gate.set()
            pool.submit(work).result()
            consumer.shutdown()
        else:
            working = pool.submit(work)
            in_hand.wait()
            with ThreadPoolExecutor(1) as stopper:
                stopping = stopper.submit(consumer.shutdown)
                inside: Any = consumer
                mq.wait_until(lambda: inside._closing)
                gate.set()
                working.result()
                stopping.result()
        assert "listeners still run" not in caplog.text
        assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1
        assert mq.lag("g", "T") == 0


@pytest.mark.parametrize("ends", [True, False])
def test_a_block_is_not_the_end_of_another_threads_message(
    ends: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loop may have failed, and its message was committed."""
    with EmbeddedBroker() as mq, ThreadPoolExecutor(1) as pool:
        with blocking.Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
            producer.send(Message("T", b"x"))

        with blocking.PushConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, consume_from_where=FIRST
        ) as consumer:

            def work() -> None:
                with contextlib.suppress(ZeroDivisionError):
                    for _ in consumer:
                        raise ZeroDivisionError

            if ends:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            else:
                pool.submit(work).result()
        assert "listeners still run" not in caplog.text
        assert len(mq.messages("SCHEDULE_TOPIC_XXXX")) == 1
        assert mq.lag("g", "T") == 0


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
