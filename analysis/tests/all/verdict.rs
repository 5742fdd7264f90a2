//! Tests of the verdict's first sentence over hand-made processes: growth, growth that stopped, memory that comes and
//! goes, and too little data.
//!
//! Guarantees: each case has a counterpart that differs in one respect and has another verdict.
//!
//! (Over 400 lines: one kind of sentence after the other, all over the same made processes.)

use crate::support::watched;

use memctl_analysis::judge::{Activity, Courses, VerdictInputs, findings, judged, verdict};
use memctl_model::{Boundary, Cause, Finding, FindingKind, Frame, Severity, SiteRow, Verdict, VerdictKind};
use watched::{KIB, MIB, Process, frame};

const KEEP: u32 = 1;
const MODEL: u32 = 2;

fn stacks() -> Vec<Vec<Frame>> {
    vec![
        vec![frame("keep", "/home/user/train/metrics.py", 31), frame("main", "/home/user/train/train.py", 12)],
        vec![frame("forward", "/home/user/train/model.py", 40), frame("main", "/home/user/train/train.py", 10)],
    ]
}

/// Windows of a process in which one line holds this many megabytes at the end of each.
fn serving(windows: u64, megabytes: impl Fn(u64) -> u64) -> Process {
    let mut process = Process::new(0, &stacks());
    for window in 0..windows {
        let held = megabytes(window);
        process.window(&[(KEEP, None, held, held * MIB), (MODEL, None, 40, 400 * MIB)]);
    }
    process
}

/// A training with epochs of ten steps in which one line holds this many bytes after each step.
fn training(epochs: u64, bytes: impl Fn(u64, u64) -> u64) -> Process {
    let mut process = Process::new(0, &stacks());
    for epoch in 0..epochs {
        let mut held = 0;
        for step in 0..10 {
            held = bytes(epoch, step);
            process.step(&[(KEEP, None, held / (64 * KIB), held), (MODEL, None, 40, 400 * MIB)]);
        }
        process.epoch_end(&[(KEEP, None, held / (64 * KIB), held), (MODEL, None, 40, 400 * MIB)]);
    }
    process
}

fn of(process: &Process, activity: Activity, beside: Vec<Finding>) -> Verdict {
    let watches = [&process.watch];
    let mut found = findings(&watches, activity);
    found.extend(beside);
    let (judged, not_judged) = judged(&watches);
    let courses = Courses::of(&watches);
    verdict(&VerdictInputs {
        holders_allowed: true,
        courses: &courses,
        findings: &found,
        judged: &judged,
        not_judged: &not_judged,
        activity,
        failed: false,
    })
}

fn ended(process: &Process) -> Verdict {
    of(process, Activity::Ended, Vec::new())
}

#[test]
fn growth_whose_cause_is_open_begins_the_page() {
    let verdict = ended(&serving(40, |window| window * 8));
    assert_eq!((verdict.kind, verdict.cause), (VerdictKind::Growing, Some(Cause::Open)), "{verdict:?}");
    assert_eq!(verdict.site.as_ref().map(|site| &*site.function), Some("keep"));
    assert!(verdict.sentence.starts_with("Live memory has grown"), "{}", verdict.sentence);
    assert!(verdict.sentence.contains("It is a leak unless what holds it is bounded"), "{}", verdict.sentence);
    let grown = verdict.grown_bytes.unwrap_or(0);
    assert!((290 * MIB..=312 * MIB).contains(&grown), "of 312 MiB, without what came first: {grown}");
}

/// A list of a function that returned, or a list that is cleared at the end.
#[test]
fn what_the_end_of_the_recording_shows_was_given_back() {
    let shown = |at_end: Option<(u64, u64)>| {
        // The line has also made a workspace of one block.
        let mut process = Process::new(0, &stacks());
        for window in 0..40 {
            let blocks = 1 + window * 8;
            process.window(&[(KEEP, None, blocks, (400 + window * 8) * MIB), (MODEL, None, 40, 400 * MIB)]);
        }
        if let Some((blocks, megabytes)) = at_end {
            // The model was freed as well, which shows nothing about the growth.
            process.boundary(Boundary::End, 0.1, 10, &[(KEEP, None, blocks, megabytes * MIB)]);
        }
        let verdict = ended(&process);
        assert_eq!(verdict.kind, VerdictKind::Growing, "{verdict:?}");
        let says = |text: &str| (text.contains("not given back"), text.contains("given back only at the end"));
        for finding in findings(&[&process.watch], Activity::Ended) {
            assert_eq!(says(&finding.explanation), says(&verdict.sentence), "{}", finding.explanation);
        }
        says(&verdict.sentence)
    };
    assert_eq!(shown(Some((0, 0))), (false, true));
    assert_eq!(shown(Some((313, 712))), (true, false), "it is still there");
    assert_eq!(shown(None), (true, false), "the end was not seen");
    assert_eq!(shown(Some((312, 312))), (true, false), "the workspace was freed instead");
    assert_eq!(shown(Some((1, 400))), (false, true), "the workspace is still there");
}

