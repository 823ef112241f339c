"""Bits of a record's sysFlag. RocketMQ: MessageSysFlag.

    bit    mask    meaning
    0      0x0001  body compressed
    1      0x0002  several tags (legacy)
    2-3    0x000C  transaction type: 0x0 none, 0x4 prepared, 0x8 commit, 0xC rollback
    4      0x0010  born host is IPv6
    5      0x0020  store host is IPv6
    6      0x0040  body holds several messages which the client splits
    7      0x0080  inner batch
    8-10   0x0700  compression: 0x000 zlib (legacy), 0x100 LZ4, 0x200 ZSTD, 0x300 zlib

The broker sets bits 4 and 5 from the addresses it stores; what a client says there is not trusted.
Plain integers, not an IntFlag: the bits are tested for every message.
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x0001
MULTI_TAGS: Final = 0x0002
TRANSACTION_NOT: Final = 0x0000
TRANSACTION_PREPARED: Final = 0x0004
TRANSACTION_COMMIT: Final = 0x0008
TRANSACTION_ROLLBACK: Final = 0x000C
TRANSACTION_MASK: Final = 0x000C
BORN_HOST_V6: Final = 0x0010
STORE_HOST_V6: Final = 0x0020
NEED_UNWRAP: Final = 0x0040
INNER_BATCH: Final = 0x0080
COMPRESSION_LZ4: Final = 0x0100
COMPRESSION_ZSTD: Final = 0x0200
COMPRESSION_ZLIB: Final = 0x0300
COMPRESSION_MASK: Final = 0x0700


def with_transaction_type(sys_flag: int, transaction: int) -> int:
    """The flag with its transaction bits replaced. RocketMQ: ``resetTransactionValue``."""
    return (sys_flag & ~TRANSACTION_MASK) | transaction
