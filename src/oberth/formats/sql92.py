"""SQL92 expressions that filter messages by their properties.

    expression   = and { OR and }
    and          = equality { AND equality }
    equality     = comparison { ( "=" | "<>" ) comparison | IS [ NOT ] NULL }
    comparison   = unary { ( ">" | ">=" | "<" | "<=" ) unary
                         | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) text
                         | [ NOT ] BETWEEN unary AND unary
                         | [ NOT ] IN "(" text { "," text } ")" }
    unary        = ( "+" | "-" | NOT ) unary | primary
    primary      = text | number | TRUE | FALSE | NULL | property | "(" expression ")"

Keywords in any case. A text is 'it''s'; a number is an integer (optional L) or a decimal; ``--``
and ``/* */`` are comments. Properties are texts; they become numbers or booleans when compared with
such. A property that is missing is unknown, logic is three-valued, and unknown is no match.

What RocketMQ does with the odd cases is done here too, so that an expression selects the same
messages: what follows a complete expression is ignored, NOT binds tighter than ``>``, a minus
before anything but a number is unknown, an order between texts is refused, and so on. The tests
hold a table of its answers. RocketMQ: org.apache.rocketmq.filter (SelectorParser and expressions).
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from oberth.errors import FormatError
from oberth.formats.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    decode_properties,
    find_property,
)

EXPRESSION_SIZE_MAX: Final = 32 * 1024
"""Characters of an expression. RocketMQ has no limits; these keep compiling below some 10 ms."""
DEPTH_MAX: Final = 64
"""Nested brackets and unary signs."""
OPERAND_COUNT_MAX: Final = 400
"""Names, constants, signs and NOTs of one expression."""

IN_VALUE_COUNT_MAX: Final = 2048
"""Texts in all IN lists of one expression."""

CHAIN_MAX: Final = 16
"""Comparisons that follow each other without AND or OR: ``a = b = c``."""

_RAW_OPERANDS_MAX: Final = 16
"""With more operands a map of all properties is made once, rather than each looked for."""
_REQUIRED_MAX: Final = 3
"""Patterns that a record is searched for before its properties are looked at."""
_REQUIRED_SIZE_MAX: Final = 256
"""Bytes of such a pattern; compiling long ones takes longer than they spare."""

Value = str | int | float | bool | None
Properties = Mapping[str, str]
_Subject = Any
"""What is judged: Properties, or the bytes of a properties string, as the getters were made for."""
_Evaluate = Callable[[_Subject], Value]
_Find = Callable[[bytes], bytes | None]

_LONG_MAX: Final = 2**63 - 1
_DOUBLE_MIN: Final = 4.9e-324
_KEYWORDS: Final = frozenset(
    (
        "NOT",
        "AND",
        "OR",
        "BETWEEN",
        "IN",
        "TRUE",
        "FALSE",
        "NULL",
        "IS",
        "CONTAINS",
        "STARTSWITH",
        "ENDSWITH",
    )
)
_SKIP: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*+(?:\r\n|\n|\r)|/\*[\s\S]*?\*/)*")
_SKIP_IN_LAST_LINE: Final = re.compile(r"(?:[ \t\f]+|/\*[\s\S]*?\*/)*")
"""Where no line ends any more no -- begins a comment, and nobody looks for its end at each sign."""
_TOKEN: Final = re.compile(
    r"(?P<float>(?:[1-9][0-9]*|0)\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|(?:[1-9][0-9]*|0)[eE][+-]?[0-9]+)"
    r"|(?P<long>(?:[1-9][0-9]*|0)[lL]?)"
    r"|(?P<text>'[^']*+(?:''[^']*+)*+')"
    r"|(?P<name>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+\-])"
)
_LONG: Final = re.compile(r"[+-]?\d+")
_PLAIN_DIGITS_MAX: Final = 18
"""Digits that are a long whatever they are."""
_LONG_DIGITS_MAX: Final = len(str(_LONG_MAX))
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


class _Node:
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
        evaluate: _Evaluate,
        *,
        constant: Value = None,
        is_constant: bool = False,
        is_boolean: bool = False,
        name: str | None = None,
        find: _Find | None = None,
        equals: Callable[[bytes, bool], _Evaluate] | None = None,
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


class Sql92Expression:
    """A compiled expression. Immutable; may be used from any thread."""

    __slots__ = ("_evaluate", "evaluate_raw", "operand_count", "required", "text")

    def __init__(
        self,
        text: str,
        evaluate: _Evaluate,
        evaluate_raw: _Evaluate,
        required: tuple[bytes, ...] = (),
        operand_count: int = 1,
    ) -> None:
        self.text = text
        self.operand_count = operand_count
        """Names and constants: what judging a message may cost is proportional to it."""
        self._evaluate = evaluate
        self.evaluate_raw = evaluate_raw
        """Like `evaluate` of a properties string as stored; raises what that raises."""
        self.required = tuple(
            re.compile(pattern)
            for pattern in required[:_REQUIRED_MAX]
            if len(pattern) <= _REQUIRED_SIZE_MAX
        )
        """Each is found in whatever holds the properties string of a selected message.

        A search costs a fifth of an evaluation, which it often spares.
        """

    def evaluate(self, properties: Properties) -> bool | None:
        """True, False, or None for unknown.

        Raises:
            Sql92EvaluationError: a property is no number where the expression needs one.
        """
        value = self._evaluate(properties)
        return value if isinstance(value, bool) else None

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties is selected."""
        try:
            return self._evaluate(properties) is True
        except Sql92EvaluationError:
            return False

    def matches_raw(self, raw: bytes) -> bool:
        """The same of a properties string as stored: only what is asked for is looked up.

        A third of what it costs with a map of nine properties, which has to be made first.
        """
        try:
            return self.evaluate_raw(raw) is True
        except Sql92EvaluationError:
            return False

    def __repr__(self) -> str:
        return f"Sql92Expression({self.text!r})"


