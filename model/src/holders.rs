//! The Python objects that hold the tensors of a site: the answer of a running process, and its part in a finding.
//!
//! Guarantees: an answer states how many blocks it covers and what was not searched. A process that did not answer has
//! a reason. A holder's growth is known only if it was counted twice.
//!
//! (Over 400 lines: an answer's fields with their meaning, and which of its holders a finding names.)

use crate::finding::{Finding, Pattern};
use crate::fingerprint::Fingerprint;
use crate::stack::Frame;

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

impl Finding {
    /// The holder of most of the requested blocks that can grow, its index, and the answer.
    #[must_use]
    pub fn main_holder(&self) -> Option<(usize, &TensorHolder, &HoldersFound)> {
        let found = self.holders.as_ref()?.asked.outcome.as_ref().ok()?;
        let of_optimizer = self.pattern.is_some_and(Pattern::is_of_optimizer);
        let main = |is_constant: &dyn Fn(&TensorHolder) -> bool| {
            let all = found.holders.iter().enumerate();
            let constant: u32 =
                found.holders.iter().filter(|holder| is_constant(holder)).map(|holder| holder.blocks).sum();
            let (asked, known) =
                (found.asked_blocks.saturating_sub(constant), found.found_blocks.saturating_sub(constant));
            let is_most = |holder: &TensorHolder| {
                let is_bounded = matches!(holder.bound, HolderBound::Bounded { .. });
                !is_constant(holder) && is_main(holder.blocks, asked, known, is_bounded)
            };
            all.into_iter().find(|(_, holder)| is_most(holder)).map(|(at, holder)| (at, holder, found))
        };
        // An optimizer's state is constant as well, unless it is the memory that grows.
        let beside_state = (!of_optimizer).then(|| main(&TensorHolder::holds_constant_set)).flatten();
        beside_state.or_else(|| main(&TensorHolder::holds_gradients))
    }

    /// Holders that have a significant part of the blocks that the main holder does not hold, and whose memory may grow
    /// as well. One that holds at most `constant_bytes`, the bytes of the place that do not grow, shows nothing.
    #[must_use]
    pub fn holders_beside(&self, constant_bytes: u64) -> Vec<&TensorHolder> {
        let (Some(holders), Some((main, _, found))) = (self.holders.as_ref(), self.main_holder()) else {
            return Vec::new();
        };
        let grows = |at: usize, holder: &TensorHolder| {
            let stays =
                holders.pace.get(at).copied().flatten().is_some_and(|pace| pace.length_now <= pace.length_before);
            !stays && holder.may_pile_up() && !holder.holds_constant_set() && holder.bytes > constant_bytes
        };
        let others = found.holders.iter().enumerate().filter(|&(at, holder)| at != main && grows(at, holder));
        let others = others.map(|(_, holder)| holder);
        others.filter(|holder| holder.blocks.saturating_mul(BESIDE) >= found.asked_blocks.max(1)).collect()
    }
}

/// A further holder is named beside the main one only if it holds at least one part in this many of the requested
/// blocks.
const BESIDE: u32 = 8;

