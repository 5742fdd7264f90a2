//! The leaks. There are seventeen causes. Each is described by the blocks that it leaves in a stream.
//!
//! Guarantees: the steps, the bytes and the responsible frames of each leak are known. If the cause keeps tensors that
//! the training computes, each kept tensor is a copy of a recorded block (size, stack, position). Otherwise it is a
//! block of a new site.
//! Refuses a base in which the cause is not possible (no evaluation, no optimizer state).
//!
//! (Over 400 lines: seventeen causes, each in a short function, beside the tables that name them.)

use std::collections::BTreeSet;

use memctl_model::{BlockUse, FindingKind, Frame, Pattern, Phase};

use super::arena::captured_bytes;
use super::base::{Base, Life, Span};
use super::draw::Draw;
use super::overlay::{Added, Overlay};
use super::schedule::Rate;
use super::site::{Place, Site, Sites, in_optimizer, position};

/// The cause of a leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Copies of tensors are appended to a list.
    TensorList,
    /// Two to five lists of small tensors grow at the same time.
    MetricLists,
    /// A cache whose keys never occur again. Its entries have any size.
    UnboundedCache,
    /// A tensor is replaced by a longer one.
    Concatenated,
    /// The graph of a training step is kept, because its loss is.
    LossGraph,
    /// The graph of an evaluation is kept.
    EvalGraph,
    /// Each step's graph refers to the previous one, until the epoch is over.
    HiddenChain,
    /// A hook keeps one to three activations.
    HookList,
    /// A forward pass ended with an exception, and the exception's traceback is kept.
    Orphan,
    /// Gradients of past steps are kept.
    GradientsKept,
    /// Optimizers are created again, and the state of the old ones is kept.
    OptimizerRecreated,
    /// Copies of all weights are kept.
    StatesKept,
    /// A hook is registered again in every epoch. At every call it keeps a detached clone.
    HooksPileUp,
    /// A small piece is appended to a history at every step, by concatenation.
    HistoryGrows,
    /// A CUDA graph is captured for each new shape. The graph is kept with its pool.
    GraphPerShape,
    /// Exceptions are kept, and with them the objects that their frames hold.
    ExceptionKept,
    /// Requests' key-value caches are kept.
    KvKept,
}

impl Cause {
    /// The causes of the first two parts.
    pub const FIRST: [Self; 12] = [
        Self::TensorList,
        Self::MetricLists,
        Self::UnboundedCache,
        Self::Concatenated,
        Self::LossGraph,
        Self::EvalGraph,
        Self::HiddenChain,
        Self::HookList,
        Self::Orphan,
        Self::GradientsKept,
        Self::OptimizerRecreated,
        Self::StatesKept,
    ];

    /// The causes in trainings.
    pub const TRAINING: [Self; 16] = [
        Self::TensorList,
        Self::MetricLists,
        Self::UnboundedCache,
        Self::Concatenated,
        Self::LossGraph,
        Self::EvalGraph,
        Self::HiddenChain,
        Self::HookList,
        Self::Orphan,
        Self::GradientsKept,
        Self::OptimizerRecreated,
        Self::StatesKept,
        Self::HooksPileUp,
        Self::HistoryGrows,
        Self::GraphPerShape,
        Self::ExceptionKept,
    ];

    /// The causes in servers.
    pub const SERVING: [Self; 6] = [
        Self::KvKept,
        Self::TensorList,
        Self::UnboundedCache,
        Self::HistoryGrows,
        Self::GraphPerShape,
        Self::ExceptionKept,
    ];

