"""HDF5 files, opened with care: nothing that a file points to elsewhere is followed."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.errors import (
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    UnsafePath,
    is_shortage,
)
from shard_format.extras import require
from shard_format.sources import open_regular
from wshard.convert._arrays import PartOfRows, channel_of, image_type, text_channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from wshard._channels import Channel

__all__ = [
    "Contents",
    "DatasetRows",
    "EncodedRows",
    "SharedRows",
    "as_json_value",
    "attributes",
    "check_dataset",
    "check_links",
    "contents",
    "datasets",
    "has_member",
    "is_text",
    "open_hdf5",
    "open_member",
    "parse_json_text",
    "read_attribute",
    "reading",
    "rows_channel",
    "walk",
]

_READ_AHEAD: Final = 1 << 20
_READ_CHUNKS_AHEAD: Final = 4 << 20
_FRAMES_AT_ONCE: Final = 64
_DEEPEST: Final = 16
_MOST_LINKS: Final = 16
_MOST_MEMBERS: Final = 1_000_000
# What is not stored is read as zeros: a few bytes can claim terabytes. Deflate reaches 1032.
_SMALL_CLAIM: Final = 64 << 20
_MOST_FOLDS: Final = 5000
_LARGEST_ATTRIBUTE: Final = 16 << 20
# Of a list of strings, 16 bytes each: all of them may point to the same bytes, and libhdf5 copies these for each.
_LARGEST_LIST: Final = 1 << 16
# A row of text may be as large as the file: rows that together may be larger are read one by one.
_MOST_TEXT: Final = 1 << 30


@functools.cache
def library() -> Any:  # noqa: ANN401 - a module
    """h5py. Looked up once: a dataset needs it several times, and an import that is repeated takes a microsecond."""
    return require("h5py", "hdf5")


@functools.lru_cache(64)
def _memory_type(dtype: np.dtype[Any]) -> Any:  # noqa: ANN401 - an h5t.TypeID
    """The type of HDF5 for arrays of numbers; making it takes longer than reading a small dataset."""
    return library().h5t.py_create(dtype)


def open_hdf5(path: str) -> Any:  # noqa: ANN401 - an h5py.File
    """An HDF5 file for reading: `close()` it, or use it in a `with` block.

    Raises:
        MissingExtra: h5py is not installed.
        ShardIOError: the file cannot be opened.
        BadValue: it is damaged, or not an HDF5 file.
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
        if error.errno is None:  # the library refuses, not the system
            raise BadValue(f"cannot read as HDF5: {error}", path=path) from None
        raise ShardIOError.wrap(error, "cannot read as HDF5", path) from error


@contextlib.contextmanager
def reading(path: str, entry: str | None = None) -> Iterator[None]:
    """What libraries raise for damaged files becomes an error of ours; errors of ours get the place."""
    try:
        yield
    except ShardError as error:
        raise error.located(path=path, entry=entry) from None
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and is_shortage(error):
            raise ShardIOError.wrap(error, "cannot read", path) from error
        raise BadValue(f"the file is damaged: {error}", path=path, entry=entry) from error


def file_of(item: Any) -> str:  # noqa: ANN401 - a group or dataset of h5py, or what has its id
    """The path of its file; cheaper than `item.file.filename`."""
    h5py = library()
    return os.fsdecode(h5py.h5f.get_name(item.id))


# --- links and groups


def check_links(group: Any, name: str) -> None:  # noqa: ANN401 - an h5py.Group
    """Refuses a member that is a link out of the file. A soft link within the file is fine."""
    open_member(group, name)


def has_member(group: Any, name: str) -> bool:  # noqa: ANN401 - an h5py.Group
    """Whether a group has a member of this name. Unlike `name in group` it follows no link."""
    return bool(name) and bool(group.id.links.exists(name.encode()))


def open_member(group: Any, name: str) -> Any:  # noqa: ANN401 - an h5py.Group; a low-level object of h5py
    """Opens a member of a group. Follows no link out of the file, which could read any HDF5 file of this machine.

    Returns:
        An `h5g.GroupID`, an `h5d.DatasetID` or an `h5t.TypeID`.

    Raises:
        UnsafePath: a link leads out of the file.
        BadValue: the group does not have it, or it cannot be read.
    """
    if not isinstance(name, str):
        raise BadValue("a name is not UTF-8", entry=group.name, found=repr(name))
    return _open(group.id, name.encode(), iter(range(_MOST_LINKS)))


