"""Datasets of samples in ShardPack and in the formats of peers; all write and read the same samples.

A sample is a key, a picture, a label and a small array, all as bytes: no library encodes or decodes. Each returns what
its user gets; `contents` converts that to one form, so that it can be compared.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import struct
import sys
import zipfile
from abc import ABC, abstractmethod
from contextlib import redirect_stderr
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

import shardpack
from shard_format.codecs import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAMES = ("jpg", "json", "npy")
ROWS_AT_ONCE = 1_000
"""Rows that peers with columns write, and others read together."""


class Sample(NamedTuple):
    """One sample, everything encoded."""

    key: str
    picture: bytes
    label: bytes
    array: bytes

    @property
    def contents(self) -> tuple[bytes, bytes, bytes]:
        return self.picture, self.label, self.array


class Samples:
    """A sequence of samples of about 12 KB. Pictures and arrays repeat; keys and labels differ.

    The pictures are random bytes, like compressed pictures, and do not fit into the fastest caches.
    """

    def __init__(self, count: int, distinct: int = 2_048) -> None:
        random = np.random.default_rng(3)
        sizes = random.integers(8_000, 16_000, distinct).tolist()
        self._pictures = [random.bytes(size) for size in sizes]
        self._arrays = [_npy(random.normal(size=16).astype(np.float32)) for _ in range(distinct)]
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Sample:
        at = number % len(self._pictures)
        label = b'{"label":%d,"number":%d}' % (number % 1_000, number)
        return Sample(f"{number:08d}", self._pictures[at], label, self._arrays[at])

    def first(self, count: int) -> list[Sample]:
        """The first `count` samples."""
        return [self[number] for number in range(count)]

    def raw_bytes(self, count: int) -> int:
        """Total size of the contents of the first `count` samples, without keys."""
        return sum(sum(map(len, self[number].contents)) for number in range(count))


def _npy(array: Any) -> bytes:  # noqa: ANN401 - an array of any type
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


class Peer(ABC):
    """A format, written to and read from one folder.

    Owns: whatever the library holds open between `open` and `close`.
    """

    name: ClassVar[str]
    packages: ClassVar[Sequence[str]] = ()
    """What must be installed."""
    is_slow: ClassVar[bool] = False
    """Whether it packs fewer samples than the others."""
    random_calls: ClassVar[int] = 400
    """Samples of one round of random access; 0 if there is none."""
    batch_calls: ClassVar[int] = 10
    """Batches of one round of `take`."""
    sequential_samples: ClassVar[int] = 4_000
    """Samples of one round from start to end."""
    open_calls: ClassVar[int] = 20
    """Openings of one round; 0 if it is not a matter of milliseconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        """Samples that are there."""

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @abstractmethod
    def write(self, samples: Sequence[Sample]) -> None:
        """Pack the samples into the empty folder."""

    @abstractmethod
    def open(self) -> None:
        """Open the dataset for reading."""

    @abstractmethod
    def close(self) -> None:
        """Close what `open` opened."""

    @abstractmethod
    def get(self, number: int) -> Any:  # noqa: ANN401 - as the library gives it
        """One sample, all of its bytes."""

    def take(self, numbers: list[int]) -> list[Any]:
        """Several samples at random."""
        get = self.get
        return [get(number) for number in numbers]

    @abstractmethod
    def samples(self) -> Iterator[Any]:
        """All samples in order."""

    @abstractmethod
    def contents(self, sample: Any) -> tuple[bytes, bytes, bytes]:  # noqa: ANN401 - as the library gives it
        """Picture, label and array of what the library returned."""


def _of_names(sample: Any) -> tuple[bytes, bytes, bytes]:  # noqa: ANN401 - a mapping of any library
    return sample["jpg"], sample["json"], sample["npy"]


