"""No files of the package import each other in a circle.

Imports of every kind count: those for the type checker alone and those inside functions, too. What
stands in a circle can be read, made and tested only together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"


def modules(root: Path) -> dict[str, Path]:
    """Every module below a directory by its full name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.Module, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a file imports anywhere; the relative kind is forbidden by ruff."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            # What is no Python file and no name of the package is its extension module, in C.
            names = [
                name if name in known else str(node.module)
                for name in inner
                if name in known or has_name(known.get(str(node.module)), name.split(".")[-1])
            ]
        else:
            continue
        yield from (name for name in names if name in known)


def has_name(path: Path | None, name: str) -> bool:
    """Whether a file is no package's face, or one that speaks of a name."""
    return path is not None and (path.name != "__init__.py" or name in path.read_text("utf-8"))


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """The strongly connected parts of more than one node: each reaches each other one."""

    def reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for each in arrows[ahead.pop()] - seen:
                seen.add(each)
                ahead.append(each)
        return seen

    back: dict[str, set[str]] = {node: set() for node in graph}
    for node, targets in graph.items():
        for target in targets:
            back[target].add(node)
    found = []
    left = set(graph)
    while left:
        node = min(left)
        part = (reached(node, graph) & reached(node, back)) | {node}
        left -= part
        if len(part) > 1:
            found.append(frozenset(part))
    return found


def graph_of(root: Path) -> dict[str, set[str]]:
    known = modules(root)
    return {
        name: set(imports(ast.parse(path.read_bytes()), known)) - {name}
        for name, path in known.items()
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    found = {
        frozenset(name.removeprefix("oberth.") for name in circle)
        for circle in circles(graph_of(SOURCE))
    }
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        "import oberth.b",
        "from oberth import b",
        "from oberth.b import Thing",
        "def later():\n    from oberth.b import Thing",
        "if TYPE_CHECKING:\n    from oberth.b import Thing",
    ],
)
def test_a_circle_is_found_however_it_is_made(tmp_path: Path, line: str) -> None:
    package = tmp_path / "oberth"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text(line)
    (package / "b.py").write_text("from oberth import c")
    (package / "c.py").write_text("from oberth.a import thing\nimport os")
    (package / "d.py").write_text("from oberth.a import thing")
    assert circles(graph_of(tmp_path)) == [frozenset({"oberth.a", "oberth.b", "oberth.c"})]
