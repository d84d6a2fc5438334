"""Bridges to other formats, one module each; what needs a package of its own says which extra has it."""

from shardpack.convert._result import Converted
from shardpack.convert.images import from_image_folder
from shardpack.convert.mds import from_mds, to_mds
from shardpack.convert.tables import from_table
from shardpack.convert.tar import from_tar, to_tar

__all__ = [
    "Converted",
    "from_image_folder",
    "from_mds",
    "from_table",
    "from_tar",
    "to_mds",
    "to_tar",
]
