"""Checks of the vectors themselves, before anything is written.

Three questions: does the strict reader of `_decode` agree with every vector, do the rules and codes
exist in the specification, and has every rule that a reader can check a file that breaks it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from _decode import BrokenRuleError, open_file, read_entry, read_range
from _describe import warnings_of
from _metadata import (
    check_identity,
    check_profile,
    contents_of,
    manifest_files,
    read_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _vector import Invalid, Valid

RULES_WITHOUT_FILE = {
    "S-NAM-6": "binds writers",
    "S-NAM-8": "about extraction; valid/names_like_paths and names_of_many_parts have the names",
    "S-MAN-4": "about the folder around the manifest",
    "S-MAN-5": "about the folder around the manifest",
}

_RULE = re.compile(
    r"^- \*\*([SWJP](?:-[A-Z]+)?-\d+)\*\*(.*?)(?=^- \*\*[SWJP]-|^#|^>|\Z)",
    re.MULTILINE | re.DOTALL,
)


def rules_of(specification: str) -> dict[str, set[str]]:
    """The rule ids of the documents with the error codes each one names."""
    rules = {}
    for rule, text in _RULE.findall(specification):
        _, _, codes = text.partition("*error:*")
        rules[rule] = set(re.findall(r"`([a-z_]+)`", codes))
    return rules


def error_of(vector: Invalid) -> str | None:
    """The code that the strict reader reports at the step the vector names."""
    try:
        file = open_file(vector.data)
        if vector.when == "open":
            return None
        if "other" in file.by_name:
            read_entry(file, "other")  # one damaged entry must not hide the others
        if vector.when == "read":
            read_entry(file, vector.entry or "")
        elif vector.when == "range":
            start, length = vector.span or (0, 0)
            read_range(file, vector.entry or "", start, length)
        elif vector.when == "schema":
            contents_of(file)  # S-SCH-3: entries stay readable, so a failure here is ours
            read_schema(file)
        elif vector.when == "manifest":
            manifest_files(file)
        elif vector.when == "verify":
            check_profile(file)
        elif vector.when == "identity":
            check_identity(file)
    except BrokenRuleError as error:
        return error.code
    return None


def _problems_of_valid(vector: Valid, rules: dict[str, set[str]]) -> Iterator[str]:
    try:
        file = open_file(vector.data)
        contents = contents_of(file)
        check_profile(file)
        check_identity(file)
    except BrokenRuleError as error:
        yield f"does not read: {error}"
        return
    if vector.contents is not None and contents != vector.contents:
        yield "decodes to other contents"
    if warnings_of(file) != sorted(vector.warnings):
        yield f"has the warnings {warnings_of(file)}, expected {sorted(vector.warnings)}"
    yield from (f"names the unknown rule {rule}" for rule in vector.rules if rule not in rules)


def _problems_of_invalid(vector: Invalid, rules: dict[str, set[str]]) -> Iterator[str]:
    found = error_of(vector)
    if found != vector.error:
        yield f"gives {found}, expected {vector.error}"
    if vector.error not in rules.get(vector.rule, set()):
        yield f"expects {vector.error}, which {vector.rule} does not name"
    if (vector.when in ("read", "range")) > (vector.entry is not None):
        yield "does not say which entry to read"


def problems(
    valid: list[Valid],
    invalid: list[Invalid],
    rules: dict[str, set[str]],
    broken_elsewhere: set[str],
) -> Iterator[str]:
    for good in valid:
        yield from (f"valid/{good.name} {what}" for what in _problems_of_valid(good, rules))
    for bad in invalid:
        yield from (f"invalid/{bad.name} {what}" for what in _problems_of_invalid(bad, rules))
    for vectors in (valid, invalid):
        names = [vector.name for vector in vectors]
        yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
    broken = broken_elsewhere | {vector.rule for vector in invalid}
    for rule, codes in rules.items():
        checkable = rule.startswith("S-") and codes
        if checkable and rule not in broken and rule not in RULES_WITHOUT_FILE:
            yield f"no invalid file breaks {rule}"
