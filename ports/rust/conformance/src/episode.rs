//! What the program can do with kind episode.

use std::collections::BTreeMap;
use std::path::Path;

use shard_format::hash::{hex, sha256_hex};
use shard_format::json::{Object, Value, object};
use shard_format::wshard::{self, Channel, Episode, Label, Lane, Layout, OpenOptions, Residual, Sidecars};
use shard_format::{Code, DType, Error, Result, shard};

use crate::episode_case::{list, unsynced};
use crate::{Kind, decimal, episode_case, reader_options, text};

pub const KIND: Kind = Kind {
    name: "episode",
    features: "ECDH",
    read: |file| tell(&wshard::open(file)?),
    step,
    write: episode_case::write,
    rewrite: |file, out| wshard::save(out, &wshard::open(file)?, &unsynced(shard::Codec::None)),
};

/// Values of more bytes are told by their digest.
const LONGEST_HEX: usize = 512;

// --- telling

pub fn tell(ep: &Episode) -> Result<Object> {
    let mut lanes: BTreeMap<&str, Object> = BTreeMap::new();
    for key in ["observations", "actions", "omens", "uncerts"] {
        lanes.insert(key, Object::new());
    }
    let mut told = object([
        ("id", ep.id.as_str().into()),
        ("env_id", ep.env_id.as_str().into()),
        ("length", decimal(ep.length)),
        ("metadata", ep.metadata.clone().into()),
        ("chunk_index", ep.chunk_index.map(decimal).into()),
        ("total_chunks", ep.total_chunks.map(decimal).into()),
        (
            "timestep_range",
            ep.timestep_range.map(|(first, last)| Value::List(vec![decimal(first), decimal(last)])).into(),
        ),
    ]);
    let timebase = [
        ("epoch_ns", decimal(ep.timebase.epoch_ns)),
        ("tick_hz", ep.timebase.tick_hz.into()),
        ("type", ep.timebase.type_name().into()),
    ];
    told.insert("timebase".into(), object(timebase).into());
    for key in ["rewards", "terminations", "truncations", "ticks", "timestamps_ns"] {
        told.insert(key.into(), Value::Null);
    }
    for (lane, channel) in &ep.lanes {
        let (group, keys) = match lane {
            Lane::Signal(id) => ("observations", vec![id]),
            Lane::Action(id) => ("actions", vec![id]),
            Lane::Omen { channel, model } => ("omens", vec![channel, model]),
            Lane::Uncert { channel, model, kind } => ("uncerts", vec![channel, model, kind]),
            _ => {
                let (key, value) = tell_steps(lane, channel)?;
                told.insert(key.to_owned(), value);
                continue;
            }
        };
        let mut place = lanes.entry(group).or_default();
        let (last, path) = keys.split_last().unwrap();
        for key in path {
            let inner = place.entry((*key).clone()).or_insert_with(|| Object::new().into());
            let Value::Object(inner) = inner else { unreachable!() };
            place = inner;
        }
        place.insert((*last).clone(), tell_channel(channel)?.into());
    }
    told.extend(lanes.into_iter().map(|(key, lane)| (key.to_owned(), lane.into())));
    let residuals = ep.residuals.iter().map(|(key, one)| Ok((key.clone(), tell_residual(one)?.into())));
    told.insert("residuals".into(), residuals.collect::<Result<Object>>()?.into());
    let labels = ep.labels.iter().map(|(key, one)| Ok((key.clone(), tell_label(&one.read()?).into())));
    told.insert("labels".into(), labels.collect::<Result<Object>>()?.into());
    let extras = ep.extras.iter().map(|(name, one)| Ok((name.clone(), sha256_hex(&one.data()?).into())));
    told.insert("extras".into(), extras.collect::<Result<Object>>()?.into());
    Ok(told)
}

fn tell_steps(lane: &Lane, channel: &Channel) -> Result<(&'static str, Value)> {
    let ends = |data: &[u8]| {
        object([("block", channel.block().into()), ("length", decimal(data.len())), ("hex", hex(data).into())])
    };
    Ok(match lane {
        Lane::Reward => ("rewards", tell_channel(channel)?.into()),
        Lane::Terminated => ("terminations", ends(&values(channel)?).into()),
        Lane::Truncated => ("truncations", ends(&values(channel)?).into()),
        Lane::Ticks => ("ticks", channel.values::<i32>()?.into_iter().map(decimal).collect()),
        _ => ("timestamps_ns", channel.values::<i64>()?.into_iter().map(decimal).collect()),
    })
}

/// The bytes of a dense channel; truth values as 00 and 01.
fn values(channel: &Channel) -> Result<Vec<u8>> {
    let mut data = channel.data()?.into_owned();
    if channel.dtype == DType::Bool {
        data.iter_mut().for_each(|flag| *flag = u8::from(*flag != 0));
    }
    Ok(data)
}

fn tell_bytes(data: &[u8], told: &mut Object) {
    if data.len() <= LONGEST_HEX {
        told.insert("hex".into(), hex(data).into());
    } else {
        told.insert("sha256".into(), sha256_hex(data).into());
    }
}

