//! The backward passes of a recording, recognised by the requests of autograd's threads.
//!
//! Guarantees: a pass is a series of such requests that no other thread's request interrupts, because the training
//! thread waits for them. Passes are disjoint and in order. A pass without requests is not seen.

use super::rules::Reading;
use super::{MemoryRequest, OPEN, Stay};

/// First and last request of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    last: u64,
}

/// The backward passes of a recording, in order.
#[derive(Debug, Default)]
pub(super) struct Passes {
    spans: Vec<Span>,
}

impl Passes {
    pub(super) fn of(asked: &[MemoryRequest], read: &[Reading]) -> Self {
        let mut made: Vec<(u64, bool)> =
            asked.iter().zip(read).filter_map(|(one, read)| Some((one.born?, read.in_backward))).collect();
        made.sort_unstable();
        let mut spans: Vec<Span> = Vec::new();
        let mut under_way = false;
        for (at, in_backward) in made {
            match spans.last_mut().filter(|_| under_way && in_backward) {
                Some(span) => span.last = at,
                None if in_backward => spans.push(Span { first: at, last: at }),
                None => {}
            }
            under_way = in_backward;
        }
        Self { spans }
    }

    /// The begin of the first pass.
    pub(super) fn first(&self) -> Option<u64> {
        self.spans.first().map(|span| span.first)
    }

    /// The begin of the last pass.
    pub(super) fn last(&self) -> Option<u64> {
        self.spans.last().map(|span| span.first)
    }

    /// Whether a block is still live after the last pass. A block that the program frees at its end also counts,
    /// because it was kept until then.
    pub(super) fn are_survived_by(&self, one: &MemoryRequest) -> bool {
        one.ended == OPEN || self.spans.last().is_some_and(|span| one.ended > span.last)
    }

    /// Number of passes that ended before a moment.
    pub(super) fn before(&self, at: u64) -> usize {
        self.spans.partition_point(|span| span.last < at)
    }

    /// The pass under way at a moment.
    pub(super) fn at(&self, at: u64) -> Option<usize> {
        let pass = self.before(at);
        self.spans.get(pass).filter(|span| span.first <= at).map(|_| pass)
    }

    /// How long a block stays, counted in passes that end while it is live. Passes replace steps if no steps are
    /// marked.
    pub(super) fn stay(&self, one: &MemoryRequest) -> Stay {
        if one.ended == OPEN {
            return Stay::Kept;
        }
        match self.before(one.ended) - one.born.map_or(0, |born| self.before(born)).min(self.before(one.ended)) {
            0 => Stay::Within,
            1 => Stay::UntilNextStep,
            _ => Stay::Kept,
        }
    }

    /// Whether a block that a pass made outlives that pass.
    pub(super) fn outlives(&self, one: &MemoryRequest) -> bool {
        let span = one.born.and_then(|born| self.spans.get(self.before(born)));
        span.is_none_or(|span| one.ended > span.last)
    }

    /// Whether a pass frees a block that existed before it. Such a block was kept for the pass.
    pub(super) fn gives_back(&self, one: &MemoryRequest) -> bool {
        let pass = self.at(one.ended).and_then(|pass| self.spans.get(pass));
        pass.is_some_and(|span| one.born.is_none_or(|born| born < span.first))
    }
}