#[test]
fn what_stopped_growing_has_levelled_off_and_is_no_leak() {
    let stops = |epoch: u64, step: u64| (epoch * 10 + step).min(90) * MIB;
    let verdict = ended(&training(15, stops));
    assert_eq!(verdict.kind, VerdictKind::LevelledOff, "{verdict:?}");
    assert!(verdict.sentence.contains("has not grown since"), "{}", verdict.sentence);
    let goes_on = ended(&training(15, |epoch, step| (epoch * 10 + step) * MIB));
    assert_eq!(goes_on.kind, VerdictKind::Growing, "{goes_on:?}");
}

/// A cache of 2 GiB whose keys become rarer: 3 % of its growth are in the last third, and this is a significant share
/// of the peak.
#[test]
fn what_grows_slowly_at_last_has_not_levelled_off() {
    let slowly = |late_kib: u64| {
        let held = move |epoch: u64, step: u64| {
            let at = epoch * 10 + step;
            (at.min(150) * 14 * 1024 + at.saturating_sub(150) * late_kib) * KIB
        };
        ended(&training(30, held)).kind
    };
    assert_eq!(slowly(600), VerdictKind::Growing);
    assert_eq!(slowly(100), VerdictKind::LevelledOff);
}

/// The series of a line that changed 640 times is thinned: its memory comes and goes for 3,000 steps.
#[test]
fn what_a_long_run_gained_is_exact_since_the_time_that_the_sentence_gives() {
    let early = |step: u64| if step < 3_000 { step / 30 % 3 } else { 0 };
    let held = |step: u64| (5 + early(step) + step.saturating_sub(3_000) / 37) * 3 * MIB;
    let (mut process, mut times) = (Process::new(0, &stacks()), Vec::new());
    for step in 0..23_000 {
        let bytes = held(step);
        process.step(&[(KEEP, None, bytes / (3 * MIB), bytes), (MODEL, None, 40, 400 * MIB)]);
        times.push(process.time_ns);
    }
    let verdict = ended(&process);
    assert_eq!(verdict.kind, VerdictKind::Growing, "{verdict:?}");
    let end_ns = *times.last().unwrap();
    let begun_ns = end_ns - (verdict.seconds.unwrap() * 1e9) as u64;
    let begun = times.iter().position(|time| time.abs_diff(begun_ns) <= 1_000).expect("it begins at a boundary");
    assert_eq!(verdict.grown_bytes, Some(held(22_999) - held(begun as u64)), "{begun}: {verdict:?}");
}

#[test]
fn what_is_given_back_with_each_epoch_is_released() {
    let verdict = ended(&training(8, |_, step| (step + 1) * 4 * MIB));
    assert_eq!(verdict.kind, VerdictKind::Released, "{verdict:?}");
    assert!(verdict.sentence.contains("and is given back"), "{}", verdict.sentence);
}

#[test]
fn a_few_kilobytes_an_epoch_are_neither_a_finding_nor_growth() {
    let mut process = Process::new(0, &stacks());
    for epoch in 0..12_u64 {
        // An epoch takes an hour, so the device will be full in centuries.
        process.boundary(memctl_model::Boundary::StepEnd, 3_600.0, 1_000, &[(MODEL, None, 40, 400 * MIB)]);
        process.epoch_end(&[(KEEP, None, epoch + 1, (epoch + 1) * 2_560), (MODEL, None, 40, 400 * MIB)]);
    }
    assert_eq!(process.judge().iter().filter(|finding| finding.severity >= Severity::Warning).count(), 0);
    assert_eq!(ended(&process).kind, VerdictKind::Steady, "{:?}", ended(&process));
}

