"""What the table of episodes shows: a row for each, from the catalogue."""

from __future__ import annotations

import json
import threading
from math import isfinite
from typing import TYPE_CHECKING, Any

from shard_format.errors import InvalidArgument, ShardError
from wshard.catalogue import NO_PACK, CatalogueOpener, parse_facts, select
from wshard.partial import open_partial

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from wshard.catalogue import Catalogue, PackOfEpisodes
    from wshard.viewer._files import ViewedFile, ViewedFiles

    OpenPack = Callable[[str, Mapping[str, Any] | None], PackOfEpisodes]

_LONGEST_PROBLEM = 500
_LONGEST_TEXT = 200
_MOST_LEFT_OUT = 1000


class EpisodeList:
    """The rows of all episodes of the viewer, which are made again when a file has changed.

    Args:
        files: where the episodes are.
        open_pack: opens packs of episodes; None leaves packs out.
    """

    def __init__(self, files: ViewedFiles, open_pack: OpenPack | None) -> None:
        self._files, self._open_pack = files, open_pack
        self._lock = threading.Lock()
        self._seen: object = None
        self._document: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """The rows, and what was left out, as the page gets them."""
        # One thread reads all files, and the others wait for what it finds.
        with self._lock:
            files = self._files.list()
            if self._seen != files:
                self._document = self._made(files)
                self._seen = files
            return self._document

    def _made(self, files: Sequence[ViewedFile]) -> dict[str, Any]:
        left_out = [{"name": one.name, "problem": one.problem} for one in self._files.left_out]
        by_location = {file.location: file for file in files}
        kinds = {"episode", "manifest", *(["pack"] if self._open_pack else [])}
        named = [file.location for file in files if file.kind in kinds]
        rows: list[dict[str, Any]] = []

        def leave_out(path: str, error: ShardError) -> None:
            pack = next((one for one in by_location if path.startswith(one + "/")), path)
            name = path if pack not in by_location else by_location[pack].name + path[len(pack) :]
            left_out.append({"name": name, "problem": str(error)[:_LONGEST_PROBLEM]})

        # The saved index of a folder is used, and none is written: the viewer changes no file.
        folders = self._files.folders
        is_one_folder = len(folders) == 1 and all(one.startswith(folders[0]) for one in named)
        # A folder with links that lead elsewhere is not read as a whole.
        is_one_folder &= not left_out
        opener = CatalogueOpener(True, leave_out, None, self._open_pack, saves=False)
        if named:
            try:
                catalogue = select(opener.open(folders[0] if is_one_folder else named), None, None)
                rows += _rows_of(catalogue, by_location, self._files)
            except ShardError as error:
                # If some were left out, this one may only say that no other is left.
                if not (left_out and isinstance(error, InvalidArgument)):
                    leave_out(self._files.title, error)
        for file in files:
            if file.kind == "recording":
                try:
                    rows.append(_row_of_recording(file))
                except ShardError as error:
                    left_out.append({"name": file.name, "problem": str(error)[:_LONGEST_PROBLEM]})
        return {"version": 1, "rows": rows, "left_out": left_out[:_MOST_LEFT_OUT]}


def _rows_of(
    catalogue: Catalogue, by_location: Mapping[str, ViewedFile], files: ViewedFiles
) -> list[dict[str, Any]]:
    rows = []
    locations = catalogue.locations
    for number, row in enumerate(catalogue.rows):
        pack = int(locations.pack_of[number])
        path = locations[number] if pack == NO_PACK else locations.pack_path(pack)
        file = by_location.get(path)
        # Behind a link that leads out of the folder, or beside what a catalogue names.
        if file is None or not files.shows(file, locations[number]):
            continue
        info = catalogue.facts_of(number)
        rate = parse_facts(catalogue.facts[number]).get("tick_hz")
        record = {} if pack == NO_PACK else _record_of(locations.names[number], int(row["record"]))
        rows.append(
            {
                "file": file.number,
                "record": None,
                "id": _text(info.id),
                "env_id": _text(info.env_id) or None,
                "task": _text(info.metadata.get("task")),
                "length": info.length,
                "duration_s": _duration(info.length, rate),
                "return": info.return_,
                "success": info.success,
                "channels": _channels_in(catalogue.forms[int(row["form"])]),
                "bytes": int(row["size"]),
                "findings": None,
                **record,
            }
        )
    return rows


def _record_of(name: str, number: int) -> dict[str, Any]:
    """Where an episode is in its pack: the key of its record, and the record's number."""
    return {"record": name.removesuffix(".wshard"), "record_number": number}


def _row_of_recording(file: ViewedFile) -> dict[str, Any]:
    """What is known of a recording that is not finished: only what it has flushed."""
    episode = open_partial(file.location)
    try:
        return {
            "file": file.number,
            "record": None,
            "id": _text(episode.id),
            "env_id": _text(episode.env_id) or None,
            "task": _text(episode.metadata.get("task")),
            "length": episode.length,
            "duration_s": _duration(episode.length, episode.timebase.tick_hz),
            "return": None,
            "success": None,
            "channels": sum(1 for _ in episode.blocks()),
            "bytes": file.size,
            "findings": None,
        }
    finally:
        episode.close()


def _channels_in(form: str) -> int | None:
    """How many channels an episode has, by its line in the index, which may be damaged."""
    try:
        return sum(row is not None for row in json.loads(form).values())
    except (ValueError, AttributeError):
        return None


def _text(value: object) -> str | None:
    """Text of a file, which may be megabytes."""
    return value[:_LONGEST_TEXT] if isinstance(value, str) else None


def _duration(steps: int, rate: object) -> float | None:
    if not isinstance(rate, (int, float)) or not isfinite(rate) or rate <= 0:
        return None
    return steps / rate
