"""`wshard doctor`: what is wrong or odd about episodes, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shard_cli.arguments import Command, add_jobs, add_max_decompressed
from shard_cli.episode_files import add_episodes, find_episodes
from shard_cli.exits import Exit, worst
from shard_cli.text import count, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from shard_cli.output import Console
    from wshard.doctor import Finding, Report

# An episode with a thousand bad blocks does not need a thousand lines.
_MOST_SHOWN: Final = 20
_SEVERITIES: Final = ("error", "warning", "note")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_episodes(parser)
    parser.add_argument("--strict", action="store_true", help="warnings give exit code 1, too")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="CODE,…",
        help="leave out findings with these codes, even errors; may be repeated",
    )
    add_jobs(parser)
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.episode_checks import examine_all

    ignored = _ignored(args.ignore)
    files = find_episodes(args.paths)
    reports: list[Report] = []
    for report in examine_all(
        files,
        console,
        jobs=args.jobs,
        max_decompressed=args.max_decompressed,
        ignored=ignored,
    ):
        reports.append(report)
        if not console.as_json:
            _show(report, console, strict=args.strict)
    if console.as_json:
        console.document(
            {
                "ok": all(_exit(report, strict=args.strict) is Exit.OK for report in reports),
                "strict": args.strict,
                "ignored": sorted(ignored),
                "files": [_fields(report) for report in reports],
                "summary": _summary(reports),
            }
        )
    elif len(reports) > 1 and not console.quiet:
        _show_summary(reports, console)
    return worst([_exit(report, strict=args.strict) for report in reports])


def _ignored(arguments: Sequence[str]) -> frozenset[str]:
    from shard_cli.explanations import EXPLANATIONS
    from shard_format.errors import InvalidArgument
    from wshard.doctor import CODES

    codes = [code.strip() for argument in arguments for code in argument.split(",")]
    known = sorted({*EXPLANATIONS, *CODES})
    for code in codes:
        if code not in known:
            import difflib

            near = difflib.get_close_matches(code, known, 1)
            raise InvalidArgument(
                "--ignore takes codes of findings",
                found=repr(code),
                hint=f"did you mean {near[0]}?" if near else "codes stand before each finding",
            )
    return frozenset(codes)


def _exit(report: Report, *, strict: bool) -> Exit:
    from shard_cli.episode_checks import exit_of

    code = exit_of(report.errors)
    return Exit.FINDING if strict and not code and report.warnings else code


def _fields(report: Report) -> dict[str, Any]:
    from shard_cli.episode_checks import fields_of

    return {
        "file": report.path,
        "ok": report.ok,
        "episode_id": report.episode_id,
        "steps": report.length,
        "files": report.files,
        "blocks": report.blocks,
        "bytes": report.bytes,
        "findings": [fields_of(finding) for finding in report.findings],
    }


def _show(report: Report, console: Console, *, strict: bool) -> None:
    name = console.style(printable(report.path), "bold")
    numbers = _numbers(report.findings)
    length = f", {count(report.length, 'step')}" if report.length is not None else ""
    if report.episode_id is None:
        console.line(f"{name}: {console.style('does not open', 'red', 'bold')}")
    elif report.errors:
        console.line(f"{name}: {console.style('damaged', 'red', 'bold')}{length}, {numbers}")
    elif strict and report.warnings:
        console.line(f"{name}: {console.style('suspicious', 'yellow')}{length}, {numbers}")
    elif report.warnings:
        console.said(f"{name}: {console.style('readable', 'yellow')}{length}, {numbers}")
    else:
        tail = f", {numbers}" if numbers else ""
        console.said(f"{name}: {console.style('healthy', 'green')}{length}{tail}")
    shown = [
        finding
        for finding in report.findings
        if not console.quiet
        or finding.severity == "error"
        or (strict and finding.severity == "warning")
    ]
    most = len(shown) if console.verbose else _MOST_SHOWN
    for finding in shown[:most]:
        _show_one(finding, console)
    if len(shown) > most:
        console.line(f"  … and {count(len(shown) - most, 'more finding')}, which -v shows")


def _show_one(finding: Finding, console: Console) -> None:
    from shard_cli.episode_checks import COLOURS, text_of

    label = console.style(f"{finding.severity}:", COLOURS[finding.severity])
    console.line(f"  {label} {text_of(finding, console)}")
    if finding.advice:
        console.line(f"    do: {printable(finding.advice)}")


def _numbers(findings: Sequence[Finding]) -> str:
    counts = [
        (severity, sum(finding.severity == severity for finding in findings))
        for severity in _SEVERITIES
    ]
    return ", ".join(count(number, severity) for severity, number in counts if number)


def _summary(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Each code that occurs: how often, and in how many episodes; the gravest first."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for report in reports:
        seen = set()
        for finding in report.findings:
            key = finding.severity, finding.code
            row = rows.setdefault(
                key,
                {"code": key[1], "severity": key[0], "episodes": 0, "findings": 0},
            )
            row["findings"] += 1
            if key not in seen:
                row["episodes"] += 1
                seen.add(key)
    return sorted(
        rows.values(),
        key=lambda row: (_SEVERITIES.index(row["severity"]), -row["episodes"], row["code"]),
    )


def _show_summary(reports: Sequence[Report], console: Console) -> None:
    rows = _summary(reports)
    console.line()
    if rows:
        console.table(
            ["CODE", "SEVERITY", "EPISODES", "FINDINGS"],
            [[row["code"], row["severity"], *map(str, (row["episodes"], row["findings"]))]
             for row in rows],
            right=(2, 3),
        )  # fmt: skip
    bad = sum(bool(report.errors) for report in reports)
    odd = sum(bool(report.warnings) and not report.errors for report in reports)
    facts = [count(len(reports), "episode"), f"{len(reports) - bad - odd:,} healthy"]
    if odd:
        facts.append(f"{odd:,} with warnings")
    if bad:
        facts.append(f"{bad:,} damaged")
    console.line(console.style(", ".join(facts), "bold" if bad else "dim"))


COMMAND = Command(
    name="doctor",
    summary="say what is wrong or odd, and what to do",
    description="Everything that 'wshard verify' checks, and what is allowed but will likely hurt: clocks that\n"
    "jump, dead dimensions, NaN, frozen cameras, lanes that nobody described. Warnings do not\n"
    "change the exit code without --strict.",
    examples=(
        ("wshard doctor ep_001.wshard", "one episode"),
        ("wshard doctor recordings/", "a folder, with a summary by code at the end"),
        ("wshard doctor --strict --ignore no_end,time_jump recordings/", "for a pipeline"),
        ("wshard doctor --json recordings/ | jq .summary", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
