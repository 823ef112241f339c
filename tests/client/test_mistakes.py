"""What goes wrong in a program's first hour, and what a peer says that cannot be: each is told."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oberth import client
from oberth.client import (
    ClientConfig,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
)
from oberth.client import push_consumer as push_module
from oberth.client.admin.base import object_of
from oberth.client.consume import FAILURES_KNOWN_MAX, ListenerFailures
from oberth.client.messages import (
    KEPT_BODY_RATIO,
    KEPT_BODY_SIZE,
    UNPACKED_ITEM_SIZE,
    as_bytes,
    decode_messages,
)
from oberth.client.pulling import PullResult, PullStatus
from oberth.client.rebalance import allocate_average
from oberth.client.retry import HELD_PULL_S, IDLE_REST_MAX_S, IdlePulls
from oberth.client.route import QUEUES_MAX, check_route, publish_queues, subscribe_queues
from oberth.errors import (
    IllegalNameError,
    MQBrokerError,
    MQClientError,
    OptionError,
    RemoteProtocolError,
)
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.compression import Compression, compress, with_compression
from oberth.formats.message import MAGIC_V1, body_crc, record_size
from oberth.formats.message import MessageExt as StoredMessage
from oberth.formats.sys_flag import INNER_BATCH, NEED_UNWRAP
from oberth.remoting.bodies.base import BodyError
from oberth.remoting.bodies.clients import LockBatchResponseBody
from oberth.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from oberth.remoting.code import ResponseCode
from oberth.testing.embedded_broker import EmbeddedBroker

# ------------------------------------------------------------------------------ the caller's own


@pytest.mark.parametrize(
    ("body", "advice"), [("text", "body.encode()"), ({"a": 1}, "json.dumps"), (None, "json.dumps")]
)
def test_a_body_that_is_not_bytes(body: Any, advice: str) -> None:
    with pytest.raises(MQClientError, match="it must be bytes") as caught:
        Message("T", body)
    assert advice in str(caught.value)


def test_other_buffers_are_bodies() -> None:
    assert Message("T", bytearray(b"x")).body == b"x"
    assert Message("T", memoryview(b"x")).body == b"x"
    assert as_bytes(b"x") == b"x"


async def test_a_body_that_became_text_later(mq: EmbeddedBroker) -> None:
    message: Any = Message("T", b"x")
    message.body = "text"
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises(MQClientError, match="body is str"):
                await send(message)
        with pytest.raises(MQClientError, match="body is str"):
            await producer.send([message])


@pytest.mark.parametrize("wrong", ["T", b"x", ["T"], 7])
async def test_what_is_no_message(mq: EmbeddedBroker, wrong: Any) -> None:
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        with pytest.raises(MQClientError, match=r"it must be Message\(topic, body\)"):
            await producer.send(wrong)


@pytest.mark.parametrize("kind", [PushConsumer, PopConsumer, PullConsumer])
@pytest.mark.parametrize("subscriptions", ["T", ["T"], {"T": None}, {"T": ["A"]}, {1: "*"}])
def test_a_consumer_with_wrong_subscriptions(kind: Any, subscriptions: Any) -> None:
    with pytest.raises(MQClientError, match=r"subscription.*it must be"):
        kind("g", subscriptions)


@pytest.mark.parametrize("name", ["listener", "batch_listener"])
def test_a_listener_that_cannot_be_called(name: str) -> None:
    wrong: Any = {name: "listen"}
    with pytest.raises(MQClientError, match=f"{name} is str; it must be a function"):
        PushConsumer("g", {"T": "*"}, **wrong)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"listener": lambda: None}, "is called with a message and takes"),
        ({"listener": lambda messages, context: None}, "is called with a message and takes"),
        ({"batch_listener": lambda messages: None}, "a list of messages and a context and takes"),
        ({"message_model": "BROADCASTING"}, "it must be one of MessageModel.BROADCASTING"),
        ({"consume_from_where": "first"}, "it must be one of ConsumeFromWhere"),
        ({"allocate_strategy": "circle"}, "oberth.client.rebalance"),
    ],
)
def test_a_consumer_with_wrong_arguments(named: dict[str, Any], said: str) -> None:
    with pytest.raises(MQClientError, match=said):
        PushConsumer("g", {"T": "*"}, **named)


def test_listeners_of_every_kind_are_taken() -> None:
    class Listener:
        async def __call__(self, message: MessageExt, more: int = 0) -> None:
            """Nothing."""

    kinds: list[Any] = [print, [].append, Listener(), lambda *found: None]
    for listener in kinds:
        PushConsumer("g", {"T": "*"}, listener=listener)


@pytest.mark.parametrize(
    "address", [9876, ["127.0.0.1:9876"], "a:9876,b:9876", "http://127.0.0.1:9876", "a:1 b:2"]
)
def test_name_servers_that_are_no_addresses(address: Any) -> None:
    with pytest.raises(OptionError, match=r"it must be .*host:port, or several of them with ';'"):
        Producer("g", namesrv_addr=address)


@pytest.mark.parametrize("given", [{"access_key": "a"}, {"secret_key": "s"}])
def test_half_a_pair_of_keys(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(OptionError, match=f"{name} is given without .*; a signature needs both"):
        client.ClientConfig(**given)


@pytest.mark.parametrize("named", [{"tags": ["a"]}, {"keys": 5}, {"keys": [1]}, {"keys": b"k"}])
def test_tags_and_keys_that_are_no_text(named: dict[str, Any]) -> None:
    with pytest.raises(MQClientError, match=r"(tags|keys) is .*; it must be"):
        Message("T", b"x", **named)


async def test_a_queue_that_is_none(mq: EmbeddedBroker) -> None:
    wrong: Any = "T"
    async with Producer("g", config=mq.client_config) as producer:
        for send in (producer.send, producer.send_async, producer.send_oneway):
            with pytest.raises(MQClientError, match="mq is 'T'; it must be a MessageQueue"):
                await send(Message("T", b"x"), mq=wrong)


def test_everything_is_imported_by_a_star() -> None:
    found: dict[str, Any] = {}
    exec("from oberth.client import *", found)
    assert {"Message", "Producer", "PushConsumer", "ClientConfig"} <= found.keys()
    assert all(name in found for name in client.__all__)


async def test_a_plain_listener_that_gives_a_coroutine(
    mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody would run it: what it should have worked on is not done, but comes again."""

    async def handle(message: MessageExt) -> None:
        raise AssertionError(message)

    async with PushConsumer(
        "g", {"T": "*"}, listener=lambda message: handle(message), max_reconsume_times=0,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, config=mq.client_config,
    ):  # fmt: skip
        async with Producer("p", config=mq.client_config) as producer:
            await producer.send(Message("T", b"x"))
        await mq.wait_until(lambda: len(mq.dead_letters("g")) == 1)
    assert "make the listener itself `async def`" in caplog.text


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PopConsumer, PullConsumer])
def test_a_group_that_is_no_text(kind: Any) -> None:
    with pytest.raises(IllegalNameError, match="group is list; it must be text"):
        kind(["g"])


