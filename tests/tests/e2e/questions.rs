//! Responses agree with each other and with the recordings: peaks, sites, timelines, exports and all three kinds of
//! store.
//!
//! Every figure is compared exactly. Each test has its own daemon, with the recordings that it queries.
//! (Over 400 lines: each query is compared over every store.)

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::process::Command;

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres::Database;
use memctl_tests::recordings::{self, NAMES, truth};
use memctl_tests::{memctl, run, run_json, stderr};
use serde_json::Value;
use tempfile::TempDir;

/// A daemon with recordings, each a job of its name.
struct RecordingsDaemon {
    daemon: DaemonProcess,
    _folder: TempDir,
}

impl RecordingsDaemon {
    fn with(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let asked = Self { daemon: DaemonProcess::sqlite(folder.path(), free_port()), _folder: folder };
        for name in names {
            run(asked.command("import", name, &[]).arg(recordings::folder(name)));
        }
        asked
    }

    fn command(&self, verb: &str, job: &str, more: &[&str]) -> Command {
        let mut command = memctl();
        command.args([verb, "-q", "--daemon", &self.daemon.url, "--job", job]).args(more);
        command
    }

    fn text(&self, verb: &str, job: &str, more: &[&str]) -> String {
        run(&mut self.command(verb, job, more))
    }

    fn json(&self, verb: &str, job: &str, more: &[&str]) -> Value {
        run_json(self.command(verb, job, more).args(["-o", "json"]))
    }
}

fn ranks(answer: &Value) -> &Vec<Value> {
    answer["ranks"].as_array().expect("ranks")
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of bytes"))
}

/// Sum of the live bytes over all sites of a rank.
fn live(rank: &Value) -> u64 {
    rank["sites"].as_array().unwrap().iter().map(|site| whole(&site["live_bytes"])).sum()
}

#[test]
fn peaks_of_timelines_and_sites_are_the_peaks_of_the_report() {
    let asked = RecordingsDaemon::with(&NAMES);
    for name in NAMES {
        let report = asked.json("query", name, &[]);
        let timelines = [asked.json("timeline", name, &[]), asked.json("timeline", name, &["--points", "7"])];
        let sites = asked.json("sites", name, &["--peak"]);
        for (at, rank) in ranks(&report).iter().enumerate() {
            let what = format!("{name} rank {at}");
            let peak = whole(&rank["peak_allocated_bytes"]);
            for timeline in &timelines {
                let points = ranks(timeline)[at]["points"].as_array().unwrap();
                let most = |key: &str| points.iter().map(|point| whole(&point[key])).max().unwrap();
                assert_eq!(most("peak_allocated_bytes"), peak, "{what}: the timeline's peak");
                assert_eq!(most("peak_reserved_bytes"), whole(&rank["peak_reserved_bytes"]), "{what}: reserved");
                for point in points {
                    let [low, end, high] = ["min_allocated_bytes", "allocated_bytes", "peak_allocated_bytes"]
                        .map(|key| whole(&point[key]));
                    assert!(low <= end && end <= high, "{what}: {point}");
                }
            }
            let sites = &ranks(&sites)[at];
            assert_eq!((live(sites), whole(&sites["allocated_bytes"])), (peak, peak), "{what}: sites at the peak");
        }
    }
}

#[test]
fn sites_at_epoch_ends_add_up_to_what_was_allocated() {
    let asked = RecordingsDaemon::with(&NAMES);
    for name in NAMES {
        let report = asked.json("query", name, &[]);
        let epochs = ranks(&report)[0]["epoch_ends"].as_array().unwrap().len();
        for epoch in 0..epochs {
            let sites = asked.json("sites", name, &["--epoch-end", &epoch.to_string()]);
            for (rank, found) in ranks(&report).iter().zip(ranks(&sites)) {
                let end = &rank["epoch_ends"][epoch];
                let allocated = whole(&end["allocated_bytes"]);
                let what = format!("{name} rank {} epoch {epoch}", rank["rank"]);
                assert_eq!((live(found), whole(&found["allocated_bytes"])), (allocated, allocated), "{what}");
                assert_eq!(found["at"], end["at"], "{what}");
                for site in found["sites"].as_array().unwrap() {
                    let births = site["births"].as_array().unwrap();
                    let sum: u64 = births.iter().map(|birth| whole(&birth["live_bytes"])).sum();
                    assert_eq!(sum, whole(&site["live_bytes"]), "{what}: born in some epoch");
                    assert!(births.iter().all(|birth| whole(&birth["epoch"]) <= epoch as u64), "{what}: {site}");
                }
            }
        }
    }
}

