"""Commits, resets and the file; a model beside it, and the files of Apache's brokers."""

from __future__ import annotations

import asyncio
import random
import tarfile
import threading
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.broker import config_file, consumer_offsets
from oberth.broker.consumer_offsets import (
    DELETED_A_TURN,
    KEYS_A_TURN,
    PAIRS_SORTED_MAX,
    ConsumerOffsets,
)
from oberth.broker.lmq_consumer_offsets import LmqConsumerOffsets
from oberth.broker.tasks import in_turns
from oberth.errors import ConfigFormatError
from oberth.formats.config_json import parse_config
from oberth.formats.json_writer import config_in_slices

GOLDEN = Path(__file__).parents[1] / "golden"


def written(slices: Generator[None, None, Any]) -> Any:
    """What a body is when its last slice is there."""
    while True:
        try:
            next(slices)
        except StopIteration as ended:
            return ended.value


def reloaded(offsets: ConsumerOffsets) -> ConsumerOffsets:
    other = ConsumerOffsets()
    other.read(parse_config(offsets.encode()))
    return other


def test_a_commit_may_go_back() -> None:
    offsets = ConsumerOffsets()
    assert offsets.query("G", "T", 0) == -1
    assert offsets.commit("G", "T", 0, 10, 1)
    assert offsets.commit("G", "T", 0, 4, 2)
    assert offsets.query("G", "T", 0) == 4
    assert offsets.query("G", "T", 1) == -1


def test_a_reset_is_pending_for_its_queue_alone() -> None:
    offsets = ConsumerOffsets()
    was_dirty = offsets.is_dirty
    offsets.commit("g", "T", 0, 5, 1)
    assert (was_dirty, offsets.is_dirty) == (False, True)
    assert not offsets.has_reset("g", "T", 0)
    offsets.assign_reset("g", "T", 0, 2, 1)
    asked = [("g", "T", 0), ("g", "T", 1), ("g", "U", 0), ("h", "T", 0)]
    assert [offsets.has_reset(*each) for each in asked] == [True, False, False, False]


@pytest.mark.parametrize("kind", [ConsumerOffsets, LmqConsumerOffsets])
def test_offsets_of_ever_new_groups_are_limited(
    kind: type[ConsumerOffsets], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_offsets, "PAIRS_MAX", 3)
    monkeypatch.setattr(consumer_offsets, "OFFSETS_MAX", 5)
    offsets = kind()
    assert [offsets.commit(f"g{n}", "T", 0, 1, 1) for n in range(5)] == [True] * 3 + [False] * 2
    assert [offsets.commit("g0", "T", n, 2, 1) for n in range(5)] == [True] * 3 + [False] * 2
    assert offsets.commit("g0", "T", 2, 3, 1)  # one that is there goes on
    assert not offsets.assign_reset("g9", "T", 0, 1, 1)
    assert not offsets.has_reset("g9", "T", 0)
    assert offsets.commit("own", "T", 0, 1, 1, is_own=True)  # what the broker works off goes on
    assert offsets.query("own", "T", 0) == 1
    offsets.delete_group("own")
    for number in range(5):
        offsets.commit_pull(f"p{number}", "T", 0, 1)
    assert sum(offsets.query_pull(f"p{number}", "T", 0) == 1 for number in range(5)) == 0
    offsets.delete_group("g0")
    for number in range(5):
        offsets.commit_pull(f"p{number}", "T", 0, 1)
    assert sum(offsets.query_pull(f"p{number}", "T", 0) == 1 for number in range(5)) == 3
    for other in (offsets, kind()):
        other.read(parse_config(offsets.encode()))
        assert [other.commit("g3", "T", n, 1, 1) for n in range(5)] == [True] * 3 + [False] * 2
        for _ in other.merge_in_slices(other.decoded(parse_config(offsets.encode()))):
            pass
        assert not other.commit("g4", "T", 0, 1, 1)
    if kind is LmqConsumerOffsets:
        offsets = kind()
        found = [offsets.commit(f"%LMQ%{n}", "T", 0, 1, 1) for n in range(5)]
        assert found == [True] * 3 + [False] * 2
        assert offsets.commit("%LMQ%0", "T", 0, 2, 1)


