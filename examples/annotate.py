"""Add a model's predictions to an episode that another program recorded: `python examples/annotate.py EPISODE`.

The model is simple: a joint goes on as it moved five steps ago. Its prediction and how unsure it is become lanes
beside the recording, which is not written again. docs/languages.md shows the whole way: Go records, Python
annotates, TypeScript shows.
"""

from __future__ import annotations

import sys

import numpy as np

from wshard import add_lane, edit, load_wshard

CHANNEL, MODEL = "joint_pos", "linear"
AHEAD, RECENT = 5, 20


def main() -> None:
    path = sys.argv[1]
    with load_wshard(path) as ep:
        truth = ep.observations[CHANNEL].data.astype(np.float64)
        print(f"{ep.id}: {ep.length} steps of {ep.env_id}, {truth.shape[1]} joints")
    predicted = truth.copy()
    known, before = truth[1:-AHEAD], truth[: -AHEAD - 1]
    predicted[AHEAD + 1 :] = known + AHEAD * (known - before)
    error = np.abs(predicted - truth)
    # As unsure as the model was wrong in the steps before.
    unsure = np.stack([error[max(0, t - RECENT) : t + 1].mean(axis=0) for t in range(len(error))])
    lanes = {
        f"omen/{CHANNEL}/{MODEL}": predicted.astype(np.float32),
        f"uncert/{CHANNEL}/{MODEL}/std": unsure.astype(np.float32),
    }
    sidecar = add_lane(path, lanes, name=MODEL, replace=True)
    edit(path, metadata={"mean_error": round(float(error.mean()), 6)})
    print(f"mean error {error.mean():.4f}; lanes in {sidecar}")


if __name__ == "__main__":
    main()
