"""Writing episodes: where to, how they are stored, and the steps that a command is about."""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_cli.arguments import add_force, add_max_decompressed
from shard_cli.episode_files import SUFFIX
from shard_cli.files import refuse_overwrite, same_file

if TYPE_CHECKING:
    from shard_cli.output import Console
    from shard_format import ShardReader
    from wshard import Episode

PROFILES: Final = ("training", "exchange")
# What a codec may be called beside its name: try what suits, copy what is there.
_WORDS: Final = ("auto", "keep")
_BOUND: Final = re.compile(r"(?:(\d+)|(\d+(?:\.\d*)?|\.\d+)(s|ms))?")
_NS: Final = {"s": 10**9, "ms": 10**6}


class Bound(NamedTuple):
    """One end of a range of steps."""

    number: int
    """Steps, or nanoseconds after the first step."""
    is_time: bool


class Steps(NamedTuple):
    """A range of steps; an end that was left out is None."""

    start: Bound | None
    stop: Bound | None

    def resolve(self, episode: Episode) -> tuple[int, int]:
        """The first step, and the end, in an episode."""
        start = 0 if self.start is None else _step(self.start, episode)
        stop = episode.length if self.stop is None else _step(self.stop, episode)
        if start > stop:
            from shard_format.errors import InvalidArgument

            raise InvalidArgument(
                "the range ends before it starts",
                path=_path_of(episode),
                found=f"steps {start} to {stop}",
            )
        return start, stop


def steps_argument(text: str) -> Steps:
    """`100:200` in steps, `1.5s:3s` or `500ms:` in time from the first step on."""
    start, colon, stop = text.partition(":")
    bounds = [_BOUND.fullmatch(end.strip()) for end in (start, stop)]
    if not colon or None in bounds:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range; write START:STOP in steps, or in time as 1.5s:3s"
        )
    return Steps(*(None if match is None else _bound(match) for match in bounds))


def _bound(match: re.Match[str]) -> Bound | None:
    from decimal import Decimal

    steps, number, unit = match.groups()
    if steps is not None:
        return Bound(int(steps), False)
    # Decimal: a time such as 0.1s is no binary fraction.
    return None if number is None else Bound(round(Decimal(number) * _NS[unit]), True)


def _step(bound: Bound, episode: Episode) -> int:
    import numpy as np

    from shard_format.errors import InvalidArgument

    length = episode.length
    if not bound.is_time:
        if bound.number > length:
            raise InvalidArgument(
                "the episode is shorter",
                path=_path_of(episode),
                expected=f"at most {length} steps",
                found=bound.number,
            )
        return bound.number
    times = episode.times_ns()
    first = int(times[0]) if length else 0
    period = (int(times[-1]) - first) // (length - 1) if length > 1 else episode.timebase.dt_ns
    end = (int(times[-1]) - first + period) if length else 0
    if bound.number > end:
        raise InvalidArgument(
            "the episode is shorter",
            path=_path_of(episode),
            expected=f"at most {end / 1e9:.6g}s",
            found=f"{bound.number / 1e9:.6g}s",
        )
    return int(np.searchsorted(times, first + bound.number))


def _path_of(episode: Episode) -> str | None:
    return None if episode.origin is None else episode.origin.path


def add_output(parser: argparse.ArgumentParser, text: str = "the episode to write") -> None:
    """`-o OUT` and `--force`, for commands that write one file."""
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help=text)
    add_force(parser, "replace OUT if it exists")


def add_episode_storage(parser: argparse.ArgumentParser, default: str) -> None:
    """How blocks are stored: `--profile`, `--compression`; and the limit for reading."""
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="training: smallest, with fast windows; exchange: for readers of other languages "
        f"(default: {default})",
    )
    parser.add_argument(
        "-c",
        "--compression",
        action="append",
        type=_compression_argument,
        metavar="CODEC",
        help="none, lz4, zstd, zstd:19, or auto, which tries what suits each block; PATTERN=CODEC "
        "for some blocks or channels; may be repeated",
    )
    add_max_decompressed(parser)


def _compression_argument(text: str) -> tuple[str, str]:
    pattern, equals, codec = text.rpartition("=")
    return (pattern if equals else "*"), codec


def storage_of(args: argparse.Namespace, like: Episode) -> dict[str, Any]:
    """What `save_wshard` is told about storing: what was asked for, or what the input is like."""
    if args.compression is None and args.profile is None:
        return stored_like(like)
    rules = dict(args.compression or ())
    for codec in rules.values():
        _check_codec(codec)
    if "*" in rules:  # the first pattern that fits counts: the one for all comes last
        rules["*"] = rules.pop("*")
    return {"compression": rules or None, "profile": args.profile}


def _check_codec(codec: str) -> None:
    from shard_format.codecs import Compression
    from shard_format.errors import InvalidArgument

    if codec in _WORDS:
        return
    try:
        Compression.parse(codec)
    except InvalidArgument:
        raise InvalidArgument(
            "--compression does not know this",
            expected="none, lz4, zstd, zstd:1 to zstd:22, auto or keep",
            found=repr(codec),
        ) from None


def has_identity(episode: Episode) -> bool:
    """Whether the episode's file stores its identity: then what is made of it does, too."""
    from shard_format.identity import IDENTITY_ENTRY

    return episode.origin is not None and IDENTITY_ENTRY in episode.origin.reader


def stored_like(episode: Episode) -> dict[str, Any]:
    """Storage of the kind that an episode has now."""
    if episode.origin is None:
        return {}
    readers = [*(episode.origin.chunks or [episode.origin.reader]), *episode.origin.sidecars]
    kinds = {kind for reader in readers for kind in _kinds(reader)}
    if not kinds:
        return {}
    if "training" in kinds:
        return {"profile": "training"}
    return {"compression": "lz4"} if kinds == {"lz4"} else {"profile": "exchange"}


def _kinds(reader: ShardReader) -> set[str]:
    from shard_cli.entries import iter_rows

    kinds = set()
    for row in iter_rows(reader):
        if row.codec == "lz4":
            kinds.add("lz4")
        elif row.codec == "zstd":
            is_plain = reader.filters(row.name) is None and reader.seek_table(row.name) is None
            kinds.add("zstd" if is_plain else "training")
    return kinds


def check_output(path: str, console: Console, *, force: bool) -> None:
    """Raises if the output may not be written; says so if nobody will find it."""
    from shard_format.errors import InvalidArgument

    if os.path.isdir(path):
        raise InvalidArgument("this is a folder", path=path, expected="the name of a file to write")
    refuse_overwrite(path, force=force)
    if not path.endswith(SUFFIX):
        console.warn(f"{path} does not end with {SUFFIX}: searches of folders will not find it")


def refuse_input(path: str, inputs: list[str], why: str) -> None:
    """Raises if the output is one of the inputs."""
    from shard_format.errors import InvalidArgument

    if any(same_file(path, one) for one in inputs):
        raise InvalidArgument(f"OUT is an input: {why}", path=path)
