"""The doors of the program: `shard` for any file, `wshard` for episodes, `shardpack` for data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from shard_cli.commands import COMMANDS, cat, extract, get, identity, ls
from shard_cli.commands.episodes import EPISODE_COMMANDS
from shard_cli.commands.packs import PACK_COMMANDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shard_cli.arguments import Command


class Door(NamedTuple):
    """One name under which the program is called, and what it offers there."""

    program: str
    description: str
    commands: tuple[Command, ...]
    epilog: str = ""

    def examples(self, command: Command) -> Sequence[tuple[str, str]]:
        """The examples of a command as one types them at this door."""
        typed = f"shard {command.name}"
        if self.program == "shard" or command in (*EPISODE_COMMANDS, *PACK_COMMANDS):
            return command.examples
        suffix = f".{self.program}"
        return [
            (line.replace(typed, f"{self.program} {command.name}").replace(".shard", suffix), text)
            for line, text in command.examples
        ]


SHARD: Final = Door(
    "shard", "Look into, check, make and change files of the Shard family.", COMMANDS
)
WSHARD: Final = Door(
    "wshard",
    "Look into, check and change episodes: files of robots, agents and world models.",
    (
        *EPISODE_COMMANDS,
        ls.COMMAND,
        cat.COMMAND,
        get.COMMAND,
        extract.COMMAND,
        identity.COMMAND,
    ),
    "\n'shard' is the same program for any file of the family",
)
SHARDPACK: Final = Door(
    "shardpack",
    "Make, look into, check and change packs: data sets of samples in sharded files.",
    PACK_COMMANDS,
    "\nwhere a PACK is asked for: a file, 'train-{000000..000009}.shardpack', 'train-*', a folder, a URL"
    "\n'shard' is the same program for any file of the family",
)
