//! Will it fit: a training was recorded at one or two sizes; what would it hold at others, or with changes?
//!
//! The number that changed (batch, sequence, layers) is named with each recording. The requests of two recordings are
//! aligned one by one (`align`), each request's bytes become a function of the number (`law`), and the larger
//! recording's requests are replayed with the bytes of another number ([`Fit::at`]). With one recording the caller
//! states what scales ([`Scale`]), which is weaker. A [`Script`] can be replayed without some of its requests (`edit`),
//! or with modules checkpointed (`checkpoint`).
//!
//! How much more is reserved than allocated depends on how sizes happen to fit into segments, and at another number a
//! program makes requests that neither recording has. So the same requests are also replayed at numbers near the
//! requested one, and the interval covers the ratio of reserved to allocated bytes there.
//!
//! Guarantees: deterministic; requests that were found in one recording only, changed in no simple way, or are in doubt
//! widen the interval. Refuses more than [`REQUESTS_MAX`] requests, and to predict behaviour of the program at another
//! number that it showed at neither.

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

use crate::allocator::Limit;
use crate::settings::Conf;
use crate::trial::Outcome;
pub use checkpoint::{Checkpointed, Known, Pass};
pub use cut::Failed;
use law::Law;
pub use script::{Life, Peak, REQUESTS_MAX, Script, TooLong, found, stack_key};
use split::Split;

/// How the requests of the larger recording found theirs in the smaller one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Aligned {
    /// Requests of the larger recording.
    pub requests: u64,
    /// The same bytes in both.
    pub constant: u64,
    /// Bytes in proportion to the number.
    pub linear: u64,
    /// Bytes in proportion to the number's square.
    pub quadratic: u64,
    /// Bytes that changed otherwise.
    pub other: u64,
    /// Requests that only the larger recording has.
    pub unmatched: u64,
    /// Their bytes in the larger recording.
    pub unmatched_bytes: u64,
}

/// How a request's bytes follow the number, if there is only one recording and the purpose of the request is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The same at every number.
    Fixed,
    /// In proportion to it.
    Proportional,
    /// More likely the same than in proportion.
    PerhapsFixed,
    /// More likely in proportion than the same.
    PerhapsProportional,
}

/// How the requests of one recording are taken to scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Scaled {
    /// Requests for memory.
    pub requests: u64,
    /// Those that stay the same, and those of which that is more likely.
    pub fixed: u64,
    /// Their bytes.
    pub fixed_bytes: u64,
    /// Those in proportion, and those of which that is more likely.
    pub proportional: u64,
    /// Their bytes.
    pub proportional_bytes: u64,
    /// Those in doubt, which are among the others.
    pub doubtful: u64,
    /// Their bytes.
    pub doubtful_bytes: u64,
}

/// Which end of the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Low,
    Likely,
    High,
}

/// What a training would hold at another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Without a limit.
    pub likely: Outcome,
    /// Lowest peak of reserved bytes.
    pub low_bytes: u64,
    /// Highest peak of reserved bytes.
    pub high_bytes: u64,
    /// Under the limit: whether every request is served, with [`MARGIN_PERCENT`] of it to spare; from one recording, with what its
    /// forecast may be off besides.
    pub fits: Option<bool>,
}

/// What "fits" leaves free: within it of a limit nothing is promised.
pub const MARGIN_PERCENT: u64 = 3;
/// What a forecast may be off without any request being so, in percent: choices of libraries that neither recording shows.
const SPREAD_PERCENT: u64 = 2;

/// What a forecast from one recording may be off beyond what is in doubt, in percent for each doubling of the number: what scales
/// is concluded, not seen.
const SPREAD_ALONE_PERCENT: u64 = 3;

/// Where else it is looked at how much is reserved for each allocated byte, as shares of the number.
const NEAR: [f64; 8] = [0.8, 0.87, 0.93, 0.97, 1.03, 1.07, 1.13, 1.2];

