//! Tests of the findings about hand-made trainings, one quantity at a time, with their sentences.
//!
//! (Over 400 lines: one training made by hand serves all of them.)

use memctl_analysis::judge::{Activity, RankFacts, RankWatch, findings};
use memctl_model::{
    Boundary, Counters, DeviceIndex, Finding, FindingKind, Foresight, Frame, Peaks, Phase, Sample, Severity, SiteRow,
    SiteTable, StackId,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Numbers of stacks: see [`stacks`].
const WEIGHTS: u32 = 1;
const KEEP: u32 = 2;
const FORWARD_A: u32 = 3;
const FORWARD_B: u32 = 4;
const FORWARD_C: u32 = 5;
/// The line of [`FORWARD_A`], reached through another function that `evaluate` calls.
const WARMED: u32 = 6;

fn frame(function: &str, file: &str, line: u32) -> Frame {
    Frame { function: function.into(), file: file.into(), line }
}

/// The stacks of five sites, innermost frame first. The third site has two stacks.
fn stacks() -> [Vec<Frame>; 6] {
    let torch = |function: &str| frame(function, "/opt/lib/site-packages/torch/nn/modules/module.py", 1_770);
    let layer = |line| {
        vec![
            torch("forward"),
            frame("forward", "/home/me/model.py", line),
            torch("Module._call_impl"),
            frame("evaluate", "/home/me/train.py", 61),
            frame("main", "/home/me/train.py", 90),
        ]
    };
    [
        vec![frame("build", "/home/me/model.py", 5), frame("main", "/home/me/train.py", 80)],
        vec![frame("keep", "/home/me/train.py", 17), frame("main", "/home/me/train.py", 88)],
        layer(20),
        layer(21),
        layer(22),
        [
            layer(20)[..3].to_vec(),
            vec![frame("warm_up", "/home/me/train.py", 41), frame("evaluate", "/home/me/train.py", 50)],
            layer(20)[4..].to_vec(),
        ]
        .concat(),
    ]
}

/// A training of one rank. Each step's end has live memory by (stack, phase, blocks, bytes).
struct Training {
    watch: RankWatch,
    step: u64,
    steps_per_epoch: u64,
    found: bool,
    /// Whether a backward pass goes through the graphs of earlier steps.
    chains: bool,
    events: u64,
}

type Row = (u32, Option<Phase>, u64, u64);

impl Training {
    fn new(rank: u32, steps_per_epoch: u64) -> Self {
        let mut watch = RankWatch::new(RankFacts { rank, device_total_bytes: Some(80 * GIB), ..RankFacts::default() });
        for (id, frames) in (1..).zip(stacks()) {
            watch.stack(StackId(id), &frames);
        }
        Self { watch, step: 0, steps_per_epoch, found: false, chains: false, events: 0 }
    }

    fn table(&self, boundary: Boundary, rows: &[Row], peak_bytes: u64) -> SiteTable {
        let mut all = vec![(WEIGHTS, None, 10, 100 * MIB)];
        all.extend(rows.iter().filter(|row| row.2 > 0));
        let allocated_bytes = all.iter().map(|row| row.3).sum();
        let counters = Counters {
            allocated_bytes,
            active_bytes: allocated_bytes,
            reserved_bytes: GIB,
            allocated_blocks: all.iter().map(|row| row.2).sum(),
            ..Default::default()
        };
        let peaks_within = Peaks { allocated_bytes: allocated_bytes + peak_bytes, reserved_bytes: GIB };
        let row = |&(stack, birth_phase, blocks, bytes): &Row| SiteRow {
            stack: StackId(stack),
            birth_epoch: 0,
            birth_phase,
            blocks,
            bytes,
        };
        SiteTable {
            device: DeviceIndex(0),
            boundary,
            epoch: (self.step / self.steps_per_epoch) as u32,
            step: self.step,
            time_ns: (self.step + 1) * 1_000_000_000,
            at_event: self.events,
            exact: true,
            counters,
            peaks: peaks_within,
            peaks_within,
            found: self.found,
            rows: all.iter().map(row).collect(),
            private_pools: Vec::new(),
        }
    }

    fn step(&mut self, rows: &[Row]) {
        self.step_with_peak(rows, 50 * MIB);
    }

    fn step_with_peak(&mut self, rows: &[Row], peak_bytes: u64) {
        // A backward pass goes through every live graph.
        let graphs = rows.iter().filter(|row| [FORWARD_A, FORWARD_B, FORWARD_C].contains(&row.0));
        self.events += 100 + if self.chains { 3 * graphs.map(|row| row.2).sum::<u64>() } else { 0 };
        self.watch.table(&self.table(Boundary::StepEnd, rows, peak_bytes));
        if (self.step + 1).is_multiple_of(self.steps_per_epoch) {
            self.watch.table(&self.table(Boundary::EpochEnd, rows, peak_bytes));
        }
        self.step += 1;
    }

    fn judge(&self) -> Vec<Finding> {
        findings(&[&self.watch], Activity::Running)
    }

    /// The number of steps until a finding appears, and until it is certain.
    fn run(&mut self, steps: u64, rows: impl Fn(u64) -> Vec<Row>) -> (Option<u64>, Option<u64>) {
        let (mut said, mut sure) = (None, None);
        for step in 0..steps {
            self.step(&rows(step));
            let found = self.judge();
            if !found.is_empty() && said.is_none() {
                said = Some(step);
            }
            if found.iter().any(|finding| finding.severity >= Severity::Warning) && sure.is_none() {
                sure = Some(step);
            }
        }
        (said, sure)
    }
}

fn kept(count: u64) -> Vec<Row> {
    vec![(KEEP, None, count, count * MIB)]
}

#[test]
fn one_tensor_a_step_is_suspected_within_eight_steps_and_confirmed_once_no_buffer_explains_it() {
    let mut training = Training::new(0, 10);
    let (said, sure) = training.run(100, |step| kept(step + 1));
    assert!(said.is_some_and(|step| step <= 8), "{said:?}");
    assert!(sure.is_some_and(|step| (39..=60).contains(&step)), "{sure:?}");
    let found = training.judge();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].kind, FindingKind::Leak);
    assert_eq!(
        found[0].headline(),
        "Live memory grows 10.0 MiB per epoch on rank 0, allocated in keep (train.py:17); out of memory in about 8167 epochs"
    );
    assert_eq!((found[0].live_bytes, found[0].live_blocks), (Some(100 * MIB), Some(100)));
    assert_eq!((found[0].first_seen.epoch, found[0].first_seen.step), (Some(0), Some(1)));
    let slope = found[0].bytes_per_epoch.unwrap();
    assert!(slope.low <= slope.value && slope.value <= slope.high && slope.value == 10.0 * MIB as f64, "{slope:?}");
}

