"""What the verbs ask of a file, by its kind: container, episode or pack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shard_cli.kinds.model import Kind, Readable

# Bytes 8 to 11 of a shard: spec/shardpack.md, sections 2 and 7.
_PACK_MARKERS: Final = (b"SPR1", b"SPI1")


def is_pack(path: str) -> bool:
    """Whether `path` is a shard of a dataset, or stands for several."""
    from shard_format.errors import ShardError, ShardIOError
    from shard_format.sources import read_file

    try:
        return read_file(path, 12)[8:] in _PACK_MARKERS
    except ShardIOError:
        return path.endswith(".shardpack")
    except ShardError:  # a pipe, which cannot be read again
        return False


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
