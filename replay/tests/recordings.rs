//! Replays of the bundled recordings of real training. Under the recorded settings, every segment event and every
//! block's address equals the recording's. Under other settings, the figures come close to those of real runs
//! under these settings.

mod support;

use std::path::{Path, PathBuf};

use memctl_model::Action;
use memctl_replay::{
    Agreement, Conf, DriverCall, Follow, Hint, Limit, Outcome, Request, SideBySide, Start, Ties, Trial,
};
use serde_json::Value;
use support::{Recorded, load, run};

const GIB: u64 = 1 << 30;
/// The setting of the row that depends on the placement of segments.
const COLLECTED: &str = "max_split_size_mb:128,garbage_collection_threshold:0.8";

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

/// All 36 traces of the nine recordings. The recording with a limit ran with 3 GiB; the others have no known limit.
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

/// The trainings into which leaks are injected: genuine torch on a fake GPU.
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

/// Genuine torch of the versions that choose differently between equally large blocks, on the fake GPU. The variable
/// `MEMCTL_RECORDINGS` adds further folders, separated by colons.
#[test]
fn every_version_is_replayed_by_its_own_rule() {
    let more = std::env::var("MEMCTL_RECORDINGS").unwrap_or_default();
    let folders = more.split(':').filter(|it| !it.is_empty()).map(PathBuf::from);
    let mut sum = Agreement::default();
    let (mut recordings, mut differing) = (0, Vec::new());
    for folder in folders.chain(["ties", "rows", "rows_2.15", "rows_h100"].map(data)) {
        let files = std::fs::read_dir(&folder).expect("recordings").flatten().map(|it| it.path());
        let is_recording = |path: &PathBuf| path.to_string_lossy().contains(".pickle");
        let mut files: Vec<PathBuf> = files.filter(is_recording).collect();
        files.sort();
        for path in files {
            let recorded = load(&path);
            let (follow, _) = run(&recorded, Limit::None, Vec::new());
            let agreement = follow.agreement();
            if !agreement.is_exact() {
                differing.push(format!("{}: {agreement:?}", path.display()));
            }
            sum.events += agreement.events;
            sum.segment_events += agreement.segment_events;
            sum.blocks += agreement.blocks;
            recordings += 1;
        }
    }
    let Agreement { events, segment_events, blocks, .. } = sum;
    println!(
        "{recordings} recordings, {events} events: {segment_events} segment events and {blocks} addresses compared"
    );
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    let versions: Vec<Ties> = ["2.12_churn", "2.15_churn"]
        .map(|name| load(&data("ties").join(format!("{name}.pickle.zst"))).conf.ties)
        .into_iter()
        .collect();
    assert_eq!(versions, [Ties::OlderBlock, Ties::OlderSegment]);
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

/// One row of measurements of a real run, and the result of replaying the recording under default settings.
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
        let figures: Vec<String> = pairs.iter().map(|&(key, ours)| format!("{key} {} {ours}", number(key))).collect();
        println!("{conf}: truth and replay: {}, oom right: {oom}", figures.join(", "));
    }
    Row {
        conf,
        error: (counts.peak_reserved_bytes as f64 - truth as f64).abs() / truth as f64,
        oom,
        retries: number("retries") == counts.retries,
        is_exact,
    }
}

/// Fifty-five real runs under other settings and limits, compared with replays of the two recordings under default
/// settings.
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

/// A trial of the recorded settings reproduces the recording.
#[test]
fn a_trial_of_the_recorded_settings_is_what_was_recorded() {
    let recorded = load(&data("whatif_varlen_gpt").join("rank0.pickle.zst"));
    let trial = Trial::new(recorded.conf.clone(), Limit::None, &recorded.start.segments, Start::AsFound);
    let (follow, trials) = run(&recorded, Limit::None, vec![trial]);
    assert_eq!(follow.counts(), trials[0].allocator().counts());
    assert!(recorded.events.iter().any(|event| event.action == Action::SegmentAlloc));
}

/// Several cores give the same result as one.
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

