"""Churn for minutes, and nothing may grow: topics, groups, connections, timers, transactions, POP.

    python -m benchmarks.soak [--minutes 15] [--small] [--dir DIR]

Workers live one short life after the other against a broker and a name server in a process of
their own. A life makes a topic and a group of its own, connects, registers, sends (plain, delayed
by level and by the timer wheel, in batches, in transactions that commit, roll back or are left
open), pulls with tags and SQL, waits for what does not come, pops, acknowledges some and leaves
some, locks queues, goes in one of several ways, and deletes what it made. Segments are small and
the past is deleted every few seconds.

Memory, descriptors and threads are looked at all the time. The run fails when they are higher in
its last quarter than in its second by more than `Limits` allow (the first quarter fills pools and
caches), when a life is refused what it must get, or when the log has a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.served import Served, findings_of, served
from oberth.formats.batch_body import BatchItem, encode_batch
from oberth.formats.message import decode_record
from oberth.formats.properties import encode_properties
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.code import RequestCode
from oberth.remoting.command import ONEWAY_FLAG, RemotingCommand

WORKERS = 4
PAUSE_S = 0.02
"""Between two lives: the run is long rather than heavy."""
ANSWER_S = 60.0
LOOKS = 200
"""Times that memory is looked at."""
CLEAN_S = 3.0
LAST_CLEANINGS = 5
"""After the last life: delayed messages still come then."""
QUEUES = 2
TRANSACTION = {"commit": 8, "roll back": 12}
HALF, PLAIN = 4, 0

SETTINGS = {
    "mappedFileSizeCommitLog": str(4 << 20),
    "maxIndexNum": "20000",
    "maxHashSlotNum": "4000",
    "fileReservedTime": "0",
    "deleteCommitLogFilesInterval": "1",
    "deleteConsumeQueueFilesInterval": "1",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "3000",
    "transactionCheckMax": "2",
}


@dataclass(frozen=True)
class Limits:
    """How much more the last quarter may have than the second.

    Attributes:
        memory_mib: anonymous memory.
        files: descriptors of the store's files. Those of deleted topics stay open until a cleaning,
            so their number is a saw: what the last cleanings leave is compared with what the
            first one left.
        descriptors: of everything else.
        threads: of the process.
    """

    memory_mib: float = 6.0
    files: float = 32
    descriptors: float = 8
    threads: float = 2


class Refused(Exception):
    """An answer that a life cannot go on with."""


class Life:
    """One client from its first to its last request."""

    def __init__(self, number: int, target: Served, counts: Counter[str]) -> None:
        self._number = number
        self._broker = f"127.0.0.1:{target.ports['broker']}"
        self._namesrv = f"127.0.0.1:{target.ports['namesrv']}"
        self._counts = counts
        self._random = random.Random(number)
        self._client = RemotingClient()
        self._topic = f"soak-{number}"
        self._group = f"soak-group-{number}"
        self._id = f"soak-client-{number}"

    async def _ask(
        self,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        to: str = "",
        also: tuple[int, ...] = (),
    ) -> RemotingCommand:
        request = RemotingCommand(
            code=int(code),
            ext_fields={name: str(value) for name, value in (fields or {}).items()},
            body=body,
        )
        answer = await self._client.invoke(to or self._broker, request, ANSWER_S)
        self._counts["requests"] += 1
        if answer.code != 0 and answer.code not in also:
            raise Refused(f"code {int(code)}: {answer.code} {answer.remark}")
        return answer

    async def live(self) -> None:
        """Everything, in order."""
        await self._begin()
        await self._send()
        await self._transact()
        await self._pull()
        await self._pop()
        await self._lock()
        await self._end()

    async def _begin(self) -> None:
        await self._ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            {
                "topic": self._topic,
                "defaultTopic": "TBW102",
                "readQueueNums": QUEUES,
                "writeQueueNums": QUEUES,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": "false",
            },
        )
        group = {"groupName": self._group, "consumeEnable": True, "retryQueueNums": 1}
        await self._ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()
        )
        heartbeat = {
            "clientID": self._id,
            "producerDataSet": [{"groupName": f"soak-producer-{self._number}"}],
            "consumerDataSet": [
                {
                    "groupName": self._group,
                    "consumeType": "CONSUME_PASSIVELY",
                    "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "subscriptionDataSet": [
                        {
                            "topic": self._topic,
                            "subString": f"n > {self._number % 7}",
                            "expressionType": "SQL92",
                            "subVersion": self._number,
                        }
                    ],
                }
            ],
        }
        await self._ask(RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode())
        await self._ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": self._topic}, to=self._namesrv, also=(17,)
        )

    def _fields(self, properties: dict[str, str], queue_id: int, sys_flag: int) -> dict[str, Any]:
        return {
            "a": f"soak-producer-{self._number}",
            "b": self._topic,
            "c": "TBW102",
            "d": QUEUES,
            "e": queue_id,
            "f": sys_flag,
            "g": time.time_ns() // 1_000_000,
            "h": 0,
            "i": encode_properties(properties).decode(),
            "j": 0,
        }

    async def _send(self) -> None:
        for number in range(24):
            properties = {"TAGS": "abc"[number % 3], "n": str(number), "KEYS": f"k{number}"}
            if number % 8 == 5:
                properties["DELAY"] = "1"
            elif number % 8 == 6:
                properties["TIMER_DELAY_MS"] = "1500"
            body = self._random.randbytes(self._random.choice((10, 1000, 4000)))
            fields = self._fields(properties, number % QUEUES, PLAIN)
            await self._ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        items = [BatchItem(0, b"item", encode_properties({"TAGS": "a"})) for _ in range(10)]
        await self._ask(
            RequestCode.SEND_BATCH_MESSAGE,
            {**self._fields({}, 0, PLAIN), "m": "true"},
            encode_batch(items),
        )
        self._counts["messages"] += 34

    async def _transact(self) -> None:
        group = f"soak-producer-{self._number}"
        for outcome in ("commit", "roll back", "nothing"):
            key = f"{self._topic}-{outcome}"
            properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key}
            sent = await self._ask(
                RequestCode.SEND_MESSAGE_V2, self._fields(properties, 0, HALF), b"half"
            )
            if outcome in TRANSACTION:
                await self._ask(
                    RequestCode.END_TRANSACTION,
                    {
                        "producerGroup": group,
                        "tranStateTableOffset": sent.fields["queueOffset"],
                        "commitLogOffset": int(sent.fields["msgId"][-16:], 16),
                        "commitOrRollback": TRANSACTION[outcome],
                        "fromTransactionCheck": "false",
                        "msgId": key,
                    },
                )

    async def _pull(self) -> None:
        offset = read = 0
        while True:
            answer = await self._ask(
                RequestCode.PULL_MESSAGE, self._pull_fields(offset, 0, "a || b"), also=(19, 20, 21)
            )
            offset = int(answer.fields["nextBeginOffset"])
            if answer.code == 0:
                raw = answer.body_bytes()
                at = 0
                while at < len(raw):
                    message = decode_record(raw, at, check_crc=True)
                    if message.topic != self._topic:
                        raise Refused(f"a message of {message.topic} in {self._topic}")
                    at += message.record_size
                    read += 1
            if answer.code in (19, 21):
                break
        self._counts["read"] += read
        # By the subscription of the heartbeat, and for a while: nothing may come.
        held = self._pull_fields(offset, 0, "")
        held |= {"sysFlag": 2, "suspendTimeoutMillis": 150, "subVersion": self._number}
        await self._ask(RequestCode.PULL_MESSAGE, held, also=(19, 20, 21, 24))
        await self._ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {
                "consumerGroup": self._group,
                "topic": self._topic,
                "queueId": 0,
                "commitOffset": offset,
            },
        )

    def _pull_fields(self, offset: int, queue_id: int, tags: str) -> dict[str, Any]:
        return {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 16,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": tags,
            "subVersion": 0,
        }

    async def _pop(self) -> None:
        group = f"{self._group}-pop"
        for number in range(3):
            answer = await self._ask(
                RequestCode.POP_MESSAGE,
                {
                    "consumerGroup": group,
                    "topic": self._topic,
                    "queueId": -1,
                    "maxMsgNums": 8,
                    "invisibleTime": 2000,
                    "pollTime": 100,
                    "bornTime": time.time_ns() // 1_000_000,
                    "initMode": 0,
                    "expType": "TAG",
                    "exp": "*",
                },
                also=(19, 209, 210),
            )
            if answer.code != 0 or number == 2:
                continue  # the last are left, and come again
            fields = answer.fields
            for info in fields["msgOffsetInfo"].split(";"):
                flag, queue_id, offsets = info.split(" ")
                start = offsets.split(",")[0]
                if flag != "0":
                    continue
                for offset in offsets.split(","):
                    receipt = (
                        f"{start} {fields['popTime']} {fields['invisibleTime']} "
                        f"{fields['reviveQid']} {flag} broker-a {queue_id} {offset}"
                    )
                    await self._ask(
                        RequestCode.ACK_MESSAGE,
                        {
                            "consumerGroup": group,
                            "topic": self._topic,
                            "queueId": queue_id,
                            "extraInfo": receipt,
                            "offset": offset,
                        },
                        also=(208,),
                    )

    async def _lock(self) -> None:
        body = {
            "consumerGroup": self._group,
            "clientId": self._id,
            "mqSet": [
                {"topic": self._topic, "brokerName": "broker-a", "queueId": n}
                for n in range(QUEUES)
            ],
        }
        await self._ask(RequestCode.LOCK_BATCH_MQ, body=json.dumps(body).encode())
        if self._number % 2:
            await self._ask(RequestCode.UNLOCK_BATCH_MQ, body=json.dumps(body).encode())

    async def _end(self) -> None:
        if self._number % 3 == 0:
            await self._ask(
                RequestCode.UNREGISTER_CLIENT,
                {"clientID": self._id, "consumerGroup": self._group},
            )
        elif self._number % 3 == 1:
            # Gone while the broker holds its request.
            fields = self._pull_fields(1000, 1, "*") | {
                "sysFlag": 6,
                "suspendTimeoutMillis": 20_000,
            }
            request = RemotingCommand(
                code=11, ext_fields={k: str(v) for k, v in fields.items()}, flag=ONEWAY_FLAG
            )
            await self._client.invoke_oneway(self._broker, request)
        for group in (self._group, f"{self._group}-pop"):
            await self._ask(
                RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"}
            )
        for topic in (self._topic, f"%RETRY%{self._group}", f"%RETRY%{self._group}-pop"):
            await self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
            await self._ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic}, to=self._namesrv)
        self._counts["lives"] += 1

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()


async def _churn(target: Served, seconds: float, limits: Limits) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    complaints: list[str] = []
    looks: list[dict[str, int]] = []
    end = time.monotonic() + seconds
    numbers = iter(range(1 << 40))

    async def work() -> None:
        while time.monotonic() < end and target.process.poll() is None and len(complaints) < 20:
            life = Life(next(numbers), target, counts)
            try:
                await life.live()
            except Exception as error:  # noqa: BLE001  the others are still wanted
                complaints.append(f"a life ended early: {type(error).__name__}: {error}")
            await life.close()
            await asyncio.sleep(PAUSE_S)

    async def look() -> None:
        while time.monotonic() < end and target.process.poll() is None:
            looks.append(target.figures())
            await asyncio.sleep(seconds / LOOKS)

    cleaner = RemotingClient()

    async def clean() -> int:
        """One cleaning; how many files of the store are open after it."""
        for code in (
            RequestCode.DELETE_EXPIRED_COMMITLOG,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
            RequestCode.CLEAN_UNUSED_TOPIC,  # delayed messages come after their topic has gone
        ):
            answer = await cleaner.invoke(
                f"127.0.0.1:{target.ports['broker']}", RemotingCommand(code=int(code)), ANSWER_S
            )
            counts["cleanings"] += 1
            if answer.code:
                complaints.append(f"code {int(code)}: {answer.code} {answer.remark}")
        return target.figures()["files"]

    async def clean_always() -> None:
        while time.monotonic() < end and target.process.poll() is None:
            cleaned.append(await clean())
            await asyncio.sleep(CLEAN_S)

    cleaned: list[int] = []
    await asyncio.gather(look(), clean_always(), *(work() for _ in range(WORKERS)))
    for _ in range(LAST_CLEANINGS):
        if target.process.poll() is not None:
            break
        cleaned.append(await clean())
        if cleaned[-1] - cleaned[0] <= limits.files:
            break
        await asyncio.sleep(CLEAN_S)
    await cleaner.aclose()
    return {
        "counts": dict(counts), "complaints": complaints, "looks": looks, "cleaned": cleaned
    }  # fmt: skip


def _grown(looks: list[dict[str, int]], what: str) -> tuple[float, float]:
    """Medians of the second and the last quarter."""
    quarter = len(looks) // 4
    second = [each[what] for each in looks[quarter : 2 * quarter]]
    last = [each[what] for each in looks[3 * quarter :]]
    return statistics.median(second), statistics.median(last)


def run(directory: Path, seconds: float, limits: Limits) -> dict[str, Any]:
    """One run; what it found, with ``complaints`` for what must not be."""
    with served(directory, **SETTINGS) as target:
        report = asyncio.run(_churn(target, seconds, limits))
        complaints: list[str] = report["complaints"]
        if target.process.poll() is None:
            target.stop()
        else:
            complaints.append(f"the broker ended with {target.process.returncode}")
        log = target.log()
    looks = report.pop("looks")
    step = max(len(looks) // 20, 1)
    for what, scale, allowed in (
        ("anonymous_bytes", 1 << 20, limits.memory_mib),
        ("descriptors", 1, limits.descriptors),
        ("threads", 1, limits.threads),
    ):
        second, last = (round(each / scale, 1) for each in _grown(looks, what))
        curve = [round(each[what] / scale, 1) for each in looks[::step]]
        report[what] = {"second quarter": second, "last quarter": last, "curve": curve}
        if last - second > allowed:
            complaints.append(f"{what} grew from {second} to {last}, allowed {allowed} more")
    first, last = report["cleaned"][0], report["cleaned"][-1]
    if last - first > limits.files:
        complaints.append(f"files grew from {first} to {last}, allowed {limits.files} more")
    if "Traceback" in log:
        at = log.index("Traceback")
        shown = log[max(at - 300, 0) : at + 1500]
        complaints.append(f"{log.count('Traceback')} tracebacks: {shown}")
    segments = len(list((directory / "store" / "commitlog").iterdir()))
    return {
        "seconds": seconds,
        **report,
        "segments": segments,
        "longest callbacks": target.turns.get("longest", [])[:5],
        "limits": asdict(limits),
        "verify": findings_of(directory)[:5],
    }


def main(argv: list[str] | None = None) -> None:
    """Run and print what was found; exit 1 if there are complaints."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--small", action="store_true", help="20 seconds, for CI")
    parser.add_argument("--dir", help="where to leave store and log; a temporary one otherwise")
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        directory = options.dir or stack.enter_context(tempfile.TemporaryDirectory())
        seconds = 20.0 if options.small else options.minutes * 60
        report = run(Path(directory), seconds, Limits())
    print(json.dumps(report, indent=2, ensure_ascii=False))
    if report["complaints"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
