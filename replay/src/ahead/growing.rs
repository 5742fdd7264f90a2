//! Steps that grow by stages: a curriculum whose sequences become longer every so many steps.
//!
//! Guarantees: a further stage is expected where three followed each other at even distances and every request of the last one fits
//! one line or parabola through all three, which is how sizes follow a length. Refuses stages that shrink, and steps that all differ.

use foldhash::HashMap;
use memctl_model::StackId;

use super::step::Step;

/// Stages that have to have been seen.
const STAGES: usize = 3;

/// The last stages, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct Stages {
    begun: Vec<Stage>,
}

/// Steps that ask for the same.
#[derive(Clone, Debug)]
struct Stage {
    /// Its first step.
    number: u64,
    /// The bytes of each request, by who asked for it, in order.
    asked: HashMap<StackId, Vec<u64>>,
}

/// How one step's requests compare with another's, by those who asked in both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Grown,
    Otherwise,
}

/// The sizes of the stage that comes next.
pub(super) struct Next<'a> {
    last: &'a Stage,
    before: [&'a Stage; 2],
    /// The step that begins it.
    pub from: u64,
}

impl Stages {
    /// Takes a step that has ended.
    pub fn step(&mut self, step: &Step) {
        if step.is_cut {
            self.begun.clear();
            return;
        }
        let asked = step.asked();
        match self.begun.last().map(|stage| stage.change(&asked)) {
            Some(Change::None) => {}
            Some(Change::Grown) => {
                if self.begun.len() == STAGES {
                    self.begun.remove(0);
                }
                self.begun.push(Stage { number: step.number, asked });
            }
            Some(Change::Otherwise) | None => self.begun = vec![Stage { number: step.number, asked }],
        }
    }

    /// The stage that is to come, where the last three were even; `running` is the step that comes next. One that should have
    /// begun and did not is expected no more: lengths grow up to a last one.
    pub fn next(&self, running: u64) -> Option<Next<'_>> {
        let [first, second, last] = self.begun.as_slice() else { return None };
        let every = last.number - second.number;
        let next = Next { last, before: [second, first], from: last.number + every };
        (every == second.number - first.number && every > 1 && running <= next.from).then_some(next)
    }
}

impl Stage {
    fn change(&self, asked: &HashMap<StackId, Vec<u64>>) -> Change {
        let (mut same, mut grown, mut otherwise) = (0_u64, 0_u64, 0_u64);
        for (stack, now) in asked {
            let Some(before) = self.asked.get(stack).filter(|before| before.len() == now.len()) else { continue };
            for (before, now) in before.iter().zip(now) {
                match now.cmp(before) {
                    std::cmp::Ordering::Equal => same += 1,
                    std::cmp::Ordering::Greater => grown += 1,
                    std::cmp::Ordering::Less => otherwise += 1,
                }
            }
        }
        // (What leaks, and what a kernel chooses, may change by itself.)
        let all = same + grown + otherwise;
        match () {
            () if (grown + otherwise) * 20 <= all => Change::None,
            () if grown * 4 >= all && otherwise * 20 <= grown => Change::Grown,
            () => Change::Otherwise,
        }
    }

    fn bytes(&self, stack: StackId, at: usize, of: usize) -> Option<u64> {
        self.asked.get(&stack).filter(|all| all.len() == of)?.get(at).copied()
    }
}

impl Next<'_> {
    /// The bytes of a request of the last stage, the `at`th of those of its stack, in the next one.
    pub fn bytes(&self, stack: StackId, at: usize) -> Option<u64> {
        let of = self.last.asked.get(&stack)?.len();
        let last = self.last.bytes(stack, at, of)?;
        let [one, two] = [self.before[0].bytes(stack, at, of)?, self.before[1].bytes(stack, at, of)?];
        // The parabola through all three, which is a line where they lie on one.
        let next = i128::from(last) * 3 - i128::from(one) * 3 + i128::from(two);
        u64::try_from(next).ok().filter(|&next| next >= last && last >= one && one >= two)
    }
}
