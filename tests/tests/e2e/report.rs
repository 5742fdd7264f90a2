//! `memctl report` about the bundled recordings and about a job with hostile names: one complete, small and harmless
//! file that agrees with `diagnose` and makes no requests.

use std::path::Path;

use memctl_answers::format::html::escape;
use memctl_model::{DeviceIndex, Frame};
use memctl_tests::daemon::{DaemonProcess, free_port};
use memctl_tests::jobs::{record, session};
use memctl_tests::recordings::{NAMES, folder};
use memctl_tests::{memctl, run, run_json};

/// The largest file.
const BYTES_MAX: usize = 3_000_000;
/// A name with every kind of injection.
const HOSTILE: &str =
    "x</title></script><script src=http://evil.example/></script><img src=x onerror=\"y\">'\u{202e}`|@all";

/// The report of a job, read from the file that was written.
fn report(daemon: &DaemonProcess, job: &str, place: &Path) -> String {
    let file = place.join(format!("{job}.html"));
    run(memctl().args(["report", "-q", "--daemon", &daemon.url, "--job", job, "-f"]).arg(&file));
    std::fs::read_to_string(&file).expect("the report")
}

/// The data of the file for its script.
fn inlined(html: &str) -> serde_json::Value {
    let data = html.split("id=\"report\">").nth(1).expect("data").split('<').next().unwrap();
    serde_json::from_str(data).expect("JSON")
}

/// Values of an attribute.
fn attributes<'h>(html: &'h str, name: &str) -> Vec<&'h str> {
    let start = format!(" {name}=\"");
    html.split(&start).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

/// Asserts the properties of every report.
fn whole_and_alone(html: &str, what: &str) {
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"), "{what}");
    assert!(html.len() <= BYTES_MAX, "{what}: {} bytes", html.len());
    assert_eq!(html.matches("<script").count(), 2, "{what}: its data and its own script");
    assert!(html.contains("content=\"default-src 'none'; style-src 'sha256-"), "{what}");
    // The content without scripts.
    let html = html.split("<script").next().unwrap();
    for forbidden in
        ["<img", "<link", "<iframe", "<object", "<embed", "<base", "<form", " style=\"", " src=\"", " onclick"]
    {
        assert!(!html.contains(forbidden), "{what}: {forbidden}");
    }
    for link in attributes(html, "href") {
        assert!(link.starts_with('#'), "{what}: {link}");
        assert!(html.contains(&format!(" id=\"{}\"", &link[1..])), "{what}: {link} leads nowhere");
    }
    let mut ids = attributes(html, "id");
    ids.sort_unstable();
    assert!(ids.windows(2).all(|two| two[0] != two[1]), "{what}: {ids:?}");
}

