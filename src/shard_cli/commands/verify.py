"""`shard verify`: is every byte as it should be?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_cli.arguments import Command, add_max_decompressed
from shard_cli.exits import Exit, message_of, worst
from shard_cli.pack_files import is_pack
from shard_cli.text import count, printable, size

if TYPE_CHECKING:
    import argparse

    from shard_cli.checking import Checked
    from shard_cli.output import Console
    from shard_cli.pack_checking import CheckedPack


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="files of the Shard family")
    parser.add_argument(
        "--identity", metavar="HEX", help="the identity that the one FILE must have, 64 hex digits"
    )
    parser.add_argument(
        "--signature", metavar="SIG", help="a detached signature of the one FILE; with --public-key"
    )
    parser.add_argument(
        "--public-key", metavar="PEM", help="the Ed25519 public key you trust, a PEM file"
    )
    parser.add_argument(
        "--no-follow", action="store_true", help="do not check the files that a manifest names"
    )
    parser.add_argument(
        "--allow-outside",
        action="store_true",
        help="follow manifest paths that leave the manifest's folder",
    )
    add_max_decompressed(parser)


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_cli.checking import Demands, check_path
    from shard_cli.commands.packs.verify import check_pack

    _check_usage(args)
    demands = Demands(
        identity=None if args.identity is None else args.identity.lower(),
        signature=args.signature,
        public_key=args.public_key,
        follow=not args.no_follow,
        allow_outside=args.allow_outside,
        max_decompressed=args.max_decompressed,
    )
    results: list[Checked | CheckedPack] = []
    for path in args.files:
        if is_pack(path):
            _check_no_demands(args, path)
            results += check_pack(path, args.max_decompressed, console)
            continue
        checked = check_path(path, demands, console)
        results.append(checked)
        if not console.as_json:
            _show(checked, console, "")
    if console.as_json:
        console.document({"files": [checked.to_fields() for checked in results]})
    return worst([checked.exit for checked in results])


def _check_usage(args: argparse.Namespace) -> None:
    from shard_format.errors import InvalidArgument

    if (args.signature is None) != (args.public_key is None):
        raise InvalidArgument("--signature and --public-key belong together")
    if len(args.files) > 1 and (args.identity or args.signature):
        raise InvalidArgument(
            "--identity and --signature are about one file", found=f"{len(args.files)} files"
        )


def _check_no_demands(args: argparse.Namespace, path: str) -> None:
    from shard_format.errors import InvalidArgument

    if args.identity or args.signature:
        raise InvalidArgument("a pack of samples has no identity", path=path)


def _show(checked: Checked, console: Console, indent: str) -> None:
    file = indent + printable(checked.file)
    if checked.errors:
        failed = console.style("FAILED", "red", "bold")
        console.line(f"{file}: {failed}, {count(len(checked.errors), 'error')}")
        for error in checked.errors:
            console.line(
                f"{indent}  {console.style(error.code, 'red')}: {message_of(error, under=checked.file)}"
            )
    else:
        _show_good(checked, console, file)
    if console.verbose or checked.errors:
        for warning in checked.warnings:
            label = console.style(warning.code, "yellow")
            console.said(f"{indent}  {label}: {printable(str(warning))}")
    for reference in checked.references:
        _show(reference, console, indent + "  ")


def _show_good(checked: Checked, console: Console, file: str) -> None:
    facts = [count(checked.entries, "entry"), size(checked.bytes)]
    if checked.identity is not None:
        facts.append(f"identity {checked.identity[:16]}… fits")
    if checked.references:
        facts.append(f"names {count(len(checked.references), 'file')}")
    if checked.warnings:
        facts.append(count(len(checked.warnings), "warning"))
    console.said(f"{file}: {console.style('ok', 'green')}, {', '.join(facts)}")


COMMAND = Command(
    name="verify",
    summary="check every byte of files, and what manifests name",
    description="Reads all entries, compares checksums, the schema section, what the role promises, and\n"
    "the identity where one is stored. 'shard doctor' explains what is found.",
    examples=(
        ("shard verify data.shard", "one file"),
        ("shard verify -q *.shard", "many; prints only what is wrong"),
        ("shard verify dataset.shard --no-follow", "a manifest without its files"),
        ("shard verify data.shard --identity 9f86…0f00", "against an identity you trust"),
        ("shard verify data.shard --signature data.shard.sig --public-key pub.pem", "signed"),
    ),
    add_arguments=_add_arguments,
    run=_run,
)
