"""Few descriptors: caches of open files keep to the limit of the process, and a lack of them is not damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_format.errors import ShardIOError
from shard_train import EpisodeDataset, SampleDataset
from tests.shard_format.support import check_python, noise
from tests.shardpack.support import write_pack
from wshard import ChunkedEpisodeWriter, Episode, add_lane, save_wshard

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("resource")

pytestmark = pytest.mark.slow

COUNT = 80
CHUNKS = 300
LIMIT = 64

LIMITED = f"""
    import glob, os, pickle, resource, sys
    import numpy as np
    import shardpack
    from shard_cli.main import WSHARD, main
    from shard_format.errors import ReferenceMismatch
    from shard_train import EpisodeDataset, mix
    from wshard import load_wshard
    from wshard.replay import ReplayBuffer

    resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, {LIMIT}))
    folder, kind = sys.argv[1:]

    def check(ds, numbers):
        batch = ds.batch(numbers)
        assert batch["x"].shape == (len(numbers), 4, 20_000)

    if kind == "episodes":
        ds = EpisodeDataset(folder + "/episodes", 4, threads=2)
        for _ in range(2):
            check(ds, range(len(ds)))
        assert ds.open_count > 5  # it still keeps some
    elif kind == "mixture":
        parts = [EpisodeDataset(folder + "/episodes", 4, threads=2) for _ in range(4)]
        mixed = mix([(part, 1) for part in parts])
        for start in range(0, 4 * {COUNT}, 40):
            assert len(mixed.__getitems__(range(start, start + 40))) == 40
    elif kind == "packs":
        with shardpack.open(folder + "/packs") as packs:
            for number in [*range({COUNT}), *range({COUNT})]:
                assert packs[number]["n.cls"].read() == b"%d" % number, number
            assert packs.find("key/7") == 7
        sample = ("another", {{"n.cls": b"-1"}})
        found = shardpack.pack(
            [sample], folder + "/packs/%03d.shardpack", lambda item: item, append=True
        )
        assert len(found.paths) == {COUNT} + 1
        os.unlink(found.paths[-1])
    elif kind == "replay":
        with ReplayBuffer(folder + "/episodes", seed=0) as replay:
            assert len(replay.episodes) == {COUNT}
            for _ in range(10):
                replay.sample(16, 4)
            assert replay.skipped == {{}}
    elif kind == "chunks":
        with load_wshard(folder + "/chunks/long_manifest.wshard") as episode:
            # A loader sends episodes to its workers.
            for one in (episode, pickle.loads(pickle.dumps(episode))):
                for start in [*range(0, {CHUNKS}, 7), *range(0, {CHUNKS}, 11)]:
                    found = one.observations["x"][start : start + 3]
                    assert found[:, 0].tolist() == [*range(start, min(start + 3, {CHUNKS}))]
                assert (one.observations["x"].data[:, -1] == np.arange({CHUNKS})).all()
            assert len(os.listdir("/proc/self/fd")) < {LIMIT} * 3 // 4 or sys.platform != "linux"
        chunk = folder + "/chunks/long_chunk_0001.wshard"
        with load_wshard(folder + "/chunks/long_manifest.wshard") as episode:
            os.replace(chunk, folder + "/moved")
            os.link(folder + "/chunks/long_chunk_0002.wshard", chunk)
            try:
                found = episode.observations["x"][1]
            except ReferenceMismatch as error:
                assert chunk in str(error), error
            else:
                raise AssertionError(f"step 1 of another file: {{found}}")
            finally:
                os.replace(folder + "/moved", chunk)
    elif kind == "merge":
        parts = sorted(glob.glob(folder + "/chunks/*_chunk_*.wshard"))
        for given in (parts, [folder + "/chunks/long_manifest.wshard"]):
            options = ["-o", folder + "/merged.wshard", "--force"]
            status = main(["merge", *given, *options], WSHARD)
            assert status == 0
            with load_wshard(folder + "/merged.wshard") as episode:
                assert (episode.observations["x"].data[:, -1] == np.arange({CHUNKS})).all()
    elif kind == "holes":
        # Of the descriptors that others had, the lowest are free: their numbers do not tell how few are left.
        held = [os.open(os.devnull, os.O_RDONLY) for _ in range({LIMIT} - 8)]
        for _ in range(12):
            os.close(held.pop(0))
        with shardpack.open(folder + "/packs") as packs:
            assert len([packs[number].key for number in range({COUNT})]) == {COUNT}
        with load_wshard(folder + "/chunks/long_manifest.wshard") as episode:
            assert (episode.observations["x"].data[:, -1] == np.arange({CHUNKS})).all()
        for one in held:
            os.close(one)
    # Others still find some.
    for _ in range({LIMIT} // 4):
        os.open(os.devnull, os.O_RDONLY)
"""

EXHAUSTED = """
    import errno, logging, os, pickle, resource, sys, warnings
    import shardpack
    from shard_format.errors import ShardIOError
    from shard_train import EpisodeDataset, SampleDataset, compute_stats
    from wshard import load_wshard
    from wshard.deepdata_bridge import TrajectoryIngestor
    from wshard.replay import ReplayBuffer

    logging.disable()
    warnings.simplefilter("ignore")
    folder = sys.argv[1]
    episodes, packs = folder + "/few", folder + "/packs"
    ds = EpisodeDataset(episodes, 4, on_error="skip", index=False, max_open=1)
    samples = SampleDataset(shardpack.open(packs, max_open=1), on_error="skip")
    len(samples)
    pickled = pickle.dumps(samples)
    replay = ReplayBuffer(episodes)
    replay.refresh()  # closes its files

    def make(item):
        with open(item, "rb") as file:
            return os.path.basename(item), {"x.bin": file.read()}

    def pack():
        # The output is open before; only `make` lacks a descriptor.
        given = (exhaust() or episodes + "/0.wshard" for _ in range(1))
        shardpack.pack(given, folder + "/out.shardpack", make, on_error="skip", overwrite=True)

    ingestor = TrajectoryIngestor("http://127.0.0.1:9", embedder=lambda rows: rows[:, :4])
    scans = {
        "open a folder": lambda: EpisodeDataset(episodes, 4, on_error="skip", index=False),
        "read windows": lambda: ds.batch(range(len(ds))),
        "statistics": lambda: compute_stats(ds),
        "open packs": lambda: SampleDataset(packs, on_error="skip"),
        "read samples": lambda: pickle.loads(pickled).batch(range(8)),
        "replay": lambda: ReplayBuffer(episodes),
        "refresh": lambda: (os.rename(episodes + "/1.wshard", episodes + "/9.wshard"), replay.refresh()),
        "sidecars": lambda: load_wshard(episodes + "/0.wshard"),
        "search": lambda: ingestor.ingest_folder(episodes, on_error="skip"),
        "pack": pack,
    }
    held = []

    def exhaust():
        while True:
            try:
                held.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                return

    for name, scan in scans.items():
        if name not in ("search", "pack", "refresh"):
            scan()  # imports what it needs
        ds.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        if name != "pack":
            exhaust()
        if name == "sidecars":  # the episode can be opened, its sidecars cannot
            os.close(held.pop())
        found = "nothing"
        try:
            found = repr(scan())
        except BaseException as error:
            cause = error if isinstance(error, ShardIOError) else error.__cause__
            found = errno.errorcode.get(getattr(cause, "errno", None), repr(error))
        while held:
            os.close(held.pop())
        print(name, found, sep=": ")
    print("skipped:", dict(ds.skipped), dict(samples.skipped), replay.skipped)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes that are too large to be read at once, and packs; only read, except for `few`."""
    path = tmp_path_factory.mktemp("open files")
    (path / "episodes").mkdir()
    for number in range(COUNT):
        episode = Episode(f"ep {number}", length=4)
        episode.observations["x"] = np.full((4, 20_000), number, np.float32)
        save_wshard(episode, path / "episodes" / f"{number}.wshard", fsync=False)
    (path / "packs").mkdir()
    for number in range(COUNT):
        content = {"n.cls": b"%d" % number, "x.bin": noise(1000, number)}
        write_pack(path / "packs" / f"{number:03d}.shardpack", {f"key/{number}": content})
    episode = Episode("long", length=CHUNKS)
    steps = np.arange(CHUNKS, dtype=np.float32)
    episode.observations["x"] = np.repeat(steps[:, None], 20_000, axis=1)
    with ChunkedEpisodeWriter(path / "chunks", "long", 1, fsync=False) as writer:
        writer.write_episode(episode)
    return path


@pytest.mark.parametrize(
    "kind", ["episodes", "mixture", "packs", "replay", "chunks", "merge", "holes"]
)
def test_the_default_cache_of_open_files_keeps_to_the_limit(folder: Path, kind: str) -> None:
    check_python(LIMITED, folder, kind)


def test_a_lack_of_descriptors_is_raised_and_never_taken_for_damage(folder: Path) -> None:
    few = folder / "few"
    few.mkdir()
    for number in range(3):
        name = f"{number}.wshard"
        (few / name).write_bytes((folder / "episodes" / name).read_bytes())
    add_lane(few / "0.wshard", "omen/x/m", np.zeros((4, 20_000), np.float32))
    told = check_python(EXHAUSTED, folder).splitlines()
    assert told.pop() == "skipped: {} {} {}"
    assert [line for line in told if not line.endswith(": EMFILE")] == []
    assert len(told) == 10


def test_a_network_that_fails_is_raised_and_never_taken_for_damage(folder: Path) -> None:
    gone = "http://127.0.0.1:9/a"  # nobody listens there
    with pytest.raises(ShardIOError, match=r"127\.0\.0\.1"):
        EpisodeDataset(
            [folder / "episodes" / "0.wshard", gone + ".wshard"],
            4,
            on_error="skip",
            index=False,
            storage_options={"retries": 0},
        )
    packs = [str(folder / "packs" / "000.shardpack"), "http://127.0.0.1:9/a.shardpack"]
    with pytest.raises(ShardIOError, match=r"127\.0\.0\.1"):
        SampleDataset(packs, on_error="skip")
