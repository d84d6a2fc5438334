"""What each code of spec/registry.md means for the person in front of the screen, and what to do."""

from __future__ import annotations

from typing import Final, NamedTuple


class Explanation(NamedTuple):
    """Meaning and remedy of one code."""

    meaning: str
    remedy: str


_COPY_AGAIN = "copy or download the file again, and compare sizes"
_RESTORE = "restore the file from a copy; 'shard extract' still gets the other entries"
_REWRITE = "write the file again with a current writer"
_NOT_TRUSTED = "do not use the file before you know who changed it"
_UPDATE = "update with: pip install -U shard-format"
_REPACK = "'shard repack' writes a clean file with the same entries"

EXPLANATIONS: Final[dict[str, Explanation]] = {
    "bad_magic": Explanation(
        "the file does not start with SHRD", "check that it is the file you meant"
    ),
    "unsupported_version": Explanation(
        "a later or older format, whose layout this version does not know",
        _UPDATE,
    ),
    "truncated": Explanation("the end of the file is missing", _COPY_AGAIN),
    "trailing_data": Explanation(
        "bytes follow the end: two files joined, or a download that went wrong", _COPY_AGAIN
    ),
    "bad_header": Explanation("a header field holds a value that the format forbids", _COPY_AGAIN),
    "bad_offset": Explanation(
        "the head points to places where nothing can be: damaged, or written by a faulty program",
        _COPY_AGAIN,
    ),
    "bad_name": Explanation("the table of names is damaged", _COPY_AGAIN),
    "duplicate_name": Explanation(
        "readers would disagree about which of the two entries is meant", _REWRITE
    ),
    "overlap": Explanation(
        "two entries claim the same bytes: damage, or a file made to deceive", _NOT_TRUSTED
    ),
    "size_mismatch": Explanation("the sizes of the entry contradict each other", _RESTORE),
    "limit_exceeded": Explanation(
        "the file asks for more than a reader gives to files it does not know",
        "if you trust it, raise the limit: --max-decompressed, or Limits in Python",
    ),
    "unknown_codec": Explanation("nobody can tell how the entry is compressed", _REWRITE),
    "bad_compression": Explanation("the compressed bytes are damaged", _RESTORE),
    "checksum_mismatch": Explanation("the bytes are not those that were written", _RESTORE),
    "bad_filter": Explanation(
        "what the entry says about its filters contradicts the format or its frames", _RESTORE
    ),
    "unknown_filter": Explanation(
        "a later writer transformed the entry in a way that this version cannot undo", _UPDATE
    ),
    "bad_seek_table": Explanation(
        "the table of frames at the end of the entry is damaged", _RESTORE
    ),
    "bad_metadata": Explanation(
        "JSON that describes the file is malformed; entries can still be read", _REWRITE
    ),
    "bad_value": Explanation(
        "the bytes are those that were written, but their values make no sense", _REWRITE
    ),
    "unknown_layout": Explanation(
        "a later writer stored a channel in a way that this version cannot read", _UPDATE
    ),
    "chunk_discontinuity": Explanation(
        "the pieces of an episode do not follow each other",
        "fetch the chunks that are missing, or write the episode again",
    ),
    "bad_profile": Explanation(
        "readers of this role will refuse the file; it opens as a plain archive",
        "add what is missing, or write the file with another role",
    ),
    "identity_mismatch": Explanation(
        "the content changed after the identity was made", _NOT_TRUSTED
    ),
    "bad_signature": Explanation(
        "somebody else signed, or something else was signed", _NOT_TRUSTED
    ),
    "unsafe_path": Explanation(
        "a path leads out of its folder, by mistake or to do harm", _NOT_TRUSTED
    ),
    "missing_file": Explanation(
        "a file that belongs to the data set is not there", "copy it next to the manifest"
    ),
    "reference_mismatch": Explanation(
        "a file changed after the manifest was made", "restore it, or make the manifest anew"
    ),
    "entry_not_found": Explanation("no entry has this name", "'shard ls' lists the names"),
    "not_viewable": Explanation("the entry is compressed", "read it instead of mapping it"),
    "invalid_argument": Explanation("the command cannot work like this", "see --help"),
    "missing_extra": Explanation("an optional package is needed", "install it as the message says"),
    "closed": Explanation("the file was closed too early", "open it again"),
    "io_error": Explanation("the operating system refused", "check path, permissions and the disk"),
    "name_hash_mismatch": Explanation(
        "readers that trust the stored hash will not find the entry", _REPACK
    ),
    "nonzero_padding": Explanation(
        "something is hidden between the entries, or a writer left old memory there", _REPACK
    ),
    "misaligned": Explanation(
        "arrays in these entries cannot be used in place through mmap", _REPACK
    ),
    "no_checksum": Explanation("damage to these entries would go unnoticed", _REPACK),
    "not_ascending": Explanation(
        "strict readers refuse such files, and reading in order jumps back and forth", _REPACK
    ),
    "nonzero_reserved": Explanation(
        "a newer writer, or damage in a field that readers ignore", _REPACK
    ),
    "unreferenced_bytes": Explanation("the file is larger than it needs to be", _REPACK),
}
