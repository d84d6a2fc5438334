"""`from-…`, `to-tar` and `to-table`: packs from other formats, and other formats from packs."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from shard_cli import arguments as arg
from shard_cli import pack_output
from shard_cli.exits import Exit
from shard_cli.files import STDIN, known_size
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shard_cli.console import Console
    from shardpack.writer_set import WrittenShards


def _convert(
    args: argparse.Namespace,
    console: Console,
    convert: Callable[..., WrittenShards],
    why: str,
    **options: Any,  # noqa: ANN401 - of the converter
) -> Exit:
    """Makes a pack of one argument: `tables` or `folder`."""
    name, of = ("files", args.tables) if "tables" in args else ("folder", args.folder)
    with pack_output.written_output(args, console) as (output, more):
        found = convert(of, output, **options, **more)
    return pack_output.report_converted(console, found, why, **{name: of})


# --- tar


def _from_tar(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert import from_tar
    from shardpack.dataset import expand

    tars = [one for tar in args.tars for one in ([tar] if tar == STDIN else expand(tar))]
    sources = [tar for tar in tars if tar != STDIN]
    with (
        pack_output.written_output(args, console, sources) as (output, options),
        console.progress("from-tar") as bar,
        ExitStack() as stack,
    ):
        add = bar.adding_to(sum(map(known_size, tars)))
        files = [stack.enter_context(closing(_CountedFile(tar, add))) for tar in tars]
        found = from_tar(
            cast("list[BinaryIO]", files),
            output,
            orphans="skip" if args.skip_orphans else "error",
            metadata_entry=args.metadata_entry,
            max_record_bytes=args.record_size_limit,
            **options,
        )
    return pack_output.report_converted(console, found, "it belongs to no sample", files=args.tars)


class _CountedFile:
    """A file that opens when it is read, and reports how much was read."""

    def __init__(self, path: str, progress: Callable[[int], None]) -> None:
        self.name = "<stdin>" if path == STDIN else path
        self._path = path
        self._file: Any = None
        self._progress = progress
        self._ended = False

    def read(self, size: int = -1) -> bytes:
        from shard_format.errors import ShardIOError

        if self._ended:
            return b""
        try:
            if self._file is None:
                is_stdin = self._path == STDIN
                self._file = sys.stdin.buffer if is_stdin else open(self._path, "rb")  # noqa: SIM115 - closed at its end
            data: bytes = self._file.read(size)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", self.name) from error
        if not data and size:
            self.close()
        self._progress(len(data))
        return data

    def close(self) -> None:
        self._ended = True
        if self._file is not None and self._path != STDIN:
            self._file.close()


def _to_tar(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.pack import files, open_watched
    from shardpack.convert import to_tar

    shards = files(args.file)
    output: Any = args.output
    options: dict[str, Any] = {}
    if output == STDIN:
        output = console.data_output("a tar file")
    else:
        target = pack_output.parse_target(args.output)
        if target.is_plain:
            # The user wants one file: the number in 0001.tar is only a name.
            target = target._replace(pattern=None)
        options = pack_output.prepare_target(target, args, shards)
        output = target.pattern or target.name
    with console.progress("to-tar") as bar, open_watched(shards, args, bar) as dataset:
        done = to_tar(
            dataset,
            output,
            metadata_entry=args.metadata_entry,
            exact=not args.inexact,
            max_bytes=args.tar_size,
            max_records=args.tar_records,
            **options,
        )
    if args.output == STDIN:
        return Exit.OK
    tars: list[dict[str, Any]] = [
        {"file": path, "size": os.stat(path).st_size} for path in done.paths
    ]
    console.report(
        {"file": args.file, "tars": tars, "records": done.records},
        f"{pack_output.shown_paths(done.paths)}: {count(done.records, 'record')} in "
        f"{count(len(tars), 'tar file')}, {size(sum(one['size'] for one in tars))}",
    )
    return Exit.OK


def _to_table(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.pack import files, open_watched
    from shardpack.convert import to_table

    shards = files(args.file)
    target = pack_output.OutputName(args.output, None)
    options = pack_output.prepare_target(target, args, shards)
    with console.progress("to-table") as bar, open_watched(shards, args, bar) as dataset:
        done = to_table(
            dataset,
            args.output,
            columns=args.column or None,
            entries=not args.fields_only,
            **options,
        )
    for change in done.changed:
        console.note(f"changed {change}")
    nbytes = os.stat(args.output).st_size
    console.report(
        {
            "file": args.file,
            "output": args.output,
            "records": done.records,
            "size": nbytes,
            "changed": done.changed,
        },
        f"{printable(args.output)}: {count(done.records, 'record')}, {size(nbytes)}",
    )
    return Exit.OK


# --- tables, images, MDS


def _columns(args: argparse.Namespace) -> dict[str, Any]:
    return {"key": args.key, "columns": args.column or None}


def _from_table(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert import from_table

    entries = arg.pairs_of(args.entry, "--entry")
    return _convert(args, console, from_table, "not asked for", entries=entries, **_columns(args))


def _from_images(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert import from_image_folder

    others = "skip" if args.skip_others else "error"
    why = "not an image of the dataset"
    return _convert(args, console, from_image_folder, why, others=others)


def _from_mds(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import limits_of
    from shardpack.convert import from_mds

    limits = limits_of(args)
    return _convert(args, console, from_mds, "not asked for", limits=limits, **_columns(args))


_COLUMNS: Final = (
    arg.option("--key COLUMN", "the column of the keys (default: the number of the row)"),
    arg.repeated("--column COLUMN", "read only this column"),
)

FROM_TAR = arg.Command(
    "from-tar",
    _from_tar,
    (
        arg.positional(
            "tars",
            "TAR",
            "tar files, also compressed, a pattern such as 'train-{000000..000009}.tar', or - for stdin",
            nargs="+",
        ),
        *pack_output.OUTPUT,
        *pack_output.STORAGE,
        arg.metadata(),
        arg.metadata_entry(
            "the name of a member that becomes the metadata of its record, such as the metadata.json of to-tar"
        ),
        arg.option(
            "--record-size-limit SIZE", "refuse samples above SIZE (default 1G)", default=1 << 30
        ),
        arg.flag(
            "--skip-orphans",
            "leave out members that belong to no sample, such as README; exit code 3",
        ),
    ),
    """
