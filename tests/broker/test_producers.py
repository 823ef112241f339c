"""Producer groups follow heartbeats, closed channels and silence; virtual clock, no sockets."""

from __future__ import annotations

import pytest

from oberth.broker import producers
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


def test_who_may_not_be_asked_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "ASKED_AT_ONCE", 3)
    table = ProducerTable()
    for name in "abcde":
        table.register("G", client(name))

    def asked() -> str:
        found = table.next_client("G", lambda each: each.client_id in "ae")
        return found.client_id if found is not None else "nobody"

    assert [asked() for _ in range(5)] == ["a", "nobody", "e", "a", "nobody"]


def test_a_client_id_is_its_users_while_he_is_there() -> None:
    table = ProducerTable()
    first, second = client("a", "me", 1), client("b", "me", 2)
    first.access_key, second.access_key = "user", "thief"
    table.register("G", first)
    table.register("H", second)
    assert table.find("me") is first
    third = client("c", "me", 3)
    third.access_key = "user"
    table.register("G", third)
    assert table.find("me") is third
    table.connection_closed("a")
    table.connection_closed("c")
    assert table.find("me") is second


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


def test_who_listens_hears_of_groups_that_have_a_client_again() -> None:
    table = ProducerTable()
    heard: list[str] = []
    table.group_listeners.append(heard.append)
    table.register("G", client("a"))
    table.register("G", client("a", now=7))
    table.register("G", client("b"))
    table.register("x" * 256, client("a"))
    assert heard == ["G"]
    table.connection_closed("a")
    table.register("G", client("a"))
    assert heard == ["G"]
    table.unregister("G", "a")
    table.unregister("G", "b")
    table.register("G", client("b"))
    assert heard == ["G", "G"]
