"""Ray is tested where it is installed: `make test-ray`. One cluster of two nodes on this machine for all tests."""

from __future__ import annotations

import os
import secrets
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.ray import jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Elsewhere there is nothing to collect. pytest calls that an error if it was asked for this folder alone.
collect_ignore_glob = [] if find_spec("ray") else ["test_*"]

EPISODES = 24
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes, and this process connected to them."""
    # Before Ray is imported. The token is of these tests alone: they neither read nor write one of the user.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    import ray
    from ray.cluster_utils import Cluster

    # A lost node is noticed after a second, not after a quarter of a minute.
    checks = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 300,
        "health_check_failure_threshold": 3,
    }
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "_system_config": checks})
    cluster.add_node(**NODE)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="session")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of short episodes of different lengths."""
    folder = tmp_path_factory.mktemp("data") / "episodes"
    jobs.make_episodes(folder, EPISODES)
    return folder
