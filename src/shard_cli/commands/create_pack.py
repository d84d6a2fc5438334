"""`shardpack create`: files grouped into records, in shards of a target size."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from shard_cli import arguments as arg
from shard_cli import pack_output
from shard_cli.exits import Exit
from shard_cli.files import STDIN, kind_of, read_argument, read_list
from shard_cli.jobs import executor_of, is_elsewhere
from shard_cli.text import count, duration, percent, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.console import Console
    from shard_cli.pack_output import OutputName
    from shardpack.packing import PackResult

# Processes pay for compressing at least this much; below it starting them takes longer.
_WORTH_PROCESSES: Final = 32 << 20
# Only a run of at least this many seconds says how long it took.
_LONG_SECONDS: Final = 2.0
_CODES: Final = {
    "unreadable": "io_error",
    "changed": "io_error",
    "metadata": "bad_metadata",
    "large": "limit_exceeded",
    "duplicate": "duplicate_name",
}
_GROUPINGS: Final = ("stem", "suffix", "dir")
# `shardpack.files.NO_SUFFIX`: the name of an entry whose file has no suffix.
_NO_SUFFIX: Final = "__file__"
_MANIFEST_FIELDS: Final = frozenset(("key", "files", "metadata"))


# --- samples


class SourceFile(NamedTuple):
    """One entry to be, as it was when it was listed."""

    name: str
    path: str
    size: int
    mtime_ns: int


class FileGroup(NamedTuple):
    """One record to be."""

    key: str
    files: list[SourceFile]
    metadata: dict[str, Any] | None = None
    """What a manifest says about it."""
    metadata_file: SourceFile | None = None
    """The file that has its metadata."""

    @property
    def all_files(self) -> list[SourceFile]:
        """With the one that has its metadata."""
        return [*self.files, *((self.metadata_file,) if self.metadata_file is not None else ())]

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.all_files)


class Obstacle(NamedTuple):
    """Something that keeps a sample from being packed."""

    kind: str
    """unreadable, changed, metadata (a file that does not hold a JSON object), large or duplicate."""
    key: str | None
    path: str
    reason: str

    def __str__(self) -> str:
        of = "" if self.key is None else f" (record {self.key!r})"
        return f"{self.path}: {self.reason}{of}"

    def to_fields(self) -> dict[str, Any]:
        """As `--json` shows it."""
        return self._asdict()


class CannotPack(Exception):
    """An obstacle that shows while a sample is read."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle)
        self.obstacle = obstacle


