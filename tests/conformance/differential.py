"""Differential fuzzing: the same damaged file through the programs of all languages, whose answers must agree.

    python -m tests.conformance.differential --seconds 60 [--cases 1000] [--seed 1] [container episode journal pack]

A mutation changes a vector in one or a few places; most of the files get sizes and checksums that fit again, so
that readers look further. Either every program reads a file, and tells the same about it, or every program refuses
it. A file may break several rules, and each program may name any of them: pairs of codes are counted and printed.
Files that the programs disagree about are kept in fuzz-work/differential.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shard_format import Codec, ShardError, ShardReader
from shardpack import ShardPackReader
from tests.conformance.ports import ROOT, VECTORS, Program, programs
from tests.fuzz.repair import (
    with_right_checksums,
    with_right_end,
    with_right_heads,
    with_right_records,
    with_right_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Told = dict[str, Any]
FOUND: Final = ROOT / "fuzz-work" / "differential"
LARGEST_SEED: Final = 1 << 14
NUMBERS: Final = (
    0,
    1,
    2,
    7,
    8,
    0x7F,
    0x80,
    0xFF,
    1 << 15,
    (1 << 16) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
)


@dataclass(frozen=True)
class Kind:
    """Files of one kind: where seeds are, which feature a program needs, what is asked, and how sums are mended."""

    folders: str
    suffix: str
    feature: str
    questions: tuple[tuple[str, ...], ...]
    repairs: tuple[Callable[[bytes], bytes], ...]


KINDS: Final = {
    "container": Kind(
        "*valid", ".shard", "R", (("read", "container"),), (with_right_size, with_right_checksums)
    ),
    "episode": Kind(
        "*valid*", ".wshard", "E", (("read", "episode"),), (with_right_size, with_right_checksums)
    ),
    "journal": Kind(
        "*valid_journals", ".wshard.partial", "O", (("read", "journal"),), (with_right_heads,)
    ),
    "pack": Kind(
        "*valid_packs",
        ".shardpack",
        "P",
        (("read", "pack"), ("stream",), ("recover",)),
        (with_right_end, with_right_records),
    ),
}


def seeds_of(kind: Kind) -> list[bytes]:
    """The vectors of a kind that are one file and not large."""
    found: dict[bytes, None] = {}
    for description in sorted(VECTORS.glob(f"{kind.folders}/*.json")):
        file = description.parent / json.loads(description.read_text("utf-8"))["file"]
        suffix = kind.suffix if kind.suffix != ".shard" else file.suffix
        if file.parent == description.parent and file.name.endswith(suffix):
            data = file.read_bytes()
            if len(data) <= LARGEST_SEED:
                found[data] = None
    return list(found)


# --- damage


def damaged(data: bytes, others: Sequence[bytes], chance: random.Random) -> tuple[bytes, bool]:
    """A file with some changes, and whether it is a single one."""
    count = chance.choice((1, 1, 1, 1, 2, 3, 8))
    file = bytearray(data)
    for _ in range(count):
        chance.choice(_CHANGES)(file, others, chance)
    return bytes(file), count == 1


def _flip(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if file:
        file[chance.randrange(len(file))] ^= 1 << chance.randrange(8)


def _set_byte(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    if file:
        file[chance.randrange(len(file))] = chance.randrange(256)


def _set_number(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    size = chance.choice((1, 2, 4, 8))
    if len(file) >= size:
        at = chance.randrange(len(file) - size + 1) // size * size
        old = int.from_bytes(file[at : at + size], "little")
        new = chance.choice((*NUMBERS, old + 1, old - 1, 2 * old, len(file))) % (1 << 8 * size)
        file[at : at + size] = new.to_bytes(size, "little")


def _set_text(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    """Changes JSON, most of which would end at once with random bytes."""
    pieces = (
        b"null",
        b"-1",
        b"0",
        b"1e999",
        b'""',
        b"[]",
        b"{}",
        b"true",
        b"1.5",
        b"99999999999999999999",
    )
    starts = [at for at, byte in enumerate(file) if byte == ord(":")]
    if starts:
        at = chance.choice(starts) + 1
        ends = [end for end in (file.find(mark, at) for mark in (b",", b"}")) if end > at]
        end = min(ends, default=at)
        new = chance.choice(pieces)
        # Of the same length where it fits: then nothing else moves.
        file[at:end] = new.ljust(end - at) if len(new) <= end - at else new


def _cut(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    del file[chance.randrange(len(file) + 1) :]


def _remove(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(file) + 1)
    del file[at : at + chance.choice((1, 4, 8, 48, 64))]


def _insert(file: bytearray, _: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(file) + 1)
    file[at:at] = bytes(chance.choice((1, 4, 8, 64)))


def _splice(file: bytearray, others: Sequence[bytes], chance: random.Random) -> None:
    other = chance.choice(others)
    at, size = chance.randrange(len(file) + 1), chance.choice((8, 48, 64, 256))
    start = chance.randrange(len(other) + 1)
    file[at : at + size] = other[start : start + size]


_CHANGES: Final = (
    *(_flip, _flip, _set_byte, _set_number, _set_number, _set_number, _set_text, _set_text),
    *(_cut, _remove, _insert, _splice),
)


# --- comparing


@dataclass
class Outcome:
    """What the programs said about all files."""

    counts: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def disagreement(answers: dict[str, Told]) -> str | None:
    """How answers to one question differ; None if they agree."""
    crashes = [str(one["crash"]) for one in answers.values() if "crash" in one]
    if crashes:
        return "; ".join(crashes)
    refused = {
        port: one["error"]
        for port, one in answers.items()
        if "episode" not in one and "error" in one
    }
    if refused and len(refused) < len(answers):
        accepted = ", ".join(port for port in answers if port not in refused)
        told = ", ".join(f"{port} says {code}" for port, code in refused.items())
        return f"{accepted} reads it, {told}"
    if not refused:
        (first, one), *rest = answers.items()
        for port, other in rest:
            if (place := _differs(_comparable(one), _comparable(other))) is not None:
                return f"{first} and {port} differ at {place}"
    return None


def _comparable(told: Told) -> Told:
    """An answer without what programs may tell differently: the reason for stopping, ticks that are made up, and
    empty rewards and ends of an episode without steps."""
    left_out = {"error", "rule", "error_code", "ticks"}
    if told.get("length") == "0":
        left_out |= {"rewards", "terminations", "truncations"}
    plain = {key: value for key, value in told.items() if key not in left_out}
    if isinstance(plain.get("episode"), dict):
        plain["episode"] = _comparable(plain["episode"])
    return plain


def _differs(one: Any, other: Any, place: str = "") -> str | None:  # noqa: ANN401 - any JSON
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if (found := _differs(one.get(key), other.get(key), f"{place}/{key}")) is not None:
                return found
        return None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            if (found := _differs(*pair, f"{place}/{number}")) is not None:
                return found
        return None
    return None if one == other else f"{place}: {str(one)[:80]} and {str(other)[:80]}"


def has_lz4_offset_0(file: Path) -> bool:
    """Whether an lz4 block has an offset of 0, which liblz4 and so the Python library do not report (S-CMP-9)."""
    with contextlib.suppress(ShardError):
        if file.name.endswith(".shardpack"):
            with ShardPackReader(file) as pack:
                stored = [one for record in pack for one in record.stored_entries(check=False)]
                return any(map(_is_offset_0_in, (bytes(one.data) for one in stored)))
        data = file.read_bytes()
        with ShardReader(data, check=False) as reader:
            rows = [reader.info(name) for name in reader.names()]
        return any(
            _is_offset_0_in(data[row.data_offset : row.data_offset + row.disk_size])
            for row in rows
            if row.codec is Codec.LZ4
        )
    return False


def _is_offset_0_in(block: bytes) -> bool:
    at = 0
    while at < len(block):
        lengths = [block[at] >> 4, block[at] & 15]
        at += 1
        for number, length in enumerate(lengths):
            while length == 15 and at < len(block):
                lengths[number] += block[at]
                at += 1
                if block[at - 1] != 255:
                    break
            if number == 0:
                at += lengths[0]
                if at + 2 <= len(block) and block[at : at + 2] == bytes(2):
                    return True
                at += 2
    return False


def codes_of(answers: dict[str, Told]) -> str | None:
    """The codes, if the programs name different ones."""
    named = {port: one.get("error", one.get("error_code")) for port, one in answers.items()}
    if len(set(named.values())) == 1:
        return None
    return ", ".join(f"{port} {code}" for port, code in named.items())


def compare(
    kind: Kind, file: Path, ports: Sequence[Program], outcome: Outcome, is_single: bool
) -> str | None:
    """Asks all programs about one file; gives what they disagree about."""
    able = [port for port in ports if kind.feature in port.features]
    for question in kind.questions:
        asked = [one for one in able if question != ("recover",) or "K" in one.features]
        answers = {port.name: port.ask([*question, str(file)]) for port in asked}
        problem = disagreement(answers)
        if problem is not None and "bad_compression" in problem and has_lz4_offset_0(file):
            return None
        if problem is not None and "invalid_argument" in problem and "journal" in question:
            return None  # J-CHN-4 leaves open what becomes of names that cannot be saved
        if problem is not None:
            return f"{' '.join(question)}: {problem}"
        is_read = all("error" not in one and not one.get("error_code") for one in answers.values())
        outcome.counts["read" if is_read else "refused"] += 1
        codes = codes_of(answers)
        if codes is not None:
            outcome.codes[f"{codes}{'' if is_single else ' (several changes)'}"] += 1
    return None


def cases(names: Sequence[str], chance: random.Random) -> Iterator[tuple[str, bytes, bool]]:
    """Kind, bytes, and whether a single change was made, without end."""
    seeds = {name: seeds_of(KINDS[name]) for name in names}
    while True:
        for name in names:
            data, is_single = damaged(chance.choice(seeds[name]), seeds[name], chance)
            if chance.random() < 0.6:
                data = chance.choice(KINDS[name].repairs)(data)
            yield name, data, is_single


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--cases", type=int, default=sys.maxsize, help="stop after this many files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "kinds", nargs="*", default=list(KINDS), help="container, episode, journal, pack"
    )
    arguments = parser.parse_args()
    ports = [Program(name, command) for name, command in programs().items()]
    outcome = Outcome()
    end = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as folder:
        endless = cases(arguments.kinds, random.Random(arguments.seed))
        for name, data, is_single in itertools.islice(endless, arguments.cases):
            if time.monotonic() > end:
                break
            file = Path(folder) / f"file{KINDS[name].suffix}"
            file.write_bytes(data)
            problem = compare(KINDS[name], file, ports, outcome, is_single)
            if problem is not None:
                FOUND.mkdir(parents=True, exist_ok=True)
                kept = FOUND / f"{sha256(data).hexdigest()[:16]}{KINDS[name].suffix}"
                kept.write_bytes(data)
                outcome.problems.append(f"{kept.relative_to(ROOT)}: {problem}")
    for port in ports:
        port.close()
    print(f"{', '.join(p.name for p in ports)}; seed {arguments.seed}: {dict(outcome.counts)}")
    for codes, count in outcome.codes.most_common(20):
        print(f"  different codes, {count} times: {codes}")
    print("\n".join(outcome.problems) or "the programs agree")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
