"""Constants that the kernels and their references share and no format module has."""

from __future__ import annotations

# Names of light message queues begin so; their queue id is always 0.
LMQ_PREFIX = b"%LMQ%"
# Topics whose records are never dispatched to more than one queue, beside the schedule topic.
RETRY_PREFIX = b"%RETRY%"
SYSTEM_PREFIX = b"rmq_sys_"
# How far the next record of a queue is looked for when an ordinal is not the expected one.
LOOK_AHEAD_ROWS = 4096
