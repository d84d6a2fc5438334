"""One function over many episodes, on this machine or on many: conversion, statistics, embeddings, re-encoding."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import pickle
import time
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from shard_format.atomic import write_file
from shard_format.errors import (
    FileMissing,
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
    is_shortage,
)
from shard_format.executors import Executor, Failure, make_executor
from shard_format.identity import compute_identity, stored_identity
from shard_format.reader import ShardReader
from shard_format.safe_paths import unsafe_form
from shard_format.sources import is_url
from shard_format.transfer import read_anywhere
from shard_format.verify import check
from shard_train._episode_dataset import with_shards
from shard_train.packed_episodes import EpisodePack, open_episode_pack
from wshard import find, save_wshard
from wshard.types import Episode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shard_format.executors import Engine
    from wshard.catalogue import EpisodeTable, Files

__all__ = ["MapReport", "PackOpener", "input_identity", "map_episodes"]

_SUFFIX: Final = ".wshard"
_REPORT: Final = ".report.json"
_FORMAT: Final = "wshard-map"
# The report is also written while the work goes on, so that a kill loses little.
_SAVE_SECONDS: Final = 5.0
_SAVE_SHARE: Final = 20.0


@dataclass(slots=True)
class MapReport:
    """What `map_episodes` did."""

    path: str
    """The file that has this report as JSON."""
    episodes: int = 0
    """How many were found."""
    skipped: int = 0
    """How many an earlier run had done."""
    outputs: dict[str, str] = field(default_factory=dict)
    """The files of the episodes that the function returned, by the path of their input."""
    values: dict[str, Any] = field(default_factory=dict)
    """What the function returned otherwise, by the path of its input."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why an episode could not be done, by its path."""


class _Task(NamedTuple):
    """One episode."""

    number: int
    output: str
    earlier: dict[str, Any] | None
    """What an earlier run noted about it."""


def map_episodes(
    fn: Callable[[Episode], object],
    src: Files,
    dst: str | os.PathLike[str],
    *,
    engine: Engine = "local",
    jobs: int | None = None,
    address: str | None = None,
    resume: bool = True,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int, int], None] | None = None,
    save: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> MapReport:
    """Calls a function with every episode, in several processes or on the machines of a Ray cluster.

        def brighten(episode):
            episode.observations["rgb"] = episode.observations["rgb"].data // 2 + 128
            return episode

        map_episodes(brighten, "recordings", "bright", jobs=8)

    Each output appears complete or not at all, under the name of its input, so that a task that runs twice leaves one
    file. The report beside `dst` (`<dst>.report.json`) names the input of each output; the next call with the same
    function continues from it: it leaves out an episode if its content has the same identity, the function is the
    same, and its output is there and has the right checksums.

    Args:
        fn: takes an open episode. It returns an episode, which is saved to `dst`; or a value that JSON can hold, which is
            collected in the report; or None. A function at the top level of a module, or a `functools.partial` of one.
            The code of the function is part of what makes two calls the same; the code of functions that it calls is
            not.
        src: a folder, a file, a pattern, packs of episodes, or a list of these.
        dst: the folder of the outputs. Without outputs, only the name of the report.
        engine: `"local"`, or `"ray"`.
        jobs: how many episodes at the same time; None for one per processor.
        address: of the Ray cluster, as for `ray.init`.
        resume: False does everything again.
        on_error: `"raise"` stops at the first episode that fails; `"skip"` names it in the report and goes on with the
            others. A lack of memory, and storage that cannot be reached, are always raised.
        progress: called with the number of episodes that are done, and of all.
        save: how outputs are saved, as for `save_wshard`: `{"profile": "training"}`.
        storage_options: for files that are URLs.

    Raises:
        ShardError: an episode failed; the message names it, and the cause is the original error.
        InvalidArgument: an argument is invalid, or `fn` cannot be sent to another process.
    """
    check_choice("on_error", on_error, ("raise", "skip"))
    target = os.fspath(dst)
    if not is_url(target):
        target = os.path.abspath(target)  # processes elsewhere may be in another folder
    job = _job_of(fn, save)
    report = MapReport(target.rstrip("/") + _REPORT)
    executor = make_executor(engine, jobs=jobs, address=address)

    def leave_out(path: str, error: ShardError) -> None:
        if on_error == "raise":
            raise error
        report.failed[path] = str(error)

    table = find(
        with_shards(src),
        on_error=leave_out,
        storage_options=storage_options,
        packs=PackOpener(),
    )
    known = _read_rows(report.path, job) if resume else {}
    tasks = [
        _Task(number, os.path.join(target, name), known.get(table.paths[number]))
        for number, name in enumerate(_output_names(table.paths, target))
    ]
    report.episodes = len(tasks) + len(report.failed)
    worker = _EpisodeWorker(fn, table, dict(save or {}))
    run = _MapRun(report, job, list(table.paths), on_error)
    run.earlier = {task.number: task.earlier for task in tasks if task.earlier is not None}
    try:
        run.take_all(executor, worker, tasks, progress)
    finally:
        run.save_report()
    return report


