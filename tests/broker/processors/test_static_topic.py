"""Static topics over sockets: three brokers under one name server, mapped as mqadmin would do it.

Every message that was acknowledged is read through the leader alone, whoever stores it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oberth.broker import consumer_offsets
from oberth.broker.static_topic_strays import GROUP
from oberth.formats.message import decode_record
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.aio.client import RemotingClient
from oberth.remoting.command import RemotingCommand

T = "Static"
STEP = 10_000
NAMES = ("b0", "b1", "b2")


class Cluster:
    """Three brokers; queue 0 of T starts on the first of them and moves on."""

    def __init__(self, lives: list[Any], namesrv: str) -> None:
        self.lives = lives
        self.namesrv = namesrv
        self.items: list[dict[str, Any]] = []
        self.epoch = 1_000
        self.queues = [0, 0, 0]

    def item(self, number: int, logic_offset: int) -> dict[str, Any]:
        self.queues[number] += 1
        return {
            "bname": NAMES[number],
            "endOffset": -1,
            "gen": len(self.items),
            "logicOffset": logic_offset,
            "queueId": self.queues[number] - 1,
            "startOffset": 0,
            "timeOfEnd": -1,
            "timeOfStart": -1,
        }

    async def tell(
        self, number: int, items: list[dict[str, Any]] | None = None, **more: Any
    ) -> Any:
        """513 to one broker."""
        body = {
            "bname": NAMES[number],
            "currIdMap": {},
            "dirty": False,
            "epoch": self.epoch,
            "hostedQueues": {} if items is None else {"0": items},
            "scope": "__global__",
            "topic": T,
            "totalQueues": 1,
            **more,
        }
        nums = str(self.queues[number])
        return await self.lives[number].peer.call(
            513,
            {
                "topic": T,
                "defaultTopic": "TBW102",
                "readQueueNums": nums,
                "writeQueueNums": nums,
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
            json.dumps(body).encode(),
        )

    async def create(self, number: int) -> None:
        self.items = [self.item(number, 0)]
        for each in range(len(self.lives)):
            response = await self.tell(each, self.items if each == number else None)
            assert response.code == 0, response.remark

    async def move(self, number: int, *, decide: bool = True) -> None:
        """The five steps of a remapping."""
        old = NAMES.index(self.items[-1]["bname"])
        self.epoch += 1_000
        self.items = [*self.items, self.item(number, -1)]
        for each in (number, old):
            response = await self.tell(each, self.items)
            assert response.code == 0, response.remark
        if decide:
            self.items[-1]["logicOffset"] = (len(self.items) - 1) * STEP
            await self.decided(number)
        rest = {0, 1, 2} - {number, old}
        for each in rest:
            assert (await self.tell(each)).code == 0

    async def decided(self, number: int) -> None:
        response = await self.tell(number, self.items)
        assert response.code == 0, response.remark

    async def send(self, number: int, count: int, **more: str) -> list[RemotingCommand]:
        return [
            await self.lives[number].peer.send(T, f"{number}-{n}".encode(), 0, **more)
            for n in range(count)
        ]

    async def read(self, number: int, offset: int = 0) -> list[tuple[int, str]]:
        """Offset and body of everything, as a consumer that follows the leader sees it."""
        found: list[tuple[int, str]] = []
        for _ in range(50):
            response = await self.lives[number].peer.pull(T, offset, maxMsgNums="3")
            if response.code not in (0, 20, 21):
                assert response.code == 19, response.remark
                return found
            delta = int(response.fields["offsetDelta"])
            data, at = response.body_bytes(), 0
            while at < len(data):
                message = decode_record(data, at)
                found.append((message.queue_offset + delta, message.body.decode()))
                at += message.record_size
            offset = int(response.fields["nextBeginOffset"])
        raise AssertionError("the consumer goes round in circles")

    async def ask(self, number: int, code: int, **fields: str) -> RemotingCommand:
        fields = {"topic": T, "queueId": "0", **fields}
        response: RemotingCommand = await self.lives[number].peer.call(code, fields)
        return response

    async def offset(self, number: int, code: int, **fields: str) -> int:
        response = await self.ask(number, code, **fields)
        assert response.code == 0, response.remark
        return int(response.fields["offset"])


@pytest.fixture
async def cluster(make_live: Any) -> AsyncIterator[Cluster]:
    async with NameServer(NamesrvConfig(listen_port=0)) as server:
        address = str(server.address)
        lives = [await make_live(brokerName=name, namesrvAddr=address) for name in NAMES]
        yield Cluster(lives, address)


async def test_made_and_shown(cluster: Cluster) -> None:
    await cluster.create(0)
    response = await cluster.ask(0, 351, lo="true")
    shown = json.loads(response.body_bytes())
    assert list(shown) == sorted(shown)
    assert shown["mappingDetail"]["hostedQueues"] == {"0": cluster.items}
    assert "mappingDetail" not in json.loads((await cluster.ask(0, 351)).body_bytes())
    assert (
        json.loads((await cluster.ask(1, 351, lo="true")).body_bytes())["mappingDetail"][
            "hostedQueues"
        ]
        == {}
    )
    everything = json.loads((await cluster.ask(0, 21)).body_bytes())
    assert list(everything["topicQueueMappingDetailMap"]) == [T]
    assert everything["mappingDataVersion"]["counter"] == 1


async def test_route(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.move(1)
    async with RemotingClient() as client:
        request = RemotingCommand(code=105, ext_fields={"topic": T})
        async with asyncio.timeout(100):
            while True:
                response = await client.invoke(cluster.namesrv, request)
                route = json.loads(response.body_bytes())
                mappings = route.get("topicQueueMappingByBroker", {})
                ids = {name: info["currIdMap"] for name, info in mappings.items()}
                if ids == {"b0": {}, "b1": {"0": 0}, "b2": {}}:
                    break
                await asyncio.sleep(0.01)
    assert {info["epoch"] for info in mappings.values()} == {cluster.epoch}
    assert {info["totalQueues"] for info in mappings.values()} == {1}


async def test_send_and_read_through_moves(cluster: Cluster) -> None:
    await cluster.create(0)
    sent = await cluster.send(0, 5)
    assert [(r.code, r.fields["queueId"], r.fields["queueOffset"]) for r in sent] == [
        (0, "0", str(n)) for n in range(5)
    ]
    expected = [(n, f"0-{n}") for n in range(5)]
    for step, number in enumerate((1, 2, 0), 1):
        await cluster.move(number)
        refused = await cluster.send((number + 1) % 3, 1)
        assert refused[0].code == 501
        sent = await cluster.send(number, 4)
        assert [int(r.fields["queueOffset"]) for r in sent] == [step * STEP + n for n in range(4)]
        assert {r.fields["queueId"] for r in sent} == {"0"}
        expected += [(step * STEP + n, f"{number}-{n}") for n in range(4)]
        assert await cluster.read(number) == expected
        assert await cluster.read(number, 3) == expected[3:]
        assert await cluster.read(number, 6_000) == expected[5:]
        other = await cluster.lives[(number + 1) % 3].peer.pull(T, 0)
        assert other.code == 501
        assert await cluster.offset(number, 30) == step * STEP + 4
        assert await cluster.offset(number, 31) == 0
        assert (await cluster.ask((number + 1) % 3, 30)).code == 501
        assert (await cluster.ask(number, 32)).code == 0


async def test_the_end_of_the_log_is_that_of_the_stretch(cluster: Cluster) -> None:
    """With messages that are in the log and not dispatched."""
    await cluster.create(0)
    stores = [live.broker.parts.store for live in cluster.lives]
    for store in stores:
        store.confirmed_by_replicas = lambda: 0
    await cluster.send(0, 3)
    for committed, end in (("true", 0), ("", 0), ("false", 3)):
        assert await cluster.offset(0, 30, committed=committed) == end
    assert await cluster.offset(0, 30) == 0
    await cluster.move(1, decide=False)  # the broker that leads asks the other one
    assert await cluster.offset(1, 30, committed="false") == 3
    assert await cluster.offset(1, 30) == 0
    cluster.items[-1]["logicOffset"] = STEP
    await cluster.decided(1)
    await cluster.send(1, 2)
    assert await cluster.offset(1, 30, committed="false") == STEP + 2
    for store in stores:
        store.confirmed_by_replicas = None


async def test_batch_and_any_queue(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.move(1)
    response = await cluster.lives[1].peer.send_batch(T, [b"x", b"y"])
    assert (response.code, response.fields["queueOffset"]) == (0, str(STEP))
    response = await cluster.lives[1].peer.send(T, b"z", -1)
    assert (response.fields["queueId"], response.fields["queueOffset"]) == ("0", str(STEP + 2))
    assert (await cluster.lives[1].peer.send(T, b"z", 1)).code == 501


async def test_undecided_place(cluster: Cluster) -> None:
    """Between the steps of a remapping: taken, and not yet shown to anybody."""
    await cluster.create(0)
    await cluster.send(0, 2)
    await cluster.move(1, decide=False)
    sent = await cluster.send(1, 2)
    assert [(r.code, r.fields["queueOffset"]) for r in sent] == [(0, "-1"), (0, "-1")]
    assert await cluster.read(1) == [(0, "0-0"), (1, "0-1")]
    assert await cluster.offset(1, 30) == 2
    waiting = asyncio.ensure_future(
        cluster.lives[1].peer.pull(T, 2, sysFlag="6", suspendTimeoutMillis="15000")
    )
    await cluster.lives[1].until(lambda: len(cluster.lives[1].broker.parts.hold) == 1)
    cluster.items[-1]["logicOffset"] = STEP
    await cluster.decided(1)
    response = await waiting
    assert (response.code, response.fields["nextBeginOffset"]) == (20, str(STEP))
    assert [body for _, body in await cluster.read(1)] == ["0-0", "0-1", "1-0", "1-1"]


async def test_held_pull(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.move(1)
    live = cluster.lives[1]
    waiting = asyncio.ensure_future(
        live.peer.pull(T, STEP, sysFlag="6", suspendTimeoutMillis="15000")
    )
    await live.until(lambda: len(live.broker.parts.hold) == 1)
    await cluster.send(1, 1)
    response = await waiting
    assert (response.code, response.fields["offsetDelta"]) == (0, str(STEP))
    waiting = asyncio.ensure_future(
        live.peer.pull(T, STEP + 1, sysFlag="6", suspendTimeoutMillis="15000")
    )
    await live.until(lambda: len(live.broker.parts.hold) == 1)
    await cluster.move(2)
    assert (await waiting).code == 501


async def test_consumer_offsets(cluster: Cluster) -> None:
    for live in cluster.lives:
        await live.peer.heartbeat("G", {T: "*"})
    await cluster.create(0)
    await cluster.send(0, 5)
    group = {"consumerGroup": "G"}
    assert (await cluster.ask(0, 14, setZeroIfNotFound="false", **group)).code == 22
    assert await cluster.offset(0, 14, **group) == 0
    assert (await cluster.ask(0, 15, commitOffset="3", **group)).code == 0
    assert await cluster.offset(0, 14, **group) == 3
    await cluster.move(1)
    await cluster.send(1, 5)
    assert await cluster.offset(1, 14, **group) == 3  # as the older stretch has it
    assert (await cluster.ask(1, 15, commitOffset="5", **group)).code == 0
    assert cluster.lives[0].broker.parts.offsets.query("G", T, 0) == 5
    assert await cluster.offset(1, 14, **group) == 5
    assert (await cluster.ask(1, 15, commitOffset=str(STEP + 2), **group)).code == 0
    assert cluster.lives[1].broker.parts.offsets.query("G", T, 0) == 2
    assert await cluster.offset(1, 14, **group) == STEP + 2
    assert (await cluster.ask(0, 14, **group)).code == 501
    # With a pull, too: what is in another stretch is left to the consumer's own commit.
    fields = {"sysFlag": "5", "commitOffset": str(STEP + 4)}
    await cluster.lives[1].peer.pull(T, STEP + 4, **fields)
    assert cluster.lives[1].broker.parts.offsets.query("G", T, 0) == 4
    fields["commitOffset"] = "2"
    await cluster.lives[1].peer.pull(T, STEP + 4, **fields)
    assert cluster.lives[1].broker.parts.offsets.query("G", T, 0) == 4
    stats = await cluster.lives[0].peer.call(208, {"consumerGroup": "Other", "topic": T})
    assert b'"consumerOffset":-1' in stats.body_bytes()


async def test_an_offset_that_there_is_no_room_for_is_no_success(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = cluster.lives[0]
    await live.peer.heartbeat("G", {T: "*"})
    await cluster.create(0)
    await cluster.send(0, 5)
    monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", 0)
    answer = await cluster.ask(0, 15, consumerGroup="G", commitOffset="3")
    assert answer.code == 1
    assert "as many offsets as it may" in str(answer.remark)
    assert live.broker.parts.offsets.query("G", T, 0) == -1


async def test_a_broker_that_is_gone(cluster: Cluster) -> None:
    """No guess about what cannot be asked: a consumer would start anew."""
    await cluster.create(0)
    await cluster.send(0, 2)
    await cluster.move(1)
    await cluster.lives[0].stop()
    for code in (14, 15, 29, 31, 32):
        response = await cluster.ask(
            1, code, consumerGroup="G", commitOffset="1", timestamp="1", boundaryType="LOWER"
        )
        assert (code, response.code) == (code, 1)
    assert (await cluster.lives[1].peer.pull(T, 0)).code == 1
    assert await cluster.offset(1, 30) == STEP
    await cluster.lives[0].start()


async def test_search_by_time(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.send(0, 2)
    await cluster.lives[0].later(1_000)
    cluster.lives[1].clock.ahead_ms = 1_000
    between = cluster.lives[0].broker.parts.now_ms() - 500
    await cluster.move(1)
    await cluster.send(1, 2)
    assert await cluster.offset(1, 29, timestamp="1") == 0
    assert await cluster.offset(1, 29, timestamp=str(between)) == STEP
    assert await cluster.offset(1, 29, timestamp=str(between + 3_600_000)) == STEP + 2
    assert (await cluster.ask(0, 29, timestamp="1")).code == 501


async def test_physical_requests(cluster: Cluster) -> None:
    """``lo=false``: what one broker has, whoever leads."""
    await cluster.create(0)
    await cluster.send(0, 2)
    await cluster.move(1)
    assert await cluster.offset(0, 30, lo="false") == 2
    response = await cluster.lives[0].peer.pull(T, 0, lo="false")
    assert (response.code, response.fields.get("offsetDelta")) == (0, None)


async def test_transactions(cluster: Cluster) -> None:
    """A half message is found by its own offset, whatever the queue's logical ones are."""
    await cluster.create(0)
    await cluster.move(1)
    live = cluster.lives[1]
    await live.peer.heartbeat(producers=("PG",))
    properties = {"TRAN_MSG": "true", "UNIQ_KEY": "K" * 32, "PGROUP": "PG"}
    half = await live.peer.send(T, b"half", 0, properties, f="4")
    assert half.code == 0
    offset = int(half.fields["queueOffset"])
    assert offset < STEP
    await live.peer.call(
        37,
        {
            "producerGroup": "PG",
            "tranStateTableOffset": str(offset),
            "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "msgId": "K" * 32,
            "transactionId": "K" * 32,
        },
    )
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue(T, 0) == 1)
    assert await cluster.read(1) == [(STEP, "half")]


