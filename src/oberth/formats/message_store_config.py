"""The options of a store: RocketMQ's MessageStoreConfig under Python names, with units.

Defaults are those of the 5.x line. `MessageStoreConfig.line` says whose ways a store follows where
the two lines differ in what they write or answer: typed index keys, the content of abort, look-up
by time, the limit of a topic's length, BatchConsumeQueue and version 2 records.

RocketMQ: org.apache.rocketmq.store.config.MessageStoreConfig. Keys that tune only what Oberth has
no part like (RocksDB, page tables, thread pools, DLedger) are in KEYS_WITHOUT_EFFECT: they are
known, they are kept, and they change nothing.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Self

from oberth.errors import OptionError
from oberth.formats.delay_level import DEFAULT_DELAY_LEVELS
from oberth.formats.options import (
    INT64_MAX,
    Line,
    check_options,
    format_options,
    naming_places,
    option,
    options_of,
    read_options,
)


class FlushDiskType(enum.StrEnum):
    """When a put is acknowledged: after a sync of the disk, or before."""

    SYNC_FLUSH = "SYNC_FLUSH"
    ASYNC_FLUSH = "ASYNC_FLUSH"


class BrokerRole(enum.StrEnum):
    """What a broker is to its replicas."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class Dispatch(enum.StrEnum):
    """Who builds queues and index from the CommitLog."""

    BROKER = "broker"
    SPARK = "spark"


class StoreType(enum.StrEnum):
    """Where consume queues live. RocketMQ also knows defaultRocksDB, which is refused."""

    DEFAULT = "default"


DEFAULT_ROOT: Final = "~/store"
"""Java's default, user home + /store; who opens the store expands the tilde."""


