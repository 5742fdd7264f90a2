//! Findings: problems of a job's memory, each as one sentence with its evidence.
//!
//! Guarantees: unknown figures are `None`, never 0. The fingerprint of a finding stays the same while the finding
//! grows, spreads to more ranks or changes its severity. Every finding carries its evidence, so that it can be
//! verified.
//!
//! (Over 400 lines: kinds and patterns with their names, one table each, beside the finding that uses them.)

use crate::fingerprint::Fingerprint;
use crate::foresight::Foresight;
use crate::holders::FindingHolders;
use crate::site::Boundary;
use crate::stack::Frame;

/// The kind of problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FindingKind {
    /// Memory of one site grows from epoch to epoch or from step to step.
    Leak,
    /// The graph of an evaluation is retained: it runs with gradients enabled, and an object holds its result.
    EvalGraph,
    /// The graph of training steps is retained: an object holds a loss or an output that was not detached.
    GraphKept,
    /// Each step's graph is attached to the previous one by a hidden state that was not detached. The memory is freed
    /// at the end of the epoch.
    HiddenChain,
    /// Reserved memory is so fragmented that requests of this job do not fit into it.
    Fragmentation,
    /// Unused reserved memory grows from epoch to epoch.
    FragmentationGrowth,
    /// A rank holds more than its peers.
    RankSkew,
    /// A rank failed, or stopped sending.
    RankLost,
    /// A process of another job or user is on this rank's device.
    ForeignProcess,
    /// A request failed.
    Oom,
    /// A request will fail soon.
    NearOom,
    /// Device memory outside the allocator grows.
    OutsideAllocator,
    /// Segments are repeatedly requested from the driver in steady state.
    Churn,
    /// Host memory grows.
    HostGrowth,
    /// Private pools of CUDA graphs or MemPools grow: memory that is reserved for them only.
    PrivatePools,
    /// A rank allocates on a device that belongs to another rank.
    WrongDevice,
    /// The analysis failed: it is unknown what could not be analysed.
    Unjudged,
}

impl FindingKind {
    /// Every kind.
    pub const ALL: [Self; 17] = [
        Self::Leak,
        Self::EvalGraph,
        Self::GraphKept,
        Self::HiddenChain,
        Self::Fragmentation,
        Self::FragmentationGrowth,
        Self::RankSkew,
        Self::RankLost,
        Self::ForeignProcess,
        Self::Oom,
        Self::NearOom,
        Self::OutsideAllocator,
        Self::Churn,
        Self::HostGrowth,
        Self::PrivatePools,
        Self::WrongDevice,
        Self::Unjudged,
    ];

