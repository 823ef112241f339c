"""Frames of any kind against a running broker and name server, with an honest client beside them.

    python -m benchmarks.fuzz [--frames 200000] [--seed N] [--small] [--dir DIR]
                              [--acl] [--tls] [--full-disk MIB]

Every code that has a name is asked, and some that have none: with headers that are nearly right,
with bodies of every kind, with bits turned over, cut off, or never ended. An honest client sends
and reads at the same time. The run fails, and says why, when

- the honest client is refused, reads what it did not send, or misses what was acknowledged;
- the log has a traceback;
- memory, descriptors or threads are more, once everybody has gone, than `Limits` allow;
- a callback of the loop took more CPU time than `Limits` allow;
- the store does not verify.

`--acl` asks everybody who he is: of the frames some are not signed, some wrongly, some by a user
who may do nothing; then the broker may have none of their topics. `--tls` has half of the hostile
connections, and the honest client, speak TLS. `--full-disk` puts the store on a tmpfs of so many
MiB (root only) that fills: then a send may be refused, and what retention has deleted may be gone.

The same seed gives the same frames. How they reach the broker (in which reads, in which order among
the connections) is the machine's affair.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.served import Served, findings_of, served
from oberth.client.acl import SIGNATURE, SessionCredentials
from oberth.errors import OberthError
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.message import decode_record
from oberth.formats.properties import encode_properties
from oberth.remoting.aio.client import ClientOptions, RemotingClient
from oberth.remoting.bodies.admin import UserInfo
from oberth.remoting.code import RequestCode
from oberth.remoting.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    RemotingCommand,
    encode_frame_bytes,
)
from oberth.remoting.headers.base import field_types
from oberth.remoting.headers.table import HEADERS

USED_CODES = (
    *(10, 310, 320, 11, 361, 36, 37, 34, 35, 14, 15, 29, 30, 12, 33, 41, 42, 370, 17, 200),
    *(200050, 200051, 200052, 200053, 200054, 200070, 200071, 200151, 324, 325, 103, 105),
)
"""What clients send all the time, and half of the frames here."""

DELETING_CODES = frozenset(
    {RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC}
)

CONNECTIONS = 8
BURST_MAX = 24
SENTINEL_CODE = 32_100
"""Of no meaning to anybody: its refusal says that everything before it was worked on."""
ANSWER_S = 60.0
HONEST_USER = SessionCredentials("honest", "honest-secret")
STRANGER = SessionCredentials("stranger", "stranger-secret")
"""Who is known and may do nothing."""
FILLS = 30
FILL_SIZE = 100_000
"""On a disk that fills, messages between two of the honest client's, and their bytes."""

HONEST_TOPIC = "honest"
HONEST_GROUP = "honest-group"
LEFT_OUT = frozenset({RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER})
"""Of these only the name of a broker decides, and there is one: the honest client's."""


@dataclass(frozen=True)
class Odds:
    """What makes it harder.

    Attributes:
        acl: access control is on.
        tls: TLS is spoken.
        disk_mib: size of the disk; 0: there is enough.
    """

    acl: bool = False
    tls: bool = False
    disk_mib: int = 0

    def settings(self) -> dict[str, str]:
        """The broker's."""
        found = {}
        if self.acl:
            first = {"username": HONEST_USER.access_key, "password": HONEST_USER.secret_key}
            found["authenticationEnabled"] = found["authorizationEnabled"] = "true"
            found["initAuthenticationUser"] = json.dumps(first)
            found["listenWithoutAccessControl"] = "true"
        if self.disk_mib:
            found["mappedFileSizeCommitLog"] = str(4 << 20)
            found["diskMaxUsedSpaceRatio"] = "75"
        return found


@dataclass(frozen=True)
class Limits:
    """What a run may leave behind, and what it may hold up.

    Attributes:
        memory_mib: anonymous memory more than before the first frame.
        descriptors: more than before, without those of the store's files.
        threads: more than before.
        callback_ms: CPU time of the longest callback.
    """

    memory_mib: float = 48.0
    descriptors: int = 8
    threads: int = 16
    callback_ms: float = 150.0


# ----------------------------------------------------------------------------------- frames


