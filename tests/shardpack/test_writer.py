"""Writing one shard and sets of shards: what is refused, what stays, what goes on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from textwrap import dedent
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pytest

import shardpack
from shard_format.errors import (
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
)
from shardpack import ShardPackWriter, ShardWriterSet
from shardpack import writer as writer_module
from shardpack.convert import to_tar
from tests.shardpack.support import CREATED, HandMadePack, HandMadeRecord, noise, prose, write_pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TestRecords:
    """What a record may hold."""

    def test_a_key_may_be_64_kibibytes_long_and_not_more(self, tmp_path: Path) -> None:
        longest = "ü" * 32_768
        path = tmp_path / "a.shardpack"
        with ShardPackWriter(path, fsync=False) as writer:
            writer.write(longest, {"a.txt": "1"})
            with pytest.raises(InvalidArgument, match="P-REC-5"):
                writer.write(longest + "x", {})
        assert shardpack.open(path)[longest].key == longest

    @pytest.mark.parametrize("key", ["", "a\0b", "\ud800", 7, b"bytes"])
    def test_a_key_that_cannot_be_stored_is_refused(self, tmp_path: Path, key: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with ShardPackWriter(tmp_path / "a", fsync=False) as writer:
            with pytest.raises(InvalidArgument, match="P-REC-5"):
                writer.write(key, {})
            assert len(writer) == 0

    @pytest.mark.parametrize(
        "key", ["a/b/../c", "/etc/passwd", "日本語", "e\u0301", "\u00e9", " ", "a\nb", "*", "-1"]
    )
    def test_any_text_is_a_key(self, tmp_path: Path, key: str) -> None:
        path = write_pack(tmp_path / "a", {key: {key: b"1"}, key + "x": {}})
        record = shardpack.open(path)[key]
        assert (record.key, record.read_all()) == (key, {key: b"1"})

    def test_a_repeated_key_is_named_and_leaves_the_shard_as_it_was(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        with ShardPackWriter(path, fsync=False) as writer:
            writer.write("cat", {"a.txt": "1"})
            with pytest.raises(InvalidArgument, match="'cat' was written before"):
                writer.write("cat", {"a.txt": "2"})
            writer.write("dog", {"a.txt": "3"})
        assert [r.read_all()["a.txt"] for r in shardpack.open(path)] == [b"1", b"3"]

    def test_keys_with_the_same_hash_are_both_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(writer_module, "xxh64_intdigest", lambda key: 7)
        with ShardPackWriter(tmp_path / "a", fsync=False) as writer:
            for key in ("x", "y", "z"):
                writer.write(key, {})
                assert key in writer
            assert "w" not in writer
            with pytest.raises(InvalidArgument, match="'y' was written before"):
                writer.write("y", {})
        assert list(shardpack.open(tmp_path / "a").keys()) == ["x", "y", "z"]

    def test_asking_for_old_keys_does_not_search_all_of_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        searched: list[int] = []

        def search(found: Any) -> Any:  # noqa: ANN401 - of an array
            searched.append(len(found))
            return found.nonzero()[0]

        monkeypatch.setattr(writer_module, "_MOST_UNSORTED", 10)
        monkeypatch.setattr(np, "flatnonzero", search)
        with ShardPackWriter(tmp_path / "a", fsync=False) as writer:
            for number in range(100):
                writer.write(f"{number}", {})
                assert all(f"{old}" in writer for old in range(0, number + 1, 7))
            assert "100" not in writer
        assert max(searched) == 10
        with ShardPackWriter(tmp_path / "a", append=True, fsync=False) as writer:
            assert all(f"{number}" in writer for number in range(100))
            assert searched[-1] == 0

    def test_a_record_above_the_limit_is_refused_and_named(self, tmp_path: Path) -> None:
        with ShardPackWriter(tmp_path / "a", max_record_bytes=500, fsync=False) as writer:
            with pytest.raises(LimitExceeded, match="'big'"):
                writer.write("big", {"a.bin": noise(500)})
            writer.write("small", {"a.bin": noise(100)})
        assert list(shardpack.open(tmp_path / "a").keys()) == ["small"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("a.json", float("nan")),
            ("a.json", object()),
            ("a.json", {1, 2}),
            ("a.txt", 1.5),
            ("a.txt", "\ud800"),
            ("a.npy", [object()]),
            ("a.npz", [1]),
            ("a.bin", np.arange(3)),
            ("a.jpg", "text"),
            ("a.msgpack", {"a": 1}),
            ("", b""),
            ("a\0", b""),
        ],
    )
    def test_what_cannot_be_stored_is_refused(self, tmp_path: Path, name: str, value: Any) -> None:  # noqa: ANN401 - anything
        with ShardPackWriter(tmp_path / "a", fsync=False) as writer:
            with pytest.raises(InvalidArgument):
                writer.write("k", {"first.txt": "1", name: value})
            assert len(writer) == 0

    def test_memory_that_changes_after_the_call_changes_nothing(self, tmp_path: Path) -> None:
        small, large = bytearray(noise(1000)), bytearray(noise(3_000_000))
        array = np.arange(100)
        with ShardPackWriter(tmp_path / "a", fsync=False) as writer:
            writer.write("k", {"s.bin": small, "l.bin": memoryview(large), "a.npy": array})
            small[:] = bytes(len(small))
            large[:] = bytes(len(large))
            array[:] = 0
        record = shardpack.open(tmp_path / "a")["k"]
        assert record["s.bin"].data == noise(1000)
        assert record["l.bin"].data == noise(3_000_000)
        assert np.array_equal(record["a.npy"].decode(), np.arange(100))

    def test_compressed_contents_are_not_compressed_again(self, tmp_path: Path) -> None:
        data = prose(5000)
        names = ["a.jpg", "a.png", "a.mp4", "a.zst", "a.npz", "a.wshard", "a.json", "a.txt", "a"]
        path = write_pack(tmp_path / "a", {"k": dict.fromkeys(names, data)}, compression="zstd")
        found = {entry.name: entry.compression for entry in shardpack.open(path)[0].file_entries()}
        assert found == {n: "zstd" if n in ("a.json", "a.txt", "a") else "none" for n in names}

    def test_compression_is_kept_only_where_it_helps(self, tmp_path: Path) -> None:
        entries = {"noise.bin": noise(5000), "short.txt": "a" * 256, "long.txt": "a" * 257}
        path = write_pack(tmp_path / "a", {"k": entries}, compression="lz4")
        found = [entry.compression for entry in shardpack.open(path)[0].file_entries()]
        assert found == ["none", "none", "lz4"]

    def test_single_entries_have_their_own_type_and_compression(self, tmp_path: Path) -> None:
        with ShardPackWriter(tmp_path / "a", compression="zstd", fsync=False) as writer:
            for number in range(3):
                writer.write(
                    f"{number}",
                    {"x": prose(900), "y.txt": prose(900)},
                    content_types={"x": "application/json"},
                    compression={"y.txt": "zstd:9"},
                )
            writer.write("plain", {"x": prose(900), "y.txt": prose(900)})
            with pytest.raises(InvalidArgument, match="does not exist"):
                writer.write("wrong", {"x": b""}, content_types={"z": "text/plain"})
        dataset = shardpack.open(tmp_path / "a")
        x, y = dataset["1"].file_entries()
        assert (x.content_type, x.compression) == ("application/json", "zstd")
        assert (y.content_type, y.compression) == ("text/plain", "zstd")
        assert [e.compression for e in dataset["plain"].file_entries()] == ["zstd", "zstd"]
        assert dataset.metadata["schema"]["x"] == {"content_type": "", "records": 4}

    @pytest.mark.parametrize("compression", ["zip", "zstd:99", "gzip", "lz4:1", "none:1", 5])
    def test_unknown_compression_is_refused(self, tmp_path: Path, compression: Any) -> None:  # noqa: ANN401 - wrong on purpose
        with pytest.raises(InvalidArgument):
            ShardPackWriter(tmp_path / "a", compression=compression)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.shardpack", "a-%03d.shardpack"])
def test_missing_folders_are_made(tmp_path: Path, name: str) -> None:
    target = tmp_path / "new" / "folder" / name
    assert shardpack.pack(["k"], target, lambda key: (key, {"a.txt": "x"})).records == 1
    with ShardPackWriter(tmp_path / "other" / "a.shardpack") as writer:
        writer.write("k", {})
    assert [len(shardpack.open(tmp_path / each)) for each in ("new/folder", "other")] == [1, 1]


class TestFiles:
    """When a shard appears, and what it leaves."""

    def test_a_shard_appears_when_it_is_complete(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        with ShardPackWriter(path) as writer:
            writer.write("k", {"a.bin": noise(10)})
            assert not path.exists()
        assert os.listdir(tmp_path) == ["a.shardpack"]

    def test_an_exception_leaves_what_was_there(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a.shardpack", {"old": {}})
        with pytest.raises(RuntimeError), ShardPackWriter(path, overwrite=True) as writer:  # noqa: PT012 - the block is the test
            writer.write("new", {})
            raise RuntimeError
        assert list(shardpack.open(path).keys()) == ["old"]
        assert os.listdir(tmp_path) == ["a.shardpack"]

    def test_a_closed_writer_says_so(self, tmp_path: Path) -> None:
        writer = ShardPackWriter(tmp_path / "a", fsync=False)
        writer.close()
        writer.close()
        with pytest.raises(Closed):
            writer.write("k", {})
        with pytest.raises(Closed):
            writer.flush()

    def test_a_full_disk_gives_up_the_shard(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(descriptor: int, buffers: object) -> None:
            raise OSError(28, "No space left on device")

        writer = ShardPackWriter(tmp_path / "a")
        monkeypatch.setattr(writer_module, "write_all", full)
        with pytest.raises(ShardIOError, match="disk is full"):
            writer.write("k", {"a.bin": memoryview(bytearray(3_000_000))})
        assert os.listdir(tmp_path) == []
        with pytest.raises(Closed):
            writer.write("k", {})

    def test_append_goes_on_behind_the_records_that_are_there(self, tmp_path: Path) -> None:
        path, whole = tmp_path / "a.shardpack", tmp_path / "b.shardpack"
        samples = {str(n): {"a.txt": f"{n}", "b.bin": noise(n)} for n in range(20)}
        write_pack(path, dict(list(samples.items())[:12]), metadata={"by": "me"})
        with ShardPackWriter(path, append=True, created="later", fsync=False) as writer:
            assert len(writer) == 12
            assert "11" in writer
            assert "12" not in writer
            with pytest.raises(InvalidArgument, match="written before"):
                writer.write("3", {})
            for key, entries in list(samples.items())[12:]:
                writer.write(key, entries)
        write_pack(whole, samples, metadata={"by": "me"}, created="later")
        assert path.read_bytes() == whole.read_bytes()

    def test_space_that_was_claimed_ahead_is_given_back(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        data = noise(1_000_000)
        with ShardPackWriter(path, fsync=False) as writer:
            for number in range(20):
                writer.write(f"{number}", {"a.bin": data})
            assert os.path.getsize(writer.temporary) >= 20_000_000
        assert path.stat().st_size < 20_010_000
        assert all(record["a.bin"].data == data for record in shardpack.open(path))

    def test_append_starts_a_shard_that_is_not_there(self, tmp_path: Path) -> None:
        with ShardPackWriter(tmp_path / "a", append=True, fsync=False) as writer:
            writer.write("k", {})
        assert list(shardpack.open(tmp_path / "a").keys()) == ["k"]

    def test_append_to_something_else_is_refused_and_leaves_it(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        path.write_bytes(prose(500))
        with pytest.raises(ShardError):
            ShardPackWriter(path, append=True)
        assert path.read_bytes() == prose(500)
        assert os.listdir(tmp_path) == ["a"]

    @pytest.mark.parametrize(
        "fields",
        [{}, {"user": 5, "schema": 7}, {"schema": {"a": 1}}, {"schema": {"a": {"records": "x"}}}],
    )
    def test_append_to_a_shard_with_fields_of_another_kind(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        path = tmp_path / "a.shardpack"
        path.write_bytes(HandMadePack([HandMadeRecord(b"k")], fields).to_bytes())
        with ShardPackWriter(path, append=True, fsync=False) as writer:
            writer.write("l", {"a.txt": "1"})
        dataset = shardpack.open(path)
        assert list(dataset.keys()) == ["k", "l"]
        assert dataset.metadata["user"] == {}
        assert "schema" not in dataset.metadata
        assert shardpack.recover(path, tmp_path / "b").is_complete

    def test_records_are_copied_without_decoding(self, tmp_path: Path) -> None:
        samples = {str(n): {"a.txt": "word " * n, "b.npy": np.arange(n)} for n in range(0, 400, 50)}
        path = write_pack(tmp_path / "a", samples, compression="zstd:19")
        copy = tmp_path / "b"
        with ShardPackWriter(copy, created=shardpack.open(path).metadata["created"]) as writer:
            for record in shardpack.open(path):
                writer.copy(record)
        assert copy.read_bytes() == path.read_bytes()
        with ShardPackWriter(copy, alignment=64, overwrite=True) as writer:
            for record in shardpack.open(path):
                writer.copy(record, key=f"new/{record.key}")
        found = shardpack.open(copy)
        assert {r.alignment for r in found} == {64}
        for record in shardpack.open(path):
            assert found[f"new/{record.key}"].read_all() == record.read_all()

    def test_a_set_of_names_without_end_has_no_schema(self, tmp_path: Path) -> None:
        samples = {str(n): {f"file {n}.txt": "1"} for n in range(2000)}
        dataset = shardpack.open(write_pack(tmp_path / "a", samples))
        assert "schema" not in dataset.metadata
        assert dataset["1999"].names == ("file 1999.txt",)


class TestSets:
    """Many shards."""

    def write(self, folder: Path, numbers: range, **options: Any) -> list[str]:  # noqa: ANN401 - the set's
        options.setdefault("max_records", 4)
        pattern = folder / "train-%03d.shardpack"
        with ShardWriterSet(pattern, fsync=False, created=0, **options) as writer:
            for number in numbers:
                if str(number) not in writer:
                    writer.write(str(number), {"a.bin": noise(1000, number)})
            count = len(writer)
        assert count == len(shardpack.open(folder))
        return sorted(path.name for path in folder.glob("*.shardpack"))

    def test_a_new_shard_starts_after_so_many_records(self, tmp_path: Path) -> None:
        assert self.write(tmp_path, range(10)) == [f"train-00{n}.shardpack" for n in range(3)]
        dataset = shardpack.open(str(tmp_path / "train-{000..002}.shardpack"))
        assert [len(shard) for shard in dataset.shards] == [4, 4, 2]
        assert list(dataset.keys()) == [str(n) for n in range(10)]

    def test_no_shard_exceeds_its_size(self, tmp_path: Path) -> None:
        names = self.write(tmp_path, range(40), max_bytes=8000, max_records=None)
        sizes = [(tmp_path / name).stat().st_size for name in names]
        assert max(sizes) <= 8000
        assert len(names) > 4

    def test_a_record_larger_than_a_shard_has_one_of_its_own(self, tmp_path: Path) -> None:
        assert len(self.write(tmp_path, range(3), max_bytes=100, max_records=None)) == 3

    def test_a_set_without_records_has_one_empty_shard(self, tmp_path: Path) -> None:
        assert self.write(tmp_path, range(0)) == ["train-000.shardpack"]

    def test_shards_that_are_there_are_not_replaced_unasked(self, tmp_path: Path) -> None:
        self.write(tmp_path, range(10))
        with pytest.raises(InvalidArgument, match="append=True"):
            self.write(tmp_path, range(10))

    def test_append_goes_on_behind_the_last_shard(self, tmp_path: Path) -> None:
        self.write(tmp_path, range(9))
        names = self.write(tmp_path, range(20), append=True)
        assert names == [f"train-00{n}.shardpack" for n in range(6)]
        assert list(shardpack.open(tmp_path).keys()) == [str(n) for n in range(20)]
        # Nothing new: nothing is written.
        assert self.write(tmp_path, range(20), append=True) == names

    def test_keys_are_unique_in_the_whole_set(self, tmp_path: Path) -> None:
        self.write(tmp_path, range(9))
        with ShardWriterSet(tmp_path / "train-%03d.shardpack", append=True) as writer:
            for number in range(9, 20):
                writer.write(str(number), {})
            for key in ("0", "8", "9", "19"):
                with pytest.raises(InvalidArgument, match="written before"):
                    writer.write(key, {})

    def test_the_name_of_a_set_has_one_number(self, tmp_path: Path) -> None:
        pattern = "a-%d-%d"
        with pytest.raises(InvalidArgument, match="one number"):
            ShardWriterSet(tmp_path / pattern)

    def test_records_of_other_sets_are_copied(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        self.write(tmp_path / "a", range(10))
        with ShardWriterSet(tmp_path / "b" / "%d.shardpack", max_records=7) as writer:
            for record in shardpack.open(tmp_path / "a"):
                writer.copy(record)
        assert list(shardpack.open(tmp_path / "b").keys()) == [str(n) for n in range(10)]

    def test_a_killed_run_goes_on_and_ends_with_the_same_files(self, tmp_path: Path) -> None:
        """Killed without a warning while it writes; complete shards stay, nothing is there twice."""
        script = dedent(
            """
            import os, signal, sys
            from shardpack import ShardWriterSet
            from tests.shardpack.support import noise
            with ShardWriterSet(sys.argv[1], max_records=4, fsync=False, created=0) as writer:
                for number in range(20):
                    if number == 14:
                        writer._writer.flush()
                        os.kill(os.getpid(), signal.SIGKILL)
                    writer.write(str(number), {"a.bin": noise(1000, number)})
            """
        )
        pattern = tmp_path / "killed" / "train-%03d.shardpack"
        pattern.parent.mkdir()
        run = subprocess.run(
            [sys.executable, "-c", script, str(pattern)],
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert run.returncode == -signal.SIGKILL
        assert len(shardpack.open(pattern.parent)) == 12
        (leftover,) = pattern.parent.glob(".train-*.partial")
        with ShardWriterSet(pattern, append=True, max_records=4, fsync=False, created=0) as writer:
            for number in range(20):
                if str(number) not in writer:
                    writer.write(str(number), {"a.bin": noise(1000, number)})
        found = shardpack.recover(leftover, tmp_path / "rest.shardpack")
        assert (found.records, found.had_index) == (2, False)
        assert list(shardpack.open(tmp_path / "rest.shardpack").keys()) == ["12", "13"]
        os.unlink(leftover)
        whole = tmp_path / "whole"
        whole.mkdir()
        self.write(whole, range(20))
        for name in sorted(os.listdir(whole)):
            assert (whole / name).read_bytes() == (pattern.parent / name).read_bytes()
        assert sorted(os.listdir(pattern.parent)) == sorted(os.listdir(whole))


class TestWhatIsThere:
    def test_a_file_is_replaced_only_on_request(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "a", {"old": {"txt": "x"}})
        before = path.read_bytes()
        calls: list[Callable[[], object]] = [
            lambda: ShardPackWriter(path),
            lambda: ShardWriterSet(path),
            lambda: shardpack.pack([1], path, lambda _: ("new", {})),
            lambda: shardpack.merge(path, path),
            lambda: shardpack.recover(before, path),
            lambda: to_tar(before, path),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match="overwrite=True"):
                call()
            assert os.listdir(tmp_path) == ["a"]
        assert path.read_bytes() == before
        with ShardPackWriter(path, overwrite=True) as writer:
            assert path.read_bytes() == before
            writer.write("new", {})
        assert list(shardpack.open(path).keys()) == ["new"]
        with pytest.raises(InvalidArgument, match="exclude each other"):
            ShardPackWriter(path, append=True, overwrite=True)

    def test_a_file_that_appears_meanwhile_stays(self, tmp_path: Path) -> None:
        path = tmp_path / "a"
        writer = ShardPackWriter(path, fsync=False)
        path.write_text("mine")
        with pytest.raises(InvalidArgument, match="appeared here"):
            writer.close()
        assert path.read_text() == "mine"
        assert os.listdir(tmp_path) == ["a"]


class TestOpenFiles:
    def test_a_pipe_gets_the_same_bytes_as_a_file(self, tmp_path: Path) -> None:
        samples = {str(n): {"txt": prose(3000 + n), "bin": bytes(n)} for n in range(500)}
        path = write_pack(tmp_path / "a", samples, metadata={"b": 1})
        reading, writing = os.pipe()
        received: list[bytes] = []

        def receive() -> None:
            with os.fdopen(reading, "rb") as pipe:
                received.append(pipe.read())

        thread = threading.Thread(target=receive)
        thread.start()
        # Without a buffer, the pipe takes large pieces in several parts.
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            with ShardPackWriter(pipe, metadata={"b": 1}, created=CREATED) as writer:
                for key, entries in samples.items():
                    writer.write(key, entries)
            assert not pipe.closed
        thread.join()
        assert received == [path.read_bytes()]

    def test_keys_are_unique_and_a_set_writes_to_it_too(self) -> None:
        file = io.BytesIO()
        with ShardWriterSet(file, max_records=1, fsync=False) as writer:
            writer.write("a", {"txt": "1"})
            assert "a" in writer
            with pytest.raises(InvalidArgument, match="was written before"):
                writer.write("a", {"txt": "2"})
            writer.write("b", {"txt": "3"})
        assert writer.paths == ["<BytesIO>"]
        with shardpack.open(file.getvalue()) as dataset:
            assert [record["txt"].read() for record in dataset] == [b"1", b"3"]
        done = shardpack.pack(range(3), copy := io.BytesIO(), lambda n: (str(n), {}))
        assert (done.records, len(shardpack.open(copy.getvalue()))) == (3, 3)

    def test_what_was_flushed_can_be_recovered_after_an_error(self, tmp_path: Path) -> None:
        file = io.BytesIO()
        with pytest.raises(RuntimeError), ShardPackWriter(file) as writer:  # noqa: PT012 - the block is the test
            writer.write("a", {"txt": "1"})
            writer.flush()
            writer.write("b", {"txt": "1"})
            raise RuntimeError
        assert shardpack.recover(file.getvalue(), tmp_path / "r").records == 1

    def test_a_file_that_fails_or_is_none_is_an_error_of_ours(self) -> None:
        class Full(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, _: object) -> None:
                return None  # as a pipe that does not wait says that it is full

        writer = ShardPackWriter(cast("BinaryIO", Full()))
        with pytest.raises(ShardIOError, match="does not wait"):
            writer.close()
        for wrong in (3, None):
            with pytest.raises(InvalidArgument, match="cannot write to this"):
                ShardPackWriter(cast("Any", wrong))
        with pytest.raises(InvalidArgument, match="appended"):
            ShardPackWriter(io.BytesIO(), append=True)
