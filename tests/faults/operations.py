"""Everything that writes, as one user would call it, and what a later process must find."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import shardpack
from shard_cli.main import main
from shard_cli.programs import WSHARD
from shard_format import ShardReader, ShardWriter
from shard_format.errors import ShardError, ShardIOError
from shard_train import EpisodeDataset, compute_stats, load_stats, save_stats
from shardpack.convert import from_tar, to_tar
from wshard import (
    ChunkedEpisodeWriter,
    Episode,
    WShardStreamWriter,
    add_lane,
    compact,
    edit,
    load_wshard,
    recover,
    remove_lane,
    save_wshard,
    validate_chunk_continuity,
)
from wshard.convert import ConvertOptions, convert, read, write
from wshard.replay import ReplayBuffer
from wshard.streaming import StreamOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

T = 12
CHANNELS = [{"id": "state", "dtype": "f32", "shape": [3]}]


@dataclass(frozen=True)
class Operation:
    """One way to write.

    `state` opens what is there as a later process would and says what it found; it must be what `prepare` made or what
    `run` makes, unless `grows`: then it may be any state between, and `state` is a number. What `ends_early` after a
    fault is not completed by running it again, but nothing of it is lost.
    """

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    state: Callable[[Path], Any]
    grows: bool = False
    ends_early: bool = False


def episode(word: str, steps: int = T) -> Episode:
    numbers = np.arange(steps * 3, dtype=np.float32).reshape(steps, 3) + len(word)
    ep = Episode("ep", env_id=word, metadata={"word": word})
    ep.observations["state"] = numbers
    ep.actions["ctrl"] = numbers[:, :1]
    ep.rewards = np.ones(steps, np.float32)
    return ep


def saved(path: Path, word: str) -> None:
    save_wshard(episode(word), path)


def digest(parts: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(repr(part).encode() if not isinstance(part, np.ndarray) else part.tobytes())
    return found.hexdigest()[:16]


def content(path: Path) -> Any:  # noqa: ANN401 - what a test compares
    """All of an episode with its sidecars; a sidecar that does not fit is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with load_wshard(path) as ep:
            blocks = {name: channel.data for name, channel in ep.blocks()}
            return [
                *(ep.env_id, ep.length, dict(sorted(ep.metadata.items()))),
                *(sorted(blocks), digest(blocks[name] for name in sorted(blocks))),
            ]


