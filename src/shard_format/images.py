"""Images as arrays. Only the decoder of the stated format ever sees the bytes of a file.

`PIL.Image.open` chooses among all formats that Pillow knows by looking at the content. One of them is PostScript, for
which it starts Ghostscript, so this module calls the reader of a format itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import logging
import re
import struct
import warnings
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue, LimitExceeded, ShardError
from shard_format.extras import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FORMATS", "decode_image", "image_size"]

FORMATS: Final = {
    "image/bmp": "Bmp",
    "image/gif": "Gif",
    "image/jpeg": "Jpeg",
    "image/png": "Png",
    "image/tiff": "Tiff",
    "image/webp": "WebP",
}
"""Content types of images that can be decoded, and what Pillow calls them."""
# Modes whose pixels are numbers; others (palettes, CMYK and so on) become one of the last two.
_PLAIN_MODES: Final = ("L", "I;16", "I;16B", "I", "F", "RGB", "RGBA")
_TILE_WIDTH: Final = 322
_TILE_LENGTH: Final = 323
# No mode has more bytes in a pixel.
_PIXEL_BYTES: Final = 4
_METADATA_WARNINGS: Final = re.compile(r"PIL\.\w+ImagePlugin")
# What Pillow's readers call with the size of an image, where they check it.
_PILLOW_CHECK: Final = "_decompression_bomb_check"
# Each scan of a JPEG file can take 90 bytes and a pass over all pixels. Encoders write about ten.
_MOST_SCANS: Final = 100
_START_OF_SCAN: Final = b"\xff\xda"
_JPEG_MARKER: Final = re.compile(rb"\xff([^\x00\xff])")
# Markers without a length.
_BARE_MARKERS: Final = frozenset(bytes([code]) for code in (0x01, *range(0xD0, 0xD9)))
_END_OF_IMAGE: Final = b"\xd9"
# Markers of a frame, behind which the size is; the other three of this range are tables.
_JPEG_FRAMES: Final = frozenset(
    bytes([code]) for code in range(0xC0, 0xD0) if code not in (0xC4, 0xC8, 0xCC)
)
_PNG_HEAD: Final = b"\x89PNG\r\n\x1a\n"
# Where the size of an image must be.
_MOST_HEAD: Final = 1 << 20

_most_bytes: ContextVar[int | None] = ContextVar("_most_bytes", default=None)
"""The limit of the image that this thread is decoding."""


def decode_image(content_type: str, data: memoryview, most: int) -> NDArray[Any]:
    """Pixels as height × width × channels, or height × width of a grey image.

    Args:
        content_type: one of `FORMATS`.
        data: the file.
        most: the most bytes of pixels, compared with the stated size before anything is decoded.

    Raises:
        BadValue: the content is damaged, or of another format.
        LimitExceeded: the image is too large.
    """
    name = FORMATS.get(content_type)
    if name is None:
        raise BadValue(
            "not an image of a format that can be decoded",
            expected=", ".join(FORMATS),
            found=f"{content_type}, starting with {bytes(data[:8])!r}",
        )
    try:
        if name == "Jpeg":
            _check_scans(data)
            simplejpeg = _simplejpeg()
            # What it refuses may be damaged, or only unusual. Pillow decides, as where simplejpeg is missing.
            with contextlib.suppress(ValueError):
                if simplejpeg is not None:
                    return _through_simplejpeg(simplejpeg, data, most)
        token = _most_bytes.set(most)
        try:
            return _through_pillow(name, data, most)
        finally:
            _most_bytes.reset(token)
    except (ShardError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - what decoders raise for damaged files differs by format
        raise BadValue(
            f"the image cannot be decoded: {str(error) or type(error).__name__}",
            expected=f"a {name.upper()} file",
            found=f"a file that starts with {bytes(data[:8])!r}",
        ) from None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height that a JPEG or PNG file states; None for anything else. Decodes nothing."""
    if data.startswith(_PNG_HEAD) and data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    head, at = data[:_MOST_HEAD], 2
    while head[at : at + 1] == b"\xff" and at + 9 <= len(head):
        marker = head[at + 1 : at + 2]
        if marker == b"\xff":  # a byte that fills
            at += 1
        elif marker in _BARE_MARKERS:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        else:
            at += 2 + max(2, int.from_bytes(head[at + 2 : at + 4], "big"))
    return None


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _through_simplejpeg(simplejpeg: Any, data: memoryview, most: int) -> NDArray[np.uint8]:  # noqa: ANN401 - a module
    height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    _check_pixels(width, height, most)
    if colours.upper() not in ("GRAY", "RGB", "YCBCR"):
        raise ValueError("inks, which Pillow rounds differently")
    is_grey = colours.upper() == "GRAY"
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, colorspace="GRAY" if is_grey else "RGB"
    )
    return pixels[:, :, 0] if is_grey else pixels


