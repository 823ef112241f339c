"""The option ``filter.sql``: RocketMQ's SQL92 over a message's properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oberth.errors import FormatError, OptionError
from oberth.formats.sql92 import compile_sql92

PropertyFilter = Callable[[Mapping[str, str]], bool]


def compile_sql(expression: str) -> PropertyFilter:
    """A function that says whether properties satisfy an expression.

    Raises:
        OptionError: it is no expression, or one that RocketMQ refuses.
    """
    try:
        return compile_sql92(expression).matches
    except FormatError as error:
        raise OptionError(f"filter.sql: {expression[:200]!r}: {error}") from None
