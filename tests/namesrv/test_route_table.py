"""The route table as a state machine: each rule of registration, expiry and routes; then any order.

Time is an argument, connections are plain words, so nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oberth.errors import RemoteProtocolError
from oberth.formats.data_version import DataVersion
from oberth.namesrv import route_table
from oberth.namesrv.registrations import BROKER_TIMEOUT_MS, MinBrokerIdChange, Registration
from oberth.namesrv.route_table import BrokerKey, LiveBroker, RouteOptions, RouteTable
from oberth.remoting.bodies.base import render_in_slices
from oberth.remoting.bodies.registration import RegisterBrokerBody, RegisteredTopic
from oberth.remoting.bodies.route import ClusterInfo, QueueData, TopicList

T = TypeVar("T")


def broker(
    broker_id: int = 0, addr: str = "a:1", name: str = "broker-a", **more: Any
) -> Registration:
    fields: dict[str, Any] = {"cluster": "C", "ha_server_addr": f"ha-{addr}", "connection": addr}
    return Registration(broker_name=name, broker_id=broker_id, broker_addr=addr, **(fields | more))


def topics(
    *names: str, counter: int = 1, state_version: int = 0, **more: Any
) -> RegisterBrokerBody:
    return RegisterBrokerBody(
        DataVersion(counter=counter, state_version=state_version, timestamp=7),
        {name: RegisteredTopic(topic_name=name, **more) for name in names},
    )


def ended(slices: Generator[None, None, T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            value: T = end.value
            return value


def shown(slices: Generator[None, None, TopicList]) -> list[str]:
    return ended(slices).topic_list


def names(table: RouteTable) -> set[str]:
    return set(table.all_topics().topic_list)


def addresses(table: RouteTable, topic: str) -> dict[int, str] | None:
    route = table.route(topic)
    return route.broker_datas[0].broker_addrs if route is not None else None


def test_a_master_and_its_slave() -> None:
    table = RouteTable()
    assert table.route("T") is None
    result = table.register(broker(), topics("T", "U", perm=6, write_queue_nums=4), 0)
    assert result.accepted
    assert result.master_addr is None
    result = table.register(broker(1, "a:2"), topics("T", "U", "V"), 0)
    assert (result.master_addr, result.ha_server_addr) == ("a:1", "ha-a:1")
    route = table.route("T")
    assert route is not None
    assert [data.broker_addrs for data in route.broker_datas] == [{0: "a:1", 1: "a:2"}]
    (queue_data,) = route.queue_datas
    assert (queue_data.perm, queue_data.read_queue_nums, queue_data.write_queue_nums) == (6, 16, 4)
    # A slave brings no topics.
    assert names(table) == {"T", "U"}
    table.check()


def test_partial_registrations_add_and_change_but_never_remove() -> None:
    table = RouteTable()
    table.register(broker(), topics("T", "U", counter=1), 0)
    assert table.register(broker(), topics("V", counter=2), 0).accepted
    assert names(table) == {"T", "U", "V"}
    table.register(broker(), topics("T", counter=3, perm=4), 0)
    route = table.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4


def test_first_registration_with_one_topic_is_refused() -> None:
    table = RouteTable()
    assert not table.register(broker(), topics("T"), 0).accepted
    assert table.broker_count == 0
    assert table.cluster_info().broker_addr_table == {}
    # No topics at all is another matter: that is what version 0 sends.
    assert table.register(broker(), topics(), 0).accepted
    table.check()


def test_wiped_permission_stays_until_the_broker_says_something_new() -> None:
    table = RouteTable()
    table.register(broker(), topics("T", "U", counter=1), 0)
    table.register(broker(name="broker-b", addr="b:1"), topics("T", "U", counter=1), 0)
    assert ended(table.change_write_perm("broker-a", writable=False)) == 2
    assert ended(table.change_write_perm("nobody", writable=False)) == 0

    def perms() -> dict[str, int]:
        route = table.route("T")
        assert route is not None
        return {data.broker_name: data.perm for data in route.queue_datas}

    assert perms() == {"broker-a": 4, "broker-b": 6}
    table.register(broker(), topics("T", "U", counter=1), 1)
    assert perms() == {"broker-a": 4, "broker-b": 6}
    table.register(broker(), topics("T", "U", counter=2), 2)
    assert perms() == {"broker-a": 6, "broker-b": 6}
    ended(table.change_write_perm("broker-a", writable=False))
    assert ended(table.change_write_perm("broker-a", writable=True)) == 2
    assert perms() == {"broker-a": 6, "broker-b": 6}


def test_topics_go_with_the_last_address() -> None:
    table = RouteTable()
    table.register(broker(), topics("T", "U"), 0)
    table.register(broker(1, "a:2"), topics("T", "U"), 0)
    table.unregister("broker-a", "a:1")
    # Consumers go on with the slave, producers find no master.
    assert addresses(table, "T") == {1: "a:2"}
    table.unregister("broker-a", "a:2")
    assert table.route("T") is None
    assert names(table) == set()
    assert table.cluster_info().cluster_addr_table == {}
    table.unregister("broker-a", "a:2")
    table.check()


def test_roles_and_addresses_change() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1"), topics("T", "U"), 0)
    table.register(broker(1, "a:2"), topics("T", "U"), 0)
    table.unregister("broker-a", "a:1")
    table.register(broker(0, "a:2"), topics("T", "U", counter=2), 0)
    assert addresses(table, "T") == {0: "a:2"}
    # Somebody else takes the id over, as after a move to another machine.
    table.register(broker(0, "a:3"), topics("T", "U"), 0)
    assert addresses(table, "T") == {0: "a:3"}
    table.check()


def test_an_older_epoch_does_not_take_over() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1"), topics("T", "U", state_version=5), 0)
    assert table.register(broker(0, "a:2"), topics("T", "U", state_version=4), 0).accepted
    assert addresses(table, "T") == {0: "a:1"}
    assert table.broker_count == 1
    table.register(broker(0, "a:2"), topics("T", "U", state_version=6), 0)
    assert addresses(table, "T") == {0: "a:2"}


def test_silence() -> None:
    table = RouteTable()
    table.register(broker(), topics("T", "U"), 0)
    table.register(broker(name="broker-b", addr="b:1", timeout_ms=500), topics("T", "U"), 0)
    assert table.expire(500) == ([], ())
    (gone,), _ = table.expire(501)
    assert gone.broker_name == "broker-b"
    assert table.heard_of("broker-a", "a:1", 100_000)
    assert not table.heard_of("broker-b", "b:1", 100_000)
    assert table.expire(100_000 + BROKER_TIMEOUT_MS)[0] == []
    (gone,), _ = table.expire(100_001 + BROKER_TIMEOUT_MS)
    assert gone.broker_name == "broker-a"
    assert table.all_topics().topic_list == []
    table.check()


def test_closed_connection_takes_its_brokers_and_no_others() -> None:
    table = RouteTable()
    table.register(broker(connection="x"), topics("T", "U"), 0)
    table.register(broker(name="broker-b", addr="b:1", connection="x"), topics("T", "U"), 0)
    table.register(broker(name="broker-c", addr="c:1", connection="y"), topics("T", "U"), 0)
    # broker-a came back on another connection before the first was seen to close.
    table.register(broker(connection="z"), topics("T", "U"), 1)
    table.connection_closed("x")
    assert set(table.cluster_info().broker_addr_table) == {"broker-a", "broker-c"}
    table.check()


class Unseen(dict[BrokerKey, LiveBroker]):
    """May not be gone through."""

    def __iter__(self) -> Iterator[BrokerKey]:
        raise AssertionError("all were looked at")

    def values(self) -> Any:
        raise AssertionError("all were looked at")

    items = values


def test_a_connection_that_closes_looks_at_its_own_brokers() -> None:
    """There may be 5 000 brokers, and very many connections of others."""
    table = RouteTable()
    for number in range(9):
        own = broker(name=f"broker-{number}", addr=f"a:{number}", connection=f"c{number % 3}")
        table.register(own, topics("T", "U"), 0)
    table._live = Unseen(table._live)
    assert table.connection_closed("stranger") == ()
    table.connection_closed("c1")
    assert table.broker_count == 6
    assert set(table.cluster_info().broker_addr_table) == {
        f"broker-{number}" for number in range(9) if number % 3 != 1
    }


def test_data_versions() -> None:
    table = RouteTable()
    version = topics().data_version
    assert table.is_changed("broker-a", "a:1", version)
    table.register(broker(), topics("T", "U"), 0)
    assert not table.is_changed("broker-a", "a:1", version)
    assert table.is_changed("broker-a", "a:1", version.next(8))
    assert table.data_version("broker-a", "a:1") == version


def test_zones() -> None:
    table = RouteTable()
    table.register(broker(zone_name="East"), topics("T", "U"), 0)
    table.register(broker(name="broker-b", addr="b:1", zone_name="west"), topics("T", "U"), 0)
    table.register(broker(name="broker-c", addr="c:1"), topics("T", "U"), 0)
    table.register(broker(1, "d:1", "broker-d", enable_acting_master=True), topics("T", "U"), 0)

    def found(zone: str | None) -> list[str]:
        route = table.route("T", zone)
        assert route is not None
        assert [data.broker_name for data in route.queue_datas] == [
            data.broker_name for data in route.broker_datas
        ]
        return [data.broker_name for data in route.broker_datas]

    assert found("east") == ["broker-a", "broker-d"]
    assert found(None) == ["broker-a", "broker-b", "broker-c", "broker-d"]


def test_a_zone_without_brokers_and_slaves_of_other_zones() -> None:
    """Apache filters the finished answer: there an acting slave is a master as any other."""
    table = RouteTable(RouteOptions(support_acting_master=True))

    def found(topic: str, zone: str) -> list[str] | None:
        at_once = table.route(topic, zone)
        assert ended(table.route_in_slices(topic, zone)) == at_once
        if at_once is None:
            return None
        shown = [data.broker_name for data in at_once.broker_datas]
        assert shown == [data.broker_name for data in at_once.queue_datas]
        return shown

    table.register(broker(zone_name="east"), topics("T", "U"), 0)
    assert found("T", "west") == []
    assert found("V", "west") is None
    for name, acts in (("broker-b", True), ("broker-c", False)):
        slave = broker(1, f"{name}:1", name, zone_name="east", enable_acting_master=acts)
        table.register(slave, topics("T", "U"), 0)
    assert found("T", "west") == ["broker-c"]
    assert found("T", "East") == ["broker-a", "broker-b", "broker-c"]
    table.unregister("broker-a", "a:1")
    table.unregister("broker-c", "broker-c:1")
    assert found("T", "west") == []


def test_acting_master() -> None:
    table = RouteTable(RouteOptions(support_acting_master=True))
    table.register(broker(0, "a:1", enable_acting_master=True), topics("T", "U"), 0)
    table.register(broker(2, "a:2", enable_acting_master=True), topics("T", "U"), 0)
    table.register(broker(3, "a:3", enable_acting_master=True), topics("T", "U"), 0)
    assert addresses(table, "T") == {0: "a:1", 2: "a:2", 3: "a:3"}
    table.unregister("broker-a", "a:1")
    route = table.route("T")
    assert route is not None
    # The smallest slave stands in for the master, for reading only.
    assert route.broker_datas[0].broker_addrs == {0: "a:2", 3: "a:3"}
    assert route.queue_datas[0].perm == 4
    assert table.cluster_info().broker_addr_table["broker-a"].broker_addrs == {2: "a:2", 3: "a:3"}


def test_members_of_a_group_are_shown_with_their_own_ids() -> None:
    """A slave that saw itself as 0 there took itself for no acting master."""
    table = RouteTable(RouteOptions(support_acting_master=True))
    topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    for broker_id, addr in ((0, "a:1"), (2, "a:2"), (3, "a:3")):
        own = broker(broker_id, addr, enable_acting_master=True)
        table.register(own, topics(topic, "T", perm=1), 0)
    table.unregister("broker-a", "a:1")
    assert addresses(table, topic) == {2: "a:2", 3: "a:3"}
    sliced = ended(table.route_in_slices(topic))
    assert sliced is not None
    assert sliced.broker_datas[0].broker_addrs == {2: "a:2", 3: "a:3"}
    assert addresses(table, "T") == {0: "a:2", 3: "a:3"}


def test_smallest_id_is_announced() -> None:
    table = RouteTable(RouteOptions(notify_min_broker_id_changed=True))
    first = table.register(broker(1, "a:2"), topics(), 0).changes
    assert (
        first == (MinBrokerIdChange("broker-a", 1, "a:2", None, "", ("a:2",)),) or first[0].targets
    )
    (came,) = table.register(broker(0, "a:1"), topics("T", "U"), 0).changes
    assert (came.min_broker_id, came.min_broker_addr, came.ha_broker_addr) == (0, "a:1", "ha-a:1")
    assert came.targets == ("a:2",)
    assert table.register(broker(0, "a:1"), topics("T", "U"), 0).changes == ()
    (went,) = table.unregister("broker-a", "a:1")
    assert (went.min_broker_id, went.offline_broker_addr, went.targets) == (1, "a:1", ("a:2",))
    assert table.unregister("broker-a", "a:2") == ()


def test_topic_lists() -> None:
    table = RouteTable()
    table.register(broker(), topics("T", "U", topic_sys_flag=1), 0)
    table.register(
        broker(name="broker-b", addr="b:1", cluster="D"), topics("V", "W", topic_sys_flag=3), 0
    )
    table.register(
        broker(name="broker-c", addr="c:1", cluster="D"), topics("X", "Y", topic_sys_flag=2), 0
    )
    assert shown(table.topics_of_cluster("C")) == ["T", "U"]
    assert shown(table.topics_of_cluster("nowhere")) == []
    system = table.system_topics()
    assert system.topic_list == ["C", "broker-a", "D", "broker-b", "broker-c"]
    assert system.broker_addr == "a:1"
    assert shown(table.unit_topics(with_flags=1)) == ["T", "U", "V", "W"]
    assert shown(table.unit_topics(with_flags=2)) == ["V", "W", "X", "Y"]
    assert shown(table.unit_topics(with_flags=2, without_flags=1)) == ["X", "Y"]
    group = table.member_group("C", "broker-a")
    assert group.broker_addrs == {0: "a:1"}
    assert table.member_group("C", "nobody").broker_addrs == {}


def test_deleting_and_adding_topics() -> None:
    table = RouteTable()
    table.register(broker(), topics("T", "U"), 0)
    table.register(broker(name="broker-b", addr="b:1", cluster="D"), topics("T", "V"), 0)
    table.delete_topic("T", "D")
    route = table.route("T")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["broker-a"]
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.route("T") is None
    queues = [
        QueueData(broker_name=name, perm=6, read_queue_nums=1) for name in ("broker-a", "nobody")
    ]
    table.register_topic("new", queues)
    assert addresses(table, "new") == {0: "a:1"}
    # What was deleted comes back with the broker's next registration, changed or not.
    table.register(broker(), topics("T", "U"), 0)
    assert addresses(table, "T") == {0: "a:1"}
    table.check()


def test_mappings_go_with_their_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of topics that the broker does not name: they kept out others' until the end."""
    monkeypatch.setattr(route_table, "MAPPINGS_COUNT_MAX", 4)
    monkeypatch.setattr(route_table, "MAPPINGS_SIZE_MAX", 90)
    monkeypatch.setattr(route_table, "MAPPINGS_PER_SLICE", 1)
    table = RouteTable()

    def mapped(*names: str, counter: int = 1, more: str = "") -> RegisterBrokerBody:
        body = topics("T", "U", counter=counter)
        body.mappings.update({name: {"bname": "broker-a", "more": more} for name in names})
        return body

    def mappings() -> dict[str, list[str]]:
        return {topic: sorted(each) for topic, each in table._mappings.items()}

    table.register(broker(), mapped("T", "X", "Y/Z"), 0)
    assert mappings() == {"T": ["broker-a"], "X": ["broker-a"]}
    for counter in (2, 3):  # its own do not count twice
        table.register(broker(), mapped("T", "X", "W", counter=counter), 0)
    assert table._mappings_size == len('{"bname":"broker-a","more":""}') * 3
    table.register(broker(), mapped("X", counter=4, more="much"), 0)  # too large
    assert mappings() == {"T": ["broker-a"], "W": ["broker-a"]}
    route = table.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"broker-a": {"bname": "broker-a", "more": ""}}
    table.delete_topic("T")
    table.unregister("broker-a", "a:1")
    assert (mappings(), table._mappings_size) == ({}, 0)
    other = broker(name="broker-b", addr="b:1")
    table.register(other, mapped("T", "X", "Y"), 0)
    assert mappings() == {"T": ["broker-b"], "X": ["broker-b"], "Y": ["broker-b"]}


