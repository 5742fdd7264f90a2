//! Snapshots that people published, none of which holds a second step: no loop within their one pass or step is taken for the
//! training's, no window of it is compared with another, and nothing is warned of.

use std::path::{Path, PathBuf};

use memctl_model::MarkKind;
use memctl_snapshot::{FoundBoundaries, load};
use memctl_tests::{memctl, run, run_json};

const NAMES: [&str; 5] = ["forward_only", "forward_only_mixed", "inference", "notebook_cell", "one_full_step"];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/snapshots").join(name).join("rank0.pickle.zst")
}

#[test]
fn none_has_steps() {
    for name in NAMES {
        let recording = load(&file(name), &mut |_| {}).unwrap();
        assert_eq!(recording.found, FoundBoundaries::default(), "{name}");
        let ends = recording.marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_))).count();
        assert_eq!(ends, 1, "{name}: the whole of it is one step");
        assert!(recording.events() > 3_000, "{name}");
    }
}

#[test]
fn none_is_warned_of() {
    let store = tempfile::tempdir().unwrap();
    for name in NAMES {
        run(memctl().args(["import", "-q", "--job", name, "--data-dir"]).arg(store.path()).arg(file(name)));
        let report = run_json(memctl().args(["query", "-o", "json", "--job", name, "--data-dir"]).arg(store.path()));
        let findings = report["findings"].as_array().expect("findings");
        assert!(findings.iter().all(|finding| finding["severity"] == "info"), "{name}: {findings:#?}");
        assert_eq!(report["completeness"]["exact"], true, "{name}");
        assert_eq!(report["ranks"][0]["steps"], 1, "{name}");
    }
}
