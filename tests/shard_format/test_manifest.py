"""Manifests (spec/shard.md, section 11)."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import FileReference, Manifest, Role, ShardReader
from shard_format.errors import (
    BadMetadata,
    ChecksumMismatch,
    InvalidArgument,
    MissingFile,
    ReferenceMismatch,
    ShardIOError,
    UnsafePath,
)
from tests.shard_format.support import HandMade, Row, listing, write_shard

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with two parts, one of them in a folder below."""
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    write_shard(folder / "one.shard", {"a": b"1"})
    write_shard(folder / "deep" / "two.shard", {"b": b"2"})
    return folder


def manifest_file(text: bytes, *, role: int = Role.MANIFEST, schema: bytes = b"") -> bytes:
    """A hand-made manifest file."""
    return HandMade([Row(b"meta/manifest", text)], role=role, schema=schema).to_bytes()


def of_uri(folder: Path, uri: str) -> tuple[Manifest, FileReference]:
    """A manifest in the folder that names one file."""
    reference = FileReference(uri)
    return Manifest([reference], folder=str(folder)), reference


class TestRoundTrip:
    """Reading what was written."""

    def test_references_and_free_fields_come_back(self, folder: Path) -> None:
        files = [
            FileReference.to_file(
                folder / "one.shard",
                relative_to=folder,
                start_key="a",
                end_key="m",
                split="train",
                weights=[1, 2.5],
            ),
            FileReference.to_file(folder / "deep" / "two.shard", relative_to=folder),
        ]
        fields = {"dataset": "test", "nested": {"x": [None, True]}}
        Manifest(files, fields).write(folder / "all.shard", fsync=False)
        found = Manifest.read(folder / "all.shard")
        assert found.files == files
        assert found.fields == fields
        assert found.folder == str(folder)
        assert found.files[0].extra == {"split": "train", "weights": [1, 2.5]}
        assert found.files[1].uri == "deep/two.shard"
        found.verify()

    def test_writing_what_was_read_gives_the_same_bytes(self, folder: Path) -> None:
        file = FileReference.to_file(folder / "one.shard", relative_to=folder, note="ü")
        Manifest([file], {"x": 1}).write(folder / "first.shard", fsync=False)
        Manifest.read(folder / "first.shard").write(folder / "again.shard", fsync=False)
        assert (folder / "again.shard").read_bytes() == (folder / "first.shard").read_bytes()

    def test_the_file_is_as_specified(self, folder: Path) -> None:
        one = folder / "one.shard"
        Manifest([FileReference.to_file(one, relative_to=folder)]).write(
            folder / "all.shard", fsync=False
        )
        with ShardReader(folder / "all.shard") as reader:
            assert reader.role == Role.MANIFEST
            assert reader.info("meta/manifest").content_type == 2
            row = {
                "sha256": hashlib.sha256(one.read_bytes()).hexdigest(),
                "size": one.stat().st_size,
                "uri": "one.shard",
            }
            text = json.dumps({"files": [row]}, separators=(",", ":")).encode()
            assert reader["meta/manifest"] == text
            reader.verify()

    def test_chunks_stay_chunks(self, folder: Path) -> None:
        text = b'{"chunks":[{"sha256":"%s","size":5,"uri":"x"}],"episode_id":"e"}' % (b"0" * 64)
        manifest = Manifest.read(manifest_file(text))
        assert manifest.list_key == "chunks"
        assert manifest.fields == {"episode_id": "e"}
        manifest.write(folder / "again.shard", fsync=False)
        assert ShardReader(folder / "again.shard")["meta/manifest"] == text

    def test_files_win_over_chunks_and_both_are_kept(self) -> None:
        manifest = Manifest.read(manifest_file(b'{"chunks":[1],"files":[{"uri":"x"}]}'))
        assert [reference.uri for reference in manifest.files] == ["x"]
        assert manifest.fields == {"chunks": [1]}

    def test_the_schema_section_is_read_where_the_entry_is_absent(self) -> None:
        schema = b'{"manifest":{"files":[{"uri":"x"}]}}'
        data = HandMade([Row(b"other")], role=4, schema=schema).to_bytes()
        assert [reference.uri for reference in Manifest.read(data).files] == ["x"]
        both = manifest_file(b'{"files":[{"uri":"entry"}]}', schema=schema)
        assert [reference.uri for reference in Manifest.read(both).files] == ["entry"]

    def test_a_reference_without_hash_or_size_is_not_written(self, folder: Path) -> None:
        for reference in (
            FileReference("x"),
            FileReference("x", sha256="0" * 64),
            FileReference("x", size=1),
        ):
            with pytest.raises(InvalidArgument, match="S-MAN-6"):
                Manifest([reference]).write(folder / "all.shard")
        assert listing(folder) == ["deep", "one.shard"]

    def test_a_file_to_refer_to_must_be_there(self, folder: Path) -> None:
        with pytest.raises(ShardIOError, match=r"none\.shard"):
            FileReference.to_file(folder / "none.shard", relative_to=folder)


