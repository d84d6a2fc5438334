"""Episodes behind a URL: a real server on the loopback that answers ranges."""

from __future__ import annotations

import functools
import http.server
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shard_format.errors import ShardIOError
from wshard import Episode, load_wshard, save_wshard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files and their ranges, and counts what it sends."""

    sent = 0

    def do_GET(self) -> None:
        try:
            with open(self.translate_path(self.path), "rb") as file:
                content = file.read()
        except OSError:
            self.send_error(404)
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        if first:
            start, stop = int(first), min(int(last) + 1 if last else len(content), len(content))
        else:
            start, stop = max(0, len(content) - int(last)), len(content)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(content[start:stop])
        RangeHandler.sent += stop - start

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(RangeHandler, directory=str(tmp_path))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    RangeHandler.sent = 0
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_window_of_a_remote_camera_fetches_its_frames_and_not_the_file(
    tmp_path: Path, address: str
) -> None:
    random = np.random.default_rng(0)
    frames = random.integers(0, 200, (400, 32, 32, 3), dtype=np.uint8)
    episode = Episode("ep", observations={"rgb": frames})
    save_wshard(episode, tmp_path / "e.wshard", profile="training", steps_per_frame=16)
    size = (tmp_path / "e.wshard").stat().st_size
    with load_wshard(f"{address}/e.wshard") as remote:
        assert (remote.id, remote.length) == ("ep", 400)
        window = remote.observations["rgb"][100:132]
    assert np.array_equal(window, frames[100:132])
    assert RangeHandler.sent < size / 2


def test_raw_blocks_of_a_remote_episode_are_read_and_checked(tmp_path: Path, address: str) -> None:
    values = np.arange(4000, dtype=np.float64).reshape(1000, 4)
    save_wshard(Episode("ep", observations={"x": values}), tmp_path / "e.wshard")
    with load_wshard(f"{address}/e.wshard") as remote:
        assert np.array_equal(remote.observations["x"].data, values)
        assert np.array_equal(remote.observations["x"][10:20], values[10:20])


def test_an_episode_that_is_not_there_says_so(address: str) -> None:
    with pytest.raises(ShardIOError, match="404"):
        load_wshard(f"{address}/missing.wshard")
