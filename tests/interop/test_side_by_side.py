"""Our broker beside Apache's: the same frames, the same scenario, answers compared.

Official clients hide mistakes of a broker: they filter tags again, keep locks and orders of their
own, correct offsets, check names and sizes before they send. So nothing here goes through a client:
what is counted is what leaves the broker. Checked is, without a client,

    what clients repeat                     what is asked of both brokers
    tags of what was pulled or popped       counts by tag; two tags with one Java hash
    expressions (bitmaps help the broker)   counts by property, before and after the heartbeat
    who may consume a queue in order        two clients lock, renew and unlock
    where to go on                          offsets below, at and beyond both ends
    how much at a time                      counts and bytes of a pull
    what was popped or acknowledged before  a second pop, an old receipt, an ack of another's
    names, sizes, permissions               sends and pulls that no client would make
    which subscription is the newest        versions beside that of the heartbeat
    when a message is due                   levels and times that are none, or too far away
    where a queue begins and ends           queues and topics that are not there
    what there is                           messages by key, id and offset; statistics, time spans
    that a group may be set back            with members and without, beyond both ends
    which messages are handed out           peeks, notifications, receipts that are none
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clusters import cluster_for

from oberth.client.messages import decode_messages
from oberth.errors import PeerUnavailableError
from oberth.formats.properties import encode_properties

pytestmark = pytest.mark.interop

CONF = {
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "diskMaxUsedSpaceRatio": "95",
    "waitTimeMillsInSendQueue": "10000",
    "popFromRetryProbability": "0",
}
TAGS = ("a", "b", "Aa", "BB")  # the last two have one hash
COUNT = 40
SENT, PULL, POP, ACK, LOCK, UNLOCK, HEARTBEAT = 310, 11, 200050, 200051, 41, 42, 34
DISPATCHED_S = 30.0


class Session:
    """One broker's answers, in the order of the questions."""

    def __init__(self, address: str) -> None:
        self.answers: dict[str, list[Any]] = {}
        self._scenario = ""
        host, _, port = address.rpartition(":")
        # One connection: who has said hello is known as long as it lasts.
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self._stream = self._socket.makefile("rb")
        self._opaque = 0

    def close(self) -> None:
        """Ends the connection."""
        self._stream.close()
        self._socket.close()

    def begin(self, scenario: str) -> None:
        """What follows belongs to this scenario."""
        self._scenario = scenario
        self.answers[scenario] = []

    def ask(
        self, code: int, fields: dict[str, Any], body: bytes = b""
    ) -> tuple[int, dict[str, str], bytes]:
        """Code, fields and body of an answer; nothing is noted."""
        self._opaque += 1
        header = {
            "code": code,
            "language": "OTHER",
            "version": 409,
            "opaque": self._opaque,
            "flag": 0,
            "extFields": {name: str(value) for name, value in fields.items()},
        }
        head = json.dumps(header).encode()
        self._socket.sendall(struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body)
        while True:
            size, word = struct.unpack(">iI", self._stream.read(8))
            rest = self._stream.read(size - 4)
            answer = json.loads(rest[: word & 0xFF_FFFF])
            # A broker asks, too: that the members of a group have changed.
            if answer["flag"] & 1 and answer["opaque"] == self._opaque:
                return answer["code"], answer.get("extFields") or {}, rest[word & 0xFF_FFFF :]

    def note(self, what: str, *answer: Any) -> None:
        """To be compared with what the other broker says here."""
        self.answers[self._scenario].append([what, *answer])

    # -------------------------------------------------------------------------------- requests

    def topic(self, name: str, queues: int = 1, perm: int = 6) -> None:
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": perm,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        assert self.ask(17, fields)[0] == 0

    def group(self, name: str, **more: Any) -> None:
        config = {"groupName": name, "consumeEnable": True, "retryQueueNums": 1, **more}
        assert self.ask(200, {}, json.dumps(config).encode())[0] == 0

    def send(
        self, topic: str, body: bytes, properties: dict[str, str], **more: Any
    ) -> tuple[int, dict[str, str]]:
        fields = {
            "a": "PG",
            "b": topic,
            "c": "TBW102",
            "d": 1,
            "e": 0,
            "f": 0,
            "g": time.time_ns() // 1_000_000,
            "h": 0,
            "i": encode_properties(properties).decode(),
            "j": 0,
            "k": "false",
            "m": "false",
        }
        code, given, _ = self.ask(SENT, {**fields, **more}, body)
        return code, given

    def fill(self, topic: str) -> None:
        """Messages with tags and a number, and waits until they can be read."""
        for number in range(COUNT):
            properties = {"TAGS": TAGS[number % 4], "n": str(number)}
            assert self.send(topic, b"%d" % number, properties)[0] == 0
        deadline = time.monotonic() + DISPATCHED_S
        while self.ask(30, {"topic": topic, "queueId": 0})[1].get("offset") != str(COUNT):
            assert time.monotonic() < deadline, "never dispatched"
            time.sleep(0.05)

    def heartbeat(self, client: str, group: str, topic: str, expression: str, **more: Any) -> int:
        subscription = {
            "topic": topic,
            "subString": expression,
            "expressionType": "TAG",
            "subVersion": 1,
            "tagsSet": [],
            "codeSet": [],
            "classFilterMode": False,
            **more,
        }
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [subscription],
        }
        body = {"clientID": client, "producerDataSet": [], "consumerDataSet": [consumer]}
        return self.ask(HEARTBEAT, {}, json.dumps(body).encode())[0]

    def pull(self, topic: str, group: str, offset: int = 0, **more: Any) -> list[Any]:
        """Code, where to go on, both ends, and what came, by tag."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 100,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 1,
            "expressionType": "TAG",
        }
        code, given, raw = self.ask(PULL, {**fields, **more})
        offsets = [given.get(name) for name in ("nextBeginOffset", "minOffset", "maxOffset")]
        return [code, *offsets, _tags(raw if code == 0 else b"")]

    def pop(self, topic: str, group: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": 0,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": time.time_ns() // 1_000_000,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        return self.ask(POP, {**fields, **more})

    def lock(self, code: int, client: str, topic: str, *queue_ids: int) -> list[int]:
        """The queues that the answer names."""
        queues = [{"topic": topic, "brokerName": "broker-a", "queueId": n} for n in queue_ids]
        body = {"consumerGroup": "LOCKS", "clientId": client, "mqSet": queues}
        answer, _, raw = self.ask(code, {}, json.dumps(body).encode())
        assert answer == 0
        named = json.loads(raw).get("lockOKMQSet", []) if raw else []
        return sorted(each["queueId"] for each in named)


def _tags(raw: bytes) -> dict[str, int]:
    found = Counter(each.properties["TAGS"] for each in decode_messages(raw, "broker-a"))
    return dict(sorted(found.items()))


# --------------------------------------------------------------------------------- scenarios


def tags(session: Session) -> None:
    """A tag that collides comes too: by its hash the broker cannot tell it."""
    session.fill("Tags")
    session.group("TAG_GROUP")
    for expression in ("*", "a", "a || b", "Aa", "BB", "none", "a||a", " a "):
        session.note(expression, session.pull("Tags", "TAG_GROUP", subscription=expression))
    for expression in ("*", "a", "b || Aa", "none"):
        group = f"POP_{expression.replace(' ', '').replace('|', '-').replace('*', 'all')}"
        session.group(group)
        code, _, raw = session.pop("Tags", group, exp=expression)
        session.note("pop", expression, code, _tags(raw if code == 0 else b""))


def expressions(session: Session) -> None:
    """SQL92 with a pull, and by a heartbeat, with bitmaps for what is sent after it."""
    session.topic("Sql")
    session.group("SQL_GROUP")
    sql: dict[str, Any] = {"expressionType": "SQL92"}
    session.note("hello", session.heartbeat("c", "SQL_GROUP", "Sql", "n BETWEEN 10 AND 19", **sql))
    session.fill("Sql")
    # Not asked: what is no expression. Apache's broker then hands out everything.
    for expression in ("n >= 30", "TAGS = 'Aa'", "n IS NULL", "x = 1 OR n IN ('1', '2')"):
        pulled = session.pull("Sql", "SQL_GROUP", subscription=expression, **sql)
        session.note(expression, pulled)
    session.note("heartbeat's", session.pull("Sql", "SQL_GROUP", sysFlag=0, **sql))
    for expression in ("n >= 30", "n IS NULL"):
        group = f"SQL_POP_{len(expression)}"
        session.group(group)
        code, _, raw = session.pop("Sql", group, exp=expression, expType="SQL92")
        session.note("pop", expression, code, _tags(raw if code == 0 else b""))


def locks(session: Session) -> None:
    """Who holds a queue of an ordered group."""
    session.topic("Locked", 4)
    for what, code, client, queue_ids in (
        ("first", LOCK, "one", (0, 1)),
        ("second wants more", LOCK, "two", (0, 1, 2)),
        ("first again", LOCK, "one", (0, 1, 2)),
        ("second unlocks what is not its own", UNLOCK, "two", (0, 1)),
        ("still the first's", LOCK, "two", (0, 1)),
        ("first unlocks one", UNLOCK, "one", (0,)),
        ("second gets that", LOCK, "two", (0, 1)),
        ("first has lost it", LOCK, "one", (0, 1)),
        ("nothing", LOCK, "one", ()),
    ):
        session.note(what, session.lock(code, client, "Locked", *queue_ids))


def offsets(session: Session) -> None:
    """Where to go on, from everywhere; how much comes at a time."""
    session.fill("Ends")
    session.group("ENDS")
    for offset in (-1, 0, 1, COUNT - 1, COUNT, COUNT + 1, 10**9):
        session.note(str(offset), session.pull("Ends", "ENDS", offset))
    for wanted in (1, 7, 32, 0, -1):
        session.note(f"{wanted} messages", session.pull("Ends", "ENDS", maxMsgNums=wanted))
    for queue_id in (1, -1, 100):
        session.note(f"queue {queue_id}", session.pull("Ends", "ENDS", queueId=queue_id)[0])
    for commit in (5, 3, COUNT + 100, -7):
        fields = {"consumerGroup": "ENDS", "topic": "Ends", "queueId": 0}
        code, _, _ = session.ask(15, {**fields, "commitOffset": commit})
        answer, given, _ = session.ask(14, fields)
        session.note(f"commit {commit}", code, answer, given.get("offset"))


def popped(session: Session) -> None:
    """What was handed out does not come again; receipts of others and of nobody."""
    session.fill("Popped")
    session.group("POPPER")
    code, given, raw = session.pop("Popped", "POPPER", maxMsgNums=8)
    session.note("first", code, _tags(raw))
    code, _, raw = session.pop("Popped", "POPPER", maxMsgNums=32)
    session.note("others", code, _tags(raw))
    code, _, raw = session.pop("Popped", "POPPER", maxMsgNums=32)
    session.note("nothing is left", code)
    receipt = f"0 {given['popTime']} {given['invisibleTime']} {given['reviveQid']} 0 broker-a 0"
    fields = {"consumerGroup": "POPPER", "topic": "Popped", "queueId": 0}
    for what, offset, info in (
        ("its own", 0, f"{receipt} 0"),
        ("again", 0, f"{receipt} 0"),
        ("beyond the end", 10**6, f"{receipt} {10**6}"),
        ("below the beginning", -1, f"{receipt} -1"),
    ):
        code, _, _ = session.ask(ACK, {**fields, "extraInfo": info, "offset": offset})
        session.note(f"ack, {what}", code)
    # Not asked: 0 or less, which Apache's broker takes for a pop that finds nothing.
    session.note("too many", session.pop("Popped", "POPPER", maxMsgNums=33)[0])


def refusals(session: Session) -> None:
    """Names, sizes and permissions that clients look at before they send."""
    session.topic("ReadOnly", perm=4)
    session.topic("WriteOnly", perm=2)
    session.group("REFUSED", consumeEnable=False)
    session.group("ALLOWED")
    for topic in ("WriteOnly", "Illegal$", "n" * 128, "SCHEDULE_TOPIC_XXXX", "TBW102"):
        session.note(topic, session.send(topic, b"x", {})[0])
    session.note("no such queue", session.send("WriteOnly", b"x", {}, e=99)[0])
    session.note("long properties", session.send("WriteOnly", b"x", {"a": "x" * 40_000})[0])
    session.note("long body", session.send("WriteOnly", bytes(5 << 20), {})[0])
    for topic, group in (
        ("WriteOnly", "ALLOWED"),
        ("ReadOnly", "REFUSED"),
        ("ReadOnly", "ALLOWED"),
        ("NoSuchTopic", "ALLOWED"),
    ):
        session.note(f"pull {topic} {group}", session.pull(topic, group)[0])
        session.note(f"pop {topic} {group}", session.pop(topic, group)[0])


def versions(session: Session) -> None:
    """A pull that relies on the heartbeat's subscription, older, equal and newer."""
    session.topic("Versions")
    session.group("VERSIONS")
    session.note("before", session.pull("Versions", "VERSIONS", sysFlag=0)[0])
    session.note("hello", session.heartbeat("c", "VERSIONS", "Versions", "a", subVersion=100))
    for version in (1, 100):
        pulled = session.pull("Versions", "VERSIONS", sysFlag=0, subVersion=version)
        session.note(str(version), pulled[0])
    # A newer version is refused by Apache's broker whatever it asks for, by ours if it cannot tell.
    newer: dict[str, Any] = {
        "sysFlag": 0,
        "subVersion": 101,
        "subscription": "a > 1",
        "expressionType": "SQL92",
    }
    session.note("newer", session.pull("Versions", "VERSIONS", **newer)[0])


