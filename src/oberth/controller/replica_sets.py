"""ReplicaSets: each broker name's replicas, its master, and who has all acknowledged messages.

A pure machine: each request gives an answer and, where something changes, the new value of one
broker name. Nothing changes before `ReplicaSets.apply` is called, so that the change can be on the
disk first. Who is alive is asked through a callable.

    epoch of the master     one more at each election; brokers with a smaller one are refused
    epoch of the sync set   one more at each change of the sync set, elections included

RocketMQ: ``ReplicasInfoManager``, ``DefaultElectPolicy``, ``BrokerReplicaInfo``, ``SyncStateInfo``.
Its codes and remarks are kept; the limits are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from oberth.remoting.bodies.base import Body
from oberth.remoting.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
)
from oberth.remoting.bodies.route import BrokerMemberGroup
from oberth.remoting.code import ResponseCode as Code
from oberth.remoting.headers import controller as headers
from oberth.remoting.headers.base import CommandHeader

FIRST_ID: Final = 1
"""Of the replica that comes first; 0 is what clients call the master, whichever it is."""

BY_CONTROLLER: Final = -1
"""The id in an election that no broker asks for."""

SETS_MAX: Final = 1000
ID_MAX: Final = 2**31 - 1
"""Of a replica. An id near the end of 64 bits would leave none for those that come later."""
REPLICAS_MAX: Final = 32
"""Of one broker name. A look at every replica of every name takes some 10 ms."""
TEXT_SIZE_MAX: Final = 255
"""Characters of a name, an address or a check code."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica: where it listens, and the code that proves that an id is its own."""

    address: str
    check_code: str


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """Everything about one broker name.

    Attributes:
        cluster: of the broker.
        replicas: by id.
        next_id: the id that nobody has had.
        master: its id; None: it died and no replica may follow it, or none was ever elected.
        in_sync: ids of those that have every acknowledged byte, the master among them.
    """

    cluster: str
    replicas: Mapping[int, Replica] = field(default_factory=dict)
    next_id: int = FIRST_ID
    master: int | None = None
    master_epoch: int = 0
    in_sync: frozenset[int] = frozenset()
    in_sync_epoch: int = 0

    @property
    def master_address(self) -> str | None:
        """Where the master listens; None without one."""
        found = None if self.master is None else self.replicas.get(self.master)
        return None if found is None else found.address

    def sync_state(self) -> SyncStateSet:
        """The sync set as it goes over the wire."""
        return SyncStateSet(
            sync_state_set=sorted(self.in_sync), sync_state_set_epoch=self.in_sync_epoch
        )


class LiveInfo(NamedTuple):
    """The state that a replica reported in its last heartbeat."""

    epoch: int
    max_offset: int
    priority: int


class Decision(NamedTuple):
    """An answer, and the new value of a broker name where there is one.

    Attributes:
        code: SUCCESS or why not.
        remark: in words.
        header: of the answer.
        body: of the answer.
        name: of the broker that changes; empty: nothing does.
        value: the new value; None: the key is removed.
        is_election: a new master was chosen, and the brokers are to be told.
    """

    code: int = Code.SUCCESS
    remark: str | None = None
    header: CommandHeader | None = None
    body: Body | None = None
    name: str = ""
    value: ReplicaSet | None = None
    is_election: bool = False


IsAlive = Callable[[str, str, int], bool]
"""Whether a replica (cluster, broker name, id) has been heard of in time."""

LiveInfoOf = Callable[[str, str, int], LiveInfo | None]


