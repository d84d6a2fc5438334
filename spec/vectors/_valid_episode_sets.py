"""Valid episodes of several files: chunks with a manifest, and sidecars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from _decode import open_file
from _encode import Container, Entry, encode
from _episode_draft import Draft, episode_fields, f32, i32, i64, ramp_f32
from _episode_sets import fingerprint, sidecar_text
from _metadata import identity_of_version_2
from _primitives import canonical_json, sha256_hex
from _valid_episodes import ragged_blocks, seen, text_blocks
from _vector import ValidSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

STEPS = 10
CUTS = ((0, 3), (4, 7), (8, 9))
"""First and last step of each chunk."""
TENTH_NS = 100_000_000
CAMERA_TIMES = (0, 150_000_000, 399_999_999, 400_000_000, 850_000_000)
TEXTS = [f"step {step}" if step % 3 else "" for step in range(STEPS)]
POINTS = [f32(*([step] * (step % 4))) for step in range(STEPS)]
STATE = ramp_f32(2 * (STEPS + 1))


def chunk_name(number: int, episode_id: str = "run") -> str:
    return f"{episode_id}_chunk_{number:04}.wshard"


def chunk(number: int, **changes: object) -> Draft:
    """One of the three chunks of an episode of ten steps at 10 Hz."""
    first, last = CUTS[number]
    length = last - first + 1
    fields = episode_fields(length, episode_id="run", hz=10) | {
        "chunk_index": number,
        "total_chunks": len(CUTS),
        "timestep_range": [first, last],
        "metadata": {"task": "cup"},
    }
    draft = Draft(length, episode=fields | changes, ticks=False)
    is_last = number == len(CUTS) - 1
    stop = last + 1 + is_last
    more = {"length": length + 1} if is_last else {}
    draft.add("signal/state", STATE[8 * first : 8 * stop], "f32", (2,), **more)
    until = CUTS[number + 1][0] * TENTH_NS if not is_last else 1 << 62
    mine = [i for i, time in enumerate(CAMERA_TIMES) if first * TENTH_NS <= time < until]
    draft.add(
        "signal/camera",
        bytes(mine),
        "u8",
        length=len(mine),
        time_block="time/signal/camera",
    )
    draft.add("time/signal/camera", i64(*(CAMERA_TIMES[i] for i in mine)))
    text_blocks(draft, "signal/said", TEXTS[first : last + 1])
    ragged_blocks(draft, "signal/points", POINTS[first : last + 1], "f32", (), 4)
    draft.add("action/ctrl", i32(*range(first, last + 1)), "i32")
    draft.add("reward", f32(*range(first, last + 1)))
    draft.add("done", bytes(int(step == STEPS - 1) for step in range(first, last + 1)))
    draft.add("time/ticks", i32(*range(first, last + 1)))
    return draft


def manifest_fields(files: dict[str, bytes], episode_id: str = "run") -> JsonObject:
    """A true manifest of the three chunks."""
    rows = [
        {
            "chunk_index": number,
            "length_T": last - first + 1,
            "sha256": sha256_hex(files[chunk_name(number)]),
            "size": len(files[chunk_name(number)]),
            "timestep_range": [first, last],
            "total_chunks": len(CUTS),
            "uri": chunk_name(number),
        }
        for number, (first, last) in enumerate(CUTS)
    ]
    return {
        "chunks": rows,
        "env_id": "Env-v0",
        "episode_id": episode_id,
        "total_chunks": len(CUTS),
        "total_timesteps": STEPS,
    }


def manifest_file(fields: JsonObject | bytes, **changes: object) -> bytes:
    text = fields if isinstance(fields, bytes) else canonical_json(fields)
    entry = Entry("meta/manifest", text, content_type=2)
    options: dict[str, object] = {"role": 4, "alignment": 64} | changes
    return encode(Container((entry,), **options))  # type: ignore[arg-type]


def chunk_files() -> dict[str, bytes]:
    return {chunk_name(number): chunk(number).data() for number in range(len(CUTS))}


MANIFEST = "run_manifest.wshard"
REPLACED = "run_chunk_0001-0123456789ab.wshard"
WHOLE: JsonObject = {
    "id": "run",
    "length": "10",
    "metadata": {"task": "cup"},
    "observations": {
        "state": seen("signal/state", STATE, "f32", (2,), STEPS + 1),
        "camera": {
            "hex": bytes(range(5)).hex(),
            "length": "5",
            "timestamps_ns": [str(time) for time in CAMERA_TIMES],
        },
        "said": {"text": TEXTS},
        "points": {"items": [part.hex() for part in POINTS]},
    },
    "actions": {"ctrl": seen("action/ctrl", i32(*range(STEPS)), "i32", (), STEPS)},
    "rewards": seen("reward", f32(*range(STEPS)), "f32", (), STEPS),
    "terminations": {"hex": "00" * 9 + "01"},
    "ticks": [str(step) for step in range(STEPS)],
}


def _chunks() -> Iterator[ValidSet]:
    files = chunk_files()
    fields = manifest_fields(files)
    rows: list[JsonObject] = fields["chunks"]  # type: ignore[assignment]
    rules = ("W-CHK-3", "W-CHK-5", "W-CHK-6", "W-CHK-8", "S-MAN-1")
    yield ValidSet(
        "chunks",
        "Three chunks: T + 1 observations in the last one, a clock cut by time, text, ragged data.",
        rules,
        MANIFEST,
        files | {MANIFEST: manifest_file(fields)},
        WHOLE,
    )
    python_rows = [
        {
            key: row[key]
            for key in (
                "chunk_index",
                "uri",
                "sha256",
                "timestep_range",
                "length_T",
                "total_chunks",
            )
        }
        for row in rows
    ]
    python = {
        "episode_id": "run",
        "env_id": "Env-v0",
        "total_chunks": 3,
        "total_timesteps": STEPS,
        "chunks": python_rows,
    }
    text = json.dumps(python, indent=2).encode()
    yield ValidSet(
        "chunks_python_form",
        "A manifest as the Python writer leaves it: indented, without sizes, flags 0, alignment 32.",
        rules,
        MANIFEST,
        files | {MANIFEST: manifest_file(text, alignment=32, flags=0, name_terminator=b"")},
        WHOLE,
    )
    go = {"episode_id": "run", "chunks": python_rows, "total_timesteps": STEPS}
    text = json.dumps(go, indent=2).encode()
    yield ValidSet(
        "chunks_go_form",
        "A manifest as the Go writer leaves it: no env_id and no total_chunks at the top.",
        rules,
        MANIFEST,
        files | {MANIFEST: manifest_file(text)},
        WHOLE,
    )
    recorded = {}
    for number in range(len(CUTS)):
        draft = chunk(number)
        assert isinstance(draft.episode, dict)
        del draft.episode["total_chunks"]
        recorded[chunk_name(number)] = draft.data()
    metadata = {"task": "cup", "success": True, "dropped": {"signal/camera": 2}}
    yield ValidSet(
        "chunks_recorded",
        "As a recorder leaves them: no chunk says how many there are, and the manifest has the metadata of all.",
        rules,
        MANIFEST,
        recorded | {MANIFEST: manifest_file(manifest_fields(recorded) | {"metadata": metadata})},
        WHOLE | {"metadata": metadata},
    )
    replaced = files | {REPLACED: files[chunk_name(1)]}
    del replaced[chunk_name(1)]
    with_prints: list[JsonObject] = [
        row | {"fingerprint": fingerprint(open_file(files[chunk_name(number)]))}
        for number, row in enumerate(rows)
    ]
    with_prints[1]["uri"] = REPLACED
    yield ValidSet(
        "chunks_replaced",
        "The rows have fingerprints, and a chunk has another name, as after the episode was replaced.",
        (*rules, "W-CHK-7"),
        MANIFEST,
        replaced | {MANIFEST: manifest_file(fields | {"chunks": with_prints})},
        WHOLE,
    )
    shorter = manifest_fields(recorded) | {"total_chunks": 2, "total_timesteps": 8}
    finished: list[JsonObject] = shorter["chunks"][:2]  # type: ignore[index]
    shorter["chunks"] = [row | {"total_chunks": 2} for row in finished]
    yield ValidSet(
        "chunks_being_recorded",
        "While the third chunk is recorded the manifest is that of an episode of two.",
        rules,
        MANIFEST,
        {name: data for name, data in recorded.items() if name != chunk_name(2)}
        | {MANIFEST: manifest_file(shorter)},
        {
            "id": "run",
            "length": "8",
            "actions": {"ctrl": seen("action/ctrl", i32(*range(8)), "i32", (), 8)},
        },
    )
    only = Draft(
        2,
        episode=episode_fields(2, episode_id="solo")
        | {"chunk_index": 0, "total_chunks": 1, "timestep_range": [0, 1]},
    ).add("signal/x", f32(1, 2), "f32")
    data = only.data()
    row = {
        "chunk_index": 0,
        "length_T": 2,
        "sha256": sha256_hex(data),
        "size": len(data),
        "timestep_range": [0, 1],
        "total_chunks": 1,
        "uri": "solo_chunk_0000.wshard",
        "x_note": "kept",
    }
    solo = {
        "chunks": [row],
        "env_id": "Env-v0",
        "episode_id": "solo",
        "total_chunks": 1,
        "total_timesteps": 2,
        "x_note": 1,
    }
    yield ValidSet(
        "chunks_only_one",
        "A manifest of one chunk, with fields that nobody knows.",
        rules,
        "solo_manifest.wshard",
        {"solo_chunk_0000.wshard": data, "solo_manifest.wshard": manifest_file(solo)},
        {"id": "solo", "length": "2", "observations": {"x": seen("signal/x", f32(1, 2), length=2)}},
    )


def sidecar_base() -> Draft:
    return (
        Draft(4)
        .add("signal/state", ramp_f32(16), "f32", (4,))
        .add("action/ctrl", ramp_f32(8), "f32", (2,))
        .add("reward", f32(0, 0, 0, 1))
    )


def sidecar_file(draft: Draft, told: JsonObject | bytes | None) -> bytes:
    """A sidecar: the blocks and rows of a draft, and what it says of its base."""
    blocks = Draft(draft.length, blocks=list(draft.blocks), rows=list(draft.rows), ticks=False)
    blocks.wshard = None
    entries = list(blocks.entries())
    if told is not None:
        text = told if isinstance(told, bytes) else canonical_json(told)
        entries.append(Entry("meta/sidecar", text, content_type=2))
    return encode(Container(tuple(entries), role=5, alignment=64, name_terminator=b""))


def edit_file(edit: JsonObject | bytes, told: JsonObject) -> bytes:
    """A sidecar of edits."""
    draft = Draft(4, ticks=False)
    draft.wshard = None
    text = edit if isinstance(edit, bytes) else canonical_json(edit)
    entries = [
        *draft.entries(),
        Entry("meta/edit", text, content_type=2),
        Entry("meta/sidecar", canonical_json(told), content_type=2),
    ]
    return encode(Container(tuple(entries), role=5, alignment=64, name_terminator=b""))


NO_LABEL: JsonObject = {"intervals": [{"end": 1, "start": 0, "text": "x"}]}


def _sidecars() -> Iterator[ValidSet]:
    base = sidecar_base()
    data = base.data()
    told = sidecar_text(open_file(data), "ep", 4)
    state = ramp_f32(16)
    omen = Draft(4).add("omen/state/m", state, "f32", (4,), channel="state", model="m")
    base_seen: JsonObject = {
        "state": seen("signal/state", state, "f32", (4,)),
    }
    yield ValidSet(
        "sidecar",
        "A sidecar with a prediction.",
        ("W-SID-1", "W-SID-2"),
        "ep.wshard",
        {"ep.wshard": data, "ep.wshard.lanes/dreamer.wshard": sidecar_file(omen, told)},
        {
            "id": "ep",
            "observations": base_seen,
            "omens": {"state": {"m": seen("omen/state/m", state, "f32", (4,))}},
            "extras": {},
        },
    )
    second = (
        Draft(4)
        .add("uncert/state/m/std", state, "f32", (4,))
        .add("signal/depth", bytes(8), "u16")
        .json("label/skill", {"intervals": [{"end": 4, "start": 0, "text": "x"}]})
        .add("com.example/notes", b"kept")
        .add("time/timestamps_ns", i64(1, 2, 3, 4))
    )
    undescribed = Draft(4).add("omen/state/other", state)
    base.identity = 2
    of_version_2 = base.data()
    told = sidecar_text(open_file(of_version_2), "ep", 4)
    identity = sha256_hex(identity_of_version_2(open_file(of_version_2)))
    told["base"] = cast("JsonObject", told["base"]) | {"identity": identity}
    yield ValidSet(
        "sidecar_identity_2",
        "The base carries its identity of version 2, and the sidecar states it.",
        ("W-SID-1", "W-SID-4"),
        "ep.wshard",
        {"ep.wshard": of_version_2, "ep.wshard.lanes/dreamer.wshard": sidecar_file(omen, told)},
        {"id": "ep", "observations": base_seen},
    )
    base.identity = 1
    with_identity = base.data()
    told = sidecar_text(open_file(with_identity), "ep", 4)
    yield ValidSet(
        "sidecars",
        "Three sidecars: several lanes, a block without a row; the base carries its identity.",
        ("W-SID-1", "W-SID-2", "W-SID-3", "W-INF-1"),
        "ep.wshard",
        {
            "ep.wshard": with_identity,
            "ep.wshard.lanes/1.wshard": sidecar_file(omen, told),
            "ep.wshard.lanes/2.wshard": sidecar_file(second, told),
            "ep.wshard.lanes/3.wshard": sidecar_file(undescribed, told),
            "ep.wshard.lanes/notes.txt": b"not a sidecar",
        },
        {
            "observations": base_seen | {"depth": seen("signal/depth", bytes(8), "u16")},
            "omens": {
                "state": {
                    "m": {"inferred": False},
                    "other": seen("omen/state/other", state, "f32", (4,), inferred=True),
                }
            },
            "uncerts": {"state": {"m": {"std": {"dtype": "f32"}}}},
            "labels": {"skill": {"unit": "steps"}},
            "extras": {"com.example/notes": sha256_hex(b"kept")},
            "timestamps_ns": ["1", "2", "3", "4"],
        },
    )
    labelled = sidecar_base().json("label/phase", {"intervals": []}).json("label/gone", NO_LABEL)
    metadata = {"note": "x", "success": False, "task": "cup"}
    labelled.episode = episode_fields(4, metadata=metadata)
    with_labels = labelled.data()
    told = sidecar_text(open_file(with_labels), "ep", 4)
    without_identity = cast("JsonObject", told["base"])
    del without_identity["identity"]
    phase = {"intervals": [{"end": 3, "start": 1, "text": "reach"}], "unit": "steps"}
    edit: JsonObject = {
        "labels": {"gone": None, "new": phase, "phase": phase},
        "metadata": {"note": None, "operator": {"name": "ada"}, "success": True},
        "v": 1,
    }
    edited: JsonObject = {
        "metadata": {"operator": {"name": "ada"}, "success": True, "task": "cup"},
        "labels": {name: {"unit": "steps"} for name in ("new", "phase")},
        "observations": base_seen,
        "extras": {},
    }
    yield ValidSet(
        "edits",
        "A sidecar of edits: metadata and labels replaced, added and removed; no identity.",
        ("W-SID-1", "W-SID-2", "W-SID-5"),
        "ep.wshard",
        {"ep.wshard": with_labels, "ep.wshard.lanes/meta.edit.wshard": edit_file(edit, told)},
        edited,
    )
    moved = sidecar_text(open_file(sidecar_base().data()), "ep", 4) | {"before": told["base"]}
    yield ValidSet(
        "edits_while_replaced",
        "The episode is about to be replaced: the sidecar fits the file that is still there, as `before`.",
        ("W-SID-1", "W-SID-2"),
        "ep.wshard",
        {"ep.wshard": with_labels, "ep.wshard.lanes/meta.edit.wshard": edit_file(edit, moved)},
        edited,
    )
    folded = sidecar_base().add("omen/state/m", state, "f32", (4,), channel="state", model="m")
    yield ValidSet(
        "sidecar_folded_in",
        "The episode itself holds the lane of a sidecar, which is still bound to the file before: it is skipped.",
        ("W-SID-6",),
        "ep.wshard",
        {
            "ep.wshard": folded.data(),
            "ep.wshard.lanes/dreamer.wshard": sidecar_file(
                omen, sidecar_text(open_file(data), "ep", 4)
            ),
        },
        {
            "id": "ep",
            "observations": base_seen,
            "omens": {"state": {"m": seen("omen/state/m", state, "f32", (4,))}},
            "extras": {},
        },
    )
    other = Draft(4, episode=episode_fields(4, episode_id="other"))
    other.add("signal/state", state, "f32", (4,))
    told = sidecar_text(open_file(data), "ep", 4)
    yield ValidSet(
        "sidecar_of_a_neighbour",
        "Two episodes in one folder; the sidecar belongs to the other one.",
        ("W-SID-2",),
        "other.wshard",
        {
            "ep.wshard": data,
            "ep.wshard.lanes/dreamer.wshard": sidecar_file(omen, told),
            "other.wshard": other.data(),
        },
        {"id": "other", "omens": {}},
    )


def set_vectors() -> Iterator[ValidSet]:
    yield from _chunks()
    yield from _sidecars()
