"""`wshard diff`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.exits import Exit
from wshard import add_lane

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import MakeEpisode, Run
    from wshard import Episode


@pytest.fixture
def other(make_episode: MakeEpisode) -> Path:
    """An episode that differs from `episode` in everything that can differ."""

    def change(episode: Episode) -> None:
        episode.id = "ep_001"
        values = np.array(episode.observations["joint_pos"].data)
        values[5, 0] += 0.25
        values[9, 1] -= 0.5
        episode.observations["joint_pos"].data = values
        del episode.observations["imu"]
        episode.actions["grip"] = np.zeros((60, 1), "f4")
        episode.observations["rgb"] = np.zeros((60, 4, 4, 3), "u1")
        episode.metadata["seed"] = 8

    return make_episode("other.wshard", change=change)


def test_the_same_content_is_the_same_however_it_is_stored(
    wshard: Run, episode: Path, make_episode: MakeEpisode
) -> None:
    raw = make_episode("raw.wshard", change=lambda e: setattr(e, "id", "ep_001"))
    result = wshard("diff", episode, raw)
    assert (result.code, result.out) == (Exit.OK, "same: all blocks of 60 steps\n")
    assert wshard("diff", "-q", episode, raw).out == ""


def test_each_difference_is_a_line(wshard: Run, episode: Path, other: Path) -> None:
    result = wshard("diff", episode, other)
    assert result.code == Exit.FINDING
    for line in (
        "- signal/imu: only in A\n",
        "+ action/grip: only in B\n",
        "~ signal/joint_pos: 2 of 60 steps differ, first at 5, by at most 0.5\n",
    ):
        assert line in result.out, line
    assert "~ signal/rgb: " in result.out
    assert "* meta/episode: metadata: " in result.out
    assert "1 only in A" in result.out


def test_json_lists_them(wshard: Run, episode: Path, other: Path) -> None:
    result = wshard("diff", "--json", episode, other)
    assert result.code == Exit.FINDING
    assert result.json["same"] is False
    kinds = {one["block"]: one["kind"] for one in result.json["differences"]}
    assert kinds["signal/imu"] == "only_in_a"
    assert kinds["action/grip"] == "only_in_b"
    assert kinds["signal/joint_pos"] == "values"
    assert kinds["signal/rgb"] == "form"


def test_brief_only_says_that_they_differ(wshard: Run, episode: Path, other: Path) -> None:
    assert wshard("diff", "--brief", episode, other).out == f"{episode} and {other} differ\n"


def test_values_can_be_left_alone(wshard: Run, episode: Path, make_episode: MakeEpisode) -> None:
    def change(other: Episode) -> None:
        other.id = "ep_001"
        other.rewards = np.zeros(60, "f4")

    zero = make_episode("zero.wshard", change=change)
    assert wshard("diff", episode, zero).code == Exit.FINDING
    assert wshard("diff", "--no-values", episode, zero).code == Exit.OK


def test_lanes_that_were_added_later_count(
    wshard: Run, episode: Path, make_episode: MakeEpisode
) -> None:
    other = make_episode("copy/ep_001.wshard")
    assert wshard("diff", episode, other).code == Exit.OK
    add_lane(other, "omen/joint_pos/v2", np.ones((60, 3), "f4"))
    result = wshard("diff", episode, other)
    assert "+ omen/joint_pos/v2: only in B\n" in result.out
    assert wshard("diff", "--no-sidecars", episode, other).code == Exit.OK


def test_a_file_that_does_not_open_is_an_error(wshard: Run, episode: Path) -> None:
    result = wshard("diff", episode, "absent.wshard")
    assert result.code == Exit.IO
    assert result.err.startswith("wshard: error: absent.wshard: ")
