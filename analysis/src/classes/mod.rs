//! The purpose of live memory: parameters, gradients, optimizer state, activations, temporaries, workspace.
//!
//! The class of a block is derived from the code that allocated it, the phase in which it was born, how long it stays
//! ([`Stay`]), and which blocks have the same sizes (module `sets`). It is exact for storages that the
//! session listed ([`Exact`]). Guarantees: the classes' bytes sum to the input's. Blocks that no rule covers are
//! *unknown* and shown as such. Size alone never decides, except for library workspaces.

mod lived;
mod passes;
mod rules;
mod scaling;
mod sets;
mod workspaces;

use std::collections::{HashMap, HashSet};

use memctl_model::{BlockState, BlockUse, Frame, Keyframe, Phase, SiteRow, Stack, StackId};

pub use lived::{Steps, step_at};
use passes::Passes;
use rules::{BlockFacts, Reading, Says};
pub use scaling::{Scaling, copies};
use sets::RequestFacts;

/// The purpose of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Parameters and buffers of modules.
    Parameters,
    /// Gradients, and the buckets in which they are reduced.
    Gradients,
    /// State that the optimizer keeps for each parameter.
    OptimizerState,
    /// Results of the forward pass that are kept for the backward pass or by another holder.
    Activations,
    /// Memory that is live within a part of a step.
    Temporaries,
    /// Workspaces of cuBLAS.
    Workspace,
    /// No rule applies.
    Unknown,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 7] = [
        Self::Parameters,
        Self::Gradients,
        Self::OptimizerState,
        Self::Activations,
        Self::Temporaries,
        Self::Workspace,
        Self::Unknown,
    ];

    /// The name in JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer_state",
            Self::Activations => "activations",
            Self::Temporaries => "temporaries",
            Self::Workspace => "workspace",
            Self::Unknown => "unknown",
        }
    }

    /// The name for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::OptimizerState => "optimizer state",
            other => other.name(),
        }
    }
}

/// Bytes by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    bytes: [u64; Class::ALL.len()],
}

impl Shares {
    /// Adds bytes to a class.
    pub fn add(&mut self, class: Class, bytes: u64) {
        let sum = &mut self.bytes[class as usize];
        *sum = sum.saturating_add(bytes);
    }

    /// Bytes of a class.
    #[must_use]
    pub fn of(&self, class: Class) -> u64 {
        self.bytes[class as usize]
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes.iter().fold(0, |sum, bytes| bytes.saturating_add(sum))
    }

    /// The share that no rule covers, 0..1; `None` if nothing is live.
    #[must_use]
    pub fn unknown_share(&self) -> Option<f64> {
        let total = self.total();
        (total > 0).then(|| self.of(Class::Unknown) as f64 / total as f64)
    }

    /// The classes that have bytes, most first.
    #[must_use]
    pub fn ranked(&self) -> Vec<(Class, u64)> {
        let mut ranked: Vec<(Class, u64)> =
            Class::ALL.into_iter().map(|class| (class, self.of(class))).filter(|&(_, bytes)| bytes > 0).collect();
        ranked.sort_by_key(|&(class, bytes)| (std::cmp::Reverse(bytes), class));
        ranked
    }
}

/// The classes of storages that a session listed, by device address. These blocks need no rule.
pub type Exact = HashMap<u64, Class>;

pub use crate::lifetimes::OPEN;

/// How long a block stays, counted in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Freed by the step that requested it, as far as was seen.
    Within,
    /// Freed by the next step.
    UntilNextStep,
    /// Freed later than that, or not freed although a later step was seen.
    Kept,
}

/// One request for memory, and the known facts about its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRequest {
    /// The requesting stack.
    pub stack: StackId,
    /// Bytes, before rounding.
    pub bytes: u64,
    /// The phase of the request.
    pub phase: Option<Phase>,
    /// When it was made, in an order that all requests of one query share; `None` if before the recording.
    pub born: Option<u64>,
    /// When it was freed, or [`OPEN`].
    pub ended: u64,
    /// How long it stays, if steps are marked; otherwise the backward passes determine it.
    pub stay: Option<Stay>,
}

