"""broker.conf: the store's options from text, with Apache's keys and defaults.

The defaults of both lines, as `new MessageStoreConfig()` gives them in 4.9.7 and 5.5.0, are in
data/message-store-config.tsv (key, type, default of 4.9.7, of 5.5.0; "-" where it has no such key).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oberth.errors import OptionError
from oberth.formats.broker_conf import (
    BROKER_KEYS,
    KEYS_WITHOUT_EFFECT,
    BrokerRole,
    FlushDiskType,
    Line,
    MessageStoreConfig,
    options_of,
    parse_assignments,
    parse_properties,
    read_store_config,
    update_option,
)

DEFAULTS = {
    key: (kind, first, second)
    for key, kind, first, second in (
        line.split("\t")
        for line in (Path(__file__).parent / "data" / "message-store-config.tsv")
        .read_text()
        .splitlines()
    )
}
OWN_KEYS = {"rocketmqLine", "dispatch", "retentionWaitsForLake"}
OPTIONS = {each.java_name: each for each in options_of(MessageStoreConfig)}
ALIASES = {alias for each in OPTIONS.values() for alias in each.aliases}


def test_every_key_of_both_lines_is_known() -> None:
    # isEnableBatchPush is a getter's name that 4.9.7 made a field; no broker.conf can set it.
    java = set(DEFAULTS) - {"isEnableBatchPush"}
    assert java == (set(OPTIONS) - OWN_KEYS) | set(KEYS_WITHOUT_EFFECT) | ALIASES
    assert not set(OPTIONS) & set(KEYS_WITHOUT_EFFECT)
    assert not BROKER_KEYS & (set(OPTIONS) | set(KEYS_WITHOUT_EFFECT))


@pytest.mark.parametrize("key", sorted(set(OPTIONS) - OWN_KEYS))
def test_defaults_lines_and_types(key: str) -> None:
    kind, first, second = DEFAULTS[key]
    each = OPTIONS[key]
    default = second if second != "-" else first
    ours = "null" if each.default is None else each.format(each.default)
    if key == "storePathRootDir":
        assert (ours, default) == ("~/store", "/root/store")
    else:
        assert ours == default
    known_to_4_9 = first != "-" or any(DEFAULTS[alias][1] != "-" for alias in each.aliases)
    assert (each.line is Line.BOTH) == known_to_4_9
    assert {"int": int, "long": int, "boolean": bool, "double": float}.get(kind, str) in (
        each.kind, *each.kind.__mro__,
    )  # fmt: skip
    assert each.doc


def test_defaults_without_effect() -> None:
    for key, default in KEYS_WITHOUT_EFFECT.items():
        _, first, second = DEFAULTS[key]
        assert (second if second != "-" else first) == (default or "null") or not default


def test_units_are_in_the_names() -> None:
    for each in OPTIONS.values():
        if each.kind is int and ("Interval" in each.java_name or "imeout" in each.java_name):
            assert each.field_name.endswith(("_ms", "_sec")), each.field_name


def test_java_spelling_stays_behind() -> None:
    names = [each.field_name for each in OPTIONS.values()]
    for misspelled in ("maped", "mapper_", "internal", "mills"):
        assert not any(misspelled in name for name in names)


def test_a_file() -> None:
    config = read_store_config(
        b"# a broker\nstorePathRootDir = /data/store\nflushDiskType=SYNC_FLUSH\n"
        b"mapedKey=1\nlistenPort=10911\nbrokerRole=SLAVE \n"
        b"storePathCommitLog={root}/a,{root}/b\nfileReservedTime=48\nrocksdbCompressionType=lz4\n",
        strict=False,
    )
    assert config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert config.broker_role is BrokerRole.SLAVE
    assert config.file_reserved_time_hours == 48
    assert config.commit_log_paths == ("/data/store/a", "/data/store/b")
    assert config.extra == {"rocksdbCompressionType": "lz4"}
    assert config.to_properties()["rocksdbCompressionType"] == "lz4"


def test_golden_settings(golden_name: str, golden_pristine: Callable[[str], Any]) -> None:
    store = golden_pristine(golden_name)
    settings = {"storePathRootDir": str(store.root), **store.facts["messageStoreConfig"]}
    config = read_store_config("", overrides=settings)
    segment = next(iter(sorted(Path(config.commit_log_paths[0]).iterdir())))
    assert segment.stat().st_size == config.mapped_file_size_commit_log
    for path in sorted((store.root / "consumequeue").glob("*/*/*"))[:1]:
        assert path.stat().st_size == config.consume_queue_file_size


def test_overrides_win_and_unknown_keys_are_named() -> None:
    config = read_store_config("maxMessageSize=10", overrides={"maxMessageSize": "20"})
    assert config.max_message_size == 20
    with pytest.raises(OptionError, match="did you mean mappedFileSizeCommitLog"):
        read_store_config("mapedFileSizeCommitLog=1")
    with pytest.raises(OptionError, match="did you mean autoCreateTopicEnable"):
        read_store_config("autoCreateTopicEnabled=true")
    read_store_config("mapedFileSizeCommitLog=1", strict=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("storeType=defaultRocksDB", "storeType: defaultRocksDB is not supported"),
        ("enableDLegerCommitLog=true", "not supported"),
        ("mappedFileSizeCommitLog=1", "outside 1024…"),
        ("maxMessageSize=9", "outside 10…"),
        ("flushDiskType=sometimes", "not one of SYNC_FLUSH, ASYNC_FLUSH"),
        ("haListenPort=65536", "outside 0…65535"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_store_config(text)
    assert message in str(raised.value)


def test_both_names_of_a_renamed_option() -> None:
    for key in ("haMaxGapNotInSync", "haSlaveFallbehindMax"):
        assert read_store_config(f"{key}=7").ha_max_gap_not_in_sync == 7


def test_sizes() -> None:
    config = MessageStoreConfig(
        mapped_file_size_consume_queue=21,
        mapped_file_size_batch_consume_queue=47,
    )
    assert config.consume_queue_file_size == 40
    assert config.batch_consume_queue_file_size == 92


def test_roots() -> None:
    assert MessageStoreConfig(store_path_commit_log="/x, /y ,").commit_log_paths == ("/x", "/y")
    assert MessageStoreConfig(store_path_root_dir="/r").commit_log_paths == ("/r/commitlog",)
    assert MessageStoreConfig().read_only_commit_log_paths == ()
    with pytest.raises(OptionError):
        MessageStoreConfig(max_message_size=1).check()


def test_round_trip() -> None:
    config = read_store_config("rocketmqLine=4.9\nslaveTimeout=9")
    assert config.line is Line.V4_9
    again = MessageStoreConfig.from_properties(
        {**config.to_properties(), "rocketmqLine": "4.9"}, strict=True
    )
    again.extra = config.extra
    assert again == config


def test_assignments() -> None:
    assert parse_assignments(["a = b=c", "d="]) == {"a": "b=c", "d": ""}
    for text in ("a", "=b", ""):
        with pytest.raises(OptionError, match="is not key=value"):
            parse_assignments([text])


def test_an_option_changes_while_the_store_runs() -> None:
    config = MessageStoreConfig()
    assert update_option(config, "fileReservedTime", "1")
    assert config.file_reserved_time_hours == 1
    assert not update_option(config, "brokerName", "x")
    assert parse_properties("a=1") == {"a": "1"}
