"""The option ``filter.sql``: RocketMQ's SQL92 over a message's properties.

The language itself is `oberth.formats.sql92`, which the broker's filter uses too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec

from oberth.errors import OptionError

PropertyFilter = Callable[[Mapping[str, str]], bool]

_LANGUAGE = "oberth.formats.sql92"


def compile_sql(expression: str) -> PropertyFilter:
    """A function that says whether properties satisfy an expression.

    Raises:
        OptionError: the expression is wrong, or this installation does not have the language.
    """
    if find_spec(_LANGUAGE) is None:
        raise OptionError(
            f"filter.sql: {expression!r} cannot be evaluated, this installation has no {_LANGUAGE}"
        )
    compiled: PropertyFilter = import_module(_LANGUAGE).compile_filter(expression)
    return compiled
