"""Search by similarity under the names that existing code imports; see `wshard.search`."""

from wshard.search import EpisodeRef, TrajectoryIngestor, TrajectoryRetriever, WindowRef

__all__ = ["EpisodeRef", "TrajectoryIngestor", "TrajectoryRetriever", "WindowRef"]