#[test]
fn nothing_wrong_is_said_of_flat_memory_alone_and_what_else_is_wrong_comes_first() {
    let flat = training(8, |_, _| 64 * MIB);
    let verdict = ended(&flat);
    assert_eq!(verdict.kind, VerdictKind::Steady);
    assert!(verdict.sentence.starts_with("Nothing wrong was found: live memory was flat"), "{}", verdict.sentence);
    let lost = Finding {
        title: "Rank 3 was lost".to_owned(),
        ..Finding::new(FindingKind::RankLost, Severity::Warning, 1.0, vec![3])
    };
    let with_lost = of(&flat, Activity::Ended, vec![lost]);
    assert_eq!(with_lost.sentence, format!("Rank 3 was lost. Live memory was flat over the last {} of 80 steps.", 27));
    let running = of(&flat, Activity::Running, Vec::new());
    assert!(running.sentence.starts_with("Nothing wrong was found so far"), "{}", running.sentence);
}

#[test]
fn memory_that_goes_up_and_down_is_not_called_flat() {
    let swings = ended(&serving(120, |window| 50 + window * 7 % 40));
    assert_eq!(swings.kind, VerdictKind::Steady, "{swings:?}");
    let said = "Nothing wrong was found: live memory went up and down between 450 MiB and 489 MiB over the last 40 of 120 windows.";
    assert_eq!((swings.sentence.as_str(), swings.swing_bytes), (said, Some((450 * MIB, 489 * MIB))));
    let flat = ended(&serving(120, |window| 50 + window * 7 % 4));
    assert!(flat.sentence.contains("live memory was flat"), "{flat:?}");
    assert_eq!(flat.swing_bytes, None);
}

#[test]
fn what_the_first_step_makes_once_is_no_part_of_the_growth() {
    // The line that keeps the model's result also calls the model, which makes a workspace in the first step.
    let calls = |line: u32| frame("main", "/home/user/train/train.py", line);
    let stacks = vec![vec![calls(12)], vec![frame("forward", "/home/user/train/model.py", 40), calls(12)]];
    let mut process = Process::new(0, &stacks);
    for step in 1..=120_u64 {
        process.step(&[(1, None, step, step * 16 * KIB), (2, None, 1, 33 * MIB)]);
    }
    let verdict = ended(&process);
    assert_eq!((verdict.kind, verdict.grown_bytes), (VerdictKind::Growing, Some(119 * 16 * KIB)), "{verdict:?}");
}

#[test]
fn growth_at_two_lines_of_a_function_names_both() {
    let line = |line: u32| vec![frame("Trainer.step", "/home/user/train/train.py", line)];
    let mut process = Process::new(0, &[line(16), line(17)]);
    for step in 1..=120_u64 {
        process.step(&[(1, None, step, step * MIB), (2, None, step, step * MIB)]);
    }
    let verdict = ended(&process);
    assert!(verdict.sentence.contains("allocated in Trainer.step (train.py:16, 17)"), "{verdict:?}");
    let found = process.judge();
    assert_eq!((found.len(), found[0].lines.as_slice()), (1, [16, 17].as_slice()), "{found:?}");
}

#[test]
fn memory_that_only_rises_is_never_called_steady() {
    // Nothing is freed, as during the loading of a model.
    let loading = |windows: u64, is_over: bool| {
        let mut process = Process::new(0, &stacks());
        for window in 1..=windows {
            let rows = [(KEEP, None, window * 10, window * 10 * MIB)];
            process.boundary(memctl_model::Boundary::WindowEnd, 0.3, 15, &rows);
        }
        if is_over {
            process.boundary(memctl_model::Boundary::End, 0.1, 1, &[]);
        }
        process
    };
    let over = ended(&loading(52, true));
    assert_eq!((over.kind, over.site.as_ref().map(|site| site.line)), (VerdictKind::Growing, Some(31)), "{over:?}");
    let running = of(&loading(52, false), Activity::Running, Vec::new());
    assert_eq!(running.kind, VerdictKind::NotEnoughData, "{running:?}");
}

