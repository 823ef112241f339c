"""The files of very many topics and groups: no turn of the loop makes or writes them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.broker.conftest import Live, MakeLive

from oberth.broker.broker_config import BrokerConfig
from oberth.broker.config_file import ENTRIES_AT_ONCE, ConfigFile
from oberth.broker.consumer_offsets import ConsumerOffsets
from oberth.broker.subscription_groups import SubscriptionGroups
from oberth.broker.table_files import WrittenOnce
from oberth.broker.topic_configs import TopicConfigs
from oberth.formats.config_files import TopicQueueMappingDetail
from oberth.formats.json_writer import config_in_slices
from oberth.formats.subscription_group import SubscriptionGroupConfig
from oberth.formats.topic_config import TopicConfig
from oberth.remoting.code import ResponseCode

TOPIC = {
    "topic": "N", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3",
    "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip


async def many(make_live: MakeLive, **settings: str) -> Live:
    """A broker with more topics and groups than a turn of the loop writes."""
    live = await make_live(**settings)
    files, parts = live.broker.services.table_files, live.broker.parts
    with files.topics_written_soon:
        for number in range(ENTRIES_AT_ONCE):
            parts.topics.create_internal(f"t{number}", 1)
    for number in range(ENTRIES_AT_ONCE):
        parts.groups.find(f"g{number}")
    return live


class Writes:
    """Names of files that were written, and whether the loop's own thread wrote them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on_loop: list[str] = []
        self.elsewhere: list[str] = []
        loop_thread = threading.get_ident()
        write = ConfigFile.write

        def watched(file: ConfigFile, data: bytes, **more: Any) -> None:
            is_loop = threading.get_ident() == loop_thread
            (self.on_loop if is_loop else self.elsewhere).append(file.path.name)
            write(file, data, **more)

        monkeypatch.setattr(ConfigFile, "write", watched)


def table(live: Live, file: str, name: str) -> Any:
    path = Path(live.settings["storePathRootDir"]) / "config" / file
    return json.loads(path.read_bytes())[name]


Table: TypeAlias = TopicConfigs | SubscriptionGroups | ConsumerOffsets


def body_of(table: Table) -> bytes:
    """A table as it goes over the wire."""
    slices = config_in_slices(table.to_body())
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return bytes(end.value)


def test_what_is_text_for_the_file_is_not_made_text_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 000 topics took 150 ms each time that a slave or a console asked, where text takes 25."""
    config = BrokerConfig()
    topics = TopicConfigs(config, lambda _: None, lambda: 7)
    groups = SubscriptionGroups(config, lambda _: None, lambda: 7)
    offsets = ConsumerOffsets()
    for number in range(50):
        topics.update(TopicConfig(topic_name=f"t{number}", attributes={}))
        groups.update(SubscriptionGroupConfig(group_name=f"g{number}"))
        offsets.commit(f"g{number % 7}", f"t{number}", number % 3, number, 1)
    tables: tuple[Table, ...] = (topics, groups, offsets)
    expected = [body_of(table) for table in tables]  # nothing is text yet
    for table in tables:
        table.encode()
    made: list[str] = []

    def shown(self: TopicConfig | SubscriptionGroupConfig) -> dict[str, str]:
        made.append("again")
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(TopicConfig, "to_json", shown)
        patch.setattr(SubscriptionGroupConfig, "to_json", shown)
        assert [body_of(table) for table in tables] == expected
    assert made == []
    topics.update(TopicConfig(topic_name="t7", perm=4))
    groups.update(SubscriptionGroupConfig(group_name="g7", retry_queue_nums=3))
    offsets.commit("g0", "t7", 1, 77, 1)
    changed = [body_of(table) for table in tables]
    for table in tables:
        table.encode()
    assert changed == [body_of(table) for table in tables]
    assert all(after != before for after, before in zip(changed, expected, strict=True))
    topics.delete("t7")
    groups.delete("g7")
    offsets.delete("g0", "t7")
    for table, name in zip(tables, (b'"t7"', b'"g7"', b'"t7@g0"'), strict=True):
        assert name not in body_of(table)


def test_what_changes_within_is_written_once_at_the_end() -> None:
    written: list[bool] = []
    once = WrittenOnce(lambda: written.append(once.is_held))
    assert (once.is_held, once.changed) == (False, False)
    with once:
        once.changed = True
        assert written == []
    assert written == [False]
    with once:
        pass
    assert written == [False]


async def test_topics_are_written_at_once_again_behind_those_that_are_written_soon(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    writes = Writes(monkeypatch)
    live.broker.parts.topics.create_internal("first", 1)
    assert writes.on_loop == ["topics.json"]
    with live.broker.services.table_files.topics_written_soon:
        live.broker.parts.topics.create_internal("soon", 1)
        assert writes.on_loop == ["topics.json"]
    live.broker.parts.topics.create_internal("now", 1)
    assert writes.on_loop == ["topics.json"] * 2
    assert {"first", "soon", "now"} <= set(table(live, "topics.json", "topicConfigTable"))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_large_table_is_written_beside_the_loop_before_the_answer(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    live = await many(make_live, flushDiskType=flush)
    writes = Writes(monkeypatch)
    for code in (10, 310):
        fields = live.peer.send_fields(f"S{code}")
        if code == 10:
            fields = {
                "producerGroup": "P", "topic": "S10", "defaultTopic": "TBW102",
                "defaultTopicQueueNums": "4", "queueId": "1", "sysFlag": "0",
                "bornTimestamp": "1", "flag": "0", "properties": "",
            }  # fmt: skip
        assert (await live.peer.call(code, fields, b"x")).code == 0
        assert table(live, "topics.json", "topicConfigTable")[f"S{code}"]["writeQueueNums"] == 4
    assert (await live.peer.call(17, TOPIC)).code == 0
    assert "N" in table(live, "topics.json", "topicConfigTable")
    assert (await live.peer.call(200, {}, b'{"groupName":"G"}')).code == 0
    assert "G" in table(live, "subscriptionGroup.json", "subscriptionGroupTable")
    assert writes.on_loop == []
    assert {"topics.json", "subscriptionGroup.json"} <= set(writes.elsewhere)


async def test_what_a_large_tables_file_did_not_take_is_not_acknowledged(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await many(make_live)
    assert (await live.peer.send("known")).code == 0

    def fail(file: ConfigFile, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(file.path))

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "write", fail)
        assert (await live.peer.send("S")).code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert (await live.peer.call(17, TOPIC)).code == ResponseCode.SYSTEM_ERROR
        assert (await live.peer.send("known")).code == 0, "who made no topic does not wait"
    assert (await live.peer.send("later")).code == 0
    assert {"S", "N", "later"} <= table(live, "topics.json", "topicConfigTable").keys()


async def test_changes_that_are_no_text_yet_are_made_it_in_turns(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave takes over all its master's groups at once."""
    live = await make_live()
    groups = live.broker.parts.groups
    writes = Writes(monkeypatch)
    most = 0
    prepare = type(groups).prepare

    def counted(table: Any, count: int) -> bool:
        nonlocal most
        most = max(most, min(count, len(table._dirty)))
        return prepare(table, count)

    monkeypatch.setattr(type(groups), "prepare", counted)
    with live.broker.services.table_files.groups_written_once:
        for number in range(500):
            groups.update(SubscriptionGroupConfig(group_name=f"g{number}"))
    assert (await live.peer.call(200, {}, b'{"groupName":"G"}')).code == 0
    assert "g499" in table(live, "subscriptionGroup.json", "subscriptionGroupTable")
    assert writes.on_loop == []
    assert 0 < most <= 25


