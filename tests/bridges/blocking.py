"""Packages that are not there."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from shard_format.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable


def fails_without(
    monkeypatch: pytest.MonkeyPatch, package: str, doing: str | Callable[[], object]
) -> str:
    """What the error says when a package is missing that a module, or a call, needs."""
    monkeypatch.setitem(sys.modules, package, None)
    if callable(doing):
        with pytest.raises(MissingExtra) as caught:
            doing()
        return str(caught.value)
    for name in [name for name in sys.modules if name == doing]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra) as caught:
        importlib.import_module(doing)
    return str(caught.value)