/// The step of a chain from a tensor to its gradient, as the agent names it.
const GRADIENT: &str = "attribute `grad`";
/// The step of a chain to the state of an optimizer, and the steps of the parameters that are its keys.
const STATE: &str = "attribute `state`";
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
    const fn may_pile_up(&self) -> bool {
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
    use crate::finding::{FindingKind, Severity};

    #[test]
    fn a_main_holder_has_half_of_the_blocks_or_nearly_all_that_are_known() {
        assert!(is_main(128, 256, 256, true) && !is_main(127, 256, 256, true));
        assert!(is_main(103, 207, 103, false), "the search ended early");
        assert!(!is_main(103, 207, 103, true), "a bound has to be sure");
        assert!(!is_main(60, 207, 60, false) && !is_main(103, 207, 207, false));
    }

    fn chain(steps: &[&str]) -> Vec<String> {
        steps.iter().map(|&step| step.to_owned()).collect()
    }

    fn held(name: &str, steps: &[&str], blocks: u32, bytes: u64) -> TensorHolder {
        let (name, chain) = (Some(name.to_owned()), chain(steps));
        TensorHolder { holder: HolderKind::Container, name, chain, blocks, bytes, ..TensorHolder::default() }
    }

    fn finding(pattern: Pattern, holders: Vec<TensorHolder>) -> Finding {
        let blocks = holders.iter().map(|holder| holder.blocks).sum();
        let found = HoldersFound { asked_blocks: blocks, found_blocks: blocks, holders, ..HoldersFound::default() };
        let asked = HoldersAsked {
            rank: 0,
            process: "rank 0".to_owned(),
            asked_ns: 1,
            unasked: true,
            budget_ms: 100,
            site: Frame { function: "train".into(), file: "train.py".into(), line: 7 },
            lines: Vec::new(),
            finding: String::new(),
            outcome: Ok(found),
        };
        let holders = FindingHolders { asked, growth: Vec::new(), pace: Vec::new(), sentence: String::new() };
        Finding {
            pattern: Some(pattern),
            holders: Some(holders),
            ..Finding::new(FindingKind::Leak, Severity::Warning, 0.9, vec![0])
        }
    }

    const PREDS: [&str; 4] = ["module `__main__`", "global `PREDS`", "list, 4 items", "Tensor"];
    const GRADS: [&str; 6] =
        ["local `opt` of function `main`", "`AdamW` object", STATE, "dict, 6 items", "Parameter", GRADIENT];
    const ADAM: [&str; 8] = [
        "global `opt`",
        "`Adam` object",
        STATE,
        "dict, 14 items",
        "key `a Parameter`",
        "dict, 3 items",
        "key `exp_avg`",
        "Tensor",
    ];

    #[test]
    fn gradients_and_optimizer_state_differ_from_containers_that_grow() {
        assert!(is_of_gradients(&chain(&GRADS)) && !is_of_optimizer_state(&chain(&GRADS)));
        assert!(is_of_optimizer_state(&chain(&ADAM)) && !is_of_gradients(&chain(&ADAM)));
        assert!(is_of_gradients(&chain(&["local `net` of function `main`", "`Net` object", "Parameter", GRADIENT])));
        let kept = ["global `OLD`", "list, 7 items", "`Net` object", "Parameter", GRADIENT];
        assert!(!is_of_gradients(&chain(&kept)), "models that are kept keep their gradients");
        let own = ["`Tracker` object", STATE, "dict, 7 items", "key `loss`", "Tensor"];
        assert!(!is_of_optimizer_state(&chain(&own)), "a dict of this name without parameters as keys");
        assert!(!is_of_optimizer_state(&chain(&PREDS)) && !is_of_gradients(&chain(&[])));
    }

    #[test]
    fn only_a_holder_whose_memory_may_grow_is_named() {
        let (preds, grads) = (held("PREDS", &PREDS, 4, 8 << 20), held("state", &GRADS, 2, 8 << 20));
        let beside = |finding: &Finding, constant| finding.holders_beside(constant).len();
        let leak = finding(Pattern::TensorsKept, vec![preds.clone(), grads.clone()]);
        assert_eq!((leak.main_holder().map(|main| main.0), beside(&leak, 0)), (Some(0), 0));
        // More gradients than kept tensors.
        let many = TensorHolder { blocks: 20, ..grads.clone() };
        let leak = finding(Pattern::TensorsKept, vec![many, preds.clone()]);
        assert_eq!(leak.main_holder().map(|main| main.0), Some(1));
        assert_eq!(finding(Pattern::TensorsKept, vec![grads]).main_holder(), None, "gradients alone are no leak");
        // Two lists grow; a list with at most the bytes that do not grow shows nothing.
        let other = held("LABELS", &PREDS, 4, 1 << 20);
        let leak = finding(Pattern::TensorsKept, vec![preds.clone(), other.clone()]);
        assert_eq!((beside(&leak, 0), beside(&leak, 1 << 20)), (1, 0));
        let variable = TensorHolder { holder: HolderKind::Variable, ..other };
        assert_eq!(beside(&finding(Pattern::TensorsKept, vec![preds.clone(), variable]), 0), 0);
        // An optimizer's state is constant, unless it is the memory that grows.
        let state = held("state", &ADAM, 20, 1 << 20);
        let of = |pattern| finding(pattern, vec![state.clone(), preds.clone()]);
        let main = |finding: &Finding| finding.main_holder().map(|main| main.0);
        assert_eq!((main(&of(Pattern::TensorsKept)), main(&of(Pattern::OptimizerState))), (Some(1), Some(0)));
        assert_eq!(beside(&of(Pattern::TensorsKept), 0), 0);
        assert_eq!(main(&finding(Pattern::TensorsKept, vec![state])), Some(0), "nothing else holds it");
    }
}
