"""Headers between brokers: 902, 903, 906, 908, 29003."""

from __future__ import annotations

from oberth.remoting.headers.base import CommandHeader, Int64


class ExchangeHAInfoRequestHeader(CommandHeader, kw_only=True):
    """906."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ExchangeHAInfoResponseHeader(CommandHeader, kw_only=True):
    """Answer of 906."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffsetHeader(CommandHeader, kw_only=True):
    """908."""

    master_flush_offset: Int64


class AddBrokerRequestHeader(CommandHeader, kw_only=True):
    """902, broker container."""

    config_path: str | None = None


class RemoveBrokerRequestHeader(CommandHeader, kw_only=True):
    """903, broker container."""

    broker_name: str
    broker_cluster_name: str
    broker_id: Int64


class LogChecksumsRequestHeader(CommandHeader, kw_only=True):
    """29003, Oberth's own: all three for CRCs of ranges, or none for those of the segments."""

    start: Int64 | None = None
    end: Int64 | None = None
    step: Int64 | None = None
