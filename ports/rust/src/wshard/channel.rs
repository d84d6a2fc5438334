//! Channels: arrays with time as their first axis.

use std::borrow::Cow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::block::{Block, to_usize};
use super::dtype::{each, step_bytes, times};
use crate::DType;
use super::fields::{as_count, as_float, as_int, bad_metadata};
use super::rows::{Row, is_own_field};
use super::timebase::regular_time;
use super::video::{Frame, Needs, Packet, check_video, picture_size, states_size};
use crate::{Code, Error, Result};
use crate::json::{Object, Value};

/// How the steps of a channel are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One array of the same shape for each step.
    #[default]
    Dense,
    /// One string for each step.
    Text,
    /// Any number of items for each step.
    Ragged,
    /// The packets of a codec.
    Video,
    /// One that this version does not know.
    Other(String),
}

impl Layout {
    /// The name, as it is stored.
    pub fn name(&self) -> &str {
        match self {
            Self::Dense => "dense",
            Self::Text => "text",
            Self::Ragged => "ragged",
            Self::Video => "video",
            Self::Other(name) => name,
        }
    }

    pub(crate) fn parse(name: &str) -> Self {
        match name {
            "dense" => Self::Dense,
            "text" => Self::Text,
            "ragged" => Self::Ragged,
            "video" => Self::Video,
            _ => Self::Other(name.to_owned()),
        }
    }
}

/// A type of Rust that a channel can hold.
pub trait Element: Copy {
    /// The type in the file.
    const DTYPE: DType;
    /// Appends the value as it is stored.
    fn append(self, out: &mut Vec<u8>);
    /// Reads stored values.
    fn read(data: &[u8]) -> Vec<Self>;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
            fn append(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn read(data: &[u8]) -> Vec<Self> {
                each(data, <$rust>::from_le_bytes)
            }
        })*
    };
}

elements! {
    f64 => F64, f32 => F32, i64 => I64, i32 => I32, i16 => I16, i8 => I8, u64 => U64, u32 => U32, u16 => U16, u8 => U8,
}

impl Element for bool {
    const DTYPE: DType = DType::Bool;
    fn append(self, out: &mut Vec<u8>) {
        out.push(u8::from(self));
    }
    fn read(data: &[u8]) -> Vec<Self> {
        data.iter().map(|byte| *byte != 0).collect()
    }
}

/// The names of the blocks that a channel was loaded from; empty for those that it does not have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) data: String,
    pub(crate) offsets: String,
    pub(crate) frames: String,
    pub(crate) times: String,
}

/// What was read of a channel's offsets and frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    pub(crate) offsets: Vec<i64>,
    pub(crate) frames: Vec<Frame>,
    pub(crate) needs: Needs,
}

/// An array with time as its first axis: an observation, an action, a reward, a prediction.
///
/// The channel of an opened episode reads its bytes when a method asks for them.
#[derive(Clone, Debug)]
pub struct Channel {
    /// The type of the values.
    pub dtype: DType,
    /// The shape of one step; of one item if the layout is ragged, of one picture if it is a video.
    pub shape: Vec<u64>,
    /// The entries along the first axis: the steps of the episode, or others if the channel has its own clock.
    pub length: u64,
    /// How the steps are stored.
    pub layout: Layout,
    /// The other fields of the channel's row, such as `unit`, `modality`, `horizon` and `sampling_rate_hz`.
    pub about: Object,
    pub(crate) data: Block,
    pub(crate) offsets: Option<Block>,
    pub(crate) frames: Option<Block>,
    /// The channel's own clock, or what is wrong with it.
    pub(crate) times: Option<Result<Block>>,
    pub(crate) names: Names,
    /// The file, for errors.
    pub(crate) path: Option<Arc<Path>>,
    /// The description that the channel was loaded with.
    pub(crate) row: Option<Arc<Row>>,
    pub(crate) is_inferred: bool,
    pub(crate) has_time_axis: bool,
    /// For what a file holds without a time for each step: it goes back as it came.
    pub(crate) has_any_length: bool,
    /// The rule that the block breaks, found without reading it; every access returns it.
    pub(crate) problem: Option<Error>,
    pub(crate) index: Arc<OnceLock<Result<Index>>>,
    /// The channels of chunks that a ragged or video channel was joined of.
    pub(crate) parts: Vec<Channel>,
}

