"""Set files: a set knows its shards, opens with one read, and is made of parts all at once."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
import shardpack.dataset
from shard_cli.main import main
from shard_cli.programs import SHARDPACK
from shard_format import Limits, Manifest, Role, ShardWriter, signing
from shard_format.errors import (
    BadMetadata,
    DuplicateName,
    IdentityMismatch,
    InvalidArgument,
    LimitExceeded,
    MissingFile,
    ReferenceMismatch,
    ShardError,
    UnsafePath,
)
from shard_format.manifest import FileReference
from shard_train import EpisodeDataset, SampleDataset
from shard_train.packed_episodes import pack_episodes
from shardpack import SetLabel, ShardSet, ShardWriterSet
from shardpack.convert import from_image_folder, from_mds, from_table, from_tar, to_tar
from tests.shard_format.faults import killed_at
from tests.shard_format.test_remote import Server
from wshard import Episode, save_wshard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATTERN = "s-%03d.shardpack"
SET_FILE = "s.shardpack-set"
MDS = Path(__file__).parent / "data" / "mds" / "zstd"


def write(folder: Path, count: int = 23, word: str = "k", **options: Any) -> Path:  # noqa: ANN401 - the writer's
    """A set with five records in each shard; returns its set file."""
    with ShardWriterSet(folder / PATTERN, max_records=5, **options) as writer:
        for number in range(count):
            writer.write(
                f"{word}{number}", {"txt": f"{word}{number}" * 3, "npy": np.arange(number)}
            )
    return folder / SET_FILE


def keys(path: Path) -> list[str]:
    """All keys, after reading the records in order and one by one."""
    with shardpack.open(path) as dataset:
        found = list(dataset.keys())
        records = [dataset[number] for number in range(len(dataset))]
        assert [record["txt"].data for record in records] == [key.encode() * 3 for key in found]
        return found


# --- what it says


def test_the_set_file_lists_the_shards_with_their_sizes_counts_hashes_and_schema(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, 12, metadata={"by": "me"}, created="2024-01-01T00:00:00Z")
    found = ShardSet.read(path)
    assert found.names == [PATTERN % number for number in range(3)]
    assert [footer.record_count for footer in found.footers] == [5, 5, 2]
    assert {name: value for name, value in found.fields.items() if name != "schema"} == {
        "format": "shardpack-set",
        "version": 1,
        "records": 12,
        "name": PATTERN,
        "created": "2024-01-01T00:00:00Z",
        "revision": "2024-01-01T00:00:00Z",
        "user": {"by": "me"},
    }
    assert found.fields["schema"] == {
        "npy": {"content_type": "application/x-npy", "records": 12},
        "txt": {"content_type": "text/plain", "records": 12},
    }
    for reference in found.manifest.files:
        # As if the finished file had been hashed.
        expected = FileReference.to_file(tmp_path / reference.uri, relative_to=tmp_path)
        assert (reference.uri, reference.sha256, reference.size) == (
            *(expected.uri, expected.sha256, expected.size),
        )


def test_the_same_records_give_the_same_set_file(tmp_path: Path) -> None:
    first, second = (
        write(tmp_path / name, created="2024-01-01T00:00:00Z").read_bytes() for name in "ab"
    )
    assert first == second


@pytest.mark.parametrize(
    ("output", "first", "name"),
    [
        ("train-%06d.shardpack", 0, "train.shardpack-set"),
        ("train_%d.shardpack", 0, "train.shardpack-set"),
        ("%06d.shardpack", 0, "set.shardpack-set"),
        ("a.%03d.b.shardpack", 0, "a.b.shardpack-set"),
        ("50%%-%d.shardpack", 0, "50%.shardpack-set"),
        ("train-%06d.shardpack", 100, "train-000100.shardpack-set"),
        ("x-%d.pack", 0, "x.pack.shardpack-set"),
    ],
)
def test_the_set_file_has_the_name_of_the_set_without_the_number(
    tmp_path: Path, output: str, first: int, name: str
) -> None:
    with ShardWriterSet(tmp_path / output, first=first) as writer:
        writer.write("a", {})
    assert {path.name for path in tmp_path.iterdir()} == {output % first, name}
    assert len(shardpack.open(tmp_path / name)) == 1


def test_two_sets_do_not_share_a_set_file(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InvalidArgument, match="another set is in the way"):
        ShardWriterSet(tmp_path / "s_%03d.shardpack")
    assert len(keys(tmp_path / SET_FILE)) == 23


def test_a_set_that_would_have_too_many_shards_ends_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardpack.sets.MOST_SHARDS", 3)
    with pytest.raises(LimitExceeded, match=r"at most 3 shards.*max_records"):
        write(tmp_path, 23)
    # What is complete stays.
    done = shardpack.merge(tmp_path, tmp_path / "larger-%03d.shardpack")
    assert done.records == len(keys(tmp_path / "larger.shardpack-set")) == 15


# --- opening


def test_opening_takes_one_read_and_no_shard_is_opened_before_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = str(tmp_path / "t-%04d.shardpack")
    with ShardWriterSet(pattern) as writer:
        for number in range(2):
            writer.write(f"k{number}", {"txt": str(number)})
    for number in range(1, 1000):  # writing a thousand would take seconds
        os.link(pattern % 0, pattern % number)
    ShardWriterSet(pattern, append=True).close()
    opened: list[str] = []
    listen = True

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listen and event == "open" and str(tmp_path) in str(arguments[0]):
            opened.append(os.path.basename(str(arguments[0])))

    sys.addaudithook(hear)
    monkeypatch.setattr(shardpack.dataset, "read_footer", None)  # no footer is read, either
    dataset = shardpack.open(tmp_path / "t.shardpack-set")
    assert (len(dataset), len(dataset.shards)) == (2000, 1000)
    assert dataset.metadata["schema"]["txt"]["records"] == 2000
    assert opened == ["t.shardpack-set"]
    assert dataset[1501].key == "k1"
    assert [record.key for record in dataset.take([7, 1500])] == ["k1", "k0"]
    assert SampleDataset(dataset).batch([6, 7])["txt"] == ["0", "1"]
    assert sorted(opened[1:]) == ["t-0003.shardpack", "t-0750.shardpack"]
    listen = False


def test_a_dataset_from_the_set_file_is_the_one_from_the_pattern(tmp_path: Path) -> None:
    path = write(tmp_path)
    with shardpack.open(path) as ours, shardpack.open(tmp_path / "s-*.shardpack") as theirs:
        assert list(ours.keys()) == list(theirs.keys()) == [f"k{number}" for number in range(23)]
        assert ours["k17"].read_all() == theirs["k17"].read_all()
        assert [record.key for record in ours[3:9]] == [record.key for record in theirs[3:9]]
        assert (ours[-1].key, "k3" in ours, "x" in ours) == ("k22", True, False)
        assert list(ours.get_index()) == list(theirs.get_index())
        assert ours.footers() == theirs.footers()
        assert ours.metadata["user"] == theirs.metadata["user"]
        assert SampleDataset(ours).fingerprint == SampleDataset(theirs).fingerprint
        assert len(shardpack.open([path, tmp_path / (PATTERN % 0)])) == 28
    # Patterns and folders mean shards, not what is beside them.
    for pattern in ("s*", "s-*", "", "*.shardpack-set"):
        assert len(shardpack.open(tmp_path / pattern)) == 23


def test_a_worker_gets_what_the_set_file_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = shardpack.open(write(tmp_path).name)
    sent = pickle.dumps(dataset)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    os.remove(tmp_path / SET_FILE)  # it is not read again
    copy = pickle.loads(sent)
    assert copy.metadata == dataset.metadata
    assert list(copy.keys()) == [f"k{number}" for number in range(23)]


def test_a_set_behind_a_url(tmp_path: Path) -> None:
    path = write(tmp_path)
    files = {f"/a/{one.name}": one.read_bytes() for one in tmp_path.iterdir()}
    server = Server()
    server.files = files
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        with shardpack.open(server.url(f"/a/{path.name}?token=1")) as dataset:
            assert len(dataset) == 23
            assert server.counted() == 1
            assert dataset["k20"]["txt"].data == b"k20" * 3
        assert main(["verify", server.url(f"/a/{path.name}")], SHARDPACK) == 0
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- shards that do not fit


def test_a_missing_a_foreign_and_a_replaced_shard_are_named_when_they_are_read(
    tmp_path: Path,
) -> None:
    path = write(tmp_path)
    dataset = shardpack.open(path)
    assert dataset[0].key == "k0"
    os.replace(tmp_path / (PATTERN % 2), tmp_path / "away")
    with pytest.raises(MissingFile, match=r"s-002\.shardpack.*s\.shardpack-set"):
        _ = dataset[12]
    (tmp_path / (PATTERN % 2)).write_bytes((tmp_path / (PATTERN % 1)).read_bytes())
    with pytest.raises(ReferenceMismatch, match=r"s-002\.shardpack.*not the shard"):
        _ = dataset[12]
    os.replace(tmp_path / "away", tmp_path / (PATTERN % 2))
    write(tmp_path, 23, "n", overwrite=True)
    # One half of the old set and one of the new one never meet: sizes and counts are the same here.
    assert dataset[1].key == "k1"
    with pytest.raises(ReferenceMismatch, match="open it again"):
        _ = dataset[12]
    assert keys(path)[12] == "n12"


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    path = write(inside)
    os.replace(inside / (PATTERN % 1), tmp_path / "outside.shardpack")
    os.symlink(tmp_path / "outside.shardpack", inside / (PATTERN % 1))
    dataset = shardpack.open(path)
    assert dataset[0].key == "k0"
    with pytest.raises(UnsafePath, match="outside"):
        _ = dataset[5]


def test_a_set_file_of_a_million_shards_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    for count, rule in ((40_000, "P-SET-5"), (400_000, "S-SCH-8"), (1_400_000, "S-SCH-7")):
        rows = b'{"uri":"a"},' * count + b'{"uri":"b"}'
        if count == 40_000:
            rows = b",".join(b'{"uri":"%d"}' % number for number in range(count))
        text = b'{"files":[%s],"format":"shardpack-set","version":1}' % rows
        with ShardWriter(tmp_path / SET_FILE, role=Role.MANIFEST, fsync=False) as writer:
            writer.write_entry("meta/manifest", text, compression="zstd:1")
        with pytest.raises(LimitExceeded, match=rule):
            shardpack.open(tmp_path / SET_FILE)
    with pytest.raises(LimitExceeded):
        shardpack.open(write(tmp_path / "x"), limits=Limits(max_json_bytes=1000))


def test_a_set_file_can_be_signed_and_covers_every_shard(tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = ed25519.Ed25519PrivateKey.generate()
    path = write(tmp_path)
    signature = signing.sign(path, key)
    assert signing.verify(path, signature, key.public_key()).digest == signature.identity
    # Continuing without anything new keeps the file, and so its signature.
    write(tmp_path, 0, append=True)
    signing.verify(path, signature, key.public_key())
    write(tmp_path, 24, overwrite=True)
    with pytest.raises(IdentityMismatch):
        signing.verify(path, signature, key.public_key())


# --- every writer


def writers(folder: Path) -> Iterator[tuple[str, Callable[..., object]]]:
    """Every tool that writes a set, each writing the records r0 to r6, or as many others."""
    source = folder / "source.shardpack"
    with shardpack.ShardPackWriter(source) as writer:
        for number in range(7):
            writer.write(f"r{number}", {"txt": "x"})
    to_tar(source, folder / "source.tar")
    table = pytest.importorskip("pyarrow").table({"id": [f"r{n}" for n in range(7)]})
    pictures = folder / "pictures"
    for number in range(7):
        (pictures / "cat").mkdir(parents=True, exist_ok=True)
        image = pytest.importorskip("PIL.Image").new("RGB", (8, 8), (number, 0, 0))
        image.save(pictures / "cat" / f"r{number}.png")
    target = folder / "out" / PATTERN

    def on(function: Callable[..., object], *arguments: Any) -> Callable[..., object]:  # noqa: ANN401 - of the tool
        return lambda **options: function(*arguments, **options)

    yield "merge", on(shardpack.merge, source, target)
    yield "filter", on(shardpack.filter, source, target, lambda _: True)
    yield "sort", on(shardpack.sort, source, target)
    yield "sample", on(shardpack.sample, source, target, 1.0)
    yield "split", on(shardpack.split, source, {str(target): 1.0})
    yield "pack", on(shardpack.pack, range(7), target, lambda n: (f"r{n}", {"txt": "x"}))
    yield "from_tar", on(from_tar, folder / "source.tar", target)
    yield "from_table", lambda **options: from_table(table, target, key="id", **options)
    yield "from_images", on(from_image_folder, pictures, target)
    yield "from_mds", on(from_mds, MDS, target)
    for number in range(7):
        episode = Episode(f"r{number}")
        episode.observations["state"] = np.zeros((8, 2), np.float32)
        save_wshard(episode, folder / "episodes" / f"r{number}.wshard", fsync=False)
    yield "pack_episodes", on(pack_episodes, folder / "episodes", target)


def test_every_writer_writes_a_set_file_and_replaces_a_set_only_as_a_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name, tool in writers(tmp_path):
        path = write(out, 12, "old", overwrite=True)
        old = {one.name: one.read_bytes() for one in out.iterdir()}

        def fail(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("shardpack.sets.SetWriter.write", fail)  # all new shards are complete
            with pytest.raises(KeyboardInterrupt):
                tool(overwrite=True, max_records=2)
        assert {one.name: one.read_bytes() for one in out.iterdir()} == old, name
        with pytest.raises(InvalidArgument, match="already"):
            tool()
        tool(overwrite=True, max_records=2)
        with shardpack.open(path) as ours, shardpack.open(out) as theirs:
            assert list(ours.keys()) == list(theirs.keys()), name
            assert (len(ours), len(ours.shards)) == (7, 4) if name != "from_mds" else len(ours), (
                name
            )
        assert not list(ShardSet.read(path).extra_shards())


def test_episodes_of_a_set_are_found_through_its_set_file(tmp_path: Path) -> None:
    for name, tool in writers(tmp_path):
        if name == "pack_episodes":
            tool(max_records=2)
    path = tmp_path / "out" / SET_FILE
    for files in (path, path.parent, path.parent / "s*"):
        dataset = EpisodeDataset(files, window=4)
        assert len(dataset) == 7 * 5
        dataset.close()


def test_a_set_of_an_earlier_release_gets_a_set_file_when_it_is_continued(tmp_path: Path) -> None:
    path = write(tmp_path, 12)
    listed = ShardSet.read(path).manifest.files
    path.unlink()
    write(tmp_path, 0, append=True)
    assert ShardSet.read(path).manifest.files == listed
    # A damaged one is replaced, too.
    path.write_bytes(b"damaged")
    write(tmp_path, 0, append=True)
    assert ShardSet.read(path).manifest.files == listed


# --- parts


def write_part(folder: Path, part: int, parts: int = 3, revision: str = "r", **more: Any) -> None:  # noqa: ANN401 - the writer's
    label = SetLabel(revision, part, parts)
    with ShardWriterSet(folder / PATTERN, max_records=2, label=label, **more) as writer:
        for number in range(5 * part, 5 * part + (0 if part == 2 else 5)):
            writer.write(f"k{number}", {"txt": f"k{number}" * 3})


WHOLE = [f"k{number}" for number in (*range(5, 10), *range(15, 20))]


def test_parts_become_a_set_in_their_order_and_nothing_is_seen_before(tmp_path: Path) -> None:
    for part in (3, 1):
        write_part(tmp_path, part, created=f"2024-01-0{part}T00:00:00Z")
        with pytest.raises(InvalidArgument, match=r"parts are missing or not complete: .*2"):
            shardpack.commit(tmp_path / PATTERN)
        with pytest.raises(InvalidArgument, match="no such files"):
            shardpack.open(tmp_path)
    write_part(tmp_path, 2, created="2024-01-04T00:00:00Z")
    done = shardpack.commit(tmp_path / PATTERN)
    assert done.paths == [str(tmp_path / (PATTERN % number)) for number in range(6)]
    assert done.records == 10
    assert keys(tmp_path / SET_FILE) == keys(tmp_path) == WHOLE
    assert len(list(tmp_path.iterdir())) == 7  # the parts are gone
    fields = ShardSet.read(tmp_path / SET_FILE).fields
    assert (fields["revision"], fields["created"]) == ("r", "2024-01-01T00:00:00Z")
    assert "part" not in fields


def test_parts_that_do_not_belong_together_are_not_committed(tmp_path: Path) -> None:
    for part in (1, 2, 3):
        write_part(tmp_path, part)
    parts = tmp_path / "s.shardpack-parts"

    def refused(match: str, kind: type[ShardError] = InvalidArgument) -> None:
        with pytest.raises(kind, match=match):
            shardpack.commit(tmp_path / PATTERN)
        assert not list(tmp_path.glob("*.shardpack"))

    write_part(tmp_path, 2, revision="yesterday", overwrite=True)
    refused("'revision' differs.*yesterday|'revision' differs.*'r'")
    write_part(tmp_path, 2, overwrite=True, metadata={"a": 1})
    refused("'user' differs")
    write_part(tmp_path, 2, overwrite=True)
    write_part(tmp_path, 1, 4)
    refused("'parts' differs")
    for path in parts.glob("1-of-4*"):
        path.unlink()
    shard = parts / "3-of-3-000001.shardpack"
    data = shard.read_bytes()
    shard.unlink()
    refused("missing", MissingFile)
    shard.write_bytes((parts / "1-of-3-000001.shardpack").read_bytes())
    refused("not the shard", ReferenceMismatch)
    shard.write_bytes(data)
    with ShardWriterSet(tmp_path / PATTERN, label=SetLabel("r", 2, 3), overwrite=True) as writer:
        writer.write("k17", {})
    refused("'k17' is in another shard", DuplicateName)
    write_part(tmp_path, 2, overwrite=True)
    write(tmp_path / "other")
    os.replace(tmp_path / "other" / (PATTERN % 0), tmp_path / (PATTERN % 0))
    with pytest.raises(InvalidArgument, match="overwrite=True"):
        shardpack.commit(tmp_path / PATTERN)
    (tmp_path / (PATTERN % 0)).unlink()
    shardpack.commit(tmp_path / PATTERN)
    assert keys(tmp_path / SET_FILE) == WHOLE


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_commit_that_is_killed_at_any_step_leaves_the_old_set_or_the_new_one(
    tmp_path: Path, stride: int
) -> None:
    path, new = tmp_path / SET_FILE, WHOLE[:5]

    def prepare() -> None:
        write(tmp_path, 6, "old", overwrite=True, fsync=False)
        for part in (1, 2):
            write_part(tmp_path, part, 2, fsync=False)

    prepare()
    call, found = 0, []
    while killed_at(call, lambda: shardpack.commit(tmp_path / PATTERN, overwrite=True)):
        there = keys(path)
        assert there == keys(tmp_path)
        assert there in ([f"old{number}" for number in range(6)], new)
        found.append(there[0][:1])
        if there == new:
            # Opening the set has finished the work.
            assert not (tmp_path / "s.shardpack-parts").exists()
            prepare()
        call += stride
    assert keys(path) == new
    assert found == sorted(found, reverse=True)
    assert found.count("o") > 3 / stride
    assert found.count("k") > 5 / stride
    assert {one.name[:2] for one in tmp_path.iterdir()} == {"s-", "s."}


def test_a_part_needs_a_revision_and_a_number_in_range(tmp_path: Path) -> None:
    for label in (SetLabel(None, 1, 2), SetLabel("r", 3, 2), SetLabel("r", 0, 2), SetLabel("")):
        with pytest.raises(InvalidArgument):
            ShardWriterSet(tmp_path / PATTERN, label=label)
    with pytest.raises(InvalidArgument, match="found no parts"):
        shardpack.commit(tmp_path / PATTERN)
    with pytest.raises(BadMetadata):
        ShardSet.of(Manifest([]), "x")
