//! Checks that the strings of a text channel are UTF-8 (J-RAG-4).

use super::runs::Runs;
use crate::Result;

/// Looks at the strings of a channel in order.
pub(super) struct TextCheck<'a> {
    runs: &'a Runs,
    number: usize,
    at: u64,
    /// The content of the current run that was not looked at.
    rest: std::vec::IntoIter<u8>,
}

impl<'a> TextCheck<'a> {
    pub(super) fn new(runs: &'a Runs) -> Self {
        Self { runs, number: 0, at: 0, rest: Vec::new().into_iter() }
    }

    /// Whether the string from the last end to the next one is valid. It may lie in several runs.
    pub(super) fn is_valid_up_to(&mut self, end: u64) -> Result<bool> {
        let mut held = Vec::new(); // the start of a character that the next run continues
        while self.at < end {
            if self.rest.as_slice().is_empty() {
                self.rest = self.runs.content(self.number)?.into_iter();
                self.number = self.number.saturating_add(1);
            }
            let left = usize::try_from(end.saturating_sub(self.at)).unwrap_or(usize::MAX);
            let slice = self.rest.as_slice();
            let piece = slice.get(..left).unwrap_or(slice);
            if piece.is_empty() || !continues_text(&mut held, piece) {
                return Ok(false);
            }
            let count = piece.len();
            self.at = self.at.saturating_add(count as u64);
            self.rest.nth(count.saturating_sub(1));
        }
        Ok(held.is_empty())
    }
}

/// Whether a piece continues a text whose last character may be incomplete.
fn continues_text(held: &mut Vec<u8>, mut piece: &[u8]) -> bool {
    while !held.is_empty()
        && let Some((next, rest)) = piece.split_first()
    {
        held.push(*next);
        piece = rest;
        match std::str::from_utf8(held) {
            Ok(_) => held.clear(),
            Err(e) if e.error_len().is_some() => return false,
            Err(_) => {}
        }
    }
    match std::str::from_utf8(piece) {
        Ok(_) => true,
        Err(e) if e.error_len().is_some() => false,
        Err(e) => {
            held.extend_from_slice(piece.get(e.valid_up_to()..).unwrap_or_default());
            true
        }
    }
}
