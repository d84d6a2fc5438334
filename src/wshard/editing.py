"""Change episodes: cut, join and compare them, and edit those on disk without rewriting them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shard_format import ShardReader, compute_identity
from shard_format.canonical_json import canonical
from shard_format.errors import InvalidArgument, ShardIOError, did_you_mean
from shard_format.registry import ContentType
from wshard._blocks import Extra
from wshard._channels import Channel
from wshard._episode import Episode
from wshard._files import open_wshard, replace_episode, save_wshard
from wshard._joining import join
from wshard._labels import Intervals
from wshard._lanes import (
    EXTRA,
    LANES,
    META_CHANNELS,
    META_EDIT,
    META_EPISODE,
    META_SIDECAR,
    META_WSHARD,
    TIMESTAMPS,
    block_name,
    not_found,
    parse_block,
    residual_block,
    residual_key,
)
from wshard._plan_episode import plan_entries
from wshard._reader import episode_of
from wshard._sidecar import (
    EDIT_FILE,
    SIDECAR_SUFFIX,
    binding,
    block_names,
    changing,
    check_fit,
    check_identity,
    fingerprint,
    read_binding,
    read_edit,
    remove_sidecars,
    sidecar_files,
)
from wshard._storage import StoragePolicy
from wshard._values import regular_times
from wshard._writer import write_episode
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard._plan_episode import PlannedEntry

__all__ = [
    "SIDECAR_SUFFIX",
    "Difference",
    "add_lane",
    "compact",
    "differences",
    "edit",
    "fingerprint",
    "merge_episodes",
    "remove_lane",
    "sidecar_files",
    "slice_episode",
    "split_episode",
]

_UNSAFE = re.compile(r"[^\w.-]+")
# The field of the metadata that says where a part was cut out.
_SPLIT = "split_from"


def slice_episode(episode: Episode, start: int, stop: int, *, id: str | None = None) -> Episode:
    """The steps from `start` up to, but not including, `stop`, as an episode of its own.

    Channels with a clock of their own are cut where those steps start; times stay what they were. An
    observation after the last action stays with the step before it. Labels are clipped. The id is the old one with
    the two numbers, unless you give one.
    """
    length = episode.length
    if not 0 <= start <= stop <= length:
        raise InvalidArgument(
            "steps outside the episode",
            expected=f"0 <= start <= stop <= {length}",
            found=f"start {start}, stop {stop}",
        )

    def cut(part: Any) -> Any:  # noqa: ANN401 - any part of an episode
        if isinstance(part, Residual):
            return part.sliced(start, stop, length)
        if isinstance(part, Intervals):
            return _clipped(part, episode, start, stop)
        return _cut_channel(part, episode, start, stop) if isinstance(part, Channel) else part

    part = episode.mapped(cut)
    part.origin = None
    part.id = f"{episode.id}_{start}_{stop}" if id is None else id
    part.chunk_index = part.total_chunks = part.timestep_range = None
    part.length = stop - start
    part.ticks = episode.ticks[start:stop]
    rate = episode.timebase.tick_hz
    if episode.timestamps_ns is None and start and rate is not None:
        (first,) = regular_times(1, rate, episode.timebase.epoch_ns, start)
        part.timebase.epoch_ns = int(first)
    return part


def _cut_channel(channel: Channel, episode: Episode, start: int, stop: int) -> Channel:
    length = episode.length
    if not channel.has_own_clock:
        if channel.length not in (length, length + 1):
            return channel  # without a time for each step: every part has all of it
        one_more = channel.length == length + 1
        return channel.sliced(start, stop + 1 if one_more else stop)
    times, own = episode.times_ns(), episode.times_ns(channel)
    first = 0
    if start:
        first = int(np.searchsorted(own, times[start] if start < length else times[-1] + 1))
    last = len(own) if stop == length else int(np.searchsorted(own, times[stop]))
    return channel.sliced(first, max(first, last))


def _clipped(intervals: Intervals, episode: Episode, start: int, stop: int) -> Intervals:
    """The intervals of some steps; what reaches beyond the episode stays with its first or last part."""
    length, in_steps = episode.length, intervals.unit == "steps"
    times = None if in_steps else episode.times_ns()
    low: float = start if times is None else int(times[start]) if start < length else math.inf
    high: float = stop if times is None or stop == length else int(times[stop])
    low = -math.inf if start == 0 else low
    high = math.inf if stop == length else high
    shift = start if in_steps else 0
    kept = [
        dataclasses.replace(
            item,
            start=int(max(item.start, low)) - shift,
            end=int(min(item.end, high)) - shift,
        )
        for item in intervals
        # Half-open; an interval without length is an event at its start.
        if item.start < high and (item.end > low or item.start == item.end == low)
    ]
    return Intervals(kept, unit=intervals.unit, extra=intervals.extra)


def split_episode(
    episode: Episode, *, steps: int | None = None, at: Iterable[int] | None = None
) -> list[Episode]:
    """Cuts an episode into parts of `steps` steps, of which the last may be shorter, or at the steps `at`.

    The metadata of each part says under `split_from` which steps of which episode it holds, so that `merge_episodes`
    restores the episode.
    """
    if (steps is None) == (at is None):
        raise InvalidArgument("pass either steps or at")
    if steps is not None and steps < 1:
        raise InvalidArgument("a part must have at least one step", found=steps)
    length = episode.length
    borders = sorted({0, *(at or ())}) if steps is None else range(0, max(1, length), steps)
    parts = [
        slice_episode(episode, start, stop)
        for start, stop in zip(borders, [*borders[1:], length], strict=True)
    ]
    for part, start in zip(parts, borders, strict=True):
        span = {"id": episode.id, "start": start, "stop": start + part.length, "length": length}
        # A part that is cut again knows both.
        outer = {_SPLIT: episode.metadata[_SPLIT]} if _SPLIT in episode.metadata else {}
        part.metadata = {**episode.metadata, _SPLIT: {**span, **outer}}
    return parts


def merge_episodes(episodes: Sequence[Episode], *, id: str | None = None) -> Episode:
    """Joins episodes that follow one another in this order and have the same channels.

    Nothing is copied until it is read or saved. The ids and metadata of the episodes are kept under
    `metadata["merged_from"]` unless they are parts of one episode. The id is the first one's, unless you give one;
    the parts that `split_episode` made of an episode get its id and metadata back.
    """
    if not episodes:
        raise InvalidArgument("there is nothing to merge")
    # Where steps have times of their own, the rate only describes them.
    rates = {e.timebase.tick_hz for e in episodes if (TIMESTAMPS,) not in e.parts}
    if len(rates) > 1:
        raise InvalidArgument("the episodes have different rates", found=sorted(rates, key=str))
    merged = join(episodes)
    merged.id = episodes[0].id if id is None else id
    merged.chunk_index = merged.total_chunks = merged.timestep_range = None
    if (np.diff(merged.ticks) <= 0).any():
        merged.ticks = None  # each started at 0: count anew
    whole = _whole(episodes)
    if whole is not None:
        merged.id, merged.metadata = (whole[0] if id is None else id), whole[1]
    elif merged.metadata.pop(_SPLIT, None) is not None or any(
        (e.id, e.metadata) != (episodes[0].id, episodes[0].metadata) for e in episodes
    ):
        merged.metadata["merged_from"] = [
            {"id": e.id, "length": e.length, "metadata": e.metadata} for e in episodes
        ]
    return merged


def _whole(episodes: Sequence[Episode]) -> tuple[str, dict[str, Any]] | None:
    """The id and metadata of what `split_episode` cut into these parts, or into more; None if they are something else."""
    first = episodes[0].metadata.get(_SPLIT)
    at = first.get("start") if isinstance(first, dict) else None
    if not isinstance(first, dict) or type(at) is not int:
        return None
    for episode in episodes:
        span = {**first, "start": at, "stop": at + episode.length}
        if episode.metadata != {**episodes[0].metadata, _SPLIT: span}:
            return None  # not the part that follows
        at += episode.length
    metadata, length, source = dict(episodes[0].metadata), first.get("length"), first.get("id")
    if not isinstance(source, str):
        return None
    if (first["start"], at) != (0, length):
        metadata[_SPLIT] = {**first, "stop": at}
        return f"{source}_{first['start']}_{at}", metadata
    del metadata[_SPLIT]
    if _SPLIT in first:
        metadata[_SPLIT] = first[_SPLIT]
    return source, metadata


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two episodes differ."""

    block: str
    """The entry that differs, such as `signal/rgb`."""
    kind: str
    """`only_left`, `only_right`, `description`, `metadata`, `form` or `values`."""
    detail: str
    """What is different, for people."""


