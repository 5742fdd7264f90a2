//! Tests of processes without marks: what windows show, and what they do not.

use crate::support::watched;

use memctl_analysis::judge::judged;
use memctl_model::{Boundary, FindingKind, Gap, Remedy, Sample, Severity};
use watched::{KIB, MIB, Process, Row, frame, torch};

const WEIGHTS: u32 = 1;
const CACHE: u32 = 2;
const WORK: u32 = 3;

/// A server: its weights, a cache that `handle` fills, and the memory of requests while they are served.
fn server() -> Process {
    Process::new(
        0,
        &[
            vec![torch("to", "nn/modules/module.py"), frame("load", "/srv/serve.py", 10)],
            vec![
                frame("update", "/opt/lib/site-packages/transformers/cache_utils.py", 80),
                torch("Module._call_impl", "nn/modules/module.py"),
                frame("handle", "/srv/serve.py", 31),
                frame("main", "/srv/serve.py", 50),
            ],
            vec![torch("forward", "nn/modules/linear.py"), frame("handle", "/srv/serve.py", 30)],
        ],
    )
}

/// The live memory at the end of a window: `entries` of the cache, and the request under way.
fn rows(window: u64, entries: u64) -> Vec<Row> {
    let under_way = window % 3;
    vec![
        (WEIGHTS, None, 200, 400 * MIB),
        (CACHE, None, entries * 4, entries * 512 * KIB),
        (WORK, None, 5 + under_way, (5 + under_way) * 256 * KIB),
    ]
}

/// Number of requests served up to a window: between one and six per window, without a rhythm.
fn served(window: u64) -> u64 {
    (0..window).map(|window| 1 + (window.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % 6).sum()
}

#[test]
fn a_cache_of_a_serving_loop_that_keeps_everything_is_told_within_two_minutes() {
    let mut process = server();
    let mut warned = None;
    for window in 0..180 {
        process.window(&rows(window, served(window)));
        if warned.is_none() && process.warns() {
            warned = Some(window);
        }
    }
    assert!(warned.is_some_and(|window| (30..=120).contains(&window)), "{warned:?}");
    let found = process.judge();
    assert_eq!(found.len(), 1, "{found:#?}");
    let leak = &found[0];
    assert_eq!((leak.kind, leak.site.as_ref().map(|site| site.line)), (FindingKind::Leak, Some(31)));
    assert_eq!(leak.first_seen.boundary, Some(Boundary::WindowEnd));
    assert!(leak.title.contains(" per minute on rank 0, allocated in handle (serve.py:31)"), "{}", leak.title);
    let truth = served(180) as f64 * 512.0 * 1_024.0 / 3.0;
    let rate = leak.bytes_per_minute.unwrap();
    assert!(
        (0.85..1.15).contains(&(rate.value / truth)) && rate.low <= truth && truth <= rate.high,
        "{rate:?}, {truth}"
    );
}

#[test]
fn a_cache_that_fills_and_then_drops_the_oldest_is_quiet() {
    for capacity in [20, 60, 150] {
        let mut process = server();
        for window in 0..300 {
            process.window(&rows(window, served(window).min(capacity)));
            assert!(!process.warns(), "{capacity} entries, window {window}: {:?}", process.judge());
        }
        assert_eq!(process.judge(), [], "{capacity} entries");
    }
}

#[test]
fn weights_that_are_loaded_for_two_minutes_are_no_leak() {
    let mut process = server();
    for window in 0..120 {
        let loaded = vec![(WEIGHTS, None, window * 4, window * 40 * MIB)];
        // One block per six events stays.
        process.boundary(Boundary::WindowEnd, 1.0, 8, &loaded);
        assert!(!process.warns(), "window {window}: {:?}", process.judge());
    }
    for window in 0..120 {
        let mut rows = rows(window, 0);
        rows[0] = (WEIGHTS, None, 480, 4_800 * MIB);
        process.window(&rows);
        assert!(!process.warns(), "serving for {window} windows: {:?}", process.judge());
    }
    assert_eq!(process.judge(), []);
}

/// The steep part of a cache that fills may be during the loading of the model, and the rest then looks even.
#[test]
fn a_cache_that_filled_while_the_model_was_loaded_is_quiet() {
    let mut process = server();
    for window in 0..150_u64 {
        let entries = if window < 30 { window } else { 30 + (window - 30) / 9 };
        let weights = (WEIGHTS, None, 200 * window.min(30), 400 * MIB * window.min(30));
        process.window(&[weights, (CACHE, None, entries, entries * 512 * KIB), (WORK, None, 5, 5 * 256 * KIB)]);
        assert!(!process.warns(), "window {window}: {:?}", process.judge());
    }
}

#[test]
fn an_idle_hour_is_neither_an_end_nor_a_slowing_down() {
    let mut process = server();
    for window in 0..100 {
        process.window(&rows(window, window));
    }
    let before = process.judge();
    assert_eq!(before[0].severity, Severity::Warning);
    for _ in 0..360 {
        process.boundary(Boundary::WindowEnd, 10.0, 0, &rows(99, 99));
    }
    assert_eq!(process.judge().len(), 1, "what is kept is still there");
    for window in 100..140 {
        process.window(&rows(window, window));
    }
    assert!(process.warns());
}

#[test]
fn where_steps_go_on_windows_between_them_say_nothing() {
    let mut process = server();
    for step in 0..40_u64 {
        for window in 0..8 {
            // Memory grows within each long step and is freed at the step's end.
            process.window(&rows(window, window));
        }
        process.step(&rows(step, 0));
        assert!(!process.warns(), "step {step}");
        assert!(step < 5 || process.judge().is_empty(), "step {step}");
    }
}

#[test]
fn steps_that_cease_leave_the_word_to_windows() {
    let mut process = server();
    for step in 0..50 {
        process.step(&rows(step, 0));
    }
    for window in 0..200 {
        process.window(&rows(window, window));
    }
    assert!(process.warns(), "{:?}", process.judge());
}

#[test]
fn of_counters_alone_growth_is_told_without_a_line() {
    let mut process = server();
    for second in 0..200_u64 {
        process.watch.sample(&Sample {
            time_ns: process.time_ns + second * 1_000_000_000,
            allocated_bytes: Some(400 * MIB + second * 3 * MIB + (second % 2) * MIB),
            reserved_bytes: Some(2_048 * MIB),
            ..Sample::default()
        });
    }
    let found = process.judge();
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{found:#?}");
    assert_eq!((found[0].kind, &found[0].site), (FindingKind::Leak, &None));
    assert!(found[0].title.contains("only counters were recorded"), "{}", found[0].title);
    let (_, gaps) = judged(&[&process.watch]);
    assert!(gaps.iter().any(|gap| gap.gap == Gap::Part && gap.reason.contains("only the allocator's counters")));
}

#[test]
fn a_process_that_has_freed_everything_lacks_no_events() {
    let mut process = server();
    process.epoch_end(&[]);
    let (_, gaps) = judged(&[&process.watch]);
    assert!(!gaps.iter().any(|gap| gap.gap == Gap::Part && gap.reason.contains("line of code")), "{gaps:?}");
    // Only counters were recorded: no row shows where the memory belongs.
    let mut table = process.table(Boundary::EpochEnd, &[]);
    table.counters.allocated_bytes = MIB;
    process.watch.table(&table);
    let (_, gaps) = judged(&[&process.watch]);
    assert!(gaps.iter().any(|gap| gap.gap == Gap::Part && gap.reason.contains("line of code")), "{gaps:?}");
}

#[test]
fn counters_at_epoch_ends_are_judged_where_no_events_come() {
    let mut process = server();
    for epoch in 0..8_u64 {
        for step in 0..20_u64 {
            let mut table = process.table(Boundary::StepEnd, &[]);
            table.counters.allocated_bytes = (100 + epoch * 20 + step) * MIB;
            table.at_event = 0;
            process.watch.table(&table);
            process.step += 1;
            process.time_ns += 1_000_000_000;
        }
        let mut table = process.table(Boundary::EpochEnd, &[]);
        table.counters.allocated_bytes = (120 + epoch * 20) * MIB;
        process.watch.table(&table);
        process.epoch += 1;
    }
    let found = process.judge();
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::Leak), "{found:#?}");
    assert_eq!(found[0].bytes_per_epoch.map(|rate| rate.value), Some((20 * MIB) as f64));
}

