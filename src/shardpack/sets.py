"""Set files: one small file that knows all shards of a set (spec/shardpack.md, sections 9.3 and 9.4).

    with shardpack.open("train.shardpack-set") as dataset:  # one read, whatever the number of shards
        print(len(dataset))

Every writer of sets writes one. Writers on several machines each write a part; `commit` makes a set of the parts.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from shard_format.canonical_json import canonical
from shard_format.disk_cache import KnownContent
from shard_format.errors import (
    DATA_ERRORS,
    BadMetadata,
    InvalidArgument,
    LimitExceeded,
    MissingFile,
    ReferenceMismatch,
    ShardError,
    SizeMismatch,
    UnsafePath,
    UnsupportedVersion,
    shorten,
)
from shard_format.listing import is_there, list_names, natural_key
from shard_format.manifest import FileReference, Manifest
from shard_format.opening import open_source
from shard_format.reader import ShardReader
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.safe_paths import unsafe_form
from shard_format.sources import BytesSource, is_url
from shardpack._layout import FOOTER_SIZE, Footer
from shardpack._switch import finish_replacements

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardpack.reader import ShardPackReader
    from shardpack.writer import Output


__all__ = [
    "FORMAT",
    "SUFFIX",
    "SetLabel",
    "SetWriter",
    "ShardSet",
    "WrittenShards",
    "can_be_listed",
    "count_numbers",
    "fitting_names",
    "is_set",
    "is_set_file",
    "merge_schemas",
    "numbered_files",
    "part_file",
    "parts_folder",
    "set_files_in",
    "set_path",
]

FORMAT: Final = "shardpack-set"
"""What a manifest says in `format` if it is a set file."""
SUFFIX: Final = ".shardpack-set"
MOST_SHARDS: Final = 32_768
"""The most shards that a set file lists."""

_VERSION: Final = 1
_PARTS_SUFFIX: Final = ".shardpack-parts"
_SHARD_SUFFIX: Final = ".shardpack"
_NUMBER: Final = re.compile(r"%0?([0-9]*)d")
# Digits of the number of digits.
_MOST_WIDTH: Final = 3
_PART_FILE: Final = re.compile(r"(\d+)-of-(\d+)" + re.escape(SUFFIX))
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MOST_PARTS: Final = 65_536
_LONGEST_REVISION: Final = 255
_MOST_NAMES: Final = 256
_LARGEST_SCHEMA: Final = 64 << 10
# A row without the name of its file, and everything but rows, schema and the fields of the user.
_ROW_BYTES: Final = 300
_OTHER_BYTES: Final = 8 << 10
# Head, index and names of a container with a few entries.
_CONTAINER_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class WrittenShards:
    """What a tool has written."""

    paths: list[str]
    """The new files."""
    records: int
    """How many records they have."""
    left_out: list[str] = field(default_factory=list)
    """Parts of the input that are not in them, because you allowed that."""
    changed: list[str] = field(default_factory=list)
    """What is not as it was in the input, such as "column 't': timestamp[ns] as text"."""


# --- names


def is_set(output: Output) -> bool:
    """Whether a name stands for many shards, like `"train-%06d.shardpack"`.

    Raises:
        InvalidArgument: it has several numbers, one of thousands of digits, or a `%` that is not doubled beside one.
    """
    if not isinstance(output, (str, os.PathLike)):
        return False
    plain = os.fspath(output).replace("%%", "")
    widths = _NUMBER.findall(plain)
    if widths and (len(widths) > 1 or len(widths[0]) > _MOST_WIDTH or plain.count("%") > 1):
        raise InvalidArgument(
            "the name of a set needs exactly one number",
            path=os.fspath(output),
            expected="such as 'train-%06d.shardpack', where any other % is doubled",
        )
    return bool(widths)


def count_numbers(output: str) -> int:
    """How many numbers a name has."""
    return len(_NUMBER.findall(output.replace("%%", "")))


def is_set_file(location: object) -> bool:
    """Whether a path or URL is named like a set file."""
    if not isinstance(location, (str, os.PathLike)):
        return False
    name = str(os.fspath(location))
    return (name.partition("?")[0] if is_url(name) else name).endswith(SUFFIX)


def can_be_listed(output: str) -> bool:
    """Whether the shards of a set can be in a set file: all are in one folder, and no name looks like a URL."""
    base = os.path.basename(output)
    return is_set(base) and _unsafe_name(base) is None


def numbered_files(
    pattern: str, first: int = 0, storage_options: Mapping[str, Any] | None = None
) -> list[str]:
    """The files of a set that exist, from the first number on without a gap."""
    found: list[str] = []
    names = set(list_names(os.path.dirname(pattern % first), storage_options))
    while os.path.basename(path := pattern % (first + len(found))) in names:
        found.append(path)
    return found


def stem_of(output: str) -> str:
    """The name of a set without its number: `data/train` for `data/train-%06d.shardpack`."""
    folder, base = os.path.split(output)
    stem = re.sub(r"[-_.]?" + _NUMBER.pattern, "", base.removesuffix(_SHARD_SUFFIX), count=1)
    return os.path.join(folder, stem or "set").replace("%%", "%")


def set_path(output: str, first: int = 0) -> str:
    """Where the set file of a set is."""
    if first:
        return (output % first).removesuffix(_SHARD_SUFFIX) + SUFFIX
    return stem_of(output) + SUFFIX


def parts_folder(output: str) -> str:
    """Where the parts of a set are written."""
    return stem_of(output) + _PARTS_SUFFIX


def is_parts_folder(folder: str) -> bool:
    """Whether a folder has parts of a set; readers see them only after `commit`."""
    return folder.rstrip("/").endswith(_PARTS_SUFFIX)


class SetLabel(NamedTuple):
    """What a writer says about the set that it writes, or about its part of the set."""

    revision: str | None = None
    """Names this state of the set; None for the time of creation. All parts must have the same."""
    part: int = 0
    """Number of the part, from 1; 0 for a whole set."""
    parts: int = 0
    """How many parts the set has."""

    def output(self, output: str) -> str:
        """The shards that a writer with this label writes: `"…/03-of-16-%06d.shardpack"` for a part.

        Raises:
            InvalidArgument: the label is malformed, or the name is not that of a set.
        """
        if not (self.part == self.parts == 0 or 1 <= self.part <= self.parts <= _MOST_PARTS):
            raise InvalidArgument(
                "this part does not exist",
                expected=f"1 to N of N parts, at most {_MOST_PARTS}",
                found=f"part {self.part} of {self.parts}",
            )
        if self.revision is not None and not 1 <= len(self.revision) <= _LONGEST_REVISION:
            raise InvalidArgument(
                "the revision is empty or too long",
                expected=f"1 to {_LONGEST_REVISION} characters",
                found=f"{len(self.revision)} characters",
            )
        if not self.part:
            return output
        if not can_be_listed(output) or self.revision is None:
            raise InvalidArgument(
                "a part needs the name of a set and a revision",
                path=output,
                expected="'train-%06d.shardpack', and a revision that all parts of a run share",
            )
        folder = parts_folder(output).replace("%", "%%")
        width = len(str(self.parts))
        return os.path.join(folder, f"{self.part:0{width}d}-of-{self.parts}-%06d{_SHARD_SUFFIX}")


def part_file(output: str, label: SetLabel) -> str:
    """The set file of a part."""
    folder, base = os.path.split(label.output(output) % 0)
    return os.path.join(folder, base.rpartition("-")[0] + SUFFIX)


# --- reading


@dataclass(frozen=True, slots=True)
class ShardSet:
    """What a set file says."""

    path: str
    """The set file: a path or a URL."""
    manifest: Manifest
    """Its rows and fields."""
    footers: tuple[Footer, ...]
    """What the last bytes of each shard must be."""

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        limits: Limits = DEFAULT_LIMITS,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ShardSet:
        """Read a set file, with one read. No shard is looked at.

        Raises:
            ShardError: the file is missing or breaks a rule.
        """
        name = os.fspath(path)
        if not is_url(name):
            finish_replacements([os.path.dirname(name)])
        source = open_source(name, storage_options)
        try:
            size, most = source.size(), limits.max_json_bytes + _CONTAINER_BYTES
            if size > most:
                raise LimitExceeded(
                    "the file is too large for a set file",
                    path=name,
                    expected=f"at most {most} bytes",
                    found=f"{size} bytes",
                    rule="S-SCH-7",
                )
            data = source.read_at(0, size)
        finally:
            source.close()
        with ShardReader(BytesSource(data, source.name), limits=limits) as reader:
            return cls.of(Manifest.read(reader), name)

    @classmethod
    def of(cls, manifest: Manifest, path: str) -> ShardSet:
        """The set that a manifest describes.

        Raises:
            ShardError: the manifest breaks a rule of set files.
        """
        try:
            _check_fields(manifest)
            footers = tuple(
                _row_footer(number, reference) for number, reference in enumerate(manifest.files)
            )
            records = manifest.fields.get("records")
            if (
                records != sum(footer.record_count for footer in footers)
                or type(records) is not int
            ):
                raise SizeMismatch(
                    "'records' is not the sum of the shards",
                    expected=sum(footer.record_count for footer in footers),
                    found=repr(records)[:80],
                    rule="P-SET-3",
                )
        except ShardError as error:
            raise error.located(path=path) from None
        return cls(path, manifest, footers)

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of the set: `name`, `revision`, `created`, `user`, `schema`, `records` and others."""
        return self.manifest.fields

    @property
    def label(self) -> SetLabel:
        """Revision and part."""
        fields = self.fields
        return SetLabel(fields["revision"], fields.get("part", 0), fields.get("parts", 0))

    def __len__(self) -> int:
        return len(self.footers)

    @property
    def names(self) -> list[str]:
        """The names of the shards, in order."""
        return [reference.uri for reference in self.manifest.files]

    def locations(self) -> list[str]:
        """Where the shards are: beside the set file."""
        if not is_url(self.path):
            folder = os.path.dirname(self.path)
            return [os.path.join(folder, name) for name in self.names]
        bare, mark, query = self.path.partition("?")
        folder = bare.rpartition("/")[0]
        return [f"{folder}/{quote(name)}{mark}{query}" for name in self.names]

    # --- the shards behind it

    def check_place(self, number: int, location: str) -> None:
        """Refuse a local shard that is missing, or that a link takes out of the folder.

        Raises:
            UnsafePath, MissingFile: it is not a file of the folder.
        """
        if is_url(location):
            return
        reference = self.manifest.files[number]
        folder = os.path.dirname(os.path.abspath(location))
        Manifest([reference], folder=folder).resolve(reference)
        if not os.path.exists(location):
            raise MissingFile(
                f"the set file {os.path.basename(self.path)} names a shard that is missing",
                path=location,
                rule="P-SET-7",
                hint="get the shard again; run 'shardpack verify' to list all that are missing",
                command="get the shard again",
            )

    def known(self, number: int) -> KnownContent:
        """What a shard must be."""
        reference = self.manifest.files[number]
        # `ShardSet.of` has refused a row without them.
        assert reference.size is not None
        assert reference.sha256 is not None
        return KnownContent(reference.size, reference.sha256)

    def check_footer(self, number: int, footer: Footer, location: str) -> None:
        """Refuse a shard that is not the one that the set file names.

        Raises:
            ReferenceMismatch: it is a different shard.
        """
        expected = self.footers[number]
        if footer == expected:
            return
        what, expected_fact, found_fact = "index", None, None
        for name, field_name in (("size", "total_size"), ("number of records", "record_count")):
            if getattr(expected, field_name) != getattr(footer, field_name):
                what = name
                expected_fact, found_fact = (getattr(one, field_name) for one in (expected, footer))
                break
        raise ReferenceMismatch(
            f"this is not the shard that {os.path.basename(self.path)} names: its {what} differs",
            path=location,
            expected=expected_fact,
            found=found_fact,
            rule="P-SET-7",
            hint="if the set was replaced after you opened it, open it again",
            command="get the right shard, or write the set again",
        )

    def check_hash(self, number: int, sha256: str, location: str) -> None:
        """Refuse a shard whose bytes are not those that the set file names.

        Raises:
            ReferenceMismatch: the bytes differ.
        """
        expected = self.manifest.files[number].sha256
        if sha256 != expected:
            raise ReferenceMismatch(
                "the SHA-256 is not what the manifest says",
                path=location,
                expected=expected,
                found=sha256,
                rule="S-MAN-5",
            )

    def missing_shards(self) -> Iterator[ShardError]:
        """An error for each local shard that is not there."""
        for number, location in enumerate(self.locations()):
            try:
                self.check_place(number, location)
            except ShardError as error:  # noqa: PERF203 - one after the other
                yield error

    def extra_shards(self) -> Iterator[ShardError]:
        """An error for each file that is named like a shard of this set, and that no set file of the folder lists."""
        if is_url(self.path):
            return
        folder = os.path.dirname(self.path)
        fitting = fitting_names(self.fields["name"], list_names(folder))
        first = fitting_names(self.fields["name"], self.names[:1])
        start = next(iter(first.values()), 0)
        extra = [name for name, number in fitting.items() if number >= start]
        if not set(extra) - set(self.names):
            return
        listed: set[str] = set()
        for path in set_files_in(folder):
            with suppress(ShardError):  # checking that file shows what is wrong with it
                listed.update(ShardSet.read(path).names)
        for name in sorted(set(extra) - listed - set(self.names), key=natural_key):
            yield ReferenceMismatch(
                f"{os.path.basename(self.path)} does not name this shard",
                path=os.path.join(folder, name),
                rule="P-SET-8",
                hint="move it to another folder; a pattern such as 'train-*.shardpack' would read it too",
            )

    def is_about(self, names: Iterable[str]) -> bool:
        """Whether one of these files is in the set, or is named as if it were."""
        known, given = set(self.names), list(names)
        return not known.isdisjoint(given) or bool(fitting_names(self.fields["name"], given))

    def only(self, number: int) -> ShardSet:
        """The same with one shard, to check that one on its own."""
        alone = replace(self.manifest, files=[self.manifest.files[number]])
        return replace(self, manifest=alone, footers=(self.footers[number],))


