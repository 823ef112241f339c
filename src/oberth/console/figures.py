"""Figures: the plots of one page, over the console's own hour or a longer span from Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request

from oberth.console.cluster import State
from oberth.console.console import Console
from oberth.console.history import SPAN_S, Points, SeriesName
from oberth.console.plots import LINES_MAX, Line, plot
from oberth.console.prometheus import METRICS, PrometheusError

SPANS: Final = {"1h": SPAN_S, "6h": 6 * SPAN_S, "1d": 24 * SPAN_S, "7d": 7 * 24 * SPAN_S}
"""Spans that a page may be asked for (s); the longer ones need Prometheus."""
YOUNG_SPANS: Final = (300.0, 900.0)
"""Spans (s) shown while the console has not looked for longer."""


class Figures:
    """The plots of one page.

    Args:
        console: whose history is shown.
        request: its parameter ``span`` names one of SPANS.
        state: of the cluster.

    Attributes:
        span: the key of SPANS that is shown.
        spans: keys that can be chosen; empty without Prometheus.
        problem: why the longer span is not shown; "": it is, or was not asked for.
    """

    def __init__(self, console: Console, request: Request, state: State) -> None:
        self._console = console
        self._clusters = sorted(state.clusters.cluster_addr_table)
        self._now_s = console.now_s()
        self.spans = list(SPANS) if console.prometheus is not None else []
        asked = request.query_params.get("span", "")
        self.span = asked if asked in self.spans else "1h"
        self.problem = ""

    async def plot(
        self, title: str, series: Sequence[tuple[str, SeriesName]], **style: Any
    ) -> Markup:
        """A figure with a line for each (label, series).

        Args:
            title: the plot's title.
            series: labels, and names as the history has them.
            **style: further arguments of `plots.plot`.
        """
        span_s = SPANS[self.span]
        lines: list[Points] | None = None
        if self.span != "1h" and all(name[0] in METRICS for _, name in series):
            lines = await self._older([name for _, name in series], span_s)
        if lines is None:
            history = self._console.cluster.history
            lines = [history.points(name) for _, name in series]
            first_s = min((points[0][0] for points in lines if points), default=self._now_s)
            span_s = next((s for s in YOUNG_SPANS if self._now_s - first_s <= s), SPAN_S)
        drawn = [Line(label, points) for (label, _), points in zip(series, lines, strict=True)]
        return plot(title, drawn, now_s=self._now_s, span_s=span_s, **style)

    async def _older(self, names: list[SeriesName], span_s: float) -> list[Points] | None:
        """The lines from Prometheus; None, and a problem, where it does not answer."""
        prometheus = self._console.prometheus
        assert prometheus is not None
        if self.problem:
            return None  # a server that is away is waited for once a page
        try:
            return await asyncio.gather(
                *(
                    prometheus.points(name, self._clusters, self._now_s, span_s)
                    for name in names[:LINES_MAX]
                )
            ) + [[] for _ in names[LINES_MAX:]]
        except PrometheusError as error:
            self.problem = str(error)
            return None
