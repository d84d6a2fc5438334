"""Who may import whom, what an import may do, and that the package says of itself what is true."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shard_format

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src"
CORE_MODULES = sorted(SOURCE.joinpath("shard_format").rglob("*.py"))

# Packages of this repository that each package may not know.
FORBIDDEN = {
    "shard_format": {"wshard", "shardpack", "shard_cli"},
    "wshard": {"shard_cli"},
    "shardpack": {"shard_cli", "wshard"},
}
CORE_DEPENDENCIES = {"numpy", "zstandard", "cramjam", "fastcrc", "xxhash"}
# Optional or foreign packages that importing the core must not load.
NOT_LOADED = {"cryptography", "h5py", "torch", "rich", "pandas", "hypothesis", "pytest", "asyncio"}


def imported(path: Path, *, at_run_time: bool = False) -> set[str]:
    """The top-level packages that a file imports, anywhere in it.

    With `at_run_time`, imports under `if TYPE_CHECKING` are left out.
    """
    tree = ast.parse(path.read_text("utf-8"), path)
    skipped: set[ast.AST] = set()
    if at_run_time:
        for node in ast.walk(tree):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                skipped.update(child for part in node.body for child in ast.walk(part))
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "" if node.level == 0 else path.parent.name)
    return {name.partition(".")[0] for name in names}


class TestDirections:
    """Imports point one way."""

    @pytest.mark.parametrize("package", FORBIDDEN)
    def test_no_package_imports_one_above_it(self, package: str) -> None:
        arrows = {
            str(path.relative_to(SOURCE)): sorted(imported(path) & FORBIDDEN[package])
            for path in sorted(SOURCE.joinpath(package).rglob("*.py"))
            if imported(path) & FORBIDDEN[package]
        }
        assert arrows == {}

    def test_the_walk_sees_imports(self) -> None:
        """So that the test above cannot pass by seeing nothing."""
        writer = SOURCE / "shard_format" / "writer.py"
        assert {"numpy", "shard_format", "os"} <= imported(writer)
        assert "collections" in imported(writer)
        assert "collections" not in imported(writer, at_run_time=True)

    def test_the_core_imports_only_its_dependencies(self) -> None:
        allowed = CORE_DEPENDENCIES | {"shard_format"} | set(sys.stdlib_module_names)
        foreign = {
            path.name: sorted(imported(path, at_run_time=True) - allowed)
            for path in CORE_MODULES
            if imported(path, at_run_time=True) - allowed
        }
        assert foreign == {}

    def test_only_the_layout_module_knows_the_layout(self) -> None:
        """Header and index formats are spelled once."""
        for spelled in ("<4sBBHBBHIQQQQ16s", "<QIHHQQQIHH"):
            files = [path.name for path in CORE_MODULES if spelled in path.read_text("utf-8")]
            assert files == ["_layout.py"]


def in_fresh_process(script: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


class TestImporting:
    """`import shard_format` is light and quiet."""

    def test_importing_loads_no_optional_package(self) -> None:
        script = "import json, sys, shard_format; print(json.dumps(sorted(sys.modules)))"
        loaded = {name.partition(".")[0] for name in json.loads(in_fresh_process(script))}
        assert loaded & NOT_LOADED == set()
        assert "shard_format" in loaded

    @pytest.mark.parametrize(
        "module", [path.stem for path in CORE_MODULES if not path.stem.startswith("_")]
    )
    def test_every_public_module_can_be_imported_first(self, module: str) -> None:
        in_fresh_process(f"import shard_format.{module}")

    def test_importing_changes_nothing_around_it(self) -> None:
        script = """
import numpy, os, signal, sys, threading, warnings, logging, locale

def around():
    return {
        "threads": threading.active_count(),
        "files": sorted(os.listdir("/proc/self/fd")),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "filters": list(warnings.filters),
        "handlers": list(logging.root.handlers),
        "loggers": [name for name in logging.root.manager.loggerDict if "shard" in name],
        "signals": {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)},
        "hook": sys.excepthook,
        "umask": os.umask(0o22),
        "digits": sys.get_int_max_str_digits(),
        "recursion": sys.getrecursionlimit(),
        "errors": numpy.geterr(),
        "locale": locale.setlocale(locale.LC_ALL),
    }

