"""Requests about lite topics to one broker, and its answers in a form that two runs share.

    answers(broker_address) -> [[what, code, remark, fields, body], ...]

From a shell, to keep what a broker of 5.5.0 says, or to see where ours differs:

    python -m tests.rigs.lite_answers --broker apache-5.5.0 --record FILE
    python -m tests.rigs.lite_answers --rival FILE

The same requests, in the same order, with names and offsets that are known beforehand: parents and
groups of every kind, subscriptions, sends, pops, acknowledgements that fit and that do not, and
what 200074 to 200079 tell before, in between and after the parent is deleted. Times are replaced,
sets are sorted. The invisible time has to pass once, so that it takes about ten seconds.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from tests.rigs.clusters import cluster_for, remoting_call

from oberth.client.messages import MessageExt, decode_messages

__all__ = ["LITE_CONF", "answers"]

LITE_CONF: Final[Mapping[str, str]] = {"enableLmq": "true", "enableMultiDispatch": "true"}
"""broker.conf of a broker that has lite topics."""

PARENT: Final = "Parent"
GROUP: Final = "LiteGroup"
INVISIBLE_MS: Final = 4_000
_DISPATCHED_S: Final = 1.0
_A_MOMENT: Final = 10**11  # ms; less is no time of today
_LEFT_OUT: Final = frozenset({"MSG_REGION", "TRACE_ON", "msgId", "transactionId", "queueOffset"})
_NOTHING_SAID: Final = frozenset({None, "", "not set any response code"})
"""Remarks of success that say nothing."""


class _Session:
    def __init__(self, address: str) -> None:
        self._address = address
        self.found: list[list[Any]] = []

    def call(
        self, what: str, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> tuple[dict[str, str], bytes]:
        """One request; gives fields and body of the answer, which is noted."""
        texts = {name: str(value) for name, value in (fields or {}).items()}
        header, answer = remoting_call(self._address, code, texts, body, timeout_s=30)
        given: dict[str, str] = header.get("extFields") or {}  # type: ignore[assignment]
        remark = header.get("remark")
        self.found.append(
            [
                what,
                header["code"],
                None if header["code"] == 0 and remark in _NOTHING_SAID else _plain(str(remark)),
                {
                    name: _field(name, value)
                    for name, value in sorted(given.items())
                    if name not in _LEFT_OUT
                },
                _body_of(what, int(str(header["code"])), answer),
            ]
        )
        return given, answer

    def make(self) -> None:
        """Topics and groups, good and bad."""
        for topic, attributes in (
            (PARENT, "+message.type=LITE,+lite.topic.expiration=60"),
            ("Second", "+message.type=LITE"),
            ("Late", "+message.type=LITE,+lite.topic.expiration=43201"),
            ("Plain", ""),
        ):
            fields = {
                "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4,
                "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
                "attributes": attributes,
            }  # fmt: skip
            self.call(f"topic {topic}", 17, fields)
        bound = {"+lite.bind.topic": PARENT}
        for group, changes in (
            (GROUP, bound),
            ("PlainGroup", {}),
            ("Exclusive", {**bound, "+lite.sub.model": "Exclusive"}),
            ("Wild", {**bound, "+lite.sub.wildcard": "x"}),
        ):
            body = json.dumps({"groupName": group, "attributes": changes}).encode()
            self.call(f"group {group}", 200, {}, body)

    def subscribe(
        self,
        what: str,
        client_id: str,
        *lite_topics: str,
        action: str = "PARTIAL_ADD",
        group: str = GROUP,
        **more: object,
    ) -> None:
        entry = {
            "action": action, "clientId": client_id, "group": group, "topic": PARENT,
            "liteTopicSet": lite_topics, "version": 1, **more,
        }  # fmt: skip
        self.call(what, 200071, {}, json.dumps({"subscriptionSet": [entry]}).encode())

    def send(self, number: int, lite_topic: str) -> None:
        fields = {
            "a": "P", "b": PARENT, "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0,
            "i": f"__LITE_TOPIC\x01{lite_topic}\x02",
        }  # fmt: skip
        self.call(f"send {lite_topic}", 310, fields, b"%d" % number)

    def pop(self, what: str, client_id: str, **changes: object) -> list[tuple[MessageExt, str]]:
        """A pop that does not wait; the messages, each with what acknowledges it."""
        fields = {
            "clientId": client_id, "consumerGroup": GROUP, "topic": PARENT, "maxMsgNum": 32,
            "invisibleTime": INVISIBLE_MS, "pollTime": 0, "bornTime": int(time.time() * 1000),
            **changes,
        }  # fmt: skip
        given, body = self.call(f"pop {what}", 200070, fields)
        return [
            (
                message,
                f"0 {given['popTime']} {given['invisibleTime']} {given['reviveQid']} 0 broker-a 0 "
                + message.properties["INNER_MULTI_QUEUE_OFFSET"],
            )
            for message in (decode_messages(body, "broker-a") if body else ())
        ]

    def ack(self, what: str, popped: tuple[MessageExt, str], **changes: object) -> None:
        message, receipt = popped
        fields = {
            "consumerGroup": GROUP, "topic": PARENT, "queueId": 0, "extraInfo": receipt,
            "offset": message.properties["INNER_MULTI_QUEUE_OFFSET"],
            "liteTopic": message.properties["__LITE_TOPIC"], **changes,
        }  # fmt: skip
        self.call(f"ack {what}", 200051, fields)

    def ask(self, when: str) -> None:
        """Everything that can be asked."""
        self.call(f"{when}: broker", 200074)
        for topic in (PARENT, "Second", "Plain", "None"):
            self.call(f"{when}: parent {topic}", 200075, {"topic": topic})
        for lite_topic in ("one", "three", "none"):
            fields = {"parentTopic": PARENT, "liteTopic": lite_topic}
            self.call(f"{when}: topic {lite_topic}", 200076, fields)
        for client_id, group in (("c1", GROUP), ("w1", "Wild"), ("z", GROUP), ("c1", "PlainGroup")):
            fields = {"parentTopic": PARENT, "group": group, "clientId": client_id, "maxCount": "9"}
            self.call(f"{when}: client {client_id} of {group}", 200077, fields)
        for group in (GROUP, "PlainGroup"):
            self.call(f"{when}: group {group}", 200078, {"group": group, "topK": 5})
            self.call(f"{when}: dispatch {group}", 200079, {"group": group})
        for lite_topic in ("one", "two", "none"):
            fields = {"group": GROUP, "liteTopic": lite_topic, "topK": "5"}
            self.call(f"{when}: group in {lite_topic}", 200078, fields)
        self.call(f"{when}: dispatch c1", 200079, {"group": GROUP, "clientId": "c1"})


def answers(address: str) -> list[list[Any]]:
    """What a fresh broker answers; see the module."""
    session = _Session(address)
    session.make()
    session.subscribe("two lite topics", "c1", "one", "two")
    session.subscribe("everything", "w1", action="COMPLETE_ADD", group="Wild")
    session.subscribe("a group that is not bound", "p1", "one", group="PlainGroup")
    session.call("no subscription", 200071)
    session.call("an empty subscription", 200071, {}, b"{}")
    for number in range(6):
        session.send(number, ("one", "two", "three")[number % 3])
    time.sleep(_DISPATCHED_S)
    first = next(
        each
        for each in session.pop("two lite topics", "c1")
        if each[0].properties["__LITE_TOPIC"] == "one"
    )
    session.ack("behind the end", first, offset=9)
    session.ack("not handed out", first, offset=2)
    session.ack("another queue", first, queueId=1)
    session.ack("another group", first, consumerGroup="PlainGroup")
    session.ack("another topic", first, topic="None")
    session.ack("the first", first)
    session.pop("what is blocked", "c1")
    session.ask("handed out")
    time.sleep(INVISIBLE_MS / 1000 + 1.5)
    for popped in session.pop("again", "c1"):
        session.ack("the rest", popped)
    session.pop("everything", "w1", consumerGroup="Wild")
    for what, changes in (
        ("another parent", {"topic": "Second"}),
        ("no parent", {"topic": "Plain"}),
        ("no topic", {"topic": "None"}),
        ("a group that is not bound", {"consumerGroup": "PlainGroup"}),
        ("too much", {"maxMsgNum": 33}),
        ("too late", {"bornTime": 1}),
    ):
        session.pop(what, "c1", **changes)
    session.subscribe("one less", "c1", "two", action="PARTIAL_REMOVE")
    session.subscribe("exactly one", "c1", "one", action="COMPLETE_ADD")
    beginning = {"type": "POLICY", "value": 1}
    session.subscribe("alone", "e1", "one", group="Exclusive", offsetOption=beginning)
    session.subscribe("taken over", "e2", "one", group="Exclusive")
    session.ask("acknowledged")
    session.subscribe("gone", "c1", action="COMPLETE_REMOVE")
    session.call("a code without a handler", 200072, {"topic": PARENT})
    session.call("delete", 215, {"topic": PARENT})
    time.sleep(_DISPATCHED_S)
    session.ask("deleted")
    return session.found


def _field(name: str, value: str) -> str:
    if name == "popTime":
        return "<time>"
    # One part for each message, and lite topics come in any order.
    return ";".join(sorted(value.split(";"))) if name == "orderCountInfo" else value


def _plain(remark: str) -> str:
    """Without the names of Java's exceptions."""
    return remark.partition("Exception: ")[2] or remark


