"""The source files of this repository, parsed once for all tests of a process."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a file; do not change it."""
    return ast.parse(path.read_text("utf-8"), path)


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of that tree."""
    return tuple(ast.walk(tree_of(path)))


class Imported(NamedTuple):
    """One import statement."""

    statement: ast.Import | ast.ImportFrom
    is_for_types: bool
    """Whether it is below `if TYPE_CHECKING`."""
    is_in_function: bool


@cache
def imports_of(path: Path) -> tuple[Imported, ...]:
    """The imports of a file, anywhere in it. Looks at statements only, which are few among the nodes of a tree."""
    found: list[Imported] = []
    waiting: list[tuple[ast.AST, bool, bool]] = [(tree_of(path), False, False)]
    while waiting:
        node, is_for_types, is_in_function = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(Imported(node, is_for_types, is_in_function))
        is_in_function |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        is_check = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):  # not the body of a lambda
                below = is_for_types or (is_check and part == "body")
                waiting.extend((child, below, is_in_function) for child in inner)
    return tuple(found)
