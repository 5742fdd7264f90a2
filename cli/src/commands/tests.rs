//! Whole commands against a daemon on a real socket: what they print and how they end.

use clap::Parser;

use super::run;
use crate::args::Cli;
use crate::exit::{Failure, Outcome};
use crate::fixture::FakeDaemon;
use crate::render::screen::Screen;

/// Runs a command line against the fake daemon on a screen of 100 columns.
fn memctl(line: &str) -> Result<String, Failure> {
    runtime().block_on(async {
        let url = FakeDaemon::start().await;
        against(&url, line).await
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

async fn against(url: &str, line: &str) -> Result<String, Failure> {
    let words = ["memctl", "--daemon", url, "--quiet"].into_iter().chain(line.split_whitespace());
    let cli = Cli::try_parse_from(words).unwrap();
    let screen = Screen { columns: Some(100), unicode: true, colour: false };
    let mut out = Vec::new();
    run(&cli, &screen, &mut out).await?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[test]
fn query() {
    insta::assert_snapshot!(memctl("query --job cnn_rank0_cache").unwrap());
}

#[test]
fn query_as_json() {
    insta::assert_snapshot!(memctl("query --job latest --rank 0 -o json").unwrap());
}

#[test]
fn query_as_lines() {
    let text = memctl("query --job latest -o ndjson").unwrap();
    let records: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = records.iter().map(|record| record["record"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["job", "rank", "rank", "rank", "rank", "process", "process", "process", "process", "finding", "growth"]
    );
    insta::assert_snapshot!(memctl("query --job latest -o csv").unwrap());
}

#[test]
fn jobs() {
    insta::assert_snapshot!(memctl("jobs").unwrap());
    insta::assert_snapshot!(memctl("jobs -o csv").unwrap());
    insta::assert_snapshot!(memctl("jobs -o ndjson").unwrap());
}

#[test]
fn timeline() {
    insta::assert_snapshot!(memctl("timeline --job latest --rank 0-1").unwrap());
    let csv = memctl("timeline --job latest --points 3 -o csv").unwrap();
    assert_eq!(csv.lines().count(), 1 + 4 * 3);
    let json: serde_json::Value = serde_json::from_str(&memctl("timeline --job latest -o json").unwrap()).unwrap();
    assert_eq!(json["ranks"][0]["points"].as_array().unwrap().len(), 240);
    assert_eq!(json["ranks"][3]["marks"][4]["kind"], "epoch_end");
}

#[test]
fn sites() {
    insta::assert_snapshot!(memctl("sites --job latest").unwrap());
    insta::assert_snapshot!(memctl("sites --job latest --rank 0 --folded").unwrap());
    insta::assert_snapshot!(memctl("sites --job latest --rank 1-2 --folded").unwrap());
    insta::assert_snapshot!(memctl("sites --job latest --rank 0 -o csv").unwrap());
    let json: serde_json::Value = serde_json::from_str(&memctl("sites --job latest -o json").unwrap()).unwrap();
    assert_eq!(json["ranks"][0]["sites"][2]["site"]["function"], "remember_features");
    assert_eq!(json["ranks"][0]["sites"][1]["site"], serde_json::Value::Null);
}

#[test]
fn exports() {
    let csv = memctl("export --job latest --rank 1 --format csv").unwrap();
    insta::assert_snapshot!(csv);
    assert_eq!(
        memctl("export --job latest --rank 1 --format csv --epoch 0").unwrap().lines().count(),
        csv.lines().count() - 1
    );
    assert_eq!(
        memctl("export --job latest --rank 0 --format folded").unwrap(),
        memctl("sites --job latest --rank 0 --folded").unwrap()
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r{rank}.pickle");
    memctl(&format!("export --job latest --rank 0,2 --format memory-viz -f {}", file.display())).unwrap();
    let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["r0.pickle", "r2.pickle"]);
    let two = memctl("export --job latest --rank 0,2 --format memory-viz -f one.pickle").unwrap_err();
    assert_eq!((two.outcome, two.to_string().contains("choose one with --rank")), (Outcome::Usage, true));
    let nowhere = memctl("export --job latest --rank 0 --format csv -f /nowhere/at/all.csv").unwrap_err();
    assert_eq!(nowhere.outcome, Outcome::Usage);
    assert!(nowhere.to_string().contains("/nowhere/at/all.csv"), "{nowhere}");
}

#[test]
fn no_such_job_is_exit_code_4() {
    for line in ["query", "timeline", "sites", "export --format csv", "export --format memory-viz", "delete --yes"] {
        let failure = memctl(&format!("{line} --job nothing")).unwrap_err();
        assert_eq!(failure.outcome, Outcome::NoSuchJob, "{line}");
        assert_eq!(failure.to_string(), "there is no job nothing; `memctl jobs` lists the jobs", "{line}");
    }
}

#[test]
fn nobody_there_is_exit_code_3() {
    // Port 1 needs privileges to be listened on and nothing on a test machine does.
    let failure = runtime().block_on(against("http://127.0.0.1:1", "jobs")).unwrap_err();
    assert_eq!(failure.outcome, Outcome::Unreachable);
    assert!(
        failure.to_string().starts_with("no daemon answers at http://127.0.0.1:1 (Connection refused"),
        "{failure}"
    );
    let failure = runtime().block_on(against("", "jobs --data-dir /nowhere/at/all")).unwrap_err();
    assert_eq!(failure.outcome, Outcome::Unreachable);
    assert!(failure.to_string().starts_with("there is no folder /nowhere/at/all"), "{failure}");
}

#[test]
fn a_job_that_exists_is_not_imported_over() {
    let file = tempfile::Builder::new().suffix("rank0.pickle").tempfile().unwrap();
    let import = |flags: &str| memctl(&format!("import {} {flags}", file.path().display())).unwrap_err();
    let failure = import("--job cnn_rank0_cache");
    assert_eq!(failure.outcome, Outcome::BadInput);
    let expected = "job cnn_rank0_cache already exists; add to it with --attempt N, or replace it with --replace";
    assert_eq!(failure.to_string(), expected);
    assert!(import("--job cnn_rank0_cache --attempt 3").to_string().contains("already has an attempt 3"));
}

#[test]
fn wrong_usage_that_only_shows_later_is_exit_code_2() {
    for line in
        ["sites --job latest --min-percent 101", "sites --job latest --folded -o json", "delete --job latest --yes"]
    {
        assert_eq!(memctl(line).unwrap_err().outcome, Outcome::Usage, "{line}");
    }
}

#[test]
fn the_doctor_is_content() {
    let text = memctl("doctor").unwrap();
    assert!(text.contains("answers") && !text.contains("FAIL"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&memctl("doctor -o json").unwrap()).unwrap();
    assert_eq!(json["schema"], 1);
}

#[test]
fn completions_complete() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(memctl(&format!("completions {shell}")).unwrap().contains("COMPLETE"), "{shell}");
    }
}
