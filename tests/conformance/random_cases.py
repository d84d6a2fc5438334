"""Random cases for writers, in the form of spec/vectors/canonical but without an expected hash.

They are larger and mix more than the cases there. Each follows from its seed.
"""

from __future__ import annotations

import random
import struct
from typing import Any, Final

Told = dict[str, Any]
SIZED: Final = {1: "bool u8 i8", 2: "u16 i16 f16 bf16", 4: "u32 i32 f32", 8: "u64 i64 f64"}
ITEM_SIZES: Final = {name: size for size, names in SIZED.items() for name in names.split()}
SHAPES: Final = ((), (1,), (7,), (3, 4), (2, 2, 3), (0,))
NAMES: Final = ("state", "cam/left", "größe", "a b", "🤖", "x" * 200, "z", "deep/er/still")
WORDS: Final = ("", "pick", "place the cup", "größe", "🤖", "\t", "\x7f", "a" * 300)
NUMBERS: Final = (
    0,
    1,
    -1,
    2**53 - 1,
    2**53 + 1,
    0.1,
    1e21,
    1e-7,
    -0.0,
    5e-324,
    1.7976931348623157e308,
)


def random_episode(seed: int) -> Told:
    """An episode with channels of every kind."""
    chance = random.Random(seed)
    length = chance.choice((1, 2, 17, 100, 257))
    names = chance.sample(NAMES, 4)
    observations = {name: _channel(chance, length) for name in names}
    observations["reach"] = _numbers(chance, length, "f32", (2,))
    told: Told = {
        "id": f"ep_{seed}",
        "env_id": chance.choice(("", "Env-v0", "größe/🤖")),
        "length": str(length),
        "metadata": _object(chance, 3),
        "timebase": {
            "type": "ticks",
            "tick_hz": chance.choice((30.0, 29.97, 1000.0, 0.1, 1 / 3)),
            "epoch_ns": str(chance.choice((0, 1_700_000_000_123_456_789, -5))),
        },
        "observations": observations,
        "actions": {"ctrl": _numbers(chance, length, "f32", (6,))},
        "omens": {"reach": {"dreamer": _numbers(chance, length, "f32", (2,))}},
        "uncerts": {"reach": {"dreamer": {"std": _numbers(chance, length, "f32", (2,))}}},
        "rewards": _numbers(chance, length, chance.choice(("f32", "f64", "i64")), ()),
        "terminations": (bytes(length - 1) + b"\1").hex(),
        "residuals": [
            {"channel": "reach", "model": "dreamer", "type": "delta_q", "window": "16"},
            {"channel": "reach", "model": "", "type": "sign2nddiff"},
        ],
        "labels": {"task": {"unit": "steps", "intervals": _intervals(chance, length)}},
    }
    if length < 3:
        del told["residuals"]
    return {
        "kind": "episode",
        "options": {"compression": "none", "identity": False},
        "episode": told,
    }


def random_pack(seed: int) -> Told:
    """A shard of records with entries of many sizes."""
    chance = random.Random(seed)
    records = []
    for number in range(chance.choice((1, 20, 100))):
        count = chance.randrange(4)
        entries = [
            {
                "name": f"{chance.choice(('a', 'größe', '🤖'))}{entry}.bin",
                "content": f"{chance.choice(('ramp', 'lines'))}:{chance.choice((0, 1, 256, 5000))}",
                "content_type": "application/octet-stream",
            }
            for entry in range(count)
        ]
        record: Told = {"key": f"sample/{number}", "entries": entries}
        if chance.random() < 0.5:
            record["metadata"] = _object(chance, 2)
        records.append(record)
    options = {
        "compression": "none",
        "alignment": chance.choice(("1", "8", "64")),
        "created": "2026-01-01T00:00:00Z",
    }
    return {"kind": "pack", "options": options, "records": records, "user": _object(chance, 1)}


def compressed(case: Told) -> Told:
    """The same case, compressed with zstd."""
    return {**case, "options": {**case["options"], "compression": "zstd"}}


# --- parts


def _channel(chance: random.Random, length: int) -> Told:
    kind = chance.random()
    if kind < 0.15:
        return {
            "dtype": "u8",
            "shape": [],
            "layout": "text",
            "text": [chance.choice(WORDS) for _ in range(length)],
        }
    dtype = chance.choice(tuple(ITEM_SIZES))
    if kind < 0.3:
        items = [_bytes(chance, dtype, 3 * chance.randrange(4)) for _ in range(length)]
        return {"dtype": dtype, "shape": ["3"], "layout": "ragged", "items": items}
    channel = _numbers(chance, length, dtype, chance.choice(SHAPES))
    clock = chance.random()
    if clock < 0.2:
        times, now = [], 0
        for _ in range(length):
            now += chance.randrange(1, 10**9)
            times.append(str(now))
        channel["timestamps_ns"] = times
    elif clock < 0.3:
        channel |= {
            "start_ns": str(chance.randrange(10**12)),
            "sampling_rate_hz": chance.choice((90.0, 29.97)),
        }
    if chance.random() < 0.3:
        channel["row"] = {"unit": "rad", "description": chance.choice(WORDS[1:])}
    return channel


def _numbers(chance: random.Random, length: int, dtype: str, shape: tuple[int, ...]) -> Told:
    count = length
    for size in shape:
        count *= size
    told: Told = {"dtype": dtype, "shape": [str(size) for size in shape], "layout": "dense"}
    told["hex"] = _bytes(chance, dtype, count)
    if 0 in shape:
        told["length"] = str(length)
    return told


def _bytes(chance: random.Random, dtype: str, count: int) -> str:
    """Values that vary slowly, so that some channels compress; floats without NaN, whose bits a machine may change."""
    if dtype == "bool":
        return bytes(chance.randrange(2) for _ in range(count)).hex()
    if dtype in ("f32", "f64"):
        code, at = {"f32": "f", "f64": "d"}[dtype], chance.uniform(-10, 10)
        return struct.pack(f"<{count}{code}", *(at + 0.25 * (n % 9) for n in range(count))).hex()
    size = ITEM_SIZES[dtype]
    start = chance.randrange(100)
    return b"".join(((start + n % 50) % 120).to_bytes(size, "little") for n in range(count)).hex()


def _intervals(chance: random.Random, length: int) -> list[Told]:
    found = []
    for _ in range(chance.randrange(5)):
        start = chance.randrange(length)
        found.append(
            {
                "start": str(start),
                "end": str(chance.randrange(start + 1, length + 1)),
                "text": chance.choice(WORDS[1:]),
                "source": chance.choice((None, "human")),
                "confidence": chance.choice((None, 0.5, 1)),
            }
        )
    return found


def _object(chance: random.Random, depth: int) -> Told:
    return {chance.choice(WORDS[1:]): _value(chance, depth) for _ in range(chance.randrange(5))}


def _value(chance: random.Random, depth: int) -> object:
    kind = chance.randrange(6 if depth else 4)
    if kind == 4:
        return _object(chance, depth - 1)
    if kind == 5:
        return [_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return chance.choice((NUMBERS, WORDS, (None, True, False), (chance.random(),))[kind])
