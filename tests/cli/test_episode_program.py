"""The program through the door for episodes: `wshard`."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_cli.main import build_parser
from shard_cli.programs import SHARD, WSHARD
from shard_format import __version__
from tests.cli.conftest import listen_to_interrupts

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Terminal

ROOT = Path(__file__).parents[2]
NAMES = [command.name for command in WSHARD.commands]


def test_help_lists_episode_commands_and_those_of_the_container(wshard: Run) -> None:
    result = wshard("--help")
    assert result.code == 0
    assert result.out.startswith("usage: wshard ")
    for name in (*(command.name for command in WSHARD.commands), "ls", "cat", "get", "identity"):
        assert f"\n    {name} " in result.out
    assert "'wshard COMMAND --help'" in result.out


def test_every_summary_fits_on_its_line(wshard: Run) -> None:
    listed = wshard("--help").out.partition("COMMAND\n")[2].partition("\n\n")[0]
    assert len(listed.splitlines()) == len(NAMES)


def test_the_other_door_is_as_it_was(run: Run) -> None:
    result = run("--help")
    assert result.out.startswith("usage: shard ")
    assert "inspect" not in result.out
    assert [command.name for command in SHARD.commands][:3] == ["info", "ls", "cat"]


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_each_command_parse_and_name_this_door(name: str, wshard: Run) -> None:
    result = wshard(name, "--help")
    assert result.code == 0
    examples = result.out.partition("EXAMPLES\n")[2].splitlines()
    assert len(examples) >= 2
    for line in examples:
        words = shlex.split(line, comments=True)
        words = words[words.index("wshard") + 1 :]
        end = next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), None)
        assert build_parser(WSHARD).parse_args(words[:end]).command == name


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_its_place_in_the_docs(name: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert f"\n### wshard {name}\n" in page


def test_help_imports_neither_numpy_nor_the_library() -> None:
    for arguments in ("['--help']", "['inspect', '--help']"):
        code = (
            "import sys\nfrom shard_cli.main import main\nfrom shard_cli.programs import WSHARD\n"
            f"assert main({arguments}, WSHARD) == 0\n"
            "assert not {'numpy', 'zstandard', 'shard_format', 'wshard', 'dataclasses'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_version_names_the_door(wshard: Run) -> None:
    assert wshard("--version").out == f"wshard {__version__}\n"


def test_errors_and_usage_name_the_door(wshard: Run, tmp_path: Path) -> None:
    result = wshard("inspect", tmp_path / "absent.wshard")
    assert result.code == Exit.IO
    assert result.err.startswith("wshard: error: ")
    result = wshard("slice", "--json", "x.wshard", "nonsense", "-o", "y.wshard")
    assert result.code == Exit.USAGE
    assert result.json["error"]["code"] == "invalid_argument"
    assert result.err.startswith("usage: wshard slice ")
    assert wshard().code == Exit.USAGE


def test_container_commands_work_on_episodes(wshard: Run, episode: Path) -> None:
    assert "signal/joint_pos" in wshard("ls", episode, "--names-only").out
    assert '"episode_id":"ep_001"' in wshard("cat", episode, "meta/episode").out
    assert wshard("identity", episode).code == Exit.OK


def test_shard_info_says_which_episode_it_is(run: Run, episode: Path) -> None:
    result = run("info", episode)
    assert "episode       ep_001, 60 steps\n" in result.out
    assert "lanes         signal 4, action 1, reward 1, done 1, " in result.out
    assert run("info", "--json", episode).json["files"][0]["lanes"]["signal"] == 4


def test_the_module_is_the_same_program(terminal: Terminal, episode: Path) -> None:
    code, out = terminal("inspect", episode, module="shard_cli.wshard")
    assert code == Exit.OK
    assert "signal/joint_pos" in out


def test_the_console_script_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'wshard = "shard_cli.main:wshard_entry_point"' in project


def test_an_interrupt_does_not_wait_for_files_at_work(episode: Path) -> None:
    code = (
        "import sys, time, wshard.doctor\n"
        "from shard_cli.main import wshard_entry_point\n"
        "def slow(*_, **__):\n"
        "    print('at work', flush=True)\n"
        "    time.sleep(60)\n"
        "wshard.doctor.examine = slow\n"
        f"sys.argv = ['wshard', 'verify', {str(episode)!r}]\n"
        "wshard_entry_point()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen_to_interrupts,  # noqa: PLW1509 - no threads here
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"at work\n"
    for _ in range(10):  # Python loses a signal that comes just before it waits for a lock
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            break
    out, err = process.communicate(timeout=20)
    assert process.returncode == Exit.INTERRUPTED
    assert (out, err) == (b"", b"wshard: interrupted\n")
