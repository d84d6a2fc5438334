"""Checking whole files: every finding, every warning, bounded and with progress."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import Role, ShardReader, ShardWriter, compute_identity, verify_identity
from shard_format.errors import BadProfile, ChecksumMismatch, ShardError, ShardIOError
from shard_format.verify import check
from tests.shard_format.support import (
    REPOSITORY,
    HandMade,
    PlainSource,
    Row,
    noise,
    prose,
    write_shard,
)

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An entry of more than 1 MiB in every form; read only."""
    path = tmp_path_factory.mktemp("verify") / "large.shard"
    with ShardWriter(path, fsync=False) as writer:
        writer.write_entry("raw", noise(3 * MIB))
        writer.write_entry("zstd", prose(9 * MIB), compression="zstd")
        writer.write_entry("lz4", prose(2 * MIB), compression="lz4")
        writer.write_entry("seekable", prose(5 * MIB), compression="zstd", frame_bytes=MIB)
        writer.write_entry_stream("stream", [prose(2 * MIB)] * 2, compression="zstd")
        writer.write_entry("empty", b"")
    return path


def test_a_disk_that_fails_is_not_a_broken_promise_of_the_role(tmp_path: Path) -> None:
    class Failing(PlainSource):
        is_broken = False

        def read_at(self, offset: int, length: int) -> bytes:
            if self.is_broken:
                raise ShardIOError("cannot read: Input/output error", path=self.name)
            return super().read_at(offset, length)

    for role, entry in ((Role.WSHARD, "meta/episode"), (Role.MANIFEST, "meta/manifest")):
        source = Failing(write_shard(tmp_path / "a.shard", {entry: b"{}"}, role=role))
        with ShardReader(source) as reader:
            source.is_broken = True
            assert {finding.code for finding in check(reader).findings} == {"io_error"}


