"""`wshard repack`: the same episode, stored in another way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, positive_argument
from shard_cli.episode_saving import (
    add_episode_storage,
    add_output,
    check_output,
    storage_of,
    stored_like,
)
from shard_cli.exits import Exit
from shard_cli.files import beside, put_in_place, same_file
from shard_cli.opening import limits_with, open_episode
from shard_cli.text import count, percent, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.output import Console
    from wshard import Episode


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an episode, or the manifest of a chunked one")
    add_output(parser, "the episode to write; FILE itself with --force")
    parser.add_argument(
        "--steps-per-frame",
        type=positive_argument,
        metavar="N",
        help="steps that are decoded together in large zstd blocks (default: chosen by size)",
    )
    parser.add_argument(
        "--alignment",
        type=int,
        choices=(0, 16, 32, 64),
        help="blocks start on a multiple of this (default: that of FILE)",
    )
    identity = parser.add_mutually_exclusive_group()
    identity.add_argument(
        "--identity", action="store_true", default=None, help="store the episode's identity"
    )
    identity.add_argument(
        "--no-identity", action="store_false", dest="identity", help="do not store it"
    )
    add_episode_storage(parser, "blocks stay as they are stored")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from wshard import save_wshard

    check_output(args.output, console, force=args.force)
    in_place = same_file(args.file, args.output)
    temporary = beside(args.output)
    with open_episode(args.file, max_decompressed=args.max_decompressed, sidecars=False) as episode:
        sidecars = _check_surroundings(episode, in_place=in_place)
        try:
            save_wshard(
                episode,
                temporary,
                steps_per_frame=args.steps_per_frame,
                identity=args.identity,
                alignment=args.alignment,
                limits=limits_with(args.max_decompressed),
                **_storage(args, episode),
            )
            _compare(episode, temporary, args, fits_sidecars=in_place and bool(sidecars))
            before, after = _bytes_of(episode), os.stat(temporary).st_size
            put_in_place(temporary, args.output)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        steps = episode.length
    if sidecars and not in_place:
        console.note(
            f"{count(len(sidecars), 'sidecar')} beside {args.file} not copied; "
            "'wshard compact' folds them in"
        )
    facts: dict[str, Any] = {
        "file": args.file,
        "output": args.output,
        "steps": steps,
        "size_before": before,
        "size_after": after,
    }
    if console.as_json:
        console.document(facts)
    console.said(
        f"{printable(args.output)}: {count(steps, 'step')}, {size(before)} before, "
        f"{size(after)} after ({percent(after, before)})"
    )
    return Exit.OK


def _storage(args: argparse.Namespace, episode: Episode) -> dict[str, Any]:
    if args.compression is not None or args.profile is not None:
        return storage_of(args, episode)
    # Frames of another size need new compression.
    return stored_like(episode) if args.steps_per_frame is not None else {"compression": "keep"}


def _check_surroundings(episode: Episode, *, in_place: bool) -> list[str]:
    """The sidecars beside an episode; raises if replacing it would leave other files without meaning."""
    from shard_format.errors import InvalidArgument
    from wshard.sidecar import sidecar_files

    assert episode.origin is not None
    if in_place and episode.origin.chunks:
        raise InvalidArgument(
            "a manifest is not replaced by its episode: the chunks would be left over",
            path=episode.origin.path,
            hint="give another OUT for one file with everything",
        )
    return sidecar_files(episode.origin.path)


def _bytes_of(episode: Episode) -> int:
    assert episode.origin is not None
    readers = [episode.origin.reader, *episode.origin.chunks]
    return sum(reader.header.total_file_size for reader in readers)


def _compare(
    episode: Episode, written: str, args: argparse.Namespace, *, fits_sidecars: bool
) -> None:
    """Reads the new file back: it must hold the same, and the sidecars beside it must still fit."""
    from shard_format.errors import IdentityMismatch, InvalidArgument
    from wshard.editing import differences
    from wshard.sidecar import fingerprint

    with open_episode(written, max_decompressed=args.max_decompressed, sidecars=False) as copy:
        found = differences(episode, copy)
        if found:
            raise IdentityMismatch(
                f"the new file does not hold the same: {found[0].detail}",
                path=args.output,
                entry=found[0].block,
                hint="nothing was replaced",
            )
        assert episode.origin is not None
        assert copy.origin is not None
        if fits_sidecars and fingerprint(episode.origin.reader) != fingerprint(copy.origin.reader):
            raise InvalidArgument(
                "the sidecars would no longer fit the episode",
                path=args.output,
                hint="'wshard compact' folds them in first",
            )


COMMAND = Command(
    name="repack",
    summary="store an episode in another way",
    description="Without options every block stays as it is stored. The new file is read back and compared\n"
    "before it is put in place.",
    examples=(
        ("wshard repack ep.wshard -o small.wshard --profile training", "smallest, fast windows"),
        ("wshard repack ep.wshard -o out.wshard --profile exchange", "for all readers"),
        ("wshard repack ep.wshard -o raw.wshard -c none", "every array a view of the file"),
        ("wshard repack ep.wshard -o out.wshard -c zstd -c rgb=zstd:19", "by channel"),
        ("wshard repack ep.wshard -o ep.wshard --identity --force", "in place"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
