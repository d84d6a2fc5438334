"""Real servers on the loopback for the tests of stores; each is started when a test asks for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.stores import servers
from tests.stores.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores.servers import Bucket


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """The pauses that would have been made; and no proxy, credentials or home of the machine."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(
            ("AWS_", "AZURE_", "GOOGLE_", "CLOUDSDK_")
        ):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    made: list[float] = []
    monkeypatch.setattr("shard_format.http._sleep", made.append)
    return made


@pytest.fixture(scope="session")
def moto() -> Iterator[Bucket]:
    with servers.moto() as bucket:
        yield bucket


@pytest.fixture(scope="session")
def google(moto: Bucket) -> Bucket:
    return servers.google(moto)


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with servers.versitygw(tmp_path_factory.mktemp("versitygw")) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with servers.azurite(tmp_path_factory.mktemp("azurite")) as bucket:
        yield bucket


@pytest.fixture(scope="session")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    with servers.nginx(tmp_path_factory.mktemp("nginx")) as running:
        yield running


@pytest.fixture
def moto_proxy(moto: Bucket) -> Iterator[FaultProxy]:
    with FaultProxy(moto.endpoint) as proxy:
        yield proxy


@pytest.fixture
def nginx_proxy(nginx: tuple[str, Path]) -> Iterator[FaultProxy]:
    with FaultProxy(nginx[0]) as proxy:
        yield proxy
