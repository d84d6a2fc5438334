"""The same calls against every server: what one of them takes for granted, another refuses."""

from __future__ import annotations

import base64
import json
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import shardpack
from shard_format import ShardReader, ShardWriter
from shard_format.errors import AccessDenied, FileMissing, FileThere
from shard_format.remote import delete_url, list_url, open_url, upload
from shardpack import ShardWriterSet
from tests.shard_format.support import noise
from tests.stores.fault_proxy import FaultProxy, after
from wshard import Episode, find, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket

STORES = ["moto", "google", "versitygw", "azurite"]
# Three parts.
LARGE = noise(17 << 20, seed=8)


def through(bucket: Bucket, proxy: FaultProxy) -> dict[str, Any]:
    """The options of a bucket whose server is asked through a proxy."""
    text = json.dumps(bucket.options).replace(bucket.server, proxy.url)
    options: dict[str, Any] = json.loads(text)
    return options


@pytest.fixture(params=[*STORES, "nginx"])
def served(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, dict[str, Any], FaultProxy]]:
    """The URL of a container of 400 KB, storage options, and the proxy in front of its server."""
    path = tmp_path / "a.shard"
    with ShardWriter(path, fsync=False) as writer:
        for number in range(4):
            writer.write_entry(f"e/{number}", noise(100_000, number))
    if request.param == "nginx":
        url, folder = request.getfixturevalue("nginx")
        (folder / "a.shard").write_bytes(path.read_bytes())
        with FaultProxy(url) as proxy:
            yield f"{proxy.url}/a.shard", {}, proxy
        return
    bucket: Bucket = request.getfixturevalue(request.param)
    with FaultProxy(bucket.server) as proxy:
        options = through(bucket, proxy)
        yield bucket.put("folder/a.shard", path.read_bytes()), options, proxy


def test_an_entry_takes_one_request_and_its_bytes(
    served: tuple[str, dict[str, Any], FaultProxy],
) -> None:
    url, options, proxy = served
    with ShardReader(url, storage_options=options) as reader:
        assert (proxy.counted(), proxy.bytes_sent) == (1, 1 << 16)
        assert reader.read_entry("e/3") == noise(100_000, 3)
        assert (proxy.counted(), proxy.bytes_sent) == (1, (1 << 16) + 100_000)


def test_ranges_far_apart_are_asked_for_at_once(
    served: tuple[str, dict[str, Any], FaultProxy],
) -> None:
    url, options, proxy = served
    source = open_url(url, options)
    meeting = threading.Barrier(3, timeout=20)
    proxy.faults.extend([after(meeting.wait)] * 3)
    wanted = [(350_000, 9), (150_000, 9), (250_000, 9)]
    assert source.read_ranges(wanted) == [source.read_at(*each) for each in wanted]  # type: ignore[attr-defined]
    assert proxy.most_at_once == 3


@pytest.fixture(params=STORES)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


def test_what_is_uploaded_is_listed_read_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    names = ["b/1", "b/2 ü+%", "b/10", "b/c/1"]
    for name in names:
        path.write_bytes(name.encode())
        upload(str(path), f"{bucket.root}/{name.replace('%', '%25')}", bucket.options)
    found = list_url(f"{bucket.root}/b", bucket.options)
    assert len(found) == len(names)
    for one in found:
        source = open_url(one.url, bucket.options)
        assert source.read_at(0, source.size()).decode() in names
        delete_url(one.url, bucket.options)
    assert list_url(f"{bucket.root}/b", bucket.options) == []
    delete_url(f"{bucket.root}/b/1", bucket.options)
    with pytest.raises(FileMissing):
        open_url(f"{bucket.root}/b/1", bucket.options)


def test_a_large_file_goes_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    with FaultProxy(bucket.server) as proxy:
        upload(str(path), f"{bucket.root}/large", through(bucket, proxy))
        asked = [request.method for request in proxy.log]
    # Azure takes a list of the parts at the end; S3 begins and ends with a POST.
    is_azure = bucket.root.startswith("az")
    assert (asked.count("PUT"), asked.count("POST")) == ((4, 0) if is_azure else (3, 2))
    source = open_url(f"{bucket.root}/large", bucket.options)
    assert source.size() == len(LARGE)
    for at in (0, (8 << 20) - 5, (16 << 20) - 5):
        assert source.read_at(at, 10) == LARGE[at : at + 10]


def test_an_object_that_must_not_be_replaced_is_not(bucket: Bucket, tmp_path: Path) -> None:
    if bucket.root.startswith("gs:"):
        pytest.skip("moto does not know how Google says this")
    path = tmp_path / "file"
    path.write_bytes(b"one")
    url = f"{bucket.root}/once"
    upload(str(path), url, bucket.options, overwrite=False)
    path.write_bytes(b"two")
    with pytest.raises(FileThere):
        upload(str(path), url, bucket.options, overwrite=False)
    assert open_url(url, bucket.options).read_at(0, 3) == b"one"


def test_wrong_keys_are_refused(versitygw: Bucket) -> None:
    """moto believes any signature."""
    url = versitygw.put("private", b"content")
    with pytest.raises(AccessDenied, match="SignatureDoesNotMatch") as caught:
        open_url(url, {**versitygw.options, "secret_access_key": "hidden"})
    assert "hidden" not in str(caught.value)
    with pytest.raises(FileMissing, match="XAdminUserNotFound"):
        open_url(url, {**versitygw.options, "access_key_id": "unknown"})


def test_wrong_keys_of_azure_are_refused(azurite: Bucket) -> None:
    url = azurite.put("private", b"content")
    other = base64.b64encode(b"hidden" * 9).decode()
    with pytest.raises(AccessDenied, match="AuthorizationFailure") as caught:
        open_url(url, {**azurite.options, "account_key": other})
    assert other not in str(caught.value)


def test_an_episode_and_a_set_are_written_found_and_read(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARD_STORAGE_OPTIONS", json.dumps(bucket.options))
    episode = Episode(id="far", length=20)
    episode.actions["ctrl"] = np.arange(20, dtype="f4")
    save_wshard(episode, f"{bucket.root}/eps/a.wshard")
    assert [found.id for found in find(f"{bucket.root}/eps")] == ["far"]
    pattern = f"{bucket.root}/packs/t-%06d.shardpack"
    with ShardWriterSet(pattern, max_records=5) as writer:
        for number in range(12):
            writer.write(str(number), {"x.bin": noise(100, number)})
    with shardpack.open(f"{bucket.root}/packs/t.shardpack-set") as dataset:
        found = [record["x.bin"].data for record in dataset.take([11, 0])]
    assert found == [noise(100, 11), noise(100, 0)]


def test_a_missing_bucket_is_told_from_a_missing_object(bucket: Bucket) -> None:
    missing = bucket.root.replace("bucket", "other")
    for call in (
        lambda: open_url(f"{missing}/object", bucket.options),
        lambda: list_url(missing, bucket.options),
        lambda: upload(__file__, f"{missing}/object", bucket.options),
    ):
        with pytest.raises(FileMissing, match=r"no such bucket .*(NoSuchBucket|ContainerNotFound)"):
            call()
    with pytest.raises(FileMissing) as caught:
        open_url(f"{bucket.root}/other", bucket.options)
    assert str(caught.value) == f"{bucket.root}/other: no such object; check the URL"
