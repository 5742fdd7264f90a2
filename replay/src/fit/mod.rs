//! Will it fit: two recordings of one training at two sizes, and what it would hold at others.
//!
//! The number that changed (batch, sequence, layers) is named with each recording. Their requests are aligned one by one
//! (`align`), each request's bytes become a function of the number (`law`), and the larger recording's requests are replayed with
//! the bytes of another number ([`Fit::at`]).
//!
//! Guarantees: deterministic; what was found in one recording only, or changed in no simple way, widens the interval. Refuses
//! more requests than [`REQUESTS_MAX`], and to tell what another number would make a program do that it did at neither.

mod align;
mod law;
mod script;

use crate::allocator::Limit;
use crate::settings::Conf;
use crate::trial::{Outcome, Start, Trial};
use law::Law;
pub use script::{REQUESTS_MAX, Script, TooLong, stack_key};

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
    /// Under the limit: whether every request is served, with [`MARGIN_PERCENT`] of it to spare.
    pub fits: Option<bool>,
}

/// What "fits" leaves free: within it of a limit nothing is promised.
pub const MARGIN_PERCENT: u64 = 3;
/// What a forecast may be off without any request being so, in percent: choices of libraries that neither recording shows.
const SPREAD_PERCENT: u64 = 2;

/// Two recordings, aligned.
#[derive(Clone, Debug)]
pub struct Fit {
    script: Script,
    conf: Conf,
    /// By request of the script.
    laws: Vec<Law>,
    aligned: Aligned,
    numbers: (f64, f64),
}

/// Why two recordings say nothing of other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    /// The numbers are the same, or none.
    #[error("two recordings at two different numbers above 0 are needed")]
    Numbers,
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
        let partners = align::align(small.wanted(), script.wanted(), ratio);
        let mut aligned = Aligned { requests: partners.len() as u64, ..Aligned::default() };
        let law_of = |(partner, wanted): (&Option<u32>, &script::Wanted)| match partner {
            Some(at) => Law::of((few, small.wanted()[*at as usize].bytes), (many, wanted.bytes)),
            None => Law::Unmatched { number: many, bytes: wanted.bytes },
        };
        let laws: Vec<Law> = partners.iter().zip(script.wanted()).map(law_of).collect();
        laws.iter().for_each(|law| aligned.count(law));
        let matched = aligned.requests - aligned.unmatched;
        if matched * 100 < aligned.requests * MATCHED_PERCENT {
            return Err(FitError::Different { matched, requests: aligned.requests });
        }
        Ok(Self { script, conf, laws, aligned, numbers: (few, many) })
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
        let fits = limit.map(|limit| {
            let within = limit - limit / 100 * MARGIN_PERCENT;
            high.max(reserved) <= within
                || [Bound::Likely, Bound::High]
                    .into_iter()
                    .all(|bound| self.replay(number, bound, Limit::Device(within)).out_of_memory.is_none())
        });
        let spread = |bytes: u64| bytes / 100 * SPREAD_PERCENT;
        Forecast {
            likely,
            low_bytes: low.min(reserved) - spread(low.min(reserved)),
            high_bytes: high.max(reserved) + spread(high.max(reserved)),
            fits,
        }
    }

    /// The largest whole number that fits, with everything that is asked for by then; `None` where not even 1 does.
    #[must_use]
    pub fn largest(&self, limit: u64) -> Option<u64> {
        let fits = |number: u64| self.at(number as f64, Some(limit)).fits == Some(true);
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

    fn replay(&self, number: f64, bound: Bound, limit: Limit) -> Outcome {
        let mut trial = Trial::new(self.conf.clone(), limit, self.script.segments(), Start::Afresh);
        self.script.play(|request| self.laws[request].bytes(number, bound), &mut trial);
        trial.outcome()
    }
}

/// No batch, sequence or number of layers is larger.
const NUMBER_MAX: u64 = 1 << 24;

impl Aligned {
    fn count(&mut self, law: &Law) {
        match *law {
            Law::Constant(_) => self.constant += 1,
            Law::Linear { .. } => self.linear += 1,
            Law::Quadratic { .. } => self.quadratic += 1,
            Law::Affine { .. } | Law::Mixed { .. } | Law::Fallen { .. } => self.other += 1,
            Law::Unmatched { bytes, .. } => {
                self.unmatched += 1;
                self.unmatched_bytes = self.unmatched_bytes.saturating_add(bytes);
            }
        }
    }
}
