"""The rules by which a master is chosen, without a socket or a clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from oberth.controller.replica_sets import (
    BY_CONTROLLER,
    REPLICAS_MAX,
    SETS_MAX,
    Decision,
    LiveInfo,
    ReplicaSets,
)
from oberth.remoting.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    SyncStateSet,
)
from oberth.remoting.code import ResponseCode as Code
from oberth.remoting.headers import controller as headers


class World:
    """Replica sets, and who lives."""

    def __init__(self, *, unclean: bool = False) -> None:
        self.alive: dict[int, LiveInfo] = {}
        self.sets = ReplicaSets(
            lambda _, __, number: number in self.alive,
            lambda _, __, number: self.alive.get(number),
            elects_unclean=unclean,
        )

    def do(self, decision: Decision) -> Decision:
        if decision.name:
            self.sets.apply(decision.name, decision.value)
        return decision

    def join(self, number: int, *, epoch: int = 0, end: int = 0, priority: int = 9) -> None:
        """Take an id and live."""
        code = f"10.0.0.{number}:10911;{number}"
        request = headers.ApplyBrokerIdRequestHeader(
            cluster_name="c", broker_name="b", applied_broker_id=number, register_check_code=code
        )
        assert self.do(self.sets.apply_id(request)).code == Code.SUCCESS
        self.alive[number] = LiveInfo(epoch, end, priority)

    def elect(self, number: int = BY_CONTROLLER, *, designate: bool = False) -> Decision:
        return self.do(
            self.sets.elect(
                headers.ElectMasterRequestHeader(
                    broker_name="b", broker_id=number, designate_elect=designate
                )
            )
        )

    def in_sync(
        self,
        *ids: int,
        master: int | None = None,
        epoch: int | None = None,
        set_epoch: int | None = None,
    ) -> Decision:
        found = self.sets.sets["b"]
        return self.do(
            self.sets.alter_sync_set(
                headers.AlterSyncStateSetRequestHeader(
                    broker_name="b",
                    master_broker_id=(found.master or 0) if master is None else master,
                    master_epoch=found.master_epoch if epoch is None else epoch,
                ),
                SyncStateSet(
                    sync_state_set=list(ids),
                    sync_state_set_epoch=found.in_sync_epoch if set_epoch is None else set_epoch,
                ),
            )
        )


def three() -> World:
    """Three live replicas; 1 is the master and alone in sync."""
    world = World()
    for number in (1, 2, 3):
        world.join(number)
    assert world.elect(1).is_election
    return world


def test_ids_are_given_once() -> None:
    world = World()
    asked = headers.GetNextBrokerIdRequestHeader(cluster_name="c", broker_name="b")

    def next_id() -> int | None:
        header = world.sets.next_id(asked).header
        assert isinstance(header, headers.GetNextBrokerIdResponseHeader)
        return header.next_broker_id

    assert next_id() == 1
    world.join(1)
    assert next_id() == 2
    world.join(2)
    again = headers.ApplyBrokerIdRequestHeader(
        cluster_name="c", broker_name="b", applied_broker_id=2,
        register_check_code="10.0.0.2:10911;2",
    )  # fmt: skip
    assert world.sets.apply_id(again).code == Code.SUCCESS
    again.register_check_code = "10.0.0.9:10911;9"
    taken = world.sets.apply_id(again)
    assert taken.code == Code.CONTROLLER_BROKER_ID_INVALID
    assert taken.remark == "Fail to apply brokerId: 2 in broker-set: b"
    # A replica that is forgotten does not leave its id to another.
    clean = headers.CleanControllerBrokerDataRequestHeader(
        broker_name="b", broker_controller_ids_to_clean="2", is_clean_living_broker=True
    )
    world.do(world.sets.clean(clean))
    assert next_id() == 3


def test_an_id_leaves_room_for_those_that_come_later() -> None:
    world = World()
    world.join(1)
    for number in (2**31, 2**63 - 1, 0, -1):
        request = headers.ApplyBrokerIdRequestHeader(
            cluster_name="c", broker_name="b", applied_broker_id=number, register_check_code="a;1"
        )
        answer = world.do(world.sets.apply_id(request))
        assert answer.code == Code.CONTROLLER_BROKER_ID_INVALID
    assert world.sets.sets["b"].next_id == 2


def test_the_first_id_of_a_name_is_one() -> None:
    request = headers.ApplyBrokerIdRequestHeader(
        cluster_name="c", broker_name="new", applied_broker_id=4, register_check_code="a:1;1"
    )
    assert World().sets.apply_id(request).code == Code.CONTROLLER_BROKER_ID_INVALID


def test_names_and_counts_have_limits() -> None:
    world = World()
    for number in range(1, REPLICAS_MAX + 1):
        world.join(number)
    for name, number, code in (
        ("b", REPLICAS_MAX + 1, "a:1;1"),
        ("n" * 256, 1, "a:1;1"),
        ("new", 1, "a" * 256),
        ("line\nbreak", 1, "a:1;1"),
        ("", 1, "a:1;1"),
        ("b", 0, "a:1;1"),
    ):
        request = headers.ApplyBrokerIdRequestHeader(
            cluster_name="c", broker_name=name, applied_broker_id=number, register_check_code=code
        )
        refused = world.sets.apply_id(request)
        assert refused.code == Code.CONTROLLER_BROKER_ID_INVALID
        assert not refused.name


def test_broker_names_have_a_limit() -> None:
    world = World()
    for number in range(SETS_MAX + 1):
        request = headers.ApplyBrokerIdRequestHeader(
            cluster_name="c", broker_name=f"b{number}", applied_broker_id=1,
            register_check_code="a:1;1",
        )  # fmt: skip
        answer = world.do(world.sets.apply_id(request))
        assert (answer.code == Code.SUCCESS) == (number < SETS_MAX)
    assert len(world.sets.sets) == SETS_MAX


def test_a_replica_hears_of_a_live_master_only() -> None:
    world = three()
    request = headers.RegisterBrokerToControllerRequestHeader(
        cluster_name="c", broker_name="b", broker_id=2, broker_address="10.0.0.2:10911"
    )
    answer = world.sets.register(request)
    assert isinstance(answer.header, headers.RegisterBrokerToControllerResponseHeader)
    assert (answer.header.master_broker_id, answer.header.master_epoch) == (1, 1)
    assert answer.header.master_address == "10.0.0.1:10911"
    assert not answer.name
    del world.alive[1]
    answer = world.sets.register(request)
    assert isinstance(answer.header, headers.RegisterBrokerToControllerResponseHeader)
    assert answer.header.master_broker_id is None
    assert answer.body == SyncStateSet(sync_state_set=[1], sync_state_set_epoch=1)
    request.broker_address = "10.0.0.22:10911"
    world.do(world.sets.register(request))
    assert world.sets.sets["b"].replicas[2].address == "10.0.0.22:10911"
    request.broker_id = 7
    assert world.sets.register(request).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    request.broker_name = "other"
    assert world.sets.register(request).code == Code.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED


def test_only_a_replica_in_sync_follows_a_dead_master() -> None:
    world = three()
    world.alive[3] = LiveInfo(1, 10_000, 0)
    assert world.in_sync(1, 2).code == Code.SUCCESS
    del world.alive[1]
    answer = world.elect()
    assert answer.code == Code.SUCCESS
    assert isinstance(answer.header, headers.ElectMasterResponseHeader)
    assert answer.header.master_broker_id == 2
    assert answer.header.master_epoch == 2
    assert isinstance(answer.body, ElectMasterResponseBody)
    assert answer.body.sync_state_set == [2]
    assert answer.body.broker_member_group is not None
    assert sorted(answer.body.broker_member_group.broker_addrs) == [1, 2, 3]
    del world.alive[2]
    answer = world.elect()
    assert answer.code == Code.CONTROLLER_MASTER_NOT_AVAILABLE
    assert world.sets.sets["b"].master is None
    assert world.elect(3).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    # Who was in sync comes back, and goes on with a new epoch.
    world.alive[2] = LiveInfo(2, 10, 9)
    assert world.elect(2).code == Code.SUCCESS
    assert world.sets.sets["b"].master_epoch == 3


def test_a_replica_out_of_sync_follows_where_that_is_allowed() -> None:
    world = three()
    world.sets.elects_unclean = True
    del world.alive[1]
    assert world.elect().code == Code.SUCCESS
    assert world.sets.sets["b"].master == 2


def test_of_several_the_one_with_most_is_chosen() -> None:
    world = World()
    world.join(1)
    world.join(2, epoch=0, end=500)
    world.join(3, epoch=1, end=100, priority=5)
    world.join(4, epoch=1, end=200, priority=5)
    world.join(5, epoch=1, end=200, priority=4)
    world.elect(1)
    world.in_sync(1, 2, 3, 4, 5)
    for expected in (5, 4, 3, 2):
        master = world.sets.sets["b"].master
        assert master is not None
        del world.alive[master]
        world.elect()
        assert world.sets.sets["b"].master == expected
        world.in_sync(*sorted(world.alive))


def test_who_has_forgotten_an_epoch_elects_nobody() -> None:
    """An older copy of the file: the sync set that it names is not the one that counts."""
    world = three()
    world.in_sync(1, 2)
    world.alive[3] = LiveInfo(4, 300, 9)
    world.alive[2] = LiveInfo(4, 200, 0)
    del world.alive[1]
    for number in (BY_CONTROLLER, 2):
        refused = world.elect(number)
        assert refused.code == Code.CONTROLLER_ELECT_MASTER_FAILED
        assert "has epoch 4, and this controller knows up to 1" in str(refused.remark)
        assert not refused.name
    world.sets.elects_unclean = True
    assert world.elect().code == Code.SUCCESS
    found = world.sets.sets["b"]
    assert (found.master, found.master_epoch) == (3, 5)


def test_a_live_master_stays_unless_another_is_designated() -> None:
    world = three()
    world.in_sync(1, 2)
    still = world.elect(2)
    assert still.code == Code.CONTROLLER_MASTER_STILL_EXIST
    assert isinstance(still.header, headers.ElectMasterResponseHeader)
    assert still.header.master_broker_id == 1
    assert not still.name
    assert world.elect(3, designate=True).code == Code.CONTROLLER_ELECT_MASTER_FAILED
    assert world.elect(2, designate=True).code == Code.SUCCESS
    assert world.sets.sets["b"].master == 2


def test_the_sync_set_is_the_masters_to_say() -> None:
    world = three()
    world.do(
        world.sets.apply_id(
            headers.ApplyBrokerIdRequestHeader(
                cluster_name="c", broker_name="b", applied_broker_id=4, register_check_code="d;4"
            )
        )
    )
    for answer, code in (
        (world.in_sync(1), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
        (world.in_sync(1, 2, master=2), Code.CONTROLLER_INVALID_MASTER),
        (world.in_sync(1, 2, epoch=0), Code.CONTROLLER_FENCED_MASTER_EPOCH),
        (world.in_sync(1, 2, set_epoch=0), Code.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH),
        (world.in_sync(1, 9), Code.CONTROLLER_INVALID_REPLICAS),
        (world.in_sync(1, 4), Code.CONTROLLER_BROKER_NOT_ALIVE),
        (world.in_sync(2, 3), Code.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED),
    ):
        assert (answer.code, answer.name) == (code, "")
    answer = world.in_sync(1, 3)
    assert answer.code == Code.SUCCESS
    assert answer.body == SyncStateSet(sync_state_set=[1, 3], sync_state_set_epoch=2)


def test_everything_is_told_of_a_name() -> None:
    world = three()
    world.in_sync(1, 2)
    del world.alive[3]
    body = world.sets.sync_state_data(["b", "unknown"]).body
    assert isinstance(body, BrokerReplicasInfo)
    (info,) = body.replicas_info_table.values()
    assert (info.master_broker_id, info.master_address) == (1, "10.0.0.1:10911")
    assert [each.broker_id for each in info.in_sync_replicas] == [1, 2]
    assert [(each.broker_id, each.alive) for each in info.not_in_sync_replicas] == [(3, False)]


def test_the_living_are_forgotten_on_demand_only() -> None:
    world = three()
    clean = headers.CleanControllerBrokerDataRequestHeader(broker_name="b")
    assert world.sets.clean(clean).code == Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    clean.broker_controller_ids_to_clean = "1;x"
    assert world.sets.clean(clean).code == Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    del world.alive[2]
    clean.broker_controller_ids_to_clean = "2"
    assert world.do(world.sets.clean(clean)).code == Code.SUCCESS
    assert sorted(world.sets.sets["b"].replicas) == [1, 3]
    clean.broker_controller_ids_to_clean = ""
    clean.is_clean_living_broker = True
    assert world.do(world.sets.clean(clean)).code == Code.SUCCESS
    assert not world.sets.sets
    assert world.sets.clean(clean).code == Code.CONTROLLER_INVALID_CLEAN_BROKER_METADATA


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("dies"), st.integers(1, 4)),
            st.tuples(st.just("lives"), st.integers(1, 4)),
            st.tuples(st.just("elects"), st.sampled_from([BY_CONTROLLER, 1, 2, 3, 4])),
            st.tuples(st.just("designates"), st.integers(1, 4)),
            st.tuples(st.just("syncs"), st.sets(st.integers(1, 4))),
        ),
        max_size=40,
    )
)
def test_no_election_loses_what_was_acknowledged(steps: list[tuple[str, int | set[int]]]) -> None:
    """Each master was in sync before, is in sync after, and has an epoch that nobody had."""
    world = World()
    for number in (1, 2, 3, 4):
        world.join(number)
    for what, argument in steps:
        before = world.sets.sets["b"]
        if isinstance(argument, set):
            world.in_sync(*sorted(argument))
        elif what == "dies":
            world.alive.pop(argument, None)
        elif what == "lives":
            world.alive[argument] = LiveInfo(before.master_epoch, 0, 9)
        else:
            world.elect(argument, designate=what == "designates")
        after = world.sets.sets["b"]
        assert after.master is None or after.master in after.in_sync
        assert after.in_sync_epoch - before.in_sync_epoch == (after.in_sync != before.in_sync
            or after.master_epoch != before.master_epoch)  # fmt: skip
        if after.master_epoch != before.master_epoch:
            assert after.master_epoch == before.master_epoch + 1
            assert not before.master_epoch or after.master in before.in_sync
        else:
            assert after.master in (before.master, None)
