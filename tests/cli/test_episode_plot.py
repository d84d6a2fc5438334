"""`wshard plot`."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.exits import Exit
from wshard import Episode, Timebase, save_wshard

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run

pytest.importorskip("matplotlib")


def test_a_picture_is_drawn(wshard: Run, episode: Path, tmp_path: Path) -> None:
    out = tmp_path / "ep.png"
    result = wshard("plot", episode, "-o", out)
    assert result.code == Exit.OK
    assert out.read_bytes().startswith(b"\x89PNG")
    assert result.out.startswith(f"{out}: ")


def test_channels_and_steps_can_be_chosen(wshard: Run, episode: Path, tmp_path: Path) -> None:
    out = tmp_path / "ep.svg"
    result = wshard(
        *("plot", "--json", episode, "-o", out, "--channels", "joint_pos,ctrl", "--steps", "0s:1s")
    )
    assert result.code == Exit.OK
    assert result.json["size"] == out.stat().st_size
    assert "<svg" in out.read_text()


def test_models_dimensions_and_size_can_be_chosen(wshard: Run, tmp_path: Path) -> None:
    ep = Episode("ep", timebase=Timebase(tick_hz=10))
    ep.observations["joints"] = np.zeros((20, 3), np.float32)
    for model in ("good", "other"):
        ep.omens["joints"][model] = np.ones((20, 3), np.float32)
    ep.omens["joints"]["bad"] = np.ones((20, 2), np.float32)
    path, out = tmp_path / "ep.wshard", tmp_path / "ep.png"
    save_wshard(ep, path, fsync=False)
    refused = wshard("plot", path, "-o", out)
    assert refused.code == Exit.USAGE
    assert "the prediction of 'joints' by 'bad' does not fit its channel" in refused.err
    assert "wshard doctor" in refused.err
    assert not out.exists()
    chosen = ("--models", "good", "--dims", "0,2", "--per-dim", "--size", "8x9", "--dpi", "50")
    assert wshard("plot", path, "-o", out, *chosen).code == Exit.OK
    assert struct.unpack(">II", out.read_bytes()[16:24]) == (400, 450)
    for wrong in (("--dims", "a"), ("--size", "8"), ("--dpi", "0"), ("--dims", "9")):
        assert wshard("plot", path, "-o", out, "--force", *wrong).code == Exit.USAGE


def test_a_channel_that_is_not_there_is_an_error(
    wshard: Run, episode: Path, tmp_path: Path
) -> None:
    result = wshard("plot", episode, "-o", tmp_path / "x.png", "--channels", "joint_poz")
    assert result.code == Exit.FINDING
    assert "joint_pos" in result.err
    assert not (tmp_path / "x.png").exists()


def test_nothing_is_overwritten_without_force(wshard: Run, episode: Path, tmp_path: Path) -> None:
    out = tmp_path / "ep.png"
    out.write_text("precious")
    assert wshard("plot", episode, "-o", out).code == Exit.USAGE
    assert out.read_text() == "precious"
    assert wshard("plot", episode, "-o", out, "--force").code == Exit.OK


def test_the_suffix_says_which_kind(wshard: Run, episode: Path, tmp_path: Path) -> None:
    assert wshard("plot", episode, "-o", tmp_path / "ep").code == Exit.USAGE
    assert wshard("plot", episode, "-o", tmp_path / "ep.docx").code == Exit.USAGE
