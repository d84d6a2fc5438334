"""Episodes in forked and spawned workers, in threads, and through pickles."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.shard_format.support import check_python
from tests.wshard.support import assert_same, bits, full_episode, noise_array, save
from wshard import Episode, load_wshard

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = """
    import hashlib, multiprocessing, sys
    from wshard import load_wshard

    def digest(ep, name, start, stop):
        return hashlib.sha256(ep.observations[name][start:stop].tobytes()).hexdigest()

    if __name__ == "__main__":
        ep = load_wshard(sys.argv[2])
        jobs = [(ep, name, n * 7, n * 7 + 30) for name in ("raw", "cam") for n in range(6)]
        with multiprocessing.get_context(sys.argv[1]).Pool(3) as pool:
            found = pool.starmap(digest, jobs)
        assert found == [digest(*job) for job in jobs]
        assert len(set(found)) == 12
        print("ok")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ep = Episode("ep", length=200)
    ep.observations["raw"] = noise_array(200, 100, dtype="f4")
    ep.observations["cam"] = noise_array(200, 32, 32, dtype="u1") // 16
    return save(ep, tmp_path / "a.wshard", {"cam": "zstd:1", "*": "none"}, steps_per_frame=8)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_read_the_same(path: Path, method: str) -> None:
    script = path.with_name("work.py")
    lines = "\n".join(line[4:] for line in WORKERS.splitlines())
    script.write_text(lines)
    run = f"import runpy, sys; sys.argv[0] = {str(script)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    if method == "spawn":
        run = (
            "import subprocess, sys; "
            f"sys.exit(subprocess.run([sys.executable, {str(script)!r}, *sys.argv[1:]]).returncode)"
        )
    assert check_python(run, method, path).strip().endswith("ok")


@pytest.mark.parametrize("touched", [False, True])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_pickles_hold_everything(tmp_path: Path, compression: str | None, touched: bool) -> None:
    ep = load_wshard(save(full_episode(), tmp_path / "a.wshard", compression))
    if touched:
        ep.load()
    assert_same(pickle.loads(pickle.dumps(ep)), full_episode())
    assert_same(copy.deepcopy(ep), full_episode())
    assert_same(pickle.loads(pickle.dumps(full_episode())), full_episode())


def test_a_pickle_of_a_large_untouched_episode_is_small(path: Path) -> None:
    ep = load_wshard(path)
    assert len(pickle.dumps(ep)) < 20_000
    assert len(pickle.dumps(ep.observations["cam"])) < 20_000


def test_sixteen_threads_read_one_episode(path: Path) -> None:
    ep = load_wshard(path)
    wanted = {name: load_wshard(path).observations[name].data for name in ("raw", "cam")}

    def read(number: int) -> bool:
        name = ("raw", "cam")[number % 2]
        start = number * 7 % 150
        window = ep.observations[name][start : start + 40]
        return bits(window) == bits(wanted[name][start : start + 40])

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read, range(200)))


def test_sixteen_threads_touch_one_compressed_channel(tmp_path: Path) -> None:
    data = noise_array(3000, 20, dtype="u1") // 32
    path = save(Episode("e", observations={"a": data}), tmp_path / "a", "zstd", profile="exchange")
    channel = load_wshard(path).observations["a"]
    with ThreadPoolExecutor(16) as pool:
        arrays = list(pool.map(lambda _: channel.data, range(16)))
    assert all(bits(array) == bits(data) for array in arrays)
