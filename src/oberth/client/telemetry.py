"""OpenTelemetry spans and metrics of producers and listeners, by its messaging conventions.

    producer = TracedProducer("orders", config=config)
    consumer = PushConsumer("billing", {"Orders": "*"}, listener=traced("billing", listener))

A send is a span ``send <topic>`` of kind PRODUCER; its context goes with the message as property
``traceparent``, which retries and dead letters keep. A call of a listener is a span
``process <topic>`` of kind CONSUMER, linked to the sends of its messages; of a single message it
belongs to the same trace, so that all attempts stand beside the send. A message that has a context
already, because it is sent again, keeps it, and the new send is linked to it.

    messaging.client.operation.duration    s          histogram, sends
    messaging.client.sent.messages         {message}  counter
    messaging.client.consumed.messages     {message}  counter
    messaging.process.duration             s          histogram, calls of listeners

Needs the API package alone (``oberth[otel]``); without an SDK in the program nothing is recorded.
Conventions: https://opentelemetry.io/docs/specs/semconv/messaging/
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from oberth.client.consume import ConsumeStatus
from oberth.client.consume_service import is_coroutine_listener
from oberth.client.messages import Message, MessageExt, SendResult
from oberth.client.outgoing import TRACEPARENT
from oberth.client.producer import Producer
from oberth.client.selectors import MessageQueueSelector
from oberth.errors import MQBrokerError
from oberth.remoting.bodies.base import MessageQueue

NAME: Final = "oberth"
SYSTEM: Final = "rocketmq"
_CONTEXT: Final = TraceContextTextMapPropagator()
Listener = TypeVar("Listener", bound=Callable[..., Any])


class Telemetry:
    """Makes spans and notes metrics; one for a program is enough.

    Args:
        tracer_provider: None: the program's.
        meter_provider: None: the program's.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self.tracer = trace.get_tracer(NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(NAME, meter_provider=meter_provider)
        self._send_s = meter.create_histogram("messaging.client.operation.duration", "s")
        self._process_s = meter.create_histogram("messaging.process.duration", "s")
        self._sent = meter.create_counter("messaging.client.sent.messages", "{message}")
        self._consumed = meter.create_counter("messaging.client.consumed.messages", "{message}")

    @contextmanager
    def sending(self, group: str, messages: Sequence[Message]) -> Iterator[Span]:
        """The span of a send; its context is put into messages that have none."""
        topic = messages[0].topic if messages else ""
        shared = _shared("send", topic, group)
        with self.tracer.start_as_current_span(
            f"send {topic}",
            kind=SpanKind.PRODUCER,
            attributes={**shared, **_of_messages(messages)},
            links=_links(messages),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            carrier: dict[str, str] = {}
            _CONTEXT.inject(carrier)
            context = carrier.get(TRACEPARENT)
            if context is not None:
                for message in messages:
                    message.properties.setdefault(TRACEPARENT, context)
            begin_s = time.monotonic()
            failure: dict[str, str] = {}
            try:
                yield span
            except BaseException as error:
                failure = _note_error(span, error)
                raise
            finally:
                measured = {**shared, **failure}
                self._send_s.record(time.monotonic() - begin_s, measured)
                self._sent.add(len(messages), measured)

    @contextmanager
    def processing(self, group: str, messages: Sequence[MessageExt]) -> Iterator[list[Any]]:
        """The span of a call of a listener, which puts what it returned into the list."""
        topic = messages[0].topic
        shared = _shared("process", topic, group)
        attributes = {**shared, **_of_messages(messages)}
        parent = None
        if len(messages) == 1:
            parent = _CONTEXT.extract(messages[0].properties)
            attributes["messaging.rocketmq.message.reconsume_times"] = messages[0].reconsume_times
        with self.tracer.start_as_current_span(
            f"process {topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=_links(messages),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            begin_s = time.monotonic()
            failure: dict[str, str] = {}
            verdict: list[Any] = []
            try:
                yield verdict
                if ConsumeStatus.RECONSUME_LATER in verdict:
                    word = ConsumeStatus.RECONSUME_LATER.value
                    failure = {"error.type": word}
                    span.set_attribute("error.type", word)
                    span.set_status(StatusCode.ERROR, word)
            except BaseException as error:
                failure = _note_error(span, error)
                raise
            finally:
                measured = {**shared, **failure}
                self._process_s.record(time.monotonic() - begin_s, measured)
                self._consumed.add(len(messages), measured)


def _shared(operation: str, topic: str, group: str) -> dict[str, str]:
    group_key = (
        "messaging.consumer.group.name" if operation == "process" else "oberth.producer.group"
    )
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
        group_key: group,
    }


def _of_messages(messages: Sequence[Message | MessageExt]) -> dict[str, Any]:
    if len(messages) != 1:
        return {"messaging.batch.message_count": len(messages)}
    (message,) = messages
    made: dict[str, Any] = {"messaging.message.body.size": len(message.body)}
    if message.tags:
        made["messaging.rocketmq.message.tag"] = message.tags
    if message.keys:
        made["messaging.rocketmq.message.keys"] = message.keys.split()
    if isinstance(message, MessageExt):
        made["messaging.message.id"] = message.msg_id
    return made


def _links(messages: Sequence[Message | MessageExt]) -> list[Link]:
    """To the context that each message has; broken ones are left out."""
    found = []
    for message in messages:
        if TRACEPARENT in message.properties:
            context = _CONTEXT.extract(message.properties, Context())
            span = trace.get_current_span(context).get_span_context()
            if span.is_valid:
                found.append(Link(span))
    return found


def _note_error(span: Span, error: BaseException) -> dict[str, str]:
    word = str(error.response_code) if isinstance(error, MQBrokerError) else type(error).__name__
    span.set_attribute("error.type", word)
    span.set_status(StatusCode.ERROR, str(error)[:200])
    if isinstance(error, Exception):
        span.record_exception(error)
    return {"error.type": word}


_made: Telemetry | None = None


def _program() -> Telemetry:
    """What goes to the program's providers, made when it is first needed."""
    global _made
    if _made is None:
        _made = Telemetry()
    return _made


class TracedProducer(Producer):
    """A producer whose sends are spans; see `Producer`.

    Args:
        telemetry: None: to the program's providers.
    """

    def __init__(self, *arguments: Any, telemetry: Telemetry | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._telemetry = telemetry or _program()
        self._traced: set[asyncio.Task[SendResult]] = set()

    async def send(
        self,
        msg: Message | Sequence[Message],
        *,
        mq: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """See `Producer.send`; one span with all attempts."""
        with self._telemetry.sending(self.group, _listed(msg)) as span:
            result = await super().send(
                msg, mq=mq, selector=selector, arg=arg, timeout_ms=timeout_ms
            )
            _note_result(span, result)
            return result

    async def send_async(
        self,
        msg: Message | Sequence[Message],
        *,
        mq: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """See `Producer.send_async`; the span ends with the answer."""
        handed: asyncio.Future[asyncio.Future[SendResult]] = (
            asyncio.get_running_loop().create_future()
        )

        async def follow() -> SendResult:
            with self._telemetry.sending(self.group, _listed(msg)) as span:
                try:
                    future = await super(TracedProducer, self).send_async(
                        msg, mq=mq, selector=selector, arg=arg, timeout_ms=timeout_ms
                    )
                except BaseException as error:
                    handed.set_exception(error)
                    raise
                handed.set_result(future)
                result = await asyncio.shield(future)
                _note_result(span, result)
                return result

        task = asyncio.create_task(follow(), name="a traced send")
        self._traced.add(task)
        task.add_done_callback(self._traced_done)
        return await handed

    async def send_oneway(
        self,
        msg: Message,
        *,
        mq: MessageQueue | None = None,
        selector: MessageQueueSelector | None = None,
        arg: Any = None,
    ) -> None:
        """See `Producer.send_oneway`."""
        with self._telemetry.sending(self.group, [msg]):
            await super().send_oneway(msg, mq=mq, selector=selector, arg=arg)

    def _traced_done(self, task: asyncio.Task[SendResult]) -> None:
        """The caller has the future with the answer; here its error is only noted as seen."""
        self._traced.discard(task)
        if not task.cancelled():
            task.exception()


def _listed(msg: Message | Sequence[Message]) -> Sequence[Message]:
    return [msg] if isinstance(msg, Message) else msg


def _note_result(span: Span, result: SendResult) -> None:
    if result.msg_id:
        span.set_attribute("messaging.message.id", result.msg_id)
    queue = result.message_queue
    if queue is not None:
        span.set_attribute("messaging.destination.partition.id", str(queue.queue_id))


def traced(group: str, listener: Listener, telemetry: Telemetry | None = None) -> Listener:
    """A listener, or batch listener, whose calls are spans.

    Args:
        group: of the consumer.
        listener: as `PushConsumer` takes it: a coroutine function stays one.
        telemetry: None: to the program's providers.
    """
    noted = telemetry or _program()

    def messages_of(given: Any) -> Sequence[MessageExt]:
        return [given] if isinstance(given, MessageExt) else list(given)

    if is_coroutine_listener(listener):

        async def call_async(given: Any, *rest: Any) -> Any:
            with noted.processing(group, messages_of(given)) as verdict:
                answer = await listener(given, *rest)
                verdict.append(answer)
                return answer

        return functools.update_wrapper(call_async, listener)  # type: ignore[return-value]

    def call(given: Any, *rest: Any) -> Any:
        with noted.processing(group, messages_of(given)) as verdict:
            answer = listener(given, *rest)
            verdict.append(answer)
            return answer

    return functools.update_wrapper(call, listener)  # type: ignore[return-value]
