"""Every small change that could be made to a module, each as the text that replaces a part of it.

    change      from                                    to
    compare     a < b, a == b, a is b, a in b           a <= b, a != b, a is not b, a not in b
    number      n                                       n + 1
    truth       True                                    False
    sum         a + b, a * b, a & b, a << b             a - b, a // b, a | b, a >> b, and back
    negate      if a:, while a:, x if a else y          if not a:, …
    join        a and b                                 a or b, and back
    drop        a call, an assignment to a part of      pass
                an object, raise, break, continue
    sync        a call that waits for the disk, or      pass, True, durable=False, sync=False
                asks another one to
    return      return a                                return None

What nobody promises is left alone: texts, logging, assertions, annotations, and declarations.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

SYNCS = frozenset({
    "fsync", "fdatasync", "syncfs", "msync", "sync", "sync_directory", "sync_all", "flush",
    "flush_to", "_sync", "_sync_file", "_sync_names", "_sync_directory", "_sync_to_sync",
})  # fmt: skip
"""Names of calls that bring something to the disk, or are what brings it there one floor below."""

_DURABLE = frozenset({"make_dirs", "rename"})
"""Names of calls that sync a directory unless they are told that they need not."""

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_SUMMED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_LOGGERS = ("log", "logger", "logging", "warnings")


@dataclass(frozen=True)
class Change:
    """One change of one module.

    Attributes:
        path: of the module, below the package.
        function: the qualified name around it; empty at the module's own level.
        kind: the first column of the table above.
        line: where it begins, from 1.
        lines: of the statement that it is part of; none where it runs at import.
        start: the first byte that is replaced; up to end.
        before: what stood there, on one line.
        after: what stands there instead.
    """

    path: str
    function: str
    kind: str
    line: int
    lines: range
    start: int
    end: int
    before: str
    after: str

    def apply(self, source: bytes) -> bytes:
        """The module with this change."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def place(self) -> str:
        """What it is called where lines would move: module::function, and what stood there."""
        return f"{self.path}::{self.function or 'module'} {' '.join(self.before.split())}"

    def nothing(self) -> Change:
        """The same place, left as it is: what it must not be killed by."""
        return replace(self, end=self.start, after="")

    def __str__(self) -> str:
        place = f"{self.path}:{self.line} {self.function or 'module'}"
        return f"{place}: {self.kind}: {self.before} -> {self.after}"


def changes_of(path: str, source: bytes) -> list[Change]:
    """All changes of a module, in the order of their places."""
    finder = _Finder(path, source)
    finder.body(ast.parse(source).body)
    return sorted(finder.found, key=lambda each: (each.start, each.end, each.kind))


