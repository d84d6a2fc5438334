//! Channels: arrays with time as their first axis.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::block::Block;
use super::dtype::{each, step_bytes};
use super::fields::{as_count, as_float, as_int};
use super::rows::{Row, is_own_field};
use super::video::{Frame, Needs, Packet, check_video};
use crate::DType;
use crate::json::{Object, Value};
use crate::{Error, Result};

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

    pub(super) fn set_frames(&mut self, frames: &[Frame]) {
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
}
