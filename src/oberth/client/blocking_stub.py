"""Writes ``blocking.pyi``: the types of the blocking classes, from the source of the others.

``async def`` loses its ``async``, ``AsyncIterator`` becomes ``Iterator``, ``asyncio.Future``
becomes ``concurrent.futures.Future``; arguments stay as they are. A test compares the file with
what this module would write, so the two cannot drift apart.

    python -m oberth.client.blocking_stub
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oberth.client.blocking_face import INNER_METHODS, RENAMED

CLIENT_CLASSES: Final = (
    ("oberth.client.admin", "Admin"),
    ("oberth.client.pop_consumer", "PopConsumer"),
    ("oberth.client.producer", "Producer"),
    ("oberth.client.pull_consumer", "PullConsumer"),
    ("oberth.client.push_consumer", "PushConsumer"),
    ("oberth.client.transactions", "TransactionProducer"),
)
STUB_PATH: Final = Path(__file__).with_suffix("").with_name("blocking.pyi")

_TYPES: Final = {"AsyncIterator": "Iterator", "AsyncGenerator": "Generator"}


class _ToBlocking(ast.NodeTransformer):
    """Annotations of asynchronous things become those of blocking ones."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = _TYPES.get(node.id, node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node) == "asyncio.Future":
            return ast.Name("Future", ast.Load())
        return self.generic_visit(node)


class _Module:
    """One source file: its classes, and where each name in it comes from."""

    def __init__(self, name: str) -> None:
        self.name = name
        source = inspect.getsource(importlib.import_module(name))
        tree = ast.parse(source)
        self.classes: dict[str, ast.ClassDef] = {}
        self.homes: dict[str, tuple[str, str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    self.homes[alias.asname or alias.name] = (node.module, alias.name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
                self.homes[node.name] = (name, node.name)


def _is_public(name: str) -> bool:
    return name in RENAMED or (not name.startswith("_") and name not in INNER_METHODS)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = node.args
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [
        None if default is None else ast.Constant(...) for default in arguments.kw_defaults
    ]
    blocking = _ToBlocking()
    returns = ast.unparse(blocking.visit(node.returns)) if node.returns else "None"
    name = RENAMED.get(node.name, node.name)
    decorators = [
        f"@{each.id}\n"
        for each in node.decorator_list
        if isinstance(each, ast.Name) and each.id in ("property", "staticmethod", "classmethod")
    ]
    return f"{''.join(decorators)}def {name}({ast.unparse(arguments)}) -> {returns}: ..."


def _attributes(init: ast.FunctionDef) -> list[str]:
    """Public attributes: those with an annotation, and arguments under the same name."""
    arguments = [*init.args.args, *init.args.kwonlyargs]
    annotations = {each.arg: each.annotation for each in arguments}
    made = {
        target.attr: ast.unparse(annotation)
        for node in ast.walk(init)
        if isinstance(node, ast.Assign)
        and isinstance(target := node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == target.attr
        and (annotation := annotations.get(target.attr)) is not None
    }
    made |= {
        node.target.attr: ast.unparse(node.annotation)
        for node in ast.walk(init)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Attribute)
        and not node.target.attr.startswith("_")
    }
    return [f"{name}: {annotation}" for name, annotation in sorted(made.items())]


def _class_text(module: _Module, class_name: str, homes: dict[str, tuple[str, str]]) -> str:
    loaded = getattr(importlib.import_module(module.name), class_name)
    members: dict[str, str] = {}
    attributes: list[str] = []
    for base in reversed(loaded.__mro__[:-1]):
        if not base.__module__.startswith("oberth.") or base.__module__ == "oberth.client.instance":
            continue
        source = _Module(base.__module__)
        homes.update(source.homes)
        for node in source.classes[base.__name__].body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name == "__init__":
                assert isinstance(node, ast.FunctionDef)
                attributes += _attributes(node)
            if node.name == "__init__" or _is_public(node.name):
                members[node.name] = _signature(node)
    if "__aiter__" in members:
        members["__aiter__"] = members["__aiter__"].replace("AsyncIterator", "Iterator")
    lines = [*dict.fromkeys(attributes), *members.values()]
    body = "\n".join(f"    {line}" for text in lines for line in text.splitlines())
    return f"class {class_name}:\n{body}\n"


def stub_text(classes: Iterable[tuple[str, str]], title: str) -> str:
    """The stub of some classes."""
    homes: dict[str, tuple[str, str]] = {}
    texts = [_class_text(_Module(module), name, homes) for module, name in classes]
    homes |= {
        "Future": ("concurrent.futures", "Future"),
        "Iterator": ("collections.abc", "Iterator"),
    }
    own = {name for _, name in classes}
    used = {
        node.id
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name)
    }
    imports: dict[str, set[str]] = {}
    for name in sorted(used & homes.keys() - own):
        module, original = homes[name]
        imports.setdefault(module, set()).add(
            original if original == name else f"{original} as {name}"
        )
    head = [f"from {module} import {', '.join(sorted(found))}" for module, found in imports.items()]
    return "\n".join([f"# {title}", "# ruff: noqa", "# fmt: off", *sorted(head), "", *texts])


def client_stub_text() -> str:
    """What ``blocking.pyi`` has to hold."""
    return stub_text(
        CLIENT_CLASSES, "Written by `python -m oberth.client.blocking_stub`; do not edit."
    )


if __name__ == "__main__":
    STUB_PATH.write_text(client_stub_text())
