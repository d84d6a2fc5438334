"""zstd through the package and through the standard library: both hold to the same rules."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shard_format import ShardError, ShardReader, _kernels, zstd

if TYPE_CHECKING:
    from types import ModuleType

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
CONTENT = np.random.default_rng(0).integers(0, 40, 300_000, np.uint8).tobytes()


def without_package() -> ModuleType:
    """The module as it is where `zstandard` is not installed."""
    spec = importlib.util.find_spec("shard_format.zstd")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, package=None: None
    try:
        spec.loader.exec_module(module)
    finally:
        importlib.util.find_spec = find_spec
    return module


STANDARD = without_package()
BACKENDS = [zstd, STANDARD]


def decoded(backend: ModuleType, stored: bytes, room: int) -> tuple[int, bytes] | str:
    """What comes out, or the error; if it does not fit, only that."""
    out = bytearray(room)
    try:
        count = backend.decode_into(memoryview(stored), memoryview(out))
    except backend.ZstdError:
        return "error"
    return (count, bytes(out[:count])) if count <= room else (count, b"")


def test_the_standard_library_is_used_where_the_package_is_missing() -> None:
    names = ("compression.zstd", "backports.zstd")
    assert STANDARD.ZstdError.__module__ not in {"zstandard", "zstandard.backend_c"}
    assert any(name in sys.modules for name in names)


@pytest.mark.parametrize("writer", BACKENDS, ids=["package", "standard"])
@pytest.mark.parametrize("reader", BACKENDS, ids=["package", "standard"])
def test_each_reads_what_the_other_writes(writer: ModuleType, reader: ModuleType) -> None:
    parts = [memoryview(CONTENT)[:100_000], memoryview(CONTENT)[100_000:]]
    stream = writer.compressing_stream(checksum=True)
    frames = {
        "frame": writer.compress_frame(CONTENT, 3, checksum=True),
        "blocks": writer.compress_blocks(parts, 1, shortest_match=7),
        "stream": stream.compress(CONTENT[:5]) + stream.compress(CONTENT[5:]) + stream.flush(),
    }
    for kind, stored in frames.items():
        assert decoded(reader, stored, len(CONTENT)) == (len(CONTENT), CONTENT), kind
        (frame,) = _kernels.iter_frames(stored, 1 << 27)
        assert frame.has_checksum
        assert frame.content_size == (None if kind == "stream" else len(CONTENT)), kind
        for source in (stored, memoryview(stored), io.BytesIO(stored)):
            content, pieces = reader.open_reader(source), []
            while piece := content.read(70_000):
                pieces.append(piece)
            assert b"".join(pieces) == CONTENT, kind


@given(st.binary(max_size=300), st.integers(0, 400), st.data())
def test_both_decode_and_refuse_the_same_bytes(
    content: bytes, room: int, data: st.DataObject
) -> None:
    """Frames that are cut, changed, or followed by other bytes."""
    stored = bytearray(zstd.compress_frame(content, 3, checksum=True))
    change = data.draw(st.sampled_from(["none", "cut", "flip", "more", "twice"]))
    if change == "cut":
        del stored[data.draw(st.integers(0, len(stored))) :]
    elif change == "flip":
        stored[data.draw(st.integers(9, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    elif change == "more":
        stored += data.draw(st.binary(min_size=1, max_size=9))
    elif change == "twice":
        stored *= 2
    assert decoded(STANDARD, bytes(stored), room) == decoded(zstd, bytes(stored), room)


def outcome(path: Path) -> object:
    """The content of a container, or the code and rule of the error."""
    try:
        with ShardReader(path) as reader:
            reader.verify()
            return reader.read_many(reader.names())
    except ShardError as error:
        return error.code, error.rule


def test_every_vector_is_read_and_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [path for folder in ("valid", "invalid") for path in VECTORS.glob(f"{folder}/*shard")]
    expected = [outcome(path) for path in files]
    monkeypatch.setattr(_kernels, "zstd", STANDARD)
    assert [outcome(path) for path in files] == expected
    assert sum(isinstance(found, tuple) for found in expected) > 60
