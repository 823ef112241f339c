"""Constants that the kernels and their references share and no format module has."""

from __future__ import annotations

from typing import Final

# Names of light message queues begin so; their queue id is always 0.
LMQ_PREFIX: Final = b"%LMQ%"
# Topics whose records are never dispatched to more than one queue, beside the schedule topic.
RETRY_PREFIX: Final = b"%RETRY%"
SYSTEM_PREFIX: Final = b"rmq_sys_"
# How far the next record of a queue is looked for when an ordinal is not the expected one.
LOOK_AHEAD_ROWS: Final = 4096
