//! The nine recordings without a single annotation, as `_record_memory_history()` writes them by default: their steps
//! are found, and they get the right findings as well, on both databases.

use memctl_model::MarkKind;
use memctl_snapshot::{FoundBoundaries, load};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::postgres::Database;
use memctl_tests::recordings::{NAMES, folder, without_annotations};
use memctl_tests::{memctl, run, run_json};
use serde_json::Value;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[test]
fn steps_are_found_and_all_ranks_agree() {
    let unmarked = tempfile::tempdir().unwrap();
    let mut right = 0;
    for name in NAMES {
        let folder_without = without_annotations(name, unmarked.path());
        let mut ranks: Vec<FoundBoundaries> = Vec::new();
        for rank in 0..4 {
            let marked = load(&folder(name).join(format!("rank{rank}.pickle.zst")), &mut |_| {}).unwrap();
            assert_eq!(marked.found, FoundBoundaries::default(), "{name}: given marks win");
            let steps = marked.marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_))).count() as u64;
            let bare = load(&folder_without.join(format!("rank{rank}.pickle")), &mut |_| {}).unwrap();
            assert_eq!(bare.events(), marked.events(), "{name}: only annotations are gone");
            let ends = bare.marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_))).count() as u64;
            // If nothing repeats (one failing request), the whole recording is one step.
            let whole = u64::from(bare.found == FoundBoundaries::default());
            assert_eq!(ends, bare.found.steps + whole, "{name}: what is marked was found");
            assert!(whole == 0 || name == "oom_by_fragmentation", "{name}: its steps are found");
            if rank == 0 && steps > 0 {
                right += u32::from(bare.found.steps.abs_diff(steps) * 10 <= steps);
            }
            ranks.push(bare.found);
        }
        let first = &ranks[0];
        let same =
            |other: &FoundBoundaries| (&other.by, other.steps, other.epochs) == (&first.by, first.steps, first.epochs);
        assert!(first.steps == 0 || ranks.iter().all(same), "{name}: {ranks:?}");
    }
    assert!(right >= 8, "the steps of {right} recordings were found");
}

/// The expected finding at warning or above: ranks, function and line of the site.
fn leak(name: &str) -> Option<(&'static [u64], &'static str)> {
    const ALL: &[u64] = &[0, 1, 2, 3];
    match name {
        "gpt_val_graph_leak" => Some((ALL, "validate_keeping_graph")),
        "lstm_hidden_chain" => Some((ALL, "step")),
        "cnn_rank0_cache" => Some((&[0], "remember_features")),
        _ => None,
    }
}

/// Findings about certain problems, not about possible ones.
fn wrong(url: &str, job: &str) -> Vec<Value> {
    let report = run_json(memctl().args(["query", "-o", "json", "--daemon", url, "--job", job]));
    let findings = report["findings"].as_array().expect("findings").clone();
    findings.into_iter().filter(|finding| text(finding, "severity") != "info").collect()
}

/// Asserts that a page does not begin with an all-clear if there is a problem.
fn check_beginning(url: &str, name: &str) {
    let job = format!("{name}-unmarked");
    let report = run_json(memctl().args(["query", "-o", "json", "--daemon", url, "--job", &job]));
    let page = run(memctl().args(["query", "--daemon", url, "--job", &job]));
    let first = page.lines().next().unwrap_or_default();
    let verdict = text(&report["verdict"], "kind");
    match name {
        "gpt_val_graph_leak" | "lstm_hidden_chain" | "cnn_rank0_cache" => {
            assert_eq!(verdict, "growing", "{name}: {first}");
            assert!(first.contains("grow"), "{name}: {first}");
        }
        "oom_by_fragmentation" => {
            assert_eq!(verdict, "out_of_memory", "{name}: {first}");
            assert!(first.starts_with("Out of memory"), "{name}: {first}");
        }
        _ => {}
    }
}

fn check(url: &str, name: &str) {
    check_beginning(url, name);
    let found = wrong(url, &format!("{name}-unmarked"));
    let kinds: Vec<&str> = found.iter().map(|finding| text(finding, "kind")).collect();
    match (name, leak(name)) {
        (_, Some((ranks, function))) => {
            assert_eq!(found.len(), 1, "{name}: {found:#?}");
            assert_eq!(found[0]["ranks"], Value::from(ranks), "{name}");
            assert_eq!(text(&found[0]["site"], "function"), function, "{name}: {:#?}", found[0]);
            let marked = wrong(url, name);
            assert_eq!(found[0]["site"]["line"], marked[0]["site"]["line"], "{name}");
        }
        ("oom_by_fragmentation", None) => assert!(kinds.contains(&"oom"), "{name}: {found:#?}"),
        ("gpt_varlen_fragmentation", None) => {
            // Kind and severity are the same as with marks.
            let kinds_of = |job: &str| -> Vec<(String, String)> {
                let report = run_json(memctl().args(["query", "-o", "json", "--daemon", url, "--job", job]));
                let findings = report["findings"].as_array().expect("findings").clone();
                findings.iter().map(|it| (text(it, "kind").to_owned(), text(it, "severity").to_owned())).collect()
            };
            let bare = kinds_of(&format!("{name}-unmarked"));
            assert!(bare.iter().any(|(kind, _)| kind == "fragmentation"), "{name}: {bare:?}");
            assert_eq!(bare, kinds_of(name), "{name}");
        }
        (_, None) => assert!(found.is_empty(), "{name}: {found:#?}"),
    }
    if name == "oom_by_fragmentation" {
        let other = kinds.iter().find(|kind| !["oom", "fragmentation"].contains(kind));
        assert_eq!(other, None, "{found:#?}");
    }
}

fn check_store(url: &str) {
    let unmarked = tempfile::tempdir().unwrap();
    for name in NAMES {
        run(memctl().args(["import", "-q", "--daemon", url, "--job", name]).arg(folder(name)));
        let job = format!("{name}-unmarked");
        let folder = without_annotations(name, unmarked.path());
        run(memctl().args(["import", "-q", "--daemon", url, "--job", &job]).arg(folder));
        check(url, name);
    }
}

#[test]
fn every_recording_without_marks_gets_its_truth_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(folder.path(), free_port());
    check_store(&daemon.url);
    daemon.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_recording_without_marks_gets_its_truth_on_postgres() {
    let database = Database::create().await;
    let url = database.url.clone();
    tokio::task::spawn_blocking(move || {
        let daemon = DaemonProcess::store(&url, free_port());
        check_store(&daemon.url);
        daemon.terminate();
    })
    .await
    .unwrap();
    database.remove().await;
}
