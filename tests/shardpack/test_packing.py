"""`pack`: the same shards from any number of processes, and what happens when something goes wrong."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardpack
from shard_format.errors import InvalidArgument, LimitExceeded, ShardError, ShardIOError
from shard_format.executors import RUNS_AHEAD, LocalExecutor
from shardpack import ShardPackWriter, ShardWriterSet, pack
from shardpack.packing import PackResult
from tests.shardpack import packing_makers as makers
from tests.shardpack.support import CREATED

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]
PATTERN = "s-%03d.shardpack"
OPTIONS: dict[str, Any] = {"created": CREATED, "fsync": False}


def in_processes(count: int, context: str = "fork") -> dict[str, Any]:
    if count <= 1:
        return {"processes": count}
    return {"processes": LocalExecutor(count, context=context)}


HERE_AND_ELSEWHERE = pytest.mark.parametrize("processes", [0, 2])


def shards(folder: Path) -> dict[str, bytes]:
    """All files of a folder, hidden ones too."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def keys(folder: Path) -> list[str]:
    return list(shardpack.open(sorted(folder.glob("*.shardpack"))).keys())


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a plain loop over the items writes."""
    folder = tmp_path_factory.mktemp("expected")
    with ShardWriterSet(
        folder / PATTERN, max_bytes=1 << 20, compression="zstd", alignment=64, **OPTIONS
    ) as writer:
        for number in range(120):
            writer.write(*makers.make(number))
    return shards(folder)


class TestSameBytes:
    """However many processes there are."""

    @pytest.mark.parametrize(
        ("count", "context"),
        [(0, ""), (1, ""), (2, "fork"), (3, "fork"), (3, "spawn"), (2, "forkserver")],
    )
    def test_the_shards_are_those_of_a_plain_loop(
        self, tmp_path: Path, expected: dict[str, bytes], count: int, context: str
    ) -> None:
        done = pack(
            range(120),
            tmp_path / PATTERN,
            makers.make,
            max_bytes=1 << 20,
            compression="zstd",
            alignment=64,
            **in_processes(count, context),
            **OPTIONS,
        )
        assert shards(tmp_path) == expected
        assert len(expected) > 3
        names = [name for name in expected if name.endswith(".shardpack")]
        assert done == PackResult([str(tmp_path / name) for name in names], records=120)

    @given(st.lists(st.integers(0, 300), max_size=60, unique=True), st.integers(1, 40))
    @settings(max_examples=15)
    def test_any_items_with_no_samples_or_several_come_in_order(
        self, tmp_path: Path, numbers: list[int], max_records: int
    ) -> None:
        written: list[dict[str, bytes]] = []
        for count in (0, 2):
            for path in tmp_path.iterdir():
                path.unlink()
            done = pack(
                iter(numbers),
                tmp_path / PATTERN,
                makers.several,
                max_records=max_records,
                **in_processes(count),
                **OPTIONS,
            )
            written.append(shards(tmp_path))
            assert done.left_out == sum(number % 5 == 0 for number in numbers)
            assert done.records == sum(number % 5 for number in numbers)
        assert written[0] == written[1]
        assert keys(tmp_path) == [f"{n}/{part}" for n in numbers for part in range(n % 5)]

    @HERE_AND_ELSEWHERE
    def test_samples_out_of_the_same_memory_are_all_kept(
        self, tmp_path: Path, processes: int
    ) -> None:
        pack(range(3), tmp_path / "a.shardpack", makers.one_buffer, **in_processes(processes))
        records = list(shardpack.open(tmp_path / "a.shardpack"))
        assert len(records) == 18
        for record in records:
            _, size, number = record.key.split("/")
            assert record["a.bin"].data == bytes([int(number) + 1]) * int(size)
            assert record["b"].content_type == "x/y"

    @HERE_AND_ELSEWHERE
    def test_all_options_reach_the_shards(self, tmp_path: Path, processes: int) -> None:
        options: dict[str, Any] = {
            "metadata": {"split": "train"},
            "alignment": 1,
            "compression": "zstd:9",
            "created": CREATED,
        }
        with ShardPackWriter(tmp_path / "expected", **options) as writer:
            for number in range(10):
                writer.write(*makers.make(number))
        pack(range(10), tmp_path / "made", makers.make, **in_processes(processes), **options)
        found = shards(tmp_path)
        assert found["made"] == found["expected"]

    def test_no_more_processes_are_started_than_there_is_work_for(self, tmp_path: Path) -> None:
        pack(range(2), tmp_path / "a", makers.in_process, **in_processes(50))
        used = {record.metadata["process"] for record in shardpack.open(tmp_path / "a")}
        assert os.getpid() not in used
        assert len(used) <= 2

    def test_any_function_will_do_where_processes_are_forked(self, tmp_path: Path) -> None:
        offset = 7
        pack(range(5), tmp_path / "a", lambda n: (f"{n + offset}", {}), **in_processes(2))
        assert keys_of(tmp_path / "a") == ["7", "8", "9", "10", "11"]

    @HERE_AND_ELSEWHERE
    def test_nothing_makes_a_set_without_records(self, tmp_path: Path, processes: int) -> None:
        done = pack([], tmp_path / PATTERN, makers.make, **in_processes(processes))
        assert done == PackResult([str(tmp_path / "s-000.shardpack")])
        assert keys(tmp_path) == []


def keys_of(path: Path) -> list[str]:
    return list(shardpack.open(path).keys())


class TestMemory:
    """Items are read a little ahead, and what is made waits for what is written."""

    @pytest.mark.parametrize(
        ("processes", "most"), [(0, 0), (2, 2 * RUNS_AHEAD * LocalExecutor.most_in_run)]
    )
    def test_a_generator_is_read_only_so_far_ahead(
        self, tmp_path: Path, processes: int, most: int
    ) -> None:
        taken = 0
        ahead: list[int] = []

        def items() -> Iterator[int]:
            nonlocal taken
            for number in range(3000):
                taken += 1
                yield number

        def watch(items: int) -> None:
            assert items == 1
            ahead.append(taken - len(ahead) - 1)

        pack(items(), tmp_path / "a", makers.small, progress=watch, **in_processes(processes))
        assert len(ahead) == 3000
        assert max(ahead) <= most
        assert ahead[-1] == 0

    @HERE_AND_ELSEWHERE
    def test_items_without_end_can_be_stopped(self, tmp_path: Path, processes: int) -> None:
        def stop_at_last(items: int) -> None:
            if next(done) == 500:
                raise KeyboardInterrupt

        done = itertools.count(1)
        with pytest.raises(KeyboardInterrupt):
            pack(
                itertools.count(),
                tmp_path / PATTERN,
                makers.small,
                max_records=100,
                progress=stop_at_last,
                **in_processes(processes),
            )
        assert sorted(shards(tmp_path)) == [f"s-{n:03d}.shardpack" for n in range(4)]
        assert keys(tmp_path) == [f"{n}" for n in range(400)]


class TestErrors:
    """What `make` raises, and what it may not give."""

    @pytest.mark.parametrize(
        ("items", "kind", "said"),
        [
            (range(30), ValueError, "item 11, 11: ValueError: no picture at all;"),
            (range(12, 40), makers.OddError, "item 9, 21: OddError: item: odd;"),
            (range(22, 60), KeyError, "item 9, 31: KeyError: 'later';"),
            (range(32, 60), InvalidArgument, "item 9, 41: InvalidArgument: entry 'a.bin'"),
            (
                range(42, 60),
                InvalidArgument,
                "item 9, 51: InvalidArgument: make returned no samples",
            ),
        ],
    )
    @HERE_AND_ELSEWHERE
    def test_an_error_names_the_item_and_has_the_original_as_its_cause(
        self, tmp_path: Path, items: range, kind: type[Exception], said: str, processes: int
    ) -> None:
        with pytest.raises(ShardError) as caught:
            pack(items, tmp_path / PATTERN, makers.fails, **in_processes(processes))
        assert str(caught.value).startswith(f"{tmp_path / PATTERN}: make failed for {said}")
        assert shards(tmp_path) == {}
        cause: BaseException | None = caught.value.__cause__
        if processes and kind is makers.OddError:
            # All that can be had of it is its text.
            assert "OddError: item: odd" in str(cause)
        else:
            assert type(cause) is kind
        if processes:
            remote = cause if kind is makers.OddError else cause and cause.__cause__
            assert "Traceback (most recent call last)" in str(remote)
            assert "packing.py" in str(remote)

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (7, "expected (key, entries)"),
            ("key", "found str"),
            ({"a.txt": "1"}, "found dict"),
            (("key",), "found tuple of 1"),
            (("key", {}, {}, {}, {}, {}), "found tuple of 6"),
            (["key", {}], "found str"),
            (("key", [1]), "the entries of a sample are not a dictionary"),
            (("key", None), "the entries of a sample are not a dictionary"),
            (("key", {}, 3), "the metadata of a sample are not a dictionary"),
            ((b"key", {}), "the key of a record is not a string"),
            (("", {}), "P-REC-5"),
            (("key", {"a.txt": 1.5}), "entry 'a.txt'"),
        ],
    )
    def test_what_is_no_sample_is_refused_with_what_one_is(
        self, tmp_path: Path, made: object, said: str
    ) -> None:
        with pytest.raises(ShardError) as caught:
            pack(["x"], tmp_path / "a", lambda _: made)
        assert said in str(caught.value)
        assert "item 0, 'x'" in str(caught.value)

    def test_long_items_are_cut_and_odd_ones_do_not_hide_the_error(self, tmp_path: Path) -> None:
        class Odd:
            def __repr__(self) -> str:
                raise RuntimeError("no text")

        for item, said in (("x" * 10_000, "item 0, 'xxx"), (Odd(), "item 0, <")):
            with pytest.raises(ShardError, match=said) as caught:
                pack([item], tmp_path / "a", lambda _: 1 / 0)
            assert "ZeroDivisionError" in str(caught.value)
            # One file cannot be continued after an error: the message says what can.
            assert "a set of shards" in str(caught.value)
            assert len(str(caught.value)) < 600

    @HERE_AND_ELSEWHERE
    def test_items_that_fail_are_left_out_on_request_and_all_are_named(
        self, tmp_path: Path, processes: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "shardpack"):
            done = pack(
                range(60),
                tmp_path / PATTERN,
                makers.fails,
                on_error="skip",
                **in_processes(processes),
            )
        bad = {11, 21, 31, 41, 51}
        # What item 31 gave before it failed is there.
        assert keys(tmp_path) == [f"{n}" for n in range(60) if n not in bad or n == 31]
        assert (done.records, done.failures) == (56, 5)
        assert [(one.number, one.item, one.samples) for one in done.failed] == [
            (n, f"{n}", int(n == 31)) for n in sorted(bad)
        ]
        assert done.failed[1].error == "OddError: item: odd"
        assert [record.getMessage().partition(" item ")[2][:2] for record in caplog.records] == [
            f"{n}" for n in sorted(bad)
        ]

    def test_a_million_failures_would_not_fill_the_memory(self, tmp_path: Path) -> None:
        done = pack(range(1100), tmp_path / "a", lambda n: [][n], on_error="skip")
        assert (done.failures, len(done.failed)) == (1100, 1000)
        assert done.failed[-1].error == "IndexError: list index out of range"

    @HERE_AND_ELSEWHERE
    def test_what_the_items_raise_comes_through(self, tmp_path: Path, processes: int) -> None:
        def items() -> Iterator[int]:
            yield from range(10)
            raise LookupError("no more")

        with pytest.raises(LookupError, match="no more"):
            pack(items(), tmp_path / PATTERN, makers.small, **in_processes(processes))
        assert shards(tmp_path) == {}

    @HERE_AND_ELSEWHERE
    def test_a_repeated_key_is_named_with_its_item(self, tmp_path: Path, processes: int) -> None:
        def repeat(number: int) -> tuple[str, dict[str, Any]]:
            return f"{number % 90}", {}

        with pytest.raises(InvalidArgument, match=r"'0' was written before.*item 90, 90.*P-REC-10"):
            pack(range(100), tmp_path / PATTERN, repeat, max_records=20, **in_processes(processes))
        assert len(shards(tmp_path)) == 4

    def test_limits_of_the_format_hold(self, tmp_path: Path) -> None:
        with pytest.raises(ShardError, match="item 0, 0: LimitExceeded") as caught:
            pack([0], tmp_path / "a", lambda _: ("k", {}, {"a": "x" * (17 << 20)}))
        assert isinstance(caught.value.__cause__, LimitExceeded)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"processes": -1}, "processes is too small"),
            ({"on_error": "ignore"}, "unknown on_error"),
            ({"alignment": 3}, "alignment"),
            ({"compression": "zip"}, "compression"),
            ({"max_records": 0}, "max_records"),
        ],
    )
    def test_wrong_arguments_are_refused_before_anything_is_made(
        self, tmp_path: Path, arguments: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(InvalidArgument, match=said):
            pack(iter_fails(), tmp_path / PATTERN, makers.small, **arguments)
        assert shards(tmp_path) == {}

    def test_shards_that_are_there_are_not_replaced(self, tmp_path: Path) -> None:
        pack(range(3), tmp_path / PATTERN, makers.small)
        with pytest.raises(InvalidArgument, match="append=True"):
            pack(range(3), tmp_path / PATTERN, makers.small)


def iter_fails() -> Iterator[int]:
    raise AssertionError("the items were looked at")
    yield 0


class TestSending:
    """What cannot go to another process is named, with what to do."""

    def test_a_function_that_cannot_be_pickled(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"make cannot be sent.*top level.*processes=0"):
            pack(range(3), tmp_path / "a", lambda n: (f"{n}", {}), **in_processes(2, "spawn"))
        assert shards(tmp_path) == {}

    def test_a_function_that_cannot_be_loaded_there(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"RuntimeError: not here.*top level") as caught:
            pack(range(3), tmp_path / "a", makers.CannotBeLoaded(), **in_processes(2, "spawn"))
        assert "_load" in str(caught.value.__cause__ and caught.value.__cause__.__cause__)
        assert shards(tmp_path) == {}

    def test_an_item_that_cannot_be_pickled(self, tmp_path: Path) -> None:
        items: list[Any] = [1, 2, lambda: 3]
        with pytest.raises(InvalidArgument, match=r"item 2, <function .*cannot be sent"):
            pack(items, tmp_path / "a", makers.small, **in_processes(2))

    def test_a_process_that_may_start_no_others_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        daemon = SimpleNamespace(daemon=True)
        monkeypatch.setattr(multiprocessing, "current_process", lambda: daemon)
        with pytest.raises(InvalidArgument, match=r"daemonic worker process.*processes=0"):
            pack(range(2), tmp_path / PATTERN, makers.small, **in_processes(2))
        assert shards(tmp_path) == {}

    def test_a_way_to_start_processes_that_the_system_lacks_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="start processes"):
            LocalExecutor(2, context="thread")

    def test_a_script_that_starts_itself_again_says_what_to_change(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            dedent("""
            import shardpack
            from shard_format.executors import LocalExecutor
            def make(n):
                return str(n), {}
            shardpack.pack(range(9), "out/a", make, processes=LocalExecutor(2, context="spawn"))
            """)
        )
        (tmp_path / "out").mkdir()
        done = run_script(script)
        assert "ShardIOError: out/a: a worker process was killed or ended by itself" in done.stderr
        assert "`if __name__ == '__main__':`" in done.stderr
        assert shards(tmp_path / "out") == {}


def run_script(script: Path) -> subprocess.CompletedProcess[str]:
    """In a session of its own. Ends when all processes have that might write to its output."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=script.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "src"))),
        },
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=120,
    )


