"""Where output goes: results as tables, lines or JSON on stdout; remarks, errors and progress on stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TextIO

from shard_cli.text import fit, fit_path, pad, printable, size, width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Self

SCHEMA_VERSION: Final = 1

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_COLUMN_GAP: Final = "  "
# Names and other text are not cut below this; columns are left out instead.
_NARROWEST: Final = 16
# Values of facts; longer ones are cut.
_LONGEST_FACT: Final = 400
_FACT_COLUMNS: Final = 14
# A bar for work that is shorter than this would only flicker.
_SILENT_SECONDS: Final = 0.5
_REDRAW_SECONDS: Final = 0.1
_BAR_COLUMNS: Final = 24
_CLEAR_LINE: Final = "\r\x1b[2K"


class Console:
    """What a command prints through.

    Args:
        command: the command's name, for JSON documents.
        as_json: print results as one JSON document.
        quiet: print no remarks, no progress and no "ok" lines.
        verbose: print more detail where a command has it.
        program: what the user typed, for remarks and errors.
    """

    def __init__(
        self,
        command: str,
        *,
        as_json: bool = False,
        quiet: bool = False,
        verbose: bool = False,
        program: str = "shard",
    ) -> None:
        self.command = command
        self.program = program
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self.out_is_terminal = sys.stdout.isatty()
        self.out_is_data = False
        """Whether stdout gets a file instead of results, which go to stderr then."""
        self._colour_out = _wants_colour(sys.stdout)
        self._colour_err = _wants_colour(sys.stderr)
        self._bar: ProgressBar | None = None

    # --- results

    def line(self, text: str = "") -> None:
        """Prints one line of a result. The caller has made names in it printable."""
        self._clear_bar()
        print(text, file=sys.stderr if self.out_is_data else sys.stdout)

    def data_output(self, what: str) -> BinaryIO:
        """Stdout for a file that a command writes: results go to stderr from here on.

        Raises:
            InvalidArgument: stdout is a terminal, or has to hold JSON.
        """
        from shard_format.errors import InvalidArgument

        if self.as_json:
            raise InvalidArgument(f"stdout cannot have both {what} and JSON")
        if self.out_is_terminal:
            raise InvalidArgument(f"{what} is binary data, and stdout is a terminal")
        self.out_is_data = True
        return sys.stdout.buffer

    def said(self, text: str) -> None:
        """Prints one line that says how it went; `--quiet` and `--json` leave it out."""
        if not self.quiet and not self.as_json:
            self.line(text)

    def detail(self, text: str) -> None:
        """Prints one line that only `--verbose` shows."""
        if self.verbose:
            self.said(text)

    def document(self, results: Mapping[str, Any]) -> None:
        """Prints the results as JSON: indented in a terminal, on one line for programs."""
        import json

        self._clear_bar()
        document = {"schema_version": SCHEMA_VERSION, "command": self.command, **results}
        # ASCII only: this escapes control characters and file names that are not UTF-8.
        print(json.dumps(document, indent=2 if self.out_is_terminal else None, allow_nan=False))

    def report(self, results: Mapping[str, Any], *lines: str) -> None:
        """Prints the results as JSON with `--json`, and otherwise the lines that sum them up."""
        if self.as_json:
            self.document(results)
        for line in lines:
            self.said(line)

    def facts(self, title: str, facts: Iterable[tuple[str, str]]) -> None:
        """Prints a title and facts below it, each with a label."""
        self.line(self.style(printable(title), "bold"))
        for label, value in facts:
            text = printable(fit(value, _LONGEST_FACT))
            if self.out_is_terminal and not self.verbose:
                text = fit(text, max(20, self.columns - _FACT_COLUMNS - 2))
            # The keys of fields have any length: their values follow at once.
            shown = f"{label} " if label.endswith(":") else label.ljust(_FACT_COLUMNS)
            self.line(f"  {printable(shown)}{text}")

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
    ) -> None:
        """Prints rows under headings: aligned in a terminal, separated by tabs elsewhere.

        Args:
            headings: one for each column.
            rows: cells; the table makes them printable.
            right: the columns that are aligned to the right.
        """
        self._clear_bar()
        cells = [[printable(cell) for cell in row] for row in rows]
        if not self.out_is_terminal:
            print("\n".join("\t".join(row) for row in [list(headings), *cells]))
            return
        lines = [list(headings), *cells]
        left_out = _left_out(lines, right, self.columns)
        kept = [column for column in range(len(headings)) if column not in left_out]
        widths = _fitted(lines, right, left_out, self.columns)
        for number, line in enumerate(lines):
            text = _COLUMN_GAP.join(
                pad(shorten(line[column], widths[column]), widths[column], right=column in right)
                for column in kept
                for shorten in [fit if column and headings[column] != "PATH" else fit_path]
            ).rstrip()
            print(self.style(text, "bold") if number == 0 else text)
        if left_out:
            names = ", ".join(headings[column] for column in sorted(left_out))
            self.total(f"the terminal is too narrow for {names}")

    def total(self, text: str) -> None:
        """Prints the line below a table, in a terminal only."""
        if self.out_is_terminal and not self.quiet:
            self.line(self.style(text, "dim"))

    @property
    def columns(self) -> int:
        """Width of the terminal."""
        return terminal_columns(sys.stdout)

    def style(self, text: str, *styles: str) -> str:
        """The text in colour, if stdout shows colour."""
        return _styled(text, styles) if self._colour_out and styles else text

    # --- remarks

    def note(self, text: str) -> None:
        """Prints something worth knowing on stderr, unless quiet."""
        if not self.quiet:
            self._remark(printable(text))

    def warn(self, text: str) -> None:
        """Prints something that may be wrong on stderr, unless quiet."""
        if not self.quiet:
            label = _styled("warning:", ("yellow",)) if self._colour_err else "warning:"
            self._remark(f"{self.program}: {label} {printable(text)}")

    def error(self, text: str, code: str) -> None:
        """Prints what went wrong in one line on stderr."""
        label = _styled("error:", ("red", "bold")) if self._colour_err else "error:"
        self._remark(f"{self.program}: {label} {printable(text)} ({code})")

    def progress(self, label: str, noun: str = "") -> ProgressBar:
        """A bar for long work; `with console.progress("verify") as bar: ... bar.update(done, all)`. Arguments as `ProgressBar`."""
        wanted = sys.stderr.isatty() and not self.quiet and os.environ.get("TERM") != "dumb"
        self._bar = ProgressBar(printable(label), sys.stderr if wanted else None, noun=noun)
        return self._bar

    def _remark(self, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(text, file=sys.stderr)

    def _clear_bar(self) -> None:
        """Takes the bar off a terminal that shows the results, too."""
        if self._bar is not None and self.out_is_terminal:
            self._bar.clear()


class ProgressBar:
    """One line on a terminal: bar, percent, bytes per second and the time that is left.

    Args:
        label: what is being done.
        stream: the terminal; None draws nothing.
        clock: monotonic seconds.
        noun: what is counted; empty for bytes.
    """

    def __init__(
        self,
        label: str,
        stream: TextIO | None,
        clock: Callable[[], float] = time.monotonic,
        noun: str = "",
    ) -> None:
        self._label = label
        self._noun = noun
        self._stream = stream
        self._clock = clock
        self._start = clock()
        self._next_draw = self._start + _SILENT_SECONDS
        self._drawn = False
        self._added = 0

    def update(self, done: int, total: int) -> None:
        """Shows that `done` of `total` are done. Cheap enough to call for every piece."""
        if self._stream is None:
            return
        now = self._clock()
        if now < self._next_draw:
            return
        self._next_draw = now + _REDRAW_SECONDS
        self._stream.write(_CLEAR_LINE + self._text(done, total, now - self._start))
        self._stream.flush()
        self._drawn = True

    def adding_to(self, total: int) -> Callable[[int], None]:
        """A function that takes the bytes done since its last call, and updates the bar."""

        def add(number: int) -> None:
            self._added += number
            self.update(self._added, max(total, self._added))

        return add

    def clear(self) -> None:
        """Takes the bar off the screen; the next update may draw it again."""
        if self._drawn and self._stream is not None:
            self._stream.write(_CLEAR_LINE)
            self._stream.flush()
            self._drawn = False

    def _text(self, done: int, total: int, seconds: float) -> str:
        # The total comes from the file and may be wrong: never show more than 100 %.
        share = min(done / total, 1.0) if total > 0 else 0.0
        filled = int(share * _BAR_COLUMNS)
        rate = done / seconds
        left = _clock_time((total - done) / rate) if 0 < done <= total else "--:--"
        speed = f"{done:,} of {total:,} {self._noun}" if self._noun else f"{size(int(rate))}/s"
        facts = (
            f" [{'=' * filled}{' ' * (_BAR_COLUMNS - filled)}] {share:4.0%}  {speed}  ETA {left}"
        )
        # The last column stays free: a full line would wrap and could not be cleared.
        assert self._stream is not None
        columns = terminal_columns(self._stream) - 1
        return fit(fit(self._label, max(8, columns - width(facts))) + facts, columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()


def _left_out(lines: Sequence[Sequence[str]], right: Sequence[int], most: int) -> set[int]:
    """The columns that do not fit, even if text is cut: first those that say nothing, then the last ones."""
    widths = _widths(lines)
    needed = [
        (one if column in right else min(one, _NARROWEST)) + len(_COLUMN_GAP)
        for column, one in enumerate(widths)
    ]
    columns = range(1, len(widths))
    empty = [column for column in columns if all(line[column] == "-" for line in lines[1:])]
    left_out: set[int] = set()
    for column in (*reversed(empty), *reversed(columns)):
        if sum(needed) - sum(needed[one] for one in left_out) <= most + len(_COLUMN_GAP):
            break
        left_out.add(column)
    return left_out


def _fitted(
    lines: Sequence[Sequence[str]], right: Sequence[int], left_out: set[int], most: int
) -> list[int]:
    """The width of each column: text is cut where it is longest until all fit."""
    widths = _widths(lines)
    kept = [column for column in range(len(widths)) if column not in left_out]
    texts = [column for column in kept if column not in right]
    excess = sum(widths[column] + len(_COLUMN_GAP) for column in kept) - len(_COLUMN_GAP) - most
    while excess > 0:
        longest = max(texts, key=widths.__getitem__, default=0)
        others = [widths[column] for column in texts if widths[column] < widths[longest]]
        cut = min(excess, widths[longest] - max([*others, _NARROWEST]))
        if cut < 1:
            break
        widths[longest] -= cut
        excess -= cut
    return widths


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(width, column)) for column in zip(*lines, strict=True)]


def terminal_columns(stream: TextIO) -> int:
    """The width of the terminal behind a stream; COLUMNS if the terminal does not know it."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0  # what a terminal of unknown size reports
    stated = os.environ.get("COLUMNS", "")
    return columns or (int(stated) if stated.isdecimal() else 0) or 80


def _clock_time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _styled(text: str, styles: Sequence[str]) -> str:
    return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def _wants_colour(stream: TextIO) -> bool:
    # https://no-color.org and https://force-color.org: set and not empty; NO_COLOR is stronger.
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