/// The steps at whose ends growth supports further forecasts, with these forecasts.
fn vouched(training: &mut Training, steps: u64, rows: impl Fn(u64) -> Vec<Row>) -> Vec<(u64, Foresight)> {
    let mut all = vec![(0, Foresight::Nothing)];
    for step in 0..steps {
        training.step(&rows(step));
        let now = training.judge().iter().map(|finding| finding.foresight).max().unwrap_or_default();
        if now > all[all.len() - 1].1 {
            all.push((step, now));
        }
    }
    all.split_off(1)
}

#[test]
fn growth_vouches_for_more_the_longer_it_goes_on() {
    let all = vouched(&mut Training::new(0, 10), 100, |step| kept(step / 3 + 1));
    let [(certain, Foresight::CertainStep), (next, Foresight::AnyNextStep), (sure, Foresight::AllSteps)] = all[..]
    else {
        panic!("{all:?}");
    };
    // First in the third epoch, then in the fourth; at last nothing bounded explains it.
    assert!((20..30).contains(&certain) && (30..40).contains(&next) && sure > next, "{all:?}");
    // A queue of the last hundred entries fills over three epochs. So does a leak that is confirmed after eighty
    // rises.
    let queue = |steps| vouched(&mut Training::new(0, steps), 160, |step| kept(step.min(100) + 1));
    assert_eq!(queue(40), [], "it has filled before the fourth epoch has grown");
    let slower = queue(30);
    assert!(matches!(slower[..], [(60.., Foresight::CertainStep), (90.., Foresight::NextStep)]), "{slower:?}");
    // Whole sets of tensors: no code keeps five of them on purpose.
    let sets = vouched(&mut Training::new(0, 10), 40, |step| kept(step / 5 * 6));
    let Some(&(at, Foresight::AllSteps)) = sets.first() else { panic!("{sets:?}") };
    assert!((20..30).contains(&at) && at < certain + 10, "{sets:?}");
    // Four sets of dozens of tensors suffice; three do not, because the best three models may be kept.
    let states = vouched(&mut Training::new(0, 10), 60, |step| kept((step / 8).min(3) * 50));
    assert_eq!(states, [], "three sets, and no more");
    let states = vouched(&mut Training::new(0, 10), 60, |step| kept(step / 8 * 50));
    assert!(matches!(states[..], [(32.., Foresight::AllSteps), ..] if states[0].0 < 40), "{states:?}");
    // Growth that slows down after it was confirmed may end, like a cache of rare keys.
    let mut training = Training::new(0, 10);
    let mut now = |steps: std::ops::Range<u64>| {
        steps.for_each(|step| training.step(&kept(step.min(100) / 2 + step.saturating_sub(100) / 8)));
        training.judge().iter().map(|finding| finding.foresight).max()
    };
    assert_eq!([now(0..100), now(100..120)], [Foresight::AllSteps, Foresight::AnyNextStep].map(Some));
}

