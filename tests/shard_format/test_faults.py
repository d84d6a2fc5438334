"""Killed processes, full disks, missing permissions, files that shrink under a reader.

Whatever happens, a name holds what it held before or a complete new file.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import ShardReader, ShardWriter
from shard_format import writer as writer_module
from shard_format.errors import Closed, ShardIOError, Truncated
from tests.shard_format.support import (
    LAYOUTS,
    HandMade,
    Row,
    check_python,
    layout_options,
    listing,
    noise,
    run_python,
    write_shard,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OLD = HandMade([Row(b"old", b"old content")]).to_bytes()

# The start of scripts that write one file of several entries and a schema.
WRITE_ONE = """
import os, signal, sys
from shard_format import ShardReader, ShardWriter, WriterOptions
from shard_format import writer as writer_module

NAMES = ["a", "b", "c", "d"]

def options(layout):
    return {"moved": {}, "declared": {"reserve": NAMES}, "reserved": {"reserve": 8}}[layout]

def write(path, layout, seed):
    with ShardWriter(path, options=WriterOptions(schema={"seed": seed}), **options(layout)) as writer:
        writer.write_entry("a", bytes([seed % 256]) * 1000)
        writer.write_entry("b", bytes([seed % 256]) * 700_000, compression="zstd")
        writer.write_entry_stream("c", (bytes([seed % 256]) * 300_000 for _ in range(4)))
        writer.write_entry_stream("d", [os.urandom(1000)], compression="zstd")

def check(path, allowed_seeds):
    with ShardReader(path) as reader:
        reader.verify()
        seed = reader.schema.fields["seed"]
        assert seed in allowed_seeds, seed
        assert reader.names() == NAMES
        assert set(reader["a"]) == set(reader["c"]) == {seed % 256}
    return seed
