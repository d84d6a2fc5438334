"""Ingesting and searching against a server on this machine that behaves as the real ones are documented to."""

from __future__ import annotations

import dataclasses
import errno
import json
import pickle
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import urllib3

from shard_format import Codec, ShardReader
from shard_format.errors import (
    BadMetadata,
    EntryNotFound,
    InvalidArgument,
    MissingExtra,
    ReferenceMismatch,
    ShardError,
    ShardIOError,
)
from tests.wshard.support import without_ml_dtypes
from tests.wshard.vector_server import Scripted, VectorServer, running, self_signed
from wshard import Channel, Episode, load_wshard, save_wshard
from wshard.chunked import ChunkedEpisodeWriter
from wshard.deepdata_bridge import EpisodeRef, TrajectoryIngestor, TrajectoryRetriever, WindowRef
from wshard.search import PaddedProjection, SearchServerError, ServerOptions
from wshard.search._client import SearchClient
from wshard.search._dialects import (
    DIALECTS,
    Document,
    Filter,
    Request,
    UnexpectedAnswer,
    make_filters,
)
from wshard.search._ingest import facts_of
from wshard.search._vectors import (
    embed,
    entries_of,
    find_observation,
    input_of_query,
    means_of,
    windows_of,
)
from wshard.types import RaggedChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import TypeAlias

    from numpy.typing import NDArray

    from wshard.search._dialects import DialectName

Anything: TypeAlias = Any
"""JSON, or what a test hands over although types forbid it."""
BOTH: tuple[DialectName, ...] = ("bridge", "server")
BRIDGE, SERVER = DIALECTS["bridge"], DIALECTS["server"]


@pytest.fixture(params=BOTH)
def server(request: pytest.FixtureRequest) -> Iterator[VectorServer]:
    with running(VectorServer(request.param)) as started:
        yield started


@pytest.fixture
def public_server() -> Iterator[VectorServer]:
    with running(VectorServer("server")) as started:
        yield started


@pytest.fixture
def bridge_server() -> Iterator[VectorServer]:
    with running(VectorServer("bridge")) as started:
        yield started


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that would have been made between tries."""
    made: list[float] = []
    monkeypatch.setattr("shard_format.http._sleep", made.append)
    return made


@pytest.fixture(autouse=True)
def _own_id_map(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


def ingestor_for(server: VectorServer, **options: Anything) -> TrajectoryIngestor:
    return TrajectoryIngestor(server.url, **split(server, options))


def retriever_for(server: VectorServer, **options: Anything) -> TrajectoryRetriever:
    return TrajectoryRetriever(server.url, **split(server, options))


def split(server: VectorServer, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an ingestor or a retriever, with those of the server in `ServerOptions`."""
    names = {one.name for one in dataclasses.fields(ServerOptions)} & options.keys()
    about_server = {name: options.pop(name) for name in names}
    return {**options, "options": ServerOptions(dialect=server.dialect, **about_server)}


# --- episodes


def cosine(a: NDArray[Any], b: NDArray[Any]) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def trajectory(seed: int, length: int = 80, size: int = 6) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    drift = np.linspace(0, 3, length)[:, None] * random.normal(size=size)
    return (random.normal(size=size) * 2 + drift).astype(np.float32)


