"""Make the test vectors of the Shard format: the only way they change.

    python spec/vectors/generate.py            rewrite all vectors and the hex dumps of the specifications
    python spec/vectors/generate.py --check    compare with what is there, exit 1 on differences

The output depends on nothing but these sources, the pinned golden files and, for the few vectors
that hold output of the zstd library, its version, which primitives.json records.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from _canonical import Canonical, canonical_problems
from _canonical_cases import canonical_cases
from _canonical_recordings import recording_cases
from _decode import BrokenRuleError, open_file
from _describe import describe
from _episode_sets import load
from _hexdump import annotated, insert
from _invalid_codecs import codec_vectors as invalid_codec_vectors
from _invalid_container import container_vectors as invalid_container_vectors
from _invalid_episode_sets import set_vectors as invalid_set_vectors
from _invalid_episodes import episode_vectors as invalid_episode_vectors
from _invalid_filters import filter_vectors as invalid_filter_vectors
from _invalid_journals import journal_vectors as invalid_journal_vectors
from _invalid_metadata import metadata_vectors as invalid_metadata_vectors
from _invalid_pack_entries import entry_vectors as invalid_pack_entry_vectors
from _invalid_packs import head_vectors as invalid_pack_vectors
from _journal_reader import read_journal
from _layout import align
from _limited import Limited, limited_problems, limited_vectors
from _metadata import JsonObject, contents_of
from _overview_vectors import (
    OverviewVector,
    invalid_overviews,
    overview_problems,
    valid_overviews,
)
from _pack_hexdump import annotated_pack
from _pack_sets import (
    InvalidPackSet,
    ValidPackSet,
    describe_set,
    invalid_pack_sets,
    pack_set_problems,
    valid_pack_sets,
)
from _primitives import canonical_json, canonical_number, crc32c, sha256_hex, step_time, xxh64
from _selfcheck import problems, rules_of
from _selfcheck_episodes import episode_problems
from _selfcheck_journals import describe_journal, journal_problems
from _selfcheck_packs import describe_damage, describe_pack, pack_problems
from _signatures import Signed, signed_problems, signed_vectors
from _valid import container_vectors, hello
from _valid_codecs import codec_vectors, golden_vectors
from _valid_episode_sets import set_vectors
from _valid_episodes import episode_vectors
from _valid_episodes_old import generation_2_vectors, old_episode_vectors
from _valid_filters import filter_vectors
from _valid_journals import journal_vectors
from _valid_packs import hello_pack, pack_vectors
from _vector import (
    Invalid,
    InvalidEpisode,
    InvalidJournal,
    InvalidPack,
    Valid,
    ValidJournal,
    ValidPack,
    ValidSet,
    byte_ramp,
)
from _zstd_library import VERSIONS

FOLDER = Path(__file__).resolve().parent
SPECIFICATION = FOLDER.parent / "shard.md"
EPISODE_SPECIFICATION = FOLDER.parent / "wshard.md"
JOURNAL_SPECIFICATION = FOLDER.parent / "journal.md"
PACK_SPECIFICATION = FOLDER.parent / "shardpack.md"
VALID_SETS = "valid_episodes"
INVALID_EPISODES = "invalid_episodes"
VALID_OVERVIEWS = "valid_overviews"
INVALID_OVERVIEWS = "invalid_overviews"
VALID_JOURNALS = "valid_journals"
INVALID_JOURNALS = "invalid_journals"
VALID_PACKS = "valid_packs"
INVALID_PACKS = "invalid_packs"
VALID_PACK_SETS = "valid_sets"
INVALID_PACK_SETS = "invalid_sets"
LIMITS = "limits"
SIGNATURES = "signatures"
CANONICAL = "canonical"
JOURNAL_SUFFIX = ".wshard.partial"
MADE_FOLDERS = (
    *("valid", "invalid", VALID_SETS, INVALID_EPISODES, VALID_OVERVIEWS, INVALID_OVERVIEWS),
    *(VALID_JOURNALS, INVALID_JOURNALS, VALID_PACKS, INVALID_PACKS),
    *(VALID_PACK_SETS, INVALID_PACK_SETS, LIMITS, SIGNATURES, CANONICAL),
)
PRIMITIVES = "primitives.json"

HASHED_TEXTS = (
    "",
    "hello",
    "signal/obs",
    "meta/manifest",
    "meta/wshard",
    "meta/episode",
    "meta/channels",
    "reward",
    "done",
    "signal/state",
    "größe/🤖",
)
RAMP_SIZES = (*range(41), 64, 100, 1000)
DTYPE_SIZES = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u64": 8,
    "u32": 4,
    "u16": 2,
    "u8": 1,
    "bool": 1,
}
# As bits: ties, powers of two, subnormal numbers, the ends of the layouts, and the ends of the range.
DOUBLES = (
    *("0000000000000000", "8000000000000000", "0000000000000001", "8000000000000001"),
    *("000fffffffffffff", "0010000000000000", "7fefffffffffffff", "ffefffffffffffff"),
    *("0060000000000000", "4317ba8e0eac8921", "430313cd83498afa", "3ff0000000000000"),
    *("bff0000000000000", "403e000000000000", "403df851eb851eb8", "3fb999999999999a"),
    *("3fd3333333333333", "3fd3333333333334", "433fffffffffffff", "4340000000000000"),
    *("4340000000000001", "43e0000000000000", "444b1ae4d6e2ef50", "444b1ae4d6e2ef4f"),
    *("44b52d02c7e14af6", "3eb0c6f7a0b5ed8d", "3e7ad7f29abcaf48", "3ee4f8b588e368f1"),
    *("4415af1d78b58c40", "3ff3c0ca428c59fb", "c024000000000000", "400921fb54442d18"),
)
JSON_NUMBERS = (
    *("0", "-0", "0.0", "-0.0", "1", "1.0", "1e0", "1E+2", "-12e-1", "1e-400", "-1e-400"),
    *("9007199254740991", "9007199254740992", "9007199254740993", "18446744073709551616"),
    *(
        "9007199254740993.0",
        "1e21",
        "1e22",
        "0.1",
        "4.9e-324",
        "2.4e-324",
        "1.7976931348623157e308",
    ),
    "1" + "0" * 100,
)
REFUSED_NUMBERS = (
    *("1e400", "-1e400", "1.8e308", "01", "+1", ".5", "5.", "1e", "0x10", "1_000", "- 1"),
    *("NaN", "Infinity", "-Infinity", "-"),
)
JSON_STRINGS = (
    *("", "a", '"', "\\", "/", "\b\f\n\r\t", "\0", "\x01", "\x1f", "\x7f", "\x80", "<script>"),
    *("\u2028\u2029", "\ufeff", "\uffff", "\U0010ffff", "größe/🤖", "e\u0301", "\u00e9"),
)
ORDERED_KEYS = (
    *("", " ", "A", "Z", "a", "aa", "a/b", "a.b", "\x7f", "\u00e9", "e\u0301", "\u07ff"),
    *("\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000", "🤖", "\U0010ffff"),
)
RATES = (0.5, 1.0, 10.0, 29.97, 30.0, 59.94, 1000.0, 44100.0, 1e9, 3e9)
TIMED_STEPS = (0, 1, 2, 3, 7, 1000, 100_001, 12_345_678, 2**31 - 1)
ALIGNED_OFFSETS = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 2**32 - 1, 2**53 + 1)


def to_json(value: object) -> bytes:
    """ASCII only: an editor cannot normalise or reorder what it does not see as letters."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def _hashes(data: bytes) -> dict[str, str]:
    return {
        "crc32c": f"{crc32c(data):08x}",
        "input_hex": data.hex(),
        "xxh64": f"{xxh64(data):016x}",
    }


