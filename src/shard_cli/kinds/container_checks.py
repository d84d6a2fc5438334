"""Checking containers: every byte for `verify`; for `doctor` also what is left of a file that does not open."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_cli.exits import EXPLANATIONS
from shard_cli.files import is_pack
from shard_cli.kinds.entries import ListedEntry, flag_names, iter_rows
from shard_cli.kinds.model import Checked, Diagnosis, Problem, Target, limits_of, open_shard
from shard_cli.kinds.pack_checks import check_shard, checked
from shard_cli.text import count, coverage, fit, printable, size
from shard_format import Manifest, Role, ShardError, signing, verify_identity
from shard_format.codecs import Codec, Compression, compress
from shard_format.errors import ShardIOError
from shard_format.findings import Report
from shard_format.identity import IDENTITY_ENTRY, Identity
from shard_format.opening import copying_urls
from shard_format.salvage import salvage
from shard_format.verify import check
from shardpack.sets import FORMAT, ShardSet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from shard_cli.console import Console
    from shard_format import FileReference, ShardReader
    from shard_format.findings import Finding
    from shard_format.layout import Header

# Which header field a broken rule is about.
_FIELD_BY_RULE: Final = {
    "S-HDR-2": "magic",
    "S-HDR-3": "version",
    "S-HDR-4": "index_entry_size",
    "S-HDR-5": "alignment",
    "S-HDR-6": "flags",
    "S-HDR-7": "total_file_size",
    "S-HDR-8": "entry_count",
    "S-HDR-9": "entry_count",
    "S-HDR-10": "string_table_offset",
    "S-HDR-11": "data_section_offset",
    "S-HDR-12": "data_section_offset",
    "S-SCH-1": "schema_offset",
}

# Smaller entries are read in one go, and compressing them saves too little to mention.
_LARGE: Final = 1 << 20
_WORTH_SEEKING: Final = 8 << 20
_SAMPLE_BYTES: Final = 1 << 20
# A file may have a million entries: look at the largest only.
_MOST_SAMPLES: Final = 32
_CLEARLY_SMALLER: Final = 0.75
# Enough for vector instructions and most element types.
_USEFUL_ALIGNMENT: Final = 16


def _check(
    reader: ShardReader, path: str, console: Console, hashes: dict[str, str] | None = None
) -> tuple[Report, list[ShardError]]:
    with console.progress(f"{console.command} {path}") as bar:
        report = check(reader, progress=bar.update, hashes=hashes)
    return report, [finding.error for finding in report.errors if finding.error]


# --- verify


def verify(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[Checked]:
    """Checks files one after another, and the files that manifests name."""
    for path in arguments:
        yield _verify_file(path, args, console, frozenset())


def _verify_file(
    path: str, args: argparse.Namespace, console: Console, seen: frozenset[str]
) -> Checked:
    """Opens a file and checks all of it; that it does not open is a result, too.

    `seen` holds the manifests on the way here: one that names itself is not followed again.
    """
    report: Report | None = None
    identity: Identity | None = None
    errors: list[ShardError] = []
    references: list[Checked] = []
    try:
        with open_shard(path, args) as opened, opened.in_order() as reader:
            # Identity and signature are demanded of the manifest, which binds files by hashes.
            demand = _Demand.of(None if seen else args)
            hashes: dict[str, str] = {}
            wants_hashes = demand.is_any or IDENTITY_ENTRY in reader
            report, errors = _check(reader, path, console, hashes if wants_hashes else None)
            if not errors and wants_hashes:
                identity = demand.check(reader, hashes)
            # A malformed manifest is among the errors already: it breaks what the role promises.
            malformed = any(error.code == "bad_profile" for error in errors)
            if reader.role == Role.MANIFEST and not args.no_follow and not malformed:
                manifest = Manifest.read(reader)
                if manifest.fields.get("format") == FORMAT:
                    errors += ShardSet.of(manifest, path).extra_shards()
                above = seen | {os.path.realpath(path)}
                references += [
                    _verify_reference(manifest, reference, args, console, above)
                    for reference in manifest.files
                ]
    except ShardError as error:
        errors.append(error)
    return _checked(path, errors, report or Report(path), identity, references)


class _Demand(NamedTuple):
    """What the content of a file must be, beside what the file says about itself."""

    identity: str | None = None
    signature: str | None = None
    public_key: str | None = None

    @classmethod
    def of(cls, args: argparse.Namespace | None) -> _Demand:
        """What `--identity` and `--signature` demand."""
        if args is None:
            return cls()
        identity = None if args.identity is None else args.identity.lower()
        return cls(identity, args.signature, args.public_key)

    @property
    def is_any(self) -> bool:
        """Whether there is a demand."""
        return self.identity is not None or self.signature is not None

    def check(self, reader: ShardReader, hashes: dict[str, str]) -> Identity | None:
        """The identity that was compared: the stored one, and what is demanded."""
        found: Identity | None = None
        if self.identity is not None or IDENTITY_ENTRY in reader:
            found = verify_identity(reader, self.identity, hashes=hashes)
        if self.signature is not None and self.public_key is not None:
            key = signing.load_public_key(self.public_key)
            found = signing.verify(reader, self.signature, key, hashes=hashes)
        return found


def _verify_reference(
    manifest: Manifest,
    reference: FileReference,
    args: argparse.Namespace,
    console: Console,
    seen: frozenset[str],
) -> Checked:
    """S-MAN-5: existence, size and hash first; only then is the file parsed. A remote one is copied, to be read twice."""
    alone = replace(manifest, files=[reference])
    outside = args.allow_outside
    with copying_urls():
        with console.progress(f"hash {reference.uri}") as bar:
            errors = list(alone.iter_problems(allow_outside=outside, progress=bar.update))
        if not errors:
            path = manifest.resolve(reference, allow_outside=outside)
            if is_pack(path):
                return _verify_shard(path, args, console)
            if os.path.realpath(path) not in seen:
                return _verify_file(path, args, console, seen)
    return _checked(reference.uri, errors, Report(reference.uri))


def _verify_shard(path: str, args: argparse.Namespace, console: Console) -> Checked:
    """A shard of a dataset that a manifest names."""
    with console.progress(f"verify {path}") as bar:
        return checked(check_shard(Target(path), bar.update, limits=limits_of(args)))


def _checked(
    path: str,
    errors: list[ShardError],
    report: Report,
    identity: Identity | None = None,
    references: Sequence[Checked] = (),
) -> Checked:
    good = [count(report.entries, "entry"), size(report.bytes)]
    if identity is not None:
        good.append(f"identity {identity.digest[:16]}… fits{coverage(identity.version)}")
    good += [f"names {count(len(references), 'file')}"] if references else []
    good += [count(len(report.warnings), "warning")] if report.warnings else []
    problems = [Problem.of(error, path) for error in errors]
    warnings = [_warning(one) for one in report.warnings]
    fields = {
        "entries": report.entries,
        "bytes": report.bytes,
        "errors": [problem.fields for problem in problems],
        "warnings": [warning.fields for warning in warnings],
        "identity": None if identity is None else identity.digest,
        "identity_version": None if identity is None else identity.version,
    }
    return Checked(path, ", ".join(good), fields, problems, warnings, references)


def _warning(one: Finding, **explanation: str) -> Problem:
    fields = {"code": one.code, "entry": one.entry, "message": one.message, **explanation}
    return Problem(one.code, printable(str(one)), fields, "warning", **explanation)


# --- doctor


def diagnose(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[Diagnosis]:
    """Checks each file; if one does not open, looks at what is left of it."""
    for path in arguments:
        yield _diagnose(path, args, console)


def _diagnose(path: str, args: argparse.Namespace, console: Console) -> Diagnosis:
    errors: list[ShardError] = []
    others: list[Problem] = []
    header: Header | None = None
    shown: dict[str, Any] | None = None
    listed: int | None = None
    opens, readable = False, 0
    try:
        with copying_urls(), open_shard(path, args) as reader:
            opens, header = True, reader.header
            hashes: dict[str, str] | None = {} if IDENTITY_ENTRY in reader else None
            report, errors = _check(reader, path, console, hashes)
            listed, readable = report.entries, _readable(report)
            others += [_warning(one, **EXPLANATIONS[one.code]) for one in report.warnings]
            others += _advise(reader)
            if not errors and hashes is not None:
                others += _advise_identity(verify_identity(reader, hashes=hashes))
    except ShardError as error:
        errors.insert(0, error)
        if not opens and not isinstance(error, ShardIOError):
            # The header as far as it can be read, and the entries that survive.
            with suppress(ShardError):  # a folder or a pipe: the first error reports it
                salvaged = salvage(path, limits_of(args))
                header = None if salvaged is None else salvaged.header
                if salvaged is not None and salvaged.reader is not None:
                    with salvaged.reader as reader:
                        listed, readable = (
                            salvaged.listed,
                            _readable(_check(reader, path, console)[0]),
                        )
    details: list[str] = []
    wrong = _wrong_fields(errors)
    if header is not None:
        # Its two byte strings as text.
        strings = {"magic": header.magic.decode("latin-1"), "reserved": header.reserved.hex()}
        shown = {**header._asdict(), **strings}
        if not opens or console.verbose:
            details += _header_lines(shown, wrong, console)
        if not opens:
            details.append(_readable_text(listed, readable))
    found = {"header": shown, "wrong_fields": wrong}
    return diagnosis(path, errors, others, (opens, listed, readable), found, details)


def _readable(report: Report) -> int:
    """How many entries have no errors."""
    return report.entries - len({error.entry for error in report.errors} - {None})


def diagnosis(
    path: str,
    errors: Sequence[ShardError],
    others: Sequence[Problem],
    state: tuple[bool, int | None, int],
    fields: dict[str, Any],
    details: Sequence[str] = (),
) -> Diagnosis:
    """What is wrong with a container or a shard of a pack.

    Args:
        path: the file.
        errors: broken rules.
        others: warnings and advice.
        state: whether it opens, how many entries it lists, None if that is lost, and how many can be read.
        fields: what `--json` also says.
        details: lines below the errors.
    """
    opens, listed, readable = state
    problems = [Problem.of(error, path, **EXPLANATIONS[error.code]) for error in errors]
    fields = {
        "opens": opens,
        **fields,
        "entries_listed": listed,
        "entries_readable": readable,
        "errors": [problem.fields for problem in problems],
        "warnings": [one.fields for one in others if one.severity == "warning"],
        "advice": [one.fields for one in others if one.severity == "advice"],
    }
    verdict = ("damaged" if opens else "does not open") if problems else "healthy"
    summary = _readable_text(listed, readable) if opens else ""
    return Diagnosis(path, verdict, summary, [*problems, *others], fields, details)


def _wrong_fields(errors: Sequence[ShardError]) -> dict[str, str]:
    """The header fields that the errors are about, each with what it should be."""
    return {
        # The size is the one field that is more likely right than the file.
        _FIELD_BY_RULE[error.rule]: f"the file has {error.found}"
        if error.rule == "S-HDR-7"
        else f"expected {error.expected}"
        for error in errors
        if error.rule in _FIELD_BY_RULE
    }


def _readable_text(listed: int | None, readable: int) -> str:
    if listed is None:
        return "no entry can be read: the index is lost"
    if readable == listed:
        return f"all {count(listed, 'entry')} readable" if listed else "no entries"
    return f"{readable:,} of {count(listed, 'entry')} readable"


def _header_lines(header: dict[str, Any], wrong: dict[str, str], console: Console) -> Iterator[str]:
    yield "header:"
    for name, value in header.items():
        text = fit(printable(str(value)), 40)
        if name == "flags":
            text = f"0x{value:04x} ({', '.join(flag_names(value)) or 'none'})"
        if name in wrong:
            text += "  " + console.style(f"<- {printable(wrong[name])}", "red")
        yield f"  {name:<20}{text}"


# --- advice


def _advise_identity(identity: Identity) -> Iterator[Problem]:
    if identity.version == 1:
        text, remedy = f"the stored identity is old{coverage(1)}", "shard repack FILE OUT"
        fields = {"code": "old_identity", "message": text, "remedy": remedy}
        yield Problem("old_identity", text, fields, "advice", "", remedy)


def _advise(reader: ShardReader) -> Iterator[Problem]:
    """Looks at the index and at samples of the largest entries for what could be stored better."""
    rows = sorted(iter_rows(reader), key=lambda row: -row.size)
    raw = [row for row in rows if row.codec == "none" and row.size == row.stored >= _LARGE]
    shares = {row: _share(reader, row) for row in raw[:_MOST_SAMPLES]}
    small = [row for row, share in shares.items() if share <= _CLEARLY_SMALLER]
    before = sum(row.size for row in small)
    after = int(sum(row.size * shares[row] for row in small))
    whole = [
        row
        for row in rows
        if row.codec == "zstd" and row.size >= _WORTH_SEEKING and _is_whole(reader, row)
    ]
    for code, found, what, text, remedy in (
        (
            "would_compress",
            small,
            "large raw entry",
            f", {size(before)}, would take about {size(after)} with zstd",
            "shard repack FILE OUT --compression zstd; leave them raw if you map them",
        ),
        (
            "not_seekable",
            whole,
            "large zstd entry",
            " can only be decompressed as a whole, by one thread",
            "shard repack FILE OUT --frame-bytes 1M",
        ),
        (
            "unaligned",
            [row for row in raw if row.offset % _USEFUL_ALIGNMENT],
            "large raw entry",
            f" not aligned to {_USEFUL_ALIGNMENT} bytes: arrays in there must be copied instead of mapped",
            "shard repack FILE OUT --alignment 64",
        ),
    ):
        if found:
            names = [row.name for row in found]
            which = (
                f"the {what} {names[0]!r}"
                if len(names) == 1
                else f"{count(len(names), what)} ({names[0]!r} and others)"
            )
            fields = {"code": code, "entries": names, "message": which + text, "remedy": remedy}
            yield Problem(code, printable(which + text), fields, "advice", "", remedy)


def _share(reader: ShardReader, row: ListedEntry) -> float:
    """How much of an entry zstd would leave, from a sample in its middle."""
    length = min(row.size, _SAMPLE_BYTES)
    start = (row.size - length) // 2
    sample = reader.read_range(row.name, start, start + length)
    stored = compress(memoryview(sample), Compression(Codec.ZSTD, 3))
    return 1.0 if stored is None else len(stored) / length


def _is_whole(reader: ShardReader, row: ListedEntry) -> bool:
    try:
        return reader.seek_table(row.name) is None
    except ShardError:  # damaged; the check has said so
        return False
