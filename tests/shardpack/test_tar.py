"""Tar files: the names and bytes that WebDataset has, in both directions, and nothing unsafe."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import struct
import subprocess
import tarfile
import threading
import zlib
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pytest
import webdataset
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import shardpack
from shard_format.errors import (
    BadCompression,
    BadHeader,
    BadValue,
    ChecksumMismatch,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    Truncated,
    UnsafePath,
)
from shardpack.convert import from_tar, to_tar
from shardpack.convert._tar import split_name
from tests.shardpack.support import CREATED, check_python, noise, write_pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS: dict[str, Any] = {"fsync": False, "created": CREATED, "overwrite": True}
SAMPLES = {
    "cat/0001": {"left.jpg": noise(700), "right.jpg": noise(3), "json": b'{"label":1}'},
    "cat/0002": {"left.jpg": b"", "seg.png": noise(512), "txt": "Größe".encode()},
    "x" * 90 + "/" + "y" * 90: {"bin": noise(10_240)},
    "größe/日本": {"txt": b"unicode"},
    "plain": {"cls": b"7"},
}


def tar_of(members: list[tuple[str, bytes]], **options: Any) -> bytes:  # noqa: ANN401 - those of tarfile
    """What Python's own module writes."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def members_of(samples: dict[str, dict[str, bytes]]) -> list[tuple[str, bytes]]:
    return [
        (f"{k}.{name}", data) for k, entries in samples.items() for name, data in entries.items()
    ]


def contents(shards: list[str]) -> dict[str, dict[str, bytes]]:
    return {record.key: record.read_all() for record in shardpack.open(shards)}


def convert(tar: bytes, tmp_path: Path, **options: Any) -> dict[str, dict[str, bytes]]:  # noqa: ANN401 - those of from_tar
    done = from_tar(io.BytesIO(tar), tmp_path / "out.shardpack", **OPTIONS, **options)
    return contents(done.paths)


def summed(header: bytes) -> bytes:
    """A header with the checksum that it needs."""
    total = sum(header[:148]) + sum(header[156:]) + 8 * 32
    return header[:148] + b"%06o\0 " % total + header[156:]


def with_size(size: bytes) -> bytes:
    """A tar file that states the size of its member so."""
    tar = tar_of([("a.txt", b"content")])
    return summed(tar[:124] + size + tar[136:512]) + tar[512:]


