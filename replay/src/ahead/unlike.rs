//! Steps that are unlike others: a single outlier among steps that are alike, such as an evaluation, and steps that
//! all differ.
//!
//! Guarantees: an outlier is expected again only after two of them, and only until its turn has passed. The reason for
//! the difference is not examined.

use super::plan::Outlier;
use super::recurring::Recurring;
use super::step::Step;
use super::{Ahead, is_known};

/// Two steps differ in their needs if the difference is more than one part in this many.
const UNEVEN: u64 = 64;
/// Minimum number of different amounts for steps to be uneven. Two amounts may be those of an evaluation and of the
/// other steps.
const AMOUNTS_MIN: usize = 3;
/// A step is an outlier if at least one request in this many was made by neither of the two steps before it.
const ODD: usize = 10;

impl Ahead {
    /// Whether the recent steps needed several different amounts. A single step then shows less about the coming ones.
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

    /// Whether a step that has just ended is an outlier compared with the two before it: an evaluation, a checkpoint.
    pub(super) fn is_odd(&self, ended: &Step) -> bool {
        let before = [self.step_before(0), self.step_before(1)];
        !ended.is_cut && before[1].is_some() && Recurring::by_chance(ended, before) * ODD >= ended.wants.len().max(1)
    }

    /// The outlier step to be expected, if two were seen: another one comes at the same distance. If the outlier
    /// before them had that distance too, further ones follow.
    pub(super) fn odd_to_come(&self) -> Option<Outlier<'_>> {
        let [Some(first), Some(last)] = &self.odd else { return None };
        let apart = last.number - first.number;
        let every = self.odd_before.is_some_and(|before| before + apart == first.number).then_some(apart);
        let next = last.number + apart;
        (is_known(last) && next >= self.running.number).then_some(Outlier {
            step: last,
            before: first.number,
            next,
            every,
        })
    }
}
