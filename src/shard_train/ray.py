"""Episodes and packs as datasets of Ray Data, and back. Needs the extra `ray`.

    import shard_train.ray as shards

    windows = shards.read_episodes("recordings", window=16, channels=["state", "ctrl"])
    samples = shards.read_packs("train.shardpack-set")
    samples.map(change).write_datasink(shards.PackSink("changed-%06d.shardpack"))

`shard_train.map_episodes(…, engine="ray")` calls a function with whole episodes. The machines of the cluster need this
package, and paths that mean the same files on all of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

import numpy as np
from xxhash import xxh3_128

from shard_format.atomic import make_parent, sync_folder, write_file
from shard_format.errors import (
    BadProfile,
    DuplicateName,
    FileThere,
    InvalidArgument,
    ShardError,
    must_stop,
    shorten,
)
from shard_format.extras import require
from shard_format.listing import is_there, natural_key, path_of_url
from shard_format.reader import ShardReader
from shard_format.registry import Role
from shard_format.safe_paths import unsafe_form
from shard_format.sources import is_url, read_file
from shard_train._episode_dataset import EpisodeDataset, with_shards
from shard_train._map_episodes import PackOpener, input_identity
from shardpack import Dataset, commit
from shardpack.reader import read_footer
from shardpack.sets import ShardSet, is_set, parts_folder, set_path
from shardpack.writer import creation_time
from shardpack.writer_set import ShardWriterSet
from wshard import find, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shardpack.dataset import Shards
    from wshard import Episode
    from wshard.catalogue import EpisodeTable, Files, Where

data: Any = require("ray.data", "ray")
_block: Any = require("ray.data.block", "ray")
_datasource: Any = require("ray.data.datasource", "ray")
pa: Any = require("pyarrow", "ray")

__all__ = [
    "KEY",
    "METADATA",
    "EpisodeSink",
    "PackSink",
    "episode_bytes",
    "read_episodes",
    "read_packs",
]

KEY: Final = "__key__"
"""The column of the keys of records."""
METADATA: Final = "__metadata__"
"""The column of the metadata of records, as JSON."""
_EPISODE: Final = "wshard"
_SUFFIX: Final = ".wshard"
_STAGING: Final = ".parts"
_REFERENCE: Final = ("path", "identity", "id", "env_id", "length", "bytes")
_REFERENCE_BYTES: Final = 256
_BLOCK_BYTES: Final = 64 << 20


# --- reading


def read_episodes(
    paths: Files,
    window: int | None = None,
    *,
    where: Where | None = None,
    override_num_blocks: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,  # noqa: ANN401 - of `EpisodeDataset`
) -> Any:  # noqa: ANN401 - a `ray.data.Dataset`
    """Episodes as a dataset of Ray Data.

    Without `window`, a row is a reference: `path`, `identity`, `id`, `env_id`, `length` and `bytes`. Arrays stay in the
    files, and the task that gets a row opens them. The identity reads the whole episode unless the file states it:
    `select_columns` without it saves that.

    With `window`, a row is a window as `EpisodeDataset` has it, with a tensor column for each channel. Channels that
    `select_columns` leaves out are not read.

    Args:
        paths: what `EpisodeDataset` takes: a folder, files, a pattern, packs of episodes.
        window: steps of a window.
        where: keeps the episodes for which it is true, as for `wshard.find`.
        override_num_blocks: how many tasks read; if left out, Ray chooses.
        storage_options: for files that are URLs.
        options: with `window`, what `EpisodeDataset` takes besides: `stride`, `channels`, `pad`, `align` and so on.
    """
    if window is None and options:
        raise InvalidArgument("these options need window=", found=", ".join(sorted(options)))
    source: Any
    if window is None:
        source = _References(
            find(with_shards(paths), where, storage_options=storage_options, packs=PackOpener())
        )
    else:
        more = {"where": where, "storage_options": storage_options, **options}
        source = _EpisodeWindows(
            partial(EpisodeDataset, paths, window, **more), options.get("channels")
        )
    return data.read_datasource(source, override_num_blocks=override_num_blocks)


def read_packs(
    paths: Shards,
    *,
    override_num_blocks: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:  # noqa: ANN401 - a `ray.data.Dataset`
    """The records of packs as a dataset of Ray Data.

    A row has the key (`__key__`), the metadata as JSON (`__metadata__`), and the bytes of each entry by its name; an
    entry that a record lacks is null. Entries that `select_columns` leaves out are not read.

    Args:
        paths: what `shardpack.open` takes: a set file, a pattern, a folder, a list of these.
        override_num_blocks: how many tasks read; if left out, Ray chooses. A shard is read by several tasks if there are
            more of them than shards.
        storage_options: for shards that are URLs.
    """
    return data.read_datasource(
        _Records(Dataset(paths, storage_options=storage_options)),
        override_num_blocks=override_num_blocks,
    )


class _Source(_datasource.Datasource, ABC):  # type: ignore[misc] # not known without Ray
    """What the three sources share: rows in ranges, with their sizes, and only the columns that are asked for."""

    _projection_map: dict[str, str] | None = None

    def supports_projection_pushdown(self) -> bool:
        return True

    def estimate_inmemory_data_size(self) -> int:
        return sum(nbytes for _, _, nbytes in self._ranges(1))

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: object = None,
    ) -> list[Any]:
        """A task for each range of rows."""
        columns = None if self._projection_map is None else list(self._projection_map)
        return [
            _datasource.ReadTask(
                self._reader(start, stop, columns),
                _block.BlockMetadata(
                    num_rows=stop - start, size_bytes=nbytes, exec_stats=None, input_files=None
                ),
                per_task_row_limit=per_task_row_limit,
            )
            for start, stop, nbytes in self._ranges(max(1, parallelism))
        ]

    @abstractmethod
    def _ranges(self, parts: int) -> list[tuple[int, int, int]]:
        """At most `parts` ranges that together cover all rows once: first row, row after the last, bytes."""

    @abstractmethod
    def _reader(
        self, start: int, stop: int, columns: Sequence[str] | None
    ) -> Callable[[], Iterable[Any]]:
        """A function that can be pickled and reads a range of rows."""


def _grouped(sizes: NDArray[np.int64], parts: int) -> Iterator[tuple[int, int]]:
    """Ranges of neighbours with about the same number of bytes, none of them empty."""
    ends = np.cumsum(np.maximum(sizes, 1))
    cuts = np.searchsorted(ends, np.arange(1, parts) * (ends[-1] / parts), side="left") + 1
    borders = np.unique(np.concatenate(([0], np.minimum(cuts, len(sizes)), [len(sizes)]))).tolist()
    return itertools.pairwise(borders)


class _References(_Source):
    def __init__(self, table: EpisodeTable) -> None:
        super().__init__()
        self._table = table
        self._sizes = table.sizes

    def _ranges(self, parts: int) -> list[tuple[int, int, int]]:
        return [
            (start, stop, (stop - start) * _REFERENCE_BYTES)
            for start, stop in _grouped(self._sizes, parts)
        ]

    def _reader(
        self, start: int, stop: int, columns: Sequence[str] | None
    ) -> Callable[[], Iterable[Any]]:
        return partial(
            _read_references, self._table[start:stop], self._sizes[start:stop].tolist(), columns
        )


def _read_references(
    table: EpisodeTable, sizes: Sequence[int], columns: Sequence[str] | None
) -> Iterator[Any]:
    wanted = _REFERENCE if columns is None else columns
    rows = []
    for number, (info, nbytes) in enumerate(zip(table, sizes, strict=True)):
        row = {
            "path": info.path,
            "id": info.id,
            "env_id": info.env_id,
            "length": info.length,
            "bytes": nbytes,
        }
        if "identity" in wanted:
            with table.open(number) as episode:
                row["identity"] = input_identity(episode)
        rows.append({name: row[name] for name in wanted})
    yield pa.Table.from_pylist(rows)


class _EpisodeWindows(_Source):
    def __init__(
        self, open_dataset: Callable[..., EpisodeDataset], channels: Iterable[str] | None
    ) -> None:
        super().__init__()
        self._open = open_dataset
        self._channels = channels
        self._dataset = open_dataset()
        window = self._dataset.window
        shapes = self._dataset.channels.values()
        self._row_bytes = 64 + window * sum(
            dtype.itemsize * int(np.prod(shape)) for dtype, shape in shapes
        )

    def _ranges(self, parts: int) -> list[tuple[int, int, int]]:
        count, dataset = len(self._dataset), self._dataset
        borders = [0]
        for part in range(1, parts):
            at = count * part // parts
            # Whole episodes where that leaves something for the task before.
            first = at - dataset.episode_of(at)[1] // dataset.stride
            border = first if first > borders[-1] else at
            if border > borders[-1]:
                borders.append(border)
        borders.append(count)
        return [
            (start, stop, (stop - start) * self._row_bytes)
            for start, stop in itertools.pairwise(borders)
        ]

    def _reader(
        self, start: int, stop: int, columns: Sequence[str] | None
    ) -> Callable[[], Iterable[Any]]:
        dataset = self._dataset
        if columns is not None:
            known = [*dataset.channels, *dataset.ragged_keys]
            if any(key not in columns for key in known):
                dataset = self._open(channels=[key for key in known if key in columns])
        at_once = max(1, _BLOCK_BYTES // self._row_bytes)
        return partial(_read_windows, dataset, start, stop, at_once, columns)


def _read_windows(
    dataset: EpisodeDataset, start: int, stop: int, at_once: int, columns: Sequence[str] | None
) -> Iterator[Any]:
    for first in range(start, stop, at_once):
        batch = dataset.batch(np.arange(first, min(first + at_once, stop)))
        chosen = batch if columns is None else {name: batch[name] for name in columns}
        yield _block.BlockAccessor.batch_to_block(chosen)


class _Records(_Source):
    def __init__(self, dataset: Dataset) -> None:
        super().__init__()
        self._dataset = dataset
        footers = dataset.footers()
        self._counts = np.array([footer.record_count for footer in footers], np.int64)
        self._sizes = np.array([footer.total_size for footer in footers], np.int64)
        schema = dataset.metadata.get("schema")
        self._names = sorted(schema) if isinstance(schema, dict) else []

    def _ranges(self, parts: int) -> list[tuple[int, int, int]]:
        firsts = np.concatenate(([0], np.cumsum(self._counts))).tolist()
        found: list[tuple[int, int, int]] = []
        for first, last in _grouped(self._sizes, parts):
            start, stop, nbytes = firsts[first], firsts[last], int(self._sizes[first:last].sum())
            pieces = 1
            if last - first == 1:
                share = parts * nbytes / max(1, int(self._sizes.sum()))
                pieces = max(1, min(round(share), stop - start))
            borders = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
            found += [
                (one, other, nbytes // pieces)
                for one, other in itertools.pairwise(borders)
                if other > one
            ]
        return found

    def _reader(
        self, start: int, stop: int, columns: Sequence[str] | None
    ) -> Callable[[], Iterable[Any]]:
        wanted = [KEY, METADATA, *self._names] if columns is None and self._names else columns
        return partial(_read_records, self._dataset, start, stop, wanted)


def _read_records(
    dataset: Dataset, start: int, stop: int, columns: Sequence[str] | None
) -> Iterator[Any]:
    rows: list[dict[str, Any]] = []
    nbytes = 0
    for record in dataset.records(start, stop):
        row: dict[str, Any] = {}
        for name in [KEY, METADATA, *record.names] if columns is None else columns:
            if name == KEY:
                row[name] = record.key
            elif name == METADATA:
                row[name] = json.dumps(record.metadata)
            elif name in record:
                row[name] = record[name].read()
                nbytes += len(row[name])
        rows.append(row)
        if nbytes >= _BLOCK_BYTES:
            yield _record_table(rows, columns)
            rows, nbytes = [], 0
    if rows:
        yield _record_table(rows, columns)


def _record_table(rows: list[dict[str, Any]], columns: Sequence[str] | None) -> Any:  # noqa: ANN401 - of pyarrow
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    texts = (KEY, METADATA)
    return pa.table(
        {
            name: pa.array(
                [row.get(name) for row in rows],
                pa.string() if name in texts else pa.large_binary(),
            )
            for name in names
        }
    )


# --- writing


class PackSink(_datasource.Datasink):  # type: ignore[misc] # not known without Ray
    """Writes rows as a set of shards, which appears when all rows are written.

        rows.write_datasink(PackSink("train-%06d.shardpack", compression="zstd"))

    A row has the key under `__key__`, the metadata (a dictionary, or JSON) under `__metadata__` if there is any, and
    entries by name: bytes, or values that the ending of the name says how to encode. A null leaves the entry out.

    Until then the shards are in `<set>.shardpack-parts`, named by a hash of their rows: a task that runs twice writes the
    same files, and the next run takes those that a failed one has finished. The shards are in the order of their first keys.

    Args:
        output: the set, such as `"train-%06d.shardpack"`, in a folder that all machines reach, or in an object store. The
            storage options of a URL come from the environment (SHARD_STORAGE_OPTIONS) of all machines.
        max_bytes: about how large a shard becomes.
        overwrite: True replaces a set that is there, at the end; not in an object store.
        options: what `ShardPackWriter` takes: `compression`, `alignment`, `metadata` and so on.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        max_bytes: int = 256 << 20,
        overwrite: bool = False,
        **options: Any,  # noqa: ANN401 - checked by the writer
    ) -> None:
        self._output = _absolute(output)
        if not is_set(os.path.basename(self._output)):
            raise InvalidArgument(
                "a task writes one shard or several: pass the name of a set",
                path=self._output,
                expected="such as 'train-%06d.shardpack'",
            )
        self._folder = parts_folder(self._output)
        self._max_bytes = max_bytes
        self._overwrite = overwrite
        self._options = {**options, "created": creation_time(options.get("created"))}

    @property
    def min_bytes_per_write(self) -> int:
        return self._max_bytes

    def on_write_start(self, schema: object = None) -> None:
        """Refuses a set that is there before any work is done."""
        path = self._output % 0
        if is_url(path) and self._overwrite:
            raise InvalidArgument("a set in an object store cannot be replaced", path=path)
        if not self._overwrite and is_there(set_path(self._output) if is_url(path) else path):
            raise InvalidArgument(
                "there are shards of this name already",
                path=path,
                hint="choose another name"
                if is_url(path)
                else "pass overwrite=True to replace them",
            )

    def write(self, blocks: Iterable[Any], ctx: object) -> tuple[str, str]:
        """Writes the rows of one task; returns the name of their set file, and the first key."""
        rows = [row for block in blocks for row in _rows_of(block)]
        options = {name: self._options[name] for name in self._options if name != "created"}
        digest = xxh3_128(repr((self._max_bytes, sorted(options.items()))).encode())
        for row in rows:
            for name in sorted(row):
                value = row[name]
                content = value if isinstance(value, bytes) else _canonical(value)
                digest.update(f"{name}:{len(content)}:".encode())
                digest.update(content)
        name = digest.hexdigest()
        first = str(rows[0][KEY]) if rows else ""
        if not self._is_complete(name):
            try:
                self._write_rows(name, rows)
            except InvalidArgument:
                # The same task, on a machine that was thought to be lost, may have been faster.
                if not self._is_complete(name):
                    raise
        return f"{name}.shardpack-set", first

    def _write_rows(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        path = os.path.join(self._folder.replace("%", "%%"), f"{name}-%06d.shardpack")
        with ShardWriterSet(
            path, max_bytes=self._max_bytes, overwrite=True, **self._options
        ) as writer:
            for row in rows:
                metadata = row.pop(METADATA, None)
                if isinstance(metadata, (str, bytes)):
                    metadata = json.loads(metadata)
                writer.write(row.pop(KEY), row, metadata or None)

    def _is_complete(self, name: str) -> bool:
        try:
            found = ShardSet.read(os.path.join(self._folder, f"{name}.shardpack-set"))
            for number, location in enumerate(found.locations()):
                found.check_place(number, location)
                found.check_footer(number, read_footer(location), location)
        except ShardError as error:
            if must_stop(error):
                raise
            return False
        return True

    def on_write_complete(self, write_result: Any) -> None:  # noqa: ANN401 - of Ray
        """Makes the set. It is there as a whole, or not at all."""
        parts = dict(write_result.write_returns) or dict([self.write([], None)])
        names = sorted(parts, key=lambda name: (natural_key(parts[name]), name))
        # Without tasks that had no rows.
        full = [name for name in names if parts[name]] or names[:1]
        commit(self._output, parts=full, overwrite=self._overwrite)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """What earlier runs that failed had finished, and this one did not need."""
        for path in _files_below(self._folder):
            if len(os.path.basename(path).partition(".")[0].partition("-")[0]) == 32:
                _remove(path)
        if not is_url(self._folder):
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)


