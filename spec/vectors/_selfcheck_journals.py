"""Checks of the journals among the vectors: does the strict reader see what they state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _journal_reader import Journal, read_journal
from _selfcheck_episodes import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject
    from _vector import InvalidJournal, ValidJournal

JOURNAL_RULES_WITHOUT_FILE = {
    "J-TXT-2": "the file would have more than 1 MB, because notes are not compressed",
}


def describe_journal(journal: Journal) -> JsonObject:
    """What comes back of a journal, as the JSON of a vector has it."""
    is_there = journal.episode is not None
    return {
        "cut": {block: str(count) for block, count in journal.cut().items()} if is_there else {},
        "episode": journal.describe(),
        "finished": journal.ended and not journal.continues,
        "frames": str(journal.frames),
        "read_bytes": str(journal.position),
    }


def _problems_of_valid(vector: ValidJournal, rules: dict[str, set[str]]) -> Iterator[str]:
    journal = read_journal(vector.data)
    if journal.stop is not None:
        yield f"stops at {journal.position}: {journal.stop}"
        return
    yield from missing(vector.told, describe_journal(journal), "told")
    yield from (f"names the unknown rule {rule}" for rule in vector.rules if rule not in rules)


def _problems_of_invalid(vector: InvalidJournal, rules: dict[str, set[str]]) -> Iterator[str]:
    journal = read_journal(vector.data)
    if journal.stop is None:
        yield "is read to its end"
        return
    found = journal.stop.rule, journal.stop.error, journal.position
    if found != (vector.rule, vector.error, vector.stop):
        yield f"stops with {found}, expected {(vector.rule, vector.error, vector.stop)}"
    for rule, error in ((vector.rule, vector.error), *((vector.rule, e) for e in vector.also)):
        if error not in rules.get(rule, set()):
            yield f"expects {error}, which {rule} does not name"
    yield from (f"names the unknown rule {r}" for r in vector.rules_also if r not in rules)


def journal_problems(
    valid: list[ValidJournal], invalid: list[InvalidJournal], rules: dict[str, set[str]]
) -> Iterator[str]:
    for good in valid:
        for what in _problems_of_valid(good, rules):
            yield f"valid_journals/{good.name} {what}"
    for bad in invalid:
        for what in _problems_of_invalid(bad, rules):
            yield f"invalid_journals/{bad.name} {what}"
    for names in ([v.name for v in valid], [v.name for v in invalid]):
        yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
    broken = {vector.rule for vector in invalid}
    for rule, codes in rules.items():
        checkable = rule.startswith("J-") and codes
        if checkable and rule not in broken and rule not in JOURNAL_RULES_WITHOUT_FILE:
            yield f"no invalid journal breaks {rule}"
