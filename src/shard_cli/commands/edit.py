"""`edit` and `compact`: changes beside an episode, and folding them into it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli import episode_options
from shard_cli.exits import Exit
from shard_cli.files import same_file
from shard_cli.text import count, printable, short_json, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console

_INTERVAL: Final = re.compile(r"([^=]+)=([0-9]{1,19}):([0-9]{1,19}):(.*)")


# --- edit


def _run_edit(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from wshard import edit

    metadata: dict[str, Any] = {
        key: _value(text) for key, text in arg.pairs_of(args.fields, "edit").items()
    }
    metadata |= dict.fromkeys(args.remove)
    labels: dict[str, Any] = dict.fromkeys(args.remove_label)
    for text in args.label:
        match = _INTERVAL.fullmatch(text)
        if match is None:
            raise InvalidArgument(
                "--label needs a name, steps and a text",
                expected="such as phase=0:40:reach",
                found=repr(text),
            )
        labels[match[1]] = [*(labels.get(match[1]) or ()), (int(match[2]), int(match[3]), match[4])]
    if not metadata and not labels:
        raise InvalidArgument(
            "there is nothing to change", expected="KEY=VALUE, --remove or --label"
        )
    sidecar = edit(args.file, metadata, labels)
    lines = [
        f"  {key}: {short_json(value)}" for key, value in metadata.items() if value is not None
    ]
    lines += [f"  {name}: {count(len(rows), 'label')}" for name, rows in labels.items() if rows]
    lines += [f"  {key}: removed" for key in (*args.remove, *args.remove_label)]
    console.report(
        {"file": args.file, "sidecar": sidecar, "metadata": metadata, "labels": labels},
        f"{printable(args.file)}: edited; the file itself is as it was",
        *map(printable, lines),
    )
    return Exit.OK


def _value(text: str) -> Any:  # noqa: ANN401 - any JSON
    """JSON if it is JSON, else the text itself."""
    from shard_format.canonical_json import parse_foreign
    from shard_format.errors import BadValue

    try:
        return parse_foreign(text.encode(errors="surrogatepass"), "the value")
    except BadValue:
        return text


# --- compact


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_episode
    from shard_format.errors import InvalidArgument
    from wshard import compact
    from wshard.editing import sidecar_files

    in_place = args.output is None or same_file(args.output, args.file)
    output = args.file if in_place else args.output
    with open_episode(args.file, args, sidecars="strict") as episode:
        assert episode.origin is not None
        is_chunked = bool(episode.origin.chunks)
        asked = bool(args.compression) or args.profile is not None
        storage = episode_options.storage_of(args, episode) if asked else {}
    sidecars = sidecar_files(args.file)
    names = [os.path.basename(sidecar) for sidecar in sidecars]
    if in_place and is_chunked:
        raise InvalidArgument(
            "the chunks of an episode are not changed in place",
            path=args.file,
            hint="pass -o OUT for one file with everything",
        )
    is_needed = bool(sidecars) or not in_place or asked
    if is_needed:
        if in_place and not args.force:
            raise InvalidArgument(
                f"{count(len(sidecars), 'sidecar')} would be folded in and removed",
                path=args.file,
                hint="pass --force to replace the episode, or -o OUT to write another",
            )
        if not in_place:
            episode_options.check_output(output, console, force=args.force)
        compact(args.file, None if in_place else output, **storage)
    after = os.stat(output).st_size
    folded = f"{count(len(names), 'sidecar')} folded in" if names else "no sidecars"
    listed = f": {printable(', '.join(names))}" if names else ""
    console.report(
        {"file": args.file, "output": output, "sidecars": names, "size": after},
        f"{printable(output)}: {size(after)}, {folded}{listed}"
        if is_needed
        else f"{printable(args.file)}: no sidecars, nothing to do",
    )
    return Exit.OK


EDIT = arg.Command(
    "edit",
    _run_edit,
    (
        arg.EPISODE_OR_MANIFEST,
        arg.positional(
            "fields",
            "KEY=VALUE",
            "metadata to set; a VALUE that is JSON is stored as such, everything else as text",
            nargs="*",
        ),
        arg.repeated("--remove KEY", "remove this metadata"),
        arg.repeated(
            "--label NAME=START:STOP:TEXT", "set the labels NAME to these steps, STOP not included"
        ),
        arg.repeated("--remove-label NAME", "remove these labels"),
    ),
    """
change metadata and labels without rewriting the file

Writes a small sidecar beside the episode, which every reader of the episode sees. The file itself
stays as it is, whatever its size; 'wshard compact' folds the changes in.

wshard edit ep.wshard success=true operator=Ada        # true is JSON, Ada is text
wshard edit ep.wshard --remove note                    # remove a key
wshard edit ep.wshard --label phase=0:40:reach --label phase=40:90:lift  # two labels
""",
)
COMPACT = arg.Command(
    "compact",
    _run,
    (
        arg.positional("file", "FILE", "an episode with sidecars in FILE.lanes/"),
        arg.option(
            "-o --output OUT",
            "the episode to write; FILE and its sidecars stay (default, with --force: replace FILE and "
            "remove its sidecars)",
        ),
        arg.force("replace OUT if it exists, or FILE itself"),
        *episode_options.storage("blocks stay as they are stored"),
    ),
    """
fold in lanes and edits that were added later

Compares sidecars with the episode first: one that was made for other content is an error. Copies
blocks as they are stored unless you pass --profile or --compression.

wshard compact ep.wshard --force                             # in place; removes ep.wshard.lanes/
wshard compact ep.wshard -o whole.wshard                     # to another file, keeping both
wshard compact ep.wshard -o small.wshard --profile training  # compressed again
""",
)
