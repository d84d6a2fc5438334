"""Episodes in NumPy's own files.

A dataset is one of these:

- a folder of `.npz` files, one for each episode;
- one `.npz` file. If it has `episode_starts` or `is_first` (true at the first step of each episode) or `episode_ends`
  (the number of steps up to the end of each episode), it holds several episodes, otherwise one;
- a folder of `.npy` files, which is one episode; or a folder of such folders. Names of files in folders below are joined
  with `/`.

`wshard.convert._fields.address_of_field` says what the name of an array means; an array with any other name is an
observation. T is the length of actions, rewards or ends, or else of the observations. Arrays that have neither T entries
nor T + 1 are extras `npz/<name>`; single numbers and strings are in `metadata["npz"]["values"]`. `metadata["npz"]["names"]`
has what arrays were called, by block; our writer calls them so again.

Our writer makes a folder of uncompressed `.npz` files with the arrays `observations/<name>`, `actions/<name>`, `rewards`,
`terminations`, `truncations`, `timestamps_ns`, and everything else under the name of its block. Text is an array of
strings. Ragged channels, and text that NumPy cannot hold or would pad too much, are their items and `offsets/<block>`. The
array `wshard` is JSON (UTF-8) and describes the rest, so nothing is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.canonical_json import canonical
from shard_format.errors import BadMetadata, BadValue, InvalidArgument, LimitExceeded, ShardError
from shard_format.listing import natural_key
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import read_file
from wshard._blocks import ArrayBlock, Extra
from wshard._channel_rows import channel_from_row, row_fields
from wshard._channels import Channel, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._labels import Intervals
from wshard._lanes import (
    EXTRA,
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    Address,
    block_name,
    offsets_block,
    time_block,
)
from wshard._metadata import complete_provenance, episode_fields, parse_facts, parse_rows
from wshard._values import DType
from wshard.convert._arrays import PartOfRows, RowsBlock, drop_video_fields, splits
from wshard.convert._fields import SECONDS, address_of_field, seconds_as_ns
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader, DatasetWriter
from wshard.convert._npz import (
    ArrayFile,
    NpzFile,
    array_channel,
    is_zip,
    open_npy,
    plain_name,
    write_npz,
)
from wshard.convert._own import file_name
from wshard.residual import Residual

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard._blocks import Block
    from wshard._metadata import Row
    from wshard.convert._arrays import ForeignRows
    from wshard.convert._model import Notes, Probe, ReadOptions, WriteOptions

_OWN: Final = "wshard"
_NPY_MAGIC: Final = b"\x93NUMPY"
_STARTS: Final = ("episode_starts", "is_first")
_ENDS: Final = "episode_ends"
_FLAT: Final = (REWARD, TERMINATED, TRUNCATED)
_MOST_TEXT: Final = 1 << 16
_DEEPEST: Final = 8
_PIECE: Final = 32 << 20
_SMALL: Final = 1 << 16
_MOST_PADDED: Final = 1 << 20
# What other programs expect, for what our files call a block.
_MEMBERS: Final = {
    REWARD: "rewards",
    TERMINATED: "terminations",
    TRUNCATED: "truncations",
    TIMESTAMPS: "timestamps_ns",
    TICKS: "ticks",
}


def recognises(probe: Probe) -> bool:
    """Whether it is an `.npz` or `.npy` file, or a folder with some."""
    if not probe.is_folder:
        return probe.head.startswith(_NPY_MAGIC) or _holds_arrays(probe, probe.path, probe.head)
    for name in sorted(probe.names):
        path = os.path.join(probe.path, name)
        try:
            if os.path.isdir(path):
                if any(one.endswith(".npy") for one in os.listdir(path)):
                    return True
            elif name.endswith((".npz", ".npy")):
                head = read_file(path, 8)
                if head.startswith(_NPY_MAGIC) or _holds_arrays(probe, path, head):
                    return True
        except (OSError, ShardError):
            continue
    return False


def _holds_arrays(probe: Probe, path: str, head: bytes) -> bool:
    if not is_zip(head):
        return False
    try:
        file = NpzFile(path)
    except ShardError as error:
        probe.damage = probe.damage or error
        return False
    found = bool(file.names)
    file.close()
    return found


# --- reading


class Arrays:
    """The arrays of one file or folder, by name."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._archive = None if os.path.isdir(path) or path.endswith(".npy") else NpzFile(path)
        self.others = self._archive.others if self._archive else []
        self._files: dict[str, str] = {}
        if path.endswith(".npy"):
            self._files["observation"] = path
        elif self._archive is None:
            self._files = dict(_npy_files(path, "", self.others))
        self._open: dict[str, ArrayFile] = {}

    @property
    def names(self) -> Sequence[str]:
        return self._archive.names if self._archive else list(self._files)

    def __contains__(self, name: str) -> bool:
        return name in self._archive if self._archive else name in self._files

    def __getitem__(self, name: str) -> ArrayFile:
        if self._archive:
            return self._archive[name]
        if name not in self._open:
            self._open[name] = open_npy(self._files[name])
        return self._open[name]

    def close(self) -> None:
        if self._archive:
            self._archive.close()
        for file in self._open.values():
            file.close()


