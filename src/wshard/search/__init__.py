"""Find episodes, and windows of them, by what was observed: vectors in a database, data in the files.

    from wshard.search import TrajectoryIngestor, TrajectoryRetriever

    TrajectoryIngestor("http://localhost:8080").ingest_folder("episodes")
    best = TrajectoryRetriever("http://localhost:8080").search_episodes(observation, top_k=5)[0]
    best.load().observations["joint_pos"][100:164]

The database holds one vector with a few facts for each episode and each window. If the index is lost, ingest the
files again. Needs urllib3: pip install 'shard-format[search]'.
"""

from wshard.search._client import SearchServerError, ServerOptions
from wshard.search._ingest import FolderReport, Ingested, IngestFailure, TrajectoryIngestor
from wshard.search._retrieve import EpisodeRef, TrajectoryRetriever, WindowRef
from wshard.search._vectors import Embedder, PaddedProjection

__all__ = [
    "Embedder",
    "EpisodeRef",
    "FolderReport",
    "IngestFailure",
    "Ingested",
    "PaddedProjection",
    "SearchServerError",
    "ServerOptions",
    "TrajectoryIngestor",
    "TrajectoryRetriever",
    "WindowRef",
]
