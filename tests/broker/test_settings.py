"""What a key of the broker changes: one short test for each key that no other test would miss.

`tests/test_settings.py` names for every key the test that notices when it has no effect. Most of
these brokers never start: their parts are asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oberth.broker import request_table
from oberth.broker.acl.inner_client import SigningClient
from oberth.broker.broker import Broker
from oberth.broker.broker_config import PERM_INHERIT, read_configs
from oberth.broker.pop.polling import Waiting
from oberth.broker.recall_handle import RecallHandle
from oberth.broker.subscriptions import SQL92, Subscription
from oberth.errors import OberthError, OptionError, RemotingError
from oberth.formats import properties as p
from oberth.formats.bloom import make_bloom_filter
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.remoting.aio.processors import ProcessorTable
from oberth.remoting.aio.stage import Stage
from oberth.remoting.code import RequestCode
from oberth.remoting.command import RemotingCommand
from oberth.remoting.headers.namesrv import RegisterBrokerRequestHeader
from oberth.store.messages import MessageExtBrokerInner, PutMessageStatus
from oberth.store.replication import FRAME, REPORT, LogReceiver

NOW_MS = 1_800_000_000_000
BOUND_S = 20
"""Of what happens at once; far below the defaults that these tests replace."""

Brokers = Callable[..., Broker]


@pytest.fixture
def at_rest(tmp_path: Path) -> Brokers:
    """Makes brokers that are never started."""

    def make(**settings: str) -> Broker:
        entries = {"brokerName": "broker-a", "storePathRootDir": str(tmp_path), **settings}
        config, store_config, warnings = read_configs(entries)
        assert warnings == []
        return Broker(config, store_config, clock_ms=lambda: NOW_MS)

    return make


# ------------------------------------------------------------------------- addresses, connections


async def test_the_region_is_told(make_live: Any) -> None:
    live = await make_live(regionId="Mars")
    assert (await live.peer.send("T")).fields["MSG_REGION"] == "Mars"


def test_the_address_for_slaves(at_rest: Brokers) -> None:
    own = at_rest(brokerIP2="127.0.0.9").parts.own
    own.ha_listens_on(7)
    assert own.ha_address == "127.0.0.9:7"


def test_the_address_that_clients_are_told(at_rest: Brokers) -> None:
    own = at_rest(brokerIP1="127.0.0.8").parts.own
    assert own.ip == "127.0.0.8"


async def test_no_fast_port(make_live: Any) -> None:
    live = await make_live(fastListenPort="0")
    assert live.broker.fast_server is None


async def closes(port: int) -> None:
    """Waits until the peer ends a connection over which nothing is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(BOUND_S):
        assert await reader.read() == b""
    writer.close()


async def test_a_silent_peer_is_dropped(make_live: Any) -> None:
    live = await make_live(serverChannelMaxIdleTimeSeconds="1")
    await closes(live.broker.address.port)


@pytest.mark.parametrize("key", ["tlsServerCertPath", "tlsServerKeyPath"])
async def test_a_certificate_that_is_not_there(at_rest: Brokers, tmp_path: Path, key: str) -> None:
    there = tmp_path / "there.pem"
    there.write_text("")
    paths = {"tlsServerCertPath": str(there), "tlsServerKeyPath": str(there)}
    broker = at_rest(listenPort="0", **paths | {key: str(tmp_path / "missing.pem")})
    with pytest.raises((OberthError, OSError), match=r"missing\.pem"):
        await broker.start()


async def test_certificates_of_others_that_are_not_there(at_rest: Brokers, tmp_path: Path) -> None:
    with pytest.raises(OberthError, match=r"missing\.pem"):
        at_rest(listenPort="0", tlsClientTrustCertPath=str(tmp_path / "missing.pem"))


# ------------------------------------------------------------------------------------ replication


async def test_a_silent_slave_is_dropped(make_live: Any) -> None:
    live = await make_live(haHousekeepingInterval="50")
    await closes(live.broker.services.ha.port)


