"""Draw an episode: every lane against time, predictions over what happened.

    from wshard.plot import plot_episode

    plot_episode("ep_001.wshard", "ep_001.png")

Needs matplotlib: pip install 'shard-format[plot]'. No global state of matplotlib changes, so you can use
it in servers and beside other plots.
"""

from wshard.plot._figure import plot_episode

__all__ = ["plot_episode"]