def saved(
    folder: Path,
    name: str,
    states: NDArray[Any],
    *,
    env: str = "Reach-v1",
    reward: float | None = 0.5,
    **options: Anything,
) -> Path:
    episode = Episode(name, env_id=env)
    episode.observations["state"] = states
    episode.actions["ctrl"] = np.zeros((len(states), 2), np.float32)
    if reward is not None:
        episode.rewards = np.full(len(states), reward, np.float32)
    path = folder / f"{name}.wshard"
    save_wshard(episode, path, fsync=False, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six episodes: two environments, lengths 40 to 90, total rewards of 0 to 2.5 x length."""
    for number in range(6):
        saved(
            tmp_path,
            f"ep_{number}",
            trajectory(number, 40 + 10 * number),
            env="Reach-v1" if number % 2 else "Push-v1",
            reward=number / 2,
        )
    return tmp_path


class TestFindingEpisodes:
    """The whole way, in both dialects."""

    def test_the_nearest_episode_comes_first_with_its_cosine_similarity(
        self, server: VectorServer, folder: Path
    ) -> None:
        ingestor_for(server).ingest_folder(folder)
        query = trajectory(3, 70).mean(axis=0) + np.float32(0.01)
        found = retriever_for(server).search_episodes(query, top_k=6)
        expected = {
            f"ep_{n}": cosine(query, trajectory(n, 40 + 10 * n).mean(axis=0)) for n in range(6)
        }
        assert found[0].episode_id == "ep_3"
        assert [ref.episode_id for ref in found] == sorted(expected, key=lambda k: -expected[k])
        assert [ref.score for ref in found] == pytest.approx(
            sorted(expected.values(), reverse=True), abs=1e-5
        )

    def test_a_reference_opens_its_episode_lazily(self, server: VectorServer, folder: Path) -> None:
        ingestor_for(server).ingest_folder(folder)
        (best,) = retriever_for(server).search_episodes(trajectory(2, 60), top_k=1)
        assert isinstance(best, EpisodeRef)
        assert best.file_path == str((folder / "ep_2.wshard").resolve())
        assert best.metadata["length_T"] == 60
        assert best.metadata["total_reward"] == pytest.approx(60.0)
        with best.load() as episode:
            assert episode.length == 60
            np.testing.assert_array_equal(
                episode.observations["state"][10:20], trajectory(2, 60)[10:20]
            )
        with best.load(channels=["ctrl"]) as episode:
            assert list(episode.observations) == []

    def test_a_query_over_time_is_averaged(self, server: VectorServer, folder: Path) -> None:
        ingestor_for(server).ingest_folder(folder)
        search = retriever_for(server).search_episodes
        states = trajectory(1, 50)
        for query in (
            states.mean(axis=0),
            states.reshape(50, 2, 3),
            Channel(data=states),
            load_wshard(folder / "ep_1.wshard"),
            states.tolist(),
        ):
            assert search(query, 1)[0].episode_id == "ep_1"
            assert search(query, 1)[0].score == pytest.approx(1.0, abs=1e-6)

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ({}, {0, 1, 2, 3, 4, 5}),
            ({"env_id": "Reach-v1"}, {1, 3, 5}),
            ({"min_length": 70}, {3, 4, 5}),
            ({"min_reward": 60.0}, {2, 3, 4, 5}),
            ({"max_reward": 60.0}, {0, 1, 2}),
            ({"min_reward": 60, "max_reward": np.float32(105)}, {2, 3}),
            ({"env_id": "Push-v1", "min_length": np.int64(50), "max_reward": 60}, {2}),
            ({"env_id": "nowhere"}, set()),
        ],
    )
    def test_filters_hold_together_and_bounds_are_inclusive(
        self, server: VectorServer, folder: Path, filters: dict[str, Any], expected: set[int]
    ) -> None:
        ingestor_for(server).ingest_folder(folder, windows=False)
        found = retriever_for(server).search_episodes(np.ones(6), **filters)
        assert {ref.episode_id for ref in found} == {f"ep_{n}" for n in expected}

    def test_the_call_of_existing_code_works(self, server: VectorServer, folder: Path) -> None:
        ingestor_for(server).ingest_episode(str(folder / "ep_5.wshard"))
        found = retriever_for(server).search_similar_episodes(
            query_obs=np.ones(6), top_k=3, env_id="Reach-v1", min_length=80, reward_range=(0, 1e6)
        )
        assert [ref.episode_id for ref in found] == ["ep_5"]
        assert (
            retriever_for(server).search_similar_episodes(np.ones(6), reward_range=(None, 1)) == []
        )

    def test_no_more_than_top_k_are_returned(self, server: VectorServer, folder: Path) -> None:
        ingestor_for(server).ingest_folder(folder, windows=False)
        assert len(retriever_for(server).search_episodes(np.ones(6), top_k=4)) == 4

    def test_an_episode_without_rewards_is_found_without_bounds(
        self, server: VectorServer, tmp_path: Path
    ) -> None:
        ingestor_for(server).ingest(saved(tmp_path, "a", trajectory(0), reward=None))
        search = retriever_for(server).search_episodes
        assert [ref.episode_id for ref in search(np.ones(6))] == ["a"]
        assert search(np.ones(6), min_reward=-1) == []

    def test_ones_own_embedder_serves_both_sides(self, server: VectorServer, folder: Path) -> None:
        seen: list[tuple[int, ...]] = []

        def embedder(mean: NDArray[np.float32]) -> list[float]:
            assert mean.dtype == np.float32
            seen.append(mean.shape)
            return [float(mean[0]), float(mean[1]), 1.0]

        ingestor_for(server, embedder=embedder).ingest_folder(folder, windows=False)
        assert server.collections["traj_episodes"].dimension == 3
        found = retriever_for(server, embedder=embedder).search_episodes(trajectory(4, 80), 1)
        assert found[0].episode_id == "ep_4"
        assert set(seen) == {(6,)}


class TestFindingWindows:
    """Parts of episodes."""

    def test_a_window_is_found_and_read_as_a_slice(
        self, server: VectorServer, folder: Path
    ) -> None:
        ingestor_for(server).ingest_folder(folder)
        states = trajectory(5, 90)
        best = retriever_for(server).search_windows(states[32:64], top_k=3)[0]
        assert isinstance(best, WindowRef)
        assert (best.episode_id, best.start, best.stop) == ("ep_5", 32, 64)
        assert best.score == pytest.approx(1.0, abs=1e-6)
        part = best.load_window()
        assert part.length == 32
        np.testing.assert_array_equal(part.observations["state"].data, states[32:64])
        with best.load() as whole:
            assert whole.length == 90

    def test_windows_can_be_asked_for_in_one_episode_or_environment(
        self, server: VectorServer, folder: Path
    ) -> None:
        ingestor_for(server, window=20, stride=10).ingest_folder(folder)
        search = retriever_for(server).search_windows
        found = search(np.ones(6), top_k=100, episode_id="ep_2")
        assert sorted(ref.start for ref in found) == [0, 10, 20, 30, 40]
        found = search(np.ones(6), top_k=100, env_id="Reach-v1", min_length=70)
        assert {ref.episode_id for ref in found} == {"ep_3", "ep_5"}

    def test_numbers_that_come_back_as_floats_are_steps(self, bridge_server: VectorServer) -> None:
        metadata = {"episode_id": "a", "file_path": "/a", "window_start": 16.0, "window_end": 48.0}
        results = [{"id": "x", "score": 1, "metadata": metadata}]
        bridge_server.script.append(Scripted(body=json.dumps({"results": results}).encode()))
        (found,) = retriever_for(bridge_server).search_windows([1.0])
        assert (found.start, found.stop) == (16, 48)
        assert isinstance(found.start, int)

    @pytest.mark.parametrize("start", [None, "3", 2.5, True, -1, 1e300, 10**400])
    def test_a_window_without_steps_was_not_ingested_here(
        self, bridge_server: VectorServer, start: Anything
    ) -> None:
        metadata = {"episode_id": "a", "file_path": "/a", "window_start": start, "window_end": 48}
        body = json.dumps({"results": [{"id": "x", "score": 1, "metadata": metadata}]})
        bridge_server.script.append(Scripted(body=body.encode()))
        with pytest.raises(BadMetadata, match="integers 'window_start'"):
            retriever_for(bridge_server).search_windows([1.0])


class TestReferences:
    """From what was found to the data."""

    def test_a_file_that_is_gone_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(ShardIOError, match="Ingest it again") as caught:
            EpisodeRef("a", str(tmp_path / "a.wshard"), 1.0).load()
        assert caught.value.errno == errno.ENOENT

    def test_a_file_that_holds_another_episode_is_noticed(self, tmp_path: Path) -> None:
        path = saved(tmp_path, "b", trajectory(0))
        with pytest.raises(ReferenceMismatch, match=r"expected episode 'a', found 'b'.*again"):
            EpisodeRef("a", str(path), 1.0).load()

    def test_a_window_of_an_episode_that_became_shorter_is_noticed(self, tmp_path: Path) -> None:
        path = saved(tmp_path, "a", trajectory(0, 20))
        with pytest.raises(ReferenceMismatch, match="at least 48 steps"):
            WindowRef("a", str(path), 1.0, {}, 16, 48).load_window()

    def test_a_reference_without_a_file_cannot_be_loaded(self) -> None:
        with pytest.raises(InvalidArgument, match="does not name a file for episode 'a'"):
            EpisodeRef("a", "", 1.0).load()

    def test_references_can_be_compared_pickled_and_put_into_sets(self) -> None:
        ref = WindowRef("a", "/a", 0.5, {"length_T": 3}, 0, 3)
        assert pickle.loads(pickle.dumps(ref)) == ref
        assert len({ref, WindowRef("a", "/a", 0.5, {"length_T": 3}, 0, 3)}) == 1

    @pytest.mark.parametrize("metadata", [{}, {"episode_id": 3, "file_path": "/a"}])
    def test_a_document_of_somebody_else_is_refused(
        self, bridge_server: VectorServer, metadata: dict[str, Any]
    ) -> None:
        answer = {"results": [{"id": "x", "score": 1.0, "metadata": metadata}]}
        bridge_server.script.append(Scripted(body=json.dumps(answer).encode()))
        with pytest.raises(BadMetadata, match="not ingested by this library"):
            retriever_for(bridge_server).search_episodes([1.0])


class TestIngesting:
    """What is stored, how often, and from which files."""

    def test_ingesting_again_replaces_what_was_there(
        self, server: VectorServer, tmp_path: Path
    ) -> None:
        ingestor_for(server).ingest(saved(tmp_path, "other", trajectory(7)))
        ingestor_for(server).ingest(saved(tmp_path, "a", trajectory(0)))
        before = {name: len(c.rows) for name, c in server.collections.items()}
        path = saved(tmp_path, "a", trajectory(1), env="New-v1")
        ingestor_for(server).ingest(path)
        ingestor = ingestor_for(server)
        ingestor.ingest(path)
        ingestor.ingest(path)
        assert {name: len(c.rows) for name, c in server.collections.items()} == before
        found = retriever_for(server).search_episodes(trajectory(1))
        assert [(ref.episode_id, ref.metadata["env_id"]) for ref in found] == [
            ("a", "New-v1"),
            ("other", "Reach-v1"),
        ]

    def test_collections_that_are_there_are_used(self, server: VectorServer) -> None:
        ingestor_for(server).ensure_collections()
        ingestor = ingestor_for(server)
        ingestor.ensure_collections()
        ingestor.ensure_collections()
        assert {n: c.dimension for n, c in server.collections.items()} == {
            "traj_episodes": 128,
            "traj_timesteps": 128,
        }
        assert len(server.requests) == 4

    def test_collections_can_have_other_names(self, server: VectorServer, folder: Path) -> None:
        names = {"episodes": "mine", "windows": "mine/too"}
        if server.dialect == "bridge":
            names["windows"] = "mine_too"
        ingestor_for(server, **names).ingest(folder / "ep_1.wshard")
        assert set(server.collections) == set(names.values())
        assert retriever_for(server, **names).search_episodes(np.ones(6))
        assert retriever_for(server, **names).search_windows(np.ones(6))

    def test_the_size_of_the_vectors_must_be_known_to_make_collections(
        self, server: VectorServer
    ) -> None:
        with pytest.raises(InvalidArgument, match="pass dimension="):
            ingestor_for(server, embedder=lambda mean: mean).ensure_collections()
        ingestor_for(server, embedder=lambda mean: mean).ensure_collections(6)
        assert server.collections["traj_episodes"].dimension == 6

    def test_documents_travel_in_batches(self, server: VectorServer, folder: Path) -> None:
        report = ingestor_for(server, batch_size=4, window=8, stride=8).ingest_folder(folder)
        bodies = server.bodies("/insert") or server.bodies("/insert/batch")
        sizes = [len(body.get("ids") or body["docs"]) for body in bodies]
        assert max(sizes) == 4
        assert sum(sizes) == 6 + report.windows
        assert len(sizes) == 2 + -(-report.windows // 4)  # not one for each file

    def test_long_vectors_make_small_batches(
        self, server: VectorServer, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wshard.search._ingest._MOST_NUMBERS_SENT", 300)
        ingestor_for(server).ingest_folder(folder, windows=False)
        bodies = server.bodies("/insert") or server.bodies("/insert/batch")
        assert [len(body.get("ids") or body["docs"]) for body in bodies] == [2, 2, 2]

    @pytest.mark.parametrize("jobs", [1, 3])
    def test_a_folder_is_taken_with_its_subfolders_and_progress(
        self, server: VectorServer, folder: Path, jobs: int
    ) -> None:
        below = folder / "more" / "deeper"
        below.mkdir(parents=True)
        saved(below, "deep", trajectory(9))
        lanes = folder / "ep_1.wshard.lanes"
        lanes.mkdir()
        (folder / "ep_9.wshard.partial").write_bytes(b"not finished")
        calls: list[tuple[int, int, str]] = []
        report = ingestor_for(server).ingest_folder(
            folder, jobs=jobs, progress=lambda *call: calls.append(call)
        )
        assert [one.episode_id for one in report.ingested] == [
            *(f"ep_{n}" for n in range(6)),
            "deep",
        ]
        assert [call[:2] for call in calls] == [(n, 7) for n in range(1, 8)]
        assert len(server.collections["traj_episodes"].rows) == 7
        assert len(server.collections["traj_timesteps"].rows) == report.windows
        assert report.failures == []

    def test_a_damaged_file_stops_or_is_reported(self, server: VectorServer, folder: Path) -> None:
        (folder / "bad.wshard").write_bytes(b"SHRD nonsense")
        with pytest.raises(ShardError, match=r"bad\.wshard"):
            ingestor_for(server).ingest_folder(folder)
        report = ingestor_for(server).ingest_folder(folder, on_error="skip", jobs=2)
        assert [failure.path for failure in report.failures] == [str(folder / "bad.wshard")]
        assert len(report.ingested) == 6

    @pytest.mark.parametrize("storage", ["raw", "boolean", "seekable", "frame"])
    def test_nothing_of_a_file_with_damage_in_its_middle_is_stored(
        self, server: VectorServer, tmp_path: Path, storage: str
    ) -> None:
        states: NDArray[Any] = np.repeat(trajectory(0, 400), 8, axis=0)
        if storage == "boolean":
            states = states > 0
        options: dict[str, Any] = {}
        if storage in ("seekable", "frame"):
            options["compression"] = "zstd"
            options["steps_per_frame"] = 100 if storage == "seekable" else 3200
        path = saved(tmp_path, "a", states, **options)
        data = bytearray(path.read_bytes())
        with load_wshard(path) as episode:
            assert episode.origin is not None
            info = episode.origin.reader.info("signal/state")
            assert (info.codec == Codec.NONE) == (storage in ("raw", "boolean"))
        middle = info.data_offset + info.disk_size // 2
        data[middle] ^= 0xFF
        path.write_bytes(data)
        report = ingestor_for(server).ingest_folder(tmp_path, on_error="skip")
        assert [failure.error.path for failure in report.failures] == [str(path)]
        assert server.requests == []

    def test_two_files_with_one_episode_are_noticed(
        self, server: VectorServer, folder: Path
    ) -> None:
        (folder / "zz.wshard").write_bytes((folder / "ep_0.wshard").read_bytes())
        with pytest.raises(InvalidArgument, match=r"two files hold episode 'ep_0'.*ep_0\.wshard"):
            ingestor_for(server).ingest_folder(folder)
        report = ingestor_for(server).ingest_folder(folder, on_error="skip")
        assert [failure.path for failure in report.failures] == [str(folder / "zz.wshard")]

    def test_a_good_copy_of_a_damaged_file_is_taken(
        self, server: VectorServer, tmp_path: Path
    ) -> None:
        path = saved(tmp_path, "a", trajectory(0))
        data = path.read_bytes()
        (tmp_path / "b.wshard").write_bytes(data)
        with ShardReader(path) as reader:
            middle = reader.info("signal/state").data_offset + 100
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        report = ingestor_for(server).ingest_folder(tmp_path, on_error="skip")
        assert [failure.error.code for failure in report.failures] == ["checksum_mismatch"]
        assert [one.file_path for one in report.ingested] == [str(tmp_path / "b.wshard")]

    def test_chunks_are_stored_one_by_one_and_the_manifest_is_not(
        self, server: VectorServer, tmp_path: Path
    ) -> None:
        writer = ChunkedEpisodeWriter(tmp_path, "long", chunk_size_t=50)
        for number in range(3):
            chunk = Episode("long", env_id="Reach-v1")
            chunk.observations["state"] = trajectory(number, 50)
            chunk.rewards = np.ones(50, np.float32)
            writer.write_chunk(chunk)
        manifest = writer.finalize_manifest()
        for _ in range(2):
            report = ingestor_for(server).ingest_folder(tmp_path)
            assert report.manifests == [str(manifest)]
            assert len(server.collections["traj_episodes"].rows) == 3
            assert len(server.collections["traj_timesteps"].rows) == 6
        found = retriever_for(server).search_episodes(trajectory(1, 50), 1)
        assert found[0].metadata["chunk_index"] == 1
        np.testing.assert_array_equal(found[0].load().observations["state"].data, trajectory(1, 50))
        whole = ingestor_for(server, episodes="w", windows="ww").ingest(str(manifest))
        assert (whole.episode_id, whole.windows) == ("long", len(windows_of(150, 32, 16)))

    def test_an_episode_in_memory_needs_the_file_it_was_saved_to(
        self, server: VectorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        episode = Episode("a", observations={"state": trajectory(0)})
        with pytest.raises(InvalidArgument, match=r"episode 'a' is in no file.*path="):
            ingestor_for(server).ingest(episode)
        with pytest.raises(InvalidArgument, match=r"is in no file.*gone\.wshard"):
            ingestor_for(server).ingest(episode, path=tmp_path / "gone.wshard")
        save_wshard(episode, tmp_path / "a.wshard")
        with pytest.raises(InvalidArgument, match="is in no file"):
            ingestor_for(server).ingest(load_wshard((tmp_path / "a.wshard").read_bytes()))
        monkeypatch.chdir(tmp_path)
        done = ingestor_for(server).ingest(episode, path="a.wshard")
        assert done.file_path == str(tmp_path / "a.wshard")
        loaded = load_wshard("a.wshard")
        assert ingestor_for(server).ingest_episode(loaded).file_path == done.file_path
        assert loaded.observations["state"][0].shape == (6,)  # still open

    def test_it_can_be_handed_to_other_processes(self, server: VectorServer, folder: Path) -> None:
        copy = pickle.loads(pickle.dumps(ingestor_for(server)))
        copy.ingest_episode(folder / "ep_1.wshard")
        search = pickle.loads(pickle.dumps(retriever_for(server))).search_episodes
        assert [ref.episode_id for ref in search(np.ones(6))] == ["ep_1"]

    def test_a_folder_must_be_one(self, server: VectorServer, folder: Path) -> None:
        with pytest.raises(InvalidArgument, match=r"ingest\(\) takes a single file"):
            ingestor_for(server).ingest_folder(folder / "ep_0.wshard")

    @pytest.mark.parametrize("options", [{"window": 0}, {"stride": 0}, {"batch_size": 10_001}])
    def test_numbers_that_cannot_work_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            TrajectoryIngestor(**split(VectorServer("server"), options))

    @pytest.mark.parametrize("options", [{"jobs": 0}, {"on_error": "ignore"}])
    def test_folder_options_that_cannot_work_are_refused(
        self, tmp_path: Path, options: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument, match=next(iter(options))):
            TrajectoryIngestor().ingest_folder(tmp_path, **options)

    def test_a_camera_is_read_once_and_never_as_a_whole(
        self, server: VectorServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frames = np.random.default_rng(0).integers(0, 4, (200, 16, 16, 3), np.uint8)
        path = saved(tmp_path, "cam", frames, compression="zstd", steps_per_frame=10)
        with ShardReader(path) as reader:
            assert reader.seek_table("signal/state") is not None
        monkeypatch.setattr("wshard.search._vectors._PIECE_BYTES", 20 * 16 * 16 * 3 * 4)
        read: list[tuple[int, int]] = []
        original = Channel.read_steps

        def watched(channel: Channel, start: int, stop: int) -> NDArray[Any]:
            if channel.name == "state":
                read.append((start, stop))
            return original(channel, start, stop)

        monkeypatch.setattr(Channel, "read_steps", watched)
        done = ingestor_for(server).ingest(path)
        assert read == [(a, a + 20) for a in range(0, 200, 20)]
        assert done.windows == len(windows_of(200, 32, 16))
        best = retriever_for(server).search_windows(frames[16:48], 1)[0]
        assert best.start == 16
        assert best.score == pytest.approx(1.0, abs=1e-5)


class TestMeans:
    """Means over time, without a server."""

    @pytest.mark.parametrize(
        ("length", "window", "stride", "expected"),
        [
            (0, 32, 16, []),
            (1, 32, 16, [(0, 1)]),
            (31, 32, 16, [(0, 31)]),
            (32, 32, 16, [(0, 32)]),
            (47, 32, 16, [(0, 32)]),
            (48, 32, 16, [(0, 32), (16, 48)]),
            (80, 32, 16, [(0, 32), (16, 48), (32, 64), (48, 80)]),
            (10, 2, 4, [(0, 2), (4, 6), (8, 10)]),
        ],
    )
    def test_windows_are_whole_and_there_is_at_least_one(
        self, length: int, window: int, stride: int, expected: list[tuple[int, int]]
    ) -> None:
        assert windows_of(length, window, stride) == expected

    @pytest.mark.parametrize("piece_bytes", [1, 100, 10_000])
    @pytest.mark.parametrize(("window", "stride"), [(32, 16), (5, 1), (3, 7), (200, 1)])
    def test_one_pass_gives_the_same_means_as_slicing(
        self, piece_bytes: int, window: int, stride: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wshard.search._vectors._PIECE_BYTES", piece_bytes)
        data = np.random.default_rng(1).normal(size=(101, 2, 3)).astype(np.float32)
        channel = Channel(data=data)
        ranges = [*windows_of(101, window, stride), (0, 101)]
        got = dict(means_of(channel, ranges))
        assert sorted(got) == list(range(len(ranges)))
        for number, (start, stop) in enumerate(ranges):
            expected = data[start:stop].reshape(stop - start, 6).mean(axis=0, dtype=np.float64)
            assert got[number].dtype == np.float32
            np.testing.assert_allclose(got[number], expected, rtol=1e-6, atol=1e-7)

    def test_what_is_not_finite_is_left_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wshard.search._vectors._PIECE_BYTES", 1)
        data = np.array([[1, np.nan, np.inf], [3, 4, np.nan], [5, -np.inf, np.nan]], np.float32)
        ((_, mean),) = means_of(Channel(data=data), [(0, 3)])
        np.testing.assert_array_equal(mean, np.array([3, 4, 0], np.float32))
        np.testing.assert_array_equal(input_of_query(PaddedProjection(), data), mean)
        np.testing.assert_array_equal(input_of_query(PaddedProjection(), [np.nan, 2.0]), [0, 2])

    def test_rewards_that_are_not_finite_are_left_out_of_the_total(self, tmp_path: Path) -> None:
        episode = Episode("a", observations={"s": np.ones((4, 1))})
        episode.rewards = [1.0, np.nan, 2.0, np.inf]
        save_wshard(episode, tmp_path / "a.wshard")
        assert facts_of(load_wshard(tmp_path / "a.wshard"))["total_reward"] == 3.0

    def test_a_mean_that_float32_cannot_hold_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match=r"too large.*1e\+300"):
            input_of_query(PaddedProjection(), [[1e300], [1e300]])

    @pytest.mark.parametrize(
        "dtype", ["f64", "f32", "f16", "i64", "i32", "i8", "u64", "u8", "bool"]
    )
    def test_every_type_is_averaged_as_numbers(self, dtype: str) -> None:
        values = np.array([[0, 1], [1, 1], [0, 1], [1, 1]])
        channel = Channel(data=values.astype(bool) if dtype == "bool" else values, dtype=dtype)
        ((_, mean),) = means_of(channel, [(0, 4)])
        np.testing.assert_array_equal(mean, [0.5, 1.0])

    def test_many_half_floats_do_not_overflow(self) -> None:
        channel = Channel(data=np.full((1000, 2), 60_000, np.float16))
        ((_, mean),) = means_of(channel, [(0, 1000)])
        np.testing.assert_array_equal(mean, [60_000, 60_000])

    @pytest.mark.parametrize("has_package", [True, False])
    def test_bfloat16_is_averaged_with_and_without_its_package(
        self, has_package: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if has_package:
            pytest.importorskip("ml_dtypes")
        else:
            without_ml_dtypes(monkeypatch)
        bits = np.array([[1.5], [2.5]], np.float32).view(np.uint32) >> np.uint32(16)
        channel = Channel(data=bits.astype(np.uint16), dtype="bf16")
        ((_, mean),) = means_of(channel, [(0, 2)])
        np.testing.assert_array_equal(mean, [2.0])

    def test_the_first_observation_that_is_an_array_stands_for_the_episode(self) -> None:
        episode = Episode("a", length=3)
        episode.observations["words"] = ["x", "y", "z"]
        episode.observations["points"] = RaggedChannel(data=[np.ones((n, 2)) for n in (1, 2, 3)])
        with pytest.raises(InvalidArgument, match=r"no observation.*channel="):
            find_observation(episode)
        episode.observations["state"] = np.ones((3, 2))
        assert find_observation(episode).name == "state"
        episode.observations["later"] = np.ones((3, 5))
        assert find_observation(episode).name == "state"
        assert find_observation(episode, "later").step_shape == (5,)
        with pytest.raises(InvalidArgument, match=r"cannot be averaged.*text"):
            find_observation(episode, "words")
        with pytest.raises(EntryNotFound, match=r"'latr'.*did you mean 'later'"):
            find_observation(episode, "latr")

    def test_an_empty_observation_is_refused(self) -> None:
        episode = Episode("a", observations={"state": np.ones((0, 3))})
        with pytest.raises(InvalidArgument, match="the channel is empty"):
            find_observation(episode)

    def test_windows_of_a_channel_with_its_own_clock_follow_its_times(self) -> None:
        episode = Episode("a", length=40)
        episode.timebase.tick_hz = 10.0
        data = np.arange(8, dtype=np.float32)[:, None]
        slow = Channel("slow", data=data, sampling_rate_hz=2.0, start_ns=0)
        episode.observations["slow"] = slow
        windows = [(0, 20), (20, 40), (11, 14), (16, 18)]
        # Entries are at 0, 5, 10, … steps; a window between two of them has the one before.
        assert entries_of(episode, slow, windows) == [(0, 4), (4, 8), (2, 3), (3, 4)]

    def test_windows_of_a_channel_with_its_own_clock_need_the_time_of_the_steps(self) -> None:
        episode = Episode("a", length=40)
        slow = Channel("slow", data=np.ones((8, 1)), sampling_rate_hz=2.0, start_ns=0)
        episode.observations["slow"] = slow
        with pytest.raises(ShardError, match="tick_hz"):
            entries_of(episode, slow, [(0, 20)])

    def test_the_observation_after_the_last_action_counts_for_the_episode_only(self) -> None:
        episode = Episode("a", length=40, observations={"s": np.ones((41, 1))})
        channel = episode.observations["s"]
        assert entries_of(episode, channel, windows_of(40, 32, 8)) == [(0, 32), (8, 40)]

    @pytest.mark.parametrize(
        ("query", "problem"),
        [
            (3.0, "not one number"),
            ([], "empty"),
            (np.ones((0, 3)), "empty"),
            (["a"], "real numbers"),
            ([1j], "real numbers"),
            (Channel(data=np.ones((0, 3))), "empty"),
            (RaggedChannel(data=[np.ones((1, 2))]), "cannot be averaged"),
            (Episode("a"), "no observation"),
        ],
    )
    def test_a_query_without_a_mean_is_refused(self, query: Anything, problem: str) -> None:
        with pytest.raises(InvalidArgument, match=problem):
            TrajectoryRetriever().search_episodes(query)


class TestEmbedding:
    """The default embedder, and what is asked of any."""

    def test_small_observations_are_kept_as_they_are(self) -> None:
        vector = PaddedProjection(5)(np.array([1, 2, 3], np.float32))
        np.testing.assert_array_equal(vector, np.array([1, 2, 3, 0, 0], np.float32))

    def test_large_observations_keep_their_angles(self) -> None:
        random = np.random.default_rng(3)
        a = random.normal(size=20_000).astype(np.float32)
        b = (a + random.normal(size=20_000)).astype(np.float32)
        project = PaddedProjection(512)
        assert cosine(project(a), project(b)) == pytest.approx(cosine(a, b), abs=0.08)
        assert np.linalg.norm(project(a)) == pytest.approx(np.linalg.norm(a), rel=0.15)

    def test_the_matrix_is_the_same_everywhere(self) -> None:
        """An index must not become useless with another version of this library or of NumPy."""
        for seed in (0, 1, -1):
            rows = np.eye(200, dtype=np.float32)
            signs = np.sign(PaddedProjection(70, seed=seed).embed_many(rows)).astype(int)
            assert signs.tolist() == [slow_signs(seed, row, 70) for row in range(200)]
        assert slow_signs(0, 0, 8) == [1, 1, 1, 1, -1, 1, -1, 1]

    def test_pieces_of_any_size_give_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mean = np.random.default_rng(0).normal(size=9000).astype(np.float32)
        kept = PaddedProjection(70)(mean)
        monkeypatch.setattr("wshard.search._vectors._PROJECTION_BYTES", 1000)
        np.testing.assert_allclose(PaddedProjection(70)(mean), kept, rtol=1e-4, atol=1e-4)

    def test_it_is_pickled_without_its_matrix(self) -> None:
        project = PaddedProjection(64, seed=5)
        vector = project(np.ones(10_000, np.float32))
        data = pickle.dumps(project)
        assert len(data) < 1000
        np.testing.assert_array_equal(pickle.loads(data)(np.ones(10_000, np.float32)), vector)
        assert repr(project) == "PaddedProjection(dimension=64, seed=5)"

    def test_a_vector_has_at_least_one_number(self) -> None:
        with pytest.raises(InvalidArgument, match="at least one"):
            PaddedProjection(0)

    @pytest.mark.parametrize(
        ("embedder", "problem"),
        [
            (lambda mean: [], "another shape"),
            (lambda mean: [1.0] * int(mean[0]), "another shape"),
            (lambda mean: [np.nan], "not finite"),
            (lambda mean: [1e300], "not finite"),
            (lambda mean: ["a"], "not real numbers"),
            (lambda mean: [1j], "not real numbers"),
        ],
    )
    def test_vectors_that_cannot_be_stored_are_refused(
        self, embedder: Callable[[Any], Any], problem: str
    ) -> None:
        means = [np.full(2, n, np.float32) for n in (1, 2)]
        with pytest.raises(InvalidArgument, match=problem):
            embed(embedder, means)

    def test_many_are_embedded_together_where_that_is_possible(self) -> None:
        class Batched:
            dimension = 2

            def __call__(self, mean: Anything) -> Anything:
                raise AssertionError

            def embed_many(self, means: NDArray[np.float32]) -> NDArray[np.float32]:
                return means[:, :2]

        vectors = embed(Batched(), [np.arange(4, dtype=np.float32)] * 3)
        assert vectors.tolist() == [[0.0, 1.0]] * 3

    def test_an_embedder_that_loses_a_row_is_refused(self) -> None:
        class Losing:
            def __call__(self, mean: Anything) -> Anything:
                raise AssertionError

            def embed_many(self, means: NDArray[np.float32]) -> NDArray[np.float32]:
                return means[1:]

        with pytest.raises(InvalidArgument, match="another shape"):
            embed(Losing(), [np.ones(4, np.float32)] * 3)


def slow_signs(seed: int, row: int, dimension: int) -> list[int]:
    """A row of the matrix in Python's integers: splitmix64 of a counter, lowest bits first."""
    mask = (1 << 64) - 1
    signs: list[int] = []
    for word in range(-(-dimension // 64)):
        counter = row * -(-dimension // 64) + word
        state = (counter + 1) * 0x9E3779B97F4A7C15 + seed * 0xD1342543DE82EF95 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
        signs += [1 if state >> bit & 1 else -1 for bit in range(64)]
    return signs[:dimension]


def document(window: tuple[int, int] | None = None, **facts: Anything) -> Document:
    known: dict[str, Any] = {
        "episode_id": "e1",
        "env_id": "A",
        "length_T": 100,
        "total_reward": 1.5,
        "file_path": "/data/e1.wshard",
    }
    there = {name: fact for name, fact in {**known, **facts}.items() if fact is not None}
    return Document(there, np.array([1, 0.5], np.float32), window)


ASKED = make_filters(env_id="A", min_length=100, min_reward=0.8, max_reward=1.0)


class TestBridgeDialect:
    """The very requests that existing servers get."""

    def test_a_collection_is_made(self) -> None:
        body = {"name": "c", "dimension": 64, "index_type": "hnsw"}
        assert BRIDGE.create("c", 64, "default") == [Request("/v2/collections", body, True)]

    def test_an_episode_is_stored(self) -> None:
        request = BRIDGE.insert("traj_episodes", [document()])
        assert request.path == "/v2/collections/traj_episodes/insert"
        assert request.body == {
            "vectors": [[1.0, 0.5]],
            "ids": ["e1"],
            "metadata": [
                {
                    "episode_id": "e1",
                    "env_id": "A",
                    "length_T": 100,
                    "total_reward": 1.5,
                    "file_path": "/data/e1.wshard",
                }
            ],
        }

    def test_a_chunk_says_which_and_has_an_id_of_its_own(self) -> None:
        body = BRIDGE.insert("c", [document(chunk_index=2)]).body
        assert body is not None
        assert body["metadata"][0]["chunk_index"] == 2
        assert body["ids"] == ["e1_c2"]

    def test_a_window_is_stored(self) -> None:
        body = BRIDGE.insert("traj_timesteps", [document((16, 48))]).body
        assert body == {
            "vectors": [[1.0, 0.5]],
            "ids": ["e1_w16"],
            "metadata": [
                {
                    "episode_id": "e1",
                    "env_id": "A",
                    "file_path": "/data/e1.wshard",
                    "window_start": 16,
                    "window_end": 48,
                    "length_T": 100,
                }
            ],
        }

    def test_one_condition_stands_alone_and_several_together(self) -> None:
        path = "/v2/collections/c/search"
        request = BRIDGE.search("c", [1.0], 3, [])
        assert (request.path, request.body) == (path, {"vector": [1.0], "top_k": 3})
        body = BRIDGE.search("c", [1.0], 3, ASKED[:1]).body
        assert body == {"vector": [1.0], "top_k": 3, "filter": {"field": "env_id", "$eq": "A"}}
        body = BRIDGE.search("c", [1.0], 3, ASKED).body
        assert body is not None
        assert body["filter"] == {
            "$and": [
                {"field": "env_id", "$eq": "A"},
                {"field": "length_T", "$gte": 100},
                {"field": "total_reward", "$gte": 0.8},
                {"field": "total_reward", "$lte": 1},
            ]
        }

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            [],
            {},
            {"results": {}},
            {"results": [3]},
            {"results": [{"score": "1", "metadata": {}}]},
            {"results": [{"score": True, "metadata": {}}]},
            {"results": [{"score": 1.0}]},
            {"documents": [], "scores": []},
        ],
    )
    def test_an_answer_of_another_kind_is_refused(self, answer: Anything) -> None:
        with pytest.raises(UnexpectedAnswer):
            BRIDGE.hits(answer)


class TestServerDialect:
    """The very requests that the public server takes."""

    def test_a_collection_is_made_with_an_index_that_filters(self) -> None:
        request, for_tokens = SERVER.create("traj_episodes", 64, "lab")
        assert request.path == "/v2/collections"
        assert for_tokens.path == "/v3/tenants/lab/collections"
        assert request.body == for_tokens.body
        assert request.body == {
            "name": "traj_episodes",
            "fields": [
                {
                    "name": "embedding",
                    "type": "dense",
                    "dim": 64,
                    "index": {"type": "hnsw", "params": {"m": 16, "ef_construction": 200}},
                }
            ],
        }

    def test_documents_are_stored_with_their_episode_in_the_metadata(self) -> None:
        documents = [document(), document((0, 32), total_reward=None, chunk_index=1)]
        request = SERVER.insert("c", documents)
        assert (request.path, request.is_repeatable) == ("/v2/insert/batch", False)
        facts = {
            "episode_id": "e1",
            "env_id": "A",
            "length_T": 100,
            "file_path": "/data/e1.wshard",
        }
        vectors = {"embedding": [1.0, 0.5]}
        window = {"window_start": 0, "window_end": 32, "chunk_index": 1}
        assert request.body == {
            "collection": "c",
            "continue_on_error": True,
            "docs": [
                {"vectors": vectors, "metadata": {**facts, "total_reward": 1.5}},
                {"vectors": vectors, "metadata": {**facts, **window}},
            ],
        }

    def test_every_condition_has_an_object_of_its_own(self) -> None:
        request = SERVER.search("c", [1.0], 3, ASKED)
        assert request.path == "/v2/search"
        assert request.body == {
            "collection": "c",
            "queries": {"embedding": [1.0]},
            "top_k": 3,
            "ef_search": 128,
            "filters": {
                "$and": [
                    {"env_id": "A"},
                    {"length_T": {"$gte": 100}},
                    {"total_reward": {"$gte": 0.8}},
                    {"total_reward": {"$lte": 1}},
                ]
            },
        }
        body = SERVER.search("c", [1.0], 3, [Filter("length_T", "$gte", 5)]).body
        assert body is not None
        assert body["filters"] == {"length_T": {"$gte": 5}}

    def test_distances_become_similarities(self) -> None:
        documents = [{"id": 4, "metadata": {"a": 1}}, {"id": 2, "metadata": None}]
        found = SERVER.hits({"documents": documents, "scores": [0.25, 0.0]})
        assert [(hit.id, hit.score, hit.metadata) for hit in found] == [
            (2, 1.0, {}),
            (4, 0.75, {"a": 1}),
        ]

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            {"results": []},
            {"documents": [{"id": 1, "metadata": {}}], "scores": []},
            {"documents": [{"id": "1", "metadata": {}}], "scores": [0.0]},
            {"documents": [{"id": 1, "metadata": {}}], "scores": [None]},
            {"documents": [{"id": 1, "metadata": 3}], "scores": [0.0]},
            {"documents": [1], "scores": [0.0]},
            {"documents": 5, "scores": [0.0]},
            {"documents": [{"id": 1 << 64, "metadata": {}}], "scores": [0.0]},
        ],
    )
    def test_an_answer_of_another_kind_is_refused(self, answer: Anything) -> None:
        with pytest.raises(UnexpectedAnswer):
            SERVER.hits(answer)

    @pytest.mark.parametrize(
        ("answer", "refused"),
        [
            ({"inserted": 3, "ids": [7, 8, 9], "failed": 0, "errors": {}}, []),
            ({"inserted": 3, "ids": [7, 8, 9], "errors": None}, []),
            ({"inserted": 2, "ids": [7, 9], "failed": 1, "errors": {"1": "dimension"}}, [1]),
            ({"inserted": 2, "ids": [7, 8], "failed": 0}, [2]),
        ],
    )
    def test_documents_that_failed_are_seen_behind_the_success(
        self, answer: Anything, refused: list[int]
    ) -> None:
        inserted = SERVER.inserted(answer, 3)
        assert sorted(inserted.refused) == refused
        assert list(inserted.ids) == [number for number in range(3) if number not in refused]
        assert list(inserted.ids.values()) == answer["ids"]

    @pytest.mark.parametrize(
        "answer",
        [
            None,
            {},
            {"inserted": 1, "ids": [1], "errors": {"x": "y"}},
            {"inserted": 1},
            {"inserted": 1, "ids": [1, 2]},
            {"inserted": 1, "ids": [2**64]},
            {"inserted": -300_000_000},
            {"inserted": 2},
            {"inserted": 0, "errors": {"1": "of another request"}},
            {"inserted": 0, "errors": {"-1": "of the last document?"}},
        ],
    )
    def test_an_answer_without_counts_of_what_was_sent_is_refused(self, answer: Anything) -> None:
        with pytest.raises(UnexpectedAnswer):
            SERVER.inserted(answer, 1)


