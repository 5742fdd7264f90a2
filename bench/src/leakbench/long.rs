//! One epoch of 20,000 steps: pretraining as it is done.
//!
//! Guarantees: the tables are those of a recorded training's steps, over and over, with what is added to them; blocks that are
//! added have the true sizes that the caching allocator gives them. Made table by table: 20,000 of them are not kept. Peaks
//! within a step are the recorded step's and what had been added by its end. Refuses trainings whose own memory has not
//! settled by their last half.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memctl_model::{
    Action, Boundary, Counters, DeviceIndex, Event, Peaks, Phase, PoolId, PoolRow, SiteRow, SiteTable, StackId,
};

use super::arena::Arena;
use super::base::{Base, Life, Span};
use super::benign::{self, Kind};
use super::causes::{self, Cause, Size};
use super::draw::Draw;
use super::parts::{Part, Training, View};
use super::replay::{Change, Overlay};
use super::runs::{Run, Truth, draw_count, draw_device};
use super::schedule::Rate;
use super::serving::twentieths;
use super::site::Sites;
use super::stream::Stream;

/// Steps of a run.
pub const STEPS: usize = 20_000;
/// A leak that was not found when it had leaked so often was missed.
pub const FOUND_WITHIN_TIMES: u64 = 30;
/// Detectors are asked so often where nothing leaks.
const ASKED_EVERY: usize = 200;
const BEGIN_NS: u64 = 1_767_225_600_000_000_000;

/// What leaks once in a while.
const CAUSES: [Cause; 10] = [
    Cause::TensorList,
    Cause::EvalGraph,
    Cause::UnboundedCache,
    Cause::LossGraph,
    Cause::Concatenated,
    Cause::HookList,
    Cause::StatesKept,
    Cause::GradientsKept,
    Cause::GraphPerShape,
    Cause::ExceptionKept,
];

/// What may grow in one epoch without leaking.
const BENIGN: [Kind; 13] = [
    Kind::CacheBySample,
    Kind::CacheAtRandom,
    Kind::CacheLongTail,
    Kind::CacheLate,
    Kind::Periodic,
    Kind::WarmUp,
    Kind::StepUp,
    Kind::RandomSizes,
    Kind::ReplayMemory,
    Kind::LastFew,
    Kind::LongestSoFar,
    Kind::HeldOver,
    Kind::BestFew,
];

/// Blocks and bytes from a step on.
type Course = Vec<(usize, u64, u64)>;

/// The tables of a rank.
pub struct LongStream {
    /// The recorded steps that come again and again.
    steps: Arc<Vec<SiteTable>>,
    /// What was added, by stack and phase of birth, and the private pools by stack.
    rows: BTreeMap<(StackId, Option<Phase>), Course>,
    pools: BTreeMap<StackId, Course>,
    /// Allocated, requested and reserved bytes of what was added, from a step on.
    levels: Vec<(usize, [u64; 3])>,
    asked: BTreeSet<usize>,
    step_ns: u64,
}

fn at<T>(course: &[T], step: usize, of: impl Fn(&T) -> usize) -> Option<&T> {
    course.get(course.partition_point(|point| of(point) <= step).checked_sub(1)?)
}

impl LongStream {
    /// How many tables there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        STEPS
    }

    /// Whether detectors are asked after a step.
    #[must_use]
    pub fn asks_after(&self, step: usize) -> bool {
        step % ASKED_EVERY == ASKED_EVERY - 1 || self.asked.contains(&step)
    }

    /// The table of a step.
    #[must_use]
    pub fn table(&self, step: usize) -> Option<SiteTable> {
        let recorded = self.steps.get(step % self.steps.len().max(1)).filter(|_| step < STEPS)?;
        let mut rows = recorded.rows.clone();
        for (&(stack, birth_phase), course) in &self.rows {
            let Some(&(_, blocks, bytes)) = at(course, step, |point| point.0).filter(|point| point.1 > 0) else {
                continue;
            };
            let row = SiteRow { stack, birth_epoch: 0, birth_phase, blocks, bytes };
            let key = |row: &SiteRow| (row.stack, row.birth_phase);
            match rows.binary_search_by_key(&key(&row), key) {
                Ok(known) => {
                    rows[known].blocks += blocks;
                    rows[known].bytes += bytes;
                }
                Err(place) => rows.insert(place, row),
            }
        }
        let pool = |(&stack, course): (&StackId, &Course)| {
            let &(_, segments, bytes) = at(course, step, |point| point.0)?;
            Some(PoolRow { stack, segments, bytes })
        };
        let [allocated, requested, reserved] = at(&self.levels, step, |level| level.0).map_or([0; 3], |level| level.1);
        let counters = Counters {
            allocated_bytes: recorded.counters.allocated_bytes + allocated,
            active_bytes: recorded.counters.active_bytes + allocated,
            requested_bytes: recorded.counters.requested_bytes + requested,
            reserved_bytes: recorded.counters.reserved_bytes + reserved,
            ..recorded.counters
        };
        let raised = |peaks: Peaks| Peaks {
            allocated_bytes: peaks.allocated_bytes + allocated,
            reserved_bytes: peaks.reserved_bytes + reserved,
        };
        Some(SiteTable {
            device: DeviceIndex(0),
            boundary: Boundary::StepEnd,
            epoch: 0,
            step: step as u64,
            time_ns: BEGIN_NS + step as u64 * self.step_ns,
            at_event: step as u64,
            exact: true,
            counters,
            peaks: raised(recorded.peaks),
            peaks_within: raised(recorded.peaks_within),
            found: false,
            rows,
            private_pools: self.pools.iter().filter_map(pool).collect(),
        })
    }
}

