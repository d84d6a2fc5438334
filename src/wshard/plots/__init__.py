"""What `wshard.plotting` draws with."""