fn tell_channel(channel: &Channel) -> Result<Object> {
    let mut told = object([
        ("block", channel.block().into()),
        ("dtype", channel.dtype.name().into()),
        ("inferred", channel.is_inferred().into()),
        ("layout", channel.layout.name().into()),
        ("length", decimal(channel.length)),
        ("shape", channel.shape.iter().map(decimal).collect()),
    ]);
    match channel.layout {
        Layout::Video => tell_video(channel, &mut told)?,
        Layout::Text => drop(told.insert("text".into(), channel.strings()?.into_iter().collect())),
        Layout::Ragged => drop(told.insert("items".into(), channel.items()?.iter().map(|item| hex(item)).collect())),
        _ => tell_bytes(&values(channel)?, &mut told),
    }
    if let Some(horizon) = channel.horizon() {
        told.insert("horizon".into(), decimal(horizon));
    }
    if let Some(start) = channel.start_ns() {
        told.insert("start_ns".into(), decimal(start));
    }
    if let Some(rate) = channel.sampling_rate_hz() {
        told.insert("sampling_rate_hz".into(), rate.into());
    }
    if let Some(times) = channel.timestamps()? {
        let is_regular = channel.start_ns().is_some() && channel.sampling_rate_hz().is_some();
        let key = if is_regular { "times_ns" } else { "timestamps_ns" };
        told.insert(key.into(), times.into_iter().map(decimal).collect());
    }
    Ok(told)
}

fn tell_video(channel: &Channel, told: &mut Object) -> Result<()> {
    let packets = channel.packets()?;
    told.extend(object([
        ("content_type", channel.text("content_type").into()),
        ("extradata", channel.text("extradata").into()),
        ("steps", packets.iter().map(|packet| decimal(packet.step)).collect()),
        ("keyframes", packets.iter().map(|packet| packet.is_keyframe).collect()),
        ("hidden", packets.iter().map(|packet| packet.is_hidden).collect()),
        ("packets", packets.iter().map(|packet| hex(&packet.data)).collect()),
    ]));
    Ok(())
}

fn tell_residual(residual: &Residual) -> Result<Object> {
    let mut told = object([
        ("block", residual.values.block().into()),
        ("channel", residual.channel.as_str().into()),
        ("model", residual.model.as_str().into()),
        ("type", residual.kind.name().into()),
        ("scales", Value::Null),
        ("window", Value::Null),
    ]);
    tell_bytes(&residual.values.data()?, &mut told);
    if let Some(scales) = &residual.scales {
        told.extend(object([
            ("scales", hex(&scales.data()?).into()),
            ("shape", residual.values.shape.iter().map(decimal).collect()),
            ("window", decimal(residual.window)),
        ]));
    }
    Ok(told)
}

fn tell_label(label: &Label) -> Object {
    let intervals = label.intervals.iter().map(|one| {
        object([
            ("confidence", one.confidence.into()),
            ("end", decimal(one.end)),
            ("source", Some(one.source.as_str()).filter(|source| !source.is_empty()).into()),
            ("start", decimal(one.start)),
            ("text", one.text.as_str().into()),
        ])
    });
    object([("intervals", intervals.collect()), ("unit", label.unit.name().into())])
}

// --- steps of invalid vectors

fn step(file: &Path, case: &Object) -> Result<()> {
    if text(case, "when") == "check" {
        let findings = wshard::check(file);
        return findings.into_iter().find(|one| !one.is_warning).map_or(Ok(()), |one| Err(one.error));
    }
    let options = OpenOptions { sidecars: Sidecars::Strict, reader: reader_options(case) };
    let ep = wshard::open_with(file, &options)?;
    if text(case, "when") == "touch" {
        let path: Vec<&str> = list(case, "touch").iter().filter_map(Value::as_str).collect();
        touch(&ep, &path)?;
    }
    Ok(())
}

/// Reads everything of a lane.
fn touch(ep: &Episode, path: &[&str]) -> Result<()> {
    let missing = || Error::new(Code::EntryNotFound, "", "no such lane");
    let lane = match *path {
        ["observations", id] => Lane::Signal(id.into()),
        ["actions", id] => Lane::Action(id.into()),
        ["omens", channel, model] => Lane::Omen { channel: channel.into(), model: model.into() },
        ["uncerts", channel, model, kind] => {
            Lane::Uncert { channel: channel.into(), model: model.into(), kind: kind.into() }
        }
        ["rewards"] => Lane::Reward,
        ["terminations"] => Lane::Terminated,
        ["truncations"] => Lane::Truncated,
        ["ticks"] => Lane::Ticks,
        ["timestamps_ns"] => Lane::Timestamps,
        ["residuals", key] => {
            return tell_residual(ep.residuals.get(key).ok_or_else(missing)?).map(drop);
        }
        ["labels", key] => return ep.labels.get(key).ok_or_else(missing)?.read().map(drop),
        _ => return Err(missing()),
    };
    let channel = ep.lanes.get(&lane).ok_or_else(missing)?;
    tell_channel(channel)?;
    channel.check_pictures().map(drop)
}
