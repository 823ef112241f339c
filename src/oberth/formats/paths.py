"""Names inside a store directory, as text relative to its root.

    commitlog/{20-digit start offset}
    consumequeue/{topic}/{queueId}/{20-digit start byte offset}
    consumequeue_ext/{topic}/{queueId}/…
    batchconsumequeue/{topic}/{queueId}/…
    index/{17 digits: local time yyyyMMddHHmmssSSS of creation}
    checkpoint  abort  lock  config/…  timerwheel  timerlog/…

A topic must have passed ``names.check_topic`` before a path is made of it. RocketMQ:
StorePathConfigHelper, UtilAll.offset2FileName.
"""

from __future__ import annotations

from typing import Final

COMMIT_LOG: Final = "commitlog"
CONSUME_QUEUE: Final = "consumequeue"
CONSUME_QUEUE_EXT: Final = "consumequeue_ext"
BATCH_CONSUME_QUEUE: Final = "batchconsumequeue"
INDEX: Final = "index"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"
CONFIG: Final = "config"
TIMER_WHEEL: Final = "timerwheel"
TIMER_LOG: Final = "timerlog"
# Not RocketMQ's: how far delay levels are delivered, see oberth.broker.delay_progress.
DELAY_PROGRESS: Final = "oberth.delays"
# dledger-{self id}: the log of a broker with enableDLegerCommitLog, in a format of its own.
DLEDGER_PREFIX: Final = "dledger-"

SEGMENT_NAME_LENGTH: Final = 20
_OFFSET_MAX: Final = (1 << 63) - 1
_QUEUE_MAX: Final = (1 << 31) - 1


def segment_name(start_offset: int) -> str:
    """The file name of the segment that starts at a byte offset: 20 digits."""
    return f"{start_offset:020d}"


def segment_start(name: str) -> int | None:
    """The start offset that a segment's name says, or None for a foreign file."""
    if len(name) == SEGMENT_NAME_LENGTH and name.isascii() and name.isdigit():
        start = int(name)
        return start if start <= _OFFSET_MAX else None
    return None


def queue_number(name: str) -> int | None:
    """The queue id that a directory is named after, or None for a foreign one."""
    if not (0 < len(name) <= len(str(_QUEUE_MAX)) and name.isascii() and name.isdigit()):
        return None
    number = int(name)
    return number if number <= _QUEUE_MAX and str(number) == name else None


def is_index_name(name: str) -> bool:
    """Whether RocketMQ would load a file of the index directory: a name of digits."""
    return name.isascii() and name.isdigit()
