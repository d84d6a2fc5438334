"""What a file contains, in one number: the identity of spec/shard.md, section 12."""

from __future__ import annotations

import hashlib
import re
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shard_format.canonical_json import canonical, check_length, parse_object
from shard_format.errors import (
    BadMetadata,
    IdentityMismatch,
    InvalidArgument,
    LimitExceeded,
    UnsupportedVersion,
)
from shard_format.parallel import batches, for_each, thread_count
from shard_format.reader import ShardReader
from shard_format.registry import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shard_format.sources import SourceLike

__all__ = ["IDENTITY_ENTRY", "Identity", "compute_identity", "stored_identity", "verify_identity"]

IDENTITY_ENTRY: Final = "meta/identity"
MANIFEST_ENTRY: Final = "meta/manifest"
VERSIONS: Final = (1, 2)
LIST_KEYS: Final = ("files", "chunks")
"""Where a manifest has its list of files."""

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a file, with the hash of every entry that it is made of."""

    entries: Mapping[str, str]
    """SHA-256 of each entry's uncompressed bytes, by name, without `meta/identity`."""
    role: int | None = None
    """The role of the file; None in version 1, which does not cover it."""
    schema: str | None = None
    """SHA-256 of the canonical schema section; None in version 1, which does not cover it."""

    @property
    def version(self) -> int:
        """2, or 1 for an identity that does not cover the role and the schema section."""
        return 1 if self.role is None else 2

    @property
    def text(self) -> bytes:
        """The canonical JSON, as `meta/identity` stores it."""
        more = {} if self.role is None else {"role": self.role, "schema": self.schema}
        fields = {"entries": dict(self.entries), "leaf": "sha256", "v": self.version}
        return canonical({**fields, **more}, None)

    @property
    def digest(self) -> str:
        """The identity itself: 64 hex digits."""
        return hashlib.sha256(self.text).hexdigest()

    def __str__(self) -> str:
        return self.digest


def schema_digest(text: bytes) -> str:
    """The hash of a canonical schema section; a file without one has the hash of `{}`."""
    return hashlib.sha256(text or b"{}").hexdigest()


def compute_identity(
    source: SourceLike | ShardReader, *, progress: Callable[[int, int], None] | None = None
) -> Identity:
    """Reads every entry and hashes it, in parallel. The same for none, zstd and lz4.

    The identity is of version 2. `Identity(found.entries)` is that of version 1, which earlier releases computed.

    Args:
        source: a reader, or anything that `ShardReader` opens.
        progress: called with the bytes done and the bytes in all, never by two threads at once.
    """
    if not isinstance(source, ShardReader):
        with ShardReader(source) as reader:
            return compute_identity(reader, progress=progress)
    return _of_version(2, source, _hash_entries(source, progress))


def _of_version(version: int, reader: ShardReader, hashes: Mapping[str, str]) -> Identity:
    if version == 1:
        return Identity(hashes)
    schema = reader.schema
    return Identity(hashes, reader.role, schema_digest(schema.to_bytes() if schema else b""))


def _hash_entries(
    source: ShardReader, progress: Callable[[int, int], None] | None
) -> dict[str, str]:
    names = [name for name in source.names_in_file() if name != IDENTITY_ENTRY]
    sizes = [source.info(name).size for name in names]
    total = sum(sizes)
    hashes: dict[str, str] = {}
    lock = threading.Lock()
    done = 0

    def advance(size: int) -> None:
        nonlocal done
        if progress is not None:
            with lock:
                done += size
                progress(done, total)

    with source.in_order() as reader:

        def hash_run(run: list[str]) -> None:
            for name in run:
                hashes[name] = _hash_entry(reader, name, advance)

        for_each(
            batches(names, sizes),
            hash_run,  # type: ignore[arg-type] # slices of a list are lists
            thread_count(reader.threads, total),
        )
    return {name: hashes[name] for name in source.names() if name != IDENTITY_ENTRY}


def _hash_entry(
    reader: ShardReader, name: str, advance: Callable[[int], None] = lambda size: None
) -> str:
    digest = hashlib.sha256()
    for piece in reader.iter_entry(name):
        digest.update(piece)
        advance(len(piece))
    return digest.hexdigest()


def stored_identity(reader: ShardReader) -> Identity | None:
    """The identity that a file carries in `meta/identity`, unverified; None if it has none."""
    if IDENTITY_ENTRY not in reader:
        return None
    limits = reader.limits
    if reader.info(IDENTITY_ENTRY).size > min(limits.max_json_bytes, limits.max_json_nodes):
        # An identity grows with the entries of the file, which are there to back it.
        characters = sum(map(len, reader.names()))
        most_bytes = 256 + 72 * len(reader) + 6 * characters
        limits = replace(
            limits,
            max_json_bytes=max(limits.max_json_bytes, most_bytes),
            max_json_nodes=max(limits.max_json_nodes, 8 + 2 * len(reader)),
        )
    try:
        check_length(reader.info(IDENTITY_ENTRY).size, "the identity", limits)
        text = reader.read_entry(IDENTITY_ENTRY)
        fields = parse_object(text, "the identity", limits)
    except LimitExceeded as error:
        raise error.located(path=reader.name, entry=IDENTITY_ENTRY) from None
    except BadMetadata as error:
        raise _malformed(reader, error.problem) from None
    version, entries = fields.get("v"), fields.get("entries")
    if type(version) is int and version not in VERSIONS:
        raise UnsupportedVersion(
            "the stored identity has an unknown version",
            path=reader.name,
            entry=IDENTITY_ENTRY,
            expected="1 or 2",
            found=str(version)[:80],
            rule="S-IDN-4",
            hint="a newer version of shard-format may read it",
        )
    role, schema = (fields.get("role"), fields.get("schema")) if version == 2 else (None, None)
    if (
        not isinstance(entries, dict)
        or IDENTITY_ENTRY in entries
        or not all(_is_hash(value) for value in entries.values())
    ):
        raise _malformed(reader, "the stored identity is not a map of entries to SHA-256 hashes")
    if version == 2 and not (type(role) is int and _is_hash(schema)):
        raise _malformed(
            reader, "the stored identity does not state a role and the hash of a schema"
        )
    identity = Identity(entries, role, schema)
    if identity.text != text:
        raise _malformed(reader, "the stored identity is not in canonical form")
    return identity


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HEX_DIGEST.fullmatch(value) is not None


