//! Records, kills, recovers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

mod common;

use common::Folder;
use shard_format::json::object;
use shard_format::shard::Codec;
use shard_format::wshard::{
    self, Channel, ChannelDef, Ends, Episode, Interval, Label, Lane, OnPartial, RecordOptions, Recorder, SaveOptions,
    Step, SyncPolicy, Timebase,
};
use shard_format::{DType, Result};

fn options() -> RecordOptions {
    let channels = vec![
        ChannelDef::signal("joints", DType::F32, &[3]).with("unit", "rad"),
        ChannelDef::signal("camera", DType::U8, &[8, 8]),
        ChannelDef::text("said"),
        ChannelDef::signal("points", DType::I16, &[2]).ragged(),
        ChannelDef::action("joints", DType::F64, &[3]),
        ChannelDef::signal("imu", DType::F32, &[]).with_own_clock(),
    ];
    RecordOptions {
        timebase: Timebase::at_rate(50.0),
        rewards: true,
        ends: Ends::Both,
        flush_steps: 5,
        sync: SyncPolicy::Never,
        ..RecordOptions::new("ep", channels)
    }
}

/// The values of step t: joints, camera, text, points, action.
fn values(t: u64) -> [Vec<u8>; 5] {
    let t = t as u8;
    let floats = |values: [f32; 3]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let action = [f64::from(t), 0.5, -1.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let points = (0..t % 3).flat_map(|i| [i, t, i, 0]).collect();
    [floats([f32::from(t), 1.0, 2.0]), vec![t / 4; 64], format!("step {t} é").into_bytes(), points, action]
}

fn record(recorder: &Recorder, t: u64) -> Result<()> {
    let [joints, camera, said, points, action] = values(t);
    recorder.write("imu", &(t as f32).to_le_bytes(), t as i64 * 7)?;
    let values: [(&str, &[u8]); 5] = [
        ("signal/joints", &joints),
        ("camera", &camera),
        ("said", &said),
        ("points", &points),
        ("action/joints", &action),
    ];
    recorder.write_step(&Step { values: &values, reward: t as f64 / 3.0, truncated: t == 20, ..Step::default() })
}

/// The episode that some steps make.
fn episode(steps: u64) -> Episode {
    let all: Vec<_> = (0..steps).map(values).collect();
    let column = |at: usize| all.iter().flat_map(|step| step[at].clone()).collect::<Vec<u8>>();
    let texts: Vec<String> = all.iter().map(|step| String::from_utf8(step[2].clone()).unwrap()).collect();
    let rewards: Vec<f64> = (0..steps).map(|t| t as f64 / 3.0).collect();
    let imu: Vec<f32> = (0..steps).map(|t| t as f32).collect();
    let times: Vec<i64> = (0..steps as i64).map(|t| t * 7).collect();
    let cut: Vec<bool> = (0..steps).map(|t| t == 20).collect();
    let mut ep = Episode::new("ep", steps)
        .with(Lane::Signal("joints".into()), Channel::from_bytes(DType::F32, &[3], column(0)).with("unit", "rad"))
        .with(Lane::Signal("camera".into()), Channel::from_bytes(DType::U8, &[8, 8], column(1)))
        .with(Lane::Signal("said".into()), Channel::from_strings(&texts))
        .with(
            Lane::Signal("points".into()),
            Channel::from_items(DType::I16, &[2], all.iter().map(|step| step[3].as_slice())),
        )
        .with(Lane::Signal("imu".into()), Channel::from_values(&imu, &[]).with_timestamps(&times))
        .with(Lane::Action("joints".into()), Channel::from_bytes(DType::F64, &[3], column(4)))
        .with(Lane::Reward, Channel::from_values(&rewards, &[]))
        .with(Lane::Terminated, Channel::from_values(&vec![false; steps as usize], &[]))
        .with(Lane::Truncated, Channel::from_values(&cut, &[]));
    ep.timebase = Timebase::at_rate(50.0);
    ep
}

fn assert_same(found: &Episode, wanted: &Episode) {
    assert_eq!(found.length, wanted.length);
    for (lane, wanted) in &wanted.lanes {
        let found = &found.lanes[lane];
        assert_eq!(found.length, wanted.length, "{lane:?}");
        assert_eq!(found.data().unwrap(), wanted.data().unwrap(), "{lane:?}");
        assert_eq!(found.timestamps().unwrap(), wanted.timestamps().unwrap(), "{lane:?}");
    }
}

#[test]
fn a_finished_recording_is_the_file_that_saving_makes() {
    let folder = Folder::new("finished");
    let (recorded, saved) = (folder.path("recorded.wshard"), folder.path("saved.wshard"));
    let recorder = Recorder::create(&recorded, options()).unwrap();
    let done = Interval { start: 3, end: 9, text: "reach".into(), ..Interval::default() };
    (0..33).for_each(|t| record(&recorder, t).unwrap());
    recorder.annotate("phase", done.clone()).unwrap();
    recorder.add_metadata(object([("success", true.into())])).unwrap();
    assert_eq!(recorder.finish().unwrap(), recorded);
    let mut ep = episode(33);
    ep.labels.insert("phase".into(), Label { intervals: vec![done], ..Label::default() }.into());
    ep.metadata = object([("success", true.into())]);
    wshard::save(&saved, &ep, &SaveOptions::default()).unwrap();
    assert_eq!(fs::read(&recorded).unwrap(), fs::read(&saved).unwrap());
    assert!(!folder.path("recorded.wshard.partial").exists());
}

#[test]
fn a_compressed_recording_keeps_every_value_and_the_observation_after_the_last_step() {
    let folder = Folder::new("compressed");
    let path = folder.path("ep.wshard");
    let recorder = Recorder::create(&path, RecordOptions { compression: Codec::Zstd, ..options() }).unwrap();
    (0..40).for_each(|t| record(&recorder, t).unwrap());
    recorder.write_final(&[("camera", &[9; 64])]).unwrap();
    assert!(recorder.write_step(&Step::default()).is_err());
    recorder.finish().unwrap();
    let mut found = wshard::open(&path).unwrap();
    let camera = found.lanes.remove(&Lane::Signal("camera".into())).unwrap();
    assert_eq!(camera.length, 41);
    assert_eq!(&camera.data().unwrap()[64 * 40..], [9; 64]);
    let mut wanted = episode(40);
    wanted.lanes.remove(&Lane::Signal("camera".into()));
    assert_same(&found, &wanted);
    assert!(wshard::check(&path).is_empty());
}

#[test]
fn a_recording_in_several_files_is_one_episode() {
    let folder = Folder::new("rolled");
    let limits = RecordOptions { max_steps_per_file: Some(7), compression: Codec::Zstd, ..options() };
    let recorder = Recorder::create(folder.path("ep.wshard"), limits).unwrap();
    recorder.annotate("phase", Interval { start: 5, end: 30, text: "a".into(), ..Interval::default() }).unwrap();
    (0..33).for_each(|t| record(&recorder, t).unwrap());
    let manifest = recorder.finish().unwrap();
    let found = wshard::open(&manifest).unwrap();
    assert_same(&found, &episode(33));
    let label = found.label("phase").unwrap().unwrap();
    assert_eq!(label.intervals.iter().map(|one| (one.start, one.end)).collect::<Vec<_>>(), [(5, 30)]);
    assert!(wshard::check(&manifest).iter().all(|one| one.is_warning));
    let names = folder.names();
    assert_eq!(names.len(), 6, "{names:?}"); // five chunks and the manifest
}

#[test]
fn what_does_not_fit_is_refused_and_the_recording_goes_on() {
    let folder = Folder::new("refused");
    let path = folder.path("ep.wshard");
    let recorder = Recorder::create(&path, options()).unwrap();
    assert!(Recorder::create(&path, options()).is_err(), "a second writer");
    record(&recorder, 0).unwrap();
    let wrong: [(&str, &[u8]); 1] = [("camera", &[0; 64])];
    assert!(recorder.write_step(&Step { values: &wrong, ..Step::default() }).is_err());
    assert!(recorder.write("imu", &[0; 4], -1).is_err(), "time runs backwards");
    record(&recorder, 1).unwrap();
    recorder.finish().unwrap();
    assert_same(&wshard::open(&path).unwrap(), &episode(2));
    assert!(Recorder::create(&path, options()).is_err(), "a finished episode");
}

#[test]
fn a_recording_that_was_left_is_refused_recovered_or_discarded() {
    let folder = Folder::new("left");
    let path = folder.path("ep.wshard");
    let leave = |on_partial| {
        let recorder = Recorder::create(&path, RecordOptions { on_partial, ..options() })?;
        (0..9).try_for_each(|t| record(&recorder, t))
    };
    leave(OnPartial::Refuse).unwrap();
    assert!(leave(OnPartial::Refuse).is_err());
    leave(OnPartial::Recover).unwrap();
    assert_same(&wshard::open(folder.path("ep.recovered-1.wshard")).unwrap(), &episode(9));
    leave(OnPartial::Discard).unwrap();
    assert_eq!(wshard::open_partial(&path).unwrap().episode.length, 9);
    assert!(!folder.path("ep.recovered-2.wshard").exists());
}

#[test]
fn a_journal_that_is_cut_anywhere_gives_a_prefix() {
    let folder = Folder::new("cut");
    let path = folder.path("ep.wshard");
    let recorder = Recorder::create(&path, RecordOptions { compression: Codec::Zstd, ..options() }).unwrap();
    (0..12).for_each(|t| record(&recorder, t).unwrap());
    recorder.flush().unwrap();
    let journal = fs::read(folder.path("ep.wshard.partial")).unwrap();
    let (cut, out) = (folder.path("cut.wshard.partial"), folder.path("out.wshard"));
    let mut most = 0;
    for size in (0..journal.len()).step_by(37).chain([journal.len()]) {
        fs::write(&cut, &journal[..size]).unwrap();
        match wshard::recover_with(&cut, Some(&out), false) {
            Err(error) => assert!(most == 0 && !error.rule().is_empty(), "{error}"),
            Ok(found) => {
                assert!(found.steps >= most && found.read_bytes <= size as u64);
                most = found.steps;
                if most == 0 {
                    continue; // not even all channels may be declared
                }
                let mut wanted = episode(most);
                wanted.lanes.remove(&Lane::Signal("imu".into())); // has a clock of its own
                assert_same(&wshard::open(&out).unwrap(), &wanted);
            }
        }
    }
    assert_eq!(most, 12);
}

const PYTHON: &str = "
import sys
try:
    from wshard.partial import recover
except ImportError:
    sys.exit(3)
for journal, out in zip(sys.argv[1::2], sys.argv[2::2]):
    found = recover(journal, out, fsync=False)
    assert not found.lost_data and found.error is None, str(found)
";

/// Needs the Python library: `WSHARD_PYTHON` is an interpreter that has it, by default python3.
#[test]
fn python_recovers_the_same_bytes() {
    let folder = Folder::new("python");
    let mut pairs = Vec::new();
    for (codec, limit) in [(Codec::None, None), (Codec::Zstd, None), (Codec::None, Some(6)), (Codec::Zstd, Some(6))] {
        let place = folder.path(&format!("{}-{}", codec.as_str(), limit.is_some()));
        let path = place.join("ep.wshard");
        let limits = RecordOptions { compression: codec, max_steps_per_file: limit, ..options() };
        let recorder = Recorder::create(&path, limits).unwrap();
        (0..23).for_each(|t| record(&recorder, t).unwrap());
        recorder.annotate("phase", Interval { start: 2, end: 9, text: "reach".into(), ..Interval::default() }).unwrap();
        drop(recorder);
        let (mine, python) = (place.join("rust"), place.join("python"));
        fs::create_dir_all(&mine).and_then(|()| fs::create_dir_all(&python)).unwrap();
        wshard::recover_with(&path, Some(&mine.join("ep.wshard")), false).unwrap();
        pairs.push((path, mine, python));
    }
    let program = std::env::var("WSHARD_PYTHON").unwrap_or_else(|_| "python3".into());
    let arguments = pairs.iter().flat_map(|(path, _, python)| [path.clone(), python.join("ep.wshard")]);
    let told = Command::new(program).arg("-c").arg(PYTHON).args(arguments).output();
    let Ok(told) = told else { return }; // there is no Python
    if told.status.code() == Some(3) {
        return; // or it has no wshard
    }
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    for (_, mine, python) in pairs {
        let names: Vec<_> = fs::read_dir(&mine).unwrap().map(|one| one.unwrap().file_name()).collect();
        assert!(!names.is_empty());
        for name in names {
            assert!(
                fs::read(mine.join(&name)).unwrap() == fs::read(python.join(&name)).unwrap(),
                "{name:?} differs in {mine:?}"
            );
        }
    }
}

// --- a process that is killed

const CHILD: &str = "SHARD_TEST_RECORD_TO";

fn crash_options(how: &str) -> RecordOptions {
    let options = RecordOptions { flush_interval: Duration::from_millis(2), ..options() };
    match how {
        "synced" => RecordOptions { compression: Codec::Zstd, sync: SyncPolicy::EveryRun, ..options },
        "chunks" => RecordOptions { max_steps_per_file: Some(7), ..options },
        _ => options,
    }
}

/// The process that is killed: it tells after each step how many steps a crash cannot lose.
#[test]
fn child_records_until_it_is_killed() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let how = std::env::var(format!("{CHILD}_HOW")).unwrap_or_default();
    let recorder = Recorder::create(path, crash_options(&how)).unwrap();
    for t in 0.. {
        record(&recorder, t).unwrap();
        println!("durable {}", recorder.durable_steps());
    }
}

/// Records in another process, kills it after some steps, and gives the last number that it told.
fn kill_after(path: &Path, how: &str, lines: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_records_until_it_is_killed", "--nocapture"])
        .env(CHILD, path)
        .env(format!("{CHILD}_HOW"), how)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut last = 0;
    let told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(|line| line.ok());
    let told = told.filter_map(|line| line.split_once("durable ").and_then(|(_, count)| count.parse().ok()));
    for (count, durable) in told.enumerate() {
        last = durable;
        if count == lines {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    last
}

#[test]
fn a_killed_process_loses_nothing_that_was_flushed() {
    let folder = Folder::new("killed");
    let mut seed = 7u64;
    for how in ["raw", "synced", "chunks"] {
        for round in 0..5 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let path = folder.path(&format!("{how}-{round}.wshard"));
            let durable = kill_after(&path, how, (seed >> 33) as usize % 200);
            let found = wshard::recover_with(&path, None, false).unwrap();
            assert!(found.steps >= durable && found.lost_steps == 0, "{how}: {found:?}, {durable} were safe");
            let mut wanted = episode(found.steps);
            wanted.lanes.remove(&Lane::Signal("imu".into()));
            assert_same(&wshard::open(&found.out).unwrap(), &wanted);
        }
    }
}
