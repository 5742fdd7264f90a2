//! Replays a step from the state after the last step.
//!
//! Guarantees: every block is freed at most once. If the block that a script names does not exist, the oldest block of
//! the same stack and size is freed instead, and no other block.

use std::collections::VecDeque;

use foldhash::{HashMap, HashMapExt, HashSet};
use memctl_model::{PoolId, StackId};

use super::growing::Next;
use super::recurring::{Recurring, Stay};
use super::step::{Act, Name, Rises, Step, Want};
use super::{Fails, Live, Of, Shortage};
use crate::allocator::{Allocator, BlockId, Limit};
use crate::follow::Follow;
use crate::names::BlockName;

/// The known limit may be too high by one part in this many, because the use of other processes on the device changes.
const NEARLY: u64 = 64;

#[derive(Clone)]
pub(super) struct Play {
    allocator: Allocator,
    limit: Limit,
    live: HashMap<Name, PlayedBlock>,
    /// Blocks by stack and bytes, the oldest first. Some of them are no longer live.
    alike: HashMap<(StackId, u64), VecDeque<Name>>,
    /// Freed blocks that a stream still uses, by the name in the script.
    going: HashMap<Name, BlockId>,
    /// Private pools that the replay made, by step and by the request's recorded pool.
    captured: HashMap<(u64, PoolId), u32>,
    /// Blocks of a step's own requests that are, by exception, not freed.
    kept: HashSet<Name>,
}

