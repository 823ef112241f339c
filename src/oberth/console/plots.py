"""Plots as SVG: lines over a span until now with axes and units. Styles are the style sheet's.

Lines differ by dashes too, and the legend gives each one's newest value, so that no colour is
needed to read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from markupsafe import Markup, escape

from oberth.console.history import Points
from oberth.console.texts import plain

WIDTH: Final = 520
HEIGHT: Final = 190
LEFT: Final = 58
RIGHT: Final = 14
TOP: Final = 12
BOTTOM: Final = 26
LINES_MAX: Final = 6
POINTS_MAX: Final = 240
TICKS: Final = 4
TIMES: Final = {300.0: 5, 900.0: 5, 3600.0: 6, 21600.0: 6, 86400.0: 6, 604800.0: 7}
"""Pieces of the time axis by its span (s)."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: a name, and values over times (s)."""

    label: str
    points: Points


def plot(
    title: str,
    lines: Sequence[Line],
    *,
    now_s: float,
    span_s: float,
    value_text: Callable[[float | None], str],
    unit: str,
    axis_text: Callable[[float], str] = "{:g}".format,
    top_min: float = 1.0,
) -> Markup:
    """A figure with a plot and its legend.

    Args:
        title: the plot's title.
        lines: at most LINES_MAX are drawn.
        now_s: the right end.
        span_s: of the time axis.
        value_text: writes a value.
        unit: of the values.
        axis_text: writes a value beside the axis.
        top_min: the value axis reaches at least this.
    """
    drawn = lines[:LINES_MAX]
    from_s = now_s - span_s
    kept = [[p for p in line.points if p[0] >= from_s] for line in drawn]
    top = _nice(max((value for points in kept for _, value in points), default=0.0), top_min)

    scale = _Scale(now_s, span_s, top)
    parts = [*_grid(scale, axis_text), *_curves(scale, kept)]
    said = "; ".join(
        f"{plain(line.label)} {value_text(points[-1][1] if points else None)} {unit}"
        for line, points in zip(drawn, kept, strict=True)
    )
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 24 8" aria-hidden="true">'
        f'<line class="line l{number}" x1="0" y1="4" x2="24" y2="4"/></svg>'
        f"<span>{escape(plain(line.label))}</span> "
        f"<b>{escape(value_text(points[-1][1] if points else None))}</b></li>"
        for number, (line, points) in enumerate(zip(drawn, kept, strict=True))
    )
    left = len(lines) - len(drawn)
    more = f"<li>and {left} more</li>" if left > 0 else ""
    return Markup(
        f'<figure class="plot"><figcaption>{escape(title)} <span class="unit">{escape(unit)}</span>'
        f'</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(title)}, {escape(unit)}: {escape(said)}">'
        f'{"".join(parts)}</svg><ul class="legend">{legend}{more}</ul></figure>'
    )


