//! Reads the values of channels.

use std::borrow::Cow;
use std::sync::Arc;

use super::block::{Block, to_usize};
use super::channel::{Channel, Element, Index, Layout};
use super::dtype::{step_bytes, times};
use super::fields::bad_metadata;
use super::timebase::regular_time;
use super::video::{Frame, Needs, Packet, picture_size, states_size};
use crate::json::Value;
use crate::shard::View;
use crate::{Code, Error, Result};

impl Channel {
    /// All bytes of the channel, little-endian in C order: of every step if the layout is dense, otherwise of all items,
    /// strings or packets one after another.
    pub fn data(&self) -> Result<Cow<'_, [u8]>> {
        self.check()?;
        self.data.read().map_err(|e| self.locate(e))
    }

    /// All bytes of the channel, in place where its file can be mapped and stores them raw, and otherwise copied. The view
    /// stays valid without the episode.
    pub fn view(&self) -> Result<View> {
        self.check()?;
        if let Block::Entry(reader, name, _) = &self.data {
            match reader.view(name) {
                Err(e) if e.code() == Code::NotViewable => {}
                view => return view,
            }
        }
        Ok(View::of(self.data()?.into_owned()))
    }

    /// Reports what is wrong with the channel, and reads its index.
    pub(crate) fn check(&self) -> Result<&Index> {
        if let Some(problem) = &self.problem {
            return Err(self.locate(problem.clone()));
        }
        let index = self.index.get_or_init(|| self.parse_index().map_err(|e| self.locate(e)));
        index.as_ref().map_err(Clone::clone)
    }

    fn parse_index(&self) -> Result<Index> {
        let mut index = Index::default();
        if !self.parts.is_empty() {
            return self.join_index();
        }
        let Some(block) = &self.offsets else {
            return Ok(index);
        };
        index.offsets = block.read_integers()?;
        let rule = if self.layout == Layout::Video { "W-VID-1" } else { "W-RAG-2" };
        if index.offsets.first() != Some(&0) || !index.offsets.is_sorted() {
            return Err(Error::new(Code::BadValue, rule, "the offsets do not start with 0, or they fall"));
        }
        let last = index.offsets.last().copied().unwrap_or(0);
        if let Some(items) = self.data.size().checked_div(self.item_bytes())
            && items != last.cast_unsigned()
        {
            return Err(Error::new(Code::BadValue, rule, "the last offset is not the end of the block")
                .with_expected(items.to_string())
                .with_found(last.to_string()));
        }
        if self.layout == Layout::Video {
            let count = (index.offsets.len() as u64).saturating_sub(1);
            index.frames = match &self.frames {
                None => Frame::plain(count),
                Some(frames) => Frame::parse(&frames.read_integers()?)?,
            };
            index.needs = Needs::resolve(&index.frames, self.length)?;
        }
        Ok(index)
    }

    /// The index of a channel that was joined of several.
    fn join_index(&self) -> Result<Index> {
        let mut index = Index { offsets: vec![0], ..Index::default() };
        let (mut items, mut steps) = (0i64, 0i64);
        for part in &self.parts {
            let own = part.check()?;
            index.offsets.extend(own.offsets.iter().skip(1).map(|offset| items.saturating_add(*offset)));
            items = index.offsets.last().copied().unwrap_or(0);
            let moved = own
                .frames
                .iter()
                .map(|frame| Frame::new(steps.saturating_add(frame.step), frame.is_keyframe(), frame.is_hidden()));
            index.frames.extend(moved);
            steps = steps.saturating_add_unsigned(part.length);
        }
        if self.layout == Layout::Video {
            index.needs = Needs::resolve(&index.frames, self.length)?;
        }
        Ok(index)
    }

    fn expect_layout(&self, layout: &[Layout], what: &str) -> Result<()> {
        if layout.contains(&self.layout) || self.problem.is_some() {
            return Ok(());
        }
        Err(self.locate(Error::invalid(format!("this channel has no {what}: its layout is {}", self.layout.name()))))
    }

    /// The values of a dense channel as they are stored; `T` must be the type of its dtype.
    pub fn values<T: Element>(&self) -> Result<Vec<T>> {
        self.expect_layout(&[Layout::Dense], "values")?;
        let data = self.data()?;
        if T::DTYPE != self.dtype {
            let problem = Error::invalid("the values have another type");
            return Err(self.locate(problem.with_expected(T::DTYPE.name()).with_found(self.dtype.name())));
        }
        Ok(T::read(&data))
    }

    /// The values of a dense channel of any type as 64-bit floats.
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        self.expect_layout(&[Layout::Dense], "values")?;
        Ok(self.dtype.floats(&self.data()?))
    }

    /// The times of the entries on the channel's own clock, in nanoseconds; `None` if it follows the steps.
    pub fn timestamps(&self) -> Result<Option<Vec<i64>>> {
        if let Some(problem) = &self.problem {
            return Err(self.locate(problem.clone()));
        }
        if let Some(times) = &self.times {
            let times = times.as_ref().map_err(Clone::clone).and_then(Block::read_integers);
            return times.map(Some).map_err(|e| e.with_path(self.path.as_deref()).with_entry(&self.names.times));
        }
        let (Some(start), Some(rate)) = (self.start_ns(), self.sampling_rate_hz()) else {
            return Ok(None);
        };
        let times = (0..self.length).map(|i| regular_time(start, i, rate)).collect::<Result<Vec<_>>>();
        times.map(Some).map_err(|e| self.locate(e))
    }

    /// The bytes of each step of a ragged or text channel.
    pub fn items(&self) -> Result<Vec<Vec<u8>>> {
        self.expect_layout(&[Layout::Ragged, Layout::Text], "items")?;
        self.pieces(&self.data()?)
    }

    /// The string of each step of a text channel.
    pub fn strings(&self) -> Result<Vec<String>> {
        self.expect_layout(&[Layout::Text], "strings")?;
        let not_text =
            |t: usize| Error::new(Code::BadValue, "W-RAG-4", format!("the text of step {t} is not valid UTF-8"));
        let items = self.items()?.into_iter().enumerate();
        items.map(|(t, item)| String::from_utf8(item).map_err(|_| self.locate(not_text(t)))).collect()
    }

    /// The encoded pictures of a video channel, in the order in which they are decoded.
    pub fn packets(&self) -> Result<Vec<Packet>> {
        self.expect_layout(&[Layout::Video], "packets")?;
        let index = self.check()?;
        let pieces = self.pieces(&self.data()?)?.into_iter().zip(&index.frames);
        let packet = |(data, frame): (Vec<u8>, &Frame)| Packet {
            data,
            step: frame.step,
            is_keyframe: frame.is_keyframe(),
            is_hidden: frame.is_hidden(),
        };
        Ok(pieces.map(packet).collect())
    }

    /// Cuts the data at the offsets.
    fn pieces(&self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        let item = to_usize(self.item_bytes())?;
        let at = |offset: &i64| usize::try_from(*offset).unwrap_or(usize::MAX).saturating_mul(item);
        let pairs = self.check()?.offsets.windows(2).filter_map(|pair| match pair {
            [start, end] => data.get(at(start)..at(end)),
            _ => None,
        });
        Ok(pairs.map(<[u8]>::to_vec).collect())
    }

    /// Compares the sizes that the packets of `image/png` and `image/jpeg` state with the shape (W-VID-6). Nothing is
    /// decoded; other codecs are not checked. It tells whether it checked.
    pub fn check_pictures(&self) -> Result<bool> {
        let kind = self.text("content_type");
        if self.layout != Layout::Video || !states_size(kind) {
            return Ok(self.layout != Layout::Video);
        }
        for (i, packet) in self.packets()?.iter().enumerate() {
            let found = picture_size(kind, &packet.data);
            if found.is_none_or(|(height, width)| self.shape.get(..2) != Some(&[height, width])) {
                let problem =
                    Error::new(Code::BadValue, "W-VID-6", format!("packet {i} is not a picture of the stated size"));
                return Err(
                    self.locate(problem.with_expected(format!("{:?}", self.shape)).with_found(format!("{found:?}")))
                );
            }
        }
        Ok(true)
    }

    /// The entries from start up to, but not including, end, as a channel of its own that reads only the bytes that it
    /// needs. The window of a video holds the packets that its steps need, of which those of other steps are hidden.
    pub fn window(&self, start: u64, end: u64) -> Result<Self> {
        if start > end || end > self.length {
            let problem = Error::invalid("the window is outside the channel");
            let problem =
                problem.with_expected(format!("0 to {}", self.length)).with_found(format!("{start} to {end}"));
            return Err(self.locate(problem));
        }
        let index = self.check()?;
        let mut window = self.clone();
        (window.length, window.row, window.parts) = (end.saturating_sub(start), None, Vec::new());
        window.index = Arc::default();
        if let Some(Ok(times)) = &self.times {
            window.times = Some(Ok(times.part(start.saturating_mul(8), end.saturating_mul(8))));
        } else if let (Some(first), Some(rate)) = (self.start_ns(), self.sampling_rate_hz()) {
            let first = regular_time(first, start, rate).map_err(|e| self.locate(e))?;
            window.about.insert("start_ns".into(), Value::from(first));
        }
        let (first, last) = match self.layout {
            Layout::Video => index.needs.packets(to_usize(start)?, to_usize(end)?),
            _ => (to_usize(start)?, to_usize(end)?),
        };
        if self.layout == Layout::Dense {
            let step = step_bytes(self.dtype, &self.shape).unwrap_or(0);
            let part = times(start, step).zip(times(end, step));
            window.data =
                part.map(|(start, end)| self.data.part(start, end)).ok_or_else(|| Error::invalid("too many bytes"))?;
            return Ok(window);
        }
        let offsets = index.offsets.get(first..=last).unwrap_or(&[0]);
        let begin = offsets.first().copied().unwrap_or(0);
        let finish = offsets.last().copied().unwrap_or(begin);
        let byte = |offset: i64| offset.cast_unsigned().saturating_mul(self.item_bytes());
        window.data = self.data.part(byte(begin), byte(finish));
        window.offsets =
            Some(Block::integers(&offsets.iter().map(|offset| offset.saturating_sub(begin)).collect::<Vec<_>>()));
        if self.layout == Layout::Video {
            let frames = index.frames.get(first..last).unwrap_or(&[]);
            let frames: Vec<_> = frames.iter().map(|frame| frame.moved(start, window.length)).collect();
            window.set_frames(&frames);
        }
        Ok(window)
    }

    /// Checks what the row of a video says about its decoder (W-VID-5).
    pub(crate) fn check_extradata(&self) -> Result<()> {
        if is_base64(self.text("extradata")) {
            Ok(())
        } else {
            Err(bad_metadata("W-VID-5", "'extradata' of a video is not Base64"))
        }
    }
}

/// Whether a text is Base64 with its padding, and without bits that say nothing.
fn is_base64(text: &str) -> bool {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte.wrapping_sub(b'A')),
        b'a'..=b'z' => Some(byte.wrapping_sub(b'a').wrapping_add(26)),
        b'0'..=b'9' => Some(byte.wrapping_sub(b'0').wrapping_add(52)),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits = text.trim_end_matches('=');
    let padding = text.len().saturating_sub(digits.len());
    let left_over = match padding {
        0 => 0,
        1 => 0b11,
        2 => 0b1111,
        _ => return false,
    };
    let last = digits.bytes().last().and_then(digit).unwrap_or(0);
    text.len().is_multiple_of(4) && digits.bytes().all(|byte| digit(byte).is_some()) && last & left_over == 0
}
