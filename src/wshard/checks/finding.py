"""Findings, the report that holds them, and the thresholds of judgement."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from shard_format.errors import ShardError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["CODES", "ExamineOptions", "Finding", "Findings", "Report", "Severity", "counted"]

Severity = Literal["error", "warning", "note"]

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")

CODES: Final[dict[str, Severity]] = {
    "blank_frames": "warning",
    "both_ends": "note",
    "clock_outside": "warning",
    "constant_dimension": "note",
    "dead_dimension": "warning",
    "done_before_end": "warning",
    "frozen_frames": "warning",
    "label_outside": "warning",
    "length_mismatch": "warning",
    "lossy_channel": "note",
    "missing_block": "warning",
    "negative_uncertainty": "warning",
    "no_end": "note",
    "not_finite": "warning",
    "orphan_prediction": "warning",
    "prediction_mismatch": "warning",
    "rate_mismatch": "warning",
    "residual_mismatch": "warning",
    "ticks_not_increasing": "warning",
    "time_backwards": "warning",
    "time_jump": "warning",
    "time_repeats": "warning",
    "undescribed_block": "warning",
    "unknown_entry": "note",
}
"""The doctor's own codes and their usual severity; spec/registry.md says what each means."""

_ADVICE: Final = {
    "bad_magic": "check that this is the right file, and that its download finished",
    "truncated": "fetch the file again; if there is no other copy, `shard doctor` tells what is left",
    "checksum_mismatch": "fetch the file again, or restore it from a copy: these bytes changed",
    "bad_compression": "fetch the file again, or restore it from a copy: these bytes changed",
    "identity_mismatch": "find out who changed the file; with a known reason, save it again",
    "unknown_layout": "upgrade shard-format; a newer version may know the layout",
    "unknown_filter": "upgrade shard-format; a newer version may know the filter",
    "unsupported_version": "upgrade shard-format; a newer version may read the file",
    "missing_file": "put the missing file beside its manifest",
    "reference_mismatch": "fetch the files again: they do not belong together as they are",
    "io_error": "check the path and the permissions",
    "name_hash_mismatch": "save the episode again: other readers find entries by this hash",
    "nonzero_padding": "save the episode again if nobody hides data there on purpose",
    "misaligned": "save the episode again if blocks are to be mapped",
    "no_checksum": "save the episode again, which adds checksums",
    "not_ascending": "save the episode again, which puts blocks in order",
    "nonzero_reserved": "nothing, if a newer writer made the file",
    "unreferenced_bytes": "save the episode again, which leaves out what nobody can reach",
}
_GENERAL_ADVICE: Final = "write the episode again from what it was made of"
# A file with a thousand bad entries does not need a thousand lines for each kind.
_MOST_OF_A_KIND: Final = 1000


