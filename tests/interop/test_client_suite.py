"""Official clients do the same with our broker as with Apache's: each scenario is run and compared.

Each (broker, client) runs its suite once; each scenario is a test of its own. What was observed
(answer codes, statuses, property names) must equal what Apache's broker gave the same client, kept
in ``observed/``; the few differences that are meant are in MEANT, with their reasons.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rigs.interop import SCENARIOS, Outcome, client_scenarios, scenarios_of

from oberth.errors import PeerUnavailableError

pytestmark = pytest.mark.interop

Outcomes = Callable[[str, str, str], Outcome]

OBSERVED = Path(__file__).parent / "observed"

#: (scenario, what) -> why ours may differ from Apache 5.5.0.
MEANT: dict[tuple[str, str], str] = {}


def test_scenario(outcome_of: Outcomes, broker: str, suite: str, scenario: str) -> None:
    outcome = outcome_of(broker, suite, scenario)
    if outcome.ok is None:
        pytest.skip(outcome.detail)
    assert outcome.ok, outcome.detail


def test_observed_as_apache(outcome_of: Outcomes, suite: str, scenario: str) -> None:
    """Ours against the record, not against a run of today."""
    record = OBSERVED / f"apache-5.5.0_{suite.partition('+')[0]}.json"
    if not record.is_file():
        pytest.skip(f"no record of Apache with {suite}")
    expected = json.loads(record.read_text()).get(scenario, {})
    outcome = outcome_of("oberth", suite, scenario)
    if not outcome.ok:
        pytest.skip("it did not get that far")
    different = {
        what: (value, outcome.observed.get(what))
        for what, value in expected.items()
        if outcome.observed.get(what) != value and (scenario, what) not in MEANT
    }
    assert not different, "expected, found: " + json.dumps(different, indent=1)


def test_scenarios_are_those_of_the_program() -> None:
    try:
        found = client_scenarios("5.5.0")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert found == list(SCENARIOS)
    assert client_scenarios("4.9.8") == scenarios_of("4.9.8")
