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
import warnings
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadValue, LimitExceeded, ShardError
from shard_format.extras import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FORMATS", "decode_image"]

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
_PLAIN_MODES: Final = ("L", "I;16", "I", "F", "RGB", "RGBA")
_TILE_WIDTH: Final = 322
_TILE_LENGTH: Final = 323
# No mode has more bytes in a pixel.
_PIXEL_BYTES: Final = 4
_METADATA_WARNINGS: Final = re.compile(r"PIL\.\w+ImagePlugin")


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
    simplejpeg = _simplejpeg() if name == "Jpeg" else None
    try:
        if simplejpeg is not None:
            return _through_simplejpeg(simplejpeg, data, most)
        return _through_pillow(name, data, most)
    except ShardError:
        raise
    except Exception as error:  # noqa: BLE001 - what decoders raise for damaged files differs by format
        raise BadValue(
            f"the image cannot be decoded: {str(error) or type(error).__name__}",
            expected=f"a {name.upper()} file",
            found=f"a file that starts with {bytes(data[:8])!r}",
        ) from None


@lru_cache(maxsize=1)
def _simplejpeg() -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None


def _through_simplejpeg(simplejpeg: Any, data: memoryview, most: int) -> NDArray[np.uint8]:  # noqa: ANN401 - a module
    height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    _check_pixels(width, height, most)
    is_grey = colours.upper() == "GRAY"
    pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, colorspace="GRAY" if is_grey else "RGB"
    )
    return pixels[:, :, 0] if is_grey else pixels


def _through_pillow(name: str, data: memoryview, most: int) -> NDArray[Any]:
    plugin = require(f"PIL.{name}ImagePlugin", "images")
    _silence_pillow()
    with getattr(plugin, f"{name}ImageFile")(io.BytesIO(data)) as image:
        width, height = image.size
        _check_pixels(width, height, most)
        if name == "Tiff":
            # A tile is decoded as a whole, however small the image is.
            tags = image.tag_v2
            _check_pixels(tags.get(_TILE_WIDTH, 0), tags.get(_TILE_LENGTH, 0), most)
        if image.mode not in _PLAIN_MODES:
            has_alpha = "transparency" in image.info or image.mode in ("LA", "PA")
            return np.asarray(image.convert("RGBA" if has_alpha else "RGB"))
        return np.asarray(image)


def _check_pixels(width: int, height: int, most: int) -> None:
    if width * height * _PIXEL_BYTES > most:
        raise LimitExceeded(
            "the image is too large to decode",
            expected=f"at most {most} bytes of pixels",
            found=f"{width} × {height} pixels",
            hint="pass limits=Limits(max_decompressed_bytes=…) if you trust the file",
        )


def _silence_pillow() -> None:
    """Keep off the terminal what Pillow says about a damaged file: an error says it, or the pixels are good."""
    _silence_messages()
    # Tests and programs set filters back, so this looks each time.
    if ("ignore", None, Warning, _METADATA_WARNINGS, 0) not in warnings.filters:
        warnings.filterwarnings("ignore", module=_METADATA_WARNINGS.pattern)


@lru_cache(maxsize=1)
def _silence_messages() -> None:
    # Messages still reach a handler that the program has set up.
    logging.getLogger("PIL").addHandler(logging.NullHandler())
    # libtiff writes to stderr by itself. Where Pillow has it built in, it cannot be reached.
    library = ctypes.CDLL(require("PIL._imaging", "images").__file__)
    with contextlib.suppress(AttributeError):
        for function in (library.TIFFSetErrorHandler, library.TIFFSetWarningHandler):
            function.argtypes, function.restype = [ctypes.c_void_p], ctypes.c_void_p
            function(None)
