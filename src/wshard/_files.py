"""Episodes on disk: opening one with everything that belongs to it, and saving one safely."""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from shard_format import ShardReader
from shard_format.atomic import switched
from shard_format.errors import InvalidArgument, ShardError
from shard_format.listing import path_of_url
from shard_format.registry import DEFAULT_LIMITS, Limits, Role
from shard_format.sources import was_replaced
from wshard._blocks import Extra
from wshard._channels import Channel
from wshard._chunk_manifest import open_chunked
from wshard._labels import Intervals
from wshard._lanes import block_name
from wshard._reader import episode_of, keep_only
from wshard._sidecar import (
    EDIT_FILE,
    SIDECAR_SUFFIX,
    SidecarWarning,
    attach,
    changing,
    fingerprint,
    fingerprint_of,
    ground_truth,
    new_file,
    rebind,
    remove_sidecars,
    sidecar_files,
)
from wshard._storage import StoragePolicy
from wshard._writer import DEFAULT_OPTIONS, FileOptions, write_episode
from wshard.overviews import is_camera, require_encoder, write_overviews
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shard_format import Compression
    from shard_format.sources import SourceLike
    from wshard._episode import Episode, Origin
    from wshard._lanes import Address

__all__ = ["open_wshard", "save_wshard"]

# How often an episode is opened again that a writer has replaced meanwhile.
_LOOKS: Final = 8
_MANIFEST: Final = int(Role.MANIFEST)


def open_wshard(
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
    """Opens an episode that is a file, or in chunks; see `wshard.load_wshard`, which also opens recordings."""
    if isinstance(sidecars, str) and sidecars != "strict":
        raise InvalidArgument(
            "unknown value of sidecars",
            expected="True, False, 'strict' or a list of sidecars",
            found=repr(sidecars),
        )
    beside = sidecars if isinstance(sidecars, (bool, str)) else list(sidecars)
    is_path = isinstance(source, (str, os.PathLike))
    for looks_left in reversed(range(_LOOKS if is_path else 1)):
        reader = ShardReader(
            source, limits=limits, threads=threads, check=check, storage_options=storage_options
        )
        try:
            episode, problems = _open(reader, beside, storage_options)
        except BaseException as error:
            reader.close()
            if looks_left and isinstance(error, ShardError) and was_replaced(reader.source):
                continue
            raise
        if not (looks_left and _is_mixed(episode, beside, problems)):
            break
        episode.close()
    try:
        if problems:
            _report(problems, are_errors=beside is not True)
        if channels is not None or lanes is not None:
            keep_only(episode, channels, lanes)
    except BaseException:
        episode.close()
        raise
    return episode


def _open(
    reader: ShardReader,
    sidecars: bool | str | list[SourceLike],
    storage_options: Mapping[str, Any] | None,
) -> tuple[Episode, list[ShardError]]:
    """The episode behind a reader with its sidecars, and what is wrong with those that do not fit."""
    if reader.role == _MANIFEST:
        episode = open_chunked(reader, storage_options)
    else:
        episode = episode_of(reader)
    found: Iterable[SourceLike] = sidecars if isinstance(sidecars, list) else ()
    if sidecars is True or sidecars == "strict":
        found = sidecar_files(reader.name)
    return episode, attach(episode, found) if found else []


def _report(problems: list[ShardError], *, are_errors: bool) -> None:
    for problem in problems:
        if are_errors:
            raise problem
        warnings.warn(
            f"{problem}; the episode is read without it, sidecars='strict' makes this an error",
            SidecarWarning,
            stacklevel=3,
        )


def _is_mixed(
    episode: Episode, sidecars: bool | str | list[SourceLike], problems: list[ShardError]
) -> bool:
    """Whether a writer came in between, so that the files may not belong together (W-SID-7)."""
    assert episode.origin is not None
    for error in problems:
        if isinstance(error, OSError) and error.errno == errno.ENOENT:
            return True  # a sidecar that was listed has gone
    is_alone = sidecars is False and not episode.origin.chunks
    return not is_alone and was_replaced(episode.origin.reader.source)


def save_wshard(
    episode: Episode,
    path: str | os.PathLike[str],
    compression: str | Compression | Mapping[str, str | Compression] | None = None,
    *,
    profile: str | None = None,
    steps_per_frame: int | Mapping[str, int] | None = None,
    fsync: bool = True,
    overview: bool = False,
    options: FileOptions = DEFAULT_OPTIONS,
) -> None:
    """Saves an episode as one file, which appears under its name when it is complete.

    An episode that was loaded keeps its form: blocks that you did not change are copied as they are stored, without
    decoding them, and the descriptions stay as they are where they are still true.

    If the file at `path` has sidecars, they are kept: what `episode` has from them stays in them, and they are bound
    to the new file. This is possible only if the recorded blocks did not change. Other processes that change the
    episode or its sidecars wait until it is done.

    Args:
        episode: what to save.
        path: where, also a URL of an object store; an existing file is replaced at the end.
        compression: None keeps the stored form of unchanged blocks and stores new ones raw. `"none"` (every array a
            view of the file), `"zstd"`, `"zstd:LEVEL"`, `"lz4"` and `"auto"`, which tries what suits each block,
            encode all blocks again, and `"keep"` is the same as None. Or a mapping of block names, channel names or
            patterns to these: `{"signal/rgb": "zstd:19", "signal/depth*": "lz4", "*": "none"}`. Blocks that hardly
            shrink stay raw. Cameras may name a codec for pictures, as `VideoChannel.encode` takes it:
            `{"rgb": "h264:crf=23", "depth": "ffv1"}`. The file then holds them as video; `episode` does not change.
        profile: `"training"` for the smallest files with fast windows, `"exchange"` for files that the
            reference readers in other languages open. Both choose as `"auto"` unless told otherwise.
        steps_per_frame: how many steps are decoded together in large zstd blocks, and how far apart the keyframes
            of video are; or a mapping as for `compression`. None chooses by size.
        fsync: False skips syncing to disk: faster, but a power failure can lose the file.
        overview: whether to write `path.overview` afterwards, see `wshard.overviews.write_overviews`.
        options: identity, alignment, threads, limits, and storage options for a URL.

    Raises:
        InvalidArgument: names the channel that cannot be saved, and why; or the sidecars that would no longer fit;
            or the file was changed since the episode was loaded from it.
        EntryNotFound: `compression` or `steps_per_frame` names a block that the episode does not have.
        MissingExtra: `overview` is set, the episode has cameras, and Pillow is not installed. Nothing is written then.
    """
    location = path_of_url(os.fspath(path))
    policy = StoragePolicy(compression, profile, steps_per_frame)
    if overview:
        require_encoder(one for one in episode.observations.values() if is_camera(one))
    _save(episode, location, policy, fsync=fsync, options=options)
    if overview:
        storage = options.storage_options
        write_overviews(location, fsync=fsync, limits=options.limits, storage_options=storage)


def _save(
    episode: Episode,
    location: str,
    policy: StoragePolicy,
    *,
    fsync: bool,
    options: FileOptions,
) -> None:
    with changing(location) as sidecars:
        own = _readers_of(episode, sidecars)
        edits = [file for file in own if os.path.basename(file) == EDIT_FILE]
        origin = _own_origin(episode, location)
        if origin is not None:
            _check_current(origin, sidecars, {file: own[file] for file in edits})
        if not sidecars and origin is None:
            write_episode(episode, location, policy, fsync=fsync, options=options)
            return
        # What sidecars hold stays in them. An edit that was read is part of the new file.
        alone = episode.picked(lambda at, part: not _is_stored_in(at, part, own))
        saved = replace_episode(
            *(location, alone if sidecars else episode, sidecars, policy),
            folded=edits,
            fsync=fsync,
            options=options,
        )
        if origin is not None:
            origin.saved = saved
            gone = {own[file].name for file in edits}
            origin.sidecars = [reader for reader in origin.sidecars if reader.name not in gone]


def replace_episode(
    path: str,
    episode: Episode,
    sidecars: list[str],
    policy: StoragePolicy,
    *,
    folded: list[str],
    fsync: bool = True,
    options: FileOptions = DEFAULT_OPTIONS,
) -> str:
    """Replaces an episode and binds its sidecars to the new file; call it within `changing`. Returns the fingerprint.

    At every moment the sidecars fit the file that is there. Those that the new file holds, `folded`, are removed at the
    end.
    """
    beside = new_file(path)
    try:
        write_episode(episode, beside, policy, fsync=fsync, options=options)
        shutil.copymode(path, beside)
        if sidecars:
            _bind(path, beside, sidecars, folded, options.limits, fsync=fsync)
        saved = fingerprint_of(beside)
        with switched(beside, path, fsync=fsync):
            remove_sidecars(path, folded)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside)
        raise
    return saved


