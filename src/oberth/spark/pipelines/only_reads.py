"""Whether a statement only reads the views: for statements of people who are not trusted.

SQL can do more than ask: write tables and directories, read files by their path, start programs
(``TRANSFORM … USING``), call methods of Java (``reflect``). What is allowed is therefore named, not
what is forbidden: a statement is parsed, not run, and each part of its plan must be one of NODES.
Functions that reach outside are refused by name, and again by what they became in the analysed
plan. Files by their path are switched off in the session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from oberth.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NODES: Final = frozenset(
    {
        "Aggregate", "AsOfJoin", "Deduplicate", "Distinct", "Except", "Filter", "Generate",
        "GlobalLimit", "Intersect", "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset",
        "OneRowRelation", "PipeOperator", "Project", "ResolvedInlineTable", "Sample", "Sort",
        "SubqueryAlias", "Union", "UnresolvedHaving", "UnresolvedInlineTable", "UnresolvedPivot",
        "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedTableValuedFunction",
        "UnresolvedUnpivot", "UnresolvedWith", "Unpivot", "WithWindowDefinition",
    }
)  # fmt: skip
"""Parts of a query as Spark parses it."""

TABLE_FUNCTIONS: Final = frozenset(
    {"range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline",
     "inline_outer", "json_tuple", "stack"}
)  # fmt: skip
FORBIDDEN_FUNCTIONS: Final = frozenset(
    {"reflect", "java_method", "try_reflect", "from_protobuf", "to_protobuf"}
)
FORBIDDEN_EXPRESSIONS: Final = frozenset({"CallMethodViaReflection", "TryReflect"})


def parse_reads(session: SparkSession, statement: str) -> None:
    """Check a statement before anything of it is run; the session forgets how to read files.

    Args:
        session: a classic one; a Connect client cannot look into a plan.
        statement: SQL, not checked yet.

    Raises:
        OptionError: it does more than read the views.
        ParseException: it is no SQL.
    """
    session.conf.set("spark.sql.runSQLOnFiles", "false")
    parser = session._jsparkSession.sessionState().sqlParser()
    for node in _nodes(parser.parsePlan(statement)):
        name = _class_name(node)
        if name not in NODES:
            raise OptionError(f"only queries over the topics are allowed, no {name}")
        if name == "UnresolvedTableValuedFunction":
            _check_function(node.name(), TABLE_FUNCTIONS)
        for expression in _expressions(node):
            if _class_name(expression) == "UnresolvedFunction":
                _check_function(expression.nameParts(), None)


def check_analysed(frame: DataFrame) -> None:
    """Check what a statement became, before its rows are asked for.

    Raises:
        OptionError: a part of it reaches outside.
    """
    for node in _nodes(frame._jdf.queryExecution().analyzed()):
        for expression in _expressions(node):
            if _class_name(expression) in FORBIDDEN_EXPRESSIONS:
                raise OptionError(f"function {expression.prettyName()} is not allowed here")


def _check_function(parts: Any, allowed: frozenset[str] | None) -> None:
    name = str(parts.apply(parts.size() - 1)).lower()
    if name in FORBIDDEN_FUNCTIONS or (allowed is not None and name not in allowed):
        raise OptionError(f"function {name} is not allowed here")


def _class_name(value: Any) -> str:
    return str(value.getClass().getSimpleName()).rstrip("$")


def _each(sequence: Any) -> Iterator[Any]:
    for number in range(sequence.size()):
        yield sequence.apply(number)


def _nodes(plan: Any) -> Iterator[Any]:
    """A plan, what is below it, in its WITH and in its subqueries."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += _each(node.children())
        waiting += _each(node.innerChildren())
        waiting += _each(node.subqueries())


def _expressions(node: Any) -> Iterator[Any]:
    waiting = list(_each(node.expressions()))
    while waiting:
        expression = waiting.pop()
        yield expression
        waiting += _each(expression.children())
