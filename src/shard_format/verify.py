"""Checking a file as a whole: every byte, every rule, and what is merely odd."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import DATA_ERRORS, BadProfile, ShardError, must_stop
from shard_format.findings import Finding, Report
from shard_format.layout import KNOWN_ENTRY_FLAGS, KNOWN_HEADER_FLAGS, HeaderFlag
from shard_format.parallel import batches, for_each, thread_count
from shard_format.registry import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from shard_format.reader import ShardReader

__all__ = ["Finding", "Report", "check"]

EPISODE_ENTRY: Final = "meta/episode"

# Alignment never needs this many bytes: a gap of this size holds something, or wastes space.
_LARGE_GAP = 64
_PADDING_BYTES = 1 << 20
# In the place of the row of an entry: the end of the data.
_END = -1


PROFILE_CHECKS: Final[dict[int, Callable[[ShardReader], None]]] = {}
"""What a role promises, checked by the module that knows the role. A function raises `ShardError`."""


def check(
    reader: ShardReader,
    *,
    progress: Callable[[int, int], None] | None = None,
    hashes: dict[str, str] | None = None,
) -> Report:
    """Reads every entry, the schema section and what the role asks for; collects all findings.

    Each byte is read once, and a remote file from its start to its end.

    Args:
        reader: an open reader; opening has checked the structure.
        progress: called with the bytes done and the bytes in all, never by two threads at once.
        hashes: gets the SHA-256 of each undamaged entry, for `verify_identity`.

    Raises:
        TransportError: the network or a server failed, which says nothing about the file.
    """
    gaps = _gaps(reader)
    with reader.in_order() as forward:
        errors, nbytes, padding = _check_entries(forward, gaps, progress, hashes)
        for examine in (_check_schema, _check_profile):
            try:
                examine(forward)
            except ShardError as error:  # noqa: PERF203 - two of them
                if must_stop(error):
                    raise
                errors.append(error.located(path=reader.name))
    findings = [Finding.from_error(error) for error in errors]
    warnings = [*_warnings(reader), *_gap_warnings(gaps, padding)]
    return Report(reader.name, (*findings, *warnings), len(reader), nbytes)


def _check_entries(
    reader: ShardReader,
    gaps: Mapping[int, tuple[int, int]],
    progress: Callable[[int, int], None] | None,
    hashes: dict[str, str] | None,
) -> tuple[list[ShardError], int, int | None]:
    """What is wrong with entries, in the order of the index, how many bytes they have, and where padding is not zero."""
    names = reader.names()
    order = np.argsort(reader.index["data_offset"], kind="stable")
    # Sizes come from the file and may lie: Python integers cannot overflow.
    sizes = reader.index["orig_size"][order].tolist()
    total = sum(sizes)
    stored = int(reader.header.total_file_size)
    lock = threading.Lock()
    done = 0
    found: dict[int, ShardError] = {}
    wrong_padding: list[int] = []

    def advance(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            if progress is not None:
                progress(done, total)

    def check_entry(name: str) -> None:
        digest = None if hashes is None else hashlib.sha256()
        for piece in reader.iter_verified(name):
            if digest is not None:
                digest.update(piece)
            advance(len(piece))
        if hashes is not None and digest is not None:
            hashes[name] = digest.hexdigest()

    def check_run(run: Iterable[int]) -> None:
        for number in run:
            wrong_padding.extend(_nonzero(reader, gaps.get(number, (0, 0))))
            try:
                check_entry(names[number])
            except ShardError as error:
                if must_stop(error):
                    raise
                found[number] = error

    threads = thread_count(reader.threads, stored)
    for_each(batches(order.tolist(), sizes), check_run, threads)
    wrong_padding.extend(_nonzero(reader, gaps.get(_END, (0, 0))))
    errors = [found[number] for number in sorted(found)]
    return errors, done, min(wrong_padding, default=None)


def _check_schema(reader: ShardReader) -> None:
    _ = reader.schema


def _check_profile(reader: ShardReader) -> None:
    if reader.role == Role.WSHARD:
        if EPISODE_ENTRY not in reader:
            raise BadProfile(
                f"the file has the role of an episode but no entry {EPISODE_ENTRY!r}",
                rule="S-ROL-3",
            )
        try:
            reader.read_json(EPISODE_ENTRY)
        except DATA_ERRORS as error:
            raise as_profile_error(error, "S-ROL-3") from error
    elif reader.role in PROFILE_CHECKS:
        PROFILE_CHECKS[reader.role](reader)


def as_profile_error(error: ShardError, rule: str) -> BadProfile:
    """The same problem as a broken promise of the file's role."""
    return BadProfile(
        error.problem, entry=error.entry, expected=error.expected, found=error.found, rule=rule
    )


