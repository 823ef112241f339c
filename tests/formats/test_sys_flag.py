"""sysFlag: the bits are RocketMQ's, and changing the transaction type touches no other bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oberth.formats import sys_flag as flags


def test_bits() -> None:
    assert (flags.COMPRESSED, flags.MULTI_TAGS) == (1, 2)
    assert (flags.TRANSACTION_PREPARED, flags.TRANSACTION_COMMIT, flags.TRANSACTION_ROLLBACK) == (
        4, 8, 12,
    )  # fmt: skip
    assert (flags.BORN_HOST_V6, flags.STORE_HOST_V6) == (16, 32)
    assert (flags.NEED_UNWRAP, flags.INNER_BATCH) == (64, 128)
    assert (flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD, flags.COMPRESSION_ZLIB) == (
        0x100, 0x200, 0x300,
    )  # fmt: skip


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, 4, 8, 12]))
def test_transaction_type(sys_flag: int, transaction: int) -> None:
    changed = flags.with_transaction_type(sys_flag, transaction)
    assert changed & flags.TRANSACTION_MASK == transaction
    assert changed & ~flags.TRANSACTION_MASK == sys_flag & ~flags.TRANSACTION_MASK
