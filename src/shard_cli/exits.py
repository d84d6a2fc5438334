"""What each code of spec/registry.md means: for the shell, for `--json`, and for a user."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from shard_cli.text import printable

if TYPE_CHECKING:
    from shard_cli.console import Console
    from shard_format import ShardError


class Exit(IntEnum):
    """Exit codes. A signal gives 128 + its number, as shells report it."""

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
    "transport_error": Exit.IO,
}


def exit_for(code: str) -> Exit:
    """The exit code for an error code."""
    return _BY_CODE.get(code, Exit.FINDING)


def worst(codes: list[Exit]) -> Exit:
    """The exit code for several files: the largest."""
    return max(codes, default=Exit.OK)


def message_of(error: ShardError, *, under: str | None = None) -> str:
    """The error in one line that is safe to print.

    Under a heading that names the file, the message does not name it again.
    """
    text = error.command_text()
    return printable(text if under is None else text.removeprefix(f"{under}: "))


def error_fields(error: ShardError) -> dict[str, Any]:
    """The error as `--json` shows it."""
    return {
        "code": error.code,
        "message": error.command_text(),
        "file": error.path,
        "entry": error.entry,
        "rule": error.rule,
    }


def note_failure(
    error: ShardError, path: str, results: list[dict[str, Any]], console: Console
) -> Exit:
    """One of several files failed: prints the error, adds it to the results, and returns the exit code."""
    results.append({"file": path, "error": error_fields(error)})
    console.error(message_of(error), error.code)
    return exit_for(error.code)


# --- for people

_BY_REMEDY: Final = {
    "check that it is the file you meant": {"bad_magic": "the file does not start with SHRD"},
    "update with: pip install -U shard-format": {
        "unsupported_version": "a later or older format, whose layout this version does not know",
        "unknown_filter": "a later writer transformed the entry in a way that this version cannot undo",
        "unknown_layout": "a later writer stored a channel in a way that this version cannot read",
    },
    "copy or download the file again, and compare sizes": {
        "truncated": "the end of the file is missing",
        "trailing_data": "bytes follow the end: two files joined, or a download that went wrong",
        "bad_header": "a header field holds a value that the format forbids",
        "bad_offset": "the head points outside the file or its sections: damage, or a faulty writer",
        "bad_name": "the table of names is damaged",
    },
    "write the file again with a current writer": {
        "duplicate_name": "readers would disagree about which of the two entries is meant",
        "unknown_codec": "the codec of the entry is unknown",
        "bad_metadata": "JSON that describes the file is malformed; entries can still be read",
        "bad_value": "the bytes are those that were written, but their values make no sense",
    },
    "do not use the file until you know who changed it": {
        "overlap": "two entries claim the same bytes: damage, or a file made to deceive",
        "identity_mismatch": "the content changed after the identity was made",
        "bad_signature": "another key signed, or other content was signed",
        "unsafe_path": "a path leads out of its folder, by mistake or on purpose",
    },
    "restore the file from a copy; 'shard extract' still extracts the other entries": {
        "size_mismatch": "the sizes of the entry contradict each other",
        "bad_compression": "the compressed bytes are damaged",
        "checksum_mismatch": "the bytes are not those that were written",
        "bad_filter": "the description of the filters contradicts the format or the frames",
        "bad_seek_table": "the table of frames at the end of the entry is damaged",
    },
    "if you trust it, raise the limit: --max-decompressed, or Limits in Python": {
        "limit_exceeded": "the file exceeds a security limit"
    },
    "fetch the chunks that are missing, or write the episode again": {
        "chunk_discontinuity": "the chunks of an episode do not follow one another"
    },
    "add what is missing, or write the file with another role": {
        "bad_profile": "readers of this role will refuse the file; it opens as a plain archive"
    },
    "copy it next to the manifest": {
        "missing_file": "a file that belongs to the dataset is not there"
    },
    "restore it, or make the manifest again": {
        "reference_mismatch": "a file changed after the manifest was made"
    },
    "'shard ls' lists the names": {"entry_not_found": "no entry has this name"},
    "read it instead of mapping it": {"not_viewable": "the entry is compressed"},
    "see --help": {"invalid_argument": "the arguments are not valid"},
    "install it as the message says": {"missing_extra": "an optional package is needed"},
    "open it again": {"closed": "the file was closed too early"},
    "check path, permissions and the disk": {"io_error": "the operating system refused"},
    "check the network, and try again later": {"transport_error": "the network or a server failed"},
    "'shard repack' writes a clean file with the same entries": {
        "name_hash_mismatch": "readers that trust the stored hash will not find the entry",
        "nonzero_padding": "something is hidden between the entries, or a writer left old memory there",
        "misaligned": "arrays in these entries cannot be used in place through mmap",
        "no_checksum": "damage to these entries would go unnoticed",
        "not_ascending": "strict readers refuse such files, and reading in order jumps back and forth",
        "nonzero_reserved": "a newer writer, or damage in a field that readers ignore",
        "unreferenced_bytes": "the file is larger than it needs to be",
    },
}
EXPLANATIONS: Final = {
    code: {"meaning": meaning, "remedy": remedy}
    for remedy, meanings in _BY_REMEDY.items()
    for code, meaning in meanings.items()
}
"""What each code means, and what to do about it."""
