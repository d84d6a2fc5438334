"""The commands for packs, in the order in which `shardpack --help` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli.commands.packs import (
    cat,
    create,
    diff,
    extract,
    from_images,
    from_mds,
    from_table,
    from_tar,
    get,
    info,
    join,
    ls,
    merge,
    pack_episodes,
    recover,
    split,
    stats,
    to_mds,
    to_tar,
    unpack,
    verify,
)

if TYPE_CHECKING:
    from shard_cli.arguments import Command

PACK_COMMANDS: Final[tuple[Command, ...]] = (
    create.COMMAND,
    ls.COMMAND,
    info.COMMAND,
    stats.COMMAND,
    cat.COMMAND,
    get.COMMAND,
    extract.COMMAND,
    verify.COMMAND,
    recover.COMMAND,
    diff.COMMAND,
    join.COMMAND,
    merge.COMMAND,
    split.COMMAND,
    from_tar.COMMAND,
    to_tar.COMMAND,
    from_mds.COMMAND,
    to_mds.COMMAND,
    from_table.COMMAND,
    from_images.COMMAND,
    pack_episodes.COMMAND,
    unpack.COMMAND,
)