def test_a_pending_reset_voids_commits_until_it_is_taken() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 10, 1)
    offsets.assign_reset("G", "T", 0, 3, 2)
    assert not offsets.commit("G", "T", 0, 11, 3)
    assert offsets.commit("G", "T", 1, 11, 3)
    assert offsets.query("G", "T", 0) == 3
    assert offsets.take_reset("G", "T", 0) == 3
    assert offsets.take_reset("G", "T", 0) is None
    assert offsets.query("G", "T", 0) == 3
    assert offsets.commit("G", "T", 0, 5, 4)


def test_first_offsets_and_resets_are_urgent() -> None:
    offsets = ConsumerOffsets()

    def is_urgent() -> bool:
        return offsets.is_urgent

    assert not is_urgent()
    offsets.commit("G", "T", 0, 0, 1)
    assert is_urgent()
    offsets.encode()
    offsets.commit("G", "T", 0, 7, 2)
    assert offsets.is_dirty
    assert not is_urgent()
    offsets.assign_reset("G", "T", 0, 3, 3)
    assert is_urgent()
    offsets.encode()
    assert not is_urgent()
    offsets.commit("G", "T", 1, 1, 4)
    assert is_urgent()


async def test_a_first_offset_is_soon_on_the_disk(make_live: Any) -> None:
    live = await make_live(flushConsumerOffsetInterval="60000")
    path = live.broker.parts.config_dir / "consumerOffset.json"

    def written() -> dict[str, int]:
        table = parse_config(path.read_bytes())["offsetTable"] if path.exists() else {}
        found: dict[str, int] = table.get("T@G", {})
        return {str(queue_id): offset for queue_id, offset in found.items()}

    live.broker.parts.offsets.commit("G", "T", 0, 5, live.clock())
    await live.later(1_000)
    await live.until(lambda: written() == {"0": 5})
    live.broker.parts.offsets.commit("G", "T", 0, 6, live.clock())
    await live.later(5_000)
    await live.until(lambda: not live.broker.services.table_files.is_writing)
    assert written() == {"0": 5}
    live.broker.parts.offsets.commit("G", "T", 1, 1, live.clock())
    await live.later(1_000)
    await live.until(lambda: written() == {"0": 6, "1": 1})


def test_a_second_reset_replaces_the_first() -> None:
    offsets = ConsumerOffsets()
    offsets.assign_reset("G", "T", 0, 3, 1)
    offsets.assign_reset("G", "T", 0, 8, 2)
    assert offsets.take_reset("G", "T", 0) == 8
    assert offsets.query("G", "T", 0) == 8


def test_a_reset_survives_a_restart_as_the_offset_it_is() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 10, 1)
    offsets.assign_reset("G", "T", 0, 3, 2)
    assert reloaded(offsets).query("G", "T", 0) == 3


def test_topics_and_groups_are_found_and_forgotten() -> None:
    offsets = ConsumerOffsets()
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G"), ("%RETRY%G", "G")):
        offsets.commit(group, topic, 0, 1, 1)
    assert sorted(offsets.topics_of_group("G")) == ["%RETRY%G", "T", "U"]
    assert sorted(offsets.groups_of_topic("T")) == ["G", "H"]
    offsets.delete_topic("T")
    assert sorted(offsets.topics_of_group("G")) == ["%RETRY%G", "U"]
    offsets.delete_group("G")
    assert [topic for topic, _, _ in offsets] == []


def test_the_data_version_counts_steps() -> None:
    offsets = ConsumerOffsets(update_version_step=3)
    for offset in range(7):
        offsets.commit("G", "T", 0, offset, 100 + offset)
    assert (offsets.data_version.counter, offsets.data_version.timestamp) == (2, 105)


def test_the_file_is_made_anew_only_where_it_changed() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 1, 1)
    offsets.commit_pull("G", "T", 0, 9)
    first = offsets.encode()
    dirty = [offsets.is_dirty]
    assert offsets.encode() == first
    offsets.commit("G", "U", 2, 5, 1)
    dirty.append(offsets.is_dirty)
    assert dirty == [False, True]
    document = parse_config(offsets.encode())
    assert document["offsetTable"] == {"T@G": {0: 1}, "U@G": {2: 5}}
    assert document["pullOffsetTable"] == {"T@G": {0: 9}}


