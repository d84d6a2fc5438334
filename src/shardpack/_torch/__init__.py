"""What `shardpack.torch` and `wshard.torch` are made of."""
