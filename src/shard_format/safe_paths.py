"""From entry names to paths under a folder. Names are hostile: what cannot be trusted is refused."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from shard_format.atomic import write_file
from shard_format.codecs import crc32c
from shard_format.errors import InvalidArgument, ShardIOError, UnsafePath
from shard_format.sources import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Most names: nothing that any rule below could mind.
_PLAIN: Final = re.compile(
    r"[A-Za-z0-9_-][A-Za-z0-9_. -]{0,200}(?:/[A-Za-z0-9_-][A-Za-z0-9_. -]{0,200})*"
)
_LONGEST_PART: Final = 255
_LONGEST_NAME: Final = 4096
_MOST_PARTS: Final = 256
_READ_BYTES: Final = 1 << 20
# Windows opens no folders. There a folder that is swapped for a link meanwhile does not show.
_HAS_FOLDER_DESCRIPTORS: Final = {os.open, os.mkdir, os.rename, os.unlink} <= os.supports_dir_fd
_FOLDER_FLAGS: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A name that must not become a path, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class ExtractionPlan:
    """Where each entry would go, before anything is written; and the writing."""

    root: str
    """The folder, with all links resolved."""
    targets: dict[str, str] = field(default_factory=dict)
    """Path by name."""
    refused: list[Refused] = field(default_factory=list)
    """Names without a path, in the order they were given."""
    resolved: dict[str, str] = field(default_factory=dict)
    """By name, the path below the root that has no links in it."""

    def holds(self, name: str, size: int, checksum: Callable[[], int]) -> bool:
        """Whether the file of a name is there already: a regular file of this size with this CRC-32C.

        Args:
            name: of an entry.
            size: of its content.
            checksum: returns the CRC-32C of its content; called if the size fits.
        """
        path = os.path.join(self.root, self.resolved[name])
        try:
            descriptor, status = open_regular(path, follow_links=False)
        except (ShardIOError, InvalidArgument):
            return False
        with os.fdopen(descriptor, "rb") as file:
            if status.st_size != size:
                return False
            found = 0
            while piece := file.read(_READ_BYTES):
                found = crc32c(piece, found)
        return found == checksum()

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Writes the file of a name, which appears when all pieces are in it; returns its size.

        No link is followed below the root, so a folder that another process swaps for a link leads nowhere.

        Raises:
            UnsafePath: a folder has changed since the plan was made.
        """
        path = self.targets[name]
        folder: int | None = None
        try:
            os.makedirs(self.root, exist_ok=True)
            if _HAS_FOLDER_DESCRIPTORS:
                folder = _open_folder(self.root, self.resolved[name].split(os.sep)[:-1])
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise UnsafePath(
                    "a folder became a link or a file after the paths were checked",
                    path=path,
                    entry=name,
                    rule="S-NAM-8",
                ) from None
            raise ShardIOError.wrap(error, "cannot write", path) from error
        try:
            real = os.path.join(self.root, self.resolved[name])
            return write_file(real, pieces, fsync=False, folder=folder)
        finally:
            if folder is not None:
                os.close(folder)


