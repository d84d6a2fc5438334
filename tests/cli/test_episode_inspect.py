"""`wshard inspect`, and how folders are searched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_cli.episode_options import find as find_episodes
from shard_cli.exits import Exit
from shard_format import ShardWriter, compute_identity
from shard_train.packed_episodes import pack_episodes
from shardpack import ShardPackReader, ShardPackWriter
from tests.cli.conftest import flip_in
from wshard import Episode, add_lane, save_wshard

if TYPE_CHECKING:
    from tests.cli.conftest import MakeEpisode, Run, Terminal

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


@pytest.fixture
def recordings(make_episode: MakeEpisode, tmp_path: Path) -> Path:
    """A folder with two episodes in subfolders, one with a sidecar, and things that are none."""
    make_episode("rec/a/ep_1.wshard", steps=30)
    path = make_episode("rec/b/ep_2.wshard", steps=60)
    add_lane(path, "omen/joint_pos/v2", np.ones((60, 3), "f4"))
    (tmp_path / "rec" / "notes.txt").write_text("no episode")
    (tmp_path / "rec" / ".ep_3.wshard.123.partial").write_text("unfinished")
    return tmp_path / "rec"


def test_an_episode_is_shown_with_its_facts_and_lanes(wshard: Run, episode: Path) -> None:
    result = wshard("inspect", episode)
    assert result.code == Exit.OK
    for words in (
        f"{episode}\n",
        "episode       ep_001\n",
        "environment   Reach-v1\n",
        "length        60 steps, 2.00 s at 30 Hz\n",
        f"identity      {compute_identity(episode).digest}\n",
        "task: reach the cup\n",
        "BLOCK\tDTYPE\tSHAPE\tLENGTH\tCLOCK\tCODEC\tSIZE\tSTORED\tRATIO\n",
        "signal/joint_pos\tf32\t[3]\t60\tsteps\t",
        "signal/imu\tf32\t[2]\t240\t120 Hz\t",
        "signal/said\ttext\t[]\t60\tsteps\t",
        "label/phase\tintervals\t-\t2\t",
    ):
        assert words in result.out, words


def test_codec_and_filters_are_named(wshard: Run, make_episode: MakeEpisode) -> None:
    path = make_episode(steps=600, profile="training")
    blocks = {b["block"]: b for b in wshard("inspect", "--json", path).json["files"][0]["blocks"]}
    assert blocks["action/ctrl"]["codec"] == "zstd"
    assert blocks["action/ctrl"]["filters"] == "planes:4"
    assert blocks["action/ctrl"]["stored"] < blocks["action/ctrl"]["size"] == 7200
    assert "\tzstd planes:4\t" in wshard("inspect", path).out
    assert blocks["done"]["codec"] == "none"


def test_json_has_the_same_facts(wshard: Run, episode: Path) -> None:
    facts = wshard("inspect", "--json", episode).json["files"][0]
    assert facts["episode_id"] == "ep_001"
    assert (facts["steps"], facts["seconds"], facts["rate_hz"]) == (60, 2.0, 30.0)
    assert facts["metadata"] == {"seed": 7, "task": "reach the cup"}
    assert facts["identity"] == compute_identity(episode).digest
    assert facts["identity_version"] == 2
    assert facts["file_size"] == episode.stat().st_size
    assert (facts["chunks"], facts["sidecars"], facts["chunk"]) == ([], [], None)
    imu = next(block for block in facts["blocks"] if block["block"] == "signal/imu")
    assert (imu["clock"], imu["rate_hz"], imu["length"]) == ("regular", 120.0, 240)


def test_no_block_is_read_without_stats(wshard: Run, damaged_episode: Path) -> None:
    assert wshard("inspect", damaged_episode).code == Exit.OK


def test_stats_give_the_range_of_finite_values_and_count_the_others(
    wshard: Run, make_episode: MakeEpisode
) -> None:
    def change(episode: Episode) -> None:
        values = np.zeros((60, 2), "f4")
        values[3], values[4, 0], values[5, 0], values[6, 1] = 2, -1, np.nan, np.inf
        episode.observations["odd"] = values
        episode.observations["empty"] = np.full((60, 1), np.nan, "f4")

    path = make_episode(change=change)
    facts = wshard("inspect", "--values", "--json", path).json["files"][0]
    stats = {block["block"]: block["stats"] for block in facts["blocks"]}
    assert stats["signal/odd"]["min"] == -1
    assert stats["signal/odd"]["max"] == 2
    assert stats["signal/odd"]["mean"] == pytest.approx(3 / 118)
    assert (stats["signal/odd"]["nan"], stats["signal/odd"]["infinite"]) == (1, 1)
    assert stats["signal/empty"] == {
        "min": None,
        "mean": None,
        "max": None,
        "nan": 60,
        "infinite": 0,
    }
    assert stats["terminated" if "terminated" in stats else "done"]["max"] == 1
    assert stats["signal/said"] is None
    lines = wshard("inspect", "--values", path).out.splitlines()
    line = next(line for line in lines if line.startswith("signal/odd\t"))
    assert line.endswith("\t-1\t0.02542\t2\t1")


def test_stats_of_a_damaged_block_do_not_hide_the_others(
    wshard: Run, damaged_episode: Path
) -> None:
    result = wshard("inspect", "--values", damaged_episode)
    assert result.code == Exit.FINDING
    assert "action/ctrl" in result.out
    assert "unreadable" in result.out
    assert "signal/rgb" in result.err
    assert "(checksum_mismatch)" in result.err


def test_timestamps_give_duration_and_rate(wshard: Run, make_episode: MakeEpisode) -> None:
    def change(episode: Episode) -> None:
        episode.timestamps_ns = np.arange(60) * 50_000_000 + 10**18

    path = make_episode(change=change)
    assert "60 steps, 3.00 s at 20 Hz, measured from its timestamps" in wshard("inspect", path).out


def test_a_folder_is_searched_with_one_line_for_each_episode(wshard: Run, recordings: Path) -> None:
    result = wshard("inspect", recordings)
    assert result.code == Exit.OK
    heading, *lines = result.out.splitlines()
    assert heading.split("\t") == [
        *("FILE", "EPISODE", "ENV", "STEPS", "SECONDS", "RATE", "BLOCKS", "CHUNKS", "SIDECARS"),
        "SIZE",
    ]
    assert [line.split("\t")[1] for line in lines] == ["ep_1", "ep_2"]
    assert lines[1].split("\t")[3:5] == ["60", "2"]
    assert lines[1].split("\t")[8] == "1"
    verbose = wshard("inspect", "-v", recordings).out
    assert verbose.count("signal/joint_pos\t") == 2


def test_in_a_terminal_a_folder_has_units_and_a_total(recordings: Path, terminal: Terminal) -> None:
    code, out = terminal("inspect", recordings, module="shard_cli.wshard", columns=140)
    assert code == Exit.OK
    assert "30 Hz" in out
    assert "2 episodes, 90 steps, 3.00 s, " in out


def test_sidecars_are_listed_and_can_be_left_out(wshard: Run, recordings: Path) -> None:
    path = recordings / "b" / "ep_2.wshard"
    result = wshard("inspect", path)
    assert "sidecars      omen.joint_pos.v2.wshard\n" in result.out
    line = next(line for line in result.out.splitlines() if line.startswith("omen/joint_pos/v2"))
    assert line.endswith("\tomen.joint_pos.v2.wshard")
    assert "omen/joint_pos/v2" not in wshard("inspect", "--no-sidecars", path).out


def test_chunks_count_with_their_manifest(wshard: Run, episode: Path, tmp_path: Path) -> None:
    wshard("split", episode, "-o", tmp_path / "long", "--steps", "25", "--chunked")
    result = wshard("inspect", tmp_path / "long", "--json")
    (facts,) = result.json["files"]
    assert facts["steps"] == 60
    assert facts["chunks"] == [f"ep_001_chunk_{number:04}.wshard" for number in range(3)]
    sizes = [path.stat().st_size for path in (tmp_path / "long").iterdir()]
    assert facts["file_size"] == sum(sizes)
    chunk = wshard("inspect", tmp_path / "long" / "ep_001_chunk_0001.wshard").out
    assert "number 1 of 3, counted from 0, steps 25 to 49 of the episode" in chunk
    (tmp_path / "long" / "ep_001_manifest.wshard").unlink()
    assert len(find_episodes([str(tmp_path / "long")])) == 3


def test_an_episode_that_does_not_open_does_not_hide_the_others(
    wshard: Run, recordings: Path
) -> None:
    (recordings / "a" / "ep_0.wshard").write_bytes(b"\x89HDF\r\n\x1a\n")
    result = wshard("inspect", recordings)
    assert result.code == Exit.FINDING
    assert "it looks like an HDF5 file" in result.err
    assert len(result.out.splitlines()) == 3
    files = wshard("inspect", "--json", recordings).json["files"]
    assert [one.get("error", {}).get("code") for one in files] == ["bad_magic", None, None]


def test_other_files_of_the_family_are_named(wshard: Run, tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "x.shard", fsync=False) as writer:
        writer.write_entry("a", b"1")
    result = wshard("inspect", tmp_path / "x.shard")
    assert result.code == Exit.FINDING
    assert "not an episode" in result.err
    assert "'shard info' says what it is" in result.err


def test_a_sidecar_alone_is_no_episode(wshard: Run, recordings: Path) -> None:
    result = wshard("inspect", recordings / "b" / "ep_2.wshard.lanes")
    assert result.code == Exit.FINDING
    assert "open the episode itself" in result.err


def test_a_folder_without_episodes_is_wrong_use(wshard: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = wshard("inspect", tmp_path / "empty")
    assert result.code == Exit.USAGE
    assert "no episodes in this folder" in result.err


def test_jobs_change_nothing_but_the_time(wshard: Run, recordings: Path) -> None:
    assert wshard("inspect", recordings, "--jobs", "1").out == wshard("inspect", recordings).out
    assert wshard("inspect", recordings, "--jobs", "0").code == Exit.USAGE


def test_an_episode_named_twice_is_shown_once(wshard: Run, recordings: Path) -> None:
    path = recordings / "a" / "ep_1.wshard"
    files = wshard("inspect", "--json", path, recordings, path).json["files"]
    assert [one["episode_id"] for one in files] == ["ep_1", "ep_2"]


def test_guessed_descriptions_are_marked(wshard: Run, tmp_path: Path) -> None:
    path = tmp_path / "old.wshard"
    with ShardWriter(path, role="wshard", fsync=False) as writer:
        writer.write_entry("meta/episode", b'{"episode_id":"old","length_T":4}')
        writer.write_entry("signal/x", bytes(32))
    result = wshard("inspect", path)
    assert "signal/x\tf32?\t[2]\t4\t" in result.out
    assert "guessed" in result.err


def test_names_from_files_cannot_repaint_the_screen(wshard: Run, make_episode: MakeEpisode) -> None:
    def change(episode: Episode) -> None:
        episode.id = "x\x1b[31m"
        episode.metadata["a\x1bb"] = "c\x1bd"

    result = wshard("inspect", make_episode(change=change))
    assert "\x1b" not in result.out
    assert "x\\x1b[31m" in result.out


@pytest.mark.parametrize(
    "path", sorted((VECTORS / "valid").glob("golden_*.wshard")), ids=lambda p: p.stem
)
def test_golden_episodes_are_shown(path: Path, wshard: Run) -> None:
    assert wshard("inspect", "--values", path).code == Exit.OK


def test_a_damaged_identity_is_said(wshard: Run, episode: Path) -> None:
    flip_in(episode, "meta/identity")
    result = wshard("inspect", episode)
    assert result.code == Exit.OK
    assert "identity      unreadable: " in result.out


# --- a table of what is known


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Twelve episodes in deep folders: of 20, 21, … steps, with returns that fall."""
    folder = tmp_path / "runs"
    for number in range(12):
        episode = Episode(f"pick_and_place_{number:02}", env_id="Reach-v1", length=20 + number)
        episode.rewards = np.full(20 + number, 12 - number, np.float32)
        episode.metadata = {"success": number % 2 == 0, "task": f"task {number % 3}"}
        path = folder / f"a_long_name_of_an_experiment_{number % 2}" / f"ep_{number}.wshard"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_wshard(episode, path, fsync=False)
    return folder