def test_registration_that_removes_other_topics() -> None:
    table = RouteTable(RouteOptions(delete_topic_with_broker_registration=True))
    table.register(broker(), topics("T", "U"), 0)
    table.register(broker(name="broker-b", addr="b:1"), topics("T", "U"), 0)
    table.register(broker(), topics("U", "V", counter=2), 0)
    route = table.route("T")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["broker-b"]
    assert names(table) == {"T", "U", "V"}
    # A static topic comes alone, and pushes nobody out.
    static = topics("S", counter=3)
    static.mappings["S"] = {"topic": "S", "bname": "broker-a", "epoch": 1, "totalQueues": 1}
    table.register(broker(), static, 0)
    assert names(table) == {"S", "T", "U", "V"}
    table.check()


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "BROKER_COUNT_MAX", 1)
    monkeypatch.setattr(route_table, "TOPIC_COUNT_MAX", 2)
    table = RouteTable()
    table.register(broker(), topics("T", "U"), 0)
    table.register(broker(), topics("T", "U", counter=2), 0)
    with pytest.raises(RemoteProtocolError, match="3 topics, allowed 2"):
        table.register(broker(), topics("T", "V", counter=3), 0)
    with pytest.raises(RemoteProtocolError, match="1 brokers are registered, allowed 1"):
        table.register(broker(name="broker-b", addr="b:1"), topics("T", "U"), 0)
    table.check()