def _double(bits: str) -> float:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    return float(value)


def _json_number(text: str) -> dict[str, str]:
    """What a number in JSON text is: an integer, or the bits of a 64-bit float."""
    if set(text) & set(".eE"):
        value = float(text)
        return {"bits": struct.pack(">d", value).hex(), "text": text}
    return {"integer": str(int(text)), "text": text}


def primitives() -> dict[str, object]:
    return {
        "align": [
            {
                "alignment": str(alignment),
                "offset": str(offset),
                "result": str(align(offset, alignment)),
            }
            for alignment in (0, 16, 32, 64)
            for offset in ALIGNED_OFFSETS
        ],
        "dtype_sizes": {name: str(size) for name, size in DTYPE_SIZES.items()},
        "hashes_of_ramps": [_hashes(byte_ramp(size)) for size in RAMP_SIZES],
        "hashes_of_texts": [{"text": text} | _hashes(text.encode()) for text in HASHED_TEXTS],
        "json_keys_in_order": sorted(ORDERED_KEYS),
        "json_numbers": [_json_number(text) for text in JSON_NUMBERS],
        "json_numbers_refused": list(REFUSED_NUMBERS),
        "json_strings": [
            {"canonical_hex": canonical_json(text).hex(), "value": text} for text in JSON_STRINGS
        ],
        "made_with": VERSIONS,
        "numbers": [
            {"bits": bits, "canonical": canonical_number(_double(bits))} for bits in DOUBLES
        ],
        "step_times": [
            {"nanoseconds": str(step_time(step, rate)), "rate_hz": rate, "step": str(step)}
            for rate in RATES
            for step in TIMED_STEPS
        ],
    }


