"""Benchmarks that run the peers in the same process. `make bench` runs all of them; RESULTS.md has the results of one run."""
