"""What a failure is for the shell and for `--json`: the Exit column of spec/registry.md."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from shard_cli.text import printable

if TYPE_CHECKING:
    from shard_format import ShardError


class Exit(IntEnum):
    """Exit codes. Signals give 128 + their number, as shells report them."""

    OK = 0
    FINDING = 1
    USAGE = 2
    IO = 3
    UNSUPPORTED = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


# Every other code is something found in a file.
_BY_CODE: Final = {
    "unsupported_version": Exit.UNSUPPORTED,
    "unknown_filter": Exit.UNSUPPORTED,
    "unknown_layout": Exit.UNSUPPORTED,
    "invalid_argument": Exit.USAGE,
    "missing_extra": Exit.USAGE,
    "closed": Exit.USAGE,
    "io_error": Exit.IO,
}

# The library's hints speak of its keyword arguments. What marks such a hint, and what to say instead.
_HINTS: Final = (
    ("max_decompressed_bytes=…) if", "give --max-decompressed SIZE if you trust the file"),
    ("compression='none'", "use --compression none"),
    ("allow_outside=True", "give --allow-outside if you trust the manifest"),
    ("names()", "'shard ls' lists the entries"),
    ("identity=False", "leave out --identity"),
    ("ShardReader opens any file", "'shard info' says what it is"),
    ("shardpack.recover(", "'shardpack recover' brings back every complete record"),
    ("max_record_bytes=…", "give a larger --record-size-limit if you trust the file"),
    ("pass metadata={…}", "give --metadata KEY=VALUE with what is true of the new shards"),
    ('join({"left"', "NAME=PACK puts a name before the entries of a pack"),
    ("exact=False", "give --inexact if nobody reads it back"),
    ("another metadata_entry", "give another --metadata-entry"),
    ("others='skip'", "give --skip-others to leave them out"),
    ("orphans='skip'", "give --skip-orphans to leave them out"),
    ("columns=[…]", "give --column for each of the others"),
    ("encodings={", "give another --encoding: COLUMN=bytes for an entry, COLUMN=json for a field"),
    ("give another key, or None", "give another --key, or --no-key"),
    ('align="key"', "give --align key"),
    ("wshard.save_stats(", "give --force to make them anew"),
    ("check=False", None),
    ("append=True", "give --force to replace them"),
    ("limits=", None),
)


def exit_for(code: str) -> Exit:
    """The exit code that stands for an error code."""
    return _BY_CODE.get(code, Exit.FINDING)


def worst(codes: list[Exit]) -> Exit:
    """The exit code for several files: the largest says most about what went wrong."""
    return max(codes, default=Exit.OK)


def in_terms_of_options(error: ShardError) -> ShardError:
    """The same error, with a hint that a user of the command line can follow."""
    error.hint = hint_in_terms_of_options(error.hint)
    return error


def hint_in_terms_of_options(hint: str | None) -> str | None:
    """A hint that a user of the command line can follow; None if there is none."""
    for mark, other in _HINTS:
        if hint is not None and mark in hint:
            hint = other
    return hint


def message_of(error: ShardError, *, under: str | None = None) -> str:
    """The error in one line that is safe to print: names and paths come from anywhere.

    Under a heading that names the file, the message does not name it again.
    """
    text = str(in_terms_of_options(error))
    return printable(text if under is None else text.removeprefix(f"{under}: "))


def error_fields(error: ShardError) -> dict[str, Any]:
    """The error as `--json` shows it."""
    return {
        "code": error.code,
        "message": str(in_terms_of_options(error)),
        "file": error.path,
        "entry": error.entry,
        "rule": error.rule,
    }
