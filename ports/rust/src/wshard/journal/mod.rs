//! Recording journals (spec/journal.md): reading, recovery and the recorder.

mod episode;
mod files;
mod finish;
mod frame;
mod group;
mod read;
mod recorder;
mod recover;
mod roll;
mod runs;
mod text;
mod writer;

pub(crate) use episode::step_range;
pub(crate) use files::{ChunkNames, exists, with};
pub use group::ChannelDef;
pub use recorder::{Ends, OnPartial, RecordOptions, Recorder, Step, SyncPolicy};
pub use recover::{PartialEpisode, Recovery, open_partial, recover, recover_with};
pub(crate) use runs::Runs;