def compile_sql92(text: str) -> Sql92Expression:
    """Compiles an expression.

    Raises:
        Sql92Error: it is no expression, or one that RocketMQ refuses.
    """
    if len(text) > EXPRESSION_SIZE_MAX:
        raise Sql92Error(
            f"SQL92 expression of {len(text)} characters, at most {EXPRESSION_SIZE_MAX}"
        )
    parser = _Parser(text, _of_bytes)
    raw = parser.compiled()
    evaluate = _Parser(text, _of_map).compiled().evaluate
    evaluate_raw = raw.evaluate
    if parser.operand_count > _RAW_OPERANDS_MAX:

        def evaluate_raw(properties: bytes) -> Value:
            return evaluate(decode_properties(properties))

    return Sql92Expression(text, evaluate, evaluate_raw, raw.required, parser.operand_count)


class _Parser:
    """Recursive descent with the tokens fetched as they are needed, one ahead.

    RocketMQ never asks whether the text ends where the expression does, so what follows is looked
    at no further than the one token that was needed to know so.
    """

    def __init__(self, text: str, property_node: Callable[[str], _Node]) -> None:
        self._text = text
        self._property_node = property_node
        self._position = 0
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._depth = 0
        self.operand_count = 0
        self._in_value_count = 0
        self._kind = ""
        self._token = ""
        self._advance()

    def compiled(self) -> _Node:
        """What judges a subject; to be called once."""
        return self.boolean(self.expression())

    # Tokens

    def _advance(self) -> None:
        self._kind, self._token, self._position = self._scan(self._position)

    def _scan(self, position: int) -> tuple[str, str, int]:
        skip = _SKIP if position <= self._last_line_end else _SKIP_IN_LAST_LINE
        skipped = skip.match(self._text, position)
        assert skipped is not None
        start = skipped.end()
        if start >= len(self._text):
            return "end", "", start
        found = _TOKEN.match(self._text, start)
        if found is None:
            raise Sql92Error(
                f"SQL92 expression at character {start + 1}: found "
                f"{self._text[start : start + 20]!r}, which begins no name, number, text or sign"
            )
        kind = found.lastgroup or ""
        token = found.group()
        if kind == "name" and token.upper() in _KEYWORDS:
            return "keyword", token.upper(), found.end()
        return kind, token, found.end()

    def _is(self, *words: str) -> bool:
        return self._kind in ("keyword", "sign") and self._token in words

    def _next_is(self, *words: str) -> bool:
        kind, token, _ = self._scan(self._position)
        return kind in ("keyword", "sign") and token in words

    def _accept(self, word: str) -> bool:
        if self._is(word):
            self._advance()
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            raise self._unexpected(word)

    def _unexpected(self, wanted: str) -> Sql92Error:
        found = repr(self._token) if self._kind != "end" else "the end"
        return Sql92Error(
            f"SQL92 expression before character {self._position + 1}: found {found}, "
            f"wanted {wanted}"
        )

    def _text_literal(self) -> str:
        if self._kind != "text":
            raise self._unexpected("a text in quotes")
        value = self._token[1:-1].replace("''", "'")
        self._advance()
        return value

    # Grammar

    def expression(self) -> _Node:
        left = self._and()
        if not self._is("OR"):
            return left
        operands = [self.boolean(left)]
        while self._accept("OR"):
            operands.append(self.boolean(self._and()))
        return _any(operands)

    def _and(self) -> _Node:
        left = self._equality()
        if not self._is("AND"):
            return left
        operands = [self.boolean(left)]
        while self._accept("AND"):
            operands.append(self.boolean(self._equality()))
        return _all(operands)

    def _equality(self) -> _Node:
        left = self._comparison()
        for _ in range(CHAIN_MAX):
            if self._is("=", "<>"):
                differs = self._token == "<>"
                self._advance()
                left = _equal(left, self._comparison(), differs=differs)
            elif self._is("IS"):
                self._advance()
                negated = self._accept("NOT")
                self._expect("NULL")
                left = _is_null(left, negated=negated)
            else:
                return left
        raise Sql92Error(f"SQL92 expression: more than {CHAIN_MAX} comparisons in a row")

    def _comparison(self) -> _Node:
        left = self._unary()
        for _ in range(CHAIN_MAX):
            if self._is(">", ">=", "<", "<="):
                sign = self._token
                self._advance()
                left = _ordered(left, sign, self._unary())
                continue
            negated = self._is("NOT") and self._next_is(
                "CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN"
            )
            if negated:
                self._advance()
            if self._is("CONTAINS", "STARTSWITH", "ENDSWITH"):
                word = self._token
                self._advance()
                left = _search(left, word, self._text_literal(), negated=negated)
            elif self._accept("BETWEEN"):
                low = self._unary()
                self._expect("AND")
                left = _between(left, low, self._unary(), negated=negated)
            elif self._accept("IN"):
                left = self._in(left, negated=negated)
            else:
                return left
        raise Sql92Error(f"SQL92 expression: more than {CHAIN_MAX} comparisons in a row")

    def _in(self, left: _Node, *, negated: bool) -> _Node:
        self._expect("(")
        values: set[str] = set()
        while not values or self._accept(","):
            values.add(self._text_literal())
            self._in_value_count += 1
            if self._in_value_count > IN_VALUE_COUNT_MAX:
                raise Sql92Error(f"SQL92 expression: more than {IN_VALUE_COUNT_MAX} texts in lists")
        self._expect(")")
        if left.name is None:
            raise Sql92Error("SQL92 expression: the left side of IN must be a property")
        get = left.evaluate

        def evaluate(properties: _Subject) -> Value:
            value = get(properties)
            return None if value is None else (value in values) is not negated

        return _Node(evaluate, is_boolean=True)

    def _unary(self) -> _Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Sql92Error(f"SQL92 expression: nested deeper than {DEPTH_MAX}")
        try:
            if self._is("+", "-", "NOT"):
                self._count_operand()
            if self._accept("+"):
                return self._unary()
            if self._accept("-"):
                return _negative(self._unary())
            if self._accept("NOT"):
                return _not(self.boolean(self._unary()))
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> _Node:
        kind, token = self._kind, self._token
        self._count_operand()
        if kind == "text":
            return _constant(self._text_literal())
        if kind == "long":
            self._advance()
            digits = token.rstrip("lL")
            if len(digits) > _LONG_DIGITS_MAX or int(digits) > _LONG_MAX:
                raise Sql92Error(f"SQL92 expression: {token[:40]} is above {_LONG_MAX}")
            return _constant(int(digits))
        if kind == "float":
            self._advance()
            value = float(token)
            if not _DOUBLE_MIN <= value < math.inf:
                raise Sql92Error(f"SQL92 expression: {token[:40]} is out of the range of a double")
            return _constant(value)
        if kind == "name":
            self._advance()
            return self._property_node(token)
        for word, constant in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._accept(word):
                return _constant(constant)
        if self._accept("("):
            inner = self.expression()
            self._expect(")")
            return inner
        raise self._unexpected("a property, a constant or a bracket")

    def _count_operand(self) -> None:
        self.operand_count += 1
        if self.operand_count > OPERAND_COUNT_MAX:
            raise Sql92Error(
                f"SQL92 expression: more than {OPERAND_COUNT_MAX} properties, constants and signs"
            )

    def boolean(self, node: _Node) -> _Node:
        """What AND, OR, NOT and the whole expression work on."""
        if node.is_boolean:
            return node
        if node.is_constant:
            if node.constant is None or isinstance(node.constant, bool):
                return node
            raise Sql92Error(f"SQL92 expression: {node.constant!r} is no boolean")
        if node.name is None:
            raise Sql92Error("SQL92 expression: what has a minus before it is no boolean")
        get = node.evaluate

        def evaluate(properties: _Subject) -> Value:
            value = get(properties)
            return None if value is None else value is True

        return _Node(evaluate, is_boolean=True)


