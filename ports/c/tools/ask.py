"""Asks a conformance program about every vector, without looking at the answers: for coverage.

python ports/c/tools/ask.py PROGRAM VECTORS
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def main(program: str, vectors: str) -> None:
    folder = Path(vectors)
    calls = []
    for path in sorted(folder.glob("*valid*/*.json")):
        case = json.loads(path.read_text("utf-8"))
        file = str(path.parent / case["file"])
        kind = "pack" if "packs" in path.parent.name else "container"
        kinds = ["episode"] if "episode" in path.parent.name else [kind]
        if "episode" in case and kind == "container":
            kinds.append("episode")
        for one in kinds:
            calls += [["read", one, file], ["step", one, file, str(path)]]
        if kind == "pack":
            calls.append(["stream", file])
    for path in sorted((folder / "canonical").glob("container_*.json")):
        calls.append(["write", str(path), "build/out.shard"])
    lines = "".join(json.dumps(call) + "\n" for call in calls)
    subprocess.run(
        [program, "--batch"], input=lines.encode(), check=True, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
