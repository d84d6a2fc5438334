"""Checking one file completely: entries, identity, and the files that a manifest names."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shard_cli.exits import Exit, error_fields, exit_for, worst
from shard_cli.opening import open_shard

if TYPE_CHECKING:
    from shard_cli.output import Console
    from shard_format import FileReference, Manifest, ShardError, ShardReader
    from shard_format.verify import Warned


@dataclass(slots=True)
class Checked:
    """What checking a file found."""

    file: str
    entries: int = 0
    bytes: int = 0
    errors: list[ShardError] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    identity: str | None = None
    """The identity, where it was compared and fits."""
    references: list[Checked] = field(default_factory=list)
    """The files that a manifest names, each checked like this one."""

    @property
    def exit(self) -> Exit:
        """What this file and all that it names mean for the exit code."""
        return worst(
            [exit_for(error.code) for error in self.errors] + [one.exit for one in self.references]
        )

    def to_fields(self) -> dict[str, Any]:
        """The result as `--json` shows it."""
        fields: dict[str, Any] = {
            "file": self.file,
            "ok": self.exit is Exit.OK,
            "entries": self.entries,
            "bytes": self.bytes,
            "errors": [error_fields(error) for error in self.errors],
            "warnings": [
                {"code": one.code, "entry": one.entry, "message": one.message}
                for one in self.warnings
            ],
            "identity": self.identity,
        }
        if self.references:
            fields["references"] = [one.to_fields() for one in self.references]
        return fields


@dataclass(frozen=True, slots=True)
class Demands:
    """What a file must fulfil beyond the rules of the format."""

    identity: str | None = None
    signature: str | None = None
    public_key: str | None = None
    follow: bool = True
    allow_outside: bool = False
    max_decompressed: int | None = None


def check_path(
    path: str, demands: Demands, console: Console, seen: frozenset[str] = frozenset()
) -> Checked:
    """Opens a file and checks all of it; what cannot be opened is a result too.

    `seen` holds the manifests on the way here: one that names itself is not followed again.
    """
    from shard_format.errors import ShardError

    checked = Checked(path)
    try:
        with open_shard(path, max_decompressed=demands.max_decompressed) as reader:
            _check_content(reader, checked, console)
            if not checked.errors:
                _check_identity(reader, demands, checked, console)
            if demands.follow:
                _follow(reader, demands, checked, console, seen | {os.path.realpath(path)})
    except ShardError as error:
        checked.errors.append(error)
    return checked


def _check_content(reader: ShardReader, checked: Checked, console: Console) -> None:
    from shard_format.verify import check

    with console.progress(f"verify {checked.file}") as bar:
        report = check(reader, progress=bar.update)
    checked.entries, checked.bytes = report.entries, report.bytes
    checked.errors += [finding.error for finding in report.errors]
    checked.warnings += report.warnings


def _check_identity(
    reader: ShardReader, demands: Demands, checked: Checked, console: Console
) -> None:
    from shard_format import signing, verify_identity
    from shard_format.identity import IDENTITY_ENTRY

    if demands.identity is not None or IDENTITY_ENTRY in reader:
        with console.progress(f"identity {checked.file}") as bar:
            identity = verify_identity(reader, demands.identity, progress=bar.update)
        checked.identity = identity.digest
    if demands.signature is not None and demands.public_key is not None:
        signature = signing.Signature.read(demands.signature)
        signing.verify(reader, signature, signing.load_public_key(demands.public_key))
        checked.identity = signature.identity


def _follow(
    reader: ShardReader, demands: Demands, checked: Checked, console: Console, seen: frozenset[str]
) -> None:
    from shard_format import Manifest, Role

    # A malformed manifest is among the errors already: it breaks what the role promises.
    if reader.role != Role.MANIFEST or any(e.code == "bad_profile" for e in checked.errors):
        return
    manifest = Manifest.read(reader)
    # Demands on the content are about the manifest; they bind the files it names by their hashes.
    inherited = replace(demands, identity=None, signature=None, public_key=None)
    for reference in manifest.files:
        checked.references.append(_check_reference(manifest, reference, inherited, console, seen))


def _check_reference(
    manifest: Manifest,
    reference: FileReference,
    demands: Demands,
    console: Console,
    seen: frozenset[str],
) -> Checked:
    """S-MAN-5: existence, size and hash first; only then is the file parsed."""
    alone = replace(manifest, files=[reference])
    checked = Checked(reference.uri)
    with console.progress(f"hash {reference.uri}") as bar:
        checked.errors += alone.iter_problems(
            allow_outside=demands.allow_outside, progress=bar.update
        )
    if checked.errors:
        return checked
    path = manifest.resolve(reference, allow_outside=demands.allow_outside)
    if os.path.realpath(path) in seen:
        return checked
    return check_path(path, demands, console, seen)
