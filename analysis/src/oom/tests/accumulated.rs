//! Tests of causes and sentences where memory accumulated until a request failed.

use super::super::demand::{Line, Requests, Since};
use super::*;

fn line(line: u32, bytes: u64, blocks: u64, earlier_blocks: u64) -> Line {
    let site = Some(Frame { function: "forward".into(), file: "/home/me/model.py".into(), line });
    Line { site, bytes, blocks, each_bytes: Some(bytes / blocks), earlier_blocks }
}

fn accumulated(beyond_bytes: u64, since: Since) -> Demand {
    let lines = vec![line(12, 600 * MIB, 240, 3), line(11, 200 * MIB, 80, 1)];
    let accumulated = Accumulation {
        beyond_bytes,
        bytes: 800 * MIB,
        blocks: 320,
        since,
        in_evaluation: since == Since::StepEnd(49),
        saved_bytes: 800 * MIB,
        lines,
    };
    Demand { accumulated: Some(accumulated), requests: Some(Requests::Alike), asked_before: true, failed_before: false }
}

#[test]
fn memory_that_accumulated_beyond_the_free_memory_is_the_reason_and_not_fragmentation() {
    // 120 MiB are free in blocks of 4 MiB, and 780 MiB accumulated in the evaluation.
    let of = |beyond, since| {
        let demand = accumulated(beyond, since);
        explain(Facts { demand, step: None, ..facts(picture(15, 1), 20 * MIB, 0) })
    };
    let report = of(780 * MIB, Since::StepEnd(49));
    assert_eq!(report.cause, OomCause::Accumulation);
    let found = &findings(&[report], 1)[0];
    assert_eq!(
        found.title,
        "Out of memory on rank 0 in epoch 2: 800 MiB in 320 blocks accumulated since step 49 ended in the evaluation (phase `eval`), 600 MiB of them in 240 blocks of forward (model.py:12); then 20.0 MiB were requested in forward (model.py:12)"
    );
    assert!(
        found.explanation.starts_with(
            "240 blocks of 2.50 MiB each of forward (model.py:12) are live; in the earlier steps, this line had at most 3 at once. Rank 0 had "
        ),
        "{}",
        found.explanation
    );
    assert_eq!(
        found.advice,
        "Run the evaluation under torch.no_grad() (or torch.inference_mode()): 800 MiB are activations that are kept with their graph for a backward pass, which an evaluation does not need. Of the results, keep numbers (.item()) or copies on the host (.cpu())."
    );
    let few = of(100 * MIB, Since::StepEnd(49));
    assert_eq!(few.cause, OomCause::Fragmentation, "more was free than accumulated");
    // It is also the reason where nothing is free.
    let demand = accumulated(780 * MIB, Since::Steps(10));
    let full = explain(Facts { demand, input: Some(LARGEST), ..facts(picture(0, 70), 4 * MIB, 0) });
    let found = &findings(&[full], 1)[0];
    assert!(
        found.title.contains("800 MiB in 320 blocks of earlier steps accumulated since step 10, 600 MiB of them"),
        "{}",
        found.title
    );
    assert!(found.advice.starts_with("Find what keeps them from step to step"), "{}", found.advice);
    assert!(!found.explanation.contains("this one is the largest"), "an earlier step requested as much");
}

const LARGEST: Input = Input::Largest { steps: 8, least_bytes: MIB, most_bytes: MIB };

#[test]
fn a_suspected_leak_at_a_line_that_accumulated_is_the_reason() {
    let at = |since, leaked_bytes, site| {
        let demand = accumulated(700 * MIB, since);
        let mut reports = [explain(Facts { demand, ..facts(picture(15, 1), 20 * MIB, 0) })];
        // It holds 16 % of the memory in use.
        let mut found = vec![leak(leaked_bytes, Severity::Info, site)];
        outcome::blame(&mut reports, &found);
        found.extend(findings(&reports, 1));
        outcome::tell(&mut found, &reports, 1);
        (reports[0].cause, found)
    };
    let (cause, found) = at(Since::Steps(10), 200 * MIB, frame());
    assert_eq!((cause, found.len()), (OomCause::Leak, 1));
    assert_eq!((found[0].severity, found[0].filled_device), (Severity::Critical, true));
    assert!(found[0].explanation.contains("live memory rose by 700 MiB since step 10"), "{}", found[0].explanation);
    let phase = Since::StepEnd(49);
    assert_eq!(at(phase, 200 * MIB, frame()).0, OomCause::Accumulation, "the leak is not what came in this phase");
    // A leak at a line of another name is the reason if it is most of what accumulated.
    let elsewhere = Stack { frames: vec![Frame { function: "keep".into(), file: "a.py".into(), line: 1 }] };
    assert_eq!(at(Since::Steps(10), 500 * MIB, elsewhere.clone()).0, OomCause::Leak);
    assert_eq!(at(Since::Steps(10), 330 * MIB, elsewhere.clone()).0, OomCause::Accumulation);
    assert_eq!(at(phase, 500 * MIB, elsewhere).0, OomCause::Accumulation);
}
