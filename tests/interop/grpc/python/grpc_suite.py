"""Scenarios of the official gRPC client for Python: ``grpc_suite.py HOST:PORT RUN PARALLEL NAME…``.

Topic ``RUN_NAME`` and group ``RUN_NAME_G`` exist already. One line of JSON per scenario: scenario,
ok, ms, detail, counts, observed. The same checks as in the suites of the other languages. Runs in
an interpreter of its own that has the client and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

TAGS = ("A", "B", "C")
SQL = "TAGS IN ('A','C') AND i BETWEEN 0 AND 1000"


def check(holds: bool, what: str) -> None:
    """Fail the scenario with a sentence."""
    if not holds:
        raise AssertionError(what)


def same(expected: object, found: object, what: str) -> None:
    """Compare."""
    check(expected == found, f"{what}: expected {expected!r}, found {found!r}")


def error_of(call: Callable[[], object]) -> str:
    """The kind of error that a call ends with."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "no error"


class Sink(MessageListener):  # type: ignore[misc]
    """What a push consumer was given, in order of arrival."""

    def __init__(self, answer: Callable[[Message], ConsumeResult] | None = None) -> None:
        self._answer = answer or (lambda message: ConsumeResult.SUCCESS)
        self._changed = threading.Condition()
        self._messages: list[Message] = []
        self._last = time.monotonic()
        self.first: dict[str, float] = {}

    def consume(self, message: Message) -> ConsumeResult:
        """Keep it, and answer."""
        answer = self._answer(message)
        if answer is None:
            return ConsumeResult.FAILURE  # not counted
        with self._changed:
            self._messages.append(message)
            self.first.setdefault(message.properties["i"], time.time())
            self._last = time.monotonic()
            self._changed.notify_all()
        return answer

    @property
    def messages(self) -> list[Message]:
        """All so far."""
        with self._changed:
            return list(self._messages)

    def wait(self, seconds: float, what: str, enough: Callable[[list[Message]], bool]) -> None:
        """Until there is enough."""
        with self._changed:
            if not self._changed.wait_for(lambda: enough(self._messages), seconds):
                have = sorted(ids(self._messages))
                raise AssertionError(f"not within {seconds} s: {what}; arrived {have}")

    def wait_ids(self, seconds: float, wanted: Iterable[str]) -> None:
        """Until these have come."""
        names = set(wanted)
        self.wait(seconds, f"{sorted(names)}", lambda messages: ids(messages) >= names)

    def wait_quiet(self, seconds: float) -> None:
        """Until nothing has come for so long."""
        while (left := self._last + seconds - time.monotonic()) > 0:
            time.sleep(left)


def ids(messages: Iterable[Message]) -> set[str]:
    """Their numbers."""
    return {message.properties["i"] for message in messages}


def numbers(end: int, which: Callable[[int], bool] = lambda i: True) -> set[str]:
    """Numbers below end as text."""
    return {str(i) for i in range(end) if which(i)}


