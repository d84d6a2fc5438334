"""`verify`: whether every byte of files is as it should be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli import arguments as arg
from shard_cli.episode_options import report_recordings
from shard_cli.exits import Exit, worst
from shard_cli.files import is_pack
from shard_cli.kinds import kind_of
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.console import Console
    from shard_cli.kinds.model import Checked


def _run(args: argparse.Namespace, console: Console) -> Exit:
    is_episodes = console.program == "wshard"
    if console.program == "shard":
        _check_demands(args)
    checked: list[Checked] = []
    # Episodes are checked several at once, and so are the shards of each pack.
    for files in [args.files] if is_episodes else [[path] for path in args.files]:
        for one in kind_of(files[0], console.program).verify(files, args, console):
            checked.append(one)
            if not console.as_json:
                _show(one, console, "")
    failed = sum(one.exit is not Exit.OK for one in checked)
    nbytes = sum(one.fields["bytes"] for one in checked)
    recordings = report_recordings(args.files, console) if is_episodes else []
    if console.as_json:
        number = {"episodes": len(checked)} if is_episodes else {}
        totals = {"ok": not failed, **number, "failed": failed, "bytes": nbytes}
        more = {"recordings": recordings} if is_episodes else {}
        console.document({**totals, "files": [one.to_fields() for one in checked], **more})
    elif len(checked) > 1:
        noun = {"wshard": "episode", "shardpack": "shard"}.get(console.program, "file")
        # Set files are not counted as shards.
        shards = [one for one in checked if "shards" not in one.fields]
        facts = [count(len(shards), noun)]
        if noun == "shard":
            facts.append(count(sum(one.fields["records"] for one in shards), "record"))
        facts += [f"{failed:,} failed" if failed else "all ok", f"{size(nbytes)} read"]
        console.said(console.style(", ".join(facts), "bold" if failed else "dim"))
    return worst([one.exit for one in checked])


def _check_demands(args: argparse.Namespace) -> None:
    from shard_format.errors import InvalidArgument

    if (args.signature is None) != (args.public_key is None):
        raise InvalidArgument("--signature and --public-key belong together")
    if not args.identity and not args.signature:
        return
    if len(args.files) > 1:
        raise InvalidArgument(
            "--identity and --signature are about one file", found=f"{len(args.files)} files"
        )
    if is_pack(args.files[0]):
        raise InvalidArgument("a pack of samples has no identity", path=args.files[0])


def _show(checked: Checked, console: Console, indent: str) -> None:
    from shard_cli.kinds.model import MOST_SHOWN

    file = indent + printable(checked.file)
    if checked.errors:
        failed = console.style("FAILED", "red", "bold")
        console.line(f"{file}: {failed}, {count(len(checked.errors), 'error')}")
        shown = checked.errors if console.verbose else checked.errors[:MOST_SHOWN]
        for error in shown:
            console.line(f"{indent}  {console.style(error.code, 'red')}: {error.text}")
        if len(shown) < len(checked.errors):
            more = count(len(checked.errors) - len(shown), "more error")
            console.line(f"{indent}  … and {more}; see -v")
    else:
        console.said(f"{file}: {console.style('ok', 'green')}, {checked.good}")
    if console.verbose or checked.errors:
        for warning in checked.warnings:
            label = console.style(warning.code, "yellow")
            console.said(f"{indent}  {label}: {warning.text}")
    for reference in checked.references:
        _show(reference, console, indent + "  ")


SHARD = arg.Command(
    "verify",
    _run,
    (
        arg.FILES,
        arg.option("--identity HEX", "the identity that the one FILE must have, 64 hex digits"),
        arg.option("--signature SIG", "a detached signature of the one FILE; with --public-key"),
        arg.option("--public-key PEM", "the Ed25519 public key that you trust, a PEM file"),
        arg.flag("--no-follow", "do not check the files that a manifest names"),
        arg.flag("--allow-outside", "follow manifest paths that lead out of the manifest's folder"),
        arg.MAX_DECOMPRESSED,
    ),
    """
check every byte, and the files that manifests name

Reads all entries and compares checksums, the schema section, what the role promises, and the
identity if one is stored. 'shard doctor' explains what it finds.

shard verify data.shard                                                  # one file
shard verify -q *.shard                                                  # many; prints only what is wrong
shard verify dataset.shard --no-follow                                   # a manifest without its files
shard verify data.shard --identity 9f86…0f00                             # against an identity that you trust
shard verify data.shard --signature data.shard.sig --public-key pub.pem  # signed
""",
)
SHARDPACK = arg.Command(
    "verify",
    _run,
    (arg.PACKS, arg.JOBS, arg.MAX_DECOMPRESSED),
    """
check every byte of packs

Reads the index, every record and every entry, compares checksums, decompresses, and finds
keys that are in a set twice. For a set file, also compares the hash of every shard, and names
shards that are missing, extra, or not those that the set was written with.

shardpack verify train.shardpack-set                 # a set, by its set file
shardpack verify train-000000.shardpack              # one shard
shardpack verify 'train-{000000..000009}.shardpack'  # a set, several shards at once
shardpack verify -q train/                           # a folder; prints only what is wrong
""",
)
WSHARD = arg.Command(
    "verify",
    _run,
    (arg.EPISODES, arg.JOBS, arg.MAX_DECOMPRESSED),
    """
check every byte and every rule of episodes

Reads everything: checksums, the identity if one is stored, and all rules of the format, also of
chunks and sidecars. 'wshard doctor' also says what is odd, and what to do.

wshard verify ep_001.wshard                    # one episode
wshard verify recordings/                      # all episodes below a folder
wshard verify -q recordings/ --jobs 4          # prints only what is wrong
wshard verify --json recordings/ | jq .failed  # for programs
""",
)
