"""A dispatcher for brokers with dispatch=spark, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from oberth.spark.pipelines.tail_dispatch import TailDispatcher


@contextmanager
def dispatcher(root: str) -> Iterator[None]:
    """Dispatches in a thread."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with TailDispatcher(root) as tail:
                while not stop.is_set():
                    if not tail.advance().records:
                        stop.wait(0.002)
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures
