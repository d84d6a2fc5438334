"""Datasets of other formats for `bench_convert`: how each is made, and how its own library reads it.

What we have no writer for is written with h5py, mcap, rosbags or plain files, as the libraries of these formats do.
"""

from __future__ import annotations

import io
import json
import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import zarr

from wshard import Episode
from wshard.convert import suggest_mapping, write
from wshard.video import VideoChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

EPISODES = 20
STEPS = 200
SIDE = 84  # as robomimic's
MESSAGES = 8000
RATE = 15
Source = tuple[str, "Callable[[Path], Path]", "Callable[[Path], int]"]


def episodes(count: int, steps: int, side: int = 0) -> Iterator[Episode]:
    """As a robot records them: joints, an action, a reward, and a camera if it has a side."""
    random = np.random.default_rng(0)
    frames = moving_picture(steps + 1, side)
    for number in range(count):
        ep = Episode(f"episode_{number}", env_id="Bench-v0")
        ep.observations["state"] = random.normal(size=(steps + 1, 32)).astype("f4")
        if side:
            ep.observations["rgb"] = np.roll(frames, number, axis=0)
        ep.actions["action"] = random.normal(size=(steps, 7)).astype("f4")
        ep.rewards = random.normal(size=steps)
        ep.terminations = np.arange(steps) == steps - 1
        ep.truncations = np.zeros(steps, bool)
        yield ep