def _of_map(name: str) -> _Node:
    """A property of a map."""
    return _Node(lambda properties: properties.get(name), name=name)


def _of_bytes(name: str) -> _Node:
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

    def equals(wanted: bytes, differs: bool) -> _Evaluate:
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

    return _Node(evaluate, name=name, find=find, equals=equals)


def _constant(value: Value) -> _Node:
    return _Node(lambda _: value, constant=value, is_constant=True)


def _negative(node: _Node) -> _Node:
    get = node.evaluate

    def evaluate(properties: _Subject) -> Value:
        value = get(properties)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return -value

    return _Node(evaluate)


def _not(node: _Node) -> _Node:
    get = node.evaluate

    def evaluate(properties: _Subject) -> Value:
        value = get(properties)
        return None if value is None else not value

    return _Node(evaluate, is_boolean=True)


def _all(operands: list[_Node]) -> _Node:
    first, *others = [operand.evaluate for operand in operands]

    def evaluate(properties: _Subject) -> Value:
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
    return _Node(evaluate, is_boolean=True, required=required)


def _any(operands: list[_Node]) -> _Node:
    getters = [operand.evaluate for operand in operands]

    def evaluate(properties: _Subject) -> Value:
        unknown = False
        for get in getters:
            value = get(properties)
            if value is True:
                return True
            unknown = unknown or value is None
        return None if unknown else False

    return _Node(evaluate, is_boolean=True)


