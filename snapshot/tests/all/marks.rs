//! Tests of marks from annotations: epochs, steps, phases and regions, in every way in which loops mark them.

use crate::pickle;

use memctl_model::{Event, Mark, MarkKind, Phase};
use memctl_snapshot::{HELD_BYTES_MAX, load_from, mark_precedes};
use pickle::*;

/// The marks of a recording with events at 100 and 200 µs, as `name@µs`.
fn marks(annotations: &[(&str, &str, i64)]) -> Vec<String> {
    let annotations = annotations.iter().map(|&(name, stage, time)| annotation(name, stage, time)).collect();
    let whole = snapshot(vec![event("alloc", 1, 1, 100), event("alloc", 2, 1, 200)], annotations);
    let recording = load_from(&dumps(&whole, Style::Python4)[..], HELD_BYTES_MAX, &mut |_| {}).unwrap();
    assert!(recording.marks.is_sorted_by_key(|mark| mark.time_ns));
    assert!(recording.started_ns <= 100_000 && recording.ended_ns >= 200_000);
    recording.marks.iter().map(|mark| format!("{}@{}", shown(&mark.kind), mark.time_ns / 1000)).collect()
}

fn shown(kind: &MarkKind) -> String {
    match kind {
        MarkKind::EpochBegin(n) => format!("+e{n}"),
        MarkKind::EpochEnd(n) => format!("-e{n}"),
        MarkKind::StepBegin(n) => format!("+s{n}"),
        MarkKind::StepEnd(n) => format!("-s{n}"),
        MarkKind::PhaseBegin(phase) => format!("+{}", phase.name()),
        MarkKind::PhaseEnd(phase) => format!("-{}", phase.name()),
        MarkKind::RegionBegin(name) => format!("+[{name}]"),
        MarkKind::RegionEnd(name) => format!("-[{name}]"),
        MarkKind::WindowEnd(window) => format!("window {window} ends"),
        MarkKind::Note(note) => format!("note {note}"),
    }
}

#[test]
fn nothing_told_is_one_step_of_one_epoch() {
    assert_eq!(marks(&[]), ["+e0@100", "+s0@100", "-s0@200", "-e0@200"]);
    assert_eq!(
        marks(&[("nccl:all_reduce", "START", 50), ("nccl:all_reduce", "END", 120)]),
        ["+e0@50", "+[nccl:all_reduce]@50", "+s0@100", "-[nccl:all_reduce]@120", "-s0@200", "-e0@200"]
    );
}

#[test]
fn epochs_and_steps_by_name() {
    let listed = marks(&[
        ("epoch#3", "START", 90),
        ("step#7", "START", 90),
        ("ProfilerStep#1", "START", 95),
        ("ProfilerStep#1", "END", 98),
        ("step#7", "END", 150),
        ("epoch#3", "END", 150),
    ]);
    let expected = ["+e3@90", "+s7@90", "+[ProfilerStep#1]@95", "-[ProfilerStep#1]@98", "-s7@150", "-e3@150"];
    assert_eq!(listed, expected);
}

#[test]
fn steps_without_epochs_get_one_around_all() {
    let listed = marks(&[("ProfilerStep#4", "START", 110), ("ProfilerStep#4", "END", 190)]);
    assert_eq!(listed, ["+e0@100", "+s4@110", "-s4@190", "-e0@200"]);
}

#[test]
fn epochs_alone_have_no_steps() {
    assert_eq!(marks(&[("epoch#0", "START", 90), ("epoch#0", "END", 210)]), ["+e0@90", "-e0@210"]);
}

#[test]
fn the_optimizer_tells_steps_where_nothing_else_does() {
    let optimizer = "Optimizer.step#AdamW.step";
    let listed = marks(&[
        (optimizer, "START", 120),
        (optimizer, "END", 130),
        (optimizer, "START", 150),
        (optimizer, "END", 160),
    ]);
    let expected = [
        "+e0@100",
        "+s0@100",
        "+optimizer@120",
        "-optimizer@130",
        "-s0@130",
        "+s1@130",
        "+optimizer@150",
        "-optimizer@160",
        "-s1@160",
        "-e0@200",
    ];
    assert_eq!(listed, expected);
}

#[test]
fn a_step_of_the_optimizer_does_not_reach_into_another_epoch() {
    let optimizer = "Optimizer.step#SGD.step";
    let listed = marks(&[
        ("epoch#0", "START", 100),
        (optimizer, "START", 110),
        (optimizer, "END", 120),
        ("epoch#0", "END", 130),
        ("epoch#1", "START", 140),
        (optimizer, "START", 150),
        (optimizer, "END", 160),
    ]);
    let steps: Vec<_> = listed.iter().filter(|mark| mark[1..].starts_with('s')).collect();
    assert_eq!(steps, ["+s0@100", "-s0@120", "+s1@140", "-s1@160"]);
    assert_eq!(
        listed.iter().position(|mark| mark == "+e1@140"),
        listed.iter().position(|mark| mark == "+s1@140").map(|at| at - 1)
    );
}

#[test]
fn phases_by_name() {
    let phases = [
        ("train", "train"),
        ("forward", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("backward", "backward"),
        ("validate", "eval"),
        ("validation", "eval"),
        ("evaluation", "eval"),
        ("eval_loop", "eval"),
        ("Optimizer.step#SGD.step", "optimizer"),
        ("optimizer", "optimizer"),
    ];
    for (name, phase) in phases {
        let listed =
            marks(&[("step#0", "START", 100), (name, "START", 110), (name, "END", 120), ("step#0", "END", 130)]);
        assert_eq!(listed[2..4], [format!("+{phase}@110"), format!("-{phase}@120")], "{name}");
    }
}

#[test]
fn what_was_under_way_begins_with_the_recording() {
    let listed = marks(&[
        ("inner", "END", 110),
        ("outer", "END", 115),
        ("forward", "END", 120),
        ("step#5", "END", 130),
        ("epoch#2", "END", 140),
        ("step#6", "START", 150),
    ]);
    assert_eq!(listed[..5], ["+e2@100", "+s5@100", "+forward@100", "+[outer]@100", "+[inner]@100"]);
    assert_eq!(listed.last().map(String::as_str), Some("+s6@150"), "what had not ended stays open");
}

#[test]
fn annotations_out_of_order_and_without_numbers() {
    let listed = marks(&[("step#0", "END", 130), ("epoch#x", "START", 105), ("step#0", "START", 110)]);
    assert_eq!(listed, ["+e0@100", "+[epoch#x]@105", "+s0@110", "-s0@130", "-e0@200"]);
}

#[test]
fn ties_go_to_the_range() {
    let event = Event { time_ns: 10, ..Event::default() };
    let at = |time_ns, kind| mark_precedes(&Mark { time_ns, kind }, &event);
    assert!(at(10, MarkKind::StepBegin(0)) && at(10, MarkKind::PhaseBegin(Phase::Train)));
    assert!(!at(10, MarkKind::StepEnd(0)) && !at(10, MarkKind::RegionEnd("x".into())));
    assert!(at(9, MarkKind::StepEnd(0)) && !at(11, MarkKind::StepBegin(0)));
}
