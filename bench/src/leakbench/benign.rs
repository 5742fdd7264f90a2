//! Growth that is no leak: patterns of correct training code that look like a leak for a while.
//!
//! Guarantees: all memory that is added here is freed again, or it has a bound. The bound is expected to be reached by
//! [`BOUND_BY`] of the run. (A rare key or the longest record may come later.) The kinds and their distributions were
//! fixed before any detector was run. Only [`FULL_BY`] was changed later. The README lists the kinds and the changes.
//!
//! (Over 400 lines: twenty-two kinds of growth in short functions, beside the table that names them.)

use super::base::Base;
use super::causes::{Size, weights};
use super::draw::Draw;
use super::overlay::{Added, Overlay};
use super::site::{Place, Site, Sites, in_optimizer, position};

/// A bounded memory has reached its bound by this share of a run.
pub const BOUND_BY: f64 = 0.6;
/// A memory that fills at a steady rate is full by this share of a run. Slower ones are measured separately
/// ([`Kind::SlowMemory`]), because site tables cannot distinguish them from leaks before they are full.
pub const FULL_BY: f64 = 0.2;

/// The kinds of growth that are no leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A cache with one entry per sample. It is full when every sample has been seen.
    CacheBySample,
    /// A cache whose keys are drawn with equal probability.
    CacheAtRandom,
    /// A cache whose keys are drawn from a distribution with a long tail (sequence lengths, words).
    CacheLongTail,
    /// A cache by sample or at random that begins to fill late.
    CacheLate,
    /// Batches that are longer in each epoch, and a buffer that grows with them for a while.
    Curriculum,
    /// A buffer that fills and is cleared, at a fixed period or at the end of each epoch.
    Periodic,
    /// Workspaces that the first steps allocate.
    WarmUp,
    /// A copy of the weights, made one to three times.
    StepUp,
    /// The optimizer state of groups of weights that are unfrozen one after another.
    LazyState,
    /// Tensors that are replaced by ones of other sizes.
    RandomSizes,
    /// A replay memory that fills to its capacity.
    ReplayMemory,
    /// The last N entries of a history.
    LastFew,
    /// A queue between loader and training.
    Prefetch,
    /// A mask as long as the longest sequence so far.
    LongestSoFar,
    /// Outputs of an evaluation, collected and freed.
    EvalOutputs,
    /// The tensors of the last step. The tensors of the next step replace them.
    HeldOver,
    /// The best few checkpoints so far.
    BestFew,
    /// A memory that fills at a steady rate for a fifth to three fifths of the run. It is drawn only for its own table.
    SlowMemory,
    /// A prefix cache with LRU eviction that is full within a minute.
    LruCache,
    /// Conversations. Each one holds its state until it has had no request for some time.
    Sessions,
    /// Graphs captured for a few batch sizes while a server warms up.
    GraphsWarm,
    /// A prefix cache that takes one to three minutes to fill. It is drawn only for its own table.
    SlowLru,
}

impl Kind {
    /// The kinds that are drawn for trainings.
    pub const ALL: [Self; 17] = [
        Self::CacheBySample,
        Self::CacheAtRandom,
        Self::CacheLongTail,
        Self::CacheLate,
        Self::Curriculum,
        Self::Periodic,
        Self::WarmUp,
        Self::StepUp,
        Self::LazyState,
        Self::RandomSizes,
        Self::ReplayMemory,
        Self::LastFew,
        Self::Prefetch,
        Self::LongestSoFar,
        Self::EvalOutputs,
        Self::HeldOver,
        Self::BestFew,
    ];

    /// The kinds that are drawn for servers.
    pub const SERVING: [Self; 13] = [
        Self::CacheBySample,
        Self::CacheAtRandom,
        Self::CacheLongTail,
        Self::Periodic,
        Self::WarmUp,
        Self::StepUp,
        Self::RandomSizes,
        Self::Prefetch,
        Self::LongestSoFar,
        Self::HeldOver,
        Self::LruCache,
        Self::Sessions,
        Self::GraphsWarm,
    ];