def _valid_json(vector: Valid) -> bytes:
    told: dict[str, object] = {
        "description": vector.description,
        "file": vector.name + vector.suffix,
        "rules": list(vector.rules),
    }
    told |= describe(vector.data, list_entries=vector.list_entries)
    if vector.episode is not None:
        files = {"ep.wshard": vector.data}
        told["episode"] = load(files, "ep.wshard").describe()
    return to_json(told)


def _set_json(vector: ValidSet) -> bytes:
    return to_json(
        {
            "description": vector.description,
            "episode": load(vector.files, vector.file).describe(),
            "file": f"{vector.name}/{vector.file}",
            "files": {name: sha256_hex(data) for name, data in vector.files.items()},
            "rules": list(vector.rules),
        }
    )


def _invalid_episode_path(vector: InvalidEpisode, file: str) -> str:
    """One file lies beside its JSON, several in a folder of their own."""
    return f"{vector.name}.wshard" if len(vector.files) == 1 else f"{vector.name}/{file}"


def _invalid_episode_fields(vector: InvalidEpisode) -> JsonObject:
    told: dict[str, object] = {
        "description": vector.description,
        "error": vector.error,
        "file": _invalid_episode_path(vector, vector.file),
        "rule": vector.rule,
        "when": vector.when,
    }
    if vector.touch:
        told["touch"] = list(vector.touch)
    if vector.rule == "W-VID-6":
        told["episode"] = load(vector.files, vector.file).describe(decode=False)
    if vector.also:
        told["also"] = list(vector.also)
    if vector.rules_also:
        told["rules_also"] = list(vector.rules_also)
    return told


def _journal_json(vector: ValidJournal | InvalidJournal) -> bytes:
    told: dict[str, object] = {
        "description": vector.description,
        "file": vector.name + JOURNAL_SUFFIX,
    }
    if isinstance(vector, ValidJournal):
        told["rules"] = list(vector.rules)
    else:
        told |= {"error": vector.error, "rule": vector.rule, "when": vector.when}
        if vector.also:
            told["also"] = list(vector.also)
        if vector.rules_also:
            told["rules_also"] = list(vector.rules_also)
    return to_json(told | describe_journal(read_journal(vector.data)))


def _pack_fields(vector: ValidPack | InvalidPack) -> JsonObject:
    told: dict[str, object] = {
        "description": vector.description,
        "file": f"{vector.name}.shardpack",
    }
    if isinstance(vector, ValidPack):
        return told | {"rules": list(vector.rules)} | describe_pack(vector)
    told |= {"error": vector.error, "rule": vector.rule, "when": vector.when}
    if vector.record is not None:
        told["record"] = str(vector.record)
    if vector.entry is not None:
        told["entry"] = vector.entry
    if vector.key is not None:
        told["key"] = vector.key
    if vector.also:
        told["also"] = list(vector.also)
    if vector.rules_also:
        told["rules_also"] = list(vector.rules_also)
    return told


