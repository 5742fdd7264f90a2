//! Will it fit: forecasts what a training that was recorded at one or two sizes would hold at others, or with changes.
//!
//! Each recording comes with its number, the value that changed (batch, sequence, layers). The requests of two
//! recordings are aligned one by one (`align`), and each request's bytes become a function of the number (`law`). Then
//! the larger recording's requests are replayed with the bytes of another number ([`Fit::at`]). With one recording,
//! the caller states which requests scale ([`Scale`]); such a forecast is weaker. A [`Script`] can be replayed without
//! some of its requests (`edit`), or with modules checkpointed (`checkpoint`).
//!
//! The ratio of reserved to allocated bytes depends on how sizes happen to fit into segments. Also, at another number
//! a program makes requests that neither recording has. So the same requests are also replayed at numbers near the
//! requested one, and the interval covers the ratios of reserved to allocated bytes there.
//!
//! Guarantees: deterministic. The interval is widened by requests that were found in one recording only, changed in no
//! simple way, or are in doubt. More than [`REQUESTS_MAX`] requests are rejected. Behaviour of the program at another
//! number that it showed at neither number is not predicted.
//!
//! (Over 400 lines: a forecast, its interval and the largest number that fits are made of the same replays.)

mod align;
mod checkpoint;
mod cut;
mod edit;
mod law;
#[cfg(test)]
mod made;
pub mod measures;
mod script;
mod split;
mod sums;
mod uses;

use std::collections::HashMap;

use memctl_model::allocator;

use crate::allocator::Limit;
use crate::settings::Conf;
use crate::trial::Outcome;
pub use checkpoint::{CheckpointFacts, Checkpointed, Pass};
pub use cut::Failed;
use law::Law;
pub use script::{Life, Peak, REQUESTS_MAX, Script, TooLong, initial_blocks, stack_key};
use split::Split;

/// How the requests of the larger recording correspond to those of the smaller one. The fields are numbers of
/// requests, unless they are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Aligned {
    /// All requests of the larger recording.
    pub requests: u64,
    /// Requests with the same bytes in both.
    pub constant: u64,
    /// Requests with bytes proportional to the number.
    pub linear: u64,
    /// Requests with bytes proportional to the square of the number.
    pub quadratic: u64,
    /// Requests with bytes that changed otherwise.
    pub other: u64,
    /// Requests that only the larger recording has.
    pub unmatched: u64,
    /// Bytes of these requests in the larger recording.
    pub unmatched_bytes: u64,
}

/// How a request's bytes depend on the number, if there is only one recording and the purpose of the request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The same at every number.
    Fixed,
    /// Proportional to the number.
    Proportional,
    /// Probably the same at every number.
    PerhapsFixed,
    /// Probably proportional to the number.
    PerhapsProportional,
}

/// How the requests of one recording are assumed to scale. The fields are numbers of requests, unless they are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scaled {
    /// Requests for memory.
    pub requests: u64,
    /// Requests that are fixed or probably fixed.
    pub fixed: u64,
    /// Bytes of these requests.
    pub fixed_bytes: u64,
    /// Requests that are proportional or probably proportional.
    pub proportional: u64,
    /// Bytes of these requests.
    pub proportional_bytes: u64,
    /// Requests in doubt; they are also counted in one of the other groups.
    pub doubtful: u64,
    /// Bytes of these requests.
    pub doubtful_bytes: u64,
}

/// A point of the forecast's interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Low,
    Likely,
    High,
}

/// The forecast of what a training would hold at another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The likely outcome without a limit.
    pub likely: Outcome,
    /// Lowest peak of reserved bytes.
    pub low_bytes: u64,
    /// Highest peak of reserved bytes.
    pub high_bytes: u64,
    /// Whether every request is served under the limit with [`MARGIN_PERCENT`] of it to spare; `None` without a limit.
    /// With one recording, the margin also includes the spread of its forecast.
    pub fits: Option<bool>,
}

/// Percentage of the limit that must stay free for "fits". Nothing is promised within this distance of a limit.
pub const MARGIN_PERCENT: u64 = 3;
/// Possible error of a forecast, in percent, even if no request is in doubt: choices of libraries that neither
/// recording shows.
const SPREAD_PERCENT: u64 = 2;