#[test]
fn sites_at_a_time_are_what_the_timeline_shows_then() {
    let names = ["cnn_rank0_cache", "gpt_varlen_fragmentation"];
    let asked = RecordingsDaemon::with(&names);
    for name in names {
        let timeline = asked.json("timeline", name, &["--rank", "2", "--points", "5"]);
        for point in ranks(&timeline)[0]["points"].as_array().unwrap() {
            let at = point["last_at"].as_str().unwrap();
            let sites = asked.json("sites", name, &["--rank", "2", "--at", at]);
            let found = &ranks(&sites)[0];
            assert_eq!(whole(&found["allocated_bytes"]), whole(&point["allocated_bytes"]), "{name} at {at}");
            assert_eq!(live(found), whole(&point["allocated_bytes"]), "{name} at {at}");
        }
    }
}

#[test]
fn folded_stacks_add_up() {
    let names = ["cnn_rank0_cache", "gpt_val_graph_leak"];
    let asked = RecordingsDaemon::with(&names);
    for name in names {
        for moment in [&["--peak"][..], &["--end"], &["--epoch-end", "1"], &[]] {
            let sites = asked.json("sites", name, moment);
            let text = run(asked.command("sites", name, moment).arg("--folded"));
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for line in text.lines() {
                let (stack, bytes) = line.rsplit_once(' ').expect("a stack and a number");
                let root = stack.split(';').next().unwrap().to_owned();
                *sums.entry(root).or_default() += bytes.parse::<u64>().expect("a number of bytes");
            }
            let expected: BTreeMap<String, u64> = ranks(&sites)
                .iter()
                .map(|rank| (format!("rank {}", rank["rank"]), whole(&rank["allocated_bytes"])))
                .collect();
            assert_eq!(sums, expected, "{name} {moment:?}");
        }
        let end = asked.text("export", name, &["--format", "folded"]);
        assert_eq!(end, asked.text("sites", name, &["--end", "--folded"]), "{name}: the export is the same");
    }
}

/// The records of a CSV text whose cells hold no line breaks.
fn records(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines().map(cells);
    let names = lines.next().expect("a header");
    lines
        .map(|cells| {
            assert_eq!(cells.len(), names.len(), "{cells:?}");
            names.iter().cloned().zip(cells).collect()
        })
        .collect()
}

fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => cells.last_mut().unwrap().push(other),
        }
    }
    cells
}

#[test]
fn csv_and_lines_hold_what_the_object_holds() {
    let asked = RecordingsDaemon::with(&["lstm_hidden_chain", "cnn_rank0_cache"]);
    let report = asked.json("query", "lstm_hidden_chain", &[]);
    let csv = records(&asked.text("query", "lstm_hidden_chain", &["-o", "csv"]));
    let lines = asked.text("query", "lstm_hidden_chain", &["-o", "ndjson"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["record"], &lines[0]["job"]), (&"job".into(), &report["job"]));
    let of_ranks: Vec<&Value> = lines.iter().filter(|line| line["record"] == "rank").collect();
    assert_eq!((csv.len(), of_ranks.len()), (4, 4));
    for ((rank, record), line) in ranks(&report).iter().zip(&csv).zip(of_ranks) {
        for (key, value) in rank.as_object().unwrap() {
            assert_eq!(&line[key], value, "{key}");
            if let (Some(cell), false) = (record.get(key), value.is_string()) {
                assert_eq!(*cell, if value.is_null() { String::new() } else { value.to_string() }, "{key}");
            }
        }
        assert_eq!(record["growth_bytes_per_epoch"], rank["growth_bytes_per_epoch"].to_string());
    }
    let growth = lines.iter().filter(|line| line["record"] == "growth").count();
    assert_eq!(growth, report["growth"].as_array().unwrap().len());
    for verb in ["timeline", "sites"] {
        let text = asked.text(verb, "lstm_hidden_chain", &["-o", "ndjson"]);
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|line| line["process"].is_string()), "{verb} names the process in every line");
        let not_marks = lines.iter().filter(|line| line["record"] != "mark").count();
        assert_eq!(records(&asked.text(verb, "lstm_hidden_chain", &["-o", "csv"])).len(), not_marks, "{verb}");
    }
    let jobs = run(memctl().args(["jobs", "-o", "csv", "--daemon", &asked.daemon.url]));
    let mut names: Vec<String> = records(&jobs).iter().map(|job| job["job"].clone()).collect();
    names.sort();
    assert_eq!(names, ["cnn_rank0_cache", "lstm_hidden_chain"]);
}