class Case:
    """One run of one scenario: its topic and group, its clients, what it saw."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self.topic = topic
        self.group = f"{topic}_G"
        self.counts: dict[str, Any] = {}
        self.observed: dict[str, str] = {}
        self.added: set[str] = set()
        self.configuration = ClientConfiguration(endpoint, Credentials(), request_timeout=10)
        self._clients: list[Any] = []

    def observe(self, what: str, value: object) -> None:
        """What must be the same on every broker."""
        self.observed[what] = str(value)

    def exactly(self, number: int, messages: list[Message]) -> None:
        """So many different ones and no others; what came twice is counted.

        A machine that stands still for a moment allows it.
        """
        same(number, len(ids(messages)), "messages")
        if len(messages) > number:
            self.counts["twice"] = len(messages) - number

    def started(self, client: Any) -> Any:
        """Start a client that close() shuts down."""
        client.startup()
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Shut down what was started."""
        for client in reversed(self._clients):
            try:
                client.shutdown()
            except Exception as error:
                print("closing:", error, file=sys.stderr)

    def producer(self, checker: TransactionChecker | None = None) -> Producer:
        """A producer for the topic."""
        return self.started(Producer(self.configuration, (self.topic,), checker))

    def push(self, sink: Sink, expression: FilterExpression | None = None) -> Sink:
        """A push consumer that fills the sink."""
        subscription = {self.topic: expression or FilterExpression()}
        self.started(PushConsumer(self.configuration, self.group, sink, subscription))
        return sink

    def simple(self, expression: FilterExpression | None = None, wait: int = 5) -> SimpleConsumer:
        """A simple consumer."""
        subscription = {self.topic: expression or FilterExpression()}
        return self.started(
            SimpleConsumer(self.configuration, self.group, subscription, await_duration=wait)
        )

    def message(self, i: int, tag: str = "A") -> Message:
        """The i-th message."""
        message = Message()
        message.topic = self.topic
        message.body = f"body {i} \u00fc\u4e2d".encode()
        message.tag = tag
        message.keys = f"k{i}"
        message.add_property("i", str(i))
        return message

    def check_contents(self, message: Message) -> None:
        """Everything that was given to message() came back."""
        i = int(message.properties["i"])
        same(f"body {i} \u00fc\u4e2d".encode(), message.body, "body")
        same(self.topic, message.topic, "topic")
        same({f"k{i}"}, set(message.keys), "keys")
        check(not message.corrupted, f"checksum of {i}")
        check(bool(message.born_host) and message.born_timestamp > 0, "no birth")
        self.added.update(set(message.properties) - {"i"})


def receive(consumer: SimpleConsumer, number: int, invisible: int) -> list[Message]:
    """What is there; the proxy may not know a consumer yet that has just started."""
    try:
        return consumer.receive(number, invisible) or []
    except Exception as error:
        if "settings" not in str(error):
            raise
        time.sleep(0.1)
        return []


def drain(consumer: SimpleConsumer, wanted: int, seconds: float) -> list[Message]:
    """Receive and acknowledge until so many different messages have come."""
    found: list[Message] = []
    deadline = time.monotonic() + seconds
    while len(ids(found)) < wanted:
        check(time.monotonic() < deadline, f"{len(ids(found))} of {wanted} after {seconds} s")
        for message in receive(consumer, 16, 20):
            found.append(message)
            consumer.ack(message)
    return found


