"""Makes a Minari dataset, converts it to episodes, and looks at what became of it.

python import_minari.py [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import wshard
from wshard.convert import ConvertOptions, convert

DATASET = "cartpole/random-v0"


def record(folder: Path) -> Path:
    """Random actions in CartPole, saved by Minari itself."""
    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    env = gymnasium.make("CartPole-v1")
    env.action_space.seed(0)
    buffers = []
    for seed in range(20):
        first, _ = env.reset(seed=seed)
        rows, is_over = [], False
        while not is_over:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, _ = env.step(action)
            rows.append((observation, action, reward, terminated, truncated))
            is_over = terminated or truncated
        observations, actions, rewards, terminations, truncations = map(
            list, zip(*rows, strict=True)
        )
        buffers.append(
            EpisodeBuffer(
                id=seed,
                seed=seed,
                observations=[first, *observations],
                actions=actions,
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
            )
        )
    minari.create_dataset_from_buffers(
        DATASET,
        buffers,
        env=env,
        eval_env="CartPole-v1",
        algorithm_name="random",
        author="The Shard authors",
        author_email="shard@example.org",
        code_permalink="https://example.org/shard",
        description="Random actions in CartPole.",
    )
    return folder / DATASET


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out").resolve()
    for old in ("minari", "cartpole"):
        shutil.rmtree(root / old, ignore_errors=True)
    source = record(root / "minari")
    report = convert(source, root / "cartpole", options=ConvertOptions(verify=True, overwrite=True))
    print(f"{report.episodes} episodes, {report.steps} steps from {DATASET}, every array compared")
    for change, count in report.of_kind("kept", "renamed", "cast", "dropped"):
        print(f"  {change} ({count} episodes)")
    longest = wshard.find(root / "cartpole", where="length >= 20")
    print(longest)


if __name__ == "__main__":
    main()