def _open(group: Any, name: bytes, links: Iterator[int]) -> Any:  # noqa: ANN401 - low-level objects of h5py
    h5py = library()
    try:
        kind = group.links.get_info(name).type
        if kind == h5py.h5l.TYPE_HARD:
            return h5py.h5o.open(group, name)
        target = group.links.get_val(name)
    except (KeyError, OSError, RuntimeError, ValueError) as error:
        raise BadValue(f"a member cannot be read: {error}", **_place(group, name)) from None
    if kind == h5py.h5l.TYPE_EXTERNAL:
        raise UnsafePath(
            "an external link leads out of the file",
            **_place(group, name),
            found=":".join(os.fsdecode(part) for part in target),
            hint="copy the data into one file with h5repack or h5copy",
        )
    if kind != h5py.h5l.TYPE_SOFT or next(links, None) is None:
        raise BadValue(
            "a link is of an unknown kind, or leads to too many others", **_place(group, name)
        )
    # Step by step: a part of the path of a soft link can itself be a link out of the file.
    item = h5py.h5o.open(group, b"/" if target.startswith(b"/") else b".")
    for part in target.split(b"/"):
        if not isinstance(item, h5py.h5g.GroupID):
            raise BadValue("a link leads through a dataset", **_place(group, name))
        if part not in (b"", b"."):
            item = _open(item, part, links)
    return item


def _place(group: Any, name: bytes) -> dict[str, Any]:  # noqa: ANN401 - an h5g.GroupID
    """Where a member is, for errors."""
    h5py = library()
    above = (h5py.h5i.get_name(group) or b"").rstrip(b"/")
    return {
        "path": os.fsdecode(h5py.h5f.get_name(group)),
        "entry": (above + b"/" + name).decode(errors="replace"),
    }


