"""What a notebook shows of an episode, a channel, a dataset and a record: small, safe, and true."""

from __future__ import annotations

import base64
import io
import re
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardpack
from shard_format import display
from shard_format.errors import ShardError
from shard_train import EpisodeDataset
from wshard import Channel, Episode, Timebase, load_wshard, save_wshard
from wshard.types import RaggedChannel

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
T = 30
EVIL = "<script>alert(1)</script>\"'&\n\u202e<img src=http://x>"
LARGEST = 200_000


class Seen(HTMLParser):
    """The tags, attributes and text of a piece of HTML; refuses everything that could do harm."""

    TAGS = frozenset(
        [
            "div",
            "strong",
            "em",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "figure",
            "figcaption",
            "img",
            "svg",
            "polyline",
        ]
    )
    ATTRIBUTES = frozenset(
        [
            *("style", "src", "alt", "width", "height", "colspan", "role", "aria-label"),
            *("fill", "stroke", "stroke-dasharray", "points"),
        ]
    )

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text = ""
        self.pictures: list[np.ndarray[Any, Any]] = []
        self.lines: list[dict[str, str | None]] = []
        self.open: list[str] = []
        assert len(source) < LARGEST
        assert "url(" not in source
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.TAGS
        assert {name for name, _ in attrs} <= self.ATTRIBUTES
        if tag == "polyline":
            self.lines.append(dict(attrs))
        source = dict(attrs).get("src")
        if tag == "img":
            assert source is not None
            head, _, content = source.partition(",")
            assert head == "data:image/png;base64"
            self.pictures.append(pixels_of(base64.b64decode(content, validate=True)))
        else:
            assert source is None
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def pixels_of(png: bytes) -> np.ndarray[Any, Any]:
    image = pytest.importorskip("PIL.Image")
    with image.open(io.BytesIO(png)) as opened:
        assert opened.format == "PNG"
        return np.asarray(opened)


def shown(what: Any) -> Seen:  # noqa: ANN401 - anything that a notebook shows
    return Seen(what._repr_html_())


def frames(count: int = T) -> np.ndarray[Any, Any]:
    made = np.zeros((count, 120, 160, 3), np.uint8)
    made[..., 0] = np.arange(count)[:, None, None]
    made[:, :60, :, 1] = 200
    return made


def episode(name: str = "ep_001") -> Episode:
    rng = np.random.default_rng(1)
    ep = Episode(name, env_id="Reach-v1", timebase=Timebase(tick_hz=50))
    ep.observations["depth"] = Channel(
        data=rng.random((T, 9, 16)).astype(np.float32), modality="depth"
    )
    ep.observations["wrist/rgb"] = Channel(data=frames(), modality="rgb")
    ep.observations["joints"] = Channel(data=rng.normal(size=(T, 7)).astype(np.float32), unit="rad")
    ep.observations["imu"] = Channel(
        data=rng.normal(size=(90, 6)), timestamps_ns=np.arange(90), sampling_rate_hz=200.0
    )
    ep.observations["said"] = ["go"] * T
    ep.observations["scan"] = RaggedChannel(data=[np.zeros((n % 3, 3)) for n in range(T)])
    ep.actions["ctrl"] = np.zeros((T, 2), np.float32)
    ep.metadata = {"operator": "ada", "config": {"a": 1}}
    return ep


def test_an_episode_shows_its_channels_and_frames_of_its_colour_camera(tmp_path: Path) -> None:
    save_wshard(episode(), tmp_path / "ep.wshard", compression="zstd", fsync=False)
    with load_wshard(tmp_path / "ep.wshard") as ep:
        seen = shown(ep)
        assert not ep.observations["wrist/rgb"].is_loaded
    for word in ("ep_001", "Reach-v1", "50 Hz, 0.6 s", "ada", "{1 field}", "signal/wrist/rgb"):
        assert word in seen.text
    assert re.search(r"wrist/rgb\s+u8\s+\[30, 120, 160, 3\]\s+50 Hz\s+zstd\s+1.6 MiB", seen.text)
    assert re.search(r"signal/imu\s+f64\s+\[90, 6\]\s+200 Hz", seen.text)
    assert re.search(r"signal/said\s+text\s+\[30, \*\]", seen.text)
    assert re.search(r"signal/scan\s+f64 ragged\s+\[30, \*, 3\]", seen.text)
    assert [picture.shape for picture in seen.pictures] == [(60, 80, 3)] * 3
    assert [picture[0, 0].tolist() for picture in seen.pictures] == [
        [0, 200, 0],
        [14, 200, 0],
        [29, 200, 0],
    ]
    assert seen.pictures[0][-1, 0].tolist() == [0, 0, 0]


