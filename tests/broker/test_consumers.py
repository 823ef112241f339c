"""Consumer groups follow heartbeats, closed channels and silence; virtual clock, no sockets."""

from __future__ import annotations

from oberth.broker.clients import ClientInfo
from oberth.broker.consumers import (
    BROADCASTING,
    CONSUME_FROM_WHERES,
    CONSUME_PASSIVELY,
    CONSUME_TYPES,
    ConsumerTable,
    GroupData,
    enum_name,
)
from oberth.broker.subscriptions import Subscription

NOW = 1_000_000


def client(channel: str, client_id: str = "", now: int = NOW) -> ClientInfo:
    return ClientInfo(channel, client_id or channel, "JAVA", 479, now)


def test_a_heartbeat_makes_a_member_once() -> None:
    table = ConsumerTable()
    assert table.register("G", client("a"), GroupData(), [Subscription("T")], NOW)
    assert not table.register("G", client("a", now=NOW + 5), GroupData(), [Subscription("T")], NOW)
    assert table.register("G", client("b"), GroupData(), [Subscription("T")], NOW)
    group = table.get("G")
    assert group is not None
    assert group.client_ids() == ["a", "b"]
    assert group.clients["a"].last_update_ms == NOW + 5


def test_the_last_heartbeat_decides_about_topics() -> None:
    table = ConsumerTable()
    table.register("G", client("a"), GroupData(), [Subscription("T"), Subscription("U")], NOW)
    assert table.register("G", client("a"), GroupData(), [Subscription("T")], NOW)
    assert table.find_subscription("G", "U") is None
    assert not table.register("G", client("a"), GroupData(), [], NOW, without_sub=True)
    assert table.find_subscription("G", "T") is not None


def test_only_a_higher_version_replaces_an_expression() -> None:
    table = ConsumerTable()
    table.register("G", client("a"), GroupData(), [Subscription("T", "A", sub_version=5)], NOW)
    changed = table.register(
        "G", client("a"), GroupData(), [Subscription("T", "B", sub_version=5)], NOW
    )
    assert not changed
    found = table.find_subscription("G", "T")
    assert found is not None
    assert found.sub_string == "A"
    table.register("G", client("a"), GroupData(), [Subscription("T", "B", sub_version=6)], NOW)
    found = table.find_subscription("G", "T")
    assert found is not None
    assert found.sub_string == "B"


def test_a_closed_channel_leaves_all_groups_and_empty_groups_go() -> None:
    table = ConsumerTable()
    table.register("G", client("a"), GroupData(), [Subscription("T")], NOW)
    table.register("H", client("a"), GroupData(), [Subscription("T")], NOW)
    table.register("H", client("b"), GroupData(), [Subscription("T")], NOW)
    assert table.connection_closed("a") == ["G", "H"]
    assert table.get("G") is None
    assert [group.name for group in table] == ["H"]
    assert table.unregister("H", "b")
    assert not table.unregister("H", "b")
    assert len(table) == 0


def test_silence_expires_clients_and_then_subscriptions() -> None:
    table = ConsumerTable()
    table.register("G", client("a", now=0), GroupData(), [Subscription("T")], 0)
    table.register("G", client("b", now=100), GroupData(), [Subscription("T")], 100)
    expired = table.scan_expired(121, client_timeout_ms=120, subscription_timeout_ms=600)
    assert [(each.group, each.client.client_id) for each in expired] == [("G", "a")]
    table.scan_expired(701, client_timeout_ms=10_000, subscription_timeout_ms=600)
    assert table.find_subscription("G", "T") is None
    assert table.get("G") is not None  # b is still there


def test_what_a_pull_declares_makes_no_member() -> None:
    table = ConsumerTable()
    table.compensate_subscription("G", Subscription("T", "A"), 0)
    assert table.get("G") is None
    found = table.find_subscription("G", "T")
    assert found is not None
    assert found.sub_string == "A"
    table.scan_expired(601, 1, 600)
    assert table.find_subscription("G", "T") is None


def test_group_data_is_overwritten_by_every_heartbeat() -> None:
    table = ConsumerTable()
    table.register("G", client("a"), GroupData(), [], NOW)
    table.register(
        "G", client("a"), GroupData(CONSUME_PASSIVELY, BROADCASTING), [Subscription("T")], NOW
    )
    group = table.get("G")
    assert group is not None
    assert group.is_broadcasting
    body = table.connection_body(group, str)
    assert body["messageModel"] == BROADCASTING
    connections, subscriptions = body["connectionSet"], body["subscriptionTable"]
    assert [connections.show(each) for each in connections.items] == [
        {"clientAddr": "a", "clientId": "a", "language": "JAVA", "version": 479}
    ]
    assert subscriptions.items == ["T"]


def test_enums_come_as_names_or_as_ordinals() -> None:
    assert enum_name(1, CONSUME_TYPES, "x") == "CONSUME_PASSIVELY"
    assert enum_name("CONSUME_POP", CONSUME_TYPES, "x") == "CONSUME_POP"
    assert enum_name(4, CONSUME_FROM_WHERES, "x") == "CONSUME_FROM_FIRST_OFFSET"
    assert enum_name("nonsense", CONSUME_TYPES, "x") == "x"
    assert enum_name(99, CONSUME_TYPES, "x") == "x"
    assert enum_name(True, CONSUME_TYPES, "x") == "x"