def one(consumer: SimpleConsumer, seconds: float, invisible: int) -> Message:
    """The next message, not acknowledged."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = receive(consumer, 1, invisible)
        if found:
            return found[0]
    raise AssertionError(f"nothing received within {seconds} s")


def send_normal(c: Case) -> None:
    """Contents, ids, sync and async."""
    producer = c.producer()
    sent = {str(i): producer.send(c.message(i)).message_id for i in range(12)}
    flying = {str(i): producer.send_async(c.message(i)) for i in range(12, 24)}
    sent.update({i: future.result(30).message_id for i, future in flying.items()})
    large = Message()
    large.topic, large.body = c.topic, os.urandom(300_000)
    large.add_property("i", "large")
    producer.send(large)
    for message in drain(c.simple(), 25, 60):
        if message.properties["i"] == "large":
            check(message.body == large.body, "the large body came back changed")
            continue
        c.check_contents(message)
        same("A", message.tag, "tag")
        same(sent[message.properties["i"]], message.message_id, "message id")
        c.observe("delivery attempt", message.delivery_attempt)


def push(c: Case) -> None:
    """All of it arrives once."""
    sink = c.push(Sink())
    producer = c.producer()
    for i in range(60):
        producer.send(c.message(i))
    sink.wait_ids(45, numbers(60))
    sink.wait_quiet(1)
    c.exactly(60, sink.messages)
    for message in sink.messages:
        c.check_contents(message)


def push_retry(c: Case) -> None:
    """What fails comes again, as often as the group allows."""

    def answer(message: Message) -> ConsumeResult:
        poison = message.properties["i"] == "0"
        failed = poison or message.delivery_attempt == 1
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS

    sink = c.push(Sink(answer))
    producer = c.producer()
    for i in range(4):
        producer.send(c.message(i))
    sink.wait(80, "nine attempts", lambda messages: len(messages) >= 9)
    sink.wait_quiet(8)
    attempts: dict[str, list[int]] = {}
    for message in sink.messages:
        c.check_contents(message)
        seen = attempts.setdefault(message.properties["i"], [])
        if message.delivery_attempt not in seen:
            seen.append(message.delivery_attempt)
    same([1, 2, 3], attempts.pop("0"), "attempts of what always fails")
    for number, found in attempts.items():
        same([1, 2], found, f"attempts of {number}")


def _send_tagged(c: Case) -> None:
    producer = c.producer()
    for i in range(30):
        producer.send(c.message(i, TAGS[i % 3]))


def _push_filtered(c: Case, expression: FilterExpression) -> None:
    sink = c.push(Sink(), expression)
    _send_tagged(c)
    sink.wait_ids(45, numbers(30, lambda i: i % 3 != 1))
    sink.wait_quiet(1)
    c.exactly(20, sink.messages)
    for message in sink.messages:
        c.check_contents(message)


def _simple_filtered(c: Case, expression: FilterExpression) -> None:
    consumer = c.simple(expression)
    _send_tagged(c)
    found = drain(consumer, 20, 60)
    same(numbers(30, lambda i: i % 3 != 1), ids(found), "messages")
    for message in found:
        c.check_contents(message)


def _send_groups(c: Case, groups: int, each: int) -> None:
    producer = c.producer()
    for i in range(groups * each):
        message = c.message(i)
        message.message_group = f"g{i % groups}"
        producer.send(message)


def _check_order(messages: list[Message], groups: int) -> None:
    last: dict[str, int] = {}
    seen: set[int] = set()
    for message in messages:
        i = int(message.properties["i"])
        if i in seen:
            continue
        seen.add(i)
        same(f"g{i % groups}", message.message_group, "message group")
        check(last.get(message.message_group, -1) < i, f"{i} after {last}")
        last[message.message_group] = i


def push_fifo(c: Case) -> None:
    """Each message group in its order."""
    sink = c.push(Sink())
    _send_groups(c, 5, 8)
    sink.wait_ids(60, numbers(40))
    sink.wait_quiet(1)
    c.exactly(40, sink.messages)
    _check_order(sink.messages, 5)
    for message in sink.messages:
        c.check_contents(message)


def push_fifo_retry(c: Case) -> None:
    """A failure holds its message group up, and the order stays."""
    failed: set[str] = set()
    lock = threading.Lock()

    def answer(message: Message) -> Any:
        number = message.properties["i"]
        with lock:
            if int(number) < 4 and number not in failed:
                failed.add(number)
                return None
        return ConsumeResult.SUCCESS

    sink = c.push(Sink(answer))
    _send_groups(c, 2, 6)
    sink.wait_ids(80, numbers(12))
    sink.wait_quiet(1)
    c.exactly(12, sink.messages)
    _check_order(sink.messages, 2)


def simple(c: Case) -> None:
    """Receive and acknowledge; what was not acknowledged comes again, and nothing else."""
    consumer = c.simple()
    producer = c.producer()
    for i in range(20):
        producer.send(c.message(i))
    acknowledged: set[str] = set()
    left: set[str] = set()
    deadline = time.monotonic() + 90
    while len(acknowledged) + len(left) < 20:
        check(time.monotonic() < deadline, f"only {acknowledged} and {left} came")
        for message in receive(consumer, 8, 10):
            c.check_contents(message)
            if int(message.properties["i"]) % 4:
                consumer.ack(message)
                acknowledged.add(message.properties["i"])
            else:
                left.add(message.properties["i"])
    again = drain(consumer, 5, 90)
    same(left, ids(again), "came again")
    for message in again:
        c.check_contents(message)
        check(message.delivery_attempt > 1, f"attempt {message.delivery_attempt}")


def simple_invisible(c: Case) -> None:
    """A shorter and a longer time than it was received for."""
    consumer = c.simple()
    c.producer().send(c.message(0))
    first = one(consumer, 90, 60)
    before = time.monotonic()
    consumer.change_invisible_duration(first, 3)
    second = one(consumer, 90, 10)
    took = time.monotonic() - before
    c.counts["came after s"] = round(took)
    check(2 <= took < 90, f"made visible after 3 s, came after {took:.1f}")
    same("0", second.properties["i"], "message")
    c.observe("attempt", second.delivery_attempt)
    consumer.change_invisible_duration(second, 40)
    until = time.monotonic() + 15
    while time.monotonic() < until:
        check(not consumer.receive(1, 10), "it came although it was kept invisible")
    consumer.ack(second)


def simple_fifo(c: Case) -> None:
    """One at a time in a message group."""
    consumer = c.simple()
    producer = c.producer()
    for i in range(3):
        message = c.message(i)
        message.message_group = "g"
        producer.send(message)
    message = one(consumer, 90, 10)
    same("0", message.properties["i"], "first")
    check(not consumer.receive(1, 10), "the second came before the first was acknowledged")
    consumer.ack(message)
    same("1", one(consumer, 90, 10).properties["i"], "second")
    message = one(consumer, 90, 10)
    same("1", message.properties["i"], "second, not acknowledged in time")
    c.observe("attempt", message.delivery_attempt)
    consumer.ack(message)
    message = one(consumer, 90, 10)
    same("2", message.properties["i"], "third")
    consumer.ack(message)


def delay(c: Case) -> None:
    """At its time."""
    sink = c.push(Sink())
    producer = c.producer()
    due: dict[str, int] = {}
    for i in range(8):
        message = c.message(i)
        due[str(i)] = int(time.time() * 1000) + 3000 + 500 * i
        message.delivery_timestamp = due[str(i)] // 1000  # this client takes seconds
        producer.send(message)
    sink.wait_ids(45, due)
    late = {i: at * 1000 - due[i] for i, at in sink.first.items()}
    c.counts["late ms"] = round(max(late.values()))
    check(min(late.values()) > -2000 and max(late.values()) < 6000, f"late by {late}")
    for message in sink.messages:
        c.check_contents(message)


def recall(c: Case) -> None:
    """Taken back before its time."""
    sink = c.push(Sink())
    producer = c.producer()
    at = int(time.time()) + 8
    receipts = []
    for i in range(6):
        message = c.message(i)
        message.delivery_timestamp = at
        receipts.append(producer.send(message))
    for receipt in receipts[::2]:
        found = producer.recall_message(c.topic, receipt.recall_handle)
        same(receipt.message_id, getattr(found, "message_id", found), "id of the recalled message")
    c.observe("not a handle", error_of(lambda: producer.recall_message(c.topic, "AAAA")))
    sink.wait_ids(45, {"1", "3", "5"})
    sink.wait_quiet(3)
    c.exactly(3, sink.messages)
    late = receipts[1].recall_handle
    c.observe("after delivery", error_of(lambda: producer.recall_message(c.topic, late)))


class Checker(TransactionChecker):  # type: ignore[misc]
    """Answers checks by the message's number."""

    def __init__(self, answer: Callable[[Message], TransactionResolution]) -> None:
        self._answer = answer

    def check(self, message: Message) -> TransactionResolution:
        """What becomes of it."""
        return self._answer(message)


