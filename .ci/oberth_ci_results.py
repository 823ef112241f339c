"""A pytest plugin: the outcome of every test as one line of JSON in the file $OBERTH_CI_RESULTS.

A line is appended when a session ends, so that several sessions of one `make` add up:

    {"passed": [...], "failed": [...], "skipped": [[name, reason], ...]}

An error around a test, or while tests are collected, counts as failed. A session that was killed
leaves no line.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest


class Results:
    """Collects outcomes in the process that has all reports."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self.skipped: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One part of a test is over: setting up, the call, tearing down."""
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.skipped:
            self.skipped[report.nodeid] = reason_of(report)
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file was collected."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the line."""
        line = {
            "passed": sorted(self.passed - self.failed),
            "failed": sorted(self.failed),
            "skipped": sorted(self.skipped.items()),
        }
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def reason_of(report: Any) -> str:
    """Why a test was skipped, without pytest's own words."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    """Collect here, but not in the workers of a session: their reports come together."""
    path = os.environ.get("OBERTH_CI_RESULTS")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path), "oberth-ci-results")
