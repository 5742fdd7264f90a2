//! Steps that are unlike others: one among many that are alike, as an evaluation is, and many of which none is like another.
//!
//! Guarantees: one that is unlike those around it is expected again only where two came, and until its turn has passed.
//! Refuses to say why they differ.

use super::plan::Odd;
use super::recurring::Recurring;
use super::step::Step;
use super::{Ahead, is_known};

/// One part of so many of what a step needs is more than by which steps differ that are like each other.
const UNEVEN: u64 = 64;
/// Amounts that steps have to have needed for that: two are those of an evaluation and of the others.
const AMOUNTS_MIN: usize = 3;
/// One request of so many that neither of the two steps before made is enough for a step to be unlike those around it.
const ODD: usize = 10;

impl Ahead {
    /// Whether the recent steps needed several amounts: what is seen of one of them says less of those to come.
    #[must_use]
    pub fn is_uneven(&self) -> bool {
        let mut amounts: Vec<u64> = Vec::new();
        for needs in self.steps.iter().filter(|step| is_known(step)).map(Step::needs) {
            if amounts.iter().all(|other| needs.abs_diff(*other) > needs / UNEVEN) {
                amounts.push(needs);
            }
        }
        amounts.len() >= AMOUNTS_MIN
    }

    /// Whether a step that has just ended does what the two before it do not: an evaluation, a checkpoint.
    pub(super) fn is_odd(&self, ended: &Step) -> bool {
        let before = [self.step_before(0), self.step_before(1)];
        !ended.is_cut && before[1].is_some() && Recurring::by_chance(ended, before) * ODD >= ended.wants.len().max(1)
    }

    /// A step unlike those around it, where two came: one like it comes as long behind it, and more where the one before came even.
    pub(super) fn odd_to_come(&self) -> Option<Odd<'_>> {
        let [Some(first), Some(last)] = &self.odd else { return None };
        let apart = last.number - first.number;
        let every = self.odd_before.is_some_and(|before| before + apart == first.number).then_some(apart);
        let next = last.number + apart;
        (is_known(last) && next >= self.running.number).then_some(Odd { step: last, before: first.number, next, every })
    }
}