    /// The subject of a kind, for lists of what was or was not analysed.
    #[must_use]
    pub const fn subject(self) -> &'static str {
        match self {
            Self::Leak | Self::EvalGraph | Self::GraphKept | Self::HiddenChain => "leaks",
            Self::PrivatePools => "growth of private pools",
            Self::Fragmentation => "fragmentation",
            Self::FragmentationGrowth => "growth of unused reserved memory",
            Self::RankSkew => "differences between ranks",
            Self::RankLost => "ranks",
            Self::ForeignProcess => "other processes on the device",
            Self::Oom => "out of memory",
            Self::NearOom => "room on the device",
            Self::OutsideAllocator => "device memory outside the allocator",
            Self::Churn => "device allocations in steady state",
            Self::HostGrowth => "host memory",
            Self::WrongDevice => "allocations on another rank's device",
            Self::Unjudged => "the job",
        }
    }

    /// The name in JSON, in rules and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leak => "leak",
            Self::EvalGraph => "eval_graph",
            Self::GraphKept => "graph_kept",
            Self::HiddenChain => "hidden_chain",
            Self::Fragmentation => "fragmentation",
            Self::FragmentationGrowth => "fragmentation_growth",
            Self::RankSkew => "rank_skew",
            Self::RankLost => "rank_lost",
            Self::ForeignProcess => "foreign_process",
            Self::Oom => "oom",
            Self::NearOom => "near_oom",
            Self::OutsideAllocator => "outside_allocator",
            Self::Churn => "churn",
            Self::HostGrowth => "host_growth",
            Self::PrivatePools => "private_pools",
            Self::WrongDevice => "wrong_device",
            Self::Unjudged => "unjudged",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The memory that grows, if any does. `leaks` lists these kinds, and `stable` asserts that there are none.
    #[must_use]
    pub const fn growth(self) -> Option<Growth> {
        match self {
            Self::Leak | Self::EvalGraph | Self::GraphKept | Self::HiddenChain => Some(Growth::LiveTensors),
            Self::PrivatePools => Some(Growth::PrivatePools),
            Self::FragmentationGrowth | Self::OutsideAllocator | Self::HostGrowth => Some(Growth::Beside),
            Self::Fragmentation
            | Self::RankSkew
            | Self::RankLost
            | Self::ForeignProcess
            | Self::Oom
            | Self::NearOom
            | Self::Churn
            | Self::WrongDevice
            | Self::Unjudged => None,
        }
    }

    /// Whether live tensors grow. The growth of sites shows this.
    #[must_use]
    pub const fn is_leak(self) -> bool {
        matches!(self.growth(), Some(Growth::LiveTensors))
    }

    /// Whether memory that the allocator holds grows until the device is full. `no-leak` asserts that there is no such
    /// finding.
    #[must_use]
    pub const fn fills(self) -> bool {
        matches!(self.growth(), Some(Growth::LiveTensors | Growth::PrivatePools))
    }
}

/// The memory that a kind of growth is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Tensors that stay alive.
    LiveTensors,
    /// Segments reserved for private pools.
    PrivatePools,
    /// Other memory: reserved and unused, outside the allocator, on the host.
    Beside,
}

/// The code pattern that caused a finding, as far as its blocks show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pattern {
    /// A list, dict or attribute retains tensors.
    TensorsKept,
    /// One tensor is repeatedly replaced by a larger one.
    ReplacedByLarger,
    /// An evaluation retains its graph.
    EvalGraph,
    /// Training steps retain their graphs.
    GraphKept,
    /// Each step's graph is attached to the previous one.
    HiddenChain,
    /// A hook is registered repeatedly, so that it is called more often every time.
    HooksPileUp,
    /// A new optimizer is created while the old one's state is still referenced.
    OptimizerRecreated,
    /// Optimizer state grows, by one optimizer that gets further parameters or by several optimizers.
    OptimizerState,
    /// A CUDA graph is captured repeatedly, each time with its own pool.
    GraphsCaptured,
    /// `empty_cache()` is called repeatedly.
    CacheEmptied,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 10] = [
        Self::TensorsKept,
        Self::ReplacedByLarger,
        Self::EvalGraph,
        Self::GraphKept,
        Self::HiddenChain,
        Self::HooksPileUp,
        Self::OptimizerRecreated,
        Self::OptimizerState,
        Self::GraphsCaptured,
        Self::CacheEmptied,
    ];

    /// Whether an optimizer's state is the memory that grows.
    #[must_use]
    pub const fn is_of_optimizer(self) -> bool {
        matches!(self, Self::OptimizerRecreated | Self::OptimizerState)
    }

    /// The name in JSON and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TensorsKept => "tensors_kept",
            Self::ReplacedByLarger => "replaced_by_larger",
            Self::EvalGraph => "eval_graph",
            Self::GraphKept => "graph_kept",
            Self::HiddenChain => "hidden_chain",
            Self::HooksPileUp => "hooks_pile_up",
            Self::OptimizerRecreated => "optimizer_recreated",
            Self::OptimizerState => "optimizer_state",
            Self::GraphsCaptured => "graphs_captured",
            Self::CacheEmptied => "cache_emptied",
        }
    }

    /// The pattern with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == name)
    }
}

