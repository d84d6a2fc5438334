"""Lanes added later: files beside an episode, bound to its content (spec/wshard.md, section 12)."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from shard_format import ShardReader, compute_identity
from shard_format._json import canonical
from shard_format.errors import (
    BadMetadata,
    DuplicateName,
    IdentityMismatch,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
)
from shard_format.identity import IDENTITY_ENTRY, stored_identity
from wshard.episode import Episode
from wshard.lanes import Extra
from wshard.names import (
    META_SIDECAR,
    TICKS,
    TIMESTAMPS,
    parse_block,
    residual_block,
    residual_key,
)
from wshard.reader import SIDECAR_SUFFIX, episode_of, load_wshard, open_reader, sidecar_files
from wshard.residual_lane import Residual
from wshard.writer import save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shard_format.sources import SourceLike

__all__ = ["add_lane", "compact", "fingerprint", "sidecar_files"]

_HEX = re.compile(r"[0-9a-f]{64}")
_UNSAFE = re.compile(r"[^\w.-]+")
_JSON: Final = 2


def fingerprint(reader: ShardReader) -> str:
    """A hash of what the index says about the content: names, sizes and checksums, not the bytes."""
    rows = reader.index
    facts = {
        name: [size, checksum]
        for name, size, checksum in zip(
            reader.names(), rows["orig_size"].tolist(), rows["crc32c"].tolist(), strict=True
        )
        if name != IDENTITY_ENTRY
    }
    return hashlib.sha256(canonical(facts)).hexdigest()


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

    The sidecar lies in the folder `<file>.lanes` and is bound to the episode's identity: it is read as part of
    this episode and of no other. `compact` folds it in.

    Args:
        path: the episode, or the manifest of a chunked one.
        block: the name of the new block, such as `omen/joint_pos/dreamer`; or a mapping of blocks to data.
        data: an array, a `Channel`, a `Residual`, or intervals for `label/…`.
        name: of the sidecar's file; made from the block if left out.
        replace: whether an existing sidecar of that name may be replaced.
        compression, profile, fsync: as for `save_wshard`.
    """
    lanes = {block: data} if isinstance(block, str) else dict(block)
    if not lanes:
        raise InvalidArgument("there is no lane to add")
    location = os.fspath(path)
    title = name if name is not None else next(iter(lanes))
    target = os.path.join(location + SIDECAR_SUFFIX, _UNSAFE.sub(".", title).strip(".") + ".wshard")
    if os.path.exists(target) and not replace:
        raise InvalidArgument(
            "this lane was added before", path=target, hint="pass replace=True to replace it"
        )
    others = [file for file in sidecar_files(location) if file != target]
    with load_wshard(location, sidecars=others) as base:
        assert base.origin is not None
        taken = _all_blocks(base)
        side = Episode(base.id, base.env_id, base.length, base.timebase)
        side._length = base.length
        for block_name, values in lanes.items():
            if block_name in taken:
                raise InvalidArgument(
                    "the episode has this lane already", path=location, entry=block_name
                )
            _place(side, block_name, values)
        side.extras.adopt(
            META_SIDECAR,
            Extra(META_SIDECAR, canonical(_binding(base)), content_type=_JSON),
        )
        os.makedirs(location + SIDECAR_SUFFIX, exist_ok=True)
        save_wshard(side, target, compression, profile=profile, fsync=fsync)
    return target


def _binding(base: Episode) -> dict[str, Any]:
    assert base.origin is not None
    reader = base.origin.reader
    identity = stored_identity(reader) or compute_identity(reader)
    return {
        "base": {
            "episode_id": base.id,
            "fingerprint": fingerprint(reader),
            "identity": identity.digest,
            "length_T": base.length,
        },
        "v": 1,
    }


