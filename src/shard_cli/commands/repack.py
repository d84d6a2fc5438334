"""`shard repack`: the same entries, stored in another way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import (
    Command,
    add_force,
    add_max_decompressed,
    add_storage,
    parse_storage,
)
from shard_cli.exits import Exit, message_of
from shard_cli.files import beside, put_in_place, refuse_overwrite, same_file
from shard_cli.opening import limits_with, open_shard
from shard_cli.selection import choose
from shard_cli.text import count, percent, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.copying import Storage
    from shard_cli.output import Console
    from shard_cli.progress import Progress
    from shard_format import Compression, EntryInfo, Filters, Schema, ShardReader


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="IN", help="the file to read")
    parser.add_argument("output", metavar="OUT", help="the file to write; IN itself with --force")
    add_storage(parser, compression="that of each entry", alignment="that of IN")
    for option, what in (("--only", "keep only"), ("--drop", "leave out")):
        parser.add_argument(
            option,
            action="append",
            default=[],
            metavar="PATTERN",
            help=f"{what} entries whose name fits; may be repeated",
        )
    add_force(parser, "replace OUT if it exists")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    compression = parse_storage(args)
    refuse_overwrite(args.output, force=args.force)
    if same_file(args.file, args.output):
        console.note(f"{args.output} is replaced when the new file is complete and checked")
    with open_shard(args.file, max_decompressed=args.max_decompressed) as reader:
        repacking = _Repacking(reader, args, compression, console)
        temporary = beside(args.output)
        try:
            repacking.write(temporary)
            repacking.check(temporary)
            before = reader.header.total_file_size
            after = os.stat(temporary).st_size
            put_in_place(temporary, args.output)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
    facts: dict[str, Any] = {
        "file": args.file,
        "output": args.output,
        "entries": repacking.count,
        "dropped": repacking.dropped,
        "size_before": before,
        "size_after": after,
        "identity": repacking.identity,
    }
    if console.as_json:
        console.document(facts)
    dropped = f", {len(repacking.dropped):,} dropped" if repacking.dropped else ""
    console.said(
        f"{printable(args.output)}: {count(repacking.count, 'entry')}{dropped}, "
        f"{size(before)} before, {size(after)} after ({percent(after, before)})"
    )
    return Exit.OK


class _Repacking:
    """One file on its way into another. Owns: what is kept, and the hashes of what went through."""

    def __init__(
        self,
        reader: ShardReader,
        args: argparse.Namespace,
        compression: Compression | None,
        console: Console,
    ) -> None:
        from shard_format.identity import IDENTITY_ENTRY

        self._reader = reader
        self._args = args
        self._compression = compression
        self._console = console
        names = choose(reader, args.only) if args.only else reader.names()
        gone = set(choose(reader, args.drop)) if args.drop else set()
        self.kept = [name for name in names if name not in gone and name != IDENTITY_ENTRY]
        staying = {*self.kept, IDENTITY_ENTRY}
        self.dropped = [name for name in reader.names() if name not in staying]
        self._carries_identity = IDENTITY_ENTRY in reader and IDENTITY_ENTRY not in gone
        self.identity = "none"
        """What became of a stored identity: none, rewritten or dropped."""
        self._hashes: dict[str, str] = {}
        self._done = 0

    @property
    def count(self) -> int:
        """Entries of the new file."""
        return len(self.kept) + (self.identity == "rewritten")

    def write(self, path: str) -> None:
        """Writes the new file to a path of its own."""
        from shard_cli.copying import write_content
        from shard_format import ShardWriter

        reader, args = self._reader, self._args
        header = reader.header
        self._judge_identity()
        infos = [reader.info(name) for name in self.kept]
        total = sum(info.size for info in infos)
        with (
            self._console.progress("repack") as bar,
            ShardWriter(
                path,
                role=reader.role,
                alignment=header.alignment if args.alignment is None else args.alignment,
                compression=self._compression,
                names=self.kept,
                schema=self._schema(),
                identity=self.identity == "rewritten",
                limits=reader.limits,
            ) as writer,
        ):
            for info in infos:
                pieces = self._hashed(info.name, bar, total)
                storage = self._storage(info)
                write_content(writer, info.name, pieces, info.size, storage, self._console)
                self._console.detail(printable(info.name))

    def check(self, path: str) -> None:
        """Reads the new file back: it must hold what was read from the old one."""
        from shard_format import ShardReader, compute_identity
        from shard_format.errors import IdentityMismatch

        limits = limits_with(self._args.max_decompressed)
        with ShardReader(path, limits=limits) as written, self._console.progress("check") as bar:
            found = compute_identity(written, progress=bar.update).entries
        if found != self._hashes:
            raise IdentityMismatch(
                "the new file does not hold what was read; it was not put in place",
                path=self._args.output,
            )

    def _judge_identity(self) -> None:
        """A stored identity is made anew only if it was right: a wrong one must not become right."""
        from shard_format import verify_identity
        from shard_format.errors import BadMetadata, IdentityMismatch

        if not self._carries_identity:
            return
        try:
            with self._console.progress("check identity") as bar:
                verify_identity(self._reader, progress=bar.update)
            self.identity = "rewritten"
        except (IdentityMismatch, BadMetadata) as error:
            self.identity = "dropped"
            self._console.warn(f"the stored identity is wrong and left out: {message_of(error)}")

    def _hashed(self, name: str, bar: Progress, total: int) -> Iterator[memoryview]:
        import hashlib

        digest = hashlib.sha256()
        for piece in self._reader.iter_entry(name):
            digest.update(piece)
            yield piece
            self._done += len(piece)
            bar.update(self._done, total)
        self._hashes[name] = digest.hexdigest()

    def _storage(self, info: EntryInfo) -> Storage:
        from shard_cli.copying import Storage
        from shard_format.codecs import Codec, Compression

        compression = self._compression or Compression(info.codec)
        frame_bytes = None
        if compression.codec is Codec.ZSTD:
            frame_bytes = self._args.frame_bytes or self._frame_bytes_now(info.name)
        filters = None
        if info.filtered and compression.codec is Codec.ZSTD:
            filters = self._filters_kept(info, frame_bytes)
        return Storage(compression, frame_bytes, info.content_type, info.tag_bits, filters)

    def _filters_kept(self, info: EntryInfo, frame_bytes: int | None) -> Filters | None:
        """The filters of an entry, unless frames of the new size cannot have them."""
        from shard_format.filters import LARGEST_FRAME

        filters = self._reader.filters(info.name)
        largest = info.size if frame_bytes is None else frame_bytes
        if filters is None or largest > LARGEST_FRAME or (frame_bytes or 0) % filters.unit:
            return None
        return filters

    def _frame_bytes_now(self, name: str) -> int | None:
        """The frame size of an entry that is seekable already."""
        table = self._reader.seek_table(name)
        return None if table is None or len(table) == 0 else int(table.content_starts[1]) or None

    def _schema(self) -> Schema | None:
        """The schema section with all its fields, without what it says about dropped entries."""
        from shard_format.schema import Schema

        schema = self._reader.schema
        if schema is None or not self.dropped or "entry_metadata" not in schema.fields:
            return schema
        fields = dict(schema.fields)
        gone = set(self.dropped)
        fields["entry_metadata"] = {
            name: facts for name, facts in schema.entry_metadata.items() if name not in gone
        }
        changed = Schema(fields)
        if fields.get("schema_id") == schema.schema_id():
            changed.fields["schema_id"] = changed.schema_id()
        return changed


COMMAND = Command(
    name="repack",
    summary="rewrite a file: compression, alignment, frames, fewer entries",
    description="Keeps order, role, content types, tags and all fields of the schema section. The new\n"
    "file is read back and compared before it is put in place.",
    examples=(
        ("shard repack in.shard out.shard -c zstd:19", "compress everything"),
        ("shard repack in.shard out.shard -c none --alignment 64", "ready for mmap"),
        ("shard repack in.shard out.shard --frame-bytes 1M", "seekable zstd entries"),
        ("shard repack in.shard out.shard --drop 'debug/*'", "without some entries"),
        ("shard repack data.shard data.shard -c zstd --force", "in place"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