async def test_a_brokers_address_instead_of_a_name_servers(mq: EmbeddedBroker) -> None:
    wanted = "seems to be no name server: namesrv_addr wants the address of a name server"
    async with Producer("g", namesrv_addr=mq.address) as producer:
        with pytest.raises(MQClientError, match=wanted):
            await producer.send(Message("T", b"x"))
    consumer = PushConsumer("g", {"T": "*"}, namesrv_addr=mq.address, listener=print)
    with pytest.raises(MQClientError, match=wanted):
        await consumer.start()
    await consumer.shutdown()


def test_a_producer_that_is_never_shut_down_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program() -> None:
        await Producer("forgotten", namesrv_addr="127.0.0.1:1").start()

    async def tidy() -> None:
        async with Producer("tidy", namesrv_addr="127.0.0.1:1"):
            pass

    with caplog.at_level(logging.WARNING, "oberth.client"):
        asyncio.run(tidy())
        asyncio.run(program())
    gc.collect()
    (record,) = [each for each in caplog.records if "never shut down" in each.message]
    assert "producer forgotten was never shut down" in record.message
    assert "async with" in record.message


def test_a_blocking_producer_that_is_never_shut_down_is_told() -> None:
    program = (
        "from oberth.client.blocking import Producer\n"
        "with Producer('tidy', namesrv_addr='127.0.0.1:1'): pass\n"
        "Producer('forgotten', namesrv_addr='127.0.0.1:1').start()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    [line] = [each for each in done.stderr.splitlines() if "never shut down" in each]
    assert "producer forgotten was never shut down" in line
    assert "use `with`" in line


def test_a_blocking_producer_in_a_forked_child_is_told() -> None:
    program = (
        "import os\n"
        "from oberth.client import Message\n"
        "from oberth.client.blocking import Producer\n"
        "with Producer('g', namesrv_addr='127.0.0.1:1') as producer:\n"
        "    if os.fork():\n"
        "        os.wait()\n"
        "    else:\n"
        "        try:\n"
        "            producer.send(Message('T', b'x'))\n"
        "        except Exception as error:\n"
        "            print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
    )
    wanted = "this Producer was made before the process was forked: make one in the child\n"
    assert done.stdout == wanted


async def test_sends_count_from_when_the_loop_could_work(mq: EmbeddedBroker) -> None:
    """A program that sends thousands in a loop in debug mode holds the loop for seconds."""
    async with Producer("g", namesrv_addr=mq.namesrv_addr, send_msg_timeout_ms=2000) as producer:
        await producer.send(Message("T", b"first"))
        futures = [await producer.send_async(Message("T", b"%d" % number)) for number in range(50)]
        time.sleep(2.5)  # noqa: ASYNC251 - as a slow program does
        results = await asyncio.gather(*futures)
    assert len({(each.message_queue, each.queue_offset) for each in results}) == 50


# ------------------------------------------------------------------------------- a peer's numbers


def route(read: int, write: int, order: str | None = None, brokers: int = 1) -> TopicRouteData:
    names = [f"b{number}" for number in range(brokers)]
    return TopicRouteData(
        broker_datas=[BrokerData(broker_name=name, broker_addrs={0: "a:1"}) for name in names],
        queue_datas=[
            QueueData(broker_name=name, perm=6, read_queue_nums=read, write_queue_nums=write)
            for name in names
        ],
        order_topic_conf=order,
    )


def static_route(queues: int, scopes: int = 1) -> TopicRouteData:
    mappings = {
        f"b{n}": {"bname": f"b{n}", "scope": f"s{n}", "epoch": 1, "totalQueues": queues}
        for n in range(scopes)
    }
    return TopicRouteData(topic_queue_mapping_by_broker=mappings)


@pytest.mark.parametrize(
    "wrong",
    [
        route(2**31, 4),
        route(4, 2**31),
        route(-1, 4),
        route(4, -1),
        route(70_000, 4, brokers=2),
        route(1, 1, brokers=5_001),
        TopicRouteData(
            broker_datas=[
                BrokerData(broker_name="b", broker_addrs=dict.fromkeys(range(10_001), "a:1"))
            ]
        ),
        route(4, 4, "b0:2147483648"),
        route(4, 4, "b0:" + "9" * 5000),
        route(4, 4, ";".join(["b0:65536"] * 3)),
        static_route(65_537),
        static_route(2**31 - 1),
        static_route(4, scopes=20_000),
    ],
)
def test_routes_of_too_many_queues(wrong: TopicRouteData) -> None:
    with pytest.raises(RemoteProtocolError, match=r"T: .*allowed"):
        check_route("T", wrong)


def test_routes_as_large_as_brokers_make_them() -> None:
    for allowed in (
        route(65_536, 65_536, brokers=2),
        route(0, 0),
        route(1, 1, brokers=5_000),
        static_route(65_536),
        static_route(4, scopes=16_384),
        route(4, 4, "b0:4;b1;:;b2:x;b3:٣"),  # what is no number is left out, as in Java
    ):
        check_route("T", allowed)
    assert QUEUES_MAX == 2 * 65_536
    assert len(publish_queues("T", route(4, 4, "b0:2;b1:1"))) == 3
    assert len(subscribe_queues("T", route(4, 4))) == 4


async def test_a_name_server_with_such_a_route(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicRouteData, "decode", lambda *_: route(2**31, 2**31))
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        with pytest.raises(RemoteProtocolError, match="2147483648 read queues on 1 brokers"):
            await producer.send(Message("T", b"x"))


async def test_a_broker_and_such_a_route(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says whose the queues are by its own topics then."""

    class Routes:
        @staticmethod
        def decode(data: bytes, size_max: int = 0) -> TopicRouteData:
            return route(2**31, 2**31)

    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
    monkeypatch.setattr("oberth.broker.processors.assignment.TopicRouteData", Routes)
    async with PushConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, listener=print, client_rebalance=False
    ) as consumer:
        await mq.wait_until(lambda: len([q for q in consumer.assigned if q.topic == "T"]) == 4)
    assert "2147483648 read queues on 1 brokers" in caplog.text


async def test_an_address_that_can_be_none_ends_no_heartbeats(mq: EmbeddedBroker) -> None:
    """Any broker may register one; a resolver raises a UnicodeError or ValueError of it."""
    async with Producer("g", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
        instance = producer._instance
        assert instance is not None
        for number, address in enumerate(
            ("a..b:10911", "a\0b:10911", "nowhere", "x:" + "1" * 5000)
        ):
            instance.brokers[f"elsewhere-{number}"] = {0: address}
        await instance.send_heartbeats()


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'"x"', b"{}}"])
def test_an_answer_that_is_no_object(answer: bytes) -> None:
    with pytest.raises(BodyError, match="retention: "):
        object_of(answer, "retention")


def test_a_delay_that_is_no_number() -> None:
    message = Message("T", b"x", delay_time_level=3)
    assert message.delay_time_level == 3
    message.properties["DELAY"] = "9" * 5000
    assert message.delay_time_level == 0


HOST = b"\x7f\0\0\1\0\0\0\1"


def stored(body: bytes, sys_flag: int) -> bytes:
    return StoredMessage(
        topic="T", queue_id=0, queue_offset=0, commit_log_offset=0,
        record_size=record_size(len(body), 1, 0, sys_flag, MAGIC_V1), body_crc=body_crc(body),
        magic=MAGIC_V1, flag=0, sys_flag=sys_flag, born_timestamp=1, born_host=HOST,
        store_timestamp=1, store_host=HOST, reconsume_times=0,
        prepared_transaction_offset=0, body=body, properties_raw=b"",
    ).encode()  # fmt: skip


def test_bodies_that_grow_a_thousandfold_are_not_kept() -> None:
    flag = with_compression(0, Compression.ZLIB)
    large = bytes(2 * KEPT_BODY_SIZE)
    packed = compress(large, Compression.ZLIB)
    assert len(packed) * KEPT_BODY_RATIO < len(large)
    small = compress(b"x" * 1000, Compression.ZLIB)
    first, second = decode_messages(stored(packed, flag) + stored(small, flag))
    assert first.body == large
    assert first._body is None
    assert first.body_error is None
    assert second.body is second.body


def test_what_the_inner_batches_of_an_answer_become_has_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each became up to 64 MiB: the 250 of one answer 16 GiB."""
    item = encode_batch([BatchItem(0, bytes(100_000), b"")])
    flag = with_compression(INNER_BATCH | NEED_UNWRAP, Compression.ZLIB)
    packed = stored(compress(item, Compression.ZLIB), flag)
    monkeypatch.setattr("oberth.client.messages.UNPACKED_MAX", 3 * (len(item) + UNPACKED_ITEM_SIZE))
    found = decode_messages(packed * 5)
    assert [each.body_error is None for each in found] == [True, True, True, False, False]
    assert [each.body for each in found[:3]] == [bytes(100_000)] * 3
    assert all("inner batch" in str(each.body_error) for each in found[3:])
    # Very many messages of a few bytes each take more than their bodies.
    few = stored(encode_batch([BatchItem(0, b"", b"")] * 200), INNER_BATCH | NEED_UNWRAP)
    found = decode_messages(few * 3)
    assert sum(each.body_error is None for each in found) == 200


# -------------------------------------------------------------------------------- endless answers


def test_rests_grow_while_nothing_comes() -> None:
    idle = IdlePulls()
    rests = [idle.rest_after(0.0, got_on=False) for _ in range(12)]
    assert rests[0] == 0, "one such answer is nothing"
    assert rests == sorted(rests)
    assert rests[-1] == IDLE_REST_MAX_S
    assert idle.rest_after(HELD_PULL_S, got_on=False) == 0, "the broker has waited"
    assert idle.rest_after(0.0, got_on=False) == 0
    assert idle.rest_after(0.0, got_on=False) > 0
    assert idle.rest_after(0.0, got_on=True) == 0


@pytest.mark.parametrize(
    "status", [PullStatus.NO_NEW_MSG, PullStatus.NO_MATCHED_MSG, PullStatus.OFFSET_ILLEGAL]
)
@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
async def test_a_broker_that_answers_nothing_at_once(
    mq: EmbeddedBroker,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: PullStatus,
    kind: Any,
) -> None:
    """19, 20 and 21 without an end: asked again later each time, also when the queue restarts."""
    from oberth.client import pull_consumer

    rests: list[float] = []
    enough = asyncio.Event()

    async def answer(*arguments: Any, **options: Any) -> PullResult:
        return PullResult(status, 0, 0, 0)

    rest_after = IdlePulls.rest_after

    def noted(self: IdlePulls, took_s: float, *, got_on: bool) -> float:
        rests.append(rest_after(self, took_s, got_on=got_on))
        if len(rests) == 6:
            enough.set()
        return rests[-1]

    monkeypatch.setattr(push_module, "pull", answer)
    monkeypatch.setattr(pull_consumer, "pull", answer)
    monkeypatch.setattr(IdlePulls, "rest_after", noted)
    # Broadcasting: no retry topic, whose queue would be pulled too.
    more: dict[str, Any] = {"message_model": MessageModel.BROADCASTING}
    if kind is PushConsumer:
        more["listener"] = print
    async with Producer("p", namesrv_addr=mq.namesrv_addr, default_topic_queue_nums=1) as producer:
        await producer.send(Message("T", b"x"))
    async with kind(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, offset_store_dir=str(tmp_path), **more
    ):
        await enough.wait()
    assert rests[:6] == [0.0, 0.01, 0.02, 0.04, 0.08, 0.16]


def test_a_failing_listener_shows_its_traceback_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = ListenerFailures()

    def fail(text: str) -> Exception:
        try:
            raise ValueError(text)
        except ValueError as error:
            return error

    with caplog.at_level(logging.WARNING, "oberth.client"):
        for number in range(600):
            failures.note("g", f"message {number}", fail("broken\nand long"), number / 100)
        failures.note("g", "other", KeyError("x"), 6.0)
        failures.note("g", "later", fail("broken"), 61.0)
    full = [record for record in caplog.records if record.exc_info]
    assert [record.message for record in full] == [
        "g: the listener failed for message 0",
        "g: the listener failed for other",
        "g: the listener failed for later",
    ]
    assert caplog.records[1].message == "g: the listener failed for message 1: ValueError: broken"
    assert len(caplog.records) == 602
    for number in range(2 * FAILURES_KNOWN_MAX):
        failures.note("g", "m", type(f"E{number}", (Exception,), {})(), 0.0)
    assert len(failures._shown) == FAILURES_KNOWN_MAX


async def test_messages_of_a_failing_listener(
    mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    seen = asyncio.Event()
    count = 0

    async def listener(message: MessageExt) -> None:
        nonlocal count
        count += 1
        if count == 20:
            seen.set()
        raise RuntimeError("no luck")

    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for _ in range(20):
            await producer.send(Message("T", b"x"))
    with caplog.at_level(logging.WARNING, "oberth.client"):
        async with PushConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, listener=listener,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ):  # fmt: skip
            await seen.wait()
    failed = [each for each in caplog.records if "listener failed" in each.message]
    assert len(failed) >= 19
    assert sum(each.exc_info is not None for each in failed) == 1


class EndsTestsError(BaseException):
    """No Exception, like what pytest.fail() raises."""


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, EndsTestsError])
@pytest.mark.parametrize("is_plain", [True, False])
async def test_what_a_listener_raises_is_a_failure_whatever_it_is(
    mq: EmbeddedBroker,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
    is_plain: bool,
) -> None:
    """Before, the thread or worker was lost, and the message was neither done nor tried again."""
    if kind is SystemExit and not is_plain:
        pytest.skip("asyncio ends the loop then")
    calls: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def fail_at_first(message: MessageExt) -> None:
        loop.call_soon_threadsafe(calls.put_nowait, message.reconsume_times)
        if not message.reconsume_times:
            raise kind("broken")

    async def listener(message: MessageExt) -> None:
        fail_at_first(message)

    async with (
        Producer("p", namesrv_addr=mq.namesrv_addr) as producer,
        PushConsumer(
            "g",
            {"T": "*"},
            namesrv_addr=mq.namesrv_addr,
            listener=fail_at_first if is_plain else listener,
            consume_thread_max=1,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ),
    ):
        await producer.send(Message("T", b"x"))
        assert await calls.get() == 0
        await mq.wait_until(
            lambda: any("listener failed" in each.message for each in caplog.records)
        )

        def is_called_again() -> bool:
            mq.advance(seconds=30)
            return not calls.empty()

        await mq.wait_until(is_called_again)
        assert await calls.get() == 1