def _invalid_fields(vector: Invalid) -> JsonObject:
    told: dict[str, object] = {
        "description": vector.description,
        "error": vector.error,
        "file": f"{vector.name}.shard",
        "rule": vector.rule,
        "when": vector.when,
    }
    if vector.entry is not None:
        told["entry"] = vector.entry
    if vector.span is not None:
        told |= {"start": str(vector.span[0]), "length": str(vector.span[1])}
    if vector.also:
        told["also"] = list(vector.also)
    return told


def _limited_files(one: Limited) -> dict[str, bytes]:
    """By path in the folder: a file or several, and the JSON."""
    vector, name = one.vector, one.vector.name
    if isinstance(vector, Invalid):
        told, files = _invalid_fields(vector), {f"{name}.shard": vector.data}
    elif isinstance(vector, InvalidPack):
        told, files = _pack_fields(vector), {f"{name}.shardpack": vector.data}
    elif isinstance(vector, InvalidEpisode):
        told = _invalid_episode_fields(vector)
        files = {_invalid_episode_path(vector, file): data for file, data in vector.files.items()}
    else:
        told = describe_set(vector)
        files = {f"{name}/{file}": data for file, data in vector.files.items()}
    limits = {limit: str(value) for limit, value in one.limits.items()}
    return files | {f"{name}.json": to_json(told | {"kind": one.kind, "limits": limits})}


@dataclass(frozen=True)
class Vectors:
    """Everything that is made."""

    valid: list[Valid]
    invalid: list[Invalid]
    valid_sets: list[ValidSet]
    invalid_episodes: list[InvalidEpisode]
    valid_overviews: list[OverviewVector]
    invalid_overviews: list[OverviewVector]
    valid_journals: list[ValidJournal]
    invalid_journals: list[InvalidJournal]
    valid_packs: list[ValidPack]
    invalid_packs: list[InvalidPack]
    valid_pack_sets: list[ValidPackSet]
    invalid_pack_sets: list[InvalidPackSet]
    limited: list[Limited]
    signed: list[Signed]
    canonical: list[Canonical]

    def __str__(self) -> str:
        episodes = sum(vector.episode is not None for vector in self.valid)
        return (
            f"{len(self.valid)} valid files, {episodes} of them episodes, {len(self.invalid)} "
            f"invalid files, {len(self.valid_sets)} valid episodes of several files, "
            f"{len(self.invalid_episodes)} invalid episodes, {len(self.valid_overviews)} valid and "
            f"{len(self.invalid_overviews)} invalid overviews, {len(self.valid_journals)} valid and "
            f"{len(self.invalid_journals)} invalid journals, {len(self.valid_packs)} valid and "
            f"{len(self.invalid_packs)} invalid shards of datasets, {len(self.valid_pack_sets)} "
            f"valid and {len(self.invalid_pack_sets)} invalid sets of shards, {len(self.limited)} "
            f"files above lowered limits, {len(self.signed)} files with signatures, "
            f"{len(self.canonical)} cases for writers"
        )


def all_vectors() -> Vectors:
    golden = FOLDER / "valid"
    valid = [
        *container_vectors(),
        *codec_vectors(),
        *filter_vectors(),
        *golden_vectors(golden),
        *episode_vectors(),
        *old_episode_vectors(),
        *generation_2_vectors(golden),
    ]
    return Vectors(
        valid=valid,
        invalid=[
            *invalid_container_vectors(),
            *invalid_codec_vectors(),
            *invalid_filter_vectors(),
            *invalid_metadata_vectors(),
        ],
        valid_sets=list(set_vectors()),
        invalid_episodes=[*invalid_episode_vectors(), *invalid_set_vectors()],
        valid_overviews=list(valid_overviews()),
        invalid_overviews=list(invalid_overviews()),
        valid_journals=list(journal_vectors()),
        invalid_journals=list(invalid_journal_vectors()),
        valid_packs=list(pack_vectors(valid)),
        invalid_packs=[*invalid_pack_vectors(), *invalid_pack_entry_vectors()],
        valid_pack_sets=list(valid_pack_sets()),
        invalid_pack_sets=list(invalid_pack_sets()),
        limited=list(limited_vectors()),
        signed=list(signed_vectors()),
        canonical=[*canonical_cases(), *recording_cases()],
    )


