"""Converting a whole dataset: several episodes at once, resumable, checked, with a report."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from xxhash import xxh3_128

from shard_format.atomic import write_file
from shard_format.errors import (
    DATA_ERRORS,
    BadValue,
    InvalidArgument,
    ShardError,
    check_choice,
)
from shard_format.executors import Executor, LocalExecutor, part_of
from shard_format.listing import path_of_url
from shard_format.opening import copying_urls
from shard_format.parallel import available_threads
from shard_format.sources import is_url
from shard_format.transfer import remove_urls, uploading
from wshard._files import save_wshard
from wshard._formats import load_wshard
from wshard._lanes import frames_block, offsets_block
from wshard._plan_episode import plan_entries
from wshard._values import step_ranges
from wshard._video import VideoChannel
from wshard.catalogue import EpisodeInfo, Expression, parse_where
from wshard.convert._dataset_source import DatasetSource
from wshard.convert._door import check_writable, read_one, write_dataset, writing
from wshard.convert._model import (
    LAST,
    VIDEO,
    WHOLE,
    ConversionReport,
    FieldChange,
    Notes,
    ReadOptions,
    WriteOptions,
)
from wshard.convert._own import SUFFIX, cameras_to_encode, file_name, note_encoded
from wshard.convert._parts import part_folder
from wshard.convert._per_file import several_episodes
from wshard.convert._registry import format_named, format_of, open_dataset
from wshard.convert._remote_work import RemoteWork
from wshard.convert._work import WorkFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from wshard._channels import Channel
    from wshard._episode import Episode
    from wshard._plan_episode import PlannedEntry
    from wshard.convert._model import ConvertedEpisode, DatasetReader, Format

__all__ = ["ConvertOptions", "convert"]

_OWN: Final = "wshard"
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
    """How many processes make WShard files; None for one per processor. Other formats are written by one."""
    resume: bool = False
    """Whether to go on with a conversion that was not finished. For a target in another format give it from the start:
    the episodes are first kept as WShard files, which takes their space and time, and then written in one go."""
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
    part: tuple[int, int] | None = None
    """`(3, 16)` converts only the third of 16 parts of the episodes, to a folder beside the target; `commit_parts` makes
    the target when all parts are there. Several machines can so work on one conversion."""
    executor: Executor | None = None
    """Makes WShard files instead of `jobs` processes: `shard_format.executors.make_executor("ray")`."""

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
    fields: tuple[str, ...] | None = None
    """The names of its metadata; None if `where` was not asked about it."""

    @property
    def is_made(self) -> bool:
        """Whether there is a file."""
        return self.is_chosen and not self.problem

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> _Done:
        """What `asdict` was called on."""
        changes = tuple(FieldChange(**change) for change in fields["changes"])
        return cls(**{**fields, "changes": changes})


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: str | None = None,
    to: str | None = None,
    *,
    options: ConvertOptions | None = None,
    progress: Callable[[int, int], None] | None = None,
    pack: Callable[[str], int] | None = None,
) -> ConversionReport:
    """Converts a dataset. The target appears when it is complete, with a report beside it.

    Episodes become files `<name>.wshard` of a folder, or a dataset in another format. Until all are there, everything is
    in the folder `<target>.converting`, where a conversion that was killed goes on with `resume=True`.

    Args:
        source: a file or folder in one of `formats()`, or its URL, as for `read`.
        target: the file or folder to make, or its URL. A folder of WShard files in an object store gets each episode when
            it is finished; it is complete when the report beside it appears. Anything else is uploaded at the end.
        format: of the source; None looks at the content.
        to: of the target; None for the format of its ending, or else WShard.
        options: which episodes, how many processes, whether to check, and so on.
        progress: called with the number of episodes that are done, and of all.
        pack: makes the target of a folder of WShard files, and returns the bytes that it wrote; None makes the folder
            itself the target.

    Returns:
        What was converted, what became of each field, and which episodes could not be converted.

    Raises:
        FileExistsError: something is at `target`, or an unfinished conversion beside it.
        ShardError: an episode cannot be converted. What was converted before can be resumed.
    """
    chosen = options or ConvertOptions()
    check_choice("on_error", chosen.on_error, ("raise", "skip"))
    check_choice("video", chosen.video, VIDEO)
    final = path_of_url(os.fspath(target))
    final = final.rstrip("/") if is_url(final) else os.path.abspath(final)
    if to is None:
        # A name without an ending is a folder of our own files.
        to = format_of(final).name if os.path.splitext(final)[1] and pack is None else _OWN
    wanted = format_named(to)
    is_folder = wanted.name == _OWN and pack is None and not final.endswith(SUFFIX)
    if chosen.part is not None:
        if not is_folder:
            raise InvalidArgument(
                "only a folder of WShard files can be made in parts",
                path=final,
                hint="make the folder in parts, and convert or pack it then",
            )
        final = part_folder(final, chosen.part)
    if chosen.verify and not wanted.reads:
        raise InvalidArgument(f"{wanted.title} can be written, not read: nothing to verify with")
    # In a URL, the percent sign of train-%06d.shardpack is escaped.
    place = final.replace("%", "%25") if pack is not None and is_url(final) else final
    check = partial(check_writable, wanted, place, overwrite=chosen.overwrite)
    if not is_url(final) and not chosen.resume:
        check()
    with DatasetSource(source, format) as origin, writing(final):
        report = ConversionReport(origin.location, final, origin.form.name, wanted.name)
        with _work_for(place, is_folder=is_folder, check=check) as work:
            run = _Conversion(report, chosen, progress or _no_progress, work, origin)
            work.begin(run.plan(), resume=chosen.resume)
            earlier = work.placed()
            if earlier is not None:
                report = ConversionReport.from_json(earlier)
            else:
                if not is_url(final):
                    check()
                if wanted.name == _OWN:
                    run.to_own_files(pack)
                else:
                    run.to_other_format(wanted)
            # Before the work folder goes: after a kill here, `resume` still has the report.
            report.save(beside=place)
    return report


def _work_for(place: str, *, is_folder: bool, check: Callable[[], None]) -> WorkFolder | RemoteWork:
    if is_url(place):
        return RemoteWork(place, is_folder=is_folder, check=check)
    return WorkFolder(place)


def _no_progress(_done: int, _total: int) -> None:
    pass


class _Conversion:
    """One conversion."""

    def __init__(
        self,
        report: ConversionReport,
        options: ConvertOptions,
        progress: Callable[[int, int], None],
        work: WorkFolder | RemoteWork,
        origin: DatasetSource,
    ) -> None:
        self.report = report
        self._options = options
        self._progress = progress
        self._work = work
        self._origin = origin

    def plan(self) -> dict[str, Any]:
        """What the files of episodes depend on. The rest may change when a conversion goes on."""
        report, chosen = self.report, self._options
        return {
            "source": report.source,
            "format": report.format,
            **self._origin.version,
            "where": chosen.where,
            "video": chosen.video,
            "mapping": dict(chosen.mapping or {}),
            "compression": chosen.compression,
        }

    # --- to another format

    def to_other_format(self, form: Format) -> None:
        """Writes one episode after the other: as they are read, or from finished files, which can be resumed."""
        report, chosen, work = self.report, self._options, self._work
        written = ConversionReport("", report.target, "", report.to)
        with closing(self._origin.open(chosen.reading())) as source:
            found = len(self._numbers(source.names()))
            is_one_file = form.is_one_episode and report.target.lower().endswith(form.suffixes)
            if is_one_file and found > 1 and chosen.where is None:
                raise several_episodes(report.target, f"{found} episodes")
            if chosen.resume:
                files = self._make_files(source, passes=2)
                episodes: Iterator[Episode] = self._from_files(files)
            else:
                episodes = self.from_source(source)
            try:
                write_dataset(episodes, work.new, form, WriteOptions(video=chosen.video), written)
            except ShardError:
                if not report.failed or written.episodes:
                    raise
                # The format needs an episode; the report says why all of them failed.
        if report.failed and not written.episodes:
            return  # what is at the target stays
        report.episodes, report.steps = written.episodes, written.steps
        report.bytes_written = written.bytes_written
        report.changes.update(written.changes)
        if chosen.verify:
            self._check_written(written)
        work.place(work.new, report.as_json())

    def from_source(self, source: DatasetReader) -> Iterator[ConvertedEpisode]:
        names = source.names()
        numbers = self._numbers(names)
        is_meant = _Condition(self._options.where)
        for done, number in enumerate(numbers):
            self._progress(done, len(numbers))
            try:
                episode = read_one(source, number)
                if not is_meant(episode):
                    continue
            except DATA_ERRORS as error:
                if self._options.on_error == "raise":
                    raise
                self.report.failed[names[number]] = str(self._origin.renamed(error))
                continue
            self.report.add(episode.changes)
            yield episode
        self.report.warnings = is_meant.warnings()
        self._progress(len(numbers), len(numbers))

    def _numbers(self, names: Sequence[str]) -> range:
        """Which episodes to convert."""
        numbers = range(len(names))[self._options.episodes]
        part = self._options.part
        return numbers if part is None else numbers[part_of(len(numbers), part)]

    def _from_files(self, files: Sequence[str]) -> Iterator[Episode]:
        for done, file in enumerate(files):
            with load_wshard(f"{self._work.episodes}/{file}") as episode:
                yield episode
            self._progress(len(files) + done + 1, 2 * len(files))

    def _check_written(self, written: ConversionReport) -> None:
        """Compares what was written with the source, as far as both have the same blocks."""
        report, chosen = self.report, self._options
        may_differ = {change.field for change, _ in written.of_kind(*_CHANGING)}
        dropped = {change.field for change, _ in written.of_kind("dropped")}
        leaves_out = WHOLE in dropped  # episodes without steps
        shorter = {name.removesuffix(LAST) for name in dropped if name.endswith(LAST)}
        reading = ReadOptions(video=chosen.reading().video)  # the mapping is of the source
        with (
            closing(self._origin.open(chosen.reading())) as one,
            closing(open_dataset(self._work.new, format_named(report.to), reading)) as other,
        ):
            quiet = replace(report, failed={}, changes=Counter())
            again = _Conversion(quiet, chosen, _no_progress, self._work, self._origin)
            numbers = {name: number for number, name in enumerate(other.names())}
            kept = (ep for ep in again.from_source(one) if ep.length or not leaves_out)
            for number, episode in enumerate(kept):
                found = read_one(other, numbers.get(episode.id, number))
                for problem in _foreign_differences(episode, found, may_differ, shorter):
                    raise BadValue(
                        f"what was written differs from the source: {problem}",
                        path=report.target,
                        entry=episode.id,
                    )

    # --- to files of our own

    def to_own_files(self, pack: Callable[[str], int] | None) -> None:
        """Makes a folder of files, or one file, or what `pack` makes of the folder."""
        report, work = self.report, self._work
        is_one_file = pack is None and report.target.endswith(SUFFIX)
        with closing(self._origin.open(self._options.reading())) as source:
            found = len(range(len(source.names()))[self._options.episodes])
            if is_one_file and found != 1:
                raise several_episodes(report.target, f"{found} episodes")
            files = self._make_files(source)
        if report.failed and not files:
            return  # what is at the target stays
        if pack is not None:
            report.bytes_written = pack(work.episodes)
            work.append({"report": report.as_json()})
        elif not is_one_file:
            work.place(work.episodes, report.as_json())
        elif files:
            work.place(f"{work.episodes}/{files[0]}", report.as_json())

    def _make_files(self, source: DatasetReader, *, passes: int = 1) -> list[str]:
        """Converts each episode to a file, in several processes, unless an earlier run did; returns their names."""
        work, names = self._work, list(source.names())
        numbers = self._numbers(names)
        # From all names: the file of an episode does not depend on which others are chosen.
        all_files = _file_names(names)
        done: dict[str, _Done] = {}
        for line in work.lines:
            with suppress(KeyError, TypeError):  # a line that is damaged, or not of an episode
                file, result = line["file"], _Done.from_json(line["done"])
                if not result.is_chosen or work.has(file, result.nbytes):
                    done[file] = result
        files = [all_files[number] for number in numbers]
        tasks = [(n, all_files[n], names[n]) for n in numbers if all_files[n] not in done]
        self.report.skipped = len(files) - len(tasks)
        finished, total = self.report.skipped, passes * len(files)
        self._progress(finished, total)
        for file, result in self._results(tasks):
            done[file] = result
            if not result.problem:
                work.finished(_line(file, result))
            finished += 1
            self._progress(finished, total)
        # In the order of the source, whatever process was faster.
        is_meant = _Condition(self._options.where)
        for file in files:
            self._count(done[file])
            is_meant.note_fields(done[file].fields)
        self.report.warnings = is_meant.warnings()
        made = [file for file in files if done[file].is_made]
        work.keep_only(made)
        return made

    def _count(self, result: _Done) -> None:
        if result.problem:
            self.report.failed[result.name] = result.problem
        elif result.is_chosen:
            self.report.episodes += 1
            self.report.steps += result.steps
            self.report.bytes_written += result.nbytes
            self.report.add(result.changes)

    def _results(self, tasks: Sequence[tuple[int, str, str]]) -> Iterator[tuple[str, _Done]]:
        """What became of each episode, as soon as it is known."""
        executor = self._options.executor
        if executor is None:
            executor = LocalExecutor(min(self._options.jobs or available_threads(), len(tasks)))
        worker = _Worker(self._origin, self._work.episodes, self._work.notes, self._options)
        # Only of one that works in this process; others are closed with their processes.
        with closing(worker), closing(executor.run(worker, tasks)) as results:
            for number, done in results:
                yield tasks[number][1], done


def _line(file: str, done: _Done) -> dict[str, Any]:
    """What is noted of a finished episode."""
    return {"file": file, "done": asdict(done)}


# --- in each process


class _Worker:
    """Converts episodes of one dataset, which each process opens once. Can be pickled before it is called."""

    def __init__(
        self, origin: DatasetSource, folder: str, notes: str, options: ConvertOptions
    ) -> None:
        self._origin = origin
        self._source: DatasetReader | None = None
        self._folder = folder
        self._notes = notes
        # Not the executor, which stays where it is.
        self._options = replace(options, executor=None)
        self._where = options.where

    def __call__(self, task: tuple[int, str, str]) -> _Done:
        """Converts one episode; an error of the data is part of the result unless it shall be raised."""
        if self._source is None:
            self._source = self._origin.open(self._options.reading())
            self._is_meant = _Condition(self._where)
        number, file, name = task
        done = self._convert(self._source, number, f"{self._folder}/{file}", name)
        if self._notes and not done.problem:
            write_file(
                f"{self._notes}/{file}.json", [json.dumps(_line(file, done)).encode()], fsync=False
            )
        return done

    def _convert(self, source: DatasetReader, number: int, path: str, name: str) -> _Done:
        try:
            with read_one(source, number) as episode:
                fields = None if self._where is None else tuple(episode.metadata)
                if not self._is_meant(episode):
                    return _Done(name, is_chosen=False, fields=fields)
                nbytes, notes = self._save(episode, path)
                changes = (*episode.changes, *notes)
                return _Done(name, episode.length, nbytes, changes, fields=fields)
        except DATA_ERRORS as error:
            self._origin.renamed(error)
            if is_url(path):
                remove_urls([path])
            else:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            if self._options.on_error == "raise":
                raise
            return _Done(name, problem=str(error))

    def _save(self, episode: Episode, path: str) -> tuple[int, list[FieldChange]]:
        """Saves an episode; returns the size of the file, and what that changed."""
        compression = self._options.compression
        encoded = cameras_to_encode(episode) if self._options.video == "encode" else {}
        codecs = dict(encoded)
        if compression is not None:
            codecs["*"] = compression
        profile = None if compression else "training"
        with uploading(path) as local:
            save_wshard(episode, local, codecs or None, profile=profile)
            nbytes = os.path.getsize(local)
        if self._options.verify:
            with copying_urls(), load_wshard(path) as found:
                for problem in differences(
                    episode, found, only_common=bool(encoded), leave_out=encoded
                ):
                    raise BadValue(
                        f"what was written differs from the source: {problem}", entry=episode.id
                    )
        notes = Notes()
        note_encoded(encoded, notes)
        return nbytes, list(notes.changes)

    def close(self) -> None:
        """Closes the dataset."""
        if self._source is not None:
            self._source.close()


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


def _foreign_differences(
    wanted: Episode, found: Episode, may_differ: set[str], shorter: set[str]
) -> Iterator[str]:
    """How an episode of another format differs from the one that was written, in the blocks that both have.

    Args:
        wanted: what was written.
        found: what was read back.
        may_differ: blocks that are not compared, because a note says that their values changed.
        shorter: blocks that lose the entry after the last step.
    """
    mine, yours = dict(wanted.blocks()), dict(found.blocks())
    compared = set(may_differ)
    for name, channel in mine.items():
        other = yours.get(name)
        is_cut = name in shorter and channel.length > wanted.length
        if other is None or (channel.layout == other.layout != "video" and not is_cut):
            continue  # missing, or compared as it is stored
        if name not in may_differ:
            yield from _other_steps(name, channel, other, channel.length - is_cut)
        compared |= {name, offsets_block(name), frames_block(name)}
    yield from differences(wanted, found, only_common=True, leave_out=compared)


def _other_steps(name: str, wanted: Channel, found: Channel, steps: int) -> Iterator[str]:
    """How steps differ, as their users see them: pictures by their pixels, however they are encoded."""
    if found.length != steps:
        yield f"{name} has {found.length} entries instead of {steps}"
        return
    if (
        isinstance(wanted, VideoChannel)
        and isinstance(found, VideoChannel)
        and wanted.codec == found.codec
        and np.array_equal(wanted.stored_array(), found.stored_array())
    ):
        return  # the same packets: nothing to decode
    mine, yours = wanted.uncached(), found.uncached()
    for start, stop in step_ranges(steps, max(wanted.step_bytes, 1), _PIECE_BYTES):
        one, other = mine.read_steps(start, stop), yours.read_steps(start, stop)
        if not isinstance(one, np.ndarray):
            is_same = list(map(_step_bytes, one)) == list(map(_step_bytes, other))
        else:
            is_same = _step_bytes(one) == _step_bytes(other)
        if not is_same:
            yield f"{name} has other values"
            return


def _step_bytes(values: Any) -> Any:  # noqa: ANN401 - an array or a string
    """What is compared of one step or several: the bits of an array, with its form."""
    if isinstance(values, np.ndarray):
        return values.dtype, values.shape, values.tobytes()
    return values


def _hash_of(entry: PlannedEntry) -> bytes:
    state = xxh3_128()
    if entry.block is not None:
        for piece in entry.block().pieces(_PIECE_BYTES):
            state.update(memoryview(piece).cast("B"))
    else:
        state.update(entry.flat().data)
    return state.digest()


# --- what is done, and reports


class _Condition:
    """Which episodes are meant, and whether the condition names fields that none of them has."""

    def __init__(self, where: str | None) -> None:
        self._holds = None if where is None else parse_where(where)
        self._has_seen_any = False

    def __call__(self, episode: Episode) -> bool:
        self._has_seen_any = True
        return self._holds is None or bool(self._holds(_info_of(episode)))

    def note_fields(self, fields: Sequence[str] | None) -> None:
        """Takes what a worker said about an episode."""
        if isinstance(self._holds, Expression) and fields is not None:
            self._has_seen_any = True
            self._holds.note_fields(fields)

    def warnings(self) -> list[str]:
        """What is likely to be misspelt."""
        if not (isinstance(self._holds, Expression) and self._has_seen_any):
            return []
        return [str(error) for error in self._holds.unknown_names()]


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
