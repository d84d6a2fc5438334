"""`wshard verify`: is every episode as it should be?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_jobs, add_max_decompressed
from shard_cli.episode_files import add_episodes, find_episodes
from shard_cli.exits import Exit, worst
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from wshard.doctor import Report


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_episodes(parser)
    add_jobs(parser)
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.episode_checks import examine_all, exit_of

    files = find_episodes(args.paths)
    codes: list[Exit] = []
    documents: list[dict[str, Any]] = []
    total = 0
    for report in examine_all(
        files, console, jobs=args.jobs, max_decompressed=args.max_decompressed
    ):
        codes.append(exit_of(report.errors))
        total += report.bytes
        if console.as_json:
            documents.append(_fields(report))
        else:
            _show(report, console)
    failed = sum(code is not Exit.OK for code in codes)
    if console.as_json:
        console.document(
            {
                "ok": not failed,
                "episodes": len(codes),
                "failed": failed,
                "bytes": total,
                "files": documents,
            }
        )
    elif len(codes) > 1:
        verdict = f"{failed:,} failed" if failed else "all ok"
        text = f"{count(len(codes), 'episode')}, {verdict}, {size(total)} read"
        console.said(console.style(text, "bold" if failed else "dim"))
    return worst(codes)


def _fields(report: Report) -> dict[str, Any]:
    from shard_cli.episode_checks import fields_of

    return {
        "file": report.path,
        "ok": report.ok,
        "episode_id": report.episode_id,
        "steps": report.length,
        "files": report.files,
        "bytes": report.bytes,
        "errors": [fields_of(finding) for finding in report.errors],
        "warnings": len(report.warnings),
    }


def _show(report: Report, console: Console) -> None:
    from shard_cli.episode_checks import text_of

    file = printable(report.path)
    if report.errors:
        failed = console.style("FAILED", "red", "bold")
        console.line(f"{file}: {failed}, {count(len(report.errors), 'error')}")
        for finding in report.errors:
            console.line(f"  {text_of(finding, console)}")
        return
    facts = [count(report.length or 0, "step"), size(report.bytes)]
    if report.files > 1:
        facts.insert(1, count(report.files, "file"))
    if report.warnings:
        facts.append(f"{count(len(report.warnings), 'warning')} for 'wshard doctor'")
    console.said(f"{file}: {console.style('ok', 'green')}, {', '.join(facts)}")


COMMAND = Command(
    name="verify",
    summary="check every byte and every rule of episodes",
    description="Reads everything: checksums, the identity where one is stored, and all rules of the format;\n"
    "chunks and sidecars, too. 'wshard doctor' also says what is odd, and what to do.",
    examples=(
        ("wshard verify ep_001.wshard", "one episode"),
        ("wshard verify recordings/", "all episodes below a folder"),
        ("wshard verify -q recordings/ --jobs 4", "prints only what is wrong"),
        ("wshard verify --json recordings/ | jq .failed", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
