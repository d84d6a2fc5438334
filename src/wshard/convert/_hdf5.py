"""HDF5 files, opened with care: nothing that a file points to elsewhere is followed."""

from __future__ import annotations

import contextlib
import json
import os
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    UnsafePath,
)
from shard_format.extras import require
from shard_format.sources import open_regular
from wshard.convert._arrays import PartOfRows, channel_of, image_type, text_channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wshard._channels import Channel

__all__ = [
    "DatasetRows",
    "EncodedRows",
    "SharedRows",
    "attributes",
    "check_links",
    "datasets",
    "members",
    "open_hdf5",
    "reading",
    "rows_channel",
]

_READ_AHEAD: Final = 1 << 20
_FRAMES_AT_ONCE: Final = 64
_DEEPEST: Final = 16
_MOST_MEMBERS: Final = 1_000_000
# What is not stored is read as zeros: a few bytes can claim terabytes. Deflate reaches 1032.
_SMALL_CLAIM: Final = 64 << 20
_MOST_FOLDS: Final = 5000
_LARGEST_ATTRIBUTE: Final = 16 << 20


def open_hdf5(path: str) -> Any:  # noqa: ANN401 - an h5py.File
    """An HDF5 file for reading: `close()` it, or use it in a `with` block.

    Raises:
        MissingExtra: h5py is not installed.
        ShardIOError: the file cannot be opened; it may be damaged.
    """
    h5py = require("h5py", "hdf5")
    # Refuses a pipe, which the library would wait for.
    os.close(open_regular(path)[0])
    try:
        try:
            return h5py.File(path, "r")
        except OSError:  # another program writes it, or the file system has no locks
            return h5py.File(path, "r", locking=False)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read as HDF5", path) from error


@contextlib.contextmanager
def reading(path: str, entry: str | None = None) -> Iterator[None]:
    """What libraries raise for damaged files becomes an error of ours; errors of ours get the place."""
    try:
        yield
    except ShardError as error:
        raise error.located(path=path, entry=entry) from None
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise BadValue(f"the file cannot be read: {error}", path=path, entry=entry) from error


def file_of(item: Any) -> str:  # noqa: ANN401 - a group or dataset of h5py
    """The path of its file; cheaper than `item.file.filename`."""
    h5py = require("h5py", "hdf5")
    return os.fsdecode(h5py.h5f.get_name(item.id))


def check_links(group: Any, name: str) -> None:  # noqa: ANN401 - an h5py.Group
    """Refuses a member that is a link to somewhere else.

    A soft link within the file is fine; an external link would read any HDF5 file of this machine.
    """
    h5py = require("h5py", "hdf5")
    if not isinstance(name, str):
        raise BadValue("a name is not UTF-8", entry=group.name, found=repr(name))
    # Cheaper than `group.get(name, getlink=True)`: this is done for every array of every episode.
    if group.id.links.get_info(name.encode()).type == h5py.h5l.TYPE_EXTERNAL:
        link = group.get(name, getlink=True)
        raise UnsafePath(
            "an external link leads out of the file",
            path=file_of(group),
            entry=f"{group.name}/{name}",
            found=f"{link.filename}:{link.path}",
            hint="copy the data into one file with h5repack or h5copy",
        )


def check_dataset(dataset: Any) -> None:  # noqa: ANN401 - an h5py.Dataset
    """Refuses data that is stored in other files, or that is not numbers or text."""
    if dataset.external or dataset.is_virtual:
        raise UnsafePath(
            "the data is in other files",
            path=file_of(dataset),
            entry=dataset.name,
            hint="copy it into one file with h5repack",
        )
    dtype = dataset.dtype  # h5py makes it anew each time
    claimed = prod(dataset.shape or (0,)) * dtype.itemsize
    if claimed > _SMALL_CLAIM and claimed > dataset.id.get_storage_size() * _MOST_FOLDS:
        raise LimitExceeded(
            "a dataset claims far more data than the file stores",
            path=file_of(dataset),
            entry=dataset.name,
            expected=f"at most {_MOST_FOLDS} times what is stored",
            found=f"{claimed} bytes, {dataset.id.get_storage_size()} stored",
        )
    if dtype.kind == "V" and dtype.fields:
        raise InvalidArgument(
            "compound types cannot be stored in an episode",
            path=file_of(dataset),
            entry=dataset.name,
            found=dtype,
        )


