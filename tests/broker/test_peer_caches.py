"""What peers send is kept nowhere without a bound in bytes: every cache is known, and flooded.

A cache is a module's own: a function behind ``lru_cache`` or ``cache``, or a module's table that
begins empty. One that is not in the list below fails the first test: say there what bounds it.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oberth
from oberth.broker import consumers, producers, rebalance_locks
from oberth.broker.acl import signature
from oberth.broker.acl.signature import SIGNATURE, SecretKey
from oberth.broker.clients import GROUPS_PER_CHANNEL_MAX, LEFT_AT_ONCE, ClientInfo
from oberth.broker.consumer_filters import EXPRESSION_CACHE_SIZE, ExpressionCache
from oberth.broker.consumers import ConsumerTable, GroupData
from oberth.broker.processors import assignment, pull
from oberth.broker.processors import client as client_processor
from oberth.broker.producers import ProducerTable
from oberth.broker.rebalance_locks import LOCKS_MAX, RebalanceLocks
from oberth.broker.subscriptions import Subscription
from oberth.formats import java_string
from oberth.formats.java_string import java_hash, tags_hash

ROOT = Path(oberth.__file__).parent
SERVING = ("broker", "namesrv", "remoting", "formats", "store", "client")

BOUNDED = {
    "broker/acl/access_control.py:_NOBODY": "never added to",
    "broker/acl/signature.py:_PICKS": "1024 headers of 800 characters; flooded below",
    "broker/consumer_filters.py:EXPRESSIONS": "by characters; flooded below",
    "broker/known_settings.py:known_defaults": "no arguments, one table",
    "broker/known_settings.py:known_options": "no arguments, one table",
    "broker/processors/pull.py:_kept_tags_filter": "4096 sets of 16 numbers; flooded below",
    "formats/java_string.py:_kept_tags_hash": "4096 tags of 256 bytes; flooded below",
    "formats/message.py:encode_host": "4096 addresses, which the kernel gave",
    "formats/message.py:decode_host": "4096 addresses of 8 or 20 bytes",
    "formats/bean.py:_FIELDS": "one entry for each class",
    "formats/options.py:options_of": "one entry for each class",
    "formats/options.py:_by_key": "one entry for each class",
    "formats/json_reader.py:_string_or_bare_key": "one pattern",
    "remoting/bodies/base.py:_DECODERS": "one entry for each class",
    "remoting/aio/tls.py:_self_signed_context": "one certificate",
    "store/bulk_dispatch.py:_stored_name": "16 384 topics of stored records, 127 bytes each",
    "store/residency.py:units_layout": "256 layouts of 15 kB at most",
    "store/store_lock.py:_held": "one entry for each open store",
}


def caches(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=decorators):
                if any("cache" in ast.unparse(each) for each in decorators):
                    yield name
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                text = ast.unparse(value)
                begins_empty = text in ("{}", "set()", "[]", "dict()") or (
                    isinstance(value, ast.Call) and "Cache" in ast.unparse(value.func)
                )
                if begins_empty or "OrderedDict(" in text or "defaultdict(" in text:
                    yield name


def test_every_cache_is_known() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for folder in SERVING
        for path in (ROOT / folder).rglob("*.py")
        for name in caches(path)
        if "offline" not in path.parts
    }
    assert found == set(BOUNDED)


def size_of(value: object) -> int:
    """Bytes of a value and of what it holds."""
    inner: list[object] = []
    if isinstance(value, dict):
        inner = [*value.keys(), *value.values()]
    elif isinstance(value, tuple | list | set | frozenset):
        inner = list(value)
    return sys.getsizeof(value) + sum(map(size_of, inner))


def test_refused_requests_leave_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "_PICKS", {})
    key = SecretKey(b"secret")
    for number in range(300):
        fields = {f"{number}-{each}-{'x' * 200}": "" for each in range(400)}
        assert not key.has_signed({**fields, SIGNATURE: "forged"}, b"")
    assert not signature._PICKS
    for number in range(3 * signature._PICKS_MAX):
        fields = {f"\U0001f600{number}-{each}-{'x' * 10}": "" for each in range(35)}
        assert not key.has_signed({**fields, SIGNATURE: "forged"}, b"")
    assert 0 < len(signature._PICKS) <= signature._PICKS_MAX
    assert size_of(signature._PICKS) < 12_000_000


def test_expressions_are_kept_by_their_size() -> None:
    cache = ExpressionCache()
    for number in range(200):
        cache.get(f"a = {number} AND b = '{'x' * 20_000}'")
    assert cache.size <= EXPRESSION_CACHE_SIZE
    assert len(cache) == EXPRESSION_CACHE_SIZE // 20_000
    newest = cache.get(f"a = 199 AND b = '{'x' * 20_000}'")
    assert cache.get(newest.text) is newest
    for number in range(2 * EXPRESSION_CACHE_SIZE // 8):
        cache.get(f"a={number % 20_000}")
    assert cache.size <= EXPRESSION_CACHE_SIZE


def test_long_tags_are_not_kept() -> None:
    java_string._kept_tags_hash.cache_clear()
    pull._kept_tags_filter.cache_clear()
    for number in range(50):
        tags = f"{number}" * 10_000
        assert tags_hash(tags.encode()) == java_hash(tags)
        assert pull._tags_filter(frozenset(range(number, number + 1000))).codes
    assert java_string._kept_tags_hash.cache_info().currsize == 0
    assert pull._kept_tags_filter.cache_info().currsize == 0
    assert tags_hash(b"TagA") == java_hash("TagA")
    assert java_string._kept_tags_hash.cache_info().currsize == 1


def test_groups_of_one_connection_are_limited() -> None:
    producers, table = ProducerTable(), ConsumerTable()
    for number in range(GROUPS_PER_CHANNEL_MAX + 500):
        client = ClientInfo("channel", "c", "JAVA", 479, 0)
        producers.register(f"p{number}", client)
        table.register(f"c{number}", client, GroupData(), [], 0)
    assert len(producers.groups()) == GROUPS_PER_CHANNEL_MAX
    assert len(table) == GROUPS_PER_CHANNEL_MAX
    assert not producers.register("x" * 256, ClientInfo("other", "c", "JAVA", 479, 0))
    other = ClientInfo("other", "c", "JAVA", 479, 0)
    assert producers.register("p0", other)
    assert table.register("c0", other, GroupData(), [Subscription("T")], 0)
    for each in (producers, table):
        left = [len(each.connection_closed("channel")) for _ in range(6)]
        assert left == [LEFT_AT_ONCE] * 5 + [0]
    assert producers.groups() == ["p0"]
    assert [group.name for group in table] == ["c0"]
    assert table.remove_group("c0")
    assert table.connection_closed("other") == []
    assert producers.connection_closed("other") == ["p0"]


def test_very_many_groups_are_looked_at_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "SCANNED_AT_ONCE", 30)
    monkeypatch.setattr(producers, "SCANNED_AT_ONCE", 20)
    monkeypatch.setattr(rebalance_locks, "SCANNED_AT_ONCE", 20)
    table, senders, locks = ConsumerTable(), ProducerTable(), RebalanceLocks()
    for number in range(30):
        client = ClientInfo(number, "c", "JAVA", 479, 0)
        table.register(f"g{number}", client, GroupData(), [Subscription("T")], 0)
        senders.register(f"g{number}", client)
        assert locks.lock(f"g{number}", "c", [("T", "broker-a", 0)], 0)
    assert [len(table.scan_expired(1000, 100, 100)) for _ in range(3)] == [10] * 3
    assert [len(senders.scan_expired(1000, 100)) for _ in range(3)] == [10] * 3
    left = []
    for _ in range(3):
        locks.scan_expired(10**9)
        left.append(len(locks._groups))
    assert left == [20, 10, 0]
    assert not any(each.is_scanning for each in (table, senders, locks))
    assert len(table) == len(senders.groups()) == 0


async def test_groups_are_left_and_looked_at_in_turns(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (consumers, producers, client_processor):
        monkeypatch.setattr(module, "LEFT_AT_ONCE", 2)
    for module in (consumers, producers, rebalance_locks):
        monkeypatch.setattr(module, "SCANNED_AT_ONCE", 1)
    live = await make_live(autoCreateSubscriptionGroup="true")
    parts = live.broker.parts
    for number in range(7):
        await live.peer.heartbeat(f"g{number}", {"T": "*"})
    channel = next(iter(parts.consumers.get("g0").clients))
    for number in range(5):
        client = ClientInfo(channel, "c", "JAVA", 479, parts.now_ms())
        parts.producers.register(f"p{number}", client)
    clients = live.broker.processors.clients
    clients.scan_expired(parts.now_ms())
    await live.until(lambda: not parts.consumers.is_scanning and not parts.producers.is_scanning)
    assert (len(parts.consumers), len(parts.producers.groups())) == (7, 5)
    clients.connection_closed(channel)
    assert (len(parts.consumers), len(parts.producers.groups())) == (5, 3)
    await live.until(lambda: not len(parts.consumers) and not parts.producers.groups())


async def test_groups_and_topics_are_not_made_beyond_a_connections_room(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "GROUPS_PER_CHANNEL_MAX", 3)
    live = await make_live(autoCreateSubscriptionGroup="true")
    for number in range(5):
        await live.peer.heartbeat(f"g{number}", {"T": "*"})
    parts = live.broker.parts
    assert [f"g{number}" in parts.groups for number in range(5)] == [True] * 3 + [False] * 2
    assert [f"%RETRY%g{number}" in parts.topics for number in range(5)] == [True] * 3 + [False] * 2
    await live.peer.heartbeat("g0", {"T": "*", "U": "*"})  # a group that it is in
    assert "U" in parts.consumers.get("g0").subscriptions


def test_subscriptions_of_all_groups_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    size = consumers.size_of(Subscription("T00", "a||b"))
    monkeypatch.setattr(consumers, "SUBSCRIBED_BYTES_MAX", 20 * size)
    table = ConsumerTable()

    def register(group: str, count: int, version: int = 0, tags: str = "a||b") -> int:
        client = ClientInfo(f"channel of {group}", "c", "JAVA", 479, 0)
        wanted = [Subscription(f"T{n:02}", tags, sub_version=version) for n in range(count)]
        table.register(group, client, GroupData(), wanted, 0)
        found = table.get(group)
        assert found is not None
        held = sum(map(consumers.size_of, found.subscriptions.values()))
        assert held == found.size
        return len(found.subscriptions)

    assert register("much", 50) == 20
    # Who comes later has its share, however much the others hold.
    assert register("later", 50) == 10
    assert register("g", 3) == 3
    assert register("much", 50, 1) == 20 // 3 + 1  # and they come down to theirs
    assert register("g", 3, 2, "a||b||c") == 3  # longer ones in place of its own
    assert table.subscribed_bytes == sum(group.size for group in table)
    assert register("g", 1, 3) == 1
    assert table.subscribed_bytes == sum(group.size for group in table)
    table.scan_expired(601, 10_000, 600)
    assert table.subscribed_bytes == sum(group.size for group in table) == 0
    assert register("g", 2, 4) == 2
    table.connection_closed("channel of g")
    table.remove_group("much")
    table.remove_group("later")
    assert table.subscribed_bytes == 0


async def test_routes_that_assignments_ask_for_are_limited(
    make_live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "ROUTES_MAX", 3)
    live = await make_live()
    routes = live.broker.processors.assignment._routes
    for topic in ["x" * 300, *(f"t{number}" for number in range(10))]:
        body = {"topic": topic, "consumerGroup": "G", "clientId": "c", "strategyName": "AVG"}
        assert (await live.peer.call(400, body=json.dumps(body).encode())).code == 0
        assert len(routes) <= 3
        routes = live.broker.processors.assignment._routes
    assert "t9" in routes
    assert "x" * 300 not in routes
    live.clock.ahead_ms += assignment.ROUTE_AGE_MS_MAX
    body = {"topic": "t10", "consumerGroup": "G", "clientId": "c", "strategyName": "AVG"}
    await live.peer.call(400, body=json.dumps(body).encode())
    assert list(live.broker.processors.assignment._routes) == ["t10"]


async def test_request_modes_are_limited(make_live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MODES_MAX", 3)
    live = await make_live(autoCreateSubscriptionGroup="true")
    await live.peer.send("T")

    async def set_mode(group: str, mode: str = "POP") -> int:
        body = {"topic": "T", "consumerGroup": group, "mode": mode, "popShareQueueNum": 1}
        return int((await live.peer.call(401, body=json.dumps(body).encode())).code)

    assert [await set_mode(f"g{number}") for number in range(5)] == [0, 0, 0, 1, 1]
    assert await set_mode("g0", "PULL") == 0  # one that is there
    live.broker.parts.groups.delete("g1")
    assert [await set_mode(f"g{number}") for number in range(2, 5)] == [0, 0, 1]
    modes = live.broker.processors.assignment
    assert modes.mode_of("T", "g0") == ("PULL", 1)
    assert modes.mode_of("T", "g3")[0] == "POP"


def test_what_requests_declare_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "COMPENSATED_MAX", 50)
    table = ConsumerTable()
    for number in range(200):
        table.compensate_subscription(f"g{number}", Subscription("T", "x" * 4000), 0)
    table.compensate_subscription("g0", Subscription("U", "x" * 5000), 0)
    assert sum(table.find_subscription(f"g{n}", "T") is not None for n in range(200)) == 50
    table.compensate_subscription("g0", Subscription("V", "x"), 0)  # of a group that is known
    assert table.find_subscription("g0", "U") is table.find_subscription("g0", "V") is None
    assert table.remove_group("g0") is None
    table.compensate_subscription("g0", Subscription("V", "x"), 0)
    assert table.find_subscription("g0", "V") is not None
    table.scan_expired(601, 1, 600)
    assert all(table.find_subscription(f"g{n}", "T") is None for n in range(200))


def test_locks_are_limited() -> None:
    locks = RebalanceLocks()
    queues = [("T", "broker-a", number) for number in range(LOCKS_MAX)]
    assert len(locks.lock("g", "c", queues, 0)) == LOCKS_MAX
    assert locks.lock("g", "c", queues[:3], 0) == queues[:3]
    assert locks.lock("h", "c", queues[:1], 0) == []
    locks.unlock("g", "c", queues[:1])
    assert locks.lock("h", "c", queues[:2], 0) == queues[:1]
    assert locks.lock("x" * 256, "c", queues[:1], 0) == []
    locks.scan_expired(10**9)
    assert locks.lock("h", "c", [("x" * 256, "b", 0), ("T", "x" * 256, 0), queues[7]], 0) == [
        queues[7]
    ]