class ReplicaSets:
    """The sets by broker name.

    Args:
        is_alive: tells who was heard of in time.
        live_info: gives the state that a live replica reported last.
        elects_unclean: where no live replica is in sync, one that is not may become master; what
            only the others had is lost then.
    """

    def __init__(
        self, is_alive: IsAlive, live_info: LiveInfoOf, *, elects_unclean: bool = False
    ) -> None:
        self.sets: dict[str, ReplicaSet] = {}
        self.elects_unclean = elects_unclean
        self._is_alive = is_alive
        self._live_info = live_info

    def apply(self, name: str, value: ReplicaSet | None) -> None:
        """Make a change that was decided, or read from the log."""
        if value is None:
            self.sets.pop(name, None)
        else:
            self.sets[name] = value

    # Ids and addresses

    def next_id(self, request: headers.GetNextBrokerIdRequestHeader) -> Decision:
        """1012: an id that is free; it is not taken by this."""
        found = self.sets.get(request.broker_name)
        header = headers.GetNextBrokerIdResponseHeader(
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            next_broker_id=FIRST_ID if found is None else found.next_id,
        )
        return Decision(header=header)

    def apply_id(self, request: headers.ApplyBrokerIdRequestHeader) -> Decision:
        """1013: take an id, or say again that it is one's own."""
        name, wanted, check = (
            request.broker_name,
            request.applied_broker_id,
            request.register_check_code,
        )
        header = headers.ApplyBrokerIdResponseHeader(
            cluster_name=request.cluster_name, broker_name=name
        )
        found = self.sets.get(name)
        refused = self._check_text(request.cluster_name, name, check)
        if refused is None and found is None:
            if wanted != FIRST_ID:
                refused = (
                    f"Broker-set: {name} hasn't been registered in controller, but broker try to "
                    f"apply brokerId: {wanted}"
                )
            elif len(self.sets) >= SETS_MAX:
                refused = f"{len(self.sets)} broker names are known, allowed {SETS_MAX}"
        elif refused is None and found is not None:
            own = found.replicas.get(wanted)
            if not FIRST_ID <= wanted <= ID_MAX or (own is not None and own.check_code != check):
                refused = f"Fail to apply brokerId: {wanted} in broker-set: {name}"
            elif own is not None:
                return Decision(header=header)
            elif len(found.replicas) >= REPLICAS_MAX:
                refused = (
                    f"{name} has {len(found.replicas)} replicas, allowed {REPLICAS_MAX}; "
                    "cleanBrokerMetadata forgets those that are gone"
                )
        if refused is not None:
            return Decision(Code.CONTROLLER_BROKER_ID_INVALID, refused, header)
        found = found or ReplicaSet(request.cluster_name)
        replica = Replica(check.partition(";")[0], check)
        return Decision(
            header=header,
            name=name,
            value=replace(
                found,
                replicas={**found.replicas, wanted: replica},
                next_id=max(found.next_id, wanted + 1),
            ),
        )

    def register(self, request: headers.RegisterBrokerToControllerRequestHeader) -> Decision:
        """1003: a replica says where it listens, and hears who the live master is."""
        name, number, address = request.broker_name, request.broker_id, request.broker_address
        header = headers.RegisterBrokerToControllerResponseHeader(
            cluster_name=request.cluster_name, broker_name=name
        )
        found = self.sets.get(name)
        if found is None:
            return Decision(
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"Broker-set: {name} hasn't been registered in controller",
                header,
            )
        own = found.replicas.get(number)
        if own is None:
            return Decision(
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                f"BrokerId: {number} hasn't been registered in broker-set: {name}",
                header,
            )
        refused = self._check_text(address)
        if refused is not None:
            return Decision(Code.CONTROLLER_INVALID_REQUEST, refused, header)
        changed = own.address != address
        if changed:
            moved = {**found.replicas, number: replace(own, address=address)}
            found = replace(found, replicas=moved)
        if found.master is not None and self._is_alive(found.cluster, name, found.master):
            header.master_broker_id = found.master
            header.master_address = found.master_address
            header.master_epoch = found.master_epoch
            header.sync_state_set_epoch = found.in_sync_epoch
        answer = Decision(header=header, body=found.sync_state())
        return answer._replace(name=name, value=found) if changed else answer

    # Who is master, and who is in sync

    def alter_sync_set(
        self, request: headers.AlterSyncStateSetRequestHeader, wanted: SyncStateSet
    ) -> Decision:
        """1001: the master says who is in sync."""
        name = request.broker_name
        header = headers.AlterSyncStateSetResponseHeader()
        found = self.sets.get(name)
        new = frozenset(wanted.sync_state_set or ())
        if found is None:
            refused = Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
            return Decision(refused, "Broker metadata is not existed", header)
        why_not = self._why_not_in_sync(found, request, wanted.sync_state_set_epoch, new)
        if why_not is not None:
            return Decision(*why_not, header)
        value = replace(found, in_sync=new, in_sync_epoch=found.in_sync_epoch + 1)
        header.new_sync_state_set_epoch = value.in_sync_epoch
        return Decision(header=header, body=value.sync_state(), name=name, value=value)

    def _why_not_in_sync(
        self,
        found: ReplicaSet,
        request: headers.AlterSyncStateSetRequestHeader,
        epoch: int,
        new: frozenset[int],
    ) -> tuple[Code, str] | None:
        reject = "Rejecting alter syncStateSet request because the"
        if new == found.in_sync:
            return Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, (
                "The newSyncStateSet is equal with oldSyncStateSet, "
                "no needed to update syncStateSet"
            )
        if request.master_broker_id != found.master:
            return Code.CONTROLLER_INVALID_MASTER, (
                f"{reject} current leader is:{{{found.master}}}, not {{{request.master_broker_id}}}"
            )
        if request.master_epoch != found.master_epoch:
            return Code.CONTROLLER_FENCED_MASTER_EPOCH, (
                f"{reject} current master epoch is:{{{found.master_epoch}}}, not "
                f"{{{request.master_epoch}}}"
            )
        if epoch != found.in_sync_epoch:
            return Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH, (
                f"{reject} current syncStateSet epoch is:{{{found.in_sync_epoch}}}, not {{{epoch}}}"
            )
        for number in sorted(new):
            if number not in found.replicas:
                return Code.CONTROLLER_INVALID_REPLICAS, (
                    f"{reject} replicas {{{number}}} don't exist"
                )
            if not self._is_alive(found.cluster, request.broker_name, number):
                return Code.CONTROLLER_BROKER_NOT_ALIVE, (
                    f"{reject} replicas {{{number}}} don't alive"
                )
        if found.master not in new:
            return Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, (
                f"{reject} newSyncStateSet don't contains origin leader {{{found.master}}}"
            )
        return None

    def elect(self, request: headers.ElectMasterRequestHeader) -> Decision:
        """1002: choose a master; a live one stays, unless another is designated."""
        name = request.broker_name
        asked = BY_CONTROLLER if request.broker_id is None else request.broker_id
        header = headers.ElectMasterResponseHeader()
        found = self.sets.get(name)
        if found is None or (asked != BY_CONTROLLER and asked not in found.replicas):
            return Decision(
                Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
                "Broker hasn't been registered" if found is None
                else f"BrokerId: {asked} hasn't been registered in broker-set: {name}",
                header,
            )  # fmt: skip
        newest = self._newest_epoch(found, name)
        chosen = None
        if not found.master_epoch and asked != BY_CONTROLLER:
            chosen = asked  # the first master of all: nobody has anything yet
        elif newest > found.master_epoch and not self.elects_unclean:
            return Decision(
                Code.CONTROLLER_ELECT_MASTER_FAILED,
                f"a replica of {name} has epoch {newest}, and this controller knows up to "
                f"{found.master_epoch}: its file is older than the brokers, so who is in sync is "
                "not known; with enableElectUncleanMaster the one with the most is elected",
                header,
            )
        if chosen is None:
            chosen = self._choose(found, name, asked if request.designate_elect else None)
        if chosen is None:
            if asked != BY_CONTROLLER:
                text = "Failed to elect a new master"
                return Decision(Code.CONTROLLER_ELECT_MASTER_FAILED, text, header)
            text = "Old master has down and failed to elect a new broker master"
            answer = Decision(Code.CONTROLLER_MASTER_NOT_AVAILABLE, text, header)
            if found.master is None:
                return answer
            return answer._replace(name=name, value=replace(found, master=None))
        is_new = chosen != found.master
        value = found
        if is_new:
            value = replace(
                found,
                master=chosen,
                master_epoch=max(found.master_epoch, newest if found.master_epoch else 0) + 1,
                in_sync=frozenset((chosen,)),
                in_sync_epoch=found.in_sync_epoch + 1,
            )
        header.master_broker_id = chosen
        header.master_address = value.master_address
        header.master_epoch = value.master_epoch
        header.sync_state_set_epoch = value.in_sync_epoch
        body = ElectMasterResponseBody(sync_state_set=sorted(value.in_sync))
        if not is_new:
            return Decision(
                Code.CONTROLLER_MASTER_STILL_EXIST,
                f"The old master {chosen} is still alive, not need to elect new master for broker "
                f"{name}",
                header,
                body,
            )
        body.broker_member_group = self.member_group(name, value)
        return Decision(header=header, body=body, name=name, value=value, is_election=True)

    def _choose(self, found: ReplicaSet, name: str, preferred: int | None) -> int | None:
        is_known = self._newest_epoch(found, name) <= found.master_epoch
        candidates = [found.in_sync] if is_known else []
        if self.elects_unclean:
            candidates.append(frozenset(found.replicas))
        for ids in candidates:
            live = [each for each in sorted(ids) if self._is_alive(found.cluster, name, each)]
            if preferred is not None:
                if preferred in live:
                    return preferred
            elif found.master in live and is_known:
                return found.master
            elif live:
                return min(live, key=lambda each: self._rank(found.cluster, name, each))
        return None

    def _newest_epoch(self, found: ReplicaSet, name: str) -> int:
        """The newest epoch that a live replica says it has.

        It is above that of the set only if the file is an older copy.
        """
        infos = (self._live_info(found.cluster, name, number) for number in found.replicas)
        return max((info.epoch for info in infos if info is not None), default=0)

    def _rank(self, cluster: str, name: str, number: int) -> tuple[int, int, int, int]:
        info = self._live_info(cluster, name, number)
        if info is None:
            return (0, 0, 0, number)
        return (-info.epoch, -info.max_offset, info.priority, number)

    # Questions

    def replica_info(self, request: headers.GetReplicaInfoRequestHeader) -> Decision:
        """1004: the master and the sync set of one broker name."""
        found = self.sets.get(request.broker_name)
        header = headers.GetReplicaInfoResponseHeader()
        if found is None:
            return Decision(
                Code.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed", header
            )
        header.master_broker_id = found.master
        header.master_address = found.master_address
        header.master_epoch = found.master_epoch
        return Decision(header=header, body=found.sync_state())

    def sync_state_data(self, names: Iterable[str]) -> Decision:
        """1006: everything about some broker names; those that are not known are left out."""
        table = {}
        for name in names:
            found = self.sets.get(name)
            if found is None:
                continue
            inside: list[ReplicaIdentity] = []
            outside: list[ReplicaIdentity] = []
            for number, replica in sorted(found.replicas.items()):
                identity = ReplicaIdentity(
                    alive=self._is_alive(found.cluster, name, number),
                    broker_address=replica.address,
                    broker_id=number,
                    broker_name=name,
                )
                (inside if number in found.in_sync else outside).append(identity)
            table[name] = ReplicasInfo(
                in_sync_replicas=inside,
                master_address=found.master_address,
                master_broker_id=found.master,
                master_epoch=found.master_epoch,
                not_in_sync_replicas=outside,
                sync_state_set_epoch=found.in_sync_epoch,
            )
        return Decision(body=BrokerReplicasInfo(replicas_info_table=table))

    def clean(self, request: headers.CleanControllerBrokerDataRequestHeader) -> Decision:
        """1011: forget replicas, or a whole broker name."""
        name = request.broker_name
        found = self.sets.get(name)
        refuse = Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        if found is None:
            return Decision(refuse, f"Broker {name} is not existed,clean broker data failure.")
        text = (request.broker_controller_ids_to_clean or "").strip()
        try:
            ids = {int(piece) for piece in text.split(";") if piece.strip()}
        except ValueError as error:
            return Decision(
                refuse,
                "Please set the option <brokerControllerIdsToClean> according to the format, "
                f"exception: {error}",
            )
        gone = ids if text else set(found.replicas)
        if not request.is_clean_living_broker:
            for number in sorted(gone):
                if self._is_alive(found.cluster, name, number):
                    return Decision(
                        refuse, f"Broker [{name},  {number}] is still alive, clean up failure"
                    )
        left = {number: each for number, each in found.replicas.items() if number not in gone}
        if not left:
            return Decision(name=name, value=None)
        value = replace(
            found,
            replicas=left,
            master=None if found.master in gone else found.master,
            in_sync=found.in_sync - gone,
        )
        return Decision(name=name, value=value)

    def without_master(self) -> list[str]:
        """Broker names whose master is dead or missing, and which have a live replica."""
        return [
            name
            for name, found in self.sets.items()
            if found.master_epoch
            and not (found.master is not None and self._is_alive(found.cluster, name, found.master))
            and any(self._is_alive(found.cluster, name, number) for number in found.replicas)
        ]

    def member_group(self, name: str, found: ReplicaSet) -> BrokerMemberGroup:
        """The addresses of all replicas."""
        return BrokerMemberGroup(
            broker_addrs={number: each.address for number, each in found.replicas.items()},
            broker_name=name,
            cluster=found.cluster,
        )

    @staticmethod
    def _check_text(*texts: str) -> str | None:
        for text in texts:
            if not text or len(text) > TEXT_SIZE_MAX or not text.isprintable():
                return (
                    f"a name, an address or a check code of {len(text)} characters: {text[:80]!r}, "
                    f"allowed are 1 to {TEXT_SIZE_MAX} printable ones"
                )
        return None
