"""A conversion whose target is behind a URL: what is finished, and what is made of it at the end."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from shard_format.atomic import write_file
from shard_format.errors import BadMetadata, FileThere, ShardError
from shard_format.parallel import for_each
from shard_format.transfer import (
    base_name,
    copy_urls,
    names_below,
    read_anywhere,
    remove_urls,
    upload_tree,
)
from wshard.convert._work import SUFFIX, check_same_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["RemoteWork"]

_PLAN: Final = "plan.json"
_READ_AT_ONCE: Final = 16


class RemoteWork:
    """What `WorkFolder` is, for a target behind a URL.

    `<target>.converting/` has the plan, and a note for each finished episode.

    A folder of WShard files gets each episode as soon as it is finished; the report beside it appears when all are there.
    Anything else is made at the end of episodes in `<target>.converting/episodes`. Object stores have no locks: two runs at the same
    time do the same work twice.

    Args:
        target: URL of what will appear; a percent sign in its name is escaped.
        is_folder: whether it is a folder of WShard files.
        check: called before anything is written; raises if something at the target may not be replaced.
    """

    notes: str
    """The folder of the notes of this run, which the workers write."""

    def __init__(self, target: str, *, is_folder: bool, check: Callable[[], None]) -> None:
        self._target = target
        self._is_folder = is_folder
        self._check = check
        self.path = target + SUFFIX
        self.episodes = target if is_folder else f"{self.path}/episodes"
        self.lines: list[dict[str, Any]] = []
        self._sizes: dict[str, int] = {}
        self._has_begun = False
        self._folder = tempfile.TemporaryDirectory(prefix="shard-", ignore_cleanup_errors=True)
        # Under its final name: writers look at the ending.
        self.new = os.path.join(self._folder.name, base_name(target))

    def begin(self, plan: dict[str, Any], *, resume: bool) -> None:
        """As of `WorkFolder`. An earlier run without a finished episode leaves nothing to go on with."""
        listed = names_below(self.path)
        found = self._read(_PLAN) if _PLAN in listed else {}
        run = str(found.get("run", ""))
        notes = [name for name in listed if run and name.startswith(f"{run}/")]
        self._sizes = self._episode_sizes() if run else {}
        if not notes and not self._sizes:
            self._check()
            run = secrets.token_hex(8)
            document = {**plan, "run": run}
            write_file(f"{self.path}/{_PLAN}", [json.dumps(document).encode()], fsync=False)
        elif not resume:
            raise FileThere(
                "an earlier conversion was not finished",
                path=self.path,
                hint="continue it with resume=True, --resume; or delete this folder and the target",
            )
        else:
            check_same_plan(found, plan, self.path)
            for_each(notes, self._read_note, _READ_AT_ONCE)
        self.notes = f"{self.path}/{run}"
        self._has_begun = True

    def _episode_sizes(self) -> dict[str, int]:
        found = names_below(self.episodes)
        return {unquote(name): version.size for name, version in found.items()}

    def _read_note(self, name: str) -> None:
        self.lines.append(self._read(name))

    def _read(self, name: str) -> dict[str, Any]:
        """A JSON object of the conversion."""
        url = f"{self.path}/{name}"
        try:
            found = json.loads(read_anywhere(url))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise BadMetadata(
                "not written by a conversion", path=url, hint="delete it, and start again"
            )
        return found

    def has(self, file: str, nbytes: int) -> bool:
        """Whether an earlier run has made the file of an episode."""
        return self._sizes.get(file) == nbytes

    def finished(self, line: dict[str, Any]) -> None:
        """The worker has written the note already."""

    def keep_only(self, files: Iterable[str]) -> None:
        """Removes episodes of earlier runs that are not wanted any more."""
        known = {line["file"] for line in self.lines if "file" in line} & self._sizes.keys()
        remove_urls(f"{self.episodes}/{file}" for file in known.difference(files))

    def place(self, new: str, _report: dict[str, Any]) -> None:
        """Puts what was made at the target, if it is not there already."""
        if new.startswith(f"{self.path}/"):
            copy_urls([(new, self._target)])
        elif new != self._target:
            upload_tree(new, self._target)

    def append(self, _line: dict[str, Any]) -> None:
        """The report is written next."""

    def placed(self) -> dict[str, Any] | None:
        """A run that was killed near its end does the end again."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Removes what is not needed any more, unless an error leaves finished episodes."""
        self._folder.cleanup()
        if not self._has_begun:
            return
        if kind is None:
            self._clear()
            return
        with suppress(ShardError):  # the first error is the one to report
            if (
                not any("/" in name for name in names_below(self.path))
                and not self._episode_sizes()
            ):
                self._clear()

    def _clear(self) -> None:
        # The plan goes first: without it, notes mean nothing.
        remove_urls([f"{self.path}/{_PLAN}"])
        remove_urls(f"{self.path}/{name}" for name in names_below(self.path))
