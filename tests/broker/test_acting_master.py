"""A slave acts for its master: who acts, what it delivers, and how a master comes back.

The machines alone first; then live brokers under a name server that shows acting masters: a group
of two, and a broker of another name that takes what escapes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.rigs.silent import silent_address

from oberth.broker.acting_master import Membership, Step
from oberth.broker.broker_config import BrokerConfig
from oberth.broker.escape import Escape, NoOtherBrokerError, outbound
from oberth.formats import names
from oberth.formats.properties import decode_properties
from oberth.namesrv.name_server import NameServer
from oberth.namesrv.namesrv_config import NamesrvConfig
from oberth.remoting.bodies.route import BrokerData, QueueData, TopicRouteData
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus

MakeLive = Callable[..., Awaitable[Any]]
POP = 200050


# ------------------------------------------------------------------------------- machines


@pytest.mark.parametrize(
    ("own_id", "others", "step"),
    [
        (0, {}, Step.GO_ONLINE),
        (0, {1: "b", 2: "c"}, Step.TAKE_BACK),
        (1, {}, Step.GO_ONLINE),
        (1, {2: "c"}, Step.GO_ONLINE),
        (1, {0: "a", 2: "c"}, Step.FOLLOW),
    ],
)
def test_what_a_member_does_before_it_goes_online(
    own_id: int, others: dict[int, str], step: Step
) -> None:
    assert Membership(own_id, is_isolated=True).next_step(others) is step


@pytest.mark.parametrize(
    ("own_id", "others", "acts"),
    [
        (0, {}, False),
        (0, {1: "b"}, False),
        (1, {}, True),
        (1, {2: "c"}, True),
        (1, {0: "a"}, False),
        (2, {1: "b"}, False),
        (2, {3: "d"}, True),
    ],
)
def test_the_smallest_id_acts_while_there_is_no_master(
    own_id: int, others: dict[int, str], acts: bool
) -> None:
    member = Membership(own_id, is_isolated=False)
    assert member.see(others) is acts, "it says when that changes"
    assert member.acts is acts
    assert not member.see(others)
    assert member.see({0: "a"}) is acts
    assert not member.acts
    isolated = Membership(own_id, is_isolated=True)
    assert not isolated.see(others)
    assert not isolated.acts


class Peers:
    """Other brokers: a route, and what they answer."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.sent: list[tuple[str, dict[str, str], bytes]] = []
        self.data = TopicRouteData(
            broker_datas=[
                BrokerData({0: "x:1"}, "own", "C"),
                BrokerData({0: "x:2"}, "other", "C"),
                BrokerData({1: "x:3"}, "without-master", "C"),
            ],
            queue_datas=[
                QueueData("own", 6, 4, 0, 4),
                QueueData("other", 6, 4, 0, 2),
                QueueData("read-only", 4, 4, 0, 4),
                QueueData("without-master", 6, 4, 0, 4),
            ],
        )

    async def route(self, topic: str) -> TopicRouteData | None:
        return None if topic == "nowhere" else self.data

    async def ask(
        self, name: str, code: RequestCode, fields: dict[str, str], *, body: bytes
    ) -> RemotingCommand:
        assert code is RequestCode.SEND_MESSAGE
        self.sent.append((name, fields, body))
        return RemotingCommand(code=self.codes.pop(0))


def escape_with(peers: Peers, *, enabled: bool = True) -> tuple[Escape, list[Any]]:
    work: list[Any] = []
    config = BrokerConfig(broker_name="own", enable_remote_escape=enabled)
    return Escape(config=config, peers=peers, start_task=work.append), work  # type: ignore[arg-type]


def status_of(escape: Escape, *messages: MessageExtBrokerInner) -> list[PutMessageStatus]:
    return [each.status for each in escape.append(messages)]


OK, NOT_NOW = PutMessageStatus.PUT_OK, PutMessageStatus.SERVICE_NOT_AVAILABLE
DUE = MessageExtBrokerInner.of(
    "T", b"due", properties={"DELAY": "3", "PGROUP": "P", "REAL_TOPIC": "T"}
)
DUE.convert = False


