"""Episodes of several files that break a rule: chunks, manifests and sidecars."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from _decode import open_file
from _encode import Container, Entry, encode
from _episode_draft import Draft, episode_fields, ramp_f32
from _episode_sets import fingerprint, sidecar_text
from _metadata import contents_of
from _primitives import canonical_json, sha256_hex
from _valid_episode_sets import (
    CUTS,
    MANIFEST,
    chunk,
    chunk_files,
    chunk_name,
    edit_file,
    manifest_fields,
    manifest_file,
    sidecar_base,
    sidecar_file,
)
from _vector import InvalidEpisode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

FILES = chunk_files()
GOOD = manifest_fields(FILES)
ROWS = cast("list[JsonObject]", GOOD["chunks"])
SHARED_RULES = ("S-MAN-1", "S-MAN-2", "W-JSN-1")
"""The container's rules of manifests say some of the same."""


def chunked(
    name: str,
    description: str,
    rule: str,
    manifest: JsonObject | bytes,
    *,
    error: str = "chunk_discontinuity",
    files: dict[str, bytes] | None = None,
    when: str = "open",
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
) -> InvalidEpisode:
    chunks = FILES if files is None else files
    return InvalidEpisode(
        name=f"chunks_{name}",
        description=description,
        rule=rule,
        error=error,
        when=when,
        files=chunks | {MANIFEST: manifest_file(manifest)},
        file=MANIFEST,
        also=also,
        rules_also=rules_also,
    )


def _with_rows(*rows: JsonObject, **changes: object) -> JsonObject:
    return GOOD | {"chunks": list(rows)} | changes


def _with_second(**changes: object) -> JsonObject:
    """The manifest with other values in its second row."""
    return _with_rows(ROWS[0], ROWS[1] | changes, ROWS[2])


def _manifest_types() -> Iterator[InvalidEpisode]:
    def wrong(name: str, what: str, manifest: JsonObject | bytes) -> InvalidEpisode:
        # One file is enough: the manifest is refused before any chunk is looked for.
        return InvalidEpisode(
            name=f"manifest_{name}",
            description=what,
            rule="W-CHK-1",
            error="bad_metadata",
            when="open",
            files={MANIFEST: manifest_file(manifest)},
            file=MANIFEST,
            rules_also=SHARED_RULES,
        )

    yield wrong("not_json", "meta/manifest is not JSON.", b"run_chunk_0000.wshard")
    yield wrong("list", "meta/manifest is a list.", b"[]")
    yield wrong("nan", "NaN.", canonical_json(GOOD)[:-1] + b',"x":NaN}')
    values: dict[str, tuple[object, ...]] = {
        "episode_id": (7, None),
        "env_id": (7, ["env"]),
        "total_chunks": ("3", -1, 1.5, True),
        "total_timesteps": ("10", -1, 10.5, None),
        "metadata": (7, "cup", [1]),
        "chunks": ("run", None, {}, [None], ["run_chunk_0000.wshard"]),
    }
    for field, options in values.items():
        for number, value in enumerate(options):
            what = f"{field} is {canonical_json(value).decode()}."
            yield wrong(f"{field}_wrong_{number}", what, GOOD | {field: value})
    for field in ("episode_id", "total_timesteps", "chunks"):
        fewer = {key: value for key, value in GOOD.items() if key != field}
        yield wrong(f"{field}_missing", f"No {field}.", fewer)
    row_values: dict[str, tuple[object, ...]] = {
        "uri": (7, None),
        "sha256": (7, "ab", "A" * 64),
        "fingerprint": (7, "ab", "A" * 64),
        "size": ("1", -1, 1.5, True),
        "chunk_index": ("1", -1, 1.5, True, None),
        "timestep_range": ("4-7", [4], [4, 5, 7], [4, "7"], [4, 7.5], [True, 7], {}),
        "length_T": ("4", -1, 4.5, True, None),
        "total_chunks": ("3", -1),
    }
    for field, options in row_values.items():
        for number, value in enumerate(options):
            what = f"In a row, {field} is {canonical_json(value).decode()}."
            name = f"row_{field.lower()}_wrong_{number}"
            yield wrong(name, what, _with_second(**{field: value}))
    for field in ("uri", "chunk_index", "length_T"):
        fewer = {key: value for key, value in ROWS[1].items() if key != field}
        what = f"A row without {field}."
        yield wrong(f"row_{field.lower()}_missing", what, _with_rows(ROWS[0], fewer, ROWS[2]))