#[test]
fn what_could_not_be_judged_is_said_with_what_to_do() {
    let mut process = server();
    process.step(&rows(0, 0));
    process.epoch_end(&rows(0, 0));
    let (judged_, gaps) = judged(&[&process.watch]);
    assert_eq!((judged_.epoch_ends, judged_.steps, judged_.windows), (1, 1, 0));
    assert!(judged_.kinds.iter().all(|judged| !judged.kind.is_leak()), "{judged_:?}");
    let leak = gaps.iter().find(|gap| gap.decides()).unwrap();
    assert_eq!(leak.reason, "needs 30 steps or 3 epoch ends, found 1 step and 1 epoch end");
    assert_eq!(leak.remedy, Remedy::MarkSteps);
    for window in 0..60 {
        process.window(&rows(window, 0));
    }
    let (judged_, gaps) = judged(&[&process.watch]);
    assert!(!gaps.iter().any(memctl_model::NotJudged::decides), "{gaps:?}");
    let over = judged_.kinds.iter().find(|judged| judged.kind == FindingKind::Leak).map(|it| it.boundaries.clone());
    assert_eq!(over, Some(vec![Boundary::WindowEnd]));
    let (_, gaps) = judged(&[]);
    assert!(gaps[0].decides() && gaps[0].reason.contains("nothing was recorded"));
}

#[test]
fn a_history_that_is_replaced_by_a_longer_one_stays_told() {
    let mut process = server();
    let mut unreported = Vec::new();
    for window in 0..600_u64 {
        let mut rows = rows(window, 0);
        // Some windows end while both the old and the new block are live.
        let both = if window % 37 == 36 { 2 } else { 1 };
        rows[1] = (CACHE, None, both, (served(window) + 1) * 32 * KIB * both);
        process.window(&rows);
        if window % 20 == 0 && window >= 120 && !process.warns() {
            unreported.push(window);
        }
    }
    assert_eq!(unreported, [0_u64; 0], "no report after so many windows");
    assert_eq!(process.judge()[0].pattern, Some(memctl_model::Pattern::ReplacedByLarger));
}