class Frames:
    """Frames of one seed."""

    def __init__(self, seed: int, odds: Odds) -> None:
        self.random = random.Random(seed)
        self._odds = odds
        self.sent: Counter[str] = Counter()
        self._junk = 0.0
        self._fresh = [f"fuzz-u{n}" for n in range(9)]
        self._codes = [int(code) for code in RequestCode if code not in LEFT_OUT]
        now_ms = time.time_ns() // 1_000_000
        self._names = [
            *(f"fuzz-{n}" for n in range(12)),
            *(f"%RETRY%fuzz-group-{n}" for n in range(3)),
            *(f"fuzz-group-{n}" for n in range(6)),
            "%DLQ%fuzz-group-1",
            "%LMQ%fuzz",
            "fuzz-group-1_fuzz-1",
            "%RETRY%fuzz-group-1_fuzz-1",
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "rmq_sys_wheel_timer",
            "rmq_sys_REVIVE_LOG_DefaultCluster",
            "TBW102",
            "DefaultCluster",
            "",
            " ",
            "../../../tmp/fuzz",
            "fuzz/1",
            "fuzz\n1",
            "fuzz\x1b[31m",
            "фузз",
            "n" * 127,
            "n" * 128,
            "n" * 300,
        ]
        self._numbers = [
            *("0", "1", "-1", "2", "3", "7", "8", "32", "100", "1000"),
            *("2147483647", "2147483648", "-2147483648", "-2147483649"),
            *("9223372036854775807", "9223372036854775808", "-9223372036854775808"),
            *("1e9", "1.0", "1_000", " 5 ", "+7", "0x10", "NaN", "", "null", "true", "x"),
            "１２",
            "9" * 5000,
            str(now_ms),
            str(now_ms + 3000),
            str(now_ms + 10**10),
        ]
        self._texts = [
            *("*", "a", "a || b", "a || b || " * 50, "TAG", "SQL92", "%s", "a\x01b\x02c"),
            *("a > 1", "a IS NOT NULL AND b IN ('x', 'y')", "TRUE", "a BETWEEN 1 AND 2", "(" * 200),
            "a IN ('" + "', '".join(map(str, range(200))) + "')",
            "KEYS\x01k1 k2\x02TAGS\x01a\x02UNIQ_KEY\x01u1\x02",
            "DELAY\x013\x02",
            f"TIMER_DELIVER_MS\x01{now_ms + 2000}\x02",
            f"TIMER_DELIVER_MS\x01{10**18}\x02",
            "TRAN_MSG\x01true\x02PGROUP\x01fuzz-group-1\x02",
            "INNER_MULTI_DISPATCH\x01%LMQ%fuzz\x02",
            "POP_CK\x01x y z\x02",
            "127.0.0.1:9999",
            "x" * 2000,
            "\ud7ff\U0001f600",
        ]
        self._bodies: list[Callable[[], bytes]] = [
            lambda: b"",
            lambda: self.random.randbytes(self.random.randrange(1, 64)),
            lambda: self.random.randbytes(self.random.choice((500, 5000, 60_000))),
            lambda: b"\x00" * self.random.choice((8, 1000, 100_000)),
            lambda: zlib.compress(b"\x00" * self.random.choice((100, 1_000_000))),
            lambda: b"[" * self.random.choice((10, 2000)),
            lambda: json.dumps(self._json(3)).encode(),
            self._heartbeat,
            self._lock,
            self._batch,
            self._topics,
            self._lines,
        ]

    def _name(self) -> str:
        if self.random.random() < 0.05:
            self._fresh.append(f"fuzz-u{self.random.randrange(1 << 40):x}")
            return self._fresh[-1]
        return self.random.choice(self._names)

    def _json(self, depth: int) -> Any:
        pick = self.random.random()
        if depth == 0 or pick < 0.3:
            return self.random.choice(
                (None, True, 0, -1, 1 << 40, 1 << 70, 1e300, "", self._name(), "x")
            )
        if pick < 0.5:
            return [self._json(depth - 1) for _ in range(self.random.randrange(4))]
        words = (
            *("topic", "topicName", "brokerName", "queueId", "consumerGroup", "clientID", "mqSet"),
            *("subscriptionSet", "clientId", "group", "action", "offset", "topicConfigTable", "a"),
            *("groupName", "consumeQueueType", "attributes", "username", "password", "policies"),
        )
        return {
            self.random.choice(words): self._json(depth - 1)
            for _ in range(self.random.randrange(5))
        }

    def _heartbeat(self) -> bytes:
        r = self.random
        return json.dumps(
            {
                "clientID": r.choice(("c1", "c2", self._name())),
                "consumerDataSet": [
                    {
                        "groupName": self._name(),
                        "consumeType": r.choice(("CONSUME_PASSIVELY", "CONSUME_POP", 3)),
                        "messageModel": r.choice(("CLUSTERING", "BROADCASTING", None)),
                        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                        "subscriptionDataSet": [
                            {
                                "topic": self._name(),
                                "subString": r.choice(self._texts),
                                "expressionType": r.choice(("TAG", "SQL92", "", None)),
                                "subVersion": r.randrange(5),
                            }
                            for _ in range(r.randrange(4))
                        ],
                    }
                    for _ in range(r.randrange(3))
                ],
                "producerDataSet": [{"groupName": self._name()} for _ in range(r.randrange(3))],
            }
        ).encode()

    def _lock(self) -> bytes:
        r = self.random
        return json.dumps(
            {
                "consumerGroup": self._name(),
                "clientId": r.choice(("c1", "c2", self._name())),
                "mqSet": [
                    {"topic": self._name(), "brokerName": "broker-a", "queueId": r.randrange(-1, 9)}
                    for _ in range(r.randrange(6))
                ],
            }
        ).encode()

    def _batch(self) -> bytes:
        r = self.random
        return encode_batch(
            [
                BatchItem(0, r.randbytes(r.randrange(100)), encode_properties({"TAGS": "a"}))
                for _ in range(r.randrange(1, 20))
            ]
        )

    def _topics(self) -> bytes:
        wrapper = {
            "topicConfigSerializeWrapper": {
                "topicConfigTable": {
                    name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
                    for name in (self._name() for _ in range(self.random.randrange(1, 30)))
                    if name
                },
                "dataVersion": {"counter": 1, "timestamp": 1},
            },
            "filterServerList": [],
        }
        raw = json.dumps(wrapper).encode()
        return zlib.compress(raw) if self.random.random() < 0.3 else raw

    def _lines(self) -> bytes:
        """What UPDATE_BROKER_CONFIG reads; nothing that the honest client depends on."""
        return "\n".join(
            f"{self.random.choice(('fuzz', 'storePathRootDir', 'brokerName', 'a.b', ''))}"
            f"={self.random.choice(self._numbers)}"
            for _ in range(self.random.randrange(5))
        ).encode()

    def _value(self, kind: type, name: str) -> str:
        r = self.random
        if r.random() < self._junk:
            return r.choice(self._numbers + self._texts + self._names)
        if kind is int:
            if "imeout" in name or name == "pollTime":
                return r.choice(("0", "1", "20", "300", "1000000000", "9223372036854775807"))
            return r.choice(self._numbers[: r.choice((2, 5, 12))])
        if kind is bool:
            return r.choice(("true", "false", "TRUE", "1"))
        lowered = name.lower()
        if name in ("a", "b", "c") or any(
            w in lowered for w in ("topic", "group", "name", "client")
        ):
            return self._name()
        return r.choice(self._texts)

    def command(self) -> RemotingCommand:
        """A request that is nearly right."""
        r = self.random
        pick = r.random()
        code = r.choice(
            USED_CODES if pick < 0.5 else self._codes if pick < 0.97 else range(-5, 300_000)
        )
        self._junk = r.choice((0.0, 0.0, 0.02, 0.3))
        fields: dict[str, str] = {}
        header = HEADERS.get(code, (None, None))[0]  # type: ignore[call-overload]
        if header is not None:
            for name, (kind, required) in field_types(header).items():
                if r.random() < (0.98 if required else 0.5):
                    fields[name] = self._value(kind, name)
        for _ in range(r.choice((0, 0, 0, 1, 3))):
            fields[r.choice(self._texts + self._names)] = r.choice(self._texts)
        # A topic that is made again begins at 0, which verify cannot tell from a lost queue: what
        # is deleted here does not come again.
        if code in DELETING_CODES and "topic" in fields:
            fields["topic"] = self._fresh.pop() if self._fresh else "fuzz-u"
        # The broker's name would reach the honest client's routes.
        if code in (RequestCode.UNREGISTER_BROKER, RequestCode.REGISTER_BROKER):
            fields["brokerName"] = self._name() + "-fuzz"
        return RemotingCommand(
            code=code,
            ext_fields=fields if fields or r.random() < 0.9 else None,
            flag=r.choice((0, 0, 0, 0, 0, ONEWAY_FLAG, RESPONSE_FLAG, 3, -1)),
            opaque=r.randrange(1 << 20),
            version=r.choice((0, 100, 395, 479, 1 << 14)),
            remark=r.choice((None, None, None, "x")),
            body=r.choice(self._bodies)(),
            serialize_type=r.choice((0, 0, 1)),
        )

    def frame(self) -> bytes:
        """The bytes of such a request."""
        while True:
            with contextlib.suppress(OberthError):  # the binary header has 16 bits for a code
                command = self.command()
                if self._odds.acl:
                    self._sign(command)
                raw = encode_frame_bytes(command)
                self.sent["nearly right"] += 1
                return raw

    def _sign(self, command: RemotingCommand) -> None:
        pick = self.random.random()
        if pick < 0.6:
            (STRANGER if pick < 0.4 else HONEST_USER).sign(command)
            if pick >= 0.4:
                assert command.ext_fields is not None
                command.ext_fields[SIGNATURE] = self.random.choice(("", "x", "A" * 28, "é" * 9))

    def turned(self) -> bytes:
        """A request whose header has other bits; where it ends is as it was."""
        changed = bytearray(self.frame())
        header_end = 8 + int.from_bytes(changed[5:8], "big")
        for _ in range(self.random.randrange(1, 6)):
            changed[self.random.randrange(8, header_end)] ^= 1 << self.random.randrange(8)
        self.sent["bits turned over"] += 1
        return bytes(changed)

    def broken(self) -> bytes:
        """What nothing can follow."""
        r = self.random
        changed = bytearray(self.frame())
        pick = r.random()
        if pick < 0.4:
            self.sent["wrong length"] += 1
            struct.pack_into(">i", changed, 0, r.choice((-1, 0, 3, 5, 1 << 20, 1 << 24, 1 << 30)))
        elif pick < 0.6:
            self.sent["cut off"] += 1
            del changed[r.randrange(1, len(changed)) :]
        elif pick < 0.8:
            self.sent["other protocols"] += 1
            changed[:0] = r.choice(
                (
                    b"GET / HTTP/1.1\r\n\r\n",
                    b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
                    b"PROXY UNKNOWN" + b"x" * 300,
                    b"\r\n\r\n\x00\r\nQUIT\n" + r.randbytes(20),
                    b"\x16\x03\x01\x02\x00\x01" + r.randbytes(200),
                )
            )
        else:
            self.sent["noise"] += 1
            changed = bytearray(r.randbytes(r.randrange(1, 400)))
        return bytes(changed)

    def burst(self, count: int) -> tuple[bytes, bool]:
        """Several frames, and whether the stream goes on behind them."""
        r = self.random
        last = r.random()
        if last < 0.85:
            return b"".join(self.frame() for _ in range(count)), True
        head = b"".join(self.frame() for _ in range(count - 1))
        # The connection is closed where the bits made a frame that cannot be read.
        return head + (self.turned() if last < 0.95 else self.broken()), False


