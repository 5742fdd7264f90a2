//! Over HTTP: settings replayed by the daemon are those that `memctl what-if` prints, other sizes those of `memctl
//! fit`, and the parts of a peak and of a boundary sum to the allocated bytes.

use std::path::Path;

use memctl_tests::{memctl, run, run_json};
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
    // The report, which the page has as well, contains the recording's retry counters.
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
fn a_curve_of_sizes_has_the_figures_of_the_command_line() {
    let home = tempfile::tempdir().unwrap();
    let (daemon, port) = served(home.path(), &[]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/data/fit_resnet50_amp_b4/rank0.pickle.zst");
    run(memctl().args(["import", "-q", "--daemon", &daemon.url, "--job", "resnet50"]).arg(file));
    let shown = |asked: &str| json(&get(&port, &format!("/api/v1/jobs/resnet50/fit?rank=0&size=4{asked}")));
    let plain = shown("");
    let sizes = |answer: &Value| -> Vec<u64> {
        answer["at"].as_array().unwrap().iter().map(|at| at["size"].as_u64().unwrap()).collect()
    };
    assert_eq!(sizes(&plain), [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32]);
    assert_eq!((&plain["largest_that_fits"], &plain["at"][0]["fits"]), (&Value::Null, &Value::Null));
    let limited = shown("&limit=1073741824");
    let largest = limited["largest_that_fits"].as_u64().unwrap();
    assert!(sizes(&limited).contains(&largest) && sizes(&limited).is_sorted(), "{largest}: {:?}", sizes(&limited));
    assert_eq!(shown("&limit=1073741824"), limited, "as it was kept");

    let at: Vec<String> = sizes(&limited).iter().map(u64::to_string).collect();
    let words = ["fit", "--job", "resnet50=4", "--device-memory", "1GiB", "--at", &at.join(","), "-o", "json", "-q"];
    let printed = run_json(memctl().args(words).args(["--daemon", &daemon.url]));
    for part in ["recordings", "scaled", "at", "device_memory_bytes", "largest_that_fits"] {
        assert_eq!(limited[part], printed[part], "{part}");
    }
    let (ours, theirs) = (limited["not_looked_at"].as_array().unwrap(), printed["not_looked_at"].as_array().unwrap());
    let (memory, others) = ours.split_last().unwrap();
    assert_eq!(others, &theirs[..theirs.len() - 1]);
    assert!(memory.as_str().unwrap().starts_with("Memory outside PyTorch's allocator"), "{memory}");
    assert!(limited["not_looked_at"].to_string().contains("weaker than two"));

    for asked in
        ["rank=0", "rank=0&size=0", "rank=0&size=x", "rank=0&size=99999999", "rank=0&size=4&limit=x", "rank=7&size=4"]
    {
        let answer = get(&port, &format!("/api/v1/jobs/resnet50/fit?{asked}"));
        assert_eq!(answer.status, 400, "{asked}: {}", answer.body);
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
