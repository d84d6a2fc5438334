"""Samples from a file with one JSON object on each line: key, files, metadata."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, Final

from shard_cli.inputs import kind_of
from shard_cli.samples import Plan, Problem, Sample, SourceFile, duplicate, text_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELDS: Final = frozenset(("key", "files", "metadata"))


def collect_manifest(path: str, base: str | None = None) -> Plan:
    """The samples that a manifest lists, in its order.

    Each line is `{"key": "a", "files": {"left.jpg": "photos/1.jpg"}, "metadata": {"label": 3}}`; `files` may
    also be a list of paths, whose last parts are the names. Paths are relative to `base`, or to the
    folder of the manifest.

    Raises:
        InvalidArgument: a line is not such an object; the message names it.
    """
    plan = Plan()
    folder = os.path.dirname(path) if base is None else base
    lines_by_key: dict[str, int] = {}
    for number, line in _lines(path):
        key, files, metadata = _parse(path, number, line)
        first = lines_by_key.setdefault(key, number)
        found = [_stat(plan, key, name, os.path.join(folder, where)) for name, where in files]
        complete = [file for file in found if file is not None]
        sample = Sample(key, tuple(complete), metadata)
        if first != number:
            where = f"{path}, line {number}"
            plan.problems.append(duplicate(sample, f"line {first}")._replace(path=where))
        elif len(complete) == len(found):
            plan.samples.append(sample)
    return plan


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    from shard_format.errors import ShardIOError

    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read the manifest", path) from error


def _parse(
    path: str, number: int, line: bytes
) -> tuple[str, list[tuple[str, str]], dict[str, Any] | None]:
    from shard_format._json import parse_object
    from shard_format.errors import InvalidArgument, ShardError
    from shard_format.registry import DEFAULT_LIMITS

    where = f"{path}, line {number}"
    try:
        fields = parse_object(line, "the line", DEFAULT_LIMITS)
    except ShardError as error:
        raise InvalidArgument(f"this is not a JSON object: {error}", path=where) from None
    key, files, metadata = fields.get("key"), fields.get("files"), fields.get("metadata")
    unknown = sorted(fields.keys() - _FIELDS)
    for wrong, problem in (
        (not isinstance(key, str) or not key, '"key" must be a text that is not empty'),
        (metadata is not None and not isinstance(metadata, dict), '"metadata" must be an object'),
        (bool(unknown), f"unknown field {unknown[:1]}; what is about the sample goes to metadata"),
    ):
        if wrong:
            raise InvalidArgument(problem, path=where)
    if isinstance(files, list):
        pairs = [(os.path.basename(one) if isinstance(one, str) else "", one) for one in files]
    else:
        pairs = list(files.items()) if isinstance(files, dict) else [("", "")]
    names = [name for name, _ in pairs]
    if not all(name and isinstance(one, str) and one for name, one in pairs):
        raise InvalidArgument(
            '"files" must be a list of paths, or an object of names and paths', path=where
        )
    if len(set(names)) != len(names):
        raise InvalidArgument(
            "two files of the record have the same name",
            path=where,
            hint='give names of your own: "files": {"left.jpg": "path", …}',
        )
    assert isinstance(key, str)
    return key, pairs, metadata


def _stat(plan: Plan, key: str, name: str, path: str) -> SourceFile | None:
    problem = text_problem(key, name)
    try:
        status = os.stat(path)
        if problem is None and stat.S_ISDIR(status.st_mode):
            problem = "a folder, not a file"
        elif problem is None and not stat.S_ISREG(status.st_mode):
            problem = f"{kind_of(status.st_mode)}, not a file"
        elif problem is None and not os.access(path, os.R_OK):
            problem = "permission denied"
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
    if problem is not None:
        plan.problems.append(Problem("unreadable", key, path, problem))
        return None
    return SourceFile(name, path, status.st_size, status.st_mtime_ns)
