"""Seeds for the fuzzer, taken from the vectors."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from shard_format import Codec, Role, ShardError, ShardReader
from shard_format.layout import FILTERED
from wshard.convert._tf_example import encode_example

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
RECORDS = Path(__file__).parents[1] / "convert" / "fixtures" / "rlds" / "demo" / "1.0.0"
# Large seeds make every run slow and teach the fuzzer nothing.
LARGEST_SEED = 1 << 14
# The entries that describe an episode.
DESCRIPTIONS = (
    "meta/channels",
    "meta/episode",
    "meta/provenance",
    "meta/sidecar",
    "meta/wshard",
)
# Targets that also learn from the vectors of episodes.
OF_EPISODES = ("chunk_manifest", "dataset", "descriptions", "episode")
# Targets of another format, with the folders of its vectors.
OF_THEIR_OWN = {"journal": "*valid_journals", "shardpack": "*valid_packs"}


def vector_files(folders: str = "*valid") -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every vector that is small enough."""
    for description in sorted(VECTORS.glob(f"{folders}/*.json")):
        file = json.loads(description.read_text("utf-8"))["file"]
        data = (description.parent / file).read_bytes()
        if len(data) <= LARGEST_SEED:
            yield f"{description.parent.name}-{description.stem}", data


def seeds(target: str) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every seed of a target."""
    if target in OF_THEIR_OWN:
        yield from vector_files(OF_THEIR_OWN[target])
        return
    if target == "decode":
        yield from _contents()
        return
    if target in ("tfrecord", "example"):
        yield from _records(target)
        return
    if target in ("mcap", "rosbag"):
        yield "small", _messages_of_mcap() if target == "mcap" else _messages_of_bag()
        return
    if target == "extract":
        yield from vector_files("*valid_packs")
    for name, data in vector_files("*valid*" if target in OF_EPISODES else "*valid"):
        if target in ("container", "extract"):
            yield name, data
            continue
        try:
            reader = ShardReader(data)
        except ShardError:
            continue
        yield from _parts(target, name, data, reader)


def _contents() -> Iterator[tuple[str, bytes]]:
    """Small values of every kind that decoders know; the first byte chooses the kind."""
    arrays = io.BytesIO(), io.BytesIO()
    np.save(arrays[0], np.arange(6, dtype=np.float32).reshape(2, 3))
    np.savez_compressed(arrays[1], a=np.zeros(4, np.uint8), b=np.ones((1, 2)))
    contents = [array.getvalue() for array in arrays]
    contents += [b'{"a":[1,2.5,null]}', b"some text", b"7", b"\x82\xa1a\x01\xa1b\x93\x01\x02\x03"]
    for kind in ("jpeg", "png", "gif", "bmp", "tiff", "webp"):
        stream = io.BytesIO()
        Image.new("RGB", (9, 7), (1, 2, 3)).save(stream, kind)
        contents.append(stream.getvalue())
    for number, content in enumerate(contents):
        yield f"content-{number}", bytes([number]) + content


def _records(target: str) -> Iterator[tuple[str, bytes]]:
    """Files that TensorFlow Datasets wrote, or the first record of each, and lists of every kind."""
    for path in sorted(RECORDS.glob("*.tfrecord-*")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        yield path.name, data if target == "tfrecord" else data[12 : 12 + size]
    lists = {"f": np.zeros(3, np.float32), "i": np.array([-1, 300, 0]), "b": [b"ab", b""]}
    content = b"".join(encode_example(lists))
    head = len(content).to_bytes(8, "little")
    yield "small", head + bytes(4) + content + bytes(4) if target == "tfrecord" else content


def _messages_of_mcap() -> bytes:
    """A channel with messages in JSON, in a chunk that is not compressed and after it."""

    def record(op: int, *fields: bytes) -> bytes:
        content = b"".join(fields)
        return struct.pack("<BQ", op, len(content)) + content

    def text(value: bytes) -> bytes:
        return struct.pack("<I", len(value)) + value

    def message(number: int) -> bytes:
        head = struct.pack("<HIQQ", 1, number, 1000 + number, 1000 + number)
        return record(5, head, json.dumps({"v": number, "t": "a", "l": [1.5, 2]}).encode())

    channel = record(4, struct.pack("<HH", 1, 0), text(b"/a"), text(b"json"), text(b""))
    inner = channel + message(0) + message(1)
    chunk = struct.pack("<QQQI", 1000, 1001, len(inner), 0) + text(b"")
    about = record(12, text(b"run"), text(text(b"robot") + text(b"r2")))
    return b"".join(
        (
            record(1, text(b""), text(b"fuzz")),
            record(6, chunk, struct.pack("<Q", len(inner)), inner),
            message(2),
            about,
            record(15, bytes(4)),
            record(2, bytes(20)),
        )
    )


def _messages_of_bag() -> bytes:
    """A connection with messages, in a chunk that is not compressed."""

    def fields(**values: bytes) -> bytes:
        named = (key.encode() + b"=" + value for key, value in values.items())
        return b"".join(struct.pack("<I", len(one)) + one for one in named)

    def record(data: bytes, op: int, **values: bytes) -> bytes:
        head = fields(op=bytes([op]), **values)
        return struct.pack("<I", len(head)) + head + struct.pack("<I", len(data)) + data

    number = struct.pack("<I", 0)
    about = fields(topic=b"/a", type=b"std_msgs/Int8", md5sum=b"x", message_definition=b"int8 data")
    inner = record(about, 7, conn=number, topic=b"/a")
    inner += record(b"\1", 2, conn=number, time=struct.pack("<II", 5, 6))
    return record(inner, 5, compression=b"none", size=struct.pack("<I", len(inner)))


def _parts(target: str, name: str, data: bytes, reader: ShardReader) -> Iterator[tuple[str, bytes]]:
    if target in ("dataset", "episode"):
        if reader.role == Role.WSHARD:
            yield name, data
        return
    if target in ("chunk_manifest", "descriptions"):
        wanted = ["meta/manifest"] if target == "chunk_manifest" else DESCRIPTIONS
        for entry in reader.names():
            if entry in wanted or (entry.startswith("label/") and target == "descriptions"):
                with contextlib.suppress(ShardError):
                    yield f"{name}-{entry.replace('/', '_')}", reader.read_entry(entry)
        return
    if target == "json":
        if reader.header.schema_offset:
            yield name, data[reader.header.schema_offset :]
        for entry in reader.prefix("meta/"):
            info = reader.info(entry)
            if info.codec is Codec.NONE:
                yield f"{name}-{entry.replace('/', '_')}", bytes(reader.view(entry))
        return
    for number in range(len(reader)):
        row = reader.index[number]
        start, size = int(row["data_offset"]), int(row["disk_size"])
        if not row["flags"] & 1:
            continue
        stored = data[start : start + size]
        orig_size = int(row["orig_size"]) & 0xFFFFFFFF
        if target == "filters":
            if row["flags"] & FILTERED:
                length = int.from_bytes(stored[4:8], "little")
                yield f"{name}-{number}", stored[8 : 8 + length] + b"\0" + bytes(range(256))
            continue
        if target == "decompression":
            is_zstd = not row["flags"] & 4
            yield f"{name}-{number}", struct.pack("<BI", is_zstd, orig_size) + stored
        elif target == "seek_table":
            yield f"{name}-{number}", struct.pack("<III", orig_size, 1, orig_size // 2) + stored
