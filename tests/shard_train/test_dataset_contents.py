"""What windows hold besides channels of numbers, and how the channels of many episodes are compared."""

from __future__ import annotations

import logging
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_format.errors import EntryNotFound, InvalidArgument
from shard_train import EpisodeDataset, OneHot, compute_stats, mix
from tests.shard_train.dataset_support import episode_of
from tests.wshard.support import save
from wshard import Channel, Episode, Timebase
from wshard.types import Intervals, RaggedChannel

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 12
CLASSES = ["reach", "grasp"]


def said(number: int, length: int = LENGTH) -> list[str]:
    return [f"{number}: größe {step}"[: 4 + step] for step in range(length)]


def scan(number: int, length: int = LENGTH) -> list[np.ndarray[Any, Any]]:
    return [
        np.full((step % 4, 3), 100 * number + step, np.float32) + np.arange(3, dtype=np.float32)
        for step in range(length)
    ]


def rich(number: int, length: int = LENGTH) -> Episode:
    ep = Episode(f"ep {number}", timebase=Timebase(tick_hz=10))
    ep.observations["state"] = np.arange(length, dtype=np.float32) + 100 * number
    ep.observations["said"] = said(number, length)
    ep.observations["scan"] = RaggedChannel(data=scan(number, length))
    ep.actions["ctrl"] = np.zeros((length, 2))
    ep.labels["skill"] = [(1, 4, "reach"), (6, 9, "grasp")]
    ep.labels["speech"] = Intervals([(200_000_000, 450_000_000, "beep")], unit="ns")
    ep.metadata = {
        "task": f"task {number}",
        "success": number % 2 == 0,
        "score": number / 4,
        "n": 7,
    }
    return ep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(3):
        save(rich(number), tmp_path / "eps" / f"ep_{number}.wshard", "zstd", steps_per_frame=4)
    return tmp_path / "eps"


