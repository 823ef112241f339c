"""Brokers under a controller, by commands."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from oberth.cli.main import oberth
from oberth.controller.controller import Controller
from oberth.controller.controller_config import ControllerConfig


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
