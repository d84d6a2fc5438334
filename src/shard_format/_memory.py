"""Bytes objects that are filled in place."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

# A file may make us touch at most this many times its own size before its content has proved itself.
_TRUSTED_EXPANSION: Final = 64


def filled_bytes(size: int, stored_size: int, fill: Callable[[memoryview], None]) -> bytes:
    """New bytes whose content `fill` writes, without the copy that an array would need at the end.

    A BytesIO owns a bytes object, lends it out writable, and gives it away as it is. Its memory is touched
    at once, so that a size which the stored bytes make unlikely takes the slower way: there, memory is
    touched only as content appears.
    """
    if size == 0 or size > _TRUSTED_EXPANSION * stored_size:
        array = np.empty(size, np.uint8)
        fill(array.data)
        return array.tobytes()
    owner = _Owner()
    owner.seek(size - 1)
    owner.write(b"\0")
    with owner.getbuffer() as view:
        fill(view)
    content = owner.getvalue()
    # With a slice of the view still alive somewhere, a BytesIO gives away its spare byte as well.
    return content if len(content) == size else content[:size]


class _Owner(io.BytesIO):
    """A BytesIO that can be dropped while a traceback still holds slices of its memory."""

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()
