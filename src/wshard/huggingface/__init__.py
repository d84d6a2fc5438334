"""Episodes as data sets of Hugging Face `datasets`, and back. Needs the extra `huggingface`.

from wshard.huggingface import from_hf_dataset, to_hf_dataset

dataset = to_hf_dataset("episodes")               # one row for each step
dataset[0]["observation.state"]
from_hf_dataset(dataset, "again")                 # one file for each episode

Nothing is sent or fetched: this reads and writes files.
"""

from wshard.huggingface.exporting import to_hf_dataset
from wshard.huggingface.importing import from_hf_dataset

__all__ = ["from_hf_dataset", "to_hf_dataset"]