"""


def error_of(call: Callable[[], None]) -> ShardIOError | None:
    """The error of the system that a call raises, None if it succeeds."""
    try:
        call()
    except ShardIOError as error:
        return error
    return None


@pytest.mark.slow
class TestKilled:
    """kill -9 at any moment."""

    @pytest.mark.parametrize(
        ("layout", "spool"),
        [
            ("moved", 32 << 20),
            *(
                pytest.param(*case, marks=pytest.mark.slow)
                for case in (("moved", 1_000), ("declared", 1_000), ("reserved", 32 << 20))
            ),
        ],
    )
    def test_a_kill_at_any_system_call_leaves_the_old_file_or_the_new(
        self, tmp_path: Path, layout: str, spool: int
    ) -> None:
        """One child for every call that changes the disk, killed within and after it."""
        script = WRITE_ONE + dedent("""
            folder, layout, spool = sys.argv[1], sys.argv[2], int(sys.argv[3])
            path = os.path.join(folder, "a.shard")
            writer_module._SPOOL_BYTES = spool
            write(path, layout, 1)
            with open(path, "rb") as file:
                old = file.read()
            CALLS = "writev write fsync replace chmod ftruncate posix_fallocate copy_file_range".split()

            def die():
                os.kill(os.getpid(), signal.SIGKILL)

            def child(fatal, when):
                done = 0
                def guard(name, call):
                    def guarded(*args, **kwargs):
                        nonlocal done
                        done += 1
                        if done == fatal:
                            if when == "within" and name == "writev":
                                os.write(args[0], args[1][0][: len(args[1][0]) // 2])
                            elif when == "after":
                                call(*args, **kwargs)
                            die()
                        return call(*args, **kwargs)
                    return guarded
                for name in CALLS:
                    setattr(os, name, guard(name, getattr(os, name)))
                write(path, layout, 2)
                os._exit(0)

            kills = {1: 0, 2: 0}
            for when in ("within", "after"):
                fatal = 1
                while True:
                    pid = os.fork()
                    if pid == 0:
                        child(fatal, when)
                    _, status = os.waitpid(pid, 0)
                    if os.WIFEXITED(status):
                        assert os.WEXITSTATUS(status) == 0, status
                        assert check(path, {2}) == 2
                        break
                    assert os.WTERMSIG(status) == signal.SIGKILL
                    kills[check(path, {1, 2})] += 1
                    assert all(n == "a.shard" or n.endswith(".partial") for n in os.listdir(folder))
                    for name in os.listdir(folder):
                        if name.endswith(".partial"):
                            os.unlink(os.path.join(folder, name))
                    with open(path, "wb") as file:
                        file.write(old)
                    fatal += 1
            print(kills[1], kills[2])
        """)
        with_old, with_new = map(int, check_python(script, tmp_path, layout, spool).split())
        assert with_old > 10
        assert with_new >= 2, "after the rename the new file must be there"

    def test_what_a_killed_writer_left_does_not_disturb_the_next(self, tmp_path: Path) -> None:
        script = WRITE_ONE + dedent("""
            writer = ShardWriter(sys.argv[1], reserve=5)
            writer.write_entry("a", bytes(5_000_000))
            os.kill(os.getpid(), signal.SIGKILL)
        """)
        path = tmp_path / "a.shard"
        assert run_python(script, path).returncode == -signal.SIGKILL
        (left,) = listing(tmp_path)
        assert left.endswith(".partial")
        write_shard(path, {"b": b"2"})
        assert ShardReader(path)["b"] == b"2"
        assert listing(tmp_path) == sorted([left, "a.shard"])


class TestFullDisk:
    """An error with errno and advice, no debris, and the old file as it was."""

    @pytest.mark.parametrize("spool", [1_000, 32 << 20], ids=["disk spool", "memory spool"])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_a_failure_of_any_system_call_is_one_clear_error(
        self, tmp_path: Path, layout: str, spool: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.shard"
        monkeypatch.setattr(writer_module, "_SPOOL_BYTES", spool)
        monkeypatch.setattr("shard_format._assembly._SPOOL_BYTES", spool // 50)
        state = {"calls": 0, "fatal": 0, "armed": False}

        def failing(call: Callable[..., Any]) -> Callable[..., Any]:
            def guarded(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any call
                state["calls"] += state["armed"]
                if state["armed"] and state["calls"] == state["fatal"]:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return call(*args, **kwargs)

            return guarded

        for name in ("open", "writev", "fsync", "replace", "posix_fallocate", "copy_file_range"):
            monkeypatch.setattr(os, name, failing(getattr(os, name)))

        def write() -> None:
            names = ["a", "b", "c"]
            with ShardWriter(path, **layout_options(layout, names)) as writer:
                writer.write_entry("a", noise(1_500_000))
                writer.write_entry_stream("b", [noise(40_000), noise(5_000)], compression="zstd")
                writer.write_entry("c", b"3")

        failed = 0
        while state["calls"] >= state["fatal"]:
            path.write_bytes(OLD)
            state.update(calls=0, fatal=state["fatal"] + 1, armed=True)
            error = error_of(write)
            state["armed"] = False
            if error is not None:
                failed += 1
                assert error.errno == errno.ENOSPC
                assert "the disk is full" in str(error)
                assert str(path) in str(error)
            assert listing(tmp_path) == ["a.shard"], state
            # New after the rename, or where another way of making a temporary file helped.
            if path.read_bytes() != OLD:
                with ShardReader(path) as reader:
                    reader.verify()
                    assert reader.names() == ["a", "b", "c"]
        assert failed > 6
        assert path.read_bytes() != OLD, "the last run has met no failure"

    @pytest.mark.parametrize("layout", LAYOUTS)
    @pytest.mark.parametrize("codec", ["none", "zstd"])
    def test_a_limit_on_file_sizes_is_reported_as_such(
        self, tmp_path: Path, layout: str, codec: str
    ) -> None:
        """RLIMIT_FSIZE, which needs no privileges; /dev/full cannot stand for a file here."""
        path = tmp_path / "a.shard"
        path.write_bytes(OLD)
        script = WRITE_ONE + dedent("""
            import resource
            from shard_format.errors import ShardIOError
            path, layout, codec = sys.argv[1:]
            resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
            writer_module._SPOOL_BYTES = 1 << 20
            try:
                with ShardWriter(path, **options(layout)) as writer:
                    writer.write_entry("a", bytes(1000))
                    writer.write_entry_stream(
                        "b", (os.urandom(500_000) for _ in range(20)), compression=codec
                    )
                    writer.write_entry("c", b"")
                    writer.write_entry("d", b"")
            except ShardIOError as error:
                print(error.errno, error)
        """)
        printed = check_python(script, path, layout, codec)
        assert printed.startswith(f"{errno.EFBIG} {path}: ")
        assert "may write" in printed
        assert listing(tmp_path) == ["a.shard"]
        assert path.read_bytes() == OLD

    def test_a_small_disk_that_fills_up_is_reported_as_full(self, tmp_path: Path) -> None:
        """A real file system of 2 MiB, in a mount namespace of its own; needs root."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("mounting needs root and unshare; RLIMIT_FSIZE above covers the code")
        script = WRITE_ONE + dedent("""
            from shard_format.errors import ShardIOError
            folder = sys.argv[1]
            path = os.path.join(folder, "a.shard")
            write_old = ShardWriter(path)
            write_old.write_entry("old", b"1")
            write_old.close()
            for layout in ("moved", "declared", "reserved"):
                for spool in (1000, 32 << 20):
                    writer_module._SPOOL_BYTES = spool
                    try:
                        with ShardWriter(path, **options(layout)) as writer:
                            for name in NAMES:
                                writer.write_entry(name, os.urandom(900_000))
                        print("no error")
                    except ShardIOError as error:
                        print(error.errno, "free some space" in str(error))
                    assert os.listdir(folder) == ["a.shard"], os.listdir(folder)
                    assert ShardReader(path)["old"] == b"1"
        """)
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        mount = 'mount -t tmpfs -o size=2m tmpfs "$1" || exit 77; "$2" -c "$3" "$1"'
        result = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount, "sh", str(mounted), sys.executable, script],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode == 77 or "unshare failed" in result.stderr:
            pytest.skip("this system lets nobody mount")
        assert result.stdout.splitlines() == [f"{errno.ENOSPC} True"] * 6, result.stderr


class TestPermissions:
    """As a user who may not."""

    SCRIPT = """
        import os, sys
        from shard_format import ShardReader, ShardWriter
        from shard_format.errors import ShardIOError
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            {"read": ShardReader, "write": ShardWriter}[sys.argv[1]](sys.argv[2])
        except ShardIOError as error:
            print(error.errno, error)
    """

    def test_a_folder_that_may_not_be_written_is_an_error_with_errno(self, tmp_path: Path) -> None:
        folder = tmp_path / "closed"
        folder.mkdir(mode=0o555)
        printed = check_python(self.SCRIPT, "write", folder / "a.shard")
        assert printed.startswith(f"{errno.EACCES} {folder}/a.shard: cannot write: Permission")
        assert listing(folder) == []

    def test_a_file_that_may_not_be_read_is_an_error_with_errno(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", {"a": b""})
        path.chmod(0)
        printed = check_python(self.SCRIPT, "read", path)
        assert printed.startswith(f"{errno.EACCES} {path}: cannot open: Permission")


class TestShrinkingFile:
    """A file that somebody cuts while it is open."""

    def test_small_reads_find_the_end(self, tmp_path: Path) -> None:
        # Larger than what is read at once when the file is opened.
        sizes = {"first": 100, "second": 40_000, "third": 40_000, "last": 10_000}
        path = write_shard(tmp_path / "a.shard", {name: b"1" * n for name, n in sizes.items()})
        with ShardReader(path) as reader:
            os.truncate(path, path.stat().st_size - 5_000)
            assert reader["first"] == b"1" * 100
            for read in (
                lambda: reader.read_entry("last"),
                lambda: reader.read_into("last", bytearray(10_000)),
                lambda: reader.read_range("last", 9_000, 9_001),
                lambda: list(reader.iter_entry("last")),
                lambda: reader.read_many(["first", "last"]),
                lambda: reader.verify(),
            ):
                with pytest.raises(Truncated, match="cut while it was open") as caught:
                    read()
                assert caught.value.path == str(path)
                assert caught.value.entry == "last"

    @pytest.mark.parametrize("codec", ["none", "zstd", "lz4", "seekable"])
    def test_reads_of_large_entries_raise_instead_of_crashing(
        self, tmp_path: Path, codec: str
    ) -> None:
        """A mapped file that was cut kills the process with SIGBUS: so not without a look first."""
        path = tmp_path / "a.shard"
        with ShardWriter(path, fsync=False) as writer:
            writer.write_entry(
                "a",
                noise(1_500_000) + bytes(1_500_000),
                compression={"seekable": "zstd"}.get(codec, codec),
                frame_bytes=100_000 if codec == "seekable" else None,
            )
        script = """
            import os, shutil, sys
            from shard_format import ShardReader
            from shard_format.errors import Truncated
            ways = {
                "read_entry": lambda reader: reader.read_entry("a"),
                "read_into": lambda reader: reader.read_into("a", bytearray(3_000_000)),
                "read_range": lambda reader: reader.read_range("a", 1_200_000, 1_600_000),
                "iter_entry": lambda reader: [bytes(piece) for piece in reader.iter_entry("a")],
                "verify": lambda reader: reader.verify(),
            }
            for name, read in ways.items():
                child = os.fork()
                if child == 0:
                    copy = shutil.copy(sys.argv[1], sys.argv[1] + name)
                    reader = ShardReader(copy)
                    os.truncate(copy, 400_000)
                    try:
                        read(reader)
                    except Truncated:
                        os._exit(0)
                    os._exit(1)
                print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        printed = check_python(script, path)
        assert printed == "read_entry 0\nread_into 0\nread_range 0\niter_entry 0\nverify 0\n"

    def test_a_file_that_is_gone_stays_readable_while_open(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", {"a": noise(500_000)})
        with ShardReader(path) as reader:
            path.unlink()
            assert reader["a"] == noise(500_000)
        with pytest.raises(Closed):
            reader.read_entry("a")
