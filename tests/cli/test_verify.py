"""`shard verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shard_cli.exits import Exit
from shard_format import FileReference, Manifest, ShardWriter, compute_identity

if TYPE_CHECKING:
    from tests.cli.conftest import Make, Run

VECTORS = Path(__file__).parents[2] / "spec" / "vectors"


@pytest.fixture
def manifest(make: Make, tmp_path: Path) -> Path:
    """A manifest of two files."""
    parts = [make(f"part{number}.shard", {"x": b"data" * 100}) for number in range(2)]
    path = tmp_path / "all.shard"
    references = [FileReference.to_file(part, relative_to=tmp_path) for part in parts]
    Manifest(references).write(path, fsync=False)
    return path


def test_a_good_file_is_ok_and_so_is_its_identity(run: Run, sample: Path) -> None:
    result = run("verify", sample)
    assert result.code == Exit.OK
    assert ": ok, 5 entries, " in result.out
    assert "identity" in result.out
    assert run("verify", "-q", sample).out == ""


def test_each_error_is_listed_with_its_code(run: Run, damaged: Path, sample: Path) -> None:
    result = run("verify", sample, damaged)
    assert result.code == Exit.FINDING
    assert f"{damaged}: FAILED, 1 error\n" in result.out
    assert "\n  checksum_mismatch: entry 'signal/text'" in result.out
    files = run("verify", "--json", sample, damaged).json["files"]
    assert [one["ok"] for one in files] == [True, False]
    assert files[1]["errors"][0]["rule"] == "S-CRC-1"


def test_quiet_prints_only_what_is_wrong(run: Run, damaged: Path, sample: Path) -> None:
    lines = run("verify", "-q", sample, damaged).out.splitlines()
    assert len(lines) == 2
    assert str(sample) not in lines[0]


def test_the_worst_file_gives_the_exit_code(run: Run, damaged: Path) -> None:
    assert run("verify", damaged, "absent.shard").code == Exit.IO


def test_warnings_are_counted_and_shown_on_request(run: Run) -> None:
    path = VECTORS / "valid" / "misaligned_blocks.shard"
    assert "warning" in run("verify", path).out
    assert "misaligned: entry" in run("verify", "-v", path).out
    assert run("verify", "--json", path).json["files"][0]["warnings"][0]["code"] == "misaligned"


def test_a_stored_identity_that_does_not_fit_is_an_error(run: Run) -> None:
    result = run("verify", VECTORS / "invalid" / "identity_altered.shard")
    assert result.code == Exit.FINDING
    assert "identity_mismatch: " in result.out


@pytest.mark.parametrize("name", ["identity_stored", "identity_2_stored"])
def test_the_version_of_the_identity_is_said(run: Run, name: str) -> None:
    path = VECTORS / "valid" / f"{name}.shard"
    is_old = name == "identity_stored"
    words = "(version 1: it does not cover the role and the schema section)"
    for command in ("verify", "info", "doctor"):
        assert (words in run(command, path).out) == is_old
    version = 1 if is_old else 2
    assert run("verify", "--json", path).json["files"][0]["identity_version"] == version
    assert run("info", "--json", path).json["files"][0]["identity"]["version"] == version
    advice = run("doctor", "--json", path).json["files"][0]["advice"]
    assert [one["code"] for one in advice] == (["old_identity"] if is_old else [])


def test_an_identity_of_an_unknown_version_is_not_supported(run: Run) -> None:
    result = run("verify", VECTORS / "invalid" / "identity_version_3.shard")
    assert result.code == Exit.UNSUPPORTED
    assert "unsupported_version: " in result.out


def test_a_list_of_files_that_the_identity_does_not_cover_is_an_error(run: Run) -> None:
    path = VECTORS / "invalid" / "manifest_identity_in_schema.shard"
    result = run("verify", path)
    assert result.code == Exit.FINDING
    assert "the schema section lists files" in result.out
    assert "evil.shard" not in result.out


def test_an_identity_can_be_demanded(run: Run, sample: Path, make: Make) -> None:
    right = compute_identity(sample).digest
    assert run("verify", sample, "--identity", right.upper()).code == Exit.OK
    result = run("verify", sample, "--identity", "0" * 64)
    assert result.code == Exit.FINDING
    assert "identity_mismatch" in result.out
    assert run("verify", sample, "--identity", "abc").code == Exit.USAGE
    other = make("other.shard", {"x": b""})
    assert run("verify", sample, other, "--identity", right).code == Exit.USAGE


def test_a_signature_can_be_demanded(
    run: Run, sample: Path, make: Make, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = keys
    assert run("identity", "--sign", private, sample).code == Exit.OK
    signature = f"{sample}.sig"
    demand = ["--signature", signature, "--public-key", str(public)]
    assert run("verify", sample, *demand).code == Exit.OK
    other = make("other.shard", {"x": b""})
    assert "identity_mismatch" in run("verify", other, *demand).out
    another = tmp_path / "another.pem"
    another.write_bytes(
        Ed25519PrivateKey.generate()
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    result = run("verify", sample, "--signature", signature, "--public-key", another)
    assert result.code == Exit.FINDING
    assert "bad_signature" in result.out
    assert run("verify", sample, "--signature", signature).code == Exit.USAGE


def test_the_files_that_a_manifest_names_are_checked(run: Run, manifest: Path) -> None:
    result = run("verify", manifest)
    assert result.code == Exit.OK
    assert "names 2 files" in result.out
    assert "part1.shard: ok" in result.out
    references = run("verify", "--json", manifest).json["files"][0]["references"]
    assert [one["ok"] for one in references] == [True, True]


def test_a_missing_or_changed_reference_is_an_error(
    run: Run, manifest: Path, tmp_path: Path
) -> None:
    (tmp_path / "part0.shard").unlink()
    changed = bytearray((tmp_path / "part1.shard").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "part1.shard").write_bytes(changed)
    result = run("verify", manifest)
    assert result.code == Exit.FINDING
    assert "missing_file: " in result.out
    assert "reference_mismatch: " in result.out
    assert run("verify", "--no-follow", manifest).code == Exit.OK


def test_a_referenced_file_is_read_as_well_as_hashed(
    run: Run, tmp_path: Path, damaged: Path
) -> None:
    path = tmp_path / "all.shard"
    Manifest([FileReference.to_file(damaged, relative_to=tmp_path)]).write(path, fsync=False)
    result = run("verify", path)
    assert result.code == Exit.FINDING
    assert "checksum_mismatch: " in result.out


def test_paths_that_leave_the_folder_need_permission(run: Run, make: Make, tmp_path: Path) -> None:
    part = make("part.shard", {"x": b""})
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "all.shard"
    Manifest([FileReference.to_file(part, relative_to=path.parent)]).write(path, fsync=False)
    result = run("verify", path)
    assert result.code == Exit.FINDING
    assert "unsafe_path: " in result.out
    assert "--allow-outside" in result.out
    assert run("verify", path, "--allow-outside").code == Exit.OK


def test_a_manifest_that_names_itself_ends(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "loop.shard"
    with ShardWriter(path, role="manifest", fsync=False) as writer:
        writer.write_entry("meta/manifest", b'{"files":[{"uri":"loop.shard"}]}')
    assert run("verify", path).code == Exit.OK
