"""What is wrong with a file, found without the file's help: the facts of `shard doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from shard_cli.advice import Advice, advise
from shard_cli.exits import Exit, error_fields, exit_for, worst
from shard_cli.explanations import EXPLANATIONS
from shard_cli.opening import open_shard
from shard_cli.salvage import salvage

if TYPE_CHECKING:
    from shard_cli.output import Console
    from shard_format import Limits, ShardError, ShardReader
    from shard_format.verify import Report, Warned

# Which header field a broken rule is about.
_FIELD_BY_RULE: Final = {
    "S-HDR-2": "magic",
    "S-HDR-3": "version",
    "S-HDR-4": "index_entry_size",
    "S-HDR-5": "alignment",
    "S-HDR-6": "flags",
    "S-HDR-7": "total_file_size",
    "S-HDR-8": "entry_count",
    "S-HDR-9": "entry_count",
    "S-HDR-10": "string_table_offset",
    "S-HDR-11": "data_section_offset",
    "S-HDR-12": "data_section_offset",
    "S-SCH-1": "schema_offset",
}


@dataclass(slots=True)
class Diagnosis:
    """Everything that is known about one file."""

    file: str
    header: dict[str, int | str] | None = None
    opens: bool = False
    listed: int | None = None
    """Entries that the index lists; None if there is no index to be read."""
    readable: int = 0
    errors: list[ShardError] = field(default_factory=list)
    warnings: list[Warned] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)

    @property
    def wrong_fields(self) -> dict[str, str]:
        """The header fields that the errors are about, each with what it should be."""
        return {
            _FIELD_BY_RULE[error.rule]: _correction(error)
            for error in self.errors
            if error.rule in _FIELD_BY_RULE
        }

    def exit(self, *, strict: bool) -> Exit:
        """What the file means for the exit code; with `strict`, warnings and advice count."""
        code = worst([exit_for(error.code) for error in self.errors])
        return Exit.FINDING if strict and not code and (self.warnings or self.advice) else code

    def to_fields(self) -> dict[str, Any]:
        """The diagnosis as `--json` shows it."""
        return {
            "file": self.file,
            "ok": not self.errors,
            "opens": self.opens,
            "header": self.header,
            "wrong_fields": self.wrong_fields,
            "entries_listed": self.listed,
            "entries_readable": self.readable,
            "errors": [{**error_fields(error), **_explained(error.code)} for error in self.errors],
            "warnings": [
                {
                    "code": one.code,
                    "entry": one.entry,
                    "message": one.message,
                    **_explained(one.code),
                }
                for one in self.warnings
            ],
            "advice": [
                {
                    "code": one.code,
                    "entries": one.entries,
                    "message": one.message,
                    "remedy": one.remedy,
                }
                for one in self.advice
            ],
        }


def diagnose(path: str, limits: Limits, console: Console) -> Diagnosis:
    """Opens the file and checks all of it; if it does not open, looks at what is left."""
    from shard_format.errors import ShardError

    diagnosis = Diagnosis(path)
    try:
        with open_shard(path, max_decompressed=limits.max_decompressed_bytes) as reader:
            diagnosis.opens = True
            diagnosis.header = _header_fields(reader.header._asdict())
            report = _check(reader, diagnosis, console)
            diagnosis.errors += [finding.error for finding in report.errors]
            diagnosis.errors += _identity_errors(reader, report, console)
            diagnosis.warnings += report.warnings
            diagnosis.advice += advise(reader)
    except ShardError as error:
        diagnosis.errors.insert(0, error)
        if not diagnosis.opens and error.code != "io_error":
            _look_inside(diagnosis, limits, console)
    return diagnosis


def diagnose_shard(path: str, limits: Limits, console: Console) -> Diagnosis:
    """The same for a shard of a pack of samples."""
    from shard_cli.pack_checking import check_shard

    with console.progress(f"doctor {path}") as bar:
        checked = check_shard(path, limits.max_decompressed_bytes, bar.update)
    return Diagnosis(
        path,
        opens=checked.opens,
        listed=checked.listed if checked.opens else None,
        readable=checked.entries,
        errors=checked.errors,
    )


def _check(reader: ShardReader, diagnosis: Diagnosis, console: Console) -> Report:
    from shard_format.verify import check

    with console.progress(f"doctor {diagnosis.file}") as bar:
        report = check(reader, progress=bar.update)
    damaged = {finding.error.entry for finding in report.errors} - {None}
    diagnosis.listed = report.entries
    diagnosis.readable = report.entries - len(damaged)
    return report


def _identity_errors(reader: ShardReader, report: Report, console: Console) -> list[ShardError]:
    from shard_format import ShardError, verify_identity
    from shard_format.identity import IDENTITY_ENTRY

    if not report.ok or IDENTITY_ENTRY not in reader:
        return []
    try:
        with console.progress("identity") as bar:
            verify_identity(reader, progress=bar.update)
    except ShardError as error:
        return [error]
    return []


def _look_inside(diagnosis: Diagnosis, limits: Limits, console: Console) -> None:
    """The header as far as it can be read, and the entries that survive."""
    from shard_format._layout import HEADER, MAGIC, VERSION, Header
    from shard_format.errors import ShardError
    from shard_format.sources import FileSource

    try:
        source = FileSource(diagnosis.file)
    except ShardError:  # a folder or a pipe: the first error says so
        return
    try:
        if source.size() < HEADER.size:
            return
        header = Header._make(HEADER.unpack(source.read_at(0, HEADER.size)))
        if header.magic != MAGIC:
            return
        diagnosis.header = _header_fields(header._asdict())
        if header.version != VERSION:
            return
        salvaged = salvage(source, header, limits)
        if salvaged is not None:
            _check(salvaged.reader, diagnosis, console)
            diagnosis.listed = salvaged.listed
    finally:
        source.close()


def _header_fields(header: dict[str, Any]) -> dict[str, int | str]:
    """The header with its two byte strings as text."""
    magic, reserved = header["magic"], header["reserved"]
    return {**header, "magic": magic.decode("latin-1"), "reserved": reserved.hex()}


def _correction(error: ShardError) -> str:
    # The size is the one field that is more likely right than the file.
    return (
        f"the file has {error.found}" if error.rule == "S-HDR-7" else f"expected {error.expected}"
    )


def _explained(code: str) -> dict[str, str]:
    return EXPLANATIONS[code]._asdict()
