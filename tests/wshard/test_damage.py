"""Damaged and hostile episodes: a ShardError, or the data that was there; quickly, and in little memory.

Every way of storing is cut at every length, and the bytes of its descriptions, index and names are
flipped one by one. A full read that is checked must never give other values.
"""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardError, ShardReader
from shard_format.errors import BadMetadata
from tests.wshard.support import described, hand_made, ramp, save
from wshard import Channel, Episode, load_wshard
from wshard.chunked import ChunkedEpisodeWriter
from wshard.types import Intervals, RaggedChannel, Residual

if TYPE_CHECKING:
    from pathlib import Path

STORAGE: dict[str, dict[str, Any]] = {
    "raw": {},
    "one frame": {"compression": "zstd", "profile": "exchange"},
    "lz4": {"compression": "lz4"},
    "seekable": {"compression": "zstd", "steps_per_frame": 16},
    "filtered": {"compression": "zstd", "profile": "training", "steps_per_frame": 32},
}


def small_episode() -> Episode:
    """All kinds of blocks, each just large enough to be compressed."""
    steps = 80
    ep = Episode("e", length=steps, metadata={"k": [1, "ü"]})
    ep.observations["a"] = np.sin(ramp(steps, 2) // 8)
    ep.observations["t"] = ["same words"] * steps
    ep.observations["r"] = RaggedChannel(data=[ramp(n % 2, 2) for n in range(steps)])
    ep.observations["c"] = Channel(data=ramp(3), timestamps_ns=[1, 2, 3])
    ep.actions["b"] = ramp(steps) > 3
    ep.rewards = ramp(steps) // 9
    ep.terminations = ramp(steps) > 78
    ep.omens["a"]["m"] = ramp(steps, 2) // 9
    ep.residuals["a"] = Residual.of_signal("a", ramp(steps, 2))
    ep.labels["l"] = Intervals([(0, 3, "x")])
    ep.extras["aux/x"] = b"bytes"
    return ep


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("damage")
    return {
        name: save(small_episode(), folder / "a.wshard", **options).read_bytes()
        for name, options in STORAGE.items()
    }


def values_of(channel: Any) -> Any:  # noqa: ANN401 - bytes, or a list
    """The bytes of a channel, read in full."""
    if isinstance(channel, RaggedChannel):
        return channel.values.tobytes(), channel.offsets.tolist()
    return channel.data.tobytes()


def survives(data: bytes | bytearray) -> str | None:
    """None for a ShardError or right values; else what went wrong."""
    try:
        ep = load_wshard(data)
    except ShardError:
        return None
    right = small_episode()
    if ep.metadata != right.metadata or (ep.id, ep.length) != (right.id, right.length):
        return f"facts: {ep.id!r} {ep.length} {ep.metadata}"
    for name, channel in right.blocks():
        with contextlib.suppress(ShardError):
            found = ep.find(name)
            # Names have no checksum: where a description is not found, a channel says it was guessed.
            if not found.inferred and values_of(found) != values_of(channel):
                return f"{name} holds other values"
    reads: list[Any] = [
        lambda e: [e.ticks.tolist()],
        lambda e: [r.data.tobytes() for r in e.residuals.values()],
        lambda e: [list(lane) for lane in e.labels.values()],
        lambda e: [bytes(x) for n, x in e.extras.items() if n == "aux/x"],
    ]
    for read in reads:
        with contextlib.suppress(ShardError):
            seen, expected = read(ep), read(right)
            if seen and seen != expected:
                return f"{seen} instead of {expected}"
    return None


@pytest.mark.parametrize("storage", STORAGE)
def test_a_file_cut_at_any_length_is_refused(files: dict[str, bytes], storage: str) -> None:
    data = memoryview(files[storage])
    accepted = []
    for length in range(len(data)):
        try:
            load_wshard(data[:length])
        except ShardError:
            continue
        accepted.append(length)
    assert accepted == []


def flip_positions(data: bytes) -> list[int]:
    """Descriptions and the header fully, index, names and data sampled."""
    with ShardReader(data) as reader:
        end = reader.header.data_section_offset
        rows = dict(zip(reader.names(), reader.index, strict=True))
    positions = [*range(64), *range(64, end, 5)]
    for name in ("meta/episode", "meta/channels", "meta/wshard", "label/l"):
        start = int(rows[name]["data_offset"])
        positions += range(start, start + int(rows[name]["disk_size"]), 4)
    positions += range(end, len(data), max(1, (len(data) - end) // 150) | 1)
    return positions


@pytest.mark.parametrize("storage", STORAGE)
@pytest.mark.slow
def test_a_flipped_byte_is_an_error_or_harmless(files: dict[str, bytes], storage: str) -> None:
    data = bytearray(files[storage])
    wrong = []
    for position in flip_positions(files[storage]):
        flip = 0xFF if position % 2 else 0x01
        data[position] ^= flip
        problem = survives(data)
        data[position] ^= flip
        if problem is not None:
            wrong.append((position, problem))
    assert wrong == []


def all_touched(ep: Episode) -> None:
    """Everything that can be asked of an episode; each question may be refused."""
    questions: list[Any] = [
        lambda: ep.load(),
        lambda: ep.ticks,
        lambda: ep.timestamps_ns,
        lambda: ep.times_ns(),
        lambda: ep.dones,
        lambda: ep.align(),
        lambda: ep.clone(),
        lambda: ep.validate(),
        lambda: repr(ep),
    ]
    for name, channel in ep.blocks():
        questions += [
            lambda c=channel: c.data,
            lambda c=channel: c[0:3],
            lambda c=channel: c[0],
            lambda c=channel: c.timestamps_ns,
            lambda c=channel: c.nbytes,
            lambda c=channel: repr(c),
            lambda n=name: ep.times_ns(n),
        ]
    for question in questions:
        with contextlib.suppress(ShardError, IndexError):
            question()


BIG = 2**62
HOSTILE: dict[str, dict[str, Any]] = {
    "huge length": described(BIG, [{"id": "x", "dtype": "f32", "shape": []}]),
    "huge length, nothing to show": described(BIG, []),
    "huge length without elements": described(BIG, [{"id": "x", "dtype": "f32", "shape": [0]}]),
    "huge shape": described(1, [{"id": "x", "dtype": "f32", "shape": [BIG]}]),
    "huge product": described(3, [{"id": "x", "dtype": "f32", "shape": [2**32, 2**32]}]),
    "huge product with 0": described(3, [{"id": "x", "dtype": "f32", "shape": [2**40, 2**40, 0]}]),
    "huge own length": described(3, [{"id": "x", "dtype": "u8", "shape": [], "length": BIG}]),
    "huge ragged": described(
        BIG, [{"id": "x", "dtype": "u8", "shape": [], "layout": "ragged", "offsets_block": "o"}]
    ),
    "huge ragged items": described(
        1, [{"id": "x", "dtype": "u8", "shape": [0], "layout": "ragged", "offsets_block": "o"}]
    ),
    "text with its own offsets": described(
        0, [{"id": "x", "dtype": "u8", "layout": "text", "offsets_block": "signal/x"}]
    ),
    "clock of the slowest rate": described(
        3, [{"id": "x", "dtype": "u8", "shape": []}], timebase={"tick_hz": 5e-324}
    ),
    "clock of the latest time": described(
        3, [{"id": "x", "dtype": "u8", "shape": []}], timebase={"epoch_ns": 2**63 - 1}
    ),
    "regular clock of the slowest rate": described(
        3,
        [{"id": "x", "dtype": "u8", "start_ns": 2**62, "sampling_rate_hz": 1e-300, "length": 3}],
    ),
    "clock that is its channel": described(
        1, [{"id": "x", "dtype": "u8", "shape": [8], "time_block": "signal/x"}]
    ),
    "residual of a huge window": described(
        4,
        [
            {
                "id": "residual/x/delta_q",
                "signal_block": "residual/x/delta_q",
                "dtype": "f64",
                "shape": [],
                "window": BIG,
                "layout": "ragged",
            }
        ],
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_descriptions_take_neither_memory_nor_other_errors(case: str) -> None:
    blocks = {
        "signal/x": bytes(8),
        "o": np.array([0, BIG], "<i8").tobytes(),
        "residual/x/delta_q": bytes(4),
        "residual/x/delta_q/scales": bytes(4),
        "residual/x/sign2nddiff": bytes(4),
        "omen/x/m": bytes(24),
        "uncert/x/m/std": bytes(3),
        "action/y": bytes(5),
        "time/ticks": bytes(12),
        "reward": bytes(12),
        "done": bytes(3),
    }
    data = hand_made({**HOSTILE[case], **blocks})
    tracemalloc.start()
    try:
        with contextlib.suppress(ShardError):
            all_touched(load_wshard(data))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"episode_id":"x","length_T":1,"metadata":' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}",
        b'{"episode_id":"x","length_T":' + b"9" * 5000 + b"}",
        b'{"episode_id":"x","length_T":1e999}',
        b'{"episode_id":"x","length_T":1,"length_T":2}',
        b"\xff\xfe{\0}\0",
        b"",
        b"nul",
        b"\0" * 1000,
    ],
)
def test_hostile_json_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(BadMetadata) as caught:
        load_wshard(hand_made({"meta/episode": text}))
    assert caught.value.entry == "meta/episode"
    rows: dict[str, Any] = {
        "meta/episode": {"episode_id": "x", "length_T": 1},
        "meta/channels": text,
    }
    with contextlib.suppress(ShardError):
        all_touched(load_wshard(hand_made(rows)))


WRONG: list[Any] = [None, True, -1, 0, 1.5, "x", "", [], {}, [1], {"a": 1}, 2**63, 2**70, "\0"]
ROW_FIELDS = (
    *("id", "signal_block", "dtype", "shape", "length", "layout", "offsets_block", "time_block"),
    *("start_ns", "sampling_rate_hz", "modality", "unit", "lossy", "channel", "model", "type"),
    *("window", "horizon", "description", "semantics", "content_type"),
)
FACTS = (
    *("episode_id", "env_id", "length_T", "timebase", "metadata", "chunk_index", "total_chunks"),
    *("timestep_range", "action_spaces"),
)


def touched(entries: dict[str, Any]) -> None:
    with contextlib.suppress(ShardError):
        all_touched(load_wshard(hand_made(entries)))


@pytest.mark.parametrize("field", ROW_FIELDS)
@pytest.mark.parametrize(
    "block",
    [
        "signal/x",
        *(
            pytest.param(block, marks=pytest.mark.slow)
            for block in ("omen/x/m", "residual/x/delta_q", "reward", "aux/x")
        ),
    ],
)
def test_any_value_in_any_field_of_a_row_is_taken_or_refused(field: str, block: str) -> None:
    for value in WRONG:
        row = {"id": "x", "dtype": "u8", "shape": [], "signal_block": block, field: value}
        blocks = {"signal/x": bytes(2), "offsets/signal/x": bytes(24), block: bytes(8)}
        touched({**described(2, [row]), **blocks, block + "/scales": bytes(4)})


@pytest.mark.parametrize("field", FACTS)
def test_any_value_in_any_field_of_the_episode_is_taken_or_refused(field: str) -> None:
    for value in WRONG:
        touched(
            {
                "meta/episode": {"episode_id": "x", "length_T": 2, field: value},
                "reward": b"12345678",
            }
        )
    for key in ("type", "tick_hz", "dt_ns", "epoch_ns"):
        for value in WRONG:
            touched({"meta/episode": {"episode_id": "x", "length_T": 2, "timebase": {key: value}}})


@pytest.mark.parametrize(
    "field", ["intervals", "unit", "start", "end", "text", "source", "confidence"]
)
def test_any_value_in_any_field_of_a_label_is_taken_or_refused(field: str) -> None:
    for value in WRONG:
        row = {"start": 0, "end": 1, "text": "x"}
        label: dict[str, Any] = {"intervals": [row]}
        (label if field in ("intervals", "unit") else row)[field] = value
        entries = {**described(2, []), "label/l": label}
        ep = load_wshard(hand_made(entries))
        with contextlib.suppress(ShardError):
            assert len(list(ep.labels["l"])) in (0, 1)


def test_damaged_manifests_and_chunks_are_refused(tmp_path: Path) -> None:
    writer = ChunkedEpisodeWriter(tmp_path, "ep", 2, fsync=False)
    writer.write_episode(Episode("ep", actions={"a": ramp(5)}))
    manifest = tmp_path / "ep_manifest.wshard"
    writer.finalize_manifest()
    for path in (manifest, tmp_path / "ep_chunk_0001.wshard"):
        whole = path.read_bytes()
        for position in range(0, len(whole), 7):
            damaged = bytearray(whole)
            damaged[position] ^= 0xFF
            path.write_bytes(damaged)
            with contextlib.suppress(ShardError):
                assert load_wshard(manifest).actions["a"].data.tolist() == [0, 1, 2, 3, 4]
        path.write_bytes(whole)
    text = ShardReader(manifest)["meta/manifest"]
    fields = json.loads(text)
    for key in ("episode_id", "env_id", "total_chunks", "total_timesteps", "chunks"):
        for value in WRONG:
            data = hand_made({"meta/manifest": {**fields, key: value}})
            (tmp_path / "bad_manifest.wshard").write_bytes(data[:5] + b"\x04" + data[6:])
            with contextlib.suppress(ShardError):
                load_wshard(tmp_path / "bad_manifest.wshard").load()
