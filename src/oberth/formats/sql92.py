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
import re
from collections.abc import Callable
from typing import Final

from oberth.formats.properties import decode_properties
from oberth.formats.sql92_nodes import (
    LONG_DIGITS_MAX,
    LONG_MAX,
    Evaluate,
    Node,
    Properties,
    Sql92Error,
    Sql92EvaluationError,
    Subject,
    Value,
    all_of,
    any_of,
    between_of,
    constant_of,
    equality_of,
    negation_of,
    negative_of,
    null_test,
    of_bytes,
    of_map,
    order_of,
    search_of,
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


class Sql92Expression:
    """A compiled expression. Immutable; may be used from any thread."""

    __slots__ = ("_evaluate", "evaluate_raw", "operand_count", "required", "text")

    def __init__(
        self,
        text: str,
        evaluate: Evaluate,
        evaluate_raw: Evaluate,
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
    parser = _Parser(text, of_bytes)
    raw = parser.compiled()
    evaluate = _Parser(text, of_map).compiled().evaluate
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

    def __init__(self, text: str, property_node: Callable[[str], Node]) -> None:
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

    def compiled(self) -> Node:
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

    def expression(self) -> Node:
        left = self._and()
        if not self._is("OR"):
            return left
        operands = [self.boolean(left)]
        while self._accept("OR"):
            operands.append(self.boolean(self._and()))
        return any_of(operands)

    def _and(self) -> Node:
        left = self._equality()
        if not self._is("AND"):
            return left
        operands = [self.boolean(left)]
        while self._accept("AND"):
            operands.append(self.boolean(self._equality()))
        return all_of(operands)

    def _equality(self) -> Node:
        left = self._comparison()
        for _ in range(CHAIN_MAX):
            if self._is("=", "<>"):
                differs = self._token == "<>"
                self._advance()
                left = equality_of(left, self._comparison(), differs=differs)
            elif self._is("IS"):
                self._advance()
                negated = self._accept("NOT")
                self._expect("NULL")
                left = null_test(left, negated=negated)
            else:
                return left
        raise Sql92Error(f"SQL92 expression: more than {CHAIN_MAX} comparisons in a row")

    def _comparison(self) -> Node:
        left = self._unary()
        for _ in range(CHAIN_MAX):
            if self._is(">", ">=", "<", "<="):
                sign = self._token
                self._advance()
                left = order_of(left, sign, self._unary())
                continue
            negated = self._is("NOT") and self._next_is(
                "CONTAINS", "STARTSWITH", "ENDSWITH", "BETWEEN", "IN"
            )
            if negated:
                self._advance()
            if self._is("CONTAINS", "STARTSWITH", "ENDSWITH"):
                word = self._token
                self._advance()
                left = search_of(left, word, self._text_literal(), negated=negated)
            elif self._accept("BETWEEN"):
                low = self._unary()
                self._expect("AND")
                left = between_of(left, low, self._unary(), negated=negated)
            elif self._accept("IN"):
                left = self._in(left, negated=negated)
            else:
                return left
        raise Sql92Error(f"SQL92 expression: more than {CHAIN_MAX} comparisons in a row")

    def _in(self, left: Node, *, negated: bool) -> Node:
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

        def evaluate(properties: Subject) -> Value:
            value = get(properties)
            return None if value is None else (value in values) is not negated

        return Node(evaluate, is_boolean=True)

    def _unary(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Sql92Error(f"SQL92 expression: nested deeper than {DEPTH_MAX}")
        try:
            if self._is("+", "-", "NOT"):
                self._count_operand()
            if self._accept("+"):
                return self._unary()
            if self._accept("-"):
                return negative_of(self._unary())
            if self._accept("NOT"):
                return negation_of(self.boolean(self._unary()))
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Node:
        kind, token = self._kind, self._token
        self._count_operand()
        if kind == "text":
            return constant_of(self._text_literal())
        if kind == "long":
            self._advance()
            digits = token.rstrip("lL")
            if len(digits) > LONG_DIGITS_MAX or int(digits) > LONG_MAX:
                raise Sql92Error(f"SQL92 expression: {token[:40]} is above {LONG_MAX}")
            return constant_of(int(digits))
        if kind == "float":
            self._advance()
            value = float(token)
            if not _DOUBLE_MIN <= value < math.inf:
                raise Sql92Error(f"SQL92 expression: {token[:40]} is out of the range of a double")
            return constant_of(value)
        if kind == "name":
            self._advance()
            return self._property_node(token)
        for word, constant in (("TRUE", True), ("FALSE", False), ("NULL", None)):
            if self._accept(word):
                return constant_of(constant)
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

    def boolean(self, node: Node) -> Node:
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

        def evaluate(properties: Subject) -> Value:
            value = get(properties)
            return None if value is None else value is True

        return Node(evaluate, is_boolean=True)
