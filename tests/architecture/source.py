"""The source files of this repository, parsed once for all tests of a process."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

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
