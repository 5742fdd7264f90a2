//! The requests that a finding names for a step that is forecast to fail.
//!
//! If steps differ, it is unknown which of them the next step resembles. Each of the recent steps is therefore
//! replayed as the failing step, and each request that would fail may be the one. It is only a guess, which changes
//! from step to step, that the step resembles the largest one. So among the requests that would fail, one that was
//! named before stays named. A request that no longer fails in any replay is named last.
//!
//! Guarantees: a named request would fail if the step resembled a recorded one, or was named in one of the last steps.
//! The likelihood of each is not estimated.

use super::{Ahead, Fails, Of, SPAN, is_known};
use crate::allocator::Limit;

/// Maximum number of remembered places.
const NAMED: usize = 3;

impl Ahead {
    /// The request to name for the step that is forecast to fail with `seen`, and other requests that may fail there
    /// instead: one per place, those of the newest steps first, then those that were named recently. Call this once
    /// for each reported look.
    pub fn names(&mut self, limit: Limit, seen: &Fails) -> (Fails, Vec<Fails>) {
        let (mut first, mut instead) = (*seen, self.other_failures(limit, seen));
        let is_guess = seen.of == Of::Most || self.is_uneven();
        if seen.of == Of::Most
            && let Some((_, named)) = self.named.front()
            && let Some(before) = instead.iter_mut().find(|it| named.stack == it.stack)
        {
            std::mem::swap(before, &mut first);
        }
        let number = self.running.number;
        self.named.retain(|(at, named)| at + SPAN > number && named.stack != first.stack);
        if is_guess {
            let mut known: Vec<_> = instead.iter().map(|it| it.stack).collect();
            known.push(first.stack);
            let earlier = self.named.iter().map(|(_, named)| named).filter(|named| !known.contains(&named.stack));
            instead.extend(earlier.map(|named| Fails { steps: first.steps, of: first.of, ..*named }));
        }
        self.named.push_front((number, first));
        self.named.truncate(NAMED);
        (first, instead)
    }

    /// Other requests that would fail in the step of this failure, if that step resembled another recent one.
    pub(super) fn other_failures(&self, limit: Limit, fails: &Fails) -> Vec<Fails> {
        let Some(last) = self.steps.back() else { return Vec::new() };
        let like = (0..self.steps.len()).filter_map(|back| {
            let step = self.step_before(back).filter(|step| is_known(step))?;
            Some((step, self.recurring(step, [self.step_before(back + 1), self.step_before(back + 2)])))
        });
        self.plan(last, limit).other_failures(fails, like, self.most.iter().flatten())
    }
}
