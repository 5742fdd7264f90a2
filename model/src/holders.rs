//! The Python objects that hold the tensors of a site: the answer of a running process, and its part in a finding.
//!
//! Guarantees: an answer states how many blocks it covers and what was not searched. A process that did not answer has
//! a reason. A holder's growth is known only if it was counted twice.

use crate::fingerprint::Fingerprint;
use crate::stack::Frame;

/// The step of a chain that is an exception's traceback, as the agent names it.
pub const TRACEBACK: &str = "traceback";
/// Maximum number of a site's blocks in one request, the oldest ones. A site with fewer blocks is searched completely.
pub const BLOCKS_MAX: usize = 256;

/// The result of a search in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldersFound {
    /// Number of live blocks of the site.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Number of the oldest blocks that the request was about.
    pub asked_blocks: u32,
    /// Number of these blocks for which a holder was found.
    pub found_blocks: u32,
    /// Number of the interpreter's objects that were visited.
    pub objects: u64,
    /// Time for which the process was paused for it.
    pub took_us: u64,
    /// Whether the search was complete.
    pub complete: bool,
    /// What was not searched, in sentences.
    pub not_looked_at: Vec<String>,
    /// Holders, most blocks first.
    pub holders: Vec<TensorHolder>,
    /// The epoch in which the process answered.
    pub epoch: Option<u32>,
    /// Number of slices of the search.
    pub slices: u32,
    /// The longest slice: the longest single pause.
    pub longest_us: u64,
}

/// The kind of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HolderKind {
    /// Not reported, by an older agent.
    #[default]
    Unknown,
    /// A list, dict, set, deque, queue.
    Container,
    /// A type that is known to cache objects.
    Cache,
    /// An unreachable cycle of references.
    Cycle,
    /// A local variable of a running function.
    Frame,
    /// A variable of a function in another thread, or an object below it.
    Thread,
    /// A buffer or a parameter of a module.
    Module,
    /// The autograd graph of a tensor that a Python object holds.
    Graph,
    /// PyTorch's C++ only.
    Cpp,
    /// A variable or an attribute that is the tensor itself.
    Variable,
    /// Any other object.
    Object,
}

impl HolderKind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Unknown,
        Self::Container,
        Self::Cache,
        Self::Cycle,
        Self::Frame,
        Self::Thread,
        Self::Module,
        Self::Graph,
        Self::Cpp,
        Self::Variable,
        Self::Object,
    ];

    /// Its name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Container => "container",
            Self::Cache => "cache",
            Self::Cycle => "cycle",
            Self::Frame => "frame",
            Self::Thread => "thread",
            Self::Module => "module",
            Self::Graph => "graph",
            Self::Cpp => "cpp",
            Self::Variable => "variable",
            Self::Object => "object",
        }
    }
}

/// The bound of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HolderBound {
    /// Unknown.
    #[default]
    Unknown,
    /// The holder has no bound.
    Unbounded,
    /// The holder has a bound, whose number of items may be known.
    Bounded {
        /// Maximum number of items.
        limit: Option<u64>,
    },
}

/// Whether the garbage collector frees a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// It is enabled.
    On,
    /// It is disabled.
    Off,
    /// Its thresholds are practically never reached.
    Rare,
}

impl Collector {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::On, Self::Off, Self::Rare];

    /// Its name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Rare => "rare",
        }
    }
}

/// Why C++ holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderPattern {
    /// `backward(create_graph=True)`: a parameter and the graph of its gradient hold each other.
    CreateGraph,
    /// Autocast was entered and not left: its cache keeps a copy of each weight that it converted.
    AutocastCache,
}

impl HolderPattern {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::CreateGraph, Self::AutocastCache];

    /// Its name in answers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CreateGraph => "create_graph",
            Self::AutocastCache => "autocast_cache",
        }
    }
}

/// A holder of some of the tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorHolder {
    /// `list`, `dict`, `attribute`, `closure`, `hook`, …
    pub kind: String,
    /// One sentence without its full stop.
    pub sentence: String,
    /// The path from the root to the tensor, one entry per step.
    pub chain: Vec<String>,
    /// Number of the requested blocks that it holds.
    pub blocks: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Number of tensors that the innermost container holds.
    pub tensors: Option<u64>,
    /// The kind of holder.
    pub holder: HolderKind,
    /// `list`, `collections.deque`, `functools.lru_cache`, …
    pub type_name: String,
    /// The variable or attribute.
    pub name: Option<String>,
    /// The module, class or function that contains it.
    pub owner: Option<String>,
    /// Number of items in the container.
    pub length: Option<u64>,
    /// The container's bound.
    pub bound: HolderBound,
    /// For a thread: its name and its position.
    pub thread: Option<String>,
    /// Number of threads that hold the same tensor.
    pub threads: u32,
    /// For a cycle: whether the collector frees it.
    pub collector: Option<Collector>,
    /// Why C++ holds it, if known.
    pub pattern: Option<HolderPattern>,
    /// The sentence without counts, which stays the same while the holder grows.
    pub subject: String,
    /// The same number in two answers of one process means the same holder.
    pub identity: Fingerprint,
}

/// A request to a process, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersAsked {
    /// Its rank.
    pub rank: u32,
    /// Its name within the job.
    pub process: String,
    /// When the answer arrived, ns since the Unix epoch.
    pub asked_ns: u64,
    /// Whether the daemon made the request by itself.
    pub unasked: bool,
    /// Maximum time for which the process may be paused.
    pub budget_ms: u32,
    /// The requested site.
    pub site: Frame,
    /// The lines of the site's function whose blocks were asked about, ascending.
    pub lines: Vec<u32>,
    /// The fingerprint of the finding with that site; empty if a person named the site.
    pub finding: String,
    /// The answer, or a sentence with the reason why there is none.
    pub outcome: Result<HoldersFound, String>,
}

