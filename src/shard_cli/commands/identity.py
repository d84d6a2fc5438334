"""`identity`: one number for what a file contains; listing, checking, signing."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from shard_cli import arguments as arg
from shard_cli.exits import Exit, note_failure, worst
from shard_cli.files import read_argument, refuse_overwrite
from shard_cli.text import coverage, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.console import Console
    from shard_format import Identity

# As sha256sum writes it: digits, a space, a space or star, the name. A backslash in front means that the
# name has escapes.
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escaped: plain for plain, escaped in _ESCAPES.items()}


def _run(args: argparse.Namespace, console: Console) -> Exit:
    _check_usage(args)
    if args.check is not None:
        return _check_list(args, console)
    if args.sign is not None:
        return _sign(args, console)
    from shard_cli.kinds.model import open_shard
    from shard_format import ShardError, compute_identity

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for path in args.files:
        try:
            with open_shard(path, args) as reader, console.progress(f"identity {path}") as bar:
                identity = compute_identity(reader, progress=bar.update)
        except ShardError as error:
            codes.append(note_failure(error, path, results, console))
            continue
        entries = {"entries": dict(identity.entries)} if args.entries else {}
        results.append({"file": path, **_fields(identity), **entries})
        if not console.as_json:
            console.line(_list_line(identity.digest, path, console))
            for name, digest in identity.entries.items() if args.entries else ():
                console.line(f"  {digest}  {printable(name)}")
    if console.as_json:
        console.document({"files": results})
    return worst(codes)


def _fields(identity: Identity) -> dict[str, Any]:
    return {"identity": identity.digest, "identity_version": identity.version}


def _check_usage(args: argparse.Namespace) -> None:
    from shard_format.errors import InvalidArgument

    if bool(args.files) == (args.check is not None):
        raise InvalidArgument("pass files, or a list with --check")
    if args.check is not None and args.sign is not None:
        raise InvalidArgument("--check and --sign exclude each other")
    if args.output is not None and (args.sign is None or len(args.files) != 1):
        raise InvalidArgument("--output belongs to --sign with one file")


def _list_line(digest: str, path: str, console: Console) -> str:
    escaped = re.sub(r"[\\\n\r]", lambda match: _ESCAPES[match.group()], path)
    mark = "\\" if escaped != path else ""
    # Other programs get the name as it is, so that the list can be checked.
    return f"{mark}{digest}  {printable(escaped) if console.out_is_terminal else escaped}"


def _iter_list(path: str) -> Iterator[tuple[str, str]]:
    """Digest and file of each line."""
    from shard_format.errors import BadMetadata

    for number, line in enumerate(os.fsdecode(read_argument(path)).split("\n"), start=1):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise BadMetadata(
                f"line {number} is not an identity and a file",
                path=path,
                expected="64 lower-case hex digits, two spaces, a path",
                found=repr(line[:80]),
            )
        mark, digest, file_name = match.groups()
        if mark:
            file_name = re.sub(r"\\[\\nr]", lambda found: _UNESCAPES[found.group()], file_name)
        yield digest, file_name


def _check_list(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_shard
    from shard_format import ShardError, verify_identity

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for digest, path in list(_iter_list(args.check)):
        try:
            with open_shard(path, args) as reader, console.progress(f"check {path}") as bar:
                identity = verify_identity(reader, digest, progress=bar.update)
        except ShardError as error:
            codes.append(note_failure(error, path, results, console))
            if not console.as_json:
                console.line(f"{printable(path)}: {console.style('FAILED', 'red', 'bold')}")
            continue
        results.append({"file": path, **_fields(identity)})
        fits = console.style("ok", "green") + coverage(identity.version)
        console.said(f"{printable(path)}: {fits}")
    if console.as_json:
        console.document({"list": args.check, "files": results})
    return worst(codes)


def _sign(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.kinds.model import open_shard
    from shard_format import signing
    from shard_format.atomic import write_file

    targets = {path: args.output or f"{path}.sig" for path in args.files}
    for target in targets.values():
        refuse_overwrite(target, force=args.force)
    key = signing.load_private_key(args.sign)
    results = []
    for path, target in targets.items():
        with open_shard(path, args) as reader:
            signature = signing.sign(reader, key)
        write_file(target, [signature.to_bytes()], fsync=True)
        signed = {"identity": signature.identity, "identity_version": signature.version}
        results.append({"file": path, **signed, "signature": target})
        console.said(f"{printable(target)}: signed {signature.identity}")
    if console.as_json:
        console.document({"files": results})
    return Exit.OK


IDENTITY = arg.Command(
    "identity",
    _run,
    (
        arg.positional("files", "FILE", "files of the Shard family", nargs="*"),
        arg.flag("--entries", "also print the hash of every entry"),
        arg.option(
            "--check LISTFILE", "compare files with a list that this command made; - for stdin"
        ),
        arg.option("--sign KEY.pem", "sign with this Ed25519 private key"),
        arg.option("-o --output SIG", "with --sign: the signature file (default: FILE.sig)"),
        arg.force("with --sign: replace the signature file if it exists"),
        arg.MAX_DECOMPRESSED,
    ),
    """
print, check or sign what files contain

The identity is a SHA-256 over all entries, the role and the schema section, whatever the
compression, order and alignment. Lists look like those of sha256sum. Lists and signatures
of earlier releases (version 1) can still be checked; they do not cover the role and the
schema section.

shard identity *.shard > IDENTITIES       # a list
shard identity --check IDENTITIES         # compare with it later
shard identity --entries data.shard       # the hash of every entry, too
shard identity --sign key.pem data.shard  # writes a .sig file beside it
""",
)
