"""Folders of images, with classes or with metadata."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

import shardpack
from shard_format.errors import (
    BadValue,
    DuplicateName,
    InvalidArgument,
    MissingFile,
    ShardIOError,
    UnsafePath,
)
from shard_format.images import decode_image
from shardpack.convert import from_image_folder
from tests.shardpack.support import CREATED

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {"fsync": False, "created": CREATED}


def image(number: int, form: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), number, np.uint8)).save(file, form)
    return file.getvalue()


def put(root: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(number, "PNG" if name.endswith("png") else "JPEG"))
    return root


def convert(root: Path, **options: Any) -> shardpack.Dataset:  # noqa: ANN401 - those of from_image_folder
    done = from_image_folder(root, root.parent / "out.shardpack", **OPTIONS, **options)
    dataset = shardpack.open(done.paths)
    assert len(dataset) == done.records
    return dataset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "train"


class TestClasses:
    """A folder for each class."""

    def test_the_folder_is_the_label_and_files_are_kept(self, root: Path) -> None:
        put(root, "cat/1.jpg", "cat/2.png", "dog/deep/1.jpeg")
        dataset = convert(root)
        assert list(dataset.keys()) == ["cat/1", "cat/2", "dog/deep/1"]
        assert [record.metadata["label"] for record in dataset] == ["cat", "cat", "deep"]
        assert [record.names for record in dataset] == [("jpg",), ("png",), ("jpeg",)]
        assert dataset["cat/2"]["png"].read() == (root / "cat" / "2.png").read_bytes()
        assert dataset["cat/2"]["png"].decode().shape == (4, 5, 3)
        assert dataset.metadata["user"] == {"labels": ["cat", "deep"]}

    def test_images_without_a_folder_have_no_label(self, root: Path) -> None:
        dataset = convert(put(root, "1.jpg"))
        assert dataset["1"].metadata == {}
        assert dataset.metadata["user"] == {}

    def test_other_files_are_named_or_listed(self, root: Path) -> None:
        put(root, "cat/1.jpg")
        (root / "notes.txt").write_text("x")
        (root / "link.jpg").symlink_to(root / "cat" / "1.jpg")
        with pytest.raises(InvalidArgument, match=r"'link\.jpg'.*2 files"):
            convert(root)
        done = from_image_folder(root, root.parent / "o.shardpack", others="skip", **OPTIONS)
        assert done.left_out == ["link.jpg", "notes.txt"]

    def test_two_images_of_one_name_are_refused(self, root: Path) -> None:
        put(root, "cat/1.jpg", "cat/1.png")
        with pytest.raises(DuplicateName, match=r"cat/1\.png.*'cat/1'"):
            convert(root)

    def test_a_folder_without_images_is_an_error(self, root: Path) -> None:
        root.mkdir()
        with pytest.raises(InvalidArgument, match="no images"):
            convert(root)
        with pytest.raises(ShardIOError, match="gone"):
            convert(root / "gone")

    def test_tar_files_can_be_made_of_it(self, root: Path) -> None:
        """Keys and names are those that WebDataset would have."""
        convert(put(root, "cat/1.jpg"))
        from shardpack.convert import from_tar, to_tar

        to_tar(root.parent / "out.shardpack", root.parent / "x.tar", fsync=False)
        done = from_tar(
            root.parent / "x.tar",
            root.parent / "back.shardpack",
            metadata_entry="metadata.json",
            **OPTIONS,
        )
        record = shardpack.open(done.paths)["cat/1"]
        assert (record.names, record.metadata) == (("jpg",), {"label": "cat"})


class TestMetadata:
    """A file with a row for each record."""

    def test_json_lines_give_fields_and_order(self, root: Path) -> None:
        put(root, "b.jpg", "sub/a.png")
        lines = [
            {"file_name": "sub/a.png", "text": "Größe", "boxes": [[1, 2]]},
            {"text": "second", "file_name": "./b.jpg"},
        ]
        (root / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
        dataset = convert(root)
        assert list(dataset.keys()) == ["sub/a", "b"]
        assert dataset["sub/a"].metadata == {"text": "Größe", "boxes": [[1, 2]]}
        assert dataset["b"].metadata == {"text": "second"}
        assert dataset["b"]["jpg"].read() == (root / "b.jpg").read_bytes()

    def test_csv_gives_fields_as_text(self, root: Path) -> None:
        put(root, "a.jpg", "b.jpg")
        (root / "metadata.csv").write_bytes(
            b'\xef\xbb\xbffile_name,text,n\r\nb.jpg,"one, two",3\r\na.jpg,x,4\r\n'
        )
        dataset = convert(root)
        assert [(r.key, r.metadata) for r in dataset] == [
            ("b", {"text": "one, two", "n": "3"}),
            ("a", {"text": "x", "n": "4"}),
        ]

    def test_a_row_can_have_several_images(self, root: Path) -> None:
        put(root, "l/1.png", "r/1.jpg")
        line = {"right_file_name": "r/1.jpg", "file_name": "l/1.png", "k": 1}
        (root / "metadata.jsonl").write_text(json.dumps(line))
        record = convert(root)["l/1"]
        assert record.names == ("png", "right.jpg")
        assert record.metadata == {"k": 1}

    def test_an_image_that_is_not_there_is_named(self, root: Path) -> None:
        put(root, "a.jpg")
        (root / "metadata.jsonl").write_text('{"file_name": "a.jpg"}\n{"file_name": "gone.jpg"}')
        with pytest.raises(MissingFile, match=r"gone\.jpg"):
            convert(root)

    def test_an_image_that_no_row_names_is_named(self, root: Path) -> None:
        put(root, "a.jpg", "b.jpg")
        (root / "metadata.jsonl").write_text('{"file_name": "a.jpg"}')
        with pytest.raises(InvalidArgument, match=r"b\.jpg"):
            convert(root)
        assert list(convert(root, others="skip").keys()) == ["a"]

    @pytest.mark.parametrize("name", ["../a.jpg", "/etc/a.jpg"])
    def test_an_unsafe_path_is_refused(self, root: Path, name: str) -> None:
        put(root, "a.jpg")
        (root / "metadata.jsonl").write_text(json.dumps({"file_name": name}))
        with pytest.raises(UnsafePath, match="line 1"):
            convert(root)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("metadata.jsonl", "no json"),
            ("metadata.jsonl", "[1]"),
            ("metadata.jsonl", '{"text": "no file"}'),
            ("metadata.jsonl", '{"file_name": 3}'),
            ("metadata.csv", "file_name,n\na.jpg\n"),
            ("metadata.csv", "file_name\na.jpg,2\n"),
            ("metadata.csv", 'file_name\n"a.jpg\n'),
            ("metadata.csv", "text\nx\n"),
        ],
    )
    def test_a_malformed_row_is_named(self, root: Path, name: str, text: str) -> None:
        put(root, "a.jpg")
        (root / name).write_text(text)
        with pytest.raises(BadValue, match=rf"{name}.*line \d"):
            convert(root)

    def test_two_files_with_metadata_are_refused(self, root: Path) -> None:
        put(root, "a.jpg")
        for name in ("metadata.csv", "metadata.jsonl"):
            (root / name).write_text("")
        with pytest.raises(InvalidArgument, match="two files"):
            convert(root)


def test_too_little_memory_to_decode_an_image_does_not_count_as_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("shard_format.images._through_pillow", fail)
    with pytest.raises(MemoryError):
        decode_image("image/png", memoryview(image(1, "PNG")), 1 << 20)
