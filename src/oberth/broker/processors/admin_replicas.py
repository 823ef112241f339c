"""Replicas: 906, 907, 908 and 1007. RocketMQ: AdminBrokerProcessor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oberth.formats.config_json import encode_config
from oberth.remoting.code import RequestCode, ResponseCode
from oberth.remoting.command import RemotingCommand, create_response
from oberth.remoting.headers.replication import (
    ExchangeHAInfoRequestHeader,
    ResetMasterFlushOffsetHeader,
)

if TYPE_CHECKING:
    from oberth.broker.broker_controller import Broker
    from oberth.remoting.aio.channel import Channel
    from oberth.remoting.aio.processors import ProcessorTable


class ReplicaAdminProcessor:
    """Shows who replicates whom, and what masters and slaves tell each other."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def register(self, table: ProcessorTable) -> None:
        """Serve the codes of this file."""
        table.sync([RequestCode.EXCHANGE_BROKER_HA_INFO], self.exchange)
        table.sync([RequestCode.GET_BROKER_HA_STATUS], self.status)
        table.sync([RequestCode.RESET_MASTER_FLUSH_OFFSET], self.reset_flush_offset)
        table.sync([RequestCode.GET_BROKER_EPOCH_CACHE], self.epochs)

    def exchange(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """906: a slave asks where the log is, or a master tells it."""
        del channel
        header = request.header(ExchangeHAInfoRequestHeader)
        broker = self._broker
        ha = broker.ha
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
                "masterHaAddress": broker.ha_address,
                "masterFlushOffset": str(broker.store.flushed_offset),
                "masterAddress": str(broker.address),
            },
        )

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """907: how far the slaves are, or how far this slave is."""
        del channel
        return create_response(
            request,
            ResponseCode.SUCCESS,
            body=encode_config(self._broker.ha.to_body(), pretty=False),
        )

    def reset_flush_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """908: what a slave believes its master to have on disk; a master has nothing to reset."""
        del channel
        ha = self._broker.ha
        if ha.is_slave:
            ha.master_flush_offset = request.header(
                ResetMasterFlushOffsetHeader
            ).master_flush_offset
        return create_response(request, ResponseCode.SUCCESS)

    def epochs(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """1007: there is no controller, so there are no epochs."""
        del channel
        return create_response(
            request, ResponseCode.SYSTEM_ERROR, "this request only for controllerMode"
        )
