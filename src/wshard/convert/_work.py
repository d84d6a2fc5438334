"""The folder that holds a dataset until it is complete: a lock, a journal of what is finished, and one atomic switch at the end."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from shard_format.atomic import (
    close_locked,
    is_still_named,
    sync_folder,
    take_lock,
    write_all,
)
from shard_format.errors import FileThere, InvalidArgument, ShardIOError
from shard_format.sources import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["SUFFIX", "WorkFolder", "check_same_plan", "size_of", "sync_tree"]

SUFFIX: Final = ".converting"
_JOURNAL: Final = "journal.jsonl"
_HERE: Final = -100  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE
_CANNOT_EXCHANGE: Final = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class WorkFolder:
    """`<target>.converting`, which one process at a time writes to.

    A process that is killed leaves it. The next one for the same target goes on with it or clears it, so that there is
    never more than one. The journal has a line with the plan, one for each finished episode, and one with the report,
    which is written before the target is put in place.

    Args:
        target: what will appear. If it is a link, what it points to will be replaced.

    Raises:
        ShardIOError: another process writes to the same target.
        OSError: the folder cannot be made. No method wraps the errors of the system.
    """

    notes = ""
    """Workers write no notes: this process does, to the journal."""

    def __init__(self, target: str) -> None:
        self._target = os.path.realpath(target)
        self.path = self._target + SUFFIX
        self.episodes = os.path.join(self.path, "episodes")
        """The folder for finished episodes, a file each."""
        # Under its final name: writers look at the ending.
        self.new = os.path.join(self.path, "new", os.path.basename(self._target))
        """Where to write what will become the target."""
        self._old = os.path.join(self.path, "old")
        self._journal = os.path.join(self.path, _JOURNAL)
        self.lines: list[dict[str, Any]] = []
        """What the journal held when it was opened, without the plan."""
        self._is_worth_keeping = False
        self._descriptor = self._lock()

    def _lock(self) -> int:
        while True:
            os.makedirs(self.path, exist_ok=True)
            if not os.path.lexists(self._journal) and os.listdir(self.path):
                raise FileThere(
                    "this folder is needed for the conversion, and holds something else",
                    path=self.path,
                    hint="move it away",
                )
            try:
                descriptor = os.open(
                    self._journal,
                    os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0),
                    0o666,
                )
            except FileNotFoundError:  # another process finished just now
                continue
            if not take_lock(descriptor, self._journal):
                os.close(descriptor)
                raise ShardIOError(
                    "another process writes to this target",
                    path=self._target,
                    hint="wait for it, or choose another name",
                )
            if is_still_named(descriptor, self._journal):
                return descriptor
            os.close(descriptor)

    def begin(self, plan: dict[str, Any], *, resume: bool) -> None:
        """Continues what an earlier run left, or starts from nothing; then `lines` is empty.

        Args:
            plan: what the finished episodes depend on.
            resume: whether to go on. A run that finished no episode leaves nothing to go on with.

        Raises:
            FileThere: an earlier run finished episodes, and it is not to be resumed.
            InvalidArgument: the earlier run had another plan.
        """
        found, self.lines = self._read()
        # Only where two folders cannot be swapped: what was at the target, moved away and not replaced.
        if os.path.lexists(self._old) and not os.path.lexists(self._target):
            os.rename(self._old, self._target)
        is_placed = self.placed() is not None
        self._is_worth_keeping = not is_placed and any("file" in line for line in self.lines)
        if not self._is_worth_keeping:
            if not (is_placed and resume):
                self.lines = []
                self._clear()
                self.append(plan, sync=True)
                os.makedirs(self.episodes)
                os.mkdir(os.path.dirname(self.new))
            return
        if not resume:
            raise FileThere(
                "an earlier conversion was not finished",
                path=self.path,
                hint="continue it with resume=True, --resume; or delete the folder",
            )
        check_same_plan(found, plan, self.path)
        _remove(
            os.path.dirname(self.new)
        )  # what the earlier run wrote of a target in another format
        os.mkdir(os.path.dirname(self.new))

    def _read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The plan, and the lines after it. A kill may have cut off any line."""
        found: list[dict[str, Any]] = []
        for line in read_file(self._journal).splitlines():
            with suppress(ValueError):
                one = json.loads(line)
                if isinstance(one, dict):
                    found.append(one)
        return (found[0] if found else {}), found[1:]

    def append(self, line: dict[str, Any], *, sync: bool = False) -> None:
        """Adds a line to the journal. Begins a line of its own: a kill may have cut off the one before."""
        write_all(self._descriptor, [f"\n{json.dumps(line)}\n".encode()])
        if sync:
            os.fsync(self._descriptor)

    def has(self, file: str, nbytes: int) -> bool:
        """Whether an earlier run has made the file of an episode."""
        try:
            return os.path.getsize(os.path.join(self.episodes, file)) == nbytes
        except OSError:
            return False

    def finished(self, line: dict[str, Any]) -> None:
        """Notes a finished episode. From now on an error leaves the folder to be resumed."""
        self.append(line)
        self._is_worth_keeping = True

    def keep_only(self, files: Iterable[str]) -> None:
        """Removes what killed processes left among the episodes, and episodes that are not wanted any more."""
        for name in set(os.listdir(self.episodes)).difference(files):
            _remove(os.path.join(self.episodes, name))

    def place(self, new: str, report: dict[str, Any]) -> None:
        """Puts a complete file or folder in the place of the target, in one step. What was there goes."""
        os.makedirs(os.path.dirname(self._target), exist_ok=True)
        self.append({"report": report, "inode": os.stat(new).st_ino}, sync=True)
        if not os.path.lexists(self._target):
            os.rename(new, self._target)
        elif os.path.isdir(new) or os.path.isdir(self._target):
            if not _exchange(new, self._target):
                # A kill between these lines leaves both in this folder, where `begin` finds them.
                os.rename(self._target, self._old)
                os.rename(new, self._target)
        else:
            os.replace(new, self._target)
        sync_folder(os.path.dirname(self._target))

    def placed(self) -> dict[str, Any] | None:
        """The report of an earlier run that was killed after it had put the target in place; None if none was."""
        for line in reversed(self.lines):
            if "report" in line:
                inode, report = line.get("inode"), line["report"]
                with suppress(FileNotFoundError):
                    if inode is None or os.stat(self._target).st_ino == inode:
                        return dict(report)
                break
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Removes the folder, unless an error leaves finished episodes in it."""
        try:
            if kind is None or not self._is_worth_keeping:
                self._clear()
                os.unlink(self._journal)
                os.rmdir(self.path)
        except OSError:
            if kind is None:
                raise
            # The first error is the one to report.
        finally:
            close_locked(self._descriptor)

    def _clear(self) -> None:
        """Removes all but the journal, which goes last: without it the folder could be anybody's."""
        for name in os.listdir(self.path):
            if name != _JOURNAL:
                _remove(os.path.join(self.path, name))
        os.ftruncate(self._descriptor, 0)


def check_same_plan(found: dict[str, Any], wanted: dict[str, Any], path: str) -> None:
    """Refuses to go on with a conversion that had another plan.

    Args:
        found: its plan, as JSON.
        wanted: the plan of this run.
        path: where the earlier conversion is.
    """
    wanted = json.loads(json.dumps(wanted))
    changed = [key for key in wanted if found.get(key) != wanted[key]]
    if changed:
        raise InvalidArgument(
            "the earlier conversion was a different one",
            path=path,
            expected=f"{changed[0]}: {found.get(changed[0])!r}",
            found=repr(wanted[changed[0]]),
            hint="delete the folder to start again",
        )


def size_of(path: str) -> int:
    """Bytes of a file, or of all files of a folder."""
    return sum(map(os.path.getsize, _files_of(path)))


def sync_tree(path: str) -> None:
    """Makes sure that a file, or all files of a folder, survive a loss of power."""
    for file in _files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for folder, _, _ in os.walk(path, topdown=False):
        sync_folder(folder)


def _files_of(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]


def _remove(path: str) -> None:
    """Removes a file or folder, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError):
            os.unlink(path)


def _exchange(one: str, other: str) -> bool:
    """Swaps two names in one step; False where the system or the file system cannot."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CANNOT_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), other)
