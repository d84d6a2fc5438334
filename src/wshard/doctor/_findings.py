"""The doctor's codes, thresholds and report, and the collection that findings go into."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from shard_format.errors import ShardError, must_stop
from shard_format.findings import SEVERITIES, Finding, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shard_format.findings import Severity

_CONSTANT: Final = (
    "check that the sensor or actuator was connected; leave the dimension out of "
    "normalisation, which would divide by its spread of 0"
)
# What to do, by code; None where it depends on what was found.
_ADVICE: Final[dict[str, str | None]] = {
    "blank_frames": "check whether the camera was connected, lit and uncovered",
    "both_ends": "nothing, if the limit was hit in a terminal state; else keep the one that is true",
    "clock_outside": "check that both clocks have one origin and the unit ns; else cut what is outside",
    "clock_span": None,
    "constant_dimension": _CONSTANT,
    "dead_dimension": _CONSTANT,
    "done_before_end": "split the recording there: these are several episodes, or steps after the end",
    "frozen_frames": "check whether the camera hung; cut these steps if actions went on meanwhile",
    "label_outside": "cut the intervals, or check that unit and origin are those of the episode",
    "length_mismatch": None,
    "lossy_channel": None,
    "missing_block": "find out why it was not written, or remove its row",
    "negative_uncertainty": None,
    "no_clock": "set timebase.tick_hz or timestamps_ns: without them its place in the episode is not known",
    "no_end": "set terminations or truncations: bootstrapping a value needs them",
    "not_decoded": "install the extra `video`, or examine it where that is installed",
    "not_finite": None,
    "old_identity": "save the episode again, which writes version 2",
    "orphan_prediction": "store the signal beside its prediction, or name its channel in the row",
    "prediction_mismatch": None,
    "rate_mismatch": None,
    "residual_mismatch": None,
    "stale_overview": "make it again with 'wshard repack --overview', or delete the overview file",
    "ticks_not_increasing": "sort the steps by tick and drop repeats, or leave ticks out: steps are in order",
    "time_backwards": "sort the steps by time; if the clock was set while recording, use a monotonic one",
    "time_jump": "look for dropped steps there; split the episode, or align with a tolerance_ns",
    "time_repeats": "drop the repeated steps, or stamp each when it is taken",
    "undescribed_block": None,
    "unknown_entry": "nothing: they are kept as they are",
}
_NOTES: Final = (
    *("both_ends", "constant_dimension", "lossy_channel", "no_end", "not_decoded"),
    *("old_identity", "stale_overview", "unknown_entry"),
)
CODES: Final[dict[str, Severity]] = {
    code: "note" if code in _NOTES else "warning" for code in _ADVICE
}
"""The doctor's own codes and their usual severity; spec/registry.md says what each means."""

_FETCH: Final = "fetch the file again, or restore it from a copy: these bytes changed"
_ERROR_ADVICE: Final = {
    "bad_magic": "check that this is the right file, and that its download finished",
    "truncated": "fetch the file again; without another copy, `shard doctor` lists what is left",
    "checksum_mismatch": _FETCH,
    "bad_compression": _FETCH,
    "identity_mismatch": "find out who changed the file; if the change is right, save it again",
    "unknown_layout": "upgrade shard-format; a newer version may know the layout",
    "unknown_filter": "upgrade shard-format; a newer version may know the filter",
    "unsupported_version": "upgrade shard-format; a newer version may read the file",
    "missing_file": "put the missing file beside its manifest",
    "reference_mismatch": "fetch the files again: they do not belong together as they are",
    "io_error": "check the path and the permissions",
    "transport_error": "check the network, and try again later",
    "name_hash_mismatch": "save the episode again: other readers find entries by this hash",
    "nonzero_padding": "save the episode again, unless this data is hidden on purpose",
    "misaligned": "save the episode again if readers are to map its blocks",
    "no_checksum": "save the episode again, which adds checksums",
    "not_ascending": "save the episode again, which puts blocks in order",
    "nonzero_reserved": "nothing, if a newer writer made the file",
    "unreferenced_bytes": "save the episode again, which drops bytes that no entry reaches",
}
_GENERAL_ADVICE: Final = "write the episode again from its original data"
# A file with a thousand bad entries does not need a thousand lines for each kind.
_MOST_OF_A_KIND: Final = 1000