class _InputSamples:
    """Everything that the arguments name, in a fixed order: folders sorted, lists in their own order."""

    def __init__(self, args: argparse.Namespace, target: OutputName) -> None:
        self._grouping: str = args.group
        self._join: bool = args.join
        self._metadata_entry: str = args.metadata_entry
        self._hidden: bool = args.hidden
        self._target = target
        self.groups: list[FileGroup] = []
        self.skipped: list[dict[str, str]] = []
        """Paths that are not data, with the reason."""
        self.obstacles: list[Obstacle] = []
        """What is data and cannot be packed."""
        self.columns: dict[str, set[str]] = {}
        """With `--join`: the keys that each folder has files of."""

    def skip(self, path: str, reason: str) -> None:
        self.skipped.append({"path": path, "reason": reason})

    def add(
        self, key: str, files: list[SourceFile | None], metadata: dict[str, Any] | None = None
    ) -> None:
        """Adds a sample; one without one of its files is not a sample."""
        found = [file for file in files if file is not None]
        if len(found) < len(files):
            return
        with_metadata = [file for file in found if file.name == self._metadata_entry]
        if len(with_metadata) + bool(metadata) > 1:
            reason = "the record gets its metadata twice"
            self.obstacles.append(Obstacle("duplicate", key, with_metadata[-1].path, reason))
            return
        entries = [file for file in found if file.name != self._metadata_entry]
        self.groups.append(FileGroup(key, entries, metadata, *with_metadata))

    def add_folder(self, folder: str) -> None:
        """Adds the files of a folder, then those of the folders in it."""
        waiting = [(folder, "")]  # a list, because folders can be deeper than Python's stack
        joined: list[tuple[str, str]] = []
        while waiting:
            where, key = waiting.pop()
            files, folders = self._list_folder(where, key)
            if self._join:
                joined += files
            else:
                # The folder that was given has no name inside itself.
                above = key or f"{os.path.basename(os.path.abspath(where))}/"
                self._group(files, above.removesuffix("/"))
            waiting += reversed(folders)
        self._group(joined, "")

    def _list_folder(
        self, folder: str, key: str
    ) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """The files and the folders in a folder, each with its path inside the input: for folders, a slash at the end."""
        try:
            with os.scandir(folder) as scan:
                children = sorted(scan, key=lambda child: os.fsencode(child.name))
        except OSError as error:
            self.obstacles.append(Obstacle("unreadable", None, folder, _reason(error)))
            return [], []
        if not children:
            self.skip(folder, "an empty folder")
        files: list[tuple[str, str]] = []
        folders: list[tuple[str, str]] = []
        for child in children:
            if child.name.startswith(".") and not self._hidden:
                self.skip(child.path, "hidden; --hidden packs it")
            elif child.is_dir(follow_symlinks=False):
                folders.append((child.path, f"{key}{child.name}/"))
            elif not child.is_file(follow_symlinks=False):
                self.skip(child.path, kind_of(child.stat(follow_symlinks=False).st_mode))
            elif self._target.is_own(child.path):
                self.skip(child.path, "the output itself")
            else:
                files.append((f"{key}{child.name}", child.path))
        return files, folders

    def add_list(self, argument: str, base: str) -> None:
        """Adds listed files."""
        from shard_format.errors import InvalidArgument

        files: list[tuple[str, str]] = []
        above = os.path.abspath(base)
        for path in map(os.fsdecode, read_list(argument)):
            inside = os.path.relpath(os.path.abspath(path), above).replace(os.sep, "/")
            if inside == ".." or inside.startswith("../"):
                where = "the current folder" if base == os.curdir else base
                raise InvalidArgument(
                    f"a listed file is outside {where}",
                    path=path,
                    hint="pass --base DIR: keys are paths relative to it",
                )
            if os.path.isdir(path):
                self.skip(path, "a folder in a list of files")
            else:
                files.append((inside, path))
        self._group(files, os.path.basename(above))

    def add_manifest(self, path: str, base: str | None) -> None:
        """Adds the samples that a manifest lists, in its order.

        Each line is `{"key": "a", "files": {"left.jpg": "photos/1.jpg"}, "metadata": {"label": 3}}`; `files`
        may also be a list of paths, whose last parts are the names. Paths are relative to `base`, or to the
        folder of the manifest.
        """
        folder = os.path.dirname(path) if base is None else base
        lines_by_key: dict[str, int] = {}
        for number, line in enumerate(read_argument(path).split(b"\n"), 1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            key, files, metadata = _parse_line(where, line)
            first = lines_by_key.setdefault(key, number)
            if first != number:
                reason = f"the same key as line {first}"
                self.obstacles.append(Obstacle("duplicate", key, where, reason))
                continue
            found = [self._file(key, name, os.path.join(folder, inside)) for name, inside in files]
            self.add(key, found, metadata)

    def _group(self, files: list[tuple[str, str]], root: str) -> None:
        """Puts files into samples; `root` is the key for files that are in no folder."""
        groups: dict[str, list[SourceFile | None]] = {}
        for inside, path in files:
            column, slash, rest = inside.partition("/") if self._join else ("", "", inside)
            key, name = split_name(rest or column, self._grouping, root, self._metadata_entry)
            if slash and name != self._metadata_entry:
                self.columns.setdefault(column, set()).add(key)
                name = column if name == _NO_SUFFIX else f"{column}.{name}"
            groups.setdefault(key, []).append(self._file(key, name, path))
        for key, members in groups.items():
            self.add(key, members)

    def _file(self, key: str, name: str, path: str) -> SourceFile | None:
        """The file as it is now; None if it cannot be packed, which is noted before anything is written."""
        try:
            f"{key}{name}".encode()
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                folder = stat.S_ISDIR(status.st_mode)
                problem = f"{'a folder' if folder else kind_of(status.st_mode)}, not a file"
            elif not os.access(path, os.R_OK):
                problem = "permission denied"
            else:
                return SourceFile(name, path, status.st_size, status.st_mtime_ns)
        except UnicodeEncodeError:
            problem = "its name is not UTF-8"
        except OSError as error:
            problem = _reason(error)
        shown = key.encode("utf-8", "backslashreplace").decode()
        self.obstacles.append(Obstacle("unreadable", shown, path, problem))
        return None

    def lacking(self) -> dict[str, list[str]]:
        """With `--join`: by folder, the keys that have files in other folders and not in this one."""
        keys = dict.fromkeys(key for column in self.columns.values() for key in column)
        return {
            column: sorted(keys.keys() - own)
            for column, own in self.columns.items()
            if keys.keys() - own
        }

    def refuse_repeated(self) -> None:
        """Takes out keys that come twice, and names that come twice in a record, and names them."""
        seen: dict[str, FileGroup] = {}
        for group in self.groups:
            first = seen.setdefault(group.key, group)
            names = [file.name for file in group.files]
            if first is not group:
                path = group.all_files[0].path
                reason = f"the same key as {first.all_files[0].path}"
            elif len(set(names)) != len(names):
                path = next(file.path for file in group.files if names.count(file.name) > 1)
                reason = "two files of the record have the same name"
            else:
                continue
            self.obstacles.append(Obstacle("duplicate", group.key, path, reason))
        self.groups = list(seen.values())

    def refuse_large(self, limit: int) -> None:
        """Takes samples above the limit out and names them."""
        for group in self.groups:
            if group.size > limit:
                largest = max(group.all_files, key=lambda file: file.size)
                reason = f"the record has {group.size:,} bytes, above --record-size-limit {limit:,}"
                self.obstacles.append(Obstacle("large", group.key, largest.path, reason))
        self.groups = [group for group in self.groups if group.size <= limit]


def split_name(
    inside: str, grouping: str, root: str, metadata_entry: str | None = None
) -> tuple[str, str]:
    """Key and entry name of a file, from its path inside the input."""
    folder, slash, last = inside.rpartition("/")
    if grouping == "dir":
        return folder or root, last
    stem = inside.removesuffix(f".{metadata_entry}")
    if grouping == "suffix" and stem not in (inside, f"{folder}{slash}"):
        return stem, inside[len(stem) + 1 :]  # this name has a dot of its own
    # A dot at the start hides a file and does not end its stem.
    hidden = len(last) - len(last.lstrip("."))
    at = last.find(".", hidden) if grouping == "stem" else last.rfind(".", hidden)
    if at < 0 or last[at + 1 :] in ("", _NO_SUFFIX):
        return inside, _NO_SUFFIX
    return f"{folder}{slash}{last[:at]}", last[at + 1 :]


def _reason(error: OSError) -> str:
    from shard_format.errors import must_stop

    if must_stop(error):  # not about this file
        raise error
    return (error.strerror or str(error)).lower()


def _parse_line(
    where: str, line: bytes
) -> tuple[str, list[tuple[str, str]], dict[str, Any] | None]:
    """Key, files by name, and metadata of a line of a manifest."""
    from shard_format.canonical_json import parse_object
    from shard_format.errors import InvalidArgument, ShardError
    from shard_format.registry import DEFAULT_LIMITS

    try:
        fields = parse_object(line, "the line", DEFAULT_LIMITS)
    except ShardError as error:
        raise InvalidArgument(f"this is not a JSON object: {error}", path=where) from None
    key, files, metadata = fields.get("key"), fields.get("files"), fields.get("metadata")
    if isinstance(files, list):
        pairs = [(os.path.basename(one) if isinstance(one, str) else "", one) for one in files]
    else:
        pairs = list(files.items()) if isinstance(files, dict) else [("", files)]
    unknown = sorted(fields.keys() - _MANIFEST_FIELDS)
    problem = None
    if not isinstance(key, str) or not key:
        problem = '"key" must be text that is not empty'
    elif metadata is not None and not isinstance(metadata, dict):
        problem = '"metadata" must be an object'
    elif unknown:
        problem = f"unknown field {unknown[:1]}; facts about the sample go to metadata"
    elif not all(name and isinstance(inside, str) and inside for name, inside in pairs):
        problem = '"files" must be a list of paths, or an object of names and paths'
    elif len(dict(pairs)) != len(pairs):
        problem = (
            "two files of the record have the same name; give names of your own: "
            '"files": {"left.jpg": "path", …}'
        )
    if problem is not None:
        raise InvalidArgument(problem, path=where)
    assert isinstance(key, str)
    return key, pairs, metadata


def read_group(group: FileGroup) -> tuple[str, dict[str, bytes], dict[str, Any] | None]:
    """The sample as `shardpack.pack` takes it.

    Raises:
        CannotPack: a file cannot be read, or is not what it was when it was listed.
    """
    return (
        group.key,
        {file.name: read_file(group.key, file) for file in group.files},
        group.metadata if group.metadata_file is None else _read_metadata(group),
    )


def _read_metadata(group: FileGroup) -> dict[str, Any]:
    from shard_format.canonical_json import parse_object
    from shard_format.errors import ShardError
    from shard_format.registry import DEFAULT_LIMITS

    assert group.metadata_file is not None
    data = read_file(group.key, group.metadata_file)
    try:
        return parse_object(data, "the metadata", DEFAULT_LIMITS)
    except ShardError as error:
        path = group.metadata_file.path
        reason = f"{error.problem}{error.facts}; another --metadata-entry packs it as an entry"
        raise CannotPack(Obstacle("metadata", group.key, path, reason)) from None


def read_file(key: str, file: SourceFile) -> bytes:
    """The content of a file that is as it was when it was listed."""
    from shard_format.errors import InvalidArgument
    from shard_format.sources import open_regular

    kind = "changed"
    try:
        with os.fdopen(open_regular(file.path)[0], "rb") as opened:
            # One byte more than there should be: a file that grows shows itself, and costs no memory.
            data = opened.read(file.size + 1)
            status = os.fstat(opened.fileno())
        now = status.st_size if len(data) == file.size else max(len(data), status.st_size)
        if now == file.size and status.st_mtime_ns == file.mtime_ns:
            return data
        reason = "it changed while packing: "
        if now == file.size:
            reason += "it was written to after it was listed"
        else:
            reason += f"{file.size:,} bytes, now {now:,}"
    except FileNotFoundError:
        reason = "it vanished while packing"
    except OSError as error:
        kind, reason = "unreadable", _reason(error)
    except InvalidArgument as error:
        reason = f"it changed while packing: {error.problem}"
    raise CannotPack(Obstacle(kind, key, file.path, reason))


# --- packing


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format import Compression
    from shard_format.errors import InvalidArgument, ShardError

    # Report what is wrong with the command before looking at any file.
    args.label = pack_output.set_label(args)
    target = pack_output.parse_target(args.output, args.label)
    Compression.parse(args.compression)
    pack_output.metadata_of(args)
    inputs = _collect(args, target)
    if args.part is not None:
        _take_part(inputs, args)
    for one in inputs.skipped:
        console.warn(f"skipped {one['path']}: {one['reason']}")
    for column, lacking in inputs.lacking().items():
        some = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
        console.warn(f"no file in {column}/ for {count(len(lacking), 'record')}: {some}")
    refused = [one for one in inputs.obstacles if not _may_skip(one, args)]
    if refused:
        return _refuse(args, console, inputs, refused)
    if not inputs.groups and not inputs.obstacles and args.part is None:
        given = ", ".join(args.input) or args.group
        hint = "folders are searched for files"
        raise InvalidArgument("there is nothing to pack", path=given, hint=hint)
    for obstacle in inputs.obstacles:
        console.warn(f"left out {obstacle}")
    if args.dry_run:
        return _report_dry_run(args, console, inputs)
    existing = target.existing() if args.resume else []
    created, groups = _missing(inputs.groups, existing)
    for path in _leftovers(target) if args.resume else ():
        console.note(f"a killed run left {path}; you can remove it")
    start = time.monotonic()
    try:
        done = _pack(groups, args, console, created)
    except ShardError as error:
        stopped = _obstacle_of(error.__cause__, groups)
        if stopped is None:
            raise
        return _refuse(args, console, inputs, [stopped], started=True)
    failed = {one.number: _obstacle_of(one.cause, [groups[one.number]]) for one in done.failed}
    left_out = [*inputs.obstacles, *(one for one in failed.values() if one is not None)]
    for obstacle in left_out[len(inputs.obstacles) :]:
        console.warn(f"left out {obstacle}")
    if args.part is not None:
        console.note(f"this is part {args.part}; 'shardpack commit' makes a set of all parts")
    packed = [group for number, group in enumerate(groups) if number not in failed]
    kept = existing if target.pattern is not None else []
    written, brief = pack_output.written_facts(console, done.paths[len(kept) :], done.records)
    fields: dict[str, Any] = {
        "output": args.output,
        "dry_run": False,
        **written,
        "kept_shards": kept,
        "known_records": len(inputs.groups) - len(groups),
        "entries": sum(len(group.files) for group in packed),
        "metadata_files": sum(group.metadata_file is not None for group in packed),
        "content_size": sum(group.size for group in packed),
        "skipped": inputs.skipped,
        "left_out": [one.to_fields() for one in left_out],
    }
    for group in packed if console.verbose else ():
        console.detail(printable(group.key))
    seconds = time.monotonic() - start
    lines = _lines(fields, seconds, resumed=bool(existing), more=console.verbose)
    console.report(fields, *((brief,) if console.out_is_data else lines))
    return Exit.IO if left_out else Exit.OK


def _lines(fields: dict[str, Any], seconds: float, *, resumed: bool, more: bool) -> Iterator[str]:
    records, content, written = fields["records"], fields["content_size"], fields["size"]
    if resumed:
        yield f"{count(fields['known_records'], 'record')} were there already"
    if resumed and not records:
        yield "nothing was missing"
    else:
        paths = [shard["file"] for shard in fields["shards"]]
        yield (
            f"{pack_output.shown_paths(paths)}: {count(records, 'record')} with "
            f"{count(fields['entries'], 'entry')} in {count(len(paths), 'shard')}, {size(written)} "
            f"({percent(written, content)} of {size(content)})"
        )
        if seconds >= _LONG_SECONDS or more:
            yield f"took {duration(seconds)}, {size(int(content / seconds))}/s"
    if fields["metadata_files"]:
        yield f"{count(fields['metadata_files'], 'file')} became the metadata of their records"
    if fields["skipped"]:
        yield f"skipped {count(len(fields['skipped']), 'path')} without data"
    if fields["left_out"]:
        number = len(fields["left_out"])
        yield f"left out {count(number, 'record or file', 'records or files')}"


def _collect(args: argparse.Namespace, target: OutputName) -> _InputSamples:
    from shard_format.errors import InvalidArgument

    inputs = _InputSamples(args, target)
    if args.join and args.group not in ("stem", "suffix"):
        raise InvalidArgument("--join needs --group stem or suffix", found=f"--group {args.group}")
    if args.group in _GROUPINGS:
        if not args.input:
            raise InvalidArgument("--input is missing", expected="a folder, a list, or -")
        for argument in args.input:
            if argument != STDIN and os.path.isdir(argument):
                inputs.add_folder(argument)
            else:
                inputs.add_list(argument, args.base or os.curdir)
        inputs.refuse_repeated()
    else:
        if not os.path.isfile(args.group):
            raise InvalidArgument(
                "unknown --group",
                expected=f"{', '.join(_GROUPINGS)}, or a manifest LIST.jsonl",
                found=repr(args.group),
            )
        if len(args.input) > 1 or (args.input and not os.path.isdir(args.input[0])):
            raise InvalidArgument("with a manifest, --input is the one folder of its paths")
        inputs.add_manifest(args.group, args.input[0] if args.input else args.base)
    inputs.refuse_large(args.record_size_limit)
    return inputs


def _take_part(inputs: _InputSamples, args: argparse.Namespace) -> None:
    """Keeps the records of one part. All parts together have all records if all machines list the same files."""
    import hashlib

    listing = hashlib.sha256(str(args.metadata).encode(errors="surrogateescape"))
    for group in inputs.groups:
        facts = (group.key, [(file.name, file.size) for file in group.files], group.metadata)
        listing.update(repr(facts).encode(errors="surrogateescape"))
    # Machines that list other files have another revision, and 'commit' notices it.
    label = args.label = pack_output.set_label(args, listing.hexdigest()[:16])
    assert label is not None  # --part was given
    start, stop = (len(inputs.groups) * n // label.parts for n in (label.part - 1, label.part))
    inputs.groups = inputs.groups[start:stop]


def _may_skip(obstacle: Obstacle, args: argparse.Namespace) -> bool:
    if obstacle.kind == "large":
        return bool(args.skip_large)
    return obstacle.kind != "duplicate" and bool(args.skip_unreadable)


def _refuse(
    args: argparse.Namespace,
    console: Console,
    inputs: _InputSamples,
    refused: list[Obstacle],
    *,
    started: bool = False,
) -> Exit:
    """Prints everything that is wrong with the inputs."""
    if console.as_json:
        errors = [obstacle.to_fields() for obstacle in refused]
        console.document({"output": args.output, "errors": errors, "skipped": inputs.skipped})
    for obstacle in refused:
        console.error(str(obstacle), _CODES[obstacle.kind])
    if not started:
        options = {"large": "--skip-large", "duplicate": ""}
        hints = sorted({options.get(one.kind, "--skip-unreadable") for one in refused} - {""})
        hint = f"; {' and '.join(hints)} would leave them out" if hints else ""
        console.note(f"nothing was written: {count(len(refused), 'problem')}{hint}")
    return Exit.FINDING


def _missing(
    groups: list[FileGroup], existing: list[str]
) -> tuple[dict[str, Any], list[FileGroup]]:
    """The creation time of the shards that exist, and the samples that are not in them."""
    import shardpack

    if not existing:
        return {}, groups
    with shardpack.open(existing) as dataset:
        # The shards of one set have the same time, as if the run had never been interrupted.
        created = dataset.shards[0].metadata.get("created")
        options = {"created": created if isinstance(created, str) else None}
        return options, [group for group in groups if group.key not in dataset]


def _leftovers(target: OutputName) -> Iterator[str]:
    """Unfinished files of killed writers."""
    from shard_format.atomic import TEMPORARY, is_abandoned

    folder = os.path.dirname(target.name)
    for name in sorted(os.listdir(folder or os.curdir)) if os.path.isdir(folder or ".") else ():
        match, path = TEMPORARY.fullmatch(name), os.path.join(folder, name)
        if match and target.is_own(os.path.join(folder, match[1])) and is_abandoned(path):
            yield path


def _pack(
    groups: list[FileGroup], args: argparse.Namespace, console: Console, created: dict[str, Any]
) -> PackResult:
    import shardpack

    total = sum(group.size for group in groups)
    # Without compression, one process reads as fast as the disk.
    is_heavy = args.compression not in (None, "none") and total >= _WORTH_PROCESSES
    sizes = iter([group.size for group in groups])
    with (
        pack_output.written_output(args, console) as (output, options),
        console.progress(f"pack {count(len(groups), 'record')}") as bar,
    ):
        add = bar.adding_to(total)
        # One file has the limits of a set, too: a record above them is an error.
        limits = {"max_bytes": args.shard_size, "max_records": args.shard_records}
        return shardpack.pack(
            groups,
            output,
            read_group,
            processes=executor_of(args)
            if is_elsewhere(args)
            else args.jobs or (None if is_heavy else 0),
            on_error="skip" if args.skip_unreadable else "raise",
            progress=lambda done: add(sum(next(sizes) for _ in range(done))),
            refuse_full="first" not in options,
            max_record_bytes=args.record_size_limit,
            **limits | options | created,
        )


def _obstacle_of(error: BaseException | None, groups: list[FileGroup]) -> Obstacle | None:
    """The obstacle behind an error of `pack`; None if it is something else."""
    from shard_format.errors import LimitExceeded

    if isinstance(error, CannotPack):
        return error.obstacle
    if isinstance(error, LimitExceeded):  # the head of a record takes it above the limit
        group = next((one for one in groups if one.key == error.entry), groups[0])
        return Obstacle("large", group.key, group.all_files[0].path, str(error))
    return None


def _report_dry_run(args: argparse.Namespace, console: Console, inputs: _InputSamples) -> Exit:
    records = [
        {
            "key": group.key,
            "size": group.size,
            "files": {file.name: file.path for file in group.all_files},
        }
        for group in inputs.groups
    ]
    total = sum(group.size for group in inputs.groups)
    for group in () if console.as_json else inputs.groups:
        names = ", ".join(file.name for file in group.all_files)
        console.line(f"{printable(group.key)}\t{group.size}\t{printable(names)}")
    console.report(
        {
            "output": args.output,
            "dry_run": True,
            "records": records,
            "skipped": inputs.skipped,
            "left_out": [obstacle.to_fields() for obstacle in inputs.obstacles],
        },
        f"would pack {count(len(records), 'record')}, {size(total)}",
    )
    return Exit.IO if inputs.obstacles else Exit.OK


SHARDPACK = arg.Command(
    "create",
    _run,
    (
        arg.repeated(
            "-i --input DIR|LIST|-",
            "a folder, a file with one path on each line, or - for such a list from stdin",
        ),
        *pack_output.OUTPUT,
        arg.option(
            "--record-size-limit SIZE",
            "refuse records with more content than SIZE (default 1G)",
            default=1 << 30,
        ),
        *pack_output.STORAGE,
        arg.metadata(several=True),
        arg.option(
            "-g --group HOW",
            "what makes a record: stem (a.jpg and a.json are record a; names are split at the first dot), "
            "suffix (at the last dot), dir (all files of a folder), or a file LIST.jsonl with key, files and "
            "metadata on each line (default: stem)",
            default="stem",
        ),
        arg.flag(
            "--join",
            "with stem or suffix: the first folder of a path names the entry, not the record: "
            "images/7.jpg and labels/7.txt are images.jpg and labels.txt of record 7",
        ),
        arg.metadata_entry("the name of a file that becomes the metadata of its record"),
        arg.option(
            "--base DIR", "keys of listed files are relative to DIR (default: the current folder)"
        ),
        arg.option(
            "--part K/N",
            "write only the K-th of N parts, which other machines write at the same time; "
            "'shardpack commit' then makes a set of them",
        ),
        arg.option(
            "--revision TEXT",
            "names this state of the set; the same for all parts of a run (default: the time of creation; "
            "with --part, a hash of the names and sizes of all files)",
        ),
        arg.flag("--hidden", "also pack files and folders that start with a dot"),
        arg.flag(
            "--resume --append",
            "keep the shards that exist and pack only records that are not in them",
        ),
        arg.flag(
            "--skip-unreadable",
            "leave out records with files that cannot be read, vanish or change; exit code 3",
        ),
        arg.flag("--skip-large", "leave out records above the size limit; exit code 3"),
        arg.JOBS,
        *arg.ENGINE,
        arg.DRY_RUN,
    ),
    """
pack files into records

Keys are paths inside the folder. Records are in the order of the names, or of the list; the same
files give the same bytes, whatever --jobs is (set SOURCE_DATE_EPOCH for the same time). Links and
special files in folders are skipped and named. Each shard appears when it is complete: after Ctrl-C
or a crash, --resume continues after the last one.

shardpack create --input photos --output train-%06d.shardpack                 # a.jpg and a.json: record a
shardpack create -i photos -o p.shardpack -c lz4 --metadata creator="MyName"  # compressed, with a field
shardpack create -i runs -o runs.shardpack --group dir                        # each folder is a record
shardpack create -o set-%06d.shardpack --group list.jsonl                     # as a manifest says
shardpack create -i coco -o coco.shardpack --join                             # coco/images and coco/labels
find . -name '*.jpg' -print0 | shardpack create -i - -o jpg.shardpack         # from a list
shardpack create -i photos -o train-%06d.shardpack --resume                   # continue where it stopped
shardpack create -i photos -o train-%06d.shardpack --part 3/16                # on the third of 16 machines
""",
)