/// The steps of a training once it has settled, as of one epoch; `None` of one that still grows.
pub fn settled_steps(tables: &[SiteTable]) -> Option<Vec<SiteTable>> {
    let steps: Vec<&SiteTable> = tables.iter().filter(|table| table.boundary == Boundary::StepEnd).collect();
    let last = &steps[steps.len() / 2..steps.len() * 19 / 20];
    let bytes = |table: &&SiteTable| table.counters.allocated_bytes;
    let (least, most) = (last.iter().map(bytes).min()?, last.iter().map(bytes).max()?);
    // Step ends differ in what the last batch left; they do not drift.
    let drifts = last.first().map(bytes)?.abs_diff(last.last().map(bytes)?) > (most - least) / 2 + (1 << 20);
    (last.len() >= 20 && !drifts).then(|| last.iter().map(|&table| in_one_epoch(table)).collect())
}

fn in_one_epoch(table: &SiteTable) -> SiteTable {
    let mut rows: BTreeMap<(StackId, Option<Phase>), SiteRow> = BTreeMap::new();
    for row in &table.rows {
        let sum =
            rows.entry((row.stack, row.birth_phase)).or_insert(SiteRow { birth_epoch: 0, blocks: 0, bytes: 0, ..*row });
        sum.blocks += row.blocks;
        sum.bytes += row.bytes;
    }
    SiteTable { rows: rows.into_values().collect(), ..table.clone() }
}

/// A base with the run's many steps, each a single moment, in which those that leak have the blocks of a recorded step.
fn many_steps(base: &Base, steps: &[usize], seed: u64) -> Base {
    let tick = |step: usize| Event {
        time_ns: BEGIN_NS + step as u64,
        addr: 0,
        size: 0,
        stream: 0,
        pool: PoolId::DEFAULT,
        stack: StackId::NONE,
        action: Action::FreeCompleted,
    };
    let spans: Vec<Span> = (0..STEPS).map(|step| Span { begin: step, end: step }).collect();
    let mut many = Base::made((0..STEPS).map(tick).collect(), base.stacks.clone(), spans);
    many.epochs = twentieths(&many.steps);
    let stays = base.lives.iter().filter(|life| base.stays(life));
    many.lives = stays.map(|life| Life { born: 0, died: None, ..*life }).collect();
    let mut draw = Draw::fork(seed, "like");
    let like = draw.int(base.steps.len() as u64 / 2, base.steps.len() as u64 - 2) as usize;
    // One in the middle always: sizes and places of what is added are read off it.
    let mut leaking: BTreeSet<usize> = steps.iter().copied().collect();
    leaking.insert(STEPS / 2);
    for &step in &leaking {
        let here = |life: &Life| Life { born: step, died: Some(step), ..*life };
        many.lives.extend(base.activations(like).map(here));
        many.lives.extend(causes::gradients(base, like).map(here));
    }
    many.evals = steps.iter().map(|&step| Span { begin: step, end: step }).collect();
    many
}

/// The steps that leak: one in 100 to 1,000, at even distances (an evaluation, a checkpoint) or at random.
fn schedule(draw: &mut Draw) -> Vec<usize> {
    let every = draw.log_int(100, 1_000) as usize;
    let first = if draw.chance(0.5) { every - 1 } else { (draw.real(0.0, 0.3) * STEPS as f64) as usize };
    if draw.chance(0.5) {
        return (first..STEPS).step_by(every).collect();
    }
    (first..STEPS).filter(|_| draw.chance(1.0 / every as f64)).collect()
}

