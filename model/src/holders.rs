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
    /// All of it in words.
    pub sentence: String,
}

/// How a holder grew between two answers of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HolderGrowth {
    /// The epoch of the first.
    pub since_epoch: u32,
    /// Tensors an epoch.
    pub tensors_per_epoch: f64,
}
