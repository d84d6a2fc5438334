"""What the tests of the command line share: running it, and small files to run it on."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from shard_cli.main import main
from shard_cli.programs import SHARDPACK, WSHARD
from shard_format import ShardReader, ShardWriter, WriterOptions
from wshard import Channel, Episode, save_wshard
from wshard.types import FileOptions, Interval, Timebase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Result:
    """What one run of the program gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The document on stdout."""
        document: dict[str, Any] = json.loads(self.out)
        assert document["schema_version"] == 1
        return document


def listen_to_interrupts() -> None:
    """For `preexec_fn`: tests in the background of a shell inherit that interrupts are ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run(Protocol):
    """Runs the program in this process."""

    def __call__(self, *arguments: str | Path) -> Result: ...


class Make(Protocol):
    """Writes a Shard file from names and contents."""

    def __call__(
        self,
        name: str,
        entries: Mapping[str, bytes],
        **options: Any,  # noqa: ANN401 - the writer's
    ) -> Path: ...


class Terminal(Protocol):
    """Runs the program in a terminal and returns exit code and what the terminal got."""

    def __call__(
        self, *arguments: str | Path, columns: int = 80, module: str = "shard_cli"
    ) -> tuple[int, str]: ...


class MakeEpisode(Protocol):
    """Writes an episode; options are those of `save_wshard`."""

    def __call__(
        self,
        name: str = "ep.wshard",
        *,
        steps: int = 60,
        change: Callable[[Episode], None] | None = None,
        **options: Any,  # noqa: ANN401 - the writer's
    ) -> Path: ...


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the machine that runs the tests must not change what they see."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))


@pytest.fixture
def run(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def run_in_process(*arguments: str | Path) -> Result:
        code = main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return Result(code, os.fsdecode(out), os.fsdecode(err))

    return run_in_process


@pytest.fixture
def wshard(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the program through the door for episodes."""

    def run_in_process(*arguments: str | Path) -> Result:
        code = main([str(argument) for argument in arguments], WSHARD)
        out, err = capsysbinary.readouterr()
        return Result(code, os.fsdecode(out), os.fsdecode(err))

    return run_in_process


@pytest.fixture
def pack(capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs the program through the door for packs of samples."""

    def run_in_process(*arguments: str | Path) -> Result:
        code = main([str(argument) for argument in arguments], SHARDPACK)
        out, err = capsysbinary.readouterr()
        return Result(code, os.fsdecode(out), os.fsdecode(err))

    return run_in_process


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of samples: two files of one stem each, in two folders."""
    folder = tmp_path / "photos"
    for number in range(12):
        kind = folder / ("cats" if number % 2 else "dogs")
        kind.mkdir(parents=True, exist_ok=True)
        kind.joinpath(f"{number:04}.jpg").write_bytes(bytes([number]) * (1000 + number))
        kind.joinpath(f"{number:04}.json").write_text(json.dumps({"label": number, "x": "y" * 600}))
    return folder


def new_episode(name: str = "ep_001", steps: int = 60) -> Episode:
    """An episode with a bit of everything, always the same."""
    random = np.random.default_rng(7)
    phase = np.arange(steps)[:, None] / 30 + np.arange(3)
    clock = Timebase(tick_hz=30)
    episode = Episode(name, "Reach-v1", timebase=clock)
    episode.metadata = {"task": "reach the cup", "seed": 7}
    episode.observations["joint_pos"] = Channel(data=np.sin(phase).astype("f4"), unit="rad")
    episode.observations["rgb"] = random.integers(0, 50, (steps, 8, 8, 3)).astype("u1")
    episode.observations["imu"] = Channel(
        data=random.normal(size=(4 * steps, 2)).astype("f4"), start_ns=0, sampling_rate_hz=120.0
    )
    episode.observations["said"] = [f"step {step}" for step in range(steps)]
    episode.actions["ctrl"] = random.normal(size=(steps, 3)).astype("f4")
    episode.rewards = random.random(steps).astype("f4")
    episode.terminations = np.arange(steps) == steps - 1
    episode.omens["joint_pos"]["dreamer"] = np.cos(phase).astype("f4")
    episode.labels["phase"] = [
        Interval(0, steps // 2, "reach"),
        Interval(steps // 2, steps, "lift"),
    ]
    return episode


@pytest.fixture
def make_episode(tmp_path: Path) -> MakeEpisode:
    def make_file(
        name: str = "ep.wshard",
        *,
        steps: int = 60,
        change: Callable[[Episode], None] | None = None,
        **options: Any,  # noqa: ANN401 - the writer's
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        episode = new_episode(path.stem, steps)
        if change is not None:
            change(episode)
        save_wshard(episode, path, fsync=False, **options)
        return path

    return make_file


@pytest.fixture
def episode(make_episode: MakeEpisode) -> Path:
    """A compressed episode with its identity."""
    return make_episode("ep_001.wshard", profile="training", options=FileOptions(identity=True))


@pytest.fixture
def damaged_episode(make_episode: MakeEpisode) -> Path:
    """An episode with a flipped byte in its pictures."""
    path = make_episode("damaged.wshard")
    flip_in(path, "signal/rgb")
    return path


def flip_in(path: Path, entry: str) -> None:
    """Changes one byte of an entry."""
    with ShardReader(path) as reader:
        offset = reader.info(entry).data_offset
    data = bytearray(path.read_bytes())
    data[offset + 5] ^= 1
    path.write_bytes(data)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make_file(
        name: str,
        entries: Mapping[str, bytes],
        **options: Any,  # noqa: ANN401 - the writer's
    ) -> Path:
        path = tmp_path / name
        per_entry = {
            key: options.pop(key)
            for key in ("content_type", "tags", "frame_bytes")
            if key in options
        }
        if "schema" in options:
            options["options"] = WriterOptions(schema=options.pop("schema"))
        with ShardWriter(path, fsync=False, **options) as writer:
            for entry, content in entries.items():
                writer.write_entry(entry, content, **per_entry)
        return path

    return make_file


@pytest.fixture
def terminal() -> Terminal:
    def run_in_terminal(
        *arguments: str | Path, columns: int = 80, module: str = "shard_cli"
    ) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        environment = {**os.environ, "COLUMNS": str(columns)}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        pieces = []
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not piece:
                break
            pieces.append(piece)
        os.close(ours)
        return process.wait(), b"".join(pieces).decode()

    return run_in_terminal


@pytest.fixture
def sample(make: Make) -> Path:
    """A file with a bit of everything."""
    return make(
        "sample.shard",
        {
            "meta/about": b'{"a":1}',
            "signal/zeros": bytes(5000),
            "signal/text": b"line\n" * 200,
            "empty": b"",
        },
        compression="zstd",
        options=WriterOptions(schema={"description": "a sample", "x_unknown": {"kept": [1, 2]}}),
        tags=["left"],
        content_type="text",
        identity=True,
    )


@pytest.fixture
def damaged(make: Make) -> Path:
    """A file with a good entry and one with a flipped byte."""
    path = make("damaged.shard", {"good": b"fine", "signal/text": b"line\n" * 200})
    data = bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    return path


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    """A private and a public key file."""
    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "pub.pem"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public
