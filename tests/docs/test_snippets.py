"""Every Python block in README and docs runs, page by page, in an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Need the libraries on the other side, or a server: tests/bridges/test_docs.py, tests/convert/test_migrate.py,
# tests/stores/test_docs.py, tests/wshard/test_deepdata_server.py and tests/ray/test_command_line.py run them.
ELSEWHERE = {"bridges.md", "many-machines.md", "migrate.md", "remote.md", "search.md"}
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a page says that its blocks print.
PRINTED = {
    "guide.md": (
        "['signal/joint_pos', 'notes', 'log']",
        "entry_not_found run.shard: no entry 'note'; did you mean 'notes'?",
    )
}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name
)
def test_the_python_blocks_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    if page.name == "video.md":
        pytest.importorskip("av", reason="decoding and encoding video needs PyAV")
    blocks = BLOCK.findall(page.read_text("utf-8"))
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks), "utf-8")
    result = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for line in PRINTED.get(page.name, ()):
        assert line in result.stdout


def test_readme_and_guide_have_blocks_to_run() -> None:
    for name in ("README.md", "docs/guide.md"):
        assert BLOCK.search((ROOT / name).read_text("utf-8")), name


@pytest.mark.parametrize(
    "page", [*PAGES, *(ROOT / "spec").glob("*.md"), *ROOT.glob("*.md")], ids=lambda page: page.name
)
def test_links_to_files_of_the_repository_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_vector_that_the_security_page_names_exists() -> None:
    rows = re.findall(r"\| `([a-z0-9_*]+)` \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert rows
    for pattern in rows:
        assert list((ROOT / "spec" / "vectors").glob(f"*valid*/{pattern}.json")), pattern
