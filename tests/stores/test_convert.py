"""Conversions whose source or target is in a bucket: what is fetched when, what is uploaded when, and what a kill leaves."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
import wshard
from shard_cli.main import main
from shard_cli.programs import WSHARD
from shard_format import remote
from shard_format.atomic import write_file
from shard_format.errors import BadMetadata, FileThere, InvalidArgument, TransportError
from shard_format.transfer import names_below, read_anywhere, remove_urls, upload_tree
from shard_train import EpisodeDataset, compute_stats, load_stats
from shard_train.packed_episodes import pack_episodes
from shard_train.stats_parts import commit_stats
from tests.stores.fault_proxy import FaultProxy, pass_on, status
from wshard import Episode
from wshard.convert import ConversionReport, ConvertOptions, commit_parts, convert, read, write
from wshard.convert._dataset_source import DatasetSource
from wshard.convert._door import read_one
from wshard.convert._model import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket

EPISODES = 6
SCRIPT = """
import os, signal, sys
from wshard.convert import ConvertOptions, convert
def progress(done, total):
    if done == 3:
        os.kill(os.getpid(), signal.SIGKILL)
if __name__ == "__main__":
    options = ConvertOptions(jobs=int(sys.argv[4]), resume=True)
    convert(sys.argv[1], sys.argv[2], to=sys.argv[3], options=options, progress=progress)
"""


@pytest.fixture
def folder(
    moto: Bucket, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a folder that only this test uses; the environment has the options."""
    monkeypatch.setenv(remote.ENVIRONMENT, json.dumps(moto.options))
    url = f"s3://bucket/{abs(hash(request.node.nodeid)):x}"
    yield url
    remove_urls(f"{url}/{name}" for name in names_below(url))


def episode(number: int) -> Episode:
    values = np.random.default_rng(number)
    made = Episode(id=f"ep_{number}", length=40)
    made.observations["state"] = values.random((40, 4), np.float32)
    made.actions["ctrl"] = values.random((40, 2), np.float32)
    return made


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """Episodes on this disk, one with a sidecar."""
    path = tmp_path / "in"
    path.mkdir()
    for number in range(EPISODES):
        wshard.save_wshard(episode(number), path / f"ep_{number}.wshard")
    wshard.editing.add_lane(path / "ep_1.wshard", "label/phase", [(0, 9, "reach")])
    return path


@pytest.fixture
def arrays(tmp_path: Path, folder: str) -> str:
    """A folder of the bucket with a file of 1 MB for each episode, in a foreign format, and a stray file."""
    path = tmp_path / "npz"
    path.mkdir()
    for number in range(EPISODES):
        image = np.random.default_rng(number).integers(0, 255, (16, 64, 1024), np.uint8)
        np.savez(path / f"run_{number}.npz", image=image, actions=np.ones((16, 2), "f4"))
    (path / "README.md").write_text("About these runs.")
    upload_tree(str(path), f"{folder}/npz")
    return f"{folder}/npz"


def contents(place: str) -> dict[str, bytes]:
    """The files of a folder, here or in the bucket."""
    if "://" in place:
        return {name: read_anywhere(f"{place}/{name}") for name in names_below(place)}
    return {name: read_anywhere(os.path.join(place, name)) for name in os.listdir(place)}


