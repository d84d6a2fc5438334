"""The lines that people already know, as they stand in the documents this project came from."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import numpy as np

import wshard
from tests.wshard.support import ramp
from wshard import Episode

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

READING = """
from wshard import load_wshard, save_wshard, ChunkedEpisodeWriter, validate_chunk_continuity
save_wshard(episode, "ep.wshard")
ep = load_wshard("ep.wshard")            # ep.id ep.env_id ep.length ep.observations["state"].data ep.actions["ctrl"].data ep.omens …
found = (ep.id, ep.env_id, ep.length, ep.observations["state"].data, ep.actions["ctrl"].data, ep.omens)
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
    run(NAMES)


def test_the_lines_in_the_packages_docstring_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = wshard.__doc__ or ""
    lines = dedent("\n".join(line for line in text.splitlines() if line.startswith("    ")))
    run(lines, positions=np.zeros((200, 7)))