#[test]
fn reports_of_the_recordings_say_what_diagnose_says() {
    let (store, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    for name in NAMES {
        run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", name]).arg(folder(name)));
        let html = report(&daemon, name, place.path());
        whole_and_alone(&html, name);
        let body = html.split("<script").next().unwrap();
        let absent: Vec<&str> = body.split("Not shown: ").skip(1).filter_map(|rest| rest.split('<').next()).collect();
        assert_eq!(absent, [""; 0], "{name}");
        let note = run_json(memctl().args(["diagnose", "-o", "json", "--daemon", &daemon.url, "--job", name]));
        let mut said = vec![note["summary"].as_str().unwrap().trim_end_matches('.').to_owned()];
        said.extend(
            note["findings"].as_array().unwrap().iter().map(|found| found["title"].as_str().unwrap().to_owned()),
        );
        for sentence in said {
            assert!(html.contains(&escape(&sentence)), "{name}: {sentence}");
        }
        let data = inlined(&html);
        let (rank, answers) = (data["rank"].as_u64().expect("a rank"), data["answers"].as_object().unwrap());
        let mut wanted = vec!["diagnose".to_owned(), "query".to_owned(), "heat".to_owned(), "oom".to_owned()];
        wanted.extend((0..4).map(|rank| format!("timeline?floor=true&points=600&rank={rank}")));
        wanted.extend(["flame", "sites", "ledger", "blocks"].map(|verb| format!("{verb}?at=peak&rank={rank}")));
        // A single epoch cannot be compared.
        assert_eq!(data["early"].is_null(), name == "oom_by_fragmentation", "{name}");
        if let (Some(early), Some(late)) = (data["early"].as_u64(), data["late"].as_u64()) {
            wanted.push(format!("flame?at=epoch:{late}&from=epoch:{early}&rank={rank}"));
        }
        let lacks: Vec<&String> = wanted.iter().filter(|key| !answers.contains_key(*key)).collect();
        assert!(lacks.is_empty(), "{name} lacks {lacks:?}: {}", data["reasons"]);
        assert_eq!(data["left_out"], serde_json::json!([]), "{name}");
    }
}

/// A report has the forecast of other sizes if it was written with the recorded size.
#[test]
fn other_sizes_are_in_a_report_that_names_the_recorded_one() {
    let (store, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let recording =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data/fit_resnet50_amp_b4/rank0.pickle.zst");
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "resnet50"]).arg(recording));
    let without = inlined(&report(&daemon, "resnet50", place.path()));
    let is_fit = |key: &&String| key.starts_with("fit");
    assert_eq!(without["answers"].as_object().unwrap().keys().find(is_fit), None);
    assert_eq!((&without["size"], &without["reasons"]["fit"]), (&serde_json::Value::Null, &serde_json::Value::Null));

    let file = place.path().join("sizes.html");
    let flags = ["--size", "4", "--device-memory", "1GiB", "--job", "resnet50", "-f"];
    run(memctl().args(["report", "-q", "--daemon", &daemon.url]).args(flags).arg(&file));
    let html = std::fs::read_to_string(&file).unwrap();
    whole_and_alone(&html, "with sizes");
    let with = inlined(&html);
    assert_eq!((&with["size"], &with["device_memory"]), (&4.into(), &(1_u64 << 30).into()));
    let key = with["answers"].as_object().unwrap().keys().find(is_fit).expect("the curve");
    assert_eq!(key, "fit?limit=1073741824&rank=0&size=4");
    for flags in [&["--size", "4", "--markdown"][..], &["--device-memory", "1GiB"], &["--size", "0"]] {
        let refused =
            memctl().args(["report", "--job", "resnet50", "--daemon", &daemon.url]).args(flags).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{flags:?}");
    }
}

#[test]
fn hostile_names_are_text() {
    let (store, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let daemon = DaemonProcess::sqlite(store.path(), free_port());
    let mut hostile = session("hostile", 0);
    (hostile.host, hostile.role) = (Some(HOSTILE.into()), Some(HOSTILE.into()));
    record(&daemon.url, hostile, |agent| {
        let frame = |line| Frame { function: HOSTILE.into(), file: format!("/home/{HOSTILE}.py").into(), line };
        let stack = agent.stack(&[frame(2), frame(1)]);
        let mut recorder = agent.recorder(DeviceIndex(0)).expect("a device");
        let base = 1 << 40;
        recorder.segment_alloc(base, 64 << 20, 0);
        for epoch in 0..6 {
            agent.epoch_begin(epoch);
            recorder.alloc(base + (u64::from(epoch) << 22), 4 << 20, 0, stack);
            agent.epoch_end(epoch);
        }
    });
    let html = report(&daemon, "hostile", place.path());
    whole_and_alone(&html, "hostile");
    assert!(html.contains("x&lt;/title&gt;&lt;/script&gt;") && !html.contains('\u{202e}'), "{html}");
    let markdown = run(memctl().args(["report", "--markdown", "--daemon", &daemon.url, "--job", "hostile"]));
    assert!(markdown.contains("x&lt;/title&gt;"), "{markdown}");
    for forbidden in ["<script", "<img", "@all", "http://", "\u{202e}"] {
        assert!(!markdown.contains(forbidden), "{forbidden}: {markdown}");
    }
}
