"""The command line of the Shard family: `shard`, or `python -m shard_cli`.

`wshard`, or `python -m shard_cli.wshard`, is the same program entered through the door for episodes. One
file per command in `shard_cli.commands` and `shard_cli.commands.episodes`. Nothing here imports NumPy or
the library before a command runs, so that `--help` and completion answer at once.
"""
