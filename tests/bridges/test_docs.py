"""Every Python block of docs/bridges.md runs, from top to bottom, in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.docs.test_snippets import BLOCK, ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_python_blocks_of_the_page_run_from_top_to_bottom(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "bridges.md").read_text("utf-8"))
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), "utf-8")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:'set_vital' is deprecated", str(script)],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
