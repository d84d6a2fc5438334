"""Catalogues that are named on the command line: files that name episodes, such as a table of a search.

A catalogue may come from a stranger. It chooses among the episodes of the folders that the user has named, or of its
own folder, and can add none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import BadValue, InvalidArgument
from shard_format.extras import require
from shard_format.foreign import reading
from shard_format.sources import is_url
from wshard.catalogue import INDEX_SUFFIX, CatalogueOpener

if TYPE_CHECKING:
    from collections.abc import Iterator

_TABLE_SUFFIX: Final = ".parquet"
_COLUMN: Final = "path"
_MOST_ROWS: Final = 100_000
_MOST_BYTES: Final = 64 << 20
_LONGEST_PATH: Final = 4096
_IN_PACK: Final = ".shardpack/"


def is_catalogue(path: str) -> bool:
    """Whether a name is that of a catalogue."""
    return path.endswith((INDEX_SUFFIX, _TABLE_SUFFIX))


class NamedEpisode:
    """An episode that a catalogue names.

    Args:
        path: as the catalogue has it; a relative one starts from the catalogue's folder.
        folder: of the catalogue.

    Raises:
        InvalidArgument: this cannot be an episode on this machine.
    """

    def __init__(self, path: str, folder: str) -> None:
        if is_url(path) or not path.endswith(".wshard") or "\0" in path:
            raise InvalidArgument(
                "the catalogue names something that is not shown from a catalogue",
                path=path[:_LONGEST_PATH],
                expected="the path of a .wshard file, or of one in a pack",
                hint="name a URL on the command line itself" if is_url(path) else None,
            )
        self.path: Final = os.path.abspath(os.path.join(folder, path)).replace(os.sep, "/")
        """Its file; in a pack the pack, a slash, and the name of the file that it had."""
        pack, found, _ = self.path.partition(_IN_PACK)
        self.file: Final = os.path.normpath(pack + found.rstrip("/") if found else self.path)
        """The file to open: the episode or the pack."""


def read_catalogue(path: str) -> Iterator[str]:
    """The paths of the episodes that a catalogue names: a saved index, or a Parquet table with a column `path`.

    Raises:
        MissingExtra: a Parquet table needs pyarrow.
        ShardError: it cannot be read, or it names too many episodes.
    """
    if path.endswith(_TABLE_SUFFIX):
        for value in _read_table(path):
            if not isinstance(value, str):
                raise BadValue(
                    "the catalogue has a row without a path",
                    path=path,
                    expected=f"a text in the column {_COLUMN!r}",
                    found=type(value).__name__,
                )
            yield value
        return
    opener = CatalogueOpener(True, lambda _, __: None, saves=False)
    locations = opener.open(path).locations
    _check_count(path, len(locations))
    yield from locations


def _read_table(path: str) -> Iterator[object]:
    parquet = require("pyarrow.parquet", "arrow")
    with (
        reading(path, "the catalogue cannot be read", expected="a Parquet table"),
        parquet.ParquetFile(path) as table,
    ):
        _check_table(path, table)
        for batch in table.iter_batches(columns=[_COLUMN]):
            yield from batch.column(0).to_pylist()


def _check_table(path: str, table: Any) -> None:  # noqa: ANN401 - of pyarrow
    """Refuses other tables, and those that would take much memory, before any row is read."""
    names = table.schema_arrow.names
    if names.count(_COLUMN) != 1:
        raise InvalidArgument(
            "not a catalogue of episodes",
            path=path,
            expected=f"one column {_COLUMN!r}",
            found=", ".join(map(repr, names[:20])),
            hint="write one: pyarrow.parquet.write_table(pyarrow.table({'path': list(wshard.find('runs').paths)}), "
            "'catalogue.parquet')",
        )
    _check_count(path, table.metadata.num_rows)
    size = 0
    for group in range(table.metadata.num_row_groups):
        columns = table.metadata.row_group(group)
        for number in range(columns.num_columns):
            if columns.column(number).path_in_schema.partition(".")[0] == _COLUMN:
                size += columns.column(number).total_uncompressed_size
    if size > _MOST_BYTES:
        raise InvalidArgument(
            "the paths of the catalogue are too large",
            path=path,
            expected=f"at most {_MOST_BYTES:,} bytes",
            found=f"{size:,}",
        )


def _check_count(path: str, count: int) -> None:
    if count > _MOST_ROWS:
        raise InvalidArgument(
            "the catalogue names too many episodes for one viewer",
            path=path,
            expected=f"at most {_MOST_ROWS:,}",
            found=f"{count:,}",
            hint="save a part of it: wshard.find(…, where=…)",
        )