def datasets(group: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - an h5py.Group
    """All datasets below a group with their names relative to it, in the order of the file; checked."""
    for name, dataset in members(group):
        check_dataset(dataset)
        yield name, dataset


def members(group: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - an h5py.Group
    """As `datasets`, of any type: use `check_dataset` before you read one."""
    return _members(group, "", (group,), count())


def _members(
    group: Any,  # noqa: ANN401 - an h5py.Group
    prefix: str,
    above: tuple[Any, ...],
    seen: Iterator[int],
) -> Iterator[tuple[str, Any]]:
    h5py = require("h5py", "hdf5")
    for name in group:
        check_links(group, name)
        try:
            member = group[name]
        except (KeyError, OSError) as error:
            raise BadValue(
                f"a member cannot be read: {error}",
                path=file_of(group),
                entry=f"{group.name}/{name}",
            ) from None
        is_group = isinstance(member, h5py.Group)
        # Links can make a group its own member, and a few groups look like very many.
        is_ring = is_group and member in above
        if is_ring or len(above) > _DEEPEST or next(seen) > _MOST_MEMBERS:
            raise LimitExceeded(
                "groups are nested too deeply, or have too many members",
                path=file_of(group),
                entry=f"{prefix}{name}",
                expected=f"at most {_DEEPEST} levels and {_MOST_MEMBERS} members",
            )
        if is_group:
            yield from _members(member, f"{prefix}{name}/", (*above, member), seen)
        elif isinstance(member, h5py.Dataset):
            yield f"{prefix}{name}", member


def rows_channel(name: str, dataset: Any, **facts: Any) -> Channel:  # noqa: ANN401 - an h5py.Dataset; of Channel
    """A channel of a dataset: numbers as they are, strings as text."""
    h5py = require("h5py", "hdf5")
    check_dataset(dataset)
    path = file_of(dataset)
    kind = h5py.check_string_dtype(dataset.dtype)
    if kind is not None and dataset.ndim == 1:
        return text_channel(name, (bytes(text) for text in dataset[:]), **facts)
    if dataset.dtype.hasobject:
        raise InvalidArgument(
            "this dataset holds objects, not numbers",
            path=path,
            entry=dataset.name,
            found=dataset.dtype,
            hint="store it as numbers of one type, or name it in a mapping file to leave it out",
        )
    return channel_of(name, DatasetRows(dataset), path=path, **facts)


class DatasetRows:
    """Rows of a dataset; errors of the library become ours."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - an h5py.Dataset
        self._dataset = dataset
        self.shape: tuple[int, ...] = dataset.shape
        self.dtype: np.dtype[Any] = dataset.dtype

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        try:
            return self._dataset[rows]
        except (OSError, ValueError, RuntimeError) as error:
            raise BadValue(
                f"the data cannot be read: {error}",
                path=file_of(self._dataset) if self._dataset else None,
                entry=self._dataset.name if self._dataset else None,
            ) from None


class SharedRows(DatasetRows):
    """Rows of a dataset that many episodes share: read ahead while the episodes are read in order."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - an h5py.Dataset
        super().__init__(dataset)
        self._ahead = _READ_AHEAD // max(1, prod(self.shape[1:]) * self.dtype.itemsize)
        # One value, so that threads see both parts of the same reading.
        self._last: tuple[int, Any] = (0, ())

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        start, stop, _ = rows.indices(self.shape[0])
        first, read = self._last
        if first <= start and stop <= first + len(read):
            return read[start - first : max(start, stop) - first]
        if stop - start > self._ahead:
            return super().__getitem__(slice(start, stop))
        is_next = first <= start <= first + len(read)
        read = super().__getitem__(slice(start, start + self._ahead if is_next else stop))
        self._last = (start, read)
        return read[: max(0, stop - start)]


class EncodedRows:
    """Encoded images of a dataset, one a row: bytes of any length, or rows of bytes that are padded with zeros."""

    def __init__(self, dataset: Any, start: int = 0, stop: int | None = None) -> None:  # noqa: ANN401 - an h5py.Dataset
        rows = DatasetRows(dataset)
        self._rows = PartOfRows(rows, start, rows.shape[0] if stop is None else stop)
        # One value, as for `SharedRows`.
        self._last: tuple[int, Any] = (0, ())

    @property
    def are_images(self) -> bool:
        """Whether the first row is the bytes of an image."""
        first = self[0] if len(self) else None
        is_bytes = isinstance(first, np.ndarray) and first.dtype == np.uint8 and first.ndim == 1
        return is_bytes and bool(image_type(np.asarray(first).data))

    def __len__(self) -> int:
        return self._rows.shape[0]

    def __getitem__(self, step: int, /) -> Any:  # noqa: ANN401 - bytes as an array
        first, read = self._last
        if not first <= step < first + len(read):
            first = step - step % _FRAMES_AT_ONCE
            read = self._rows[first : first + _FRAMES_AT_ONCE]
            self._last = (first, read)
        row = read[step - first]
        is_padded = self._rows.dtype == np.uint8 and len(self._rows.shape) == 2
        # Other files may end with zeros of their own, which do not matter to decoders.
        if is_padded and image_type(row.data) in ("image/jpeg", "image/png"):
            return row[: np.flatnonzero(row)[-1] + 1]
        return row


def attributes(item: Any) -> dict[str, Any]:  # noqa: ANN401 - a group or dataset of h5py
    """The attributes of a group as JSON values; text that is JSON itself stays text."""
    return {name: as_json_value(read_attribute(item, name)) for name in item.attrs}


def read_attribute(item: Any, name: str) -> Any:  # noqa: ANN401 - a group or dataset of h5py; NumPy's values, text
    """The value of an attribute; refuses one that claims much more than an attribute can be."""
    attrs = item.attrs
    claimed = attrs.get_id(name).get_storage_size()
    if claimed > _LARGEST_ATTRIBUTE:
        raise LimitExceeded(
            "an attribute is too large",
            path=file_of(item),
            entry=f"{item.name}, attribute {name}",
            expected=f"at most {_LARGEST_ATTRIBUTE} bytes",
            found=f"{claimed} bytes",
        )
    return attrs[name]


def as_json_value(value: Any) -> Any:  # noqa: ANN401 - NumPy's values, text, lists of them
    """A value of an attribute as JSON can hold it; not a number becomes text."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return {str(key): as_json_value(one) for key, one in value.items()}
    if isinstance(value, (np.ndarray, list, tuple)):
        return [
            as_json_value(one)
            for one in (value.tolist() if isinstance(value, np.ndarray) else value)
        ]
    if isinstance(value, np.generic):
        return as_json_value(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def parse_json_text(text: Any) -> Any:  # noqa: ANN401 - whatever it holds
    """The value of text that should be JSON; the text itself if it is not."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text