class TestReading:
    """`from_tar`."""

    @pytest.mark.parametrize(
        "form",
        [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT],
        ids=["pax", "gnu", "ustar"],
    )
    def test_every_dialect_of_tar_gives_the_same_samples(self, tmp_path: Path, form: int) -> None:
        assert convert(tar_of(members_of(SAMPLES), format=form), tmp_path) == SAMPLES

    @pytest.mark.parametrize("kind", ["plain", "gz", "zst", "bz2", "xz"])
    def test_compressed_files_are_known_by_their_first_bytes(
        self, tmp_path: Path, kind: str
    ) -> None:
        packers: dict[str, Callable[[bytes], bytes]] = {
            "plain": bytes,
            "gz": gzip.compress,
            "zst": lambda data: zstandard.compress(data[:600]) + zstandard.compress(data[600:]),
            "bz2": bz2.compress,
            "xz": lzma.compress,
        }
        path = tmp_path / "in"
        path.write_bytes(packers[kind](tar_of(members_of(SAMPLES))))
        done = from_tar(path, tmp_path / "out.shardpack", **OPTIONS)
        assert contents(done.paths) == SAMPLES
        assert done.records == len(SAMPLES)

    def test_it_reads_from_a_pipe_that_gives_a_byte_at_a_time(self, tmp_path: Path) -> None:
        data = gzip.compress(tar_of(members_of(SAMPLES)))
        read_end, write_end = os.pipe()

        def feed() -> None:
            with os.fdopen(write_end, "wb", buffering=0) as pipe:
                for byte in data:
                    pipe.write(bytes((byte,)))

        feeder = threading.Thread(target=feed)
        feeder.start()
        with os.fdopen(read_end, "rb", buffering=0) as pipe:
            done = from_tar(pipe, tmp_path / "out.shardpack", **OPTIONS)
        feeder.join()
        assert contents(done.paths) == SAMPLES

    def test_gnu_tar_writes_what_we_read(self, tmp_path: Path) -> None:
        for name, data in members_of(SAMPLES):
            path = tmp_path / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        subprocess.run(
            ["tar", "--sort=name", "-cf", tmp_path / "x.tar", "-C", tmp_path / "files", "."],
            check=True,
        )
        done = from_tar(tmp_path / "x.tar", tmp_path / "out.shardpack", **OPTIONS)
        assert contents(done.paths) == SAMPLES

    def test_many_files_become_one_set(self, tmp_path: Path) -> None:
        for number in range(3):
            (tmp_path / f"in-{number}.tar").write_bytes(tar_of([(f"{number}.txt", b"x")]))
        done = from_tar(str(tmp_path / "in-{0..2}.tar"), tmp_path / "o-%d.shardpack", **OPTIONS)
        assert list(contents(done.paths)) == ["0", "1", "2"]

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("a.jpg", ("a", "jpg")),
            ("a.left.seg.png", ("a", "left.seg.png")),
            ("d.x/e/a.b.c", ("d.x/e/a", "b.c")),
            ("README", None),
            (".hidden", None),
            ("d/.hidden.txt", None),
            ("a.", None),
            ("d.x/README", None),
            ("__meta__/a.json", None),
        ],
    )
    def test_a_path_is_cut_at_the_first_dot_of_its_last_part(
        self, path: str, expected: tuple[str, str] | None
    ) -> None:
        assert split_name(path) == expected

    def test_an_orphan_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        tar = tar_of([("a.txt", b"1"), ("docs/README", b"2")])
        with pytest.raises(InvalidArgument, match=r"'docs/README'.*orphans"):
            convert(tar, tmp_path)
        assert not (tmp_path / "out.shardpack").exists()

    def test_orphans_can_be_left_out_and_are_listed(self, tmp_path: Path) -> None:
        tar = tar_of([("LICENSE", b"0"), ("a.txt", b"1"), ("README", b"2"), ("a.cls", b"3")])
        done = from_tar(io.BytesIO(tar), tmp_path / "o.shardpack", orphans="skip", **OPTIONS)
        assert done.left_out == ["LICENSE", "README"]
        assert contents(done.paths) == {"a": {"txt": b"1", "cls": b"3"}}

    def test_a_member_that_comes_twice_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DuplicateName, match=r"'a\.txt'"):
            convert(tar_of([("a.txt", b"1"), ("a.txt", b"2")]), tmp_path)

    def test_a_sample_in_two_places_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DuplicateName, match=r"'a' occurs twice"):
            convert(tar_of([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")]), tmp_path)

    def test_an_entry_can_become_the_metadata(self, tmp_path: Path) -> None:
        tar = tar_of([("a.json", b'{"label": 3}'), ("a.txt", b"x"), ("b.txt", b"y")])
        done = from_tar(io.BytesIO(tar), tmp_path / "o.shardpack", metadata_entry="json", **OPTIONS)
        dataset = shardpack.open(done.paths)
        assert [record.metadata for record in dataset] == [{"label": 3}, {}]
        assert dataset["a"].names == ("txt",)

    @pytest.mark.parametrize("text", [b"no json", b"[1]", b"\xff"])
    def test_metadata_that_is_no_object_is_named(self, tmp_path: Path, text: bytes) -> None:
        with pytest.raises(BadValue, match="'a'"):
            convert(tar_of([("a.json", text)]), tmp_path, metadata_entry="json")

    def test_metadata_of_too_many_values_is_named(self, tmp_path: Path) -> None:
        text = b'{"x":[' + b"[]," * 500_000 + b"0]}"
        with pytest.raises(LimitExceeded, match="'a'"):
            convert(tar_of([("a.json", text)]), tmp_path, metadata_entry="json")

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match=r"gone\.tar"):
            from_tar(tmp_path / "gone.tar", tmp_path / "o.shardpack")

    def test_an_empty_tar_file_is_a_shard_without_records(self, tmp_path: Path) -> None:
        assert convert(tar_of([]), tmp_path) == {}


class TestHostile:
    """Members that must not be trusted, and files that are damaged."""

    @pytest.mark.parametrize(
        "name", ["/etc/passwd.txt", "../a.txt", "a/../../b.txt", "C:/a.txt", "a\\b.txt"]
    )
    def test_unsafe_paths_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UnsafePath) as caught:
            convert(tar_of([(name, b"x")]), tmp_path)
        assert caught.value.entry == name

    @pytest.mark.parametrize(
        "kind",
        [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE],
    )
    def test_what_is_no_file_is_refused(self, tmp_path: Path, kind: bytes) -> None:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            info = tarfile.TarInfo("a.txt")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        with pytest.raises(UnsafePath, match=r"'a\.txt'"):
            convert(file.getvalue(), tmp_path)

    def test_a_sparse_file_of_gnu_tar_is_refused(self, tmp_path: Path) -> None:
        with (tmp_path / "a.bin").open("wb") as file:
            file.truncate(1 << 20)
        for dialect in ("gnu", "pax"):
            subprocess.run(
                ["tar", "-S", "-H", dialect, "-cf", tmp_path / "x.tar", "-C", tmp_path, "a.bin"],
                check=True,
            )
            with pytest.raises(UnsafePath, match="sparse"):
                from_tar(tmp_path / "x.tar", tmp_path / "out.shardpack", **OPTIONS)

    def test_every_cut_is_found_also_between_members(self, tmp_path: Path) -> None:
        tar = tar_of([("a.txt", noise(600)), ("b.txt", b"2")])
        for length in (*range(0, 3072, 16), 3071):
            with pytest.raises(Truncated):
                convert(tar[:length], tmp_path)
        assert convert(tar[:3072], tmp_path) == {"a": {"txt": noise(600)}, "b": {"txt": b"2"}}

    def test_every_flipped_byte_of_a_header_is_found(self, tmp_path: Path) -> None:
        tar = tar_of([("a.txt", b"content")])
        harmless = []
        for at in range(500):
            data = bytearray(tar)
            data[at] ^= 0x41
            try:
                assert convert(bytes(data), tmp_path) == {"a": {"txt": b"content"}}
                harmless.append(at)
            except ShardError:
                pass
        assert harmless == [155]  # what follows the end of the checksum

    @given(data=st.binary(max_size=1200))
    def test_any_bytes_give_an_error_of_ours_or_nothing(self, tmp_path: Path, data: bytes) -> None:
        try:
            assert convert(data, tmp_path) == {}
        except ShardError:
            assert data.strip(b"\0") or len(data) < 512

    def test_a_claimed_size_is_checked_before_it_is_read(self, tmp_path: Path) -> None:
        info = tarfile.TarInfo("a.txt")
        info.size = 1 << 62
        header = info.tobuf(tarfile.GNU_FORMAT)
        with pytest.raises(LimitExceeded, match=r"'a\.txt'.*4611686018427387904"):
            convert(header + bytes(512), tmp_path)

    @pytest.mark.parametrize(
        "size",
        [
            b"+0000000007\0",
            b"-0000000007\0",
            b"0_0_0_0_0_7\0",
            b"0o000000007\0",
            b"00000000008\0",
            b"7 7\0        ",
            b"\xff" * 11 + b"\xf9",
            b"\x81" + b"\0" * 10 + b"\7",
        ],
    )
    def test_a_size_that_is_not_octal_is_refused(self, tmp_path: Path, size: bytes) -> None:
        with pytest.raises(BadHeader, match=r"not a tar file|bad size") as caught:
            convert(with_size(size[:12]), tmp_path)
        assert caught.value.offset == 0

    @pytest.mark.parametrize(
        "size", [b"          7 ", b"7\0garbage   ", b"\x80" + bytes(10) + b"\7"]
    )
    def test_other_forms_of_a_size_are_read(self, tmp_path: Path, size: bytes) -> None:
        assert convert(with_size(size[:12]), tmp_path) == {"a": {"txt": b"content"}}

    def test_a_sample_of_more_than_a_gigabyte_must_be_allowed(self, tmp_path: Path) -> None:
        with pytest.raises(LimitExceeded, match="1073741824"):
            convert(with_size(b"%011o\0" % ((1 << 30) + 1)), tmp_path)

    @pytest.mark.slow
    def test_any_change_of_a_header_is_an_error_of_ours_or_samples(self, tmp_path: Path) -> None:
        tar = tar_of([("a" * 120 + ".txt", b"content"), ("b.txt", b"x")])
        random = Random(0)
        for _ in range(1000):
            data = bytearray(tar)
            start = 512 * random.randrange(5)
            for _ in range(random.randrange(1, 4)):
                piece = random.choice((b"\xff", b"\x80", b"-", b"+", b"_", b"7", b"\0", b"x", b"/"))
                at = start + random.choice((random.randrange(500), random.randrange(124, 136)))
                data[at : at + 1] = piece
            data[start : start + 512] = summed(bytes(data[start : start + 512]))
            with suppress(ShardError):
                convert(bytes(data), tmp_path)

    def test_a_file_that_cannot_be_read_is_an_error_of_ours(self, tmp_path: Path) -> None:
        class Broken(io.RawIOBase):
            name = "broken"

            def read(self, size: int = -1) -> bytes:
                raise OSError(5, "Input/output error")

        with pytest.raises(ShardIOError, match="broken"):
            from_tar(cast("BinaryIO", Broken()), tmp_path / "out.shardpack", **OPTIONS)

    def test_memory_that_xz_asks_for_and_does_not_get_is_an_error_of_ours(
        self, tmp_path: Path
    ) -> None:
        data = bytearray(lzma.compress(tar_of([("a.txt", b"content")])))
        end = 12 + 4 * data[12]  # of the header of the first block, without its checksum
        data[data.index(b"\x21\x01") + 2] = 40  # the code of a history of 4 GiB
        data[end : end + 4] = struct.pack("<I", zlib.crc32(data[12:end]))
        (tmp_path / "x.tar.xz").write_bytes(data)
        printed = check_python(
            """
            import resource, sys
            from shard_format.errors import LimitExceeded
            from shardpack.convert import from_tar
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
            try:
                from_tar(sys.argv[1], sys.argv[2])
            except LimitExceeded as error:
                print(error)
            """,
            tmp_path / "x.tar.xz",
            tmp_path / "out.shardpack",
        )
        assert "needs more memory" in printed

    def test_a_sample_may_not_grow_above_the_limit(self, tmp_path: Path) -> None:
        tar = tar_of([(f"a.{n}", bytes(600)) for n in range(4)])
        with pytest.raises(LimitExceeded, match="'a'"):
            convert(tar, tmp_path, max_record_bytes=2000)

    def test_an_extended_header_cannot_ask_for_memory(self, tmp_path: Path) -> None:
        info = tarfile.TarInfo("x")
        info.type, info.size = b"x", 2 << 20
        with pytest.raises(LimitExceeded, match="1048576"):
            convert(info.tobuf() + bytes(2 << 20), tmp_path)

    @pytest.mark.parametrize(
        "text", [b"99 path=a.txt\n", b"path=a.txt\n", b"11 path=a.t", b"14 size=12x34\n"]
    )
    def test_damaged_extended_headers_are_refused(self, tmp_path: Path, text: bytes) -> None:
        info = tarfile.TarInfo("x")
        info.type, info.size = b"x", len(text)
        data = info.tobuf() + text.ljust(512, b"\0") + tar_of([("a.txt", b"1")])
        with pytest.raises(BadHeader):
            convert(data, tmp_path)

    def test_tar_files_that_were_put_together_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadHeader, match="as a list"):
            convert(tar_of([("a.txt", b"1")]) + tar_of([("b.txt", b"2")]), tmp_path)

    def test_zeros_without_an_end_are_given_up(self, tmp_path: Path) -> None:
        with pytest.raises(BadHeader), open("/dev/zero", "rb") as file:
            from_tar(file, tmp_path / "out.shardpack", **OPTIONS)

    @pytest.mark.parametrize(
        "pack",
        [gzip.compress, zstandard.ZstdCompressor(write_checksum=True).compress],
        ids=["gzip", "zstd"],
    )
    def test_damaged_compression_is_an_error_of_ours(
        self, tmp_path: Path, pack: Callable[[bytes], bytes]
    ) -> None:
        data = bytearray(pack(tar_of([("a.bin", noise(5000))])))
        cut = bytes(data[:-600])
        data[len(data) // 2] ^= 0xFF
        with pytest.raises((BadCompression, ChecksumMismatch, Truncated)):
            convert(bytes(data), tmp_path)
        with pytest.raises((Truncated, BadCompression)):
            convert(cut, tmp_path)

    def test_a_text_file_is_no_tar_file(self, tmp_path: Path) -> None:
        with pytest.raises(ShardError, match="not a tar file"):
            convert(b"hello world " * 100, tmp_path)


NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="./\\:"),
    min_size=1,
    max_size=12,
)


