"""Memory is lent again only when nothing made of it is left."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oberth.kernels import memory, runtime
from oberth.kernels.gather import Gathered, gather_spans
from oberth.kernels.memory import SpareMemory, address

LARGE = memory._KEPT_SIZE_MIN


def test_what_is_in_use_is_not_lent_again() -> None:
    spare = SpareMemory()
    first = memoryview(spare.lend(LARGE))
    first[:4] = b"held"
    second = memoryview(spare.lend(LARGE))
    second[:4] = b"more"
    assert bytes(first[:4]) == b"held"
    where = address(first)
    part = first[:4]
    first.release()
    assert address(spare.lend(LARGE)) not in (where, address(second)), "a part of it is in use"
    part.release()
    again = spare.lend(LARGE)
    assert address(again) == where
    assert len(again) >= LARGE
    assert bytes(second[:4]) == b"more"


def test_an_arrow_buffer_keeps_its_memory() -> None:
    pa = pytest.importorskip("pyarrow")
    spare = SpareMemory()
    buffer = pa.py_buffer(memoryview(spare.lend(LARGE))[:LARGE])
    where = buffer.address
    cut = buffer.slice(LARGE // 2)
    del buffer
    assert address(spare.lend(LARGE)) != where
    del cut
    assert address(spare.lend(LARGE)) == where


def test_small_memory_is_not_kept_and_of_large_only_a_little() -> None:
    spare = SpareMemory()
    assert len(spare.lend(10)) == 10
    assert not spare._kept
    held = [memoryview(spare.lend(LARGE)) for _ in range(20)]
    assert len({address(each) for each in held}) == 20
    assert len(spare._kept) <= memory._KEPT_MAX


def test_blocks_that_have_become_too_small_go() -> None:
    spare = SpareMemory()
    for size in range(LARGE, 20 * LARGE, LARGE):
        assert len(spare.lend(size)) >= size
    assert len(spare._kept) == 1


spans = st.lists(
    st.one_of(st.just((0, -1)), st.tuples(st.integers(0, 200), st.integers(0, 56))), max_size=40
)


@given(st.binary(min_size=256, max_size=256), spans, st.booleans())
def test_spans_equal_those_of_plain_python(
    data: bytes, places: list[tuple[int, int]], text: bool
) -> None:
    spare = SpareMemory()
    starts, sizes = (array("i", (place[part] for place in places)) for part in (0, 1))

    def values(found: Gathered) -> list[bytes | None]:
        return [found.value(row) for row in range(found.rows)]

    compiled = gather_spans(
        data, starts, sizes, len(places), "values", text=text, memory=spare.lend
    )
    runtime.use_reference_only(True)
    try:
        plain = gather_spans(data, starts, sizes, len(places), "values", text=text)
    finally:
        runtime.use_reference_only(False)
    assert values(compiled) == values(plain)
    assert compiled.null_count == plain.null_count


def test_text_that_grows_while_it_is_mended_gets_larger_memory() -> None:
    """Each broken byte becomes three: the first block is too small."""
    spare = SpareMemory()
    data = b"\xff" * LARGE
    places = (array("i", [0]), array("i", [LARGE]))
    held = gather_spans(data, *places, 1, "text", memory=spare.lend)
    mended = gather_spans(data, *places, 1, "text", text=True, memory=spare.lend)
    assert mended.value(0) == "\ufffd".encode() * LARGE
    assert held.value(0) == data


@pytest.mark.parametrize(
    "place", [(200, 57), (256, 1), (257, 0), (-1, 1), (-(2**31), 4), (2**31 - 1, 2**31 - 1)]
)
@pytest.mark.parametrize("only_reference", [False, True])
def test_a_value_outside_of_the_data_is_refused(
    place: tuple[int, int], only_reference: bool
) -> None:
    starts, sizes = array("i", [3, place[0]]), array("i", [4, place[1]])
    runtime.use_reference_only(only_reference)
    try:
        with pytest.raises(ValueError, match="records"):
            gather_spans(bytes(256), starts, sizes, 2, "records")
    finally:
        runtime.use_reference_only(False)
