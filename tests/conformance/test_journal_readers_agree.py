"""The library and the reader of the vectors' generator, which share no line, on journals that nobody wrote.

Frames of all vectors are put together anew, cut and damaged, with heads that fit: both must stop at the same byte for
the same reason.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from fastcrc import crc32
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shard_format import ShardError
from wshard import recover

if TYPE_CHECKING:
    from collections.abc import Callable

    from wshard.partial import Recovery

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
HEAD = struct.Struct("<4sBBHIIIIQI")
# The reader of the generator is slow.
LARGEST = 4096
# Where a frame breaks several rules of a run's content, any of them may be told.
CONTENT = "J-RUN-4"


class Part(NamedTuple):
    """A frame of a vector, but for what says where it stood."""

    kind: int
    codec: int
    channel: int
    entries: int
    content_size: int
    content_crc: int
    stored: bytes

    def at(self, sequence: int) -> bytes:
        """The frame with this number, and true checksums of what is stored."""
        stored_crc = crc32.iscsi(self.stored)
        size, crc = (
            (self.content_size, self.content_crc) if self.codec else (len(self.stored), stored_crc)
        )
        head = HEAD.pack(
            *(b"WSJ1", self.kind, self.codec, self.channel, self.entries, len(self.stored)),
            *(size, crc, sequence, stored_crc),
        )
        return head + struct.pack("<I", crc32.iscsi(head)) + self.stored


def parts_of(data: bytes) -> list[Part]:
    """The frames that are whole enough to be told from the next."""
    parts, at = [], 0
    while at + HEAD.size + 4 <= len(data):
        magic, kind, codec, channel, entries, size, content_size, crc, _, _ = HEAD.unpack_from(
            data, at
        )
        at += HEAD.size + 4
        stored = data[at : at + size]
        at += len(stored)
        if magic == b"WSJ1" and len(stored) == size and content_size <= LARGEST:
            parts.append(Part(kind, codec, channel, entries, content_size, crc, stored))
    return parts


JOURNALS = [
    parts_of(path.read_bytes()) for path in sorted(VECTORS.glob("*valid_journals/*.partial"))
]
PARTS = list(dict.fromkeys(part for parts in JOURNALS for part in parts))
SMALL = st.integers(0, 3)


@st.composite
def changed(draw: st.DrawFn, part: Part) -> Part:
    """A frame of another channel, or with a byte of its content changed."""
    if not part.stored or draw(st.booleans()):
        return part._replace(channel=draw(SMALL), entries=draw(SMALL))
    at = draw(st.integers(0, len(part.stored) - 1))
    byte = draw(st.sampled_from(b'\0\1"0129{}[],:atn\xff'))
    return part._replace(stored=part.stored[:at] + bytes([byte]) + part.stored[at + 1 :])


@st.composite
def journals(draw: st.DrawFn) -> bytes:
    """A vector with frames of others put in, taken out, changed or exchanged, and perhaps cut."""
    parts = list(draw(st.sampled_from(JOURNALS)))
    for _ in range(draw(SMALL)):
        at = draw(st.integers(0, len(parts)))
        how = draw(st.sampled_from(["insert", "insert", "change", "remove"]))
        if how == "insert":
            # Behind the start, where most of them can count.
            parts.insert(max(at, 1), draw(st.sampled_from(PARTS)))
        elif how == "change" and at < len(parts):
            parts[at] = draw(changed(parts[at]))
        elif how == "remove":
            del parts[at : at + 1]
    data = b"".join(part.at(number) for number, part in enumerate(parts))
    return data[: len(data) - draw(st.sampled_from([0, 0, 0, 1, 8, 39, 45]))]


@pytest.fixture(scope="module")
def read_strictly() -> Callable[[bytes], Any]:
    """The reader of the generator."""
    sys.path.insert(0, str(VECTORS))
    try:
        from _journal_reader import read_journal
    finally:
        sys.path.remove(str(VECTORS))
    return read_journal


def test_the_parts_are_many() -> None:
    assert len(PARTS) > 100
    assert {part.kind for part in PARTS} >= {1, 2, 3, 4}
    assert sum(len(parts) > 2 for parts in JOURNALS) > 80


def bring_back(journal: Path) -> Recovery | ShardError:
    try:
        return recover(journal, journal.with_name("out.wshard"), fsync=False)
    except ShardError as error:
        return error


@settings(
    max_examples=200,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=journals())
@pytest.mark.slow
def test_both_stop_at_the_same_byte_for_the_same_reason(
    data: bytes, read_strictly: Callable[[bytes], Any], tmp_path: Path
) -> None:
    strict = read_strictly(data)
    stop = strict.stop and (strict.stop.rule, strict.stop.error)
    journal = tmp_path / "e.wshard.partial"
    journal.write_bytes(data)
    result = bring_back(journal)
    if isinstance(result, ShardError):
        if strict.episode is None:
            assert stop is None or result.code == stop[1], str(result)
        else:  # a journal that can be read; its recorder broke J-CHN-4, and it cannot be saved
            assert not str(result.rule).startswith("J-"), str(result)
        return
    assert strict.episode is not None
    assert result.steps == strict.steps
    assert result.cut == strict.cut()
    assert len(data) - result.lost_bytes == strict.position
    assert (result.error is None) == (stop is None)
    if result.error is not None and stop is not None:
        assert result.error.code == stop[1] or (CONTENT == stop[0] == result.error.rule)
