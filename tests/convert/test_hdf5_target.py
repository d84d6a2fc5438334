"""HDF5 files that are written: a full disk and a signal are exceptions, and the process goes on."""

from __future__ import annotations

import errno
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from shard_format.errors import ShardIOError
from wshard import Episode
from wshard.convert import write
from wshard.convert._hdf5_target import Hdf5Target

resource = pytest.importorskip("resource")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def episodes() -> Iterator[Episode]:
    """So many small arrays that libhdf5 reads again what it could not write."""
    for number in range(40):
        ep = Episode(f"demo_{number}", actions={"ctrl": np.ones((20, 3), np.float32)})
        for name in range(20):
            ep.observations[f"a{name}"] = np.full((20, 7), number, np.float32)
        ep.observations["words"] = ["word " * 50] * 20
        ep.observations["rgb"] = np.full((20, 32, 32, 3), number, np.uint8)
        yield ep


@pytest.mark.parametrize("form", ["robomimic", "minari"])
def test_a_write_that_fails_anywhere_is_an_error_and_leaves_nothing(
    tmp_path: Path, form: str
) -> None:
    data = list(episodes())
    write(data, tmp_path / "whole", form)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    for size in np.linspace(0, max(sizes) - 1, 5, dtype=int).tolist():
        with largest_file(size), pytest.raises(ShardIOError, match="cannot write") as caught:
            write(data, tmp_path / "cut", form)
        assert caught.value.errno == errno.EFBIG
        assert os.listdir(tmp_path) == ["whole"]


def test_what_could_not_be_written_is_read_back_until_the_file_is_closed(tmp_path: Path) -> None:
    target = Hdf5Target(str(tmp_path / "a.hdf5"))
    data = target.file.create_dataset("data", (4, 1 << 20), np.uint8)
    with largest_file(1 << 21):
        target.put(data, 0, 1)
        with pytest.raises(OSError, match="too large"):
            target.put(data, 1, 2)  # the head of the file is before it
        with pytest.raises(OSError, match="too large"):
            target.put(data, 0, 3)
    assert data[:, -1].tolist() == [3, 2, 0, 0]
    with pytest.raises(OSError, match="too large"):
        target.close()


def test_a_signal_waits_until_libhdf5_has_returned(tmp_path: Path) -> None:
    target = Hdf5Target(str(tmp_path / "a.hdf5"))
    before = signal.getsignal(signal.SIGINT)

    def interrupted() -> None:
        with target.writing():
            os.kill(os.getpid(), signal.SIGINT)
            target.file["whole"] = np.arange(9)
            target.put(target.file["whole"], 0, 7)
            pytest.fail("went on after the signal")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    target.close()
    assert signal.getsignal(signal.SIGINT) is before
    with h5py.File(tmp_path / "a.hdf5") as file:
        assert file["whole"][0] == 7