    /// The kinds of a finding that are right answers.
    #[must_use]
    pub const fn kinds(self) -> &'static [FindingKind] {
        match self {
            Self::EvalGraph => &[FindingKind::EvalGraph],
            Self::LossGraph => &[FindingKind::GraphKept],
            Self::HiddenChain => &[FindingKind::HiddenChain],
            // The graph up to the exception. If the exception came early, only a few tensors.
            Self::Orphan => &[FindingKind::GraphKept, FindingKind::Leak],
            Self::GraphPerShape => &[FindingKind::PrivatePools],
            _ => &[FindingKind::Leak],
        }
    }

    /// The patterns of a finding that are right answers; empty if any pattern is right.
    #[must_use]
    pub const fn patterns(self) -> &'static [Pattern] {
        match self {
            Self::EvalGraph => &[Pattern::EvalGraph],
            Self::LossGraph => &[Pattern::GraphKept],
            Self::HiddenChain => &[Pattern::HiddenChain],
            Self::Orphan => &[Pattern::GraphKept, Pattern::TensorsKept],
            Self::Concatenated | Self::HistoryGrows => &[Pattern::ReplacedByLarger],
            Self::OptimizerRecreated => &[Pattern::OptimizerRecreated, Pattern::OptimizerState],
            Self::HooksPileUp => &[Pattern::HooksPileUp],
            Self::GraphPerShape => &[Pattern::GraphsCaptured],
            _ => &[Pattern::TensorsKept],
        }
    }

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TensorList => "tensor list",
            Self::MetricLists => "several metric lists",
            Self::UnboundedCache => "unbounded cache",
            Self::Concatenated => "replaced by a longer one",
            Self::LossGraph => "graph kept by a loss",
            Self::EvalGraph => "graph of an evaluation",
            Self::HiddenChain => "hidden-state chain",
            Self::HookList => "hook keeps activations",
            Self::Orphan => "orphans of an exception",
            Self::GradientsKept => "gradients kept",
            Self::OptimizerRecreated => "optimizer recreated",
            Self::StatesKept => "copies of the weights",
            Self::HooksPileUp => "hooks pile up",
            Self::HistoryGrows => "history concatenated",
            Self::GraphPerShape => "graph for each shape",
            Self::ExceptionKept => "exceptions kept",
            Self::KvKept => "key-value caches kept",
        }
    }

    /// The rates at which it occurs.
    #[must_use]
    pub const fn rates(self) -> &'static [Rate] {
        match self {
            Self::HiddenChain => &[Rate::Step],
            Self::EvalGraph => &[Rate::Epoch],
            Self::OptimizerRecreated | Self::StatesKept => &[Rate::Twentieth, Rate::Epoch],
            Self::Orphan | Self::GraphPerShape | Self::ExceptionKept => &[Rate::Fifth, Rate::Twentieth, Rate::Epoch],
            Self::HooksPileUp | Self::HistoryGrows => &[Rate::Step],
            _ => &Rate::ALL,
        }
    }

    /// The sizes that it can have.
    #[must_use]
    pub const fn sizes(self) -> &'static [Size] {
        match self {
            Self::TensorList | Self::UnboundedCache | Self::Concatenated => &Size::ALL,
            Self::MetricLists => &[Size::Tiny],
            _ => &[Size::Activation],
        }
    }

    /// Whether the cause is possible in a base.
    #[must_use]
    pub fn fits(self, base: &Base) -> bool {
        let middle = base.steps.len() / 2;
        match self {
            Self::EvalGraph => base.evals.len() >= 5,
            Self::OptimizerRecreated => optimizer_state(base).next().is_some(),
            Self::GradientsKept => gradients(base, middle).next().is_some(),
            Self::HiddenChain => {
                base.steps.len() / base.epochs.len().max(1) >= 8 && base.activations(middle).count() >= 5
            }
            Self::LossGraph | Self::HookList | Self::Orphan | Self::HooksPileUp | Self::ExceptionKept => {
                base.activations(middle).count() >= 5
            }
            _ => true,
        }
    }
}

/// The size of a leaked tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Size {
    /// At most 512 bytes.
    Tiny,
    /// 0.75 to 1.5 MiB.
    Megabyte,
    /// The size of an activation of this training.
    Activation,
}

