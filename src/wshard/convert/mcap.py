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

from shard_format.errors import BadMetadata, InvalidArgument
from shard_format.extras import require
from shard_format.listing import natural_key
from wshard._channels import Channel, Modality, RaggedChannel, TextChannel, is_frames
from wshard._episode import Episode
from wshard._metadata import Timebase
from wshard.convert._arrays import channel_of
from wshard.convert._mcap_file import MAGIC, McapFile
from wshard.convert._messages import JsonDecoder, Names, ProtobufDecoder, RawDecoder, Topic
from wshard.convert._model import Notes, Probe, ReadOptions, Source, Target, WriteOptions
from wshard.convert._ros import RosDecoder, definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from wshard.convert._mcap_file import McapSchema, MessageFile, Place
    from wshard.convert._messages import Decoder

__all__ = ["Reader", "Writer", "recognises"]


def recognises(probe: Probe) -> bool:
    """Whether it is an MCAP file, or a folder of them."""
    if not probe.is_folder:
        return probe.head.startswith(MAGIC)
    return "metadata.yaml" not in probe.names and any(n.endswith(".mcap") for n in probe.names)


class Reader(Source):
    """An MCAP file, or a folder of MCAP files."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        self._files = [path]
        if os.path.isdir(path):
            names = (name for name in os.listdir(path) if name.endswith(".mcap"))
            self._files = [os.path.join(path, name) for name in sorted(names, key=natural_key)]
            if not self._files:
                raise InvalidArgument("the folder has no MCAP files", path=path)
        self._open: list[MessageFile] = []

    def names(self) -> Sequence[str]:
        return [stem(path) for path in self._files]

    def read(self, number: int, notes: Notes) -> Episode:
        path = self._files[number]
        file = McapFile(path)
        self._open.append(file)
        episode = Episode(stem(path))
        read_topics([file], episode, notes)
        return episode

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()


def stem(path: str) -> str:
    """The name of a file without its ending."""
    return os.path.splitext(os.path.basename(os.path.abspath(path)))[0]


def read_topics(files: Sequence[McapFile], episode: Episode, notes: Notes) -> None:
    """Fills an episode with what the messages of some MCAP files say, which belong together."""
    topics: dict[Any, Topic] = {}
    places = Places(files)
    for number, file in enumerate(files):
        by_channel: dict[int, Topic] = {}
        for channel, sequence, log, publish, data, place in file.messages():
            topic = by_channel.get(channel)
            if topic is None:
                schema_id, name, encoding, _ = file.channels[channel]
                schema = file.schemas.get(schema_id)
                key = (name, encoding, schema)
                if key not in topics:
                    decode = decoder_for(name, encoding, schema, file.path, notes)
                    kind = schema.name if schema else ""
                    topics[key] = Topic(name, kind, decode, places.data, file.path)
                topic = by_channel[channel] = topics[key]
            topic.add(channel, sequence, log, publish, data, places.place(number, place))
    names = Names()
    for topic in topics.values():
        topic.add_to(episode, notes, names)
    episode.metadata["mcap"] = {
        "profile": files[0].profile,
        "library": files[0].library,
        "channels": [one for file in files for one in described(file)],
        "metadata": [one for file in files for one in file.metadata],
        "attachments": [],
    }
    for file in files:
        add_attachments(file, episode, notes)


class Places:
    """Places of messages in several files: the chunk also says which file it is in."""

    def __init__(self, files: Sequence[MessageFile]) -> None:
        self._files = files

    def place(self, number: int, place: Place) -> Place:
        """A place in one of the files as a place in all of them."""
        return (place[0] * len(self._files) + number, place[1], place[2])

    def data(self, place: Place) -> memoryview:
        """The bytes of a message."""
        chunk, number = divmod(place[0], len(self._files))
        return self._files[number].data((chunk, place[1], place[2]))


def decoder_for(
    topic: str, encoding: str, schema: McapSchema | None, path: str, notes: Notes
) -> Decoder:
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
        return RosDecoder(schema.name, types, is_cdr=encoding == "cdr", path=path)
    notes.kept(topic, f"the bytes of its messages, because the encoding {encoding!r} is not known")
    return RawDecoder()


def described(file: McapFile) -> list[dict[str, Any]]:
    """The channels of a file and their schemas, as JSON."""
    found = []
    for number, (schema_id, topic, encoding, metadata) in file.channels.items():
        one: dict[str, Any] = {"id": number, "topic": topic, "encoding": encoding}
        if metadata:
            one["metadata"] = metadata
        schema = file.schemas.get(schema_id)
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


_WITH_BYTES: Final = ("foxglove.RawImage", "foxglove.CompressedImage", "foxglove.PointCloud", "foxglove.CompressedVideo")
