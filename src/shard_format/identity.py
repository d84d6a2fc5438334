"""What a file contains, in one number: the identity of spec/shard.md, section 12."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shard_format.canonical_json import canonical
from shard_format.errors import BadMetadata, IdentityMismatch, InvalidArgument
from shard_format.parallel import batches, for_each, thread_count
from shard_format.reader import ShardReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shard_format.sources import SourceLike

__all__ = ["IDENTITY_ENTRY", "Identity", "compute_identity", "stored_identity", "verify_identity"]

IDENTITY_ENTRY: Final = "meta/identity"

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


def identity_fields(entries: Mapping[str, str]) -> dict[str, Any]:
    """The object whose canonical JSON is hashed."""
    return {"entries": dict(entries), "leaf": "sha256", "v": 1}


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a file, with the hash of every entry that it is made of."""

    entries: Mapping[str, str]
    """SHA-256 of each entry's uncompressed bytes, by name, without `meta/identity`."""

    @property
    def text(self) -> bytes:
        """The canonical JSON, as `meta/identity` stores it."""
        return canonical(identity_fields(self.entries))

    @property
    def digest(self) -> str:
        """The identity itself: 64 hex digits."""
        return hashlib.sha256(self.text).hexdigest()

    def __str__(self) -> str:
        return self.digest


def compute_identity(
    source: SourceLike | ShardReader, *, progress: Callable[[int, int], None] | None = None
) -> Identity:
    """Reads every entry and hashes it, in parallel. The same for none, zstd and lz4.

    Args:
        source: a reader, or anything that `ShardReader` opens.
        progress: called with the bytes done and the bytes in all, never by two threads at once.
    """
    if not isinstance(source, ShardReader):
        with ShardReader(source) as reader:
            return compute_identity(reader, progress=progress)
    names = [name for name in source.names() if name != IDENTITY_ENTRY]
    sizes = [source.info(name).size for name in names]
    total = sum(sizes)
    hashes: dict[str, str] = {}
    lock = threading.Lock()
    done = 0

    def hash_run(run: list[str]) -> None:
        nonlocal done
        for name in run:
            digest = hashlib.sha256()
            for piece in source.iter_entry(name):
                digest.update(piece)
                if progress is not None:
                    with lock:
                        done += len(piece)
                        progress(done, total)
            hashes[name] = digest.hexdigest()

    for_each(
        batches(names, sizes),
        hash_run,  # type: ignore[arg-type] # slices of a list are lists
        thread_count(source.threads, total),
    )
    return Identity({name: hashes[name] for name in names})


def stored_identity(reader: ShardReader) -> Identity | None:
    """The identity that a file carries in `meta/identity`, unverified; None if it has none."""
    if IDENTITY_ENTRY not in reader:
        return None
    try:
        entries = reader.read_json(IDENTITY_ENTRY).get("entries")
    except BadMetadata as error:
        raise _malformed(reader, error.problem) from None
    if (
        not isinstance(entries, dict)
        or IDENTITY_ENTRY in entries
        or not all(isinstance(v, str) and _HEX_DIGEST.fullmatch(v) for v in entries.values())
    ):
        raise _malformed(reader, "the stored identity is not a map of entries to SHA-256 hashes")
    identity = Identity(entries)
    if identity.text != reader.read_entry(IDENTITY_ENTRY):
        raise _malformed(reader, "the stored identity is not in canonical form")
    return identity


def _malformed(reader: ShardReader, problem: str) -> IdentityMismatch:
    return IdentityMismatch(problem, path=reader.name, entry=IDENTITY_ENTRY, rule="S-IDN-1")


def verify_identity(
    source: SourceLike | ShardReader,
    expected: Identity | str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Identity:
    """Recomputes the identity and compares it; returns it if it fits.

    Args:
        source: a reader, or anything that `ShardReader` opens.
        expected: an `Identity`, or its 64 hex digits, obtained from somewhere you trust. None compares
            with what the file says about itself, which finds damage but not deliberate changes.
        progress: as for `compute_identity`.

    Raises:
        IdentityMismatch: names the first entry that is missing, unexpected or different.
    """
    if not isinstance(source, ShardReader):
        with ShardReader(source) as reader:
            return verify_identity(reader, expected, progress=progress)
    if isinstance(expected, str) and not _HEX_DIGEST.fullmatch(expected):
        raise InvalidArgument(
            "this is not an identity", expected="64 lower-case hex digits", found=repr(expected)
        )
    stored = stored_identity(source)
    if expected is None and stored is None:
        raise InvalidArgument(
            "the file has no stored identity",
            path=source.name,
            hint="pass the expected identity",
        )
    actual = compute_identity(source, progress=progress)
    for vouched in (stored, expected):
        if isinstance(vouched, Identity):
            _compare(source.name, vouched.entries, actual.entries)
    digest = expected.digest if isinstance(expected, Identity) else expected
    if digest is not None and digest != actual.digest:
        raise IdentityMismatch(
            "the content does not match the identity",
            path=source.name,
            expected=digest,
            found=actual.digest,
            rule="S-SIG-1",
        )
    return actual


def _compare(path: str, expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    for name in sorted(expected.keys() | actual.keys()):
        wanted, found = expected.get(name), actual.get(name)
        if wanted == found:
            continue
        if found is None:
            problem = "the entry is missing"
        elif wanted is None:
            problem = "the entry was not there when the identity was made"
        else:
            problem = "the entry has other content"
        raise IdentityMismatch(
            problem, path=path, entry=name, expected=wanted, found=found, rule="S-IDN-2"
        )