#[test]
fn too_little_says_so_unless_what_was_seen_grew() {
    assert_eq!(ended(&training(1, |_, _| 64 * MIB)).kind, VerdictKind::NotEnoughData);
    let failed = Finding {
        title: "Out of memory on rank 0".to_owned(),
        ..Finding::new(FindingKind::Oom, Severity::Critical, 1.0, vec![0])
    };
    let verdict = of(&training(1, |_, _| 64 * MIB), Activity::Ended, vec![failed]);
    assert_eq!((verdict.kind, verdict.sentence.as_str()), (VerdictKind::OutOfMemory, "Out of memory on rank 0."));
    let leak = Finding {
        title: "Live memory grows 1.00 MiB per step on rank 0".to_owned(),
        ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0])
    };
    let verdict = of(&training(1, |_, _| 64 * MIB), Activity::Ended, vec![leak.clone()]);
    let said = "Live memory grows 1.00 MiB per step on rank 0.";
    assert_eq!((verdict.kind, verdict.sentence.as_str()), (VerdictKind::Growing, said), "a leak that was found");
    let suspected = Finding { severity: Severity::Info, ..leak };
    let verdict = of(&training(1, |_, _| 64 * MIB), Activity::Ended, vec![suspected]);
    assert_eq!(verdict.kind, VerdictKind::NotEnoughData, "a suspicion is none");
}

#[test]
fn growth_of_which_no_line_is_known_is_a_fact_all_the_same() {
    let mut process = Process::new(0, &[]);
    for window in 0..40_u64 {
        // Each window has another line, so no single line grows.
        process.window(&[(window as u32 + 1, None, 1, (window + 1) * 8 * MIB), (100, None, 40, 400 * MIB)]);
    }
    let verdict = ended(&process);
    assert_eq!(verdict.kind, VerdictKind::Growing, "{verdict:?}");
}

#[test]
fn a_sum_that_rose_once_has_levelled_off() {
    // Each step has another line, so no single line grows: batches are larger from one step on.
    let run = |level: fn(u64) -> u64| {
        let mut process = Process::new(0, &[]);
        for step in 0..150_u64 {
            process.step(&[(step as u32 % 7 + 1, None, 1, level(step) * MIB), (100, None, 40, 100 * MIB)]);
        }
        ended(&process)
    };
    let once = run(|step| if step < 120 { 8 } else { 40 });
    assert_eq!(once.kind, VerdictKind::LevelledOff, "{once:?}");
    assert!(once.sentence.contains("until step 1"), "{}", once.sentence);
    assert_eq!(run(|step| 8 + step).kind, VerdictKind::Growing);
}

#[test]
fn peaks_that_rise_with_the_work_of_a_step_are_not_nothing() {
    // Each step frees all that it allocates, and allocates more than the step before.
    let run = |work: fn(u64) -> u64| {
        let mut process = Process::new(0, &[]);
        for step in 0..150_u64 {
            process.peak_bytes = work(step) * MIB;
            process.step(&[(100, None, 40, 100 * MIB)]);
        }
        ended(&process)
    };
    let rising = run(|step| 100 + 4 * step);
    assert_eq!((rising.kind, rising.cause), (VerdictKind::Growing, Some(Cause::Open)), "{rising:?}");
    assert!(rising.sentence.starts_with("The peak of a step rose from "), "{}", rising.sentence);
    // Of lengths that vary nothing is said; of one jump the figures, and no verdict.
    let varying = run(|step| 100 + step * 37 % 64);
    assert!(varying.kind == VerdictKind::Steady && !varying.sentence.contains("peak"), "{}", varying.sentence);
    let jump = run(|step| if step < 125 { 100 } else { 300 });
    assert!(jump.kind == VerdictKind::Steady && jump.sentence.contains("the peak of a step rose"), "{}", jump.sentence);
}

/// A ring that fills evenly and is then full, with blocks from another line each time; and a leak of few large pieces.
#[test]
fn a_sum_that_rose_evenly_and_is_flat_has_levelled_off() {
    let run = |held: fn(u64) -> u64| {
        let mut process = Process::new(0, &[]);
        for window in 0..81_u64 {
            process.window(&[(window as u32 + 1, None, 1, held(window) * MIB), (100, None, 40, 3 * MIB)]);
        }
        ended(&process).kind
    };
    assert_eq!(run(|window| 3 * window.min(60)), VerdictKind::LevelledOff);
    assert_eq!(run(|window| 3 * window), VerdictKind::Growing);
    assert_eq!(run(|window| window / 16 * 48), VerdictKind::Growing, "it rises every sixteenth window");
}

