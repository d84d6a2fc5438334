"""Optional packages: imported where they are needed, with an error that names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from shard_format.errors import MissingExtra


def require(module: str, extra: str) -> Any:  # noqa: ANN401 - a module of any kind
    """The module, or an error that gives the command to install what it belongs to."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(
            f"this needs the package {package!r}, which cannot be imported ({error})",
            hint=f"install it with: pip install 'shard-format[{extra}]'",
        ) from error