async def test_restart_and_deletion(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.move(1)
    await cluster.send(1, 1)
    before = dict(cluster.lives[1].broker.parts.static_topics.table)
    await cluster.lives[1].restart()
    assert cluster.lives[1].broker.parts.static_topics.table == before
    file = cluster.lives[1].broker.parts.config_dir / "topicQueueMapping.json"
    assert b'"hostedQueues":{\n\t\t\t\t0:[' in file.read_bytes()  # as Java writes it
    assert await cluster.read(1) == [(STEP, "1-0")]
    assert (await cluster.ask(1, 215)).code == 0
    await cluster.lives[1].restart()
    assert not cluster.lives[1].broker.parts.static_topics


WRONG: list[dict[str, Any]] = [
    {"bname": "b9"},
    {"topic": "Other"},
    {"totalQueues": -1},
    {"epoch": 1},
    {"scope": "unit"},
    {"hostedQueues": {"0": [{"gen": -1}]}},
    {"hostedQueues": {"0": []}},
    {"hostedQueues": 7},
    {"hostedQueues": {"0": [{"bname": "b0", "queueId": 1}]}},
]


async def test_refused(cluster: Cluster) -> None:
    await cluster.create(0)
    cluster.epoch += 1
    for wrong in WRONG:
        response = await cluster.tell(0, cluster.items, **wrong)
        assert (wrong, response.code) == (wrong, 1)
    assert (await cluster.send(0, 1))[0].code == 0
    cluster.epoch -= 1
    assert (await cluster.tell(0)).code == 1  # the same epoch without the queue


async def test_illegal_names(cluster: Cluster) -> None:
    fields = {
        "topic": "../x",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    peer = cluster.lives[0].peer
    assert (await peer.call(513, fields, b"{}")).code == 29
    assert (await peer.call(513, {**fields, "topic": "TBW102"}, b"{}")).code == 29
    assert (await peer.call(513, {**fields, "topic": "A"}, b"{}")).code == 1
    assert (await peer.call(513, {**fields, "topic": "A"}, b"no json")).code == 1


async def test_clean_up(cluster: Cluster) -> None:
    """1 -> 2 -> 0: the first leader forgets the queue, the last one what is empty."""
    await cluster.create(1)
    await cluster.send(1, 1)
    await cluster.move(2)
    await cluster.send(2, 1)
    await cluster.move(0)
    await cluster.send(0, 1)
    brokers = [live.broker for live in cluster.lives]
    for broker in brokers:
        await broker.services.registration.register_all()
        await broker.services.cleaner.clean()
    hosted = [broker.parts.static_topics.table[T].hosted_queues for broker in brokers]
    assert [list(each) for each in hosted] == [[0], [], [0]]
    assert len(hosted[0][0]) == 3  # nothing is empty
    # As if everything on the first leader had expired.
    brokers[1].parts.store.delete_topics({T})
    for live in cluster.lives:
        await live.peer.heartbeat("G", {T: "*"})
    brokers[1].parts.offsets.commit("G", T, 0, 1, 0)
    await brokers[0].services.cleaner.clean()
    # A group that had consumed it does not start anew behind the rest.
    assert await cluster.offset(0, 14, consumerGroup="G") == STEP
    assert brokers[2].parts.offsets.query("G", T, 0) == 0
    left = brokers[0].parts.static_topics.table[T].hosted_queues[0]
    assert [item.gen for item in left] == [1, 2]
    assert [body for _, body in await cluster.read(0)] == ["2-0", "0-0"]
    assert await cluster.offset(0, 31) == STEP
    brokers[2].parts.store.delete_topics({T})
    await cluster.lives[2].stop()
    await brokers[0].services.cleaner.clean()  # cannot be asked: stays
    assert len(brokers[0].parts.static_topics.table[T].hosted_queues[0]) == 2
    await cluster.lives[2].start()


async def test_clean_up_has_its_hours(make_live: Any) -> None:
    live = await make_live(deleteWhen="04")
    broker = live.broker
    runs: list[bool] = []

    async def clean(*, stretches: bool) -> None:
        runs.append(stretches)

    broker.services.cleaner.clean = clean
    await live.later(300_000)
    assert runs == []  # nothing to clean
    broker.parts.static_topics.table["T"] = None
    try:
        for _ in range(24 * 2):
            await live.later(30 * 60 * 1000)
        assert len(runs) == 48
        assert runs.count(True) == 2
        broker.services.cleaner.soon()
        await live.later(1_000)
        assert runs[48:] == [False]
    finally:
        broker.parts.static_topics.table.clear()


async def test_mapped_away_twice(cluster: Cluster) -> None:
    """Who is told of a queue that others moved on meanwhile forgets it without being asked to."""
    await cluster.create(1)
    await cluster.move(2)
    await cluster.move(0)
    table = cluster.lives[1].broker.parts.static_topics.table
    for live in cluster.lives:
        await live.broker.services.registration.register_all()
    await cluster.lives[1].later(1_000)
    await cluster.lives[1].until(lambda: not table[T].hosted_queues)
    assert list(cluster.lives[2].broker.parts.static_topics.table[T].hosted_queues) == [0]


async def test_strays_follow_their_queue(cluster: Cluster) -> None:
    """What was delayed, or half sent, before a move is read behind it."""
    await cluster.create(0)
    live = cluster.lives[0]
    await live.peer.heartbeat(producers=("PG",))
    await cluster.send(0, 1)
    delayed = await live.peer.send(T, b"delayed", 0, {"DELAY": "1", "UNIQ_KEY": "D" * 32})
    assert delayed.code == 0
    properties = {"TRAN_MSG": "true", "UNIQ_KEY": "K" * 32, "PGROUP": "PG"}
    half = await live.peer.send(T, b"half", 0, properties, f="4")
    await cluster.move(1)
    for each in cluster.lives:
        await each.broker.services.registration.register_all()
    await cluster.send(1, 1)
    end = {
        "producerGroup": "PG",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": str(int(half.fields["msgId"][-16:], 16)),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": "K" * 32,
        "transactionId": "K" * 32,
    }
    await live.peer.call(37, end)
    await live.later(2_000)
    await live.until(lambda: live.broker.parts.store.max_offset_in_queue(T, 0) == 3)
    assert live.broker.parts.offsets.query(GROUP, T, 0) <= 3
    await live.later(2_000)
    await live.until(lambda: live.broker.parts.offsets.query(GROUP, T, 0) == 3)
    found = await cluster.read(1, STEP)
    assert [offset for offset, _ in found] == [STEP, STEP + 1, STEP + 2]
    assert sorted(body for _, body in found) == ["1-0", "delayed", "half"]
    await live.later(2_000)
    await live.restart()
    await live.later(2_000)
    assert len(await cluster.read(1, STEP)) == 3  # not again


async def test_a_full_table_of_offsets_has_room_for_strays(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they begin is an offset; without it nobody would look for them."""
    await cluster.create(0)
    await cluster.send(0, 1)
    monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", 0)
    await cluster.move(1)
    assert cluster.lives[0].broker.parts.offsets.query(GROUP, T, 0) == 1


async def purge(cluster: Cluster, number: int, **fields: str) -> RemotingCommand:
    """29002 to one broker; its queue ids and offsets are physical."""
    response: RemotingCommand = await cluster.lives[number].peer.call(29002, {"topic": T, **fields})
    return response


async def test_a_purge_of_one_stretch(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.send(0, 5)
    await cluster.move(1)
    await cluster.send(1, 3)
    assert (await purge(cluster, 0, queueId="0", offset="2")).code == 0
    later = [(2, "0-2"), (3, "0-3"), (4, "0-4"), *((STEP + n, f"1-{n}") for n in range(3))]
    assert await cluster.offset(1, 31) == 2
    assert await cluster.read(1, 0) == later, "who is behind goes on with what is left"
    assert (await purge(cluster, 1, queueId="0", offset="1")).code == 0
    assert await cluster.read(1, 0) == [*later[:3], *later[4:]], "a hole is passed over"
    assert await cluster.offset(1, 31) == 2, "the queue still begins with its first stretch"
    assert await cluster.offset(1, 30) == STEP + 3
    # Nothing is left of the first stretch; nobody is stuck there.
    assert (await purge(cluster, 0, queueId="0", offset="5")).code == 0
    assert await cluster.read(1, 0) == later[4:]
    assert await cluster.read(1, 3) == later[4:]
    sent = await cluster.send(1, 1)
    assert sent[0].fields["queueOffset"] == str(STEP + 3), "offsets go on"


async def test_a_purge_looks_at_offsets_in_its_own_stretch(cluster: Cluster) -> None:
    async def commit(group: str, offset: int) -> None:
        fields = {"consumerGroup": group, "commitOffset": str(offset)}
        assert (await cluster.ask(1, 15, **fields)).code == 0

    await cluster.create(0)
    await cluster.send(0, 5)
    await cluster.move(1)
    await cluster.send(1, 3)
    await commit("through", 5)
    await commit("through", STEP + 1)
    await commit("jumped", 3)
    await commit("jumped", STEP + 1)
    refused = await purge(cluster, 0, queueId="0", offset="5")
    assert (refused.code, refused.remark) == (604, "not all consumed: jumped")
    assert (await purge(cluster, 0, queueId="0", offset="3")).code == 0
    assert (await purge(cluster, 0, queueId="0", offset="5", force="true")).code == 0


async def test_reserve_time_of_a_static_topic(cluster: Cluster) -> None:
    await cluster.create(0)
    await cluster.send(0, 3)
    fields = {
        "topic": T, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+reserve.time=1",
    }  # fmt: skip
    assert (await cluster.lives[0].peer.call(17, fields)).code == 0
    await cluster.move(1)
    assert cluster.lives[0].broker.parts.topics.get(T).attributes == {"reserve.time": "1"}
    assert cluster.lives[1].broker.parts.topics.get(T).attributes == {}
    await cluster.send(1, 2)
    for live in cluster.lives:
        live.clock.ahead_ms += 2 * 3_600_000
    cluster.lives[0].broker.parts.store.cleaning.run()
    assert await cluster.read(1, 0) == [(STEP, "1-0"), (STEP + 1, "1-1")]
