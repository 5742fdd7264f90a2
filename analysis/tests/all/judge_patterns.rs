//! Tests of the patterns of leaking code: kind, pattern, line and figures of each.

use crate::support::watched;

use memctl_model::{Boundary, EvidenceValue, Finding, FindingKind, Frame, Pattern, Phase, PoolRow, Severity, StackId};
use watched::{GIB, KIB, MIB, Process, Row, frame, torch};

fn main_frame(line: u32) -> Frame {
    frame("main", "/home/me/train.py", line)
}

/// Stacks of a hook on three layers, and of the layers themselves.
fn hooked() -> Vec<Vec<Frame>> {
    let layer = |line: u32| {
        vec![
            torch("Module._call_impl", "nn/modules/module.py"),
            frame("forward", "/home/me/model.py", line),
            main_frame(30),
        ]
    };
    let hook = |line: u32| [vec![frame("keep", "/home/me/train.py", 12)], layer(line)].concat();
    let linear = |line: u32| [vec![torch("Linear.forward", "nn/modules/linear.py")], layer(line)].concat();
    vec![hook(20), hook(21), hook(22), linear(20), linear(21), linear(22)]
}

fn evidence(finding: &Finding, name: &str) -> Option<u64> {
    finding.evidence.iter().find_map(|(known, value)| match value {
        EvidenceValue::Count(count) if known == name => Some(*count),
        _ => None,
    })
}

#[test]
fn a_hook_that_is_registered_again_every_epoch_is_no_graph() {
    let mut process = Process::new(0, &hooked());
    let mut kept = 0;
    for epoch in 0..8 {
        for _ in 0..10 {
            kept += 2 * (epoch + 1);
            let phase = Some(Phase::Forward);
            process.step(&[(1, phase, kept, kept * MIB), (2, phase, kept, kept * MIB), (3, phase, kept, kept * MIB)]);
        }
        process.epoch_end(&[(1, Some(Phase::Forward), kept, kept * MIB)]);
    }
    let found = process.judge();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].kind, found[0].pattern), (FindingKind::Leak, Some(Pattern::HooksPileUp)));
    assert_eq!(found[0].site.as_ref().map(|site| (&*site.function, site.line)), Some(("keep", 12)));
    assert!(found[0].title.contains("a hook is registered repeatedly"), "{}", found[0].title);
    assert!(found[0].explanation.contains("6 blocks per step in epoch 0, 48 in epoch 7"), "{}", found[0].explanation);
    assert!(found[0].advice.contains("handle.remove()"), "{}", found[0].advice);
}

/// Stacks of an evaluation: the activation and the linear layers of a model, the loss, the labels.
fn evaluated() -> Vec<Vec<Frame>> {
    let validate = |line: u32| vec![frame("validate", "/home/me/train.py", line), main_frame(90)];
    let layer = |layer: Frame| {
        let model = [
            torch("Sequential.forward", "nn/modules/container.py"),
            torch("Module._call_impl", "nn/modules/module.py"),
        ];
        [vec![layer], model.to_vec(), validate(50)].concat()
    };
    let relu = layer(torch("relu", "nn/functional.py"));
    vec![relu, layer(torch("Linear.forward", "nn/modules/linear.py")), validate(50), validate(52)]
}

