"""`repack`: the same content, stored in another way."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from shard_cli import arguments as arg
from shard_cli import episode_options
from shard_cli.exits import Exit, message_of
from shard_cli.files import refuse_overwrite, same_file, write_content
from shard_cli.text import count, percent, printable, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_cli.console import Console
    from shard_format import Compression, EntryInfo, Schema, ShardReader
    from wshard import Episode


def _report(
    console: Console, args: argparse.Namespace, what: str, sizes: tuple[int, int], **facts: object
) -> Exit:
    before, after = sizes
    ends = f"{size(before)} before, {size(after)} after ({percent(after, before)})"
    document = {"file": args.file, "output": args.output, **facts}
    document |= {"size_before": before, "size_after": after}
    console.report(document, f"{printable(args.output)}: {what}, {ends}")
    return Exit.OK


# --- containers


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.container import choose
    from shard_cli.kinds.model import open_shard
    from shard_format.atomic import locked, replacing
    from shard_format.identity import IDENTITY_ENTRY
    from shard_format.opening import copying_urls

    compression = arg.parse_storage(args)
    refuse_overwrite(args.output, force=args.force)
    if same_file(args.file, args.output):
        console.note(f"{args.output} is replaced when the new file is complete and checked")
    with (
        nullcontext() if args.only else copying_urls(),
        locked(args.output),
        open_shard(args.file, args) as reader,
        replacing(args.output) as temporary,
    ):
        names = choose(reader, args.only) if args.only else reader.names()
        gone = set(choose(reader, args.drop)) if args.drop else set()
        kept = [name for name in names if name not in gone and name != IDENTITY_ENTRY]
        dropped = [name for name in reader.names() if name not in {*kept, IDENTITY_ENTRY}]
        identity = "none"
        if IDENTITY_ENTRY in reader and IDENTITY_ENTRY not in gone:
            identity = _judge_identity(reader, console)
        _copy(reader, temporary, kept, compression, identity == "rewritten", args, console)
        before, after = reader.header.total_file_size, os.stat(temporary).st_size
    entries = len(kept) + (identity == "rewritten")
    what = count(entries, "entry") + (f", {len(dropped):,} dropped" if dropped else "")
    facts = {"entries": entries, "dropped": dropped, "identity": identity}
    return _report(console, args, what, (before, after), **facts)


def _judge_identity(reader: ShardReader, console: Console) -> str:
    """What becomes of a stored identity: a wrong one must not become right."""
    from shard_format import verify_identity
    from shard_format.errors import BadMetadata, IdentityMismatch, UnsupportedVersion

    try:
        with console.progress("check identity") as bar:
            verify_identity(reader, progress=bar.update)
    except (IdentityMismatch, BadMetadata, UnsupportedVersion) as error:
        console.warn(f"the stored identity is wrong and left out: {message_of(error)}")
        return "dropped"
    return "rewritten"


def _copy(
    reader: ShardReader,
    path: str,
    kept: list[str],
    compression: Compression | None,
    identity: bool,
    args: argparse.Namespace,
    console: Console,
) -> None:
    """Writes the new file, reads it back and compares: it must hold what was read from the old one."""
    from shard_format import ShardReader, ShardWriter, WriterOptions, compute_identity
    from shard_format.errors import IdentityMismatch

    hashes: dict[str, str] = {}
    infos = [reader.info(name) for name in kept]
    with (
        console.progress("repack") as bar,
        ShardWriter(
            path,
            role=reader.role,
            alignment=reader.header.alignment if args.alignment is None else args.alignment,
            compression=compression,
            reserve=kept,
            identity=identity,
            options=WriterOptions(schema=_schema(reader, kept), limits=reader.limits),
        ) as writer,
    ):
        add = bar.adding_to(sum(info.size for info in infos))
        for info in infos:
            pieces = _hashed(reader, info.name, hashes, add)
            storage = _storage(reader, info, compression, args.frame_bytes)
            write_content(writer, info.name, pieces, info.size, storage, console)
            console.detail(printable(info.name))
    with ShardReader(path, limits=reader.limits) as written, console.progress("check") as bar:
        if compute_identity(written, progress=bar.update).entries != hashes:
            raise IdentityMismatch(
                "the new file does not hold what was read; it was not put in place",
                path=args.output,
            )


def _hashed(
    reader: ShardReader, name: str, hashes: dict[str, str], add: Callable[[int], None]
) -> Iterator[memoryview]:
    """The content of an entry; its hash is kept."""
    import hashlib

    digest = hashlib.sha256()
    for piece in reader.iter_entry(name):
        digest.update(piece)
        yield piece
        add(len(piece))
    hashes[name] = digest.hexdigest()


def _storage(
    reader: ShardReader, info: EntryInfo, compression: Compression | None, frame_bytes: int | None
) -> dict[str, Any]:
    """How to store an entry: as it is, except for what was asked for."""
    from shard_format.codecs import Codec, Compression
    from shard_format.filters import LARGEST_FRAME

    compression = compression or Compression(info.codec)
    filters = None
    if compression.codec is Codec.ZSTD:
        table = reader.seek_table(info.name)
        if not frame_bytes and table is not None and len(table):
            frame_bytes = int(table.content_starts[1]) or None
        filters = reader.filters(info.name) if info.filtered else None
        largest = info.size if frame_bytes is None else frame_bytes
        # Frames of the new size cannot always have the filters.
        if filters and (largest > LARGEST_FRAME or (frame_bytes or 0) % filters.unit):
            filters = None
    return {
        "compression": compression,
        "frame_bytes": frame_bytes if compression.codec is Codec.ZSTD else None,
        "filters": filters,
        "content_type": info.content_type,
        "tags": info.tag_bits,
    }


def _schema(reader: ShardReader, kept: list[str]) -> Schema | None:
    """The schema section with all its fields, without what it says about dropped entries."""
    from shard_format.identity import IDENTITY_ENTRY
    from shard_format.schema import Schema

    schema = reader.schema
    staying = {*kept, IDENTITY_ENTRY}
    gone = set(reader.names()) - staying
    if schema is None or not gone or "entry_metadata" not in schema.fields:
        return schema
    fields = dict(schema.fields)
    fields["entry_metadata"] = {
        name: facts for name, facts in schema.entry_metadata.items() if name not in gone
    }
    changed = Schema(fields)
    if fields.get("schema_id") == schema.schema_id():
        changed.fields["schema_id"] = changed.schema_id()
    return changed


# --- episodes


def _run_episode(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import limits_of, open_episode
    from shard_format.atomic import locked, replacing
    from shard_format.errors import InvalidArgument
    from shard_format.opening import copying_urls
    from wshard import save_wshard
    from wshard.editing import sidecar_files
    from wshard.overviews import is_camera, require_encoder, write_overviews
    from wshard.types import FileOptions

    episode_options.check_output(args.output, console, force=args.force)
    in_place = same_file(args.file, args.output)
    with (
        copying_urls(),
        locked(args.output),
        open_episode(args.file, args, sidecars=False) as episode,
    ):
        assert episode.origin is not None
        origin = episode.origin
        if in_place and origin.chunks:
            raise InvalidArgument(
                "a manifest cannot be replaced by its episode: the chunks would remain",
                path=origin.path,
                hint="pass another OUT for one file with everything",
            )
        if args.overview:
            require_encoder(one for one in episode.observations.values() if is_camera(one))
        sidecars = sidecar_files(origin.path)
        storage: dict[str, Any] = {"compression": "keep"}
        # Frames of another size need new compression.
        if args.compression or args.profile is not None or args.steps_per_frame is not None:
            storage = episode_options.storage_of(args, episode)
        with replacing(args.output) as temporary:
            save_wshard(
                episode,
                temporary,
                steps_per_frame=args.steps_per_frame,
                options=FileOptions(
                    identity=args.identity, alignment=args.alignment, limits=limits_of(args)
                ),
                **storage,
            )
            _compare(episode, temporary, args, fits_sidecars=in_place and bool(sidecars))
            after = os.stat(temporary).st_size
        facts: dict[str, object] = {"steps": episode.length}
        if args.overview:
            facts["overview"] = write_overviews(args.output, limits=limits_of(args))
        before = sum(one.header.total_file_size for one in (origin.reader, *origin.chunks))
        what = count(episode.length, "step")
    if sidecars and not in_place:
        console.note(
            f"{count(len(sidecars), 'sidecar')} beside {args.file} not copied; "
            "'wshard compact' folds them in"
        )
    return _report(console, args, what, (before, after), **facts)


def _compare(
    episode: Episode, written: str, args: argparse.Namespace, *, fits_sidecars: bool
) -> None:
    """Reads the new file back: it must hold the same, and the sidecars beside it must still fit."""
    from shard_cli.kinds.model import open_episode
    from shard_format.errors import IdentityMismatch, InvalidArgument
    from wshard.editing import differences, fingerprint

    with open_episode(written, args, sidecars=False) as copy:
        found = differences(episode, copy)
        if found:
            raise IdentityMismatch(
                f"the new file differs: {found[0].detail}",
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


SHARD = arg.Command(
    "repack",
    _run,
    (
        arg.positional("file", "IN", "the file to read"),
        arg.positional("output", "OUT", "the file to write; IN itself with --force"),
        *arg.storage("that of each entry", "that of IN"),
        arg.repeated("--only PATTERN", "keep only entries whose names match"),
        arg.repeated("--drop PATTERN", "leave out entries whose names match"),
        arg.force(),
        arg.MAX_DECOMPRESSED,
    ),
    """
