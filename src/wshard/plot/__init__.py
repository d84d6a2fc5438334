"""Draw an episode: every lane against time, predictions over what happened.

    from wshard.plot import plot_episode

    plot_episode("ep_001.wshard", "ep_001.png")

`load_wshard("ep_001.wshard").plot(channels=["joint_pos"])` does the same for an open episode.

Needs matplotlib: pip install 'shard-format[plot]'. No global state of matplotlib changes, so you can use
it in servers and beside other plots.
"""

from wshard.plot._figure import PlotOptions, plot_episode

__all__ = ["PlotOptions", "plot_episode"]