def _body_of(what: str, code: int, body: bytes) -> Any:
    if what.startswith("pop ") and code == 0:
        # Lite topics come in any order.
        return sorted(
            [m.body.decode(), m.topic, m.queue_id, sorted(m.properties)]
            for m in decode_messages(body, "broker-a")
        )
    return _settled(json.loads(body)) if body[:1] == b"{" else len(body)


def _settled(value: Any) -> Any:
    """Times replaced, sets in order; without how many topics have queue files."""
    if isinstance(value, dict):
        return {
            name: "<time>" if isinstance(each, int) and each > _A_MOMENT else _settled(each)
            for name, each in sorted(value.items())
            if name != "cqTableSize"
        }
    if isinstance(value, list):
        return sorted((_settled(each) for each in value), key=str)
    return value


@click.command()
@click.option("--broker", default="oberth", show_default=True, help="KIND of cluster.")
@click.option("--record", type=click.Path(dir_okay=False), help="Write the answers there.")
@click.option("--rival", type=click.Path(exists=True), help="Show what differs from a record.")
def main(broker: str, record: str | None, rival: str | None) -> None:
    """Ask a fresh broker about lite topics."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is stopped
    with cluster_for(broker, Path(tempfile.mkdtemp(prefix="oberth-lite-")), LITE_CONF) as cluster:
        found = answers(cluster.brokers[0].address)
    if record is not None:
        lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in found)
        Path(record).write_text(f"[\n{lines}\n]\n")
    if rival is not None:
        for theirs, ours in zip(json.loads(Path(rival).read_text()), found, strict=True):
            if theirs != json.loads(json.dumps(ours)):
                click.echo(f"- {theirs}\n+ {ours}")


if __name__ == "__main__":
    main()
