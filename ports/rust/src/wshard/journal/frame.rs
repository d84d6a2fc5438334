//! The frames of a journal (spec/journal.md, section 2). Only this file knows their offsets.

use std::sync::Arc;

use crate::hash::{crc32c, crc32c_append};
use crate::shard::Source;
use crate::wshard::fields::size_mismatch;
use crate::{Code, Error, Result};

const MAGIC: [u8; 4] = *b"WSJ1";
pub(crate) const HEAD: usize = 40;
/// What the checksum of the head covers.
const COVERED: usize = 36;
/// The most bytes of a compressed run.
pub(crate) const LARGEST_RUN: u32 = 1 << 30;
const LARGEST_RATIO: u64 = 32_768;
/// How much is read at a time: whole offsets.
const PIECE: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Start = 1,
    Run,
    Note,
    End,
}

/// What stands before the bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) is_compressed: bool,
    pub(crate) channel: u16,
    pub(crate) entries: u32,
    pub(crate) stored_size: u32,
    pub(crate) content_size: u32,
    pub(crate) content_crc: u32,
    pub(crate) sequence: u64,
    pub(crate) stored_crc: u32,
}

impl Head {
    /// The head as it is stored.
    pub(crate) fn to_bytes(self) -> [u8; HEAD] {
        let mut out = Vec::with_capacity(HEAD);
        out.extend(MAGIC);
        out.extend([self.kind as u8, u8::from(self.is_compressed)]);
        out.extend(self.channel.to_le_bytes());
        for number in [self.entries, self.stored_size, self.content_size, self.content_crc] {
            out.extend(number.to_le_bytes());
        }
        out.extend(self.sequence.to_le_bytes());
        out.extend(self.stored_crc.to_le_bytes());
        out.extend(crc32c(&out).to_le_bytes());
        out.try_into().unwrap_or([0; HEAD]) // it has as many bytes
    }

    /// Reads a head, and makes all checks that need nothing else (J-FRM-2 to J-FRM-10). The sequence is the one that must
    /// follow.
    fn parse(data: &[u8; HEAD], sequence: u64) -> Result<Self> {
        let broken = |code, rule, problem: &'static str| Err(Error::new(code, rule, problem));
        if !data.starts_with(&MAGIC) {
            return broken(Code::BadMagic, "J-FRM-2", "no frame starts here");
        }
        let u32_at = |at: usize| u32::from_le_bytes(bytes_at(data, at));
        if u32_at(COVERED) != crc32c(data.split_at(COVERED).0) {
            return broken(Code::ChecksumMismatch, "J-FRM-3", "the head of a frame is damaged");
        }
        let [kind] = bytes_at(data, 4);
        let kind = match kind {
            1 => Kind::Start,
            2 => Kind::Run,
            3 => Kind::Note,
            4 => Kind::End,
            _ => return broken(Code::BadHeader, "J-FRM-4", "a frame has an unknown kind"),
        };
        let is_compressed = match (bytes_at(data, 5), kind) {
            ([0], _) => false,
            ([1], Kind::Run) => true,
            _ => {
                return broken(Code::UnknownCodec, "J-FRM-5", "a frame has a codec that its kind does not have");
            }
        };
        let head = Self {
            kind,
            is_compressed,
            channel: u16::from_le_bytes(bytes_at(data, 6)),
            entries: u32_at(8),
            stored_size: u32_at(12),
            content_size: u32_at(16),
            content_crc: u32_at(20),
            sequence: u64::from_le_bytes(bytes_at(data, 24)),
            stored_crc: u32_at(32),
        };
        if head.sequence != sequence {
            let problem = "a frame is not the one that must follow";
            return Err(Error::new(Code::BadHeader, "J-FRM-6", problem)
                .with_expected(sequence)
                .with_found(head.sequence));
        }
        if !is_compressed && head.stored_size != head.content_size {
            return Err(size_mismatch(
                "J-FRM-7",
                "a raw frame has two different sizes",
                head.content_size,
                head.stored_size,
            ));
        }
        if !is_compressed && head.stored_crc != head.content_crc {
            return broken(Code::ChecksumMismatch, "J-FRM-8", "a raw frame has two different checksums");
        }
        if is_compressed && head.stored_size.max(head.content_size) > LARGEST_RUN {
            return broken(Code::LimitExceeded, "J-FRM-9", "a compressed run is larger than 1 GiB");
        }
        let reachable = u64::from(head.stored_size).saturating_mul(LARGEST_RATIO);
        if is_compressed && u64::from(head.content_size) > reachable {
            let expected = format_args!("at most {reachable} bytes");
            return Err(size_mismatch(
                "J-FRM-10",
                "a run cannot decode to the stated size",
                expected,
                head.content_size,
            ));
        }
        Ok(head)
    }
}