def transaction(c: Case) -> None:
    """Commit and roll back."""
    sink = c.push(Sink())
    producer = c.producer(Checker(lambda message: TransactionResolution.UNKNOWN))
    for i in range(10):
        begun = producer.begin_transaction()
        producer.send(c.message(i), begun)
        if i % 2 == 0:
            begun.commit()
        else:
            begun.rollback()
    sink.wait_ids(45, numbers(10, lambda i: i % 2 == 0))
    sink.wait_quiet(3)
    c.exactly(5, sink.messages)
    for message in sink.messages:
        c.check_contents(message)


def transaction_check(c: Case) -> None:
    """What was left open is asked about."""
    sink = c.push(Sink())
    asked: dict[str, int] = {}
    failures: list[str] = []

    def answer(message: Message) -> Any:
        try:
            c.check_contents(message)
        except Exception as error:
            failures.append(str(error))
        i = int(message.properties["i"])
        asked[str(i)] = asked.get(str(i), 0) + 1
        if i % 3 == 1:
            return TransactionResolution.ROLLBACK
        if i % 3 == 2 and asked[str(i)] == 1:
            return None
        return TransactionResolution.COMMIT

    producer = c.producer(Checker(answer))
    for i in range(6):
        producer.send(c.message(i), producer.begin_transaction())
    sink.wait_ids(80, numbers(6, lambda i: i % 3 != 1))
    sink.wait_quiet(3)
    same(numbers(6), set(asked), "asked about")
    c.exactly(4, sink.messages)
    same([], failures, "contents of checks")
    c.counts["asked"] = sum(asked.values())


