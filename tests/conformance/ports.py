"""The conformance programs of all languages: how to start one, and what it must answer for each vector.

A program answers as `tests/conformance/program.py` does. It states in `info` which features it has, as letters;
a vector that needs others is not asked for.

    python -m tests.conformance.ports               asks all programs everything, and writes spec/CONFORMANCE.md
    python -m tests.conformance.ports go "packs:"   asks only where "go: packs: read: vector" contains all these words
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).parents[2]
VECTORS: Final = ROOT / "spec" / "vectors"
PORTS: Final = ROOT / "ports"
SECONDS: Final = 10
"""How long an answer may take."""
MEMORY: Final = 256 << 20
"""How much more memory than for `info` a program may take."""

Told = dict[str, Any]

FEATURES: Final = {
    "R": "read raw entries",
    "Z": "zstd",
    "M": "several frames",
    "S": "seekable entries",
    "F": "filters",
    "L": "lz4",
    "J": "schema section",
    "N": "manifests",
    "I": "identity",
    "G": "signatures",
    "V": "warnings",
    "W": "write containers",
    "X": "read episodes",
    "E": "read and write episodes",
    "C": "video",
    "D": "residuals",
    "H": "chunks and sidecars",
    "U": "overviews",
    "O": "read journals",
    "Q": "record",
    "P": "read packs",
    "T": "set files",
    "K": "recover packs",
    "B": "write packs",
}
"""What a program may have, by letter."""

IMPLIED: Final = {"E": "X"}
"""Features that come with another one. A program that reads episodes and does not write them has only the smaller one."""


@dataclass(frozen=True)
class Check:
    """One question to a program, and what it must answer."""

    group: str
    """A row of the table."""
    name: str
    needs: frozenset[str]
    """Letters of features."""
    arguments: tuple[str, ...]
    case: Told
    kind: str
    """How to compare: "told", "error", "stream", "recover", "written" or "verified"."""

    def arguments_for(self, folder: Path) -> list[str]:
        """The arguments, with a place for files that are written."""
        return [str(folder / "out") if one == "OUT" else one for one in self.arguments]

    def problem(self, answer: Told) -> str | None:
        """What is wrong with an answer; None if it is right."""
        if self.kind == "error":
            return _wrong_error(answer, self.case)
        if "error" in answer and "error" not in self.case:
            return f"gives the error {answer['error']} ({answer.get('rule')})"
        if self.kind == "stream":
            return _wrong_stream(answer, self.case)
        wanted = self.case["recovered"] if self.kind == "recover" else _wanted(self)
        told = _as_wanted(answer, wanted)
        found = {key: told.get(key) for key in wanted}
        if found != wanted:
            return _difference(found, wanted)
        # A journal is read up to a frame that breaks a rule.
        is_stopped = self.kind == "told" and "error" in self.case
        return _wrong_error(answer, self.case) if is_stopped else None


# --- what is asked


def checks() -> Iterator[Check]:
    """All questions, vector by vector."""
    yield from _reading("valid", "container", "containers: read")
    yield from _steps("invalid", "container", "containers: refuse")
    yield from _reading("valid", "episode", "episodes: read")
    yield from _reading("valid_episodes", "episode", "episodes of several files: read")
    yield from _steps("invalid_episodes", "episode", "episodes: refuse")
    # What a reader gives that does not decode.
    yield from _reading("invalid_episodes", "episode", "episodes with bad pictures: read")
    yield from _reading("valid_overviews", "overview", "overviews: read")
    yield from _steps("invalid_overviews", "overview", "overviews: refuse")
    yield from _reading("valid_journals", "journal", "journals: read")
    yield from _reading("invalid_journals", "journal", "journals: stop or refuse")
    yield from _reading("valid_packs", "pack", "packs: read")
    yield from _steps("invalid_packs", "pack", "packs: refuse")
    for path, case, file in _cases("invalid_packs"):
        for kind, letter in (("stream", "P"), ("recover", "K")):
            needs = frozenset({"P", letter, *_codecs(path.stem)})
            yield Check(f"packs: {kind}", path.stem, needs, (kind, file), case, kind)
    yield from _reading("valid_sets", "set", "sets: read")
    yield from _steps("invalid_sets", "set", "sets: refuse")
    yield from _steps("limits", None, "limits: refuse")
    for path, case, file in _cases("signatures"):
        is_refused = "error" in case
        letters = "RIG" + "N" * ("S-MAN-7" in (case.get("rule"), *case.get("rules", ())))
        yield Check(
            "signatures: refuse" if is_refused else "signatures: verify",
            path.stem,
            frozenset(letters),
            ("verify", file, str(path.parent / case["signature"]), case["key"]),
            case,
            "error" if is_refused else "verified",
        )
    for path in sorted((VECTORS / "canonical").glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        letters = {"container": "W", "episode": "WE", "pack": "B", "recording": "OEQ"}[case["kind"]]
        needs = frozenset(letters + _canonical_features(path.stem, case))
        group = f"write {case['kind']}s"
        yield Check(group, path.stem, needs, ("write", str(path), "OUT"), case, "written")


def _cases(folder: str) -> Iterator[tuple[Path, Told, str]]:
    for path in sorted((VECTORS / folder).glob("*.json")):
        case = json.loads(path.read_text("utf-8"))
        yield path, case, str(path.parent / case["file"])


def _reading(folder: str, kind: str, group: str) -> Iterator[Check]:
    for path, case, file in _cases(folder):
        if kind == "episode":
            if "episode" not in case:
                continue
            case.pop("error", None)  # that of decoding
        letters = _features(kind, case)
        if folder == "valid_episodes":
            letters += "H"
        is_refused = kind == "journal" and case["episode"] is None
        how = "error" if is_refused else "told"
        yield Check(group, path.stem, frozenset(letters), ("read", kind, file), case, how)


def _steps(folder: str, of: str | None, group: str) -> Iterator[Check]:
    """Steps that must fail, of one kind of files or of the kind that each vector names."""
    for path, case, file in _cases(folder):
        kind = of or str(case["kind"])
        if kind in ("set", "overview") and case["when"] == "check":
            continue  # found by a checking tool
        needs = _refusal_features(kind, path.stem, case)
        call = ("step", kind, file, str(path))
        yield Check(group, path.stem, frozenset(needs), call, case, "error")


# --- which features a vector needs


def _codecs(text: str) -> str:
    return "".join(letter for name, letter in (("zstd", "Z"), ("lz4", "L")) if name in text)


def _features(kind: str, case: Told) -> str:
    """What reading a file takes."""
    if kind == "container":
        return _container_features(case)
    if kind == "pack":
        return "P" + _codecs(json.dumps(case["records"]))
    if kind == "set":
        return "PTN"
    if kind == "overview":
        return "XUHZ"
    return ("X" if kind == "episode" else "OE") + _episode_features(case["episode"] or {})


def _container_features(case: Told) -> str:
    letters = "RI"
    for entry in case.get("entries", ()):
        letters += {"none": "", "zstd": "ZM", "lz4": "L"}[entry["codec"]]
        letters += "F" * ("filters" in entry)
    return letters + "N" * ("manifest_files" in case)


def _episode_features(told: Told) -> str:
    text = json.dumps(told)
    return "C" * ('"layout": "video"' in text) + "D" * bool(told.get("residuals"))


def _canonical_features(name: str, case: Told) -> str:
    letters = "I" * bool(case["options"].get("identity")) + "J" * ("schema" in case)
    letters += _codecs(case["options"]["compression"])
    return letters + _episode_features(case.get("episode", {})) + "D" * ("residuals" in name)


_BY_RULE: Final = {
    "S-CMP": "ZML",
    "S-SEK": "ZMS",
    "S-FLT": "ZMF",
    "S-SCH": "J",
    "S-MAN": "N",
    "S-ROL": "NV",
    "S-IDN": "I",
    "W-VID": "C",
    "W-RES": "D",
    "W-CHK": "HN",
    "W-SID": "H",
    "P-ENC": "ZL",
}


def _refusal_features(kind: str, name: str, case: Told) -> str:
    rule, when = str(case["rule"]), str(case["when"])
    letters = {"container": "R", "episode": "X", "overview": "XU", "pack": "P", "set": "PTN"}[kind]
    letters += _BY_RULE.get(rule[:5], "") + "H" * (
        kind == "episode" and name.startswith(("sidecar_", "episode_chunks_"))
    )
    letters += "V" * (when in ("verify", "check")) + "S" * (when == "range")
    return letters + _codecs(name)


# --- comparing


def _wanted(check: Check) -> Told:
    case = check.case
    if check.kind == "written":
        keys = ("identity", "journal_sha256", "sha256")
        return {key: case[key] for key in keys if key in case}
    if check.kind == "verified":
        return {key: case[key] for key in ("identity", "version")}
    kind = check.arguments[1]
    told: Told = case["episode"] if kind == "episode" else case
    left_out = {
        *("file", "files", "description", "rules", "rule", "rules_also", "error", "also", "when"),
        *("absent_keys", "canonical", "frames"),
    }
    wanted = {key: value for key, value in told.items() if key not in left_out}
    if kind in ("container", "overview"):
        wanted.pop("episode", None)
    plain: Told = _plain(wanted)
    return plain


def _plain(wanted: Any) -> Any:  # noqa: ANN401 - any JSON
    """What a vector says, as far as every reader must say the same."""
    if isinstance(wanted, list):
        return [_plain(one) for one in wanted]
    if not isinstance(wanted, dict):
        return wanted
    told = {key: _plain(value) for key, value in wanted.items()}
    if "metadata_text" in told:
        told["metadata"] = json.loads(told.pop("metadata_text"))
    if told.get("time_axis") is False:  # only the bytes count
        told = {key: told[key] for key in ("block", "hex", "inferred")}
    if told.get("layout") == "video":
        told.pop("frames", None)  # a reader need not have a decoder
    if told.get("ticks", "") is None:
        del told["ticks"]  # a reader may make them up
    return told


def _as_wanted(found: Any, wanted: Any) -> Any:  # noqa: ANN401 - any JSON
    """An answer without what the vector does not say."""
    if isinstance(wanted, list) and isinstance(found, list) and len(found) == len(wanted):
        return [_as_wanted(*pair) for pair in zip(found, wanted, strict=True)]
    if not (isinstance(wanted, dict) and isinstance(found, dict)):
        return found
    if "entries_sha256" in wanted and "entries" in found:
        lines = "".join(f"{one['name']}\t{one['sha256']}\n" for one in found["entries"])
        found = {**found, "entries_sha256": sha256(lines.encode()).hexdigest()}
    known = {key: _as_wanted(value, wanted.get(key)) for key, value in found.items()}
    may_be_more = {"ticks", "entries", "dtype", "layout", "length", "shape"}
    return {key: one for key, one in known.items() if key in wanted or key not in may_be_more}


_SAME_RULES: Final = ({"S-CMP-4", "S-CMP-5"},)
"""Rules that the same bytes can break."""


def _wrong_error(answer: Told, case: Told) -> str | None:
    code, rule = answer.get("error"), str(answer.get("rule"))
    if code is None:
        return f"is accepted; expected {case['error']}"
    also = [*case.get("also", ())]
    if case.get("when") == "stream":
        also += case["stream"].get("also", ())
    problem = f"gives {code} ({rule}); expected {case['error']} ({case['rule']})"
    if code not in (case["error"], *also):
        return problem
    if also or code == "chunk_discontinuity":
        return None  # the file breaks several rules: any may be named
    rules = {case["rule"], *case.get("rules_also", ())}
    return None if rule in rules or {rule, *rules} in _SAME_RULES else problem


def _wrong_stream(answer: Told, case: Told) -> str | None:
    wanted = case["stream"]
    codes = [wanted["error"], *wanted.get("also", ())]
    codes += case.get("also", ()) if wanted["error"] else ()
    if answer["error_code"] not in codes:
        return f"ends with {answer['error_code']}; expected {wanted['error']}"
    if "also" not in case and answer["records"] != wanted["records"]:
        return f"gives {answer['records']} records; expected {wanted['records']}"
    return None


def _difference(found: object, wanted: object, place: str = "") -> str:
    """The first place at which two answers differ."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            if found.get(key) != wanted.get(key):
                return _difference(found.get(key), wanted.get(key), f"{place}/{key}")
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if one != other:
                return _difference(one, other, f"{place}/{number}")
    return f"{place}: {str(found)[:200]}; expected {str(wanted)[:200]}"


