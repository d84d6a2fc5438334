//! Episodes of robots, agents and world models (spec/wshard.md).
//!
//! [`open`] gives an [`Episode`] that reads its arrays when they are asked for:
//!
//! ```no_run
//! # fn main() -> shard_format::Result<()> {
//! let episode = shard_format::wshard::open("ep_001.wshard")?;
//! let joints = episode.observation("joints").expect("the robot has joints");
//! let values = joints.values::<f32>()?;
//! # Ok(())
//! # }
//! ```

mod block;
mod channel;
mod check;
mod chunks;
mod dtype;
mod episode;
mod fields;
mod infer;
mod join;
mod journal;
mod label;
mod manifest;
mod names;
mod open;
mod plan;
mod plan_steps;
mod provenance;
mod reading;
mod residual;
mod rewrite;
mod route;
mod rows;
mod save;
mod sidecar;
mod slice;
mod timebase;
mod video;

pub use channel::{Channel, Element, Layout};
pub use check::{Finding, check};
pub use chunks::save_chunked;
pub use episode::{Episode, Extra, LabelLane};
pub use join::join;
pub use journal::{
    ChannelDef, Ends, OnPartial, PartialEpisode, RecordOptions, Recorder, Recovery, Step, SyncPolicy, open_partial,
    recover, recover_with,
};
pub use label::{Interval, Label, Unit};
pub use manifest::{Chunk, ChunkManifest};
pub use names::Lane;
pub use open::{OpenOptions, Sidecars, fingerprint, open, open_with, sidecar_files};
pub use provenance::Provenance;
pub use residual::{Residual, ResidualKind};
pub use save::{SaveOptions, save};
pub use sidecar::{add_lanes, edit, fold_sidecars, remove_lanes};
pub use timebase::Timebase;
pub use video::Packet;