def read_own_set(
    path: str, name: str, storage_options: Mapping[str, Any] | None = None
) -> ShardSet | None:
    """The set file of the set of this name; None if it does not exist, or is so damaged that it can be replaced.

    Raises:
        InvalidArgument: it is the set file of another set.
    """
    if not is_there(path, storage_options):
        return None
    try:
        found = ShardSet.read(path, storage_options=storage_options)
    except DATA_ERRORS:
        return None
    if found.fields["name"] != name:
        raise InvalidArgument(
            "the set file of another set is in the way",
            path=path,
            expected=f"one for {name}",
            found=f"one for {found.fields['name']}",
            hint="choose another name, or another folder",
        )
    return found


def set_files_in(folder: str) -> list[str]:
    """The set files of a folder."""
    return [os.path.join(folder, name) for name in list_names(folder) if name.endswith(SUFFIX)]


def fitting_names(pattern: str, names: Iterable[str]) -> dict[str, int]:
    """The names that a set of this name could have, with their numbers."""
    number = _NUMBER.search(pattern.replace("%%", "\0\0"))
    assert number is not None  # checked when the set file was read
    before, after = (
        pattern[part].replace("%%", "%")
        for part in (slice(number.start()), slice(number.end(), None))
    )
    form = re.compile(f"{re.escape(before)}([0-9]{{1,999}}){re.escape(after)}")
    matches = ((name, form.fullmatch(name)) for name in names)
    return {name: int(match[1]) for name, match in matches if match is not None}


