//! What live memory is for: parameters, gradients, optimizer state, activations, temporaries, workspace.
//!
//! Concluded from who allocated a block, in which phase it was born, whether it outlived its step, and whether its size is a
//! parameter's; exact where somebody lists the storages ([`Exact`]). Guarantees: the classes' bytes sum to what was given;
//! what no rule knows is *unknown*, and is shown. Refuses to guess from size alone, library workspaces excepted.

mod rules;
mod scaling;

use std::collections::{HashMap, HashSet};

use memctl_model::{BlockState, BlockUse, Keyframe, Phase, SiteRow, Stack, StackId};

use rules::Says;
pub use scaling::{Asked, Scaling, copies};

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Parameters and buffers of modules.
    Parameters,
    /// Gradients, and the buckets they are reduced in.
    Gradients,
    /// What the optimizer keeps for each parameter.
    OptimizerState,
    /// What the forward pass made: kept for the backward pass, or by whoever holds it.
    Activations,
    /// What lives within a part of a step.
    Temporaries,
    /// Workspaces of cuBLAS.
    Workspace,
    /// No rule knows.
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

    /// As people say it.
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

    /// The share that no rule knows, 0..1; `None` when nothing lives.
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

/// Storages that a session listed, by device address: what is in here needs no rule.
pub type Exact = HashMap<u64, Class>;

/// One block, or the blocks of one site that were born alike.
#[derive(Clone, Copy, Debug)]
struct Lived {
    stack: StackId,
    /// Requested by one block.
    requested_bytes: u64,
    phase: Option<Phase>,
    /// Born before the step under way.
    old: bool,
}

/// Tells classes apart; stacks are read once each.
pub struct Classifier<'a> {
    resolve: &'a dyn Fn(StackId) -> Stack,
    said: HashMap<StackId, Says>,
    parameter_sizes: HashSet<u64>,
}

impl<'a> Classifier<'a> {
    /// A classifier over a session's stacks.
    #[must_use]
    pub fn new(resolve: &'a dyn Fn(StackId) -> Stack) -> Self {
        Self { resolve, said: HashMap::new(), parameter_sizes: HashSet::new() }
    }

    /// The allocated blocks of a state in which `step` is under way (`None` = between steps), by class. Their sum is the
    /// state's allocated bytes. Blocks listed in `exact` are what it says.
    #[must_use]
    pub fn of_state(&mut self, keyframe: &Keyframe, step: Option<u64>, exact: Option<&Exact>) -> Shares {
        let mut shares = Shares::default();
        for (class, block) in self.blocks(keyframe, step, exact) {
            shares.add(class, block.size);
        }
        shares
    }

    /// Every allocated block with its class.
    #[must_use]
    pub fn blocks<'k>(
        &mut self,
        keyframe: &'k Keyframe,
        step: Option<u64>,
        exact: Option<&Exact>,
    ) -> Vec<(Class, &'k BlockState)> {
        let in_segments = keyframe.segments.iter().flat_map(|segment| &segment.blocks);
        let all = in_segments.chain(&keyframe.loose).filter(|block| block.usage == BlockUse::Allocated);
        let lived: Vec<(&BlockState, Lived)> = all
            .map(|block| {
                let old = step.is_none_or(|step| block.birth_step < step);
                let &BlockState { stack, requested, birth_phase, .. } = block;
                (block, Lived { stack, requested_bytes: requested, phase: birth_phase, old })
            })
            .collect();
        let listed = |block: &BlockState| exact.and_then(|exact| exact.get(&block.addr).copied());
        for (block, lived) in &lived {
            let is_parameter = match listed(block) {
                Some(class) => class == Class::Parameters,
                None => self.says(lived.stack) == Says::Module,
            };
            if is_parameter {
                self.parameter_sizes.insert(lived.requested_bytes);
            }
        }
        let mut classed = Vec::with_capacity(lived.len());
        for (block, lived) in lived {
            let class = listed(block).unwrap_or_else(|| self.class(lived));
            classed.push((class, block));
        }
        classed
    }

    /// The rows of a site table, by class. A table tells neither steps nor sizes of single blocks: everything in it outlived
    /// its step, and a row's blocks are taken to be alike. Sums to the rows' bytes.
    #[must_use]
    pub fn of_rows(&mut self, rows: &[SiteRow]) -> Shares {
        let each = |row: &SiteRow| row.bytes / row.blocks.max(1);
        for row in rows {
            if self.says(row.stack) == Says::Module {
                self.parameter_sizes.insert(each(row));
            }
        }
        let mut shares = Shares::default();
        for row in rows {
            let lived = Lived { stack: row.stack, requested_bytes: each(row), phase: row.birth_phase, old: true };
            shares.add(self.class(lived), row.bytes);
        }
        shares
    }

    fn says(&mut self, stack: StackId) -> Says {
        let resolve = self.resolve;
        *self.said.entry(stack).or_insert_with(|| rules::read(&resolve(stack)))
    }

    fn class(&mut self, lived: Lived) -> Class {
        let says = self.says(lived.stack);
        let is_parameter_size = self.parameter_sizes.contains(&lived.requested_bytes);
        rules::class(says, lived.phase, lived.old, lived.requested_bytes, is_parameter_size)
    }
}

#[cfg(test)]
mod tests;
