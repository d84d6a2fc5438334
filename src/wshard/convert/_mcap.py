"""MCAP files: each topic becomes channels with the clock of its messages. One file is one episode.

A file that has no steps of its own gives an episode with T = 0: `Episode.align` resamples its channels at the times of one.
"""

from __future__ import annotations

import base64
import heapq
import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shard_format.errors import BadMetadata, InvalidArgument, ShardError
from shard_format.extras import require
from wshard._channels import Channel, RaggedChannel, TextChannel
from wshard._episode import Episode
from wshard._labels import Intervals
from wshard._lanes import (
    CHANNEL_LANES,
    LANES,
    REWARD,
    TERMINATED,
    TICKS,
    TIMESTAMPS,
    TRUNCATED,
    block_name,
)
from wshard._metadata import Timebase
from wshard._values import DType
from wshard._video import VideoChannel
from wshard.convert._json_messages import JsonDecoder, RawDecoder
from wshard.convert._mcap_file import MAGIC, McapFile
from wshard.convert._mcap_json import (
    PACKETS,
    SCHEMAS,
    channel_from,
    decoded,
    encoded,
    entries,
    form_of,
    has_odd_nan,
    picture_format,
    points,
    row_of,
    schema_of_channel,
    schema_of_fields,
    timestamp,
)
from wshard.convert._message_columns import TIMES
from wshard.convert._messages import FieldNames, Places, Topic
from wshard.convert._model import (
    DatasetReader,
    DatasetWriter,
    Notes,
    Probe,
    ReadOptions,
    WriteOptions,
)
from wshard.convert._per_file import files_in, next_path, stem
from wshard.convert._protobuf import ProtobufDecoder
from wshard.convert._ros import definitions, ros_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.convert._mcap_file import McapSchema, MessageFile, Place
    from wshard.convert._message_columns import MessageDecoder

__all__ = ["McapReader", "McapWriter", "recognises"]


def recognises(probe: Probe) -> bool:
    """Whether it is an MCAP file, or a folder of them."""
    if not probe.is_folder:
        return probe.head.startswith(MAGIC)
    return "metadata.yaml" not in probe.names and any(n.endswith(".mcap") for n in probe.names)