class TestWriting:
    """`to_tar`."""

    @given(
        samples=st.dictionaries(
            st.lists(NAMES, min_size=1, max_size=3).map("/".join),
            st.dictionaries(
                st.lists(NAMES, min_size=1, max_size=3).map(".".join),
                st.binary(max_size=600),
                min_size=1,
                max_size=3,
            ),
            max_size=4,
        )
    )
    def test_there_and_back_is_the_same(
        self, tmp_path: Path, samples: dict[str, dict[str, bytes]]
    ) -> None:
        path = write_pack(tmp_path / "in.shardpack", samples)
        try:
            to_tar(path, tmp_path / "x.tar", fsync=False, overwrite=True)
        except (UnsafePath, InvalidArgument):
            return  # a reserved name
        done = from_tar(tmp_path / "x.tar", tmp_path / "out.shardpack", **OPTIONS)
        assert contents(done.paths) == samples

    @pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.zst"])
    def test_the_same_records_give_the_same_bytes(self, tmp_path: Path, ending: str) -> None:
        path = write_pack(tmp_path / "in.shardpack", SAMPLES, compression="zstd")
        for name in "xy":
            to_tar(path, tmp_path / f"{name}.{ending}", fsync=False)
        assert (tmp_path / f"x.{ending}").read_bytes() == (tmp_path / f"y.{ending}").read_bytes()
        done = from_tar(tmp_path / f"x.{ending}", tmp_path / "out.shardpack", **OPTIONS)
        assert contents(done.paths) == SAMPLES

    def test_pythons_and_gnus_tar_read_it(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in.shardpack", SAMPLES)
        to_tar(path, tmp_path / "x.tar", fsync=False)
        with tarfile.open(tmp_path / "x.tar") as tar:
            infos = tar.getmembers()
            found = [(info.name, tar.extractfile(info).read()) for info in infos]  # type: ignore[union-attr] # all are files
        assert found == members_of(SAMPLES)
        assert {(info.mtime, info.uid, info.gid, info.mode) for info in infos} == {(0, 0, 0, 0o644)}
        listed = subprocess.run(
            ["tar", "-tf", tmp_path / "x.tar"], capture_output=True, check=True
        ).stdout
        assert len(listed.splitlines()) == len(found)

    def test_it_writes_to_a_pipe(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in.shardpack", SAMPLES)
        with subprocess.Popen(
            ["tar", "-t"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            done = to_tar(path, cast("BinaryIO", process.stdin))
            process.stdin.close()
            assert len(process.stdout.read().splitlines()) == len(members_of(SAMPLES))
        assert done.records == len(SAMPLES)

    def test_a_set_has_files_of_the_target_size(self, tmp_path: Path) -> None:
        samples = {f"{n:03d}": {"bin": noise(1000, n)} for n in range(30)}
        path = write_pack(tmp_path / "in.shardpack", samples)
        done = to_tar(path, tmp_path / "x-%02d.tar", max_bytes=10_000, fsync=False)
        assert len(done.paths) == 6
        assert max(map(os.path.getsize, done.paths)) <= 10_000
        back = from_tar(done.paths, tmp_path / "out.shardpack", **OPTIONS)
        assert contents(back.paths) == samples
        few = to_tar(path, tmp_path / "y-%02d.tar", max_records=20, fsync=False)
        assert len(few.paths) == 2

    def test_metadata_goes_along_and_comes_back(self, tmp_path: Path) -> None:
        with shardpack.ShardPackWriter(tmp_path / "in.shardpack", fsync=False) as writer:
            writer.write("a", {"txt": "x"}, {"label": 3, "name": "Größe"})
            writer.write("b", {"txt": "y"})
        to_tar(tmp_path / "in.shardpack", tmp_path / "x.tar", fsync=False)
        done = from_tar(
            tmp_path / "x.tar", tmp_path / "o.shardpack", metadata_entry="metadata.json", **OPTIONS
        )
        assert [(r.key, r.metadata, r.names) for r in shardpack.open(done.paths)] == [
            ("a", {"label": 3, "name": "Größe"}, ("txt",)),
            ("b", {}, ("txt",)),
        ]
        with pytest.raises(InvalidArgument, match=r"'a'.*cannot be stored"):
            to_tar(tmp_path / "in.shardpack", tmp_path / "y.tar", metadata_entry=None)
        with pytest.raises(InvalidArgument, match=r"'a'.*cannot be stored"):
            to_tar(tmp_path / "in.shardpack", tmp_path / "y.tar", metadata_entry="txt")

    @pytest.mark.parametrize(("key", "name"), [("v1.2", "txt"), ("a", "lanes/x.txt"), ("a", "b/c")])
    def test_names_that_would_come_back_otherwise_are_refused(
        self, tmp_path: Path, key: str, name: str
    ) -> None:
        path = write_pack(tmp_path / "in.shardpack", {key: {name: b"x"}})
        with pytest.raises(InvalidArgument, match="another key"):
            to_tar(path, tmp_path / "x.tar")
        assert not (tmp_path / "x.tar").exists()
        to_tar(path, tmp_path / "x.tar", exact=False, fsync=False)
        with tarfile.open(tmp_path / "x.tar") as tar:
            assert tar.getnames() == [f"{key}.{name}"]

    def test_a_file_that_cannot_be_put_in_its_place_is_an_error_of_ours(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        path = write_pack(tmp_path / "in.shardpack", SAMPLES)
        for name in ("fsync", "replace"):
            with monkeypatch.context() as patch:
                patch.setattr(os, name, fail)
                with pytest.raises(ShardIOError) as caught:
                    to_tar(path, tmp_path / "x.tar")
            assert caught.value.path == str(tmp_path / "x.tar")
            assert caught.value.errno == errno.ENOSPC
            assert os.listdir(tmp_path) == ["in.shardpack"]

        class Full(io.BytesIO):
            def flush(self) -> None:
                fail()

        with pytest.raises(ShardIOError, match="<Full>"):
            to_tar(path, Full())

    @pytest.mark.parametrize("key", ["../a", "/a", "a//b"])
    def test_unsafe_keys_are_refused(self, tmp_path: Path, key: str) -> None:
        path = write_pack(tmp_path / "in.shardpack", {key: {"txt": b"x"}})
        with pytest.raises(UnsafePath):
            to_tar(path, tmp_path / "x.tar", exact=False)


# It leaves the file that it reads to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestWebDataset:
    """The real package on the other side."""

    def test_it_reads_what_we_write(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in.shardpack", SAMPLES)
        to_tar(path, tmp_path / "x.tar", fsync=False)
        found = {
            sample["__key__"]: {k: v for k, v in sample.items() if not k.startswith("__")}
            for sample in webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False)
        }
        assert found == SAMPLES

    @pytest.mark.parametrize("ending", ["tar", "tar.gz"])
    def test_we_read_what_it_writes(self, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"x.{ending}"
        with webdataset.TarWriter(str(path)) as sink:
            for number in range(20):
                sink.write(
                    {
                        "__key__": f"train/{number:05d}",
                        "left.seg.txt": f"text {number}",
                        "cls": number,
                        "json": {"n": number},
                        "bin": noise(number * 50, number),
                    }
                )
        done = from_tar(path, tmp_path / "out.shardpack", **OPTIONS)
        dataset = shardpack.open(done.paths)
        assert len(dataset) == 20
        record = dataset["train/00007"]
        assert sorted(record.names) == ["bin", "cls", "json", "left.seg.txt"]
        assert record["cls"].decode() == "7"
        assert record["json"].decode() == {"n": 7}
        assert record["bin"].read() == noise(350, 7)
        assert record["left.seg.txt"].decode() == "text 7"

    def test_a_whole_circle_changes_no_sample(self, tmp_path: Path) -> None:
        path = write_pack(tmp_path / "in.shardpack", SAMPLES)
        to_tar(path, tmp_path / "x.tar", fsync=False)
        with webdataset.TarWriter(str(tmp_path / "y.tar"), encoder=False) as sink:
            for sample in webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False):
                sink.write(
                    {k: v for k, v in sample.items() if k == "__key__" or not k.startswith("__")}
                )
        done = from_tar(tmp_path / "y.tar", tmp_path / "out.shardpack", **OPTIONS)
        assert contents(done.paths) == SAMPLES
