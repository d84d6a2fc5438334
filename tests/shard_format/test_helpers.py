"""The helpers that all packages share: parallel work in order, caches, pools, listings."""

from __future__ import annotations

import gc
import os
import pickle
import threading
from typing import TYPE_CHECKING

import pytest

from shard_format.cache import BoundedCache, Pool
from shard_format.errors import InvalidArgument, did_you_mean
from shard_format.listing import expand, expand_braces, natural_key, walk_folder
from shard_format.parallel import ordered_parallel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestOrderedParallel:
    """Results in order, with bounded read-ahead."""

    @pytest.mark.parametrize("threads", [1, 2, 5])
    @pytest.mark.parametrize("ahead", [0, 3])
    def test_results_come_in_the_order_of_the_items(self, threads: int, ahead: int) -> None:
        assert list(ordered_parallel(range(50), lambda n: n * n, threads, ahead)) == [
            n * n for n in range(50)
        ]

    def test_items_are_taken_only_as_results_are_asked_for(self) -> None:
        taken: list[int] = []

        def endless() -> Iterator[int]:
            number = 0
            while True:
                taken.append(number)
                yield number
                number += 1

        results = ordered_parallel(endless(), lambda n: n, threads=2, ahead=1)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        assert len(taken) <= 3 + 2 + 1
        results.close()  # type: ignore[attr-defined] # a generator

    def test_an_error_of_the_work_comes_in_its_place(self) -> None:
        def work(number: int) -> int:
            if number == 3:
                raise ValueError("three")
            return number

        results = ordered_parallel(range(10), work, threads=2, ahead=4)
        assert [next(results) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three"):
            next(results)

    def test_an_error_of_the_items_comes_after_the_results_before_it(self) -> None:
        def items() -> Iterator[int]:
            yield 1
            yield 2
            raise OSError("gone")

        results = ordered_parallel(items(), lambda n: n, threads=2, ahead=4)
        assert [next(results), next(results)] == [1, 2]
        with pytest.raises(OSError, match="gone"):
            next(results)

    def test_closing_the_generator_leaves_no_thread_behind(self) -> None:
        before = set(threading.enumerate())
        results = ordered_parallel(range(100), lambda n: n, threads=3, ahead=10)
        next(results)
        results.close()  # type: ignore[attr-defined] # a generator
        for thread in set(threading.enumerate()) - before:
            thread.join(30)
            assert not thread.is_alive()

    def test_a_generator_that_was_dropped_does_not_wait_for_work_that_needs_a_lock_of_this_thread(
        self,
    ) -> None:
        lock, begun = threading.Lock(), threading.Event()

        def work(number: int) -> int:
            if number:
                begun.set()
                with lock:
                    return number
            return number

        with lock:
            dropped: list[object] = [ordered_parallel(range(4), work, threads=2, ahead=1)]
            assert next(dropped[0]) == 0  # type: ignore[call-overload] # a generator
            assert begun.wait(30)
            dropped.append(dropped)  # only the collector finds it
            del dropped
            gc.collect()


class TestBoundedCache:
    """What was used last stays."""

    def test_the_value_used_longest_ago_goes_first(self) -> None:
        gone: list[str] = []
        cache: BoundedCache[int, str] = BoundedCache(count=2, on_evict=gone.append)
        cache.put(1, "a")
        cache.put(2, "b")
        assert cache.get(1) == "a"
        cache.put(3, "c")
        assert gone == ["b"]
        assert [number in cache for number in (1, 2, 3)] == [True, False, True]

    def test_a_popped_value_is_gone_and_not_evicted(self) -> None:
        gone: list[int] = []
        cache: BoundedCache[str, int] = BoundedCache(count=4, on_evict=gone.append)
        cache.put("a", 1)
        cache.put("a", 2)
        assert (cache.pop("a"), cache.pop("a"), gone) == (2, None, [1])

    def test_get_or_make_makes_a_value_once(self) -> None:
        made: list[int] = []

        def make() -> int:
            made.append(1)
            return len(made)

        cache: BoundedCache[str, int] = BoundedCache(count=4)
        assert [cache.get_or_make("x", make) for _ in range(3)] == [1, 1, 1]

    def test_the_first_of_two_values_made_at_once_wins(self) -> None:
        gone: list[str] = []
        cache: BoundedCache[str, str] = BoundedCache(count=4, on_evict=gone.append)

        def make() -> str:
            cache.put("x", "first")
            return "second"

        assert cache.get_or_make("x", make) == "first"
        assert gone == ["second"]

    def test_clear_evicts_all(self) -> None:
        gone: list[int] = []
        cache: BoundedCache[int, int] = BoundedCache(count=4, on_evict=gone.append)
        for number in range(3):
            cache.put(number, number)
        cache.clear()
        assert (gone, len(cache)) == ([0, 1, 2], 0)

    def test_a_pickled_cache_arrives_empty(self) -> None:
        cache: BoundedCache[int, int] = BoundedCache(count=1)
        cache.put(1, 1)
        copy = pickle.loads(pickle.dumps(cache))
        copy.put(2, 2)
        copy.put(3, 3)
        assert (len(copy), copy.get(3)) == (1, 3)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_a_forked_process_does_not_wait_for_a_lock_of_its_parent(self) -> None:
        cache: BoundedCache[int, int] = BoundedCache(count=4)
        cache.put(1, 10)
        with cache._lock:
            process = os.fork()
            if process == 0:
                os._exit(0 if cache.get(1) == 10 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


class TestPool:
    """Things lent to one user at a time."""

    def test_what_came_back_is_lent_again(self) -> None:
        pool: Pool[list[int]] = Pool(list, keep=1)
        first, second = pool.take(), pool.take()
        assert first is not second
        pool.give_back(first)
        pool.give_back(second)
        assert pool.take() is first
        assert pool.take() is not second


class TestListing:
    """Folders, patterns and ranges."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("ep_10.wshard", "ep_9.wshard", "b/ep_1.wshard", "a.txt", ".hidden.wshard"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(b"12")
        (tmp_path / "ep_9.wshard.lanes").mkdir()
        (tmp_path / "ep_9.wshard.lanes" / "x.wshard").write_bytes(b"")
        return tmp_path

    def test_numbers_in_names_count_as_numbers(self) -> None:
        names = ["ep_10", "ep_9", "ep", "ep_9b"]
        assert sorted(names, key=natural_key) == ["ep", "ep_9", "ep_9b", "ep_10"]

    def test_a_folder_is_walked_in_natural_order(self, folder: Path) -> None:
        listing = walk_folder(
            str(folder), ".wshard", enter=lambda name: not name.endswith(".lanes")
        )
        assert [file.name for file in listing.files] == [
            "b/ep_1.wshard",
            "ep_9.wshard",
            "ep_10.wshard",
        ]
        assert {file.size for file in listing.files} == {2}
        assert set(listing.folders) == {".", "b"}

    def test_ranges_have_both_ends_and_keep_their_digits(self) -> None:
        assert expand_braces("x-{008..010}.y") == ["x-008.y", "x-009.y", "x-010.y"]
        assert expand_braces("{0..1}-{2..3}") == ["0-2", "0-3", "1-2", "1-3"]
        assert expand_braces("plain") == ["plain"]
        for text in ("{3..2}", "{0..99999999}"):
            with pytest.raises(InvalidArgument, match="range"):
                expand_braces(text)

    def test_a_text_means_a_file_a_folder_a_pattern_or_a_range(self, folder: Path) -> None:
        def names(text: str) -> list[str]:
            return [os.path.relpath(path, folder) for path in expand(str(folder / text), ".wshard")]

        assert names("ep_9.wshard") == ["ep_9.wshard"]
        assert names("b") == ["b/ep_1.wshard"]
        assert names("ep_*.wshard") == [
            "ep_9.wshard",
            "ep_9.wshard.lanes/x.wshard",
            "ep_10.wshard",
        ] or names("ep_?.wshard") == ["ep_9.wshard"]
        assert names("ep_{9..10}.wshard") == ["ep_9.wshard", "ep_10.wshard"]
        assert names("**/ep_1.wshard") == ["b/ep_1.wshard"]
        for text in ("*.none", "ep_9.wshard.lanes/y*"):
            with pytest.raises(InvalidArgument, match="no files"):
                names(text)

    def test_a_url_means_itself(self) -> None:
        assert expand("https://host/x?y=[1]", ".wshard") == ["https://host/x?y=[1]"]


def test_the_nearest_names_are_offered_whatever_their_case() -> None:
    assert did_you_mean("ZSTDD", ["none", "zstd", "lz4"]) == "did you mean 'zstd'?"
    assert did_you_mean("q", ["none", "zstd"]) is None