async def test_what_another_broker_has_is_stored_when_it_is_offered_again() -> None:
    peers = Peers(0, 10, 0)
    escape, work = escape_with(peers)
    assert status_of(escape, DUE, DUE) == [NOT_NOW, NOT_NOW]
    assert len(work) == 2
    assert status_of(escape, DUE, DUE) == [NOT_NOW, NOT_NOW]
    assert len(work) == 2, "they are on their way"
    await work.pop()
    assert status_of(escape, DUE, DUE) == [OK, NOT_NOW], "one of two that are the same"
    await work.pop()
    assert status_of(escape, DUE) == [OK]
    assert status_of(escape, DUE) == [NOT_NOW]
    await work.pop()
    assert escape.sent == 3
    names_and_queues = [(name, fields["queueId"]) for name, fields, _ in peers.sent]
    assert names_and_queues == [("other", "0"), ("other", "1"), ("other", "0")]
    _, fields, body = peers.sent[0]
    assert (fields["topic"], fields["producerGroup"], body) == ("T", "P", b"due")
    assert decode_properties(fields["properties"]) == {"PGROUP": "P", "REAL_TOPIC": "T"}


async def test_what_nobody_takes_is_sent_again() -> None:
    peers = Peers(14, 0)
    escape, work = escape_with(peers)
    nowhere = MessageExtBrokerInner.of("nowhere", b"x")
    assert status_of(escape, DUE, nowhere) == [NOT_NOW, NOT_NOW]
    for each in work:
        await each
    work.clear()
    assert len(peers.sent) == 1
    assert status_of(escape, DUE) == [NOT_NOW]
    await work.pop()
    assert status_of(escape, DUE) == [OK]


def test_nothing_escapes_that_may_not() -> None:
    escape, work = escape_with(Peers(), enabled=False)
    assert status_of(escape, DUE) == [NOT_NOW]
    assert not work


def test_a_half_message_becomes_a_transactional_one() -> None:
    half = MessageExtBrokerInner.of(
        names.TRANS_HALF_TOPIC, b"half", properties={"REAL_TOPIC": "T", "REAL_QID": "3"}
    )
    found = outbound(half)
    assert (found.topic, found.queue_id, found.sys_flag & 0xC) == ("T", 3, 4)
    assert decode_properties(found.properties_raw)["TRAN_MSG"] == "true"
    with pytest.raises(NoOtherBrokerError):
        outbound(MessageExtBrokerInner.of(names.TRANS_HALF_TOPIC, b"half"))


# ---------------------------------------------------------------------------- live brokers


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    config = NamesrvConfig(
        listen_port=0, support_acting_master=True, notify_min_broker_id_changed=True
    )
    async with NameServer(config) as server:
        yield server


def settings(name_server: NameServer, **more: str) -> dict[str, str]:
    return {
        "namesrvAddr": str(name_server.address),
        "brokerName": "group",
        "enableSlaveActingMaster": "true",
        "enableRemoteEscape": "true",
        "totalReplicas": "2",
        "brokerHeartbeatInterval": "50",
        "haSendHeartbeatInterval": "100",
        "mappedFileSizeCommitLog": str(256 * 1024),
        **more,
    }


def acts(live: Any) -> bool:
    return bool(live.broker.services.acting.membership.acts)


def is_online(live: Any) -> bool:
    return not live.broker.services.acting.membership.is_isolated


def end(live: Any) -> int:
    return int(live.broker.parts.store.max_phy_offset)


async def make_group(
    make_live: MakeLive, name_server: NameServer, **more: str
) -> tuple[Any, Any, Any]:
    """Master, slave, and a broker of another name that has topic T, too."""
    master = await make_live(**settings(name_server, **more))
    await master.until(lambda: is_online(master))
    slave = await make_live(**settings(name_server, brokerId="1", brokerRole="SLAVE", **more))
    await slave.until(lambda: is_online(slave) and slave.broker.services.ha.follows_master)
    other = await make_live(**settings(name_server, brokerName="other", totalReplicas="1"))
    for each in (master, other):
        each.broker.parts.topics.create_internal("T", 1)
        each.broker.parts.topics_changed(["T"])
    return master, slave, other


async def slave_has_all(master: Any, slave: Any) -> None:
    await slave.until(lambda: end(slave) == end(master))
    await slave.broker.services.tables.take_all(str(master.broker.address))


async def settle(live: Any, done: Callable[[], Any]) -> None:
    """Ticks of the broker's clock until something is so."""
    async with asyncio.timeout(100):
        while not done():
            await live.later(100)
            await asyncio.sleep(0.01)