def walk(group: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - an h5py.Group; low-level objects of h5py
    """All that is below a group, in the order of the file: names relative to it, and what `open_member` returns.

    A group comes before its members. Low-level objects take a fraction of the time of `h5py.Group` and
    `h5py.Dataset`, and this is done for every array of every episode.
    """
    h5py = library()
    return _walk(h5py.h5o.open(group.id, b"."), "", (), count())


def _walk(
    group: Any,  # noqa: ANN401 - an h5g.GroupID
    prefix: str,
    above: tuple[tuple[int, int], ...],
    seen: Iterator[int],
) -> Iterator[tuple[str, Any]]:
    h5py = library()
    facts = h5py.h5o.get_info(group)
    here = (facts.fileno, facts.addr)
    for name in _names(group):
        # Links can make a group its own member, and a few groups look like very many.
        if here in above or len(above) > _DEEPEST or next(seen) > _MOST_MEMBERS:
            raise LimitExceeded(
                "groups are nested too deeply, or have too many members",
                **_place(group, name),
                expected=f"at most {_DEEPEST} levels and {_MOST_MEMBERS} members",
            )
        member = _open(group, name, iter(range(_MOST_LINKS)))
        try:
            full = prefix + name.decode()
        except UnicodeDecodeError:
            raise BadValue("a name is not UTF-8", **_place(group, name)) from None
        yield full, member
        if isinstance(member, h5py.h5g.GroupID):
            yield from _walk(member, f"{full}/", (*above, here), seen)


def _names(group: Any) -> list[bytes]:  # noqa: ANN401 - an h5g.GroupID
    """The names of its members, in the order in which they were made if the file knows it."""
    h5py = library()
    order = group.get_create_plist().get_link_creation_order()
    is_known = order & h5py.h5p.CRT_ORDER_TRACKED
    names: list[bytes] = []
    group.links.iterate(
        names.append, idx_type=h5py.h5.INDEX_CRT_ORDER if is_known else h5py.h5.INDEX_NAME
    )
    return names


class Contents(NamedTuple):
    """What is below a group, by names relative to it, in the order of the file."""

    arrays: dict[str, DatasetRows]
    """Datasets, checked."""
    others: dict[str, Any]
    """Groups and named types, as low-level objects of h5py."""


def contents(group: Any) -> Contents:  # noqa: ANN401 - an h5py.Group
    """Opens and checks all that is below a group."""
    h5py = library()
    found = Contents({}, {})
    for name, item in walk(group):
        if isinstance(item, h5py.h5d.DatasetID):
            found.arrays[name] = rows = DatasetRows(item)
            check_dataset(rows)
        else:
            found.others[name] = item
    return found


def datasets(group: Any) -> Iterator[tuple[str, DatasetRows]]:  # noqa: ANN401 - an h5py.Group
    """All datasets below a group with their names relative to it, in the order of the file; checked."""
    return iter(contents(group).arrays.items())


# --- datasets


def check_dataset(dataset: DatasetRows) -> None:
    """Refuses data that is stored in other files, or that is not numbers or text."""
    dtype, chunk = dataset.dtype, 0
    if not dataset.is_contiguous:
        h5py = library()
        stored = dataset.id.get_create_plist()
        layout = stored.get_layout()
        if layout == h5py.h5d.VIRTUAL or stored.get_external_count():
            raise UnsafePath(
                "the data is in other files",
                path=file_of(dataset),
                entry=dataset.name,
                hint="copy it into one file with h5repack",
            )
        # Reading one row decodes its whole chunk, which may be larger than the dataset.
        chunk = prod(stored.get_chunk()) if layout == h5py.h5d.CHUNKED else 0
    claimed = max(dataset.size, chunk) * dtype.itemsize
    if claimed > _SMALL_CLAIM and claimed > dataset.id.get_storage_size() * _MOST_FOLDS:
        raise LimitExceeded(
            "a dataset claims far more data than the file stores",
            path=file_of(dataset),
            entry=dataset.name,
            expected=f"at most {_MOST_FOLDS} times what is stored",
            found=f"{claimed} bytes, {dataset.id.get_storage_size()} stored",
        )
    if dtype.kind == "V":
        raise InvalidArgument(
            "an episode cannot store compound, array and opaque types",
            path=file_of(dataset),
            entry=dataset.name,
            found=dtype,
        )


def is_text(dataset: DatasetRows) -> bool:
    """Whether a dataset holds strings."""
    is_possible = dataset.dtype.kind in "OS"
    return is_possible and library().check_string_dtype(dataset.dtype) is not None


def rows_channel(name: str, dataset: DatasetRows, **facts: Any) -> Channel:  # noqa: ANN401 - of Channel
    """A channel of a dataset that was checked: numbers as they are, strings as text."""
    path = file_of(dataset)
    if is_text(dataset) and dataset.ndim == 1:
        return text_channel(name, (bytes(text) for text in dataset[:]), **facts)
    if dataset.dtype.hasobject:
        raise InvalidArgument(
            "this dataset holds objects, not numbers",
            path=path,
            entry=dataset.name,
            found=dataset.dtype,
            hint="store it as numbers of one type, or name it in a mapping file to leave it out",
        )
    return channel_of(name, dataset, path=path, **facts)


class DatasetRows:
    """A dataset that is read by rows; errors of the library become ours."""

    def __init__(self, dataset: Any) -> None:  # noqa: ANN401 - an h5py.Dataset, its id, or another of these
        h5py = library()
        is_low = isinstance(dataset, h5py.h5d.DatasetID)
        self.id: Any = dataset if is_low else dataset.id
        """The low-level object of h5py."""
        shape = self.id.shape
        # HDF5 has datasets without any values, not even none of some shape.
        self.is_empty = shape is None
        self.shape: tuple[int, ...] = (0,) if shape is None else shape
        self.dtype: np.dtype[Any] = self.id.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @functools.cached_property
    def name(self) -> str:
        """Its path in the file."""
        name: bytes = library().h5i.get_name(self.id) or b""
        return name.decode(errors="replace")

    @functools.cached_property
    def is_contiguous(self) -> bool:
        """Whether this file has all of its values, in one piece."""
        return self.id.get_offset() is not None

    @property
    def attrs(self) -> Any:  # noqa: ANN401 - as those of an h5py.Dataset
        return library().AttributeManager(self)

    def __getitem__(self, rows: slice | tuple[()], /) -> Any:  # noqa: ANN401 - an array, or one value
        with self._reading():
            if not self.shape:
                return library().Dataset(self.id)[rows]
            chosen = rows if isinstance(rows, slice) else slice(None)
            start, stop, _ = chosen.indices(self.shape[0])
            stop = max(start, stop)
            if self.dtype.hasobject:
                return self._read_objects(start, stop)
            out = self.new_array(stop - start)
            self._read_into(out, start)
            return out

    def new_array(self, count: int) -> NDArray[Any]:
        """An array to read this many rows into."""
        # Zeros, not what was in memory before: HDF5 leaves out values that the file does not have.
        make = np.empty if self.is_contiguous else np.zeros
        return make((count, *self.shape[1:]), self.dtype)

    def read_into(self, out: NDArray[Any]) -> None:
        """Reads all rows of numbers into an array from `new_array`, or a part of one."""
        with self._reading():
            self._read_into(out, 0)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as error:
            if isinstance(error, ShardError):
                raise
            raise BadValue(
                f"the data cannot be read: {error}",
                path=file_of(self) if self.id.valid else None,
                entry=self.name if self.id.valid else None,
            ) from None

    def _read_into(self, out: NDArray[Any], start: int) -> None:
        h5s = library().h5s
        if not out.size:
            return
        # Types with facts of their own, such as enumerations, equal those without.
        kind = _memory_type(out.dtype) if out.dtype.metadata is None else None
        if out.shape == self.shape:
            self.id.read(h5s.ALL, h5s.ALL, out, kind)
        else:
            chosen = self.id.get_space()
            chosen.select_hyperslab((start, *(0 for _ in self.shape[1:])), out.shape)
            self.id.read(h5s.create_simple(out.shape), chosen, out, kind)

    def _read_objects(self, start: int, stop: int) -> NDArray[Any]:
        """Text and bytes of any length, a few rows at a time.

        A file stores each of them, so all of them are not larger than the file. One that is larger has rows that
        all point to the same bytes.
        """
        h5py = library()
        dataset, most = h5py.Dataset(self.id), h5py.h5i.get_file_id(self.id).get_filesize()
        step = max(1, _MOST_TEXT // max(1, most))
        pieces, total = [np.empty((0, *self.shape[1:]), object)], 0
        for at in range(start, stop, step):
            piece = dataset[at : min(at + step, stop)]
            total += sum(
                len(one) if isinstance(one, bytes) else one.nbytes
                for one in piece.flat
                if isinstance(one, (bytes, np.ndarray))
            )
            if total > most:
                raise LimitExceeded(
                    "a dataset has more text than the file has bytes",
                    path=file_of(self),
                    entry=self.name,
                    expected=f"at most {most} bytes",
                    found=f"{total} bytes by row {at}",
                )
            pieces.append(piece)
        return np.concatenate(pieces)


class SharedRows:
    """Rows of a dataset that many episodes share: read ahead while the episodes are read in order."""

    def __init__(self, dataset: DatasetRows) -> None:
        self._dataset = dataset
        self.shape, self.dtype = dataset.shape, dataset.dtype
        h5py = library()
        stored = dataset.id.get_create_plist()
        is_chunked = stored.get_layout() == h5py.h5d.CHUNKED
        self._chunk: int = stored.get_chunk()[0] if is_chunked else 1
        most = _READ_CHUNKS_AHEAD if is_chunked else _READ_AHEAD
        self._ahead = most // max(1, prod(self.shape[1:]) * self.dtype.itemsize)
        # One value, so that threads see both parts of the same reading.
        self._last: tuple[int, Any] = (0, ())

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        start, stop, _ = rows.indices(self.shape[0])
        stop = max(start, stop)
        first, read = self._last
        end = first + len(read)
        if first <= start and stop <= end:
            return read[start - first : stop - first]
        if stop - start > self._ahead or not first <= start <= end:
            # Also remembered, to see whether the next rows are the ones after these.
            read = self._dataset[start:stop]
            self._last = (start, read)
            return read
        # Up to the end of a chunk: the rest of it would be decoded again.
        until = max(stop, (end + self._ahead) // self._chunk * self._chunk)
        more = self._dataset[end:until]
        read = np.concatenate((read[start - first :], more)) if start < end else more
        self._last = (start, read)
        return read[: stop - start]


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
    """The value of an attribute; refuses one that claims much more than an attribute can be.

    Raises:
        BadValue: it is damaged.
        LimitExceeded: it is too large.
        TypeError: NumPy has no such type.
    """
    try:
        attribute = item.attrs.get_id(name)
        shape, dtype = attribute.shape, attribute.dtype
        claimed = attribute.get_storage_size()
        most = _LARGEST_LIST if dtype.hasobject else _LARGEST_ATTRIBUTE
        if claimed > most:
            raise LimitExceeded(
                "an attribute is too large",
                path=file_of(item),
                entry=f"{item.name}, attribute {name}",
                expected=f"at most {most} bytes",
                found=f"{claimed} bytes",
            )
        if shape is None or dtype.kind not in "biuf":
            return item.attrs[name]
        # As h5py does, without opening the attribute again.
        value = np.zeros(shape, dtype)
        if value.size:
            attribute.read(value)
        return value[()]
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, ShardError):
            raise
        raise BadValue(
            f"an attribute cannot be read: {error}",
            path=file_of(item),
            entry=f"{item.name}, attribute {name}",
        ) from None


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
