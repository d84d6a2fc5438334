"""The same calls against every server: what one of them takes for granted, another refuses."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from shard_format import ShardReader, ShardWriter
from shard_format.errors import AccessDenied, FileMissing, FileThere
from shard_format.remote import delete_url, list_url, open_url, upload
from tests.shard_format.support import noise
from tests.stores.fault_proxy import FaultProxy, after

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket

S3 = ["moto", "versitygw"]
# Three parts.
LARGE = noise(17 << 20, seed=8)


@pytest.fixture(params=[*S3, "nginx"])
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
    with FaultProxy(bucket.endpoint) as proxy:
        options = {**bucket.options, "endpoint": proxy.url}
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


@pytest.fixture(params=S3)
def bucket(request: pytest.FixtureRequest) -> Bucket:
    found: Bucket = request.getfixturevalue(request.param)
    return found


def test_what_is_uploaded_is_listed_read_and_deleted(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    names = ["b/1", "b/2 ü+%", "b/10", "b/c/1"]
    for name in names:
        path.write_bytes(name.encode())
        upload(str(path), f"s3://bucket/{name.replace('%', '%25')}", bucket.options)
    found = list_url("s3://bucket/b", bucket.options)
    assert len(found) == len(names)
    for one in found:
        source = open_url(one.url, bucket.options)
        assert source.read_at(0, source.size()).decode() in names
        delete_url(one.url, bucket.options)
    assert list_url("s3://bucket/b", bucket.options) == []
    delete_url("s3://bucket/b/1", bucket.options)
    with pytest.raises(FileMissing):
        open_url("s3://bucket/b/1", bucket.options)


def test_a_large_file_goes_in_parts(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(LARGE)
    with FaultProxy(bucket.endpoint) as proxy:
        upload(str(path), "s3://bucket/large", {**bucket.options, "endpoint": proxy.url})
        asked = [request.method for request in proxy.log]
    assert (asked.count("PUT"), asked.count("POST")) == (3, 2)
    source = open_url("s3://bucket/large", bucket.options)
    assert source.size() == len(LARGE)
    for at in (0, (8 << 20) - 5, (16 << 20) - 5):
        assert source.read_at(at, 10) == LARGE[at : at + 10]


def test_an_object_that_must_not_be_replaced_is_not(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    url = "s3://bucket/once"
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


def test_a_missing_bucket_is_told_from_a_missing_object(bucket: Bucket) -> None:
    with pytest.raises(FileMissing, match="NoSuchBucket"):
        open_url("s3://other/object", bucket.options)
    with pytest.raises(FileMissing) as caught:
        open_url("s3://bucket/other", bucket.options)
    assert str(caught.value) == "s3://bucket/other: no such object; check the URL"
