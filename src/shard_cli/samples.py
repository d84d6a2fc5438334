"""What `shardpack create` packs: files behind its arguments, grouped into samples in a fixed order."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_cli.files import STDIN
from shard_cli.inputs import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STEM: Final = "stem"
SUFFIX: Final = "suffix"
FOLDER: Final = "dir"
GROUPINGS: Final = (STEM, SUFFIX, FOLDER)

# The name of an entry whose file has no ending.
NO_ENDING: Final = "data"


class SourceFile(NamedTuple):
    """One entry to be, as it was when it was listed."""

    name: str
    path: str
    size: int
    mtime_ns: int


class Sample(NamedTuple):
    """One record to be."""

    key: str
    files: tuple[SourceFile, ...]
    metadata: dict[str, Any] | None = None

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)


class Problem(NamedTuple):
    """Something that keeps a sample from being packed."""

    kind: str
    """unreadable, changed, large or duplicate."""
    key: str | None
    path: str
    reason: str

    def __str__(self) -> str:
        of = "" if self.key is None else f" (record {self.key!r})"
        return f"{self.path}: {self.reason}{of}"

    def to_fields(self) -> dict[str, Any]:
        """As `--json` shows it."""
        return {"kind": self.kind, "key": self.key, "path": self.path, "reason": self.reason}


@dataclass(slots=True)
class Plan:
    """Everything that the arguments name."""

    samples: list[Sample] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Paths that are no part of the data, with the reason."""
    problems: list[Problem] = field(default_factory=list)
    """What is, and cannot be packed."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(sample.size for sample in self.samples)


@dataclass(frozen=True, slots=True)
class Rules:
    """How files become samples."""

    group: str
    """stem, suffix or dir."""
    hidden: bool = False
    """Whether files and folders whose names start with a dot count."""
    is_output: Callable[[str], bool] = lambda _path: False
    """Whether a file is one that this run writes, or wrote before it was interrupted."""


def collect(inputs: Sequence[str], rules: Rules, *, base: str | None = None) -> Plan:
    """The samples behind the arguments: folders sorted, lists in their own order.

    Args:
        inputs: folders, files with one path on each line, `-` for such a list from stdin.
        rules: how files become samples.
        base: keys of listed files are relative to this folder; the current one if None.
    """
    plan = Plan()
    for argument in inputs:
        if argument != STDIN and os.path.isdir(argument):
            _walk(plan, argument, "", rules)
        else:
            _add_list(plan, read_list(argument), rules, base or os.curdir)
    _find_duplicates(plan)
    return plan


def read_list(argument: str) -> list[str]:
    """Paths from a file or stdin: one on each line, or with NUL behind each as `find -print0` has."""
    from shard_format.errors import ShardIOError

    try:
        if argument == STDIN:
            data = sys.stdin.buffer.read()
        else:
            with open(argument, "rb") as file:
                data = file.read()
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", argument) from error
    if b"\0" in data:
        lines = data.split(b"\0")
    else:
        lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line]


def _walk(plan: Plan, folder: str, key: str, rules: Rules) -> None:
    """Adds the files of a folder, then those of the folders in it."""
    try:
        with os.scandir(folder) as scan:
            children = sorted(scan, key=lambda child: os.fsencode(child.name))
    except OSError as error:
        plan.problems.append(Problem("unreadable", None, folder, _reason(error)))
        return
    if not children:
        plan.skipped.append((folder, "an empty folder"))
    files: list[tuple[str, str, os.stat_result]] = []
    folders: list[os.DirEntry[str]] = []
    for child in children:
        if child.name.startswith(".") and not rules.hidden:
            plan.skipped.append((child.path, "hidden; --hidden packs it"))
            continue
        try:
            status = child.stat(follow_symlinks=False)
        except OSError as error:
            plan.problems.append(Problem("unreadable", None, child.path, _reason(error)))
            continue
        if stat.S_ISDIR(status.st_mode):
            folders.append(child)
        elif not stat.S_ISREG(status.st_mode):
            plan.skipped.append((child.path, kind_of(status.st_mode)))
        elif rules.is_output(child.path):
            plan.skipped.append((child.path, "the output itself"))
        else:
            files.append((f"{key}{child.name}", child.path, status))
    # The folder that was given has no name of its own inside itself.
    above = key or f"{os.path.basename(os.path.abspath(folder))}/"
    _group(plan, files, rules, above.removesuffix("/"))
    for child in folders:
        _walk(plan, child.path, f"{key}{child.name}/", rules)


def _add_list(plan: Plan, paths: list[str], rules: Rules, base: str) -> None:
    from shard_format.errors import InvalidArgument

    files: list[tuple[str, str, os.stat_result]] = []
    above = os.path.abspath(base)
    for path in paths:
        inside = os.path.relpath(os.path.abspath(path), above).replace(os.sep, "/")
        if inside == ".." or inside.startswith("../"):
            raise InvalidArgument(
                f"a listed file is outside {'the current folder' if base == os.curdir else base}",
                path=path,
                hint="give --base DIR: keys are paths relative to it",
            )
        try:
            # What is listed by hand may be a link.
            status = os.stat(path)
        except OSError as error:
            plan.problems.append(Problem("unreadable", None, path, _reason(error)))
            continue
        if stat.S_ISDIR(status.st_mode):
            plan.skipped.append((path, "a folder in a list of files"))
        elif not stat.S_ISREG(status.st_mode):
            plan.skipped.append((path, kind_of(status.st_mode)))
        else:
            files.append((inside, path, status))
    _group(plan, files, rules, os.path.basename(above))


def _group(
    plan: Plan, files: list[tuple[str, str, os.stat_result]], rules: Rules, root: str
) -> None:
    """Puts files into samples; `root` is the key for files that are in no folder."""
    groups: dict[str, list[SourceFile]] = {}
    for inside, path, status in files:
        key, name = split_name(inside, rules.group, root)
        problem = text_problem(key, name) or _access_problem(path)
        if problem is not None:
            plan.problems.append(Problem("unreadable", _shown(key), path, problem))
            # The rest of a sample without one of its files is no sample.
            groups.setdefault(key, []).append(SourceFile("", path, 0, 0))
            continue
        file = SourceFile(name, path, status.st_size, status.st_mtime_ns)
        groups.setdefault(key, []).append(file)
    for key, members in groups.items():
        if all(file.name for file in members):
            plan.samples.append(Sample(key, tuple(members)))


def split_name(inside: str, group: str, root: str) -> tuple[str, str]:
    """Key and entry name of a file, from its path inside the input."""
    folder, slash, last = inside.rpartition("/")
    if group == FOLDER:
        return folder or root, last
    # A dot at the start hides a file and ends no stem.
    hidden = len(last) - len(last.lstrip("."))
    at = last.find(".", hidden) if group == STEM else last.rfind(".", hidden)
    if at < 0 or at == len(last) - 1:
        return inside, NO_ENDING
    return f"{folder}{slash}{last[:at]}", last[at + 1 :]


def text_problem(*texts: str) -> str | None:
    """Why a name of a file cannot be in a pack, None if it can."""
    try:
        for text in texts:
            text.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    return None


def _access_problem(path: str) -> str | None:
    # Asked now, so that all such files are named before an hour of packing.
    return None if os.access(path, os.R_OK) else "permission denied"


def _shown(key: str) -> str:
    return key.encode("utf-8", "backslashreplace").decode()


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _find_duplicates(plan: Plan) -> None:
    """Several inputs may have files of the same name."""
    seen: dict[str, Sample] = {}
    kept: list[Sample] = []
    for sample in plan.samples:
        first = seen.setdefault(sample.key, sample)
        if first is sample:
            kept.append(sample)
        else:
            plan.problems.append(duplicate(sample, first.files[0].path))
    for sample in kept:
        names = [file.name for file in sample.files]
        if len(set(names)) != len(names):
            path = next(f.path for f in sample.files if names.count(f.name) > 1)
            reason = "two files of the record have the same name"
            plan.problems.append(Problem("duplicate", sample.key, path, reason))
    plan.samples = kept


def duplicate(sample: Sample, first: str) -> Problem:
    """Two samples have one key."""
    path = sample.files[0].path if sample.files else first
    return Problem("duplicate", sample.key, path, f"the same key as {first}")


def refuse_large(plan: Plan, limit: int) -> None:
    """Takes samples above the limit out of the plan and names them."""
    kept: list[Sample] = []
    for sample in plan.samples:
        if sample.size <= limit:
            kept.append(sample)
            continue
        largest = max(sample.files, key=lambda file: file.size)
        reason = f"the record has {sample.size:,} bytes, above --record-size-limit {limit:,}"
        plan.problems.append(Problem("large", sample.key, largest.path, reason))
    plan.samples = kept
