"""Epochs: the file as Apache writes it, and up to where two logs have the same history."""

from __future__ import annotations

import pytest

from oberth.errors import ConfigFormatError
from oberth.formats.epochs import Epoch, EpochTable, encode_epochs, parse_epochs


def table(*entries: tuple[int, int]) -> EpochTable:
    return EpochTable([Epoch(*each) for each in entries])


def test_the_file() -> None:
    found = table((1, 0), (3, 1234))
    data = encode_epochs(found)
    assert data == b"2\n507066449\n1-0\n3-1234\n"
    assert parse_epochs(data, name="f").entries == found.entries
    assert parse_epochs(encode_epochs(EpochTable()), name="f").entries == ()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "allowed are two numbers"),
        (b"2\nx\n", "allowed are two numbers"),
        (b"2\n507066449\n1-0\n3-1235\n", "checksum"),
        (b"3\n507066449\n1-0\n3-1234\n", "3 entries, found 2"),
    ],
)
def test_damaged_files(data: bytes, text: str) -> None:
    with pytest.raises(ConfigFormatError, match=text):
        parse_epochs(data, name="f")


def test_epochs_grow() -> None:
    found = table((1, 0), (2, 100))
    assert not found.append(Epoch(2, 100))
    assert found.append(Epoch(5, 100))
    for late in (Epoch(4, 200), Epoch(5, 101), Epoch(6, 99)):
        with pytest.raises(ConfigFormatError, match="cannot follow"):
            found.append(late)
    for wrong in (Epoch(-1, 0), Epoch(1, -1)):
        with pytest.raises(ConfigFormatError, match="allowed are 0 or more"):
            EpochTable().append(wrong)


def test_who_wrote_a_byte() -> None:
    found = table((1, 10), (2, 100))
    assert found.at(99) == (Epoch(1, 10), 100)
    assert found.at(100) == (Epoch(2, 100), None)
    assert found.at(0) == (Epoch(1, 10), 100)
    assert EpochTable().at(0) is None


@pytest.mark.parametrize(
    ("own", "end", "other", "other_end", "common"),
    [
        ([(1, 0)], 100, [(1, 0)], 300, 100),  # behind
        ([(1, 0)], 300, [(1, 0)], 100, 100),  # ahead of the master
        ([(1, 0)], 300, [(1, 0), (2, 200)], 500, 200),  # what the old master had for itself
        ([(1, 0), (2, 100)], 300, [(1, 0), (3, 100)], 500, 100),  # a master that wrote nothing
        ([(1, 0), (2, 100)], 300, [(1, 0), (2, 100), (3, 250)], 400, 250),
        ([(1, 0), (2, 120)], 300, [(1, 0), (2, 100)], 400, 100),  # the same epoch from elsewhere
        ([(1, 0), (4, 100)], 300, [(2, 0), (3, 50)], 400, None),
        ([], 0, [(1, 0)], 10, None),
    ],
)
def test_up_to_where_two_logs_are_one(
    own: list[tuple[int, int]],
    end: int,
    other: list[tuple[int, int]],
    other_end: int,
    common: int | None,
) -> None:
    assert table(*own).common_end(end, table(*other), other_end) == common


def test_cuts() -> None:
    found = table((1, 0), (2, 100), (3, 200))
    assert found.cut(200) is False
    assert found.cut_from(200) is True
    assert found.entries == (Epoch(1, 0), Epoch(2, 100))
    assert found.cut(50) is True
    assert found.last == Epoch(1, 0)