/// Additional possible error of a forecast from one recording, in percent per doubling of the number, because its
/// scaling is derived and not observed.
const SPREAD_ALONE_PERCENT: u64 = 3;

/// Numbers near the requested one, as shares of it, at which the ratio of reserved to allocated bytes is also
/// computed.
const NEAR: [f64; 8] = [0.8, 0.87, 0.93, 0.97, 1.03, 1.07, 1.13, 1.2];

/// A recording and the dependency of its requests on the number.
#[derive(Clone, Debug)]
pub struct Fit {
    script: Script,
    conf: Conf,
    /// The law of each request of the recording, by [`Script::origin`].
    laws: Vec<Law>,
    /// Additional requests that directly follow a request of the recording at some numbers and are freed at once.
    behind: HashMap<usize, Split>,
    aligned: Aligned,
    scaled: Option<Scaled>,
    numbers: (f64, f64),
}

/// Why recordings do not allow a forecast for other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// The two numbers are equal, or one is not above 0.
    #[error("two recordings at two different numbers above 0 are needed")]
    Numbers,
    /// The number is not above 0.
    #[error("the number of a recording is above 0")]
    Number,
    /// The recordings are not of the same training.
    #[error("only {matched} of {requests} requests are in both recordings: they are not of one training")]
    Different {
        /// Requests found in both.
        matched: u64,
        /// Requests of the larger recording.
        requests: u64,
    },
}

/// If fewer requests than this percentage are aligned, the recordings are of two programs.
const MATCHED_PERCENT: u64 = 50;