class McapReader(DatasetReader):
    """An MCAP file, or a folder of MCAP files."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._files = [path]
        if os.path.isdir(path):
            self._files, self.strays = files_in(path, lambda name: name.endswith(".mcap"))
            if not self._files:
                raise InvalidArgument("the folder has no MCAP files", path=path)
        self._open: list[MessageFile] = []

    def names(self) -> Sequence[str]:
        return [stem(path) for path in self._files]

    def file_of(self, number: int) -> str:
        return self._files[number]

    def read(self, number: int, notes: Notes) -> Episode:
        # Only the last file stays open, for its arrays: each keeps some of its chunks.
        self.close()
        path = self._files[number]
        file = McapFile(path)
        self._open.append(file)
        record = file.own_record(_RECORD)
        if record is None:
            episode = Episode(stem(path))
            read_topics([file], episode, notes, video=self.options.video)
            return episode
        return read_own(file, record, notes, self.options.video)

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()


def read_topics(
    files: Sequence[McapFile],
    episode: Episode,
    notes: Notes,
    own: Mapping[str, _OwnTopic] | None = None,
    *,
    video: str = "keep",
) -> None:
    """Fills an episode with what the messages of some MCAP files say, which belong together.

    Args:
        files: the files.
        episode: what to fill.
        notes: what became of fields.
        own: by their names, topics that are read in another way.
        video: as in `ReadOptions`.
    """
    topics: dict[Any, Topic] = {}
    own = own or {}
    places = Places(files)
    for number, file in enumerate(files):
        by_channel: dict[int, Topic | _OwnTopic] = {}
        for channel, sequence, log, publish, data, place in file.messages():
            topic = by_channel.get(channel)
            if topic is None:
                schema_id, name, encoding, _ = file.channels[channel]
                schema = file.schemas.get(schema_id)
                key = (name, encoding, schema)
                if name in own:
                    by_channel[channel] = own[name]
                    own[name].add(channel, sequence, log, publish, data, place)
                    continue
                if key not in topics:
                    decode = decoder_for(name, encoding, schema, file.path, notes)
                    kind = schema.name if schema else ""
                    group = sum(other[0] == name for other in topics)
                    topics[key] = Topic(name, kind, decode, places.data, file.path)
                    if group:  # the same topic with messages of another type
                        topics[key].origin["group"] = group
                topic = by_channel[channel] = topics[key]
            topic.add(channel, sequence, log, publish, data, places.place(number, place))
    names = FieldNames()
    for topic in topics.values():
        topic.add_to(episode, notes, names, video=video)
    episode.metadata["mcap"] = {
        "profile": files[0].profile,
        "library": files[0].library,
        "channels": [
            one for file in files for one in described(file, topics) if one["topic"] not in own
        ],
        "metadata": [one for file in files for one in file.metadata if one["name"] != _RECORD],
        "attachments": [],
    }
    for file in files:
        add_attachments(file, episode, notes)
        for op in sorted(file.unknown):
            notes.dropped(f"records of kind {op:#x}", "MCAP does not say what they hold")


def decoder_for(
    topic: str, encoding: str, schema: McapSchema | None, path: str, notes: Notes
) -> MessageDecoder:
    """What decodes the messages of a channel."""
    if encoding == "json":
        is_known = schema is not None and schema.name in _WITH_BYTES
        return JsonDecoder(topic, path, has_bytes=is_known)
    if encoding in ("protobuf", "cdr", "ros1"):
        if schema is None:
            raise BadMetadata(
                f"a channel with messages in {encoding} has no schema", path=path, entry=topic
            )
        if encoding == "protobuf":
            return ProtobufDecoder(schema.name, schema.data, path)
        try:
            text = schema.data.decode()
        except UnicodeDecodeError:
            raise BadMetadata("a schema is not UTF-8", path=path, entry=schema.name) from None
        types = definitions(schema.name, schema.encoding, text, path)
        return ros_decoder(topic, schema.name, types, path, notes, is_cdr=encoding == "cdr")
    notes.kept(topic, f"the bytes of its messages, because the encoding {encoding!r} is not known")
    return RawDecoder()


def described(file: McapFile, topics: Mapping[Any, Topic]) -> list[dict[str, Any]]:
    """The channels of a file and their schemas, as JSON."""
    found = []
    for number, (schema_id, topic, encoding, metadata) in file.channels.items():
        one: dict[str, Any] = {"id": number, "topic": topic, "encoding": encoding}
        if metadata:
            one["metadata"] = metadata
        schema = file.schemas.get(schema_id)
        found_topic = topics.get((topic, encoding, schema))
        if found_topic is None or number not in found_topic.channels:
            one["is_empty"] = True
        else:
            one |= found_topic.facts
        if schema is not None:
            one["schema"] = {"name": schema.name, "encoding": schema.encoding}
            try:
                one["schema"]["text"] = schema.data.decode()
            except UnicodeDecodeError:
                one["schema"]["base64"] = base64.b64encode(schema.data).decode()
        found.append(one)
    return found


def add_attachments(file: McapFile, episode: Episode, notes: Notes) -> None:
    """Adds the attachments of a file as extras."""
    for one in file.attachments:
        if one["name"].startswith(_ATTACHED):
            continue
        facts = {key: value for key, value in one.items() if key != "data"}
        parts = [part for part in one["name"].split("/") if part not in ("", ".", "..")]
        base = name = "/".join(("attachments", *(parts or ["attachment"])))
        number = 1
        while name in episode.extras:
            number += 1
            name = f"{base}_{number}"
        episode.extras[name] = one["data"]
        episode.metadata["mcap"]["attachments"].append({**facts, "extra": name})
        notes.kept(f"attachment {one['name']}", name)


_DECODED: Final = ("json", "protobuf", "cdr", "ros1")
"""Encodings of messages that are understood; the bytes of others are kept."""
_WITH_BYTES: Final = (
    "foxglove.RawImage",
    "foxglove.CompressedImage",
    "foxglove.PointCloud",
    "foxglove.CompressedVideo",
)


# --- files of this library

_RECORD: Final = "wshard"
"""The metadata record in which a file of this library says what its topics were."""
_ATTACHED: Final = "wshard/"
"""How the names of attachments start that were extras of an episode."""
_STEP_NS: Final = 1_000_000_000


class _OwnTopic:
    """The messages of one topic that this library wrote, in the order of the file."""

    def __init__(self, file: McapFile) -> None:
        self._file = file
        self._places: list[Place] = []
        self._times: list[int] = []

    def add(
        self, channel: int, sequence: int, log: int, publish: int, data: memoryview, place: Place
    ) -> None:
        """Takes the next message of the file."""
        self._places.append(place)
        self._times.append(log)

    def channel(self, name: str, row: dict[str, Any], shift: int) -> Channel:
        """The channel that the messages were made of."""
        times = np.array(self._times, np.int64) - shift if row.get("clock") == "own" else None
        file, places = self._file, self._places
        return channel_from(
            name, row, lambda step: file.data(places[step]), times, len(places), file.path
        )


def read_own(file: McapFile, record: dict[str, str], notes: Notes, video: str) -> Episode:
    """The episode of a file that this library wrote."""
    try:
        facts = json.loads(record["episode"])
        base = facts["timebase"]
        episode = Episode(
            facts["id"],
            env_id=facts["env_id"],
            length=facts["length"],
            timebase=Timebase(base["type"], base["tick_hz"], base["epoch_ns"]),
            metadata=facts["metadata"],
            provenance=facts.get("provenance"),
        )
        for name, fields in facts["labels"].items():
            episode.labels[name] = Intervals.from_fields(fields)
        rows: dict[str, dict[str, Any]] = facts["topics"]
        own = {topic: _OwnTopic(file) for topic in rows}
        read_topics([file], episode, notes, own, video=video)
        for topic, row in rows.items():
            address = tuple(map(str, row["address"]))
            block = block_name(address)
            channel = own[topic].channel(address[-1], row, facts["shift"])
            if isinstance(channel, VideoChannel) and video == "decode":
                notes.decoded(topic, f"{channel.content_type} to pixels")
                channel = decoded(channel)
            put(episode, address, channel)
            notes.kept(topic, block)
        data = {one["name"]: one["data"] for one in file.attachments}
        for name, row in facts["extras"].items():
            content = data[_ATTACHED + name]
            if row is not None:
                array = np.frombuffer(content, DType.parse(row["dtype"]).numpy_dtype)
                content = Channel(name, row["dtype"], data=array.reshape(row["shape"]))
                content.has_stated_length = True  # its first axis is not steps
            episode.extras[name] = content
            notes.kept(f"attachment {_ATTACHED}{name}", name)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, ShardError):
            raise
        raise BadMetadata(
            f"the metadata record {_RECORD!r} cannot be used: {error!r}", path=file.path
        ) from None
    if not episode.metadata["mcap"]["channels"]:
        del episode.metadata["mcap"]
        if "mcap" in facts["metadata"]:
            episode.metadata["mcap"] = facts["metadata"]["mcap"]
    return episode


def put(episode: Episode, address: tuple[str, ...], channel: Channel) -> None:
    """Puts a channel where it belongs in an episode."""
    lane = address[0]
    if lane == TIMESTAMPS:
        episode.timestamps_ns = channel.data
    elif lane == TICKS:
        episode.ticks = channel.data
    elif lane == REWARD:
        episode.rewards = channel
    elif lane == TERMINATED:
        episode.terminations = channel
    elif lane == TRUNCATED:
        episode.truncations = channel
    else:
        view: Any = getattr(episode, LANES[lane].view)
        for key in address[1:-1]:
            view = view[key]
        view[address[-1]] = channel


# --- writing


class McapWriter(DatasetWriter):
    """Writes each episode as an MCAP file: one, or a folder of them."""

    def __init__(self, path: str, options: WriteOptions) -> None:
        super().__init__(path, options)
        self._names: list[str] = []

    def write(self, episode: Episode, notes: Notes) -> None:
        path = next_path(self.path, self._names, episode.id, ".mcap")
        library = require("mcap.writer", "mcap")
        with open(path, "xb") as out:
            writer = library.Writer(out, compression=library.CompressionType.ZSTD)
            _EpisodeWriter(episode, writer, notes).write()

    def finish(self) -> None:
        if not self._names:
            raise InvalidArgument("no episodes were given", path=self.path)


class _EpisodeWriter:
    """Writes one episode."""

    def __init__(self, episode: Episode, writer: Any, notes: Notes) -> None:  # noqa: ANN401 - of mcap
        self._episode = episode
        self._writer = writer
        self._notes = notes
        self._schemas: dict[tuple[str, str, bytes], int] = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._streams: list[Iterator[tuple[int, int, bytes, int, int]]] = []
        """Messages of each topic: log time, channel, data, publish time, sequence number."""
        self._shift = 0
        self._kept = kept_facts(episode.metadata)

    def write(self) -> None:
        episode, writer = self._episode, self._writer
        own: dict[str, tuple[tuple[str, ...], Channel]] = {}
        foreign: dict[tuple[str, int], list[Channel]] = {}
        known: dict[Any, list[dict[str, Any]]] = {}
        for one in self._kept.get("channels", ()):
            if not one.get("is_empty"):
                known.setdefault((one["topic"], one.get("group", 0)), []).append(one)
        for address, part in episode.parts.items():
            if address[0] == TICKS and (part.data == np.arange(len(part))).all():
                continue
            if address[0] in (*CHANNEL_LANES, TICKS, TIMESTAMPS):
                origin = (part.extra.get("topic"), part.extra.get("group", 0))
                if address[0] == "signal" and part.has_own_clock and origin in known:
                    foreign.setdefault(origin, []).append(part)
                else:
                    own["/" + block_name(address)] = address, part
            elif address[0] == "residual":
                self._notes.dropped(block_name(address), "compute it again from the signals")
        topics = {origin: ForeignTopic(channels) for origin, channels in foreign.items()}
        for origin, made in topics.items():
            if not made.fits:
                own.update(
                    {
                        f"/signal/{one.name}": (("signal", one.name), one)
                        for one in foreign.pop(origin)
                    }
                )
        self._times_of_steps = self._step_times(own)
        self._shift = self._shift_of([part for _, part in own.values()], foreign)
        writer.start(self._kept.get("profile") or "", "shard-format")
        for topic, (address, channel) in own.items():
            is_taken = any(topic == other for other, _ in foreign)
            self._add_own(f"{topic}/own" if is_taken else topic, address, channel)
        for origin, channels in foreign.items():
            self._add_foreign(origin[0], channels, topics[origin], known[origin])
        for one in self._kept.get("channels", ()):
            if one.get("is_empty"):
                self._channel(one["topic"], *schema_of(one), one)
        writer.add_metadata(_RECORD, {"episode": self._facts()})
        for one in self._kept.get("metadata", ()):
            writer.add_metadata(one["name"], one["metadata"])
        self._add_attachments()
        for log, number, data, publish, sequence in heapq.merge(
            *self._streams, key=lambda message: message[0]
        ):
            writer.add_message(number, log, data, publish, sequence)
        writer.finish()

    # --- times

    def _step_times(self, own: Mapping[str, Any]) -> NDArray[np.int64]:
        """When each step is, and the one after the last."""
        episode = self._episode
        count = episode.length + 1
        on_steps = any(not channel.has_own_clock for _, channel in own.values())
        has_times = episode.timestamps_ns is not None
        if episode.timebase.tick_hz is None and (not has_times or episode.length < 2):
            if on_steps and not has_times:
                self._notes.filled("log_time", "the steps have no times: one second each")
            start = int(episode.timestamps_ns[0]) if has_times and episode.length else 0  # type: ignore[index] # has_times
            return start + np.arange(count, dtype=np.int64) * _STEP_NS
        return episode.step_times_ns(count)

    def _times(self, channel: Channel) -> NDArray[np.int64]:
        own = channel.timestamps_ns
        times = self._times_of_steps[: channel.length] if own is None else own
        if len(times) < channel.length:
            raise InvalidArgument(
                "a channel without its own clock is longer than the episode",
                entry=channel.name,
                expected=f"at most {len(times)} entries",
                found=channel.length,
            )
        return times

    def _shift_of(self, own: list[Channel], foreign: dict[tuple[str, int], list[Channel]]) -> int:
        """What to add to all times so that none is below 0."""
        every = [*own, *(channel for channels in foreign.values() for channel in channels)]
        lowest = min((int(t.min()) for c in every if len(t := self._times(c))), default=0)
        if lowest < 0:
            self._notes.cast("log_time", "times below 0", f"times + {-lowest} ns")
        return max(0, -lowest)

    # --- topics

    def _channel(
        self, topic: str, name: str, encoding: str, schema: bytes, known: Mapping[str, Any]
    ) -> int:
        """Registers a channel; `known` has its metadata and the encoding of its messages."""
        key = (name, encoding, schema)
        if name and key not in self._schemas:
            self._schemas[key] = self._writer.register_schema(name, encoding, schema)
        number: int = self._writer.register_channel(
            topic,
            known.get("encoding", "json"),
            self._schemas[key] if name else 0,
            dict(known.get("metadata", {})),
        )
        return number

    def _add_own(self, topic: str, address: tuple[str, ...], channel: Channel) -> None:
        form = form_of(channel)
        self._note_decoded(block_name(address), channel, form)
        clock = (
            "own" if channel.has_own_timestamps else "rate" if channel.has_own_clock else "steps"
        )
        row = row_of(channel, form)
        if clock != "rate":
            row.pop("start_ns", None)
        self._rows[topic] = {"address": list(address), "clock": clock, **row}
        schema = schema_of_channel(channel, form)
        text = json.dumps(schema).encode()
        number = self._channel(topic, schema["title"], "jsonschema", text, {})
        self._streams.append(self._own_messages(topic, number, channel, form))
        self._notes.kept(block_name(address), topic)

    def _note_nan(self, name: str) -> None:
        self._notes.cast(f"{name}, NaN", "its sign and payload", "plain NaN", "as in JSON")

    def _note_decoded(self, name: str, channel: Channel, form: str) -> None:
        if isinstance(channel, VideoChannel) and form not in PACKETS:
            why = "Foxglove needs frames in order, each in one packet without extra data"
            self._notes.decoded(name, f"{channel.content_type} to pixels: {why}")

    def _own_messages(
        self, topic: str, number: int, channel: Channel, form: str
    ) -> Iterator[tuple[int, int, bytes, int, int]]:
        encode, times = encoded(channel, form), self._times(channel)
        for step, (entry, at) in enumerate(
            zip(entries(channel, form), times.tolist(), strict=True)
        ):
            log = at + self._shift
            if form == "joints":
                fields: dict[str, Any] = {"header": {"stamp": timestamp(log), "frame_id": ""}}
            else:
                fields = {"timestamp": timestamp(log)}
            if SCHEMAS[form]["title"].startswith("foxglove."):
                fields["frame_id"] = ""
            fields.update(encode(entry))
            if form in ("value", "joints") and channel.dtype.kind == "f" and has_odd_nan(entry):
                self._note_nan(topic)
            yield log, number, as_bytes(fields), log, step

    def _add_foreign(
        self,
        topic: str,
        channels: list[Channel],
        made: ForeignTopic,
        known: list[dict[str, Any]],
    ) -> None:
        """Makes messages of the channels that came from one topic."""
        encoding = known[0]["encoding"]
        name, kind, text = schema_of(known[0])
        is_raw = known[0].get("is_raw") is True or encoding not in _DECODED
        if is_raw and encoding in _DECODED and not text:
            self._notes.dropped(topic, f"nothing defines the type of its messages, {name}")
            return
        if made.form:
            schema = SCHEMAS[made.form]
            name, kind, text = schema["title"], "jsonschema", json.dumps(schema).encode()
        elif not is_raw and encoding != "json":
            kind, text = "jsonschema", json.dumps(schema_of_fields(name, channels)).encode()
        if not is_raw:
            if encoding != "json":
                self._notes.cast(topic, f"messages in {encoding}", "messages in JSON")
            known = [{**one, "encoding": "json"} for one in known]
        numbers = {one["id"]: self._channel(topic, name, kind, text, one) for one in known}
        self._streams.append(self._foreign_messages(topic, numbers, made, is_raw=is_raw))
        for channel in channels:
            self._note_decoded(f"signal/{channel.name}", channel, made.form)
            self._notes.kept(f"signal/{channel.name}", topic)
            given = channel.extra.get("format")
            if made.form in PACKETS and given not in (None, picture_format(channel)):
                self._notes.cast(f"{topic}.format", given, picture_format(channel), "as Foxglove")

    def _foreign_messages(
        self, name: str, numbers: dict[int, int], topic: ForeignTopic, *, is_raw: bool
    ) -> Iterator[tuple[int, int, bytes, int, int]]:
        first = next(iter(numbers.values()))
        for log, publish, sequence, channel, value in topic.messages():
            data = base64.b64decode(value) if is_raw else as_bytes(value)
            shifted = max(0, publish + self._shift)
            yield log + self._shift, numbers.get(channel, first), data, shifted, sequence
        if topic.has_infinity:
            self._notes.cast(f"{name}, infinite numbers", "infinity", "null", "as JSON has none")
        if topic.has_odd_nan:
            self._note_nan(name)

    # --- what belongs to the whole episode

    def _facts(self) -> str:
        episode = self._episode
        base = episode.timebase
        facts = {
            "v": 1,
            "id": episode.id,
            "env_id": episode.env_id,
            "length": episode.length,
            "timebase": {
                "type": str(base.type),
                "tick_hz": base.tick_hz,
                "epoch_ns": base.epoch_ns,
            },
            "metadata": {
                k: v for k, v in episode.metadata.items() if k != "mcap" or not self._kept
            },
            "provenance": episode.provenance,
            "labels": {name: label.to_fields() for name, label in episode.labels.items()},
            "shift": self._shift,
            "topics": self._rows,
            "extras": self._extra_rows(),
        }
        return json.dumps(facts, ensure_ascii=False)

    def _extra_rows(self) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        attached = {one.get("extra") for one in self._kept.get("attachments", ())}
        for name, extra in self._episode.extras.items():
            if name in attached:
                continue
            if isinstance(extra, RaggedChannel):
                self._notes.dropped(name, "an attachment holds bytes or one array")
            elif isinstance(extra, Channel):
                rows[name] = {"dtype": str(extra.dtype_name), "shape": list(extra.shape)}
            else:
                rows[name] = None
        return rows

    def _add_attachments(self) -> None:
        extras = self._episode.extras
        for one in self._kept.get("attachments", ()):
            if one.get("extra") in extras:
                data = bytes(extras[one["extra"]])
                times = one["create_time"], one["log_time"]
                self._writer.add_attachment(*times, one["name"], one["media_type"], data)
                self._notes.kept(one["extra"], f"attachment {one['name']}")
        for name in self._extra_rows():
            extra = extras[name]
            data = extra.data.tobytes() if isinstance(extra, Channel) else bytes(extra)
            self._writer.add_attachment(0, 0, _ATTACHED + name, "application/octet-stream", data)
            self._notes.kept(name, f"attachment {_ATTACHED}{name}")


def kept_facts(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a reader of MCAP files or bags noted about the file; nothing if it has another form."""
    for key in ("mcap", "rosbag"):
        facts: Any = metadata.get(key)
        try:
            for one in facts["channels"]:
                _ = one["topic"] + one["encoding"], int(one["id"]), schema_of(one)
                _ = {**one.get("metadata", {})}
            for one in facts.get("metadata", ()):
                _ = one["name"] + "", {**one["metadata"]}
            for one in facts.get("attachments", ()):
                _ = (
                    one["extra"] + one["name"] + one["media_type"],
                    int(one["log_time"] + one["create_time"]),
                )
        except (TypeError, KeyError, ValueError, AttributeError):
            continue
        return dict(facts)
    return {}