/// Classifies requests; each stack is read once.
pub struct Classifier<'a> {
    resolve: &'a dyn Fn(StackId) -> Stack,
    said: HashMap<StackId, (Reading, Option<Frame>)>,
    /// Sizes of parameters as requested.
    parameter_sizes: HashSet<u64>,
    /// Sizes of parameters as the allocator rounds them.
    rounded_sizes: HashSet<u64>,
}

impl<'a> Classifier<'a> {
    /// A classifier over a session's stacks.
    #[must_use]
    pub fn new(resolve: &'a dyn Fn(StackId) -> Stack) -> Self {
        let (parameter_sizes, rounded_sizes) = (HashSet::new(), HashSet::new());
        Self { resolve, said: HashMap::new(), parameter_sizes, rounded_sizes }
    }

    /// The class of each request of a device. The requests must be in order.
    #[must_use]
    pub fn requests(&mut self, asked: &[MemoryRequest]) -> Vec<Class> {
        self.classes(asked, |_| None)
    }

    /// The allocated blocks of a state, by class. `step` is the step under way, `None` between steps. The sum is the
    /// state's allocated bytes. `exact` decides for the blocks that it lists.
    #[must_use]
    pub fn of_state(&mut self, keyframe: &Keyframe, step: Option<u64>, exact: Option<&Exact>) -> Shares {
        let mut shares = Shares::default();
        for (class, block) in self.blocks(keyframe, step, exact) {
            shares.add(class, block.size);
        }
        shares
    }

