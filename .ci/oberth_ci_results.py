"""A pytest plugin: the outcome of every test as one line of JSON in the file $OBERTH_CI_RESULTS.

Lines are appended as things happen, so that a session that is stopped has told what it found:

    {"begun": name}
    {"passed": name} | {"failed": name} | {"skipped": name, "reason": text}
    {"sessions": 1}                                         the session came to its end

An error around a test, or while tests are collected, counts as failed. Several sessions of one
`make` add up.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest


class Results:
    """Writes outcomes in the process that has all reports."""

    def __init__(self, path: str) -> None:
        self.path = path

    def _write(self, **line: object) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._write(begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One part of a test is over: setting up, the call, tearing down."""
        if report.failed:
            self._write(failed=report.nodeid)
        elif report.skipped:
            self._write(skipped=report.nodeid, reason=reason_of(report))
        elif report.when == "call":
            self._write(passed=report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file was collected."""
        if report.failed:
            self._write(failed=report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """All tests were run, or the session gave up by itself."""
        self._write(sessions=1)


def reason_of(report: Any) -> str:
    """Why a test was skipped, without pytest's own words."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(text).removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    """Collect here, but not in the workers of a session: their reports come together."""
    path = os.environ.get("OBERTH_CI_RESULTS")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path), "oberth-ci-results")