/// The finding if every epoch's evaluation of three batches keeps this many blocks of each stack per batch.
fn evaluating(a_batch: [u64; 4]) -> Finding {
    let mut process = Process::new(0, &evaluated());
    for epoch in 0..8_u64 {
        let rows = |epochs: u64| -> Vec<Row> {
            let kept = (1..).zip(a_batch).map(|(stack, blocks)| (stack, blocks * 3 * epochs));
            // The workspace of the first product stays as well.
            let workspace = (2, Some(Phase::Forward), 1, 32 * MIB);
            let kept =
                kept.filter(|kept| kept.1 > 0).map(|(stack, blocks)| (stack, Some(Phase::Eval), blocks, blocks * MIB));
            kept.chain([workspace]).collect()
        };
        for _ in 0..6 {
            process.step(&rows(epoch));
        }
        process.epoch_end(&rows(epoch + 1));
    }
    let mut found = process.judge();
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn a_graph_of_linear_layers_and_one_activation_is_told_from_what_is_collected() {
    // Two activations; then the input, a block that the loss keeps, and the loss.
    let graph = evaluating([2, 0, 3, 0]);
    assert_eq!(graph.kind, FindingKind::EvalGraph, "{graph:#?}");
    assert_eq!(graph.site.as_ref().map(|site| (&*site.function, site.line)), Some(("validate", 50)));
    // The same with the labels on another line.
    assert_eq!(evaluating([4, 0, 2, 1]).kind, FindingKind::EvalGraph);
    // Outputs and labels; then also losses from another line.
    assert_eq!(evaluating([0, 1, 0, 1]).kind, FindingKind::Leak);
    assert_eq!(evaluating([0, 1, 1, 1]).kind, FindingKind::Leak);
    // Features of the last layer (an activation) or of all layers, and labels.
    assert_eq!(evaluating([1, 0, 0, 1]).kind, FindingKind::Leak);
    assert_eq!(evaluating([5, 0, 0, 1]).kind, FindingKind::Leak);
}

#[test]
fn growth_of_optimizer_state_is_named_and_its_cause_is_open() {
    let adam = vec![
        torch("Adam._init_group", "optim/adam.py"),
        torch("Adam.step", "optim/adam.py"),
        frame("train", "/home/me/train.py", 44),
    ];
    let mut process = Process::new(0, &[adam]);
    for epoch in 0..7_u64 {
        for _ in 0..5 {
            process.step(&[(1, Some(Phase::Optimizer), (epoch + 1) * 40, (epoch + 1) * 160 * MIB)]);
        }
        process.epoch_end(&[(1, Some(Phase::Optimizer), (epoch + 1) * 40, (epoch + 1) * 160 * MIB)]);
    }
    let found = process.judge();
    assert!(found.len() == 1 && found[0].severity >= Severity::Warning, "{found:#?}");
    assert_eq!((found[0].kind, found[0].pattern), (FindingKind::Leak, Some(Pattern::OptimizerState)));
    assert!(found[0].title.ends_with("it is optimizer state"), "{}", found[0].title);
    let why = &found[0].explanation;
    assert!(why.contains("add_param_group") && why.contains("a new optimizer is created"), "both: {why}");
    assert!(!found[0].advice.contains(".cpu()"), "{}", found[0].advice);
}

#[test]
fn private_pools_that_are_captured_for_each_length_are_told_at_the_line_that_captures() {
    let capture = vec![torch("capture_begin", "cuda/graphs.py"), frame("capture", "/srv/serve.py", 77)];
    let serve = vec![frame("handle", "/srv/serve.py", 30)];
    let mut process = Process::new(0, &[capture, serve]);
    for window in 0..120_u64 {
        let graphs = window / 2;
        process.pools = vec![PoolRow { stack: StackId(1), segments: graphs * 2, bytes: graphs * 120 * MIB }];
        process.pools.retain(|pool| pool.segments > 0);
        process.window(&[(2, None, 3 + window % 2, 6 * MIB)]);
    }
    let found = process.judge();
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::PrivatePools), "{found:#?}");
    assert!(found[0].severity >= Severity::Warning, "{found:#?}");
    assert_eq!(found[0].pattern, Some(Pattern::GraphsCaptured));
    assert_eq!(found[0].site.as_ref().map(|site| site.line), Some(77));
    assert!(
        found[0].title.starts_with("Private pools grow 3.52 GiB per minute on rank 0, captured in capture"),
        "{}",
        found[0].title
    );
    // A number of graphs up to the number of lengths is not a leak.
    for window in 0..120 {
        process.window(&[(2, None, 3 + window % 2, 6 * MIB)]);
    }
    assert_eq!(process.judge(), []);
}

#[test]
fn what_leaks_is_told_apart_from_the_workspace_beside_it() {
    let mut process = Process::new(0, &[vec![frame("work", "/home/me/train.py", 9)]]);
    for step in 0..100_u64 {
        process.step(&[(1, None, 1 + step, 32 * MIB + step * 128 * KIB)]);
        if (step + 1) % 10 == 0 {
            process.epoch_end(&[(1, None, 1 + step, 32 * MIB + step * 128 * KIB)]);
        }
    }
    let found = process.judge();
    assert_eq!((found[0].live_bytes, found[0].live_blocks), (Some(99 * 128 * KIB), Some(99)));
    assert_eq!(evidence(&found[0], "beside_bytes"), Some(32 * MIB));
    assert!(found[0].explanation.contains("Another 32.0 MiB live there"), "{}", found[0].explanation);
}

#[test]
fn a_suspicion_is_marked_and_tells_no_time() {
    let mut process = Process::new(0, &[vec![frame("work", "/home/me/train.py", 9)]]);
    process.watch.set_device_total(64 * MIB);
    for step in 0..7_u64 {
        process.step(&[(1, None, step + 1, (step + 1) * MIB)]);
    }
    let found = process.judge();
    assert_eq!((found.len(), found[0].severity), (1, Severity::Info), "{found:#?}");
    assert_eq!((found[0].time_to_oom_seconds, found[0].epochs_to_oom), (None, None));
    assert!(found[0].is_suspected);
}

