"""The protocol that every kind of file follows, and the values that it speaks in.

A verb is written once over these: it finds out the kind of a file and asks it for facts, rows, contents,
checks, a diagnosis or a comparison.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from shard_cli.exits import Exit, error_fields, exit_for, message_of, worst
from shard_cli.text import fit, short_json
from shard_format.errors import InvalidArgument

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from shard_cli.console import Console
    from shard_format import Limits, ShardError, ShardReader
    from shardpack import Dataset, ShardSet
    from wshard import Episode

    Progress = Callable[[int, int], None]
    """Takes the bytes done and the bytes in all."""

MOST_SHOWN = 20
"""A file with a thousand errors does not need a thousand lines."""


class Target(NamedTuple):
    """One thing that an argument means, and that a verb works on."""

    path: str
    size: int = 0
    """Bytes of its files; 0 if unknown."""
    chunks: tuple[str, ...] = ()
    """The files that the manifest of an episode names."""
    folder: str | None = None
    """The folder argument, or the pack, that it was found in."""
    pack: str | None = None
    """The pack that holds it."""
    record: int = 0
    """The number of its record in the pack."""
    name: str = ""
    """Its name in the pack; empty if the record cannot be read."""
    listed: ShardSet | None = None
    """What a set file says about a shard."""
    is_hashed: bool = False
    """Whether to compare the hash of the shard, too."""


class NamedContent(NamedTuple):
    """Content with a name: an entry of a container, or of a record."""

    name: str
    """The name in its file; for a pack, key and name as `extract` joins them."""
    fields: dict[str, Any]
    """What `--json` says beside the content."""
    size: int
    pieces: Callable[[tuple[int, int | None] | None], Iterator[bytes | memoryview]]
    """The content, or a range of its bytes, in pieces."""
    crc32c: int | None = None
    """Of the content, if it is known without reading it."""


class Chosen(NamedTuple):
    """What `extract` takes out of a file."""

    groups: Iterable[list[NamedContent]]
    """The contents, in order. What is not at hand is not fetched to make one group of it."""
    size: int
    """Their bytes, about."""


class TableRows(NamedTuple):
    """The rows of a file."""

    document: dict[str, Any]
    """For `--json`."""
    headings: list[str]
    rows: list[list[str]]
    right: tuple[int, ...]
    """Columns aligned to the right."""
    total: str
    """The line below the table."""


class Change(NamedTuple):
    """One difference between two files."""

    kind: str
    """only_in_a, only_in_b, content and so on."""
    text: str
    """For people, without the mark in front."""
    fields: dict[str, Any]
    """For `--json`."""


class Problem(NamedTuple):
    """One thing that checking found."""

    code: str
    text: str
    """For people, printable, without the code."""
    fields: dict[str, Any]
    """For `--json`."""
    severity: str = "error"
    """error, warning, note or advice."""
    meaning: str = ""
    remedy: str = ""

    @classmethod
    def of(cls, error: ShardError, under: str, **fields: str) -> Problem:
        """The problem that an error is, under a heading that names the file."""
        text = message_of(error, under=under)
        return cls(error.code, text, {**error_fields(error), **fields}, "error", **fields)


class Checked(NamedTuple):
    """What `verify` found in a file."""

    file: str
    good: str
    """What was read, for the line that says "ok"."""
    fields: dict[str, Any]
    """For `--json`."""
    errors: Sequence[Problem]
    warnings: Sequence[Problem] = ()
    references: Sequence[Checked] = ()
    """The files that a manifest names, each checked like this one."""

    @property
    def exit(self) -> Exit:
        """The exit code for this file and all that it names."""
        codes = [exit_for(error.code) for error in self.errors]
        return worst(codes + [one.exit for one in self.references])

    def to_fields(self) -> dict[str, Any]:
        """The result as `--json` shows it."""
        fields: dict[str, Any] = {"file": self.file, "ok": self.exit is Exit.OK, **self.fields}
        if self.references:
            fields["references"] = [one.to_fields() for one in self.references]
        return fields


class Diagnosis(NamedTuple):
    """What `doctor` found in a file."""

    file: str
    verdict: str
    """healthy, readable, suspicious, damaged, or does not open."""
    summary: str
    """What follows the verdict."""
    findings: Sequence[Problem]
    fields: dict[str, Any]
    """For `--json`."""
    details: Sequence[str] = ()
    """Lines below the findings that are errors, such as the header."""

    def of(self, *severities: str) -> list[Problem]:
        """The findings of these severities."""
        return [finding for finding in self.findings if finding.severity in severities]

    def exit(self, *, strict: bool) -> Exit:
        """The exit code for this file; with `strict`, warnings and advice count."""
        code = worst([exit_for(finding.code) for finding in self.of("error")])
        return Exit.FINDING if strict and not code and self.of("warning", "advice") else code


class Kind(Protocol):
    """What the verbs can ask of a file. Each module of a kind is one of these."""

    # What a file is, as `--json` shows it, and printed for people.
    def facts(self, path: str, args: argparse.Namespace) -> dict[str, Any]: ...
    def show_facts(self, facts: dict[str, Any], console: Console) -> None: ...

    # The differences between two files, and what to call all of it if there are none.
    def compare(
        self, args: argparse.Namespace, progress: Progress
    ) -> AbstractContextManager[tuple[Iterator[Change], str]]: ...

    # Every byte of files; and what is wrong with files, even if they do not open.
    def verify(
        self, arguments: Sequence[str], args: argparse.Namespace, console: Console
    ) -> Iterator[Checked]: ...
    def diagnose(
        self, arguments: Sequence[str], args: argparse.Namespace, console: Console
    ) -> Iterator[Diagnosis]: ...


class Readable(Kind, Protocol):
    """A kind whose contents can be listed and read: container and pack."""

    # The files behind an argument.
    def files(self, path: str) -> list[str]: ...

    # The names, or the rows, that patterns choose.
    def names(
        self, path: str, args: argparse.Namespace
    ) -> AbstractContextManager[Iterator[str]]: ...
    def listing(self, path: str, args: argparse.Namespace, console: Console) -> TableRows: ...

    # Contents by name, which raises if one is not there; and those that patterns choose.
    def members(
        self, path: str, names: Sequence[str], args: argparse.Namespace
    ) -> AbstractContextManager[list[NamedContent]]: ...
    def chosen(self, path: str, args: argparse.Namespace) -> AbstractContextManager[Chosen]: ...


# --- opening


def limits_of(args: argparse.Namespace) -> Limits:
    """The limits of readers, with `--max-decompressed` if it was given."""
    from dataclasses import replace

    from shard_format.registry import DEFAULT_LIMITS

    most = getattr(args, "max_decompressed", None)
    return DEFAULT_LIMITS if most is None else replace(DEFAULT_LIMITS, max_decompressed_bytes=most)


def open_shard(path: str, args: argparse.Namespace) -> ShardReader:
    """A reader for a container."""
    from shard_format import ShardReader

    try:
        return ShardReader(path, limits=limits_of(args))
    except InvalidArgument as error:
        error.command = "a Shard file must be seekable: save it to a file first"
        raise


def open_episode(path: str, args: argparse.Namespace, **options: Any) -> Episode:  # noqa: ANN401 - of load_wshard
    """An episode, with the lanes that were added later."""
    from wshard import load_wshard

    return load_wshard(path, limits=limits_of(args), **options)


def open_pack(path: str, args: argparse.Namespace) -> Dataset:
    """A dataset."""
    import shardpack

    return shardpack.open(path, limits=limits_of(args))


# --- text


def matches(name: str, pattern: str) -> bool:
    """Whether a name matches: case counts, and `*` matches slashes, because names are not paths."""
    # A name may hold brackets or stars of its own; written out in full it always matches itself.
    return name == pattern or fnmatchcase(name, pattern)


def field_lines(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields of metadata, each as a label and a value."""
    for key, value in fields.items():
        yield f"  {fit(key, 40)}:", short_json(value)


def unreadable(facts: dict[str, Any]) -> str:
    """Says that a part of the facts could not be read."""
    return f"unreadable: {facts['error']['message']} ({facts['error']['code']})"