    /// The kinds in [`Self::SERVING`] that trainings do not have.
    pub const OF_SERVERS: [Self; 3] = [Self::LruCache, Self::Sessions, Self::GraphsWarm];

    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CacheBySample => "cache by sample",
            Self::CacheAtRandom => "cache, random keys",
            Self::CacheLongTail => "cache, long-tailed keys",
            Self::CacheLate => "cache that fills late",
            Self::Curriculum => "curriculum",
            Self::Periodic => "periodic buffer",
            Self::WarmUp => "warm-up",
            Self::StepUp => "step up",
            Self::LazyState => "lazy optimizer state",
            Self::RandomSizes => "random sizes",
            Self::ReplayMemory => "replay memory",
            Self::LastFew => "last N",
            Self::Prefetch => "prefetch queue",
            Self::LongestSoFar => "longest so far",
            Self::EvalOutputs => "evaluation outputs",
            Self::HeldOver => "held over a step",
            Self::BestFew => "best checkpoints",
            Self::SlowMemory => "memory that fills slowly",
            Self::LruCache => "prefix cache",
            Self::Sessions => "conversations",
            Self::GraphsWarm => "graphs of a warm-up",
            Self::SlowLru => "prefix cache that fills slowly",
        }
    }

    /// Whether this kind is possible in a base.
    #[must_use]
    pub fn fits(self, base: &Base) -> bool {
        self != Self::EvalOutputs || !base.evals.is_empty()
    }
}

/// The harmless growth that was drawn for a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kind of growth.
    pub kind: Kind,
    /// The size of one added tensor.
    pub size: Size,
    /// The place in a step.
    pub place: Place,
    /// The sites that allocate it.
    pub sites: Vec<Site>,
    /// The seed of all further draws.
    pub seed: u64,
}

impl Plan {
    /// Draws the parameters that all ranks share.
    pub fn draw(kind: Kind, base: &Base, sites: &mut Sites, draw: &mut Draw) -> Self {
        let span = if kind == Kind::EvalOutputs { base.evals[0] } else { base.steps[base.steps.len() / 2] };
        let many = matches!(kind, Kind::Periodic | Kind::HeldOver | Kind::EvalOutputs | Kind::RandomSizes);
        let count = if many { draw.int(1, 3) } else { 1 };
        Self {
            kind,
            size: *draw.of(&Size::ALL),
            place: *draw.of(&Place::ALL),
            sites: (0..count).map(|_| sites.add(base, span, draw)).collect(),
            seed: draw.int(0, u64::MAX - 1),
        }
    }
}

struct Growing<'a> {
    base: &'a Base,
    plan: &'a Plan,
    overlay: &'a mut Overlay,
    draw: Draw,
    fraction: f64,
}

impl Growing<'_> {
    fn steps(&self) -> usize {
        self.base.steps.len()
    }

    fn at(&self, step: usize) -> usize {
        position(self.base, step.min(self.steps() - 1), self.plan.place, self.fraction)
    }

    fn bytes(&mut self) -> u64 {
        self.plan.size.bytes(self.base, &mut self.draw)
    }

    fn keep(&mut self, at: usize, bytes: u64, site: usize) -> Added {
        self.overlay.keep(at, bytes, self.plan.sites[site].id(self.base))
    }

    /// The number of the epoch of a step.
    fn epoch(&self, step: usize) -> usize {
        let at = self.base.steps[step].end;
        self.base.epochs.iter().position(|epoch| epoch.holds(at)).unwrap_or(0)
    }

    /// The average number of steps per epoch.
    fn epoch_steps(&self) -> usize {
        (self.steps() / self.base.epochs.len().max(1)).max(1)
    }
}