/// A recording cannot show where CUDA would have put segments that it never provided. The lowest of equally large free
/// blocks is taken. So under random addresses one row has two possible outcomes, one of which is the real run's. With
/// segments placed like the measured driver's, the outcome is the real run's.
#[test]
fn a_row_may_hang_on_addresses_that_were_not_recorded() {
    let recorded = load(&data("whatif_varlen_gpt").join("rank0.pickle.zst"));
    let rows = rows("limits_varlen_gpt.jsonl");
    let is_it = |row: &&Value| row["conf"] == COLLECTED && row["limit_gib"] == "2.5";
    let row = rows.iter().find(is_it).expect("the row");
    let (conf, _) = Conf::parse(COLLECTED, recorded.version).expect("settings");
    let share = Limit::Share((2.5 * GIB as f64) as u64);
    let mut seen = std::collections::BTreeMap::new();
    for seed in 1..=60_u64 {
        let mut trial = Trial::new(conf.clone(), share, &recorded.start.segments, Start::AsFound);
        let mut draw = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut follow = Follow::new(recorded.conf.clone(), Limit::None, &recorded.start.segments);
        for event in &recorded.events {
            follow.event(event, |at, request| match *request {
                Request::Alloc { block, requested, .. } => {
                    draw ^= draw << 13;
                    draw ^= draw >> 7;
                    draw ^= draw << 17;
                    let addr = (1 << 40) + draw % (1 << 22) * (2 << 20);
                    let hint = Hint { call: DriverCall::Alloc, addr, size: segment_bytes(requested.bytes) };
                    trial.request(at, &Request::Alloc { block, requested, hints: &[hint] });
                }
                other => trial.request(at, &other),
            });
        }
        let counts = trial.outcome().counts;
        assert_eq!(row["peak_reserved"], counts.peak_reserved_bytes);
        assert_eq!(
            (&row["peak_allocated"], &row["retries"]),
            (&counts.peak_allocated_bytes.into(), &counts.retries.into())
        );
        *seen.entry((counts.device_allocs, counts.device_frees)).or_insert(0_u32) += 1;
    }
    println!("calls of the driver, and under how many addresses: {seen:?}");
    let truth = (row["device_allocs"].as_u64().expect("calls"), row["device_frees"].as_u64().expect("calls"));
    assert!(seen.len() == 2 && seen.contains_key(&truth), "{truth:?} is not among {seen:?}");
}

/// Bytes that are requested from the driver if no block of the cache fits.
fn segment_bytes(requested: u64) -> u64 {
    match requested.next_multiple_of(512) {
        rounded if rounded <= 1 << 20 => 2 << 20,
        rounded if rounded < 10 << 20 => 20 << 20,
        rounded => rounded.next_multiple_of(2 << 20),
    }
}

/// Peaks of the driver's pool on an H100 (driver 580.159, torch 2.11.0): `memory_stats()` of the same trainings under
/// that backend.
#[test]
fn what_cuda_malloc_async_held_lies_within_its_bounds() {
    for (name, held) in [("churn", 872_415_232), ("varying_length", 603_979_776)] {
        let recorded = load(&data("rows_h100").join(format!("{name}.pickle.zst")));
        let (_, trials) = run(&recorded, Limit::None, vec![Trial::bounded(Limit::None, &recorded.start.segments)]);
        let outcome = trials[0].outcome();
        let [low, high] = outcome.bounds.expect("bounds");
        assert!((low..=high).contains(&held), "{name}: {held} is not within {low} and {high}");
        assert_eq!((outcome.counts.peak_reserved_bytes, outcome.out_of_memory), (high, None));
        // The limit applies to the live requested bytes.
        let live = outcome.counts.peak_requested_bytes;
        let limited = [live, live - 1].map(|limit| Trial::bounded(Limit::Share(limit), &recorded.start.segments));
        let (_, trials) = run(&recorded, Limit::None, limited.to_vec());
        assert!(trials[0].out_of_memory().is_none() && trials[1].out_of_memory().is_some());
    }
}