# --- programs


class Program:
    """A conformance program that answers one call after another. A crash costs one answer."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._command = [*command, "--batch"]
        self._process: subprocess.Popen[bytes] | None = None
        self.info = self.ask(["info"])
        stated = self.info["features"]
        self.features = frozenset([*stated, *(IMPLIED[one] for one in stated if one in IMPLIED)])
        self._usual_memory = self.peak_memory

    def ask(self, arguments: Sequence[str]) -> Told:
        """The answer; `crash` says how the program failed to give one."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], SECONDS)
            line = process.stdout.readline() if ready else b""
        except BrokenPipeError:
            line = b""
        if not line:
            self.close()
            how = "ended" if ready else f"gave no answer in {SECONDS} s"
            return {"crash": f"{self.name} {how}"}
        answer: Told = json.loads(line)
        return answer

    def check(self, check: Check, folder: Path) -> str | None:
        """What is wrong with the answer to a question; None if it is right."""
        answer = self.ask(check.arguments_for(folder))
        if "crash" in answer:
            return str(answer["crash"])
        taken = self.peak_memory - self._usual_memory
        if taken > MEMORY:
            self.close()  # the next one starts anew
            return f"took {taken >> 20} MiB of memory"
        return check.problem(answer)

    @property
    def peak_memory(self) -> int:
        """The most memory that the running process had, in bytes."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text("ascii", "replace")
        lines = (line.split() for line in status.splitlines())
        return next(int(words[1]) << 10 for words in lines if words[:1] == ["VmHWM:"])

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process = None


def programs() -> dict[str, list[str]]:
    """The programs that are there, by language: Python's, and `ports/<language>/conformance/run` of the others."""
    found = {"python": [sys.executable, "-m", "tests.conformance.program"]}
    for run in sorted(PORTS.glob("*/conformance/run")):
        if os.access(run, os.X_OK):
            found[run.parents[1].name] = [str(run)]
    return found


