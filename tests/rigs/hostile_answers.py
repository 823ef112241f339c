"""A cluster of which everything that others choose is as hostile as it can be.

`fill` puts hostile messages, letters, traces, clients and users into a broker, by the requests that
anybody may send. What a broker of ours would refuse, `HostileAnswers` puts into what the clients of
this process are answered: a placeholder becomes hostile in answers, and is itself again in
requests, so that what stands behind a name is reached too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Final

import pytest

from oberth.client.blocking import Admin, Producer, PushConsumer, TransactionProducer
from oberth.client.config import ClientConfig
from oberth.client.messages import Message, MessageExt
from oberth.client.trace import FIELD_SEPARATOR
from oberth.client.transactions import LocalTransactionState
from oberth.formats import names
from oberth.formats import properties as p
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.bodies.admin import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand
from oberth.testing.blocking import EmbeddedBroker

EVIL: Final = (
    "\"'><img src=x onerror=window.owned=1><script>window.owned=1</script>`{{7*7}}%2F../"
    "\x1b[31m\0\x9b\r\u202e\u2066\u200b&amp;</textarea></title></option></pre>"
)
WORD: Final = "Chosen"
TOLD: Final = WORD + EVIL
"""The placeholder, and what it becomes."""

BODY_SIZE: Final = (4 << 20) - (64 << 10)
"""About what a broker takes, with room for the properties."""


class HostileAnswers:
    """Changes what every client of this process is answered, while it is on.

    Args:
        monkeypatch: of the test.

    Attributes:
        is_on: whether answers are changed.
        figure: the value of every figure that a broker tells of itself; None: as it is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_on = True
        self.figure: str | None = None
        invoke = RemotingClient.invoke

        async def invoked(
            client: RemotingClient, addr: str, request: RemotingCommand, timeout_s: float
        ) -> RemotingCommand:
            if not self.is_on:
                return await invoke(client, addr, request, timeout_s)
            for name, value in request.fields.items():
                request.fields[name] = value.replace(TOLD, WORD)
            response = await invoke(client, addr, request, timeout_s)
            if response.code == ResponseCode.SUCCESS:
                response.body = self._body(request.code, response.body_bytes())
            return response

        monkeypatch.setattr(RemotingClient, "invoke", invoked)

    def _body(self, code: int, body: bytes) -> bytes:
        if code == RequestCode.GET_BROKER_CONFIG:
            line = EVIL.replace("\r", "")
            return body + f"\nkey{line}={line}\nbrokerIP2={line}\n".encode()
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = json.loads(body)["table"]
            if self.figure is not None:
                table = dict.fromkeys([*table, "scheduleMessageOffset_1"], self.figure)
            return json.dumps({"table": {**table, "brokerVersionDesc": EVIL, EVIL: EVIL}}).encode()
        if not body.startswith((b"{", b"[")):
            return body  # records
        return body.replace(WORD.encode(), json.dumps(TOLD)[1:-1].encode())


class Undecided:
    """Ends no transaction."""

    def execute_local_transaction(self, message: Message, arg: object) -> LocalTransactionState:
        """Nothing yet."""
        return LocalTransactionState.UNKNOW

    def check_local_transaction(self, message: MessageExt) -> LocalTransactionState:
        """Still nothing."""
        return LocalTransactionState.UNKNOW


def hostile_message(
    topic: str,
    body: bytes = EVIL.encode(),
    *,
    delay_ms: int | None = None,
    own: Mapping[str, str] | None = None,
) -> Message:
    """A message of which nothing is what somebody would choose; ``own`` are RocketMQ's own."""
    made = Message(topic, body, keys=EVIL, tags=EVIL, properties={EVIL: EVIL}, delay_ms=delay_ms)
    made.properties.update(own or {})
    return made


@contextmanager
def filled(broker: EmbeddedBroker) -> Iterator[None]:
    """A topic Orders, a group readers with a member, their letters, timers, traces and users."""
    config = ClientConfig(
        namesrv_addr=broker.namesrv_addr, instance_name=EVIL, client_ip="10.0.0.1"
    )
    expression = f"a || {EVIL}"
    with (
        Admin(config=broker.client_config) as admin,
        Producer("makers", config=config) as producer,
        PushConsumer("readers", {"Orders": expression}, listener=_ignore, config=config),
        TransactionProducer("makers-of-halves", Undecided(), config=config) as undecided,
    ):
        for topic in ("Orders", WORD, "%DLQ%readers"):
            admin.create_topic(topic, queue_nums=1)
        admin.create_group(WORD)
        for queue in (*admin.topic_queues("Orders"), *admin.topic_queues(WORD)):
            admin.update_consume_offset(WORD, queue, 0)
        for name in (WORD, "anna"):
            user = UserInfo(username=name, password="a-password", user_type="Normal")
            admin.create_user(broker.address, user)
        entry = PolicyEntryInfo(actions=["Pub"], decision="Allow", resource=f"Topic:{WORD}")
        policy = PolicyInfo(policy_type="Custom", entries=[entry])
        admin.create_acl(broker.address, AclInfo(subject=f"User:{WORD}", policies=[policy]))
        producer.send(hostile_message("Orders", (EVIL * (4 << 20)).encode()[:BODY_SIZE]))
        sent = producer.send(hostile_message("Orders", own={p.UNIQ_KEY: EVIL}))
        producer.send(hostile_message(WORD))
        reasons = {p.DLQ_ORIGIN_TOPIC: EVIL, "DLQ_REASON": EVIL}
        producer.send(hostile_message("%DLQ%readers", own=reasons))
        for body in (EVIL.encode(), b"\x1f\x8b\x08" + EVIL.encode()):
            producer.send(hostile_message("Orders", body, delay_ms=3_600_000))
        undecided.send_message_in_transaction(hostile_message("Orders"))
        fields = ("Pub", EVIL, EVIL, EVIL, EVIL, sent.msg_id, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL,
                  EVIL, EVIL, EVIL)  # fmt: skip
        trace = Message(names.TRACE_TOPIC, FIELD_SEPARATOR.join(fields).encode(), keys=sent.msg_id)
        producer.send(trace)
        broker.wait_until(lambda: len(broker.messages("Orders")) == 2, what="messages")
        broker.wait_until(lambda: bool(broker.offsets("readers", "Orders")), what="a member")
        yield


def _ignore(message: MessageExt) -> None:
    """A listener."""


class Page(HTMLParser):
    """A page as a browser reads it.

    Attributes:
        tags: names of its elements.
        attributes: element, attribute and value.
        text: what a reader sees.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """One element."""
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        """A text."""
        self.text += data
