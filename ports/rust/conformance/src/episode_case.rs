//! Makes the episodes that the cases of `canonical/` describe.

use std::path::Path;

use shard_format::hash::unhex;
use shard_format::json::{Object, Value};
use shard_format::wshard::{
    self, Channel, Episode, Extra, Interval, Label, Lane, Packet, Provenance, ResidualKind, SaveOptions, Timebase, Unit,
};
use shard_format::{ContentType, DType, Error, Result, shard};

use crate::{number, text};

pub fn list<'a>(fields: &'a Object, key: &str) -> &'a [Value] {
    fields.get(key).and_then(Value::as_list).unwrap_or_default()
}

fn fields<'a>(fields: &'a Object, key: &str) -> impl Iterator<Item = (&'a String, &'a Object)> {
    let found = fields.get(key).and_then(Value::as_object).into_iter().flatten();
    found.filter_map(|(key, value)| Some((key, value.as_object()?)))
}

fn integers<T: std::str::FromStr + Default>(fields: &Object, key: &str) -> Option<Vec<T>> {
    let texts = fields.get(key)?.as_list()?.iter();
    Some(texts.map(|text| text.as_str().and_then(|text| text.parse().ok()).unwrap_or_default()).collect())
}

fn optional<T: std::str::FromStr>(fields: &Object, key: &str) -> Option<T> {
    fields.get(key)?.as_str()?.parse().ok()
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    unhex(text).ok_or_else(|| Error::invalid("the case has wrong hex digits"))
}

pub fn unsynced(compression: shard::Codec) -> SaveOptions {
    SaveOptions { compression, sync: false, ..SaveOptions::default() }
}

pub fn write(case: &Object, out: &Path) -> Result<()> {
    let _ = std::fs::remove_file(out);
    let options = case.get("options").and_then(Value::as_object).cloned().unwrap_or_default();
    let codec = shard::Codec::parse(text(&options, "compression")).unwrap_or_default();
    let identity = options.get("identity").and_then(Value::as_bool).unwrap_or(false);
    let told = case.get("episode").and_then(Value::as_object).cloned().unwrap_or_default();
    wshard::save(out, &make(&told)?, &SaveOptions { identity, ..unsynced(codec) })
}

pub fn make(told: &Object) -> Result<Episode> {
    let mut ep = Episode::new(text(told, "id"), number(told, "length"));
    ep.env_id = text(told, "env_id").to_owned();
    if let Some(timebase) = told.get("timebase").and_then(Value::as_object) {
        ep.timebase = Timebase {
            has_timestamps: text(timebase, "type") == "timestamps_ns",
            tick_hz: timebase.get("tick_hz").and_then(Value::as_f64),
            epoch_ns: number(timebase, "epoch_ns"),
        };
    }
    ep.metadata = told.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    ep.chunk_index = optional(told, "chunk_index");
    ep.total_chunks = optional(told, "total_chunks");
    if let Some([first, last]) = integers(told, "timestep_range").as_deref() {
        ep.timestep_range = Some((*first, *last));
    }
    for (id, one) in fields(told, "observations") {
        ep.lanes.insert(Lane::Signal(id.clone()), make_channel(one, ep.length)?);
    }
    for (id, one) in fields(told, "actions") {
        ep.lanes.insert(Lane::Action(id.clone()), make_channel(one, ep.length)?);
    }
    for (channel, models) in fields(told, "omens") {
        for (model, one) in models {
            let lane = Lane::Omen { channel: channel.clone(), model: model.clone() };
            ep.lanes.insert(lane, make_channel(one.as_object().unwrap_or(&Object::new()), ep.length)?);
        }
    }
    for (channel, models) in fields(told, "uncerts") {
        for model in models.keys() {
            for (kind, one) in fields(models, model) {
                let lane = Lane::Uncert { channel: channel.clone(), model: model.clone(), kind: kind.clone() };
                ep.lanes.insert(lane, make_channel(one, ep.length)?);
            }
        }
    }
    if let Some(rewards) = told.get("rewards").and_then(Value::as_object) {
        ep.lanes.insert(Lane::Reward, make_channel(rewards, ep.length)?);
    }
    for (key, lane) in [("terminations", Lane::Terminated), ("truncations", Lane::Truncated)] {
        if let Some(ends) = told.get(key).and_then(Value::as_str) {
            ep.lanes.insert(lane, Channel::from_bytes(DType::Bool, &[], bytes(ends)?));
        }
    }
    if let Some(ticks) = integers::<i32>(told, "ticks") {
        ep.lanes.insert(Lane::Ticks, Channel::from_values(&ticks, &[]));
    }
    if let Some(times) = integers::<i64>(told, "timestamps_ns") {
        ep.lanes.insert(Lane::Timestamps, Channel::from_values(&times, &[]));
    }
    for one in list(told, "residuals").iter().filter_map(Value::as_object) {
        let kind =
            [ResidualKind::Sign2ndDiff, ResidualKind::DeltaQ].into_iter().find(|kind| kind.name() == text(one, "type"));
        let kind = kind.ok_or_else(|| Error::invalid("an unknown type of residual"))?;
        let model = Some(text(one, "model")).filter(|model| !model.is_empty());
        ep.add_residual(text(one, "channel"), model, kind, optional(one, "window"))?;
    }
    for (name, one) in fields(told, "extras") {
        ep.extras.insert(name.clone(), Extra::new(bytes(text(one, "hex"))?, ContentType(number(one, "content_type"))));
    }
    for (name, one) in fields(told, "labels") {
        ep.labels.insert(name.clone(), make_label(one).into());
    }
    ep.provenance = told.get("provenance").and_then(Value::as_object).map(make_provenance);
    Ok(ep)
}

