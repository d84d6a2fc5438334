"""Which packs the arguments of a command mean, and opening them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from shard_cli.opening import limits_with, say_what_it_is
from shard_cli.pack_output import SUFFIX
from shard_cli.selection import matching

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from shard_cli.progress import Progress
    from shardpack import Dataset, Record

# What bytes 8 to 11 of a shard are: spec/shardpack.md, sections 2 and 7.
_MARKERS: Final = (b"SPR1", b"SPI1")

PACK_HELP: Final = "a shard, a set such as 'train-{000000..000009}.shardpack', a folder, or a URL"


def add_pack(parser: argparse.ArgumentParser) -> None:
    """PACK, one data set."""
    parser.add_argument("pack", metavar="PACK", help=PACK_HELP)


def add_packs(parser: argparse.ArgumentParser) -> None:
    """PACK…, each a data set."""
    parser.add_argument("packs", nargs="+", metavar="PACK", help=PACK_HELP)


def add_key_patterns(parser: argparse.ArgumentParser, what: str) -> None:
    """PATTERN… and `--prefix`, which choose records together."""
    parser.add_argument(
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help=f"{what} only records whose whole key fits: * any text, ? one character, [a-c] a set",
    )
    parser.add_argument(
        "--prefix", metavar="TEXT", help=f"{what} only records whose key starts with TEXT"
    )


def is_pack(path: str) -> bool:
    """Whether `path` is a shard of a data set, or stands for several: `shard` asks this of every file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # what comes from a pipe cannot be read again
            return False
        with open(path, "rb") as file:
            return file.read(12)[8:] in _MARKERS
    except OSError:
        return path.endswith(SUFFIX)


def shards_of(path: str) -> list[str]:
    """The shards behind an argument, in order."""
    from shardpack.patterns import expand

    return [str(shard) for shard in expand(path)]


def open_pack(path: str, *, max_decompressed: int | None = None) -> Dataset:
    """A data set; errors say what else a file might be."""
    import shardpack
    from shard_format.errors import BadMagic, InvalidArgument, Truncated

    try:
        return shardpack.open(path, limits=limits_with(max_decompressed))
    except (BadMagic, Truncated) as error:
        if error.path is not None and os.path.isfile(error.path):
            say_what_it_is(error, error.path)
        raise
    except InvalidArgument as error:
        if error.hint is not None and "pass the bytes" in error.hint:
            error.hint = "a pack is read at any place: save it to a file first"
        raise


def open_watched(shards: list[str], bar: Progress) -> Dataset:
    """A data set that tells the bar how far whoever goes through its records is."""
    from shardpack import Dataset

    class Watched(Dataset):
        """Counts the bytes of the records that are asked for, in order or by number."""

        def _count(self, record: Record) -> Record:
            self._seen_bytes = getattr(self, "_seen_bytes", 0) + record.size
            bar.update(self._seen_bytes, total)
            return record

        def records(self, start: int = 0, stop: int | None = None) -> Iterator[Record]:
            return map(self._count, super().records(start, stop))

        def take(self, indices: Iterable[int]) -> list[Record]:
            return [self._count(record) for record in super().take(indices)]

    open_pack(shards[0]).close()  # says what else it might be
    watched = Watched(shards)
    total = sum(shard.footer.index_offset for shard in watched.shards)
    return watched


def chosen_records(
    dataset: Dataset, name: str, patterns: Sequence[str], prefix: str | None = None
) -> Iterator[Record]:
    """The records whose keys fit one of the patterns and the prefix, in order.

    Raises:
        EntryNotFound: after the last one, if a pattern fits nothing; a typing mistake must not look like
            an empty result.
    """
    from shard_format.errors import EntryNotFound, shorten

    if patterns and all(_is_exact(pattern) for pattern in patterns) and prefix is None:
        # Found by the index: no need to look at every record.
        numbers = {pattern: dataset.find(pattern) for pattern in dict.fromkeys(patterns)}
        found = sorted(number for number in numbers.values() if number is not None)
        yield from dataset.take(found)
        unused = [pattern for pattern, number in numbers.items() if number is None]
    else:
        missing = dict.fromkeys(patterns)
        for record in dataset.records():
            key = record.key
            if prefix is not None and not key.startswith(prefix):
                continue
            fitting = [pattern for pattern in patterns if matching([key], pattern)]
            if fitting or not patterns:
                yield record
            for pattern in fitting:
                missing.pop(pattern, None)
        unused = list(missing)
    if unused:
        raise EntryNotFound(
            f"no record fits {shorten(unused[0])}",
            path=name,
            hint="'shardpack ls' lists the records",
        )


def _is_exact(pattern: str) -> bool:
    return not any(character in pattern for character in "*?[")
