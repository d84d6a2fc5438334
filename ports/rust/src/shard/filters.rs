//! Filters.

/// Differences between rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// 1 or 2.
    pub order: u8,
    /// Bytes of an integer: 1, 2, 4 or 8.
    pub width: usize,
    /// Bytes of a row, a multiple of the width.
    pub row: usize,
}

/// What was done to each frame of an entry before it was compressed: delta, then planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters {
    /// Differences between rows.
    pub delta: Option<Delta>,
    /// The width of items whose bytes are sorted into planes: 2, 4 or 8.
    pub planes: Option<usize>,
}
