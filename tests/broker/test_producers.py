"""Producer groups follow heartbeats, closed channels and silence; virtual clock, no sockets."""

from __future__ import annotations

from oberth.broker.clients import ClientInfo
from oberth.broker.producers import ProducerTable


def client(channel: str, client_id: str = "", now: int = 0) -> ClientInfo:
    return ClientInfo(channel, client_id or channel, "JAVA", 479, now)


def test_members_come_and_go() -> None:
    table = ProducerTable()
    assert table.register("G", client("a"))
    assert not table.register("G", client("a", now=7))
    assert table.register("G", client("b"))
    assert [each.last_update_ms for each in table.clients("G")] == [7, 0]
    assert table.connection_closed("a") == ["G"]
    assert table.unregister("G", "b")
    assert table.groups() == []
    assert not table.unregister("G", "b")


def test_checks_go_round() -> None:
    table = ProducerTable()
    assert table.next_client("G") is None
    table.register("G", client("a"))
    table.register("G", client("b"))
    turns = [found.client_id for _ in range(4) if (found := table.next_client("G")) is not None]
    assert turns == ["a", "b", "a", "b"]


def test_silence_expires() -> None:
    table = ProducerTable()
    table.register("G", client("a", now=0))
    table.register("G", client("b", now=50))
    assert [each.client_id for each in table.scan_expired(101, 100)] == ["a"]
    assert [each.client_id for each in table.clients("G")] == ["b"]


def test_a_client_is_found_by_its_id_on_its_newest_connection() -> None:
    table = ProducerTable()
    table.register("G", client("old", "me", 1))
    table.register("H", client("new", "me", 2))
    found = table.find("me")
    assert found is not None
    assert found.channel == "new"
    assert table.find("nobody") is None


def test_to_find_a_client_looks_at_its_connections_alone() -> None:
    """Each answer to a request looks for who asked, among however many groups there are."""
    table = ProducerTable()
    for number in range(100):
        table.register(f"g{number}", client("c", "me" if number else "other", 1))
    assert {name: len(channels) for name, channels in table._ids.items()} == {"me": 1, "other": 1}
    table.register("g0", client("c", "me", 2))  # it calls itself otherwise from now on
    assert list(table._ids) == ["me"]
    table.register("g0", client("d", "me", 3))
    found = table.find("me")
    assert found is not None
    assert found.channel == "d"
    table.unregister("g0", "d")
    for number in range(99):
        table.unregister(f"g{number}", "c")
        found = table.find("me")
        assert found is not None
        assert found.channel == "c"
    assert table.connection_closed("c") == ["g99"]
    assert table.find("me") is None
    assert table._ids == {}
