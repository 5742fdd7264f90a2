//! One step as a script: its requests, in order, and the blocks it freed, named so that the step can be replayed.
//!
//! A block is identified by the step that requested it and by its place among that step's requests. Replayed as a later
//! step, a script frees the block in the same place of the step that lies as far behind: blocks carried over from the
//! step before, and blocks that leave a queue of the last eight steps, are freed as they were.
//!
//! Guarantees: bounded in requests. Refuses to name a block whose allocation was not seen.

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::{PoolId, StackId};

use crate::request::Requested;

/// Acts of one step that are kept; a longer step is not played again.
pub(super) const ACTS_MAX: usize = 1 << 17;

/// A block: the step that asked for it, and its place among that step's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub step: u64,
    pub index: u32,
}

/// A request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    pub requested: Requested,
    pub stack: StackId,
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// The next request.
    Ask,
    /// A block is given back, which was asked for like this.
    FreeRequested(Name, Want),
    /// No stream uses it any more.
    FreeCompleted(Name),
    /// The cache is returned; so many bytes would have been reserved, had it been kept, by the request that came right behind it.
    EmptyCache(u64),
    /// Nothing uses a private pool any more.
    PoolReleased(PoolId),
}

/// A step that was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    pub number: u64,
    pub acts: Vec<Act>,
    pub wants: Vec<Want>,
    /// Bytes that were handed out when it began, and when it ended.
    pub allocated: (u64, u64),
    /// Most of them in between.
    pub peak_allocated: u64,
    /// Most bytes that were reserved meanwhile.
    pub peak_reserved: u64,
    /// It has more acts than are kept.
    pub is_cut: bool,
}

impl Step {
    pub fn push(&mut self, act: Act) {
        if self.acts.len() < ACTS_MAX {
            self.acts.push(act);
        } else {
            self.is_cut = true;
        }
    }

    /// Bytes that it needed above those that were handed out when it began.
    pub fn needs(&self) -> u64 {
        self.peak_allocated.saturating_sub(self.allocated.0)
    }

    /// Places among the requests of the step before it, of what that one handed on and this one gives back: what this one hands on lies
    /// in the same places.
    pub fn hands_on(&self) -> HashSet<u32> {
        let before = self.acts.iter().filter_map(|act| match act {
            Act::FreeRequested(name, _) if name.step + 1 == self.number => Some(name.index),
            _ => None,
        });
        before.collect()
    }

    /// The bytes of its requests by who asked for them, in order.
    pub fn asked(&self) -> HashMap<StackId, Vec<u64>> {
        let mut asked: HashMap<StackId, Vec<u64>> = HashMap::new();
        self.wants.iter().for_each(|want| asked.entry(want.stack).or_default().push(want.requested.bytes));
        asked
    }
}

/// Steps each of which has to have asked for more than the one before it, where it is not the same amount more each time.
const RISING_MIN: u64 = 6;

/// What the requests of the last steps ask for more each time.
#[derive(Default)]
pub(super) struct Rises {
    /// By who asks, and the place among their requests.
    rises: HashMap<(StackId, usize), u64>,
}

impl Rises {
    /// Those of the last step over the ones before it, the later ones first: where three steps asked for the same amount more each
    /// time that much, and where all asked for more, what they did on average.
    pub fn of<'a>(last: &Step, mut before: impl Iterator<Item = &'a Step>) -> Self {
        let [Some(one), Some(two)] = [before.next(), before.next()].map(|step| step.map(Step::asked)) else {
            return Self::default();
        };
        let (mut rises, mut rising) = (HashMap::new(), HashMap::new());
        for (stack, now) in last.asked() {
            // (If a step makes a stack's request more often than another step, the requests cannot be matched.)
            let of =
                |asked: &HashMap<StackId, Vec<u64>>| asked.get(&stack).filter(|all| all.len() == now.len()).cloned();
            let (Some(one), Some(two)) = (of(&one), of(&two)) else { continue };
            let often = now.len();
            for (place, ((now, one), two)) in now.into_iter().zip(one).zip(two).enumerate() {
                if now > one && one > two && now - one == one - two {
                    rises.insert((stack, place), now - one);
                } else if now > one && one > two {
                    let rising = rising.entry(stack).or_insert(Rising { often, places: Vec::new() });
                    rising.places.push((place, [now, two]));
                }
            }
        }
        rises.extend(rising_ever(rising, before));
        Self { rises }
    }

    /// How many bytes more a request asks for when its step is played `later` steps later.
    pub fn later(&self, stack: StackId, place: usize, later: u64) -> u64 {
        self.rises.get(&(stack, place)).map_or(0, |rise| rise.saturating_mul(later))
    }
}

/// Requests of one stack that rose so far.
struct Rising {
    /// How often it asks in a step.
    often: usize,
    /// Their places among these, with what they ask for now and asked for first, of the steps looked at.
    places: Vec<(usize, [u64; 2])>,
}

impl Rising {
    /// Keeps those that asked for less in an earlier step, in which the stack asked for so much.
    fn rose_from(&mut self, asked: Option<&Vec<u64>>) {
        let Some(asked) = asked.filter(|asked| asked.len() == self.often) else { return self.places.clear() };
        self.places.retain_mut(|(place, [_, first])| std::mem::replace(first, asked[*place]) > asked[*place]);
    }
}

/// Of what rose over the last three steps, that which rose in all the steps before as well, and how much a step.
fn rising_ever<'a>(
    mut rising: HashMap<StackId, Rising>,
    before: impl Iterator<Item = &'a Step>,
) -> HashMap<(StackId, usize), u64> {
    let mut steps = 3_u64;
    for step in before {
        if rising.is_empty() {
            break;
        }
        let mut asked: HashMap<StackId, Vec<u64>> = HashMap::new();
        for want in step.wants.iter().filter(|want| rising.contains_key(&want.stack)) {
            asked.entry(want.stack).or_default().push(want.requested.bytes);
        }
        rising.retain(|stack, rising| {
            rising.rose_from(asked.get(stack));
            !rising.places.is_empty()
        });
        steps += 1;
    }
    let all = rising.into_iter().filter(|_| steps >= RISING_MIN);
    let a_step = |(place, [now, first]): (usize, [u64; 2])| (place, (now - first) / (steps - 1));
    all.flat_map(|(stack, rising)| {
        rising.places.into_iter().map(a_step).map(move |(place, rise)| ((stack, place), rise))
    })
    .collect()
}