@pytest.mark.slow
class TestLostProcesses:
    """Killed, ended, interrupted."""

    def test_a_killed_process_is_an_error_that_names_the_items_and_append_continues(
        self, tmp_path: Path
    ) -> None:
        note = tmp_path / "note"
        out, undisturbed = tmp_path / "out", tmp_path / "undisturbed"
        out.mkdir()
        undisturbed.mkdir()
        jobs = [(number, str(note)) for number in range(100)]
        options: dict[str, Any] = {"max_records": 15, **in_processes(2), **OPTIONS}
        with pytest.raises(ShardIOError) as caught:
            pack(jobs, out / PATTERN, makers.ends_process, **options)
        said = str(caught.value)
        found = re.search(r"was killed .* while it made one of the items (\d+) to (\d+)", said)
        assert found is not None
        assert int(found[1]) <= 70 <= int(found[2])
        assert "memory" in said
        assert "append=True" in said
        assert len(shards(out)) < 5
        again = pack(jobs, out / PATTERN, makers.ends_process, append=True, **options)
        pack(jobs, undisturbed / PATTERN, makers.ends_process, **options)
        assert shards(out) == shards(undisturbed)
        assert again.known + again.records == 100

    def test_the_only_item_under_way_is_named(self, tmp_path: Path) -> None:
        job = (70, str(tmp_path / "note"))
        with pytest.raises(ShardIOError, match=r"while it made item 0, \(70"):
            pack([job], tmp_path / "a", makers.ends_process, **in_processes(2))

    def test_an_item_that_ends_its_process_has_failed(self, tmp_path: Path) -> None:
        jobs = [(number, "") for number in range(100)]
        with pytest.raises(ShardError, match=r"make failed for item 70.*SystemExit: 3"):
            pack(jobs, tmp_path / PATTERN, makers.ends_process, **in_processes(2))
        assert shards(tmp_path) == {}

    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_an_interrupt_leaves_complete_shards_and_no_noise(
        self, tmp_path: Path, context: str
    ) -> None:
        """As from a keyboard: it goes to all processes of the terminal."""
        done = self.run_with(tmp_path, context, "os.killpg(0, signal.SIGINT)")
        assert done.returncode == -signal.SIGINT
        assert done.stderr.count("Traceback") == 1
        assert done.stderr.endswith("KeyboardInterrupt\n")
        assert sorted(shards(tmp_path / "out")) == ["s-000.shardpack", "s-001.shardpack"]
        assert len(keys(tmp_path / "out")) == 20

    @pytest.mark.slow
    def test_stopping_while_processes_send_large_records_ends(self, tmp_path: Path) -> None:
        def stop(_: int) -> None:
            raise KeyboardInterrupt

        def large(item: int) -> tuple[str, dict[str, bytes]]:
            return str(item), {"x": bytes(20_000_000)}

        for number in range(8):
            output = tmp_path / f"{number}.shardpack"
            with pytest.raises(KeyboardInterrupt):
                pack(range(8), output, large, progress=stop, **in_processes(2), **OPTIONS)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("context", ["fork", "spawn"])
    def test_processes_end_when_the_first_is_killed(self, tmp_path: Path, context: str) -> None:
        done = self.run_with(tmp_path, context, "os.kill(os.getpid(), signal.SIGKILL)")
        assert done.returncode == -signal.SIGKILL
        assert done.stderr == ""
        assert len(keys(tmp_path / "out")) == 20

    def run_with(self, folder: Path, context: str, what: str) -> subprocess.CompletedProcess[str]:
        """Endless items, until something happens after 25 of them."""
        script = folder / "script.py"
        script.write_text(
            dedent(f"""
            import itertools, os, signal
            import shardpack
            from shard_format.executors import LocalExecutor
            from tests.shardpack.packing_makers import small

            done = itertools.count(1)

            def progress(items):
                if next(done) == 25:
                    {what}

            if __name__ == "__main__":
                signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
                shardpack.pack(itertools.count(), "out/{PATTERN}", small, max_records=10,
                    processes=LocalExecutor(2, context="{context}"), progress=progress)
            """)
        )
        (folder / "out").mkdir()
        return run_script(script)


