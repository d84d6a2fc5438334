"""Packs: datasets of samples in sharded files, as `shardpack` sees them."""

from __future__ import annotations

import base64
import math
import os
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

import shardpack
from shard_cli.files import known_size
from shard_cli.jobs import in_order
from shard_cli.kinds.container import difference, field_changes, first_difference
from shard_cli.kinds.container_checks import diagnosis
from shard_cli.kinds.model import (
    Change,
    Checked,
    Chosen,
    Diagnosis,
    NamedContent,
    TableRows,
    Target,
    field_lines,
    limits_of,
    matches,
    open_pack,
)
from shard_cli.kinds.pack_checks import ShardCheck, check_set, check_shard, checked
from shard_cli.text import count, exact_size, fit, percent, short_json, size
from shard_format.errors import (
    EntryNotFound,
    InvalidArgument,
    shorten,
)
from shard_format.opening import copying_urls
from shard_format.sources import is_url
from shardpack.dataset import expand, expand_set_files, find_repeated_keys
from shardpack.files import entry_file, metadata_json, record_files
from shardpack.sets import ShardSet, is_set_file, merge_schemas, set_files_in

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from shard_cli.console import Console, ProgressBar
    from shard_cli.kinds.model import Progress
    from shardpack import Dataset, Record
    from shardpack.files import RecordFile
    from shardpack.record import Entry

_VERSION: Final = 1  # the only one that readers open
# `info` answers at once: it reads the fields of this many shards, and only counts the others.
_MOST_READ: Final = 64
_KNOWN_FIELDS: Final = ("created", "revision", "schema", "user", "version")
# In a terminal, `ls --fields` cuts metadata that is longer.
_LONGEST_FIELDS: Final = 60
_JOINS: Final = {"stem": ".", "dir": "/"}


def files(path: str) -> list[str]:
    """The shards behind an argument, in order."""
    return [str(shard) for shard in expand(path)]


@contextmanager
def open_watched(
    shards: Sequence[str], args: argparse.Namespace, bar: ProgressBar
) -> Iterator[Dataset]:
    """A dataset that updates the progress bar while its records are read."""
    open_pack(shards[0], args).close()  # says what else it might be
    with _WatchedDataset(list(shards), limits=limits_of(args)) as dataset:
        total = sum(footer.index_offset for footer in dataset.footers())
        dataset.add = bar.adding_to(total)
        yield dataset


class _WatchedDataset(shardpack.Dataset):
    """A dataset that counts the bytes of the records that are asked for."""

    add: Callable[[int], None]

    def _count(self, record: Record) -> Record:
        self.add(record.size)
        return record

    def records(
        self, start: int = 0, stop: int | None = None, *, whole: bool = True
    ) -> Iterator[Record]:
        return map(self._count, super().records(start, stop, whole=whole))

    def take(self, indices: Iterable[int], **options: Any) -> list[Record]:  # noqa: ANN401 - of Dataset
        return [self._count(record) for record in super().take(indices, **options)]


# --- facts


