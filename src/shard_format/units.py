"""Numbers of bytes as people write them."""

from __future__ import annotations

import re
from typing import Final

from shard_format.errors import InvalidArgument

__all__ = ["byte_count"]

_SIZE: Final = re.compile(r"(\d{1,18})\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)


def byte_count(name: str, value: int | str) -> int:
    """A number of bytes from `4096`, `"64K"`, `"256MB"` or `"2GiB"`; units are powers of 1024.

    Raises:
        InvalidArgument: it is something else; `name` is what the error calls it.
    """
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        return int(match[1]) << 10 * " KMGT".index((match[2] or " ").upper())
    if isinstance(value, str) or value < 0:
        raise InvalidArgument(
            f"{name} must be a number of bytes", expected="4096 or '256MB'", found=repr(value)
        )
    return value
