"""Arguments about episodes: which files, which steps, where to write, how blocks are stored."""

from __future__ import annotations

import argparse
import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_cli import arguments as arg
from shard_cli.files import known_size, refuse_overwrite, same_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from decimal import Decimal

    from shard_cli.console import Console
    from shard_cli.kinds.model import Target
    from shard_train.packed_episodes import EpisodePack
    from wshard import Episode

SUFFIX: Final = ".wshard"
_PACK: Final = ".shardpack"
_SIDECAR_FOLDER: Final = ".lanes"
_MANIFEST_ROLE: Final = 4
_MAGIC: Final = b"SHRD"
# What is said about one journal or several of each state, and what to do.
_STATES: Final = {
    "unfinished": (
        "was not finished",
        "were not finished",
        "save what was recorded: wshard recover ",
    ),
    "recording": ("is being recorded now", "are being recorded now", ""),
    "recovered": (
        "was recovered and can be removed",
        "were recovered, and their journals can be removed",
        "",
    ),
}
_BOUND: Final = re.compile(
    r"(?:([0-9]{1,19})|([0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(s|ms))?"
)
_NS: Final = {"s": 10**9, "ms": 10**6}


# --- which steps


class Steps(NamedTuple):
    """A range of steps. Each end is a step, a Decimal of nanoseconds after the first step, or None."""

    start: int | Decimal | None
    stop: int | Decimal | None

    def resolve(self, episode: Episode) -> tuple[int, int]:
        """The first step, and the end, in an episode."""
        from shard_format.errors import InvalidArgument

        start = 0 if self.start is None else _step(self.start, episode)
        stop = episode.length if self.stop is None else _step(self.stop, episode)
        if start > stop:
            path, found = _path_of(episode), f"steps {start} to {stop}"
            raise InvalidArgument("the range ends before it starts", path=path, found=found)
        return start, stop


def steps_argument(text: str) -> Steps:
    """`100:200` in steps, `1.5s:3s` or `500ms:` in time from the first step on."""
    from decimal import Decimal

    start, colon, stop = text.partition(":")
    bounds: list[int | Decimal | None] = []
    for end in (start, stop):
        match = _BOUND.fullmatch(end.strip())
        if not colon or match is None:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a range; write START:STOP in steps, or in time as 1.5s:3s"
            )
        steps, number, unit = match.groups()
        # Decimal: a time such as 0.1s is not a binary fraction.
        time = None if number is None else Decimal(number) * _NS[unit]
        bounds.append(time if steps is None else int(steps))
    return Steps(*bounds)


def _step(bound: int | Decimal, episode: Episode) -> int:
    from shard_format.errors import InvalidArgument

    length = episode.length
    if isinstance(bound, int):
        most, given, step = f"{length} steps", str(bound), bound
    else:
        import numpy as np

        times = episode.times_ns()
        times = times - times[:1]
        last = int(times[-1]) if length else 0
        period = last // (length - 1) if length > 1 else episode.timebase.dt_ns or 0
        end = last + period if length else 0
        most, given = f"{end / 1e9:.6g}s", f"{float(bound) / 1e9:.6g}s"
        step = length + 1 if bound > end else int(np.searchsorted(times, round(bound)))
    if step > length:
        path, expected = _path_of(episode), f"at most {most}"
        raise InvalidArgument("the episode is shorter", path=path, expected=expected, found=given)
    return step


def _path_of(episode: Episode) -> str | None:
    return None if episode.origin is None else episode.origin.path


# --- how it is written


def output(text: str = "the episode to write") -> tuple[arg.Argument, arg.Argument]:
    """`-o OUT` and `--force`, for commands that write one file."""
    return arg.option("-o --output OUT", text, required=True), arg.force()


def storage(default: str) -> tuple[arg.Argument, ...]:
    """How blocks are stored: `--profile`, `--compression`; and the limit for reading."""
    return (
        arg.option(
            "--profile",
            "training: smallest, with fast windows; exchange: readers of other languages can read it "
            f"(default: {default})",
            choices=("training", "exchange"),
        ),
        arg.repeated(
            "-c --compression CODEC",
            "none, lz4, zstd, zstd:19, or auto to try what suits each block; PATTERN=CODEC for some "
            "blocks or channels",
        ),
        arg.MAX_DECOMPRESSED,
    )