def _npy_files(folder: str, prefix: str, others: list[str]) -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir(folder), key=natural_key):
        path = os.path.join(folder, name)
        if name.endswith(".npy"):
            yield f"{prefix}{name.removesuffix('.npy')}", path
        elif os.path.isdir(path) and not os.path.islink(path) and prefix.count("/") < _DEEPEST:
            yield from _npy_files(path, f"{prefix}{name}/", others)
        else:
            others.append(f"{prefix}{name}")


class NpzReader(DatasetReader):
    """Episodes in NumPy's files."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._last: Arrays | None = None
        self._is_one_file = not os.path.isdir(path)
        self._places = [path] if self._is_one_file else _places(path)
        if not self._places:
            raise InvalidArgument("no .npz or .npy files in this folder", path=path)
        if self._places != [path]:
            own = {os.path.basename(place) for place in self._places}
            self.strays = sorted(name for name in os.listdir(path) if name not in own)

    @cached_property
    def _bounds(self) -> list[tuple[int, int]] | None:
        """The first and last step of each episode, of a file with several."""
        if not self._is_one_file:
            return None
        arrays = self._arrays(self.path)
        if _OWN in arrays:
            return None
        for name in (*_STARTS, _ENDS):
            if (
                name in arrays
                and len(arrays[name].shape) == 1
                and arrays[name].dtype.kind in "biuf"
            ):
                values = arrays[name].all()
                return _from_ends(values, self.path) if name == _ENDS else splits(values != 0)
        return None

    def names(self) -> Sequence[str]:
        if self._bounds is not None:
            return [f"episode_{number}" for number in range(len(self._bounds))]
        return [os.path.splitext(os.path.basename(place))[0] for place in self._places]

    def _arrays(self, place: str) -> Arrays:
        if self._last is None or self._last.path != place:
            # The one before is not closed: channels may still read from it.
            self._last = Arrays(place)
        return self._last

    def file_of(self, number: int) -> str:
        return self._places[number]

    def read(self, number: int, notes: Notes) -> Episode:
        if self._bounds is not None:
            arrays = self._arrays(self.path)
            start, stop = self._bounds[number]
            return _Foreign(arrays, f"episode_{number}", notes, (start, stop), number).episode(
                len(self._bounds)
            )
        arrays = self._arrays(self._places[number])
        if _OWN in arrays:
            try:
                return _read_own(arrays, notes)
            except ShardError as error:
                raise error.located(path=arrays.path) from None
        return _Foreign(arrays, self.names()[number], notes).episode()

    def close(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


def _places(folder: str) -> list[str]:
    """The files or folders of the episodes below a folder."""
    names = sorted(os.listdir(folder), key=natural_key)
    found = [os.path.join(folder, name) for name in names if name.endswith(".npz")]
    if found:
        return found
    if any(name.endswith(".npy") for name in names):
        return [folder]
    below = [os.path.join(folder, name) for name in names]
    return [
        path
        for path in below
        if os.path.isdir(path) and any(name.endswith(".npy") for name in os.listdir(path))
    ]


def _from_ends(ends: NDArray[Any], path: str) -> list[tuple[int, int]]:
    numbers = [0, *(int(end) for end in ends)]
    if ends.dtype.kind not in "iu" or sorted(set(numbers)) != numbers:
        raise BadValue(
            "the ends of episodes are not ascending whole numbers", path=path, entry=_ENDS
        )
    return list(itertools.pairwise(numbers))


class _Foreign:
    """An episode of arrays whose names say what they are."""

    def __init__(
        self,
        arrays: Arrays,
        name: str,
        notes: Notes,
        bounds: tuple[int, int] | None = None,
        number: int = 0,
    ) -> None:
        self._arrays, self._notes, self._bounds, self._number = arrays, notes, bounds, number
        self._episode = Episode(name)

    def episode(self, count: int = 1) -> Episode:
        arrays, notes = self._arrays, self._notes
        for name in arrays.others:
            notes.dropped(name, "not an array")
        shapes = {name: arrays[name].shape for name in arrays.names}
        total = _steps({name: shape for name, shape in shapes.items() if shape})
        if self._bounds is not None and self._bounds[1] > total:
            raise BadValue(
                "an episode has steps that the arrays do not have",
                path=arrays.path,
                expected=f"at most {total} steps",
                found=f"steps {self._bounds[0]} to {self._bounds[1]}",
            )
        start, stop = self._bounds or (0, total)
        self._episode.length = stop - start
        for name, shape in shapes.items():
            rows: ForeignRows = arrays[name]
            if not shape:
                self._add_fact(name, arrays[name].all())
            elif self._bounds is not None and name in (*_STARTS, _ENDS):
                notes.kept(name, "the episodes themselves")
            elif shape[0] == total or (
                shape[0] == total + 1 and self._bounds is None and _may_have_one_more(name)
            ):
                if self._bounds is not None:
                    rows = PartOfRows(rows, start, stop)
                self._add_steps(name, rows)
            elif self._bounds is not None and shape == (count,) and rows.dtype.kind in "biufUS":
                self._add_fact(name, np.asarray(rows[self._number : self._number + 1])[0])
            else:
                self._add_extra(name, rows)
        return self._episode

    def _add_fact(self, name: str, value: Any) -> None:  # noqa: ANN401 - one value of NumPy
        item = np.asarray(value)
        if item.dtype.kind not in "biufUS" or item.nbytes > 4 * _MOST_TEXT:
            self._notes.dropped(name, f"metadata cannot hold {item.dtype}")
            return
        self._facts.setdefault("values", {})[name] = as_json_value(item.item())
        self._facts.setdefault("dtypes", {})[name] = item.dtype.str
        self._notes.kept(name, f"metadata npz.values.{name}")

    @property
    def _facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._episode.metadata.setdefault("npz", {})
        return found

    def _kept(self, name: str, block: str) -> None:
        self._notes.kept(name, block)
        if member_of(block) != name:
            self._facts.setdefault("names", {})[block] = name

    def _add_extra(self, name: str, rows: ForeignRows) -> None:
        channel = array_channel(name, rows, self._arrays.path, name, self._notes)
        if channel is not None:
            key = f"npz/{plain_name(name, self._notes)}"
            channel.has_stated_length = True
            self._episode.extras[key] = channel
            self._kept(name, key)

    def _add_steps(self, name: str, rows: ForeignRows) -> None:
        episode, notes, path = self._episode, self._notes, self._arrays.path
        address = address_of_field(name)
        if len(address) == 1 and rows.shape[1:] == (1,):
            notes.cast(name, "columns of one number", "numbers")
            rows = np.asarray(rows[:]).reshape(-1)
        if len(address) == 1 and (len(rows.shape) != 1 or rows.dtype.kind not in "biuf"):
            address = ("signal", name)  # not one number a step
        if len(address) > 1:
            address = (*address[:1], *(plain_name(key, notes) for key in address[1:]))
        is_clock = address[0] in (TIMESTAMPS, SECONDS)
        if address in episode.parts or (is_clock and episode.timestamps_ns is not None):
            address = ("signal", plain_name(name, notes))
        lane = address[0]
        if lane in (TIMESTAMPS, SECONDS):
            times = np.asarray(rows[:])
            if lane == SECONDS:
                times = seconds_as_ns(times, name, path, notes)
            episode.timestamps_ns = times
            notes.kept(name, TIMESTAMPS)
            return
        channel = array_channel(address[-1], rows, path, name, notes)
        if channel is None:
            return
        if lane in (TERMINATED, TRUNCATED) and channel.dtype_name is not DType.BOOL:
            notes.cast(name, channel.dtype_name, "bool")
            channel = Channel(lane, data=channel.data != 0)
        episode.parts[address] = channel
        self._kept(name, block_name(address))


def _may_have_one_more(name: str) -> bool:
    return address_of_field(name)[0] in ("signal", "omen", "uncert")


def _steps(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """T: the length of actions, rewards or ends, else that which most observations have."""
    addresses = {name: address_of_field(name) for name in shapes}
    for lane in ("action", *_FLAT, TIMESTAMPS, SECONDS):
        for name, address in addresses.items():
            if address[0] == lane:
                return shapes[name][0]
    stated = [shape[0] for name, shape in shapes.items() if addresses[name] != ("signal", name)]
    lengths = Counter(stated or [shape[0] for shape in shapes.values()])
    return max(lengths, key=lambda length: (lengths[length], length), default=0)


# --- our own files


def _read_own(arrays: Arrays, notes: Notes) -> Episode:
    """An episode that our writer stored."""
    described = _parse(arrays[_OWN])
    facts = parse_facts(described["episode"], {})
    episode = Episode.from_facts(facts)
    parts = episode.parts

    for row in parse_rows({"channels": described["channels"]}):
        member = described["members"].get(row.block, member_of(row.block))
        found: dict[str, Block] = {}
        for key in ("offsets_block", "time_block"):
            name = row.fields.get(key)
            if name is not None and name in arrays:
                found[name] = _block(arrays, name, name, DType.INT64)
        if member in arrays and arrays[member].dtype.kind == "U":
            block = _text_blocks(arrays[member], row, found)
        else:
            block = _block(arrays, member, row.block, row.dtype)
        address: Address = (row.block,) if row.block in _FLAT else row.address
        channel = channel_from_row(row, address[-1], block, facts.length, found.get)
        if block.nbytes <= _SMALL:  # as `channel_of` has it
            _ = channel.values if isinstance(channel, RaggedChannel) else channel.data
            _ = channel.timestamps_ns
        parts[address] = channel
        notes.kept(member, row.block)
    for lane, dtype in ((TIMESTAMPS, DType.INT64), (TICKS, DType.INT32)):
        if member_of(lane) in arrays:
            clock = _block(arrays, member_of(lane), lane, dtype)
            parts[lane,] = Channel.from_source(lane, clock, dtype, (), facts.length)
            _ = parts[lane,].data
    for name, fields in described["labels"].items():
        episode.labels[name] = Intervals.from_fields(fields)
    for name, one in described["residuals"].items():
        scales = f"residual/{name}/scales"
        episode.residuals[name] = Residual(
            one["channel"],
            one["type"],
            arrays[f"residual/{name}"].all(),
            arrays[scales].all() if scales in arrays else None,
            model=one["model"],
            window=one["window"],
        )
    for name, one in described["extras"].items():
        data = arrays[f"extras/{name}"].all().tobytes()
        parts[EXTRA, name] = Extra(name, data, **one)
    if described["provenance"] is not None:
        episode.provenance = complete_provenance(described["provenance"])
    return episode


_PARTS: Final[dict[str, type]] = {
    "episode": dict,
    "channels": list,
    "members": dict,
    "labels": dict,
    "residuals": dict,
    "extras": dict,
}


def _parse(array: ArrayFile) -> dict[str, Any]:
    """The description in one of our files, checked as far as the code above relies on it."""
    if array.dtype != np.uint8 or len(array.shape) != 1:
        raise BadMetadata("the description is not text", entry=_OWN, found=array.dtype)
    if array.shape[0] > DEFAULT_LIMITS.max_json_bytes:
        raise LimitExceeded("the description is too long", entry=_OWN, found=array.shape[0])
    try:
        found = json.loads(array.all().tobytes())
        _check(found)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadMetadata(f"the description is damaged: {error}", entry=_OWN) from None
    return found  # type: ignore[no-any-return] # a dictionary, or it has no keys


def _check(found: Any) -> None:  # noqa: ANN401 - any JSON
    for key, kind in _PARTS.items():
        if not isinstance(found[key], kind):
            raise TypeError(f"{key!r} is not a {kind.__name__}")
    for one in found["residuals"].values():
        texts = (one["channel"], one["type"], one["model"])
        if not all(isinstance(text, str) for text in texts) or type(one["window"]) is not int:
            raise TypeError("a residual is not described")
    for one in found["extras"].values():
        numbers = one.values()
        if one.keys() != {"content_type", "tag_bits"} or any(type(n) is not int for n in numbers):
            raise TypeError("an extra is not described")
    if found["provenance"] is not None and not isinstance(found["provenance"], dict):
        raise TypeError("'provenance' is not an object")


def _text_blocks(array: ArrayFile, row: Row, found: dict[str, Block]) -> Block:
    """The block of a text channel that is stored as strings; puts its offsets into `found`."""
    texts = [text.encode(errors="replace") for text in np.atleast_1d(array.all()).tolist()]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    name = row.fields.get("offsets_block") or offsets_block(row.block)
    found[name] = ArrayBlock(name, offsets)
    return ArrayBlock(row.block, np.frombuffer(b"".join(texts), np.uint8))


def _block(arrays: Arrays, member: str, block: str, dtype: DType) -> Block:
    rows: ForeignRows = arrays[member]
    if not rows.shape:
        raise BadValue("an array has no steps", entry=member)
    if dtype is DType.BFLOAT16:
        rows = _Bits(rows, dtype.numpy_dtype)
    return RowsBlock(block, rows, dtype, arrays.path)


class _Bits:
    """Rows of bf16, which NumPy's files cannot hold, from the bits that they hold instead."""

    def __init__(self, rows: ForeignRows, dtype: np.dtype[Any]) -> None:
        if rows.dtype.itemsize != dtype.itemsize:
            raise BadValue("bits of another width", expected=dtype, found=rows.dtype)
        self._rows, self.shape, self.dtype = rows, rows.shape, dtype

    def __getitem__(self, rows: slice, /) -> NDArray[Any]:
        bits = np.ascontiguousarray(self._rows[rows])
        return bits.view(self.dtype)


