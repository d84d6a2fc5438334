"""The conformance program of the Python library: one small command line that every language has.

    python -m tests.conformance.program info
    python -m tests.conformance.program read KIND FILE         container, episode, journal, overview, pack or set
    python -m tests.conformance.program step KIND FILE CASE    what an invalid vector asks for
    python -m tests.conformance.program stream FILE            a shard of a dataset, from start to end
    python -m tests.conformance.program recover FILE           what can be saved of a damaged shard
    python -m tests.conformance.program verify FILE SIGNATURE KEY   a signature, with a key that is trusted
    python -m tests.conformance.program write CASE OUT         a case of spec/vectors/canonical
    python -m tests.conformance.program rewrite KIND IN OUT    reads a file and writes it again
    python -m tests.conformance.program --batch                a JSON list of arguments on each line of stdin

It prints one line of JSON. It exits with 0, with 1 if the answer is an error, and with 2 if the call is wrong.
spec/vectors/README.md describes the answers.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import shardpack
from shard_format import (
    Limits,
    Manifest,
    ShardError,
    ShardReader,
    ShardWriter,
    WriterOptions,
    __version__,
    verify_identity,
)
from shard_format import compute_identity as identity_of
from shard_format.signing import verify as verify_signature
from shardpack import ShardPackReader, ShardPackWriter
from tests.conformance.recording import record
from tests.conformance.telling import (
    sha256,
    tell_container,
    tell_episode,
    tell_journal,
    tell_overviews,
    tell_pack,
    tell_set,
)
from tests.conformance.writing import write
from wshard import load_wshard, save_wshard
from wshard.doctor import examine
from wshard.overviews import open_overviews
from wshard.types import Intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Told = dict[str, Any]
FEATURES = "RWZMSFLJNIGVEHUDOQPKBCT"


def info() -> Told:
    return {
        "features": list(FEATURES),
        "formats": {"journal": 1, "shard": 2, "shardpack": 1, "wshard": 1},
        "name": "python",
        "version": __version__,
    }


# --- reading


def read(kind: str, file: str) -> Told:
    path = Path(file)
    if kind == "journal":
        with tempfile.TemporaryDirectory() as folder:
            return tell_journal(path, Path(folder) / "out.wshard")
    tell = {
        "container": tell_container,
        "episode": tell_episode,
        "overview": tell_overviews,
        "pack": tell_pack,
        "set": tell_set,
    }
    return tell[kind](path)


def stream(file: str) -> Told:
    count, code = 0, None
    try:
        for record in shardpack.stream(file):
            _ = record.key
            count += 1
    except ShardError as error:
        code = error.code
    return {"error_code": code, "records": str(count)}


def recover(file: str) -> Told:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.shardpack"
        result = shardpack.recover(file, out, fsync=False)
        with ShardPackReader(out) as reader:
            keys = list(reader.keys())
    lost = [
        {"key": part.key, "offset": str(part.offset), "size": str(part.size)}
        for part in result.lost
    ]
    return {"had_index": result.had_index, "keys": keys, "lost": lost}


# --- steps of invalid vectors


def step(kind: str, file: str, case_file: str) -> Told:
    case = json.loads(Path(case_file).read_text("utf-8"))
    steps = {
        "container": container_step,
        "episode": _episode_step,
        "overview": _overview_step,
        "pack": _pack_step,
        "set": _set_step,
    }
    steps[kind](Path(file), case)
    return {"done": True}


def limits_of(case: Told) -> Limits:
    """Those that a vector lowers, the others as usual."""
    names = {"max_window_bytes": "max_zstd_window_bytes"}
    return Limits(
        **{names.get(one, one): int(most) for one, most in case.get("limits", {}).items()}
    )


def container_step(path: Path, case: Told) -> None:
    """The step of an invalid container that must fail; all steps before it must not."""
    with ShardReader(path, limits=limits_of(case)) as reader:
        when = case["when"]
        if when == "read":
            reader.read_entry(case["entry"])
        elif when == "range":
            start = int(case["start"])
            reader.read_range(case["entry"], start, start + int(case["length"]))
        elif when == "schema":
            _ = reader.schema
        elif when == "manifest":
            Manifest.read(reader)
        elif when == "identity":
            verify_identity(reader)
        elif when == "verify":
            reader.verify()


def _episode_step(path: Path, case: Told) -> None:
    if case["when"] == "check":
        for finding in examine(path).findings:
            if finding.code in (case["error"], *case.get("also", ())):
                raise _Found(finding.code, case["rule"])
        return
    with load_wshard(path, sidecars="strict", limits=limits_of(case)) as episode:
        if case["when"] == "touch":
            lane: Any = getattr(episode, case["touch"][0])
            for key in case["touch"][1:]:
                lane = lane[key]
            touch(lane)


def _overview_step(path: Path, case: Told) -> None:
    overviews = open_overviews(path)
    assert overviews is not None
    with overviews:
        if case["when"] == "touch":
            kind, name = case["touch"]
            if kind == "overview":
                _ = overviews[name]
            else:
                overviews.read_poster(next(p for p in overviews.posters if str(p.number) == name))


def touch(lane: object) -> None:
    """Reads everything of a lane that is read when it is asked for."""
    for attribute in ("data", "timestamps_ns", "scales"):
        value = getattr(lane, attribute, None)
        if isinstance(value, list):
            list(value)
    if isinstance(lane, Intervals):
        list(lane)


def _pack_step(path: Path, case: Told) -> None:
    if case["when"] == "stream":
        for record in shardpack.stream(path):
            _ = record.key
        return
    with ShardPackReader(path, limits=limits_of(case)) as reader:
        step_in_pack(reader, case)


def step_in_pack(reader: ShardPackReader, case: Told) -> None:
    """The step of an invalid shard that follows opening it."""
    when = case["when"]
    if when == "offsets":
        reader.get_index()
    elif when == "lookup":
        reader.find("first")
    elif when == "index_metadata":
        _ = reader.metadata
    elif when == "key":
        reader.by_key(case["key"])
    elif when == "record":
        _ = reader.record(int(case["record"])).key
    elif when == "metadata":
        _ = reader.record(int(case["record"])).metadata
    elif when == "entry":
        _ = reader.record(int(case["record"]))[case["entry"]].data


def _set_step(path: Path, case: Told) -> None:
    with shardpack.open(path, limits=limits_of(case)) as dataset:
        if case["when"] == "shard":
            names = list(shardpack.ShardSet.read(path).names)
            _ = dataset.shards[names.index(case["shard"])]


class _Found(Exception):
    """What a checking tool reports."""

    def __init__(self, code: str, rule: str) -> None:
        super().__init__(code)
        self.code, self.rule = code, rule


# --- signatures


def verify(file: str, signature: str, key: str) -> Told:
    # Only here: other tests use parts of this program without the extra for signatures.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    trusted = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
    identity = verify_signature(file, signature, trusted)
    return {"identity": identity.digest, "version": str(identity.version)}


# --- writing


def write_case(case_file: str, out: str) -> Told:
    case = json.loads(Path(case_file).read_text("utf-8"))
    path = Path(out)
    path.unlink(missing_ok=True)
    told = {}
    if case["kind"] == "recording":
        told["journal_sha256"] = sha256(record(case, path))
    else:
        write(case, path)
    told["sha256"] = sha256(path.read_bytes())
    if case["kind"] != "pack":
        with ShardReader(path) as reader:
            told["identity"] = identity_of(reader).digest
    return told


def rewrite(kind: str, file: str, out: str) -> Told:
    {"container": _copy_container, "episode": _copy_episode, "pack": _copy_pack}[kind](file, out)
    told = {"sha256": sha256(Path(out).read_bytes())}
    if kind != "pack":
        with ShardReader(out) as reader:
            told["identity"] = identity_of(reader).digest
    return told


def _copy_container(file: str, out: str) -> None:
    with ShardReader(file) as reader:
        alignment, options = reader.header.alignment, WriterOptions(schema=reader.schema)
        with ShardWriter(out, role=reader.role, alignment=alignment, options=options) as writer:
            for name in reader.names():
                writer.copy_entry(reader, name)


def _copy_episode(file: str, out: str) -> None:
    with load_wshard(file) as episode:
        save_wshard(episode, out)


def _copy_pack(file: str, out: str) -> None:
    with ShardPackReader(file) as reader:
        written = reader.metadata
        with ShardPackWriter(
            out,
            alignment=reader[0].alignment if len(reader) else 8,
            metadata=written.get("user"),
            created=written.get("created"),
        ) as writer:
            for record in reader:
                writer.copy(record)


# --- the command line

COMMANDS: dict[str, tuple[int, Callable[..., Told]]] = {
    "info": (0, info),
    "read": (2, read),
    "step": (3, step),
    "stream": (1, stream),
    "recover": (1, recover),
    "verify": (3, verify),
    "write": (2, write_case),
    "rewrite": (3, rewrite),
}


def answer(arguments: Sequence[str]) -> tuple[int, Told]:
    """The exit code and the answer of one call."""
    name, *rest = arguments or [""]
    count, command = COMMANDS.get(name, (-1, info))
    if len(rest) != count:
        return 2, {"usage": (__doc__ or "").strip()}
    try:
        return 0, command(*rest)
    except (ShardError, _Found) as error:
        return 1, {"error": error.code, "rule": error.rule}


def main() -> int:
    if sys.argv[1:] != ["--batch"]:
        code, told = answer(sys.argv[1:])
        print(_line(told))
        return code
    for line in sys.stdin:
        print(_line(answer(json.loads(line))[1]), flush=True)
    return 0


def _line(told: Told) -> str:
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


if __name__ == "__main__":
    sys.exit(main())
