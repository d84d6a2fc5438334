"""The lines that people already know, as they stand in the documents this project came from."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wshard
from shard_format.errors import InvalidArgument, ShardError
from tests.wshard.support import ramp
from wshard import Episode

if TYPE_CHECKING:
    from pathlib import Path

READING = """
from wshard import load_wshard, save_wshard, WShardStreamWriter, ChunkedEpisodeWriter, validate_chunk_continuity
save_wshard(episode, "ep.wshard")
ep = load_wshard("ep.wshard")            # ep.id ep.env_id ep.length ep.observations["state"].data ep.actions["ctrl"].data ep.omens …
found = (ep.id, ep.env_id, ep.length, ep.observations["state"].data, ep.actions["ctrl"].data, ep.omens)
"""
RECORDING = """
from wshard import WShardStreamWriter
with WShardStreamWriter(path, "ep_001", channels) as w:      # channels: [{"id","dtype","shape","compression"}, …]
    w.begin_episode()
    for t in range(T): w.write_timestep({"state": obs, "ctrl": act}, reward=r, done=d)
    w.end_episode()
"""
FORMATS = """
from wshard import load, save
save(episode, "saved.wshard")
again = load("saved.wshard")
"""
CHUNKS = """
from wshard import ChunkedEpisodeWriter, validate_chunk_continuity
writer = ChunkedEpisodeWriter("data/ep_001", "ep_001", chunk_size_t=1000)
for chunk in chunks: writer.write_chunk(chunk)
validate_chunk_continuity(writer.finalize_manifest())
"""
NAMES = """
from wshard.chunked import ChunkedEpisodeReader, ChunkedEpisodeWriter, validate_chunk_continuity
from wshard.types import Episode, Channel, DType, Modality
from wshard.residual import compute_sign2nd_diff, pack_residual_bits, unpack_residual_bits
from wshard.multimodal import add_multimodal_observation, get_multimodal_observations
from wshard.latent import set_latent_actions, get_latent_actions, get_latent_codebook
from wshard.streaming import WShardStreamWriter
from wshard.deepdata_bridge import TrajectoryIngestor, TrajectoryRetriever
"""


def run(lines: str, **given: Any) -> dict[str, Any]:  # noqa: ANN401 - the variables of a script
    """Runs lines as a script and returns its variables."""
    variables: dict[str, Any] = dict(given)
    exec(compile(lines, "<lines>", "exec"), variables)  # noqa: S102 - the lines are ours
    return variables


def test_the_promised_lines_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    episode = Episode("ep", "env", observations={"state": ramp(5)}, actions={"ctrl": ramp(5)})
    found = run(READING, episode=episode)["found"]
    assert found[:3] == ("ep", "env", 5)
    assert found[3].tolist() == ramp(5).tolist()
    run(CHUNKS, chunks=[episode, episode])
    channels = [
        {"id": "state", "dtype": "f32", "shape": [4], "compression": "zstd"},
        {"id": "ctrl", "dtype": "f32", "shape": [2], "compression": "none"},
    ]
    step = {"obs": np.ones(4, np.float32), "act": np.zeros(2, np.float32), "r": 1.0, "d": False}
    run(RECORDING, path="rec.wshard", channels=channels, T=7, **step)
    assert wshard.load_wshard("rec.wshard").length == 7
    assert run(FORMATS, episode=episode)["again"].id == "ep"
    run(NAMES)


def test_the_lines_in_the_packages_docstring_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = wshard.__doc__ or ""
    lines = dedent("\n".join(line for line in text.splitlines() if line.startswith("    ")))
    run(lines, positions=np.zeros((200, 7)))


def test_a_file_of_a_neighbour_is_named_and_refused(tmp_path: Path) -> None:
    (tmp_path / "episode.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ShardError, match="PNG"):
        wshard.load(tmp_path / "episode.png")
    with pytest.raises(InvalidArgument, match="ending"):
        wshard.save(Episode("ep"), tmp_path / "episode.h5")
    with pytest.raises(ShardError, match="no such file"):
        wshard.detect_format(tmp_path / "missing.wshard")


def test_a_recording_that_was_not_finished_is_told_by_its_bytes(tmp_path: Path) -> None:
    writer = wshard.WShardStreamWriter(tmp_path / "e.wshard", "ep", [{"id": "x"}])
    writer.begin_episode()
    writer.write_timestep({"x": 1.0})
    writer.close()
    partial = tmp_path / "e.wshard.partial"
    assert wshard.detect_format(partial) == "partial"
    assert wshard.load(partial).length == 1
