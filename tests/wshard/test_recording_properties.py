"""Whatever is recorded, in whatever rhythm: the finished file holds it, and a reader always sees a prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shard_format import ShardReader
from wshard import DType, WShardStreamWriter, load_wshard, open_partial, recover
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from pathlib import Path

    from wshard import Episode

TYPES = [dtype for dtype in DType if dtype is not DType.BFLOAT16]


@st.composite
def channels(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(["a", "b/c", "ä", "x y"]), unique=True, max_size=4))
    layouts = st.sampled_from(["dense", "dense", "ragged", "text"])
    return [
        {
            "id": name,
            **(
                {"dtype": draw(st.sampled_from(TYPES)), "layout": layout}
                | {"shape": draw(st.lists(st.integers(1, 5), max_size=3))}
                if (layout := draw(layouts)) != "text"
                else {"layout": layout}
            ),
            "compression": draw(st.sampled_from([None, "none", "zstd:1", "zstd"])),
            "lane": draw(st.sampled_from(["signal", "action"])),
            "own_clock": draw(st.booleans()),
        }
        for name in names
    ]


def value(channel: dict[str, Any], number: int, seed: int) -> Any:  # noqa: ANN401 - an array
    """Any bits, NaNs too; often the same, so that some compress well."""
    if channel["layout"] == "text":
        return "aé☃\0"[: (number + seed) % 5] * seed
    if channel["layout"] == "ragged":
        one = {**channel, "layout": "dense"}
        items = [value(one, number + item, seed) for item in range((number * seed) % 4)]
        return np.array(items, DType.parse(channel["dtype"]).numpy_dtype) if items else []
    dtype = DType.parse(channel["dtype"]).numpy_dtype
    random = np.random.default_rng([seed, number if seed % 2 else 0])
    size = dtype.itemsize * int(np.prod(channel["shape"], dtype=int))
    bits = np.frombuffer(random.bytes(size), np.uint8)
    return (bits & 1 if dtype == bool else bits).view(dtype).reshape(channel["shape"])


def check(
    episode: Episode, defs: list[dict[str, Any]], counts: dict[str, int], seed: int, *, whole: bool
) -> None:
    """The episode holds the first entries of what was recorded; all of them where it is whole."""
    for channel in defs:
        lane = episode.actions if channel["lane"] == "action" else episode.observations
        if channel["id"] not in lane:
            assert not whole
            continue
        found = lane[channel["id"]]
        most = counts[channel["id"] if channel["own_clock"] else ""]
        assert found.length == most if whole else found.length <= most
        assert found.layout == channel["layout"]
        wanted = [value(channel, n, seed) for n in range(found.length)]
        if found.layout == "text":
            assert found.data == wanted
        elif found.layout == "ragged":
            assert [e.tobytes() for e in found.data] == [np.asarray(e).tobytes() for e in wanted]
            assert found.step_shape == tuple(channel["shape"])
        else:
            assert found.data.tobytes() == b"".join(entry.tobytes() for entry in wanted)
        if channel["own_clock"]:
            assert found.timestamps_ns is not None
            assert found.timestamps_ns.tolist() == list(range(found.length))
    if episode.rewards is not None:
        assert episode.rewards.data.tolist() == [n / 3 for n in range(episode.length)]


@given(
    defs=channels(),
    calls=st.lists(
        st.sampled_from(["step", "step", "step", "own", "flush", "read", "note"]), max_size=60
    ),
    flush_steps=st.integers(1, 9),
    seed=st.integers(0, 9),
    end=st.sampled_from(["finish", "recover"]),
)
def test_any_recording_comes_back_as_it_was_written(
    tmp_path: Path,
    defs: list[dict[str, Any]],
    calls: list[str],
    flush_steps: int,
    seed: int,
    end: str,
) -> None:
    path = tmp_path / "ep.wshard"
    path.unlink(missing_ok=True)
    writer = WShardStreamWriter(
        *(path, "ep", defs),
        on_partial="discard",
        options=StreamOptions(flush_steps=flush_steps, fsync="never"),
    )
    writer.begin_episode()
    counts = {"": 0, **{c["id"]: 0 for c in defs if c["own_clock"]}}
    notes = 0
    with open_partial(path) as live:
        for call in calls:
            if call == "step":
                number = counts[""]
                step = {c["id"]: value(c, number, seed) for c in defs if not c["own_clock"]}
                writer.write_timestep(step, reward=number / 3)
                counts[""] += 1
            elif call == "own":
                for channel in defs:
                    if channel["own_clock"]:
                        number = counts[channel["id"]]
                        writer.write(channel["id"], value(channel, number, seed), number)
                        counts[channel["id"]] += 1
            elif call == "note":
                writer.annotate("x")
                notes += 1
            elif call == "flush":
                writer.flush()
                live.refresh()
                check(live, defs, counts, seed, whole=bool(counts[""]))
            else:
                live.refresh()
                check(live, defs, counts, seed, whole=False)
    if end == "finish":
        writer.end_episode()
    else:
        writer.close()
        result = recover(f"{path}.partial", fsync=False)
        assert not result.lost_data
    with ShardReader(path) as reader:
        reader.verify()
    with load_wshard(path) as episode:
        assert episode.length == counts[""]
        assert len(episode.labels.get("notes", ())) == notes
        check(episode, defs, counts, seed, whole=end == "finish" or bool(counts[""]))
