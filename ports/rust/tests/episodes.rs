//! Episodes: saved, cut, joined, extended and damaged.

use std::collections::BTreeMap;
use std::fs;

mod common;

use common::{Folder, files, read_json, vectors};
use shard_format::ShardReader;
use shard_format::json::{Value, object};
use shard_format::wshard::{
    self, Channel, Episode, Interval, Label, Lane, OpenOptions, Packet, ResidualKind, SaveOptions, Sidecars, Timebase,
    Unit,
};
use shard_format::{DType, Result};

/// An episode that has every kind of lane.
fn episode(steps: u64) -> Episode {
    let n = steps as usize;
    let wave: Vec<f32> = (0..2 * n + 2).map(|i| (i as f32 * 0.7).sin()).collect();
    let texts: Vec<String> = (0..n).map(|t| "é".repeat(t % 4)).collect();
    let items: Vec<Vec<u8>> = (0..n).map(|t| vec![t as u8; 4 * (t % 3)]).collect();
    let packets: Vec<Packet> = (0..n)
        .map(|t| Packet { data: vec![t as u8; 3], step: t as i64, is_keyframe: t % 4 == 0, is_hidden: false })
        .collect();
    let times: Vec<i64> = (0..3 * n as i64).map(|i| i * 7_000_000).collect();
    let omen = Lane::Omen { channel: "wave".into(), model: "m".into() };
    let uncert = Lane::Uncert { channel: "wave".into(), model: "m".into(), kind: "std".into() };
    let mut ep = Episode::new("ep", steps)
        .with(Lane::Signal("wave".into()), Channel::from_values(&wave, &[2]).with("unit", "m"))
        .with(Lane::Signal("said".into()), Channel::from_strings(&texts))
        .with(Lane::Signal("points".into()), Channel::from_items(DType::I16, &[2], items.iter().map(Vec::as_slice)))
        .with(Lane::Signal("camera".into()), Channel::from_packets("video/vp9", DType::U8, &[4, 6, 3], &packets))
        .with(Lane::Signal("imu".into()), Channel::from_values(&vec![1.5f64; 3 * n], &[]).with_timestamps(&times))
        .with(Lane::Action("arm".into()), Channel::from_values(&vec![2i8; n], &[]))
        .with(omen, Channel::from_values(&wave[..2 * n].iter().map(|v| v * 0.9).collect::<Vec<_>>(), &[2]))
        .with(uncert, Channel::from_values(&vec![0.1f32; 2 * n], &[2]))
        .with(Lane::Reward, Channel::from_values(&(0..n).map(|t| (t + 1) as f64 / 3.0).collect::<Vec<_>>(), &[]))
        .with(Lane::Terminated, Channel::from_values(&(0..n).map(|t| t + 1 == n).collect::<Vec<_>>(), &[]));
    ep.timebase = Timebase::at_rate(50.0);
    ep.metadata = object([("success", true.into())]);
    ep.add_residual("wave", None, ResidualKind::Sign2ndDiff, None).unwrap();
    ep.add_residual("wave", Some("m"), ResidualKind::DeltaQ, Some(8)).unwrap();
    let interval = |start, end| Interval { start, end, text: format!("from {start}"), ..Interval::default() };
    let label = Label { unit: Unit::Steps, intervals: vec![interval(2, 17), interval(5, 5), interval(9, 10)] };
    ep.labels.insert("phase".into(), label.into());
    let label = Label { unit: Unit::Nanoseconds, intervals: vec![interval(-5, 300_000_000)] };
    ep.labels.insert("clocked".into(), label.into());
    ep
}

/// The packets that are steps; a video that was cut has others, which it needs to decode them.
fn shown(packets: &[Packet]) -> Vec<&Packet> {
    packets.iter().filter(|packet| !packet.is_hidden).collect()
}