# ---------------------------------------------------------------------------------- connections


class Peer:
    """One hostile connection after the other."""

    def __init__(
        self,
        frames: Frames,
        port: int,
        counts: Counter[str],
        tls_context: ssl.SSLContext | None,
    ) -> None:
        self._frames = frames
        self._tls_context = tls_context
        self._port = port
        self._counts = counts
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None

    async def burst(self, count: int) -> None:
        """Send frames, and wait until they are worked on if that can be known."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._tls_context
            )
        data, goes_on = self._frames.burst(count)
        if goes_on:
            sentinel = RemotingCommand(code=SENTINEL_CODE, opaque=1 << 30)
            data += encode_frame_bytes(sentinel)
        writer = self._writer
        try:
            writer.write(data)
            async with asyncio.timeout(ANSWER_S):
                # Not drain(): the broker may answer more than fits while it does not read.
                if goes_on:
                    await self._until_sentinel()
                    return
                if writer.can_write_eof():
                    writer.write_eof()
                    while await self._reader.read(1 << 16):
                        pass
        except TimeoutError:
            self._counts["bursts without an answer"] += 1
        except (OSError, EOFError):
            self._counts["connections closed by the broker"] += 1
        await self.close()

    async def _until_sentinel(self) -> None:
        """Read answers up to the sentinel's, and let go of what they say."""
        while True:
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            answer = await self._reader.readexactly(length)
            if b'"opaque":1073741824' in answer[:400]:
                return

    async def close(self) -> None:
        """End the connection."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None


class Honest:
    """Sends, reads, asks for routes; everything must go well."""

    def __init__(self, served_by: Served, odds: Odds) -> None:
        self._odds = odds
        self._least = [0, 0, 0, 0]
        self.refused = 0
        self._broker = f"127.0.0.1:{served_by.ports['broker']}"
        self._namesrv = f"127.0.0.1:{served_by.ports['namesrv']}"
        self._client = RemotingClient()
        options = ClientOptions(tls_context=tls_context()) if odds.tls else ClientOptions()
        self._broker_client = RemotingClient(options=options)
        self._sent: list[tuple[int, bytes]] = []
        self._read = [0, 0, 0, 0]
        self._seen: list[dict[int, bytes]] = [{} for _ in range(4)]
        self.took_ms: list[float] = []
        self.complaints: list[str] = []
        self._acked: dict[tuple[int, int], bytes] = {}

    async def _ask(
        self, code: int, fields: dict[str, str], body: bytes = b"", to: str = ""
    ) -> RemotingCommand:
        start = time.perf_counter()
        request = RemotingCommand(code=int(code), ext_fields=fields, body=body)
        if self._odds.acl and not to:
            HONEST_USER.sign(request)
        client = self._client if to else self._broker_client
        answer = await client.invoke(to or self._broker, request, ANSWER_S)
        self.took_ms.append((time.perf_counter() - start) * 1000)
        return answer

    async def begin(self) -> None:
        """Make the topic, and the user who may do nothing."""
        if self._odds.acl:
            user = UserInfo(username=STRANGER.access_key, password=STRANGER.secret_key)
            made = await self._ask(
                RequestCode.AUTH_CREATE_USER, {"username": STRANGER.access_key}, user.encode()
            )
            assert made.code == 0, made
        answer = await self._ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": HONEST_TOPIC,
                "defaultTopic": "TBW102",
                "readQueueNums": "4",
                "writeQueueNums": "4",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        )
        assert answer.code == 0, answer

    async def round(self, number: int) -> None:
        """One message there and back."""
        queue_id = number % 4
        body = b"honest %d" % number
        fields = {
            "a": "honest-producer",
            "b": HONEST_TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(queue_id),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": "",
            "j": "0",
        }
        answer = await self._ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        if answer.code != 0 and self._odds.disk_mib:
            self.refused += 1
        elif answer.code != 0:
            self.complaints.append(f"send {number}: {answer.code} {answer.remark}")
        else:
            self._acked[queue_id, int(answer.fields["queueOffset"])] = body
        await self._pull(queue_id)
        if number % 20 == 0:
            route = await self._ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": HONEST_TOPIC}, to=self._namesrv
            )
            if route.code != 0:
                self.complaints.append(f"route: {route.code} {route.remark}")

    async def fill(self) -> None:
        """One large message more of another topic, taken or refused."""
        fields = {"a": "fill", "b": "TBW102-fill", "c": "TBW102", "d": "4", "e": "0", "f": "0"}
        fields |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "i": "", "j": "0"}
        answer = await self._ask(RequestCode.SEND_MESSAGE_V2, fields, bytes(FILL_SIZE))
        self.refused += answer.code != 0

    async def _pull(self, queue_id: int) -> bool:
        answer = await self._ask(
            RequestCode.PULL_MESSAGE,
            {
                "consumerGroup": HONEST_GROUP,
                "topic": HONEST_TOPIC,
                "queueId": str(queue_id),
                "queueOffset": str(self._read[queue_id]),
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "*",
                "subVersion": "0",
            },
        )
        if answer.code == 21 and self._odds.disk_mib:
            self._read[queue_id] = int(answer.fields["nextBeginOffset"])
            return True
        if answer.code not in (0, 19):
            self.complaints.append(f"pull {queue_id}: {answer.code} {answer.remark}")
            return False
        if answer.code == 19:
            return False
        raw = answer.body_bytes()
        at = 0
        while at < len(raw):
            message = decode_record(raw, at, check_crc=True)
            at += message.record_size
            self._seen[queue_id][message.queue_offset] = message.body
            self._read[queue_id] = message.queue_offset + 1
        return True

    async def finish(self) -> None:
        """Read the rest and compare it with what was acknowledged."""
        for queue_id in range(4):
            while await self._pull(queue_id):
                pass
        seen = {
            (queue_id, offset): body
            for queue_id, found in enumerate(self._seen)
            for offset, body in found.items()
        }
        acked = self._acked
        if self._odds.disk_mib:
            for queue_id in range(4):
                fields = {"topic": HONEST_TOPIC, "queueId": str(queue_id)}
                answer = await self._ask(RequestCode.GET_MIN_OFFSET, fields)
                self._least[queue_id] = int(answer.fields["offset"])
            kept = {at for at in acked if at in seen or at[1] >= self._least[at[0]]}
            acked = {at: acked[at] for at in kept}
        if seen != acked:
            missing = len(acked.items() - seen.items())
            foreign = len(seen.items() - acked.items())
            other = sorted(
                (at, acked.get(at), seen.get(at))
                for at in acked.keys() | seen.keys()
                if acked.get(at) != seen.get(at)
            )
            self.complaints.append(
                f"{missing} acknowledged messages missing, {foreign} foreign: {other[:4]}"
            )
        await self._client.aclose()
        await self._broker_client.aclose()

    async def strange_topics(self) -> list[str]:
        """Topics of the broker that the hostile connections have made."""
        answer = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG, {})
        topics = json.loads(answer.body_bytes())["topicConfigTable"]
        return sorted(topic for topic in topics if "fuzz" in topic)


def tls_context() -> ssl.SSLContext:
    """For a client that believes any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