/// Makes run number `number`, leaky or clean.
#[must_use]
pub fn make(part: Part, trainings: &[Training], leaky: bool, number: u64) -> Run {
    let mut draw = Draw::fork(part.seed_of(leaky, number), "long");
    let cause = CAUSES[number as usize % CAUSES.len()];
    let size = cause.sizes()[number as usize / CAUSES.len() % cause.sizes().len()];
    loop {
        let training = draw.of(trainings);
        let Some(settled) = training.settled() else { continue };
        if !cause.fits(training.base(0)) {
            continue;
        }
        let steps = if leaky { schedule(&mut draw) } else { Vec::new() };
        if leaky && steps.len() < 10 {
            continue;
        }
        let base = Arc::new(many_steps(training.base(0), &steps, draw.int(0, u64::MAX - 1)));
        let device = draw_device(&mut draw);
        let mut run = Run::new(training.name, View::Long, vec![base.clone()], Sites::default(), device);
        let mut overlay = Overlay::default();
        for _ in 0..draw_count(leaky, &mut draw) {
            let plan = benign::Plan::draw(*draw.of(&BENIGN), &base, &mut run.sites, &mut draw);
            benign::grow(&base, &plan, &mut overlay);
            run.benign.push(plan.kind);
        }
        let step_ns = (draw.real(0.05_f64.ln(), 1.0_f64.ln()).exp() * 1e9) as u64;
        if leaky {
            leak(&mut run, (cause, size), &steps, &mut overlay, step_ns, &mut draw);
        }
        if run.truth.as_ref().is_some_and(|truth| truth.blocks.is_empty()) {
            continue;
        }
        let evaluates = leaky && cause == Cause::EvalGraph;
        let asked = run.truth.iter().flat_map(|truth| truth.blocks.iter().map(|&(at, _)| at)).collect();
        let phases = phases(&base, evaluates);
        run.streams.push(Stream::Long(added(overlay, &phases, settled, asked, step_ns)));
        return run;
    }
}

fn leak(
    run: &mut Run,
    (cause, size): (Cause, Size),
    steps: &[usize],
    overlay: &mut Overlay,
    step_ns: u64,
    draw: &mut Draw,
) {
    let base = run.bases[0].clone();
    let plan = causes::Plan::draw(cause, size, &base, &mut run.sites, draw);
    let evaluations: Vec<usize> = (0..steps.len()).collect();
    let of = if cause == Cause::EvalGraph { &evaluations } else { steps };
    let left = causes::leak(&base, &plan, &run.sites, of, overlay);
    run.truth = Some(Truth {
        cause,
        rate: Rate::Twentieth,
        size,
        ranks: vec![0],
        begun_ns: BEGIN_NS + left.blocks.first().map_or(0, |&(at, _)| at as u64) * step_ns,
        frames: left.frames,
        blocks: left.blocks,
        step_ends: (0..STEPS).collect(),
    });
}

/// The phase in which the blocks of a recorded stack are born.
fn phases(base: &Base, evaluates: bool) -> BTreeMap<StackId, Phase> {
    let born = base.lives.iter().filter_map(|life| Some((life.stack, life.phase?)));
    born.map(|(stack, phase)| (stack, if evaluates { Phase::Eval } else { phase })).collect()
}

/// What an overlay comes to, step by step.
fn added(
    overlay: Overlay,
    phases: &BTreeMap<StackId, Phase>,
    steps: Arc<Vec<SiteTable>>,
    asked: BTreeSet<usize>,
    step_ns: u64,
) -> LongStream {
    let mut stream =
        LongStream { steps, rows: BTreeMap::new(), pools: BTreeMap::new(), levels: Vec::new(), asked, step_ns };
    let mut arena = Arena::default();
    let mut live: BTreeMap<u32, (StackId, u64, u64)> = BTreeMap::new();
    let mut level = [0_u64; 3];
    for (step, block, change) in overlay.sorted() {
        let gone = arena.size(block);
        arena.change(block, change, 0, &mut |event| {
            if event.action == Action::SegmentAlloc {
                level[2] += event.size;
            }
        });
        match change {
            Change::Keep { size, stack } => {
                let bytes = arena.size(block).unwrap_or(size);
                live.insert(block.0, (stack, bytes, size));
                note(stream.rows.entry((stack, phases.get(&stack).copied())).or_default(), step, 1, bytes as i64);
                (level[0], level[1]) = (level[0] + bytes, level[1] + size);
            }
            Change::Capture { size, stack } => {
                let bytes = super::arena::captured_bytes(size);
                note(stream.pools.entry(stack).or_default(), step, 1, bytes as i64);
                note(stream.rows.entry((stack, phases.get(&stack).copied())).or_default(), step, 1, bytes as i64 / 4);
                (level[0], level[1]) = (level[0] + bytes / 4, level[1] + bytes / 4);
            }
            Change::Drop => {
                let Some((stack, bytes, size)) = live.remove(&block.0).filter(|_| gone.is_some()) else { continue };
                note(stream.rows.entry((stack, phases.get(&stack).copied())).or_default(), step, -1, -(bytes as i64));
                (level[0], level[1]) = (level[0] - bytes, level[1] - size);
            }
        }
        match stream.levels.last_mut() {
            Some(last) if last.0 == step => last.1 = level,
            _ => stream.levels.push((step, level)),
        }
    }
    stream
}

fn note(course: &mut Course, step: usize, blocks: i64, bytes: i64) {
    let (before, known_blocks, known_bytes) = course.last().copied().unwrap_or((usize::MAX, 0, 0));
    let point = (step, known_blocks.saturating_add_signed(blocks), known_bytes.saturating_add_signed(bytes));
    if before == step {
        course.pop();
    }
    course.push(point);
}
