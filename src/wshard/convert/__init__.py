"""Datasets of other formats: read them as episodes, and write episodes as them.

    import wshard.convert

    for episode in wshard.convert.read("D4RL/door/human-v2"):
        print(episode, episode.changes)
    wshard.convert.write(episodes, "demo.hdf5", format="robomimic")

Each format is one module and needs only its own packages; `formats()` lists them with their extras.
"""

from wshard.convert._door import formats, read, write
from wshard.convert._model import Change, ConvertedEpisode, Format, Report
from wshard.convert._registry import detect

__all__ = [
    "Change",
    "ConvertedEpisode",
    "Format",
    "Report",
    "detect",
    "formats",
    "read",
    "write",
]