def one_file(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    return content(folder / "ep.wshard")


# --- an episode and what lies beside it


def with_lane(folder: Path) -> None:
    saved(folder / "ep.wshard", "old")
    add_lane(folder / "ep.wshard", "omen/state/m", np.zeros((T, 3), np.float32))
    edit(folder / "ep.wshard", metadata={"grade": 1})


def change_and_save(folder: Path) -> None:
    with load_wshard(folder / "ep.wshard") as ep:
        ep.metadata["success"] = True
        save_wshard(ep, folder / "ep.wshard")


def add_second_lane(folder: Path) -> None:
    path = folder / "ep.wshard"
    add_lane(path, "omen/state/n", np.ones((T, 3), np.float32), replace=True)


def remove_the_lane(folder: Path) -> None:
    if "omen/state/m" in dict(load_wshard(folder / "ep.wshard").blocks()):
        remove_lane(folder / "ep.wshard", "omen/state/m")


# --- chunks


def chunked(folder: Path, word: str, chunks: int) -> None:
    writer = ChunkedEpisodeWriter(folder / "ep", "ep", chunk_size_t=T)
    for _ in range(chunks):
        writer.write_chunk(episode(word))
    writer.finalize_manifest()


def whole_of_chunks(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    manifest = next(folder.rglob("*manifest.wshard"))
    validate_chunk_continuity(manifest)
    return content(manifest)


# --- recording


def record(folder: Path, **options: Any) -> None:  # noqa: ANN401 - the writer's
    writer = WShardStreamWriter(
        *(folder / "ep.wshard", "ep", CHANNELS),
        on_partial="recover",
        overwrite=True,
        options=StreamOptions(**options),
    )
    with writer:
        writer.begin_episode()
        for step in range(T):
            writer.write_timestep({"state": np.full(3, step, np.float32)}, reward=1.0, done=False)
            if step % 3 == 2:
                writer.flush()
        writer.end_episode()


def roll(folder: Path) -> None:
    if not (folder / "ep_manifest.wshard").exists():  # finished before
        record(folder, max_steps_per_file=4)


def steps_there(folder: Path) -> int:
    """How many steps a user gets back, finished or recovered; all of them must be right."""
    path, copy = folder / "ep.wshard", folder.parent / "recovered.wshard"
    for old in folder.parent.glob("recovered*"):
        old.unlink()
    manifests = list(folder.glob("*manifest.wshard"))
    found = 0
    partials = [p for p in folder.glob("ep*.partial") if p.stat().st_size]
    if partials:
        try:
            recover(path, copy, fsync=False)
            found = _right_steps(next(folder.parent.glob("recovered*")))
        except ShardError as error:
            if "no complete start" not in str(error):
                raise
    for finished in (*manifests, *(path,) * path.exists()):
        found = max(found, _right_steps(finished))
    return found


def _right_steps(path: Path) -> int:
    with load_wshard(path) as ep:
        if not ep.length:
            return 0
        data = ep.observations["state"].data
        assert (data == np.arange(len(data), dtype=np.float32)[:, None]).all(), data
        return len(data)


def interrupted(folder: Path) -> None:
    """A recording whose process was killed."""
    child = os.fork()
    if not child:
        writer = WShardStreamWriter(folder / "ep.wshard", "ep", CHANNELS)
        writer.begin_episode()
        for step in range(T):
            writer.write_timestep({"state": np.full(3, step, np.float32)}, reward=1.0, done=False)
        writer.flush()
        os._exit(0)
    os.waitpid(child, 0)


def bring_back(folder: Path) -> None:
    if not (folder / "ep.wshard").exists():
        recover(folder / "ep.wshard.partial")


# --- containers and packs


def container(folder: Path, word: str) -> None:
    with ShardWriter(folder / "a.shard") as writer:
        for number in range(4):
            writer.write_entry(f"{word}/{number}", word.encode() * 100, compression="zstd")


def entries(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    with ShardReader(folder / "a.shard") as reader:
        reader.verify()
        return {name: len(reader[name]) for name in reader}


def items(word: str, count: int = 7) -> list[str]:
    return [f"{word}{number}" for number in range(count)]


def sample_of(item: str) -> tuple[str, dict[str, str]]:
    return item, {"txt": item * 50}


def pack(folder: Path, names: list[str], **options: Any) -> None:  # noqa: ANN401 - the writer's
    output = folder / "s-%03d.shardpack"
    shardpack.pack(names, output, sample_of, key=lambda item: item, max_records=3, **options)


def keys(folder: Path) -> list[str]:
    if not list(folder.glob("*.shardpack")):
        return []
    with shardpack.open(folder) as dataset:
        for record in dataset:
            assert record.read_all()["txt"] == record.key.encode() * 50
        found = list(dataset.keys())
    if (folder / "s.shardpack-set").exists():  # shards may have been added, but never changed
        with shardpack.open(folder / "s.shardpack-set") as dataset:
            assert list(dataset.keys()) == found[: len(dataset)]
    return found


def packed(folder: Path) -> int:
    """How many of the items a0, a1, … are there; no other is."""
    found = keys(folder)
    assert found == items("a", len(found)), found
    return len(found)


def pack_more(folder: Path) -> None:
    pack(folder, items("a", 9), append=True)


def pack_parts(folder: Path) -> None:
    """A set, and the parts of the one that will replace it."""
    pack(folder, items("old", 8))
    for part in (1, 2):
        label = shardpack.SetLabel("r", part, 2)
        pack(folder, items("new", 6)[3 * part - 3 : 3 * part], label=label)


def commit(folder: Path) -> None:
    if list(folder.glob("s.shardpack-parts/*.shardpack-set")):  # unless it is done
        shardpack.commit(folder / "s-%03d.shardpack", overwrite=True)


def merge(folder: Path) -> None:
    source = folder.parent / "more"
    if not source.exists():
        source.mkdir()
        pack(source, items("new"))
    shardpack.merge(source, folder / "s-%03d.shardpack", overwrite=True)


def tars(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    found = sorted(folder.glob("*.tar"))
    copy = folder.parent / "from-tar"
    if not found:
        return []
    from_tar([str(path) for path in found], copy / "s-%03d.shardpack", overwrite=True)
    return keys(copy)


def write_tar(folder: Path, word: str) -> None:
    source = folder.parent / f"pack-{word}"
    if not source.exists():
        source.mkdir()
        pack(source, items(word))
    to_tar(source, folder / "t-%03d.tar", max_records=3, overwrite=True)


def read_tar(folder: Path) -> None:
    source = folder.parent / "tar"
    if not source.exists():
        source.mkdir()
        write_tar(source, "new")
    found = [str(path) for path in sorted(source.glob("*.tar"))]
    from_tar(found, folder / "s-%03d.shardpack", overwrite=True)


def recover_pack(folder: Path) -> None:
    sound = folder.parent / "sound"
    if not sound.exists():
        sound.mkdir()
        pack(sound, items("a", 3))
    cut = folder.parent / "cut.shardpack"
    cut.write_bytes(next(sound.glob("*.shardpack")).read_bytes()[:-40])
    shardpack.recover(cut, folder / "s-000.shardpack", overwrite=True)


# --- training


def episodes(folder: Path) -> None:
    (folder / "data").mkdir()
    for number in range(3):
        ep = episode("x" * number)
        ep.observations["rgb"] = np.full((T, 64, 64, 3), number, np.uint8)
        save_wshard(ep, folder / "data" / f"ep_{number}.wshard", compression="zstd")


def index(folder: Path) -> None:
    assert len(EpisodeDataset(folder / "data", window=4))


def windows(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    return read_all(EpisodeDataset(folder / "data", window=4))


def read_all(dataset: EpisodeDataset) -> Any:  # noqa: ANN401 - what a test compares
    batch = dataset.batch(np.arange(len(dataset)))
    dataset.close()
    return [len(dataset), digest([np.asarray(batch["state"]), np.asarray(batch["rgb"])])]


def statistics(folder: Path) -> None:
    save_stats(compute_stats(str(folder / "data")), folder / "data")


def stats_there(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    found = [path for path in folder.rglob("*stats*") if path.name[0] != "."]
    return [sorted(load_stats(folder / "data")) if found else None]


def cached(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    return read_all(EpisodeDataset(folder / "data", window=4, cache=folder / "cache"))


def replay(folder: Path) -> None:
    with ReplayBuffer(folder, max_steps=1000, seed=1) as buffer:
        while len(buffer.episodes) < 4:
            buffer.add_episode(episode("r" * len(buffer.episodes)))


def replayed(folder: Path) -> int:
    with ReplayBuffer(folder, max_steps=1000, seed=1) as buffer:
        assert not buffer.skipped, buffer.skipped
        return len(buffer.episodes)


def start_replay(folder: Path) -> None:
    with ReplayBuffer(folder, max_steps=1000, seed=1) as buffer:
        buffer.add_episode(episode("r"))


def replay_latents(folder: Path) -> None:
    with ReplayBuffer(folder, seed=1) as buffer:
        for _ in range(2):  # the second time in place of what is there
            batch = buffer.sample(16, T, "recent")
            latents = batch["state"].astype(np.float64).repeat(700, axis=2)  # several pages
            buffer.update_latents(batch["step_indices"], {"deter": latents})


def latents_there(folder: Path) -> int:
    with ReplayBuffer(folder, seed=1) as buffer:
        batch = buffer.sample(16, T, "recent")
        if "deter" not in batch:
            return 0
        known = batch["has_latents"]
        assert (batch["deter"][known] == batch["state"][known].repeat(700, axis=1)).all()
        assert not batch["deter"][~known].any()
        return int(known.sum())


# --- conversions


def source_of(folder: Path, word: str) -> Path:
    """Two episodes as a dataset to convert, outside of what the shim counts."""
    source = folder.parent / f"source-{word}"
    if not source.exists():
        write((named(f"{word}{number}") for number in range(2)), source, "npz")
    return source


def named(name: str) -> Episode:
    ep = episode(name)
    ep.id = name
    return ep


def converted(folder: Path, word: str, target: str, to: str, *, resume: bool = False) -> None:
    chosen = slice(0, 1) if target.endswith(".wshard") else slice(None)
    options = ConvertOptions(episodes=chosen, overwrite=True, resume=resume)
    convert(source_of(folder, word), folder / target, "npz", to, options=options)


def convert_and_pack(folder: Path, word: str) -> None:
    command = ["convert", str(source_of(folder, word)), str(folder / "s.shardpack")]
    options = ["--from", "npz", "--pack", "1G", "--jobs", "1", "--resume", "--force", "-q"]
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = main([*command, *options], program=WSHARD)
    if code:
        raise ShardIOError(err.getvalue())


def packed_episodes(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
    with shardpack.open(folder / "s.shardpack") as dataset:
        return [[record.key, digest(record.read_all().values())] for record in dataset]


def dataset_at(target: str, form: str) -> Callable[[Path], Any]:
    """What is at the target, read as any user would; named, because looking at it would load every format."""

    def state(folder: Path) -> Any:  # noqa: ANN401 - what a test compares
        if not (folder / target).exists():
            return []
        return [
            [ep.id, digest(channel.data for _, channel in sorted(ep.blocks()))]
            for ep in read(folder / target, form)
        ]

    return state


def conversion(target: str, form: str = "wshard", *, resume: bool = False) -> Operation:
    """Replaces a dataset by another one."""
    return Operation(
        lambda folder: converted(folder, "old", target, form),
        lambda folder: converted(folder, "newer", target, form, resume=resume),
        dataset_at(target, form),
    )


def nothing(folder: Path) -> None:
    """The folder is empty before."""


OPERATIONS: dict[str, Operation] = {
    "save": Operation(
        lambda folder: saved(folder / "ep.wshard", "old"),
        lambda folder: saved(folder / "ep.wshard", "newer"),
        one_file,
    ),
    "save over sidecars": Operation(with_lane, change_and_save, one_file),
    "add a lane": Operation(with_lane, add_second_lane, one_file),
    "remove a lane": Operation(with_lane, remove_the_lane, one_file),
    "edit": Operation(
        with_lane, lambda folder: edit(folder / "ep.wshard", metadata={"grade": 2}), one_file
    ),
    "compact": Operation(with_lane, lambda folder: compact(folder / "ep.wshard"), one_file),
    "replace chunks": Operation(
        lambda folder: chunked(folder, "old", 3),
        lambda folder: chunked(folder, "newer", 2),
        whole_of_chunks,
    ),
    "record": Operation(nothing, record, steps_there, grows=True),
    "roll": Operation(nothing, roll, steps_there, grows=True, ends_early=True),
    "recover": Operation(interrupted, bring_back, steps_there),
    "container": Operation(
        lambda folder: container(folder, "old"), lambda folder: container(folder, "newer"), entries
    ),
    "pack": Operation(nothing, pack_more, packed, grows=True),
    "append": Operation(lambda folder: pack(folder, items("a", 4)), pack_more, packed, grows=True),
    "replace packs": Operation(
        lambda folder: pack(folder, items("old", 8)),
        lambda folder: pack(folder, items("new", 5), overwrite=True),
        keys,
    ),
    "merge": Operation(lambda folder: pack(folder, items("old", 8)), merge, keys),
    "commit parts": Operation(pack_parts, commit, keys),
    "to tar": Operation(
        lambda folder: write_tar(folder, "old"), lambda folder: write_tar(folder, "new"), tars
    ),
    "from tar": Operation(lambda folder: pack(folder, items("old", 8)), read_tar, keys),
    "recover a pack": Operation(nothing, recover_pack, keys),
    "index": Operation(episodes, index, windows),
    "statistics": Operation(episodes, statistics, stats_there),
    "cache": Operation(episodes, cached, cached),
    "replay": Operation(start_replay, replay, replayed, grows=True),
    "replay latents": Operation(start_replay, replay_latents, latents_there, grows=True),
    "convert": Operation(
        nothing,
        lambda folder: converted(folder, "new", "out", "wshard", resume=True),
        dataset_at("out", "wshard"),
    ),
    "convert over a folder": conversion("out", resume=True),
    "convert to one file": conversion("out.wshard", resume=True),
    "convert to NPZ": conversion("out", "npz"),
    "convert to robomimic": conversion("out.hdf5", "robomimic", resume=True),
    "convert and pack": Operation(
        lambda folder: convert_and_pack(folder, "old"),
        lambda folder: convert_and_pack(folder, "newer"),
        packed_episodes,
    ),
}