def facts(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """What the footers and the metadata of the shards say, and the alignment of the first record."""
    with open_pack(path, args) as dataset:
        shards: list[dict[str, Any]] = []
        index_size = 0
        for location, footer in zip(dataset.locations, dataset.footers(), strict=True):
            row = {"file": location, "records": footer.record_count, "size": footer.total_size}
            shards.append(row)
            index_size += footer.total_size - footer.index_offset
        first = dataset.shards[0]
        fields = as_json(dataset.metadata)
        schema, complete = _merged_schema(dataset)
        found: dict[str, Any] = {
            "file": path,
            "format": "shardpack",
            "version": _VERSION,
            "shards": shards,
            "records": sum(shard["records"] for shard in shards),
            "file_size": sum(shard["size"] for shard in shards),
            "index_size": index_size,
            "created": fields.get("created"),
            **({"revision": fields["revision"]} if is_set_file(path) else {}),
            "alignment": first.take([0], whole=False)[0].alignment if len(first) else None,
            "metadata": fields.get("user", {}),
            "schema": schema,
            "schema_is_complete": complete,
        }
        others = {key: value for key, value in fields.items() if key not in _KNOWN_FIELDS}
        return {**found, "other_fields": others} if others else found


def _merged_schema(dataset: Dataset) -> tuple[dict[str, Any], bool]:
    """Content type and number of records of every entry name: of all shards, or of the first ones."""
    if "revision" in dataset.metadata:  # a set file has merged them
        schema = dataset.metadata.get("schema")
        return schema or {}, schema is not None
    schemas = [
        dataset.shards[number].metadata.get("schema")
        for number in range(min(len(dataset.shards), _MOST_READ))
    ]
    known = [one for one in schemas if isinstance(one, dict)]
    complete = len(known) == len(dataset.shards)
    return merge_schemas(known) or {}, complete


def as_json(value: Any) -> Any:  # noqa: ANN401 - any metadata
    """Metadata as JSON can say it: MessagePack has bytes, keys that are not text, and NaN."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else repr(key): as_json(one) for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [as_json(one) for one in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)


def show_facts(facts: dict[str, Any], console: Console) -> None:
    """Prints the facts for people."""
    console.facts(facts["file"], _lines(facts, console))


def _lines(facts: Mapping[str, Any], console: Console) -> Iterator[tuple[str, str]]:
    records, shards = facts["records"], facts["shards"]
    alignment = facts["alignment"]
    aligned = "" if alignment is None else f", entries aligned to {count(alignment, 'byte')}"
    yield "format", f"ShardPack, version {facts['version']}{aligned}"
    yield "records", f"{records:,} in {count(len(shards), 'shard')}"
    yield "file size", exact_size(facts["file_size"])
    yield "index", size(facts["index_size"])
    if facts["created"] is not None:
        yield "created", str(facts["created"])
    if facts.get("revision") not in (None, facts["created"]):
        yield "revision", str(facts["revision"])
    schema = facts["schema"]
    if schema or records:
        yield "entries", count(len(schema), "name") if schema else "too many names to list"
    for name, found in schema.items():
        kind = found["content_type"] or "several types"
        often = "" if found["records"] == records else f", in {count(found['records'], 'record')}"
        yield f"  {name}:", f"{kind}{often}"
    if schema and not facts["schema_is_complete"]:
        yield "", "(not of all shards)"
    fields = facts["metadata"]
    if fields:
        yield "metadata", count(len(fields), "field")
        yield from field_lines(fields if isinstance(fields, dict) else {"user": fields})
    if console.verbose and len(shards) > 1:
        for shard in shards:
            text = f"{count(shard['records'], 'record')}, {size(shard['size'])}"
            yield f"  {shard['file']}:", text


# --- rows


def _chosen_records(
    dataset: Dataset, path: str, args: argparse.Namespace, *, whole: bool = False
) -> Iterator[Record]:
    """The records whose keys match one of the patterns and the prefix, in order.

    Args:
        dataset, path, args: the pack, its name, and what the command was given.
        whole: whether all of each record is read; see `Dataset.records`.

    Raises:
        EntryNotFound: after the last record, if a pattern matches nothing. A typing mistake must not
            look like an empty result.
    """
    patterns, prefix = args.patterns, args.prefix
    if _are_exact(args):
        # The index finds exact keys without looking at every record.
        numbers = {pattern: dataset.find(pattern) for pattern in dict.fromkeys(patterns)}
        yield from dataset.take(sorted(one for one in numbers.values() if one is not None))
        unused = [pattern for pattern, number in numbers.items() if number is None]
    else:
        missing = dict.fromkeys(patterns)
        for record in dataset.records(whole=whole):
            key = record.key
            if prefix is not None and not key.startswith(prefix):
                continue
            fitting = [pattern for pattern in patterns if matches(key, pattern)]
            if fitting or not patterns:
                yield record
            for pattern in fitting:
                missing.pop(pattern, None)
        unused = list(missing)
    if unused:
        raise EntryNotFound(
            f"no record matches {shorten(unused[0])}",
            path=path,
            hint="'shardpack ls' lists the records",
        )


def _are_exact(args: argparse.Namespace) -> bool:
    """Whether the patterns are keys."""
    is_pattern = (set(pattern) & set("*?[") for pattern in args.patterns)
    return bool(args.patterns) and args.prefix is None and not any(is_pattern)


def chosen_keys(path: str, args: argparse.Namespace) -> set[str]:
    """The keys that patterns choose."""
    with open_pack(path, args) as dataset:
        return {record.key for record in _chosen_records(dataset, path, args)}


_SORT_KEYS: Final[dict[str, Callable[[Record], Any]]] = {
    "name": lambda record: record.key,
    "size": lambda record: (-_content_size(record), record.key),
    "stored": lambda record: (-record.size, record.key),
    "offset": lambda _: 0,  # as they are
}


def _sorted(records: Iterator[Record], args: argparse.Namespace) -> Iterable[Record]:
    return sorted(records, key=_SORT_KEYS[args.sort]) if args.sort else records


@contextmanager
def names(path: str, args: argparse.Namespace) -> Iterator[Iterator[str]]:
    """The keys that patterns choose."""
    with open_pack(path, args) as dataset:
        yield (record.key for record in _sorted(_chosen_records(dataset, path, args), args))


def listing(path: str, args: argparse.Namespace, console: Console) -> TableRows:
    """The records that patterns choose; with `--long` a row for each of their entries."""
    with open_pack(path, args) as dataset:
        records = [
            _record_fields(record, long=args.long)
            for record in _sorted(_chosen_records(dataset, path, args), args)
        ]
    show_size = str if args.bytes or not console.out_is_terminal else size
    headings = ["KEY", "SIZE", "STORED", "ENTRIES"]
    right: tuple[int, ...] = (1, 2)
    rows = [
        [
            record["key"],
            show_size(record["size"]),
            show_size(record["stored"]),
            " ".join(entry["name"] for entry in record["entries"]),
        ]
        for record in records
    ]
    if args.long:
        headings = ["KEY", "ENTRY", "SIZE", "STORED", "RATIO", "CODEC", "TYPE", "OFFSET", "CRC-32C"]
        right = (2, 3, 4, 7)
        rows = [
            [
                record["key"],
                entry["name"],
                show_size(entry["size"]),
                show_size(entry["stored"]),
                percent(entry["stored"], entry["size"]),
                entry["codec"],
                entry["content_type"] or "-",
                str(entry["offset"]),
                entry["crc32c"],
            ]
            for record in records
            for entry in record["entries"]
        ]
    if args.fields:
        headings.append("METADATA")
        fields = {record["key"]: short_json(record["metadata"]) for record in records}
        if console.out_is_terminal and not console.verbose:
            fields = {key: fit(text, _LONGEST_FIELDS) for key, text in fields.items()}
        if args.long:  # a record without entries has metadata, too
            rows += [
                [record["key"], *"-" * (len(headings) - 2)]
                for record in records
                if not record["entries"]
            ]
        rows = [[*row, fields[row[0]]] for row in rows]
    what = count(len(records), "record")
    if args.long:
        what += f", {count(sum(len(record['entries']) for record in records), 'entry')}"
    total, stored = (sum(record[key] for record in records) for key in ("size", "stored"))
    return TableRows(
        {"file": path, "records": records},
        headings,
        rows,
        right,
        f"{what}, {size(total)}, stored {size(stored)}",
    )


def _record_fields(record: Record, *, long: bool) -> dict[str, Any]:
    entries = []
    for entry in record.file_entries():
        fields: dict[str, Any] = {
            "name": entry.name,
            "content_type": entry.content_type,
            "size": entry.size,
            "stored": entry.stored_size,
            "codec": entry.compression,
        }
        if long:
            fields |= {"offset": entry.offset, "crc32c": f"{entry.crc32c:08x}"}
        entries.append(fields)
    return {
        "key": record.key,
        "size": sum(entry["size"] for entry in entries),
        "stored": record.size,
        "metadata": as_json(record.metadata),
        "entries": entries,
    }


# --- contents


@contextmanager
def members(
    path: str, names: Sequence[str], args: argparse.Namespace
) -> Iterator[list[NamedContent]]:
    """Entries of one record: `names` is its key, and the names of the entries."""
    wants_metadata = getattr(args, "metadata", False)
    if len(names) < 2 - wants_metadata or getattr(args, "range", None) is not None:
        raise InvalidArgument(
            "this is a pack of samples",
            path=path,
            expected="the key of a record, and names of its entries: FILE KEY NAME",
        )
    if wants_metadata and len(names) > 1:
        raise InvalidArgument(
            "--metadata takes the key of one record", path=path, found=f"{len(names)} names"
        )
    with open_pack(path, args) as dataset:
        key = names[0]
        record = dataset[key]
        if wants_metadata:
            yield [_metadata_member(key, record)]
            return
        entries = [record[name] for name in names[1:]]
        for entry in entries:  # damage shows before anything is written
            _ = entry.data
        yield [_member(key, _read_before(key, entry)) for entry in entries]


def _read_before(key: str, entry: Entry) -> RecordFile:
    """The file that an entry becomes, with the content that the entry has already."""
    return entry_file(key, entry)._replace(read=lambda: entry.data)


def _metadata_member(key: str, record: Record) -> NamedContent:
    """The metadata of a record, as one line."""
    fields = record.metadata
    text = (metadata_json(record) if fields else b"{}") + b"\n"
    facts = {"key": key, "name": "the metadata", "metadata": as_json(fields)}
    return NamedContent(key, facts, len(text), lambda _: iter((text,)))


@contextmanager
def chosen(path: str, args: argparse.Namespace) -> Iterator[Chosen]:
    """The entries of the records that patterns choose, and their metadata. Remote records come one after the other."""
    join = _JOINS[args.layout]
    with open_pack(path, args) as dataset:
        records = _chosen_records(dataset, path, args, whole=not args.dry_run)
        groups = (
            [_member(record.key, file) for file in record_files(record, args.metadata_entry, join)]
            for record in records
        )
        if dataset.is_remote and not args.dry_run:
            yield Chosen(groups, sum(footer.index_offset for footer in dataset.footers()))
            return
        members = [member for group in groups for member in group]
        yield Chosen([members], sum(member.size for member in members))


def _member(key: str, file: RecordFile) -> NamedContent:
    def pieces(_: tuple[int, int | None] | None = None) -> Iterator[bytes | memoryview]:
        yield file.read()

    fields = {"key": key, "name": file.name, "content_type": file.content_type}
    return NamedContent(file.path, fields, file.size, pieces, file.crc32c)


# --- comparing


@contextmanager
def compare(args: argparse.Namespace, progress: Progress) -> Iterator[tuple[Iterator[Change], str]]:
    """Compares records by key: metadata, and entries after decompression.

    Both packs are read once, from start to end, if what they share is in the same order, as their indexes tell. Otherwise
    B is read in the order of A; if it is remote, it is copied to a temporary file first.
    """
    with open_pack(args.a, args) as a, ExitStack() as opened:
        b = opened.enter_context(open_pack(args.b, args))
        twins = _twins(a, b)
        if twins is None and b.is_remote:
            opened.enter_context(copying_urls())
            b = opened.enter_context(open_pack(args.b, args))
        pairs = _pairs_by_key(a, b) if twins is None else _pairs_in_order(a, b, twins)
        yield _changes(a, b, pairs, progress, stored=args.stored), count(len(a), "record")


def _twins(a: Dataset, b: Dataset) -> NDArray[np.int64] | None:
    """For each record of A the number of the record of B whose key has the same hash, or -1.

    None if these numbers do not ascend, or if two records of a pack have the same hash.
    """
    ours, theirs = a.key_hashes(), b.key_hashes()
    _, of_a, of_b = np.intersect1d(ours, theirs, return_indices=True)
    twins = np.full(len(ours), -1)
    twins[of_a] = of_b
    has_repeats = any(len(np.unique(hashes)) < len(hashes) for hashes in (ours, theirs))
    is_ascending = bool((np.diff(twins[twins >= 0]) > 0).all())
    return twins if is_ascending and not has_repeats else None


class _Pair(NamedTuple):
    """Records of A and of B with the same key, and their numbers; None is one that the other pack does not have."""

    record: Record | None
    twin: Record | None
    numbers: tuple[int, int] = (0, 0)


def _pairs_in_order(a: Dataset, b: Dataset, twins: NDArray[np.int64]) -> Iterator[_Pair]:
    """Both packs, each read once; `twins` as `_twins` returns it."""
    theirs = enumerate(b.records())
    for number, record in enumerate(a.records()):
        wanted = int(twins[number])
        found = None
        for other, twin in theirs if wanted >= 0 else ():
            # Hashes collide: the keys decide.
            if other == wanted and twin.key == record.key:
                found = twin
            else:
                yield _Pair(None, twin)
            if other == wanted:
                break
        yield _Pair(record, found, (number, wanted))
    for _, twin in theirs:
        yield _Pair(None, twin)


def _pairs_by_key(a: Dataset, b: Dataset) -> Iterator[_Pair]:
    """The records of A, each with the one of B that has its key; then the others of B."""
    is_in_both = np.zeros(len(b), bool)
    for number, record in enumerate(a.records()):
        other = b.find(record.key)
        if other is None:
            yield _Pair(record, None)
            continue
        if is_in_both[other]:
            a.find(record.key)  # raises: the key is there twice
        is_in_both[other] = True
        yield _Pair(record, b[other], (number, other))
    for number in np.flatnonzero(~is_in_both).tolist():
        yield _Pair(None, b[number])


def _changes(
    a: Dataset, b: Dataset, pairs: Iterator[_Pair], progress: Progress, *, stored: bool
) -> Iterator[Change]:
    """All differences, in the order of A and then of B."""
    ours, theirs = (as_json(dataset.metadata.get("user") or {}) for dataset in (a, b))
    yield from _metadata_changes(None, ours, theirs)
    total = sum(footer.index_offset for dataset in (a, b) for footer in dataset.footers())
    done = 0
    only_in_b: list[Change] = []
    for record, twin, numbers in pairs:
        done += sum(one.size for one in (record, twin) if one is not None)
        progress(done, total)
        if record is None or twin is None:
            if record is not None:
                yield difference("only_in_a", record.key, a=_content_size(record))
            elif twin is not None:
                only_in_b.append(difference("only_in_b", twin.key, b=_content_size(twin)))
            continue
        if stored and numbers[0] != numbers[1]:
            yield difference("metadata", record.key, "number", *numbers)
        yield from _record_changes(record, twin, stored=stored)
    yield from only_in_b


def _content_size(record: Record) -> int:
    return sum(entry.size for entry in record.file_entries())


def _metadata_changes(entry: str | None, ours: Any, theirs: Any) -> Iterator[Change]:  # noqa: ANN401 - any metadata
    if isinstance(ours, dict) and isinstance(theirs, dict):
        yield from field_changes(entry, ours, theirs, "metadata.")
    else:
        yield from field_changes(entry, {"metadata": ours}, {"metadata": theirs})


def _record_changes(record: Record, other: Record, *, stored: bool) -> Iterator[Change]:
    key = record.key
    yield from _metadata_changes(key, as_json(record.metadata), as_json(other.metadata))
    for entry in record.file_entries():
        # Key and name, as `extract` joins them.
        place = f"{key}.{entry.name}"
        if entry.name not in other:
            yield difference("only_in_a", place, a=entry.size)
            continue
        twin = other[entry.name]
        at = first_difference(entry.data, twin.data)
        if at is not None:
            yield difference("content", place, a=entry.size, b=twin.size, offset=at)
        ours, theirs = (
            {"content_type": one.content_type, **({"codec": one.compression} if stored else {})}
            for one in (entry, twin)
        )
        yield from field_changes(place, ours, theirs)
    for entry in other.file_entries():
        if entry.name not in record:
            yield difference("only_in_b", f"{key}.{entry.name}", b=entry.size)


# --- checking


def verify(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[Checked]:
    """Checks the shards of each pack, several at once, and finds keys that are in a set twice."""
    for found in _check_packs(arguments, args, console):
        yield checked(found)


def diagnose(
    arguments: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[Diagnosis]:
    """What is wrong with each shard."""
    for found in _check_packs(arguments, args, console):
        state = found.opens, found.listed if found.opens else None, found.entries
        yield diagnosis(found.file, found.errors, (), state, {"header": None, "wrong_fields": {}})


def _check_packs(
    packs: Sequence[str], args: argparse.Namespace, console: Console
) -> Iterator[ShardCheck]:
    for pack in packs:
        is_given = is_set_file(pack)
        shards = [] if is_given else files(pack)
        sets, unreadable = _read_sets(expand_set_files(pack) if is_given else _sets_beside(shards))
        if is_given:
            shards = [shard for one in sets for shard in one.locations()]
        else:
            names = [os.path.basename(shard) for shard in shards]
            sets = [one for one in sets if one.is_about(names)]
        work = partial(check_shard, limits=limits_of(args))
        targets = _with_rows(shards, sets, is_hashed=is_given)
        found = list(in_order(targets, work, getattr(args, "jobs", None), console, "shard"))
        by_file = {one.file: one for one in found}
        hashes = [one.hashes for one in found]
        for error in find_repeated_keys([one.file for one in found], hashes, limits_of(args)):
            by_file[str(error.path)].errors.append(error)
        yield from found
        results = [check_set(one, by_file) for one in sets]
        yield from (result for result in results if is_given or result.errors)
        # One shard can be checked beside a set file that is not about it, and damaged.
        yield from unreadable if is_given or len(shards) > 1 else ()


def _sets_beside(shards: Sequence[str]) -> list[str]:
    """The set files in the folders of local shards."""
    folders = dict.fromkeys(os.path.dirname(shard) for shard in shards if not is_url(shard))
    return [path for folder in folders for path in set_files_in(folder)]


def _read_sets(paths: Sequence[str]) -> tuple[list[ShardSet], list[ShardCheck]]:
    """The set files that can be read, and what is wrong with the others."""
    sets: list[ShardSet] = []
    unreadable: list[ShardCheck] = []
    for path in paths:
        found = ShardCheck(path, shards=0)
        with found.noting():
            sets.append(ShardSet.read(path))
        unreadable += [found] if found.errors else []
    return sets, unreadable


def _with_rows(shards: Sequence[str], sets: Sequence[ShardSet], *, is_hashed: bool) -> list[Target]:
    """The shards, each with what a set file says about it."""
    listed = {
        location: (one, number) for one in sets for number, location in enumerate(one.locations())
    }
    targets: list[Target] = []
    for shard in shards:
        one, number = listed.get(shard, (None, 0))
        row = None if one is None else one.only(number)
        targets.append(Target(shard, known_size(shard), listed=row, is_hashed=is_hashed))
    return targets
