"""What the records of MDS datasets must hold: of files that are kept here, and of those made anew."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardpack import Dataset


def check_records(dataset: Dataset, expected: Sequence[dict[str, Any]]) -> None:
    """That the records are the rows of `make_mds`."""
    assert len(dataset) == len(expected)
    for number, (record, row) in enumerate(zip(dataset, expected, strict=True)):
        assert record.key == f"{number:09d}"
        assert record.metadata == {
            **{name: row[name] for name in ("label", "weight", "count", "large", "ratio")},
            "price": str(row["price"]),
        }
        assert record["blob.bin"].read() == row["blob"]
        assert record["caption.txt"].decode() == row["caption"]
        assert record["fields.json"].decode() == row["fields"]
        assert np.array_equal(record["picture.png"].decode(), np.asarray(row["picture"]))
        assert np.array_equal(record["raw.npy"].decode(), np.asarray(row["raw"]))
        for name in ("vector", "matrix", "typed"):
            found = record[f"{name}.npy"].decode()
            assert np.array_equal(found, row[name])
            assert found.dtype == row[name].dtype
        assert [n for n in record.names if n.startswith("views")] == [
            f"views.{k}.png" for k in range(len(row["views"]))
        ]
        for k, view in enumerate(row["views"]):
            assert np.array_equal(record[f"views.{k}.png"].decode(), np.asarray(view))
        for k in range(len(row["photos"])):
            assert record[f"photos.{k}.jpg"].read()[:3] == b"\xff\xd8\xff"
        # Kept, and never loaded by the library.
        assert pickle.loads(record["object.pkl"].data) == row["object"]
