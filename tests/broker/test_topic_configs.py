"""Topics are made, changed and kept as Apache's broker keeps them; files of both lines are read."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from oberth.broker.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    Attribute,
    AttributeChangeError,
    alter_attributes,
    parse_attributes,
)
from oberth.broker.broker_config import BrokerConfig
from oberth.broker.topic_configs import TopicConfigs, java_text
from oberth.errors import ConfigFormatError, IllegalNameError, OptionError
from oberth.formats.config_json import encode_config, parse_config
from oberth.formats.topic_config import TopicConfig

GOLDEN = Path(__file__).parents[1] / "golden"


def topics(**options: object) -> tuple[TopicConfigs, list[str]]:
    changed: list[str] = []
    config = BrokerConfig(broker_name="broker-a", **options)  # type: ignore[arg-type]
    return TopicConfigs(config, changed.extend, lambda: 7), changed


def test_a_broker_has_its_own_topics() -> None:
    table, changed = topics()
    table.add_system_topics()
    for name, queues, perm in (
        ("TBW102", 8, 7), ("BenchmarkTest", 1024, 6), ("DefaultCluster", 16, 7),
        ("broker-a", 1, 7), ("SCHEDULE_TOPIC_XXXX", 18, 6), ("DefaultCluster_REPLY_TOPIC", 1, 6),
        ("rmq_sys_REVIVE_LOG_DefaultCluster", 8, 6), ("SELF_TEST_TOPIC", 1, 6),
        ("OFFSET_MOVED_EVENT", 1, 6), ("rmq_sys_wheel_timer", 1, 6),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 1, 6), ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1, 6),
        ("RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", 1, 6), ("RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", 1, 6),
        ("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1, 1),
    ):  # fmt: skip
        found = table.get(name)
        assert found is not None, name
        assert (found.read_queue_nums, found.perm) == (queues, perm), name
        assert table.is_system_topic(name)
    assert table.get("RMQ_SYS_TRACE_TOPIC") is None
    assert len(changed) == len(table)
    version = table.data_version
    table.add_system_topics()
    assert table.data_version == version


def test_text_from_a_template_is_what_is_read_again() -> None:
    """Topics that requests make are alike: their entries cost no 40 us each, and are the same."""
    table, _ = topics()
    table.add_system_topics()
    table.encode()
    for number in range(3):
        table.create_internal(f"%RETRY%{number}", 1)
        table.create_by_send(f"T{number}", "TBW102", 4)
        table.create_internal(f"%DLQ%{number}", number, topic_sys_flag=2)
    assert not table.prepare(1)  # nothing is left to be made text
    again, _ = topics()
    again.read(parse_config(table.encode()))
    assert again.prepare(1)
    assert sorted(again.encode().splitlines()) == sorted(table.encode().splitlines())
    assert again.encode() == encode_config(parse_config(again.encode()))


def test_the_template_goes_when_nobody_may_use_it() -> None:
    table, _ = topics()
    table.add_system_topics()
    again, _ = topics(auto_create_topic_enable=False)
    again.read(parse_config(table.encode()))
    again.add_system_topics()
    assert again.get("TBW102") is None


def test_a_send_makes_a_topic_after_its_template() -> None:
    table, changed = topics()
    table.add_system_topics()
    changed.clear()
    made = table.create_by_send("T", "TBW102", 4)
    assert made is not None
    assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (4, 4, 6)
    assert table.create_by_send("T", "TBW102", 9) is made
    assert changed == ["T"]
    wide = table.create_by_send("U", "TBW102", 99, unit_mode=True)
    assert wide is not None
    assert (wide.write_queue_nums, wide.topic_sys_flag) == (8, 1)
    assert table.create_by_send("V", "SELF_TEST_TOPIC", 4) is None
    assert table.create_by_send("V", "Nowhere", 4) is None
    with pytest.raises(IllegalNameError):
        table.create_by_send("../V", "TBW102", 4)


def test_a_topic_that_the_broker_needs_is_made_once() -> None:
    table, changed = topics()
    made = table.create_internal("%RETRY%G", 1)
    changed.clear()
    assert table.create_internal("%RETRY%G", 4) is made
    assert (made.write_queue_nums, changed) == (1, [])


def test_changes_are_counted_and_refused_whole() -> None:
    table, _ = topics()
    was_dirty = table.is_dirty
    assert table.update(TopicConfig(topic_name="T"))
    assert (was_dirty, table.is_dirty) == (False, True)
    assert not table.update(TopicConfig(topic_name="T"))
    assert table.data_version.counter == 1
    with pytest.raises(OptionError, match="readQueueNums"):
        table.update(TopicConfig(topic_name="T", read_queue_nums=-1))
    with pytest.raises(AttributeChangeError):
        table.update(TopicConfig(topic_name="T", perm=2), {"-message.type": ""})
    found = table.get("T")
    assert found is not None
    assert found.perm == 6
    assert table.delete("T")
    assert not table.delete("T")


def test_order_topics_come_from_name_servers() -> None:
    table, changed = topics()
    table.update(TopicConfig(topic_name="T"))
    changed.clear()
    table.set_order_topics({"T", "unknown"})
    table.set_order_topics({"T"})
    assert changed == ["T"]
    assert table.is_order_topic("T")


def test_a_topic_is_quoted_as_java_prints_it() -> None:
    assert java_text(TopicConfig(topic_name="T", perm=7)) == (
        "TopicConfig [topicName=T, readQueueNums=16, writeQueueNums=16, perm=RWX, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]"
    )


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_topic_that_has_messages_is_made_again(is_batch: bool) -> None:
    table, changed = topics()
    table.restore("T", 3, is_batch=is_batch)
    found = table.get("T")
    assert found is not None
    assert (found.read_queue_nums, found.write_queue_nums, changed) == (3, 3, ["T"])
    assert found.attributes == ({"queue.type": "BatchCQ"} if is_batch else {})


def test_of_a_document_what_is_as_it_was_is_the_same() -> None:
    table, _ = topics()
    for name in ("same", "other"):
        table.update(TopicConfig(topic_name=name))
    document = parse_config(table.encode())
    document["topicConfigTable"]["other"]["perm"] = 4
    decoded, _ = table.decoded(document)
    assert decoded["same"] is table.get("same")
    assert (decoded["other"].perm, len(decoded)) == (4, 2)


@pytest.mark.parametrize("name", ["client-5.5.0", "retry-4.9.7", "innerbatch-5.5.0"])
def test_apaches_files_are_read_and_written_back(name: str) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        member = archive.extractfile(f"{name}/config/topics.json")
        assert member is not None
        theirs = parse_config(member.read())
    table, _ = topics()
    table.read(theirs)
    ours = parse_config(table.encode())["topicConfigTable"]
    for topic, expected in theirs["topicConfigTable"].items():
        assert {**ours[topic], **expected} == ours[topic]


@pytest.mark.parametrize(
    "document",
    [
        [],
        {"topicConfigTable": {"T": {"topicName": "../T"}}},
        {"topicConfigTable": {"T": {"topicName": "T", "perm": 99}}},
        {"topicConfigTable": {"T": {"perm": 6}}},
    ],
)
def test_what_is_no_topic_file_is_refused(document: object) -> None:
    table, _ = topics()
    with pytest.raises(ConfigFormatError):
        table.read(document)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("", {}),
        (None, {}),
        ("+a=1,-b", {"+a": "1", "-b": ""}),
        (" +a = x=y , ", {"+a": "x=y"}),
    ],
)
def test_attribute_texts(text: str | None, changes: dict[str, str]) -> None:
    assert parse_attributes(text) == changes


@pytest.mark.parametrize("text", ["a=1", "+a", "+=1", "-", "+a=1,+a=2"])
def test_attribute_texts_that_are_none(text: str) -> None:
    with pytest.raises(AttributeChangeError):
        parse_attributes(text)


@pytest.mark.parametrize(
    ("known", "good", "bad"),
    [
        (TOPIC_ATTRIBUTES, {"message.type": "LITE"}, {"message.type": "lite"}),
        (TOPIC_ATTRIBUTES, {"lite.topic.expiration": "43200"}, {"lite.topic.expiration": "43201"}),
        (TOPIC_ATTRIBUTES, {"lite.topic.expiration": "-1"}, {"lite.topic.expiration": "-2"}),
        (GROUP_ATTRIBUTES, {"lite.bind.topic": "anything"}, {"lite.bind": "T"}),
        (GROUP_ATTRIBUTES, {"lite.sub.model": "Exclusive"}, {"lite.sub.model": "exclusive"}),
        (
            GROUP_ATTRIBUTES,
            {"lite.sub.reset.offset.exclusive": "TRUE"},
            {"lite.sub.reset.offset.exclusive": "1"},
        ),
        (GROUP_ATTRIBUTES, {"lite.sub.client.quota": "-1"}, {"lite.sub.client.quota": "-2"}),
        (
            GROUP_ATTRIBUTES,
            {"lite.sub.client.max.event.cnt": "10"},
            {"lite.sub.client.max.event.cnt": "9"},
        ),
        (GROUP_ATTRIBUTES, {"lite.sub.wildcard": ""}, {"lite.sub.wild": ""}),
    ],
)
def test_attributes_of_lite_topics(
    known: Mapping[str, Attribute], good: dict[str, str], bad: dict[str, str]
) -> None:
    signed = {f"+{name}": value for name, value in good.items()}
    assert alter_attributes(known, {}, signed, create=True) == good
    with pytest.raises(AttributeChangeError):
        alter_attributes(known, {}, {f"+{name}": value for name, value in bad.items()}, create=True)


def test_attributes_have_their_values() -> None:
    current = alter_attributes(TOPIC_ATTRIBUTES, {}, {"+reserve.time": "5"}, create=True)
    assert current == {"reserve.time": "5"}
    for change in ({"+reserve.time": "x"}, {"+reserve.time": "-2"}, {"+queue.type": "SimpleCQ"}):
        with pytest.raises(AttributeChangeError):
            alter_attributes(TOPIC_ATTRIBUTES, current, change, create=False)
