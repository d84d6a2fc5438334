"""Reading from a server on the loopback that answers after 0, 20 and 100 ms: requests, bytes and times."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness import Table
from benchmarks.pack_peers import NAMES, Mds, Samples
from benchmarks.recorders import is_installed
from shard_cli.main import main
from shard_cli.programs import SHARDPACK
from shard_train import EpisodeDataset, SampleDataset
from shardpack import ShardWriterSet
from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAUSES_MS = (0, 20, 100)
EPISODES, STEPS, WINDOW, BATCH = 16, 300, 16, 20
FRAME = (64, 64, 3)
CHANNEL_STEPS = 4_000
"""Of a channel of about 50 MB."""
SAMPLES = 4_000
SHARD_BYTES = 8 << 20
RANDOM = {0: 400, 20: 400, 100: 100}
"""Windows and samples that are read in random order, by pause."""
_AHEAD = (
    "Requests include what was read ahead when reading stopped, partly in the row that follows."
)


class Server:
    """The server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        script = str(Path(__file__).with_name("remote_server.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def url(self, name: str) -> str:
        return f"{self.address}/files/{name}"

    def control(self, command: str = "counts") -> tuple[int, int]:
        with urllib.request.urlopen(f"{self.address}/?{command}") as answer:
            requests, sent = json.load(answer)
        return requests, sent

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def run(folder: Path) -> Iterator[Table]:
    served = folder / "served"
    served.mkdir()
    write(served)
    server = Server(served)
    try:
        for title, note, tasks in (
            ("one channel of 50 MB", "Open a file and read one channel.", channel_tasks(server)),
            ("random windows", f"{{}} windows of {WINDOW} steps. {_AHEAD}", window_tasks(server)),
            (
                "random samples",
                f"{{}} samples of about 12 KB. {_AHEAD}",
                sample_tasks(server, folder),
            ),
            ("an epoch by shards", f"{SAMPLES} samples.", epoch_tasks(server, folder)),
            ("verify a set", "Every byte of all shards.", verify_tasks(server)),
        ):
            for pause in PAUSES_MS:
                yield measured(server, f"Remote, {pause} ms: {title}", note, tasks, pause)
    finally:
        server.stop()


def measured(
    server: Server, title: str, note: str, tasks: dict[str, Callable[[int], None]], pause: int
) -> Table:
    """The time of each task, with its requests and bytes in the note."""
    server.control(f"pause_ms={pause}")
    times, facts = {}, []
    for name, task in tasks.items():
        server.control()
        start = time.perf_counter()
        task(RANDOM[pause])
        times[name] = time.perf_counter() - start
        requests, sent = server.control()
        facts.append(f"{name}: {requests} requests, {sent / 1e6:.1f} MB")
    return Table(title, f"{note.format(RANDOM[pause])} {'; '.join(facts)}.", times)


# --- files


def frames(steps: int, seed: int) -> Any:  # noqa: ANN401 - an array
    random = np.random.default_rng(seed)
    noise = random.integers(0, 4, (steps, *FRAME), dtype=np.uint8)
    return noise + random.integers(0, 200, (1, *FRAME), dtype=np.uint8)


def write(folder: Path) -> None:
    for number in range(EPISODES):
        rgb = frames(STEPS, number)
        episode = Episode(f"ep {number}", observations={"rgb": rgb})
        save_wshard(episode, folder / f"ep_{number}.wshard", profile="training", fsync=False)
    large = frames(CHANNEL_STEPS, 99)
    others = {"state": np.zeros((CHANNEL_STEPS, 7), np.float32)}
    save_wshard(
        Episode("large", observations={"rgb": large, **others}),
        folder / "large.wshard",
        "none",
        fsync=False,
    )
    samples = Samples(SAMPLES)
    with ShardWriterSet(
        str(folder / "t-%06d.shardpack"), max_bytes=SHARD_BYTES, fsync=False
    ) as writer:
        for number in range(SAMPLES):
            one = samples[number]
            writer.write(one.key, dict(zip(NAMES, one.contents, strict=True)))
    if is_installed("h5py"):
        import h5py

        with h5py.File(folder / "large.h5", "w") as file:
            file.create_dataset("rgb", data=large, chunks=(16, *FRAME))
    if is_installed("pyarrow"):
        write_parquet(folder, large, samples)
    if is_installed("streaming", "torch"):
        with Mds.library().MDSWriter(
            out=str(folder / "mds"), columns=dict.fromkeys(NAMES, "bytes"), size_limit=SHARD_BYTES
        ) as mds:
            for number in range(SAMPLES):
                mds.write(dict(zip(NAMES, samples[number].contents, strict=True)))
    if is_installed("zarr"):
        import zarr

        zarr.create_array(str(folder / "large.zarr"), data=large, chunks=(16, *FRAME))
        for number in range(EPISODES):
            zarr.create_array(
                str(folder / f"ep_{number}.zarr"), data=frames(STEPS, number), chunks=(16, *FRAME)
            )
    if is_installed("webdataset"):
        from webdataset import ShardWriter

        with ShardWriter(
            str(folder / "t-%06d.tar"),
            maxsize=SHARD_BYTES,
            maxcount=10**9,
            encoder=False,
            verbose=0,
        ) as tars:
            for number in range(SAMPLES):
                one = samples[number]
                entries = dict(zip(NAMES, one.contents, strict=True))
                tars.write({"__key__": one.key.replace(".", "_"), **entries})


def write_parquet(folder: Path, large: Any, samples: Samples) -> None:  # noqa: ANN401 - an array
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps = pa.table({"rgb": [frame.tobytes() for frame in large]})
    pq.write_table(steps, folder / "large.parquet", row_group_size=64, compression="none")
    rows = [samples[number].contents for number in range(SAMPLES)]
    columns = {name: [row[at] for row in rows] for at, name in enumerate(NAMES)}
    pq.write_table(pa.table(columns), folder / "t.parquet", row_group_size=64, compression="none")


def parquet_at(server: Server, name: str) -> Any:  # noqa: ANN401 - a file of pyarrow
    import fsspec
    import pyarrow.parquet as pq

    return pq.ParquetFile(fsspec.filesystem("http").open(server.url(name)), pre_buffer=True)


def names_of(server: Server, pattern: str) -> list[str]:
    return [server.url(path.name) for path in sorted(server.folder.glob(pattern))]


# --- tasks


def channel_tasks(server: Server) -> dict[str, Callable[[int], None]]:
    def ours(_: int) -> None:
        with load_wshard(server.url("large.wshard")) as episode:
            assert len(episode.observations["rgb"].data) == CHANNEL_STEPS

    tasks: dict[str, Callable[[int], None]] = {"WShard": ours}
    if is_installed("zarr", "obstore"):

        def with_zarr(_: int) -> None:
            assert len(zarr_at(server, "large.zarr")[:]) == CHANNEL_STEPS

        tasks["Zarr v3 over obstore"] = with_zarr
    if is_installed("pyarrow", "fsspec", "aiohttp"):

        def with_parquet(_: int) -> None:
            assert len(parquet_at(server, "large.parquet").read(["rgb"])) == CHANNEL_STEPS

        tasks["Parquet over fsspec"] = with_parquet
    if is_installed("h5py", "fsspec", "aiohttp"):

        def with_h5py(_: int) -> None:
            import fsspec
            import h5py

            with fsspec.open(server.url("large.h5")) as file, h5py.File(file) as opened:
                assert len(opened["rgb"][:]) == CHANNEL_STEPS

        tasks["h5py over fsspec"] = with_h5py
    return tasks


def zarr_at(server: Server, name: str) -> Any:  # noqa: ANN401 - an array of zarr
    import zarr
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    store = HTTPStore.from_url(server.url(name), client_options={"allow_http": True})
    return zarr.open_array(ObjectStore(store, read_only=True), mode="r")


def window_tasks(server: Server) -> dict[str, Callable[[int], None]]:
    urls = names_of(server, "ep_*.wshard")
    order = np.random.default_rng(1)

    def ours(count: int) -> None:
        # Less than all files, so that windows are fetched and not files.
        dataset = EpisodeDataset(urls, WINDOW, index=False, read_ahead="16MB")
        plan = dataset.plan(batch_size=BATCH, seed=1)
        for batch, _ in zip(dataset.batches(plan), range(count // BATCH), strict=False):
            assert len(batch) == BATCH

    tasks: dict[str, Callable[[int], None]] = {"EpisodeDataset": ours}
    if is_installed("zarr", "obstore"):

        def with_zarr(count: int) -> None:
            arrays = [zarr_at(server, f"ep_{number}.zarr") for number in range(EPISODES)]
            for _ in range(count):
                start = int(order.integers(STEPS - WINDOW))
                arrays[int(order.integers(EPISODES))][start : start + WINDOW]

        tasks["Zarr v3 over obstore, one by one"] = with_zarr
    return tasks


def sample_tasks(server: Server, folder: Path) -> dict[str, Callable[[int], None]]:
    urls = names_of(server, "t-*.shardpack")

    def read(count: int, **options: Any) -> None:  # noqa: ANN401 - of the dataset
        dataset = SampleDataset(urls, decode=False, **options)
        plan = dataset.plan(batch_size=BATCH, seed=1)
        for batch, _ in zip(dataset.batches(plan), range(count // BATCH), strict=False):
            assert len(batch) == BATCH

    read(SAMPLES, cache_dir=folder / "cache of samples")
    tasks: dict[str, Callable[[int], None]] = {
        "SampleDataset": lambda count: read(count, read_ahead="8MB"),
        "SampleDataset, warm cache": lambda count: read(
            count, cache_dir=folder / "cache of samples"
        ),
    }
    numbers = np.random.default_rng(2).permutation(SAMPLES)
    if is_installed("pyarrow", "fsspec", "aiohttp"):

        def with_parquet(count: int) -> None:
            file = parquet_at(server, "t.parquet")
            for number in numbers[:count].tolist():
                file.read_row_group(number // 64).slice(number % 64, 1).to_pylist()

        tasks["Parquet over fsspec, one by one"] = with_parquet
    if is_installed("streaming", "torch"):

        def with_mds(count: int) -> None:
            dataset = mds_at(server, folder / "cache of mds")
            for number in numbers[:count].tolist():
                dataset[number]

        with_mds(SAMPLES)
        tasks["MDS, warm cache, one by one"] = with_mds
    return tasks


def mds_at(server: Server, cache: Path) -> Any:  # noqa: ANN401 - a dataset
    """MDS through the S3 client that it uses; the server takes any signature."""
    os.environ |= {
        "S3_ENDPOINT_URL": server.address,
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    return Mds.library().StreamingDataset(
        remote="s3://files/mds", local=str(cache), shuffle=False, batch_size=1
    )


def epoch_tasks(server: Server, folder: Path) -> dict[str, Callable[[int], None]]:
    urls = names_of(server, "t-*.shardpack")

    def read(**options: Any) -> None:  # noqa: ANN401 - of the dataset
        dataset = SampleDataset(urls, decode=False, **options)
        plan = dataset.plan(batch_size=BATCH, seed=1, shuffle="shards", buffer_shards=2)
        assert sum(map(len, dataset.batches(plan))) == SAMPLES

    tasks: dict[str, Callable[[int], None]] = {
        "SampleDataset": lambda _: read(),
        "SampleDataset, warm cache": lambda _: read(cache_dir=folder / "cache of samples"),
    }
    if is_installed("webdataset"):
        tars = names_of(server, "t-*.tar")

        def with_webdataset(_: int) -> None:
            import webdataset

            dataset = webdataset.WebDataset(tars, shardshuffle=False).shuffle(700)
            assert sum(1 for _ in dataset) == SAMPLES

        tasks["WebDataset (curl)"] = with_webdataset
    return tasks


def verify_tasks(server: Server) -> dict[str, Callable[[int], None]]:
    def ours(_: int) -> None:
        with redirect_stdout(io.StringIO()):
            assert main(["verify", server.url("t.shardpack-set")], SHARDPACK) == 0

    return {"shardpack verify": ours}
