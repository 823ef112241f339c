"""No frame that a peer may send holds a server's loop: the worst of every code is sent.

Counted, not timed: the lines of Python and the calls of C that one turn of the loop makes while it
serves a frame. A step took 37 ns in the parser of SQL92, 33 ns where entries of files are made
text, 21 to 40 ns in the parser of JSON's dialects (on the processor time of a core at 3 GHz), so
OPERATIONS_MAX are some 9 ms and DIALECT_OPERATIONS_MAX 5 to 9 ms, half of what a turn may take.
What C does with a whole body in one call is not in it: a body of a megabyte with as many objects
and values as are allowed is decoded in 5 ms, and the sizes of all codes' bodies are looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
import threading
import zlib
from asyncio import events
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from oberth import kernels
from oberth.broker.clients import CLIENT_ID_LENGTH_MAX, GROUPS_PER_CHANNEL_MAX
from oberth.broker.consumers import ConsumerGroup
from oberth.broker.processors.client import HEARTBEAT_SIZE_MAX
from oberth.formats import names
from oberth.formats.batch_body import ITEM_COUNT_MAX
from oberth.formats.json_reader import CONTAINERS_MAX, VALUES_MAX, parse_config
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.kernels import runtime
from oberth.kernels.batch import PLAIN_ITEM_COUNT_MAX
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.processors import (
    SERVER_HEADER_SIZE_MAX,
    ProcessorTable,
)
from oberth.remoting.bodies.admin import (
    ACKS_SIZE_MAX,
    GROUPS_PER_LIST_MAX,
    LIST_SIZE_MAX,
    TOPICS_PER_LIST_MAX,
)
from oberth.remoting.bodies.base import ANSWER_SIZE_MAX
from oberth.remoting.bodies.registration import REGISTERED_TOPICS_MAX
from oberth.remoting.code import RequestCode as Code
from oberth.remoting.command import (
    FRAME_SIZE_MAX,
    RemotingCommand,
    create_response,
    encode_frame_bytes,
)
from oberth.remoting.connection import RemotingConnection
from oberth.remoting.headers.base import field_types
from oberth.remoting.headers.table import HEADERS
from oberth.store.messages import MessageExtBrokerInner

if TYPE_CHECKING:
    MakeLive = Callable[..., Awaitable[Any]]

OPERATIONS_MAX = 250_000
DIALECT_OPERATIONS_MAX = 235_000
"""For a body of 16 KiB that is no JSON proper."""
PLAIN_OPERATIONS_MAX = 450_000
"""For a batch without kernels, with its dispatch: some 15 ms."""
JSON_SIZE_MAX = LIST_SIZE_MAX
"""Bytes of a body that is decoded in one call."""

WHOLE_FRAMES = {
    Code.SEND_MESSAGE: "a message, whose body is copied",
    Code.SEND_MESSAGE_V2: "a message, whose body is copied",
    Code.SEND_BATCH_MESSAGE: "messages, whose bodies are copied",
    Code.SEND_REPLY_MESSAGE: "a message, whose body is handed on",
    Code.SEND_REPLY_MESSAGE_V2: "a message, whose body is handed on",
    Code.REGISTER_BROKER: "topics, read in slices",
}
"""Codes whose bodies may be as long as a frame, and why."""

MESSAGE = {
    "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000",
    "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
CREATE = {
    "topic": "st", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "force": "true",
}  # fmt: skip
PULL = {
    "consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "65000",
    "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
}  # fmt: skip
POP = {
    "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0",
    "bornTime": "0", "initMode": "1", "expType": "TAG", "exp": "*",
}  # fmt: skip
BROKER = {
    "brokerName": "x", "brokerAddr": "192.0.2.1:1", "clusterName": "c", "brokerId": "0",
    "haServerAddr": "192.0.2.1:2", "compressed": "true", "bodyCrc32": "0",
}  # fmt: skip
SQL = " or ".join("a contains 'x'" for _ in range(390))


WIDE = 8192
"""Queues of a topic: more would only take longer."""
MANY = 3000
"""Topics, groups, producers."""
LITE_TOPICS = 40_000
"""That one group takes: offsets of far more are kept."""


DIALECT = "a dialect of JSON"
DIALECTS = {
    "empty lists": (b"{'a':[", b"[],", 1000, b"]}"),
    "too many lists": (b"{'a':[", b"[],", 4000, b"]}"),
    "objects": (b"{'a':[", b"{a:1.5F,b:2D},", 1000, b"]}"),
    "numbers": (b"{'a':[", b"1,", 8000, b"]}"),
    "numbers of another kind": (b"{'a':[", b"1.5F,", 3200, b"]}"),
    "texts": (b"{'a':[", b"'',", 5400, b"]}"),
    "escapes": (b"{'a':'", b"\\n", 8000, b"'}"),
    "words": (b"{'a':[", b"NaN,", 4000, b"]}"),
    "bare keys": (b"{'a':{", b"b:1,", 4000, b"}}"),
    "objects that are keys": (b"{'a':{", b"{'b':1.5,'c':2}:1,", 500, b"}}"),
    "references": (b"{'b':1,'a':[", b"{'$ref':'$.b'},", 250, b"]}"),
    "commas": (b"{'a':[", b",", 16000, b"]}"),
}
"""Bodies of LENIENT_SIZE_MAX bytes at most: what comes first, what again and again, what last."""


class Frame(NamedTuple):
    """What is sent, and what it is called."""

    name: str
    code: int
    fields: dict[str, str]
    body: bytes = b""


class Turns:
    """Counts what each turn of the running loop does: lines of Python and calls of C.

    Loops of other threads, where clients run, are not counted.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self.counting = False
        self._count = 0
        original = events.Handle._run
        turns, thread = self, threading.get_ident()

        def run(handle: events.Handle) -> None:
            if not turns.counting or threading.get_ident() != thread:
                original(handle)
                return
            turns._count = 0
            traced, profiled = sys.gettrace(), sys.getprofile()
            sys.setprofile(turns._on_call)
            sys.settrace(turns._on_line)
            try:
                original(handle)
            finally:
                sys.settrace(traced)
                sys.setprofile(profiled)
                turns.most = max(turns.most, turns._count)

        monkeypatch.setattr(events.Handle, "_run", run)

    def _on_call(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "c_call":
            self._count += 1

    def _on_line(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            self._count += 1
        return self._on_line


class RawPeer:
    """One connection, spoken to from another thread: what it does itself is not counted."""

    def __init__(self, address: Any) -> None:
        self.socket = socket.create_connection(tuple(address))
        self.socket.settimeout(60)
        self.connection = RemotingConnection()
        self.answers: list[RemotingCommand] = []

    def send(self, frame: Frame) -> None:
        request = RemotingCommand(
            code=frame.code, ext_fields=frame.fields, body=frame.body, opaque=1, version=479
        )
        with contextlib.suppress(OSError):
            self.socket.sendall(encode_frame_bytes(request))

    def wait_for_the_end(self, opaque: int) -> None:
        """Ask what nobody serves: its answer, or a closed connection, says that all was read."""
        with contextlib.suppress(OSError):
            self.socket.sendall(encode_frame_bytes(RemotingCommand(code=29999, opaque=opaque)))
            self.read_until(opaque)

    def read_until(self, opaque: int) -> None:
        """Read until a request is answered, or the connection closed."""
        while not any(answer.opaque == opaque for answer in self.answers):
            data = self.socket.recv(1 << 20)
            if not data:
                break
            self.answers += self.connection.receive_data(data)

    def close(self) -> None:
        self.socket.close()


def filled(size: int, item: Callable[[int], bytes], head: bytes, tail: bytes) -> bytes:
    """A body of at most ``size`` bytes with as many items as go in."""
    parts = []
    left = size - len(head) - len(tail)
    number = 0
    while (left := left - len(part := item(number)) - 1) >= 0:
        parts.append(part)
        number += 1
    return head + b",".join(parts) + tail


def heartbeat(size: int, kind: str, item: Callable[[int], bytes]) -> bytes:
    return filled(size, item, b'{"clientID":"c","%s":[' % kind.encode(), b"]}")


def dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def compressed_registration(count: int, topic: Callable[[int], bytes]) -> bytes:
    version = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    topics = b"".join(struct.pack(">i", len(text := topic(n))) + text for n in range(count))
    plain = struct.pack(">i", len(version)) + version + struct.pack(">i", count) + topics
    return zlib.compress(plain + struct.pack(">i", 2) + b"[]", 9)


def frames_of(code: Code, body_size_max: int) -> Iterator[Frame]:
    """Whatever the code: names that exist with the largest numbers, long texts, bodies of junk."""
    header = HEADERS.get(code, (None, None))[0]
    types = field_types(header) if header is not None else {}
    texts = max(sum(kind is str for kind, _ in types.values()), 1)
    length = (SERVER_HEADER_SIZE_MAX - 8192) // texts
    known = {"topic": "T", "consumerGroup": "G", "group": "G", "producerGroup": "PG", "a": "PG"}
    for name, number, text in (
        ("largest numbers", str(2**31 - 1), None),
        ("long texts", "1", "x,y;" * (length // 4)),
    ):
        fields = {}
        for wire_name, (kind, _) in types.items():
            if kind is int:
                fields[wire_name] = number
            elif kind is bool:
                fields[wire_name] = "true"
            else:
                fields[wire_name] = text or known.get(wire_name, "T")
        yield Frame(f"{code.name}: {name}", code, fields)
    fields = dict.fromkeys(types, "1")
    size = min(body_size_max, JSON_SIZE_MAX)
    junk = b'{"a":[' + b"[]," * (CONTAINERS_MAX - 10) + b"1," * 1000
    junk += b"1," * (VALUES_MAX - junk.count(b",") - 2)
    junk = (junk + b'"%s"]}' % (b"x" * (size - len(junk) - 4)))[:size]
    if len(junk) == size and junk[-1:] != b"}":
        junk = filled(size, lambda _: b"[]", b'{"a":[', b"]}")
    yield Frame(f"{code.name}: body of lists", code, fields, junk)
    for name, (first, again, count, last) in DIALECTS.items():
        lenient = first + again * count + last
        yield Frame(f"{code.name}: {name} in {DIALECT}", code, fields, lenient)
    yield Frame(f"{code.name}: 4096 fields", code, {f"f{n}": "x" * 40 for n in range(4096)})


def batch_frames() -> Iterator[Frame]:
    """Batches of as many items as one may have, and of as many properties as go in."""
    for topic in ("T", "B", "C"):  # of a plain queue, of a batch queue, of one that is compacted
        fields = {**MESSAGE, "b": topic, "m": "true", "i": "UNIQ_KEY\x01batch\x02"}
        for name, count, properties in (
            ("most items", ITEM_COUNT_MAX, b""),
            ("too many items", 150_000, b""),
            ("keys", ITEM_COUNT_MAX, b"UNIQ_KEY\x01abcdefgh\x02KEYS\x01k1 k2\x02TAGS\x01a\x02"),
            (
                "a broker's properties",
                ITEM_COUNT_MAX,
                b"CLUSTER\x01a\x02POP_CK\x01b\x02KEYS\x01k\x02",
            ),
            ("empty properties", 120, b"\x02" * 32_700),
            ("short properties", 120, b"a\x01\x02" * 10_900),
            ("a broker's properties alone", 120, b"CLUSTER\x01a\x02" * 3_200),
            ("a broker's properties, nearly", 120, b"CLUSTE\x01a\x02" * 3_200),
        ):
            size = 22 + len(properties)
            head = struct.pack(">iiiiih", size, 0, 0, 0, 0, len(properties))
            body = (head + properties) * count
            yield Frame(f"batch to {topic}, {name}", 320, fields, body)


def broker_frames() -> Iterator[Frame]:
    topics: list[dict[str, object]] = [
        {"topicName": f"t{n}", "readQueueNums": 4, "writeQueueNums": 4, "attributes": {}}
        for n in range(TOPICS_PER_LIST_MAX)
    ]
    yield Frame("list of topics", 18, {}, dump({"topicConfigList": topics}))
    groups = [{"groupName": f"g{n}"} for n in range(GROUPS_PER_LIST_MAX)]
    yield Frame("list of groups", 225, {}, dump({"groupConfigList": groups}))
    size = HEARTBEAT_SIZE_MAX
    for kind in ("producerDataSet", "consumerDataSet"):
        body = heartbeat(size, kind, lambda n: b'{"groupName":"g%x"}' % n)
        yield Frame(f"heartbeat of many {kind}", 34, {}, body)
        yield Frame(f"heartbeat of empty {kind}", 34, {}, heartbeat(size, kind, lambda _: b"{}"))
    one_group = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":['
    for name, item in (
        ("topics", lambda n: b'{"topic":"%x"}' % n),
        ("nothing", lambda n: b"{}"),
        ("tags", lambda n: b'{"topic":"%x","subString":"%s"}' % (n, b"a||b||" * 900)),
        ("many tags", lambda n: b'{"topic":"%x","subString":"%s"}' % (
            n, b"||".join(b"%x" % tag for tag in range(7000)))),
        ("expressions", lambda n: b'{"topic":"%x","expressionType":"SQL92",'
            b'"subString":"%s or a=%d"}' % (n, SQL.encode(), n)),
    ):  # fmt: skip
        yield Frame(f"heartbeat with {name}", 34, {}, filled(size, item, one_group, b"]}]}"))
    expressions = heartbeat(
        size,
        "consumerDataSet",
        lambda n: (
            b'{"groupName":"s%x","subscriptionDataSet":[{"topic":"T","expressionType":"SQL92",'
            b'"subString":"%s or a=%d"}]}' % (n, SQL.encode(), n)
        ),
    )
    yield Frame("heartbeat of groups with expressions", 34, {}, expressions)
    queues = filled(
        size - 80_000,
        lambda n: b'{"topic":"%x","brokerName":"b","queueId":1}' % n,
        b'{"consumerGroup":"G","clientId":"c","mqSet":[',
        b"]}",
    )
    yield Frame("locks", 41, {}, queues)
    yield Frame("locks given back", 42, {}, queues)
    for expression in (
        SQL,
        "-" * 20_000 + "1=1",
        " or ".join("not " * 60 + "a" for _ in range(100)),
        "a in (" + ",".join(f"'{n}'" for n in range(2040)) + ")",
        "a = '" + "x" * 32_000 + "'",
        "a = " + "9" * 32_000,
    ):
        data = {"topic": "T", "expressionType": "SQL92", "subString": expression}
        yield Frame(f"expression {expression[:12]}", 46, {}, dump({"subscriptionData": data}))
        yield Frame(
            f"pull with {expression[:12]}",
            11,
            {**PULL, "subscription": expression, "expressionType": "SQL92"},
        )
    tags = "||".join(f"{n:x}" for n in range(10_000))
    yield Frame("pull with 10 000 tags", 11, {**PULL, "subscription": tags})
    yield Frame("pull of everything", 11, PULL)
    for name, text in (
        ("properties", "".join(f"k{n:x}\x01v\x02" for n in range(4000))),
        ("empty properties", "a\x01\x02" * 10_000),
        ("keys", "KEYS\x01" + " ".join(f"{n:x}" for n in range(6000)) + "\x02"),
        ("properties alike", "".join(f"{n:x}a\x01v\x02" for n in range(4000))),
    ):
        for number in range(4):
            yield Frame(f"send with {name}, {number}", 310, {**MESSAGE, "b": "P", "i": text})
    for expression in (SQL, " or ".join("a contains 'x'" for _ in range(16))):
        filtered = {"subscription": expression, "expressionType": "SQL92", "topic": "P"}
        yield Frame(f"pull of long properties, {len(expression)}", 11, {**PULL, **filtered})
    heads = [f"t{n}" for n in range(8)]
    for head in heads:
        yield Frame(f"send to a new topic {head}", 310, {**MESSAGE, "b": head})
    stretches = b'[{"bname":"broker-a","gen":0,"logicOffset":0,"queueId":0,"startOffset":0}]'
    mapping = filled(
        32 * 1024,
        lambda n: b'"%d":%b' % (n, stretches),
        b'{"topic":"st","bname":"broker-a","epoch":1,"totalQueues":65536,"hostedQueues":{',
        b"}}",
    )
    yield Frame("mapping of many queues", 513, CREATE, mapping)
    stretches = filled(
        32 * 1024,
        lambda n: b'{"bname":"x","gen":%d,"logicOffset":%d,"startOffset":0,"endOffset":1}' % (n, n),
        b'{"topic":"st","bname":"broker-a","epoch":1,"totalQueues":1,"hostedQueues":{"0":[',
        b"]}}",
    )
    yield Frame("mapping of many stretches", 513, CREATE, stretches)
    yield Frame("topics of a group", 208, {"consumerGroup": "G", "topicList": "T;" * 100_000})
    acks = filled(
        ACKS_SIZE_MAX,
        lambda n: b'{"c":"G","t":"T","so":%d,"pt":1,"it":60000,"b":"%s"}' % (n, b"/" * 60),
        b'{"brokerName":"broker-a","acks":[',
        b"]}",
    )
    yield Frame("acknowledgements", 200151, {}, acks)
    names = filled(
        32 * 1024,
        lambda n: b'"name-of-lite-%x"' % n,
        b'{"subscriptionSet":[{"clientId":"c","group":"G","topic":"T","action":"COMPLETE_ADD",'
        b'"liteTopicSet":[',
        b"]}]}",
    )
    yield Frame("lite topics", 200071, {}, names)


def namesrv_frames() -> Iterator[Frame]:
    plain = compressed_registration(5000, lambda n: b"t%d 4 4 6 SINGLE_TAG" % n)
    yield Frame("compressed registration", 103, BROKER, plain)
    for count in (REGISTERED_TOPICS_MAX + 1, 600_000):
        data = compressed_registration(count, lambda n: b"a 4 4 6 b")
        yield Frame(f"compressed registration of {count}", 103, BROKER, data)
    bomb = zlib.compress(bytes(64 << 20), 9)
    yield Frame("compressed zeros", 103, BROKER, bomb)
    table = {
        f"t{n}": {"topicName": f"t{n}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for n in range(5000)
    }
    version = {"counter": 2, "stateVersion": 0, "timestamp": 2}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    body = dump({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    fields = {**BROKER, "compressed": "false"}
    yield Frame("registration as JSON", 103, fields, body)
    head = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{'
    for name, item in (("empty", lambda n: b'"%x":{}' % n), ("odd", lambda n: b"[]")):
        junk = filled(1 << 20, item, head, b"}}}")
        yield Frame(f"registration of {name} topics", 103, fields, junk)
    for code in (206, 105, 106, 205, 104):
        yield Frame(f"{Code(code).name} of all", code, {**BROKER, "topic": "t1"})


def warm_up() -> None:
    """What happens once in a process: patterns of the dialects' reader are compiled."""
    parse_config(b"{'a':1}")


THREAD_FIRST = ("list of topics", "list of groups", "send with ", "2900")
"""How the names of frames begin that are answered when a thread has done something."""


async def measure(
    turns: Turns, address: Any, table: ProcessorTable, frames: list[Frame]
) -> dict[str, tuple[int, RemotingCommand | None]]:
    """The most operations in one turn of the loop, by frame."""
    loop = asyncio.get_running_loop()
    warm_up()
    found = {}
    for frame in frames:
        peer = await loop.run_in_executor(None, RawPeer, address)
        turns.most = 0
        turns.counting = True
        await loop.run_in_executor(None, peer.send, frame)
        await loop.run_in_executor(None, peer.wait_for_the_end, 2)
        while table._slices.waiting_bytes:  # noqa: ASYNC110 - each turn is a slice
            await asyncio.sleep(0)
        await loop.run_in_executor(None, peer.wait_for_the_end, 3)
        if frame.name.startswith(THREAD_FIRST):
            await loop.run_in_executor(None, peer.read_until, 1)
        await loop.run_in_executor(None, peer.close)
        turns.counting = False
        answers = [answer for answer in peer.answers if answer.opaque == 1]
        found[frame.name] = turns.most, answers[0] if answers else None
    return found


def too_much(found: dict[str, tuple[int, RemotingCommand | None]]) -> dict[str, int]:
    return {
        name: most
        for name, (most, _) in found.items()
        if most > (DIALECT_OPERATIONS_MAX if name.endswith(DIALECT) else OPERATIONS_MAX)
    }


def check_body_sizes(table: ProcessorTable) -> None:
    for code in table.codes:
        allowed = table.body_size_max(code)
        assert allowed <= (FRAME_SIZE_MAX if code in WHOLE_FRAMES else JSON_SIZE_MAX), code


async def test_every_frame_to_a_broker(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(enablePropertyFilter="true", autoCreateSubscriptionGroup="true")
    check_body_sizes(live.broker.services.processors)
    await live.peer.send("T")
    await live.peer.heartbeat("G", {"T": "*"})
    turns = Turns(monkeypatch)
    codes = sorted(live.broker.services.processors.codes)
    general = [
        frame
        for code in codes
        for frame in frames_of(Code(code), live.broker.services.processors.body_size_max(code))
    ]
    found = await measure(
        turns, live.broker.address, live.broker.services.processors, [*general, *broker_frames()]
    )
    assert not too_much(found), str(too_much(found))
    assert (await live.peer.send("T")).code == 0
    for name in ("properties", "empty properties", "keys", "properties alike"):
        answer = found[f"send with {name}, 0"][1]
        assert answer is not None
        assert answer.code == 0, answer.remark
    for name in ("list of topics", "list of groups", "locks", "acknowledgements"):
        answer = found[name][1]
        assert answer is not None
        assert answer.code != 1, answer.remark


def shown_frames() -> Iterator[Frame]:
    """What asks for all that a broker has."""
    wide = {"topic": "wide", "group": "G", "consumerGroup": "G"}
    for code in (202, 208, 303, 308, 300):
        yield Frame(f"{code} of a wide topic", code, {**wide, "compareGroup": "G"})
    for code in (21, 201, 43, 45, 402, 328):
        yield Frame(f"{code} of everything", code, {})
    yield Frame("208 of a group in many topics", 208, {"consumerGroup": "H"})
    for order in ("true", "false"):
        yield Frame(f"317, order {order}", 317, {"isOrder": order})
    reset = {"topic": "wide", "group": "G", "timestamp": "0", "isForce": "true"}
    yield Frame("222 of a wide topic", 222, reset)
    yield Frame("314 of a wide topic", 314, {"srcGroup": "G", "destGroup": "K", "topic": "wide"})
    yield Frame("203 of many subscriptions", 203, {"consumerGroup": "H"})
    yield Frame("38 of a group", 38, {"consumerGroup": "H"})
    yield Frame("204 of a group", 204, {"producerGroup": "p1"})
    yield Frame("343 of a group in many topics", 343, {"group": "H"})
    for code in (200050, 200052, 200054):
        for group in ("G", "new"):
            name = f"{code} of a wide topic by {group}"
            yield Frame(name, code, {**POP, "topic": "wide", "consumerGroup": group})
    yield Frame("215 of a wide topic", 215, {"topic": "wide"})
    yield Frame("29001 of everything", 29001, {})
    purge = {"topic": "t0", "timestamp": "0", "dryRun": "true"}
    yield Frame("29002 of a topic", 29002, purge)
    units = {"topic": "t1", "queueId": "0", "index": "0", "count": "10000"}
    yield Frame("321 of a long queue", 321, {**units, "consumerGroup": "H"})
    yield Frame("207 of a group", 207, {"groupName": "H", "cleanOffset": "true"})


@pytest.mark.skipif(not kernels.available(), reason="plain Python takes fewer")
async def test_batches_of_tens_of_thousands(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(mappedFileSizeCommitLog=str(32 << 20))
    topics = live.broker.parts.topics
    for name, attributes in (
        ("T", {}), ("B", {"queue.type": "BatchCQ"}), ("C", {"cleanup.policy": "COMPACTION"}),
    ):  # fmt: skip
        topics.update(TopicConfig(topic_name=name, attributes=attributes))
    turns = Turns(monkeypatch)
    processors = live.broker.services.processors
    found = await measure(turns, live.broker.address, processors, list(batch_frames()))
    assert not too_much(found), str(too_much(found))
    codes = {name: answer.code for name, (_, answer) in found.items() if answer is not None}
    for topic in ("T", "B", "C"):
        assert codes[f"batch to {topic}, keys"] == 0
        assert codes[f"batch to {topic}, too many items"] == 13
    assert (await live.peer.send("T")).code == 0


async def test_batches_without_kernels(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain Python takes 400 steps a message: what it would work on for long is refused."""
    runtime.use_reference_only(True)
    try:
        live = await make_live(mappedFileSizeCommitLog=str(32 << 20))
        live.broker.parts.topics.update(TopicConfig(topic_name="T"))
        frames = [frame for frame in batch_frames() if frame.name.startswith("batch to T")]
        properties = b"UNIQ_KEY\x01abcdefgh\x02KEYS\x01k1 k2\x02TAGS\x01a\x02"
        head = struct.pack(">iiiiih", 22 + len(properties), 0, 0, 0, 0, len(properties))
        for count in (PLAIN_ITEM_COUNT_MAX, PLAIN_ITEM_COUNT_MAX + 1):
            body = (head + properties) * count
            frames.append(Frame(f"{count} items", 320, frames[0].fields, body))
        turns = Turns(monkeypatch)
        processors = live.broker.services.processors
        found = await measure(turns, live.broker.address, processors, frames)
        assert {n for n, (m, _) in found.items() if m > PLAIN_OPERATIONS_MAX} == set()
        answers = {name: answer for name, (_, answer) in found.items() if answer is not None}
        taken = answers.pop(f"{PLAIN_ITEM_COUNT_MAX} items")
        assert taken.code == 0
        assert [answer.code for answer in answers.values()] == [13] * len(answers)
        assert sum("missing on this server" in str(a.remark) for a in answers.values()) >= 7
    finally:
        runtime.use_reference_only(False)


@pytest.mark.parametrize("by_clients", ["true", "false"])
async def test_what_shows_all_that_is_stored(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, by_clients: str
) -> None:
    use_server = "false" if by_clients == "true" else "true"
    live = await make_live(autoCreateSubscriptionGroup="true", useServerSideResetOffset=use_server)
    parts = live.broker.parts
    parts.topics.update(TopicConfig(topic_name="wide", read_queue_nums=WIDE, write_queue_nums=WIDE))
    await live.peer.heartbeat("G", {"wide": "*"})
    await live.peer.heartbeat("H", {f"t{n}": "*" for n in range(MANY // 4)})
    producers = [{"groupName": f"p{n}"} for n in range(MANY)]
    await live.peer.call(34, body=dump({"clientID": "c", "producerDataSet": producers}))
    with live.broker.services.table_files.topics_written_once:
        for number in range(MANY):
            parts.topics.create_internal(f"t{number}", 1)
    for number in range(MANY):
        parts.groups.find(f"g{number}")
        parts.offsets.commit("H", f"t{number}", 0, 1, 1)
        parts.offsets.commit(f"g{number}", "t0", 0, 1, 1)
    for queue_id in range(WIDE):
        parts.offsets.commit("G", "wide", queue_id, 0, 1)
        parts.offsets.commit("h", "wide", queue_id, 0, 1)
    item = struct.pack(">iiiiih", 22, 0, 0, 0, 0, 0)
    batch = {**MESSAGE, "b": "t1", "e": "0", "m": "true"}
    assert (await live.peer.call(320, batch, item * 1000)).code == 0
    for _ in range(9):
        await live.peer.call(320, batch, item * 1000)
    turns = Turns(monkeypatch)
    found = await measure(
        turns, live.broker.address, live.broker.services.processors, list(shown_frames())
    )
    assert not too_much(found), str(too_much(found))
    answer = found["321 of a long queue"][1]
    assert answer is not None
    assert answer.body_bytes().count(b'"physicOffset":') == 10_000
    for name in ("29001 of everything", "29002 of a topic"):
        answer = found[name][1]
        assert answer is not None
        assert answer.code == 0, answer.remark
    for name in ("202 of a wide topic", "208 of a wide topic", "303 of a wide topic"):
        answer = found[name][1]
        assert answer is not None
        assert answer.body_bytes().count(b'"queueId":') == WIDE


@pytest.mark.parametrize("order", ["true", "false"])
async def test_pops_of_very_many_queues_with_messages(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    live = await make_live(autoCreateSubscriptionGroup="true")
    parts = live.broker.parts
    parts.topics.update(TopicConfig(topic_name="wide", read_queue_nums=WIDE, write_queue_nums=WIDE))
    for number in range(WIDE):
        message = MessageExtBrokerInner("wide", b"x", b"", number)
        assert parts.store.append_messages([message])[0].ok
    await live.peer.send("T")
    turns = Turns(monkeypatch)
    frames = [
        Frame(
            f"{code} by {group}, {number}",
            code,
            {**POP, "topic": "wide", "consumerGroup": group, "order": order},
        )
        for code in (200050, 200052, 200054)
        for group in ("G", "H")
        for number in range(2)
    ]
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    for name, (_, answer) in found.items():
        assert answer is not None, name
        assert answer.code == 0, (name, answer.remark)
    assert len(parts.offsets.queues("G", "wide")) <= 4


async def test_a_client_of_very_many_groups_with_a_long_id(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who shows all producers ends where no frame is longer: of 60 MB no more than 16 are made."""
    live = await make_live()
    producers = [{"groupName": f"p{n}"} for n in range(GROUPS_PER_CHANNEL_MAX)]
    heartbeat = {"clientID": "\1" * CLIENT_ID_LENGTH_MAX, "producerDataSet": producers}
    assert (await live.peer.call(34, body=dump(heartbeat))).code == 0
    assert len(live.broker.parts.producers.groups()) == GROUPS_PER_CHANNEL_MAX
    turns = Turns(monkeypatch)
    frames = [Frame("328", 328, {}), Frame("204", 204, {"producerGroup": "p1"})]
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    shown, one = found["328"][1], found["204"][1]
    assert shown is not None
    assert one is not None
    assert (shown.code, one.code) == (1, 0)
    assert "the answer is longer than a frame may be" in str(shown.remark)


@pytest.mark.parametrize("name", ["lists", "queues", "texts"])
async def test_what_a_client_answers_to_223(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What a member of the group says holds the loop no longer than a request may."""
    live = await make_live()
    queues = 5000
    answer = {
        "lists": b"{'a':[" + b"[]," * 5_000_000 + b"]}",
        "queues": filled(
            ANSWER_SIZE_MAX,
            lambda n: b'{"brokerName":"broker-a","queueId":%d,"topic":"T"}:%d' % (n, n),
            b'{"messageQueueTable":{',
            b"}}",
        ),
        "texts": b"{'a':[" + b"''," * 60_000 + b"]}",
    }[name]
    table = ProcessorTable()
    table.sync([40], lambda channel, request: None)
    table.sync([221], lambda channel, request: create_response(request, 0, body=answer))
    await live.another(table).heartbeat("G", {"T": "*"}, client_id="member")
    turns = Turns(monkeypatch)
    frames = [Frame(name, 223, {"topic": "T", "group": "G"})]
    peer = await asyncio.to_thread(RawPeer, live.broker.address)
    warm_up()
    turns.counting = True
    await asyncio.to_thread(peer.send, frames[0])
    await asyncio.to_thread(peer.read_until, 1)
    turns.counting = False
    await asyncio.to_thread(peer.close)
    assert turns.most <= OPERATIONS_MAX
    (told,) = peer.answers
    assert told.code == 0
    count = told.body_bytes().count(b'"queueId":')
    assert count > queues if name == "queues" else count == 0
    member = b'"member":' in told.body_bytes()
    assert member is (name != "lists")


@pytest.mark.parametrize("how", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "unknown"])
async def test_the_queues_of_a_member_of_a_wide_topic(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    live = await make_live()
    topics = live.broker.parts.topics
    topics.update(TopicConfig(topic_name="wide", read_queue_nums=WIDE, write_queue_nums=WIDE))
    await live.peer.heartbeat("G", {"wide": "*"})
    asked = {
        "topic": "wide", "consumerGroup": "G", "clientId": "client-1", "strategyName": how,
        "messageModel": "CLUSTERING",
    }  # fmt: skip
    turns = Turns(monkeypatch)
    turns.counting = True
    answers = await asyncio.gather(*(live.peer.call(400, {}, dump(asked)) for _ in range(3)))
    turns.counting = False
    assert turns.most <= OPERATIONS_MAX
    for answer in answers:
        found = json.loads(answer.body_bytes()).get("messageQueueAssignments")
        ids = None if found is None else [each["messageQueue"]["queueId"] for each in found]
        assert ids == (None if how == "unknown" else list(range(WIDE)))


async def test_members_of_a_group_with_very_many_clients(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of 50 000 clients, made text in one turn, held the loop for 39 ms."""
    live = await make_live()
    await live.peer.heartbeat("G", {"T": "*"})
    ids = [f"192.0.2.1@{number}#1234567890" for number in range(50_000)]
    monkeypatch.setattr(ConsumerGroup, "client_ids", lambda _: ids)
    turns = Turns(monkeypatch)
    frames = [Frame("38 of a group", 38, {"consumerGroup": "G"})]
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    answer = found["38 of a group"][1]
    assert answer is not None
    assert answer.body_bytes() == dump({"consumerIdList": ids})


async def test_how_far_all_are_beside_very_many_topics_of_one_group(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics that are not shown: of another order, or gone."""
    live = await make_live()
    parts = live.broker.parts
    parts.groups.update(SubscriptionGroupConfig(group_name="g"))
    for number in range(100_000):
        parts.offsets.commit("g", f"t{number}", 0, 1, 0)
        parts.offsets.commit("unknown", f"t{number}", 0, 1, 0)
    turns = Turns(monkeypatch)
    frames = [Frame("317", 317, {"isOrder": "true"})]
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    assert found["317"][1] is not None
    assert found["317"][1].code == 0


async def test_how_far_all_are_beside_very_many_groups_without_offsets(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    groups = live.broker.parts.groups
    every = [SubscriptionGroupConfig(group_name=f"g{number}") for number in range(50_000)]
    monkeypatch.setattr(type(groups), "__iter__", lambda _: iter(every))
    turns = Turns(monkeypatch)
    frames = [Frame("317", 317, {"isOrder": "false"})]
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    answer = found["317"][1]
    assert answer is not None
    assert answer.code == 0


async def test_what_shows_all_lite_topics(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(enableLmq="true", enableMultiDispatch="true")
    parts = live.broker.parts
    attributes = {"message.type": "LITE"}
    parts.topics.update(TopicConfig(topic_name="parent", attributes=attributes))
    group = {"groupName": "G", "attributes": {"+lite.bind.topic": "parent"}}
    await live.peer.call(200, body=dump(group))
    for number in range(LITE_TOPICS):
        parts.offsets.commit("G", names.lite_queue("parent", f"l{number}"), 0, 1, 1)
    turns = Turns(monkeypatch)
    asked = {"group": "G", "topK": str(2**31 - 1), "topic": "parent"}
    frames = [Frame("lite", code, asked) for code in (200074, 200075, 200078, 343)]
    frames = [each._replace(name=f"{each.code} of lite topics") for each in frames]
    frames.append(Frame("29001 beside lite topics", 29001, {}))
    purge = {"topic": "parent", "timestamp": "0", "dryRun": "true"}
    frames.append(Frame("29002 beside lite topics", 29002, purge))
    frames.append(Frame("207 of lite topics", 207, {"groupName": "G"}))
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    for name, count in (("200078 of lite topics", 0), ("343 of lite topics", LITE_TOPICS)):
        answer = found[name][1]
        assert answer is not None
        assert answer.code == 0, answer.remark
        assert answer.body_bytes().count(b"%LMQ%") == count
    while parts.offsets.pair_count:  # noqa: ASYNC110 - each turn is a slice
        await asyncio.sleep(0)


def lite_subscription(name: str, action: str, client: str, names_: list[str]) -> Frame:
    entry = {
        "action": action, "clientId": client, "group": "G", "topic": "parent",
        "liteTopicSet": names_, "version": 1,
    }  # fmt: skip
    return Frame(name, 200071, {}, dump({"subscriptionSet": [entry]}))


async def test_a_client_of_very_many_lite_topics(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it takes is looked at, added, removed, and handed to others in turns."""
    live = await make_live(
        enableLmq="true", enableMultiDispatch="true", maxLiteSubscriptionCount="1000000"
    )
    parts, lite = live.broker.parts, live.broker.services.lite
    parts.topics.update(TopicConfig(topic_name="parent", attributes={"message.type": "LITE"}))
    attributes = {"+lite.bind.topic": "parent", "+lite.sub.client.max.event.cnt": "100000"}
    await live.peer.call(200, body=dump({"groupName": "G", "attributes": attributes}))
    queues = [names.lite_queue("parent", f"l{number}") for number in range(LITE_TOPICS)]
    taken = lite.subscriptions
    for client in "abcd":
        mine = taken.of_client(client, "G", "parent", 0)
        for queue in queues:
            taken.add(client, queue)
        assert len(mine.queues) == LITE_TOPICS
    monkeypatch.setattr(lite, "end", lambda queue: 1)
    turns = Turns(monkeypatch)
    again, others = [f"l{n}" for n in range(2000)], [f"m{n}" for n in range(2000)]
    frames = [
        Frame("full turn of a client", 200079, {"group": "G", "clientId": "a"}),
        lite_subscription("new ones", "PARTIAL_ADD", "a", others),
        lite_subscription("others given up", "PARTIAL_REMOVE", "a", others),
        lite_subscription("few instead of many", "COMPLETE_ADD", "b", again),
        lite_subscription("others instead", "COMPLETE_ADD", "b", others),
        lite_subscription("a client leaves", "COMPLETE_REMOVE", "a", []),
        Frame("full turn of a group", 200079, {"group": "G"}),
    ]
    found = await measure(turns, live.broker.address, live.broker.services.processors, frames)
    assert not too_much(found), str(too_much(found))
    assert {answer.code for _, answer in found.values() if answer is not None} == {0}
    while lite.is_at_work:  # noqa: ASYNC110 - each turn is a slice
        await asyncio.sleep(0)
    assert taken.get("a") is None
    assert "a" not in taken.takers(queues[-1])
    assert len(taken) == 2 * LITE_TOPICS + 2000


async def test_the_age_of_very_many_lite_topics(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(enableLmq="true", enableMultiDispatch="true")
    lite, now_ms = live.broker.services.lite, live.broker.parts.now_ms()
    queues = [names.lite_queue("parent", f"l{number}") for number in range(LITE_TOPICS)]
    looked_at = []

    def store_time(queue: str, *_: object) -> int:
        looked_at.append(queue)
        return int(now_ms)

    monkeypatch.setattr(lite, "parents", lambda: {"parent": 1})
    monkeypatch.setattr(live.broker.parts.store, "topics", lambda: queues)
    monkeypatch.setattr(live.broker.parts.store, "message_store_timestamp", store_time)
    turns = Turns(monkeypatch)
    turns.counting = True
    asyncio.get_running_loop().call_soon(lite._expire, now_ms)
    await asyncio.sleep(0)
    while lite.is_at_work:  # noqa: ASYNC110 - each turn is a slice
        await asyncio.sleep(0)
    turns.counting = False
    assert looked_at == queues
    assert turns.most <= OPERATIONS_MAX


async def test_every_frame_to_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        assert server._server is not None
        table = server._server.processors
        check_body_sizes(table)
        turns = Turns(monkeypatch)
        general = [
            frame
            for code in sorted(table.codes)
            for frame in frames_of(Code(code), table.body_size_max(code))
        ]
        found = await measure(turns, server.address, table, [*general, *namesrv_frames()])
        assert not too_much(found), str(too_much(found))
        for name in ("compressed registration", "registration as JSON"):
            answer = found[name][1]
            assert answer is not None
            assert answer.code == 0, answer.remark
        answer = found["compressed registration of 600000"][1]
        assert answer is not None
        assert "topic count 600000, allowed" in str(answer.remark)
