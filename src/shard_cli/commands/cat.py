"""`shard cat`: entries to stdout."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_force, add_max_decompressed, range_argument
from shard_cli.exits import Exit
from shard_cli.opening import open_shard
from shard_cli.pack_files import is_pack

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.output import Console
    from shard_format import ShardReader

# As much as is looked at to tell text from binary.
_LOOK_BYTES = 4096
_RANGE_BYTES = 4 << 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file of the Shard family")
    parser.add_argument("entries", nargs="+", metavar="ENTRY", help="names of entries, in order")
    parser.add_argument(
        "--range",
        type=range_argument,
        metavar="START:STOP",
        help="only these bytes of each entry; either end may be left out",
    )
    add_force(parser, "write binary data to a terminal too")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    if is_pack(args.file):
        return _of_pack(args, console)
    with open_shard(args.file, max_decompressed=args.max_decompressed) as reader:
        # Nothing is printed if one of the names is wrong.
        infos = [reader.info(name) for name in args.entries]
        if console.as_json:
            entries = [_fields(reader, name, args.range) for name in args.entries]
            console.document({"file": args.file, "entries": entries})
            return Exit.OK
        if console.out_is_terminal and not args.force:
            for info in infos:
                _refuse_binary(reader, info.name, args.range)
        sys.stdout.flush()
        for name in args.entries:
            for piece in iter_content(reader, name, args.range):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return Exit.OK


def _of_pack(args: argparse.Namespace, console: Console) -> Exit:
    """Of a pack, the first name is a key."""
    from shard_cli.commands.packs.cat import write_entries
    from shard_format.errors import InvalidArgument

    if len(args.entries) < 2 or args.range is not None:
        raise InvalidArgument(
            "this is a pack of samples",
            path=args.file,
            expected="the key of a record, and names of its entries: FILE KEY NAME",
        )
    return write_entries(
        args.file,
        args.entries[0],
        args.entries[1:],
        console,
        force=args.force,
        max_decompressed=args.max_decompressed,
    )


def iter_content(
    reader: ShardReader, name: str, wanted: tuple[int, int | None] | None
) -> Iterator[bytes | memoryview]:
    """The bytes of an entry, or of a range of it, in pieces."""
    if wanted is None:
        yield from reader.iter_entry(name)
        return
    start, stop = _bounds(reader, name, wanted)
    # An entry that is compressed as a whole is decoded for every range: ask once.
    in_parts = reader.info(name).codec == 0 or reader.seek_table(name) is not None
    step = _RANGE_BYTES if in_parts else max(stop - start, 1)
    for at in range(start, stop, step):
        yield reader.read_range(name, at, min(at + step, stop))


def _bounds(reader: ShardReader, name: str, wanted: tuple[int, int | None]) -> tuple[int, int]:
    from shard_format.errors import InvalidArgument

    size = reader.info(name).size
    start, stop = wanted[0], size if wanted[1] is None else wanted[1]
    if not start <= stop <= size:
        raise InvalidArgument(
            "the range is outside the entry",
            path=reader.name,
            entry=name,
            expected=f"START <= STOP <= {size}",
            found=f"{start}:{stop}",
        )
    return start, stop


def _refuse_binary(reader: ShardReader, name: str, wanted: tuple[int, int | None] | None) -> None:
    from shard_format.errors import InvalidArgument

    for piece in iter_content(reader, name, wanted):
        if is_text(bytes(piece[:_LOOK_BYTES])):
            return
        raise InvalidArgument(
            "this is binary data, and stdout is a terminal",
            path=reader.name,
            entry=name,
            hint="redirect it, use 'shard get', or give --force",
        )


def is_text(data: bytes) -> bool:
    """Whether a terminal can show it."""
    # The last character may be cut. Escape sequences count as binary: a terminal would obey them.
    text = data.decode("utf-8", errors="ignore")
    return len(text.encode()) >= len(data) - 3 and all(
        character.isprintable() or character in "\t\n\r" for character in text
    )


def _fields(
    reader: ShardReader, name: str, wanted: tuple[int, int | None] | None
) -> dict[str, Any]:
    return {"name": name, **data_fields(b"".join(iter_content(reader, name, wanted)))}


def data_fields(data: bytes) -> dict[str, Any]:
    """Content as `--json` shows it: as text, or as base64 where it is not UTF-8."""
    try:
        encoding, text = "utf-8", data.decode("utf-8")
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(data).decode("ascii")
    return {"size": len(data), "encoding": encoding, "data": text}


COMMAND = Command(
    name="cat",
    summary="write entries to stdout",
    description="Entries are checked against their checksum; a mismatch shows after the last byte.\n"
    "With --json the document holds the data as text, or as base64 where it is not UTF-8.",
    examples=(
        ("shard cat episode.wshard meta/episode | jq .", "a metadata entry"),
        ("shard cat data.shard signal/rgb > rgb.bin", "any entry, streamed"),
        ("shard cat data.shard log --range 0:1000", "its first 1000 bytes"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