/// How serious it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Severity {
    /// For information; may turn out harmless.
    Info,
    /// Will cause trouble. A severity of a newer version counts as this one.
    #[default]
    Warning,
    /// Causes trouble now, or will within the hour.
    Critical,
}

impl Severity {
    /// Every severity, the mildest first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// The name in JSON, in rules and on the wire; never changes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    /// The severity with this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|severity| severity.name() == name)
    }
}

/// A slope with its 90 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Rate {
    /// The slope.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The moment when something was first seen, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Moment {
    /// Epoch.
    pub epoch: Option<u32>,
    /// Step.
    pub step: Option<u64>,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: Option<u64>,
    /// The kind of boundary that showed it.
    pub boundary: Option<Boundary>,
}

/// One figure or fact behind a finding. Names of bytes end with `_bytes`; ratios are 0..1.
#[derive(Clone, Debug, PartialEq)]
pub enum EvidenceValue {
    /// A count.
    Count(u64),
    /// A ratio or a rate.
    Number(f64),
    /// Text.
    Text(String),
    /// A series over time.
    Series(Vec<u64>),
}

/// Between a finding's title and the words about when the device is full.
const HORIZON: &str = "; out of memory ";

/// Selects the finding's job in a command of its advice; [`Finding::name_job`] puts the job's name there.
pub const JOB_FLAG: &str = "--job JOB";

/// A problem: its place, its ranks, its severity, and the remedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The kind of problem.
    pub kind: FindingKind,
    /// How serious it is.
    pub severity: Severity,
    /// Its certainty, 0..1.
    pub confidence: f64,
    /// Whether it may still turn out harmless: it is only reported on request.
    pub is_suspected: bool,
    /// Whether what grew filled the device: a request failed because of it.
    pub filled_device: bool,
    /// Whether the growth slows down.
    pub slows: bool,
    /// The confidence that it gives to a forecast.
    pub foresight: Foresight,
    /// Rises that were counted, of growth.
    pub rises: Option<u64>,
    /// Bytes that the growth has brought so far, on one rank.
    pub gained_bytes: Option<u64>,
    /// The code pattern, as far as known.
    pub pattern: Option<Pattern>,
    /// Ranks concerned, ascending.
    pub ranks: Vec<u32>,
    /// Processes concerned, by their names within the job, sorted.
    pub processes: Vec<String>,
    /// Whether these are all ranks that were seen (and more than one).
    pub all_ranks: bool,
    /// When it was first seen.
    pub first_seen: Moment,
    /// Growth per epoch of one rank.
    pub bytes_per_epoch: Option<Rate>,
    /// Growth per step of one rank.
    pub bytes_per_step: Option<Rate>,
    /// Growth per minute of wall-clock time, of one rank.
    pub bytes_per_minute: Option<Rate>,
    /// Its live bytes now, on the rank that holds most.
    pub live_bytes: Option<u64>,
    /// Its live blocks now, on the rank that holds most.
    pub live_blocks: Option<u64>,
    /// Seconds until the device is full, at this slope.
    pub time_to_oom_seconds: Option<f64>,
    /// Epochs until the device is full, at this slope.
    pub epochs_to_oom: Option<f64>,
    /// The innermost frame of the user's own code that all its stacks share.
    pub site: Option<Frame>,
    /// Lines of the site's function at which it was allocated, ascending, if there are lines besides the site's.
    pub lines: Vec<u32>,
    /// A stack that allocated it, innermost frame first.
    pub stack: Vec<Frame>,
    /// Distinguishes two findings of one kind without a site: `rank 3`; empty otherwise.
    pub subject: String,
    /// One sentence that a tired person understands, without the horizon; see [`Finding::headline`].
    pub title: String,
    /// When the device is full at this rate, in words: `in about 9 minutes`.
    pub horizon: Option<String>,
    /// Why memctl reports it.
    pub explanation: String,
    /// The remedy.
    pub advice: String,
    /// The figures and facts behind it.
    pub evidence: Vec<(String, EvidenceValue)>,
    /// The holders of its blocks, if a process was queried.
    pub holders: Option<FindingHolders>,
}

