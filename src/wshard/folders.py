"""Folders of episodes: their files in order, and names that are free."""

from __future__ import annotations

import os
import re
from typing import Final

from shard_format.errors import ShardIOError
from wshard.journal import PARTIAL_SUFFIX

SUFFIX: Final = ".wshard"
_DIGITS = re.compile(r"([0-9]+)")
_LAST_DIGITS = re.compile(r"[0-9]+$")


def in_order(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people count: `ep_9` before `ep_10`."""
    return [
        (0, int(part), "") if _DIGITS.fullmatch(part) else (1, 0, part)
        for part in _DIGITS.split(name)
    ]


def following(name: str | None) -> str:
    """A name that comes after another one, and after all that this one comes after."""
    if name is None:
        return "000000"
    found = _LAST_DIGITS.search(name)
    if found is None:
        return f"{name}-000001"
    digits = found[0]
    return name[: found.start()] + str(int(digits) + 1).zfill(len(digits))


def reserve(path: str) -> bool:
    """Puts an empty journal where the episode will be recorded; False if that name is taken.

    Of many processes that try the same name one gets it.
    """
    partial = path + PARTIAL_SUFFIX
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False  # somebody records it, or it waits to be recovered
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot record", partial) from error
    # Looked for now: it may have been finished since, and its journal removed.
    if os.path.exists(path):
        os.unlink(partial)
        return False
    return True


def is_being_recorded(partial: str) -> bool:
    """Whether a process holds the lock of a journal (J-4)."""
    try:
        import fcntl
    except ImportError:  # Windows does not let go of a file that is written
        return True
    try:
        descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