#[test]
fn ranks_epochs_and_times_narrow() {
    let asked = RecordingsDaemon::with(&["cnn_rank0_cache", "gpt_clean"]);
    let all = asked.json("query", "gpt_clean", &[]);
    let some = asked.json("query", "gpt_clean", &["--rank", "0-1,3"]);
    let picked: Vec<&Value> = [0, 1, 3].map(|rank| &ranks(&all)[rank]).into();
    assert_eq!(ranks(&some).iter().collect::<Vec<_>>(), picked, "the same ranks, the same figures");

    let name = "cnn_rank0_cache";
    let all = asked.json("query", name, &[]);
    let epochs = asked.json("query", name, &["--epoch", "2..4"]);
    for (rank, narrow) in ranks(&all).iter().zip(ranks(&epochs)) {
        let ends = rank["epoch_ends"].as_array().unwrap();
        assert_eq!(narrow["epoch_ends"].as_array().unwrap()[..], ends[2..=4], "{narrow}");
        assert_eq!(narrow["growth_bytes_per_epoch"], rank["growth_bytes_per_epoch"]);
    }
    let ends = ranks(&all)[1]["epoch_ends"].as_array().unwrap();
    let (since, until) = (ends[1]["at"].as_str().unwrap(), ends[3]["at"].as_str().unwrap());
    let times = ["--rank", "1", "--since", since, "--until", until];
    let timeline = asked.json("timeline", name, &times);
    let points = ranks(&timeline)[0]["points"].as_array().unwrap();
    assert_eq!(points[0]["first_at"], since);
    // A point ends where the next would begin: a nanosecond after the last moment of the response.
    let end = points.last().unwrap()["last_at"].as_str().unwrap();
    assert!(end.starts_with(until.trim_end_matches('Z')), "{end} and {until}");
    assert_eq!(points.last().unwrap()["allocated_bytes"], ends[3]["allocated_bytes"]);

    let csv = |more: &[&str]| {
        let mut command = asked.command("export", name, &["--rank", "1", "--format", "csv"]);
        records(&run(command.args(more)))
    };
    let marks = |more: &[&str]| ranks(&asked.json("timeline", name, more))[1]["marks"].as_array().unwrap().clone();
    let within = |mark: &Value| {
        let is_epoch = mark["kind"].as_str().unwrap().starts_with("epoch_");
        let (since, until) = (ends[1]["at"].as_str(), ends[3]["at"].as_str());
        let at = mark["at"].as_str();
        if is_epoch { [2, 3].contains(&whole(&mark["value"])) } else { since <= at && at <= until }
    };
    let expected: Vec<Value> = marks(&[]).into_iter().filter(within).collect();
    assert!(expected.iter().any(|mark| mark["kind"] == "epoch_end"), "{expected:?}");
    assert_eq!(marks(&["--epoch", "2..3"]), expected);

    let (whole, slice) = (csv(&[]), csv(&times[2..]));
    let at = |record: &&BTreeMap<String, String>| record["at"].as_str() >= since && record["at"].as_str() <= until;
    // Times of one recording have the same date and, compared as text, the same order up to trailing zeros.
    let expected = whole.iter().filter(at).count();
    assert!(slice.len().abs_diff(expected) <= 2 && !slice.is_empty(), "{} of {expected}", slice.len());
    let parts: usize = ["..1", "2..3", "4.."].map(|range| csv(&["--epoch", range]).len()).iter().sum();
    // An event exactly at the time of a boundary belongs to both sides.
    assert!(parts >= whole.len() && parts <= whole.len() + 20, "{parts} of {}", whole.len());
}

