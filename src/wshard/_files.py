"""Episodes on disk: opening one with everything that belongs to it, and saving one safely."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shard_format import ShardReader
from shard_format.atomic import replacing, sync_folder
from shard_format.errors import InvalidArgument
from shard_format.registry import DEFAULT_LIMITS, Limits, Role
from wshard._blocks import Extra
from wshard._channels import Channel
from wshard._chunk_manifest import open_chunked
from wshard._labels import Intervals
from wshard._lanes import block_name
from wshard._reader import episode_of, keep_only
from wshard._sidecar import (
    EDIT_FILE,
    attach,
    edit_between,
    ground_truth,
    rebind,
    sidecar_files,
)
from wshard._storage import StoragePolicy
from wshard._writer import DEFAULT_OPTIONS, FileOptions, write_episode
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shard_format import Compression
    from shard_format.sources import SourceLike
    from wshard._episode import Episode
    from wshard._lanes import Address

__all__ = ["load_wshard", "open_episode", "save_wshard"]


def load_wshard(
    source: SourceLike,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
    *,
    sidecars: bool | str | Iterable[SourceLike] = True,
    check: bool = True,
    threads: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> Episode:
    """Opens an episode.

    Descriptions are read now, arrays when you access them. A chunked episode opens by its manifest.
    Lanes and edits that were added later are included.

    Args:
        source: a path, a URL, bytes, a binary file that can seek, or any `ByteSource`.
        channels: only these and the predictions about them: names, block names, or patterns such as
            `"wrist/*"`. None for all.
        lanes: only these: `"signal"`, `"action"`, `"reward"`, `"done"`, `"time"`, `"omen"`, `"uncert"`,
            `"residual"`, `"label"`, or the prefix of any other names. None for all.
        sidecars: True looks for the folder `<file>.lanes` beside a local file and warns about a sidecar that does
            not fit; `"strict"` raises an error instead; False does not look. Or the sidecars themselves, if they
            are elsewhere; those must fit.
        check: False skips checksums.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        limits: what the file may ask for; raise one for files you trust.
        storage_options: headers, credentials and the like for a URL, as `ShardReader` takes them. They
            are for the episode itself: pass a sidecar that needs some as an opened source.

    Raises:
        ShardError: a subclass that says which rule of spec/wshard.md or spec/shard.md the file breaks.
        EntryNotFound: a channel or lane is missing; suggests similar names.
    """
    reader = ShardReader(
        source, limits=limits, threads=threads, check=check, storage_options=storage_options
    )
    return open_episode(reader, sidecars, channels, lanes)


def open_episode(
    reader: ShardReader,
    sidecars: bool | str | Iterable[SourceLike] = True,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
) -> Episode:
    """The episode behind an open reader, which it owns from now on; arguments as for `load_wshard`."""
    if isinstance(sidecars, str) and sidecars != "strict":
        raise InvalidArgument(
            "unknown value of sidecars",
            expected="True, False, 'strict' or a list of sidecars",
            found=repr(sidecars),
        )
    try:
        is_manifest = reader.header.role == Role.MANIFEST
        episode = open_chunked(reader) if is_manifest else episode_of(reader)
        if sidecars is True or sidecars == "strict":
            found = sidecar_files(reader.name)
            if found:
                attach(episode, found, strict=sidecars == "strict")
        elif sidecars:
            attach(episode, sidecars)
        if channels is not None or lanes is not None:
            keep_only(episode, channels, lanes)
    except BaseException:
        reader.close()
        raise
    return episode


def save_wshard(
    episode: Episode,
    path: str | os.PathLike[str],
    compression: str | Compression | Mapping[str, str | Compression] | None = None,
    *,
    profile: str | None = None,
    steps_per_frame: int | Mapping[str, int] | None = None,
    identity: bool | None = None,
    fsync: bool = True,
    options: FileOptions = DEFAULT_OPTIONS,
) -> None:
    """Saves an episode as one file, which appears under its name when it is complete.

    An episode that was loaded keeps its form: blocks that you did not change are copied as they are stored, without
    decoding them, and the descriptions stay as they are where they are still true.

    If the file at `path` has sidecars, they are kept: what `episode` has from them stays in them, and they are bound
    to the new file. This is possible only if the recorded blocks did not change.

    Args:
        episode: what to save.
        path: where; an existing file is replaced at the end.
        compression: None keeps the stored form of unchanged blocks and stores new ones raw. `"none"` (every array a
            view of the file), `"zstd"`, `"zstd:LEVEL"`, `"lz4"` and `"auto"`, which tries what suits each block,
            encode all blocks anew, and `"keep"` is the same as None. Or a mapping of block names, channel names or
            patterns to these: `{"signal/rgb": "zstd:19", "signal/depth*": "lz4", "*": "none"}`. Blocks that hardly
            shrink stay raw.
        profile: `"training"` for the smallest files with fast windows, `"exchange"` for files that the
            reference readers in other languages open. Both choose as `"auto"` unless told otherwise.
        steps_per_frame: how many steps are decoded together in large zstd blocks; or a mapping as for
            `compression`. None chooses by size.
        identity: whether to store the episode's identity; None keeps it if the loaded file had one.
        fsync: False skips syncing to disk: faster, but a power failure can lose the file.
        options: alignment, threads and limits.

    Raises:
        InvalidArgument: names the channel that cannot be saved, and why; or the sidecars that would no longer fit.
        EntryNotFound: `compression` or `steps_per_frame` names a block that the episode does not have.
    """
    location = os.fspath(path)
    policy = StoragePolicy(compression, profile, steps_per_frame)
    sidecars = sidecar_files(location)
    if sidecars and os.path.exists(location):
        _save_with_sidecars(episode, location, policy, sidecars, identity, fsync, options)
    else:
        write_episode(episode, location, policy, identity=identity, fsync=fsync, options=options)


def _save_with_sidecars(
    episode: Episode,
    path: str,
    policy: StoragePolicy,
    sidecars: list[str],
    identity: bool | None,
    fsync: bool,
    options: FileOptions,
) -> None:
    """Replaces an episode and binds its sidecars to the new file; at every moment they fit the file that is there."""
    own = _readers_of(episode, sidecars)
    # An edit that was read is part of the new file. Until it is removed, it says what that file says.
    folded = {name for name in own if os.path.basename(name) == EDIT_FILE}
    with replacing(path) as beside:
        write_episode(
            episode.picked(lambda address, part: not _is_stored_in(address, part, own)),
            *(beside, policy),
            identity=identity,
            fsync=fsync,
            options=options,
        )
        with (
            episode_of(ShardReader(path, limits=options.limits)) as old,
            episode_of(ShardReader(beside, limits=options.limits)) as new,
        ):
            _check_ground_truth(path, sidecars, old, new)
            for sidecar in sidecars:
                edit = edit_between(old, new) if sidecar in folded else None
                rebind(sidecar, new, edit=edit, fsync=fsync)
    if fsync:
        sync_folder(os.path.dirname(os.path.realpath(path)))
    for name in folded:
        os.unlink(name)


def _readers_of(episode: Episode, sidecars: list[str]) -> dict[str, ShardReader]:
    """The readers through which an episode reads these sidecars, by path."""
    readers = [] if episode.origin is None else episode.origin.sidecars
    known = {os.path.abspath(path): path for path in sidecars}
    found = {known.get(os.path.abspath(reader.name)): reader for reader in readers}
    return {path: reader for path, reader in found.items() if path is not None}


def _is_stored_in(address: Address, part: object, readers: dict[str, ShardReader]) -> bool:
    """Whether a part is what one of these files holds, unchanged."""
    if isinstance(part, Intervals):
        name, fields = block_name(address), part.to_fields()
        return any(
            Intervals.from_fields(reader.read_json(name)).to_fields() == fields
            for reader in readers.values()
            if name in reader
        )
    if isinstance(part, Residual):
        sources: Iterable[Any] = part.sources
    elif isinstance(part, Channel):
        sources = (part.source,)
    else:
        sources = (part.stored,) if isinstance(part, Extra) else ()
    files = {id(reader) for reader in readers.values()}
    return any(id(getattr(source, "reader", None)) in files for source in sources)


def _check_ground_truth(path: str, sidecars: list[str], old: Episode, new: Episode) -> None:
    assert old.origin is not None
    assert new.origin is not None
    before, after = ground_truth(old.origin.reader), ground_truth(new.origin.reader)
    changed = [name for name, facts in before.items() if after.get(name) != facts]
    if (old.id, old.length) != (new.id, new.length):
        changed = ["meta/episode"]
    for sidecar in sidecars:
        with ShardReader(sidecar) as reader:
            names = [name for name in reader.names() if not name.startswith("meta/")]
            changed += [name for name in names if name in new.origin.reader]
    if changed:
        raise InvalidArgument(
            "the episode has sidecars, which belong to what it held before",
            path=path,
            entry=changed[0],
            found=f"{len(sidecars)} sidecars",
            hint="merge them into the file first with wshard.compact, remove them with wshard.remove_lane, "
            "or save under another name",
        )
