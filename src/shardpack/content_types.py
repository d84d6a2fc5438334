"""Content types: what the ending of a name says, and which contents are compressed already.

The tables are those of spec/registry.md, content types of ShardPack.
"""

from __future__ import annotations

from typing import Final

__all__ = ["ENDINGS", "UNKNOWN", "content_type_of", "ending_of", "is_compressible"]

UNKNOWN: Final = "application/octet-stream"

ENDINGS: Final = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "cls": "text/plain",
    "csv": "text/csv",
    "flac": "audio/flac",
    "gif": "image/gif",
    "gz": "application/gzip",
    "html": "text/html",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "jxl": "image/jxl",
    "lz4": "application/x-lz4",
    "md": "text/markdown",
    "mkv": "video/matroska",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "msgpack": "application/vnd.msgpack",
    "npy": "application/x-npy",
    "npz": "application/x-npz",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
    "png": "image/png",
    "safetensors": "application/x-safetensors",
    "shard": "application/vnd.shard",
    "shardpack": "application/vnd.shard.pack",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "text": "text/plain",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "wshard": "application/vnd.shard.episode",
    "xml": "application/xml",
    "xz": "application/x-xz",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zst": "application/zstd",
}

# First bytes of a file, and its ending.
_STARTS: Final = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"II+\0", "tif"),
    (b"MM\0+", "tif"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x93NUMPY", "npy"),
)

# Of the families below, these are not compressed.
_PLAIN: Final = frozenset(("audio/wav", "image/bmp", "image/svg+xml", "image/tiff"))
_COMPRESSED_FAMILIES: Final = ("image/", "video/", "audio/")
_COMPRESSED: Final = frozenset(
    (
        "application/gzip",
        "application/pdf",
        "application/vnd.apache.parquet",
        # The family's own files compress inside, and stay usable in place when stored raw.
        "application/vnd.shard",
        "application/vnd.shard.episode",
        "application/vnd.shard.pack",
        "application/x-lz4",
        "application/x-npz",
        "application/x-xz",
        "application/zip",
        "application/zstd",
    )
)


def content_type_of(name: str) -> str:
    """What the ending of a name says; a name without a dot is an ending itself, as `"jpg"` is."""
    return ENDINGS.get(name.rpartition(".")[2].lower(), UNKNOWN)


def ending_of(data: bytes | memoryview, path: str | None = None) -> str:
    """The suffix for these bytes, from the name that they had or from their first bytes."""
    if path:
        own = path.rpartition(".")[2].lower()
        if own in ENDINGS and "." in path:
            return own
    start = bytes(data[:16])
    for begin, ending in _STARTS:
        if start.startswith(begin):
            return ending
    if start[:4] == b"RIFF" and start[8:12] in (b"WEBP", b"WAVE"):
        return "webp" if start[8:12] == b"WEBP" else "wav"
    return "bin"


def is_compressible(content_type: str) -> bool:
    """False for contents that are compressed already: once more costs time and gains nothing."""
    if content_type in _PLAIN:
        return True
    return content_type not in _COMPRESSED and not content_type.startswith(_COMPRESSED_FAMILIES)