/// A recording, and how its requests follow the number.
#[derive(Clone, Debug)]
pub struct Fit {
    script: Script,
    conf: Conf,
    /// By request of the recording: [`Script::origin`].
    laws: Vec<Law>,
    /// What comes behind a request of the recording at some numbers, and is given back at once.
    behind: HashMap<usize, Split>,
    aligned: Aligned,
    scaled: Option<Scaled>,
    numbers: (f64, f64),
}

/// Why two recordings say nothing of other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// The numbers are the same, or none.
    #[error("two recordings at two different numbers above 0 are needed")]
    Numbers,
    /// The number is none.
    #[error("the number of a recording is above 0")]
    Number,
    /// They are not of one training.
    #[error("only {matched} of {requests} requests are in both recordings: they are not of one training")]
    Different {
        /// Requests found in both.
        matched: u64,
        /// Requests of the larger recording.
        requests: u64,
    },
}

/// Below this share of aligned requests two recordings are of two programs, in percent.
const MATCHED_PERCENT: u64 = 50;

impl Fit {
    /// Aligns two recordings, each with its number.
    ///
    /// # Errors
    /// See [`FitError`].
    pub fn new(one: (f64, Script), other: (f64, Script), conf: Conf) -> Result<Self, FitError> {
        let ((few, small), (many, script)) = if one.0 <= other.0 { (one, other) } else { (other, one) };
        if !(few > 0.0 && few < many && many.is_finite()) {
            return Err(FitError::Numbers);
        }
        let ratio = many / few;
        // What lived when a recording began is taken as it was.
        let (before, after) = (&small.wanted[small.found..], &script.wanted[script.found..]);
        let partners = align::align(before, after, ratio);
        let mut aligned = Aligned { requests: partners.len() as u64, ..Aligned::default() };
        let law_of = |(partner, wanted): (&Option<u32>, &script::Wanted)| match partner {
            Some(at) => Law::of((few, before[*at as usize].bytes), (many, wanted.bytes)),
            None => Law::Unmatched { number: many, bytes: wanted.bytes },
        };
        let found = script.wanted[..script.found].iter().map(|wanted| Law::Constant(wanted.bytes));
        let mut laws: Vec<Law> = found.chain(partners.iter().zip(after).map(law_of)).collect();
        // (What is only in the larger one is counted as such, also where what it is explains its bytes.)
        laws[script.found..].iter().for_each(|law| aligned.count(law));
        let behind = sums::settle((few, &small), (many, &script), &partners, &mut laws);
        let matched = aligned.requests - aligned.unmatched;
        if matched * 100 < aligned.requests * MATCHED_PERCENT {
            return Err(FitError::Different { matched, requests: aligned.requests });
        }
        Ok(Self { script, conf, laws, behind, aligned, scaled: None, numbers: (few, many) })
    }

    /// One recording with its number, and how each of its requests scales.
    ///
    /// # Errors
    /// See [`FitError`].
    pub fn alone(
        (number, script): (f64, Script),
        scale: impl Fn(usize) -> Scale,
        conf: Conf,
    ) -> Result<Self, FitError> {
        if !(number > 0.0 && number.is_finite()) {
            return Err(FitError::Number);
        }
        let mut scaled = Scaled { requests: (script.wanted.len() - script.found) as u64, ..Scaled::default() };
        let mut laws = Vec::with_capacity(script.wanted.len());
        for (request, wanted) in script.wanted.iter().enumerate() {
            let scale = if request < script.found { Scale::Fixed } else { scale(request) };
            if request >= script.found {
                scaled.count(scale, wanted.bytes);
            }
            laws.push(Law::scaled(scale, number, wanted.bytes));
        }
        let behind = sums::settle_alone(number, &script, &mut laws);
        let (aligned, numbers) = (Aligned::default(), (number, number));
        Ok(Self { script, conf, laws, behind, aligned, scaled: Some(scaled), numbers })
    }

    /// The same training, changed: a script that was made of this one's.
    #[must_use]
    pub fn with(&self, script: Script) -> Self {
        Self { script, ..self.clone() }
    }

