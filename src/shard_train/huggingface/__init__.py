"""Episodes and samples as datasets of Hugging Face `datasets`, and back. Needs the extra `huggingface`.

    from shard_train.huggingface import episodes_from_hf, episodes_to_hf, samples_from_hf, samples_to_hf

    dataset = episodes_to_hf("episodes")              # one row for each step
    dataset[0]["observation.state"]
    episodes_from_hf(dataset, "again")                # one file for each episode

    dataset = samples_to_hf("train-{000000..000009}.shardpack")     # one row for each sample
    dataset[0]["left.jpg"]                            # a PIL image
    samples_from_hf(dataset, "again-%06d.shardpack")

These functions read and write local files. They neither upload nor download anything.
"""

from shard_train.huggingface._episodes_from import episodes_from_hf
from shard_train.huggingface._episodes_to import episodes_to_hf
from shard_train.huggingface._samples import samples_from_hf, samples_to_hf

__all__ = ["episodes_from_hf", "episodes_to_hf", "samples_from_hf", "samples_to_hf"]