def _open_folder(root: str, parts: list[str]) -> int:
    """A descriptor of a folder below the root, which is created if it is missing. Follows no links."""
    descriptor = os.open(root, _FOLDER_FLAGS)
    for part in parts:
        above = descriptor
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=above)
            descriptor = os.open(part, _FOLDER_FLAGS, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def plan_extraction(
    names: Iterable[str], folder: str, *, beside_folder: str | None = None
) -> ExtractionPlan:
    """Gives every name that is safe a path under the folder (S-NAM-8).

    Names that differ only in case, or in the form of a character, are different files where the file system of the
    folder keeps them apart. If there are such names, a hidden folder is made and removed again to find that out.
    Nothing else is written.

    Args:
        names: what to write.
        folder: where.
        beside_folder: what is added to the path of a name that is also the folder of another name, such as `reward`
            beside `reward/exact`; None refuses such a name.
    """
    given = list(names)
    plan, clashing = _plan(given, folder, _folded, beside_folder)
    if clashing:
        folders = {_existing_folder(os.path.join(folder, *name.split("/"))) for name in clashing}
        fold = _folding(folders)
        if fold is not _folded:
            plan, _ = _plan(given, folder, fold, beside_folder)
    return plan


def _plan(
    names: list[str], folder: str, fold: Callable[[str], str], beside_folder: str | None
) -> tuple[ExtractionPlan, list[str]]:
    """The plan if `fold` returns the same for names of one file; and the names that clash for that reason."""
    root = os.path.realpath(folder)
    plan = ExtractionPlan(root)
    clashing: list[str] = []
    real_folders: dict[str, str] = {}
    reasons: dict[str, str | None] = {name: unsafe_form(name) for name in names}
    well_formed = {name: fold(name) for name, reason in reasons.items() if reason is None}
    files = set(well_formed.values())
    # Folders that are not also files are not kept: a name can need 255 of them.
    needed = {one for name in files for one in _parents(name) if one in files}
    claimed: dict[str, str] = {}
    for name, folded in well_formed.items():
        shown = name
        if folded in needed:
            shown += beside_folder or ""
            if shown == name or fold(shown) in files or unsafe_form(shown) is not None:
                reasons[name] = "another name needs a folder of this name"
                clashing.append(name)
                continue
        path = os.path.join(folder, *shown.split("/"))
        real = _real_path(path, real_folders)
        if os.path.commonpath((root, real)) != root:
            reasons[name] = f"a symbolic link leads outside, to {real}"
            continue
        # A link may lead to another target.
        other = claimed.setdefault(fold(real), name)
        if other != name:
            clashing.append(name)
            for one, rival in ((name, other), (other, name)):
                # Two names that look alike differ in their escapes.
                reasons[one] = f"{rival!a} is the same file where case or form is ignored"
        plan.targets[name] = path
        plan.resolved[name] = real.removeprefix(root).lstrip(os.sep)
    for name, reason in reasons.items():
        if reason is not None:
            plan.targets.pop(name, None)
            plan.refused.append(Refused(name, reason))
    return plan, clashing


def _existing_folder(path: str) -> str:
    """The nearest folder above a path that exists; new folders in it are like it."""
    while not os.path.isdir(path):
        path = os.path.dirname(os.path.abspath(path))
    return path


def _folding(folders: set[str]) -> Callable[[str], str]:
    """What names of one file have in common in all of these folders."""
    ignores_case = ignores_form = False
    try:
        for folder in folders:
            with tempfile.TemporaryDirectory(prefix=".", dir=folder) as probe:
                for name in ("a", "\u00e9"):
                    os.mkdir(os.path.join(probe, name))
                ignores_case |= os.path.exists(os.path.join(probe, "A"))
                ignores_form |= os.path.exists(os.path.join(probe, "e\u0301"))
    except OSError:  # nothing can be written here, which writing will say
        return _folded
    if ignores_case:
        return _folded
    return partial(unicodedata.normalize, "NFC") if ignores_form else str


def unsafe_form(name: str) -> str | None:
    """Why a name cannot be a relative path at all, None if it can."""
    reason = too_long(name)
    if reason is not None or _PLAIN.fullmatch(name):
        return reason
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
            any(len(part.encode(errors="surrogatepass")) > _LONGEST_PART for part in parts),
            f"a part of it is longer than {_LONGEST_PART} bytes",
        ),
        (any("\ud800" <= c <= "\udfff" for c in name), "it is not valid Unicode"),
    )
    return next((reason for wrong, reason in checks if wrong), None)


def too_long(name: str) -> str | None:
    """Why a name has too much in it for a path, None if it has not. Call it before you look at the parts."""
    if len(name.encode(errors="surrogatepass")) > _LONGEST_NAME:
        return f"it is longer than {_LONGEST_NAME} bytes"
    if name.count("/") >= _MOST_PARTS:
        return f"it has more than {_MOST_PARTS} parts"
    return None


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
