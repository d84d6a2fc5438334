"""Converters are tested where the libraries on their other side are installed: `make test-convert`."""

from __future__ import annotations

from importlib.util import find_spec

# Elsewhere there is nothing to collect. pytest calls that an error if it was asked for this folder alone.
collect_ignore_glob = [] if find_spec("h5py") else ["*"]
