"""Folders of images as Hugging Face datasets have them: one folder per class, or a file with metadata."""

from __future__ import annotations

import csv
import io
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from shard_format.canonical_json import parse_foreign
from shard_format.errors import (
    BadValue,
    DuplicateName,
    InvalidArgument,
    MissingFile,
    ShardError,
    UnsafePath,
    check_choice,
)
from shard_format.safe_paths import unsafe_form
from shard_format.sources import read_file
from shardpack.content_types import content_type_of
from shardpack.files import InputFile, walk
from shardpack.writer_set import ShardWriterSet, WrittenShards

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardpack.writer import Output

__all__ = ["from_image_folder"]

_METADATA: Final = ("metadata.jsonl", "metadata.csv")
_FILE: Final = "file_name"


def from_image_folder(
    folder: str | os.PathLike[str],
    output: Output,
    *,
    others: str = "error",
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Make shards of a folder of images; each image is stored as it is.

    `cat/0001.jpg` becomes the entry `jpg` of the record `cat/0001`. If there is a `metadata.jsonl` or `metadata.csv`,
    its rows are the records, in their order: `file_name` names the image, `left_file_name` and the like name others,
    and all other fields become metadata of the record. Otherwise the folder of an image is its class: `label` in the
    metadata of the record; the metadata of the shards lists all labels.

    Args:
        folder: one split of a dataset: the folder `train`, not its parent.
        output: one file (a path, or an open file), or `"train-%06d.shardpack"` for a set of shards.
        others: what to do with files that are not images, or that the metadata does not name: `"error"`, or
            `"skip"`, which lists them in the result.
        options: what `ShardWriterSet` takes: `overwrite`, `max_bytes`, `compression` and so on.

    Raises:
        MissingFile: the metadata names a file that does not exist.
        DuplicateName: two images would be the same record.
        InvalidArgument: the folder holds no images, or holds other files.
    """
    check_choice("others", others, ("error", "skip"))
    root = os.fspath(folder)
    found = {relative: (path, is_file) for relative, path, is_file in walk(root)}
    tables = [name for name in _METADATA if name in found]
    if len(tables) > 1:
        raise InvalidArgument(
            "there are two files with metadata", path=root, found=" and ".join(tables)
        )
    images = {
        relative
        for relative, (_, is_file) in found.items()
        if is_file and content_type_of(relative).startswith("image/") and "." in relative
    }
    if tables:
        rows = list(_rows(found[tables[0]][0]))
        samples = [_sample_of_row(row, number, found[tables[0]][0]) for number, row in rows]
    else:
        samples = [({_ending(name): name}, _label(name)) for name in sorted(images)]
    used = {name for files, _ in samples for name in files.values()}
    for name in sorted(used - images):
        raise MissingFile("the metadata names an image that does not exist", path=root, entry=name)
    left_out = sorted(found.keys() - used - set(tables))
    if left_out and others == "error":
        raise InvalidArgument(
            "there are files that are not images, or that the metadata does not name",
            path=root,
            entry=left_out[0],
            found=f"{len(left_out)} files",
            hint="others='skip' leaves them out",
            command="pass --skip-others to leave them out",
        )
    if not samples:
        raise InvalidArgument("the folder holds no images", path=root)
    labels = sorted(
        {fields["label"] for _, fields in samples if "label" in fields} if not tables else ()
    )
    if labels:
        options["metadata"] = {"labels": labels, **(options.get("metadata") or {})}
    with ShardWriterSet(output, **options) as writer:
        for files, fields in samples:
            first = next(iter(files.values()))
            key = first.rpartition(".")[0]
            if key in writer:
                raise DuplicateName(
                    "two images would be the same record",
                    path=root,
                    entry=first,
                    found=f"the key {key!r}",
                    hint="rename one of them",
                )
            with ExitStack() as inputs:
                entries = {
                    name: inputs.enter_context(InputFile(found[relative][0])).data
                    for name, relative in files.items()
                }
                writer.write(key, entries, fields)
    return WrittenShards(writer.paths, len(samples), left_out)


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


def _label(name: str) -> dict[str, Any]:
    """The class of an image: its folder."""
    folder = name.rpartition("/")[0]
    return {"label": folder.rpartition("/")[2]} if folder else {}


def _rows(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file with metadata, with their line numbers."""
    try:
        text = read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadValue(f"the metadata is not UTF-8: {error}", path=path) from None
    if path.endswith(".csv"):
        reader = csv.DictReader(io.StringIO(text), strict=True)
        try:
            for fields in reader:
                if None in fields or None in fields.values():
                    raise _bad_row(path, reader.line_num, "as many values as the first line has")
                yield reader.line_num, dict(fields)
        except csv.Error as error:
            raise BadValue(f"line {reader.line_num}: {error}", path=path) from None
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = parse_foreign(line.encode(), f"line {number}")
        except ShardError as error:
            raise error.located(path=path) from None
        if not isinstance(row, dict):
            raise _bad_row(path, number, "an object")
        yield number, row


def _bad_row(path: str, number: int, expected: str) -> BadValue:
    return BadValue(f"line {number} of the metadata is malformed", path=path, expected=expected)


def _sample_of_row(
    row: dict[str, Any], number: int, path: str
) -> tuple[dict[str, str], dict[str, Any]]:
    """The files of a row by entry name, and its other fields."""
    files: dict[str, str] = {}
    fields: dict[str, Any] = {}
    # The image that gives the record its key comes first.
    for column, value in sorted(row.items(), key=lambda item: item[0] != _FILE):
        if column != _FILE and not column.endswith("_" + _FILE):
            fields[column] = value
            continue
        if not isinstance(value, str) or not value:
            raise _bad_row(path, number, f"the name of a file as {column!r}")
        name = value.removeprefix("./")
        reason = unsafe_form(name)
        if reason is not None:
            raise UnsafePath(
                f"line {number} names an unsafe path", path=path, entry=value, found=reason
            )
        own = column.removesuffix(_FILE).rstrip("_")
        files[f"{own}.{_ending(name)}" if own else _ending(name)] = name
    if not files:
        raise _bad_row(path, number, f"a field {_FILE!r}")
    return files, fields