# --- checking what a set file says


def _check_fields(manifest: Manifest) -> None:
    fields = manifest.fields
    if fields.get("format") != FORMAT:
        raise BadMetadata(
            "the manifest is not a set file",
            expected=f'"format": "{FORMAT}"',
            found=repr(fields.get("format"))[:80],
            rule="P-SET-1",
        )
    version = fields.get("version")
    if type(version) is not int or version != _VERSION:
        raise UnsupportedVersion(
            "the set file has an unknown version",
            expected=_VERSION,
            found=repr(version)[:80],
            rule="P-SET-1",
        )
    if not manifest.files:
        raise BadMetadata("the set has no shards", expected="at least one", rule="P-SET-5")
    if len(manifest.files) > MOST_SHARDS:
        raise LimitExceeded(
            "the set has too many shards",
            expected=f"at most {MOST_SHARDS}",
            found=len(manifest.files),
            rule="P-SET-5",
        )
    part, parts = fields.get("part"), fields.get("parts")
    name, revision = fields.get("name"), fields.get("revision")
    checks = (
        ("name", "a file name with one number", _is_name(name)),
        (
            "revision",
            f"a string of 1 to {_LONGEST_REVISION} characters",
            isinstance(revision, str) and 1 <= len(revision) <= _LONGEST_REVISION,
        ),
        ("created", "a string", isinstance(fields.get("created"), str)),
        ("user", "an object", isinstance(fields.get("user"), dict)),
        ("schema", "an object", isinstance(fields.get("schema", {}), dict)),
        (
            "part",
            f"1 to 'parts', at most {_MOST_PARTS}",
            (part is parts is None and not {"part", "parts"} & fields.keys())
            or (type(part) is type(parts) is int and 1 <= part <= parts <= _MOST_PARTS),
        ),
    )
    for wrong, expected, is_right in checks:
        if not is_right:
            raise BadMetadata(
                f"{wrong!r} is not what it must be",
                expected=expected,
                found=repr(fields.get(wrong))[:80],
                rule="P-SET-6",
            )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _unsafe_name(name) is None and count_numbers(name) == 1