    /// Every allocated block with its class, as far as the state alone shows it. A state contains neither the order of
    /// births nor the end of any block.
    #[must_use]
    pub fn blocks<'k>(
        &mut self,
        keyframe: &'k Keyframe,
        step: Option<u64>,
        exact: Option<&Exact>,
    ) -> Vec<(Class, &'k BlockState)> {
        let blocks: Vec<&BlockState> = allocated(keyframe).collect();
        let of_block = |block: &&BlockState| {
            let old = step.is_none_or(|step| block.birth_step < step);
            let &&BlockState { stack, requested: bytes, birth_phase: phase, .. } = block;
            let (born, stay) = if old { (None, Stay::Kept) } else { (Some(0), Stay::Within) };
            MemoryRequest { stack, bytes, phase, born, ended: OPEN, stay: Some(stay) }
        };
        let asked: Vec<MemoryRequest> = blocks.iter().map(of_block).collect();
        let listed = |at: usize| exact.and_then(|exact| exact.get(&blocks[at].addr).copied());
        self.classes(&asked, listed).into_iter().zip(blocks).collect()
    }

    /// The rows of a site table, by class. A table contains neither steps nor sizes of single blocks. So all its
    /// memory counts as older than the step, and the blocks of a row count as equally large. A row whose stack is in
    /// `known` gets the class given there. The result sums to the rows' bytes.
    #[must_use]
    pub fn of_rows(&mut self, rows: &[SiteRow], known: &HashMap<StackId, Class>) -> Shares {
        let mut shares = Shares::default();
        for (class, row) in self.by_row(rows, known).into_iter().zip(rows) {
            shares.add(class, row.bytes);
        }
        shares
    }

    /// The class of each row, in the order of the rows: see [`Self::of_rows`].
    #[must_use]
    pub fn by_row(&mut self, rows: &[SiteRow], known: &HashMap<StackId, Class>) -> Vec<Class> {
        let each = |row: &SiteRow| row.bytes / row.blocks.max(1);
        for row in rows {
            if self.reading(row.stack).says == Says::Module {
                self.add_parameter_size(each(row));
            }
        }
        let class = |row: &SiteRow| {
            known.get(&row.stack).copied().unwrap_or_else(|| {
                let says = self.reading(row.stack).says;
                let known = BlockFacts {
                    phase: row.birth_phase,
                    stay: Stay::Kept,
                    is_parameter_size: self.has_parameter_size(each(row)),
                    outlives_pass: true,
                    is_workspace: row.blocks == 1 && workspaces::has_size(row.bytes),
                };
                rules::class(says, known)
            })
        };
        rows.iter().map(class).collect()
    }

    /// The class of each request. `listed` returns the exact class of a request, if the session listed its storage.
    fn classes(&mut self, asked: &[MemoryRequest], listed: impl Fn(usize) -> Option<Class>) -> Vec<Class> {
        let read = self.readings(asked);
        let passes = Passes::of(asked, &read);
        let stays: Vec<Stay> = asked.iter().map(|one| one.stay.unwrap_or_else(|| passes.stay(one))).collect();
        let facts = RequestFacts { asked, read: &read, stays: &stays, passes: &passes };
        let workspaces = workspaces::find(&facts);
        let sets =
            sets::find(&facts, &workspaces, |at| self.said.get(&asked[at].stack).and_then(|(_, site)| site.as_ref()));
        for (at, one) in asked.iter().enumerate() {
            let is_parameter = match listed(at).or(sets[at]) {
                Some(class) => class == Class::Parameters,
                None => read[at].says == Says::Module && stays[at] != Stay::Within,
            };
            if is_parameter {
                self.add_parameter_size(one.bytes);
            }
        }
        let class = |(at, one): (usize, &MemoryRequest)| {
            let by_rule = || match read[at].says {
                Says::Elsewhere | Says::Closure | Says::Nothing if passes.gives_back(one) => Class::Activations,
                says => rules::class(
                    says,
                    BlockFacts {
                        phase: one.phase,
                        stay: stays[at],
                        is_parameter_size: self.has_parameter_size(one.bytes),
                        outlives_pass: passes.outlives(one),
                        is_workspace: workspaces[at],
                    },
                ),
            };
            listed(at).or(sets[at]).unwrap_or_else(by_rule)
        };
        asked.iter().enumerate().map(class).collect()
    }

    /// The reading of each request's stack. If other requests have stacks, a request without one came from a thread
    /// without Python.
    fn readings(&mut self, asked: &[MemoryRequest]) -> Vec<Reading> {
        let has_stacks = asked.iter().any(|one| one.stack.is_some() && one.born.is_some() && one.ended != OPEN);
        let reading = |one: &MemoryRequest| match self.reading(one.stack) {
            Reading { says: Says::Nothing, .. } if has_stacks && one.born.is_some() && one.phase.is_none() => {
                Reading { says: Says::Autograd, in_backward: true }
            }
            Reading { says, in_backward } => {
                Reading { says, in_backward: in_backward || one.phase == Some(Phase::Backward) }
            }
        };
        asked.iter().map(reading).collect()
    }

    fn reading(&mut self, stack: StackId) -> Reading {
        let resolve = self.resolve;
        let said = self.said.entry(stack).or_insert_with(|| {
            let stack = resolve(stack);
            (rules::read(&stack), stack.site().cloned())
        });
        said.0
    }

    fn add_parameter_size(&mut self, bytes: u64) {
        self.parameter_sizes.insert(bytes);
        self.rounded_sizes.insert(sets::rounded(bytes));
    }

    fn has_parameter_size(&self, bytes: u64) -> bool {
        self.rounded_sizes.contains(&sets::rounded(bytes))
    }
}

/// The allocated blocks of a state.
pub fn allocated(keyframe: &Keyframe) -> impl Iterator<Item = &BlockState> {
    let in_segments = keyframe.segments.iter().flat_map(|segment| &segment.blocks);
    in_segments.chain(&keyframe.loose).filter(|block| block.usage == BlockUse::Allocated)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod unmarked;
