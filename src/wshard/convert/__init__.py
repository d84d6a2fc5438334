"""Datasets of other formats: read them as episodes, and write episodes as them.

    import wshard.convert

    for episode in wshard.convert.read("D4RL/door/human-v2"):
        print(episode, episode.changes)
    wshard.convert.write(episodes, "demo.hdf5", format="robomimic")
    wshard.convert.convert("D4RL/door/human-v2", "door")        # a folder of .wshard files

Each format is one module and needs only its own packages; `formats()` lists them with their extras.
"""

from wshard.convert._door import detect, formats, read, read_only_episode, write
from wshard.convert._engine import ConvertOptions, convert
from wshard.convert._mapped_hdf5 import load_mapping, suggest_mapping
from wshard.convert._model import ConversionReport, ConvertedEpisode, FieldChange, Format
from wshard.convert._parts import commit_parts

__all__ = [
    "ConversionReport",
    "ConvertOptions",
    "ConvertedEpisode",
    "FieldChange",
    "Format",
    "commit_parts",
    "convert",
    "detect",
    "formats",
    "load_mapping",
    "read",
    "read_only_episode",
    "suggest_mapping",
    "write",
]