async def first_frames(live: Any) -> list[tuple[int, int]]:
    """Where the pieces of the log begin that an empty slave is sent, and their sizes."""
    end = live.broker.parts.store.max_phy_offset
    reader, writer = await asyncio.open_connection("127.0.0.1", live.broker.services.ha.port)
    writer.write(REPORT.pack(0))
    receiver = LogReceiver()
    pieces: list[tuple[int, int]] = []
    async with asyncio.timeout(BOUND_S):
        while not pieces or sum(pieces[-1]) < end:
            came = receiver.receive_data(await reader.read(65536))
            pieces += [(each.commit_log_offset, each.size) for each in came if each.size]
    writer.close()
    return pieces


async def test_frames_for_slaves_have_a_size(make_live: Any) -> None:
    live = await make_live(haTransferBatchSize="100")
    for _ in range(3):
        await live.peer.send("T", bytes(500))
    sizes = {size for _, size in await first_frames(live)}
    assert max(sizes) == 100
    assert FRAME.size == 12


async def test_an_empty_slave_gets_the_last_segment_alone(make_live: Any) -> None:
    live = await make_live(syncFromLastFile="true", mappedFileSizeCommitLog="4096")
    for _ in range(9):
        await live.peer.send("T", bytes(1000))
    segments = live.broker.parts.store.commit_log.queue.segments
    assert len(segments) > 2
    assert (await first_frames(live))[0][0] == segments[-1].start_offset


# ----------------------------------------------------------------------------------- registration


