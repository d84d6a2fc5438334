"""One module for each verb; `shard_cli.programs` lists which program has which."""
