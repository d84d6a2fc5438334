"""Latents of steps: in one file beside each episode, written in place."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.atomic import write_all
from shard_format.canonical_json import canonical, parse_object
from shard_format.errors import DATA_ERRORS, BadMetadata, FileMissing, InvalidArgument
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_log = logging.getLogger("wshard")

LATENTS_SUFFIX: Final = ".latents"
_MOST_HEADER: Final = 1 << 16
_KINDS: Final = "iuf"
_UNREADABLE: Final[tuple[type[Exception], ...]] = (
    *DATA_ERRORS,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
)
_WRITE_FLAGS: Final = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
# Around the values of a step. The system writes bytes in order: if a process dies in between, the two differ.
_BEGUN: Final = "begun"
_DONE: Final = "done"
_VALUES: Final = "values"


class LatentForm:
    """Names, types and shapes of the latents of a step, and how a file holds them.

    A file is a line of JSON, the form, and then one record for each step, of equal size. A step that was never written has
    a record of zeros, or none if the file ends before it.

    Args:
        fields: the type and the shape by name.
    """

    def __init__(self, fields: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self.fields = {
            name: (dtype.newbyteorder("="), shape) for name, (dtype, shape) in fields.items()
        }
        told = {
            name: {"dtype": dtype.newbyteorder("<").str, "shape": list(shape)}
            for name, (dtype, shape) in fields.items()
        }
        self.header: Final = canonical({"latents": told}) + b"\n"
        stored = [(name, one["dtype"], tuple(one["shape"])) for name, one in sorted(told.items())]
        self.record: Final = np.dtype([(_BEGUN, "<u4"), (_VALUES, stored), (_DONE, "<u4")])
        self._stamp = secrets.randbits(31)

    @classmethod
    def of(cls, latents: Mapping[str, NDArray[Any]], steps: tuple[int, ...]) -> LatentForm:
        """The form of latents that were given for an array of steps."""
        if not latents or "" in latents:
            raise InvalidArgument("expected latents by name", found=list(latents))
        for name, values in latents.items():
            if values.shape[: len(steps)] != steps or values.dtype.kind not in _KINDS:
                raise InvalidArgument(
                    "these latents cannot be kept",
                    entry=name,
                    expected=f"integers or floating-point numbers {[*steps, '…']}, one entry for each step",
                    found=f"{values.dtype} {list(values.shape)}",
                )
        return cls(
            {name: (values.dtype, values.shape[len(steps) :]) for name, values in latents.items()}
        )

    @classmethod
    def in_file(cls, path: str) -> LatentForm | None:
        """The form that a file has, or None if it cannot be read."""
        try:
            descriptor, status = open_regular(path, follow_links=False)
            with os.fdopen(descriptor, "rb") as file:
                header = file.readline(_MOST_HEADER)
            fields = parse_object(header, "the form", DEFAULT_LIMITS)["latents"]
            form = cls(
                {
                    name: (_known_dtype(one["dtype"]), _known_shape(one["shape"]))
                    for name, one in fields.items()
                }
            )
            # A file with fewer bytes than one record claims arrays that it does not hold.
            if form.header != header or len(header) + form.record.itemsize > status.st_size:
                raise BadMetadata("the form does not fit the file")
        except _UNREADABLE as error:
            _log.warning("%s: these latents are not used: %s", path, error)
            return None
        return form

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {dtype} {list(shape)}" for name, (dtype, shape) in sorted(self.fields.items())
        )

    def records(self, latents: Mapping[str, NDArray[Any]], count: int) -> NDArray[Any]:
        """Records with the latents of as many steps."""
        made = np.empty(count, self.record)
        self._stamp = self._stamp % 0xFFFF_FFFF + 1
        made[_BEGUN] = made[_DONE] = self._stamp
        for name, (_, shape) in self.fields.items():
            made[_VALUES][name] = latents[name].reshape(count, *shape)
        return made

    def write(self, path: str, first: int, records: NDArray[Any]) -> int:
        """Write the records of consecutive steps; return the size of the file.

        Replaces a file of another form. A process that dies meanwhile leaves at most one step without latents.
        """
        descriptor = _open_for_writing(path)
        try:
            if os.read(descriptor, len(self.header)) != self.header:
                os.ftruncate(descriptor, 0)
                os.lseek(descriptor, 0, os.SEEK_SET)
                write_all(descriptor, [self.header])
            os.lseek(descriptor, len(self.header) + first * self.record.itemsize, os.SEEK_SET)
            write_all(descriptor, [records.tobytes()])
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def read(self, path: str, first: int, count: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The latents of consecutive steps, by name, and which of them were written; fewer if the file ends before."""
        records = self._records_in(path, first, count)
        known = (records[_BEGUN] != 0) & (records[_BEGUN] == records[_DONE])
        return records[_VALUES], known

    def _records_in(self, path: str, first: int, count: int) -> NDArray[Any]:
        try:
            descriptor, _ = open_regular(path, follow_links=False)
        except FileMissing:  # the process that fills the folder has deleted the episode
            return np.empty(0, self.record)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if file.read(len(self.header)) != self.header:  # of another form: none of it is known
                return np.empty(0, self.record)
            file.seek(first * self.record.itemsize, os.SEEK_CUR)
            content = bytearray(count * self.record.itemsize)
            filled = 0
            while filled < len(content):
                got = file.readinto(memoryview(content)[filled:])
                if not got:
                    break
                filled += got
        return np.frombuffer(content, self.record, filled // self.record.itemsize)


def _open_for_writing(path: str) -> int:
    """A descriptor of the file, which is created if it is missing, and replaced if it is a link."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
    descriptor = os.open(path, _WRITE_FLAGS, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument("latents cannot be written: not a regular file", path=path)
    return descriptor


def _known_dtype(name: object) -> np.dtype[Any]:
    dtype = np.dtype(str(name))
    if dtype.kind not in _KINDS:
        raise ValueError(f"latents are numbers, not {dtype}")
    return dtype


def _known_shape(shape: Any) -> tuple[int, ...]:  # noqa: ANN401 - any JSON
    if not all(type(size) is int and 0 <= size < 1 << 40 for size in shape) or len(shape) > 16:
        raise ValueError("a shape is a list of sizes")
    if prod(shape) >= 1 << 40:
        raise ValueError("a shape is too large")
    return tuple(shape)