#[test]
fn the_latest_job_and_a_job_that_goes() {
    let asked = RecordingsDaemon::with(&["lstm_hidden_chain", "cnn_rank0_cache", "gpt_clean"]);
    let jobs = run_json(memctl().args(["jobs", "-o", "json", "--daemon", &asked.daemon.url]));
    let newest = jobs["jobs"][0]["id"].as_str().unwrap();
    assert_eq!(asked.json("query", "latest", &[]), asked.json("query", newest, &[]));
    let starts: Vec<&str> =
        jobs["jobs"].as_array().unwrap().iter().map(|job| job["arrived_at"].as_str().unwrap()).collect();
    assert!(starts.is_sorted_by(|newer, older| newer >= older), "imported last first: {starts:?}");

    asked.text("delete", newest, &["--yes"]);
    let gone = asked.command("query", newest, &[]).output().unwrap();
    assert_eq!(gone.status.code(), Some(4), "{}", stderr(&gone));
    let left = run_json(memctl().args(["jobs", "-o", "json", "--daemon", &asked.daemon.url]));
    assert_eq!(left["jobs"].as_array().unwrap()[..], jobs["jobs"].as_array().unwrap()[1..]);
    let next = asked.json("query", "latest", &[]);
    assert_eq!(next["job"]["id"], left["jobs"][0]["id"]);
}

#[test]
fn events_as_csv_are_the_recorded_ones() {
    let asked = RecordingsDaemon::with(&NAMES);
    for (number, name) in NAMES.into_iter().enumerate() {
        // One rank of each recording, and all ranks of one recording.
        let chosen: Vec<usize> = if number == 0 { (0..4).collect() } else { vec![number % 4] };
        let list: Vec<String> = chosen.iter().map(ToString::to_string).collect();
        let text = asked.text("export", name, &["--rank", &list.join(","), "--format", "csv"]);
        let mut lines = text.lines();
        assert!(lines.next().unwrap().starts_with("rank,device,at,action,"));
        let mut counts: BTreeMap<(usize, &str), u64> = BTreeMap::new();
        for line in lines {
            // The first cells are numbers, times and fixed words, which are never quoted.
            let mut cells = line.split(',');
            let rank = cells.next().unwrap().parse().unwrap();
            *counts.entry((rank, cells.nth(2).unwrap())).or_default() += 1;
        }
        let report = asked.json("query", name, &[]);
        for rank in chosen {
            let truth = truth(name, rank);
            let found: u64 = counts.iter().filter(|((of, _), _)| *of == rank).map(|(_, count)| count).sum();
            assert_eq!(found, whole(&truth["events"]), "{name} rank {rank}");
            assert_eq!(found, whole(&ranks(&report)[rank]["events"]), "{name} rank {rank}");
            let ooms = truth["epochs"].as_array().unwrap().last().map_or(0, |epoch| whole(&epoch["ooms"]));
            assert_eq!(counts.get(&(rank, "oom")).copied().unwrap_or(0), ooms, "{name} rank {rank}");
        }
    }
}

/// The part of a report that must survive a round trip: everything except the framework, whose version is inferred from
/// the file's keys, and the size in the store.
fn essence(rank: &Value) -> Value {
    let mut rank = rank.clone();
    let map = rank.as_object_mut().unwrap();
    // Ids of findings depend on the job's name.
    for key in ["framework", "stored_bytes", "findings"] {
        map.remove(key);
    }
    rank
}

/// Growth without the ids of the findings that explain it.
fn unnamed(growth: &Value) -> Value {
    let mut growth = growth.clone();
    for rank in growth.as_array_mut().unwrap().iter_mut().flat_map(|site| site["ranks"].as_array_mut().unwrap()) {
        rank.as_object_mut().unwrap().remove("explained_by");
    }
    growth
}

