"""`shard info`: what a file is, at once, whatever its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command
from shard_cli.exits import Exit, error_fields, exit_for, message_of, worst
from shard_cli.opening import open_shard
from shard_cli.pack_files import is_pack
from shard_cli.text import count, exact_size, fit, percent, printable, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping

    from shard_cli.output import Console

_LABEL_COLUMNS = 14
_LONGEST_VALUE = 400


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of the Shard family")


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.commands.packs.info import pack_facts, show_pack
    from shard_cli.summary import summarise
    from shard_format.errors import ShardError

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for number, path in enumerate(args.files):
        show = _show
        try:
            if is_pack(path):
                facts, show = pack_facts(path), show_pack
            else:
                with open_shard(path) as reader:
                    facts = summarise(reader)
        except ShardError as error:
            codes.append(exit_for(error.code))
            results.append({"file": path, "error": error_fields(error)})
            console.error(message_of(error), error.code)
            continue
        results.append(facts)
        if not console.as_json:
            if number:
                console.line()
            show(facts, console)
    if console.as_json:
        console.document({"files": results})
    return worst(codes)


def _show(facts: Mapping[str, Any], console: Console) -> None:
    show_facts(facts["file"], _lines(facts), console)


def show_facts(file: str, lines: Iterable[tuple[str, str]], console: Console) -> None:
    """A file and its facts, each with a label."""
    console.line(console.style(printable(file), "bold"))
    for label, value in lines:
        text = printable(value)
        if console.out_is_terminal and not console.verbose:
            text = fit(text, max(20, console.columns - _LABEL_COLUMNS - 2))
        # Fields have keys of any length: their values follow at once.
        shown = f"{label} " if label.endswith(":") else label.ljust(_LABEL_COLUMNS)
        console.line(f"  {printable(shown)}{text}")


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "role", f"{facts['role_name']} ({facts['role']})".replace(f" ({facts['role']})" * 2, "")
    yield "format", f"version {facts['version']}, {_alignment(facts['alignment'])}"
    yield "flags", ", ".join(facts["flag_names"]) or "none"
    yield "file size", exact_size(facts["file_size"])
    yield "entries", f"{facts['entries']:,}"
    if facts["entries"]:
        stored = f"{size(facts['stored'])} ({percent(facts['stored'], facts['size'])})"
        yield "content", f"{exact_size(facts['size'])}, stored as {stored}"
        yield "codecs", _counts(facts["codecs"])
        yield "types", _counts(facts["content_types"])
    yield from _schema_lines(facts["schema"])
    identity = facts["identity"]
    if identity is None:
        yield "identity", "not stored"
    elif "error" in identity:
        yield "identity", _unreadable(identity)
    else:
        yield "identity", identity.get("stored", "stored, too long to show")
    if "manifest" in facts:
        yield from _manifest_lines(facts["manifest"])
    if "episode" in facts:
        yield from _episode_lines(facts["episode"])
        if facts["lanes"]:
            yield "lanes", _counts(facts["lanes"])


def _alignment(alignment: int) -> str:
    return f"entries aligned to {alignment} bytes" if alignment else "entries not aligned"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts.items())


def _unreadable(facts: Mapping[str, Any]) -> str:
    return f"unreadable: {facts['error']['message']} ({facts['error']['code']})"


def _schema_lines(schema: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if schema is None:
        yield "schema", "none"
    elif "error" in schema:
        yield "schema", _unreadable(schema)
    else:
        text = exact_size(schema["bytes"])
        if schema.get("described_entries"):
            text += f", describes {count(schema['described_entries'], 'entry')}"
        yield "schema", text
        yield from field_lines(schema.get("fields", {}))


def _manifest_lines(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "error" in manifest:
        yield "manifest", _unreadable(manifest)
        return
    if "files" not in manifest:
        yield "manifest", f"{size(manifest['bytes'])}, too long to show"
        return
    hashed = manifest["hashed"]
    yield (
        "manifest",
        f"{count(manifest['files'], 'file')}, {exact_size(manifest['size'])}, {hashed:,} with SHA-256",
    )
    for place, key in (("first", "start_key"), ("last", "end_key")):
        if place in manifest:
            row = manifest[place]
            text = row["uri"] if row[key] is None else f"{row['uri']} (key {row[key]})"
            yield f"  {place}", text
    yield from field_lines(manifest["fields"])


def _episode_lines(episode: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if episode is None:
        yield "episode", "missing: the role promises an entry meta/episode"
    elif "error" in episode and isinstance(episode["error"], dict):
        yield "episode", _unreadable(episode)
    else:
        yield "episode", _episode_title(episode) or count(len(episode), "field")
        yield from field_lines(episode)


def _episode_title(episode: Mapping[str, Any]) -> str:
    """Who it is and how long, as far as it says so."""
    name = episode.get("episode_id", episode.get("id"))
    steps = episode.get("length_T", episode.get("length_t"))
    facts = [name] if isinstance(name, str) else []
    if type(steps) is int:
        facts.append(count(steps, "step"))
    return ", ".join(facts)


def field_lines(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fields of metadata, each on a line."""
    from shard_cli.summary import short_json

    for key, value in fields.items():
        yield f"  {fit(key, 40)}:", fit(short_json(value), _LONGEST_VALUE)


COMMAND = Command(
    name="info",
    summary="show what files are: role, sizes, codecs, metadata",
    description="Reads only the head of a file and its small metadata, never the entries.",
    examples=(
        ("shard info data.shard", "one file"),
        ("shard info *.wshard", "several; episode facts for each"),
        ("shard info --json data.shard | jq .files[0].entries", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
