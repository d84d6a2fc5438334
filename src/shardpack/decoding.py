"""From the bytes of an entry to a value, by content type; and a registry for your own types."""

from __future__ import annotations

import importlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from shard_format._extras import require
from shard_format.errors import BadValue, InvalidArgument, LimitExceeded, ShardError
from shardpack import _msgpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from shardpack.record import Entry

__all__ = ["Decoder", "decode_entry", "is_costly", "is_read_in_parts", "register_decoder"]

Decoder: TypeAlias = Callable[[memoryview], Any]
"""Takes the content of an entry, a read-only view, and gives the value."""

# Of an .npy file: magic, version, and the width of the header's length.
_NPY_MAGIC: Final = b"\x93NUMPY"
_LONGEST_NPY_HEADER: Final = 1 << 16
_NPZ_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def decode_entry(entry: Entry, decoders: Mapping[str, Decoder] | None = None) -> Any:  # noqa: ANN401 - any value
    """The value of an entry; the view of its bytes if nobody knows its type."""
    content_type = _plain(entry.content_type)
    own: Decoder | str | None = None if decoders is None else decoders.get(content_type)
    if own is None:
        own = _registered.get(content_type)
    try:
        if own is None and content_type in _FROM_SOURCE:
            return load_by_name(_FROM_SOURCE[content_type])(entry.source())
        data = entry.data
        if own is not None:
            return (load_by_name(own) if isinstance(own, str) else own)(data)
        built_in = _BUILT_IN.get(content_type)
        if built_in is None:
            return decode_text(data) if content_type.startswith("text/") else data
        return built_in(data, entry.max_decoded_bytes)
    except ShardError as error:
        raise entry.failed(error) from None


def register_decoder(content_type: str, decoder: Decoder | str) -> None:
    """Makes `Entry.decode` use this function for a content type, in this process.

    Args:
        content_type: such as `"image/jpeg"`; replaces the decoder that it has.
        decoder: the function, or `"package.module:function"`, which is imported when it is needed.
    """
    if not content_type or not (callable(decoder) or isinstance(decoder, str)):
        raise InvalidArgument(
            "cannot register this decoder",
            expected="a content type and a function, or the name of one",
            found=f"{content_type!r} and {type(decoder).__name__}",
        )
    _registered[content_type.lower()] = decoder


def is_read_in_parts(content_type: str) -> bool:
    """Whether what an entry of this type decodes to reads only what is touched of it."""
    plain = _plain(content_type)
    return plain in _FROM_SOURCE and plain not in _registered


def is_costly(content_type: str) -> bool:
    """Whether decoding takes so long, without the interpreter, that threads are worth it."""
    plain = _plain(content_type)
    return plain in _registered or plain in _COSTLY or plain.startswith("image/")


@lru_cache(maxsize=256)
def _plain(content_type: str) -> str:
    """Without parameters such as the charset."""
    return content_type.partition(";")[0].lower()


def load_by_name(name: str) -> Callable[..., Any]:
    """The function that `"package.module:function"` names."""
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
    """JSON, as Python's own module reads it."""
    try:
        return json.loads(str(data, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadValue(f"not valid JSON: {error}") from None


def decode_msgpack(data: memoryview, most: int) -> Any:  # noqa: ANN401 - any value
    """MessagePack."""
    return _msgpack.unpack(data)


def decode_npy(data: memoryview, most: int) -> NDArray[Any]:
    """An array; a view of the entry, never a pickle."""
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
            "an array of Python objects is a pickle, which is never loaded", found=f"dtype {dtype}"
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
"""Each is told how many bytes it may make of a small entry."""

_COSTLY: Final = frozenset(("application/x-npz",))

_registered: dict[str, Decoder | str] = {}

# By name: episodes are built beside this package, not under it.
EPISODE_LOADER: Final = "wshard:load_wshard"
# These read only what is touched, and are given a source.
_FROM_SOURCE: Final = {"application/vnd.shard.episode": EPISODE_LOADER}