async def test_a_slave_acts_until_its_master_is_back(
    make_live: MakeLive, name_server: NameServer
) -> None:
    master, slave, other = await make_group(make_live, name_server)
    assert (await master.peer.send("T", b"plain")).code == 0
    assert (await master.peer.send("T", b"level", properties={"DELAY": "3"})).code == 0
    await slave_has_all(master, slave)
    assert not acts(slave)
    route = name_server.routes.route("T")
    assert route is not None
    log_end = end(slave)

    await master.stop()
    await slave.until(lambda: acts(slave))
    route = name_server.routes.route("T")
    assert route is not None
    shown = {each.broker_name: each.broker_addrs for each in route.broker_datas}
    perms = {each.broker_name: each.perm for each in route.queue_datas}
    assert shown["group"] == {0: str(slave.broker.address)}
    assert (perms["group"], perms["other"]) == (4, 6), "it may be read and not written"
    assert [each.body for each in await slave.peer.read("T")] == [b"plain"]
    assert (await slave.peer.send("T", b"no")).code != 0
    info = slave.broker.services.acting.runtime_info()
    assert info == {"actsAsMaster": "true", "isolated": "false", "escapedMessages": "0"}

    await slave.later(11_000)
    store = other.broker.parts.store
    await settle(slave, lambda: store.max_offset_in_queue("T", 0) == 1)
    assert [each.body for each in await other.peer.read("T")] == [b"level"]
    await settle(slave, lambda: slave.broker.parts.schedule.behind(3)[0] == 1)
    assert end(slave) == log_end, "its own log stays a copy"

    master.clock.ahead_ms += 11_000  # there it is due as well
    await master.start()
    await master.until(lambda: is_online(master))
    assert master.broker.parts.schedule.behind(3)[0] == 1
    await slave.until(lambda: not acts(slave))
    await master.later(1_000)
    assert end(master) == log_end, "nothing is delivered twice"
    assert (await master.peer.send("T", b"again")).code == 0
    await slave.until(lambda: end(slave) == end(master) > log_end)


async def test_timed_messages_and_open_transactions_escape(
    make_live: MakeLive, name_server: NameServer
) -> None:
    master, slave, other = await make_group(make_live, name_server, transactionTimeOut="1000")
    due = {"TIMER_DELIVER_MS": str(master.clock() + 20_000)}
    assert (await master.peer.send("T", b"timed", properties=due)).code == 0
    half = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "U1"}
    assert (await master.peer.send("T", b"half", properties=half, f="4")).code == 0
    await settle(master, lambda: len(master.broker.services.timers.store.wheel) == 1)
    await slave_has_all(master, slave)
    wheel = slave.broker.services.timers.store
    await slave.until(lambda: len(wheel.wheel) == 1)
    await master.stop()
    await slave.until(lambda: acts(slave))
    await slave.later(25_000)
    store = other.broker.parts.store
    await settle(slave, lambda: store.max_offset_in_queue("T", 0) == 1)
    assert [each.body for each in await other.peer.read("T")] == [b"timed"]
    # The other broker asks the producer from here on.
    await settle(slave, lambda: store.max_offset_in_queue(names.TRANS_HALF_TOPIC, 0) == 1)
    offsets = slave.broker.parts.offsets
    await settle(slave, lambda: offsets.query(names.TRANS_GROUP, names.TRANS_HALF_TOPIC, 0) == 1)
    await slave.later(60_000)
    assert store.max_offset_in_queue(names.TRANS_HALF_TOPIC, 0) == 1, "once"

    await master.start()
    await master.until(lambda: is_online(master))
    theirs = master.broker.parts.offsets
    assert theirs.query(names.TRANS_GROUP, names.TRANS_HALF_TOPIC, 0) == 1


async def test_an_acting_slave_hands_out_and_brings_back_pop_messages(
    make_live: MakeLive, name_server: NameServer
) -> None:
    master, slave, other = await make_group(make_live, name_server)
    assert (await master.peer.send("T", b"popped")).code == 0
    await slave_has_all(master, slave)
    await master.stop()
    await slave.until(lambda: acts(slave))
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "32",
        "invisibleTime": "10000", "pollTime": "0", "bornTime": str(slave.clock()), "initMode": "0",
        "expType": "TAG", "exp": "*",
    }  # fmt: skip
    await settle(slave, lambda: slave.broker.parts.store.max_offset_in_queue("T", 0) == 1)
    found = await slave.peer.call(POP, fields)
    assert found.code == 0
    assert b"popped" in found.body_bytes()
    again = await slave.peer.call(POP, {**fields, "bornTime": str(slave.clock())})
    assert again.code != 0, "it is invisible"
    # Nobody acknowledges: its check point escapes, and the other broker is to bring it back.
    revive = slave.broker.services.pop.revive_topic
    for each in (other,):
        each.broker.parts.topics.create_internal(revive, 8)
        each.broker.parts.topics_changed([revive])
    await slave.later(11_000)
    await settle(slave, lambda: slave.broker.services.acting._escape.sent > 0)