class AnyOrder(RuleBasedStateMachine):
    """Brokers come, change and go in any order; the table's invariants hold throughout."""

    @initialize(acting=st.booleans(), deleting=st.booleans())
    def start(self, acting: bool, deleting: bool) -> None:
        self.table = RouteTable(
            RouteOptions(
                support_acting_master=acting,
                notify_min_broker_id_changed=True,
                delete_topic_with_broker_registration=deleting,
            )
        )
        self.now_ms = 0

    @rule(
        cluster=st.sampled_from("CD"),
        name=st.sampled_from(["a", "b"]),
        broker_id=st.integers(0, 2),
        addr=st.sampled_from(["1", "2", "3"]),
        acting=st.none() | st.booleans(),
        found=st.sets(st.sampled_from("TUV")),
        counter=st.integers(0, 3),
        state_version=st.integers(0, 1),
        connection=st.integers(0, 2),
    )
    def register(
        self,
        cluster: str,
        name: str,
        broker_id: int,
        addr: str,
        acting: bool | None,
        found: set[str],
        counter: int,
        state_version: int,
        connection: int,
    ) -> None:
        registration = broker(
            broker_id,
            f"{name}:{addr}",
            name,
            cluster=cluster,
            enable_acting_master=acting,
            connection=connection,
        )
        body = topics(*found, counter=counter, state_version=state_version)
        result = self.table.register(registration, body, self.now_ms)
        for change in result.changes:
            assert change.targets

    @rule(name=st.sampled_from("ab"), addr=st.sampled_from("123"))
    def unregister(self, name: str, addr: str) -> None:
        self.table.unregister(name, f"{name}:{addr}")

    @rule(connection=st.integers(0, 2))
    def close(self, connection: int) -> None:
        self.table.connection_closed(connection)

    @rule(elapsed_ms=st.integers(0, BROKER_TIMEOUT_MS))
    def expire(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.table.expire(self.now_ms)

    @rule(topic=st.sampled_from("TUV"), cluster=st.none() | st.sampled_from("CD"))
    def delete_topic(self, topic: str, cluster: str | None) -> None:
        self.table.delete_topic(topic, cluster)

    @rule(name=st.sampled_from("ab"), writable=st.booleans())
    def change_perm(self, name: str, writable: bool) -> None:
        ended(self.table.change_write_perm(name, writable=writable))

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "table"):
            self.table.check()
            for topic in self.table.all_topics().topic_list:
                route = self.table.route(topic)
                assert route is not None
                assert all(data.broker_addrs for data in route.broker_datas)


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_any_order = AnyOrder.TestCase