class _Scale(NamedTuple):
    """Where a moment and a value lie in a plot."""

    now_s: float
    span_s: float
    top: float

    def x(self, at_s: float) -> float:
        """Of a moment; 0 is the left edge of the picture."""
        share = (at_s - (self.now_s - self.span_s)) / self.span_s
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Of a value; 0 is the upper edge of the picture."""
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def _grid(scale: _Scale, axis_text: Callable[[float], str]) -> Iterator[str]:
    for step in range(TICKS + 1):
        value = scale.top * step / TICKS
        yield (
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
            f'y1="{scale.y(value):.1f}" y2="{scale.y(value):.1f}"/>'
            f'<text x="{LEFT - 8}" y="{scale.y(value) + 4:.1f}" text-anchor="end">'
            f"{escape(axis_text(value))}</text>"
        )
    pieces = TIMES.get(scale.span_s, TICKS)
    for step in range(pieces + 1):
        ago_s = scale.span_s * (pieces - step) / pieces
        anchor = "end" if step == pieces else "middle"
        text = f"−{_age_text(ago_s, scale.span_s)}" if ago_s else "now"
        yield (
            f'<text x="{scale.x(scale.now_s - ago_s):.1f}" y="{HEIGHT - 8}" '
            f'text-anchor="{anchor}">{text}</text>'
        )


def _curves(scale: _Scale, kept: Sequence[Points]) -> Iterator[str]:
    for number, points in enumerate(kept):
        if len(points) == 1:
            at, value = points[0]
            yield (
                f'<circle class="dot l{number}" cx="{scale.x(at):.1f}" cy="{scale.y(value):.1f}" '
                'r="2.5"/>'
            )
        elif points:
            path = " ".join(
                f"{scale.x(at):.1f},{scale.y(value):.1f}" for at, value in _thinned(points)
            )
            yield f'<polyline class="line l{number}" points="{path}"/>'
    if not any(kept):
        yield (
            f'<text class="empty" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT / 2}" '
            'text-anchor="middle">nothing noted yet</text>'
        )


BARS_MAX: Final = 24
"""Bars of one figure."""
BAR_HEIGHT: Final = 20
BAR_LABEL: Final = 150
LABEL_LENGTH_MAX: Final = 22


def bars(title: str, label_title: str, rows: Sequence[tuple[str, float]], count: int) -> Markup:
    """A figure with a bar for each of the first BARS_MAX rows, in their order.

    Args:
        title: of the values.
        label_title: of the labels.
        rows: labels and values.
        count: of all rows.
    """
    drawn = rows[:BARS_MAX]
    high = max([value for _, value in drawn if math.isfinite(value)] + [0.0])
    low = min([value for _, value in drawn if math.isfinite(value)] + [0.0])
    room = WIDTH - BAR_LABEL - 90
    scale = room / (high - low) if high > low else 0.0
    parts = []
    for number, (label, value) in enumerate(drawn):
        value = value if math.isfinite(value) else 0.0
        top = number * BAR_HEIGHT
        left = BAR_LABEL + (min(value, 0.0) - low) * scale
        short = plain(label) if len(label) <= LABEL_LENGTH_MAX else f"{plain(label)[:21]}…"
        parts.append(
            f'<text x="{BAR_LABEL - 6}" y="{top + 14}" text-anchor="end">{escape(short)}</text>'
            f'<rect class="bar" x="{left:.1f}" y="{top + 3}" width="{abs(value) * scale:.1f}" '
            f'height="{BAR_HEIGHT - 6}"/>'
            f'<text x="{BAR_LABEL + room + 6}" y="{top + 14}">{value:g}</text>'
        )
    what = f"{plain(title)} by {plain(label_title)}"
    more = f", the first {len(drawn)} of {count} rows" if count > len(drawn) else ""
    return Markup(
        f'<figure class="plot"><figcaption>{escape(what)}{more}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {max(len(drawn), 1) * BAR_HEIGHT}" role="img" '
        f'aria-label="{escape(what)}; the table below has the values">{"".join(parts)}</svg>'
        "</figure>"
    )


def _age_text(ago_s: float, span_s: float) -> str:
    """A time of the axis, in the unit that suits the whole span."""
    for unit_s, unit in ((86400.0, "d"), (3600.0, "h")):
        if span_s > unit_s:
            return f"{ago_s / unit_s:.0f} {unit}"
    return f"{ago_s / 60:.0f} min"


def _nice(value: float, least: float) -> float:
    """The next of 1, 2, 4, 5, 8, 10 … that is not below."""
    value = max(value, least)
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value * 0.999)


def _thinned(points: Points) -> Points:
    """At most POINTS_MAX points, of each piece the highest."""
    if len(points) <= POINTS_MAX:
        return points
    width = math.ceil(len(points) / POINTS_MAX)
    return [
        max(points[start : start + width], key=lambda point: point[1])
        for start in range(0, len(points), width)
    ]