async def test_what_a_small_tables_file_did_not_take_is_no_success_when_it_is_said_again(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory it was done, so the same again changed nothing and was never written."""
    live = await make_live()
    assert (await live.peer.send("gone")).code == 0
    group = b'{"groupName":"G","consumeEnable":false}'
    calls: tuple[tuple[int, dict[str, str], bytes], ...] = (
        (17, TOPIC, b""), (200, {}, group), (215, {"topic": "gone"}, b""),
    )  # fmt: skip

    def fail(file: ConfigFile, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(file.path))

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "write", fail)
        for code, fields, body in (*calls, *calls):
            assert (await live.peer.call(code, fields, body)).code == ResponseCode.SYSTEM_ERROR
        assert live.broker.parts.store.queue("gone", 0) is None, "the deletion was not broken off"
    for code, fields, body in calls:
        assert (await live.peer.call(code, fields, body)).code == 0
    topics = table(live, "topics.json", "topicConfigTable")
    assert "N" in topics
    assert "gone" not in topics
    groups = table(live, "subscriptionGroup.json", "subscriptionGroupTable")
    assert groups["G"]["consumeEnable"] is False


async def test_what_a_small_tables_file_did_not_take_is_tried_again_within_a_second(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    files = live.broker.services.table_files
    write = ConfigFile.write
    failed: list[str] = []

    def fails(file: ConfigFile, data: bytes, **more: Any) -> None:
        if len(failed) < 2:  # at once, and in the thread that tries it once more
            failed.append(file.path.name)
            raise OSError(28, "No space left on device", str(file.path))
        write(file, data, **more)

    monkeypatch.setattr(ConfigFile, "write", fails)
    assert (await live.peer.call(200, {}, b'{"groupName":"G"}')).code == ResponseCode.SYSTEM_ERROR
    assert failed == ["subscriptionGroup.json"] * 2
    files.on_second()
    await live.until(lambda: not files.is_writing)
    assert "G" in table(live, "subscriptionGroup.json", "subscriptionGroupTable")


async def test_a_static_topic_whose_file_a_full_disk_did_not_take_is_deleted_later(
    make_live: MakeLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = await make_live()
    static_topics = live.broker.parts.static_topics
    await static_topics.put(TopicQueueMappingDetail(topic="S", bname="broker-a"))

    def fail(file: ConfigFile, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", str(file.path))

    with monkeypatch.context() as patch:
        patch.setattr(ConfigFile, "write", fail)
        assert (await live.peer.call(215, {"topic": "S"})).code == ResponseCode.SYSTEM_ERROR
    assert (await live.peer.call(215, {"topic": "S"})).code == 0
    assert table(live, "topicQueueMapping.json", "topicQueueMappingInfoMap") == {}
