"""Reading from a server on the loopback that answers after 0, 20 and 100 ms: requests, bytes and times."""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, redirect_stdout
from functools import partial
from operator import add
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.harness import Goal, Table
from benchmarks.pack_peers import NAMES, Mds, Samples
from benchmarks.recorders import is_installed
from shard_cli.main import main
from shard_cli.programs import SHARDPACK
from shard_train import EpisodeDataset, SampleDataset
from shardpack import ShardWriterSet
from shardpack import stream as stream_of
from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator

PAUSES_MS = (0, 20, 100)
EPISODES, STEPS, WINDOW, BATCH = 16, 300, 16, 20
FRAME = (64, 64, 3)
CHANNEL_STEPS = 4_000
"""Of a channel of about 50 MB."""
SAMPLES = 4_000
SHARD_BYTES = 8 << 20
COUNT = 1_000
"""Windows and samples that are read in random order."""
BUFFERED = 700
"""Samples that are shuffled together where shards are read from start to end."""
TRIALS = 5
SCALED = {0: 100, 20: 100, 100: 30}
"""How many of them peers read that read one by one, by pause. Their times, requests and bytes are scaled up."""
ONE_BY_ONE = "one by one, scaled"
Tasks = dict[str, Callable[[int], float | None]]
"""What is measured, by name: called with a count. What it returns are the seconds of it that opening took, to be shown apart."""


class Counts(NamedTuple):
    """What a server was asked for."""

    requests: int
    sent: int
    """Bytes."""
    used_ms: int
    """Processor time that the server took."""