#[test]
fn what_only_the_near_end_confirms_vouches_for_no_more_than_a_suspicion() {
    let mut training = Training::new(0, 100);
    training.watch.set_device_total(200 * MIB);
    let (_, sure) = training.run(45, |step| kept(step + 1));
    assert!(sure.is_some_and(|step| step >= 40), "the device is full within the time that was watched: {sure:?}");
    assert_eq!(training.judge()[0].foresight, Foresight::Nothing);
    // A cache that fills within two epochs never supports any forecast.
    for fills in [12_u64, 18] {
        let all = vouched(&mut Training::new(0, 10), 200, |step| kept(step.min(fills) + 1));
        assert_eq!(all, [], "{fills}");
    }
}

#[test]
fn sparse_leaks_are_found_too() {
    for every in [5, 20, 40] {
        let mut training = Training::new(0, 40);
        let (_, sure) = training.run(40 * 12, |step| kept(step / every + 1));
        assert!(sure.is_some(), "one in {every}");
        assert_eq!(training.judge()[0].site.as_ref().unwrap().line, 17);
    }
}

#[test]
fn what_fills_and_stops_is_never_sure_and_at_the_end_forgotten() {
    type Count = fn(u64) -> u64;
    let filling: [(&str, Count); 4] = [
        ("twenty entries, one a step", |step| step.min(20)),
        ("twenty entries, late", |step| step.saturating_sub(100).min(20)),
        ("at random: fewer and fewer new ones", |step| (24.0 * (1.0 - (-(step as f64) / 20.0).exp())).round() as u64),
        ("two steps up", |step| u64::from(step > 30) + u64::from(step > 90)),
    ];
    for (what, count) in filling {
        let mut training = Training::new(0, 10);
        let (_, sure) = training.run(300, |step| kept(count(step)));
        assert_eq!(sure, None, "{what}");
        assert_eq!(training.judge(), [], "{what}");
    }
}

#[test]
fn what_is_emptied_again_is_no_leak() {
    for period in [7, 10, 35] {
        let mut training = Training::new(0, 10);
        let (_, sure) = training.run(300, |step| kept(step % period));
        assert_eq!(sure, None, "every {period} steps");
    }
}

