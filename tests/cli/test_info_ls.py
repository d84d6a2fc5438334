"""`shard info` and `shard ls`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_format import FileReference, Manifest, compute_identity

if TYPE_CHECKING:
    from tests.cli.conftest import Make, Run, Terminal

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
HOSTILE = "a\x1b[31m\nb\u202e"


def test_info_sums_up_a_file(run: Run, sample: Path) -> None:
    result = run("info", sample)
    assert result.code == Exit.OK
    for words in (
        "unknown (0)",
        "version 2, entries aligned to 64 bytes",
        "little-endian, schema, checksums, content types",
        "none 3, zstd 2",
        "text 4, json 1",
        "description: a sample",
        'x_unknown: {"kept": [1, 2]}',
        f"identity      {compute_identity(sample).digest}\n",
    ):
        assert words in result.out


def test_info_in_json_has_the_same_facts_as_numbers(run: Run, sample: Path) -> None:
    facts = run("info", "--json", sample).json["files"][0]
    assert facts["entries"] == 5
    assert facts["codecs"] == {"none": 3, "zstd": 2}
    assert facts["file_size"] == sample.stat().st_size
    assert facts["schema"]["fields"]["x_unknown"] == {"kept": [1, 2]}
    assert len(facts["identity"]["stored"]) == 64


def test_info_goes_on_after_a_file_that_does_not_open(run: Run, sample: Path) -> None:
    result = run("info", "absent.shard", sample, "--json")
    assert result.code == Exit.IO
    first, second = result.json["files"]
    assert first["error"]["code"] == "io_error"
    assert second["entries"] == 5


def test_info_shows_what_an_episode_says(run: Run) -> None:
    result = run("info", VECTORS / "valid" / "golden_simple_episode.wshard")
    assert "wshard (5)" in result.out
    assert "env_id: TestEnv-v1" in result.out


def test_info_sums_up_a_manifest(run: Run, make: Make, tmp_path: Path) -> None:
    part = make("part.shard", {"a": b"1"})
    path = tmp_path / "all.shard"
    reference = FileReference.to_file(part, relative_to=tmp_path, start_key="k0", end_key="k9")
    Manifest([reference], {"owner": "me"}).write(path, fsync=False)
    result = run("info", path)
    assert "1 file, " in result.out
    assert "part.shard (key k9)" in result.out
    assert "owner: me" in result.out


@pytest.mark.parametrize("name", ["role_7_unassigned", "role_200_private", "entries_none"])
def test_info_opens_any_role_and_empty_files(name: str, run: Run) -> None:
    result = run("info", VECTORS / "valid" / f"{name}.shard")
    assert result.code == Exit.OK


def test_info_survives_damaged_metadata(run: Run) -> None:
    for name in ("schema_json_nan", "identity_text_not_json", "profile_episode_list"):
        result = run("info", VECTORS / "invalid" / f"{name}.shard")
        assert result.code == Exit.OK
        assert "unreadable: " in result.out


def test_info_answers_at_once_on_a_file_of_50_gib(run: Run, make: Make) -> None:
    path = make("huge.shard", {"data": b""}, alignment=0)
    head = bytearray(path.read_bytes())
    size = 50 << 30
    head[64 + 24 : 64 + 40] = (size - len(head)).to_bytes(8, "little") * 2
    head[40:48] = size.to_bytes(8, "little")
    path.write_bytes(head)
    os.truncate(path, size)  # sparse: takes no room
    result = run("info", path)
    assert result.code == Exit.OK
    assert "50.0 GiB" in result.out
    assert run("ls", "--json", path).json["entries"][0]["size"] == size - len(head)


def test_ls_in_a_pipe_has_tabs_and_bytes(run: Run, sample: Path) -> None:
    lines = run("ls", sample).out.splitlines()
    assert lines[0].split("\t") == ["NAME", "SIZE", "STORED", "RATIO", "CODEC", "TYPE", "TAGS"]
    cells = lines[2].split("\t")
    assert cells[:2] == ["signal/zeros", "5000"]
    assert cells[4:] == ["zstd", "text", "left"]


def test_ls_in_a_terminal_fits_its_width_and_has_units(terminal: Terminal, make: Make) -> None:
    path = make("long.shard", {"a/" + "long/" * 60 + "end": bytes(2048), "b": b"x"})
    code, text = terminal("ls", path, columns=60)
    assert code == Exit.OK
    assert all(len(line) <= 60 for line in text.replace("\x1b[1m", "").splitlines()[1:-1])
    assert "…" in text
    assert re.search(r"\n…/long/long/.*/end +2\.0 KiB", text)
    assert "2 entries, 2.0 KiB" in text


def test_ls_long_adds_offset_checksum_flags_alignment_and_frames(run: Run, make: Make) -> None:
    path = make(
        "seekable.shard", {"x": bytes(10_000)}, compression="zstd", frame_bytes=4096, alignment=32
    )
    entry = run("ls", "-l", "--json", path).json["entries"][0]
    assert entry["frames"] == 3
    assert entry["flags"] == 3
    assert entry["offset"] % 32 == 0
    assert entry["alignment"] >= 32
    assert len(entry["crc32c"]) == 8
    lines = run("ls", "-l", path).out.splitlines()
    assert lines[0].endswith("OFFSET\tCRC-32C\tFLAGS\tALIGN\tFRAMES\tFILTERS\tTAGS")
    assert lines[1].split("\t")[-3:-1] == ["3", "-"]


def test_ls_chooses_by_pattern_and_prefix(run: Run, sample: Path) -> None:
    def names(*arguments: str) -> list[str]:
        return run("ls", "--names-only", sample, *arguments).out.splitlines()

    assert names("signal/*") == ["signal/zeros", "signal/text"]
    assert names("*e*", "--prefix", "signal/") == ["signal/zeros", "signal/text"]
    assert names("empty", "meta/?bout") == ["meta/about", "empty"]
    assert names("--prefix", "nothing") == []


def test_a_pattern_that_fits_nothing_is_an_error(run: Run, sample: Path) -> None:
    result = run("ls", sample, "signal/*", "sgnal/*")
    assert (result.code, result.out) == (Exit.FINDING, "")
    assert "matches 'sgnal/*'" in result.err


def test_a_name_with_pattern_characters_fits_itself(run: Run, make: Make) -> None:
    path = make("odd.shard", {"a[1]": b"", "a1": b""})
    assert run("ls", "--names-only", path, "a[1]").out.splitlines() == ["a[1]", "a1"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [("name", ["a", "b", "c"]), ("size", ["c", "a", "b"]), ("offset", ["b", "c", "a"])],
)
def test_ls_sorts(order: str, expected: list[str], run: Run, make: Make) -> None:
    path = make("sort.shard", {"b": b"1", "c": b"333", "a": b"22"})
    assert run("ls", "--names-only", "--sort", order, path).out.splitlines() == expected


def test_names_go_to_programs_as_they_are(run: Run, make: Make) -> None:
    path = make("names.shard", {"ä\x1b": b"", "x y": b""})
    assert run("ls", "--names-only", path).out == "ä\x1b\nx y\n"
    assert run("ls", "--names-only", "-0", path).out == "ä\x1b\0x y\0"


def test_a_name_with_a_line_break_does_not_read_as_two(run: Run, make: Make) -> None:
    path = make("names.shard", {"a\nb": b""})
    result = run("ls", "--names-only", path)
    assert result.out == "a\\nb\n"
    assert "warning" in result.err
    assert run("ls", "-0", path).out == "a\nb\0"


def test_names_cannot_write_to_the_terminal(terminal: Terminal, run: Run, make: Make) -> None:
    path = make("evil.shard", {HOSTILE: b"x"})
    for arguments in (
        ["ls"],
        ["ls", "--names-only"],
        ["ls", "-0"],
        ["verify", "-v"],
        ["diff", path],
    ):
        _, text = terminal(*arguments, path)
        assert "\x1b[31m" not in text
        assert "\u202e" not in text
    assert "a\\x1b[31m\\nb\\u202e" in run("ls", path).out
    assert run("ls", "--json", path).json["entries"][0]["name"] == HOSTILE


def test_ls_lists_an_entry_whose_codec_nobody_knows(run: Run) -> None:
    result = run("ls", VECTORS / "invalid" / "codec_both_bits.shard")
    assert result.code == Exit.OK
    assert "\tunknown\t" in result.out
