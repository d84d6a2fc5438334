"""`python -m shard_cli` is the command `shard`."""

from shard_cli.main import entry_point

if __name__ == "__main__":
    entry_point()
