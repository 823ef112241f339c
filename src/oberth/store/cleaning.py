"""Deletes expired segments and keeps the disk from filling up.

A run deletes when the hour is one of ``deleteWhen``, when the disk is too full, or when somebody
asked for it. It takes whole segments from the oldest on, never the last; queues and index follow
the log's new beginning. Three levels of the disk matter, in percent used: ``diskMaxUsedSpaceRatio``
starts cleaning of expired segments, ``diskSpaceCleanForciblyRatio`` deletes young ones too, and
``diskSpaceWarningLevelRatio`` stops puts until there is room again.

A disk may be full to its last block. Segments whose units and entries are on the disk already are
deleted without writing anything before; only what goes beyond them wants a checkpoint first.

RocketMQ: CleanCommitLogService, CleanConsumeQueueService.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from oberth.errors import StoreError
from oberth.formats.message_store_config import MessageStoreConfig
from oberth.store.commit_log import CommitLog
from oberth.store.consume_queue_store import ConsumeQueueStore
from oberth.store.disk_reserve import DiskReserve
from oberth.store.files import FileSystem, is_full
from oberth.store.index_service import IndexService
from oberth.store.mapped_file import MappedFile
from oberth.store.retention import HOUR_MS, Retention
from oberth.store.running_flags import RunningFlag, RunningFlags

_LOG: Final = logging.getLogger(__name__)
# A request by hand is good for this many runs, as in RocketMQ.
MANUAL_RUNS: Final = 20


def clamp(value: float, low: float, high: float) -> float:
    """The value within its bounds."""
    return min(max(value, low), high)


class CleanService:
    """One run at a time, from the maintenance thread or by hand."""

    def __init__(
        self,
        config: MessageStoreConfig,
        files: FileSystem,
        log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        flags: RunningFlags,
        queue_directory: str,
        clock_ms: Callable[[], int],
        checkpoint: Callable[[], None],
        durable_offset: Callable[[], int],
        reserve: DiskReserve,
        retention: Retention,
    ) -> None:
        self._config = config
        self._files = files
        self._commit_log = log
        self._queues = queues
        self._index = index
        self._flags = flags
        self._queue_directory = queue_directory
        self._clock_ms = clock_ms
        self._checkpoint = checkpoint
        self._durable_offset = durable_offset
        self._reserve = reserve
        self._retention = retention
        self._manual_runs = 0
        self._clean_immediately = False
        self._last_min_offset = 0
        self._last_redelete = 0.0

    def request(self) -> None:
        """Asks for deletion of expired segments whatever the hour."""
        self._manual_runs = MANUAL_RUNS

    @property
    def full_directories(self) -> frozenset[str]:
        """CommitLog directories beyond the forced-clean level: no new segments there."""
        limit = self._forced_ratio
        return frozenset(
            directory
            for directory in self._commit_log.queue.directories
            if self._files.disk_usage(directory).ratio > limit
        )

    @property
    def _warning_ratio(self) -> float:
        return clamp(self._config.disk_space_warning_level_ratio, 35, 90) / 100

    @property
    def _forced_ratio(self) -> float:
        return clamp(self._config.disk_space_clean_forcibly_ratio, 30, 85) / 100

    @property
    def _used_ratio(self) -> float:
        return clamp(self._config.disk_max_used_space_ratio, 10, 95) / 100

    def disk_ratios(self) -> tuple[float, float]:
        """Used part of the CommitLog's disk (the emptiest of several) and of the queues'."""
        log = min(
            (self._files.disk_usage(d).ratio for d in self._commit_log.queue.directories),
            default=0.0,
        )
        return log, self._files.disk_usage(self._queue_directory).ratio

    def check_disk(self) -> bool:
        """Sets or clears the disk-full flag; True if the disk's level asks for deletion."""
        self._clean_immediately = False
        wanted = False
        for ratio in self.disk_ratios():
            if ratio > self._warning_ratio:
                if self._flags.set(RunningFlag.DISK_FULL):
                    _LOG.error(
                        "the disk is %.0f %% full, the store takes no more messages", ratio * 100
                    )
                self._clean_immediately = True
                return True
            if ratio > self._forced_ratio:
                self._clean_immediately = True
                return True
            if self._flags.clear(RunningFlag.DISK_FULL):
                _LOG.warning(
                    "the disk is %.0f %% full, the store takes messages again", ratio * 100
                )
            wanted = wanted or ratio > self._used_ratio
        return wanted

    def is_time_to_delete(self) -> bool:
        """Whether the local hour is one of deleteWhen."""
        hour = time.strftime("%H", time.localtime(self._clock_ms() / 1000))
        return hour in [part.strip().zfill(2) for part in self._config.delete_when.split(";")]

    def run(self) -> int:
        """One run; returns how many CommitLog segments were deleted."""
        by_disk = self.check_disk()
        by_time = self.is_time_to_delete()
        manual = self._manual_runs > 0
        deleted = 0
        try:
            self._retention.expire()
        except (OSError, StoreError) as error:
            if isinstance(error, OSError) and not is_full(error):
                raise
            _LOG.error(
                "messages beyond their reserve.time could not be hidden, they stay readable: %s",
                error,
            )
        if by_disk or by_time or manual:
            if manual:
                self._manual_runs -= 1
            deleted = self._delete("disk" if by_disk else "time" if by_time else "by hand")
        self._retry_first()
        self._follow_log()
        if not self._clean_immediately:
            self._reserve.take()
        return deleted

    def force(self) -> int:
        """Deletes segments if the disk is too full, nothing else; how many: during a start."""
        self.check_disk()
        deleted = self._delete("disk") if self._forces else 0
        if deleted:
            self._follow_log()
        return deleted

    def _delete(self, why: str) -> int:
        config = self._config
        leaving = self.leaving()
        limit = leaving[-1].end_offset if leaving else 0
        if limit > self._durable_offset():
            limit = self._checkpoint_before(limit)
        if self._forces:
            self._warn_of_kept()
        deleted = self._commit_log.queue.delete_expired_by_time(
            config.file_reserved_time_hours * HOUR_MS,
            config.delete_commit_log_files_interval_ms,
            config.destroy_mapped_file_interval_forcibly_ms,
            clean_immediately=self._forces,
            batch_max=config.delete_file_batch_max,
            now_ms=self._clock_ms(),
            keep_from=None if self._forces else self._retention.keep_from(),
            limit=limit,
        )
        if deleted:
            _LOG.info(
                "deleted %d CommitLog segments (%s), the log begins at %d",
                deleted,
                why,
                self._commit_log.min_offset,
            )
        return deleted

    def _checkpoint_before(self, limit: int) -> int:
        """Makes queues and index durable up to an offset; up to where they are.

        A queue's last units must be on the disk before the records they count are gone: after a
        crash nothing else would say where the queue had got to.
        """
        try:
            self._checkpoint()
        except (OSError, StoreError) as error:
            if isinstance(error, OSError) and not is_full(error):
                raise
            _LOG.error(
                "the check point could not be written before segments are deleted: %s", error
            )
        return min(limit, self._durable_offset())

    @property
    def _forces(self) -> bool:
        """Whether young segments go too, because the disk is too full."""
        return self._clean_immediately and self._config.clean_file_forcibly_enable

    def _warn_of_kept(self) -> None:
        """Says whose messages go although something keeps them."""
        segments = self._commit_log.queue.segments
        if len(segments) < 2:
            return
        held, lake = self._retention.held(), self._retention.awaited_lake()
        if held is not None and segments[0].end_offset > held.commit_log_offset:
            _LOG.error(
                "the disk is too full: messages from %d on are deleted although reserve.time of "
                "topic %s keeps them", held.commit_log_offset, held.topic,
            )  # fmt: skip
        if lake is not None and segments[0].end_offset > lake.position:
            _LOG.error(
                "the disk is too full: messages from %d on are deleted although the lake %s does "
                "not have them", max(lake.position, segments[0].start_offset), lake.lake,
            )  # fmt: skip

    def _retry_first(self) -> None:
        interval_s = self._config.redelete_hanged_file_interval_ms / 1000
        now = time.monotonic()
        if now - self._last_redelete >= interval_s:
            self._last_redelete = now
            self._commit_log.queue.retry_delete_first(
                self._config.destroy_mapped_file_interval_forcibly_ms
            )

    def _follow_log(self) -> None:
        """Queues and index lose what the log has lost."""
        low = self._commit_log.min_offset
        if low > self._last_min_offset:
            # Files go first: what is written of floors may find no room before.
            if self._index is not None:
                self._index.delete_expired(low)
            self._retention.follow_log(low)
            self._last_min_offset = low

    def leaving(self) -> list[MappedFile]:
        """The segments that the next run would delete, if the hour or the disk asks for one."""
        now = self._clock_ms()
        expired = self._config.file_reserved_time_hours * HOUR_MS
        keep_from = None if self._forces else self._retention.keep_from()
        found: list[MappedFile] = []
        for segment in self._commit_log.queue.segments[:-1]:
            if not self._forces and (
                now - segment.modified_time_ms() < expired
                or (keep_from is not None and segment.end_offset > keep_from)
            ):
                break
            found.append(segment)
        return found[: self._config.delete_file_batch_max]

    def due(self) -> str | None:
        """Why a run now would delete segments: disk, time or hand; None: it would not."""
        limit = min(self._used_ratio, self._forced_ratio, self._warning_ratio)
        if any(ratio > limit for ratio in self.disk_ratios()):
            return "disk"
        if self.is_time_to_delete():
            return "time"
        return "hand" if self._manual_runs else None
