"""`doctor`: what is wrong or odd about files, what that means, and what to do about it."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli.episode_options import SUFFIX, report_recordings
from shard_cli.exits import Exit, worst
from shard_cli.kinds import kind_of
from shard_cli.pack_output import parse_part
from shard_cli.text import count, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from shard_cli.console import Console
    from shard_cli.kinds.model import Diagnosis

_COLOURS: Final = {"error": ("red",), "warning": ("yellow",), "note": ("dim",), "advice": ()}
_SEVERITIES: Final = ("error", "warning", "note")
_VERDICTS: Final = {
    "healthy": ("green",),
    "readable": ("yellow",),
    "suspicious": ("yellow",),
    "damaged": ("red", "bold"),
    "does not open": ("red", "bold"),
}


def _run(args: argparse.Namespace, console: Console) -> Exit:
    is_episodes = console.program == "wshard"
    args.ignored = _ignored(args.ignore) if is_episodes else frozenset()
    # What lies beside the episodes is the business of the first part.
    with_others = is_episodes and (args.part is None or parse_part(args.part)[0] == 1)
    leftovers = _leftovers(args, console) if with_others else []
    arguments = _with_episodes(args.files) if leftovers else args.files
    diagnoses: list[Diagnosis] = []
    # Episodes are examined several at once.
    for files in [arguments] if is_episodes else [[path] for path in arguments]:
        if not files:
            continue
        for diagnosis in kind_of(files[0], console.program).diagnose(files, args, console):
            diagnoses.append(diagnosis)
            if not console.as_json:
                _show(diagnosis, console, strict=args.strict and is_episodes)
    codes = [diagnosis.exit(strict=args.strict) for diagnosis in diagnoses]
    recordings = report_recordings(args.files, console) if with_others else []
    if args.strict and any(
        one["state"] in ("abandoned", "unfinished") for one in (*leftovers, *recordings)
    ):
        codes.append(Exit.FINDING)
    if console.as_json:
        document: dict[str, Any] = {"ok": not any(codes), "strict": args.strict}
        document["files"] = [
            {"file": one.file, "ok": not one.of("error"), **one.fields} for one in diagnoses
        ]
        if is_episodes:
            document |= {"ignored": sorted(args.ignored), "summary": _summary(diagnoses)}
            document |= {"leftovers": leftovers, "recordings": recordings}
        console.document(document)
    elif is_episodes and len(diagnoses) > 1 and not console.quiet:
        _show_summary(diagnoses, console)
    return worst(codes)


def _leftovers(args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Finds the temporary files of writers below folders; with `--clean`, removes those of dead writers."""
    from shard_format.atomic import TEMPORARY, is_abandoned
    from shard_format.errors import ShardIOError
    from shard_format.listing import scan_folders

    found: list[dict[str, Any]] = []
    for path in sorted(
        entry.path
        for folder in args.files
        if os.path.isdir(folder)
        for prefix, entries in scan_folders(folder)
        # A temporary folder goes with what is in it.
        if not any(map(TEMPORARY.fullmatch, prefix.split("/")))
        for entry in entries
        if _is_temporary(entry)
    ):
        # The records in an unfinished shard can be recovered, like a recording.
        match = TEMPORARY.fullmatch(os.path.basename(path))
        is_shard = match is not None and match[1].endswith(".shardpack")
        try:
            state = "abandoned" if is_abandoned(path) else "in use"
            if state == "abandoned" and args.clean and not is_shard:
                state = "removed" if is_abandoned(path, remove=True) else "in use"
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot remove", path) from error
        found.append({"path": path, "state": state})
        if state == "removed":
            console.said(f"removed {printable(path)}, which a killed writer left")
        elif state == "abandoned":
            remedy = "'shardpack recover' saves its records" if is_shard else "--clean removes it"
            console.warn(f"a killed writer left {path}; {remedy}")
    return found


def _is_temporary(entry: os.DirEntry[str]) -> bool:
    """Whether a file or folder has the name of one that is being written, and is not a recording."""
    from shard_format import ShardError
    from shard_format.atomic import TEMPORARY
    from wshard import detect_format

    # Not EPISODE.wshard.new~, which the next writer of that episode removes under its lock.
    if not TEMPORARY.fullmatch(entry.name):
        return False
    try:
        return detect_format(entry.path) != "partial"
    except ShardError:
        return True


def _with_episodes(arguments: Sequence[str]) -> list[str]:
    """The arguments without folders that have no episodes: what was asked about them is answered."""
    from shard_format.listing import walk_folder

    return [one for one in arguments if not os.path.isdir(one) or walk_folder(one, SUFFIX).files]


def _ignored(arguments: Sequence[str]) -> frozenset[str]:
    from shard_cli.exits import EXPLANATIONS
    from shard_format.errors import InvalidArgument, did_you_mean
    from wshard.doctor import CODES

    codes = [code.strip() for argument in arguments for code in argument.split(",")]
    known = sorted({*EXPLANATIONS, *CODES})
    for code in codes:
        if code not in known:
            raise InvalidArgument(
                "--ignore takes codes of findings",
                found=repr(code),
                hint=did_you_mean(code, known) or "the code comes before each finding",
            )
    return frozenset(codes)


