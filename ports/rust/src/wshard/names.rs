//! Names of entries, and the lanes that they belong to (spec/wshard.md, sections 2 and 15).

use std::cmp::Ordering;

use super::rows::Row;
use crate::{Code, Error, Result};

pub(crate) const META_WSHARD: &str = "meta/wshard";
pub(crate) const META_EPISODE: &str = "meta/episode";
pub(crate) const META_CHANNELS: &str = "meta/channels";
pub(crate) const META_PROVENANCE: &str = "meta/provenance";
pub(crate) const META_IDENTITY: &str = "meta/identity";
pub(crate) const META_SIDECAR: &str = "meta/sidecar";
pub(crate) const META_EDIT: &str = "meta/edit";
/// The `meta/` entries that the format defines.
pub(crate) const KNOWN_META: [&str; 7] =
    [META_WSHARD, META_EPISODE, META_CHANNELS, META_PROVENANCE, META_IDENTITY, META_SIDECAR, META_EDIT];

pub(crate) const REWARD: &str = "reward";
pub(crate) const REWARD_EXACT: &str = "reward/exact";
pub(crate) const DONE: &str = "done";
pub(crate) const TERMINATED: &str = "terminated";
pub(crate) const TRUNCATED: &str = "truncated";
pub(crate) const TICKS: &str = "time/ticks";
pub(crate) const TIMESTAMPS: &str = "time/timestamps_ns";
/// The blocks with one value for each step.
pub(crate) const STEP_BLOCKS: [&str; 6] = [REWARD, DONE, TERMINATED, TRUNCATED, TICKS, TIMESTAMPS];

pub(crate) const LATENT_ACTION: &str = "latent_action";
pub(crate) const LATENT_CODEBOOK: &str = "latent_action_codebook";

/// Where a channel belongs in an episode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// An observation, by its id.
    Signal(String),
    /// An action, by its id.
    Action(String),
    /// The rewards.
    Reward,
    /// Which steps ended in a terminal state.
    Terminated,
    /// Which steps were cut off.
    Truncated,
    /// `time/ticks`.
    Ticks,
    /// `time/timestamps_ns`.
    Timestamps,
    /// A model's prediction of a channel.
    Omen {
        /// What is predicted.
        channel: String,
        /// Who predicts it.
        model: String,
    },
    /// The uncertainty of a prediction.
    Uncert {
        /// What is predicted.
        channel: String,
        /// Who predicts it; may be empty.
        model: String,
        /// For example `std`.
        kind: String,
    },
}

impl Lane {
    /// The lane of a block with a name of its own, by its row if it has one. `None` if it belongs to none (W-NAM-2).
    pub(crate) fn of(block: &str, row: Option<&Row>) -> Option<Self> {
        let (lane, rest) = cut(block);
        let said = |field: &str, otherwise: &str| {
            let text = row.map_or("", |row| row.text(field));
            if text.is_empty() { otherwise.to_owned() } else { text.to_owned() }
        };
        let id = || row.map_or_else(|| rest.to_owned(), |row| row.id.clone());
        let (channel, after) = cut(rest);
        match lane {
            "signal" if !rest.is_empty() => Some(Self::Signal(id())),
            "action" if !rest.is_empty() => Some(Self::Action(id())),
            "omen" => {
                let (channel, model) = (said("channel", channel), said("model", after));
                (!channel.is_empty() && !model.is_empty()).then_some(Self::Omen { channel, model })
            }
            "uncert" => {
                let (model, kind) = cut_last(after);
                let (channel, model, kind) = (said("channel", channel), said("model", model), said("type", kind));
                (!channel.is_empty() && !kind.is_empty()).then_some(Self::Uncert { channel, model, kind })
            }
            _ => None,
        }
    }

