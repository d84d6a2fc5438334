"""What type checkers must infer for the public API. Checked by mypy, never run.

Each `type: ignore` stands on a line that must be an error: mypy's strict mode reports the ones that
are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import assert_type

import shard_format
from shard_format import (
    ByteSource,
    Codec,
    Compression,
    ContentType,
    EntryInfo,
    FileReference,
    Identity,
    Limits,
    Manifest,
    Role,
    Schema,
    ShardError,
    ShardReader,
    ShardWriter,
    WriterOptions,
    compute_identity,
    verify_identity,
)
from shard_format.errors import EntryNotFound, ShardIOError
from shard_format.remote import HttpSource, open_url
from shard_format.signing import Signature
from shard_format.sources import BytesSource, FileObjectSource, FileSource
from shard_format.verify import Report, check
from shard_train.packed_episodes import open_episode_pack
from wshard import (
    Channel,
    ChunkedEpisodeReader,
    ChunkedEpisodeWriter,
    DType,
    Episode,
    Timebase,
    add_lane,
    compact,
    find,
    load_wshard,
    save_wshard,
    validate_chunk_continuity,
)
from wshard._episode import LaneView
from wshard.alignment import Aligned, AlignedChannel
from wshard.catalogue import EpisodeInfo, EpisodeTable
from wshard.chunked import ChunkManifest
from wshard.doctor import examine
from wshard.latent import get_latent_actions
from wshard.residual import compute_sign2nd_diff, pack_residual_bits, unpack_residual_bits
from wshard.types import Extra, Interval, Intervals, Modality, RaggedChannel, Residual, TextChannel


class OwnSource:
    """A source of the user's, without inheriting anything."""

    name = "own"

    def size(self) -> int:
        return 0

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(length)

    def close(self) -> None:
        pass


def sources(file: BinaryIO) -> None:
    ShardReader("a.shard")
    ShardReader(Path("a.shard"))
    ShardReader(b"")
    ShardReader(bytearray())
    ShardReader(memoryview(b""))
    ShardReader(file)
    ShardReader(OwnSource())
    ShardReader(5)  # type: ignore[arg-type]
    ShardReader("a.shard", Limits())  # type: ignore[call-arg]
    own: ByteSource = OwnSource()
    some: list[ByteSource] = [FileSource("a"), BytesSource(b""), FileObjectSource(file), own]
    wrong: ByteSource = file  # type: ignore[assignment]
    print(some, wrong)
    remote: list[ByteSource] = [HttpSource("https://a/b"), open_url("s3://a/b", {"region": "c"})]
    ShardReader("https://a/b", storage_options={"headers": {"Authorization": "x"}})
    ShardReader("https://a/b", storage_options="x")  # type: ignore[arg-type]
    print(remote)


def reading() -> None:
    with ShardReader("a.shard", limits=Limits(max_entries=5), threads=2, check=False) as reader:
        assert_type(reader, ShardReader)
        assert_type(reader.names(), list[str])
        assert_type(reader.names(), list[bytes])  # type: ignore[assert-type]
        assert_type(reader.prefix("a"), list[str])
        assert_type("a" in reader, bool)
        assert_type(len(reader), int)
        assert_type(iter(reader), Iterator[str])
        assert_type(reader["a"], bytes)
        assert_type(reader.read_entry("a"), bytes)
        assert_type(reader.read_many(["a"]), list[bytes])
        assert_type(reader.read_range("a", 0, 1), bytes)
        assert_type(reader.read_into("a", bytearray(5)), int)
        assert_type(reader.read_into("a", np.zeros(5), start=1, stop=2), int)
        assert_type(reader.iter_entry("a"), Iterator[memoryview])
        assert_type(reader.view("a"), memoryview)
        assert_type(reader.info("a"), EntryInfo)
        assert_type(reader.infos(), Iterator[EntryInfo])
        assert_type(reader.index, NDArray[Any])
        assert_type(reader.schema, Schema | None)
        assert_type(reader.role, int)
        assert_type(reader.limits, Limits)
        assert_type(reader.source, ByteSource)
        assert_type(reader.name, str)
        assert_type(check(reader), Report)
        assert_type(check(reader).ok, bool)
        reader.verify(progress=lambda done, total: print(done + total))
        reader.read_entry(b"a")  # type: ignore[arg-type]
    info = reader.info("a")
    assert_type(info.name, str)
    assert_type(info.codec, Codec)
    assert_type(info.size, int)
    assert_type(info.crc32c, int | None)
    info.size = 5  # type: ignore[misc]


