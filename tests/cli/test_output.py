"""Text, tables and the progress bar."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from typing import TYPE_CHECKING

import pytest

from shard_cli import text
from shard_cli.arguments import size_argument
from shard_cli.commands.cat import range_argument
from shard_cli.console import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (102_400, "100 KiB"),
        (1023 * 1024, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (1 << 64, "16.0 EiB"),
        (1 << 75, "32768 EiB"),
    ],
)
def test_sizes_have_units_people_know(count: int, expected: str) -> None:
    assert text.size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.00 s"),
        (1.5, "1.50 s"),
        (9.999, "10.0 s"),
        (33.33, "33.3 s"),
        (59.97, "1 min 00 s"),
        (750, "12 min 30 s"),
        (3599.9, "1 h 00 min"),
        (11_100, "3 h 05 min"),
        (36e5 + 60, "1,000 h 01 min"),
    ],
)
def test_durations_are_as_exact_as_they_are_long(seconds: float, expected: str) -> None:
    assert text.duration(seconds) == expected


def test_rates_have_five_digits() -> None:
    assert text.rate(30.0) == "30 Hz"
    assert text.rate(30000 / 1001) == "29.97 Hz"


@pytest.mark.parametrize(
    ("written", "expected"),
    [("4096", 4096), ("64K", 65536), ("1M", 1 << 20), ("2 GiB", 2 << 30), ("7b", 7), ("1kb", 1024)],
)
def test_sizes_can_be_written_with_units(written: str, expected: int) -> None:
    assert size_argument(written) == expected


@pytest.mark.parametrize("written", ["", "K", "-1", "1.5M", "1X"])
def test_what_is_no_size_is_refused(written: str) -> None:
    with pytest.raises(Exception, match="is not a size"):
        size_argument(written)


def test_ranges_may_leave_out_either_end() -> None:
    assert range_argument("2:5") == (2, 5)
    assert range_argument(":5") == (0, 5)
    assert range_argument("2:") == (2, None)
    with pytest.raises(Exception, match="is not a range"):
        range_argument("5")


def test_what_a_terminal_might_obey_is_escaped() -> None:
    assert text.printable("plain wörd 漢字") == "plain wörd 漢字"
    assert text.printable("\x1b[2J\n\r\x9b\u202e\udcff\0") == (
        "\\x1b[2J\\n\\r\\x9b\\u202e\\udcff\\x00"
    )


def test_long_text_loses_its_middle_and_wide_characters_count_twice() -> None:
    assert text.fit("abcdefghij", 10) == "abcdefghij"
    assert text.fit("abcdefghij", 7) == "abc…hij"
    assert text.width("漢字e\u0301") == 5
    for columns in range(1, 12):
        assert text.width(text.fit("漢字漢字漢字", columns)) <= columns


@pytest.fixture
def screen() -> Iterator[tuple[int, TextIO]]:
    """Both ends of a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        yield ours, stream
    os.close(ours)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_quick_work_draws_nothing(screen: tuple[int, TextIO]) -> None:
    ours, stream = screen
    clock = Clock()
    with ProgressBar("verify", stream, clock) as bar:
        for clock.now in (0.0, 0.2, 0.49):
            bar.update(50, 100)
    stream.write("end")
    stream.flush()
    assert os.read(ours, 1000) == b"end"


def test_long_work_draws_bar_percent_rate_and_time_left_and_cleans_up(
    screen: tuple[int, TextIO],
) -> None:
    ours, stream = screen
    clock = Clock()
    with ProgressBar("verify a-file-with-a-rather-long-name.shard", stream, clock) as bar:
        clock.now = 2.0
        bar.update(1 << 20, 4 << 20)
        drawn = os.read(ours, 1000).decode()
        clock.now = 2.05
        bar.update(2 << 20, 4 << 20)  # too soon to draw again
    assert drawn.startswith("\r\x1b[2K")
    line = drawn.removeprefix("\r\x1b[2K")
    assert len(line) < 60
    assert "[======      " in line
    assert line.endswith("25%  512 KiB/s  ETA 0:06")
    assert os.read(ours, 1000) == b"\r\x1b[2K"


def test_a_total_that_lies_does_not_break_the_bar(screen: tuple[int, TextIO]) -> None:
    ours, stream = screen
    clock = Clock()
    with ProgressBar("x", stream, clock) as bar:
        for done, total in ((10, 5), (10, 0), (0, 0), (0, 1 << 70)):
            clock.now += 100
            bar.update(done, total)
    drawn = os.read(ours, 4000).decode()
    assert "100%" in drawn
    assert "ETA --:--" in drawn
