"""`shard doctor`: what is wrong with a file, what that means, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli.arguments import Command, add_max_decompressed
from shard_cli.exits import Exit, message_of, worst
from shard_cli.opening import limits_with
from shard_cli.pack_files import is_pack, shards_of
from shard_cli.text import count, fit, printable

if TYPE_CHECKING:
    import argparse

    from shard_cli.diagnosis import Diagnosis
    from shard_cli.output import Console

# A file with a thousand damaged entries does not need a thousand explanations.
_MOST_SHOWN: Final = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of the Shard family")
    parser.add_argument(
        "--strict", action="store_true", help="warnings and advice give exit code 1, too"
    )
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.diagnosis import diagnose, diagnose_shard

    limits = limits_with(args.max_decompressed)
    diagnoses = []
    paths = [
        (one, is_of_pack)
        for path in args.files
        for is_of_pack in (is_pack(path),)
        for one in (shards_of(path) if is_of_pack else [path])
    ]
    for number, (path, is_of_pack) in enumerate(paths):
        look = diagnose_shard if is_of_pack else diagnose
        diagnosis = look(path, limits, console)
        diagnoses.append(diagnosis)
        if not console.as_json:
            if number:
                console.said("")
            _show(diagnosis, console)
    if console.as_json:
        console.document({"files": [diagnosis.to_fields() for diagnosis in diagnoses]})
    return worst([diagnosis.exit(strict=args.strict) for diagnosis in diagnoses])


def _show(diagnosis: Diagnosis, console: Console) -> None:
    name = console.style(printable(diagnosis.file), "bold")
    if not diagnosis.errors:
        console.said(f"{name}: {console.style('healthy', 'green')}, {_readable(diagnosis)}")
    elif diagnosis.opens:
        console.line(f"{name}: {console.style('damaged', 'red', 'bold')}, {_readable(diagnosis)}")
    else:
        console.line(f"{name}: {console.style('does not open', 'red', 'bold')}")
    for error in diagnosis.errors[:_MOST_SHOWN]:
        _show_one(console, "error", "red", error.code, message_of(error, under=diagnosis.file))
    if len(diagnosis.errors) > _MOST_SHOWN:
        console.line(f"  … and {count(len(diagnosis.errors) - _MOST_SHOWN, 'more error')}")
    if diagnosis.header is not None and (not diagnosis.opens or console.verbose):
        _show_header(diagnosis, console)
    if not diagnosis.opens and diagnosis.header is not None:
        console.line(f"  {_readable(diagnosis)}")
    if not console.quiet:
        for warning in diagnosis.warnings:
            _show_one(console, "warning", "yellow", warning.code, printable(str(warning)))
        for advice in diagnosis.advice:
            console.line(f"  advice: {advice.code}: {printable(advice.message)}")
            console.line(f"    do: {advice.remedy}")


def _readable(diagnosis: Diagnosis) -> str:
    if diagnosis.listed is None:
        return "no entry can be read: the index is lost"
    if diagnosis.readable == diagnosis.listed:
        return (
            f"all {count(diagnosis.listed, 'entry')} readable" if diagnosis.listed else "no entries"
        )
    return f"{diagnosis.readable:,} of {count(diagnosis.listed, 'entry')} readable"


def _show_one(console: Console, label: str, colour: str, code: str, text: str) -> None:
    from shard_cli.explanations import EXPLANATIONS

    explanation = EXPLANATIONS[code]
    console.line(f"  {console.style(f'{label}:', colour)} {code}: {text}")
    console.line(f"    means: {explanation.meaning}")
    console.line(f"    do: {explanation.remedy}")


def _show_header(diagnosis: Diagnosis, console: Console) -> None:
    from shard_cli.summary import flag_names

    assert diagnosis.header is not None
    console.line("  header:")
    for name, value in diagnosis.header.items():
        text = fit(printable(str(value)), 40)
        if name == "flags" and isinstance(value, int):
            text = f"0x{value:04x} ({', '.join(flag_names(value)) or 'none'})"
        if name in diagnosis.wrong_fields:
            text += "  " + console.style(f"<- {printable(diagnosis.wrong_fields[name])}", "red")
        console.line(f"    {name:<20}{text}")


COMMAND = Command(
    name="doctor",
    summary="explain what is wrong with files and what to do",
    description="Also for files that do not open: shows the header, which field is wrong, and how many\n"
    "entries can still be read. Says what could be stored better. Warnings and advice do not\n"
    "change the exit code without --strict.",
    examples=(
        ("shard doctor data.shard", "one file"),
        ("shard doctor broken.shard --json", "for programs"),
        ("shard doctor --strict *.shard", "fail on warnings, too"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
