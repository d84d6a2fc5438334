"""Episodes that the tests of the viewer open, written by the Python library: python make_episodes.py FOLDER NAME…"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from wshard import Episode, save_wshard
from wshard.overviews import write_overviews

RATE = 30.0


def cameras(path: Path) -> None:
    """Two cameras of 240 × 320 pixels for eight seconds. The upper left square of a picture tells its step."""
    steps, height, width = 240, 240, 320
    rng = np.random.default_rng(1)
    y, x = np.mgrid[:height, :width]
    noise = rng.integers(0, 6, (height, width), "u1")
    ep = Episode("cameras", "Kitchen-v1")
    ep.timebase.tick_hz = RATE
    for which, name in enumerate(("front", "wrist")):
        frames = np.empty((steps, height, width, 3), "u1")
        for step in range(steps):
            shade = (x + 2 * y + 3 * step * (which + 1)) // 4 % 200
            frames[step] = (shade + noise)[..., None] + np.array([0, 20, 40], "u1")
            frames[step, :32, :32] = [step, 255 - step, 128]
        ep.observations[name] = frames
    ep.observations["joint_pos"] = np.sin(np.arange(steps * 3, dtype="f4") / 40).reshape(steps, 3)
    ep.actions["ctrl"] = np.zeros((steps, 2), "f4")
    ep.rewards = np.zeros(steps, "f4")
    save_wshard(ep, path, profile="training", fsync=False)


def posters(path: Path) -> None:
    """The same cameras, with an overview file beside them."""
    cameras(path)
    write_overviews(path, fsync=False)


class Scene:
    """A table, a cup, and an arm of two links that is seen from the side."""

    def __init__(self, height: int, width: int, part: tuple[slice, slice] = np.s_[:, :]) -> None:
        self.y, self.x = np.mgrid[:height, :width][(slice(None), *part)].astype("f4")
        self.height, self.width = height, width

    def picture(self, joints: np.ndarray, cup: np.ndarray) -> np.ndarray:
        """What the camera sees; `cup` is where the cup stands, in arm lengths."""
        out = np.empty((*self.x.shape, 3), "f4")
        out[:] = np.array([218, 222, 228]) - 26 * (self.y / self.height)[..., None]
        floor = self.height * 0.86
        self.fill(out, self.y - floor, [150, 122, 96])
        self.fill(out, self.y - floor - 4, [126, 101, 79])
        unit = self.height * 0.36
        base = np.array([self.width * 0.22, floor])
        elbow = base + unit * np.array([np.cos(joints[0]), -np.sin(joints[0])])
        angle = joints[0] + joints[1]
        hand = elbow + unit * np.array([np.cos(angle), -np.sin(angle)])
        place = base + unit * cup * np.array([1, -1])
        side = unit * 0.16
        self.fill(
            out,
            side - np.maximum(abs(self.x - place[0]), abs(self.y - place[1] + side)),
            [36, 116, 160],
        )
        self.fill(
            out,
            side * 0.72
            - np.maximum(abs(self.x - place[0]), abs(self.y - place[1] + 1.7 * side) * 3),
            [222, 240, 247],
        )
        for start, end, thick in ((base, elbow, 0.11), (elbow, hand, 0.085)):
            self.fill(out, unit * thick - self.distance(start, end), [232, 119, 34])
            self.fill(out, unit * thick * 0.45 - self.distance(start, end), [247, 160, 86])
        for joint, size in ((base, 0.17), (elbow, 0.13), (hand, 0.09)):
            self.fill(
                out, unit * size - np.hypot(self.x - joint[0], self.y - joint[1]), [52, 58, 70]
            )
        grip = joints[2]
        for sign in (-1, 1):
            tip = hand + unit * np.array([0.2, sign * (0.05 + 0.09 * grip)])
            self.fill(out, unit * 0.035 - self.distance(hand, tip), [52, 58, 70])
        return np.clip(out, 0, 255)

    def distance(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """From each pixel to a piece of a line."""
        along = end - start
        share = ((self.x - start[0]) * along[0] + (self.y - start[1]) * along[1]) / (along @ along)
        share = np.clip(share, 0, 1)
        return np.hypot(self.x - start[0] - share * along[0], self.y - start[1] - share * along[1])

    @staticmethod
    def fill(out: np.ndarray, inside: np.ndarray, colour: list[int]) -> None:
        """With soft edges: `inside` is how far a pixel is from the edge."""
        cover = np.clip(inside + 0.5, 0, 1)[..., None]
        out += cover * (np.array(colour, "f4") - out)


def blurred(picture: np.ndarray, times: int) -> np.ndarray:
    """As a model dreams it."""
    for _ in range(times):
        for axis in (0, 1):
            picture = (np.roll(picture, 1, axis) + picture + np.roll(picture, -1, axis)) / 3
    return picture


def reach(path: Path) -> None:
    """An arm lifts a cup and loses it at step 210; the model does not foresee that."""
    save_wshard(reaching(), path, profile="training", fsync=False)


def reaching() -> Episode:
    """An arm that lifts a cup, and what a world model predicted."""
    steps, slip = 300, 210
    rng = np.random.default_rng(7)
    share = np.linspace(0, 1, steps)
    down = 1 / (1 + np.exp(-(share - 0.22) * 24))
    up = 1 / (1 + np.exp(-(share - 0.58) * 22))
    joints = np.stack(
        [
            1.9 - 1.35 * down + 0.75 * up,
            -1.25 - 0.3 * down + 0.2 * np.sin(9 * share),
            1 - (share > 0.4),
        ],
        1,
    ).astype("f4")
    joints[:, 2] = np.convolve(np.pad(joints[:, 2], 6, "edge"), np.ones(13) / 13, "valid")
    truth = joints.copy()
    jerk = np.exp(-(np.arange(steps) - slip) / 22) * (np.arange(steps) >= slip)
    truth[:, 0] += 0.42 * jerk * np.cos((np.arange(steps) - slip) / 5)
    truth[:, 1] -= 0.3 * jerk * np.cos((np.arange(steps) - slip) / 6)
    truth += rng.normal(0, 0.004, truth.shape)
    spread = np.full(truth.shape, 0.05, "f4")
    spread[slip + 4 : slip + 60] += 0.09
    predicted = joints + rng.normal(0, 0.008, joints.shape)

    angle = joints[:, 0] + joints[:, 1]
    hand = np.stack([np.cos(joints[:, 0]) + np.cos(angle), np.sin(joints[:, 0]) + np.sin(angle)], 1)
    grasp = int(0.42 * steps)
    cup = np.tile(hand[grasp] + [0.13, -0.16], (steps, 1))
    cup[:, 1] = np.maximum(cup[:, 1], 0)
    cup[grasp:slip] = cup[grasp] + hand[grasp:slip] - hand[grasp]
    fall = np.arange(steps - slip) / RATE
    cup[slip:] = cup[slip - 1] + np.stack([0.5 * fall, -4.5 * fall**2], 1)
    cup[:, 1] = np.maximum(cup[:, 1], 0)
    dreamed = cup.copy()
    dreamed[slip:] = cup[grasp] + hand[slip:] - hand[grasp]

    scene = Scene(120, 160)
    front = np.stack([scene.picture(truth[at], cup[at]) for at in range(steps)]).astype("u1")
    dream = np.stack(
        [blurred(scene.picture(joints[at], dreamed[at]), 1) for at in range(steps)]
    ).astype("u1")
    near = Scene(240, 320, np.s_[60:180, 110:270])
    wrist = np.stack([near.picture(truth[at], cup[at]) for at in range(steps)]).astype("u1")

    force = (
        2.2 * (np.arange(steps) > grasp) * (np.arange(steps) < slip) + rng.normal(0, 0.08, steps)
    ).astype("f4")
    force[150:156] = np.nan
    rewards = np.where(np.arange(steps) < slip, 0.02 + 0.05 * up, -0.01).astype("f4")
    rewards[slip] = -1

    ep = Episode("lift_cup_0042", "KitchenArm-v2")
    ep.metadata = {"task": "lift the cup", "success": False, "operator": "ada", "robot": "arm-03"}
    ep.timebase.tick_hz = RATE
    ep.observations["front"] = front
    ep.observations["wrist"] = wrist
    ep.observations["joint_pos"] = truth.astype("f4")
    ep.observations["joint_pos"].unit = "rad"
    ep.observations["grip_force"] = force
    ep.observations["grip_force"].unit = "N"
    ep.actions["ctrl"] = np.gradient(joints, axis=0).astype("f4") * RATE
    ep.rewards = rewards
    ep.terminations = np.arange(steps) == steps - 1
    ep.omens["joint_pos"]["dreamer"] = predicted.astype("f4")
    ep.omens["front"]["dreamer"] = dream
    ep.uncerts["joint_pos"]["dreamer"]["std"] = spread
    ep.labels["phase"] = [
        (0, 60, "reach"),
        (60, grasp, "close in"),
        (grasp, 170, "grasp"),
        (170, slip, "lift"),
        (slip, steps, "slip", "operator", 0.9),
    ]
    return ep


def main(folder: str, *names: str) -> None:
    """Writes the episodes that are named."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names:
        {"cameras": cameras, "posters": posters, "reach": reach}[name](
            Path(folder) / f"{name}.wshard"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
