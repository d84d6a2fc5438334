"""How packs are stored: the options that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse


def add_pack_storage(parser: argparse.ArgumentParser, *, alignment: int = 8) -> None:
    """`--compression` and `--alignment`."""
    parser.add_argument(
        "-c",
        "--compression",
        metavar="CODEC",
        help="none, lz4, zstd, gzip, or with a level: zstd:19; JPEG, PNG, video and the like stay as "
        "they are (default: none)",
    )
    parser.add_argument(
        "--alignment",
        type=int,
        choices=(1, 8, 64),
        default=alignment,
        help=f"entries start on a multiple of this; 64 for arrays used in place (default: {alignment})",
    )


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """`--metadata KEY=VALUE`."""
    parser.add_argument(
        "-m",
        "--metadata",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a field about the whole pack, a text; may be repeated",
    )


def metadata_of(args: argparse.Namespace) -> dict[str, str]:
    """The fields that were given."""
    from shard_format.errors import InvalidArgument

    fields: dict[str, str] = {}
    for given in args.metadata:
        key, equals, value = given.partition("=")
        if not equals or not key:
            raise InvalidArgument(
                "--metadata needs a name", expected="KEY=VALUE", found=repr(given)
            )
        if key in fields:
            raise InvalidArgument("--metadata has the same name twice", found=repr(key))
        fields[key] = value
    return fields


def new_fields(args: argparse.Namespace) -> dict[str, Any]:
    """`metadata` for the library's tools, if any was given; without it the old fields are kept."""
    return {"metadata": metadata_of(args)} if args.metadata else {}


def add_columns(parser: argparse.ArgumentParser) -> None:
    """`--key` and `--column`, for what comes from tables."""
    parser.add_argument(
        "--key", metavar="COLUMN", help="the column of the keys (default: the number of the row)"
    )
    parser.add_argument(
        "--column", action="append", metavar="COLUMN", help="only this column; may be repeated"
    )