fn assert_same(found: &Episode, wanted: &Episode) {
    assert_eq!((found.length, &found.timebase, &found.metadata), (wanted.length, &wanted.timebase, &wanted.metadata));
    // Without steps, empty rewards and ends are as good as none.
    let is_told =
        |lane: &Lane| *lane != Lane::Ticks && (wanted.length > 0 || !matches!(lane, Lane::Reward | Lane::Terminated));
    let lanes = |ep: &Episode| ep.lanes.keys().filter(|lane| is_told(lane)).cloned().collect::<Vec<_>>();
    assert_eq!(lanes(found), lanes(wanted));
    for lane in lanes(wanted) {
        let (found, wanted) = (&found.lanes[&lane], &wanted.lanes[&lane]);
        assert_eq!((found.length, found.dtype, &found.shape), (wanted.length, wanted.dtype, &wanted.shape), "{lane:?}");
        assert_eq!(found.timestamps().unwrap(), wanted.timestamps().unwrap(), "{lane:?}");
        match wanted.packets() {
            Ok(packets) => assert_eq!(shown(&found.packets().unwrap()), shown(&packets)),
            Err(_) => assert_eq!(found.data().unwrap(), wanted.data().unwrap(), "{lane:?}"),
        }
    }
    for (key, wanted) in &wanted.residuals {
        let found = &found.residuals[key];
        assert_eq!(found.values.data().unwrap(), wanted.values.data().unwrap(), "{key}");
        if wanted.kind == ResidualKind::DeltaQ {
            assert_eq!(found.reconstruct(None).unwrap(), wanted.reconstruct(None).unwrap(), "{key}");
        }
    }
    for name in wanted.labels.keys() {
        assert_eq!(found.label(name).unwrap(), wanted.label(name).unwrap(), "{name}");
    }
}

#[test]
fn what_is_saved_is_what_is_read() {
    let folder = Folder::new("saved");
    for steps in [0, 1, 2, 23] {
        let path = folder.path(&format!("{steps}.wshard"));
        wshard::save(&path, &episode(steps), &SaveOptions::default()).unwrap();
        assert_same(&wshard::open(&path).unwrap(), &episode(steps));
        assert!(wshard::check(&path).iter().all(|one| one.is_warning));
    }
}

