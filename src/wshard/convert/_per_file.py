"""Formats in which each episode is a file of its own."""

from __future__ import annotations

import os

__all__ = ["next_path", "stem"]


def stem(path: str) -> str:
    """The name of a file without its ending."""
    return os.path.splitext(os.path.basename(os.path.abspath(path)))[0]


def next_path(path: str, names: list[str], episode: str, suffix: str) -> str:
    """Where the next episode goes: to the path itself, and from the second on all go into a folder there.

    Args:
        path: of the dataset.
        names: of the files so far; gets the name of the new one.
        episode: the id of the episode.
        suffix: of the files.
    """
    plain = "".join(c if c.isalnum() or c in "-_." else "_" for c in episode).lstrip(".")
    base = name = plain or "episode"
    number = 1
    while name + suffix in names:
        number += 1
        name = f"{base}_{number}"
    names.append(name + suffix)
    if len(names) == 1:
        return path
    if len(names) == 2:
        first = f"{path}.first"
        os.rename(path, first)
        os.mkdir(path)
        os.rename(first, os.path.join(path, names[0]))
    return os.path.join(path, names[-1])
