"""The loader: order, workers, stopping and resuming, damage, and what it leaves behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shard_format.errors import ChecksumMismatch, FormatError, InvalidArgument, ShardError
from shard_train import EpisodeDataset, Plan, mix
from shard_train.torch import ByteColumn, Loader, WorkerTraceback, collate, data_loader
from tests.bridges.torch_support import (
    WIDTH,
    Damaged,
    Numbers,
    Plain,
    Random,
    numbers_of,
    planned,
)
from tests.shard_train.dataset_support import write_folder

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (20, 3, 31, 16, 40)
# Long enough for any machine: a loader that would wait forever fails instead.
TIMEOUT = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return write_folder(tmp_path_factory.mktemp("episodes") / "five", LENGTHS)


def _all_errors() -> list[type[ShardError]]:
    found, waiting = [], [ShardError]
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].__subclasses__()
    return sorted(found, key=lambda kind: kind.__name__)


def forked(dataset: Any, plan: Plan, **options: Any) -> Loader:  # noqa: ANN401 - any dataset
    return Loader(
        dataset, plan, num_workers=2, multiprocessing_context="fork", timeout=TIMEOUT, **options
    )


class TestRandomNumbers:
    """What datasets and training draw."""

    def test_workers_draw_the_same_for_a_seed_and_epoch_and_other_numbers_for_others(self) -> None:
        def drawn(seed: int) -> list[list[float]]:
            loader = data_loader(Random(8), batch_size=4, seed=seed, num_workers=2, timeout=TIMEOUT)
            return [[n for batch in loader for n in batch["random"].tolist()] for _ in range(2)]

        first, second = drawn(1)
        assert drawn(1) == [first, second]
        assert len({*first, *second, *drawn(2)[0]}) == 24

    @pytest.mark.parametrize("workers", [0, 2])
    def test_those_of_the_training_process_are_not_touched(self, workers: int) -> None:
        before = torch.get_rng_state()
        loader = data_loader(Numbers(20), batch_size=4, num_workers=workers)
        assert sum(len(batch["number"]) for batch in loader) == 20
        assert torch.equal(torch.get_rng_state(), before)


class TestBatches:
    """What comes, and in which order."""

    @pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (2, "spawn")])
    def test_they_are_those_of_the_dataset_in_the_order_of_the_plan_epoch_after_epoch(
        self, folder: Path, workers: int, context: str | None
    ) -> None:
        ds = EpisodeDataset(folder, window=8)
        plan = Plan(len(ds), batch_size=7, seed=3)
        loader = data_loader(
            ds,
            batch_size=7,
            seed=3,
            num_workers=workers,
            multiprocessing_context=context,
            persistent_workers=workers > 0,
            timeout=TIMEOUT if workers else 0,
        )
        assert len(loader) == len(plan)
        for epoch in range(3):
            seen = 0
            for step, batch in enumerate(loader):
                wanted = ds.batch(plan.with_epoch(epoch).batch(step))
                assert batch.keys() == wanted.keys()
                for name, array in wanted.items():
                    assert batch[name].numpy().dtype == array.dtype, name
                    assert np.array_equal(batch[name].numpy(), array), name
                seen += 1
            assert seen == len(plan)
        assert loader.plan.epoch == 3

    def test_in_workers_they_are_read_straight_into_shared_memory(self) -> None:
        batches = list(forked(Numbers(48), Plan(48, batch_size=4, shuffle="none")))
        assert {process for batch in batches for process in batch["process"].tolist()}.isdisjoint(
            {os.getpid()}
        )
        # From the first batch of each worker it is learned what a batch looks like.
        assert [bool(batch["into"][0]) for batch in batches] == [False] * 2 + [True] * 10
        for batch in batches:  # all held at once, and none was overwritten
            wanted = np.repeat(batch["number"].numpy()[:, None] % 251, WIDTH, axis=1)
            assert np.array_equal(batch["big"].numpy(), wanted)

    def test_a_batch_that_is_kept_stays_as_it_is_while_others_come(self) -> None:
        loader = forked(Numbers(64), Plan(64, batch_size=4), persistent_workers=True)
        kept = []
        for _ in range(2):
            for step, batch in enumerate(loader):
                if step % 5 == 0:
                    kept.append((batch["number"].tolist(), batch["big"]))
        for numbers, big in kept:
            assert big.numpy()[:, 0].tolist() == [number % 251 for number in numbers]
            assert big.numpy()[:, -1].tolist() == [number % 251 for number in numbers]

    def test_datasets_of_samples_without_more_work_too(self) -> None:
        plain = Plain(20)
        for batch in forked(plain, Plan(20, batch_size=6, shuffle="none", pad=False)):
            numbers = batch["number"].tolist()
            assert isinstance(batch["file"], ByteColumn)
            assert batch["file"] == [plain[number]["file"] for number in numbers]
            assert batch["name"] == [f"sample {number}" for number in numbers]
            assert [value.tolist() for value in batch["ragged"]] == [
                plain[number]["ragged"].tolist() for number in numbers
            ]
            assert batch["tensor"].dtype is torch.bfloat16
            assert batch["tensor"][:, 0].tolist() == numbers

    @settings(deadline=None, max_examples=40)
    @given(
        count=st.integers(1, 60),
        batch_size=st.integers(1, 9),
        world_size=st.integers(1, 5),
        seed=st.integers(0, 3),
    )
    def test_over_all_ranks_every_sample_comes_once(
        self, count: int, batch_size: int, world_size: int, seed: int
    ) -> None:
        seen: list[int] = []
        for rank in range(world_size):
            loader = data_loader(
                _Index(count), batch_size=batch_size, seed=seed, rank=rank, world_size=world_size
            )
            masks = [loader.plan.is_pad(step) for step in range(len(loader))]
            for batch, mask in zip(loader, masks, strict=True):
                seen += batch["number"][~torch.from_numpy(mask)].tolist()
        assert sorted(seen) == list(range(count))

    def test_over_all_ranks_and_workers_every_sample_comes_once(self) -> None:
        plans = [Plan(53, batch_size=4, world_size=2, rank=rank, seed=1) for rank in range(2)]
        found = [numbers_of(forked(_Index(53), plan)) for plan in plans]
        assert found == [planned(plan) for plan in plans]

    def test_mixtures_are_read_in_their_own_order(self) -> None:
        mixed = mix({"a": (Numbers(40), 0.75), "b": (Numbers(20), 0.25)}, seed=5)
        loader = data_loader(
            mixed,
            batch_size=8,
            num_workers=2,
            multiprocessing_context="fork",
            persistent_workers=True,
            timeout=TIMEOUT,
        )
        for epoch in range(2):
            plan = mixed.plan(batch_size=8, epoch=epoch)
            for step, batch in enumerate(loader):
                wanted = mixed.batch(plan.batch(step))
                assert batch["source_id"].tolist() == wanted["source_id"].tolist()
                assert batch["number"].tolist() == wanted["number"].tolist()
                assert np.array_equal(batch["big"].numpy(), wanted["big"])

    def test_a_transform_of_the_dataset_and_a_collate_function_are_used(self, folder: Path) -> None:
        ds = EpisodeDataset(folder, window=4, channels=["state"], transform=_only_state)
        loader = forked(ds, Plan(len(ds), batch_size=5, drop_last=True), collate_fn=_with_sum)
        for batch in loader:
            assert set(batch) == {"state", "sum"}
            assert float(batch["sum"]) == pytest.approx(float(batch["state"].sum()))

    def test_a_transform_may_return_tensors_text_and_arrays_of_any_length(
        self, folder: Path
    ) -> None:
        ds = EpisodeDataset(folder, window=4, transform=_of_any_kind)
        for batch in forked(ds, Plan(len(ds), batch_size=5, drop_last=True)):
            starts = batch["start"].tolist()
            assert batch["half"].dtype is torch.bfloat16
            assert batch["half"].shape == (5, 4, 3)
            assert batch["text"] == [f"from {start}" for start in starts]
            assert [len(part) for part in batch["ragged"]] == [start % 3 for start in starts]

    def test_workers_read_with_one_thread(self) -> None:
        batch = next(iter(forked(_Threads(4), Plan(4, batch_size=2))))
        assert batch["threads"].tolist() == [1, 1]


class TestResuming:
    """State: what the training has seen, not what was read ahead."""

    @pytest.mark.parametrize("workers", [0, 2])
    def test_at_every_step_and_twice_it_goes_on_exactly(self, workers: int) -> None:
        options: dict[str, Any] = {"num_workers": workers, "timeout": TIMEOUT if workers else 0}
        if workers:
            options["multiprocessing_context"] = "fork"
        plan = Plan(22, batch_size=4, seed=2)
        whole = planned(plan) + planned(plan.with_epoch(1))
        for stop in range(1, len(plan) + 1):
            seen: list[list[int]] = []
            state: dict[str, int] | None = None
            for take in (stop, 2):  # left after so many batches, and again after two more
                loader = Loader(_Index(22), plan, **options)
                if state is not None:
                    loader.load_state_dict(state)
                for batch in loader:
                    seen.append(batch["number"].tolist())
                    take -= 1
                    if not take:
                        break
                state = loader.state_dict()
            last = Loader(_Index(22), plan, **options)
            last.load_state_dict(state or {})
            while len(seen) < len(whole):
                seen += numbers_of(last)
            assert seen == whole, stop

    def test_a_state_fits_other_ranks_workers_and_batch_sizes(self) -> None:
        loader = forked(_Index(100), Plan(100, batch_size=10, seed=4))
        running = iter(loader)
        seen = [number for _ in range(3) for number in next(running)["number"].tolist()]
        state = loader.state_dict()
        assert state["position"] == 30
        for rank in range(2):
            part = data_loader(
                _Index(100), batch_size=7, seed=4, rank=rank, world_size=2, drop_last=True
            )
            part.load_state_dict(state)
            seen += [number for batch in numbers_of(part) for number in batch]
        assert len(set(seen)) == len(seen) == 30 + 70

    def test_an_iteration_that_is_left_early_starts_again(self) -> None:
        loader = data_loader(_Index(20), batch_size=4, seed=1)
        first = next(iter(loader))["number"].tolist()
        assert loader.state_dict()["position"] == 4
        assert next(iter(loader))["number"].tolist() == first

    def test_epochs_can_be_chosen(self) -> None:
        plan = Plan(20, batch_size=4, seed=1)
        loader = data_loader(_Index(20), batch_size=4, seed=1, epoch=2)
        loader.set_epoch(5)
        assert numbers_of(loader) == planned(plan.with_epoch(5))
        loader.load_state_dict(plan.with_epoch(7).state_dict(3))
        loader.set_epoch(7)  # that of the state: the place stays
        assert numbers_of(loader) == planned(plan.with_epoch(7))[3:]

    def test_a_state_of_something_else_is_refused_when_it_is_loaded(self) -> None:
        loader = data_loader(_Index(20), batch_size=4, seed=1)
        with pytest.raises(InvalidArgument, match="a different seed"):
            loader.load_state_dict(Plan(20, seed=2).state_dict())
        assert numbers_of(loader) == planned(Plan(20, batch_size=4, seed=1))

    def test_a_batch_that_failed_is_not_counted_until_another_one_was_taken(self) -> None:
        loader = data_loader(Damaged(12), batch_size=2, shuffle="none")
        running = iter(loader)
        assert [next(running)["number"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(ChecksumMismatch):
            next(running)
        assert loader.state_dict()["position"] == 4
        assert next(running)["number"].tolist() == [6, 7]
        assert loader.state_dict()["position"] == 8


class TestDamage:
    """Files that cannot be read, workers that die."""

    def test_an_error_in_a_worker_arrives_whole(self) -> None:
        loader = forked(Damaged(12), Plan(12, batch_size=2, shuffle="none"))
        running = iter(loader)
        next(running), next(running)
        with pytest.raises(ChecksumMismatch) as caught:
            next(running)
        error = caught.value
        assert (error.path, error.entry, error.found) == ("ep_5.wshard", "signal/rgb", "00000001")
        assert str(error) == ("ep_5.wshard: entry 'signal/rgb': CRC32C mismatch (found 00000001)")
        assert isinstance(error.__cause__, WorkerTraceback)
        assert "torch_support.py" in str(error.__cause__)
        assert next(running)["number"].tolist() == [6, 7]
        del caught, error  # they know this frame, and so the workers

    def test_an_error_with_something_on_it_that_does_not_pickle_arrives_too(self) -> None:
        with pytest.raises(InvalidArgument, match="found <function"):
            list(forked(_Odd(4), Plan(4, batch_size=2)))

    @pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: kind.__name__)
    def test_in_a_plain_torch_loader_an_error_keeps_its_class_and_its_text(
        self, kind: type[ShardError]
    ) -> None:
        try:
            raise kind("it is damaged", path="ep_5.wshard", entry="signal/rgb")
        except ShardError:
            wrapped = torch._utils.ExceptionWrapper(where="in DataLoader worker process 0")
        with pytest.raises(kind, match=r"ep_5\.wshard: entry 'signal/rgb': it is damaged"):
            wrapped.reraise()

    def test_a_worker_that_is_killed_is_an_error_and_no_hang(self) -> None:
        # In another process: torch raises the error in a signal handler, at any instruction, even after the loop.
        program = (
            "from shard_train import Plan\n"
            "from tests.bridges.test_torch_loader import forked\n"
            "from tests.bridges.torch_support import Dies\n"
            "list(forked(Dies(40), Plan(40, batch_size=2, shuffle='none')))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT,
            check=False,
        )
        assert done.returncode == 1
        assert re.search(r"RuntimeError: .*(exited unexpectedly|killed by signal)", done.stderr)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_what_workers_skip_is_counted_by_the_loader(self, tmp_path: Path, workers: int) -> None:
        folder = write_folder(tmp_path / "episodes", [12, 12, 12])
        ds = EpisodeDataset(folder, window=8, channels=["state"], on_error="skip")
        path = folder / "ep_1.wshard"
        path.write_bytes(path.read_bytes()[:200])
        loader = data_loader(
            ds,
            batch_size=3,
            num_workers=workers,
            multiprocessing_context="fork" if workers else None,
            persistent_workers=workers > 0,
        )
        for epoch in (1, 2):
            assert all(1 not in batch["episode"] for batch in loader)
            assert loader.skipped == {str(path): 5 * epoch}

    def test_without_skipping_a_damaged_episode_is_named(self, tmp_path: Path) -> None:
        folder = write_folder(tmp_path / "episodes", [12, 12, 12])
        ds = EpisodeDataset(folder, window=8, channels=["state"])
        path = folder / "ep_1.wshard"
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(FormatError, match=re.escape(str(path))):
            list(forked(ds, Plan(len(ds), batch_size=3)))


class TestArguments:
    """Mistakes, and what is known from elsewhere."""

    def test_a_plan_for_another_length_or_for_single_workers_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="a different length"):
            Loader(_Index(10), Plan(11))
        with pytest.raises(InvalidArgument, match="one of several workers"):
            Loader(_Index(10), Plan(10, num_workers=2))

    def test_a_mixture_takes_no_seed(self) -> None:
        with pytest.raises(InvalidArgument, match=r"pass seed and shuffle to mix\(\)"):
            data_loader(mix([(5, 1.0), (5, 1.0)]), batch_size=2, seed=1)

    def test_rank_and_world_size_belong_together(self) -> None:
        with pytest.raises(InvalidArgument, match="belong together"):
            data_loader(_Index(10), batch_size=2, rank=1)

    def test_they_are_those_of_torch_distributed_where_it_runs_and_of_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "8")
        assert data_loader(_Index(10), batch_size=2).plan.world_size == 1
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        try:
            plan = data_loader(_Index(10), batch_size=2).plan
            given = data_loader(_Index(10), batch_size=2, rank=2, world_size=4).plan
        finally:
            torch.distributed.destroy_process_group()
        assert (plan.rank, plan.world_size) == (0, 1)
        assert (given.rank, given.world_size) == (2, 4)

    def test_the_habits_of_torch_work(self) -> None:
        sizes = [len(batch) for batch in numbers_of(data_loader(_Index(10), batch_size=4))]
        assert sizes == [4, 4, 2]
        dropped = data_loader(_Index(10), batch_size=4, drop_last=True)
        assert len(dropped) == len(numbers_of(dropped)) == 2
        in_order = data_loader(_Index(5), batch_size=4, shuffle=False)
        assert numbers_of(in_order) == [[0, 1, 2, 3], [4]]
        shuffled = data_loader(_Index(50), batch_size=50, seed=1, shuffle=True)
        assert numbers_of(shuffled) == numbers_of(data_loader(_Index(50), batch_size=50, seed=1))
        assert [len(b) for b in numbers_of(data_loader(_Index(3)))] == [1, 1, 1]
        single = data_loader(_Index(5), batch_size=None, shuffle=False)
        assert [sample["number"] for sample in single] == [0, 1, 2, 3, 4]
        again = data_loader(_Index(5), batch_size=None, shuffle=False)
        next(running := iter(again))
        state = again.state_dict()
        assert state["position"] == 1
        assert [sample["number"] for sample in running] == [1, 2, 3, 4]
        padded = data_loader(_Index(10), batch_size=4, pad=True, shuffle=False)
        assert numbers_of(padded)[-1] == [8, 9, 0, 1]

    def test_a_function_for_workers_is_called(self) -> None:
        loader = data_loader(
            _Index(4),
            batch_size=2,
            num_workers=1,
            multiprocessing_context="fork",
            timeout=TIMEOUT,
            worker_init_fn=_fail_in_worker,
        )
        with pytest.raises(RuntimeError, match="called in worker 0"):
            numbers_of(loader)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"sampler": [1]}, "does not take sampler=.*shuffle= and seed="),
            ({"batch_sampler": [[1]]}, r"does not take batch_sampler=.*Loader\(dataset, Plan"),
            ({"generator": torch.Generator()}, "does not take generator=.*seed="),
            ({"in_order": False}, "in the order of the plan"),
            ({"num_worker": 3}, "drop_last.*num_workers.*found num_worker="),
            ({"shuffle": "often"}, "shuffle"),
        ],
    )
    def test_an_option_that_cannot_work_says_what_to_do_instead(
        self, options: dict[str, Any], says: str
    ) -> None:
        with pytest.raises(InvalidArgument) as caught:
            data_loader(_Index(10), batch_size=2, **options)
        assert re.search(says, str(caught.value)), str(caught.value)

    def test_a_stream_is_refused_with_a_hint(self) -> None:
        with pytest.raises(InvalidArgument, match=r"has a length.*BatchStream"):
            data_loader(iter([1]), batch_size=2)  # type: ignore[arg-type] # as users do

    def test_pinned_memory_is_asked_for_without_harm_where_there_is_none(self) -> None:
        loader = data_loader(_Index(10), batch_size=5, pin_memory=True)
        wanted = planned(loader.plan)
        if torch.accelerator.is_available():
            assert numbers_of(loader) == wanted
        else:
            with pytest.warns(UserWarning, match="no accelerator"):
                assert numbers_of(loader) == wanted

    def test_a_loader_pins_what_is_in_a_batch(self) -> None:
        from shard_train.torch._collating import FetchedBatch

        pinned = FetchedBatch({"x": _Pinnable(), "name": ["a"]}, {"file": 1}).pin_memory()
        assert pinned.batch["x"].is_pinned
        assert pinned.batch["name"] == ["a"]
        assert pinned.skipped == {"file": 1}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
class TestGrowth:
    """Twenty epochs need no more than three."""

    @pytest.mark.parametrize("persistent", [False, True], ids=["new workers", "same workers"])
    def test_file_handles_and_memory_stay_the_same(self, folder: Path, persistent: bool) -> None:
        ds = EpisodeDataset(folder, window=8)
        loaders = [forked(ds, Plan(len(ds), batch_size=9), persistent_workers=persistent)]
        if persistent:
            loaders.append(forked(Numbers(32), Plan(32, batch_size=8), persistent_workers=True))
        used = []
        for epoch in range(20):
            for loader in loaders:
                for _batch in loader:
                    pass
            if epoch in (3, 19):
                del _batch
                gc.collect()
                children = [child.pid for child in multiprocessing.active_children()]
                assert len(children) == (4 if persistent else 0)
                used.append([_usage(process) for process in ("self", *children)])
        early, late = used
        assert sum(usage[0] for usage in late) == sum(usage[0] for usage in early)
        assert sum(usage[1] for usage in late) - sum(usage[1] for usage in early) < 2 * 8 * WIDTH
        assert sum(usage[2] for usage in late) - sum(usage[2] for usage in early) < 32 << 20


def _usage(process: int | str | None) -> tuple[int, int, int]:
    """Open files, bytes of shared memory, as that of batches is, and bytes of all memory but mapped files."""
    with open(f"/proc/{process}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    shared, own = (int(fields[name].split()[0]) << 10 for name in ("RssShmem", "RssAnon"))
    return len(os.listdir(f"/proc/{process}/fd")), shared, shared + own


def _fail_in_worker(number: int) -> None:
    raise RuntimeError(f"called in worker {number}")


class _Index(Plain):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"number": number}


class _Threads(Plain):
    def __getitem__(self, number: int) -> dict[str, Any]:
        from shard_format.parallel import thread_count

        return {"threads": thread_count(None, 1 << 30)}


class _Odd(Plain):
    def __getitem__(self, number: int) -> dict[str, Any]:
        raise InvalidArgument("this does not fit", found=lambda: number)


class _Pinnable:
    is_pinned = False

    def pin_memory(self) -> _Pinnable:
        pinned = _Pinnable()
        pinned.is_pinned = True
        return pinned


def _only_state(sample: dict[str, Any]) -> dict[str, Any]:
    return {"state": sample["state"] * 2}


def _of_any_kind(sample: dict[str, Any]) -> dict[str, Any]:
    start = int(sample["start"])
    return {
        "start": start,
        "half": torch.from_numpy(sample["state"]).bfloat16(),
        "text": f"from {start}",
        "ragged": np.arange(start % 3),
    }


def _with_sum(samples: Any) -> dict[str, Any]:  # noqa: ANN401 - what a dataset returns
    batch: dict[str, Any] = collate(samples)
    batch["sum"] = batch["state"].sum()
    return batch
