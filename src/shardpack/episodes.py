"""Episodes in shards: whole `.wshard` files as entries, opened in place and given back byte for byte.

A file `run/ep_7.wshard` is the entry `wshard` of the record `run/ep_7`. What lies in the folder
`run/ep_7.wshard.lanes` goes along: `wshard.lanes/dreamer.wshard` and so on. A record's key, a dot and an
entry's name make the path of a file, as in tar files of samples.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shard_format._atomic import AtomicFile, write_all
from shard_format._safe_paths import plan_extraction
from shard_format.errors import (
    EntryNotFound,
    InvalidArgument,
    ShardError,
    ShardIOError,
    UnsafePath,
    shorten,
)
from shardpack._files import InputFile, walk
from shardpack._output import Output
from shardpack.columns import opened
from shardpack.decoding import EPISODE_LOADER, load_by_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardpack.columns import Samples
    from shardpack.combined import AnyRecord

__all__ = ["PackedEpisodes", "Unpacked", "pack_episodes", "unpack"]

_SUFFIX: Final = ".wshard"
# The folder of added lanes, beside its episode: spec/wshard.md, section 12.
_LANES: Final = ".lanes"
EPISODE: Final = "wshard"
_SIDECARS: Final = EPISODE + _LANES + "/"
_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class PackedEpisodes:
    """What `pack_episodes` did."""

    paths: list[str]
    """The shards."""
    episodes: int
    """Records that were written."""
    sidecars: int
    """Files with added lanes that went along."""
    left_out: list[str]
    """Files of the folder that are not in the shards: no episodes, or recordings that were not finished."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What `unpack` did."""

    files: int
    """Files that were written."""
    size_bytes: int
    """Their bytes."""