class EpisodeSink(_datasource.Datasink):  # type: ignore[misc] # not known without Ray
    """Writes rows as a folder of episodes, which appears when all rows are written.

    A row has the name of the file without its ending under `__key__`, and the bytes of the file under `wshard`, as
    `read_packs` gives them for packs of episodes, and `episode_bytes` for an episode. Until then the files are in
    `<folder>.parts`. A task that runs twice writes the same files.

    In an object store, which cannot rename, the store copies the files at the end: each appears as a whole, one after the
    other. A run that died meanwhile is continued by the next one.

    Args:
        folder: must not be there; in a folder that all machines reach, or a URL, for which the storage options come from
            the environment (SHARD_STORAGE_OPTIONS) of all machines.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = _absolute(folder)
        self._staging = self._folder + _STAGING

    def on_write_start(self, schema: object = None) -> None:
        """Refuses a folder that is there before any work is done."""
        if is_url(self._folder):
            is_done = bool(_files_below(self._folder)) and not _files_below(self._staging)
        else:
            is_done = os.path.lexists(self._folder)
        if is_done:
            raise FileThere("the folder is there already", path=self._folder, hint="remove it")
        if not is_url(self._folder):
            os.makedirs(self._staging, exist_ok=True)

    def write(self, blocks: Iterable[Any], ctx: object) -> list[str]:
        """Writes the episodes of one task; returns their names."""
        names = []
        for row in (row for block in blocks for row in _rows_of(block)):
            name, content = str(row[KEY]) + _SUFFIX, row[_EPISODE]
            reason = unsafe_form(name)
            if reason is not None:
                raise InvalidArgument(f"{shorten(name)} cannot be a file: {reason}")
            with ShardReader(content) as reader:
                if reader.role != Role.WSHARD:
                    raise BadProfile("the bytes are not those of an episode", entry=name)
            path = self._staged(name)
            if not is_url(path):
                make_parent(path)
            write_file(path, [content], fsync=True)
            names.append(name)
        return names

    def on_write_complete(self, write_result: Any) -> None:  # noqa: ANN401 - of Ray
        """Gives the folder its name."""
        names = [name for part in write_result.write_returns for name in part]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DuplicateName(
                f"two rows have the key {shorten(twice.removesuffix(_SUFFIX))}", path=self._folder
            )
        # Stores write other letters of a name as %XX than we do.
        kept = {unquote(self._staged(name)) for name in names}
        for path in _files_below(self._staging):
            if unquote(path) not in kept:  # of an earlier run that failed
                _remove(path)
        if not is_url(self._folder):
            os.rename(self._staging, self._folder)
            sync_folder(os.path.dirname(self._folder))
            return
        from shard_format.remote import copy_url

        staged = sorted(map(self._staged, names))
        for path in staged:
            copy_url(path, self._folder + path.removeprefix(self._staging))
        for path in staged:
            _remove(path)

    def _staged(self, name: str) -> str:
        if not is_url(self._folder):
            return os.path.join(self._staging, name)
        return f"{self._staging}/{quote(name, safe='/ +')}"


def _absolute(path: str | os.PathLike[str]) -> str:
    """The path as every machine can use it."""
    name = path_of_url(os.fspath(path))
    return name.rstrip("/") if is_url(name) else os.path.abspath(name)


def _files_below(folder: str) -> list[str]:
    """The files in a folder and in the folders below it; none if it is missing."""
    if is_url(folder):
        from shard_format.remote import list_url

        return [one.url for one in list_url(folder)]
    return [os.path.join(inner, file) for inner, _, files in os.walk(folder) for file in files]


def _remove(path: str) -> None:
    if is_url(path):
        from shard_format.remote import delete_url

        delete_url(path)
    else:
        os.unlink(path)


def episode_bytes(episode: Episode, **options: Any) -> bytes:  # noqa: ANN401 - of `save_wshard`
    """The bytes of the file of an episode, for `EpisodeSink`.

    Args:
        episode: what to save.
        options: what `save_wshard` takes: `compression`, `profile` and so on.
    """
    folder = tempfile.mkdtemp()
    try:
        path = os.path.join(folder, "episode.wshard")
        save_wshard(episode, path, **{"fsync": False, **options})
        return read_file(path)
    finally:
        shutil.rmtree(folder)


def _rows_of(block: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - of Ray
    """The rows of a block, without nulls."""
    for row in _block.BlockAccessor.for_block(block).iter_rows(public_row_format=True):
        if KEY not in row:
            raise InvalidArgument(
                f"the rows have no column {KEY!r}", found=", ".join(map(str, row))[:200]
            )
        yield {name: value for name, value in row.items() if value is not None}


def _canonical(value: Any) -> bytes:  # noqa: ANN401 - the caller's
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes()
    return repr(value).encode()
