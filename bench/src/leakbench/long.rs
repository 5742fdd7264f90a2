//! Runs of one epoch with 20,000 steps, as is usual in pretraining.
//!
//! Guarantees: the part and the run's number determine everything. The tables come from [`super::long_stream`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use memctl_model::{Action, Event, Phase, PoolId, StackId};

use super::base::{Base, Life, Span};
use super::benign::{self, Kind};
use super::causes::{self, Cause, Size};
use super::draw::Draw;
use super::long_stream::{BEGIN_NS, STEPS, added};
use super::overlay::Overlay;
use super::parts::{Part, Training, View};
use super::runs::{Run, Truth, draw_count, draw_device};
use super::schedule::Rate;
use super::serving::twentieths;
use super::site::Sites;
use super::stream::Stream;

/// A leak counts as missed if it is not found before it has leaked this many times.
pub const FOUND_WITHIN_TIMES: u64 = 30;

/// The causes that leak in some of the steps only.
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

/// The kinds of growth within one epoch that are no leaks.
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

/// A base with the run's many steps. Each step is a single moment. Steps that leak have the blocks of a recorded step.
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
    // The middle step always has blocks, because the sizes and places of added blocks are derived from it.
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

/// The steps that leak: one in 100 to 1,000. They are at equal distances (as with an evaluation or a checkpoint) or at
/// random.
fn schedule(draw: &mut Draw) -> Vec<usize> {
    let every = draw.log_int(100, 1_000) as usize;
    let first = if draw.chance(0.5) { every - 1 } else { (draw.real(0.0, 0.3) * STEPS as f64) as usize };
    if draw.chance(0.5) {
        return (first..STEPS).step_by(every).collect();
    }
    (first..STEPS).filter(|_| draw.chance(1.0 / every as f64)).collect()
}

/// Makes run number `number`. It is leaky or clean.
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

/// The phase in which the blocks of a recorded stack are allocated.
fn phases(base: &Base, evaluates: bool) -> BTreeMap<StackId, Phase> {
    let born = base.lives.iter().filter_map(|life| Some((life.stack, life.phase?)));
    born.map(|(stack, phase)| (stack, if evaluates { Phase::Eval } else { phase })).collect()
}
