"""Requests about lite topics are answered as Apache's broker answers them.

What a broker of 5.5.0 answered to the same requests is kept in ``observed/lite-5.5.0.json``; how it
was recorded, and what is left out, stands in ``tests.rigs.lite_answers``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clusters import cluster_for
from tests.rigs.lite_answers import LITE_CONF, answers

from oberth.errors import PeerUnavailableError

pytestmark = [pytest.mark.interop, pytest.mark.slow]

RECORD: list[list[Any]] = json.loads(
    (Path(__file__).parent / "observed" / "lite-5.5.0.json").read_text()
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """What a fresh broker of ours answers."""
    try:
        with cluster_for("oberth", tmp_path_factory.mktemp("lite"), LITE_CONF) as cluster:
            found = answers(cluster.brokers[0].address)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "number", range(len(RECORD)), ids=lambda number: f"{number}-{RECORD[number][0]}"
)
def test_answer(ours: list[list[Any]], number: int) -> None:
    assert ours[number] == RECORD[number]
