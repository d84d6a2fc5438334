"""What items hold besides channels of numbers: text, ragged data, labels, metadata, and the numbers of steps.

Each of them is a small object: it has a key, finds its data in an open episode, and fills a row of a batch.
Padded ragged data and labels are arrays like those of channels; text and other ragged data are lists with one value
for each item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, Union

import numpy as np

from shard_format.errors import EntryNotFound, InvalidArgument, ShardError
from shard_train._batches import stack_values
from shard_train._episodes.lookups import mask_of
from wshard.catalogue import LABELS, METADATA, ChannelForm, parse_facts
from wshard.types import RaggedChannel, TextChannel
from wshard.windows import make_arrays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wshard.catalogue import Catalogue, EpisodeForms
    from wshard.types import Episode, Intervals
    from wshard.windows import Forms, WindowSource

__all__ = [
    "ChannelRequest",
    "ContentBuffers",
    "Encode",
    "ItemChoice",
    "ItemContent",
    "MetadataColumn",
    "OneHot",
    "choose_items",
    "missing_of",
]

NO_LABEL: Final = -1
"""The class of a step that has no label."""


class OneHot(tuple[str, ...]):
    """The classes of a label that windows hold as one bool for each class: `OneHot(["reach", "grasp"])`.

    Steps may then have several labels.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"OneHot({list(self)})"


Encode: TypeAlias = Mapping[str, Union[Callable[[list[str]], Any], int, "Sequence[str]", "OneHot"]]
"""What `EpisodeDataset(encode=…)` takes."""


def missing_of(key: str) -> str:
    """What says whether an episode lacks a channel; mixtures use the same name."""
    return f"{key}_is_missing"


@dataclass(frozen=True)
class ItemContent(ABC):
    """Something that items hold besides channels of numbers."""

    key: str
    """In the item."""
    block: str
    """In the episode."""
    may_lack: bool = False
    """Whether an episode may lack it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that it has in items."""
        return (self.key,)

    @abstractmethod
    def find(self, episode: Episode) -> Any:  # noqa: ANN401 - what `fill` takes
        """What an open episode has of it; None if it may lack it, and does.

        Raises:
            ShardError: it is not there, or is something else.
        """

    def forms(self, steps: int | None) -> Forms:
        """Its arrays in items of `steps` steps; None for one step without a time axis."""
        return {}

    @abstractmethod
    def fill(self, found: Any, start: int, stop: int, place: RowPlace) -> None:  # noqa: ANN401 - what `find` returns
        """Puts the steps from `start` to `stop` into their place in a batch."""

    def finished(self, values: list[Any]) -> Any:  # noqa: ANN401 - a column
        """The column of a batch, if it is a list. Called by one thread."""
        return values

    def options(self) -> tuple[Any, ...]:
        """What defines it, in any process; for fingerprints."""
        return (self.key, self.block, self.may_lack)


class _ChannelContent(ItemContent):
    """Text or ragged data."""

    kind: type[RaggedChannel] = RaggedChannel

    def find(self, episode: Episode) -> RaggedChannel | None:
        try:
            channel = episode.find(self.block)
        except EntryNotFound:
            if self.may_lack:
                return None
            raise
        if type(channel) is not self.kind or channel.has_own_clock:
            raise InvalidArgument(
                "an episode has a different kind of channel than the others",
                entry=self.block,
                expected=f"{self.kind.layout} that follows the steps",
                found=repr(channel),
            )
        if channel.length < episode.length:
            raise InvalidArgument(
                "the channel is shorter than the episode",
                entry=self.block,
                expected=f"at least {episode.length} steps",
                found=f"{channel.length} steps",
            )
        channel.check_claims()
        return channel


