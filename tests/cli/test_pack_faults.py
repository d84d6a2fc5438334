"""What goes wrong while packing: files that cannot be read, vanish or change, interrupts, kills."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import shardpack
from shard_cli.commands import create_pack
from shard_cli.exits import Exit
from shard_cli.main import main
from shard_cli.programs import SHARDPACK
from tests.cli.conftest import listen_to_interrupts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shard_cli.commands.create_pack import SourceFile
    from tests.cli.conftest import Run

# The slowest way to store: there is time to interrupt.
SLOW = ("--compression", "zstd:19", "--jobs", "1", "--shard-records", "2")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text that takes a second to compress well."""
    chance = random.Random(5)
    words = [bytes(chance.choices(b"abcdefgh", k=6)) for _ in range(2000)]
    folder = tmp_path_factory.mktemp("texts")
    for number in range(12):
        folder.joinpath(f"{number:02}.txt").write_bytes(b" ".join(chance.choices(words, k=14_000)))
    return folder


@pytest.fixture(autouse=True)
def same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def start(folder: Path, output: str) -> subprocess.Popen[str]:
    """A run in a process of its own, which has finished its first shard."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "shard_cli.shardpack", "create"),
            *("--input", str(folder), "--output", output, *SLOW),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_interrupts,  # noqa: PLW1509 - no threads run in the tests
    )
    while not os.path.exists(output % 0):
        assert process.poll() is None, process.communicate()
    return process


def shards_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("set-*.shardpack")}


@pytest.fixture(scope="module")
def whole(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The shards of a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        output = str(folder / "set-%03d.shardpack")
        assert main(["create", "-i", str(texts), "-o", output, *SLOW, "-q"], SHARDPACK) == 0
    found = shards_in(folder)
    assert len(found) == 6
    return found


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, Exit.INTERRUPTED),
        pytest.param(signal.SIGTERM, Exit.TERMINATED, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_an_interrupt_leaves_complete_shards_and_going_on_gives_the_same_bytes(
    number: signal.Signals,
    code: Exit,
    texts: Path,
    tmp_path: Path,
    pack: Run,
    whole: dict[str, bytes],
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    process = start(texts, f"{folder}/set-%03d.shardpack")
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert "so far" in err
    assert "to continue, run the same command with --resume" in err
    left = shards_in(folder)
    # Complete ones only, and nothing else.
    assert sorted(os.listdir(folder)) == sorted(left)
    assert 1 <= len(left) < 6
    assert left.items() <= whole.items()
    command = ("create", "-i", texts, "-o", folder / "set-%03d.shardpack", *SLOW)
    result = pack(*command, "--resume")
    assert result.code == 0
    assert f"{2 * len(left)} records were there already" in result.out
    assert shards_in(folder) == whole
    result = pack(*command, "--resume")
    assert (result.code, "nothing was missing" in result.out) == (0, True)
    assert shards_in(folder) == whole


def test_a_kill_loses_only_the_shard_that_was_being_written(
    texts: Path, tmp_path: Path, pack: Run, whole: dict[str, bytes]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    process = start(texts, f"{folder}/set-%03d.shardpack")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    left = shards_in(folder)
    assert left.items() <= whole.items()
    result = pack("create", "-i", texts, "-o", folder / "set-%03d.shardpack", *SLOW, "--append")
    assert result.code == 0
    assert shards_in(folder) == whole
    partial = [name for name in os.listdir(folder) if name.endswith(".partial")]
    if partial:  # the kill came while a shard was being written, as it nearly always does
        assert f"a killed run left {folder / partial[0]}" in result.err
        # What was given to the system before the kill comes back.
        recovered = pack("recover", folder / partial[0], "-o", folder / "again.shardpack")
        assert recovered.code in (Exit.OK, Exit.IO)


def test_one_shard_leaves_nothing_when_it_is_interrupted(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    chance = random.Random(6)
    for number in range(24):  # more than waits in memory, so that the first part is written early
        (folder / f"{number:02}.bin").write_bytes(chance.randbytes(200_000))
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "shard_cli.shardpack", "create", "-i", str(folder)),
            *("-o", str(out / "one.shardpack"), "--compression", "zstd:15", "--jobs", "2"),
        ],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_interrupts,  # noqa: PLW1509 - no threads run in the tests
    )
    while not any(path.stat().st_size for path in out.iterdir()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == Exit.INTERRUPTED
    assert "nothing is left of this run" in err
    assert os.listdir(out) == []


class Fault(NamedTuple):
    happen: Callable[[Path], object]
    reason: str


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def _touch(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


FAULTS = {
    "vanish": Fault(os.unlink, "it vanished while packing"),
    "grow": Fault(_grow, "it changed while packing: 1,005 bytes, now 1,009"),
    "shrink": Fault(
        lambda path: os.truncate(path, 10), "it changed while packing: 1,005 bytes, now 10"
    ),
    "rewrite": Fault(_touch, "it was written to after it was listed"),
}


@pytest.fixture(params=sorted(FAULTS))
def fault(request: pytest.FixtureRequest, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Something that happens to `cats/0005.jpg` between listing and packing it."""
    fault: Fault = FAULTS[request.param]
    path = photos / "cats" / "0005.jpg"
    original = create_pack.read_file

    def read(key: str, file: SourceFile) -> bytes:
        if file.path == str(path):
            fault.happen(path)
        return original(key, file)

    monkeypatch.setattr(create_pack, "read_file", read)
    return fault


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_a_file_that_vanishes_or_changes_stops_the_run_by_name(
    jobs: str, fault: Fault, pack: Run, photos: Path, tmp_path: Path
) -> None:
    pattern = tmp_path / "set-%02d.shardpack"
    command = ("create", "-i", photos, "-o", pattern, "--shard-records", "1", "-j", jobs)
    result = pack(*command)
    assert result.code == Exit.FINDING
    assert f"{photos / 'cats' / '0005.jpg'}: " in result.err
    assert fault.reason in result.err
    assert "record 'cats/0005'" in result.err
    assert "to continue, run the same command with --resume" in result.err
    assert [path.name for path in sorted(tmp_path.glob("*.shardpack"))] == ["set-00.shardpack"]