def _job_of(fn: Callable[..., object], save: Mapping[str, Any] | None) -> str:
    """A text that changes with the function, with what is bound to it, and with how outputs are saved."""
    digest = hashlib.sha256(repr(sorted((save or {}).items())).encode())
    inner: Any = fn
    while isinstance(inner, functools.partial):
        digest.update(_state((inner.args, inner.keywords)))
        inner = inner.func
    if inspect.ismethod(inner):
        digest.update(_state(inner.__self__))
        inner = inner.__func__
    elif not inspect.isroutine(inner):
        digest.update(_state(inner))
        inner = type(inner)
    cells = getattr(inner, "__closure__", None) or ()
    digest.update(
        _state((getattr(inner, "__defaults__", None), [one.cell_contents for one in cells]))
    )
    digest.update(f"{inner.__module__}.{inner.__qualname__}".encode())
    try:
        digest.update(inspect.getsource(inner).encode())
    except (OSError, TypeError):
        digest.update(getattr(getattr(inner, "__code__", None), "co_code", b""))
    return digest.hexdigest()[:32]


def _state(value: object) -> bytes:
    """Bytes that change with a value. What cannot be pickled counts as always the same."""
    try:
        return pickle.dumps(value)
    except Exception:  # noqa: BLE001 - an executor that needs it reports the error
        return type(value).__qualname__.encode()


def _output_names(paths: Sequence[str], target: str) -> list[str]:
    """A name for each output: the path of its input below the folder that all have in common."""
    plain = [path.partition("?")[0] if is_url(path) else os.path.abspath(path) for path in paths]
    folders = {path.rpartition("/")[0] + "/" for path in plain}
    # What the first and the last in order have in common, all have.
    ends = [one.split("/") for one in (min(folders, default=""), max(folders, default=""))]
    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False)))
    common = "".join(f"{part}/" for part, _ in same if len(folders) > 1) or min(folders, default="")
    if target + "/" in folders:
        raise InvalidArgument(
            "the outputs would replace their inputs", path=target, hint="choose another folder"
        )
    taken: set[str] = set()
    names = []
    for path in plain:
        base = name = path[len(common) :].removesuffix(_SUFFIX)
        if unsafe_form(name) is not None:
            raise InvalidArgument("the name cannot be that of an output", path=path)
        number = 2
        while name.lower() in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name.lower())
        names.append(name + _SUFFIX)
    return names


def _read_rows(path: str, job: str) -> dict[str, dict[str, Any]]:
    """What an earlier run of the same job noted about each input; nothing if there was none."""
    try:
        found = json.loads(read_anywhere(path))
    except (FileMissing, ValueError):
        return {}
    if not isinstance(found, dict) or (found.get("format"), found.get("job")) != (_FORMAT, job):
        return {}
    rows = found.get("rows")
    return {str(row.get("path")): row for row in rows} if isinstance(rows, list) else {}


# --- in the first process


