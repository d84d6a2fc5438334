"""Which modules open paths for themselves. All others use helpers that never wait for a pipe."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.architecture.source import nodes_of

SOURCE = Path(__file__).parents[2] / "src"
# Each with its reason.
ALLOWED = {
    "shard_format/sources.py": "the helpers for reading",
    "shard_format/atomic.py": "new files, folders and locks",
    "shard_format/safe_paths.py": "folders",
    "shard_format/disk_cache.py": "opens for writing, and refuses what is not a file",
    "shardpack/_switch.py": "a journal, opened without waiting",
    "wshard/_folders.py": "new files",
    "wshard/_journal.py": "opens for writing, and refuses what is not a file",
    "wshard/replay/_latents.py": "opens for writing, and refuses what is not a file",
    "wshard/plot/_figure.py": "opens for writing",
    "wshard/viewer/_page.py": "a file of the package",
    "wshard/viewer/_widget.py": "a file of the package",
    "wshard/convert/_work.py": "its journal, and syncs new files",
    "wshard/convert/_mcap.py": "new files",
    "wshard/convert/_minari_writer.py": "new files",
    "wshard/convert/_rlds_writer.py": "new files",
    "wshard/convert/_rosbag.py": "new files",
    "wshard/convert/_tensordict.py": "maps a file, and refuses before what is not a file",
    # A user may give a pipe by hand, as the shell's <(…) is one.
    "shardpack/convert/_tar.py": "reads from start to end",
    "shardpack/streaming.py": "reads from start to end",
    "shard_cli/commands/convert.py": "reads from start to end",
    "shard_cli/commands/create.py": "reads from start to end",
    "shard_cli/files.py": "reads from start to end",
    "shard_cli/main.py": "the null device",
}


def opens_paths(path: Path) -> bool:
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            if call in ("open", "io.open", "os.open", "np.load", "np.fromfile", "np.memmap"):
                return True
            if call.endswith((".read_bytes", ".read_text")):
                return True
    return False


def test_only_modules_with_a_reason_open_paths() -> None:
    found = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if opens_paths(path)
    }
    assert found == ALLOWED.keys()