def _unsafe_name(name: str) -> str | None:
    """Why a name is not that of a file beside the set file; None if it is."""
    if "/" in name or _SCHEME.match(name):
        return "it is not the name of a file beside the set file"
    return unsafe_form(name)


def _row_footer(number: int, reference: FileReference) -> Footer:
    """The footer that a row states, after all rules about rows are checked."""
    uri = reference.uri
    reason = _unsafe_name(uri)
    if reason is not None:
        raise UnsafePath(
            f"row {number} of the set file names {shorten(uri)}: {reason}", rule="P-SET-4"
        )
    records, text = reference.extra.get("records"), reference.extra.get("footer")
    expected = None
    if reference.sha256 is None or reference.size is None:
        expected = "sha256 and size"
    elif type(records) is not int:
        expected = "an integer under 'records'"
    elif not isinstance(text, str) or not re.fullmatch(f"[0-9a-f]{{{2 * FOOTER_SIZE}}}", text):
        expected = f"{2 * FOOTER_SIZE} hex digits under 'footer'"
    if expected is not None:
        raise BadMetadata(
            f"row {number} of the set file ({shorten(uri)}) is incomplete",
            expected=expected,
            rule="P-SET-2",
        )
    assert isinstance(text, str)  # checked above
    assert reference.size is not None
    data = bytes.fromhex(text)
    stated = int.from_bytes(data[24:32], "little")
    try:
        footer = Footer.unpack(data, stated)
    except ShardError as error:
        raise BadMetadata(
            f"row {number} of the set file ({shorten(uri)}) has a bad footer: {error.problem}",
            rule="P-SET-2",
        ) from None
    if (reference.size, records) != (footer.total_size, footer.record_count):
        raise SizeMismatch(
            f"row {number} of the set file ({shorten(uri)}) contradicts its footer",
            expected=f"{footer.total_size} bytes, {footer.record_count} records",
            found=f"{reference.size} bytes, {records} records",
            rule="P-SET-3",
        )
    return footer