class TestMalformed:
    """S-MAN-1 and S-MAN-2."""

    @pytest.mark.parametrize(
        ("text", "rule"),
        [
            (b"", "S-MAN-1"),
            (b"[]", "S-MAN-1"),
            (b"{}", "S-MAN-1"),
            (b'{"files":{}}', "S-MAN-1"),
            (b'{"files":null}', "S-MAN-1"),
            (b'{"files":[5]}', "S-MAN-1"),
            (b'{"files":[{}]}', "S-MAN-2"),
            (b'{"files":[{"uri":""}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"a\\u0000b"}]}', "S-MAN-2"),
            (b'{"files":[{"uri":5}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","sha256":"00"}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","sha256":"%s"}]}' % (b"A" * 64), "S-MAN-2"),
            (b'{"files":[{"uri":"x","sha256":5}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","size":-1}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","size":1.5}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","size":true}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","size":"5"}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","start_key":5}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x","end_key":[]}]}', "S-MAN-2"),
            (b'{"files":[{"uri":"x"},{"uri":"y"},{"uri":"x"}]}', "S-MAN-2"),
        ],
        ids=lambda value: repr(value[:50]),
    )
    def test_a_malformed_manifest_is_refused_by_its_rule(self, text: bytes, rule: str) -> None:
        with pytest.raises(BadMetadata) as caught:
            Manifest.read(manifest_file(text))
        assert caught.value.rule == rule
        assert caught.value.path == "<bytes>"

    def test_the_number_of_the_bad_row_is_named(self) -> None:
        with pytest.raises(BadMetadata, match="row 1 "):
            Manifest.read(manifest_file(b'{"files":[{"uri":"x"},{"uri":""}]}'))

    def test_a_file_of_another_role_is_no_manifest(self) -> None:
        with pytest.raises(BadMetadata, match="role 0"):
            Manifest.read(manifest_file(b'{"files":[]}', role=0))

    def test_a_file_without_a_manifest_is_refused(self) -> None:
        with pytest.raises(BadMetadata, match="holds no manifest"):
            Manifest.read(HandMade([], role=4).to_bytes())

    def test_a_damaged_manifest_is_refused(self) -> None:
        row = Row(b"meta/manifest", b'{"files":[]}', crc=1)
        with pytest.raises(ChecksumMismatch):
            Manifest.read(HandMade([row], role=4).to_bytes())


