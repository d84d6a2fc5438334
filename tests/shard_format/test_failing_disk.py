"""A disk that fails while a file is read: an error of the system, and never taken for damage."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_cli.main import main
from shard_cli.programs import SHARD, WSHARD
from shard_format import ShardReader
from shard_format.errors import ShardIOError
from shard_format.verify import check
from tests.shard_format.support import REPOSITORY
from wshard import Episode, add_lane, load_wshard, open_partial, recover, save_wshard
from wshard.doctor import examine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shard_cli.programs import Program
    from shard_format.findings import Report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode with a sidecar, and a journal."""
    path = tmp_path_factory.mktemp("disk")
    episode = Episode("e", length=64)
    episode.observations["x"] = np.random.default_rng(0).normal(size=(64, 500)).astype("f4")
    episode.timestamps_ns = np.arange(64) * 10**7
    save_wshard(episode, path / "e.wshard", "zstd", steps_per_frame=8, fsync=False)
    add_lane(path / "e.wshard", "omen/x/m", np.zeros((64, 500), np.float32), fsync=False)
    journals = REPOSITORY / "spec" / "vectors" / "valid_journals"
    journal = max(journals.glob("*.wshard.partial"), key=lambda one: one.stat().st_size)
    shutil.copy(journal, path / "j.wshard.partial")
    return path


def check_file(folder: Path) -> Report:
    with ShardReader(folder / "e.wshard") as reader:
        return check(reader)


def load(folder: Path) -> None:
    with load_wshard(folder / "e.wshard") as episode:
        assert sum(len(channel.data) for channel in episode.observations.values()) == 64
        assert len(episode.omens) == 1


def read_journal(folder: Path) -> None:
    with open_partial(folder / "j.wshard.partial") as episode:
        assert episode.length


READS: dict[str, Callable[[Path], Any]] = {
    "check": check_file,
    "load": load,
    "examine": lambda folder: examine(folder / "e.wshard"),
    "read a journal": read_journal,
    "recover": lambda folder: recover(folder / "j.wshard.partial", folder / "r", fsync=False),
}
PROGRAMS: dict[str, tuple[Program, list[str]]] = {
    "shard ls": (SHARD, ["ls", "-l", "e.wshard"]),
    "shard info": (SHARD, ["info", "e.wshard"]),
    "wshard inspect": (WSHARD, ["inspect", "e.wshard"]),
    "wshard verify": (WSHARD, ["verify", "e.wshard"]),
    "wshard doctor": (WSHARD, ["doctor", "e.wshard"]),
}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    for name in ("pread", "preadv", "read"):
        monkeypatch.setattr(os, name, found.failing(getattr(os, name)))
    return found


class Disk:
    """Fails at its read number `fails_at`, from 1 on, and at all later ones."""

    def __init__(self) -> None:
        self.reads = self.fails_at = 0

    def failing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:  # noqa: ANN401 - as the system's
            self.reads += 1
            if 0 < self.fails_at <= self.reads:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(*given)

        return call

    def start(self, fails_at: int) -> None:
        self.reads, self.fails_at = 0, fails_at


@pytest.mark.parametrize("name", READS)
def test_what_is_raised_or_found_is_an_error_of_the_system(
    folder: Path, name: str, disk: Disk
) -> None:
    for _ in range(2):  # a process does not compare a checksum twice
        disk.start(0)
        READS[name](folder)
        (folder / "r").unlink(missing_ok=True)
    reads = disk.reads
    assert reads
    for number in range(1, reads + 1):
        disk.start(number)
        try:
            codes = {found.code for found in READS[name](folder).errors}
        except ShardIOError as error:
            codes = {error.code if error.errno == errno.EIO else error.errno}
        assert codes == {"io_error"}, number
        assert not (folder / "r").exists()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_tell_it(
    folder: Path,
    name: str,
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    program, arguments = PROGRAMS[name]
    for _ in range(2):
        disk.start(0)
        assert main(arguments, program) == 0
    reads = disk.reads
    assert reads
    capsys.readouterr()
    for number in range(1, reads + 1):
        disk.start(number)
        status = main(arguments, program)
        told = "".join(capsys.readouterr())
        assert "io_error" in told, number
        assert status in (0, 3)