/// The known holders of a finding's blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct FindingHolders {
    /// The request and its outcome.
    pub asked: HoldersAsked,
    /// The growth of each holder since the first request to the process, if known.
    pub growth: Vec<Option<HolderGrowth>>,
    /// The change of each holder's length since an earlier answer, if one measured it.
    pub pace: Vec<Option<HolderPace>>,
    /// The same in words.
    pub sentence: String,
}

/// The step of a chain from a tensor to its gradient, as the agent names it.
pub(crate) const GRADIENT: &str = "attribute `grad`";
/// The step of a chain to the state of an optimizer, and the steps of the parameters that are its keys.
pub(crate) const STATE: &str = "attribute `state`";
const OF_PARAMETER: [&str; 2] = ["key `a Parameter`", "Parameter"];
/// The step of a chain to the parameters of an optimizer.
const GROUPS: &str = "attribute `param_groups`";

/// Whether a chain leads through an optimizer: through the dict of its state, whose keys are parameters, or through its
/// groups of parameters.
fn is_through_optimizer(chain: &[String]) -> bool {
    let of_state = |steps: &[String]| {
        let [state, _, of] = steps else { return false };
        state == STATE && OF_PARAMETER.contains(&of.as_str())
    };
    chain.iter().any(|step| step == GROUPS) || chain.windows(3).any(of_state)
}

/// Whether a holder's chain leads to gradients of parameters. Gradients of the same parameters are a constant set. Those of
/// tensors in a list may be kept with the tensors.
#[must_use]
pub fn is_of_gradients(chain: &[String]) -> bool {
    let in_list = |step: &String| ["list", "deque", "set", "tuple"].iter().any(|kind| step.starts_with(kind));
    chain.last().is_some_and(|last| last == GRADIENT) && (is_through_optimizer(chain) || !chain.iter().any(in_list))
}

/// Whether a holder's chain leads to an optimizer's state, which has its tensors for each parameter.
#[must_use]
pub fn is_of_optimizer_state(chain: &[String]) -> bool {
    is_through_optimizer(chain) && chain.iter().any(|step| step == STATE) && !is_of_gradients(chain)
}

impl TensorHolder {
    /// Whether it holds gradients of parameters.
    #[must_use]
    pub fn holds_gradients(&self) -> bool {
        is_of_gradients(&self.chain)
    }

    /// Whether the frames of a kept exception's traceback hold the tensors.
    #[must_use]
    pub fn is_kept_by_traceback(&self) -> bool {
        self.chain.iter().any(|step| step == TRACEBACK)
    }

    /// Whether it is the state of an optimizer.
    #[must_use]
    pub fn is_optimizer_state(&self) -> bool {
        is_of_optimizer_state(&self.chain)
    }

    /// Whether it holds tensors that a training has once for each parameter: gradients and optimizer state.
    #[must_use]
    pub fn holds_constant_set(&self) -> bool {
        self.holds_gradients() || self.is_optimizer_state()
    }

    /// Whether tensors can pile up in it. A variable, a running function's local or a module's buffer has one tensor.
    pub(crate) const fn may_pile_up(&self) -> bool {
        !matches!(self.holder, HolderKind::Variable | HolderKind::Frame | HolderKind::Module)
    }
}

/// Whether a holder of this many blocks represents all requested blocks; `known` is the number of these that have a
/// holder. It must hold half of them, because a holder of a few blocks shows nothing about the others. A holder
/// without a bound needs only a third of them, and nearly all blocks with a known holder. A search that ended early
/// finds the path of the other blocks through this holder last.
#[must_use]
pub fn is_main(held: u32, asked: u32, known: u32, is_bounded: bool) -> bool {
    let [held, asked, known] = [held, asked, known].map(u64::from);
    2 * held >= asked || (!is_bounded && 3 * held >= asked && 10 * held >= 9 * known)
}

/// The change of a holder's length and of the site's bytes between two answers of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderPace {
    /// When the earlier answer arrived, ns since the Unix epoch.
    pub since_ns: u64,
    /// Number of items at that time.
    pub length_before: u64,
    /// Number of items now.
    pub length_now: u64,
    /// Live bytes of the site at that time.
    pub bytes_before: u64,
    /// Live bytes of the site now.
    pub bytes_now: u64,
}

impl HolderPace {
    /// Whether it became longer while the site's bytes grew. Its contents are then the memory that grows.
    #[must_use]
    pub const fn grew_with_bytes(&self) -> bool {
        self.length_now > self.length_before && self.bytes_now > self.bytes_before
    }
}

/// The growth of a holder between two answers of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderGrowth {
    /// The epoch of the first answer.
    pub since_epoch: u32,
    /// The number of its tensors at that time. Requests come at any moment of an epoch, so the two counts do not give
    /// a rate.
    pub tensors_before: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_holder_has_half_of_the_blocks_or_nearly_all_that_are_known() {
        assert!(is_main(128, 256, 256, true) && !is_main(127, 256, 256, true));
        assert!(is_main(103, 207, 103, false), "the search ended early");
        assert!(!is_main(103, 207, 103, true), "a bound has to be sure");
        assert!(!is_main(60, 207, 60, false) && !is_main(103, 207, 207, false));
    }
}
