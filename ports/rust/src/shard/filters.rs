//! Filters: reversible transformations before zstd (S-FLT-1 to S-FLT-7).

use super::codec::u32_at;
use super::parallel::Buffer;
use crate::json::{self, Object, Value};
use crate::registry::Code;
use crate::{Error, Result};

const FRAME_MAGIC: u32 = 0x184D_2A5D;
const FRAME_HEAD: usize = 8;
pub(crate) const MAX_DESCRIPTION: usize = 4096;
const MAX_FRAME: usize = 64 << 20;

/// Differences between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// 1 or 2: how often differences are taken.
    pub order: u8,
    /// Bytes of an integer: 1, 2, 4 or 8.
    pub width: usize,
    /// Bytes of a row, a multiple of the width.
    pub row: usize,
}

/// What was done to each frame of an entry before it was compressed: delta, then planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Differences between rows.
    pub delta: Option<Delta>,
    /// The width of items whose bytes are sorted into planes: 2, 4 or 8.
    pub planes: Option<usize>,
}

#[cold]
fn bad(rule: &'static str, problem: &'static str) -> Error {
    Error::new(Code::BadFilter, rule, problem)
}

/// The description of the filters at the start of an entry, and the size of the frame that holds it (S-FLT-1).
///
/// `head` has the first bytes of the entry, which has `disk_size` bytes.
pub(crate) fn leading(head: &[u8], disk_size: u64) -> Result<(Filters, usize)> {
    if u32_at(head, 0) != Some(FRAME_MAGIC) {
        return Err(bad("S-FLT-1", "a filtered entry does not start with a description of its filters"));
    }
    let size = u32_at(head, 4).map_or(0, |size| size as usize);
    let end = FRAME_HEAD.saturating_add(size);
    match head.get(FRAME_HEAD..end) {
        Some(text) if (1..=MAX_DESCRIPTION).contains(&size) && end as u64 <= disk_size => {
            Ok((Filters::parse(text)?, end))
        }
        _ => Err(bad("S-FLT-1", "the description of the filters has a size that is not allowed")
            .with_found(format_args!("{size} bytes"))),
    }
}

impl Filters {
    /// Reads the description that an entry holds (S-FLT-2 to S-FLT-4).
    pub fn parse(text: &[u8]) -> Result<Filters> {
        let value = json::parse(text, MAX_DESCRIPTION as u64).unwrap_or_default();
        match value.get("filters") {
            Some(list) => Filters::from_json(list),
            None => Err(bad("S-FLT-2", "the description has no list of filters")),
        }
    }

    /// Reads a list of filters (S-FLT-2 to S-FLT-4).
    pub fn from_json(list: &Value) -> Result<Filters> {
        let wrong = |problem| Err(bad("S-FLT-2", problem));
        let mut found = Filters::default();
        let list = match list.as_list() {
            Some(list) if (1..=2).contains(&list.len()) => list,
            _ => return wrong("the description has no list of one or two filters"),
        };
        let mut names = Vec::new();
        for item in list {
            let (Some(fields), Some(name)) = (item.as_object(), item.get("name").and_then(Value::as_str)) else {
                return wrong("a filter has no name");
            };
            names.push(name);
            match name {
                "delta" => match delta(fields) {
                    Some(delta) => found.delta = Some(delta),
                    None => return wrong("the filter delta has wrong fields"),
                },
                "planes" => match one_of(fields, "width", &[2, 4, 8]) {
                    Some(width) if fields.len() == 2 => found.planes = Some(width),
                    _ => return wrong("the filter planes has wrong fields"),
                },
                _ => {
                    return Err(Error::new(Code::UnknownFilter, "S-FLT-3", "this version does not know a filter")
                        .with_found(crate::error::quoted(name)));
                }
            }
        }
        match names[..] {
            ["delta"] | ["planes"] => Ok(found),
            ["delta", "planes"] if found.delta.map(|delta| delta.width) == found.planes => Ok(found),
            _ => Err(bad("S-FLT-4", "these filters do not go together").with_found(names.join(", "))),
        }
    }

    /// The list of filters as an entry describes it.
    pub fn to_json(&self) -> Value {
        let delta = self.delta.map(|delta| {
            json::object([
                ("name", "delta".into()),
                ("order", delta.order.into()),
                ("row", delta.row.into()),
                ("width", delta.width.into()),
            ])
        });
        let planes = self.planes.map(|width| json::object([("name", "planes".into()), ("width", width.into())]));
        delta.into_iter().chain(planes).collect()
    }

    /// Appends the skippable frame that describes the filters.
    pub(crate) fn append_description(&self, out: &mut Vec<u8>) -> Result<()> {
        let text = json::canonical(&json::object([("filters", self.to_json())]))?;
        let size = u32::try_from(text.len()).unwrap_or(u32::MAX);
        out.extend(FRAME_MAGIC.to_le_bytes());
        out.extend(size.to_le_bytes());
        out.extend(text.as_bytes());
        Ok(())
    }