def test_a_table_has_the_columns_the_order_and_the_episodes_that_you_ask_for(
    wshard: Run, runs: Path
) -> None:
    options = ("--columns", "id,length,return,success", "--sort", "return", "--limit", "2")
    result = wshard("inspect", runs, "--where", "success and length > 22", *options)
    assert result.code == Exit.OK
    assert [line.split("\t") for line in result.out.splitlines()] == [
        ["ID", "LENGTH", "RETURN", "SUCCESS"],
        ["pick_and_place_04", "24", "192", "true"],
        ["pick_and_place_06", "26", "156", "true"],
    ]
    rows = wshard("inspect", runs, "--sort", "task", "--columns", "task,path").out.splitlines()[1:]
    assert [row.split("\t")[0] for row in rows] == sorted(f"task {n % 3}" for n in range(12))
    assert all(row.split("\t")[1].startswith(f"{runs}/") for row in rows)
    assert not runs.with_name("runs.wshard-index").exists()  # looking changes nothing


def test_a_table_in_json_has_all_fields_and_the_files_that_failed(wshard: Run, runs: Path) -> None:
    (runs / "bad.wshard").write_bytes(b"nothing of the kind")
    result = wshard("inspect", runs, "--where", "return >= 240", "--json")
    assert result.code == Exit.FINDING
    first, failed = result.json["files"]
    assert first == {
        "file": str(runs / "a_long_name_of_an_experiment_0" / "ep_0.wshard"),
        "id": "pick_and_place_00",
        "env_id": "Reach-v1",
        "length": 20,
        "return": 240.0,
        "success": True,
        "metadata": {"success": True, "task": "task 0"},
    }
    assert failed["error"]["code"] == "bad_magic"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--where", "succss"), "no episode has a field 'succss'; did you mean 'success'?"),
        (("--where", "length >"), "is not understood"),
        (("--where", "__import__('os')"), "is not understood"),
        (("--columns", "id,lngth"), "no episode has a field 'lngth'; did you mean 'length'?"),
        (("--sort", "reward"), "no episode has a field 'reward'"),
    ],
)
def test_a_mistake_in_a_table_is_named(
    wshard: Run, runs: Path, options: tuple[str, str], message: str
) -> None:
    result = wshard("inspect", runs, *options)
    assert result.code == Exit.USAGE
    assert message in result.err