/// Adds harmless growth to a rank's stream.
pub fn grow(base: &Base, plan: &Plan, overlay: &mut Overlay) {
    let mut draw = Draw::fork(plan.seed, "benign");
    let fraction = draw.unit();
    let mut growing = Growing { base, plan, overlay, draw, fraction };
    match plan.kind {
        Kind::CacheBySample => by_sample(&mut growing, 0),
        Kind::CacheAtRandom => at_random(&mut growing, 0),
        Kind::CacheLongTail => long_tail(&mut growing),
        Kind::CacheLate => late(&mut growing),
        Kind::Curriculum => curriculum(&mut growing),
        Kind::Periodic => periodic(&mut growing),
        Kind::WarmUp => warm_up(&mut growing),
        Kind::StepUp => step_up(&mut growing),
        Kind::LazyState => lazy_state(&mut growing),
        Kind::RandomSizes => random_sizes(&mut growing),
        Kind::ReplayMemory => replay_memory(&mut growing),
        Kind::LastFew => last_few(&mut growing),
        Kind::Prefetch => prefetch(&mut growing),
        Kind::LongestSoFar => longest_so_far(&mut growing),
        Kind::EvalOutputs => eval_outputs(&mut growing),
        Kind::HeldOver => held_over(&mut growing),
        Kind::BestFew => best_few(&mut growing),
        Kind::SlowMemory => slow_memory(&mut growing),
        Kind::LruCache => lru_cache(&mut growing, 5.0, 60.0),
        Kind::SlowLru => lru_cache(&mut growing, 60.0, 180.0),
        Kind::Sessions => sessions(&mut growing),
        Kind::GraphsWarm => graphs_warm(&mut growing),
    }
}

/// From step `first`, every step of one epoch has a new sample.
fn by_sample(growing: &mut Growing<'_>, first: usize) {
    let bytes = growing.bytes();
    for step in first..(first + growing.epoch_steps()).min(growing.steps()) {
        growing.keep(growing.at(step), bytes, 0);
    }
}

/// With n keys, n (ln n + 0.6) draws are expected until all keys have been drawn. The number of keys is chosen so that
/// this happens by [`BOUND_BY`] of the remaining run.
fn at_random(growing: &mut Growing<'_>, first: usize) {
    let draws = (BOUND_BY * growing.steps() as f64 - first as f64).max(4.0);
    let most = (2..400_u64).take_while(|&n| n as f64 * ((n as f64).ln() + 0.6) <= draws).last().unwrap_or(2);
    let keys = growing.draw.log_int(most.min(4), most);
    cache(growing, first, &mut |draw| draw.int(0, keys - 1));
}

fn long_tail(growing: &mut Growing<'_>) {
    let most = (growing.steps() as u64 / 8).max(6);
    let keys = growing.draw.int(5, most);
    let exponent = growing.draw.real(0.7, 1.3);
    let weights: Vec<f64> = (1..=keys).map(|rank| (rank as f64).powf(-exponent)).collect();
    let all: f64 = weights.iter().sum();
    cache(growing, 0, &mut |draw| {
        let mut left = draw.real(0.0, all);
        weights
            .iter()
            .take_while(|&&weight| {
                left -= weight;
                left > 0.0
            })
            .count() as u64
    });
}

/// Either all entries have the same size, or each key has a size of its own.
fn cache(growing: &mut Growing<'_>, first: usize, key: &mut dyn FnMut(&mut Draw) -> u64) {
    let (same, bytes) = (growing.draw.chance(0.5), growing.bytes());
    let mut seen = std::collections::HashSet::new();
    for step in first..growing.steps() {
        if seen.insert(key(&mut growing.draw)) {
            let bytes = if same { bytes } else { growing.bytes() };
            growing.keep(growing.at(step), bytes, 0);
        }
    }
}

fn late(growing: &mut Growing<'_>) {
    let first = (growing.draw.real(0.1, 0.4) * growing.steps() as f64) as usize;
    if growing.draw.chance(0.5) { by_sample(growing, first) } else { at_random(growing, first) }
}

