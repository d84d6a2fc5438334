"""Which channels the episodes of a dataset have, as the index describes them, and which of these items hold.

A *form* is what one episode has: the layout, type and shape of each channel, and the names of its labels and residuals.
Episodes of one robot mostly have the same form, so the index stores each form once, and comparing ten thousand
episodes means comparing a few forms.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from shard_format.canonical_json import parse_object
from shard_format.errors import BadMetadata, EntryNotFound, InvalidArgument, ShardError
from shard_format.registry import DEFAULT_LIMITS
from wshard.types import Channel, DType, VideoChannel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from wshard.catalogue._rows import Catalogue
    from wshard.types import Episode

__all__ = [
    "LABELS",
    "METADATA",
    "ChannelForm",
    "EpisodeForms",
    "describe_form",
]

LABELS: Final = "label/"
METADATA: Final = "metadata/"
_STEP_LANES: Final = ("signal/", "action/")
_CHANNEL_LANES: Final = (*_STEP_LANES, "omen/", "uncert/")
_WITHOUT_FORM: Final = "none"
_UNKNOWN_LAYOUT: Final = "unknown"
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


class ChannelForm(NamedTuple):
    """What a channel is, apart from its values and its length."""

    layout: str
    """`dense`, `text` or `ragged`; `none` for a label or a residual, `unknown` for what cannot be read."""
    dtype: DType
    shape: tuple[int, ...]
    """Of a step, or of an item of ragged data."""
    has_own_clock: bool

    @property
    def is_readable(self) -> bool:
        """Whether it has values for steps, in a layout that this version knows."""
        return self.layout in ("dense", "text", "ragged")

    def __str__(self) -> str:
        if self.layout in ("text", _WITHOUT_FORM):
            kind = "text" if self.layout == "text" else "intervals"
        else:
            ragged = "ragged " if self.layout == "ragged" else ""
            kind = f"{ragged}{self.dtype} {list(self.shape)}"
        return f"{kind} with a clock of its own" if self.has_own_clock else kind


Form = dict[str, ChannelForm]
"""The channels of an episode by block, lane by lane, and its labels and residuals."""


def describe_form(episode: Episode) -> str:
    """The form of an open episode as a line of JSON; reads no values."""
    found: dict[str, Any] = {}
    for block, channel in episode.blocks():
        if block.startswith(_CHANNEL_LANES):
            # Frames that are decoded are arrays like others: a dataset may hold cameras in both ways.
            is_array = type(channel) is Channel or isinstance(channel, VideoChannel)
            layout = _UNKNOWN_LAYOUT if channel.layout == "dense" else channel.layout
            found[block] = [
                "dense" if is_array else layout,
                channel.dtype_name.value,
                list(channel.step_shape),
                int(channel.has_own_clock),
            ]
    found.update((LABELS + name, None) for name in episode.labels)
    found.update((f"residual/{name}", None) for name in episode.residuals)
    return _encode(found)


def _parse_form(line: str) -> Form:
    """The form that an index has as a line.

    Raises:
        BadMetadata: the index is damaged.
    """
    try:
        fields = parse_object(line.encode(), "the form of an episode", DEFAULT_LIMITS)
        return {block: _parse_channel(row) for block, row in fields.items()}
    except (ShardError, TypeError, ValueError, AttributeError):
        raise BadMetadata(
            "the saved index has no readable description of an episode's channels",
            found=line[:80],
            hint="delete the index; it is made again when you open the dataset",
        ) from None


def _parse_channel(row: Any) -> ChannelForm:  # noqa: ANN401 - checked here
    if row is None:
        return ChannelForm(_WITHOUT_FORM, DType.UINT8, (), False)
    layout, dtype, shape, has_own_clock = row
    return _channel_form(layout, dtype, tuple(shape), bool(has_own_clock))


@lru_cache(maxsize=4096)
def _channel_form(
    layout: str, dtype: str, shape: tuple[int, ...], has_own_clock: bool
) -> ChannelForm:
    # Episodes have mostly the same channels: looking one up takes a tenth of the time.
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(shape)
    return ChannelForm(str(layout), DType.parse(dtype), shape, has_own_clock)


@dataclass(frozen=True)
class EpisodeForms:
    """The forms of the chosen episodes."""

    forms: list[Form]
    """Each form once, in the order of the episodes that have it first."""
    firsts: list[int]
    """The first episode of each form."""
    of_episode: NDArray[np.int64]
    """The form of each episode."""
    paths: Sequence[str]

    @classmethod
    def of(cls, chosen: Catalogue) -> EpisodeForms:
        """Parses the forms that the chosen episodes have."""
        numbers, firsts, of_episode = np.unique(
            chosen.rows["form"], return_index=True, return_inverse=True
        )
        order = np.argsort(firsts)
        places = np.argsort(order)
        return cls(
            [_parse_form(chosen.forms[int(numbers[at])]) for at in order],
            firsts[order].tolist(),
            places[of_episode.reshape(-1)],
            chosen.locations,
        )

    def find(self, name: str) -> str | None:
        """The block that a name means, as `Episode.find` looks for it, in all episodes together; or a label."""
        for block in (*(lane + name for lane in _STEP_LANES), name):
            if any(block in form for form in self.forms):
                return block
        return None

    def step_blocks(self, *, all_episodes: bool) -> list[str]:
        """The observations and actions of all episodes together, or of the first one."""
        forms = self.forms if all_episodes else self.forms[:1]
        blocks = dict.fromkeys(block for form in forms for block in form)
        return [block for lane in _STEP_LANES for block in blocks if block.startswith(lane)]

    def name_of(self, block: str) -> str:
        """The name of an observation or action: with the lane where both lanes have one."""
        lane, _, name = block.partition("/")
        other = f"{'action' if lane == 'signal' else 'signal'}/{name}"
        return block if any(other in form for form in self.forms) else name

    def first_with(self, block: str) -> tuple[int, ChannelForm]:
        """The first episode that has a block, and what it is there."""
        for number, form in zip(self.firsts, self.forms, strict=True):
            if block in form:
                return number, form[block]
        raise KeyError(block)

    def missing(self, block: str) -> NDArray[np.bool_]:
        """Which episodes lack a block."""
        return np.array([block not in form for form in self.forms], np.bool_)[self.of_episode]

    def compare(self, blocks: Mapping[str, str], *, may_lack: bool) -> None:
        """Checks that every episode has these blocks, and has them in the same form.

        Args:
            blocks: by the names that errors use.
            may_lack: whether an episode may lack some.

        Raises:
            EntryNotFound: an episode lacks a channel.
            InvalidArgument: a channel has a different type or shape in one episode than in another.
        """
        for name, block in blocks.items():
            first, expected = self.first_with(block)
            for number, form in zip(self.firsts, self.forms, strict=True):
                found = form.get(block)
                if found is None and may_lack:
                    continue
                if found is None:
                    raise self._lacking(name, block, number, first)
                # What is looked up by time may also follow the steps.
                if found[:3] != expected[:3] or found.has_own_clock > expected.has_own_clock:
                    raise InvalidArgument(
                        "an episode has a different kind of channel than the others",
                        path=self.paths[number],
                        entry=name,
                        expected=f"{expected}, as in {self.paths[first]}",
                        found=str(found),
                        hint="choose channels with channels=[…], or episodes with where=",
                    )

    def _lacking(self, name: str, block: str, number: int, having: int) -> EntryNotFound:
        lacking = int(self.missing(block).sum())
        return EntryNotFound(
            f"an episode lacks a channel that {self.paths[having]} has",
            path=self.paths[number],
            entry=name,
            found=f"{lacking} of {len(self.of_episode)} episodes without it",
            hint="pass missing='fill' to fill and mark it, channels=[…] to choose others, or where= to "
            "choose episodes",
        )

    def left_out(self, held: Iterable[str], metadata: Iterable[str]) -> list[str]:
        """The names of all that the episodes have, except these blocks, and of these fields of metadata."""
        blocks = dict.fromkeys(block for form in self.forms for block in form)
        taken = set(held)
        left = [block for block in blocks if block not in taken]
        named = [self.name_of(b) if b.startswith(_STEP_LANES) else b for b in left]
        return [*named, *(METADATA + field for field in metadata)]
