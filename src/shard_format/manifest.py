"""Manifests: files that name other files (spec/shard.md, section 11)."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from shard_format.canonical_json import canonical
from shard_format.errors import (
    DATA_ERRORS,
    BadMetadata,
    InvalidArgument,
    MissingFile,
    ReferenceMismatch,
    ShardError,
    UnsafePath,
    shorten,
)
from shard_format.identity import (
    LIST_KEYS,
    MANIFEST_ENTRY,
    check_manifest,
    schema_manifest,
    stored_identity,
)
from shard_format.opening import open_source
from shard_format.reader import ShardReader
from shard_format.registry import ContentType, Role
from shard_format.safe_paths import too_long, unsafe_form
from shard_format.sequential import SequentialSource
from shard_format.sources import is_url
from shard_format.verify import PROFILE_CHECKS, as_profile_error
from shard_format.writer import ShardWriter, WriterOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shard_format.sources import ByteSource, SourceLike

__all__ = ["MANIFEST_ENTRY", "FileReference", "Manifest"]

_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HASH_BYTES = 1 << 20
# Characters that a URL has unescaped.
_PLAIN = "/ !$&'()*+,;=:@[]{}~"
# The fields of a row that have a meaning: what each must be, and whether it is. The values may come from a file.
_KNOWN_KEYS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "uri": (
        "a non-empty string",
        lambda uri: isinstance(uri, str) and uri != "" and "\0" not in uri,
    ),
    "sha256": (
        "64 lower-case hex digits",
        lambda text: text is None or (isinstance(text, str) and bool(_HEX_DIGEST.fullmatch(text))),
    ),
    "size": (
        "an integer of 0 or more",
        lambda size: size is None or (type(size) is int and size >= 0),
    ),
    "start_key": ("a string", lambda key: isinstance(key, (str, type(None)))),
    "end_key": ("a string", lambda key: isinstance(key, (str, type(None)))),
}


@dataclass(frozen=True, slots=True)
class FileReference:
    """One file that a manifest names."""

    uri: str
    """Where it is, relative to the manifest's folder."""
    sha256: str | None = None
    """SHA-256 of the whole file."""
    size: int | None = None
    """Bytes of the whole file."""
    start_key: str | None = None
    """First key that the file holds."""
    end_key: str | None = None
    """Last key that the file holds."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Any other fields; they are kept."""

    def __post_init__(self) -> None:
        for key, (expected, is_right) in _KNOWN_KEYS.items():
            if not is_right(getattr(self, key)):
                raise BadMetadata(
                    f"{key!r} is not what it must be",
                    expected=expected,
                    found=repr(getattr(self, key))[:80],
                    rule="S-MAN-2",
                )

    @classmethod
    def to_file(
        cls,
        path: str | os.PathLike[str],
        *,
        relative_to: str | os.PathLike[str],
        start_key: str | None = None,
        end_key: str | None = None,
        **extra: Any,  # noqa: ANN401 - any JSON
    ) -> FileReference:
        """A reference to a file as it is now: hashes it and takes its size.

        Args:
            path: the file.
            relative_to: the folder where the manifest will be.
            start_key: first key that the file holds.
            end_key: last key that the file holds.
            extra: any other fields.
        """
        with closing(open_source(path)) as source:
            digest, size = _hash(source), source.size()
        uri = os.path.relpath(path, relative_to).replace(os.sep, "/")
        return cls(uri, digest, size, start_key, end_key, extra)

    def to_fields(self) -> dict[str, Any]:
        """The row as JSON has it."""
        known = {key: getattr(self, key) for key in _KNOWN_KEYS}
        return {**self.extra, **{key: value for key, value in known.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files that a manifest names, and its other fields."""

    files: Sequence[FileReference]
    """The references, in order."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All other fields of the object; they are kept."""
    folder: str | None = None
    """Where references are resolved: a path or a URL; None for a manifest that was read from neither."""
    list_key: str = "files"
    """The key of the list: `files`, or `chunks` in WShard chunk manifests."""

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for reference in self.files:
            if reference.uri in seen:
                raise BadMetadata(f"the manifest names {reference.uri!r} twice", rule="S-MAN-2")
            seen.add(reference.uri)

    # --- reading and writing

    @classmethod
    def read(cls, source: SourceLike | ShardReader) -> Manifest:
        """The manifest in a file of role 4.

        Raises:
            BadMetadata: the file is not a manifest, or its manifest is malformed.
            IdentityMismatch: the file carries an identity that does not cover the list of files.
        """
        if not isinstance(source, ShardReader):
            with ShardReader(source) as reader:
                return cls.read(reader)
        try:
            if source.role != Role.MANIFEST:
                raise BadMetadata(
                    "the file is not a manifest", expected="role 4", found=f"role {source.role}"
                )
            identity = stored_identity(source)
            if identity is not None:
                check_manifest(source, identity)
            fields = _manifest_fields(source)
            return cls._from_fields(fields, _folder_of(source.name))
        except ShardError as error:
            raise error.located(path=source.name) from None

    @classmethod
    def _from_fields(cls, fields: dict[str, Any], folder: str | None) -> Manifest:
        list_key = next((key for key in LIST_KEYS if key in fields), None)
        rows = None if list_key is None else fields[list_key]
        if list_key is None or not isinstance(rows, list):
            raise BadMetadata(
                "the manifest has no list of files",
                expected="a list under 'files'",
                found=type(rows).__name__,
                rule="S-MAN-1",
            )
        others = {key: value for key, value in fields.items() if key != list_key}
        references = [_parse_reference(number, row) for number, row in enumerate(rows)]
        return cls(references, others, folder, list_key)

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the manifest as a file of role 4. Arguments as for `ShardWriter`.

        Raises:
            InvalidArgument: a reference has no `sha256` or `size` (S-MAN-6).
        """
        for reference in self.files:
            if reference.sha256 is None or reference.size is None:
                raise InvalidArgument(
                    f"the reference to {reference.uri!r} has no sha256 and size",
                    rule="S-MAN-6",
                    hint="make it with FileReference.to_file",
                )
        text = canonical(
            {**self.fields, self.list_key: [reference.to_fields() for reference in self.files]}
        )
        options = WriterOptions(storage_options=storage_options)
        with ShardWriter(
            path, role=Role.MANIFEST, reserve=[MANIFEST_ENTRY], fsync=fsync, options=options
        ) as writer:
            writer.write_entry(MANIFEST_ENTRY, text, content_type=ContentType.JSON)

    # --- the files behind it

    def resolve(self, reference: FileReference, *, allow_outside: bool = False) -> str:
        """The path of a referenced file, or its URL if the manifest was read from one.

        Args:
            reference: one of `files`.
            allow_outside: True follows absolute paths and paths that leave the manifest's folder; not at a URL.

        Raises:
            UnsafePath: the path leaves the folder, also through a symbolic link.
        """
        uri = reference.uri
        if _SCHEME.match(uri) or "\\" in uri:
            raise _unsafe(uri, "it is not a plain relative path", self.folder)
        if (reason := too_long(uri)) is not None:
            raise _unsafe(uri, reason, self.folder)
        if self.folder is None:
            raise InvalidArgument(
                f"cannot resolve {uri!r}: the manifest was not read from a file or a URL"
            )
        if is_url(self.folder):
            if (reason := unsafe_form(uri)) is not None:
                raise _unsafe(uri, reason, self.folder)
            return f"{self.folder}/{quote(uri, safe=_PLAIN)}"
        joined = os.path.join(self.folder, uri)
        if allow_outside:
            return os.path.normpath(joined)
        if os.path.isabs(uri):
            raise _unsafe(uri, "it is absolute", self.folder)
        folder = os.path.realpath(self.folder)
        resolved = os.path.realpath(joined)
        if os.path.commonpath((folder, resolved)) != folder or resolved == folder:
            raise _unsafe(uri, f"it leads to {resolved}", self.folder)
        return resolved

    def verify(
        self,
        *,
        allow_outside: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Checks that every referenced file is there and unchanged.

        Raises:
            UnsafePath, MissingFile, ReferenceMismatch: the first problem found.
        """
        for problem in self.iter_problems(allow_outside=allow_outside, progress=progress):
            raise problem

    def iter_problems(
        self,
        *,
        allow_outside: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[ShardError]:
        """What is wrong with the referenced files, one error for each that has a problem."""
        total = sum(reference.size or 0 for reference in self.files)
        done = 0
        for reference in self.files:
            try:
                self.verify_file(self.resolve(reference, allow_outside=allow_outside), reference)
            except ShardError as error:
                yield error
            done += reference.size or 0
            if progress is not None:
                progress(done, total)

    def verify_file(self, path: str, reference: FileReference) -> None:
        """Compares one file with what the manifest says about it: size, then SHA-256.

        Raises:
            MissingFile, ReferenceMismatch: it is not there, or not the same.
        """
        try:
            source = open_source(path)
        except (InvalidArgument, IsADirectoryError):
            raise ReferenceMismatch(
                "what the manifest names is not a regular file", path=path, rule="S-MAN-5"
            ) from None
        except FileNotFoundError:
            raise MissingFile(
                "a file that the manifest names is missing", path=path, rule="S-MAN-5"
            ) from None
        expected: object
        found: object
        with closing(source):
            what, expected, found = "size", reference.size, source.size()
            # A file of the wrong size need not be read to know that it is wrong.
            if reference.sha256 is not None and expected in (None, found):
                what, expected, found = "SHA-256", reference.sha256, _hash(source)
        if expected not in (None, found):
            raise ReferenceMismatch(
                f"the {what} is not what the manifest says",
                path=path,
                expected=expected,
                found=found,
                rule="S-MAN-5",
            )


def _manifest_fields(reader: ShardReader) -> dict[str, Any]:
    if MANIFEST_ENTRY in reader:
        return reader.read_json(MANIFEST_ENTRY, rule="S-MAN-1")
    fields = schema_manifest(reader)
    if fields is None:
        raise BadMetadata(
            "the file holds no manifest",
            expected=f"an entry {MANIFEST_ENTRY!r} or a manifest in the schema section",
            rule="S-MAN-1",
        )
    return fields


def _parse_reference(number: int, row: object) -> FileReference:
    if not isinstance(row, dict):
        raise BadMetadata(
            f"row {number} of the manifest is not an object",
            found=type(row).__name__,
            rule="S-MAN-1",
        )
    extra = {key: value for key, value in row.items() if key not in _KNOWN_KEYS}
    try:
        known: dict[str, Any] = {key: row.get(key) for key in _KNOWN_KEYS}
        return FileReference(**known, extra=extra)
    except BadMetadata as error:
        error.problem = f"row {number} of the manifest: {error.problem}"
        raise


def _unsafe(uri: str, why: str, folder: str | None) -> UnsafePath:
    return UnsafePath(
        f"the manifest names {shorten(uri)}: {why}",
        path=folder,
        rule="S-MAN-4",
        hint="pass allow_outside=True if you trust the manifest",
        command="pass --allow-outside if you trust the manifest",
    )


def _hash(source: ByteSource) -> str:
    """The SHA-256 of all bytes of a source."""
    digest = hashlib.sha256()
    forward = SequentialSource(source)
    try:
        size = source.size()
        for at in range(0, size, _HASH_BYTES):
            digest.update(forward.read_at(at, min(_HASH_BYTES, size - at)))
    finally:
        forward.release()
    return digest.hexdigest()


def _folder_of(name: str) -> str | None:
    """The folder of a file, or of a URL that can be continued."""
    if is_url(name):
        return None if "?" in name else name.rpartition("/")[0]
    return os.path.dirname(os.path.abspath(name)) if os.path.exists(name) else None


def _check_profile(reader: ShardReader) -> None:
    """S-ROL-2, for `verify`."""
    try:
        Manifest.read(reader)
    except DATA_ERRORS as error:
        raise as_profile_error(error, "S-ROL-2") from error


PROFILE_CHECKS[Role.MANIFEST] = _check_profile