@dataclass(frozen=True)
class TextContent(_ChannelContent):
    """A string for each step, or what the user's function makes of the strings of an item."""

    encode: Callable[[list[str]], Any] | None = None

    kind = TextChannel

    def fill(self, found: TextChannel | None, start: int, stop: int, place: RowPlace) -> None:
        texts = [""] * (stop - start) if found is None else found.read_steps(start, stop)
        if place.steps is None:
            place.put(self.key, texts[0])
        else:
            blank = texts[-1] if place.repeat else ""
            place.put(self.key, texts + [blank] * (place.steps - len(texts)))

    def finished(self, values: list[Any]) -> Any:  # noqa: ANN401 - what the user's function returns
        # Not in the threads that read: tokenizers often cannot be used by several.
        if self.encode is None:
            return values
        is_step = bool(values) and isinstance(values[0], str)
        return stack_values([self.encode([v] if is_step else v) for v in values])

    def options(self) -> tuple[Any, ...]:
        return (*super().options(), "text", self.encode is not None)


@dataclass(frozen=True)
class RaggedContent(_ChannelContent):
    """The items of all steps of a window, and where those of each step start."""

    form: ChannelForm | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, f"{self.key}_offsets")

    def forms(self, steps: int | None) -> Forms:
        return {} if steps is None else {self.keys[1]: ((steps + 1,), np.dtype(np.int64))}

    def fill(self, found: RaggedChannel | None, start: int, stop: int, place: RowPlace) -> None:
        steps = self._items(found, start, stop)
        if place.steps is not None:
            last = steps[-1] if place.repeat else steps[-1][:0]
            steps += [last] * (place.steps - len(steps))
            offsets = place.array(self.keys[1])
            offsets[0] = 0
            np.cumsum([len(items) for items in steps], out=offsets[1:])
        place.put(self.key, np.concatenate(steps))

    def _items(self, found: RaggedChannel | None, start: int, stop: int) -> list[NDArray[Any]]:
        if found is not None:
            items: list[NDArray[Any]] = found.read_steps(start, stop)
            return items
        assert self.form is not None
        return [np.empty((0, *self.form.shape), self.form.dtype.numpy_dtype)] * (stop - start)

    def options(self) -> tuple[Any, ...]:
        return (*super().options(), "ragged", str(self.form))


@dataclass(frozen=True)
class PaddedContent(RaggedContent):
    """Ragged data with room for `most` items in each step, and a mask of what is padding."""

    most: int = 1

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, mask_of(self.key))

    def forms(self, steps: int | None) -> Forms:
        assert self.form is not None
        lead = (self.most,) if steps is None else (steps, self.most)
        return {
            self.key: ((*lead, *self.form.shape), self.form.dtype.numpy_dtype),
            mask_of(self.key): (lead, np.dtype(np.bool_)),
        }

    def fill(self, found: RaggedChannel | None, start: int, stop: int, place: RowPlace) -> None:
        values, is_pad = (place.array(key) for key in self.keys)
        values[...] = 0
        is_pad[...] = True
        for step, items in enumerate(self._items(found, start, stop)):
            if len(items) > self.most:
                raise InvalidArgument(
                    "a step has more items than there is room for",
                    entry=self.block,
                    expected=f"at most {self.most}",
                    found=f"{len(items)} at step {start + step}",
                    hint=f"encode={{{self.key!r}: {len(items)}}} makes room for them",
                )
            values[step, : len(items)] = items
            is_pad[step, : len(items)] = False
        if place.repeat:
            values[stop - start :] = values[stop - start - 1]
            is_pad[stop - start :] = is_pad[stop - start - 1]

    def options(self) -> tuple[Any, ...]:
        return (*super().options(), self.most)


