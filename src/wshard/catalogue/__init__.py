"""What is known about many episodes without opening them: finding them, choosing some, and the index that saves it.

    import wshard

    table = wshard.find("runs", where="success and length > 100")

`EpisodeDataset` and the command line use the same listing, scan and index.
"""

from wshard.catalogue._find import EpisodeTable, find
from wshard.catalogue._forms import LABELS, METADATA, ChannelForm, EpisodeForms
from wshard.catalogue._index import MOST_STEPS, CatalogueOpener, select
from wshard.catalogue._rows import NO_PACK, Catalogue, EpisodeInfo, EpisodeLocations, parse_facts
from wshard.catalogue._scan import INDEX_SUFFIX, Files, PackOfEpisodes
from wshard.catalogue._where import FIELDS, Expression, Where, field_of, parse_where

__all__ = [
    "FIELDS",
    "INDEX_SUFFIX",
    "LABELS",
    "METADATA",
    "MOST_STEPS",
    "NO_PACK",
    "Catalogue",
    "CatalogueOpener",
    "ChannelForm",
    "EpisodeForms",
    "EpisodeInfo",
    "EpisodeLocations",
    "EpisodeTable",
    "Expression",
    "Files",
    "PackOfEpisodes",
    "Where",
    "field_of",
    "find",
    "parse_facts",
    "parse_where",
    "select",
]
