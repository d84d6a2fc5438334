"""What the tests of the served page need of Python: `serve.py PAGES MODE …`, with the page in the folder PAGES."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from pathlib import Path
from shutil import copytree

import numpy as np
import pyarrow
import pyarrow.parquet

import wshard.viewer._page as page
from shard_cli.main import wshard_entry_point
from shard_train.packed_episodes import pack_episodes
from wshard import Episode, Timebase, WShardStreamWriter, add_lane, load_wshard, save_wshard
from wshard.partial import recover
from wshard.streaming import StreamOptions
from wshard.viewer._widget import Kernel


def make(folder: str, count: str) -> None:
    """Writes episodes with predictions; their names try to be elements."""
    times = np.arange(1000) / 50
    for number in range(int(count)):
        episode = Episode(f"ep_{number}<b>", "Reach-v1", timebase=Timebase(tick_hz=50))
        episode.metadata = {"note": "</script><script>document.title = 'owned'</script>"}
        episode.observations["joint_pos"] = np.stack([np.sin(times), np.cos(times)], 1)
        episode.omens["joint_pos"]["dreamer"] = np.stack([np.sin(times), np.sin(times)], 1)
        episode.rewards = np.ones(1000, np.float32)
        save_wshard(episode, Path(folder) / f"ep_{number}.wshard", profile="training", fsync=False)


def beside(path: str, target: str) -> None:
    """Writes a prediction into a file beside an episode, and beside another one a prediction of the first."""
    with load_wshard(path) as episode:
        prediction = episode.observations["joint_pos"].data
        for name, note in ("a", ""), ("b", "other content"):
            episode.metadata["note"] = note
            (Path(target) / name).mkdir(parents=True)
            save_wshard(episode, Path(target) / name / "ep.wshard", fsync=False)
    lanes = Path(target) / "a" / "ep.wshard.lanes"
    add_lane(Path(target) / "a" / "ep.wshard", "omen/joint_pos/policy", prediction)
    copytree(lanes, Path(target) / "b" / lanes.name)


def pack(folder: str, target: str) -> None:
    """Packs episodes, and puts a link that leads out of the folder beside the pack."""
    Path(target).mkdir()
    pack_episodes(folder, Path(target) / "episodes.shardpack")
    (Path(target) / "elsewhere.wshard").symlink_to(__file__)


def record(path: str, most_steps: str = "") -> None:
    """Records 100 steps for each line on standard input; the recording ends with the input."""
    channels = [{"id": "state", "dtype": "f32", "shape": [2]}]
    options = StreamOptions(max_steps_per_file=int(most_steps) if most_steps else None)
    with WShardStreamWriter(path, "live", channels, options=options) as writer:
        writer.begin_episode("Live-v1")
        for _ in sys.stdin:
            for step in range(100):
                writer.write_timestep({"state": [step, -step]}, reward=1.0)
            writer.flush()
            print("flushed", flush=True)
        writer.end_episode()
    print("finished", flush=True)


def catalogue(path: str, *names: str) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"path": list(names)}), path)


def recover_recording(path: str) -> None:
    recover(path, fsync=False)


def html(path: str, target: str) -> None:
    with load_wshard(path) as episode:
        episode.to_html(target)


def kernel(path: str) -> None:
    """Answers a question on each line of standard input, as the widget of a notebook does."""
    answers = Kernel(path)
    print("ready", flush=True)
    for line in sys.stdin:
        answer, data = answers.answer(json.loads(line))
        content = None if data is None else b64encode(data).decode("ascii")
        print(json.dumps({"answer": answer, "bytes": content}), flush=True)


def main() -> None:
    folder, mode, *arguments = sys.argv[1:]
    page.files = lambda _: Path(folder)  # type: ignore[assignment]
    if mode in ("view", "view-in-browser"):
        sys.argv[1:] = ["view", *(["--no-browser"] if mode == "view" else []), *arguments]
        wshard_entry_point()
    {
        "make": make,
        "beside": beside,
        "pack": pack,
        "record": record,
        "catalogue": catalogue,
        "recover": recover_recording,
        "html": html,
        "kernel": kernel,
    }[mode](*arguments)


if __name__ == "__main__":
    main()
