"""Requests on one connection, many in flight, with nothing of Oberth in it.

What a benchmark needs beside the official client: the first acknowledged message of a starting
broker, ten thousand topics, thousands of idle connections.
"""

from __future__ import annotations

import base64
import hmac
import json
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence

_SIZE = struct.Struct(">i")
_IN_FLIGHT_MAX = 256
_UPDATE_CONSUMER_OFFSET = 15
_CREATE_TOPIC_LIST = 18
_CREATE_TOPIC = 17
_SEND_MESSAGE_V2 = 310
_HEART_BEAT = 34


def frame(code: int, opaque: int, fields: Mapping[str, str], body: bytes = b"") -> bytes:
    """One request with a JSON header."""
    header = json.dumps(
        {"code": code, "language": "OTHER", "version": 409, "opaque": opaque, "flag": 0}
        | {"extFields": dict(fields)},
    ).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def send_fields(topic: str, queue_id: int, born_timestamp_ms: int) -> dict[str, str]:
    """The header of a plain send, under the one-letter names of SEND_MESSAGE_V2."""
    return {
        "a": "wire",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": str(born_timestamp_ms),
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }


def signed(
    fields: Mapping[str, str], body: bytes, access_key: str, secret_key: str
) -> dict[str, str]:
    """Fields with the signature that access control asks for."""
    made = {**fields, "AccessKey": access_key}
    content = "".join(made[name] for name in sorted(made)).encode() + body
    digest = hmac.digest(secret_key.encode(), content, "sha1")
    return {**made, "Signature": base64.b64encode(digest).decode()}


class Wire:
    """A blocking connection that keeps many requests in flight."""

    def __init__(self, address: str, timeout_s: float = 10.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._stream = self._socket.makefile("rb")
        self._opaque = 0

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def _answer(self) -> int:
        while True:
            prefix = self._stream.read(8)
            if len(prefix) < 8:
                raise ConnectionResetError("closed by the peer")
            size, word = struct.unpack(">iI", prefix)
            rest = self._stream.read(size - 4)
            header = json.loads(rest[: word & 0xFF_FFFF])
            if header["flag"] & 1:  # else it is a request of the broker
                return int(header["code"])

    def call(self, code: int, fields: Mapping[str, str], body: bytes = b"") -> int:
        """One request and its answer's code."""
        self._opaque += 1
        self._socket.sendall(frame(code, self._opaque, fields, body))
        return self._answer()

    def subscribe(self, group: str, topic: str) -> None:
        """Be a member of a group that reads all of a topic, as long as the connection is open."""
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [
                {
                    "classFilterMode": False,
                    "topic": topic,
                    "subString": "*",
                    "tagsSet": [],
                    "codeSet": [],
                    "subVersion": 1,
                    "expressionType": "TAG",
                }
            ],
        }
        body = {"clientID": f"{group}@wire", "producerDataSet": [], "consumerDataSet": [consumer]}
        code = self.call(_HEART_BEAT, {}, json.dumps(body).encode())
        if code:
            raise RuntimeError(f"heartbeat of {group}: code {code}")

    def call_burst(self, requests: bytes, count: int) -> int:
        """Write ``count`` requests at once; how many of their answers were no success.

        Answers are not parsed, so that a client of Python can keep a broker busy.
        """
        self._socket.sendall(requests)
        refused = 0
        for _ in range(count):
            (size,) = _SIZE.unpack(self._stream.read(4))
            refused += b'"code":0' not in self._stream.read(size)
        return refused

    def call_many(self, requests: Iterable[tuple[int, Mapping[str, str], bytes]]) -> dict[int, int]:
        """Many requests, at most _IN_FLIGHT_MAX unanswered; how often each code came back."""
        codes: dict[int, int] = {}
        in_flight = 0
        for code, fields, body in requests:
            if in_flight == _IN_FLIGHT_MAX:
                answer = self._answer()
                codes[answer] = codes.get(answer, 0) + 1
                in_flight -= 1
            self._opaque += 1
            self._socket.sendall(frame(code, self._opaque, fields, body))
            in_flight += 1
        for _ in range(in_flight):
            answer = self._answer()
            codes[answer] = codes.get(answer, 0) + 1
        return codes


def create_topics(address: str, names: Sequence[str], queues: int, batch: int = 500) -> None:
    """Create topics by lists, or one by one where lists are not known (4.x)."""
    wire = Wire(address, timeout_s=120)
    for start in range(0, len(names), batch):
        part = names[start : start + batch]
        configs = [
            {
                "topicName": name,
                "readQueueNums": queues,
                "writeQueueNums": queues,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": False,
            }
            for name in part
        ]
        body = json.dumps({"topicConfigList": configs}).encode()
        code = wire.call(_CREATE_TOPIC_LIST, {}, body)
        if code:
            raise RuntimeError(f"creating {len(part)} topics: code {code}")
    wire.close()


def fill_queues(address: str, names: Sequence[str], queues: int, now_ms: int) -> dict[int, int]:
    """One message into every queue of every topic."""
    wire = Wire(address, timeout_s=120)
    codes = wire.call_many(
        (_SEND_MESSAGE_V2, send_fields(name, queue, now_ms), b"x" * 128)
        for name in names
        for queue in range(queues)
    )
    wire.close()
    return codes


def commit_first_offsets(address: str, names: Sequence[str]) -> dict[int, int]:
    """The first offset of as many new groups as there are topics, each in a topic of its own."""
    wire = Wire(address, timeout_s=300)
    codes = wire.call_many(
        (
            _UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": f"group-{name}", "topic": name, "queueId": "0", "commitOffset": "1"},
            b"",
        )
        for name in names
    )
    wire.close()
    return codes


def try_send(address: str, topic: str, now_ms: int) -> bool:
    """Whether a message is acknowledged now."""
    try:
        wire = Wire(address, timeout_s=5)
    except OSError:
        return False
    try:
        return wire.call(_SEND_MESSAGE_V2, send_fields(topic, 0, now_ms), b"first") == 0
    except OSError:
        return False
    finally:
        wire.close()


def idle_crowd(address: str, count: int) -> list[Wire]:
    """Connections that have said hello with a heartbeat and then say nothing."""
    crowd = []
    for number in range(count):
        wire = Wire(address)
        body = {"clientID": f"idle@{number}", "producerDataSet": [], "consumerDataSet": []}
        wire.call(_HEART_BEAT, {}, json.dumps(body).encode())
        crowd.append(wire)
    return crowd