def test_what_a_broker_leaves_behind_is_swept_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 3)
    table = RouteTable()
    many = [f"T{number}" for number in range(10)]
    table.register(broker(), topics(*many), 0)
    table.register(broker(addr="b:1", name="broker-b"), topics("T0", "U"), 0)
    table.unregister("broker-a", "a:1")
    table.check()
    assert table.route("T1") is None  # at once
    assert addresses(table, "T0") == {0: "b:1"}
    # It comes back before all is forgotten, with fewer topics.
    assert table.sweep()
    table.register(broker(), topics("T1", "T9"), 1)
    turns = 1
    while table.sweep():
        table.check()
        turns += 1
    assert turns >= 3
    assert names(table) == {"T0", "T1", "T9", "U"}
    assert addresses(table, "T1") == addresses(table, "T9") == {0: "a:1"}
    table.check()
    table.unregister("broker-b", "b:1")  # few topics go at once
    assert names(table) == {"T1", "T9"}
    assert not table.sweep()
    table.check()


def test_what_brokers_name_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "QUEUES_COUNT_MAX", 5)
    monkeypatch.setattr(route_table, "MAPPINGS_COUNT_MAX", 2)
    monkeypatch.setattr(route_table, "TOPIC_COUNT_MAX", 4)
    table = RouteTable()
    table.register(broker(), topics("T", "U", "V"), 0)
    table.register(broker(), topics("T", "U", "V", counter=2), 0)  # again
    with pytest.raises(RemoteProtocolError, match="6 topics of all brokers"):
        table.register(broker(name="broker-b", addr="b:1"), topics("T", "U", "V"), 0)
    mapped = topics("T", "U", counter=3)
    mapped.mappings.update({topic: {"bname": "broker-a"} for topic in ("T", "U", "V")})
    with pytest.raises(RemoteProtocolError, match="3 mappings, allowed 2"):
        table.register(broker(), mapped, 0)
    texts: tuple[Any, ...] = ("name", "addr", "cluster", "zone_name", "ha_server_addr")
    for text in texts:
        fields: dict[str, Any] = {text: "x" * 256}
        with pytest.raises(RemoteProtocolError, match="256 characters, allowed 255"):
            table.register(broker(**fields), topics("T", "U", counter=4), 0)
    queues = [QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)]
    table.register_topic("W", queues)
    assert addresses(table, "W") == {0: "a:1"}
    with pytest.raises(RemoteProtocolError, match="4 topics, allowed 4"):
        table.register_topic("X", queues)
    table.register_topic("W", queues)
    table.delete_topic("W")
    with pytest.raises(RemoteProtocolError, match="no name of a topic"):
        table.register_topic("x" * 5000, queues)
    # Entries count for each broker that they name, also of topics that are known.
    table.register(broker(name="broker-b", addr="b:1"), topics("T", "U"), 0)
    both = [*queues, QueueData(broker_name="broker-b", perm=6, read_queue_nums=1)]
    for topic, count in (("W", 7), ("V", 6)):
        with pytest.raises(RemoteProtocolError, match=f"{count} topics of all brokers"):
            table.register_topic(topic, both)
        assert names(table) == {"T", "U", "V"}
        assert addresses(table, topic) == ({0: "a:1"} if topic == "V" else None)
    table.register_topic("T", both)  # nothing that is new
    table.check()


