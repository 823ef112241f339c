"""A slave takes over its master's tables: in pages, deletions too, and offsets merged."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rigs import small_brokers
from tests.rigs.small_brokers import until

from oberth.broker import consumer_offsets, ha_service, slave_tables
from oberth.broker.broker import Broker
from oberth.broker.broker_config import BrokerConfig
from oberth.broker.config_file import ConfigFile, Replaced
from oberth.broker.topic_configs import TopicConfigs
from oberth.errors import ConfigFormatError
from oberth.formats.bean import Bean
from oberth.formats.config_files import MessageRequestMode, MessageRequestModes
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_request, create_response
from oberth.store.messages import MessageExtBrokerInner

make = partial(small_brokers.make, timerWheelEnable="true", mappedFileSizeTimerLog="1456")


def topics_of(broker: Broker) -> set[str]:
    return {each.topic_name or "" for each in broker.parts.topics}


@pytest.mark.parametrize("page_size", [1, 3, 500])
async def test_pages_deletions_and_merged_offsets(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch, page_size: int
) -> None:
    monkeypatch.setattr(slave_tables, "PAGE_SIZE", page_size)
    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        ours, theirs = master.parts, slave.parts
        for number in range(7):
            ours.topics.create_internal(f"topic{number}", 2)
            ours.groups.update(SubscriptionGroupConfig(group_name=f"group{number}"))
            ours.offsets.commit(f"group{number}", f"topic{number}", 0, number, 1)
        await until(lambda: slave.services.ha.master_address)
        await slave.services.tables.take_all(str(master.address))
        assert topics_of(slave) == topics_of(master)
        assert theirs.topics.data_version == ours.topics.data_version
        assert theirs.groups.data_version == ours.groups.data_version
        assert {each.group_name for each in theirs.groups} == {
            each.group_name for each in ours.groups
        }
        assert theirs.offsets.query("group5", "topic5", 0) == 5
        # Read here, and not known to the master; known to both, and the master's wins.
        theirs.offsets.commit("reader", "topic1", 1, 77, 1)
        theirs.offsets.commit("group5", "topic5", 0, 99, 1)
        ours.topics.delete("topic6")
        ours.offsets.delete_topic("topic6")
        ours.groups.delete("group4")
        ours.offsets.delete_group("group4")
        await slave.services.tables.take_all(str(master.address))
        assert "topic6" not in theirs.topics
        assert theirs.groups.get("group4") is None
        assert theirs.offsets.query("group6", "topic6", 0) == -1
        assert theirs.offsets.query("group4", "topic4", 0) == -1
        assert theirs.offsets.query("reader", "topic1", 1) == 77
        assert theirs.offsets.query("group5", "topic5", 0) == 5


async def test_what_is_the_same_is_not_read_again(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        master.parts.topics.create_internal("fresh", 2)
        await until(lambda: slave.services.ha.master_address)
        await slave.services.tables.take_all(str(master.address))

        def read(*_: Any) -> None:
            raise AssertionError("the version is the same")

        monkeypatch.setattr(type(slave.parts.topics), "decoded", read)
        monkeypatch.setattr(type(slave.parts.groups), "decoded", read)
        await slave.services.tables.take_all(str(master.address))


class Answers:
    """A master made of what it answers to each page."""

    def __init__(self, *answers: tuple[dict[str, Any], str | None]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, str]] = []

    async def invoke(
        self, address: str, request: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        del address, timeout_s
        self.asked.append(dict(request.fields))
        body, total = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        fields = {} if total is None else {"totalTopicNum": total}
        return create_response(
            create_request(0), ResponseCode.SUCCESS, ext_fields=fields,
            body=json.dumps(body).encode(),
        )  # fmt: skip


def page(counter: int, *topics: str) -> dict[str, Any]:
    return {
        "dataVersion": {"counter": counter, "stateVersion": 0, "timestamp": 9},
        "topicConfigTable": {topic: {"topicName": topic} for topic in topics},
    }


async def fetched(slave: Broker, *answers: tuple[dict[str, Any], str | None]) -> Any:
    master = Answers(*answers)
    slave.services.tables._client = master  # type: ignore[assignment]
    found = await slave.services.tables._fetch("127.0.0.1:1", slave_tables._TOPIC_PAGES)
    return master, found


async def test_a_table_that_changes_between_two_pages_is_asked_for_anew(tmp_path: Path) -> None:
    slave = make(tmp_path, "127.0.0.1:1", brokerId="1", brokerRole="SLAVE")
    master, found = await fetched(
        slave,
        (page(1, "a", "gone"), "3"),
        (page(2, "c"), "3"),
        (page(2, "a", "b"), "3"),
        (page(2, "c"), "3"),
    )
    assert sorted(found["topicConfigTable"]) == ["a", "b", "c"]
    assert [each["topicSeq"] for each in master.asked] == ["0", "2", "0", "2"]
    assert json.loads(master.asked[1]["dataVersion"])["counter"] == 1
    slave.parts.store.shutdown()


async def test_a_master_that_knows_no_pages_gives_everything(tmp_path: Path) -> None:
    slave = make(tmp_path, "127.0.0.1:1", brokerId="1", brokerRole="SLAVE")
    master, found = await fetched(slave, (page(1, "a", "b"), None))
    assert sorted(found["topicConfigTable"]) == ["a", "b"]
    assert len(master.asked) == 1


async def test_pages_without_a_version_are_asked_for_without_one(tmp_path: Path) -> None:
    """They ended the task that looks at the master's tables."""
    slave = make(tmp_path, "127.0.0.1:1", brokerId="1", brokerRole="SLAVE")
    first, second = page(1, "a"), page(1, "b")
    del first["dataVersion"], second["dataVersion"]
    master, found = await fetched(slave, (first, "2"), (second, "2"))
    assert sorted(found["topicConfigTable"]) == ["a", "b"]
    assert "dataVersion" not in master.asked[1]


