"""Bytes objects that are filled in place."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def filled_bytes(size: int, fill: Callable[[memoryview], None]) -> bytes:
    """New bytes whose content `fill` writes, without the copy that an array would need at the end.

    A BytesIO takes over a bytes object that nobody else holds, lends it out writable, and gives it away
    as it is. The memory comes zeroed from the system, page by page, as it is touched: a size that a file
    only claims costs nothing.
    """
    owner = _Owner(bytes(size))
    with owner.getbuffer() as view:
        fill(view)
    return owner.getvalue()


class _Owner(io.BytesIO):
    """A BytesIO that can be dropped while a traceback still holds slices of its memory."""

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()