    /// Checks that the filters can be applied to frames of a size (S-FLT-5).
    pub fn check_frame(&self, size: usize) -> Result<()> {
        let unit = match (self.delta, self.planes) {
            (Some(delta), _) => delta.row,
            (None, planes) => planes.unwrap_or(1),
        };
        if size <= MAX_FRAME && size.checked_rem(unit) == Some(0) {
            return Ok(());
        }
        Err(bad("S-FLT-5", "a filtered frame has a size that is not allowed")
            .with_expected(format_args!("a multiple of {unit} bytes, at most {MAX_FRAME}"))
            .with_found(size))
    }

    /// Restores the bytes of one frame in place.
    pub(crate) fn undo(&self, data: &mut [u8], scratch: &mut Buffer) -> Result<()> {
        if let Some(width) = self.planes {
            let planes = scratch.room(data.len())?;
            planes.copy_from_slice(data);
            join_planes(planes, data, width);
        }
        if let Some(delta) = self.delta {
            for _ in 0..delta.order {
                sum_rows(data, &delta);
            }
        }
        Ok(())
    }

    /// The filtered form of one frame.
    pub(crate) fn apply(&self, data: &[u8]) -> Vec<u8> {
        let mut out = self.apply_delta(data);
        if let Some(width) = self.planes {
            out = split_planes(&out, width);
        }
        out
    }

    /// What the filter delta alone makes of a frame.
    pub(crate) fn apply_delta(&self, data: &[u8]) -> Vec<u8> {
        let mut out = data.to_vec();
        if let Some(delta) = self.delta {
            for _ in 0..delta.order {
                let before = out.clone();
                let rows = out.chunks_exact_mut(delta.row).skip(1);
                for (row, before) in rows.zip(before.chunks_exact(delta.row)) {
                    combine(row, before, delta.width, false);
                }
            }
        }
        out
    }
}

fn delta(fields: &Object) -> Option<Delta> {
    let width = one_of(fields, "width", &[1, 2, 4, 8])?;
    let order = one_of(fields, "order", &[1, 2])?;
    let row = usize::try_from(fields.get("row")?.as_i64()?).ok()?;
    let is_right = row > 0 && row.checked_rem(width) == Some(0) && fields.len() == 4;
    is_right.then_some(Delta { order: u8::try_from(order).ok()?, width, row })
}

/// A field that has one of some values.
fn one_of(fields: &Object, key: &str, allowed: &[usize]) -> Option<usize> {
    let value = usize::try_from(fields.get(key)?.as_i64()?).ok()?;
    allowed.contains(&value).then_some(value)
}

/// Adds the row before to each row but the first.
fn sum_rows(data: &mut [u8], delta: &Delta) {
    let Some((mut before, mut rest)) = data.split_at_mut_checked(delta.row) else {
        return;
    };
    while let Some((row, after)) = rest.split_at_mut_checked(delta.row) {
        combine(row, before, delta.width, true);
        (before, rest) = (row, after);
    }
}

/// Adds the integers of one row to those of another, or subtracts them.
#[inline]
fn combine(row: &mut [u8], before: &[u8], width: usize, add: bool) {
    macro_rules! each {
        ($kind:ty, $size:literal) => {{
            let items = row.as_chunks_mut::<$size>().0.iter_mut();
            for (now, before) in items.zip(before.as_chunks::<$size>().0) {
                let (a, b) = (<$kind>::from_le_bytes(*now), <$kind>::from_le_bytes(*before));
                let sum = if add { a.wrapping_add(b) } else { a.wrapping_sub(b) };
                *now = sum.to_le_bytes();
            }
        }};
    }
    match width {
        1 => each!(u8, 1),
        2 => each!(u16, 2),
        4 => each!(u32, 4),
        _ => each!(u64, 8),
    }
}

/// The planes of some bytes: each has one byte of every item.
fn planes_of<const W: usize>(data: &[u8]) -> [&[u8]; W] {
    let count = data.len().checked_div(W).unwrap_or_default();
    let mut planes = data.chunks_exact(count.max(1));
    std::array::from_fn(|_| planes.next().unwrap_or_default())
}

/// Puts the bytes of items together again.
fn join_planes(planes: &[u8], data: &mut [u8], width: usize) {
    match width {
        2 => {
            let [a, b] = planes_of(planes);
            for ((item, &a), &b) in data.as_chunks_mut().0.iter_mut().zip(a).zip(b) {
                *item = [a, b];
            }
        }
        4 => {
            let [a, b, c, d] = planes_of(planes);
            let items = data.as_chunks_mut().0.iter_mut();
            for ((((item, &a), &b), &c), &d) in items.zip(a).zip(b).zip(c).zip(d) {
                *item = [a, b, c, d];
            }
        }
        _ => {
            let [a, b, c, d, e, f, g, h] = planes_of(planes);
            let items = data.as_chunks_mut().0.iter_mut();
            let lower = items.zip(a).zip(b).zip(c).zip(d);
            for ((((((((item, &a), &b), &c), &d), &e), &f), &g), &h) in lower.zip(e).zip(f).zip(g).zip(h) {
                *item = [a, b, c, d, e, f, g, h];
            }
        }
    }
}

fn split_planes(data: &[u8], width: usize) -> Vec<u8> {
    let plane = |number| data.iter().skip(number).step_by(width).copied();
    (0..width).flat_map(plane).collect()
}