class Strategy:
    """A program's own, which fails at first."""

    name = "MINE"

    def __init__(self) -> None:
        self.calls = 0

    def allocate(self, group: str, *arguments: Any) -> list[MessageQueue]:
        self.calls += 1
        if self.calls <= 2:
            raise KeyError("room")
        return allocate_average(*arguments)


async def test_a_strategy_that_raises_is_asked_again(
    mq: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that assigns queues ended, for all groups of the instance and for good."""
    seen = asyncio.Event()

    async def listener(message: MessageExt) -> None:
        seen.set()

    config = ClientConfig(namesrv_addr=mq.namesrv_addr, rebalance_interval_ms=20)
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
    async with PushConsumer(
        "g", {"T": "*"}, config=config, listener=listener, allocate_strategy=Strategy(),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ):  # fmt: skip
        await seen.wait()
    assert "the queues of group g could not be assigned" in caplog.text


async def test_an_answer_to_a_lock_that_is_none_ends_no_renewals(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that renews them ended, and the queues stood still for ever."""
    renewals: asyncio.Queue[bool] = asyncio.Queue()
    renew, decode = PushConsumer.renew_locks, LockBatchResponseBody.decode

    async def noted(self: PushConsumer) -> None:
        await renew(self)
        renewals.put_nowait(all(each.process_queue.locked for each in self.assigned.values()))
        raise KeyError("a mistake")

    def answer(data: bytes, *more: Any) -> LockBatchResponseBody:
        return decode(b"{" if is_wrong else data, *more)

    is_wrong = False
    monkeypatch.setattr(push_module, "LOCK_INTERVAL_S", 0.01)
    monkeypatch.setattr(PushConsumer, "renew_locks", noted)
    monkeypatch.setattr("oberth.client.group_consumer.LockBatchResponseBody.decode", answer)
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
    async with PushConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, listener=print, orderly=True
    ) as consumer:
        await mq.wait_until(lambda: len(consumer.assigned) > 0)
        is_wrong = True
        while await renewals.get():
            pass
        is_wrong = False
        while not await renewals.get():
            pass
    assert "gave no locks of queues" in caplog.text


