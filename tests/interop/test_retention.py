"""Apache's own store and brokers with what retention leaves behind, and `oberth top` over both.

A store whose topic was purged is opened by Apache's store code: nothing is missing that was not
purged, and what it shows of the purged part is what lies in the queue file that is still there.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.rigs.apache_store import read_store
from tests.rigs.clusters import cluster_for

from oberth.cli.main import oberth
from oberth.errors import PeerUnavailableError
from oberth.formats.broker_conf import read_store_config
from oberth.store.message_store import MessageStore
from oberth.store.messages import MessageExtBrokerInner
from oberth.store.offline.reader import StoreReader
from oberth.store.offline.verify import verify

pytestmark = pytest.mark.interop

UNITS = 100
SIZES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
@pytest.mark.parametrize("purged", [UNITS * 2 + 30, UNITS * 4])
def test_apaches_store_opens_a_purged_one(tmp_path: Path, version: str, purged: int) -> None:
    root = tmp_path / "store"
    config = read_store_config(overrides={**SIZES, "storePathRootDir": str(root)})
    count = UNITS * 4
    with MessageStore(config) as store:
        for number in range(count):
            for topic in ("T", "U"):
                body = f"{topic}{number}".encode() * 20
                assert store.put_message(
                    MessageExtBrokerInner.of(topic, body, keys=f"k{number}")
                ).ok
        while store.dispatch_behind_bytes:
            store.dispatch_nowait()
        store.retention.purge("T", {0: purged})
        assert store.min_offset_in_queue("T", 0) == purged
    try:
        dump = read_store(root, version, SIZES)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    queues = {queue["topic"]: queue for queue in dump.queues}
    kept_from = min(purged // UNITS, 3) * UNITS  # the last file is never deleted
    assert (queues["T"]["minOffset"], queues["T"]["maxOffset"]) == (kept_from, count)
    assert (queues["U"]["minOffset"], queues["U"]["maxOffset"]) == (0, count)
    offsets = {
        topic: [each["queueOffset"] for each in dump.messages if each["topic"] == topic]
        for topic in ("T", "U")
    }
    assert set(range(kept_from, count)) <= set(offsets["T"])
    assert offsets["U"] == list(range(count))
    with StoreReader(root) as reader:
        report = verify(reader)
    assert report.clean, [str(each) for each in report.damage]
    with MessageStore(config) as store:
        assert store.min_offset_in_queue("T", 0) == purged, "hidden again when it comes back"
        assert store.min_offset_in_queue("U", 0) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["apache-5.5.0", "apache-4.9.7"])
def test_top_and_refusals_with_apaches_broker(tmp_path: Path, kind: str) -> None:
    try:
        cluster = cluster_for(kind, tmp_path / "cluster")
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    runner = CliRunner()
    with cluster:
        namesrv = cluster.namesrv_addr
        for words in (
            ["topic", "create", "Watched", "--queues", "2"],
            ["message", "send", "Watched", "hello"],
            ["group", "create", "G"],
        ):
            result = runner.invoke(oberth, [*words, "-n", namesrv])
            assert result.exit_code == 0, (words, result.output, result.exception)
        result = runner.invoke(oberth, ["top", "--once", "--json", "-n", namesrv])
        assert result.exit_code == 0, (result.output, result.exception)
        shown = json.loads(result.stdout)
        topics = {each["topic"]: each for each in shown["topics"]}
        assert topics["Watched"]["messages"] == 1
        assert shown["brokers"][0]["diskUsed"] > 0
        assert {each["stage"] for each in shown["stages"]} >= {"send", "pull", "query"}
        assert shown["failures"] == {}, "no question that this broker does not know"
        purge = ["topic", "purge", "Watched", "--before", "1", "-n", namesrv]
        assert runner.invoke(oberth, purge).exit_code != 0, "only Oberth's brokers purge"
        watched = runner.invoke(oberth, ["cluster", "retention", "-n", namesrv])
        assert "code 3" in watched.stderr, watched.output