class _MapRun:
    """Collects what is done, and writes the report."""

    def __init__(self, report: MapReport, job: str, paths: Sequence[str], on_error: str) -> None:
        self._report = report
        self._job = job
        self._paths = paths
        self._on_error = on_error
        self._rows: dict[int, dict[str, Any]] = {}
        self.earlier: dict[int, dict[str, Any]] = {}
        """What an earlier run noted about episodes; stays in the report until they are done again."""
        self._next_save = time.monotonic() + _SAVE_SECONDS

    def take_all(
        self,
        executor: Executor,
        worker: _EpisodeWorker,
        tasks: Sequence[_Task],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Does all tasks; results arrive in any order."""
        with closing(executor.run(worker, tasks)) as results:
            for done, (number, (row, failure)) in enumerate(results, start=1):
                path = self._paths[number]
                self.earlier.pop(number, None)
                if failure is not None:
                    self._fail(path, failure)
                else:
                    self._rows[number] = {"path": path, **row}
                if progress is not None:
                    progress(done, len(tasks))
                if time.monotonic() > self._next_save:
                    self.save_report()

    def _fail(self, path: str, failure: Failure) -> None:
        self._report.failed[path] = failure.summary
        cause = failure.cause
        if self._on_error == "raise" or _says_nothing_about_data(cause):
            raise ShardError(
                f"the function failed: {failure.summary}",
                path=path,
                hint="the next call continues with the episodes that are left"
                + (
                    "; on_error='skip' leaves such episodes out"
                    if self._on_error == "raise"
                    else ""
                ),
            ) from cause

    def save_report(self) -> None:
        """Fills the report, and writes it."""
        start = time.monotonic()
        report = self._report
        rows = [self._rows[number] for number in sorted(self._rows)]
        report.skipped = sum(row.get("again", False) for row in rows)
        report.outputs = {row["path"]: row["output"] for row in rows if "output" in row}
        report.values = {row["path"]: row["value"] for row in rows if "value" in row}
        noted = {**self.earlier, **self._rows}
        document = {
            "format": _FORMAT,
            "job": self._job,
            "episodes": report.episodes,
            "failed": report.failed,
            "rows": [
                {key: value for key, value in noted[number].items() if key != "again"}
                for number in sorted(noted)
            ],
        }
        write_file(report.path, [json.dumps(document, indent=1).encode() + b"\n"], fsync=True)
        took = time.monotonic() - start
        self._next_save = time.monotonic() + max(_SAVE_SECONDS, _SAVE_SHARE * took)


def _says_nothing_about_data(error: BaseException) -> bool:
    return is_shortage(error) or isinstance(error, ShardIOError)


# --- in each process


class PackOpener:
    """Opens packs of episodes, and keeps the last one open: neighbours are in the same pack."""

    def __init__(self) -> None:
        self._last: tuple[str, EpisodePack] | None = None

    def __call__(self, path: str, options: Mapping[str, Any] | None = None) -> EpisodePack:
        """The pack."""
        if self._last is None or self._last[0] != path:
            self._last = (path, open_episode_pack(path, options))
        return self._last[1]

    def __reduce__(self) -> tuple[type[PackOpener], tuple[()]]:
        return (PackOpener, ())


class _EpisodeWorker:
    """Does one episode, unless that was done before."""

    def __init__(
        self, fn: Callable[[Episode], object], table: EpisodeTable, save: dict[str, Any]
    ) -> None:
        self._fn = fn
        self._table = table
        self._save = save

    def __call__(self, task: _Task) -> tuple[dict[str, Any], Failure | None]:
        """What to note about the episode, or why it failed."""
        try:
            with self._table.open(task.number) as episode:
                identity = input_identity(episode)
                if _is_done(task, identity):
                    return {**(task.earlier or {}), "again": True}, None
                made = self._fn(episode)
                return {"input": identity, **self._keep(made, task.output)}, None
        except Exception as error:  # noqa: BLE001 - the first process decides
            return {}, Failure.of(error).to_send()

    def _keep(self, made: object, output: str) -> dict[str, Any]:
        if isinstance(made, Episode):
            save_wshard(made, output, **self._save)
            with ShardReader(output) as reader:
                return {"output": output, "size": int(reader.header.total_file_size)}
        try:
            return {} if made is None else {"value": json.loads(json.dumps(made))}
        except (TypeError, ValueError) as error:
            raise InvalidArgument(
                f"the function returned something else: {error}",
                expected="an episode, a value that JSON can hold, or None",
                found=type(made).__name__,
            ) from error


def input_identity(episode: Episode) -> str:
    """The identity of an episode that was opened, with that of its chunks and of lanes that were added."""
    origin = episode.origin
    assert origin is not None  # it was opened
    readers: Iterable[ShardReader] = (origin.reader, *origin.chunks, *origin.sidecars)
    found = [str(stored_identity(reader) or compute_identity(reader)) for reader in readers]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def _is_done(task: _Task, identity: str) -> bool:
    """Whether an earlier run has done the episode, and its output is still there."""
    row = task.earlier
    if row is None or row.get("input") != identity:
        return False
    if "output" not in row:
        return True
    if row["output"] != task.output:
        return False
    try:
        with ShardReader(task.output) as reader:
            return int(reader.header.total_file_size) == row["size"] and not check(reader).errors
    except ShardError:
        return False
