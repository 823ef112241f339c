"""Headers of the controller's codes: 1001 to 1005, 1008, 1011 to 1013."""

from __future__ import annotations

from oberth.remoting.headers.base import CommandHeader, Int32, Int64


class AlterSyncStateSetRequestHeader(CommandHeader, kw_only=True):
    """1001; the body is a SyncStateSet."""

    broker_name: str
    master_broker_id: Int64
    master_epoch: Int32
    invoke_time: Int64 | None = None


class AlterSyncStateSetResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1001; its body is the new SyncStateSet."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequestHeader(CommandHeader, kw_only=True):
    """1002; ``broker_id`` -1 or none leaves the choice to the controller."""

    cluster_name: str | None = None
    broker_name: str
    broker_id: Int64 | None = None
    designate_elect: bool | None = None
    invoke_time: Int64 | None = None


class ElectMasterResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1002; its body is an ElectMasterResponseBody."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterBrokerToControllerRequestHeader(CommandHeader, kw_only=True):
    """1003."""

    cluster_name: str
    broker_name: str
    broker_id: Int64
    broker_address: str
    invoke_time: Int64 | None = None


class RegisterBrokerToControllerResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1003; its body is a SyncStateSet. Without a live master there is no id of one."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequestHeader(CommandHeader, kw_only=True):
    """1004."""

    broker_name: str


class GetReplicaInfoResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1004; its body is a SyncStateSet."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1005."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class NotifyBrokerRoleChangedRequestHeader(CommandHeader, kw_only=True):
    """1008, controller to broker, one-way; the body is a SyncStateSet."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class CleanControllerBrokerDataRequestHeader(CommandHeader, kw_only=True):
    """1011; without ``broker_controller_ids_to_clean`` (``1;2``) every replica is meant."""

    cluster_name: str | None = None
    broker_name: str
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 | None = None


class GetNextBrokerIdRequestHeader(CommandHeader, kw_only=True):
    """1012."""

    cluster_name: str
    broker_name: str


class GetNextBrokerIdResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1012."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequestHeader(CommandHeader, kw_only=True):
    """1013; ``register_check_code`` is ``address;milliseconds`` of who applies."""

    cluster_name: str
    broker_name: str
    applied_broker_id: Int64
    register_check_code: str


class ApplyBrokerIdResponseHeader(CommandHeader, kw_only=True):
    """Answer of 1013."""

    cluster_name: str | None = None
    broker_name: str | None = None
