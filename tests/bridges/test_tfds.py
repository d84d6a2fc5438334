"""TensorFlow Datasets parses the RLDS datasets that the converter writes.

Without TensorFlow it opens no TFRecord file, so the records are cut out of the file here. `tests/convert/test_rlds.py`
reads files that TFDS wrote with TensorFlow.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.convert.test_rlds import DEMO, made_by_hand
from wshard.convert import read, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


tfds: Any = pytest.importorskip("tensorflow_datasets")


def parsed(folder: Path) -> dict[str, list[Any]]:
    """The episodes of each split, as TFDS parses them."""
    builder = tfds.builder_from_directory(str(folder))
    found: dict[str, list[Any]] = {}
    for split, facts in builder.info.splits.items():
        found[split] = []
        for path in facts.filepaths:
            with open(path, "rb") as file:
                examples = map(builder.info.features.deserialize_example_np, records(file.read()))
                found[split] += examples
        assert len(found[split]) == facts.num_examples
    return found


def records(data: bytes) -> Iterator[bytes]:
    """Each has its length, the checksum of that, the bytes, and their checksum."""
    while data:
        (length,) = struct.unpack_from("<Q", data)
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_tfds_parses_every_type_with_the_values_that_were_written(tmp_path: Path) -> None:
    episode = made_by_hand()
    write([episode], tmp_path / "out", "rlds")
    (found,) = parsed(tmp_path / "out")["train"]
    steps = list(found["steps"])
    assert len(steps) == episode.length + 1
    for t, step in enumerate(steps):
        observation = step["observation"]
        assert np.array_equal(observation["camera"], episode.observations["camera"][t])
        assert observation["text"].decode() == episode.observations["text"][t]
        for name, values in observation["types"].items():
            expected = episode.observations[f"types/{name}"][t]
            assert values.dtype == expected.dtype
            assert np.array_equal(values, expected)
        points = episode.observations["points"][t]
        assert np.array_equal(np.reshape(observation["points"], (-1, 2)), points)
    assert [bool(step["is_last"]) for step in steps] == [False] * 5 + [True]
    assert bool(steps[-1]["is_terminal"])
    assert np.array_equal(steps[0]["action"], episode.actions["action"][0])


def test_tfds_parses_its_own_dataset_after_it_was_read_and_written(tmp_path: Path) -> None:
    write(read(DEMO), tmp_path / "out", "rlds")
    before, after = parsed(DEMO), parsed(tmp_path / "out")
    assert before.keys() == after.keys()
    for split in before:
        for one, other in zip(before[split], after[split], strict=True):
            assert_same(one, other)


def assert_same(one: Any, other: Any) -> None:  # noqa: ANN401 - what TFDS gives
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (np.ndarray, np.generic, bytes, str, int, float)):
        assert np.array_equal(one, other)
    else:
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
