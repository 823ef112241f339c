"""ExporterMetrics: the broker's figures under the names and labels of RocketMQ's own exporter.

Dashboards and alarms that were made for rocketmq-exporter read ``/metrics?format=exporter`` without
a process in between. Of its names there are those that a broker can know by itself; what the
exporter asks running clients for (``rocketmq_client_consume_…``) is not among them.

    rocketmq_broker_tps, _qps                                    cluster, brokerIP, broker
    rocketmq_producer_tps, _message_size, _offset                cluster, broker, topic
    rocketmq_topic_retry_offset                                  cluster, broker, topic
    rocketmq_topic_dlq_offset, rocketmq_producer_count           cluster, broker, group
    rocketmq_consumer_tps, _message_size, _offset                cluster, broker, topic, group
    rocketmq_send_back_nums                                      cluster, broker, topic, group
    rocketmq_group_get_latency_by_storetime                      cluster, broker, topic, group
    rocketmq_group_diff, _retrydiff, _dlqdiff   group, topic, countOfOnlineConsumers, msgModel
    rocketmq_group_count                                         caddr, localaddr, group
    rocketmq_brokeruntime_…      cluster, brokerIP, brokerHost, des, boottime, broker_version

The exporter shows rates of the last minute as gauges, and so does this. RocketMQ: rocketmq-exporter
(RMQMetricsCollector, MetricsCollectTask).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.broker.runtime_info import commit_log_disk
from oberth.broker.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from oberth.formats import names
from oberth.formats.config_files import split_offset_key

if TYPE_CHECKING:
    from oberth.broker.parts import Parts

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


class Family(NamedTuple):
    """All lines of one name.

    Attributes:
        name: of the metric.
        kind: gauge or counter.
        text: what it is.
        samples: labels and values.
        common: labels that stand before those of each sample.
    """

    name: str
    kind: str
    text: str
    samples: Iterable[Sample]
    common: Labels = ()


class Progress(NamedTuple):
    """One group in one topic."""

    topic: str
    group: str
    consumed: int
    lag: int
    behind: tuple[tuple[int, int], ...]
    """Queue id and offset of queues where something is left."""


PAIRS_SHOWN_MAX: Final = 20_000
"""Pairs of a topic and a group that each of the names of lags shows; the others are summed up."""

OTHER: Final = "(other)"
"""Topic and group of a line that sums up all that are not shown."""


class Progresses:
    """What one rendering finds out of all pairs and needs for several names.

    Attributes:
        shown: of ordinary topics, of retry topics and of those of dead letters.
        others: lags of what is not shown, by the same.
    """

    def __init__(self) -> None:
        self.shown: dict[str | None, list[Progress]] = {kind: [] for kind in KINDS}
        self.others: dict[str | None, int] = {}

    def add(self, progress: Progress, *, is_broadcasting: bool) -> None:
        """Keep it, or its lag if very many are kept: broadcasting groups have none."""
        kind = next((each for each in KINDS if _is_kind(progress.topic, each)), None)
        shown = self.shown[kind]
        if len(shown) < PAIRS_SHOWN_MAX:
            shown.append(progress)
        elif not is_broadcasting:
            self.others[kind] = self.others.get(kind, 0) + progress.lag


KINDS: Final = (None, names.RETRY_PREFIX, names.DLQ_PREFIX)
"""Prefixes of topics whose lags have names of their own; None: of all others."""

LATENCY_SERIES_MAX: Final = 1000
"""Pairs of topic and group whose oldest message is looked up in the log; each may read the disk."""

CLIENTS_SHOWN_MAX: Final = 64
"""Clients of a group whose addresses are in the labels of rocketmq_group_count."""

CLUSTERING: Final = "1"
"""The ordinal of RocketMQ's MessageModel; broadcasting groups have no lag at a broker."""

