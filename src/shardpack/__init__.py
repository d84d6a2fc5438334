"""ShardPack datasets of samples. Reserved: the format is not specified yet."""
