//! What of a step comes again: what the steps before it had too, and what comes now and then and stays.
//!
//! Guarantees: a request counts where one of the two steps before it made it too, by its stack; what stays counts where at least
//! [`TIMES_MIN`] steps left some of it, and none is overdue. Refuses to take what happened once for what a step does.

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::StackId;

use super::step::{Name, Step, Want};

/// Steps that have to have left something behind for it to be expected again.
const TIMES_MIN: usize = 3;
/// It is overdue, and expected no more, when it has not come for so many times as long as it took on average.
const OVERDUE: u64 = 2;

#[derive(Default)]
pub(super) struct Recurring {
    /// Requests of the step that neither of the two before it made.
    chances: HashSet<u32>,
    /// What comes now and then: every so many steps.
    stays: Vec<(u64, Want)>,
}

impl Recurring {
    pub fn of(step: &Step, before: [Option<&Step>; 2], live: impl Iterator<Item = (Name, Want)>) -> Self {
        let counted = before.map(|step| step.map(count).unwrap_or_default());
        let mut seen: HashMap<StackId, u32> = HashMap::new();
        let mut chances = HashSet::default();
        for (index, want) in (0..).zip(&step.wants) {
            let seen = seen.entry(want.stack).or_default();
            *seen += 1;
            if counted.iter().all(|counts| counts.get(&want.stack).copied().unwrap_or(0) < *seen) {
                chances.insert(index);
            }
        }
        Self { stays: stays(step, &chances, live), chances }
    }

    /// Whether a request of the step happened by chance.
    pub fn is_chance(&self, index: u32) -> bool {
        self.chances.contains(&index)
    }

    /// What is to be expected beside the step's own requests, so many steps later: what is rarer than every step comes at once, and
    /// then as rarely as it did.
    pub fn due(&self, later: u64) -> Vec<Want> {
        let due = self.stays.iter().filter(|(every, _)| later.saturating_sub(1).is_multiple_of(*every));
        due.map(|&(_, want)| want).collect()
    }
}

fn count(step: &Step) -> HashMap<StackId, u32> {
    let mut counts = HashMap::new();
    for want in &step.wants {
        *counts.entry(want.stack).or_default() += 1;
    }
    counts
}

/// What several steps left behind and the step's own requests do not.
fn stays(step: &Step, chances: &HashSet<u32>, live: impl Iterator<Item = (Name, Want)>) -> Vec<(u64, Want)> {
    let mut by_stack: HashMap<StackId, Vec<(Name, Want)>> = HashMap::new();
    for (name, want) in live.filter(|(name, _)| name.step > 0) {
        by_stack.entry(want.stack).or_default().push((name, want));
    }
    let mut stays: Vec<(Name, u64, Want)> = Vec::new();
    for mut left in by_stack.into_values() {
        left.sort_unstable_by_key(|(name, _)| (name.step, name.index));
        let mut steps: Vec<u64> = left.iter().map(|(name, _)| name.step).collect();
        steps.dedup();
        let (Some(&first), Some(&last), Some(&(name, want))) = (steps.first(), steps.last(), left.last()) else {
            continue;
        };
        // The step's own requests leave it behind every time.
        let is_own = name.step == step.number && !chances.contains(&name.index);
        let every = (last - first).div_ceil((steps.len() as u64 - 1).max(1)).max(1);
        if steps.len() >= TIMES_MIN && !is_own && step.number - last <= OVERDUE * every {
            stays.push((name, every, want));
        }
    }
    // (The order of a hash table is nobody's.)
    stays.sort_unstable_by_key(|(name, ..)| (name.step, name.index));
    stays.into_iter().map(|(_, every, want)| (every, want)).collect()
}