async def test_a_master_stays_away_until_its_slave_follows(
    make_live: MakeLive, name_server: NameServer
) -> None:
    master, slave, _ = await make_group(make_live, name_server)
    assert (await master.peer.send("T", b"a")).code == 0
    await slave_has_all(master, slave)
    await master.stop()
    await slave.until(lambda: acts(slave))
    slave.broker.services.ha.master_found = lambda *_: None
    await master.start()
    await master.until(lambda: master.broker.services.acting._task is not None)
    await asyncio.sleep(0)
    assert not is_online(master)
    assert not master.broker.services.ha.delivers
    assert name_server.routes.member_group("DefaultCluster", "group").broker_addrs.keys() == {1}
    del slave.broker.services.ha.master_found
    await master.until(lambda: is_online(master))
    await slave.until(lambda: not acts(slave))


async def test_without_escape_what_is_due_waits(
    make_live: MakeLive, name_server: NameServer
) -> None:
    master, slave, _ = await make_group(make_live, name_server, enableRemoteEscape="false")
    assert (await master.peer.send("T", b"level", properties={"DELAY": "3"})).code == 0
    await slave_has_all(master, slave)
    await master.stop()
    await slave.until(lambda: acts(slave))
    for _ in range(20):
        await slave.later(1_000)
    assert slave.broker.parts.schedule.behind(3) == (0, 1)
    master.clock.ahead_ms += 20_000
    await master.start()
    await settle(master, lambda: master.broker.parts.store.max_offset_in_queue("T", 0) == 1)


async def test_a_member_may_skip_what_comes_before_it_goes_online(
    make_live: MakeLive, name_server: NameServer
) -> None:
    at_once = await make_live(**settings(name_server, skipPreOnline="true"))
    assert is_online(at_once)
    alone = await make_live(**settings(name_server, brokerName="alone", totalReplicas="1"))
    assert is_online(alone)


async def test_a_silent_member_is_gone_after_its_own_time(
    make_live: MakeLive, name_server: NameServer
) -> None:
    live = await make_live(**settings(name_server, brokerNotActiveTimeoutMillis="1234"))
    await live.until(lambda: is_online(live) and name_server.routes._live)
    (known,) = name_server.routes._live.values()
    assert known.registration.timeout_ms == 1234
    assert known.registration.enable_acting_master


async def test_who_has_the_smallest_id_is_not_believed_but_asked(
    make_live: MakeLive, name_server: NameServer
) -> None:
    _, slave, _ = await make_group(make_live, name_server)
    said = {"minBrokerId": "1", "brokerName": "group", "minBrokerAddr": "x:1"}
    answer = await slave.peer.call(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, said)
    assert answer.code == 0
    await slave.until(lambda: not slave.broker.services.acting._wake.is_set())
    assert not acts(slave)
    assert (
        json.loads(json.dumps(slave.broker.services.acting.runtime_info()))["isolated"] == "false"
    )


async def test_a_member_whose_look_fails_looks_again(
    make_live: MakeLive, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(**settings(name_server))
    acting = live.broker.services.acting
    await live.until(lambda: is_online(live))
    look, calls = acting._look, []

    async def late_at_first() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError
        await look()

    monkeypatch.setattr(acting, "_look", late_at_first)
    await live.until(lambda: len(calls) > 1)


async def test_the_name_server_that_answers_is_asked_first(
    make_live: MakeLive, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other would have this member look so late that it counts as gone."""
    live_one = str(name_server.address)
    with silent_address() as gone:
        live = await make_live(**settings(name_server, namesrvAddr=f"{gone};{live_one}"))
        acting = live.broker.services.acting
        await live.until(lambda: acting._asked == live_one)
        asked: list[str] = []
        beats: list[str] = []
        invoke, post = acting._client.invoke, acting._client.post

        async def note(addr: str, request: RemotingCommand, *args: float) -> RemotingCommand:
            if request.code == RequestCode.GET_BROKER_MEMBER_GROUP:
                asked.append(addr)
            answer: RemotingCommand = await invoke(addr, request, *args)
            return answer

        def note_beat(addr: str, request: RemotingCommand) -> None:
            beats.append(addr)
            post(addr, request)

        monkeypatch.setattr(acting._client, "invoke", note)
        monkeypatch.setattr(acting._client, "post", note_beat)
        await live.until(lambda: len(asked) > 3)
        assert set(asked) == {live_one}
        assert set(beats) == {gone, live_one}
