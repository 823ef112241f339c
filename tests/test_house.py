"""What holds throughout the package: one way for loggers, constants, headings and the clock; sizes.

Read from the source of every module; a line that breaks a rule is named.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "oberth"
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
_LOGGER = "_LOG: Final = logging.getLogger(__name__)"
_TYPE_MAKERS = ("NewType", "TypeVar", "ParamSpec")


LINES_MAX = 900
"""Of a module: a longer one has a joint at which it can be cut."""


@cache
def modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(SOURCE.rglob("*.py"))]


@cache
def lines() -> list[tuple[str, str]]:
    return [
        (f"{path.relative_to(SOURCE)}:{number}", line)
        for path in sorted(SOURCE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


def test_no_module_is_too_long() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert len(sizes) > 500
    long = sorted(str(path.relative_to(SOURCE)) for path in sizes if sizes[path] > LINES_MAX)
    assert not long, f"more than {LINES_MAX} lines: {long}"


def test_a_modules_logger_has_its_name() -> None:
    wrong = [
        place for place, line in lines()
        if re.match(r"\w+.*= logging\.getLogger\(", line) and line != _LOGGER
    ]  # fmt: skip
    assert not wrong, f"write {_LOGGER}: {wrong}"


def _said(node: ast.AST) -> str | None:
    """The words of a call that logs at warning or above."""
    if (
        not isinstance(node, ast.Call)
        or not isinstance(node.func, ast.Attribute)
        or node.func.attr not in ("warning", "error", "critical", "exception")
        or ast.unparse(node.func.value) != "_LOG"
    ):
        return None
    text = node.args[0]
    return text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else None


def test_a_line_of_the_log_says_what_happened() -> None:
    """Two words at least beside what it is filled with: "%s: %s" is a riddle."""
    found, wrong = 0, []
    for path, module in modules():
        for node in ast.walk(module):
            text = _said(node)
            if text is None:
                continue
            found += 1
            words = re.findall(r"[A-Za-z']{2,}", re.sub(r"%[-.0-9]*[a-zA-Z%]", " ", text))
            if len(words) < 2:
                wrong.append(f"{path.relative_to(SOURCE)}: {text}")
    assert found > 150
    assert not wrong, f"say who does what: {wrong}"


def test_constants_are_final() -> None:
    wrong = []
    for path, module in modules():
        changed = {
            name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names
        }
        for node in module.body:
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            name = node.targets[0].id
            makes_type = isinstance(node.value, ast.Call) and (
                isinstance(node.value.func, ast.Name) and node.value.func.id in _TYPE_MAKERS
            )
            if _CONSTANT.fullmatch(name) and name not in changed and not makes_type:
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno} {name}")
    assert not wrong, f"a constant is Final: {wrong}"


def test_constants_are_documented_below() -> None:
    wrong = [place for place, line in lines() if re.match(r"\s*#:", line)]
    assert not wrong, f"a constant's documentation is the text below it: {wrong}"


def test_headings_are_plain_lines() -> None:
    wrong = [place for place, line in lines() if re.search(r"# ?[-=#]{5}|[-=#]{5}$", line)]
    assert not wrong, f"a heading is a comment between two empty lines: {wrong}"


def test_the_wall_clock_is_read_in_one_place() -> None:
    wrong = [
        place for place, line in lines()
        if re.search(r"\btime\.time(_ns)?\(", line) and not place.startswith("wall_clock.py")
    ]  # fmt: skip
    assert not wrong, f"call wall_clock.now_ms, or take a clock: {wrong}"


_PEERS_NUMBER = re.compile(
    r"\.is(digit|decimal|numeric)\(|\bint\((\w+\.)*(fields|ext_fields|properties|attributes)\b"
)
_NOT_OF_A_PEER = (
    "broker/acl/address_pattern.py",  # addresses
    "broker/acl/plain_acl_edit.py",  # a file of the operator's
    "broker/controlled_broker.py",  # a file of the broker's own
    "broker/ha_service.py",  # lines of the HA connection
)


def test_numbers_of_peers_are_read_in_one_way() -> None:
    """`int` takes more than Java does, and raises an error of its own at 4 301 digits."""
    wrong = [
        place for place, line in lines()
        if _PEERS_NUMBER.search(line)
        and place.startswith(("broker/", "namesrv/", "remoting/headers/", "store/put_hooks.py"))
        and not place.startswith(_NOT_OF_A_PEER)
        and not re.search(r'int\(fields\["[efgh]"\]\)', line)  # the fast way of a send, see there
    ]  # fmt: skip
    assert not wrong, f"call java_numbers.java_long: {wrong}"


def test_refusals_are_one_class() -> None:
    wrong = [
        place for place, line in lines()
        if re.match(r"class \w*Refusal\(", line) and not place.startswith("remoting/refusal.py")
    ]  # fmt: skip
    assert not wrong, f"raise remoting.refusal.Refusal: {wrong}"
