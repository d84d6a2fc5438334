"""Lanes and edits that were added later: files beside an episode, bound to its content (spec/wshard.md, section 12)."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from shard_format import ShardReader, ShardWriter, compute_identity
from shard_format.atomic import SUFFIX as TEMPORARY_SUFFIX
from shard_format.atomic import locked
from shard_format.canonical_json import canonical
from shard_format.errors import (
    DATA_ERRORS,
    BadMetadata,
    DuplicateName,
    FileMissing,
    IdentityMismatch,
    InvalidArgument,
    ReferenceMismatch,
    ShardError,
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

__all__ = ["SIDECAR_SUFFIX", "attach", "changing", "fingerprint", "sidecar_files"]

SIDECAR_SUFFIX: Final = ".lanes"
"""What the folder of an episode's sidecars adds to the episode's name."""
EDIT_FILE: Final = "meta.edit.wshard"
"""The sidecar that holds edits."""
_SUFFIX: Final = ".wshard"
_NEW: Final = ".new~"
_HEX = re.compile(r"[0-9a-f]{64}")


class SidecarWarning(UserWarning):
    """A sidecar was left out because it does not fit its episode."""


def sidecar_files(path: str) -> list[str]:
    """The sidecars beside a local file, in the order in which they are read."""
    folder = path + SIDECAR_SUFFIX
    try:
        if not os.access(folder, os.F_OK):  # asked first: an error costs more
            return []
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # not every name is a path
        return []
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot list the sidecars", folder) from error
    return [os.path.join(folder, name) for name in sorted(names) if name.endswith(_SUFFIX)]


def fingerprint(reader: ShardReader) -> str:
    """A hash of what the index says about the content: names, sizes and checksums, not the bytes."""
    facts = {name: list(fact) for name, fact in index_facts(reader).items()}
    facts.pop(IDENTITY_ENTRY, None)
    return hashlib.sha256(canonical(facts, None)).hexdigest()


def fingerprint_of(path: str) -> str:
    """The fingerprint of a file."""
    with ShardReader(path) as reader:
        return fingerprint(reader)


def ground_truth(reader: ShardReader) -> dict[str, tuple[int, int]]:
    """Size and checksum of every block that sidecars are about: all but descriptions and labels."""
    return {
        name: facts
        for name, facts in index_facts(reader).items()
        if name.partition("/")[0] not in ("meta", "label")
    }


def index_facts(reader: ShardReader) -> dict[str, tuple[int, int]]:
    """Size and checksum of the content of every entry."""
    rows = reader.index
    facts = zip(rows["orig_size"].tolist(), rows["crc32c"].tolist(), strict=True)
    return dict(zip(reader.names(), facts, strict=True))


# --- one writer at a time


@contextmanager
def changing(path: str) -> Iterator[list[str]]:
    """Keeps every other writer away from an episode and its sidecars (W-SID-7); yields the sidecars.

    What a killed writer has left is removed first. A missing episode has no sidecars.
    """
    with locked(path):
        yield _settled(path) if os.path.exists(path) else []


def new_file(path: str) -> str:
    """Where the next content of an episode is written while its sidecars still belong to this one."""
    return os.path.realpath(path) + _NEW


def _settled(path: str) -> list[str]:
    """Removes what a killed writer has left; returns the sidecars that are not folded in."""
    if os.path.lexists(left := new_file(path)):
        os.unlink(left)
    sidecars = sidecar_files(path)
    if not sidecars:
        return []
    folder = path + SIDECAR_SUFFIX
    for name in os.listdir(folder):
        if name.startswith(".") and name.endswith(TEMPORARY_SUFFIX):
            os.unlink(os.path.join(folder, name))
    with ShardReader(path) as base:
        held = index_facts(base)
        folded = [file for file in sidecars if _is_folded(file, held)]
    remove_sidecars(path, folded)
    return [file for file in sidecars if file not in folded]


def _is_folded(file: str, held: dict[str, tuple[int, int]]) -> bool:
    try:
        with ShardReader(file) as reader:
            return is_folded_in(reader, held)
    except DATA_ERRORS:  # reading the episode reports it
        return False


def is_folded_in(sidecar: ShardReader, held: dict[str, tuple[int, int]]) -> bool:
    """W-SID-6: whether an episode that holds these blocks holds all that a sidecar adds."""
    added = {n: facts for n, facts in index_facts(sidecar).items() if not n.startswith("meta/")}
    return bool(added) and META_EDIT not in sidecar and added.items() <= held.items()


def remove_sidecars(path: str, files: Iterable[str]) -> None:
    """Deletes sidecars, and their folder if it is empty then."""
    for file in files:
        os.unlink(file)
    with suppress(OSError):  # something else is in the folder
        os.rmdir(path + SIDECAR_SUFFIX)


def check_no_sidecars(path: str) -> None:
    """Raises if an episode has sidecars; for writers that replace all of it."""
    sidecars = sidecar_files(path) if os.path.lexists(path) else []
    if sidecars:
        raise InvalidArgument(
            "the episode has sidecars, which belong to what it holds now",
            path=path,
            found=sidecars[0],
            hint="remove them with wshard.remove_lane, or write to another path",
        )


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
            ("identity", may_lack_identity or is_hash(base.get("identity"))),
            ("fingerprint", is_hash(base.get("fingerprint"))),
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


def is_hash(value: object) -> bool:
    """Whether a value of JSON is a SHA-256."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def check_fit(fields: dict[str, Any], episode: Episode, own: str) -> None:
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
        hint=f"it was made for different content than {episode.origin.path} has now: put that file back, "
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