#[test]
fn random_sizes_are_noise() {
    let mut training = Training::new(0, 20);
    let sizes = |step: u64| 1 + (step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % (64 * MIB);
    let (said, _) = training.run(400, |step| vec![(KEEP, None, 1, sizes(step))]);
    assert_eq!(said, None);
}

#[test]
fn a_longer_sequence_every_epoch_is_work_and_a_growing_tensor_is_a_leak() {
    let mut curriculum = Training::new(0, 8);
    for step in 0..160 {
        let scale = step / 8 + 1;
        curriculum.step_with_peak(&[(KEEP, None, 1, scale * MIB)], scale * 200 * MIB);
    }
    assert_eq!(curriculum.judge(), []);
    let mut appended = Training::new(0, 8);
    for step in 0..160 {
        appended.step(&[(KEEP, None, 1, (step + 1) * MIB)]);
    }
    let found = appended.judge();
    assert_eq!(found[0].kind, FindingKind::Leak);
    assert!(found[0].title.contains("a tensor is replaced by a larger one each time"), "{}", found[0].title);
}

fn graph(times: u64, phase: Option<Phase>) -> Vec<Row> {
    [FORWARD_A, FORWARD_B, FORWARD_C].map(|stack| (stack, phase, 2 * times, 6 * times * MIB)).to_vec()
}

#[test]
fn an_evaluation_that_keeps_its_graph_is_one_finding_at_the_function_that_runs_it() {
    let mut training = Training::new(0, 10);
    let (_, sure) = training.run(60, |step| graph((step + 1) / 10, Some(Phase::Eval)));
    assert!(sure.is_some_and(|step| step <= 40), "{sure:?}");
    let found = training.judge();
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].kind, FindingKind::EvalGraph);
    assert_eq!(&*found[0].site.as_ref().unwrap().function, "evaluate");
    assert!(found[0].title.contains("the evaluation runs with gradients enabled"), "{}", found[0].title);
    assert!(found[0].advice.contains("torch.no_grad()"), "{}", found[0].advice);
}

#[test]
fn the_line_is_that_of_the_way_which_has_grown() {
    let mut training = Training::new(0, 10);
    // A workspace that the first call made and that stays.
    let workspace = (WARMED, Some(Phase::Eval), 1, 30 * MIB);
    training.run(60, |step| {
        let times = (step + 1) / 10;
        let most = (FORWARD_A, Some(Phase::Eval), times, 20 * times * MIB);
        [graph(times, Some(Phase::Eval)), vec![most, workspace]].concat()
    });
    let found = training.judge();
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::EvalGraph));
    assert_eq!(found[0].site.as_ref().map(|site| (&*site.function, site.line)), Some(("evaluate", 61)));
}

#[test]
fn a_block_that_the_allocator_rounds_to_megabytes_grows_all_the_same() {
    // Large blocks come in multiples of 2 MiB. A block that grows by 384 KiB per step therefore rises in every fifth
    // step, by more.
    let rounded = |bytes: u64| if bytes < 10 * MIB { bytes } else { bytes.next_multiple_of(2 * MIB) };
    let mut training = Training::new(0, 20);
    let (_, sure) = training.run(200, |step| vec![(KEEP, None, 1, rounded(((step + 1) * 384) << 10))]);
    assert!(sure.is_some_and(|step| step <= 100), "{sure:?}");
    assert!(training.judge()[0].severity >= Severity::Warning, "{}", training.judge()[0].title);
}

#[test]
fn five_even_rises_in_five_epochs_are_a_leak_and_early_ones_are_not() {
    let mut even = Training::new(0, 8);
    even.run(40, |step| kept((step + 4) / 8));
    assert!(even.judge()[0].severity >= Severity::Warning, "{:?}", even.judge());
    let mut early = Training::new(0, 8);
    let (_, sure) = early.run(48, |step| kept([1, 2, 9, 10, 33].iter().filter(|&&at| step >= at).count() as u64));
    assert_eq!(sure, None);
}

