"""Text, ragged data, labels and metadata of windows on their way through the bridges: carried, or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shard_format.errors import InvalidArgument
from shard_train import EpisodeDataset, OneHot, Plan, mix
from shard_train.huggingface import episodes_to_hf
from shard_train.tensordict import read_windows
from shard_train.torch import BatchStream, data_loader
from tests.shard_train.test_dataset_contents import CLASSES, LENGTH, joined, rich, said, scan
from tests.wshard.support import save

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT = 60
CHANNELS = ["state", "said", "scan", "metadata/task", "metadata/n"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    folder = tmp_path_factory.mktemp("episodes") / "three"
    for number in range(3):
        save(rich(number), folder / f"ep_{number}.wshard")
    return folder


def check(batch: dict[str, Any], count: int) -> None:
    """Whether a batch of tensors holds what its episodes hold."""
    assert batch["state"].shape == (count, 5)
    assert batch["label/skill"].dtype == torch.bool
    assert batch["metadata/n"].tolist() == [7] * count
    for row in range(count):
        number, start = int(batch["episode"][row]), int(batch["start"][row])
        assert batch["said"][row] == said(number)[start : start + 5]
        items = scan(number)[start : start + 5]
        assert batch["scan"][row].tolist() == joined(items).tolist()
        assert batch["scan_offsets"][row].tolist() == np.cumsum([0, *map(len, items)]).tolist()
        assert batch["metadata/task"][row] == f"task {number}"
        assert batch["t"][row].tolist() == list(range(start, start + 5))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("text_only", [False, True])
def test_torch_loaders_carry_everything_and_resume_before_a_short_batch(
    folder: Path, workers: int, text_only: bool
) -> None:
    names = [name for name in CHANNELS if not (text_only and name == "scan")]
    encode = {"label/skill": OneHot(CLASSES)}
    ds = EpisodeDataset(folder, 5, channels=names, encode=encode)
    options: dict[str, Any] = {"num_workers": workers, "batch_size": 7, "seed": 3}
    if workers:
        options |= {"multiprocessing_context": "fork", "timeout": TIMEOUT}
    loader = data_loader(ds, **options)
    seen = []
    for batch in loader:
        if not text_only:
            check(batch, len(batch["t"]))
        seen.append(list(zip(batch["episode"].tolist(), batch["start"].tolist(), strict=True)))
        assert batch["said"][0] == said(seen[-1][0][0])[seen[-1][0][1] :][:5]
        if len(seen) == 3:
            break
    again = data_loader(ds, **options)
    again.load_state_dict(loader.state_dict())
    (last,) = again
    assert [len(batch) for batch in seen] == [7, 7, 7]
    assert len(last["said"]) == 3 == len(ds) - 21
    seen.append(list(zip(last["episode"].tolist(), last["start"].tolist(), strict=True)))
    assert sorted(place for batch in seen for place in batch) == [
        (number, start) for number in range(3) for start in range(8)
    ]


def test_in_workers_arrays_beside_text_are_read_straight_into_shared_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = EpisodeDataset(folder, 5, channels=["state", "said"])
    monkeypatch.setattr(
        "shard_train.torch._collating._assembled", _refuse_after_first_batch(ds, "state")
    )
    loader = data_loader(
        *(ds,), batch_size=4, num_workers=1, multiprocessing_context="fork", timeout=TIMEOUT
    )
    assert sum(len(batch["said"]) for batch in loader) == len(ds)


def _refuse_after_first_batch(ds: EpisodeDataset, key: str) -> Any:  # noqa: ANN401 - a function
    from shard_train.torch import _collating

    real, calls = _collating._assembled, []

    def assembled(columns: Any) -> Any:  # noqa: ANN401 - as it is
        calls.append(key)
        assert len(calls) == 1, "a batch was copied"
        return real(columns)

    return assembled


def test_streams_and_mixtures_carry_them_too(folder: Path) -> None:
    ds = EpisodeDataset(folder, 5, channels=CHANNELS, encode={"label/skill": OneHot(CLASSES)})
    for batch in BatchStream(ds, Plan(len(ds), batch_size=8)):
        check(batch, 8)
    mixed = mix([(ds, 0.5), (ds, 0.5)])
    for batch in data_loader(mixed, batch_size=8):
        check(batch, len(batch["t"]))


def test_single_samples_have_no_batch_axis(folder: Path) -> None:
    ds = EpisodeDataset(folder, 5, channels=CHANNELS, pad="edge")
    samples = list(data_loader(ds, batch_size=None, shuffle=False))
    assert len(samples) == 3 * LENGTH
    sample = samples[LENGTH + 2]
    assert sample["state"].tolist() == [102, 103, 104, 105, 106]
    assert sample["said"] == said(1)[2:7]
    assert sample["scan"].tolist() == joined(scan(1)[2:7]).tolist()
    assert sample["metadata/task"] == "task 1"


def test_tensordicts_have_text_for_each_step_and_refuse_ragged_data(folder: Path) -> None:
    names = ["state", "ctrl", "said", "metadata/task", "metadata/n"]
    for number in range(3):
        ep = rich(number)
        ep.observations["state"] = np.arange(LENGTH + 1, dtype=np.float32)
        save(ep, folder.parent / "more" / f"ep_{number}.wshard")
    options: dict[str, Any] = {"window": 5, "next_observations": True, "channels": names}
    td = read_windows(EpisodeDataset(folder.parent / "more", **options, encode={"scan": 3}), [1, 9])
    assert td.batch_size == (2, 5)
    assert td[0, 2]["said"] == said(0)[3]
    assert td[1]["metadata", "task"] == ["task 1"] * 5
    assert td["metadata", "n"].tolist() == [[7] * 5] * 2
    assert td["scan"].shape == (2, 5, 3, 3)
    options["channels"] = [*names, "scan"]
    with pytest.raises(InvalidArgument, match=r"entry 'scan'.*varying length.*encode="):
        read_windows(EpisodeDataset(folder.parent / "more", **options), [1])


def test_rows_of_hugging_face_have_the_text_and_items_of_a_dataset(folder: Path) -> None:
    ds = EpisodeDataset(folder, 5, channels=["state", "said", "scan"])
    rows = episodes_to_hf(ds)
    assert rows["observation.said"][:LENGTH] == said(0)
    assert rows["observation.scan"][3] == scan(0)[3].tolist()
    assert "action.ctrl" not in rows.column_names
