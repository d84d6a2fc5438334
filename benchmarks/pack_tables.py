"""Peers of packs that keep samples as rows of tables; see `pack_peers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.pack_peers import NAMES, ROWS_AT_ONCE, Peer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benchmarks.pack_peers import Sample


class Columns(Peer):
    """For libraries that write Arrow tables."""

    def batches(self, samples: Sequence[Sample]) -> Iterable[Any]:
        import pyarrow

        for first in range(0, len(samples), ROWS_AT_ONCE):
            part = samples[first : first + ROWS_AT_ONCE]
            columns = zip(*(sample.contents for sample in part), strict=True)
            arrays = [pyarrow.array(column, pyarrow.large_binary()) for column in columns]
            yield pyarrow.record_batch(arrays, names=list(NAMES))

    @staticmethod
    def rows(batch: Any) -> Iterator[tuple[bytes, bytes, bytes]]:  # noqa: ANN401 - untyped library
        """Rows as bytes, read column by column: the fastest way to read a table."""
        return zip(*(batch[name].to_pylist() for name in NAMES), strict=True)

    def contents(self, sample: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
        return sample


class Lance(Columns):
    name = "Lance"
    packages = ("lance", "pyarrow")
    is_slow = True
    random_calls = 40
    batch_calls = 5

    def write(self, samples: Sequence[Sample]) -> None:
        import lance
        import pyarrow

        batches = iter(self.batches(samples))
        schema = pyarrow.schema([(name, pyarrow.large_binary()) for name in NAMES])
        reader = pyarrow.RecordBatchReader.from_batches(schema, batches)
        lance.write_dataset(reader, self.path("d.lance"))

    def open(self) -> None:
        import lance

        self._dataset = lance.dataset(self.path("d.lance"))

    def close(self) -> None:
        del self._dataset

    def get(self, number: int) -> Any:  # noqa: ANN401 - a row
        return self.take([number])[0]

    def take(self, numbers: list[int]) -> list[Any]:
        return list(self.rows(self._dataset.take(numbers)))

    def samples(self) -> Iterator[Any]:
        for batch in self._dataset.to_batches():
            yield from self.rows(batch)


class Parquet(Columns):
    """Not compressed, in row groups of 1 000; a sample is cut out of its row group."""

    name = "Parquet"
    packages = ("pyarrow",)
    random_calls = 20
    batch_calls = 1

    def write(self, samples: Sequence[Sample]) -> None:
        import pyarrow
        from pyarrow import parquet

        schema = pyarrow.schema([(name, pyarrow.large_binary()) for name in NAMES])
        options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
        with parquet.ParquetWriter(self.path("d.parquet"), schema, **options) as writer:
            for batch in self.batches(samples):
                writer.write_batch(batch)

    def open(self) -> None:
        from pyarrow import parquet

        self._file = parquet.ParquetFile(self.path("d.parquet"), memory_map=True)

    def close(self) -> None:
        self._file.close()

    def get(self, number: int) -> Any:  # noqa: ANN401 - a row
        group = self._file.read_row_group(number // ROWS_AT_ONCE)
        return next(self.rows(group.slice(number % ROWS_AT_ONCE, 1)))

    def samples(self) -> Iterator[Any]:
        for batch in self._file.iter_batches(ROWS_AT_ONCE):
            yield from self.rows(batch)


class HuggingFace(Columns):
    """Saved to disk from columns, mapped when it is loaded."""

    name = "HF datasets"
    packages = ("datasets", "pyarrow")
    is_slow = True
    random_calls = 800
    batch_calls = 20
    open_calls = 5

    def write(self, samples: Sequence[Sample]) -> None:
        import datasets
        import pyarrow

        datasets.disable_progress_bars()
        features = datasets.Features({name: datasets.Value("large_binary") for name in NAMES})
        table = pyarrow.Table.from_batches(self.batches(samples))
        datasets.Dataset(
            datasets.table.InMemoryTable(table), info=datasets.DatasetInfo(features=features)
        ).save_to_disk(self.path("d.hf"))

    def open(self) -> None:
        import datasets

        self._dataset = datasets.load_from_disk(self.path("d.hf"))

    def close(self) -> None:
        del self._dataset

    def get(self, number: int) -> Any:  # noqa: ANN401 - a dictionary
        row = self._dataset[number]
        return row["jpg"], row["json"], row["npy"]

    def take(self, numbers: list[int]) -> list[Any]:
        rows = self._dataset[numbers]
        return list(zip(rows["jpg"], rows["json"], rows["npy"], strict=True))

    def samples(self) -> Iterator[Any]:
        for row in self._dataset:
            yield row["jpg"], row["json"], row["npy"]
