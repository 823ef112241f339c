"""Queue mappings: offsets go there and back, and a list that could mislead consumers is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oberth.errors import ConfigFormatError
from oberth.formats import queue_mapping as qm
from oberth.formats.config_files import LogicQueueMappingItem, TopicQueueMappingDetail


def item(gen: int, bname: str, queue_id: int, logic: int, **more: Any) -> LogicQueueMappingItem:
    return LogicQueueMappingItem(
        gen=gen, bname=bname, queue_id=queue_id, logic_offset=logic, **more
    )


TWO = [item(0, "a", 1, 0), item(1, "b", 0, 10_000)]
UNDECIDED = [*TWO, item(2, "c", 4, -1)]


def detail(bname: str, queues: dict[int, Any], **more: Any) -> TopicQueueMappingDetail:
    return TopicQueueMappingDetail(
        topic="T", bname=bname, hosted_queues=queues, total_queues=len(queues), **more
    )


@settings(deadline=None)
@given(
    logic=st.integers(0, 2**50),
    start=st.integers(0, 2**40),
    distance=st.integers(0, 2**50),
)
def test_there_and_back(logic: int, start: int, distance: int) -> None:
    one = item(0, "a", 0, logic, start_offset=start)
    assert qm.to_physical(one, qm.to_logical(one, start + distance)) == start + distance
    assert qm.to_logical_within(one, start + distance) == logic + distance


def test_outside_of_a_stretch() -> None:
    one = item(1, "a", 0, 100, start_offset=5, end_offset=9)
    assert qm.to_logical(one, 2) == 100
    assert qm.to_logical_within(one, 20) == 104
    assert qm.known_end(one) == 104
    assert qm.to_physical(one, 90) < 0
    assert qm.to_logical_within(UNDECIDED[2], 7) == -1


@pytest.mark.parametrize(("offset", "gen"), [(-5, 0), (0, 0), (9_999, 0), (10_000, 1), (2**60, 1)])
@pytest.mark.parametrize("items", [TWO, UNDECIDED])
def test_which_stretch(items: list[LogicQueueMappingItem], offset: int, gen: int) -> None:
    found = qm.find_item(items, offset)
    assert found is not None
    assert found.gen == gen


def test_neighbours() -> None:
    assert qm.first_item(UNDECIDED) is TWO[0]
    assert qm.last_item(UNDECIDED) is TWO[1]
    assert qm.next_item(UNDECIDED, TWO[0]) is TWO[1]
    assert qm.next_item(UNDECIDED, TWO[1]) is None
    assert qm.find_item([UNDECIDED[2]], 0) is None
    assert qm.leads(detail("c", {}), UNDECIDED)
    assert not qm.leads(detail("a", {}), UNDECIDED)
    assert not qm.leads(detail("a", {}), [])


@pytest.mark.parametrize(
    "items",
    [
        [item(0, "", 0, 0)],
        [item(-1, "a", 0, 0)],
        [item(0, "a", -1, 0)],
        [item(0, "a", qm.LOGICAL_QUEUES_MAX, 0)],
        [item(0, "a", 0, 0, start_offset=-1)],
        [item(0, "a", 0, 0, start_offset=5, end_offset=4)],
        [item(0, "a", 0, -1), item(1, "b", 0, 5)],
        [item(0, "a", 0, 0), item(0, "b", 0, 5)],
        [item(0, "a", 0, 5), item(1, "b", 0, 5)],
        [item(0, "a", 0, 0, end_offset=7), item(1, "b", 0, 5)],
        [item(0, "a", 0, 2**62)],
        [item(n, "a", 0, n) for n in range(qm.STRETCHES_MAX + 1)],
    ],
)
def test_no_list(items: list[LogicQueueMappingItem]) -> None:
    with pytest.raises(ConfigFormatError, match="here"):
        qm.check_items(items, "here")


@pytest.mark.parametrize(
    "wrong",
    [
        detail("", {}),
        detail("a", {-1: TWO}),
        detail("a", {qm.LOGICAL_QUEUES_MAX: TWO}),
        TopicQueueMappingDetail(topic="T", bname="a", total_queues=-1),
        TopicQueueMappingDetail(topic=None, bname="a"),
    ],
)
def test_no_detail(wrong: TopicQueueMappingDetail) -> None:
    with pytest.raises(ConfigFormatError):
        qm.check_detail(wrong)


def test_successors() -> None:
    qm.check_items(UNDECIDED, "here")
    decided = [*TWO, item(2, "c", 4, 20_000)]
    for old, new in [
        ([], TWO),
        (TWO, UNDECIDED),
        (UNDECIDED, decided),  # the place was decided
        (decided, decided[1:]),  # nothing is left of the first
    ]:
        qm.check_successor(old, new, "here", is_same_epoch=False)
    for old, new in [
        (TWO, []),
        (TWO, [item(0, "a", 2, 0), TWO[1]]),
        (TWO, [TWO[0], item(1, "x", 0, 10_000)]),
        (TWO, [TWO[0], item(1, "b", 0, 9_000)]),
        (decided, UNDECIDED),
    ]:
        with pytest.raises(ConfigFormatError):
            qm.check_successor(old, new, "here", is_same_epoch=False)
    with pytest.raises(ConfigFormatError):
        qm.check_successor(TWO, UNDECIDED, "here", is_same_epoch=True)


def test_who_leads() -> None:
    older = qm.mapping_info(detail("a", {0: [TWO[0]], 1: [TWO[0]]}, epoch=1))
    newer = qm.mapping_info(detail("b", {0: TWO, 3: TWO}, epoch=2))
    newer["totalQueues"] = 4
    assert older["currIdMap"] == {"0": 1, "1": 1}
    name = "__syslo__global__"
    for both in ([older, newer], [newer, older, 7, {"bname": "x", "currIdMap": 3}]):
        assert qm.logical_queues(both) == {
            (name, 0): "b",
            (name, 1): "a",
            (name, 2): qm.NO_BROKER,
            (name, 3): "b",
        }
    assert qm.logical_queues([]) == {}
    assert qm.logical_broker_name("unit") == "__syslo__unit"


def test_topic_config() -> None:
    body = b'{"topicName":"T","mappingDetail":{"bname":"a","hostedQueues":{0:[{"gen":0}]}}}'
    found = qm.mapping_of_topic_config(body)
    assert found is not None
    assert found.hosted_queues[0][0].end_offset == -1
    assert qm.mapping_of_topic_config(b'{"topicName":"T"}') is None
    with pytest.raises(ConfigFormatError):
        qm.mapping_of_topic_config(b"[")


def test_logical_queues_of_all_scopes_are_limited() -> None:
    mappings = [
        {"bname": f"b{n}", "scope": f"s{n}", "epoch": 1, "totalQueues": 2**31 - 1} for n in range(9)
    ]
    assert len(qm.logical_queues(mappings)) == qm.LOGICAL_QUEUES_MAX
    assert qm.logical_queue_count(mappings) == 9 * (2**31 - 1)