#[test]
fn an_episode_that_is_saved_again_has_the_same_content() {
    let folder = Folder::new("again");
    let out = folder.path("out.wshard");
    let mut count = 0;
    for file in files(&["valid", "valid_episodes"], "wshard") {
        let options = OpenOptions { sidecars: Sidecars::Ignore, ..OpenOptions::default() };
        let Ok(ep) = wshard::open_with(&file, &options) else {
            continue;
        };
        let reader = ShardReader::open(&file).unwrap();
        if reader.role() == shard_format::Role::MANIFEST {
            continue;
        }
        let _ = fs::remove_file(&out);
        wshard::save(&out, &ep, &SaveOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let again = ShardReader::open(&out).unwrap();
        let (before, after) = (reader.identity().unwrap(), again.identity().unwrap());
        assert_eq!(before.entries, after.entries, "{}", file.display());
        let in_order = |reader: &ShardReader| {
            reader.names().filter(|name| *name != "meta/identity").map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(in_order(&reader), in_order(&again), "{}", file.display());
        count += 1;
    }
    assert!(count > 60 || vectors("valid").is_none(), "{count}");
}

#[test]
fn parts_that_are_joined_are_the_whole() {
    let ep = episode(23);
    for cuts in [vec![0, 23], vec![0, 1, 2, 23], vec![0, 8, 16, 23], vec![0, 5, 11, 22, 23]] {
        let parts: Result<Vec<Episode>> = cuts.windows(2).map(|ends| ep.slice(ends[0], ends[1])).collect();
        assert_same(&wshard::join(&parts.unwrap()).unwrap(), &ep);
    }
}

#[test]
fn an_episode_in_chunks_is_replaced_in_one_step() {
    let folder = Folder::new("chunks");
    for (steps, size) in [(23, 5), (23, 100), (0, 5), (24, 8)] {
        let manifest = wshard::save_chunked(folder.path(""), &episode(steps), size, &SaveOptions::default()).unwrap();
        let found = wshard::open(&manifest).unwrap();
        assert_same(&found, &episode(steps));
        assert!(wshard::check(&manifest).iter().all(|one| one.is_warning));
        let files = folder.names().len() as u64;
        assert_eq!(files, steps.div_ceil(size).max(1) + 1);
    }
}

#[test]
fn lanes_and_edits_are_added_beside_and_folded_in() {
    let folder = Folder::new("sidecars");
    let path = folder.path("ep.wshard");
    wshard::save(&path, &episode(23), &SaveOptions::default()).unwrap();
    let before = fs::read(&path).unwrap();
    let lane = Lane::Omen { channel: "wave".into(), model: "late".into() };
    let side = Episode::new("", 23).with(lane.clone(), Channel::from_values(&[1f32; 46], &[2]));
    wshard::add_lanes(&path, "late", &side, &SaveOptions::default()).unwrap();
    assert!(wshard::add_lanes(&path, "again", &side, &SaveOptions::default()).is_err(), "the lane is there");
    let phase = Label { unit: Unit::Steps, intervals: Vec::new() };
    let labels = BTreeMap::from([("phase".to_owned(), Some(phase)), ("clocked".to_owned(), None)]);
    wshard::edit(&path, object([("success", Value::Null), ("note", "good".into())]), labels, &SaveOptions::default())
        .unwrap();
    wshard::edit(&path, object([("note", "better".into())]), BTreeMap::new(), &SaveOptions::default()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
    let options = OpenOptions { sidecars: Sidecars::Strict, ..OpenOptions::default() };
    let beside = wshard::open_with(&path, &options).unwrap();
    assert_eq!(beside.metadata, object([("note", "better".into())]));
    assert!(beside.lanes.contains_key(&lane) && !beside.labels.contains_key("clocked"));
    assert!(wshard::save(&path, &beside, &SaveOptions::default()).is_err(), "the sidecars belong to the file");
    wshard::fold_sidecars(&path, &SaveOptions::default()).unwrap();
    assert!(!folder.path("ep.wshard.lanes").exists());
    assert_same(&wshard::open(&path).unwrap(), &beside);
    assert!(wshard::check(&path).iter().all(|one| one.is_warning));
}

#[test]
fn signs_of_second_differences_are_those_of_the_specification() {
    let x = Channel::from_values(&[0.0, 1.0, 0.0, -1.0, 3.0, 0.0], &[]);
    let mut ep = Episode::new("ep", 6).with(Lane::Signal("x".into()), x);
    ep.add_residual("x", None, ResidualKind::Sign2ndDiff, None).unwrap();
    assert_eq!(*ep.residuals["x"].values.data().unwrap(), [0x12]);
    assert_eq!(ep.residuals["x"].signs().unwrap(), (vec![0, 1, -1, -1, 1, 0], 1));
}

#[test]
fn times_are_those_of_the_specification() {
    let Some(path) = vectors("primitives.json") else {
        return;
    };
    let cases = read_json(&path);
    for case in cases["step_times"].as_list().unwrap() {
        let number = |key| case.get(key).unwrap().as_str().unwrap().parse::<i64>().unwrap();
        let base = Timebase::at_rate(case.get("rate_hz").unwrap().as_f64().unwrap());
        let found = base.time_ns(number("step") as u64).unwrap();
        assert_eq!(found, Some(number("nanoseconds")), "{case:?}");
    }
}

/// Reads all that there is.
fn read_all(ep: &Episode) {
    for channel in ep.lanes.values() {
        let _ = (
            channel.data().map(|data| data.len()),
            channel.strings(),
            channel.items(),
            channel.packets(),
            channel.timestamps(),
        );
        let _ = channel.window(0, channel.length / 2).and_then(|part| part.data().map(|data| data.len()));
    }
    for residual in ep.residuals.values() {
        let _ = (residual.signs(), residual.reconstruct(None));
    }
    for label in ep.labels.values() {
        let _ = label.read();
    }
}

#[test]
fn damage_anywhere_is_an_error_and_never_a_panic() {
    let folder = Folder::new("damage");
    let mut seed = 1u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    let episodes = files(&["valid"], "wshard").into_iter().map(|file| (file, false));
    let journals = files(&["valid_journals"], "partial").into_iter().map(|file| (file, true));
    for (file, is_journal) in episodes.chain(journals) {
        let data = fs::read(&file).unwrap();
        if data.len() > 100_000 {
            continue;
        }
        for _ in 0..12 {
            let mut bad = data.clone();
            for _ in 0..1 + random() % 3 {
                let at = random() % bad.len();
                bad[at] = [0, 0xFF, bad[at] ^ 1 << (random() % 8), random() as u8][random() % 4];
            }
            if is_journal {
                let path = folder.path("bad.wshard.partial");
                fs::write(&path, &bad).unwrap();
                if let Ok(partial) = wshard::open_partial(&path) {
                    read_all(&partial.episode);
                }
            } else if let Ok(ep) = ShardReader::from_bytes(bad).and_then(Episode::from_reader) {
                read_all(&ep);
            }
        }
    }
}
