//! Which Python objects hold the tensors of a site: what a running process answered, and how a finding tells it.
//!
//! Guarantees: an answer says how many blocks it covers and what was not looked at; a process that did not answer has said
//! why. Refuses to guess: how a holder grew is known only where it was counted twice.

use crate::stack::Frame;

/// What a search through a process came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldersFound {
    /// Live blocks of the site.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The oldest of them, which were asked about.
    pub asked_blocks: u32,
    /// Of these, how many a holder was found for.
    pub found_blocks: u32,
    /// Objects of the interpreter that were looked at.
    pub objects: u64,
    /// How long the process stood still for it.
    pub took_us: u64,
    /// Whether all that can be looked at was.
    pub complete: bool,
    /// What was not looked at, in sentences.
    pub not_looked_at: Vec<String>,
    /// Holders, most blocks first.
    pub holders: Vec<TensorHolder>,
    /// The epoch in which the process answered.
    pub epoch: Option<u32>,
    /// Slices of the search.
    pub slices: u32,
    /// The longest of them: no longer did the process stand still at a time.
    pub longest_us: u64,
}

/// What a holder is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HolderKind {
    /// An older agent does not say.
    #[default]
    Unknown,
    /// A list, dict, set, deque, queue.
    Container,
    /// What is known to keep things by its type.
    Cache,
    /// A cycle of references that nothing reaches.
    Cycle,
    /// A local variable of a function that runs.
    Frame,
    /// A variable of a function in another thread, or what lies below it.
    Thread,
    /// A buffer or a parameter of a module.
    Module,
    /// The autograd graph of a tensor that a Python object holds.
    Graph,
    /// PyTorch's C++ alone.
    Cpp,
    /// A variable or an attribute, which is the tensor itself.
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

/// How much a holder may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HolderBound {
    /// It is not known.
    #[default]
    Unknown,
    /// Nothing bounds it.
    Unbounded,
    /// So many items, where that is known.
    Bounded {
        /// Items at most.
        limit: Option<u64>,
    },
}

/// Whether a cycle would be freed by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// It runs.
    On,
    /// It is disabled.
    Off,
    /// Its thresholds are as good as never reached.
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

/// What makes C++ hold something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderPattern {
    /// `backward(create_graph=True)`: a parameter and its gradient's graph hold each other.
    CreateGraph,
    /// Autocast was entered and not left: its cache keeps a copy of each weight that it has converted.
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

/// What holds some of the tensors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TensorHolder {
    /// `list`, `dict`, `attribute`, `closure`, `hook`, …
    pub kind: String,
    /// One sentence without its full stop.
    pub sentence: String,
    /// From the root to the tensor, one step each.
    pub chain: Vec<String>,
    /// Of the blocks that were asked about, how many it holds.
    pub blocks: u32,
    /// Their bytes.
    pub bytes: u64,
    /// How many tensors the innermost container holds.
    pub tensors: Option<u64>,
    /// What it is.
    pub holder: HolderKind,
    /// `list`, `collections.deque`, `functools.lru_cache`, …
    pub type_name: String,
    /// The variable or attribute.
    pub name: Option<String>,
    /// The module, class or function whose that is.
    pub owner: Option<String>,
    /// Items of the container.
    pub length: Option<u64>,
    /// How many it may have.
    pub bound: HolderBound,
    /// Of a thread: which, and where it is.
    pub thread: Option<String>,
    /// How many threads hold the same.
    pub threads: u32,
    /// Of a cycle: whether it would be freed by itself.
    pub collector: Option<Collector>,
    /// What makes C++ hold it, where that is known.
    pub pattern: Option<HolderPattern>,
}

/// What a process was asked, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldersAsked {
    /// Its rank.
    pub rank: u32,
    /// Its name within the job.
    pub process: String,
    /// When the answer came, ns since the Unix epoch.
    pub asked_ns: u64,
    /// Whether the daemon asked by itself.
    pub unasked: bool,
    /// How long the process might stand still.
    pub budget_ms: u32,
    /// The site that it was asked about.
    pub site: Frame,
    /// The finding whose site that is, by its fingerprint; empty where a person named the site.
    pub finding: String,
    /// The answer, or in one sentence why there is none.
    pub outcome: Result<HoldersFound, String>,
}

/// What is known of the holders of a finding's blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct FindingHolders {
    /// Who was asked, and what came of it.
    pub asked: HoldersAsked,
    /// How each holder grew since the process was asked for the first time, where that is known.
    pub growth: Vec<Option<HolderGrowth>>,
    /// How long each holder has become since an earlier answer, where one measured it.
    pub pace: Vec<Option<HolderPace>>,
    /// All of it in words.
    pub sentence: String,
}

/// How a holder's length changed beside the bytes of the site, between two answers of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderPace {
    /// When the earlier answer came, ns since the Unix epoch.
    pub since_ns: u64,
    /// Items then,
    pub length_before: u64,
    /// and now.
    pub length_now: u64,
    /// Live bytes of the site then,
    pub bytes_before: u64,
    /// and now.
    pub bytes_now: u64,
}

impl HolderPace {
    /// Whether it became longer while the site's bytes became more: what it holds is what grows.
    #[must_use]
    pub const fn grew_with_bytes(&self) -> bool {
        self.length_now > self.length_before && self.bytes_now > self.bytes_before
    }
}

/// How a holder grew between two answers of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HolderGrowth {
    /// The epoch of the first.
    pub since_epoch: u32,
    /// Tensors an epoch.
    pub tensors_per_epoch: f64,
}
