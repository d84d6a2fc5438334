//! What the program can do with kind episode.

use std::collections::BTreeMap;
use std::path::Path;

use shard_format::hash::{hex, sha256_hex, unhex};
use shard_format::json::{Object, Value, object};
use shard_format::wshard::{
    self, Channel, Episode, Extra, Interval, Label, Lane, Layout, OpenOptions, Packet, Provenance,
    Residual, ResidualKind, SaveOptions, Sidecars, Timebase, Unit,
};
use shard_format::{Code, ContentType, DType, Error, Result, shard};

use crate::{Kind, decimal, number, reader_options, text};

pub const KIND: Kind = Kind {
    name: "episode",
    features: "ECDH",
    read: |file| tell(&wshard::open(file)?),
    step,
    write,
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
            ep.timestep_range
                .map(|(first, last)| Value::List(vec![decimal(first), decimal(last)]))
                .into(),
        ),
    ]);
    let timebase = [
        ("epoch_ns", decimal(ep.timebase.epoch_ns)),
        ("tick_hz", ep.timebase.tick_hz.into()),
        ("type", ep.timebase.type_name().into()),
    ];
    told.insert("timebase".into(), object(timebase).into());
    for key in [
        "rewards",
        "terminations",
        "truncations",
        "ticks",
        "timestamps_ns",
    ] {
        told.insert(key.into(), Value::Null);
    }
    for (lane, channel) in &ep.lanes {
        let (group, keys) = match lane {
            Lane::Signal(id) => ("observations", vec![id]),
            Lane::Action(id) => ("actions", vec![id]),
            Lane::Omen { channel, model } => ("omens", vec![channel, model]),
            Lane::Uncert {
                channel,
                model,
                kind,
            } => ("uncerts", vec![channel, model, kind]),
            _ => {
                let (key, value) = tell_steps(lane, channel)?;
                told.insert(key.to_owned(), value);
                continue;
            }
        };
        let mut place = lanes.entry(group).or_default();
        let (last, path) = keys.split_last().unwrap();
        for key in path {
            let inner = place
                .entry((*key).clone())
                .or_insert_with(|| Object::new().into());
            let Value::Object(inner) = inner else {
                unreachable!()
            };
            place = inner;
        }
        place.insert((*last).clone(), tell_channel(channel)?.into());
    }
    told.extend(
        lanes
            .into_iter()
            .map(|(key, lane)| (key.to_owned(), lane.into())),
    );
    let residuals = ep
        .residuals
        .iter()
        .map(|(key, one)| Ok((key.clone(), tell_residual(one)?.into())));
    told.insert(
        "residuals".into(),
        residuals.collect::<Result<Object>>()?.into(),
    );
    let labels = ep
        .labels
        .iter()
        .map(|(key, one)| Ok((key.clone(), tell_label(&one.read()?).into())));
    told.insert("labels".into(), labels.collect::<Result<Object>>()?.into());
    let extras = ep
        .extras
        .iter()
        .map(|(name, one)| Ok((name.clone(), sha256_hex(&one.data()?).into())));
    told.insert("extras".into(), extras.collect::<Result<Object>>()?.into());
    Ok(told)
}

fn tell_steps(lane: &Lane, channel: &Channel) -> Result<(&'static str, Value)> {
    let ends = |data: &[u8]| {
        object([
            ("block", channel.block().into()),
            ("length", decimal(data.len())),
            ("hex", hex(data).into()),
        ])
    };
    Ok(match lane {
        Lane::Reward => ("rewards", tell_channel(channel)?.into()),
        Lane::Terminated => ("terminations", ends(&values(channel)?).into()),
        Lane::Truncated => ("truncations", ends(&values(channel)?).into()),
        Lane::Ticks => (
            "ticks",
            channel.values::<i32>()?.into_iter().map(decimal).collect(),
        ),
        _ => (
            "timestamps_ns",
            channel.values::<i64>()?.into_iter().map(decimal).collect(),
        ),
    })
}

/// The bytes of a dense channel; truth values as 00 and 01.
fn values(channel: &Channel) -> Result<Vec<u8>> {
    let mut data = channel.data()?.into_owned();
    if channel.dtype == DType::Bool {
        data.iter_mut()
            .for_each(|flag| *flag = u8::from(*flag != 0));
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
        Layout::Ragged => drop(told.insert(
            "items".into(),
            channel.items()?.iter().map(|item| hex(item)).collect(),
        )),
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
        let key = if is_regular {
            "times_ns"
        } else {
            "timestamps_ns"
        };
        told.insert(key.into(), times.into_iter().map(decimal).collect());
    }
    Ok(told)
}

