//! The backward passes of a recording, recognised by the requests of autograd's threads.
//!
//! Guarantees: a pass is a run of their requests that no other thread's request interrupts: the training thread waits
//! for them. Passes are disjoint and in order. Refuses to know a pass without requests.

use super::rules::Reading;
use super::{Asked, OPEN, Stay};

/// First and last request of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    first: u64,
    last: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Passes {
    spans: Vec<Span>,
}

impl Passes {
    pub(super) fn of(asked: &[Asked], read: &[Reading]) -> Self {
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

    /// When the first one begins.
    pub(super) fn first(&self) -> Option<u64> {
        self.spans.first().map(|span| span.first)
    }

    /// When the last one begins.
    pub(super) fn last(&self) -> Option<u64> {
        self.spans.last().map(|span| span.first)
    }

    /// Whether a block is live when the last pass has ended: blocks that a program frees at its end were kept until
    /// then.
    pub(super) fn are_survived_by(&self, one: &Asked) -> bool {
        one.ended == OPEN || self.spans.last().is_some_and(|span| one.ended > span.last)
    }

    /// How many have ended before a moment.
    pub(super) fn before(&self, at: u64) -> usize {
        self.spans.partition_point(|span| span.last < at)
    }

    /// The current pass.
    pub(super) fn at(&self, at: u64) -> Option<usize> {
        let pass = self.before(at);
        self.spans.get(pass).filter(|span| span.first <= at).map(|_| pass)
    }

    /// How long a block stays, by the passes that end while it lives: passes replace steps if none are marked.
    pub(super) fn stay(&self, one: &Asked) -> Stay {
        if one.ended == OPEN {
            return Stay::Kept;
        }
        match self.before(one.ended) - one.born.map_or(0, |born| self.before(born)).min(self.before(one.ended)) {
            0 => Stay::Within,
            1 => Stay::Handed,
            _ => Stay::Kept,
        }
    }

    /// Whether a block made by a pass outlives it.
    pub(super) fn outlives(&self, one: &Asked) -> bool {
        let span = one.born.and_then(|born| self.spans.get(self.before(born)));
        span.is_none_or(|span| one.ended > span.last)
    }

    /// Whether a pass frees a block that was there before it: it was kept for the pass.
    pub(super) fn gives_back(&self, one: &Asked) -> bool {
        let pass = self.at(one.ended).and_then(|pass| self.spans.get(pass));
        pass.is_some_and(|span| one.born.is_none_or(|born| born < span.first))
    }
}
