"""`wshard plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit

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
