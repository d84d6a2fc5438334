"""Valid episodes as other writers leave them: generations 1 and 2, older forms, missing rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from _compress import lz4_repeated, plain_frame
from _decode import open_file
from _encode import Container, Entry
from _episode_draft import Draft, episode_fields, f32, i32, numbers, ramp_f32, row_for
from _layout import ENTRY_COMPRESSED, LZ4, ZSTD, with_entry
from _metadata import JsonObject, contents_of
from _primitives import fnv1a64, identity_text, sha256_hex
from _valid import valid
from _valid_episodes import STATE, base, episode, seen
from _vector import Valid, byte_ramp

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PUBLISHED_IDENTITIES = {
    "simple_episode": "3e49af954ba6cb7fa5f13d931a073e88eaa03b0a2482308e9febc05248aaf7d3",
    "dtype_zoo": "a31da2ca75ae8e0d571e54de1841202cf0936a221bd03878753f8c0771e8930c",
    "per_block_compressed": "69aed52ef5d44d5e199fe86939eb9c66f61bef4c59a730a27f103a2c1de2707b",
}
"""What the reference implementations of generation 2 publish for these episodes."""

STEPS = 4


def generation_2_vectors(golden: Path) -> Iterator[Valid]:
    """The golden episodes in canonical form; their identities are published."""
    for name, published in PUBLISHED_IDENTITIES.items():
        old = contents_of(open_file((golden / f"golden_{name}.wshard").read_bytes()))
        told = json.loads(old["meta/episode"])
        rate = json.loads(old["meta/wshard"])["timebase"]["tick_hz"]
        length = told["length_T"]
        fields = episode_fields(length, episode_id=told["episode_id"], hz=rate)
        draft = Draft(length, episode=fields | {"env_id": told["env_id"]}, identity=1)
        draft.rows = json.loads(old["meta/channels"])["channels"]
        for block, content in old.items():
            if block.startswith("meta/"):
                continue
            entry = Entry(block, content)
            if name == "per_block_compressed" and block == "signal/obs":
                entry = Entry(block, content, flags=ZSTD, stored=plain_frame(content))
            elif name == "per_block_compressed" and block == "reward":
                size = len(content)
                content_again, packed = lz4_repeated(content[:4], size)
                if content_again == content:
                    entry = Entry(block, content, flags=LZ4, stored=packed)
            draft.blocks.append(entry)
        made = {entry.name_bytes.decode(): entry.content for entry in draft.entries()}
        found = sha256_hex(identity_text(made))
        if found != published:
            raise SystemExit(f"the identity of {name} is {found}, published is {published}")
        yield episode(
            f"generation_2_{name}",
            f"golden_{name} in canonical form; its identity is the published one.",
            ("S-IDN-1", "W-INF-1"),
            draft,
            {"id": told["episode_id"], "length": str(length), "timebase": {"tick_hz": rate}},
        )


def _spaced(value: object) -> bytes:
    """JSON as Python's standard library writes it."""
    return json.dumps(value).encode()


