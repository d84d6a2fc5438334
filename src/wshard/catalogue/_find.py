"""Episodes as a table: which ones there are, and what is known about them without opening them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from shard_format.sources import is_url
from wshard._formats import load_wshard
from wshard.catalogue._index import CatalogueOpener, select
from wshard.catalogue._rows import NO_PACK, EpisodeInfo
from wshard.catalogue._where import FIELDS, field_of, parse_where

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from shard_format.errors import ShardError
    from shard_format.executors import Executor
    from wshard._episode import Episode
    from wshard.catalogue._index import OpenPack
    from wshard.catalogue._rows import Catalogue
    from wshard.catalogue._scan import Files
    from wshard.catalogue._where import Where

__all__ = ["EpisodeTable", "find"]

_SHOWN: Final = ("path", "id", "length", "return", "success")
_MOST_SHOWN: Final = 20
_WIDEST: Final = 40


class EpisodeTable(Sequence[EpisodeInfo]):
    """Episodes in the order of their files, each a row that knows its path, id, length, return, success and metadata.

    A sequence of `EpisodeInfo`; a slice is a table again. Printed, it shows the first rows.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        storage_options: Mapping[str, Any] | None = None,
        open_pack: OpenPack | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._storage_options = storage_options
        self._open_pack = open_pack

    def __len__(self) -> int:
        return len(self._catalogue.rows)

    @overload
    def __getitem__(self, number: int) -> EpisodeInfo: ...

    @overload
    def __getitem__(self, number: slice) -> EpisodeTable: ...

    def __getitem__(self, number: int | slice) -> EpisodeInfo | EpisodeTable:
        if isinstance(number, slice):
            rows = np.arange(len(self))[number]
            part = self._catalogue.select(rows) if len(rows) < len(self) else self._catalogue
            return EpisodeTable(part, self._storage_options, self._open_pack)
        return self._catalogue.facts_of(self._row(number))

    def _row(self, number: int) -> int:
        row = number + len(self) if number < 0 else number
        if not 0 <= row < len(self):
            raise IndexError(f"episode {number} of {len(self)}")
        return row

    @property
    def paths(self) -> Sequence[str]:
        """The file of each episode; in a pack the pack, a slash and the file name it had."""
        return self._catalogue.locations

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The bytes of each episode's file."""
        return np.array(self._catalogue.rows["size"], np.int64)

    def open(self, number: int) -> Episode:
        """Opens an episode; close it when you are done."""
        row = self._row(number)
        locations = self._catalogue.locations
        pack = int(locations.pack_of[row])
        path = locations[row] if pack == NO_PACK else locations.pack_path(pack)
        options = self._storage_options if is_url(path) else None
        if pack == NO_PACK or self._open_pack is None:
            return load_wshard(path, storage_options=options)
        opened = self._open_pack(path, options)
        return opened.load(int(locations.records[row]), locations.names[row])

    def to_dict(self) -> dict[str, list[Any]]:
        """The columns by name, which `pandas.DataFrame` and the like take."""
        rows = list(self)
        return {name: [field_of(row, name) for row in rows] for name in FIELDS}

    def __repr__(self) -> str:
        shown = [[_cell(field_of(row, name)) for name in _SHOWN] for row in self[:_MOST_SHOWN]]
        lines = [list(_SHOWN), *shown]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        more = len(self) - len(shown)
        return text + f"\n[{len(self)} episodes{f', {more} not shown' if more else ''}]"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    # Names come from files: what a terminal might obey is escaped.
    safe = text if text.isprintable() else ascii(text)[1:-1]
    return safe if len(safe) <= _WIDEST else "…" + safe[1 - _WIDEST :]


def find(
    files: Files,
    where: Where | None = None,
    *,
    index: bool | str | os.PathLike[str] = True,
    on_error: Callable[[str, ShardError], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    packs: OpenPack | None = None,
    executor: Executor | None = None,
) -> EpisodeTable:
    """Finds episodes and what is known about each: path, id, env_id, length, return, success and metadata.

        table = wshard.find("runs", where="success and length > 100 and task == 'reach'")
        with table.open(0) as episode:
            episode.observations["rgb"]

    Args:
        files: a folder with all folders in it, a file, a URL, a pattern, a list of these, or a saved index.
        where: keeps the episodes for which it is true. An expression over the names above and the fields of the
            metadata: comparisons, `in`, `and`, `or`, `not`, numbers, strings, lists; `metadata.camera.fps` for a
            field within a field. A field that an episode lacks is None, which is neither smaller nor larger than
            anything. Or a function that is called with each row, an `EpisodeInfo`.
        index: whether to use, and save, what is known in `<folder>.wshard-index`, as `EpisodeDataset` does; or the
            path of such a file.
        on_error: called with the path of each file that cannot be read, and why; if left out, the error is raised.
        storage_options: for files that are URLs, as for `load_wshard`.
        packs: opens packs of episodes, `shard_train.packed_episodes.open_episode_pack`; if left out, a pack is an
            error.
        executor: opens the files that the index does not know, in other processes or on other machines:
            `shard_format.executors.RayExecutor()`. If left out, this process does.

    Raises:
        InvalidArgument: no file is found, the expression is not understood, or it names a field that no episode has.
        ShardError: a subclass that says which file cannot be read and why.
    """
    keeps = (
        None if where is None else parse_where(where)
    )  # says what is wrong before files are scanned
    opener = CatalogueOpener(index, on_error or _raise, storage_options, packs, executor=executor)
    catalogue = select(opener.open(files), None, keeps)
    return EpisodeTable(catalogue, storage_options, packs)


def _raise(_: str, error: ShardError) -> None:
    raise error
