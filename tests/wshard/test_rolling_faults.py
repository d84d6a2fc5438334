"""Recorders that die, fork or run out of disk between two files: what was flushed comes back as one episode."""

from __future__ import annotations

import errno
import os
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import atomic
from shard_format.errors import ShardIOError
from tests.shard_format.support import check_python, listing
from tests.wshard.recording_support import check_steps, record, recorder
from wshard import _journal as journal_module
from wshard import load_wshard, recover, validate_chunk_continuity

if TYPE_CHECKING:
    from pathlib import Path

# The start of scripts in which children record into several files and are killed.
CHILDREN = """
import itertools, os, random, signal, struct, sys
from pathlib import Path
from shard_format.errors import ShardError
from tests.wshard.recording_support import check_steps, record, recorder
from tests.wshard.test_rolling import finish_chunks
from wshard import load_wshard, recover, validate_chunk_continuity

path = Path(sys.argv[1])
manifest = path.with_name("ep_manifest.wshard")
write = os.write

def told(pipe):
    '''What a child said last: the steps that it had flushed, and whether it had finished.'''
    said = b""
    while piece := os.read(pipe, 1 << 16):
        said += piece
    os.close(pipe)
    return struct.unpack("<II", said[-8:]) if said else (0, 0)

def load(name):
    if name == manifest:
        validate_chunk_continuity(name)
    with load_wshard(name) as episode:
        return check_steps(episode)

def contents():
    return {p: p.read_bytes() for p in path.parent.iterdir() if p != manifest}

def check(flushed, finished):
    '''After a kill: the manifest is true, and what it does not name comes back. Then all is removed.'''
    if manifest.exists():
        load(manifest)
    before = contents()
    left = [p for p in before if not p.name.startswith(".") and p.suffix == ".partial" and before[p]]
    came_back = 0
    assert not (finished and left), left
    if left:
        try:
            out = random.choice([None, path.with_name("out.wshard")])
            found = recover(random.choice([path, left[-1]]), out, fsync=False)
            came_back = load(Path(found.out))
            assert came_back == found.steps, found
            if found.chunks and out is None:  # twice is as good
                assert recover(path, fsync=False).steps == came_back
        except ShardError as error:
            assert "no complete start" in str(error) and not flushed, error
    elif manifest.exists() or path.exists():
        came_back = load(manifest if manifest.exists() else path)
    after = contents()
    assert all(after[p] == before[p] for p in before)
    assert came_back >= flushed, (came_back, flushed, left)
    for p in [*after, manifest]:
        p.unlink(missing_ok=True)
    return came_back
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ep.wshard"


class TestKilled:
    """kill -9."""

    @pytest.mark.slow
    @pytest.mark.parametrize("when", ["within", "after"])
    def test_at_every_system_call_of_a_recording_in_three_files(
        self, path: Path, when: str
    ) -> None:
        """One child for every call that changes the disk, from the beginning to the last manifest."""
        script = CHILDREN + dedent("""
            CALLS = "open writev write fsync fdatasync replace chmod ftruncate posix_fallocate".split()
            CALLS += "copy_file_range unlink".split()
            when = sys.argv[2]
            LENGTH, STEPS = 9, 4

            def child(fatal, pipe):
                calls = itertools.count(1)  # of two threads
                def guard(name, call):
                    def guarded(*args, **kwargs):
                        if next(calls) == fatal:
                            if when == "within" and name == "writev":
                                whole = b"".join(args[1])
                                write(args[0], whole[: len(whole) * 2 // 3])
                            try:
                                if when == "after":
                                    call(*args, **kwargs)
                            finally:
                                os.kill(os.getpid(), signal.SIGKILL)
                        return call(*args, **kwargs)
                    return guarded
                # What was written outlives a process without them, so they need not take their time.
                os.fsync = os.fdatasync = lambda descriptor: None
                for name in CALLS:
                    setattr(os, name, guard(name, getattr(os, name)))
                writer = recorder(path, flush_steps=3, fsync="always", max_steps_per_file=STEPS)
                writer.annotate("all of it", 0, LENGTH)
                for number in range(LENGTH):
                    record(writer, number, number + 1)
                    if number % 2:
                        finish_chunks(writer)
                        write(pipe, struct.pack("<II", number + 1, 0))
                writer.end_episode()
                write(pipe, struct.pack("<II", LENGTH, 1))
                os._exit(0)

            fatal = finished = 0
            came_back = set()
            while not finished:
                fatal += 1
                pipe, said = os.pipe()
                pid = os.fork()
                if pid == 0:
                    child(fatal, said)
                os.close(said)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                flushed, finished = told(pipe)
                assert status == (0 if finished else -signal.SIGKILL), status
                came_back.add(check(flushed, finished))
            print(fatal, *sorted(came_back))
        """)
        calls, *came_back = map(int, check_python(script, path, when).split())
        assert calls > 60
        assert {4, 6, 8, 9} <= set(came_back)


class TestFullDisk:
    """Wherever it fills up."""

    @pytest.mark.parametrize("call", [*range(1, 14), 20, 30])
    def test_everything_flushed_before_comes_back(
        self, path: Path, call: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every write to a journal fails from some moment on, the start of the next journal too."""
        writer = recorder(path, flush_steps=2, max_steps_per_file=4)
        write_all = atomic.write_all
        done = 0

        def full(descriptor: int, buffers: Any) -> None:  # noqa: ANN401 - write_all's
            nonlocal done
            done += 1
            if done >= call:
                whole = b"".join(buffers)
                write_all(descriptor, [whole[: len(whole) // 2]])
                raise OSError(errno.ENOSPC, "No space left on device")
            write_all(descriptor, buffers)

        monkeypatch.setattr(journal_module, "write_all", full)
        flushed = 0

        def record_on() -> None:
            nonlocal flushed
            for number in range(100):
                record(writer, number, number + 1)
                writer.flush()
                flushed = number + 1

        with pytest.raises(ShardIOError, match=r"disk is full.*wshard recover"):
            record_on()
        writer.close()
        monkeypatch.undo()
        found = recover(path, fsync=False)
        assert found.steps >= flushed
        assert found.out is not None
        if found.chunks:
            validate_chunk_continuity(found.out)
        with load_wshard(found.out) as episode:
            check_steps(episode, found.steps)


def test_a_forked_child_neither_finishes_nor_deletes_chunks(path: Path) -> None:
    script = """
        import os, sys
        from pathlib import Path
        from shard_format.errors import Closed
        from tests.wshard.recording_support import check_steps, record, recorder
        from tests.wshard.test_rolling import finish_chunks, hold_finisher
        from wshard import load_wshard
        path = Path(sys.argv[1])
        writer = recorder(path, max_steps_per_file=4)
        record(writer, 0, 6)
        finish_chunks(writer)
        go = hold_finisher(writer)
        record(writer, 6, 13)
        writer.flush()
        for end in (writer.abort, writer.close):
            pid = os.fork()
            if pid == 0:
                try:
                    try:
                        record(writer, 13, 14)
                    except Closed:
                        end()
                        os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == 0
        go.set()
        record(writer, 13, 20)
        writer.end_episode()
        with load_wshard(writer.episode_path) as episode:
            check_steps(episode, 20)
    """
    check_python(script, path)
    assert listing(path.parent)[-1] == "ep_manifest.wshard"
    assert not [name for name in os.listdir(path.parent) if name.endswith(".partial")]
