"""What a vector is, and contents that several vectors use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _metadata import JsonObject

Contents = dict[str, bytes]


@dataclass(frozen=True)
class Valid:
    """A file that every reader must read."""

    name: str
    description: str
    rules: tuple[str, ...]
    data: bytes
    contents: Contents | None = None
    """What the entries must decode to; None for files that were not made here."""
    warnings: tuple[str, ...] = ()
    suffix: str = ".shard"
    has_library_output: bool = False
    """Holds bytes of the zstd library, which may differ between its versions."""
    list_entries: bool = True
    episode: JsonObject | None = None
    """For an episode: what its description must at least say; None for every other file."""


@dataclass(frozen=True)
class ValidSet:
    """An episode of several files: `file` is the one to open."""

    name: str
    description: str
    rules: tuple[str, ...]
    file: str
    files: dict[str, bytes]
    episode: JsonObject


@dataclass(frozen=True)
class InvalidEpisode:
    """A container that is fine and an episode that is not; several files make a set."""

    name: str
    description: str
    rule: str
    error: str
    when: str
    files: dict[str, bytes]
    file: str = "ep.wshard"
    touch: tuple[str, ...] = ()
    """Where the lane is that must fail, with `when` "touch"."""
    also: tuple[str, ...] = ()
    rules_also: tuple[str, ...] = field(default=())
    """Other rules that the same defect breaks."""


@dataclass(frozen=True)
class Invalid:
    """A file that every reader must reject, and when."""

    name: str
    description: str
    rule: str
    error: str
    when: str
    data: bytes
    entry: str | None = None
    span: tuple[int, int] | None = None
    """Start and length of the range to ask for, with `when` "range"."""
    also: tuple[str, ...] = ()
    """Other codes that section 15 allows, because the file cannot break one rule alone."""


@dataclass(frozen=True)
class ValidJournal:
    """A journal that is read to its end."""

    name: str
    description: str
    rules: tuple[str, ...]
    data: bytes
    told: JsonObject
    """What its description must at least say."""


@dataclass(frozen=True)
class InvalidJournal:
    """A journal that is read up to a frame that breaks a rule, or not at all."""

    name: str
    description: str
    rule: str
    error: str
    data: bytes
    stop: int
    """Where the frame starts that does not count."""
    when: str
    """"frame", or "content" where only decoding shows it."""
    also: tuple[str, ...] = ()
    rules_also: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValidPack:
    """A shard that every reader must read."""

    name: str
    description: str
    rules: tuple[str, ...]
    data: bytes
    contents: dict[str, Contents]
    """Entries by key, as they must read."""
    canonical: str | None = "write"
    """"write" where a writer gives these bytes, "copy" where one that copies stored entries does."""
    absent_keys: tuple[str, ...] = ()
    """Keys that must not be found, although something may speak for them."""
    list_entries: bool = True


@dataclass(frozen=True)
class InvalidPack:
    """A shard that breaks a rule, and when that is noticed."""

    name: str
    description: str
    rule: str
    error: str
    when: str
    data: bytes
    record: int | None = None
    """The number of the record, with `when` "record", "metadata" and "entry"."""
    entry: str | None = None
    key: str | None = None
    """What to ask for, with `when` "key"."""
    also: tuple[str, ...] = ()
    rules_also: tuple[str, ...] = ()


def numbered_lines(size: int) -> bytes:
    """`size` bytes of text that compresses well and has no two equal lines."""
    return b"".join(b"row %06d\n" % row for row in range(size // 11 + 1))[:size]


def byte_ramp(size: int) -> bytes:
    """0, 1, 2, ... modulo 256: data that shows at a glance where a slice begins."""
    return bytes(position & 0xFF for position in range(size))
