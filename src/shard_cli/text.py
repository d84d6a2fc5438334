"""Text for people: safe to print, fitted to a width, with sizes they can read."""

from __future__ import annotations

import unicodedata
from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_ELLIPSIS: Final = "…"


def printable(text: str) -> str:
    r"""The text with everything escaped that a terminal might obey or hide.

    Names come from files: an escape sequence could repaint the screen, a line break forge a result,
    a direction mark disguise a suffix. `str.isprintable` knows all of these.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def coverage(version: int | None) -> str:
    """What to add to an identity that covers less than those of today."""
    return " (version 1: it does not cover the role and the schema section)" if version == 1 else ""


def width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, columns: int) -> str:
    """The text in at most `width` columns; the middle of a longer text is left out, because the ends tell most."""
    if width(text) <= columns:
        return text
    room = max(columns - 1, 0)
    head = _take(text, room // 2)
    tail = _take(text[::-1], room - width(head))[::-1]
    return head + _ELLIPSIS + tail


def fit_path(text: str, columns: int) -> str:
    """A path in at most `width` columns; the start of a longer one is left out, because the end tells most."""
    if width(text) <= columns:
        return text
    tail = _take(text[::-1], max(columns - 1, 0))[::-1]
    slash = tail.find("/")
    # From a slash on, if that costs little: names of folders are read as a whole.
    return _ELLIPSIS + (tail[slash:] if 0 < slash <= len(tail) // 4 else tail)


def _take(text: str, columns: int) -> str:
    taken = 0
    for position, character in enumerate(text):
        taken += _columns(character)
        if taken > columns:
            return text[:position]
    return text


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text padded with spaces to `width` columns."""
    fill = " " * (columns - width(text))
    return fill + text if right else text + fill


def size(count: int) -> str:
    """`1.2 MiB`, in powers of two as the specification counts."""
    # The same as `shard_format.display.size`: `--help` must not import the library.
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in _UNITS:
        value /= 1024
        if value < 999.5 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def exact_size(count: int) -> str:
    """`1.2 MiB (1,234,567 bytes)`."""
    return size(count) if count < 1024 else f"{size(count)} ({count:,} bytes)"


def percent(part: int, whole: int) -> str:
    """`38%`; `-` of nothing."""
    return f"{100 * part / whole:.0f}%" if whole else "-"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 entry`, `2,000 entries`."""
    if plural is None:
        plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """`2.50 s`, `33.3 s`, `12 min 30 s`, `3 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes:02} min"


def rate(hertz: float) -> str:
    """`30 Hz`, `29.97 Hz`."""
    return f"{hertz:.5g} Hz"


def short_json(value: object) -> str:
    """A JSON value for one line: text as it is, everything else compact."""
    import json

    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