@dataclass(slots=True, kw_only=True)
class MessageStoreConfig:
    """Every option that the store reads. Mutable: a broker changes some while it runs.

    Paths may hold ``{root}``, which stands for store_path_root_dir; `from_properties` resolves it.
    """

    line: Line = option(
        "rocketmqLine", Line.V5, "whose ways to follow: 5.x or 4.9 (Oberth's own key)"
    )
    dispatch: Dispatch = option(
        "dispatch",
        Dispatch.BROKER,
        "who builds queues and index: broker, or spark for a query of "
        "`oberth spark dispatch --follow` (Oberth's own key)",
    )
    extra: dict[str, str] = dataclasses.field(default_factory=dict)

    # Where things lie
    store_path_root_dir: str = option(
        "storePathRootDir", DEFAULT_ROOT, "root directory of the store"
    )
    store_path_commit_log: str | None = option(
        "storePathCommitLog", None, "directories of the CommitLog, joined by ','; {root}/commitlog"
    )
    read_only_commit_log_store_paths: str | None = option(
        "readOnlyCommitLogStorePaths", None, "CommitLog directories that take no new segments"
    )
    store_type: StoreType = option(
        "storeType", StoreType.DEFAULT, "kind of ConsumeQueue", line=Line.V5
    )

    # Sizes of files
    mapped_file_size_commit_log: int = option(
        "mappedFileSizeCommitLog", 1 << 30, "bytes of a CommitLog segment", low=1024
    )
    mapped_file_size_consume_queue: int = option(
        "mappedFileSizeConsumeQueue", 6_000_000, "bytes; rounded up to whole units of 20", low=20
    )
    enable_consume_queue_ext: bool = option(
        "enableConsumeQueueExt", False, "write ConsumeQueueExt, which keeps tags and filter bitmaps"
    )
    mapped_file_size_consume_queue_ext: int = option(
        "mappedFileSizeConsumeQueueExt", 50_331_648, "bytes of a ConsumeQueueExt segment", low=24
    )
    mapped_file_size_batch_consume_queue: int = option(
        "mapperFileSizeBatchConsumeQueue", 13_800_000, "bytes of a BatchConsumeQueue segment",
        low=46, line=Line.V5,
    )  # fmt: skip
    mapped_file_size_timer_log: int = option(
        "mappedFileSizeTimerLog", 104_857_600, "bytes of a timer log segment", low=68, line=Line.V5
    )
    max_hash_slot_num: int = option("maxHashSlotNum", 5_000_000, "slots of an index file", low=1)
    max_index_num: int = option("maxIndexNum", 20_000_000, "entries of an index file", low=2)

    # Flush and commit
    flush_disk_type: FlushDiskType = option(
        "flushDiskType", FlushDiskType.ASYNC_FLUSH, "whether a put waits for a sync"
    )
    flush_interval_commit_log_ms: int = option(
        "flushIntervalCommitLog", 500, "ms between two flushes of the CommitLog"
    )
    flush_commit_log_timed: bool = option(
        "flushCommitLogTimed", True, "a put does not cut the interval short"
    )
    flush_commit_log_least_pages: int = option(
        "flushCommitLogLeastPages", 4, "4 KiB pages that make a flush worth it"
    )
    flush_commit_log_thorough_interval_ms: int = option(
        "flushCommitLogThoroughInterval", 10_000, "ms after which every dirty byte is flushed"
    )
    commit_interval_commit_log_ms: int = option(
        "commitIntervalCommitLog", 200, "ms between commits of the transient pool"
    )
    commit_commit_log_least_pages: int = option(
        "commitCommitLogLeastPages", 4, "4 KiB pages that make a commit worth it"
    )
    commit_commit_log_thorough_interval_ms: int = option(
        "commitCommitLogThoroughInterval", 200, "ms after which every byte is committed"
    )
    wake_commit_when_put_message: bool = option(
        "wakeCommitWhenPutMessage", True, "a put wakes the commit thread", line=Line.V5
    )
    wake_flush_when_put_message: bool = option(
        "wakeFlushWhenPutMessage", False, "a put wakes the flush thread", line=Line.V5
    )
    sync_flush_timeout_ms: int = option(
        "syncFlushTimeout", 5000, "ms that a put waits for its sync", low=1
    )
    transient_store_pool_enable: bool = option(
        "transientStorePoolEnable", False, "append to memory first, commit to the file later"
    )
    transient_store_pool_size: int = option(
        "transientStorePoolSize", 5, "buffers of a segment's size", low=1
    )
    warm_mapped_file_enable: bool = option(
        "warmMapedFileEnable", False, "touch new segments' pages"
    )
    flush_least_pages_when_warm_mapped_file: int = option(
        "flushLeastPagesWhenWarmMapedFile", 4096, "pages between syncs of a warm-up", low=1
    )

    # Limits of what is stored
    max_message_size: int = option(
        "maxMessageSize", 4_194_304, "bytes that a message's body may have", low=10
    )
    auto_message_version_on_topic_len: bool = option(
        "autoMessageVersionOnTopicLen", True, "version 2 records for topics over 127", line=Line.V5
    )
    enabled_append_prop_crc: bool = option(
        "enabledAppendPropCRC", False, "whole-record CRC in the properties", line=Line.V5
    )
    enable_lmq: bool = option("enableLmq", False, "serve light message queues")
    enable_multi_dispatch: bool = option("enableMultiDispatch", False, "one record, several queues")
    max_lmq_consume_queue_num: int = option(
        "maxLmqConsumeQueueNum", 20_000, "light message queues a store may have"
    )

    # Recovery and dispatch
    check_crc_on_recover: bool = option("checkCRCOnRecover", True, "recovery checks body CRCs")
    read_uncommitted: bool = option(
        "readUnCommitted", False, "consumers see what is not flushed yet", line=Line.V5
    )
    message_index_enable: bool = option("messageIndexEnable", True, "keep an index of keys")

    # Reading
    max_filter_message_size: int = option(
        "maxFilterMessageSize", 16_000, "bytes of ConsumeQueue that one get examines", line=Line.V5
    )
    travel_cq_file_num_when_get_message: int = option(
        "travelCqFileNumWhenGetMessage", 1, "ConsumeQueue segments that one get visits",
        low=1, line=Line.V5,
    )  # fmt: skip
    max_transfer_bytes_on_message_in_memory: int = option(
        "maxTransferBytesOnMessageInMemory", 262_144, "bytes of one get, young messages"
    )
    max_transfer_count_on_message_in_memory: int = option(
        "maxTransferCountOnMessageInMemory", 32, "messages of one get, young messages", low=1
    )
    max_transfer_bytes_on_message_in_disk: int = option(
        "maxTransferBytesOnMessageInDisk", 65_536, "bytes of one get, old messages"
    )
    max_transfer_count_on_message_in_disk: int = option(
        "maxTransferCountOnMessageInDisk", 8, "messages of one get, old messages", low=1
    )
    access_message_in_memory_max_ratio: int = option(
        "accessMessageInMemoryMaxRatio", 40, "percent of memory that counts as young", high=100
    )
    cold_data_flow_control_enable: bool = option(
        "coldDataFlowControlEnable",
        False,
        "groups that read much of what is no longer young wait for their turn",
        line=Line.V5,
    )
    data_read_ahead_enable: bool = option(
        "dataReadAheadEnable",
        True,
        "the kernel reads the log ahead; without, every page is read by itself",
        line=Line.V5,
    )
    max_msgs_num_batch: int = option(
        "maxMsgsNumBatch", 64, "messages that one query by key returns"
    )
    default_query_max_num: int = option("defaultQueryMaxNum", 32, "messages of a plain query")
    offset_check_in_slave: bool = option("offsetCheckInSlave", False, "a slave corrects offsets")

    # Cleaning
    clean_resource_interval_ms: int = option(
        "cleanResourceInterval", 10_000, "ms between two runs of the cleaning", low=1
    )
    delete_commit_log_files_interval_ms: int = option(
        "deleteCommitLogFilesInterval", 100, "ms between two deletions"
    )
    delete_consume_queue_files_interval_ms: int = option(
        "deleteConsumeQueueFilesInterval", 100, "ms after each queue that lost files"
    )
    destroy_mapped_file_interval_forcibly_ms: int = option(
        "destroyMapedFileIntervalForcibly", 120_000, "ms until a file in use is unmapped"
    )
    redelete_hanged_file_interval_ms: int = option(
        "redeleteHangedFileInterval", 120_000, "ms between attempts on a file in use"
    )
    delete_when: str = option("deleteWhen", "04", "local hours to clean at, joined by ';'")
    file_reserved_time_hours: int = option("fileReservedTime", 72, "hours a segment is kept")
    delete_file_batch_max: int = option(
        "deleteFileBatchMax", 10, "segments one run deletes", low=1, line=Line.V5
    )
    disk_max_used_space_ratio: int = option(
        "diskMaxUsedSpaceRatio", 75, "percent of the disk that starts cleaning; 10…95 in use"
    )
    disk_space_warning_level_ratio: int = option(
        "diskSpaceWarningLevelRatio", 90, "percent that stops writing; 35…90 in use", line=Line.V5
    )
    disk_space_clean_forcibly_ratio: int = option(
        "diskSpaceCleanForciblyRatio", 85, "percent that deletes young segments; 30…85 in use",
        line=Line.V5,
    )  # fmt: skip
    clean_file_forcibly_enable: bool = option(
        "cleanFileForciblyEnable", True, "a full disk deletes young segments"
    )
    retention_waits_for_lake: str = option(
        "retentionWaitsForLake",
        "",
        "directories or URLs of exports, with commas: segments that one of them does not have "
        "stay, unless the disk is too full (Oberth's own key)",
    )

    # Replication
    broker_role: BrokerRole = option(
        "brokerRole", BrokerRole.ASYNC_MASTER, "ASYNC_MASTER, SYNC_MASTER or SLAVE"
    )
    ha_listen_port: int = option(
        "haListenPort", 10_912, "port at which slaves fetch the log", high=65_535
    )
    ha_master_address: str | None = option("haMasterAddress", None, "host:port of the master")
    ha_send_heartbeat_interval_ms: int = option("haSendHeartbeatInterval", 5000, "ms", low=1)
    ha_housekeeping_interval_ms: int = option("haHousekeepingInterval", 20_000, "ms", low=1)
    ha_transfer_batch_size: int = option(
        "haTransferBatchSize", 32_768, "bytes of log in one frame", low=1
    )
    ha_max_gap_not_in_sync: int = option(
        "haMaxGapNotInSync", 268_435_456, "bytes a replica may lag and count as in sync",
        aliases=("haSlaveFallbehindMax",),
    )  # fmt: skip
    slave_timeout_ms: int = option("slaveTimeout", 3000, "ms that a put waits for replicas", low=1)
    total_replicas: int = option(
        "totalReplicas",
        1,
        "brokers of this name; with enableSlaveActingMaster one of several asks the others before "
        "it goes online",
        line=Line.V5,
    )
    in_sync_replicas: int = option(
        "inSyncReplicas", 1, "replicas, master included, that must have a put", line=Line.V5
    )
    min_in_sync_replicas: int = option(
        "minInSyncReplicas",
        1,
        "a SYNC_MASTER refuses puts while fewer replicas, master included, are in sync; Apache "
        "only with enableSlaveActingMaster or a controller",
        line=Line.V5,
    )
    enable_auto_in_sync_replicas: bool = option(
        "enableAutoInSyncReplicas",
        False,
        "wait for the replicas that are in sync, at most inSyncReplicas and at least "
        "minInSyncReplicas",
        line=Line.V5,
    )
    all_ack_in_sync_state_set: bool = option(
        "allAckInSyncStateSet",
        False,
        "under a controller: a put waits for every replica in sync; inSyncReplicas above 1 has it "
        "wait for them, too, where Apache waits for any so many",
        line=Line.V5,
    )
    ha_max_time_slave_not_catchup_ms: int = option(
        "haMaxTimeSlaveNotCatchup",
        15_000,
        "under a controller: ms that a replica may lag and stay in sync",
        line=Line.V5,
    )
    async_learner: bool = option(
        "asyncLearner", False, "under a controller: this replica never counts as in sync",
        line=Line.V5,
    )  # fmt: skip
    store_path_epoch_file: str | None = option(
        "storePathEpochFile", None, "under a controller: which master wrote what; empty: in the "
        "store's root",
        line=Line.V5,
    )  # fmt: skip
    store_path_broker_identity: str | None = option(
        "storePathBrokerIdentity", None, "under a controller: this replica's id; empty: in the "
        "store's root",
        line=Line.V5,
    )  # fmt: skip
    sync_from_last_file: bool = option(
        "syncFromLastFile", False, "an empty replica copies only the last segment", line=Line.V5
    )

    # Delayed and timed messages
    message_delay_level: str = option(
        "messageDelayLevel", DEFAULT_DELAY_LEVELS, "delays of level 1 and up; units s, m, h, d"
    )
    flush_delay_offset_interval_ms: int = option(
        "flushDelayOffsetInterval", 10_000, "ms between writes of delayOffset.json", low=1
    )
    timer_wheel_enable: bool = option(
        "timerWheelEnable", True, "take and deliver timed messages", line=Line.V5
    )
    timer_precision_ms: int = option(
        "timerPrecisionMs",
        1000,
        "ms that a slot of the timer wheel stands for",
        low=1,
        line=Line.V5,
    )
    timer_roll_window_slot: int = option(
        "timerRollWindowSlot", 172_800, "slots ahead that a unit is kept; then it rolls",
        low=2, line=Line.V5,
    )  # fmt: skip
    timer_max_delay_sec: int = option(
        "timerMaxDelaySec", 259_200, "seconds a message may be delayed", low=1, line=Line.V5
    )
    timer_flush_interval_ms: int = option(
        "timerFlushIntervalMs",
        1000,
        "ms between two flushes of the timer's files",
        low=1,
        line=Line.V5,
    )
    timer_congest_num_each_slot: int = option(
        "timerCongestNumEachSlot",
        0x7FFFFFFF,
        "messages that one slot of the timer wheel takes",
        line=Line.V5,
    )
    timer_stop_enqueue: bool = option(
        "timerStopEnqueue", False, "take no timed messages into the timer wheel", line=Line.V5
    )
    timer_stop_dequeue: bool = option(
        "timerStopDequeue", False, "deliver no timed messages", line=Line.V5
    )
    append_topic_for_timer_delete_key: bool = option(
        "appendTopicForTimerDeleteKey", False, "a delete key is topic+key", line=Line.V5
    )

    # Compaction
    enable_compaction: bool = option(
        "enableCompaction", True, "serve compaction topics", line=Line.V5
    )
    compaction_mapped_file_size: int = option(
        "compactionMappedFileSize",
        104_857_600,
        "bytes of a segment of compacted messages",
        low=1024,
        line=Line.V5,
    )
    compaction_cq_mapped_file_size: int = option(
        "compactionCqMappedFileSize",
        10_485_760,
        "bytes of a segment of their queues",
        low=46,
        line=Line.V5,
    )
    compaction_schedule_interval_ms: int = option(
        "compactionScheduleInternal", 900_000, "ms between two compactions", low=1, line=Line.V5
    )

    # Threads and locks
    os_page_cache_busy_timeout_ms: int = option(
        "osPageCacheBusyTimeOutMills", 1000, "ms a put may hold the log", high=INT64_MAX
    )

    @classmethod
    def from_properties(
        cls,
        entries: Mapping[str, str],
        *,
        also_known: Collection[str] = (),
        strict: bool = False,
    ) -> Self:
        """Make the options of a store from broker.conf's entries.

        Args:
            entries: Java names and their values; ``{root}`` in a value stands for storePathRootDir.
            also_known: keys of the broker and its servers, which are no error here.
            strict: whether an unknown key is an error.

        Raises:
            OptionError: a value that does not parse, is out of range, or asks for what is not
                built (RocksDB queues, DLedger); when strict, an unknown key, with the nearest one.
        """
        for key, refused in _REFUSED.items():
            if entries.get(key, "").strip() in refused:
                with naming_places(entries):
                    raise OptionError(f"{key}: {entries[key].strip()} is not supported")
        root = entries.get("storePathRootDir", DEFAULT_ROOT).strip()
        config = read_options(
            cls,
            {
                key: text.replace("{root}", root) if "{root}" in text else text
                for key, text in entries.items()
            },
            also_known={*also_known, *KEYS_WITHOUT_EFFECT},
            strict=strict,
        )
        config.extra = {key: str(entries[key]) for key in entries if key in KEYS_WITHOUT_EFFECT}
        return config

    def to_properties(self) -> dict[str, str]:
        """Every key that Java's line knows, with its value as text, those without effect last."""
        own = format_options(self)
        del own["rocketmqLine"], own["dispatch"]
        return {**own, **KEYS_WITHOUT_EFFECT, **self.extra}

    def check(self) -> None:
        """Compare every value with its range, for an object made in Python.

        Raises:
            OptionError: the first that is outside.
        """
        check_options(self)

    @property
    def commit_log_paths(self) -> tuple[str, ...]:
        """The CommitLog's directories that take new segments, as configured."""
        return _split_paths(self.store_path_commit_log) or (
            f"{self.store_path_root_dir}/commitlog",
        )

    @property
    def read_only_commit_log_paths(self) -> tuple[str, ...]:
        """The CommitLog's directories that are only read."""
        return _split_paths(self.read_only_commit_log_store_paths)

    @property
    def consume_queue_file_size(self) -> int:
        """mapped_file_size_consume_queue, rounded up to whole units of 20 bytes."""
        return -(-self.mapped_file_size_consume_queue // 20) * 20

    @property
    def batch_consume_queue_file_size(self) -> int:
        """mapped_file_size_batch_consume_queue, rounded up to whole units of 46 bytes."""
        return -(-self.mapped_file_size_batch_consume_queue // 46) * 46


def _split_paths(text: str | None) -> tuple[str, ...]:
    return tuple(part for raw in (text or "").split(",") if (part := raw.strip()))


_REFUSED: Final[dict[str, tuple[str, ...]]] = {
    "storeType": ("defaultRocksDB", "combine"),
    "enableDLegerCommitLog": ("true",),
    "timerRocksDBEnable": ("true",),
    "transRocksDBEnable": ("true",),
    "indexRocksDBEnable": ("true",),
    "rocksdbCQDoubleWriteEnable": ("true",),
}

KEYS_WITHOUT_EFFECT: Final[dict[str, str]] = {
    "bitMapLengthConsumeQueueExt": "64",
    "flushIntervalConsumeQueue": "1000",
    "flushConsumeQueueLeastPages": "2",
    "flushConsumeQueueThoroughInterval": "60000",
    "fastFailIfNoBufferInStorePool": "false",
    "maxTopicLength": "127",
    "forceVerifyPropCRC": "false",
    "duplicationEnable": "false",
    "recheckReputOffsetFromCq": "false",
    "messageIndexSafe": "false",
    "pullBatchMaxMessageCount": "160",
    "replicasPerDiskPartition": "1",
    "logicalDiskSpaceCleanForciblyThreshold": "0.8",
    "correctLogicMinOffsetForceInterval": "300000",
    "correctLogicMinOffsetSleepInterval": "1",
    "diskFallRecorded": "true",
    "haFlowControlEnable": "false",
    "maxHaTransferByteInSecond": "104857600",
    "enableScheduleAsyncDeliver": "false",
    "scheduleAsyncDeliverMaxPendingLimit": "2000",
    "scheduleAsyncDeliverMaxResendNum2Blocked": "3",
    "timerEnableRetryUntilSuccess": "false",
    "timerSkipUnknownError": "false",
    "timerCheckMetricsWhen": "05",
    "topicQueueLockNum": "32",
    "debugLockEnable": "false",
    "storePathDLedgerCommitLog": "",
    "maxOffsetMapSize": "104857600",
    "compactionThreadNum": "6",
    "timerGetMessageThreadNum": "3",
    "timerPutMessageThreadNum": "3",
    "timerEnableDisruptor": "false",
    "timerEnableCheckMetrics": "true",
    "timerInterceptDelayLevel": "false",
    "timerWheelSnapshotFlush": "false",
    "disappearTimeAfterStart": "-1",
    "timerWarmEnable": "false",
    "timerMetricSmallThreshold": "1000000",
    "timerProgressLogIntervalMs": "10000",
    "timerWheelSnapshotIntervalMs": "10000",
    "commitLogRecoverMaxNum": "10",
    "timerRocksDBEnable": "false",
    "timerRocksDBStopScan": "false",
    "timerRocksDBPrecisionMs": "1000",
    "timerRocksDBRollMaxTps": "8000.0",
    "timerRocksDBTimeExpiredMaxTps": "200000.0",
    "timerRocksDBRollIntervalHours": "1",
    "timerRocksDBRollRangeHours": "2",
    "timerRecallToTimeWheelEnable": "true",
    "timerRecallToTimelineEnable": "true",
    "timerReputServiceCorePoolSize": "6",
    "timerReputServiceMaxPoolSize": "6",
    "timerReputServiceQueueCapacity": "10000",
    "transRocksDBEnable": "false",
    "transWriteOriginTransHalfEnable": "true",
    "indexRocksDBEnable": "false",
    "maxRocksDBIndexQueryDays": "7",
    "indexFileWriteEnable": "true",
    "indexFileReadEnable": "true",
    "iteratorWhenUseRocksdbConsumeQueue": "true",
    "maxRecoveryCommitlogFiles": "30",
    "useReentrantLockWhenPutMessage": "true",
    "putMsgIndexHightWater": "600000",
    "checkCommitLogOffsetOnRecover": "false",
    "putMessageTimeout": "8000",
    "writeWithoutMmap": "false",
    "enableDLegerCommitLog": "false",
    "dLegerGroup": "",
    "dLegerPeers": "",
    "dLegerSelfId": "",
    "preferredLeaderId": "",
    "enableBatchPush": "false",
    "enableScheduleMessageStats": "true",
    "enableLmqQuota": "false",
    "maxBatchDeleteFilesNum": "50",
    "dispatchCqThreads": "10",
    "dispatchCqCacheNum": "4096",
    "enableAsyncReput": "true",
    "enableRunningFlagsInFlush": "false",
    "mappedFileSwapEnable": "true",
    "commitLogForceSwapMapInterval": "43200000",
    "commitLogSwapMapInterval": "3600000",
    "commitLogSwapMapReserveFileNum": "100",
    "logicQueueForceSwapMapInterval": "43200000",
    "logicQueueSwapMapInterval": "3600000",
    "cleanSwapedMapInterval": "300000",
    "logicQueueSwapMapReserveFileNum": "20",
    "searchBcqByCacheEnable": "true",
    "dispatchFromSenderThread": "false",
    "enableCleanExpiredOffset": "false",
    "maxAsyncPutMessageRequests": "5000",
    "syncMasterFlushOffsetWhenStartup": "false",
    "maxChecksumRange": "1073741824",
    "maxSlaveResendLength": "268435456",
    "maxConsumeQueueScan": "20000",
    "sampleCountThreshold": "5000",
    "coldDataScanEnable": "false",
    "timerColdDataCheckIntervalMs": "60000",
    "sampleSteps": "32",
    "accessMessageInMemoryHotRatio": "26",
    "enableBuildConsumeQueueConcurrently": "false",
    "batchDispatchRequestThreadPoolNums": "16",
    "cleanRocksDBDirtyCQIntervalMin": "60",
    "statRocksDBCQIntervalSec": "10",
    "memTableFlushIntervalMs": "3600000",
    "realTimePersistRocksDBConfig": "true",
    "enableRocksDBLog": "false",
    "putConsumeQueueDataByFileChannel": "true",
    "rocksdbCQDoubleWriteEnable": "false",
    "combineCQLoadingCQTypes": "default;defaultRocksDB",
    "combineCQPreferCQType": "default",
    "combineAssignOffsetCQType": "default",
    "combineCQEnableCheckSelf": "false",
    "combineCQMaxExtraSearchCommitLogFiles": "3",
    "combineCQUseRocksdbForLmq": "false",
    "bottomMostCompressionTypeForConsumeQueueStore": "zstd",
    "rocksdbCompressionType": "lz4",
    "rocksdbFlushWalFrequency": "1024",
    "rocksdbWalFileRollingThreshold": "1073741824",
    "enableAcceleratedRecovery": "false",
    "sharedByteBufferNum": "16",
    "useSeparateStorePathForRocksdbCQ": "false",
    "spinLockCollisionRetreatOptimalDegree": "1000",
    "useABSLock": "false",
    "enableLogConsumeQueueRepeatedlyBuildWhenRecover": "false",
}
"""Keys of 4.9.7 and 5.5.0 that change nothing here, with Java's defaults ("" for null)."""

OPTIONS: Final = options_of(MessageStoreConfig)
"""The table: one `Option` for each key, in the order of the class."""
