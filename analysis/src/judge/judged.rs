//! Lists what was judged and what could not be judged: a missing finding means nothing if nothing was examined.
//!
//! Guarantees: each kind of finding that boundaries or measurements of watched devices can show is either judged, or
//! listed as not judged with the reason and one remedy. Gaps outside of the watches are not listed here: ranks without
//! a watch, expired events.

use memctl_model::{Boundary, FindingKind, Gap, Judged, JudgedKind, NotJudged, Remedy};

use crate::coverage::MARK_EPOCHS;
use crate::wording::plural;

use super::history::{Measured, Per};
use super::levels::{MEASUREMENTS_MIN, SECONDS_MIN, measurements};
use super::outside;
use super::process_list;
use super::subjects::{self, Subject};
use super::watch::RankWatch;

/// Minimum epoch ends to judge growth from epoch to epoch. Fewer than three rises are not reported, because two larger
/// batches make two.
const EPOCH_ENDS_MIN: u32 = 3;
/// Minimum epoch ends to distinguish memory kept once per epoch from a cache that still fills.
const EPOCH_ENDS_SLOW: u32 = 6;
/// Minimum steps to report one tensor kept at each step, if there are too few epoch ends.
const STEPS_MIN: u32 = 30;
/// The same minimum for windows.
const WINDOWS_MIN: u32 = 20;
/// Kinds of finding that report growth of live tensors.
pub const GROWTH: [FindingKind; 5] = [
    FindingKind::Leak,
    FindingKind::EvalGraph,
    FindingKind::GraphKept,
    FindingKind::HiddenChain,
    FindingKind::PrivatePools,
];

/// Judges growth and measured levels: returns what was judged and what could not be.
pub(super) fn growth_and_levels(watches: &[&RankWatch]) -> (Judged, Vec<NotJudged>) {
    let mut judged = looked_at(watches);
    let mut gaps = Vec::new();
    if watches.is_empty() {
        let reason = "nothing was recorded in this part of the job";
        for kind in GROWTH.into_iter().chain([FindingKind::OutsideAllocator, FindingKind::HostGrowth]) {
            gaps.push(gap(kind, Gap::Whole, reason.to_owned(), ""));
        }
        return (judged, gaps);
    }
    growth(watches, &mut judged, &mut gaps);
    lines(watches, &mut gaps);
    unused(watches, &mut judged, &mut gaps);
    measured(watches, &mut judged, &mut gaps);
    (judged, gaps)
}

fn gap(kind: FindingKind, gap: Gap, reason: String, remedy: impl Into<Remedy>) -> NotJudged {
    NotJudged { kind, gap, reason, remedy: remedy.into() }
}

fn looked_at(watches: &[&RankWatch]) -> Judged {
    let most = |per: Per| watches.iter().map(|watch| u64::from(watch.history.of(per).seen)).max().unwrap_or(0);
    let subjects: Vec<Subject> = watches.iter().map(|watch| watch.who()).collect();
    Judged {
        processes: subjects::processes(&subjects).len() as u32,
        ranks: subjects::ranks(&subjects),
        epoch_ends: most(Per::Epoch),
        steps: most(Per::Step),
        windows: most(Per::Window),
        kinds: Vec::new(),
    }
}

/// The boundaries at which growth of a device can be reported.
fn boundaries(watch: &RankWatch) -> Vec<Boundary> {
    let history = &watch.history;
    let enough = |per: Per| match per {
        Per::Epoch => history.of(per).seen >= EPOCH_ENDS_MIN,
        Per::Step => history.of(per).seen >= STEPS_MIN,
        Per::Window => history.windows_speak() && history.of(per).seen >= WINDOWS_MIN && !history.only_loads(),
    };
    Per::ALL.into_iter().filter(|&per| enough(per)).map(Per::boundary).collect()
}