def _uris() -> Iterator[InvalidEpisode]:
    uris = {
        "parent": "../run_chunk_0001.wshard",
        "absolute": "/tmp/run_chunk_0001.wshard",
        "folder": "sub/run_chunk_0001.wshard",
        "dot_slash": "./run_chunk_0001.wshard",
        "inside_and_out": "sub/../run_chunk_0001.wshard",
        "dot": ".",
        "dot_dot": "..",
        "backslash": "..\\run_chunk_0001.wshard",
        "scheme": "file:///tmp/run_chunk_0001.wshard",
        "http": "https://example.org/run_chunk_0001.wshard",
    }
    for name, uri in uris.items():
        yield chunked(
            f"uri_{name}", f"uri is {uri}", "W-CHK-2", _with_second(uri=uri), error="unsafe_path"
        )


def _continuity() -> Iterator[InvalidEpisode]:
    def renumbered(*numbers: int) -> JsonObject:
        rows = [row | {"chunk_index": n} for row, n in zip(ROWS, numbers, strict=True)]
        return _with_rows(*rows)

    yield chunked("index_gap", "chunk_index runs 0, 1, 3.", "W-CHK-3", renumbered(0, 1, 3))
    yield chunked("index_from_1", "chunk_index runs 1, 2, 3.", "W-CHK-3", renumbered(1, 2, 3))
    without_middle = _with_rows(ROWS[0], ROWS[2], total_chunks=2, total_timesteps=6)
    yield chunked(
        "middle_missing",
        "The row of the second chunk is missing.",
        "W-CHK-3",
        without_middle,
        rules_also=("W-CHK-5", "W-CHK-6"),
    )
    yield chunked("index_twice", "chunk_index runs 0, 1, 1.", "W-CHK-4", renumbered(0, 1, 1))
    yield chunked("index_all_0", "chunk_index is 0 everywhere.", "W-CHK-4", renumbered(0, 0, 0))

    def ranged(*ranges: tuple[int, int], **changes: object) -> JsonObject:
        rows = [
            row | {"timestep_range": list(steps), "length_T": steps[1] - steps[0] + 1}
            for row, steps in zip(ROWS, ranges, strict=True)
        ]
        total = sum(last - first + 1 for first, last in ranges)
        return _with_rows(*rows, total_timesteps=total, **changes)

    ranges = {
        "gap": ("Step 4 is in no chunk.", ranged((0, 3), (5, 7), (8, 9))),
        "overlap": ("Step 3 is in two chunks.", ranged((0, 3), (3, 7), (8, 9))),
        "repeated": ("Two chunks have the same range.", ranged((0, 3), (0, 3), (4, 7))),
        "backwards": ("The ranges run backwards.", ranged((6, 9), (2, 5), (0, 1))),
        "half_open": ("Half-open ranges, which overlap.", ranged((0, 4), (4, 8), (8, 10))),
    }
    for name, (what, manifest) in ranges.items():
        yield chunked(f"range_{name}", what, "W-CHK-5", manifest)
    lengths = {
        "length_short": ("length_T 3 for the range [4, 7].", _with_second(length_T=3)),
        "length_long": ("length_T 5 for the range [4, 7].", _with_second(length_T=5)),
        "total_short": ("total_timesteps is 9.", GOOD | {"total_timesteps": 9}),
        "total_long": ("total_timesteps is 11.", GOOD | {"total_timesteps": 11}),
        "total_huge": ("total_timesteps is 2^64 + 10.", GOOD | {"total_timesteps": 2**64 + 10}),
        "count_short": ("total_chunks is 2.", GOOD | {"total_chunks": 2}),
        "count_long": ("total_chunks is 4.", GOOD | {"total_chunks": 4}),
        "count_of_row": ("A row says total_chunks 4.", _with_second(total_chunks=4)),
    }
    for name, (what, manifest) in lengths.items():
        also = ("bad_metadata",) if name == "total_huge" else ()
        yield chunked(name, what, "W-CHK-6", manifest, also=also)
    yield chunked(
        "range_falls",
        "A range of [7, 4].",
        "W-CHK-5",
        _with_second(timestep_range=[7, 4]),
        also=("bad_metadata",),
    )