impl Finding {
    /// Puts the job into the commands of the advice, so that they cannot select another job. `job` is a word of a shell.
    pub fn name_job(&mut self, job: &str) {
        if self.advice.contains(JOB_FLAG) {
            self.advice = self.advice.replace(JOB_FLAG, &format!("--job {job}"));
        }
    }

    /// A finding with no other facts yet.
    #[must_use]
    pub fn new(kind: FindingKind, severity: Severity, confidence: f64, ranks: Vec<u32>) -> Self {
        Self {
            kind,
            severity,
            confidence,
            is_suspected: false,
            filled_device: false,
            slows: false,
            foresight: Foresight::Nothing,
            rises: None,
            gained_bytes: None,
            pattern: None,
            ranks,
            processes: Vec::new(),
            all_ranks: false,
            first_seen: Moment::default(),
            bytes_per_epoch: None,
            bytes_per_step: None,
            bytes_per_minute: None,
            live_bytes: None,
            live_blocks: None,
            time_to_oom_seconds: None,
            epochs_to_oom: None,
            site: None,
            lines: Vec::new(),
            stack: Vec::new(),
            subject: String::new(),
            title: String::new(),
            horizon: None,
            explanation: String::new(),
            advice: String::new(),
            evidence: Vec::new(),
            holders: None,
        }
    }

    /// Its title with the horizon.
    #[must_use]
    pub fn headline(&self) -> String {
        self.horizon.as_ref().map_or_else(|| self.title.clone(), |horizon| format!("{}{HORIZON}{horizon}", self.title))
    }

    /// The lines of its function at which its memory is allocated, ascending; empty without a site.
    #[must_use]
    pub fn all_lines(&self) -> Vec<u32> {
        let mut lines = self.lines.clone();
        lines.extend(self.site.as_ref().map(|site| site.line));
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// An id of this finding that stays the same as long as it is about the same problem in the same job.
    ///
    /// It does not contain ranks, severity, figures or line numbers. A leak that spreads to another rank, or whose
    /// file was edited above it, is the same leak.
    #[must_use]
    pub fn fingerprint(&self, job: &str) -> Fingerprint {
        let (function, file) = self.site.as_ref().map_or(("", ""), |site| (&site.function, &site.file));
        Fingerprint::of([job, self.kind.name(), function, file, &self.subject])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        Finding {
            site: Some(Frame { function: "keep".into(), file: "train.py".into(), line: 7 }),
            ..Finding::new(FindingKind::Leak, Severity::Info, 0.5, vec![0])
        }
    }

    #[test]
    fn a_fingerprint_stays_while_the_finding_grows_and_differs_between_jobs_and_sites() {
        let known = finding().fingerprint("vit");
        assert_eq!(known.to_string(), "1bff5e5b500e1962");
        let grown = Finding { severity: Severity::Critical, ranks: vec![0, 1], live_bytes: Some(9), ..finding() };
        assert_eq!(grown.fingerprint("vit"), known);
        assert_ne!(finding().fingerprint("vit2"), known);
        let elsewhere = Finding { site: None, ..finding() };
        assert_ne!(elsewhere.fingerprint("vit"), known);
        assert_ne!(
            Finding { subject: "rank 3".into(), ..elsewhere.clone() }.fingerprint("vit"),
            elsewhere.fingerprint("vit")
        );
    }

    #[test]
    fn names_are_read_back() {
        assert!(FindingKind::ALL.into_iter().all(|kind| FindingKind::of_name(kind.name()) == Some(kind)));
        assert!(Pattern::ALL.into_iter().all(|pattern| Pattern::of_name(pattern.name()) == Some(pattern)));
        assert!(Severity::ALL.into_iter().all(|severity| Severity::of_name(severity.name()) == Some(severity)));
        assert_eq!(FindingKind::of_name("none"), None);
        assert!(Severity::Warning < Severity::Critical);
    }
}
