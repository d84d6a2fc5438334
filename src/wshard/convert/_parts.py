"""A conversion in parts, which several machines make at the same time: a folder each, until all are there."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Final

from shard_format.atomic import sync_folder
from shard_format.errors import FileThere, InvalidArgument
from shard_format.listing import path_of_url
from shard_format.sources import is_url, read_file
from wshard.convert._model import ConversionReport
from wshard.convert._own import SUFFIX

__all__ = ["commit_parts", "part_folder"]

_PARTS: Final = ".parts"
_ALL: Final = "all"
_REPORT: Final = ".report.json"
_PART: Final = re.compile(r"(\d+)-of-(\d+)" + re.escape(_REPORT))


def part_folder(target: str, part: tuple[int, int]) -> str:
    """Where a part is until `commit_parts`."""
    number, parts = part
    return os.path.join(target + _PARTS, f"{number:0{len(str(parts))}d}-of-{parts}")


def commit_parts(target: str | os.PathLike[str]) -> ConversionReport:
    """Makes one folder of the parts of a conversion (`ConvertOptions.part`). It appears when all episodes are in it.

    No episode is copied. Call it again if it was killed.

    Args:
        target: the folder, as `convert` was given it.

    Returns:
        The report on all parts together.

    Raises:
        InvalidArgument: parts are missing, or belong to different conversions; or the target is a URL.
        FileThere: something is at `target`.
    """
    name = path_of_url(os.fspath(target))
    if is_url(name):
        raise InvalidArgument(
            "the parts of a conversion are in a local folder", path=name, expected="a path"
        )
    final = os.path.abspath(name)
    staging = final + _PARTS
    whole = os.path.join(staging, _ALL)
    if os.path.lexists(final):
        # An earlier call may have been killed just before it was done.
        if not os.path.isdir(staging) or _has_episodes(staging):
            raise FileThere("something is at the target", path=final, hint="move it away")
        shutil.rmtree(staging)
        return ConversionReport.from_json(json.loads(read_file(final + _REPORT)))
    reports = _read_reports(staging)
    os.makedirs(whole, exist_ok=True)
    report = ConversionReport(reports[0].source, final, reports[0].format, reports[0].to)
    for one in reports:
        for name in os.listdir(one.target) if os.path.isdir(one.target) else ():
            os.rename(os.path.join(one.target, name), os.path.join(whole, name))
        for fact in ("episodes", "steps", "bytes_written", "skipped"):
            setattr(report, fact, getattr(report, fact) + getattr(one, fact))
        report.changes.update(one.changes)
        report.failed.update(one.failed)
    # What one part warns about may be right in another: a field that only its episodes have.
    report.warnings = [
        warning
        for warning in reports[0].warnings
        if all(warning in one.warnings for one in reports)
    ]
    found = len(os.listdir(whole))
    if found != report.episodes:
        raise InvalidArgument(
            "the parts have lost episodes, or have others",
            path=staging,
            expected=f"{report.episodes} files",
            found=f"{found} files",
            hint="convert the parts again",
        )
    sync_folder(whole)
    report.save()
    os.rename(whole, final)
    sync_folder(os.path.dirname(final))
    shutil.rmtree(staging)
    return report


def _has_episodes(folder: str) -> bool:
    return any(file.endswith(SUFFIX) for _, _, files in os.walk(folder) for file in files)


def _read_reports(staging: str) -> list[ConversionReport]:
    """The reports of all parts, in order."""
    names = sorted(os.listdir(staging)) if os.path.isdir(staging) else []
    parts = {
        match[0]: (int(match[1]), int(match[2])) for match in map(_PART.fullmatch, names) if match
    }
    if not parts:
        raise InvalidArgument(
            "found no parts of a conversion",
            path=staging,
            hint="convert with part=(1, N) to part=(N, N) first",
            command="convert with --part 1/N to --part N/N first",
        )
    of = {count for _, count in parts.values()}
    missing = sorted(set(range(1, max(of) + 1)) - {number for number, _ in parts.values()})
    if len(of) > 1 or missing:
        raise InvalidArgument(
            "the parts are not those of one conversion" if len(of) > 1 else "parts are missing",
            path=staging,
            expected=f"{max(of)} parts",
            found=", ".join(name.removesuffix(_REPORT) for name in list(parts)[:10]),
        )
    reports = []
    for name in sorted(parts):
        report = ConversionReport.from_json(json.loads(read_file(os.path.join(staging, name))))
        # Machines may have the folder at different places.
        report.target = os.path.join(staging, name.removesuffix(_REPORT))
        reports.append(report)
    return reports