RUNTIME_KEYS: Final = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "putmessage_entire_time_max": "putMessageEntireTimeMax",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "getmessage_entire_time_max": "getMessageEntireTimeMax",
    "pagecache_lock_time_mills": "pageCacheLockTimeMills",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "dispatch_maxbuffer": "dispatchMaxBuffer",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "pull_threadpoolqueue_headwait_timemills": "pullThreadPoolQueueHeadWaitTimeMills",
    "query_threadpoolqueue_headwait_timemills": "queryThreadPoolQueueHeadWaitTimeMills",
    "send_threadpoolqueue_headwait_timemills": "sendThreadPoolQueueHeadWaitTimeMills",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "commitlog_minoffset": "commitLogMinOffset",
}
"""The name: rocketmq_brokeruntime_, then the key of GET_BROKER_RUNTIME_INFO."""

RATE_KEYS: Final = {
    "getfound": "getFoundTps",
    "gettotal": "getTotalTps",
    "gettransfered": "getTransferedTps",
    "getmiss": "getMissTps",
    "put": "putTps",
}
"""rocketmq_brokeruntime_…_tps10, _tps60 and _tps600, and the key that has all three."""


def exporter_families(parts: Parts, runtime: dict[str, str]) -> Iterator[Family]:
    """Name, kind, help and samples of every name.

    Args:
        parts: of the broker.
        runtime: the table of GET_BROKER_RUNTIME_INFO.
    """
    config = parts.config
    stats = parts.stats
    cluster, name_label = ("cluster", config.broker_cluster_name), ("broker", config.broker_name)
    here = (cluster, name_label)
    this = (cluster, ("brokerIP", str(parts.own.address)), name_label)

    def gauge(name: str, text: str, samples: Iterable[Sample], common: Labels = here) -> Family:
        return Family(f"rocketmq_{name}", "gauge", text, samples, common)

    def by_topic(name: str) -> Iterator[Sample]:
        for topic, item in stats.items(name):
            if not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
                yield (("topic", topic),), round(item.tps, 2)

    def by_group(name: str) -> Iterator[Sample]:
        for key, item in stats.items(name):
            topic, group = split_offset_key(key) or (key, "")
            yield (("topic", topic), ("group", group)), round(item.tps, 2)

    yield gauge("broker_tps", "messages put in a second", [((), stats.broker_put.tps)], this)
    yield gauge("broker_qps", "messages got in a second", [((), stats.broker_get.tps)], this)
    yield gauge("producer_tps", "messages put in a second", by_topic(TOPIC_PUT_NUMS))
    yield gauge("producer_message_size", "bytes put in a second", by_topic(TOPIC_PUT_SIZE))
    for name, prefix in (
        ("producer_offset", None),
        ("topic_retry_offset", names.RETRY_PREFIX),
        ("topic_dlq_offset", names.DLQ_PREFIX),
    ):
        yield gauge(name, "the ends of a topic's queues, summed up", _ends(parts, prefix))
    yield gauge(
        "producer_count",
        "clients of a producer group",
        (((("group", group),), len(clients)) for group, clients in parts.producers),
    )
    yield gauge("consumer_tps", "messages got in a second", by_group(GROUP_GET_NUMS))
    yield gauge("consumer_message_size", "bytes got in a second", by_group(GROUP_GET_SIZE))
    yield gauge("send_back_nums", "messages sent back in a second", by_group(SNDBCK_PUT_NUMS))
    progress = Progresses()
    yield gauge(
        "consumer_offset",
        "what a group has committed, summed up over a topic's queues",
        _offsets(parts, progress),
    )
    yield gauge(
        "group_get_latency_by_storetime",
        "ms since the oldest message was stored that a group has not committed",
        _latencies(parts, progress),
    )
    for name, prefix in zip(("group_diff", "group_retrydiff", "group_dlqdiff"), KINDS, strict=True):
        samples = _diffs(parts, progress, prefix)
        yield gauge(name, "messages that a group has not committed", samples, ())
    yield gauge("group_count", "clients of a group", _counts(parts), ())
    yield from _runtime(parts, runtime)


def _is_kind(topic: str, prefix: str | None) -> bool:
    if prefix is None:
        return not topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX))
    return topic.startswith(prefix)


def _ends(parts: Parts, prefix: str | None) -> Iterator[Sample]:
    table = parts.store.queues.table
    is_dlq = prefix == names.DLQ_PREFIX
    for config in parts.topics:
        topic = config.topic_name or ""
        if not _is_kind(topic, prefix):
            continue
        ends = sum([queue.max_offset for queue in list(table.get(topic, {}).values())])
        if is_dlq:
            yield (("group", topic.removeprefix(names.DLQ_PREFIX)),), ends
        else:
            yield (("topic", topic),), ends


