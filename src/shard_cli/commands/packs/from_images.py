"""`shardpack from-images`: packs from folders of images with classes or a table of metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command
from shard_cli.pack_output import add_output, report_converted, written_output
from shard_cli.pack_storage import add_metadata, metadata_of

if TYPE_CHECKING:
    import argparse

    from shard_cli.exits import Exit
    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="one split: the folder train, for example")
    add_output(parser)
    add_metadata(parser)
    parser.add_argument(
        "--skip-others",
        action="store_true",
        help="leave out files that are no images or are not in the metadata; exit code 3",
    )


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shardpack.convert.images import from_image_folder

    with written_output(args, console) as (output, options):
        found = from_image_folder(
            args.folder,
            output,
            others="skip" if args.skip_others else "error",
            metadata=metadata_of(args),
            **options,
        )
    return report_converted(console, found, "no image of the data set", folder=args.folder)


COMMAND = Command(
    name="from-images",
    summary="make a pack of a folder of images with labels",
    description="Rows of metadata.jsonl or metadata.csv are the records, with file_name and fields; without\n"
    "such a file the folder of an image is its label. 'shardpack create' packs any folder.",
    examples=(
        ("shardpack from-images data/train -o train-%06d.shardpack", "folders as labels"),
        ("shardpack from-images data/train -o train.shardpack --skip-others", "images only"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