def _warning(code: str, entry: str | None, message: str) -> Finding:
    return Finding(code, "warning", message, entry)


def _warnings(reader: ShardReader) -> Iterator[Finding]:
    header, index = reader.header, reader.index
    offsets = index["data_offset"].astype(np.int64)
    sizes = index["disk_size"].astype(np.int64)

    def name_of(rows: NDArray[Any]) -> str:
        return reader.info_name(int(rows[0]))

    wrong_hash = reader.first_wrong_name_hash()
    if wrong_hash is not None:
        yield _warning(
            "name_hash_mismatch", wrong_hash, "the stored hash is not the XXH64 of the name"
        )
    if not header.flags & HeaderFlag.CHECKSUMS.value:
        unchecked = np.flatnonzero((index["crc32c"] == 0) & (sizes > 0))
        if unchecked.size:
            yield _warning(
                "no_checksum",
                name_of(unchecked),
                f"no checksum ({unchecked.size} entries): damage would go unnoticed",
            )
    if header.alignment:
        crooked = np.flatnonzero((sizes > 0) & (offsets % header.alignment != 0))
        if crooked.size:
            yield _warning(
                "misaligned",
                name_of(crooked),
                f"not on a multiple of {header.alignment} bytes ({crooked.size} entries)",
            )
    backwards = np.flatnonzero(offsets[1:] < offsets[:-1])
    if backwards.size:
        yield _warning(
            "not_ascending",
            name_of(backwards + 1),
            "index entries are not in the order of their data: some readers refuse that",
        )
    odd_entries = np.flatnonzero(index["flags"] & np.uint16(0xFFFF ^ KNOWN_ENTRY_FLAGS))
    if any(header.reserved) or header.flags & ~KNOWN_HEADER_FLAGS or odd_entries.size:
        yield _warning(
            "nonzero_reserved",
            name_of(odd_entries) if odd_entries.size else None,
            "reserved bytes or unknown flags are set",
        )


def _gaps(reader: ShardReader) -> dict[int, tuple[int, int]]:
    """The bytes that belong to no entry, start and end, by the row of the entry that follows."""
    header, index = reader.header, reader.index
    offsets = index["data_offset"].astype(np.int64)
    sizes = index["disk_size"].astype(np.int64)
    stored = np.flatnonzero(sizes)
    order = stored[np.argsort(offsets[stored], kind="stable")]
    # A schema offset that lies is reported elsewhere; here it must not lead outside the file.
    end_of_data = min(header.schema_offset or header.total_file_size, header.total_file_size)
    starts = np.concatenate(([header.data_section_offset], offsets[order] + sizes[order]))
    stops = np.concatenate((offsets[order], [end_of_data]))
    rows = np.concatenate((order, [_END]))
    found = np.flatnonzero(stops > starts)
    spans = zip(starts[found].tolist(), stops[found].tolist(), strict=True)
    return dict(zip(rows[found].tolist(), spans, strict=True))


def _nonzero(reader: ShardReader, gap: tuple[int, int]) -> Iterator[int]:
    """Where the first part of a gap starts that is not zero."""
    for position in range(*gap, _PADDING_BYTES):
        if any(reader.source.read_at(position, min(_PADDING_BYTES, gap[1] - position))):
            yield position
            return


def _gap_warnings(gaps: Mapping[int, tuple[int, int]], padding: int | None) -> Iterator[Finding]:
    large = [(start, stop) for start, stop in gaps.values() if stop - start >= _LARGE_GAP]
    if large:
        yield _warning(
            "unreferenced_bytes",
            None,
            f"{sum(stop - start for start, stop in large)} bytes belong to no entry, the first at "
            f"{large[0][0]}",
        )
    if padding is not None:
        yield _warning(
            "nonzero_padding", None, f"bytes that belong to no entry are not zero: {padding}"
        )
