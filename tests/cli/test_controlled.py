"""Brokers under a controller, by commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oberth.broker.broker_config import read_configs
from oberth.cli import cluster_failover
from oberth.cli.brokers import replicated
from oberth.cli.main import main, oberth
from oberth.client.admin import Admin
from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig
from oberth.errors import OptionError, RemotingConnectError
from oberth.remoting.bodies.controller import ReplicaIdentity, ReplicasInfo
from oberth.testing.blocking import EmbeddedBroker


async def test_the_controller_says_which_is_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Any] = []
    monkeypatch.setattr("oberth.cli.broker.serve", lambda serving, *_, **__: served.append(serving))
    config = ControllerConfig(listen_port=0, store_path=str(tmp_path / "controller"))
    async with Controller(config) as controller:
        words = ["--store", str(tmp_path / "a"), "--port", "0", "--set", "brokerName=a"]
        words += ["--set", "enableControllerMode=true"]
        result = CliRunner().invoke(
            oberth, ["broker", *words, "--set", f"controllerAddr={controller.address}"]
        )
        assert result.exit_code == 0, result.output
        opened: AbstractAsyncContextManager[str] = served[0]()
        async with opened as ready:
            assert f"master 1 by controller {controller.address}," in ready
        assert controller.sets.sets["a"].master_epoch == 1


READY = re.compile(
    r"ready: name server (?P<namesrv>\S+), controller (?P<controller>\S+), "
    r"brokers (?P<brokers>.+), stores (?P<stores>.+), in \S+ s"
)
BOUND_S = 120


class Up:
    """A running ``oberth up --replicas 2``."""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "oberth", "up", "--replicas", "2", "--store", str(store)),
                *("--port", "0", "--namesrv-port", "0", "--set", "brokerName=b"),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.fullmatch(line.strip())
        assert found is not None, (line, self.process.communicate())
        self.namesrv = found["namesrv"]
        self.stores = dict(
            zip(found["brokers"].split(), found["stores"].rstrip(",").split(), strict=True)
        )

    def json(self, *words: str) -> Any:
        """What a command prints; None if it fails."""
        result = CliRunner().invoke(oberth, [*words, "-n", self.namesrv])
        return json.loads(result.stdout) if result.exit_code == 0 and result.stdout else None

    def bodies(self) -> list[str]:
        result = CliRunner().invoke(
            oberth,
            ["message", "tail", "T", "--from-start", "--no-follow", "-n", self.namesrv],
        )
        assert result.exit_code == 0, result.output
        return sorted(json.loads(line)["body"] for line in result.stdout.splitlines())

    def until(self, *words: str) -> Any:
        """What a command prints as soon as it succeeds."""
        give_up = time.monotonic() + BOUND_S
        while (found := self.json(*words)) is None:
            assert time.monotonic() < give_up, words
        return found

    def until_in_sync(self, *ids: int) -> dict[str, Any]:
        give_up = time.monotonic() + BOUND_S
        while True:
            status: dict[str, Any] = self.until("cluster", "status", "b", "--json")
            if str(status["replicasInSync"]).split() == [str(each) for each in ids]:
                return status
            assert time.monotonic() < give_up, status
            time.sleep(0.1)

    def kill(self, address: str) -> None:
        """Kill -9 for the broker that listens there."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if "--store" in words and words[words.index("--store") + 1] == self.stores[address]:
                os.kill(int(child), signal.SIGKILL)
                return
        raise AssertionError(f"no broker has {self.stores[address]}")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_group_in_one_command_survives_a_failover_and_a_kill(tmp_path: Path) -> None:
    up = Up(tmp_path / "store")
    try:
        assert up.until("message", "send", "T", "1")["status"] == "SEND_OK"
        status = up.until_in_sync(1, 2)
        assert (status["controlledRole"], status["masterEpoch"]) == ("master", 1)
        planned = up.json("cluster", "failover", "b", "--dry-run", "--json")
        moved = up.json("cluster", "failover", "b", "--json")
        assert moved == {**planned, "epoch": 2, "dryRun": False}
        assert moved["from"] != moved["to"]
        assert up.until("message", "send", "T", "2")["status"] == "SEND_OK"
        up.until_in_sync(1, 2)
        assert up.until("message", "send", "T", "3")["status"] == "SEND_OK"
        up.kill(moved["to"])
        assert up.until("message", "send", "T", "4")["status"] == "SEND_OK"
        up.until_in_sync(1, 2)  # the one that was killed was started again
        assert set(up.bodies()) >= {"1", "2", "3", "4"}
    finally:
        up.process.terminate()
        up.process.communicate(timeout=BOUND_S)
    assert up.process.returncode == 0


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"broker-a": "192.0.2.1:1"}, "they name 192.0.2.1:1"),
        ({}, "they name none"),
        (None, "they do not answer: they are away"),
    ],
    ids=["old", "none", "away"],
)
def test_a_failover_that_name_servers_do_not_show_says_that_it_was_done(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: dict[str, str] | None,
    why: str,
) -> None:
    target = ReplicaIdentity(broker_address="192.0.2.2:1", broker_id=2, alive=True)

    async def controller(*_: Any) -> str:
        return "192.0.2.3:1"

    async def replicas(*_: Any) -> ReplicasInfo:
        return ReplicasInfo(in_sync_replicas=[target], master_broker_id=1)

    async def elect(*_: Any) -> int:
        return 7

    async def masters(*_: Any) -> dict[str, str]:
        if named is None:
            raise RemotingConnectError("they are away")
        return named

    monkeypatch.setattr(cluster_failover, "PATIENCE_S", 0.0)
    monkeypatch.setattr(cluster_failover, "_controller_of", controller)
    monkeypatch.setattr(Admin, "replicas", replicas)
    monkeypatch.setattr(Admin, "elect_master", elect)
    monkeypatch.setattr(Admin, "masters", masters)
    with EmbeddedBroker() as broker, pytest.raises(SystemExit) as ended:
        main(["cluster", "failover", "broker-a", "-n", broker.namesrv_addr])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert "broker-a: 192.0.2.2:1 was elected master, epoch 7" in said
    assert why in said


def test_what_replicas_are_called_and_where_they_lie() -> None:
    _, store_config, _ = read_configs({"storePathRootDir": "/s"})
    entries = {"listenPort": "100", "httpPort": "500", "grpcServerPort": "8000"}
    made = replicated(2, 3, entries, store_config, "b", "c:1")
    assert [(each.name, each.store) for each in made] == [
        ("b", "/s"), ("b", "/s-r2"), ("b", "/s-r3"), ("b-2", "/s-2"), ("b-2", "/s-2-r2"),
        ("b-2", "/s-2-r3"),
    ]  # fmt: skip
    assert made[4].settings == {
        "enableControllerMode": "true", "controllerAddr": "c:1", "allAckInSyncStateSet": "true",
        "minInSyncReplicas": "2", "listenPort": "140", "grpcServerPort": "8040",
        "httpPort": "505", "httpAddress": "127.0.0.1",
    }  # fmt: skip
    assert made[4].label == "b-2 replica 2"
    (_, second) = replicated(1, 2, {"minInSyncReplicas": "1"}, store_config, "b", "c:1")
    assert "minInSyncReplicas" not in second.settings
    for entry in ("brokerRole", "storePathCommitLog", "controllerAddr"):
        with pytest.raises(OptionError, match=entry):
            replicated(1, 2, {entry: "x"}, store_config, "b", "c:1")
    with pytest.raises(OptionError, match="at most 64 are allowed"):
        replicated(64, 2, {}, store_config, "b", "c:1")
