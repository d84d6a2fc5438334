//! What the packets of a video are, and which of them each step needs (spec/wshard.md, section 6).

use std::borrow::Cow;

use super::fields::{bad_metadata, wrong};
use crate::DType;
use crate::json::Value;
use crate::{Code, Error, Result};

const KEYFRAME: u8 = 1;
const HIDDEN: u8 = 2;
const LONGEST_SIDE: u64 = 65535;

/// One encoded picture of a video.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The bytes of the codec.
    pub data: Vec<u8>,
    /// The step that the picture is; of a hidden one, where it is in time.
    pub step: i64,
    /// Whether decoding can start here.
    pub is_keyframe: bool,
    /// Whether the picture is no step: it is decoded because others need it.
    pub is_hidden: bool,
}

/// What a packet of a video is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) step: i64,
    flags: u8,
}

impl Frame {
    pub(crate) fn new(step: i64, is_keyframe: bool, is_hidden: bool) -> Self {
        Self { step, flags: u8::from(is_keyframe) | (u8::from(is_hidden) << 1) }
    }

    pub(crate) fn is_keyframe(self) -> bool {
        self.flags & KEYFRAME != 0
    }

    pub(crate) fn is_hidden(self) -> bool {
        self.flags & HIDDEN != 0
    }

    /// Packet i is step i, and a keyframe.
    pub(crate) fn plain(count: u64) -> Vec<Self> {
        (0..count.cast_signed()).map(|step| Self { step, flags: KEYFRAME }).collect()
    }

    /// Frames as they are stored.
    pub(crate) fn table(frames: &[Self]) -> Vec<i64> {
        frames.iter().flat_map(|frame| [frame.step, i64::from(frame.flags)]).collect()
    }

    /// Frames of a stored table of as many packets (W-VID-3).
    pub(crate) fn parse(table: &[i64]) -> Result<Vec<Self>> {
        let pairs = table.chunks_exact(2).enumerate();
        pairs
            .map(|(i, pair)| match *pair {
                [step, flags @ 0..=3] => Ok(Self { step, flags: flags as u8 }),
                _ => Err(bad_value("W-VID-3", format!("packet {i} has unknown flags"))),
            })
            .collect()
    }

    /// The frame in a part of the video that starts at a step and has a length.
    pub(crate) fn moved(self, start: u64, length: u64) -> Self {
        let step = self.step.saturating_sub(start.cast_signed());
        let is_outside = step < 0 || step.cast_unsigned() >= length;
        Self { step, flags: self.flags | if is_outside { HIDDEN } else { 0 } }
    }
}

/// Which packets each step needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    /// The packet of each step, and the keyframe at which decoding starts for it.
    steps: Vec<(usize, usize)>,
}

impl Needs {
    /// Finds the packets of each step of a channel (W-VID-3, W-VID-4).
    pub(crate) fn resolve(frames: &[Frame], length: u64) -> Result<Self> {
        let shown = frames.iter().filter(|frame| !frame.is_hidden()).count() as u64;
        // Counted before memory is made for a length that the file merely claims.
        if shown != length {
            return Err(bad_value("W-VID-3", "the frames are not the steps of the channel")
                .with_expected(format!("{length} frames that are not hidden"))
                .with_found(shown.to_string()));
        }
        let mut steps = vec![None; frames.len().min(usize::try_from(length).unwrap_or(usize::MAX))];
        // The last two keyframes: a frame that follows one and precedes it in time needs the one before.
        let (mut before, mut last) = (None, None);
        for (i, frame) in frames.iter().enumerate() {
            if frame.is_keyframe() {
                (before, last) = (last, Some((i, frame.step)));
            }
            if frame.is_hidden() {
                continue;
            }
            let step = frame.step;
            let place = usize::try_from(step).ok().and_then(|at| steps.get_mut(at));
            let place = place.ok_or_else(|| {
                bad_value("W-VID-3", format!("packet {i} is step {step}, which the channel does not have"))
            })?;
            if place.is_some() {
                return Err(bad_value("W-VID-3", format!("step {step} is there twice")));
            }
            let start = last.filter(|(_, at)| *at <= step).or_else(|| before.filter(|(_, at)| *at <= step));
            let (start, _) =
                start.ok_or_else(|| bad_value("W-VID-4", format!("step {step} has no keyframe to start from")))?;
            *place = Some((i, start));
        }
        let steps: Vec<_> = steps.into_iter().flatten().collect();
        if !steps.is_sorted_by_key(|(_, start)| *start) {
            return Err(bad_value("W-VID-4", "a step needs an earlier keyframe than the step before it"));
        }
        Ok(Self { steps })
    }

