//! A job that nobody could judge: no page, no JSON and no exit code of any command says or implies that it is well.

use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::recordings::folder;
use memctl_tests::{memctl, run, stderr, stdout};
use serde_json::Value;

/// Words that call a job well, or a question settled.
const WELL: [&str; 7] = [
    "Nothing wrong",
    "No leak was found",
    "nothing wrong was found",
    "Nothing that was found",
    "rank: none lost",
    "Real demand.",
    "holds  ",
];

fn ended(url: &str, words: &[&str]) -> (String, String, Option<i32>) {
    let output = memctl().args(words).args(["--daemon", url]).output().expect("memctl starts");
    (stdout(&output), stderr(&output), output.status.code())
}

/// One epoch of a job that leaks: too few boundaries to tell.
#[test]
fn no_command_implies_that_an_unjudged_job_is_well() {
    let store = tempfile::tempdir().unwrap();
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "j"]).arg(folder("cnn_rank0_cache")));
    for verb in ["query", "leaks", "ranks"] {
        let asked = [verb, "--job", "j", "--epoch", "0"];
        let (page, _, code) = ended(&daemon.url, &asked);
        assert_eq!(code, Some(0), "{verb}");
        let first = page.lines().next().unwrap_or_default();
        assert!(first.starts_with("Inconclusive: ") && first.contains("needs 3 epoch ends, found 1"), "{verb}: {page}");
        assert!(page.contains("What to do:"), "{verb}: {page}");
        for well in WELL {
            assert!(!page.contains(well), "{verb} says {well:?}: {page}");
        }
        let (json, _, _) = ended(&daemon.url, &[&asked[..], &["-o", "json"]].concat());
        let json: Value = serde_json::from_str(&json).expect("JSON");
        let not_judged = json["not_judged"].as_array().expect("not_judged");
        assert!(not_judged.iter().any(|not| not["decides"] == true && not["kind"] == "leak"), "{verb}: {json:#}");
        assert!(not_judged.iter().all(|not| not["reason"].is_string()), "{verb}");
    }
    for severity in ["info", "warning", "critical"] {
        let (_, said, code) = ended(&daemon.url, &["query", "--job", "j", "--epoch", "0", "--fail-on", severity]);
        assert_eq!(code, Some(1), "{severity}: {said}");
        assert!(said.contains("inconclusive: needs 3 epoch ends, found 1"), "{said}");
    }
    for condition in ["no-leak", "stable", "growth<1MiB/epoch", "growth<1MiB/step", "growth<1MiB/minute"] {
        let (page, said, code) = ended(&daemon.url, &["assert", "--job", "j", "--epoch", "0", condition]);
        assert_eq!(code, Some(1), "{condition}: {page}{said}");
        assert!(said.contains("inconclusive"), "{condition}: {said}");
    }
    let (said, _, code) = ended(&daemon.url, &["diagnose", "--job", "j", "--epoch", "0"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("Inconclusive: ") && said.contains("In short: inconclusive"), "{said}");
    assert!(!said.contains("Nothing that was found"), "{said}");
    // Whole, it is judged: the same words would be wrong.
    let (page, _, _) = ended(&daemon.url, &["query", "--job", "j"]);
    assert!(!page.contains("Inconclusive"), "{page}");
    daemon.terminate();
}