def _through_pillow(name: str, data: memoryview, most: int) -> NDArray[Any]:
    plugin = require(f"PIL.{name}ImagePlugin", "images")
    _set_up_pillow()
    with getattr(plugin, f"{name}ImageFile")(io.BytesIO(data)) as image:
        width, height = image.size
        _check_pixels(width, height, most)
        if name == "Tiff":
            # A tile is decoded as a whole, however small the image is. A tag can have any type.
            wide, long = (image.tag_v2.get(tag, 0) for tag in (_TILE_WIDTH, _TILE_LENGTH))
            if not isinstance(wide, int) or not isinstance(long, int):
                raise ValueError("the size of a tile is not a number")
            _check_pixels(wide, long, most)
        if image.mode not in _PLAIN_MODES:
            has_alpha = "transparency" in image.info or image.mode in ("LA", "PA")
            return np.asarray(image.convert("RGBA" if has_alpha else "RGB"))
        pixels = np.asarray(image)
        if name == "Png" and image.mode == "I":  # what older versions of Pillow call 16 bits
            return pixels.astype(np.uint16)
        return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height * _PIXEL_BYTES > most:
        raise LimitExceeded(
            "the image is too large to decode",
            expected=f"at most {most} bytes of pixels",
            found=f"{width} × {height} pixels",
            hint="pass limits=Limits(max_decompressed_bytes=…) if you trust the file",
        )


def _check_scans(data: memoryview) -> None:
    """Refuse a JPEG file that takes many passes over its pixels."""
    content = bytes(data)
    if content.count(_START_OF_SCAN) <= _MOST_SCANS:  # also counts other bytes
        return
    scans, marker = 0, _JPEG_MARKER.search(content)
    while marker is not None and marker[1] != _END_OF_IMAGE:
        scans += marker[1] == _START_OF_SCAN[1:]
        position = marker.end()
        if marker[1] not in _BARE_MARKERS:
            position += max(2, int.from_bytes(content[position : position + 2], "big"))
        marker = _JPEG_MARKER.search(content, position)
    if scans > _MOST_SCANS:
        raise LimitExceeded(
            "the image takes too long to decode",
            expected=f"at most {_MOST_SCANS} scans",
            found=f"{scans} scans",
            hint="save the image again, with fewer scans",
        )


def _set_up_pillow() -> None:
    """Let our limit replace Pillow's while this module decodes, and keep off the terminal what Pillow says.

    What it says about a damaged file, an error says, too; otherwise the pixels are good.
    """
    _set_up_functions()
    # Tests and programs set filters back, so this looks each time.
    if ("ignore", None, Warning, _METADATA_WARNINGS, 0) not in warnings.filters:
        warnings.filterwarnings("ignore", module=_METADATA_WARNINGS.pattern)


def _own_check_beside(pillow_check: Any) -> Any:  # noqa: ANN401 - functions of any version of Pillow
    """A check of sizes with our limit while this module decodes in that thread, and Pillow's own otherwise.

    Pillow's limit is one number for the process, and readers of some formats apply it themselves. Setting the number
    would change it for images that other threads open. This changes nothing for them.
    """

    def check(size: tuple[int, int], **options: Any) -> None:  # noqa: ANN401 - as in Pillow
        most = _most_bytes.get()
        if most is None:
            pillow_check(size, **options)
        else:
            _check_pixels(*size, most)

    return check


@lru_cache(maxsize=1)
def _set_up_functions() -> None:
    # Messages still reach a handler that the program has set up.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    image = require("PIL.Image", "images")
    pillow_check = getattr(image, _PILLOW_CHECK, None)
    if pillow_check is not None:
        setattr(image, _PILLOW_CHECK, _own_check_beside(pillow_check))
    # libtiff writes to stderr by itself. Where Pillow has it built in (on Windows), it cannot be reached, and
    # redirecting stderr would take away what other threads write.
    library = ctypes.CDLL(require("PIL._imaging", "images").__file__)
    with contextlib.suppress(AttributeError):
        for function in (library.TIFFSetErrorHandler, library.TIFFSetWarningHandler):
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
            function(None)
