"""From episodes to a data set of Hugging Face: a row for each step, window or episode."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, Literal

from xxhash import xxh64

from shard_format.errors import InvalidArgument
from shardpack._hf_arrow import libraries, write_dataset
from wshard.dataset import EpisodeDataset
from wshard.huggingface.episodes import Episodes
from wshard.huggingface.step_rows import StepRows
from wshard.huggingface.whole_rows import EpisodeRows, WindowRows

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from shardpack._hf_arrow import Feature, HFDataset
    from wshard.dataset.listing import Files
    from wshard.episode import Episode
    from wshard.huggingface.channel_columns import Images

__all__ = ["to_hf_dataset"]

_ROWS: Final = ("steps", "windows", "episodes")


def to_hf_dataset(
    episodes: Files | EpisodeDataset | Episode | Iterable[Episode],
    *,
    rows: Literal["steps", "windows", "episodes"] = "steps",
    channels: Iterable[str] | None = None,
    images: Images = "png",
    last_observation: Literal["row", "drop"] = "row",
    path: str | os.PathLike[str] | None = None,
) -> HFDataset:
    """A `datasets.Dataset` of episodes.

    With `rows="steps"` there is one row for each step: `episode_index`, `episode_id`, `frame_index`, `timestamp` (seconds
    since the start of the episode), `timestamp_ns` if times were recorded; `observation.<channel>`, `action.<channel>`,
    `reward`, `terminated` and `truncated`, None where the episode has none. Numbers keep their types; bf16 becomes
    float32, and says so in the `id` of its type. `from_hf_dataset` makes the same episodes of these rows, as far as it is
    in them: metadata, labels and channels that do not follow the steps are not. Channels that are left out are
    reported to the logger `wshard`.

    `"windows"` needs an `EpisodeDataset`, and has its windows as they are, one row each. `"episodes"` has all steps of an
    episode in one row, together with `episode_id`, `env_id`, `length`, `tick_hz` and `metadata`.

    The rows are written to an Arrow file, a few megabytes in memory at a time, which the data set then maps.

    Args:
        episodes: an `EpisodeDataset`, whose channels are taken; what its first argument may be; or episodes.
        rows: `"steps"`, `"windows"` or `"episodes"`.
        channels: names, or block names such as `"omen/state/dreamer"`; None for all observations and actions that
            follow the steps.
        images: how cameras (uint8, three or four colours) are stored in rows of steps: `"png"`, without loss, with
            the type `Image`; or `"array"`.
        last_observation: what becomes of an observation after the last action. `"row"`: a row of its own, in which
            actions, reward and ends are None. `"drop"`: it is left out, and every row is a whole step.
        path: of the Arrow file; an existing one is replaced. None for one in the cache of `datasets`, whose name
            depends on the episodes, so that it is replaced when the same episodes are read again.

    Raises:
        MissingExtra: `datasets` is not installed, or Pillow is not and there are cameras.
        InvalidArgument: episodes differ in their channels, or an argument cannot work.
        ShardError: a subclass that says which file cannot be read, and why.
    """
    libraries()
    for name, value, allowed in (
        ("rows", rows, _ROWS),
        ("images", images, ("png", "array")),
        ("last_observation", last_observation, ("row", "drop")),
    ):
        if value not in allowed:
            expected = " or ".join(map(repr, allowed))
            raise InvalidArgument(f"unknown {name}", expected=expected, found=repr(value))
    if isinstance(channels, str):
        raise InvalidArgument("channels takes a list of names", hint=f"channels=[{channels!r}]")
    source = Episodes(episodes)
    if rows == "windows":
        if not isinstance(episodes, EpisodeDataset) or channels is not None:
            raise InvalidArgument(
                "rows of windows are those of an EpisodeDataset",
                expected="EpisodeDataset(files, window=…, channels=…), and no channels here",
                found=type(episodes).__name__ if channels is None else "channels",
            )
        windows = WindowRows(episodes)
        name = _file_name(rows, source, windows.features)
        return write_dataset(windows.batches(), windows.features, path, name)
    names = list(channels) if channels is not None else source.channels
    named = iter(source)
    first = next(named, None)
    if first is None:
        raise InvalidArgument("there are no episodes")
    columns = (
        EpisodeRows(first, names)
        if rows == "episodes"
        else StepRows(first, names, images, keeps_last=last_observation == "row")
    )
    batches = (
        batch
        for number, one in enumerate(chain([first], named))
        for batch in columns.batches(number, one)
    )
    name = _file_name(f"{rows}-{last_observation}", source, columns.features)
    return write_dataset(batches, columns.features, path, name)


def _file_name(rows: str, source: Episodes, features: Feature) -> str:
    text = f"{source.identity} {features}"
    return f"{rows}-{xxh64(text.encode(errors='surrogateescape')).hexdigest()}"
