"""Metrics: what the broker has counted, in Prometheus' text form, by RocketMQ 5's names.

    rocketmq_messages_in_total, rocketmq_throughput_in_total     by topic
    rocketmq_messages_out_total, rocketmq_throughput_out_total   by topic and group
    rocketmq_send_to_dlq_messages_total                          by topic and group
    rocketmq_consumer_lag_messages                               by topic and group
    rocketmq_consumer_connections                                by group
    rocketmq_producer_connections, _topic_number, _consumer_group_number, _broker_permission
    rocketmq_processor_watermark                                 by stage
    rocketmq_storage_size, _flush_behind_bytes, _dispatch_behind_bytes, _message_reserve_time
    oberth_storage_disk_free_bytes, oberth_storage_writable, oberth_storage_check_points
    oberth_storage_lake_behind_bytes                             with retentionWaitsForLake

Every line also has cluster, node_type and node_id. Of one name there are at most SERIES_MAX lines;
what is above is summed up in one line whose topic and group are ``(other)``, so the sum over a name
is always whole. Lines are made in steps, and between them the loop is free for others.
On request the names are those of RocketMQ's exporter instead: `oberth.broker.exporter_metrics`.
RocketMQ: BrokerMetricsManager, DefaultStoreMetricsConstant.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from oberth.broker.exporter_metrics import OTHER, Family, Labels, Sample, exporter_families
from oberth.broker.stats import (
    DLQ_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from oberth.formats import names
from oberth.formats.config_files import split_offset_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oberth.broker.parts import Parts
    from oberth.broker.runtime_info import RuntimeInfo
    from oberth.remoting.aio.stage import Stage

SERIES_MAX: Final = 20_000
"""Lines of one name."""

STEP_LINES: Final = 50
"""Lines after which the loop serves others."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

NATIVE: Final = "native"
EXPORTER: Final = "exporter"
STYLES: Final = (NATIVE, EXPORTER)

_Native = tuple[str, str, str, Iterable[Sample]]
"""Name, kind, text and samples of a family."""


def escape(value: str) -> str:
    """A label's value, as the text form wants it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class _Quoted(dict[str, str]):
    """Labels' values in quotes; most of them come again under other names."""

    def __missing__(self, value: str) -> str:
        text = self[value] = f'"{escape(value)}"'
        return text


MoreMetrics = Callable[[], Iterable[tuple[str, str, str, Iterable[Sample]]]]
"""Gives name, kind, text and samples of what stands beside the broker."""