def pack_episodes(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    max_bytes: int | None = 1 << 30,
    progress: Callable[[int], None] | None = None,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> PackedEpisodes:
    """Puts all `.wshard` files below a folder into shards, in the order of their paths.

    Each file is stored as it is, on a multiple of 64 bytes, so that it is used in place. Added lanes
    (`<file>.lanes/`) are part of its record. Links are not followed. The chunks of a chunked episode are
    records like others; its manifest names files, and opens after `unpack`.

    Args:
        folder: searched with all folders in it.
        output: `"train-%06d.shardpack"` for a set of shards, or one file.
        max_bytes: target size of a shard of a set.
        progress: told the bytes of each episode when it is written.
        options: what `ShardWriterSet` takes: `append`, `metadata`, `created` and so on. With
            `append=True`, episodes that are in the set already are not packed again.

    Raises:
        InvalidArgument: there is no episode, or a file's name cannot be a key.
        ShardIOError: a file cannot be read, or changed while it was read.
    """
    root = os.fspath(folder)
    if not os.path.isdir(root):
        raise InvalidArgument("this is no folder", path=root)
    options.setdefault("alignment", _ALIGNMENT)
    episodes, left_out = _find(root)
    if not episodes:
        raise InvalidArgument("there are no episodes", path=root, expected=f"files *{_SUFFIX}")
    packed = sidecars = 0
    skip_known = bool(options.get("append"))
    with Output(output, max_bytes=max_bytes, **options) as writer:
        for key, files in episodes.items():
            if skip_known and key in writer:
                continue
            with ExitStack() as inputs:
                entries = {
                    name: inputs.enter_context(InputFile(path)).data for name, path in files.items()
                }
                try:
                    writer.write(key, entries)
                except InvalidArgument as error:
                    raise error.located(path=files[EPISODE]) from None
            packed += 1
            sidecars += len(files) - 1
            if progress is not None:
                progress(sum(map(len, entries.values())))
    return PackedEpisodes(writer.paths, packed, sidecars, left_out)


def _find(root: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The files of each episode by entry name, by key, in order; and all other files."""
    episodes: dict[str, dict[str, str]] = {}
    lanes: dict[str, dict[str, str]] = {}
    left_out: list[str] = []
    for relative, path, is_file in walk(root):
        head, between, inside = relative.partition(_SUFFIX + _LANES + "/")
        if not is_file:
            left_out.append(path)
        elif between:
            lanes.setdefault(head, {})[_SIDECARS + inside] = path
        elif relative.endswith(_SUFFIX) and os.path.basename(path) != _SUFFIX:
            episodes[relative.removesuffix(_SUFFIX)] = {EPISODE: path}
        else:
            left_out.append(path)
    for key, files in lanes.items():
        if key in episodes:
            episodes[key].update(files)
        else:
            # Lanes of an episode that is not there.
            left_out += files.values()
    return episodes, sorted(left_out)


def open_episode(record: AnyRecord, options: dict[str, Any]) -> Any:  # noqa: ANN401 - this package does not know episodes
    """The episode of a record, with its added lanes; see `Record.episode`."""
    found = [EPISODE] if EPISODE in record else episode_names(record)
    if len(found) != 1:
        raise EntryNotFound(
            f"record {shorten(record.key)} has {len(found)} episodes",
            expected="one entry whose name ends in 'wshard'",
            found=", ".join(map(shorten, record.names[:5])),
            hint="record[name].decode() opens one of several",
        )
    return open_entry(record, found[0], options)


def episode_names(record: AnyRecord) -> list[str]:
    """The entries of a record that are episodes; added lanes are part of theirs."""
    return [
        name
        for name in record.names
        if name == EPISODE or (name.endswith(_SUFFIX) and not _is_lane(record, name))
    ]


def _is_lane(record: AnyRecord, name: str) -> bool:
    episode, between, _ = name.partition(_LANES + "/")
    return bool(between) and episode in record


def open_entry(record: AnyRecord, name: str, options: dict[str, Any]) -> Any:  # noqa: ANN401 - this package does not know episodes
    """The episode in one entry of a record, with its added lanes."""
    lanes = name + _LANES + "/"
    load = load_by_name(EPISODE_LOADER)
    sidecars = sorted(n for n in record.names if n.startswith(lanes) and n.endswith(_SUFFIX))
    options.setdefault("sidecars", [record[sidecar].source() for sidecar in sidecars])
    return load(record[name].source(), **options)


def unpack(
    shards: Samples,
    folder: str | os.PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
) -> Unpacked:
    """Writes every entry as a file of its own: of packed episodes exactly the files that were packed.

    A record's key, a dot and an entry's name make the path. All paths are looked at before the first
    file is written, which takes some hundred bytes of memory an entry.

    Args:
        shards: what `shardpack.open` takes, or an opened data set.
        folder: where to; it is made if it is not there. Files that are there stop it: nothing is
            replaced.
        progress: told the bytes of each file when it is written.

    Raises:
        UnsafePath: a path would leave the folder, or two entries would be one file.
        ShardError: an entry is damaged. Files that were written before stay; all are complete.
    """
    target = os.fspath(folder)
    files = size_bytes = 0
    with opened(shards) as dataset:
        names = [f"{record.key}.{name}" for record in dataset.records() for name in record.names]
        plan = plan_extraction(names, target)
        if plan.refused or len(plan.targets) != len(names):
            first = plan.refused[0] if plan.refused else None
            raise UnsafePath(
                "entries that cannot be files below the folder"
                if first is not None
                else "two entries make the same path",
                path=target,
                entry=first.name if first is not None else None,
                found=first.reason if first is not None else f"{len(names)} entries",
            )
        for path in plan.targets.values():
            if os.path.lexists(path):
                raise InvalidArgument("this file is there already", path=path)
        for record in dataset.records():
            for entry in record.file_entries():
                path = plan.targets[f"{record.key}.{entry.name}"]
                data = entry.data
                try:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    file = AtomicFile(path, fsync=False)
                    try:
                        write_all(file.descriptor, [data])
                        file.commit()
                    except BaseException:
                        file.abort()
                        raise
                except OSError as error:
                    if isinstance(error, ShardError):
                        raise
                    raise ShardIOError.wrap(error, "cannot write", path) from error
                files += 1
                size_bytes += len(data)
                if progress is not None:
                    progress(len(data))
    return Unpacked(files, size_bytes)
