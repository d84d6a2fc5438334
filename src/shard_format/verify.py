"""Checking a file as a whole: every byte, every rule, and what is merely odd."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import DATA_ERRORS, BadProfile, ShardError, must_stop
from shard_format.findings import Finding, Report
from shard_format.layout import KNOWN_ENTRY_FLAGS, KNOWN_HEADER_FLAGS, HeaderFlag
from shard_format.parallel import batches, for_each, thread_count
from shard_format.registry import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from shard_format.reader import ShardReader

__all__ = ["Finding", "Report", "check"]

EPISODE_ENTRY: Final = "meta/episode"

# Alignment never needs this many bytes: a gap of this size holds something, or wastes space.
_LARGE_GAP = 64
_PADDING_BYTES = 1 << 20


PROFILE_CHECKS: Final[dict[int, Callable[[ShardReader], None]]] = {}
"""What a role promises, checked by the module that knows the role. A function raises `ShardError`."""


def check(reader: ShardReader, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Reads every entry, the schema section and what the role asks for; collects all findings.

    Args:
        reader: an open reader; opening has checked the structure.
        progress: called with the bytes done and the bytes in all, never by two threads at once.

    Raises:
        TransportError: the network or a server failed, which says nothing about the file.
    """
    errors, nbytes = _check_entries(reader, progress)
    for examine in (_check_schema, _check_profile):
        try:
            examine(reader)
        except ShardError as error:  # noqa: PERF203 - two of them
            if must_stop(error):
                raise
            errors.append(error.located(path=reader.name))
    findings = [Finding.from_error(error) for error in errors]
    return Report(reader.name, (*findings, *_warnings(reader)), len(reader), nbytes)


def _check_entries(
    reader: ShardReader, progress: Callable[[int, int], None] | None
) -> tuple[list[ShardError], int]:
    """What is wrong with entries, in the order of the index, and how many bytes were read."""
    names = reader.names()
    # Sizes come from the file and may lie: Python integers cannot overflow.
    sizes = reader.index["orig_size"].tolist()
    total = sum(sizes)
    stored = int(reader.header.total_file_size)
    lock = threading.Lock()
    done = 0
    found: dict[int, ShardError] = {}

    def advance(size: int) -> None:
        nonlocal done
        with lock:
            done += size
            if progress is not None:
                progress(done, total)

    def check_run(run: range) -> None:
        for number in run:
            try:
                reader.verify_entry(names[number], progress=advance)
            except ShardError as error:  # noqa: PERF203 - each entry for itself
                if must_stop(error):
                    raise
                found[number] = error

    threads = thread_count(reader.threads, stored)
    for_each(batches(range(len(names)), sizes), check_run, threads)  # type: ignore[arg-type] # slices of a range are ranges
    return [found[number] for number in sorted(found)], done


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
    yield from _gap_warnings(reader, offsets, sizes)


def _gap_warnings(
    reader: ShardReader, offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Iterator[Finding]:
    header = reader.header
    stored = np.flatnonzero(sizes)
    order = stored[np.argsort(offsets[stored], kind="stable")]
    # A schema offset that lies has been reported; here it must not lead outside the file.
    end_of_data = min(header.schema_offset or header.total_file_size, header.total_file_size)
    starts = np.concatenate(([header.data_section_offset], offsets[order] + sizes[order]))
    stops = np.concatenate((offsets[order], [end_of_data]))
    gaps = np.flatnonzero(stops > starts)
    large = gaps[(stops - starts)[gaps] >= _LARGE_GAP]
    if large.size:
        yield _warning(
            "unreferenced_bytes",
            None,
            f"{int((stops - starts)[large].sum())} bytes belong to no entry, the first at "
            f"{int(starts[large[0]])}",
        )
    for gap in gaps.tolist():
        position, stop = int(starts[gap]), int(stops[gap])
        while position < stop:
            length = min(_PADDING_BYTES, stop - position)
            if any(reader.source.read_at(position, length)):
                yield _warning(
                    "nonzero_padding",
                    None,
                    f"bytes that belong to no entry are not zero: {position}",
                )
                return
            position += length
