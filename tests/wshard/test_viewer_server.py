"""The server of `wshard view`: every rule about who may read, what, and how much, over real sockets."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shard_format.errors import FileMissing, InvalidArgument, ShardIOError
from shard_format.remote import upload
from shard_train.packed_episodes import open_episode_pack, pack_episodes
from tests.shard_format.range_server import RangeServer
from tests.wshard.viewer_support import (
    Client,
    configuration_of,
    has_ipv6_loopback,
    make_chunked,
    put_page,
    read_answer,
    save_episode,
    serving,
)
from wshard import WShardStreamWriter
from wshard.overviews import write_overviews
from wshard.partial import recover
from wshard.viewer import LARGEST_RANGE, ViewedFiles, ViewerServer

if TYPE_CHECKING:
    from collections.abc import Iterator

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"
DATA = ("/files.json", "/episodes.json", "/f/0", "/findings/0")


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_page(tmp_path / "page", monkeypatch)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    save_episode(tmp_path / "runs" / "a.wshard")
    save_episode(tmp_path / "runs" / "deep" / "b.wshard", steps=20)
    return tmp_path / "runs"


@pytest.fixture
def served(runs: Path) -> Iterator[Client]:
    with serving(runs, open_pack=open_episode_pack, findings=lambda _: b'{"ok": true}') as pair:
        yield pair[1]


class TestWhoMayAsk:
    """Section 7 of the viewer's threats: another page, another name, another user."""

    @pytest.mark.parametrize("path", DATA)
    def test_data_is_for_the_holder_of_the_token(self, served: Client, path: str) -> None:
        assert served.ask(path, Range="bytes=0-3").status in (200, 206)
        wrong = ("x" * 43, served.token[:-1], served.token + "x", served.token.swapcase(), "\xe9")
        for token in (None, *wrong):
            answer = served.ask(path, token=token, Range="bytes=0-3")
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert b"SHRD" not in answer.body

    def test_the_token_counts_in_its_header_only(self, served: Client) -> None:
        assert served.ask(f"/f/0?token={served.token}", token=None).status == 401
        cookie = {"Cookie": f"token={served.token}"}
        assert served.ask("/f/0", token=None, **cookie).status == 401
        assert served.ask("/f/0", token=None, Authorization=served.token).status == 401

    def test_the_token_has_256_bits_and_is_new_each_time(self, runs: Path) -> None:
        tokens = set()
        for _ in range(3):
            with ViewerServer(ViewedFiles([runs])) as server:
                tokens.add(server.url.partition("#token=")[2])
                server.server_close()
        assert len(tokens) == 3
        assert all(len(token) == 43 for token in tokens)  # base64url of 32 bytes

    def test_the_page_needs_no_token_and_holds_no_data(self, served: Client) -> None:
        answer = served.ask("/", token=None)
        assert answer.status == 200
        assert configuration_of(answer.body.decode()) == {"server": True}
        assert served.token not in answer.body.decode()

    def test_the_page_is_sent_as_gzip_to_those_who_take_it(self, served: Client) -> None:
        plain = served.ask("/")
        assert "content-encoding" not in plain.headers
        for accepted in ("gzip", "br, GZIP;q=0.5", "deflate, gzip"):
            packed = served.ask("/", Accept_Encoding=accepted)
            assert packed.headers["content-encoding"] == "gzip"
            assert gzip.decompress(packed.body) == plain.body
            assert (
                packed.headers["content-security-policy"]
                == plain.headers["content-security-policy"]
            )
        for accepted in ("", "br", "gzip;q=0", "gzip; q=0.000, br", "x-gzip"):
            assert served.ask("/", Accept_Encoding=accepted).body == plain.body
        assert {plain.headers["vary"], packed.headers["vary"]} == {"Accept-Encoding"}

    @pytest.mark.parametrize("path", ["/", *DATA])
    @pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
    def test_pages_of_other_sites_get_nothing(self, served: Client, path: str, site: str) -> None:
        """Even with the token: their scripts could not read the answer, but might show it."""
        answer = served.ask(path, Range="bytes=0-3", Sec_Fetch_Site=site)
        assert answer.status == 403
        assert not any(name.startswith("access-control-") for name in answer.headers)

    @pytest.mark.parametrize("site", ["same-origin", "none"])
    def test_the_page_itself_and_the_user_may_ask(self, served: Client, site: str) -> None:
        assert served.ask("/f/0", Range="bytes=0-3", Sec_Fetch_Site=site).status == 206

    def test_a_link_may_lead_to_the_page_and_to_nothing_else(self, served: Client) -> None:
        """A terminal may be a web page, too, and shows the address as a link."""
        link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
        assert served.ask("/", token=None, **link, Sec_Fetch_Dest="document").status == 200
        for dest in ("iframe", "embed", "object", "empty"):
            assert served.ask("/", token=None, **link, Sec_Fetch_Dest=dest).status == 403
        for path in DATA:
            assert served.ask(path, token=None, **link, Sec_Fetch_Dest="document").status == 403

    def test_a_request_of_another_origin_is_refused(self, served: Client) -> None:
        for origin in ("https://evil.example", "null", f"http://127.0.0.1:{served.port + 1}"):
            assert served.ask("/files.json", Origin=origin).status == 403
        assert served.ask("/files.json", Origin=f"http://{served.host}").status == 200

    def test_a_preflight_gets_no_leave(self, served: Client) -> None:
        asked = {"Access_Control_Request_Headers": "authorization"}
        for site in ("cross-site", "same-origin"):
            answer = served.ask("/f/0", "OPTIONS", token=None, Sec_Fetch_Site=site, **asked)
            assert answer.status in (403, 405)
            assert not any(name.startswith("access-control-") for name in answer.headers)

    @pytest.mark.parametrize("path", ["/", *DATA])
    def test_a_name_that_was_rebound_to_this_machine_is_refused(
        self, served: Client, path: str
    ) -> None:
        port = served.port
        names = ["evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""]
        names += (f"localhost.evil.example:{port}", f"127.0.0.1.:{port}", f"0.0.0.0:{port}")
        for host in names:
            assert served.ask(path, Host=host, Range="bytes=0-3").status == 421
        assert served.ask(path, Host=None).status == 421
        request = f"GET {path} HTTP/1.1\r\nHost: {served.host}\r\nHost: evil.example\r\n\r\n"
        assert served.send(request.encode()).status == 421

    def test_localhost_is_this_machine(self, served: Client) -> None:
        for host in (f"localhost:{served.port}", f"LOCALHOST:{served.port}"):
            assert served.ask("/files.json", Host=host).status == 200

    def test_the_name_of_the_usual_port_has_no_port(
        self, runs: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ViewerServer(ViewedFiles([runs])) as server:
            monkeypatch.setattr(server, "server_port", 80)
            given = ("127.0.0.1", "localhost", "127.0.0.1:80", "evil.example", "127.0.0.1:8080")
            assert [server.is_own_host(host) for host in given] == [True, True, True, False, False]
            server.server_close()

    def test_it_listens_on_the_loopback(self, runs: Path) -> None:
        with ViewerServer(ViewedFiles([runs])) as server:
            assert server.socket.getsockname()[0] == "127.0.0.1"
            assert server.is_local
            server.server_close()

    @pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback")
    @pytest.mark.parametrize("host", ["::1", "[::1]", "0:0:0:0:0:0:0:1"])
    def test_on_the_loopback_of_ipv6_it_has_the_name_that_browsers_give_it(
        self, runs: Path, host: str
    ) -> None:
        with serving(runs, host=host) as (server, client):
            port = client.port
            assert server.is_local
            assert server.url.startswith(f"http://[::1]:{port}/#token=")
            own = (f"[::1]:{port}", f"localhost:{port}", f"LOCALHOST:{port}")
            assert [client.ask("/files.json", Host=name).status for name in own] == [200] * 3
            foreign = (
                f"127.0.0.1:{port}",
                f"::1:{port}",
                "[::1]",
                f"[::2]:{port}",
                f"evil.example:{port}",
            )
            assert [client.ask("/files.json", Host=name).status for name in foreign] == [421] * 5
            assert client.ask("/files.json", Origin=f"http://[::1]:{port}").status == 200

    def test_another_address_takes_addresses_and_the_name_of_this_machine(self, runs: Path) -> None:
        with serving(runs, host="0.0.0.0") as (server, client):
            assert not server.is_local
            port = client.port
            own = (f"192.0.2.7:{port}", f"{socket.gethostname()}:{port}")
            assert [client.ask("/files.json", Host=host).status for host in own] == [200, 200]
            assert client.ask("/files.json", Host=f"evil.example:{port}").status == 421

    @pytest.mark.parametrize(
        "method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "get"]
    )
    def test_nothing_can_be_written(self, served: Client, method: str, runs: Path) -> None:
        before = (runs / "a.wshard").read_bytes()
        answer = served.ask("/f/0", method)
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"
        assert (runs / "a.wshard").read_bytes() == before

    def test_every_answer_has_the_headers_that_keep_others_out(self, served: Client) -> None:
        answers = [served.ask(path, Range="bytes=0-3") for path in ("/", *DATA, "/nothing")]
        answers += [served.ask("/f/0", token=None), served.ask("/", Host="evil.example")]
        answers += [served.send(b"GET / HTTP/9.9\r\n\r\n"), served.ask("/f/0", "PUT")]
        for answer in answers:
            headers = answer.headers
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"
            assert "set-cookie" not in headers
            assert not any(name.startswith("access-control-") for name in headers)
            assert "python" not in headers["server"].lower()

    def test_the_policy_of_the_page_allows_its_own_scripts_only(self, served: Client) -> None:
        policy = served.ask("/").headers["content-security-policy"]
        rules = dict(rule.partition(" ")[::2] for rule in policy.split("; "))
        assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
        assert rules["frame-ancestors"] == "'none'"
        assert rules["connect-src"] == "'self'"
        assert re.fullmatch(r"'sha256-[\w+/]{43}=' 'wasm-unsafe-eval'", rules["script-src"])
        assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["style-src"])
        assert "unsafe-inline" not in policy
        assert "unsafe-eval'" not in policy.replace("'wasm-unsafe-eval'", "")


class TestFiles:
    """Files have numbers, and ranges of them are what is served."""

    def test_a_folder_is_listed_by_names_below_it(self, served: Client) -> None:
        document = served.ask("/files.json").json
        assert document["title"] == "runs/"
        assert [(one["number"], one["name"], one["kind"]) for one in document["files"]] == [
            (0, "a.wshard", "episode"),
            (1, "deep/b.wshard", "episode"),
        ]
        assert (document["open"], document["follow"]) == (None, 10)

    @pytest.mark.parametrize(
        ("given", "start", "stop"),
        [
            ("bytes=0-0", 0, 1),
            ("bytes=10-19", 10, 20),
            ("bytes=10-", 10, None),
            ("bytes=-7", -7, None),
            ("bytes=10-999999999", 10, None),
            ("bytes=-999999999", 0, None),
        ],
    )
    def test_a_range_is_those_bytes(
        self, served: Client, runs: Path, given: str, start: int, stop: int | None
    ) -> None:
        whole = (runs / "a.wshard").read_bytes()
        answer = served.ask("/f/0", Range=given)
        assert answer.status == 206
        assert answer.body == whole[start:stop]
        first = start % len(whole)
        expected = f"bytes {first}-{first + len(answer.body) - 1}/{len(whole)}"
        assert answer.headers["content-range"] == expected

    @pytest.mark.parametrize(
        "given",
        [
            *(None, "", "bytes=-", "bytes=5-2", "bytes=0-1,4-5", "bytes=a-b", "items=0-1"),
            *("bytes=0x1-2", "bytes=--5", "bytes= 0-1", "bytes=+1-2", "bytes=٣-٤", "bytes=0-1-2"),
            *("bytes=0-" + "9" * 5000, "bytes=" + "9" * 30 + "-", "bytes=-" + "9" * 30),
        ],
    )
    def test_anything_but_one_range_is_refused(self, served: Client, given: str | None) -> None:
        answer = served.ask("/f/0", Range=None if given is None else given)
        assert answer.status == 400
        assert b"expected one range" in answer.body

    def test_a_range_behind_the_end_says_where_the_end_is(self, served: Client, runs: Path) -> None:
        size = (runs / "a.wshard").stat().st_size
        for given in (f"bytes={size}-", "bytes=99999999999-", "bytes=-0"):
            answer = served.ask("/f/0", Range=given)
            assert answer.status == 416
            assert answer.headers["content-range"] == f"bytes */{size}"

    def test_an_answer_has_at_most_64_mib(self, tmp_path: Path) -> None:
        path = tmp_path / "large" / "zeros.shard"
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(3 * LARGEST_RANGE)
        with serving(path) as (_, client):
            for given in ("bytes=0-", f"bytes=0-{LARGEST_RANGE}", f"bytes=-{LARGEST_RANGE + 1}"):
                assert client.ask("/f/0", Range=given).status == 400
            answer = client.ask("/f/0", Range=f"bytes=7-{LARGEST_RANGE + 6}")
            assert (answer.status, len(answer.body)) == (206, LARGEST_RANGE)

    def test_an_empty_file_has_no_range(self, tmp_path: Path) -> None:
        (tmp_path / "empty.wshard").touch()
        with serving(tmp_path / "empty.wshard") as (_, client):
            answer = client.ask("/f/0", Range="bytes=0-65535")
            assert (answer.status, answer.headers["content-range"]) == (416, "bytes */0")

    def test_head_gives_the_size_without_the_bytes(self, served: Client, runs: Path) -> None:
        answer = served.ask("/f/0", "HEAD")
        assert answer.status == 200
        assert int(answer.headers["content-length"]) == (runs / "a.wshard").stat().st_size
        assert answer.headers["accept-ranges"] == "bytes"
        assert served.ask("/", "HEAD").status == served.ask("/files.json", "HEAD").status == 200

    def test_bytes_of_two_versions_are_never_mixed(self, served: Client, runs: Path) -> None:
        tag = served.ask("/f/0", Range="bytes=0-3").headers["etag"]
        same = {"Range": "bytes=4-7", "If_Range": tag}
        assert served.ask("/f/0", **same).status == 206
        save_episode(runs / "a.wshard", steps=41)
        changed = served.ask("/f/0", **same)
        assert changed.status == 412
        assert changed.headers["etag"] != tag
        assert served.ask("/f/0", Range="bytes=4-7").headers["etag"] == changed.headers["etag"]

    @pytest.mark.parametrize(
        "path",
        [
            *("/f/2", "/f/-1", "/f/", "/f/0/", "/f/00000000000", "/f/0x0", "/f/1e3", "/f/%30"),
            *("/f/../f/0", "/f/..%2f..%2fetc%2fpasswd", "/../../etc/passwd", "/etc/passwd"),
            *("/a.wshard", "/f/a.wshard", "/f/0?x=1", "/viewer.html", "/findings/9", "//f/9"),
            *("/f/٣", "http://127.0.0.1/f/0", "*", "/\\..\\secret", "/f/0%00", "/F/0"),
        ],
    )
    def test_no_path_comes_from_the_client(self, served: Client, path: str) -> None:
        assert served.send(
            f"GET {path} HTTP/1.1\r\nHost: {served.host}\r\nRange: bytes=0-3\r\n"
            f"Authorization: Bearer {served.token}\r\n\r\n".encode()
        ).status in (400, 404)

    def test_links_out_of_the_folder_are_left_out(self, runs: Path, tmp_path: Path) -> None:
        secret = save_episode(tmp_path / "secret" / "secret.wshard")
        (runs / "link.wshard").symlink_to(secret)
        (runs / "folder").symlink_to(secret.parent)
        (runs / "inner.wshard").symlink_to("a.wshard")
        (runs / "nowhere.wshard").symlink_to("missing")
        with serving(runs) as (_, client):
            names = [one["name"] for one in client.ask("/files.json").json["files"]]
            assert names == ["a.wshard", "deep/b.wshard", "inner.wshard"]
            document = client.ask("/episodes.json").json
            left_out = {one["name"]: one["problem"] for one in document["left_out"]}
            assert left_out.keys() == {"link.wshard", "nowhere.wshard"}
            assert "leads out of the folder" in left_out["link.wshard"]
            assert sorted(row["id"] for row in document["rows"]) == ["a", "a", "b"]

    def test_a_file_that_becomes_a_link_is_refused(
        self, served: Client, runs: Path, tmp_path: Path
    ) -> None:
        secret = save_episode(tmp_path / "secret" / "secret.wshard")
        (runs / "a.wshard").unlink()
        (runs / "a.wshard").symlink_to(secret)
        answer = served.ask("/f/0", Range="bytes=0-3")
        assert answer.status == 403
        assert b"leads out of the folder" in answer.body
        (runs / "deep" / "b.wshard").unlink()
        (runs / "deep").rmdir()
        (runs / "deep").symlink_to(secret.parent)
        secret.rename(secret.with_name("b.wshard"))
        assert served.ask("/f/1", Range="bytes=0-3").status == 403

    def test_sidecars_that_lead_elsewhere_do_not_come_with_their_episode(
        self, tmp_path: Path
    ) -> None:
        episode = save_episode(tmp_path / "runs" / "a.wshard")
        secret = save_episode(tmp_path / "secret" / "secret.wshard")
        lanes = tmp_path / "runs" / "a.wshard.lanes"
        lanes.mkdir()
        (lanes / "own.wshard").write_bytes(episode.read_bytes())
        (lanes / "evil.wshard").symlink_to(secret)
        save_episode(tmp_path / "runs" / "other.wshard")
        with serving(episode) as (_, client):
            document = client.ask("/files.json").json
            assert [(one["name"], one["kind"]) for one in document["files"]] == [
                ("a.wshard", "episode"),
                ("a.wshard.lanes/own.wshard", "sidecar"),
            ]
            assert document["open"] == 0

    def test_a_pipe_is_left_out(self, runs: Path) -> None:
        os.mkfifo(runs / "pipe.wshard")
        with serving(runs) as (_, client):
            assert len(client.ask("/files.json").json["files"]) == 2

    def test_a_file_that_was_removed_is_gone(self, served: Client, runs: Path) -> None:
        (runs / "a.wshard").unlink()
        assert served.ask("/f/0", Range="bytes=0-3").status == 404
        assert [one["number"] for one in served.ask("/files.json").json["files"]] == [1]
        assert served.ask("/f/0", Range="bytes=0-3").status == 404

    def test_a_new_file_gets_a_new_number(self, served: Client, runs: Path) -> None:
        (runs / "a.wshard").unlink()
        save_episode(runs / "0_first.wshard")
        found = {one["name"]: one["number"] for one in served.ask("/files.json").json["files"]}
        assert found == {"0_first.wshard": 2, "deep/b.wshard": 1}

    def test_names_from_files_are_data(self, tmp_path: Path) -> None:
        name = '"><script>\u202e\\.wshard'
        save_episode(tmp_path / "runs" / name)
        raw = os.fsencode(tmp_path / "runs") + b"/\xff.wshard"
        Path(os.fsdecode(raw)).write_bytes(b"not an episode")
        with serving(tmp_path / "runs") as (_, client):
            answer = client.ask("/files.json")
            assert answer.headers["content-type"] == "application/json"
            assert name in [one["name"] for one in answer.json["files"]]
            assert (
                client.ask("/episodes.json").json["left_out"][0]["name"].endswith("\udcff.wshard")
            )


class TestEpisodes:
    """The rows of the table."""

    def test_a_row_says_what_is_known_without_opening_the_episode(self, served: Client) -> None:
        rows = served.ask("/episodes.json").json["rows"]
        assert rows[0] == {
            "file": 0,
            "record": None,
            "id": "a",
            "env_id": "Reach-v1",
            "task": "reach",
            "length": 40,
            "duration_s": 2.0,
            "return": 40.0,
            "success": True,
            "channels": 3,
            "bytes": int(served.ask("/f/0", "HEAD").headers["content-length"]),
            "findings": None,
        }
        assert [row["file"] for row in rows] == [0, 1]

    def test_the_rows_follow_the_files_and_nothing_is_written(
        self, served: Client, runs: Path
    ) -> None:
        def names() -> set[str]:
            return {str(path.relative_to(runs.parent)) for path in runs.parent.rglob("*")}

        served.ask("/episodes.json")
        save_episode(runs / "c.wshard", steps=5)
        before = names()
        rows = served.ask("/episodes.json").json["rows"]
        assert sorted((row["id"], row["length"]) for row in rows) == [
            ("a", 40),
            ("b", 20),
            ("c", 5),
        ]
        assert names() == before

    def test_episodes_of_packs_have_the_key_and_number_of_their_record(
        self, runs: Path, tmp_path: Path
    ) -> None:
        pack_episodes(runs, tmp_path / "packs" / "all.shardpack", fsync=False)
        with serving(tmp_path / "packs", open_pack=open_episode_pack) as (_, client):
            assert client.ask("/files.json").json["files"][0]["kind"] == "pack"
            rows = client.ask("/episodes.json").json["rows"]
            assert [(row["file"], row["record"], row["record_number"]) for row in rows] == [
                (0, "a", 0),
                (0, "deep/b", 1),
            ]

    def test_damaged_files_are_named_and_the_others_are_shown(self, runs: Path) -> None:
        (runs / "broken.wshard").write_bytes((runs / "a.wshard").read_bytes()[:300])
        (runs / "junk.wshard").write_bytes(b"junk")
        with serving(runs) as (_, client):
            document = client.ask("/episodes.json").json
            assert [row["id"] for row in document["rows"]] == ["a", "b"]
            assert [one["name"] for one in document["left_out"]] == ["broken.wshard", "junk.wshard"]

    def test_a_folder_of_damaged_files_is_a_table_without_rows(self, tmp_path: Path) -> None:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "junk.wshard").write_bytes(b"junk")
        with serving(tmp_path / "runs") as (_, client):
            document = client.ask("/episodes.json").json
            assert document["rows"] == []
            assert [one["name"] for one in document["left_out"]] == ["junk.wshard"]

    def test_findings_are_asked_for_by_number(self, runs: Path) -> None:
        asked: list[str] = []

        def findings(location: str) -> bytes:
            asked.append(location)
            if location.endswith("b.wshard"):
                raise ShardIOError("the doctor takes too long", path="b.wshard")
            return b'{"files": []}'

        with serving(runs, findings=findings) as (_, client):
            assert client.ask("/findings/0").json == {"files": []}
            failed = client.ask("/findings/1")
            assert failed.status == 500
            assert b"takes too long" in failed.body
            assert asked == [str(runs / "a.wshard"), str(runs / "deep" / "b.wshard")]