os.umask(0o22)
before = around()
import shard_format
from shard_format import identity, manifest, signing, verify
after = around()
assert before == after, {k: (before[k], after[k]) for k in before if before[k] != after[k]}
print("same")
"""
        assert in_fresh_process(script) == "same\n"


class TestPublicNames:
    """`shard_format.__all__` is a table of contents."""

    def test_it_is_sorted_and_without_repeats(self) -> None:
        assert list(shard_format.__all__) == sorted(set(shard_format.__all__))

    def test_it_is_what_can_be_imported(self) -> None:
        submodules = {module.name for module in pkgutil.iter_modules(shard_format.__path__)}
        public = {
            name
            for name in vars(shard_format)
            if name not in submodules and (not name.startswith("_") or name == "__version__")
        }
        assert public == set(shard_format.__all__)

    def test_it_is_short(self) -> None:
        assert len(shard_format.__all__) <= 20

    @pytest.mark.parametrize("name", [n for n in shard_format.__all__ if n != "__version__"])
    def test_every_name_is_documented(self, name: str) -> None:
        value = getattr(shard_format, name)
        assert inspect.getdoc(value)
        for member_name, member in vars(value).items() if inspect.isclass(value) else ():
            if not member_name.startswith("_") and inspect.isfunction(member):
                assert inspect.getdoc(member), f"{name}.{member_name}"

    @pytest.mark.parametrize("path", CORE_MODULES, ids=lambda path: path.stem)
    def test_every_module_says_what_it_is_for(self, path: Path) -> None:
        if path.stem == "_version":
            return
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        assert docstring
        assert len(docstring.splitlines()[0]) > 20

    @pytest.mark.parametrize(
        "module", [path.stem for path in CORE_MODULES if not path.stem.startswith("_")]
    )
    def test_every_public_module_lists_its_names(self, module: str) -> None:
        loaded = importlib.import_module(f"shard_format.{module}")
        assert sorted(set(loaded.__all__), key=str) == sorted(loaded.__all__)
        assert all(hasattr(loaded, name) for name in loaded.__all__)


class TestProject:
    """pyproject.toml."""

    def list_of(self, key: str) -> list[str]:
        """A list of strings in pyproject.toml; tomllib is not in Python 3.10."""
        text = (REPOSITORY / "pyproject.toml").read_text("utf-8")
        match = re.search(rf"^{key} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        assert match is not None
        return re.findall(r'"([^"]+)"', re.sub(r"#.*", "", match[1]))

    def test_the_core_needs_five_packages(self) -> None:
        packages = {re.split(r"[<>=!~\[; ]", line)[0] for line in self.list_of("dependencies")}
        assert packages == CORE_DEPENDENCIES

    def test_every_dependency_has_a_lower_bound(self) -> None:
        assert all(">=" in line for line in self.list_of("dependencies"))

    def test_every_dependency_is_used(self) -> None:
        used = set().union(*(imported(path, at_run_time=True) for path in CORE_MODULES))
        assert used >= CORE_DEPENDENCIES

    def test_the_extra_that_errors_name_exists(self) -> None:
        named = set()
        for path in CORE_MODULES:
            named |= set(re.findall(r'require\([^)]*, "(\w+)"\)', path.read_text("utf-8")))
        assert named == {"sign"}
        assert any(line.startswith("cryptography") for line in self.list_of("sign"))

    def test_the_version_is_one(self) -> None:
        text = (SOURCE / "shard_format" / "_version.py").read_text("utf-8")
        assert f'"{shard_format.__version__}"' in text
        assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", shard_format.__version__)
        project = (REPOSITORY / "pyproject.toml").read_text("utf-8")
        assert 'dynamic = ["version"]' in project
        assert 'path = "src/shard_format/_version.py"' in project

    def test_the_package_is_marked_as_typed(self) -> None:
        assert (SOURCE / "shard_format" / "py.typed").exists()
