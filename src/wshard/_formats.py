"""Which format a file is in, and opening and saving by it."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import BadMagic, InvalidArgument, Truncated
from shard_format.registry import DEFAULT_LIMITS, Limits
from shard_format.sources import is_url
from wshard._files import open_wshard, save_wshard
from wshard._folders import is_journal
from wshard.partial import PartialEpisode, RecordingFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shard_format.sources import SourceLike
    from wshard._episode import Episode

__all__ = ["detect_format", "load", "load_wshard", "save"]


# The room that knows other formats. By name: the core imports no room that is built on it.
_CONVERTERS: Final = "wshard.convert"
_PARTIAL: Final = "partial"
_OWN: Final = ("wshard", _PARTIAL)
_OWN_ENDING: Final = ".wshard"


def detect_format(path: str | os.PathLike[str]) -> str:
    """Looks at the content of a file or folder, never at its name.

    Returns:
        `"wshard"` for an episode, the manifest of a chunked one, or a folder of episodes, `"partial"` for a recording
        that was not finished, or the name of another format that `wshard.convert` reads.

    Raises:
        ShardError: the format is not known; says what the file looks like.
    """
    location = os.fspath(path)
    if not os.path.isdir(location) and is_journal(location):
        return _PARTIAL
    found: str = import_module(_CONVERTERS).detect(location).name
    return found


def load_wshard(
    source: SourceLike,
    channels: Iterable[str] | None = None,
    lanes: Iterable[str] | None = None,
    *,
    sidecars: bool | str | Iterable[SourceLike] = True,
    check: bool = True,
    threads: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> Episode:
    """Opens an episode.

    Descriptions are read now, arrays when you access them. A chunked episode opens by its manifest.
    Lanes and edits that were added later are included. The journal of a recording that was not finished,
    `….partial`, opens up to its last flush, for reading only, as `open_partial` opens it.

    Args:
        source: a path, a URL, bytes, a binary file that can seek, or any `ByteSource`.
        channels: only these and the predictions about them: names, block names, or patterns such as
            `"wrist/*"`. None for all.
        lanes: only these: `"signal"`, `"action"`, `"reward"`, `"done"`, `"time"`, `"omen"`, `"uncert"`,
            `"residual"`, `"label"`, or the prefix of any other names. None for all.
        sidecars: True looks for the folder `<file>.lanes` beside a local file and warns about a sidecar that does
            not fit; `"strict"` raises an error instead; False does not look. Or the sidecars themselves, if they
            are elsewhere; those must fit.
        check: False skips checksums, also those of chunks and sidecars.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        limits: what the file may ask for; raise one for files you trust.
        storage_options: headers, credentials and the like for a URL, as `ShardReader` takes them. They
            are for the episode itself: pass a sidecar that needs some as an opened source.

    Raises:
        ShardError: a subclass that says which rule of spec/wshard.md or spec/shard.md the file breaks.
        EntryNotFound: a channel or lane is missing; suggests similar names.
    """
    try:
        return open_wshard(
            source,
            channels,
            lanes,
            sidecars=sidecars,
            check=check,
            threads=threads,
            limits=limits,
            storage_options=storage_options,
        )
    except (BadMagic, Truncated):
        # Looked at only now: most files are episodes.
        if not isinstance(source, (str, os.PathLike)) or is_url(os.fspath(source)):
            raise
        if not is_journal(os.fspath(source)):
            raise
    if not isinstance(sidecars, (bool, str)):
        raise InvalidArgument("a recording has no sidecars", path=os.fspath(source))
    return PartialEpisode(RecordingFiles.of(source), channels, lanes)


def load(path: str | os.PathLike[str], **options: Any) -> Episode:  # noqa: ANN401 - the arguments of the loader
    """Opens an episode in any known format.

    Args:
        path: an episode, or a dataset of another format that holds one; `wshard.convert.read` reads several.
        options: as for `load_wshard`, or as for `wshard.convert.read`.
    """
    location = os.fspath(path)
    if is_url(location) or location.endswith(_OWN_ENDING) or detect_format(location) in _OWN:
        return load_wshard(path, **options)
    episode: Episode = import_module(_CONVERTERS).read_only_episode(location, **options)
    return episode


def save(episode: Episode, path: str | os.PathLike[str], **options: Any) -> None:  # noqa: ANN401 - the arguments of the saver
    """Saves an episode in the format of the name's ending.

    Args:
        episode: what to save.
        path: `….wshard`, or the ending of another format.
        options: as for `save_wshard`, or as for `wshard.convert.write`.
    """
    if os.fspath(path).lower().endswith(_OWN_ENDING):
        save_wshard(episode, path, **options)
    else:
        import_module(_CONVERTERS).write([episode], path, **options)
