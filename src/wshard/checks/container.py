"""The files behind an episode: every byte against its checksum, sizes, identity, flags of ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format import verify
from shard_format.errors import IdentityMismatch, ShardError, SizeMismatch
from shard_format.identity import IDENTITY_ENTRY, compute_identity, verify_identity
from shard_format.manifest import Manifest
from shard_format.registry import Role
from wshard.metadata import parse_facts
from wshard.names import (
    DONE,
    META_EPISODE,
    META_SIDECAR,
    META_WSHARD,
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shard_format import ShardReader
    from wshard.checks.finding import ExamineOptions, Findings

__all__ = ["check_file", "check_sidecars", "content_bytes"]

_ITEM_BYTES: Final = {REWARD: 4, DONE: 1, TERMINATED: 1, TRUNCATED: 1, TICKS: 4, TIMESTAMPS: 8}


def content_bytes(reader: ShardReader) -> int:
    """Bytes of all entries, uncompressed; sizes may lie, so in whole numbers of any size."""
    total = 0
    for size in reader.index["orig_size"].tolist():
        total += size
    return total


def check_file(
    reader: ShardReader,
    options: ExamineOptions,
    found: Findings,
    advance: Callable[[int], None],
) -> None:
    """What one file breaks by itself, whatever its values mean."""
    done = 0

    def progress(so_far: int, _: int) -> None:
        nonlocal done
        advance(so_far - done)
        done = so_far

    if options.check_container:
        with found.guard():
            report = verify.check(reader, progress=progress)
            for broken in report.errors:
                found.add_error(broken.error)
            for odd in report.warnings:
                found.add_warned(odd.code, odd.entry, odd.message, reader.name)
    has_identity = options.check_identity and IDENTITY_ENTRY in reader
    # Damaged entries have been named; their hashes would only repeat it.
    if has_identity and not found.damaged & set(reader.names()):
        with found.guard(IDENTITY_ENTRY):
            verify_identity(reader)
    if reader.role == Role.MANIFEST:
        with found.guard():
            for problem in Manifest.read(reader).iter_problems():
                found.add_error(problem, rule="W-CHK-7")
    if reader.role == Role.WSHARD and META_SIDECAR not in reader:
        with found.guard():
            _check_flat_lanes(reader, found)


def _check_flat_lanes(reader: ShardReader, found: Findings) -> None:
    """W-END and W-TIM-2: also of blocks that readers pass over because another one outranks them."""
    try:
        wshard = reader.read_json(META_WSHARD) if META_WSHARD in reader else {}
        length = parse_facts(reader.read_json(META_EPISODE), wshard).length
    except ShardError:
        return  # opening has said so
    for name, item in _ITEM_BYTES.items():
        if name not in reader:
            continue
        size = reader.info(name).size
        if size not in (0, length * item):
            rule = "W-TIM-2" if name.startswith("time/") else "W-END-1"
            found.add_error(
                SizeMismatch(
                    "the block does not fit the length of the episode",
                    path=reader.name,
                    entry=name,
                    expected=f"{length * item} bytes for {length} steps",
                    found=f"{size} bytes",
                    rule=rule,
                )
            )
    flags = {
        name: _flags(reader, name)
        for name in (DONE, TERMINATED, TRUNCATED)
        if name in reader and name not in found.damaged
    }
    done = flags.pop(DONE, None)
    known = [values for values in flags.values() if len(values)]
    if done is None or not len(done) or not known:
        return
    union = np.logical_or.reduce(known)
    wrong = np.flatnonzero(done != union)
    if wrong.size:
        step = int(wrong[0])
        names = " or ".join(name for name, values in flags.items() if len(values))
        found.add(
            "bad_value",
            f"'done' is not the union of {names} at {wrong.size} of {length} steps, the first "
            f"{step}: {bool(done[step])} where {names} says {bool(union[step])}",
            block=DONE,
            step=step,
            count=int(wrong.size),
            severity="error",
            advice="write terminated and truncated, and let the writer make done of them",
            rule="W-END-3",
        )


def _flags(reader: ShardReader, name: str) -> NDArray[np.bool_]:
    return np.frombuffer(reader.read_entry(name), np.uint8).astype(np.bool_)


def check_sidecars(
    base: ShardReader, sidecars: Sequence[ShardReader], options: ExamineOptions, found: Findings
) -> None:
    """W-SID-4: what sidecars say about the identity of the episode they belong to."""
    if not sidecars or not options.check_identity:
        return
    with found.guard():
        actual = compute_identity(base).digest
        for sidecar in sidecars:
            if sidecar.name not in found.damaged_files:
                with found.guard(META_SIDECAR):
                    _compare_identity(sidecar, actual)


def _compare_identity(sidecar: ShardReader, actual: str) -> None:
    stated = sidecar.read_json(META_SIDECAR, rule="W-SID-1").get("base")
    identity = stated.get("identity") if isinstance(stated, dict) else None
    if identity != actual:
        raise IdentityMismatch(
            "the sidecar was made for an episode with another content",
            path=sidecar.name,
            entry=META_SIDECAR,
            expected=actual,
            found=identity,
            rule="W-SID-4",
            hint="run the model again on this episode, and write its lanes anew",
        )
