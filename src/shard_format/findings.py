"""What checking found: one finding, the report of one file, and a count of what was left out.

`shard_format.verify`, the doctors and the command line share these.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from shard_format.errors import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shard_format.errors import ShardError

__all__ = ["SEVERITIES", "Finding", "Report", "Severity", "SkipCounter"]

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")
"""The worst first."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or odd, or good to know."""

    code: str
    """Stable, from spec/registry.md."""
    severity: Severity
    """`error` for a broken rule, `warning` for what will likely hurt, `note` for what is good to know."""
    message: str
    """What was found, with numbers."""
    entry: str | None = None
    """The first entry that shows it, if it is about entries."""
    step: int | None = None
    """The first step of an episode that shows it."""
    count: int | None = None
    """How many steps, values, dimensions or entries show it."""
    advice: str = ""
    """What to do."""
    rule: str | None = None
    """The rule of the specification, if there is one."""
    path: str | None = None
    """The file, if it is not the one the report is about."""
    error: ShardError | None = field(default=None, compare=False)
    """What reading would raise, if the finding is a broken rule."""

    @classmethod
    def from_error(
        cls,
        error: ShardError,
        *,
        advice: str = "",
        rule: str | None = None,
        path: str | None = None,
    ) -> Finding:
        """The finding for what reading raised.

        Args:
            error: what was raised.
            advice: what to do if the error has no hint of its own.
            rule: the broken rule, if it is another than the error names.
            path: the file, if it is not the one the report is about.
        """
        return cls(
            error.code,
            "error",
            error.problem + error.facts,
            error.entry,
            advice=error.hint or advice,
            rule=rule or error.rule,
            path=path,
            error=error,
        )

    def __str__(self) -> str:
        """The place, the message and the rule, in one line."""
        place = [] if self.path is None else [self.path]
        if self.entry is not None:
            place.append(f"entry {shorten(self.entry)}")
        text = ": ".join([*place, self.message])
        return text if self.rule is None else f"{text} [{self.rule}]"

    def to_fields(self) -> dict[str, Any]:
        """The finding as JSON has it; fields without a value are left out."""
        names = ("code", "severity", "message", "entry", "step", "count", "advice", "rule", "path")
        fields = {name: getattr(self, name) for name in names}
        return {key: value for key, value in fields.items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one file."""

    path: str
    """What the source is called; empty for something in memory."""
    findings: tuple[Finding, ...] = ()
    """Errors first, then warnings, then notes; each kind in the order of the file."""
    entries: int = 0
    """Entries read."""
    bytes: int = 0
    """Bytes of content read."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Broken rules."""
        return self._with("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is allowed and will likely hurt."""
        return self._with("warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is good to know."""
        return self._with("note")

    @property
    def ok(self) -> bool:
        """Whether no rule is broken; there may be warnings."""
        return not self.errors

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of every finding."""
        return tuple(finding.code for finding in self.findings)

    def _with(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)


class SkipCounter(Mapping[str, int]):
    """How many things of each file could not be read and were skipped; 0 for a file skipped as a whole.

    The first skip of each file is logged. Every process counts for itself.

    Args:
        logger: the name of the logger.
        thing: what is counted, as the log message has it: `"window"`.
    """

    def __init__(self, logger: str, thing: str) -> None:
        self._logger, self._thing = logger, thing
        self._counts: dict[str, int] = {}
        self._process, self._lock = os.getpid(), threading.Lock()

    @property
    def total(self) -> int:
        """Skipped things of all files."""
        return sum(self._counts.values())

    def add(self, path: str, error: ShardError, count: int = 1) -> None:
        """Counts skipped things of a file; 0 if nothing is lost by it."""
        self._add(path, error, count, f"a {self._thing} was")

    def leave_out(self, path: str, error: ShardError) -> None:
        """Notes a file that is skipped as a whole."""
        self._add(path, error, 0, "the file is")

    def _add(self, path: str, error: ShardError, count: int, what: str) -> None:
        if self._process != os.getpid():
            # Forked: another thread of the parent may have held the lock.
            self._process, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            is_new = path not in self._counts
            self._counts[path] = self._counts.get(path, 0) + count
        if is_new:
            logging.getLogger(self._logger).warning("%s: %s left out: %s", path, what, error)

    def __getitem__(self, path: str) -> int:
        return self._counts[path]

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._counts))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._counts}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"_logger": self._logger, "_thing": self._thing, "_counts": dict(self._counts)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._process, self._lock = os.getpid(), threading.Lock()
