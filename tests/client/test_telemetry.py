"""OpenTelemetry: spans of sends and of listeners, how they are linked, and what is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
)  # fmt: skip

from oberth.client.consume import ConsumeContext, ConsumeStatus
from oberth.client.messages import Message, MessageExt, encode_message_properties
from oberth.client.push_consumer import PushConsumer
from oberth.client.telemetry import Telemetry, TracedProducer, traced
from oberth.errors import MQClientError
from oberth.testing.embedded_broker import EmbeddedBroker


class Recorded(NonRecordingSpan):
    """A span that is kept as it was said."""

    def __init__(
        self, context: SpanContext, name: str, kind: SpanKind, parent: SpanContext,
        attributes: Mapping[str, Any], links: Sequence[Link],
    ) -> None:  # fmt: skip
        super().__init__(context)
        self.name, self.kind, self.parent = name, kind, parent
        self.attributes: dict[str, Any] = dict(attributes)
        self.links = [each.context for each in links]
        self.status: StatusCode | None = None

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = status


@dataclass
class Recorder(trace.TracerProvider, trace.Tracer):
    """What an SDK would be: gives contexts, and keeps spans."""

    spans: list[Recorded] = field(default_factory=list)

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self

    def start_span(
        self, name: str, context: Any = None, kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None, links: Any = None, *_: Any, **__: Any,
    ) -> Span:  # fmt: skip
        parent = trace.get_current_span(context).get_span_context()
        number = len(self.spans) + 1
        made = SpanContext(
            parent.trace_id or 1000 + number, number, False, TraceFlags(TraceFlags.SAMPLED)
        )
        self.spans.append(Recorded(made, name, kind, parent, attributes or {}, links or ()))
        return self.spans[-1]

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, *arguments: Any, **options: Any
    ) -> Iterator[Span]:
        with trace.use_span(self.start_span(*arguments, **options), record_exception=False) as span:
            yield span

    def named(self, name: str) -> list[Recorded]:
        return [each for each in self.spans if each.name == name]


class Meter(metrics.NoOpMeterProvider):
    """Keeps what is measured."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, float, dict[str, Any]]] = []

    def get_meter(self, *_: Any, **__: Any) -> Any:
        return self

    def create_counter(self, name: str, unit: str) -> Any:
        return Instrument(self, name)

    create_histogram = create_counter


@dataclass
class Instrument:
    meter: Meter
    name: str

    def record(self, value: float, attributes: dict[str, Any]) -> None:
        self.meter.noted.append((self.name, value, attributes))

    add = record


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def telemetry(recorder: Recorder, meter: Meter) -> Telemetry:
    return Telemetry(recorder, meter)


async def test_all_attempts_are_linked_to_the_send(
    recorder: Recorder, meter: Meter, telemetry: Telemetry
) -> None:
    tries: list[int] = []
    done = asyncio.Event()

    async def listener(message: MessageExt) -> ConsumeStatus:
        tries.append(message.reconsume_times)
        if len(tries) == 1:
            raise ValueError("not yet")
        if len(tries) == 2:
            return ConsumeStatus.RECONSUME_LATER
        done.set()
        return ConsumeStatus.SUCCESS

    async with EmbeddedBroker({"messageDelayLevel": "1s 1s 1s 1s"}) as broker:
        config = broker.client_config
        async with (
            TracedProducer("shop", config=config, telemetry=telemetry) as producer,
            PushConsumer(
                "billing", {"Orders": "*"}, config=config,
                listener=traced("billing", listener, telemetry),
            ),
        ):  # fmt: skip
            result = await producer.send(Message("Orders", b"one", tags="paid", keys="k1"))
            async with asyncio.timeout(120):
                await done.wait()
    (sent,) = recorder.named("send Orders")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent == INVALID_SPAN_CONTEXT
    assert sent.attributes["messaging.system"] == "rocketmq"
    assert sent.attributes["messaging.destination.name"] == "Orders"
    assert sent.attributes["messaging.message.id"] == result.msg_id
    assert sent.attributes["messaging.rocketmq.message.tag"] == "paid"
    attempts = [each for each in recorder.spans if each.kind is SpanKind.CONSUMER]
    assert len(attempts) >= 3
    for number, each in enumerate(attempts[:3]):
        assert each.attributes["messaging.rocketmq.message.reconsume_times"] == number
        assert each.attributes["messaging.consumer.group.name"] == "billing"
        assert [link.span_id for link in each.links] == [sent.get_span_context().span_id]
        assert each.get_span_context().trace_id == sent.get_span_context().trace_id
    errors = [each.attributes.get("error.type") for each in attempts[:3]]
    assert errors == ["ValueError", "RECONSUME_LATER", None]
    assert [each.status for each in attempts[:3]] == [StatusCode.ERROR, StatusCode.ERROR, None]
    noted = [name for name, _, _ in meter.noted]
    assert noted.count("messaging.client.sent.messages") == 1
    assert noted.count("messaging.process.duration") == len(attempts)


async def test_other_sends_and_what_fails(recorder: Recorder, telemetry: Telemetry) -> None:
    async with (
        EmbeddedBroker() as broker,
        TracedProducer("shop", config=broker.client_config, telemetry=telemetry) as producer,
    ):
        await (await producer.send_async(Message("Orders", b"async")))
        await producer.send_oneway(Message("Orders", b"oneway"))
        await producer.send_batch([Message("Orders", b"1"), Message("Orders", b"2")])
        with pytest.raises(MQClientError):
            await producer.send(Message("Orders", b""))
        with pytest.raises(MQClientError):
            await producer.send_async(Message("Orders", b""))
    spans = recorder.named("send Orders")
    assert [each.attributes.get("error.type") for each in spans] == [
        None, None, None, "MQClientError", "MQClientError",
    ]  # fmt: skip
    assert spans[2].attributes["messaging.batch.message_count"] == 2


def test_a_message_that_is_sent_again_keeps_its_context(
    recorder: Recorder, telemetry: Telemetry
) -> None:
    message = Message("Orders", b"x")
    with telemetry.sending("shop", [message]):
        pass
    first = message.properties["traceparent"]
    with telemetry.sending("shop", [message]):
        pass
    assert message.properties["traceparent"] == first
    assert [link.span_id for link in recorder.spans[1].links] == [1]
    broken = Message("Orders", b"x", properties={"traceparent": "nonsense"})
    with telemetry.sending("shop", [broken]):
        pass
    assert recorder.spans[2].links == []


def received_as(message: Message) -> MessageExt:
    properties = encode_message_properties(message.properties).encode()
    fixed = (0,) * 16
    return MessageExt(properties, fixed, message.topic, 0, 0, 0, len(properties), "broker-a")


def test_a_batch_listener_is_one_span_with_a_link_for_each(
    recorder: Recorder, telemetry: Telemetry
) -> None:
    sent = [Message("Orders", b"x") for _ in range(3)]
    for each in sent:
        with telemetry.sending("shop", [each]):
            pass
    received = [received_as(each) for each in sent]

    def listener(messages: Sequence[MessageExt], context: ConsumeContext | None) -> None:
        assert len(messages) == 3
        assert trace.get_current_span().get_span_context().span_id == 4

    traced("billing", listener, telemetry)(received, None)
    (span,) = recorder.named("process Orders")
    assert [link.span_id for link in span.links] == [1, 2, 3]
    assert span.attributes["messaging.batch.message_count"] == 3