# ------------------------------------------------------------------------------------------ run


async def _noise_elsewhere(port: int, rng: random.Random) -> None:
    """Noise at a port that speaks something else."""
    with contextlib.suppress(OSError, TimeoutError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        # Not what the HA port takes for a report: eight bytes 0 ask for the whole log.
        writer.write(rng.choice((b"GET /metrics HTTP/1.1\r\n\r\n", b"\xff" * 8, rng.randbytes(99))))
        writer.write_eof()
        async with asyncio.timeout(ANSWER_S):
            while await reader.read(1 << 16):
                pass
        writer.close()


async def _attack(target: Served, frame_count: int, seed: int, odds: Odds) -> dict[str, Any]:
    frames = Frames(seed, odds)
    counts: Counter[str] = Counter()
    honest = Honest(target, odds)
    secret = tls_context() if odds.tls else None
    await honest.begin()
    for number in range(50):
        await honest.round(number)
    honest.took_ms.clear()
    before = target.figures()
    curve = [before["anonymous_bytes"] >> 20]
    fullest = 0.0
    rounds = 50
    running = True

    async def be_honest() -> None:
        nonlocal rounds, fullest
        while running:
            await honest.round(rounds)
            rounds += 1
            disk = shutil.disk_usage(target.directory / "store")
            fullest = max(fullest, disk.used / disk.total)
            for _ in range(FILLS if odds.disk_mib else 0):
                await honest.fill()
            await asyncio.sleep(0.01)

    beside = asyncio.create_task(be_honest())
    ports = [target.ports["broker"]] * (CONNECTIONS - 2) + [target.ports["namesrv"]] * 2
    start = time.perf_counter()

    async def attack(number: int, port: int) -> None:
        nonlocal sent
        peer = Peer(frames, port, counts, secret if number % 2 else None)
        while sent < frame_count and target.process.poll() is None:
            count = min(frames.random.randrange(1, BURST_MAX), frame_count - sent)
            sent += count
            await peer.burst(count)
            if frames.random.random() < 0.02:
                await peer.close()
            if frames.random.random() < 0.01:
                await _noise_elsewhere(
                    frames.random.choice((target.ports["ha"], target.ports["http"])), frames.random
                )
            if len(curve) * frame_count // 10 <= sent:
                curve.append(target.figures()["anonymous_bytes"] >> 20)
        await peer.close()

    sent = 0
    try:
        await asyncio.gather(*(attack(*each) for each in enumerate(ports)))
    finally:
        running = False
        await beside
    spent_s = time.perf_counter() - start
    if odds.acl and (strange := await honest.strange_topics()):
        honest.complaints.append(f"topics of those who may not: {strange[:9]}")
    await honest.finish()
    after = target.figures()
    for _ in range(40):  # connections end, caches are swept, deadlines pass
        await asyncio.sleep(0.25)
        after = {key: min(value, after[key]) for key, value in target.figures().items()}
    took = sorted(honest.took_ms)
    return {
        "frames": sent,
        "seed": seed,
        "seconds": round(spent_s, 1),
        "kinds": dict(frames.sent),
        "counts": dict(counts),
        "honest": {
            "messages": rounds,
            "refused": honest.refused,
            "p50_ms": round(statistics.median(took), 2),
            "p99_ms": round(took[len(took) * 99 // 100], 2),
            "longest_ms": round(took[-1], 2),
        },
        "before": before,
        "after": after,
        "memory_mib": curve,
        "disk_percent": round(100 * fullest),
        "complaints": honest.complaints,
    }


@contextlib.contextmanager
def _disk(path: Path, size_mib: int) -> Iterator[None]:
    """A tmpfs of so many MiB at a path, while it lasts; for 0 nothing."""
    if not size_mib:
        yield
        return
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(path)]
    if subprocess.run(mount, check=False).returncode != 0:
        raise SystemExit("--full-disk: a tmpfs cannot be mounted, which takes root")
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def run(
    directory: Path, frame_count: int, seed: int, limits: Limits, odds: Odds | None = None
) -> dict[str, Any]:
    """One run; what it found, with ``complaints`` for what must not be."""
    odds = odds or Odds()
    with _disk(directory / "store", odds.disk_mib):
        return _run(directory, frame_count, seed, limits, odds)


def _run(
    directory: Path, frame_count: int, seed: int, limits: Limits, odds: Odds
) -> dict[str, Any]:
    with served(directory, **odds.settings()) as target:
        report = asyncio.run(_attack(target, frame_count, seed, odds))
        complaints: list[str] = report["complaints"]
        if target.process.poll() is None:
            target.stop()
        else:
            complaints.append(f"the broker ended with {target.process.returncode}")
        log = target.log()
    report["turns"] = target.turns
    report["limits"] = asdict(limits)
    if "Traceback" in log:
        at = log.index("Traceback")
        complaints.append(
            f"{log.count('Traceback')} tracebacks: {log[max(at - 300, 0) : at + 1500]}"
        )
    before, after = report["before"], report["after"]
    grown = (after["anonymous_bytes"] - before["anonymous_bytes"]) / 2**20
    if grown > limits.memory_mib:
        complaints.append(f"memory grew by {grown:.0f} MiB, allowed {limits.memory_mib}")
    for what, allowed in (("descriptors", limits.descriptors), ("threads", limits.threads)):
        if after[what] - before[what] > allowed:
            complaints.append(f"{what}: {before[what]}, then {after[what]}, allowed {allowed} more")
    longest = report["turns"].get("longest", [{"ms": 0.0}])[0]
    if longest["ms"] > limits.callback_ms:
        complaints.append(f"a callback took {longest}, allowed {limits.callback_ms} ms")
    complaints += [f"verify: {each}" for each in findings_of(directory)]
    report["log_bytes"] = len(log)
    return report


def main(argv: list[str] | None = None) -> None:
    """Run and print what was found; exit 1 if there are complaints."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="3 000 frames, for CI")
    parser.add_argument("--acl", action="store_true", help="with access control")
    parser.add_argument("--tls", action="store_true", help="over TLS, half of it")
    parser.add_argument(
        "--full-disk", type=int, default=0, metavar="MIB", help="on a tmpfs so large, which fills"
    )
    parser.add_argument("--dir", help="where to leave store and log; a temporary one otherwise")
    options = parser.parse_args(argv)
    frame_count = 3_000 if options.small else options.frames
    with contextlib.ExitStack() as stack:
        directory = options.dir or stack.enter_context(tempfile.TemporaryDirectory())
        Path(directory).mkdir(parents=True, exist_ok=True)
        odds = Odds(options.acl, options.tls, options.full_disk)
        report = run(Path(directory), frame_count, options.seed, Limits(), odds)
    print(json.dumps(report, indent=2, ensure_ascii=False))
    if report["complaints"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
