"""Finding episodes, and windows of them, by what was observed: vectors in a database, data in the files.

    from wshard.search import TrajectoryIngestor, TrajectoryRetriever

    TrajectoryIngestor("http://localhost:8080").ingest_folder("episodes")
    best = TrajectoryRetriever("http://localhost:8080").search_episodes(observation, top_k=5)[0]
    best.load().observations["joint_pos"][100:164]

The database holds one vector with a few facts for each episode and each window; the files stay the
truth, so that an index that was lost is made again from them. `documents` says what is stored,
`bridge_dialect` and `server_dialect` how a server is told, `transport` brings it there.
"""

from wshard.search.embed import PaddedProjection
from wshard.search.ingest import Failure, FolderReport, Ingested, TrajectoryIngestor
from wshard.search.references import EpisodeRef, WindowRef
from wshard.search.retrieve import TrajectoryRetriever
from wshard.search.transport import SearchServerError

__all__ = [
    "EpisodeRef",
    "Failure",
    "FolderReport",
    "Ingested",
    "PaddedProjection",
    "SearchServerError",
    "TrajectoryIngestor",
    "TrajectoryRetriever",
    "WindowRef",
]