def differences(left: Episode, right: Episode, *, values: bool = True) -> list[Difference]:
    """The differences between two episodes, block by block; empty if they are the same.

    How they are stored does not matter: order, compression, alignment. Without `values`, only names, types and shapes
    are compared.
    """
    ours = {entry.name: entry for entry in plan_entries(left)}
    theirs = {entry.name: entry for entry in plan_entries(right)}
    found: list[Difference] = []
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None:
            kind, owner = ("only_left", left) if b is None else ("only_right", right)
            found.append(Difference(name, kind, f"only in {owner.id!r}"))
        elif name in (META_EPISODE, META_WSHARD, META_CHANNELS):
            found += _compare_json(name, json.loads(bytes(a.read())), json.loads(bytes(b.read())))
        elif (a.dtype, a.step_bytes, a.nbytes) != (b.dtype, b.step_bytes, b.nbytes):
            found.append(Difference(name, "form", f"{_form(a)} and {_form(b)}"))
        elif values and not np.array_equal(x := a.flat(), y := b.flat()):
            found.append(Difference(name, "values", _value_detail(x, y, a)))
    return found


def _form(entry: PlannedEntry) -> str:
    steps = entry.nbytes // entry.step_bytes
    return f"{steps} steps of {entry.step_bytes // entry.dtype.size} {entry.dtype}"