    /// The range of packets that some steps need.
    pub(crate) fn packets(&self, start: usize, end: usize) -> (usize, usize) {
        let steps = self.steps.get(start..end).unwrap_or(&[]);
        let Some((_, first)) = steps.first() else {
            return (0, 0);
        };
        let last = steps.iter().map(|(packet, _)| *packet).max().unwrap_or(0);
        (*first, last.saturating_add(1))
    }
}

fn bad_value(rule: &'static str, problem: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Code::BadValue, rule, problem)
}

/// Checks what the row of a video says about its pictures (W-VID-5).
pub(crate) fn check_video(dtype: DType, shape: &[u64], content_type: &str) -> Result<()> {
    let is_known = matches!((dtype, shape), (DType::U8 | DType::U16, [_, _] | [_, _, 1]) | (DType::U8, [_, _, 3 | 4]));
    if !is_known || !shape.iter().take(2).all(|side| (1..=LONGEST_SIDE).contains(side)) {
        return Err(bad_metadata("W-VID-5", "a video does not have pictures of this type and shape")
            .with_expected("u8 [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], or u16 [H, W] or [H, W, 1]")
            .with_found(format!("{} {shape:?}", dtype.name())));
    }
    let kind = content_type.to_ascii_lowercase();
    if !kind.starts_with("video/") && !kind.starts_with("image/") {
        return Err(wrong("W-VID-5", "content_type", "one of video/ or image/", Some(&Value::from(content_type))));
    }
    Ok(())
}

/// The height and width that a picture states; `None` if it does not, or in a form that is not known here.
pub(crate) fn picture_size(content_type: &str, data: &[u8]) -> Option<(u64, u64)> {
    match content_type.to_ascii_lowercase().as_str() {
        "image/png" => {
            let is_png = data.starts_with(b"\x89PNG\r\n\x1a\n") && data.get(12..16) == Some(b"IHDR");
            let side = |at: usize| {
                data.get(at..).and_then(|rest| rest.first_chunk()).map(|side| u64::from(u32::from_be_bytes(*side)))
            };
            is_png.then(|| Some((side(20)?, side(16)?))).flatten()
        }
        "image/jpeg" => jpeg_size(data),
        _ => None,
    }
}

/// Walks the segments of a JPEG up to its frame header.
fn jpeg_size(data: &[u8]) -> Option<(u64, u64)> {
    let mut rest = data.strip_prefix(b"\xFF\xD8")?;
    loop {
        let marker = *rest.strip_prefix(b"\xFF")?.first()?;
        match marker {
            0xFF => rest = rest.get(1..)?, // a fill byte
            0xD9 | 0xDA => return None,    // the end, or the picture, without a frame header
            0x01 | 0xD0..=0xD8 => rest = rest.get(2..)?,
            _ => {
                let body = rest.get(2..)?;
                let length = usize::from(u16::from_be_bytes(*body.first_chunk()?));
                // A frame header; C4, C8 and CC are tables.
                if (0xC0..=0xCF).contains(&marker) && !matches!(marker, 0xC4 | 0xC8 | 0xCC) {
                    let side =
                        |at: usize| body.get(at..)?.first_chunk().map(|side| u64::from(u16::from_be_bytes(*side)));
                    return Some((side(3)?, side(5)?));
                }
                rest = body.get(length.max(2)..)?;
            }
        }
    }
}

/// Whether the packets of a content type state their sizes in a form that is known here.
pub(crate) fn states_size(content_type: &str) -> bool {
    matches!(content_type.to_ascii_lowercase().as_str(), "image/png" | "image/jpeg")
}