def joined(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.concatenate(parts)


class TestText:
    """A list of strings, or what a function makes of it."""

    def test_windows_have_a_string_for_each_step(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 5)
        for number in (0, 7, len(ds) - 1):
            episode, start = ds.episode_of(number)
            assert ds[number]["said"] == said(episode)[start : start + 5]
        batch = ds.batch([0, 9])
        assert batch["said"] == [said(0)[:5], said(1)[1:6]]
        assert ds.__getitems__([9])[0]["said"] == said(1)[1:6]

    @pytest.mark.parametrize(("pad", "after"), [("edge", said(0)[-1]), ("zero", "")])
    def test_steps_after_the_end_are_the_last_or_empty(
        self, folder: Path, pad: str, after: str
    ) -> None:
        ds = EpisodeDataset(folder, 5, pad=pad, episodes=[0])
        assert ds[-2]["said"] == [*said(0)[-2:], after, after, after]

    def test_a_function_makes_tokens_of_the_strings_of_a_window(self, folder: Path) -> None:
        def tokens(texts: list[str]) -> np.ndarray[Any, Any]:
            return np.array([len(text) for text in texts], np.int32)

        ds = EpisodeDataset(folder, 5, encode={"said": tokens}, threads=2)
        batch = ds.batch([0, 3])
        assert batch["said"].dtype == np.int32
        assert batch["said"].shape == (2, 5)
        assert batch["said"][1].tolist() == [len(text) for text in said(0)[3:8]]
        ragged = EpisodeDataset(folder, 5, encode={"said": lambda texts: np.arange(len(texts[0]))})
        assert [len(one) for one in ragged.batch([0, 3])["said"]] == [4, 7]

    def test_an_item_of_one_step_has_one_string(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, delta_timestamps={"state": [0, 0.1]})
        item = ds[LENGTH + 3]
        assert item["said"] == said(1)[3]
        assert np.array_equal(item["scan"], scan(1)[3])
        assert (item["t"], item["start"]) == (3, 3)
        with pytest.raises(InvalidArgument, match="entry 'said': windows cannot hold"):
            EpisodeDataset(folder, delta_timestamps={"said": [0]})


class TestRagged:
    """Values and offsets, or padded with a mask."""

    def test_windows_have_the_items_and_where_each_step_starts(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 5, channels=["scan"])
        batch = ds.batch([2, 10])
        for row, (number, start) in enumerate(((0, 2), (1, 2))):
            parts = scan(number)[start : start + 5]
            assert np.array_equal(batch["scan"][row], joined(parts))
            ends = np.cumsum([0, *map(len, parts)])
            assert batch["scan_offsets"][row].tolist() == ends.tolist()
            assert batch["scan"][row].flags.writeable

    @pytest.mark.parametrize("pad", ["edge", "zero"])
    def test_steps_after_the_end_repeat_the_items_or_have_none(
        self, folder: Path, pad: str
    ) -> None:
        window = EpisodeDataset(folder, 4, pad=pad, channels=["scan"], episodes=[0])[-2]
        counts = [2, 3, 3, 3] if pad == "edge" else [2, 3, 0, 0]
        assert np.diff(window["scan_offsets"]).tolist() == counts

    @pytest.mark.parametrize("pad", ["none", "edge", "zero"])
    def test_padded_items_have_one_shape_and_a_mask(self, folder: Path, pad: str) -> None:
        ds = EpisodeDataset(folder, 5, pad=pad, encode={"scan": 3})
        out = ds.batch([0, 1])
        for number in (2, len(ds) - 1):
            batch = ds.batch([number, 0], out=out)
            episode, start = ds.episode_of(number)
            wanted = scan(episode)[start : start + 5]
            wanted += [wanted[-1] if pad == "edge" else wanted[-1][:0]] * (5 - len(wanted))
            assert batch["scan"].shape == (2, 5, 3, 3)
            for step, items in enumerate(wanted):
                is_pad = batch["scan_is_pad"][0, step]
                assert is_pad.tolist() == [at >= len(items) for at in range(3)]
                assert np.array_equal(batch["scan"][0, step][~is_pad], items)
                assert not batch["scan"][0, step][is_pad].any()

    def test_more_items_than_there_is_room_for_are_an_error(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, 5, encode={"scan": 2})
        with pytest.raises(InvalidArgument, match=r"ep_0.*scan.*3 at step 3.*'scan': 3"):
            ds[1]


class TestLabels:
    """Classes of steps."""

    def test_ids_are_numbers_of_classes(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, LENGTH, encode={"label/skill": CLASSES})
        ids = ds.batch([0, 1])["label/skill"]
        assert ids.dtype == np.int64
        assert ids[1].tolist() == [-1, 0, 0, 0, -1, -1, 1, 1, 1, -1, -1, -1]
        part = EpisodeDataset(folder, 4, pad="zero", encode={"label/skill": CLASSES})
        assert part[7]["label/skill"].tolist() == [1, 1, -1, -1]
        assert part[LENGTH - 1]["label/skill"].tolist() == [-1] * 4

    def test_one_hot_holds_labels_that_overlap(self, tmp_path: Path) -> None:
        ep = rich(0)
        ep.labels["skill"] = [(1, 4, "reach"), (3, 5, "grasp")]
        path = save(ep, tmp_path / "a.wshard")
        hot = EpisodeDataset(path, 6, encode={"label/skill": OneHot(CLASSES)})[0]["label/skill"]
        assert hot.dtype == bool
        assert hot.T.tolist() == [
            [False, True, True, True, False, False],
            [False, False, False, True, True, False],
        ]
        with pytest.raises(InvalidArgument, match=r"'reach' and 'grasp'.*OneHot\(\['reach'"):
            EpisodeDataset(path, 6, encode={"label/skill": CLASSES})[0]

    def test_labels_in_nanoseconds_are_those_of_the_steps(self, folder: Path) -> None:
        window = EpisodeDataset(folder, 6, encode={"label/speech": ["beep"]})[1]
        assert window["t"].tolist() == [1, 2, 3, 4, 5, 6]
        assert window["label/speech"].tolist() == [-1, 0, 0, 0, -1, -1]

    def test_a_text_that_is_no_class_is_an_error_that_names_it(self, folder: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"ep_0.*label/skill.*not one of.*'grasp'"):
            EpisodeDataset(folder, 5, encode={"label/skill": ["reach"]})

    @pytest.mark.parametrize(
        ("encode", "says"),
        [
            ({"label/skill": []}, "its classes"),
            ({"label/skill": ["a", "a"]}, "each class once"),
            ({"scan": 0}, "the most items"),
            ({"scan": True}, "the most items"),
            ({"said": 3}, "a function"),
            ({"state": 3}, "encode is for text"),
            ({"scam": 3}, "no episode has the channel 'scam'.*'scan'"),
            (["scan"], "a mapping"),
        ],
    )
    def test_an_encoding_that_does_not_fit_is_refused(
        self,
        folder: Path,
        encode: Any,  # noqa: ANN401 - wrong ones
        says: str,
    ) -> None:
        with pytest.raises((InvalidArgument, EntryNotFound), match=says):
            EpisodeDataset(folder, 5, encode=encode)
        with pytest.raises(InvalidArgument, match=r"label/skill.*its classes.*found nothing"):
            EpisodeDataset(folder, 5, channels=["label/skill"])


class TestMetadata:
    """Fields of the episode, for each window."""

    def test_every_window_has_the_value_of_its_episode(self, folder: Path) -> None:
        names = ["metadata/task", "metadata/success", "metadata/score", "metadata/n"]
        ds = EpisodeDataset(folder, LENGTH, channels=["state", *names])
        batch = ds.batch([2, 0])
        assert batch["metadata/task"] == ["task 2", "task 0"]
        assert batch["metadata/success"].tolist() == [True, True]
        assert batch["metadata/score"].tolist() == [0.5, 0.0]
        assert batch["metadata/n"].dtype == np.int64
        assert ds[1]["metadata/task"] == "task 1"
        with pytest.raises(EntryNotFound, match=r"metadata/tusk.*expected n, score, success, task"):
            EpisodeDataset(folder, 5, channels=["metadata/tusk"])

    def test_an_episode_without_it_is_an_error_or_is_filled_and_marked(self, folder: Path) -> None:
        ep = rich(1)
        ep.metadata = {"task": "x"}
        save(ep, folder / "ep_1.wshard")
        with pytest.raises(EntryNotFound, match=r"ep_1\.wshard: entry 'metadata/score'.*1 of 3"):
            EpisodeDataset(folder, 5, channels=["metadata/score"])
        names = ["metadata/score", "metadata/success", "metadata/task"]
        ds = EpisodeDataset(folder, LENGTH, channels=names, missing="fill")
        batch = ds.batch([0, 1, 2])
        assert np.isnan(batch["metadata/score"]).tolist() == [False, True, False]
        assert batch["metadata/success"].tolist() == [True, False, True]
        assert batch["metadata/success_is_missing"].tolist() == [False, True, False]
        assert not batch["metadata/task_is_missing"].any()


class TestComparing:
    """The channels of all episodes, compared when a dataset opens."""

    def test_it_needs_the_index_only_and_names_episode_and_channel(self, folder: Path) -> None:
        other = rich(2)
        other.observations["state"] = np.zeros((LENGTH, 2), np.float32)
        save(other, folder / "ep_2.wshard")
        EpisodeDataset(folder, 5, channels=["ctrl"])
        os.unlink(folder / "ep_2.wshard")
        with pytest.raises(InvalidArgument) as caught:
            EpisodeDataset(f"{folder}.wshard-index", 5)
        message = str(caught.value)
        assert "ep_2.wshard: entry 'state'" in message
        assert "expected f32 [], as in" in message
        assert "found f32 [2]" in message

    @pytest.mark.parametrize("name", ["state", "said", "scan", "extra"])
    def test_a_missing_channel_is_an_error_wherever_it_is_missing(
        self, folder: Path, name: str
    ) -> None:
        ep = rich(1)
        if name == "extra":
            ep.observations["extra"] = np.zeros(LENGTH)
        else:
            del ep.observations[name]
        save(ep, folder / "ep_1.wshard")
        found = "ep_0" if name == "extra" else "ep_1"
        count = "2 of 3" if name == "extra" else "1 of 3"
        with pytest.raises(EntryNotFound, match=rf"{found}\.wshard: entry '{name}'.*{count}"):
            EpisodeDataset(folder, 5)
        assert len(EpisodeDataset(folder, 5, channels=["ctrl"])) == 24
        skipping = EpisodeDataset(folder, LENGTH, on_error="skip")
        left = 0 if name == "extra" else 1
        assert sum(skipping.batch([0, 1, 2])["episode"] == 1) == 1 - left

    def test_filled_channels_are_marked_and_invent_nothing(self, folder: Path) -> None:
        ep = rich(1)
        for name in ("state", "said", "scan"):
            del ep.observations[name]
        del ep.labels["skill"]
        ep.observations["count"] = np.arange(LENGTH, dtype=np.int16)
        save(ep, folder / "ep_1.wshard")
        encode = {"label/skill": CLASSES}
        ds = EpisodeDataset(folder, LENGTH, missing="fill", encode=encode)
        batch = ds.batch([0, 1, 2])
        for key in ("state", "said", "scan", "label/skill"):
            assert batch[f"{key}_is_missing"].tolist() == [False, True, False], key
        assert batch["count_is_missing"].tolist() == [True, False, True]
        assert "ctrl_is_missing" not in batch
        assert np.isnan(batch["state"][1]).all()
        assert batch["state"][2].tolist() == [200.0 + step for step in range(LENGTH)]
        assert batch["said"][1] == [""] * LENGTH
        assert (batch["scan"][1].shape, batch["scan_offsets"][1].any()) == ((0, 3), False)
        assert (batch["label/skill"][1] == -1).all()
        assert batch["count"].tolist() == [[0] * LENGTH, [*range(LENGTH)], [0] * LENGTH]
        assert pickle.loads(pickle.dumps(ds))[1]["state_is_missing"]

    def test_filling_works_for_times_and_clocks(self, folder: Path) -> None:
        ep = rich(1)
        del ep.observations["state"]
        ep.observations["imu"] = Channel(
            data=np.arange(40.0), timestamps_ns=np.arange(40) * 50_000_000
        )
        save(ep, folder / "ep_1.wshard")
        aligned = EpisodeDataset(folder, LENGTH, missing="fill", align="nearest")
        batch = aligned.batch([0, 1])
        assert batch["imu_is_pad"].all(axis=1).tolist() == [True, False]
        assert np.isnan(batch["imu"][0]).all()
        timed = EpisodeDataset(folder, delta_timestamps={"state": [0, 0.1]}, missing="fill")
        assert np.isnan(timed[LENGTH]["state"]).all()
        assert timed[0]["state"].tolist() == [0, 1]


class TestLeftOut:
    """What windows do not hold is said once."""

    def lines(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "wshard"]

    def test_one_line_at_construction_names_everything(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        ep = rich(2)
        ep.observations["imu"] = Channel(data=np.zeros(40), timestamps_ns=np.arange(40))
        ep.omens["ctrl"]["act"] = Channel(data=np.zeros((LENGTH, 3, 2)), horizon=3)
        save(ep, folder / "ep_2.wshard")
        ds = EpisodeDataset(folder, 5)
        (line,) = self.lines(caplog)
        assert "leave out label/skill, label/speech, imu, omen/ctrl/act, metadata/" in line
        assert set(ds.left_out) >= {"imu", "omen/ctrl/act", "label/skill", "metadata/n"}
        caplog.clear()
        pickle.loads(pickle.dumps(ds)).batch([0, 1])
        ds.batch([2])
        EpisodeDataset(folder, 5, channels=["state"])
        assert self.lines(caplog) == []

    def test_it_can_be_silenced_and_metadata_alone_is_no_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = save(episode_of(0, 8, {"task": "x"}), tmp_path / "a.wshard")
        assert EpisodeDataset(path, 4).left_out == ("metadata/task",)
        assert [r.levelname for r in caplog.records if r.levelno >= logging.WARNING] == []


class TestTogether:
    """With the other options of a dataset, and in mixtures."""

    def test_a_cache_gives_the_same_windows(self, folder: Path, tmp_path: Path) -> None:
        big = rich(0)
        big.observations["cam"] = np.zeros((LENGTH, 64, 64, 3), np.uint8)
        path = save(big, tmp_path / "big.wshard", "zstd")
        encode = {"scan": 4, "label/skill": CLASSES}
        options: dict[str, Any] = {"encode": encode, "window": 5}
        plain = EpisodeDataset(path, **options)
        for _ in range(2):  # makes a copy, then uses it
            cached = EpisodeDataset(path, **options, cache=tmp_path / "copies")
            for number in (0, 5):
                for key, value in plain[number].items():
                    assert np.array_equal(cached[number][key], value), key
        (copy,) = (tmp_path / "copies").iterdir()
        assert copy.suffix == ".wshard-copy"

    def test_text_and_ragged_data_of_sources_are_mixed(self, folder: Path) -> None:
        robot = EpisodeDataset(folder, 5)
        other = EpisodeDataset(folder, 5, channels=["state"])
        batch = mix([(robot, 0.5), (other, 0.5)], seed=1).batch(range(8))
        for row, source in enumerate(batch["source_id"].tolist()):
            number, start = int(batch["episode"][row]), int(batch["start"][row])
            text = said(number)[start : start + 5] if source == 0 else [""] * 5
            assert batch["said"][row] == text
            items = joined(scan(number)[start : start + 5])
            assert np.array_equal(batch["scan"][row], items if source == 0 else items[:0])
            assert batch["scan_offsets"][row][-1] == len(batch["scan"][row])
        assert (batch["said_is_missing"] == (batch["source_id"] == 1)).all()

    def test_masks_of_a_source_stay_true_in_a_mixture(self, folder: Path) -> None:
        ep = rich(1)
        del ep.observations["state"]
        save(ep, folder / "ep_1.wshard")
        filled = EpisodeDataset(folder, LENGTH, channels=["state", "ctrl"], missing="fill")
        without = EpisodeDataset(folder, LENGTH, channels=["ctrl"])
        batch = mix([(filled, 0.5), (without, 0.5)]).batch(range(6))
        wanted = (batch["source_id"] == 1) | (batch["episode"] == 1)
        assert (batch["state_is_missing"] == wanted).all()
        assert "state_is_missing_is_missing" not in batch

    def test_predictions_with_a_horizon_are_normalised_as_their_channel(self, folder: Path) -> None:
        for number in range(3):
            ep = rich(number)
            ep.actions["ctrl"] = np.arange(2.0 * LENGTH).reshape(LENGTH, 2)
            chunks = np.repeat(ep.actions["ctrl"].data[:, None], 3, axis=1)
            ep.omens["ctrl"]["act"] = Channel(data=chunks, horizon=3)
            save(ep, folder / f"ep_{number}.wshard")
        stats = compute_stats(EpisodeDataset(folder, 1, channels=["ctrl"]))
        names = ["ctrl", "omen/ctrl/act"]
        window = EpisodeDataset(folder, 5, channels=names, normalize=stats)[3]
        assert window["omen/ctrl/act"].shape == (5, 3, 2)
        assert np.array_equal(window["omen/ctrl/act"][:, 1], window["ctrl"])

    def test_what_cannot_be_read_is_skipped_like_any_channel(self, folder: Path) -> None:
        ep = rich(1)
        ep.labels["skill"] = [(0, 3, "unknown")]
        save(ep, folder / "ep_1.wshard")
        encode = {"label/skill": CLASSES}
        ds = EpisodeDataset(folder, LENGTH, encode=encode, on_error="skip")
        assert ds.batch([0, 1, 2])["episode"].tolist() == [0, 2, 2]
        assert list(ds.skipped) == [str(folder / "ep_1.wshard")]

    def test_what_windows_hold_changes_the_fingerprint(self, folder: Path) -> None:
        kinds = [
            EpisodeDataset(folder, 5, channels=["state"]),
            EpisodeDataset(folder, 5, channels=["state", "said"]),
            EpisodeDataset(folder, 5, channels=["state"], encode={"scan": 3}),
            EpisodeDataset(folder, 5, channels=["state"], encode={"scan": 4}),
            EpisodeDataset(folder, 5, channels=["state", "metadata/task"]),
        ]
        assert len({ds.fingerprint for ds in kinds}) == len(kinds)

    def test_a_channel_called_t_keeps_its_name(self, tmp_path: Path) -> None:
        ep = Episode("ep", observations={"t": np.arange(6.0) * 2})
        window = EpisodeDataset(save(ep, tmp_path / "a.wshard"), 3)[1]
        assert window["t"].tolist() == [2.0, 4.0, 6.0]
        assert window["start"] == 1
