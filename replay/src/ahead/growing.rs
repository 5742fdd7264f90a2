//! Steps that grow by stages: a curriculum whose sequences become longer every few steps.
//!
//! Guarantees: a further stage is expected only after three stages at even distances. A size of the next stage is
//! predicted only if the sizes of its request grew through the three stages. The prediction is the line or parabola
//! through the three sizes, because sizes follow a length that way. Stages that shrink and steps that all differ are
//! not stages.

use foldhash::HashMap;
use memctl_model::StackId;

use super::step::Step;

/// Number of stages that must have been seen.
const STAGES: usize = 3;

/// The last stages, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct Stages {
    begun: Vec<Stage>,
}

/// Consecutive steps with the same requests.
#[derive(Clone, Debug)]
struct Stage {
    /// Its first step.
    number: u64,
    /// The bytes of each request by stack, in order.
    asked: HashMap<StackId, Vec<u64>>,
}

/// How one step's requests differ from another's, among stacks that requested memory in both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    None,
    Grown,
    Otherwise,
}

/// The sizes of the coming stage.
pub(super) struct Next<'a> {
    last: &'a Stage,
    before: [&'a Stage; 2],
    /// The step that begins the coming stage.
    pub from: u64,
}

impl Stages {
    /// Adds a step that has ended.
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

    /// The coming stage, if the last three began at even distances; `running` is the number of the coming step. A
    /// stage that did not begin when it was due is no longer expected, because lengths grow only up to a maximum.
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
        // A few sizes may change for other reasons, such as a leak or a kernel's choice.
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
    /// The bytes in the coming stage of the `at`th request of a stack in the last stage.
    pub fn bytes(&self, stack: StackId, at: usize) -> Option<u64> {
        let of = self.last.asked.get(&stack)?.len();
        let last = self.last.bytes(stack, at, of)?;
        let [one, two] = [self.before[0].bytes(stack, at, of)?, self.before[1].bytes(stack, at, of)?];
        // The parabola through the three sizes, which is a line if they are on one.
        let next = i128::from(last) * 3 - i128::from(one) * 3 + i128::from(two);
        u64::try_from(next).ok().filter(|&next| next >= last && last >= one && one >= two)
    }
}
