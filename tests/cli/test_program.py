"""The program as a whole: help, exit codes, streams, signals."""

from __future__ import annotations

import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import EXPLANATIONS, Exit, exit_for
from shard_cli.main import build_parser, main
from shard_cli.programs import SHARD, SHARDPACK, WSHARD, Program
from shard_format import errors
from tests.cli.conftest import listen_to_interrupts

if TYPE_CHECKING:
    from tests.cli.conftest import Make, Run, Terminal

REGISTRY = (Path(__file__).parents[2] / "spec" / "registry.md").read_text()
ERROR_ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| (\d) \|$", REGISTRY, re.MULTILINE)
NAMES = [command.name for command in SHARD.commands]


def spawn(*arguments: str | Path, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return] # options of one test each
        [sys.executable, "-m", "shard_cli", *map(str, arguments)], **options
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["verfiy", "x.shard"], "did you mean 'shard verify'?"),
        (["inspect", "x.wshard"], "did you mean 'wshard inspect'?"),
        (["frobnicate"], "'shard --help' lists them"),
    ],
)
def test_a_command_that_does_not_exist_is_answered_with_the_nearest_one(
    words: list[str], hint: str, run: Run
) -> None:
    result = run(*words)
    assert result.code == Exit.USAGE
    assert f"unknown command {words[0]!r}; {hint}" in result.err


