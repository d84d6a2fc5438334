"""What several test files need. Nothing here uses the reader or the writer to make expected bytes."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from fastcrc import crc32
from xxhash import xxh64_intdigest

from shard_format import ShardWriter, WriterOptions
from shard_format.errors import Closed, Truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from shard_format import ByteSource

REPOSITORY = Path(__file__).parents[2]
VALID_VECTORS = sorted(
    path for path in (REPOSITORY / "spec" / "vectors" / "valid").iterdir() if path.suffix != ".json"
)

# What makes each of the three layouts of spec/shard.md, section 16, for up to eight entries.
LAYOUTS = ("moved", "declared", "reserved")


def layout_options(layout: str, names: Sequence[str]) -> dict[str, Any]:
    """The writer's arguments for a layout that holds these names."""
    if layout == "declared":
        return {"reserve": list(names)}
    if layout == "reserved":
        room = sum(len(name.encode()) + 1 for name in names)
        return {"reserve": len(names) + -(-room // 64)}
    return {}


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not compress; the same for the same arguments."""
    return random.Random(seed).randbytes(size)


def prose(size: int) -> bytes:
    """Bytes that compress well but are not constant."""
    words = b" ".join(b"step %d of %d" % (number, size) for number in range(size // 12 + 2))
    return words[:size]


def write_shard(path: Path, entries: Mapping[str, bytes], **options: Any) -> Path:  # noqa: ANN401 - the writer's
    """A file with these entries, by the writer, without syncing."""
    if "schema" in options:
        options["options"] = WriterOptions(schema=options.pop("schema"))
    with ShardWriter(path, fsync=False, **options) as writer:
        for name, data in entries.items():
            writer.write_entry(name, data)
    return path


@dataclass
class Row:
    """One entry of a hand-made file; None stands for the right value."""

    name: bytes
    stored: bytes = b""
    flags: int = 0
    orig_size: int | None = None
    crc: int | None = None
    name_hash: int | None = None
    content: bytes | None = None
    content_type: int = 0
    tag_bits: int = 0


@dataclass
class HandMade:
    """A Shard file put together with `struct` from the tables of spec/shard.md, sections 2 to 5."""

    rows: list[Row]
    role: int = 0
    flags: int = 0x22
    alignment: int = 64
    compression_default: int = 0
    schema: bytes = b""
    total_size: int | None = None
    header: dict[str, int] = field(default_factory=dict)

    def align(self, position: int) -> int:
        return position if not self.alignment else -(-position // self.alignment) * self.alignment

    def to_bytes(self) -> bytes:
        table = b"".join(row.name + b"\0" for row in self.rows)
        index_end = 64 + 48 * len(self.rows)
        data_start = self.align(index_end + len(table))
        index, data = b"", b""
        name_offset = 0
        for row in self.rows:
            data += bytes(self.align(data_start + len(data)) - data_start - len(data))
            content = row.stored if row.content is None else row.content
            index += struct.pack(
                "<QIHHQQQIHH",
                xxh64_intdigest(row.name) if row.name_hash is None else row.name_hash,
                name_offset,
                len(row.name),
                row.flags,
                data_start + len(data),
                len(row.stored),
                len(content) if row.orig_size is None else row.orig_size,
                crc32.iscsi(content) if row.crc is None else row.crc,
                row.content_type,
                row.tag_bits,
            )
            name_offset += len(row.name) + 1
            data += row.stored
        end = data_start + len(data)
        header = struct.pack(
            "<4sBBHBBHIQQQQ16s",
            b"SHRD",
            2,
            self.role,
            self.flags,
            self.alignment,
            self.compression_default,
            48,
            len(self.rows),
            index_end,
            data_start,
            end if self.schema else 0,
            end + len(self.schema) if self.total_size is None else self.total_size,
            bytes(16),
        )
        padding = bytes(data_start - index_end - len(table))
        return header + index + table + padding + data + self.schema


class PlainSource:
    """The least that a `ByteSource` must be, over any local file; counts what is asked of it."""

    def __init__(self, path: Path) -> None:
        self.name = f"plain:{path}"
        self._descriptor = os.open(path, os.O_RDONLY)
        self._size = path.stat().st_size
        self.bytes_read = 0
        self.reads = 0
        self.closed = 0

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads += 1
        self.bytes_read += length
        data = os.pread(self._descriptor, length, offset)
        if len(data) != length:
            raise Truncated("the plain source ended", path=self.name)
        return data

    def close(self) -> None:
        self.closed += 1
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def run_python(
    script: str, *arguments: object, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a fresh interpreter. The timeout only ends a test that hangs."""
    return subprocess.run(
        [sys.executable, "-c", dedent(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def check_python(script: str, *arguments: object) -> str:
    """As `run_python`, for scripts that must succeed; returns what they print."""
    result = run_python(script, *arguments)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def listing(folder: Path) -> list[str]:
    """All names in a folder, hidden ones too."""
    return sorted(os.listdir(folder))


def closed_at_any_line(
    open_one: Callable[[], ByteSource], read: Callable[[Any], Any], expected: bytes
) -> int:
    """Reads again and again from new sources that are closed before one line of the library more each time.

    As another thread may do at any moment. Each read gives the right bytes or says `Closed`. Returns the lines.
    """
    files = ("sources.py", "remote.py", "_remote_source.py", "_http_source.py")
    line = seen = 0
    while line <= seen:
        source, seen, is_closing = open_one(), 0, False

        def trace(
            frame: FrameType,
            event: str,
            _: object,
            source: ByteSource = source,
            line: int = line,
        ) -> Any:  # noqa: ANN401 - itself
            nonlocal seen, is_closing
            if is_closing or os.path.basename(frame.f_code.co_filename) not in files:
                return None
            if event == "line":
                if seen == line:
                    is_closing = True
                    source.close()
                    is_closing = False
                seen += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            found = read(source)
        except Closed:
            found = expected
        finally:
            sys.settrace(before)
        assert found == expected, f"closed before line {line}"
        line += 1
    return seen
