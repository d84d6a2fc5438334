"""Zarr in the layout of diffusion policy: `data/<name>` holds the steps of all episodes, `meta/episode_ends` their ends.

Steps: row t of every array belongs to step t, so there are as many observations as actions. The observation after the
last action has no place. Zarr formats 2 and 3 are read, from a folder or a zip file; format 2 is written, because that
is what diffusion policy opens.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import zipfile
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import (
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
    SizeMismatch,
    UnsafePath,
)
from shard_format.extras import require
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import read_file
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._values import DType
from wshard.convert._arrays import PartOfRows, channel_of, text_channel
from wshard.convert._hdf5 import as_json_value
from wshard.convert._model import DatasetReader, DatasetWriter, inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.convert._model import Notes, Probe, ReadOptions, WriteOptions

ENDS: Final = "meta/episode_ends"
OWN_FACTS: Final = "meta/wshard"
"""Where our writer puts what the layout has no place for, as JSON: id, environment, rate and metadata of an episode."""
BLOCK: Final = "wshard_block"
"""The attribute of an array that says which block of an episode our writer made it of."""
_MOST_JSON: Final = 16 << 20
_MOST_DEPTH: Final = 16
_CHUNK_BYTES: Final = 2 << 20
_SMALL_VALUE: Final = 1024
_MOST_ABSENT: Final = 1000
_MOST_OVERHEAD: Final = 1 << 16
# Of a Blosc chunk: the sizes of its content, of a block, and of the whole.
_BLOSC_SIZES: Final = struct.Struct("<4xIII")
# Codecs that turn bytes or numbers into such. The others unpickle or make Python objects.
_CODECS: Final = frozenset(
    (
        *(
            "blosc",
            "zstd",
            "gzip",
            "zlib",
            "lz4",
            "lzma",
            "bz2",
            "lz4hc",
            "snappy",
            "zfpy",
            "pcodec",
        ),
        *(
            "bytes",
            "endian",
            "transpose",
            "crc32c",
            "crc32",
            "adler32",
            "fletcher32",
            "jenkins_lookup3",
        ),
        *("delta", "shuffle", "fixedscaleoffset", "quantize", "astype", "packbits", "bitround"),
        *("sharding_indexed", "vlen-utf8"),
    )
)
_PICTURES: Final = "imagecodecs_"


def recognises(probe: Probe) -> bool:
    """Whether it is a Zarr group, as a folder or in a zip file, with the ends of episodes."""
    if probe.is_folder:
        is_group = not probe.names.isdisjoint((".zgroup", "zarr.json", ".zmetadata"))
        return is_group and os.path.isdir(os.path.join(probe.path, *ENDS.split("/")))
    if not probe.head.startswith(b"PK"):
        return False
    try:
        with zipfile.ZipFile(probe.path) as archive:
            names = frozenset(archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False
    return not names.isdisjoint((f"{ENDS}/.zarray", f"{ENDS}/zarr.json"))


# --- what is in it, before zarr sees it


class _Files:
    """The descriptions of arrays and groups, in a folder or a zip file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._archive: zipfile.ZipFile | None = None
        if os.path.isdir(path):
            return
        try:
            self._archive = zipfile.ZipFile(path)
        except OSError as error:
            raise ShardIOError.wrap(error, "cannot read", path) from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise BadMetadata(f"not a zip file that can be read: {error}", path=path) from None
        self._folders: dict[str, set[str]] = {}
        for member in self._archive.infolist():
            self._check_member(member)
            parts = member.filename.split("/")
            for depth in range(min(len(parts), _MOST_DEPTH)):
                self._folders.setdefault("/".join(parts[:depth]), set()).add(parts[depth])

    def _check_member(self, member: zipfile.ZipInfo) -> None:
        name = member.filename
        if (
            name.startswith(("/", "\\"))
            or ".." in name.replace("\\", "/").split("/")
            or ":" in name
        ):
            raise UnsafePath("a member of the archive leads out of it", path=self.path, found=name)
        if member.file_size > DEFAULT_LIMITS.max_decompressed_bytes:
            raise LimitExceeded(
                "a member of the archive is too large",
                path=self.path,
                entry=name,
                expected=f"at most {DEFAULT_LIMITS.max_decompressed_bytes} bytes",
                found=member.file_size,
            )

    def names(self, folder: str) -> list[str]:
        """What is directly in a folder."""
        if self._archive is not None:
            return sorted(self._folders.get(folder, ()))
        place = os.path.join(self.path, folder)
        inside(self.path, folder, what=f"the folder {folder!r}")
        return sorted(os.listdir(place)) if os.path.isdir(place) else []

    def json(self, folder: str, name: str) -> dict[str, Any]:
        """A JSON object; empty if the file is missing."""
        path = f"{folder}/{name}" if folder else name
        if name not in self.names(folder):
            return {}
        try:
            if self._archive is None:
                text = read_file(inside(self.path, path, what=f"the file {path!r}"), _MOST_JSON)
            else:
                with self._archive.open(path) as file:
                    text = file.read(_MOST_JSON)
            found = json.loads(text)
        except (ValueError, RecursionError, zipfile.BadZipFile, NotImplementedError) as error:
            raise BadMetadata(f"not JSON: {error}", path=self.path, entry=path) from None
        if not isinstance(found, dict):
            raise BadMetadata("not a JSON object", path=self.path, entry=path)
        return found

    def arrays(
        self, folder: str, depth: int = _MOST_DEPTH
    ) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Path, format and description of every array below a folder."""
        if not depth:
            raise BadMetadata("groups are nested too deeply", path=self.path, entry=folder)
        for name in self.names(folder):
            path = f"{folder}/{name}"
            if self._archive is None and not os.path.isdir(os.path.join(self.path, path)):
                continue
            names = self.names(path)
            if ".zarray" in names:
                yield path, 2, self.json(path, ".zarray")
            elif "zarr.json" in names and self.json(path, "zarr.json").get("node_type") == "array":
                yield path, 3, self.json(path, "zarr.json")
            else:
                yield from self.arrays(path, depth - 1)

    def attributes(self, folder: str) -> dict[str, Any]:
        """The attributes of a group or array as strict JSON."""
        found = self.json(folder, ".zattrs") or self.json(folder, "zarr.json").get("attributes")
        return as_json_value(found) if isinstance(found, dict) else {}

    def has_files(self, folder: str, count: int) -> bool:
        """Whether there are more than `count` files below a folder."""
        if self._archive is not None:
            return sum(name.startswith(f"{folder}/") for name in self._archive.namelist()) > count
        seen = 0
        for _, _, files in os.walk(os.path.join(self.path, folder)):
            seen += len(files)
            if seen > count:
                return True
        return False

    def close(self) -> None:
        """Closes the archive."""
        if self._archive is not None:
            self._archive.close()


def check_array(facts: Mapping[str, Any], form: int, path: str, name: str) -> int:
    """Refuses an array that holds Python objects, or one chunk of which would fill the memory.

    Args:
        facts: its description.
        form: 2 or 3.
        path: the file, for errors.
        name: the array, for errors.

    Returns:
        The most bytes that a Blosc chunk may claim; 0 if chunks are stored with another codec.
    """
    try:
        shape = [int(size) for size in facts["shape"]]
        if form == 2:
            chunks, dtype = facts["chunks"], facts["dtype"]
            codecs = [*(facts.get("filters") or ()), facts.get("compressor")]
        else:
            chunks = facts["chunk_grid"]["configuration"]["chunk_shape"]
            dtype, codecs = facts["data_type"], list(facts["codecs"])
        chunk = prod(max(0, int(size)) for size in chunks)
        named = list(_codec_names(codecs))
        outermost = list(_codec_names(codecs[-1:]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadMetadata(
            f"the description of an array makes no sense: {error!r}", path=path, entry=name
        ) from None
    if any(size < 0 for size in shape):
        raise BadMetadata("an array has a negative size", path=path, entry=name, found=shape)
    for codec in named:
        if codec.startswith(_PICTURES):
            _register_picture_codecs(path, name, codec)
        elif codec not in _CODECS:
            raise InvalidArgument(
                "an array is stored with a codec that is not read, because it may run code or make objects",
                path=path,
                entry=name,
                found=codec,
                hint="store it again as numbers, with compressor Blosc and no object codec",
            )
    is_text = dtype == "string" or (isinstance(dtype, dict) and "string" in str(dtype.get("name")))
    if dtype == "|O" or is_text:
        if "vlen-utf8" not in named:
            raise InvalidArgument(
                "an array of Python objects is not read",
                path=path,
                entry=name,
                found=f"dtype {dtype}, codecs {', '.join(named) or 'none'}",
                hint="store it again as numbers of one type, or texts as vlen-utf8",
            )
        size = 8
    else:
        size = _item_size(dtype, path, name)
    if chunk * size > DEFAULT_LIMITS.max_decompressed_bytes:
        raise LimitExceeded(
            "the chunks of an array are too large",
            path=path,
            entry=name,
            expected=f"at most {DEFAULT_LIMITS.max_decompressed_bytes} bytes",
            found=f"{chunk * size} bytes",
            hint="store it again with smaller chunks",
        )
    if "blosc" not in named:
        return 0
    if outermost != ["blosc"] or named.count("blosc") > 1:
        raise InvalidArgument(
            "an array is stored with Blosc inside of another codec, where it cannot be checked",
            path=path,
            entry=name,
            hint="store it again with zstd, or with Blosc and without shards",
        )
    return 16 * chunk * size + _MOST_OVERHEAD


def _codec_names(codecs: Sequence[Any]) -> Iterator[str]:
    waiting = list(codecs)
    while waiting:
        codec = waiting.pop()
        if codec is None:
            continue
        if isinstance(codec, str):
            yield codec
            continue
        yield str(codec.get("id") or codec["name"]).removeprefix("numcodecs.")
        inner = codec.get("configuration")
        if isinstance(inner, dict):
            waiting += [*inner.get("codecs", ()), *inner.get("index_codecs", ())]


def _item_size(dtype: Any, path: str, name: str) -> int:  # noqa: ANN401 - JSON of a file
    """Bytes of one number, by the name of its type in either format."""
    if isinstance(dtype, str) and re.fullmatch(r"[<>|]?[a-zA-Z][a-zA-Z0-9\[\]]*", dtype):
        try:
            found = np.dtype("<u2" if dtype == "bfloat16" else dtype)
        except (TypeError, ValueError):
            found = np.dtype(object)
        if not found.hasobject and not found.fields:
            return found.itemsize
    raise InvalidArgument(
        "an array has a type that an episode cannot store",
        path=path,
        entry=name,
        found=str(dtype)[:200],
        hint="store it again as numbers of one type",
    )


def _register_picture_codecs(path: str, name: str, codec: str) -> None:
    try:
        module = require("imagecodecs.numcodecs", "zarr")
    except ShardError as error:
        error.hint = f"the array is stored with {codec}: install it with: pip install imagecodecs"
        raise error.located(path=path, entry=name) from None
    module.register_codecs(codec, verbose=False)


def open_store(path: str, blosc: Mapping[str, int]) -> Any:  # noqa: ANN401 - a store of zarr
    """The store of a folder or zip file. A link in a folder that leads elsewhere is refused.

    numcodecs believes what a Blosc chunk says about its size, and reads behind its end: what it says is compared here.

    Args:
        path: the folder or file.
        blosc: by the name of an array that is stored with Blosc, the most bytes that a chunk may claim.
    """
    storage = require("zarr.storage", "zarr")
    is_folder = os.path.isdir(path)
    base: Any = storage.LocalStore if is_folder else storage.ZipStore

    class CheckedStore(base):  # type: ignore[misc] # zarr is imported when it is used
        async def get(self, key: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - as zarr has it
            if is_folder:
                inside(path, key, what=f"the file {key!r}")
            found = await super().get(key, *args, **named)
            array = key
            while found is not None and array and array not in blosc:
                array = array.rpartition("/")[0]
            if (
                found is not None
                and array
                and not key.endswith((".zarray", ".zattrs", "zarr.json"))
            ):
                check_blosc(found.as_numpy_array(), blosc[array], path, key)
            return found

    return CheckedStore(path, read_only=True) if is_folder else CheckedStore(path, mode="r")


def check_blosc(chunk: NDArray[np.uint8], most: int, path: str, name: str) -> None:
    """Refuses a Blosc chunk that is not as long as it says, or says that it holds more than it may."""
    head = chunk[: _BLOSC_SIZES.size].tobytes()
    content, _, whole = _BLOSC_SIZES.unpack(head) if len(head) == _BLOSC_SIZES.size else (0, 0, -1)
    if whole != len(chunk) or content > most:
        raise BadValue(
            "a Blosc chunk is damaged",
            path=path,
            entry=name,
            expected=f"{len(chunk)} bytes stored, at most {most} decoded",
            found=f"{whole} and {content}" if head else "nothing",
        )


class ArrayRows:
    """Rows of an array; errors of the library become ours."""

    def __init__(self, array: Any, path: str, name: str) -> None:  # noqa: ANN401 - a zarr.Array
        self._array = array
        self._path = path
        self._name = name
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)

    def __getitem__(self, rows: slice, /) -> Any:  # noqa: ANN401 - an array
        try:
            return self._array[rows]
        except ShardError:
            raise
        except Exception as error:  # noqa: BLE001 - what codecs raise for damaged chunks differs
            raise BadValue(
                f"the data cannot be read: {str(error)[:300] or type(error).__name__}",
                path=self._path,
                entry=self._name,
            ) from None


# --- reading


class ZarrReader(DatasetReader):
    """Episodes of one replay buffer."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        zarr = require("zarr", "zarr")
        self._files = _Files(path)
        blosc: dict[str, int] = {}
        self._store = open_store(path, blosc)
        self._arrays: dict[str, ArrayRows] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._chunks: dict[str, list[int]] = {}
        self._pictures: dict[str, str] = {}
        self.format = 2
        for group in ("data", "meta"):
            for name, form, facts in self._files.arrays(group):
                self.format = form
                most = check_array(facts, form, path, name)
                if most:
                    blosc[name] = most
                try:
                    array = zarr.open_array(self._store, path=name, mode="r", zarr_format=form)
                    self._arrays[name] = ArrayRows(array, path, name)
                    self._chunks[name] = [int(size) for size in array.chunks]
                    self._check_chunks(name, array)
                except ShardError:
                    raise
                except Exception as error:  # noqa: BLE001 - as in ArrayRows
                    raise BadMetadata(
                        f"an array cannot be opened: {str(error)[:300]}", path=path, entry=name
                    ) from None
                self._attributes[name] = self._files.attributes(name)
                compressor = facts.get("compressor")
                codec = str(compressor.get("id")) if isinstance(compressor, dict) else ""
                if codec.startswith(_PICTURES):
                    self._pictures[name] = codec.removeprefix(_PICTURES)
        self._dataset = self._files.attributes("")
        self._ends = self._read_ends()
        self._own = self._read_own()

    def _check_chunks(self, name: str, array: Any) -> None:  # noqa: ANN401 - a zarr.Array
        """Refuses a large array that is hardly there: absent chunks are empty values, so a few bytes could claim any size."""
        if array.nbytes > DEFAULT_LIMITS.max_decompressed_bytes:
            shards = getattr(array, "shards", None) or array.chunks
            count = prod(
                -(-size // max(1, part)) for size, part in zip(array.shape, shards, strict=True)
            )
            if not self._files.has_files(name, count // _MOST_ABSENT):
                raise LimitExceeded(
                    "nearly all chunks of a large array are absent",
                    path=self.path,
                    entry=name,
                    expected=f"at least {count // _MOST_ABSENT} of {count} chunks",
                    hint="store only the steps that were recorded",
                )

    def _read_ends(self) -> NDArray[np.int64]:
        rows = self._arrays.get(ENDS)
        if rows is None:
            raise BadMetadata(
                f"{ENDS} is missing",
                path=self.path,
                expected="the ends of the episodes, one number for each",
                hint="only Zarr in the layout of diffusion policy can be read",
            )
        if len(rows.shape) != 1 or rows.dtype.kind not in "iu" or rows.shape[0] > 100_000_000:
            raise BadMetadata(
                f"{ENDS} is not a list of numbers",
                path=self.path,
                found=f"{rows.dtype}{list(rows.shape)}",
            )
        ends: NDArray[np.int64] = np.asarray(rows[:]).astype(np.int64)
        if len(ends) and (ends[0] < 0 or (np.diff(ends) < 0).any()):
            raise BadMetadata(f"{ENDS} runs backwards", path=self.path)
        total = int(ends[-1]) if len(ends) else 0
        for name, array in self._arrays.items():
            if name.startswith("data/") and (not array.shape or array.shape[0] < total):
                raise SizeMismatch(
                    f"an array has fewer rows than {ENDS} says",
                    path=self.path,
                    entry=name,
                    expected=total,
                    found=list(array.shape),
                )
        return ends

    def _read_own(self) -> list[dict[str, Any]]:
        """What our writer stored for each episode; empty for datasets of others."""
        rows = self._arrays.get(OWN_FACTS)
        if rows is None or rows.shape != (len(self._ends),):
            return []
        try:
            found = [json.loads(str(text)) for text in rows[:]]
            return [
                {"id": str(one["id"]), "env_id": str(one["env_id"]), "metadata": dict(one["metadata"]),
                 "tick_hz": one["tick_hz"], "epoch_ns": int(one["epoch_ns"])}
                for one in found
            ]  # fmt: skip
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise BadValue(
                f"not what our writer stores: {error!r}", path=self.path, entry=OWN_FACTS
            ) from None

    def names(self) -> Sequence[str]:
        return [f"episode_{number}" for number in range(len(self._ends))]

    def read(self, number: int, notes: Notes) -> Episode:
        start = int(self._ends[number - 1]) if number else 0
        stop = int(self._ends[number])
        episode = Episode(f"episode_{number}")
        episode.length = stop - start
        facts: dict[str, Any] = {
            "format": self.format,
            "fields": {},
            "chunks": {},
            "attributes": {},
        }
        for name, rows in self._arrays.items():
            if name.startswith("data/"):
                self._place(episode, name, PartOfRows(rows, start, stop), facts, notes)
                if rows.shape[0] > self._ends[-1]:
                    notes.dropped(f"{name} after the last episode", f"{ENDS} ends before")
            elif name not in (ENDS, OWN_FACTS):
                self._place_fact(episode, name, rows, number, facts, notes)
        if self._own:
            own = self._own[number]
            episode.id, episode.env_id = own["id"], own["env_id"]
            episode.metadata = own["metadata"]
            if own["tick_hz"] is not None:
                episode.timebase.tick_hz = float(own["tick_hz"])
            episode.timebase.epoch_ns = own["epoch_ns"]
            return episode
        if self._dataset:
            episode.metadata["dataset"] = self._dataset
        episode.metadata["zarr"] = {key: value for key, value in facts.items() if value}
        return episode

    def _place(
        self, episode: Episode, name: str, rows: PartOfRows, facts: dict[str, Any], notes: Notes
    ) -> None:
        """An array of steps."""
        stated = self._attributes[name].get(BLOCK)
        block = stated if self._own and isinstance(stated, str) else block_of(name, rows)
        lane, _, key = block.partition("/")
        try:
            channel = _channel(key or lane, rows, self.path)
        except InvalidArgument as error:
            notes.dropped(name, f"{error.problem}{error.facts}")
            return
        if block == "time/timestamps_ns":
            episode.timestamps_ns = channel.data
        elif block == "reward":
            episode.rewards = channel
        elif block == "terminated":
            episode.terminations = channel
        elif block == "truncated":
            episode.truncations = channel
        elif lane == "omen" and "/" in key:
            target, _, model = key.rpartition("/")
            episode.omens[target][model] = channel
        elif lane == "uncert" and key.count("/") >= 2:
            target, model, kind = key.rsplit("/", 2)
            episode.uncerts[target][model][kind] = channel
        else:
            (episode.actions if lane == "action" else episode.observations)[key] = channel
        notes.kept(name, block)
        if name in self._pictures:
            notes.decoded(name, f"{self._pictures[name]} pictures became pixels")
        if name_of(block) != name:
            facts["fields"][block] = name
        facts["chunks"][name] = self._chunks[name]
        if block == "reward":
            facts.setdefault("types", {})[name] = rows.dtype.str
        if self._attributes[name]:
            facts["attributes"][name] = self._attributes[name]

    def _place_fact(
        self,
        episode: Episode,
        name: str,
        rows: ArrayRows,
        number: int,
        facts: dict[str, Any],
        notes: Notes,
    ) -> None:
        """An array of `meta`: a row for each episode, or something about all of them."""
        of_episode = bool(rows.shape) and rows.shape[0] == len(self._ends)
        size = prod(rows.shape[1:] if of_episode else rows.shape)
        if size > _SMALL_VALUE or rows.dtype.kind not in "biufUSOT":
            notes.dropped(name, "neither steps nor a few values for each episode")
            return
        if of_episode:
            value = rows[number : number + 1][0]
        else:
            value = rows[...] if not rows.shape else rows[:]  # type: ignore[index] # one value
        if rows.dtype.kind in "iufb":
            facts.setdefault("types", {})[name] = rows.dtype.str
        kind = "episode" if of_episode else "all"
        facts.setdefault(kind, {})[name] = as_json_value(np.asarray(value)[()])
        notes.kept(name, f"metadata zarr.{kind}[{name!r}]")

    def close(self) -> None:
        self._files.close()
        self._store.close()


def _channel(name: str, rows: PartOfRows, path: str) -> Channel:
    if rows.dtype.kind in "UTOS":
        if len(rows.shape) != 1:
            raise InvalidArgument(
                "several texts at each step cannot be stored", found=list(rows.shape)
            )
        return text_channel(name, (one if isinstance(one, bytes) else str(one) for one in rows[:]))
    is_picture = len(rows.shape) == 4 and rows.shape[-1] == 3
    return channel_of(name, rows, path=path, modality=Modality.RGB if is_picture else None)


def block_of(name: str, rows: PartOfRows) -> str:
    """The block that an array of steps becomes."""
    key = name.removeprefix("data/")
    if (
        key in ("reward", "terminated", "truncated")
        and len(rows.shape) == 1
        and rows.dtype.kind in "biuf"
    ):
        return key
    if key == "timestamps_ns" and len(rows.shape) == 1 and rows.dtype.kind in "iu":
        return "time/timestamps_ns"
    if key == "action" or key.startswith("action/"):
        return f"action/{key.removeprefix('action/')}"
    return f"signal/{key}"


def name_of(block: str) -> str:
    """The array that a block becomes, unless it came from another. Diffusion policy expects no groups in `data`."""
    lane, _, key = block.partition("/")
    if lane in ("omen", "uncert"):
        return f"data/{block.replace('/', '_')}"
    if lane == "action" and key != "action":
        key = f"action_{key}"
    return f"data/{(key or lane).replace('/', '_')}"


# --- writing


class _Growing:
    """An array that grows by the steps of each episode. Whole chunks are written, so no chunk is written twice."""

    def __init__(self, array: Any, rows: int) -> None:  # noqa: ANN401 - a zarr.Array
        self.array = array
        self._rows = rows
        self._waiting: list[NDArray[Any]] = []
        self._count = 0
        self._written = 0

    def append(self, values: NDArray[Any]) -> None:
        """More rows."""
        self._waiting.append(values)
        self._count += len(values)
        if self._count >= self._rows:
            self._flush(self._count - self._count % self._rows)

    def _flush(self, count: int) -> None:
        if not count:
            return
        values = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        stop = self._written + count
        self.array.resize((stop, *self.array.shape[1:]))
        self.array[self._written : stop] = values[:count]
        self._waiting = [values[count:].copy()]
        self._written, self._count = stop, self._count - count

    def finish(self) -> None:
        """Writes the rest."""
        self._flush(self._count)


class ZarrWriter(DatasetWriter):
    """A replay buffer of diffusion policy, Zarr format 2. The first episode decides which arrays there are."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._zarr = require("zarr", "zarr")
        # The caller's path ends with something of its own while it is written.
        self._is_zip = ".zip" in os.path.basename(path)
        self._folder = f"{path}.folder" if self._is_zip else path
        self._root = self._zarr.open_group(self._folder, mode="w-", zarr_format=2)
        self._arrays: dict[str, _Growing] = {}
        self._is_started = False
        self._ends: list[int] = []
        self._own: list[str] | None = []
        self._facts: dict[str, list[Any]] = {}
        self._all: dict[str, Any] = {}
        self._types: dict[str, str] = {}

    def write(self, episode: Episode, notes: Notes) -> None:
        origin = episode.metadata.get("zarr")
        facts = origin if isinstance(origin, dict) else {}
        channels = self._channels(episode, facts, notes)
        if not self._is_started:
            self._start(episode, channels, facts)
        length = episode.length
        for name, growing in self._arrays.items():
            given = channels.pop(name, None)
            growing.append(_fitted(name, given, growing.array, length, notes))
        for name, (block, _) in channels.items():
            notes.dropped(block, f"the first episode of the dataset does not have the array {name}")
        self._ends.append((self._ends[-1] if self._ends else 0) + length)
        self._write_facts(episode, facts, notes)

    def _channels(
        self, episode: Episode, facts: Mapping[str, Any], notes: Notes
    ) -> dict[str, tuple[str, Channel]]:
        """The channels that can be written, by the names of their arrays."""
        length = episode.length
        stated = facts.get("fields")
        fields = stated if isinstance(stated, dict) else {}
        blocks = list(episode.blocks())
        if episode.timestamps_ns is not None:
            blocks.append(
                ("time/timestamps_ns", Channel("timestamps_ns", data=episode.timestamps_ns))
            )
        found: dict[str, tuple[str, Channel]] = {}
        for block, channel in blocks:
            if channel.has_own_clock:
                notes.dropped(
                    block, "the layout has one clock: resample it with ep.align() to keep it"
                )
            elif channel.length not in (length, length + 1):
                notes.dropped(block, f"{channel.length} entries for {length} steps")
            elif isinstance(channel, RaggedChannel) and not isinstance(channel, TextChannel):
                notes.dropped(block, "the layout has no place for a varying number of items")
            else:
                name = fields.get(block)
                if not isinstance(name, str) or not is_plain(name):
                    name = name_of(block)
                while name in found:
                    name += "_"
                found[name] = (block, channel)
                notes.kept(block, name)
                if channel.length > length:
                    notes.dropped(
                        f"{block} after the last step",
                        "the layout has one observation for each action",
                    )
                if channel.dtype_name is DType.BFLOAT16:
                    notes.cast(block, "bf16", "float32", "Zarr format 2 has no such type")
        for address in episode.parts:
            if address[0] in ("residual", "label", ""):
                notes.dropped("/".join(filter(None, address)), "the layout has no place for it")
        return found

    def _start(
        self,
        episode: Episode,
        channels: Mapping[str, tuple[str, Channel]],
        facts: Mapping[str, Any],
    ) -> None:
        self._is_started = True
        is_own = not facts
        for group in ("data", "meta"):
            self._root.require_group(group)
        dataset = episode.metadata.get("dataset")
        if not is_own and isinstance(dataset, dict):
            self._root.attrs.update(dataset)
        self._own = [] if is_own else None
        for name, (block, channel) in channels.items():
            dtype = _stored_type(channel)
            if block == "reward" and channel.dtype_name.is_float:
                # The next episode may need more bits: a file of ours stores rewards in as few as hold them.
                dtype = np.dtype("<f4" if _part(facts, "types", name) == "<f4" else "<f8")
            shape = () if isinstance(channel, TextChannel) else channel.step_shape
            row_bytes = max(1, prod(shape) * (64 if dtype is str else np.dtype(dtype).itemsize))
            rows = max(1, min(_CHUNK_BYTES // row_bytes, 1 << 16))
            stated = _part(facts, "chunks", name)
            chunks = (rows, *(max(1, size) for size in shape))
            if (
                isinstance(stated, list)
                and len(stated) == len(chunks)
                and all(type(n) is int and n > 0 for n in stated)
            ):
                chunks = tuple(stated)
            array = self._create(name, dtype, (0, *shape), chunks)
            attributes = _part(facts, "attributes", name)
            if isinstance(attributes, dict):
                array.attrs.update(attributes)
            elif is_own:
                array.attrs[BLOCK] = block
            self._arrays[name] = _Growing(array, chunks[0])

    def _create(
        self,
        name: str,
        dtype: Any,  # noqa: ANN401 - a dtype, or str
        shape: tuple[int, ...],
        chunks: tuple[int, ...],
    ) -> Any:  # noqa: ANN401 - a zarr.Array
        codecs = require("numcodecs", "zarr")
        compressor = codecs.Blosc(cname="zstd", clevel=5, shuffle=codecs.Blosc.SHUFFLE)
        return self._root.create_array(
            name, shape=shape, dtype=dtype, chunks=chunks, compressors=compressor
        )

    def _write_facts(self, episode: Episode, facts: Mapping[str, Any], notes: Notes) -> None:
        """What is not steps."""
        metadata = {key: value for key, value in episode.metadata.items() if key != "zarr"}
        if self._own is not None:
            own = {
                "id": episode.id,
                "env_id": episode.env_id,
                "tick_hz": episode.timebase.tick_hz,
                "epoch_ns": episode.timebase.epoch_ns,
                "metadata": metadata,
            }
            self._own.append(json.dumps(own, ensure_ascii=False))
            notes.kept("metadata", OWN_FACTS)
            return
        for key in metadata.keys() - {"dataset"}:
            notes.dropped(f"metadata {key}", "the layout of the dataset has no place for it")
        types = facts.get("types")
        self._types.update(types if isinstance(types, dict) else {})
        of_episode, of_all = facts.get("episode"), facts.get("all")
        for name, value in (of_episode if isinstance(of_episode, dict) else {}).items():
            self._facts.setdefault(name, []).append(value)
        if not self._all and isinstance(of_all, dict):
            self._all = dict(of_all)

    def finish(self) -> None:
        if not self._is_started:
            self._root.require_group("data")
        for growing in self._arrays.values():
            growing.finish()
        ends = np.array(self._ends, np.int64)
        self._root.create_array(ENDS, data=ends, chunks=(max(1, len(ends)),), compressors=None)
        if self._own:
            array = self._create(OWN_FACTS, str, (len(self._own),), (max(1, len(self._own)),))
            array[:] = np.array(self._own, object)
        whole = {name: value for name, value in self._facts.items() if len(value) == len(ends)}
        for name, value in {**self._all, **whole}.items():
            if is_plain(name) and name.startswith("meta/"):
                self._write_meta(name, value)
        self._root.store.close()
        if self._is_zip:
            self._pack()

    def _write_meta(self, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        values = np.asarray(value)
        if values.dtype.kind in "US":
            array = self._create(name, str, values.shape, tuple(max(1, n) for n in values.shape))
            array[...] = values.astype(object)
        elif values.dtype.kind in "biuf":
            typed = values.astype(self._types.get(name, values.dtype))
            self._root.create_array(name, data=typed, chunks=tuple(max(1, n) for n in values.shape))

    def _pack(self) -> None:
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED) as archive:
            for folder, _, files in os.walk(self._folder):
                for name in sorted(files):
                    file = os.path.join(folder, name)
                    archive.write(file, os.path.relpath(file, self._folder))
        shutil.rmtree(self._folder)

    def abandon(self) -> None:
        if self._is_zip:
            shutil.rmtree(self._folder, ignore_errors=True)


def is_plain(name: str) -> bool:
    """Whether a name of an array stays in `data` or `meta`."""
    parts = name.split("/")
    return len(parts) > 1 and parts[0] in ("data", "meta") and not {"", ".", ".."} & set(parts)


def _part(facts: Mapping[str, Any], key: str, name: str) -> Any:  # noqa: ANN401 - JSON
    found = facts.get(key)
    return found.get(name) if isinstance(found, dict) else None


def _stored_type(channel: Channel) -> Any:  # noqa: ANN401 - a dtype, or str
    if isinstance(channel, TextChannel):
        return str
    return np.dtype("<f4") if channel.dtype_name is DType.BFLOAT16 else channel.dtype


def _fitted(
    name: str,
    given: tuple[str, Channel] | None,
    array: Any,  # noqa: ANN401 - a zarr.Array
    length: int,
    notes: Notes,
) -> NDArray[Any]:
    """The steps of a channel as the array holds them; empty values if the episode has none that fit."""
    shape, dtype = tuple(array.shape[1:]), np.dtype(array.dtype)
    is_text = dtype.kind in ("O", "T")
    if given is not None:
        block, channel = given
        values = _values(channel, length)
        if values.shape[1:] == shape and (values.dtype.kind == "O") == is_text:
            if is_text or values.dtype == dtype:
                return values
            if np.can_cast(values.dtype, dtype, "safe"):
                if block != "reward":
                    notes.cast(block, values.dtype, dtype, "as in the first episode")
                return values.astype(dtype)
        own = f"{values.dtype}{list(values.shape[1:])}"
        notes.dropped(block, f"{own} in a dataset of {dtype}{list(shape)}")
    notes.filled(name, "empty values: the first episode of the dataset has this array")
    return np.full((length, *shape), "" if is_text else 0, object if is_text else dtype)


def _values(channel: Channel, length: int) -> NDArray[Any]:
    """The steps of a channel as an array that Zarr can hold."""
    if isinstance(channel, TextChannel):
        return np.array([*channel.data[:length], ""], object)[:-1]
    values: NDArray[Any] = channel.dtype_name.as_numbers(channel.read_steps(0, length))
    return values.view(np.bool_) if channel.dtype_name is DType.BOOL else values
