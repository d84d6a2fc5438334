"""Every way in which a network or a server fails, over HTTP (nginx) and S3 (moto): the right bytes, or an error that says why.

Requests are counted by the proxy that makes the faults. Nothing here sleeps: pauses over HTTP are recorded, and those of obstore
are a few milliseconds.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from shard_format.errors import AccessDenied, FileMissing, ShardIOError, TransportError
from shard_format.remote import open_url
from tests.shard_format.support import noise
from tests.stores.fault_proxy import (
    after,
    cut,
    expired_token,
    ignore_range,
    reset,
    stall,
    status,
    wrong_range,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shard_format import ByteSource
    from tests.stores.fault_proxy import Fault, FaultProxy
    from tests.stores.servers import Bucket

CONTENT = noise(300_000, seed=3)
START, LENGTH = 100_000, 200_000
RETRIES = 3
# Fewer would be an empty range of random numbers for obstore.
BACKOFF = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=3)}


@dataclass
class Place:
    """An object behind a proxy."""

    url: str
    proxy: FaultProxy
    options: dict[str, Any]
    replace: Callable[[], object]
    """Puts another object of the same size in its place."""

    def open(self, **options: Any) -> ByteSource:  # noqa: ANN401 - storage options
        source = open_url(self.url, {**self.options, **options})
        self.proxy.counted()
        return source


@pytest.fixture(params=["http", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "http":
        proxy = request.getfixturevalue("nginx_proxy")
        return http_place(request.getfixturevalue("nginx")[1], proxy)
    return s3_place(request.getfixturevalue("moto"), request.getfixturevalue("moto_proxy"))


def http_place(folder: Path, proxy: FaultProxy) -> Place:
    path = folder / "object"
    path.write_bytes(CONTENT)

    def replace() -> None:
        path.write_bytes(CONTENT[::-1])
        os.utime(path, (1, 1))

    return Place(f"{proxy.url}/object?key=hidden", proxy, {"retries": RETRIES}, replace)


def s3_place(bucket: Bucket, proxy: FaultProxy) -> Place:
    options = {
        **bucket.options,
        "endpoint": proxy.url,
        "secret_access_key": "hidden",
        "retries": RETRIES,
        "retry_config": {"backoff": BACKOFF},
    }
    return Place(
        bucket.put("object", CONTENT), proxy, options, partial(bucket.put, "object", CONTENT[::-1])
    )


def read(source: ByteSource) -> bytes:
    return source.read_at(START, LENGTH)


def failure(call: Callable[[], object], place: Place) -> ShardIOError:
    """The error of a call that must fail: it names the object and what to do, and no secret."""
    with pytest.raises(ShardIOError) as caught:
        call()
    error = caught.value
    assert error.path is not None
    assert error.path.startswith(place.url.partition("?")[0])
    assert error.path in str(error)
    assert error.hint
    assert "hidden" not in f"{error} {error!r}"
    return error


PASSING: dict[str, Fault] = {
    **{str(code): status(code) for code in (408, 429, 500, 502, 503, 504)},
    "Retry-After": status(503, retry_after="7"),
    "reset": reset,
    "reset in the body": cut(20_000, reset),
    "cut": cut(20_000),
    "no body": cut(0),
}


class TestRecoverable:
    """What passes when it is tried again."""

    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
    def test_two_failures_cost_two_requests_and_no_byte(self, place: Place, fault: Fault) -> None:
        source = place.open()
        place.proxy.faults.extend([fault, fault])
        assert read(source) == CONTENT[START : START + LENGTH]
        assert place.proxy.counted() == 3

    @pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
    def test_so_it_is_while_opening(self, place: Place, fault: Fault) -> None:
        place.proxy.faults.extend([fault, fault])
        source = open_url(place.url, place.options)
        assert place.proxy.counted() == 3
        assert source.read_at(0, 60_000) == CONTENT[:60_000]
        assert place.proxy.counted() == 0

    @pytest.mark.parametrize("code", [429, 503])
    def test_s3_a_busy_store_is_asked_until_it_answers(
        self, moto: Bucket, moto_proxy: FaultProxy, code: int
    ) -> None:
        """By the pauses of obstore, which knows nothing of `Retry-After`: one beyond the deadline is no error."""
        place = s3_place(moto, moto_proxy)
        source = place.open(retries=20, deadline=30)
        place.proxy.faults.extend([status(code, retry_after="90")] * 20)
        assert read(source) == CONTENT[START : START + LENGTH]
        assert place.proxy.counted() == 21

    def test_reading_goes_on_where_it_broke(self, place: Place) -> None:
        source = place.open()
        place.proxy.always = cut(60_000)
        assert read(source) == CONTENT[START : START + LENGTH]
        assert [request.range for request in place.proxy.log] == [
            f"bytes={start}-299999" for start in (100_000, 160_000, 220_000, 280_000)
        ]

    def test_a_server_that_stalls_is_left(self, place: Place) -> None:
        time_limit = "timeout" if place.url.startswith("http") else "read_timeout"
        source = place.open(**{time_limit: 0.2})
        for fault in (stall, cut(50_000, stall)):
            place.proxy.faults.append(fault)
            assert read(source) == CONTENT[START : START + LENGTH]
            assert place.proxy.counted() == 2


FAILING: dict[str, tuple[Fault, int]] = {
    "429": (status(429), errno.EAGAIN),
    "503": (status(503), errno.EIO),
    "reset": (reset, errno.ECONNRESET),
    "no body": (cut(0), errno.ECONNRESET),
}
USELESS: dict[str, tuple[Fault, int]] = {
    "short answer": (cut(50_000, honest=False), errno.EPROTO),
    "no ranges": (ignore_range, errno.EOPNOTSUPP),
    "wrong range": (wrong_range, errno.EPROTO),
}


class TestFinal:
    """What stays."""

    @pytest.mark.parametrize(("fault", "number"), FAILING.values(), ids=FAILING)
    def test_the_tries_are_bounded(self, place: Place, fault: Fault, number: int) -> None:
        source = place.open()
        place.proxy.always = fault
        error = failure(lambda: read(source), place)
        assert isinstance(error, TransportError)
        assert error.errno == number
        # HTTP: a kept connection that ends without a byte was idle too long, which is no failure.
        was_idle = fault is reset and place.url.startswith("http")
        assert place.proxy.counted() == RETRIES + 1 + was_idle
        place.proxy.always = None
        assert read(source) == CONTENT[START : START + LENGTH]

    @pytest.mark.parametrize(("fault", "number"), USELESS.values(), ids=USELESS)
    def test_an_answer_that_cannot_be_used_is_not_used(
        self, place: Place, fault: Fault, number: int
    ) -> None:
        source = place.open()
        place.proxy.faults.append(fault)
        error = failure(lambda: read(source), place)
        assert isinstance(error, TransportError)
        assert error.errno == number
        assert place.proxy.counted() == 1
        assert read(source) == CONTENT[START : START + LENGTH]

    def test_an_object_that_is_replaced_is_never_mixed(self, place: Place) -> None:
        source = place.open()
        place.proxy.faults.extend([cut(50_000), after(place.replace)])
        error = failure(lambda: read(source), place)
        assert (type(error), error.errno) == (ShardIOError, errno.ESTALE)

    def test_credentials_that_expire_are_told_from_a_failing_server(self, place: Place) -> None:
        source = place.open()
        place.proxy.always = expired_token
        error = failure(lambda: read(source), place)
        assert isinstance(error, AccessDenied)
        assert "expired" in str(error.hint)
        assert place.proxy.counted() == 1

    def test_so_is_an_object_that_is_gone(self, place: Place) -> None:
        place.proxy.always = status(404)
        assert isinstance(failure(place.open, place), FileMissing)
        assert place.proxy.counted() == 1

    def test_a_request_that_is_refused_is_not_sent_again(self, place: Place) -> None:
        place.proxy.always = status(400)
        assert isinstance(failure(place.open, place), TransportError)
        assert place.proxy.counted() == 1

    def test_a_server_that_is_not_there_is_noticed(self, place: Place) -> None:
        place.proxy.__exit__()
        error = failure(place.open, place)
        assert isinstance(error, TransportError)
        assert error.errno == errno.ECONNREFUSED


class TestDeadline:
    """How long all tries of a read may take."""

    def test_a_black_hole_ends_with_it(self, place: Place) -> None:
        source = place.open(deadline=0.6)
        place.proxy.always = stall
        error = failure(lambda: read(source), place)
        assert isinstance(error, TransportError)
        assert error.errno == errno.ETIMEDOUT
        assert "deadline" in str(error.hint)

    def test_it_ends_tries_without_number(self, place: Place) -> None:
        source = place.open(deadline=0.3, retries=1_000_000)
        place.proxy.always = reset
        assert isinstance(failure(lambda: read(source), place), TransportError)
        assert place.proxy.counted() > 1

    @pytest.mark.parametrize("value", [0, -1, "soon", None])
    def test_it_is_a_number_of_seconds(self, place: Place, value: object) -> None:
        with pytest.raises(ValueError, match="deadline"):
            place.open(deadline=value)
        assert place.proxy.counted() == 0


class TestPauses:
    """What HTTP adds: the pauses that the server asks for."""

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The time, which only pauses let pass."""
        now = [0.0]

        def sleep(seconds: float) -> None:
            now.append(now[-1] + seconds)

        monkeypatch.setattr("shard_format.http._sleep", sleep)
        monkeypatch.setattr("shard_format.http._now", lambda: now[-1])
        return now

    @pytest.fixture
    def place(self, nginx: tuple[str, Path], nginx_proxy: FaultProxy) -> Place:
        return http_place(nginx[1], nginx_proxy)

    def test_pauses_grow_at_random_up_to_the_deadline(
        self, place: Place, clock: list[float]
    ) -> None:
        source = place.open(retries=1_000, deadline=20)
        place.proxy.always = status(503)
        failure(lambda: read(source), place)
        made = [later - earlier for earlier, later in pairwise(clock)]
        assert place.proxy.counted() == len(made) + 1
        assert 7 < clock[-1] <= 20
        for number, pause in enumerate(made):
            assert 0.1 * 2**number <= pause <= 0.2 * 2**number

    def test_a_wish_within_the_deadline_is_fulfilled(
        self, place: Place, pauses: list[float]
    ) -> None:
        source = place.open()
        soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=40), usegmt=True)
        past = format_datetime(datetime(2001, 1, 1, tzinfo=timezone.utc), usegmt=True)
        wishes = ("9", soon, past)
        place.proxy.faults.extend(status(429, retry_after=wish) for wish in wishes)
        assert read(source) == CONTENT[START : START + LENGTH]
        assert pauses == [9, pytest.approx(40, abs=5), pytest.approx(0.6, abs=0.25)]

    def test_a_longer_one_ends_the_read_at_once(self, place: Place, pauses: list[float]) -> None:
        source = place.open(deadline=10)
        place.proxy.always = status(503, retry_after="11")
        error = failure(lambda: read(source), place)
        assert "wait for 11 s" in str(error)
        assert pauses == []
        assert place.proxy.counted() == 1

    def test_a_read_that_comes_along_may_take_longer(
        self, place: Place, clock: list[float]
    ) -> None:
        """A second more for each 64 KiB: here three of them."""
        source = place.open(deadline=1.9)
        place.proxy.faults.extend([cut(65_536), status(503, retry_after="2"), cut(65_536)])
        assert read(source) == CONTENT[START : START + LENGTH]
        assert clock[-1] > 1.9
