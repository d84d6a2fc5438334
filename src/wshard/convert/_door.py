"""Reading and writing datasets of other formats: what users call."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from shard_format.atomic import sync_folder
from shard_format.errors import (
    DATA_ERRORS,
    FileThere,
    InvalidArgument,
    ShardError,
    ShardIOError,
    check_choice,
)
from wshard._lanes import REWARD_EXACT
from wshard._values import DType
from wshard.convert._model import (
    ConversionReport,
    ConvertedEpisode,
    Notes,
    Probe,
    ReadOptions,
    WriteOptions,
    check_options,
)
from wshard.convert._registry import FORMATS, detect, format_named, format_of, module_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from wshard._episode import Episode
    from wshard.convert._model import DatasetReader, DatasetWriter, Format

__all__ = ["formats", "open_source", "read", "write"]

_log = logging.getLogger("wshard")
_MOST_STRAYS: Final = 20


def formats() -> tuple[Format, ...]:
    """The formats that are read and written."""
    return tuple(FORMATS.values())


def open_source(
    path: str | os.PathLike[str], form: str | None, options: ReadOptions
) -> DatasetReader:
    """A dataset, open for reading. Close it."""
    check_options(options)
    location = os.fspath(path)
    # Refuses what is neither a file nor a folder: a library might wait for it.
    Probe(location).head  # noqa: B018 - read for its errors
    found = detect(location) if form is None else format_named(form)
    if not found.reads:
        raise InvalidArgument(f"{found.title} can be written, not read", path=location)
    source: DatasetReader = getattr(module_of(found), found.reader)(location, options)
    return source


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
        path: a file or folder.
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
    source = open_source(path, format, ReadOptions(video=video, mapping=mapping))
    try:
        for number in range(len(source.names()))[episodes or slice(None)]:
            try:
                episode = read_one(source, number)
            except DATA_ERRORS as error:
                if on_error == "raise":
                    raise
                _log.warning("%s: left out: %s", source.names()[number], error)
                continue
            yield episode
    finally:
        source.close()


def read_only_episode(path: str, **options: Any) -> ConvertedEpisode:  # noqa: ANN401 - as for `read`
    """The episode of a dataset that holds just one. Close it."""
    form = options.pop("format", None)
    source = open_source(path, form, ReadOptions(**options))
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
        path: the file or folder to make.
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
    options = WriteOptions(video=video)
    check_options(options)
    if not form.writes:
        raise InvalidArgument(f"{form.title} can be read, not written", path=os.fspath(path))
    report = ConversionReport(source="", target=os.fspath(path), format="wshard", to=form.name)
    with staged(path, overwrite=overwrite) as beside:
        target: DatasetWriter = getattr(module_of(form), form.writer)(beside, options)
        try:
            for episode in episodes:
                notes = Notes()
                target.write(episode, notes)
                report.add(notes.changes)
                report.episodes += 1
                report.steps += episode.length
            target.finish()
        except BaseException:
            with contextlib.suppress(Exception):  # the first error is the one to report
                target.abandon()
            raise
        report.bytes_written = size_of(beside)
    return report


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[str]:
    """A path for a new file or folder, which takes its place when the block ends without an error."""
    final = os.path.abspath(os.fspath(path))
    there = os.path.lexists(final)
    if there and not overwrite:
        raise FileThere(
            "something is there already",
            path=final,
            hint="choose another name, or replace it: overwrite=True, --force",
        )
    # In a folder of its own, under its final name: writers look at the ending.
    folder = f"{final}.converting-{os.getpid()}"
    try:
        os.makedirs(folder)
        beside = os.path.join(folder, os.path.basename(final))
        yield beside
        sync_tree(beside)
        put_in_place(beside, final)
    except ShardError:
        raise
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot write", final) from error
    finally:
        remove(folder)


def put_in_place(new: str, final: str) -> None:
    """Gives a complete file or folder its name; what had that name goes."""
    old = f"{final}.replaced-{os.getpid()}"
    if os.path.isdir(final):
        # A folder cannot be replaced in one step. Killed after this line, the old one is still there as `old`.
        os.rename(final, old)
    os.replace(new, final)
    sync_folder(os.path.dirname(final))
    remove(old)


def sync_tree(path: str) -> None:
    """Makes sure that a file, or all files of a folder, survive a loss of power."""
    files = [path]
    if os.path.isdir(path):
        files = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if os.path.isdir(path):
        for folder, _, _ in os.walk(path, topdown=False):
            sync_folder(folder)


def size_of(path: str) -> int:
    """Bytes of a file, or of all files of a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(
        os.path.getsize(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    )


def remove(path: str) -> None:
    """Removes a file or folder that this module made, if it is there."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