def test_cluster_info_in_slices_is_the_same() -> None:
    table = RouteTable()
    for number in range(300):
        table.register(
            broker(name=f"broker-{number}", addr=f"a:{number}", zone_name="z"), topics("T", "U"), 0
        )
        table.register(broker(1, f"b:{number}", f"broker-{number}"), topics("T", "U"), 0)
    for info in (table.cluster_info(), ClusterInfo()):
        slices = info.encode_old_in_slices()
        yields = 0
        encoded = None
        while encoded is None:
            try:
                next(slices)
                yields += 1
            except StopIteration as end:
                encoded = end.value
        assert encoded == info.encode_old()
        assert yields or not info.broker_addr_table


def test_a_broker_without_a_master_becomes_read_only_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200 000 topics of a broker whose master leaves: 30 ms in one go."""
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 10)
    table = RouteTable()
    names = [f"t{number}" for number in range(25)]

    def writable() -> int:
        return sum(table._topics[name]["broker-a"].perm & 2 for name in names) // 2

    for broker_id, addr in ((0, "a:1"), (1, "a:2")):
        table.register(broker(broker_id, addr, enable_acting_master=True), topics(*names), 0)
    table.unregister("broker-a", "a:1")
    left = [writable()]
    while table.sweep():
        left.append(writable())
    assert [*left, writable()] == [25, 15, 5, 0]
    table.register(broker(0, "a:1", enable_acting_master=True), topics(*names, counter=2), 0)
    table.unregister("broker-a", "a:1")
    assert table.sweep()
    table.register(broker(0, "a:1", enable_acting_master=True), topics(*names, counter=3), 0)
    assert not table.sweep()
    assert writable() == 25, "a master that is back has said what may be written"


def test_registrations_in_turns_are_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had looked at the limit before the others had brought anything."""
    monkeypatch.setattr(route_table, "TOPIC_COUNT_MAX", 2000)
    monkeypatch.setattr(route_table, "TOPICS_PER_SLICE", 100)
    table = RouteTable()
    works = [
        table.register_in_slices(
            broker(addr=f"a:{n}", name=f"b{n}"), topics(*[f"t{n}-{i}" for i in range(1500)]), 0
        )
        for n in range(5)
    ]
    refused = 0
    while works:
        for work in list(works):
            try:
                next(work)
            except StopIteration:
                works.remove(work)
            except RemoteProtocolError:
                refused += 1
                works.remove(work)
    assert refused >= 4
    assert len(table._topics) <= 2000 + 5 * 100
    monkeypatch.setattr(route_table, "TOPIC_COUNT_MAX", 5000)
    monkeypatch.setattr(route_table, "QUEUES_COUNT_MAX", 1000)
    with pytest.raises(RemoteProtocolError, match="all brokers together"):
        table._check_counts()


