"""Journals that are cut, damaged or made to mislead: what is whole comes back, and nothing else."""

from __future__ import annotations

import json
import resource
import struct
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zstandard
from fastcrc import crc32

from shard_format import Codec, ShardReader
from shard_format.errors import FormatError, InvalidArgument, ShardError
from tests.shard_format.support import check_python
from tests.wshard.recording_support import check_file, check_steps, record, recorder
from wshard import load_wshard, open_partial, recover
from wshard._journal import JournalReader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START, RUN, NOTE, END = 1, 2, 3, 4
X = {"id": "x", "dtype": "f32", "shape": [2], "signal_block": "signal/x"}
Y = {"id": "y", "dtype": "u8", "shape": [], "signal_block": "action/y"}


def frame(
    sequence: int,
    kind: int,
    content: bytes | dict[str, Any],
    *,
    channel: int = 0,
    entries: int = 0,
    codec: int = 0,
    stored: bytes | None = None,
    **wrong: int,
) -> bytes:
    """A frame put together with `struct` from the table of spec/journal.md; `wrong` replaces fields."""
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    if stored is None:
        stored = zstandard.ZstdCompressor(write_checksum=True).compress(text) if codec else text
    fields = {
        "stored_size": len(stored),
        "content_size": len(text),
        "content_crc": crc32.iscsi(text),
        "sequence": sequence,
        "stored_crc": crc32.iscsi(stored),
        **wrong,
    }
    head = b"WSJ1" + struct.pack(
        "<BBHIIIIQI",
        *(kind, codec, channel, entries, fields["stored_size"], fields["content_size"]),
        *(fields["content_crc"], fields["sequence"], fields["stored_crc"]),
    )
    return head + struct.pack("<I", crc32.iscsi(head)) + stored


def start(*rows: Any, **episode: Any) -> bytes:  # noqa: ANN401 - rows and fields
    return frame(
        0, START, {"v": 1, "episode": {"episode_id": "e", **episode}, "channels": list(rows)}
    )


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


