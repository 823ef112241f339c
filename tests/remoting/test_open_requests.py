"""Open requests: each leaves the table once, numbers are not given twice, deadlines are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.errors import RemotingTooMuchRequestError
from oberth.remoting.open_requests import OPAQUE_MAX, OpenRequests


def test_time_is_given_once_more_when_nothing_could_be_received() -> None:
    table: OpenRequests[str] = OpenRequests(10)
    table.open(1, 7, 0.0, 3.0, "early")
    table.open(2, 7, 8.0, 11.0, "late")
    table.extend(9.0)
    assert [each.token for each in table.expire(11.0)] == ["late"]
    assert not table.expire(11.5)
    assert [each.token for each in table.expire(12.0)] == ["early"]
    table.open(3, 7, 0.0, 3.0, "held twice")
    table.extend(9.0)
    table.extend(20.0)
    (request,) = table.expire(20.0)
    assert request.was_held


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 20)),
        st.tuples(st.just("answer"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(0, 10)),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(OPAQUE_MAX - 5, OPAQUE_MAX))
def test_any_order_against_a_dict(events: list[tuple[str, int]], first: int) -> None:
    table: OpenRequests[int] = OpenRequests(100)
    table._next_opaque = first
    model: dict[int, tuple[float, int]] = {}
    now = 0.0
    ended = []
    for serial, (event, number) in enumerate(events):
        if event == "open":
            opaque = table.next_opaque()
            assert opaque not in model
            assert 0 <= opaque <= OPAQUE_MAX
            table.open(opaque, 7, now, now + number, serial)
            model[opaque] = (now + number, serial)
        elif event == "answer":
            opaque = sorted(model)[number % len(model)] if model else number
            request = table.answered(opaque)
            expected = model.pop(opaque, None)
            assert (request and request.token) == (expected and expected[1])
            if request is not None:
                ended.append(request.token)
        else:
            now += number
            found = {request.token for request in table.expire(now)}
            gone = {opaque for opaque, (deadline, _) in model.items() if deadline <= now}
            assert found == {model.pop(opaque)[1] for opaque in gone}
            ended += found
        assert len(table) == len(model)
        assert table.next_deadline() == min((at for at, _ in model.values()), default=None)
    ended += [request.token for request in table.take_all()]
    assert sorted(ended) == [n for n, (event, _) in enumerate(events) if event == "open"]
    assert len(table) == 0


def test_a_number_that_is_open_is_passed_over() -> None:
    table: OpenRequests[str] = OpenRequests(10)
    table.open(table.next_opaque(), 7, 0, 1, "first")
    table._next_opaque = OPAQUE_MAX
    assert table.next_opaque() == OPAQUE_MAX
    assert table.next_opaque() == 1


def test_room() -> None:
    table: OpenRequests[None] = OpenRequests(1)
    table.check_room("a:1")
    table.open(table.next_opaque(), 7, 0, 1, None)
    with pytest.raises(RemotingTooMuchRequestError, match="1 requests open to a:1, allowed 1"):
        table.check_room("a:1")
