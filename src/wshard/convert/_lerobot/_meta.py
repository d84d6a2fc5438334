"""The tables in `meta/` of a LeRobot dataset: episodes, tasks and statistics."""

from __future__ import annotations

import glob
import json
import marshal
import os
from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_format.cache import BoundedCache
from shard_format.errors import BadMetadata
from shard_format.listing import natural_key
from shard_format.sources import read_file
from wshard.convert._lerobot._layout import INFO, STATISTICS, SUBTASKS, TASKS, strict_json
from wshard.convert._lerobot._tables import DataFile
from wshard.convert._model import inside, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wshard.convert._lerobot._layout import Info

_MOST_JSON_LINES: Final = 1 << 30
_ROWS_AT_ONCE: Final = 64
_KNOWN: Final = (
    *("episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index"),
)
_PLACE: Final = ("chunk_index", "file_index", "from_timestamp")
_DERIVED: Final = ("tasks", "dataset_to_index", "meta/episodes/", "videos/", "stats/")
"""Other columns of a table of episodes, which follow from the rest or are read as statistics."""

_FOLDERS: Final = ("meta", "data", "videos")
_META_FILES: Final = (
    *(INFO, STATISTICS, TASKS, SUBTASKS, "meta/tasks.jsonl"),
    *("meta/episodes", "meta/episodes.jsonl", "meta/episodes_stats.jsonl"),
)


class MetaEntry(NamedTuple):
    """What `meta/` says about one episode."""

    number: int
    length: int
    fields: dict[str, Any]
    """Its row, or what of it says where its files are."""
    place: tuple[str, int] | None
    """The file and the row with its statistics; None before v3.0."""


class Details(NamedTuple):
    """What else there is about one episode."""

    statistics: dict[str, Any]
    more: dict[str, Any]
    """Columns of the table of episodes that lerobot itself does not write."""


class Meta:
    """What `meta/` says, besides `info.json`.

    Args:
        folder: of the dataset.
        info: its `info.json`.
    """

    def __init__(self, folder: str, info: Info) -> None:
        self._folder = folder
        self._info = info
        self.is_v3 = info.version == "v3.0"
        """Whether files hold many episodes."""
        self._tables = BoundedCache[str, DataFile](count=1)
        self.tasks = self._read_tasks()
        self.subtasks = self._read_subtasks()
        self.entries = list(self._read_entries())
        if len({entry.number for entry in self.entries}) < len(self.entries):
            raise BadMetadata("two episodes have the same number", path=self._file("meta"))
        self.facts = self._read_facts()
        """What all episodes have in common: each gets a copy of its own, which `marshal` makes five times as fast as JSON."""
        self.unread = self._unread()
        """Files and folders of the dataset that are not read."""
        self._lines: dict[int, bytes] | None = None
        self._details: dict[tuple[str, int], Details] = {}

    def close(self) -> None:
        """Closes the table of episodes."""
        self._tables.clear()

    def _file(self, *parts: str) -> str:
        return os.path.join(self._folder, *parts)

    def _unread(self) -> list[str]:
        found = [name for name in os.listdir(self._folder) if name not in _FOLDERS]
        known = {os.path.basename(name) for name in _META_FILES}
        found += [f"meta/{name}" for name in os.listdir(self._file("meta")) if name not in known]
        named = (name for name in found if not os.path.basename(name).startswith("."))
        return sorted(name for name in named if self._has_content(name))

    def _has_content(self, name: str) -> bool:
        """Whether this is not a folder without files: lerobot leaves those of its recordings behind."""
        path = self._file(name)
        return not os.path.isdir(path) or any(files for _, _, files in os.walk(path))

    def _read_facts(self) -> bytes:
        facts = {name: value for name, value in self._info.fields.items() if name != "features"}
        path = self._file(STATISTICS)
        if os.path.exists(path):
            facts["statistics"] = read_json(path)
        return marshal.dumps(strict_json(facts))

    def _read_tasks(self) -> dict[int, str]:
        if self.is_v3:
            path = self._file(TASKS)
            rows = _texts(path, "task_index") if os.path.exists(path) else []
        else:
            path = self._file("meta/tasks.jsonl")
            lines = _json_lines(path) if os.path.exists(path) else ()
            rows = [(line.get("task_index"), line.get("task")) for line in lines]
        return _checked(path, rows)

    def _read_subtasks(self) -> list[str] | None:
        path = self._file(SUBTASKS)
        if not os.path.exists(path):
            return None
        found = _checked(path, _texts(path, "subtask_index"))
        return [found[number] for number in sorted(found)]

    def _read_entries(self) -> Iterator[MetaEntry]:
        if not self.is_v3:
            path = self._file("meta/episodes.jsonl")
            for fields in _json_lines(path):
                yield _entry(path, fields, None)
            return
        pattern = os.path.join(glob.escape(self._file("meta", "episodes")), "*", "*.parquet")
        files = sorted(glob.glob(pattern), key=natural_key)
        if not files:
            raise BadMetadata(
                "no table of episodes", path=self._file("meta", "episodes"), expected="*/*.parquet"
            )
        cameras = [name for name, each in self._info.features.items() if each.dtype == "video"]
        for path in files:
            inside(self._folder, os.path.relpath(path, self._folder), what="a table of episodes")
            places = (f"videos/{key}/{name}" for key in cameras for name in _PLACE)
            known = [*_KNOWN, "tasks", *places]
            for number, fields in enumerate(self._table(path).rows(known)):
                yield _entry(path, fields, (path, number))

    def _table(self, path: str) -> DataFile:
        """A table of episodes. One stays open, for the details of its episodes."""
        return self._tables.get_or_make(path, lambda: DataFile(path))

    @cached_property
    def unused_tasks(self) -> list[str]:
        """Tasks that no episode has."""
        told: list[Any] = [entry.fields.get("tasks") for entry in self.entries]
        if not all(isinstance(texts, list) for texts in told):
            return []  # the dataset does not say it
        used = {text for texts in told for text in texts if isinstance(text, str)}
        return [text for text in self.tasks.values() if text not in used]

    def details(self, entry: MetaEntry) -> Details:
        """Statistics and other facts about an episode, which are read when it is."""
        if entry.place is not None:
            # Hand each out once, so that its receiver may change it.
            found = self._details.pop(entry.place, None)
            if found is None:
                path, row = entry.place
                rows = _details_from(self._table(path), row)
                following = {(path, number): each for number, each in enumerate(rows, row)}
                found = following.pop(entry.place)
                self._details = following
            return found
        if self._lines is None:
            path = self._file("meta/episodes_stats.jsonl")
            lines = read_file(path, _MOST_JSON_LINES).splitlines() if os.path.exists(path) else []
            self._lines = dict(_numbered(path, lines))
        stated = json.loads(self._lines.get(entry.number, b"{}")).get("stats")
        more = {name: each for name, each in entry.fields.items() if is_more(name)}
        return Details(strict_json(stated if isinstance(stated, dict) else {}), strict_json(more))