make a pack from tar files of samples

Reads a stream, with one sample in memory at a time. Neighbouring members with the same path up to
the first dot of the file name are one record: a/0001.left.jpg is entry left.jpg of record a/0001.
Keeps payloads byte for byte.

shardpack from-tar train-000000.tar -o train-000000.shardpack            # one file
shardpack from-tar 'train-{000000..000009}.tar' -o train-%06d.shardpack  # many, into shards of 1 GiB
curl -s URL | shardpack from-tar - -o train-%06d.shardpack -c lz4        # from a pipe
""",
)
TO_TAR = arg.Command(
    "to-tar",
    _to_tar,
    (
        arg.PACK,
        arg.option(
            "-o --output TAR",
            "the file to write, compressed if it ends in .tar.gz or .tar.zst; train-%%06d.tar for a "
            "set; - for stdout",
            required=True,
        ),
        arg.option(
            "--tar-size SIZE",
            "for a set: start a new file before one grows above SIZE (default 1G)",
            default=1 << 30,
        ),
        arg.option("--tar-records N", "for a set: start a new file after N records"),
        arg.option(
            "--metadata-entry NAME",
            "the member for the metadata of a record, if it has any (default: metadata.json)",
            default="metadata.json",
        ),
        arg.flag("--inexact", "also write records that would come back under another key"),
        arg.force("replace files of this name that exist"),
    ),
    """
write a pack as tar files of samples

Entry jpg of record a/0001 becomes the member a/0001.jpg, as WebDataset reads it. Entries are
decompressed. The same records give the same bytes.

shardpack to-tar train-000000.shardpack -o train-000000.tar  # one file
shardpack to-tar 'train-*.shardpack' -o train-%06d.tar       # files of 1 GiB
shardpack to-tar train-000000.shardpack -o - | tar t         # to a pipe
""",
)
FROM_TABLE = arg.Command(
    "from-table",
    _from_table,
    (
        arg.positional(
            "tables", "TABLE", ".parquet, .arrow or .feather files, or patterns", nargs="+"
        ),
        *pack_output.OUTPUT,
        *_COLUMNS,
        arg.repeated(
            "--entry COLUMN=NAME",
            "the name of the entry that a column becomes, such as text=text.txt",
        ),
        *pack_output.STORAGE,
        arg.metadata(),
    ),
    """
make a pack from Parquet or Arrow tables

Each row is a record. Bytes, images and lists of numbers become entries, everything else becomes
metadata of the record. Needs pyarrow, the extra 'arrow'.

shardpack from-table train.parquet -o train-%06d.shardpack --key id         # keys from a column
shardpack from-table 'part-*.parquet' -o t.shardpack --entry text=text.txt  # many files
""",
)
TO_TABLE = arg.Command(
    "to-table",
    _to_table,
    (
        arg.PACK,
        arg.option(
            "-o --output TABLE", "the file to write: .parquet, .arrow or .feather", required=True
        ),
        arg.repeated("--column NAME", "write only this field of the metadata, or this entry"),
        arg.flag("--fields-only", "leave out the entries, which are then not read"),
        arg.force("replace TABLE if it exists"),
    ),
    """
write a pack as a Parquet or Arrow table

Each record is a row: the column __key__, a column for each field of the metadata, and one of bytes for each
entry. Fields whose values have no type in common become JSON text, and are named. Needs pyarrow, the extra
'arrow'.

shardpack to-table 'train-*.shardpack' -o train.parquet --fields-only   # metadata, to look at it
shardpack to-table train.shardpack -o labels.parquet --column label     # keys and one field
shardpack to-table train.shardpack -o train.arrow                       # with all entries
""",
)
FROM_IMAGES = arg.Command(
    "from-images",
    _from_images,
    (
        arg.positional("folder", "FOLDER", "one split: the folder train, for example"),
        *pack_output.OUTPUT,
        arg.metadata(),
        arg.flag(
            "--skip-others",
            "leave out files that are not images or are not in the metadata; exit code 3",
        ),
    ),
    """
make a pack from a folder of images with labels

Rows of metadata.jsonl or metadata.csv are the records, with file_name and fields; without such a
file, the folder of an image is its label. 'shardpack create' packs any folder.

shardpack from-images data/train -o train-%06d.shardpack           # folders as labels
shardpack from-images data/train -o train.shardpack --skip-others  # images only
""",
)
FROM_MDS = arg.Command(
    "from-mds",
    _from_mds,
    (
        arg.positional("folder", "FOLDER", "the folder of index.json"),
        *pack_output.OUTPUT,
        *_COLUMNS,
        *pack_output.STORAGE,
        arg.metadata(),
        arg.MAX_DECOMPRESSED,
    ),
    """
make a pack from an MDS dataset

Bytes, text, JSON and images become entries as they are, arrays become .npy entries, numbers
become metadata of the record. Pickles are kept as bytes and never loaded.

shardpack from-mds mds/train -o train-%06d.shardpack                   # all columns, numbers as keys
shardpack from-mds mds/train -o train.shardpack --key id --column jpg  # one column
""",
)
