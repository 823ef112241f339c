"""The alerts of `deploy/` are tried on series that brokers really show, label by label."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import yaml
from tests.rigs.scraped import shown_metrics

TESTS: Final = Path(__file__).parents[2] / "deploy" / "prometheus-rules.test.yml"
ADDED_BY_A_SCRAPE: Final = {"job", "instance"}


def name_and_labels(series: str) -> tuple[str, frozenset[str]]:
    """Of ``name{label="value"}``, with or without a value behind it."""
    name, _, labels = series.partition("{")
    return name, frozenset(re.findall(r'(\w+)="', labels))


async def test_alerts_are_tried_on_what_brokers_show(tmp_path: Path, name_server: str) -> None:
    shown = {
        name_and_labels(line)
        for text in await shown_metrics(tmp_path, name_server)
        for line in text.splitlines()
        if not line.startswith("#")
    }
    cases = yaml.safe_load(TESTS.read_text("utf-8"))["tests"]
    tried = {each["series"] for case in cases for each in case["input_series"]}
    assert len(tried) > 20
    for series in tried:
        name, labels = name_and_labels(series)
        assert labels >= ADDED_BY_A_SCRAPE, series
        assert name == "up" or (name, labels - ADDED_BY_A_SCRAPE) in shown, series
