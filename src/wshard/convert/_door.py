"""Reading and writing datasets of other formats: what users call."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import (
    DATA_ERRORS,
    FileThere,
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
)
from shard_format.listing import is_there, list_names
from shard_format.sources import is_url
from shard_format.transfer import uploading
from wshard._lanes import REWARD_EXACT
from wshard._values import DType
from wshard.convert._dataset_source import DatasetSource
from wshard.convert._model import (
    WHOLE,
    ConversionReport,
    ConvertedEpisode,
    Notes,
    ReadOptions,
    WriteOptions,
    check_options,
)
from wshard.convert._registry import (
    FORMATS,
    format_named,
    format_of,
    module_of,
)
from wshard.convert._work import WorkFolder, size_of, sync_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wshard._episode import Episode
    from wshard.convert._model import DatasetReader, DatasetWriter, Format

__all__ = ["detect", "formats", "read", "write"]

_log = logging.getLogger("wshard")
_MOST_STRAYS: Final = 20


def formats() -> tuple[Format, ...]:
    """The formats that are read and written."""
    return tuple(FORMATS.values())


def detect(path: str | os.PathLike[str]) -> Format:
    """Which format a file or folder is in, by its content.

    Raises:
        InvalidArgument: it is in none of the formats that can be read; says what it looks like.
        ShardError: the file by which a format is known is damaged.
    """
    with DatasetSource(path, None) as origin:
        return origin.form


def read(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    episodes: slice | None = None,
    video: str = "keep",
    mapping: Mapping[str, Any] | None = None,
    on_error: str = "raise",
) -> Iterator[ConvertedEpisode]:
    """Reads the episodes of a dataset in another format, one after the other.

    Large arrays stay in the dataset until you use them, so use or save an episode before you ask for the next.
    `episode.changes` tells what became of each field.

    Args:
        path: a file or folder, or its URL. If a folder at a URL has a file for each episode, each is fetched when its
            turn comes; anything else is fetched first.
        format: one of `formats()`; None looks at the content.
        episodes: which ones, such as `slice(0, 100)`; None for all.
        video: `"keep"` keeps encoded streams where that is possible, `"decode"` makes pixels of them.
        mapping: for formats without a known layout, which field becomes what; see docs/formats.md.
        on_error: `"skip"` logs an episode that cannot be read and goes on with the next.

    Raises:
        InvalidArgument: the format is not known, or an option.
        ShardError: the dataset is damaged; names file and field.
        MissingExtra: the format needs a package that is not installed; says which extra to install.
    """
    check_choice("on_error", on_error, ("raise", "skip"))
    with (
        DatasetSource(path, format) as origin,
        contextlib.closing(origin.open(ReadOptions(video=video, mapping=mapping))) as source,
    ):
        for number in range(len(source.names()))[episodes or slice(None)]:
            try:
                episode = read_one(source, number)
            except DATA_ERRORS as error:
                origin.renamed(error)
                if on_error == "raise":
                    raise
                _log.warning("%s: left out: %s", source.names()[number], error)
                continue
            yield episode


def read_only_episode(path: str, **options: Any) -> ConvertedEpisode:  # noqa: ANN401 - as for `read`
    """The episode of a dataset that holds just one. Close it."""
    form = options.pop("format", None)
    source = DatasetSource(path, form).open(ReadOptions(**options))
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        count = len(source.names())
        if count != 1:
            raise InvalidArgument(
                "a dataset of several episodes is not one episode",
                path=path,
                expected="one episode",
                found=f"{count} episodes",
                hint="read them one after the other: for episode in wshard.convert.read(path)",
            )
        episode = read_one(source, 0)
        episode.source = source
        stack.pop_all()
    return episode


def read_one(source: DatasetReader, number: int) -> ConvertedEpisode:
    """One episode of an open dataset, with what became of its fields."""
    notes = Notes()
    episode = source.read(number, notes)
    rewards = episode.rewards
    if rewards is not None and rewards.dtype_name is DType.FLOAT64:
        # A file of ours would otherwise store them in 32 bits if that loses nothing, as of every sparse task, and the
        # way back to the other format would change their type.
        rewards.block = REWARD_EXACT
    for name in source.strays[:_MOST_STRAYS]:
        notes.dropped(name, "it belongs to no episode")
    if len(source.strays) > _MOST_STRAYS:
        rest = len(source.strays) - _MOST_STRAYS
        notes.dropped(f"{rest} more files", "they belong to no episode")
    return ConvertedEpisode(episode, notes.changes)


def write(
    episodes: Iterable[Episode],
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    video: str = "keep",
    overwrite: bool = False,
) -> ConversionReport:
    """Writes episodes as a dataset in another format, which appears at its path when it is complete.

    Args:
        episodes: read one after the other; each must stay open until the next is asked for.
        path: the file or folder to make. One behind a URL is made in a temporary folder and uploaded.
        format: one of `formats()`; None for the format of the path's ending.
        video: what becomes of cameras where the format has video: `"keep"` copies encoded streams and encodes
            pixels, `"encode"` encodes all, `"decode"` writes pixels.
        overwrite: whether to replace what is at the path.

    Returns:
        What was written, and what became of each field.

    Raises:
        FileExistsError: something is at the path.
    """
    form = format_of(os.fspath(path)) if format is None else format_named(format)
    check_writable(form, os.fspath(path), overwrite=overwrite)
    report = ConversionReport(source="", target=os.fspath(path), format="wshard", to=form.name)
    with uploading(path) as local:
        final = os.path.abspath(local)
        with writing(final), WorkFolder(final) as work:
            work.begin({}, resume=False)
            write_dataset(episodes, work.new, form, WriteOptions(video=video), report)
            work.place(work.new, report.as_json())
    return report


def write_dataset(
    episodes: Iterable[Episode],
    path: str,
    form: Format,
    options: WriteOptions,
    report: ConversionReport,
) -> None:
    """Writes episodes to a path where nothing is yet, and counts them in the report."""
    check_options(options)
    target: DatasetWriter = getattr(module_of(form), form.writer)(path, options)
    try:
        _write_all(episodes, target, report)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            target.abandon()
        raise
    sync_tree(path)
    report.bytes_written = size_of(path)


def _write_all(
    episodes: Iterable[Episode], target: DatasetWriter, report: ConversionReport
) -> None:
    for episode in episodes:
        notes = Notes()
        target.write(episode, notes)
        report.add(notes.changes)
        if not any(change.kind == "dropped" and change.field == WHOLE for change in notes.changes):
            report.episodes += 1
            report.steps += episode.length
    target.finish()


def check_writable(form: Format, target: str, *, overwrite: bool) -> None:
    """Refuses a format that cannot be written, and a target that may not be replaced."""
    if not form.writes:
        raise InvalidArgument(f"{form.title} can be read, not written", path=target)
    if is_url(target) and list_names(target):  # a folder
        raise FileThere(
            "something is there already",
            path=target,
            hint="a folder of an object store is not replaced, because readers would see files of both: "
            "write to another name, then delete the old folder",
        )
    if is_there(target) and not overwrite:
        raise FileThere(
            "something is there already",
            path=target,
            hint="choose another name, or replace it with overwrite=True",
            command="choose another name, or replace it with --force",
        )


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Errors of the system in the block name the dataset that is written."""
    try:
        yield
    except ShardError:
        raise
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot write", path) from error