# --- the table


class Results:
    """How many answers of each program are right, by group."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, Counter[str]]] = {}
        self.problems: list[str] = []

    def add(self, check: Check, program: Program, outcome: str) -> None:
        by_port = self._counts.setdefault(check.group, {})
        by_port.setdefault(program.name, Counter())[outcome] += 1

    def table(self, ports: Sequence[Program]) -> str:
        """The page, in Markdown."""
        lines = [
            "# Conformance",
            "",
            "Written by `make conformance`: each program reads, refuses and writes the [vectors](vectors/README.md) of its features.",
            "A cell has the number of vectors that pass; *fail* and *not supported* are stated where there are any.",
            "",
            "| Vectors | " + " | ".join(one.name for one in ports) + " |",
            "|---|" + "---:|" * len(ports),
        ]
        for group, by_port in self._counts.items():
            cells = [_cell(by_port.get(one.name, Counter())) for one in ports]
            lines.append(f"| {group} | " + " | ".join(cells) + " |")
        lines += [
            "",
            "## Features",
            "",
            "| Feature | " + " | ".join(one.name for one in ports) + " |",
        ]
        lines.append("|---|" + ":---:|" * len(ports))
        for letter, what in FEATURES.items():
            marks = ["✓" if letter in one.features else "" for one in ports]
            lines.append(f"| {what} (`{letter}`) | " + " | ".join(marks) + " |")
        return "\n".join(lines) + "\n"


def _cell(counts: Counter[str]) -> str:
    parts = [str(counts["pass"])] if counts["pass"] else []
    parts += [f"{counts[one]} {one}" for one in ("fail", "not supported") if counts[one]]
    return ", ".join(parts)


def main(words: Sequence[str] = ()) -> int:
    ports = [Program(name, command) for name, command in programs().items()]
    results = Results()
    with tempfile.TemporaryDirectory() as folder:
        for check in checks():
            for program in ports:
                title = f"{program.name}: {check.group}: {check.name}"
                if not all(word in title for word in words):
                    continue
                outcome = "not supported"
                if check.needs <= program.features:
                    problem = program.check(check, Path(folder))
                    outcome = "fail" if problem else "pass"
                    if problem:
                        results.problems.append(f"{title}: {problem}")
                results.add(check, program, outcome)
    if words:
        print(results.table(ports).partition("## Features")[0])
    else:
        (ROOT / "spec" / "CONFORMANCE.md").write_text(results.table(ports), "utf-8")
    print("\n".join(results.problems) or f"all vectors pass: {', '.join(p.name for p in ports)}")
    for program in ports:
        program.close()
    return 1 if results.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
