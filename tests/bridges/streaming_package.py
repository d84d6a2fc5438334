"""The parts of `mosaicml-streaming` that read and write files."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any


def streaming_module(name: str) -> Any:  # noqa: ANN401 - untyped library
    """A module of the package, such as `base.local`.

    The packages around it import ready-made datasets and a loader, and with these torchvision and
    transformers, which are large and which none of this needs.
    """
    for package in ("streaming", "streaming.base"):
        if package not in sys.modules:
            spec = importlib.util.find_spec(package)
            assert spec is not None, "install it as the Makefile does"
            sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"streaming.{name}")
