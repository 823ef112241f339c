"""RuntimeInfo: what GET_BROKER_RUNTIME_INFO (28) shows, with the figures of every key.

Keys and their spelling are RocketMQ's; ``clusterList`` parses some of them as numbers. A key whose
figure does not exist here (a thread pool's queue that requests never wait in) is 0. RocketMQ:
AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from oberth.broker.stats import TOPIC_PUT_SIZE
from oberth.remoting.code import ANNOUNCED_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from oberth.broker.parts import Parts
    from oberth.remoting.aio.stage import Stage
    from oberth.store.message_store import MessageStore

SAMPLES_MAX: Final = 601
"""One sample a second, for rates over ten minutes."""

_WINDOWS_S: Final = (10, 60, 600)

_PUT_LIMITS_MS: Final = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_PUT_TIMES: Final = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
"""How RocketMQ names them; it counts whole ms, so that 0 is what took less than one."""


class StoreTotals(NamedTuple):
    """What was ever done, at a time.

    Attributes:
        now_ms: when.
        puts: messages stored.
        found: reads of a queue that found a message.
        missed: reads that did not.
        transferred: messages handed to consumers.
    """

    now_ms: int
    puts: int
    found: int
    missed: int
    transferred: int


class StoreRates:
    """How much by the second, of several things. A state machine: totals and the time go in."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[StoreTotals] = deque(maxlen=SAMPLES_MAX)

    def sample(self, totals: StoreTotals) -> None:
        """To be called once a second."""
        self._samples.append(totals)

    def rates(self, *names: str) -> str:
        """Per second over 10 s, 1 min and 10 min: ``1.0 0.5 0.1``; shorter while it is young.

        Args:
            names: of StoreTotals; what they count is added up.
        """
        if len(self._samples) < 2:
            return "0.0 0.0 0.0"
        last = self._samples[-1]
        texts = []
        for window_s in _WINDOWS_S:
            first = self._samples[max(0, len(self._samples) - 1 - window_s)]
            span_ms = last.now_ms - first.now_ms
            count = sum(getattr(last, name) - getattr(first, name) for name in names)
            texts.append(str(count * 1000 / span_ms if span_ms > 0 else 0.0))
        return " ".join(texts)


class RuntimeInfo:
    """How one broker is doing.

    Args:
        parts: of the broker.
        stages: the stages that requests wait in.

    Attributes:
        sources: give further keys.
    """

    def __init__(self, parts: Parts, stages: Callable[[], Sequence[Stage]]) -> None:
        self._parts = parts
        self._stages = stages
        self.sources: list[Callable[[], dict[str, str]]] = []
        self._rates = StoreRates()

    def on_second(self, now_ms: int) -> None:
        """To be called once a second."""
        stats, reader = self._parts.stats, self._parts.store.reader
        puts, transferred = stats.broker_put.value, stats.broker_get.value
        self._rates.sample(
            StoreTotals(now_ms, puts, reader.found_count, reader.missed_count, transferred)
        )

    def table(self) -> dict[str, str]:
        """The table of 28."""
        stages = {stage.name: stage for stage in self._stages()}
        table = _runtime_info(self._parts, self._rates, stages)
        for source in self.sources:
            table.update(source())
        return table


