"""WShard episodes on top of the Shard container. Reserved: the episode reader is not built yet.

Until then `shard_format.ShardReader` opens `.wshard` files as archives of named entries.
"""
