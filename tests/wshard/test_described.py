"""What a file says of its blocks, known without making channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from pathlib import Path


def test_dtypes_and_shapes_are_known_before_any_lane_is_made(tmp_path: Path) -> None:
    episode = Episode("ep", observations={"rgb": np.zeros((5, 4, 4, 3), np.uint8)})
    episode.actions["ctrl"] = np.zeros((5, 2), np.float32)
    expected = {"signal/rgb": ("u8", (4, 4, 3)), "action/ctrl": ("f32", (2,))}
    assert episode.described == expected
    save_wshard(episode, tmp_path / "e.wshard")
    loaded = load_wshard(tmp_path / "e.wshard")
    assert loaded.described == expected
    assert loaded.observations["rgb"].step_shape == (4, 4, 3)
    assert loaded.described == expected