async def test_a_send_that_is_tried_again_always_has_an_end(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a name server or a broker answered could leave who waits for it waiting for ever."""

    async def fail(self: Producer, topic: str, *_: object) -> None:
        raise BodyError("a route that is no JSON")

    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
        mq.faults.disconnect()
        with monkeypatch.context() as patched:
            patched.setattr(Producer, "_look_at_route", fail)
            with pytest.raises(BodyError):
                await asyncio.wait_for(await producer.send_async(Message("T", b"x")), 100)
        await producer.send(Message("T", b"x"))
        mq.faults.refuse(response_code=ResponseCode.GO_AWAY)
        future = await producer.send_async(Message("T", b"x"))
        instance, producer._instance = producer._instance, None  # as after shutdown
        with pytest.raises(MQBrokerError):
            await asyncio.wait_for(future, 100)
        producer._instance = instance


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_that_cannot_be_given_back_is_consumed_again(
    mq: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """Its queue stood still for ever after an answer that was none."""
    calls = 0
    again = asyncio.Event()

    async def listener(message: MessageExt) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            again.set()
        else:
            raise RuntimeError("once")

    async def fail(*arguments: Any, **named: Any) -> None:
        raise BodyError("a route that is no JSON")

    monkeypatch.setattr(push_module, "SEND_BACK_RETRY_S", 0.0)
    monkeypatch.setattr(push_module, "send_message_back", fail)
    monkeypatch.setattr(push_module, "send_to_retry_topic", fail)
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        await producer.send(Message("T", b"x"))
    async with PushConsumer(
        "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, listener=listener, orderly=orderly,
        max_reconsume_times=0, suspend_current_queue_time_ms=10,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    ):  # fmt: skip
        await asyncio.wait_for(again.wait(), 100)
    assert mq.lag("g", "T") == 0


async def test_offsets_are_not_committed_after_shutdown(mq: EmbeddedBroker) -> None:
    async with (
        Producer("p", namesrv_addr=mq.namesrv_addr) as producer,
        PullConsumer(
            "g", {"T": "*"}, namesrv_addr=mq.namesrv_addr, auto_commit=False,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        ) as consumer,
    ):  # fmt: skip
        await producer.send(Message("T", b"x"))
        while not await consumer.poll():
            pass
    with pytest.raises(MQClientError, match="not started, or shut down"):
        await consumer.commit()


async def test_what_is_no_recall_handle(mq: EmbeddedBroker) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr) as producer:
        for wrong in ("abc", "", "\u00e9", "djEgVCBi"):
            with pytest.raises(MQClientError, match="is no recall handle: the result of"):
                await producer.recall_message("T", wrong)


async def test_what_is_too_large_names_the_setting(mq: EmbeddedBroker) -> None:
    async with Producer("p", namesrv_addr=mq.namesrv_addr, max_message_size=1000) as producer:
        with pytest.raises(MQClientError, match="1001 bytes, and the producer's max_message_size"):
            await producer.send(Message("T", bytes(1001)))
        with pytest.raises(MQClientError, match="send_batch makes as many batches"):
            await producer.send([Message("T", bytes(600)), Message("T", bytes(600))])


def test_the_end_of_a_program_ends_the_loops_thread_and_what_is_called_later_still_runs() -> None:
    program = (
        "import asyncio, atexit, threading\n"
        "def late():\n"
        "    names = [each.name for each in threading.enumerate()]\n"
        "    print('oberth-loop' in names, LOOP.call(lambda: asyncio.sleep(0, 'late')))\n"
        "atexit.register(late)\n"  # before the first call, so it runs after the loop's end
        "from oberth.client.blocking_face import LOOP\n"
        "print(LOOP.call(lambda: asyncio.sleep(0, 'first')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout.split(), done.stderr) == (["first", "False", "late"], "")
