"""`shardpack info`: what a pack is, at once, whatever its size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command
from shard_cli.commands.info import field_lines, show_facts
from shard_cli.exits import Exit, error_fields, exit_for, message_of, worst
from shard_cli.pack_files import add_packs, open_pack
from shard_cli.text import count, exact_size, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from shard_cli.output import Console


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_packs(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import ShardError

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for number, pack in enumerate(args.packs):
        try:
            facts = pack_facts(pack)
        except ShardError as error:
            codes.append(exit_for(error.code))
            results.append({"file": pack, "error": error_fields(error)})
            console.error(message_of(error), error.code)
            continue
        results.append(facts)
        if not console.as_json:
            if number:
                console.line()
            show_pack(facts, console)
    if console.as_json:
        console.document({"files": results})
    return worst(codes)


def pack_facts(pack: str) -> dict[str, Any]:
    """What a pack says about itself; `shard info` comes here, too."""
    from shard_cli.pack_facts import summarise_pack

    with open_pack(pack) as dataset:
        return summarise_pack(pack, dataset)


def show_pack(facts: Mapping[str, Any], console: Console) -> None:
    """The facts for people."""
    show_facts(facts["file"], _lines(facts, console), console)


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
    names = facts["schema"]
    if names or records:
        yield "entries", count(len(names), "name") if names else "too many names to list"
    for name, found in names.items():
        kind = found["content_type"] or "several types"
        often = "" if found["records"] == records else f", in {count(found['records'], 'record')}"
        yield f"  {name}:", f"{kind}{often}"
    if names and not facts["schema_is_complete"]:
        yield "", "(not of all shards)"
    fields = facts["metadata"]
    if fields:
        yield "metadata", count(len(fields), "field")
        yield from field_lines(fields if isinstance(fields, dict) else {"user": fields})
    if console.verbose and len(shards) > 1:
        for shard in shards:
            yield (
                f"  {shard['file']}:",
                f"{count(shard['records'], 'record')}, {size(shard['size'])}",
            )


COMMAND = Command(
    name="info",
    summary="show what packs are: records, sizes, entries, metadata",
    description="Reads only the ends of the shards, never the records.",
    examples=(
        ("shardpack info train-000000.shardpack", "one shard"),
        ("shardpack info -v 'train-{000000..000009}.shardpack'", "a set, with each of its shards"),
        ("shardpack info --json train/ | jq .files[0].records", "for programs"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
