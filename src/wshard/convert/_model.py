"""What a converter is: how other formats are recognised, read and written, and notes about what changed on the way."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from shard_format.atomic import write_file
from shard_format.errors import BadMetadata, InvalidArgument, ShardError, ShardIOError
from shard_format.sources import read_file
from wshard._episode import Episode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

__all__ = [
    "ConvertedEpisode",
    "DatasetReader",
    "DatasetWriter",
    "FieldChange",
    "Format",
    "Notes",
    "Probe",
    "ReadOptions",
    "WriteOptions",
]

Kind: TypeAlias = Literal["kept", "renamed", "cast", "reordered", "decoded", "filled", "dropped"]
KINDS: Final[tuple[Kind, ...]] = (
    *("kept", "renamed", "cast", "reordered", "decoded", "filled", "dropped"),
)
"""What can become of a field, from nothing to everything lost."""
WHOLE: Final = "episode"
"""The field of a note about an episode that is left out of a dataset."""
LAST: Final = " after the last step"
"""How the name of a block ends in a note about the entry that is not a step."""
VIDEO: Final = ("keep", "decode", "encode")
_HEAD_BYTES: Final = 1024
# Of a report in text: lines about fields, and the column of their names.
_MOST_ROWS: Final = 40
_WIDEST: Final = 32
_MOST_JSON: Final = 256 << 20


# --- notes


@dataclass(frozen=True, slots=True)
class FieldChange:
    """What became of one field of an episode."""

    kind: Kind
    field: str
    """Its name where it came from."""
    detail: str = ""
    """Where it went, or why it is not there."""

    def __str__(self) -> str:
        return f"{self.kind} {self.field}" + (f": {self.detail}" if self.detail else "")


class Notes:
    """Collects what becomes of the fields of one episode."""

    def __init__(self) -> None:
        self._changes: dict[tuple[str, str], FieldChange] = {}

    def kept(self, name: str, target: str) -> None:
        """The field is there, unchanged, as `target`."""
        self._add("kept", name, target)

    def renamed(self, name: str, target: str) -> None:
        """The field is there under a different name than its own, because its own is not possible or is taken."""
        self._add("renamed", name, target)

    def cast(self, name: str, before: object, after: object, why: str = "") -> None:
        """The field has another type."""
        self._add("cast", name, f"{before} to {after}" + (f", {why}" if why else ""))

    def reordered(self, name: str, how: str) -> None:
        """Values or axes are in another order."""
        self._add("reordered", name, how)

    def decoded(self, name: str, how: str) -> None:
        """Encoded pictures became pixels, or pixels were encoded with a loss."""
        self._add("decoded", name, how)

    def filled(self, name: str, how: str) -> None:
        """The format needs values that were not there."""
        self._add("filled", name, how)

    def dropped(self, name: str, why: str) -> None:
        """The field is not there any more."""
        self._add("dropped", name, why)

    def dropped_last(self, block: str, why: str) -> None:
        """The entry of a block after the last step is not there any more; the others are."""
        self.dropped(f"{block}{LAST}", why)

    def _add(self, kind: Kind, name: str, detail: str) -> None:
        self.add(FieldChange(kind, name, detail))

    def add(self, change: FieldChange) -> None:
        """Adds a note."""
        # One of each kind for a field: a note that comes with every step would be thousands.
        self._changes.setdefault((change.kind, change.field), change)

    @property
    def changes(self) -> tuple[FieldChange, ...]:
        """All notes, in the order in which they came."""
        return tuple(self._changes.values())


class ConvertedEpisode(Episode):
    """An episode that was read from another format."""

    __slots__ = ("changes", "source")

    changes: tuple[FieldChange, ...]
    """What became of the fields that it had there."""
    source: DatasetReader | None
    """The dataset that it closes; None if others still read it."""

    def __init__(self, episode: Episode, changes: Sequence[FieldChange]) -> None:
        self.become(episode)
        self.changes = tuple(changes)
        self.source = None

    def close(self) -> None:
        super().close()
        if self.source is not None:
            self.source.close()

    @property
    def lost(self) -> tuple[FieldChange, ...]:
        """The changes that lose something."""
        return tuple(
            change for change in self.changes if change.kind not in ("kept", "renamed", "filled")
        )


# --- recognising


class Probe:
    """A look at a file or folder, for formats to say whether it is one of theirs. Never trusts a name alone."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_folder = os.path.isdir(path)
        self.damage: ShardError | None = None
        """Why a file in it could not be read, if a format is known by that file."""
        if not self.is_folder and not os.path.exists(path):
            raise ShardIOError.wrap(
                FileNotFoundError(2, "No such file or directory"), "cannot read", path
            )

    @cached_property
    def head(self) -> bytes:
        """The first bytes of a file; empty for a folder."""
        return b"" if self.is_folder else read_file(self.path, _HEAD_BYTES)

    @cached_property
    def names(self) -> frozenset[str]:
        """What is directly in a folder; empty for a file."""
        return frozenset(os.listdir(self.path) if self.is_folder else ())

    @cached_property
    def is_hdf5(self) -> bool:
        """Whether it is an HDF5 file."""
        return self.head.startswith(b"\x89HDF\r\n\x1a\n")

    @cached_property
    def hdf5_names(self) -> frozenset[str]:
        """Names at the root of an HDF5 file; empty for any other, and for one that is damaged."""
        if not self.is_hdf5:
            return frozenset()
        from wshard.convert._hdf5 import open_hdf5

        try:
            with open_hdf5(self.path) as file:
                return frozenset(name for name in file if isinstance(name, str))
        except ShardError as error:
            self.damage = self.damage or error
            return frozenset()
        except (OSError, RuntimeError, ValueError, KeyError):
            return frozenset()

    def json(self, *parts: str) -> dict[str, Any]:
        """A JSON object in a file below the folder; empty if the file is missing, damaged or something else."""
        try:
            found = read_json(os.path.join(self.path, *parts))
        except ShardIOError:
            return {}
        except BadMetadata as error:
            self.damage = self.damage or error
            return {}
        return found if isinstance(found, dict) else {}


