"""The claim of a live redrive, held by a thread that blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from oberth.client.admin import Admin
from oberth.client.blocking_face import LOOP
from oberth.client.redrive_claim import RedriveClaim
from oberth.spark.write_options import LiveWriteOptions


@contextmanager
def claimed(options: LiveWriteOptions, topics: Collection[str]) -> Iterator[Callable[[], None]]:
    """Keeps other redrives of dead letters' topics out; gives the claim's `check`.

    Raises:
        RedriveHeldError: another one holds a claim on some of them.
        RemotingError: no broker answers.
    """
    admin = Admin(config=options.connection.client_config())
    claim = RedriveClaim(admin, topics)
    LOOP.call(admin.start)
    try:
        LOOP.call(claim.__aenter__)
        try:
            yield claim.check
        finally:
            LOOP.call(claim.__aexit__)
    finally:
        LOOP.call(admin.shutdown)