def _changed_files() -> Iterator[InvalidEpisode]:
    second = chunk_name(1)
    fewer = {name: data for name, data in FILES.items() if name != second}
    yield chunked(
        "file_missing",
        "The second chunk is not there.",
        "W-CHK-7",
        GOOD,
        error="missing_file",
        files=fewer,
    )
    longer = chunk(1).add("com.example/more", b"added later").data()
    yield chunked(
        "file_longer",
        "The second chunk is a longer file than its row says.",
        "W-CHK-7",
        GOOD,
        error="reference_mismatch",
        files=FILES | {second: longer},
    )
    other = chunk(1)
    other.blocks = [
        entry if entry.name != "reward" else type(entry)("reward", entry.content[::-1])
        for entry in other.blocks
    ]
    changed = other.data()
    if len(changed) != len(FILES[second]):
        raise SystemExit("the changed chunk must have the same size")
    yield chunked(
        "file_changed",
        "The second chunk is a valid file of the right size with other rewards.",
        "W-CHK-7",
        GOOD,
        error="reference_mismatch",
        files=FILES | {second: changed},
        when="check",
    )
    yield chunked(
        "fingerprint_other",
        "As after a replacement that was cut short: the second chunk has the right size and other rewards.",
        "W-CHK-7",
        _with_second(fingerprint=fingerprint(open_file(FILES[second]))),
        error="reference_mismatch",
        files=FILES | {second: changed},
    )
    says: dict[str, tuple[str, JsonObject]] = {
        "episode": ("another episode", {"episode_id": "other"}),
        "index": ("another index", {"chunk_index": 2}),
        "range": ("another range", {"timestep_range": [5, 8]}),
        "no_index": ("no index", {"chunk_index": None}),
    }
    for name, (what, change) in says.items():
        files = FILES | {second: chunk(1, **change).data()}
        yield chunked(
            f"says_{name}",
            f"The second chunk says {what}.",
            "W-CHK-8",
            manifest_fields(files),
            files=files,
        )
    # Its own range says three steps too, or W-EPI rules would be broken first.
    length = CUTS[1][1] - CUTS[1][0]
    fields = episode_fields(length, episode_id="run", hz=10) | {
        "chunk_index": 1,
        "total_chunks": 3,
        "timestep_range": [4, 6],
    }
    shorter = Draft(length, episode=fields).data()
    files = FILES | {second: shorter}
    yield chunked(
        "says_length",
        "The second chunk says that it has three steps.",
        "W-CHK-8",
        manifest_fields(files),
        files=files,
    )


BASE = sidecar_base()
BASE_DATA = BASE.data()
TRUE = sidecar_text(open_file(BASE_DATA), "ep", 4)
TRUE_BASE = cast("JsonObject", TRUE["base"])


def _omen(model: str = "m") -> Draft:
    return Draft(4).add(f"omen/state/{model}", ramp_f32(16), "f32", (4,))


