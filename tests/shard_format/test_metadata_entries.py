"""Entries that must be JSON are measured before they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shard_format import Limits, Manifest, Role, ShardReader, ShardWriter, verify_identity
from shard_format.errors import BadMetadata, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMITS = Limits(max_json_bytes=1000)


def write(path: Path, name: str, text: bytes) -> Path:
    with ShardWriter(path, role=Role.MANIFEST, fsync=False) as writer:
        writer.write_entry(name, text, compression="zstd")
    return path


def test_an_object_is_returned(tmp_path: Path) -> None:
    path = write(tmp_path / "a.shard", "meta/x", b'{"a": [1, 2.5, "\xc3\xa4"]}')
    assert ShardReader(path).read_json("meta/x") == {"a": [1, 2.5, "ä"]}


def test_what_is_no_object_is_refused_with_entry_and_rule(tmp_path: Path) -> None:
    path = write(tmp_path / "a.shard", "meta/x", b"[1]")
    with pytest.raises(BadMetadata, match=r"entry 'meta/x'.*\[S-MAN-1\]"):
        ShardReader(path).read_json("meta/x", rule="S-MAN-1")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("meta/x", lambda reader: reader.read_json("meta/x")),
        ("meta/manifest", Manifest.read),
        ("meta/identity", verify_identity),
    ],
)
def test_text_above_the_limit_is_refused_without_decoding_it(
    tmp_path: Path,
    name: str,
    read: Callable[[ShardReader], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(tmp_path / "a.shard", name, b'{"a":"' + b" " * 5000 + b'"}')

    def refuse(*_: object, **__: object) -> bytes:
        pytest.fail("the entry was decoded")

    monkeypatch.setattr("shard_format._content.decode_into", refuse)
    with ShardReader(path, limits=LIMITS) as reader, pytest.raises(LimitExceeded):
        read(reader)
