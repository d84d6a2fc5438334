"""`view`: episodes in the browser."""

from __future__ import annotations

import argparse
import os
import re
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from shard_cli import arguments as arg
from shard_cli.exits import Exit
from shard_cli.files import refuse_overwrite
from shard_cli.text import count, duration, printable, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_cli.console import Console

_LARGEST_PORT: Final = 65535
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}
_IDLE: Final = re.compile(r"([1-9][0-9]{0,8})([smh])")
_LONGEST_EXAMINATION: Final = 120
"""Seconds that the doctor may take for one file."""
_MOST_FINDINGS: Final = 16 << 20
"""Bytes of JSON."""


def _run(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from shard_train.packed_episodes import open_episode_pack
    from wshard.viewer import ViewedFiles, ViewerServer

    if args.export is not None:
        return _export(args, console)
    if not args.files:
        raise InvalidArgument("nothing to show", expected="files, folders or URLs, or --export")
    files = ViewedFiles(args.files)
    with ViewerServer(
        files,
        host=args.host,
        port=args.port,
        idle_s=args.idle,
        open_pack=open_episode_pack,
        findings=_findings,
    ) as server:
        if not server.is_local:
            console.warn(
                f"other machines can reach this server at {args.host}. They need the token, but the connection is "
                "not encrypted: on a network that you do not trust, use ssh -L instead"
            )
        found = files.list()
        console.report({"url": server.url, "files": len(found)})
        if not console.as_json:
            console.said(f"showing {printable(files.title)}: {count(len(found), 'file')}")
            console.line(server.url)
            console.said("Ctrl-C ends it")
        # A program that reads this waits for the address.
        sys.stdout.flush()
        with nullcontext() if args.no_browser else _opened_in_browser(server.url, console):
            server.serve()
    if args.idle is not None:
        console.said(f"ended: no request came for {duration(args.idle)}")
    return Exit.OK


def _export(args: argparse.Namespace, console: Console) -> Exit:
    from shard_format.errors import InvalidArgument
    from wshard.viewer import export_page

    if args.files:
        raise InvalidArgument(
            "--export writes the viewer without data",
            expected="no files",
            found=args.files[0],
            hint="ep.to_html('ep.html') in Python puts an episode into the page",
        )
    refuse_overwrite(args.export, force=args.force)
    nbytes = export_page(args.export)
    console.report(
        {"output": args.export, "size": nbytes}, f"{printable(args.export)}: {size(nbytes)}"
    )
    return Exit.OK


@contextmanager
def _opened_in_browser(url: str, console: Console) -> Iterator[None]:
    """Opens an address in the browser, for as long as this lasts.

    Other users of the machine see the arguments of programs, and the address has the token. So the browser gets a
    file that only this user can read, which leads to the address.
    """
    import tempfile

    try:
        folder = tempfile.TemporaryDirectory(prefix="wshard-view-", ignore_cleanup_errors=True)
    except OSError as error:
        console.warn(f"cannot start the browser; open the address above ({error.strerror})")
        yield
        return
    with folder as name:
        try:
            _open_browser(_page_that_leads_to(url, name))
        except OSError as error:
            console.warn(f"cannot start the browser; open the address above ({error.strerror})")
        yield


def _page_that_leads_to(url: str, folder: str) -> str:
    """Writes a page that only this user can read and that leads to an address. Returns the page's own address."""
    import html
    import tempfile
    from pathlib import Path

    address = html.escape(url)
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'">
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={address}">
<title>Shard viewer</title>
</head>
<body><p><a href="{address}">Open the viewer</a></p></body>
</html>
"""
    # Nobody else may read what `tempfile` makes.
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=folder, suffix=".html", delete=False
    ) as file:
        file.write(text)
    return Path(file.name).as_uri()


def _open_browser(address: str) -> None:
    import threading
    import webbrowser

    # Some browsers run until they are closed, and this program has to answer meanwhile.
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()


def _findings(location: str) -> bytes:
    """What `wshard doctor --json` prints about a file. In a process of its own, which can be ended."""
    import subprocess

    from shard_format.errors import ShardIOError

    command = [sys.executable, "-m", "shard_cli.wshard", "doctor", "--json", location]
    shown = os.path.basename(location)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LONGEST_EXAMINATION,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ShardIOError(
            f"examining the file takes more than {_LONGEST_EXAMINATION} seconds",
            path=shown,
            hint="run 'wshard doctor' on it",
        ) from None
    if not done.stdout or len(done.stdout) > _MOST_FINDINGS:
        raise ShardIOError(
            "the doctor did not answer, or found too much",
            path=shown,
            expected=f"up to {size(_MOST_FINDINGS)}",
            found=f"{size(len(done.stdout))}, exit code {done.returncode}",
            hint="run 'wshard doctor' on it",
        )
    return done.stdout


def _idle_argument(text: str) -> int:
    """Seconds from `90s`, `30m` or `2h`."""
    match = _IDLE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write it as 90s, 30m or 2h")
    return int(match[1]) * _SECONDS[match[2]]


def _port_argument(text: str) -> int:
    port = arg.positive_argument(text)
    if port > _LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; they end at {_LARGEST_PORT}")
    return port


VIEW: Final = arg.Command(
    "view",
    _run,
    (
        arg.positional(
            "files",
            "PATH|URL",
            "episodes, recordings, packs, folders that are searched for them, URLs of these, or catalogues",
            nargs="*",
        ),
        arg.flag("--no-browser", "print the address, but open no browser"),
        arg.option(
            "--port N",
            "listen on this port (default: a free one)",
            default=0,
            type=_port_argument,
        ),
        arg.option(
            "--host ADDRESS",
            "listen on this address, which other machines may reach (default: 127.0.0.1)",
            default="127.0.0.1",
        ),
        arg.option(
            "--idle TIME",
            "stop after this time without a request: 90s, 30m or 2h",
            type=_idle_argument,
        ),
        arg.option("--export OUT", "write the viewer as one HTML file, which opens local files"),
        arg.force(),
    ),
    """
show episodes in the browser

Serves a page to the browser of this machine, and ranges of the files to that page, which has a token. Changes no file.
A recording is followed while it is written. This program reads files behind URLs itself: the browser sees no
credentials. Ctrl-C ends it.

wshard view ep_001.wshard                      # one episode
wshard view runs/                              # a folder: a table of its episodes
wshard view episodes.shardpack                 # the episodes of a pack
wshard view long.parquet runs/                 # the episodes in runs/ that a catalogue names
wshard view s3://bucket/runs/ --idle 30m       # of an object store; stops after half an hour without a request
wshard view runs/ --no-browser --port 8765     # on a remote machine, with: ssh -L 8765:127.0.0.1:8765 HOST
wshard view --export viewer.html               # the viewer as one file, for files that you drop on it
""",
)
