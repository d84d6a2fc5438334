//! How stored values become floats, and the sizes of arrays (spec/registry.md, "Data types").

use crate::DType;

impl DType {
    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F64 | Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Stored values as 64-bit floats.
    pub(crate) fn floats(self, data: &[u8]) -> Vec<f64> {
        match self {
            Self::F64 => each(data, f64::from_le_bytes),
            Self::F32 => each(data, |b| f64::from(f32::from_le_bytes(b))),
            Self::F16 => each(data, |b| half(u16::from_le_bytes(b))),
            Self::Bf16 => each(data, |b| f64::from(f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))),
            Self::I64 => each(data, |b| i64::from_le_bytes(b) as f64),
            Self::I32 => each(data, |b| f64::from(i32::from_le_bytes(b))),
            Self::I16 => each(data, |b| f64::from(i16::from_le_bytes(b))),
            Self::I8 => each(data, |b| f64::from(i8::from_le_bytes(b))),
            Self::U64 => each(data, |b| u64::from_le_bytes(b) as f64),
            Self::U32 => each(data, |b| f64::from(u32::from_le_bytes(b))),
            Self::U16 => each(data, |b| f64::from(u16::from_le_bytes(b))),
            Self::U8 => each(data, |b: [u8; 1]| f64::from(u8::from_le_bytes(b))),
            Self::Bool => each(data, |b: [u8; 1]| if b == [0] { 0.0 } else { 1.0 }),
        }
    }

    /// Stored values rounded to 32-bit floats, once: 64-bit integers do not take the way over 64-bit floats.
    pub(crate) fn rounded(self, data: &[u8]) -> Vec<f32> {
        match self {
            Self::I64 => each(data, |b| i64::from_le_bytes(b) as f32),
            Self::U64 => each(data, |b| u64::from_le_bytes(b) as f32),
            Self::F32 => each(data, f32::from_le_bytes),
            _ => self.floats(data).into_iter().map(|value| value as f32).collect(),
        }
    }
}

/// Each group of N bytes as a value; bytes that are left over at the end are none.
pub(crate) fn each<const N: usize, T>(data: &[u8], make: impl Fn([u8; N]) -> T) -> Vec<T> {
    data.chunks_exact(N).filter_map(|group| group.try_into().ok()).map(make).collect()
}

/// The value of a 16-bit float.
fn half(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let fraction = f64::from(bits & 0x3FF);
    match (bits >> 10) & 0x1F {
        0 => sign * fraction * 2f64.powi(-24),
        0x1F if fraction != 0.0 => f64::NAN,
        0x1F => sign * f64::INFINITY,
        exponent => sign * (1024.0 + fraction) * 2f64.powi(i32::from(exponent).saturating_sub(25)),
    }
}

/// The bytes of one step; `None` if there are too many to count within 63 bits.
pub(crate) fn step_bytes(dtype: DType, shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(dtype.size() as u64, |size, one| times(size, *one))
}

/// The product of two numbers; `None` if it does not fit into 63 bits.
pub(crate) fn times(a: u64, b: u64) -> Option<u64> {
    a.checked_mul(b).filter(|product| *product <= i64::MAX as u64)
}
