"""Options of the source: names, defaults, precedence and refusals, as data and without a JVM."""

from __future__ import annotations

import contextlib
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import OptionError
from oberth.spark import options as o
from oberth.spark.given_options import parse_paths


def _batch(**given: str) -> o.ReadOptions:
    return o.parse_read_options({"path": "/s", **given}, streaming=False)


def _stream(**given: str) -> o.ReadOptions:
    return o.parse_read_options({"path": "/s", **given}, streaming=True)


def _dotted(name: str, value: str, *, streaming: bool = False) -> o.ReadOptions:
    return o.parse_read_options({"path": "/s", name: value}, streaming=streaming)


def test_defaults_are_kafkas() -> None:
    batch, stream = _batch(), _stream()
    assert batch.starting.kind is o.BoundKind.EARLIEST
    assert batch.ending.kind is o.BoundKind.LATEST
    assert stream.starting.kind is o.BoundKind.LATEST
    assert batch.fail_on_data_loss
    assert not batch.include_properties
    assert batch.max_offsets_per_trigger is None
    assert batch.max_trigger_delay_ms == 15 * 60_000
    assert batch.timestamp_strategy == "error"
    assert batch.target_partition_bytes == 128 << 20


def test_names_are_compared_without_regard_to_case() -> None:
    assert _batch(failondataloss="FALSE").fail_on_data_loss is False
    assert _batch(topic="A,B").selection == o.Selection(o.SelectionKind.SUBSCRIBE, ("A", "B"))
    assert _batch(includeHeaders="true").include_properties


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribepatern", "subscribePattern"),
        ("filter.tags", "filter.tag"),
        ("zzz", ""),
    ],
)
def test_unknown_option_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(OptionError, match="nearest known one is") as caught:
        _dotted(name, "x")
    assert nearest in str(caught.value)
    assert name in str(caught.value)


def test_kafkas_own_servers_get_a_hint() -> None:
    with pytest.raises(OptionError, match="path"):
        _dotted("kafka.bootstrap.servers", "h:1")


@pytest.mark.parametrize(
    ("given", "streaming", "message"),
    [
        ({}, False, "exactly one of path"),
        ({"path": "/s", "rocketmq.namesrv.addr": "h:1"}, False, "exactly one of path"),
        ({"path": "/s", "subscribe": "A", "assign": '{"A":[0]}'}, False, "only one of assign"),
        ({"path": "/s", "startingOffsets": "latest"}, False, "latest is not allowed"),
        ({"path": "/s", "endingOffsets": "earliest"}, False, "earliest is not allowed"),
        ({"path": "/s", "startingOffsets": '{"A":{"0":-1}}'}, False, "-1"),
        ({"path": "/s", "endingOffsets": '{"A":{"0":-2}}'}, False, "-2"),
        ({"path": "/s", "endingOffsets": "latest"}, True, "streaming"),
        ({"path": "/s", "endingTimestamp": "1"}, True, "streaming"),
        ({"path": "/s", "startingOffsets": "first"}, True, "found 'first'"),
        ({"path": "/s", "startingOffsets": '{"A":{"0":-3}}'}, True, "allowed is -2"),
        ({"path": "/s", "startingOffsets": '{"A":{"x":1}}'}, True, "found queue 'x'"),
        ({"path": "/s", "startingOffsets": '{"A":'}, True, "not JSON"),
        ({"path": "/s", "startingOffsets": "group"}, True, "rocketmq.consumer.group"),
        ({"path": "/s", "endingOffsets": "group"}, False, "found 'group'"),
        (
            {"path": "/s", "maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"},
            True,
            "larger than",
        ),
        ({"path": "/s", "maxOffsetsPerTrigger": "0"}, True, "allowed: 1"),
        ({"path": "/s", "maxOffsetsPerTrigger": "1_000"}, True, "allowed: 1"),
        ({"path": "/s", "failOnDataLoss": "yes"}, True, "true, false"),
        ({"path": "/s", "subscribePattern": "("}, True, "no pattern"),
        ({"path": "/s", "subscribe": " , "}, True, "no topic"),
        ({"path": "/s", "assign": '{"A":{}}'}, True, "list of queues"),
        ({"path": "/s", "assign": '{"A":[true]}'}, True, "found queue"),
        ({"path": "/s", "targetPartitionBytes": "lots"}, True, "bytes"),
        ({"path": "/s", "maxTriggerDelay": "soon"}, True, "a number and"),
        ({"path": "/s", "brokerName": "a,a"}, True, "twice"),
        ({"path": "/s", "topic": "A", "subscribe": "B"}, True, "given twice"),
        (
            {
                "path": "/s",
                "startingOffsets": '{"A":{"0":1}}',
                "endingOffsets": '{"A":{"0":2,"1":3}}',
            },
            False,
            "different queues",
        ),
    ],
)
def test_refusals(given: dict[str, str], streaming: bool, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        o.parse_read_options(given, streaming=streaming)


def test_timestamps_come_before_offsets() -> None:
    options = _batch(
        startingTimestamp="5",
        startingOffsetsByTimestamp='{"A":{"0":7}}',
        startingOffsets='{"A":{"0":1}}',
        endingOffsetsByTimestamp='{"A":{"b":{"0":9}}}',
        endingOffsets="latest",
    )
    assert options.starting == o.Bound(o.BoundKind.TIMESTAMP, timestamp_ms=5)
    assert options.ending == o.Bound(o.BoundKind.TIMESTAMPS, {"A": {"b": {0: 9}}})


def test_offsets_with_and_without_a_broker() -> None:
    options = _stream(startingOffsets='{"A":{"b-0":{"0":23,"1":-1}},"B":{"4":-2}}')
    assert options.starting.offsets == {"A": {"b-0": {0: 23, 1: -1}}, "B": {"": {4: -2}}}
    assigned = _batch(assign='{"A":{"b-0":[2,1,1]},"B":[0]}').selection
    assert assigned.queues == {"A": {"b-0": (1, 2)}, "B": {"": (0,)}}


def test_limits_of_triggers_are_ignored_with_a_warning_in_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        _batch(maxOffsetsPerTrigger="10")
    assert "maxOffsetsPerTrigger is ignored" in caplog.text


def test_group_start() -> None:
    options = o.parse_read_options(
        {"path": "/s", "startingOffsets": "group", "rocketmq.consumer.group": "G"}, streaming=False
    )
    assert options.starting.kind is o.BoundKind.GROUP
    assert options.consumer_group == "G"
    assert options.group_fallback == "earliest"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("/a", ("/a",)),
        ("/a,/b", ("/a", "/b")),
        ('["/a","/b,c"]', ("/a", "/b,c")),
        ("[ab]/c*", ("[ab]/c*",)),
        ("", ()),
    ],
)
def test_paths(text: str, paths: tuple[str, ...]) -> None:
    assert parse_paths(text) == paths


