"""The three programs: `shard` for any file, `wshard` for episodes, `shardpack` for packs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from shard_cli.arguments import FILE, FILES, PACK, PACKS
from shard_cli.commands import (
    cat,
    convert,
    convert_episodes,
    create,
    create_pack,
    diff,
    doctor,
    edit,
    extract,
    identity,
    info,
    ls,
    merge,
    pack_episodes,
    plot,
    recover,
    repack,
    select,
    split,
    stats,
    verify,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_cli.arguments import Argument, Command


class Program(NamedTuple):
    """One name under which the program is called, and the commands it has there."""

    name: str
    description: str
    commands: tuple[Command, ...]
    """In the order of `--help`."""
    epilog: str = ""

    def __hash__(self) -> int:
        return hash(self.name)  # its arguments are dictionaries, which cannot be hashed

    def examples(self, command: Command) -> list[tuple[str, str]]:
        """The examples of a command as you type them in this program, each with what it does."""
        typed = f"{self.name} {command.name} "
        own = [row for row in command.examples if f" {typed}" in f" {row[0]}"]
        return own or [
            (line.replace(f"shard {command.name} ", typed).replace(".shard", f".{self.name}"), what)
            for line, what in command.examples
            if line.startswith("shard ")
        ]

    def arguments(self, command: Command) -> Iterator[Argument]:
        """The arguments of a command; what other programs call FILE is a PACK for `shardpack`."""
        for argument in command.arguments:
            is_pack = self.name == "shardpack" and argument in (FILE, FILES)
            yield {"file": PACK, "files": PACKS}[argument.names[0]] if is_pack else argument


SHARD: Final = Program(
    "shard",
    "Inspect, check, make and change files of the Shard family.",
    (
        info.INFO,
        ls.LS,
        cat.CAT,
        cat.GET,
        extract.EXTRACT,
        create.SHARD,
        repack.SHARD,
        verify.SHARD,
        doctor.SHARD,
        diff.DIFF,
        identity.IDENTITY,
    ),
)
WSHARD: Final = Program(
    "wshard",
    "Inspect, check and change episodes: recordings of robots, agents and world models.",
    (
        info.INSPECT,
        verify.WSHARD,
        doctor.WSHARD,
        diff.WSHARD,
        plot.PLOT,
        view.VIEW,
        stats.WSHARD,
        split.SLICE,
        split.WSHARD,
        merge.WSHARD,
        edit.EDIT,
        edit.COMPACT,
        repack.WSHARD,
        recover.WSHARD,
        convert_episodes.CONVERT,
        convert_episodes.COMMIT,
        ls.LS,
        cat.CAT,
        cat.GET,
        extract.EXTRACT,
        identity.IDENTITY,
    ),
    "\n'shard' is the same program for any file of the family",
)
SHARDPACK: Final = Program(
    "shardpack",
    "Make, inspect, check and change packs: datasets of samples in sharded files.",
    (
        create_pack.SHARDPACK,
        merge.COMMIT,
        ls.LS,
        info.INFO,
        stats.SHARDPACK,
        cat.CAT,
        cat.GET,
        extract.EXTRACT,
        verify.SHARDPACK,
        recover.SHARDPACK,
        diff.DIFF,
        merge.JOIN,
        merge.SHARDPACK,
        split.SHARDPACK,
        select.FILTER,
        select.SORT,
        select.SAMPLE,
        convert.FROM_TAR,
        convert.TO_TAR,
        convert.FROM_MDS,
        convert.FROM_TABLE,
        convert.TO_TABLE,
        convert.FROM_IMAGES,
        pack_episodes.PACK_EPISODES,
    ),
    "\na PACK is a file, train.shardpack-set, 'train-{000000..000009}.shardpack', 'train-*', a folder or a URL"
    "\n'shard' is the same program for any file of the family",
)
PROGRAMS: Final = (SHARD, WSHARD, SHARDPACK)
