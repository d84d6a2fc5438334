"""What must hold for any episode, found by Hypothesis; the examples are the same in every run."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wshard.support import assert_same, bits, facts_of, noise_array, ramp, save
from wshard import Channel, DType, Episode, Timebase, load_wshard
from wshard.chunked import ChunkedEpisodeWriter, validate_chunk_continuity
from wshard.editing import differences, merge_episodes, slice_episode, split_episode
from wshard.identity import episode_identity
from wshard.types import FileOptions, Intervals, Modality, RaggedChannel, Residual, TextChannel

if TYPE_CHECKING:
    from pathlib import Path

few = settings(max_examples=20)
# No text is the start of another, so that blocks of different lanes never get the same name.
NAMES = ("a", "state", "arm/pose", "käse", "x y", "..b", "日本", "Z")
MODELS = ("dreamer", "m.1", "ünder")
SHAPES = ((), (1,), (3,), (0,), (2, 3), (2, 0, 2), (1, 1, 1, 1))
WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
COMPRESSIONS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "zstd"},
    {"compression": "lz4"},
    {"compression": "auto"},
    {"compression": {"signal/*": "zstd:1", "action/*": "lz4", "*": "none"}, "steps_per_frame": 2},
    {"compression": "zstd", "steps_per_frame": 3},
    {"profile": "training"},
    {"profile": "training", "compression": "zstd:5", "steps_per_frame": {"signal/*": 4}},
    {"profile": "exchange"},
)
compressions = st.sampled_from(COMPRESSIONS)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    # A larger one is read as the integer that it looks like.
    | st.floats(-(2.0**53) + 1, 2.0**53 - 1)
    | WORDS,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(WORDS, children, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(WORDS, json_values, max_size=3)
nanoseconds = st.integers(-(10**18), 10**18)


@st.composite
def arrays(draw: st.DrawFn, length: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Channel:
    """A dense channel of any dtype: any bits, or numbers that compress."""
    dtype = draw(st.sampled_from(list(DType)))
    shape = draw(st.sampled_from(shapes))
    stored = np.dtype("u2") if dtype is DType.BFLOAT16 else dtype.numpy_dtype
    if dtype is DType.BOOL:
        data = noise_array(length, *shape, dtype="u1", seed=draw(st.integers(0, 9))) > 99
    elif draw(st.booleans()):
        data = noise_array(length, *shape, dtype=stored.str, seed=draw(st.integers(0, 9)))
    else:
        data = ramp(length, *shape, dtype="u1").astype(stored)
    if draw(st.booleans()) and dtype is not DType.BOOL:
        data = data.astype(stored.newbyteorder(">"))
    return Channel(
        dtype=dtype,
        data=data,
        horizon=draw(st.sampled_from([None, shape[0]])) if shape and shape[0] else None,
        unit=draw(WORDS),
        description=draw(WORDS),
        semantics=draw(WORDS),
        modality=draw(st.none() | st.sampled_from(list(Modality)) | st.just("smell")),
        content_type=draw(st.none() | st.just("image/raw")),
        sampling_rate_hz=draw(st.none() | st.floats(0.5, 5000)),
        lossy=draw(st.none() | st.just({"codec": "jpeg", "max_error": 3})),
        extra=draw(st.just({}) | st.builds(lambda v: {"x_note": v}, json_values)),
    )


@st.composite
def observations(draw: st.DrawFn, length: int) -> Channel:
    """Any kind of channel that may be an observation of `length` steps."""
    kind = draw(st.sampled_from(["dense", "dense", "longer", "clock", "regular", "text", "ragged"]))
    if kind == "clock":
        count = draw(st.integers(0, 9))
        channel = draw(arrays(count))
        times = sorted(draw(st.lists(nanoseconds, min_size=count, max_size=count)))
        channel.timestamps_ns = np.array(times, np.int64)
        return channel
    if kind == "regular":
        channel = draw(arrays(draw(st.integers(0, 9))))
        channel.start_ns, channel.sampling_rate_hz = draw(nanoseconds), draw(st.floats(1, 1000))
        return channel
    count = length + draw(st.integers(0, 1))
    if kind == "text":
        return TextChannel(data=draw(st.lists(WORDS, min_size=count, max_size=count)), unit="words")
    if kind == "ragged":
        item = draw(st.sampled_from([(), (2,), (0,)]))
        counts = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        return RaggedChannel(
            dtype=draw(st.sampled_from(["f32", "i64", "u8", "bool"])),
            shape=item,
            data=[ramp(n, *item, dtype="u1") % 2 for n in counts],
        )
    return draw(arrays(count if kind == "longer" else length))


@st.composite
def residuals(draw: st.DrawFn, name: str, length: int) -> Residual:
    signal = ramp(length, *draw(st.sampled_from([(), (2,)])))
    signal = np.sin(signal * draw(st.integers(1, 9)))
    kind = draw(st.sampled_from(["sign2nddiff", "delta_q"]))
    window = draw(st.integers(1, 5))
    if draw(st.booleans()):
        return Residual.of_error(name, signal, signal / 2, "dreamer", kind, window=window)
    return Residual.of_signal(name, signal, kind, window=window)


@st.composite
def labels(draw: st.DrawFn, length: int) -> Intervals:
    rows = []
    # Different texts: what two neighbours with the same text were cannot be told after a cut.
    for text in draw(st.lists(WORDS, max_size=3, unique=True)):
        start = draw(st.integers(-2, length + 2))
        end = draw(st.integers(start, length + 3))
        source = draw(st.sampled_from(["", "human"]))
        rows.append((start, end, text, source, draw(st.none() | st.floats(0, 1))))
    return Intervals(rows, unit=draw(st.sampled_from(["steps", "ns"])))


@st.composite
def episodes(draw: st.DrawFn, min_length: int = 0) -> Episode:
    """Any episode: every lane, dtype, shape and clock, or none."""
    length = draw(st.integers(min_length, 9))
    ep = Episode(
        draw(st.sampled_from(["ep", "ép 1", "x/y"])),
        env_id=draw(WORDS),
        metadata=draw(objects),
        timebase=Timebase(tick_hz=draw(st.floats(0.1, 2000)), epoch_ns=draw(nanoseconds)),
        provenance=draw(st.none() | st.just({"run_id": "7", "epoch": -3})),
    )
    ep.length = length
    some_names = st.lists(st.sampled_from(NAMES), max_size=3, unique=True)
    for name in draw(some_names):
        ep.observations[name] = draw(observations(length))
    for name in draw(some_names):
        ep.actions[name] = draw(arrays(length))
    if draw(st.booleans()):
        dtype = draw(st.sampled_from(["f4", "f8", "i8", "u1"]))
        ep.rewards = noise_array(length, dtype="i2", seed=draw(st.integers(0, 9))).astype(dtype) / (
            1 if dtype in ("i8", "u1") else 3
        )
    if draw(st.booleans()):
        ep.terminations = noise_array(length, dtype="u1") > draw(st.integers(0, 255))
    if draw(st.booleans()):
        ep.truncations = noise_array(length, dtype="u1", seed=1) > draw(st.integers(0, 255))
    if draw(st.booleans()):
        ep.ticks = np.arange(length) * 2 + draw(st.integers(-5, 5))
    if draw(st.booleans()):
        times = draw(st.lists(nanoseconds, min_size=length, max_size=length, unique=True))
        ep.timestamps_ns = np.array(sorted(times), np.int64)
    for name in draw(some_names):
        ep.omens[name][draw(st.sampled_from(MODELS))] = draw(observations(length))
    for name in draw(some_names):
        kind = draw(st.sampled_from(["std", "variance"]))
        ep.uncerts[name][draw(st.sampled_from(MODELS))][kind] = draw(arrays(length))
    for name in draw(some_names) if length else ():
        ep.residuals[name] = draw(residuals(name, length))
    for name in draw(some_names):
        ep.labels[name] = draw(labels(length))
    if draw(st.booleans()):
        ep.extras["aux/bytes"] = draw(st.binary(max_size=20))
    if draw(st.booleans()):
        ep.extras["aux/array"] = draw(arrays(length))
    return ep


class TestRoundTrip:
    """load(save(x)) == x, whatever the storage."""

    @given(ep=episodes(), options=compressions)
    def test_what_is_saved_is_loaded_to_the_last_bit(
        self, tmp_path: Path, ep: Episode, options: dict[str, Any]
    ) -> None:
        path = save(ep, tmp_path / "a.wshard", **options)
        assert_same(load_wshard(path), ep)
        assert_same(load_wshard(path.read_bytes()).load(), ep)

    @given(ep=episodes(), options=compressions)
    def test_loading_and_saving_again_gives_the_same_bytes(
        self, tmp_path: Path, ep: Episode, options: dict[str, Any]
    ) -> None:
        path = save(ep, tmp_path / "a.wshard", **options)
        untouched = save(load_wshard(path), tmp_path / "b.wshard", **options)
        assert untouched.read_bytes() == path.read_bytes()
        touched = save(load_wshard(path).load(), tmp_path / "c.wshard", **options)
        assert touched.read_bytes() == path.read_bytes()
        kept = save(load_wshard(path), tmp_path / "d.wshard", "keep")
        assert kept.read_bytes() == path.read_bytes()

    @given(ep=episodes(), options=compressions)
    def test_the_identity_is_that_of_the_content(
        self, tmp_path: Path, ep: Episode, options: dict[str, Any]
    ) -> None:
        path = save(ep, tmp_path / "a.wshard", **options, options=FileOptions(identity=True))
        wanted = str(episode_identity(ep))
        assert str(episode_identity(path)) == wanted
        assert str(episode_identity(load_wshard(path))) == wanted
        assert str(episode_identity(ep.clone())) == wanted

    @given(ep=episodes())
    def test_a_pickle_and_a_clone_are_the_same_episode(self, tmp_path: Path, ep: Episode) -> None:
        loaded = load_wshard(save(ep, tmp_path / "a.wshard", "zstd"))
        for copy in (pickle.loads(pickle.dumps(loaded)), loaded.clone(), ep.clone()):
            assert_same(copy, ep)
        assert differences(loaded, ep.clone()) == []

    @given(ep=episodes(), data=st.data())
    def test_the_order_of_assignments_does_not_matter(
        self, tmp_path: Path, ep: Episode, data: st.DataObject
    ) -> None:
        path = save(ep, tmp_path / "a.wshard")
        other = ep.mapped(lambda channel: channel)
        for lane in (other.observations, other.actions, other.omens, other.labels, other.extras):
            items = data.draw(st.permutations(list(lane.to_dict().items())))
            lane.clear()
            for name, value in items:
                lane[name] = value
        assert save(other, tmp_path / "b.wshard").read_bytes() == path.read_bytes()


class TestWindows:
    """channel[a:b] is array[a:b]."""

    @few
    @given(ep=episodes(), options=compressions, data=st.data())
    def test_any_slice_of_a_lazy_channel_is_the_slice_of_its_array(
        self, tmp_path: Path, ep: Episode, options: dict[str, Any], data: st.DataObject
    ) -> None:
        path = save(ep, tmp_path / "a.wshard", **options)
        edges = st.none() | st.integers(-12, 12)
        for name, channel in load_wshard(path).blocks():
            wanted = load_wshard(path).find(name).data
            key = slice(
                data.draw(edges), data.draw(edges), data.draw(st.sampled_from([None, 2, -1]))
            )
            found = channel[key]
            if isinstance(channel, RaggedChannel):
                assert list(map(bits, map(np.array, found))) == list(
                    map(bits, map(np.array, wanted[key]))
                )
                continue
            assert (found.shape, found.dtype) == (wanted[key].shape, wanted.dtype)
            assert bits(found) == bits(wanted[key])
            if len(wanted):
                number = data.draw(st.integers(-len(wanted), len(wanted) - 1))
                assert bits(load_wshard(path).find(name)[number]) == bits(wanted[number])


def without_times(facts: dict[str, Any]) -> dict[str, Any]:
    """What cutting and joining must keep; the order of labels and the windows of scales may change."""
    facts = dict(facts)
    facts["labels"] = {
        name: (unit, extra, sorted(items, key=lambda item: (item.start, item.end, item.text)))
        for name, (unit, extra, items) in facts["labels"].items()
    }
    facts["residuals"] = {key: value[0] for key, value in facts["residuals"].items()}
    for key in ("id", "metadata", "chunk"):
        del facts[key]
    return facts


class TestCutting:
    """Parts are parts, and together they are the whole."""

    @given(ep=episodes(), data=st.data())
    def test_a_slice_has_the_steps_it_was_asked_for(self, ep: Episode, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, ep.length))
        stop = data.draw(st.integers(start, ep.length))
        part = slice_episode(ep, start, stop)
        part.validate()
        assert part.length == stop - start
        assert part.ticks.tolist() == ep.ticks[start:stop].tolist()
        for name, channel in ep.blocks():
            found = part.find(name)
            if channel.has_own_clock:
                continue
            extra = channel.length - ep.length
            wanted = channel[start : stop + extra]
            if isinstance(channel, RaggedChannel):
                assert [bits(np.array(item)) for item in found] == [
                    bits(np.array(item)) for item in wanted
                ]
            else:
                assert bits(found.data) == bits(wanted)

    @few
    @given(ep=episodes(), data=st.data())
    def test_a_slice_of_a_slice_is_a_slice(self, ep: Episode, data: st.DataObject) -> None:
        a, b, c, d = sorted(data.draw(st.integers(0, ep.length)) for _ in range(4))
        once = slice_episode(ep, b, c, id="x")
        twice = slice_episode(slice_episode(ep, a, d, id="x"), b - a, c - a, id="x")
        for key in ("observations", "actions", "rewards", "ends", "ticks", "stamps", "omens"):
            if key in ("observations", "omens") and ep.timestamps_ns is None:
                continue  # clocks of their own are cut at times that are rounded
            assert facts_of(once)[key] == facts_of(twice)[key], key

    @given(ep=episodes(min_length=1), steps=st.integers(1, 10))
    def test_parts_together_are_the_whole(self, ep: Episode, steps: int) -> None:
        parts = split_episode(ep, steps=steps)
        assert [part.length for part in parts] == [
            min(steps, ep.length - start) for start in range(0, ep.length, steps)
        ]
        whole = merge_episodes(parts)
        whole.validate()
        found, wanted = without_times(facts_of(whole)), without_times(facts_of(ep))
        for lane, facts in wanted.items():
            assert found[lane] == facts, lane

    @few
    @given(ep=episodes(), steps=st.integers(1, 10), options=compressions)
    def test_chunks_read_as_the_whole(
        self, tmp_path: Path, ep: Episode, steps: int, options: dict[str, Any]
    ) -> None:
        options = {key: value for key, value in options.items() if key != "steps_per_frame"}
        writer = ChunkedEpisodeWriter(tmp_path / "chunks", "long", steps, fsync=False, **options)
        writer.write_episode(ep)
        manifest = writer.finalize_manifest()
        validate_chunk_continuity(manifest)
        whole = load_wshard(manifest)
        found, wanted = without_times(facts_of(whole)), without_times(facts_of(ep))
        for lane, facts in wanted.items():
            assert found[lane] == facts, lane
        assert whole.metadata == ep.metadata
        for name, channel in load_wshard(manifest).blocks():
            if not isinstance(channel, RaggedChannel) and name.startswith(("signal/", "action/")):
                assert bits(channel[1:-1]) == bits(ep.find(name).data[1:-1])