def _is_null(node: _Node, *, negated: bool) -> _Node:
    get = node.find or node.evaluate
    return _Node(lambda properties: (get(properties) is None) is not negated, is_boolean=True)


def _equal(left: _Node, right: _Node, *, differs: bool) -> _Node:
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

    def evaluate(properties: _Subject) -> Value:
        first, second = get_left(properties), get_right(properties)
        if first is None:
            return None if second is not None else not differs
        if second is None:
            return differs
        if isinstance(first, str) and isinstance(second, str):
            return (first == second) is not differs
        # Kinds that cannot be compared are not equal.
        return (_compare(first, second) == 0) is not differs

    return _Node(evaluate, is_boolean=True)


def _equal_bytes(
    name: str,
    find: _Find,
    equals: Callable[[bytes, bool], _Evaluate],
    text: str,
    *,
    differs: bool,
) -> _Node:
    """A property of stored bytes and a text."""
    # Bytes that are no UTF-8 are read as U+FFFD, so only then others can be the same text.
    if text and "\ufffd" not in text and PROPERTY_SEPARATOR not in text:
        wanted = text.encode("utf-8", "surrogatepass")
        required = () if differs else (_start(name) + re.escape(wanted),)
        return _Node(equals(wanted, differs), is_boolean=True, required=required)

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        if value is None:
            return None
        return (value.decode("utf-8", "replace") == text) is not differs

    return _Node(evaluate, is_boolean=True)


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


def _is_long(node: _Node) -> bool:
    return isinstance(node.constant, int) and not isinstance(node.constant, bool)


def _check_ordered(node: _Node) -> None:
    if node.is_boolean or (
        node.is_constant and (isinstance(node.constant, bool | str) or node.constant is None)
    ):
        what = repr(node.constant) if node.is_constant else "a condition"
        raise Sql92Error(f"SQL92 expression: {what} has no order")


def _ordered(left: _Node, sign: str, right: _Node) -> _Node:
    _check_ordered(left)
    _check_ordered(right)
    if left.find is not None and isinstance(right.constant, int):
        return _ordered_bytes(left.find, _ORDERS[sign], right.constant)
    get_left, get_right = left.evaluate, right.evaluate

    def evaluate(properties: _Subject) -> Value:
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

    return _Node(evaluate, is_boolean=True)


def _ordered_bytes(find: _Find, order: Callable[[int, int], bool], number: int) -> _Node:
    """A property of stored bytes and a long."""

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        return None if value is None else order(_long(value), number)

    return _Node(evaluate, is_boolean=True)


def _between_bytes(name: str, find: _Find, low: int, high: int, *, negated: bool) -> _Node:
    """A property of stored bytes between two longs: looked up and read once."""

    def evaluate(raw: bytes) -> Value:
        value = find(raw)
        return None if value is None else (low <= _long(value) <= high) is not negated

    required = () if negated else _between_required(name, low, high)
    return _Node(evaluate, is_boolean=True, required=required)


def _between(node: _Node, low: _Node, high: _Node, *, negated: bool) -> _Node:
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
        return _any([_ordered(node, "<", low), _ordered(node, ">", high)])
    return _all([_ordered(node, ">=", low), _ordered(node, "<=", high)])


def _search(left: _Node, word: str, pattern: str, *, negated: bool) -> _Node:
    get = left.evaluate

    def evaluate(properties: _Subject) -> Value:
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

    return _Node(evaluate, is_boolean=True)


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
    elif _LONG.fullmatch(text) and len(text.lstrip("+-0")) <= _LONG_DIGITS_MAX:
        value = int(text.lstrip("+-0") or "0") * (-1 if text[0] == "-" else 1)
        if -_LONG_MAX - 1 <= value <= _LONG_MAX:
            return value
    raise Sql92EvaluationError(f"SQL92: {text[:100]!r} is no number like {other!r}")
