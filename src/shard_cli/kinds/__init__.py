"""What the verbs ask of a file, by its kind: container, episode or pack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.files import is_pack

if TYPE_CHECKING:
    from shard_cli.kinds.model import Kind, Readable


def readable_kind(path: str, program: str) -> Readable:
    """A kind whose contents can be listed and read. `shardpack` works on packs; the others look at the file."""
    from shard_cli.kinds import container, pack

    return pack if program == "shardpack" or is_pack(path) else container


def kind_of(path: str, program: str) -> Kind:
    """The kind that a program takes a file for."""
    if program != "wshard":
        return readable_kind(path, program)
    from shard_cli.kinds import episode

    return episode
