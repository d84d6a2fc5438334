"""The JSON of the family: a strict reader and one canonical way of writing (spec/registry.md, JSON)."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from shard_format.errors import BadMetadata, BadValue, InvalidArgument, LimitExceeded, shorten
from shard_format.registry import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from shard_format.registry import Limits

DEEPEST: Final = 128

_RAISE: Final = "pass limits=Limits({}=…) if you trust the file"
_TOO_SHORT_TO_CHECK: Final = 2 * DEEPEST  # every level takes two characters
_PIECE: Final = 1 << 16
_QUOTE: Final = ord('"')
# What gives JSON its structure. `{` is counted as `[`, and `:` as `,`.
_NO_SYMBOLS: Final = bytes(set(range(256)) - set(b'"[]{},:'))
_SAME_SYMBOLS: Final = bytes.maketrans(b"{}:", b"[],")
_LEVELS: Final = np.zeros(256, np.int8)
_LEVELS[ord("[")], _LEVELS[ord("]")] = 1, -1
_IS_NODE: Final = np.zeros(256, np.bool_)
_IS_NODE[list(b"[,")] = True
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
        LimitExceeded: it is larger than `limits.max_json_bytes` or `limits.max_json_nodes` allow.
    """
    value = parse(text, what, limits, rule=rule)
    if not isinstance(value, dict):
        raise BadMetadata(f"{what} is not a JSON object", found=type(value).__name__, rule=rule)
    return value


def parse(text: bytes, what: str, limits: Limits, *, rule: str | None = None) -> Any:  # noqa: ANN401 - any JSON
    """Any JSON value of our subset; otherwise as `parse_object`."""
    if len(text) > _TOO_SHORT_TO_CHECK or limits is not DEFAULT_LIMITS:
        check_size(text, what, limits, rule=rule)
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
    if b"\\u" in text and _has_surrogate(value):
        raise BadMetadata(f"{what} has a lone surrogate in a string", rule=rule)
    return value


def parse_foreign(text: bytes, what: str, limits: Limits = DEFAULT_LIMITS) -> Any:  # noqa: ANN401 - any JSON
    """Any JSON of another program, as Python's `json` module reads it: with NaN and repeated keys.

    Raises:
        BadValue: it is not JSON, or nested more than 128 levels deep.
        LimitExceeded: as from `parse_object`.
    """
    try:
        check_size(text, what, limits, rule=None)
        return json.loads(text.decode("utf-8-sig"))
    except (BadMetadata, ValueError, RecursionError) as error:
        problem = error.problem if isinstance(error, BadMetadata) else error
        raise BadValue(f"{what} is not valid JSON: {problem}") from None


def check_length(length: int, what: str, limits: Limits) -> None:
    """Refuses metadata that is too long; to be asked before it is read into memory."""
    if length > limits.max_json_bytes:
        raise too_long(length, what, limits)


def too_long(length: int, what: str, limits: Limits) -> LimitExceeded:
    """The error for metadata that is longer than `limits.max_json_bytes`."""
    return LimitExceeded(
        f"{what} is too long",
        expected=f"at most {limits.max_json_bytes} bytes",
        found=f"{length} bytes",
        rule="S-SCH-7",
        hint=_RAISE.format("max_json_bytes"),
        command="",
    )


def check_size(text: bytes, what: str, limits: Limits, *, rule: str | None = "S-SCH-2") -> None:
    """Refuses text that is too long, too deep or has too many nodes, before it is parsed.

    This takes time and memory in proportion to the text, valid JSON or not. What the scan finds
    is exact up to the first error, and a parser does not get further.
    """
    check_length(len(text), what, limits)
    # Every level takes a bracket, and every node a character: most metadata is answered by counting.
    brackets = text.count(b"[") + text.count(b"{")
    if brackets <= DEEPEST and len(text) <= limits.max_json_nodes:
        return
    depth, nodes = _measure(text)
    if depth > DEEPEST:
        raise BadMetadata(
            f"{what} is nested too deeply",
            expected=f"at most {DEEPEST} levels",
            found=f"{depth} levels",
            rule=rule,
        )
    if nodes > limits.max_json_nodes:
        raise LimitExceeded(
            f"{what} has too many values",
            expected=f"at most {limits.max_json_nodes} of the characters [ {{ , : outside strings",
            found=nodes,
            rule="S-SCH-8",
            hint=_RAISE.format("max_json_nodes"),
            command="",
        )


def _measure(text: bytes) -> tuple[int, int]:
    """The deepest nesting, and the number of nodes: of `[`, `{`, `,` and `:` outside strings."""
    # Without escaped quotes, quotes alone tell where strings start and end.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    symbols = unescaped.translate(_SAME_SYMBOLS, _NO_SYMBOLS)
    quotes = level = deepest = nodes = 0
    for start in range(0, len(symbols), _PIECE):
        piece = np.frombuffer(symbols, np.uint8, min(_PIECE, len(symbols) - start), start)
        quotes_so_far = quotes + np.cumsum(piece == _QUOTE)
        outside = piece[quotes_so_far % 2 == 0]
        levels = level + np.cumsum(_LEVELS[outside])
        nodes += int(np.count_nonzero(_IS_NODE[outside]))
        deepest = max(deepest, int(levels.max(initial=0)))
        quotes = int(quotes_so_far[-1]) % 2
        level = int(levels[-1]) if len(levels) else level
    return deepest, nodes


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {shorten(key)} occurs twice in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large for a 64-bit float")
    return value


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite
)
_scan: Final[Callable[[str, int], tuple[Any, int]]] = _DECODER.scan_once  # type: ignore[attr-defined] # lacking in typeshed


def _has_surrogate(value: Any) -> bool:  # noqa: ANN401 - any JSON
    to_visit = [value]
    while to_visit:
        value = to_visit.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                return True
        elif isinstance(value, dict):
            to_visit += value.keys()
            to_visit += value.values()
        elif isinstance(value, list):
            to_visit += value
    return False


def canonical(value: Any, limits: Limits | None = DEFAULT_LIMITS) -> bytes:  # noqa: ANN401 - any JSON
    """The one text that our writers produce for a value.

    Args:
        value: what JSON can express.
        limits: those of readers, which could not read larger text; None for an identity, which is
            as large as its file has entries.

    Raises:
        InvalidArgument: something in it has no JSON form, such as NaN or an object that is not data.
        LimitExceeded: a reader would refuse the text.
    """
    parts: list[str] = []
    try:
        _write(value, parts, 1)
        text = "".join(parts).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument("a string holds a lone surrogate, which UTF-8 cannot store") from None
    if limits is not None and len(text) > limits.max_json_nodes:
        check_size(text, "the metadata", limits)
    return text


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