impl Size {
    /// Every size.
    pub const ALL: [Self; 3] = [Self::Tiny, Self::Megabyte, Self::Activation];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tiny => "512 B",
            Self::Megabyte => "1 MB",
            Self::Activation => "activation",
        }
    }

    /// Bytes of one tensor.
    pub fn bytes(self, base: &Base, draw: &mut Draw) -> u64 {
        match self {
            Self::Tiny => draw.int(1, 128) * 4,
            Self::Megabyte => draw.int(196_608, 393_216) * 4,
            Self::Activation => {
                let sizes: Vec<u64> =
                    base.activations(base.steps.len() / 2).map(|life| life.size).filter(|&size| size >= 4096).collect();
                if sizes.is_empty() { draw.log_int(4096, 8 << 20) } else { *draw.of(&sizes) }
            }
        }
    }
}

/// The leak that was drawn for a run. It is the same on every leaking rank.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cause.
    pub cause: Cause,
    /// The size of a leaked tensor.
    pub size: Size,
    /// The place in a step.
    pub place: Place,
    /// The seed of all further draws.
    pub seed: u64,
    /// The new sites, if the cause needs any.
    pub sites: Vec<Site>,
}

impl Plan {
    /// Draws the parameters that all ranks share.
    pub fn draw(cause: Cause, size: Size, base: &Base, sites: &mut Sites, draw: &mut Draw) -> Self {
        let new_sites = match cause {
            Cause::TensorList | Cause::UnboundedCache | Cause::Concatenated | Cause::StatesKept => 1,
            Cause::HistoryGrows | Cause::GraphPerShape | Cause::ExceptionKept | Cause::HooksPileUp => 1,
            Cause::MetricLists => draw.int(2, 5),
            _ => 0,
        };
        let span = base.steps[base.steps.len() / 2];
        let hook = cause == Cause::HooksPileUp;
        Self {
            cause,
            size,
            place: *draw.of(&Place::ALL),
            seed: draw.int(0, u64::MAX - 1),
            sites: (0..new_sites)
                .map(|_| if hook { sites.add_hook(base, draw) } else { sites.add(base, span, draw) })
                .collect(),
        }
    }
}

/// The blocks of a leak in one rank's stream.
#[derive(Clone, Debug, Default)]
pub struct LeakedBlocks {
    /// Position and bytes of each leaked block, in order.
    pub blocks: Vec<(usize, u64)>,
    /// The frames of which each one is a right answer.
    pub frames: BTreeSet<Frame>,
}

/// The optimizer state.
fn optimizer_state(base: &Base) -> impl Iterator<Item = &Life> {
    base.lives.iter().filter(|life| life.phase == Some(Phase::Optimizer) && base.stays(life))
}

/// The gradients of a step. They are allocated in the backward pass, and they live for long or beyond the step.
pub fn gradients(base: &Base, step: usize) -> impl Iterator<Item = &Life> {
    let span = base.steps[step];
    let long = (span.end - span.begin) / 10;
    base.born_in(span).iter().filter(move |life| {
        let backward = life.phase == Some(Phase::Backward) && life.stack.is_some();
        backward && life.died.is_none_or(|died| died >= life.born + long)
    })
}

