"""The pytest plugin, whether or not the package was installed since it became an entry point."""

from __future__ import annotations

from oberth.testing.pytest_plugin import pytest_configure, rocketmq

__all__ = ["pytest_configure", "rocketmq"]
