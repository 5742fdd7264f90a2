//! Exports for other tools, decoded by the published field numbers: profiles and traces of every recording have the
//! figures of the other answers, to the byte.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;

use memctl_tests::recordings::{self, NAMES};
use memctl_tests::{memctl, run, run_json, stderr};
use prost::Message;
use serde_json::Value;
use tempfile::TempDir;

/// A store with a recording, as a job of its name.
struct Recorded {
    folder: TempDir,
    name: &'static str,
}

impl Recorded {
    fn new(name: &'static str) -> Self {
        let recorded = Self { folder: tempfile::tempdir().unwrap(), name };
        run(recorded.command("import", &[]).arg(recordings::folder(name)));
        recorded
    }

    fn command(&self, verb: &str, more: &[&str]) -> std::process::Command {
        let mut command = memctl();
        command.args([verb, "-q", "--job", self.name, "--data-dir"]).arg(self.folder.path().join("store")).args(more);
        command
    }

    fn json(&self, verb: &str, more: &[&str]) -> Value {
        run_json(self.command(verb, more).args(["-o", "json"]))
    }

    fn export(&self, format: &str, more: &[&str]) -> Vec<u8> {
        let file: PathBuf = self.folder.path().join("exported");
        run(self.command("export", &["--format", format]).args(more).arg("-f").arg(&file));
        std::fs::read(file).unwrap()
    }
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn ranks(answer: &Value) -> &Vec<Value> {
    answer["ranks"].as_array().expect("ranks")
}

// --- pprof ----------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<Pair>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(int64, tag = "1")]
    first: i64,
    #[prost(int64, tag = "2")]
    second: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    file: i64,
}

impl Profile {
    fn read(packed: &[u8]) -> Self {
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).expect("gzip");
        let profile = Self::decode(&bytes[..]).expect("a profile");
        let types: Vec<(&str, &str)> =
            profile.sample_type.iter().map(|of| (profile.text(of.first), profile.text(of.second))).collect();
        assert_eq!(types, [("inuse_objects", "count"), ("inuse_space", "bytes")]);
        assert_eq!(profile.string_table[0], "");
        profile
    }

    fn text(&self, index: i64) -> &str {
        &self.string_table[usize::try_from(index).unwrap()]
    }

    fn label<'a>(&'a self, sample: &'a Sample, name: &str) -> Option<&'a Label> {
        sample.label.iter().find(|label| self.text(label.key) == name)
    }

    /// Blocks and bytes by rank.
    fn by_rank(&self) -> BTreeMap<u64, (u64, u64)> {
        let mut sums = BTreeMap::new();
        for sample in &self.sample {
            let rank = self.label(sample, "rank").expect("a rank").number;
            let sum: &mut (u64, u64) = sums.entry(u64::try_from(rank).unwrap()).or_default();
            sum.0 += u64::try_from(sample.value[0]).unwrap();
            sum.1 += u64::try_from(sample.value[1]).unwrap();
        }
        sums
    }

    /// Function, file and line of each frame, the innermost first.
    fn stack(&self, sample: &Sample) -> Vec<(&str, &str, i64)> {
        let frame = |id: &u64| {
            let location = self.location.iter().find(|location| location.id == *id).expect("a location");
            let [line] = &location.line[..] else { panic!("{location:?} has several lines") };
            let function = self.function.iter().find(|function| function.id == line.function_id).expect("a function");
            (self.text(function.name), self.text(function.file), line.line)
        };
        sample.location_id.iter().map(frame).collect()
    }
}

#[test]
fn profiles_have_the_totals_of_the_ledger() {
    for name in NAMES {
        let recorded = Recorded::new(name);
        let profile = Profile::read(&recorded.export("pprof", &[]));
        let ledger = recorded.json("ledger", &["--end", "--blocks"]);
        let expected: BTreeMap<u64, (u64, u64)> = ranks(&ledger)
            .iter()
            .map(|rank| {
                let blocks = rank["blocks"].as_array().unwrap().len() as u64;
                (whole(&rank["rank"]), (blocks, whole(&rank["allocated_bytes"])))
            })
            .filter(|(_, sums)| *sums != (0, 0))
            .collect();
        assert_eq!(profile.by_rank(), expected, "{name}");
    }
}