@pytest.mark.parametrize(
    "options", [(), ("--sort", "return"), ("--columns", "return,path,id,length")]
)
def test_a_narrow_terminal_shows_the_ends_of_paths_and_no_line_is_too_long(
    runs: Path, terminal: Terminal, options: tuple[str, ...]
) -> None:
    code, out = terminal("inspect", runs, *options, module="shard_cli.wshard", columns=50)
    assert code == Exit.OK
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    table = [line for line in lines if ".wshard" in line or "PATH" in line or "FILE" in line]
    assert len(table) == 13
    assert max(map(len, table)) <= 50
    assert all(re.search(r"…\S*/ep_\d+\.wshard", line) for line in table[1:])


# --- packs of episodes


@pytest.fixture
def packed(recordings: Path, tmp_path: Path) -> Path:
    """The recordings in a pack, beside a pack of something else."""
    path = tmp_path / "packs" / "eps.shardpack"
    path.parent.mkdir()
    pack_episodes(recordings, path)
    with ShardPackWriter(path.with_name("other.shardpack")) as writer:
        writer.write("a", {"txt": b"no episode"})
    return path


@pytest.mark.parametrize("name", ["eps.shardpack", "."])
def test_the_episodes_of_a_pack_are_listed_like_those_of_a_folder(
    wshard: Run, packed: Path, name: str
) -> None:
    lines = wshard("inspect", packed.parent / name).out.splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == ["ep_1", "ep_2"]
    assert lines[1].split("\t")[0].endswith("eps.shardpack/b/ep_2.wshard")
    assert lines[1].split("\t")[8] == "1"
    verbose = wshard("inspect", "-v", packed).out
    assert "sidecars      omen.joint_pos.v2.wshard\n" in verbose
    table = wshard("inspect", packed, "--columns", "id,return").out
    assert "ep_2\t" in table


def test_every_episode_of_a_pack_is_verified(wshard: Run, packed: Path) -> None:
    result = wshard("verify", packed.parent, "--json")
    assert result.code == Exit.OK
    assert [one["episode_id"] for one in result.json["files"]] == ["ep_1", "ep_2"]
    with ShardPackReader(packed) as reader:
        entry = reader.record(1)["wshard"]
        at = bytes(packed.read_bytes()).index(bytes(entry.data)) + entry.size // 2
    content = bytearray(packed.read_bytes())
    content[at] ^= 1
    packed.write_bytes(content)
    result = wshard("verify", packed)
    assert result.code == Exit.FINDING
    assert "eps.shardpack/b/ep_2.wshard: FAILED" in result.out
    assert "2 episodes, 1 failed" in result.out
    packed.write_bytes(content[:-40])
    assert "P-FTR" in wshard("verify", packed).out


def test_a_pack_without_episodes_is_an_error_if_you_name_it(wshard: Run, packed: Path) -> None:
    result = wshard("inspect", packed.with_name("other.shardpack"))
    assert result.code == Exit.USAGE
    assert "no episodes in this pack" in result.err