def _offsets(parts: Parts, progress: Progresses) -> Iterator[Sample]:
    """What is committed; also notes down what later names need, so that it is worked out once."""
    table, find = parts.store.queues.table, parts.consumers.get
    for topic, group, offsets in parts.offsets:
        queues = table.get(topic, {})
        lag = consumed = 0
        behind = []
        for queue_id, offset in offsets.items():
            consumed += offset
            queue = queues.get(queue_id)
            if queue is not None and (left := queue.max_offset - offset) > 0:
                lag += left
                behind.append((queue_id, offset))
        members = find(group)
        progress.add(
            Progress(topic, group, consumed, lag, tuple(behind)),
            is_broadcasting=members is not None and members.is_broadcasting,
        )
        yield (("topic", topic), ("group", group)), consumed


def _diffs(parts: Parts, progress: Progresses, prefix: str | None) -> Iterator[Sample]:
    find = parts.consumers.get
    for each in progress.shown[prefix]:
        members = find(each.group)
        if members is not None and members.is_broadcasting:
            continue
        online = 0 if members is None else len(members.clients)
        yield _diff(each.group, each.topic, str(online), CLUSTERING), each.lag
    if prefix in progress.others:
        yield _diff(OTHER, OTHER, OTHER, OTHER), progress.others[prefix]


def _diff(group: str, topic: str, online: str, model: str) -> Labels:
    return (
        ("group", group),
        ("topic", topic),
        ("countOfOnlineConsumers", online),
        ("msgModel", model),
    )


def _latencies(parts: Parts, progress: Progresses) -> Iterator[Sample]:
    store = parts.store
    now_ms = parts.now_ms()
    looked_up = 0
    for each in chain.from_iterable(progress.shown.values()):
        latency = 0
        if each.behind:
            looked_up += 1
            if looked_up > LATENCY_SERIES_MAX:
                continue
            for queue_id, offset in each.behind:
                first = max(offset, store.min_offset_in_queue(each.topic, queue_id))
                stored = store.message_store_timestamp(each.topic, queue_id, first)
                if stored > 0:
                    latency = max(latency, now_ms - stored)
        yield (("topic", each.topic), ("group", each.group)), latency


def _counts(parts: Parts) -> Iterator[Sample]:
    for group in parts.consumers:
        clients = list(group.clients.values())
        shown = clients[:CLIENTS_SHOWN_MAX]
        yield (
            (
                ("caddr", ",".join(str(getattr(each.channel, "remote", "")) for each in shown)),
                ("localaddr", ",".join(each.client_id for each in shown)),
                ("group", group.name),
            ),
            len(clients),
        )


def _runtime(parts: Parts, table: dict[str, str]) -> Iterator[Family]:
    labels = (
        ("cluster", parts.config.broker_cluster_name),
        ("brokerIP", str(parts.own.address)),
        ("brokerHost", ""),
        ("des", table["brokerVersionDesc"]),
        ("boottime", table["bootTimestamp"]),
        ("broker_version", table["brokerVersion"]),
    )

    def gauge(name: str, value: float, text: str) -> Family:
        return Family(f"rocketmq_brokeruntime_{name}", "gauge", text, [((), value)], labels)

    for name, key in RUNTIME_KEYS.items():
        try:
            value = float(table[key])
        except (KeyError, ValueError):
            continue
        yield gauge(name, value, key)
    for name, key in RATE_KEYS.items():
        for window, text in zip(("10", "60", "600"), table[key].split(), strict=False):
            yield gauge(f"{name}_tps{window}", float(text), f"{key} over {window} s")
    disk = commit_log_disk(parts.store)
    yield gauge("commitlogdir_capacity_total", disk.total, "bytes of the CommitLog's disk")
    yield gauge("commitlogdir_capacity_free", disk.free, "free bytes of it")
    store = parts.store
    behind = max(store.max_phy_offset - store.flushed_offset, 0)
    yield gauge("remain_howmanydata_toflush", behind, "bytes that are not on the disk yet")