async def test_pages_that_never_end_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_tables, "PAGES_MAX", 5)
    slave = make(tmp_path, "127.0.0.1:1", brokerId="1", brokerRole="SLAVE")
    with pytest.raises(ConfigFormatError, match="no end"):
        await fetched(slave, (page(1, "a"), "9"))
    with pytest.raises(ConfigFormatError, match="no topicConfigTable"):
        await fetched(slave, ({"dataVersion": {}}, "9"))


@pytest.mark.parametrize(
    ("code", "table", "start", "limit"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable", "topicSeq", "maxTopicNum"),
        (
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            "subscriptionGroupTable",
            "groupSeq",
            "maxGroupNum",
        ),
    ],
)
async def test_a_master_answers_whole_and_in_pages(
    live: Any, code: RequestCode, table: str, start: str, limit: str
) -> None:
    for number in range(9):
        live.broker.parts.topics.create_internal(f"topic{number}", 2)
        live.broker.parts.groups.update(SubscriptionGroupConfig(group_name=f"group{number}"))

    async def ask(**fields: str) -> dict[str, Any]:
        answer = await live.peer.call(code, fields or None)
        assert answer.code == 0
        found: dict[str, Any] = json.loads(answer.body_bytes())[table]
        return found

    whole = await ask()
    for size in (1, 4, 1000):
        # As RocketMQ's slaves go on: until the last entry but one.
        have: dict[str, Any] = {}
        while True:
            have.update(await ask(**{start: str(len(have)), limit: str(size)}))
            if len(have) >= len(whole) - 1:
                break
        assert have == whole
    assert await ask(**{start: str(len(whole))}) == {}
    assert await ask(**{start: "-5"}) == whole


