"""The public DeepData server: what a user does with it, against a stand-in or against a real one.

`DEEPDATA_URL` (with `DEEPDATA_TOKEN` and `DEEPDATA_TENANT`, if the server needs them) names a real server. Each test
has collections of its own and drops them at the end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import urllib3

from shard_format.errors import BadMetadata, InvalidArgument, ReferenceMismatch, ShardIOError
from tests.wshard.vector_server import Scripted, VectorServer, running
from wshard import Episode, load_wshard, save_wshard
from wshard.deepdata_bridge import TrajectoryIngestor, TrajectoryRetriever
from wshard.search import SearchServerError, ServerOptions
from wshard.search._client import _Pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass
class Database:
    """A server, and names of collections that nobody else uses."""

    url: str
    options: dict[str, Any]
    token: str | None = None
    stand_in: VectorServer | None = None

    def ingestor(self, **more: Any) -> TrajectoryIngestor:  # noqa: ANN401 - arguments
        return TrajectoryIngestor(self.url, api_key=self.token, options=self._options(more), **more)

    def retriever(self, **more: Any) -> TrajectoryRetriever:  # noqa: ANN401 - arguments
        return TrajectoryRetriever(
            self.url, api_key=self.token, options=self._options(more), **more
        )

    def _options(self, more: dict[str, Any]) -> ServerOptions:
        own: dict[str, Any] = {
            name: more.pop(name) for name in ("id_map", "batch_size") if name in more
        }
        return ServerOptions(**(self.options | own))

    def count(self, collection: str) -> int:
        """How many documents there are."""
        name = self.options[collection]
        if self.stand_in is not None:
            return len(self.stand_in.collections[name].rows)
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if self.options["tenant"] is not None:
            headers["X-Tenant-ID"] = self.options["tenant"]
        url = f"{self.url}/v2/collections/{name}/stats"
        answer = urllib3.request("GET", url, headers=headers)
        return int(json.loads(answer.data)["doc_count"])

    def inside(self) -> VectorServer:
        """The stand-in, for tests that look into it."""
        if self.stand_in is None:
            pytest.skip("this test looks into the stand-in")
        return self.stand_in


@pytest.fixture
def database(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Database]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    own = uuid.uuid4().hex[:12]
    options = {
        "episodes": f"test_episodes_{own}",
        "windows": f"test_windows_{own}",
        "tenant": os.environ.get("DEEPDATA_TENANT"),
    }
    url = os.environ.get("DEEPDATA_URL")
    if url is not None:
        real = Database(url, options, os.environ.get("DEEPDATA_TOKEN"))
        try:
            yield real
        finally:
            real.ingestor().drop_collections()
        return
    with running(VectorServer("server")) as stand_in:
        yield Database(stand_in.url, options, None, stand_in)


def saved(folder: Path, name: str, states: NDArray[Any], **facts: Any) -> Path:  # noqa: ANN401
    episode = Episode(name, env_id="Reach-v1")
    episode.observations["state"] = states.astype(np.float32)
    episode.rewards = np.full(len(states), 0.5, np.float32)
    path = folder / f"{name}.wshard"
    save_wshard(episode, path, fsync=False, **facts)
    return path


def walk(seed: int, length: int = 80) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    return random.normal(size=4) * 3 + np.cumsum(random.normal(0, 0.1, (length, 4)), axis=0)


class Shape:
    """Sees the order of steps: how the first and the last half differ."""

    takes = "window"
    dimension = 4

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, steps: NDArray[np.float32]) -> NDArray[np.float32]:
        assert steps.dtype == np.float32
        self.seen.append(steps.shape)
        half = len(steps) // 2
        difference: NDArray[np.float32] = steps[half:].mean(axis=0) - steps[:half].mean(axis=0)
        return difference


class TestAsAUser:
    """The lines that people write."""

    def test_the_lines_of_existing_code_run(self, database: Database, tmp_path: Path) -> None:
        paths = [saved(tmp_path, f"ep_{n}", walk(n, 40 + 10 * n)) for n in range(5)]

        def embed(mean: NDArray[np.float32]) -> NDArray[np.float32]:
            return mean / np.linalg.norm(mean)

        ingestor = database.ingestor(embedder=embed)
        for path in paths:
            ingestor.ingest_episode(str(path))
        found = database.retriever(embedder=embed).search_similar_episodes(
            query_obs=walk(3, 70), top_k=10, env_id="Reach-v1", min_length=60, reward_range=(0, 99)
        )
        assert {ref.episode_id for ref in found} <= {"ep_2", "ep_3", "ep_4"}
        assert (found[0].episode_id, found[0].file_path) == ("ep_3", str(paths[3]))
        assert found[0].score == pytest.approx(1.0, abs=1e-3)
        assert database.retriever(embedder=embed).health()

    def test_the_guide_runs(
        self, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = database.inside()
        text = (Path(__file__).parents[2] / "docs" / "search.md").read_text("utf-8")
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        monkeypatch.chdir(tmp_path)
        exec("\n".join(blocks).replace("http://localhost:8080", server.url), {})  # noqa: S102 - our own page
        assert len(blocks) == 2
        assert len(server.collections) == 4

    def test_timesteps_are_windows(self, database: Database, tmp_path: Path) -> None:
        database.ingestor(window=20, stride=20).ingest_timesteps(saved(tmp_path, "a", walk(1)))
        best = database.retriever().search_similar_timesteps(walk(1)[40:60], top_k=3)[0]
        assert (best.episode_id, best.start, best.stop) == ("a", 40, 60)
        np.testing.assert_allclose(
            best.load_window().observations["state"].data, walk(1)[40:60].astype(np.float32)
        )

    def test_an_embedder_that_takes_windows_sees_the_order_of_steps(
        self, database: Database, tmp_path: Path
    ) -> None:
        forth = walk(2)
        saved(tmp_path, "forth", forth)
        saved(tmp_path, "back", forth[::-1])
        shape = Shape()
        database.ingestor(embedder=shape).ingest_folder(tmp_path, windows=False)
        assert shape.seen == [(80, 4)] * 2
        found = database.retriever(embedder=Shape()).search_episodes(forth)
        assert found[0].episode_id == "forth"
        assert found[0].score == pytest.approx(1.0, abs=1e-3)
        # Their means are the same.
        assert [ref.score for ref in found[1:]] == pytest.approx([-1.0], abs=1e-3)

    def test_an_embedder_that_takes_something_else_is_refused(self, tmp_path: Path) -> None:
        class Wrong(Shape):
            takes = "everything"

        with pytest.raises(InvalidArgument, match="takes something unknown"):
            TrajectoryIngestor(embedder=Wrong()).ingest(saved(tmp_path, "a", walk(0)))


class TestReplacing:
    """The server gives its own ids and never replaces a document."""

    def test_no_old_document_stays_although_searches_miss_some(
        self, database: Database, tmp_path: Path
    ) -> None:
        if database.stand_in is not None:
            database.stand_in.sloppy = True
        saved(tmp_path, "b", walk(9))
        saved(tmp_path, "a", walk(0, 80))
        ingestor = database.ingestor(window=4, stride=2, batch_size=16)
        ingestor.ingest_folder(tmp_path)
        assert database.count("windows") == 78
        saved(tmp_path, "a", walk(5, 12))
        database.ingestor(window=4, stride=2, batch_size=16).ingest_folder(tmp_path)
        assert (database.count("episodes"), database.count("windows")) == (2, 39 + 5)

    def test_after_the_map_was_lost_a_search_shows_the_newest(
        self, database: Database, tmp_path: Path
    ) -> None:
        path = saved(tmp_path, "a", walk(0))
        database.ingestor(id_map=tmp_path / "ids.sqlite").ingest(path)
        (tmp_path / "ids.sqlite").unlink()
        path = saved(tmp_path, "a", walk(1, 50))
        database.ingestor(id_map=tmp_path / "ids.sqlite").ingest(path)
        assert database.count("episodes") == 2
        (found,) = database.retriever().search_episodes(walk(0))
        assert found.metadata["length_T"] == 50

    def test_a_server_that_lost_its_data_loses_nothing_of_others(
        self, database: Database, tmp_path: Path
    ) -> None:
        server = database.inside()
        a, b = saved(tmp_path, "a", walk(0)), saved(tmp_path, "b", walk(1))
        database.ingestor().ingest_episode(a)
        server.restart_empty()
        database.ingestor(id_map=tmp_path / "of-somebody-else").ingest_episode(b)
        database.ingestor().ingest_episode(a)  # its map says that document 1 is the old one
        rows = server.collections[database.options["episodes"]].rows
        assert sorted(metadata["episode_id"] for _, metadata in rows.values()) == ["a", "b"]

    def test_a_crash_between_storing_and_deleting_is_made_good_the_next_time(
        self, database: Database, tmp_path: Path
    ) -> None:
        server = database.inside()
        path = saved(tmp_path, "a", walk(0))
        database.ingestor().ingest_episode(path)
        exists = Scripted(400, b"collection already exists")
        stored = Scripted(act_first=True, body=b'{"inserted": 1, "ids": [2]}')
        server.script.extend([exists, exists, stored, Scripted(401)])
        with pytest.raises(SearchServerError):
            database.ingestor().ingest_episode(path)
        assert database.count("episodes") == 2
        database.ingestor().ingest_episode(path)
        assert database.count("episodes") == 1

    def test_a_map_that_cannot_be_used_says_what_to_do(
        self, database: Database, tmp_path: Path
    ) -> None:
        (tmp_path / "ids.sqlite").write_bytes(b"not a database" * 100)
        with pytest.raises(ShardIOError, match=r"ids.sqlite.*not a database.*id_map"):
            database.ingestor(id_map=tmp_path / "ids.sqlite").ingest(saved(tmp_path, "a", walk(0)))
        assert database.count("episodes") == 0


class TestPlaces:
    """Where files are, and whether they are still the same."""

    def test_an_index_can_be_used_on_another_machine(
        self, database: Database, tmp_path: Path
    ) -> None:
        (tmp_path / "here" / "day 1").mkdir(parents=True)
        saved(tmp_path / "here" / "day 1", "a", walk(0))
        database.ingestor(root=tmp_path / "here").ingest_folder(tmp_path / "here")
        shutil.move(tmp_path / "here", tmp_path / "there")
        (found,) = database.retriever(root=tmp_path / "there").search_episodes(walk(0))
        assert found.metadata["file_path"] == "day 1/a.wshard"
        with found.load() as episode:
            assert episode.length == 80

    def test_a_file_that_was_replaced_is_noticed(self, database: Database, tmp_path: Path) -> None:
        path = saved(tmp_path, "a", walk(0))
        database.ingestor().ingest(path)
        (found,) = database.retriever().search_episodes(walk(0))
        with load_wshard(path) as episode:
            episode.metadata["note"] = "only a description"
            save_wshard(episode, path, compression="zstd")
        found.load().close()
        saved(tmp_path, "a", walk(0) + 1)
        with pytest.raises(ReferenceMismatch, match=r"not the one that was ingested.*again"):
            found.load()

    def test_a_file_outside_the_root_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "root").mkdir()
        path = saved(tmp_path, "a", walk(0))
        with pytest.raises(InvalidArgument, match="not below the root"):
            TrajectoryIngestor(root=tmp_path / "root").ingest(path)

    def test_an_index_cannot_point_out_of_the_root(
        self, database: Database, tmp_path: Path
    ) -> None:
        row = {"id": 1, "metadata": {"episode_id": "a", "file_path": "../a.wshard"}}
        answer = {"documents": [row], "scores": [0.0]}
        database.inside().script.append(Scripted(body=json.dumps(answer).encode()))
        with pytest.raises(BadMetadata, match="below the root"):
            database.retriever(root=tmp_path).search_episodes([1.0])


class TestManners:
    """Tenants, pace, readiness, and vectors without a direction."""

    def test_tenants_have_collections_of_their_own(
        self, database: Database, tmp_path: Path
    ) -> None:
        server = database.inside()
        server.token = "t0ken"
        for tenant in ("lab", "field"):
            options = ServerOptions(tenant=tenant)
            path = saved(tmp_path, tenant, walk(0))
            TrajectoryIngestor(server.url, api_key="t0ken", options=options).ingest_episode(path)
        assert {f"{t}/traj_episodes" for t in ("lab", "field")} <= set(server.collections)
        retriever = TrajectoryRetriever(server.url, api_key="t0ken", options=options)
        assert [ref.episode_id for ref in retriever.search_episodes(walk(0))] == ["field"]
        with pytest.raises(InvalidArgument, match="not a tenant"):
            ServerOptions(tenant="../lab")

    def test_the_client_waits_rather_than_send_too_many_requests(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, pauses = [100.0], []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            now[0] += seconds

        monkeypatch.setattr("time.monotonic", lambda: now[0])
        monkeypatch.setattr("wshard.search._client._sleep", sleep)
        pace = _Pace(90.0)
        for _ in range(450):
            pace.wait()
        assert 450 - 90 * (now[0] - 100) == pytest.approx(45)  # half a second's worth at once
        assert len(pauses) == 405

    def test_a_server_that_starts_is_not_ready(self, database: Database) -> None:
        database.inside().script.append(Scripted(503, b"loading"))
        assert database.ingestor().health() is False
        assert database.ingestor().health() is True
        with pytest.raises(SearchServerError, match="cannot reach the server"):
            TrajectoryRetriever("http://127.0.0.1:9", options=ServerOptions(retries=0)).health()

    def test_zeros_have_no_direction(self, database: Database, tmp_path: Path) -> None:
        rest = np.zeros((40, 4))
        with pytest.raises(InvalidArgument, match=r"all zeros.*channel="):
            database.ingestor().ingest(saved(tmp_path, "a", rest))
        moving = np.concatenate([rest, walk(0, 40)])
        done = database.ingestor(window=20, stride=20).ingest(saved(tmp_path, "b", moving))
        assert done.windows == 2
        with pytest.raises(InvalidArgument, match="query is all zeros"):
            database.retriever().search_episodes(np.zeros(4))

    def test_collections_are_dropped_with_their_ids(
        self, database: Database, tmp_path: Path
    ) -> None:
        path = saved(tmp_path, "a", walk(0))
        ingestor = database.ingestor()
        ingestor.ingest(path)
        ingestor.drop_collections()
        ingestor.drop_collections()
        ingestor.ingest(path)
        assert database.count("episodes") == 1