def _value_detail(a: NDArray[np.uint8], b: NDArray[np.uint8], entry: PlannedEntry) -> str:
    rows = (a != b).reshape(-1, entry.step_bytes).any(axis=1)
    steps = np.flatnonzero(rows)
    detail = f"{len(steps)} of {len(rows)} steps differ, first at {steps[0]}"
    if entry.is_array and entry.dtype.value != "bool":
        dtype = entry.dtype.numpy_dtype
        with np.errstate(invalid="ignore"):
            gap = np.abs(a.view(dtype).astype(np.float64) - b.view(dtype).astype(np.float64))
        if np.isfinite(gap).any():
            detail += f", by at most {gap[np.isfinite(gap)].max():.6g}"
    return detail


def _compare_json(name: str, a: dict[str, Any], b: dict[str, Any]) -> Iterator[Difference]:
    if canonical(a, None) == canonical(b, None):
        return
    if name == META_CHANNELS:
        a, b = _rows_by_block(a), _rows_by_block(b)
    keys = sorted(str(key) for key in a.keys() | b.keys() if a.get(key) != b.get(key))
    if name == META_CHANNELS:
        yield Difference(name, "description", f"rows of {', '.join(keys) or 'other fields'}")
    else:
        pairs = (f"{key}: {_short(a.get(key))} and {_short(b.get(key))}" for key in keys)
        yield Difference(name, "metadata", "; ".join(pairs))


def _rows_by_block(fields: dict[str, Any]) -> dict[str, Any]:
    return {row.get("signal_block", row.get("id")): row for row in fields.get("channels", [])}


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


# --- episodes on disk


def add_lane(
    path: str | os.PathLike[str],
    block: str | Mapping[str, Any],
    data: Any = None,  # noqa: ANN401 - an array, a channel, a residual or intervals
    *,
    name: str | None = None,
    replace: bool = False,
    compression: Any = None,  # noqa: ANN401 - as for save_wshard
    profile: str | None = None,
    fsync: bool = True,
) -> str:
    """Adds lanes to an episode on disk without rewriting it; returns the path of the sidecar.

        add_lane("ep.wshard", "omen/joint_pos/dreamer", predicted)
        add_lane("ep.wshard", {"omen/joint_pos/v2": mean, "uncert/joint_pos/v2/std": std}, name="v2")

    The sidecar is in the folder `<file>.lanes` and is bound to the episode's identity: it is read as part of this
    episode and of no other. `compact` folds it in, and `remove_lane` removes it.

    Args:
        path: the episode, or the manifest of a chunked one.
        block: the name of the new block, such as `omen/joint_pos/dreamer`; or a mapping of blocks to data.
        data: an array, a `Channel`, a `Residual`, or intervals for `label/…`.
        name: of the sidecar's file; made from the block if you leave it out.
        replace: whether an existing sidecar of that name may be replaced.
        compression, profile, fsync: as for `save_wshard`.
    """
    lanes = {block: data} if isinstance(block, str) else dict(block)
    if not lanes:
        raise InvalidArgument("expected at least one lane to add")
    location = os.fspath(path)
    title = name if name is not None else next(iter(lanes))
    target = os.path.join(location + SIDECAR_SUFFIX, _UNSAFE.sub(".", title).strip(".") + ".wshard")
    if os.path.basename(target) == EDIT_FILE:
        raise InvalidArgument("this name is reserved for edits", found=repr(title))
    with changing(location) as sidecars:
        if target in sidecars and not replace:
            raise InvalidArgument(
                "this lane was already added", path=target, hint="pass replace=True to replace it"
            )
        others = [file for file in sidecars if file != target]
        _add(location, lanes, target, others, StoragePolicy(compression, profile), fsync=fsync)
    return target


