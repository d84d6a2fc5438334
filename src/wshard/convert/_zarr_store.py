"""Opens Zarr folders and zip files that may be hostile: what is in them is checked before zarr sees it."""

from __future__ import annotations

import json
import lzma
import os
import re
import struct
import zipfile
import zlib
from math import prod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.codecs import content_size
from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    UnsafePath,
)
from shard_format.extras import require
from shard_format.foreign import reading
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import read_file
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_MOST_JSON: Final = 16 << 20
_MOST_DEPTH: Final = 16
_MOST_OVERHEAD: Final = 1 << 16
# Of a Blosc chunk: the sizes of its content, of a block, and of the whole.
_BLOSC_SIZES: Final = struct.Struct("<4xIII")
# Codecs that turn bytes or numbers into such. The others unpickle or make Python objects.
_CODECS: Final = frozenset(
    (
        *(
            "blosc",
            "zstd",
            "gzip",
            "zlib",
            "lz4",
            "lzma",
            "bz2",
            "lz4hc",
            "snappy",
            "zfpy",
            "pcodec",
        ),
        *("bytes", "endian", "transpose"),
        *("crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3"),
        *("delta", "shuffle", "fixedscaleoffset", "quantize", "astype", "packbits", "bitround"),
        *("sharding_indexed", "vlen-utf8"),
    )
)
PICTURES: Final = "imagecodecs_"
_DAMAGE: Final = (
    *(ValueError, OSError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)
"""What JSON raises that is not, and damaged members of archives."""


class DescribedFiles:
    """The descriptions of arrays and groups, in a folder or a zip file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        if os.path.isdir(path):
            return
        try:
            self._archive = zipfile.ZipFile(path)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", path) from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise BadMetadata(f"not a zip file that can be read: {error}", path=path) from None
        self._folders: dict[str, set[str]] = {}
        for member in self._archive.infolist():
            self._check_member(member)
            parts = member.filename.split("/")
            for depth in range(min(len(parts), _MOST_DEPTH)):
                self._folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])

    def _check_member(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        if (
            name.startswith(("/", "\\"))
            or ".." in name.replace("\\", "/").split("/")
            or ":" in name
        ):
            raise UnsafePath("a member of the archive leads out of it", path=self.path, found=name)
        if member.file_size > DEFAULT_LIMITS.max_decompressed_bytes:
            raise LimitExceeded(
                "a member of the archive is too large",
                path=self.path,
                entry=name,
                expected=f"at most {DEFAULT_LIMITS.max_decompressed_bytes} bytes",
                found=member.file_size,
            )

    def names(self, folder: str) -> list[str]:
        """What is directly in a folder."""
        if self._archive is not None:
            return sorted(self._folders.get(folder, ()))
        place = os.path.join(self.path, folder)
        inside(self.path, folder, what=f"the folder {folder!r}")
        return sorted(os.listdir(place)) if os.path.isdir(place) else []

    def json(self, folder: str, name: str) -> dict[str, Any]:
        """A JSON object; empty if the file is missing."""
        path = f"{folder}/{name}" if folder else name
        if name not in self.names(folder):
            return {}
        try:
            if self._archive is None:
                text = read_file(inside(self.path, path, what=f"the file {path!r}"), _MOST_JSON)
            else:
                with self._archive.open(path) as file:
                    text = file.read(_MOST_JSON)
            found = json.loads(text)
        except ShardError:
            raise
        except _DAMAGE as error:
            raise BadMetadata(f"not JSON: {error}", path=self.path, entry=path) from None
        if not isinstance(found, dict):
            raise BadMetadata("not a JSON object", path=self.path, entry=path)
        return found

    def arrays(
        self, folder: str, depth: int = _MOST_DEPTH
    ) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Path, format and description of every array below a folder."""
        if not depth:
            raise BadMetadata("groups are nested too deeply", path=self.path, entry=folder)
        for name in self.names(folder):
            path = f"{folder}/{name}"
            if self._archive is None and not os.path.isdir(os.path.join(self.path, path)):
                continue
            names = self.names(path)
            if ".zarray" in names:
                yield path, 2, self.json(path, ".zarray")
            elif "zarr.json" in names and self.json(path, "zarr.json").get("node_type") == "array":
                yield path, 3, self.json(path, "zarr.json")
            else:
                yield from self.arrays(path, depth - 1)

    def attributes(self, folder: str) -> dict[str, Any]:
        """The attributes of a group or array as strict JSON."""
        found = self.json(folder, ".zattrs") or self.json(folder, "zarr.json").get("attributes")
        return as_json_value(found) if isinstance(found, dict) else {}

    def has_files(self, folder: str, count: int) -> bool:
        """Whether there are more than `count` files below a folder."""
        if self._archive is not None:
            return sum(name.startswith(f"{folder}/") for name in self._archive.namelist()) > count
        seen = 0
        for _, _, files in os.walk(os.path.join(self.path, folder)):
            seen += len(files)
            if seen > count:
                return True
        return False

    def close(self) -> None:
        """Closes the archive."""
        if self._archive is not None:
            self._archive.close()


class ChunkLimit(NamedTuple):
    """What a chunk of an array may claim to hold."""

    codec: str
    most: int


def check_array(facts: Mapping[str, Any], form: int, path: str, name: str) -> ChunkLimit | None:
    """Refuses an array that holds Python objects, or one chunk of which would fill the memory.

    Args:
        facts: its description.
        form: 2 or 3.
        path: the file, for errors.
        name: the array, for errors.

    Returns:
        What each chunk may claim; None if it is stored with a codec whose chunks do not say how large they are.
    """
    try:
        shape = [int(size) for size in facts["shape"]]
        if form == 2:
            chunks, dtype = facts["chunks"], facts["dtype"]
            codecs = [*(facts.get("filters") or ()), facts.get("compressor")]
        else:
            chunks = facts["chunk_grid"]["configuration"]["chunk_shape"]
            dtype, codecs = facts["data_type"], list(facts["codecs"])
        chunk = prod(max(0, int(size)) for size in chunks)
        named = list(_codec_names(codecs))
        outermost = list(_codec_names(codecs[-1:]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMetadata(
            f"the description of an array makes no sense: {error!r}", path=path, entry=name
        ) from None
    if any(size < 0 for size in shape):
        raise BadMetadata("an array has a negative size", path=path, entry=name, found=shape)
    for codec in named:
        if codec.startswith(PICTURES):
            _register_picture_codecs(path, name, codec)
        elif codec not in _CODECS:
            raise InvalidArgument(
                "an array is stored with a codec that is not read, because it may run code or make objects",
                path=path,
                entry=name,
                found=codec,
                hint="store it again as numbers, with compressor Blosc and no object codec",
            )
    is_text = dtype == "string" or (isinstance(dtype, dict) and "string" in str(dtype.get("name")))
    if dtype == "|O" or is_text:
        if "vlen-utf8" not in named:
            raise InvalidArgument(
                "an array of Python objects is not read",
                path=path,
                entry=name,
                found=f"dtype {dtype}, codecs {', '.join(named) or 'none'}",
                hint="store it again as numbers of one type, or texts as vlen-utf8",
            )
        size, most = 8, DEFAULT_LIMITS.max_decompressed_bytes
    else:
        size = _item_size(dtype, path, name)
        most = 16 * chunk * size + _MOST_OVERHEAD
    if chunk * size > DEFAULT_LIMITS.max_decompressed_bytes:
        raise LimitExceeded(
            "the chunks of an array are too large",
            path=path,
            entry=name,
            expected=f"at most {DEFAULT_LIMITS.max_decompressed_bytes} bytes",
            found=f"{chunk * size} bytes",
            hint="store it again with smaller chunks",
        )
    if outermost == ["zstd"]:
        return ChunkLimit("zstd", most)
    if "blosc" not in named:
        return None
    if outermost != ["blosc"] or named.count("blosc") > 1:
        raise InvalidArgument(
            "an array is stored with Blosc inside of another codec, where it cannot be checked",
            path=path,
            entry=name,
            hint="store it again with zstd, or with Blosc and without shards",
        )
    return ChunkLimit("blosc", most)


def _codec_names(codecs: Sequence[Any]) -> Iterator[str]:
    waiting = list(codecs)
    while waiting:
        codec = waiting.pop()
        if codec is None:
            continue
        if isinstance(codec, str):
            yield codec
            continue
        yield str(codec.get("id") or codec["name"]).removeprefix("numcodecs.")
        inner = codec.get("configuration")
        if isinstance(inner, dict):
            waiting += [*inner.get("codecs", ()), *inner.get("index_codecs", ())]


def _item_size(dtype: Any, path: str, name: str) -> int:  # noqa: ANN401 - JSON of a file
    """Bytes of one number, by the name of its type in either format."""
    if isinstance(dtype, str) and re.fullmatch(r"[<>|]?[a-zA-Z][a-zA-Z0-9\[\]]*", dtype):
        try:
            found = np.dtype("<u2" if dtype == "bfloat16" else dtype)
        except (TypeError, ValueError):
            found = np.dtype(object)
        if not found.hasobject and not found.fields:
            return found.itemsize
    raise InvalidArgument(
        "an array has a type that an episode cannot store",
        path=path,
        entry=name,
        found=str(dtype)[:200],
        hint="store it again as numbers of one type",
    )


def _register_picture_codecs(path: str, name: str, codec: str) -> None:
    try:
        module = require("imagecodecs.numcodecs", "zarr")
    except ShardError as error:
        error.hint = f"the array is stored with {codec}: install it with: pip install imagecodecs"
        raise error.located(path=path, entry=name) from None
    module.register_codecs(codec, verbose=False)


def open_store(path: str, limits: Mapping[str, ChunkLimit]) -> Any:  # noqa: ANN401 - a store of zarr
    """The store of a folder or zip file. A link in a folder that leads elsewhere is refused.

    numcodecs believes what a chunk says about its size, and reads behind the end of a Blosc chunk: what chunks say is
    compared here.

    Args:
        path: the folder or file.
        limits: by the name of an array, what `check_array` says.
    """
    storage = require("zarr.storage", "zarr")
    is_folder = os.path.isdir(path)
    base: Any = storage.LocalStore if is_folder else storage.ZipStore

    class CheckedStore(base):  # type: ignore[misc] # zarr is imported when it is used
        async def get(self, key: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - as zarr has it
            if is_folder:
                inside(path, key, what=f"the file {key!r}")
            found = await super().get(key, *args, **named)
            array = key
            while found is not None and array and array not in limits:
                array = array.rpartition("/")[0]
            if (
                found is not None
                and array
                and not key.endswith((".zarray", ".zattrs", "zarr.json"))
            ):
                codec, most = limits[array]
                check = check_blosc if codec == "blosc" else check_zstd
                check(found.as_numpy_array(), most, path, key)
            return found

    return CheckedStore(path, read_only=True) if is_folder else CheckedStore(path, mode="r")


def check_blosc(chunk: NDArray[np.uint8], most: int, path: str, name: str) -> None:
    """Refuses a Blosc chunk that is not as long as it says, or says that it holds more than it may."""
    head = chunk[: _BLOSC_SIZES.size].tobytes()
    content, _, whole = _BLOSC_SIZES.unpack(head) if len(head) == _BLOSC_SIZES.size else (0, 0, -1)
    if whole != len(chunk) or content > most:
        raise BadValue(
            "a Blosc chunk is damaged",
            path=path,
            entry=name,
            expected=f"{len(chunk)} bytes stored, at most {most} decoded",
            found=f"{whole} and {content}" if head else "nothing",
        )


def check_zstd(chunk: NDArray[np.uint8], most: int, path: str, name: str) -> None:
    """Refuses a zstd chunk that holds more than it may: a few bytes can hold any number of zeros."""
    stored = chunk.tobytes()
    try:
        size = content_size(stored, DEFAULT_LIMITS)
    except ShardError as error:
        raise BadValue(f"a zstd chunk is damaged: {error}", path=path, entry=name) from None
    if size > most:
        raise BadValue(
            "a zstd chunk holds too much",
            path=path,
            entry=name,
            expected=f"at most {most} bytes",
            found=f"{size} bytes",
        )


class ArrayRows:
    """Rows of an array; errors of the library become ours."""

    def __init__(self, array: Any, path: str, name: str) -> None:  # noqa: ANN401 - a zarr.Array
        self._array = array
        self._path = path
        self._name = name
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        with reading(self._path, "the array cannot be read", entry=self._name):
            return self._array[rows]