_UNFIT: Final[tuple[type[ShardError], ...]] = (*DATA_ERRORS, FileMissing)


def attach(episode: Episode, sources: Iterable[SourceLike]) -> list[ShardError]:
    """Reads sidecars into an open episode; returns what is wrong with those that had to be left out."""
    origin = episode.origin
    assert origin is not None
    own, held = fingerprint(origin.reader), index_facts(origin.reader)
    taken = block_names(episode)
    problems: list[ShardError] = []
    for source in sources:
        reader: ShardReader | None = None
        try:
            like = origin.reader
            reader = ShardReader(source, limits=like.limits, threads=like.threads, check=like.check)
            if is_folded_in(reader, held):
                reader.close()
                continue
            check_fit(read_binding(reader), episode, own)
            if META_EDIT in reader:
                apply_edit(episode, read_edit(reader))
            else:
                rows = {block: row for block, row in origin.rows.items() if block in held}
                _adopt(episode, episode_of(reader, is_sidecar=True, signals=rows), taken)
            origin.sidecars.append(reader)
        except _UNFIT as error:
            path = reader.name if reader is not None else str(source)
            if reader is not None:
                reader.close()
            problems.append(error.located(path=path))
    return problems


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


def rebind(path: str, old: Episode, new: Episode, *, folds: bool, fsync: bool) -> None:
    """Binds a sidecar to the new file of its episode, while it still fits the old one (section 12).

    Args:
        path: the sidecar.
        old: the file of the episode that is there now, open.
        new: the file that takes its place.
        folds: whether the new file holds what the sidecar says. Then its edits and labels become those of that file.
        fsync: as for `save_wshard`.
    """
    assert new.origin is not None
    base = new.origin.reader
    with ShardReader(path) as reader:
        if folds and is_folded_in(reader, index_facts(base)):
            return  # it says nothing beside the new file
        before = read_binding(reader)["base"]
        bound = {**binding(new, with_identity="identity" in before), "before": before}
        replaced: dict[str, Any] = {META_SIDECAR: bound}
        names = [name for name in reader.names() if name != IDENTITY_ENTRY]
        if folds:
            replaced[META_EDIT] = edit_between(old, new)
            labels = [name for name in names if name.startswith("label/")]
            replaced.update((name, base.read_json(name)) for name in labels if name in base)
            names = [name for name in names if name not in labels or name in base]
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