def test_entries_are_made_a_few_at_a_time() -> None:
    offsets = ConsumerOffsets()
    for number in range(5):
        offsets.commit(f"G{number}", 'qu"ote', 0, number, 1)
    offsets.commit_pull("G", "T", 3, 9)
    assert [offsets.prepare(2) for _ in range(3)] == [True, True, False]
    document = parse_config(offsets.encode())
    assert document["offsetTable"] == {f'qu"ote@G{number}': {0: number} for number in range(5)}
    assert document["pullOffsetTable"] == {"T@G": {3: 9}}
    table = {"T@G": {0: 1, 12: 2}, "U@G": {}}
    offsets = ConsumerOffsets()
    offsets.read({"offsetTable": table})
    offsets.prepare(9)
    whole = {"dataVersion": offsets.data_version.to_json(), "offsetTable": table}
    assert parse_config(offsets.encode()) == {**whole, "pullOffsetTable": {}}


@pytest.mark.parametrize("document", [[], {"offsetTable": 3}, {"offsetTable": {"T@G": {"0": "x"}}}])
def test_what_is_no_offset_file_is_refused(document: object) -> None:
    with pytest.raises(ConfigFormatError):
        ConsumerOffsets().read(document)


@pytest.mark.parametrize("kind", [ConsumerOffsets, LmqConsumerOffsets])
def test_a_key_that_is_no_pair_costs_its_own_entry(
    kind: type[ConsumerOffsets], caplog: pytest.LogCaptureFixture
) -> None:
    """The whole file was refused, and with it the start of the broker or a slave's look at 43."""
    odd = {"T": {"0": 1}, "@G": {"0": 2}, "T@": {"0": 3}}
    offsets = kind()
    offsets.read(
        {
            "offsetTable": {**odd, "T@G": {"0": 4}, "T@x@y": {"0": 5}},
            "pullOffsetTable": odd,
            "lmqOffsetTable": {"T": 1, "%LMQ%a@%LMQ%b": 2},
        }
    )
    assert [each[:2] for each in offsets if each[1] != "%LMQ%b"] == [("T", "G"), ("T@x", "y")]
    assert "offsets are left out whose key is not topic@group: 3, the first of 'T'" in caplog.text
    again = kind()
    again.read(parse_config(offsets.encode()))
    assert sorted(again) == sorted(offsets)
    for _ in again.merge_in_slices(kind.decoded({"offsetTable": {**odd, "U@G": {"0": 6}}})):
        pass
    assert again.query("G", "U", 0) == 6
    assert sorted(again.topics_of_group("G")) == ["T", "U"]


def test_names_of_light_queues_and_groups_hold_an_at() -> None:
    offsets = LmqConsumerOffsets()
    wanted = [("%LMQ%$p$x@y", "G"), ("T", "%LMQ%GID@@@dev"), ("%LMQ%a@b", "%LMQ%c@d")]
    for topic, group in wanted:
        assert offsets.commit(group, topic, 0, 7, 1)
        offsets.commit_pull(group, topic, 0, 9)
    again = LmqConsumerOffsets()
    again.read(parse_config(offsets.encode()))
    assert sorted(each[:2] for each in again) == sorted(wanted)
    for topic, group in wanted:
        assert (again.query(group, topic, 0), again.query_pull(group, topic, 0)) == (7, 9)
        assert again.groups_of_topic(topic) == [group]
        assert again.topics_of_group(group) == [topic]
        assert written(again.topics_of_group_in_slices(group)) == [topic]
        assert written(again.groups_of_topic_in_slices(topic)) == [group]
        assert written(again.keys_of_topics_in_slices({topic})) == [f"{topic}@{group}"]
    again.delete_group("%LMQ%c@d")
    again.delete_topic("T")
    assert [each[:2] for each in again] == wanted[:1]


