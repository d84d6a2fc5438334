"""What fuzzing found, rebuilt so that it stays explained."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING, cast

import pytest

from shard_format import ShardWriter
from shard_format.canonical_json import canonical
from shard_format.errors import ShardError, ShardIOError, UnsafePath
from wshard import load_wshard, validate_chunk_continuity

if TYPE_CHECKING:
    from pathlib import Path

    from wshard.types import Extra


@pytest.mark.parametrize("letters", [300, 5_000])
def test_a_chunk_with_a_name_that_no_file_can_have_is_our_error(
    tmp_path: Path, letters: int
) -> None:
    path = tmp_path / "run_manifest.wshard"
    row = {"chunk_index": 0, "length_T": 1, "uri": "a" * letters}
    text = canonical({"chunks": [row], "episode_id": "run", "total_timesteps": 1})
    with ShardWriter(path, role="manifest", fsync=False) as writer:
        writer.write_entry("meta/manifest", text)
    for use in (load_wshard, validate_chunk_continuity):
        with pytest.raises(
            (ShardIOError, UnsafePath), match=r"cannot open|cannot read|longer than 4096"
        ):
            use(path)


@pytest.mark.parametrize("claimed", [1 << 31, 61_361_544_922_923_089, (1 << 63) - 1])
def test_no_memory_is_made_for_the_size_that_a_compressed_entry_claims(
    tmp_path: Path, claimed: int
) -> None:
    path = tmp_path / "run.wshard"
    with ShardWriter(path, role="wshard", fsync=False) as writer:
        writer.write_entry("meta/episode", b'{"episode_id":"run","length_T":0}')
        writer.write_entry("foreign/notes", bytes(5_000), compression="zstd")
    data = bytearray(path.read_bytes())
    # `orig_size` of the second index entry.
    struct.pack_into("<Q", data, 64 + 48 + 32, claimed)
    with load_wshard(bytes(data)) as episode, pytest.raises(ShardError) as caught:
        bytes(cast("Extra", episode.extras["foreign/notes"]))
    assert caught.value.entry == "foreign/notes"
    assert caught.value.code in {"limit_exceeded", "size_mismatch"}


def test_no_times_are_made_up_for_the_steps_that_a_raw_entry_claims(tmp_path: Path) -> None:
    path = tmp_path / "run.wshard"
    with ShardWriter(path, role="wshard", fsync=False) as writer:
        writer.write_entry("meta/episode", b'{"episode_id":"run","length_T":0}')
        writer.write_entry("signal/x", bytes(10))
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 64 + 48 + 32, 83_951_616)
    with load_wshard(bytes(data)) as episode:
        tracemalloc.start()
        try:
            with pytest.raises(ShardError):
                episode.align()
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()
