"""Lanes and edits that were added later: files beside an episode, bound to its content (spec/wshard.md, section 12)."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from shard_format import ShardReader, ShardWriter, compute_identity
from shard_format.canonical_json import canonical
from shard_format.errors import (
    DATA_ERRORS,
    BadMetadata,
    DuplicateName,
    IdentityMismatch,
    ReferenceMismatch,
    ShardIOError,
)
from shard_format.identity import IDENTITY_ENTRY, Identity, stored_identity
from shard_format.registry import ContentType, Role
from wshard._labels import Intervals
from wshard._lanes import (
    EXTRA,
    META_EDIT,
    META_SIDECAR,
    block_name,
    residual_block,
)
from wshard._reader import episode_of
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shard_format.sources import SourceLike
    from wshard._episode import Episode

__all__ = ["SIDECAR_SUFFIX", "attach", "fingerprint", "sidecar_files"]

SIDECAR_SUFFIX: Final = ".lanes"
"""What the folder of an episode's sidecars adds to the episode's name."""
EDIT_FILE: Final = "meta.edit.wshard"
"""The sidecar that holds edits."""
_SUFFIX: Final = ".wshard"
_HEX = re.compile(r"[0-9a-f]{64}")


class SidecarWarning(UserWarning):
    """A sidecar was left out because it does not fit its episode."""


def sidecar_files(path: str) -> list[str]:
    """The sidecars beside a local file, in the order in which they are read."""
    folder = path + SIDECAR_SUFFIX
    try:
        # Asked first: an error costs more.
        names = os.listdir(folder) if os.access(folder, os.F_OK) else []
    except (FileNotFoundError, NotADirectoryError, ValueError):  # not every name is a path
        return []
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot list the sidecars", folder) from error
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(_SUFFIX)]


def fingerprint(reader: ShardReader) -> str:
    """A hash of what the index says about the content: names, sizes and checksums, not the bytes."""
    facts = {
        name: [size, checksum]
        for name, size, checksum in _index_facts(reader)
        if name != IDENTITY_ENTRY
    }
    return hashlib.sha256(canonical(facts, None)).hexdigest()


def ground_truth(reader: ShardReader) -> dict[str, tuple[int, int]]:
    """Size and checksum of every block that sidecars are about: all but descriptions and labels."""
    return {
        name: (size, checksum)
        for name, size, checksum in _index_facts(reader)
        if name.partition("/")[0] not in ("meta", "label") and name != IDENTITY_ENTRY
    }


def _index_facts(reader: ShardReader) -> Iterator[tuple[str, int, int]]:
    rows = reader.index
    return zip(reader.names(), rows["orig_size"].tolist(), rows["crc32c"].tolist(), strict=True)


# --- what a sidecar belongs to


def binding(base: Episode, *, with_identity: bool = True) -> dict[str, Any]:
    """The `meta/sidecar` for an open episode. The identity of a file that does not store it takes reading all of it."""
    assert base.origin is not None
    reader = base.origin.reader
    identity = stored_identity(reader)
    if identity is None and with_identity:
        identity = compute_identity(reader)
    fields = {"episode_id": base.id, "fingerprint": fingerprint(reader), "length_T": base.length}
    if identity is not None:
        fields["identity"] = identity.digest
    return {"base": fields, "v": 1}


def read_binding(reader: ShardReader) -> dict[str, Any]:
    """The `meta/sidecar` of a file, checked (W-SID-1)."""
    if META_SIDECAR not in reader:
        raise BadMetadata("not a sidecar", entry=META_SIDECAR, found="nothing", rule="W-SID-1")
    fields = reader.read_json(META_SIDECAR, rule="W-SID-1")
    if type(fields.get("v")) is not int or fields["v"] != 1 or fields.get("base") is None:
        raise BadMetadata(
            "the sidecar does not say what it belongs to", entry=META_SIDECAR, rule="W-SID-1"
        )
    for base in _bases(fields):
        if not isinstance(base, dict):
            raise BadMetadata(
                "'base' or 'before' is not an object", entry=META_SIDECAR, rule="W-SID-1"
            )
        may_lack_identity = META_EDIT in reader and "identity" not in base
        for key, is_good in (
            ("episode_id", isinstance(base.get("episode_id"), str)),
            ("identity", may_lack_identity or _is_hash(base.get("identity"))),
            ("fingerprint", _is_hash(base.get("fingerprint"))),
            ("length_T", type(base.get("length_T")) is int and base["length_T"] >= 0),
        ):
            if not is_good:
                raise BadMetadata(
                    f"{key!r} of the sidecar's base is malformed",
                    entry=META_SIDECAR,
                    found=repr(base.get(key))[:80],
                    rule="W-SID-1",
                )
    return fields


def _bases(fields: dict[str, Any]) -> list[Any]:
    """The contents that a sidecar fits: one, or two while its episode is being replaced."""
    before = fields.get("before")
    return [fields["base"]] if before is None else [fields["base"], before]


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def _check_fit(fields: dict[str, Any], episode: Episode, own: str) -> None:
    """W-SID-2: the sidecar was made for this content, or is being moved to or from it."""
    facts = {"episode_id": episode.id, "length_T": episode.length, "fingerprint": own}
    if any(facts.items() <= base.items() for base in _bases(fields)):
        return
    assert episode.origin is not None
    what = next(key for key, value in facts.items() if fields["base"][key] != value)
    raise ReferenceMismatch(
        f"this sidecar belongs to an episode with another {what}",
        entry=META_SIDECAR,
        expected=fields["base"][what],
        found=facts[what],
        rule="W-SID-2",
        hint=f"it was made for other content than {episode.origin.path} has now: put that file back, "
        "make the lane again with add_lane, or delete the sidecar",
    )


def check_identity(sidecar: ShardReader, base: ShardReader, identity: Identity) -> None:
    """W-SID-4: a sidecar that fits an episode by its fingerprint, and states an identity, states this one.

    It does not state the version: a sidecar may be older than version 2.
    """
    fields = read_binding(sidecar)
    own = fingerprint(base)
    stated = next((b for b in _bases(fields) if b["fingerprint"] == own), fields["base"])
    digests = (identity.digest, Identity(identity.entries).digest)
    if "identity" in stated and stated["identity"] not in digests:
        raise IdentityMismatch(
            "the sidecar was made for an episode with other content",
            path=sidecar.name,
            entry=META_SIDECAR,
            expected=stated["identity"],
            found=identity.digest,
            rule="W-SID-4",
        )


# --- reading


def attach(episode: Episode, sources: Iterable[SourceLike], *, strict: bool = True) -> None:
    """Reads sidecars into an open episode. One that does not fit is an error, or left out with a warning."""
    origin = episode.origin
    assert origin is not None
    own = fingerprint(origin.reader)
    taken = block_names(episode)
    for source in sources:
        reader: ShardReader | None = None
        try:
            own_limits = origin.reader.limits
            reader = ShardReader(source, limits=own_limits, threads=origin.reader.threads)
            _check_fit(read_binding(reader), episode, own)
            if META_EDIT in reader:
                apply_edit(episode, read_edit(reader))
            else:
                _adopt(episode, episode_of(reader, is_sidecar=True), taken)
            origin.sidecars.append(reader)
        except DATA_ERRORS as error:
            path = reader.name if reader is not None else str(source)
            if reader is not None:
                reader.close()
            if strict:
                raise error.located(path=path) from None
            warnings.warn(
                f"{error.located(path=path)}; the episode is read without it, "
                "sidecars='strict' makes this an error",
                SidecarWarning,
                stacklevel=4,
            )


def block_names(episode: Episode) -> set[str]:
    """The blocks that an episode holds, sidecars included."""
    assert episode.origin is not None
    names = {block_name(address) for address in episode.parts}
    for part in episode.parts.values():
        if isinstance(part, Residual):
            names.add(residual_block(part.channel_id, part.model, part.type))
    if episode.origin.reader.role == Role.WSHARD:
        names.update(episode.origin.reader.names())
    return names


def _adopt(episode: Episode, side: Episode, taken: set[str]) -> None:
    """Takes the parts of a sidecar over (W-SID-3)."""
    parts = {at: part for at, part in side.parts.items() if at != (EXTRA, META_SIDECAR)}
    for address in parts:
        name = block_name(address)
        if name in taken:
            raise DuplicateName(
                "the sidecar holds a block that the episode has already", entry=name, rule="W-SID-3"
            )
    taken.update(block_name(address) for address in parts)
    episode.parts.update(parts)


# --- edits


def read_edit(reader: ShardReader) -> dict[str, Any]:
    """The `meta/edit` of a sidecar, checked (W-SID-5)."""
    fields = reader.read_json(META_EDIT, rule="W-SID-5")
    if type(fields.get("v")) is not int or fields["v"] != 1:
        raise BadMetadata(
            "the edit has another version",
            entry=META_EDIT,
            expected="v 1",
            found=repr(fields.get("v"))[:80],
            rule="W-SID-5",
        )
    labels = fields.get("labels", {})
    for key, value in (("metadata", fields.get("metadata", {})), ("labels", labels)):
        if not isinstance(value, dict):
            raise BadMetadata(f"{key!r} is not an object", entry=META_EDIT, rule="W-SID-5")
    for name, label in labels.items():
        if not isinstance(label, (dict, type(None))):
            raise BadMetadata(f"label {name!r} is not an object", entry=META_EDIT, rule="W-SID-5")
        if label is not None:
            Intervals.from_fields(label)
    return fields


def apply_edit(episode: Episode, fields: dict[str, Any]) -> None:
    """Changes metadata and labels as an edit says; null removes."""
    for key, value in fields.get("metadata", {}).items():
        if value is None:
            episode.metadata.pop(key, None)
        else:
            episode.metadata[key] = deepcopy(value)
    for name, label in fields.get("labels", {}).items():
        if label is None:
            episode.parts.pop(("label", name), None)
        else:
            episode.parts["label", name] = Intervals.from_fields(label)


def edit_between(old: Episode, new: Episode) -> dict[str, Any]:
    """The edit that gives an episode the metadata and labels of another one, and changes nothing in that."""
    labels = {name: intervals.to_fields() for name, intervals in new.labels.items()}
    return {
        "metadata": {**dict.fromkeys(old.metadata.keys() - new.metadata.keys()), **new.metadata},
        "labels": {**dict.fromkeys(old.labels.keys() - new.labels.keys()), **labels},
        "v": 1,
    }


# --- moving sidecars to another content of their episode


def rebind(
    path: str, episode: Episode, *, edit: dict[str, Any] | None = None, fsync: bool = True
) -> None:
    """Binds a sidecar to a new content of its episode, while it still fits the old one (section 12).

    Args:
        path: the sidecar.
        episode: the new file of the episode, open.
        edit: what to replace its edits by.
        fsync: as for `save_wshard`.
    """
    with ShardReader(path) as reader:
        before = read_binding(reader)["base"]
        bound = {**binding(episode, with_identity="identity" in before), "before": before}
        replaced = {META_SIDECAR: bound} if edit is None else {META_SIDECAR: bound, META_EDIT: edit}
        names = [name for name in reader.names() if name != IDENTITY_ENTRY]
        with ShardWriter(
            path,
            role=Role.WSHARD,
            reserve=names,
            identity=IDENTITY_ENTRY in reader,
            alignment=reader.header.alignment,
            fsync=fsync,
        ) as writer:
            for name in names:
                if name in replaced:
                    text = canonical(replaced[name])
                    writer.write_entry(name, text, content_type=ContentType.JSON)
                else:
                    writer.copy_entry(reader, name)
