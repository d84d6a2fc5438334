"""`shard create`: a new container from files, folders and stdin."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.files import (
    STDIN,
    kind_of,
    read_argument,
    refuse_overwrite,
    same_file,
    write_content,
)
from shard_cli.text import count, percent, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from shard_cli.console import Console

_SUFFIXES_BY_TYPE: Final = {
    "json": "json",
    "text": "txt md csv tsv log yaml yml toml xml html",
    "image": "png jpg jpeg gif bmp webp tif tiff",
    "audio": "wav flac mp3 ogg opus",
    "video": "mp4 mkv webm avi mov",
    "protobuf": "pb",
}
_TYPE_BY_SUFFIX: Final = {
    suffix: kind for kind, suffixes in _SUFFIXES_BY_TYPE.items() for suffix in suffixes.split()
}
# What verifying will ask of a file with this role (S-ROL-2, S-ROL-3).
_PROMISED_ENTRIES: Final = {4: "meta/manifest", 5: "meta/episode"}
_PIECE: Final = 1 << 20


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format import ShardWriter, WriterOptions
    from shard_format.codecs import NO_COMPRESSION
    from shard_format.registry import parse_content_type, parse_role

    compression = arg.parse_storage(args) or NO_COMPRESSION
    kind = None if args.content_type == "auto" else parse_content_type(args.content_type)
    role = parse_role(args.role)
    refuse_overwrite(args.output, force=args.force)
    inputs = _InputFiles(args.output)
    for argument in args.inputs:
        inputs.add(args.prefix, *arg.split_name(argument))
    for one in inputs.skipped:
        console.warn(f"skipped {one['path']}: {one['reason']}")
    promised = _PROMISED_ENTRIES.get(role)
    if promised is not None and promised not in inputs.files:
        console.warn(f"files of this role have an entry {promised}, which is not among the inputs")
    schema = None if args.schema is None else _read_schema(args.schema)
    if not args.dry_run:
        with (
            console.progress(f"create {args.output}") as bar,
            ShardWriter(
                args.output,
                role=role,
                alignment=64 if args.alignment is None else args.alignment,
                compression=compression,
                reserve=list(inputs.files),
                identity=args.identity,
                options=WriterOptions(schema=schema),
            ) as writer,
        ):
            add = bar.adding_to(inputs.size)
            for name, (path, nbytes) in inputs.files.items():
                storage: dict[str, Any] = {
                    "compression": compression,
                    "frame_bytes": args.frame_bytes,
                    "content_type": _content_type(path, name) if kind is None else kind,
                    "tags": args.tag,
                }
                write_content(writer, name, _pieces(path, add), nbytes, storage, console)
                console.detail(printable(name))
    _report(args, inputs, console)
    return Exit.OK


def _pieces(path: str, add: Callable[[int], None]) -> Iterator[bytes]:
    """The content of a file, or of stdin."""
    with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece
            add(len(piece))


def _content_type(path: str, name: str) -> str:
    # Either may have a suffix: `page.html=-`, `page=index.html`.
    suffixes = [os.path.splitext(text)[1][1:].lower() for text in (path, name)]
    return next((kind for kind in map(_TYPE_BY_SUFFIX.get, suffixes) if kind), "unknown")


def _read_schema(path: str) -> dict[str, Any]:
    from shard_format.canonical_json import parse_object
    from shard_format.errors import ShardError
    from shard_format.registry import DEFAULT_LIMITS
    from shard_format.schema import Schema

    text = read_argument(path)
    try:
        return Schema(parse_object(text, "the schema", DEFAULT_LIMITS)).fields
    except ShardError as error:
        raise error.located(path=path) from None


def _report(args: argparse.Namespace, inputs: _InputFiles, console: Console) -> None:
    written = None if args.dry_run else os.stat(args.output).st_size
    entries = count(len(inputs.files), "entry")
    if written is None:
        for name, (_, nbytes) in () if console.as_json else inputs.files.items():
            console.line(f"{printable(name)}\t{'-' if nbytes is None else nbytes}")
        text = f"would write {entries}, {size(inputs.size)}"
    else:
        text = f"{printable(args.output)}: {entries}, {size(written)}"
        if inputs.size and all(nbytes is not None for _, nbytes in inputs.files.values()):
            text += f" ({percent(written, inputs.size)} of {size(inputs.size)})"
    skipped = f"; skipped {count(len(inputs.skipped), 'file')}" if inputs.skipped else ""
    console.report(
        {
            "output": args.output,
            "dry_run": args.dry_run,
            "entries": [
                {"name": name, "path": path, "size": nbytes}
                for name, (path, nbytes) in inputs.files.items()
            ],
            "file_size": written,
            "skipped": inputs.skipped,
        },
        text + skipped,
    )


def _children(folder: str, prefix: str) -> list[tuple[str, os.DirEntry[str]]]:
    """What is in a folder, under the names of entries, the last one first."""
    with os.scandir(folder) as scan:
        children = sorted(scan, key=lambda child: os.fsencode(child.name), reverse=True)
    return [(prefix + child.name, child) for child in children]


class _InputFiles:
    """Everything that the arguments name, in order; folders sorted.

    Args:
        output: the file to be written, which is never one of the inputs.
    """

    def __init__(self, output: str) -> None:
        self._output = output
        self.files: dict[str, tuple[str, int | None]] = {}
        """Path and size by name. The size is None where only reading shows it: stdin and pipes."""
        self.skipped: list[dict[str, str]] = []
        """Paths that are not packed, with the reason."""

    @property
    def size(self) -> int:
        """Bytes of the files whose size is known."""
        return sum(nbytes or 0 for _, nbytes in self.files.values())

    def add(self, prefix: str, name: str, path: str) -> None:
        """Adds a file, a folder or stdin; `name` is empty if none was given."""
        from shard_format.errors import InvalidArgument, ShardIOError

        if path == STDIN:
            if not name:
                raise InvalidArgument("stdin needs a name", expected="NAME=-", found="-")
            self._add_file(prefix + name, STDIN, None)
            return
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", path) from error
        if stat.S_ISDIR(mode):
            if os.path.islink(path):
                raise InvalidArgument(
                    "a symbolic link to a folder is not followed",
                    path=path,
                    hint="pass the folder itself, or put a / behind the link",
                )
            self._add_folder(path, prefix + (f"{name}/" if name else ""))
        elif stat.S_ISSOCK(mode) or stat.S_ISBLK(mode):
            self._skip(path, kind_of(mode))
        else:
            # A pipe given by hand, as the shell's <(…) is one, can be read once: that is enough.
            self._add_file(prefix + (name or os.path.basename(path)), path, mode)

    def _add_folder(self, folder: str, prefix: str) -> None:
        waiting = _children(
            folder, prefix
        )  # a list, because folders can be deeper than Python's stack
        while waiting:
            name, child = waiting.pop()
            mode = child.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                waiting += _children(child.path, f"{name}/")
            elif stat.S_ISREG(mode):
                self._add_file(name, child.path, mode)
            else:
                self._skip(child.path, kind_of(mode))

    def _add_file(self, name: str, path: str, mode: int | None) -> None:
        from shard_format.errors import InvalidArgument

        if mode is not None and same_file(path, self._output):
            self._skip(path, "the output itself")
            return
        if name in self.files:
            raise InvalidArgument(
                f"{self.files[name][0]} and {path} would have the same name",
                entry=name,
                rule="S-NAM-4",
                hint="rename one with NAME=PATH",
            )
        is_regular = mode is not None and stat.S_ISREG(mode)
        self.files[name] = path, os.stat(path).st_size if is_regular else None

    def _skip(self, path: str, reason: str) -> None:
        self.skipped.append({"path": path, "reason": reason})


SHARD = arg.Command(
    "create",
    _run,
    (
        arg.positional("output", "OUT", "the file to write"),
        arg.positional(
            "inputs",
            "INPUT",
            "a file, a folder (all files in it), NAME=PATH, or NAME=- for stdin",
            nargs="+",
        ),
        *arg.storage("none", "64"),
        arg.option(
            "--role ROLE", "role of the file, name or number (default: unknown)", default="unknown"
        ),
        arg.option(
            "--content-type TYPE",
            "content type of all entries, name or number; auto chooses by the suffix (default: auto)",
            default="auto",
        ),
        arg.option("--prefix TEXT", "put TEXT before every name", default=""),
        arg.repeated("--tag TAG", "add TAG to every entry"),
        arg.option("--schema JSON", "a file with the schema section, a JSON object"),
        arg.flag(
            "--identity", "add the entry meta/identity, so that the content can be checked later"
        ),
        arg.force(),
        arg.DRY_RUN,
    ),
    """
make a file from files, folders or stdin

Entries have the names of the files, or for a folder the paths inside it. Links inside folders and
special files are skipped and counted.

shard create data.shard images/ notes.txt                 # a folder and a file
shard create data.shard -c zstd weights=model.bin         # compressed, under another name
shard create data.shard -c zstd --frame-bytes 1M big.bin  # seekable
curl -s URL | shard create data.shard page.html=-         # from stdin
shard create --dry-run data.shard images/                 # what would be packed
""",
)
