"""How the store is read: 354, 355, 2001 to 2004, 5001 and 200056. RocketMQ: AdminBrokerProcessor.

Three of them are about RocksDB, which no store of ours contains. They are answered as RocketMQ
answers them where RocksDB is not in use: there is nothing to compare, to export or to move.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from oberth.errors import ConfigFormatError
from oberth.formats.config_json import encode_config
from oberth.formats.java_numbers import java_long
from oberth.formats.java_properties import parse_properties
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from oberth.broker.broker_config import BrokerConfig
    from oberth.broker.cold_reads import ColdReads
    from oberth.formats.message_store_config import MessageStoreConfig
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore

_LOG: Final = logging.getLogger(__name__)

CHECK_IN_PROGRESS: Final = 2
"""Status of a comparison whose result stands in the log."""

READ_AHEAD: Final = "0"
NO_READ_AHEAD: Final = "1"
"""Modes of SET_COMMITLOG_READ_MODE: the kernel reads ahead, or page by page."""

ENGINE_ROCKSDB: Final = "R"
ENGINE_FILES: Final = "F"
"""Timer engines of SWITCH_TIMER_ENGINE."""

THRESHOLD_MAX: Final = 2**63 - 1


class StoreAdminProcessor:
    """Changes how the store is read, and tells that there is no RocksDB in it."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        store: MessageStore,
        cold_reads: ColdReads,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._store_config = store_config
        self._store = store
        self._cold_reads = cold_reads
        self._now_ms = now_ms

    def compare_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """354: compare consume queues in files with their copy in RocksDB."""
        del channel
        _LOG.info("consume queues have no copy in RocksDB that could differ")
        body = {"checkStatus": CHECK_IN_PROGRESS}
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def export_config(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """355: write tables that are in RocksDB as JSON; ours are JSON."""
        del channel
        return create_response(request, ResponseCode.SUCCESS, "export done.")

    def set_cold_thresholds(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """2001: how much groups may read of old messages; the body has lines ``group=bytes``."""
        try:
            entries = parse_properties(
                request.body_bytes(), name="UPDATE_COLD_DATA_FLOW_CTR_CONFIG"
            )
        except ConfigFormatError:
            return create_response(request, ResponseCode.SYSTEM_ERROR, "string2Properties error")
        for group, text in entries.items():
            threshold = java_long(text.strip(), THRESHOLD_MAX + 1)
            # Below zero is nothing at all, like zero.
            if -THRESHOLD_MAX <= threshold <= THRESHOLD_MAX and (
                self._cold_reads.set_threshold(group, threshold)
            ):
                _LOG.warning(
                    "%s lets group %s read %d cold bytes", channel.remote, group, threshold
                )
            else:
                _LOG.error(
                    "%s sent the threshold %.100r for group %s, which was not taken",
                    channel.remote,
                    text,
                    group,
                )
        return create_response(request, ResponseCode.SUCCESS)

    def remove_cold_threshold(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """2002: a group's own threshold goes; the body is its name."""
        del channel
        if not request.body:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "remove consumerGroup is null"
            )
        self._cold_reads.remove_threshold(request.body_bytes().decode(errors="replace"))
        return create_response(request, ResponseCode.SUCCESS)

    def cold_reads(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """2003: thresholds, and what groups have read of old messages."""
        del channel
        config = self._config
        body = self._cold_reads.to_body(
            config.cg_cold_read_threshold, config.global_cold_read_threshold, self._now_ms()
        )
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def set_read_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """2004: whether the kernel reads the log ahead."""
        mode = (request.ext_fields or {}).get("READ_AHEAD_MODE")
        if mode is None:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode param error"
            )
        if mode not in (READ_AHEAD, NO_READ_AHEAD):
            return create_response(
                request,
                ResponseCode.INVALID_PARAMETER,
                "set commitlog readahead mode param value error",
            )
        self._store.set_read_ahead(mode == READ_AHEAD)
        _LOG.warning("%s set the log's read ahead mode to %s", channel.remote, mode)
        return create_response(
            request,
            ResponseCode.SUCCESS,
            f"set commitlog readahead mode success, mode: {mode}",
        )

    def switch_timer_engine(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """5001: timed messages are kept in files, and nowhere else."""
        config = self._store_config
        engine = (request.ext_fields or {}).get("E_T")
        if not config.timer_wheel_enable:
            why = "broker timerWheelEnable is false"
        elif engine is None:
            why = "param error, extFields is null"
        elif engine == ENGINE_ROCKSDB:
            why = "timerRocksDBEnable must be configured true when broker start"
        elif engine != ENGINE_FILES:
            why = "param error"
        else:
            if config.timer_stop_enqueue:
                config.timer_stop_enqueue = False
                _LOG.warning("%s has timed messages taken in again", channel.remote)
            return create_response(request, ResponseCode.SUCCESS)
        return create_response(request, ResponseCode.INVALID_PARAMETER, why)

    def pop_rollback(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """200056: move check points from RocksDB to files; ours are in files."""
        del channel
        return create_response(request, ResponseCode.SUCCESS)