def _place(episode: Episode, block: str, values: Any) -> None:  # noqa: ANN401 - as for add_lane
    """Puts a value into the lane that its block's name says."""
    lane, channel, model, kind = parse_block(block)
    if isinstance(values, Residual) or lane == "residual":
        episode.residuals[residual_key(block)] = values
        own = residual_block(values.channel_id, values.model, values.type)
        if own != block:
            raise InvalidArgument("the residual is about something else", entry=block, found=own)
    elif lane == "signal":
        episode.observations[channel] = values
    elif lane == "action":
        episode.actions[channel] = values
    elif lane == "omen" and model:
        episode.omens[channel][model] = values
    elif lane == "uncert" and kind:
        episode.uncerts[channel][model][kind] = values
    elif lane == "label":
        episode.labels[channel] = values
    elif (
        lane in ("meta", "reward", "done", "time", "offsets", "omen", "uncert") or "/" not in block
    ):
        raise InvalidArgument(
            "this is no lane that can be added",
            entry=block,
            expected="signal/…, action/…, omen/channel/model, uncert/channel/model/type, residual/…, "
            "label/… or a prefix of your own",
        )
    else:
        episode.extras[block] = values


def attach(episode: Episode, sources: Iterable[SourceLike]) -> None:
    """Reads sidecars into an episode, in the order given."""
    origin = episode.origin
    assert origin is not None
    own = fingerprint(origin.reader)
    taken: set[str] | None = None
    for source in sources:
        reader = open_reader(
            source,
            limits=origin.reader.limits,
            threads=origin.reader.threads,
            check=True,
        )
        origin.sidecars.append(reader)
        try:
            base = _base_of(reader)
            for what, expected, found in (
                ("episode_id", base["episode_id"], episode.id),
                ("length_T", base["length_T"], episode.length),
                ("fingerprint", base["fingerprint"], own),
            ):
                if expected != found:
                    raise ReferenceMismatch(
                        f"this sidecar belongs to an episode with another {what}",
                        entry=META_SIDECAR,
                        expected=expected,
                        found=found,
                        rule="W-SID-2",
                        hint=f"it was made for other content than {origin.path} has now",
                    )
            if taken is None:
                taken = _all_blocks(episode)
            side = episode_of(reader, is_sidecar=True)
            _adopt(episode, side, taken)
        except ShardError as error:
            raise error.located(path=reader.name) from None


def _base_of(reader: ShardReader) -> dict[str, Any]:
    """W-SID-1."""
    if META_SIDECAR not in reader:
        raise BadMetadata(
            "the file is no sidecar", entry=META_SIDECAR, found="nothing", rule="W-SID-1"
        )
    fields = reader.read_json(META_SIDECAR, rule="W-SID-1")
    base = fields.get("base")
    if type(fields.get("v")) is not int or fields["v"] != 1 or not isinstance(base, dict):
        raise BadMetadata(
            "the sidecar does not say what it belongs to", entry=META_SIDECAR, rule="W-SID-1"
        )
    good = {
        "episode_id": isinstance(base.get("episode_id"), str),
        "identity": isinstance(base.get("identity"), str) and _HEX.fullmatch(base["identity"]),
        "fingerprint": isinstance(base.get("fingerprint"), str)
        and _HEX.fullmatch(base["fingerprint"]),
        "length_T": type(base.get("length_T")) is int and base["length_T"] >= 0,
    }
    for key, is_good in good.items():
        if not is_good:
            raise BadMetadata(
                f"{key!r} of the sidecar's base is malformed",
                entry=META_SIDECAR,
                found=repr(base.get(key))[:80],
                rule="W-SID-1",
            )
    return base


def _all_blocks(episode: Episode) -> set[str]:
    """The blocks that an episode holds, sidecars included."""
    assert episode.origin is not None
    names = {block for block, _ in episode.blocks()}
    names.update(f"label/{name}" for name in episode.labels)
    names.update(episode.extras)
    names.update(f"residual/{key}" for key in episode.residuals)
    names.update(
        residual_block(residual.channel_id, residual.model, residual.type)
        for residual in episode.residuals.values()
    )
    if episode.origin.reader.role == 5:
        names.update(episode.origin.reader.names())
    return names


