"""``oberth cluster dump`` and ``apply``: from one embedded broker to another."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from oberth.cli.main import oberth
from oberth.errors import StoreFullError
from oberth.testing.blocking import EmbeddedBroker


def run(broker: EmbeddedBroker, words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(oberth, [*words.split(), "-n", broker.namesrv_addr])
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as made:
        run(made, "topic create Orders --queues 3 --attribute message.type=FIFO --order")
        run(made, "topic create Clicks --queues 2 --perm r --attribute reserve.time=6")
        run(made, "group create Readers --retries 5")
        yield made


@pytest.fixture
def dumped(source: EmbeddedBroker, tmp_path: Path) -> Path:
    path = tmp_path / "cluster.json"
    assert "2 topics, 1 groups" in run(source, f"cluster dump --into {path}").stderr
    assert json.loads(run(source, "cluster dump").stdout) == json.loads(path.read_text())
    return path


def test_a_dump_that_cannot_be_written_leaves_the_last_one(
    source: EmbeddedBroker, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dumped.read_text()
    dumped.chmod(0o600)
    other = dumped.with_name("other.json")
    other.symlink_to(dumped)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _full)
        refused = CliRunner().invoke(
            oberth, ["cluster", "dump", "--into", str(dumped), "-n", source.namesrv_addr]
        )
    assert isinstance(refused.exception, StoreFullError)
    assert dumped.read_text() == before
    assert sorted(each.name for each in dumped.parent.iterdir()) == ["cluster.json", "other.json"]
    dumped.write_text("")
    run(source, f"cluster dump --into {other}")
    assert other.is_symlink()
    assert dumped.read_text() == before
    assert dumped.stat().st_mode & 0o777 == 0o600
    run(source, "cluster dump --into /dev/null")
    assert Path("/dev/null").is_char_device()


def _full(fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_dump_makes_another_cluster_the_same(source: EmbeddedBroker, dumped: Path) -> None:
    with EmbeddedBroker() as target:
        run(target, "topic create Clicks --queues 8 --attribute message.type=NORMAL")
        run(target, "topic create Kept --queues 1")
        planned = json.loads(run(target, f"cluster apply {dumped} --dry-run --json").stdout)
        assert [(each["action"], each["name"]) for each in planned["changes"]] == [
            ("change", "Clicks"), ("create", "Orders"), ("create", "Readers"),
        ]  # fmt: skip
        assert planned["changes"][0]["settings"]["perm"] == {"before": 6, "after": 4}
        assert "Orders" not in run(target, "topic list").stdout
        assert "create topic Orders at" in run(target, f"cluster apply {dumped}").stderr
        assert "0 made or changed" in run(target, f"cluster apply {dumped}").stderr
        after = json.loads(run(target, "cluster dump").stdout)
        before = json.loads(dumped.read_text())
        after["topics"] = [each for each in after["topics"] if each["topicName"] != "Kept"]
        assert after == before
        assert "Kept" in run(target, "topic list").stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "other"}, '"format" is not'),
        ({"version": 2}, "version 2, read is 1"),
        ({"topics": {}}, "topics is no list"),
        ({"topics": [3]}, "topics[0] is no object"),
        ({"topics": [{"topicName": "T", "perms": 6}]}, "topics[0]: perms: no such setting"),
        ({"topics": [{"topicName": "T"}] * 2}, "topics[1]: T is there twice"),
        ({"topics": [{"perm": 6}]}, "topics[0] has no name"),
        ({"topics": [{"topicName": "../x"}]}, "'.' at 0; allowed are"),
        ({"groups": [{"groupName": "G", "brokers": ["nowhere"]}]}, "no broker nowhere is known"),
        ({"groups": [{"groupName": "G", "brokers": "a"}]}, "groups[0].brokers is neither"),
        ({"groups": [{"groupName": "G", "retryMaxTimes": "many"}]}, "groups[0]"),
    ],
)
def test_a_wrong_file_changes_nothing(
    source: EmbeddedBroker, dumped: Path, change: dict[str, Any], said: str
) -> None:
    path = dumped.with_name("wrong.json")
    path.write_text(json.dumps({**json.loads(dumped.read_text()), **change}))
    before = run(source, "cluster dump").stdout
    result = CliRunner().invoke(oberth, ["cluster", "apply", str(path), "-n", source.namesrv_addr])
    assert result.exit_code != 0
    assert said in str(result.exception)
    assert run(source, "cluster dump").stdout == before