@dataclass(frozen=True, slots=True)
class ExamineOptions:
    """From where on something is worth a finding."""

    jump_factor: float = 5.0
    """A gap in time is a jump when it is more than this many times the median one."""
    rate_tolerance: float = 0.05
    """By what share the stated rate and the one of the timestamps may differ."""
    clock_slack_s: float = 1.0
    """Seconds by which a channel's own clock may start before the episode or end after it."""
    constant_steps: int = 16
    """Dimensions count as constant or dead only in channels of at least this many steps."""
    frozen_run: int = 10
    """Frames in a row may be identical up to this many."""
    most_dimensions: int = 4096
    """Steps of more numbers than this are not looked at dimension by dimension."""
    check_container: bool = True
    """Whether to read every entry against its checksum first, as `shard verify` does."""
    check_identity: bool = True
    """Whether to recompute the identity of files that carry one."""
    window_bytes: int = 64 << 20
    """How much of a channel is looked at together: a bound for memory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or odd, or good to know."""

    code: str
    """Stable: an error code of spec/registry.md for a broken rule, else one of the doctor's own."""
    severity: Severity
    """`error` for a broken rule, `warning` for what will likely hurt, `note` for what is good to know."""
    message: str
    """What was found, with numbers."""
    block: str | None = None
    """The entry it is about."""
    step: int | None = None
    """The first step that shows it."""
    count: int | None = None
    """How many steps, values, dimensions or entries show it."""
    advice: str = ""
    """What to do."""
    rule: str | None = None
    """The rule of the specification, where there is one."""
    path: str | None = None
    """The file, where it is not the one that was examined: a chunk, a sidecar."""

    def __str__(self) -> str:
        place = ": ".join(part for part in (self.path, self.block and shorten(self.block)) if part)
        rule = f" [{self.rule}]" if self.rule else ""
        return f"{self.severity} {self.code}: {place + ': ' if place else ''}{self.message}{rule}"

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it; fields without a value are left out."""
        fields = {
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "block": self.block,
            "step": self.step,
            "count": self.count,
            "advice": self.advice or None,
            "rule": self.rule,
            "path": self.path,
        }
        return {key: value for key, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about one episode."""

    path: str
    """What the source is called; empty for an episode in memory."""
    findings: tuple[Finding, ...]
    """Errors first, then warnings, then notes; each kind in the order of the episode."""
    episode_id: str | None = None
    """Whose report this is; None if the episode does not open."""
    length: int | None = None
    """T; None if the episode does not open."""
    files: int = 0
    """Files that were read: the episode or its chunks, their manifest, sidecars."""
    blocks: int = 0
    """Channels and residuals whose values were looked at."""
    bytes: int = 0
    """Bytes of content in the files."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Broken rules."""
        return self._of("error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What is allowed and will likely hurt."""
        return self._of("warning")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is good to know."""
        return self._of("note")

    @property
    def ok(self) -> bool:
        """Whether no rule is broken; there may be warnings."""
        return not self.errors

    @property
    def codes(self) -> tuple[str, ...]:
        """The code of every finding."""
        return tuple(finding.code for finding in self.findings)

    def _of(self, severity: Severity) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == severity)

    def to_fields(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "path": self.path,
            "episode_id": self.episode_id,
            "length": self.length,
            "ok": self.ok,
            "errors": len(self.errors),
            "warnings": len(self.warnings),
            "notes": len(self.notes),
            "files": self.files,
            "blocks": self.blocks,
            "bytes": self.bytes,
            "findings": [finding.to_fields() for finding in self.findings],
        }


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"


class Findings:
    """Collects findings. Of two errors with one code about one block, the first counts."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.damaged: set[str] = set()
        """Blocks with errors: their values are not worth a look."""
        self.damaged_files: set[str] = set()
        """Other files than the examined one, with errors."""
        self._found: list[Finding] = []
        self._seen: set[tuple[str, str | None, str | None]] = set()
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self,
        code: str,
        message: str,
        *,
        advice: str,
        block: str | None = None,
        step: int | None = None,
        count: int | None = None,
        rule: str | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Adds one of the doctor's own findings."""
        level = severity or CODES[code]
        self._keep(Finding(code, level, message, block, step, count, advice, rule))

    def add_error(self, error: ShardError, *, rule: str | None = None) -> None:
        """Adds what reading would raise."""
        facts = [
            f"{word} {value}"
            for word, value in (("expected", error.expected), ("found", error.found))
            if value is not None
        ]
        self._keep(
            Finding(
                error.code,
                "error",
                error.problem + (f" ({', '.join(facts)})" if facts else ""),
                error.entry,
                advice=error.hint or _ADVICE.get(error.code, _GENERAL_ADVICE),
                rule=rule or error.rule,
                path=None if error.path == self.path else error.path,
            )
        )

    def add_warned(self, code: str, entry: str | None, message: str, path: str) -> None:
        """Adds what checking the container found odd."""
        advice = _ADVICE.get(code, _GENERAL_ADVICE)
        where = None if path == self.path else path
        self._keep(Finding(code, "warning", message, entry, advice=advice, path=where))

    def merge(self, others: Iterable[Findings]) -> None:
        """Adds the findings of others, in their order."""
        for other in others:
            for finding in other._found:
                self._keep(finding)

    @contextmanager
    def guard(self, block: str | None = None, *, rule: str | None = None) -> Iterator[None]:
        """Turns what reading raises into a finding about the block.

        Args:
            block: which entry, where the error does not say so.
            rule: the rule that it breaks, where that is another than the error names.
        """
        try:
            yield
        except ShardError as error:
            # Flat lanes and residuals have rules of their own for what W-BLK-1 says of blocks.
            general = error.rule in (None, "W-BLK-1")
            self.add_error(error.located(entry=block), rule=rule if general else None)
        except MemoryError:
            self._keep(
                Finding(
                    "limit_exceeded",
                    "error",
                    "there is not enough memory to look at it",
                    block,
                    advice="examine it on a larger machine, or with smaller window_bytes",
                    rule=rule,
                )
            )
        except (ValueError, TypeError, OverflowError) as problem:
            # Sizes that contradict each other in a way no rule foresaw: still about the file.
            self._keep(
                Finding(
                    "bad_value",
                    "error",
                    f"it cannot be read as it is described: {problem}",
                    block,
                    advice=_GENERAL_ADVICE,
                    rule=rule,
                )
            )

    def _keep(self, finding: Finding) -> None:
        if finding.severity == "error":
            key = (finding.code, finding.block, finding.path)
            if key in self._seen:
                return
            self._seen.add(key)
            if finding.block is not None:
                self.damaged.add(finding.block)
            if finding.path is not None:
                self.damaged_files.add(finding.path)
        number = self._counts.get(finding.code, 0) + 1
        self._counts[finding.code] = number
        if number <= _MOST_OF_A_KIND:
            self._found.append(finding)

    def sorted(self) -> tuple[Finding, ...]:
        """Errors first, then warnings, then notes."""
        return tuple(sorted(self._found, key=lambda finding: SEVERITIES.index(finding.severity)))