def _add(
    location: str,
    lanes: Mapping[str, Any],
    target: str,
    others: Sequence[str],
    policy: StoragePolicy,
    *,
    fsync: bool,
) -> None:
    with open_wshard(location, sidecars=others) as base:
        taken = block_names(base)
        side = _side_of(base)
        for block_title, values in lanes.items():
            if block_title in taken:
                raise InvalidArgument(
                    "the episode has this lane already", path=location, entry=block_title
                )
            _place(side, block_title, values)
        _write_sidecar(side, target, binding(base), policy, fsync=fsync)


def _side_of(base: Episode) -> Episode:
    side = Episode(base.id, base.env_id, timebase=base.timebase)
    side.length = base.length
    return side


def _write_sidecar(
    side: Episode, target: str, bound: Mapping[str, Any], policy: StoragePolicy, *, fsync: bool
) -> None:
    side.parts[EXTRA, META_SIDECAR] = _json_extra(META_SIDECAR, bound)
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot make the folder", os.path.dirname(target)) from error
    write_episode(side, target, policy, fsync=fsync)


def _json_extra(name: str, fields: Mapping[str, Any]) -> Extra:
    return Extra(name, canonical(fields), content_type=ContentType.JSON)


def _place(episode: Episode, block: str, values: Any) -> None:  # noqa: ANN401 - as for add_lane
    """Puts a value into the lane that its block's name says."""
    lane, channel, model, kind = parse_block(block)
    if isinstance(values, Residual) or lane == "residual":
        episode.residuals[residual_key(block)] = values
        own = residual_block(values.channel_id, values.model, values.type)
        if own != block:
            raise InvalidArgument("the residual is about something else", entry=block, found=own)
    elif lane in ("signal", "action", "label") and channel:
        getattr(episode, LANES[lane].view)[channel] = values
    elif lane == "omen" and model:
        episode.omens[channel][model] = values
    elif lane == "uncert" and kind:
        episode.uncerts[channel][model][kind] = values
    elif lane in (*LANES, "meta", "done", "time", "offsets") or "/" not in block:
        raise _not_addable(block)
    else:
        # A prefix of one's own must not look like a mistyped lane.
        known = [name for name in LANES if name and "/" not in name]
        if meant := did_you_mean(lane, known, at_least=0.75):
            raise _not_addable(block, meant)
        episode.extras[block] = values


def _not_addable(block: str, hint: str | None = None) -> InvalidArgument:
    return InvalidArgument(
        "this is not a lane that can be added",
        entry=block,
        expected="signal/…, action/…, omen/channel/model, uncert/channel/model/type, residual/…, "
        "label/… or a prefix of your own",
        hint=hint,
    )


def remove_lane(path: str | os.PathLike[str], block: str, *, fsync: bool = True) -> str:
    """Removes a lane that `add_lane` added; returns the path of the sidecar that held it.

    Args:
        path: the episode.
        block: the name of the block, such as `omen/joint_pos/dreamer`.
        fsync: as for `save_wshard`.

    Raises:
        EntryNotFound: no sidecar holds this lane; suggests similar ones.
    """
    location = os.fspath(path)
    known: list[str] = []
    with changing(location) as sidecars:
        for file in sidecars:
            with ShardReader(file) as reader:
                if META_EDIT in reader:
                    continue
                names = [name for name in reader.names() if not name.startswith("meta/")]
                known += names
                if block not in names:
                    continue
                side = episode_of(reader, is_sidecar=True)
                for address, part in list(side.parts.items()):
                    if block in (getattr(part, "block", ""), block_name(address)):
                        del side.parts[address]
                is_empty = not side.parts
                if not is_empty:
                    _write_sidecar(side, file, read_binding(reader), StoragePolicy(), fsync=fsync)
            if is_empty:
                remove_sidecars(location, [file])
            return file
    with open_wshard(location, sidecars=False) as base:
        if block in block_names(base):
            raise InvalidArgument(
                "this lane is part of the episode's own file",
                path=location,
                entry=block,
                hint="load the episode, delete the lane and save it under another name",
            )
    raise not_found(f"no sidecar holds {block!r}", block, known, location)


