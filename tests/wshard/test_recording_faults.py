"""Killed recorders, full disks, lost power, forked children: what was flushed comes back, every time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import atomic
from shard_format.errors import InvalidArgument, ShardIOError
from tests.shard_format.support import check_python, listing
from tests.wshard.recording_support import check_file, record, recorder
from wshard import _journal as journal_module
from wshard import open_partial, recover
from wshard._journal import JournalWriter
from wshard._recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# The start of scripts in which children record and are killed.
CHILDREN = """
import os, random, signal, struct, sys
from pathlib import Path
from shard_format.errors import ShardError
from tests.wshard.recording_support import check_file, record, recorder
from wshard import recover
import wshard._recorder

path, partial = Path(sys.argv[1]), Path(sys.argv[1] + ".partial")
out = path.with_name("recovered.wshard")
write = os.write

def told(pipe):
    '''What a child said last: the steps that it had flushed, and the episodes that it had finished.'''
    said = b""
    while piece := os.read(pipe, 1 << 16):
        said += piece
    return struct.unpack("<II", said[-8:]) if said else (0, 0)

def check(flushed, finished, length):
    '''After a kill: an episode is complete or recoverable, and never half there.'''
    if path.exists():
        check_file(path, length)
    else:
        assert not finished
    came_back = 0
    if partial.exists() and partial.stat().st_size:
        before = partial.read_bytes()
        try:
            result = recover(partial, out, fsync=False)
        except ShardError as error:
            assert "no complete start" in str(error) and not flushed, error
        else:
            came_back = check_file(out, result.steps)
        assert partial.read_bytes() == before
    if came_back < flushed:  # finished since it said so
        assert path.exists() and not partial.exists(), (came_back, flushed)
    recorder(path, on_partial="discard", overwrite=True).abort()  # the lock has died with its process
    return came_back
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ep.wshard"


@pytest.mark.slow
class TestKilled:
    """kill -9."""

    SCRIPT = CHILDREN + dedent("""
        choose = random.Random(sys.argv[2])
        LENGTH = 60

        def child(pipe):
            for episode in range(1_000_000):
                writer = recorder(path, overwrite=True, flush_steps=choose.choice((1, 3, 8, 50)))
                at = 0
                while at < LENGTH:
                    more = min(LENGTH, at + choose.randrange(1, 12))
                    record(writer, at, more)
                    at = more
                    if choose.random() < 0.7:
                        writer.flush()
                        write(pipe, struct.pack("<II", at, episode))
                write(pipe, struct.pack("<II", 0, episode))
                writer.end_episode()
                write(pipe, struct.pack("<II", 0, episode + 1))

        steps = 0
        for number in range(int(sys.argv[3])):
            path.unlink(missing_ok=True)
            pipe, said = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(pipe)
                choose.seed(number)
                child(said)
            os.close(said)
            first = b""
            for _ in range(choose.randrange(1, 40)):
                first = os.read(pipe, 8)
            for _ in range(choose.randrange(20_000)):
                pass
            os.kill(pid, signal.SIGKILL)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
            flushed, finished = max(struct.unpack("<II", first)[::-1], told(pipe)[::-1])[::-1]
            os.close(pipe)
            steps += check(flushed, finished, LENGTH)
        print(steps)
    """)

    @pytest.mark.slow
    def test_at_40_random_moments_all_flushed_steps_come_back(self, path: Path) -> None:
        assert int(check_python(self.SCRIPT, path, "one", 40)) > 0

    @pytest.mark.parametrize(
        ("when", "before"),
        [
            ("within", "nothing"),
            ("after", "nothing"),
            ("after", "an episode"),
        ],
    )
    def test_at_every_system_call_of_a_short_recording(
        self, path: Path, when: str, before: str
    ) -> None:
        """One child for every call that changes the disk, from the beginning to the finished file.

        An episode that is overwritten stays until the new one is complete.
        """
        script = CHILDREN + dedent("""
            CALLS = "writev write fsync fdatasync replace chmod ftruncate posix_fallocate".split()
            CALLS += "copy_file_range unlink".split()
            when = sys.argv[2]
            old = b""
            if sys.argv[3] == "an episode":
                with recorder(path) as writer:
                    record(writer, 0, 5)
                old = path.read_bytes()

            def die():
                os.kill(os.getpid(), signal.SIGKILL)

            def child(fatal, pipe):
                done = 0
                def guard(name, call):
                    def guarded(*args, **kwargs):
                        nonlocal done
                        done += 1
                        if done == fatal:
                            if when == "within" and name == "writev":
                                whole = b"".join(args[1])
                                write(args[0], whole[: len(whole) * 2 // 3])
                            elif when == "after":
                                call(*args, **kwargs)
                            die()
                        return call(*args, **kwargs)
                    return guarded
                for name in CALLS:
                    setattr(os, name, guard(name, getattr(os, name)))
                writer = recorder(path, flush_steps=4, fsync="always", overwrite=bool(old))
                for number in range(0, 12, 3):
                    record(writer, number, number + 3)
                    writer.flush()
                    write(pipe, struct.pack("<II", number + 3, 0))
                writer.annotate("done")
                writer.end_episode()
                write(pipe, struct.pack("<II", 0, 1))
                os._exit(0)

            fatal = finished = 0
            came_back = set()
            while not finished:
                fatal += 1
                path.unlink(missing_ok=True)
                if old:
                    path.write_bytes(old)
                pipe, said = os.pipe()
                pid = os.fork()
                if pid == 0:
                    child(fatal, said)
                os.close(said)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                flushed, finished = told(pipe)
                os.close(pipe)
                assert status == (0 if finished else -signal.SIGKILL), status
                if old and path.read_bytes() == old:
                    path.unlink()
                came_back.add(check(flushed, finished, 12))
                for left in path.parent.glob(".*.partial"):
                    left.unlink()
            print(fatal, *sorted(came_back))
        """)
        calls, *came_back = map(int, check_python(script, path, when, before).split())
        assert calls > 20
        assert {3, 6, 9, 12} <= set(came_back)


