"""`python -m shard_cli.wshard` is the command `wshard`."""

from shard_cli.main import wshard_entry_point

if __name__ == "__main__":
    wshard_entry_point()