    /// The requests: of two recordings those of the larger.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// The settings under which they are replayed.
    #[must_use]
    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// How the requests of one recording were taken to scale; `None` where two were aligned.
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

    /// What the training would hold at a number, and whether under a limit every request is served.
    #[must_use]
    pub fn at(&self, number: f64, limit: Option<u64>) -> Forecast {
        let likely = self.replay(number, Bound::Likely, Limit::None);
        let peak = |bound| self.replay(number, bound, Limit::None).counts.peak_reserved_bytes;
        let (low, high) = (peak(Bound::Low), peak(Bound::High));
        let reserved = likely.counts.peak_reserved_bytes;
        // Of each number near this one: the number, and how much more is allocated here.
        let allocated = |outcome: &Outcome| outcome.counts.peak_allocated_bytes.max(1) as f64;
        let near = NEAR.map(|share| self.replay(number * share, Bound::Likely, Limit::None));
        let scratch = self.scratch(number);
        let as_here =
            near.map(|it| (it.counts.peak_reserved_bytes as f64 * (allocated(&likely) / allocated(&it))) as u64);
        // (Nothing less is reserved than what is allocated.)
        let least = self.replay(number, Bound::Low, Limit::None).counts.peak_allocated_bytes;
        let low = as_here.into_iter().fold(low, u64::min).saturating_sub(scratch).max(least);
        let high = as_here.into_iter().fold(high, u64::max).saturating_add(scratch);
        let fits = limit.map(|limit| {
            let within = limit - limit / 100 * self.margin_percent(number).min(100);
            let within = if self.is_another_peak(&likely) { within.saturating_sub(scratch) } else { within };
            let lives = |number: f64, bound: Bound, limit: u64| {
                self.replay(number, bound, Limit::Device(limit)).out_of_memory.is_none()
            };
            let here = || [Bound::Likely, Bound::High].into_iter().all(|bound| lives(number, bound, within));
            let as_tight = |it: &Outcome| (within as f64 * (allocated(it) / allocated(&likely))) as u64;
            let nearby = || {
                let mut near = NEAR.into_iter().zip(&near);
                near.all(|(share, it)| lives(number * share, Bound::Likely, as_tight(it)))
            };
            high.max(reserved) <= within || here() && nearby()
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

    /// The largest whole number that fits, with everything that is asked for by then; `None` where not even 1 does.
    /// `goes_on` is asked before each replay; if it ends the search, the result means nothing.
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

    /// Whether most is allocated at a moment that was the highest in neither recording: between them the peak did not grow, and
    /// here it has. What kernels ask for at that moment was never seen at such a size, so "fits" leaves room for it.
    fn is_another_peak(&self, here: &Outcome) -> bool {
        let peak = |number: f64| self.replay(number, Bound::Likely, Limit::None).counts.peak_allocated_bytes;
        let many = peak(self.numbers.1);
        self.scaled.is_none() && many <= peak(self.numbers.0) && here.counts.peak_allocated_bytes > many
    }

    /// Bytes of a request that neither recording shows: kernels that split a reduction ask for memory for its parts from some size
    /// on (`at::native::gpu_reduce_kernel`, Reduce.cuh), or stop to. Twice the largest of what grows was the most that was seen.
    fn scratch(&self, number: f64) -> u64 {
        let grown = self.laws.iter().filter(|law| !matches!(law, Law::Constant(_)));
        grown.map(|law| law.bytes(number, Bound::Likely)).max().unwrap_or(0).saturating_mul(2)
    }

    /// What has to be left free. From one recording also what its forecast may be off: that it fits is a promise.
    fn margin_percent(&self, number: f64) -> u64 {
        match self.scaled {
            Some(_) => MARGIN_PERCENT.saturating_add(self.spread_percent(number)),
            None => MARGIN_PERCENT,
        }
    }

    /// What may be off without any request being so.
    fn spread_percent(&self, number: f64) -> u64 {
        if self.scaled.is_none() {
            return SPREAD_PERCENT;
        }
        // (A conversion from a float saturates.)
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

/// No batch, sequence or number of layers is larger.
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
