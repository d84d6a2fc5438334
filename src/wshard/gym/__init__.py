"""Record Gymnasium environments: every episode becomes a file. Needs the extra `gym`.

    import gymnasium
    from wshard.gym import RecordEpisodes

    with RecordEpisodes(gymnasium.make("CartPole-v1"), "episodes") as env:
        observation, info = env.reset(seed=0)
        ...

`RecordEpisodes` says what the files hold.
"""

from wshard.gym._recorder import RecordEpisodes, RecordingOptions, RecordVectorEpisodes

__all__ = ["RecordEpisodes", "RecordVectorEpisodes", "RecordingOptions"]
