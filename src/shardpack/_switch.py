"""Replacing a set of shards by another one, so that a crash leaves all of the old set or all of the new one.

A rename replaces one file at a time, a set has many. So the new shards are first written, complete and synced,
into a folder beside the old ones: a hidden one, or the folder of the parts that several machines have written. Then
a journal is written, the hidden file `.shardpack-switch`: from that moment on the new set counts. The new shards
are renamed over the old ones, and after them the set file; old shards that have no successor are removed, and at
last the journal is removed.

A process that dies before the journal is written leaves the old set untouched, and a hidden folder that the next
replacement removes. A process that dies afterwards leaves the journal. Whoever opens the set next, to read or to
write, carries out the rest of it first. A lock on the journal keeps two processes from doing so at once; the
kernel releases it when a process dies.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
import stat
from typing import TYPE_CHECKING, Any, Final

from shard_format.atomic import (
    TEMPORARY,
    close_locked,
    is_abandoned,
    is_still_named,
    make_locked_folder,
    remove_flat,
    sync_folder,
    take_lock,
    write_all,
)
from shard_format.canonical_json import parse_foreign
from shard_format.codecs import crc32c
from shard_format.errors import BadMetadata, ShardError, ShardIOError, UnsafePath
from shard_format.registry import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

JOURNAL: Final = ".shardpack-switch"
# The journal names every file of a set, and is never compressed.
_PLAN_LIMITS: Final = Limits(max_json_bytes=100 << 20, max_json_nodes=10_000_000)
_SUFFIX: Final = ".new"
_STAGING: Final = re.compile(r"\..*\.[0-9a-f]{12}\.new", re.DOTALL)
# Never waits for a pipe, and follows no link.
_JOURNAL_FLAGS: Final = os.O_RDWR | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)


class Replacement:
    """New shards that take the place of old ones all at once.

    Owns: a hidden folder with the new shards, locked while this process writes to it.

    Args:
        folder: where the old shards are.
        label: names the set, so that the next replacement finds what a killed one left.
        fsync: whether to sync files and folders.
    """

    def __init__(self, folder: str, label: str, *, fsync: bool) -> None:
        self._folder = folder or os.curdir
        self._fsync = fsync
        self._is_decided = False
        start = os.path.join(self._folder, f".{label}.")
        try:
            _remove_abandoned(self._folder, glob.glob(f"{glob.escape(start)}*{_SUFFIX}"))
            self._staging, self._lock = make_locked_folder(
                lambda: f"{start}{secrets.token_hex(6)}{_SUFFIX}"
            )
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot write", self._folder) from error

    def path_of(self, name: str) -> str:
        """Where to write the new shard of this name."""
        return os.path.join(self._staging, name)

    def commit(self, new: list[str], find_old: Callable[[], list[str]]) -> None:
        """Put the new shards in place of the old ones.

        Args:
            new: names of the new shards, all of which are complete.
            find_old: lists the names of the old shards, as they are at that moment.
        """

        def decide(is_decided: bool) -> None:
            self._is_decided = is_decided

        try:
            _switch(
                self._staging, [(name, name) for name in new], find_old, decide, fsync=self._fsync
            )
        finally:
            self._unlock()

    def abort(self) -> None:
        """Drop the new shards, unless the journal counts already. You can call it at any time, also twice."""
        self._unlock()
        if not self._is_decided:
            _remove_staging(self._staging)

    def _unlock(self) -> None:
        descriptor, self._lock = self._lock, -1
        if descriptor >= 0:
            close_locked(descriptor)


def move_into_place(
    staging: str,
    moves: Sequence[tuple[str, str]],
    find_old: Callable[[], list[str]],
    *,
    leftovers: Sequence[str],
    fsync: bool,
) -> None:
    """Put files of a folder in place of files beside that folder, all at once.

    Args:
        staging: the folder, which is removed if nothing is left in it.
        moves: for each file its name in the folder and its new name. The last one, the set file, is removed if nothing
            is replaced.
        find_old: lists the names of the files to replace, as they are at that moment.
        leftovers: files of the folder that are not needed any more afterwards.
        fsync: whether to sync files and folders.
    """
    is_decided = False

    def decide(counts: bool) -> None:
        nonlocal is_decided
        is_decided = counts

    try:
        _switch(staging, moves, find_old, decide, leftovers=leftovers, fsync=fsync)
    except BaseException:
        if not is_decided:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(staging, moves[-1][0]))
        raise


def _switch(
    staging: str,
    moves: Sequence[tuple[str, str]],
    find_old: Callable[[], list[str]],
    decide: Callable[[bool], None],
    *,
    leftovers: Sequence[str] | None = None,
    fsync: bool,
) -> None:
    """Write the journal, which decides, and carry it out; `decide` is told whether the new files count."""
    folder = os.path.dirname(staging) or os.curdir
    try:
        if fsync:
            sync_folder(staging)
        with _locked_journal(folder, create=True) as journal:
            _carry_out(folder, journal)  # what another set's replacement has left
            for staged, _ in moves:  # before the journal decides
                os.stat(os.path.join(staging, staged))
            new = {name for _, name in moves}
            plan = {
                "staging": os.path.basename(staging),
                "new": [list(move) for move in moves],
                # Identified exactly, so that a file put there later is not removed.
                "old": [
                    [name, *_identity(os.path.join(folder, name))]
                    for name in find_old()
                    if name not in new
                ],
                "leftovers": leftovers,
            }
            text = json.dumps(plan).encode("utf-8")
            decide(True)
            try:
                write_all(journal, [b"%08x\n%s\n" % (crc32c(text), text)])
            except OSError:
                os.ftruncate(journal, 0)
                decide(False)
                raise
            if fsync:
                os.fsync(journal)
                sync_folder(folder)
            _finish(folder, journal, fsync=fsync)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot replace the shards", folder) from error


def finish_replacements(folders: Iterable[str]) -> bool:
    """Finish replacements that a killed process has begun; True if there was one.

    Costs one look into each folder.

    Args:
        folders: where shards are.

    Raises:
        ShardIOError: the process may not write there.
    """
    found = False
    for folder in folders:
        if not os.access(os.path.join(folder or os.curdir, JOURNAL), os.F_OK):
            continue
        try:
            with _locked_journal(folder or os.curdir, create=False) as journal:
                if journal >= 0:
                    _finish(folder or os.curdir, journal)
        except OSError as error:
            raise ShardIOError.wrap(
                error,
                "a replacement of these shards was interrupted and cannot be finished",
                folder,
            ) from error
        found = True
    return found


def _finish(folder: str, journal: int, *, fsync: bool = True) -> None:
    """Carry out what a locked journal says, then remove it."""
    _carry_out(folder, journal, fsync=fsync)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, JOURNAL))
    if fsync:
        sync_folder(folder)


def _carry_out(folder: str, journal: int, *, fsync: bool = True) -> None:
    """Carry out what a locked journal says, and empty it. Doing it twice does no harm."""
    plan = _read_plan(folder, journal)
    if plan is not None:
        staging = os.path.join(folder, plan["staging"])
        for staged, name in plan["new"]:
            with contextlib.suppress(FileNotFoundError):  # it is in its place already
                os.replace(os.path.join(staging, staged), os.path.join(folder, name))
        if fsync:
            sync_folder(folder)
        for name, *identity in plan["old"]:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                if _identity(path) == identity:
                    os.unlink(path)
        if fsync:
            sync_folder(folder)
        _remove_staging(staging, plan.get("leftovers"))
    os.ftruncate(journal, 0)
    os.lseek(journal, 0, os.SEEK_SET)


def _read_plan(folder: str, journal: int) -> dict[str, Any] | None:
    """What the journal says; None if it was not written completely, so that the old set counts."""
    os.lseek(journal, 0, os.SEEK_SET)
    with os.fdopen(os.dup(journal), "rb") as file:
        checksum, _, text = file.read(_PLAN_LIMITS.max_json_bytes).partition(b"\n")
    text = text.removesuffix(b"\n")
    if not text or checksum != b"%08x" % crc32c(text):
        return None
    try:
        plan: dict[str, Any] = parse_foreign(text, "the journal", _PLAN_LIMITS)
        # Earlier releases wrote one name, which was the same in both folders.
        plan["new"] = [(one, one) if isinstance(one, str) else tuple(one) for one in plan["new"]]
        names = [plan["staging"], *(row[0] for row in plan["old"]), *(plan.get("leftovers") or ())]
        names += [name for staged, new in plan["new"] for name in (staged, new)]
        # A journal that came with a foreign folder must not reach other folders, or empty one that is not ours.
        is_unsafe = (
            any(
                name in ("", os.curdir, os.pardir) or name != os.path.basename(name)
                for name in names
            )
            or os.path.islink(os.path.join(folder, plan["staging"]))
            or (plan.get("leftovers") is None and _STAGING.fullmatch(plan["staging"]) is None)
        )
    except (ShardError, KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise BadMetadata(
            f"the journal of a replacement is malformed: {error}",
            path=os.path.join(folder, JOURNAL),
            hint="remove the file if you do not trust the folder",
        ) from None
    if is_unsafe:
        raise UnsafePath(
            "the journal of a replacement names a path outside of its folder",
            path=os.path.join(folder, JOURNAL),
            hint="remove the file if you do not trust the folder",
        )
    return plan


@contextlib.contextmanager
def _locked_journal(folder: str, *, create: bool) -> Iterator[int]:
    """The open journal, locked; -1 if another process has just removed it."""
    path = os.path.join(folder, JOURNAL)
    while True:
        try:
            descriptor = os.open(path, _JOURNAL_FLAGS | (os.O_CREAT if create else 0))
        except FileNotFoundError:
            yield -1
            return
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UnsafePath(
                    "the journal of a replacement is not a regular file",
                    path=path,
                    hint="remove it if you do not trust the folder",
                )
            take_lock(descriptor, path, wait=True)
            # Another process may have removed the file while this one waited.
            if is_still_named(descriptor, path):
                yield descriptor
                return
        finally:
            close_locked(descriptor)


def _identity(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns]


def _remove_abandoned(folder: str, stagings: list[str]) -> None:
    """Remove what killed processes have left, unless a journal counts on it."""
    if not stagings:
        return
    # Without this lock, a process could decide for its new shards and die right before they are removed.
    with _locked_journal(folder, create=True) as journal:
        _finish(folder, journal)
        for staging in stagings:
            with contextlib.suppress(OSError):  # the next replacement tries again
                is_abandoned(staging, remove=True)


def _remove_staging(staging: str, leftovers: Sequence[str] | None = None) -> None:
    """Remove the folder with all that is in it; of a folder that others write to, too, only the leftovers."""
    with contextlib.suppress(OSError):  # the next replacement tries again
        if leftovers is None:
            remove_flat(staging)
            return
        for name in os.listdir(staging):
            path = os.path.join(staging, name)
            if name in leftovers:
                os.unlink(path)
            elif TEMPORARY.fullmatch(name):  # of a writer that was killed
                is_abandoned(path, remove=True)
        os.rmdir(staging)
