"""Converters between packs and other formats. A converter that needs an extra package says which one."""

from shardpack.convert._images import from_image_folder
from shardpack.convert._mds import from_mds
from shardpack.convert._tables import from_table
from shardpack.convert._tar import from_tar, to_tar
from shardpack.convert._to_table import to_table
from shardpack.writer_set import WrittenShards

__all__ = [
    "WrittenShards",
    "from_image_folder",
    "from_mds",
    "from_table",
    "from_tar",
    "to_table",
    "to_tar",
]