def _sidecar(
    name: str,
    description: str,
    rule: str,
    sidecars: dict[str, bytes],
    *,
    error: str = "bad_metadata",
    when: str = "open",
    also: tuple[str, ...] = (),
    rules_also: tuple[str, ...] = (),
) -> InvalidEpisode:
    files = {"ep.wshard": BASE_DATA}
    files |= {f"ep.wshard.lanes/{name}.wshard": data for name, data in sidecars.items()}
    return InvalidEpisode(
        name=f"sidecar_{name}",
        description=description,
        rule=rule,
        error=error,
        when=when,
        files=files,
        also=also,
        rules_also=rules_also,
    )


def _sidecar_descriptions() -> Iterator[InvalidEpisode]:
    def told(name: str, what: str, value: JsonObject | bytes) -> InvalidEpisode:
        sidecars = {"m": sidecar_file(_omen(), value)}
        return _sidecar(name, what, "W-SID-1", sidecars, rules_also=("W-JSN-1",))

    yield told("not_json", "Not JSON.", b"ep")
    yield told("list", "A list.", b"[]")
    yield told("repeated_key", "A repeated key.", canonical_json(TRUE)[:-1] + b',"v":1}')
    for number, version in enumerate((2, "1", True, None)):
        what = f"v is {canonical_json(version).decode()}."
        yield told(f"v_wrong_{number}", what, TRUE | {"v": version})
    yield told("v_missing", "No v.", {"base": TRUE_BASE})
    yield told("base_missing", "No base.", {"v": 1})
    yield told("base_string", "base is a string.", TRUE | {"base": "ep"})
    digest = cast("str", TRUE_BASE["fingerprint"])
    wrong: dict[str, tuple[object, ...]] = {
        "episode_id": (7, None),
        "fingerprint": (7, None, digest[:-1], digest.upper(), digest + "\n"),
        "identity": (7, None, "", "g" * 64),
        "length_T": ("4", 4.5, True, None),
    }
    for field, values in wrong.items():
        for number, value in enumerate(values):
            what = f"{field} is {canonical_json(value).decode()}."
            name = f"{field.lower()}_wrong_{number}"
            yield told(name, what, TRUE | {"base": TRUE_BASE | {field: value}})
        fewer = {key: value for key, value in TRUE_BASE.items() if key != field}
        yield told(f"{field.lower()}_missing", f"No {field}.", TRUE | {"base": fewer})


