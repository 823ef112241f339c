"""Commands that run in a test's own process wait for a busy machine longer than for a user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from oberth.client.admin import Admin
from oberth.client.config import ClientConfig

BOUND_MS: Final = 100_000


@pytest.fixture(scope="package", autouse=True)
def _patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for function, name in (
            (Admin.__init__, "timeout_ms"),
            (ClientConfig.__init__, "connect_timeout_ms"),
        ):
            defaults = function.__kwdefaults__
            assert defaults is not None
            assert name in defaults
            patch.setitem(defaults, name, BOUND_MS)
        yield