def storage_of(args: argparse.Namespace, like: Episode) -> dict[str, Any]:
    """Storage options for `save_wshard`: those that were given, or else those of the input."""
    if not args.compression and args.profile is None:
        return stored_like(like)
    rules: dict[str, str] = {}
    for text in args.compression:
        pattern, _, codec = text.rpartition("=")
        _check_codec(codec)
        rules[pattern or "*"] = codec
    if "*" in rules:  # the first pattern that matches counts: the one for all blocks comes last
        rules["*"] = rules.pop("*")
    return {"compression": rules or None, "profile": args.profile}


def _check_codec(codec: str) -> None:
    from shard_format.codecs import Compression
    from shard_format.errors import InvalidArgument

    if codec in ("auto", "keep"):  # try what suits, copy what is there
        return
    try:
        Compression.parse(codec)
    except InvalidArgument:
        raise InvalidArgument(
            "unknown --compression",
            expected="none, lz4, zstd, zstd:1 to zstd:22, auto or keep",
            found=repr(codec),
        ) from None


def save(
    episode: Episode, path: str, sources: Sequence[Episode], args: argparse.Namespace
) -> dict[str, Any]:
    """Saves an episode that was made of others, and returns its facts.

    It is stored like the first of them, unless arguments say otherwise, and has an identity if they have.
    """
    from shard_format.identity import IDENTITY_ENTRY
    from wshard import save_wshard
    from wshard.types import FileOptions

    identity = all(one.origin and IDENTITY_ENTRY in one.origin.reader for one in sources)
    options = FileOptions(identity=identity)
    save_wshard(episode, path, options=options, **storage_of(args, sources[0]))
    nbytes = os.stat(path).st_size
    return {"episode_id": episode.id, "steps": episode.length, "size": nbytes}


def saved_text(path: str, episode: Episode, nbytes: int | None, steps: str = "") -> str:
    """What was saved, in one line; `nbytes` is None if it would be."""
    from shard_cli.text import count, duration, printable, size

    hertz = episode.timebase.tick_hz
    facts = [f"episode {printable(episode.id)}", steps or count(episode.length, "step")]
    facts += [duration(episode.length / hertz)] if hertz else []
    facts += [] if nbytes is None else [size(nbytes)]
    return f"{printable(path)}: {', '.join(facts)}"


def stored_like(episode: Episode) -> dict[str, Any]:
    """Storage options that store an episode as it is stored now."""
    from shard_cli.kinds.entries import iter_rows

    if episode.origin is None:
        return {}
    kinds = set()
    for reader in (*(episode.origin.chunks or [episode.origin.reader]), *episode.origin.sidecars):
        for row in iter_rows(reader):
            parts = reader.filters(row.name), reader.seek_table(row.name)
            if row.codec == "zstd" and parts != (None, None):
                return {"profile": "training"}
            kinds.add(row.codec)
    kinds &= {"zstd", "lz4"}
    if not kinds:
        return {}
    return {"compression": "lz4"} if kinds == {"lz4"} else {"profile": "exchange"}


def check_output(path: str, console: Console, *, force: bool) -> None:
    """Raises if the output may not be written; warns if commands that search folders will not find it."""
    from shard_format.errors import InvalidArgument

    if os.path.isdir(path):
        raise InvalidArgument("this is a folder", path=path, expected="the name of a file to write")
    refuse_overwrite(path, force=force)
    if not path.endswith(SUFFIX):
        console.warn(
            f"{path} does not end with {SUFFIX}: commands that search folders will not find it"
        )


def refuse_input(path: str, inputs: list[str], why: str) -> None:
    """Raises if the output is one of the inputs."""
    from shard_format.errors import InvalidArgument

    if any(same_file(path, one) for one in inputs):
        raise InvalidArgument(f"OUT is an input: {why}", path=path)


# --- which episodes


def find(arguments: Sequence[str]) -> list[Target]:
    """The episodes that the arguments mean, each once, folders sorted.

    Chunks count with their manifest, sidecars with their episode.

    Raises:
        InvalidArgument: a folder has neither episodes nor recordings. A typing mistake must not look like success.
    """
    from shard_format.errors import InvalidArgument
    from wshard.partial import find_recordings

    found: dict[str, Target] = {}
    for argument in _named(arguments):
        if not os.path.isdir(argument):
            packed = _in_pack(argument, argument) if _is_pack(argument) else [_episode(argument)]
            if not packed:
                raise InvalidArgument("no episodes in this pack", path=argument)
            for episode in packed:
                found.setdefault(_key(episode.path), episode)
            continue
        inside = _in_folder(argument)
        if not inside and not find_recordings(argument):
            raise InvalidArgument(
                "no episodes in this folder or below it",
                path=argument,
                expected=f"files with the suffix {SUFFIX}, or packs of such files",
            )
        for episode in inside:
            found.setdefault(_key(episode.path), episode)
    return list(found.values())