GOOD = start(X) + frame(1, RUN, floats(1, 2, 3, 4), entries=2)


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return tmp_path / "e.wshard.partial"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A recording of five steps in three flushes, with a label, raw and compressed channels."""
    path = tmp_path_factory.mktemp("small") / "ep.wshard"
    writer = recorder(path, flush_steps=2)
    record(writer, 0, 4)
    writer.annotate("here")
    record(writer, 4, 5)
    writer.close()
    return path.with_name("ep.wshard.partial").read_bytes()


def ends_of_frames(journal: bytes) -> Iterator[tuple[int, int, int]]:
    """Where each frame ends, its channel and its entries (0 if it is no run)."""
    at = 0
    while at < len(journal):
        kind, _, channel, entries, size = struct.unpack_from("<BBHII", journal, at + 4)
        at += 40 + size
        yield at, channel, entries if kind == RUN else 0


def steps_before(journal: bytes, end: int) -> int:
    """How many steps every channel has in the frames that end before a byte."""
    counts: dict[int, int] = {}
    for at, channel, entries in ends_of_frames(journal):
        counts.setdefault(channel, 0)
        if at <= end:
            counts[channel] += entries
    return min(counts.values())


def nothing_in(journal: Path) -> type[ShardError]:
    """What is raised of a journal without a start: an empty one is no damage."""
    return FormatError if journal.stat().st_size else InvalidArgument


@pytest.mark.slow
class TestDamage:
    """A small recording, spoilt at every byte."""

    def test_cut_at_every_byte_gives_the_steps_that_are_whole(
        self, partial: Path, small: bytes
    ) -> None:
        first = next(ends_of_frames(small))[0]
        lengths = set()
        for size in range(len(small)):
            partial.write_bytes(small[:size])
            if size < first:
                with pytest.raises(nothing_in(partial), match="nothing was recorded"):
                    open_partial(partial)
                continue
            with open_partial(partial) as episode:
                assert check_steps(episode) == steps_before(small, size)
                lengths.add(episode.length)
        assert lengths == {0, 2, 4}

    def test_every_flipped_byte_gives_the_steps_before_it(
        self, partial: Path, small: bytes
    ) -> None:
        first = next(ends_of_frames(small))[0]
        for position in range(len(small)):
            spoilt = bytearray(small)
            spoilt[position] ^= 1 + position % 255
            partial.write_bytes(spoilt)
            if position < first:
                with pytest.raises(nothing_in(partial), match="nothing was recorded"):
                    open_partial(partial)
                continue
            with open_partial(partial) as episode:
                assert check_steps(episode) == steps_before(small, position)

    def test_recovering_saves_the_same_and_never_touches_the_journal(
        self, partial: Path, small: bytes
    ) -> None:
        out = partial.with_name("out.wshard")
        ends = [end for end, _, _ in ends_of_frames(small)]
        for number, size in enumerate(
            sorted({*ends, *(e + 1 for e in ends), *(e - 1 for e in ends)})
        ):
            journal = small[:size] if number % 2 else small[:size] + b"\x5a" * 100
            partial.write_bytes(journal)
            if size < ends[0]:
                with pytest.raises(nothing_in(partial), match="no complete start"):
                    recover(partial, out, fsync=False)
            else:
                result = recover(partial, out, fsync=False)
                whole = max(end for end in ends if end <= size)
                assert check_file(out) == result.steps == steps_before(small, size)
                assert result.lost_bytes == len(journal) - whole
                assert (result.problem is None) == (len(journal) == whole)
                assert result.lost_data or len(journal) == whole
            assert partial.read_bytes() == journal

    def test_what_other_channels_lack_is_cut_and_counted(self, partial: Path, small: bytes) -> None:
        at = [end for end, channel, entries in ends_of_frames(small) if channel == 1 and entries]
        partial.write_bytes(small[: at[1]])
        result = recover(partial, fsync=False)
        assert result.steps == 2
        assert result.cut == {"signal/state": 2, "signal/rgb": 2}
        assert "2 entries of signal/rgb" in str(result)
        check_file(partial.with_suffix(""), 2)

    def test_a_cut_within_a_run_is_made_in_little_memory(self, partial: Path) -> None:
        """No recorder of ours stops there, but a journal may."""
        rows = [{**X, "id": n, "signal_block": f"signal/{n}"} for n in "abc"]
        partial.write_bytes(
            start(*rows)
            + frame(1, RUN, floats(*range(200)), entries=100, channel=0)
            + frame(2, RUN, floats(*[7] * 200), entries=100, channel=1, codec=1)
            + frame(3, RUN, floats(*range(6)), entries=3, channel=0)
            + frame(4, RUN, floats(*[8] * 6), entries=3, channel=1, codec=1)
            + frame(5, RUN, floats(*range(202)), entries=101, channel=2)
        )
        assert recover(partial, fsync=False).cut == {"signal/a": 2, "signal/b": 2}
        with ShardReader(partial.with_suffix("")) as reader:
            reader.verify()
        with load_wshard(partial.with_suffix("")) as episode:
            assert episode.observations["a"].data.reshape(-1).tolist() == [*range(200), 0, 1]
            assert episode.observations["b"].data.reshape(-1).tolist() == [7] * 200 + [8] * 2


class TestMisleading:
    """Journals with good checksums and bad intentions."""

    def test_texts_in_turn_are_decoded_once_and_one_at_a_time(
        self, partial: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Small frames that point into runs of many channels, which are large when decoded."""
        names, size, turns = "abcd", 1 << 20, 50
        rows: list[dict[str, Any]] = []
        for name in names:
            block, offsets = f"signal/{name}", f"offsets/signal/{name}"
            text = {"layout": "text", "offsets_block": offsets}
            rows.append({"id": name, "dtype": "u8", "shape": [], "signal_block": block, **text})
            rows.append({"id": offsets, "dtype": "i64", "shape": [], "signal_block": offsets})
        parts = [start(*rows)]
        for number in range(len(names)):
            items = bytes(size - 1) + b"\xff"
            parts.append(frame(len(parts), RUN, items, codec=1, channel=2 * number, entries=size))
        for turn in range(turns):
            for number in range(len(names)):
                end = struct.pack("<q", turn if turn + 1 < turns or not number else size)
                parts.append(frame(len(parts), RUN, end, channel=2 * number + 1, entries=1))
        partial.write_bytes(b"".join(parts))
        decoded = []
        content = JournalReader.content

        def counting(reader: JournalReader, codec: Codec, *rest: Any) -> Any:  # noqa: ANN401 - as it is
            decoded.append(codec)
            return content(reader, codec, *rest)

        monkeypatch.setattr(JournalReader, "content", counting)
        result = recover(partial, fsync=False)
        assert (result.steps, decoded.count(Codec.ZSTD)) == (turns - 2, 2 * len(names))
        assert result.error is not None
        assert (result.error.rule, result.error.code) == ("J-RAG-4", "bad_value")
        assert result.error.offset == sum(map(len, parts[:-3]))

    @pytest.mark.parametrize(
        "first",
        [
            b"",
            b"SHRD" + bytes(100),
            frame(0, RUN, floats(1, 2), entries=1),
            frame(1, START, {"v": 1, "episode": {"episode_id": "e"}, "channels": []}),
            frame(0, START, b"[1, 2]"),
            frame(0, START, b"{" * 50),
            frame(0, START, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
            frame(0, START, {"v": 2, "episode": {"episode_id": "e"}, "channels": []}),
            frame(0, START, {"v": 1, "episode": [], "channels": []}),
            frame(0, START, {"v": 1, "episode": {}, "channels": []}),
            frame(
                0, START, {"v": 1, "episode": {"episode_id": "e", "metadata": 5}, "channels": []}
            ),
            frame(0, START, {"v": 1, "episode": {"episode_id": "e"}, "channels": {}}),
            start(5),
            start(X, X),
            start({**X, "dtype": "c64"}),
            start({**X, "shape": [0]}),
            start({**X, "shape": [1 << 62, 1 << 62, 0]}),
            start({**X, "layout": "ragged", "offsets_block": "o"}),
            start({**X, "length": 1 << 60}),
            start({**X, "start_ns": 0}),
            start({**X, "signal_block": "omen/x/m"}),
            start({**X, "signal_block": "meta/episode"}),
            start({**X, "signal_block": "signal/other"}),
            frame(0, START, {"v": 1}, stored_size=0xFFFFFFFF, content_size=0xFFFFFFFF),
        ],
    )
    def test_without_a_good_start_there_is_a_clear_error(self, partial: Path, first: bytes) -> None:
        partial.write_bytes(first + frame(1, RUN, floats(1, 2), entries=1))
        for call in (open_partial, recover):
            with pytest.raises(ShardError) as caught:
                call(partial)
            assert str(partial) in str(caught.value)

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            (frame(3, RUN, floats(5, 6), entries=1), "frame 3 where frame 2"),
            (frame(1, RUN, floats(5, 6), entries=1), "frame 1 where frame 2"),
            (frame(2, 9, b""), "unknown kind 9"),
            (frame(2, RUN, floats(5, 6), entries=1, codec=2), "codec 2"),
            (frame(2, RUN, floats(5, 6), entries=1, channel=1), "unknown channel 1"),
            (frame(2, RUN, floats(5, 6), entries=1, channel=65535), "channel 65535"),
            (frame(2, RUN, floats(5, 6), entries=2), "does not hold its entries"),
            (frame(2, RUN, floats(5, 6), entries=0xFFFFFFFF), "does not hold its entries"),
            (frame(2, RUN, b"", entries=0), "does not hold its entries"),
            (frame(2, RUN, floats(5, 6), entries=1, content_size=16), "two different sizes"),
            (frame(2, RUN, floats(5, 6), entries=1, content_crc=1), "two different checksums"),
            (frame(2, RUN, floats(5, 6), entries=1, stored_crc=1, content_crc=1), "damaged"),
            (frame(2, RUN, floats(5, 6), entries=1, codec=1), "a different codec"),
            (frame(2, RUN, floats(5, 6), entries=1, stored_size=0xFFFFFFFF), "two different sizes"),
            (
                frame(2, RUN, b"", entries=1, stored_size=0xFFFFFFF8, content_size=0xFFFFFFF8),
                "cut off",
            ),
            (
                frame(2, RUN, b"", entries=1, codec=1, stored=b"x" * 9, content_size=1 << 31),
                "too large",
            ),
            (start(X), "frame 0 where frame 2"),
            (frame(2, START, {"v": 1}), "second start"),
            (frame(2, NOTE, b"{]"), "not valid JSON"),
            (frame(2, NOTE, b'{"a":' * 200 + b"1" + b"}" * 200), "nested too deeply"),
            (frame(2, NOTE, {"metadata": 5}), "wrong type"),
            (frame(2, NOTE, {"dropped": [1]}), "wrong type"),
            (frame(2, NOTE, {"length_T": -1}), "wrong type"),
            (frame(2, NOTE, {"length_T": True}), "wrong type"),
            (frame(2, NOTE, {"interval": {"start": 0}, "label": "l"}), "not an integer"),
            (frame(2, NOTE, {"interval": {"start": 0, "end": 1, "text": ""}}), "without a label"),
            (
                frame(2, NOTE, {"interval": 5, "label": "l", "unit": "years"}),
                "neither 'steps' nor 'ns'",
            ),
            (frame(2, NOTE, {"channels": [X]}), "two channels"),
            (frame(2, NOTE, {"channels": 5}), "not a list"),
            (frame(2, NOTE, {"channels": [{**Y, "shape": ["a"]}]}), "integers"),
            (frame(2, NOTE, {}, codec=1), "kind 3 has codec 1"),
        ],
    )
    def test_reading_stops_before_a_frame_that_breaks_a_rule(
        self, partial: Path, bad: bytes, says: str
    ) -> None:
        partial.write_bytes(GOOD + bad + frame(3, RUN, floats(9, 9), entries=1))
        with open_partial(partial) as episode:
            assert episode.observations["x"].data.tolist() == [[1, 2], [3, 4]]
            assert not episode.labels
            assert not episode.refresh()
        result = recover(partial, fsync=False)
        assert (result.steps, result.lost_data) == (2, True)
        assert says in str(result.problem)
        with ShardReader(partial.with_suffix("")) as reader:
            reader.verify()

    def test_a_note_longer_than_any_json_is_not_even_read(self, partial: Path) -> None:
        """J-TXT-2, which no vector breaks: its file would be too large."""
        size = (100 << 20) + 1
        checksum = crc32.iscsi(bytes(size))
        head = frame(
            *(2, NOTE, b""),
            stored_size=size,
            content_size=size,
            content_crc=checksum,
            stored_crc=checksum,
        )
        partial.write_bytes(GOOD + head)
        with partial.open("r+b") as file:  # zeros that take no room
            file.truncate(len(GOOD + head) + size)
        tracemalloc.start()
        result = recover(partial, fsync=False)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (result.steps, result.lost_data) == (2, True)
        assert str(result.problem).endswith("[J-TXT-2, limit_exceeded]")
        assert peak < 16 << 20

    def test_a_note_that_is_refused_names_no_channels(self, partial: Path) -> None:
        """However often it is looked at."""
        note = frame(2, NOTE, {"channels": [Y], "length_T": -1})
        partial.write_bytes(GOOD + note)
        with open_partial(partial) as episode:
            for _ in range(3):
                assert not episode.refresh()
            partial.write_bytes(GOOD + frame(2, RUN, b"y", entries=1, channel=1))
            assert not episode.refresh()
            assert not episode.actions
        assert "[J-RUN-1, bad_header]" in str(recover(partial, fsync=False).problem)

    def test_nothing_counts_after_the_end(self, partial: Path) -> None:
        partial.write_bytes(GOOD + frame(2, END, {}) + frame(3, RUN, floats(5, 6), entries=1))
        result = recover(partial, fsync=False)
        assert (result.steps, result.finished) == (2, True)
        assert "after the end" in str(result.problem)

    @pytest.mark.parametrize(
        ("stored", "says"),
        [
            (zstandard.ZstdCompressor().compress(floats(5, 6)), "no checksum"),
            (
                zstandard.ZstdCompressor(write_checksum=True).compress(floats(5, 7)),
                "other bytes",
            ),
            (
                zstandard.ZstdCompressor(write_checksum=True).compress(floats(5)) * 2,
                "one zstd frame",
            ),
            (
                zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1 << 20)),
                "a different size",
            ),
            (
                zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(
                    floats(5, 6)
                ),
                "a different size",
            ),
            (b"\x50\x2a\x4d\x18" + bytes(4), "one zstd frame"),
            (b"no zstd at all", "no zstd frame"),
            (b"\x28\xb5\x2f\xfd\xff" + bytes(20), ""),
        ],
    )
    def test_a_run_that_decodes_to_something_else_never_comes_back(
        self, partial: Path, stored: bytes, says: str
    ) -> None:
        good = frame(1, RUN, floats(1, 2), entries=1, codec=1)
        bad = frame(2, RUN, floats(5, 6), entries=1, codec=1, stored=stored)
        partial.write_bytes(start(X) + good + bad)
        result = recover(partial, fsync=False)
        assert result.steps == 1
        assert says in str(result.problem)
        with load_wshard(partial.with_suffix("")) as saved:
            assert saved.observations["x"].data.tolist() == [[1, 2]]
        with open_partial(partial) as episode:
            assert episode.observations["x"][0].tolist() == [1, 2]
            with suppress(ShardError):  # or the content is right, only not as we store it
                assert episode.observations["x"][1].tolist() == [5, 6]

    def test_clocks_that_do_not_fit_are_cut_or_refused(self, partial: Path) -> None:
        clock = {"id": "t", "dtype": "i64", "shape": [], "signal_block": "time/signal/x"}
        runs = frame(1, RUN, floats(1, 2, 3, 4), entries=2) + frame(
            2, RUN, np.arange(5, dtype="<i8").tobytes(), entries=5, channel=1
        )
        partial.write_bytes(start({**X, "time_block": "time/signal/x"}, clock) + runs)
        assert recover(partial, fsync=False).cut == {"time/signal/x": 3}
        with load_wshard(partial.with_suffix("")) as episode:
            assert episode.observations["x"].timestamps_ns.tolist() == [0, 1]  # type: ignore[union-attr] # there
        partial.write_bytes(start({**X, "time_block": "time/absent"}, clock) + runs)
        with open_partial(partial) as episode, pytest.raises(ShardError):
            _ = episode.observations["x"].timestamps_ns

    def test_sizes_that_lie_cost_no_memory(self, partial: Path) -> None:
        bomb = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(200 << 20))
        rows = [{**Y, "shape": [200 << 20]}]
        size = 200 << 20
        lying = frame(1, RUN, b"", entries=1, codec=1, stored=bomb, content_size=size)
        for journal in (
            start(X) + frame(1, RUN, b"", entries=1 << 29, stored_size=1 << 32 - 1, content_size=1),
            start(X) + frame(1, NOTE, b"", stored_size=(1 << 32) - 1, content_size=(1 << 32) - 1),
            start(*rows) + lying,
        ):
            partial.write_bytes(journal)
            tracemalloc.start()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            result = recover(partial, partial.with_name("out"), fsync=False)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert result.steps == 0
            assert peak < 40 << 20
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10

    def test_random_bytes_give_a_prefix_or_our_error(self, partial: Path, small: bytes) -> None:
        random = np.random.default_rng(3)
        for _ in range(300):
            spoilt = np.frombuffer(small, np.uint8).copy()
            at = random.integers(0, len(small), 3)
            spoilt[at] = random.integers(0, 256, 3)
            partial.write_bytes(spoilt.tobytes() + random.bytes(int(random.integers(0, 90))))
            try:
                with open_partial(partial) as episode:
                    check_steps(episode)
            except ShardError:
                assert at.min() < next(ends_of_frames(small))[0]


