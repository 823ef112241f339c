"""``oberth message``: send, read and find messages."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import click

from oberth.cli.connection import client_config
from oberth.cli.hints import NOT_FOUND_TOPIC
from oberth.cli.lazy import SuggestingGroup
from oberth.cli.output import printable, reader_is_gone, say, write_json, write_json_line
from oberth.cli.remote import (
    ask,
    json_option,
    message_json,
    namesrv_option,
    parse_pairs,
    run,
    tell_silent,
)
from oberth.cli.store_query import TIME
from oberth.client.admin import Admin
from oberth.errors import MQBrokerError, MQClientError, RemotingError, RemotingTimeoutError
from oberth.remoting.code import ResponseCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from oberth.client.admin.base import Silent
    from oberth.client.messages import Message, MessageExt, SendResult
    from oberth.client.producer import Producer
    from oberth.remoting.bodies.base import MessageQueue

TAIL_PAUSE_S: Final = 0.2
PULL_COUNT: Final = 32
SEND_TIMEOUT_MS: Final = 3000
"""Then a message is sent to another broker."""
EXIT_NOTHING: Final = 1
EXIT_STOPPED: Final = 130
"""As of every command that Ctrl-C ends."""


@click.group(cls=SuggestingGroup)
def message() -> None:
    """Send messages, read a topic as it grows, find messages by key or id.

    Example: oberth message send Flights "hello" --key AA100
    """


@message.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--tag", default="", help="A word that subscriptions choose by.")
@click.option("--key", "keys", multiple=True, help="A word to find it by. Repeatable.")
@click.option("--property", "properties", metavar="NAME=VALUE", multiple=True, help="Repeatable.")
@click.option(
    "--delay-level",
    type=click.IntRange(0, 18),
    default=0,
    help="Deliver it later: a level from 1 to 18; 0 is at once.",
)
@namesrv_option
def send(
    topic: str,
    body: str | None,
    tag: str,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay_level: int,
    namesrv: str,
) -> None:
    """Send BODY, or each line of stdin; a JSON line on stdout for each message.

    What a broker does not answer within 3 seconds is sent to another; it may be stored twice then.
    """
    entries = parse_pairs(properties, "--property")
    connection = client_config(namesrv)

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")

    count = 0

    async def work() -> None:
        from oberth.client.messages import Message
        from oberth.client.producer import Producer

        nonlocal count
        async with Producer(
            "OBERTH_CLI",
            config=connection,
            send_msg_timeout_ms=SEND_TIMEOUT_MS,
            send_latency_fault_enable=True,
        ) as producer:
            async for line in _lines(body):
                # Bytes that the locale cannot read go through as they are.
                data = line.rstrip("\n").encode("utf-8", "surrogateescape")
                sent = await _send(
                    producer,
                    Message(
                        topic,
                        data,
                        tags=tag,
                        keys=keys,
                        properties=entries,
                        delay_time_level=delay_level,
                    ),
                )
                write_json_line(
                    {
                        "status": sent.status.name,
                        "msgId": sent.msg_id,
                        "offsetMsgId": sent.offset_msg_id,
                        "brokerName": sent.message_queue.broker_name,
                        "queueId": sent.message_queue.queue_id,
                        "queueOffset": sent.queue_offset,
                    }
                )
                sys.stdout.flush()  # whoever writes the lines may wait for it
                count += 1

    try:
        run(work())
    except KeyboardInterrupt:
        say(f"stopped; {count} messages were sent, those that are printed")
        sys.exit(EXIT_STOPPED)
    except MQClientError as error:
        if error.response_code == NOT_FOUND_TOPIC:
            ask(namesrv, Admin.cluster_info)  # says so if no broker is there at all
        raise


async def _lines(body: str | None) -> AsyncIterator[str]:
    """The body, or each line of stdin as it comes; Ctrl-C ends the wait for one.

    The loop's own handler of the signal only notes it, for when the loop goes on.
    """
    if body is not None:
        yield body
        return
    while True:
        handler = signal.getsignal(signal.SIGINT)
        is_ours = threading.current_thread() is threading.main_thread() and callable(handler)
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            await asyncio.sleep(0)  # a signal that was noted before is heard here
            line = sys.stdin.readline()
        finally:
            if is_ours:
                signal.signal(signal.SIGINT, handler)
        if not line:
            return
        yield line


async def _send(producer: Producer, message: Message) -> SendResult:
    """Send it, and once more elsewhere if a broker does not answer, which is then left alone."""
    await producer.fetch_publish_message_queues(message.topic)  # a name server has no elsewhere
    try:
        return await producer.send(message)
    except RemotingTimeoutError as error:
        say(f"{error}; the message is sent to another broker and may be stored twice")
        return await producer.send(message)


@message.command()
@click.argument("topic")
@click.option("--from-start", is_flag=True, help="All messages of the topic, not only new ones.")
@click.option("--tag", default="*", help="Tags, as in 'A || B'.")
@click.option("--count", type=click.IntRange(1), help="End after N messages.", metavar="N")
@click.option("--follow/--no-follow", default=True, help="Wait for more at the end.")
@namesrv_option
def tail(
    topic: str, from_start: bool, tag: str, count: int | None, follow: bool, namesrv: str
) -> None:
    """Print a topic's messages as JSON lines, as they come; no group is involved.

    Exit code 1 if a broker of the topic does not answer; others are read meanwhile.
    """
    silent: Silent = {}

    async def read(admin: Admin) -> None:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in await admin.topic_queues(topic):
            by_broker.setdefault(queue.broker_name, []).append(queue)
        printer = _Printer(count)
        readers = [
            asyncio.ensure_future(
                _Tail(admin, queues, printer, silent, from_start=from_start, tag=tag).read(
                    follow=follow, is_last=lambda: len(silent) == len(by_broker)
                )
            )
            for queues in by_broker.values()
        ]
        try:
            await asyncio.gather(*readers)
        except _EnoughError:
            pass
        finally:
            for each in readers:
                each.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    try:
        ask(namesrv, read)
    except KeyboardInterrupt:
        say("stopped")
    tell_silent(silent)


class _EnoughError(Exception):
    """As many messages were printed as were wanted."""


class _Printer:
    """Prints messages of several readers.

    Args:
        count: how many at most; None: all.
    """

    def __init__(self, count: int | None) -> None:
        self._left = count

    def print(self, messages: list[MessageExt]) -> None:
        """Print them.

        Raises:
            _EnoughError: these were all that are wanted.
        """
        for each in messages:
            if self._left == 0:
                break
            write_json_line(message_json(each))
            if self._left is not None:
                self._left -= 1
        if self._left == 0:
            raise _EnoughError


class _Tail:
    """Reads a topic's queues at one broker.

    Args:
        admin: reads them.
        queues: all of one broker.
        printer: gets the messages.
        silent: has the broker while it does not answer.
        from_start: begin with the first messages, not at the end.
        tag: which messages.
    """

    def __init__(
        self,
        admin: Admin,
        queues: list[MessageQueue],
        printer: _Printer,
        silent: Silent,
        *,
        from_start: bool,
        tag: str,
    ) -> None:
        self._admin = admin
        self._queues = queues
        self._printer = printer
        self._silent = silent
        self._first = admin.min_offset if from_start else admin.max_offset
        self._tag = tag
        self._offsets: dict[MessageQueue, int] = {}

    async def read(self, *, follow: bool, is_last: Callable[[], bool]) -> None:
        """Read to the end, or on and on.

        Args:
            follow: wait for more at the end, and for a broker that does not answer.
            is_last: whether no other broker answers either.

        Raises:
            RemotingError: no broker answers.
            _EnoughError: enough messages were printed.
        """
        name = self._queues[0].broker_name
        while True:
            try:
                grew = await self._round()
            except RemotingError as error:
                is_new = name not in self._silent
                self._silent[name] = error
                if is_last():
                    raise
                if not follow:
                    return
                if is_new:
                    say(f"{name} does not answer and is asked again: {error}")
                grew = False
            else:
                if self._silent.pop(name, None) is not None:
                    say(f"{name} answers again")
            sys.stdout.flush()
            if grew:
                continue
            if not follow:
                return
            if reader_is_gone(sys.stdout):
                raise BrokenPipeError
            await asyncio.sleep(TAIL_PAUSE_S)

    async def _round(self) -> bool:
        """Prints what each queue has next; whether any had something."""
        grew = False
        for queue in self._queues:
            offset = self._offsets.get(queue)
            if offset is None:
                offset = self._offsets[queue] = await self._first(queue)
            result = await self._admin.pull(queue, offset, max_num=PULL_COUNT, expression=self._tag)
            grew = grew or result.next_begin_offset != offset
            self._offsets[queue] = result.next_begin_offset
            self._printer.print(result.messages)
        return grew


@message.command()
@click.argument("topic")
@click.option("--key", help="A word among the message's keys.")
@click.option(
    "--id", "message_id", help="The offsetMsgId (the broker's) or the unique key (the client's)."
)
@click.option("--begin", type=TIME, default=0, help="With --key: stored at or after.")
@click.option("--end", type=TIME, default=2**63 - 1, help="With --key: stored at or before.")
@namesrv_option
def query(
    topic: str, key: str | None, message_id: str | None, begin: int, end: int, namesrv: str
) -> None:
    """Find messages by key or by id; JSON lines on stdout.

    Exit code 1 if there is none, or a broker of the topic does not answer.
    """
    if (key is None) == (message_id is None):
        raise click.UsageError("one of --key and --id is needed")

    silent: Silent = {}

    async def find(admin: Admin) -> int:
        if message_id is not None:
            seen = await _message_or_none(admin, topic, message_id, silent)
            found = [] if seen is None else [seen]
        else:
            assert key is not None
            found = await admin.query_message(topic, key, begin_ms=begin, end_ms=end, silent=silent)
        for each in found:
            write_json_line(message_json(each))
        return len(found)

    count = ask(namesrv, find)
    tell_silent(silent)
    if not count:
        wanted = f"key {key!r} stored in that time" if key is not None else f"id {message_id}"
        say(f"{topic} has no message with {wanted}")
        sys.exit(EXIT_NOTHING)


async def _message_or_none(
    admin: Admin, topic: str, message_id: str, silent: Silent
) -> MessageExt | None:
    """The message with either kind of id; None if the topic has none, where it could be asked."""
    try:
        return await admin.view_message(topic, message_id, silent=silent)
    except MQBrokerError as error:
        if error.response_code != ResponseCode.NO_MESSAGE:
            raise
        return None


@message.command()
@click.argument("topic")
@click.argument("message_id")
@click.option("--group", required=True, help="The group whose member consumes it.")
@click.option("--client", help="The member; the first that is connected if not given.")
@namesrv_option
@json_option
def resend(
    topic: str, message_id: str, group: str, client: str | None, namesrv: str, as_json: bool
) -> None:
    """Have a member of a group consume one message now, wherever the group is.

    No offset is changed. MESSAGE_ID is either kind of id. Exit code 1 unless it was consumed, also
    if TOPIC has no such message, or its broker does not answer.

    Example: oberth message resend Flights 7F0000010A2C000000000001E240 --group G
    """
    silent: Silent = {}

    async def work(admin: Admin) -> dict[str, Any] | None:
        found = await _message_or_none(admin, topic, message_id, silent)
        if found is None:
            return None
        members = await admin.consumer_connection(group)
        ids = sorted(each.client_id for each in members.connection_set)
        if client is not None and client not in ids:
            raise MQClientError(f"group {group} has no member {client!r}; it has: {', '.join(ids)}")
        chosen = client or ids[0]
        say(f"{found.offset_msg_id} of {topic}: to {chosen} of {group}")
        result = await admin.consume_message_directly(group, chosen, found.offset_msg_id, topic)
        return {
            "offsetMsgId": found.offset_msg_id,
            "group": group,
            "clientId": chosen,
            "result": result.consume_result.value,
            "spentMs": result.spent_time_mills,
            "remark": result.remark,
        }

    made = ask(namesrv, work)
    if made is None:
        tell_silent(silent)
        say(f"{topic} has no message with id {message_id}, nothing was sent again")
        sys.exit(EXIT_NOTHING)
    if as_json:
        write_json(made)
    else:
        say(f"{made['result']} in {made['spentMs']} ms {printable(made['remark'] or '')}".rstrip())
    if made["result"] not in ("CR_SUCCESS", "CR_COMMIT"):
        sys.exit(EXIT_NOTHING)
