"""Where a recording comes from: `meta/provenance` (spec/wshard.md, section 13)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import BadMetadata, InvalidArgument
from wshard.names import META_PROVENANCE

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS: Final[Mapping[str, Any]] = {
    "end_state": "",
    "epoch": 0,
    "first_seq": 0,
    "last_seq": 0,
    "prev_identity": "",
    "run_id": "",
    "source": {},
    "start_state": "",
    "v": 1,
}
_STATE = re.compile(r"(?:[0-9a-f]{64})?")
_LARGEST = (1 << 53) - 1


def _problem(fields: Mapping[str, Any]) -> tuple[str, object] | None:
    for key, value in fields.items():
        if key not in DEFAULTS:
            return f"unknown field {key!r}", value
        if key in ("end_state", "start_state", "prev_identity"):
            good = isinstance(value, str) and _STATE.fullmatch(value) is not None
            if not good:
                return f"{key!r} is not empty or 64 lower-case hex digits", value
        elif key == "source":
            if not isinstance(value, dict) or not all(
                isinstance(k, str) and isinstance(v, str) for k, v in value.items()
            ):
                return "'source' is not an object of strings", value
        elif key == "run_id":
            if not isinstance(value, str):
                return "'run_id' is not a string", value
        elif type(value) is not int or abs(value) > _LARGEST or (key == "v" and value != 1):
            return f"{key!r} is not {'1' if key == 'v' else 'an integer within 2**53'}", value
    return None


def parse_provenance(fields: dict[str, Any]) -> dict[str, Any]:
    """What a file says, checked (W-PRV-1)."""
    missing = DEFAULTS.keys() - fields.keys()
    problem = (f"the field {min(missing)!r} is missing", None) if missing else _problem(fields)
    if problem is not None:
        raise BadMetadata(problem[0], entry=META_PROVENANCE, found=problem[1], rule="W-PRV-1")
    return fields


def complete_provenance(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a user set, with the defaults for the rest."""
    problem = _problem(fields)
    if problem is not None:
        raise InvalidArgument(problem[0], entry=META_PROVENANCE, found=problem[1], rule="W-PRV-1")
    return {**DEFAULTS, **fields}
