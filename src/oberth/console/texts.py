"""How the pages write values: times, sizes, numbers, and texts that somebody else chose.

Everything that comes from a message, a client or a broker may be hostile. Jinja escapes it; what
`shown` does beyond that is to make characters visible that change how the text around them looks:
control characters, and those that turn the direction of writing.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlencode

from markupsafe import Markup, escape

from oberth.errors import OptionError

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)

_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_SIGNS: Final = "=+@\uff1d\uff0b\uff0d\uff20\\-"
_FORMULA: Final = re.compile(f"^(?=[{_SIGNS}\t\r\n])|(?<=[;\t\r\n])(?=[{_SIGNS}])")
"""Before what begins a formula; spreadsheets take full-width signs, too."""


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    text = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    return f'<span class="unseen">{text}</span>'


def shown(value: object) -> Markup:
    """A text from a peer, isolated from the writing direction of the text around it."""
    return Markup("<bdi>") + seen(value) + Markup("</bdi>")


def seen(value: object) -> Markup:
    """A text of somebody else with every character to be seen."""
    return Markup(_UNSEEN.sub(_named, str(escape(str(value)))))


def plain(value: object) -> str:
    """The same without markup, for attributes and titles."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(value))


def iso_time(timestamp_ms: int) -> str:
    """A time in ms as ISO 8601, UTC; a time outside the calendar as its number."""
    text = time_text(timestamp_ms)
    return f"{text.replace(' ', 'T')}Z" if ":" in text else text


def time_text(timestamp_ms: int) -> str:
    """A time in ms as people read it, UTC."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def parse_time(text: str) -> int:
    """A time in ms from ISO 8601 or from ms since 1970; without a zone it is UTC.

    Raises:
        OptionError: it is neither, or before 1970: to brokers that is the end of a queue.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) < 16:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"{text[:40]!r} is no time: 2026-11-23T08:30, or ms since 1970") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    time_ms = round(moment.timestamp() * 1000)
    if time_ms < 0:
        raise OptionError(f"{text[:40]!r} is before 1970")
    return time_ms


def time_field(text: str) -> str:
    """A time that was asked for, as a form's field takes it, to the second; "" for no time."""
    try:
        moment = datetime.fromtimestamp(parse_time(text) / 1000, UTC)
    except (OptionError, OverflowError, ValueError, OSError):
        return ""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def time_tag(timestamp_ms: int | None) -> Markup:
    """A time for a page; the browser adds the reader's own zone."""
    if not timestamp_ms or timestamp_ms < 0:
        return Markup('<span class="none">never</span>')
    return Markup('<time datetime="{}">{}</time>').format(
        iso_time(timestamp_ms), time_text(timestamp_ms)
    )


def duration(span_ms: float | None) -> str:
    """A span in its two largest units."""
    if span_ms is None:
        return "unknown"
    seconds = max(span_ms, 0) / 1000
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    if minutes < 60 * 24:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} d {minutes // 60 % 24} h"


def number(value: float | None) -> str:
    """A whole number with thin spaces, so that digits can be counted."""
    return "–" if value is None else f"{round(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float | None) -> str:
    """So many a second."""
    if value is None:
        return "–"
    return number(value) if value >= 100 or value == 0 else f"{value:.1f}"


def size(count: float | None) -> str:
    """Bytes in the unit that fits."""
    if count is None:
        return "–"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def percent(part: float | None) -> str:
    """A part of 1."""
    return "–" if part is None else f"{part:.0%}"


def permission(bits: int) -> str:
    """What READ 4, WRITE 2 and INHERIT 1 allow."""
    words = [word for bit, word in ((4, "read"), (2, "write")) if bits & bit]
    return " + ".join(words) or "none"


def href(path: str, **parameters: object) -> str:
    """The address of a page; parameters that are None or "" are left out."""
    given = {name: value for name, value in parameters.items() if value not in (None, "")}
    text = urlencode({k: str(v).encode("utf-8", "replace") for k, v in given.items()})
    return f"{path}?{text}" if given else path


CELL_MAX: Final = 2000
"""Characters of a value that a cell shows."""


def cell(value: Any) -> str:
    """A value in a table or in CSV."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        text = value.decode("utf-8", "replace") if _is_utf8(value) else value.hex()
    elif isinstance(value, datetime | date):
        text = value.isoformat()
    elif isinstance(value, dict | list | tuple):
        text = json.dumps(value, ensure_ascii=False, default=cell)
    else:
        text = str(value)
    return text if len(text) <= CELL_MAX else f"{text[:CELL_MAX]}…"


def csv_cell(value: Any) -> str:
    """A value in CSV, where no spreadsheet takes a text for a formula.

    An apostrophe is put before a sign that begins one: in front, and behind what separates cells
    where commas do not.
    """
    text = cell(value)
    if isinstance(value, int | float | Decimal) or _NUMBER.fullmatch(text):
        return text
    return _FORMULA.sub("'", text)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
