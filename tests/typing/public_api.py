"""What type checkers must infer for the public API. Checked by mypy, never run.

Each `type: ignore` stands on a line that must be an error: mypy's strict mode reports the ones that
are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import shard_format
from shard_format import (
    ByteSource,
    Codec,
    Compression,
    ContentType,
    EntryInfo,
    FileReference,
    Identity,
    Limits,
    Manifest,
    Role,
    Schema,
    ShardError,
    ShardReader,
    ShardWriter,
    compute_identity,
    verify_identity,
)
from shard_format.errors import EntryNotFound, ShardIOError
from shard_format.signing import Signature
from shard_format.sources import BytesSource, FileObjectSource, FileSource
from shard_format.verify import Report, check


class OwnSource:
    """A source of the user's, without inheriting anything."""

    name = "own"

    def size(self) -> int:
        return 0

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(length)

    def close(self) -> None:
        pass


def sources(file: BinaryIO) -> None:
    ShardReader("a.shard")
    ShardReader(Path("a.shard"))
    ShardReader(b"")
    ShardReader(bytearray())
    ShardReader(memoryview(b""))
    ShardReader(file)
    ShardReader(OwnSource())
    ShardReader(5)  # type: ignore[arg-type]
    ShardReader("a.shard", Limits())  # type: ignore[call-arg]
    own: ByteSource = OwnSource()
    some: list[ByteSource] = [FileSource("a"), BytesSource(b""), FileObjectSource(file), own]
    wrong: ByteSource = file  # type: ignore[assignment]
    print(some, wrong)


def reading() -> None:
    with ShardReader("a.shard", limits=Limits(max_entries=5), threads=2, check=False) as reader:
        assert_type(reader, ShardReader)
        assert_type(reader.names(), list[str])
        assert_type(reader.prefix("a"), list[str])
        assert_type("a" in reader, bool)
        assert_type(len(reader), int)
        assert_type(iter(reader), Iterator[str])
        assert_type(reader["a"], bytes)
        assert_type(reader.read_entry("a"), bytes)
        assert_type(reader.read_many(["a"]), list[bytes])
        assert_type(reader.read_range("a", 0, 1), bytes)
        assert_type(reader.read_into("a", bytearray(5)), int)
        assert_type(reader.read_into("a", np.zeros(5), start=1, stop=2), int)
        assert_type(reader.iter_entry("a"), Iterator[memoryview])
        assert_type(reader.view("a"), memoryview)
        assert_type(reader.info("a"), EntryInfo)
        assert_type(reader.infos(), Iterator[EntryInfo])
        assert_type(reader.index, NDArray[Any])
        assert_type(reader.schema, Schema | None)
        assert_type(reader.role, int)
        assert_type(reader.limits, Limits)
        assert_type(reader.source, ByteSource)
        assert_type(reader.name, str)
        assert_type(check(reader), Report)
        assert_type(check(reader).ok, bool)
        reader.verify(progress=lambda done, total: print(done + total))
        reader.read_entry(b"a")  # type: ignore[arg-type]
    info = reader.info("a")
    assert_type(info.name, str)
    assert_type(info.codec, Codec)
    assert_type(info.size, int)
    assert_type(info.crc32c, int | None)
    info.size = 5  # type: ignore[misc]


def writing(array: NDArray[np.float32], progress: Callable[[int, int], None]) -> None:
    with ShardWriter(
        Path("a.shard"),
        role=Role.WSHARD,
        alignment=64,
        compression=Compression(Codec.ZSTD, 3),
        names=["a"],
        schema={"x": 1},
        identity=True,
        fsync=False,
        limits=Limits(),
        threads=1,
    ) as writer:
        assert_type(writer, ShardWriter)
        writer.write_entry("a", b"", compression="zstd:3", content_type=ContentType.JSON)
        writer.write_entry("a", array, frame_bytes=100, tags=["x"], metadata={"y": 1})
        writer.write_entry("a", memoryview(b""), content_type="json", tags=5)
        writer.write_entry_stream("a", (bytes(5) for _ in range(3)))
        writer.write_entry_stream("a", [array, b"", memoryview(b"")])
        assert_type(len(writer), int)
        assert_type(writer.schema, Schema)
        writer.write_entry("a", "text")  # type: ignore[arg-type]
        writer.write_entry("a", b"", "zstd")  # type: ignore[call-arg]
    ShardWriter("a.shard", aligment=64)  # type: ignore[call-arg]
    print(progress)


def around() -> None:
    identity = compute_identity("a.shard")
    assert_type(identity, Identity)
    assert_type(identity.digest, str)
    assert_type(identity.text, bytes)
    assert_type(identity.entries, Mapping[str, str])
    assert_type(verify_identity("a.shard", identity), Identity)
    assert_type(verify_identity("a.shard", "00", progress=print), Identity)
    manifest = Manifest.read("a.shard")
    assert_type(manifest, Manifest)
    assert_type(manifest.files, Sequence[FileReference])
    assert_type(manifest.iter_problems(), Iterator[ShardError])
    assert_type(manifest.resolve(manifest.files[0]), str)
    assert_type(FileReference.to_file("a", relative_to="."), FileReference)
    assert_type(FileReference("a").size, int | None)
    assert_type(Signature.read("a.sig"), Signature)
    assert_type(Compression.parse("zstd"), Compression)
    assert_type(Schema({"a": 1}).fields, dict[str, Any])
    assert_type(shard_format.__version__, str)


def failing() -> None:
    try:
        ShardReader("a.shard")
    except EntryNotFound as error:
        key_error: KeyError = error
        print(key_error)
    except ShardIOError as error:
        assert_type(error.errno, int | None)
    except ShardError as error:
        assert_type(error.code, str)
        assert_type(error.path, str | None)
        assert_type(error.entry, str | None)
        assert_type(error.offset, int | None)
        assert_type(error.rule, str | None)
        assert_type(error.hint, str | None)