fn tell_video(channel: &Channel, told: &mut Object) -> Result<()> {
    let packets = channel.packets()?;
    told.extend(object([
        ("content_type", channel.text("content_type").into()),
        ("extradata", channel.text("extradata").into()),
        (
            "steps",
            packets.iter().map(|packet| decimal(packet.step)).collect(),
        ),
        (
            "keyframes",
            packets.iter().map(|packet| packet.is_keyframe).collect(),
        ),
        (
            "hidden",
            packets.iter().map(|packet| packet.is_hidden).collect(),
        ),
        (
            "packets",
            packets.iter().map(|packet| hex(&packet.data)).collect(),
        ),
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
            (
                "source",
                Some(one.source.as_str())
                    .filter(|source| !source.is_empty())
                    .into(),
            ),
            ("start", decimal(one.start)),
            ("text", one.text.as_str().into()),
        ])
    });
    object([
        ("intervals", intervals.collect()),
        ("unit", label.unit.name().into()),
    ])
}

// --- steps of invalid vectors

fn step(file: &Path, case: &Object) -> Result<()> {
    if text(case, "when") == "check" {
        let findings = wshard::check(file);
        return findings
            .into_iter()
            .find(|one| !one.is_warning)
            .map_or(Ok(()), |one| Err(one.error));
    }
    let options = OpenOptions {
        sidecars: Sidecars::Strict,
        reader: reader_options(case),
    };
    let ep = wshard::open_with(file, &options)?;
    if text(case, "when") == "touch" {
        let path: Vec<&str> = list(case, "touch")
            .iter()
            .filter_map(Value::as_str)
            .collect();
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
        ["omens", channel, model] => Lane::Omen {
            channel: channel.into(),
            model: model.into(),
        },
        ["uncerts", channel, model, kind] => Lane::Uncert {
            channel: channel.into(),
            model: model.into(),
            kind: kind.into(),
        },
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

// --- writing

fn list<'a>(fields: &'a Object, key: &str) -> &'a [Value] {
    fields.get(key).and_then(Value::as_list).unwrap_or_default()
}

fn fields<'a>(fields: &'a Object, key: &str) -> impl Iterator<Item = (&'a String, &'a Object)> {
    let found = fields
        .get(key)
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    found.filter_map(|(key, value)| Some((key, value.as_object()?)))
}

fn integers<T: std::str::FromStr + Default>(fields: &Object, key: &str) -> Option<Vec<T>> {
    let texts = fields.get(key)?.as_list()?.iter();
    Some(
        texts
            .map(|text| {
                text.as_str()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or_default()
            })
            .collect(),
    )
}

fn optional<T: std::str::FromStr>(fields: &Object, key: &str) -> Option<T> {
    fields.get(key)?.as_str()?.parse().ok()
}

fn bytes(text: &str) -> Result<Vec<u8>> {
    unhex(text).ok_or_else(|| Error::invalid("the case has wrong hex digits"))
}

pub fn unsynced(compression: shard::Codec) -> SaveOptions {
    SaveOptions {
        compression,
        sync: false,
        ..SaveOptions::default()
    }
}

