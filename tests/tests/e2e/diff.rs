//! `memctl diff`, `memctl baseline` and `memctl assert --against FILE`, with recorded jobs and real agents.

use memctl_tests::jobs::{Training, record, session, train};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

use super::page::{get, import, json, served};

const MIB: u64 = 1 << 20;

fn diff(url: &str, runs: &[&str]) -> Value {
    run_json(memctl().args(["diff", "-o", "json", "-q", "--daemon", url]).args(runs))
}

fn trained(url: &str, job: &str, training: Training) {
    record(url, session(job, 0), |agent| train(agent, training));
}

#[test]
fn one_kept_block_is_the_first_row_and_equal_runs_differ_in_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, _) = served(home.path(), &[]);
    for job in ["first", "second"] {
        trained(&daemon.url, job, Training::default());
    }
    trained(&daemon.url, "planted", Training { kept_a_step: 2 * MIB, keeps: (3, 3), ..Training::default() });
    let same = diff(&daemon.url, &["first", "second"]);
    assert_eq!((&same["conclusion"], &same["sites"]), (&"same".into(), &Value::Array(Vec::new())), "{same}");
    assert_eq!(
        same["sentence"],
        "The allocated peak, its sites and growth differ by no more than 64.0 KiB. The peak is 96.0 MiB."
    );
    let higher = diff(&daemon.url, &["first", "planted"]);
    assert_eq!(higher["conclusion"], "higher", "{higher}");
    let site = &higher["sites"][0];
    assert_eq!((&site["site"]["function"], &site["site"]["line"]), (&"keep".into(), &17.into()));
    assert_eq!((&site["before_bytes"], &site["after_bytes"]), (&0.into(), &(2 * MIB).into()));
    assert_eq!(
        higher["sentence"],
        "The peak rises by 2.00 MiB, from 96.0 MiB to 98.0 MiB. The largest change: keep (train.py:17) has 2.00 MiB more \
         at the peak."
    );
    let lower = diff(&daemon.url, &["planted", "first"]);
    assert_eq!((&lower["conclusion"], &lower["sites"][0]["after_bytes"]), (&"lower".into(), &0.into()));
    assert_eq!(diff(&daemon.url, &["first", "planted", "--ignore", "2MiB"])["conclusion"], "same");
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_profile_sums_to_the_peak_and_every_door_says_the_same() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let jobs = ["gpt_clean", "gpt_val_graph_leak"];
    jobs.iter().for_each(|job| import(job, &["--daemon", &daemon.url]));
    let sum =
        |list: &Value| list.as_array().unwrap().iter().map(|one| one["live_bytes"].as_u64().unwrap()).sum::<u64>();
    for job in jobs {
        let profile = json(&get(&port, &format!("/api/v1/jobs/{job}/profile")));
        let peak = &profile["peak"];
        let allocated = peak["allocated_bytes"].as_u64().unwrap();
        let rank = peak["rank"].as_u64().unwrap() as usize;
        assert_eq!(profile["ranks"][rank]["peak_allocated_bytes"], allocated, "{job}");
        assert_eq!(sum(&peak["sites"]) + peak["left_out_bytes"].as_u64().unwrap(), allocated, "{job}");
        assert_eq!(sum(&peak["classes"]), allocated, "{job}");
        assert_eq!(sum(&peak["modules"]), allocated, "{job}");
    }
    let printed = diff(&daemon.url, &jobs);
    let shown = json(&get(&port, &format!("/api/v1/jobs/{}/diff?before={}", jobs[1], jobs[0])));
    assert_eq!(shown, printed);
    assert_eq!(printed["conclusion"], "new_finding");
    assert!(printed["sentence"].as_str().unwrap().contains("validate_keeping_graph"), "{printed}");
    assert_eq!(get(&port, "/api/v1/jobs/gpt_clean/diff").status, 400, "without the other run");
    assert_eq!(get(&port, "/api/v1/jobs/gpt_clean/diff?before=none").status, 404);
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn a_baseline_fails_a_leak_and_a_higher_peak_and_passes_its_own_run() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, _) = served(home.path(), &[]);
    let file = home.path().join("memory.json");
    let file = file.to_str().unwrap();
    let saved = |words: &[&str]| {
        memctl().args(["baseline", "save", "-q", "--daemon", &daemon.url]).args(words).output().unwrap()
    };
    let asserted = |job: &str, conditions: &[&str]| {
        let words = ["assert", job, "--against", file, "-o", "json", "-q", "--daemon", &daemon.url];
        let output = memctl().args(words).args(conditions).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let verdicts = answer["conditions"].as_array().map_or(&[][..], |conditions| conditions).iter();
        (output.status.code(), verdicts.map(|one| one["verdict"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
    };
    trained(&daemon.url, "base", Training::default());
    trained(&daemon.url, "planted", Training { kept_a_step: 2 * MIB, keeps: (3, 3), ..Training::default() });
    trained(&daemon.url, "leak", Training { kept_a_step: 64 << 10, ..Training::default() });
    let output = saved(&["base", "-f", file]);
    assert!(output.status.success(), "{output:?}");
    assert!(std::fs::metadata(file).unwrap().len() < 8 << 10, "it is to be committed");
    // The job is gone, and another checkout has the file.
    run(memctl().args(["delete", "--yes", "base", "-q", "--daemon", &daemon.url]));
    trained(&daemon.url, "base", Training::default());
    let conditions = ["no-new-leak", "peak<=+1%", "no-oom"];
    assert_eq!(asserted("base", &conditions), (Some(0), ["holds"; 3].map(str::to_owned).to_vec()));
    assert_eq!(asserted("planted", &conditions).1, ["holds", "does_not_hold", "holds"]);
    assert_eq!(asserted("planted", &["peak<=+2MiB"]), (Some(0), vec!["holds".to_owned()]));
    assert_eq!(asserted("leak", &["no-new-leak"]), (Some(1), vec!["inconclusive".to_owned()]));
    // A leak that the baseline has may not grow faster.
    let known = home.path().join("known.json");
    let known = known.to_str().unwrap();
    let output = saved(&["leak", "-f", known]);
    let loud = memctl().args(["baseline", "save", "leak", "-f", known, "--daemon", &daemon.url]).output().unwrap();
    let said = String::from_utf8_lossy(&loud.stderr).into_owned();
    assert!(output.stderr.is_empty() && said.contains("the baseline has a leak, which no-new-leak accepts"), "{said}");
    trained(&daemon.url, "faster", Training { kept_a_step: 640 << 10, ..Training::default() });
    for (job, code) in [("leak", 0), ("faster", 1)] {
        let words = ["assert", job, "no-new-leak", "--against", known, "--daemon", &daemon.url];
        let output = memctl().args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{job}: {output:?}");
    }
    assert_eq!(asserted("base", &["--max-peak", "96MiB"]).1, ["holds"; 4]);
    assert_eq!(asserted("base", &["--max-peak", "95MiB"]).0, Some(1));
    // Words that are no baseline.
    let plain = memctl().args(["assert", "base", "peak<=+1%", "--daemon", &daemon.url]).output().unwrap();
    assert_eq!(plain.status.code(), Some(2), "{plain:?}");
    std::fs::write(home.path().join("other.json"), "{}").unwrap();
    for other in ["other.json", "absent.json"] {
        let other = home.path().join(other);
        let output = memctl().args(["diff", "base"]).arg(other).args(["--daemon", &daemon.url]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("memctl baseline save"), "{output:?}");
    }
    assert_eq!(daemon.terminate(), 0);
}

/// Every recording beside every other one, in both orders: what one direction gains, the other loses, and a recording
/// differs in nothing from itself.
#[test]
fn recordings_in_all_pairs_change_by_the_same_in_both_directions() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, _) = served(home.path(), &[]);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/recordings");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let names = names.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    assert!(names.len() >= 9, "{names:?}");
    let file = |name: &str| home.path().join(format!("{name}.json")).display().to_string();
    for name in &names {
        import(name, &["--daemon", &daemon.url]);
        run(memctl().args(["baseline", "save", name, "-q", "--daemon", &daemon.url, "-f", &file(name)]));
    }
    let changes = |diff: &Value, [from, to]: [&str; 2]| {
        let sides = |row: &Value, unit: &str| {
            (row[format!("{from}_{unit}")].as_u64().unwrap(), row[format!("{to}_{unit}")].as_u64().unwrap())
        };
        let row = |row: &Value| (row["site"]["function"].to_string(), sides(row, "bytes"), sides(row, "blocks"));
        let mut rows: Vec<_> = diff["sites"].as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    };
    for (at, first) in names.iter().enumerate() {
        let own = diff(&daemon.url, &[&file(first), first]);
        assert_eq!((&own["conclusion"], &own["sites"]), (&"same".into(), &Value::Array(Vec::new())), "{first}: {own}");
        for second in &names[at + 1..] {
            let there = diff(&daemon.url, &[&file(first), &file(second)]);
            let back = diff(&daemon.url, &[&file(second), &file(first)]);
            assert_eq!(changes(&there, ["before", "after"]), changes(&back, ["after", "before"]), "{first} {second}");
            for (one, other) in [("higher", "lower"), ("lower", "higher"), ("same", "same")] {
                let same_findings = there["new_findings"] == back["new_findings"];
                if there["conclusion"] == one && same_findings {
                    assert_eq!(back["conclusion"], other, "{first} {second}: {}", back["sentence"]);
                }
            }
        }
    }
    assert_eq!(daemon.terminate(), 0);
}