def writing(array: NDArray[np.float32], progress: Callable[[int, int], None]) -> None:
    with ShardWriter(
        Path("a.shard"),
        role=Role.WSHARD,
        alignment=64,
        compression=Compression(Codec.ZSTD, 3),
        reserve=["a"],
        identity=True,
        fsync=False,
        options=WriterOptions(schema={"x": 1}, limits=Limits(), threads=1),
    ) as writer:
        assert_type(writer, ShardWriter)
        writer.write_entry("a", b"", compression="zstd:3", content_type=ContentType.JSON)
        writer.write_entry("a", array, frame_bytes=100, tags=["x"], metadata={"y": 1})
        writer.write_entry("a", memoryview(b""), content_type="json", tags=5)
        writer.write_entry_stream("a", (bytes(5) for _ in range(3)))
        writer.write_entry_stream("a", [array, b"", memoryview(b"")])
        assert_type(len(writer), int)
        assert_type(writer.schema, Schema)
        writer.write_entry("a", "text")  # type: ignore[arg-type]
        writer.write_entry("a", b"", "zstd")  # type: ignore[call-arg]
    ShardWriter("a.shard", aligment=64)  # type: ignore[call-arg]
    print(progress)


def around() -> None:
    identity = compute_identity("a.shard")
    assert_type(identity, Identity)
    assert_type(identity.digest, str)
    assert_type(identity.text, bytes)
    assert_type(identity.entries, Mapping[str, str])
    assert_type(identity.version, int)
    assert_type(verify_identity("a.shard", identity), Identity)
    assert_type(verify_identity("a.shard", "00", progress=print), Identity)
    manifest = Manifest.read("a.shard")
    assert_type(manifest, Manifest)
    assert_type(manifest.files, Sequence[FileReference])
    assert_type(manifest.iter_problems(), Iterator[ShardError])
    assert_type(manifest.resolve(manifest.files[0]), str)
    assert_type(FileReference.to_file("a", relative_to="."), FileReference)
    assert_type(FileReference("a").size, int | None)
    assert_type(Signature.read("a.sig"), Signature)
    assert_type(Compression.parse("zstd"), Compression)
    assert_type(Schema({"a": 1}).fields, dict[str, Any])
    assert_type(shard_format.__version__, str)


def failing() -> None:
    try:
        ShardReader("a.shard")
    except EntryNotFound as error:
        key_error: KeyError = error
        print(key_error)
    except ShardIOError as error:
        assert_type(error.errno, int | None)
    except ShardError as error:
        assert_type(error.code, str)
        assert_type(error.path, str | None)
        assert_type(error.entry, str | None)
        assert_type(error.offset, int | None)
        assert_type(error.rule, str | None)
        assert_type(error.hint, str | None)


