"""A pipe in place of a file: everything that opens a path refuses it at once, and never waits for a writer."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
import wshard
from shard_cli.main import main
from shard_cli.programs import WSHARD
from shard_format import FileReference, ShardReader
from shard_format.errors import InvalidArgument, ShardError, UnsafePath
from shard_format.signing import Signature, load_public_key
from shard_train import EpisodeDataset, load_stats
from shardpack.convert import from_image_folder, from_table
from tests.wshard.recording_support import CHANNELS
from wshard import Episode, save_wshard
from wshard.partial import open_partial, recover
from wshard.replay import ReplayBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def never_waits() -> Iterator[None]:
    """Turns waiting forever into a failure."""

    def fail(*_: object) -> None:
        pytest.fail("waited for a pipe")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "ep.wshard.partial"
    os.mkfifo(path)
    return path


def episode() -> Episode:
    ep = Episode("ep", length=20)
    ep.observations["state"] = np.arange(60, dtype="f4").reshape(20, 3)
    return ep


OPENERS: dict[str, Callable[[Path], Any]] = {
    "ShardReader": ShardReader,
    "wshard.load": wshard.load,
    "load_wshard": wshard.load_wshard,
    "detect_format": wshard.detect_format,
    "open_partial": open_partial,
    "recover": recover,
    "record": lambda path: wshard.WShardStreamWriter(
        path.with_suffix(""), "ep", CHANNELS
    ).begin_episode("Test-v0"),
    "load_stats": load_stats,
    "Signature.read": Signature.read,
    "load_public_key": load_public_key,
    "from_table": lambda path: from_table(path, path.parent / "out.shardpack"),
    "shardpack.open": shardpack.open,
    "FileReference.to_file": lambda path: FileReference.to_file(path, relative_to=path.parent),
}


@pytest.mark.parametrize("name", OPENERS)
def test_a_pipe_is_refused_at_once(name: str, pipe: Path) -> None:
    with pytest.raises(InvalidArgument, match="not a regular file"):
        OPENERS[name](pipe)


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="not a regular file"):
        Signature.read("/dev/zero")


def test_statistics_that_are_a_pipe_do_not_stop_training_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "episodes"
    folder.mkdir()
    save_wshard(episode(), folder / "ep.wshard", fsync=False)
    os.mkfifo(tmp_path / "episodes.wshard-stats")
    with pytest.raises(InvalidArgument, match="not a regular file"):
        EpisodeDataset(folder, 4, normalize=True)


def test_metadata_of_images_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    os.mkfifo(tmp_path / "images" / "metadata.jsonl")
    with pytest.raises(InvalidArgument, match="not a regular file"):
        from_image_folder(tmp_path / "images", tmp_path / "out.shardpack")


def test_a_pipe_among_episodes_is_found_damaged_and_the_others_are_examined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_wshard(episode(), tmp_path / "a.wshard", fsync=False)
    os.mkfifo(tmp_path / "b.wshard")
    os.mkfifo(tmp_path / ".c.wshard.0123456789ab.partial")
    assert main(["doctor", str(tmp_path)], WSHARD) != 0
    out = capsys.readouterr().out
    assert "a.wshard: " in out
    assert "not a regular file" in out


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("elsewhere", path)])
def test_a_journal_of_a_replacement_must_be_a_file(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    with shardpack.ShardPackWriter(tmp_path / "a.shardpack", fsync=False) as writer:
        writer.write("key", {"txt": "x"})
    (tmp_path / "elsewhere").write_bytes(b"precious")
    make(tmp_path / ".shardpack-switch")
    with pytest.raises(ShardError):
        shardpack.open(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_a_replacement_moves_nothing_through_a_link(tmp_path: Path) -> None:
    from shard_format.codecs import crc32c

    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_bytes(b"precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    with shardpack.ShardPackWriter(folder / "a.shardpack", fsync=False) as writer:
        writer.write("key", {"txt": "x"})
    (folder / ".set.new").symlink_to(tmp_path / "private")
    plan = b'{"staging": ".set.new", "new": ["key"], "old": []}'
    (folder / ".shardpack-switch").write_bytes(b"%08x\n%s\n" % (crc32c(plan), plan))
    with pytest.raises(UnsafePath):
        shardpack.open(folder)
    assert (tmp_path / "private" / "key").read_bytes() == b"precious"


def test_a_replay_buffer_starts_among_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "000000.wshard")
    os.mkfifo(tmp_path / "000001.wshard.partial")
    with ReplayBuffer(tmp_path, fsync="never", seed=0) as replay:
        assert len(replay.episodes) == 0
        replay.add_episode(episode())
        assert len(replay.episodes) == 1