def _bind(
    path: str, beside: str, sidecars: list[str], folded: list[str], limits: Limits, *, fsync: bool
) -> None:
    """Binds the sidecars of an episode to its new file, too."""
    with (
        episode_of(ShardReader(path, limits=limits)) as old,
        episode_of(ShardReader(beside, limits=limits)) as new,
    ):
        _check_ground_truth(path, [file for file in sidecars if file not in folded], old, new)
        for sidecar in sidecars:
            rebind(sidecar, old, new, folds=sidecar in folded, fsync=fsync)


def _own_origin(episode: Episode, path: str) -> Origin | None:
    """The origin of an episode that is saved over the file that it was loaded from."""
    origin = episode.origin
    if origin is None or not _is_same_path(origin.path, path) or not os.path.exists(path):
        return None
    return origin


def _check_current(origin: Origin, sidecars: list[str], edits: dict[str, ShardReader]) -> None:
    """Raises if another process has changed the file that an episode was loaded from, or edited or removed what it has."""
    path = origin.path
    known = {path: {fingerprint(origin.reader), origin.saved}}
    known |= {file: {fingerprint(reader)} for file, reader in edits.items()}
    changed = [file for file, prints in known.items() if fingerprint_of(file) not in prints]
    there = set(map(os.path.abspath, sidecars))
    changed += [
        reader.name
        for reader in origin.sidecars
        if _is_same_path(os.path.dirname(reader.name), path + SIDECAR_SUFFIX)
        and os.path.abspath(reader.name) not in there
    ]
    if changed:
        raise InvalidArgument(
            "the episode has changed on disk since it was loaded; saving it would undo that change",
            path=changed[0],
            hint="load it again and repeat your change, or save under another name",
        )


def _is_same_path(first: str, second: str) -> bool:
    return os.path.abspath(first) == os.path.abspath(second)


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
    """Raises unless sidecars that stay fit the new file as they fit the old one."""
    if not sidecars:
        return
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
            "the episode has sidecars that belong to its previous content",
            path=path,
            entry=changed[0],
            found=", ".join(map(os.path.basename, sidecars)),
            hint="merge them into the file first with wshard.compact, remove them with wshard.remove_lane, "
            "or save under another name",
        )