class _Finder:
    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._lines = range(0)
        self._functions = 0
        self.found: list[Change] = []

    def body(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.ClassDef():
                if not any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                    self._within(node.name, node.body)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._functions += 1
                self._within(node.name, node.body)
                self._functions -= 1
            case ast.If() | ast.While():
                if "TYPE_CHECKING" in ast.unparse(node.test):
                    return
                self._lines = _lines_of(node.test)
                self._add("negate", node.test, f"(not ({ast.unparse(node.test)}))")
                self._expression(node.test)
                self.body(node.body)
                self.body(node.orelse)
            case ast.For() | ast.AsyncFor():
                self._lines = _lines_of(node.iter)
                self._expression(node.iter)
                self.body(node.body)
                self.body(node.orelse)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._lines = _lines_of(item.context_expr)
                    self._expression(item.context_expr)
                self.body(node.body)
            case ast.Try():
                self.body(node.body)
                for handler in node.handlers:
                    self.body(handler.body)
                self.body(node.orelse)
                self.body(node.finalbody)
            case ast.Match():
                self._lines = _lines_of(node.subject)
                self._expression(node.subject)
                for case in node.cases:
                    self.body(case.body)
            case _:
                self._simple(node)

    def _within(self, name: str, body: list[ast.stmt]) -> None:
        self._names.append(name)
        self.body(body)
        self._names.pop()

    def _simple(self, node: ast.stmt) -> None:
        self._lines = _lines_of(node)
        match node:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=value):
                call = value.value if isinstance(value, ast.Await) else value
                if not isinstance(call, ast.Call) or _is_logging(call):
                    return
                self._add("sync" if _is_sync(call) else "drop", node, "pass")
                if not _is_sync(call):
                    self._expression(call)
            case ast.Assign(targets=targets, value=value):
                if any("__slots__" in ast.unparse(each) for each in targets):
                    return
                if self._functions and isinstance(targets[0], ast.Attribute | ast.Subscript):
                    self._add("drop", node, "pass")
                self._expression(value)
            case ast.AugAssign(value=value):
                self._add("drop", node, "pass")
                self._expression(value)
            case ast.AnnAssign(value=value):
                if value is not None:
                    self._expression(value)
            case ast.Return(value=value):
                if value is None:
                    return
                if not (isinstance(value, ast.Constant) and isinstance(value.value, bool | None)):
                    self._add("return", value, "None")
                self._expression(value)
            case ast.Delete(targets=targets) if all(isinstance(each, ast.Name) for each in targets):
                return  # an argument that is not used, or a name that is not used again
            case ast.Raise() | ast.Break() | ast.Continue() | ast.Delete():
                self._add("drop", node, "pass")
            case _:
                return

    def _expression(self, node: ast.expr) -> None:
        match node:
            case ast.JoinedStr() | ast.Lambda():
                return
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                turned = _COMPARED.get(type(op))
                if turned is not None:
                    fresh = ast.Compare(left=left, ops=[turned()], comparators=[right])
                    self._add("compare", node, f"({ast.unparse(fresh)})")
            case ast.BinOp(left=left, op=op, right=right):
                other = _SUMMED.get(type(op))
                if other is not None and not _is_text(left) and not _is_text(right):
                    summed = ast.BinOp(left=left, op=other(), right=right)
                    self._add("sum", node, f"({ast.unparse(summed)})")
            case ast.BoolOp(op=op, values=values):
                joined = ast.BoolOp(
                    op=ast.Or() if isinstance(op, ast.And) else ast.And(), values=values
                )
                self._add("join", node, f"({ast.unparse(joined)})")
            case ast.IfExp(test=test):
                self._add("negate", test, f"(not ({ast.unparse(test)}))")
            case ast.Constant(value=bool(value)):
                self._add("truth", node, str(not value))
            case ast.Constant(value=int(value)):
                self._add("number", node, f"({value + 1})")
            case ast.Call():
                if _is_logging(node):
                    return
                if _is_sync(node):
                    self._add("sync", node, "True")
                if _is_durable(node):
                    keywords = [*node.keywords, ast.keyword("durable", ast.Constant(False))]
                    loose = ast.Call(func=node.func, args=node.args, keywords=keywords)
                    self._add("sync", node, ast.unparse(loose))
                for keyword in node.keywords:
                    if keyword.arg == "sync" and isinstance(keyword.value, ast.Constant):
                        self._add("sync", keyword.value, "False")
        for child in _expressions(node):
            self._expression(child)

    def _add(self, kind: str, node: ast.expr | ast.stmt, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        self.found.append(
            Change(
                path=self._path,
                function=".".join(self._names),
                kind=kind,
                line=node.lineno,
                lines=self._lines if self._functions else range(0),
                start=self._starts[node.lineno - 1] + node.col_offset,
                end=self._starts[node.end_lineno - 1] + node.end_col_offset,
                before=ast.unparse(node),
                after=after,
            )
        )


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.keyword):
            yield child.value
        elif isinstance(child, ast.comprehension):
            yield child.iter
            yield from child.ifs


def _lines_of(node: ast.expr | ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_sync(call: ast.Call) -> bool:
    # One that takes something is a sync of requests.
    return _called(call) in SYNCS and not (_called(call) == "sync" and call.args)


def _is_durable(call: ast.Call) -> bool:
    return (
        _called(call) in _DURABLE
        and "durable" not in {keyword.arg for keyword in call.keywords}
        and not ast.unparse(call.func).startswith("os.")
    )


def _is_logging(call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return False
    return ast.unparse(function.value).rpartition(".")[2].strip("_").lower() in _LOGGERS


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )
