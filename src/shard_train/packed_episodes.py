"""Episodes in packs: whole `.wshard` files as entries, which you open in place and restore byte for byte.

A file `run/ep_7.wshard` becomes the entry `wshard` of the record `run/ep_7`. Files in the folder
`run/ep_7.wshard.lanes` go along as `wshard.lanes/dreamer.wshard` and so on. A record's key, a dot and an entry's
name make the path of a file, as in tar files of samples, so that `shardpack.unpack` restores the files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from shard_format import ShardReader
from shard_format.errors import (
    DATA_ERRORS,
    EntryNotFound,
    InvalidArgument,
    ReferenceMismatch,
    shorten,
)
from shard_format.listing import is_there, path_of_url
from shard_format.parallel import ordered_parallel
from shard_format.registry import Role
from shard_format.sources import is_url
from shard_format.transfer import AT_ONCE, fetch, names_below
from shardpack import ShardPackReader
from shardpack.files import FolderItem, InputFile, walk
from shardpack.parts import commit
from shardpack.sets import SetLabel, is_set, part_file
from shardpack.writer import creation_time
from shardpack.writer_set import ShardWriterSet
from wshard import load_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from shard_format.executors import Executor
    from shardpack.columns import AnyRecord
    from shardpack.writer import Output
    from wshard import Episode

__all__ = [
    "EpisodePack",
    "PackedEpisodes",
    "episode_names",
    "listing_revision",
    "open_episode",
    "open_episode_entry",
    "open_episode_pack",
    "pack_episodes",
]

_SUFFIX: Final = ".wshard"
# The folder of added lanes, beside its episode: spec/wshard.md, section 12.
_LANES: Final = ".lanes"
_EPISODE: Final = "wshard"
_SIDECARS: Final = _EPISODE + _LANES + "/"
_ALIGNMENT: Final = 64

# The key of an episode, and the path or URL of each of its files by the name of the entry.
_Files: TypeAlias = "tuple[str, dict[str, str]]"


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
    """Files of the folder that are not in the shards: not episodes, or unfinished recordings."""


def pack_episodes(
    folder: str | os.PathLike[str],
    output: Output,
    *,
    progress: Callable[[int], None] | None = None,
    executor: Executor | None = None,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> PackedEpisodes:
    """Pack all `.wshard` files below a folder into shards, in the order of their paths.

    Each file is stored as it is, on a multiple of 64 bytes, so that you can use it in place. Added lanes
    (`<file>.lanes/`) are part of its record. Links are not followed. The chunks of a chunked episode are ordinary
    records; its manifest names files, so unpack the shards before you open it.

    Args:
        folder: searched with all folders in it; also the URL of one. Episodes behind a URL are fetched a few at a time.
        output: `"train-%06d.shardpack"` for a set of shards, or one file: a path, or an open file.
        progress: called with the size of each episode after it is written.
        executor: writes the set in as many parts as it has jobs, each in a process or on a machine of its own, and makes
            one set of them (`shardpack.commit`). A shard then ends where a part does.
        options: what `shardpack.ShardWriterSet` takes: `append`, `overwrite`, `max_bytes`, `metadata` and so on. With
            `append=True`, episodes that are in the set already are not packed again. With a `label` that names a part,
            only the episodes of that part are packed.

    Raises:
        InvalidArgument: the folder holds no episode, or a file's name cannot be a key.
        ShardIOError: a file cannot be read, or changed while it was read.
    """
    root = path_of_url(os.fspath(folder))
    storage = options.get("storage_options")
    options.setdefault("alignment", _ALIGNMENT)
    episodes, left_out = _find(root, storage)
    if not episodes:
        raise InvalidArgument(
            "the folder holds no episodes", path=root, expected=f"files *{_SUFFIX}"
        )
    label = options.get("label") or SetLabel()
    if executor is not None or label.part:
        revision = label.revision or listing_revision(root, storage)
        label = options["label"] = SetLabel(revision, label.part, label.parts)
    if executor is not None:
        # Each process fetches for itself what is in an object store.
        return _pack_parts(_absolute(root), output, executor, progress, options, left_out)
    return _pack_found(episodes, output, progress, options, left_out)


def _absolute(path: str) -> str:
    """A path or URL that means the same in another folder."""
    return path if is_url(path) else os.path.abspath(path)


def _pack_found(
    episodes: dict[str, dict[str, str]],
    output: Output,
    progress: Callable[[int], None] | None,
    options: dict[str, Any],
    left_out: list[str],
) -> PackedEpisodes:
    label = options.get("label") or SetLabel()
    if label.part:
        keys = list(episodes)
        start, stop = (len(keys) * n // label.parts for n in (label.part - 1, label.part))
        episodes = {key: episodes[key] for key in keys[start:stop]}
    packed = sidecars = 0
    skip_known = bool(options.get("append"))
    with ShardWriterSet(output, **options) as writer:
        wanted: Iterator[_Files] = (
            (k, files) for k, files in episodes.items() if not (skip_known and k in writer)
        )
        if any(is_url(files[_EPISODE]) for files in episodes.values()):
            wanted = _fetched(wanted, options.get("storage_options"))
        for key, files in wanted:
            with ExitStack() as inputs:
                entries = {
                    name: inputs.enter_context(InputFile(path)).data for name, path in files.items()
                }
                try:
                    writer.write(key, entries)
                except InvalidArgument as error:
                    raise error.located(path=episodes[key][_EPISODE]) from None
            packed += 1
            sidecars += len(files) - 1
            if progress is not None:
                progress(sum(map(len, entries.values())))
    return PackedEpisodes(writer.paths, packed, sidecars, left_out)


def _fetched(
    episodes: Iterator[_Files], storage_options: Mapping[str, Any] | None
) -> Iterator[_Files]:
    """The same episodes with paths of local copies. A few are fetched ahead; each is removed when the next is asked for."""
    with tempfile.TemporaryDirectory(prefix="shard-") as folder:

        def bring(episode: _Files) -> _Files:
            key, urls = episode
            inner = tempfile.mkdtemp(dir=folder)
            paths = {name: os.path.join(inner, str(n)) for n, name in enumerate(urls)}
            for name, path in paths.items():
                fetch(urls[name], path, storage_options)
            return key, paths

        for key, paths in ordered_parallel(episodes, bring, AT_ONCE):
            yield key, paths
            shutil.rmtree(os.path.dirname(paths[_EPISODE]))


def listing_revision(
    folder: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> str:
    """A text that changes with the names and sizes of the episodes of a folder; the revision of a set in parts."""
    root = path_of_url(os.fspath(folder))
    sizes = {
        f"{root.rstrip('/')}/{name}": version.size
        for name, version in names_below(root, storage_options).items()
    }
    digest = hashlib.sha256()
    for key, files in _find(root, storage_options)[0].items():
        row = [(n, sizes[path] if sizes else os.path.getsize(path)) for n, path in files.items()]
        digest.update(repr((key, row)).encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _pack_parts(
    root: str,
    output: Output,
    executor: Executor,
    progress: Callable[[int], None] | None,
    options: dict[str, Any],
    left_out: list[str],
) -> PackedEpisodes:
    """Pack in as many parts as there are jobs, and make a set of them."""
    label = options.get("label") or SetLabel()
    if not isinstance(output, (str, os.PathLike)) or not is_set(output) or options.get("first"):
        raise InvalidArgument(
            "several jobs write a set of shards that starts with number 0",
            path=str(output),
            expected="a name such as 'train-%06d.shardpack'",
        )
    if options.get("append") or label.part:
        raise InvalidArgument(
            "several jobs write a new set",
            path=os.fspath(output),
            hint="leave out append and the part, or the executor",
            command="leave out --resume and --part, or pass --jobs 1",
        )
    name, parts = _absolute(os.fspath(output)), executor.jobs
    if not options.get("overwrite") and is_there(name % 0, options.get("storage_options")):
        raise InvalidArgument("there are shards of this name already", path=name % 0)
    # A part that is written twice is the same both times.
    fixed = {**options, "overwrite": True, "created": creation_time(options.get("created"))}
    labels = [SetLabel(label.revision, part, parts) for part in range(1, parts + 1)]
    packed = sidecars = 0
    for _, (done, more, nbytes) in executor.run(partial(_pack_part, root, name, fixed), labels):
        packed, sidecars = packed + done, sidecars + more
        if progress is not None:
            progress(nbytes)
    written = commit(
        name,
        parts=[os.path.basename(part_file(name, one)) for one in labels],
        overwrite=bool(options.get("overwrite")),
    )
    return PackedEpisodes(written.paths, packed, sidecars, left_out)


def _pack_part(
    root: str, output: str, options: dict[str, Any], label: SetLabel
) -> tuple[int, int, int]:
    sizes: list[int] = []
    found = pack_episodes(root, output, progress=sizes.append, **{**options, "label": label})
    return found.episodes, found.sidecars, sum(sizes)


def _find(
    root: str, storage_options: Mapping[str, Any] | None
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The paths or URLs of each episode's files by entry name, by key, in order; and all other files."""
    if is_url(root):
        folder = root.rstrip("/")
        items = sorted(
            FolderItem(unquote(name), f"{folder}/{name}", is_file=True)
            for name in names_below(root, storage_options)
        )
    elif os.path.isdir(root):
        items = walk(root)
    else:
        raise InvalidArgument("not a folder", path=root)
    episodes: dict[str, dict[str, str]] = {}
    lanes: dict[str, dict[str, str]] = {}
    left_out: list[str] = []
    for relative, path, is_file in items:
        head, between, inside = relative.partition(_SUFFIX + _LANES + "/")
        if not is_file:
            left_out.append(path)
        elif between:
            lanes.setdefault(head, {})[_SIDECARS + inside] = path
        elif relative.endswith(_SUFFIX) and os.path.basename(path) != _SUFFIX:
            episodes[relative.removesuffix(_SUFFIX)] = {_EPISODE: path}
        else:
            left_out.append(path)
    for key, files in lanes.items():
        if key in episodes:
            episodes[key].update(files)
        else:
            left_out += files.values()  # lanes without their episode
    return episodes, sorted(left_out)


def open_episode(record: AnyRecord, **options: Any) -> Episode:  # noqa: ANN401 - of `load_wshard`
    """The episode of a record that `pack_episodes` wrote, with its added lanes.

    Only its descriptions are read until you access more, and uncompressed arrays are views of the shard.

    Args:
        record: of a dataset, a shard or a stream.
        options: what `wshard.load_wshard` takes: `channels`, `lanes`, `check` and so on.
    """
    found = [_EPISODE] if _EPISODE in record else episode_names(record)
    if len(found) != 1:
        raise EntryNotFound(
            f"record {shorten(record.key)} has {len(found)} episodes",
            expected="one entry whose name ends in 'wshard'",
            found=", ".join(map(shorten, record.names[:5])),
            hint="open_episode_entry(record, name) opens one of several",
        )
    return open_episode_entry(record, found[0], **options)


def episode_names(record: AnyRecord) -> list[str]:
    """The entries of a record that are episodes; added lanes are not listed."""
    return [
        name
        for name in record.names
        if name == _EPISODE or (name.endswith(_SUFFIX) and not _is_lane(record, name))
    ]


def _is_lane(record: AnyRecord, name: str) -> bool:
    episode, between, _ = name.partition(_LANES + "/")
    return bool(between) and episode in record


def open_episode_entry(record: AnyRecord, name: str, **options: Any) -> Episode:  # noqa: ANN401 - of `load_wshard`
    """The episode in one entry of a record, with its added lanes; see `open_episode`."""
    lanes = name + _LANES + "/"
    sidecars = sorted(n for n in record.names if n.startswith(lanes) and n.endswith(_SUFFIX))
    options.setdefault("sidecars", [record[sidecar].source() for sidecar in sidecars])
    return load_wshard(record[name].source(), **options)