fn write(case: &Object, out: &Path) -> Result<()> {
    let _ = std::fs::remove_file(out);
    let options = case
        .get("options")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let codec = shard::Codec::parse(text(&options, "compression")).unwrap_or_default();
    let identity = options
        .get("identity")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    let told = case
        .get("episode")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    wshard::save(
        out,
        &make(&told)?,
        &SaveOptions {
            identity,
            ..unsynced(codec)
        },
    )
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
    ep.metadata = told
        .get("metadata")
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    ep.chunk_index = optional(told, "chunk_index");
    ep.total_chunks = optional(told, "total_chunks");
    if let Some([first, last]) = integers(told, "timestep_range").as_deref() {
        ep.timestep_range = Some((*first, *last));
    }
    for (id, one) in fields(told, "observations") {
        ep.lanes
            .insert(Lane::Signal(id.clone()), make_channel(one, ep.length)?);
    }
    for (id, one) in fields(told, "actions") {
        ep.lanes
            .insert(Lane::Action(id.clone()), make_channel(one, ep.length)?);
    }
    for (channel, models) in fields(told, "omens") {
        for (model, one) in models {
            let lane = Lane::Omen {
                channel: channel.clone(),
                model: model.clone(),
            };
            ep.lanes.insert(
                lane,
                make_channel(one.as_object().unwrap_or(&Object::new()), ep.length)?,
            );
        }
    }
    for (channel, models) in fields(told, "uncerts") {
        for model in models.keys() {
            for (kind, one) in fields(models, model) {
                let lane = Lane::Uncert {
                    channel: channel.clone(),
                    model: model.clone(),
                    kind: kind.clone(),
                };
                ep.lanes.insert(lane, make_channel(one, ep.length)?);
            }
        }
    }
    if let Some(rewards) = told.get("rewards").and_then(Value::as_object) {
        ep.lanes
            .insert(Lane::Reward, make_channel(rewards, ep.length)?);
    }
    for (key, lane) in [
        ("terminations", Lane::Terminated),
        ("truncations", Lane::Truncated),
    ] {
        if let Some(ends) = told.get(key).and_then(Value::as_str) {
            ep.lanes
                .insert(lane, Channel::from_bytes(DType::Bool, &[], bytes(ends)?));
        }
    }
    if let Some(ticks) = integers::<i32>(told, "ticks") {
        ep.lanes
            .insert(Lane::Ticks, Channel::from_values(&ticks, &[]));
    }
    if let Some(times) = integers::<i64>(told, "timestamps_ns") {
        ep.lanes
            .insert(Lane::Timestamps, Channel::from_values(&times, &[]));
    }
    for one in list(told, "residuals").iter().filter_map(Value::as_object) {
        let kind = [ResidualKind::Sign2ndDiff, ResidualKind::DeltaQ]
            .into_iter()
            .find(|kind| kind.name() == text(one, "type"));
        let kind = kind.ok_or_else(|| Error::invalid("an unknown type of residual"))?;
        let model = Some(text(one, "model")).filter(|model| !model.is_empty());
        ep.add_residual(text(one, "channel"), model, kind, optional(one, "window"))?;
    }
    for (name, one) in fields(told, "extras") {
        ep.extras.insert(
            name.clone(),
            Extra::new(
                bytes(text(one, "hex"))?,
                ContentType(number(one, "content_type")),
            ),
        );
    }
    for (name, one) in fields(told, "labels") {
        ep.labels.insert(name.clone(), make_label(one).into());
    }
    ep.provenance = told
        .get("provenance")
        .and_then(Value::as_object)
        .map(make_provenance);
    Ok(ep)
}

fn make_label(told: &Object) -> Label {
    let unit = if text(told, "unit") == "ns" {
        Unit::Nanoseconds
    } else {
        Unit::Steps
    };
    let interval = |one: &Object| Interval {
        start: number(one, "start"),
        end: number(one, "end"),
        text: text(one, "text").to_owned(),
        source: text(one, "source").to_owned(),
        confidence: one.get("confidence").and_then(Value::as_f64),
        ..Interval::default()
    };
    Label {
        unit,
        intervals: list(told, "intervals")
            .iter()
            .filter_map(Value::as_object)
            .map(interval)
            .collect(),
    }
}

fn make_provenance(told: &Object) -> Provenance {
    let number = |key| told.get(key).and_then(Value::as_i64).unwrap_or_default();
    let source = told
        .get("source")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    Provenance {
        start_state: text(told, "start_state").to_owned(),
        end_state: text(told, "end_state").to_owned(),
        prev_identity: text(told, "prev_identity").to_owned(),
        run_id: text(told, "run_id").to_owned(),
        epoch: number("epoch"),
        first_seq: number("first_seq"),
        last_seq: number("last_seq"),
        source: source
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
            .collect(),
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
    channel.about.extend(
        told.get("row")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default(),
    );
    Ok(channel)
}

fn make_values(told: &Object, steps: u64) -> Result<Channel> {
    let dtype = DType::parse(text(told, "dtype")).unwrap_or(DType::U8);
    let shape = integers(told, "shape").unwrap_or_default();
    let pieces = |key| {
        list(told, key)
            .iter()
            .map(|one| bytes(one.as_str().unwrap_or_default()))
            .collect::<Result<Vec<_>>>()
    };
    Ok(match text(told, "layout") {
        "text" => Channel::from_strings(
            &list(told, "text")
                .iter()
                .filter_map(Value::as_str)
                .collect::<Vec<_>>(),
        ),
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
            let packets: Vec<Packet> = pieces("packets")?
                .into_iter()
                .enumerate()
                .map(packet)
                .collect();
            let channel =
                Channel::from_packets(text(told, "content_type"), dtype, &shape, &packets);
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
