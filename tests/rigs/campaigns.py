"""What of the long tests `make test` runs: `tests/campaigns.txt` says it, this module reads it.

A line of the list is a test and what `make test` has of it, which is one of

    none              the test is for `make test-long` alone
    [PATTERN] ...     cases by their ids, ``*`` stands for anything; `make test-long` has the others
    SMALL of LARGE    rounds, examples or seeds: it runs in both, and asks here for its number
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from hypothesis import settings

T = TypeVar("T")
ROOT: Final = Path(__file__).parents[2]
LIST: Final = ROOT / "tests" / "campaigns.txt"
IS_LONG: Final = bool(os.environ.get("OBERTH_LONG"))
"""Whether this is `make test-long`, where tests that ask for a number get the large one."""

_ROUNDS: Final = re.compile(r"(\d+) of (\d+)")
_CASES: Final = re.compile(r"\[([^ ]*)\](?: |$)")


class Campaign(NamedTuple):
    """A line of the list.

    Attributes:
        cases: patterns of the ids that `make test` keeps.
        small: rounds in `make test`; 0: the test does not count any.
        large: rounds in `make test-long`.
    """

    cases: tuple[str, ...] = ()
    small: int = 0
    large: int = 0

    def keeps(self, name: str) -> bool:
        """Whether `make test` runs a test of this name, with its case in brackets."""
        case = name.partition("[")[2].removesuffix("]")
        return bool(self.small) or any(fnmatchcase(case, pattern) for pattern in self.cases)


def read_campaigns(text: str) -> dict[str, Campaign]:
    """The list's lines by test.

    Raises:
        ValueError: with the line that means nothing or names a test again.
    """
    found: dict[str, Campaign] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        test, _, kept = line.partition(" ")
        kept = kept.strip()
        if match := _ROUNDS.fullmatch(kept):
            made = Campaign(small=int(match[1]), large=int(match[2]))
        else:
            # An id in brackets may hold brackets, and for a pattern [ would begin a set of letters.
            made = Campaign(tuple(part.replace("[", "[[]") for part in _CASES.findall(kept)))
        if test in found or not (made.small or made.cases or kept == "none"):
            raise ValueError(f"{LIST.name}: {line}")
        found[test] = made
    return found


@cache
def campaigns() -> dict[str, Campaign]:
    """The list, by test."""
    return read_campaigns(LIST.read_text("utf-8"))


def rounds(test: str) -> int:
    """How often a test of the list does what it does: `make test` a few times, `test-long` many.

    Args:
        test: as in the list, ``tests/store/test_x.py::test_y``.
    """
    campaign = campaigns()[test]
    return campaign.large if IS_LONG else campaign.small


def some(test: str, found: Sequence[T]) -> list[T]:
    """As many of ``found`` as a test of the list has `rounds`: spread evenly, and the last."""
    count = min(rounds(test), len(found))
    return [found[(n + 1) * len(found) // count - 1] for n in range(count)]


def examples(test: str) -> int:
    """`rounds` of Hypothesis; a profile with more examples than Hypothesis' own goes before."""
    chosen = settings().max_examples
    return chosen if chosen > settings.get_profile("default").max_examples else rounds(test)


def is_long(name: str) -> bool:
    """Whether `make test-long` runs a test of this name, with its case in brackets."""
    campaign = campaigns().get(name.partition("[")[0])
    if campaign is None:
        return False
    return IS_LONG if campaign.small else not campaign.keeps(name)


def check_collected(names: Iterable[str]) -> None:
    """Every line of the list must have a test, and kept cases beside others.

    Raises:
        ValueError: if ``names`` of all tests have none for a line.
    """
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.partition("[")[0], []).append(name)
    for test, campaign in campaigns().items():
        kept = [name for name in found.get(test, []) if campaign.keeps(name)]
        if test not in found or bool(kept) != bool(campaign.cases or campaign.small):
            raise ValueError(f"{LIST.name}: no test is meant by {test}")
        if campaign.cases and len(kept) == len(found[test]):
            raise ValueError(f"{LIST.name}: all cases of {test} are kept")
