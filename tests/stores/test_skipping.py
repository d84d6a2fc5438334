"""A failing network, and a server that denies access, are never taken for damaged data: what leaves out damaged data raises them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
from shard_cli.main import main
from shard_cli.programs import SHARD, SHARDPACK, Program
from shard_format import ShardReader, ShardWriter
from shard_format.errors import TransportError
from shard_format.verify import check
from shard_train import EpisodeDataset, SampleDataset
from shard_train.packed_episodes import open_episode_pack
from tests.shard_format.support import noise
from tests.stores.fault_proxy import status
from wshard import Episode, find, save_wshard
from wshard.doctor import examine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stores.fault_proxy import FaultProxy

EPISODES, SAMPLES = 3, 40


@pytest.fixture
def urls(nginx: tuple[str, Path], nginx_proxy: FaultProxy) -> dict[str, str]:
    """A container, episodes, a pack of samples and a pack of episodes, each larger than what opening brings."""
    folder = nginx[1]
    with ShardWriter(folder / "a.shard", fsync=False) as writer:
        for number in range(30):
            writer.write_entry(f"e/{number}", noise(20_000, number))
    for number in range(EPISODES):
        episode = Episode(id=f"e{number}", length=100)
        episode.observations["state"] = np.frombuffer(noise(400_000, number), "u1").reshape(100, -1)
        save_wshard(episode, folder / f"e{number}.wshard", "none")
    samples = [
        {"__key__": f"{number:03}", "x.bin": noise(9_000, number)} for number in range(SAMPLES)
    ]
    shardpack.pack(samples, folder / "s.shardpack", _make, overwrite=True)
    files = [str(folder / f"e{number}.wshard") for number in range(EPISODES)]
    shardpack.pack(files, folder / "e.shardpack", _make_episode, overwrite=True)
    names = ("a.shard", "e0.wshard", "e1.wshard", "s.shardpack", "e.shardpack")
    return {name: f"{nginx_proxy.url}/{name}" for name in names}


def _make(sample: dict[str, Any]) -> tuple[str, dict[str, bytes]]:
    return sample["__key__"], {"x.bin": sample["x.bin"]}


def _make_episode(path: str) -> tuple[str, dict[str, bytes]]:
    with open(path, "rb") as file:
        return path.rpartition("/")[2].removesuffix(".wshard"), {"wshard": file.read()}


def raises(proxy: FaultProxy, call: Callable[[], object]) -> None:
    """The call fails as soon as the tries of one read are over, and does not try the next item."""
    for code in (503, 403):
        proxy.always = status(code)
        proxy.counted()
        with pytest.raises(TransportError, match=str(code)):
            call()
        assert 1 <= proxy.counted() <= 5 * 8  # eight threads may be at it
    proxy.always = None


class TestTraining:
    """`on_error="skip"`."""

    def test_samples(self, urls: dict[str, str], nginx_proxy: FaultProxy) -> None:
        url = urls["s.shardpack"]
        raises(nginx_proxy, lambda: SampleDataset(url, on_error="skip"))
        data = SampleDataset(url, on_error="skip")
        raises(nginx_proxy, lambda: data[7])
        raises(nginx_proxy, lambda: data.__getitems__(list(range(10))))
        assert data.skipped.total == 0
        assert bytes(data[7]["x.bin"]) == noise(9_000, 7)

    def test_episodes(self, urls: dict[str, str], nginx_proxy: FaultProxy) -> None:
        files = [urls["e0.wshard"], urls["e1.wshard"]]
        raises(nginx_proxy, lambda: EpisodeDataset(files, window=4, on_error="skip"))
        data = EpisodeDataset(files, window=4, on_error="skip")
        raises(nginx_proxy, lambda: data[50])
        assert data.skipped.total == 0
        assert data[50]["state"].shape == (4, 4_000)

    def test_episodes_in_packs(self, urls: dict[str, str], nginx_proxy: FaultProxy) -> None:
        raises(nginx_proxy, lambda: EpisodeDataset(urls["e.shardpack"], window=4, on_error="skip"))
        pack = open_episode_pack(urls["e.shardpack"])
        name = next(iter(pack.entries(1)))
        raises(nginx_proxy, lambda: pack.load(1, name))


def test_finding(urls: dict[str, str], nginx_proxy: FaultProxy) -> None:
    met: list[object] = []
    files = [urls["e0.wshard"], urls["e1.wshard"]]
    raises(nginx_proxy, lambda: find(files, on_error=lambda path, error: met.append(error)))
    assert met == []


@pytest.mark.parametrize("code", [403, 503])
@pytest.mark.parametrize("processes", [0, 2])
def test_packing(
    urls: dict[str, str], nginx_proxy: FaultProxy, tmp_path: Path, processes: int, code: int
) -> None:
    """Also of samples that other processes make."""
    nginx_proxy.always = status(code)
    items = [f"{urls['a.shard']}?{number}" for number in range(4)]
    out = tmp_path / "out.shardpack"
    with pytest.raises(TransportError, match="make failed for") as caught:
        shardpack.pack(items, out, _make_of_url, on_error="skip", processes=processes)
    assert str(code) in str(caught.value)
    assert not out.exists()


def _make_of_url(url: str) -> tuple[str, dict[str, bytes]]:
    with ShardReader(url, storage_options={"retries": 0}) as reader:
        return url.rpartition("?")[2], {"x.bin": reader.read_entry("e/0")}


class TestChecking:
    """What collects findings has none about a file that it could not read."""

    def test_containers(self, urls: dict[str, str], nginx_proxy: FaultProxy) -> None:
        with ShardReader(urls["a.shard"], threads=1) as reader:
            raises(nginx_proxy, lambda: check(reader))

    def test_episodes(self, urls: dict[str, str], nginx_proxy: FaultProxy) -> None:
        raises(nginx_proxy, lambda: examine(urls["e0.wshard"]))

    @pytest.mark.parametrize("code", [403, 503])
    @pytest.mark.parametrize(("program", "name"), [(SHARD, "a.shard"), (SHARDPACK, "s.shardpack")])
    def test_the_command_line_says_so(
        self,
        urls: dict[str, str],
        nginx_proxy: FaultProxy,
        capsys: pytest.CaptureFixture[str],
        program: Program,
        name: str,
        code: int,
    ) -> None:
        """A server that fails after the file was opened: one failure, not one for each entry."""
        nginx_proxy.counted()
        assert main(["verify", urls[name]], program) == 0
        nginx_proxy.faults.extend([None] * min(3, nginx_proxy.counted() - 1))
        nginx_proxy.always = status(code)
        assert main(["verify", urls[name]], program) == 3
        assert nginx_proxy.counted() <= 3 + 5 * 8
        told = "".join(capsys.readouterr())
        assert ("transport_error" if code == 503 else "io_error") in told
        assert told.count(str(code)) <= 2
