"""Bags of ROS 1 and ROS 2: each topic becomes channels with the clock of its messages. One bag is one episode.

As for MCAP files, an episode has T = 0: `Episode.align` resamples its channels at the times of one.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from shard_format.errors import (
    BadCompression,
    BadMagic,
    BadMetadata,
    BadValue,
    InvalidArgument,
    LimitExceeded,
    ShardError,
    ShardIOError,
)
from shard_format.extras import require
from shard_format.listing import natural_key
from shard_format.registry import DEFAULT_LIMITS
from shard_format.sources import open_regular, read_file
from shard_format.zstd import ZstdError, open_reader
from wshard._episode import Episode
from wshard.convert._hdf5 import as_json_value
from wshard.convert._mcap import read_topics
from wshard.convert._mcap_file import ChunkedFile, McapFile, MessageFile, decompress
from wshard.convert._messages import FieldNames, Places, Topic
from wshard.convert._model import DatasetReader, Notes, Probe, ReadOptions, inside
from wshard.convert._per_file import stem
from wshard.convert._ros import definitions, humble_definitions, ros_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wshard.convert._mcap_file import Message, Place
    from wshard.convert._message_columns import MessageDecoder

__all__ = ["MAGIC", "BagFile", "RosbagReader", "recognises"]

MAGIC: Final = b"#ROSBAG V2.0\n"
_SQLITE: Final = b"SQLite format 3\0"
_DESCRIPTION: Final = "metadata.yaml"
_KEY: Final = "rosbag2_bagfile_information"
_MOST_HEAD: Final = 4096
_MOST_YAML: Final = 16 << 20
_STORED: Final = (".mcap", ".db3", ".mcap.zstd", ".db3.zstd")
_PIECE: Final = 1 << 20
# How much larger a compressed file may become on disk.
_MOST_EXPANSION: Final = 1000
_NO_TIME: Final = -1


def recognises(probe: Probe) -> bool:
    """Whether it is a bag of ROS 1 or ROS 2, or a folder of bags."""
    if not probe.is_folder:
        if probe.head.startswith(MAGIC):
            return True
        return probe.head.startswith(_SQLITE) and _is_bag(probe.path)
    if _is_folder_of_ros2(probe.path) or _bags_in(probe.path):
        return True
    if _DESCRIPTION in probe.names and any(name.endswith(_STORED) for name in probe.names):
        probe.damage = probe.damage or _no_description(probe.path)
    return False


def _is_folder_of_ros2(folder: str) -> bool:
    path = os.path.join(folder, _DESCRIPTION)
    try:
        return os.path.isfile(path) and _KEY.encode() in read_file(path, _MOST_HEAD)
    except ShardError:
        return False


def _no_description(folder: str) -> BadMetadata:
    """The error for a `metadata.yaml` that describes something else."""
    return BadMetadata(
        "not the description of a bag of ROS 2",
        path=os.path.join(folder, _DESCRIPTION),
        expected=f"an object {_KEY!r} in its first {_MOST_HEAD} bytes",
        hint="if the MCAP files of the folder are recordings of their own, name the format: "
        "format='mcap', --from mcap",
    )


def _bags_in(folder: str) -> list[str]:
    """The bags directly in a folder."""
    found = []
    for name in sorted(os.listdir(folder), key=natural_key):
        path = os.path.join(folder, name)
        if os.path.isdir(path):
            is_bag = _is_folder_of_ros2(path)
        else:
            is_bag = name.endswith(".bag") and os.path.isfile(path)
        if is_bag:
            found.append(path)
    return found


def _is_bag(path: str) -> bool:
    try:
        with closing(_connect(path)) as database:
            return {"topics", "messages"} <= _tables(database).keys()
    except (sqlite3.Error, ShardError):
        return False


class RosbagReader(DatasetReader):
    """A bag, or a folder of bags."""

    def __init__(self, path: str, options: ReadOptions) -> None:
        super().__init__(path, options)
        is_many = os.path.isdir(path) and not _is_folder_of_ros2(path)
        self._bags = _bags_in(path) if is_many else [path]
        if not self._bags:
            if os.path.lexists(os.path.join(path, _DESCRIPTION)):
                raise _no_description(path)
            raise InvalidArgument(
                "the folder has no bags", path=path, expected=f"{_DESCRIPTION}, or files *.bag"
            )
        self._open: list[MessageFile] = []
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    def names(self) -> Sequence[str]:
        return [stem(path) for path in self._bags]

    def read(self, number: int, notes: Notes) -> Episode:
        # Only the last bag stays open, for its arrays: each keeps some of its chunks.
        self.close()
        path = self._bags[number]
        episode = Episode(stem(path))
        if os.path.isdir(path):
            self._read_folder(path, episode, notes)
        elif read_file(path, len(MAGIC)) == MAGIC:
            self._read_ros1(path, episode, notes)
        else:
            self._read_sqlite([path], episode, notes, {}, is_compressed=False)
        return episode

    def close(self) -> None:
        for file in self._open:
            file.close()
        for folder in self._folders:
            folder.cleanup()
        self._open.clear()
        self._folders.clear()

    def _add(self, topics: Mapping[Any, Topic], episode: Episode, notes: Notes) -> None:
        names = FieldNames()
        for topic in topics.values():
            topic.add_to(episode, notes, names, video=self.options.video)

    # --- ROS 1

    def _read_ros1(self, path: str, episode: Episode, notes: Notes) -> None:
        file = BagFile(path)
        self._open.append(file)
        topics: dict[Any, Topic] = {}
        for message in file.messages():
            one = file.connections[message[0]]
            key = (one["topic"], one["type"], one["message_definition"])
            topic = topics.get(key)
            if topic is None:
                types = definitions(one["type"], "ros1msg", one["message_definition"], path)
                decode = ros_decoder(one["topic"], one["type"], types, path, notes, is_cdr=False)
                group = sum(other[0] == one["topic"] for other in topics)
                topic = topics[key] = Topic(one["topic"], one["type"], decode, file.data, path)
                if group:  # the same topic with messages of another type
                    topic.origin["group"] = group
            topic.add(*message)
        self._add(topics, episode, notes)
        channels = []
        for number, one in file.connections.items():
            found = topics.get((one["topic"], one["type"], one["message_definition"]))
            known: dict[str, Any] = {"topic": one.pop("topic"), "encoding": "ros1", "id": number}
            if found is None or number not in found.channels:
                known["is_empty"] = True
            else:
                known |= found.facts
            text = one.pop("message_definition")
            schema = {"name": one.pop("type"), "encoding": "ros1msg", "text": text}
            channels.append({**known, "schema": schema, "metadata": one})
        episode.metadata["rosbag"] = {"version": "1", "channels": channels}

    # --- ROS 2

    def _read_folder(self, path: str, episode: Episode, notes: Notes) -> None:
        facts = _description(path)
        storage, mode = (
            facts["storage_identifier"],
            str(facts.get("compression_mode") or "").lower(),
        )
        files = [
            inside(path, os.path.basename(str(name)), what="a file of the bag")
            for name in facts["relative_file_paths"]
        ]
        if mode in ("file", "message"):
            compression = facts.get("compression_format")
            if compression != "zstd":
                raise BadMetadata(
                    "unknown compression of a bag",
                    path=path,
                    entry="compression_format",
                    expected="zstd",
                    found=compression,
                )
        if mode == "file":
            files = [self._decompressed(file) for file in files]
        if storage == "mcap":
            opened = [(_CompressedMcap if mode == "message" else McapFile)(file) for file in files]
            self._open.extend(opened)
            read_topics(opened, episode, notes, video=self.options.video)
            episode.metadata["rosbag"] = episode.metadata.pop("mcap")
        elif storage == "sqlite3":
            self._read_sqlite(files, episode, notes, facts, is_compressed=mode == "message")
        else:
            raise BadMetadata(
                "unknown storage of a bag",
                path=path,
                entry="storage_identifier",
                expected="sqlite3, mcap",
                found=storage,
            )
        kept = episode.metadata["rosbag"]
        kept["version"] = "2"
        kept["storage"] = storage
        distro, custom = facts.get("ros_distro"), facts.get("custom_data")
        if distro and isinstance(distro, str):
            kept["ros_distro"] = distro
        if custom and isinstance(custom, dict):
            # No lists and maps: YAML can repeat one within itself any number of times.
            plain = {k: v for k, v in custom.items() if not isinstance(v, (dict, list, set, tuple))}
            kept["custom_data"] = {str(key): as_json_value(value) for key, value in plain.items()}
            if len(plain) < len(custom):
                notes.dropped("custom_data", "lists and maps: a bag has texts there")

    def _decompressed(self, path: str) -> str:
        """A compressed file of a bag as a temporary one."""
        folder = tempfile.TemporaryDirectory(prefix="wshard-bag-")
        self._folders.append(folder)
        target = os.path.join(folder.name, stem(path))
        try:
            descriptor, status = open_regular(path)
            most = _MOST_EXPANSION * status.st_size + DEFAULT_LIMITS.max_decompressed_bytes
            with os.fdopen(descriptor, "rb") as source, open(target, "xb") as out:
                reader = open_reader(source)
                while piece := reader.read(_PIECE):
                    out.write(piece)
                    if out.tell() > most:
                        raise LimitExceeded(
                            "a compressed file of the bag becomes too large",
                            path=path,
                            expected=f"at most {most} bytes",
                            hint="decompress it with: zstd -d",
                        )
        except (ZstdError, EOFError) as error:
            raise BadCompression(
                f"zstd cannot decode a file of the bag: {error}", path=path
            ) from None
        except OSError as error:
            if isinstance(error, ShardIOError):
                raise
            raise ShardIOError.wrap(error, "cannot read", path) from error
        return target

    def _read_sqlite(
        self,
        paths: Sequence[str],
        episode: Episode,
        notes: Notes,
        facts: Mapping[str, Any],
        *,
        is_compressed: bool,
    ) -> None:
        files = [SqliteBag(path, is_compressed=is_compressed) for path in paths]
        self._open.extend(files)
        places = Places(files)
        topics: dict[Any, Topic] = {}
        channels: list[dict[str, Any]] = []
        for number, file in enumerate(files):
            for column in file.unknown_columns:
                notes.dropped(f"column {column} of messages", "not a part of a bag that is known")
            by_id: dict[int, Topic] = {}
            for channel, sequence, log, publish, data, place in file.messages():
                topic = by_id.get(channel)
                if topic is None:
                    name, kind, _ = file.topics[channel]
                    if (name, kind) not in topics:
                        decode = self._decoder(file, channel, notes)
                        group = sum(other == name for other, _ in topics)
                        made = topics[name, kind] = Topic(
                            name, kind, decode, places.data, file.path
                        )
                        if group:
                            made.origin["group"] = group
                        channels.append({**file.described(channel), **made.facts})
                    topic = by_id[channel] = topics[name, kind]
                topic.add(0, sequence, log, publish, data, places.place(number, place))
        self._add(topics, episode, notes)
        for file in files:
            for number, (name, kind, _) in file.topics.items():
                if all((one["topic"], one["schema"]["name"]) != (name, kind) for one in channels):
                    channels.append({**file.described(number), "is_empty": True})
        episode.metadata["rosbag"] = {"channels": channels}

    def _decoder(self, file: SqliteBag, channel: int, notes: Notes) -> MessageDecoder:
        topic, kind, encoding = file.topics[channel]
        if encoding != "cdr":
            raise BadMetadata(
                "unknown encoding of messages",
                path=file.path,
                entry=kind,
                expected="cdr",
                found=encoding,
            )
        found = file.definitions.get(kind)
        if found is not None:
            types = definitions(kind, found[0], found[1], file.path)
        else:
            types = humble_definitions()
            if kind in types:
                notes.filled(
                    f"definition of {kind}", "the bag has none: read as ROS 2 Humble defines it"
                )
        return ros_decoder(topic, kind, types, file.path, notes, is_cdr=True)


def _description(folder: str) -> dict[str, Any]:
    """What `metadata.yaml` says."""
    path = os.path.join(folder, _DESCRIPTION)
    yaml = require("ruamel.yaml", "ros")
    errors = require("ruamel.yaml.error", "ros")
    try:
        found = yaml.YAML(typ="safe", pure=True).load(read_file(path, _MOST_YAML))[_KEY]
        facts: dict[str, Any] = {**found, "relative_file_paths": [*found["relative_file_paths"]]}
        _ = facts["storage_identifier"]
    except (errors.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadMetadata(f"not the description of a bag: {error}", path=path) from None
    return facts


def _decompressed(data: bytes | memoryview, path: str) -> memoryview:
    """The bytes of a compressed message."""
    out = bytearray()
    try:
        reader = open_reader(data)
        while piece := reader.read(_PIECE):
            out += piece
            if len(out) > DEFAULT_LIMITS.max_decompressed_bytes:
                raise LimitExceeded("a message is too large to decompress", path=path)
    except (ZstdError, EOFError) as error:
        raise BadCompression(f"zstd cannot decode a message: {error}", path=path) from None
    return memoryview(out)


class _CompressedMcap(McapFile):
    """An MCAP file of a bag whose messages are compressed one by one."""

    def messages(self) -> Iterator[Message]:
        for *head, data, place in super().messages():
            yield *head, _decompressed(data, self.path), place  # type: ignore[misc] # as it came

    def data(self, place: Place) -> memoryview:
        return _decompressed(super().data(place), self.path)


# --- files of ROS 1


class BagFile(ChunkedFile):
    """A bag of ROS 1, version 2.0. Needs no index."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if bytes(self._file[: len(MAGIC)]) != MAGIC:
            raise BadMagic("not a bag of ROS 1", path=path, expected="version 2.0")
        self.connections: dict[int, dict[str, str]] = {}

    def messages(self) -> Iterator[Message]:
        at = len(MAGIC)
        while at < self._size:
            fields, start, stop = self._record(self._file, at)
            if self._number(fields, "op", 1) == _CHUNK:
                yield from self._records(self._chunks.put(at, self._chunk(at)), 0, at)
            else:
                yield from self._one(self._file, fields, start, stop, 0)
            at = stop

    def _records(self, content: memoryview, at: int, chunk: int) -> Iterator[Message]:
        while at < len(content):
            fields, start, stop = self._record(content, at)
            yield from self._one(content, fields, start, stop, chunk)
            at = stop

    def _one(
        self, content: memoryview, fields: dict[str, bytes], start: int, stop: int, chunk: int
    ) -> Iterator[Message]:
        op = self._number(fields, "op", 1)
        if op == _MESSAGE:
            connection = self._number(fields, "conn", 4)
            if connection not in self.connections:
                raise BadValue(
                    "a message belongs to a connection that the bag does not describe before it",
                    path=self.path,
                    found=f"connection {connection}",
                )
            time = self._number(fields, "time", 8)
            log = (time & 0xFFFFFFFF) * 1_000_000_000 + (time >> 32)
            yield connection, 0, log, _NO_TIME, content[start:stop], (chunk, start, stop)
        elif op == _CONNECTION:
            number = self._number(fields, "conn", 4)
            described = self._fields(content[start:stop])
            try:
                texts = {key: str(value, "utf-8") for key, value in described.items()}
                texts["topic"] = str(fields["topic"], "utf-8")
                for key in ("type", "message_definition"):
                    texts[key]
            except (KeyError, UnicodeDecodeError) as error:
                raise BadMetadata(
                    f"a connection of the bag is damaged: {error}", path=self.path
                ) from None
            self.connections.setdefault(number, texts)

    def _record(self, content: memoryview, at: int) -> tuple[dict[str, bytes], int, int]:
        """The fields of the record at an offset, and start and end of its data."""
        end = len(content)
        if at + 4 > end:
            raise self._cut("a record", at)
        size = int.from_bytes(content[at : at + 4], "little")
        start = at + 4 + size + 4
        if start > end:
            raise self._cut("the head of a record", at)
        length = int.from_bytes(content[start - 4 : start], "little")
        if start + length > end:
            raise self._cut("a record", at)
        return self._fields(content[at + 4 : at + 4 + size]), start, start + length

    def _fields(self, head: memoryview) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        content, at = bytes(head), 0
        while at < len(content):
            end = at + 4 + int.from_bytes(content[at : at + 4], "little")
            equals = content.find(b"=", at + 4, end)
            if equals < 0 or end > len(content):
                raise BadValue("a record of the bag has a damaged head", path=self.path)
            found[content[at + 4 : equals].decode("latin-1")] = content[equals + 1 : end]
            at = end
        return found

    def _number(self, fields: dict[str, bytes], name: str, width: int) -> int:
        value = fields.get(name, b"")
        if len(value) != width:
            raise BadValue(
                "a record of the bag lacks a field",
                path=self.path,
                expected=f"{name}, {width} bytes",
            )
        return int.from_bytes(value, "little")

    def _chunk(self, offset: int) -> memoryview:
        fields, start, stop = self._record(self._file, offset)
        compression = bytes(fields.get("compression", b"")).decode("latin-1")
        size = self._number(fields, "size", 4)
        name = f"{self.path}, chunk at {offset}"
        return decompress(compression, self._file[start:stop], size, name)


