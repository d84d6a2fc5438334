"""What the fuzzer calls. Each target takes any bytes and may raise nothing but ShardError.

`container` reads a whole file in every way, `episode` every lane of one, `journal` brings a recording back,
`shardpack` reads and recovers a shard of a dataset. `tfrecord` and `example` read what TensorFlow Datasets writes, and protobuf with it. `mcap` and `rosbag` read recordings of messages. `dataset`, `extract` and `decode` get files whose checksums fit.
The others aim past checksums and sizes, at the parsers behind them, which random bytes would hardly ever reach.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import shutil
import struct
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import shardpack
from shard_cli.main import main as run_program
from shard_format import (
    Manifest,
    ShardError,
    ShardReader,
    compute_identity,
    verify_identity,
)
from shard_format.canonical_json import canonical, parse_object
from shard_format.codecs import check_sizes, decode, decode_into, iter_decoded
from shard_format.filters import Filters
from shard_format.layout import Codec
from shard_format.seekable import FOOTER, FrameDecoder, SeekTable, seek_table_size
from shard_format.verify import check
from shard_train import EpisodeDataset, compute_stats
from shardpack import Record, ShardPackReader
from tests.fuzz.repair import (
    LIMITS,
    with_right_checksums,
    with_right_end,
    with_right_heads,
    with_right_records,
    with_right_size,
)
from wshard import Episode, load_wshard, open_partial, recover, validate_chunk_continuity
from wshard._chunk_manifest import ChunkManifest, open_chunk
from wshard._metadata import parse_facts, parse_provenance, parse_rows
from wshard.convert import read
from wshard.convert._mcap_file import MAGIC as MCAP_MAGIC
from wshard.convert._model import Notes
from wshard.convert._rlds import RecordParser
from wshard.convert._rosbag import MAGIC as BAG_MAGIC
from wshard.convert._rosbag import BagFile
from wshard.convert._tf_example import encode_example, parse_example
from wshard.convert._tfds import FeatureLeaf, leaves_of, masked_crc32c, record_content, scan_records
from wshard.doctor import examine
from wshard.types import Channel, Intervals

if TYPE_CHECKING:
    from collections.abc import Callable

_CODEC_AND_SIZE = struct.Struct("<BI")
_RANGE = struct.Struct("<III")
_U32 = struct.Struct("<I")
# An episode may claim more steps than it has bytes; what is computed for each is asked for below this.
_FEW_STEPS = 1 << 16


def fuzz_container(data: bytes) -> None:
    """A file: opened, searched, read whole, in part, in pieces, verified, hashed."""
    with ShardReader(with_right_size(data), limits=LIMITS, threads=1) as reader:
        names = reader.names()
        assert len(names) == len(reader) == len(set(names))
        for name in names[:64]:
            with contextlib.suppress(ShardError):
                info = reader.info(name)
                content = reader.read_entry(name)
                assert len(content) == info.size
                assert b"".join(reader.iter_entry(name)) == content
                middle = info.size // 2
                assert reader.read_range(name, middle, info.size) == content[middle:]
        check(reader)
        for examine in (Manifest.read, compute_identity, verify_identity):
            with contextlib.suppress(ShardError):
                examine(reader)


def fuzz_dataset(data: bytes) -> None:
    """An episode that its checksums fit, in a folder: doctor, windows, alignment, statistics."""
    folder = _folder("dataset")
    path = folder / "ep.wshard"
    path.write_bytes(with_right_checksums(data))
    examine(path, threads=1)
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"align": "nearest"},
        {"delta_timestamps": {"state": [-0.1, 0.0]}},
    )
    for options in ways:
        with contextlib.suppress(ShardError):
            dataset = EpisodeDataset([path], window=2, index=False, threads=1, **options)
            dataset.batch([0, len(dataset) - 1])
            dataset.close()
    with contextlib.suppress(ShardError):
        compute_stats([path], threads=1)


def fuzz_extract(data: bytes) -> None:
    """A container or a shard whose checksums fit, extracted: nothing appears outside of the folder."""
    folder = _folder("extract")
    path, target = folder / "file", folder / "target"
    path.write_bytes(
        with_right_records(data) if b"SPR1" in data[:16] else with_right_checksums(data)
    )
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        run_program(["extract", str(path), "-C", str(target)])
    assert {found.name for found in folder.iterdir()} <= {"file", "target"}
    shutil.rmtree(target, ignore_errors=True)


_ENDINGS: Final = (
    "npy",
    "npz",
    "json",
    "txt",
    "cls",
    "mp",
    "jpg",
    "png",
    "gif",
    "bmp",
    "tif",
    "webp",
)


def fuzz_decode(data: bytes) -> None:
    """A byte that chooses an ending, and the content of an entry with that ending: decoded as a training loop would."""
    if not data:
        return
    path = _folder("decode") / "a.shardpack"
    name = f"x.{_ENDINGS[data[0] % len(_ENDINGS)]}"
    with shardpack.ShardPackWriter(path, fsync=False, overwrite=True) as writer:
        writer.write("a", {name: _with_right_chunks(data[1:])})
    with ShardPackReader(path, limits=LIMITS) as reader:
        reader[0].decode()


def _with_right_chunks(data: bytes) -> bytes:
    """A PNG file with the checksums of its chunks; anything else as it is."""
    file, at = bytearray(data), 8
    while data.startswith(b"\x89PNG\r\n\x1a\n") and at + 12 <= len(file):
        end = at + 8 + int.from_bytes(file[at : at + 4], "big")
        if end + 4 > len(file):
            break
        file[end : end + 4] = zlib.crc32(file[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(file)


@functools.cache
def _temporary(name: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix=name)


def _folder(name: str) -> Path:
    """A folder that all inputs of a target share."""
    return Path(_temporary(name).name)


def fuzz_decompression(data: bytes) -> None:
    """A compressed entry: five bytes of codec and size, then the stored bytes. All ways must agree."""
    if len(data) < _CODEC_AND_SIZE.size:
        return
    choice, orig_size = _CODEC_AND_SIZE.unpack_from(data)
    codec = Codec.ZSTD if choice & 1 else Codec.LZ4
    orig_size &= (1 << 22) - 1
    stored = data[_CODEC_AND_SIZE.size :]
    check_sizes(codec, len(stored), orig_size, LIMITS)
    outcomes: list[bytes | str] = []
    buffer = bytearray(orig_size)

    def into_buffer() -> bytes:
        decode_into(codec, stored, memoryview(buffer), LIMITS)
        return bytes(buffer)

    ways: tuple[Callable[[], bytes], ...] = (
        lambda: decode(codec, stored, orig_size, LIMITS),
        into_buffer,
        lambda: b"".join(iter_decoded(codec, stored, orig_size, LIMITS)),
    )
    for way in ways:
        try:
            outcomes.append(way())
        except ShardError:  # noqa: PERF203 - three of them
            outcomes.append("refused")
    assert outcomes.count(outcomes[0]) == len(outcomes), [type(o) for o in outcomes]


def fuzz_seek_table(data: bytes) -> None:
    """A seekable entry: a range and a size, then the stored bytes."""
    if len(data) < _RANGE.size:
        return
    orig_size, start, length = (value & 0xFFFF for value in _RANGE.unpack_from(data))
    stored = data[_RANGE.size :]
    size = seek_table_size(stored[-FOOTER.size :], len(stored))
    if size is None:
        return
    table = SeekTable.parse(stored[-size:], len(stored), orig_size)
    if table is None or start >= orig_size or length == 0:
        return
    out = bytearray(min(length, orig_size - start))
    decoder = FrameDecoder(table, LIMITS)
    first, end = decoder.stored_range(decoder.frames_for(start, start + len(out)))
    decoder.decode_into(stored[first:end], start, memoryview(out), 1)


def fuzz_json(data: bytes) -> None:
    """Metadata: what is accepted has a canonical form that reads back the same."""
    fields = parse_object(data, "fuzz", LIMITS)
    text = canonical(fields)
    assert canonical(parse_object(text, "fuzz", LIMITS)) == text


def fuzz_filters(data: bytes) -> None:
    """A description of filters, a NUL, then content: what is filtered must come back."""
    description, _, content = data.partition(b"\0")
    filters = Filters.parse(description)
    assert Filters.parse(filters.description) == filters
    content = content[: len(content) // filters.unit * filters.unit]
    filtered = filters.apply(content)
    out = bytearray(len(content))
    filters.undo_into(filtered, memoryview(out))
    assert out == content
    in_place = bytearray(filtered)
    filters.undo_in_place(memoryview(in_place))
    assert in_place == content


def fuzz_episode(data: bytes) -> None:
    """An episode: opened without checksums, so that its metadata can be damaged, and every lane touched."""
    with load_wshard(
        with_right_size(data), sidecars=False, check=False, threads=1, limits=LIMITS
    ) as episode:
        for touch in _touches(episode):
            with contextlib.suppress(ShardError):
                touch()
        # Must not raise, whatever it finds.
        examine(episode, threads=1)


def _touches(episode: Episode) -> list[Callable[[], object]]:
    """Everything of an episode that is read when it is asked for."""
    channels = [channel for _, channel in episode.blocks()]
    touches: list[Callable[[], object]] = [
        lambda: repr(episode),
        lambda: episode.timestamps_ns,
        lambda: episode.dones,
    ]
    for extra in episode.extras.values():
        if isinstance(extra, Channel):
            channels.append(extra)
        else:
            touches.append(functools.partial(bytes, extra))
    for channel in channels:
        touches.append(functools.partial(_touch_channel, channel))
        touches.append(functools.partial(getattr, channel, "timestamps_ns"))
    for residual in episode.residuals.values():
        touches.append(functools.partial(getattr, residual, "data"))
        touches.append(functools.partial(getattr, residual, "scales"))
    touches.extend(functools.partial(list, intervals) for intervals in episode.labels.values())
    if episode.length <= _FEW_STEPS:
        touches += [lambda: episode.ticks, episode.times_ns, episode.align, episode.validate]
    return touches


def _touch_channel(channel: Channel) -> None:
    repr(channel)
    if channel.length <= _FEW_STEPS:
        assert len(channel.data) == channel.length
        middle = channel.length // 2
        assert len(channel.read_steps(middle, channel.length)) == channel.length - middle


def fuzz_descriptions(data: bytes) -> None:
    """A JSON object, as each of the descriptions that an episode may hold."""
    fields = parse_object(data, "fuzz", LIMITS)
    for parse in (
        lambda: parse_facts(fields, {}),
        lambda: parse_facts(fields, fields),
        lambda: parse_rows(fields),
        lambda: parse_provenance(fields),
        lambda: list(Intervals.from_fields(fields)),
    ):
        with contextlib.suppress(ShardError):
            parse()


def fuzz_chunk_manifest(data: bytes) -> None:
    """The text of a manifest of chunks: parsed, checked, and its chunks looked for in an empty folder."""
    folder = _temporary("empty").name
    plain = Manifest._from_fields(parse_object(data, "fuzz", LIMITS), folder)
    for reference in plain.files[:64]:
        with contextlib.suppress(ShardError):
            assert plain.resolve(reference).startswith(folder + "/")
    manifest = ChunkManifest.of(plain, f"{folder}/manifest.wshard")
    with contextlib.suppress(ShardError):
        validate_chunk_continuity(manifest, check_files=False)
    for reference in manifest.files.files[:64]:
        with contextlib.suppress(ShardError):
            open_chunk(manifest, reference).close()


def fuzz_journal(data: bytes) -> None:
    """A journal, as it is and with heads that fit: what comes back is a file in which everything verifies."""
    for journal in (data, with_right_heads(data)):
        with contextlib.suppress(ShardError):
            _bring_back(journal)


def _bring_back(journal: bytes) -> None:
    folder = _temporary("journal").name
    partial, out = f"{folder}/e.wshard.partial", f"{folder}/out.wshard"
    Path(partial).write_bytes(journal)
    result = recover(partial, out, fsync=False)
    try:
        with ShardReader(out) as reader:
            reader.verify()
        with load_wshard(out, threads=1) as saved:
            assert saved.length == result.steps
    except ShardError as error:
        raise AssertionError("what came back does not verify") from error
    with open_partial(partial) as episode:
        for touch in _touches(episode):
            with contextlib.suppress(ShardError):
                touch()
        assert not episode.refresh()


def fuzz_shardpack(data: bytes) -> None:
    """A shard, as it is, with an end that fits, and with records that fit: read in every way, and recovered."""
    for pack in (data, with_right_end(data), with_right_records(data)):
        by_number = _read_pack(pack)
        with contextlib.suppress(ShardError):
            for number, record in enumerate(shardpack.stream(io.BytesIO(pack), limits=LIMITS)):
                outcome = _contents(record)
                # A stream may see records that a lying index does not.
                if number in by_number and by_number[number][0] == record.offset:
                    assert by_number[number][1] == outcome
        _recover_pack(pack)


def _contents(record: Record) -> object:
    """What is read of a record, all at once and one by one; the code where it is refused."""
    with contextlib.suppress(ShardError):
        _ = record.metadata
    for entry in record.file_entries() if _is_fine(record.file_entries) else ():
        with contextlib.suppress(ShardError):
            assert len(entry.data) == entry.size
    try:
        whole = record.key, record.read_all()
    except ShardError as error:
        return error.code
    assert whole[1] == {entry.name: bytes(entry.data) for entry in record.file_entries()}
    return whole


def _is_fine(call: Callable[[], object]) -> bool:
    try:
        call()
    except ShardError:
        return False
    return True


def _read_pack(pack: bytes) -> dict[int, tuple[int, object]]:
    """Place and content of every record that opens, by number."""
    found: dict[int, tuple[int, object]] = {}
    with contextlib.suppress(ShardError), ShardPackReader(pack, limits=LIMITS) as reader:
        for touch in (lambda: reader.metadata, lambda: reader.find("a"), lambda: repr(reader)):
            with contextlib.suppress(ShardError):
                touch()
        for number in range(len(reader)):
            with contextlib.suppress(ShardError):
                record = reader.record(number)
                assert reader.take([number])[0].offset == record.offset
                found[number] = record.offset, _contents(record)
                at = reader.find(record.key)
                assert at is None or reader.record(at).key == record.key
        assert [record.offset for record in reader] == list(reader.get_index())
    return found


def _recover_pack(pack: bytes) -> None:
    """What recovery writes is whole, whatever it was written from."""
    out = f"{_temporary('pack').name}/out.shardpack"
    result = shardpack.recover(pack, out, limits=LIMITS, fsync=False, overwrite=True)
    try:
        with ShardPackReader(out, limits=LIMITS) as reader:
            _ = reader.metadata
            assert len(reader) == result.records
            for number, record in enumerate(reader):
                record.stored_entries(check=True)
                assert reader.find(record.key) == number
        assert sum(1 for _ in shardpack.stream(out, limits=LIMITS)) == result.records
    except ShardError as error:
        raise AssertionError("what came back does not verify") from error
    assert sum(part.size for part in result.lost) <= len(pack)


def _with_right_lengths(data: bytes) -> bytes:
    """The records with true checksums; what they say about their lengths may lie."""
    file, at = bytearray(data), 0
    while at + 12 <= len(file):
        size = int.from_bytes(file[at : at + 8], "little")
        _U32.pack_into(file, at + 8, masked_crc32c(bytes(file[at : at + 8])))
        end = at + 12 + size
        if end + 4 <= len(file):
            _U32.pack_into(file, end, masked_crc32c(bytes(file[at + 12 : end])))
        at = end + 4
    return bytes(file)


def fuzz_tfrecord(data: bytes) -> None:
    """A TFRecord file with right checksums: every record of it, or an error."""
    file = _with_right_lengths(data)
    starts = scan_records(lambda at, count: file[at : at + count], len(file), None)
    assert starts[-1] == len(file)
    for start, stop in itertools.pairwise(starts):
        assert len(record_content(file[start:stop], start, None)) == stop - start - 16


def fuzz_example(data: bytes) -> None:
    """A `tf.train.Example`: its lists, there and back, and the episode that they make."""
    example = parse_example(data)
    lists: dict[str, Any] = {}
    for name in example.names:
        with contextlib.suppress(ShardError):
            values = example.values(name)
            lists[name] = values if hasattr(values, "dtype") else list(map(bytes, values))
    again = parse_example(b"".join(encode_example(lists)))
    assert again.names == lists.keys()
    for name, values in lists.items():
        found: Any = again.values(name)
        if hasattr(values, "dtype"):
            assert found.tobytes() == values.tobytes()
        else:
            assert list(map(bytes, found)) == values
    RecordParser(example, _demo_leaves(), "fuzz", "keep", Notes()).episode("fuzz").load()


@functools.cache
def _demo_leaves() -> dict[str, FeatureLeaf]:
    features = Path(__file__).parents[1] / "convert/fixtures/rlds/demo/1.0.0/features.json"
    leaves = leaves_of(json.loads(features.read_text("utf-8")), str(features))
    # Features that a mutation takes away would end every run.
    return {name: leaf for name, leaf in leaves.items() if leaf.kind != "image"}


def fuzz_mcap(data: bytes) -> None:
    """The records of an MCAP file, between its marks: every message, and the episode that they make."""
    path = _folder("mcap") / "a.mcap"
    path.write_bytes(MCAP_MAGIC + data + MCAP_MAGIC)
    for episode in read(path, "mcap"):
        for touch in _touches(episode):
            with contextlib.suppress(ShardError):
                touch()


def fuzz_rosbag(data: bytes) -> None:
    """The records of a bag of ROS 1: every message is found again at its place."""
    path = _folder("rosbag") / "a.bag"
    path.write_bytes(BAG_MAGIC + data)
    bag = BagFile(str(path))
    try:
        for connection, _, _, _, content, place in bag.messages():
            assert connection in bag.connections
            assert bytes(bag.data(place)) == bytes(content)
    finally:
        bag.close()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "chunk_manifest": fuzz_chunk_manifest,
    "container": fuzz_container,
    "dataset": fuzz_dataset,
    "decode": fuzz_decode,
    "decompression": fuzz_decompression,
    "descriptions": fuzz_descriptions,
    "episode": fuzz_episode,
    "example": fuzz_example,
    "extract": fuzz_extract,
    "filters": fuzz_filters,
    "journal": fuzz_journal,
    "json": fuzz_json,
    "mcap": fuzz_mcap,
    "rosbag": fuzz_rosbag,
    "seek_table": fuzz_seek_table,
    "shardpack": fuzz_shardpack,
    "tfrecord": fuzz_tfrecord,
}