#[test]
fn a_profile_has_the_stacks_classes_and_epochs_of_the_sites() {
    let recorded = Recorded::new("gpt_val_graph_leak");
    let profile = Profile::read(&recorded.export("pprof", &["--epoch", "..3", "--rank", "2"]));
    let sites = recorded.json("sites", &["--epoch-end", "3", "--rank", "2"]);
    let mut expected = Vec::new();
    for site in ranks(&sites)[0]["sites"].as_array().unwrap() {
        let frame = |frame: &Value| {
            let text = |key: &str| frame[key].as_str().unwrap().to_owned();
            (text("function"), text("file"), frame["line"].as_i64().unwrap_or(0))
        };
        let mut stack: Vec<_> = site["stack"].as_array().unwrap().iter().map(frame).collect();
        if stack.is_empty() {
            stack.push(("(no stack recorded)".to_owned(), String::new(), 0));
        }
        for birth in site["births"].as_array().unwrap() {
            let class = site["class"].as_str().map(str::to_owned);
            let figures = (whole(&birth["live_blocks"]), whole(&birth["live_bytes"]));
            expected.push((stack.clone(), class, whole(&birth["epoch"]), figures));
        }
    }
    let found: Vec<_> = profile
        .sample
        .iter()
        .map(|sample| {
            let stack = profile.stack(sample).into_iter().map(|(name, file, line)| (name.into(), file.into(), line));
            let class = profile.label(sample, "class").map(|label| profile.text(label.text).to_owned());
            let epoch = profile.label(sample, "epoch").expect("an epoch").number as u64;
            assert_eq!(profile.label(sample, "job").map(|label| profile.text(label.text)), Some("gpt_val_graph_leak"));
            assert_eq!(profile.label(sample, "device").map(|label| profile.text(label.text)), Some("cuda:2"));
            (stack.collect::<Vec<_>>(), class, epoch, (sample.value[0] as u64, sample.value[1] as u64))
        })
        .collect();
    assert_eq!(found, expected);
    assert!(
        expected.iter().any(|(_, class, epoch, _)| *epoch == 3 && class.is_some()),
        "nothing of epoch 3 has a class"
    );
}

#[test]
fn an_empty_part_is_refused_without_a_file() {
    let recorded = Recorded::new("gpt_clean");
    for (format, status, words) in [("pprof", 2, "had not begun at that time"), ("perfetto", 5, "nothing was written")]
    {
        let file = recorded.folder.path().join("none");
        let mut command = recorded.command("export", &["--format", format, "--until", "2020-01-01T00:00:00Z"]);
        let output = command.arg("-f").arg(&file).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert!(!file.exists());
    }
}

// --- perfetto -------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<Packet>,
}

#[derive(Clone, PartialEq, Message)]
struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(message, optional, tag = "11")]
    event: Option<TrackEvent>,
    #[prost(message, optional, tag = "60")]
    track: Option<Track>,
}

#[derive(Clone, PartialEq, Message)]
struct Track {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<Process>,
    #[prost(uint64, optional, tag = "5")]
    parent: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Process {
    #[prost(string, optional, tag = "6")]
    name: Option<String>,
}

/// An event of a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track: Option<u64>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub value: Option<i64>,
}

/// The events of each track, in the order of the trace. The key is the name of the process and the name of the track.
pub type Tracks = BTreeMap<(String, String), Vec<(u64, TrackEvent)>>;

/// Reads a trace.
pub fn tracks(bytes: &[u8]) -> Tracks {
    let trace = Trace::decode(bytes).expect("a trace");
    let mut names: BTreeMap<u64, (String, String)> = BTreeMap::new();
    let mut tracks = Tracks::new();
    for packet in trace.packet {
        if let Some(Track { uuid, name, process, parent }) = packet.track {
            let of = parent.map(|parent| names[&parent].0.clone());
            let process = of.or(process.and_then(|process| process.name)).expect("a process");
            names.insert(uuid.unwrap(), (process, name.unwrap_or_default()));
        }
        if let (Some(at), Some(event)) = (packet.timestamp, packet.event) {
            tracks.entry(names[&event.track.unwrap()].clone()).or_default().push((at, event));
        }
    }
    tracks
}