/// A list that is cleared after every third epoch, including the last one. In the counterpart it was filled only once,
/// and other memory was as high before.
#[test]
fn a_sum_that_was_given_back_twice_comes_and_goes() {
    let ended_with = |first: u32| {
        let mut process = Process::new(0, &stacks());
        for step in 0..120_u64 {
            let (round, kept) = (step / 60, step % 60);
            let row = if round == 0 { first } else { KEEP };
            process.step(&[(row, None, kept, kept * MIB), (MODEL, None, 40, 40 * MIB)]);
            if step % 20 == 19 {
                process.epoch_end(&[(row, None, kept, kept * MIB), (MODEL, None, 40, 40 * MIB)]);
            }
        }
        process.boundary(Boundary::End, 0.1, 10, &[(MODEL, None, 40, 40 * MIB)]);
        ended(&process)
    };
    let comes_and_goes = ended_with(KEEP);
    assert_eq!(comes_and_goes.kind, VerdictKind::Released, "{comes_and_goes:?}");
    assert!(comes_and_goes.sentence.contains("MiB each time"), "{}", comes_and_goes.sentence);
    let grew = ended_with(3);
    assert_eq!(grew.kind, VerdictKind::Growing, "{grew:?}");
}

/// Each request needs more memory with each token and then frees all of it. The job ends in the middle of a request.
#[test]
fn a_sum_that_falls_with_each_request_does_not_grow() {
    for (windows, of_request) in [(13, 8), (14, 8), (16, 8), (30, 20), (40, 26), (90, 40), (95, 40)] {
        let mut process = Process::new(0, &[]);
        for window in 0..windows {
            let held = (window % of_request + 1) * 8 * MIB;
            process.window(&[(window as u32 % 3 + 1, None, 1, held), (100, None, 40, 3 * MIB)]);
        }
        let verdict = ended(&process);
        assert_ne!(verdict.kind, VerdictKind::Growing, "{windows} of {of_request}: {verdict:?}");
    }
}

/// A server that is low before its first requests. Afterwards its sessions come and go, on other levels for every seed, and
/// no level rises for long.
#[test]
fn sessions_that_come_and_go_after_a_low_start_do_not_grow() {
    for seed in 1..200_u64 {
        let mut process = Process::new(0, &[]);
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for window in 0..131_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Five sessions of about ten windows each, of 4 to 20 MiB.
            let held: u64 = (0..5).map(|session| 4 + ((random >> 33) + window * (session + 3) / 10 * 7) % 17).sum();
            let held = if window < 6 { 0 } else { held * MIB };
            process.window(&[(window as u32 % 3 + 1, None, 1, held), (100, None, 40, 12 * MIB)]);
        }
        process.boundary(Boundary::End, 0.1, 10, &[]);
        let verdict = ended(&process);
        assert_ne!(verdict.kind, VerdictKind::Growing, "seed {seed}: {verdict:?}");
    }
}

/// A ring that is full after 250 steps. The same function made a larger workspace once. A sum is judged by other rules than
/// a line, so for some lengths only the line is known to have stopped.
#[test]
fn a_place_that_has_stopped_explains_a_sum_that_has_not_risen_since() {
    let line = |line| vec![frame("<module>", "/home/user/ring.py", line)];
    for flat in 30..70_u64 {
        let mut process = Process::new(0, &[line(13), line(14)]);
        for step in 0..250 + flat {
            let items = 12 * (step + 1).min(250);
            process.step(&[(1, None, items, items * 4 * KIB), (2, None, 15, 34 * MIB)]);
        }
        let verdict = ended(&process);
        assert_eq!(verdict.site.as_ref().map(|site| site.line), Some(13), "{flat}: {}", verdict.sentence);
        let sum = verdict.sentence.contains("most of it allocated");
        assert!(!sum, "{flat}: {}", verdict.sentence);
    }
    // Growth after the stop is that of the sum.
    let mut process = Process::new(0, &[line(13), line(14)]);
    for step in 0..300_u64 {
        let items = 12 * (step + 1).min(150);
        let others = (step as u32 % 7 + 200, None, 1, step.saturating_sub(150) * 64 * KIB);
        process.step(&[(1, None, items, items * 4 * KIB), (2, None, 15, 34 * MIB), others]);
    }
    assert_eq!(ended(&process).kind, VerdictKind::Growing);
}