/// Some bytes at an offset that the head has.
fn bytes_at<const N: usize>(data: &[u8; HEAD], at: usize) -> [u8; N] {
    data.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// A complete frame, and where its stored bytes are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) head: Head,
    pub(crate) offset: u64,
}

/// Gives the frames of a journal in order, up to the first one that breaks a rule (J-2), in little memory.
pub(crate) struct Frames {
    pub(crate) source: Arc<dyn Source>,
    /// Where the next frame is expected.
    pub(crate) position: u64,
    sequence: u64,
    is_ended: bool,
    /// For a journal that this process has written: the stored bytes of runs are not read.
    pub(crate) is_trusted: bool,
}

impl Frames {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self { source, position: 0, sequence: 0, is_ended: false, is_trusted: false }
    }

    /// The next frame; `None` after the last. It counts once it was accepted.
    pub(crate) fn next(&self) -> Result<Option<Frame>> {
        let left = self.source.len().saturating_sub(self.position);
        if left == 0 {
            return Ok(None);
        }
        if left < HEAD as u64 {
            return Err(Error::new(Code::Truncated, "J-FRM-1", "the head of a frame is cut off"));
        }
        let mut data = [0; HEAD];
        read_at(&*self.source, self.position, &mut data)?;
        let head = Head::parse(&data, self.sequence)?;
        let frame = Frame { head, offset: self.position.saturating_add(HEAD as u64) };
        if u64::from(head.stored_size) > self.source.len().saturating_sub(frame.offset) {
            return Err(Error::new(Code::Truncated, "J-FRM-11", "a frame is cut off"));
        }
        if !self.is_trusted || head.kind != Kind::Run {
            let mut checksum = 0;
            self.pieces(&frame, |piece| {
                checksum = crc32c_append(checksum, piece);
                Ok(())
            })?;
            if checksum != head.stored_crc {
                return Err(Error::new(Code::ChecksumMismatch, "J-FRM-12", "the stored bytes of a frame are damaged"));
            }
        }
        let broken = |code, rule, problem: &'static str| Err(Error::new(code, rule, problem));
        match (self.sequence == 0, head.kind == Kind::Start) {
            (true, false) => broken(Code::BadProfile, "J-ORD-1", "the first frame is not a start frame"),
            (false, true) => broken(Code::BadProfile, "J-ORD-2", "there is a second start frame"),
            _ if self.is_ended => broken(Code::TrailingData, "J-ORD-3", "there is a frame after the end"),
            _ => Ok(Some(frame)),
        }
    }

    /// Counts the frame that `next` gave last.
    pub(crate) fn accept(&mut self, frame: &Frame) {
        self.position = frame.offset.saturating_add(u64::from(frame.head.stored_size));
        self.sequence = self.sequence.saturating_add(1);
        self.is_ended = frame.head.kind == Kind::End;
    }

    /// Calls a function with the stored bytes of a frame, some at a time.
    pub(crate) fn pieces(&self, frame: &Frame, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let end = frame.offset.saturating_add(u64::from(frame.head.stored_size));
        let mut at = frame.offset;
        let mut room = vec![0; PIECE.min(frame.head.stored_size as usize)];
        while at < end {
            let count = usize::try_from(end.saturating_sub(at)).unwrap_or(PIECE).min(room.len());
            let piece = room.get_mut(..count).unwrap_or_default();
            read_at(&*self.source, at, piece)?;
            each(piece)?;
            at = at.saturating_add(count as u64);
        }
        Ok(())
    }

    /// All stored bytes of a frame, which are in the file.
    pub(crate) fn stored(&self, frame: &Frame) -> Result<Vec<u8>> {
        let mut data = vec![0; frame.head.stored_size as usize];
        read_at(&*self.source, frame.offset, &mut data)?;
        Ok(data)
    }
}

/// Reads bytes. A file that has become shorter is a frame that is cut off.
pub(crate) fn read_at(source: &dyn Source, offset: u64, data: &mut [u8]) -> Result<()> {
    source.read_at(offset, data).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::new(Code::Truncated, "J-FRM-11", "the journal has become shorter"),
        _ => Error::io("cannot read the journal", source.path(), e),
    })
}
