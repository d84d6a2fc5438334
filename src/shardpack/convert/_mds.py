"""Reading MDS, the format of MosaicML Streaming: an `index.json` and shards of samples with typed columns."""

from __future__ import annotations

import bz2
import hashlib
import os
import re
import struct
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cramjam
import numpy as np
import xxhash

from shard_format import zstd
from shard_format.canonical_json import check_length, parse_foreign
from shard_format.errors import (
    BadCompression,
    BadMetadata,
    BadOffset,
    BadValue,
    ChecksumMismatch,
    DuplicateName,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    SizeMismatch,
    Truncated,
    UnknownCodec,
    UnsafePath,
    UnsupportedVersion,
)
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.safe_paths import unsafe_form
from shard_format.sources import FileSource
from shardpack.convert._naming import bytes_name, entry_name, json_value, row_key
from shardpack.values import decode_text
from shardpack.writer_set import ShardWriterSet, WrittenShards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from shardpack.writer import Output


__all__ = ["from_mds"]

_INDEX: Final = "index.json"
# A dataset of 100 000 files has an index of this size; unlike metadata, it is never compressed.
_INDEX_LIMITS: Final = Limits(max_json_bytes=100 << 20, max_json_nodes=10_000_000)
_PIECE: Final = 1 << 20


def from_mds(
    folder: str | os.PathLike[str],
    output: Output,
    *,
    columns: Iterable[str] | None = None,
    key: str | None = None,
    check: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,  # noqa: ANN401 - checked by the writer
) -> WrittenShards:
    """Make shards of an MDS dataset, sample by sample; a compressed MDS shard is in memory as a whole.

    Bytes, text, JSON, JPEG and PNG become entries as they are, arrays and raw images `.npy` entries, lists of images
    numbered entries. Numbers become metadata of the record (NaN and infinities by name). Pickles are kept as bytes and never loaded. The metadata
    of the shards lists the columns and their encodings.

    Args:
        folder: where `index.json` is.
        output: one file (a path, or an open file), or `"train-%06d.shardpack"` for a set of shards.
        columns: only these; None for all.
        key: the column that has the keys, text or numbers; None for the number of the sample.
        check: False skips the hashes that the index has for its shards.
        limits: raise `max_decompressed_bytes` for compressed shards above 1 GiB.
        options: what `ShardWriterSet` takes: `overwrite`, `max_bytes`, `compression` and so on.

    Raises:
        ShardError: the message says which file is missing or damaged.
    """
    root = os.fspath(folder)
    shards = _read_index(root)
    wanted = None if columns is None else list(columns)
    kinds = {name: encoding for shard in shards for name, encoding, _ in shard.columns}
    for name in (*(wanted or ()), *(() if key is None else (key,))):
        if name not in kinds:
            raise InvalidArgument(
                "the column does not exist",
                path=root,
                expected=", ".join(map(repr, kinds)) or "columns",
                found=repr(name),
            )
    options["metadata"] = {"mds_columns": kinds, **(options.get("metadata") or {})}
    records = 0
    with ShardWriterSet(output, **options) as writer:
        for shard in shards:
            data = _shard_bytes(shard, check, limits)
            encodings = {name: encoding for name, encoding, _ in shard.columns}
            try:
                if key is not None and key not in encodings:
                    raise BadMetadata("a shard does not have the column of the keys", entry=key)
                for sample in _samples(shard, data):
                    entries, fields = _Unique(), _Unique()
                    for name, encoding, _ in shard.columns:
                        if wanted is None or name in wanted:
                            _put(name, encoding, sample[name], entries, fields)
                    own = (
                        row_key(records) if key is None else _key(sample[key], key, encodings[key])
                    )
                    writer.write(own, entries, json_value(fields))
                    records += 1
            except ShardError as error:
                raise error.located(path=shard.raw.path) from None
    return WrittenShards(writer.paths, records)


class _Unique(dict[str, Any]):
    """A dictionary that refuses a second value for a name."""

    def __setitem__(self, name: str, value: Any) -> None:  # noqa: ANN401 - of any kind
        if name in self:
            raise DuplicateName(
                "two columns would have this name",
                entry=name,
                hint="columns=[…] leaves one out",
                command="pass --column for each of the others",
            )
        super().__setitem__(name, value)