#[test]
fn a_snapshot_that_is_exported_imports_as_the_same_job() {
    let asked = RecordingsDaemon::with(&NAMES);
    for (number, name) in NAMES.into_iter().enumerate() {
        // One rank of each recording, and all ranks of one recording.
        let list = if number == 1 { "0-3".to_owned() } else { (number % 4).to_string() };
        let rank = ["--rank", &list];
        let folder = tempfile::tempdir().unwrap();
        let files = folder.path().join("rank{rank}.pickle");
        run(asked.command("export", name, &rank).args(["--format", "memory-viz", "-f"]).arg(&files));
        let again = format!("{name}.again");
        run(asked.command("import", &again, &[]).arg(folder.path()));
        let (first, second) = (asked.json("query", name, &rank), asked.json("query", &again, &[]));
        assert_eq!(ranks(&second).len(), ranks(&first).len(), "{name}");
        for (before, after) in ranks(&first).iter().zip(ranks(&second)) {
            assert_eq!(essence(after), essence(before), "{name} rank {}", before["rank"]);
        }
        assert_eq!(unnamed(&second["growth"]), unnamed(&first["growth"]), "{name}");
        let csv = |job: &str| run(asked.command("export", job, &rank).args(["--format", "csv"]));
        assert!(csv(&again) == csv(name), "{name}: the same events");
    }
}

/// The answers of one store about one recording.
fn answers(flags: [&OsStr; 2]) -> Vec<String> {
    let name = "gpt_curriculum";
    run(memctl().args(["import", "-q", "--job", name]).args(flags).arg(recordings::folder(name)));
    let questions: [&[&str]; 8] = [
        &["jobs", "-o", "json"],
        &["query", "--job", name, "-o", "json"],
        &["query", "--job", name, "-q"],
        &["timeline", "--job", "latest", "--points", "9", "-o", "json"],
        &["sites", "--job", name, "--peak", "-o", "json"],
        &["sites", "--job", name, "-o", "csv"],
        &["export", "--job", name, "--rank", "2", "--format", "csv"],
        &["export", "--job", name, "--rank", "1", "--format", "memory-viz"],
    ];
    let answer = |question: &&[&str]| {
        let output = memctl().args(*question).args(flags).output().unwrap();
        assert!(output.status.success(), "{question:?}: {}", stderr(&output));
        // A pickle is not text: its bytes are converted to a comparable form.
        let text: String = output.stdout.iter().map(|byte| char::from(*byte)).collect();
        // The time of import differs between stores.
        text.split('\n').filter(|line| !line.contains("\"arrived_at\"")).collect::<Vec<_>>().join("\n")
    };
    questions.iter().map(answer).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_store_gives_the_same_answers() {
    let database = Database::create().await;
    let url = database.url.clone();
    tokio::task::spawn_blocking(move || {
        let folder = tempfile::tempdir().unwrap();
        let flag = OsStr::new("--daemon");
        let embedded: OsString = folder.path().join("embedded").into();
        let embedded = answers([OsStr::new("--data-dir"), &embedded]);
        let stores = [
            ("SQLite", DaemonProcess::sqlite(&folder.path().join("daemon"), free_port())),
            ("Postgres", DaemonProcess::store(&url, free_port())),
            ("memory", DaemonProcess::store("memory:", free_port())),
        ];
        for (store, daemon) in stores {
            let found = answers([flag, OsStr::new(&daemon.url)]);
            for (number, (found, expected)) in found.iter().zip(&embedded).enumerate() {
                assert!(found == expected, "{store} answers question {number} differently:\n{found}\n{expected}");
            }
        }
    })
    .await
    .unwrap();
    database.remove().await;
}

#[test]
fn of_one_leak_one_rate_is_told() {
    let asked = RecordingsDaemon::with(&["gpt_val_graph_leak", "cnn_rank0_cache"]);
    for (name, ranks) in [("gpt_val_graph_leak", 4), ("cnn_rank0_cache", 1)] {
        let report = asked.json("query", name, &[]);
        let rate = report["findings"][0]["bytes_per_epoch"].as_f64().unwrap();
        let grown: Vec<f64> = report["ranks"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|rank| rank["growth_bytes_per_epoch"].as_f64().filter(|bytes| *bytes > 0.0))
            .collect();
        assert_eq!(grown.len(), ranks, "{name}");
        assert!(grown.iter().all(|bytes| (bytes - rate).abs() <= 1.0), "{name}: {grown:?} beside {rate}");
    }
}