def _show(diagnosis: Diagnosis, console: Console, *, strict: bool) -> None:
    from shard_cli.kinds.model import MOST_SHOWN

    verdict = console.style(diagnosis.verdict, *_VERDICTS[diagnosis.verdict])
    tail = f", {diagnosis.summary}" if diagnosis.summary else ""
    heading = f"{console.style(printable(diagnosis.file), 'bold')}: {verdict}{tail}"
    is_bad = diagnosis.verdict in ("damaged", "does not open", "suspicious")
    (console.line if is_bad else console.said)(heading)
    severe = ("error", "warning") if strict else ("error",)
    findings = diagnosis.of(*severe)
    findings += [] if console.quiet else diagnosis.of(*(set(_COLOURS) - set(severe)))
    shown = findings if console.verbose else findings[:MOST_SHOWN]
    for finding in shown:
        label = console.style(f"{finding.severity}:", *_COLOURS[finding.severity])
        console.line(f"  {label} {finding.code}: {finding.text}")
        if finding.meaning:
            console.line(f"    means: {finding.meaning}")
        if finding.remedy:
            console.line(f"    do: {finding.remedy}")
    for detail in diagnosis.details:
        console.line(f"  {detail}")
    if len(shown) < len(findings):
        console.line(f"  … and {count(len(findings) - len(shown), 'more finding')}; see -v")


def _summary(diagnoses: Sequence[Diagnosis]) -> list[dict[str, Any]]:
    """Each code that occurs: how often, and in how many episodes; errors first."""
    found = [[(one.severity, one.code) for one in diagnosis.findings] for diagnosis in diagnoses]
    findings = Counter(key for keys in found for key in keys)
    episodes = Counter(key for keys in found for key in set(keys))
    rows = sorted(findings, key=lambda key: (_SEVERITIES.index(key[0]), -episodes[key], key[1]))
    return [
        {
            "code": key[1],
            "severity": key[0],
            "episodes": episodes[key],
            "findings": findings[key],
        }
        for key in rows
    ]


def _show_summary(diagnoses: Sequence[Diagnosis], console: Console) -> None:
    rows = _summary(diagnoses)
    console.line()
    if rows:
        console.table(
            ["CODE", "SEVERITY", "EPISODES", "FINDINGS"],
            [list(map(str, row.values())) for row in rows],
            right=(2, 3),
        )
    bad = sum(bool(one.of("error")) for one in diagnoses)
    odd = sum(bool(one.of("warning")) and not one.of("error") for one in diagnoses)
    facts = [count(len(diagnoses), "episode"), f"{len(diagnoses) - bad - odd:,} healthy"]
    facts += [f"{odd:,} with warnings"] if odd else []
    facts += [f"{bad:,} damaged"] if bad else []
    console.line(console.style(", ".join(facts), "bold" if bad else "dim"))


SHARD = arg.Command(
    "doctor",
    _run,
    (
        arg.FILES,
        arg.flag("--strict", "also exit with code 1 for warnings and advice"),
        arg.MAX_DECOMPRESSED,
    ),
    """
explain what is wrong with files and what to do

Also works on files that do not open: shows the header, which field is wrong, and how many
entries can still be read. Suggests better ways to store the data. Warnings and advice do not change the
exit code without --strict.

shard doctor data.shard           # one file
shard doctor broken.shard --json  # for programs
shard doctor --strict *.shard     # fail on warnings, too
""",
)
WSHARD = arg.Command(
    "doctor",
    _run,
    (
        arg.EPISODES,
        arg.flag("--strict", "also exit with code 1 for warnings"),
        arg.flag("--clean", "remove hidden temporary files that killed writers left in folders"),
        arg.repeated("--ignore CODE,…", "leave out findings with these codes, even errors"),
        arg.option(
            "--part K/N",
            "examine only the K-th of N parts of the episodes, while other machines examine the others",
        ),
        arg.JOBS,
        *arg.ENGINE,
        arg.MAX_DECOMPRESSED,
    ),
    """
say what is wrong or odd, and what to do

Checks everything that 'wshard verify' checks, and looks for what is allowed but likely to
cause problems: clocks that jump, dead dimensions, NaN, frozen cameras, lanes without a description. Warnings
do not change the exit code without --strict. For a folder, also names the temporary files that killed
writers left; never removes recordings (*.wshard.partial), which 'wshard recover' saves.

wshard doctor ep_001.wshard                                   # one episode
wshard doctor recordings/                                     # a folder, with a summary by code at the end
wshard doctor --strict --ignore no_end,time_jump recordings/  # for a pipeline
wshard doctor recordings/ --part 3/64 --json                  # on the third of 64 machines
wshard doctor --clean recordings/                             # remove what killed writers left
wshard doctor --json recordings/ | jq .summary                # for programs
""",
)
