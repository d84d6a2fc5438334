"""The table of formats that are read and written."""

from __future__ import annotations

import importlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import InvalidArgument, LimitExceeded, ShardError, did_you_mean
from shard_format.foreign import explain
from shard_format.listing import natural_key
from wshard.convert._model import Format, Probe, check_options
from wshard.convert._per_file import JoinedReader, has_file, named_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wshard.convert._model import DatasetReader, ReadOptions

__all__ = [
    "FORMATS",
    "detect",
    "format_named",
    "format_of",
    "module_of",
    "open_dataset",
    "reader_of",
]

_GENERAL: Final = ("hdf5", "npz", "table")
"""Formats of any data. Below a folder, their files may be a part of something else, so they are read there only by name."""
_MOST_FOLDERS: Final = 1000
_MOST_NAMED: Final = 3
_NAME_IT: Final = "name the format if you know it, with format=…"
_NAME_IT_THERE: Final = "name the format if you know it, with --from FORMAT"

# Formats that are recognised by more come before those that would take almost anything.
FORMATS: Final[dict[str, Format]] = {
    one.name: one
    for one in (
        Format(name="wshard", title="WShard", module="_own", reader="OwnReader", writer="OwnWriter", suffixes=(".wshard",), example="episodes/"),
        Format(name="minari", title="Minari", module="_minari", reader="MinariReader", writer="MinariWriter", extra="minari", example="D4RL/door/human-v2",
               steps="T + 1 observations and infos; T actions, and the reward, termination and truncation that answer each",
               lost="channels with a clock of their own, ragged channels, labels, residuals; written with the HDF5 back end; video becomes pixels, or PNG if other pictures are JPEG or PNG"),
        Format(name="lerobot", title="LeRobot v2.0, v2.1, v3.0", module="_lerobot", reader="LeRobotReader", writer="LeRobotWriter", extra="lerobot", example="lerobot/pusht",
               steps="T rows of observation, action, and the reward after it (next.reward, next.done)",
               lost="writes v3.0; the observation after the last step, ragged channels, channels with clocks of their own, recorded times, labels, "
               "residuals and other metadata; cameras that are pixels become AV1, which is lossy"),
        Format(name="rlds", title="RLDS (TFDS TFRecord)", module="_rlds", reader="RldsReader", writer="RldsWriter", extra="images", example="bridge/0.1.0",
               steps="observation, action and reward of a step in one row; a last row that is_last and has only zeros beside the observation is observation T + 1",
               lost="labels, residuals, channels with their own clock; video becomes PNG, while JPEG and PNG stay as they are; ragged float64 is rounded to float32"),
        # Before the others of HDF5: a folder of its files is known by their names.
        Format(name="aloha", title="ALOHA, ACT, Mobile ALOHA", module="_aloha", reader="AlohaReader", episode_files=(".hdf5", ".h5"), extra="hdf5", example="episode_0.hdf5",
               steps="obs[t], action[t]; T observations, no rewards or ends",
               lost="JPEG becomes pixels: red and blue are exchanged in the files"),
        Format(name="robomimic", title="robomimic, LIBERO, MimicGen, robosuite, Isaac Lab", module="_robomimic", reader="RobomimicReader", writer="RobomimicWriter", extra="hdf5", suffixes=(".hdf5",), files=(".hdf5", ".h5"),
               example="demo_v15.hdf5",
               steps="obs[t], action[t], then reward[t], done[t], next_obs[t]; T + 1 observations where next_obs repeats obs",
               lost="ragged channels, channels with clocks of their own, labels, residuals, units; one set of dataset facts; a folder of files becomes one file"),
        Format(name="maniskill", title="ManiSkill", module="_maniskill", reader="ManiSkillReader", extra="hdf5", files=(".h5", ".hdf5"), beside=(".json",), example="trajectory.h5",
               steps="obs[t], action[t], then reward[t], terminated[t]; T + 1 observations and states"),
        Format(name="d4rl", title="D4RL", module="_d4rl", reader="D4rlReader", extra="hdf5", files=(".hdf5", ".h5"), example="hopper-medium-v2.hdf5",
               steps="all episodes back to back, split at terminals and timeouts; T + 1 observations where next_observations repeats the next step, else T. "
               "Chunks (virtual/N) are read in the order of their numbers if the whole arrays are not at the root"),
        Format(name="mcap", title="MCAP", module="_mcap", reader="McapReader", episode_files=(".mcap",), writer="McapWriter", extra="mcap", suffixes=(".mcap",), is_one_episode=True, example="drive.mcap",
               steps="no steps: each topic has the clock of its messages, T is 0; files of this library keep their steps",
               lost="residuals, bits of NaN; video with B-frames becomes pixels; protobuf and ROS messages are written as JSON"),
        Format(name="rosbag", title="ROS 1 and ROS 2 bags", module="_rosbag", reader="RosbagReader", extra="ros", example="rosbag2_2026_03_01",
               steps="no steps: each topic has the clock of its messages, T is 0"),
        Format(name="dreamer", title="DreamerV3 replay, DreamerV2 episodes", module="_dreamer", reader="DreamerReader", writer="DreamerWriter", example="logdir/replay",
               steps="V3: row t has observation t, the reward that came with it and the action after it: N rows are N observations, action[:-1], reward[1:]. "
               "V2: the action before it, action[1:]",
               lost="text, ragged data, channels with their own clock, labels, metadata, clocks; `stepid` is new"),
        Format(name="zarr", title="Zarr (diffusion policy)", module="_zarr", reader="ZarrReader", writer="ZarrWriter", extra="zarr", suffixes=(".zarr", ".zarr.zip"), example="pusht.zarr",
               steps="row t is step t: T observations, T actions",
               lost="the observation after the last action, labels, residuals, ragged channels, channels with their own clock; bf16 becomes float32"),
        Format(name="tensordict", title="TensorDict, TorchRL", module="_tensordict", reader="TensorDictReader", example="buffer/",
               steps="row t has the observation before action t, next/ its reward, ends and next observation: T + 1 observations where next/ repeats them",
               lost="objects that are not JSON (pickles are never loaded), nested and complex tensors"),
        Format(name="npz", title="NPZ and NPY", module="_npz_folder", reader="NpzReader", episode_files=(".npz",), writer="NpzWriter", example="episodes_npz/",
               steps="T actions and rewards; T or T + 1 observations"),
        Format(name="table", title="CSV and Parquet", module="_table", reader="TableReader", writer="TableWriter", extra="arrow", suffixes=(".parquet", ".csv"), example="runs.parquet",
               steps="row t has observation t, the action after it and its reward; a last row without them is observation T + 1",
               lost="Parquet: channels with their own clock, residuals, extras. CSV: also types, lists, metadata, pictures"),
        Format(name="hdf5", title="HDF5 with a mapping", module="_mapped_hdf5", reader="MappedHdf5Reader", extra="hdf5", files=(".hdf5", ".h5"), example="data.h5",
               steps="as the mapping says; T or T + 1 observations, T actions"),
        Format(name="rerun", title="Rerun", module="_rerun", writer="RerunWriter", extra="rerun", suffixes=(".rrd",), is_one_episode=True, example="episode.rrd",
               steps="observations, actions and rewards on the timelines step and time",
               lost="residuals, extras, fields of points besides x, y, z; numbers in plots are 64-bit floats"),
    )
}  # fmt: skip


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        InvalidArgument: the name is not known; suggests similar names.
    """
    found = FORMATS.get(name)
    if found is None:
        raise InvalidArgument(
            f"unknown format {name!r}",
            expected=", ".join(FORMATS),
            hint=did_you_mean(name, FORMATS),
        )
    return found


def format_of(path: str) -> Format:
    """The format that the ending of a path stands for.

    Raises:
        InvalidArgument: it stands for none.
    """
    for form in FORMATS.values():
        if form.writes and path.lower().endswith(form.suffixes):
            return form
    raise InvalidArgument(
        "no format is known for this ending",
        path=path,
        expected=", ".join(
            one for form in FORMATS.values() if form.writes for one in form.suffixes
        ),
        hint="name the format with format=…",
        command="name the format with --to FORMAT",
    )


def module_of(form: Format) -> Any:  # noqa: ANN401 - a module
    """The module that reads and writes a format."""
    return importlib.import_module(f"wshard.convert.{form.module}")


def detect(path: str | os.PathLike[str]) -> Format:
    """Which format a file or folder is in, by its content. A folder of datasets has the format of these.

    Raises:
        InvalidArgument: it is in none of the formats that can be read; says what it looks like.
        ShardError: the file by which a format is known is damaged.
    """
    location = os.fspath(path)
    probe = Probe(location)
    form = _form_of(probe)
    if form is not None:
        return form
    if probe.damage is not None:
        raise probe.damage
    if probe.is_folder:
        return _format_below(location)
    error = InvalidArgument("not a dataset in a format that can be read", path=location)
    explain(error, probe.head)
    if error.hint is None:
        error.hint, error.command = _NAME_IT, _NAME_IT_THERE
    raise error


def _format_below(folder: str) -> Format:
    """The format of the datasets below a folder that is not one itself."""
    below, _ = _datasets_below(folder)
    places: dict[str, list[str]] = {}
    for name, found in below.items():
        if isinstance(found, Format):
            places.setdefault(found.name, []).append(name)
    sure = [name for name in places if name not in _GENERAL]
    if len(sure) == 1:
        return FORMATS[sure[0]]
    damage = next((one for one in below.values() if isinstance(one, ShardError)), None)
    if damage is not None and not sure:
        raise damage
    if not places:
        raise InvalidArgument(
            "not a dataset in a format that can be read",
            path=folder,
            found="a folder",
            hint=_NAME_IT,
            command=_NAME_IT_THERE,
        )
    first = (sure or list(places))[0]
    raise InvalidArgument(
        "the folder is not a dataset, but there are some below it",
        path=folder,
        found="; ".join(f"{name}: {_some(names)}" for name, names in places.items()),
        hint=f"convert one of them, or all of one format together with format={first!r}",
        command=f"convert one of them, or all of one format together with --from {first}",
    )


def _form_of(probe: Probe) -> Format | None:
    return next((form for form in readable() if _recognises(form, probe)), None)


def _recognises(form: Format, probe: Probe) -> bool:
    recognises = module_of(form).recognises
    if probe.is_folder and form.files:
        return has_file(probe.path, form.files, recognises, probe)
    return bool(recognises(probe))


def open_dataset(path: str, form: Format, options: ReadOptions) -> DatasetReader:
    """A dataset on this disk, open for reading. Close it."""
    check_options(options)
    # Refuses what is neither a file nor a folder: a library might wait for it.
    Probe(path).head  # noqa: B018 - read for its errors
    if not form.reads:
        raise InvalidArgument(f"{form.title} can be written, not read", path=path)
    return reader_of(form, path, options)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _datasets_below(
    folder: str, wanted: Format | None = None
) -> tuple[dict[str, Format | ShardError], list[str]]:
    """The formats of datasets in the folders below one that is not a dataset itself, and what else is there.

    Hidden folders and links to folders are left out. A dataset whose format cannot be known because it is damaged has
    the error in place of it. A folder in a general format may also hold datasets, unless that format is wanted.
    """
    found: dict[str, Format | ShardError] = {}
    strays: list[str] = []
    waiting = [""]
    others = 0
    while waiting:
        above = waiting.pop()
        inner = list[str]()
        for name in sorted(os.listdir(os.path.join(folder, above)), key=natural_key):
            path = os.path.join(folder, above, name)
            if name.startswith("."):
                continue
            if not os.path.isdir(path) or os.path.islink(path):
                if above[:-1] not in found:
                    strays.append(above + name)
                continue
            probe = Probe(path)
            form = _form_of(probe)
            is_sure = form is not None and (form == wanted or form.name not in _GENERAL)
            known = form if is_sure else probe.damage or form
            if known is not None:
                found[above + name] = known
            if not is_sure and probe.damage is None:
                inner.append(f"{above}{name}/")
                others += 1
        if others > _MOST_FOLDERS:
            raise LimitExceeded(
                "a folder that is not a dataset has very many folders below it",
                path=folder,
                expected=f"at most {_MOST_FOLDERS} that are not datasets",
                hint="convert each dataset by itself",
            )
        waiting += reversed(inner)
    return found, strays


def reader_of(form: Format, path: str, options: ReadOptions) -> DatasetReader:
    """A dataset, open for reading; or all datasets of this format below a folder."""
    kind: Callable[[str, ReadOptions], DatasetReader] = getattr(module_of(form), form.reader)
    if not os.path.isdir(path):
        return kind(path, options)
    if not _recognises(form, Probe(path)):
        below, strays = _datasets_below(path, form)
        parts = {
            name: os.path.join(path, name)
            for name, found in below.items()
            if found == form or isinstance(found, ShardError)
        }
        if form in below.values():
            strays += [name for name in below if name not in parts]
            return JoinedReader(path, options, parts, strays, partial(reader_of, form))
    if form.files:
        return JoinedReader(path, options, *named_files(path, form.files, form.beside), kind)
    return kind(path, options)


def readable() -> Iterable[Format]:
    """The formats that can be read, in the order in which they are tried."""
    return (form for form in FORMATS.values() if form.reads)