@dataclass(frozen=True)
class LabelContent(ItemContent):
    """The class of each step, or one bool for each class."""

    classes: tuple[str, ...] = ()
    one_hot: bool = False

    def find(self, episode: Episode) -> list[tuple[int, int, int]] | None:
        """Its intervals in steps, with the numbers of their classes."""
        intervals = episode.labels.get(self.block.removeprefix(LABELS))
        if intervals is None:
            if self.may_lack:
                return None
            raise EntryNotFound("the episode lacks a label", entry=self.block)
        return [
            (start, end, self._class_of(item.text))
            for item, (start, end) in zip(intervals, _in_steps(intervals, episode), strict=True)
            if start < end
        ]

    def _class_of(self, text: str) -> int:
        try:
            return self.classes.index(text)
        except ValueError:
            raise InvalidArgument(
                "a label has a text that is not one of its classes",
                entry=self.block,
                expected=", ".join(self.classes),
                found=repr(text),
                hint=f"add it to encode={{{self.key!r}: […]}}",
            ) from None

    def forms(self, steps: int | None) -> Forms:
        lead = () if steps is None else (steps,)
        if self.one_hot:
            return {self.key: ((*lead, len(self.classes)), np.dtype(np.bool_))}
        return {self.key: (lead, np.dtype(np.int64))}

    def fill(
        self, found: list[tuple[int, int, int]] | None, start: int, stop: int, place: RowPlace
    ) -> None:
        values = place.array(self.key)
        values[...] = False if self.one_hot else NO_LABEL
        for first, end, number in found or ():
            part = slice(max(first - start, 0), min(end, stop) - start)
            if part.start >= part.stop:
                continue
            if self.one_hot:
                values[part, number] = True
                continue
            others = values[part][(values[part] != NO_LABEL) & (values[part] != number)]
            if len(others):
                names = f"{self.classes[int(others[0])]!r} and {self.classes[number]!r}"
                raise InvalidArgument(
                    "a step has two labels, and one class cannot hold both",
                    entry=self.block,
                    found=f"{names} between steps {max(first, start)} and {min(end, stop)}",
                    hint=f"encode={{{self.key!r}: OneHot({list(self.classes)})}} holds both",
                )
            values[part] = number
        if place.repeat:
            values[stop - start :] = values[stop - start - 1]

    def options(self) -> tuple[Any, ...]:
        return (*super().options(), "label", self.classes, self.one_hot)


def _in_steps(intervals: Intervals, episode: Episode) -> list[tuple[int, int]]:
    """From which step up to which each interval goes."""
    spans = [(item.start, item.end) for item in intervals]
    if intervals.unit == "steps" or not spans:
        return spans
    times = episode.step_times_ns(episode.length)
    return [(int(a), int(b)) for a, b in np.searchsorted(times, np.array(spans), side="left")]


@dataclass(frozen=True)
class MetadataColumn:
    """A field of the metadata of each episode; every item has the value of its episode."""

    key: str
    values: NDArray[Any] | list[Any]
    """One for each episode."""
    is_missing: NDArray[np.bool_] | None
    """Which episodes lack it, if any may."""

    @classmethod
    def of(cls, key: str, chosen: Catalogue, *, may_lack: bool) -> MetadataColumn:
        """Takes the field from the index.

        Raises:
            EntryNotFound: an episode lacks it.
        """
        field = key.removeprefix(METADATA)
        found = [chosen.facts_of(row).metadata.get(field) for row in range(len(chosen.rows))]
        lacking = np.array([value is None for value in found], np.bool_)
        if lacking.all() or (lacking.any() and not may_lack):
            every = set().union(*(chosen.facts_of(row).metadata for row in range(len(chosen.rows))))
            raise EntryNotFound(
                "an episode lacks a field of metadata",
                path=chosen.locations[int(lacking.argmax())],
                entry=key,
                expected=None if field in every else ", ".join(sorted(every)) or "no metadata",
                found=f"{int(lacking.sum())} of {len(found)} episodes without it",
                hint=None if lacking.all() else "pass missing='fill' to fill and mark it",
            )
        kinds = {type(value) for value in found if value is not None}
        blank: Any = None
        if kinds <= {bool} or kinds <= {int} or kinds <= {str}:
            blank = min(kinds, key=str)()
        elif kinds <= {int, float}:
            blank = np.nan
        filled = [blank if value is None else value for value in found]
        is_number = not isinstance(blank, (str, type(None)))
        is_large = kinds <= {int} and any(abs(value) >= 1 << 63 for value in filled)
        values = np.array(filled) if is_number and not is_large else filled
        return cls(key, values, lacking if may_lack else None)

    def take(self, episodes: NDArray[np.int64]) -> dict[str, Any]:
        """The columns of a batch."""
        if isinstance(self.values, np.ndarray):
            column: Any = self.values[episodes]
        else:
            column = [self.values[number] for number in episodes.tolist()]
        if self.is_missing is None:
            return {self.key: column}
        return {self.key: column, missing_of(self.key): self.is_missing[episodes]}