class TestWhatBelongsTogether:
    """With a file come the files without which it cannot be read."""

    def test_chunks_come_with_their_manifest_and_other_files_do_not(self, tmp_path: Path) -> None:
        make_chunked(tmp_path / "chunked")
        save_episode(tmp_path / "chunked" / "other.wshard")
        with serving(tmp_path / "chunked" / "ep_manifest.wshard") as (_, client):
            document = client.ask("/files.json").json
            assert {one["name"]: one["kind"] for one in document["files"]} == {
                "ep_manifest.wshard": "manifest",
                "ep_chunk_0000.wshard": "episode",
                "ep_chunk_0001.wshard": "episode",
            }
            assert document["open"] == 0
            (row,) = client.ask("/episodes.json").json["rows"]
            assert (row["file"], row["length"]) == (0, 40)

    def test_a_set_of_packs_is_its_packs(self, runs: Path, tmp_path: Path) -> None:
        pack_episodes(runs, tmp_path / "packs" / "train-%06d.shardpack", fsync=False)
        with serving(tmp_path / "packs" / "train.shardpack-set", open_pack=open_episode_pack) as (
            _,
            client,
        ):
            document = client.ask("/files.json").json
            assert [(file["name"], file["kind"]) for file in document["files"]] == [
                ("train.shardpack-set", "set"),
                ("train-000000.shardpack", "pack"),
            ]
            assert document["open"] is None
            rows = client.ask("/episodes.json").json["rows"]
            assert [(row["file"], row["record"]) for row in rows] == [(1, "a"), (1, "deep/b")]

    def test_an_overview_comes_with_its_episode(self, tmp_path: Path) -> None:
        pytest.importorskip("urllib3")
        path = save_episode(tmp_path / "runs" / "long.wshard", steps=20_000)
        assert write_overviews(path, fsync=False) == f"{path}.overview"
        expected = [("long.wshard", "episode"), ("long.wshard.overview", "overview")]
        with RangeServer(path.parent) as remote:
            for given in (path, path.parent, remote.url("long.wshard")):
                with serving(given) as (_, client):
                    files = client.ask("/files.json").json["files"]
                    assert [(one["name"], one["kind"]) for one in files] == expected
                    assert len(client.ask("/episodes.json").json["rows"]) == 1

    def test_the_same_at_a_url(self, tmp_path: Path) -> None:
        pytest.importorskip("urllib3")
        make_chunked(tmp_path / "chunked")
        with (
            RangeServer(tmp_path / "chunked") as remote,
            serving(remote.url("ep_manifest.wshard")) as (_, client),
        ):
            document = client.ask("/files.json").json
            assert [one["name"] for one in document["files"]] == [
                "ep_manifest.wshard",
                "ep_chunk_0000.wshard",
                "ep_chunk_0001.wshard",
            ]
            assert document["open"] == 0
            chunk = (tmp_path / "chunked" / "ep_chunk_0001.wshard").read_bytes()
            assert document["files"][2]["size"] == len(chunk)
            assert client.ask("/f/2", Range="bytes=0-").body == chunk

    def test_a_folder_of_an_object_store_is_listed_with_sidecars(self, runs: Path) -> None:
        data = (runs / "a.wshard").read_bytes()
        names = ("a.wshard", "a.wshard.lanes/m.wshard", "deep/b.wshard", "notes.txt")
        for name in names:
            upload(str(runs / "a.wshard"), f"memory://viewer-test/runs/{name}")
        with serving("memory://viewer-test/runs/") as (_, client):
            document = client.ask("/files.json").json
            assert [(one["name"], one["kind"], one["size"]) for one in document["files"]] == [
                ("a.wshard", "episode", len(data)),
                ("a.wshard.lanes/m.wshard", "sidecar", len(data)),
                ("deep/b.wshard", "episode", len(data)),
            ]
            assert document["open"] is None
            assert client.ask("/f/1", Range="bytes=0-3").body == b"SHRD"
            assert len(client.ask("/episodes.json").json["rows"]) == 2

    def test_several_arguments_share_the_names_below_their_common_folder(
        self, runs: Path, tmp_path: Path
    ) -> None:
        other = save_episode(tmp_path / "other" / "a.wshard")
        with serving(runs, other, other.parent) as (_, client):
            document = client.ask("/files.json").json
            assert [one["name"] for one in document["files"]] == [
                "runs/a.wshard",
                "runs/deep/b.wshard",
                "other/a.wshard",
            ]
            assert document["open"] is None
            assert document["title"] == "runs/, a.wshard, other/"

    def test_nothing_to_show_is_an_error(self, tmp_path: Path) -> None:
        for arguments in ([], [tmp_path / "missing"], [tmp_path / "missing.wshard"]):
            with pytest.raises(InvalidArgument):
                ViewedFiles(arguments)


