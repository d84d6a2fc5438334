"""Writes the library as two files, for programs that compile it themselves: shard-amalgamated.c and shard.h.

python ports/c/tools/amalgamate.py FOLDER

They are made, not kept: `make test-c` makes, compiles and tests them, as C and as C++, and a release has them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
INCLUDE = re.compile(r'^#include "([\w.]+)"\n', re.MULTILINE)
SOURCES = (
    *(
        "util",
        "hash",
        "sha256",
        "json",
        "json_write",
        "layout",
        "file",
        "codecs",
        "inflate",
        "seekable",
        "filters",
    ),
    *("index", "content", "reader", "metadata", "identity", "verify", "writer"),
    *("episode_facts", "episode_rows", "episode_read", "episode"),
    *("pack_layout", "messagepack", "record", "pack", "stream", "compat"),
)


def header(name: str, done: set[str]) -> str:
    """A public header with those that it includes in its place."""
    if name in done:
        return ""
    done.add(name)
    text = (HERE / "include" / name).read_text("utf-8")
    return INCLUDE.sub(lambda found: header(found[1], done), text)


def main(folder: str) -> None:
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    missing = {path.stem for path in (HERE / "src").glob("*.c")} ^ set(SOURCES)
    assert not missing, f"not in the list, or not there: {sorted(missing)}"
    (out / "shard.h").write_text(header("shard.h", set()), "utf-8")
    parts = [
        "/* All of the library in one file: ports/c/tools/amalgamate.py made it. */\n#define SHARD_COMPAT\n"
    ]
    for path in (HERE / "src" / "internal.h", *(HERE / "src" / f"{name}.c" for name in SOURCES)):
        text = path.read_text("utf-8")
        if path.name == "internal.h":
            parts.append(text)
        else:
            parts.append(f"/* ==== {path.name} ==== */\n\n{INCLUDE.sub('', text)}")
    (out / "shard-amalgamated.c").write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
