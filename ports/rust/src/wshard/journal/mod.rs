//! Recording journals (spec/journal.md): reading, recovery and the recorder.

mod episode;
mod files;
mod frame;
mod read;
mod recover;
mod runs;
mod text;

pub(crate) use episode::step_range;
pub use recover::{PartialEpisode, Recovery, open_partial, recover, recover_with};
pub(crate) use runs::Runs;