    /// The name that a writer gives to the block of this lane.
    pub fn block_name(&self) -> String {
        match self {
            Self::Signal(id) => format!("signal/{id}"),
            Self::Action(id) => format!("action/{id}"),
            Self::Reward => REWARD.to_owned(),
            Self::Terminated => TERMINATED.to_owned(),
            Self::Truncated => TRUNCATED.to_owned(),
            Self::Ticks => TICKS.to_owned(),
            Self::Timestamps => TIMESTAMPS.to_owned(),
            Self::Omen { channel, model } => join_keys("omen", &[channel, model]),
            Self::Uncert { channel, model, kind } => join_keys("uncert", &[channel, model, kind]),
        }
    }

    /// Whether the lane holds one value for each step.
    pub(crate) fn is_of_steps(&self) -> bool {
        matches!(self, Self::Reward | Self::Terminated | Self::Truncated | Self::Ticks | Self::Timestamps)
    }

    /// Checks the ids of a lane that is written (W-NAM-1).
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Signal(id) | Self::Action(id) => check_id(id),
            Self::Omen { channel, model } => check_id(channel).and_then(|()| check_id(model)),
            Self::Uncert { channel, model, kind } => {
                check_id(channel)?;
                check_id(kind)?;
                if model.is_empty() { Ok(()) } else { check_id(model) }
            }
            _ => Ok(()),
        }
    }
}

/// A name of a lane and keys that are not empty.
pub(crate) fn join_keys(lane: &str, keys: &[&str]) -> String {
    let mut name = lane.to_owned();
    for key in keys.iter().filter(|key| !key.is_empty()) {
        name.push('/');
        name.push_str(key);
    }
    name
}

/// Cuts at the first slash; without one, the second part is empty.
pub(crate) fn cut(name: &str) -> (&str, &str) {
    name.split_once('/').unwrap_or((name, ""))
}

/// Cuts at the last slash; without one, everything is the second part.
pub(crate) fn cut_last(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

/// Checks an id of a block that is written (W-NAM-1).
pub(crate) fn check_id(id: &str) -> Result<()> {
    if id.split('/').any(|part| matches!(part, "" | "." | "..")) {
        let problem = format!("the id {id:.80?} cannot be a part of a name");
        return Err(Error::new(Code::InvalidArgument, "W-NAM-1", problem)
            .with_expected("no empty part, '.' or '..' between slashes"));
    }
    Ok(())
}

/// Whether blocks of this name may hold T + 1 entries without saying so (W-BLK-2).
pub(crate) fn may_have_one_more(block: &str) -> bool {
    matches!(cut(block).0, "signal" | "omen" | "uncert")
}

/// The order of a new file: whole names, lanes with a slash, and "" for everything else.
const FILE_ORDER: [&str; 23] = [
    META_WSHARD,
    META_EPISODE,
    META_CHANNELS,
    "signal/",
    "action/",
    REWARD,
    REWARD_EXACT,
    DONE,
    TERMINATED,
    TRUNCATED,
    TICKS,
    TIMESTAMPS,
    "time/",
    "offsets/",
    "frames/",
    "omen/",
    "uncert/",
    "residual/",
    "label/",
    "",
    "meta/",
    META_PROVENANCE,
    META_IDENTITY,
];

/// Where the group of an entry is in a new file.
fn place_of(name: &str) -> usize {
    let find = |wanted: &str| FILE_ORDER.iter().position(|one| *one == wanted);
    let lane = cut(name).0;
    find(name).or_else(|| find(&format!("{lane}/"))).or_else(|| find("")).unwrap_or(FILE_ORDER.len())
}

/// Whether the format defines nothing about the entry, so that its content type is the caller's.
pub(crate) fn is_extra(name: &str) -> bool {
    FILE_ORDER.get(place_of(name)).is_none_or(|place| place.is_empty())
}

/// Orders entries as a new file has them.
pub(crate) fn compare_in_file(a: &str, b: &str) -> Ordering {
    place_of(a).cmp(&place_of(b)).then_with(|| a.cmp(b))
}

/// Where the group of a row is in a new `meta/channels`.
pub(crate) fn row_place(block: &str) -> usize {
    const ORDER: [&str; 6] = ["signal", "action", "reward", "omen", "uncert", "residual"];
    let lane = cut(block).0;
    ORDER.iter().position(|one| *one == lane).unwrap_or(ORDER.len())
}
