"""Who may import whom: every arrow of docs/architecture.md, imports inside functions included."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.source import imports_of, nodes_of

SOURCE = Path(__file__).parents[2] / "src"
FILES = sorted(SOURCE.rglob("*.py"))

# The packages below each package.
BELOW = {
    "shard_format": set[str](),
    "wshard": {"shard_format"},
    "shardpack": {"shard_format"},
    "shard_train": {"shard_format", "wshard", "shardpack"},
    "shard_cli": {"shard_format", "wshard", "shardpack", "shard_train"},
}
# The rooms of wshard that are built on its core, each a folder with one door.
ROOMS = ("convert", "doctor", "gym", "plot", "replay", "search", "viewer")
# Other names of a door, which existing code imports.
SECOND_DOORS = {"wshard.deepdata_bridge": "wshard.search"}


def dotted(path: Path) -> str:
    """The name under which a file is imported."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in FILES}


def package(module: str) -> str:
    return module.partition(".")[0]


@cache
def imports(path: Path, *, at_run_time: bool = False) -> set[str]:
    """The modules of this repository that a file imports, anywhere in it.

    With `at_run_time`, imports under `if TYPE_CHECKING` are left out.
    """
    found: set[str] = set()
    for node, is_for_types, _ in imports_of(path):
        if at_run_time and is_for_types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: imports are written with the package's name"
            module = node.module or ""
            for alias in node.names:
                full = f"{module}.{alias.name}"
                found.add(full if full in MODULES else module)
    return {name for name in found if package(name) in BELOW}


@cache
def all_imports() -> dict[str, set[str]]:
    """The imports of every module; not made when tests are collected, which every process does."""
    return {module: imports(path) for module, path in MODULES.items()}


def arrows(is_wrong: object) -> list[str]:
    assert callable(is_wrong)
    return sorted(
        f"{module} -> {target}"
        for module, targets in all_imports().items()
        for target in targets
        if is_wrong(module, target)
    )


def room_of(module: str) -> str:
    """The room of wshard that a module belongs to; "" for its core and for other packages."""
    module = SECOND_DOORS.get(module, module)
    parts = module.split(".")
    return parts[1] if parts[0] == "wshard" and len(parts) > 1 and parts[1] in ROOMS else ""


def test_the_walk_sees_imports() -> None:
    """So that the tests below cannot pass by seeing nothing."""
    assert "shard_format.errors" in all_imports()["wshard.chunked"]
    assert set(MODULES) >= {f"wshard.{room}" for room in ROOMS}
    inside_functions = imports(SOURCE / "shard_format" / "sources.py", at_run_time=True)
    assert "shard_format.remote" in inside_functions or "shard_format.errors" in inside_functions
    assert {package(module) for module in MODULES} == set(BELOW)


def test_packages_import_only_what_is_below_them() -> None:
    assert (
        arrows(lambda m, t: package(t) != package(m) and package(t) not in BELOW[package(m)]) == []
    )


@pytest.mark.parametrize(("one", "other"), [("wshard", "shardpack"), ("shardpack", "wshard")])
def test_formats_do_not_name_each_other_in_strings(one: str, other: str) -> None:
    """A module name in a string would be an import in disguise."""
    found = []
    for module, path in MODULES.items():
        if package(module) != one:
            continue
        for node in nodes_of(path):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(rf"{other}([.:][A-Za-z_]+)+", text):
                found.append(f"{module}:{text!r}")
    assert found == []


def test_no_package_imports_a_private_module_of_another() -> None:
    def is_wrong(module: str, target: str) -> bool:
        is_private = any(part.startswith("_") for part in target.split("."))
        return is_private and package(module) != package(target)

    assert arrows(is_wrong) == []


def test_the_core_of_wshard_imports_no_room() -> None:
    assert arrows(lambda m, t: package(m) == "wshard" and not room_of(m) and room_of(t)) == []


def test_the_core_of_wshard_names_a_room_only_to_show_an_episode_or_open_other_formats() -> None:
    """A module name in a string is an import in disguise."""
    found = []
    for module, path in MODULES.items():
        if package(module) != "wshard" or room_of(module):
            continue
        for node in nodes_of(path):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text in {f"wshard.{room}" for room in ROOMS}:
                found.append((module, text))
    assert sorted(found) == [
        ("wshard._episode", "wshard.plot"),
        ("wshard._episode", "wshard.viewer"),
        ("wshard._formats", "wshard.convert"),
    ]


def test_a_room_is_entered_through_its_door() -> None:
    def is_wrong(module: str, target: str) -> bool:
        room = room_of(target)
        return bool(room) and room_of(module) != room and target != f"wshard.{room}"

    assert arrows(is_wrong) == []


def test_everything_in_a_room_but_the_door_is_private() -> None:
    shown = [
        module
        for module in MODULES
        if room_of(module) and module.count(".") > 1 and not module.split(".")[2].startswith("_")
    ]
    assert shown == []


def rings(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in graph[module]:
            if target not in index:
                visit(target)
                low[module] = min(low[module], low[target])
            elif target in stack:
                low[module] = min(low[module], index[target])
        if low[module] == index[module]:
            ring: list[str] = []
            while not ring or ring[-1] != module:
                ring.append(stack.pop())
            if len(ring) > 1:
                found.append(sorted(ring))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def test_rings_are_found() -> None:
    assert rings({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_imports_form_a_ring() -> None:
    """Neither at the top of files nor inside functions: every module can be understood after those it uses."""
    graph = {
        module: {
            target
            for target in imports(path, at_run_time=True)
            if target in MODULES and target != module
        }
        for module, path in MODULES.items()
    }
    assert rings(graph) == []
