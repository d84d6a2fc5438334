"""What `wshard.doctor` looks at, one module for each part of an episode."""
