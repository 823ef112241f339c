"""broker.conf, environment and overrides become options; what nobody knows is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oberth.broker.broker_config import (
    BrokerConfig,
    default_broker_name,
    format_config,
    read_configs,
    read_entries,
)
from oberth.errors import OptionError
from oberth.formats.broker_conf import KEYS_WITHOUT_EFFECT, MessageStoreConfig
from oberth.formats.names import check_topic
from oberth.formats.options import options_of

REFUSED_WITH_OTHER_VALUES = frozenset(
    {
        "enableDLegerCommitLog", "timerRocksDBEnable", "transRocksDBEnable",
        "indexRocksDBEnable", "rocksdbCQDoubleWriteEnable",
    }
)  # fmt: skip


def test_a_later_source_wins(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=file\nlistenPort=1\nfileReservedTime=5\nnamesrvAddr=a:1;b:2\n")
    entries = read_entries(
        conf,
        overrides={"listenPort": "3"},
        environment={"OBERTH_listenPort": "2", "OBERTH_brokerName": "env", "OBERTH_x": "y"},
    )
    broker, store, warnings = read_configs(entries)
    assert (broker.broker_name, broker.listen_port) == ("env", 3)
    assert store.file_reserved_time_hours == 5
    assert broker.namesrv_addresses == ["a:1", "b:2"]
    assert broker.broker_config_path == str(conf)
    assert warnings == []


def test_the_name_servers_of_the_environment_come_last(tmp_path: Path) -> None:
    environment = {"NAMESRV_ADDR": "c:3"}
    assert read_entries(None, environment=environment)["namesrvAddr"] == "c:3"
    conf = tmp_path / "broker.conf"
    conf.write_text("namesrvAddr=a:1")
    assert read_entries(conf, environment=environment)["namesrvAddr"] == "a:1"


def test_unknown_keys_are_warned_about_by_name() -> None:
    _, _, warnings = read_configs({"brokerNam": "x", "sendMessageThreadPoolNums": "4"})
    assert warnings == [
        "brokerNam: no such option; did you mean brokerName?",
        "sendMessageThreadPoolNums: has no effect here",
    ]


def test_keys_without_effect_are_warned_about_unless_they_are_as_apaches() -> None:
    for key, default in KEYS_WITHOUT_EFFECT.items():
        if key not in REFUSED_WITH_OTHER_VALUES:
            _, store, warnings = read_configs({key: "77"})
            assert warnings == [f"{key}: has no effect here"]
            assert store.to_properties()[key] == "77", "tools are shown what was set"
        assert read_configs({key: default})[2] == []
    for key in ("timerCheckMetricsWhen", "debugLockEnable", "topicQueueLockNum"):
        assert key in KEYS_WITHOUT_EFFECT


@pytest.mark.parametrize(
    "entries",
    [
        {"listenPort": "70000"},
        {"brokerPermission": "write"},
        {"tlsServerMode": "perhaps"},
        {"mappedFileSizeCommitLog": "-1"},
    ],
)
def test_values_that_cannot_be_are_refused(entries: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        read_configs(entries)


def test_a_slave_has_an_id_of_its_own(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=a\nbrokerRole=SLAVE\n")
    with pytest.raises(OptionError, match=r"broker\.conf: line 2: brokerRole SLAVE needs a broker"):
        read_configs(read_entries(conf, environment={}))
    assert read_configs({"brokerRole": "SLAVE", "brokerId": "1"})[0].broker_id == 1
    under_controller = {"brokerRole": "SLAVE", "enableControllerMode": "true"}
    assert read_configs(under_controller)[0].broker_id == 0, "the controller gives it one"


def test_a_name_alone_in_a_line_is_warned_about(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("namesrvAddr=\n brokerName \nbrokerClusterName c\nstorePathRootDir\n")
    entries = read_entries(conf, environment={}, overrides={"storePathRootDir": "/s"})
    assert entries["brokerClusterName"] == "c", "white space parts name and value, too"
    assert read_configs(entries)[2] == [
        f"{conf}: line 2: brokerName stands there without a value, and is empty; "
        "write brokerName= if that is meant"
    ]


def test_the_default_name_can_be_a_topic() -> None:
    assert check_topic(default_broker_name())
    assert BrokerConfig().broker_name == default_broker_name()


def test_what_is_shown_can_be_read_again() -> None:
    broker, store, _ = read_configs({"brokerName": "a", "transactionTimeOut": "7"})
    again, store_again, warnings = read_configs(format_config(broker, store))
    assert again == broker
    assert store_again == store
    assert warnings == []


def test_every_option_of_the_store_is_read_somewhere() -> None:
    package = Path(__file__).parents[2] / "src" / "oberth"
    declared = package / "formats" / "message_store_config.py"
    words = set()
    for path in package.rglob("*.py"):
        if path != declared:
            words.update(re.findall(r"\w+", path.read_text()))
    own = declared.read_text()
    unread = [
        each.java_name
        for each in options_of(MessageStoreConfig)
        if each.field_name not in words
        and not re.search(rf"(self|moved)\.{each.field_name}\b", own)
    ]
    assert unread == []


def test_every_option_is_read_somewhere() -> None:
    package = Path(__file__).parents[2] / "src" / "oberth"
    text = "".join(
        path.read_text() for path in package.rglob("*.py") if path.name != "broker_config.py"
    )
    own = (package / "broker" / "broker_config.py").read_text()
    unread = [
        each.java_name
        for each in options_of(BrokerConfig)
        if each.field_name not in text and own.count(each.field_name) < 2
    ]
    assert unread == []
