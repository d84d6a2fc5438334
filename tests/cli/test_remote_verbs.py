"""Verbs on files behind a URL: the same answers as for local files, and each byte fetched once, in large blocks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import shardpack
from shard_cli.exits import Exit
from shard_format import FileReference, Manifest, ShardWriter
from shard_format.errors import UnsafePath
from shardpack import ShardPackWriter, ShardWriterSet
from tests.shard_format.support import noise
from tests.shardpack.support import write_pack
from tests.stores.counting import RangeServer, range_server
from wshard import Channel, Episode, save_wshard
from wshard.chunked import ChunkedEpisodeWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Run

MIB = 1 << 20
BLOCK = 8 * MIB


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        yield server


def put(server: RangeServer, path: Path) -> str:
    return server.put(path.name, path.read_bytes())


def check_traffic(server: RangeServer, *sizes: int) -> None:
    """Each file is fetched once, in blocks."""
    requests, sent = server.counter.taken()
    assert sent <= 1.05 * sum(sizes)
    assert requests <= sum(size / BLOCK + 2 for size in sizes)


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """A shard of 10 MB with small records."""
    samples = {f"{n:04d}": {"a.bin": noise(20_000, n), "b.cls": str(n)} for n in range(500)}
    return write_pack(tmp_path / "local.shardpack", samples)


def test_a_remote_shard_is_verified_with_few_requests(
    pack: Run, server: RangeServer, shard: Path
) -> None:
    result = pack("verify", put(server, shard))
    assert (result.code, "500 records, 1,000 entries" in result.out) == (Exit.OK, True)
    check_traffic(server, shard.stat().st_size)


def test_damage_of_a_remote_shard_is_found_and_named_by_its_url(
    pack: Run, server: RangeServer, shard: Path
) -> None:
    data = bytearray(shard.read_bytes())
    data[5 * MIB] ^= 1
    url = server.put("damaged.shardpack", bytes(data))
    result = pack("verify", "--json", url)
    assert result.code == Exit.FINDING
    (error,) = result.json["files"][0]["errors"]
    assert error["code"] == "checksum_mismatch"
    assert error["file"] == url
    check_traffic(server, len(data))


@pytest.mark.parametrize("is_other", [False, True])
def test_a_remote_set_is_verified_with_its_hashes(
    pack: Run, server: RangeServer, tmp_path: Path, is_other: bool
) -> None:
    for name in ("a", "b"):
        with ShardWriterSet(str(tmp_path / f"{name}-%02d.shardpack"), max_records=20) as writer:
            for number in range(60):
                # The other set has the same sizes, keys and index.
                writer.write(str(number), {"x.bin": noise(1000, number + (name == "b"))})
    names = [f"a-{number:02d}.shardpack" for number in range(3)]
    urls = [put(server, tmp_path / name) for name in (*names, "a.shardpack-set")]
    if is_other:
        server.put(names[1], (tmp_path / "b-01.shardpack").read_bytes())
    result = pack("verify", urls[-1])
    assert result.code == (Exit.FINDING if is_other else Exit.OK)
    assert ("SHA-256" in result.out) == is_other
    assert server.counter.taken().requests == 4


def test_a_remote_shard_is_extracted_like_a_local_one(
    pack: Run, server: RangeServer, shard: Path, tmp_path: Path
) -> None:
    result = pack("extract", put(server, shard), "-C", tmp_path / "out")
    assert result.code == Exit.OK
    assert (tmp_path / "out/0123.a.bin").read_bytes() == noise(20_000, 123)
    assert len(list((tmp_path / "out").iterdir())) == 1000
    check_traffic(server, shard.stat().st_size)


def test_one_record_of_a_remote_shard_is_extracted_alone(
    pack: Run, server: RangeServer, shard: Path, tmp_path: Path
) -> None:
    url = put(server, shard)
    assert pack("extract", url, "0123", "-C", tmp_path / "out").code == Exit.OK
    assert pack("cat", url, "0007", "b.cls").out == "7"
    assert pack("info", url).code == Exit.OK
    requests, sent = server.counter.taken()
    assert requests <= 7
    assert sent < MIB


@pytest.mark.parametrize("is_same_order", [True, False])
def test_remote_shards_are_compared_with_each_byte_fetched_once(
    pack: Run, server: RangeServer, shard: Path, tmp_path: Path, is_same_order: bool
) -> None:
    samples = {f"{n:04d}": {"a.bin": noise(20_000, n), "b.cls": str(n)} for n in range(500)}
    del samples["0100"]
    samples["0200"]["b.cls"] = "other"
    samples["9999"] = {"a.bin": b"new"}
    order = list(samples.items())
    other = write_pack(
        tmp_path / "other.shardpack", dict(order if is_same_order else reversed(order))
    )
    urls = put(server, shard), put(server, other)
    result = pack("diff", "--json", *urls)
    assert result.code == Exit.FINDING
    found = {(one["kind"], one["entry"]) for one in result.json["differences"]}
    assert found == {("only_in_a", "0100"), ("content", "0200.b.cls"), ("only_in_b", "9999")}
    sizes = [shard.stat().st_size, other.stat().st_size]
    # One more: what comes in another order is opened once more, to be copied.
    check_traffic(server, *sizes, *([] if is_same_order else [0]))


def test_keys_with_the_same_hash_are_told_apart(
    pack: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardpack.writer.xxh64_intdigest", lambda key: len(key))
    paths = [
        write_pack(tmp_path / f"{key}.shardpack", {key: {"x": b"1"}, "long": {"x": b"2"}})
        for key in ("a", "b")
    ]
    found = pack("diff", "--json", *paths).json["differences"]
    assert [(one["kind"], one["entry"]) for one in found] == [
        ("only_in_a", "a"),
        ("only_in_b", "b"),
    ]


# Runs a command without files in the folder for temporary ones, and prints the most memory that it held.
_BOUNDED = """
import sys, tempfile, tracemalloc
tempfile.TemporaryFile = tempfile.NamedTemporaryFile = tempfile.mkstemp = None
tracemalloc.start()
from shard_cli import programs
from shard_cli.main import main
code = main(sys.argv[2:], getattr(programs, sys.argv[1]))
print(tracemalloc.get_traced_memory()[1], file=sys.stderr)
sys.exit(code)
"""


def write_large_pack(path: Path) -> str:
    """Writes a pack of 180 MiB; returns the name of the last file that `extract` writes."""
    content = noise(MIB)
    with ShardPackWriter(path, fsync=False) as writer:
        for number in range(160):
            writer.write(f"{number:03d}", {"a.bin": content})
        # Larger than a block: read while its entries are.
        writer.write("large", {f"{n:02d}.bin": content for n in range(20)})
    return "large.19.bin"


def write_large_container(path: Path) -> str:
    """The same for a container, with an identity and a schema section, raw and compressed entries of many sizes."""
    with ShardWriter(path, fsync=False, identity=True) as writer:
        writer.write_entry("raw", noise(MIB) * 100)
        content = noise(15 * MIB) + bytes(3 * MIB)
        writer.write_entry("one frame", content, compression="zstd")
        writer.write_entry("frames", content, compression="zstd", frame_bytes=MIB)
        for number in range(40):
            writer.write_entry(f"{number:02d}", noise(MIB), tags=["few"])
    return "39"


@pytest.mark.parametrize("program", ["SHARDPACK", "SHARD"])
@pytest.mark.parametrize("verb", ["verify", "extract", "diff"])
@pytest.mark.slow
def test_a_large_remote_file_streams_in_bounded_memory(
    server: RangeServer, tmp_path: Path, program: str, verb: str
) -> None:
    path = tmp_path / "large"
    last = (write_large_pack if program == "SHARDPACK" else write_large_container)(path)
    url, size = put(server, path), path.stat().st_size
    others = {"verify": [], "extract": ["-C", str(tmp_path / "out")], "diff": [url]}[verb]
    done = subprocess.run(
        [sys.executable, "-c", _BOUNDED, program, verb, url, *others],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"TMPDIR": str(tmp_path / "missing")},
    )
    assert done.returncode == 0, done.stderr
    check_traffic(server, *[size] * (2 if verb == "diff" else 1))
    # Of each file up to four blocks, two answers that arrive, and a record, or a compressed entry of two blocks; and what
    # else the program needs.
    most = 9 * BLOCK if program == "SHARDPACK" else 11 * BLOCK
    assert int(done.stderr.splitlines()[-1]) < (2 if verb == "diff" else 1) * most
    if verb == "extract":
        assert (tmp_path / "out" / last).read_bytes() == noise(MIB)


def test_damage_in_a_remote_set_does_not_hide_what_is_behind_it(
    pack: Run, server: RangeServer, tmp_path: Path
) -> None:
    with ShardWriterSet(str(tmp_path / "a-%02d.shardpack")) as writer:
        for number in range(20):
            writer.write(str(number), {"x.bin": noise(1000, number)})
    data = bytearray((tmp_path / "a-00.shardpack").read_bytes())
    data[0] ^= 1  # the head of the first record
    data[10_000] ^= 1
    server.put("a-00.shardpack", bytes(data))
    url = put(server, tmp_path / "a.shardpack-set")
    checked = pack("verify", "--json", url).json["files"]
    shard = next(one for one in checked if one["file"].endswith("a-00.shardpack"))
    assert [error["code"] for error in shard["errors"]][-1] == "reference_mismatch"
    assert len(shard["errors"]) == 3
    assert (shard["records"], shard["entries"]) == (19, 18)


@pytest.mark.parametrize("key", ["../up", "good.a"])
def test_a_remote_record_that_must_not_be_a_file_is_never_written(
    pack: Run, server: RangeServer, tmp_path: Path, key: str
) -> None:
    with ShardPackWriter(tmp_path / "x.shardpack", fsync=False) as writer:
        writer.write("good", {"a.txt": b"1"})
        writer.write(key, {"txt": b"2"})
        writer.write("last", {"txt": b"3"})
    url = put(server, tmp_path / "x.shardpack")
    out = tmp_path / "out"
    result = pack("extract", url, "-C", out)
    assert result.code == Exit.FINDING
    assert "the files before it were written" in result.err
    assert (out / "good.a.txt").read_bytes() == b"1"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "x.shardpack"]
    with pytest.raises(UnsafePath):
        shardpack.unpack(url, out)
    assert (out / "good.a.txt").read_bytes() == b"1"
    # The others are, if told to.
    result = pack("extract", url, "-C", out, "--skip-unsafe", "--force")
    assert result.code == Exit.FINDING
    assert "skipped" in result.err
    assert {one.name: one.read_bytes() for one in out.iterdir()} == {
        "good.a.txt": b"1",
        "last.txt": b"3",
    }


def test_the_listing_of_large_remote_records_fetches_heads(
    pack: Run, server: RangeServer, tmp_path: Path
) -> None:
    samples = {str(n): {"a.bin": noise(2 * MIB, n), "b.cls": str(n)} for n in range(4)}
    url = put(server, write_pack(tmp_path / "a.shardpack", samples))
    result = pack("ls", "--json", url)
    assert [record["key"] for record in result.json["records"]] == ["0", "1", "2", "3"]
    assert server.counter.taken().sent < MIB // 4


def test_a_remote_container_is_checked_compared_and_extracted(
    run: Run, server: RangeServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.shard"
    with ShardWriter(path, fsync=False) as writer:
        for number in range(10):
            writer.write_entry(f"e/{number}", noise(MIB, number))
        writer.write_entry("z", b"abc" * MIB, compression="zstd")
    url, size = put(server, path), path.stat().st_size
    assert run("verify", url).code == Exit.OK
    check_traffic(server, size)
    assert run("diff", url, path).out == "same: 11 entries\n"
    check_traffic(server, size)
    assert run("extract", url, "-C", tmp_path / "out").code == Exit.OK
    assert (tmp_path / "out/e/7").read_bytes() == noise(MIB, 7)
    check_traffic(server, size)
    assert run("identity", url).code == Exit.OK
    check_traffic(server, size)
    assert run("repack", url, tmp_path / "b.shard").code == Exit.OK
    check_traffic(server, size)
    # A part of it is fetched alone.
    assert run("extract", url, "e/3", "-C", tmp_path / "one").code == Exit.OK
    assert server.counter.taken().sent < 1.2 * MIB


def test_a_large_entry_of_a_remote_container_takes_a_request_per_block(
    run: Run, server: RangeServer, tmp_path: Path
) -> None:
    path = tmp_path / "a.shard"
    content = noise(20 * MIB)
    with ShardWriter(path, fsync=False) as writer:
        writer.write_entry("small", noise(MIB))
        writer.write_entry("large", content)
        writer.write_entry("other", noise(9 * MIB))
    url = put(server, path)
    assert run("extract", url, "large", "-C", tmp_path / "out").code == Exit.OK
    assert (tmp_path / "out/large").read_bytes() == content
    check_traffic(server, len(content))


@pytest.mark.parametrize("mib", [1, 9, 28, 65])
def test_a_remote_episode_is_checked_and_compared(
    wshard: Run, server: RangeServer, tmp_path: Path, mib: int
) -> None:
    path = tmp_path / "ep.wshard"
    rgb = np.frombuffer(noise(mib * MIB), np.uint8).reshape(mib * 16, 64, 1024)
    episode = Episode(id="remote", length=len(rgb))
    episode.observations["rgb"] = Channel("rgb", data=rgb)
    episode.actions["move"] = Channel("move", data=np.arange(len(rgb), dtype="f4"))
    save_wshard(episode, path, compression="zstd", fsync=False)
    url, size = put(server, path), path.stat().st_size
    result = wshard("verify", "--json", url)
    assert (result.code, result.json["ok"]) == (Exit.OK, True)
    # The server is also asked for an overview.
    check_traffic(server, size)
    result = wshard("diff", url, path)
    assert result.code == Exit.OK
    check_traffic(server, size)
    assert "remote" in wshard("inspect", url).out


def test_a_remote_container_in_another_order_is_compared_with_each_byte_fetched_once(
    run: Run, server: RangeServer, tmp_path: Path
) -> None:
    names = [f"{number:02d}" for number in range(12)]
    urls, sizes = [], []
    for file, order in (("a", names), ("b", names[::-1])):
        path = tmp_path / f"{file}.shard"
        with ShardWriter(path, fsync=False) as writer:
            for name in order:
                writer.write_entry(name, noise(MIB, 7 if (file, name) == ("b", "05") else 1))
        urls.append(put(server, path))
        sizes.append(path.stat().st_size)
    result = run("diff", "--json", *urls)
    assert [one["entry"] for one in result.json["differences"]] == ["05"]
    # One more: B is opened once more, to be copied.
    check_traffic(server, *sizes, 0)


def test_files_of_a_remote_manifest_are_hashed_and_checked_with_each_byte_fetched_once(
    run: Run, server: RangeServer, tmp_path: Path
) -> None:
    for number in range(3):
        with ShardWriter(tmp_path / f"{number}.shard", fsync=False) as writer:
            for name in "abc":
                writer.write_entry(name, noise(MIB, number))
    samples = {str(number): {"x.bin": noise(MIB, number)} for number in range(3)}
    write_pack(tmp_path / "3.shardpack", samples)
    files = [tmp_path / name for name in ("0.shard", "1.shard", "2.shard", "3.shardpack")]
    manifest = tmp_path / "all.shard"
    Manifest([FileReference.to_file(file, relative_to=tmp_path) for file in files]).write(manifest)
    url = [put(server, file) for file in (*files, manifest)][-1]
    assert run("verify", url).code == Exit.OK
    check_traffic(server, *[file.stat().st_size for file in (*files, manifest)])


def test_a_remote_episode_in_chunks_is_checked_with_each_byte_fetched_once(
    wshard: Run, server: RangeServer, tmp_path: Path
) -> None:
    with ChunkedEpisodeWriter(tmp_path, "run", 10, fsync=False) as writer:
        for number in range(3):
            chunk = Episode(id="run", length=10)
            rgb = np.frombuffer(noise(10 * 96 * 1024, number), np.uint8).reshape(10, 96, 1024)
            chunk.observations["rgb"] = Channel("rgb", data=rgb)
            writer.write_chunk(chunk)
    files = sorted(tmp_path.iterdir())
    url = next(url for url in [put(server, file) for file in files] if "manifest" in url)
    result = wshard("verify", "--json", url)
    assert (result.code, result.json["files"][0]["files"]) == (Exit.OK, 4)
    check_traffic(server, *[file.stat().st_size for file in files])
