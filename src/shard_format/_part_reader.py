"""Parts of one entry, read again and again: windows of a channel, pages of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shard_format.errors import Closed, InvalidArgument, ShardError

if TYPE_CHECKING:
    from shard_format._content import Content
    from shard_format._frame_decoding import FrameDecoder
    from shard_format._layout import IndexRow
    from shard_format.reader import ShardReader

__all__ = ["PartReader"]


class PartReader:
    """Reads parts of one seekable entry. What is the same for all of them was looked up and checked before.

    Made by `ShardReader.part_reader`. As the reader, it may be shared by threads and inherited by forked
    processes; it ends with the reader.
    """

    __slots__ = ("_content", "_decoder", "_name", "_reader", "_row")

    def __init__(
        self,
        reader: ShardReader,
        content: Content,
        decoder: FrameDecoder,
        row: IndexRow,
        name: str,
    ) -> None:
        self._reader = reader
        self._content = content
        self._decoder = decoder
        self._row = row
        self._name = name

    def read_into(self, start: int, out: memoryview) -> None:
        """Fills memory, as plain bytes, with those of the entry from `start` on.

        Raises:
            InvalidArgument: the entry ends before, or the memory cannot be written to.
            ShardError: a subclass that says what is wrong with the stored bytes.
        """
        reader = self._reader
        if reader.closed:
            raise Closed("the reader is closed", path=reader.name)
        try:
            check_range(self._row, start, start + len(out))
            if out.readonly:
                raise InvalidArgument("the memory is read-only")
            self._content.decode_frames_into(self._row, self._decoder, start, out)
        except ShardError as error:
            raise reader.located(error, self._name) from None

    def whole_frames(self, start: int, stop: int) -> tuple[int, int]:
        """First and end byte of the content of the frames that hold a range."""
        starts = self._decoder.table.content_starts
        frames = self._decoder.frames_for(start, stop)
        return int(starts[frames.start]), int(starts[frames.stop])


def check_range(row: IndexRow, start: int, stop: int) -> None:
    """Refuses a range that is not inside an entry."""
    if not 0 <= start <= stop <= row.orig_size:
        raise InvalidArgument(
            "the range is outside the entry",
            expected=f"0 <= start <= stop <= {row.orig_size}",
            found=f"start {start}, stop {stop}",
        )
