"""`wshard view`: the command around the server."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import webbrowser
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from shard_cli.commands import view
from tests.cli.conftest import ROOT, listen_to_interrupts
from tests.wshard.viewer_support import PAGE, put_page
from wshard.viewer import ViewerServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Run

# The command with a page that need not be built.
START = """
import pathlib, sys
import wshard.viewer._page as page
page.files = lambda _: pathlib.Path({folder!r})
from shard_cli.main import wshard_entry_point
wshard_entry_point()
"""


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_page(tmp_path / "page", monkeypatch)
    return tmp_path / "page"


@contextmanager
def started(page: Path, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", START.format(folder=str(page)), "view", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=listen_to_interrupts,  # noqa: PLW1509 - it sets a signal
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def browsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that browsers were led to; the server ends at once."""
    found: list[str] = []

    def follow(page: str) -> None:
        text = Path(url2pathname(urlsplit(page).path)).read_text("utf-8")
        found.append(text.partition("0;url=")[2].partition('"')[0])

    monkeypatch.setattr(view, "_open_browser", follow)
    monkeypatch.setattr(ViewerServer, "serve", lambda _: None)
    return found


def test_it_prints_the_address_and_opens_it(wshard: Run, episode: Path, browsed: list[str]) -> None:
    result = wshard("view", episode)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == "showing ep_001.wshard: 1 file"
    assert lines[1].startswith("http://127.0.0.1:")
    assert browsed == [lines[1]]


def test_the_browser_gets_a_page_that_only_this_user_can_read(
    wshard: Run, episode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other users see the arguments of programs.
    seen: list[Path] = []

    def look(page: str) -> None:
        assert page.startswith("file://")
        assert "token" not in page
        path = Path(url2pathname(urlsplit(page).path))
        if os.name != "nt":
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
        assert "#token=" in path.read_text("utf-8")
        seen.append(path)

    monkeypatch.setattr(view, "_open_browser", look)
    monkeypatch.setattr(ViewerServer, "serve", lambda _: None)
    assert wshard("view", episode).code == 0
    assert [path.parent.exists() for path in seen] == [False]


def test_where_no_page_can_be_written_the_address_is_still_served(
    wshard: Run, episode: Path, browsed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(view, "_page_that_leads_to", fail)
    result = wshard("view", episode)
    assert result.code == 0
    assert "open the address above (No space left on device)" in result.err
    assert browsed == []


def test_it_opens_no_browser_if_asked(wshard: Run, episode: Path, browsed: list[str]) -> None:
    result = wshard("view", episode, "--no-browser", "--json")
    assert result.json["url"].startswith("http://127.0.0.1:")
    assert result.json["files"] == 1
    assert browsed == []


def test_a_browser_that_runs_until_it_is_closed_does_not_stop_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    closed, opened = threading.Event(), threading.Event()

    def open_browser(_: str) -> None:
        opened.set()
        closed.wait(60)

    monkeypatch.setattr(webbrowser, "open", open_browser)
    view._open_browser("http://127.0.0.1:1/")
    assert opened.wait(60)
    closed.set()


def test_another_address_is_warned_about(wshard: Run, episode: Path, browsed: list[str]) -> None:
    result = wshard("view", episode, "--host", "0.0.0.0")
    assert "warning: other machines can reach this server" in result.err
    assert "ssh -L" in result.err
    assert "warning" not in wshard("view", episode).err
    assert len(browsed) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        *(["--idle", "5"], ["--idle", "0m"], ["--idle", "1d"], ["--port", "65536"]),
        *(["--port", "x"], ["--port", "0"], ["--export", "out.html"]),
    ],
)
def test_wrong_use_is_explained(wshard: Run, episode: Path, arguments: list[str]) -> None:
    result = wshard("view", episode, *arguments)
    assert result.code == 2
    assert "error:" in result.err


def test_nothing_to_show_is_wrong_use(wshard: Run, tmp_path: Path) -> None:
    assert wshard("view").code == 2
    missing = wshard("view", tmp_path / "missing.wshard")
    assert missing.code == 2
    assert "no such file" in missing.err


def test_the_viewer_can_be_exported_as_one_file(wshard: Run, tmp_path: Path) -> None:
    target = tmp_path / "viewer.html"
    assert wshard("view", "--export", target).code == 0
    assert target.read_text("utf-8") == PAGE
    again = wshard("view", "--export", target)
    assert again.code == 2
    assert "--force" in again.err
    assert wshard("view", "--export", target, "--force").code == 0


def test_findings_are_those_of_the_doctor(damaged_episode: Path, wshard: Run) -> None:
    found: dict[str, Any] = json.loads(view._findings(str(damaged_episode)))
    assert found == wshard("doctor", "--json", damaged_episode).json
    assert found["files"][0]["findings"]


def test_an_examination_that_takes_too_long_is_ended(
    episode: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shard_format.errors import ShardIOError

    monkeypatch.setattr(view, "_LONGEST_EXAMINATION", 0.001)
    with pytest.raises(ShardIOError, match="run 'wshard doctor'"):
        view._findings(str(episode))


def test_control_c_ends_it_as_it_ends_other_commands(page: Path, episode: Path) -> None:
    with started(page, episode, "--no-browser") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("showing ")
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == "wshard: interrupted\n"


def test_nothing_is_logged_after_the_address(page: Path, episode: Path) -> None:
    with started(page, episode, "--no-browser") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("showing ")
        address, _, token = process.stdout.readline().strip().partition("#token=")
        assert process.stdout.readline() == "Ctrl-C ends it\n"
        place = urlsplit(address)

        def ask(request: str, *, leaves: bool = False) -> bytes:
            """The first bytes of the answer; or nothing, from a client that leaves before it comes."""
            with socket.create_connection((place.hostname, place.port or 0), timeout=60) as client:
                client.sendall(request.encode())
                if leaves:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return b""
                return client.recv(12)

        host = f"Host: {place.netloc}\r\n"
        key = f"Authorization: Bearer {token}\r\n"
        file = f"GET /f/0 HTTP/1.1\r\n{host}Range: bytes=0-63\r\n"
        assert ask(f"GET / HTTP/1.1\r\n{host}\r\n") == b"HTTP/1.1 200"
        assert ask(f"{file}{key}\r\n") == b"HTTP/1.1 206"
        assert ask(f"{file}Authorization: Bearer wrong\r\n\r\n") == b"HTTP/1.1 401"
        assert ask(f"GET /f/0?token={token} HTTP/1.1\r\n{host}\r\n") == b"HTTP/1.1 401"
        assert ask(f"GET /f/99 HTTP/1.1\r\n{host}{key}Range: bytes=0-63\r\n\r\n") == b"HTTP/1.1 404"
        assert ask(f"POST /f/0 HTTP/1.1\r\n{host}{key}\r\n") == b"HTTP/1.1 405"
        assert ask("nonsense\r\n\r\n")
        ask(f"{file}{key}\r\n", leaves=True)
        ask(f"{file}{key}", leaves=True)
        # Those two left before their answers came, and the server answers others.
        assert ask(f"{file}{key}\r\n") == b"HTTP/1.1 206"
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (out, err) == ("", "wshard: interrupted\n")


def test_an_idle_server_ends_with_success(page: Path, episode: Path) -> None:
    with started(page, episode, "--no-browser", "--idle", "1s") as process:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert out.endswith("no request came for 1.00 s\n")
        assert err == ""
