"""Overviews of long channels and posters of cameras, in a file beside the episode (spec/wshard.md, section 18).

    from wshard.overviews import open_overviews, write_overviews

    write_overviews("ep_001.wshard")                       # makes ep_001.wshard.overview
    with open_overviews("ep_001.wshard") as overviews:
        joints = overviews["signal/joint_pos"]             # at most 4096 buckets
        plot(joints.minimum, joints.maximum)

An overview is derived from the episode and stays outside its identity: you can delete the file and make it again at any
time. Each overview has the checksum of its channel, so readers ignore the overview of a channel that was changed later.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format import ShardReader, ShardWriter, WriterOptions, display
from shard_format.canonical_json import canonical
from shard_format.errors import (
    BadMetadata,
    BadProfile,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    SizeMismatch,
)
from shard_format.extras import require
from shard_format.images import image_size
from shard_format.registry import DEFAULT_LIMITS, ContentType, Limits, Role
from shard_format.sources import is_url
from wshard._blocks import FileBlock
from wshard._channels import Channel, is_frames
from wshard._episode import Episode
from wshard._folders import OVERVIEW_SUFFIX
from wshard._lanes import DONE, REWARD, TERMINATED, TICKS, TRUNCATED, not_found
from wshard._metadata import LARGEST, parse_dtype_and_shape, wrong
from wshard._reader import episode_of
from wshard._sidecar import attach, sidecar_files
from wshard._values import DType, read_only

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Self

__all__ = ["Overview", "OverviewFile", "Poster", "open_overviews", "write_overviews"]

META_OVERVIEW: Final = "meta/overview"
_MOST_BUCKETS: Final = 4096
_MOST_VALUES: Final = 256
_MOST_POSTERS: Final = 1024
_LONGEST_SIDE: Final = 4096
# A shorter channel is read as fast as its overview.
_WORTHWHILE: Final = 4 * _MOST_BUCKETS
_POSTER_SIDE: Final = 640
_SMALL_SIDE: Final = 160
_SMALL_POSTERS: Final = 64
_WINDOW_BYTES: Final = 32 << 20
_JPEG_QUALITY: Final = 85
_WIDE_MEANS: Final = (DType.FLOAT64, DType.INT64, DType.INT32, DType.UINT64, DType.UINT32)
_ENDS: Final = (DONE, TERMINATED, TRUNCATED)


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """The minimum, maximum and mean of a channel over ranges of its entries. The arrays are [buckets, ...]."""

    block: str
    """The channel's entry."""
    length: int
    """How many entries the channel has."""
    steps_per_bucket: int
    """Bucket i is about the entries from `i * steps_per_bucket` on; the last one may have fewer."""
    minimum: NDArray[Any]
    """In the dtype of the channel; NaN where a bucket has nothing else."""
    maximum: NDArray[Any]
    mean: NDArray[Any]
    """float32 or float64."""