class ShardPack(Peer):
    """ShardPack: checks the checksums of heads and entries."""

    name = "shardpack (CRC checked)"
    random_calls = 8_000
    batch_calls = 120
    sequential_samples = 50_000
    open_calls = 200

    def write(self, samples: Sequence[Sample]) -> None:
        with shardpack.ShardPackWriter(
            self.path("d.shardpack"), fsync=False, overwrite=True
        ) as writer:
            write = writer.write
            for key, picture, label, array in samples:
                write(key, {"jpg": picture, "json": label, "npy": array})

    def open(self) -> None:
        self._dataset = shardpack.open(self.path("d.shardpack"))

    def close(self) -> None:
        self._dataset.close()

    def get(self, number: int) -> dict[str, bytes]:
        return self._dataset.sample(number)

    def take(self, numbers: list[int]) -> list[dict[str, bytes]]:
        return self._dataset.take_samples(numbers)

    def samples(self) -> Iterator[dict[str, bytes]]:
        return self._dataset.samples()

    def contents(self, sample: dict[str, bytes]) -> tuple[bytes, bytes, bytes]:
        return _of_names(sample)


class Packed(Peer):
    """For libraries that store one value per key: three sizes, then the three contents."""

    _HEAD = struct.Struct("<III")

    def pack(self, sample: Sample) -> bytes:
        _, picture, label, array = sample
        head = self._HEAD.pack(len(picture), len(label), len(array))
        return b"".join((head, picture, label, array))

    def contents(self, sample: bytes) -> tuple[bytes, bytes, bytes]:
        first, second, third = self._HEAD.unpack_from(sample)
        start = self._HEAD.size
        assert len(sample) == start + first + second + third
        middle = start + first
        return sample[start:middle], sample[middle : middle + second], sample[middle + second :]


class Lmdb(Packed):
    """One read transaction; `get` copies the value, which stays packed. It has no checksum."""

    name = "LMDB (no checksum)"
    packages = ("lmdb",)
    random_calls = 8_000
    batch_calls = 120
    sequential_samples = 50_000
    open_calls = 200

    def _open(self, **options: Any) -> Any:  # noqa: ANN401 - untyped library
        import lmdb

        return lmdb.open(self.path("d.lmdb"), subdir=False, map_size=4 << 30, lock=False, **options)

    def write(self, samples: Sequence[Sample]) -> None:
        with self._open(sync=False) as environment, environment.begin(write=True) as transaction:
            put, pack = transaction.put, self.pack
            for sample in samples:
                put(sample.key.encode(), pack(sample), append=True)

    def open(self) -> None:
        self._environment = self._open(readonly=True, readahead=False)
        self._transaction = self._environment.begin(buffers=False)
        self._get = self._transaction.get

    def close(self) -> None:
        self._transaction.abort()
        self._environment.close()

    def get(self, number: int) -> bytes:
        value: bytes = self._get(b"%08d" % number)
        return value

    def samples(self) -> Iterator[bytes]:
        return self._transaction.cursor().iternext(keys=False, values=True)  # type: ignore[no-any-return] # untyped library


class LmdbUnpacked(Lmdb):
    """As `Lmdb`, and cuts the value into the three contents, as ShardPack returns them. It has no checksum.

    Copying the value and cutting the copy is faster than cutting a view of it.
    """

    name = "LMDB, unpacked (no checksum)"
    open_calls = 0

    _sizes = Packed._HEAD.unpack_from
    _START: ClassVar[int] = Packed._HEAD.size

    def unpack(self, value: bytes) -> dict[str, bytes]:
        first, second, third = self._sizes(value)
        start = self._START
        middle = start + first
        last = middle + second
        return {
            "jpg": value[start:middle],
            "json": value[middle:last],
            "npy": value[last : last + third],
        }

    def get(self, number: int) -> Any:  # noqa: ANN401 - another form than that of its base
        return self.unpack(self._get(b"%08d" % number))

    def samples(self) -> Iterator[Any]:
        return map(self.unpack, super().samples())

    def contents(self, sample: Any) -> tuple[bytes, bytes, bytes]:  # noqa: ANN401 - a dictionary
        return _of_names(sample)


