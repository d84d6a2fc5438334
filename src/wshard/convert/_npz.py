"""`.npz` and `.npy` files whose arrays are read when they are used, and `.npz` files that are written piece by piece."""

from __future__ import annotations

import os
import weakref
import zipfile
import zlib
from math import prod
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadValue,
    Closed,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    Truncated,
)
from shard_format.npy import npy_header, read_npy_header
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import open_regular
from wshard._channels import Channel, Modality
from wshard._values import DType
from wshard.convert._arrays import channel_of, text_channel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.convert._arrays import ForeignRows
    from wshard.convert._model import Notes

__all__ = [
    "ArrayFile",
    "NpzFile",
    "array_channel",
    "is_zip",
    "plain_name",
    "write_npz",
]

_DAMAGE: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, NotImplementedError),
    *(ValueError, OverflowError, UnicodeError),
)
_PIECE: Final = 1 << 18
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class ArrayFile:
    """The array of an `.npy` file, or of a member of an `.npz` file. Reads the rows that it is asked for.

    Rows that follow each other are read in one pass; compressed data is decompressed again from the start to go back.
    """

    def __init__(
        self, open_file: Callable[[], IO[bytes]], size: int, path: str, entry: str | None = None
    ) -> None:
        self._path, self._entry = path, entry
        self._lock = Lock()
        self._whole: NDArray[Any] | None = None
        try:
            self._file = open_file()
        except _DAMAGE as error:
            raise self._damaged(error) from None
        try:
            header = read_npy_header(self._file.read, size)
        except ShardError as error:
            self._file.close()
            raise error.located(path=path, entry=entry) from None
        except _DAMAGE as error:
            self._file.close()
            raise self._damaged(error) from None
        self.shape, self._in_fortran_order, self.dtype, self._start = header
        self._row_bytes = prod(self.shape[1:]) * self.dtype.itemsize
        # Datasets of many files leave a file to the channels that read from it.
        weakref.finalize(self, self._file.close)

    def _damaged(self, error: Exception) -> BadValue:
        return BadValue(
            f"the array cannot be read: {str(error) or type(error).__name__}",
            path=self._path,
            entry=self._entry,
        )

    def _read(self, start: int, nbytes: int) -> NDArray[np.uint8]:
        if nbytes > DEFAULT_LIMITS.max_decompressed_bytes and isinstance(
            self._file, zipfile.ZipExtFile
        ):
            raise LimitExceeded(
                "too much to unpack at once",
                path=self._path,
                entry=self._entry,
                expected=f"at most {DEFAULT_LIMITS.max_decompressed_bytes} bytes",
                found=f"{nbytes} bytes",
                hint="read fewer steps at a time",
            )
        if self._file.closed:
            raise Closed(
                "the dataset is closed",
                path=self._path,
                entry=self._entry,
                hint="use or save an episode before you ask for the next one",
            )
        # In pieces: what is read as a whole is copied twice, because zipfile collects it.
        data, done = np.empty(nbytes, np.uint8), 0
        try:
            with self._lock:
                self._file.seek(self._start + start)
                while done < nbytes and (piece := self._file.read(min(_PIECE, nbytes - done))):
                    data[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
                    done += len(piece)
        except _DAMAGE as error:
            raise self._damaged(error) from None
        if done != nbytes:
            raise Truncated(
                "the array ends too early",
                path=self._path,
                entry=self._entry,
                expected=f"{nbytes} bytes",
                found=f"{done} bytes",
            )
        return data

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        start, stop, _ = rows.indices(self.shape[0])
        count = max(0, stop - start)
        if self._in_fortran_order and len(self.shape) > 1:
            if self._whole is None:
                self._whole = self.all()
            return self._whole[start : start + count]
        data = self._read(start * self._row_bytes, count * self._row_bytes)
        return data.view(self.dtype).reshape((count, *self.shape[1:]))

    def all(self) -> NDArray[Any]:
        """The whole array, of any number of axes."""
        data = self._read(0, prod(self.shape) * self.dtype.itemsize)
        return data.view(self.dtype).reshape(
            self.shape, order="F" if self._in_fortran_order else "C"
        )

    def close(self) -> None:
        self._file.close()


class NpzFile:
    """The arrays of an `.npz` file by name; each is opened when it is first asked for."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.close(open_regular(path)[0])  # zipfile would wait for a pipe
        try:
            self._archive = zipfile.ZipFile(path)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", path) from error
        except _DAMAGE as error:
            raise BadValue(f"not an .npz file: {error}", path=path) from None
        weakref.finalize(self, self._archive.close)
        self._arrays: dict[str, ArrayFile] = {}
        self._members: dict[str, zipfile.ZipInfo] = {}
        self.others: list[str] = []
        """Members that are not arrays."""
        for member in self._archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                self.others.append(name)
                continue
            if name in self._members:
                raise BadValue("two arrays have the same name", path=path, entry=name)
            if member.compress_type not in _METHODS:
                raise BadValue(
                    "the array is compressed in a way that NumPy does not use",
                    path=path,
                    entry=name,
                    found=f"method {member.compress_type}",
                )
            self._members[name] = member

    @property
    def names(self) -> Sequence[str]:
        """What its arrays are called."""
        return list(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> ArrayFile:
        found = self._arrays.get(name)
        if found is None:
            member = self._members.get(name)
            if member is None:
                raise BadValue("an array is missing", path=self.path, entry=name)
            found = ArrayFile(lambda: self._archive.open(member), member.file_size, self.path, name)
            self._arrays[name] = found
        return found

    def close(self) -> None:
        for array in self._arrays.values():
            array.close()
        self._archive.close()


def open_npy(path: str) -> ArrayFile:
    """The array of an `.npy` file."""
    descriptor, facts = open_regular(path)
    return ArrayFile(lambda: os.fdopen(descriptor, "rb"), facts.st_size, path)


def is_zip(head: bytes) -> bool:
    """Whether a file that starts so may be an `.npz` file."""
    return head.startswith((b"PK\3\4", b"PK\5\6"))


def array_channel(
    name: str, rows: ForeignRows, path: str, field: str, notes: Notes
) -> Channel | None:
    """A channel of an array of numbers or text; None, with a note, if an episode cannot hold it.

    Args:
        name: of the channel.
        rows: one a step.
        path: the file, for errors.
        field: what the array is called there, for notes.
        notes: tells a change of type.
    """
    kind = rows.dtype.kind
    if kind in "US":
        if len(rows.shape) != 1:
            notes.dropped(field, f"text in {len(rows.shape)} dimensions")
            return None
        try:
            return text_channel(name, rows[:].tolist())
        except InvalidArgument as error:
            raise error.located(path=path) from None
    if kind in "mM":
        notes.cast(field, rows.dtype, "int64")
        return Channel(
            name, data=np.asarray(rows[:]).astype(rows.dtype.newbyteorder("<")).view("<i8")
        )
    try:
        DType.from_numpy(rows.dtype)
    except InvalidArgument:
        notes.dropped(field, f"an episode cannot store {rows.dtype}")
        return None
    return channel_of(name, rows, path=path, modality=modality_of(name, rows))


def modality_of(name: str, rows: ForeignRows) -> Modality | None:
    """What kind of camera an array is, by its form and name; None for anything else."""
    step = rows.shape[1:]
    if len(step) not in (2, 3) or min(step[:2]) < 8:
        return None
    if "depth" in name.lower() and (len(step) == 2 or step[2] == 1):
        return Modality.DEPTH
    is_colour = rows.dtype == np.uint8 and len(step) == 3 and step[2] == 3
    return Modality.RGB if is_colour else None


def plain_name(name: str, notes: Notes) -> str:
    """A name that a channel can have."""
    parts = [part for part in name.replace("\0", "").split("/") if part not in ("", ".", "..")]
    plain = "/".join(parts) or "array"
    if plain != name:
        notes.renamed(name, plain)
    return plain


def write_npz(
    path: str,
    arrays: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], Iterable[Any]]],
    *,
    compress: bool,
) -> None:
    """Writes an `.npz` file.

    Args:
        path: of the new file.
        arrays: by name, the dtype, the shape, and the data in C order in one or more pieces.
        compress: whether to deflate, as `np.savez_compressed`.
    """
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "x", method) as archive:
        for name, (dtype, shape, pieces) in arrays.items():
            member = zipfile.ZipInfo(
                f"{name}.npy"
            )  # without the time of day, as np.savez may store it
            member.compress_type = method
            with archive.open(member, "w", force_zip64=True) as file:
                file.write(npy_header(dtype, shape))
                for piece in pieces:
                    file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