def member_of(block: str) -> str:
    """What our writer calls the array of a block."""
    if block in _MEMBERS:
        return _MEMBERS[block]
    lane, _, name = block.partition("/")
    return f"{_LANE_NAMES[lane]}/{name}" if name and lane in _LANE_NAMES else block


_LANE_NAMES: Final = {"signal": "observations", "action": "actions"}
_Member = tuple[np.dtype[Any], tuple[int, ...], "Iterator[Any] | list[Any]"]


# --- writing


class NpzWriter(DatasetWriter):
    """A folder with an `.npz` file for each episode."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        os.makedirs(path)

    def write(self, episode: Episode, notes: Notes) -> None:
        path = os.path.join(self.path, f"{file_name(episode.id)}.npz")
        if os.path.exists(path):
            raise InvalidArgument("two episodes have the same id", path=path, entry=episode.id)
        described: dict[str, Any] = {
            "episode": {**episode.unknown_fields.episode, **episode_fields(episode.facts)},
            "channels": [],
            "members": {},
            "labels": {},
            "residuals": {},
            "extras": {},
            "provenance": episode.provenance,
        }
        members: dict[str, _Member] = {}
        names, values = _former(episode)
        for address, part in episode.parts.items():
            block = block_name(address)
            if isinstance(part, Intervals):
                described["labels"][address[1]] = part.to_fields()
                notes.kept(block, f"{_OWN}, labels")
            elif isinstance(part, Residual):
                described["residuals"][address[1]] = _residual_members(address[1], part, members)
                notes.kept(block, f"residual/{address[1]}")
            elif isinstance(part, Extra):
                described["extras"][address[1]] = {
                    "content_type": int(part.content_type),
                    "tag_bits": int(part.tag_bits),
                }
                members[f"extras/{address[1]}"] = _member(np.asarray(part.data))
                notes.kept(block, f"extras/{address[1]}")
            elif address in ((TICKS,), (TIMESTAMPS,)):
                members[member_of(block)] = _member(part.data)
                notes.kept(block, member_of(block))
            else:
                member = names.get(block, member_of(block))
                if member != member_of(block):
                    described["members"][block] = member
                row = _describe(address, part, episode.length, member, members)
                drop_video_fields(row, part, block, notes)
                described["channels"].append(row)
                notes.kept(block, member)
        members |= {name: _member(value) for name, value in values.items() if name not in members}
        members[_OWN] = _member(np.frombuffer(canonical(described), np.uint8))
        write_npz(path, members, compress=False)

    def finish(self) -> None:
        pass


def _member(array: NDArray[Any]) -> _Member:
    return array.dtype, array.shape, [array]


def _former(episode: Episode) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """What arrays were called, by block, and single values, in the file that an episode was read from."""
    facts = episode.metadata.get("npz")
    facts = facts if isinstance(facts, dict) else {}
    names, stored, dtypes = (facts.get(key) for key in ("names", "values", "dtypes"))
    blocks = {block_name(address) for address in episode.parts}
    taken = {_OWN, *(member_of(block) for block in blocks)}
    found: dict[str, str] = {}
    for block, name in (names if isinstance(names, dict) else {}).items():
        if block in blocks and _is_plain(name) and name not in taken:
            found[block] = name
            taken.add(name)
    values: dict[str, NDArray[Any]] = {}
    for name, value in (stored if isinstance(stored, dict) else {}).items():
        dtype = dtypes.get(name) if isinstance(dtypes, dict) else None
        if _is_plain(name) and name not in taken and isinstance(value, (bool, int, float, str)):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                item = np.array(value, dtype if isinstance(dtype, str) else None)
                if item.dtype.kind in "biufUS" and item.dtype.itemsize:
                    values[name] = item
    return found, values


def _is_plain(name: object) -> bool:
    """Whether a member of an archive may be called so."""
    if not isinstance(name, str) or "\0" in name or "\\" in name:
        return False
    return not {"", ".", ".."} & set(name.split("/"))


def _describe(
    address: Address, channel: Channel, length: int, member: str, members: dict[str, _Member]
) -> dict[str, Any]:
    """The row of a channel; adds its arrays to `members`."""
    block = block_name(address)
    row_id = address[1] if address[0] in ("signal", "action") else block
    fields = row_fields(channel, row_id, block, length)
    if address[0] in ("omen", "uncert"):
        fields.update(zip(("channel", "model", "type"), address[1:], strict=False))
    if isinstance(channel, RaggedChannel):
        fields["offsets_block"] = offsets_block(block)
    strings = _strings(channel) if isinstance(channel, TextChannel) else None
    if strings is not None:
        members[member] = _member(strings)
    elif isinstance(channel, RaggedChannel):
        members[offsets_block(block)] = _member(channel.offsets)
        members[member] = _member(_bits(channel.values, channel.dtype_name))
    else:
        dtype = np.dtype("<u2") if channel.dtype_name is DType.BFLOAT16 else channel.dtype
        pieces = (
            _bits(channel.read_steps(start, stop), channel.dtype_name)
            for start, stop in channel.step_ranges(_PIECE)
        )
        members[member] = (dtype, channel.shape, pieces)
    if channel.has_own_timestamps:
        fields["time_block"] = time_block(block)
        times = channel.timestamps_ns
        assert times is not None
        members[time_block(block)] = _member(times)
    return fields


def _strings(channel: TextChannel) -> NDArray[Any] | None:
    """Text as an array of strings; None if NumPy would lose something, or need much more memory."""
    texts = channel.data
    longest = max(map(len, texts), default=0)
    if not longest or any(text.endswith("\0") for text in texts):
        return None
    if 4 * longest * len(texts) > max(_MOST_PADDED, 16 * channel.nbytes):
        return None
    return np.array(texts, dtype=f"<U{longest}")


def _bits(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    return values.view("<u2") if dtype is DType.BFLOAT16 else values


def _residual_members(name: str, residual: Residual, members: dict[str, _Member]) -> dict[str, Any]:
    members[f"residual/{name}"] = _member(residual.data)
    if residual.scales is not None:
        members[f"residual/{name}/scales"] = _member(residual.scales)
    return {
        "channel": residual.channel_id,
        "type": residual.type,
        "model": residual.model,
        "window": residual.window,
    }