fn make_label(told: &Object) -> Label {
    let unit = if text(told, "unit") == "ns" { Unit::Nanoseconds } else { Unit::Steps };
    let interval = |one: &Object| Interval {
        start: number(one, "start"),
        end: number(one, "end"),
        text: text(one, "text").to_owned(),
        source: text(one, "source").to_owned(),
        confidence: one.get("confidence").and_then(Value::as_f64),
        ..Interval::default()
    };
    Label { unit, intervals: list(told, "intervals").iter().filter_map(Value::as_object).map(interval).collect() }
}

fn make_provenance(told: &Object) -> Provenance {
    let number = |key| told.get(key).and_then(Value::as_i64).unwrap_or_default();
    let source = told.get("source").and_then(Value::as_object).into_iter().flatten();
    Provenance {
        start_state: text(told, "start_state").to_owned(),
        end_state: text(told, "end_state").to_owned(),
        prev_identity: text(told, "prev_identity").to_owned(),
        run_id: text(told, "run_id").to_owned(),
        epoch: number("epoch"),
        first_seq: number("first_seq"),
        last_seq: number("last_seq"),
        source: source.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
    }
}

fn make_channel(told: &Object, steps: u64) -> Result<Channel> {
    let mut channel = make_values(told, steps)?;
    if let Some(start) = optional::<i64>(told, "start_ns") {
        channel = channel.with("start_ns", start);
    }
    if let Some(rate) = told.get("sampling_rate_hz").and_then(Value::as_f64) {
        channel = channel.with("sampling_rate_hz", rate);
    }
    if let Some(horizon) = optional::<u64>(told, "horizon") {
        channel = channel.with("horizon", horizon);
    }
    if let Some(times) = integers::<i64>(told, "timestamps_ns") {
        channel = channel.with_timestamps(&times);
    }
    channel.about.extend(told.get("row").and_then(Value::as_object).cloned().unwrap_or_default());
    Ok(channel)
}

fn make_values(told: &Object, steps: u64) -> Result<Channel> {
    let dtype = DType::parse(text(told, "dtype")).unwrap_or(DType::U8);
    let shape = integers(told, "shape").unwrap_or_default();
    let pieces =
        |key| list(told, key).iter().map(|one| bytes(one.as_str().unwrap_or_default())).collect::<Result<Vec<_>>>();
    Ok(match text(told, "layout") {
        "text" => Channel::from_strings(&list(told, "text").iter().filter_map(Value::as_str).collect::<Vec<_>>()),
        "ragged" => Channel::from_items(dtype, &shape, pieces("items")?.iter().map(Vec::as_slice)),
        "video" => {
            let frames = integers::<i64>(told, "steps");
            let flag = |key, i: usize| list(told, key).get(i).and_then(Value::as_bool);
            let packet = |(i, data)| Packet {
                data,
                step: frames.as_ref().map_or(i as i64, |steps| steps[i]),
                is_keyframe: flag("keyframes", i).unwrap_or(true),
                is_hidden: flag("hidden", i).unwrap_or(false),
            };
            let packets: Vec<Packet> = pieces("packets")?.into_iter().enumerate().map(packet).collect();
            let channel = Channel::from_packets(text(told, "content_type"), dtype, &shape, &packets);
            channel.with("extradata", text(told, "extradata"))
        }
        _ => {
            let data = bytes(text(told, "hex"))?;
            let length = optional(told, "length").or(data.is_empty().then_some(steps));
            let mut channel = Channel::from_bytes(dtype, &shape, data);
            channel.length = length.unwrap_or(channel.length);
            channel
        }
    })
}
