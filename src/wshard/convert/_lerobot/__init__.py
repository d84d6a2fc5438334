"""LeRobot datasets: v2.0, v2.1 and v3.0 are read, v3.0 is written.

A dataset is a folder: `meta/` describes features, episodes and tasks, `data/` has the steps in Parquet files, `videos/`
the cameras in mp4 files. Until v2.1 each episode has files of its own; in v3.0 a file holds many episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wshard.convert._lerobot._reader import LeRobotReader
from wshard.convert._lerobot._writer import LeRobotWriter

if TYPE_CHECKING:
    from wshard.convert._model import Probe

__all__ = ["LeRobotReader", "LeRobotWriter", "recognises"]


def recognises(probe: Probe) -> bool:
    """Whether it is a folder with the `meta/info.json` of a LeRobot dataset."""
    if "meta" not in probe.names:
        return False
    info = probe.json("meta", "info.json")
    # A version that cannot be read is still LeRobot's: the reader raises an error that names it.
    version = info.get("codebase_version")
    return isinstance(info.get("features"), dict) and isinstance(version, str)