def _forms_of_descriptions() -> Iterator[Valid]:
    state = seen("signal/state", STATE, "f32", (4,))
    ctrl = seen("action/ctrl", ramp_f32(8), "f32", (2,))
    draft = Draft(STEPS, episode={"id": "old", "length_t": STEPS}, ticks=False)
    draft.wshard = None
    draft.add("signal/state", STATE, "f32", (4,))
    yield episode(
        "old_field_names",
        "id and length_t instead of episode_id and length_T, and no meta/wshard.",
        ("W-EPI-1", "W-EPI-2"),
        draft,
        {"id": "old", "length": "4", "env_id": "", "observations": {"state": state}},
    )
    both = {"id": "old", "episode_id": "new", "length_t": 99, "length_T": STEPS}
    yield episode(
        "both_field_names",
        "Old and new names side by side: the new ones count.",
        ("W-EPI-1", "W-EPI-2"),
        Draft(STEPS, episode=both).add("signal/state", STATE, "f32", (4,)),
        {"id": "new", "length": "4"},
    )
    draft = Draft(STEPS).add("signal/state", STATE).add("action/ctrl", ramp_f32(8))
    draft.add("signal/cam/rgb", bytes(12)).add("omen/state/m", STATE)
    draft.channels = {
        "signal/state": {"dtype": "f32", "shape": [4]},
        "action/ctrl": {"dtype": "float32", "shape": [2]},
        "signal/cam/rgb": {"dtype": "u8", "shape": [3], "modality": "rgb"},
        "omen/state/m": {"dtype": "f32", "shape": [4]},
        "signal/gone": {"dtype": "f32", "shape": None},
    }
    yield episode(
        "channels_as_map",
        "meta/channels is one object keyed by block.",
        ("W-CHN-1", "W-CHN-6"),
        draft,
        {
            "observations": {
                "state": state,
                "cam/rgb": seen("signal/cam/rgb", bytes(12), "u8", (3,)),
            },
            "actions": {"ctrl": ctrl},
            "omens": {"state": {"m": seen("omen/state/m", STATE, "f32", (4,))}},
        },
    )
    nothing: dict[str, JsonObject] = {"empty_list": {"channels": []}, "empty_object": {}}
    for name, channels in nothing.items():
        draft = Draft(STEPS, channels=channels).add("signal/state", STATE)
        yield episode(
            f"channels_{name}",
            "meta/channels describes nothing: the observation is inferred.",
            ("W-CHN-1", "W-INF-1"),
            draft,
            {"observations": {"state": state | {"inferred": True}}},
        )
    draft = base().add("omen/state/m", numbers("d", *range(8)))
    hint = {"block": "omen/state/m", "dtype": "f64", "shape": [2]}
    draft.wshard = {"omen_channels": [hint], "version": 1}
    yield episode(
        "omen_channels",
        "omen_channels of meta/wshard describes the omen.",
        ("W-INF-1",),
        draft,
        {"omens": {"state": {"m": seen("omen/state/m", numbers("d", *range(8)), "f64", (2,))}}},
    )
    spaces = [
        {"name": "action/grip", "dtype": "i16", "shape": [3]},
        {"name": "action/gone", "dtype": "u8", "shape": []},
    ]
    grip = numbers("h", *range(12))
    yield episode(
        "action_spaces",
        "action_spaces of meta/episode describes the action.",
        ("W-INF-1",),
        base(4, action_space="continuous", action_spaces=spaces).add("action/grip", grip),
        {"actions": {"grip": seen("action/grip", grip, "i16", (3,))}},
    )
    text = (
        b'\n {"length_T" : 4, "timebase":{"tick_hz":30.0,"type":"ticks"},\r\n\t'
        b'"episode_id":"a\\u003cb \\ud83e\\udd16","env_id":"\\/","metadata":{"x":1e2}} '
    )
    draft = base()
    draft.episode = text
    yield episode(
        "json_forms",
        "White space, escapes and other spellings of numbers in meta/episode.",
        ("W-JSN-1",),
        draft,
        {"id": "a<b 🤖", "env_id": "/", "length": "4", "metadata": {"x": 100.0}},
    )
    deep = b'{"episode_id":"ep","length_T":0,"x":' + b"[" * 127 + b"]" * 127 + b"}"
    yield episode(
        "json_depth_128",
        "Exactly 128 levels in meta/episode.",
        ("W-JSN-1",),
        Draft(0, episode=deep),
        {"length": "0"},
    )
    ranges: dict[str, tuple[str, list[int], list[str] | None]] = {
        "inclusive": ("both ends included", [10, 13], ["10", "13"]),
        "half_open": ("half-open, as in generation 1", [0, 4], ["0", "4"]),
        "unset": ("[0, 0] with four steps, which means unset", [0, 0], None),
    }
    for name, (what, stored, expected) in ranges.items():
        yield episode(
            f"timestep_range_{name}",
            f"timestep_range: {what}.",
            ("W-EPI-4",),
            base(4, timestep_range=stored),
            {"timestep_range": expected},
        )
    yield episode(
        "chunk_alone",
        "A chunk is an episode of its own.",
        ("W-EPI-4",),
        base(4, chunk_index=2, total_chunks=3, timestep_range=[8, 11]),
        {"chunk_index": "2", "total_chunks": "3", "timestep_range": ["8", "11"]},
    )
    yield episode(
        "chunk_fields_null",
        "Chunk fields that are null, and a total that is not known yet.",
        ("W-EPI-4",),
        base(4, chunk_index=7, total_chunks=0, timestep_range=None),
        {"chunk_index": "7", "total_chunks": "0", "timestep_range": None},
    )


def _older_names_beside() -> Valid:
    draft = base(4, id=7, length_t="four")
    return episode(
        "older_names_beside",
        "id and length_t beside episode_id and length_T: fields of the writer, of any type.",
        ("W-EPI-1", "W-EPI-2", "W-JSN-2"),
        draft,
        {"id": "ep", "length": "4"},
    )