def problems_of(vectors: Vectors) -> list[str]:
    rules: dict[str, set[str]] = {}
    for document in (
        *(SPECIFICATION, EPISODE_SPECIFICATION),
        *(JOURNAL_SPECIFICATION, PACK_SPECIFICATION),
    ):
        rules |= rules_of(document.read_text(encoding="utf-8"))
    limited = {(one.vector.rule, one.vector.error) for one in vectors.limited}
    elsewhere = {rule for rule, _ in limited} | {
        one.rules[0] for one in vectors.signed if one.error
    }
    return [
        *problems(vectors.valid, vectors.invalid, rules, elsewhere),
        *episode_problems(vectors.valid, vectors.valid_sets, vectors.invalid_episodes, rules),
        *overview_problems(vectors.valid_overviews, vectors.invalid_overviews, rules),
        *journal_problems(vectors.valid_journals, vectors.invalid_journals, rules),
        *pack_problems(
            vectors.valid_packs,
            vectors.invalid_packs,
            rules,
            limited | {(vector.rule, vector.error) for vector in vectors.invalid_pack_sets},
        ),
        *pack_set_problems(vectors.valid_pack_sets, vectors.invalid_pack_sets, rules),
        *limited_problems(vectors.limited, rules),
        *signed_problems(vectors.signed, rules),
        *canonical_problems(vectors.canonical, rules),
    ]


def make_files(vectors: Vectors) -> dict[Path, bytes]:
    """Every file this program owns, with its bytes."""
    specification = SPECIFICATION.read_text(encoding="utf-8")
    dump = annotated(hello().data)
    pack_specification = PACK_SPECIFICATION.read_text(encoding="utf-8")
    pack_dump = annotated_pack(hello_pack().data)
    files = {
        SPECIFICATION: insert(specification, dump).encode(),
        PACK_SPECIFICATION: insert(pack_specification, pack_dump, "hello-pack").encode(),
        FOLDER / PRIMITIVES: to_json(primitives()),
    }
    for good in vectors.valid:
        files[FOLDER / "valid" / (good.name + good.suffix)] = good.data
        files[FOLDER / "valid" / f"{good.name}.json"] = _valid_json(good)
    for bad in vectors.invalid:
        files[FOLDER / "invalid" / f"{bad.name}.shard"] = bad.data
        files[FOLDER / "invalid" / f"{bad.name}.json"] = to_json(_invalid_fields(bad))
    for several in vectors.valid_sets:
        files[FOLDER / VALID_SETS / f"{several.name}.json"] = _set_json(several)
        for name, data in several.files.items():
            files[FOLDER / VALID_SETS / several.name / name] = data
    for episode in vectors.invalid_episodes:
        told = to_json(_invalid_episode_fields(episode))
        files[FOLDER / INVALID_EPISODES / f"{episode.name}.json"] = told
        for name, data in episode.files.items():
            files[FOLDER / INVALID_EPISODES / _invalid_episode_path(episode, name)] = data
    for folder, overviews in (
        (VALID_OVERVIEWS, vectors.valid_overviews),
        (INVALID_OVERVIEWS, vectors.invalid_overviews),
    ):
        for overview in overviews:
            files[FOLDER / folder / f"{overview.name}.json"] = to_json(overview.describe())
            for name, data in overview.files.items():
                files[FOLDER / folder / overview.name / name] = data
    for folder, journals in (
        (VALID_JOURNALS, vectors.valid_journals),
        (INVALID_JOURNALS, vectors.invalid_journals),
    ):
        for journal in journals:
            files[FOLDER / folder / (journal.name + JOURNAL_SUFFIX)] = journal.data
            files[FOLDER / folder / f"{journal.name}.json"] = _journal_json(journal)
    packs: list[tuple[str, ValidPack | InvalidPack]] = [
        *((VALID_PACKS, pack) for pack in vectors.valid_packs),
        *((INVALID_PACKS, pack) for pack in vectors.invalid_packs),
    ]
    for folder, shard in packs:
        files[FOLDER / folder / f"{shard.name}.shardpack"] = shard.data
        fields = _pack_fields(shard)
        if isinstance(shard, InvalidPack):
            fields |= describe_damage(shard)
        files[FOLDER / folder / f"{shard.name}.json"] = to_json(fields)
    pack_sets: list[tuple[str, ValidPackSet | InvalidPackSet]] = [
        *((VALID_PACK_SETS, one) for one in vectors.valid_pack_sets),
        *((INVALID_PACK_SETS, one) for one in vectors.invalid_pack_sets),
    ]
    for folder, listed in pack_sets:
        files[FOLDER / folder / f"{listed.name}.json"] = to_json(describe_set(listed))
        for name, data in listed.files.items():
            files[FOLDER / folder / listed.name / name] = data
    for one in vectors.limited:
        for name, data in _limited_files(one).items():
            files[FOLDER / LIMITS / name] = data
    for signed in vectors.signed:
        files[FOLDER / SIGNATURES / f"{signed.name}.shard"] = signed.data
        files[FOLDER / SIGNATURES / f"{signed.name}.shard.sig"] = signed.signature
        files[FOLDER / SIGNATURES / f"{signed.name}.json"] = to_json(signed.describe())
    for case in vectors.canonical:
        files[FOLDER / CANONICAL / f"{case.name}.json"] = to_json(case.describe())
    return files


