"""From entry names to paths under a folder. Names are hostile: what cannot be trusted is refused."""

from __future__ import annotations

import os
import re
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Most names: nothing that any rule below could mind.
_PLAIN: Final = re.compile(
    r"[A-Za-z0-9_-][A-Za-z0-9_. -]{0,200}(?:/[A-Za-z0-9_-][A-Za-z0-9_. -]{0,200})*"
)
_LONGEST_PART: Final = 255


@dataclass(frozen=True, slots=True)
class Refused:
    """A name that must not become a path, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class ExtractionPlan:
    """Where each entry would go, before anything is written."""

    targets: dict[str, str] = field(default_factory=dict)
    """Path by name."""
    refused: list[Refused] = field(default_factory=list)
    """Names without a path, in the order they were given."""


def plan_extraction(names: Iterable[str], folder: str) -> ExtractionPlan:
    """Gives every name that is safe a path under the folder (S-NAM-8). Writes nothing."""
    plan = ExtractionPlan()
    root = os.path.realpath(folder)
    real_folders: dict[str, str] = {}
    reasons: dict[str, str | None] = {name: unsafe_form(name) for name in names}
    well_formed = [name for name, reason in reasons.items() if reason is None]
    folders_needed = {parent for name in well_formed for parent in _parents(_folded(name))}
    claimed: dict[str, str] = {}
    for name in well_formed:
        if _folded(name) in folders_needed:
            reasons[name] = "another name needs a folder of this name"
            continue
        path = os.path.join(folder, *name.split("/"))
        real = _real_path(path, real_folders)
        if os.path.commonpath((root, real)) != root:
            reasons[name] = f"a symbolic link leads outside, to {real}"
            continue
        # Some file systems ignore case or normalise names, and a link may lead to another target.
        other = claimed.setdefault(_folded(real), name)
        if other != name:
            for one, rival in ((name, other), (other, name)):
                # Two names that look alike differ in their escapes.
                reasons[one] = f"{rival!a} is the same file where case or form is ignored"
        plan.targets[name] = path
    for name, reason in reasons.items():
        if reason is not None:
            plan.targets.pop(name, None)
            plan.refused.append(Refused(name, reason))
    return plan


def unsafe_form(name: str) -> str | None:
    """Why a name cannot be a relative path at all, None if it can."""
    if _PLAIN.fullmatch(name):
        return None
    parts = name.split("/")
    checks = (
        ("\0" in name, "it holds a NUL"),
        ("\\" in name, "it holds a backslash"),
        (_has_control(name), "it holds control characters"),
        (name.startswith("/"), "it is an absolute path"),
        (_DRIVE.match(name) is not None, "it starts with a drive letter"),
        (".." in parts, "it holds '..'"),
        ("." in parts, "it holds '.'"),
        ("" in parts, "a part of it is empty"),
        (
            any(len(part.encode()) > _LONGEST_PART for part in parts),
            f"a part of it is longer than {_LONGEST_PART} bytes",
        ),
    )
    return next((reason for wrong, reason in checks if wrong), None)


def _has_control(name: str) -> bool:
    return not name.isprintable() and any(unicodedata.category(c) == "Cc" for c in name)


def _folded(name: str) -> str:
    """The same for names that some file system takes for one."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _parents(name: str) -> Iterator[str]:
    at = name.find("/")
    while at >= 0:
        yield name[:at]
        at = name.find("/", at + 1)


def _real_path(path: str, real_folders: dict[str, str]) -> str:
    """The path with all links resolved; folders are looked at once."""
    parent, last = os.path.split(path)
    if parent not in real_folders:
        real_folders[parent] = os.path.realpath(parent)
    real = os.path.join(real_folders[parent], last)
    return os.path.realpath(real) if os.path.islink(real) else real
