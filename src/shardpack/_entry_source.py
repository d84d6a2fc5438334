"""An entry as a source of bytes, so that a file inside a record is read as a file: only where it is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_format._slice_source import MappedSlice, slice_of
from shard_format.errors import Closed, shorten
from shard_format.sources import BytesSource

if TYPE_CHECKING:
    from shard_format.sources import ByteSource
    from shardpack.record import Entry


def entry_source(entry: Entry) -> ByteSource:
    """The content of an entry, to be read in parts.

    A mapped shard gives views of its mapping, a remote one requests for the ranges that are read; the
    checksum over the whole entry is not looked at, because that would read all of it. A compressed
    entry is decompressed, and checked, here and now.
    """
    record = entry._record
    origin = record._origin
    name = f"{origin.name}, record {shorten(record.key)}, entry {shorten(entry.name)}"
    if entry.is_compressed or entry.size != entry.stored_size:
        return BytesSource(entry.data, name)
    start = record._start + entry._position
    view = origin.view
    if view is None:
        if origin.source is None or origin.is_closed:
            raise Closed("the shard is closed", path=origin.name)
        return slice_of(origin.source, start, entry.stored_size, name)
    part = view[start : start + entry.stored_size]
    if origin.location is None:
        return BytesSource(part, name)
    return MappedSlice(part, origin.location, start, name)