def test_brokers_of_one_name_are_limited() -> None:
    table = RouteTable()
    for number in range(route_table.MEMBERS_MAX):
        table.register(broker(number, f"a:{number}", connection="one"), topics(), 0)
    with pytest.raises(RemoteProtocolError, match="64 brokers are named broker-a, allowed 64"):
        table.register(broker(1000, "a:1000"), topics(), 0)
    table.register(broker(7, "another:7"), topics(), 0)
    table.register(broker(0, "a:1000", name="broker-b"), topics(), 0)
    table.connection_closed("one")
    table.register(broker(1000, "a:1000"), topics(), 0)
    table.check()


def test_topics_that_are_new_are_counted_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "TOPIC_COUNT_MAX", 100)
    monkeypatch.setattr(route_table, "TOPICS_COUNTED_A_TURN", 10)
    table = RouteTable()
    names = [f"t{number}" for number in range(60)]
    table.register(broker(), topics(*names), 0)
    assert len(list(table._count_topics(topics(*names)))) == 6, "none of them is new"
    with pytest.raises(RemoteProtocolError, match="120 topics, allowed 100"):
        table.register(broker(addr="b:1", name="b"), topics(*[f"u{n}" for n in range(60)]), 0)


mapping_values = st.recursive(
    st.sampled_from([None, True, 0, -5, 0.5, 1e20, "", "ä\n", "null"]),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=60,
)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), brokers=st.integers(1, 30))
def test_a_route_in_slices_is_the_same(data: st.DataObject, brokers: int) -> None:
    table = RouteTable(RouteOptions(support_acting_master=True))
    zones = st.none() | st.sampled_from(["east", "west"])
    for number in range(brokers):
        name = f"broker-{number}"
        body = topics("T", "U")
        if data.draw(st.booleans()):
            body.mappings["T"] = {"currIdMap": {0: 0}, "more": data.draw(mapping_values)}
        zone, broker_id = data.draw(zones), data.draw(st.sampled_from([0, 0, 2]))
        registration = broker(
            broker_id, f"a:{number}", name, zone_name=zone, enable_acting_master=broker_id > 0
        )
        table.register(registration, body, 0)
    for zone in (None, "east"):
        route, sliced = table.route("T", zone), ended(table.route_in_slices("T", zone))
        assert (route is None) == (sliced is None)
        if route is None or sliced is None:
            continue
        route.order_topic_conf = sliced.order_topic_conf = data.draw(st.none() | st.just("b:4"))
        assert ended(render_in_slices(sliced)) == route.encode()
        assert ended(sliced.encode_old_in_slices()) == route.encode_old()
        assert b":null" not in route.encode()


