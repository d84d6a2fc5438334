"""Who may import whom, what an import may do, and that the packages say of themselves what is true."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import shard_format
import wshard
from shard_format.errors import MissingExtra
from tests.architecture.source import imports_of, tree_of

if TYPE_CHECKING:
    from types import ModuleType

REPOSITORY = Path(__file__).parents[2]
SOURCE = REPOSITORY / "src"
PACKAGES = ("shard_cli", "shard_format", "shard_train", "shardpack", "wshard")
CORE_MODULES = sorted(SOURCE.joinpath("shard_format").rglob("*.py"))
EPISODE_MODULES = sorted(SOURCE.joinpath("wshard").rglob("*.py"))
ALL_MODULES = sorted(path for package in PACKAGES for path in (SOURCE / package).rglob("*.py"))

# Packages of this repository that each package may not know.
FORBIDDEN = {
    "shard_format": {"wshard", "shardpack", "shard_train", "shard_cli"},
    "wshard": {"shardpack", "shard_train", "shard_cli"},
    "shardpack": {"wshard", "shard_train", "shard_cli"},
    "shard_train": {"shard_cli"},
}
# Rooms of `wshard` that are built on episodes: nothing below may know them, not even inside a function.
ON_TOP = {
    *("convert", "deepdata_bridge", "doctor", "plot", "replay", "search", "viewer"),
    "gym",
}
# What users of `wshard` type; all other modules start with an underscore.
EPISODE_DOORS = ON_TOP | {
    *(
        "alignment",
        "catalogue",
        "chunked",
        "editing",
        "identity",
        "latent",
        "multimodal",
        "overviews",
        "partial",
        "residual",
        "streaming",
    ),
    *("types", "video", "windows"),
}
# Those of them whose classes are built on those of an optional package.
BUILT_ON_EXTRA = {"gym"}
CORE_DEPENDENCIES = {"numpy", "zstandard", "cramjam", "fastcrc", "xxhash"}
# Where `zstandard` has no wheel; `compression` is in the standard library of Python 3.14.
WITHOUT_ZSTANDARD = {"backports", "compression"}
CORE_DEPENDENCIES |= WITHOUT_ZSTANDARD
# Optional or foreign packages that importing the core must not load.
NOT_LOADED = {
    "asyncio",
    "cryptography",
    "datasets",
    "grain",
    "gymnasium",
    "h5py",
    "hypothesis",
    "jax",
    "matplotlib",
    "ml_dtypes",
    "obstore",
    "pandas",
    "pyarrow",
    "pytest",
    "rich",
    "tensordict",
    "torch",
    "torchrl",
    "urllib3",
}


@cache
def imported_names(path: Path, *, at_run_time: bool = False, on_import: bool = False) -> set[str]:
    """What a file imports, anywhere in it, with dots: modules, and names that may be modules.

    With `at_run_time`, imports under `if TYPE_CHECKING` are left out, and with `on_import` also those
    inside functions.
    """
    names: set[str] = set()
    for node, is_for_types, is_in_function in imports_of(path):
        if (is_for_types and (at_run_time or on_import)) or (is_in_function and on_import):
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        else:
            module = node.module or "" if node.level == 0 else path.parent.name
            names.add(module)
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def imported(path: Path, *, at_run_time: bool = False, on_import: bool = False) -> set[str]:
    """The top-level packages that a file imports; the options are those of `imported_names`."""
    names = imported_names(path, at_run_time=at_run_time, on_import=on_import)
    return {name.partition(".")[0] for name in names}


def dotted(path: Path) -> str:
    """The name under which a file is imported."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(path: Path) -> str:
    """The part of its package that a file belongs to: a module or a folder."""
    return dotted(path).split(".")[1] if "." in dotted(path) else ""


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
        assert {"functools", "shard_format", "os"} <= imported(writer)
        assert "collections" in imported(writer)
        assert "collections" not in imported(writer, at_run_time=True)
        sources = SOURCE / "shard_format" / "opening.py"
        assert "shard_format.remote.open_url" in imported_names(sources, at_run_time=True)
        assert "shard_format.remote" not in imported_names(sources, on_import=True)

    @pytest.mark.parametrize("package", PACKAGES)
    def test_no_import_goes_in_a_circle(self, package: str) -> None:
        """So every module can be imported first."""
        files = {dotted(path): path for path in SOURCE.joinpath(package).rglob("*.py")}
        waiting = {
            name: {
                other
                for other in imported_names(path, on_import=True) & files.keys()
                # The package itself is being imported before any of its modules.
                if other not in (name, package)
            }
            for name, path in files.items()
        }
        while free := [name for name, needs in waiting.items() if not needs & waiting.keys()]:
            for name in free:
                del waiting[name]
        assert waiting == {}

    def test_episodes_do_not_know_what_is_built_on_them(self) -> None:
        on_top = {f"wshard.{name}" for name in ON_TOP}
        assert {"wshard.doctor", "wshard.search"} <= {dotted(path) for path in EPISODE_MODULES}
        arrows = {
            dotted(path): sorted(imported_names(path) & on_top)
            for path in EPISODE_MODULES
            if room(path) not in ON_TOP and imported_names(path) & on_top
        }
        assert arrows == {}

    def test_the_public_modules_of_episodes_are_few(self) -> None:
        folder = SOURCE / "wshard"
        modules = {info.name for info in pkgutil.iter_modules([str(folder)])}
        assert {name for name in modules if not name.startswith("_")} == EPISODE_DOORS

    def test_importing_any_module_of_episodes_needs_only_the_core(self) -> None:
        """matplotlib, ml_dtypes and the like are imported inside functions."""
        own = {"shard_format", "wshard"}
        allowed = CORE_DEPENDENCIES | own | set(sys.stdlib_module_names)
        foreign = {
            dotted(path): sorted(imported(path, on_import=True) - allowed)
            for path in EPISODE_MODULES
            if imported(path, on_import=True) - allowed
        }
        assert foreign == {}

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
            assert files == ["layout.py"]