class EpisodePack:
    """The episodes of one pack, which are opened where they are. The names are those that `shardpack.unpack` gives."""

    def __init__(self, reader: ShardPackReader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        """How many records it has."""
        return len(self.reader)

    def _head(self, record: int) -> AnyRecord:
        """A record. A remote pack fetches only its head: a window needs a small part of an episode."""
        return self.reader.take([record], whole=False)[0]

    def entries(self, record: int) -> dict[str, int]:
        """The size of each episode of a record, by its name."""
        found = self._head(record)
        return {f"{found.key}.{entry}": found[entry].size for entry in episode_names(found)}

    def load(self, record: int, name: str, **options: Any) -> Episode:  # noqa: ANN401 - of `load_wshard`
        """Opens an episode of a record, with its added lanes.

        Raises:
            ReferenceMismatch: the record has no episode of this name.
            InvalidArgument: it is the manifest of an episode in chunks.
            ShardError: it cannot be read.
        """
        if 0 <= record < len(self.reader):
            found = self._head(record)
            entry = name.removeprefix(f"{found.key}.")
            if name == f"{found.key}.{entry}" and entry in episode_names(found):
                return _open_in_pack(found, entry, options)
        raise ReferenceMismatch(
            "the pack has changed since the dataset was opened",
            path=self.reader.name,
            expected=f"{name!r} in record {record}",
            found=f"{len(self.reader)} records",
            hint="open the dataset again, with index=False if that does not help",
        )


def open_episode_pack(path: str, storage_options: Mapping[str, Any] | None = None) -> EpisodePack:
    """Open one pack of episodes; what `wshard.find(…, packs=)` takes."""
    return EpisodePack(ShardPackReader(path, storage_options=storage_options))


def _open_in_pack(record: AnyRecord, entry: str, options: dict[str, Any]) -> Episode:
    try:
        # A batch spreads its windows over threads: one window needs no more of them.
        return open_episode_entry(record, entry, **{"threads": 1, **options})
    except DATA_ERRORS as error:
        if _is_manifest(record, entry):
            raise InvalidArgument(
                "a chunked episode cannot be opened in a pack: its manifest names files",
                hint="shardpack.unpack(…) restores the files; with on_error='skip' the manifest is "
                "left out and every chunk is an episode",
            ) from error
        raise


def _is_manifest(record: AnyRecord, entry: str) -> bool:
    try:
        with ShardReader(record[entry].source()) as reader:
            return reader.header.role == Role.MANIFEST
    except DATA_ERRORS:  # the first error already says what is wrong
        return False
