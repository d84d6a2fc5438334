"""Converting a whole dataset: several episodes at once, resumable, checked, with a report."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh3_128

from shard_format.atomic import make_parent, write_all, write_file
from shard_format.errors import (
    DATA_ERRORS,
    BadValue,
    FileThere,
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
)
from shard_format.parallel import available_threads
from shard_format.sources import read_file
from wshard._files import save_wshard
from wshard._formats import load_wshard
from wshard._plan_episode import plan_entries
from wshard.catalogue import EpisodeInfo, parse_where
from wshard.convert._door import open_source, put_in_place, read_one, remove, write
from wshard.convert._model import ConversionReport, FieldChange, ReadOptions
from wshard.convert._own import SUFFIX, file_name
from wshard.convert._registry import detect, format_named, format_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from wshard._episode import Episode
    from wshard._plan_episode import PlannedEntry
    from wshard.convert._model import ConvertedEpisode, DatasetReader, Format

__all__ = ["ConvertOptions", "convert"]

_OWN: Final = "wshard"
# The folder of an unfinished conversion, and what is known about it: a line with its plan, then one for each episode.
_WORK: Final = ".converting"
_JOURNAL: Final = ".converting.jsonl"
# What a comparison cannot expect to be the same.
_PIECE_BYTES: Final = 16 << 20
_DESCRIPTIONS: Final = "meta/"
_CHANGING: Final = ("cast", "reordered", "decoded", "filled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """How to convert."""

    episodes: slice = field(default_factory=lambda: slice(None))
    """Which ones, such as `slice(0, 100)`."""
    where: str | None = None
    """Only episodes for which this holds, as `wshard.find` takes it: `"success and length > 100"`."""
    jobs: int | None = 1
    """How many processes convert to WShard; None for one per processor. Other targets are written by one."""
    resume: bool = False
    """Whether to go on with a conversion to WShard that was not finished."""
    verify: bool = False
    """Whether to read back every episode and compare every array."""
    overwrite: bool = False
    """Whether to replace what is at the target."""
    on_error: str = "raise"
    """`"skip"` names an episode that cannot be converted in the report and goes on with the next."""
    video: str = "keep"
    """`"keep"` keeps encoded streams where that is possible, `"decode"` makes pixels of them, `"encode"` encodes
    cameras."""
    mapping: Mapping[str, Any] | None = None
    """For files without a known layout, which field becomes what; see docs/formats.md."""
    compression: str | None = None
    """Of WShard files, as `save_wshard` takes it; None for the training profile."""

    def reading(self) -> ReadOptions:
        """The part of it that readers need."""
        return ReadOptions(
            video="decode" if self.video == "decode" else "keep", mapping=self.mapping
        )


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one episode."""

    name: str
    steps: int = 0
    nbytes: int = 0
    changes: tuple[FieldChange, ...] = ()
    problem: str = ""
    """Why it could not be converted."""
    is_chosen: bool = True
    """False if `where` does not hold for it."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | None = None,
    to: str | None = None,
    *,
    options: ConvertOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConversionReport:
    """Converts a dataset. The target appears when it is complete, with a report beside it.

    Episodes become files `<name>.wshard` of a folder, or a dataset in another format. Until all are there, the folder is
    called `<target>.converting`; a conversion that was killed goes on there with `resume=True`.

    Args:
        source: a file or folder in one of `formats()`.
        target: the file or folder to make.
        format: of the source; None looks at the content.
        to: of the target; None for the format of its ending, or else WShard.
        options: which episodes, how many processes, whether to check, and so on.
        progress: called with the number of episodes that are done, and of all.

    Returns:
        What was converted, what became of each field, and which episodes could not be converted.

    Raises:
        FileExistsError: something is at `target`, or an unfinished conversion beside it.
        ShardError: an episode cannot be converted. What was converted before can be resumed.
    """
    chosen = options or ConvertOptions()
    check_choice("on_error", chosen.on_error, ("raise", "skip"))
    origin, final = os.path.abspath(os.fspath(source)), os.path.abspath(os.fspath(target))
    kind = detect(origin) if format is None else format_named(format)
    if to is None:
        # A name without an ending is a folder of our own files.
        to = format_of(final).name if os.path.splitext(final)[1] else _OWN
    wanted = format_named(to)
    if os.path.lexists(final) and not chosen.overwrite:
        raise FileThere(
            "something is there already",
            path=final,
            hint="choose another name, or replace it: overwrite=True, --force",
        )
    run = _Conversion(
        ConversionReport(origin, final, kind.name, wanted.name), chosen, progress or _no_progress
    )
    if wanted.name == _OWN:
        run.to_own_files()
    else:
        run.to_other_format(wanted)
    _write_reports(run.report)
    return run.report


def _no_progress(_done: int, _total: int) -> None:
    pass


class _Conversion:
    """One conversion."""

    def __init__(
        self,
        report: ConversionReport,
        options: ConvertOptions,
        progress: Callable[[int, int], None],
    ) -> None:
        self.report = report
        self._options = options
        self._progress = progress

    # --- to another format

    def to_other_format(self, form: Format) -> None:
        """Reads and writes one episode after the other."""
        if self._options.resume:
            raise InvalidArgument(
                f"a conversion to {form.title} cannot be resumed",
                hint="convert to WShard first, which can, and then from WShard",
            )
        report, chosen = self.report, self._options
        with closing(open_source(report.source, report.format, chosen.reading())) as opened:
            written = write(
                self.episodes(opened),
                report.target,
                form.name,
                video=chosen.video,
                overwrite=chosen.overwrite,
            )
        report.episodes, report.steps = written.episodes, written.steps
        report.bytes_written = written.bytes_written
        report.changes.update(written.changes)
        if chosen.verify:
            self._check_written(written)

    def episodes(self, source: DatasetReader) -> Iterator[ConvertedEpisode]:
        names = source.names()
        numbers = range(len(names))[self._options.episodes]
        is_meant = _condition(self._options.where)
        for done, number in enumerate(numbers):
            self._progress(done, len(numbers))
            try:
                episode = read_one(source, number)
                if not is_meant(episode):
                    continue
            except DATA_ERRORS as error:
                self._failed(names[number], error)
                continue
            self.report.add(episode.changes)
            yield episode
        self._progress(len(numbers), len(numbers))

    def _failed(self, name: str, error: ShardError) -> None:
        if self._options.on_error == "raise":
            raise error
        self.report.failed[name] = str(error)

    def _check_written(self, written: ConversionReport) -> None:
        """Compares what was written with the source, as far as both have the same blocks."""
        report = self.report
        may_differ = {change.field for change, _ in written.of_kind(*_CHANGING)}
        reading = ReadOptions(video="decode" if self._options.video == "decode" else "keep")
        with (
            closing(open_source(report.source, report.format, self._options.reading())) as one,
            closing(open_source(report.target, report.to, reading)) as other,
        ):
            quiet = _Conversion(replace(report, failed={}), self._options, _no_progress)
            numbers = {name: number for number, name in enumerate(other.names())}
            for number, episode in enumerate(quiet.episodes(one)):
                found = read_one(other, numbers.get(episode.id, number))
                for problem in differences(episode, found, only_common=True, leave_out=may_differ):
                    raise BadValue(
                        f"what was written differs from the source: {problem}",
                        path=report.target,
                        entry=episode.id,
                    )

    # --- to files of our own

    def to_own_files(self) -> None:
        """Converts each episode to a file, in several processes. What is finished need not be done again."""
        report, chosen = self.report, self._options
        with closing(open_source(report.source, report.format, chosen.reading())) as source:
            names = list(source.names())
        numbers = range(len(names))[chosen.episodes]
        files = _file_names([names[number] for number in numbers])
        is_one_file = report.target.endswith(SUFFIX)
        if is_one_file and len(files) != 1:
            raise InvalidArgument(
                "several episodes do not fit into one file",
                path=report.source,
                expected="a folder as target, or one episode",
                found=f"{len(files)} episodes",
            )
        folder, journal = report.target + _WORK, report.target + _JOURNAL
        done = self._open_work_folder(folder, journal)
        total, finished = len(files), 0
        tasks: list[tuple[int, str, str]] = []
        for number, file in zip(numbers, files, strict=True):
            earlier = done.get(file)
            if earlier is not None and _is_there(os.path.join(folder, file), earlier):
                self._count(earlier)
                report.skipped += 1
                finished += 1
            else:
                tasks.append((number, file, names[number]))
        self._progress(finished, total)
        with open(journal, "ab", buffering=0) as lines:
            for file, result in self._results(tasks, folder):
                if result.problem:
                    report.failed[result.name] = result.problem
                else:
                    self._count(result)
                    line = json.dumps({"file": file, **asdict(result)})
                    # A line that a kill cut off ends here.
                    write_all(lines.fileno(), [f"\n{line}\n".encode()])
                finished += 1
                self._progress(finished, total)
        if is_one_file and report.episodes:
            put_in_place(os.path.join(folder, files[0]), report.target)
        elif not is_one_file:
            put_in_place(folder, report.target)
        remove(folder)
        os.unlink(journal)

    def _count(self, result: _Done) -> None:
        if result.is_chosen:
            self.report.episodes += 1
            self.report.steps += result.steps
            self.report.bytes_written += result.nbytes
            self.report.add(result.changes)

    def _open_work_folder(self, folder: str, journal: str) -> dict[str, _Done]:
        """Makes the folder that files are collected in, or takes up that of an earlier run; returns what is done."""
        report, chosen = self.report, self._options
        # What the files depend on. The rest may change when a conversion goes on.
        plan = {
            "source": report.source,
            "format": report.format,
            "modified_ns": os.stat(report.source).st_mtime_ns,
            "where": chosen.where,
            "video": chosen.video,
            "mapping": dict(chosen.mapping or {}),
            "compression": chosen.compression,
        }
        if os.path.lexists(folder):
            if not chosen.resume:
                raise FileThere(
                    "an earlier conversion was not finished",
                    path=folder,
                    hint="go on with it: resume=True, --resume; or delete the folder",
                )
            found, done = _read_journal(journal)
            changed = [key for key in plan if found.get(key) != plan[key]]
            if changed:
                raise InvalidArgument(
                    "the earlier conversion was another one",
                    path=folder,
                    expected=f"{changed[0]}: {found.get(changed[0])!r}",
                    found=repr(plan[changed[0]]),
                    hint="delete the folder to start again",
                )
            return done
        make_parent(folder)
        # First the journal: a folder without one would be of no use.
        write_file(journal, [json.dumps(plan).encode() + b"\n"], fsync=True)
        os.mkdir(folder)
        return {}

    def _results(
        self, tasks: Sequence[tuple[int, str, str]], folder: str
    ) -> Iterator[tuple[str, _Done]]:
        chosen, report = self._options, self.report
        work = (report.source, report.format, folder, chosen)
        jobs = min(chosen.jobs or available_threads(), len(tasks))
        if jobs <= 1:
            with closing(_Worker(*work)) as worker:
                for number, file, name in tasks:
                    yield file, worker.convert(number, file, name)
            return
        # Spawned, not forked: the same on every system, whatever threads a library has started.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(jobs, context, _start_worker, work)
        try:
            results = executor.map(_convert_one, tasks)
            for (_, file, _), result in zip(tasks, results, strict=True):
                yield file, result
        except BrokenProcessPool:
            raise ShardIOError(
                "a process that converted episodes was killed",
                hint="the machine may have run out of memory: use fewer jobs, and resume",
            ) from None
        finally:
            executor.shutdown(wait=True, cancel_futures=True)


# --- in each process


class _Worker:
    """Converts episodes of one dataset."""

    def __init__(self, source: str, form: str, folder: str, options: ConvertOptions) -> None:
        self._source = open_source(source, form, options.reading())
        self._folder = folder
        self._options = options
        self._is_meant = _condition(options.where)

    def convert(self, number: int, file: str, name: str) -> _Done:
        """Converts one episode; an error of the data is part of the result unless it shall be raised."""
        path = os.path.join(self._folder, file)
        try:
            with read_one(self._source, number) as episode:
                if not self._is_meant(episode):
                    return _Done(name, is_chosen=False)
                self._save(episode, path)
                return _Done(name, episode.length, os.path.getsize(path), episode.changes)
        except DATA_ERRORS as error:
            with suppress(FileNotFoundError):
                os.unlink(path)
            if self._options.on_error == "raise":
                raise
            return _Done(name, problem=str(error))

    def _save(self, episode: Episode, path: str) -> None:
        compression = self._options.compression
        save_wshard(episode, path, compression, profile=None if compression else "training")
        if not self._options.verify:
            return
        with load_wshard(path) as found:
            for problem in differences(episode, found):
                raise BadValue(
                    f"what was written differs from the source: {problem}", entry=episode.id
                )

    def close(self) -> None:
        """Closes the dataset."""
        self._source.close()


_worker: _Worker | None = None


def _start_worker(source: str, form: str, folder: str, options: ConvertOptions) -> None:
    global _worker
    # An interrupt goes to all processes of the terminal; the first of them ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = _Worker(source, form, folder, options)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _convert_one(task: tuple[int, str, str]) -> _Done:
    assert _worker is not None
    return _worker.convert(*task)


# --- comparing


def differences(
    wanted: Episode, found: Episode, *, only_common: bool = False, leave_out: Container[str] = ()
) -> Iterator[str]:
    """How the blocks of two episodes differ, bit for bit; nothing if they are the same.

    Args:
        wanted: what should be there.
        found: what is there.
        only_common: whether to compare only arrays that both have, and no descriptions.
        leave_out: blocks that may differ.
    """
    if wanted.length != found.length:
        yield f"{found.length} steps instead of {wanted.length}"
    mine, yours = ({entry.name: entry for entry in plan_entries(one)} for one in (wanted, found))
    for name in dict.fromkeys([*mine, *yours]):
        if name in leave_out or (only_common and name.startswith(_DESCRIPTIONS)):
            continue
        if name not in mine or name not in yours:
            if not only_common:
                yield f"{name} is {'new' if name in yours else 'missing'}"
        elif mine[name].nbytes != yours[name].nbytes:
            yield f"{name} has {yours[name].nbytes} bytes instead of {mine[name].nbytes}"
        elif _hash_of(mine[name]) != _hash_of(yours[name]):
            yield f"{name} has other values"


def _hash_of(entry: PlannedEntry) -> bytes:
    state = xxh3_128()
    if entry.pieces is not None:
        for piece in entry.pieces(_PIECE_BYTES):
            state.update(memoryview(piece).cast("B"))
    else:
        state.update(entry.flat().data)
    return state.digest()


# --- what is done, and reports


def _condition(where: str | None) -> Callable[[Episode], object]:
    if where is None:
        return lambda _: True
    holds = parse_where(where)
    return lambda episode: holds(_info_of(episode))


def _info_of(episode: Episode) -> EpisodeInfo:
    """What expressions ask about."""
    total = None
    if episode.rewards is not None:
        total = float(episode.rewards.data.sum(dtype=np.float64))
    return EpisodeInfo(
        "",
        episode.id,
        episode.env_id,
        episode.length,
        episode.metadata,
        total if total is not None and isfinite(total) else None,
    )


def _file_names(names: Sequence[str]) -> list[str]:
    """A file name for each episode; different ones for different episodes, also where case does not count."""
    taken: set[str] = set()
    found = []
    for name in names:
        plain = base = file_name(name)
        number = 2
        while plain.lower() in taken:
            plain, number = f"{base}-{number}", number + 1
        taken.add(plain.lower())
        found.append(plain + SUFFIX)
    return found


def _is_there(path: str, done: _Done) -> bool:
    if not done.is_chosen:
        return True
    try:
        return os.path.getsize(path) == done.nbytes
    except OSError:
        return False


def _read_journal(path: str) -> tuple[dict[str, Any], dict[str, _Done]]:
    """The plan of an earlier run, and what it finished. The last line may be cut off."""
    plan: dict[str, Any] = {}
    done: dict[str, _Done] = {}
    for number, line in enumerate(read_file(path).splitlines()):
        with suppress(ValueError):
            fields = json.loads(line)
            if number:
                file = fields.pop("file")
                changes = tuple(FieldChange(**one) for one in fields.pop("changes"))
                done[file] = _Done(changes=changes, **fields)
            else:
                plan = fields
    return plan, done


def _write_reports(report: ConversionReport) -> None:
    """The report as JSON and as text, beside the target."""
    for ending, text in (
        ("json", json.dumps(report.as_json(), indent=1)),
        ("txt", report.as_text()),
    ):
        write_file(f"{report.target}.report.{ending}", [f"{text}\n".encode()], fsync=False)
