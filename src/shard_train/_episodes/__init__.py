"""The parts of `EpisodeDataset`: files, catalogue, layouts of items, cache."""