def schema_of(known: Mapping[str, Any]) -> tuple[str, str, bytes]:
    """Name, encoding and content of the schema that a channel had; an empty name for none."""
    schema = known.get("schema")
    if not schema:
        return "", "", b""
    if "base64" in schema:
        return schema["name"], schema["encoding"], base64.b64decode(schema["base64"])
    return schema["name"], schema["encoding"], schema.get("text", "").encode()


def as_bytes(value: Any) -> bytes:  # noqa: ANN401 - any JSON
    """JSON as a message holds it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class ForeignTopic:
    """The channels that the messages of one topic became, as messages in JSON again."""

    def __init__(self, channels: list[Channel]) -> None:
        records = {channel.extra.get("record"): channel for channel in channels}
        self._publish = records.get("publish_time_ns")
        self._sequence = records.get("sequence")
        self._channel_id = records.get("channel_id")
        self._fields = [one for one in channels if "record" not in one.extra]
        self._points = [one for one in self._fields if "points" in one.extra]
        self.form = "points" if self._points else ""
        for one in self._fields:
            if "path" not in one.extra and "points" not in one.extra:
                self.form = form_of(one)
        times = (self._publish or max(self._fields or channels, key=len)).timestamps_ns
        assert times is not None
        self._times: NDArray[np.int64] = times
        self._matches = [self._matching(one) for one in self._fields]
        lengths = {len(one) for key, one in records.items() if key}
        self.fits = None not in self._matches and lengths <= {len(times)}
        """Whether the entries of its channels still are at the times of messages."""
        self.has_infinity = False
        """Whether a message that was made had an infinite number, which JSON does not know."""
        self.has_odd_nan = False
        """Whether one had a NaN with bits of its own."""

    def messages(self) -> Iterator[tuple[int, int, int, int, Any]]:
        """Log time, publish time, sequence number, channel and content of each message."""
        times = self._times.tolist()
        publish = times if self._publish is None else self._publish.data.tolist()
        numbers, ids = (
            [0] * len(times) if one is None else one.data.tolist()
            for one in (self._sequence, self._channel_id)
        )
        readers = [
            (self._setter(one), iter(entries(one, self.form)), iter(at or ()))
            for one, at in zip(self._fields, self._matches, strict=True)
        ]
        waiting = [next(at, -1) for _, _, at in readers]
        for number, log in enumerate(times):
            message = _Message()
            for index, (put, values, at) in enumerate(readers):
                if waiting[index] == number:
                    entry = next(values)
                    if isinstance(entry, (np.ndarray, np.floating)) and entry.dtype.kind == "f":
                        self.has_infinity = self.has_infinity or bool(np.isinf(entry).any())
                        self.has_odd_nan = self.has_odd_nan or has_odd_nan(entry)
                    put(message, entry)
                    waiting[index] = next(at, -1)
            if message.points:
                message.content.update(points(message.points))
            if self.form in ("png", "raw", "points", *PACKETS):
                message.add_head(log)
            content = message.content if message.bare is _NOTHING else message.bare
            yield log, publish[number], numbers[number], ids[number], content

    def _matching(self, channel: Channel) -> list[int] | None:
        """Which messages the entries of a channel belong to: the first free one of the same time; None without one."""
        own = channel.timestamps_ns
        assert own is not None
        if np.array_equal(own, self._times):
            return list(range(len(own)))
        found, last = [], -1
        for at, time in zip(np.searchsorted(self._times, own).tolist(), own.tolist(), strict=True):
            last = max(at, last + 1)
            if last >= len(self._times) or self._times[last] != time:
                return None
            found.append(last)
        return found

    def _setter(self, channel: Channel) -> Callable[[_Message, Any], None]:
        extra = channel.extra
        if "points" in extra:
            names = extra["names"]
            return lambda message, entry: message.points.append((names, entry))
        if "path" not in extra:
            encode = encoded(channel, self.form)
            return lambda message, entry: message.content.update(encode(entry))
        *path, last = [tuple(key) if isinstance(key, list) else key for key in extra["path"]] or [
            ()
        ]
        if not extra["path"]:
            return lambda message, entry: setattr(message, "bare", plain_value(channel, entry))
        if isinstance(last, tuple):
            split = split_time if last in TIMES else split_vector
            if path and path[-1] is None:
                *path, _ = path
                return lambda message, entry: message.set_items(
                    path, None, [split(last, one) for one in entry]
                )
            if None in path:
                at = path.index(None)
                return lambda message, entry: message.set_items(
                    path[:at], path[at + 1 :], [split(last, one) for one in entry]
                )
            return lambda message, entry: message.set(path, split(last, entry))
        if None in path:
            at, inner = path.index(None), [*path, last]
            return lambda message, entry: message.set_items(
                inner[:at], inner[at + 1 :], plain_value(channel, entry)
            )
        whole = [*path, last]
        return lambda message, entry: message.set(whole, plain_value(channel, entry))


_NOTHING: Final = object()


class _Message:
    """A message that is being put together."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {}
        self.bare: Any = _NOTHING
        self.points: list[tuple[list[str], NDArray[Any]]] = []

    def add_head(self, log: int) -> None:
        """Adds the time and frame that Foxglove expects, from the header of ROS if there is one."""
        header = self.content.get("header")
        if not isinstance(header, dict):
            header = {}
        self.content.setdefault("timestamp", header.get("stamp", timestamp(log)))
        self.content.setdefault("frame_id", header.get("frame_id", ""))

    def set(self, path: Sequence[Any], value: Any) -> None:  # noqa: ANN401 - any JSON
        """Sets the value at a path."""
        place = self.content
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value

    def set_items(
        self, path: Sequence[Any], inner: Sequence[Any] | None, values: list[Any]
    ) -> None:
        """Sets one field of all items of a list."""
        if inner is None:
            self.set(path, values)
            return
        place = self.content
        for key in path[:-1]:
            place = place.setdefault(key, {})
        items = place.setdefault(path[-1], [{} for _ in values])
        for item, value in zip(items, values, strict=True):
            for key in inner[:-1]:
                item = item.setdefault(key, {})
            item[inner[-1]] = value


def plain_value(channel: Channel, entry: Any) -> Any:  # noqa: ANN401 - any JSON
    """An entry as JSON; what is not finite becomes null, as JavaScript does."""
    if isinstance(channel, TextChannel):
        return json.loads(entry) if channel.content_type == "application/json" else entry
    value = np.asarray(entry)
    if value.dtype == np.uint8 and value.ndim:
        return base64.b64encode(value.tobytes()).decode()
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        return nulls(value.astype(np.float64).tolist())
    return value.tolist()


def nulls(value: Any) -> Any:  # noqa: ANN401 - numbers in lists
    """Numbers with null for those that are not finite."""
    if isinstance(value, list):
        return [nulls(one) for one in value]
    return value if np.isfinite(value) else None


def split_time(names: tuple[str, ...], value: Any) -> dict[str, int]:  # noqa: ANN401 - a number
    """Nanoseconds as an object of seconds and nanoseconds."""
    return dict(zip(names, divmod(int(value), 1_000_000_000), strict=True))


def split_vector(names: tuple[str, ...], value: Any) -> dict[str, Any]:  # noqa: ANN401 - an array
    """A vector as an object of numbers."""
    return dict(zip(names, nulls(np.asarray(value).tolist()), strict=True))