def _python_form() -> Valid:
    channels = {
        "channels": [
            {
                "id": "state",
                "dtype": "f32",
                "shape": [4],
                "signal_block": "signal/state",
                "modality": "proprioception",
                "content_type_code": 1,
            },
            {"id": "ctrl", "dtype": "f32", "shape": [2], "signal_block": "action/ctrl"},
        ],
        "modality_groups": {"default": [{"channel_id": "state", "modality": "proprioception"}]},
    }
    wshard = {
        "wshard_version": "0.1",
        "format": "W-SHARD",
        "residual_encoding": "raw",
        "endianness": "little",
        "alignment": 32,
    }
    told = {
        "episode_id": "py_größe",
        "env_id": "Env-v0",
        "length_T": STEPS,
        "timebase": {"type": "ticks", "dt_ns": 16666666},
    }
    contents = {
        "action/ctrl": ramp_f32(8),
        "done": bytes(4),
        "meta/channels": _spaced(channels),
        "meta/episode": _spaced(told),
        "meta/wshard": _spaced(wshard),
        "reward": f32(0, 0, 0, 1),
        "signal/state": STATE,
        "time/ticks": i32(0, 1, 2, 3),
    }
    entries = tuple(Entry(name, content) for name, content in contents.items())
    return episode(
        "python_form",
        "As the Python writer leaves it: names sorted, alignment 32, flags 0, the last block padded.",
        ("S-DAT-6", "S-HDR-13", "W-TIM-1"),
        Container(entries, role=5, alignment=32, flags=0, name_terminator=b"", tail=bytes(16)),
        {
            "id": "py_größe",
            "timebase": {"tick_hz": 1e9 / 16666666},
            "observations": {"state": seen("signal/state", STATE, "f32", (4,))},
            "actions": {"ctrl": seen("action/ctrl", ramp_f32(8), "f32", (2,))},
            "terminations": {"hex": "00000000"},
            "ticks": ["0", "1", "2", "3"],
        },
    )


def _typescript_form() -> Valid:
    contents: dict[str, tuple[object, bytes | None]] = {
        "action/ctrl": (None, ramp_f32(8)),
        "done": (None, bytes(3) + b"\1"),
        "meta/channels": ({"channels": [{"id": "state", "dtype": "f32", "shape": [4]}]}, None),
        "meta/episode": (
            {
                "episode_id": "ts",
                "env_id": "Env-v0",
                "length_T": STEPS,
                "timebase": {"type": "ticks"},
                "action_space": "continuous",
            },
            None,
        ),
        "meta/wshard": ({"format": "W-SHARD", "version": "0.1", "residual_edges": "pad"}, None),
        "reward": (None, f32(0, 0, 0, 1)),
        "signal/state": (None, STATE),
    }
    entries = []
    for name, (value, data) in contents.items():
        content = json.dumps(value, separators=(",", ":")).encode() if data is None else data
        if name == "signal/state":
            stored = plain_frame(content)
            entries.append(Entry(name, content, flags=ENTRY_COMPRESSED, stored=stored))
        else:
            entries.append(Entry(name, content))

    def other_hashes(data: bytes) -> bytes:
        for number, entry in enumerate(entries):
            data = with_entry(data, number, name_hash=fnv1a64(entry.name_bytes))
        return data

    return valid(
        "episode_typescript_form",
        "As the TypeScript writer leaves it: no signal_block, actions not described, other hashes.",
        ("S-NAM-5", "S-CMP-1", "W-INF-1"),
        Container(
            tuple(entries),
            role=5,
            alignment=32,
            flags=0,
            compression_default=1,
            name_terminator=b"",
        ),
        lie=other_hashes,
        warnings=("name_hash_mismatch",),
        suffix=".wshard",
        episode={
            "timebase": {"tick_hz": 30},
            "observations": {"state": seen("signal/state", STATE, "f32", (4,))},
            "actions": {
                "ctrl": seen("action/ctrl", ramp_f32(8), "f32", (2,), inferred=True),
            },
        },
    )