rewrite a file: compression, frames, fewer entries

Keeps order, role, content types, tags and all fields of the schema section. Reads the new
file back and compares it before it is put in place.

shard repack in.shard out.shard -c zstd:19              # compress everything
shard repack in.shard out.shard -c none --alignment 64  # ready for mmap
shard repack in.shard out.shard --frame-bytes 1M        # seekable zstd entries
shard repack in.shard out.shard --drop 'debug/*'        # without some entries
shard repack data.shard data.shard -c zstd --force      # in place
""",
)
WSHARD = arg.Command(
    "repack",
    _run_episode,
    (
        arg.EPISODE_OR_MANIFEST,
        *episode_options.output("the episode to write; FILE itself with --force"),
        arg.option(
            "--steps-per-frame N",
            "decode N steps of large zstd blocks together (default: chosen by size)",
        ),
        arg.alignment((0, 16, 32, 64), None, "that of FILE"),
        arg.option(
            "--identity",
            "store the episode's identity, or not (default: as FILE does)",
            action=argparse.BooleanOptionalAction,
        ),
        arg.option(
            "--overview",
            "write OUT.overview: minimum, maximum and mean of long channels, and small images of "
            "cameras, which viewers show at once",
            action="store_true",
        ),
        *episode_options.storage("blocks stay as they are stored"),
    ),
    """
store an episode in another way

Without options every block stays as it is stored. Reads the new file back and compares it
before it is put in place.

wshard repack ep.wshard -o small.wshard --profile training    # smallest, fast windows
wshard repack ep.wshard -o out.wshard --profile exchange      # for all readers
wshard repack ep.wshard -o raw.wshard -c none                 # every array a view of the file
wshard repack ep.wshard -o out.wshard -c zstd -c rgb=zstd:19  # by channel
wshard repack ep.wshard -o ep.wshard --identity --force       # in place
wshard repack ep.wshard -o ep.wshard --overview --force       # add overviews for viewers
""",
)
