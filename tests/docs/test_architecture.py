"""The map of the source code: every module that it names exists, and it leaves out no package and no door."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGES = sorted(path.name for path in (ROOT / "src").iterdir() if (path / "__init__.py").exists())
# `wshard._reader`, but not `wshard.load_wshard()` or `shard_train.Plan`: modules are in lower case and are not called.
NAMED = sorted(set(re.findall(rf"`((?:{'|'.join(PACKAGES)})(?:\.[a-z0-9_]+)*)`", PAGE)))
WALKS = re.findall(r"^### \((.)\) .*?\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)


def exists(module: str) -> bool:
    path = ROOT.joinpath("src", *module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def test_every_module_on_the_page_exists() -> None:
    assert [module for module in NAMED if not exists(module)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_on_the_page(package: str) -> None:
    assert package in NAMED


def test_every_public_module_of_episodes_is_on_the_page() -> None:
    paths = (ROOT / "src" / "wshard").iterdir()
    public = {
        path.stem for path in paths if path.name[0] not in "_." and path.suffix in ("", ".py")
    }
    assert [name for name in sorted(public) if f"wshard.{name}" not in NAMED] == []


def test_every_module_of_the_container_that_other_packages_use_is_on_the_page() -> None:
    used: set[str] = set()
    for package in PACKAGES:
        if package != "shard_format":
            for path in (ROOT / "src" / package).rglob("*.py"):
                used.update(
                    re.findall(
                        r"^\s*from (shard_format\.\w+) import",
                        path.read_text("utf-8"),
                        re.MULTILINE,
                    )
                )
    assert len(used) > 20
    assert sorted(used.difference(NAMED)) == []


def test_there_are_five_walks_with_their_modules_in_order() -> None:
    assert [letter for letter, _ in WALKS] == list("abcde")
    for letter, text in WALKS:
        steps = re.findall(r"^(\d+)\. `[a-z_.0-9]+`", text, re.MULTILINE)
        assert steps == [str(n) for n in range(1, len(steps) + 1)], letter
        assert len(steps) >= 4, letter
