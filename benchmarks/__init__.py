"""Speed, measured beside the peers in the same run. `make bench` runs all; RESULTS.md quotes a run."""
