"""Values of entries: how a caller's value becomes bytes, and how bytes become a value, by content type.

`register_decoder` adds a decoder to this process. An installed package can bring one as an entry point
of the group `shardpack.decoders` (a function of the bytes) or `shardpack.source_decoders` (a function of a byte
source, for formats that are read in parts); the name of the entry point is the content type.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import json
import mmap
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, ShardError
from shard_format.extras import require
from shard_format.writer_input import as_bytes
from shardpack import _msgpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shard_format.sources import ByteSource
    from shardpack.record import Entry

__all__ = [
    "Decoder",
    "decode_image",
    "decode_json",
    "decode_npy",
    "decode_text",
    "decode_value",
    "is_costly",
    "is_read_in_parts",
    "register_decoder",
    "to_bytes",
]

Decoder: TypeAlias = Callable[[memoryview], Any]
"""Takes the content of an entry, a read-only view, and returns the value."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_NPY_MAGIC: Final = b"\x93NUMPY"
_LONGEST_NPY_HEADER: Final = 1 << 16
_NPZ_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


# --- from a value to bytes


def to_bytes(name: str, content_type: str, value: Any) -> bytes | memoryview:  # noqa: ANN401 - any value
    """Encode a value as its content type says; bytes stay as they are.

    Raises:
        InvalidArgument: the content type cannot hold this value.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview, mmap.mmap)):
        return as_bytes(name, value)
    encoder = _ENCODERS.get(content_type)
    if encoder is None:
        encoder = _encode_text if content_type.startswith("text/") else _encode_raw
    try:
        return encoder(value)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise error.located(entry=name) from None
        raise InvalidArgument(
            f"cannot store this value as {content_type}: {error}",
            entry=name,
            found=type(value).__name__,
        ) from None


def _encode_json(value: object) -> bytes:
    return _JSON.encode(value).encode("utf-8")


def _encode_text(value: object) -> bytes:
    # Class labels are written as numbers and read as text.
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, str):
        return value.encode("utf-8")
    return _refuse(value, "str or int")


def _encode_npy(value: object) -> bytes:
    array = np.asarray(value)
    if array.dtype.hasobject:
        return _refuse(value, "an array of numbers; objects would need pickle")
    in_fortran_order = array.flags.f_contiguous and not array.flags.c_contiguous
    header = _npy_header_of(array.dtype, array.shape, in_fortran_order)
    return header + array.tobytes("F" if in_fortran_order else "C")


@lru_cache(maxsize=256)
def _npy_header_of(dtype: np.dtype[Any], shape: tuple[int, ...], in_fortran_order: bool) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": in_fortran_order,
            "shape": shape,
        },
    )
    return stream.getvalue()


def _encode_npz(value: object) -> bytes:
    if not isinstance(value, dict):
        return _refuse(value, "a dictionary of arrays")
    # np.savez may store the time of day.
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for key, array in value.items():
            member = zipfile.ZipInfo(f"{key}.npy")
            archive.writestr(member, _encode_npy(array))
    return stream.getvalue()


def _encode_raw(value: object) -> bytes:
    # An array would lose its dtype and shape.
    return _refuse(value, "bytes; or a name with an ending such as .json, .txt, .npy or .npz")


def _refuse(value: object, expected: str) -> bytes:
    raise InvalidArgument(
        "this value cannot be stored under this name",
        expected=expected,
        found=type(value).__name__,
    )


_ENCODERS: Final[dict[str, Callable[[object], bytes]]] = {
    "application/json": _encode_json,
    "application/x-npy": _encode_npy,
    "application/x-npz": _encode_npz,
}


# --- from bytes to a value


def decode_value(
    entry: Entry,
    decoders: Mapping[str, Decoder] | None = None,
    source_decoders: Mapping[str, Callable[[ByteSource], Any]] | None = None,
) -> Any:  # noqa: ANN401 - any value
    """The value of an entry; the view of its bytes if no decoder knows its type.

    Args:
        entry: the entry.
        decoders: content type to function of the bytes; tried first.
        source_decoders: content type to function of a byte source; tried after registered decoders.
    """
    content_type = _plain(entry.content_type)
    own = None if decoders is None else decoders.get(content_type)
    if own is not None:
        return own(entry.data)
    found = _registered.get(content_type)
    if found is None and source_decoders is not None and content_type in source_decoders:
        found = (source_decoders[content_type], True)
    if found is None and content_type not in _BUILT_IN and not content_type.startswith("text/"):
        found = _installed().get(content_type)
    if found is not None:
        decoder, from_source = found
        function = _load(decoder) if isinstance(decoder, str) else decoder
        return function(entry.source() if from_source else entry.data)
    built_in = _BUILT_IN.get(content_type)
    if built_in is None:
        return decode_text(entry.data) if content_type.startswith("text/") else entry.data
    return built_in(entry.data, entry.max_decoded_bytes)


def register_decoder(
    content_type: str, decoder: Callable[[Any], Any] | str, *, from_source: bool = False
) -> None:
    """Make `Entry.decode` use this function for a content type, in this process.

    Args:
        content_type: such as `"image/jpeg"`; replaces the decoder that it has.
        decoder: the function, or `"package.module:function"`, which is imported when it is needed.
        from_source: True if the function takes a byte source (`Entry.source`) rather than all bytes.
    """
    if not content_type or not (callable(decoder) or isinstance(decoder, str)):
        raise InvalidArgument(
            "cannot register this decoder",
            expected="a content type and a function, or the name of a function",
            found=f"{content_type!r} and {type(decoder).__name__}",
        )
    _registered[content_type.lower()] = (decoder, from_source)


@lru_cache(maxsize=1)
def _installed() -> dict[str, tuple[str, bool]]:
    """Decoders of installed packages."""
    return {
        point.name: (point.value, from_source)
        for group, from_source in (
            ("shardpack.decoders", False),
            ("shardpack.source_decoders", True),
        )
        for point in importlib.metadata.entry_points(group=group)
    }


def is_read_in_parts(content_type: str) -> bool:
    """Whether the decoder of this type reads only what you touch of an entry."""
    plain = _plain(content_type)
    found = _registered.get(plain) or _installed().get(plain)
    return found is not None and found[1]


def is_costly(content_type: str) -> bool:
    """Whether decoding takes so long, without holding the GIL, that threads are worth it."""
    plain = _plain(content_type)
    return plain in _registered or plain in _COSTLY or plain.startswith("image/")


@lru_cache(maxsize=256)
def _plain(content_type: str) -> str:
    """Without parameters such as the charset."""
    return content_type.partition(";")[0].lower()


def _load(name: str) -> Callable[[Any], Any]:
    """Import the function that `"package.module:function"` names."""
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(
            f"the decoder {name!r} cannot be loaded: {error}", expected="'module:function'"
        ) from error
    return found


def decode_text(data: memoryview) -> str:
    """UTF-8 text."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"the text is not UTF-8: {error}") from None