def _entry(path: str, fields: dict[str, Any], place: tuple[str, int] | None) -> MetaEntry:
    number, length = fields.get("episode_index"), fields.get("length")
    if type(number) is not int or type(length) is not int or number < 0 or length < 1:
        raise BadMetadata(
            "not an episode",
            path=path,
            expected="an episode_index, and a length of at least 1",
            found=f"{number!r}, {length!r}",
        )
    return MetaEntry(number, length, fields, place)


def _texts(path: str, number: str) -> list[tuple[Any, Any]]:
    """The numbers and texts of a table with two columns, one of which is the index of a data frame."""
    with closing(DataFile(path)) as table:
        others = [name for name in table.schema.names if name != number]
        if not others:
            raise BadMetadata("no column with texts", path=path)
        # Versions of lerobot call it `task` or leave it to pandas to name it.
        text = next((name for name in others if name in ("task", "subtask")), others[0])
        return [(row.get(number), row[text]) for row in table.rows([number, text])]


def _checked(path: str, rows: Iterable[tuple[Any, Any]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for number, text in rows:
        if type(number) is not int or not isinstance(text, str):
            raise BadMetadata("not a task", path=path, found=f"{number!r}: {text!r}")
        found[number] = text
    return found


def _json_lines(path: str) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_file(path, _MOST_JSON_LINES).splitlines(), 1):
        if line.strip():
            yield _parse_line(path, number, line)


def _parse_line(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadMetadata(f"not JSON: {error}", path=path, entry=f"line {number}") from None
    if not isinstance(fields, dict):
        raise BadMetadata("not a JSON object", path=path, entry=f"line {number}")
    return fields


def is_more(name: str) -> bool:
    """Whether a column of a table of episodes is one that lerobot itself does not write."""
    return name not in _KNOWN and not name.startswith(_DERIVED)


def _details_from(table: DataFile, start: int) -> list[Details]:
    """The statistics and other facts of episodes that follow each other in a table."""
    names = [name for name in table.schema.names if name.startswith("stats/") or is_more(name)]
    features: dict[str, dict[str, list[Any]]] = {}
    found = [Details({}, {}) for _ in range(_ROWS_AT_ONCE)]
    for name, values in table.values(names, start, start + _ROWS_AT_ONCE).items():
        rows = strict_json(values)
        if name.startswith("stats/"):
            feature, _, kind = name.removeprefix("stats/").rpartition("/")
            features.setdefault(feature, {})[kind] = rows
        else:
            for row, value in zip(found, rows, strict=False):
                row.more[name] = value
    for feature, kinds in features.items():
        for row, cells in zip(found, zip(*kinds.values(), strict=True), strict=False):
            row.statistics[feature] = dict(zip(kinds, cells, strict=True))
    return found


def _numbered(path: str, lines: list[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines of JSON by the number of their episode. They are long, and most are not needed soon."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            fields = _parse_line(path, number, line)
            episode = fields.get("episode_index")
            if type(episode) is int:
                yield episode, line


def split_of(splits: Any, number: int) -> str | None:  # noqa: ANN401 - whatever info.json has
    """The split that an episode belongs to."""
    for name, text in splits.items() if isinstance(splits, dict) else ():
        first, colon, stop = text.partition(":") if isinstance(text, str) else ("", "", "")
        is_range = colon and first.isdecimal() and stop.isdecimal() and len(text) < 40
        if is_range and int(first) <= number < int(stop):
            return str(name)
    return None