fn growth(watches: &[&RankWatch], judged: &mut Judged, gaps: &mut Vec<NotJudged>) {
    let over: Vec<(&RankWatch, Vec<Boundary>)> = watches.iter().map(|&watch| (watch, boundaries(watch))).collect();
    let blind: Vec<&RankWatch> = over.iter().filter(|(_, over)| over.is_empty()).map(|&(watch, _)| watch).collect();
    if blind.len() < watches.len() {
        let mut all: Vec<Boundary> = over.iter().flat_map(|(_, over)| over.iter().copied()).collect();
        all.sort_by_key(|boundary| *boundary as u8);
        all.dedup();
        let kinds = GROWTH.into_iter().chain([FindingKind::NearOom]);
        judged.kinds.extend(kinds.map(|kind| JudgedKind { kind, boundaries: all.clone() }));
    }
    // If several devices cannot be judged, the reason of the one that lacks least is given, because it will be judged
    // first.
    let nearest = blind.iter().max_by_key(|watch| {
        let seen = |per: Per| watch.history.of(per).seen;
        (seen(Per::Epoch), seen(Per::Step), seen(Per::Window))
    });
    if let Some(watch) = nearest {
        let (reason, remedy) = too_few(watch);
        let (how_much, reason) = if blind.len() == watches.len() {
            (Gap::Whole, reason)
        } else {
            let subjects = |watches: &[&RankWatch]| watches.iter().map(|watch| watch.who()).collect::<Vec<Subject>>();
            let (blind, all) = (subjects(&blind), subjects(watches));
            let on = subjects::on(&blind.iter().collect::<Vec<_>>(), &all.iter().collect::<Vec<_>>());
            (Gap::Part, format!("{on}: {reason}"))
        };
        gaps.push(gap(FindingKind::Leak, how_much, reason, remedy));
        return;
    }
    // Memory kept once per epoch shows only at epoch ends.
    let ends = watches.iter().map(|watch| watch.history.of(Per::Epoch).seen).min().unwrap_or(0);
    if (1..EPOCH_ENDS_SLOW).contains(&ends) {
        let reason = format!(
            "memory kept once per epoch: needs {EPOCH_ENDS_SLOW} epoch ends to be distinguished from a cache that is still filling, found {ends}"
        );
        gaps.push(gap(FindingKind::Leak, Gap::Part, reason, Remedy::MoreEpochs));
    }
}

/// Why growth of a device cannot be reported: `needs 30 steps or 3 epoch ends, found 12 steps and 1 epoch end`.
fn too_few(watch: &RankWatch) -> (String, Remedy) {
    let seen = |per: Per| watch.history.of(per).seen;
    let (epochs, steps, windows) = (seen(Per::Epoch), seen(Per::Step), seen(Per::Window));
    if windows >= WINDOWS_MIN && watch.history.windows_speak() && watch.history.only_loads() {
        let reason = "so far memory was made and hardly any was freed, as while a model is loaded";
        return (reason.to_owned(), Remedy::Longer);
    }
    if windows > 0 && steps == 0 && epochs == 0 {
        return (format!("needs {WINDOWS_MIN} windows, found {windows}"), Remedy::Longer);
    }
    let (of_steps, of_epochs) = (plural(u64::from(steps), "step"), plural(u64::from(epochs), "epoch end"));
    let found = match (steps, epochs) {
        (0, 0) => "neither".to_owned(),
        (0, _) => of_epochs,
        (_, 0) => of_steps,
        _ => format!("{of_steps} and {of_epochs}"),
    };
    let remedy = if steps > 1 { Remedy::Longer } else { Remedy::MarkSteps };
    (format!("needs {STEPS_MIN} steps or {EPOCH_ENDS_MIN} epoch ends, found {found}"), remedy)
}

/// Adds a gap if lines of code cannot be named.
fn lines(watches: &[&RankWatch], gaps: &mut Vec<NotJudged>) {
    // A process that ended before its first boundary has no table in which rows could be missing.
    let has_only_counters =
        |watch: &&RankWatch| watch.history.first.is_some() && !watch.history.has_rows && !watch.history.empty;
    if watches.iter().all(has_only_counters) {
        let reason = "the line of code: only the allocator's counters were recorded, no events";
        gaps.push(gap(
            FindingKind::Leak,
            Gap::Part,
            reason.to_owned(),
            "use PyTorch's native allocator with memctl's hook",
        ));
    } else if watches.iter().any(|watch| watch.history.has_rows && !watch.has_stacks()) {
        let reason = "the line of code: no stacks were recorded";
        gaps.push(gap(FindingKind::Leak, Gap::Part, reason.to_owned(), "record with stacks=\"python\""));
    }
}

