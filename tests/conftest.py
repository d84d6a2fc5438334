"""For the whole suite: one Hypothesis profile, with the same examples in every run and no files left, and Ctrl-C."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "shard-hypothesis")
settings.register_profile(
    "shard",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    # tmp_path is shared by the examples of one test: each writes the same file again.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("shard")

# A shell that starts the tests in the background makes them ignore Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