class TestEntries:
    """Every byte of every entry."""

    def test_large_entries_of_every_codec_verify(self, large: Path) -> None:
        with ShardReader(large) as reader:
            reader.verify()
            report = check(reader)
        assert report.ok
        assert report.entries == 6
        assert report.bytes == (3 + 9 + 2 + 5 + 4) * MIB
        assert (report.errors, report.warnings) == ((), ())

    @pytest.mark.parametrize("most_held", [16 * MIB, 1000])
    def test_a_source_without_views_is_read_once_from_start_to_end(
        self, large: Path, most_held: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Entries above that go to a temporary file.
        monkeypatch.setattr("shard_format._content._MOST_HELD", most_held)
        with ShardReader(large) as reader:
            expected = compute_identity(reader)
        source = PlainSource(large)
        with ShardReader(source) as reader:
            hashes: dict[str, str] = {}
            report = check(reader, hashes=hashes)
            assert verify_identity(reader, expected, hashes=hashes) == expected
        assert (report.ok, report.entries, report.warnings) == (True, 6, ())
        assert source.bytes_read <= 1.05 * source.size()

    @pytest.mark.parametrize("name", ["raw", "zstd", "lz4", "seekable", "stream"])
    @pytest.mark.parametrize("place", ["start", "middle", "end"])
    def test_one_flipped_bit_anywhere_is_found_and_its_entry_named(
        self, large: Path, name: str, place: str
    ) -> None:
        data = bytearray(large.read_bytes())
        info = ShardReader(data).info(name)
        # Without its last bytes a seek table is no seek table, and the entry an ordinary one: so the
        # last row of the table is what is changed there.
        end = info.disk_size - (10 if name == "seekable" else 1)
        position = {"start": 0, "middle": info.disk_size // 2, "end": end}[place]
        data[info.data_offset + position] ^= 0x10
        with ShardReader(data) as reader:
            report = check(reader)
            assert [finding.entry for finding in report.errors] == [name]
            with pytest.raises(ShardError) as caught:
                reader.verify()
        assert caught.value.entry == name
        assert str(report.errors[0].error) == str(caught.value)
        assert report.errors[0].code == caught.value.code

    def test_all_findings_are_listed_in_the_order_of_the_index(self) -> None:
        rows = [Row(f"{number}".encode(), noise(300_000, number)) for number in range(20)]
        for number in (3, 11, 17):
            rows[number].crc = 1
        report = check(ShardReader(HandMade(rows).to_bytes()))
        assert [finding.entry for finding in report.errors] == ["3", "11", "17"]
        assert not report.ok
        assert {type(finding.error) for finding in report.errors} == {ChecksumMismatch}

    def test_an_entry_and_the_schema_are_both_reported(self) -> None:
        data = HandMade([Row(b"a", b"1", crc=1)], schema=b"[]").to_bytes()
        codes = [finding.code for finding in check(ShardReader(data)).errors]
        assert codes == ["checksum_mismatch", "bad_metadata"]

    def test_a_file_whose_sizes_lie_is_verified_without_overflow(self) -> None:
        rows = [
            Row(f"{number}".encode(), b"x", flags=3, orig_size=2**63, crc=0) for number in range(4)
        ]
        report = check(ShardReader(HandMade(rows).to_bytes()))
        assert len(report.errors) == 4


class TestProfiles:
    """What a role promises (S-ROL-2 and S-ROL-3)."""

    @pytest.mark.parametrize(
        "rows",
        [
            [],
            [Row(b"meta/episode", b"[]")],
            [Row(b"meta/episode", b"no json")],
            [Row(b"meta/episode", b"")],
        ],
        ids=["none", "list", "text", "empty"],
    )
    def test_an_episode_without_its_description_is_reported(self, rows: list[Row]) -> None:
        reader = ShardReader(HandMade(rows, role=5).to_bytes())
        with pytest.raises(BadProfile, match="S-ROL-3"):
            reader.verify()

    def test_an_episode_with_its_description_verifies(self) -> None:
        ShardReader(HandMade([Row(b"meta/episode", b"{}")], role=5).to_bytes()).verify()

    def test_a_manifest_without_its_list_is_reported(self) -> None:
        for rows in ([], [Row(b"meta/manifest", b"{}")]):
            with pytest.raises(BadProfile, match="S-ROL-2"):
                ShardReader(HandMade(rows, role=4).to_bytes()).verify()
        good = HandMade([Row(b"meta/manifest", b'{"files":[]}')], role=4)
        ShardReader(good.to_bytes()).verify()

    @pytest.mark.parametrize("role", [0, 1, 2, 3, 6, 7, 8, 9, 127, 128, 255])
    def test_any_other_role_promises_nothing(self, role: int) -> None:
        ShardReader(HandMade([], role=role).to_bytes()).verify()


class TestWarnings:
    """What is odd but allowed."""

    def codes(self, data: bytes) -> list[str]:
        report = check(ShardReader(data))
        assert report.errors == ()
        return sorted(warning.code for warning in report.warnings)

    def test_a_written_file_has_none(self, tmp_path: Path) -> None:
        path = write_shard(tmp_path / "a.shard", {"a": b"1", "b": b""}, schema={"x": 1})
        assert self.codes(path.read_bytes()) == []

    def test_each_oddity_has_its_code(self) -> None:
        two = [Row(b"a", b"1"), Row(b"b", b"2")]
        plain = HandMade(two).to_bytes()
        assert self.codes(plain) == []
        for change, code in (
            (HandMade([Row(b"a", b"1", name_hash=7)]).to_bytes(), "name_hash_mismatch"),
            (HandMade([Row(b"a", b"1", crc=0)], flags=2).to_bytes(), "no_checksum"),
            (HandMade([Row(b"a", b"1", flags=8)]).to_bytes(), "nonzero_reserved"),
            (plain[:48] + b"\1" + plain[49:], "nonzero_reserved"),
            (plain[:7] + b"\1" + plain[8:], "nonzero_reserved"),
            (plain[:-10] + b"\1" + plain[-9:], "nonzero_padding"),
        ):
            assert self.codes(change) == [code]
        crooked = bytearray(HandMade([Row(b"a", b"1")], alignment=0).to_bytes())
        crooked[8] = 16
        assert self.codes(bytes(crooked)) == ["misaligned"]
        backwards = bytearray(plain)
        backwards[64:112], backwards[112:160] = plain[112:160], plain[64:112]
        assert self.codes(bytes(backwards)) == ["not_ascending"]
        gap = HandMade([Row(b"a", b"1"), Row(b"b", bytes(100))]).to_bytes()
        hidden = bytearray(gap)
        hidden[112 + 24 : 112 + 40] = bytes(16)  # b becomes empty: its zeros belong to nobody
        hidden[112 + 40 : 112 + 44] = bytes(4)
        assert self.codes(bytes(hidden)) == ["unreferenced_bytes"]

    def test_the_codes_are_those_of_the_registry(self) -> None:
        text = (REPOSITORY / "spec" / "registry.md").read_text("utf-8")
        table = text.split("Checking tools report these warnings")[1]
        registered = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
        source = (REPOSITORY / "src" / "shard_format" / "verify.py").read_text("utf-8")
        used = set(re.findall(r'_warning\(\s*"(\w+)"', source))
        assert used == registered

    def test_a_warning_names_the_entry(self) -> None:
        rows = [Row(b"a", b"1"), Row(b"b", b"2", name_hash=1)]
        (warning,) = check(ShardReader(HandMade(rows).to_bytes())).warnings
        assert warning.entry == "b"
        assert str(warning).startswith("entry 'b': ")


class TestProgress:
    """The callback rises to the total, whatever the threads do."""

    @pytest.mark.parametrize("kind", ["path", "bytes", "plain"])
    def test_progress_rises_to_the_total(self, large: Path, kind: str) -> None:
        sources: dict[str, Any] = {
            "path": large,
            "bytes": large.read_bytes(),
            "plain": PlainSource(large),
        }
        seen: list[tuple[int, int]] = []
        with ShardReader(sources[kind]) as reader:
            reader.verify(progress=lambda done, total: seen.append((done, total)))
        done = [step[0] for step in seen]
        assert {step[1] for step in seen} == {23 * MIB}
        assert done[-1] == 23 * MIB
        assert done == sorted(done)

    def test_progress_rises_when_threads_take_turns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Thread A gets far into its entry before thread B reports its first piece.

        The events order the reads of two threads. Where an implementation reads otherwise, a wait
        ends after a second and the order is merely not enforced.
        """
        path = write_shard(tmp_path / "a.shard", {"a": noise(6 * MIB), "b": noise(6 * MIB, 1)})
        ahead, behind = threading.Event(), threading.Event()

        class Turnstile(PlainSource):
            def read_at(self, offset: int, length: int) -> bytes:
                place, number = divmod(offset - first, 6 * MIB)
                if place == 0 and number >= 4 * MIB:
                    ahead.set()
                    behind.wait(1)
                elif place == 1 and number == 0:
                    ahead.wait(1)
                elif place == 1:
                    behind.set()
                return super().read_at(offset, length)

        first = 1 << 60
        with ShardReader(Turnstile(path)) as reader:
            first = reader.info("a").data_offset
            monkeypatch.setattr("shard_format.verify.thread_count", lambda *_: 2)
            seen: list[tuple[int, int]] = []
            check(reader, progress=lambda done, total: seen.append((done, total)))
        done = [step[0] for step in seen]
        assert done == sorted(done)
        assert seen[-1] == (12 * MIB, 12 * MIB)

    def test_the_callback_may_stop_the_check(self, large: Path) -> None:
        def stop(done: int, total: int) -> None:
            raise KeyboardInterrupt

        with ShardReader(large) as reader:
            with pytest.raises(KeyboardInterrupt):
                reader.verify(progress=stop)
            assert reader["empty"] == b""