/// A pseudo-random number in `0..1` that depends on a stack's frames. It is the same on every rank.
fn lot(frames: &[Frame], seed: u64) -> f64 {
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for frame in frames {
        for byte in frame.file.bytes().chain(frame.function.bytes()).chain(frame.line.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    Draw::new(hash).unit()
}

struct Leaking<'a> {
    base: &'a Base,
    overlay: &'a mut Overlay,
    left: LeakedBlocks,
    stacks: Vec<&'a [Frame]>,
}

impl<'a> Leaking<'a> {
    fn keep(&mut self, at: usize, size: u64, site: Site) -> Added {
        self.left.blocks.push((at, size));
        self.overlay.keep(at, size, site.id(self.base))
    }

    /// Adds a copy of a recorded block that is never freed.
    fn copy(&mut self, life: &'a Life) -> Added {
        self.copy_at(life, self.base.settled(life.born))
    }

    fn copy_at(&mut self, life: &'a Life, at: usize) -> Added {
        self.left.blocks.push((at, life.size));
        let frames = self.base.frames(life.stack);
        if !self.stacks.contains(&frames) {
            self.stacks.push(frames);
        }
        self.overlay.keep(at, life.size, life.stack)
    }

    fn finish(mut self, sites: &Sites, plan: &Plan) -> LeakedBlocks {
        self.left.frames.extend(plan.sites.iter().filter_map(|&site| sites.user_frame(site)).cloned());
        self.left.frames.extend(to_blame(&self.stacks));
        self.left.blocks.sort_unstable();
        self.left
    }
}

/// The lines that are right answers. They are the user's own frames from the innermost shared frame inwards. The
/// outermost frame is left out, because it is not specific. If no frame is the user's own, the innermost frame is the
/// answer.
fn to_blame(stacks: &[&[Frame]]) -> BTreeSet<Frame> {
    let own = |stack: &[Frame]| stack.iter().rev().filter(|frame| frame.is_user_code()).cloned().collect::<Vec<_>>();
    let foreign = stacks.iter().filter(|stack| own(stack).is_empty());
    let mut frames: BTreeSet<Frame> = foreign.filter_map(|stack| stack.first()).cloned().collect();
    let own: Vec<Vec<Frame>> = stacks.iter().map(|stack| own(stack)).filter(|own| !own.is_empty()).collect();
    let Some(first) = own.first() else { return frames };
    let shared = (0..first.len()).take_while(|&depth| own.iter().all(|own| own.get(depth) == first.get(depth)));
    let from = shared.count().saturating_sub(1);
    for own in &own {
        let from = if own.len() > 1 { from.max(1) } else { 0 };
        frames.extend(own[from..].iter().cloned());
    }
    frames.extend(stacks.iter().filter_map(|stack| calls_the_model(stack)).cloned());
    frames
}

/// The innermost of the user's own frames outside a model's forward pass. The code there decides what happens to the
/// result.
fn calls_the_model(stack: &[Frame]) -> Option<&Frame> {
    let is_forward = |frame: &Frame| matches!(frame.plain_function(), "forward" | "_call_impl" | "_wrapped_call_impl");
    let outermost = stack.iter().rposition(is_forward)?;
    stack[outermost + 1..].iter().find(|frame| frame.is_user_code())
}

/// Adds a leak to a rank's stream. `steps` are the steps in which it leaks. If the leak is in evaluations, `steps` are
/// the evaluations.
pub fn leak(base: &Base, plan: &Plan, sites: &Sites, steps: &[usize], overlay: &mut Overlay) -> LeakedBlocks {
    let mut draw = Draw::fork(plan.seed, "leak");
    let mut leaking = Leaking { base, overlay, left: LeakedBlocks::default(), stacks: Vec::new() };
    match plan.cause {
        Cause::TensorList | Cause::MetricLists | Cause::UnboundedCache => {
            let same = plan.cause != Cause::UnboundedCache;
            let fixed: Vec<u64> = plan.sites.iter().map(|_| plan.size.bytes(base, &mut draw)).collect();
            let fraction = draw.unit();
            for &step in steps {
                let at = position(base, step, plan.place, fraction);
                for (&site, &fixed) in plan.sites.iter().zip(&fixed) {
                    let size = if same { fixed } else { plan.size.bytes(base, &mut draw) };
                    leaking.keep(at, size, site);
                }
            }
        }
        Cause::Concatenated => concatenated(&mut leaking, plan, steps, &mut draw),
        Cause::LossGraph | Cause::HookList | Cause::Orphan => {
            for &step in steps {
                let cut = if plan.cause == Cause::Orphan { draw.real(0.1, 1.0) } else { 1.0 };
                let all: Vec<&Life> = base.activations(step).collect();
                let reached = ((all.len() as f64 * cut).ceil() as usize).min(all.len());
                for life in chosen(base, plan, &all[..reached]) {
                    leaking.copy(life);
                }
            }
        }
        Cause::EvalGraph => {
            for &eval in steps {
                let all: Vec<&Life> =
                    base.born_in(base.evals[eval]).iter().filter(|life| life.stack.is_some()).collect();
                for life in chosen(base, plan, &all) {
                    leaking.copy(life);
                }
            }
        }
        Cause::HiddenChain => hidden_chain(&mut leaking, plan, steps),
        Cause::HooksPileUp => hooks_pile_up(&mut leaking, plan, steps, &mut draw),
        Cause::HistoryGrows => history_grows(&mut leaking, plan, steps, &mut draw),
        Cause::GraphPerShape => graph_per_shape(&mut leaking, plan, steps, &mut draw),
        Cause::ExceptionKept => exceptions_kept(&mut leaking, plan, steps, &mut draw),
        Cause::KvKept => {
            for &step in steps {
                let held: Vec<&Life> = base.held_to_the_end(step).collect();
                let at = base.releases.get(step).map_or(base.steps[step].end, |&release| release.saturating_sub(1));
                held.into_iter().for_each(|life| {
                    leaking.copy_at(life, at);
                });
            }
        }
        Cause::GradientsKept => {
            for &step in steps {
                for life in gradients(base, step) {
                    leaking.copy(life);
                }
            }
        }
        Cause::OptimizerRecreated => {
            for &step in steps {
                let at = in_optimizer(base, step);
                for life in optimizer_state(base) {
                    leaking.copy_at(life, at);
                }
            }
        }
        Cause::StatesKept => {
            for &step in steps {
                let at = position(base, step, plan.place, 1.0);
                for size in weights(base) {
                    leaking.keep(at, size, plan.sites[0]);
                }
            }
        }
    }
    leaking.finish(sites, plan)
}

/// The sizes of the weights: blocks that are allocated before the first step and never freed.
pub fn weights(base: &Base) -> impl Iterator<Item = u64> {
    let first = base.steps.first().map_or(0, |span| span.end);
    let kept = base.lives.iter().take_while(move |life| life.born <= first);
    let kept = kept.filter(|life| base.stays(life) && life.phase != Some(Phase::Optimizer)).map(|life| life.size);
    let before = base.start.segments.iter().flat_map(|segment| &segment.blocks);
    let before = before.filter(|block| block.usage == BlockUse::Allocated).map(|block| block.requested);
    kept.chain(before).take(120)
}

/// The blocks that a graph or a hook holds, chosen by their stacks.
fn chosen<'a>(base: &Base, plan: &Plan, all: &[&'a Life]) -> Vec<&'a Life> {
    let lot = |life: &Life| lot(base.frames(life.stack), plan.seed);
    let share = Draw::fork(plan.seed, "share").real(0.6, 1.0);
    if plan.cause != Cause::HookList {
        return all.iter().copied().filter(|life| lot(life) < share).collect();
    }
    // The numbers of the stacks, each once. The stacks with the lowest numbers get hooks.
    let mut lots: Vec<f64> = all.iter().map(|life| lot(life)).collect();
    lots.sort_unstable_by(f64::total_cmp);
    lots.dedup();
    let hooked = Draw::fork(plan.seed, "hooks").int(1, 3) as usize;
    let limit = lots.get(hooked.min(lots.len()).saturating_sub(1)).copied().unwrap_or(0.0);
    all.iter().copied().filter(|life| lot(life) <= limit).collect()
}

