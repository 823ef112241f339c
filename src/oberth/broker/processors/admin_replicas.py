"""Replicas: 60, 61, 906, 907, 908, 1007, 1008 and our own 29003. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.broker.controlled_ha import ControlledHAService
from oberth.formats.config_files import Metric
from oberth.formats.config_json import Shown, config_in_slices, encode_config
from oberth.remoting.code import ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.replication import (
    ExchangeHAInfoRequestHeader,
    LogChecksumsRequestHeader,
    ResetMasterFlushOffsetHeader,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from oberth.broker.ha_service import HAService
    from oberth.broker.own_address import OwnAddress
    from oberth.broker.timers import TimerService
    from oberth.remoting.aio.channel import Channel
    from oberth.store.message_store import MessageStore


class ReplicaAdminProcessor:
    """Shows who replicates whom, and what masters and slaves tell each other."""

    def __init__(
        self,
        *,
        own: OwnAddress,
        store: MessageStore,
        ha: HAService,
        timers: TimerService | None,
        now_ms: Callable[[], int],
        look_at_members: Callable[[], None],
    ) -> None:
        self._own = own
        self._store = store
        self._ha = ha
        self._timers = timers
        self._now_ms = now_ms
        self._look_at_members = look_at_members

    def timer_checkpoint(
        self, channel: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """60: how far the timer has come; slaves ask every three seconds."""
        if self._timers is None:
            return create_response(request, ResponseCode.SYSTEM_ERROR, "The checkpoint is null")
        body = self._timers.store.checkpoint(self._now_ms()).encode()
        response = create_response(request, ResponseCode.SUCCESS, body=body)
        return self._ha.answer_behind_log(channel, request, response)

    def timer_metrics(
        self, channel: Channel, request: RemotingCommand
    ) -> Generator[None, None, RemotingCommand]:
        """61: timed messages under way, by topic."""
        del channel
        if self._timers is None:
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "The timerMessageStore is null"
            )
        metrics = self._timers.store.metrics(self._now_ms())
        shown = {
            "dataVersion": metrics.data_version.to_json(),
            "timingCount": Shown(metrics.timing_count, Metric.to_json),
        }
        body = yield from config_in_slices(shown)
        return create_response(request, ResponseCode.SUCCESS, body=body)

    def exchange(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """906: a slave asks where the log is, or a master tells it."""
        del channel
        header = request.header(ExchangeHAInfoRequestHeader)
        ha = self._ha
        if header.master_ha_address is not None:
            if ha.is_slave:
                ha.master_found(header.master_address, header.master_ha_address)
                if header.master_flush_offset is not None:
                    ha.master_flush_offset = header.master_flush_offset
            return create_response(request, ResponseCode.SUCCESS)
        if ha.is_slave:
            return create_response(request, ResponseCode.SUCCESS, ext_fields={})
        return create_response(
            request,
            ResponseCode.SUCCESS,
            ext_fields={
                "masterHaAddress": self._own.ha_address,
                "masterFlushOffset": str(self._store.flushed_offset),
                "masterAddress": str(self._own.address),
            },
        )

    def min_id_changed(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """905: somebody says who has the smallest id now. The name servers themselves are asked."""
        del channel
        self._look_at_members()
        return create_response(request, ResponseCode.SUCCESS)

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """907: how far the slaves are, or how far this slave is."""
        del channel
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config(self._ha.to_body(), pretty=False),
        )

    def reset_flush_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """908: what a slave believes its master to have on disk; a master has nothing to reset."""
        del channel
        ha = self._ha
        if ha.is_slave:
            ha.master_flush_offset = request.header(
                ResetMasterFlushOffsetHeader
            ).master_flush_offset
        return create_response(request, ResponseCode.SUCCESS)

    def log_checksums(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29003: checksums of the log's segments, or of ranges of its bytes. Reads the disk."""
        del channel
        header = request.header(LogChecksumsRequestHeader)
        checksums = self._store.checksums
        if header.start is None and header.end is None and header.step is None:
            body = checksums.to_json()
        elif header.start is None or header.end is None or header.step is None:
            return create_response(
                request, ResponseCode.INVALID_PARAMETER, "start, end and step are needed together"
            )
        else:
            try:
                body = {"crcs": checksums.ranges(header.start, header.end, header.step)}
            except ValueError as error:
                return create_response(request, ResponseCode.INVALID_PARAMETER, str(error))
        return create_response(
            request, ResponseCode.SUCCESS, body=encode_config(body, pretty=False)
        )

    def epochs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """1007: which master wrote which part of the log; only under a controller."""
        del channel
        if not isinstance(self._ha, ControlledHAService):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "this request only for controllerMode"
            )
        body = encode_config(self._ha.epochs_body(), pretty=False)
        return create_response(request, ResponseCode.SUCCESS, body=body)

    def role_changed(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """1008: somebody says that there is another master. The controller itself is asked."""
        del channel
        if not isinstance(self._ha, ControlledHAService):
            return create_response(
                request, ResponseCode.SYSTEM_ERROR, "this request only for controllerMode"
            )
        self._ha.look_soon()
        return create_response(request, ResponseCode.SUCCESS)