#[test]
fn a_chained_state_is_told_from_a_kept_graph_by_its_falling_back() {
    let mut kept = Training::new(0, 10);
    let (_, sure) = kept.run(30, |step| graph(step, Some(Phase::Forward)));
    assert!(sure.is_some_and(|step| step <= 8), "{sure:?}");
    assert_eq!(kept.judge()[0].kind, FindingKind::GraphKept);
    let mut chained = Training { chains: true, ..Training::new(0, 10) };
    chained.run(45, |step| graph(step % 10, Some(Phase::Forward)));
    let found = chained.judge();
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::HiddenChain));
    assert!(found[0].title.contains("within each epoch"), "{}", found[0].title);
    assert_eq!((found[0].first_seen.step, found[0].time_to_oom_seconds), (Some(1), None));
}

/// The next epoch begins with the last epoch's state, so the memory of that state is freed in its second step.
#[test]
fn a_chain_that_is_let_go_in_the_second_step_of_an_epoch_is_one() {
    let mut chained = Training { chains: true, ..Training::new(0, 10) };
    chained.run(45, |step| graph(if step > 0 && step % 10 == 0 { 10 } else { step % 10 }, Some(Phase::Forward)));
    let found = chained.judge();
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::HiddenChain), "{found:#?}");
}

/// Values that a metric collects over an epoch come through the lines of a model, too, but no backward pass goes
/// through them.
#[test]
fn what_an_epoch_collects_is_no_chain() {
    let mut collected = Training::new(0, 10);
    collected.run(45, |step| graph(step % 10, Some(Phase::Forward)));
    assert!(collected.judge().is_empty(), "{:#?}", collected.judge());
}

#[test]
fn without_marked_epochs_a_chain_is_recognized_by_its_falls() {
    let mut chained = Training { found: true, chains: true, ..Training::new(0, 1_000) };
    chained.run(20, |step| graph(step % 8, Some(Phase::Forward)));
    assert!(chained.judge().iter().all(|found| found.kind != FindingKind::HiddenChain), "two falls are too few");
    chained.run(24, |step| graph((step + 4) % 8, Some(Phase::Forward)));
    let found = chained.judge();
    assert_eq!((found.len(), found[0].kind), (1, FindingKind::HiddenChain), "{found:#?}");
    assert!(found[0].title.contains(" repeatedly on rank 0"), "{}", found[0].title);
}

#[test]
fn ranks_are_named_and_joined() {
    let mut all: Vec<Training> = (0..4).map(|rank| Training::new(rank, 10)).collect();
    for step in 0..80 {
        for training in &mut all {
            let leaks = training.watch.rank() == 2;
            training.step(&kept(if leaks { step + 1 } else { 0 }));
        }
    }
    let watches: Vec<&RankWatch> = all.iter().map(|training| &training.watch).collect();
    let found = findings(&watches, Activity::Running);
    assert_eq!(found.len(), 1, "the leak explains what rank 2 holds more: {found:#?}");
    assert_eq!((found[0].ranks.as_slice(), found[0].all_ranks), ([2].as_slice(), false));
    assert!(
        found[0].title.starts_with("Live memory grows 10.0 MiB per epoch on rank 2 (not on 0-1, 3)"),
        "{}",
        found[0].title
    );
    assert_eq!(findings(&watches[..2], Activity::Running), []);
}

#[test]
fn a_rank_that_holds_more_from_some_step_on_stands_out() {
    let mut all: Vec<Training> = (0..4).map(|rank| Training::new(rank, 10)).collect();
    for step in 0..40 {
        for training in &mut all {
            let more = training.watch.rank() == 0 && step >= 15;
            training.step(&if more { vec![(KEEP, None, 1, 64 * MIB)] } else { Vec::new() });
        }
    }
    let watches: Vec<&RankWatch> = all.iter().map(|training| &training.watch).collect();
    let found = findings(&watches, Activity::Running);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].kind, found[0].severity), (FindingKind::RankSkew, Severity::Info));
    assert_eq!(found[0].title, "Rank 0 holds 64.0 MiB more than ranks 1-3 since step 15: keep (train.py:17)");
}