@pytest.mark.parametrize("group", ["", "a@b", "x" * 256, "a b", "%LMQ%" + "x" * 251])
@pytest.mark.parametrize("kind", [ConsumerOffsets, LmqConsumerOffsets])
def test_a_group_whose_key_nobody_could_take_apart_has_no_offsets(
    kind: type[ConsumerOffsets], group: str, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = kind()
    assert not offsets.commit(group, "T", 0, 7, 1)
    offsets.commit_pull(group, "T", 0, 7)
    offsets.assign_reset(group, "T", 0, 7, 1)
    assert not offsets.has_reset(group, "T", 0)
    assert list(offsets) == []
    assert parse_config(offsets.encode())["pullOffsetTable"] == {}
    assert "not kept" in caplog.text


@pytest.mark.parametrize("name", ["client-5.5.0", "retry-4.9.7", "trans-5.5.0"])
def test_apaches_files_are_read_and_written_back(name: str) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        member = archive.extractfile(f"{name}/config/consumerOffset.json")
        assert member is not None
        data = member.read()
    offsets = ConsumerOffsets()
    offsets.read(parse_config(data))
    ours = parse_config(offsets.encode())
    theirs = parse_config(data)
    assert ours["offsetTable"] == theirs["offsetTable"]
    assert ours["pullOffsetTable"] == theirs.get("pullOffsetTable", {})


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["commit", "reset", "take", "delete", "reload"]),
        st.sampled_from(["G", "H"]),
        st.sampled_from(["T", "U"]),
        st.integers(0, 2),
        st.integers(0, 100),
    ),
    max_size=40,
)


@given(OPERATIONS)
def test_against_a_model(operations: list[tuple[str, str, str, int, int]]) -> None:
    offsets = ConsumerOffsets()
    committed: dict[tuple[str, str, int], int] = {}
    pending: dict[tuple[str, str, int], int] = {}
    for kind, group, topic, queue_id, offset in operations:
        key = (group, topic, queue_id)
        if kind == "commit":
            assert offsets.commit(group, topic, queue_id, offset, 1) is (key not in pending)
            if key not in pending:
                committed[key] = offset
        elif kind == "reset":
            offsets.assign_reset(group, topic, queue_id, offset, 1)
            committed[key] = pending[key] = offset
        elif kind == "take":
            assert offsets.take_reset(group, topic, queue_id) == pending.pop(key, None)
        elif kind == "delete":
            offsets.delete(group, topic)
            for table in (committed, pending):
                for other in [each for each in table if each[:2] == (group, topic)]:
                    del table[other]
        else:
            offsets = reloaded(offsets)
            pending.clear()
        for each in {(g, t, q) for g in "GH" for t in "TU" for q in range(3)}:
            assert offsets.query(*each) == committed.get(each, -1)
    assert parse_config(offsets.encode())["offsetTable"] == dict(
        offsets.to_body()["offsetTable"].entries()
    )


def test_a_broker_of_apaches_can_pass_over_offsets_that_were_pulled() -> None:
    """Its body of 43 has no pullOffsetTable; it skips only what has quoted names."""
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, 10, 1)
    offsets.commit_pull("G", "T", 3, 5)
    raw = written(config_in_slices(offsets.to_body()))
    assert b'"T@G":{0:10}' in raw
    assert b'"T@G":{"3":5}' in raw
    other = ConsumerOffsets()
    for _ in other.merge_in_slices(other.decoded(parse_config(raw))):
        pass
    assert (other.query("G", "T", 0), other.query_pull("G", "T", 3)) == (10, 5)


def test_a_light_topic_with_an_at_sign_is_no_part_of_another() -> None:
    offsets = LmqConsumerOffsets()
    offsets.commit("g", "%LMQ%$p$x", 0, 1, 1)
    offsets.commit("g", "%LMQ%$p$x@y", 0, 2, 1)
    assert offsets.groups_of_topic("%LMQ%$p$x") == ["g"]
    offsets.delete_topic("%LMQ%$p$x")
    assert offsets.query("g", "%LMQ%$p$x", 0) == -1
    assert offsets.query("g", "%LMQ%$p$x@y", 0) == 2