class Server:
    """The server in a process of its own.

    Args:
        folder: what it serves.
        program: where to compile it.
    """

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder = folder
        source = Path(__file__).with_name("remote_server.go")
        subprocess.run(["go", "build", "-o", program, source], check=True)
        self._process = subprocess.Popen([program, folder], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def url(self, name: str) -> str:
        return f"{self.address}/files/{name}"

    def counts(self) -> Counts:
        """What was asked for since the last call, once no request has come for a while."""
        total = Counts(0, 0, 0)
        for _ in range(100):
            found = self.control()
            total = Counts(*map(add, total, found))
            if not found.requests:
                break
            time.sleep(0.15)  # longer than any pause
        return total

    def control(self, command: str = "counts") -> Counts:
        with urllib.request.urlopen(f"{self.address}/?{command}") as answer:
            return Counts(*json.load(answer))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def run(folder: Path) -> Iterator[Table]:
    if shutil.which("go") is None:
        print("left out: the server of the remote benchmark needs Go", file=sys.stderr)
        return
    served = folder / "served"
    served.mkdir()
    write(served)
    server = Server(served, folder / "remote_server")
    try:
        yield from channel_tables(server)
        yield from window_tables(server)
        yield from sample_tables(server, folder)
        yield from epoch_tables(server, folder)
        yield from verify_tables(server)
    finally:
        server.stop()


def measured(
    server: Server, title: str, note: str, tasks: Tasks, goals: dict[int, list[Goal]] | None = None
) -> Iterator[Table]:
    """A table for each pause: the median time of each task; in the note its requests, their bytes, and the processor time
    of the server, which shares the processors with the tasks."""
    for pause in PAUSES_MS:
        server.control(f"pause_ms={pause}")
        times: dict[str, list[float]] = {}
        counts: dict[str, list[Counts]] = {name: [] for name in tasks}
        for _ in range(TRIALS):
            for name, task in tasks.items():
                count = SCALED[pause] if name.endswith(ONE_BY_ONE) else COUNT
                scale = COUNT / count
                server.counts()
                start = time.perf_counter()
                opening = task(count)
                taken = time.perf_counter() - start
                if opening is not None:
                    times.setdefault(f"{name}: opening", []).append(opening)
                    taken -= opening
                times.setdefault(name, []).append(taken * scale)
                counts[name].append(Counts(*(round(one * scale) for one in server.counts())))
        facts = []
        for name, found in counts.items():
            requests, sent, used_ms = (statistics.median(each) for each in zip(*found, strict=True))
            facts.append(
                f"{name}: {requests} requests, {sent / 1e6:.1f} MB, {used_ms} ms of the server"
            )
        yield Table(
            f"Remote, {pause} ms: {title}",
            f"{note} {'; '.join(facts)}.",
            {name: statistics.median(found) for name, found in times.items()},
            (goals or {}).get(pause, []),
        )


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
    if is_installed("litdata", "torch"):
        from litdata.streaming.writer import BinaryWriter

        chunks = BinaryWriter(str(folder / "litdata"), chunk_bytes=SHARD_BYTES)
        for number in range(SAMPLES):
            chunks.add_item(number, dict(zip(NAMES, samples[number].contents, strict=True)))
        chunks.done()
        chunks.merge()
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


def channel_tables(server: Server) -> Iterator[Table]:
    def ours(_: int) -> None:
        with load_wshard(server.url("large.wshard")) as episode:
            assert len(episode.observations["rgb"].data) == CHANNEL_STEPS

    tasks: Tasks = {"WShard": ours}
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
    return measured(server, "one channel of 50 MB", "Open a file and read one channel.", tasks)


def zarr_at(server: Server, name: str) -> Any:  # noqa: ANN401 - an array of zarr
    import zarr
    from obstore.store import HTTPStore
    from zarr.storage import ObjectStore

    store = HTTPStore.from_url(server.url(name), client_options={"allow_http": True})
    return zarr.open_array(ObjectStore(store, read_only=True), mode="r")


def batches_of(numbers: Any) -> Iterator[Any]:  # noqa: ANN401 - an array
    return iter([numbers[at : at + BATCH] for at in range(0, len(numbers), BATCH)])


def window_tables(server: Server) -> Iterator[Table]:
    order = np.random.default_rng(1)

    def read(files: Any, count: int, read_ahead: str) -> None:  # noqa: ANN401 - paths
        with closing(EpisodeDataset(files, WINDOW, index=False, read_ahead=read_ahead)) as dataset:
            numbers = order.permutation(len(dataset))[:count]
            dataset.follow_batches(batches_of(numbers))
            for batch in batches_of(numbers):
                assert len(dataset.__getitems__(batch)) == len(batch)

    urls = names_of(server, "ep_*.wshard")
    paths = sorted(map(str, server.folder.glob("ep_*.wshard")))
    local = "EpisodeDataset, local files"
    tasks: Tasks = {
        "EpisodeDataset": lambda count: read(urls, count, "256MB"),
        "EpisodeDataset, 8 MB ahead": lambda count: read(urls, count, "8MB"),
        local: lambda count: read(paths, count, "256MB"),
    }
    if is_installed("zarr", "obstore"):

        def with_zarr(count: int) -> None:
            arrays = [zarr_at(server, f"ep_{number}.zarr") for number in range(EPISODES)]
            starts = order.integers(STEPS - WINDOW, size=count).tolist()
            chosen = order.integers(EPISODES, size=count).tolist()

            def window(at: int) -> None:
                arrays[chosen[at]][starts[at] : starts[at] + WINDOW]

            with ThreadPoolExecutor(16) as pool:
                list(pool.map(window, range(count)))

        tasks["Zarr v3 over obstore, 16 threads"] = with_zarr
    return measured(
        server,
        "random windows",
        f"{COUNT} windows of {WINDOW} steps of {EPISODES} episodes of 1.5 MB. Opening is included.",
        tasks,
        {20: [Goal("EpisodeDataset", local, 1 / 0.6)]},
    )


def sample_tables(server: Server, folder: Path) -> Iterator[Table]:
    url = server.url("t.shardpack-set")
    numbers = np.random.default_rng(2).permutation(SAMPLES)
    warm = folder / "cache of samples"

    def read(count: int, **options: Any) -> None:  # noqa: ANN401 - of the dataset
        with SampleDataset(url, decode=False, **options) as dataset:
            dataset.follow_batches(batches_of(numbers[:count]))
            for batch in batches_of(numbers[:count]):
                assert len(dataset.__getitems__(batch)) == len(batch)

    def read_warm(count: int) -> float:
        start = time.perf_counter()
        with SampleDataset(url, decode=False, cache_dir=warm) as dataset:
            opening = time.perf_counter() - start
            for batch in batches_of(numbers[:count]):
                assert len(dataset.__getitems__(batch)) == len(batch)
        return opening

    def read_singly(count: int) -> float:
        start = time.perf_counter()
        with SampleDataset(url, decode=False, cache_dir=warm) as dataset:
            opening = time.perf_counter() - start
            for number in numbers[:count].tolist():
                dataset[number]
        return opening

    read(SAMPLES, cache_dir=warm)
    tasks: Tasks = {
        "SampleDataset": read,
        "SampleDataset, 8 MB ahead": lambda count: read(count, read_ahead="8MB"),
        "SampleDataset, warm cache": read_warm,
        "SampleDataset, warm cache, a sample at a time": read_singly,
    }
    goals = []
    if is_installed("pyarrow", "fsspec", "aiohttp"):

        def with_parquet(count: int) -> None:
            file = parquet_at(server, "t.parquet")
            for number in numbers[:count].tolist():
                file.read_row_group(number // 64).slice(number % 64, 1).to_pylist()

        tasks[f"Parquet over fsspec, {ONE_BY_ONE}"] = with_parquet
    if is_installed("streaming", "torch"):

        def with_mds(count: int, cache: Path) -> float:
            start = time.perf_counter()
            dataset = mds_at(server, cache)
            opening = time.perf_counter() - start
            for number in numbers[:count].tolist():
                dataset[number]
            return opening

        def with_empty_mds(count: int) -> None:
            with TemporaryDirectory(dir=folder) as empty:
                with_mds(count, Path(empty))

        cache = folder / "cache of mds"
        with_mds(SAMPLES, cache)
        tasks["MDS, empty cache"] = with_empty_mds
        tasks["MDS, warm cache"] = partial(with_mds, cache=cache)
        goals += [
            Goal(name, "MDS, warm cache", 1.0)
            for name in list(tasks)
            if "SampleDataset, warm" in name
        ]
    if is_installed("litdata", "torch"):

        def with_litdata(count: int) -> None:
            from litdata import StreamingDataset

            dataset = StreamingDataset(str(server.folder / "litdata"), shuffle=False)
            for number in numbers[:count].tolist():
                dataset[number]

        tasks[f"LitData, local files, {ONE_BY_ONE}"] = with_litdata
    return measured(
        server,
        "random samples",
        f"{COUNT} of {SAMPLES} samples of about 12 KB. Opening is included, except where it stands apart: SampleDataset then "
        "asks the server whether the set has changed, MDS does not. MDS fetches whole shards, and SampleDataset does "
        "where they fit into memory. MDS stores 16 bytes with each sample, ShardPack 213: names, types, sizes and checksums "
        "of three entries, a key with its hash, and padding. LitData reads the files of the server: its client accepts "
        "no server without TLS.",
        tasks,
        dict.fromkeys(PAUSES_MS, goals),
    )


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


def epoch_tables(server: Server, folder: Path) -> Iterator[Table]:
    shards = names_of(server, "t-*.shardpack")

    def read(source: Any, **options: Any) -> None:  # noqa: ANN401 - of the dataset
        with SampleDataset(source, decode=False, **options) as dataset:
            plan = dataset.plan(batch_size=BATCH, seed=1, shuffle="shards", buffer_shards=2)
            assert sum(map(len, dataset.batches(plan))) == SAMPLES

    def stream(_: int) -> None:
        samples = (record.read_all() for url in shards for record in stream_of(url))
        assert sum(1 for _ in shuffled(samples)) == SAMPLES

    a_set, warm = server.url("t.shardpack-set"), folder / "cache of samples"
    tasks: Tasks = {
        "SampleDataset": lambda _: read(a_set),
        "SampleDataset, warm cache": lambda _: read(a_set, cache_dir=warm),
        "SampleDataset, without the set file": lambda _: read(shards),
        "shardpack.stream, a list of URLs": stream,
    }
    ours = list(tasks)
    goals = []
    if is_installed("webdataset"):
        tars = names_of(server, "t-*.tar")

        def with_webdataset(_: int) -> None:
            assert count_samples(tars) == SAMPLES

        def with_threads(_: int) -> None:
            with ThreadPoolExecutor(len(tars)) as pool:
                assert sum(pool.map(count_samples, [[tar] for tar in tars])) == SAMPLES

        tasks["WebDataset (curl)"] = with_webdataset
        tasks["WebDataset (curl), a thread for each shard"] = with_threads
        goals = [
            Goal(one, name, 1.2)
            for one in ("SampleDataset", "shardpack.stream, a list of URLs")
            for name in tasks
            if name not in ours
        ]
    return measured(
        server,
        "an epoch by shards",
        f"{SAMPLES} samples. Opening is included. WebDataset is given a list of URLs. It reads each shard from start to end, "
        f"as curl fetches it, and shuffles in a buffer of {BUFFERED} samples; with shardpack.stream the benchmark does the "
        "same. SampleDataset is given the set file, which takes one request more: it says how many samples there are, "
        "so that every sample of the shards in the buffer may come next, and an epoch can be resumed. Without the set file, "
        "each shard takes one request more.",
        tasks,
        dict.fromkeys(PAUSES_MS, goals),
    )


def shuffled(samples: Iterator[Any]) -> Iterator[Any]:
    """The samples, each taken at random from a buffer."""
    random, held = Random(1), []
    for sample in samples:
        held.append(sample)
        if len(held) > BUFFERED:
            at = random.randrange(len(held))
            held[at], held[-1] = held[-1], held[at]
            yield held.pop()
    yield from held


def count_samples(tars: list[str]) -> int:
    import webdataset

    dataset = webdataset.WebDataset(tars, shardshuffle=False).shuffle(BUFFERED)
    return sum(1 for _ in dataset)


def verify_tables(server: Server) -> Iterator[Table]:
    def ours(_: int) -> None:
        with redirect_stdout(io.StringIO()):
            assert main(["verify", server.url("t.shardpack-set")], SHARDPACK) == 0

    note = "Every byte of all shards. The peers have no such command."
    return measured(server, "verify a set", note, {"shardpack verify": ours})
