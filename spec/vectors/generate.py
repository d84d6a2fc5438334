"""Make the test vectors of the Shard format: the only way they change.

    python spec/vectors/generate.py            rewrite all vectors and the hex dump of shard.md
    python spec/vectors/generate.py --check    compare with what is there, exit 1 on differences

The output depends on nothing but these sources, the pinned golden files and, for the few vectors
that hold output of the zstd library, its version, which primitives.json records.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from _decode import BrokenRuleError, open_file
from _describe import describe
from _hexdump import annotated, insert
from _invalid_codecs import codec_vectors as invalid_codec_vectors
from _invalid_container import container_vectors as invalid_container_vectors
from _invalid_metadata import metadata_vectors as invalid_metadata_vectors
from _layout import align
from _metadata import contents_of
from _primitives import crc32c, xxh64
from _selfcheck import problems
from _valid import container_vectors, hello
from _valid_codecs import codec_vectors, golden_vectors
from _vector import Invalid, Valid, byte_ramp
from _zstd_library import VERSIONS

FOLDER = Path(__file__).resolve().parent
SPECIFICATION = FOLDER.parent / "shard.md"
MADE_FOLDERS = ("valid", "invalid")
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
        "made_with": VERSIONS,
    }


def _valid_json(vector: Valid) -> bytes:
    told = {
        "description": vector.description,
        "file": vector.name + vector.suffix,
        "rules": list(vector.rules),
    }
    return to_json(told | describe(vector.data, list_entries=vector.list_entries))


def _invalid_json(vector: Invalid) -> bytes:
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
    return to_json(told)


def make_files(valid: list[Valid], invalid: list[Invalid]) -> dict[Path, bytes]:
    """Every file this program owns, with its bytes."""
    specification = SPECIFICATION.read_text(encoding="utf-8")
    dump = annotated(hello().data)
    files = {
        SPECIFICATION: insert(specification, dump).encode(),
        FOLDER / PRIMITIVES: to_json(primitives()),
    }
    for good in valid:
        files[FOLDER / "valid" / (good.name + good.suffix)] = good.data
        files[FOLDER / "valid" / f"{good.name}.json"] = _valid_json(good)
    for bad in invalid:
        files[FOLDER / "invalid" / f"{bad.name}.shard"] = bad.data
        files[FOLDER / "invalid" / f"{bad.name}.json"] = _invalid_json(bad)
    return files


def stale_files(files: dict[Path, bytes]) -> list[Path]:
    """Files among the vectors that this program does not make."""
    present = [path for folder in MADE_FOLDERS for path in (FOLDER / folder).glob("**/*")]
    return sorted(path for path in present if path not in files)


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

    valid = [*container_vectors(), *codec_vectors(), *golden_vectors(FOLDER / "valid")]
    invalid = [
        *invalid_container_vectors(),
        *invalid_codec_vectors(),
        *invalid_metadata_vectors(),
    ]
    found = list(problems(valid, invalid, SPECIFICATION.read_text(encoding="utf-8")))
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1
    files = make_files(valid, invalid)
    if check:
        found = differences(files, valid)
        print(
            "\n".join(found) or f"{len(valid)} valid and {len(invalid)} invalid files are current"
        )
        return 1 if found else 0
    for path in stale_files(files):
        path.unlink()
    for path, data in files.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    print(f"wrote {len(valid)} valid and {len(invalid)} invalid files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