def _sidecar_bindings() -> Iterator[InvalidEpisode]:
    other = sidecar_base().add("signal/more", bytes(4), "u8").data()
    of_other = sidecar_text(open_file(other), "ep", 4)
    changes: dict[str, tuple[str, JsonObject]] = {
        "of_another_file": ("It was made for a file with other entries.", of_other),
        "of_another_id": (
            "It names another episode.",
            TRUE | {"base": TRUE_BASE | {"episode_id": "other"}},
        ),
        "of_another_length": (
            "It names another length.",
            TRUE | {"base": TRUE_BASE | {"length_T": 5}},
        ),
        "fingerprint_other": (
            "The fingerprint is another one.",
            TRUE | {"base": TRUE_BASE | {"fingerprint": sha256_hex(b"other")}},
        ),
    }
    for name, (what, told) in changes.items():
        sidecars = {"m": sidecar_file(_omen(), told)}
        yield _sidecar(name, what, "W-SID-2", sidecars, error="reference_mismatch")
    repeated = sidecar_file(_omen().add("signal/state", ramp_f32(16), "f32", (4,)), TRUE)
    yield _sidecar(
        "repeats_block",
        "It holds a block of the episode, with the same bytes.",
        "W-SID-3",
        {"m": repeated},
        error="duplicate_name",
    )
    yield _sidecar(
        "repeats_reward",
        "It holds another reward.",
        "W-SID-3",
        {"m": sidecar_file(_omen().add("reward", ramp_f32(4)), TRUE)},
        error="duplicate_name",
    )
    yield _sidecar(
        "repeats_with_other_content",
        "All that it holds is a block of the episode, with other bytes.",
        "W-SID-3",
        {"m": sidecar_file(Draft(4).add("signal/state", bytes(64), "f32", (4,)), TRUE)},
        error="duplicate_name",
    )
    yield _sidecar(
        "repeats_sidecar",
        "Two sidecars hold the same prediction.",
        "W-SID-3",
        {"a": sidecar_file(_omen(), TRUE), "b": sidecar_file(_omen(), TRUE)},
        error="duplicate_name",
    )
    told = TRUE | {"base": TRUE_BASE | {"identity": sha256_hex(b"other")}}
    yield _sidecar(
        "identity_other",
        "The fingerprint fits, the identity is another one.",
        "W-SID-4",
        {"m": sidecar_file(_omen(), told)},
        error="identity_mismatch",
        when="check",
    )
    yield InvalidEpisode(
        name="sidecar_alone",
        description="A sidecar opened as an episode: it belongs to another file.",
        rule="W-ROL-2",
        error="bad_profile",
        when="open",
        files={"ep.wshard": sidecar_file(_omen(), TRUE)},
    )
    parts = open_file(sidecar_file(_omen(), TRUE))
    without = tuple(
        Entry(name, content)
        for name, content in contents_of(parts).items()
        if name != "meta/episode"
    )
    yield _sidecar(
        "without_episode",
        "It has no meta/episode.",
        "W-ROL-2",
        {"m": encode(Container(without, role=5, name_terminator=b""))},
        error="bad_profile",
    )
    plain = encode(Container(_omen().entries(), role=0, name_terminator=b""))
    yield _sidecar(
        "not_bound",
        "It has no meta/sidecar.",
        "W-SID-1",
        {"m": sidecar_file(_omen(), None)},
        also=("bad_profile",),
    )
    yield _sidecar(
        "of_role_0",
        "It is a file of role 0.",
        "W-ROL-1",
        {"m": plain},
        error="bad_profile",
        also=("bad_metadata",),
    )


def _edits() -> Iterator[InvalidEpisode]:
    label = {"intervals": [{"end": 0, "start": 1, "text": "backwards"}]}
    changes: dict[str, tuple[str, JsonObject | bytes]] = {
        "not_an_object": ("meta/edit is a list.", b"[]"),
        "not_json": ("meta/edit is not JSON.", b"{"),
        "without_v": ("It has no v.", {"metadata": {}}),
        "v_wrong": ("v is 2.", {"v": 2}),
        "metadata_wrong": ("metadata is a list.", {"metadata": [], "v": 1}),
        "labels_wrong": ("labels is a string.", {"labels": "x", "v": 1}),
        "label_wrong": ("A label is a number.", {"labels": {"x": 1}, "v": 1}),
    }
    for name, (what, edit) in changes.items():
        sidecars = {"meta.edit": edit_file(edit, TRUE)}
        yield _sidecar(f"edit_{name}", what, "W-SID-5", sidecars)
    yield _sidecar(
        "edit_label_backwards",
        "An interval of a label ends before it starts.",
        "W-LAB-1",
        {"meta.edit": edit_file({"labels": {"x": label}, "v": 1}, TRUE)},
    )
    yield _sidecar(
        "before_wrong",
        "before is a string.",
        "W-SID-1",
        {"m": sidecar_file(_omen(), TRUE | {"before": "x"})},
    )
    of_other = TRUE_BASE | {"fingerprint": sha256_hex(b"other")}
    yield _sidecar(
        "before_of_another_file",
        "Neither base nor before is the file beside it.",
        "W-SID-2",
        {"m": sidecar_file(_omen(), TRUE | {"base": of_other, "before": of_other})},
        error="reference_mismatch",
    )


def set_vectors() -> Iterator[InvalidEpisode]:
    yield from _manifest_types()
    yield from _uris()
    yield from _continuity()
    yield from _changed_files()
    yield from _sidecar_descriptions()
    yield from _sidecar_bindings()
    yield from _edits()
