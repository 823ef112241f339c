"""Bodies of the controller's codes: 1001 to 1004, 1006, 1007, 1008."""

from __future__ import annotations

import msgspec

from oberth.remoting.bodies.base import Body
from oberth.remoting.bodies.route import BrokerMemberGroup


class SyncStateSet(Body):
    """The replicas that have what the master acknowledged, and how often that set has changed."""

    sync_state_set: list[int] | None = None
    sync_state_set_epoch: int = 0


class ElectMasterResponseBody(Body):
    """Answer of 1002."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[int] | None = None


class ReplicaIdentity(Body):
    """One replica in an answer of 1006."""

    alive: bool | None = None
    broker_address: str = ""
    broker_id: int = 0
    broker_name: str = ""


class ReplicasInfo(Body):
    """The replicas of one broker name in an answer of 1006."""

    in_sync_replicas: list[ReplicaIdentity] = msgspec.field(default_factory=list)
    master_address: str | None = None
    master_broker_id: int | None = None
    master_epoch: int = 0
    not_in_sync_replicas: list[ReplicaIdentity] = msgspec.field(default_factory=list)
    sync_state_set_epoch: int = 0


class BrokerReplicasInfo(Body):
    """Answer of 1006, by broker name."""

    replicas_info_table: dict[str, ReplicasInfo] = msgspec.field(default_factory=dict)


class EpochEntry(Body, kw_only=True):
    """One master's reign in an answer of 1007."""

    end_offset: int = 0
    epoch: int
    start_offset: int


class EpochEntryCache(Body):
    """Answer of 1007: which master wrote which part of a broker's log."""

    epoch_list: list[EpochEntry] = msgspec.field(default_factory=list)
    max_offset: int = 0