# --- writing


class SetWriter:
    """Collects what a set file will say while the shards are written.

    Args:
        output: the shards to write, `"train-%06d.shardpack"`.
        first: number of the first shard.
        created, user: as in the index of the shards.
        label: revision and part.
        storage_options: for URLs.

    Raises:
        InvalidArgument: the set file of another set has the name that this one needs.
    """

    def __init__(
        self,
        output: str,
        first: int,
        created: str,
        user: Mapping[str, Any],
        label: SetLabel,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._storage_options = storage_options
        self._output = label.output(output)
        self._label = label
        self._created = created
        self._user = dict(user)
        self._name = os.path.basename(output)
        self.path = set_path(self._output, first)
        """Where the set file will be."""
        if label.part:
            self.path = part_file(output, label)
        self._rows: list[FileReference] = []
        self._schemas: list[object] = []
        self._found: ShardSet | None = None
        self._known = self._read_known()

    def _read_known(self) -> dict[str, FileReference]:
        """The rows of the set file that is there, by name."""
        self._found = found = read_own_set(self.path, self._name, self._storage_options)
        return {} if found is None else {row.uri: row for row in found.manifest.files}

    def make_room(self) -> None:
        """Check that one more shard can be listed; call it before you write the shard.

        Raises:
            LimitExceeded: it cannot.
        """
        room = DEFAULT_LIMITS.max_json_bytes - _LARGEST_SCHEMA - _OTHER_BYTES
        room -= len(canonical(self._user))
        most = min(MOST_SHARDS, room // (_ROW_BYTES + len(os.fsencode(self._name))))
        if len(self._rows) >= most:
            raise LimitExceeded(
                "the set has too many shards, or its metadata is too large",
                path=self.path,
                expected=f"at most {most} shards",
                rule="P-SET-5",
                hint="make larger shards: raise max_bytes or max_records",
                command="make larger shards: raise --shard-size or --shard-records",
            )

    def add(self, path: str, sha256: str, footer: Footer, schema: object) -> None:
        """List a shard that was just written."""
        extra = {"records": footer.record_count, "footer": footer.pack().hex()}
        name = os.path.basename(path)
        self._rows.append(FileReference(name, sha256, footer.total_size, extra=extra))
        self._schemas.append(schema)

    def keep(self, shard: ShardPackReader, path: str) -> None:
        """List a shard that was there before. It is hashed unless the set file that was there lists it."""
        self.make_room()
        if self._found is not None:
            self._user = {**self._found.fields["user"], **self._user}
        known = self._known.get(os.path.basename(path))
        footer = shard.footer
        if known is not None and known.extra.get("footer") == footer.pack().hex():
            sha256 = str(known.sha256)
        else:
            sha256 = shard.sha256()
        self.add(path, sha256, footer, shard.metadata.get("schema"))

    def write(self, path: str | None = None, *, fsync: bool) -> None:
        """Write the set file, or write it to another path. One that says the same already stays as it is."""
        if path is None and self._found is not None and self._is_same(self._found):
            return
        schema = merge_schemas(self._schemas)
        label = self._label
        write_set_file(
            path or self.path,
            self._rows,
            {
                "created": self._created,
                "name": self._name,
                "revision": label.revision or self._created,
                "user": self._user,
                **({} if schema is None else {"schema": schema}),
                **({"part": label.part, "parts": label.parts} if label.part else {}),
            },
            fsync=fsync,
            storage_options=self._storage_options,
        )

    def _is_same(self, found: ShardSet) -> bool:
        """Whether a set file lists the same shards, so that its revision and its signature still fit."""
        return (
            list(found.manifest.files) == self._rows
            and found.fields["user"] == self._user
            and self._label.revision in (None, found.label.revision)
        )


def write_set_file(
    path: str,
    rows: Sequence[FileReference],
    fields: Mapping[str, Any],
    *,
    fsync: bool,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    known = {"format": FORMAT, "version": _VERSION, "records": records_of(rows)}
    manifest = Manifest(rows, {**fields, **known})
    manifest.write(path, fsync=fsync, storage_options=storage_options)


def records_of(rows: Iterable[FileReference]) -> int:
    return sum(row.extra["records"] for row in rows)


def merge_schemas(schemas: Iterable[object]) -> dict[str, dict[str, Any]] | None:
    """Content type and number of records of each entry name, over several shards.

    None if one of them has no schema, or if together they have too much for a set file.
    """
    merged: dict[str, dict[str, Any]] = {}
    for schema in schemas:
        if not isinstance(schema, dict):
            return None
        for name, found in schema.items():
            if not isinstance(found, dict):
                return None
            kind, records = found.get("content_type"), found.get("records")
            known = merged.setdefault(name, {"content_type": kind, "records": 0})
            if known["content_type"] != kind:
                known["content_type"] = ""
            known["records"] += records if type(records) is int else 0
    if len(merged) > _MOST_NAMES or len(canonical(merged)) > _LARGEST_SCHEMA:
        return None
    return merged