/// A model split over two devices of one process. Each device holds other memory, and there is no other rank to
/// compare with.
#[test]
fn devices_of_one_process_are_judged_and_are_no_peers() {
    let mut both: Vec<Training> = (0..2).map(|_| Training::new(0, 10)).collect();
    for step in 0..80 {
        both[0].step(&[(FORWARD_A, None, 1, 512 * MIB)]);
        both[1].step(&kept(step + 1));
    }
    let found = findings(&both.iter().map(|training| &training.watch).collect::<Vec<_>>(), Activity::Running);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].kind, found[0].ranks.as_slice()), (FindingKind::Leak, [0].as_slice()));
    assert!(found[0].title.contains("on rank 0,"), "{}", found[0].title);
}

/// Ranks are identified by their numbers and not by the order in which they arrived.
#[test]
fn ranks_that_come_in_any_order_are_told_in_theirs() {
    let mut all: Vec<Training> = [3, 0, 2, 1].map(|rank| Training::new(rank, 10)).into();
    for step in 0..40 {
        for training in &mut all {
            let more = training.watch.rank() == 0 && step >= 15;
            training.step(&if more { vec![(KEEP, None, 1, 64 * MIB)] } else { Vec::new() });
        }
    }
    let found = findings(&all.iter().map(|training| &training.watch).collect::<Vec<_>>(), Activity::Running);
    assert_eq!(found[0].title, "Rank 0 holds 64.0 MiB more than ranks 1-3 since step 15: keep (train.py:17)");
}

#[test]
fn without_stacks_the_finding_says_less() {
    let mut training = Training::new(0, 10);
    training.run(100, |step| vec![(0, None, step + 1, (step + 1) * MIB)]);
    let found = training.judge();
    assert_eq!(found[0].site, None);
    assert!(found[0].title.contains("no stacks were recorded"), "{}", found[0].title);
    assert!(found[0].explanation.contains("No stacks were recorded, so no line"), "{}", found[0].explanation);
}

#[test]
fn memory_outside_the_allocator_and_on_the_host_is_watched() {
    let mut training = Training::new(0, 10);
    for step in 0..120_u64 {
        training.step(&[]);
        training.watch.sample(&Sample {
            time_ns: (step + 1) * 1_000_000_000,
            device_used_bytes: Some(3 * GIB + step * 10 * MIB),
            device_total_bytes: Some(80 * GIB),
            process_used_bytes: Some(2 * GIB + step * 10 * MIB),
            foreign_used_bytes: Some(6 * GIB),
            reserved_bytes: Some(GIB),
            host_rss_bytes: Some(4 * GIB + (step % 7) * 30 * MIB),
            children_rss_bytes: Some(GIB + step * 20 * MIB),
            ..Sample::default()
        });
    }
    let found = training.judge();
    let kinds: Vec<FindingKind> = found.iter().map(|finding| finding.kind).collect();
    assert!(kinds.contains(&FindingKind::OutsideAllocator), "{kinds:?}");
    assert!(kinds.contains(&FindingKind::ForeignProcess), "{kinds:?}");
    let host: Vec<&Finding> = found.iter().filter(|finding| finding.kind == FindingKind::HostGrowth).collect();
    assert_eq!(host.len(), 1, "the workers grow, the process does not");
    assert_eq!(host[0].subject, "data loader workers");
}

#[test]
fn hostile_tables_do_no_harm() {
    let mut training = Training::new(0, 1);
    let huge: Vec<Row> = (0..200).map(|stack| (u32::MAX - stack, Some(Phase::Eval), u64::MAX, u64::MAX)).collect();
    for _ in 0..20 {
        let mut table = training.table(Boundary::StepEnd, &[], 0);
        table.rows = huge
            .iter()
            .map(|&(stack, birth_phase, blocks, bytes)| SiteRow {
                stack: StackId(stack),
                birth_epoch: u32::MAX,
                birth_phase,
                blocks,
                bytes,
            })
            .collect();
        (table.epoch, table.step, table.time_ns) = (u32::MAX, u64::MAX, u64::MAX);
        training.watch.table(&table);
        training.watch.sample(&Sample {
            device_used_bytes: Some(u64::MAX),
            host_rss_bytes: Some(0),
            ..Sample::default()
        });
        training.judge();
    }
    training.watch.stack(StackId(u32::MAX), &stacks()[0]);
    training.step(&[]);
    training.judge();
}