class TestResolving:
    """S-MAN-4: nothing leads out of the folder."""

    @pytest.mark.parametrize(
        "uri",
        [
            "../outside.shard",
            "deep/../../outside.shard",
            "..",
            ".",
            "deep/..",
            "/etc/passwd",
            "//etc/passwd",
            "file:///etc/passwd",
            "http://example.com/a.shard",
            "s3://bucket/a.shard",
            "C:\\a.shard",
            "C:a.shard",
            "..\\outside.shard",
            "deep\\two.shard",
            "a/" * 256 + "a",
            "one/../" * 600 + "one.shard",
        ],
    )
    def test_a_way_out_is_refused(self, folder: Path, uri: str) -> None:
        manifest, reference = of_uri(folder, uri)
        with pytest.raises(UnsafePath, match="S-MAN-4"):
            manifest.resolve(reference)
        with pytest.raises(UnsafePath):
            manifest.verify()

    def test_links_that_lead_out_are_refused(self, folder: Path, tmp_path: Path) -> None:
        outside = write_shard(tmp_path / "outside.shard", {"a": b""})
        (folder / "link.shard").symlink_to(outside)
        (folder / "up").symlink_to(tmp_path)
        for uri in ("link.shard", "up/outside.shard", "up/data/../outside.shard"):
            manifest, reference = of_uri(folder, uri)
            with pytest.raises(UnsafePath):
                manifest.resolve(reference)

    def test_links_that_stay_inside_are_followed(self, folder: Path) -> None:
        (folder / "link.shard").symlink_to("deep/two.shard")
        manifest, reference = of_uri(folder, "link.shard")
        assert manifest.resolve(reference) == str((folder / "deep" / "two.shard").resolve())

    @pytest.mark.parametrize(
        "uri", ["one.shard", "deep/two.shard", "./one.shard", "deep/../one.shard", "..one.shard"]
    )
    def test_ways_inside_are_resolved(self, folder: Path, uri: str) -> None:
        manifest, reference = of_uri(folder, uri)
        assert manifest.resolve(reference) == str((folder / uri).resolve())

    def test_a_folder_that_is_itself_a_link_works(self, folder: Path, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(folder)
        manifest, reference = of_uri(link, "one.shard")
        assert os.path.samefile(manifest.resolve(reference), folder / "one.shard")

    def test_a_sibling_with_the_same_start_is_outside(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "data-other").mkdir()
        manifest, reference = of_uri(folder, "../data-other/x.shard")
        with pytest.raises(UnsafePath):
            manifest.resolve(reference)

    def test_the_caller_may_allow_the_way_out(self, folder: Path, tmp_path: Path) -> None:
        outside = write_shard(tmp_path / "outside.shard", {"a": b""})
        for uri in ("../outside.shard", str(outside)):
            manifest, reference = of_uri(folder, uri)
            assert manifest.resolve(reference, allow_outside=True) == str(outside)
            manifest.verify(allow_outside=True)
        manifest, reference = of_uri(folder, "http://example.com/a.shard")
        with pytest.raises(UnsafePath):
            manifest.resolve(reference, allow_outside=True)

    def test_a_manifest_without_a_folder_resolves_nothing(self) -> None:
        manifest = Manifest.read(manifest_file(b'{"files":[{"uri":"x"}]}'))
        assert manifest.folder is None
        with pytest.raises(InvalidArgument, match="not read from a file or a URL"):
            manifest.resolve(manifest.files[0])


class TestVerifying:
    """S-MAN-5."""

    @pytest.fixture
    def manifest(self, folder: Path) -> Manifest:
        files = [
            FileReference.to_file(folder / name, relative_to=folder)
            for name in ("one.shard", "deep/two.shard")
        ]
        Manifest(files).write(folder / "all.shard", fsync=False)
        return Manifest.read(folder / "all.shard")

    def test_unchanged_files_verify(self, manifest: Manifest) -> None:
        manifest.verify()
        assert list(manifest.iter_problems()) == []

    def test_a_missing_file_is_named(self, manifest: Manifest, folder: Path) -> None:
        (folder / "one.shard").unlink()
        with pytest.raises(MissingFile, match=r"one\.shard.*S-MAN-5"):
            manifest.verify()

    def test_a_pipe_is_not_waited_for(self, folder: Path) -> None:
        os.mkfifo(folder / "pipe")
        manifest = Manifest([FileReference("pipe", sha256="0" * 64)], folder=str(folder))
        with pytest.raises(ReferenceMismatch, match="not a regular file"):
            manifest.verify()

    def test_a_file_of_another_size_is_not_read_to_know(
        self, manifest: Manifest, folder: Path
    ) -> None:
        with (folder / "deep" / "two.shard").open("ab") as file:
            file.write(b"x")
        with pytest.raises(ReferenceMismatch, match="the size") as caught:
            manifest.verify()
        size = manifest.files[1].size
        assert size is not None
        assert (caught.value.expected, caught.value.found) == (size, size + 1)

    def test_a_file_with_another_content_is_named(self, manifest: Manifest, folder: Path) -> None:
        path = folder / "one.shard"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(ReferenceMismatch, match="SHA-256") as caught:
            manifest.verify()
        assert caught.value.expected == manifest.files[0].sha256
        assert caught.value.found == hashlib.sha256(data).hexdigest()

    def test_every_problem_is_listed(self, manifest: Manifest, folder: Path) -> None:
        (folder / "one.shard").unlink()
        (folder / "deep" / "two.shard").write_bytes(b"")
        codes = [problem.code for problem in manifest.iter_problems()]
        assert codes == ["missing_file", "reference_mismatch"]

    def test_a_folder_in_place_of_a_file_is_a_problem(
        self, manifest: Manifest, folder: Path
    ) -> None:
        (folder / "one.shard").unlink()
        (folder / "one.shard").mkdir()
        assert len(list(manifest.iter_problems())) == 1

    def test_references_without_facts_only_need_to_be_there(self, folder: Path) -> None:
        manifest, _ = of_uri(folder, "one.shard")
        manifest.verify()

    def test_progress_rises_to_the_total(self, manifest: Manifest) -> None:
        seen: list[tuple[int, int]] = []
        manifest.verify(progress=lambda done, total: seen.append((done, total)))
        sizes: list[Any] = [reference.size for reference in manifest.files]
        assert seen == [(sizes[0], sum(sizes)), (sum(sizes), sum(sizes))]
