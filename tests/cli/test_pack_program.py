"""The program through the door for packs: `shardpack`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_cli.main import build_parser
from shard_cli.programs import SHARD, SHARDPACK, WSHARD
from shard_format import __version__

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Terminal

ROOT = Path(__file__).parents[2]
NAMES = [command.name for command in SHARDPACK.commands]


def test_help_lists_every_command_on_one_line(pack: Run) -> None:
    result = pack("--help")
    assert result.code == 0
    assert result.out.startswith("usage: shardpack ")
    listed = result.out.partition("COMMAND\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in listed.splitlines()] == NAMES


def test_every_command_that_was_promised_is_there() -> None:
    assert set(NAMES) >= {
        "create",
        "ls",
        "info",
        "cat",
        "get",
        "extract",
        "verify",
        "recover",
        "join",
        "merge",
        "split",
        "filter",
        "sort",
        "sample",
        "stats",
        "diff",
        "from-tar",
        "to-tar",
        "to-table",
        "from-mds",
        "pack-episodes",
    }


def test_the_other_doors_are_as_they_were() -> None:
    for door in (SHARD, WSHARD):
        names = [command.name for command in door.commands]
        assert not {"unpack", "from-tar", "join"} & set(names)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_examples_that_parse_and_the_common_options(name: str, pack: Run) -> None:
    result = pack(name, "--help")
    assert result.code == 0
    for option in ("--json", "--quiet", "--verbose"):
        assert option in result.out
    examples = result.out.partition("EXAMPLES\n")[2].splitlines()
    assert len(examples) >= 2
    for line in examples:
        words = shlex.split(line, comments=True)
        words = words[words.index("shardpack") + 1 :]
        end = next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), None)
        assert build_parser(SHARDPACK).parse_args(words[:end]).command == name


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_place_in_the_docs(name: str) -> None:
    assert f"\n### shardpack {name}\n" in (ROOT / "docs" / "cli.md").read_text()


def test_help_imports_neither_numpy_nor_the_library() -> None:
    for arguments in (
        ["--help"],
        ["create", "--help"],
        ["from-tar", "--help"],
    ):
        code = (
            "import sys\nfrom shard_cli.main import main\nfrom shard_cli.programs import SHARDPACK\n"
            f"assert main({arguments!r}, SHARDPACK) == 0\n"
            "loaded = {'numpy', 'zstandard', 'shard_format', 'shardpack', 'dataclasses'}\n"
            "assert not loaded & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_version_names_the_door(pack: Run) -> None:
    assert pack("--version").out == f"shardpack {__version__}\n"


def test_the_console_script_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert '\nshardpack = "shard_cli.main:shardpack_entry_point"\n' in project


def test_errors_name_this_door_and_are_json_where_asked(pack: Run, tmp_path: Path) -> None:
    result = pack("ls", tmp_path / "absent.shardpack")
    assert (result.code, result.out) == (Exit.IO, "")
    assert result.err.startswith("shardpack: error: ")
    assert pack("ls", "--json", tmp_path / "x.shardpack").json["error"]["code"] == "io_error"
    assert pack("verify", tmp_path / "none-*.shardpack").code == Exit.USAGE


def test_a_reader_that_has_seen_enough_ends_it_quietly(photos: Path, tmp_path: Path) -> None:
    program = f"{sys.executable} -m shard_cli.shardpack"
    script = (
        f"{program} create -q -i {photos} -o p.shardpack && "
        f"{program} ls --keys-only p.shardpack | head -n 1"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "cats/0001\n", "")


def test_a_full_disk_is_said_and_leaves_nothing(photos: Path, tmp_path: Path) -> None:
    # A limit of the process stands for the disk: writing fails in the same place.
    script = (
        f"ulimit -f 4; {sys.executable} -m shard_cli.shardpack create -i {photos} -o p.shardpack"
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.IO
    assert "(io_error)" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["photos"]


def test_the_terminal_shows_colour_and_units(
    photos: Path, tmp_path: Path, terminal: Terminal, pack: Run
) -> None:
    shard = tmp_path / "p.shardpack"
    assert pack("create", "-i", photos, "-o", shard).code == 0
    code, text = terminal("verify", shard, module="shard_cli.shardpack")
    assert (code, "\x1b[32mok" in text) == (0, True)
    code, text = terminal("stats", shard, module="shard_cli.shardpack")
    assert "CONTENT TYPE      ENTRIES" in text
    assert "records by size" in text
