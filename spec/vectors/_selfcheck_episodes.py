"""Checks of the episodes among the vectors: does the strict reader see what they state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _decode import BrokenRuleError, open_file
from _episode_sets import load
from _metadata import contents_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _vector import InvalidEpisode, Valid, ValidSet

EPISODE_RULES_WITHOUT_FILE: dict[str, str] = {}


def missing(expected: object, found: object, where: str) -> Iterator[str]:
    """What is not in `found` as `expected` states it; objects may have more keys."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected:
        for key, value in expected.items():
            if key not in found:
                yield f"{where}.{key} is not there"
            else:
                yield from missing(value, found[key], f"{where}.{key}")
    elif expected != found:
        yield f"{where} is {found!r}, expected {expected!r}"


def _problems_of_episode(files: dict[str, bytes], file: str, expected: object) -> Iterator[str]:
    try:
        found = load(files, file, strict=True).describe()
    except BrokenRuleError as error:
        yield f"is no valid episode: {error}"
        return
    yield from missing(expected, found, "episode")


def outcome(vector: InvalidEpisode) -> tuple[str, str] | None:
    """The code and the rule that the strict reader reports at the step of the vector."""
    try:
        episode = load(vector.files, vector.file)
        if vector.when == "touch":
            for path in episode.lanes:
                if path != vector.touch:
                    episode.touch(path)  # one bad lane must not hide the others: ours if it fails
        if vector.when == "check":
            load(vector.files, vector.file, strict=True)
    except BrokenRuleError as error:
        if vector.when == "touch":
            return "fails too early", str(error)
        return error.code, str(error).split(": ")[1]
    if vector.when == "touch":
        try:
            episode.touch(vector.touch)
        except BrokenRuleError as error:
            return error.code, str(error).split(": ")[1]
    return None


def _problems_of_invalid(vector: InvalidEpisode, rules: dict[str, set[str]]) -> Iterator[str]:
    found = outcome(vector)
    if found is None or found[0] != vector.error:
        yield f"gives {found}, expected {vector.error}"
    elif found[1] not in (vector.rule, *vector.rules_also):
        yield f"breaks {found[1]}, expected {vector.rule}"
    if vector.error not in rules.get(vector.rule, set()):
        yield f"expects {vector.error}, which {vector.rule} does not name"
    if (vector.when == "touch") != bool(vector.touch):
        yield "does not say what to touch"
    try:
        for data in vector.files.values():
            contents_of(open_file(data))
    except BrokenRuleError as error:
        yield f"has a file that is no valid container: {error}"


def episode_problems(
    valid: list[Valid],
    sets: list[ValidSet],
    invalid: list[InvalidEpisode],
    rules: dict[str, set[str]],
) -> Iterator[str]:
    for good in valid:
        if good.episode is not None:
            files = {"ep.wshard": good.data}
            for what in _problems_of_episode(files, "ep.wshard", good.episode):
                yield f"valid/{good.name} {what}"
    for several in sets:
        for what in _problems_of_episode(several.files, several.file, several.episode):
            yield f"valid_episodes/{several.name} {what}"
        unknown = [rule for rule in several.rules if rule not in rules]
        yield from (f"valid_episodes/{several.name} names {rule}" for rule in unknown)
    for bad in invalid:
        for what in _problems_of_invalid(bad, rules):
            yield f"invalid_episodes/{bad.name} {what}"
    for names in ([v.name for v in sets], [v.name for v in invalid]):
        yield from (f"{name} is made twice" for name in set(names) if names.count(name) > 1)
    broken = {vector.rule for vector in invalid}
    for rule, codes in rules.items():
        checkable = rule.startswith("W-") and not rule.startswith("W-OVW-") and codes
        if checkable and rule not in broken and rule not in EPISODE_RULES_WITHOUT_FILE:
            yield f"no invalid episode breaks {rule}"
