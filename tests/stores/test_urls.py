"""Files behind URLs: listed, written, replaced and removed, with a real S3 server on the loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest

import shardpack
import wshard
from shard_cli.main import main
from shard_cli.programs import SHARDPACK, WSHARD
from shard_format import ShardReader, ShardWriter, WriterOptions, remote
from shard_format.errors import FileMissing, FileThere, InvalidArgument, TransportError, UnsafePath
from shard_format.listing import expand
from shard_format.transfer import local_file, names_below, path_below, uploading
from shard_train import EpisodeDataset, map_episodes
from shardpack.sets import SetLabel
from tests.stores.fault_proxy import FaultProxy, stall, status
from wshard import Episode, convert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stores.servers import Bucket

PART = 8 << 20


@pytest.fixture
def folder(
    moto: Bucket, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a folder that only this test uses; the environment has the options."""
    monkeypatch.setenv(remote.ENVIRONMENT, json.dumps(moto.options))
    url = f"s3://bucket/{abs(hash(request.node.nodeid)):x}"
    yield url
    for one in remote.list_url(url):
        remote.delete_url(one.url)


def put(url: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "put"
    path.write_bytes(data)
    remote.upload(str(path), url)


def episode(number: int) -> Episode:
    values = np.random.default_rng(number)
    made = Episode(id=f"ep_{number}", length=40)
    made.observations["state"] = values.random((40, 4), np.float32)
    made.actions["ctrl"] = values.random((40, 2), np.float32)
    made.rewards = np.full(40, number, np.float32)
    return made


def uploads(moto: Bucket) -> str:
    """What the server says about uploads that are not finished."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{moto.endpoint}/bucket?uploads") as answer:
        return str(answer.read().decode())


class TestListing:
    def test_folders_patterns_and_ranges_mean_the_objects_below_them_in_natural_order(
        self, folder: str, tmp_path: Path
    ) -> None:
        for name in ("a_10.w", "a_9.w", "sub/b.w", ".hidden.w", "skip/c.w", "other.txt", "a b?.w"):
            put(f"{folder}/{name.replace('?', '%3F')}", b"x", tmp_path)
        inside = [f"{folder}/{name}" for name in ("a b%3F.w", "a_9.w", "a_10.w", "sub/b.w")]
        for text in (folder, folder + "/"):
            assert expand(text, ".w", enter=lambda name: name != "skip") == inside
        assert expand(f"{folder}/a_*.w", ".w") == inside[1:3]
        assert expand(f"{folder}/a_[0-9].w", ".w") == inside[1:2]
        assert expand(f"{folder}/**/b.w", ".w") == inside[3:]
        assert expand(f"{folder}/a_{{9..10}}.w", ".w") == inside[1:3]
        assert expand(f"{folder}/a_9.w", ".w") == inside[1:2]
        with pytest.raises(InvalidArgument, match="no such files"):
            expand(f"{folder}/nothing/", ".w")
        with pytest.raises(InvalidArgument, match="finds no files"):
            expand(f"{folder}/z*.w", ".w")

    def test_a_web_server_says_what_to_do_instead(self) -> None:
        with pytest.raises(InvalidArgument, match="cannot list") as caught:
            remote.list_url("http://127.0.0.1:1/data")
        assert "{000000..000099}" in str(caught.value)

    def test_episodes_below_a_folder_are_found_and_train_with_a_cache(
        self, folder: str, tmp_path: Path
    ) -> None:
        for number in range(3):
            wshard.save_wshard(episode(number), f"{folder}/ep_{number}.wshard")
        table = wshard.find(folder, where="id != 'ep_1'")
        assert [row.id for row in table] == ["ep_0", "ep_2"]
        windows = EpisodeDataset(folder, window=8, channels=["state"], cache_dir=tmp_path)
        assert len(windows) == 3 * 33
        np.testing.assert_array_equal(
            windows[40]["state"], episode(1).observations["state"].data[7:15]
        )


class TestWriting:
    def test_a_file_at_a_url_has_the_bytes_that_a_local_one_has(
        self, folder: str, tmp_path: Path
    ) -> None:
        for target in (folder, str(tmp_path)):
            wshard.save_wshard(episode(1), f"{target}/a.wshard", "zstd")
            with ShardWriter(f"{target}/b.shard") as writer:
                writer.write_entry("x", bytes(1000))
            with shardpack.ShardWriterSet(
                f"{target}/c-%06d.shardpack", max_records=2, created="now"
            ) as packs:
                for number in range(5):
                    packs.write(f"k{number}", {"x.npy": np.arange(number)})
        names = sorted(path.name for path in tmp_path.iterdir())
        assert [one.url for one in remote.list_url(folder)] == [f"{folder}/{n}" for n in names]
        for name in names:
            source = remote.open_url(f"{folder}/{name}")
            assert source.read_at(0, source.size()) == (tmp_path / name).read_bytes()
        with shardpack.open(f"{folder}/c.shardpack-set") as dataset:
            assert dataset["k4"]["x.npy"].decode().tolist() == [0, 1, 2, 3]

    def test_a_file_url_is_a_path(self, tmp_path: Path) -> None:
        url = (tmp_path / "new folder" / "a.wshard").as_uri()
        wshard.save_wshard(episode(1), url)
        assert (tmp_path / "new folder" / "a.wshard").exists()
        assert wshard.load_wshard(url).id == "ep_1"
        assert expand((tmp_path / "new folder").as_uri(), ".wshard") == [
            str(tmp_path / "new folder" / "a.wshard")
        ]

    def test_memory_and_any_filesystem_of_fsspec_take_files_too(self, tmp_path: Path) -> None:
        for url, options in (
            ("memory://here/sub/a.shard", None),
            ("s3://there/sub/a.shard", {"filesystem": fsspec.filesystem("memory")}),
            (
                f"x{tmp_path}/sub/a.shard".replace("x/", "abfs:///"),
                {"filesystem": fsspec.filesystem("file")},
            ),
        ):
            with ShardWriter(url, options=WriterOptions(storage_options=options)) as writer:
                writer.write_entry("x", bytes(range(200)) * 1000)
            for tail in (False, True):
                source = remote.open_url(url, options, tail=tail)
                with ShardReader(source) as reader:
                    assert reader.read_entry("x") == bytes(range(200)) * 1000
            outer = url.rpartition("/sub")[0]
            assert [one.url for one in remote.list_url(outer, options)] == [url]
            with pytest.raises(FileThere):
                remote.upload(__file__, url, options, overwrite=False)
            remote.delete_url(url, options)
            assert not remote.exists(url, options)
            with pytest.raises(FileMissing):
                remote.open_url(url, options)

    def test_existing_shards_are_refused_continued_and_never_replaced(self, folder: str) -> None:
        name = f"{folder}/t-%06d.shardpack"

        def write(key: str, **options: Any) -> None:  # noqa: ANN401
            with shardpack.ShardWriterSet(name, **options) as writer:
                writer.write(key, {"x.txt": key})

        write("a")
        with pytest.raises(InvalidArgument, match="already"):
            write("b")
        with pytest.raises(InvalidArgument, match="cannot be replaced"):
            write("b", overwrite=True)
        write("b", append=True)
        with pytest.raises(InvalidArgument, match="written before"):
            write("a", append=True)
        with shardpack.open(f"{folder}/t.shardpack-set") as dataset:
            assert [record.key for record in dataset.records()] == ["a", "b"]

    def test_parts_become_one_set_and_a_killed_commit_is_repeated(
        self, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = f"{folder}/t-%06d.shardpack"
        for part in (1, 2):
            with shardpack.ShardWriterSet(name, label=SetLabel("run", part, 2)) as writer:
                writer.write(f"k{part}", {"x.txt": str(part)})
        with monkeypatch.context() as patched:
            patched.setattr("shardpack.parts.write_set_file", _die)
            with pytest.raises(KeyboardInterrupt):
                shardpack.commit(name)
        assert not remote.exists(f"{folder}/t.shardpack-set")
        with monkeypatch.context() as patched:
            patched.setattr("shardpack.parts._remove_parts", _die)
            with pytest.raises(KeyboardInterrupt):
                shardpack.commit(name)
        assert shardpack.commit(name).records == 2
        assert [one.url.rpartition("/")[2] for one in remote.list_url(folder)] == [
            "t-000000.shardpack",
            "t-000001.shardpack",
            "t.shardpack-set",
        ]
        with shardpack.open(f"{folder}/t.shardpack-set") as dataset:
            assert [record.key for record in dataset.records()] == ["k1", "k2"]

    def test_a_recording_needs_a_local_path(self, folder: str) -> None:
        channels = [{"id": "x", "dtype": "f32", "shape": [1]}]
        with pytest.raises(InvalidArgument, match="local disk"):
            wshard.WShardStreamWriter(f"{folder}/a.wshard", "a", channels).begin_episode()
        no_options = WriterOptions(storage_options={})
        with (
            pytest.raises(InvalidArgument, match="web server"),
            ShardWriter("http://x/a.shard", options=no_options),
        ):
            pass


def _double(one: Episode) -> Episode:
    one.observations["state"] = one.observations["state"].data * 2
    return one


def _die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


class TestSuddenEnds:
    """The object of before stays until the new one is complete, and no parts of uploads stay."""

    def test_a_failed_upload_leaves_the_old_object_and_no_parts(
        self, moto: Bucket, moto_proxy: FaultProxy, folder: str, tmp_path: Path
    ) -> None:
        url = f"{folder}/a.bin"
        put(url, b"before", tmp_path)
        options = {**moto.options, "endpoint": moto_proxy.url}
        large = tmp_path / "large"
        large.write_bytes(bytes(2 * PART + 1))
        # The request that starts the upload, and one part, work.
        moto_proxy.faults.extend([None, None])
        moto_proxy.always = _fail_puts
        with pytest.raises(TransportError, match="500"):
            remote.upload(str(large), url, options)
        assert remote.open_url(url).read_at(0, 6) == b"before"
        if sys.version_info >= (
            3,
            11,
        ):  # obstore 0.11, the newest for Python 3.10, leaves the parts
            assert "<UploadId>" not in uploads(moto)

    def test_a_killed_process_leaves_the_old_object(
        self, moto: Bucket, moto_proxy: FaultProxy, folder: str, tmp_path: Path
    ) -> None:
        url = f"{folder}/a.shard"
        put(url, b"before", tmp_path)
        moto_proxy.faults.extend([None, None])
        moto_proxy.always = stall
        script = """
import sys, json
from shard_format import ShardWriter
with ShardWriter(sys.argv[1]) as writer:
    writer.write_entry("x", bytes(30 << 20))
"""
        options = {**moto.options, "endpoint": moto_proxy.url}
        environment = {
            **os.environ,
            remote.ENVIRONMENT: json.dumps(options),
            "TMPDIR": str(tmp_path),
        }
        with subprocess.Popen([sys.executable, "-c", script, url], env=environment) as process:
            while moto_proxy.most_at_once < 2 and process.poll() is None:
                pass
            process.send_signal(signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL
        assert remote.open_url(url).read_at(0, 6) == b"before"

    @pytest.mark.parametrize("call", ["open_url(url)", "list_url(url)", "upload(__file__, url)"])
    def test_an_interrupt_does_not_wait_for_a_store_that_does_not_answer(
        self, moto: Bucket, moto_proxy: FaultProxy, tmp_path: Path, call: str
    ) -> None:
        moto_proxy.always = stall
        options = {**moto.options, "endpoint": moto_proxy.url, "deadline": 600}
        program = tmp_path / "program.py"
        program.write_text(f"from shard_format.remote import *; url = 's3://bucket/a'; {call}")
        with subprocess.Popen(
            [sys.executable, program],
            env={**os.environ, remote.ENVIRONMENT: json.dumps(options)},
            stderr=subprocess.PIPE,
        ) as process:
            while not moto_proxy.at_once and process.poll() is None:
                pass
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert (process.returncode, b"KeyboardInterrupt" in said) == (-signal.SIGINT, True)


def _fail_puts(exchange: Any) -> None:  # noqa: ANN401
    from tests.stores.fault_proxy import pass_on

    (status(500) if exchange.command == "PUT" else pass_on)(exchange)


class TestWholeFolders:
    def test_what_needs_local_files_gets_a_path_and_all_files_are_uploaded(
        self, folder: str
    ) -> None:
        names = ("meta.json", "data/b", "data/deep/c")
        with uploading(f"{folder}/made") as path:
            for name in names:
                target = Path(path, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(name)
        assert not os.path.exists(path)
        assert set(names_below(f"{folder}/made")) == set(names)
        with local_file(f"{folder}/made/data/b") as path:
            assert Path(path).read_text() == "data/b"
        assert not os.path.exists(path)
        with pytest.raises(KeyError), uploading(f"{folder}/failed") as path:
            raise KeyError(path)
        assert not remote.list_url(f"{folder}/failed")

    def test_a_dataset_is_converted_from_one_url_to_another(self, folder: str) -> None:
        for number in range(2):
            wshard.save_wshard(episode(number), f"{folder}/in/ep_{number}.wshard")
        convert.convert(f"{folder}/in", f"{folder}/npz", to="npz")
        names = [one.url.removeprefix(f"{folder}/npz") for one in remote.list_url(folder)]
        assert {"/ep_0.npz", "/ep_1.npz", ".report.json"} <= set(names)
        with pytest.raises(FileThere):
            convert.convert(f"{folder}/in", f"{folder}/npz", to="npz")
        read = list(convert.read(f"{folder}/npz"))
        assert [one.length for one in read] == [40, 40]
        report = convert.write(
            (wshard.load_wshard(f"{folder}/in/ep_0.wshard") for _ in range(1)),
            f"{folder}/one.csv",
        )
        assert report.episodes == 1
        assert remote.exists(f"{folder}/one.csv")

    def test_a_function_maps_episodes_of_one_url_to_another_and_continues(
        self, folder: str
    ) -> None:
        for number in range(2):
            wshard.save_wshard(episode(number), f"{folder}/in/sub/ep_{number}.wshard")
        for skipped in (0, 2):
            report = map_episodes(_double, f"{folder}/in", f"{folder}/out", jobs=1)
            assert (report.episodes, report.skipped, report.failed) == (2, skipped, {})
        assert len(remote.list_url(f"{folder}/out")) == 2
        doubled = wshard.load_wshard(f"{folder}/out/ep_1.wshard").observations["state"].data
        np.testing.assert_array_equal(doubled, episode(1).observations["state"].data * 2)

    @pytest.mark.parametrize("name", ["../b", "a%2F..%2F..%2Fb", "a\\..\\b", "/b", "%00"])
    def test_an_object_whose_name_leads_out_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UnsafePath, match="cannot fetch"):
            path_below(str(tmp_path), name)


class TestCommandLine:
    def test_commands_take_urls_and_options_and_count_requests(
        self,
        moto: Bucket,
        folder: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        for number in range(2):
            wshard.save_wshard(episode(number), f"{folder}/ep/{number}.wshard")
        options = [
            f"--storage-option={name}={value}"
            for name, value in (
                ("endpoint", moto.endpoint),
                ("region", "us-east-1"),
                ("access_key_id", "testing"),
                ("secret_access_key", "testing"),
                ("client_options.allow_http", "true"),
            )
        ]
        monkeypatch.setenv(remote.ENVIRONMENT, "{}")  # which the command changes

        def run(program: Any, *arguments: str) -> str:  # noqa: ANN401
            assert main([*arguments, *options], program) == 0
            said = capsys.readouterr()
            return said.out + said.err

        assert "2 episodes, all ok" in run(WSHARD, "verify", f"{folder}/ep")
        said = run(WSHARD, "inspect", "--stats", f"{folder}/ep/0.wshard")
        assert "1 request" in said
        run(SHARDPACK, "pack-episodes", f"{folder}/ep", "-o", f"{folder}/p-%06d.shardpack")
        assert "records       2" in run(SHARDPACK, "info", f"{folder}/p.shardpack-set")
        run(WSHARD, "repack", f"{folder}/ep/0.wshard", "-o", f"{folder}/new.wshard")
        assert main(["repack", f"{folder}/ep/0.wshard", "-o", f"{folder}/new.wshard"], WSHARD) == 2
        assert "exists" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())

    def test_inspecting_a_folder_ends_when_the_store_fails(
        self,
        moto_proxy: FaultProxy,
        folder: str,
        tmp_path: Path,
        moto: Bucket,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        wshard.save_wshard(episode(0), tmp_path / "a.wshard")
        for number in range(60):
            remote.upload(str(tmp_path / "a.wshard"), f"{folder}/{number}.wshard")
        options = {**moto.options, "endpoint": moto_proxy.url}
        moto_proxy.faults.append(None)  # the list
        moto_proxy.always = status(503)
        with monkeypatch.context() as patched:
            patched.setenv(remote.ENVIRONMENT, json.dumps(options))
            assert main(["inspect", folder], WSHARD) == 3
        assert moto_proxy.counted() < 60
        assert capsys.readouterr().err.count("503") == 1

    def test_a_malformed_storage_option_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["verify", "x", "--storage-option", "region"], WSHARD) == 2
        assert "NAME=VALUE" in capsys.readouterr().err


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"endpoint": "http://127.0.0.1:1"}, "allow_http"),
            ({"endpoint": "no url"}, "a URL such as"),
            ({"timeout": "soon"}, "seconds"),
            ({"deadline": 0}, "more than 0"),
            ({"retries": -1}, "0 or more"),
            ({"regionn": "x"}, "regionn"),
            ({"region": 5}, "str"),
            ({"retries": 1 << 70}, "too big"),
            ({"client_options": "x"}, "a dictionary"),
            ({"endpoint": "https://127.0.0.1:99999"}, "check the endpoint"),
        ],
        ids=str,
    )
    def test_a_wrong_option_is_our_error(self, options: dict[str, Any], expected: str) -> None:
        with pytest.raises(InvalidArgument, match=expected):
            remote.open_url("s3://bucket/key", {"anonymous": True, **options})

    def test_a_line_break_after_a_key_is_our_error_and_shows_no_key(
        self, moto: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hidden\n")
        options = {name: moto.options[name] for name in ("endpoint", "secret_access_key")}
        with pytest.raises(InvalidArgument, match=r"s3://bucket: .*line break") as caught:
            remote.open_url("s3://bucket/key", {**options, "allow_http": True})
        assert "hidden" not in str(caught.value)

    def test_the_usual_variables_name_a_store_too(
        self, moto: Bucket, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(f"{folder}/a", b"content", tmp_path)
        monkeypatch.delenv(remote.ENVIRONMENT)
        for name, value in (
            ("ENDPOINT_URL", moto.endpoint),
            ("REGION", "us-east-1"),
            ("ACCESS_KEY_ID", "testing"),
            ("SECRET_ACCESS_KEY", "testing"),
        ):
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(InvalidArgument, match="allow_http"):
            remote.open_url(f"{folder}/a")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        assert remote.open_url(f"{folder}/a").read_at(0, 7) == b"content"
        monkeypatch.setenv(remote.ENVIRONMENT, json.dumps(moto.options))

    def test_options_of_the_environment_must_be_an_object(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(remote.ENVIRONMENT, "[1]")
        with pytest.raises(InvalidArgument, match="JSON object"):
            remote.open_url("s3://bucket/key")
