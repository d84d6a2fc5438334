"""What README and docs/languages.md show in other languages runs, and so does the example that needs three of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTS = ROOT / "ports"
GO, TYPESCRIPT = PORTS / "go", PORTS / "typescript"
RUST, C = PORTS / "rust" / "target" / "debug", PORTS / "c" / "build" / "release"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(
            (PORTS / one / "conformance" / "run").exists()
            for one in ("go", "typescript", "rust", "c")
        ),
        reason="`make ports` builds what is tested, where the tools of all languages are installed",
    ),
]


def run(*command: object, cwd: Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def blocks(page: str, language: str) -> str:
    found = re.findall(
        rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found, f"{page} has no block of {language}"
    return "\n".join(found[:1])


@pytest.fixture(params=["README.md", "docs/languages.md"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A page, whose first Python block has written an episode."""
    page = str(request.param)
    run(sys.executable, "-c", blocks(page, "python"), cwd=tmp_path)
    return page


def test_the_go_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    lines = []
    for line in blocks(page, "go").splitlines():
        lines.append(line)
        if name := re.match(r"(\w+), err :?=", line):
            lines.append(f"if err != nil {{ log.Fatal(err) }}; _ = {name[1]}")
    source = tmp_path / "main.go"
    source.write_text(
        'package main\nimport "log"\nimport "github.com/shard-format/shard/ports/go/wshard"\n'
        "func main() {\n" + "\n".join([*lines, 'log.Printf("%d values", len(values))']) + "\n}\n",
        "utf-8",
    )
    run("go", "build", "-o", tmp_path / "program", source, cwd=GO)
    done = subprocess.run(
        [tmp_path / "program"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert f"{64 * 7} values" in done.stderr


def test_the_typescript_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    packages = tmp_path / "node_modules" / "@shard-format"
    packages.mkdir(parents=True)
    os.symlink(TYPESCRIPT, packages / "core")
    source = tmp_path / "main.mjs"
    source.write_text(blocks(page, "js") + "\nconsole.log(`${values.length} values`);\n", "utf-8")
    assert f"{64 * 7} values" in run("node", source, cwd=tmp_path)


def test_the_rust_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    source = tmp_path / "main.rs"
    source.write_text(
        "fn main() -> shard_format::Result<()> {\n"
        + blocks(page, "rust")
        + '\nprintln!("{} values", values.len());\nOk(())\n}\n',
        "utf-8",
    )
    library = f"shard_format={RUST / 'libshard_format.rlib'}"
    options = ("--edition", "2024", "--extern", library, "-L", f"dependency={RUST / 'deps'}")
    run("rustc", *options, "-o", tmp_path / "program", source, cwd=tmp_path)
    assert f"{64 * 7} values" in run(tmp_path / "program", cwd=tmp_path)


def test_the_c_block_of_a_page_runs(page: str, tmp_path: Path) -> None:
    source = tmp_path / "main.c"
    source.write_text(
        '#include <stdio.h>\n#include "shard.h"\nint main(void) {\n'
        + blocks(page, "c")
        + '\nprintf("%zu values\\n", values.size / 4);\nreturn 0;\n}\n',
        "utf-8",
    )
    libraries = (C / "libshard.a", "-lzstd", "-llz4", "-lm")
    include = f"-I{PORTS / 'c' / 'include'}"
    run("cc", "-std=c11", include, source, *libraries, "-o", tmp_path / "program", cwd=tmp_path)
    assert f"{64 * 7} values" in run(tmp_path / "program", cwd=tmp_path)


def test_go_records_python_annotates_and_typescript_shows(tmp_path: Path) -> None:
    episode, picture = tmp_path / "arm_001.wshard", tmp_path / "arm_001.svg"
    said = run("go", "run", "./examples/record", episode, cwd=GO)
    assert "recorded 600 steps" in said
    recorded = episode.read_bytes()
    said = run(
        sys.executable, "-W", "error", ROOT / "examples" / "annotate.py", episode, cwd=tmp_path
    )
    mean = re.search(r"mean error ([\d.]+)", said)
    assert mean is not None
    assert episode.read_bytes() == recorded
    said = run("node", "examples/show.mjs", episode, picture, cwd=TYPESCRIPT)
    assert f"arm_001: 600 steps, mean error {mean[1]}" in said
    drawn = picture.read_text("utf-8")
    assert drawn.count("<polyline") == 6
    assert drawn.count("<polygon") == 3
    assert (
        said.replace(str(picture), "../../arm_001.svg") in (ROOT / "docs/languages.md").read_text()
    )