/// The slices of a track as name, begin and end, after checking that they nest.
pub fn slices(events: &[(u64, TrackEvent)]) -> Vec<(String, u64, u64)> {
    let (mut open, mut slices) = (Vec::new(), Vec::new());
    assert!(events.is_sorted_by_key(|(at, _)| *at));
    for (at, event) in events {
        match event.kind {
            Some(1) => open.push((event.name.clone().unwrap(), *at)),
            Some(2) => {
                let (name, begin) = open.pop().expect("an end without a begin");
                slices.push((name, begin, *at));
            }
            other => panic!("{other:?} is neither a begin nor an end"),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    slices
}

#[test]
fn counters_of_a_trace_are_the_stored_levels_and_slices_are_the_marks() {
    for name in NAMES {
        let recorded = Recorded::new(name);
        let tracks = tracks(&recorded.export("perfetto", &[]));
        let (report, timeline) = (recorded.json("query", &[]), recorded.json("timeline", &[]));
        for (rank, course) in ranks(&report).iter().zip(ranks(&timeline)) {
            let mut processes = tracks.keys().map(|(process, _)| process);
            let wanted = format!("rank {}", rank["rank"]);
            let process = processes.find(|process| process.starts_with(&wanted)).expect("a process");
            let events = |track: &str| tracks.get(&(process.clone(), track.to_owned()));
            for (track, peak, at_epoch, at_end) in [
                ("allocated", "peak_allocated_bytes", "allocated_bytes", "allocated_bytes"),
                ("reserved", "peak_reserved_bytes", "reserved_bytes", "reserved_bytes"),
            ] {
                let what = format!("{name} {wanted} {track}");
                let counter = events(&format!("cuda:{} {track}", rank["device"])).expect("a counter");
                let value = |event: &TrackEvent| event.value.expect("a value") as u64;
                let most = counter.iter().map(|(_, event)| value(event)).max().unwrap();
                assert_eq!(most, whole(&rank[peak]), "{what}: the peak");
                let last = course["points"].as_array().unwrap().last().unwrap();
                assert_eq!(value(&counter.last().unwrap().1), whole(&last[at_end]), "{what}: at the end");
                for end in rank["epoch_ends"].as_array().unwrap() {
                    let values: Vec<u64> = counter.iter().map(|(_, event)| value(event)).collect();
                    assert!(values.contains(&whole(&end[at_epoch])), "{what}: at the end of epoch {}", end["epoch"]);
                }
            }
            let found = slices(events("training").expect("slices"));
            let count = |kind: &str| found.iter().filter(|slice| slice.0.starts_with(kind)).count() as u64;
            assert_eq!((count("epoch "), count("step ")), (whole(&rank["epochs"]), whole(&rank["steps"])), "{name}");
            let within = |step: &(String, u64, u64)| {
                let mut epochs = found.iter().filter(|slice| slice.0.starts_with("epoch "));
                epochs.any(|epoch| epoch.1 <= step.1 && step.2 <= epoch.2)
            };
            assert!(
                found.iter().filter(|slice| slice.0.starts_with("step ")).all(within),
                "{name}: a step in no epoch"
            );
            let failed = events(&format!("cuda:{} out of memory", rank["device"])).map_or(0, Vec::len);
            assert_eq!(failed as u64, whole(&rank["ooms"]), "{name}: failed requests");
            let instants = events("findings").map_or(0, Vec::len);
            let of_rank = |finding: &&Value| finding["ranks"].as_array().unwrap().contains(&rank["rank"]);
            let expected = report["findings"].as_array().unwrap().iter().filter(of_rank).count();
            assert_eq!(instants, expected, "{name} {wanted}: findings");
        }
    }
}

#[test]
fn a_trace_of_a_part_has_the_counters_and_slices_of_that_part() {
    let recorded = Recorded::new("gpt_val_graph_leak");
    let whole = tracks(&recorded.export("perfetto", &["--rank", "1"]));
    let of = |tracks: &Tracks, name: &str| -> Vec<(u64, TrackEvent)> {
        tracks.iter().filter(|((_, track), _)| track == name).flat_map(|(_, events)| events.clone()).collect()
    };
    let steps = slices(&of(&whole, "training"));
    let (_, begin, end) = steps.iter().find(|slice| slice.0 == "step 20").expect("a step").clone();
    let time = |ns: u64| {
        let timeline = recorded.json("timeline", &["--rank", "1", "--points", "2"]);
        let first = timeline["ranks"][0]["points"][0]["first_at"].as_str().unwrap().to_owned();
        let day = first.split('T').next().unwrap();
        let within_day = ns % (86_400 * 1_000_000_000);
        let (seconds, ns) = (within_day / 1_000_000_000, within_day % 1_000_000_000);
        format!("{day}T{:02}:{:02}:{:02}.{ns:09}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
    };
    let part = tracks(&recorded.export("perfetto", &["--rank", "1", "--since", &time(begin), "--until", &time(end)]));
    let counter = of(&part, "cuda:1 allocated");
    assert!(counter.len() > 10 && counter.iter().all(|(at, _)| (begin..=end).contains(at)));
    let expected = of(&whole, "cuda:1 allocated");
    assert!(counter[1..].iter().all(|point| expected.contains(point)), "a level that the whole trace does not have");
    let within = expected.iter().filter(|(at, _)| (begin..=end).contains(at)).count();
    assert!(counter.len() >= within && counter.len() <= within + 1, "{} of {within}", counter.len());
    let found = slices(&of(&part, "training"));
    assert!(found.contains(&("step 20".to_owned(), begin, end)), "{found:?}");
}