def _malformed(reader: ShardReader, problem: str) -> IdentityMismatch:
    return IdentityMismatch(problem, path=reader.name, entry=IDENTITY_ENTRY, rule="S-IDN-1")


def verify_identity(
    source: SourceLike | ShardReader,
    expected: Identity | str | None = None,
    *,
    version: int | None = None,
    hashes: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Identity:
    """Recomputes the identity and compares it; returns it if it matches.

    The result says which version matches. Version 1 does not cover the role and the schema section: in a file that
    others could change, do not rely on them.

    Args:
        source: a reader, or anything that `ShardReader` opens.
        expected: an `Identity`, or its 64 hex digits, obtained from somewhere you trust. None compares
            with what the file says about itself, which finds damage but not deliberate changes.
        version: the version of the 64 hex digits, if you know it.
        hashes: the SHA-256 of each entry, as `shard_format.verify.check` has found them now; None reads them.
        progress: as for `compute_identity`.

    Raises:
        IdentityMismatch: names the first entry that is missing, unexpected or different; or a manifest has a
            list of files that the identity does not cover.
    """
    if not isinstance(source, ShardReader):
        with ShardReader(source) as reader:
            return verify_identity(
                reader, expected, version=version, hashes=hashes, progress=progress
            )
    if isinstance(expected, str) and not _is_hash(expected):
        raise InvalidArgument(
            "this is not an identity", expected="64 lower-case hex digits", found=repr(expected)
        )
    if version is not None and version not in VERSIONS:
        raise InvalidArgument("unknown version of identities", expected="1 or 2", found=version)
    stored = stored_identity(source)
    if expected is None and stored is None:
        raise InvalidArgument(
            "the file has no stored identity",
            path=source.name,
            hint="pass the expected identity",
        )
    if hashes is None:
        hashes = _hash_entries(source, progress)
    else:
        hashes = {name: hashes[name] for name in source.names() if name != IDENTITY_ENTRY}
    actual = Identity(hashes)
    for vouched in (stored, expected):
        if isinstance(vouched, Identity):
            actual = _of_version(vouched.version, source, hashes)
            _compare(source.name, vouched, actual)
    if isinstance(expected, str):
        # The hashed text has its version, so the digits fit one version at most.
        for candidate in VERSIONS if version is None else (version,):
            actual = _of_version(candidate, source, hashes)
            if actual.digest == expected:
                break
        else:
            raise IdentityMismatch(
                "the content does not match the identity",
                path=source.name,
                expected=expected,
                found=f"{actual.digest} (version {actual.version})",
                rule="S-SIG-1",
            )
    check_manifest(source, actual)
    return actual


def schema_manifest(reader: ShardReader) -> dict[str, Any] | None:
    """The manifest in the schema section of a file; None without one."""
    schema = reader.schema
    fields = None if schema is None else schema.fields.get("manifest")
    return fields if isinstance(fields, dict) else None


def check_manifest(reader: ShardReader, identity: Identity) -> None:
    """S-MAN-7: what a manifest lists is what its identity covers, in an entry.

    Raises:
        IdentityMismatch: the file became a manifest after the identity was made, or its list of files was changed.
    """
    if reader.role != Role.MANIFEST:
        return
    has_entry = MANIFEST_ENTRY in reader
    found = _hash_entry(reader, MANIFEST_ENTRY) if has_entry else None
    section = schema_manifest(reader) or {}
    listed = {key: section[key] for key in LIST_KEYS if key in section}
    if identity.role not in (None, reader.role):
        problem = "the file was not a manifest when the identity was made"
    elif found != identity.entries.get(MANIFEST_ENTRY):
        problem = f"the entry {MANIFEST_ENTRY!r} is not the one that the identity covers"
    elif listed and not (has_entry and listed.items() <= reader.read_json(MANIFEST_ENTRY).items()):
        problem = f"the schema section lists files that the entry {MANIFEST_ENTRY!r} does not list"
    else:
        return
    raise IdentityMismatch(
        problem,
        path=reader.name,
        expected=f"the list of files in the entry {MANIFEST_ENTRY!r} only",
        rule="S-MAN-7",
        hint="get the manifest again from its author; if it is yours, write it with Manifest.write",
    )


def _compare(path: str, vouched: Identity, present: Identity) -> None:
    for what, said, is_now in (
        ("role", vouched.role, present.role),
        ("schema section", vouched.schema, present.schema),
    ):
        if said != is_now:
            raise IdentityMismatch(
                f"the {what} is not the one that the identity covers",
                path=path,
                expected=said,
                found=is_now,
                rule="S-IDN-2",
            )
    expected, actual = vouched.entries, present.entries
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
