//! Recordings: the cases of `canonical/` that say what a robot records, call by call.

use std::path::Path;
use std::time::Duration;

use shard_format::json::{Object, Value};
use shard_format::wshard::{ChannelDef, Ends, Interval, OnPartial, RecordOptions, Recorder, Step, SyncPolicy};
use shard_format::{DType, Error, Result, hash};

use crate::{Kind, UNSUPPORTED, episode_case, number, text};

pub const KIND: Kind = Kind { name: "recording", features: "Q", ..UNSUPPORTED };

/// Records a case, and gives the digest of the journal as it is before the episode is finished.
pub fn write(case: &Object, out: &Path) -> Result<String> {
    let recorder = Recorder::create(out, options(case)?)?;
    for call in list(case, "calls") {
        make_call(&recorder, call)?;
    }
    recorder.flush()?;
    let mut journal = out.as_os_str().to_owned();
    journal.push(".partial");
    let data = std::fs::read(&journal).map_err(|e| Error::io("cannot read", Some(journal.as_ref()), e))?;
    if let Some(last) = case.get("final").and_then(Value::as_object) {
        let values = bytes(last)?;
        if !values.is_empty() {
            recorder.write_final(&borrowed(&values))?;
        }
    }
    recorder.finish()?;
    Ok(hash::sha256_hex(&data))
}

fn options(case: &Object) -> Result<RecordOptions> {
    let of = |key: &str| case.get(key).and_then(Value::as_object);
    let missing = || Error::invalid("the case has no episode or no options");
    let (told, chosen) = of("episode").zip(of("options")).ok_or_else(missing)?;
    let ep = episode_case::make(told)?;
    let channels = list(case, "channels").map(channel).collect::<Result<_>>()?;
    let steps = list(case, "calls").filter_map(|call| call.get("step").and_then(Value::as_object));
    let first = steps.take(1).next().cloned().unwrap_or_default();
    Ok(RecordOptions {
        env_id: ep.env_id,
        timebase: ep.timebase,
        metadata: ep.metadata,
        rewards: first.contains_key("reward"),
        timestamps: first.contains_key("timestamp_ns"),
        ends: if first.contains_key("done") {
            Ends::Done
        } else if first.contains_key("terminated") {
            Ends::Both
        } else {
            Ends::None
        },
        flush_steps: number(chosen, "flush_steps"),
        flush_interval: Duration::from_secs(3600),
        sync: SyncPolicy::Never,
        on_partial: OnPartial::Discard,
        overwrite: true,
        ..RecordOptions::new(text(told, "id"), channels)
    })
}

fn channel(told: &Object) -> Result<ChannelDef> {
    let sizes = told.get("shape").and_then(Value::as_list);
    let sizes = sizes.unwrap_or_default().iter().filter_map(Value::as_str);
    let shape: Vec<u64> = sizes.filter_map(|size| size.parse().ok()).collect();
    let id = text(told, "id");
    let dtype = DType::parse(text(told, "dtype")).ok_or_else(|| Error::invalid("the case has an unknown dtype"))?;
    let mut found = match (text(told, "layout"), text(told, "lane")) {
        ("text", _) => ChannelDef::text(id),
        (_, "action") => ChannelDef::action(id, dtype, &shape),
        _ => ChannelDef::signal(id, dtype, &shape),
    };
    if text(told, "layout") == "ragged" {
        found = found.ragged();
    }
    if told.get("own_clock").and_then(Value::as_bool) == Some(true) {
        found = found.with_own_clock();
    }
    Ok(found)
}

fn make_call(recorder: &Recorder, call: &Object) -> Result<()> {
    let of = |key: &str| call.get(key).and_then(Value::as_object);
    if let Some(told) = of("annotate") {
        let interval = Interval {
            start: number(told, "start"),
            end: number(told, "end"),
            text: text(told, "text").to_owned(),
            ..Interval::default()
        };
        return recorder.annotate(text(told, "label"), interval);
    }
    if let Some(told) = of("write") {
        let value = unhex(text(told, "value"))?;
        return recorder.write(text(told, "channel"), &value, number(told, "timestamp_ns"));
    }
    let told = of("step").ok_or_else(|| Error::invalid("the case has an unknown call"))?;
    let given = told.get("values").and_then(Value::as_object);
    let values = given.map_or(Ok(Vec::new()), bytes)?;
    let is = |key: &str| told.get(key).and_then(Value::as_bool) == Some(true);
    recorder.write_step(&Step {
        values: &borrowed(&values),
        reward: told.get("reward").and_then(Value::as_f64).unwrap_or_default(),
        done: is("done"),
        terminated: is("terminated"),
        truncated: is("truncated"),
        timestamp_ns: number(told, "timestamp_ns"),
    })
}

fn list<'a>(fields: &'a Object, key: &str) -> impl Iterator<Item = &'a Object> {
    let found = fields.get(key).and_then(Value::as_list);
    found.unwrap_or_default().iter().filter_map(Value::as_object)
}

fn bytes(told: &Object) -> Result<Vec<(&str, Vec<u8>)>> {
    told.iter().map(|(key, value)| Ok((key.as_str(), unhex(value.as_str().unwrap_or_default())?))).collect()
}

fn borrowed<'a>(values: &'a [(&'a str, Vec<u8>)]) -> Vec<(&'a str, &'a [u8])> {
    values.iter().map(|(key, value)| (*key, value.as_slice())).collect()
}

fn unhex(digits: &str) -> Result<Vec<u8>> {
    hash::unhex(digits).ok_or_else(|| Error::invalid("the case has wrong hex digits"))
}
