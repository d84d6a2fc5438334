"""The command line of the Shard family: `shard`, or `python -m shard_cli`.

One file per command in `shard_cli.commands`. Nothing here imports NumPy or the library before a command
runs, so that `shard --help` and completion answer at once.
"""
