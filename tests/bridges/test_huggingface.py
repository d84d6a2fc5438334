"""Episodes and packs as datasets of Hugging Face, and back: types, values, bytes."""

from __future__ import annotations

import io
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from unittest import mock

import datasets
import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import shardpack
from shard_format.errors import BadValue, InvalidArgument, ShardError
from shard_train import EpisodeDataset, huggingface
from shard_train.packed_episodes import pack_episodes
from shardpack import ShardPackWriter
from tests.bridges.blocking import fails_without
from tests.shard_train.dataset_support import write_folder
from wshard import Channel, Episode, Timebase, load_wshard, save_wshard
from wshard.types import RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 8\n%%EndComments\nshowpage\n%%EOF\n"


def rows_at_a_time(count: int) -> Any:  # noqa: ANN401 - a context manager
    """Reads this many rows of a dataset of Hugging Face at a time."""
    return mock.patch("shard_train.huggingface._episodes_from._ROWS", count)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and no cache but that of the test."""

    def refuse(*_: object) -> None:
        raise AssertionError("nothing here may connect to anything")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def noise(*shape: int, dtype: str = "f4", seed: int = 0) -> Any:  # noqa: ANN401 - an array
    random = np.random.default_rng(seed)
    return random.integers(0, 200, shape).astype(dtype)


def rich_episode(number: int, *, last: int = 1) -> Episode:
    """An episode with every kind of channel that rows can hold, and one that they cannot."""
    steps = 9 + number
    random = np.random.default_rng(number)
    points = [noise(step % 3, 2, seed=step) for step in range(steps)]
    return Episode(
        f"run {number}",
        timebase=Timebase(tick_hz=25.0),
        observations={
            "wrist/rgb": noise(steps + last, 8, 10, 3, dtype="u1", seed=number),
            "state": random.normal(size=(steps + last, 4)).astype("f4"),
            "depth": noise(steps, 5, 6, dtype="u2"),
            "weights": random.normal(size=(steps, 2)).astype(ml_dtypes.bfloat16),
            "half": random.normal(size=steps).astype("f2"),
            "text": [f"größe {step}" for step in range(steps)],
            "points": RaggedChannel(data=points),
            "pairs": RaggedChannel(data=[np.arange(2)] * steps),
            "imu": Channel(data=np.zeros((40, 2)), timestamps_ns=np.arange(40)),
        },
        actions={"ctrl": random.normal(size=(steps, 3)), "grip": random.normal(size=steps) > 0},
        rewards=random.normal(size=steps),
        terminations=np.arange(steps) == steps - 1,
        metadata={"success": True},
    )


def assert_same_episode(found: Episode, wanted: Episode, without: set[str] | None = None) -> None:
    """The same types, shapes and values in all channels."""
    assert (found.id, found.length) == (wanted.id, wanted.length)
    if wanted.length > 1:  # one step has no rate
        assert found.timebase.tick_hz == wanted.timebase.tick_hz
    blocks = {block: c for block, c in wanted.blocks() if block not in (without or {"signal/imu"})}
    others = dict(found.blocks())
    assert others.keys() == blocks.keys()
    for block, channel in blocks.items():
        other = others[block]
        assert (other.dtype_name, other.step_shape, other.layout) == (
            channel.dtype_name,
            channel.step_shape,
            channel.layout,
        ), block
        if isinstance(channel, RaggedChannel):
            assert isinstance(other, RaggedChannel)
            assert np.array_equal(other.offsets, channel.offsets), block
            assert np.array_equal(other.values, channel.values), block
        else:
            assert np.array_equal(other.data, channel.data), block


class TestSteps:
    """One row for each step, and back."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "runs").mkdir()
        for number in range(3):
            path = tmp_path / "runs" / f"{number}.wshard"
            save_wshard(rich_episode(number), path, profile="training")
        return tmp_path / "runs"

    def test_columns_have_the_types_of_the_channels(self, folder: Path) -> None:
        dataset = huggingface.episodes_to_hf(folder)
        assert len(dataset) == 10 + 11 + 12
        assert isinstance(dataset.features["observation.wrist/rgb"], datasets.Image)
        kinds = {name: str(feature) for name, feature in dataset.features.items()}
        assert kinds["observation.state"] == "List(Value('float32'), length=4)"
        assert kinds["observation.depth"] == "Array2D(shape=(5, 6), dtype='uint16')"
        assert kinds["observation.points"] == "Array2D(shape=(None, 2), dtype='float32')"
        assert kinds["observation.half"] == "Value('float16')"
        assert kinds["action.grip"] == "Value('bool')"
        assert kinds["reward"] == "Value('float64')"
        assert dataset.features["observation.weights"].feature.id == "bf16"

    def test_rows_say_where_they_are(self, folder: Path) -> None:
        dataset = huggingface.episodes_to_hf(folder)
        assert dataset["episode_index"][:] == [0] * 10 + [1] * 11 + [2] * 12
        assert dataset["frame_index"][:11] == [*range(10), 0]
        row = dataset[11]
        assert (row["episode_id"], row["timestamp"]) == ("run 1", 0.04)
        pixels = np.asarray(row["observation.wrist/rgb"])
        assert np.array_equal(pixels, rich_episode(1).observations["wrist/rgb"].data[1])

    @pytest.mark.parametrize("streaming", [False, True])
    def test_the_way_back_is_exact(self, folder: Path, tmp_path: Path, streaming: bool) -> None:
        dataset = huggingface.episodes_to_hf(folder)
        rows = dataset.to_iterable_dataset() if streaming else dataset
        with rows_at_a_time(7):
            files = huggingface.episodes_from_hf(rows, tmp_path / "again")
        assert len(files) == 3
        for number, file in enumerate(files):
            assert_same_episode(load_wshard(file), rich_episode(number))

    def test_arrays_in_place_of_images_come_back_the_same(self, tmp_path: Path) -> None:
        given = [rich_episode(0), rich_episode(1)]
        dataset = huggingface.episodes_to_hf(given, images="array", path=tmp_path / "rows.arrow")
        assert str(dataset.features["observation.wrist/rgb"]).startswith("Array3D(shape=(8, 10, 3)")
        files = huggingface.episodes_from_hf(dataset, tmp_path / "again")
        assert_same_episode(load_wshard(files[1]), given[1])

    def test_the_observation_after_the_last_step_has_a_row_of_its_own(self, folder: Path) -> None:
        dataset = huggingface.episodes_to_hf(folder)
        last = dataset[9]
        assert last["observation.state"] is not None
        assert last["action.ctrl"] is None
        assert last["reward"] is None
        whole = huggingface.episodes_to_hf(folder, last_observation="drop")
        assert len(whole) == 9 + 10 + 11
        assert None not in whole["reward"][:]

    def test_channels_that_rows_cannot_hold_are_reported(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        huggingface.episodes_to_hf(folder)
        assert "not in the rows: signal/imu" in caplog.text
        with pytest.raises(InvalidArgument, match=r"0\.wshard: entry 'signal/imu': rows of steps"):
            huggingface.episodes_to_hf(folder, channels=["imu"])

    def test_a_dataset_of_windows_gives_its_channels(self, folder: Path) -> None:
        chosen = EpisodeDataset(folder, window=2, channels=["ctrl"], episodes=[2, 0])
        dataset = huggingface.episodes_to_hf(chosen)
        assert [name for name in dataset.column_names if "." in name] == ["action.ctrl"]
        assert dataset["episode_id"][0] == "run 2"
        assert len(dataset) == 11 + 9

    def test_episodes_in_packs_give_the_same_rows(self, folder: Path, tmp_path: Path) -> None:
        pack_episodes(folder, tmp_path / "runs.shardpack")
        wanted = huggingface.episodes_to_hf(folder, images="array")
        found = huggingface.episodes_to_hf(tmp_path / "runs.shardpack", images="array")
        assert found.with_format("arrow")[:].equals(wanted.with_format("arrow")[:])

    def test_predictions_are_columns_by_their_blocks(self, tmp_path: Path) -> None:
        episode = Episode("a", observations={"x": noise(5, 2)}, actions={"u": noise(5)})
        episode.omens["x"]["dreamer"] = noise(5, 2, seed=1)
        episode.uncerts["x"]["dreamer"]["std"] = noise(5, 2, seed=2)
        chosen = ["x", "u", "omen/x/dreamer", "uncert/x/dreamer/std"]
        dataset = huggingface.episodes_to_hf(episode, channels=chosen)
        (file,) = huggingface.episodes_from_hf(dataset, tmp_path / "again")
        assert_same_episode(load_wshard(file), episode)

    def test_recorded_times_come_back_to_the_nanosecond(self, tmp_path: Path) -> None:
        times = 1_700_000_000_000_000_001 + np.cumsum(np.arange(6) * 7_777_777)
        episode = Episode("a", observations={"x": noise(7)}, timestamps_ns=times, length=6)
        dataset = huggingface.episodes_to_hf(episode)
        (file,) = huggingface.episodes_from_hf(dataset, tmp_path / "again")
        found = load_wshard(file).timestamps_ns
        assert found is not None
        assert found.tolist() == times.tolist()

    def test_files_in_the_cache_are_replaced_and_do_not_grow_in_number(
        self, folder: Path, tmp_path: Path
    ) -> None:
        for _ in range(2):
            huggingface.episodes_to_hf(folder)
        assert len(list((tmp_path / "cache").rglob("*"))) == 2  # a folder and a file

    @settings(
        max_examples=15,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
        dtype=st.sampled_from(["?", "i1", "u8", "i8", "f2", "f4", "f8", "bfloat16"]),
        shape=st.lists(st.integers(1, 3), max_size=4),
        more=st.booleans(),
        rows=st.integers(1, 12),
    )
    def test_any_plain_channel_survives(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        lengths: list[int],
        dtype: str,
        shape: list[int],
        more: bool,
        rows: int,
    ) -> None:
        kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        given = [
            Episode(
                f"{number}",
                timebase=Timebase(tick_hz=30.0),
                observations={"x": noise(length + more, *shape, seed=number).astype(kind)},
                actions={"u": noise(length, seed=number)},
            )
            for number, length in enumerate(lengths)
        ]
        folder = tmp_path_factory.mktemp("any")
        dataset = huggingface.episodes_to_hf(given, path=folder / "rows.arrow")
        with rows_at_a_time(rows):
            files = huggingface.episodes_from_hf(dataset, folder / "again")
        for file, episode in zip(files, given, strict=True):
            assert_same_episode(load_wshard(file), episode)


class TestOtherRows:
    """Whole episodes."""

    def test_rows_of_episodes_have_all_steps(self, tmp_path: Path) -> None:
        given = [rich_episode(0), rich_episode(2)]
        chosen = ["wrist/rgb", "state", "text", "ctrl", "weights"]
        dataset = huggingface.episodes_to_hf(given, rows="episodes", channels=chosen)
        row = dataset[1]
        assert (row["episode_id"], row["length"], row["tick_hz"]) == ("run 2", 11, 25.0)
        assert row["metadata"] == {"success": True}
        wanted = given[1]
        assert np.array_equal(row["observation.wrist/rgb"], wanted.observations["wrist/rgb"].data)
        assert row["observation.text"] == wanted.observations["text"].data
        assert np.array_equal(row["action.ctrl"], wanted.actions["ctrl"].data)
        assert row["truncated"] is None

    def test_what_cannot_work_is_said(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "runs", [9])
        with pytest.raises(InvalidArgument, match="unknown rows"):
            huggingface.episodes_to_hf(folder, rows="days")  # type: ignore[arg-type] # on purpose
        with pytest.raises(InvalidArgument, match="entry 'points': `datasets` has no type"):
            huggingface.episodes_to_hf(rich_episode(0), rows="episodes", channels=["points"])
        with pytest.raises(InvalidArgument, match="no episodes"):
            huggingface.episodes_to_hf(iter([]))

    def test_episodes_that_differ_are_refused_by_name(self) -> None:
        given = [
            Episode("a", observations={"x": noise(3)}),
            Episode("b", observations={"x": noise(3, 2)}),
        ]
        with pytest.raises(InvalidArgument, match=r"b: entry 'x': an episode has a different kind"):
            huggingface.episodes_to_hf(given)


class TestForeignRows:
    """Datasets that others have made."""

    def made(self, rows: int = 6, **columns: object) -> datasets.Dataset:
        fps = 30
        table = {
            "observation.state": [[float(n), 1.0] for n in range(rows)],
            "action": [[float(n)] for n in range(rows)],
            "timestamp": np.array([n % 3 / fps for n in range(rows)], np.float32),
            "frame_index": [n % 3 for n in range(rows)],
            "episode_index": [n // 3 + 5 for n in range(rows)],
            "index": range(rows),
            "next.done": [n % 3 == 2 for n in range(rows)],
            "task_index": [0] * rows,
            **columns,
        }
        return datasets.Dataset.from_dict(table)

    def test_columns_of_lerobot_are_understood(self, tmp_path: Path) -> None:
        files = huggingface.episodes_from_hf(self.made(), tmp_path / "runs", env_id="Push-v0")
        episode = load_wshard(files[1])
        assert (episode.id, episode.env_id, episode.length) == ("episode_6", "Push-v0", 3)
        assert episode.timebase.tick_hz == 30.0
        assert episode.observations["state"].data.tolist() == [[3, 1], [4, 1], [5, 1]]
        assert episode.actions["action"].step_shape == (1,)
        assert episode.observations.keys() == {"state", "task_index"}
        assert episode.terminations is not None
        assert episode.terminations.data.tolist() == [False, False, True]

    def test_columns_can_be_given_another_meaning(self, tmp_path: Path) -> None:
        rows = self.made(torque=np.arange(6.0), note=["x"] * 6)
        files = huggingface.episodes_from_hf(
            rows,
            tmp_path / "runs",
            columns={"torque": "action/torque", "note": None, "task_index": "signal/task"},
            fps=50,
            compression="zstd",
        )
        episode = load_wshard(files[0])
        assert episode.actions.keys() == {"action", "torque"}
        assert episode.observations.keys() == {"state", "task"}
        assert episode.timebase.tick_hz == 50.0

    def test_irregular_times_stay_irregular(self, tmp_path: Path) -> None:
        rows = self.made(timestamp=[0.0, 0.1, 0.5] * 2)
        files = huggingface.episodes_from_hf(rows, tmp_path / "runs")
        assert load_wshard(files[0]).times_ns().tolist() == [0, 100_000_000, 500_000_000]

    def test_a_stream_that_does_not_say_its_types_is_read(self, tmp_path: Path) -> None:
        def rows() -> Any:  # noqa: ANN401 - a generator
            for number in range(5):
                yield {"episode_index": number // 3, "observation.x": [number, number]}

        stream = datasets.IterableDataset.from_generator(rows)
        with rows_at_a_time(2):
            files = huggingface.episodes_from_hf(stream, tmp_path / "runs")
        assert [load_wshard(file).length for file in files] == [3, 2]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda rows: rows.select([0, 3, 1]), "do not follow one another"),
            (lambda rows: rows.select([0, 2, 3]), r"episode 5: the steps of an episode are out of"),
            (lambda rows: rows.remove_columns("episode_index"), "no such column"),
            (lambda rows: datasets.DatasetDict(train=rows), r"take one: dataset\['train'\]"),
            (lambda rows: rows.to_dict(), "not a dataset of Hugging Face"),
            (lambda rows: rows.select([]), "no rows"),
            (
                lambda rows: rows.add_column("r", [1.0, None, 2.0] * 2),
                "entry 'r': episode 5: a step in the middle of an episode is missing",
            ),
            (
                lambda rows: rows.add_column("reward", [1.0, 2.0, None] * 2),
                "the columns of an episode have different lengths .expected 2 values, found 3",
            ),
            (
                lambda rows: rows.add_column("d", [{"a": 1}] * 6),
                "entry 'd': episode 5: this column cannot be a channel",
            ),
            (
                lambda rows: rows.add_column("next.terminated", [True] * 6),
                "two columns would become 'terminated'",
            ),
        ],
    )
    def test_rows_that_make_no_episodes_are_refused(
        self,
        tmp_path: Path,
        change: Callable[[datasets.Dataset], datasets.Dataset],
        message: str,
    ) -> None:
        with pytest.raises(ShardError, match=message):
            huggingface.episodes_from_hf(change(self.made()), tmp_path / "runs")

    def test_files_that_are_there_are_not_replaced(self, tmp_path: Path) -> None:
        huggingface.episodes_from_hf(self.made(), tmp_path / "runs")
        with pytest.raises(InvalidArgument, match=r"episode_000000\.wshard: the file exists"):
            huggingface.episodes_from_hf(self.made(), tmp_path / "runs")

    def test_offsets_outside_of_the_data_are_refused(self, tmp_path: Path) -> None:
        far = np.array([0, 1 << 30, 1], np.int32)
        column = pa.Array.from_buffers(
            pa.binary(), 2, [None, pa.py_buffer(far), pa.py_buffer(b"x")]
        )
        table = pa.table({"episode_index": [0, 0], "blob": column})
        given = datasets.Dataset(table, fingerprint="none")
        with pytest.raises(BadValue, match="damaged"):
            huggingface.episodes_from_hf(given, tmp_path / "runs")
        with pytest.raises(BadValue, match="damaged"):
            huggingface.samples_from_hf(given, tmp_path / "a.shardpack")

    @pytest.mark.parametrize("content", [POSTSCRIPT, None])
    def test_an_image_that_is_none_is_refused(self, tmp_path: Path, content: bytes | None) -> None:
        kinds = datasets.Features(
            {"rgb": datasets.Image(), "episode_index": datasets.Value("int64")}
        )
        rows = {"rgb": [{"bytes": content, "path": None}], "episode_index": [0]}
        given = datasets.Dataset(pa.table(rows, kinds.arrow_schema))
        with pytest.raises(BadValue, match=r"not an image|neither content nor"):
            huggingface.episodes_from_hf(given, tmp_path / "runs")