@pytest.mark.parametrize(
    ("text", "tags"),
    [("A", ("A",)), ("A || B||A", ("A", "B")), ("*", ()), ("A||*", ()), ("", ())],
)
def test_tags(text: str, tags: tuple[str, ...]) -> None:
    assert _dotted("filter.tag", text).filter_tags == tags


def test_sizes_and_times() -> None:
    options = _stream(targetPartitionBytes="64m", maxBytesPerTrigger="1g", maxTriggerDelay="30s")
    assert options.target_partition_bytes == 64 << 20
    assert options.max_bytes_per_trigger == 1 << 30
    assert options.max_trigger_delay_ms == 30_000


@given(st.dictionaries(st.sampled_from(o.READ_OPTIONS), st.text(max_size=40), max_size=6))
def test_any_options_are_understood_or_refused(given: dict[str, str]) -> None:
    for streaming in (False, True):
        with contextlib.suppress(OptionError):
            assert o.parse_read_options(given, streaming=streaming).paths or "path" not in given


LIVE = {"rocketmq.namesrv.addr": "a:9876"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": "/x", **LIVE}, "exactly one of path and rocketmq.namesrv.addr"),
        ({"rocketmq.broker.addr": "a:10911"}, "give rocketmq.namesrv.addr"),
        ({"rocketmq.namesrv.addr": "a"}, "found 'a', allowed is host:port"),
        ({**LIVE, "readOrder": "commitlog"}, "needs path"),
        ({**LIVE, "includeUndelivered": "true"}, "includeUndelivered goes with path"),
        ({**LIVE, "storage.region": "x"}, "storage.region goes with path"),
        ({"path": "/x", "rocketmq.acl.accessKey": "k"}, "accessKey goes with live brokers"),
        ({"path": "/x", "rocketmq.brokers": "b"}, "rocketmq.brokers goes with live brokers"),
        ({**LIVE, "rocketmq.acl.accessKey": "k"}, "go together"),
        ({**LIVE, "rocketmq.tls.ca": "f"}, "needs rocketmq.tls.enable=true"),
        (
            {**LIVE, "rocketmq.tls.enable": "true", "rocketmq.tls.key": "f"},
            "needs rocketmq.tls.cert",
        ),
        ({**LIVE, "commitOffsetsToGroup": "true"}, "is for streams"),
    ],
)
def test_refusals_of_live_reads(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        o.parse_read_options(given, streaming=False)


def test_what_no_queue_shows_is_read_from_the_log_or_refused() -> None:
    given = {"path": "/x", "includeUndelivered": "true"}
    assert o.parse_read_options(given, streaming=False).read_order is o.ReadOrder.COMMIT_LOG
    with pytest.raises(OptionError, match="needs readOrder=commitlog, found queue"):
        o.parse_read_options({**given, "readOrder": "queue"}, streaming=False)
    with pytest.raises(OptionError, match="includeUndelivered is not allowed in a streaming"):
        o.parse_read_options(given, streaming=True)
    for more in (
        {"startingTimestamp": "5"}, {"endingOffsets": '{"A": {"0": 5}}'},
        {"startingOffsets": "group", "rocketmq.consumer.group": "g"}, {"assign": '{"A": [0]}'},
    ):  # fmt: skip
        with pytest.raises(OptionError, match="not go with includeUndelivered"):
            o.parse_read_options({**given, **more}, streaming=False)
    plain = {"path": "/x", "includeUndelivered": "false"}
    assert o.parse_read_options(plain, streaming=True).read_order is o.ReadOrder.AUTO


def test_secrets_are_in_no_text() -> None:
    given = {
        **LIVE, "rocketmq.acl.accessKey": "who", "rocketmq.acl.secretKey": "hush-1",
        "rocketmq.acl.securityToken": "hush-2", "rocketmq.tls.enable": "true",
        "rocketmq.tls.keyPassword": "hush-3",
    }  # fmt: skip
    options = o.parse_read_options(given, streaming=True)
    assert options.connection is not None
    assert options.connection.secret_key == "hush-1"
    assert "hush" not in repr(options)


def test_groups_are_published_for_streams_with_a_group() -> None:
    with pytest.raises(OptionError, match=r"needs rocketmq\.consumer\.group"):
        o.parse_read_options({**LIVE, "commitOffsetsToGroup": "true"}, streaming=True)
    given = {**LIVE, "commitOffsetsToGroup": "true", "rocketmq.consumer.group": "g"}
    assert o.parse_read_options(given, streaming=True).commit_to_group