/// Judges unused reserved memory, which is examined at epoch ends.
fn unused(watches: &[&RankWatch], judged: &mut Judged, gaps: &mut Vec<NotJudged>) {
    let kind = FindingKind::FragmentationGrowth;
    let ends = watches.iter().map(|watch| watch.history.of(Per::Epoch).seen).max().unwrap_or(0);
    if ends >= MEASUREMENTS_MIN as u32 {
        judged.kinds.push(JudgedKind { kind, boundaries: vec![Boundary::EpochEnd] });
    } else {
        let reason = format!("needs {MEASUREMENTS_MIN} epoch ends, found {ends}");
        gaps.push(gap(kind, Gap::Whole, reason, if ends == 0 { MARK_EPOCHS.into() } else { Remedy::MoreEpochs }));
    }
}

/// Judges memory outside the allocator, which only measurements show. Its growth needs several measurements over some
/// seconds of work.
fn measured(watches: &[&RankWatch], judged: &mut Judged, gaps: &mut Vec<NotJudged>) {
    const LIVE: &str = "run it under memctl run, which measures it";
    const UNLISTED: &str = "the driver's list of processes lacks this job's, as under WSL and in some containers";
    let kinds: [(FindingKind, MeasuredCount, bool); 3] = [
        (FindingKind::OutsideAllocator, outside::seen, true),
        // Without this process in the driver's list, the list's others may be this process.
        (
            FindingKind::ForeignProcess,
            |watch| seen(watch, |sample| sample.foreign_used_bytes).filter(|_| process_list::is_listed(watch)),
            false,
        ),
        (FindingKind::HostGrowth, |watch| seen(watch, |sample| sample.host_bytes), true),
    ];
    for (kind, seen, takes_time) in kinds {
        let all: Vec<(usize, f64)> = watches.iter().filter_map(|watch| seen(watch)).collect();
        let known = all.len();
        let (most, seconds) =
            all.into_iter().max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))).unwrap_or_default();
        let is_enough = !takes_time || (most >= MEASUREMENTS_MIN && seconds >= SECONDS_MIN);
        if known > 0 && is_enough {
            judged.kinds.push(JudgedKind { kind, boundaries: Vec::new() });
        }
        match known {
            0 if kind == FindingKind::ForeignProcess && watches.iter().any(|watch| !process_list::is_listed(watch)) => {
                gaps.push(gap(kind, Gap::Whole, UNLISTED.to_owned(), "look at nvidia-smi on the host"));
            }
            0 => gaps.push(gap(kind, Gap::Whole, "not measured".to_owned(), LIVE)),
            _ if !is_enough => {
                let found = format!("found {most} over {seconds:.0} s");
                let reason = format!(
                    "needs {MEASUREMENTS_MIN} measurements over {SECONDS_MIN:.0} s between the first and the last step, {found}"
                );
                gaps.push(gap(kind, Gap::Whole, reason, Remedy::Longer));
            }
            some if some < watches.len() => {
                gaps.push(gap(kind, Gap::Part, "not measured on every rank".to_owned(), LIVE));
            }
            _ => {}
        }
    }
}

/// A function that returns the number of a process's measurements of one quantity while it works, and the seconds that
/// they span; `None` if it was never measured.
type MeasuredCount = fn(&RankWatch) -> Option<(usize, f64)>;

fn seen(watch: &RankWatch, read: fn(&Measured) -> Option<u64>) -> Option<(usize, f64)> {
    let samples = watch.history.samples.all();
    samples.iter().any(|sample| read(sample).is_some()).then(|| measurements(watch, samples, read))
}
