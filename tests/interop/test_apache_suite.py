"""Apache's own integration tests pass against three brokers of ours, but for what needs theirs.

The compiled tests of the release run unchanged; see tests.rigs.apache_suite. What may be
skipped is listed here, test by test: a skip that is new is a failure.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.rigs.apache_suite import GRPC, all_tests, run_tests

from oberth.errors import PeerUnavailableError

pytestmark = pytest.mark.interop

FULL = os.environ.get("OBERTH_INTEROP", "small") == "full"
SHORT = ("BatchSendIT", "QueryMsgByIdIT", "TlsIT", "BrokerGrpcIT")

#: Tests that ask the broker's objects for what no request asks for.
IN_PROCESS = {
    "LagCalculationIT.testEstimateLag",  # an estimate by the store
    "OffsetNotFoundIT.testConsumeStopAndResume",  # an RPC hook in the server
    "OffsetNotFoundIT.testOffsetNotFoundException",
    "StaticTopicIT.testRemappingAndClear",  # queues emptied under a topic that stays
}


def test_they_pass(tmp_path: Path) -> None:
    try:
        wanted = list(all_tests()) if FULL else list(SHORT)
        outcomes = list(run_tests(wanted, tmp_path))
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert [each for each in outcomes if each.outcome == "failed"] == []
    skipped = {each.test for each in outcomes if each.outcome == "skipped"}
    assert skipped <= IN_PROCESS
    ran = {each.test.partition(".")[0] for each in outcomes}
    assert ran == set(wanted)


def test_the_list_leaves_out_what_runs_inside_a_java_process() -> None:
    try:
        found = all_tests()
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    assert len(found) > 60
    assert {"PopPriorityIT", "StaticTopicIT", "TlsIT"} <= set(found)
    assert not any(".container." in name for name in found.values())
    assert {name for name in found if ".grpc." in found[name]} == set(GRPC)
