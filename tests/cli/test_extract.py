"""`shard extract`: names are hostile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from shard_cli.exits import Exit

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Make, Run

UNSAFE = {
    "absolute": ["/etc/passwd"],
    "parent": ["../x"],
    "parent inside": ["a/../../x"],
    "dot": ["./x"],
    "dot inside": ["a/./x"],
    "only a dot": ["."],
    "empty part": ["a//x"],
    "trailing slash": ["a/"],
    "backslash": ["..\\x"],
    "drive letter": ["C:x"],
    "line break": ["a\nb"],
    "escape": ["\x1b[2J"],
    "long part": ["a/" + "x" * 256],
    "many parts": ["/".join("a" * 257)],
    "long name": ["/".join(["x" * 200] * 21)],
    "case": ["Read.me", "READ.ME"],
    "case of a folder": ["a/x", "A/X"],
    "normalisation": ["\u00fcber", "u\u0308ber"],
    "sharp s": ["straße", "STRASSE"],
    "file, folder and the name between": ["a", "a/b", "a.entry"],
    "file, folder and another case of it": ["a", "a/b", "A.Entry"],
}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@pytest.fixture
def no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the file system ignored case and the form of characters."""
    real = os.path.exists
    monkeypatch.setattr(
        "os.path.exists", lambda path: real(path) or os.path.basename(path) in ("A", "e\u0301")
    )


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_names_become_paths_under_the_folder(run: Run, sample: Path, target: Path) -> None:
    result = run("extract", sample, "-C", target)
    assert result.code == Exit.OK
    assert files_in(target) == [
        "empty",
        "meta/about",
        "meta/identity",
        "signal/text",
        "signal/zeros",
    ]
    assert (target / "signal/zeros").read_bytes() == bytes(5000)
    assert "extracted 5 entries" in result.out


def test_only_what_fits_is_extracted(run: Run, sample: Path, target: Path) -> None:
    run("extract", sample, "*/t*", "-C", target)
    assert files_in(target) == ["signal/text"]


@pytest.mark.usefixtures("no_case")
@pytest.mark.parametrize("names", UNSAFE.values(), ids=UNSAFE.keys())
def test_unsafe_names_are_refused_before_anything_is_written(
    names: list[str], run: Run, make: Make, target: Path
) -> None:
    path = make("evil.shard", dict.fromkeys(["good", *names], b"x"))
    result = run("extract", path, "-C", target)
    assert result.code == Exit.FINDING
    assert result.err.endswith("(unsafe_path)\n")
    assert not target.exists()


@pytest.mark.usefixtures("no_case")
@pytest.mark.parametrize("names", UNSAFE.values(), ids=UNSAFE.keys())
def test_the_rest_can_be_extracted_and_what_was_skipped_is_said(
    names: list[str], run: Run, make: Make, target: Path
) -> None:
    path = make("evil.shard", dict.fromkeys(["good", *names], b"x"))
    result = run("extract", path, "-C", target, "--skip-unsafe", "--json")
    assert result.code == Exit.FINDING
    skipped = {one["name"] for one in result.json["skipped"]}
    assert skipped
    assert skipped <= set(names)
    # Of a file and a folder with one name, the folder stays.
    assert set(files_in(target)) == {"good", *names} - skipped
    assert "\x1b" not in result.err


def test_names_that_differ_in_case_are_files_where_the_file_system_holds_them(
    run: Run, make: Make, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "probe").touch()
    if (tmp_path / "PROBE").exists():
        pytest.skip("this file system ignores case")
    names = ["Read.me", "READ.ME", "a/x", "A/X", "stra\u00dfe", "STRASSE", "B", "b/c"]
    contents = {name: str(number).encode() for number, name in enumerate(names)}
    path = make("both.shard", contents)
    assert run("extract", path, "-C", target).code == Exit.OK
    assert {name: (target / name).read_bytes() for name in files_in(target)} == contents
    assert sorted(os.listdir(tmp_path)) == ["both.shard", "probe", "target"]
    # Links still make two names one.
    (target / "link").symlink_to("a")
    path = make("linked.shard", {"a/x": b"1", "link/x": b"2", "Y": b"", "y": b""})
    result = run("extract", path, "-C", target, "--skip-unsafe", "--json").json
    assert {one["name"] for one in result["skipped"]} == {"a/x", "link/x"}


def test_a_nul_in_a_name_is_refused(run: Run, target: Path, request: pytest.FixtureRequest) -> None:
    vector = request.config.rootpath / "spec/vectors/valid/name_with_nul.shard"
    assert run("extract", vector, "-C", target).code == Exit.FINDING
    assert not target.exists()


