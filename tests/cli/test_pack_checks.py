"""`verify`, `recover`, `doctor` and `diff` of packs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_cli.kinds.model import Target
from shard_cli.kinds.pack_checks import check_shard
from shard_format.registry import DEFAULT_LIMITS
from shardpack import ShardPackReader, ShardPackWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


def write(path: Path, count: int = 6, start: int = 0, **options: object) -> Path:
    with ShardPackWriter(path, fsync=False, **options) as writer:  # type: ignore[arg-type] # of one test each
        for number in range(start, start + count):
            entries = {"txt": b"line\n" * (100 + number), "bin": bytes([number]) * 50}
            writer.write(f"r{number}", entries, {"number": number})
    return path


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write(tmp_path / "a.shardpack", compression="lz4")


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_a_good_pack_is_ok(pack: Run, shard: Path) -> None:
    result = pack("verify", shard)
    assert result.code == 0
    assert (
        result.out == f"{shard}: ok, 6 records, 12 entries, {shard.stat().st_size / 1024:.1f} KiB\n"
    )
    assert pack("verify", "-q", shard).out == ""


def test_a_damaged_entry_does_not_hide_the_others(pack: Run, shard: Path) -> None:
    with ShardPackReader(shard) as reader:
        flip(shard, reader.record(2)["bin"].offset)
        flip(shard, reader.record(4)["txt"].offset + 3)
    result = pack("verify", shard)
    assert result.code == Exit.FINDING
    assert "FAILED, 2 errors" in result.out
    assert "record 'r2'" in result.out
    assert "entry 'txt'" in result.out
    checked = pack("verify", "--json", shard).json["files"][0]
    assert (checked["ok"], checked["records"], checked["entries"]) == (False, 6, 10)
    assert {error["code"] for error in checked["errors"]} == {"checksum_mismatch"}


@pytest.mark.slow
def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "small.shardpack"
    with ShardPackWriter(path, alignment=1, fsync=False) as writer:
        writer.write("key", {"a": b"xyz", "b.txt": b""}, {"n": 1})
    good = path.read_bytes()
    unseen = []
    for offset in range(len(good)):
        flip(path, offset)
        if not check_shard(
            Target(str(path)), lambda _done, _total: None, limits=DEFAULT_LIMITS
        ).errors:
            unseen.append(offset)
        path.write_bytes(good)
    # Reserved bytes of the footer are covered by its checksum; with alignment 1 there is no padding.
    assert unseen == []


def test_a_lookup_that_leads_elsewhere_is_found(pack: Run, shard: Path) -> None:
    from shard_format.codecs import crc32c
    from shardpack._layout import FOOTER, FOOTER_SIZE

    data = bytearray(shard.read_bytes())
    with ShardPackReader(shard) as reader:
        footer = reader.footer
    # Two record numbers change places, and all checksums fit.
    numbers = footer.hashes_at + 8 * footer.record_count
    data[numbers : numbers + 8] = data[numbers + 4 : numbers + 8] + data[numbers : numbers + 4]
    fields = list(FOOTER.unpack(data[-FOOTER_SIZE:]))
    fields[5] = crc32c(bytes(data[footer.hashes_at : footer.metadata_at]))
    fields[-2] = crc32c(FOOTER.pack(*fields)[:-12])
    data[-FOOTER_SIZE:] = FOOTER.pack(*fields)
    shard.write_bytes(data)
    result = pack("verify", shard)
    assert result.code == Exit.FINDING
    assert result.out.count("the lookup does not find record") == 2


def test_a_key_in_two_shards_of_a_set_is_found(pack: Run, tmp_path: Path) -> None:
    write(tmp_path / "set-0.shardpack", 4)
    write(tmp_path / "set-1.shardpack", 4, start=3)
    result = pack("verify", tmp_path / "set-{0..1}.shardpack")
    assert result.code == Exit.FINDING
    assert "the key 'r3' is in another shard, too" in result.out
    assert "2 shards, 8 records" in result.out
    # Two packs that are given one by one are not one set.
    assert pack("verify", tmp_path / "set-0.shardpack", tmp_path / "set-1.shardpack").code == 0


def test_many_shards_are_checked_at_once_and_shown_in_order(pack: Run, tmp_path: Path) -> None:
    for number in range(7):
        write(tmp_path / f"set-{number}.shardpack", 3, start=3 * number)
    with ShardPackReader(tmp_path / "set-5.shardpack") as reader:
        flip(tmp_path / "set-5.shardpack", reader.record(0)["bin"].offset)
    result = pack("verify", tmp_path, "--jobs", "3")
    assert result.code == Exit.FINDING
    assert [line[-1] for line in result.out.splitlines() if ": ok" in line]
    assert [n for n in range(7) if f"set-{n}.shardpack: ok" in result.out] == [0, 1, 2, 3, 4, 6]
    assert "7 shards, 21 records" in result.out
    assert "1 failed" in result.out


def test_an_unsupported_version_has_an_exit_code_of_its_own(pack: Run, shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    from shard_format.codecs import crc32c

    data[-20] = 9
    data[-12:-8] = crc32c(bytes(data[-64:-12])).to_bytes(4, "little")
    shard.write_bytes(data)
    assert pack("verify", shard).code == Exit.UNSUPPORTED


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_cut_shard_is_recovered_up_to_the_cut(share: float, pack: Run, shard: Path) -> None:
    data = shard.read_bytes()
    cut = shard.with_name("cut.shardpack")
    cut.write_bytes(data[: int(len(data) * share)])
    result = pack("recover", cut)
    assert result.code == Exit.IO
    saved = shard.with_name("cut.recovered.shardpack")
    with ShardPackReader(saved) as back, ShardPackReader(shard) as whole:
        assert len(back) >= 1
        assert f"recovered {len(back)} records" in result.out or len(back) == 1
        for ours, theirs in zip(back, whole, strict=False):
            assert (ours.key, ours.metadata) == (theirs.key, theirs.metadata)
            assert ours.read_all() == theirs.read_all()
    assert "lost:" in result.out
    assert pack("verify", saved).code == 0
    again = pack("recover", cut)
    assert (again.code, "pass --force" in again.err) == (Exit.USAGE, True)


def test_good_entries_of_a_damaged_record_are_recovered_on_request(pack: Run, shard: Path) -> None:
    with ShardPackReader(shard) as reader:
        key, *others = (record.key for record in reader)
        first, *names = reader.record(0).names
        offset = reader.record(0)[first].offset
    data = bytearray(shard.read_bytes())
    data[offset] ^= 1
    shard.write_bytes(data)
    saved = shard.with_name("saved.shardpack")
    result = pack("recover", shard, "-o", saved, "--entries")
    assert result.code == Exit.IO
    assert f"entry {first!r} of record {key!r}" in result.out
    with ShardPackReader(saved) as reader:
        assert [record.key for record in reader] == [key, *others]
        assert list(reader.record(0).names) == names
    facts = pack("recover", shard, "-o", saved, "--force", "--json").json
    assert (facts["records"], facts["lost"][0]["entry"]) == (len(others), None)


def test_a_shard_that_only_lost_its_index_comes_back_whole(pack: Run, shard: Path) -> None:
    with ShardPackReader(shard) as reader:
        end = reader.footer.index_offset
    lost = shard.with_name(".b.shardpack.0123456789ab.partial")
    lost.write_bytes(shard.read_bytes()[:end])
    facts = pack("recover", lost, "--json")
    assert facts.code == 0
    # The name that the writer had in mind.
    assert facts.json["output"] == str(shard.with_name("b.shardpack"))
    assert (facts.json["records"], facts.json["lost"]) == (6, [])
    assert pack("diff", shard, shard.with_name("b.shardpack")).code == 0


def test_doctor_explains_a_damaged_shard(run: Run, shard: Path) -> None:
    with ShardPackReader(shard) as reader:
        flip(shard, reader.record(2)["bin"].offset)
    result = run("doctor", shard)
    assert result.code == Exit.FINDING
    assert "11 of 12 entries readable" in result.out
    assert "means:" in result.out
    shard.write_bytes(shard.read_bytes()[:-5])
    assert "does not open" in run("doctor", shard).out


def test_packs_that_are_only_stored_differently_are_the_same(
    pack: Run, shard: Path, tmp_path: Path
) -> None:
    other = write(tmp_path / "b.shardpack", compression="zstd", alignment=64)
    assert pack("diff", shard, other).out == "same: 6 records\n"
    assert pack("diff", "--stored", shard, other).code == Exit.FINDING


def test_differences_are_named(pack: Run, shard: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.shardpack"
    with ShardPackReader(shard) as reader, ShardPackWriter(other, metadata={"by": "me"}) as writer:
        for record in list(reader)[1:]:
            entries: dict[str, bytes] = record.read_all()
            metadata = record.metadata
            if record.key == "r2":
                entries["txt"] = entries["txt"][:7] + b"X" + entries["txt"][8:]
                metadata["number"] = 7
            if record.key == "r3":
                del entries["bin"]
                entries["new"] = b"n"
            writer.write(record.key, entries, metadata)
        writer.write("r9", {"txt": b"x"})
    result = pack("diff", shard, other)
    assert result.code == Exit.FINDING
    for line in (
        "- r0: only in A, 550 B",
        "+ r9: only in B, 1 B",
        "~ r2.txt: 510 B, differs from byte 7 on",
        "* r2: metadata.number 2 -> 7",
        "- r3.bin: only in A",
        "+ r3.new: only in B",
        "* file: metadata.by none -> me",
    ):
        assert line in result.out
    found = pack("diff", "--json", shard, other).json
    assert (found["same"], len(found["differences"])) == (False, 7)
    assert pack("diff", "--brief", shard, other).out == f"{shard} and {other} differ\n"