_MESSAGE, _CHUNK, _CONNECTION = 2, 5, 7


# --- SQLite files of ROS 2


class SqliteBag(MessageFile):
    """A SQLite file of a bag of ROS 2."""

    def __init__(self, path: str, *, is_compressed: bool) -> None:
        self.path = path
        self._is_compressed = is_compressed
        self._lock = threading.Lock()
        self.topics: dict[int, tuple[str, str, str]] = {}
        """By id: name, type, encoding of messages."""
        self.unknown_columns: list[str] = []
        self._facts: dict[int, dict[str, str]] = {}
        """By id of a topic: what else is known about it."""
        self.definitions: dict[str, tuple[str, str]] = {}
        """By type: encoding and text."""
        try:
            self._database = _connect(path)
            self._look()
        except sqlite3.Error as error:
            raise BadValue(f"not a usable SQLite file: {error}", path=path) from None

    def _look(self) -> None:
        tables = _tables(self._database)
        if not {"topics", "messages"} <= tables.keys():
            raise BadMetadata(
                "not a bag of ROS 2",
                path=self.path,
                expected="tables topics and messages",
                found=", ".join(sorted(tables)) or "no tables",
            )
        self.unknown_columns = sorted(tables["messages"] - _COLUMNS)
        for number, name, kind, encoding in self._database.execute(
            "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
        ):
            self.topics[number] = (str(name), str(kind), str(encoding))
        for column in sorted(tables["topics"] & _TOPIC_FACTS):
            for number, value in self._database.execute(f"SELECT id, {column} FROM topics"):
                if value:
                    self._facts.setdefault(number, {})[column] = str(value)
        if "message_definitions" in tables:
            for kind, encoding, text in self._database.execute(
                "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
            ):
                if encoding in ("ros2msg", "ros2idl"):
                    self.definitions[str(kind)] = (encoding, str(text))

    def described(self, number: int) -> dict[str, Any]:
        """A topic and the definition of its type, as JSON."""
        name, kind, encoding = self.topics[number]
        form, text = self.definitions.get(kind, ("", ""))
        schema = {"name": kind, "encoding": form, "text": text}
        facts = {"metadata": self._facts[number]} if number in self._facts else {}
        return {"id": number, "topic": name, "encoding": encoding, "schema": schema, **facts}

    def messages(self) -> Iterator[Message]:
        try:
            for number, topic, time, data in self._database.execute(
                "SELECT id, topic_id, timestamp, data FROM messages ORDER BY timestamp, id"
            ):
                is_known = topic in self.topics and type(number) is int
                if not is_known or type(time) is not int or type(data) is not bytes:
                    raise BadValue(
                        "a message of the bag is damaged",
                        path=self.path,
                        entry=f"messages, id {number}",
                        expected="a known topic, an integer and bytes",
                        found=f"topic {topic!r:.40}, {type(time).__name__}, {type(data).__name__}",
                    )
                yield topic, 0, time, _NO_TIME, self._content(data), (1, number, 0)
        except sqlite3.Error as error:
            raise BadValue(f"a damaged SQLite file: {error}", path=self.path) from None

    def data(self, place: Place) -> memoryview:
        with self._lock:
            try:
                row = self._database.execute(
                    "SELECT data FROM messages WHERE id = ?", (place[1],)
                ).fetchone()
            except sqlite3.Error as error:
                raise BadValue(f"a damaged SQLite file: {error}", path=self.path) from None
        if row is None or type(row[0]) is not bytes:
            raise BadValue("a message has gone", path=self.path, found=f"id {place[1]}")
        return self._content(row[0])

    def _content(self, data: bytes) -> memoryview:
        return _decompressed(data, self.path) if self._is_compressed else memoryview(data)

    def close(self) -> None:
        self._database.close()


def _connect(path: str) -> sqlite3.Connection:
    """A SQLite file, opened for reading only."""
    if not os.path.isfile(path):
        raise ShardIOError.wrap(
            FileNotFoundError(2, "No such file or directory"), "cannot read", path
        )
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def _tables(database: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """The columns of each plain table of a file: views and computed columns could give values without end."""
    found = {}
    for name, sql in database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
        if not isinstance(sql, str) or not sql.upper().startswith("CREATE TABLE"):
            continue
        columns = database.execute(
            "SELECT name, hidden FROM pragma_table_xinfo(?)", (name,)
        ).fetchall()
        if not any(hidden for _, hidden in columns):
            found[name] = frozenset(str(column) for column, _ in columns)
    return found


_COLUMNS: Final = frozenset(("id", "topic_id", "timestamp", "data"))
_TOPIC_FACTS: Final = frozenset(("offered_qos_profiles", "type_description_hash"))
