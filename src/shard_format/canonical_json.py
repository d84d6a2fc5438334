"""The JSON of the family: a strict reader and one canonical way of writing (spec/registry.md, JSON)."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from shard_format.errors import BadMetadata, InvalidArgument, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_format.registry import Limits

DEEPEST: Final = 128

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ESCAPES |= {chr(code): f"\\u{code:04x}" for code in range(0x20) if chr(code) not in _ESCAPES}
_TO_ESCAPE = re.compile(r'["\\\x00-\x1f]')


def parse_object(
    text: bytes, what: str, limits: Limits, *, rule: str = "S-SCH-2"
) -> dict[str, Any]:
    """A JSON object from strict UTF-8.

    Raises:
        BadMetadata: it is not JSON, not an object, or outside the subset that we read.
        LimitExceeded: it is longer than `limits.max_json_bytes`.
    """
    if len(text) > limits.max_json_bytes:
        check_length(len(text), what, limits)
    depth = 0
    if len(text) > 2 * DEEPEST:  # every level takes two brackets
        # Text with few brackets cannot be deep either; most metadata is answered by counting.
        brackets = text.count(b"[") + text.count(b"{")
        depth = brackets if brackets <= DEEPEST else _depth(text)
    if depth > DEEPEST:
        raise BadMetadata(
            f"{what} is nested too deeply",
            expected=f"at most {DEEPEST} levels",
            found=f"{depth} levels",
            rule=rule,
        )
    try:
        # json.loads would guess UTF-16, accept a byte order mark, and make a new decoder each time.
        decoded = text.decode("utf-8")
        if decoded[:1] == "{":
            # What canonical text needs: no look for white space around the value.
            value, end = _scan(decoded, 0)
            if end != len(decoded):
                value = _DECODER.decode(decoded)
        else:
            value = _DECODER.decode(decoded)
    except StopIteration:  # the scanner's way of saying that a value is missing
        raise BadMetadata(f"{what} is not valid JSON: a value is missing", rule=rule) from None
    except (ValueError, RecursionError) as error:
        raise BadMetadata(f"{what} is not valid JSON: {error}", rule=rule) from None
    if not isinstance(value, dict):
        raise BadMetadata(f"{what} is not a JSON object", found=type(value).__name__, rule=rule)
    if b"\\u" in text and any(_SURROGATE.search(string) for string in _strings(value)):
        raise BadMetadata(f"{what} has a lone surrogate in a string", rule=rule)
    return value


def check_length(length: int, what: str, limits: Limits) -> None:
    """Refuses metadata that is too long; to be asked before it is read into memory."""
    if length > limits.max_json_bytes:
        raise LimitExceeded(
            f"{what} is too long",
            expected=f"at most {limits.max_json_bytes} bytes",
            found=f"{length} bytes",
            rule="S-SCH-7",
        )


def _depth(text: bytes) -> int:
    """The deepest nesting, found without recursion: the parser's own would overflow."""
    symbols = np.frombuffer(_STRING.sub(b"", text), np.uint8)
    brackets = symbols[np.isin(symbols, np.frombuffer(b"[]{}", np.uint8))]
    opening = np.isin(brackets, np.frombuffer(b"[{", np.uint8))
    levels = np.cumsum(np.where(opening, 1, -1))
    return int(levels.max(initial=0))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} occurs twice in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large for a 64-bit float")
    return value


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once  # type: ignore[attr-defined] # lacking in typeshed


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def canonical(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """The one text that our writers produce for a value.

    Raises:
        InvalidArgument: something in it has no JSON form, such as NaN or an object that is not data.
    """
    parts: list[str] = []
    try:
        _write(value, parts, 1)
        return "".join(parts).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument("a string holds a lone surrogate, which UTF-8 cannot store") from None


def _write(value: Any, parts: list[str], level: int) -> None:  # noqa: ANN401 - any JSON
    if value is None or value is True or value is False:
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, str):
        parts.append(_quote(value))
    elif isinstance(value, int):
        try:
            parts.append(int.__repr__(value))
        except ValueError as error:  # thousands of digits
            raise InvalidArgument(f"an integer is too long: {error}") from None
    elif isinstance(value, float):
        parts.append(_number(value))
    elif isinstance(value, (dict, list, tuple)):
        if level > DEEPEST:
            raise InvalidArgument(
                "metadata is nested too deeply", expected=f"at most {DEEPEST} levels"
            )
        if isinstance(value, dict):
            _write_object(value, parts, level)
        else:
            parts.append("[")
            for position, item in enumerate(value):
                parts.append("," if position else "")
                _write(item, parts, level + 1)
            parts.append("]")
    elif isinstance(value, np.generic):
        _write(value.item(), parts, level)
    else:
        raise InvalidArgument(
            "this value has no JSON form",
            expected="dict, list, str, int, float, bool or None",
            found=type(value).__name__,
        )


def _write_object(value: dict[Any, Any], parts: list[str], level: int) -> None:
    for key in value:
        if not isinstance(key, str):
            raise InvalidArgument("a key in metadata is not a string", found=repr(key))
    parts.append("{")
    # UTF-8 keeps the order of code points.
    for position, key in enumerate(sorted(value)):
        parts.append(("," if position else "") + _quote(key) + ":")
        _write(value[key], parts, level + 1)
    parts.append("}")


def _quote(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(lambda match: _ESCAPES[match.group()], text) + '"'


def _number(value: float) -> str:
    """The number as ECMAScript prints it, which RFC 8785 asks for."""
    if not math.isfinite(value):
        raise InvalidArgument("JSON has no form for this number", found=value)
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # repr gives the shortest digits that read back; only the notation differs.
    mantissa, _, exponent_text = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading_zeros = len(whole + fraction) - len(digits)
    point = len(whole) - leading_zeros + int(exponent_text or 0)
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    exponent = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + digits[0] + (f".{digits[1:]}" if count > 1 else "") + exponent