def test_an_episode_shows_lines_with_predictions_in_dashes() -> None:
    ep = Episode("ep", timebase=Timebase(tick_hz=50))
    ep.observations["joints"] = np.linspace(-1, 3, T * 2).reshape(T, 2)
    ep.omens["joints"]["dreamer"] = np.zeros((T, 2))
    ep.rewards = np.arange(T, dtype=np.float32)
    seen = shown(ep)
    dashes = [line.get("stroke-dasharray") is not None for line in seen.lines]
    assert dashes == [False, False, False, True, True]
    for caption in ("reward · 0 … 29", "joints, dashed: dreamer · -1 … 3"):
        assert caption in seen.text
    first, last = (seen.lines[0]["points"] or "").split()[:: T - 1]
    assert (first, last) == ("2,38.0", "178,2.0")


def test_a_spike_in_a_long_channel_is_drawn() -> None:
    values = np.zeros(100_000)
    values[77_777] = 5.0
    seen = shown(Channel(data=values))
    assert "0 … 5" in seen.text
    points = (seen.lines[0]["points"] or "").split()
    assert len(points) == 120
    assert sum(point.endswith(",2.0") for point in points) == 1


@pytest.mark.parametrize(
    "values",
    [
        np.array([np.nan, 1.0, np.inf, 2.0, 3.0, -np.inf, np.nan]),
        np.full(5, np.nan),
        np.array([1.0]),
        np.array([-1.7e308, 1.7e308]),
        np.array([True, False]),
        np.full(300, np.nan),
        np.array([0, 2**64 - 1], np.uint64),
        np.array([], np.float32),
        np.zeros((4, 0), np.float32),
        np.full(9, 5e-324),
    ],
)
def test_lines_of_all_values_are_drawn_inside_their_plot(values: np.ndarray[Any, Any]) -> None:
    seen = shown(Channel(data=values))
    for line in seen.lines:
        for point in (line["points"] or "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= 180
            assert 0 <= y <= 40


def test_the_largest_card_of_an_episode_is_below_200_kb() -> None:
    rng = np.random.default_rng(1)
    ep = Episode("noise", timebase=Timebase(tick_hz=50))
    ep.observations["rgb"] = rng.integers(0, 256, (4, 96, 96, 3)).astype(np.uint8)
    for number in range(60):
        name = f"{number}" + "x" * 300
        ep.observations[name] = Channel(data=rng.normal(size=(9000, 3)), start_ns=0)
        ep.omens[name]["m" * 300] = Channel(data=rng.normal(size=(9000, 3)), start_ns=0)
    ep.metadata = {f"{number}" + "y" * 300: "z" * 300 for number in range(60)}
    seen = shown(ep)  # which asserts the size
    assert len(seen.pictures) == 3
    assert len(seen.lines) == 36


def test_a_channel_shows_itself() -> None:
    ep = episode()
    seen = shown(ep.observations["depth"])
    assert [picture.shape for picture in seen.pictures] == [(9, 16)] * 3
    assert min(map(np.min, seen.pictures)) == 0
    assert max(map(np.max, seen.pictures)) == 255
    joints = shown(ep.observations["joints"])
    assert not joints.pictures
    assert "rad" in joints.text
    for channel in ep.observations.values():
        assert channel.name in shown(channel).text


def test_a_dataset_shows_windows_channels_and_the_first_camera(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_wshard(episode(name), tmp_path / f"{name}.wshard", fsync=False)
    dataset = EpisodeDataset(tmp_path, window=8, channels=["depth", "wrist/rgb", "joints", "ctrl"])
    seen = shown(dataset)
    assert "2 with 60 steps" in seen.text
    assert "46 of 8 steps" in seen.text
    assert re.search(r"joints\s+float32\s+\[7\]\s+50 Hz\s+none\s+840 B", seen.text)
    assert [picture.shape for picture in seen.pictures] == [(60, 80, 3)] * 3
    (tmp_path / "a.wshard").unlink()
    dataset.close()
    assert "cannot be shown" in shown(dataset).text


def test_packs_and_records_show_entries_and_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with shardpack.ShardPackWriter(tmp_path / "p.shardpack") as writer:
        for number in range(9):
            file = io.BytesIO()
            image.fromarray(frames()[number]).save(file, "png")
            entries = {"json": b'{"a": 1}', "png": file.getvalue()}
            writer.write(f"s{number}", entries, metadata={"split": EVIL})
        writer.write("broken", {"png": b"\x89PNG, but not really"})
        arrays = {"a.npy": np.zeros((64, 9)), "left.npy": frames()[5], "right.npy": frames()[6]}
        writer.write("arrays", arrays)
    with shardpack.open(tmp_path / "p.shardpack") as dataset:
        record = shown(dataset[3])
        assert re.search(r"png\s+image/png\s+none", record.text)
        assert "split" in record.text
        assert record.pictures[0][0, 0].tolist() == [3, 200, 0]
        broken = shown(dataset["broken"])
        assert "image/png" in broken.text
        assert not broken.pictures
        whole = shown(dataset)
        assert len(whole.pictures) == 3
        assert re.search(r"s0\s+2\s+json, png", whole.text)
        assert "… and 6 more" in whole.text
        (left,) = shown(dataset["arrays"]).pictures
        assert left[0, 0].tolist() == [5, 200, 0]
    assert "closed" in shown(dataset).text


def test_hostile_names_and_numbers_stay_text_and_small(tmp_path: Path) -> None:
    ep = Episode(EVIL * 500, env_id=EVIL * 500, length=4)
    for number in range(3000):
        ep.observations[f"{number}{EVIL.replace('/', '')}" + "x" * 200] = np.zeros(4, np.float32)
    ep.metadata = {
        f"{EVIL}{number}": value
        for number in range(300)
        for value in (EVIL * 9000, {"deep": [EVIL] * 9}, 10**5000)
    }
    seen = shown(ep)
    assert "<script>" in seen.text  # as text
    assert "… and 2960 more" in seen.text
    assert "\u202e" not in seen.text
    assert "an integer of 16610 bits" in shown(Episode("x", metadata={"n": 10**5000})).text
    with shardpack.ShardPackWriter(tmp_path / "p.shardpack") as writer:
        writer.write(EVIL, {f"{n}{EVIL}"[:60]: b"" for n in range(2000)}, metadata={EVIL: EVIL})
    with shardpack.open(tmp_path / "p.shardpack") as dataset:
        assert "… and 1960 more" in shown(dataset[0]).text
        assert "<script>" in shown(dataset).text


def test_pictures_of_a_camera_decode_only_what_holds_them(tmp_path: Path) -> None:
    ep = Episode("long", timebase=Timebase(tick_hz=50))
    ep.observations["rgb"] = Channel(data=np.tile(frames(), (8, 1, 1, 1)), modality="rgb")
    save_wshard(ep, tmp_path / "seekable.wshard", profile="training", fsync=False)
    save_wshard(ep, tmp_path / "whole.wshard", profile="exchange", fsync=False)
    nbytes = ep.observations["rgb"].nbytes
    with load_wshard(tmp_path / "seekable.wshard") as opened:
        tracemalloc.start()
        assert len(shown(opened).pictures) == 3
        assert tracemalloc.get_traced_memory()[1] < nbytes / 3
        tracemalloc.stop()
    with load_wshard(tmp_path / "whole.wshard") as opened:
        # One frame of zstd: the whole camera would have to be decoded.
        tracemalloc.start()
        seen = shown(opened)
        assert tracemalloc.get_traced_memory()[1] < nbytes / 3
        tracemalloc.stop()
        assert seen.pictures == []
        assert "signal/rgb" in seen.text


def test_damage_is_said_and_does_not_break_the_page(tmp_path: Path) -> None:
    path = tmp_path / "ep.wshard"
    ep = Episode("ep", timebase=Timebase(tick_hz=50))
    ep.observations["rgb"] = Channel(
        data=np.random.default_rng(0).integers(0, 255, (T, 16, 16, 3), np.uint8), modality="rgb"
    )
    save_wshard(ep, path, compression="zstd", fsync=False)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with load_wshard(path) as opened:
        seen = shown(opened)
        assert seen.pictures == []
        assert "signal/rgb" in seen.text
    lying = Channel(data=np.zeros((3, 0, 8), np.uint8), modality="rgb")
    assert shown(lying).pictures == []


def test_whatever_opens_is_shown() -> None:
    """Also what lies about its sizes: each vector that opens, valid or not."""
    count = 0
    for path in sorted(VECTORS.glob("*/*.wshard")) + sorted(VECTORS.glob("*/*.shardpack")):
        try:
            what = shardpack.open(path) if path.suffix == ".shardpack" else load_wshard(path)
        except ShardError:
            continue
        with what:
            assert shown(what).text
            count += 1
            if isinstance(what, Episode):
                for _, channel in what.blocks():
                    assert shown(channel).text
    assert count > 300


@pytest.mark.parametrize(
    ("frame", "shape"),
    [
        (np.zeros((8, 9), np.float32), (8, 9)),
        (np.full((8, 9, 1), np.nan), (8, 9)),
        (np.zeros((3, 300, 200), np.uint8), (75, 50, 3)),
        (np.zeros((2, 5, 30, 40, 4), np.uint16), (30, 40, 3)),
        (np.ones((1, 10_000), bool), (1, 96)),
    ],
)
def test_frames_of_every_form_become_small_pictures(
    frame: np.ndarray[Any, Any], shape: tuple[int, ...]
) -> None:
    picture = display.picture_of(frame)
    pixels = display.to_pixels(picture, *display.value_range([picture]))
    assert pixels.shape == shape
    assert pixels_of(display.png(pixels)).shape == shape