def test_help_lists_every_command(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    for command in SHARD.commands:
        assert f"\n    {command.name} " in result.out


@pytest.mark.parametrize("name", NAMES)
def test_help_of_each_command_has_examples_that_parse(name: str, run: Run) -> None:
    result = run(name, "--help")
    assert result.code == 0
    examples = result.out.partition("EXAMPLES\n")[2].splitlines()
    assert len(examples) >= 2
    for line in examples:
        words = shlex.split(line, comments=True)
        # What stands before and after belongs to the shell.
        words = words[words.index("shard") + 1 :]
        end = next((at for at, word in enumerate(words) if word in ("|", ">", "&&")), None)
        assert build_parser().parse_args(words[:end]).command == name


def test_every_command_takes_the_common_options(run: Run) -> None:
    for name in NAMES:
        text = run(name, "--help").out
        assert "--json" in text
        assert "--quiet" in text
        assert "--verbose" in text


def test_help_imports_neither_numpy_nor_the_library() -> None:
    for arguments in ("['--help']", "['ls', '--help']"):
        code = (
            "import sys\nfrom shard_cli.main import main\n"
            f"assert main({arguments}) == 0\n"
            "assert not {'numpy', 'zstandard', 'shard_format', 'dataclasses'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_version_is_that_of_the_library(run: Run) -> None:
    from shard_format import __version__

    assert run("--version").out == f"shard {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("program", [SHARD, WSHARD, SHARDPACK], ids=lambda program: program.name)
def test_completion_knows_every_command_and_option(
    shell: str, program: Program, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert main(["--completion", shell], program) == 0
    text = capsys.readouterr().out
    for word in (*(command.name for command in program.commands), "max-decompressed", program.name):
        assert word in text


def test_completion_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    result = run("--completion", "bash")
    assert result.code == Exit.USAGE
    assert "pip install 'shard-format[completion]'" in result.err


def test_exit_codes_are_those_of_the_registry() -> None:
    assert len(ERROR_ROWS) >= 28
    for code, number in ERROR_ROWS:
        assert exit_for(code) == int(number), code


def test_every_code_of_the_registry_is_explained_and_every_class_has_a_code_in_it() -> None:
    codes = {code for code, _ in ERROR_ROWS}
    warnings = set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", REGISTRY, re.MULTILINE))
    assert codes | warnings <= EXPLANATIONS.keys()
    concrete = {getattr(errors, name).code for name in errors.__all__}
    assert concrete - codes == {"error", "bad_format", "untrusted"}


def test_without_a_command_it_is_wrong_use(run: Run) -> None:
    result = run()
    assert (result.code, result.out) == (Exit.USAGE, "")
    assert "a command is missing" in result.err


def test_wrong_use_says_so_in_json_too(run: Run) -> None:
    result = run("ls", "--json", "--sort", "colour", "x.shard")
    assert result.code == Exit.USAGE
    assert result.json["error"]["code"] == "invalid_argument"
    assert "shard: error:" in result.err


def test_errors_are_one_line_on_stderr_with_the_code(run: Run, tmp_path: Path) -> None:
    result = run("ls", tmp_path / "absent.shard")
    assert (result.code, result.out) == (Exit.IO, "")
    assert result.err.startswith("shard: error: ")
    assert result.err.endswith("(io_error)\n")
    assert result.err.count("\n") == 1


def test_errors_in_json_are_a_document_with_code_file_entry_and_rule(
    run: Run, sample: Path
) -> None:
    error = run("cat", "--json", sample, "nothing").json["error"]
    assert error["code"] == "entry_not_found"
    assert error.keys() == {"code", "message", "file", "entry", "rule"}
    assert "shard ls" in error["message"]


def test_json_may_stand_before_the_command(run: Run, sample: Path) -> None:
    assert run("--json", "ls", sample).json["command"] == "ls"


def test_an_unsupported_version_has_an_exit_code_of_its_own(run: Run, sample: Path) -> None:
    data = bytearray(sample.read_bytes())
    data[4] = 3
    sample.write_bytes(data)
    for command in ("info", "ls", "verify", "doctor", "identity"):
        assert run(command, sample).code == Exit.UNSUPPORTED


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"PK\x03\x04rest", "zip"),
        (b"\0" * 257 + b"ustar\x0000", "tar"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"SQLite format 3\0", "SQLite"),
        (b"PAR1", "Parquet"),
        (b"\x89MCAP0\r\n", "MCAP"),
        (b"\x89PNG\r\n", "PNG"),
        (b"\x80\x04\x95", "pickle"),
        (b"WSJ1", "journal .*: 'wshard recover'"),
        (b"\x93NUMPY\x01", ".npy"),
        (b'{"json": 1}', "JSON"),
        ("plain wörds\n".encode(), "text"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (bytes(100), "zero bytes"),
        (b"", "empty"),
    ],
)
def test_a_file_of_another_kind_is_named(head: bytes, what: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(head)
    result = run("info", path)
    assert result.code == Exit.FINDING
    assert re.search(f"it looks like .*{what}", result.err)


def test_a_folder_is_no_file(run: Run, tmp_path: Path) -> None:
    result = run("info", tmp_path)
    assert result.code == Exit.IO
    assert "this is a folder" in result.err


def test_hints_speak_of_options_not_of_python(run: Run, make: Make) -> None:
    path = make("big.shard", {"data": bytes(5000)}, compression="zstd")
    result = run("cat", path, "data", "--max-decompressed", "4K")
    assert result.code == Exit.FINDING
    assert "--max-decompressed" in result.err
    assert "limits=" not in result.err
    assert run("get", path, "data", "-o", path.with_suffix(".bin")).code == Exit.OK


def test_a_reader_that_leaves_early_ends_the_program_quietly() -> None:
    vector = Path(__file__).parents[2] / "spec/vectors/valid/entries_10000.shard"
    process = spawn("ls", vector, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == Exit.BROKEN_PIPE


def test_a_full_disk_behind_stdout_is_an_io_error(sample: Path, tmp_path: Path) -> None:
    def no_more_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with open(tmp_path / "full", "wb") as full:
        process = spawn(
            "info", sample, stdout=full, stderr=subprocess.PIPE, preexec_fn=no_more_bytes
        )
        _, err = process.communicate()
    assert process.returncode == Exit.IO
    assert err.count(b"\n") == 1
    assert err.endswith(b"(io_error)\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.TERMINATED)]
)
def test_a_signal_ends_it_and_leaves_no_temporary_file(
    number: signal.Signals, code: Exit, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = spawn(
        *("create", tmp_path / "out.shard", f"x={pipe}"),
        stderr=subprocess.DEVNULL,
        preexec_fn=listen_to_interrupts,
    )
    with open(pipe, "wb", buffering=0) as writing:  # opens when the program reads
        writing.write(b"data")
        process.send_signal(number)
    # The end of the pipe wakes a read that began at the very moment of the signal.
    assert process.wait() == code
    assert os.listdir(tmp_path) == ["pipe"]


def test_colour_follows_the_environment(
    run: Run, terminal: Terminal, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "\x1b[" not in run("verify", sample).out
    assert "\x1b[32mok" in terminal("verify", sample)[1]
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b[" not in terminal("verify", sample)[1]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32mok" in run("verify", sample).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in run("verify", sample).out