class TestConditions:
    """What is asked besides nearness."""

    @pytest.mark.parametrize("bound", [np.nan, np.inf, "many", [1]])
    def test_a_bound_is_a_finite_number(self, bound: Anything) -> None:
        with pytest.raises(InvalidArgument, match="min_reward is not a finite number"):
            make_filters(min_reward=bound)

    def test_an_environment_is_a_string(self) -> None:
        with pytest.raises(InvalidArgument, match="env_id is not a string"):
            make_filters(env_id=3)  # type: ignore[arg-type] # what is tested

    @pytest.mark.parametrize("top_k", [0, -1, 1.5, "3", None])
    def test_top_k_is_a_count(self, top_k: Anything) -> None:
        with pytest.raises(InvalidArgument, match="top_k"):
            TrajectoryRetriever().search_episodes([1.0], top_k)

    def test_a_dialect_is_one_of_two(self) -> None:
        wrong: Any = "klingon"
        with pytest.raises(InvalidArgument, match="bridge or server, found 'klingon'"):
            ServerOptions(dialect=wrong)


SECRET = "s3cret-t0ken"


class TestRefusals:
    """Servers that say no."""

    def test_a_key_opens_a_server_that_wants_one(self, tmp_path: Path) -> None:
        path = saved(tmp_path, "a", trajectory(0))
        for dialect in BOTH:
            with running(VectorServer(dialect, token=SECRET)) as server:
                ingestor_for(server, api_key=SECRET).ingest(path)
                found = retriever_for(server, api_key=SECRET).search_episodes(np.ones(6))
                assert [ref.episode_id for ref in found] == ["a"]
                made = [p for _, p, _ in server.requests if p.endswith("/collections")]
                # The public server lets a static token make collections only for its tenant.
                assert ("/v3/tenants/default/collections" in made) == (dialect == "server")

    @pytest.mark.parametrize("dialect", BOTH)
    def test_a_wrong_key_is_refused_and_never_shown(self, dialect: DialectName) -> None:
        with running(VectorServer(dialect, token="another")) as server:
            ingestor = ingestor_for(server, api_key=SECRET)
            with pytest.raises(SearchServerError, match="api_key=") as caught:
                ingestor.ensure_collections()
            error = caught.value
            assert (error.status, error.errno) == (401, errno.EACCES)
            assert error.path == f"{server.url}/v2/collections"
            assert SECRET not in f"{error} {error!r} {vars(error)} {ingestor!r}"
            assert len(server.requests) == 1

    def test_a_key_that_the_server_repeats_is_not_shown(self, bridge_server: VectorServer) -> None:
        for status in (400, 200):
            bridge_server.script.append(Scripted(status, f"bad token {SECRET}\n\x1b[31m".encode()))
            with pytest.raises(SearchServerError, match="bad token …") as caught:
                retriever_for(bridge_server, api_key=SECRET).search_episodes([1.0])
            assert SECRET not in str(caught.value)
            assert "\x1b" not in str(caught.value)

    def test_a_busy_server_is_asked_again_after_the_time_it_names(
        self, server: VectorServer, folder: Path, pauses: list[float]
    ) -> None:
        ingestor_for(server).ingest(folder / "ep_1.wshard")
        busy = Scripted(429, b"rate limit exceeded", {"Retry-After": "7"})
        server.script.extend([busy, Scripted(503)])
        assert retriever_for(server).search_episodes(np.ones(6))
        assert pauses[0] == 7
        assert 0.2 <= pauses[1] <= 0.4

    def test_even_storing_is_repeated_when_the_server_was_busy(
        self, public_server: VectorServer, folder: Path
    ) -> None:
        ingestor = ingestor_for(public_server)
        ingestor.ensure_collections()
        public_server.script.extend([Scripted(429), Scripted(429)])
        ingestor.ingest_episode(folder / "ep_1.wshard")
        assert len(public_server.bodies("/insert/batch")) == 3
        assert len(public_server.collections["traj_episodes"].rows) == 1

    def test_tries_and_pauses_are_bounded(
        self, bridge_server: VectorServer, pauses: list[float]
    ) -> None:
        bridge_server.script.extend([Scripted(429, b"slow down", {"Retry-After": "99999"})] * 9)
        with pytest.raises(SearchServerError, match=r"429: slow down.*batch_size") as caught:
            retriever_for(bridge_server, retries=4).search_episodes([1.0])
        assert caught.value.status == 429
        assert pauses == [30.0] * 4
        assert len(bridge_server.requests) == 5

    def test_other_refusals_are_not_repeated(self, server: VectorServer) -> None:
        with pytest.raises(SearchServerError, match="not found") as caught:
            retriever_for(server).search_episodes([1.0])
        assert caught.value.status == (404 if server.dialect == "bridge" else 500)
        assert len(server.requests) == 1

    @pytest.mark.parametrize("dialect", BOTH)
    def test_the_wrong_dialect_is_named(self, dialect: DialectName) -> None:
        other: Literal["bridge", "server"] = "server" if dialect == "bridge" else "bridge"
        options = ServerOptions(dialect=dialect)
        with running(VectorServer(other)) as server:
            with pytest.raises(SearchServerError, match=f'dialect="{other}"') as caught:
                TrajectoryIngestor(server.url, options=options).ensure_collections()
            assert caught.value.status == 400
            with pytest.raises(SearchServerError, match=f'dialect="{other}"'):
                TrajectoryRetriever(server.url, options=options).search_episodes([1.0])

    def test_an_answer_of_the_other_dialect_is_named(self, bridge_server: VectorServer) -> None:
        bridge_server.script.append(Scripted(body=b'{"documents": [], "scores": []}'))
        with pytest.raises(SearchServerError, match=r"'results'.*dialect=.server.") as caught:
            retriever_for(bridge_server).search_episodes([1.0])
        assert caught.value.errno == errno.EPROTO

    def test_another_dimension_than_the_collection_has_is_explained(
        self, server: VectorServer, folder: Path
    ) -> None:
        ingestor_for(server).ensure_collections()
        ingestor = ingestor_for(server, embedder=PaddedProjection(64))
        with pytest.raises(SearchServerError, match="dimension"):
            ingestor.ingest(folder / "ep_1.wshard")
        assert not server.collections["traj_timesteps"].rows

    def test_documents_that_were_refused_are_counted_and_named(
        self, public_server: VectorServer, folder: Path
    ) -> None:
        ingestor = ingestor_for(public_server)
        ingestor.ensure_collections()
        answer = {"status": "success", "inserted": 0, "failed": 1, "errors": {"0": "disk full"}}
        public_server.script.append(Scripted(body=json.dumps(answer).encode()))
        with pytest.raises(SearchServerError, match=r"0 of 1 documents.*'disk full'.*ep_1\.wshard"):
            ingestor.ingest_episode(folder / "ep_1.wshard")

    def test_a_server_error_stops_a_folder_even_if_files_are_skipped(
        self, server: VectorServer, folder: Path
    ) -> None:
        server.script.append(Scripted(500, b"out of memory"))
        with pytest.raises(SearchServerError, match="500: out of memory"):
            ingestor_for(server, batch_size=1).ingest_folder(folder, on_error="skip", jobs=2)

    def test_an_answer_to_storing_that_says_nothing_is_refused(
        self, public_server: VectorServer, folder: Path
    ) -> None:
        ingestor = ingestor_for(public_server)
        ingestor.ensure_collections()
        public_server.script.append(Scripted(body=b'{"status": "success"}'))
        with pytest.raises(SearchServerError, match="'inserted' as an integer"):
            ingestor.ingest_episode(folder / "ep_1.wshard")

    def test_redirects_are_not_followed(self, bridge_server: VectorServer) -> None:
        where = {"Location": "http://elsewhere.example/x?token=1"}
        bridge_server.script.append(Scripted(307, b"", where))
        with pytest.raises(SearchServerError, match=r"elsewhere\.example/x$") as caught:
            retriever_for(bridge_server, api_key=SECRET).search_episodes([1.0])
        assert caught.value.status == 307

    def test_errors_survive_pickling(self, bridge_server: VectorServer) -> None:
        with pytest.raises(SearchServerError) as caught:
            retriever_for(bridge_server).search_episodes([1.0])
        copy = pickle.loads(pickle.dumps(caught.value))
        assert str(copy) == str(caught.value)
        assert (copy.status, copy.answer, copy.errno) == (404, caught.value.answer, errno.EIO)
        assert isinstance(copy, ShardIOError)