@pytest.mark.parametrize(("jobs", "to"), [(1, "wshard"), (2, "wshard"), (1, "csv")])
def test_a_killed_conversion_goes_on_and_repeats_no_finished_episode(
    arrays: str, folder: str, tmp_path: Path, jobs: int, to: str
) -> None:
    script, out = tmp_path / "killed.py", f"{folder}/out"
    script.write_text(SCRIPT)
    form = "table" if to == "csv" else to
    command = [sys.executable, str(script), arrays, out, form, str(jobs)]
    killed = subprocess.run(command, env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not remote.exists(f"{out}.report.json")
    place = out if to == "wshard" else f"{out}.converting/episodes"
    before = {name: wshard.load_wshard(f"{place}/{name}").length for name in names_below(place)}
    assert len(before) >= 3
    assert set(before.values()) == {16}
    with pytest.raises(FileThere, match="not finished"):
        convert(arrays, out, to=form)
    report = convert(arrays, out, to=form, options=ConvertOptions(resume=True))
    assert report.episodes == EPISODES
    assert report.skipped >= 3
    assert jobs > 1 or report.skipped == 3
    assert "README.md" in [change.field for change, _ in report.of_kind("dropped")]
    convert(arrays, tmp_path / "out", to=form)
    assert contents(out) == contents(str(tmp_path / "out"))
    assert names_below(f"{out}.converting") == {}


def test_parts_and_a_commit_give_the_bytes_of_one_run_and_fetch_only_their_share(
    arrays: str, folder: str
) -> None:
    convert(arrays, f"{folder}/one")
    shares = []
    for part in ((1, 3), (2, 3), (3, 3)):
        with pytest.raises(InvalidArgument, match="parts"):
            commit_parts(f"{folder}/all")
        before = remote.TOTAL.bytes
        report = convert(arrays, f"{folder}/all", options=ConvertOptions(part=part, resume=True))
        shares.append(remote.TOTAL.bytes - before)
        assert report.episodes == 2
    assert names_below(f"{folder}/all") == {}
    # Two episodes, and one by which the format is known.
    assert max(shares) < 3.2 * (1 << 20)
    report = commit_parts(f"{folder}/all")
    assert (report.episodes, report.target) == (EPISODES, f"{folder}/all")
    assert contents(f"{folder}/all") == contents(f"{folder}/one")
    assert names_below(f"{folder}/all.parts") == {}
    for options in (ConvertOptions(), ConvertOptions(overwrite=True)):
        for to in ("wshard", "npz"):
            with pytest.raises(FileThere, match="not replaced"):
                convert(arrays, f"{folder}/one", to=to, options=options)


@pytest.mark.parametrize("last", ["copied", "report", "removed"])
def test_a_commit_that_was_killed_is_continued(
    local: Path, folder: str, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    for part in ((1, 2), (2, 2)):
        convert(local, f"{folder}/all", options=ConvertOptions(part=part))

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    place = {
        "copied": "wshard.convert._parts.copy_urls",
        "report": "wshard.convert.ConversionReport.save",
        "removed": "wshard.convert._parts.remove_urls",
    }[last]
    with monkeypatch.context() as patched:
        patched.setattr(place, stop)
        with pytest.raises(KeyboardInterrupt):
            commit_parts(f"{folder}/all")
    if last == "removed":  # some of the parts are gone
        remove_urls([f"{folder}/all.parts/1-of-2/ep_0.wshard"])
    assert commit_parts(f"{folder}/all").episodes == EPISODES
    assert len(names_below(f"{folder}/all")) == EPISODES
    assert names_below(f"{folder}/all.parts") == {}
    saved = ConversionReport.from_json(json.loads(read_anywhere(f"{folder}/all.report.json")))
    assert saved.episodes == EPISODES


def test_episodes_go_from_bucket_to_bucket_with_their_sidecars_and_are_verified(
    local: Path, folder: str, tmp_path: Path
) -> None:
    upload_tree(str(local), f"{folder}/in")
    options = ConvertOptions(verify=True, jobs=2)
    report = convert(f"{folder}/in", f"{folder}/out", options=options)
    assert (report.episodes, report.failed) == (EPISODES, {})
    convert(local, tmp_path / "out")
    assert contents(f"{folder}/out") == contents(str(tmp_path / "out"))
    assert [ep.id for ep in read(f"{folder}/in")] == [f"ep_{n}" for n in range(EPISODES)]
    report = convert(f"{folder}/in/ep_2.wshard", f"{folder}/one.wshard")
    assert wshard.load_wshard(f"{folder}/one.wshard").id == "ep_2"
    assert not [name for name in names_below(folder) if ".converting" in name]


def test_a_damaged_file_is_named_by_its_url_and_the_others_are_converted(
    arrays: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_bytes(b"PK\x03\x04 damaged")
    remote.upload(str(tmp_path / "bad"), f"{arrays}/run_3.npz")
    options = ConvertOptions(on_error="skip")
    report = convert(arrays, f"{folder}/out", options=options)
    assert report.episodes == EPISODES - 1
    assert f"{arrays}/run_3.npz" in report.failed["run_3"]
    assert "run_3.wshard" not in names_below(f"{folder}/out")


def test_episodes_are_packed_to_a_url_and_a_killed_run_is_continued(
    local: Path, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{folder}/p-%06d.shardpack"

    def pack(source: str) -> int:
        assert pack_episodes(source, name, max_records=2).episodes == EPISODES
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(local, name, options=ConvertOptions(resume=True), pack=pack)
    assert len(names_below(f"{folder}/p-%2506d.shardpack.converting/episodes")) == EPISODES
    remove_urls([f"{folder}/p-000002.shardpack", f"{folder}/p.shardpack-set"])
    assert main(["convert", str(local), name, "--pack", "1M", "--resume"], WSHARD) == 0
    assert "6 episodes converted by an earlier run" in capsys.readouterr().out
    with shardpack.open(f"{folder}/p.shardpack-set") as found:
        assert [record.key for record in found] == [f"ep_{n}" for n in range(EPISODES)]
    left = {one.rpartition("/")[2] for one in names_below(folder) if ".converting" in one}
    assert left == set()


def test_a_store_that_fails_stops_a_run_that_skips_and_the_next_goes_on(
    arrays: str, folder: str, moto: Bucket, moto_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_some(exchange: Any) -> None:  # noqa: ANN401
        is_hit = exchange.command == "PUT" and "run_3" in exchange.path
        (status(500) if is_hit else pass_on)(exchange)

    moto_proxy.always = fail_some
    options = {**moto.options, "endpoint": moto_proxy.url}
    with monkeypatch.context() as patched:
        patched.setenv(remote.ENVIRONMENT, json.dumps(options))
        with pytest.raises(TransportError):
            convert(arrays, f"{folder}/out", options=ConvertOptions(on_error="skip"))
    assert sorted(names_below(f"{folder}/out")) == [f"run_{n}.wshard" for n in range(3)]
    plan = f"{folder}/out.converting/plan.json"
    earlier = read_anywhere(plan)
    write_file(plan, [earlier[:-5]], fsync=False)
    with pytest.raises(BadMetadata, match=plan):
        convert(arrays, f"{folder}/out", options=ConvertOptions(resume=True))
    write_file(plan, [earlier], fsync=False)
    with pytest.raises(InvalidArgument, match="a different one"):
        convert(arrays, f"{folder}/out", options=ConvertOptions(resume=True, compression="lz4"))
    report = convert(arrays, f"{folder}/out", options=ConvertOptions(resume=True))
    assert (report.episodes, report.skipped) == (EPISODES, 3)


def test_one_file_is_fetched_once_for_all_processes_and_its_fields_are_shown_first(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("h5py")
    episodes = (episode(number) for number in range(EPISODES))
    write(episodes, tmp_path / "demo.hdf5", "robomimic")
    remote.upload(str(tmp_path / "demo.hdf5"), f"{folder}/demo.hdf5")
    assert main(["convert", f"{folder}/demo.hdf5", f"{folder}/out", "--dry-run"], WSHARD) == 0
    assert f"{folder}/demo.hdf5: robomimic" in capsys.readouterr().out
    before = remote.TOTAL.bytes
    report = convert(f"{folder}/demo.hdf5", f"{folder}/out", options=ConvertOptions(jobs=2))
    assert remote.TOTAL.bytes - before < 1.5 * (tmp_path / "demo.hdf5").stat().st_size
    assert (report.episodes, report.source) == (EPISODES, f"{folder}/demo.hdf5")
    assert main(["convert", f"{folder}/demo.hdf5", "--suggest-map"], WSHARD) == 0
    assert "demo_" in capsys.readouterr().out


def test_statistics_in_parts_are_joined_in_the_bucket_even_after_a_kill(
    local: Path, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upload_tree(str(local), f"{folder}/in")
    output = f"{folder}/in.wshard-stats"
    for part in ("1/2", "2/2"):
        assert main(["stats", f"{folder}/in", "-o", output, "--part", part], WSHARD) == 0
    removed = remove_urls

    def stop(urls: Iterable[str]) -> None:
        removed(list(urls)[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shard_train.stats_parts.remove_urls", stop)
        with pytest.raises(KeyboardInterrupt):
            commit_stats(output)
    assert main(["commit", output], WSHARD) == 0
    assert "6 episodes, 240 steps" in capsys.readouterr().out
    assert names_below(f"{output}.parts") == {}
    ours = compute_stats(EpisodeDataset(str(local), window=1))
    np.testing.assert_allclose(load_stats(output)["state"].mean, ours["state"].mean)
    assert main(["stats", f"{folder}/in", "-o", output], WSHARD) == 0
    assert "up to date" in capsys.readouterr().out


def test_a_process_on_another_machine_fetches_what_it_reads(arrays: str) -> None:
    with DatasetSource(arrays, None) as origin:
        sent = pickle.loads(pickle.dumps(origin))
    # What was fetched here is gone.
    with sent, closing(sent.open(ReadOptions())) as reader:
        assert reader.names() == [f"run_{n}" for n in range(EPISODES)]
        with read_one(reader, 4) as found:
            assert found.observations["image"].shape == (16, 64, 1024)