def test_with_permission_it_is_left_out_and_named(
    fault: Fault, pack: Run, photos: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "p.shardpack"
    result = pack("create", "-i", photos, "-o", shard, "--skip-unreadable")
    assert result.code == Exit.IO
    assert "left out" in result.err
    assert fault.reason in result.err
    assert "left out 1 record" in result.out
    with shardpack.open(shard) as dataset:
        # The whole record: a sample without its picture is no sample.
        assert len(dataset) == 11
        assert "cats/0005" not in dataset


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_finished(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    # A regular file that even its owner cannot read from the start.
    listed = tmp_path / "list.txt"
    listed.write_text(f"{photos}/cats/0001.jpg\n/proc/self/mem\n/no/such/file.txt\n")
    shard = tmp_path / "p.shardpack"
    command = ("create", "-i", listed, "-o", shard, "--base", "/")
    result = pack(*command)
    assert result.code == Exit.FINDING
    assert "/no/such/file.txt: no such file or directory" in result.err
    assert "nothing was written: 1 problem; --skip-unreadable would leave them out" in result.err
    result = pack(*command, "--skip-unreadable", "--json")
    assert result.code == Exit.IO
    assert [one["path"] for one in result.json["left_out"]] == [
        "/no/such/file.txt",
        "/proc/self/mem",
    ]
    assert result.json["records"] == 1


def test_a_lack_of_descriptors_is_not_about_a_file(
    pack: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = tmp_path / "p.shardpack"

    really_open = os.open

    def fail(path: str, *given: Any, **options: Any) -> int:  # noqa: ANN401 - as os.open
        if os.fspath(path).endswith("0005.jpg"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return really_open(path, *given, **options)

    monkeypatch.setattr(os, "open", fail)
    result = pack("create", "-i", photos, "-o", shard, "--skip-unreadable")
    assert result.code == Exit.IO
    assert "Too many open files" in result.err
    assert "left out" not in result.err
    assert not shard.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_files_without_permission_are_all_named_before_anything_is_written(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    for name in ("0001.jpg", "0003.json"):
        (photos / "cats" / name).chmod(0)
    (photos / "dogs").chmod(0)
    result = pack("create", "-i", photos, "-o", tmp_path / "p.shardpack")
    (photos / "dogs").chmod(0o755)
    assert result.code == Exit.FINDING
    assert result.err.count("permission denied") == 3


def test_names_that_are_not_utf8_are_named(pack: Run, photos: Path, tmp_path: Path) -> None:
    with open(os.fsencode(photos) + b"/cats/\xff.jpg", "wb") as file:
        file.write(b"x")
    shard = tmp_path / "p.shardpack"
    result = pack("create", "-i", photos, "-o", shard)
    assert result.code == Exit.FINDING
    assert "its name is not UTF-8" in result.err
    result = pack("create", "-i", photos, "-o", shard, "--skip-unreadable", "--json")
    assert result.code == Exit.IO
    assert (result.json["records"], len(result.json["left_out"])) == (12, 1)


def test_records_above_the_limit_are_named_or_left_out(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    for name in ("huge", "vast"):
        (photos / f"{name}.bin").write_bytes(bytes(20_000))
    shard = tmp_path / "p.shardpack"
    command = ("create", "-i", photos, "-o", shard, "--record-size-limit", "10K")
    result = pack(*command)
    assert result.code == Exit.FINDING
    for name in ("huge", "vast"):
        assert f"{name}.bin: the record has 20,000 bytes" in result.err
    assert "(limit_exceeded)" in result.err
    assert not shard.exists()
    result = pack(*command, "--skip-large")
    assert result.code == Exit.IO
    with shardpack.open(shard) as dataset:
        assert len(dataset) == 12


def test_a_record_whose_head_takes_it_above_the_limit_is_named(pack: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.bin").write_bytes(bytes(1000))
    result = pack(
        "create", "-i", folder, "-o", tmp_path / "p.shardpack", "--record-size-limit", "1000"
    )
    assert result.code == Exit.FINDING
    assert "a record is too large: key 'a'" in result.err


def test_the_same_key_in_two_inputs_is_named_and_never_skipped(
    pack: Run, photos: Path, tmp_path: Path
) -> None:
    shard = tmp_path / "p.shardpack"
    result = pack(
        *("create", "-i", photos / "cats", "-i", photos / "dogs", "-i", photos / "cats"),
        *("-o", shard, "--skip-unreadable", "--skip-large"),
    )
    assert result.code == Exit.FINDING
    assert result.err.count("the same key as") == 6
    assert f"{photos}/cats/0001.jpg: the same key as {photos}/cats/0001.jpg" in result.err
    assert not shard.exists()


def test_going_on_packs_what_was_added_since(pack: Run, photos: Path, tmp_path: Path) -> None:
    one, pattern = tmp_path / "one.shardpack", tmp_path / "set-%02d.shardpack"
    for output in (one, pattern):
        assert pack("create", "-i", photos, "-o", output, "-m", "by=me").code == 0
    (photos / "cats" / "new.jpg").write_bytes(b"new")
    for output in (one, pattern):
        result = pack("create", "-i", photos, "-o", output, "--resume", "--json")
        assert result.code == 0
        assert (result.json["records"], result.json["known_records"]) == (1, 12)
    with shardpack.open(one) as dataset:
        assert len(dataset) == 13
        assert dataset.metadata["user"] == {"by": "me"}
    with shardpack.open(tmp_path / "set-*.shardpack") as dataset:
        assert len(dataset) == 13
        assert [len(shard) for shard in dataset.shards] == [12, 1]


@pytest.fixture
def old_set(pack: Run, photos: Path, tmp_path: Path) -> dict[str, bytes]:
    """A set of shards that is to be replaced, with more shards than the new one will have."""
    pattern = tmp_path / "set-%02d.shardpack"
    assert pack("create", "-i", photos / "dogs", "-o", pattern, "--shard-records", "1").code == 0
    return shards_in(tmp_path)


def test_force_puts_a_complete_new_set_in_place_of_the_old_one(
    pack: Run, photos: Path, tmp_path: Path, old_set: dict[str, bytes]
) -> None:
    pattern = tmp_path / "set-%02d.shardpack"
    assert len(old_set) == 6
    assert pack("create", "-i", photos, "-o", pattern, "--shard-records", "6", "-f").code == 0
    with shardpack.open(tmp_path / "set-*.shardpack") as dataset:
        assert [len(shard) for shard in dataset.shards] == [6, 6]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "photos", "set-00.shardpack", "set-01.shardpack", "set.shardpack-set",
    ]  # fmt: skip


def test_force_keeps_the_old_set_if_an_input_fails(
    fault: Fault, pack: Run, photos: Path, tmp_path: Path, old_set: dict[str, bytes]
) -> None:
    pattern = tmp_path / "set-%02d.shardpack"
    result = pack("create", "-i", photos, "-o", pattern, "--shard-records", "1", "-f", "-j", "1")
    assert result.code == Exit.FINDING
    assert fault.reason in result.err
    assert "the shards that were there are unchanged" in result.err
    assert shards_in(tmp_path) == old_set
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_force_keeps_the_old_set_if_a_merge_finds_damage(
    pack: Run, photos: Path, tmp_path: Path, old_set: dict[str, bytes]
) -> None:
    one = tmp_path / "one.shardpack"
    assert pack("create", "-i", photos, "-o", one).code == 0
    data = bytearray(one.read_bytes())
    data[len(data) // 2] ^= 1
    one.write_bytes(data)
    pattern = tmp_path / "set-%02d.shardpack"
    result = pack("merge", one, "-o", pattern, "--shard-records", "2", "-f")
    assert result.code == Exit.FINDING
    assert shards_in(tmp_path) == old_set


@pytest.mark.slow
def test_force_keeps_the_old_set_if_it_is_interrupted(
    texts: Path, tmp_path: Path, pack: Run, old_set: dict[str, bytes]
) -> None:
    """`tests/faults` kills what replaces a set at every call."""
    pattern = str(tmp_path / "set-%02d.shardpack")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "shard_cli.shardpack", "create", "--force"),
            *("--input", str(texts), "--output", pattern, *SLOW),
        ],
        stderr=subprocess.DEVNULL,
        preexec_fn=listen_to_interrupts,  # noqa: PLW1509 - no threads run in the tests
    )
    while not any(tmp_path.glob(".*")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode != 0
    assert shards_in(tmp_path) == old_set
    assert pack("create", "-i", texts, "-o", pattern, *SLOW, "-f").code == 0
    assert pack("verify", tmp_path / "set-*.shardpack").code == 0
    assert len(shards_in(tmp_path)) == 6
