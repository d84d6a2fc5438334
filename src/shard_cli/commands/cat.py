"""`cat` and `get`: contents to stdout or to a file."""

from __future__ import annotations

import argparse
import base64
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.files import STDIN, refuse_overwrite, same_file
from shard_cli.kinds import readable_kind
from shard_cli.text import printable, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_cli.console import Console
    from shard_cli.kinds.model import NamedContent

# This much is enough to tell text from binary.
_LOOK_BYTES: Final = 4096
_LONGEST_FILE_NAME: Final = 255
# What file systems reject, or what means something to one of them or to a shell.
_UNWANTED: Final = re.compile(r'[\x00-\x1f\x7f-\x9f<>:"|?*]')


def range_argument(text: str) -> tuple[int, int | None]:
    """Start and stop from `START:STOP`; either may be left out."""
    match = re.fullmatch(r"([0-9]{0,19}):([0-9]{0,19})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range; write START:STOP in bytes")
    return int(match[1] or 0), int(match[2]) if match[2] else None


def _key_of(member: NamedContent, *more: str) -> dict[str, Any]:
    return {name: value for name, value in member.fields.items() if name in ("key", *more)}


# --- cat


def _cat(args: argparse.Namespace, console: Console) -> Exit:
    kind, wanted = readable_kind(args.file, console.program), args.range
    # A wrong name or a wrong range raises before anything is printed.
    with kind.members(args.file, args.names, args) as members:
        if console.as_json and args.metadata:
            console.document({"file": args.file, **_key_of(members[0], "metadata")})
            return Exit.OK
        if console.as_json:
            entries = [_content_fields(member, wanted) for member in members]
            console.document({"file": args.file, **_key_of(members[0]), "entries": entries})
            return Exit.OK
        if console.out_is_terminal and not args.force:
            for member in members:
                _refuse_binary(member, wanted, args.file, console)
        sys.stdout.flush()
        for member in members:
            for piece in member.pieces(wanted):
                sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return Exit.OK


def _refuse_binary(
    member: NamedContent, wanted: tuple[int, int | None] | None, path: str, console: Console
) -> None:
    from shard_format.errors import InvalidArgument

    piece = next(iter(member.pieces(wanted)), b"")
    if not is_text(bytes(piece[:_LOOK_BYTES])):
        raise InvalidArgument(
            "this is binary data, and stdout is a terminal",
            path=path,
            entry=member.fields["name"],
            hint=f"redirect it, use '{console.program} get', or pass --force",
        )


def is_text(data: bytes) -> bool:
    """Whether a terminal can show it."""
    # The last character may be cut. Escape sequences count as binary: a terminal would obey them.
    text = data.decode("utf-8", errors="ignore")
    return len(text.encode()) >= len(data) - 3 and all(
        character.isprintable() or character in "\t\n\r" for character in text
    )


def _content_fields(member: NamedContent, wanted: tuple[int, int | None] | None) -> dict[str, Any]:
    """Content as `--json` shows it: as text, or as base64 if it is not UTF-8."""
    data = b"".join(member.pieces(wanted))
    try:
        encoding, text = "utf-8", data.decode("utf-8")
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(data).decode("ascii")
    fields = {key: value for key, value in member.fields.items() if key != "key"}
    return {**fields, "size": len(data), "encoding": encoding, "data": text}


# --- get


def _get(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.atomic import write_file
    from shard_format.errors import InvalidArgument

    if args.output == STDIN:
        hint = f"'{console.program} cat' writes to stdout"
        raise InvalidArgument("get writes to a file", hint=hint)
    kind = readable_kind(args.file, console.program)
    with kind.members(args.file, args.names, args) as members:
        if len(members) > 1:
            raise InvalidArgument("get writes one entry", found=f"{len(members)} names")
        member = members[0]
        path = args.output or file_name(member.name)
        refuse_overwrite(path, force=args.force)
        if any(same_file(path, file) for file in kind.files(args.file)):
            raise InvalidArgument("this would replace the file that is being read", path=path)
        with console.progress(f"get {member.name}") as bar:
            add = bar.adding_to(member.size)

            def counted() -> Iterator[bytes | memoryview]:
                for piece in member.pieces(None):
                    yield piece
                    add(len(piece))

            written = write_file(path, counted(), fsync=False)
    facts = {"entry": member.fields["name"], "output": path, "size": written}
    shown = f"{printable(path)}: {size(written)}"
    console.report({"file": args.file, **_key_of(member), **facts}, shown)
    return Exit.OK


def file_name(name: str) -> str:
    """A plain file name for an entry: the last part of its name, without dangerous characters."""
    last = re.split(r"[/\\]", name)[-1]
    # Not printable: direction marks and other invisible characters.
    plain = "".join(c if c.isprintable() else "_" for c in _UNWANTED.sub("_", last))
    plain = plain.encode()[:_LONGEST_FILE_NAME].decode(errors="ignore")
    return "entry" if plain.strip(". ") == "" else plain


CAT = arg.Command(
    "cat",
    _cat,
    (
        arg.FILE,
        arg.positional(
            "names",
            "ENTRY",
            "names of entries, in order; for a pack, the key of a record and names of its entries",
            nargs="+",
        ),
        arg.option(
            "--range START:STOP",
            "only these bytes of each entry; you may leave out either end; not for packs",
            type=range_argument,
        ),
        arg.flag(
            "--metadata", "for a pack: the metadata of a record, as JSON, in place of entries"
        ),
        arg.force("also write binary data to a terminal"),
        arg.MAX_DECOMPRESSED,
    ),
    """
write entries to stdout

Entries are checked against their checksum; a mismatch is reported after the last byte, in a pack before the first.
With --json the document holds the data as text, or as base64 if it is not UTF-8.

shard cat episode.wshard meta/episode | jq .  # a metadata entry
shard cat data.shard signal/rgb > rgb.bin     # any entry, streamed
shard cat data.shard log --range 0:1000       # its first 1000 bytes
shardpack cat train-000000.shardpack cats/0001 json | jq .  # one entry of record cats/0001
shardpack cat train-000000.shardpack cats/0001 --metadata   # what is known about the record
shardpack cat 'train-*.shardpack' cats/0001 jpg > cat.jpg   # from a set of shards
""",
)
GET = arg.Command(
    "get",
    _get,
    (
        arg.FILE,
        arg.positional(
            "names",
            "ENTRY",
            "the name of an entry; for a pack, the key of a record and the name of its entry",
            nargs="+",
        ),
        arg.option(
            "-o --output OUT",
            "the file to write (default: the last part of the name, or of KEY.NAME for a pack, in the "
            "current folder)",
        ),
        arg.force(),
        arg.MAX_DECOMPRESSED,
    ),
    """
write one entry to a file

The file appears when it is complete and its checksum matches.

shard get data.shard images/0001.png                 # to 0001.png in the current folder
shard get data.shard weights -o weights.bin          # to a file of your choice
shard get data.shard weights -o weights.bin --force  # and replace it
shardpack get train-000000.shardpack cats/0001 jpg     # to 0001.jpg in the current folder
shardpack get train/ cats/0001 jpg -o cat.jpg --force  # to a file of your choice
""",
)