def _runtime_info(parts: Parts, rates: StoreRates, stages: dict[str, Stage]) -> dict[str, str]:
    store = parts.store
    stats = parts.stats
    now_ms = parts.now_ms()
    log_path = _log_path(store)
    disk = _disk(log_path)
    queue_disk = _disk(store.root)
    append_times = store.commit_log.append_times
    puts, put_bytes = stats.broker_put.value, stats.total(TOPIC_PUT_SIZE)
    info = {
        "bootTimestamp": str(parts.started_at_ms),
        "brokerActive": "true",
        "brokerVersion": str(int(ANNOUNCED_VERSION)),
        "brokerVersionDesc": ANNOUNCED_VERSION.name,
        "commitLogDirCapacity": f"Total : {_size(disk.total)}, Free : {_size(disk.free)}.",
        "commitLogDiskRatio": str(_ratio(disk)),
        f"commitLogDiskRatio_{log_path}": str(_ratio(disk)),
        "commitLogMaxOffset": str(store.max_phy_offset),
        "commitLogMinOffset": str(store.min_phy_offset),
        "consumeQueueDiskRatio": str(_ratio(queue_disk)),
        "dispatchBehindBytes": str(store.dispatch_behind_bytes),
        "dispatchMaxBuffer": "0",
        "earliestMessageTimeStamp": str(store.earliest_message_time_in_store),
        "getFoundTps": rates.rates("found"),
        "getMessageEntireTimeMax": str(store.reader.get_times.longest_ms),
        "getMissTps": rates.rates("missed"),
        "getTotalTps": rates.rates("found", "missed"),
        "getTransferedTps": rates.rates("transferred"),
        "getTransferredTps": rates.rates("transferred"),
        "msgGetTotalTodayMorning": str(stats.get_today_morning),
        "msgGetTotalTodayNow": str(stats.broker_get.value),
        "msgGetTotalYesterdayMorning": str(stats.get_yesterday_morning),
        "msgPutTotalTodayMorning": str(stats.put_today_morning),
        "msgPutTotalTodayNow": str(puts),
        "msgPutTotalYesterdayMorning": str(stats.put_yesterday_morning),
        "logSummedTo": str(store.checksums.position),
        "hasFailedSyncs": str(store.has_failed_syncs).lower(),
        "pageCacheLockTimeMills": str(int(store.commit_log.lock_time_ms())),
        "putMessageAverageSize": str(put_bytes / puts if puts else 0.0),
        "putMessageDistributeTime": " ".join(
            f"[{name}]:{count}"
            for name, count in zip(_PUT_TIMES, append_times.counts(_PUT_LIMITS_MS), strict=True)
        ),
        "putLatency99": f"{append_times.percentile_ms(0.99):.2f}",
        "putLatency999": f"{append_times.percentile_ms(0.999):.2f}",
        "putMessageEntireTimeMax": str(append_times.longest_ms),
        "putMessageFailedTimes": "0",
        "putMessageSizeTotal": str(put_bytes),
        "putMessageTimesTotal": str(puts),
        "putTps": rates.rates("puts"),
        "remainHowManyDataToFlush": _size(store.max_phy_offset - store.flushed_offset),
        "remainTransientStoreBufferNumbs": str(2**31 - 1),
        "runtime": _duration(now_ms - parts.started_at_ms),
        "startAcceptSendRequestTimeStamp": str(parts.config.start_accept_send_request_timestamp),
        "timerCongestNum": "0",
        "timerDequeueTps": "0.0",
        "timerEnqueueTps": "0.0",
        "timerOffsetBehind": "0",
        "timerReadBehind": "0",
    }
    for level in range(1, parts.schedule.level_max + 1):
        offset, end = parts.schedule.behind(level)
        if end:
            info[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    for stage in ("send", "pull", "litePull", "query", "ack"):
        found = stages.get(stage)
        info[f"{stage}ThreadPoolQueueSize"] = str(found.queue_size if found else 0)
        info[f"{stage}ThreadPoolQueueHeadWaitTimeMills"] = str(
            int(found.head_wait_ms()) if found else 0
        )
        info[f"{stage}ThreadPoolQueueCapacity"] = str(found.queue_max if found else 0)
    info["EndTransactionQueueSize"] = "0"
    info["EndTransactionThreadPoolQueueCapacity"] = "0"
    return info


def commit_log_disk(store: MessageStore) -> Disk:
    """Bytes of the disk that the CommitLog's first directory lies on; zeros if it cannot say."""
    return _disk(_log_path(store))


def _log_path(store: MessageStore) -> str:
    path = store.config.commit_log_paths[0] if store.config.commit_log_paths else store.root
    return os.path.expanduser(path.replace("{root}", store.root))


class Disk:
    """Bytes of a disk."""

    __slots__ = ("free", "total", "used")

    def __init__(self, total: int, used: int, free: int) -> None:
        self.total = total
        self.used = used
        self.free = free


def _disk(path: str) -> Disk:
    try:
        usage = shutil.disk_usage(path.split(",")[0])
    except OSError:
        return Disk(0, 0, 0)
    return Disk(usage.total, usage.used, usage.free)


def _ratio(disk: Disk) -> float:
    """As cleaning counts it; see `DiskUsage`."""
    usable = disk.used + disk.free
    return disk.used / usable if usable else 0.0


def _size(count: int) -> str:
    value = float(max(count, 0))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{int(value)} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def _duration(span_ms: int) -> str:
    seconds = max(span_ms, 0) // 1000
    return (
        f"[ {seconds // 86_400} days, {seconds // 3600 % 24} hours, "
        f"{seconds // 60 % 60} minutes, {seconds % 60} seconds ]"
    )