def _adopt(episode: Episode, side: Episode, taken: set[str]) -> None:
    found: dict[str, Any] = dict(side.blocks())
    found.update({f"label/{name}": intervals for name, intervals in side.labels.items()})
    found.update({f"residual/{key}": residual for key, residual in side.residuals.items()})
    found.update({name: extra for name, extra in side.extras.items() if name != META_SIDECAR})
    found.update({TICKS: side._ticks} if side._ticks is not None else {})
    found.update({TIMESTAMPS: side._timestamps} if side._timestamps is not None else {})
    for block in found:
        if block in taken:
            raise DuplicateName(
                "the sidecar holds a block that the episode has already",
                entry=block,
                rule="W-SID-3",
            )
        taken.add(block)
    for name, channel in side.observations.items():
        episode.observations.adopt(name, channel)
    for name, channel in side.actions.items():
        episode.actions.adopt(name, channel)
    for name, models in side.omens.items():
        if name not in episode.omens:
            episode.omens.adopt(name, episode.omens.new_inner(name))
        for model, channel in models.items():
            episode.omens[name].adopt(model, channel)
    for name, by_model in side.uncerts.items():
        if name not in episode.uncerts:
            episode.uncerts.adopt(name, episode.uncerts.new_inner(name))
        for model, kinds in by_model.items():
            inner = episode.uncerts[name]
            if model not in inner:
                inner.adopt(model, inner.new_inner(model))
            for kind, channel in kinds.items():
                inner[model].adopt(kind, channel)
    for key, residual in side.residuals.items():
        episode.residuals.adopt(key, residual)
    for name, intervals in side.labels.items():
        episode.labels.adopt(name, intervals)
    for name, extra in side.extras.items():
        if name != META_SIDECAR:
            episode.extras.adopt(name, extra)
    # Whatever the episode lacks; what it has was found in `taken`.
    episode._rewards = episode._rewards or side._rewards
    episode._terminations = episode._terminations or side._terminations
    episode._truncations = episode._truncations or side._truncations
    episode._ticks = side._ticks if episode._ticks is None else episode._ticks
    episode._timestamps = side._timestamps if episode._timestamps is None else episode._timestamps


def compact(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    compression: Any = None,  # noqa: ANN401 - as for save_wshard
    profile: str | None = None,
    fsync: bool = True,
) -> str:
    """Folds the sidecars of an episode into it; returns the path of the result.

    Blocks are copied as they are stored, not decoded and compressed again, unless a compression or profile is
    given. The episode's content is compared with the identity that the sidecars were made for. Sidecars are
    removed once the episode itself holds them; with `out` both stay.

    Args:
        path: the episode.
        out: where to write; the episode itself is replaced, atomically, if left out.
        compression, profile, fsync: as for `save_wshard`; None keeps how everything is stored.
    """
    location = os.fspath(path)
    target = location if out is None else os.fspath(out)
    sidecars = sidecar_files(location)
    with load_wshard(location, sidecars=sidecars) as episode:
        assert episode.origin is not None
        if episode.origin.chunks and os.path.abspath(target) == os.path.abspath(location):
            raise InvalidArgument(
                "a manifest cannot hold lanes",
                path=location,
                hint="give another name as out: the result is one file with all chunks",
            )
        _check_identity(episode.origin.reader, episode.origin.sidecars)
        keep = compression is None and profile is None
        save_wshard(episode, target, "keep" if keep else compression, profile=profile, fsync=fsync)
    if os.path.abspath(target) == os.path.abspath(location):
        for file in sidecars:
            os.unlink(file)
        with suppress(OSError):  # something else lies in the folder
            os.rmdir(location + SIDECAR_SUFFIX)
    return target


def _check_identity(reader: ShardReader, sidecars: Iterable[ShardReader]) -> None:
    """W-SID-4."""
    wanted = {side.name: _base_of(side)["identity"] for side in sidecars}
    if not wanted:
        return
    actual = compute_identity(reader).digest
    for name, identity in wanted.items():
        if identity != actual:
            raise IdentityMismatch(
                "the sidecar was made for another content of the episode",
                path=name,
                expected=identity,
                found=actual,
                rule="W-SID-4",
            )
