"""All arrays of an episode, or some, as a plain dictionary: for code that wants nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_format.errors import InvalidArgument
from shard_format.registry import DEFAULT_LIMITS, Role
from wshard.names import TICKS, TIMESTAMPS
from wshard.plain import plain_plan
from wshard.reader import open_episode, open_reader, read_descriptions, sidecar_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from shard_format import Limits, ShardReader
    from shard_format.sources import SourceLike
    from wshard.episode import Episode

__all__ = ["load_arrays"]

# Looking up a member of an enum takes longer than comparing.
_WSHARD = Role.WSHARD.value


def load_arrays(
    source: SourceLike,
    names: Iterable[str] | None = None,
    *,
    check: bool = True,
    threads: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """The arrays of an episode by the names of their blocks, all read and checked, without an `Episode`.

        load_arrays("ep.wshard")                    # {"signal/joint_pos": …, "action/ctrl": …, "reward": …}
        load_arrays("ep.wshard", ["signal/rgb"])    # that one, and nothing else is read

    There are observations, actions, `reward`, `terminated` and `truncated`, predictions and uncertainties (also
    those that were added later), and the clocks of the steps that are stored, `time/ticks` and
    `time/timestamps_ns`. Text and ragged channels come as lists,
    one element for each step. Uncompressed arrays are views and cannot be written to.

    Args:
        source: a path, a URL, bytes, a binary file that can seek, or any `ByteSource`; or the manifest of
            an episode in chunks.
        names: only these blocks; a channel's own name will do. None for all.
        check: False skips checksums.
        threads: how many threads large reads may use; None for one per processor, up to 8.
        limits: what the file may ask for; raise one for files you trust.
        storage_options: headers, credentials and the like for a URL.

    Raises:
        EntryNotFound: there is no such array.
        ShardError: a subclass that says what is wrong with the file.
    """
    if isinstance(names, str):
        raise InvalidArgument("names takes a list of names", hint=f"names=[{names!r}]")
    wanted = None if names is None else list(names)
    reader = open_reader(
        source, limits=limits, threads=threads, check=check, storage_options=storage_options
    )
    try:
        if reader.header.role == _WSHARD and not sidecar_files(reader.name):
            arrays = _straight(reader, wanted)
            if arrays is not None:
                return arrays
        with open_episode(reader) as episode:
            return _through_channels(episode, wanted)
    finally:
        reader.close()


def _straight(reader: ShardReader, names: list[str] | None) -> dict[str, NDArray[Any]] | None:
    """From the file, if it is of the usual kind and nothing in it is compressed."""
    facts, _, _, _, rows = read_descriptions(reader)
    plan = plain_plan(reader, rows)
    return None if plan is None else plan.read_arrays(reader, facts[2], names)


def _through_channels(episode: Episode, names: list[str] | None) -> dict[str, Any]:
    """What every episode has, however it is stored."""
    # Ticks that no file has are counted, which is no array of the episode.
    clocks: dict[str, Any] = {} if episode._ticks is None else {TICKS: episode.ticks}
    if episode.timestamps_ns is not None:
        clocks[TIMESTAMPS] = episode.timestamps_ns
    if names is None:
        episode.load()
        return {block: channel.data for block, channel in episode.blocks()} | clocks
    return {name: clocks[name] if name in clocks else episode.find(name).data for name in names}