impl Channel {
    pub(crate) fn new(dtype: DType, shape: &[u64], length: u64, data: Block) -> Self {
        Self {
            dtype,
            shape: shape.to_vec(),
            length,
            layout: Layout::Dense,
            about: Object::new(),
            data,
            offsets: None,
            frames: None,
            times: None,
            names: Names::default(),
            path: None,
            row: None,
            is_inferred: false,
            has_time_axis: true,
            has_any_length: false,
            problem: None,
            index: Arc::default(),
            parts: Vec::new(),
        }
    }

    /// A dense channel of little-endian bytes in C order; the shape is that of one step, which has at least one byte.
    pub fn from_bytes(dtype: DType, shape: &[u64], data: Vec<u8>) -> Self {
        let step = step_bytes(dtype, shape).unwrap_or(0);
        let length = (data.len() as u64).checked_div(step).unwrap_or(0);
        Self::new(dtype, shape, length, Block::memory(data))
    }

    /// A dense channel of values in C order; the shape is that of one step.
    pub fn from_values<T: Element>(values: &[T], shape: &[u64]) -> Self {
        let mut data = Vec::new();
        values.iter().for_each(|value| value.append(&mut data));
        Self::from_bytes(T::DTYPE, shape, data)
    }

    /// A channel of one string for each step.
    pub fn from_strings<S: AsRef<str>>(texts: &[S]) -> Self {
        let mut channel = Self::from_items(DType::U8, &[], texts.iter().map(|text| text.as_ref().as_bytes()));
        channel.layout = Layout::Text;
        channel
    }

