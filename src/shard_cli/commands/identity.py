"""`shard identity`: what files contain, in one number each; listing, checking, signing."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from shard_cli.arguments import Command, add_force, add_max_decompressed
from shard_cli.exits import Exit, error_fields, exit_for, message_of, worst
from shard_cli.files import refuse_overwrite, write_file
from shard_cli.opening import open_shard
from shard_cli.text import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shard_cli.output import Console
    from shard_format import ShardError

# As sha256sum writes it: digits, a space, a space or star, the name. A backslash in front says that
# the name has escapes.
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {escaped: plain for plain, escaped in _ESCAPES.items()}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", metavar="FILE", help="files of the Shard family")
    parser.add_argument("--entries", action="store_true", help="also the hash of every entry")
    parser.add_argument(
        "--check",
        metavar="LISTFILE",
        help="compare files with a list made by this command; - stdin",
    )
    parser.add_argument("--sign", metavar="KEY.pem", help="sign with this Ed25519 private key")
    parser.add_argument(
        "-o", "--output", metavar="SIG", help="with --sign: the signature file (default: FILE.sig)"
    )
    add_force(parser, "with --sign: replace the signature file if it exists")
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    _check_usage(args)
    if args.check is not None:
        return _check_list(args, console)
    if args.sign is not None:
        return _sign(args, console)
    from shard_format import ShardError, compute_identity

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for path in args.files:
        try:
            with (
                open_shard(path, max_decompressed=args.max_decompressed) as reader,
                console.progress(f"identity {path}") as bar,
            ):
                identity = compute_identity(reader, progress=bar.update)
        except ShardError as error:
            codes.append(_failed(error, path, results, console))
            continue
        result: dict[str, Any] = {"file": path, "identity": identity.digest}
        if args.entries:
            result["entries"] = dict(identity.entries)
        results.append(result)
        if not console.as_json:
            console.line(_list_line(identity.digest, path, console))
            for name, digest in result.get("entries", {}).items():
                console.line(f"  {digest}  {printable(name)}")
    if console.as_json:
        console.document({"files": results})
    return worst(codes)


def _check_usage(args: argparse.Namespace) -> None:
    from shard_format.errors import InvalidArgument

    if bool(args.files) == (args.check is not None):
        raise InvalidArgument("give files, or a list with --check")
    if args.check is not None and args.sign is not None:
        raise InvalidArgument("--check and --sign exclude each other")
    if args.output is not None and (args.sign is None or len(args.files) != 1):
        raise InvalidArgument("--output belongs to --sign with one file")


def _failed(error: ShardError, path: str, results: list[dict[str, Any]], console: Console) -> Exit:
    results.append({"file": path, "error": error_fields(error)})
    console.error(message_of(error), error.code)
    return exit_for(error.code)


def _list_line(digest: str, path: str, console: Console) -> str:
    escaped = re.sub(r"[\\\n\r]", lambda match: _ESCAPES[match.group()], path)
    mark = "\\" if escaped != path else ""
    # Other programs get the name as it is, so that the list can be checked.
    return f"{mark}{digest}  {printable(escaped) if console.out_is_terminal else escaped}"


def _iter_list(path: str) -> Iterator[tuple[str, str]]:
    """Digest and file of each line."""
    from shard_format.errors import BadMetadata, ShardIOError

    try:
        if path == "-":
            text = sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:
                text = file.read()
    except OSError as error:
        raise ShardIOError.wrap(error, "cannot read", path) from error
    for number, line in enumerate(os.fsdecode(text).split("\n"), start=1):
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
    from shard_format import ShardError, verify_identity

    results: list[dict[str, Any]] = []
    codes = [Exit.OK]
    for digest, path in list(_iter_list(args.check)):
        try:
            with (
                open_shard(path, max_decompressed=args.max_decompressed) as reader,
                console.progress(f"check {path}") as bar,
            ):
                verify_identity(reader, digest, progress=bar.update)
        except ShardError as error:
            codes.append(_failed(error, path, results, console))
            if not console.as_json:
                console.line(f"{printable(path)}: {console.style('FAILED', 'red', 'bold')}")
            continue
        results.append({"file": path, "identity": digest})
        console.said(f"{printable(path)}: {console.style('ok', 'green')}")
    if console.as_json:
        console.document({"list": args.check, "files": results})
    return worst(codes)


def _sign(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format import signing

    targets = {path: args.output or f"{path}.sig" for path in args.files}
    for target in targets.values():
        refuse_overwrite(target, force=args.force)
    key = signing.load_private_key(args.sign)
    results = []
    for path, target in targets.items():
        with open_shard(path, max_decompressed=args.max_decompressed) as reader:
            signature = signing.sign(reader, key)
        write_file(target, [signature.to_bytes()], fsync=True)
        results.append({"file": path, "identity": signature.identity, "signature": target})
        console.said(f"{printable(target)}: signed {signature.identity}")
    if console.as_json:
        console.document({"files": results})
    return Exit.OK


COMMAND = Command(
    name="identity",
    summary="print, check or sign what files contain",
    description="The identity is a SHA-256 over all entries, whatever their compression, order and\n"
    "alignment. Lists look like those of sha256sum.",
    examples=(
        ("shard identity *.shard > IDENTITIES", "a list"),
        ("shard identity --check IDENTITIES", "compare with it later"),
        ("shard identity --entries data.shard", "the hash of every entry, too"),
        ("shard identity --sign key.pem data.shard", "writes data.shard.sig"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
