//! Whole commands against a daemon on a real socket: what they print and how they end.

use super::{Failure, FakeDaemon, Screen, records};

/// Runs a command line against the fake daemon on a screen of 100 columns.
fn memctl(line: &str) -> Result<String, Failure> {
    against(FakeDaemon::start().url(), line)
}

fn against(url: &str, line: &str) -> Result<String, Failure> {
    let screen = Screen { columns: Some(100), unicode: true };
    let (text, result) = super::against(url, &format!("--quiet {line}"), screen);
    result.map(|()| text)
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
    let records = records(&text);
    let kinds: Vec<&str> = records.iter().map(|record| record["record"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        ["job", "rank", "rank", "rank", "rank", "process", "process", "process", "process", "finding", "growth"]
    );
    insta::assert_snapshot!(memctl("query --job latest -o csv").unwrap());
}

#[test]
fn jobs() {
    // The age of the recording changes every day, and so may the width of its column.
    let page = memctl("jobs").unwrap();
    let width = page.find("JOB").unwrap();
    let rows: Vec<_> = page.lines().take(2).map(|row| &row[width..]).collect();
    assert!(page.lines().nth(1).unwrap()[..width].ends_with(" d  "), "{page}");
    insta::assert_snapshot!(rows.join("\n"));
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
    assert_eq!((two.code, two.to_string().contains("choose one with --rank")), (2, true));
    let nowhere = memctl("export --job latest --rank 0 --format csv -f /nowhere/at/all.csv").unwrap_err();
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.to_string().contains("/nowhere/at/all.csv"), "{nowhere}");
}

#[test]
fn no_such_job_is_exit_code_4() {
    for line in ["query", "timeline", "sites", "export --format csv", "export --format memory-viz", "delete --yes"] {
        let failure = memctl(&format!("{line} --job nothing")).unwrap_err();
        assert_eq!(failure.code, 4, "{line}");
        assert_eq!(failure.to_string(), "there is no job nothing; `memctl jobs` lists the jobs", "{line}");
    }
}

#[test]
fn no_daemon_there_is_exit_code_3() {
    // Listening on port 1 needs privileges, and no program on a test machine does so.
    let failure = against("http://127.0.0.1:1", "jobs").unwrap_err();
    assert_eq!(failure.code, 3);
    assert!(
        failure.to_string().starts_with("no daemon answers at http://127.0.0.1:1 (Connection refused"),
        "{failure}"
    );
    let failure = against("", "jobs --data-dir /nowhere/at/all").unwrap_err();
    assert_eq!(failure.code, 3);
    assert!(failure.to_string().starts_with("there is no folder /nowhere/at/all"), "{failure}");
}

#[test]
fn wrong_usage_that_only_shows_later_is_exit_code_2() {
    for line in
        ["sites --job latest --min-percent 101", "sites --job latest --folded -o json", "delete --job latest --yes"]
    {
        assert_eq!(memctl(line).unwrap_err().code, 2, "{line}");
    }
}

#[test]
fn the_doctor_is_content() {
    let text = memctl("doctor").unwrap();
    assert!(text.contains("answers") && !text.contains("FAIL"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&memctl("doctor -o json").unwrap()).unwrap();
    assert_eq!(json["schema"], 2);
}

#[test]
fn completions_complete() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(memctl(&format!("completions {shell}")).unwrap().contains("COMPLETE"), "{shell}");
    }
}
