"""From a dataset of Hugging Face to episodes: consecutive rows of one episode become one file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np

from shard_format.errors import BadValue, InvalidArgument, ShardError, ShardIOError
from shard_format.images import decode_image
from shard_format.parallel import map_in_order, thread_count
from shard_format.registry import DEFAULT_LIMITS
from shard_train.huggingface._arrow import (
    features_of,
    libraries,
    numbers_of,
    tables_of,
    whole_column,
    with_content,
)
from shard_train.huggingface._names import (
    EPISODE_ID,
    FRAME,
    POSITIONS,
    TIME,
    TIME_NS,
    block_of,
    checked_block,
)
from shardpack.content_types import content_type_of, ending_of
from wshard import save_wshard
from wshard.types import (
    REWARD,
    TERMINATED,
    TIMESTAMPS,
    TRUNCATED,
    Channel,
    Episode,
    Modality,
    RaggedChannel,
    TextChannel,
    Timebase,
    parse_block,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from shard_format import Compression
    from shard_train.huggingface._arrow import Column, Feature, HFDataset, Table

__all__ = ["SaveOptions", "episodes_from_hf"]

# ColumnValues that are read at a time.
_ROWS: Final = 256
# What a thread is started for, in bytes of compressed images.
_BYTES_PER_THREAD: Final = 1 << 14
# Clocks that are off by no more than this are regular: seconds are often float32.
_TOLERANCE_S: Final = 1e-3


class SaveOptions(TypedDict, total=False):
    """Options of `save_wshard`."""

    compression: str | Compression | Mapping[str, str | Compression] | None
    profile: str | None


def episodes_from_hf(
    dataset: HFDataset,
    folder: str | os.PathLike[str],
    *,
    episode_column: str = "episode_index",
    columns: Mapping[str, str | None] | None = None,
    env_id: str = "",
    fps: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    **save_options: Unpack[SaveOptions],
) -> list[str]:
    """Makes episodes of a dataset with one row for each step; one of them is in memory at a time.

    Columns become what their names say: `observation.<name>` and `action.<name>` channels, `reward`, `terminated` and
    `truncated` what they are called (also as `next.reward` and so on; `done` counts as `terminated`), `timestamp` in
    seconds or `timestamp_ns` the clock, `episode_id` the id. All others are observations of their own name, but for
    `frame_index` and `index`. Types of numbers are kept, images are decoded, texts are text channels, lists of
    different lengths ragged ones.

    If the last row of an episode lacks actions, rewards and ends, it holds the observation after the last action. A
    column that is None in all rows of an episode is not in it.

    Args:
        dataset: a `datasets.Dataset`, or an `IterableDataset`, which is read once; of `episodes_to_hf`, LeRobot or others.
        folder: where `episode_000000.wshard` and so on are written; files that are there are not replaced.
        episode_column: rows with the same value in it are an episode. They follow one another, in order.
        columns: what other columns are: `{"qpos": "signal/joints", "torque": "action/torque", "rew": "reward"}`; None
            leaves a column out.
        env_id: of all episodes.
        fps: steps in a second; None for what the timestamps say.
        metadata: of all episodes.
        save_options: `compression` and `profile`, as for `save_wshard`.

    Returns:
        The files.

    Raises:
        MissingExtra: `datasets` is not installed, or Pillow is not and there are images.
        ShardError: a subclass that says which episode and column cannot be read, and why.
    """
    libraries()
    tables = tables_of(dataset, _ROWS)
    paths: list[str] = []
    folder = os.fspath(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot make the folder", folder) from error
    features: dict[str, Feature] = {}
    blocks: dict[str, str] = {}
    for value, table in _episodes(tables, episode_column):
        if not features:
            features = features_of(dataset, table)
            blocks = _blocks_of(list(features), episode_column, columns or {})
        path = os.path.join(folder, f"episode_{len(paths):06d}.wshard")
        if os.path.exists(path):
            raise InvalidArgument("the file exists", path=path, hint="use an empty folder")
        try:
            _check_order(table)
            episode = _episode_of(table, blocks, features, f"episode_{value}", fps)
            episode.env_id = env_id
            episode.metadata.update(metadata or {})
            save_wshard(episode, path, **save_options)
        except ShardError as error:
            error.problem = f"episode {value!r}: {error.problem}"
            raise
        paths.append(path)
    if not paths:
        raise InvalidArgument("the dataset has no rows")
    return paths


def _episodes(tables: Iterator[Table], column: str) -> Iterator[tuple[Any, Table]]:
    """The rows of each episode, whatever tables they come in."""
    _, pa = libraries()
    seen: set[Any] = set()
    pieces: list[Table] = []
    current: Any = None
    for table in tables:
        if column not in table.column_names:
            raise InvalidArgument(
                "no such column",
                expected=" or ".join(map(repr, table.column_names)),
                found=repr(column),
                hint="episode_column=… names the one that tells episodes apart",
            )
        values = table.column(column).to_pylist()
        start = 0
        for at, value in enumerate(values):
            if value is None:
                raise BadValue("a row belongs to no episode", entry=column, found=f"row {at}")
            if pieces or at:
                if value == current:
                    continue
                pieces.append(table.slice(start, at - start))
                yield current, pa.concat_tables(pieces)
                pieces, start = [], at
            if value in seen:
                raise BadValue(
                    "the rows of an episode do not follow one another",
                    entry=column,
                    found=repr(value),
                    hint=f"sort the dataset: dataset.sort([{column!r}, {FRAME!r}])",
                )
            seen.add(value)
            current = value
        pieces.append(table.slice(start))
    if pieces:
        yield current, pa.concat_tables(pieces)


def _blocks_of(
    names: list[str], episode_column: str, given: Mapping[str, str | None]
) -> dict[str, str]:
    """Which block each column becomes."""
    for name in given:
        if name not in names:
            raise InvalidArgument(
                "no such column",
                expected=" or ".join(map(repr, names)),
                found=repr(name),
            )
    blocks: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        if name in given:
            chosen = given[name]
            if chosen is None:
                continue
            block = checked_block(chosen)
        elif name == episode_column or name in POSITIONS:
            continue
        else:
            block = block_of(name)
        if block in taken:
            raise InvalidArgument(
                f"two columns would become {block!r}",
                found=f"{taken[block]!r} and {name!r}",
                hint=f"columns={{{name!r}: None}} leaves one out",
            )
        blocks[name] = block
        taken[block] = name
    return blocks


def _check_order(table: Table) -> None:
    if FRAME not in table.column_names:
        return
    frames = whole_column(table, FRAME)
    first = frames[0].as_py()
    if frames.null_count or frames.to_pylist() != list(range(first, first + len(frames))):
        raise BadValue(
            "the steps of an episode are out of order, or some are missing",
            entry=FRAME,
            expected=f"{first}, {first + 1}, … {first + len(frames) - 1}",
            hint=f"sort the dataset by the episode and {FRAME!r}",
        )


# --- one episode


def _episode_of(
    table: Table,
    blocks: Mapping[str, str],
    features: Mapping[str, Feature],
    default_id: str,
    fps: float | None,
) -> Episode:
    """An episode of all rows of a table."""
    found: dict[str, Column] = {}
    for name in blocks:
        column = whole_column(table, name)
        known = _known(column, name)
        if known:
            found[name] = column.slice(0, known)
    counts = {blocks[name]: len(column) for name, column in found.items()}
    if TIME_NS in table.column_names:
        # The observation after the last step has no time of its own.
        counts[TIMESTAMPS] = _known(whole_column(table, TIME_NS), TIME_NS)
    length = _length({block: n for block, n in counts.items() if n}, table.num_rows)
    id = table.column(EPISODE_ID)[0].as_py() if EPISODE_ID in table.column_names else None
    episode = Episode(id if id and isinstance(id, str) else default_id, length=length)
    _set_clock(episode, table, length, fps)
    for name, column in found.items():
        try:
            channel = _channel(column, features.get(name))
        except ShardError as error:
            raise error.located(entry=name) from None
        _put(episode, blocks[name], channel)
    return episode


def _known(column: Column, name: str) -> int:
    """How many rows have something: all, all but the last, or none."""
    known: int = len(column) - column.null_count
    if not known or column.null_count > 1 or (column.null_count and column[-1].is_valid):
        if known:
            raise BadValue(
                "a step in the middle of an episode is missing",
                entry=name,
                expected=f"{len(column)} values, or {len(column) - 1} and None in the last row",
                found=f"{known} values",
            )
        return 0
    return known


def _length(counts: Mapping[str, int], rows: int) -> int:
    """The number of steps. Only observations may have one entry more."""
    steps = {block: n for block, n in counts.items() if not block.startswith("signal/")}
    length = min(steps.values(), default=max(counts.values(), default=rows))
    for block, count in counts.items():
        if count not in (length, length + block.startswith("signal/")):
            raise BadValue(
                "the columns of an episode have different lengths",
                entry=block,
                expected=f"{length} values",
                found=f"{count} values",
            )
    return length


def _set_clock(episode: Episode, table: Table, length: int, fps: float | None) -> None:
    if fps is not None:
        episode.timebase = Timebase(tick_hz=float(fps))
    if TIME_NS in table.column_names:
        recorded = whole_column(table, TIME_NS).slice(0, length)
        if not recorded.null_count:
            episode.timestamps_ns = recorded.to_numpy(zero_copy_only=False)
            return
    if fps is None and TIME in table.column_names:
        column = whole_column(table, TIME).slice(0, length)
        if not column.null_count and length:
            _set_seconds(episode, column.to_numpy(zero_copy_only=False).astype(np.float64))


def _set_seconds(episode: Episode, seconds: NDArray[np.float64]) -> None:
    """A rate if the times are regular, else the times."""
    span = float(seconds[-1] - seconds[0])
    start_ns = round(float(seconds[0]) * 1e9)
    if len(seconds) < 2:
        episode.timebase.epoch_ns = start_ns
        return
    rate = (len(seconds) - 1) / span if span > 0 else 0.0
    regular = seconds[0] + np.arange(len(seconds)) * (span / (len(seconds) - 1))
    if rate > 0 and np.abs(seconds - regular).max() <= min(_TOLERANCE_S, 0.1 / rate):
        # Of a rate such as 30 Hz, divisions leave 29.999999.
        rounded = round(rate, 3)
        is_close = abs(rounded - rate) <= 1e-5 * rate
        episode.timebase = Timebase(tick_hz=rounded if is_close else rate, epoch_ns=start_ns)
    else:
        episode.timestamps_ns = np.rint(seconds * 1e9).astype(np.int64)


def _channel(column: Column, feature: Feature) -> Channel:
    datasets, pa = libraries()
    types = pa.types
    if isinstance(feature, datasets.Image):
        return Channel(data=_pictures(column), modality=Modality.RGB)
    if types.is_string(column.type) or types.is_large_string(column.type):
        return TextChannel(data=column.to_pylist())
    if isinstance(feature, datasets.ClassLabel):
        return TextChannel(data=[feature.int2str(number) for number in column.to_pylist()])
    rows = numbers_of(column, feature)
    if rows is None:
        raise InvalidArgument(
            "this column cannot be a channel",
            expected="numbers, lists of numbers, text or images",
            found=str(column.type),
            hint="columns={name: None} leaves it out",
        )
    if rows.offsets is not None:
        return RaggedChannel(values=rows.values, offsets=rows.offsets)
    return Channel(data=rows.values)


def _pictures(column: Column) -> NDArray[Any]:
    files = with_content(column).to_pylist()
    if any(file["bytes"] is None for file in files):
        raise BadValue("an image has neither content nor a path")
    total = sum(len(file["bytes"]) for file in files)
    frames = map_in_order(files, _decoded, thread_count(None, total, _BYTES_PER_THREAD))
    if len({frame.shape for frame in frames}) > 1:
        shapes = sorted({frame.shape for frame in frames})
        raise BadValue("images of an episode differ in their size", found=shapes)
    return np.stack(frames)


def _decoded(file: Mapping[str, Any]) -> NDArray[Any]:
    data = memoryview(file["bytes"])
    content_type = content_type_of(ending_of(data))
    return decode_image(content_type, data, DEFAULT_LIMITS.max_decompressed_bytes)


def _put(episode: Episode, block: str, channel: Channel) -> None:
    if block in (REWARD, TERMINATED, TRUNCATED):
        channel.name = block
        if block == REWARD:
            episode.rewards = channel
        elif block == TERMINATED:
            episode.terminations = channel
        else:
            episode.truncations = channel
        return
    lane, name, model, kind = parse_block(block)
    if lane == "signal":
        episode.observations[name] = channel
    elif lane == "action":
        episode.actions[name] = channel
    elif lane == "omen":
        episode.omens[name][model] = channel
    else:
        episode.uncerts[name][model][kind] = channel