def test_routes_of_many_brokers_and_long_mappings_are_not_made_at_once() -> None:
    table = RouteTable()
    for number in range(65):
        assert table.is_little("T")
        table.register(broker(name=f"b-{number}", addr=f"a:{number}"), topics("T", "U"), 0)
    assert not table.is_little("T")
    for number in range(route_table.BROKERS_SHOWN_AT_ONCE):
        table.register(broker(name=f"c-{number}", addr=f"c:{number}"), topics("T", "U"), 0)
    assert len(list(table.route_in_slices("T"))) == 2
    route = ended(table.route_in_slices("T"))
    assert route is not None
    assert len(list(render_in_slices(route))) >= 4
    assert len(list(route.encode_old_in_slices())) >= 100
    for number in range(5):
        assert table.is_little("M")
        for broker_id in range(64):
            addr = f"m{number}:{broker_id}"
            table.register(broker(broker_id, addr, f"m-{number}"), topics("M", "N"), 0)
    assert not table.is_little("M")
    mapped = topics("S", "V")
    mapped.mappings["S"] = {"a": [0] * 8000}
    table.register(broker(name="s", addr="s:1"), mapped, 0)
    assert not table.is_little("S")
    assert table.is_little("V")
    route = ended(table.route_in_slices("S"))
    assert route is not None
    assert len(list(route.encode_old_in_slices())) >= 400


def test_the_mappings_of_one_topic_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "MAPPING_SIZE_MAX", 100)
    monkeypatch.setattr(route_table, "MAPPINGS_OF_TOPIC_SIZE_MAX", 250)
    monkeypatch.setattr(route_table, "MAPPED_PER_SLICE", 150)
    table = RouteTable()

    def register(number: int, size: int, counter: int = 1, *names: str) -> int:
        body = topics("T", "U", counter=counter)
        for name in names or ("T",):
            body.mappings[name] = {"a": "x" * (size - 8)}
        name = f"b-{number}"
        return len(list(table.register_in_slices(broker(name=name, addr=name), body, 0)))

    for number in range(4):
        register(number, 100)
    assert list(table._mappings["T"]) == ["b-0", "b-1"]
    register(0, 101, 2)  # too long for a mapping, and the one before is none any more
    register(2, 100, 2)
    assert list(table._mappings["T"]) == ["b-1", "b-2"]
    register(1, 50, 2)  # its own does not count twice
    register(3, 100, 2)
    assert list(table._mappings["T"]) == ["b-2", "b-1", "b-3"]
    assert table._mappings_size == 250
    assert register(4, 100, 1, *[f"M{number}" for number in range(6)]) == 2
    table.check()


def test_a_broker_that_is_back_is_shown_with_what_it_has_said_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 1)
    table = RouteTable()
    body = topics("T", "U", "V")
    body.mappings.update({"T": {"a": 1}, "U": {"a": 1}})
    table.register(broker(), body, 0)
    table.register(broker(name="broker-b", addr="b:1"), topics("T", "U"), 0)
    table.unregister("broker-a", "a:1")
    table.register(broker(), topics("U", "W"), 1)
    for slices in (table.route_in_slices("T"), table.route_in_slices("U")):
        route = ended(slices)
        assert route is not None
        assert route.topic_queue_mapping_by_broker is None
    route = table.route("T")
    assert route is not None
    assert [queues.broker_name for queues in route.queue_datas] == ["broker-b"]
    assert table.route("V") is None
    assert addresses(table, "W") == {0: "a:1"}
    while table.sweep():
        table.check()
    assert table._mappings == {}


