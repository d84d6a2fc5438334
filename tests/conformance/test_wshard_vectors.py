"""The library's episodes against spec/vectors: valid ones hold what they hold, invalid ones fail as told."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format import ShardError
from tests.conformance.program import touch
from tests.each import for_each
from wshard import load_wshard
from wshard._video_index import HIDDEN, KEYFRAME
from wshard.doctor import examine
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import ArrayLike

    from wshard import Channel, Episode
    from wshard.types import Intervals, Residual

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
SETS = sorted((VECTORS / "valid_episodes").glob("*.json"))
SINGLE_LANES = ("rewards", "terminations", "truncations", "ticks", "timestamps_ns")
NOT_EXTRA = {"meta/provenance", "meta/identity"}


def load(description: Path) -> tuple[dict[str, Any], Path]:
    case: dict[str, Any] = json.loads(description.read_text("utf-8"))
    return case, description.parent / case["file"]


VALID = [path for path in sorted((VECTORS / "valid").glob("*.json")) if "episode" in load(path)[0]]
# Without Pillow nothing can be said about W-VID-6, which is about decoding; its vectors are PNG.
INVALID = [
    path
    for path in sorted((VECTORS / "invalid_episodes").glob("*.json"))
    if load(path)[0]["rule"] != "W-VID-6" or importlib.util.find_spec("PIL")
]
BY_STEP = {
    step: [path for path in INVALID if load(path)[0]["when"] == step]
    for step in ("open", "touch", "check")
}


def codes_found(path: Path) -> set[str]:
    return {finding.code for finding in examine(path).findings}


def stored_bytes(data: ArrayLike, dtype: str) -> bytes:
    """The bytes of an array as the format stores them."""
    array = np.ascontiguousarray(data)
    if dtype == "bool":
        return bytes(int(byte != 0) for byte in array.tobytes())
    if dtype == "bf16" and array.dtype.itemsize == 4:  # widened: the upper half is the value
        return (array.view(np.uint32) >> 16).astype("<u2").tobytes()
    return array.tobytes()


def assert_bytes(data: bytes, case: dict[str, Any]) -> None:
    if "hex" in case:
        assert data.hex() == case["hex"]
    else:
        assert hashlib.sha256(data).hexdigest() == case["sha256"]


def integers(values: Iterable[int] | None) -> list[str] | None:
    return None if values is None else [str(int(value)) for value in values]


def assert_clock(channel: Channel, case: dict[str, Any]) -> None:
    horizon = case.get("horizon")
    assert channel.horizon == (None if horizon is None else int(horizon))
    rate = case.get("sampling_rate_hz")
    assert channel.sampling_rate_hz == (None if rate is None else pytest.approx(rate))
    start = case.get("start_ns")
    assert channel.start_ns == (None if start is None else int(start))
    times = integers(channel.timestamps_ns)
    if "timestamps_ns" in case:
        assert times == case["timestamps_ns"]
    elif "times_ns" in case and times is not None:
        assert times == case["times_ns"]


def assert_video(channel: VideoChannel, case: dict[str, Any]) -> None:
    index = channel.index
    ends = [*channel.offsets.tolist()]
    stored = channel.stored_array().tobytes()
    assert [stored[a:b].hex() for a, b in pairwise(ends)] == case["packets"]
    assert integers(index.steps) == case["steps"]
    assert [bool(flags & KEYFRAME) for flags in index.flags] == case["keyframes"]
    assert [bool(flags & HIDDEN) for flags in index.flags] == case["hidden"]
    assert channel.content_type == case["content_type"]
    assert base64.b64encode(channel.extradata).decode() == case["extradata"]
    if "frames" in case and has_decoder(case["content_type"]):
        assert [frame.tobytes().hex() for frame in channel.data] == case["frames"]


def has_decoder(content_type: str) -> bool:
    package = "PIL" if content_type.startswith("image/") else "av"
    return importlib.util.find_spec(package) is not None


def assert_channel(channel: Channel, case: dict[str, Any]) -> None:
    assert channel.block == case["block"]
    assert channel.dtype_name.value == case["dtype"]
    assert channel.inferred is case["inferred"]
    if not case.get("time_axis", True):  # only the bytes are known
        assert_bytes(stored_bytes(channel.data, "u8"), case)
        return
    shape = tuple(int(size) for size in case["shape"])
    assert channel.step_shape == shape
    assert channel.length == int(case["length"])
    assert_clock(channel, case)
    if case["layout"] == "video":
        assert isinstance(channel, VideoChannel)
        assert_video(channel, case)
    elif case["layout"] == "text":
        assert list(channel.data) == case["text"]
    elif case["layout"] == "ragged":
        steps = [stored_bytes(step, case["dtype"]).hex() for step in channel.data]
        assert steps == case["items"]
        assert all(np.asarray(step).shape[1:] == shape for step in channel.data)
    else:
        assert channel.data.shape == (int(case["length"]), *shape)
        assert_bytes(stored_bytes(channel.data, case["dtype"]), case)


def assert_ends(channel: Channel, case: dict[str, Any]) -> None:
    assert channel.block == case["block"]
    assert channel.length == int(case["length"])
    assert stored_bytes(channel.data, "bool").hex() == case["hex"]


def assert_residual(residual: Residual, case: dict[str, Any]) -> None:
    assert residual.channel_id == case["channel"]
    assert (residual.model or "") == case["model"]
    assert residual.type == case["type"]
    assert_bytes(np.asarray(residual.data).tobytes(), case)
    scales = residual.scales
    assert (None if scales is None else np.asarray(scales).tobytes().hex()) == case["scales"]
    if case["window"] is not None:
        assert residual.window == int(case["window"])


def assert_labels(label: Intervals, case: dict[str, Any]) -> None:
    assert label.unit == case["unit"]
    found = [
        {
            "confidence": interval.confidence,
            "end": str(interval.end),
            "source": interval.source or None,
            "start": str(interval.start),
            "text": interval.text,
        }
        for interval in label
    ]
    assert found == case["intervals"]


def assert_head(episode: Episode, case: dict[str, Any], *, is_whole_file: bool) -> None:
    assert episode.id == case["id"]
    assert episode.env_id == case["env_id"]
    assert episode.length == int(case["length"])
    assert dict(episode.metadata) == case["metadata"]
    timebase = case["timebase"]
    assert episode.timebase.type == timebase["type"]
    if timebase["tick_hz"] is None:
        assert episode.timebase.tick_hz is None
    else:
        assert episode.timebase.tick_hz == pytest.approx(timebase["tick_hz"], rel=1e-12)
    assert (episode.timebase.epoch_ns or 0) == int(timebase["epoch_ns"])
    if not is_whole_file:
        return
    for field in ("chunk_index", "total_chunks"):
        expected = case[field]
        assert getattr(episode, field) == (None if expected is None else int(expected))
    steps = case["timestep_range"]
    expected_range = None if steps is None else tuple(int(step) for step in steps)
    assert episode.timestep_range == expected_range


def assert_lanes(episode: Episode, case: dict[str, Any]) -> None:
    for lane in ("observations", "actions"):
        assert set(getattr(episode, lane)) == set(case[lane])
        for name, told in case[lane].items():
            assert_channel(getattr(episode, lane)[name], told)
    assert {c: set(episode.omens[c]) for c in episode.omens} == {
        c: set(models) for c, models in case["omens"].items()
    }
    for channel, models in case["omens"].items():
        for model, told in models.items():
            assert_channel(episode.omens[channel][model], told)
    assert set(episode.uncerts) == set(case["uncerts"])
    for channel, models in case["uncerts"].items():
        assert set(episode.uncerts[channel]) == set(models)
        for model, types in models.items():
            assert set(episode.uncerts[channel][model]) == set(types)
            for kind, told in types.items():
                assert_channel(episode.uncerts[channel][model][kind], told)


def is_absent(channel: Channel | None, episode: Episode) -> bool:
    """Without steps, an empty block and none are the same."""
    return channel is None or (episode.length == 0 and channel.length == 0)


def assert_other_lanes(episode: Episode, case: dict[str, Any]) -> None:
    for lane in ("terminations", "truncations"):
        assert is_absent(getattr(episode, lane), episode) == (case[lane] is None)
        if case[lane] is not None:
            assert_ends(getattr(episode, lane), case[lane])
    rewards = episode.rewards
    assert is_absent(rewards, episode) == (case["rewards"] is None)
    if rewards is not None and case["rewards"] is not None:
        assert_channel(rewards, case["rewards"])
    steps = case["ticks"] or [str(step) for step in range(episode.length)]
    assert integers(episode.ticks) in ([None, steps] if case["ticks"] is None else [steps])
    assert integers(episode.timestamps_ns) == case["timestamps_ns"]
    assert set(episode.residuals) == set(case["residuals"])
    for key, told in case["residuals"].items():
        assert_residual(episode.residuals[key], told)
    assert set(episode.labels) == set(case["labels"])
    for name, told in case["labels"].items():
        assert_labels(episode.labels[name], told)
    assert set(episode.extras) - NOT_EXTRA == set(case["extras"])
    for name, digest in case["extras"].items():
        assert hashlib.sha256(bytes(episode.extras[name])).hexdigest() == digest


def test_there_are_as_many_vectors_as_promised() -> None:
    assert len(VALID) >= 35
    assert len(SETS) >= 5
    assert len(INVALID) >= 60
    assert sum(map(len, BY_STEP.values())) == len(INVALID)


class TestValid:
    @for_each("description", [*VALID, *SETS])
    def test_it_says_who_and_when_it_is(self, description: Path) -> None:
        case, path = load(description)
        is_manifest = path.stem.endswith("_manifest")
        assert_head(load_wshard(path), case["episode"], is_whole_file=not is_manifest)

    @for_each("description", [*VALID, *SETS])
    def test_channels_are_as_described(self, description: Path) -> None:
        case, path = load(description)
        assert_lanes(load_wshard(path), case["episode"])

    @for_each("description", [*VALID, *SETS])
    def test_the_other_lanes_are_as_described(self, description: Path) -> None:
        case, path = load(description)
        assert_other_lanes(load_wshard(path), case["episode"])

    @for_each("description", [*VALID, *SETS])
    def test_a_checking_tool_finds_no_error(self, description: Path) -> None:
        _, path = load(description)
        assert [str(finding) for finding in examine(path).errors] == []


def lane_at(episode: Episode, path: list[str]) -> object:
    lane: Any = getattr(episode, path[0])
    for key in path[1:]:
        lane = lane[key]
    return lane


def all_lanes(episode: Episode) -> Iterator[list[str]]:
    """Where every lane is, as the vectors name it."""
    # The ticks of an episode that has none are computed: not for lengths that a file merely claims.
    singles = SINGLE_LANES if episode.length < 1 << 20 else SINGLE_LANES[:3]
    yield from ([name] for name in singles)
    for name in ("observations", "actions", "residuals", "labels"):
        yield from ([name, key] for key in getattr(episode, name))
    for channel in episode.omens:
        yield from (["omens", channel, model] for model in episode.omens[channel])
    for channel in episode.uncerts:
        for model in episode.uncerts[channel]:
            for kind in episode.uncerts[channel][model]:
                yield ["uncerts", channel, model, kind]


def assert_told(error: ShardError, case: dict[str, Any]) -> None:
    assert error.code in {case["error"], *case.get("also", ())}, str(error)
    if error.code == "chunk_discontinuity":
        # A manifest that breaks one of these breaks another: any may be named.
        assert str(error.rule).startswith("W-CHK-"), str(error)
    elif error.code == case["error"]:
        assert error.rule in {case["rule"], *case.get("rules_also", ())}, str(error)


@for_each("description", BY_STEP["open"])
def test_an_invalid_episode_is_refused_when_it_is_opened(description: Path) -> None:
    case, path = load(description)
    with pytest.raises(ShardError) as caught:
        load_wshard(path, sidecars="strict")
    assert_told(caught.value, case)
    assert str(path.parent) in str(caught.value)


class TestTouch:
    @for_each("description", BY_STEP["touch"])
    def test_a_bad_lane_fails_when_it_is_touched(self, description: Path) -> None:
        case, path = load(description)
        episode = load_wshard(path)
        with pytest.raises(ShardError) as caught:
            touch(lane_at(episode, case["touch"]))
        assert_told(caught.value, case)
        assert str(path) in str(caught.value)

    @for_each("description", BY_STEP["touch"])
    def test_the_other_lanes_stay_readable(self, description: Path) -> None:
        case, path = load(description)
        episode = load_wshard(path)
        for place in all_lanes(episode):
            if place != case["touch"]:
                touch(lane_at(episode, place))

    @for_each("description", BY_STEP["touch"])
    def test_a_checking_tool_finds_it(self, description: Path) -> None:
        case, path = load(description)
        assert case["error"] in codes_found(path)


@for_each("description", BY_STEP["check"])
def test_a_checking_tool_finds_what_readers_pass_over(description: Path) -> None:
    case, path = load(description)
    assert case["error"] in codes_found(path)