def make_content(
    key: str,
    block: str,
    forms: EpisodeForms,
    encode: Any,  # noqa: ANN401 - checked here
    *,
    may_lack: bool,
) -> ItemContent | None:
    """How items hold a block; None if it is a channel of numbers.

    Args:
        key: in the item.
        block: in the episodes.
        forms: of all episodes.
        encode: what the user gave for it; None for nothing.
        may_lack: whether episodes may lack it.

    Raises:
        InvalidArgument: `encode` is not for this kind of channel.
    """
    form = forms.first_with(block)[1]
    if form.has_own_clock and encode is None:
        return None  # looked up by time, or refused
    if form.layout == "text" and not form.has_own_clock:
        if encode is not None and not callable(encode):
            raise _wrong_encode(key, "text", "a function of the list of strings", encode)
        return TextContent(key, block, may_lack, encode)
    if form.layout == "ragged" and not form.has_own_clock:
        if encode is None:
            return RaggedContent(key, block, may_lack, form)
        if type(encode) is not int or encode < 1:
            raise _wrong_encode(key, "ragged data", "the most items of a step", encode)
        return PaddedContent(key, block, may_lack, form, encode)
    if block.startswith(LABELS):
        classes = tuple(encode) if isinstance(encode, (list, tuple)) else ()
        if not classes or not all(isinstance(one, str) for one in classes):
            raise _wrong_encode(key, "a label", "its classes, such as ['reach', 'grasp']", encode)
        if len(set(classes)) < len(classes):
            raise _wrong_encode(key, "a label", "each class once", encode)
        return LabelContent(key, block, may_lack, classes, isinstance(encode, OneHot))
    if encode is not None:
        kind = "a channel with a clock of its own" if form.has_own_clock else "numbers"
        raise _wrong_encode(
            key, kind, "nothing: encode is for text, ragged data and labels", encode
        )
    return None


def _wrong_encode(key: str, kind: str, expected: str, found: object) -> InvalidArgument:
    return InvalidArgument(
        f"windows hold {kind} in another way",
        entry=key,
        expected=f"encode={{{key!r}: …}} with {expected}",
        found="nothing" if found is None else repr(found)[:80],
    )


# --- which ones


class ChannelRequest(NamedTuple):
    """What the user of a dataset asks for."""

    names: list[str] | None
    """`channels=`; None for all that items can hold."""
    encode: Encode
    fill: bool
    """Whether episodes may lack channels."""
    compare: bool
    """Whether the episodes are compared; otherwise those that do not fit are skipped when they are read."""
    own_clocks: bool
    """Whether channels of numbers with clocks of their own are resampled."""
    own_keys: tuple[str, ...]
    """Keys that every item has."""


class ItemChoice(NamedTuple):
    """What items hold."""

    names: list[str] | None
    """Channels of numbers; None for all that the first episode has."""
    contents: list[ItemContent]
    metadata: list[MetadataColumn]
    may_lack: dict[str, int]
    """Channels of numbers that some episodes lack, with the first episode that has each."""
    left_out: list[str]
    """What episodes have and items do not, if the user did not choose."""