@pytest.mark.parametrize("link_to", ["..", "/tmp", "../elsewhere"])
def test_a_link_in_the_folder_that_leads_outside_is_refused(
    link_to: str, run: Run, make: Make, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    target.mkdir()
    (target / "out").symlink_to(link_to)
    path = make("evil.shard", {"out/x": b"x", "good": b"x"})
    before = sorted(os.listdir(tmp_path))
    result = run("extract", path, "-C", target, "--force")
    assert result.code == Exit.FINDING
    assert "leads outside" in result.err
    assert sorted(os.listdir(tmp_path)) == before
    assert os.listdir(target) == ["out"]


def test_a_link_in_place_of_a_file_is_not_written_through(
    run: Run, make: Make, target: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target.mkdir()
    (target / "x").symlink_to(victim)
    path = make("evil.shard", {"x": b"evil"})
    assert run("extract", path, "-C", target, "--force").code == Exit.FINDING
    assert victim.read_text() == "precious"


def test_two_names_that_a_link_makes_one_are_refused(run: Run, make: Make, target: Path) -> None:
    (target / "real").mkdir(parents=True)
    (target / "link").symlink_to("real")
    path = make("evil.shard", {"real/x": b"1", "link/x": b"2"})
    assert run("extract", path, "-C", target).code == Exit.FINDING
    assert files_in(target) == []


def test_the_folder_itself_may_be_a_link(
    run: Run, sample: Path, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    target.symlink_to("real")
    assert run("extract", sample, "-C", target).code == Exit.OK
    assert (tmp_path / "real/meta/about").exists()


def test_nothing_is_replaced_without_force(run: Run, sample: Path, target: Path) -> None:
    (target / "meta").mkdir(parents=True)
    (target / "meta/about").write_text("precious")
    result = run("extract", sample, "-C", target)
    assert result.code == Exit.USAGE
    assert "nothing was written" in result.err
    assert files_in(target) == ["meta/about"]
    assert run("extract", sample, "-C", target, "--force").code == Exit.OK
    assert (target / "meta/about").read_text() == '{"a":1}'


def test_a_folder_in_place_of_a_file_and_the_reverse_are_refused(
    run: Run, sample: Path, target: Path
) -> None:
    (target / "empty").mkdir(parents=True)
    assert "there is a folder" in run("extract", sample, "-C", target, "--force").err
    (target / "empty").rmdir()
    (target / "meta").write_text("a file")
    assert "there is a file" in run("extract", sample, "-C", target, "--force").err
    assert files_in(target) == ["meta"]


def test_a_dry_run_writes_nothing(run: Run, sample: Path, target: Path) -> None:
    result = run("extract", "--dry-run", sample, "-C", target)
    assert result.code == Exit.OK
    assert f"{target}/signal/text\n" in result.out
    assert "would extract 5 entries" in result.out
    assert not target.exists()


def test_one_damaged_entry_does_not_hide_the_others(run: Run, damaged: Path, target: Path) -> None:
    result = run("extract", damaged, "-C", target)
    assert result.code == Exit.FINDING
    assert files_in(target) == ["good"]
    assert os.listdir(target / "signal") == []
    assert "(checksum_mismatch)" in result.err
    assert "1 failed" in result.out
    errors = run("extract", damaged, "-C", target, "--force", "--json").json["errors"]
    assert [error["entry"] for error in errors] == ["signal/text"]


def test_verbose_names_every_file(run: Run, sample: Path, target: Path) -> None:
    assert f"{target}/empty\n" in run("extract", "-v", sample, "-C", target).out
    assert run("extract", "-q", sample, "-C", target, "--force").out == ""


@pytest.mark.parametrize("moment", ["before a file", "before it is opened", "before it is renamed"])
def test_a_folder_that_is_swapped_for_a_link_meanwhile_leads_nowhere(
    moment: str,
    run: Run,
    make: Make,
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make("evil.shard", {"sub/a": b"1", "sub/b": b"2"})
    outside = tmp_path / "outside"
    outside.mkdir()

    def swap() -> None:
        if (target / "sub").is_dir() and not (target / "sub").is_symlink():
            (target / "sub").rename(target / "moved")
            (target / "sub").symlink_to(outside)

    if moment == "before a file":  # after all paths were checked
        monkeypatch.setattr("shard_cli.commands.extract.check_targets", lambda *_, **__: swap())
        (target / "sub").mkdir(parents=True)
    elif moment == "before it is opened":
        original = os.mkdir

        def mkdir(*args: Any, **options: Any) -> None:  # noqa: ANN401 - of os.mkdir
            original(*args, **options)
            swap()

        monkeypatch.setattr(os, "mkdir", mkdir)
    else:
        replace = os.replace

        def swapped(*args: Any, **options: Any) -> None:  # noqa: ANN401 - of os.replace
            swap()
            replace(*args, **options)

        monkeypatch.setattr(os, "replace", swapped)
    result = run("extract", path, "-C", target)
    assert result.code == Exit.FINDING
    assert "(unsafe_path)" in result.err
    assert os.listdir(outside) == []
    assert (target / "sub").is_symlink()


@pytest.mark.parametrize("names", [["a", "a/b"], ["A", "a/b"], ["a/b", "a", "a/b/c"]])
def test_an_entry_whose_name_is_also_a_folder_goes_beside_it(
    names: list[str], run: Run, make: Make, target: Path
) -> None:
    path = make("both.shard", {name: name.encode() for name in names})
    result = run("extract", path, "-C", target)
    assert result.code == Exit.OK
    assert " is a folder, too: the entry goes to " in result.err
    written = {str(file.relative_to(target)) for file in target.rglob("*") if file.is_file()}
    folders = {
        name for name in names for other in names if other.lower().startswith(f"{name.lower()}/")
    }
    assert written == {f"{name}.entry" if name in folders else name for name in names}
    assert all(
        (target / name).read_bytes() == name.removesuffix(".entry").encode() for name in written
    )