/// Two caches that are full after 60 and after 150 of 320 steps. The sentence has the growth of both, and the later end.
#[test]
fn what_has_stopped_at_two_places_stopped_with_the_last() {
    let line = |function, line| vec![frame(function, "/home/user/two.py", line)];
    let mut process = Process::new(0, &[line("feats", 6), line("masks", 7)]);
    for step in 0..320_u64 {
        let (feats, masks) = ((step + 1).min(60), (step + 1).min(150));
        process.step(&[(1, None, feats, feats * 640 * KIB), (2, None, masks, masks * 200 * KIB)]);
    }
    let verdict = ended(&process);
    assert_eq!((verdict.kind, verdict.site.as_ref().map(|site| site.line)), (VerdictKind::LevelledOff, Some(6)));
    assert!(verdict.sentence.contains("until step 150, most of it allocated in feats"), "{}", verdict.sentence);
    assert!(verdict.grown_bytes.is_some_and(|grown| grown > 60 * MIB), "{}", verdict.sentence);
}

#[test]
fn the_place_of_a_sum_is_one_that_goes_on_growing() {
    let line = |line| vec![frame("turn", "/home/user/serve.py", line), frame("main", "/home/user/serve.py", 20)];
    let stacks = [line(7), line(9), vec![frame("main", "/home/user/serve.py", 12)]];
    let mut process = Process::new(0, &stacks);
    for window in 0..60_u64 {
        // Two lines replace each other's blocks and grow together. A third line makes a workspace once.
        let held = (window + 1) * 2 * MIB;
        let (one, other) = if window % 2 == 0 { (held, MIB) } else { (MIB, held) };
        let workspace = if window > 8 { 100 * MIB } else { 0 };
        process.window(&[(1, None, 1, one), (2, None, 1, other), (3, None, 1, workspace), (100, None, 40, 100 * MIB)]);
    }
    let verdict = ended(&process);
    assert_eq!(verdict.kind, VerdictKind::Growing, "{verdict:?}");
    assert_eq!(verdict.site.as_ref().map(|site| &*site.function), Some("turn"), "{verdict:?}");
}

/// Layers are unfrozen one by one, and the optimizer is made again for all of them. Each epoch has more memory, but
/// none is older than the epoch.
#[test]
fn what_every_epoch_makes_again_is_work_that_grows() {
    let run = |made_again: bool, more: u64| {
        let mut process = Process::new(0, &stacks());
        for epoch in 0..12_u64 {
            for _ in 0..10 {
                let kept = (KEEP, None, epoch + 1, (epoch + 1) * more);
                // The same line made a library's workspace once.
                let workspace = (KEEP, None, 1, 32 * MIB);
                let model = (MODEL, None, 40, 400 * MIB);
                let mut table = process.table(memctl_model::Boundary::StepEnd, &[kept, model, workspace]);
                // Leaked memory stays live after its epoch: half of it is older than the last one.
                let first = table.rows[0];
                let older = SiteRow { bytes: first.bytes / 2, blocks: first.blocks / 2, birth_epoch: 0, ..first };
                let newer = SiteRow { bytes: first.bytes - older.bytes, blocks: first.blocks - older.blocks, ..first };
                table.rows[0] = SiteRow { birth_epoch: process.epoch, ..newer };
                table.rows.push(SiteRow { birth_epoch: if made_again { process.epoch } else { 0 }, ..older });
                table.rows[2].birth_epoch = 0;
                process.time_ns += 1_000_000_000;
                table.time_ns = process.time_ns;
                process.watch.table(&table);
                process.step += 1;
            }
            process.epoch += 1;
        }
        of(&process, Activity::Running, Vec::new())
    };
    let (again, kept) = (run(true, MIB), run(false, MIB));
    assert_eq!((again.kind, again.cause), (VerdictKind::Growing, Some(Cause::Open)), "{}", again.sentence);
    assert!(again.sentence.contains("each epoch allocates more of them"), "{}", again.sentence);
    let little = run(true, 4 * KIB);
    assert_eq!(little.kind, VerdictKind::Steady, "it follows the inputs, and not the clock: {}", little.sentence);
    // However long it has grown, a bounded buffer may be longer.
    assert_eq!((kept.kind, kept.cause), (VerdictKind::Growing, Some(Cause::Open)), "{}", kept.sentence);
    assert!(kept.sentence.contains("It is a leak unless what holds it is bounded"), "{}", kept.sentence);
}