class TestGoingOn:
    """`append=True`: what is there stays, and need not be made again."""

    @HERE_AND_ELSEWHERE
    def test_what_is_there_is_not_written_again(self, tmp_path: Path, processes: int) -> None:
        options: dict[str, Any] = {"max_records": 10, **in_processes(processes)}
        pack(range(25), tmp_path / PATTERN, makers.small, **options)
        before = shards(tmp_path)
        told: list[int] = []
        done = pack(
            range(40),
            tmp_path / PATTERN,
            makers.small,
            append=True,
            progress=told.append,
            **options,
        )
        assert (done.records, done.known, len(done.paths)) == (15, 25, 5)
        del before["s.shardpack-set"]  # lists the new shards, too
        assert before.items() <= shards(tmp_path).items()
        assert keys(tmp_path) == [f"{n}" for n in range(40)]
        assert sum(told) == 40

    @HERE_AND_ELSEWHERE
    def test_with_keys_known_before_it_is_not_even_made(
        self, tmp_path: Path, processes: int
    ) -> None:
        calls = tmp_path / "calls"

        def make(number: int) -> tuple[str, dict[str, Any]]:
            with calls.open("a") as file:
                file.write(f"{number}\n")
            return makers.small(number)

        out = tmp_path / "out"
        out.mkdir()
        options: dict[str, Any] = {"key": str, **in_processes(processes)}
        pack(range(5), out / PATTERN, make, **options)
        calls.unlink()
        told: list[int] = []
        done = pack(range(9), out / PATTERN, make, append=True, progress=told.append, **options)
        assert sorted(calls.read_text().split()) == ["5", "6", "7", "8"]
        assert (done.records, done.known, sum(told)) == (4, 5, 9)

    def test_an_item_of_which_some_samples_are_there_is_made_and_the_rest_is_written(
        self, tmp_path: Path
    ) -> None:
        def keys_before(number: int) -> list[str]:
            return [f"{number}/{part}" for part in range(number % 5)]

        made: list[int] = []

        def make(number: int) -> Any:  # noqa: ANN401 - samples
            made.append(number)
            return makers.several(number)

        with ShardWriterSet(tmp_path / PATTERN, **OPTIONS) as writer:
            for key in ("3/0", "3/1", "3/2", "4/0"):
                writer.write(key, {})
        done = pack([3, 4], tmp_path / PATTERN, make, key=keys_before, append=True)
        assert made == [4]
        assert (done.records, done.known) == (3, 4)
        assert keys(tmp_path)[4:] == ["4/1", "4/2", "4/3"]

    def test_a_single_file_is_continued(self, tmp_path: Path) -> None:
        path = tmp_path / "a.shardpack"
        pack(range(3), path, makers.small, append=True)
        done = pack(range(5), path, makers.small, append=True, **in_processes(2))
        assert (done.paths, done.records, done.known) == ([str(path)], 2, 3)
        assert keys_of(path) == ["0", "1", "2", "3", "4"]

    def test_a_key_that_is_repeated_in_one_run_is_still_an_error(self, tmp_path: Path) -> None:
        pack([1], tmp_path / PATTERN, makers.small)
        with pytest.raises(InvalidArgument, match=r"'2' was written before.*item 2, 2"):
            pack([1, 2, 2], tmp_path / PATTERN, makers.small, append=True)

    @pytest.mark.parametrize(
        ("key", "said"),
        [
            (lambda n: f"k{n}", r"a different key than key, for item 0, 5.*'k5'.*'5'"),
            (lambda n: n, "key failed for item 0, 5: TypeError"),
            (lambda n: [n], "not a key, for item 0, 5"),
        ],
    )
    def test_keys_that_are_said_before_must_be_those_that_are_made(
        self,
        tmp_path: Path,
        key: Any,  # noqa: ANN401 - wrong on purpose
        said: str,
    ) -> None:
        with pytest.raises(ShardError, match=said):
            pack([5], tmp_path / PATTERN, makers.small, key=key)