def moving_picture(steps: int, side: int) -> NDArray[np.uint8]:
    y, x = np.mgrid[:side, :side]
    noise = np.random.default_rng(1).integers(0, 12, (side, side))
    frames = [np.sin((x + 3 * t) / 17) * 60 + np.cos((y - t) / 23) * 50 + 120 for t in range(steps)]
    grey = (np.stack(frames) + noise).astype(np.uint8)
    return np.stack([grey, 255 - grey, grey // 2], axis=-1)


def written(form: str, suffix: str = "", side: int = SIDE) -> Callable[[Path], Path]:
    """Makes a dataset with our own writer."""

    def make(folder: Path) -> Path:
        path = folder / f"{form}_{side}{suffix}"
        write(episodes(EPISODES, STEPS, side), path, format=form)
        return path

    return make


# --- HDF5


def raw_hdf5(path: Path) -> int:
    total = 0

    def visit(_: str, item: Any) -> None:  # noqa: ANN401 - a group or a dataset
        nonlocal total
        if isinstance(item, h5py.Dataset):
            total += item[()].nbytes

    for file in [path] if path.is_file() else sorted(path.rglob("*.hdf5")):
        with h5py.File(file) as opened:
            opened.visititems(visit)
    return total


def compressed(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Makes the same file with gzip."""

    def make_compressed(folder: Path) -> Path:
        path = folder / "compressed.hdf5"
        with h5py.File(make(folder)) as old, h5py.File(path, "w") as new:

            def copy(name: str, item: Any) -> None:  # noqa: ANN401 - a group or a dataset
                made = (
                    new.create_group(name)
                    if isinstance(item, h5py.Group)
                    else new.create_dataset(
                        name, data=item[()], compression="gzip" if item.shape else None
                    )
                )
                made.attrs.update(item.attrs)

            old.visititems(copy)
        return path

    return make_compressed


def d4rl(folder: Path) -> Path:
    path = folder / "d4rl.hdf5"
    eps = list(episodes(EPISODES, STEPS))
    with h5py.File(path, "w") as file:
        file["observations"] = np.concatenate([ep.observations["state"].data[:-1] for ep in eps])
        file["actions"] = np.concatenate([ep.actions["action"].data for ep in eps])
        file["rewards"] = np.zeros(EPISODES * STEPS, "f4")
        file["terminals"] = np.arange(EPISODES * STEPS) % STEPS == STEPS - 1
        file["timeouts"] = np.zeros(EPISODES * STEPS, bool)
    return path


def d4rl_by_episode(path: Path) -> int:
    """The rows of each episode, read one episode after the other."""
    total = 0
    with h5py.File(path) as file:
        is_last = file["terminals"][:] | file["timeouts"][:]
        for start, stop in pairwise([0, *(np.flatnonzero(is_last) + 1).tolist()]):
            total += sum(file[name][start:stop].nbytes for name in file)
    return total


def aloha(folder: Path) -> Path:
    path = folder / "aloha"
    path.mkdir()
    for number, ep in enumerate(episodes(EPISODES, STEPS, SIDE)):
        with h5py.File(path / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"] = True
            file["action"] = ep.actions["action"].data
            for name in ("qpos", "qvel"):
                file[f"observations/{name}"] = ep.observations["state"].data[:-1]
            file["observations/images/top"] = ep.observations["rgb"].data[:-1]
    return path


def maniskill(folder: Path) -> Path:
    path = folder / "trajectory.h5"
    facts: list[dict[str, Any]] = []
    with h5py.File(path, "w") as file:
        for number, ep in enumerate(episodes(EPISODES, STEPS, SIDE)):
            group = file.create_group(f"traj_{number}")
            group["obs/agent/qpos"] = ep.observations["state"].data
            group["obs/sensor_data/base/rgb"] = ep.observations["rgb"].data
            group["actions"] = ep.actions["action"].data
            for name in ("terminated", "truncated", "success"):
                group[name] = np.arange(STEPS) == STEPS - 1
            facts.append({"episode_id": number, "elapsed_steps": STEPS})
    info = {"env_info": {"env_id": "PickCube-v1"}, "episodes": facts}
    path.with_suffix(".json").write_text(json.dumps(info))
    return path


def any_hdf5(folder: Path) -> Path:
    path = folder / "data.h5"
    with h5py.File(path, "w") as file:
        for number, ep in enumerate(episodes(EPISODES, STEPS, SIDE)):
            file[f"run_{number}/sensors/joints"] = ep.observations["state"].data[:-1]
            file[f"run_{number}/sensors/rgb"] = ep.observations["rgb"].data[:-1]
            file[f"run_{number}/command"] = ep.actions["action"].data
    return path


def options_of(form: str, path: Path) -> dict[str, Any]:
    """What `read` needs besides."""
    return {"mapping": suggest_mapping(str(path))} if form == "hdf5" else {}


# --- arrays and tables


def raw_zarr(path: Path) -> int:
    group = zarr.open_group(str(path), mode="r")
    ends = [0, *group["meta/episode_ends"][:].tolist()]
    total = 0
    for array in group["data"].arrays():
        for start, stop in pairwise(ends):
            total += array[1][start:stop].nbytes
    return total


def raw_npz(path: Path) -> int:
    total = 0
    for file in sorted(path.glob("*.npz")):
        with np.load(file) as arrays:
            total += sum(arrays[name].nbytes for name in arrays.files)
    return total


def tensordict(folder: Path) -> Path:
    path = folder / "tensordict"
    path.mkdir()
    eps = list(episodes(EPISODES, STEPS, SIDE))
    rows = EPISODES * STEPS
    ends = (np.arange(rows) % STEPS == STEPS - 1)[:, None]
    arrays = {
        "observation": np.concatenate([ep.observations["state"].data[:-1] for ep in eps]),
        "pixels": np.concatenate([ep.observations["rgb"].data[:-1] for ep in eps]),
        "action": np.concatenate([ep.actions["action"].data for ep in eps]),
    }
    after = {
        "observation": np.concatenate([ep.observations["state"].data[1:] for ep in eps]),
        "pixels": np.concatenate([ep.observations["rgb"].data[1:] for ep in eps]),
        "reward": np.zeros((rows, 1), "f4"),
        "done": ends,
        "terminated": ends,
    }
    for where, group in ((path, arrays), (path / "next", after)):
        where.mkdir(exist_ok=True)
        meta: dict[str, Any] = {
            "shape": [rows],
            "device": "cpu",
            "_type": "<class 'tensordict._td.TensorDict'>",
        }
        for name, array in group.items():
            array.tofile(where / f"{name}.memmap")
            kind = f"torch.{array.dtype!s}"
            meta[name] = {
                "device": "cpu",
                "shape": list(array.shape),
                "dtype": kind,
                "is_nested": False,
            }
        if where is path:
            meta["next"] = {"type": "TensorDict"}
        (where / "meta.json").write_text(json.dumps(meta))
    return path


def raw_tensordict(path: Path) -> int:
    """A copy in memory of each episode, which ends where `done` is set."""
    from tensordict import TensorDict

    steps = TensorDict.load_memmap(path)
    is_last = steps["next", "done"].numpy().ravel()
    total = 0
    for start, stop in pairwise([0, *(np.flatnonzero(is_last) + 1).tolist()]):
        copied = steps[start:stop].clone()
        total += sum(copied[key].nbytes for key in copied.keys(True, True))
    return total


def raw_parquet(path: Path) -> int:
    import pyarrow.parquet as pq

    files = [path] if path.is_file() else sorted((path / "data").rglob("*.parquet"))
    return sum(table_bytes(pq.read_table(file)) for file in files)


def table_bytes(table: Any) -> int:  # noqa: ANN401 - a pyarrow.Table
    """The bytes of its columns, which become arrays."""
    total = 0
    for column in table.columns:
        values = column.combine_chunks()
        while hasattr(values, "flatten") and str(values.type).startswith(("list", "fixed_size")):
            values = values.flatten()
        total += np.asarray(values).nbytes
    return total


def raw_lerobot(path: Path) -> int:
    """All that episodes have: also the tables of episodes and tasks, statistics, and the text of each step."""
    import pyarrow.parquet as pq

    facts = [json.loads(file.read_bytes()) for file in sorted((path / "meta").glob("*.json"))]
    for file in sorted((path / "meta" / "episodes").rglob("*.parquet")):
        facts += pq.read_table(file).to_pylist()
    tasks = [row["task"] for row in pq.read_table(path / "meta" / "tasks.parquet").to_pylist()]
    total = len(facts)
    for file in sorted((path / "data").rglob("*.parquet")):
        table = pq.read_table(file)
        total += table_bytes(table)
        total += len([tasks[number] for number in table.column("task_index").to_pylist()])
    return total


# --- RLDS


def raw_records(path: Path) -> int:
    """Frames of TFRecord, protobuf's own parser, and Pillow: TensorFlow is not measured."""
    from PIL import Image

    example = example_class()
    total = 0
    for file in sorted(path.rglob("*.tfrecord*")):
        data = file.read_bytes()
        start = 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            found = example.FromString(data[start + 12 : start + 12 + length])
            for feature in found.features.feature.values():
                for value in feature.bytes_list.value:
                    if value[:4] in (b"\x89PNG", b"\xff\xd8\xff\xe0"):
                        total += np.asarray(Image.open(io.BytesIO(value))).nbytes
                total += np.asarray(feature.float_list.value, "f4").nbytes
                total += np.asarray(feature.int64_list.value, "i8").nbytes
            start += length + 16
    return total


def example_class() -> Any:  # noqa: ANN401 - a message class
    """`tf.train.Example`."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="e", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str, bool]) -> Any:  # noqa: ANN401 - a descriptor
        made = file.message_type.add(name=name)
        for field, number, kind, of, is_list in fields:
            label = kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL
            added = made.field.add(name=field, number=number, type=kind, label=label)
            if of:
                added.type_name = of
        return made

    inner = kinds.TYPE_MESSAGE
    message("Bytes", ("value", 1, kinds.TYPE_BYTES, "", True))
    message("Floats", ("value", 1, kinds.TYPE_FLOAT, "", True))
    message("Ints", ("value", 1, kinds.TYPE_INT64, "", True))
    lists = (("bytes_list", "Bytes"), ("float_list", "Floats"), ("int64_list", "Ints"))
    message("Feature", *((n, k, inner, f".e.{of}", False) for k, (n, of) in enumerate(lists, 1)))
    features = message("Features", ("feature", 1, inner, ".e.Features.FeatureEntry", True))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=inner, type_name=".e.Feature", label=1)
    message("Example", ("features", 1, inner, ".e.Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("e.Example"))


# --- messages


def mcap_file(path: Path, schema: tuple[str, str, bytes], encoding: str, data: list[bytes]) -> Path:
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel("joint_states", encoding, writer.register_schema(*schema))
        for number, message in enumerate(data):
            writer.add_message(channel, number * 10_000_000, message, number * 10_000_000)
        writer.finish()
    return path


def joints() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(size=(MESSAGES, 7))


def mcap_json(folder: Path) -> Path:
    data = [json.dumps({"position": row.tolist(), "name": "arm"}).encode() for row in joints()]
    schema = ("JointState", "jsonschema", b'{"type": "object"}')
    return mcap_file(folder / "json.mcap", schema, "json", data)


def state_class() -> tuple[Any, bytes]:
    """A message with a list of numbers and a text, and its description."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="s.proto", package="s", syntax="proto3")
    made = file.message_type.add(name="State")
    made.field.add(name="position", number=1, type=kinds.TYPE_DOUBLE, label=kinds.LABEL_REPEATED)
    made.field.add(name="name", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("s.State"))
    return found, descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def mcap_protobuf(folder: Path) -> Path:
    state, described = state_class()
    data = [state(position=row.tolist(), name="arm").SerializeToString() for row in joints()]
    return mcap_file(folder / "protobuf.mcap", ("s.State", "protobuf", described), "protobuf", data)


def raw_mcap(decode: Callable[[bytes], Any]) -> Callable[[Path], int]:
    def raw(path: Path) -> int:
        from mcap.reader import make_reader

        with path.open("rb") as file:
            return sum(len(decode(one.data)) for _, _, one in make_reader(file).iter_messages())

    return raw


def positions_of_protobuf(path: Path) -> int:
    state, _ = state_class()
    return raw_mcap(lambda data: state.FromString(data).position)(path)


def ros_messages() -> tuple[Any, list[Any]]:
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    types = store.types
    stamp, empty = types["builtin_interfaces/msg/Time"], np.zeros(0)
    header = types["std_msgs/msg/Header"]
    made = types["sensor_msgs/msg/JointState"]
    names = [f"joint_{n}" for n in range(7)]
    rows = enumerate(joints())
    return store, [made(header(stamp(n, 0), "arm"), names, row, empty, empty) for n, row in rows]


def mcap_ros2(folder: Path) -> Path:
    store, messages = ros_messages()
    kind = messages[0].__msgtype__
    text, _ = store.generate_msgdef(kind, ros_version=2)
    data = [bytes(store.serialize_cdr(message, kind)) for message in messages]
    schema = ("sensor_msgs/msg/JointState", "ros2msg", text.encode())
    return mcap_file(folder / "ros2.mcap", schema, "cdr", data)


def raw_ros2(path: Path) -> int:
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    kind = "sensor_msgs/msg/JointState"
    return raw_mcap(lambda data: store.deserialize_cdr(data, kind).position)(path)


def rosbag(folder: Path) -> Path:
    from rosbags.rosbag2 import Writer

    store, messages = ros_messages()
    kind = messages[0].__msgtype__
    with Writer(folder / "bag", version=9) as writer:
        connection = writer.add_connection("/joint_states", kind, typestore=store)
        for number, message in enumerate(messages):
            writer.write(connection, number * 10_000_000, store.serialize_cdr(message, kind))
    return folder / "bag"


def raw_bag(path: Path) -> int:
    from rosbags.rosbag2 import Reader
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    with Reader(path) as reader:
        return sum(
            len(store.deserialize_cdr(data, connection.msgtype).position)
            for connection, _, data in reader.messages()
        )


# --- a robot with three cameras, as DROID has them


def droid(folder: Path, count: int) -> Path:
    """LeRobot v2.1, written with pyarrow and PyAV: 15 Hz, about 250 steps, three cameras of 320 × 180 in H.264."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "droid"
    cameras = [f"observation.images.{name}" for name in ("exterior_1", "exterior_2", "wrist")]
    vector = {"dtype": "float32", "names": None}
    video = {"dtype": "video", "shape": [180, 320, 3], "names": ["height", "width", "channels"]}
    scalars = {
        "timestamp": "float32",
        **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), "int64"),
    }
    features: dict[str, Any] = {
        "observation.state": {**vector, "shape": [8]},
        "action": {**vector, "shape": [7]},
        **{name: {"dtype": kind, "shape": [1], "names": None} for name, kind in scalars.items()},
        **dict.fromkeys(cameras, video),
    }
    random = np.random.default_rng(0)
    lengths = [230 + 20 * (number % 3) for number in range(count)]
    frames = moving_picture(max(lengths) + 60, 320)[:, :180]
    clips = {
        (length, camera): _clip(frames[20 * n : 20 * n + length], folder / f"{length}_{n}.mp4")
        for length in sorted(set(lengths))
        for n, camera in enumerate(cameras)
    }
    rows = 0
    for number, length in enumerate(lengths):
        at = np.arange(length)
        columns = {
            "observation.state": random.normal(size=(length, 8)).astype("f4"),
            "action": random.normal(size=(length, 7)).astype("f4"),
        }
        table = {
            name: pa.FixedSizeListArray.from_arrays(data.reshape(-1), data.shape[1])
            for name, data in columns.items()
        }
        scalar = (
            (at / np.float32(RATE)).astype("f4"),
            at,
            at * 0 + number,
            at + rows,
            at * 0 + number % 20,
        )
        table |= dict(zip(scalars, map(pa.array, scalar), strict=True))
        file = io.BytesIO()
        pq.write_table(pa.table(table), file)
        _write_bytes(path / f"data/chunk-000/episode_{number:06}.parquet", file.getvalue())
        for camera in cameras:
            _write_bytes(
                path / f"videos/chunk-000/{camera}/episode_{number:06}.mp4", clips[length, camera]
            )
        rows += length
    tasks = [f"put object {n} into the drawer" for n in range(20)]
    info = {
        "codebase_version": "v2.1", "robot_type": "panda", "fps": RATE, "features": features, "splits": {},
        "total_episodes": count, "total_frames": rows, "total_tasks": len(tasks), "total_chunks": 1, "chunks_size": count,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }  # fmt: skip
    lines = {
        "info.json": [info],
        "tasks.jsonl": [{"task_index": n, "task": task} for n, task in enumerate(tasks)],
        "episodes.jsonl": [
            {"episode_index": n, "tasks": [tasks[n % 20]], "length": length}
            for n, length in enumerate(lengths)
        ],
    }
    for name, rows_of in lines.items():
        text = "\n".join(map(json.dumps, rows_of))
        _write_bytes(path / "meta" / name, text.encode())
    return path


def _clip(frames: NDArray[np.uint8], path: Path) -> bytes:
    channel = VideoChannel.encode(
        np.ascontiguousarray(frames), "h264:crf=23", fps=RATE, keyframe_every=64, name="cam"
    )
    channel.to_file(path, fps=RATE)
    return path.read_bytes()


def _write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


SOURCES: dict[str, Source] = {
    "Minari": ("minari", written("minari"), raw_hdf5),
    "robomimic, not compressed": ("robomimic", written("robomimic", ".hdf5"), raw_hdf5),
    "robomimic, gzip": ("robomimic", compressed(written("robomimic", ".hdf5")), raw_hdf5),
    "ManiSkill": ("maniskill", maniskill, raw_hdf5),
    "ALOHA, not compressed": ("aloha", aloha, raw_hdf5),
    # With gzip, as the scripts of D4RL write it.
    "D4RL, gzip": ("d4rl", compressed(d4rl), d4rl_by_episode),
    "D4RL, gzip, one bulk read": ("d4rl", compressed(d4rl), raw_hdf5),
    "D4RL, not compressed": ("d4rl", d4rl, d4rl_by_episode),
    "D4RL, not compressed, one bulk read": ("d4rl", d4rl, raw_hdf5),
    "HDF5 with a mapping": ("hdf5", any_hdf5, raw_hdf5),
    "Zarr": ("zarr", written("zarr", ".zarr"), raw_zarr),
    "NPZ": ("npz", written("npz"), raw_npz),
    "DreamerV3": ("dreamer", written("dreamer"), raw_npz),
    "TensorDict": ("tensordict", tensordict, raw_tensordict),
    "LeRobot without cameras": ("lerobot", written("lerobot", side=0), raw_lerobot),
    # Less than what episodes hold: no tasks, statistics and facts.
    "LeRobot without cameras, one bulk read of data/": (
        "lerobot",
        written("lerobot", side=0),
        raw_parquet,
    ),
    "Parquet without pictures": ("table", written("table", ".parquet", side=0), raw_parquet),
    "RLDS": ("rlds", written("rlds"), raw_records),
    "MCAP, JSON": ("mcap", mcap_json, raw_mcap(json.loads)),
    "MCAP, protobuf": ("mcap", mcap_protobuf, positions_of_protobuf),
    "MCAP, ROS 2": ("mcap", mcap_ros2, raw_ros2),
    "ROS 2 bag": ("rosbag", rosbag, raw_bag),
}
"""By title: the format, how to make a dataset, and how to read all of it with the library that it belongs to."""
BULK = frozenset(title for title in SOURCES if "one bulk read" in title)
"""Rows whose raw side reads other things than episodes: they are shown, and have no goal."""
NEEDS = {"TensorDict": ("tensordict",)}
"""By title, packages that not everybody has."""
