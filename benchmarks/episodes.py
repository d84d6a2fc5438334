"""Episodes made of the arrays in `benchmarks.data`, and helpers that several comparisons share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zarr

from wshard import Episode

if TYPE_CHECKING:
    from benchmarks.data import Arrays


def as_episode(arrays: Arrays, name: str = "ep_0001") -> Episode:
    """The same arrays in their lanes."""
    return Episode(
        name,
        env_id="Reach-v1",
        observations={k[7:]: v for k, v in arrays.items() if k.startswith("signal/")},
        actions={k[7:]: v for k, v in arrays.items() if k.startswith("action/")},
        rewards=arrays["reward"],
        terminations=arrays["done"] != 0,
    )


def write_zarr(path: str, arrays: Arrays, *, level: int, chunk_bytes: int = 1 << 20) -> None:
    """Write one zip file, which Zarr writes and reads fastest, with chunks of whole steps."""
    with zarr.storage.ZipStore(path, mode="w") as store:
        group = zarr.create_group(store)
        for name, array in arrays.items():
            steps = max(1, min(len(array), chunk_bytes * len(array) // max(1, array.nbytes)))
            made = group.create_array(
                name,
                shape=array.shape,
                dtype=array.dtype,
                chunks=(steps, *array.shape[1:]),
                compressors=zarr.codecs.ZstdCodec(level=level),
            )
            made[...] = array
