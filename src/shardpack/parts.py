"""Making a set of the parts that several writers have written (spec/shardpack.md, section 9.4).

label = SetLabel(revision="job-17", part=3, parts=16)
with shardpack.ShardWriterSet("train-%06d.shardpack", label=label) as writer:  # one of 16 machines
    ...
shardpack.commit("train-%06d.shardpack")  # when all have finished
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from shard_format.errors import InvalidArgument, LimitExceeded
from shard_format.listing import list_names
from shard_format.manifest import FileReference
from shard_format.sources import is_url
from shardpack._switch import finish_replacements, move_into_place
from shardpack.dataset import find_repeated_keys
from shardpack.reader import ShardPackReader, read_footer
from shardpack.sets import (
    MOST_SHARDS,
    SUFFIX,
    ShardSet,
    WrittenShards,
    can_be_listed,
    count_numbers,
    merge_schemas,
    numbered_files,
    parts_folder,
    read_own_set,
    records_of,
    set_path,
    write_set_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["commit"]

_PART_FILE: Final = re.compile(r"\d+-of-\d+" + re.escape(SUFFIX))


def commit(
    output: str | os.PathLike[str],
    *,
    parts: Sequence[str] | None = None,
    overwrite: bool = False,
    fsync: bool = True,
) -> WrittenShards:
    """Make a set of the parts that several writers have written.

    The shards get their names in the set, in the order of the parts; no shard is copied, except within an object store, which
    cannot rename. Readers find the set that was
    there before until all of the new one is in place, even if this process dies: then the next one that opens the set
    finishes the work. Call it again if you are not sure.

    Args:
        output: the set, `"train-%06d.shardpack"`, as the writers of the parts were given it.
        parts: names of set files in the folder of the parts (`shardpack.sets.parts_folder`), in the order of the set;
            for engines that do not number parts. If left out, the numbered parts, all of which must be there.
        overwrite: True replaces an existing set.
        fsync: False skips syncing to disk.

    Raises:
        InvalidArgument: parts are missing, or belong to different runs; or the set exists.
        MissingFile, ReferenceMismatch: a shard of a part is missing, or is a different one.
        DuplicateName: a key is in two shards.
    """
    name = os.fspath(output)
    if count_numbers(name) != 1 or not can_be_listed(name):
        raise InvalidArgument(
            "the name of a set needs exactly one number",
            path=name,
            expected="such as 'train-%06d.shardpack'",
        )
    folder = os.path.dirname(name % 0)
    staging = parts_folder(name)
    target = set_path(name)
    was_unfinished = not is_url(name) and finish_replacements([folder, staging])
    found = _read_parts(staging, parts)
    earlier = read_own_set(target, os.path.basename(name))
    if earlier is not None and (_are_committed(found, earlier) if found else was_unfinished):
        _remove_parts(found)
        return WrittenShards(earlier.locations(), earlier.fields["records"])
    if parts is None:
        found = _number_parts(found, staging, os.path.basename(name))
    _check_shards(found)
    existing = numbered_files(name)
    if is_url(name) and earlier is None:
        existing = []  # what a killed call has copied is copied again
    if existing and is_url(name):
        raise InvalidArgument(
            "a set in an object store cannot be replaced: readers would see parts of both",
            path=existing[0],
            hint="write the new set under another name, then delete the old one",
        )
    if existing and not overwrite:
        raise InvalidArgument(
            "there are shards of this name already",
            path=existing[0],
            hint="pass overwrite=True to replace them",
            command="pass --force to replace them",
        )
    rows, moves = _renamed(found, name)
    if len(rows) > MOST_SHARDS:
        raise LimitExceeded(
            "the set has too many shards",
            path=name,
            expected=f"at most {MOST_SHARDS}",
            found=len(rows),
            rule="P-SET-5",
        )
    for path in (name % number for number in range(len(existing), len(rows))):
        if not is_url(path) and os.path.lexists(path):  # after a gap in the numbers
            raise InvalidArgument("another shard is in the way", path=path, hint="remove it")
    schema = merge_schemas(part.fields.get("schema") for part in found)
    fields = {
        "created": min(part.fields["created"] for part in found),
        "name": os.path.basename(name),
        "revision": found[0].label.revision,
        "user": found[0].fields["user"],
        **({} if schema is None else {"schema": schema}),
    }
    if is_url(name):
        from shard_format.remote import copy_url

        for staged, new in moves:
            copy_url(f"{staging}/{staged}", f"{folder}/{new}")
        write_set_file(target, rows, fields, fsync=fsync)
        _remove_parts(found)
        return WrittenShards([name % number for number in range(len(rows))], records_of(rows))
    staged = os.path.join(staging, "set" + SUFFIX)
    write_set_file(staged, rows, fields, fsync=fsync)
    moved = {staged for staged, _ in moves}
    move_into_place(
        staging,
        [*moves, (os.path.basename(staged), os.path.basename(target))],
        lambda: [os.path.basename(path) for path in numbered_files(name)],
        leftovers=[
            *(os.path.basename(part.path) for part in found),
            *(shard for part in found for shard in part.names if shard not in moved),
        ],
        fsync=fsync,
    )
    return WrittenShards([name % number for number in range(len(rows))], records_of(rows))


def _remove_parts(parts: Sequence[ShardSet]) -> None:
    """Delete what is left of parts that are in their set."""
    for part in parts:
        if is_url(part.path):
            from shard_format.remote import delete_url

            for location in (*part.locations(), part.path):
                delete_url(location)
        else:
            with contextlib.suppress(OSError):
                os.unlink(part.path)


def _read_parts(folder: str, names: Sequence[str] | None) -> list[ShardSet]:
    if names is not None:
        return [ShardSet.read(os.path.join(folder, name)) for name in names]
    return [
        ShardSet.read(os.path.join(folder, name))
        for name in list_names(folder)
        if _PART_FILE.fullmatch(name)
    ]


def _are_committed(parts: list[ShardSet], earlier: ShardSet) -> bool:
    """Whether all that is left of the parts are set files: an earlier call could not remove them."""
    known = {reference.sha256 for reference in earlier.manifest.files}
    shards = [
        (location, reference.sha256)
        for part in parts
        for location, reference in zip(part.locations(), part.manifest.files, strict=True)
        if reference.extra["records"]
    ]
    return bool(shards) and all(
        sha256 in known and (is_url(location) or not os.path.exists(location))
        for location, sha256 in shards
    )


def _number_parts(found: list[ShardSet], folder: str, name: str) -> list[ShardSet]:
    """The parts in order, after everything that must be so is so (P-SET-10)."""
    hint = "write it with label=SetLabel(revision, part, parts)"
    command = "write it with 'shardpack create --part K/N'"
    if not found:
        raise InvalidArgument("found no parts of this set", path=folder, hint=hint, command=command)
    first = found[0]
    for part in found:
        for what in ("name", "parts", "revision", "user"):
            expected, stated = (one.fields.get(what) for one in (first, part))
            if stated != expected:
                raise InvalidArgument(
                    f"the parts are not of one set: {what!r} differs",
                    path=part.path,
                    expected=f"{expected!r}, as in {os.path.basename(first.path)}"[:200],
                    found=repr(stated)[:80],
                    hint="remove the parts of other runs, or write them again",
                )
    if first.fields["name"] != name:
        raise InvalidArgument(
            "the parts are of another set",
            path=folder,
            expected=name,
            found=first.fields["name"],
        )
    by_number = {part.label.part: part for part in found}
    if 0 in by_number or len(by_number) != len(found):
        raise InvalidArgument(
            "two set files are of the same part, or one is not of a part",
            path=folder,
            found=", ".join(os.path.basename(part.path) for part in found[:10]),
            hint="remove the parts of other runs, or write them again",
        )
    missing = [number for number in range(1, first.label.parts + 1) if number not in by_number]
    if missing:
        shown = ", ".join(map(str, missing[:10])) + (" …" if len(missing) > 10 else "")
        raise InvalidArgument(
            f"{len(missing)} of {first.label.parts} parts are missing or not complete: {shown}",
            path=folder,
            hint=hint,
            command=command,
        )
    return [by_number[number] for number in sorted(by_number)]


def _check_shards(parts: list[ShardSet]) -> None:
    """Refuse parts whose shards are not all there, or have a key twice."""
    paths: list[str] = []
    for part in parts:
        for number, location in enumerate(part.locations()):
            part.check_place(number, location)
            part.check_footer(number, read_footer(location), location)
            paths.append(location)
    hashes: list[NDArray[np.uint64] | None] = []
    for path in paths:
        with ShardPackReader(path) as shard:
            hashes.append(np.array(shard.key_lookup()[0]))
    for error in find_repeated_keys(paths, hashes):
        raise error


def _renamed(
    parts: Sequence[ShardSet], name: str
) -> tuple[list[FileReference], list[tuple[str, str]]]:
    """The rows of the set, and the present and the later name of each shard."""
    references = [reference for part in parts for reference in part.manifest.files]
    full = [reference for reference in references if reference.extra["records"]]
    rows: list[FileReference] = []
    moves: list[tuple[str, str]] = []
    for number, reference in enumerate(full or references[:1]):
        new = os.path.basename(name % number)
        moves.append((reference.uri, new))
        rows.append(
            FileReference(new, reference.sha256, reference.size, extra=dict(reference.extra))
        )
    return rows, moves
