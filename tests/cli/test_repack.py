"""`shard repack`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.exits import Exit
from shard_format import (
    Codec,
    Filters,
    ShardReader,
    ShardWriter,
    WriterOptions,
    compute_identity,
    verify_identity,
)
from shard_format.filters import Delta, Planes

if TYPE_CHECKING:
    from tests.cli.conftest import Make, Run

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.shard"


@pytest.mark.parametrize("compression", ["none", "zstd:1", "lz4"])
def test_everything_but_the_storage_is_kept(
    compression: str, run: Run, sample: Path, out: Path
) -> None:
    result = run("repack", sample, out, "-c", compression, "--alignment", "16")
    assert result.code == Exit.OK
    assert "before" in result.out
    with ShardReader(sample) as before, ShardReader(out) as after:
        after.verify()
        assert after.names() == before.names()
        assert after.header.alignment == 16
        assert after.schema == before.schema
        for old, new in zip(before.infos(), after.infos(), strict=True):
            assert (new.content_type, new.tag_bits) == (old.content_type, old.tag_bits)
        assert verify_identity(after) == verify_identity(before)
    assert run("diff", sample, out).code == Exit.OK


def test_without_options_each_entry_keeps_its_codec_and_frames(
    run: Run, tmp_path: Path, out: Path
) -> None:
    path = tmp_path / "mixed.shard"
    with ShardWriter(path, role="wshard", fsync=False) as writer:
        writer.write_entry("meta/episode", b"{}")
        writer.write_entry("raw", bytes(5000))
        writer.write_entry("lz4", bytes(5000), compression="lz4")
        writer.write_entry("seek", bytes(5000), compression="zstd", frame_bytes=1000)
    assert run("repack", path, out).code == Exit.OK
    with ShardReader(out) as reader:
        codecs = [info.codec for info in reader.infos()]
        assert codecs == [Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD]
        table = reader.seek_table("seek")
        assert table is not None
        assert len(table) == 5


def test_filters_are_kept_where_the_new_frames_can_have_them(
    run: Run, tmp_path: Path, out: Path
) -> None:
    path = tmp_path / "filtered.shard"
    filters = Filters(Delta(width=4, row=12), Planes(4))
    content = np.arange(30_000, dtype="<u4")
    with ShardWriter(path, fsync=False, compression="zstd") as writer:
        writer.write_entry("one", content, filters=filters)
        writer.write_entry("frames", content, filters=filters, frame_bytes=12_000)
    for options, kept in (
        ([], [filters, filters]),
        (["-c", "zstd:19"], [filters, filters]),
        (["--frame-bytes", "24000"], [filters, filters]),
        (["--frame-bytes", "10000"], [None, None]),
        (["-c", "lz4"], [None, None]),
        (["-c", "none"], [None, None]),
    ):
        assert run("repack", path, out, "--force", *options).code == Exit.OK
        assert run("diff", path, out).code == Exit.OK
        assert run("verify", out).code == Exit.OK
        with ShardReader(out) as reader:
            assert [reader.filters(name) for name in reader] == kept


def test_frames_can_be_given_to_zstd_entries(run: Run, make: Make, out: Path) -> None:
    path = make("zstd.shard", {"x": bytes(10_000), "small": b"1"}, compression="zstd")
    assert run("repack", path, out, "--frame-bytes", "4K").code == Exit.OK
    with ShardReader(out) as reader:
        table = reader.seek_table("x")
        assert table is not None
        assert len(table) == 3
    assert run("repack", path, out, "-c", "none", "--frame-bytes", "4K", "-f").code == Exit.USAGE


def test_entries_can_be_chosen_and_the_identity_is_made_anew(
    run: Run, sample: Path, out: Path
) -> None:
    document = run("repack", sample, out, "--only", "signal/*", "--drop", "*zeros", "--json").json
    assert document["dropped"] == ["meta/about", "signal/zeros", "empty"]
    assert document["identity"] == "rewritten"
    with ShardReader(out) as reader:
        assert reader.names() == ["signal/text", "meta/identity"]
        verify_identity(reader)


def test_the_identity_can_be_dropped(run: Run, sample: Path, out: Path) -> None:
    run("repack", sample, out, "--drop", "meta/identity")
    with ShardReader(out) as reader:
        assert "meta/identity" not in reader


def test_a_wrong_identity_does_not_become_right(run: Run, out: Path) -> None:
    result = run("repack", VECTORS / "invalid" / "identity_altered.shard", out)
    assert result.code == Exit.OK
    assert "the stored identity is wrong and left out" in result.err
    with ShardReader(out) as reader:
        assert "meta/identity" not in reader


def test_metadata_of_dropped_entries_goes_and_unknown_fields_stay(
    run: Run, tmp_path: Path, out: Path
) -> None:
    path = tmp_path / "described.shard"
    with ShardWriter(path, options=WriterOptions(schema={"x_odd": [1]}), fsync=False) as writer:
        writer.write_entry("a", b"", metadata={"x_mine": 1})
        writer.write_entry("b", b"", metadata={"description": "b"})
        writer.schema.fields["schema_id"] = writer.schema.schema_id()
    run("repack", path, out, "--drop", "b")
    with ShardReader(out) as reader:
        schema = reader.schema
        assert schema is not None
        assert schema.entry_metadata == {"a": {"x_mine": 1}}
        assert schema.fields["x_odd"] == [1]
        assert schema.fields["schema_id"] == schema.schema_id()


def test_a_file_replaces_itself_only_with_force(run: Run, sample: Path) -> None:
    identity = compute_identity(sample).digest
    before = sample.read_bytes()
    os.chmod(sample, 0o640)
    assert run("repack", sample, sample, "-c", "none").code == Exit.USAGE
    assert sample.read_bytes() == before
    assert run("repack", sample, sample, "-c", "none", "--force").code == Exit.OK
    assert compute_identity(sample).digest == identity
    assert sample.stat().st_mode & 0o777 == 0o640
    assert os.listdir(sample.parent) == [sample.name]


def test_a_damaged_entry_stops_it_and_leaves_nothing(
    run: Run, damaged: Path, out: Path, tmp_path: Path
) -> None:
    before = damaged.read_bytes()
    assert run("repack", damaged, out).code == Exit.FINDING
    assert run("repack", damaged, damaged, "--force").code == Exit.FINDING
    assert damaged.read_bytes() == before
    assert os.listdir(tmp_path) == [damaged.name]


def test_large_entries_stream(
    run: Run, make: Make, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shard_cli.files._LARGEST_IN_MEMORY", 1000)
    path = make("large.shard", {"x": bytes(100_000)}, compression="lz4")
    for compression in ("zstd", "none", "lz4"):
        assert run("repack", path, out, "-c", compression, "--force").code == Exit.OK
        assert run("diff", path, out).code == Exit.OK


def test_what_readers_refuse_compressed_is_stored_raw(
    run: Run, make: Make, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shard_format.registry import Limits

    path = make("large.shard", {"x": bytes(100_000)})
    monkeypatch.setattr(
        "shard_format.registry.DEFAULT_LIMITS", Limits(max_decompressed_bytes=50_000)
    )
    result = run("repack", path, out, "-c", "zstd")
    assert result.code == Exit.OK
    assert "stored raw" in result.err


def test_a_result_that_differs_is_not_put_in_place(
    run: Run, sample: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shard_format import Identity

    monkeypatch.setattr("shard_format.compute_identity", lambda *_, **__: Identity({}))
    result = run("repack", sample, out, "--drop", "meta/identity")
    assert result.code == Exit.FINDING
    assert "(identity_mismatch)" in result.err
    assert os.listdir(out.parent) == [sample.name]
