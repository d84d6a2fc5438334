"""Values of entries: how a caller's value becomes bytes, and how bytes become a value, by content type.

`register_decoder` adds a decoder to this process. An installed package can bring one as an entry point
of the group `shardpack.decoders` (a function of the bytes) or `shardpack.source_decoders` (a function of a byte
source, for formats that are read in parts); the name of the entry point is the content type.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import mmap
from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from shard_format.canonical_json import check_length, parse_foreign
from shard_format.errors import BadValue, InvalidArgument
from shard_format.images import FORMATS, decode_image
from shard_format.npy import decode_npy, decode_npz, encode_npy, encode_npz
from shard_format.writer_input import as_bytes
from shardpack import _msgpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shard_format.registry import Limits
    from shard_format.sources import ByteSource
    from shardpack.record import Entry

__all__ = [
    "Decoder",
    "decode_json",
    "decode_text",
    "decode_value",
    "is_costly",
    "is_read_in_parts",
    "register_decoder",
    "to_bytes",
]

Decoder: TypeAlias = Callable[[memoryview], Any]
"""Takes the content of an entry, a read-only view, and returns the value."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# --- from a value to bytes


def to_bytes(name: str, content_type: str, value: Any) -> bytes | memoryview:  # noqa: ANN401 - any value
    """Encode a value as its content type says; bytes stay as they are.

    Raises:
        InvalidArgument: the content type cannot hold this value.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview, mmap.mmap)):
        return as_bytes(name, value)
    encoder = _ENCODERS.get(content_type)
    if encoder is None:
        encoder = _encode_text if content_type.startswith("text/") else _encode_raw
    try:
        return encoder(value)
    except (TypeError, ValueError, UnicodeEncodeError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise error.located(entry=name) from None
        raise InvalidArgument(
            f"cannot store this value as {content_type}: {error}",
            entry=name,
            found=type(value).__name__,
        ) from None


def _encode_json(value: object) -> bytes:
    return _JSON.encode(value).encode("utf-8")


def _encode_text(value: object) -> bytes:
    # Class labels are written as numbers and read as text.
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return b"%d" % value
    if isinstance(value, str):
        return value.encode("utf-8")
    return _refuse(value, "str or int")


def _encode_npz(value: object) -> bytes:
    return (
        encode_npz(value) if isinstance(value, dict) else _refuse(value, "a dictionary of arrays")
    )


def _encode_raw(value: object) -> bytes:
    # An array would lose its dtype and shape.
    return _refuse(value, "bytes; or a name with an ending such as .json, .txt, .npy or .npz")


def _refuse(value: object, expected: str) -> bytes:
    raise InvalidArgument(
        "this value cannot be stored under this name",
        expected=expected,
        found=type(value).__name__,
    )


_ENCODERS: Final[dict[str, Callable[[object], bytes]]] = {
    "application/json": _encode_json,
    "application/x-npy": encode_npy,
    "application/x-npz": _encode_npz,
}


# --- from bytes to a value


def decode_value(
    entry: Entry,
    decoders: Mapping[str, Decoder] | None = None,
    source_decoders: Mapping[str, Callable[[ByteSource], Any]] | None = None,
) -> Any:  # noqa: ANN401 - any value
    """The value of an entry; the view of its bytes if no decoder knows its type.

    Args:
        entry: the entry.
        decoders: content type to function of the bytes; tried first.
        source_decoders: content type to function of a byte source; tried after registered decoders.
    """
    content_type = _plain(entry.content_type)
    own = None if decoders is None else decoders.get(content_type)
    if own is not None:
        return own(entry.data)
    found = _registered.get(content_type)
    if found is None and source_decoders is not None and content_type in source_decoders:
        found = (source_decoders[content_type], True)
    is_built_in = content_type in _BUILT_IN or content_type in _TREES
    if found is None and not is_built_in and not content_type.startswith("text/"):
        found = _installed().get(content_type)
    if found is not None:
        decoder, from_source = found
        function = _load(decoder) if isinstance(decoder, str) else decoder
        return function(entry.source() if from_source else entry.data)
    if content_type in _TREES:
        return _TREES[content_type](entry.data, entry.limits)
    built_in = _BUILT_IN.get(content_type)
    if built_in is None:
        return decode_text(entry.data) if content_type.startswith("text/") else entry.data
    return built_in(entry.data, entry.limits.max_decompressed_bytes)


def register_decoder(
    content_type: str, decoder: Callable[[Any], Any] | str, *, from_source: bool = False
) -> None:
    """Make `Entry.decode` use this function for a content type, in this process.

    Args:
        content_type: such as `"image/jpeg"`; replaces the decoder that it has.
        decoder: the function, or `"package.module:function"`, which is imported when it is needed.
        from_source: True if the function takes a byte source (`Entry.source`) rather than all bytes.
    """
    if not content_type or not (callable(decoder) or isinstance(decoder, str)):
        raise InvalidArgument(
            "cannot register this decoder",
            expected="a content type and a function, or the name of a function",
            found=f"{content_type!r} and {type(decoder).__name__}",
        )
    _registered[content_type.lower()] = (decoder, from_source)


@lru_cache(maxsize=1)
def _installed() -> dict[str, tuple[str, bool]]:
    """Decoders of installed packages."""
    return {
        point.name: (point.value, from_source)
        for group, from_source in (
            ("shardpack.decoders", False),
            ("shardpack.source_decoders", True),
        )
        for point in importlib.metadata.entry_points(group=group)
    }


def is_read_in_parts(content_type: str) -> bool:
    """Whether the decoder of this type reads only what you touch of an entry."""
    plain = _plain(content_type)
    found = _registered.get(plain) or _installed().get(plain)
    return found is not None and found[1]


def is_costly(content_type: str) -> bool:
    """Whether decoding takes so long, without holding the GIL, that threads are worth it."""
    plain = _plain(content_type)
    return plain in _registered or plain in _COSTLY or plain.startswith("image/")


@lru_cache(maxsize=256)
def _plain(content_type: str) -> str:
    """Without parameters such as the charset."""
    return content_type.partition(";")[0].lower()


def _load(name: str) -> Callable[[Any], Any]:
    """Import the function that `"package.module:function"` names."""
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(
            f"the decoder {name!r} cannot be loaded: {error}", expected="'module:function'"
        ) from error
    return found


def decode_text(data: memoryview) -> str:
    """UTF-8 text."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"the text is not UTF-8: {error}") from None


def decode_json(data: memoryview, limits: Limits) -> Any:  # noqa: ANN401 - any JSON
    """JSON, as Python's `json` module reads it."""
    check_length(len(data), "the entry", limits)
    return parse_foreign(bytes(data), "the entry", limits)


def decode_msgpack(data: memoryview, limits: Limits) -> Any:  # noqa: ANN401 - any value
    """MessagePack."""
    check_length(len(data), "the entry", limits)
    return _msgpack.unpack(data, limits)


_TREES: Final[dict[str, Callable[[memoryview, Limits], Any]]] = {
    "application/json": decode_json,
    "application/vnd.msgpack": decode_msgpack,
}
_BUILT_IN: Final[dict[str, Callable[[memoryview, int], Any]]] = {
    "application/x-npy": lambda data, most: decode_npy(data),
    "application/x-npz": decode_npz,
    **{kind: partial(decode_image, kind) for kind in FORMATS},
}
"""Each takes the bytes and the largest value that it may make of them."""

_COSTLY: Final = frozenset(("application/x-npz",))

_registered: dict[str, tuple[Callable[[Any], Any] | str, bool]] = {}
"""Decoder, and whether it takes a source, by content type."""