IMPORTABLE = sorted({room(path) for path in EPISODE_MODULES} & ON_TOP - BUILT_ON_EXTRA)


def in_fresh_process(script: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
class TestImporting:
    """`import shard_format` and `import wshard` are light and quiet."""

    @pytest.mark.parametrize("package", PACKAGES)
    def test_importing_loads_no_optional_package(self, package: str) -> None:
        script = f"import json, sys, {package}; print(json.dumps(sorted(sys.modules)))"
        loaded = {name.partition(".")[0] for name in json.loads(in_fresh_process(script))}
        assert loaded & NOT_LOADED == set()
        assert package in loaded

    def test_importing_episodes_loads_nothing_that_is_built_on_them(self) -> None:
        script = "import json, sys, wshard; print(json.dumps(sorted(sys.modules)))"
        loaded = set(json.loads(in_fresh_process(script)))
        assert loaded & {f"wshard.{name}" for name in ON_TOP} == set()
        assert {"http.client", "ssl", "shard_format.remote"} & loaded == set()

    @pytest.mark.parametrize("name", IMPORTABLE)
    def test_what_is_built_on_episodes_loads_no_optional_package(self, name: str) -> None:
        script = f"import json, sys, wshard.{name}; print(json.dumps(sorted(sys.modules)))"
        loaded = {found.partition(".")[0] for found in json.loads(in_fresh_process(script))}
        assert loaded & NOT_LOADED == set()

    @pytest.mark.parametrize(
        "module", [path.stem for path in CORE_MODULES if not path.stem.startswith("_")]
    )
    def test_every_public_module_can_be_imported_first(self, module: str) -> None:
        in_fresh_process(f"import shard_format.{module}")

    @pytest.mark.parametrize(
        "imports",
        [
            "import shard_format; from shard_format import identity, manifest, signing, verify",
            f"import wshard; from wshard import {', '.join(IMPORTABLE)}",
        ],
        ids=["shard_format", "wshard"],
    )
    def test_importing_changes_nothing_around_it(self, imports: str) -> None:
        script = (
            f"IMPORTS = {imports!r}\n"
            + """
import numpy, os, signal, sys, threading, warnings, logging, locale

def around():
    return {
        "threads": threading.active_count(),
        "files": sorted(os.listdir("/proc/self/fd")),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "filters": list(warnings.filters),
        "handlers": list(logging.root.handlers),
        # A logger that is left as it was made changes nothing.
        "loggers": [
            name
            for name, logger in logging.root.manager.loggerDict.items()
            if "shard" in name and (logger.handlers or logger.level or not logger.propagate)
        ],
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
exec(IMPORTS)
after = around()
assert before == after, {k: (before[k], after[k]) for k in before if before[k] != after[k]}
print("same")
"""
        )
        assert in_fresh_process(script) == "same\n"


def in_order(name: str) -> tuple[bool, bool, str]:
    """Constants, then classes, then functions, as ruff sorts them."""
    return not name.isupper(), not name[0].isupper(), name


PUBLIC = [
    pytest.param(package, name, id=f"{package.__name__}.{name}")
    for package in (shard_format, wshard)
    for name in package.__all__
    if not name.isupper() and name != "__version__"
]


class TestPublicNames:
    """`__all__` is a table of contents."""

    @pytest.mark.parametrize("package", [shard_format, wshard])
    def test_it_is_sorted_and_without_repeats(self, package: ModuleType) -> None:
        assert list(package.__all__) == sorted(set(package.__all__), key=in_order)

    @pytest.mark.parametrize("package", [shard_format, wshard])
    def test_it_is_what_can_be_imported(self, package: ModuleType) -> None:
        submodules = {module.name for module in pkgutil.iter_modules(package.__path__)}
        public = {
            name
            for name in (*vars(package), *vars(package).get("_LAZY", ()))
            if name not in submodules and (not name.startswith("_") or name == "__version__")
        }
        assert public == set(package.__all__)

    @pytest.mark.parametrize(("package", "most"), [(shard_format, 20), (wshard, 21)])
    def test_it_is_short(self, package: ModuleType, most: int) -> None:
        assert len(package.__all__) <= most

    @pytest.mark.parametrize(("package", "name"), PUBLIC)
    def test_every_name_is_documented(self, package: ModuleType, name: str) -> None:
        value = getattr(package, name)
        assert inspect.getdoc(value)
        for member_name, member in vars(value).items() if inspect.isclass(value) else ():
            if not member_name.startswith("_") and inspect.isfunction(member):
                assert inspect.getdoc(member), f"{name}.{member_name}"

    def test_every_module_says_what_it_is_for(self) -> None:
        first_lines = {
            dotted(path): (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
            for path in ALL_MODULES
            if path.stem != "_version"
        }
        assert [module for module, line in first_lines.items() if len(line) <= 20] == []

    @pytest.mark.parametrize(
        "module",
        [
            dotted(path)
            for path in [*CORE_MODULES, *EPISODE_MODULES]
            if not path.stem.startswith("_") and "__all__" in path.read_text("utf-8")
        ],
    )
    def test_every_public_module_lists_its_names(self, module: str) -> None:
        try:
            loaded = importlib.import_module(module)
        except MissingExtra as error:
            pytest.skip(str(error))
        assert sorted(set(loaded.__all__)) == sorted(loaded.__all__)
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
        assert packages == CORE_DEPENDENCIES - WITHOUT_ZSTANDARD

    def test_every_dependency_has_a_lower_bound(self) -> None:
        assert all(">=" in line for line in self.list_of("dependencies"))

    def test_every_dependency_is_used(self) -> None:
        used = set().union(*(imported(path, at_run_time=True) for path in CORE_MODULES))
        assert used >= CORE_DEPENDENCIES

    def test_the_extras_that_errors_name_exist(self) -> None:
        named = set()
        for path in ALL_MODULES:
            text = path.read_text("utf-8")
            named |= set(re.findall(r'require\([^)]*, "(\w+)"\)', text))
            named |= set(re.findall(r"shard-format\[(\w+)\]", text))
        project = (REPOSITORY / "pyproject.toml").read_text("utf-8")
        section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
        extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
        assert named == extras - {"bench", "bridges", "convert", "converters", "dev", "fuzz"}

    @pytest.mark.parametrize(
        ("extra", "package"),
        [
            ("bf16", "ml_dtypes"),
            ("plot", "matplotlib"),
            ("remote", "obstore"),
            ("sign", "cryptography"),
        ],
    )
    def test_every_extra_holds_its_package_with_a_lower_bound(
        self, extra: str, package: str
    ) -> None:
        assert any(line.startswith(f"{package}>=") for line in self.list_of(extra))
        assert f"[{extra}" in str(self.list_of("dev")) or f",{extra}" in str(self.list_of("dev"))

    def test_the_version_is_one(self) -> None:
        text = (SOURCE / "shard_format" / "_version.py").read_text("utf-8")
        assert f'"{shard_format.__version__}"' in text
        assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", shard_format.__version__)
        project = (REPOSITORY / "pyproject.toml").read_text("utf-8")
        assert 'dynamic = ["version"]' in project
        assert 'path = "src/shard_format/_version.py"' in project

    @pytest.mark.parametrize("package", PACKAGES)
    def test_the_package_is_marked_as_typed(self, package: str) -> None:
        assert (SOURCE / package / "py.typed").exists()