class TestRecordings:
    """What is being recorded is followed."""

    def test_a_recording_grows_under_one_tag_and_then_becomes_an_episode(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "live" / "ep.wshard"
        channels = [{"id": "state", "dtype": "f32", "shape": [2]}]
        writer = WShardStreamWriter(path, "ep", channels)
        writer.begin_episode(env_id="Live-v1")
        with serving(tmp_path / "live") as (_, client):
            sizes, tags = [], set()
            for _ in range(3):
                for _ in range(50):
                    writer.write_timestep({"state": [1.0, 2.0]}, reward=1.0)
                writer.flush()
                document = client.ask("/files.json").json
                (file,) = document["files"]
                assert (file["name"], file["kind"]) == ("ep.wshard.partial", "recording")
                assert (file["live"], document["follow"]) == (True, 1)
                sizes.append(file["size"])
                answer = client.ask(f"/f/{file['number']}", Range=f"bytes={file['size'] - 4}-")
                assert len(answer.body) == 4
                tags.add(answer.headers["etag"])
            assert sizes == sorted(set(sizes))
            assert len(tags) == 1
            (row,) = client.ask("/episodes.json").json["rows"]
            assert (row["id"], row["length"], row["env_id"]) == ("ep", 150, "Live-v1")
            writer.end_episode()
            writer.close()
            document = client.ask("/files.json").json
            assert [(one["name"], one["kind"]) for one in document["files"]] == [
                ("ep.wshard", "episode")
            ]
            assert document["follow"] == 10
            assert client.ask(f"/f/{file['number']}", Range="bytes=0-3").status == 404

    @pytest.mark.skipif(os.name == "nt", reason="Windows cannot tell")
    def test_a_recording_whose_process_is_gone_is_not_live(self, tmp_path: Path) -> None:
        path = tmp_path / "live" / "ep.wshard"
        path.parent.mkdir()
        program = f"""
import os
from wshard import WShardStreamWriter
writer = WShardStreamWriter({str(path)!r}, "ep", [{{"id": "state", "dtype": "f32", "shape": [2]}}])
writer.begin_episode()
writer.write_timestep({{"state": [1.0, 2.0]}})
writer.flush()
print("flushed", flush=True)
input()
os._exit(9)
"""
        recorder = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=VECTORS.parents[1],
        )
        assert recorder.stdout is not None
        assert recorder.stdout.readline() == "flushed\n"
        with serving(path.parent) as (_, client):
            document = client.ask("/files.json").json
            assert (document["files"][0]["live"], document["follow"]) == (True, 1)
            recorder.communicate("\n")
            document = client.ask("/files.json").json
            assert (document["files"][0]["live"], document["follow"]) == (False, 10)
        with serving(f"{path}.partial") as (_, client):
            assert client.ask("/files.json").json["follow"] is None
        # Its episode takes its place.
        recover(path, fsync=False)
        with serving(path.parent) as (_, client):
            document = client.ask("/files.json").json
            assert [file["name"] for file in document["files"]] == ["ep.wshard"]
        path.unlink()
        # One whose recorder is just beginning is not touched.
        (path.parent / "next.wshard.partial").touch()
        with serving(path.parent) as (_, client):
            document = client.ask("/files.json").json
            assert [file["live"] for file in document["files"]] == [False, None]
            assert document["follow"] == 1

    def test_a_recording_that_was_named_is_followed_into_its_episode(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.wshard"
        writer = WShardStreamWriter(path, "ep", [{"id": "state", "dtype": "f32", "shape": [2]}])
        writer.begin_episode()
        writer.write_timestep({"state": [1.0, 2.0]})
        writer.flush()
        with serving(f"{path}.partial") as (_, client):
            assert client.ask("/files.json").json["open"] == 0
            writer.end_episode()
            writer.close()
            (file,) = client.ask("/files.json").json["files"]
            assert file["name"] == "ep.wshard"


class TestUrls:
    """Files on other machines are read here, so that no credential reaches the browser."""

    def test_ranges_of_a_url_come_through_this_server(self, runs: Path) -> None:
        pytest.importorskip("urllib3")
        with RangeServer(runs) as remote, serving(remote.url("a.wshard")) as (_, client):
            (file,) = client.ask("/files.json").json["files"]
            assert (file["name"], file["kind"]) == ("a.wshard", "episode")
            whole = (runs / "a.wshard").read_bytes()
            assert file["size"] == len(whole)
            answer = client.ask("/f/0", Range="bytes=100-")
            assert (answer.status, answer.body) == (206, whole[100:])
            assert client.ask("/episodes.json").json["rows"][0]["id"] == "a"

    def test_the_page_sees_no_credentials_of_a_url(self, tmp_path: Path) -> None:
        pytest.importorskip("urllib3")
        path = tmp_path / "remote" / "large.shard?key=secret"
        path.parent.mkdir()
        path.write_bytes(bytes(1 << 20))
        with RangeServer(path.parent) as remote, serving(remote.url(path.name)) as (_, client):
            answers = [client.ask(path) for path in ("/files.json", "/episodes.json")]
            path.unlink()
            answers.append(client.ask("/f/0", Range="bytes=500000-500003"))
            assert [answer.status for answer in answers] == [200, 200, 404]
            assert not any(b"secret" in answer.body for answer in answers)

    def test_content_that_changed_behind_a_url_is_not_mixed(self, tmp_path: Path) -> None:
        pytest.importorskip("urllib3")
        path = tmp_path / "remote" / "large.shard"
        path.parent.mkdir()
        path.write_bytes(bytes(1 << 20))
        with RangeServer(path.parent) as remote, serving(remote.url("large.shard")) as (_, client):
            tag = client.ask("/f/0", Range="bytes=0-3").headers["etag"]
            path.write_bytes(b"x" * (1 << 20) + b"more")
            assert client.ask("/f/0", Range="bytes=500000-500003").status == 409
            again = client.ask("/f/0", Range="bytes=500000-500003", If_Range=tag)
            assert again.status == 412
            assert client.ask("/f/0", Range="bytes=500000-500003").body == b"xxxx"
            assert client.ask("/files.json").json["files"][0]["size"] == (1 << 20) + 4

    def test_a_server_that_fails_is_named(self, runs: Path) -> None:
        pytest.importorskip("urllib3")
        with RangeServer(runs) as remote:
            url = remote.url("missing.wshard")
            with pytest.raises(FileMissing):
                ViewedFiles([url])


class TestClientsThatMisbehave:
    """Bounded lines, heads, times and connections."""

    def test_a_long_request_line_is_refused(self, served: Client) -> None:
        # In two parts, so that nothing is left unread when the connection is closed.
        answer = served.send(b"GET /" + b"x" * 8188)
        assert answer.status == 414
        assert served.ask("/" + "x" * 8000).status == 404

    def test_many_headers_are_refused(self, served: Client) -> None:
        many = "".join(f"X-{number}: y\r\n" for number in range(150))
        answer = served.send(f"GET / HTTP/1.1\r\nHost: {served.host}\r\n{many}\r\n".encode())
        assert answer.status == 431

    def test_a_head_without_end_is_refused(self, served: Client) -> None:
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            try:
                for _ in range(1000):
                    connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
                answer = connection.recv(65536)
            except ConnectionError:  # closed before all was sent
                answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")

    def test_a_client_that_sends_slowly_is_cut_off(self, runs: Path) -> None:
        with serving(runs) as (server, client):
            server.seconds_for_a_request = 0.2
            with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
                assert connection.recv(65536) == b""
            server.seconds_for_a_request = 30
            assert client.ask("/").status == 200

    def test_one_byte_after_the_other_does_not_win_time(self, runs: Path) -> None:
        with serving(runs) as (server, client):
            server.seconds_for_a_request = 0.3
            with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
                connection.settimeout(0.02)
                ended = False
                while not ended:  # the timeout of the test ends a server that waits for ever
                    try:
                        connection.sendall(b"x")
                        ended = connection.recv(1) == b""
                    except TimeoutError:  # noqa: PERF203 - no answer yet
                        pass
                    except ConnectionError:
                        ended = True

    def test_a_client_that_does_not_take_its_answer_is_cut_off(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "large" / "zeros.shard"
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(LARGEST_RANGE)
        with serving(path) as (server, client):
            server.seconds_for_a_request = 0.3
            ended, end = threading.Event(), server.shutdown_request

            def end_and_tell(request: Any) -> None:  # noqa: ANN401
                end(request)
                ended.set()

            monkeypatch.setattr(server, "shutdown_request", end_and_tell)
            request = (
                f"GET /f/0 HTTP/1.1\r\nHost: {client.host}\r\nRange: bytes=0-{LARGEST_RANGE - 1}\r\n"
                f"Authorization: Bearer {client.token}\r\n\r\n"
            )
            with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
                connection.sendall(request.encode())
                assert ended.wait(60)
                received = 0
                while piece := connection.recv(1 << 20):
                    received += len(piece)
            assert received < LARGEST_RANGE

    def test_too_many_connections_are_closed_and_others_are_served(self, runs: Path) -> None:
        with serving(runs) as (_, client):
            open_ones = []
            for _ in range(80):
                connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
                open_ones.append(connection)
            assert open_ones[-1].recv(1) == b""  # the server has closed it
            for connection in open_ones:
                connection.close()
            statuses: set[int] = set()
            while statuses != {200}:
                with suppress(ConnectionError, IndexError):  # not all are gone yet
                    statuses = {client.ask("/").status}

    @pytest.mark.parametrize(
        "head", ["Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Content-Length: x\r\n"]
    )
    def test_a_body_cannot_smuggle_a_request(self, served: Client, head: str) -> None:
        first = f"GET / HTTP/1.1\r\nHost: {served.host}\r\n{head}\r\n"
        second = f"GET / HTTP/1.1\r\nHost: {served.host}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
            connection.sendall((first + second).encode())
            assert read_answer(connection).status == 400
            with suppress(ConnectionError):
                assert connection.recv(1) == b""

    @pytest.mark.parametrize(
        "junk",
        [b"\r\n", b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"\x00" * 100],
    )
    def test_junk_harms_nobody(self, served: Client, junk: bytes) -> None:
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
        assert served.ask("/files.json").status == 200

    def test_one_connection_serves_many_requests(self, served: Client) -> None:
        request = (
            f"GET /f/0 HTTP/1.1\r\nHost: {served.host}\r\nRange: bytes=0-3\r\n"
            f"Authorization: Bearer {served.token}\r\n\r\n"
        ).encode()
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
            for _ in range(20):
                connection.sendall(request)
                assert read_answer(connection).body == b"SHRD"


class TestEnding:
    """How long it runs."""

    def test_an_idle_server_ends(self, runs: Path) -> None:
        server = ViewerServer(ViewedFiles([runs]), idle_s=0.3)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        server.server_close()

    def test_requests_without_the_token_and_looks_for_new_files_do_not_keep_it_up(
        self, runs: Path
    ) -> None:
        with serving(runs, idle_s=3600) as (server, client):
            before = server.last_request
            client.ask("/")
            client.ask("/files.json", token=None)
            assert server.last_request == before
            # A page that nobody looks at asks for new files, too.
            client.ask("/files.json")
            assert server.last_request == before
            client.ask("/f/0")
            assert server.last_request > before

    def test_a_port_that_is_taken_is_an_error_that_names_it(self, runs: Path) -> None:
        with serving(runs) as (_, client), pytest.raises(ShardIOError) as caught:
            ViewerServer(ViewedFiles([runs]), port=client.port)
        assert f"127.0.0.1:{client.port}" in str(caught.value)

    def test_a_page_that_was_not_built_is_an_error_that_says_how(
        self, runs: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "page" / "viewer.html.gz").unlink()
        with pytest.raises(FileMissing, match="make viewer"):
            ViewerServer(ViewedFiles([runs]))


@pytest.mark.filterwarnings("ignore:.*the episode is read without it")
def test_files_that_lie_cannot_stop_the_server() -> None:
    """All vectors, valid and not: rows for those that open, and reasons for the others."""
    with serving(VECTORS, open_pack=open_episode_pack) as (_, client):
        files = client.ask("/files.json").json["files"]
        assert len(files) > 500
        kinds = {"episode", "manifest", "pack", "recording", "sidecar", "overview", "container"}
        assert {file["kind"] for file in files} == kinds
        document = client.ask("/episodes.json").json
        assert len(document["rows"]) > 100
        assert len(document["left_out"]) > 100
        assert max(len(row["id"]) for row in document["rows"]) <= 200
        for file in files[::20]:
            if file["size"]:
                assert client.ask(f"/f/{file['number']}", Range="bytes=0-63").status == 206


def test_a_document_of_the_server_is_strict_json(served: Client) -> None:
    def refuse(name: str) -> Any:  # noqa: ANN401
        raise AssertionError(name)

    for path in ("/files.json", "/episodes.json"):
        json.loads(served.ask(path).body, parse_constant=refuse)
