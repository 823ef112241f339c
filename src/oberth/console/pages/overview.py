"""Overview: what needs attention, rates, brokers, and the busiest topics and groups."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from oberth.console import texts
from oberth.console.attention import attention
from oberth.console.cluster import BrokerKey, Part, State, broker_label, number_of
from oberth.console.console import Console, Page, Write
from oberth.console.figures import Figures
from oberth.console.history import History
from oberth.errors import OptionError

TOP: Final = 8
"""Topics and groups that the first page names."""


async def overview(console: Console, request: Request) -> Response:
    """The first page."""
    state = await console.cluster.soon(Part.BROKERS)
    history = console.cluster.history
    masters = [broker_label(key) for key in state.brokers if key.is_master]
    figures = Figures(console, request, state)
    topics, groups = state.user_topics(), state.user_groups()
    lags = {group: lag for group in groups if (lag := state.lag(group)) is not None}
    return console.render(
        request,
        "overview.html",
        is_whole=state.has is Part.WHOLE,
        items=attention(state, history),
        brokers=broker_rows(state, history),
        figures=figures,
        plots=[await rate_plot(figures, kind, masters) for kind in ("in", "out")],
        rate_in=history.total("in", masters),
        rate_out=history.total("out", masters),
        topic_count=len(topics),
        group_count=len(groups),
        lag=sum(lags.values()),
        members=sum(state.members.get(group, 0) for group in groups),
        producers=sum(state.producers.values()),
        top_topics=top_topics(state, history, topics),
        top_groups=sorted(lags.items(), key=lambda each: (-each[1], each[0]))[:TOP],
        member_counts=state.members,
    )


async def rate_plot(figures: Figures, kind: str, brokers: list[str]) -> Any:
    """Rates of brokers, "in" or "out"."""
    series = [(name, (kind, name)) for name in brokers]
    return await figures.plot(f"Messages {kind}", series, value_text=texts.rate, unit="a second")


def top_topics(state: State, history: History, topics: list[str]) -> list[tuple[str, float, int]]:
    """The busiest topics: name, messages a second, messages kept."""
    rows = []
    for topic in topics:
        kept = sum(each.max_offset - each.min_offset for each in state.ends.get(topic, {}).values())
        rows.append((topic, history.last(("topic", topic)) or 0.0, kept))
    rows.sort(key=lambda row: (-row[1], -row[2], row[0]))
    return rows[:TOP]


def broker_rows(state: State, history: History) -> list[dict[str, Any]]:
    """A row for each broker."""
    ends = {
        key.name: number_of(table, "commitLogMaxOffset")
        for key, table in state.brokers.items()
        if key.is_master and table
    }
    rows = []
    for key, table in sorted(state.brokers.items(), key=lambda each: each[0].name):
        label = broker_label(key)
        end, low = number_of(table, "commitLogMaxOffset"), number_of(table, "commitLogMinOffset")
        master_end = ends.get(key.name)
        rows.append(
            {
                "key": key,
                "label": label,
                "cluster": state.clusters.broker_addr_table[key.name].cluster,
                "answers": bool(table),
                "version": table.get("brokerVersionDesc", ""),
                "rate_in": history.last(("in", label)),
                "rate_out": history.last(("out", label)),
                "disk": number_of(table, "commitLogDiskRatio"),
                "log": None if end is None or low is None else end - low,
                "state": _role_state(key, end, master_end),
            }
        )
    return rows


def _role_state(key: BrokerKey, end: float | None, master_end: float | None) -> str:
    if end is None:
        return "does not answer"
    if key.is_master:
        return "serving"
    if master_end is None:
        return "its master does not answer"
    behind = master_end - end
    return "equal" if behind <= 0 else f"{texts.size(behind)} behind"


async def broker(console: Console, request: Request) -> Response:
    """Everything that one broker tells about itself."""
    state = await console.cluster.soon(Part.BROKERS)
    key = broker_key(state, request.query_params.get("address", ""))
    label = broker_label(key)
    figures = Figures(console, request, state)
    plots = [
        await figures.plot(
            "Messages in and out",
            [(kind, (kind, label)) for kind in ("in", "out")],
            value_text=texts.rate,
            unit="a second",
        ),
        await figures.plot(
            "Disk",
            [("used", ("disk", label))],
            value_text=texts.percent,
            unit="of it",
            axis_text=texts.percent,
        ),
    ]
    return console.render(
        request,
        "broker.html",
        key=key,
        label=label,
        figures=figures,
        plots=plots,
        table=sorted(state.brokers[key].items()),
        failure=state.failures.get(key.address),
    )


def broker_key(state: State, address: str) -> BrokerKey:
    """The broker at an address.

    Raises:
        OptionError: no name server knows it; nothing else is ever asked.
    """
    for key in state.brokers:
        if key.address == address:
            return key
    raise OptionError(f"no broker at {address[:100]!r}")


ROUTES: Final[dict[str, Page]] = {"/": overview, "/broker": broker}
WRITES: Final[dict[str, Write]] = {}