def wrong_type(c: Case) -> None:
    """Refused, and the producer goes on."""
    producer = c.producer()
    grouped = c.message(0)
    grouped.message_group = "g"
    c.observe("message group to a normal topic", error_of(lambda: producer.send(grouped)))
    later = c.message(0)
    later.delivery_timestamp = int(time.time()) + 5
    c.observe("delivery timestamp to a normal topic", error_of(lambda: producer.send(later)))
    unknown = c.message(0)
    unknown.topic = f"{c.topic}-none"
    c.observe("unknown topic", error_of(lambda: producer.send(unknown)))
    producer.send(c.message(1))
    same({"1"}, ids(drain(c.simple(), 1, 30)), "messages")


def priority(c: Case) -> None:
    """It comes back with its priority."""
    producer = c.producer()
    for i in range(12):
        message = c.message(i)
        message.priority = 1 + i % 3
        producer.send(message)
    for message in drain(c.simple(), 12, 60):
        c.check_contents(message)
        same(1 + int(message.properties["i"]) % 3, message.priority, "priority")


def lite(c: Case) -> None:
    """Those lite topics that were asked for."""
    sink = Sink()
    consumer = c.started(LitePushConsumer(c.configuration, c.group, c.topic, sink))
    topics = ("one", "two", "three")
    for name in topics[:2]:
        consumer.subscribe_lite(name)
    producer = c.producer()
    for i in range(15):
        message = c.message(i)
        message.lite_topic = topics[i % 3]
        producer.send(message)
    sink.wait_ids(45, numbers(15, lambda i: i % 3 != 2))
    sink.wait_quiet(2)
    c.exactly(10, sink.messages)
    for message in sink.messages:
        c.check_contents(message)
        same(topics[int(message.properties["i"]) % 3], message.lite_topic, "lite topic")


TABLE: dict[str, Callable[[Case], None]] = {
    "send-normal": send_normal,
    "push": push,
    "push-retry": push_retry,
    "push-tags": lambda c: _push_filtered(c, FilterExpression("A || C")),
    "push-sql92": lambda c: _push_filtered(c, FilterExpression(SQL, FilterType.SQL)),
    "push-fifo": push_fifo,
    "push-fifo-retry": push_fifo_retry,
    "simple": simple,
    "simple-invisible": simple_invisible,
    "simple-tags": lambda c: _simple_filtered(c, FilterExpression("A || C")),
    "simple-sql92": lambda c: _simple_filtered(c, FilterExpression(SQL, FilterType.SQL)),
    "simple-fifo": simple_fifo,
    "delay": delay,
    "recall": recall,
    "transaction": transaction,
    "transaction-check": transaction_check,
    "wrong-type": wrong_type,
    "priority": priority,
    "lite": lite,
}

_printing = threading.Lock()


def run(endpoint: str, run_name: str, name: str) -> None:
    """One scenario, and its line."""
    began = time.monotonic()
    case = Case(endpoint, f"{run_name}_{name}")
    ok, detail = True, ""
    try:
        TABLE[name](case)
    except AssertionError as error:
        ok, detail = False, str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in where if frame.filename == __file__]
        ok = False
        detail = f"{type(error).__name__}: {error} at line {own[-1].lineno if own else '?'}"
    case.observe("added properties", sorted(case.added))
    line = {
        "scenario": name,
        "ok": ok,
        "ms": round((time.monotonic() - began) * 1000),
        "detail": detail,
        "counts": case.counts,
        "observed": case.observed,
    }
    with _printing:
        print(json.dumps(line), flush=True)
    case.close()


def main() -> None:
    """Run what is asked for."""
    endpoint, run_name, parallel, *names = sys.argv[1:]
    with ThreadPoolExecutor(int(parallel)) as several:
        for future in [several.submit(run, endpoint, run_name, name) for name in names]:
            future.result()
    os._exit(0)  # the client leaves threads behind


if __name__ == "__main__":
    main()
