"""Every config file of every store becomes a typed value and equal bytes again.

Proved on all config files of the golden stores, in their line's dialect; on the files that none of
them has, as 5.5.0's own classes print them (data/ConfigFiles.java); and on tables of wrong content.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import ConfigFormatError
from oberth.formats.bean import Bean, json_fields
from oberth.formats.config_files import (
    CONFIG_FILES,
    CompactionPositions,
    ConsumerFilterData,
    ConsumerOffsets,
    ConsumerOrderInfos,
    DelayOffsets,
    KvConfigs,
    LmqConsumerOffsets,
    MessageRequestModes,
    TimerMetrics,
    TopicQueueMappings,
    offset_key,
    split_offset_key,
)
from oberth.formats.config_json import Dialect, parse_config
from oberth.formats.data_version import DataVersion
from oberth.formats.subscription_group import SubscriptionGroupConfig, SubscriptionGroups
from oberth.formats.topic_config import TopicConfig, TopicConfigs

JAVA_FILES: dict[str, str] = {
    part.partition("\n")[0]: part.partition("\n")[2].rstrip("\n")
    for part in (Path(__file__).parent / "data" / "config-files-5.5.0.txt")
    .read_text()
    .split("=== ")[1:]
}


def test_golden_files_round_trip(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    dialect = Dialect.V5 if store.rocketmq_version.startswith("5") else Dialect.V4_9
    seen = 0
    for path in sorted((*store.root.glob("config/*"), *store.root.glob("compaction/*"))):
        bean = CONFIG_FILES.get(path.name.removesuffix(".bak"))
        if bean is None or not path.stat().st_size:
            assert path.name in ("timercheck",) or not path.stat().st_size, path
            continue
        value = bean.decode(path.read_bytes(), name=path.name)
        assert value.encode(dialect) == path.read_bytes(), path
        assert not value.unknown, path
        seen += 1
    if any(entry["path"].startswith("config/") for entry in store.facts["files"]):
        assert seen


def test_golden_files_were_read(golden_pristine: Callable[[str], Any]) -> None:
    root = golden_pristine("pop-5.5.0").root / "config"
    offsets = ConsumerOffsets.decode((root / "consumerOffset.json").read_bytes())
    assert offsets.offset_table["PopTopic@CG_pop"] == {0: 30, 1: 30}
    topics = TopicConfigs.decode((root / "topics.json").read_bytes())
    assert topics.topic_config_table["TBW102"].is_inherited
    groups = SubscriptionGroups.decode((root / "subscriptionGroup.json").read_bytes())
    assert groups.subscription_group_table["CG_pop"].retry_max_times == 16
    lmq = golden_pristine("lmq-broker-4.9.7").root / "config" / "lmqConsumerOffset.json"
    assert LmqConsumerOffsets.decode(lmq.read_bytes()).lmq_offset_table == {
        f"%LMQ%{name}@%LMQ%GID_x": 2 for name in ("dev0", "dev1", "all")
    }


@pytest.mark.parametrize("name", sorted(JAVA_FILES))
def test_java_files_round_trip(name: str) -> None:
    value = CONFIG_FILES[name].decode(JAVA_FILES[name], name=name)
    assert value.encode().decode() == JAVA_FILES[name]
    assert not value.unknown


def test_java_files_were_read() -> None:
    mapping = TopicQueueMappings.decode(JAVA_FILES["topicQueueMapping.json"])
    static = mapping.topic_queue_mapping_info_map["StaticTopic"]
    assert static.curr_id_map == {0: 0, 3: 1}
    assert [item.logic_offset for item in static.hosted_queues[3]] == [0, 1000]
    order = ConsumerOrderInfos.decode(JAVA_FILES["consumerOrderInfo.json"]).table["T@G"][0]
    assert (order.attempt_id, order.offset_list) == ("try-1", (5, 1, 2))
    assert order.offset_next_visible_time == {5: 1700000000003}
    modes = MessageRequestModes.decode(JAVA_FILES["messageRequestMode.json"])
    assert modes.message_request_mode_map["T"]["G"].mode == "POP"
    groups = SubscriptionGroups.decode(JAVA_FILES["subscriptionGroup.json"])
    policy = groups.subscription_group_table["G"].group_retry_policy
    assert policy.exponential_retry_policy is not None
    assert policy.exponential_retry_policy.max == 7_200_000
    assert groups.subscription_group_table["E"].subscription_data_set == []
    topic = TopicConfigs.decode(JAVA_FILES["topics.json"]).topic_config_table["T"]
    assert (topic.is_batch_queue, topic.is_compacted, topic.perm) == (True, False, 7)
    kv = KvConfigs.decode(JAVA_FILES["kvConfig.json"])
    assert kv.config_table["ORDER_TOPIC_CONFIG"] == {"T": "broker-a:4;broker-b:4"}


def test_fields_of_the_later_line_are_left_out_for_the_earlier() -> None:
    config = SubscriptionGroupConfig(group_name="G", attributes={"k": "v"})
    assert set(config.to_json(Dialect.V4_9)) == {
        "brokerId", "consumeBroadcastEnable", "consumeEnable", "consumeFromMinEnable", "groupName",
        "notifyConsumerIdsChangedEnable", "retryMaxTimes", "retryQueueNums",
        "whichBrokerWhenConsumeSlowly",
    }  # fmt: skip
    assert "attributes" in config.to_json(Dialect.V5)


def test_unknown_fields_are_kept_in_their_place() -> None:
    text = '{"attributes":{},"futureField":{"x":[1]},"order":false,"perm":6,"readQueueNums":1}'
    config = TopicConfig.decode(text)
    assert config.unknown == {"futureField": {"x": [1]}}
    written = config.encode(pretty=False).decode()
    assert '"attributes":{},"futureField":{"x":[1]},"order":false' in written
    assert TopicConfig.decode(written) == config


def test_missing_and_null_fields_keep_their_defaults() -> None:
    assert TopicConfig.decode('{"perm":null}') == TopicConfig()
    assert DelayOffsets.decode("{}").encode() == b'{\n\t"offsetTable":{}\n}'


def test_values_that_fastjson_converts() -> None:
    config = TopicConfig.decode('{"readQueueNums":"4","order":"TRUE","topicName":12,"perm":6.0}')
    assert (config.read_queue_nums, config.order, config.topic_name, config.perm) == (
        4, True, "12", 6,
    )  # fmt: skip
    assert DelayOffsets.decode('{"offsetTable":{"1":25}}').offset_table == {1: 25}


@pytest.mark.parametrize(
    ("bean", "text", "message"),
    [
        (TopicConfigs, "[]", "f.json: [] is no object"),
        (TopicConfigs, '{"topicConfigTable":[]}', "f.json.topicConfigTable: [] is no object"),
        (
            TopicConfigs,
            '{"topicConfigTable":{"T":{"perm":"x"}}}',
            "f.json.topicConfigTable.T.perm: 'x' is no integer",
        ),
        (TopicConfigs, '{"topicConfigTable":{"T":{"order":7}}}', "order: 7 is neither true nor"),
        (TopicConfigs, '{"topicConfigTable":{"T":{"topicName":[]}}}', "topicName: [] is no text"),
        (DelayOffsets, '{"offsetTable":{"one":1}}', "'one' is no integer"),
        (DelayOffsets, '{"offsetTable":{1:1.5}}', "offsetTable.1: 1.5 is no integer"),
        (DelayOffsets, '{"offsetTable":{1:1e400}}', "is no integer"),
        (ConsumerOffsets, '{"groupTopicMap":{"g":1}}', "f.json.groupTopicMap.g: 1 is no list"),
    ],
)
def test_wrong_content(bean: type[Bean], text: str, message: str) -> None:
    with pytest.raises(ConfigFormatError) as raised:
        bean.decode(text, name="f.json")
    assert message in str(raised.value)


def test_data_versions_are_ordered() -> None:
    first = DataVersion(counter=9, timestamp=5)
    second = first.next(6)
    assert (second.counter, second.timestamp, second.state_version) == (10, 6, 0)
    third = DataVersion(counter=0, state_version=1)
    assert first < second < third
    assert first.next(7, state_version=2) > third
    assert DataVersion(counter=1, unknown={"x": 1}) == DataVersion(counter=1)
    assert len({first, second, DataVersion(counter=9, timestamp=5)}) == 2


def test_offset_keys() -> None:
    assert split_offset_key(offset_key("%RETRY%G", "G")) == ("%RETRY%G", "G")
    assert split_offset_key("no-group") is None
    assert split_offset_key("@G") is None
    assert split_offset_key("T@") is None
    assert split_offset_key("%LMQ%a@b@G") == ("%LMQ%a@b", "G")
    assert split_offset_key("T@%LMQ%c@d") == ("T", "%LMQ%c@d")


def test_derived_fields() -> None:
    assert ConsumerFilterData(born_time=2, dead_time=1).to_json()["dead"] is False
    assert CompactionPositions(queue_offset_map={"T_0": 1}).to_json()["empty"] is False
    assert b"\n" not in TimerMetrics().encode()


@pytest.mark.parametrize("name", sorted(CONFIG_FILES))
def test_an_empty_file_of_each_kind(name: str) -> None:
    bean = CONFIG_FILES[name]
    for dialect in Dialect:
        text = bean().encode(dialect)
        assert bean.decode(text) == bean()
        assert list(parse_config(text)) == sorted(parse_config(text))
    assert len({field.java_name for field in json_fields(bean)}) == len(json_fields(bean))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(CONFIG_FILES)), st.data())
def test_value_or_documented_error(name: str, data: st.DataObject) -> None:
    bean = CONFIG_FILES[name]
    names = [field.java_name for field in json_fields(bean)]
    document = data.draw(st.dictionaries(st.sampled_from([*names, "other"]), JSON))
    try:
        value = bean.from_json(document, name)
    except ConfigFormatError:
        return
    assert bean.decode(value.encode()).encode() == value.encode()
