"""Headers of transactions: 37, 39, 323."""

from __future__ import annotations

from oberth.remoting.headers.base import CommandHeader, Int32, Int64


class EndTransactionRequestHeader(CommandHeader, kw_only=True):
    """37, normally one-way; ``commit_or_rollback`` is 8, 12 or 0."""

    topic: str | None = None
    producer_group: str
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool | None = None
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(CommandHeader, kw_only=True):
    """39, broker to client, one-way."""

    topic: str | None = None
    tran_state_table_offset: Int64
    commit_log_offset: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(CommandHeader, kw_only=True):
    """323."""

    topic: str | None = None
    msg_id: str | None = None