def read_json(path: str) -> Any:  # noqa: ANN401 - any JSON
    """The content of a JSON file. Unlike JSON of our own formats it may hold NaN and Infinity."""
    text = read_file(path, _MOST_JSON)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadMetadata(f"not JSON: {error}", path=path) from None


# --- reading and writing


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read other formats."""

    video: str = "keep"
    """`"keep"` keeps encoded streams where that is possible, `"decode"` makes pixels of them."""
    mapping: Mapping[str, Any] | None = None
    """For files without a known layout: which field becomes what (docs/formats.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How to write other formats."""

    video: str = "keep"
    """What becomes of cameras where the format has video: `"keep"` encodes only those that are pixels and copies
    encoded streams, `"encode"` encodes all, `"decode"` writes pixels."""


class DatasetReader(ABC):
    """A dataset in another format, open for reading."""

    strays: Sequence[str] = ()
    """What lies in the dataset and belongs to no episode, such as a README."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        self.path = path
        self.options = options

    @abstractmethod
    def names(self) -> Sequence[str]:
        """What to call each of its episodes, in order. Costs little: reads no steps."""

    @abstractmethod
    def read(self, number: int, notes: Notes) -> Episode:
        """One episode. Large arrays stay where they are until they are used (`wshard.convert._arrays`)."""

    def file_of(self, number: int) -> str:
        """The file that holds an episode, of a folder with a file for each (`Format.episode_files`)."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - not every format has open files
        """Closes its files. Episodes that were read cannot be used any more."""


class DatasetWriter(ABC):
    """A dataset in another format that is being written, at a path where nothing is yet.

    The caller chooses a temporary path and moves what was written to its place when `finish` returned.
    """

    def __init__(self, path: str, options: WriteOptions) -> None:
        self.path = path
        self.options = options

    @abstractmethod
    def write(self, episode: Episode, notes: Notes) -> None:
        """Adds an episode. Notes what the format cannot hold."""

    @abstractmethod
    def finish(self) -> None:
        """Writes what belongs at the end, and closes all files."""

    def abandon(self) -> None:  # noqa: B027 - as `close`
        """Closes all files after an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One row of the table of formats."""

    name: str
    title: str
    module: str
    """Of `wshard.convert`. Has the two classes, and `recognises(probe)` if it reads."""
    reader: str = ""
    """The class that reads it; empty if none does."""
    writer: str = ""
    """The class that writes it; empty if none does."""
    extra: str = ""
    """What `pip install 'shard-format[…]'` needs."""
    suffixes: tuple[str, ...] = ()
    """Endings of the paths that are written in this format."""
    is_one_episode: bool = False
    """Whether a file with such an ending has room for one episode only."""
    files: tuple[str, ...] = ()
    """Endings of the files with several episodes each that a folder in this format consists of."""
    episode_files: tuple[str, ...] = ()
    """Endings of files with one episode each. In a folder in this format that has no folders, each episode is such a file
    (`DatasetReader.file_of`)."""
    beside: tuple[str, ...] = ()
    """Endings of what lies beside such a file and is read with it."""
    lost: str = ""
    """What it cannot hold, for people."""
    example: str = ""
    """A path as people have it."""
    steps: str = ""
    """How observations, actions and rewards line up there."""

    @property
    def reads(self) -> bool:
        """Whether it can be read."""
        return bool(self.reader)

    @property
    def writes(self) -> bool:
        """Whether it can be written."""
        return bool(self.writer)


# --- reports


@dataclass(slots=True)
class ConversionReport:
    """What a conversion did."""

    source: str
    target: str
    format: str
    to: str
    episodes: int = 0
    steps: int = 0
    bytes_written: int = 0
    skipped: int = 0
    """Episodes that an earlier run had finished."""
    failed: dict[str, str] = field(default_factory=dict)
    """By the name of an episode, why it could not be converted."""
    changes: Counter[FieldChange] = field(default_factory=Counter)
    """How many episodes have each change."""
    warnings: list[str] = field(default_factory=list)
    """What is likely to be a mistake of the call, such as a condition on a field that no episode has."""

    def add(self, changes: Sequence[FieldChange]) -> None:
        """Counts the changes of one more episode."""
        self.changes.update(changes)

    def of_kind(self, *kinds: Kind) -> Iterator[tuple[FieldChange, int]]:
        """Changes of these kinds, and the number of episodes that have them."""
        return ((change, count) for change, count in self.changes.items() if change.kind in kinds)

    def as_text(self) -> str:
        """All of it for people."""
        lines = [
            f"{self.source} ({self.format})",
            f"  to {self.target} ({self.to})",
            f"  {_episodes(self.episodes)}, {self.steps} steps, {self.bytes_written} bytes",
        ]
        if self.skipped:
            lines.append(f"  {self.skipped} of the episodes were converted by an earlier run")
        lines += [f"  warning: {warning}" for warning in self.warnings]
        lines += self.field_lines()
        for kind in KINDS[1:]:
            rows = list(self.of_kind(kind))
            if rows:
                lines += ["", f"{kind}:"]
                lines += [f"  {one.field}: {one.detail} ({_episodes(n)})" for one, n in rows]
        if self.failed:
            lines += ["", "not converted:"]
            lines += [f"  {name}: {problem}" for name, problem in self.failed.items()]
        return "\n".join(lines)

    def field_lines(self) -> list[str]:
        """Where fields went that are unchanged, for people: fields of a group that went to the same place share a line."""
        groups: dict[tuple[str, str, int], list[tuple[str, str]]] = {}
        for change, count in self.of_kind("kept"):
            place = _pattern(change.field, change.detail)
            groups.setdefault((*place, count), []).append((change.field, change.detail))
        rows = [
            (_fields(source, fields), fields[0][1] if len(fields) == 1 else target, count)
            for (source, target, count), fields in groups.items()
        ]
        if not rows:
            return []
        width = min(_WIDEST, max(len(source) for source, _, _ in rows[:_MOST_ROWS]))
        lines = ["", "fields:"]
        for source, target, count in rows[:_MOST_ROWS]:
            of = "" if count == self.episodes else f" ({_episodes(count)})"
            lines.append(f"  {source:{width}} -> {target}{of}")
        if len(rows) > _MOST_ROWS:
            lines.append(f"  {len(rows) - _MOST_ROWS} more lines: see the report in JSON")
        return lines

    def as_json(self) -> dict[str, Any]:
        """All of it as JSON."""
        facts = {name: getattr(self, name) for name in self.__slots__ if name != "changes"}
        return {
            **facts,
            "changes": [
                {**asdict(change), "episodes": count} for change, count in self.changes.items()
            ],
        }

    def save(self, *, beside: str | None = None) -> None:
        """Writes it as JSON and as text, beside the target, or beside another path or URL."""
        for ending, text in (
            ("json", json.dumps(self.as_json(), indent=1)),
            ("txt", self.as_text()),
        ):
            write_file(
                f"{beside or self.target}.report.{ending}", [f"{text}\n".encode()], fsync=False
            )

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ConversionReport:
        """What `as_json` was called on."""
        changes: Counter[FieldChange] = Counter()
        for row in fields["changes"]:
            changes[FieldChange(row["kind"], row["field"], row["detail"])] += row["episodes"]
        return cls(**{**fields, "changes": changes})


def _episodes(count: int) -> str:
    return "1 episode" if count == 1 else f"{count} episodes"


def _pattern(field: str, detail: str) -> tuple[str, str]:
    """A field and what it became, with `*` for the parts of the name that stayed."""
    block = re.split("[, ]", detail, maxsplit=1)[0]
    before, after = field.split("/"), block.split("/")
    same = 0
    while same < min(len(before), len(after)) and before[-1 - same] == after[-1 - same]:
        same += 1
    if not same:
        return "", detail
    source, target = ("/".join([*names[:-same], "*"]) for names in (before, after))
    return source, "the same names" if target == "*" else target + detail[len(block) :]


def _fields(pattern: str, fields: Sequence[tuple[str, str]]) -> str:
    """What a line says about one field or several."""
    names = [name for name, _ in fields]
    if len(names) == 1:
        return names[0]
    if "/" in pattern:
        return f"{pattern} ({len(names)} fields)"
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return f"{', '.join(names[:2])}{more}"


def check_options(options: ReadOptions | WriteOptions) -> None:
    """Refuses options that no format knows."""
    if options.video not in VIDEO:
        raise InvalidArgument(
            "unknown way to treat video", expected=", ".join(VIDEO), found=options.video
        )


def inside(folder: str | Path, relative: str, *, what: str) -> str:
    """A path below a folder, as a file of the dataset states it; refuses one that leads elsewhere.

    Snapshots in the cache of the Hugging Face Hub are links to files in a folder `blobs` beside them, which are allowed.
    """
    root = os.path.realpath(folder)
    try:
        path = os.path.realpath(os.path.join(root, relative))
    except ValueError:  # a zero byte, or half of a character
        path = os.path.dirname(root)
    allowed = (root, *_blobs_of(root))
    if os.path.isabs(relative) or not any(
        os.path.commonpath([one, path]) == one for one in allowed
    ):
        from shard_format.errors import UnsafePath

        raise UnsafePath(
            f"{what} leads out of the dataset",
            path=os.fspath(folder),
            found=relative,
            hint="if it is a link to a file that you trust, copy the dataset with: cp -rL",
        )
    return path


def _blobs_of(root: str) -> list[str]:
    """Where the files of a snapshot of the Hub are: `<cache>/datasets--<name>/blobs` for `…/snapshots/<revision>`."""
    parts = root.split(os.sep)
    return [
        os.sep.join([*parts[:place], "blobs"])
        for place in range(1, len(parts) - 1)
        if parts[place] == "snapshots" and parts[place - 1].startswith("datasets--")
    ]
