"""Writers that die, and two processes at once: an episode has the old lanes or the new ones, and nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shard_cli.main import main
from shard_cli.programs import PROGRAMS
from shard_format.errors import InvalidArgument
from tests.shard_format.faults import LOOKS, REFUSED, Child, killed_at
from tests.shard_format.support import listing
from tests.wshard.support import save
from wshard import Episode, add_lane, compact, edit, load_wshard, remove_lane, save_wshard
from wshard.types import SidecarWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

T = 3
STATE = np.arange(T, dtype=np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An episode with a lane, a label lane and edited metadata."""
    path = tmp_path / "first" / "ep.wshard"
    path.parent.mkdir()
    save(Episode("ep", observations={"state": STATE}, metadata={"task": "cup"}), path)
    add_lane(path, "omen/state/v2", STATE * 2, fsync=False)
    add_lane(
        path, {"label/phase": [(0, 1, "reach")], "signal/x": STATE}, name="labels", fsync=False
    )
    edit(path, metadata={"note": "x"}, fsync=False)
    return path


def facts(path: Path) -> dict[str, Any]:
    """What an episode holds. A sidecar that does not fit is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", SidecarWarning)
        with load_wshard(path) as ep:
            assert ep.observations["state"].data.tolist() == STATE.tolist()
            assert ep.observations["x"].data.tolist() == STATE.tolist()
            omens = {name: channel.data.tolist() for name, channel in ep.omens["state"].items()}
            labels = {name: [item.text for item in lane] for name, lane in ep.labels.items()}
            return {"metadata": ep.metadata, "omens": omens, "labels": labels}


def save_over(path: Path) -> None:
    with load_wshard(path, sidecars=True) as ep:
        ep.metadata["success"] = True
        save_wshard(ep, path, fsync=False)


def remove_v2(path: Path) -> None:
    with contextlib.suppress(InvalidArgument):  # compacted before: it is in the episode's own file
        remove_lane(path, "omen/state/v2", fsync=False)


WRITERS: dict[str, Callable[[Path], object]] = {
    "compact": lambda path: compact(path, fsync=False),
    "add_lane": lambda path: add_lane(path, "omen/state/v3", STATE * 3, fsync=False),
    "remove_lane": remove_v2,
    "edit": lambda path: edit(path, {"note": "y"}, fsync=False),
    "save": save_over,
}


def test_a_kill_at_any_call_leaves_the_old_lanes_or_the_new_ones(path: Path) -> None:
    """Of all writers, the one that takes most steps; `tests/faults` kills the others at every call, too."""
    write = WRITERS["compact"]
    # What is folded in is not what the sidecars of the labels hold.
    add_lane(path, "label/gone", [(0, 1, "gone")], fsync=False)
    edit(path, labels={"phase": [(0, 2, "grasp")], "gone": None}, fsync=False)
    old = facts(path)
    again = path.parent.with_name("again") / path.name
    shutil.copytree(path.parent, again.parent)
    write(again)
    new = facts(again)
    shutil.rmtree(again.parent)
    found, call, is_killed = [], 0, True
    while is_killed:
        shutil.copytree(path.parent, again.parent)
        is_killed = killed_at(call, lambda: write(again))
        found.append(facts(again))
        assert found[-1] in (old, new), call
        # The next writer goes on, and removes what was left.
        add_lane(again, "omen/state/v4", STATE, fsync=False)
        compact(again, fsync=False)
        assert facts(again)["omens"].pop("v4") == STATE.tolist()
        left = [file for file in listing(again.parent) if not file.startswith(".")]
        assert left == [path.name], call
        shutil.rmtree(again.parent)
        call += 1
    assert call > 3
    assert (found[0], found[-1]) == (old, new)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pair if pair == ("edit", "save") else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in itertools.product(WRITERS, repeat=2)
        if pair not in (("add_lane", "add_lane"), ("remove_lane", "remove_lane"))
    ],
)
def test_two_writers_lose_nothing_wherever_the_first_is_paused(
    path: Path, first: str, second: str
) -> None:
    call, state = 0, "paused"
    again = path.parent.with_name("again") / path.name
    while state == "paused":
        shutil.copytree(path.parent, again.parent)
        one = Child(lambda: WRITERS[first](again), call, "pause", ("open", "replace", "unlink"))
        state = one.stopped()
        two = Child(lambda: WRITERS[second](again))
        if state == "paused":
            two.stopped()  # it waits for the first one, or is done
            one.go()
        ends = [(first, one.end()), (second, two.end())]
        # Only an episode that was loaded before another writer came is not saved over its change.
        assert {end for name, end in ends} <= {0, REFUSED}, (call, ends)
        assert all(name == "save" for name, end in ends if end), (call, ends)
        done = {name for name, end in ends if not end}
        found = facts(again)
        assert ("v3" in found["omens"]) == ("add_lane" in done), call
        if "compact" not in done:
            assert ("v2" in found["omens"]) == ("remove_lane" not in done), call
        assert found["metadata"]["note"] == ("y" if "edit" in done else "x"), call
        assert ("success" in found["metadata"]) == ("save" in done), call
        assert found["labels"] == {"phase": ["reach"]}, call
        assert not list(again.parent.glob("*~"))
        shutil.rmtree(again.parent)
        call += 1
    assert call > 10


@pytest.mark.parametrize("name", WRITERS)
def test_a_reader_that_was_overtaken_by_a_writer_looks_again(path: Path, name: str) -> None:
    old = facts(path)
    again = path.parent.with_name("again") / path.name
    told = path.with_name("told.txt")
    call, state = 0, "paused"
    while state == "paused":
        shutil.copytree(path.parent, again.parent)
        reader = Child(lambda: told.write_text(repr(facts(again))), call, "pause", LOOKS)
        state = reader.stopped()
        WRITERS[name](again)
        if state == "paused":
            reader.go()
        assert reader.end() == 0, call
        assert told.read_text() in (repr(old), repr(facts(again))), call
        shutil.rmtree(again.parent)
        call += 1
    assert call > 7


@pytest.mark.parametrize("program", ["shard", "wshard"])
def test_repack_in_place_waits_for_other_writers(path: Path, program: str) -> None:
    (tool,) = (each for each in PROGRAMS if each.name == program)
    first = Child(lambda: WRITERS["compact"](path), 12, "pause")
    assert first.stopped() == "paused"

    def repack() -> None:
        output = [str(path)] if program == "shard" else ["-o", str(path)]
        assert main(["repack", str(path), *output, "--force", "--quiet"], tool) == 0

    second = Child(repack)
    assert second.stopped() == "waits"
    first.go()
    assert (first.end(), second.end()) == (0, 0)
    assert "v2" in facts(path)["omens"]


class TestSavingWhatWasLoaded:
    """An episode in memory, and a file that goes on without it."""

    def test_it_is_not_saved_over_a_change_that_it_does_not_have(self, path: Path) -> None:
        with load_wshard(path) as ep:
            ep.metadata["success"] = True
            add_lane(path, "omen/state/v3", STATE, fsync=False)
            compact(path, fsync=False)
            with pytest.raises(InvalidArgument, match=r"changed on disk.*load it again"):
                save_wshard(ep, path, fsync=False)
            save_wshard(ep, path.with_name("other.wshard"), fsync=False)
        assert {"v2", "v3"} == facts(path)["omens"].keys()

    @pytest.mark.parametrize("change", ["edit", "remove_lane"])
    def test_nor_over_an_edit_or_a_removal(self, path: Path, change: str) -> None:
        with load_wshard(path) as ep:
            WRITERS[change](path)
            now = facts(path)
            with pytest.raises(InvalidArgument, match="changed on disk"):
                save_wshard(ep, path, fsync=False)
        assert facts(path) == now

    def test_it_is_saved_as_often_as_you_like(self, path: Path) -> None:
        with load_wshard(path) as ep:
            for number in range(3):
                ep.metadata["number"] = number
                ep.labels["added"] = [(0, 1, "added")]
                save_wshard(ep, path, fsync=False)
                del ep.labels["added"]
                save_wshard(ep, path, fsync=False)
        edit(path, {"note": "z"}, fsync=False)
        with load_wshard(path) as ep:
            save_wshard(ep, path, fsync=False)
            edit(path, {"later": 1}, fsync=False)
            ep.metadata["number"] = 7
            save_wshard(ep, path, fsync=False)
        metadata = facts(path)["metadata"]
        assert (metadata["number"], metadata["note"], metadata["later"]) == (7, "z", 1)

    def test_its_permissions_and_links_stay(self, path: Path) -> None:
        path.chmod(0o640)
        link = path.with_name("link.wshard")
        link.symlink_to(path.name)
        shutil.copytree(f"{path}.lanes", f"{link}.lanes")
        save_over(link)
        assert link.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o640
        assert facts(link)["metadata"]["success"] is True


def test_an_episode_that_an_older_compact_left_behind_opens_again(path: Path) -> None:
    """Its sidecars are bound to the file before."""
    before = path.with_name("before")
    shutil.copytree(f"{path}.lanes", before)
    compact(path, fsync=False)
    shutil.copytree(before, f"{path}.lanes")
    (path.with_name("ep.wshard.lanes") / "meta.edit.wshard").unlink()
    assert facts(path)["omens"] == {"v2": (STATE * 2).tolist()}
    add_lane(path, "omen/state/v3", STATE, fsync=False)
    assert listing(path.with_name("ep.wshard.lanes")) == ["omen.state.v3.wshard"]