def edit(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
    *,
    fsync: bool = True,
) -> str:
    """Changes metadata and labels of an episode on disk without rewriting it; returns the path of the sidecar.

        wshard.edit("ep.wshard", metadata={"success": True, "note": None}, labels={"phase": [(0, 40, "reach")]})

    The change is a small file in the folder `<file>.lanes`, whatever the size of the episode. It appears when it is
    complete, and is read with the episode from then on. Later edits add to earlier ones. `compact` folds them in.

    Args:
        path: the episode, or the manifest of a chunked one.
        metadata: values to set, by key; None removes a key.
        labels: label lanes to set, by name, as `Episode.labels` takes them; None removes one.
        fsync: as for `save_wshard`.
    """
    location = os.fspath(path)
    target = os.path.join(location + SIDECAR_SUFFIX, EDIT_FILE)
    changes: dict[str, Any] = {"labels": {}, "metadata": dict(metadata or {}), "v": 1}
    for name, items in (labels or {}).items():
        intervals = items if items is None or isinstance(items, Intervals) else Intervals(items)
        changes["labels"][name] = None if intervals is None else intervals.to_fields()
    if not changes["metadata"] and not changes["labels"]:
        raise InvalidArgument("there is nothing to change", hint="pass metadata={…} or labels={…}")
    with changing(location), open_wshard(location, sidecars=False) as base:
        if os.path.exists(target):
            assert base.origin is not None
            with ShardReader(target) as reader:
                # What was said about other content must not become true for this one.
                check_fit(read_binding(reader), base, fingerprint(base.origin.reader))
                before = read_edit(reader)
            for key in ("metadata", "labels"):
                changes[key] = {**before.get(key, {}), **changes[key]}
        side = _side_of(base)
        side.parts[EXTRA, META_EDIT] = _json_extra(META_EDIT, changes)
        bound = binding(base, with_identity=False)
        _write_sidecar(side, target, bound, StoragePolicy(), fsync=fsync)
    return target


def compact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    compression: Any = None,  # noqa: ANN401 - as for save_wshard
    profile: str | None = None,
    fsync: bool = True,
) -> str:
    """Folds the sidecars of an episode into it; returns the path of the result.

    Blocks are copied as they are stored, not decoded and compressed again, unless you give a compression or a
    profile. The episode's content is compared with the identity that the sidecars were made for. Sidecars are
    removed once the episode itself holds them; with `out` both stay.

    Args:
        path: the episode.
        out: where to write; the episode itself is replaced, atomically, if you leave it out.
        compression, profile, fsync: as for `save_wshard`; None keeps how everything is stored.
    """
    location = os.fspath(path)
    policy = StoragePolicy(compression, profile)
    if out is not None and os.path.abspath(out) != os.path.abspath(location):
        with open_wshard(location, sidecars="strict") as episode:
            _check_identities(episode)
            save_wshard(episode, out, compression, profile=profile, fsync=fsync)
        return os.fspath(out)
    with changing(location) as sidecars, open_wshard(location, sidecars=sidecars) as episode:
        assert episode.origin is not None
        if episode.origin.chunks:
            raise InvalidArgument(
                "a manifest cannot hold lanes",
                path=location,
                hint="pass another name as out: the result is one file with all chunks",
            )
        _check_identities(episode)
        if sidecars:
            replace_episode(location, episode, sidecars, policy, folded=sidecars, fsync=fsync)
        else:
            write_episode(episode, location, policy, fsync=fsync)
    return location


def _check_identities(episode: Episode) -> None:
    """Raises if the sidecars of an episode were made for other content (W-SID-4)."""
    assert episode.origin is not None
    if episode.origin.sidecars:
        identity = compute_identity(episode.origin.reader)
        for sidecar in episode.origin.sidecars:
            check_identity(sidecar, episode.origin.reader, identity)
