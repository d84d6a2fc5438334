"""`shard cat` and `shard get`."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING

import pytest

from shard_cli.commands.cat import file_name
from shard_cli.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Make, Run, Terminal


def test_cat_writes_entries_in_the_order_asked(run: Run, sample: Path) -> None:
    result = run("cat", sample, "signal/text", "meta/about", "empty")
    assert result.out == "line\n" * 200 + '{"a":1}'
    assert result.err == ""


def test_cat_prints_nothing_if_one_name_is_wrong(run: Run, sample: Path) -> None:
    result = run("cat", sample, "meta/about", "absent")
    assert (result.code, result.out) == (Exit.FINDING, "")


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("wanted", ["0:10", "995:", ":3", "400:400", ":"])
def test_cat_takes_a_range(compression: str, wanted: str, run: Run, make: Make) -> None:
    content = b"0123456789" * 100
    path = make("range.shard", {"x": content}, compression=compression)
    start, _, stop = wanted.partition(":")
    expected = content[int(start or 0) : int(stop) if stop else None]
    assert run("cat", path, "x", "--range", wanted).out.encode() == expected


def test_cat_takes_a_range_of_a_seekable_entry(run: Run, make: Make) -> None:
    content = bytes(range(100)) * 100
    path = make("seek.shard", {"x": content}, compression="zstd", frame_bytes=1000)
    assert run("cat", path, "x", "--range", "990:1010").out.encode() == content[990:1010]


def test_cat_refuses_a_range_outside_the_entry(run: Run, sample: Path) -> None:
    for wanted in ("0:6000", "6000:", "5:2"):
        result = run("cat", sample, "signal/zeros", "--range", wanted)
        assert result.code == Exit.USAGE
        assert "outside the entry" in result.err


def test_cat_reports_damage(run: Run, damaged: Path) -> None:
    result = run("cat", damaged, "signal/text")
    assert result.code == Exit.FINDING
    assert "(checksum_mismatch)" in result.err


def test_cat_keeps_binary_data_off_the_terminal(terminal: Terminal, make: Make) -> None:
    path = make("mixed.shard", {"text": "schön\n".encode(), "esc": b"\x1b[2J", "bin": b"\x00\xff"})
    assert terminal("cat", path, "text") == (Exit.OK, "schön\r\n")
    for name in ("esc", "bin"):
        code, text = terminal("cat", path, "text", name)
        assert code == Exit.USAGE
        assert "schön" not in text
        assert "--force" in text
    code, text = terminal("cat", path, "esc", "--force")
    assert (code, text) == (Exit.OK, "\x1b[2J")


def test_cat_in_json_holds_text_or_base64(run: Run, make: Make) -> None:
    path = make("mixed.shard", {"text": b"hello", "bin": b"\xff\x00"})
    text, binary = run("cat", "--json", path, "text", "bin").json["entries"]
    assert text == {"name": "text", "size": 5, "encoding": "utf-8", "data": "hello"}
    assert binary["encoding"] == "base64"
    assert base64.b64decode(binary["data"]) == b"\xff\x00"


def test_get_writes_to_the_last_part_of_the_name(
    run: Run, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    result = run("get", sample, "signal/zeros")
    assert result.code == Exit.OK
    assert (folder / "zeros").read_bytes() == bytes(5000)
    assert result.out == "zeros: 4.9 KiB\n"


def test_get_does_not_replace_a_file_without_force(run: Run, sample: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.write_text("precious")
    result = run("get", sample, "meta/about", "-o", target)
    assert result.code == Exit.USAGE
    assert target.read_text() == "precious"
    assert run("get", sample, "meta/about", "-o", target, "--force", "-q").out == ""
    assert target.read_text() == '{"a":1}'


def test_get_of_a_damaged_entry_leaves_no_file(run: Run, damaged: Path, tmp_path: Path) -> None:
    before = sorted(os.listdir(tmp_path))
    assert run("get", damaged, "signal/text", "-o", tmp_path / "out").code == Exit.FINDING
    assert sorted(os.listdir(tmp_path)) == before


def test_get_does_not_replace_the_file_it_reads(run: Run, sample: Path) -> None:
    before = sample.read_bytes()
    assert run("get", sample, "meta/about", "-o", sample, "--force").code == Exit.USAGE
    assert sample.read_bytes() == before


def test_get_in_json_says_where_it_went(run: Run, sample: Path, tmp_path: Path) -> None:
    document = run("get", sample, "empty", "-o", tmp_path / "out", "--json").json
    assert document["output"] == str(tmp_path / "out")
    assert document["size"] == 0


def test_get_makes_the_folder_of_its_output(run: Run, sample: Path, tmp_path: Path) -> None:
    assert run("get", sample, "empty", "-o", tmp_path / "new" / "out").code == Exit.OK
    assert (tmp_path / "new" / "out").read_bytes() == b""


def test_get_writes_one_entry(run: Run, sample: Path, tmp_path: Path) -> None:
    result = run("get", sample, "empty", "meta/about", "-o", tmp_path / "out")
    assert (result.code, "get writes one entry" in result.err) == (Exit.USAGE, True)


def test_get_does_not_write_to_stdout(run: Run, sample: Path) -> None:
    result = run("get", sample, "empty", "-o", "-")
    assert result.code == Exit.USAGE
    assert "shard cat" in result.err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b.txt", "b.txt"),
        ("..", "entry"),
        ("a/", "entry"),
        ("a/..", "entry"),
        ("a\\b", "b"),
        ("C:evil", "C_evil"),
        ("x\x1b\n\u202ey", "x___y"),
        ("ö" * 200, "ö" * 127),
    ],
)
def test_default_file_names_are_harmless(name: str, expected: str) -> None:
    assert file_name(name) == expected
