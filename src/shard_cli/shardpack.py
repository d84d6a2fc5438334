"""`python -m shard_cli.shardpack` is the command `shardpack`."""

from shard_cli.main import shardpack_entry_point

if __name__ == "__main__":
    shardpack_entry_point()
