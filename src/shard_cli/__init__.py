"""The command line of the Shard family: `shard`, or `python -m shard_cli`.

`wshard` and `shardpack` are the same program entered through the doors for episodes and packs. One file for each
verb in `shard_cli.commands`. Nothing here imports NumPy or the library before a command runs, so that `--help` and
completion answer at once.
"""
