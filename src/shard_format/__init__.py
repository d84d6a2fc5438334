"""Shard: a binary container of named entries for machine-learning data.

    from shard_format import ShardReader, ShardWriter

    with ShardWriter("data.shard", alignment=64) as writer:
        writer.write_entry("entry/0", payload, compression="zstd")
    data = ShardReader("data.shard").read_entry("entry/0")

The format is specified in spec/shard.md.
"""

from shard_format._version import __version__
from shard_format.codecs import Compression
from shard_format.errors import ShardError
from shard_format.filters import Filters
from shard_format.identity import Identity, compute_identity, verify_identity
from shard_format.manifest import FileReference, Manifest
from shard_format.reader import EntryInfo, ShardReader
from shard_format.registry import Codec, ContentType, Limits, Role
from shard_format.schema import Schema
from shard_format.sources import ByteSource
from shard_format.writer import EntryToWrite, ShardWriter, WriterOptions

__all__ = [
    "ByteSource",
    "Codec",
    "Compression",
    "ContentType",
    "EntryInfo",
    "EntryToWrite",
    "FileReference",
    "Filters",
    "Identity",
    "Limits",
    "Manifest",
    "Role",
    "Schema",
    "ShardError",
    "ShardReader",
    "ShardWriter",
    "WriterOptions",
    "__version__",
    "compute_identity",
    "verify_identity",
]