fn curriculum(growing: &mut Growing<'_>) {
    let (unit, until) = (growing.bytes(), growing.draw.real(0.3, BOUND_BY));
    let last = (until * growing.base.epochs.len() as f64) as usize;
    let mut buffer: Option<(usize, Added)> = None;
    for step in 0..growing.steps() {
        let (at, end) = (growing.at(step), position(growing.base, step, Place::End, 1.0));
        let length = growing.epoch(step).min(last) as u64 + 1;
        let batch = growing.keep(at, unit * length, 0);
        growing.overlay.drop(end.max(at), batch);
        let epoch = growing.epoch(step).min(last);
        if buffer.is_none_or(|(of, _)| of != epoch) {
            let longer = growing.keep(at, unit * length, 0);
            if let Some((_, shorter)) = buffer.replace((epoch, longer)) {
                growing.overlay.drop(at, shorter);
            }
        }
    }
}

fn periodic(growing: &mut Growing<'_>) {
    let by_epoch = growing.draw.chance(0.5);
    let period = growing.draw.log_int(3, 2 * growing.epoch_steps() as u64) as usize;
    let bytes: Vec<u64> =
        growing.plan.sites.iter().map(|_| growing.plan.size.bytes(growing.base, &mut growing.draw)).collect();
    let mut held: Vec<Added> = Vec::new();
    let mut filled = 0;
    for step in 0..growing.steps() {
        let at = growing.at(step);
        let now = if by_epoch { growing.epoch(step) } else { step / period };
        if now != filled {
            filled = now;
            held.drain(..).for_each(|block| growing.overlay.drop(at, block));
        }
        for (site, &bytes) in bytes.iter().enumerate() {
            held.push(growing.keep(at, bytes, site));
        }
    }
}

fn warm_up(growing: &mut Growing<'_>) {
    let steps = growing.draw.int(1, 20) as usize;
    for step in 0..steps.min(growing.steps()) {
        for _ in 0..growing.draw.int(0, 3) {
            let bytes = growing.bytes();
            growing.keep(growing.at(step), bytes, 0);
        }
    }
}

fn step_up(growing: &mut Growing<'_>) {
    for _ in 0..growing.draw.int(1, 3) {
        let step = (growing.draw.real(0.0, BOUND_BY) * growing.steps() as f64) as usize;
        let at = growing.at(step);
        for bytes in weights(growing.base).collect::<Vec<_>>() {
            growing.keep(at, bytes, 0);
        }
    }
}

/// Two to four groups of weights. Each weight of a group gets two tensors of state.
fn lazy_state(growing: &mut Growing<'_>) {
    let weights: Vec<u64> = weights(growing.base).collect();
    let groups = growing.draw.int(2, 4) as usize;
    for group in weights.chunks(weights.len().div_ceil(groups).max(1)) {
        let step = (growing.draw.real(0.0, BOUND_BY) * growing.steps() as f64) as usize;
        let at = in_optimizer(growing.base, step);
        for &bytes in group {
            growing.keep(at, bytes, 0);
            growing.keep(at, bytes, 0);
        }
    }
}

fn random_sizes(growing: &mut Growing<'_>) {
    let mut held: Vec<Option<Added>> = vec![None; growing.plan.sites.len()];
    let unit = growing.bytes();
    for step in 0..growing.steps() {
        let at = growing.at(step);
        for (site, held) in held.iter_mut().enumerate() {
            if !growing.draw.chance(0.7) {
                continue;
            }
            let bytes = (unit as f64 * growing.draw.real(-2.0, 2.0).exp()).max(4.0) as u64;
            if let Some(old) = held.take() {
                growing.overlay.drop(at, old);
            }
            *held = (!growing.draw.chance(0.1)).then(|| growing.keep(at, bytes, site));
        }
    }
}

/// One entry per step, or one in a few steps. The memory is full at a twentieth to a fifth of the run. From then on the
/// oldest entry is removed.
fn replay_memory(growing: &mut Growing<'_>) {
    let every = growing.draw.log_int(1, 5) as usize;
    let capacity = ((growing.draw.real(0.05, FULL_BY) * growing.steps() as f64) as usize / every).max(3);
    queue(growing, every, capacity);
}