class TestBrokenConnections:
    """Servers that are not there, do not answer, or answer nonsense."""

    def test_nobody_there_is_said_with_the_address(self, pauses: list[float]) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(SearchServerError, match="start the server") as caught:
                TrajectoryRetriever(url + "/").search_episodes([1.0])
        assert caught.value.path == f"{url}/v2/search"
        assert (caught.value.errno, caught.value.status) == (errno.ECONNREFUSED, None)
        assert len(pauses) == 3

    def test_a_name_that_does_not_exist_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_: Anything, **__: Anything) -> Anything:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(SearchServerError, match=r"cannot be resolved.*check the URL"):
            TrajectoryRetriever("http://no.such.host:1").search_episodes([1.0])

    def test_a_connection_that_is_not_made_in_time_is_tried_again(
        self, public_server: VectorServer, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Even for storing: nothing was sent."""
        connect = urllib3.util.connection.create_connection
        late = iter([True, False, True, True, False])

        def slow(*given: Anything, **options: Anything) -> socket.socket:
            if next(late, False):
                raise TimeoutError
            return connect(*given, **options)

        monkeypatch.setattr(urllib3.util.connection, "create_connection", slow)
        ingestor_for(public_server).ingest_episode(folder / "ep_1.wshard")
        assert len(public_server.collections["traj_episodes"].rows) == 1
        assert next(late, None) is None

    def test_https_to_a_server_without_it_is_said(self, bridge_server: VectorServer) -> None:
        url = bridge_server.url.replace("http:", "https:")
        with pytest.raises(SearchServerError, match="give a URL with http://") as caught:
            TrajectoryRetriever(url).search_episodes([1.0])
        assert caught.value.path == f"{url}/v2/search"

    def test_https_needs_a_certificate_that_is_trusted(
        self, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificate = self_signed(tmp_path)
        with running(VectorServer("bridge"), certificate) as server:
            with pytest.raises(SearchServerError, match="SSL_CERT_FILE") as caught:
                retriever_for(server).search_episodes([1.0])
            assert caught.value.errno == errno.EPROTO
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            ingestor_for(server).ingest_episode(folder / "ep_1.wshard")
            (found,) = retriever_for(server).search_episodes(np.ones(6))
            assert found.episode_id == "ep_1"

    def test_a_silent_server_is_given_up_after_the_timeout(
        self, bridge_server: VectorServer, pauses: list[float]
    ) -> None:
        done = threading.Event()
        bridge_server.script.extend([Scripted(wait=done)] * 3)
        with pytest.raises(SearchServerError, match=r"within 0\.05 s.*raise timeout=") as caught:
            retriever_for(bridge_server, timeout=0.05, retries=1).search_episodes([1.0])
        done.set()
        assert caught.value.errno == errno.ETIMEDOUT
        assert len(pauses) == 1

    def test_storing_is_not_repeated_when_nobody_knows_whether_it_happened(
        self, public_server: VectorServer, folder: Path, pauses: list[float]
    ) -> None:
        ingestor_for(public_server).ensure_collections()
        done = threading.Event()
        exists = Scripted(400, b"already exists")
        late = Scripted(wait=done, act_first=True, body=b"{}")
        public_server.script.extend([exists, exists, late])
        with pytest.raises(SearchServerError, match="may have been carried out"):
            ingestor_for(public_server, timeout=0.5).ingest_episode(folder / "ep_1.wshard")
        done.set()
        assert len(public_server.bodies("/insert/batch")) == 1
        assert pauses == []
        # And after ingesting again, as the error says, a search finds one.
        ingestor_for(public_server).ingest_episode(folder / "ep_1.wshard")
        assert sorted(public_server.collections["traj_episodes"].rows) == [1, 2]
        assert len(retriever_for(public_server).search_episodes(np.ones(6))) == 1

    def test_storing_under_ids_is_repeated(self, bridge_server: VectorServer, folder: Path) -> None:
        ingestor = ingestor_for(bridge_server)
        ingestor.ensure_collections()
        bridge_server.script.append(Scripted(502, act_first=True))
        ingestor.ingest_episode(folder / "ep_1.wshard")
        assert len(bridge_server.bodies("/insert")) == 2
        assert len(bridge_server.collections["traj_episodes"].rows) == 1

    def test_an_answer_that_is_cut_off_is_asked_for_again(
        self, server: VectorServer, folder: Path
    ) -> None:
        ingestor_for(server).ingest_episode(folder / "ep_1.wshard")
        cut = Scripted(body=b'{"resul', headers={"Content-Length": "500"}, hang_up=True)
        server.script.append(cut)
        assert retriever_for(server).search_episodes(np.ones(6))

    @pytest.mark.parametrize(
        "body",
        [
            b"<html>login</html>",
            b'{"results": [',
            b'{"results": NaN}',
            b'{"results": 1e999}',
            b"\xff\xfe",
            b"[" * 100_000,
        ],
    )
    def test_an_answer_that_is_not_json_is_said(
        self, bridge_server: VectorServer, body: bytes
    ) -> None:
        bridge_server.script.append(Scripted(body=body))
        with pytest.raises(SearchServerError, match=r"not JSON.*address") as caught:
            retriever_for(bridge_server).search_episodes([1.0])
        assert caught.value.status == 200
        assert len(str(caught.value)) < 500

    def test_a_score_of_hundreds_of_digits_does_not_fit_the_dialect(
        self, bridge_server: VectorServer
    ) -> None:
        results = [{"id": "x", "score": 10**400, "metadata": {}}]
        bridge_server.script.append(Scripted(body=json.dumps({"results": results}).encode()))
        with pytest.raises(SearchServerError, match="'score' of a result as a number"):
            retriever_for(bridge_server).search_episodes([1.0])

    def test_an_empty_answer_to_a_search_is_no_answer(self, bridge_server: VectorServer) -> None:
        bridge_server.script.append(Scripted())
        with pytest.raises(SearchServerError, match="does not fit the bridge dialect"):
            retriever_for(bridge_server).search_episodes([1.0])

    def test_an_answer_without_end_is_not_read_to_its_end(
        self, bridge_server: VectorServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("wshard.search._client._MOST_ANSWERED", 1000)
        bridge_server.script.append(Scripted(body=b" " * 2000))
        with pytest.raises(SearchServerError, match=r"too large.*more than 1000 bytes"):
            retriever_for(bridge_server).search_episodes([1.0])

    @pytest.mark.parametrize(
        ("count", "problem"),
        [(6 << 20, "too large.*more than 16777216 bytes"), (2 << 20, "values")],
        ids=["bytes", "values"],
    )
    def test_many_small_values_do_not_fill_the_memory(
        self, bridge_server: VectorServer, count: int, problem: str
    ) -> None:
        body = b'{"results": [' + b"[]," * count + b"[]]}"
        bridge_server.script.append(Scripted(body=body))
        with pytest.raises(SearchServerError, match=problem) as caught:
            retriever_for(bridge_server).search_episodes([1.0])
        assert caught.value.errno == errno.EMSGSIZE

    @pytest.mark.parametrize(
        ("start", "piece", "timeout", "problem"),
        [
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 99, 30, "too many headers or trailers"),
            (b"HTTP/1.1 200 OK\r\nA: ", b"b", 0.2, "did not answer within"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ", 0.2, "within"),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
                b"A: b\r\n" * 999,
                30,
                "too many headers or trailers",
            ),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                b"10000\r\n" + bytes(1 << 16) + b"\r\n",
                30,
                "too large.*more than 16777216 bytes",
            ),
        ],
        ids=["informational", "header", "body", "trailers", "chunks"],
    )
    def test_an_answer_without_an_end_is_given_up(
        self, start: bytes, piece: bytes, timeout: float, problem: str
    ) -> None:
        stop = threading.Event()

        def drip(listening: socket.socket) -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.settimeout(20)
                connection.recv(1 << 16)
                connection.sendall(start)
                while not stop.wait(0.002 if len(piece) == 1 else 0):
                    connection.sendall(piece)

        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=drip, args=(listening,), daemon=True)
            thread.start()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(SearchServerError, match=problem):
                TrajectoryRetriever(
                    url, options=ServerOptions(timeout=timeout, retries=0)
                ).search_episodes([1.0])
            stop.set()
            thread.join()

    def test_a_refusal_before_all_was_sent_is_still_read(self) -> None:
        def refuse(listening: socket.socket) -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(
                    b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"
                )
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 20):
                    pass

        large = document()._replace(vector=np.zeros(1 << 20, np.float32))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            thread = threading.Thread(target=refuse, args=(listening,), daemon=True)
            thread.start()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            with pytest.raises(SearchServerError, match=r"413: big.*batch_size"):
                SearchClient(url, options=ServerOptions(retries=0)).replace("x", [large], set())
            thread.join()


class TestAddresses:
    """URLs, and what must not be in them."""

    @pytest.mark.parametrize(
        "url",
        [
            f"http://user:{SECRET}@host:8080",
            f"http://{SECRET}@host",
            f"http://host/?token={SECRET}",
            f"http://host/#{SECRET}",
        ],
    )
    def test_secrets_in_a_url_are_refused_and_not_shown(self, url: str) -> None:
        with pytest.raises(InvalidArgument, match="api_key=") as caught:
            TrajectoryIngestor(url)
        assert SECRET not in f"{caught.value} {vars(caught.value)}"

    @pytest.mark.parametrize(
        "url",
        ["", "localhost:8080", "ftp://host", "http://", "http://a b", "http://h:x", "http://é"],
    )
    def test_what_is_no_address_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidArgument, match="expected http://host:port"):
            TrajectoryRetriever(url)

    def test_a_path_in_front_of_the_servers_own_is_kept(self, bridge_server: VectorServer) -> None:
        with pytest.raises(SearchServerError):
            TrajectoryRetriever(bridge_server.url + "/db//").search_episodes([1.0])
        assert bridge_server.requests[0][1] == "/db/v2/search"

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("http://host", "http://host:80"),
            ("https://host/", "https://host:443"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ],
    )
    def test_the_address_is_shown_in_full(self, url: str, shown: str) -> None:
        assert TrajectoryIngestor(url).url == shown
        assert repr(TrajectoryRetriever(url)) == f"<TrajectoryRetriever {shown}, server dialect>"

    @pytest.mark.parametrize("key", ["a\nb", "a b", "é", ""])
    def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(self, key: str) -> None:
        with pytest.raises(InvalidArgument, match="a header cannot have") as caught:
            TrajectoryRetriever(api_key=key)
        assert not key or repr(key)[1:-1] not in str(caught.value)

    @pytest.mark.parametrize(
        "options", [{"timeout": 0}, {"timeout": np.nan}, {"timeout": np.inf}, {"retries": -1}]
    )
    def test_patience_is_finite(self, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidArgument, match="out of range"):
            ServerOptions(**options)


class TestImporting:
    """What existing code imports, and what others need not pay for."""

    def test_importing_episodes_does_not_import_the_search(self) -> None:
        script = (
            "import sys, wshard; print([m for m in sys.modules if m.startswith('wshard.search')])"
        )
        result = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert result.stdout == "[]\n"

    def test_without_urllib3_the_error_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "urllib3", None)
        with pytest.raises(MissingExtra, match=r"shard-format\[search\]"):
            TrajectoryRetriever().search_episodes([1.0])

    def test_all_names_are_there_and_sorted(self) -> None:
        import wshard.deepdata_bridge
        import wshard.search

        for module in (wshard.deepdata_bridge, wshard.search):
            assert list(module.__all__) == sorted(set(module.__all__))
            assert all(getattr(module, name).__doc__ for name in module.__all__)