def picture(kind: str, seed: int = 0) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(noise(8, 9, 3, dtype="u1", seed=seed)).save(stream, kind)
    return stream.getvalue()


class TestPacks:
    """Samples of packs."""

    def entries(self, number: int) -> dict[str, Any]:
        return {
            "left.jpg": picture("JPEG", number),
            "right.png": picture("PNG", number),
            "caption.txt": f"größe {number}",
            "label.cls": number,
            "meta.json": {"boxes": [1, {"x": number}]},
            "state.npy": noise(3, 4, seed=number),
            "tokens.npy": np.arange(number),
            "scalar.npy": np.float64(number),
            "complex.npy": np.ones(2, np.complex64),
            "sound.wav": b"RIFF\0\0\0\0WAVE",
            "blob": bytes([number]) * number,
        }

    def fields(self, number: int) -> dict[str, Any]:
        return {
            "split": "train",
            "n": number,
            "weight": number + 0.5,
            "ok": number % 2 == 0,
            "tags": ["a", "b"],
            "nested": {"q": [number, None]},
            "sometimes": number if number % 2 else None,
        }

    @pytest.fixture
    def pack(self, tmp_path: Path) -> Path:
        with ShardPackWriter(tmp_path / "a.shardpack", compression="zstd") as writer:
            for number in range(5):
                writer.write(f"key {number}", self.entries(number), self.fields(number))
        return tmp_path / "a.shardpack"

    def contents(self, path: Path) -> list[tuple[str, dict[str, bytes], dict[str, Any]]]:
        with shardpack.open(path) as dataset:
            return [(record.key, record.read_all(), record.metadata) for record in dataset]

    def test_columns_are_what_the_entries_hold(self, pack: Path) -> None:
        dataset = huggingface.samples_to_hf(pack)
        kinds = {name: str(feature) for name, feature in dataset.features.items()}
        assert kinds["left.jpg"].startswith("Image(")
        assert kinds["sound.wav"].startswith("Audio(")
        assert kinds["caption.txt"] == "Value('string')"
        assert kinds["state.npy"] == "Array2D(shape=(3, 4), dtype='float32')"
        assert kinds["tokens.npy"] == "List(Value('int64'))"
        assert kinds["complex.npy"] == kinds["blob"] == "Value('binary')"
        assert (kinds["n"], kinds["weight"]) == ("Value('int64')", "Value('float64')")
        row = dataset[3]
        assert row["__key__"] == "key 3"
        assert row["left.jpg"].size == (9, 8)
        assert row["meta.json"] == {"boxes": [1, {"x": 3}]}
        assert row["tokens.npy"] == [0, 1, 2]
        assert row["nested"] == {"q": [3, None]}

    @pytest.mark.parametrize("streaming", [False, True])
    def test_the_way_back_is_byte_for_byte(
        self, pack: Path, tmp_path: Path, streaming: bool
    ) -> None:
        dataset = huggingface.samples_to_hf(pack)
        rows = dataset.to_iterable_dataset() if streaming else dataset
        with mock.patch("shard_train.huggingface._samples._ROWS", 2):
            done = huggingface.samples_from_hf(rows, tmp_path / "b.shardpack")
        assert (done.records, done.paths) == (5, [str(tmp_path / "b.shardpack")])
        assert self.contents(tmp_path / "b.shardpack") == self.contents(pack)

    def test_some_entries_can_be_chosen(self, pack: Path) -> None:
        dataset = huggingface.samples_to_hf(pack, entries=["*.jpg", "label.cls"])
        assert [name for name in dataset.column_names if "." in name] == ["left.jpg", "label.cls"]

    def test_what_a_sample_lacks_is_none(self, tmp_path: Path) -> None:
        with ShardPackWriter(tmp_path / "a.shardpack") as writer:
            writer.write("a", {"x.npy": noise(2, 2), "y.jpg": picture("JPEG")}, {"n": 1})
            writer.write("b", {"y.jpg": picture("JPEG")})
            writer.write("c", {"x.npy": noise(2, 2, seed=1)})
        dataset = huggingface.samples_to_hf(tmp_path / "a.shardpack")
        assert dataset["x.npy"][:] == [noise(2, 2).tolist(), None, noise(2, 2, seed=1).tolist()]
        assert [picture is None for picture in dataset["y.jpg"]] == [False, False, True]
        assert dataset["n"][:] == [1, None, None]

    def test_postscript_in_the_place_of_an_image_is_refused_before_datasets_opens_it(
        self, tmp_path: Path
    ) -> None:
        with ShardPackWriter(tmp_path / "a.shardpack") as writer:
            writer.write("a", {"y.jpg": picture("PNG")})  # of a known format, though another one
            writer.write("b", {"y.jpg": POSTSCRIPT})
        with pytest.raises(BadValue, match=r"record 'b'.*not an image.*%!PS"):
            huggingface.samples_to_hf(tmp_path / "a.shardpack")
        kind = {"y.jpg": datasets.Value("binary")}
        dataset = huggingface.samples_to_hf(tmp_path / "a.shardpack", features=kind)
        assert dataset[1]["y.jpg"] == POSTSCRIPT

    @pytest.mark.parametrize(
        ("feature", "value"),
        [
            ({"_type": "Image"}, {"bytes": None, "path": "/etc/passwd"}),
            ({"_type": "Audio"}, {"bytes": None, "path": "https://example.com"}),
            ({"_type": "List", "feature": {"_type": "Image"}}, [{"path": "/etc/passwd"}]),
            ({"x": {"_type": "Image"}}, {"x": {"path": "/etc/passwd"}}),
            ({"_type": "nonsense"}, 1),
            (None, 1),
        ],
    )
    def test_the_types_that_a_pack_states_open_no_files(
        self,
        tmp_path: Path,
        feature: Any,  # noqa: ANN401 - any JSON
        value: Any,  # noqa: ANN401 - any JSON
    ) -> None:
        path = tmp_path / "a.shardpack"
        with ShardPackWriter(path, metadata={"huggingface_features": {"f": feature}}) as writer:
            writer.write("a", {"x.txt": "1"}, {"f": value})
        with suppress(ShardError):
            dataset = huggingface.samples_to_hf(path)
            assert dataset[0]["f"] == value  # plain JSON
            assert "Image" not in str(dataset.features["f"])

    def test_samples_that_do_not_fit_are_refused_by_key(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        with ShardPackWriter(path) as writer:
            writer.write("a", {"x.npy": noise(2, 2)})
            writer.write("b", {"x.npy": noise(3, 2)})
        with pytest.raises(BadValue, match=r"entry 'x.npy': samples 'a' to 'b' do not fit"):
            huggingface.samples_to_hf(path)
        free = datasets.Array2D((None, 2), "float32")
        dataset = huggingface.samples_to_hf(path, features={"x.npy": free})
        assert [len(value) for value in dataset["x.npy"]] == [2, 3]
        stored = huggingface.samples_to_hf(path, features={"x.npy": datasets.Value("binary")})
        assert stored["x.npy"][0].startswith(b"\x93NUMPY")

    def test_entries_that_come_late_need_a_type(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        with ShardPackWriter(path) as writer:
            for number in range(300):
                late = {"late.txt": "here"} if number == 299 else {}
                writer.write(f"{number}", {"x.txt": "a", **late})
        with pytest.raises(BadValue, match=r"entry 'late.txt': record '299' has an entry that"):
            huggingface.samples_to_hf(path)
        dataset = huggingface.samples_to_hf(path, features={"late.txt": datasets.Value("string")})
        assert dataset["late.txt"][298:] == [None, "here"]

    def test_a_failed_run_leaves_nothing(self, tmp_path: Path) -> None:
        with ShardPackWriter(tmp_path / "a.shardpack") as writer:
            writer.write("a", {"x.npy": noise(2)})
            writer.write("b", {"x.npy": noise(2, dtype="i8")})
        with pytest.raises(BadValue):
            huggingface.samples_to_hf(
                tmp_path / "a.shardpack", path=tmp_path / "out" / "rows.arrow"
            )
        assert list((tmp_path / "out").iterdir()) == []

    def test_a_foreign_dataset_gets_its_columns_back(self, tmp_path: Path) -> None:
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "b.png").write_bytes(picture("PNG", 1))
        features = datasets.Features(
            {
                "image": datasets.Image(),
                "label": datasets.ClassLabel(names=["cat", "dog"]),
                "text": datasets.Value("string"),
                "x": datasets.Array2D((2, 2), "int16"),
                "vector": datasets.Sequence(datasets.Value("float32"), length=3),
                "deep": {"a": datasets.Value("int32"), "b": [datasets.Value("string")]},
                "when": datasets.Value("timestamp[ns]"),
            }
        )
        rows = datasets.Dataset.from_dict(
            {
                "image": [
                    {"bytes": picture("JPEG"), "path": "a/b.jpg"},
                    str(tmp_path / "files" / "b.png"),
                    None,
                ],
                "label": [0, 1, 1],
                "text": ["a", None, "c"],
                "x": [noise(2, 2, dtype="i2")] * 3,
                "vector": [[1, 2, 3]] * 3,
                "deep": [{"a": 1, "b": ["x", "y"]}] * 3,
                "when": [np.datetime64(5, "ns")] * 3,
            },
            features=features,
        )
        huggingface.samples_from_hf(rows, tmp_path / "a.shardpack")
        with shardpack.open(tmp_path / "a.shardpack") as dataset:
            assert bytes(dataset[0]["image.jpg"].data) == picture("JPEG")
            assert bytes(dataset[1]["image.png"].data) == picture("PNG", 1)
            assert dataset[1].metadata["image_path"] == "b.png"
            assert dataset[0].metadata["when"] == "1970-01-01 00:00:00.000000005"
        again = huggingface.samples_to_hf(tmp_path / "a.shardpack")
        unchanged = [name for name in features if name != "when"]
        assert {name: again.features[name] for name in unchanged} == {
            name: features[name] for name in unchanged
        }
        plain = [name for name in unchanged if name != "image"]
        for number in range(3):
            assert {name: again[number][name] for name in plain} == {
                name: rows[number][name] for name in plain
            }
        raw = again.with_format("arrow")[0]["image"].to_pylist()
        assert raw == [{"bytes": picture("JPEG"), "path": "a/b.jpg"}]

    def test_files_of_other_machines_are_named(self, tmp_path: Path) -> None:
        rows = datasets.Dataset.from_dict(
            {"image": [{"bytes": None, "path": "/nowhere/a.png"}]},
            features=datasets.Features({"image": datasets.Image()}),
        )
        with pytest.raises(BadValue, match=r"entry 'image': .*not on this machine"):
            huggingface.samples_from_hf(rows, tmp_path / "a.shardpack")

    def test_json_columns_of_tables_are_metadata(self, tmp_path: Path) -> None:
        text = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": [1]}', None]))
        table = pa.Table.from_arrays([text], ["said"])
        shardpack.convert.from_table(table, tmp_path / "a.shardpack")
        assert [fields for _, _, fields in self.contents(tmp_path / "a.shardpack")] == [
            {"said": {"a": [1]}},
            {"said": None},
        ]


@pytest.mark.parametrize("kind", ["episodes", "samples"])
def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    to_hf = getattr(huggingface, f"{kind}_to_hf")
    from_hf = getattr(huggingface, f"{kind}_from_hf")
    for call in (lambda: to_hf("anything"), lambda: from_hf([], "anything")):
        assert "shard-format[huggingface]" in fails_without(monkeypatch, "datasets", call)