/// One entry per step, or one in a few steps. The memory is full at a fifth to three fifths of the run.
fn slow_memory(growing: &mut Growing<'_>) {
    let every = growing.draw.log_int(1, 5) as usize;
    let capacity = ((growing.draw.real(FULL_BY, BOUND_BY) * growing.steps() as f64) as usize / every).max(3);
    queue(growing, every, capacity);
}

/// The last 4 to 128 entries. The history is full by [`FULL_BY`] of the run.
fn last_few(growing: &mut Growing<'_>) {
    let every = growing.draw.log_int(1, 5) as usize;
    let most = ((FULL_BY * growing.steps() as f64) as usize / every).max(4) as u64;
    let capacity = growing.draw.log_int(4, most.min(128)) as usize;
    queue(growing, every, capacity);
}

fn queue(growing: &mut Growing<'_>, every: usize, capacity: usize) {
    let bytes = growing.bytes();
    let mut held = std::collections::VecDeque::new();
    for step in (0..growing.steps()).step_by(every) {
        let at = growing.at(step);
        if held.len() >= capacity
            && let Some(oldest) = held.pop_front()
        {
            growing.overlay.drop(at, oldest);
        }
        held.push_back(growing.keep(at, bytes, 0));
    }
}

/// The queue has between 0 entries and its depth. The loader and the training act in random order.
fn prefetch(growing: &mut Growing<'_>) {
    let (depth, bytes) = (growing.draw.int(2, 8), growing.bytes());
    let mut held = std::collections::VecDeque::new();
    for step in 0..growing.steps() {
        let at = growing.at(step);
        let wanted = growing.draw.int(0, depth) as usize;
        while held.len() > wanted {
            held.pop_front().into_iter().for_each(|oldest| growing.overlay.drop(at, oldest));
        }
        while held.len() < wanted {
            held.push_back(growing.keep(at, bytes, 0));
        }
    }
}

fn longest_so_far(growing: &mut Growing<'_>) {
    let unit = growing.bytes();
    let (mut longest, mut held) = (0.0, None);
    let spread = growing.draw.real(0.1, 0.6);
    for step in 0..growing.steps() {
        // The sum of four uniform draws is approximately bell-shaped, and bounded.
        let bell: f64 = (0..4).map(|_| growing.draw.real(-1.0, 1.0)).sum();
        let length = (spread * bell).exp();
        if length > longest {
            longest = length;
            let at = growing.at(step);
            let longer = growing.keep(at, ((unit as f64 * length) as u64).max(4), 0);
            if let Some(shorter) = held.replace(longer) {
                growing.overlay.drop(at, shorter);
            }
        }
    }
}

/// Five to forty outputs of each evaluation. They are freed at its end, or when the next evaluation begins.
fn eval_outputs(growing: &mut Growing<'_>) {
    let (count, until_next, bytes) = (growing.draw.int(5, 40) as usize, growing.draw.chance(0.4), growing.bytes());
    let base = growing.base;
    let mut held: Vec<Added> = Vec::new();
    for &eval in &base.evals {
        let begin = base.settled(eval.begin);
        held.drain(..).for_each(|block| growing.overlay.drop(begin, block));
        for output in 0..count {
            let at = base.settled(eval.begin + (eval.end - eval.begin) * output / count).min(eval.end).max(begin);
            let site = output % growing.plan.sites.len();
            held.push(growing.keep(at, bytes, site));
        }
        if !until_next {
            held.drain(..).for_each(|block| growing.overlay.drop(eval.end.max(begin), block));
        }
    }
}

fn held_over(growing: &mut Growing<'_>) {
    let mut held: Vec<Added> = Vec::new();
    for step in 0..growing.steps() {
        let at = growing.at(step);
        let now: Vec<Added> = (0..growing.plan.sites.len())
            .map(|site| {
                let bytes = growing.bytes();
                growing.keep(at, bytes, site)
            })
            .collect();
        held.drain(..).for_each(|block| growing.overlay.drop(at, block));
        held = now;
    }
}

