"""A conversion in parts, which several machines make at the same time: a folder each, until all are there."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from shard_format.atomic import sync_folder, write_file
from shard_format.errors import FileThere, InvalidArgument
from shard_format.listing import is_there, list_names, natural_key, path_of_url
from shard_format.sources import is_url, read_file
from shard_format.transfer import copy_urls, names_below, read_anywhere, remove_urls
from wshard.convert._model import ConversionReport
from wshard.convert._own import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["commit_parts", "part_folder"]

_PARTS: Final = ".parts"
_ALL: Final = "all"
_REPORT: Final = ".report.json"
_PART: Final = re.compile(r"(\d+)-of-(\d+)" + re.escape(_REPORT))


def part_folder(target: str, part: tuple[int, int]) -> str:
    """Where a part is until `commit_parts`."""
    number, parts = part
    return f"{target}{_PARTS}/{number:0{len(str(parts))}d}-of-{parts}"


def commit_parts(target: str | os.PathLike[str]) -> ConversionReport:
    """Makes one folder of the parts of a conversion (`ConvertOptions.part`).

    On a disk the folder appears when all episodes are in it, and none is copied. An object store copies the episodes to
    their names, and the folder is complete when the report beside it appears. Call it again if it was killed.

    Args:
        target: the folder or its URL, as `convert` was given it.

    Returns:
        The report on all parts together.

    Raises:
        InvalidArgument: parts are missing, or belong to different conversions.
        FileThere: something is at `target`.
    """
    name = path_of_url(os.fspath(target))
    if is_url(name):
        return _commit_in_store(name.rstrip("/"))
    final = os.path.abspath(name)
    staging = final + _PARTS
    whole = os.path.join(staging, _ALL)
    if os.path.lexists(final):
        # An earlier call may have been killed just before it was done.
        if not os.path.isdir(staging) or _has_episodes(staging):
            raise FileThere("something is at the target", path=final, hint="move it away")
        shutil.rmtree(staging)
        return ConversionReport.from_json(json.loads(read_file(final + _REPORT)))
    reports = _read_reports(staging, list_names(staging))
    os.makedirs(whole, exist_ok=True)
    for one in reports:
        for name in os.listdir(one.target) if os.path.isdir(one.target) else ():
            os.rename(os.path.join(one.target, name), os.path.join(whole, name))
    report = _join(reports, final)
    _check_count(report, len(os.listdir(whole)), staging)
    sync_folder(whole)
    report.save()
    os.rename(whole, final)
    sync_folder(os.path.dirname(final))
    shutil.rmtree(staging)
    return report


def _commit_in_store(final: str) -> ConversionReport:
    """Copies the episodes of all parts within the store, and then removes the parts.

    The report on all parts is first written among them: with it there, a call that was killed is continued, and what is at
    the target is that call's. It is removed last.
    """
    staging = final + _PARTS
    begun = f"{staging}/{_ALL}{_REPORT}"
    staged = set(names_below(staging))
    episodes = [name for name in staged if name.endswith(SUFFIX)]
    if _ALL + _REPORT in staged:
        report = ConversionReport.from_json(json.loads(read_anywhere(begun)))
    else:
        there = names_below(final)
        if there or is_there(final + _REPORT):
            raise FileThere(
                "something is at the target", path=final, hint="delete it, or choose another name"
            )
        top = sorted({name for name in staged if "/" not in name}, key=natural_key)
        report = _join(_read_reports(staging, top), final)
        _check_count(report, len(episodes), staging)
        write_file(begun, [json.dumps(report.as_json()).encode()], fsync=False)
    if not is_there(final + _REPORT):
        copy_urls((f"{staging}/{name}", f"{final}/{name.rpartition('/')[2]}") for name in episodes)
        report.save()
    remove_urls(f"{staging}/{name}" for name in staged.difference([_ALL + _REPORT]))
    remove_urls([begun])
    return report


def _join(reports: list[ConversionReport], final: str) -> ConversionReport:
    """The report on all parts."""
    report = ConversionReport(reports[0].source, final, reports[0].format, reports[0].to)
    for one in reports:
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
    return report


def _check_count(report: ConversionReport, found: int, staging: str) -> None:
    if found != report.episodes:
        raise InvalidArgument(
            "the parts have lost episodes, or have others",
            path=staging,
            expected=f"{report.episodes} files",
            found=f"{found} files",
            hint="convert the parts again",
        )


def _has_episodes(folder: str) -> bool:
    return any(file.endswith(SUFFIX) for _, _, files in os.walk(folder) for file in files)


def _read_reports(staging: str, names: Sequence[str]) -> list[ConversionReport]:
    """The reports of all parts, in order.

    Args:
        staging: the folder of the parts, or its URL.
        names: what is in it.
    """
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
        report = ConversionReport.from_json(json.loads(read_anywhere(f"{staging}/{name}")))
        # Machines may have the folder at different places.
        report.target = f"{staging}/{name.removesuffix(_REPORT)}"
        reports.append(report)
    return reports