def _is_pack(path: str) -> bool:
    from shard_format.sources import is_url

    return (path.partition("?")[0] if is_url(path) else path).endswith(_PACK)


def _key(path: str) -> str:
    """What two names of one file have in common."""
    from shard_format.sources import is_url

    return path if is_url(path) else os.path.realpath(path)


def _named(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments, and the episodes and packs below those that are folders of object stores."""
    from shard_format.listing import expand
    from shard_format.sources import is_url

    for argument in arguments:
        if is_url(argument):
            yield from expand(
                argument, (SUFFIX, _PACK), enter=lambda name: not name.endswith(_SIDECAR_FOLDER)
            )
        else:
            yield argument


def report_recordings(arguments: Sequence[str], console: Console) -> list[dict[str, str]]:
    """Says which journals are below folders, and what to do with them; returns them for `--json`."""
    from shard_cli.text import count
    from wshard.partial import find_recordings, state_of

    found: list[dict[str, str]] = []
    for folder in filter(os.path.isdir, arguments):
        states = {files.journal(0): state_of(files) for files in find_recordings(folder)}
        found += [{"file": path, "state": state} for path, state in states.items()]
        for state, (one, several, advice) in _STATES.items():
            paths = [path for path in states if states[path] == state]
            if paths:
                many = f"{folder}: {count(len(paths), 'recording')} {several}"
                text = f"{paths[0]} {one}" if len(paths) == 1 else many
                say = console.warn if state == "unfinished" else console.note
                say(text + (f"; {advice}{folder}" if advice else ""))
    return found


def _in_folder(folder: str) -> list[Target]:
    from shard_format.listing import walk_folder

    listing = walk_folder(
        folder, (SUFFIX, _PACK), enter=lambda name: not name.endswith(_SIDECAR_FOLDER)
    )
    # The files of a folder come before the folders in it.
    names = sorted(
        (file.name for file in listing.files), key=lambda name: (name.split("/")[:-1], name)
    )
    episodes: list[Target] = []
    for name in names:
        path = os.path.join(folder, name)
        episodes += _in_pack(path, folder) if name.endswith(_PACK) else [_episode(path, folder)]
    chunks = {chunk for episode in episodes for chunk in episode.chunks}
    return [episode for episode in episodes if episode.path not in chunks]


def opened_pack(path: str) -> EpisodePack:
    """A pack that stays open while it is the same file: its episodes follow one another."""
    try:
        status = os.stat(path)
    except OSError:  # a URL; or a missing file, as opening it will say
        return _open_pack(path)
    return _open_pack(path, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=8)
def _open_pack(path: str, *_: int) -> EpisodePack:
    from shard_train.packed_episodes import open_episode_pack

    return open_episode_pack(path)


def _in_pack(path: str, folder: str) -> list[Target]:
    """The episodes of a pack; none if it is a pack of something else."""
    from shard_cli.kinds.model import Target
    from shard_format.errors import DATA_ERRORS

    try:
        pack = opened_pack(path)
        count = len(pack)
    except DATA_ERRORS:  # opening it again says why
        return [Target(path, known_size(path), folder=folder, pack=path)]
    found: list[Target] = []
    for record in range(count):
        try:
            entries = pack.entries(record)
        except DATA_ERRORS:
            found.append(Target(f"{path}/{record}", folder=folder, pack=path, record=record))
            continue
        found += [
            Target(f"{path}/{name}", size, (), folder, path, record, name)
            for name, size in entries.items()
        ]
    return found if any(one.name for one in found) else []


def _episode(path: str, folder: str | None = None) -> Target:
    from shard_cli.kinds.model import Target

    chunks = _chunks_of(path)
    return Target(path, sum(map(known_size, (path, *chunks))), chunks, folder)


def _chunks_of(path: str) -> tuple[str, ...]:
    """The files that a manifest names; none for every other file, and for one that is damaged."""
    from shard_format import Manifest, ShardError
    from shard_format.sources import read_file

    try:
        head = read_file(path, 6)
        if not head.startswith(_MAGIC) or head[5:] != bytes([_MANIFEST_ROLE]):
            return ()
        where = os.path.dirname(path)
        return tuple(os.path.join(where, row.uri) for row in Manifest.read(path).files)
    except ShardError:  # opening the file will say so
        return ()
