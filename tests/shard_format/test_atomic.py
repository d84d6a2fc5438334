"""Temporary files: locked while somebody writes them, known as abandoned afterwards, removed without raw errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import ShardWriter
from shard_format.atomic import TEMPORARY, AtomicFile, is_abandoned, replacing, write_file
from shard_format.errors import InvalidArgument, ShardIOError
from tests.shard_format.support import listing

if TYPE_CHECKING:
    from pathlib import Path

WRITERS = {
    "a file": """
        file = AtomicFile(path, fsync=False)
        os.write(file.descriptor, b"half")
    """,
    "a file that is checked": """
        around = replacing(path)
        write_file(around.__enter__(), [b"whole"], fsync=False)
    """,
}


def temporaries(folder: Path) -> list[str]:
    return [str(folder / name) for name in listing(folder) if TEMPORARY.fullmatch(name)]


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_writer_left_is_abandoned_when_it_is_dead_and_not_before(
    writer: str, tmp_path: Path
) -> None:
    script = f"""
        import os, sys
        from shard_format.atomic import AtomicFile, replacing, write_file
        path = sys.argv[1]
        {dedent(WRITERS[writer]).strip()}
        print("written", flush=True)
        sys.stdin.read()
    """
    script = "\n".join(line.strip() for line in script.splitlines())
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a.shard")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        (left,) = temporaries(tmp_path)
        assert not is_abandoned(left)
        assert not is_abandoned(left, remove=True)
        assert temporaries(tmp_path) == [left]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert is_abandoned(left)
    assert temporaries(tmp_path) == [left]
    assert is_abandoned(left, remove=True)
    assert listing(tmp_path) == []


def test_a_file_is_locked_until_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace
    seen: list[bool] = []

    def look(source: str, target: str) -> None:
        seen.extend(is_abandoned(path, remove=True) for path in temporaries(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    write_file(tmp_path / "a", [b"1"], fsync=False)
    with replacing(tmp_path / "a") as new:
        write_file(new, [b"2"], fsync=False)
        assert not any(is_abandoned(path, remove=True) for path in temporaries(tmp_path))
    assert seen == [False, False, False]
    assert (tmp_path / "a").read_bytes() == b"2"
    assert listing(tmp_path) == ["a"]


def test_a_file_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    original = os.open

    def open_and_lose(path: str, flags: int, *args: Any, **options: Any) -> int:  # noqa: ANN401 - of os.open
        descriptor = original(path, flags, *args, **options)
        if flags & os.O_CREAT and not removed:
            removed.append(path)
            assert is_abandoned(path, remove=True)
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    write_file(tmp_path / "a", [b"1"], fsync=False)
    assert len(removed) == 1
    assert (tmp_path / "a").read_bytes() == b"1"
    assert listing(tmp_path) == ["a"]


def test_links_and_pipes_are_never_abandoned_files(tmp_path: Path) -> None:
    link, pipe = tmp_path / ".a.0123456789ab.partial", tmp_path / ".b.0123456789ab.partial"
    (tmp_path / "precious").touch()
    link.symlink_to("precious")
    os.mkfifo(pipe)
    assert not is_abandoned(str(link), remove=True)
    assert is_abandoned(str(pipe), remove=True)  # removed, and not waited for
    assert listing(tmp_path) == [link.name, "precious"]


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_temporary_file_that_cannot_be_removed_is_an_error_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ShardWriter(tmp_path / "a.shard")
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(ShardIOError, match=r"a\.shard: cannot remove .*partial"):
        writer.abort()


def test_it_does_not_hide_the_error_that_is_on_its_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "unlink", refuse)

    def pieces() -> Any:  # noqa: ANN401 - a generator
        yield b"1"
        raise InvalidArgument("the reason")

    with pytest.raises(InvalidArgument, match="the reason"):
        write_file(tmp_path / "a", pieces(), fsync=False)
    assert "cannot remove this temporary file" in caplog.text
    with pytest.raises(InvalidArgument, match="the reason"), replacing(tmp_path / "b") as new:
        write_file(new, pieces(), fsync=False)


def test_a_dropped_file_is_removed_and_says_nothing(tmp_path: Path) -> None:
    AtomicFile(tmp_path / "a", fsync=False)
    assert listing(tmp_path) == []