class LmdbChecked(LmdbUnpacked):
    """As `LmdbUnpacked`, with one CRC-32C for the whole value, stored at its end."""

    name = "LMDB, unpacked (CRC checked)"

    def pack(self, sample: Sample) -> bytes:
        value = super().pack(sample)
        return value + struct.pack("<I", crc32c(value))

    def unpack(self, value: bytes) -> dict[str, bytes]:
        # What the CRC-32C of any bytes followed by their own comes to.
        assert crc32c(value) == 0x48674BC7, "damaged"
        return super().unpack(value)


class ArrayRecord(Packed):
    """Groups of one record, as random access needs them."""

    name = "ArrayRecord"
    packages = ("array_record",)
    random_calls = 100
    sequential_samples = 10_000

    def write(self, samples: Sequence[Sample]) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(self.path("d.arrayrecord"), "group_size:1,uncompressed")
        for sample in samples:
            writer.write(self.pack(sample))
        writer.close()

    def open(self) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        self._reader = ArrayRecordReader(self.path("d.arrayrecord"))

    def close(self) -> None:
        self._reader.close()

    def get(self, number: int) -> bytes:
        value: bytes = self._reader.read([number])[0]
        return value

    def take(self, numbers: list[int]) -> list[bytes]:
        values: list[bytes] = self._reader.read(numbers)
        return values

    def samples(self) -> Iterator[bytes]:
        for first in range(0, self.count, ROWS_AT_ONCE):
            yield from self._reader.read(first, min(first + ROWS_AT_ONCE, self.count))


class WebDataset(Peer):
    """With its defaults: the time of each file is a fraction and needs an extra header."""

    name = "WebDataset"
    packages: ClassVar[Sequence[str]] = ("webdataset",)
    is_slow = True
    random_calls = 0
    sequential_samples = 2_000
    mtime: ClassVar[int | None] = None

    def write(self, samples: Sequence[Sample]) -> None:
        from webdataset import TarWriter

        with TarWriter(self.path("d.tar"), encoder=False, mtime=self.mtime) as writer:
            for key, picture, label, array in samples:
                writer.write({"__key__": key, "jpg": picture, "json": label, "npy": array})

    def open(self) -> None:
        import webdataset

        self._dataset = webdataset.WebDataset(self.path("d.tar"), shardshuffle=False)

    def close(self) -> None:
        del self._dataset

    def get(self, number: int) -> dict[str, bytes]:
        assert number == 0, "a stream has no random access"
        return next(self.samples())

    def samples(self) -> Iterator[dict[str, bytes]]:
        return iter(self._dataset)

    def contents(self, sample: dict[str, bytes]) -> tuple[bytes, bytes, bytes]:
        return _of_names(sample)


class WebDatasetWithoutTime(WebDataset):
    """With an integer as the time, which needs no extra header."""

    name = "WebDataset, mtime=0"
    mtime = 0


class Wids(WebDataset):
    """WebDataset's random access, over the same kind of tar file without extra headers."""

    name = "wids"
    packages = ("wids", "webdataset", "torch")
    mtime = 0
    random_calls = 800
    open_calls = 0

    def open(self) -> None:
        from wids import ShardListDataset

        path = self.path("d.tar")
        with redirect_stderr(io.StringIO()):  # it tells what it opens
            self._dataset = ShardListDataset(
                [{"url": path, "nsamples": self.count}], localname=str, transformations=[]
            )

    def close(self) -> None:
        self._dataset.close()

    def get(self, number: int) -> Any:  # noqa: ANN401 - a dictionary of files in memory
        sample = self._dataset[number]
        for name in NAMES:
            sample[f".{name}"] = sample[f".{name}"].getvalue()
        return sample

    def samples(self) -> Iterator[Any]:
        return map(self.get, range(self.count))

    def contents(self, sample: Any) -> tuple[bytes, bytes, bytes]:  # noqa: ANN401 - a dictionary
        return sample[".jpg"], sample[".json"], sample[".npy"]


