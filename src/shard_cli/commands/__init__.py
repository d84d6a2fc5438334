"""The commands, in the order in which `shard --help` lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shard_cli.commands import (
    cat,
    create,
    diff,
    doctor,
    extract,
    get,
    identity,
    info,
    ls,
    repack,
    verify,
)

if TYPE_CHECKING:
    from shard_cli.arguments import Command

COMMANDS: Final[tuple[Command, ...]] = (
    info.COMMAND,
    ls.COMMAND,
    cat.COMMAND,
    get.COMMAND,
    extract.COMMAND,
    create.COMMAND,
    repack.COMMAND,
    verify.COMMAND,
    doctor.COMMAND,
    diff.COMMAND,
    identity.COMMAND,
)
