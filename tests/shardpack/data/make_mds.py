"""Writes the MDS datasets beside this file, with the `mosaicml-streaming` package itself.

    pip install mosaicml-streaming==0.13.0
    python make_mds.py

The package needs an older NumPy than the tests do, and some hundred MB of others, so that its output is
kept here instead: a few KB for each dataset. `rows` is what the tests expect to read.
"""

from __future__ import annotations

import decimal
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLUMNS = {
    "blob": "bytes",
    "caption": "str",
    "label": "int",
    "weight": "float32",
    "count": "uint16",
    "large": "str_int",
    "price": "str_decimal",
    "ratio": "str_float",
    "fields": "json",
    "picture": "png",
    "raw": "pil",
    "views": "list[png]",
    "photos": "jpeg_array",
    "vector": "ndarray:float32:4",
    "matrix": "ndarray",
    "typed": "ndarray:int16",
    "object": "pkl",
}
HERE = Path(__file__).parent / "mds"


def picture(number: int, mode: str = "RGB") -> Image.Image:
    shape = (4, 5, 3) if mode == "RGB" else (4, 5)
    pixels = (np.arange(np.prod(shape)).reshape(shape) * 3 + number).astype(np.uint8)
    return Image.fromarray(pixels)


def jpeg(number: int) -> bytes:
    file = io.BytesIO()
    picture(number).save(file, "JPEG")
    return file.getvalue()


def rows(count: int = 7) -> list[dict[str, Any]]:
    return [
        {
            "blob": bytes(range(n, n + 5 * n)),
            "caption": f"picture Nº {n}",
            "label": n - 3,
            "weight": float(np.float32(n) / np.float32(3)),
            "count": 65535 - n,
            "large": n - 1 << 40,
            "price": decimal.Decimal(f"{n}.10"),
            "ratio": n / 7,
            "fields": {"n": n, "parts": [1, None]},
            "picture": picture(n),
            "raw": picture(n, "RGB" if n % 2 else "L"),
            "views": [picture(n + k) for k in range(n % 3)],
            "photos": [jpeg(n + k) for k in range(1 + n % 2)],
            "vector": np.arange(n, n + 4).astype(np.float32),
            "matrix": np.arange(6 * (n + 1), dtype=np.uint16).reshape(n + 1, 3, 2),
            "typed": np.arange(n + 1, dtype=np.int16),
            "object": {"pickled": n},
        }
        for n in range(count)
    ]


def main() -> None:
    from streaming import MDSWriter  # type: ignore[import-not-found] # not in the test environment

    shutil.rmtree(HERE, ignore_errors=True)
    with MDSWriter(
        out=str(HERE / "plain"), columns=COLUMNS, hashes=["sha1", "xxh64"], size_limit=1 << 12
    ) as out:
        for row in rows():
            out.write(row)
    few = {"caption": "str", "label": "int"}
    for compression in ("zstd:7", "gz", "bz2", "br:3", "snappy"):
        target = HERE / compression.partition(":")[0]
        with MDSWriter(
            out=str(target), columns=few, compression=compression, hashes=["sha256"]
        ) as out:
            for row in rows():
                out.write({name: row[name] for name in few})


if __name__ == "__main__":
    main()