def test_a_large_recording_is_finished_and_recovered_in_constant_memory(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from pathlib import Path
        import numpy as np
        from wshard import WShardStreamWriter, recover
        from wshard.streaming import StreamOptions

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        path = Path(sys.argv[1]) / "a.wshard"
        channels = [
            {"id": "raw", "dtype": "u8", "shape": [65536]},
            {"id": "zstd", "dtype": "u8", "shape": [65536], "compression": "zstd:1"},
            {"id": "noise", "dtype": "u8", "shape": [16384], "compression": "zstd:1"},
        ]
        noise = np.random.default_rng(0).integers(0, 256, (8, 16384), np.uint8)
        value = np.zeros(65536, np.uint8)
        options = StreamOptions(fsync="never", buffer_bytes=16 << 20)
        writer = WShardStreamWriter(path, "a", channels, options=options)
        writer.begin_episode()
        peaks = []
        for number in range(2000):
            value[:] = number % 256
            writer.write_timestep({"raw": value, "zstd": value, "noise": noise[number % 8]})
            if number in (600, 1999):
                peaks.append(peak())
        writer.flush()
        recover(f"{path}.partial", Path(sys.argv[1]) / "b.wshard", fsync=False)
        peaks.append(peak())
        writer.end_episode()
        peaks.append(peak())
        print(*peaks)
    """
    early, late, recovered, finished = map(int, check_python(script, tmp_path).split())
    assert late - early <= 16
    assert (
        recovered - early <= 40
    )  # zlib and friends, buffers of one run, the spool of small blocks
    assert finished - recovered <= 16