fn concatenated(leaking: &mut Leaking<'_>, plan: &Plan, steps: &[usize], draw: &mut Draw) {
    let piece = plan.size.bytes(leaking.base, draw).max(512);
    let (mut held, fraction) = (None, draw.unit());
    for (&step, times) in steps.iter().zip(1..) {
        let at = position(leaking.base, step, plan.place, fraction);
        let longer = leaking.overlay.keep(at, piece * times, plan.sites[0].id(leaking.base));
        leaking.left.blocks.push((at, piece));
        if let Some(shorter) = held.replace(longer) {
            leaking.overlay.drop(at, shorter);
        }
    }
}

/// Maximum number of hooks that are registered at a time, and of calls of all hooks per step. Users would notice more
/// by the run time.
const HOOKS_MAX: u64 = 24;

/// In the n-th epoch of the leak, the hook is called n times per step and keeps a clone each time.
fn hooks_pile_up(leaking: &mut Leaking<'_>, plan: &Plan, steps: &[usize], draw: &mut Draw) {
    let (base, site) = (leaking.base, plan.sites[0]);
    let bytes = plan.size.bytes(base, draw);
    let mut epochs: Vec<Option<usize>> = Vec::new();
    for &step in steps {
        let at = position(base, step, Place::Forward, 0.5);
        let epoch = base.epochs.iter().position(|epoch| epoch.holds(base.steps[step].begin));
        if epochs.last() != Some(&epoch) {
            epochs.push(epoch);
        }
        (0..(epochs.len() as u64).min(HOOKS_MAX)).for_each(|_| {
            leaking.keep(at, bytes, site);
        });
    }
}

