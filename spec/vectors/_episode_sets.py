"""Episodes of several files for the self-check: chunks with a manifest, and sidecars."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from _decode import File, open_file
from _episode import Channel, Episode, Flags, Lane, Numbers, Path, Plain, examine, open_episode
from _episode_json import check, check_label, is_hex_64, is_integer, is_pair, parse_entry
from _metadata import (
    EPISODE_ENTRY,
    MANIFEST_ENTRY,
    ROLE_MANIFEST,
    ROLE_WSHARD,
    JsonObject,
    contents_of,
    identity_of_version_2,
)
from _primitives import canonical_json, identity_text, sha256_hex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIDECAR_ENTRY = "meta/sidecar"
EDIT_ENTRY = "meta/edit"


def fingerprint(file: File) -> str:
    """What a sidecar says of its base, cheap to compute."""
    facts = {
        name: [entry["orig_size"], entry["crc32c"]]
        for name, entry in file.by_name.items()
        if name != "meta/identity"
    }
    return sha256_hex(canonical_json(facts))


def identity_of(file: File) -> str:
    return sha256_hex(identity_text(contents_of(file)))


def _sidecar_bases(sidecar: File) -> list[JsonObject]:
    """`base` and, while a file is being replaced, `before` (W-SID-1)."""

    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "W-SID-1", what)

    fine(SIDECAR_ENTRY in sidecar.by_name, "no meta/sidecar")
    fields = parse_entry(sidecar, SIDECAR_ENTRY, "W-SID-1")
    fine(is_integer(fields.get("v")) and fields["v"] == 1, "v")
    bases = [fields.get("base"), *([fields["before"]] if "before" in fields else [])]
    for base in bases:
        fine(isinstance(base, dict), "base")
        told = cast("JsonObject", base)
        fine(isinstance(told.get("episode_id"), str), "episode_id")
        if EDIT_ENTRY not in sidecar.by_name or "identity" in told:
            fine(is_hex_64(told.get("identity")), "identity")
        fine(is_hex_64(told.get("fingerprint")), "fingerprint")
        fine(is_integer(told.get("length_T")), "length_T")
    return cast("list[JsonObject]", bases)


def _edited(episode: Episode, sidecar: File) -> Episode:
    """An episode with the edits of a sidecar (W-SID-5)."""

    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "W-SID-5", what)

    fields = parse_entry(sidecar, EDIT_ENTRY, "W-SID-5")
    fine(is_integer(fields.get("v")) and fields["v"] == 1, "v")
    metadata, labels = fields.get("metadata", {}), fields.get("labels", {})
    fine(isinstance(metadata, dict) and isinstance(labels, dict), "metadata, labels")
    merged = episode.metadata | cast("JsonObject", metadata)
    lanes = dict(episode.lanes)
    for name, label in cast("JsonObject", labels).items():
        lanes.pop(("labels", name), None)
        if label is not None:
            fine(isinstance(label, dict), name)
            told = Plain(check_label(cast("JsonObject", label)))
            lanes["labels", name] = lambda told=told: told  # type: ignore[misc]
    return replace(
        episode,
        metadata={key: value for key, value in merged.items() if value is not None},
        lanes=lanes,
    )


def _was_folded_in(sidecar: File, base: File) -> bool:
    """Whether the episode itself holds all blocks of a sidecar (W-SID-6)."""

    def facts(file: File, name: str) -> tuple[object, object] | None:
        entry = file.by_name.get(name)
        return None if entry is None else (entry["orig_size"], entry["crc32c"])

    blocks = [name for name in sidecar.by_name if not name.startswith("meta/")]
    return bool(blocks) and all(facts(sidecar, name) == facts(base, name) for name in blocks)


def _sidecars(folder: Mapping[str, bytes], name: str, episode: Episode) -> tuple[File, ...]:
    lanes = f"{name}.lanes/"
    beside = sorted(n for n in folder if n.startswith(lanes) and n.endswith(".wshard"))
    found: list[File] = []
    held = set(episode.files[0].by_name)
    for file_name in beside:
        sidecar = open_file(folder[file_name])
        check(sidecar.header["role"] == ROLE_WSHARD, "bad_profile", "W-ROL-1", file_name)
        is_edit = EDIT_ENTRY in sidecar.by_name
        if not is_edit and _was_folded_in(sidecar, episode.files[0]):
            continue
        check(is_edit or EPISODE_ENTRY in sidecar.by_name, "bad_profile", "W-ROL-2", file_name)
        told = [
            (base["fingerprint"], base["episode_id"], base["length_T"])
            for base in _sidecar_bases(sidecar)
        ]
        true = fingerprint(episode.files[0]), episode.id, episode.length
        check(true in told, "reference_mismatch", "W-SID-2", file_name)
        added = {n for n in sidecar.by_name if not n.startswith("meta/")}
        check(not added & held, "duplicate_name", "W-SID-3", file_name)
        held |= added
        found.append(sidecar)
    return tuple(found)


def _check_manifest(manifest: JsonObject) -> list[JsonObject]:
    def fine(condition: bool, what: str) -> None:
        check(condition, "bad_metadata", "W-CHK-1", what)

    def count(value: object) -> bool:
        return is_integer(value) and cast("int", value) >= 0

    fine(isinstance(manifest.get("episode_id"), str), "episode_id")
    fine(isinstance(manifest.get("env_id", ""), str), "env_id")
    fine(count(manifest.get("total_timesteps")), "total_timesteps")
    fine(count(manifest.get("total_chunks", 0)), "total_chunks")
    fine(isinstance(manifest.get("metadata") or {}, dict), "metadata")
    rows = manifest.get("chunks")
    fine(isinstance(rows, list), "chunks")
    for row in cast("list[object]", rows):
        fine(isinstance(row, dict), "a row")
        fields = cast("JsonObject", row)
        fine(isinstance(fields.get("uri"), str), "uri")
        fine(is_hex_64(fields.get("sha256", "0" * 64)), "sha256")
        fine(count(fields.get("size", 0)), "size")
        fine(is_hex_64(fields.get("fingerprint", "0" * 64)), "fingerprint")
        fine(count(fields.get("chunk_index")), "chunk_index")
        fine(count(fields.get("length_T")), "length_T")
        fine(count(fields.get("total_chunks", 0)), "total_chunks")
        fine(is_pair(fields.get("timestep_range")), "timestep_range")
    return cast("list[JsonObject]", rows)


def _is_bare_name(uri: str) -> bool:
    return uri not in ("", ".", "..") and not any(c in uri for c in "/\\\0")


def _check_continuity(manifest: JsonObject, rows: list[JsonObject]) -> None:
    def fine(condition: bool, rule: str) -> None:
        check(condition, "chunk_discontinuity", rule)

    numbers = [cast("int", row["chunk_index"]) for row in rows]
    fine(len(set(numbers)) == len(numbers), "W-CHK-4")
    fine(numbers == list(range(len(numbers))), "W-CHK-3")
    ranges = [cast("list[int]", row["timestep_range"]) for row in rows]
    lengths = [cast("int", row["length_T"]) for row in rows]
    for before, after in pairwise(ranges):
        fine(after[0] == before[1] + 1, "W-CHK-5")
    for (first, last), length in zip(ranges, lengths, strict=True):
        fine(last - first + 1 == length, "W-CHK-6")
    fine(sum(lengths) == manifest["total_timesteps"], "W-CHK-6")
    totals = [manifest, *rows]
    fine(all(owner.get("total_chunks", len(rows)) == len(rows) for owner in totals), "W-CHK-6")


def _open_chunk(data: bytes, row: JsonObject, manifest: JsonObject) -> Episode:
    file = open_file(data)
    true_print = fingerprint(file)
    check(row.get("fingerprint", true_print) == true_print, "reference_mismatch", "W-CHK-7")
    chunk = open_episode(file)
    steps = cast("list[int]", row["timestep_range"])
    told = chunk.id, chunk.chunk_index, chunk.timestep_range, chunk.length
    true = manifest["episode_id"], row["chunk_index"], (steps[0], steps[1]), row["length_T"]
    check(told == true, "chunk_discontinuity", "W-CHK-8")
    return chunk


def _joined(parts: list[Lane]) -> Lane:
    first = parts[0]
    if isinstance(first, Numbers):
        return Numbers(sum((cast("Numbers", part).values for part in parts), ()))
    if isinstance(first, Flags):
        return replace(first, data=b"".join(cast("Flags", part).data for part in parts))
    if not isinstance(first, Channel):
        raise TypeError("the vectors have no such lane in chunks")
    channels = cast("list[Channel]", parts)
    times: tuple[int, ...] | None = None
    if first.timestamps_ns is not None:
        times = sum((part.timestamps_ns or () for part in channels), ())
    return replace(
        first,
        length=sum(part.length for part in channels),
        data=b"".join(part.data for part in channels),
        pieces=sum((part.pieces for part in channels), ()),
        timestamps_ns=times,
    )


def _load_chunks(folder: Mapping[str, bytes], file: File, *, strict: bool) -> Episode:
    manifest = parse_entry(file, MANIFEST_ENTRY)
    rows = _check_manifest(manifest)
    for row in rows:
        check(_is_bare_name(cast("str", row["uri"])), "unsafe_path", "W-CHK-2")
    _check_continuity(manifest, rows)
    chunks = []
    for row in rows:
        uri = cast("str", row["uri"])
        check(uri in folder, "missing_file", "W-CHK-7", uri)
        data = folder[uri]
        check(row.get("size", len(data)) == len(data), "reference_mismatch", "W-CHK-7")
        if strict and "sha256" in row:
            check(row["sha256"] == sha256_hex(data), "reference_mismatch", "W-CHK-7")
        chunks.append(_open_chunk(data, row, manifest))
    if strict:
        for chunk in chunks:
            examine(chunk)

    def join(path: Path) -> Callable[[], Lane]:
        return lambda: _joined([chunk.touch(path) for chunk in chunks])

    whole = manifest.get("metadata")
    return replace(
        chunks[0],
        metadata=chunks[0].metadata if whole is None else cast("JsonObject", whole),
        length=sum(chunk.length for chunk in chunks),
        chunk_index=None,
        total_chunks=None,
        timestep_range=None,
        lanes={path: join(path) for path in chunks[0].lanes},
    )


def load(folder: Mapping[str, bytes], name: str, *, strict: bool = False) -> Episode:
    """An episode with its sidecars, or the chunks that a manifest names.

    `strict` does what only checking tools do.
    """
    file = open_file(folder[name])
    if file.header["role"] == ROLE_MANIFEST:
        return _load_chunks(folder, file, strict=strict)
    episode = open_episode(file)
    sidecars = _sidecars(folder, name, episode)
    edits = [sidecar for sidecar in sidecars if EDIT_ENTRY in sidecar.by_name]
    episode = open_episode(file, tuple(sidecar for sidecar in sidecars if sidecar not in edits))
    for sidecar in edits:
        episode = _edited(episode, sidecar)
    if strict:
        examine(episode)
        for sidecar in sidecars:
            true = {identity_of(file), sha256_hex(identity_of_version_2(file))}
            told = {base.get("identity", identity_of(file)) for base in _sidecar_bases(sidecar)}
            check(bool(true & told), "identity_mismatch", "W-SID-4")
    return episode


def sidecar_text(base: File, episode_id: str, length: int) -> JsonObject:
    """A true meta/sidecar for a base."""
    return {
        "base": {
            "episode_id": episode_id,
            "fingerprint": fingerprint(base),
            "identity": identity_of(base),
            "length_T": length,
        },
        "v": 1,
    }