def _go_form() -> Valid:
    wshard = (
        b'{"format":"W-SHARD","version":"0.1","timebase":{"type":"ticks","tick_hz":30,'
        b'"dt_ns":33333333},"residual_edges":"pad"}'
    )
    told = (
        b'{"episode_id":"go \\u003c1\\u003e","env_id":"Env-v0","length_T":4,"timebase":'
        b'{"type":"ticks","tick_hz":30,"dt_ns":33333333},"timestep_range":[0,0]}'
    )
    channels = (
        b'{"channels":[{"id":"state","dtype":"f32","shape":[4],"signal_block":"signal/state"},'
        b'{"id":"gain","dtype":"f32","shape":null,"signal_block":"signal/gain"}]}'
    )
    json_type = 2
    return episode(
        "go_form",
        "As the Go writer leaves it: NUL after names, null shape, empty reward and done.",
        ("S-NAM-7", "W-END-1"),
        Container(
            (
                Entry("meta/wshard", wshard, content_type=json_type),
                Entry("meta/episode", told, content_type=json_type),
                Entry("meta/channels", channels, content_type=json_type),
                Entry("signal/gain", ramp_f32(4)),
                Entry("signal/state", STATE),
                Entry("reward"),
                Entry("done"),
                Entry("uncert/state/m/std", STATE),
                Entry("omen/state/m", STATE),
            ),
            role=5,
            alignment=64,
        ),
        {
            "id": "go <1>",
            "timestep_range": None,
            "rewards": None,
            "terminations": None,
            "observations": {"gain": seen("signal/gain", ramp_f32(4))},
            "omens": {
                "state": {"m": seen("omen/state/m", STATE, "f32", (4,), inferred=True)},
            },
        },
    )


def _stream_form() -> Valid:
    channels = {
        "channels": [
            {"id": "state", "dtype": "f32", "shape": [4], "signal_block": "signal/state"},
            {"id": "grip", "dtype": "i16", "shape": [2], "signal_block": "signal/grip"},
        ]
    }
    grip = numbers("h", *range(8))
    told = {
        "episode_id": "stream",
        "env_id": "",
        "length_T": STEPS,
        "timebase": {"type": "ticks"},
    }
    contents = {
        "signal/state": STATE,
        "action/grip": grip,
        "reward": f32(0, 0, 0, 1),
        "done": bytes(4),
        "time/ticks": i32(10, 11, 12, 13),
        "meta/wshard": _spaced({"format": "W-SHARD", "streaming": True}),
        "meta/episode": _spaced(told),
        "meta/channels": _spaced(channels),
    }
    entries = [Entry(name, content, gap=b"") for name, content in contents.items()]
    order = (7, 6, 5, 0, 1, 2, 3, 4)
    return episode(
        "stream_form",
        "As the stream writers leave it: the action is described as a signal, blocks lie anywhere.",
        ("W-INF-1", "S-DAT-6", "S-IDX-2"),
        Container(
            tuple(entries),
            role=5,
            alignment=32,
            flags=0,
            name_terminator=b"",
            data_order=order,
            data_section_offset=1024,
        ),
        {
            "observations": {"state": seen("signal/state", STATE, "f32", (4,))},
            "actions": {"grip": seen("action/grip", grip, "i16", (2,), inferred=True)},
            "ticks": ["10", "11", "12", "13"],
        },
        warnings=("misaligned", "not_ascending"),
    )


