"""Bodies decoded one by one, with a reason for each that does not decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from oberth.spark.pipelines.json_types import BodyError

Reasons = Mapping[int, str]


def decode_each(
    bodies: pa.Array, kind: pa.StructType, decode_one: Callable[[bytes], Any]
) -> tuple[pa.Array, Reasons]:
    """Decodes bodies one by one; ``decode_one`` raises BodyError for what does not decode."""
    values: list[Any] = []
    reasons: dict[int, str] = {}
    for row, body in enumerate(bodies.to_pylist()):
        try:
            values.append(decode_one(body or b""))
        except BodyError as error:
            values.append(None)
            reasons[row] = str(error)
    try:
        return pa.array(values, kind), reasons
    except (pa.ArrowException, OverflowError):
        pass
    # A value that its column cannot hold, as a number that is too large, has a reason as well.
    for row, value in enumerate(values):
        try:
            pa.array([value], kind)
        except (pa.ArrowException, OverflowError) as error:
            values[row] = None
            reasons[row] = f"a value that its column cannot hold: {error}"
    return pa.array(values, kind), reasons