def test_the_period_of_registrations(at_rest: Brokers) -> None:
    registration = at_rest(registerNameServerPeriod="15000").services.registration
    registration._registered.add("127.0.0.1:1")
    assert registration._period_s() == 15


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that reads and never answers."""
    await reader.read()
    writer.close()


@pytest.mark.parametrize("key", ["registerBrokerTimeoutMills", "forwardTimeout"])
async def test_how_long_others_may_take(at_rest: Brokers, key: str) -> None:
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        broker = at_rest(namesrvAddr=address, **{key: "50"})
        services = broker.services
        try:
            async with asyncio.timeout(2 if key == "forwardTimeout" else BOUND_S):
                if key == "forwardTimeout":
                    services.peers._addresses["other"] = address
                    with pytest.raises(RemotingError):
                        await services.peers.ask("other", RequestCode.GET_MAX_OFFSET, {})
                else:
                    await services.registration.register_all()
        finally:
            await services.client.aclose()


@pytest.mark.parametrize("forces", [True, False])
async def test_a_table_that_is_known_is_sent_on_demand(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, forces: bool
) -> None:
    registration = at_rest(
        namesrvAddr="127.0.0.1:1", forceRegister=str(forces).lower()
    ).services.registration
    asked: list[str] = []

    async def is_outdated(name_server: str) -> bool:
        asked.append(name_server)
        return False

    async def invoke(*_: object) -> None:
        raise RemotingError("nobody is there")

    monkeypatch.setattr(registration, "_is_outdated", is_outdated)
    monkeypatch.setattr(registration._client, "invoke", invoke)
    await registration.register_all()
    assert asked == ([] if forces else ["127.0.0.1:1"])


# ------------------------------------------------------------------------------- topics and groups


@pytest.mark.parametrize(
    ("key", "topic"),
    [("clusterTopicEnable", "DefaultCluster"), ("brokerTopicEnable", "broker-a")],
)
def test_permission_of_the_topics_of_cluster_and_broker(
    at_rest: Brokers, key: str, topic: str
) -> None:
    topics = at_rest(**{key: "false"}).parts.topics
    topics.add_system_topics(18)
    made = topics.get(topic)
    assert made is not None
    assert made.perm == PERM_INHERIT


def test_the_name_of_the_trace_topic(at_rest: Brokers) -> None:
    topics = at_rest(traceTopicEnable="true", msgTraceTopicName="Traces").parts.topics
    topics.add_system_topics(18)
    assert "Traces" in topics


async def make_topic(live: Any, topic: str, attributes: str = "") -> int:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": attributes,
    }  # fmt: skip
    return int((await live.peer.call(17, fields)).code)


@pytest.mark.parametrize("takes", [True, False])
async def test_topics_of_mixed_messages(make_live: Any, takes: bool) -> None:
    live = await make_live(enableMixedMessageType=str(takes).lower())
    code = await make_topic(live, "Mixed", "+message.type=MIXED")
    assert (code == 0) == takes


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_system_topic_is_made_on_demand(make_live: Any, refuses: bool) -> None:
    live = await make_live(validateSystemTopicWhenUpdateTopic=str(refuses).lower())
    assert (await make_topic(live, "SELF_TEST_TOPIC") != 0) == refuses


@pytest.mark.parametrize("clears", [True, False])
async def test_retry_topics_go_with_their_topic(make_live: Any, clears: bool) -> None:
    live = await make_live(clearRetryTopicWhenDeleteTopic=str(clears).lower())
    await live.peer.send("T")
    parts = live.broker.parts
    parts.offsets.commit("G", "T", 0, 0, NOW_MS)
    parts.topics.create_internal("%RETRY%G_T", 1)
    assert (await live.peer.call(215, {"topic": "T"})).code == 0
    assert ("%RETRY%G_T" not in parts.topics) == clears


@pytest.mark.parametrize("refuses", [True, False])
async def test_consumers_that_pull_actively(make_live: Any, refuses: bool) -> None:
    live = await make_live(rejectPullConsumerEnable=str(refuses).lower())
    consumer = {
        "groupName": "G", "consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [],
    }  # fmt: skip
    body = {"clientID": "c", "consumerDataSet": [consumer], "producerDataSet": []}
    await live.peer.call(34, {}, json.dumps(body).encode())
    assert (live.broker.parts.consumers.get("G") is None) == refuses


@pytest.mark.parametrize("keeps", [True, False])
async def test_replies_are_kept_on_demand(make_live: Any, keeps: bool) -> None:
    live = await make_live(storeReplyMessageEnable=str(keeps).lower())
    end = live.broker.parts.store.max_phy_offset
    properties = {"REPLY_TO_CLIENT": "nobody", "CORRELATION_ID": "1"}
    topic = "DefaultCluster_REPLY_TOPIC"
    await live.peer.call(325, live.peer.send_fields(topic, 0, properties), b"x")
    assert (live.broker.parts.store.max_phy_offset > end) == keeps


# ------------------------------------------------------------------------------ clients and queues


async def test_a_client_without_heartbeats_is_dropped(make_live: Any) -> None:
    live = await make_live(channelExpiredTimeout="5000")
    await live.peer.heartbeat("G", {"T": "*"})
    await live.later(6_000)
    live.broker.processors.clients.scan_expired(live.broker.parts.now_ms())
    group = live.broker.parts.consumers.get("G")
    assert group is None or not group.client_ids()


async def test_a_subscription_that_nobody_has_is_dropped(make_live: Any) -> None:
    live = await make_live(subscriptionExpiredTimeout="5000")
    await live.peer.heartbeat("G", {"T": "*"})
    group = live.broker.parts.consumers.get("G")
    assert group is not None
    assert "T" in group.subscriptions
    live.broker.processors.clients.scan_expired(live.broker.parts.now_ms() + 6_000)
    assert "T" not in group.subscriptions


def test_how_long_a_queue_stays_locked(at_rest: Brokers) -> None:
    locks = at_rest(rebalanceLockMaxLiveTime="5000").parts.locks
    queue = ("T", "broker-a", 0)
    assert list(locks.lock("G", "c1", [queue], NOW_MS)) == [queue]
    assert list(locks.lock("G", "c2", [queue], NOW_MS + 4_000)) == []
    again = locks.lock("G", "c2", [queue], NOW_MS + 6_000)
    assert list(again) == [queue]


def test_commits_that_make_a_version(at_rest: Brokers) -> None:
    offsets = at_rest(consumerOffsetUpdateVersionStep="2").parts.offsets
    before = offsets.data_version
    offsets.commit("G", "T", 0, 1, NOW_MS)
    assert offsets.data_version == before
    offsets.commit("G", "T", 0, 2, NOW_MS)
    assert offsets.data_version != before


def test_deliveries_that_make_a_version(at_rest: Brokers) -> None:
    schedule = at_rest(delayOffsetUpdateVersionStep="2").parts.schedule
    before = schedule.data_version
    schedule._advance(1, 1, NOW_MS)
    assert schedule.data_version == before
    schedule._advance(1, 2, NOW_MS)
    assert schedule.data_version != before


def test_how_a_client_without_a_mode_gets_its_queues(at_rest: Brokers) -> None:
    broker = at_rest(defaultMessageRequestMode="POP", defaultPopShareQueueNum="3")
    assert broker.processors.assignment.mode_of("T", "G") == ("POP", 3)


@pytest.mark.parametrize("reads", [True, False])
async def test_slow_consumers_are_sent_to_a_slave(make_live: Any, reads: bool) -> None:
    live = await make_live(slaveReadEnable=str(reads).lower())
    await live.peer.send("T")
    live.broker.parts.groups.update(SubscriptionGroupConfig(group_name="G", broker_id=5))
    found = await live.peer.pull("T", 0)
    assert found.fields["suggestWhichBrokerId"] == ("5" if reads else "0")


async def test_how_many_messages_a_query_by_unique_key_brings(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live(defaultQueryMaxNum="2")
    asked: list[int] = []
    store = live.broker.parts.store
    query = store.query_message

    def noting(topic: str, key: str, max_num: int, *more: Any, **named: Any) -> Any:
        asked.append(max_num)
        return query(topic, key, max_num, *more, **named)

    monkeypatch.setattr(store, "query_message", noting)
    fields = {
        "topic": "T", "key": "U", "maxNum": "32", "beginTimestamp": "0",
        "endTimestamp": str(2**62), "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip
    await live.peer.call(12, fields)
    assert asked == [2]


# --------------------------------------------------------------------------------------------- pop


def test_how_many_pops_wait(at_rest: Brokers) -> None:
    services = at_rest(popPollingSize="7", maxPopPollingSize="9").services
    for polling in (services.pop.polling, services.pop.notifying, services.lite.waiting):
        assert (polling.size_max, polling.total_max) == (7, 9)


def test_how_long_check_points_stay_in_memory(at_rest: Brokers) -> None:
    buffer = at_rest(
        popCkStayBufferTime="11", popCkStayBufferTimeOut="12", popCkMaxBufferSize="13"
    ).services.pop.buffer
    assert (buffer._stay_ms, buffer._margin_ms, buffer._size_max) == (11, 12, 13)


@pytest.mark.parametrize("wakes", [True, False])
def test_an_unlocked_queue_wakes_who_waits_for_it(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, wakes: bool
) -> None:
    pops = at_rest(enableNotifyAfterPopOrderLockRelease=str(wakes).lower()).processors.pops
    woken: list[Waiting] = []
    monkeypatch.setattr(pops, "_wake_next", lambda *_: woken.append(_))
    pops.queue_unlocked("T", "G", 0)
    assert bool(woken) == wakes


@pytest.mark.parametrize("reads", [True, False])
def test_older_retry_topics_are_read_too(at_rest: Brokers, reads: bool) -> None:
    broker = at_rest(
        enableRetryTopicV2="true", retrieveMessageFromPopRetryTopicV1=str(reads).lower()
    )
    for name in ("%RETRY%G+T", "%RETRY%G_T"):
        broker.parts.topics.create_internal(name, 1)
    found = broker.processors.pops._retry_topics("T", "G")
    assert found == ["%RETRY%G+T", "%RETRY%G_T"][: 2 if reads else 1]


# --------------------------------------------------------------------------------- filters, lite


@pytest.mark.parametrize("key", ["expectConsumerNumUseFilter", "maxErrorRateOfBloomFilter"])
def test_the_size_of_the_bloom_filter(at_rest: Brokers, key: str) -> None:
    filters = at_rest(**{key: "7"}).services.expressions
    number = {"expectConsumerNumUseFilter": (20, 7), "maxErrorRateOfBloomFilter": (7, 32)}[key]
    assert filters._bloom.bit_count == make_bloom_filter(*number).bit_count
    assert filters._bloom.bit_count != make_bloom_filter().bit_count


def test_how_long_a_dead_filter_is_kept(at_rest: Brokers) -> None:
    filters = at_rest(enablePropertyFilter="true", filterDataCleanTimeSpan="5").services.expressions
    for _ in filters.register("G", [Subscription("T", "a > 1", SQL92, 1)]):
        pass
    (data,) = filters._topics["T"].values()
    data.born_time = data.dead_time = NOW_MS - 6
    filters._forget(NOW_MS)
    assert not filters._topics.get("T")


LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}


@pytest.mark.parametrize(
    ("key", "method"),
    [
        ("liteEventCheckInterval", "_scan"),
        ("minLiteTTl", "_expire"),
        ("liteSubscriptionCheckInterval", "_silent_since"),
    ],
)
def test_periods_of_lite_topics(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, key: str, method: str
) -> None:
    lite = at_rest(**LIGHT, **{key: "5000"}).services.lite
    calls: list[int] = []

    def called(*_: object) -> list[str]:
        calls.append(1)
        return []

    if method == "_silent_since":
        monkeypatch.setattr(lite.subscriptions, "silent_since", called)
    else:
        monkeypatch.setattr(lite, method, called)
    lite.on_time(NOW_MS + 4_999)
    assert calls == []
    lite.on_time(NOW_MS + 5_000)
    assert calls == [1]


def test_the_period_between_looks_for_expired_lite_topics(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite = at_rest(**LIGHT, minLiteTTl="0", liteTtlCheckInterval="5000").services.lite
    calls: list[int] = []
    monkeypatch.setattr(lite, "_expire", calls.append)
    for ms in (0, 4_999, 5_000):
        lite.on_time(NOW_MS + ms)
    assert calls == [NOW_MS, NOW_MS + 5_000]


def test_how_long_a_client_of_lite_topics_may_be_silent(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite = at_rest(
        **LIGHT, liteSubscriptionCheckInterval="1", liteSubscriptionCheckTimeoutMills="77"
    ).services.lite
    asked: list[int] = []

    def silent_since(ms: int) -> list[str]:
        asked.append(ms)
        return []

    monkeypatch.setattr(lite.subscriptions, "silent_since", silent_since)
    lite.on_time(NOW_MS + 1)
    assert asked == [NOW_MS + 1 - 77]


def test_when_a_full_list_is_made_good(at_rest: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    lite = at_rest(**LIGHT, liteEventFullDispatchDelayTime="77").services.lite
    turns: list[int] = []
    monkeypatch.setattr(lite.events, "schedule_turn", lambda *given: turns.append(given[-1]))
    lite._schedule_turn("c", "G", NOW_MS)
    assert turns == [NOW_MS + 77]


# ------------------------------------------------------------------------- transactions and timers


def test_when_op_offsets_are_written(at_rest: Brokers) -> None:
    batch = at_rest(
        transactionOpMsgMaxSize="77", transactionOpBatchInterval="88"
    ).services.transactions._batch
    assert (batch.size_max, batch.interval_ms) == (77, 88)


def test_how_often_the_timer_is_flushed(at_rest: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    timers = at_rest(timerFlushIntervalMs="5").services.timers
    assert timers is not None
    flushed: list[int] = []
    monkeypatch.setattr(timers.store, "begin_flush", flushed.append)
    for ms in (0, 4, 5):
        timers.on_time(NOW_MS + ms)
    assert flushed == [NOW_MS, NOW_MS + 5]


@pytest.mark.parametrize("has_topic", [True, False])
async def test_what_takes_a_timed_message_back(
    make_live: Any, monkeypatch: pytest.MonkeyPatch, has_topic: bool
) -> None:
    live = await make_live(
        recallMessageEnable="true", appendTopicForTimerDeleteKey=str(has_topic).lower()
    )
    await live.peer.send("T")
    store = live.broker.parts.store
    kept: list[MessageExtBrokerInner] = []
    append = store.append_messages

    def noting(messages: list[MessageExtBrokerInner]) -> Any:
        kept.extend(messages)
        return append(messages)

    monkeypatch.setattr(store, "append_messages", noting)
    handle = RecallHandle("T", "broker-a", live.broker.parts.now_ms() + 60_000, "U").encode()
    fields = {"producerGroup": "P", "topic": "T", "recallHandle": handle}
    assert (await live.peer.call(370, fields)).code == 0
    properties = p.decode_properties(kept[0].properties_raw)
    assert properties[p.TIMER_DEL_UNIQKEY] == ("T+U" if has_topic else "U")


# -------------------------------------------------------------------------------------------- load


@pytest.mark.parametrize(
    ("settings", "wait_ms"),
    [
        ({"waitTimeMillsInAdminBrokerQueue": "77"}, 77),
        ({"brokerFastFailureEnable": "false"}, None),
    ],
)
def test_requests_that_wait_too_long_are_refused(
    at_rest: Brokers,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    wait_ms: int | None,
) -> None:
    waits: list[Any] = []

    def stage(*names: Any, **options: Any) -> Stage:
        waits.extend(options[each] for each in options if each == "wait_ms_max")
        return Stage(*names, **options)

    monkeypatch.setattr(request_table, "Stage", stage)
    broker = at_rest(**settings)
    request_table.register(broker.services.processors, broker.processors, broker.parts.config)
    assert waits == [wait_ms] * 4


def test_topics_have_the_queues_that_the_template_says(at_rest: Brokers) -> None:
    topics = at_rest(defaultTopicQueueNums="3").parts.topics
    topics.add_system_topics(18)
    found = topics.get("TBW102")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums) == (3, 3)


@pytest.mark.parametrize("told", [True, False])
async def test_whether_producers_trace(make_live: Any, told: bool) -> None:
    live = await make_live(traceOn=str(told).lower())
    assert (await live.peer.send("T")).fields["TRACE_ON"] == str(told).lower()


async def test_how_long_the_loop_stays_awake(make_live: Any) -> None:
    live = await make_live(busyPollMicros="77")
    assert live.broker.server.options.busy_poll_s == 77 / 1_000_000


def test_what_the_tls_mode_may_be(at_rest: Brokers) -> None:
    with pytest.raises(OptionError, match="tlsServerMode: 'sometimes'"):
        at_rest(tlsServerMode="sometimes")


def test_what_the_brokers_own_requests_are_signed_with(at_rest: Brokers) -> None:
    credentials = json.dumps({"accessKey": "broker-key", "secretKey": "broker-secret"})
    client = at_rest(innerClientAuthenticationCredentials=credentials).services.client
    assert isinstance(client, SigningClient)


async def test_where_figures_are_served(make_live: Any) -> None:
    live = await make_live(httpPort="0", httpAddress="127.0.0.3")
    assert live.broker.http.address.host == "127.0.0.3"


async def registrations(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> list[RegisterBrokerRequestHeader]:
    """What a name server is sent."""
    registration = broker.services.registration
    broker.parts.topics.add_system_topics(18)
    sent: list[RegisterBrokerRequestHeader] = []

    async def register(
        _: str, header: RegisterBrokerRequestHeader, data: bytes, *, full: bool
    ) -> None:
        del data, full
        sent.append(header)

    monkeypatch.setattr(registration, "_register", register)
    await registration.register_all()
    return sent


@pytest.mark.parametrize("packs", [True, False])
async def test_registrations_are_packed(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, packs: bool
) -> None:
    broker = at_rest(namesrvAddr="127.0.0.1:1", compressedRegister=str(packs).lower())
    (header,) = await registrations(broker, monkeypatch)
    assert header.compressed == packs


@pytest.mark.parametrize("splits", [True, False])
async def test_a_table_goes_in_parts(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, splits: bool
) -> None:
    broker = at_rest(
        namesrvAddr="127.0.0.1:1",
        enableSplitRegistration=str(splits).lower(),
        splitRegistrationSize="2",
    )
    sent = await registrations(broker, monkeypatch)
    assert len(sent) == (-(-len(broker.parts.topics) // 2) if splits else 1)


@pytest.mark.parametrize("tells", [True, False])
async def test_members_of_a_group_hear_of_each_other(make_live: Any, tells: bool) -> None:
    live = await make_live(notifyConsumerIdsChangedEnable=str(tells).lower())
    heard: list[RemotingCommand] = []
    table = ProcessorTable()
    table.sync([RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], lambda _, each: heard.append(each))
    await live.another(table).heartbeat("G", {"T": "*"}, client_id="first")
    live.broker.processors.clients.notify_group("G")
    # The connection keeps the order: what was told came before this answer.
    await live.peers[-1].heartbeat("G", {"T": "*"}, client_id="first")
    assert bool(heard) == tells


def test_when_a_full_list_of_a_wildcard_group_is_made_good(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    lite = at_rest(**LIGHT, liteEventFullDispatchDelayTimeForWildcardGroup="77").services.lite
    turns: list[int] = []
    monkeypatch.setattr(lite, "takes_all", lambda _: True)
    monkeypatch.setattr(lite, "_offer", lambda *_, **__: False)
    monkeypatch.setattr(lite.events, "schedule_turn", lambda *given: turns.append(given[-1]))
    assert not lite._give_out("%LMQ%$P$q", "G", ["c"], None)
    assert turns == [NOW_MS + 77]


def test_how_many_lite_topics_are_noted_for_a_client(at_rest: Brokers) -> None:
    assert at_rest(**LIGHT, maxClientEventCount="7").services.lite._events_max("G") == 7


@pytest.mark.parametrize("key", ["cgColdReadThreshold", "globalColdReadThreshold"])
async def test_thresholds_of_cold_reads_are_shown(make_live: Any, key: str) -> None:
    live = await make_live(**{key: "77"})
    found = await live.peer.call(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert b"77" in found.body_bytes()


async def test_how_often_retries_are_popped_first(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred dice all show the same: with 100 per cent retries come first, always."""
    live = await make_live(popFromRetryProbability="100")
    monkeypatch.setattr("oberth.broker.processors.pop.random.randrange", lambda count: count - 1)
    await live.peer.send("T", b"plain", 0, d="1")
    live.broker.parts.topics.create_internal("%RETRY%G_T", 1)
    await live.peer.send("%RETRY%G_T", b"retry", 0)
    fields = {
        "consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "1",
        "invisibleTime": "30000", "pollTime": "0", "bornTime": str(live.broker.parts.now_ms()),
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    popped = await live.peer.call(200050, fields)
    assert b"retry" in popped.body_bytes()


@pytest.mark.parametrize("computes", [True, False])
def test_filters_are_computed_at_dispatch(at_rest: Brokers, computes: bool) -> None:
    broker = at_rest(enablePropertyFilter="true", enableCalcFilterBitMap=str(computes).lower())
    broker.services.expressions.load()
    assert bool(broker.parts.store.dispatcher._before) == computes


def test_how_old_a_half_is_before_it_is_checked(at_rest: Brokers) -> None:
    transactions = at_rest(transactionTimeOut="77").services.transactions
    assert transactions.immunity_ms(half_that_says(-1)) == 77
    assert transactions.immunity_ms(half_that_says(2)) == 2000


def half_that_says(seconds: int) -> Any:
    raw = p.encode_properties({"CHECK_IMMUNITY_TIME_IN_SECONDS": str(seconds)})
    return SimpleNamespace(properties_raw=raw)


async def test_what_a_peer_may_not_change(make_live: Any) -> None:
    live = await make_live(configBlackList="fileReservedTime;deleteWhen")
    assert (await live.peer.call(25, None, b"fileReservedTime=1")).code == 16
    assert (await live.peer.call(25, None, b"transactionTimeOut=1000")).code == 0


async def test_a_change_is_kept_in_the_file(make_live: Any, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("fileReservedTime=48\n")
    live = await make_live(brokerConfigPath=str(path))
    assert (await live.peer.call(25, None, b"fileReservedTime=1")).code == 0
    assert "fileReservedTime=1" in path.read_text()


async def test_names_of_broker_and_cluster(make_live: Any) -> None:
    live = await make_live(brokerName="broker-x", brokerClusterName="Mars", listenPort="0")
    topics = live.broker.parts.topics
    assert "broker-x" in topics
    assert "Mars" in topics


async def test_the_port_it_listens_on(make_live: Any) -> None:
    assert (await make_live(listenPort="0")).broker.address.port != 10911


def test_how_far_behind_a_replica_counts_as_in_sync(at_rest: Brokers) -> None:
    replicas = at_rest(haMaxGapNotInSync="7").services.ha.replicas
    replicas.on_report("slave", 90)
    assert [replicas.in_sync_count(end) for end in (96, 97)] == [2, 1]


async def test_how_often_a_slave_hears_of_its_master(make_live: Any) -> None:
    live = await make_live(haSendHeartbeatInterval="20")
    reader, writer = await asyncio.open_connection("127.0.0.1", live.broker.services.ha.port)
    writer.write(REPORT.pack(live.broker.parts.store.max_phy_offset))
    async with asyncio.timeout(BOUND_S):
        await reader.readexactly(FRAME.size * 10)
    writer.close()


@pytest.mark.parametrize(("role", "waits"), [("SYNC_MASTER", True), ("ASYNC_MASTER", False)])
async def test_how_long_a_put_waits_for_replicas(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, role: str, waits: bool
) -> None:
    ha = at_rest(brokerRole=role, inSyncReplicas="3", slaveTimeout="10").services.ha
    waited: list[tuple[int, float]] = []

    def wait(end: int, needed: int, deadline: float, done: object) -> None:
        del end, done
        waited.append((needed, deadline - asyncio.get_running_loop().time()))

    monkeypatch.setattr(ha.replicas, "wait", wait)
    ha.when_replicated(1, PutMessageStatus.PUT_OK, lambda _: None)
    assert bool(waited) == waits
    for needed, left_s in waited:
        assert needed == 2
        assert left_s <= 0.01


async def test_the_port_for_slaves(at_rest: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = at_rest(haListenPort="77")
    ports: list[int] = []

    async def start(port: int) -> None:
        ports.append(port)

    monkeypatch.setattr(broker.services.ha, "start", start)
    await broker._start_replication()
    assert ports == [77]


async def test_the_grpc_port_and_how_old_its_signatures_may_be(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hpack")
    from oberth.proxy import front

    ports: list[int] = []

    def server(_: object, options: Any, **_more: Any) -> None:
        ports.append(options.port)
        raise OSError("the port is taken")

    monkeypatch.setattr(front, "GrpcServer", server)
    broker = at_rest(
        grpcServerPort="77",
        grpcDateAgeMaxSeconds="88",
        minInvisibleTimeMillsForRecv="99",
        grpcClientConsumerMinLongPollingTimeoutMillis="66",
        tlsServerMode="disabled",
    )
    served = front.GrpcFront(broker)
    with pytest.raises(OSError, match="taken"):
        await served.start()
    assert ports == [77]
    assert served.service.core._date_age_max_s == 88
    assert served.service.core.invisible_ms_min == 99
    assert served.service.core.poll_ms_min == 66


@pytest.mark.parametrize("key", ["flushDelayOffsetInterval", "flushConsumerOffsetInterval"])
def test_when_offsets_are_written(
    at_rest: Brokers, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    entries = {"flushDelayOffsetInterval": "60000", "flushConsumerOffsetInterval": "60000"}
    files = at_rest(**entries | {key: "77"}).services.table_files
    rounds: list[int] = []
    monkeypatch.setattr(files, "write_soon", lambda: rounds.append(1))
    files.start_clock(NOW_MS)
    files.on_time(NOW_MS + 76)
    assert rounds == []
    files.on_time(NOW_MS + 77)
    assert rounds == [1]
    assert files._are_delays_due == (key == "flushDelayOffsetInterval")


def test_who_dispatches(at_rest: Brokers) -> None:
    assert at_rest(dispatch="spark").parts.follows
