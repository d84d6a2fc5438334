"""From a data set of Hugging Face to episodes: rows that follow one another become one file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import BadValue, InvalidArgument, ShardError, ShardIOError
from shardpack._hf_arrow import features_of, libraries, tables_of, whole_column
from wshard.huggingface.names import FRAME, POSITIONS, block_of, checked_block
from wshard.huggingface.row_episodes import episode_of
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shard_format import Compression
    from shardpack._hf_arrow import Feature, HFDataset, Table

__all__ = ["from_hf_dataset"]

_ROWS: Final = 256


def from_hf_dataset(
    dataset: HFDataset,
    folder: str | os.PathLike[str],
    *,
    episode_column: str = "episode_index",
    columns: Mapping[str, str | None] | None = None,
    env_id: str = "",
    fps: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    compression: str | Compression | Mapping[str, str | Compression] | None = None,
    profile: str | None = None,
    batch_rows: int = _ROWS,
) -> list[str]:
    """Makes episodes of a data set with one row for each step; one of them is in memory at a time.

    Columns become what their names say: `observation.<name>` and `action.<name>` channels, `reward`, `terminated` and
    `truncated` what they are called (also as `next.reward` and so on; `done` counts as `terminated`), `timestamp` in
    seconds or `timestamp_ns` the clock, `episode_id` the id. All others are observations of their own name, but for
    `frame_index` and `index`. Types of numbers are kept, images are decoded, texts are text channels, lists of
    different lengths ragged ones.

    If the last row of an episode lacks actions, rewards and ends, it holds the observation after the last action. A
    column that is None in all rows of an episode is not in it.

    Args:
        dataset: a `datasets.Dataset`, or an `IterableDataset`, which is read once; of `to_hf_dataset`, LeRobot or others.
        folder: where `episode_000000.wshard` and so on are written; files that are there are not replaced.
        episode_column: rows with the same value in it are an episode. They follow one another, in order.
        columns: what other columns are: `{"qpos": "signal/joints", "torque": "action/torque", "rew": "reward"}`; None
            leaves a column out.
        env_id: of all episodes.
        fps: steps in a second; None for what the timestamps say.
        metadata: of all episodes.
        compression: as for `save_wshard`.
        profile: as for `save_wshard`.
        batch_rows: rows that are read at a time.

    Returns:
        The files.

    Raises:
        MissingExtra: `datasets` is not installed, or Pillow is not and there are images.
        ShardError: a subclass that says which episode and column cannot be read, and why.
    """
    libraries()
    tables = tables_of(dataset, batch_rows)
    paths: list[str] = []
    folder = os.fspath(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot make the folder", folder) from error
    features: dict[str, Feature] = {}
    plan: dict[str, str] = {}
    for value, table in _episodes(tables, episode_column):
        if not features:
            features = features_of(dataset, table)
            plan = _plan(list(features), episode_column, columns or {})
        path = os.path.join(folder, f"episode_{len(paths):06d}.wshard")
        if os.path.exists(path):
            raise InvalidArgument(
                "the file is there already", path=path, hint="use an empty folder"
            )
        try:
            _check_order(table)
            episode = episode_of(table, plan, features, f"episode_{value}", fps)
            episode.env_id = env_id
            episode.metadata.update(metadata or {})
            save_wshard(episode, path, compression, profile=profile)
        except ShardError as error:
            error.problem = f"episode {value!r}: {error.problem}"
            raise
        paths.append(path)
    if not paths:
        raise InvalidArgument("the data set has no rows")
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
                "there is no such column",
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
                    hint=f"sort the data set: dataset.sort([{column!r}, {FRAME!r}])",
                )
            seen.add(value)
            current = value
        pieces.append(table.slice(start))
    if pieces:
        yield current, pa.concat_tables(pieces)


def _plan(names: list[str], episode_column: str, given: Mapping[str, str | None]) -> dict[str, str]:
    """Which block each column becomes."""
    for name in given:
        if name not in names:
            raise InvalidArgument(
                "there is no such column",
                expected=" or ".join(map(repr, names)),
                found=repr(name),
            )
    plan: dict[str, str] = {}
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
        plan[name] = block
        taken[block] = name
    return plan


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
            hint=f"sort the data set by the episode and {FRAME!r}",
        )
