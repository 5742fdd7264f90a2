//! Over HTTP: settings replayed by the daemon are those that `memctl what-if` prints, and the parts of a peak and of a boundary sum to
//! what was allocated then.

use memctl_tests::{memctl, run_json};
use serde_json::Value;

use super::page::{JOB, get, import, json, served};

fn bytes(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("{name} in {of}"))
}

#[test]
fn a_daemon_replays_what_the_command_line_does_and_keeps_it() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    let printed = |flags: &[&str]| {
        let words = ["what-if", "--job", JOB, "--rank", "0", "-o", "json", "-q", "--daemon", &daemon.url];
        run_json(memctl().args(words).args(flags))
    };
    let shown = |asked: &str| json(&get(&port, &format!("/api/v1/jobs/{JOB}/what-if?rank=0{asked}")));
    let (plain, limited) = (printed(&[]), printed(&["--limit", "20MiB"]));
    // (What a recording's counters tell of retries is in the report, which the page has beside it.)
    let settings = |answer: &Value| answer["ranks"][0]["settings"].clone();
    assert!(settings(&plain).as_array().unwrap().len() > 10, "{plain}");
    for _ in 0..2 {
        assert_eq!(settings(&shown("")), settings(&plain));
        assert_eq!(shown("")["ranks"][0]["recommended"], plain["ranks"][0]["recommended"]);
        assert_eq!(settings(&shown("&limit=20971520")), settings(&limited));
    }
    for (asked, status) in
        [("rank=0,1", 400), ("rank=0&limit=x", 400), ("rank=0&since=2026-01-01T00:00:00Z", 400), ("rank=99", 400)]
    {
        let answer = get(&port, &format!("/api/v1/jobs/{JOB}/what-if?{asked}"));
        assert_eq!(answer.status, status, "{asked}: {}", answer.body);
    }
    assert_eq!(daemon.terminate(), 0);
}

#[test]
fn parts_of_a_peak_and_classes_of_a_boundary_sum_to_what_was_allocated() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    import(JOB, &["--daemon", &daemon.url]);
    let path = |verb: &str| format!("/api/v1/jobs/{JOB}/{verb}rank=0");
    let anatomy = json(&get(&port, &path("anatomy?")));
    let ledger = json(&get(&port, &path("ledger?at=peak&")));
    let sum = |list: &Value| list.as_array().unwrap().iter().map(|one| bytes(one, "live_bytes")).sum::<u64>();
    let allocated = bytes(&anatomy, "allocated_bytes");
    assert_eq!(allocated, bytes(&ledger["ranks"][0], "allocated_bytes"));
    assert_eq!(anatomy["classes"], ledger["ranks"][0]["classes"]);
    assert_eq!(sum(&anatomy["parts"]) + bytes(&anatomy, "left_out_bytes"), allocated);
    assert_eq!(sum(&anatomy["modules"]), allocated);
    assert!(anatomy["modules"].as_array().unwrap().len() > 1, "{}", anatomy["modules"]);

    let classes = json(&get(&port, &path("classes?")));
    let points = classes["points"].as_array().unwrap();
    assert!(points.windows(2).all(|pair| pair[0]["at"].as_str() <= pair[1]["at"].as_str()));
    let report = json(&get(&port, &path("query?")));
    for end in report["ranks"][0]["epoch_ends"].as_array().unwrap() {
        let is_it = |point: &&Value| point["boundary"] == "epoch" && point["epoch"] == end["epoch"];
        let point = points.iter().find(is_it).unwrap_or_else(|| panic!("{end} in {points:?}"));
        let all: u64 = point["bytes"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
        assert_eq!(all, bytes(end, "allocated_bytes"));
    }
    // A stretch has its own boundaries and no others.
    let [early, late] = [1, 2].map(|at| report["ranks"][0]["epoch_ends"][at]["at"].as_str().unwrap().to_owned());
    let within = json(&get(&port, &format!("{}&since={early}&until={late}", path("classes?"))));
    let within = within["points"].as_array().unwrap();
    assert!(within.len() >= 2 && within.len() < points.len(), "{} of {}", within.len(), points.len());
    assert_eq!((&within[0]["at"], &within[within.len() - 1]["at"]), (&early.into(), &late.into()));
    assert_eq!(daemon.terminate(), 0);
}