/// Pieces have 64 B to 4 KiB. The allocator rounds sizes up. So with small pieces, memory rises only once in a few
/// steps.
fn history_grows(leaking: &mut Leaking<'_>, plan: &Plan, steps: &[usize], draw: &mut Draw) {
    let piece = draw.log_int(16, 1024) * 4;
    let (mut held, fraction) = (None, draw.unit());
    for (&step, times) in steps.iter().zip(1..) {
        let at = position(leaking.base, step, plan.place, fraction);
        let longer = leaking.overlay.keep(at, piece * times, plan.sites[0].id(leaking.base));
        leaking.left.blocks.push((at, piece));
        if let Some(shorter) = held.replace(longer) {
            leaking.overlay.drop(at, shorter);
        }
    }
}

fn graph_per_shape(leaking: &mut Leaking<'_>, plan: &Plan, steps: &[usize], draw: &mut Draw) {
    for &step in steps {
        let at = position(leaking.base, step, plan.place, 1.0);
        let bytes = draw.log_int(1 << 20, 96 << 20);
        leaking.overlay.capture(at, bytes, plan.sites[0].id(leaking.base));
        leaking.left.blocks.push((at, captured_bytes(bytes)));
    }
}

/// The input, and the few tensors that the frames held at the exception. The exception occurs at any point of the
/// forward pass.
fn exceptions_kept(leaking: &mut Leaking<'_>, plan: &Plan, steps: &[usize], draw: &mut Draw) {
    let base = leaking.base;
    let input = plan.size.bytes(base, draw);
    for &step in steps {
        leaking.keep(position(base, step, Place::Forward, 0.0), input, plan.sites[0]);
        let all: Vec<&Life> = base.activations(step).collect();
        let reached = (draw.unit() * all.len() as f64) as usize;
        let count = draw.int(1, 4) as usize;
        all.iter().skip(reached).take(count).for_each(|life| {
            leaking.copy(life);
        });
    }
}

/// All memory of an epoch is freed after the first step of the next epoch. Until then each backward pass walks the
/// graphs of all previous steps, and allocates memory for every block in them.
fn hidden_chain(leaking: &mut Leaking<'_>, plan: &Plan, steps: &[usize]) {
    let base = leaking.base;
    let (mut held, mut earlier) = (Vec::new(), Vec::new());
    let mut epoch = None;
    for &step in steps {
        let span: Span = base.steps[step];
        let now = base.epochs.iter().position(|epoch| epoch.holds(span.begin));
        if now != epoch {
            let at = base.settled(span.begin);
            held.drain(..).for_each(|block| leaking.overlay.drop(at, block));
            earlier.clear();
            epoch = now;
        }
        let all: Vec<&Life> = base.activations(step).collect();
        let made = chosen(base, plan, &all);
        let backward = made.iter().map(|life| base.settled(life.born)).max().unwrap_or(span.begin);
        for (size, stack) in earlier.iter().copied() {
            let gradient = leaking.overlay.keep(backward, size, stack);
            leaking.overlay.drop(backward, gradient);
        }
        for life in made {
            earlier.push((life.size, life.stack));
            held.push(leaking.copy(life));
        }
    }
}
