//! Published snapshots, none of which has a second step, and small snapshots with a known number of steps or calls. No
//! loop within a pass or step is taken for the training's loop, no windows within it are compared, there is no warning,
//! and existing steps are found.

use std::path::{Path, PathBuf};

use memctl_model::MarkKind;
use memctl_snapshot::{FoundBoundaries, load};
use memctl_tests::{memctl, run, run_json};

/// The snapshots with the expected number of steps or calls.
const PUBLISHED: [(&str, u64); 5] =
    [("forward_only", 0), ("forward_only_mixed", 0), ("inference", 0), ("notebook_cell", 0), ("one_full_step", 0)];

/// Recorded with `bench/live/architectures.py`.
const RECORDED: [(&str, u64); 6] = [
    ("blocks-forward", 0),
    ("diffusion-few_calls", 32),
    ("gpt2-three_steps-sgd", 3),
    ("lightning-three_steps-adamw", 3),
    ("llama-inference", 12),
    ("recurrent-ten_steps-by_hand", 10),
];

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/snapshots").join(name).join("rank0.pickle.zst")
}

#[test]
fn steps_are_found_only_where_steps_are() {
    for (name, steps) in PUBLISHED.into_iter().chain(RECORDED) {
        let recording = load(&file(name), &mut |_| {}).unwrap();
        let FoundBoundaries { steps: found, epochs, windows, .. } = recording.found;
        assert_eq!((found, epochs, windows), (steps, 0, 0), "{name}");
        let ends = recording.marks.iter().filter(|mark| matches!(mark.kind, MarkKind::StepEnd(_))).count() as u64;
        assert_eq!(ends, steps.max(1), "{name}: where none is found the whole of it is one step");
        assert!(recording.events() > 300, "{name}");
    }
}

#[test]
fn none_is_warned_of() {
    let store = tempfile::tempdir().unwrap();
    for (name, steps) in PUBLISHED.into_iter().chain(RECORDED) {
        run(memctl().args(["import", "-q", "--job", name, "--data-dir"]).arg(store.path()).arg(file(name)));
        let report = run_json(memctl().args(["query", "-o", "json", "--job", name, "--data-dir"]).arg(store.path()));
        let findings = report["findings"].as_array().expect("findings");
        assert!(findings.iter().all(|finding| finding["severity"] == "info"), "{name}: {findings:#?}");
        assert_eq!(report["completeness"]["exact"], true, "{name}");
        assert_eq!(report["ranks"][0]["steps"], steps.max(1), "{name}");
    }
}