class TestLock:
    """One writer per file."""

    RECORDING = """
        import os, sys
        from pathlib import Path
        from tests.wshard.recording_support import record, recorder
        writer = recorder(Path(sys.argv[1]))
        record(writer, 0, 10)
        writer.flush()
        if sys.argv[2] == "fork":
            ready, child = os.pipe()
            if os.fork() == 0:
                os.write(child, b"!")
                os.close(1)
                sys.stdin.read()  # outlives its parent
                os._exit(0)
            os.read(ready, 1)
        print("recording", flush=True)
        sys.stdin.read()
    """

    @pytest.mark.parametrize("how", ["alone", "fork"])
    def test_a_second_process_is_refused_until_the_first_dies(self, path: Path, how: str) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", dedent(self.RECORDING), str(path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"recording\n"
            for choice in ("refuse", "recover", "discard"):
                with pytest.raises(InvalidArgument, match="another writer is recording"):
                    recorder(path, on_partial=choice)
            with open_partial(path) as episode:
                assert episode.length == 10
            process.kill()
            process.wait()
            with recorder(path, on_partial="recover") as writer:  # a forked child does not hold it
                record(writer, 0, 2)
        check_file(path, 2)
        check_file(path.with_name("ep.recovered-1.wshard"), 10)

    def test_a_second_writer_in_the_same_process_is_refused_too(self, path: Path) -> None:
        writer = recorder(path)
        with pytest.raises(InvalidArgument, match="another writer"):
            recorder(path, on_partial="discard")
        record(writer, 0, 4)
        writer.end_episode()
        check_file(path, 4)

    def test_a_journal_that_is_finished_while_it_is_opened_is_made_anew(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        location = f"{path}.partial"
        lock = atomic.take_lock
        calls = []

        def finish_first(descriptor: int, name: str) -> bool:
            calls.append(descriptor)
            if len(calls) == 1:
                os.unlink(location)  # as its recorder does
            return lock(descriptor, name)

        monkeypatch.setattr(journal_module, "take_lock", finish_first)
        journal = JournalWriter(location)
        assert len(calls) == 2
        assert os.path.samestat(os.stat(location), os.fstat(journal.descriptor))
        journal.remove()

    def test_the_journal_of_another_is_not_removed(self, path: Path) -> None:
        writer = recorder(path)
        partial = path.with_name("ep.wshard.partial")
        partial.unlink()
        partial.write_bytes(b"somebody else's")
        writer.abort()
        assert partial.read_bytes() == b"somebody else's"


class TestTornStart:
    """A recorder died before its journal had a start, or the disk damaged it."""

    def start(self, path: Path) -> bytes:
        """The first frame of a recording."""
        writer = recorder(path)
        partial = Path(f"{path}.partial")
        frame = partial.read_bytes()
        writer.abort()
        return frame

    def test_the_next_recorder_goes_on_wherever_it_was_cut(
        self, path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        frame = self.start(path)
        for number, length in enumerate((1, 39, 40, 41, len(frame) - 1), 1):
            Path(f"{path}.partial").write_bytes(frame[:length])
            with recorder(path, on_partial="recover", overwrite=True) as writer:
                record(writer, 0, 4)
            check_file(path, 4)
            assert "nothing can be recovered" in caplog.text
            caplog.clear()
            kept = path.with_name(f"ep.recovered-{number}.wshard.partial")
            assert kept.read_bytes() == frame[:length]

    def test_what_it_cannot_read_is_kept_under_another_name(self, path: Path) -> None:
        frame = bytearray(self.start(path))
        frame[-1] ^= 1
        for number in (1, 2):
            damaged = bytes(frame) + b"more" * number
            Path(f"{path}.partial").write_bytes(damaged)
            with recorder(path, on_partial="recover", overwrite=True) as writer:
                record(writer, 0, 4)
            kept = path.with_name(f"ep.recovered-{number}.wshard.partial")
            assert kept.read_bytes() == damaged
        check_file(path, 4)

    @pytest.mark.parametrize("damage", ["torn", "damaged"])
    def test_the_same_for_a_recording_in_several_files(self, path: Path, damage: str) -> None:
        frame = self.start(path)
        names = (f"{path}.partial", str(path.with_name("ep_chunk_0001.wshard.partial")))
        for name in names:
            Path(name).write_bytes(frame[:-1] + (b"" if damage == "torn" else b"?more"))
        with recorder(path, on_partial="recover") as writer:
            record(writer, 0, 4)
        check_file(path, 4)
        assert not Path(names[1]).exists()


class TestForks:
    """Children inherit everything but the recording."""

    def test_a_forked_child_neither_writes_nor_deletes_the_recording(self, path: Path) -> None:
        script = """
            import os, sys
            from pathlib import Path
            from shard_format.errors import Closed
            from tests.wshard.recording_support import check_file, record, recorder
            path = Path(sys.argv[1])
            writer = recorder(path)
            record(writer, 0, 13)

            def refuses(call):
                try:
                    call()
                except Closed as error:
                    assert "belongs to the process" in str(error)
                    return True
                return False

            for end in (writer.abort, writer.close, lambda: sys.exit(0)):
                pid = os.fork()
                if pid == 0:
                    try:
                        assert refuses(lambda: record(writer, 13, 14))
                        assert refuses(writer.flush)
                        assert refuses(writer.end_episode)
                        assert refuses(lambda: writer.annotate("x"))
                        end()
                    finally:
                        code = 0 if sys.exc_info()[0] in (None, SystemExit) else 1
                        os._exit(code)
                assert os.waitpid(pid, 0)[1] == 0
            record(writer, 13, 20)
            writer.end_episode()
            check_file(path, 20)
        """
        check_python(script, path)
        assert listing(path.parent) == ["ep.wshard"]

    def test_a_child_may_record_to_another_file(self, path: Path) -> None:
        script = """
            import os, sys
            from pathlib import Path
            from tests.wshard.recording_support import check_file, record, recorder
            path = Path(sys.argv[1])
            writer = recorder(path)
            record(writer, 0, 3)
            pid = os.fork()
            own = path.with_name("child.wshard")
            if pid == 0:
                other = recorder(own)
                record(other, 0, 12)
                other.end_episode()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            check_file(own, 12)
            writer.end_episode()
            check_file(path, 3)
        """
        check_python(script, path)


def full_disk(monkeypatch: pytest.MonkeyPatch, module: object, after: int) -> Callable[[], None]:
    """A disk with room for so many more bytes; the function that is returned frees it."""
    room = [after]
    write_all = atomic.write_all

    def limited(descriptor: int, buffers: Any) -> None:  # noqa: ANN401 - write_all's
        whole = b"".join(buffers)
        fits = min(room[0], len(whole))
        write_all(descriptor, [whole[:fits]])
        room[0] -= fits
        if fits < len(whole):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_all", limited)
    return lambda: monkeypatch.setattr(module, "write_all", write_all)


class TestFullDisk:
    """A clear error, and everything before it is there."""

    @pytest.mark.parametrize("room", [1, 100, 900, 1500, 2222, 3333])
    def test_steps_before_are_recoverable(
        self, path: Path, room: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path, flush_steps=3)
        free = full_disk(monkeypatch, journal_module, room)
        flushed = 0

        def record_on() -> None:
            nonlocal flushed
            for number in range(100):
                record(writer, number, number + 1)
                writer.flush()
                flushed = number + 1

        with pytest.raises(ShardIOError) as caught:
            record_on()
        assert caught.value.errno == errno.ENOSPC
        assert "the disk is full" in str(caught.value)
        assert f"wshard recover {path}.partial" in str(caught.value)
        for call in (writer.flush, lambda: record(writer, 0, 1), writer.end_episode):
            with pytest.raises(ShardIOError, match="disk is full"):
                call()
        writer.close()
        free()
        assert listing(path.parent) == ["ep.wshard.partial"]
        assert recover(f"{path}.partial").steps == flushed
        check_file(path, flushed)

    def test_a_recorder_that_waits_for_the_disk_is_told(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path, flush_steps=2, buffer_bytes=1)
        full_disk(monkeypatch, journal_module, 2000)
        with pytest.raises(ShardIOError, match="disk is full"):
            record(writer, 0, 10_000)
        writer.close()

    def test_an_error_inside_the_block_is_the_one_that_is_shown(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def stumble() -> None:
            with recorder(path) as writer:
                record(writer, 0, 3)
                full_disk(monkeypatch, journal_module, 10)
                raise KeyError

        with pytest.raises(KeyError):
            stumble()
        assert "the disk is full" in caplog.text

    def test_no_room_for_the_beginning_leaves_nothing(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        full_disk(monkeypatch, journal_module, 10)
        with pytest.raises(ShardIOError, match="disk is full"):
            recorder(path)
        assert listing(path.parent) == []

    def test_no_room_for_the_finished_file_keeps_the_journal(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = recorder(path)
        record(writer, 0, 30)
        from shard_format import _assembly

        free = full_disk(monkeypatch, _assembly, 100)
        with pytest.raises(ShardIOError) as caught:
            writer.end_episode()
        assert caught.value.errno == errno.ENOSPC
        assert "wshard recover" in str(caught.value)
        assert listing(path.parent) == ["ep.wshard.partial"]
        free()
        assert recover(f"{path}.partial").finished
        check_file(path, 30)

    def test_no_room_for_the_finished_file_keeps_the_one_that_it_would_replace(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with recorder(path) as writer:
            record(writer, 0, 5)
        old = path.read_bytes()
        writer = recorder(path, overwrite=True)
        record(writer, 0, 30)
        from shard_format import _assembly

        full_disk(monkeypatch, _assembly, 100)
        with pytest.raises(ShardIOError, match="wshard recover"):
            writer.end_episode()
        assert path.read_bytes() == old
        assert listing(path.parent) == ["ep.wshard", "ep.wshard.partial"]

    def test_a_limit_on_file_sizes_is_reported_as_such(self, path: Path) -> None:
        script = """
            import errno, resource, sys
            from pathlib import Path
            from shard_format.errors import ShardIOError
            from tests.wshard.recording_support import record, recorder
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            writer = recorder(Path(sys.argv[1]))
            flushed = 0
            try:
                for number in range(1000):
                    record(writer, number, number + 1)
                    writer.flush()
                    flushed = number + 1
            except ShardIOError as error:
                assert error.errno == errno.EFBIG, error
                assert "may write" in str(error) and "wshard recover" in str(error)
            writer.close()
            print(flushed)
        """
        flushed = int(check_python(script, path))
        assert flushed > 10
        assert recover(f"{path}.partial").steps == flushed
        check_file(path, flushed)


class TestLostPower:
    """Only what was synced is sure to be there; what follows may be anything."""

    @pytest.mark.parametrize("policy", ["always", "interval"])
    def test_all_synced_steps_survive_whatever_became_of_the_rest(
        self, path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = [0]
        sync = os.fdatasync

        def remember(descriptor: int) -> None:
            size = os.fstat(descriptor).st_size
            sync(descriptor)
            synced[0] = size

        monkeypatch.setattr(os, "fdatasync", remember)
        writer = recorder(path, fsync=policy, flush_steps=3)
        lost = path.with_name("lost.wshard.partial")
        for number in range(0, 40, 2):
            record(writer, number, number + 2)
            writer.flush()
            journal = path.with_name("ep.wshard.partial").read_bytes()
            tail = len(journal) - synced[0]
            assert policy != "always" or tail == 0
            for rest in (b"", bytes(tail), os.urandom(tail), journal[synced[0] + 100 :]):
                lost.write_bytes(journal[: synced[0]] + rest)
                with open_partial(lost) as episode:
                    if policy == "always":
                        assert episode.length == number + 2
                    assert episode.length <= number + 2
        assert synced[0] > 0
        writer.abort()

    def test_names_are_synced_before_what_they_replace_is_removed(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []

        def watch(name: str) -> None:
            call = getattr(os, name)

            def watched(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any call
                subject = args[0]
                if isinstance(subject, int):
                    subject = os.readlink(f"/proc/self/fd/{subject}")
                calls.append(f"{name} {os.path.basename(subject).partition('.')[2][:6]}")
                return call(*args, **kwargs)

            monkeypatch.setattr(os, name, watched)

        for name in ("fsync", "fdatasync", "replace", "unlink"):
            watch(name)
        with recorder(path, fsync="always") as writer:
            assert calls == ["fdatasync wshard", "fsync "]  # the journal, and its name
            record(writer, 0, 3)
        tail = [call for call in calls if call != "fdatasync wshard"][1:]
        assert tail[:3] == ["fsync ep.wsh", "replace ep.wsh", "fsync "]
        assert tail[-1] == "unlink wshard"


def test_a_signal_that_python_handles_keeps_the_recording(path: Path) -> None:
    """Ctrl-C in the middle of a tight loop, wherever it strikes."""
    script = """
        import os, signal, sys, threading
        from pathlib import Path
        from tests.wshard.recording_support import record, recorder
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
        path = Path(sys.argv[1])
        writer = recorder(path, flush_steps=2)
        try:
            with writer:
                at = 0
                timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                while True:
                    record(writer, at, at + 1)
                    at += 1
        except KeyboardInterrupt:
            print(at)
    """
    recorded = int(check_python(script, path))
    result = recover(f"{path}.partial")
    assert recorded <= result.steps <= recorded + 1
    assert not result.lost_data
    check_file(path, result.steps)


def test_an_interrupt_while_a_buffer_changes_hands_loses_no_other_step(
    path: Path,
) -> None:
    """At any line of it: the buffer is handed over once, and not forgotten."""

    def record_until(line: int) -> int:
        """Steps that were recorded before the interrupt, or all."""
        writer = recorder(path, flush_steps=2, on_partial="discard", overwrite=True)
        left, done = line, 0

        def trace(frame: FrameType, event: str, _: object) -> Any:  # noqa: ANN401 - itself
            nonlocal left
            if event == "line" and frame.f_code is Recorder._hand_over.__code__:
                left -= 1
                if not left:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        try:
            sys.settrace(trace)
            for number in range(5):
                record(writer, number, number + 1)
                done = number + 1
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
            writer.close()
        return done

    line, done = 0, 0
    while done < 5:
        line += 1
        done = record_until(line)
        path.unlink(missing_ok=True)
        found = recover(path, fsync=False)
        assert done <= found.steps <= done + 1, line
        check_file(path, found.steps)
    assert line > 12
