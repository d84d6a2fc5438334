"""`shardpack from-tar`: packs from tar files of samples."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from shard_cli.arguments import Command, size_argument
from shard_cli.files import STDIN, known_size
from shard_cli.pack_output import add_output, report_converted, written_output
from shard_cli.pack_storage import add_metadata, add_pack_storage, metadata_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from shard_cli.exits import Exit
    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "tars",
        nargs="+",
        metavar="TAR",
        help="tar files, also compressed, a pattern such as 'train-{000000..000009}.tar', or - for stdin",
    )
    add_output(parser)
    add_pack_storage(parser)
    add_metadata(parser)
    parser.add_argument(
        "--metadata-entry",
        metavar="NAME",
        help="the entry that becomes the metadata of its record, such as metadata.json",
    )
    parser.add_argument(
        "--record-size-limit",
        type=size_argument,
        default=4 << 30,
        metavar="SIZE",
        help="larger samples are refused (default 4G)",
    )
    parser.add_argument(
        "--skip-orphans",
        action="store_true",
        help="leave out members that belong to no sample, such as README; exit code 3",
    )


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert.tar import from_tar
    from shardpack.patterns import expand

    tars = [one for tar in args.tars for one in ([tar] if tar == STDIN else expand(tar))]
    total = sum(map(known_size, tars))
    done = 0
    with (
        written_output(args, console, [tar for tar in tars if tar != STDIN]) as (output, options),
        console.progress("from-tar") as bar,
        ExitStack() as files,
    ):

        def count_bytes(number: int) -> None:
            nonlocal done
            done += number
            bar.update(done, max(total, done))

        found = from_tar(
            [
                cast("BinaryIO", files.enter_context(closing(_Counted(tar, count_bytes))))
                for tar in tars
            ],
            output,
            orphans="skip" if args.skip_orphans else "error",
            metadata_entry=args.metadata_entry,
            max_record_bytes=args.record_size_limit,
            compression=args.compression,
            alignment=args.alignment,
            metadata=metadata_of(args),
            **options,
        )
    return report_converted(console, found, "it belongs to no sample", files=args.tars)


class _Counted:
    """A file that is opened when it is read, and tells how much that was."""

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


COMMAND = Command(
    name="from-tar",
    summary="make a pack of tar files of samples",
    description="As a stream, one sample in memory at a time. Members that follow one another and have the\n"
    "same path up to the first dot of the file name are one record: a/0001.left.jpg is entry left.jpg of\n"
    "record a/0001. Payloads are kept byte for byte.",
    examples=(
        ("shardpack from-tar train-000000.tar -o train-000000.shardpack", "one file"),
        (
            "shardpack from-tar 'train-{000000..000009}.tar' -o train-%06d.shardpack",
            "many, into shards of 1 GiB",
        ),
        ("curl -s URL | shardpack from-tar - -o train-%06d.shardpack -c lz4", "from a pipe"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
