"""The parts of a compiled SQL92 expression: what each makes of a message's properties."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from oberth.errors import FormatError
from oberth.formats.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, find_property

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Subject = Any
"""What is judged: Properties, or the bytes of a properties string, as the getters were made for."""
Evaluate = Callable[[Subject], Value]
Find = Callable[[bytes], bytes | None]
LONG_MAX: Final = 2**63 - 1
_LONG: Final = re.compile(r"[+-]?\d+")
_PLAIN_DIGITS_MAX: Final = 18
"""Digits that are a long whatever they are."""
LONG_DIGITS_MAX: Final = len(str(LONG_MAX))
"""Digits of a long; of more int() takes quadratic time, and of thousands it raises."""
_ORDERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_DOUBLE: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)


class Sql92Error(FormatError):
    """An expression that RocketMQ refuses; the message says where and why."""


class Sql92EvaluationError(FormatError):
    """A property's value cannot be compared as the expression wants; such a message is no match."""


class Node:
    """A part of an expression and what the checks need to know of it."""

    __slots__ = (
        "constant",
        "equals",
        "evaluate",
        "find",
        "is_boolean",
        "is_constant",
        "name",
        "required",
    )

    def __init__(
        self,
        evaluate: Evaluate,
        *,
        constant: Value = None,
        is_constant: bool = False,
        is_boolean: bool = False,
        name: str | None = None,
        find: Find | None = None,
        equals: Callable[[bytes, bool], Evaluate] | None = None,
        required: tuple[bytes, ...] = (),
    ) -> None:
        self.required = required  # patterns of bytes without which this is not true
        self.equals = equals
        self.evaluate = evaluate
        self.constant = constant
        self.is_constant = is_constant
        self.is_boolean = is_boolean
        self.name = name
        self.find = find  # of a property of stored bytes


def of_map(name: str) -> Node:
    """A property of a map."""
    return Node(lambda properties: properties.get(name), name=name)


def of_bytes(name: str) -> Node:
    """A property of a properties string, as `decode_properties` would have it."""
    # A name is ASCII, and no byte of another character looks like ASCII, nor like a separator.
    encoded = name.encode()
    separator = PROPERTY_SEPARATOR.encode()
    first = encoded + NAME_VALUE_SEPARATOR.encode()
    key = separator + first
    size = len(key)

    def find(raw: bytes) -> bytes | None:
        start = raw.rfind(key) + size  # the last of equal names wins
        if start < size:
            if not raw.startswith(first):
                return None
            start = size - 1
        end = raw.find(separator, start)
        value = raw[start:] if end < 0 else raw[start:end]
        return value or find_property(raw, encoded)  # an empty value does not count

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        return None if value is None else value.decode("utf-8", "replace")

    def equals(wanted: bytes, differs: bool) -> Evaluate:
        """Whether the value is the wanted one, which is not empty: without a copy of the value."""
        ended = wanted + separator

        def judge(raw: bytes) -> Value:
            start = raw.rfind(key) + size
            if start < size:
                if not raw.startswith(first):
                    return None
                start = size - 1
            if raw.startswith(ended, start):
                return not differs
            if start == len(raw) or raw.startswith(separator, start):
                value = find_property(raw, encoded)
                return None if value is None else (value == wanted) is not differs
            return (len(raw) == start + len(wanted) and raw.endswith(wanted)) is not differs

        return judge

    return Node(evaluate, name=name, find=find, equals=equals)


def constant_of(value: Value) -> Node:
    """A constant."""
    return Node(lambda _: value, constant=value, is_constant=True)


