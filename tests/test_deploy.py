"""What `deploy/` offers names what is there: metrics, options, commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from oberth.broker.broker_config import BrokerConfig
from oberth.cli.main import oberth
from oberth.formats.options import options_of

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
_METRIC = re.compile(r"\b(?:rocketmq|oberth)_[a-z_]+\b")


def expressions() -> list[str]:
    """Every expression of the alerts and of the dashboard."""
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text("utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))
    found += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [each["query"] for each in dashboard["templating"]["list"]]
    return found


def test_every_metric_is_one_of_a_brokers() -> None:
    named = {name for text in expressions() for name in _METRIC.findall(text)}
    assert len(named) > 10
    sources = "".join(
        (ROOT / "src/oberth/broker" / name).read_text("utf-8")
        for name in ("metrics.py", "log_comparison.py")
    )
    for name in named:
        assert f'"{name}"' in sources, name


def test_every_alert_is_tried_with_and_without_its_reason() -> None:
    """Their tests run with Prometheus' own tool: interop/test_prometheus.py."""
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text("utf-8"))
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    tests = yaml.safe_load((DEPLOY / "prometheus-rules.test.yml").read_text("utf-8"))["tests"]
    tried = [each for test in tests for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in tried if each["exp_alerts"]} == names
    assert {each["alertname"] for each in tried if not each["exp_alerts"]} == names


def test_every_alert_says_what_to_do() -> None:
    rules: Any = yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text("utf-8"))
    for rule in rules["groups"][0]["rules"]:
        assert rule["labels"]["severity"] in ("page", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]


@pytest.mark.parametrize("name", ["oberth-broker.service", "Containerfile"])
def test_commands_and_settings_exist(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    (line,) = re.findall(r"/bin/oberth ([^#\n]*)", text)
    words = line.partition('\\"$@')[0].split()
    conf = tmp_path / "broker.conf"
    conf.write_text("")
    words = [str(conf) if word.endswith("broker.conf") else word for word in words]
    command = oberth.get_command(click.Context(oberth), words[0])
    assert command is not None
    command.make_context(words[0], words[1:])
    known = {option.java_name for option in options_of(BrokerConfig)}
    for key in re.findall(r"--set (\w+)=", line):
        assert key in known, key