def decode_json(data: memoryview, most: int) -> Any:  # noqa: ANN401 - any JSON
    """JSON, as Python's `json` module reads it."""
    try:
        return json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadValue(f"not valid JSON: {error}") from None


def decode_msgpack(data: memoryview, most: int) -> Any:  # noqa: ANN401 - any value
    """MessagePack."""
    return _msgpack.unpack(data)


def decode_npy(data: memoryview, most: int) -> NDArray[Any]:
    """An array that is a view of the entry. Pickles are refused."""
    version = bytes(data[6:8])
    width = 2 if version == b"\x01\0" else 4
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    if bytes(data[:6]) != _NPY_MAGIC or not 10 <= start <= min(len(data), _LONGEST_NPY_HEADER):
        raise BadValue("not an .npy file", found=bytes(data[:8]).hex(" "))
    shape, in_fortran_order, dtype = _npy_header(bytes(data[:start]))
    count = 1
    for length in shape:
        count *= length
    if count * dtype.itemsize != len(data) - start:
        raise BadValue(
            "an .npy file does not have the size of its array",
            expected=f"{count * dtype.itemsize} bytes after the header",
            found=f"{len(data) - start} bytes",
        )
    if not count or not dtype.itemsize:
        return np.empty(shape, dtype, "F" if in_fortran_order else "C")
    array = np.frombuffer(data, dtype, count, start)
    return array.reshape(shape, order="F" if in_fortran_order else "C")


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, order, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version in ((2, 0), (3, 0)):
            # Version 3 differs from 2 in the names of fields only, which may be UTF-8.
            shape, order, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise BadValue("unknown version of .npy", found=version)
    except (ValueError, SyntaxError, TypeError) as error:
        if isinstance(error, ShardError):
            raise
        raise BadValue(f"the header of an .npy file is damaged: {error}") from None
    if dtype.hasobject:
        raise BadValue(
            "an array of Python objects is a pickle, which this library never loads",
            found=f"dtype {dtype}",
        )
    if any(length < 0 for length in shape):
        raise BadValue("an array has a negative length", found=shape)
    return shape, order, dtype