def choose_items(request: ChannelRequest, forms: EpisodeForms, chosen: Catalogue) -> ItemChoice:
    """Decide what items hold, and check that every episode has it.

    Raises:
        EntryNotFound: an episode lacks a channel.
        InvalidArgument: a channel differs between episodes, or `encode` does not fit it.
    """
    if not isinstance(request.encode, Mapping):
        raise InvalidArgument(
            "encode takes a mapping",
            expected="{'name': how to hold it, …}",
            found=repr(request.encode)[:80],
        )
    blocks = _blocks(request, forms)
    contents, dense, columns = [], [], []
    for name, block in blocks.items():
        if block is not None:
            how = request.encode.get(name)
            lacks = request.fill and bool(forms.missing(block).any())
            key = block if name in request.own_keys else name
            content = make_content(key, block, forms, how, may_lack=lacks)
            if content is not None:
                contents.append(content)
                continue
        elif name.startswith(METADATA) and name not in request.encode:
            columns.append(MetadataColumn.of(name, chosen, may_lack=request.fill))
            continue
        dense.append(name)
    known = {name: block for name, block in blocks.items() if block is not None}
    if request.compare:
        forms.compare(known, may_lack=request.fill)
    left: list[str] = []
    if request.names is None:
        fields = parse_facts(chosen.facts[0]).get("metadata")
        left = forms.left_out(known.values(), fields if isinstance(fields, dict) else ())
    return ItemChoice(
        None if request.names is None else dense,
        contents,
        columns,
        {
            name: forms.first_with(known[name])[0]
            for name in dense
            if name in known and request.fill and forms.missing(known[name]).any()
        },
        left,
    )


def _blocks(request: ChannelRequest, forms: EpisodeForms) -> dict[str, str | None]:
    """The blocks of all episodes that are asked for, by name; None for a name that no episode has."""
    if request.names is None:
        found: dict[str, str | None] = {}
        for block in forms.step_blocks(all_episodes=request.compare or request.fill):
            form = forms.first_with(block)[1]
            is_dense = form.layout == "dense"
            if form.is_readable and (not form.has_own_clock or (is_dense and request.own_clocks)):
                found[forms.name_of(block)] = block
    else:
        asked = dict.fromkeys(request.names)
        found = {name: forms.find(name) for name in asked}
        for name in asked:
            if found[name] is None and name in request.own_keys:
                del found[name]
    for name in request.encode:
        found[name] = forms.find(name)
        if found[name] is None:
            error = EntryNotFound(f"no episode has the channel {name!r} that encode names")
            error.wanted, error.candidates = name, forms.left_out((), ())
            raise error
    return found


# --- in a batch


@dataclass(frozen=True)
class RowPlace:
    """The place of one item in a batch."""

    row: int
    steps: int | None
    """Steps of the item; None for one step without a time axis."""
    repeat: bool
    """Whether steps after the end repeat the last one; otherwise they are empty."""
    arrays: Mapping[str, NDArray[Any]]
    columns: Mapping[str, list[Any]]

    def array(self, key: str) -> NDArray[Any]:
        """The part of an array that belongs to the item, with a time axis."""
        found = self.arrays[key]
        return found[self.row : self.row + 1] if self.steps is None else found[self.row]

    def put(self, key: str, value: Any) -> None:  # noqa: ANN401 - text, or an array
        """Puts a value into a column."""
        self.columns[key][self.row] = value


class ContentBuffers:
    """Room for the contents of a batch, which `fill` makes use of row by row, also from several threads.

    Args:
        batch: how many items.
        contents: what items hold.
        steps: of each; None for one step without a time axis.
        repeat: whether steps after the end repeat the last one; otherwise they are empty.
        out: arrays to use again.
    """

    def __init__(
        self,
        batch: int,
        contents: Sequence[ItemContent],
        *,
        steps: int | None,
        repeat: bool,
        out: Mapping[str, Any] | None,
    ) -> None:
        self._contents = contents
        forms: Forms = {}
        for content in contents:
            forms.update(content.forms(steps))
        columns: dict[str, list[Any]] = {
            content.key: [None] * batch for content in contents if content.key not in forms
        }
        self._first = RowPlace(0, steps, repeat, make_arrays(forms, batch, out), columns)

    def fill(self, row: int, source: WindowSource, start: int, stop: int) -> None:
        """Reads the steps from `start` to `stop` into a row."""
        place = replace(self._first, row=row)
        for content in self._contents:
            try:
                content.fill(source.contents[content.key], start, stop, place)
            except ShardError as error:  # noqa: PERF203 - names the channel
                raise error.located(path=source.path, entry=content.block) from None

    def finished(self) -> dict[str, Any]:
        """The columns of the batch."""
        return {
            **self._first.arrays,
            **{
                content.key: content.finished(self._first.columns[content.key])
                for content in self._contents
                if content.key in self._first.columns
            },
        }
