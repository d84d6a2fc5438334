"""`shard create`."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from shard_cli.exits import Exit
from shard_format import Codec, ContentType, Role, ShardReader, compute_identity

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Run


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "b" / "deep").mkdir(parents=True)
    (folder / "b" / "deep" / "x.json").write_text("{}")
    (folder / "b" / "a.bin").write_bytes(bytes(3000))
    (folder / "z.txt").write_text("text")
    (folder / "A.PNG").write_bytes(b"png")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.shard"


def names_in(path: Path) -> list[str]:
    with ShardReader(path) as reader:
        reader.verify()
        return reader.names()


def test_a_folder_is_packed_sorted_with_relative_names(run: Run, tree: Path, out: Path) -> None:
    result = run("create", out, tree)
    assert result.code == Exit.OK
    assert names_in(out) == ["A.PNG", "b/a.bin", "b/deep/x.json", "z.txt"]
    assert "4 entries" in result.out
    assert result.err == ""


def test_the_same_inputs_give_the_same_bytes(run: Run, tree: Path, out: Path) -> None:
    run("create", out, tree)
    first = out.read_bytes()
    run("create", out, f"{tree}/", "--force")
    assert out.read_bytes() == first


def test_names_can_be_given_and_prefixed(run: Run, tree: Path, out: Path) -> None:
    run(
        "create",
        out,
        f"n/1={tree / 'z.txt'}",
        tree / "A.PNG",
        f"sub={tree / 'b'}",
        "--prefix",
        "p/",
    )
    assert names_in(out) == ["p/n/1", "p/A.PNG", "p/sub/a.bin", "p/sub/deep/x.json"]


def test_a_file_with_an_equals_sign_in_its_name_is_taken_as_it_is(
    run: Run, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").write_text("x")
    run("create", out, "a=b")
    assert names_in(out) == ["a=b"]


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_stdin_can_be_an_entry(
    compression: str, run: Run, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"piped" * 1000)))
    assert run("create", out, "log.txt=-", "-c", compression).code == Exit.OK
    with ShardReader(out) as reader:
        assert reader["log.txt"] == b"piped" * 1000
        assert reader.info("log.txt").content_type == ContentType.TEXT
    result = run("create", out, "-", "--force")
    assert result.code == Exit.USAGE
    assert "NAME=-" in result.err


def test_options_reach_the_file(run: Run, tree: Path, out: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"description": "d", "odd": 1}))
    options = ["-c", "zstd:9", "--alignment", "32", "--role", "samples", "--frame-bytes", "1K"]
    options += ["--tag", "one", "--tag", "two", "--schema", str(schema), "--identity"]
    assert run("create", out, tree, *options).code == Exit.OK
    with ShardReader(out) as reader:
        reader.verify()
        assert reader.role == Role.SAMPLES
        assert reader.header.alignment == 32
        assert reader.names()[-1] == "meta/identity"
        info = reader.info("b/a.bin")
        assert (info.codec, info.tag_bits) == (Codec.ZSTD, 3)
        table = reader.seek_table("b/a.bin")
        assert table is not None
        assert len(table) == 3
        assert reader.schema is not None
        assert reader.schema.fields == {
            "description": "d",
            "odd": 1,
            "tag_dictionary": ["one", "two"],
        }


def test_content_types_go_by_suffix_or_by_word(run: Run, tree: Path, out: Path) -> None:
    run("create", out, tree)
    with ShardReader(out) as reader:
        found = [reader.info(name).content_type for name in reader]
    assert found == [ContentType.IMAGE, ContentType.UNKNOWN, ContentType.JSON, ContentType.TEXT]
    run("create", out, tree, "--content-type", "blob", "--force")
    with ShardReader(out) as reader:
        assert {reader.info(name).content_type for name in reader} == {ContentType.BLOB}


def test_large_files_stream(
    run: Run, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shard_cli.files._LARGEST_IN_MEMORY", 1000)
    path = tmp_path / "large.bin"
    path.write_bytes(bytes(100_000))
    for compression in ("none", "zstd", "lz4"):
        assert run("create", out, path, "-c", compression, "--force").code == Exit.OK
        with ShardReader(out) as reader:
            assert reader["large.bin"] == bytes(100_000)


def test_links_and_sockets_in_a_folder_are_skipped_and_counted(
    run: Run, tree: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "link").symlink_to("z.txt")
    os.mkfifo(tree / "pipe")
    monkeypatch.chdir(tree)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("sock")
    result = run("create", out, tree)
    assert result.code == Exit.OK
    assert len(names_in(out)) == 4
    assert "skipped 3 files" in result.out
    for what in ("a symbolic link", "a pipe", "a socket"):
        assert what in result.err
    skipped = run("create", out, tree, "--json", "--force").json["skipped"]
    assert [os.path.basename(one["path"]) for one in skipped] == ["link", "pipe", "sock"]


def test_a_link_to_a_file_is_followed_if_given_by_hand(run: Run, tree: Path, out: Path) -> None:
    (tree / "link").symlink_to("z.txt")
    (tree / "folder").symlink_to("b")
    run("create", out, tree / "link")
    with ShardReader(out) as reader:
        assert reader["link"] == b"text"
    result = run("create", out, tree / "folder", "--force")
    assert result.code == Exit.USAGE
    assert run("create", out, f"{tree / 'folder'}/", "--force").code == Exit.OK


def test_the_output_is_never_its_own_input(run: Run, tree: Path) -> None:
    out = tree / "out.shard"
    run("create", out, tree)
    result = run("create", out, tree, "--force")
    assert "the output itself" in result.err
    assert len(names_in(out)) == 4


def test_nothing_is_replaced_without_force(run: Run, tree: Path, out: Path) -> None:
    out.write_text("precious")
    assert run("create", out, tree).code == Exit.USAGE
    assert out.read_text() == "precious"


def test_a_dry_run_writes_nothing(run: Run, tree: Path, out: Path) -> None:
    result = run("create", "--dry-run", out, tree)
    assert result.code == Exit.OK
    assert "b/a.bin\t3000" in result.out
    assert "would write 4 entries" in result.out
    assert not out.exists()
    assert run("create", "-n", "--json", out, tree).json["dry_run"] is True


def test_two_inputs_with_one_name_are_refused(run: Run, tree: Path, out: Path) -> None:
    result = run("create", out, tree / "z.txt", f"z.txt={tree / 'A.PNG'}")
    assert result.code == Exit.USAGE
    assert "same name" in result.err
    assert not out.exists()


@pytest.mark.parametrize(
    "options",
    [
        ["-c", "brotli"],
        ["-c", "zstd:99"],
        ["-c", "lz4", "--frame-bytes", "1K"],
        ["--frame-bytes", "0", "-c", "zstd"],
        ["--role", "emperor"],
        ["--content-type", "smell"],
        ["--alignment", "7"],
    ],
)
def test_wrong_options_are_wrong_use(options: list[str], run: Run, tree: Path, out: Path) -> None:
    assert run("create", out, tree, *options).code == Exit.USAGE
    assert not out.exists()


def test_a_missing_input_is_an_io_error(run: Run, out: Path) -> None:
    assert run("create", out, "absent.bin").code == Exit.IO
    assert not out.exists()


def test_a_schema_that_is_no_object_is_refused_by_name(
    run: Run, tree: Path, out: Path, tmp_path: Path
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"a":1,"a":2}')
    result = run("create", out, tree, "--schema", schema)
    assert result.code == Exit.FINDING
    assert f"{schema}: " in result.err


def test_a_role_whose_promise_is_not_kept_is_worth_a_warning(
    run: Run, tree: Path, out: Path
) -> None:
    assert "meta/episode" in run("create", out, tree, "--role", "wshard").err


def test_what_was_packed_comes_out_again(run: Run, tree: Path, out: Path, tmp_path: Path) -> None:
    run("create", out, tree, "-c", "zstd")
    assert run("extract", out, "-C", tmp_path / "again").code == Exit.OK
    second = tmp_path / "second.shard"
    run("create", second, tmp_path / "again", "-c", "lz4")
    assert compute_identity(out).digest == compute_identity(second).digest
