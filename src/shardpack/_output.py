"""Where tools write: one shard, or a set of shards if the name has a number in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardpack.writer import ShardPackWriter
from shardpack.writer_set import _NUMBER, ShardWriterSet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Self

    from shardpack._preparing import Prepared
    from shardpack.combined import AnyRecord


def is_set(output: str) -> bool:
    """Whether a name stands for many shards, as `"train-%06d.shardpack"` does."""
    return _NUMBER.search(output.replace("%%", "")) is not None


def how_to_go_on(output: str) -> str:
    """What to do after writing has ended early."""
    if is_set(output):
        return "append=True goes on behind the shards that are finished"
    return (
        "a set of shards, such as 'train-%06d.shardpack', would have kept those that are finished"
    )


class Output:
    """One shard or a set of them, written the same way.

    Owns: the writer. An exception drops the shard that is being written; those that are finished stay.

    Args:
        output: `"train-%06d.shardpack"` for a set, else one file.
        max_bytes: target size of the shards of a set; one file has no limit.
        max_records: most records of a shard of a set.
        options: what the writers take.
    """

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        max_bytes: int | None = 1 << 30,
        max_records: int | None = None,
        **options: Any,  # noqa: ANN401 - checked by the writer
    ) -> None:
        name = os.fspath(output)
        self._writer: ShardWriterSet | ShardPackWriter
        if is_set(name):
            self._writer = ShardWriterSet(
                name, max_bytes=max_bytes, max_records=max_records, **options
            )
        else:
            self._writer = ShardPackWriter(name, **options)
        self.earlier: list[str] = self.paths if len(self._writer) else []
        """The shards that were there before, whose records stay."""

    def write(
        self,
        key: str,
        entries: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        content_types: Mapping[str, str] | None = None,
    ) -> None:
        """Adds a record."""
        self._writer.write(key, entries, metadata, content_types=content_types)

    def write_prepared(self, prepared: Prepared) -> None:
        """Adds a record that was made with the options of this output."""
        self._writer.write_prepared(prepared)

    def copy(self, record: AnyRecord, *, check: bool = True) -> None:
        """Adds a record of another shard, its entries as they are stored."""
        self._writer.copy(record, check=check)  # type: ignore[arg-type] # has what is asked for

    def __contains__(self, key: object) -> bool:
        return key in self._writer

    def __len__(self) -> int:
        return len(self._writer)

    @property
    def paths(self) -> list[str]:
        """The shards that are there once the output is closed."""
        writer = self._writer
        return writer.paths if isinstance(writer, ShardWriterSet) else [writer.name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.__exit__(kind, error, trace)
