"""A replay buffer that is a folder of episodes.

from wshard.replay import ReplayBuffer

with ReplayBuffer("replay", max_steps=1_000_000, seed=0) as replay:
    batch = replay.sample(16, 64)
"""

from wshard.replay._buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
