"""Windows that were drawn, as arrays: their rows, where episodes begin and end, indices and latents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from wshard.windows import Windows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.replay._drawing import Drawn, Lengths, WindowKind
    from wshard.replay._episodes import StoredEpisode, StoredEpisodes
    from wshard.windows import ChannelSpec, WindowSource

BATCH_KEYS: Final = (
    *("is_last", "is_terminal", "indices", "step_indices"),
    *("probability", "has_latents"),
)
"""What batches have besides what all windows have."""


class _Part(NamedTuple):
    """Consecutive rows of an episode in a window."""

    window: int
    column: int
    """Where in the window they begin."""
    episode: StoredEpisode
    start: int
    stop: int

    @property
    def place(self) -> tuple[int, slice]:
        """Where in a batch they are."""
        return self.window, slice(self.column, self.column + self.stop - self.start)


def read_windows(
    episodes: StoredEpisodes,
    wanted: Sequence[ChannelSpec],
    drawn: Drawn,
    kind: WindowKind,
    lengths: Lengths,
) -> dict[str, NDArray[Any]]:
    """A batch, as `ReplayBuffer.sample` returns it."""
    parts = list(_parts(episodes.row, drawn, kind, lengths))
    shape = len(drawn.starts), kind.length
    is_repeated = kind.padding == "repeat"
    windows = Windows(*shape, wanted, more=kind.next_observations, repeat=is_repeated, flags=())
    indices = np.full((*shape, 2), -1, np.int64)
    is_last, is_terminal = np.zeros((2, *shape), bool)
    for part in parts:
        stored = part.episode
        source = episodes.source(stored, wanted)
        if kind.across_episodes:
            _fill(windows.arrays, part, source)
        else:
            windows.fill(part.window, source, part.start, part.stop)
        indices[part.place][:, 0] = stored.number
        indices[part.place][:, 1] = np.arange(part.start, part.stop)
        last = (stored.rows if kind.across_episodes else stored.steps) - 1
        if part.start <= last < part.stop and not stored.is_running:
            column = part.column + last - part.start
            is_last[part.window, column] = True
            ended = is_terminal[part.window, column : column + 1]
            source.read("terminated", stored.steps - 1, ended)
    batch = {
        **windows.arrays,
        "is_first": indices[:, :, 1] == 0,
        "is_last": is_last,
        "is_terminal": is_terminal,
        "is_pad": indices[:, :, 0] < 0,
        "indices": indices[:, 0].copy(),
        "step_indices": indices,
        "probability": drawn.probability,
    }
    if episodes.latents is not None:
        _add_latents(batch, parts, episodes)
    return batch


def _parts(
    row: Sequence[StoredEpisode], drawn: Drawn, kind: WindowKind, lengths: Lengths
) -> Iterator[_Part]:
    """What the windows are made of."""
    usable = lengths.usable(kind)
    places = zip(drawn.episodes.tolist(), drawn.starts.tolist(), strict=True)
    for window, (place, start) in enumerate(places):
        column = 0
        while True:
            stop = min(start + kind.length - column, int(usable[place]))
            yield _Part(window, column, row[place], start, stop)
            column += stop - start
            if column == kind.length or not kind.across_episodes:
                break
            place, start = int(lengths.following[place]), 0


def _fill(arrays: Mapping[str, NDArray[Any]], part: _Part, source: WindowSource) -> None:
    """Read rows of an episode into a window. The row after its last step is zero where a channel has no entry for it."""
    own = min(part.stop, part.episode.steps) - part.start
    for key, array in arrays.items():
        out = array[part.place]
        channel = source.channels[key]
        count = len(out) if channel is None or channel.length >= part.stop else own
        source.read(key, part.start, out[:count])
        out[count:] = 0


def _add_latents(
    batch: dict[str, NDArray[Any]], parts: Iterable[_Part], episodes: StoredEpisodes
) -> None:
    """Put latents into a batch, over what channels of these names hold."""
    assert episodes.latents is not None
    fields = episodes.latents.fields
    has_latents = batch["has_latents"] = np.zeros(batch["is_pad"].shape, bool)
    for name, (dtype, shape) in fields.items():
        if name not in batch:
            batch[name] = np.zeros((*has_latents.shape, *shape), dtype)
    for part in parts:
        if part.episode.has_latents:
            count = part.stop - part.start
            values, known = episodes.read_latents(part.episode, part.start, count)
            there = part.window, slice(part.column, part.column + len(known))
            has_latents[there] = known
            for name in fields:
                is_written = known.reshape(-1, *[1] * (values[name].ndim - 1))
                np.copyto(batch[name][there], values[name], where=is_written)