@dataclass(frozen=True, slots=True)
class ExamineOptions:
    """The thresholds above which something becomes a finding."""

    jump_factor: float = 5.0
    """A gap in time is a jump if it is more than this many times the median gap."""
    rate_tolerance: float = 0.05
    """By what share the stated rate and the rate of the timestamps may differ."""
    clock_slack_s: float = 1.0
    """Seconds by which a channel's own clock may start before the episode or end after it."""
    constant_steps: int = 16
    """Dimensions count as constant or dead only in channels of at least this many steps."""
    frozen_run: int = 10
    """Up to this many frames in a row may be identical."""
    most_dimensions: int = 4096
    """Steps of more numbers than this are not examined dimension by dimension."""
    check_container: bool = True
    """Whether to read every entry against its checksum first, as `shard verify` does."""
    check_identity: bool = True
    """Whether to recompute the identity of files that carry one."""
    window_bytes: int = 64 << 20
    """How much of a channel to examine together: a bound for memory."""


@dataclass(frozen=True, slots=True)
class EpisodeReport(Report):
    """All findings about one episode."""

    episode_id: str | None = None
    """None if the episode does not open."""
    length: int | None = None
    """T; None if the episode does not open."""
    files: int = 0
    """Files read: the episode or its chunks, their manifest, sidecars."""
    blocks: int = 0
    """Channels and residuals whose values were examined."""

    def to_fields(self) -> dict[str, Any]:
        """The report as JSON has it."""
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
    """Collects findings. Of two errors with the same code about the same block, the first counts.

    Args:
        path: the examined file.
        options: the thresholds.
        advance: called with the number of bytes that were examined.
    """

    def __init__(
        self,
        path: str,
        options: ExamineOptions,
        advance: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.path = path
        self.options = options
        self.advance = advance
        self.damaged: set[str] = set()
        """Blocks with errors: their values are not examined."""
        self.damaged_files: set[str] = set()
        """Other files than the examined one, with errors."""
        self._found: list[Finding] = []
        self._seen: set[tuple[str, str | None, str | None]] = set()
        self._counts: dict[str, int] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    def add(
        self,
        code: str,
        entry: str | None,
        message: str,
        step: int | None = None,
        count: int | None = None,
        *,
        advice: str | None = None,
        rule: str | None = None,
        severity: Severity | None = None,
    ) -> None:
        """Add one of the doctor's own findings; severity and advice are those of its code by default."""
        level = severity or CODES.get(code, "error")
        to_do = advice or _ADVICE.get(code) or _GENERAL_ADVICE
        self.keep(Finding(code, level, message, entry, step, count, to_do, rule))

    def add_error(self, error: ShardError, *, rule: str | None = None) -> None:
        """Add what reading would raise."""
        advice = _ERROR_ADVICE.get(error.code, _GENERAL_ADVICE)
        path = None if error.path == self.path else error.path
        self.keep(Finding.from_error(error, advice=advice, rule=rule, path=path))

    def add_odd(self, odd: Finding, path: str) -> None:
        """Add a warning about the container of a file."""
        advice = odd.advice or _ERROR_ADVICE.get(odd.code, _GENERAL_ADVICE)
        self.keep(replace(odd, advice=advice, path=None if path == self.path else path))

    @contextmanager
    def guard(self, entry: str | None = None, *, rule: str | None = None) -> Iterator[None]:
        """Turn what reading raises into a finding.

        Args:
            entry: which entry, if the error does not name one.
            rule: the broken rule, if it is another than the error names.
        """
        try:
            yield
        except ShardError as error:
            if must_stop(error):
                raise
            # Flat lanes and residuals have rules of their own for what W-BLK-1 says of blocks.
            general = error.rule in (None, "W-BLK-1")
            self.add_error(error.located(entry=entry), rule=rule if general else None)
        except MemoryError:
            advice = "examine it on a larger machine, or with smaller window_bytes"
            message = "not enough memory to examine it"
            self.add("limit_exceeded", entry, message, advice=advice, rule=rule)
        except (ValueError, TypeError, OverflowError) as problem:
            # Sizes that contradict each other in a way that no rule foresaw: still about the file.
            self.add("bad_value", entry, f"cannot be read as described: {problem}", rule=rule)

    def keep(self, finding: Finding) -> None:
        """Add a finding, unless it repeats another or there are too many of its kind."""
        if finding.severity == "error":
            key = (finding.code, finding.entry, finding.path)
            if key in self._seen:
                return
            self._seen.add(key)
            if finding.entry is not None:
                self.damaged.add(finding.entry)
            if finding.path is not None:
                self.damaged_files.add(finding.path)
        self._counts[finding.code] = number = self._counts.get(finding.code, 0) + 1
        if number <= _MOST_OF_A_KIND:
            self._found.append(finding)

    def sorted(self) -> tuple[Finding, ...]:
        """Errors first, then warnings, then notes."""
        return tuple(sorted(self._found, key=lambda finding: SEVERITIES.index(finding.severity)))