/// Steps of a second with 4 MiB each, and an evaluation of 60 seconds after every 20 steps.
fn with_evaluations(steps: u64, device_bytes: u64) -> Process {
    let mut process = Process::new(0, &[vec![frame("work", "/home/me/train.py", 9)], vec![main_frame(1)]]);
    process.watch.set_device_total(device_bytes);
    process.peak_bytes = 300 * MIB;
    let rows = |step: u64| -> Vec<Row> { vec![(1, None, step + 1, (step + 1) * 4 * MIB), (2, None, 9, 200 * MIB)] };
    for step in 0..steps {
        process.step(&rows(step));
        if (step + 1) % 20 == 0 {
            process.time_ns += 60_000_000_000;
            process.epoch_end(&rows(step));
        }
    }
    process
}

#[test]
fn the_time_that_is_left_counts_evaluations_and_what_a_step_needs() {
    let device = 1_500 * MIB;
    // 1,000 MiB remain to be filled: 250 steps of a second, and 12 evaluations of a minute.
    let truth = |steps: u64| (250.0 - steps as f64) * 4.0;
    for steps in [100, 125, 150] {
        let process = with_evaluations(steps, device);
        let found = process.judge();
        let leak = found.iter().find(|finding| finding.kind == FindingKind::Leak).unwrap();
        let seconds = leak.time_to_oom_seconds.unwrap();
        let ratio = seconds / truth(steps);
        assert!((0.8..1.25).contains(&ratio), "after {steps} steps {seconds} s, {ratio} of the truth");
        let minute = leak.bytes_per_minute.unwrap();
        assert!((50.0..72.0).contains(&(minute.value / MIB as f64)), "{minute:?}");
    }
}

#[test]
fn a_device_that_is_nearly_full_is_told_without_growth() {
    for (device, severity) in
        [(1_020 * MIB, Some(Severity::Info)), (1_005 * MIB, Some(Severity::Warning)), (2_000 * MIB, None)]
    {
        let mut process = Process::new(0, &[vec![main_frame(1)]]);
        process.watch.set_device_total(device);
        process.peak_bytes = 300 * MIB;
        for _ in 0..20 {
            process.step(&[(1, None, 9, 690 * MIB)]);
        }
        let found = process.judge();
        assert_eq!(
            found.iter().map(|finding| finding.kind).collect::<Vec<_>>(),
            [FindingKind::NearOom].repeat(severity.iter().count())
        );
        assert_eq!(found.first().map(|finding| finding.severity), severity, "{found:#?}");
    }
}

/// Epochs become faster while a run warms up. The epochs that are left follow from the growth per epoch all the same.
#[test]
fn epochs_left_are_the_memory_left_at_the_stated_growth() {
    let mut process = Process::new(0, &[vec![frame("work", "/home/me/train.py", 9)]]);
    for epoch in 0..12_u64 {
        let rows = [(1, None, epoch + 1, (epoch + 1) * 64 * MIB)];
        for _ in 0..5 {
            process.boundary(Boundary::StepEnd, if epoch < 4 { 10.0 } else { 1.0 }, 1_000, &rows);
            process.step += 1;
        }
        process.epoch_end(&rows);
    }
    let found = &process.judge()[0];
    let (left, rate) = (found.epochs_to_oom.expect("epochs"), found.bytes_per_epoch.expect("a rate").value);
    let bytes = (80 * GIB - 12 * 64 * MIB - process.peak_bytes) as f64;
    assert!((left * rate / bytes - 1.0).abs() < 0.001, "{left} epochs of {rate} bytes for {bytes}");
}

/// A cache whose keys are drawn at random from a finite set grows at every step, by less and less.
#[test]
fn growth_by_less_and_less_slows_down_and_even_growth_does_not() {
    let slows = |items: fn(u64) -> u64| {
        let mut process = Process::new(0, &[vec![frame("features", "/home/me/train.py", 9)]]);
        for step in 0..120_u64 {
            let kept: u64 = (0..=step).map(items).sum();
            process.step(&[(1, None, kept, kept * 64 * KIB)]);
            if step % 12 == 11 {
                process.epoch_end(&[(1, None, kept, kept * 64 * KIB)]);
            }
        }
        process.judge().first().map(|finding| finding.slows)
    };
    assert_eq!(slows(|step| (32.0 * (-(step as f64) / 40.0).exp()) as u64), Some(true));
    assert_eq!(slows(|_| 8), Some(false));
}
