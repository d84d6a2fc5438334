"""The commands for episodes, in the order in which `wshard --help` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli.commands.episodes import (
    compact,
    diff,
    doctor,
    inspect,
    merge,
    plot,
    recover,
    repack,
    slice,
    split,
    stats,
    verify,
)

if TYPE_CHECKING:
    from shard_cli.arguments import Command

EPISODE_COMMANDS: Final[tuple[Command, ...]] = (
    inspect.COMMAND,
    verify.COMMAND,
    doctor.COMMAND,
    diff.COMMAND,
    plot.COMMAND,
    stats.COMMAND,
    slice.COMMAND,
    split.COMMAND,
    merge.COMMAND,
    compact.COMMAND,
    repack.COMMAND,
    recover.COMMAND,
)