@dataclass(frozen=True, slots=True)
class Poster:
    """A small image of a camera; `OverviewFile.read_poster` gives the JPEG or PNG file."""

    number: int
    block: str
    """The camera."""
    step: int
    """The entry that it shows."""
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class DrawableBlock:
    """A block that an overview can be about, as a reader of the episode sees it."""

    dtype: DType
    shape: tuple[int, ...]
    length: int
    is_dense: bool
    entry: FileBlock
    channel: Channel | None = None

    @property
    def values(self) -> int:
        """How many numbers a step has."""
        return prod(self.shape)

    @property
    def steps_per_bucket(self) -> int:
        """How many entries a bucket covers."""
        return max(1, -(-self.length // _MOST_BUCKETS))

    @property
    def buckets(self) -> int:
        """How many buckets there are."""
        return -(-self.length // self.steps_per_bucket)

    @property
    def mean_dtype(self) -> np.dtype[Any]:
        """The type of the means."""
        return np.dtype("<f8" if self.dtype in _WIDE_MEANS else "<f4")

    @property
    def facts(self) -> tuple[DType, tuple[int, ...], int, int, int]:
        """What the row of the block must say (W-OVW-4)."""
        row = self.entry.reader.row_of(self.entry.name)
        return self.dtype, self.shape, self.length, row.orig_size, row.crc32c

    @property
    def can_fit(self) -> bool:
        """Whether a change of the block would be noticed."""
        row = self.entry.reader.row_of(self.entry.name)
        return row.crc32c != 0 or not row.orig_size

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Entries as [entries, values], in a dtype that NumPy computes with."""
        shape = (stop - start, self.values)
        stored = self.dtype.stored_dtype
        if self.entry.is_cut_cheaply:
            found = self.entry.part(stored, shape, start * self.values * self.dtype.size)
        else:
            found = self.entry.array(stored, (self.length, self.values))[start:stop]
        if self.dtype is DType.BOOL:
            found = found != 0
        return self.dtype.as_numbers(found)


# --- reading


class OverviewFile(Mapping[str, Overview]):
    """The overviews of an episode by block name, and the posters of its cameras.

    Has only what matches the episode: `stale` names the blocks that were changed after their overview was made.

    Owns: the reader of the overview file, and the episode if it was opened for this.
    """

    def __init__(self, reader: ShardReader, episode: Episode, *, owns_episode: bool) -> None:
        self._reader = reader
        self._episode = episode if owns_episode else None
        rows, posters = _parse(reader)
        self.blocks = {
            name: block
            for name, block in drawable_blocks(episode).items()
            if block.can_fit and rows.get(name) == block.facts
        }
        """Every block with a row that fits, also those without an overview."""
        self.stale = sorted(rows.keys() - self.blocks.keys())
        """The blocks that were changed, or removed, after their overview was made."""
        self.posters = [poster for poster in posters if poster.block in self.blocks]
        """The images of cameras; the largest of a camera is its poster, others show it at other steps."""

    @property
    def path(self) -> str:
        """The overview file."""
        return self._reader.name

    def __iter__(self) -> Iterator[str]:
        return (block for block in self.blocks if f"overview/{block}" in self._reader)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.blocks and f"overview/{name}" in self._reader

    def __getitem__(self, name: str) -> Overview:
        """The overview of a block such as `signal/joint_pos`.

        Raises:
            EntryNotFound: no overview of this block fits the episode.
            SizeMismatch: it has a different size than it must have, or another rule is broken; the episode can be read.
        """
        entry = f"overview/{name}"
        if name not in self:
            raise not_found(f"no overview of {name!r} in {self.path}", name, list(self))
        block = self.blocks[name]
        self._check(block, entry)
        data = np.frombuffer(self._reader.read_view(entry), np.uint8)
        count, size = block.values * block.buckets, block.dtype.size
        at = count * block.mean_dtype.itemsize
        cuts = (0, at), (at, at + count * size), (at + count * size, len(data))
        types = (block.mean_dtype, *(block.dtype.stored_dtype,) * 2)
        arrays = []
        for (start, stop), dtype in zip(cuts, types, strict=True):
            flat = data[start:stop].view(dtype).reshape(block.values, block.buckets)
            arrays.append(flat.T.reshape(block.buckets, *block.shape).copy())
        if block.dtype is DType.BOOL:
            arrays[1:] = [array != 0 for array in arrays[1:]]
        mean, minimum, maximum = map(read_only, arrays)
        return Overview(name, block.length, block.steps_per_bucket, minimum, maximum, mean)

    def _check(self, block: DrawableBlock, entry: str) -> None:
        """W-OVW-5."""
        where: dict[str, Any] = {"path": self.path, "entry": entry, "rule": "W-OVW-5"}
        if not block.is_dense:
            raise BadProfile("an overview of a channel that is not dense", **where)
        if block.values > _MOST_VALUES:
            raise LimitExceeded(
                "an overview of too many values a step",
                expected=f"at most {_MOST_VALUES}",
                found=block.values,
                **where,
            )
        each = block.mean_dtype.itemsize + 2 * block.dtype.size
        expected = block.values * block.buckets * each
        found = self._reader.row_of(entry).orig_size
        if found != expected:
            raise SizeMismatch(
                "the overview has a different size than its channel asks for",
                expected=f"{expected} bytes: mean, minimum and maximum of {block.values} values in "
                f"{block.buckets} buckets",
                found=f"{found} bytes",
                hint="make it again with 'wshard repack --overview'",
                **where,
            )

    def read_poster(self, poster: Poster) -> bytes:
        """The JPEG or PNG file of a poster.

        Raises:
            BadValue: it is not an image of the stated size, or another rule is broken; the episode can be read.
        """
        entry = f"poster/{poster.number}"
        where: dict[str, Any] = {"path": self.path, "entry": entry, "rule": "W-OVW-6"}
        if entry not in self._reader:
            raise BadProfile("the entry of a poster is missing", **where)
        data = self._reader.read_entry(entry)
        found = image_size(data)
        if found != (poster.width, poster.height):
            raise BadValue(
                "a poster is not the image that is described",
                expected=f"a JPEG or PNG file of {poster.width} × {poster.height} pixels",
                found="another file" if found is None else f"{found[0]} × {found[1]} pixels",
                **where,
            )
        return data

    def close(self) -> None:
        """Closes the files."""
        self._reader.close()
        if self._episode is not None:
            self._episode.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OverviewFile {self.path!r}: {len(self)} overviews, {len(self.posters)} posters>"


def open_overviews(
    source: str | os.PathLike[str] | Episode,
    *,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> OverviewFile | None:
    """Opens the overviews of an episode; None if it has no overview file.

    Args:
        source: the path or URL of the episode, or an open episode. What you changed in an open episode has no overview.
        limits: as for `load_wshard`.
        storage_options: for a URL, as for `load_wshard`.

    Raises:
        BadMetadata: the overview file is damaged; the episode can still be read.
    """
    if isinstance(source, Episode):
        path = None if source.origin is None else source.origin.path
    else:
        path = os.fspath(source)
    reader = None if path is None else _open_beside(path, limits, storage_options)
    if reader is None:
        return None
    episode: Episode | None = source if isinstance(source, Episode) else None
    try:
        if episode is None:
            assert path is not None
            episode = _open_episode(path, limits, storage_options)
        return OverviewFile(reader, episode, owns_episode=episode is not source)
    except BaseException:
        reader.close()
        if episode is not None and episode is not source:
            episode.close()
        raise


def overview_path(path: str) -> str:
    """Where the overview file of an episode is."""
    if is_url(path):
        before, question, query = path.partition("?")
        return f"{before}{OVERVIEW_SUFFIX}{question}{query}"
    return path + OVERVIEW_SUFFIX


def _open_beside(
    path: str, limits: Limits, storage_options: Mapping[str, Any] | None
) -> ShardReader | None:
    if "\0" in path:  # the name of a part of another file
        return None
    # A server that may not list its files says of a missing one that it is forbidden.
    forbidden = [errno.EACCES] if is_url(path) else []
    absent = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, *forbidden)
    try:
        return ShardReader(overview_path(path), limits=limits, storage_options=storage_options)
    except OSError as error:
        if error.errno in absent:
            return None
        raise


def _open_episode(
    path: str, limits: Limits, storage_options: Mapping[str, Any] | None = None
) -> Episode:
    """The episode of one file, with its sidecars; sidecars that do not fit are left out."""
    reader = ShardReader(path, limits=limits, storage_options=storage_options)
    if reader.role == Role.MANIFEST:
        reader.close()
        raise InvalidArgument(
            "an episode in chunks has no overview of its own",
            path=path,
            hint="name one of its chunks",
        )
    try:
        episode = episode_of(reader)
        attach(episode, sidecar_files(path))
    except BaseException:
        reader.close()
        raise
    return episode


def drawable_blocks(episode: Episode) -> dict[str, DrawableBlock]:
    """The blocks of an episode's files that an overview can be about."""
    found: dict[str, DrawableBlock] = {}
    origin = episode.origin
    if origin is None or origin.chunks:
        return found
    for reader in (origin.reader, *origin.sidecars):
        for name in reader.names():
            if name in _ENDS:
                dtype = DType.UINT8
            elif name == REWARD:
                dtype = DType.FLOAT32
            elif name.startswith("time/") and name != TICKS:
                dtype = DType.INT64
            else:
                continue
            entry = FileBlock.of(reader, name)
            found[name] = DrawableBlock(dtype, (), entry.nbytes // dtype.size, True, entry)
    for _, channel in episode.blocks():
        source = channel.source
        if isinstance(source, FileBlock) and source.name not in found:
            is_dense = channel.layout == "dense"
            facts = channel.dtype_name, channel.step_shape, channel.length
            found[source.name] = DrawableBlock(*facts, is_dense, source, channel)
    return found


_Facts = tuple[DType, tuple[int, ...], int, int, int]


def _parse(reader: ShardReader) -> tuple[dict[str, _Facts], list[Poster]]:
    """The rows and the posters of an overview file (W-OVW-1 to W-OVW-3)."""
    if META_OVERVIEW not in reader:
        raise BadProfile(
            "not an overview file", path=reader.name, entry=META_OVERVIEW, rule="W-OVW-1"
        )
    fields = reader.read_json(META_OVERVIEW, rule="W-OVW-2")
    try:
        return _parse_fields(fields)
    except BadMetadata as error:
        raise error.located(path=reader.name, entry=META_OVERVIEW) from None


def _parse_fields(fields: dict[str, Any]) -> tuple[dict[str, _Facts], list[Poster]]:
    _integer("'v'", fields.get("v"), 1, 1, "W-OVW-2")
    blocks, listed = fields.get("blocks"), fields.get("posters", [])
    if not isinstance(blocks, dict):
        raise wrong("'blocks'", blocks, "an object", "W-OVW-2")
    rows = {name: _parse_row(name, row) for name, row in blocks.items()}
    if not isinstance(listed, list) or len(listed) > _MOST_POSTERS:
        raise wrong("'posters'", listed, f"a list of at most {_MOST_POSTERS} objects", "W-OVW-3")
    return rows, [_parse_poster(number, row, rows) for number, row in enumerate(listed)]


def _parse_row(name: str, row: object) -> _Facts:
    if not isinstance(row, dict):
        raise wrong(f"the row of {name!r}", row, "an object", "W-OVW-2")
    if row.get("shape") is None:
        raise wrong(f"'shape' of {name!r}", None, "a list of integers >= 0", "W-OVW-2")
    try:
        dtype, shape = parse_dtype_and_shape(row, name, META_OVERVIEW)
    except BadMetadata as error:
        error.rule = "W-OVW-2"
        raise
    length, size = (
        _integer(f"{key!r} of {name!r}", row.get(key), 0, LARGEST, "W-OVW-2")
        for key in ("length", "orig_size")
    )
    crc32c = _integer(f"'crc32c' of {name!r}", row.get("crc32c"), 0, 2**32 - 1, "W-OVW-2")
    return dtype, shape, length, size, crc32c


def _parse_poster(number: int, row: object, rows: Mapping[str, _Facts]) -> Poster:
    block = row.get("block") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(block, str) or block not in rows:
        raise wrong(f"poster {number}", row, "an object with a 'block' that has a row", "W-OVW-3")
    step, width, height = (
        _integer(f"{key!r} of poster {number}", row.get(key), least, most, "W-OVW-3")
        for key, least, most in (
            ("step", 0, rows[block][2] - 1),
            ("width", 1, _LONGEST_SIDE),
            ("height", 1, _LONGEST_SIDE),
        )
    )
    return Poster(number, block, step, width, height)


def _integer(what: str, value: object, least: int, most: int, rule: str) -> int:
    if type(value) is not int or not least <= value <= most:
        raise wrong(what, value, f"an integer from {least} to {most}", rule)
    return value


# --- making


def write_overviews(
    path: str | os.PathLike[str],
    *,
    fsync: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> str | None:
    """Reads an episode and makes its overview file; the episode does not change.

    The file is `path` with `.overview` after it. It has an overview of each dense channel of more than 16 384 entries
    and at most 256 values a step, and images of cameras with 8-bit colours: one of the first frame, at most 640 pixels
    wide and high, and 64 of 160 pixels, spread over the episode and all cameras. Takes bounded memory.

    Args:
        path: the episode: a path, or a URL of an object store.
        fsync: False skips syncing the overview file to disk.
        limits: as for `load_wshard`.
        storage_options: for a URL, as for `load_wshard`.

    Returns:
        The path of the overview file; None if the episode has neither such channels nor cameras. An overview file of
        an earlier version is then removed.

    Raises:
        MissingExtra: the episode has cameras, and Pillow, or the decoder of a video, is not installed.
    """
    name = os.fspath(path)
    target = overview_path(name)
    with _open_episode(name, limits, storage_options) as episode:
        blocks = {name: block for name, block in drawable_blocks(episode).items() if block.can_fit}
        cameras = {
            name: block
            for name, block in blocks.items()
            if name.startswith("signal/") and block.channel is not None and is_camera(block.channel)
        }
        drawn = {
            name: block
            for name, block in blocks.items()
            if block.is_dense and block.length > _WORTHWHILE and 1 <= block.values <= _MOST_VALUES
        }
        if not drawn and not cameras:
            if not is_url(target):
                with suppress(FileNotFoundError):
                    os.unlink(target)
            return None
        posters, images = _draw(cameras)
        fields: dict[str, Any] = {
            "blocks": {name: _row(blocks[name]) for name in {**drawn, **cameras}},
            "v": 1,
        }
        if posters:
            fields["posters"] = posters
        options = WriterOptions(limits=limits, storage_options=storage_options)
        with ShardWriter(target, fsync=fsync, options=options) as writer:
            writer.write_entry(META_OVERVIEW, canonical(fields), content_type=ContentType.JSON)
            for name in sorted(drawn, key=str.encode):
                arrays = summarise(drawn[name])
                writer.write_entry(
                    f"overview/{name}", b"".join(array.tobytes() for array in arrays)
                )
            for number, image in enumerate(images):
                writer.write_entry(f"poster/{number}", image, content_type=ContentType.IMAGE)
    return target


def require_encoder(cameras: Iterable[object]) -> None:
    """Raises if there are cameras and their posters cannot be made here; for asking before anything is written."""
    if any(True for _ in cameras):
        require("PIL.Image", "images")


def _row(block: DrawableBlock) -> dict[str, Any]:
    dtype, shape, length, orig_size, crc32c = block.facts
    return {
        "crc32c": crc32c,
        "dtype": dtype.value,
        "length": length,
        "orig_size": orig_size,
        "shape": list(shape),
    }


def summarise(block: DrawableBlock) -> list[NDArray[Any]]:
    """Means, minima and maxima of a block, each [values, buckets] as the overview stores them."""
    if block.channel is not None:
        block.channel.check_claims()
    count, form = block.steps_per_bucket, (block.values, block.buckets)
    means = np.empty(form, block.mean_dtype)
    low, high = (np.empty(form, block.dtype.stored_dtype) for _ in range(2))
    at_once = max(1, _WINDOW_BYTES // max(1, count * block.values * max(block.dtype.size, 4)))
    for first in range(0, block.buckets, at_once):
        stop = min((first + at_once) * count, block.length)
        lines = np.ascontiguousarray(block.read(first * count, stop).T)
        starts = np.arange(0, lines.shape[1], count)
        at = slice(first, first + len(starts))
        means[:, at] = _means(lines, starts)
        low[:, at] = _stored(block.dtype, np.fmin.reduceat(lines, starts, axis=1))
        high[:, at] = _stored(block.dtype, np.fmax.reduceat(lines, starts, axis=1))
    return [means, low, high]


def _means(lines: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    counts = np.diff(starts, append=lines.shape[1]).astype(np.float64)
    with np.errstate(all="ignore"):
        sums: NDArray[np.float64] = np.add.reduceat(lines, starts, axis=1, dtype=np.float64)
        if lines.dtype.kind == "f" and np.isnan(sums).any():
            missing = np.isnan(lines)
            sums = np.add.reduceat(np.where(missing, 0, lines), starts, axis=1, dtype=np.float64)
            # 0 / 0 is NaN: the mean of a bucket with nothing else.
            counts = counts - np.add.reduceat(missing, starts, axis=1, dtype=np.float64)
        return sums / counts


def _stored(dtype: DType, values: NDArray[Any]) -> NDArray[Any]:
    if dtype is not DType.BFLOAT16:
        return values
    return (values.view(np.uint32) >> 16).astype("<u2").view(dtype.stored_dtype)


def is_camera(channel: Channel) -> bool:
    """Whether posters of an observation are made."""
    return channel.dtype_name is DType.UINT8 and channel.length > 0 and is_frames(channel)


def _draw(cameras: Mapping[str, DrawableBlock]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """The rows and the files of all posters: first the large ones, then the small ones camera by camera."""
    rows: list[dict[str, Any]] = []
    images: list[bytes] = []
    if not cameras:
        return rows, images
    pillow = require("PIL.Image", "images")
    small = _SMALL_POSTERS // len(cameras)
    wanted = [(name, _POSTER_SIDE, [0]) for name in list(cameras)[:_MOST_POSTERS]]
    for name, block in cameras.items():
        spread = np.linspace(0, block.length - 1, min(small, block.length))
        wanted.append((name, _SMALL_SIDE, spread.astype(int).tolist()))
    for name, side, steps in wanted:
        channel = cameras[name].channel
        assert channel is not None
        reading = channel.uncached()
        for step in steps:
            frame = np.asarray(reading.read_steps(step, step + 1)[0])
            picture = display.picture_of(frame, max(frame.shape)).astype(np.uint8)
            image = pillow.fromarray(picture)
            image.thumbnail((side, side))
            file = io.BytesIO()
            image.save(file, "JPEG", quality=_JPEG_QUALITY)
            row = {"block": name, "step": step, "width": image.width, "height": image.height}
            rows.append(row)
            images.append(file.getvalue())
    return rows, images