def _undescribed() -> Iterator[Valid]:
    codes = i32(1, 2, 3, 4)
    wide_codes = i32(*range(8))
    image = byte_ramp(12)
    draft = (
        base()
        .add("signal/image", image, "u8", (3,))
        .add("signal/half", numbers("e", *range(8)), "f16", (2,))
        .add("signal/scalar", f32(1, 2, 3, 4))
        .add("signal/vector", ramp_f32(12))
        .add("signal/odd", b"12345")
        .add("action/vector", ramp_f32(8))
        .add("action/odd", byte_ramp(7))
        .add("omen/latent_action_codebook/m", codes)
        .add("omen/latent_action_codebook/wide", wide_codes)
        .add("omen/latent_action/m", ramp_f32(20))
        .add("omen/image/m", image)
        .add("omen/half/m", numbers("e", *range(8)))
        .add("omen/image/as_floats", ramp_f32(4))
        .add("omen/image/odd", b"123")
        .add("omen/nobody/m", ramp_f32(8))
        .add("uncert/image/m/std", ramp_f32(12))
        .add("uncert/half/m/std", numbers("e", *range(8)))
        .add("uncert/half/std", ramp_f32(4))
    )

    def guessed(
        block: str, data: bytes, dtype: str = "f32", shape: tuple[int, ...] = ()
    ) -> JsonObject:
        return seen(block, data, dtype, shape, inferred=True)

    def raw(block: str, data: bytes) -> JsonObject:
        return {
            "block": block,
            "dtype": "u8",
            "hex": data.hex(),
            "inferred": True,
            "time_axis": False,
        }

    half = numbers("e", *range(8))
    yield episode(
        "undescribed",
        "Blocks without rows: every inference of section 10.",
        ("W-INF-1",),
        draft,
        {
            "observations": {
                "image": seen("signal/image", image, "u8", (3,)),
                "scalar": guessed("signal/scalar", f32(1, 2, 3, 4)),
                "vector": guessed("signal/vector", ramp_f32(12), "f32", (3,)),
                "odd": raw("signal/odd", b"12345"),
            },
            "actions": {
                "vector": guessed("action/vector", ramp_f32(8), "f32", (2,)),
                "odd": raw("action/odd", byte_ramp(7)),
            },
            "omens": {
                "latent_action_codebook": {
                    "m": guessed("omen/latent_action_codebook/m", codes, "i32"),
                    "wide": guessed("omen/latent_action_codebook/wide", wide_codes, "i32", (2,)),
                },
                "latent_action": {
                    "m": guessed("omen/latent_action/m", ramp_f32(20), "f32", (5,)),
                },
                "image": {
                    "m": guessed("omen/image/m", image, "u8", (3,)),
                    "as_floats": guessed("omen/image/as_floats", ramp_f32(4)),
                    "odd": raw("omen/image/odd", b"123"),
                },
                "half": {"m": guessed("omen/half/m", half, "f16", (2,))},
                "nobody": {"m": guessed("omen/nobody/m", ramp_f32(8), "f32", (2,))},
            },
            "uncerts": {
                "image": {
                    "m": {"std": guessed("uncert/image/m/std", ramp_f32(12), "f32", (3,))},
                },
                "half": {
                    "m": {"std": guessed("uncert/half/m/std", half, "f16", (2,))},
                    "": {"std": guessed("uncert/half/std", ramp_f32(4), "f16", (2,))},
                },
            },
        },
    )
    hint = {"block": "omen/state/m", "dtype": "f64", "shape": [2]}
    spaces = [{"name": "action/a", "dtype": "i16", "shape": [3]}]
    draft = base(4, action_spaces=spaces).add("omen/state/m", STATE).add("action/a", ramp_f32(8))
    draft.wshard = {"omen_channels": [hint | {"shape": [3]}]}
    draft.rows.append({"dtype": "u8", "id": "a", "shape": [5], "signal_block": "signal/a"})
    yield episode(
        "undescribed_hints_do_not_fit",
        "omen_channels, action_spaces and a row of the same id whose sizes do not fit.",
        ("W-INF-1",),
        draft,
        {
            "omens": {"state": {"m": guessed("omen/state/m", STATE, "f32", (4,))}},
            "actions": {"a": guessed("action/a", ramp_f32(8), "f32", (2,))},
        },
    )
    longer, shorter, other = ramp_f32(10), ramp_f32(6), numbers("h", *range(8))
    draft = base().add("action/longer", longer).add("action/shorter", shorter)
    draft.add("action/other", other)
    draft.rows += [
        row_for("signal/longer", "f32", (2,)),
        row_for("signal/shorter", "f32", (2,), length=3),
        row_for("omen/other/m", "i16", (2,), id="other"),
    ]
    yield episode(
        "undescribed_actions",
        "Rows whose blocks are not there describe actions of T entries: not of T + 1, not of the length that they "
        "state, and whatever their lane.",
        ("W-INF-1", "W-BLK-2"),
        draft,
        {
            "actions": {
                "longer": raw("action/longer", longer),
                "shorter": raw("action/shorter", shorter),
                "other": guessed("action/other", other, "i16", (2,)),
            }
        },
    )
    more, codes = ramp_f32(10), i32(1, 2, 3, 4)
    draft = base().add("signal/more", more).add("omen/gone/m", codes)
    draft.rows.append({"dtype": "i32", "id": "gone", "shape": [], "signal_block": "signal/gone"})
    yield episode(
        "undescribed_without_help",
        "An omen whose signal has a row and is not in the file; T + 1 entries of two numbers.",
        ("W-INF-1", "W-CHN-6"),
        draft,
        {
            "observations": {"more": raw("signal/more", more)},
            "omens": {"gone": {"m": guessed("omen/gone/m", codes)}},
        },
    )


def old_episode_vectors() -> Iterator[Valid]:
    yield from _forms_of_descriptions()
    yield _older_names_beside()
    yield _python_form()
    yield _typescript_form()
    yield _go_form()
    yield _stream_form()
    yield from _undescribed()