#[test]
fn what_is_kept_beside_a_workspace_is_a_leak() {
    let mut process = Process::new(0, &stacks());
    let model = (MODEL, None, 40, 400 * MIB);
    process.boundary(memctl_model::Boundary::StepEnd, 1.0, 1_000, &[model]);
    for epoch in 0..8_u64 {
        for step in 1..=10_u64 {
            let steps = epoch * 10 + step;
            let mut table = process.table(memctl_model::Boundary::StepEnd, &[model, (KEEP, None, 1, 320 * MIB)]);
            // Each step keeps half a mebibyte in addition; pieces of earlier epochs are older.
            let workspace = SiteRow { birth_epoch: 0, ..table.rows[1] };
            let kept =
                |bytes: u64, birth: u32| SiteRow { bytes, blocks: bytes / (MIB / 2), birth_epoch: birth, ..workspace };
            table.rows[1] = workspace;
            table.rows.push(kept((steps - step) * MIB / 2, 0));
            table.rows.push(kept(step * MIB / 2, process.epoch));
            process.time_ns += 1_000_000_000;
            table.time_ns = process.time_ns;
            process.watch.table(&table);
            process.step += 1;
        }
        process.epoch += 1;
    }
    let verdict = of(&process, Activity::Running, Vec::new());
    assert!(verdict.sentence.starts_with("Live memory has grown 40.0 MiB"), "{}", verdict.sentence);
    assert!(verdict.sentence.contains("and it was not given back"), "{}", verdict.sentence);
    let findings = process.judge();
    assert!(findings.iter().any(|finding| finding.kind == FindingKind::Leak), "{findings:?}");
}

#[test]
fn what_the_first_call_of_a_line_makes_once_is_no_growth() {
    let mut process = Process::new(0, &stacks());
    let model = (MODEL, None, 40, 400 * MIB);
    process.boundary(memctl_model::Boundary::StepEnd, 1.0, 1_000, &[model]);
    for step in 1..=50_u64 {
        // A workspace, and a piece that each step keeps.
        let kept = (KEEP, None, step + 1, 320 * MIB + step * MIB);
        process.boundary(memctl_model::Boundary::StepEnd, 1.0, 1_000, &[kept, model]);
    }
    let verdict = of(&process, Activity::Running, Vec::new());
    assert!(verdict.sentence.starts_with("Live memory has grown 50.0 MiB in 50 s"), "{}", verdict.sentence);
}

#[test]
fn lines_of_one_function_that_replace_each_others_blocks_grow_together() {
    // A key-value cache that is appended to in place, alternately by the question's line and by the answer's.
    const ANSWER: u32 = 3;
    let mut stacks = stacks();
    stacks.push(vec![frame("keep", "/home/user/train/metrics.py", 32), frame("main", "/home/user/train/train.py", 12)]);
    let mut process = Process::new(0, &stacks);
    for window in 0..160_u64 {
        let held = (window + 1) * 4 * MIB;
        // It is random which of them ends a window.
        let line = if window % 3 == 0 { ANSWER } else { KEEP };
        process.window(&[(line, None, 8, held), (MODEL, None, 40, 400 * MIB)]);
    }
    let verdict = ended(&process);
    assert_eq!((verdict.kind, verdict.cause), (VerdictKind::Growing, Some(Cause::Open)), "{verdict:?}");
    assert_eq!(verdict.site.as_ref().map(|site| &*site.function), Some("keep"), "{}", verdict.sentence);
}

/// A curriculum: every step works on more than the one before, up to the last one.
#[test]
fn what_rises_up_to_the_last_step_has_not_levelled_off() {
    for steps in [60_u64, 120, 400] {
        let mut process = Process::new(0, &stacks());
        for step in 0..steps {
            // The first step also makes a workspace.
            let workspace = if step == 0 { 0 } else { 32 * MIB };
            process.step(&[(KEEP, None, 3, workspace + 3 * (32 + 8 * step) * KIB), (MODEL, None, 40, 35 * MIB)]);
        }
        let verdict = ended(&process);
        assert_eq!(verdict.kind, VerdictKind::Growing, "{steps}: {verdict:?}");
    }
}