/// The occasional blocks that are expected to stay in a replayed step.
#[derive(Clone, Copy)]
pub(super) enum Stays<'a> {
    /// None.
    Never,
    /// The blocks that are due in that step.
    Due(&'a Recurring),
    /// These blocks, in addition to the step's own requests.
    Besides(&'a [Stay]),
}

/// A live block.
#[derive(Clone)]
struct PlayedBlock {
    id: BlockId,
    /// The requesting stack.
    stack: StackId,
}

impl Play {
    pub fn new(follow: &Follow, limit: Limit, known: &HashMap<BlockName, Live>) -> Self {
        let mut allocator = follow.allocator().clone();
        allocator.set_limit(limit);
        let (mut live, mut alike) = (HashMap::with_capacity(known.len()), HashMap::<_, VecDeque<Name>>::new());
        let mut oldest: Vec<(&Live, BlockId)> =
            known.iter().filter_map(|(&block, known)| Some((known, follow.block(block)?))).collect();
        oldest.sort_unstable_by_key(|(known, _)| (known.name.step, known.name.index));
        for (known, id) in oldest {
            live.insert(known.name, PlayedBlock { id, stack: known.want.stack });
            alike.entry(key(&known.want)).or_default().push_back(known.name);
        }
        Self {
            allocator,
            limit,
            live,
            alike,
            going: HashMap::new(),
            captured: HashMap::new(),
            kept: HashSet::default(),
        }
    }

    /// Marks the blocks that a step carried over in these places as not to be freed.
    pub fn keep(&mut self, step: u64, places: Vec<u32>) {
        self.kept.extend(places.into_iter().map(|index| Name { step, index }));
    }

    /// Replays a step as the one that follows `later` steps after it. Returns the first request that fails, if one
    /// does.
    pub fn step(
        &mut self,
        step: &Step,
        (rises, stage): (&Rises, Option<&Next<'_>>),
        stays: Stays<'_>,
        later: u64,
    ) -> Option<Fails> {
        let number = step.number.saturating_add(later);
        let (mut index, mut place_of_stay) = (0, 0);
        let mut asked: HashMap<StackId, usize> = HashMap::new();
        // Occasional blocks that stay are requested in the place where they were recorded. Their names follow those of
        // the step's own requests.
        let (mut due, kept, recurring) = match stays {
            Stays::Never => (VecDeque::new(), HashSet::default(), None),
            Stays::Due(recurring) => {
                let (own, besides): (Vec<Stay>, Vec<Stay>) = recurring.due(later).partition(|stay| stay.is_own);
                (besides.into(), own.iter().map(|stay| stay.place).collect(), Some(recurring))
            }
            // Places and chance requests belong to another step, so they are not used here.
            Stays::Besides(stays) => (stays.iter().copied().collect(), HashSet::default(), None),
        };
        let is_chance = |index: u32| recurring.is_some_and(|recurring| recurring.is_chance(index));
        let mut more = step.wants.len() as u32..;
        for act in &step.acts {
            while let Some(stay) = due.pop_front_if(|stay| stay.place <= place_of_stay) {
                let name = Name { step: number, index: more.next().unwrap_or(u32::MAX) };
                if let Some(fails) = self.ask_for(&stay, name) {
                    return Some(fails);
                }
            }
            match *act {
                Act::Ask => {
                    let want = step.wants[index];
                    let place = asked.entry(want.stack).or_default();
                    let staged = stage.and_then(|stage| stage.bytes(want.stack, *place));
                    let bytes = staged
                        .unwrap_or_else(|| want.requested.bytes.saturating_add(rises.later(want.stack, *place, later)));
                    *place += 1;
                    let name = Name { step: number, index: index as u32 };
                    index += 1;
                    if is_chance(name.index) {
                        continue;
                    }
                    if kept.contains(&place_of_stay) {
                        self.kept.insert(name);
                    }
                    place_of_stay += 1;
                    if let Some(fails) = self.ask(name, want, bytes) {
                        return Some(fails);
                    }
                }
                Act::FreeRequested(name, _) if name.step == step.number && is_chance(name.index) => {}
                Act::FreeRequested(name, want) => self.give_back(name, want, later),
                Act::FreeCompleted(name) => {
                    if let Some(id) = self.going.remove(&name) {
                        self.allocator.free_completed(id);
                    }
                }
                // A retry emptied the recorded cache, because the device had no room. The replayed allocator retries by
                // itself.
                Act::EmptyCache(wanted) if self.is_beyond(wanted) => {}
                Act::EmptyCache(_) => self.allocator.empty_cache(),
                Act::PoolReleased(pool) => self.allocator.pool_is_released(pool),
            }
            self.forget_completed();
            self.allocator.forget_calls();
        }
        self.going.clear();
        due.into_iter().find_map(|stay| {
            let name = Name { step: number, index: more.next().unwrap_or(u32::MAX) };
            self.ask_for(&stay, name)
        })
    }

    /// Whether this many reserved bytes exceed the limit, as far as it is known.
    fn is_beyond(&self, bytes: u64) -> bool {
        match self.limit {
            Limit::None => false,
            Limit::Share(limit) | Limit::Device(limit) => bytes > limit - limit / NEARLY,
        }
    }

    fn ask_for(&mut self, stay: &Stay, name: Name) -> Option<Fails> {
        let mut want = stay.want;
        if stay.is_captured {
            // Requests captured in one step share a new private pool.
            let next = self.captured.len() as u32;
            let number = self.captured.entry((name.step, want.requested.pool)).or_insert(next);
            want.requested.pool = PoolId { first: u32::MAX - *number, second: 0 };
        }
        self.ask(name, want, want.requested.bytes)
    }

    fn ask(&mut self, name: Name, want: Want, bytes: u64) -> Option<Fails> {
        let requested = crate::Requested { bytes, ..want.requested };
        self.allocator.hint(&[]);
        match self.allocator.malloc(bytes, requested.stream, requested.pool) {
            Ok(id) => {
                self.forget_completed();
                self.live.insert(name, PlayedBlock { id, stack: want.stack });
                self.alike.entry((want.stack, bytes)).or_default().push_back(name);
                None
            }
            Err(failed) => {
                let allocated_bytes = self.allocator.counts().allocated_bytes;
                let there_is = match self.limit {
                    Limit::None => u64::MAX,
                    Limit::Share(bytes) | Limit::Device(bytes) => bytes,
                };
                let is_too_much = allocated_bytes.saturating_add(failed.rounded) > there_is;
                Some(Fails {
                    steps: 0,
                    of: Of::Last,
                    index: u64::from(name.index),
                    requested,
                    stack: want.stack,
                    shortage: if is_too_much { Shortage::Capacity } else { Shortage::Fragmentation },
                    allocated_bytes,
                    reserved_bytes: failed.reserved,
                    is_certain: false,
                })
            }
        }
    }

    /// Frees the block in the same place as the script's block, `later` steps later.
    fn give_back(&mut self, name: Name, want: Want, later: u64) {
        // Blocks from before the recording have the same name in all steps.
        let shifted = Name { step: if name.step == 0 { 0 } else { name.step.saturating_add(later) }, ..name };
        if self.kept.contains(&shifted) {
            return;
        }
        let found = match self.live.get(&shifted) {
            // A step that went differently has a block of another stack in that place.
            Some(held) if held.stack == want.stack => self.live.remove(&shifted).map(|held| held.id),
            _ => match self.handed_on(key(&want), shifted.step) {
                Some(name) if self.kept.contains(&name) => return,
                Some(name) => self.live.remove(&name).map(|held| held.id),
                None => self.oldest(key(&want)),
            },
        };
        if let Some(id) = found {
            self.allocator.free_requested(id);
            self.going.insert(name, id);
        }
    }

    /// The block in another place of that step, which went differently. A block that is to be kept is chosen only if
    /// there is no other.
    fn handed_on(&self, key: (StackId, u64), step: u64) -> Option<Name> {
        let names = self.alike.get(&key)?.iter().rev().take_while(|name| name.step >= step && step > 0);
        let live = names.filter(|name| name.step == step && self.live.contains_key(name));
        live.min_by_key(|name| (self.kept.contains(name), name.index)).copied()
    }

    fn oldest(&mut self, key: (StackId, u64)) -> Option<BlockId> {
        let names = self.alike.get_mut(&key)?;
        while let Some(name) = names.pop_front() {
            if self.kept.contains(&name) {
                continue;
            }
            if let Some(held) = self.live.remove(&name) {
                return Some(held.id);
            }
        }
        None
    }

    /// Removes blocks that a retry waited for: they are free, and others may use their slots.
    fn forget_completed(&mut self) {
        if self.allocator.has_completed() {
            let completed: HashSet<BlockId> = self.allocator.take_completed().into_iter().collect();
            self.going.retain(|_, id| !completed.contains(id));
            self.live.retain(|_, held| !completed.contains(&held.id));
        }
    }
}

fn key(want: &Want) -> (StackId, u64) {
    (want.stack, want.requested.bytes)
}