/// After each epoch the weights are kept if they are among the k best so far. If there are then k + 1 copies, the worst
/// one is removed.
fn best_few(growing: &mut Growing<'_>) {
    let k = growing.draw.int(1, 3) as usize;
    let weights: Vec<u64> = weights(growing.base).collect();
    let mut best: Vec<(f64, Vec<Added>)> = Vec::new();
    let last_of_epoch: Vec<usize> = (0..growing.steps())
        .filter(|&step| step + 1 == growing.steps() || growing.epoch(step + 1) != growing.epoch(step))
        .collect();
    for step in last_of_epoch {
        let score = growing.draw.unit();
        let worst = best.iter().map(|&(score, _)| score).fold(f64::INFINITY, f64::min);
        if best.len() >= k && score <= worst {
            continue;
        }
        let at = growing.at(step);
        let copies: Vec<Added> = weights.iter().map(|&bytes| growing.keep(at, bytes, 0)).collect();
        best.push((score, copies));
        if best.len() > k
            && let Some(place) = best.iter().position(|&(score, _)| score == worst)
        {
            for block in best.remove(place).1 {
                growing.overlay.drop(at, block);
            }
        }
    }
}

/// Seconds since the stream began.
fn seconds(base: &Base, at: usize) -> f64 {
    base.time_ns(at).saturating_sub(base.time_ns(0)) as f64 / 1e9
}

/// The cache is full after the drawn number of seconds. A hit changes nothing. A miss evicts the least recently used
/// entry.
fn lru_cache(growing: &mut Growing<'_>, soonest: f64, latest: f64) {
    let until = growing.draw.real(soonest.ln(), latest.ln()).exp();
    let (missed, same, bytes) = (growing.draw.real(0.3, 1.0), growing.draw.chance(0.5), growing.bytes());
    let mut held: Vec<Added> = Vec::new();
    for step in 0..growing.steps() {
        if !growing.draw.chance(missed) {
            continue;
        }
        let at = growing.at(step);
        if seconds(growing.base, at) > until && !held.is_empty() {
            // Hits move entries to the front, so an entry of the older half is evicted.
            let oldest = growing.draw.int(0, held.len() as u64 / 2) as usize;
            let gone = held.remove(oldest.min(held.len() - 1));
            growing.overlay.drop(at, gone);
        }
        let bytes = if same { bytes } else { growing.bytes() };
        held.push(growing.keep(at, bytes, 0));
    }
}

/// A conversation has 1 to 12 requests. Its state is freed after 5 to 40 seconds without a request.
fn sessions(growing: &mut Growing<'_>) {
    let (quiet, bytes) = (growing.draw.real(5.0, 40.0), growing.bytes());
    // For each conversation: its end, its remaining requests, and its blocks.
    let mut open: Vec<(f64, u64, Vec<Added>)> = Vec::new();
    for step in 0..growing.steps() {
        let at = growing.at(step);
        let now = seconds(growing.base, at);
        for (_, _, held) in open.extract_if(.., |(ends, ..)| *ends < now) {
            held.into_iter().for_each(|block| growing.overlay.drop(at, block));
        }
        let goes_on: Vec<usize> = (0..open.len()).filter(|&index| open[index].1 > 0).collect();
        let block = growing.keep(at, bytes, 0);
        if !goes_on.is_empty() && growing.draw.chance(0.6) {
            let (ends, left, held) = &mut open[*growing.draw.of(&goes_on)];
            (*ends, *left) = (now + quiet, *left - 1);
            held.push(block);
        } else {
            open.push((now + quiet, growing.draw.int(0, 11), vec![block]));
        }
    }
}

fn graphs_warm(growing: &mut Growing<'_>) {
    let site = growing.plan.sites[0].id(growing.base);
    for step in 0..(growing.draw.int(4, 12) as usize).min(growing.steps()) {
        let bytes = growing.draw.log_int(1 << 20, 64 << 20);
        growing.overlay.capture(growing.at(step), bytes, site);
    }
}