async def test_a_reader_at_a_slaves_end_is_sent_back_to_its_master(
    tmp_path: Path, name_server: str, make_live: Any
) -> None:
    options = {"namesrvAddr": name_server, "haSendHeartbeatInterval": "100"}
    master = await make_live(**options)
    slave = await make_live(
        **options, brokerId="1", brokerRole="SLAVE", slaveReadEnable="true",
        mappedFileSizeCommitLog=str(master.broker.parts.store_config.mapped_file_size_commit_log),
    )  # fmt: skip
    assert (await master.peer.send("T", b"m")).code == 0
    await until(lambda: slave.broker.parts.store.max_offset_in_queue("T", 0) == 1)
    await slave.broker.services.tables.take_all(str(master.broker.address))
    slave.broker.parts.groups.update(SubscriptionGroupConfig(group_name="G", broker_id=1))
    found = await slave.peer.pull("T", 0)
    assert (found.code, found.fields["suggestWhichBrokerId"]) == (0, "0")
    for offset in (1, 9):
        sent_back = await slave.peer.pull("T", offset)
        assert sent_back.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert sent_back.fields["suggestWhichBrokerId"] == "0"
        assert sent_back.fields["nextBeginOffset"] == str(offset)
    await master.broker.aclose()
    await until(lambda: not slave.broker.services.ha.follows_master)
    assert (await slave.peer.pull("T", 1)).code == ResponseCode.PULL_NOT_FOUND
    # Without its master it says nothing of an offset out of range, unless it is to.
    out_of_range = await slave.peer.pull("T", 9)
    assert out_of_range.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert out_of_range.fields["suggestWhichBrokerId"] == "1"
    slave.broker.parts.store_config.offset_check_in_slave = True
    assert (await slave.peer.pull("T", 9)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_a_slaves_timer_hears_of_its_masters(tmp_path: Path, name_server: str) -> None:
    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        timers = slave.services.timers
        assert timers is not None
        assert master.services.timers is not None
        message = MessageExtBrokerInner.of(
            "T", b"later", properties={"UNIQ_KEY": "U", "TIMER_DELAY_SEC": "3000"}
        )
        assert master.parts.store.append_messages([message])[0].ok
        master.services.dispatching.soon()
        await until(lambda: len(timers.store.wheel) == 1)
        assert timers.store.queue_offset == 1


async def test_a_full_disk_does_not_end_the_look_at_the_master(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ha_service, "METADATA_PERIOD_S", 0.01)
    monkeypatch.setattr(ha_service, "RECONNECT_S", 0.01)
    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        tables = slave.services.tables
        take_all, calls = tables.take_all, []

        async def full_at_first(address: str, **options: bool) -> None:
            calls.append(address)
            if len(calls) == 1:
                raise OSError(28, "No space left on device")
            await take_all(address, **options)

        monkeypatch.setattr(tables, "take_all", full_at_first)
        await until(lambda: calls)
        master.parts.topics.create_internal("later", 2)
        await until(lambda: "later" in topics_of(slave))


@pytest.mark.parametrize("is_sent_the_log", [False, True])
async def test_who_is_sent_no_log_does_not_ask_how_far_its_master_has_delivered(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch, is_sent_the_log: bool
) -> None:
    """Else it would pass messages by that it does not have, if it became the master then."""
    monkeypatch.setattr(ha_service, "METADATA_PERIOD_S", 0.01)
    monkeypatch.setattr(ha_service, "TIMER_PERIOD_S", 0.01)
    asked: Counter[int] = Counter()

    def noted(code: int, *more: Any) -> RemotingCommand:
        asked[code] += 1
        return create_request(code, *more)

    async def fit(self: ha_service.HAService, address: str) -> bool:
        del self, address
        return is_sent_the_log

    monkeypatch.setattr(slave_tables, "create_request", noted)
    monkeypatch.setattr(ha_service.HAService, "_segments_fit", fit)
    progress = {
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_TIMER_CHECK_POINT,
    }
    async with (
        make(tmp_path / "a", name_server, haSendHeartbeatInterval="100"),
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        await until(lambda: asked[RequestCode.GET_ALL_TOPIC_CONFIG] > 10)
        if is_sent_the_log:
            await until(lambda: progress <= set(asked))
        else:
            assert slave.services.ha.master_address
            assert progress.isdisjoint(asked)


async def test_large_tables_are_decoded_beside_the_loop(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops_thread = threading.current_thread()
    on_loop: list[str] = []
    real_from_json = Bean.from_json.__func__  # type: ignore[attr-defined]

    def from_json(kind: type[Bean], tree: Any, where: str = "") -> Any:
        if threading.current_thread() is loops_thread:
            on_loop.append(kind.__name__)
        return real_from_json(kind, tree, where)

    async with (
        make(tmp_path / "a", name_server) as master,
        make(tmp_path / "b", name_server, brokerId="1", brokerRole="SLAVE") as slave,
    ):
        ours, theirs = master.parts, slave.parts
        for number in range(1500):
            ours.topics.create_internal(f"topic{number}", 2)
            ours.groups.update(SubscriptionGroupConfig(group_name=f"group{number}"))
            ours.offsets.commit(f"group{number}", f"topic{number}", 0, number, 1)
            mode = MessageRequestMode(topic="T", consumer_group=f"group{number}", mode="POP")
            master.processors.assignment._modes.setdefault("T", {})[f"group{number}"] = mode
        mapping = {"topic": "static", "bname": "oberth", "totalQueues": 0, "hostedQueues": {}}
        version = {"counter": 7, "stateVersion": 0, "timestamp": 1}
        ours.static_topics.read(
            {"dataVersion": version, "topicQueueMappingInfoMap": {"static": mapping}}
        )
        await until(lambda: slave.services.ha.master_address)
        monkeypatch.setattr(Bean, "from_json", classmethod(from_json))
        monkeypatch.setattr(consumer_offsets, "MERGED_A_TURN", 100)
        await slave.services.tables.take_all(str(master.address))
        assert {"TopicConfigs", "TopicConfig", "SubscriptionGroupConfig", "ConsumerOffsets",
                "MessageRequestMode", "TopicQueueMappingDetail"}.isdisjoint(on_loop)  # fmt: skip
        assert topics_of(slave) == topics_of(master)
        assert list(theirs.static_topics.table) == ["static"]
        assert theirs.offsets.query("group1499", "topic1499", 0) == 1499
        assert slave.processors.assignment.mode_of("T", "group1499")[0] == "POP"


def test_a_table_that_comes_again_is_not_made_text_again() -> None:
    topics = TopicConfigs(BrokerConfig(), lambda _: None, lambda: 1)
    topics.read(page(1, "a", "b", "gone"))
    topics.encode()
    table, version = topics.decoded(page(2, "a", "b", "new"))
    kept = topics.get("a")
    assert topics.replace_all(table, version) == Replaced(["new"], {"gone"})
    assert topics.get("a") is kept
    assert topics._dirty == {"new"}
    assert sorted(json.loads(topics.encode())["topicConfigTable"]) == ["a", "b", "new"]


async def test_what_a_full_disk_did_not_take_is_taken_over_later(
    tmp_path: Path, name_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else memory would have it, and no later answer of the master would differ."""
    mode = MessageRequestMode(topic="T", consumer_group="G", mode="POP", pop_share_queue_num=3)
    modes = MessageRequestModes(message_request_mode_map={"T": {"G": mode}})
    mapping = {"topic": "static", "bname": "oberth", "totalQueues": 0, "hostedQueues": {}}
    document = {
        "topicQueueMappingDetailMap": {"static": mapping},
        "mappingDataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 1},
    }

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with make(tmp_path / "b", name_server) as broker:
        assignment, mappings = broker.processors.assignment, broker.parts.static_topics
        with monkeypatch.context() as patch:
            patch.setattr(ConfigFile, "write", full)
            with pytest.raises(OSError, match="No space left"):
                await assignment.replace_all(modes)
            with pytest.raises(OSError, match="No space left"):
                mappings.replace_all(*mappings.decoded(document))
            assert assignment.mode_of("T", "G")[0] == "PULL"
            assert not mappings.table
        await assignment.replace_all(modes)
        mappings.replace_all(*mappings.decoded(document))
        config = tmp_path / "b" / "config"
        assert "POP" in (config / "messageRequestMode.json").read_text()
        assert "static" in (config / "topicQueueMapping.json").read_text()


async def test_request_modes_set_at_once_are_all_kept(tmp_path: Path, name_server: str) -> None:
    async with make(tmp_path / "b", name_server) as broker:
        broker.parts.topics.create_internal("T", 2)
        assignment = broker.processors.assignment

        async def set_mode(group: str) -> int:
            body = {"topic": "T", "consumerGroup": group, "mode": "POP", "popShareQueueNum": 1}
            request = create_request(RequestCode.SET_MESSAGE_REQUEST_MODE)
            request.body = json.dumps(body).encode()
            return int((await assignment.set_mode(cast(Any, None), request)).code)

        groups = [f"g{number}" for number in range(5)]
        assert set(await asyncio.gather(*map(set_mode, groups))) == {0}
        assert {assignment.mode_of("T", group) for group in groups} == {("POP", 1)}
        kept = json.loads((tmp_path / "b" / "config" / "messageRequestMode.json").read_text())
        assert sorted(kept["messageRequestModeMap"]["T"]) == groups