def episodes(array: NDArray[np.float32], file: BinaryIO) -> None:
    with load_wshard("a.wshard", ["joint_pos"], ["signal"], sidecars=False, threads=1) as episode:
        assert_type(episode, Episode)
        assert_type(episode.length, int)
        assert_type(episode.id, str)
        assert_type(episode.timebase, Timebase)
        assert_type(episode.metadata, dict[str, Any])
        assert_type(episode.timestep_range, tuple[int, int] | None)
        assert_type(episode.observations, LaneView[Channel])
        assert_type(episode.observations["joint_pos"], Channel)
        assert_type(episode.omens["joint_pos"], LaneView[Channel])
        assert_type(episode.omens["joint_pos"]["dreamer"], Channel)
        assert_type(episode.uncerts["joint_pos"]["dreamer"]["std"], Channel)
        assert_type(episode.rewards, Channel | None)
        assert_type(episode.residuals["joint_pos"], Residual)
        assert_type(episode.labels["skill"], Intervals)
        assert_type(episode.labels["skill"][0], Interval)
        assert_type(episode.extras["notes"], Extra | Channel)
        assert_type(episode.dones, NDArray[np.bool_] | None)
        assert_type(episode.timestamps_ns, NDArray[np.int64] | None)
        assert_type(episode.times_ns("joint_pos"), NDArray[np.int64])
        assert_type(episode.find("joint_pos"), Channel)
        assert_type(episode.blocks(), Iterator[tuple[str, Channel]])
        assert_type(episode.load(), Episode)
        assert_type(episode.align("rgb", "linear", tolerance_ns=5), Aligned)
        assert_type(episode.align()["joint_pos"], AlignedChannel)
        episode.align(method="cubic")  # type: ignore[arg-type]
    for source in ("a.wshard", Path("a.wshard"), b"", file, OwnSource()):
        load_wshard(source)
    load_wshard("s3://a/b.wshard", storage_options={"region": "c"})
    load_wshard(5)  # type: ignore[arg-type]
    channel = episode.find("joint_pos")
    assert_type(channel.data, NDArray[Any])
    assert_type(channel.dtype_name, DType)
    assert_type(channel.step_shape, tuple[int, ...])
    assert_type(channel.dtype, np.dtype[Any])
    assert_type(channel.shape, tuple[int, ...])
    assert_type(channel.read_steps(0, 5), NDArray[Any])
    assert_type(channel.timestamps_ns, NDArray[np.int64] | None)
    channels: list[Channel] = [TextChannel("say"), RaggedChannel("points"), channel]
    own = Episode("a", env_id="b", length=5, observations={"joint_pos": array}, rewards=array)
    assert_type(own.plot(models=["a"], dims=[0], time=(1.5, None), size=(12, 8)), Figure)
    own.plot(time="1s")  # type: ignore[arg-type]
    assert_type(own.observations["joint_pos"].thumbnails(), dict[int, NDArray[np.uint8]])
    own.observations["rgb"] = Channel("rgb", data=array, modality=Modality.RGB)
    own.rewards = array
    own.labels["skill"] = Intervals([Interval(0, 4, "reach")])
    save_wshard(own, Path("a.wshard"), compression={"signal/rgb": "zstd:19"}, profile="training")
    save_wshard(own, "a.wshard", aligment=64)  # type: ignore[call-arg]
    print(channels)


def around_episodes(array: NDArray[np.float32]) -> None:
    assert_type(add_lane("a.wshard", "omen/joint_pos/dreamer", array), str)
    assert_type(compact("a.wshard"), str)
    reader = ChunkedEpisodeReader("a_manifest.wshard")
    assert_type(reader.load_manifest(), ChunkManifest)
    assert_type(reader.load(), Episode)
    assert_type(reader.iter_chunks(), Iterator[Episode])
    with ChunkedEpisodeWriter("folder", "a") as writer:
        assert_type(writer, ChunkedEpisodeWriter)
        assert_type(writer.finalize_manifest(), ChunkManifest)
    validate_chunk_continuity("a_manifest.wshard", check_files=False)
    assert_type(get_latent_actions(reader.load(), "genie"), Channel | None)
    assert_type(compute_sign2nd_diff(array), NDArray[np.int8])
    assert_type(pack_residual_bits(array), bytes)
    assert_type(unpack_residual_bits(b"", 5), NDArray[np.int8])
    report = examine("a.wshard")
    assert_type(report.episode_id, str | None)
    assert_type([finding.code for finding in report.findings], list[str])


def finding_episodes() -> None:
    table = find("folder", where="success and length > 100", index=False)
    assert_type(table, EpisodeTable)
    assert_type(table[0], EpisodeInfo)
    assert_type(table[1:], EpisodeTable)
    assert_type(table[0].return_, float | None)
    assert_type(table[0].success, bool | None)
    assert_type(table.open(0), Episode)
    find(["a.wshard"], lambda row: row.length > 100, packs=open_episode_pack)
    find("folder", where=5)  # type: ignore[arg-type]
