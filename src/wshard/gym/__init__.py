"""Recording Gymnasium environments: every episode becomes a file. Needs the extra `gym`.

    import gymnasium
    from wshard.gym import RecordEpisodes

    with RecordEpisodes(gymnasium.make("CartPole-v1"), "episodes") as env:
        observation, info = env.reset(seed=0)
        ...

What the files hold is said at `RecordEpisodes`.
"""

from wshard.gym.wrappers import RecordEpisodes, RecordVectorEpisodes

__all__ = ["RecordEpisodes", "RecordVectorEpisodes"]
