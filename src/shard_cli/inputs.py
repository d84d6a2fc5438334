"""What `shard create` packs: the files behind its arguments, each with the name it will have."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from shard_cli.files import STDIN, same_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PIECE: Final = 1 << 20
_KINDS: Final = (
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
)


@dataclass(frozen=True, slots=True)
class Input:
    """One entry to be."""

    name: str
    path: str
    size: int | None
    """None where only reading shows it: stdin and pipes."""

    def iter_pieces(self) -> Iterator[bytes]:
        """The content, in pieces."""
        if self.path == STDIN:
            while piece := sys.stdin.buffer.read(_PIECE):
                yield piece
            return
        with open(self.path, "rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                yield piece


@dataclass(slots=True)
class Inputs:
    """Everything that the arguments name."""

    files: list[Input] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Paths that are not packed, with the reason."""


def collect(arguments: Sequence[str], *, prefix: str, output: str) -> Inputs:
    """The files that the arguments name, in order; folders sorted.

    Args:
        arguments: files, folders, NAME=PATH and NAME=-.
        prefix: what every name starts with.
        output: the file to be written, which is never one of the inputs.
    """
    found = Inputs()
    for argument in arguments:
        name, path = _split(argument)
        if path == STDIN:
            found.files.append(Input(prefix + name, STDIN, None))
        else:
            _add(found, prefix, name, path, output)
    _refuse_repeated(found.files)
    return found


def _split(argument: str) -> tuple[str, str]:
    """Name and path; a file whose own name has an equals sign wins over NAME=PATH."""
    from shard_format.errors import InvalidArgument

    name, equals, path = argument.partition("=")
    if equals and name and path and not os.path.lexists(argument):
        return name, path
    if argument == STDIN:
        raise InvalidArgument("stdin needs a name", expected="NAME=-", found="-")
    return "", argument


def _add(found: Inputs, prefix: str, name: str, path: str, output: str) -> None:
    from shard_format.errors import InvalidArgument, ShardIOError

    try:
        status = os.stat(path)
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", path) from error
    if stat.S_ISDIR(status.st_mode):
        if os.path.islink(path):
            raise InvalidArgument(
                "a symbolic link to a folder is not followed",
                path=path,
                hint="give the folder itself, or put a / behind the link",
            )
        _walk(found, path, prefix + (f"{name}/" if name else ""), output)
    elif stat.S_ISSOCK(status.st_mode) or stat.S_ISBLK(status.st_mode):
        found.skipped.append((path, kind_of(status.st_mode)))
    elif same_file(path, output):
        found.skipped.append((path, "the output itself"))
    else:
        # A pipe given by hand, as the shell's <(…) is one, can be read once: that is enough.
        size = status.st_size if stat.S_ISREG(status.st_mode) else None
        found.files.append(Input(prefix + (name or os.path.basename(path)), path, size))


def _walk(found: Inputs, folder: str, prefix: str, output: str) -> None:
    with os.scandir(folder) as scan:
        children = sorted(scan, key=lambda child: os.fsencode(child.name))
    for child in children:
        status = child.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            _walk(found, child.path, f"{prefix}{child.name}/", output)
        elif not stat.S_ISREG(status.st_mode):
            found.skipped.append((child.path, kind_of(status.st_mode)))
        elif same_file(child.path, output):
            found.skipped.append((child.path, "the output itself"))
        else:
            found.files.append(Input(prefix + child.name, child.path, status.st_size))


def kind_of(mode: int) -> str:
    """What a file is that is neither a file nor a folder."""
    return next((what for test, what in _KINDS if test(mode)), "a symbolic link")


def _refuse_repeated(files: list[Input]) -> None:
    from shard_format.errors import InvalidArgument

    seen: dict[str, str] = {}
    for file in files:
        other = seen.setdefault(file.name, file.path)
        if other is not file.path:
            raise InvalidArgument(
                f"{other} and {file.path} would have the same name",
                entry=file.name,
                rule="S-NAM-4",
                hint="rename one with NAME=PATH",
            )