class Mds(Peer):
    """The format of mosaicml-streaming, read as a local dataset."""

    name = "MDS"
    packages = ("streaming", "torch")
    random_calls = 800

    @staticmethod
    def library() -> Any:  # noqa: ANN401 - untyped library
        # The package imports all of its ready-made datasets, and a torchvision that fits the torch that
        # is here, for a part that needs none of them.
        if "streaming" not in sys.modules:
            spec = importlib.util.find_spec("streaming")
            assert spec is not None
            sys.modules["streaming"] = importlib.util.module_from_spec(spec)
        return importlib.import_module("streaming.base")

    def write(self, samples: Sequence[Sample]) -> None:
        columns = dict.fromkeys(NAMES, "bytes")
        with self.library().MDSWriter(out=self.path("d.mds"), columns=columns) as writer:
            for _, picture, label, array in samples:
                writer.write({"jpg": picture, "json": label, "npy": array})

    def open(self) -> None:
        self._dataset = self.library().LocalDataset(local=self.path("d.mds"))

    def close(self) -> None:
        del self._dataset

    def get(self, number: int) -> Any:  # noqa: ANN401 - a dictionary
        return self._dataset[number]

    def samples(self) -> Iterator[Any]:
        return map(self.get, range(self.count))

    def contents(self, sample: Any) -> tuple[bytes, bytes, bytes]:  # noqa: ANN401 - a dictionary
        return _of_names(sample)


class LitData(Peer):
    """Its writer of chunks, without the processes that `optimize` starts around it."""

    name = "LitData"
    packages = ("litdata", "torch")
    is_slow = True
    random_calls = 20
    batch_calls = 1
    open_calls = 0

    def write(self, samples: Sequence[Sample]) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(self.path("d.litdata"), chunk_bytes="64MB")
        for number, (_, picture, label, array) in enumerate(samples):
            writer.add_item(number, {"jpg": picture, "json": label, "npy": array})
        writer.done()
        writer.merge()

    def open(self) -> None:
        from litdata import StreamingDataset

        self._dataset = StreamingDataset(self.path("d.litdata"), shuffle=False)

    def close(self) -> None:
        del self._dataset

    def get(self, number: int) -> Any:  # noqa: ANN401 - a dictionary
        return self._dataset[number]

    def samples(self) -> Iterator[Any]:
        return iter(self._dataset)

    def contents(self, sample: Any) -> tuple[bytes, bytes, bytes]:  # noqa: ANN401 - a dictionary
        return _of_names(sample)


class Zip(Peer):
    """Stored, not compressed. It checks a CRC-32."""

    name = "zip"
    is_slow = True
    open_calls = 1

    def write(self, samples: Sequence[Sample]) -> None:
        with zipfile.ZipFile(self.path("d.zip"), "w", zipfile.ZIP_STORED) as archive:
            for sample in samples:
                for name, content in zip(NAMES, sample.contents, strict=True):
                    archive.writestr(f"{sample.key}.{name}", content)

    def open(self) -> None:
        self._archive = zipfile.ZipFile(self.path("d.zip"))

    def close(self) -> None:
        self._archive.close()

    def get(self, number: int) -> tuple[bytes, ...]:
        read = self._archive.read
        return tuple(read(f"{number:08d}.{name}") for name in NAMES)

    def samples(self) -> Iterator[Any]:
        return map(self.get, range(self.count))

    def contents(self, sample: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
        return sample


class Files(Peer):
    """Three files for each sample."""

    name = "plain files"
    is_slow = True
    open_calls = 200

    def write(self, samples: Sequence[Sample]) -> None:
        os.mkdir(self.path("files"))
        for sample in samples:
            for name, content in zip(NAMES, sample.contents, strict=True):
                with open(self.path(f"files/{sample.key}.{name}"), "wb") as file:
                    file.write(content)

    def open(self) -> None:
        self._prefix = self.path("files")

    def close(self) -> None: ...

    def get(self, number: int) -> tuple[bytes, ...]:
        contents = []
        for name in NAMES:
            with open(f"{self._prefix}/{number:08d}.{name}", "rb", buffering=0) as file:
                contents.append(file.read())
        return tuple(contents)

    def samples(self) -> Iterator[Any]:
        return map(self.get, range(self.count))

    def contents(self, sample: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
        return sample
