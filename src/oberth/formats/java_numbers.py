"""Numbers that peers send as text: header fields, properties and attributes.

Java writes them with ``String.valueOf`` and reads them with ``Long.parseLong``: an optional sign
and digits, within 64 bits. Python's ``int`` also takes ``1_000`` and spaces, and raises an error of
its own for thousands of digits. Digits other than 0 to 9, which both take, no client writes; they
are not taken here.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

_LONG: Final = re.compile("([+-]?)0*([0-9]{1,19})")
LONG_END: Final = 1 << 63
"""A long is below it, and not below its negative."""

_D = TypeVar("_D")


def java_long(text: str | bytes | None, default: _D) -> int | _D:
    """The number that a text spells; the default where it spells none, or one beyond 64 bits."""
    if text is None:
        return default
    found = _LONG.fullmatch(text.decode("latin-1") if isinstance(text, bytes) else text)
    if found is None:
        return default
    number = int(found[1] + found[2])
    return number if -LONG_END <= number < LONG_END else default
