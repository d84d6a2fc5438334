"""What to record step by step, and the SHA-256 of the journal and of the episode that every recorder makes of it (J-10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from _canonical import Canonical
from _canonical_episode import entries_of, timebase_fields
from _episode_draft import f32, i32, i64, numbers, row_for
from _journal import Recording

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _metadata import JsonObject

Values = dict[str, bytes]
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Channel:
    """A channel that is declared before the recording begins."""

    id: str
    dtype: str = "f32"
    shape: tuple[int, ...] = ()
    lane: str = "signal"
    layout: str = "dense"
    own_clock: bool = False
    item_size: int = 4

    @property
    def block(self) -> str:
        return f"{self.lane}/{self.id}"

    @property
    def is_ragged(self) -> bool:
        return self.layout != "dense"

    @property
    def rows(self) -> list[JsonObject]:
        """Its row, and that of its offsets."""
        fields: JsonObject = {"time_block": f"time/{self.block}"} if self.own_clock else {}
        if not self.is_ragged:
            return [row_for(self.block, self.dtype, self.shape, **fields)]
        offsets = f"offsets/{self.block}"
        fields |= {"layout": self.layout, "offsets_block": offsets}
        return [
            row_for(self.block, self.dtype, self.shape, **fields),
            row_for(offsets, "i64"),
        ]

    def told(self) -> JsonObject:
        return {
            "dtype": self.dtype,
            "id": self.id,
            "lane": self.lane,
            "layout": self.layout,
            "own_clock": self.own_clock,
            "shape": [str(size) for size in self.shape],
        }

    def in_episode(self, values: list[bytes]) -> JsonObject:
        """As the case of an episode tells it."""
        told: JsonObject = {
            "dtype": self.dtype,
            "layout": self.layout,
            "shape": [str(size) for size in self.shape],
        }
        if self.layout == "text":
            return told | {"text": [value.decode() for value in values]}
        if self.layout == "ragged":
            return told | {"items": [value.hex() for value in values]}
        return told | {"hex": b"".join(values).hex()}


@dataclass(frozen=True)
class Step:
    """A value for each channel that follows the steps, and what else is told."""

    values: Values
    reward: float | None = None
    done: bool | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    timestamp_ns: int | None = None

    def told(self) -> JsonObject:
        told: JsonObject = {"values": {key: value.hex() for key, value in self.values.items()}}
        for key in ("reward", "done", "terminated", "truncated"):
            if getattr(self, key) is not None:
                told[key] = getattr(self, key)
        if self.timestamp_ns is not None:
            told["timestamp_ns"] = str(self.timestamp_ns)
        return {"step": told}


FACTS = {"reward": "f64", "done": "bool", "terminated": "bool", "truncated": "bool"}


@dataclass(frozen=True)
class Write:
    """An entry of a channel with a clock of its own."""

    channel: str
    value: bytes
    timestamp_ns: int

    def told(self) -> JsonObject:
        told = {"channel": self.channel, "timestamp_ns": str(self.timestamp_ns)}
        return {"write": told | {"value": self.value.hex()}}


@dataclass(frozen=True)
class Annotation:
    label: str
    text: str
    start: int
    end: int

    @property
    def interval(self) -> JsonObject:
        return {"end": self.end, "start": self.start, "text": self.text}

    def told(self) -> JsonObject:
        told = {"end": str(self.end), "start": str(self.start)}
        return {"annotate": told | {"label": self.label, "text": self.text}}


Call = Step | Write | Annotation


@dataclass
class _Runs:
    """Entries of a channel that wait, and where the next offset starts."""

    channel: Channel
    number: int
    waiting: list[bytes] = field(default_factory=list)
    items: int | None = None

    def flush(self, recording: Recording) -> Recording:
        values, self.waiting = self.waiting, []
        if not values:
            return recording
        content = b"".join(values)
        if not self.channel.is_ragged:
            return recording.run(self.number, len(values), content)
        size = self.channel.item_size
        if content:
            recording = recording.run(self.number, len(content) // size, content)
        ends = [0] if self.items is None else []
        self.items = self.items or 0
        for value in values:
            self.items += len(value) // size
            ends.append(self.items)
        return recording.run(self.number + 1, len(ends), i64(*ends))


class _Journal:
    """The frames that a recorder writes for these calls."""

    def __init__(
        self, episode: JsonObject, channels: tuple[Channel, ...], calls: list[Call], most: int
    ) -> None:
        clocked = [channel for channel in channels if channel.own_clock]
        followers = [channel for channel in channels if not channel.own_clock]
        self.runs: dict[str, _Runs] = {}
        """In the order of the numbers of the channels."""
        self.count = 0
        rows: list[JsonObject] = []
        for channel in clocked:
            rows += self._declare(channel)
            rows += self._declare(Channel(channel.block, "i64", lane="time"))
        self.recording = Recording().text(1, {"channels": rows, "episode": episode, "v": 1})
        first = next(call for call in calls if isinstance(call, Step))
        facts = [Channel(fact, dtype, lane="") for fact, dtype in FACTS.items()]
        told = [fact for fact in facts if getattr(first, fact.id) is not None]
        if first.timestamp_ns is not None:
            told.append(Channel("timestamps_ns", "i64", lane="time"))
        rows = []
        for channel in (*followers, *told):
            rows += self._declare(channel)
        self.recording = self.recording.note(channels=rows)
        waiting = 0
        for call in calls:
            if isinstance(call, Step):
                self._step(call)
                waiting += 1
                if waiting == most:
                    self.flush(
                        *(channel.block.removeprefix("/") for channel in (*followers, *told))
                    )
                    waiting = 0
            elif isinstance(call, Write):
                channel = next(one for one in clocked if one.id == call.channel)
                self.runs[channel.block].waiting.append(call.value)
                self.runs[f"time/{channel.block}"].waiting.append(i64(call.timestamp_ns))
            else:
                note = {"interval": call.interval, "label": call.label, "unit": "steps"}
                self.recording = self.recording.note(**note)
        self.flush()

    def _declare(self, channel: Channel) -> list[JsonObject]:
        block = channel.block.removeprefix("/")
        self.runs[block] = _Runs(channel, self.count)
        rows = channel.rows if channel.lane else [row_for(block, channel.dtype)]
        self.count += len(rows)
        return rows

    def _step(self, step: Step) -> None:
        for key, value in step.values.items():
            block = f"signal/{key}" if f"signal/{key}" in self.runs else f"action/{key}"
            self.runs[block].waiting.append(value)
        if step.reward is not None:
            self.runs["reward"].waiting.append(numbers("d", step.reward))
        for key in ("done", "terminated", "truncated"):
            if getattr(step, key) is not None:
                self.runs[key].waiting.append(bytes([getattr(step, key)]))
        if step.timestamp_ns is not None:
            self.runs["time/timestamps_ns"].waiting.append(i64(step.timestamp_ns))

    def flush(self, *blocks: str) -> None:
        """Writes what waits, of these blocks or of all."""
        for block in blocks or self.runs:
            self.recording = self.runs[block].flush(self.recording)


def _episode(
    facts: JsonObject, channels: tuple[Channel, ...], calls: list[Call], final: Values
) -> JsonObject:
    """What the finished episode holds."""
    steps = [call for call in calls if isinstance(call, Step)]
    told: dict[str, Any] = {**facts, "length": str(len(steps)), "observations": {}, "actions": {}}
    for channel in channels:
        if channel.own_clock:
            writes = [c for c in calls if isinstance(c, Write) and c.channel == channel.id]
            one = channel.in_episode([write.value for write in writes])
            one["timestamps_ns"] = [str(write.timestamp_ns) for write in writes]
        else:
            values = [step.values[channel.id] for step in steps]
            values += [final[channel.id]] if channel.id in final else []
            one = channel.in_episode(values)
        told["observations" if channel.lane == "signal" else "actions"][channel.id] = one
    first = steps[0]
    if first.reward is not None:
        hexed = numbers("d", *(step.reward or 0.0 for step in steps)).hex()
        told["rewards"] = {"dtype": "f64", "hex": hexed, "shape": []}
    ends = "done" if first.done is not None else "terminated"
    if getattr(first, ends) is not None:
        told["terminations"] = bytes(getattr(step, ends) for step in steps).hex()
    if first.truncated is not None:
        told["truncations"] = bytes(bool(step.truncated) for step in steps).hex()
    if first.timestamp_ns is not None:
        told["timestamps_ns"] = [str(step.timestamp_ns) for step in steps]
        told["timebase"] = {**told["timebase"], "type": "timestamps_ns"}
    for note in (call for call in calls if isinstance(call, Annotation)):
        label = told.setdefault("labels", {}).setdefault(
            note.label, {"intervals": [], "unit": "steps"}
        )
        label["intervals"].append(note.interval)
    return told


def _case(
    name: str,
    description: str,
    channels: tuple[Channel, ...],
    calls: list[Call],
    *,
    final: Values | None = None,
    flush_steps: int = 4,
    rate: float | None = 30.0,
    epoch_ns: int = 0,
    metadata: JsonObject | None = None,
) -> Canonical:
    timebase: JsonObject = {"epoch_ns": str(epoch_ns), "tick_hz": rate, "type": "ticks"}
    facts: JsonObject = {"env_id": "Reach-v1", "id": "ep", "timebase": timebase}
    start: JsonObject = {
        "env_id": "Reach-v1",
        "episode_id": "ep",
        "timebase": timebase_fields(timebase),
    }
    if metadata:
        facts["metadata"] = start["metadata"] = metadata
    given: JsonObject = {
        "calls": [call.told() for call in calls],
        "channels": [channel.told() for channel in channels],
        "episode": facts,
        "final": {key: value.hex() for key, value in (final or {}).items()},
        "options": {"compression": "none", "flush_steps": str(flush_steps)},
    }
    journal = _Journal(start, channels, calls, flush_steps).recording.data
    entries = entries_of(_episode(facts, channels, calls, final or {}))
    return Canonical(
        *(f"recording_{name}", description, ("J-10", "W-WRT-1"), "recording", given, entries),
        journal=journal,
    )


def recording_cases() -> Iterator[Canonical]:
    state, arm = Channel("state", shape=(2,)), Channel("arm", "i32", lane="action")
    steps: list[Call] = [
        Step({"state": f32(step, step / 4), "arm": i32(-step)}, reward=step / 10, done=step == 9)
        for step in range(10)
    ]
    yield _case("steps", "Ten steps in runs of four, four and two.", (state, arm), steps)
    yield _case("one_run", "The same in one run.", (state, arm), steps, flush_steps=64)
    timed: list[Call] = [
        Step(
            {"state": f32(step, -step)},
            reward=float(step),
            terminated=False,
            truncated=step == 4,
            timestamp_ns=1_700_000_000 * SECOND + step * 33_333_333,
        )
        for step in range(5)
    ]
    yield _case(
        "times_and_ends",
        "Steps with times, terminated and truncated, without a rate; metadata; rewards that f32 can hold.",
        *((state,), timed),
        rate=None,
        metadata={"task": "größe", "seed": 7},
    )
    yield _case(
        "final_observation",
        "An observation after the last step, and an epoch.",
        *((state, arm), steps[:6]),
        final={"state": f32(6, 1.5)},
        epoch_ns=1_700_000_000 * SECOND,
    )
    text = Channel("instruction", "u8", layout="text", item_size=1)
    points = Channel("points", "f32", (3,), layout="ragged", item_size=12)
    lengths = (2, 0, 1, 0, 0, 3)
    ragged: list[Call] = [
        Step(
            {
                "instruction": "größe 🤖"[: count * 3].encode(),
                "points": f32(*range(3 * count)),
                "arm": i32(step),
            }
        )
        for step, count in enumerate(lengths)
    ]
    yield _case(
        "text_and_ragged",
        "Runs of two steps; the third has no items at all in its first step, and one has none in both.",
        *((text, points, arm), ragged),
        flush_steps=2,
    )
    imu = Channel("imu", "f32", (3,), own_clock=True)
    mixed: list[Call] = []
    for step in range(3):
        mixed += [Write("imu", f32(step, n, 1), step * 100 + n) for n in range(4)]
        mixed.append(steps[step])
    mixed.insert(7, Annotation("phase", "reach", 0, 2))
    yield _case(
        "own_clock",
        "A channel with a clock of its own, and a label, all in one run.",
        *((state, imu, arm), mixed),
        flush_steps=64,
    )
    both = (Channel("x"), Channel("y", "f64", lane="action"))
    labelled: list[Call] = [Step({"x": f32(n), "y": numbers("d", n / 3)}) for n in range(4)]
    labelled.insert(2, Annotation("notes", "first", 1, 2))
    labelled.append(Annotation("phase", "second", 2, 4))
    yield _case(
        "labels",
        "Labels between steps: a note stands behind the runs that are written, and before those that wait.",
        *(both, labelled),
        flush_steps=2,
    )
