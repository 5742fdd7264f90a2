//! Anchors: work that happens once a step. An anchor is the line that calls an optimizer's step, `zero_grad` or a
//! backward pass.
//!
//! Guarantees: one pass; memory is proportional to the number of such lines. Of several optimizers in one loop, one is
//! the anchor. Loops that follow one another have one anchor each. Work that is seen only at the beginning is
//! rejected: an optimizer may allocate its state only once.

use std::collections::HashMap;

use memctl_model::Event;

use super::stacks::{Node, Paths, Work};

/// Maximum number of loops distinguished in one recording.
const LOOPS_MAX: usize = 64;
/// Optimizer steps count as steps only if there is at least one for this many backward passes.
const ACCUMULATED_MAX: u64 = 512;

/// Calls from one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    /// The path to the line that calls.
    pub caller: Node,
    pub work: Work,
    /// Number of calls. Consecutive calls without other work between them count as one.
    pub visits: u64,
    /// The event of the first and of the last call.
    pub first: u64,
    pub last: u64,
}

#[derive(Default)]
struct Count {
    visits: u64,
    first: u64,
    last: u64,
    between: u64,
}

/// Separates visits of a kind of work: two calls count as two visits if other work happened between them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Between {
    /// Passes, forward or backward.
    passes: u64,
    /// Everything but backward passes.
    beside_backward: u64,
}

impl Between {
    /// Records an event's work.
    pub(super) fn note(&mut self, work: Work) {
        match work {
            Work::Forward => (self.passes, self.beside_backward) = (self.passes + 1, self.beside_backward + 1),
            Work::Backward => self.passes += 1,
            Work::Optimizer | Work::ZeroGrad | Work::Other => self.beside_backward += 1,
            Work::Unseen => {}
        }
    }

    /// The counter that must have changed since the last call for a new visit.
    pub(super) fn seen_by(self, work: Work) -> u64 {
        if work == Work::Backward { self.beside_backward } else { self.passes }
    }
}

/// The lines that mark rounds: one for each loop, in the order of the recording.
pub(super) fn find(paths: &Paths<'_>, events: impl Iterator<Item = Event>) -> Vec<Anchor> {
    let mut counts: HashMap<(Work, Node), Count> = HashMap::new();
    let mut between = Between::default();
    for (at, event) in (0_u64..).zip(events) {
        let reading = paths.reading(event.stack);
        between.note(reading.work);
        let Some(caller) = reading.caller else { continue };
        let seen = between.seen_by(reading.work);
        let count = counts.entry((reading.work, caller)).or_default();
        if count.visits == 0 {
            count.first = at;
        }
        if count.visits == 0 || count.between != seen {
            count.visits += 1;
        }
        (count.last, count.between) = (at, seen);
    }
    let mut anchors: Vec<Anchor> = counts
        .into_iter()
        .map(|((work, caller), Count { visits, first, last, .. })| Anchor { caller, work, visits, first, last })
        .collect();
    anchors.sort_unstable_by_key(|anchor| (anchor.first, anchor.caller));
    choose(&anchors)
}

/// Chooses the kind of work that marks steps best, then one line for each loop.
fn choose(all: &[Anchor]) -> Vec<Anchor> {
    let of = |work: Work| all.iter().filter(move |anchor| anchor.work == work);
    let backward: u64 = of(Work::Backward).map(|anchor| anchor.visits).sum();
    let (begun, ended) = of(Work::Backward)
        .map(|anchor| (anchor.first, anchor.last))
        .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
        .unwrap_or_default();
    let most = |work: Work| of(work).map(|anchor| anchor.visits).max().unwrap_or(0);
    let tells = |work: Work| {
        let visits = most(work);
        // The first `zero_grad` frees nothing and is not seen. If `zero_grad` accompanies every backward pass, the
        // backward pass is the better anchor.
        let passes = most(Work::Backward);
        let with_each = visits.saturating_mul(3) > passes.saturating_mul(2) || visits + 1 >= passes;
        if work == Work::ZeroGrad && with_each {
            return false;
        }
        let last = of(work).map(|anchor| anchor.last).max().unwrap_or(0);
        visits >= 2 && visits.saturating_mul(ACCUMULATED_MAX) >= backward && last >= begun + (ended - begun) / 2
    };
    let Some(work) = [Work::Optimizer, Work::ZeroGrad, Work::Backward].into_iter().find(|&work| tells(work)) else {
        return Vec::new();
    };
    let mut candidates: Vec<Anchor> = of(work).filter(|anchor| anchor.visits >= 2).copied().collect();
    let mut chosen: Vec<Anchor> = Vec::new();
    while chosen.len() < LOOPS_MAX {
        let Some(most) = candidates.iter().map(|anchor| anchor.visits).max() else { break };
        // Among lines that are called about equally often, the later one ends the round: the second of two optimizers.
        let alike = candidates.iter().filter(|anchor| anchor.visits.saturating_mul(10) >= most.saturating_mul(9));
        let Some(&best) = alike.max_by_key(|anchor| (anchor.first, anchor.caller)) else { break };
        chosen.push(best);
        candidates.retain(|other| other.last < best.first || best.last < other.first);
    }
    chosen.sort_unstable_by_key(|anchor| anchor.first);
    chosen
}
