"""Where results and remarks go: tables, lines and JSON documents on stdout, the rest on stderr."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from shard_cli.progress import Progress, terminal_columns
from shard_cli.text import fit, pad, printable, width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SCHEMA_VERSION: Final = 1

_STYLES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
_COLUMN_GAP: Final = "  "
# A name is never cut below this: the table rather runs over the edge.
_NARROWEST: Final = 16


class Console:
    """What a handler prints through. `results` go to stdout, `note` and `warn` to stderr.

    Args:
        command: the command's name, for JSON documents.
        as_json: results become one JSON document.
        quiet: no remarks, no progress, no "ok" lines.
        verbose: more detail where a command has it.
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
        self._colour_out = _wants_colour(sys.stdout)
        self._colour_err = _wants_colour(sys.stderr)
        self._bar: Progress | None = None

    # --- results

    def line(self, text: str = "") -> None:
        """One line of a result. The caller has made names in it printable."""
        self._clear_bar()
        print(text)

    def said(self, text: str) -> None:
        """One line that says how it went; `--quiet` and `--json` leave it out."""
        if not self.quiet and not self.as_json:
            self.line(text)

    def detail(self, text: str) -> None:
        """One line that only `--verbose` shows."""
        if self.verbose:
            self.said(text)

    def document(self, results: Mapping[str, Any]) -> None:
        """The results as JSON: indented for people, on one line for programs."""
        import json

        self._clear_bar()
        document = {"schema_version": SCHEMA_VERSION, "command": self.command, **results}
        # ASCII only: escapes everything a terminal might obey, and file names that are not UTF-8.
        print(json.dumps(document, indent=2 if self.out_is_terminal else None, allow_nan=False))

    def table(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
    ) -> None:
        """Rows under headings: aligned in a terminal, separated by tabs elsewhere.

        Args:
            headings: one for each column.
            rows: cells; they are made printable here.
            right: the columns whose cells end at the same place.
        """
        self._clear_bar()
        cells = [[printable(cell) for cell in row] for row in rows]
        if not self.out_is_terminal:
            print("\n".join("\t".join(row) for row in [list(headings), *cells]))
            return
        widths = [max(map(width, column)) for column in zip(headings, *cells, strict=True)]
        # The first column holds names of any length; it gives way.
        others = sum(widths[1:]) + len(_COLUMN_GAP) * (len(widths) - 1)
        widths[0] = min(widths[0], max(_NARROWEST, self.columns - others))
        for number, row in enumerate([list(headings), *cells]):
            text = _COLUMN_GAP.join(
                pad(fit(cell, columns), columns, right=column in right)
                for column, (cell, columns) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            print(self.style(text, "bold") if number == 0 else text)

    @property
    def columns(self) -> int:
        """Width of the terminal."""
        return terminal_columns(sys.stdout)

    def style(self, text: str, *styles: str) -> str:
        """The text in colour, where stdout shows colour."""
        return _styled(text, styles) if self._colour_out else text

    # --- remarks

    def note(self, text: str) -> None:
        """Something worth knowing, on stderr, unless quiet."""
        if not self.quiet:
            self._remark(printable(text))

    def warn(self, text: str) -> None:
        """Something that may be wrong, on stderr, unless quiet."""
        if not self.quiet:
            label = _styled("warning:", ("yellow",)) if self._colour_err else "warning:"
            self._remark(f"{self.program}: {label} {printable(text)}")

    def error(self, text: str, code: str) -> None:
        """What went wrong, in one line on stderr, always."""
        label = _styled("error:", ("red", "bold")) if self._colour_err else "error:"
        self._remark(f"{self.program}: {label} {printable(text)} ({code})")

    def progress(self, label: str) -> Progress:
        """A bar for long work; `with console.progress("verify") as bar: ... bar.update(done, all)`."""
        wanted = sys.stderr.isatty() and not self.quiet and os.environ.get("TERM") != "dumb"
        self._bar = Progress(printable(label), sys.stderr if wanted else None)
        return self._bar

    def _remark(self, text: str) -> None:
        if self._bar is not None:
            self._bar.clear()
        print(text, file=sys.stderr)

    def _clear_bar(self) -> None:
        """Makes room for results; where they go elsewhere, the bar can stay."""
        if self._bar is not None and self.out_is_terminal:
            self._bar.clear()


def _styled(text: str, styles: Sequence[str]) -> str:
    return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"


def _wants_colour(stream: TextIO) -> bool:
    # https://no-color.org and https://force-color.org: set and not empty; no is stronger.
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"
