"""`shard identity`."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from shard_cli.exits import Exit
from shard_format import Identity, compute_identity

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.cli.conftest import Make, Run


def test_it_prints_like_sha256sum(run: Run, sample: Path) -> None:
    digest = compute_identity(sample).digest
    assert run("identity", sample).out == f"{digest}  {sample}\n"
    assert run("identity", "--json", sample).json["files"] == [
        {"file": str(sample), "identity": digest, "identity_version": 2}
    ]


def test_entries_are_listed_on_request(run: Run, sample: Path) -> None:
    lines = run("identity", "--entries", sample).out.splitlines()
    assert len(lines) == 5
    assert lines[1].endswith("  meta/about")
    entries = run("identity", "--entries", "--json", sample).json["files"][0]["entries"]
    assert entries == dict(compute_identity(sample).entries)


def test_a_list_can_be_checked(run: Run, make: Make, tmp_path: Path) -> None:
    odd = make("odd\n\\name.shard", {"x": b"1"})
    plain = make("plain.shard", {"x": b"2"})
    listed = tmp_path / "LIST"
    listed.write_text(run("identity", odd, plain).out)
    result = run("identity", "--check", listed)
    assert result.code == Exit.OK
    assert f"{plain}: ok\n" in result.out

    make("plain.shard", {"x": b"3"})
    result = run("identity", "--check", listed)
    assert result.code == Exit.FINDING
    assert f"{plain}: FAILED\n" in result.out
    assert "(identity_mismatch)" in result.err
    files = run("identity", "--check", listed, "--json").json["files"]
    assert files[1]["error"]["code"] == "identity_mismatch"


def test_a_list_of_version_1_can_be_checked_and_is_told_apart(
    run: Run, sample: Path, tmp_path: Path
) -> None:
    old = Identity(compute_identity(sample).entries).digest
    listed = tmp_path / "LIST"
    listed.write_text(f"{old}  {sample}\n")
    result = run("identity", "--check", listed)
    assert result.code == Exit.OK
    covered = "version 1: it does not cover the role and the schema section"
    assert result.out == f"{sample}: ok ({covered})\n"
    files = run("identity", "--check", listed, "--json").json["files"]
    assert files == [{"file": str(sample), "identity": old, "identity_version": 1}]


def test_a_list_may_come_from_stdin(
    run: Run, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = run("identity", sample).out.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert run("identity", "--check", "-").code == Exit.OK


def test_a_list_that_is_none_is_refused_with_its_line(run: Run, tmp_path: Path) -> None:
    listed = tmp_path / "LIST"
    listed.write_text("\nnonsense\n")
    result = run("identity", "--check", listed)
    assert result.code == Exit.FINDING
    assert "line 2" in result.err


def test_signing_writes_a_file_beside_and_never_over_another(
    run: Run, sample: Path, tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    key = keys[0]
    result = run("identity", "--sign", key, sample)
    assert result.code == Exit.OK
    assert compute_identity(sample).digest in (tmp_path / "sample.shard.sig").read_text()
    signed = run("identity", "--sign", key, sample, "--force", "--json").json["files"]
    assert signed[0]["identity_version"] == 2
    assert run("identity", "--sign", key, sample).code == Exit.USAGE
    assert run("identity", "--sign", key, sample, "--force").code == Exit.OK
    assert run("identity", "--sign", key, sample, "-o", tmp_path / "s").code == Exit.OK
    assert run("identity", "--sign", sample, sample, "--force").code == Exit.USAGE


def test_a_damaged_file_has_no_identity(run: Run, damaged: Path, sample: Path) -> None:
    result = run("identity", damaged, sample)
    assert result.code == Exit.FINDING
    assert result.out.count("\n") == 1
    assert "(checksum_mismatch)" in result.err


def test_contradicting_options_are_wrong_use(run: Run, sample: Path) -> None:
    assert run("identity").code == Exit.USAGE
    assert run("identity", sample, "--check", sample).code == Exit.USAGE
    assert run("identity", sample, "-o", "x").code == Exit.USAGE