def stale_files(files: dict[Path, bytes]) -> list[Path]:
    """Files among the vectors that this program does not make."""
    present = [path for folder in MADE_FOLDERS for path in (FOLDER / folder).glob("**/*")]
    return sorted(path for path in present if path not in files and path.is_file())


def _read_or_empty(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _made_with_this_zstd() -> bool:
    try:
        recorded = json.loads(_read_or_empty(FOLDER / PRIMITIVES))["made_with"]
    except (ValueError, KeyError):
        return True
    return bool(recorded == VERSIONS)


def _same_but_for_zstd(vector: Valid) -> bool:
    """Whether the committed file decodes to this vector's contents and its JSON describes it."""
    path = FOLDER / "valid" / (vector.name + vector.suffix)
    committed = Valid(
        name=vector.name,
        description=vector.description,
        rules=vector.rules,
        data=_read_or_empty(path),
        suffix=vector.suffix,
        list_entries=vector.list_entries,
        episode=vector.episode,
    )
    try:
        same = contents_of(open_file(committed.data)) == vector.contents
    except BrokenRuleError:
        return False
    return same and _valid_json(committed) == _read_or_empty(path.with_suffix(".json"))


def differences(files: dict[Path, bytes], valid: list[Valid]) -> list[str]:
    """What is missing, different or stale; other zstd versions are forgiven their own bytes."""
    forgiven: set[Path] = set()
    if not _made_with_this_zstd():
        forgiven.add(FOLDER / PRIMITIVES)
        for vector in valid:
            if vector.has_library_output and _same_but_for_zstd(vector):
                path = FOLDER / "valid" / (vector.name + vector.suffix)
                forgiven |= {path, path.with_suffix(".json")}
        committed = json.loads(_read_or_empty(FOLDER / PRIMITIVES))
        if committed | {"made_with": None} != primitives() | {"made_with": None}:
            forgiven.discard(FOLDER / PRIMITIVES)
    found = [f"stale: {path}" for path in stale_files(files)]
    for path, data in files.items():
        if path not in forgiven and (not path.is_file() or path.read_bytes() != data):
            found.append(f"{'differs' if path.is_file() else 'missing'}: {path}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check

    vectors = all_vectors()
    found = problems_of(vectors)
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1
    files = make_files(vectors)
    if check:
        found = differences(files, vectors.valid)
        print("\n".join(found) or f"current: {vectors}")
        return 1 if found else 0
    for path in stale_files(files):
        path.unlink()
    for path, data in files.items():
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(data)
    print(f"wrote {vectors}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
