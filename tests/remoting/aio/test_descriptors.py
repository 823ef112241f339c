"""How many connections a server takes leaves descriptors to the store."""

from __future__ import annotations

import pytest

from oberth.remoting.aio import descriptors


def test_a_fourth_of_the_descriptors_is_kept() -> None:
    resource = pytest.importorskip("resource")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    kept = min(limit // 4, descriptors.RESERVE_MAX)
    assert descriptors.connection_limit() == (
        None if limit == resource.RLIM_INFINITY else limit - kept
    )