    /// A ragged channel: for each step the bytes of its items, each of the given type and shape.
    pub fn from_items<'a>(dtype: DType, shape: &[u64], items: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let item = step_bytes(dtype, shape).unwrap_or(0);
        let mut offsets = vec![0];
        let (mut data, mut is_whole) = (Vec::new(), true);
        for one in items {
            data.extend_from_slice(one);
            is_whole &= (one.len() as u64).checked_rem(item) == Some(0);
            offsets.push((data.len() as u64).checked_div(item).unwrap_or(0).cast_signed());
        }
        let length = (offsets.len() as u64).saturating_sub(1);
        let mut channel = Self::new(dtype, shape, length, Block::memory(data));
        channel.layout = Layout::Ragged;
        channel.offsets = Some(Block::integers(&offsets));
        channel.problem = (!is_whole).then(|| Error::invalid("a step is not a whole number of items"));
        channel
    }

    /// A video channel of encoded pictures in the order in which they are decoded. The content type is for example
    /// `image/jpeg`; dtype and shape are those of a decoded picture.
    pub fn from_packets(content_type: &str, dtype: DType, shape: &[u64], packets: &[Packet]) -> Self {
        let mut offsets = vec![0];
        let mut data = Vec::new();
        for one in packets {
            data.extend_from_slice(&one.data);
            offsets.push((data.len() as u64).cast_signed());
        }
        let frames: Vec<_> = packets.iter().map(|one| Frame::new(one.step, one.is_keyframe, one.is_hidden)).collect();
        let length = packets.iter().filter(|one| !one.is_hidden).count() as u64;
        let mut channel = Self::new(dtype, shape, length, Block::memory(data));
        channel.layout = Layout::Video;
        channel.offsets = Some(Block::integers(&offsets));
        channel.set_frames(&frames);
        channel.about.insert("content_type".into(), Value::from(content_type));
        channel.problem = check_video(dtype, shape, content_type).err();
        channel
    }

    fn set_frames(&mut self, frames: &[Frame]) {
        let is_plain = frames == Frame::plain(frames.len() as u64).as_slice();
        self.frames = (!is_plain).then(|| Block::integers(&Frame::table(frames)));
    }

    /// Sets a field of the channel's row, such as `unit`.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.about.insert(field.to_owned(), value.into());
        self
    }

    /// Gives the channel a clock of its own: a time for each of its entries, in nanoseconds.
    #[must_use]
    pub fn with_timestamps(mut self, times_ns: &[i64]) -> Self {
        self.times = Some(Ok(Block::integers(times_ns)));
        self.names.times.clear();
        self
    }

    /// What the row of a channel says about it, without its blocks.
    pub(crate) fn describe(&mut self, row: &Row) {
        self.dtype = row.dtype;
        self.shape = row.shape.clone();
        self.layout = row.fields.get("layout").and_then(Value::as_str).map_or(Layout::Dense, Layout::parse);
        let about = row.fields.iter().filter(|(field, value)| !is_own_field(field) && !value.is_null());
        self.about = about.map(|(field, value)| (field.clone(), value.clone())).collect();
    }

    /// Says where in a file an error is.
    pub(crate) fn locate(&self, error: Error) -> Error {
        error.with_path(self.path.as_deref()).with_entry(&self.names.data)
    }

    // --- facts

    /// The name of the block that the channel was loaded from; empty for a new channel.
    pub fn block(&self) -> &str {
        &self.names.data
    }

    /// Whether the file does not describe the channel, so that its type and shape are a guess.
    pub fn is_inferred(&self) -> bool {
        self.is_inferred
    }

    /// False for bytes without a description that fit no number of steps.
    pub fn has_time_axis(&self) -> bool {
        self.has_time_axis
    }

    /// A text of the channel's row, such as `unit`; "" if it is absent.
    pub fn text(&self, field: &str) -> &str {
        self.about.get(field).and_then(Value::as_str).unwrap_or("")
    }

    /// H, if each step holds a chunk of H steps.
    pub fn horizon(&self) -> Option<u64> {
        self.about.get("horizon").and_then(as_count)
    }

    /// The entries per second, if the channel states them.
    pub fn sampling_rate_hz(&self) -> Option<f64> {
        self.about.get("sampling_rate_hz").and_then(as_float)
    }

    /// The time of the first entry of a regular clock.
    pub fn start_ns(&self) -> Option<i64> {
        self.about.get("start_ns").and_then(as_int)
    }

    /// Whether the entries of the channel are not the steps of the episode.
    pub fn has_own_clock(&self) -> bool {
        self.times.is_some() || (self.start_ns().is_some() && self.sampling_rate_hz().is_some())
    }

    /// The bytes of an item of a ragged channel, of a character of text, of a packet's unit.
    pub(crate) fn item_bytes(&self) -> u64 {
        if self.layout == Layout::Ragged { step_bytes(self.dtype, &self.shape).unwrap_or(0) } else { 1 }
    }

    // --- reading

    /// All bytes of the channel, little-endian in C order: of every step if the layout is dense, otherwise of all items,
    /// strings or packets one after another.
    pub fn data(&self) -> Result<Cow<'_, [u8]>> {
        self.check()?;
        self.data.read().map_err(|e| self.locate(e))
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
        let Some(block) = &self.offsets else { return Ok(index) };
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
            let moved = own.frames.iter().map(|frame| Frame::new(steps.saturating_add(frame.step), frame.is_keyframe(), frame.is_hidden()));
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
        let (Some(start), Some(rate)) = (self.start_ns(), self.sampling_rate_hz()) else { return Ok(None) };
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
        let not_text = |t: usize| Error::new(Code::BadValue, "W-RAG-4", format!("the text of step {t} is not valid UTF-8"));
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
                let problem = Error::new(Code::BadValue, "W-VID-6", format!("packet {i} is not a picture of the stated size"));
                return Err(self.locate(problem.with_expected(format!("{:?}", self.shape)).with_found(format!("{found:?}"))));
            }
        }
        Ok(true)
    }

    /// The entries from start up to, but not including, end, as a channel of its own that reads only the bytes that it
    /// needs. The window of a video holds the packets that its steps need, of which those of other steps are hidden.
    pub fn window(&self, start: u64, end: u64) -> Result<Self> {
        if start > end || end > self.length {
            let problem = Error::invalid("the window is outside the channel");
            let problem = problem.with_expected(format!("0 to {}", self.length)).with_found(format!("{start} to {end}"));
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
            window.data = part.map(|(start, end)| self.data.part(start, end)).ok_or_else(|| Error::invalid("too many bytes"))?;
            return Ok(window);
        }
        let offsets = index.offsets.get(first..=last).unwrap_or(&[0]);
        let begin = offsets.first().copied().unwrap_or(0);
        let finish = offsets.last().copied().unwrap_or(begin);
        let byte = |offset: i64| offset.cast_unsigned().saturating_mul(self.item_bytes());
        window.data = self.data.part(byte(begin), byte(finish));
        window.offsets = Some(Block::integers(&offsets.iter().map(|offset| offset.saturating_sub(begin)).collect::<Vec<_>>()));
        if self.layout == Layout::Video {
            let frames = index.frames.get(first..last).unwrap_or(&[]);
            let frames: Vec<_> = frames.iter().map(|frame| frame.moved(start, window.length)).collect();
            window.set_frames(&frames);
        }
        Ok(window)
    }

    /// Checks what the row of a video says about its decoder (W-VID-5).
    pub(crate) fn check_extradata(&self) -> Result<()> {
        if is_base64(self.text("extradata")) { Ok(()) } else { Err(bad_metadata("W-VID-5", "'extradata' of a video is not Base64")) }
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
    text.len() % 4 == 0 && digits.bytes().all(|byte| digit(byte).is_some()) && last & left_over == 0
}