def _key(value: memoryview, column: str, encoding: str) -> str:
    if encoding in ("str", "bytes"):
        return decode_text(value)
    fields: dict[str, Any] = {}
    _put(column, encoding, value, {}, fields)
    if column not in fields:
        raise InvalidArgument(
            "this column cannot be the key", entry=column, expected="text or numbers"
        )
    return str(fields[column])


# --- the index


def _of_type(kind: type[Any], value: object) -> Any:  # noqa: ANN401 - of that type
    """Check that a value has exactly this type and, if it is a number, is not negative.

    Raises:
        ValueError: it has not.
    """
    if type(value) is not kind or (kind is int and value < 0):  # type: ignore[operator] # a number
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    if isinstance(value, str):
        value.encode()  # JSON can hold half a character
    return value


class _StoredFile(NamedTuple):
    path: str
    size: int
    hashes: dict[str, str]


class MdsShard(NamedTuple):
    """A row of the index."""

    raw: _StoredFile
    """Uncompressed; the file may not exist."""
    compressed: _StoredFile | None
    compression: str
    samples: int
    columns: list[tuple[str, str, int]]
    """Name, encoding, and size of a value; 0 where it varies."""


def _read_index(root: str) -> list[MdsShard]:
    """The index of the dataset in this folder."""
    path = os.path.join(root, _INDEX)
    source = FileSource(path)
    try:
        check_length(source.size(), "the index", _INDEX_LIMITS)
        text = source.read_at(0, source.size())
    except ShardError as error:
        raise error.located(path=path) from None
    finally:
        source.close()
    try:
        fields = parse_foreign(text, "the index", _INDEX_LIMITS)
        return [_parse_shard(root, row) for row in fields["shards"]]
    except (BadValue, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMetadata(f"not the index of an MDS dataset: {error!r}", path=path) from None
    except ShardError as error:
        raise error.located(path=path) from None


def _parse_shard(root: str, row: dict[str, Any]) -> MdsShard:
    if row["format"] != "mds" or row["version"] != 2:
        raise UnsupportedVersion(
            "only MDS version 2 can be read",
            expected="mds 2",
            found=f"{row['format']} {row['version']}",
        )
    raw, packed = row["raw_data"], row.get("zip_data")
    names, encodings, sizes = row["column_names"], row["column_encodings"], row["column_sizes"]
    columns = [
        (_of_type(str, name), _of_type(str, encoding), 0 if size is None else _of_type(int, size))
        for name, encoding, size in zip(names, encodings, sizes, strict=True)
    ]
    return MdsShard(
        _stored_file(root, raw),
        None if packed is None else _stored_file(root, packed),
        "" if packed is None else _of_type(str, row["compression"]),
        _of_type(int, row["samples"]),
        columns,
    )


def _stored_file(root: str, row: dict[str, Any]) -> _StoredFile:
    name = row["basename"]
    reason = unsafe_form(_of_type(str, name))
    if reason is not None:
        raise UnsafePath("the index names an unsafe path", entry=name, found=reason)
    path = os.path.join(root, *name.split("/"))
    return _StoredFile(path, _of_type(int, row["bytes"]), dict(row.get("hashes") or {}))


# --- the shards


def _shard_bytes(shard: MdsShard, check: bool, limits: Limits) -> memoryview:
    """The bytes of a shard: mapped, or decompressed if only the compressed file exists."""
    raw, compressed = shard.raw, shard.compressed
    if os.path.exists(raw.path) or compressed is None:
        data = _mapped(raw.path)
    else:
        stored = _mapped(compressed.path)
        if check:
            _check_hashes(stored, compressed)
        data = memoryview(_decompress(stored, compressed.path, shard, limits))
    if len(data) != raw.size:
        raise SizeMismatch(
            "a shard does not have the size that the index states",
            path=raw.path,
            expected=f"{raw.size} bytes",
            found=f"{len(data)} bytes",
        )
    if check:
        _check_hashes(data, raw)
    return data


def _mapped(path: str) -> memoryview:
    source = FileSource(path)
    try:
        return source.view(0, source.size())
    finally:
        source.close()


def _check_hashes(data: memoryview, file: _StoredFile) -> None:
    for name, expected in file.hashes.items():
        known = hashlib if name in hashlib.algorithms_guaranteed else xxhash
        if name.startswith("shake_") or name not in (
            *hashlib.algorithms_guaranteed,
            *xxhash.algorithms_available,
        ):
            raise UnknownCodec(
                "the index has a hash of an unknown kind",
                path=file.path,
                found=repr(name),
                hint="pass check=False to read without it",
                command="",
            )
        found = getattr(known, name)(data).hexdigest()
        if found != expected:
            raise ChecksumMismatch(
                "the file is damaged", path=file.path, expected=f"{name} {expected}", found=found
            )


def _decompress(
    stored: memoryview, path: str, shard: MdsShard, limits: Limits
) -> bytes | memoryview:
    size, most = shard.raw.size, limits.max_decompressed_bytes
    if size > most:
        raise LimitExceeded(
            "a compressed shard is too large",
            path=path,
            expected=f"at most {most} bytes",
            found=f"{size} bytes",
            hint="pass limits=… if you trust it",
            command="pass --max-decompressed SIZE if you trust the file",
        )
    name = shard.compression.partition(":")[0]
    decompress = _DECOMPRESSORS.get(name)
    if decompress is None:
        raise UnknownCodec(
            "a shard has an unknown compression",
            path=path,
            expected=", ".join(_DECOMPRESSORS),
            found=repr(shard.compression),
        )
    try:
        return decompress(stored, size)
    except (
        OSError,
        ValueError,
        EOFError,
        zlib.error,
        zstd.ZstdError,
        cramjam.DecompressionError,
    ) as error:
        raise BadCompression(f"{name} cannot decode it: {error}", path=path) from None


# Each stops one byte after the size that the index states, so that a wrong size shows and memory is bounded.


def _zstd(stored: memoryview, size: int) -> bytes:
    pieces: list[bytes] = []
    missing = size + 1
    reader = zstd.open_reader(stored)
    while missing and (piece := reader.read(min(missing, _PIECE))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _into(
    decompress: Callable[[bytes, memoryview], int], stored: memoryview, size: int
) -> memoryview:
    out = np.empty(size + 1, np.uint8).data
    return out[: decompress(bytes(stored), out)]


_DECOMPRESSORS: Final[dict[str, Callable[[memoryview, int], bytes | memoryview]]] = {
    "br": partial(_into, cramjam.brotli.decompress_into),
    "bz2": lambda stored, size: bz2.BZ2Decompressor().decompress(stored, size + 1),
    "gz": lambda stored, size: zlib.decompressobj(31).decompress(stored, size + 1),
    "snappy": partial(_into, cramjam.snappy.decompress_raw_into),
    "zstd": _zstd,
}


def _samples(shard: MdsShard, data: memoryview) -> Iterator[dict[str, memoryview]]:
    """The values of each sample as bytes, by column."""
    count = shard.samples
    head = 4 * (count + 2)
    if len(data) < head:
        raise Truncated(
            "a shard is too short for its samples",
            expected=f"at least {head} bytes",
            found=f"{len(data)} bytes",
        )
    stored = np.frombuffer(data[:head], "<u4")
    offsets = stored[1:].astype(np.int64)
    if int(stored[0]) != count:
        raise SizeMismatch(
            "a shard does not have as many samples as the index states",
            expected=count,
            found=int(stored[0]),
        )
    if int(offsets[0]) < head or int(offsets[-1]) > len(data) or np.any(np.diff(offsets) < 0):
        raise BadOffset(
            "the offsets of a shard run backwards or leave it",
            expected=f"{head} to {len(data)}",
            hint="MDS wraps offsets above 4 GiB: write smaller shards",
        )
    varying = [name for name, _, size in shard.columns if not size]
    for number, (start, stop) in enumerate(
        zip(offsets.tolist(), offsets[1:].tolist(), strict=False)
    ):
        sample = data[start:stop]
        position = 4 * len(varying)
        if len(sample) < position:
            raise _short(number, start, position, len(sample))
        sizes = iter(np.frombuffer(sample[:position], "<u4").tolist())
        values: dict[str, memoryview] = {}
        for name, _, fixed in shard.columns:
            end = position + (fixed or next(sizes))
            if end > len(sample):
                raise _short(number, start, end, len(sample))
            values[name] = sample[position:end]
            position = end
        if position != len(sample):
            raise _short(number, start, position, len(sample))
        yield values


def _short(number: int, start: int, expected: int, found: int) -> SizeMismatch:
    return SizeMismatch(
        f"the values of sample {number} do not fill it",
        offset=start,
        expected=f"{expected} bytes",
        found=f"{found} bytes",
    )


# --- values

_DTYPES: Final = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
"""Types of arrays and numbers, and their codes in arrays."""
_FILES: Final = {"str": "txt", "jpeg": "jpg", "png": "png", "json": "json", "pkl": "pkl"}
"""Encodings whose values are files or text, and their suffixes."""
_DTYPE_OF_CODE: Final = {code: name for name, code in _DTYPES.items()}
# Modes of Pillow whose raw bytes are an array.
_PIXELS: Final = {
    "L": ("u1", ()),
    "RGB": ("u1", (3,)),
    "RGBA": ("u1", (4,)),
    "LA": ("u1", (2,)),
    "CMYK": ("u1", (4,)),
    "YCbCr": ("u1", (3,)),
    "HSV": ("u1", (3,)),
    "I": ("<i4", ()),
    "F": ("<f4", ()),
    "I;16": ("<u2", ()),
}
_U32: Final = struct.Struct("<I")
_AXIS: Final = re.compile("[1-9][0-9]{0,18}")
# Longer numbers would take quadratic time to parse.
_MOST_DIGITS: Final = 4096

# Numbers written as text; any other type would lose digits of a decimal.
_TEXTS: Final[dict[str, Callable[[str], Any]]] = {
    "str_int": lambda text: int(text) if -(1 << 63) <= int(text) < 1 << 64 else text,
    "str_float": float,
    "str_decimal": str,
}
# Bytes before the count, and what each item is.
_LISTS: Final = {
    "jpeg_array": (0, "jpeg"),
    "jpegarray": (0, "jpeg"),
    "list[jpeg]": (4, "jpeg"),
    "list[png]": (4, "png"),
    "list[pil]": (4, "pil"),
}


def _put(
    column: str,
    encoding: str,
    data: memoryview,
    entries: dict[str, Any],
    fields: dict[str, Any],
) -> None:
    """Put a value into the entries or the metadata of a record.

    Raises:
        InvalidArgument: MDS has no such encoding.
    """
    kind, _, settings = encoding.partition(":")
    if kind in _FILES:
        entries[entry_name(column, _FILES[kind])] = data
    elif kind == "bytes":
        entries[bytes_name(column)] = data
    elif kind == "int" or kind in _DTYPES:
        dtype = np.dtype("int64" if kind == "int" else kind).newbyteorder("<")
        if len(data) != dtype.itemsize:
            raise _wrong(column, f"{dtype.itemsize} bytes", f"{len(data)} bytes")
        fields[column] = np.frombuffer(data, dtype)[0].item()
    elif kind in _TEXTS:
        if len(data) > _MOST_DIGITS:
            raise _wrong(column, f"at most {_MOST_DIGITS} digits", len(data))
        try:
            fields[column] = _TEXTS[kind](str(data, "utf-8"))
        except ValueError as error:
            raise _wrong(column, "a number as text", str(error)) from None
    elif kind == "ndarray":
        name = entry_name(column, "npy")
        entries[name] = _parse_array(name, *_array_settings(column, encoding, settings), data)
    elif kind == "pil":
        name = entry_name(column, "npy")
        entries[name] = _parse_pixels(name, data)
    elif kind in _LISTS:
        # Entries with a number: `views.0.jpg`, `views.1.jpg`.
        skip, item_encoding = _LISTS[kind]
        for number, item in enumerate(_items(column, skip, data)):
            _put(f"{column}.{number}", item_encoding, item, entries, fields)
    else:
        raise InvalidArgument(
            "a column has an unknown encoding",
            entry=column,
            found=repr(encoding),
            hint="columns=[…] leaves it out",
            command="pass --column for each of the others",
        )


def _array_settings(
    column: str, encoding: str, settings: str
) -> tuple[str | None, tuple[int, ...] | None]:
    """Type and shape of `ndarray:float32:4`, each None where it is stored with every array."""
    dtype, colon, axes = settings.partition(":")
    numbers = axes.split(",") if colon else []
    is_shape = all(map(_AXIS.fullmatch, numbers))
    if (dtype and dtype not in _DTYPES) or not is_shape:
        raise InvalidArgument(
            "a column has an unknown encoding", entry=column, found=repr(encoding)
        )
    return dtype or None, tuple(map(int, numbers)) if colon else None


def _parse_array(
    name: str, dtype: str | None, shape: tuple[int, ...] | None, data: memoryview
) -> Any:  # noqa: ANN401 - an array of any type
    position = 0
    if dtype is None:
        dtype = _DTYPE_OF_CODE.get(data[0] if len(data) else -1)
        if dtype is None:
            raise _wrong(name, "the code of a dtype", bytes(data[:1]))
        position = 1
    if shape is None:
        if len(data) <= position:
            raise _wrong(name, "a shape", "nothing")
        axes, width = data[position] >> 2, 1 << (data[position] & 3)
        position += 1
        end = position + axes * width
        if len(data) < end:
            raise _wrong(name, f"{axes} axes", f"{len(data) - position} bytes")
        shape = tuple(np.frombuffer(data[position:end], f"<u{width}").tolist())
        position = end
    return _array(name, data[position:], dtype, shape)


def _array(name: str, data: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:  # noqa: ANN401 - an array of any type
    kind = np.dtype(dtype).newbyteorder("<")
    size = kind.itemsize
    for axis in shape:
        size *= axis
    if size != len(data):
        raise _wrong(name, f"{size} bytes of a {dtype} array {shape}", f"{len(data)} bytes")
    try:
        return np.ndarray(shape, kind, data)
    except ValueError as error:  # too many axes, or too long ones beside one of length 0
        raise _wrong(name, "an array", f"{shape}: {error}") from None


def _parse_pixels(name: str, data: memoryview) -> Any:  # noqa: ANN401 - an array of any type
    if len(data) < 12:
        raise _wrong(name, "12 bytes or more", len(data))
    width, height, mode_size = struct.unpack_from("<III", data)
    mode = bytes(data[12 : 12 + min(mode_size, 16)]).decode("ascii", "replace")
    found = _PIXELS.get(mode)
    if found is None:
        raise _wrong(name, f"an image of mode {', '.join(_PIXELS)}", repr(mode))
    dtype, channels = found
    return _array(name, data[12 + mode_size :], dtype, (height, width, *channels))


def _items(column: str, skip: int, data: memoryview) -> Iterator[memoryview]:
    """The items of a list, after some bytes to skip and their count."""
    start = skip + _U32.size
    if len(data) < start:
        raise _wrong(column, f"{start} bytes or more", len(data))
    (count,) = _U32.unpack_from(data, skip)
    position = start + _U32.size * count
    if len(data) < position:
        raise _wrong(column, f"{count} sizes", f"{len(data)} bytes")
    for number, size in enumerate(np.frombuffer(data[start:position], "<u4").tolist()):
        item = data[position : position + size]
        if len(item) != size:
            raise _wrong(column, f"item {number} of {size} bytes", f"{len(item)} bytes")
        yield item
        position += size
    if position != len(data):
        raise _wrong(column, f"an end after {position} bytes", f"{len(data)} bytes")


def _wrong(name: str, expected: object, found: object) -> BadValue:
    return BadValue("a value is damaged", entry=name, expected=expected, found=found)