class Metrics:
    """Shows one broker."""

    def __init__(
        self,
        parts: Parts,
        runtime_info: RuntimeInfo,
        stages: Callable[[], Sequence[Stage]],
        more: Sequence[MoreMetrics] = (),
        series_max: int = SERIES_MAX,
    ) -> None:
        self._parts = parts
        self._runtime_info = runtime_info
        self._stages = stages
        self._more = more
        self._series_max = series_max

    async def render(self, style: str = NATIVE) -> bytearray:
        """All figures. The bytes grow with each step: joining megabytes at the end takes long.

        Args:
            style: NATIVE, or EXPORTER for the names and labels of rocketmq-exporter.
        """
        families = (
            self._families()
            if style == NATIVE
            else exporter_families(self._parts, self._runtime_info.table())
        )
        done = bytearray()
        lines: list[str] = []
        quoted = _Quoted()
        for family in families:
            name = family.name
            lines.append(f"# HELP {name} {family.text}")
            lines.append(f"# TYPE {name} {family.kind}")
            common = ",".join([f"{label}={quoted[text]}" for label, text in family.common])
            front = f"{name}{{{common}"
            comma = "," if common else ""
            other_value: float = 0
            other_labels: Labels | None = None
            for count, (labels, value) in enumerate(family.samples, 1):
                if count > self._series_max:
                    other_labels = labels
                    other_value += value
                else:
                    more = ",".join([f"{label}={quoted[text]}" for label, text in labels])
                    lines.append(f"{front}{comma if more else ''}{more}}} {value}")
                if count % STEP_LINES == 0:
                    _move(lines, done)
                    await asyncio.sleep(0)
            if other_labels is not None:
                more = ",".join([f'{label}="{OTHER}"' for label, _ in other_labels])
                lines.append(f"{front}{comma}{more}}} {other_value}")
            _move(lines, done)
            await asyncio.sleep(0)
        return done

    def _families(self) -> Iterator[Family]:
        config = self._parts.config
        node = (
            ("cluster", config.broker_cluster_name),
            ("node_type", "broker"),
            ("node_id", config.broker_name),
        )
        for name, kind, text, samples in self._native():
            yield Family(name, kind, text, samples, node)
        for more in self._more:
            for name, kind, text, samples in more():
                yield Family(name, kind, text, samples, node)

    def _native(self) -> Iterator[_Native]:
        yield from self._of_messages()
        yield from self._of_clients()
        yield from self._of_store()

    def _of_messages(self) -> Iterator[_Native]:
        for name, text, key in (
            ("rocketmq_messages_in_total", "messages that producers sent", TOPIC_PUT_NUMS),
            ("rocketmq_throughput_in_total", "bytes of their records", TOPIC_PUT_SIZE),
        ):
            yield name, "counter", text, self._by_topic(key)
        for name, text, key in (
            ("rocketmq_messages_out_total", "messages that groups got", GROUP_GET_NUMS),
            ("rocketmq_throughput_out_total", "bytes of their records", GROUP_GET_SIZE),
            ("rocketmq_send_to_dlq_messages_total", "messages that became dead", DLQ_PUT_NUMS),
        ):
            yield name, "counter", text, self._by_topic_and_group(key)
        yield (
            "rocketmq_consumer_lag_messages",
            "gauge",
            "messages that a group has not committed",
            self._lags(),
        )

    def _of_clients(self) -> Iterator[_Native]:
        parts = self._parts
        yield (
            "rocketmq_consumer_connections",
            "gauge",
            "clients of a group",
            (((("consumer_group", group.name),), len(group.clients)) for group in parts.consumers),
        )
        yield (
            "rocketmq_producer_connections",
            "gauge",
            "producers, counted by group",
            _one(parts.producers.connection_count),
        )
        yield "rocketmq_topic_number", "gauge", "topics", _one(len(parts.topics))
        yield "rocketmq_consumer_group_number", "gauge", "groups", _one(len(parts.groups))
        yield (
            "rocketmq_broker_permission",
            "gauge",
            "4 read + 2 write",
            _one(parts.config.broker_permission),
        )
        yield (
            "rocketmq_processor_watermark",
            "gauge",
            "requests that wait in a stage",
            [((("processor", stage.name),), stage.queue_size) for stage in self._stages()],
        )

    def _of_store(self) -> Iterator[_Native]:
        parts = self._parts
        store = parts.store
        size = store.max_phy_offset - max(store.min_phy_offset, 0)
        yield "rocketmq_storage_size", "gauge", "bytes of the log", _one(size)
        yield (
            "rocketmq_storage_flush_behind_bytes",
            "gauge",
            "bytes that are not on the disk yet",
            _one(max(store.max_phy_offset - store.flushed_offset, 0)),
        )
        yield (
            "rocketmq_storage_dispatch_behind_bytes",
            "gauge",
            "bytes that are not readable yet",
            _one(store.dispatch_behind_bytes),
        )
        earliest = store.earliest_message_time_in_store
        yield (
            "rocketmq_storage_message_reserve_time",
            "gauge",
            "ms since the earliest message",
            _one(max(parts.now_ms() - earliest, 0) if earliest > 0 else 0),
        )
        yield (
            "oberth_storage_disk_free_bytes",
            "gauge",
            "free bytes of the store's disk",
            _one(shutil.disk_usage(store.root).free),
        )
        lake = store.retention.awaited_lake()
        if lake is not None:
            has = max(lake.position, store.min_phy_offset, 0)
            yield (
                "oberth_storage_lake_behind_bytes",
                "gauge",
                "bytes of the log that the lake does not have yet",
                [((("lake", lake.lake),), max(store.max_phy_offset - has, 0))],
            )
        yield (
            "oberth_storage_writable",
            "gauge",
            "1 while messages are taken",
            _one(int(store.flags.is_writeable)),
        )
        yield (
            "oberth_storage_check_points",
            "gauge",
            "0 after a failed sync: none is written until a restart",
            _one(int(not store.has_failed_syncs)),
        )

    def _by_topic(self, name: str) -> Iterator[Sample]:
        for topic, value in self._parts.stats.values(name):
            yield (("topic", topic), ("is_system", _bool(names.is_system_topic(topic)))), value

    def _by_topic_and_group(self, name: str) -> Iterator[Sample]:
        for key, value in self._parts.stats.values(name):
            topic, group = split_offset_key(key) or (key, "")
            yield (("topic", topic), ("consumer_group", group)), value

    def _lags(self) -> Iterator[Sample]:
        store = self._parts.store
        for topic, group, queues in self._parts.offsets:
            lag = sum(
                max(store.max_offset_in_queue(topic, queue_id) - offset, 0)
                for queue_id, offset in queues.items()
            )
            yield (("topic", topic), ("consumer_group", group)), lag


def _move(lines: list[str], done: bytearray) -> None:
    """Make bytes of lines."""
    if lines:
        lines.append("")
        done += "\n".join(lines).encode()
        lines.clear()


def _one(value: float) -> list[Sample]:
    return [((), value)]


def _bool(value: bool) -> str:
    return "true" if value else "false"
