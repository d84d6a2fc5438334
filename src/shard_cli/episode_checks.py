"""Examining many episodes: what `wshard verify` and `wshard doctor` have in common."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shard_cli.exits import (
    Exit,
    exit_for,
    hint_in_terms_of_options,
    in_terms_of_options,
    worst,
)
from shard_cli.opening import looks_like, open_episode, read_head
from shard_cli.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from shard_cli.episode_files import EpisodeFile
    from shard_cli.output import Console
    from shard_format import ShardError
    from wshard.doctor import Finding, Report

COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


def examine_all(
    files: Sequence[EpisodeFile],
    console: Console,
    *,
    jobs: int | None,
    max_decompressed: int | None,
    ignored: Collection[str] = (),
) -> Iterator[Report]:
    """A report for each file, in order."""
    from shard_cli.jobs import in_order, threads_in_each

    work = partial(
        _report,
        max_decompressed=max_decompressed,
        threads=threads_in_each(jobs, len(files)),
        ignored=frozenset(ignored),
    )
    return in_order(
        files,
        work,
        jobs=jobs,
        weights=[file.size for file in files],
        console=console,
        label=console.command if len(files) > 1 else f"{console.command} {files[0].path}",
    )


def _report(
    file: EpisodeFile,
    advance: Callable[[int, int], None],
    *,
    max_decompressed: int | None,
    threads: int | None,
    ignored: frozenset[str],
) -> Report:
    report = _examine(file, max_decompressed, threads, advance)
    kept = tuple(
        _for_the_command_line(finding, file)
        for finding in report.findings
        if finding.code not in ignored
    )
    return replace(report, path=file.path, findings=kept)


def _for_the_command_line(finding: Finding, file: EpisodeFile) -> Finding:
    """Advice in terms of options; and under a heading that names the file, no second mention of it."""
    from shard_cli.explanations import EXPLANATIONS

    advice = hint_in_terms_of_options(finding.advice)
    if advice is None:
        advice = EXPLANATIONS[finding.code].remedy if finding.code in EXPLANATIONS else ""
    path = None if finding.path == file.path else finding.path
    return replace(finding, advice=advice, path=path)


def _examine(
    file: EpisodeFile,
    max_decompressed: int | None,
    threads: int | None,
    advance: Callable[[int, int], None],
) -> Report:
    from shard_format.errors import ShardError
    from wshard.doctor import examine

    report: Report | None = None
    if max_decompressed is not None:
        try:
            with open_episode(
                file.path, max_decompressed=max_decompressed, threads=threads
            ) as episode:
                report = examine(episode, progress=advance, threads=threads)
        except ShardError:  # what keeps it from opening is a finding
            report = None
    if report is None:
        report = examine(file.path, progress=advance, threads=threads)
    if file.chunks:
        report = _with_chunks(file, report)
    if "bad_magic" in report.codes:
        report = _with_kind(file, report)
    return report


def _with_chunks(file: EpisodeFile, report: Report) -> Report:
    """Also W-CHK-7: whether the chunks are the files that the manifest was made for."""
    from shard_format.errors import ShardError
    from wshard.chunked import validate_chunk_continuity

    try:
        validate_chunk_continuity(file.path)
    except ShardError as error:
        finding = _finding(error, file.path)
        known = {(one.code, one.path) for one in report.findings}
        if (finding.code, finding.path) not in known and finding.code not in report.codes:
            return replace(report, findings=(finding, *report.findings))
    return report


def _finding(error: ShardError, path: str) -> Finding:
    from shard_cli.explanations import EXPLANATIONS
    from wshard.doctor import Finding

    error = in_terms_of_options(error)
    facts = [
        f"{word} {value}"
        for word, value in (("expected", error.expected), ("found", error.found))
        if value is not None
    ]
    return Finding(
        code=error.code,
        severity="error",
        message=error.problem + (f" ({', '.join(facts)})" if facts else ""),
        block=error.entry,
        advice=error.hint or EXPLANATIONS[error.code].remedy,
        rule=error.rule,
        path=None if error.path == path else error.path,
    )


def _with_kind(file: EpisodeFile, report: Report) -> Report:
    """Says what a file that is no Shard file looks like."""
    what = looks_like(read_head(file.path))
    if what is None:
        return report
    advice = f"it looks like {what}"
    return replace(
        report,
        findings=tuple(
            replace(one, advice=advice) if one.code == "bad_magic" and one.path is None else one
            for one in report.findings
        ),
    )


def fields_of(finding: Finding) -> dict[str, Any]:
    """A finding as `--json` shows it, with every field."""
    return {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "block": finding.block,
        "step": finding.step,
        "count": finding.count,
        "rule": finding.rule,
        "file": finding.path,
        "advice": finding.advice or None,
    }


def text_of(finding: Finding, console: Console) -> str:
    """A finding in one line: code, place, what was found, which rule."""
    place = "".join(f"{part}: " for part in (finding.path, finding.block) if part)
    rule = f" [{finding.rule}]" if finding.rule else ""
    code = console.style(finding.code, COLOURS[finding.severity])
    return f"{code}: {printable(place + finding.message)}{rule}"


def exit_of(findings: Iterable[Finding]) -> Exit:
    """What errors mean for the exit code."""
    return worst([exit_for(finding.code) for finding in findings if finding.severity == "error"])
