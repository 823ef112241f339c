"""Prometheus: figures that are older than the console, asked from a Prometheus server.

The console keeps an hour of figures in memory (`history`). A server that scrapes the brokers'
``/metrics`` (ours, or Apache's 5.x, which has the same names) knows more; it is asked through its
HTTP interface, ``/api/v1/query_range``. Names of topics and groups go into expressions as quoted
label values, so none can change an expression.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import math
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from oberth.console.history import Points, SeriesName
from oberth.errors import OptionError

ANSWER_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of one answer."""
TIMEOUT_S: Final = 5.0
POINTS: Final = 240
"""Points of a series over its span."""
STEP_MIN_S: Final = 15.0
RATE_WINDOW_MIN_S: Final = 300.0
KEPT_MAX: Final = 256
"""Answers that are kept, each for one step."""


class PrometheusError(Exception):
    """The server did not answer, or not as its interface says. The text names the server."""


class Prometheus:
    """A Prometheus server.

    Args:
        url: ``http://HOST[:PORT][/PATH]`` or https; the interface's paths are appended to it.
        token: sent as ``Authorization: Bearer``; "": nothing is sent.

    Raises:
        OptionError: the URL is none of these.
    """

    def __init__(self, url: str, token: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise OptionError(f"Prometheus {url!r}: expected http://HOST:PORT or https://HOST:PORT")
        if parts.username or parts.query or parts.fragment:
            raise OptionError(
                "Prometheus: the URL has a name, a password or a query; only a path may follow the "
                "host (a token is given in the environment)"
            )
        if not (token.isascii() and token.isprintable()):
            raise OptionError("the token for Prometheus has characters that no header may have")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/") + "/api/v1/query_range"
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._kept: OrderedDict[str, Points] = OrderedDict()

    async def points(
        self, name: SeriesName, clusters: Sequence[str], now_s: float, span_s: float
    ) -> Points:
        """A series over a span that ends now; at most POINTS + 1 points, the oldest first.

        Args:
            name: as `history` names it.
            clusters: names of the clusters that are shown; empty: of any.
            now_s: s since 1970.
            span_s: length (s).

        Raises:
            PrometheusError: no answer within TIMEOUT_S, or another one than was expected.
        """
        step_s = max(STEP_MIN_S, span_s / POINTS)
        end_s = math.floor(now_s / step_s) * step_s  # the same question for a step's time
        query = urlencode(
            {
                "query": expression(name, clusters, max(RATE_WINDOW_MIN_S, 2 * step_s)),
                "start": f"{end_s - span_s:.3f}",
                "end": f"{end_s:.3f}",
                "step": f"{step_s:.3f}",
            },
            errors="replace",
        )
        known = self._kept.get(query)
        if known is None:
            known = self._kept[query] = await asyncio.to_thread(self._asked, query)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return known

    def _asked(self, query: str) -> Points:
        """One request on a connection of its own; blocks, and follows no redirection."""
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", f"{self._path}?{query}", headers=self._headers)
            answer = connection.getresponse()
            body = answer.read(ANSWER_SIZE_MAX + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PrometheusError(f"{self.url}: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()
        if len(body) > ANSWER_SIZE_MAX:
            raise PrometheusError(f"{self.url}: an answer of more than {ANSWER_SIZE_MAX} bytes")
        try:
            document = json.loads(body)
            if document["status"] != "success":
                raise PrometheusError(f"{self.url}: {str(document.get('error'))[:200]}")
            return matrix_points(document["data"]["result"])
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise PrometheusError(
                f"{self.url}: status {answer.status} and no answer of Prometheus's interface"
            ) from None


def matrix_points(result: Any) -> Points:
    """The points of the first series of a matrix; values that are no finite numbers are left out.

    Raises:
        ValueError, KeyError, TypeError, IndexError: it is no matrix.
    """
    if not result:
        return []
    found = [(float(at_s), float(value)) for at_s, value in result[0]["values"][: POINTS + 1]]
    return [point for point in found if math.isfinite(point[0]) and math.isfinite(point[1])]


def expression(name: SeriesName, clusters: Sequence[str], window_s: float) -> str:
    """The expression of a series, over the metrics that brokers of RocketMQ 5 have.

    Args:
        name: as `history` names it; ("disk", broker) has none.
        clusters: names of clusters; empty: of any.
        window_s: over which a rate is taken (s).

    Raises:
        KeyError: nothing like it is scraped.
    """
    kind, key = name
    metric, label = METRICS[kind]
    labels = [f"{label}={_quoted(key)}"]
    if clusters:
        labels.append(f"cluster=~{_quoted('|'.join(re.escape(each) for each in clusters))}")
    selected = f"{metric}{{{','.join(labels)}}}"
    if metric.endswith("_total"):
        return f"sum(rate({selected}[{window_s:.0f}s]))"
    return f"sum({selected})"


METRICS: Final = {
    "in": ("rocketmq_messages_in_total", "node_id"),
    "out": ("rocketmq_messages_out_total", "node_id"),
    "topic": ("rocketmq_messages_in_total", "topic"),
    "lag": ("rocketmq_consumer_lag_messages", "consumer_group"),
}
"""By the kind of a series its metric, and the label that its key is a value of."""


def _quoted(text: str) -> str:
    """A label value in double quotes, escaped as in Go; JSON escapes the same characters."""
    return json.dumps(text, ensure_ascii=False)