def decode_npz(data: memoryview, most: int) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, never a pickle."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if any(member.compress_type not in _NPZ_METHODS for member in members):
                raise BadValue("an .npz file is compressed in a way that NumPy does not use")
            if total > most:
                raise LimitExceeded(
                    "an .npz file is too large to unpack",
                    expected=f"at most {most} bytes",
                    found=f"{total} bytes",
                )
            return {
                member.filename.removesuffix(".npy"): decode_npy(
                    memoryview(archive.open(member).read()), most
                )
                for member in members
            }
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        if isinstance(error, ShardError):
            raise
        raise BadValue(f"the .npz file is damaged: {error}") from None


def decode_jpeg(data: memoryview, most: int) -> NDArray[np.uint8]:
    """Pixels as height × width × 3, or height × width of a grey image."""
    try:
        simplejpeg = importlib.import_module("simplejpeg")
    except ImportError:
        return decode_image(data, most)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        _check_pixels(width, height, 3, most)
        is_grey = colours.upper() == "GRAY"
        pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
            data, colorspace="GRAY" if is_grey else "RGB"
        )
    except ValueError as error:
        if isinstance(error, ShardError):
            raise
        raise BadValue(f"the image cannot be decoded: {error}") from None
    return pixels[:, :, 0] if is_grey else pixels


# Modes whose pixels are numbers; others (palettes, CMYK and so on) become one of the last two.
_PLAIN_MODES: Final = ("L", "I;16", "I", "F", "RGB", "RGBA")


def decode_image(data: memoryview, most: int) -> NDArray[Any]:
    """Pixels as height × width × channels, or height × width of a grey image; through Pillow."""
    image_module = require("PIL.Image", "images")
    # What Pillow raises for damaged files differs by format.
    failures = (OSError, ValueError, SyntaxError, EOFError, image_module.DecompressionBombError)
    try:
        with image_module.open(io.BytesIO(data)) as image:
            width, height = image.size
            _check_pixels(width, height, 4, most)
            if image.mode not in _PLAIN_MODES:
                has_alpha = "transparency" in image.info or image.mode in ("LA", "PA")
                return np.asarray(image.convert("RGBA" if has_alpha else "RGB"))
            return np.asarray(image)
    except failures as error:
        if isinstance(error, ShardError):
            raise
        raise BadValue(f"the image cannot be decoded: {error}") from None


def _check_pixels(width: int, height: int, channels: int, most: int) -> None:
    if width * height * channels > most:
        raise LimitExceeded(
            "the image is too large to decode",
            expected=f"at most {most} bytes of pixels",
            found=f"{width} × {height} pixels",
        )


_BUILT_IN: Final[dict[str, Callable[[memoryview, int], Any]]] = {
    "application/json": decode_json,
    "application/vnd.msgpack": decode_msgpack,
    "application/x-npy": decode_npy,
    "application/x-npz": decode_npz,
    "image/bmp": decode_image,
    "image/gif": decode_image,
    "image/jpeg": decode_jpeg,
    "image/png": decode_image,
    "image/tiff": decode_image,
    "image/webp": decode_image,
}
"""Each takes the bytes and the largest value that it may make of them."""

_COSTLY: Final = frozenset(("application/x-npz",))

_registered: dict[str, tuple[Callable[[Any], Any] | str, bool]] = {}
"""Decoder, and whether it takes a source, by content type."""