def times(session: Session) -> None:
    """Levels beyond the last, times that are none, in the past, or beyond what the wheel holds."""
    session.topic("Times")
    far = str(time.time_ns() // 1_000_000 + 10**12)
    for name, text in (
        ("DELAY", "99"),
        ("DELAY", "-1"),
        ("DELAY", "0"),
        ("TIMER_DELIVER_MS", far),
        ("TIMER_DELIVER_MS", "x"),
        ("TIMER_DELIVER_MS", "-1"),
        ("TIMER_DELAY_SEC", "99999999"),
        ("TIMER_DELAY_SEC", "x"),
        ("TIMER_DELAY_MS", far),
        ("TIMER_DELAY_MS", "-5"),
        ("TIMER_DELAY_MS", "5x"),
    ):
        session.note(
            f"{name} {text if text != far else 'far'}", session.send("Times", b"x", {name: text})[0]
        )
    # A level that is no number is refused by both, by Apache's broker as its own failure.
    session.note("DELAY x", session.send("Times", b"x", {"DELAY": "x"})[0] != 0)
    session.note("half, unknown topic", session.send("Halves", b"x", {"TRAN_MSG": "true"}, f=4)[0])
    session.note("half, a flag alone", session.send("Times", b"x", {}, f=4)[0])


def ends(session: Session) -> None:
    """Both ends, and the place of a time, of queues that are there and that are not."""
    session.fill("There")
    now = time.time_ns() // 1_000_000
    for topic, queue_id in (("There", 0), ("There", 5), ("There", -1), ("Nowhere", 0)):
        fields: dict[str, Any] = {"topic": topic, "queueId": queue_id}
        for code in (30, 31):
            answer, given, _ = session.ask(code, fields)
            session.note(f"{code} {topic} {queue_id}", answer, given.get("offset"))
        session.note(f"32 {topic} {queue_id}", session.ask(32, fields)[0])
        for bound in ("LOWER", "UPPER"):
            for what, at in (("early", now - 10**7), ("late", now + 10**7), ("0", 0), ("-1", -1)):
                asked = {**fields, "timestamp": at, "boundaryType": bound}
                answer, given, _ = session.ask(29, asked)
                session.note(f"29 {topic} {queue_id} {what} {bound}", answer, given.get("offset"))


def looked_up(session: Session) -> None:
    """Messages by key, unique key and offset, and what is told of topics and groups."""
    session.topic("Looked")
    session.group("LOOKER")
    unique = "AC1100010000000000000000DEADBEEF"
    assert session.send("Looked", b"x", {"KEYS": "alpha beta", "UNIQ_KEY": unique})[0] == 0
    asked: dict[str, Any] = {"maxNum": 32, "beginTimestamp": 0, "endTimestamp": 2**62}
    deadline = time.monotonic() + DISPATCHED_S
    while session.ask(12, {**asked, "topic": "Looked", "key": "beta"})[0] != 0:
        assert time.monotonic() < deadline, "never indexed"
        time.sleep(0.05)
    for topic, key, by_id in (
        ("Looked", "alpha", False),
        ("Looked", "none", False),
        ("Looked", "", False),
        ("Nowhere", "alpha", False),
        ("Looked", unique, False),
        ("Looked", unique, True),
        ("Looked", "alpha", True),
    ):
        fields = {**asked, "topic": topic, "key": key}
        if by_id:
            fields["_UNIQUE_KEY_QUERY"] = "true"
        code, _, raw = session.ask(12, fields)
        session.note(f"{topic} {key} {by_id}", code, len(list(decode_messages(raw, "broker-a"))))
    for offset in (-1, 10, 10**12, 2**62):
        session.note(f"at {offset}", session.ask(33, {"offset": offset})[0])
    for code, fields in (
        (202, {"topic": "Looked"}),
        (202, {"topic": "Nowhere"}),
        (300, {"topic": "Nowhere"}),
        (208, {"consumerGroup": "LOOKER"}),
        (208, {"consumerGroup": "NOBODY"}),
        (208, {"consumerGroup": "LOOKER", "topic": "Nowhere"}),
        (303, {"topic": "Looked", "group": "LOOKER"}),
        (303, {"topic": "Nowhere", "group": "LOOKER"}),
        (303, {"topic": "Looked", "group": "NOBODY"}),
        (38, {"consumerGroup": "NOBODY"}),
        (203, {"consumerGroup": "NOBODY"}),
        (204, {"producerGroup": "NOBODY"}),
        (307, {"consumerGroup": "LOOKER", "clientId": "c"}),
    ):
        answer, _, raw = session.ask(code, fields)
        session.note(f"{code} {fields}", answer, bool(raw))


def set_back(session: Session) -> None:
    """A group's places, set by time and by offset, before it has a member and afterwards."""
    session.fill("Back")
    session.group("BACK")
    late = time.time_ns() // 1_000_000 + 10**7
    place = {"consumerGroup": "BACK", "topic": "Back", "queueId": 0}
    for member in (False, True):
        if member:
            assert session.heartbeat("me", "BACK", "Back", "*") == 0
        for what, fields in (
            ("to the beginning", {"timestamp": 0}),
            ("to the end", {"timestamp": -1}),
            ("to later", {"timestamp": late}),
            ("to 5", {"timestamp": -1, "offset": 5, "queueId": 0}),
            ("beyond", {"timestamp": -1, "offset": 10**9, "queueId": 0}),
            ("below", {"timestamp": -1, "offset": -3, "queueId": 0}),
            ("a queue that is not there", {"timestamp": -1, "offset": 5, "queueId": 99}),
            ("nowhere", {"timestamp": 0, "topic": "Nowhere"}),
        ):
            asked = {"topic": "Back", "group": "BACK", "isForce": "true", **fields}
            code, _, _ = session.ask(222, asked)
            session.note(f"{what} {member}", code, session.ask(14, place)[1].get("offset"))


def receipts(session: Session) -> None:
    """Peeks and notifications, and receipts that are none."""
    session.fill("Shown")
    session.topic("Hidden", perm=2)
    session.group("SHOWN")
    code, given, _ = session.pop("Shown", "SHOWN", maxMsgNums=4)
    receipt = f"0 {given['popTime']} {given['invisibleTime']} {given['reviveQid']} 0 broker-a 0"
    base: dict[str, Any] = {"consumerGroup": "SHOWN", "topic": "Shown", "queueId": 0, "offset": 0}
    for what, more in (
        ("its own", {"extraInfo": f"{receipt} 1", "offset": 1}),
        ("again", {"extraInfo": f"{receipt} 1", "offset": 1}),
        ("of nothing", {"extraInfo": ""}),
        ("of words", {"extraInfo": "x"}),
        ("too short", {"extraInfo": "0 1 2"}),
        ("beyond the end", {"extraInfo": f"{receipt} 99", "offset": 99}),
        ("of no topic", {"extraInfo": f"{receipt} 0", "topic": "Nowhere"}),
        ("of no queue", {"extraInfo": f"{receipt} 0", "queueId": 7}),
    ):
        asked = {**base, "invisibleTime": 20_000, **more}
        session.note(f"another time, {what}", session.ask(200053, asked)[0])
        session.note(f"ack, {what}", session.ask(ACK, {**base, **more})[0])
    for body in (b"xx", b'{"brokerName":"broker-a","acks":[]}'):
        session.note(f"batch of acks {body!r}", session.ask(200151, {}, body)[0])
    asked = {"pollTime": 0, "bornTime": time.time_ns() // 1_000_000, "maxMsgNums": 4}
    for topic, group, queue_id in (
        ("Shown", "SHOWN", 0),
        ("Shown", "SHOWN", -1),
        ("Shown", "SHOWN", 9),
        ("Shown", "NOBODY", 0),
        ("Nowhere", "SHOWN", 0),
        ("Hidden", "SHOWN", 0),
    ):
        fields = {**asked, "topic": topic, "consumerGroup": group, "queueId": queue_id}
        code, _, raw = session.ask(200052, fields)
        session.note(f"peek {topic} {group} {queue_id}", code, _tags(raw if code == 0 else b""))
        code, given, _ = session.ask(200054, fields)
        session.note(f"notify {topic} {group} {queue_id}", code, given.get("hasMsg") == "true")
        session.note(f"polling {topic} {group} {queue_id}", session.ask(200055, fields)[0])


SCENARIOS = (
    *(tags, expressions, locks, offsets, popped, refusals, versions),
    *(times, ends, looked_up, set_back, receipts),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Session]]:
    """A broker of Apache's and one of ours, side by side."""
    with ExitStack() as stack:
        sessions = []
        for kind in ("apache-5.5.0", "oberth"):
            directory: Path = tmp_path_factory.mktemp(kind.replace(".", "-"))
            try:
                made = cluster_for(kind, directory, CONF)
            except PeerUnavailableError as why:
                pytest.skip(str(why))
            cluster = stack.enter_context(made)
            session = Session(cluster.brokers[0].address)
            stack.callback(session.close)
            sessions.append(session)
        yield sessions


@pytest.mark.parametrize("questions", SCENARIOS, ids=lambda each: each.__name__)
def test_both_answer_the_same(both: list[Session], questions: Any) -> None:
    for session in both:
        session.begin(questions.__name__)
        questions(session)
    theirs, ours = (session.answers[questions.__name__] for session in both)
    assert ours == theirs