def negative_of(node: Node) -> Node:
    """A minus before a part: a number's opposite; unknown before anything else."""
    get = node.evaluate

    def evaluate(properties: Subject) -> Value:
        value = get(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return -value

    return Node(evaluate)


def negation_of(node: Node) -> Node:
    """NOT before a boolean part."""
    get = node.evaluate

    def evaluate(properties: Subject) -> Value:
        value = get(properties)
        return None if value is None else not value

    return Node(evaluate, is_boolean=True)


def all_of(operands: list[Node]) -> Node:
    """AND between boolean parts, three-valued."""
    first, *others = [operand.evaluate for operand in operands]

    def evaluate(properties: Subject) -> Value:
        value = first(properties)  # mostly the end of it
        if value is False:
            return False
        unknown = value is None
        for get in others:
            value = get(properties)
            if value is False:
                return False
            unknown = unknown or value is None
        return None if unknown else True

    required = tuple(pattern for operand in operands for pattern in operand.required)
    return Node(evaluate, is_boolean=True, required=required)


def any_of(operands: list[Node]) -> Node:
    """OR between boolean parts, three-valued."""
    getters = [operand.evaluate for operand in operands]

    def evaluate(properties: Subject) -> Value:
        unknown = False
        for get in getters:
            value = get(properties)
            if value is True:
                return True
            unknown = unknown or value is None
        return None if unknown else False

    return Node(evaluate, is_boolean=True)


def null_test(node: Node, *, negated: bool) -> Node:
    """IS NULL, or IS NOT NULL if ``negated``."""
    get = node.find or node.evaluate
    return Node(lambda properties: (get(properties) is None) is not negated, is_boolean=True)


def equality_of(left: Node, right: Node, *, differs: bool) -> Node:
    """``=`` between two parts, or ``<>`` if it ``differs``."""
    for node in (left, right):
        if node.is_constant and node.constant is None:
            raise Sql92Error("SQL92 expression: NULL cannot be compared; use IS NULL")
    if (
        isinstance(left.constant, bool)
        and right.is_constant
        and not isinstance(right.constant, bool)
    ):
        raise Sql92Error(
            f"SQL92 expression: {left.constant} cannot be compared with {right.constant!r}"
        )
    if left.find is not None and left.equals is not None and isinstance(right.constant, str):
        assert left.name is not None
        return _equal_bytes(left.name, left.find, left.equals, right.constant, differs=differs)
    get_left, get_right = left.evaluate, right.evaluate

    def evaluate(properties: Subject) -> Value:
        first, second = get_left(properties), get_right(properties)
        if first is None:
            return None if second is not None else not differs
        if second is None:
            return differs
        if isinstance(first, str) and isinstance(second, str):
            return (first == second) is not differs
        # Kinds that cannot be compared are not equal.
        return (_compare(first, second) == 0) is not differs

    return Node(evaluate, is_boolean=True)


def _equal_bytes(
    name: str,
    find: Find,
    equals: Callable[[bytes, bool], Evaluate],
    text: str,
    *,
    differs: bool,
) -> Node:
    """A property of stored bytes and a text."""
    # Bytes that are no UTF-8 are read as U+FFFD, so only then others can be the same text.
    if text and "\ufffd" not in text and PROPERTY_SEPARATOR not in text:
        wanted = text.encode("utf-8", "surrogatepass")
        required = () if differs else (_start(name) + re.escape(wanted),)
        return Node(equals(wanted, differs), is_boolean=True, required=required)

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        if value is None:
            return None
        return (value.decode("utf-8", "replace") == text) is not differs

    return Node(evaluate, is_boolean=True)


def _start(name: str) -> bytes:
    """A pattern: how a property begins."""
    return re.escape(f"{name}{NAME_VALUE_SEPARATOR}".encode())


def _between_required(name: str, low: int, high: int) -> tuple[bytes, ...]:
    """What is found where a property is a long between two, and seldom elsewhere."""
    if low < 0:
        return ()
    shortest, longest = str(low), str(high)
    if len(shortest) == len(longest):
        pairs = enumerate(zip(shortest, longest, strict=True))
        same = next((k for k, (a, b) in pairs if a != b), len(longest))
        digits = shortest[:same]
        if same < len(longest):
            digits += f"[{shortest[same]}-{longest[same]}][0-9]{{{len(longest) - same - 1}}}"
    else:
        digits = f"[0-9]{{{len(shortest)},{len(longest)}}}"
    # A long may also be written with the digits of other scripts, which are no ASCII.
    value = f"(?:[+-]?0*{digits}(?![0-9])|[^{PROPERTY_SEPARATOR}]*[\\x80-\\xff])"
    return (_start(name) + value.encode("latin-1"),)


def _long(value: bytes) -> int:
    """A stored property's value as a long.

    Raises:
        Sql92EvaluationError: the text spells no number.
    """
    if len(value) <= _PLAIN_DIGITS_MAX and value.isdigit():
        return int(value)
    return int(_number(value.decode("utf-8", "replace"), 0))


def _is_long(node: Node) -> bool:
    return isinstance(node.constant, int) and not isinstance(node.constant, bool)


def _check_ordered(node: Node) -> None:
    if node.is_boolean or (
        node.is_constant and (isinstance(node.constant, bool | str) or node.constant is None)
    ):
        what = repr(node.constant) if node.is_constant else "a condition"
        raise Sql92Error(f"SQL92 expression: {what} has no order")


def order_of(left: Node, sign: str, right: Node) -> Node:
    """``>``, ``>=``, ``<`` or ``<=`` between two parts."""
    _check_ordered(left)
    _check_ordered(right)
    if left.find is not None and isinstance(right.constant, int):
        return _ordered_bytes(left.find, _ORDERS[sign], right.constant)
    get_left, get_right = left.evaluate, right.evaluate

    def evaluate(properties: Subject) -> Value:
        first, second = get_left(properties), get_right(properties)
        if first is None or second is None:
            return None
        order = _compare(first, second)
        if order is None:
            return False
        if sign == ">":
            return order > 0
        if sign == ">=":
            return order >= 0
        return order < 0 if sign == "<" else order <= 0

    return Node(evaluate, is_boolean=True)


def _ordered_bytes(find: Find, order: Callable[[int, int], bool], number: int) -> Node:
    """A property of stored bytes and a long."""

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        return None if value is None else order(_long(value), number)

    return Node(evaluate, is_boolean=True)


def _between_bytes(name: str, find: Find, low: int, high: int, *, negated: bool) -> Node:
    """A property of stored bytes between two longs: looked up and read once."""

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        return None if value is None else (low <= _long(value) <= high) is not negated

    required = () if negated else _between_required(name, low, high)
    return Node(evaluate, is_boolean=True, required=required)


def between_of(node: Node, low: Node, high: Node, *, negated: bool) -> Node:
    """BETWEEN two parts, or NOT BETWEEN if ``negated``."""
    if low.is_constant and high.is_constant and not negated:
        first, second = low.constant, high.constant
        if first is None or second is None:
            raise Sql92Error("SQL92 expression: the bounds of BETWEEN cannot be NULL")
        try:
            order = _compare(first, second)
        except Sql92EvaluationError as error:
            raise Sql92Error(str(error)) from None
        if order is not None and order > 0:
            raise Sql92Error(f"SQL92 expression: BETWEEN {first!r} AND {second!r} is empty")
    if node.find is not None and _is_long(low) and _is_long(high):
        assert isinstance(low.constant, int)
        assert isinstance(high.constant, int)
        assert node.name is not None
        return _between_bytes(node.name, node.find, low.constant, high.constant, negated=negated)
    if negated:
        return any_of([order_of(node, "<", low), order_of(node, ">", high)])
    return all_of([order_of(node, ">=", low), order_of(node, "<=", high)])


def search_of(left: Node, word: str, pattern: str, *, negated: bool) -> Node:
    """CONTAINS, STARTSWITH or ENDSWITH, or the contrary if ``negated``."""
    get = left.evaluate

    def evaluate(properties: Subject) -> Value:
        if not pattern:
            return False
        value = get(properties)
        if not isinstance(value, str):
            return False
        if word == "CONTAINS":
            found = pattern in value
        elif word == "STARTSWITH":
            found = value.startswith(pattern)
        else:
            found = value.endswith(pattern)
        return found is not negated

    return Node(evaluate, is_boolean=True)


def _compare(left: Value, right: Value) -> int | None:
    """-1, 0 or 1; None for kinds that cannot be compared, which counts as false."""
    if isinstance(left, bool):
        if isinstance(right, str):
            raise Sql92EvaluationError(f"SQL92: a condition cannot equal the text {right[:100]!r}")
        if not isinstance(right, bool):
            return None
        return (left > right) - (left < right)
    if isinstance(right, bool):
        if not isinstance(left, str):
            return None
        flag = left.lower() == "true"
        return (flag > right) - (flag < right)
    if isinstance(left, str) and isinstance(right, str):
        # Only texts that are numbers have an order among themselves.
        left, right = _number(left, 0.0), _number(right, 0.0)
    a = _number(left, right) if isinstance(left, str) else left
    b = _number(right, left) if isinstance(right, str) else right
    if a is None or b is None:
        return None
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
        # Double.compare: NaN is above everything, and -0.0 below 0.0.
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) - math.isnan(b)
        if a == b == 0:
            a, b = math.copysign(1, a), math.copysign(1, b)
    return (a > b) - (a < b)


def _number(text: str, other: Value) -> int | float:
    """A property's value as the kind of number it is compared with."""
    if isinstance(other, float):
        stripped = text.strip()
        if _DOUBLE.fullmatch(stripped):
            bare = (
                stripped.rstrip("fFdD") if not stripped.lower().endswith("infinity") else stripped
            )
            if "x" in bare.lower():
                try:
                    return float.fromhex(bare)
                except OverflowError:
                    return math.inf
            return float(bare)
    elif _LONG.fullmatch(text) and len(text.lstrip("+-0")) <= LONG_DIGITS_MAX:
        value = int(text.lstrip("+-0") or "0") * (-1 if text[0] == "-" else 1)
        if -LONG_MAX - 1 <= value <= LONG_MAX:
            return value
    raise Sql92EvaluationError(f"SQL92: {text[:100]!r} is no number like {other!r}")