async def test_very_many_groups_are_forgotten_in_one_look() -> None:
    offsets = ConsumerOffsets()
    count = 3 * DELETED_A_TURN
    for number in range(count):
        offsets.commit(f"g{number}", "T", 0, 1, 1)
        offsets.commit_pull(f"g{number}", "T", 0, 1)
    gone = {f"g{number}" for number in range(0, count, 2)}
    slices = offsets.delete_in_slices(groups=gone)
    left = [offsets.pair_count for _ in slices]
    assert left == [count - (n + 1) * DELETED_A_TURN // 2 for n in range(3)] + [count // 2] * 3
    assert set(offsets.groups_of_topic("T")) == {f"g{number}" for number in range(1, count, 2)}
    assert all(offsets.query_pull(group, "T", 0) == -1 for group in gone)


async def test_a_deletion_that_is_cancelled_leaves_nothing_out() -> None:
    offsets = ConsumerOffsets()
    for number in range(3 * DELETED_A_TURN):
        offsets.commit("G", f"t{number}", 0, 1, 1)
    task = asyncio.ensure_future(in_turns(offsets.delete_in_slices(groups=("G",))))
    await asyncio.sleep(0)
    assert offsets.pair_count == 2 * DELETED_A_TURN
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert offsets.pair_count == 0


def test_groups_of_a_topic_beside_very_many_pairs() -> None:
    offsets = LmqConsumerOffsets()
    for number in range(2 * KEYS_A_TURN):
        offsets.commit("G", f"t{number}", 0, 1, 1)
    offsets.commit("K", "t1", 0, 1, 1)
    offsets.commit("%LMQ%K", "t1", 0, 1, 1)
    slices = offsets.groups_of_topic_in_slices("t1")
    assert [next(slices), next(slices)] == [None, None]
    with pytest.raises(StopIteration) as ended:
        next(slices)
    assert ended.value.value == offsets.groups_of_topic("t1") == ["G", "K", "%LMQ%K"]


def test_pairs_of_topics_beside_very_many_others() -> None:
    offsets = LmqConsumerOffsets()
    for number in range(2 * KEYS_A_TURN):
        offsets.commit("G", f"t{number}", 0, number, 1)
    for group, topic, queue_id in (("K", "t1", 7), ("%LMQ%K", "t1", 0), ("K", "a@t2", 3)):
        offsets.commit(group, topic, queue_id, 5, 1)
    topics = {"t1", "a@t2", "unknown"}
    keys, slices = answer_and_slices(offsets.keys_of_topics_in_slices(topics))
    assert slices == 3
    found = list(offsets.among(keys))
    assert found == [each for each in offsets if each[0] in topics]
    assert found == [
        ("t1", "G", {0: 1}),
        ("t1", "K", {7: 5}),
        ("a@t2", "K", {3: 5}),
        ("t1", "%LMQ%K", {0: 5}),
    ]
    offsets.delete("K", "t1")
    offsets.delete("%LMQ%K", "t1")
    assert [each[1] for each in offsets.among(keys)] == ["G", "K"], "what is gone is left out"


def answer_and_slices(work: Generator[None, None, list[str]]) -> tuple[list[str], int]:
    """What slices give in the end, and how many there are."""
    count = 1
    while True:
        try:
            next(work)
        except StopIteration as ended:
            return ended.value, count
        count += 1


def test_pairs_are_looked_through_once_for_many_groups() -> None:
    """Each of a list's 50 groups looked through 10 000 pairs, 2.7 ms, 16 of them in one turn."""
    offsets = LmqConsumerOffsets()
    for number in range(2 * KEYS_A_TURN):
        offsets.commit(f"g{number % 50}", f"t{number}", 0, 1, 1)
    first = answer_and_slices(offsets.topics_of_group_in_slices("g7"))
    assert first == (offsets.topics_of_group("g7"), 2)
    for number in range(50):
        group = f"g{number}"
        found = answer_and_slices(offsets.topics_of_group_in_slices(group))
        assert found == (offsets.topics_of_group(group), 1)
    assert answer_and_slices(offsets.topics_of_group_in_slices("nobody")) == ([], 1)


@pytest.mark.parametrize("sorted_max", [0, PAIRS_SORTED_MAX])
def test_topics_of_groups_are_known_whatever_changes(
    monkeypatch: pytest.MonkeyPatch, sorted_max: int
) -> None:
    monkeypatch.setattr(consumer_offsets, "PAIRS_SORTED_MAX", sorted_max)
    monkeypatch.setattr(consumer_offsets, "KEYS_A_TURN", 3)
    rng = random.Random(7)
    offsets, other = LmqConsumerOffsets(), LmqConsumerOffsets()
    groups, topics = ["G", "K", "%LMQ%K"], ["t", "u", "%RETRY%G"]

    def change() -> None:
        group, topic = rng.choice(groups), rng.choice(topics)
        kind = rng.randrange(6)
        if kind < 3:
            offsets.commit(group, topic, 0, rng.randrange(9), 1)
        elif kind == 3:
            offsets.delete(group, topic)
        elif kind == 4:
            other.commit(group, topic, 0, rng.randrange(9), 1)
            document = parse_config(other.encode())
            list(offsets.merge_in_slices(offsets.decoded(document)))
        else:
            offsets.read(parse_config(offsets.encode()))

    for _ in range(500):
        change()
        work = offsets.topics_of_group_in_slices("G")
        next(work, None)
        change()  # while the pairs are sorted
        list(work)
        for group in groups:
            found, _ = answer_and_slices(offsets.topics_of_group_in_slices(group))
            assert sorted(found) == sorted(offsets.topics_of_group(group))


class Watched(dict[str, Any]):
    """Counts the entries that are looked at one by one, and knows when all were taken at once."""

    def __init__(self, table: dict[str, Any]) -> None:
        super().__init__(table)
        self.looked_at = 0
        self.all_at_once = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_at += 1
        return super().get(key, default)

    def items(self) -> Any:
        self.all_at_once += 1
        return super().items()

    def slice(self) -> int:
        """What was looked at since it was asked last."""
        count, self.looked_at = self.looked_at, 0
        return count


def many_pairs() -> tuple[LmqConsumerOffsets, list[Watched]]:
    offsets = LmqConsumerOffsets()
    for number in range(3000):
        offsets.commit("G", f"t{number}", 0, 1, 1)
        offsets.commit("%LMQ%G", f"t{number}", 0, 1, 1)
    offsets._offsets, offsets._light = Watched(offsets._offsets), Watched(offsets._light)
    return offsets, [offsets._offsets, offsets._light]


def test_what_shows_all_offsets_takes_down_keys_alone() -> None:
    """Entries of 200 000 pairs, taken down in one go, held the loop for 35 ms."""
    offsets, tables = many_pairs()
    slices = config_in_slices(offsets.to_body())
    most = 0
    shown = bytearray()
    while not shown:
        try:
            next(slices)
        except StopIteration as end:
            shown = end.value
        most = max(most, *(table.slice() for table in tables))
        offsets.delete("G", "t2999")  # left out, as it is gone before its turn
    assert 0 < most <= 300
    assert [table.all_at_once for table in tables] == [0, 0]
    assert shown.count(b"@") == 2999 + 3000
    found = iter(offsets)
    next(found)
    assert [table.all_at_once for table in tables] == [0, 0]
    assert len(list(found)) == 2999 + 3000 - 1


async def test_the_files_text_is_joined_beside_the_loop(
    make_live: Callable[..., Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining entries of 200 000 pairs held the loop for 25 ms, every five seconds."""
    live = await make_live()
    threads: list[threading.Thread] = []
    original = config_file.document_bytes

    def document_bytes(*args: Any) -> bytes:
        threads.append(threading.current_thread())
        return original(*args)

    monkeypatch.setattr(consumer_offsets, "document_bytes", document_bytes)
    live.broker.parts.offsets.commit("G", "T", 0, 1, 1)
    await live.broker.services.table_files._write_changed()
    assert threads
    assert threading.main_thread() not in threads


def test_a_snapshot_is_as_it_was() -> None:
    offsets, _ = many_pairs()
    before = offsets.encode()
    make = offsets.snapshot()
    offsets.commit("G", "t0", 0, 7, 1)
    offsets.commit("%LMQ%G", "t0", 0, 7, 1)
    assert make() == before
    again = LmqConsumerOffsets()
    again.read(parse_config(offsets.encode()))
    assert again.query("G", "t0", 0) == again.query("%LMQ%G", "t0", 0) == 7