impl Fit {
    /// Aligns two recordings, each with its number.
    ///
    /// # Errors See [`FitError`].
    pub fn new(one: (f64, Script), other: (f64, Script), conf: Conf) -> Result<Self, FitError> {
        let ((few, small), (many, script)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        if !(few > 0.0 && few < many && many.is_finite()) {
            return Err(FitError::Numbers);
        }
        let ratio = many / few;
        // Blocks that were live when a recording began are assumed to be constant.
        let (before, after) = (&small.wanted[small.initial_count..], &script.wanted[script.initial_count..]);
        let partners = align::align(before, after, ratio);
        let mut aligned = Aligned { requests: partners.len() as u64, ..Aligned::default() };
        let law_of = |(partner, wanted): (&Option<u32>, &script::Wanted)| match partner {
            Some(at) => Law::of((few, before[*at as usize].bytes), (many, wanted.bytes)),
            None => Law::Unmatched { number: many, bytes: wanted.bytes },
        };
        let initial = script.wanted[..script.initial_count].iter().map(|wanted| Law::Constant(wanted.bytes));
        let mut laws: Vec<Law> = initial.chain(partners.iter().zip(after).map(law_of)).collect();
        // Requests that only the larger recording has are counted as unmatched, even if a split sum explains their
        // bytes.
        laws[script.initial_count..].iter().for_each(|law| aligned.count(law));
        let behind = sums::settle((few, &small), (many, &script), &partners, &mut laws);
        let matched = aligned.requests - aligned.unmatched;
        if matched * 100 < aligned.requests * MATCHED_PERCENT {
            return Err(FitError::Different { matched, requests: aligned.requests });
        }
        Ok(Self { script, conf, laws, behind, aligned, scaled: None, numbers: (few, many) })
    }

    /// One recording with its number; `scale` returns how each of its requests scales.
    ///
    /// # Errors See [`FitError`].
    pub fn alone(
        (number, script): (f64, Script),
        scale: impl Fn(usize) -> Scale,
        conf: Conf,
    ) -> Result<Self, FitError> {
        if !(number > 0.0 && number.is_finite()) {
            return Err(FitError::Number);
        }
        let mut scaled = Scaled { requests: (script.wanted.len() - script.initial_count) as u64, ..Scaled::default() };
        let mut laws = Vec::with_capacity(script.wanted.len());
        for (request, wanted) in script.wanted.iter().enumerate() {
            let scale = if request < script.initial_count { Scale::Fixed } else { scale(request) };
            if request >= script.initial_count {
                scaled.count(scale, wanted.bytes);
            }
            laws.push(Law::scaled(scale, number, wanted.bytes));
        }
        let behind = sums::settle_alone(number, &script, &mut laws);
        let (aligned, numbers) = (Aligned::default(), (number, number));
        Ok(Self { script, conf, laws, behind, aligned, scaled: Some(scaled), numbers })
    }

    /// The same training with changes: `script` was derived from this one's script.
    #[must_use]
    pub fn with(&self, script: Script) -> Self {
        Self { script, ..self.clone() }
    }

    /// The requests; with two recordings, those of the larger one.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// The settings of the replay.
    #[must_use]
    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// How the requests of one recording were assumed to scale; `None` if two were aligned.
    #[must_use]
    pub fn scaled(&self) -> Option<&Scaled> {
        self.scaled.as_ref()
    }

    /// How the recordings were aligned.
    #[must_use]
    pub fn aligned(&self) -> &Aligned {
        &self.aligned
    }

    /// The two numbers, the smaller first.
    #[must_use]
    pub fn numbers(&self) -> (f64, f64) {
        self.numbers
    }

    /// Forecasts what the training would hold at a number, and whether every request is served under a limit.
    #[must_use]
    pub fn at(&self, number: f64, limit: Option<u64>) -> Forecast {
        let likely = self.replay(number, Bound::Likely, Limit::None);
        let peak = |bound| self.replay(number, bound, Limit::None).counts.peak_reserved_bytes;
        let (low, high) = (peak(Bound::Low), peak(Bound::High));
        let reserved = likely.counts.peak_reserved_bytes;
        // The reserved bytes at numbers near this one are scaled by the ratio of the allocated bytes.
        let allocated = |outcome: &Outcome| outcome.counts.peak_allocated_bytes.max(1) as f64;
        let near = NEAR.map(|share| self.replay(number * share, Bound::Likely, Limit::None));
        let scratch = self.scratch(number);
        let segment = self.segment_of(scratch);
        let as_here =
            near.map(|it| (it.counts.peak_reserved_bytes as f64 * (allocated(&likely) / allocated(&it))) as u64);
        // Reserved bytes are never below allocated bytes.
        let least = self.replay(number, Bound::Low, Limit::None).counts.peak_allocated_bytes;
        let low = as_here.into_iter().fold(low, u64::min).saturating_sub(scratch).max(least);
        let high = as_here.into_iter().fold(high, u64::max).saturating_add(segment);
        let fits = limit.map(|limit| {
            let within = limit - limit / 100 * self.margin_percent(number).min(100);
            let within = if self.is_another_peak(&likely) { within.saturating_sub(scratch) } else { within };
            let lives = |number: f64, bound: Bound, limit: u64| {
                self.replay(number, bound, Limit::Device(limit)).out_of_memory.is_none()
            };
            let here = |within| [Bound::Likely, Bound::High].into_iter().all(|bound| lives(number, bound, within));
            let as_tight = |it: &Outcome, within: u64| (within as f64 * (allocated(it) / allocated(&likely))) as u64;
            let nearby = |within| {
                let mut near = NEAR.into_iter().zip(&near);
                near.all(|(share, it)| lives(number * share, Bound::Likely, as_tight(it, within)))
            };
            let is_within = high.max(reserved) <= within;
            let within = within.saturating_sub(segment - scratch);
            is_within || here(within) && nearby(within)
        });
        let percent = self.spread_percent(number);
        let spread = |bytes: u64| (bytes / 100).saturating_mul(percent).min(bytes);
        Forecast {
            likely,
            low_bytes: low.min(reserved) - spread(low.min(reserved)),
            high_bytes: high.max(reserved).saturating_add(spread(high.max(reserved))),
            fits,
        }
    }

    /// The largest whole number that fits, found by bisection; `None` if not even 1 fits. `goes_on`
    /// is called before each replay. If it ends the search, the result is meaningless.
    #[must_use]
    pub fn largest(&self, limit: u64, goes_on: impl Fn() -> bool) -> Option<u64> {
        let fits = |number: u64| goes_on() && self.at(number as f64, Some(limit)).fits == Some(true);
        if !fits(1) {
            return None;
        }
        let mut above = 2_u64;
        while above < NUMBER_MAX && fits(above) {
            above *= 2;
        }
        let mut fitting = above / 2;
        while above - fitting > 1 {
            let middle = fitting.midpoint(above);
            if fits(middle) { fitting = middle } else { above = middle }
        }
        Some(fitting)
    }

    /// Whether the allocated peak is at a moment that was the highest in neither recording: the peak did not grow
    /// between the recordings, but it grows here. Requests of kernels at that moment were never observed at such a
    /// size, so "fits" leaves room for them.
    fn is_another_peak(&self, here: &Outcome) -> bool {
        let peak = |number: f64| self.replay(number, Bound::Likely, Limit::None).counts.peak_allocated_bytes;
        let many = peak(self.numbers.1);
        self.scaled.is_none() && many <= peak(self.numbers.0) && here.counts.peak_allocated_bytes > many
    }

    /// Bytes of a request that neither recording shows. Kernels that split a reduction request memory for its parts
    /// from some size on, or no longer do (`at::native::gpu_reduce_kernel`, Reduce.cuh). At most twice the largest
    /// growing request was observed.
    fn scratch(&self, number: f64) -> u64 {
        let grown = self.laws.iter().filter(|law| !matches!(law, Law::Constant(_)));
        grown.map(|law| law.bytes(number, Bound::Likely)).max().unwrap_or(0).saturating_mul(2)
    }

    /// Bytes that the device must have for a request of this size, if no cached memory serves it. At least the request.
    fn segment_of(&self, bytes: u64) -> u64 {
        let rounded = allocator::round(&self.conf.roundup_power2_divisions, bytes);
        if bytes == 0 { 0 } else { allocator::segment_bytes(rounded, self.conf.large_segment_bytes).max(bytes) }
    }

    /// Percentage of the limit that must stay free. With one recording it includes the spread of the forecast, because
    /// "fits" is a promise.
    fn margin_percent(&self, number: f64) -> u64 {
        match self.scaled {
            Some(_) => MARGIN_PERCENT.saturating_add(self.spread_percent(number)),
            None => MARGIN_PERCENT,
        }
    }

    /// Possible error of the forecast in percent, even if no request is in doubt.
    fn spread_percent(&self, number: f64) -> u64 {
        if self.scaled.is_none() {
            return SPREAD_PERCENT;
        }
        // The conversion from a float saturates.
        let doublings = (number / self.numbers.1).log2().abs().ceil() as u64;
        SPREAD_PERCENT.saturating_add(doublings.saturating_mul(SPREAD_ALONE_PERCENT))
    }

    fn replay(&self, number: f64, bound: Bound, limit: Limit) -> Outcome {
        let law = |request: usize| self.laws.get(self.script.origin(request));
        let bytes = |request: usize| law(request).map_or(0, |law| law.bytes(number, bound));
        let behind = |request: usize| self.behind.get(&self.script.origin(request)).map(|split| split.bytes(number));
        self.script.outcome_with(&self.conf, limit, bytes, |request| behind(request).filter(|&bytes| bytes > 0))
    }
}

/// Upper bound of a batch, a sequence or a number of layers.
pub const NUMBER_MAX: u64 = 1 << 24;

impl Aligned {
    fn count(&mut self, law: &Law) {
        match *law {
            Law::Constant(_) => self.constant += 1,
            Law::Linear { .. } => self.linear += 1,
            Law::Quadratic { .. } => self.quadratic += 1,
            Law::Affine { .. } | Law::Mixed { .. } | Law::Fallen { .. } | Law::Doubtful { .. } | Law::Split(_) => {
                self.other += 1;
            }
            Law::Unmatched { bytes, .. } => {
                self.unmatched += 1;
                self.unmatched_bytes = self.unmatched_bytes.saturating_add(bytes);
            }
        }
    }
}

impl Scaled {
    fn count(&mut self, scale: Scale, bytes: u64) {
        let (requests, sum) = match scale {
            Scale::Fixed | Scale::PerhapsFixed => (&mut self.fixed, &mut self.fixed_bytes),
            Scale::Proportional | Scale::PerhapsProportional => (&mut self.proportional, &mut self.proportional_bytes),
        };
        *requests += 1;
        *sum = sum.saturating_add(bytes);
        if matches!(scale, Scale::PerhapsFixed | Scale::PerhapsProportional) {
            self.doubtful += 1;
            self.doubtful_bytes = self.doubtful_bytes.saturating_add(bytes);
        }
    }
}
