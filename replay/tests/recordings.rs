//! The bundled recordings of real training, replayed: under their own settings every segment event and every block's address is
//! the recording's; under other settings the figures are those of real runs under these settings.

use std::path::{Path, PathBuf};

use memctl_analysis::initial_state;
use memctl_model::{Action, Event, Keyframe};
use memctl_replay::{Agreement, Conf, Follow, Limit, Outcome, SideBySide, Start, Trial, Version};
use serde_json::Value;

const GIB: u64 = 1 << 30;

struct Recorded {
    conf: Conf,
    version: Version,
    start: Keyframe,
    events: Vec<Event>,
    assumed_sizes: u64,
}

fn load(path: &Path) -> Recorded {
    let recording = memctl_snapshot::load(path, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let version = Version::of_framework(recording.framework.as_deref());
    let device = recording.devices.iter().max_by_key(|device| device.events.len()).expect("a device");
    let events: Vec<Event> = device.events.iter().collect();
    let start = initial_state(&recording.settings, device.device, &device.final_segments, events.iter().copied());
    let conf = Conf::recorded(&recording.settings, version);
    Recorded { conf, version, start: start.keyframe, events, assumed_sizes: start.assumed_sizes }
}

fn run(recorded: &Recorded, limit: Limit, trials: Vec<Trial>) -> (Follow, Vec<Trial>) {
    let follow = Follow::new(recorded.conf.clone(), limit, &recorded.start.segments);
    let mut both = SideBySide::new(follow, trials);
    recorded.events.iter().for_each(|event| both.event(event));
    let (follow, trials) = both.finish();
    (follow, trials.into_iter().map(|(trial, _)| trial).collect())
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn rows(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(data(name)).expect("rows");
    text.lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

fn exactly(name: &str, agreement: &Agreement, recorded: &Recorded) {
    assert!(agreement.is_exact(), "{name}: {agreement:?}, {} assumed sizes", recorded.assumed_sizes);
    assert_eq!(agreement.events, recorded.events.len() as u64);
}

/// All 36 traces of the nine recordings. The capped one ran with 3 GiB; where nobody told, no limit is known.
#[test]
fn the_bundled_recordings_are_replayed_exactly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/recordings");
    let mut names: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("recordings").flatten().map(|it| it.path()).collect();
    names.sort();
    let (mut events, mut segments, mut traces) = (0, 0, 0);
    let mut failures = Vec::new();
    for folder in names.iter().filter(|path| path.is_dir()) {
        for rank in 0..4 {
            let recorded = load(&folder.join(format!("rank{rank}.pickle.zst")));
            let limit = if folder.ends_with("oom_by_fragmentation") { Limit::Share(3 * GIB) } else { Limit::None };
            let (follow, _) = run(&recorded, limit, Vec::new());
            let agreement = follow.agreement();
            if !agreement.is_exact() {
                failures.push(format!("{} {rank}: {agreement:?} {}", folder.display(), recorded.assumed_sizes));
            }
            events += agreement.events;
            segments += agreement.segment_events;
            traces += 1;
        }
    }
    println!("{traces} traces, {events} events, {segments} segment events");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The trainings that leaks are put into: genuine torch on a fake GPU.
#[test]
fn the_trainings_of_leakbench_are_replayed_exactly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/data/leakbench");
    let files = std::fs::read_dir(folder).expect("trainings").flatten().map(|it| it.path());
    let mut trainings = 0;
    for path in files.filter(|path| path.extension().is_some_and(|it| it == "zst")) {
        let recorded = load(&path);
        let (follow, _) = run(&recorded, Limit::None, Vec::new());
        exactly(&path.display().to_string(), follow.agreement(), &recorded);
        trainings += 1;
    }
    assert!(trainings >= 18, "{trainings} trainings");
}

#[test]
fn recordings_of_other_settings_and_streams_are_replayed_exactly() {
    for name in ["whatif_varlen_gpt", "expandable_varlen_gpt", "whatif_streams", "expandable_streams"] {
        let recorded = load(&data(name).join("rank0.pickle.zst"));
        let (follow, _) = run(&recorded, Limit::None, Vec::new());
        exactly(name, follow.agreement(), &recorded);
        let truth: Value =
            serde_json::from_str(&std::fs::read_to_string(data(name).join("rank0.json")).expect("truth"))
                .expect("JSON");
        let counts = follow.counts();
        let ours = [
            ("peak_reserved", counts.peak_reserved_bytes),
            ("peak_allocated", counts.peak_allocated_bytes),
            ("peak_requested", counts.peak_requested_bytes),
            ("device_allocs", counts.device_allocs),
            ("device_frees", counts.device_frees),
            ("retries", counts.retries),
        ];
        for (figure, ours) in ours {
            assert_eq!(truth["label"][figure], ours, "{name}: {figure}");
        }
    }
}

/// One row of what really happened, and what the replay of the recording under default settings says.
struct Row {
    conf: String,
    error: f64,
    oom: bool,
    retries: bool,
    is_exact: bool,
}

fn compare(recorded: &Recorded, rows: &[Value]) -> Vec<Row> {
    let trials = rows.iter().map(|row| {
        let conf = row["conf"].as_str().expect("settings");
        let (parsed, _) = Conf::parse(conf, recorded.version).unwrap_or_else(|error| panic!("{conf}: {error}"));
        let limit = match row["limit_gib"].as_str() {
            Some(gib) => Limit::Share((gib.parse::<f64>().expect("a number") * GIB as f64) as u64),
            None => Limit::None,
        };
        Trial::new(parsed, limit, &recorded.start.segments, Start::AsFound)
    });
    let (_, trials) = run(recorded, Limit::None, trials.collect());
    rows.iter().zip(trials).map(|(row, trial)| row_of(row, &trial.outcome())).collect()
}

fn row_of(row: &Value, outcome: &Outcome) -> Row {
    let number = |key: &str| row[key].as_u64().expect("a number");
    let counts = outcome.counts;
    let pairs = [
        ("peak_reserved", counts.peak_reserved_bytes),
        ("peak_allocated", counts.peak_allocated_bytes),
        ("peak_requested", counts.peak_requested_bytes),
        ("device_allocs", counts.device_allocs),
        ("device_frees", counts.device_frees),
        ("retries", counts.retries),
    ];
    let truth = number("peak_reserved");
    let oom = row["oom"] == outcome.out_of_memory.is_some();
    let is_exact = oom && pairs.iter().all(|&(key, ours)| number(key) == ours);
    let conf = format!("{} at {}", row["conf"], row["limit_gib"]);
    if !is_exact {
        let told: Vec<String> = pairs.iter().map(|&(key, ours)| format!("{key} {} {ours}", number(key))).collect();
        println!("{conf}: truth and replay: {}, oom right: {oom}", told.join(", "));
    }
    Row {
        conf,
        error: (counts.peak_reserved_bytes as f64 - truth as f64).abs() / truth as f64,
        oom,
        retries: number("retries") == counts.retries,
        is_exact,
    }
}

/// Fifty-five real runs under other settings and limits, from the two recordings under default settings.
#[test]
fn other_settings_and_limits_give_what_real_runs_gave() {
    let gpt = load(&data("whatif_varlen_gpt").join("rank0.pickle.zst"));
    let streams = load(&data("whatif_streams").join("rank0.pickle.zst"));
    let mut all = compare(&gpt, &rows("whatif_varlen_gpt.jsonl"));
    all.extend(compare(&gpt, &rows("limits_varlen_gpt.jsonl")));
    all.extend(compare(&streams, &rows("whatif_streams.jsonl")));
    let mut errors: Vec<f64> = all.iter().map(|row| row.error).collect();
    errors.sort_by(f64::total_cmp);
    let median = errors[errors.len() / 2];
    let worst = all.iter().max_by(|a, b| a.error.total_cmp(&b.error)).expect("rows");
    let count = |is: fn(&Row) -> bool| all.iter().filter(|row| is(row)).count();
    println!(
        "{} rows: {} exact in every figure, {} out of memory right, {} retries right; peak reserved median error {:.3} %, \
         worst {:.3} % ({})",
        all.len(),
        count(|row| row.is_exact),
        count(|row| row.oom),
        count(|row| row.retries),
        median * 100.0,
        worst.error * 100.0,
        worst.conf,
    );
    assert!(median <= 0.002 && worst.error <= 0.02);
    assert_eq!(count(|row| row.oom), all.len());
    assert!(count(|row| row.retries) * 100 >= all.len() * 95);
}

/// A trial of the recorded settings is the recording again.
#[test]
fn a_trial_of_the_recorded_settings_is_what_was_recorded() {
    let recorded = load(&data("whatif_varlen_gpt").join("rank0.pickle.zst"));
    let trial = Trial::new(recorded.conf.clone(), Limit::None, &recorded.start.segments, Start::AsFound);
    let (follow, trials) = run(&recorded, Limit::None, vec![trial]);
    assert_eq!(follow.counts(), trials[0].allocator().counts());
    assert!(recorded.events.iter().any(|event| event.action == Action::SegmentAlloc));
}

/// Several cores do what one does.
#[test]
fn the_number_of_cores_changes_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/recordings/gpt_varlen_fragmentation");
    let recorded = load(&folder.join("rank0.pickle.zst"));
    let peak = GIB;
    let play = |threads: usize| {
        let trials = ["", "expandable_segments:True", "max_split_size_mb:64"].into_iter().flat_map(|text| {
            let (conf, _) = Conf::parse(text, recorded.version).expect("a setting");
            [Limit::None, Limit::Device(peak)]
                .map(|limit| Trial::new(conf.clone(), limit, &recorded.start.segments, Start::Afresh))
        });
        let follow = Follow::new(recorded.conf.clone(), Limit::None, &recorded.start.segments);
        let mut both = SideBySide::on(threads, follow, trials.collect());
        recorded.events.iter().for_each(|event| both.event(event));
        let (_, trials) = both.finish();
        trials.into_iter().map(|(trial, ended)| (trial.outcome(), ended)).collect::<Vec<_>>()
    };
    let alone = play(1);
    assert!(alone.iter().any(|(_, ended)| ended.is_some()), "nothing fails at {peak} bytes");
    assert_eq!(play(3), alone);
}
