"""`shard create`: a new file from files, folders and stdin."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_dry_run, add_force, add_storage, parse_storage
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.text import count, percent, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.inputs import Input, Inputs
    from shard_cli.output import Console
    from shard_cli.progress import Progress

_SUFFIXES_BY_TYPE = {
    "json": "json",
    "text": "txt md csv tsv log yaml yml toml xml html",
    "image": "png jpg jpeg gif bmp webp tif tiff",
    "audio": "wav flac mp3 ogg opus",
    "video": "mp4 mkv webm avi mov",
    "protobuf": "pb",
}
_TYPE_BY_SUFFIX = {
    suffix: kind for kind, suffixes in _SUFFIXES_BY_TYPE.items() for suffix in suffixes.split()
}
# What verifying will ask of a file with this role (S-ROL-2, S-ROL-3).
_PROMISED_ENTRIES = {4: "meta/manifest", 5: "meta/episode"}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("output", metavar="OUT", help="the file to write")
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="a file, a folder (all files in it), NAME=PATH, or NAME=- for stdin",
    )
    add_storage(parser, compression="none", alignment="64")
    parser.add_argument("--role", default="unknown", help="name or number (default: unknown)")
    parser.add_argument(
        "--content-type",
        default="auto",
        metavar="TYPE",
        help="name or number for all entries; auto goes by the suffix (default: auto)",
    )
    parser.add_argument("--prefix", default="", metavar="TEXT", help="put TEXT before all names")
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="tag all entries; may be repeated"
    )
    parser.add_argument("--schema", metavar="FILE.json", help="the schema section, a JSON object")
    parser.add_argument(
        "--identity", action="store_true", help="add the entry meta/identity, for later checking"
    )
    add_force(parser, "replace OUT if it exists")
    add_dry_run(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.copying import Storage, write_content
    from shard_cli.inputs import collect
    from shard_format import ShardWriter
    from shard_format.codecs import NO_COMPRESSION
    from shard_format.registry import parse_content_type, parse_role

    compression = parse_storage(args) or NO_COMPRESSION
    if args.content_type != "auto":
        args.content_type = parse_content_type(args.content_type)
    role = parse_role(args.role)
    refuse_overwrite(args.output, force=args.force)
    inputs = collect(args.inputs, prefix=args.prefix, output=args.output)
    for path, reason in inputs.skipped:
        console.warn(f"skipped {path}: {reason}")
    promised = _PROMISED_ENTRIES.get(role)
    if promised is not None and all(file.name != promised for file in inputs.files):
        console.warn(f"the role promises an entry {promised}, which is not among the inputs")
    schema = None if args.schema is None else _read_schema(args.schema)
    if not args.dry_run:
        with (
            console.progress(f"create {args.output}") as bar,
            ShardWriter(
                args.output,
                role=role,
                alignment=64 if args.alignment is None else args.alignment,
                compression=compression,
                names=[file.name for file in inputs.files],
                schema=schema,
                identity=args.identity,
            ) as writer,
        ):
            packing = _Packing(bar, sum(file.size or 0 for file in inputs.files))
            for file in inputs.files:
                kind = _content_type(file, args.content_type)
                storage = Storage(compression, args.frame_bytes, kind, args.tag)
                write_content(writer, file.name, packing.counted(file), file.size, storage, console)
                console.detail(printable(file.name))
    _report(args, inputs, console)
    return Exit.OK


class _Packing:
    """Tells the bar how far all inputs together are."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._total = total
        self._done = 0

    def counted(self, file: Input) -> Iterator[bytes]:
        for piece in file.iter_pieces():
            yield piece
            self._done += len(piece)
            self._bar.update(self._done, max(self._total, self._done))


def _content_type(file: Input, wanted: str | int) -> str | int:
    if wanted != "auto":
        return wanted
    # Either may have a suffix: `page.html=-`, `page=index.html`.
    suffixes = [os.path.splitext(text)[1][1:].lower() for text in (file.path, file.name)]
    known = [_TYPE_BY_SUFFIX[suffix] for suffix in suffixes if suffix in _TYPE_BY_SUFFIX]
    return known[0] if known else "unknown"


def _read_schema(path: str) -> dict[str, Any]:
    from shard_format._json import parse_object
    from shard_format.errors import ShardError, ShardIOError
    from shard_format.registry import DEFAULT_LIMITS
    from shard_format.schema import Schema

    try:
        with open(path, "rb") as file:
            text = file.read(DEFAULT_LIMITS.max_json_bytes + 1)
        return Schema(parse_object(text, "the schema", DEFAULT_LIMITS)).fields
    except ShardError as error:
        raise error.located(path=path) from None
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", path) from error


def _report(args: argparse.Namespace, inputs: Inputs, console: Console) -> None:
    content = sum(file.size or 0 for file in inputs.files)
    written = None if args.dry_run else os.stat(args.output).st_size
    if console.as_json:
        console.document(
            {
                "output": args.output,
                "dry_run": args.dry_run,
                "entries": [
                    {"name": file.name, "path": file.path, "size": file.size}
                    for file in inputs.files
                ],
                "file_size": written,
                "skipped": [{"path": path, "reason": why} for path, why in inputs.skipped],
            }
        )
        return
    entries = count(len(inputs.files), "entry")
    skipped = f"; skipped {count(len(inputs.skipped), 'file')}" if inputs.skipped else ""
    if written is None:
        for file in inputs.files:
            console.line(f"{printable(file.name)}\t{'-' if file.size is None else file.size}")
        console.said(f"would write {entries}, {size(content)}{skipped}")
        return
    packed = f"{entries}, {size(written)}"
    if all(file.size is not None for file in inputs.files) and content:
        packed += f" ({percent(written, content)} of {size(content)})"
    console.said(f"{printable(args.output)}: {packed}{skipped}")


COMMAND = Command(
    name="create",
    summary="make a file from files, folders or stdin",
    description="Names are the file names, or for a folder the paths inside it. Links inside folders\n"
    "and special files are skipped and counted.",
    examples=(
        ("shard create data.shard images/ notes.txt", "a folder and a file"),
        ("shard create data.shard -c zstd weights=model.bin", "compressed, under another name"),
        ("shard create data.shard -c zstd --frame-bytes 1M big.bin", "seekable"),
        ("curl -s URL | shard create data.shard page.html=-", "from stdin"),
        ("shard create --dry-run data.shard images/", "what would be packed"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