@pytest.mark.parametrize("way", ["connection", "silence"])
@pytest.mark.parametrize("has_slaves", [False, True])
def test_brokers_that_go_together_are_swept_in_turns(
    monkeypatch: pytest.MonkeyPatch, way: str, has_slaves: bool
) -> None:
    """1 000 brokers of 2 000 topics each: more than a second, where each was few enough."""
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 20)
    table = RouteTable()
    work: list[str] = []

    class Queues(dict[str, QueueData]):
        def pop(self, name: str, *default: Any) -> Any:  # of a broker that is gone
            work.append(name)
            return super().pop(name, *default)

        def get(self, name: str, *default: Any) -> Any:  # of one without a master
            work.append(name)
            return super().get(name, *default)

    many = [f"T{number}" for number in range(10)]
    for number in range(8):
        name = f"b-{number}"
        for broker_id in (0, 1) if has_slaves else (0,):
            registration = broker(
                broker_id,
                f"{name}:{broker_id}",
                name,
                enable_acting_master=True,
                connection=broker_id,
                timeout_ms=10 + 10 * broker_id,
            )
            table.register(registration, topics(*many), 0)
    table._topics = {topic: Queues(queues) for topic, queues in table._topics.items()}
    if way == "connection":
        table.connection_closed(0)
    else:
        table.expire(15)
    table.check()
    done = [len(work)]
    for topic in many:
        assert (table.route(topic) is not None) == has_slaves
    while table.sweep():
        table.check()
        done.append(len(work))
    done.append(len(work))
    assert done[0] == 0
    assert done[-1] == 80
    assert all(after - before <= 20 for before, after in pairwise(done))
    if not has_slaves:
        assert table.topic_count == 0
        return
    assert not any(data.perm & 2 for queues in table._topics.values() for data in queues.values())
    table.connection_closed(1)
    while table.sweep():
        pass
    assert table.topic_count == 0


def test_topics_that_a_registration_pushes_out_are_swept_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """200 000 of them: half a second in one turn."""
    monkeypatch.setattr(route_table, "SWEPT_AT_ONCE", 10)
    table = RouteTable(RouteOptions(delete_topic_with_broker_registration=True))
    many = [f"T{number}" for number in range(35)]
    for counter, topic in enumerate(("T7", "T8", "T9"), 50):
        static = topics(topic, "T0", counter=counter)
        static.mappings[topic] = {"topic": topic}
        table.register(broker(), static, 0)
    table.register(broker(name="broker-b", addr="b:1"), topics("T1", "T2"), 0)
    for number in range(0, 35, 5):
        more = topics(*many[number : number + 5], counter=number + 2)
        more.mappings["M"] = {"topic": "M"}  # pushes nobody out
        table.register(broker(), more, 0)
    assert table.topic_count == 35
    table.register(broker(), topics("T0", "T8", "new", counter=100), 0)
    left = [table.topic_count]
    assert names(table) == {*many, "new"}
    for topic in set(many) - {"T0", "T1", "T2", "T8"}:
        assert table.route(topic) is None
    for topic in ("T1", "T2"):
        assert addresses(table, topic) == {0: "b:1"}
    route = table.route("T8")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"broker-a": {"topic": "T8"}}
    while table.sweep():
        table.check()
        left.append(table.topic_count)
    left.append(table.topic_count)
    assert names(table) == {"T0", "T1", "T2", "T8", "new"}
    assert all(before - after <= 10 for before, after in pairwise(left))
    assert len(left) >= 4
    assert set(table._mappings) == {"T8", "M"}
    table.register(broker(), topics("T0", "new", counter=101), 0)
    assert names(table) == {"T0", "T1", "T2", "new"}, "few go at once"
    assert set(table._mappings) == {"M"}
    table.check()


def test_topics_of_a_cluster_are_looked_for_by_the_names_of_brokers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 000 topics on 400 brokers each were one slice."""
    monkeypatch.setattr(route_table, "TOPICS_SHOWN_AT_ONCE", 10)
    table = RouteTable()
    many = [f"T{number}" for number in range(30)]
    for number in range(90):
        for cluster in "CD":
            name = f"{cluster}-{number}"
            body = topics(*many) if cluster == "C" else topics("U", "V")
            table.register(broker(name=name, addr=name, cluster=cluster), body, 0)
    assert len(list(table.topics_of_cluster("D"))) == 16, "two topics a slice"
    assert len(list(table.topics_of_cluster("nowhere"))) == 2
    assert shown(table.topics_of_cluster("C")) == many
    assert shown(table.topics_of_cluster("D")) == ["U", "V"]
    assert shown(table.topics_of_cluster("nowhere")) == []
