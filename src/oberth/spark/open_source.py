"""Opens what a query reads: the files of stores, or live brokers."""

from __future__ import annotations

from oberth.spark.options import ReadOptions
from oberth.spark.plan import QueueStores, open_stores


def open_source(options: ReadOptions) -> QueueStores:
    """The stores or the live brokers that the options name.

    Raises:
        OptionError: a path that is no store, or two stores whose brokers have one name.
        RemotingError: no name server answers.
    """
    if options.connection is None:
        return open_stores(options)
    from oberth.spark.live_plan import LiveStores

    return LiveStores(options)
