//! The sentences. Each kind's was written first, for somebody who is tired and wants to know what to do.
//!
//! Guarantees: a title is one sentence with figure, ranks and place; an explanation says what was seen; an advice names the
//! change in the user's terms. Nothing is claimed that the evidence beside does not hold.

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, HumanBytes, Moment, Phase, Rate, Severity};

use super::candidate::Shape;
use super::levels::Grown;
use super::ranks::{Excess, is_confirmed, surest};
use super::verdict::Verdict;

/// An hour: what fails within it is critical.
const SOON_SECONDS: f64 = 3_600.0;
/// Beyond a month nobody plans.
const FAR_SECONDS: f64 = 30.0 * 86_400.0;
/// Points of a course that are kept as evidence.
const SERIES_MAX: usize = 64;

/// Bytes of a rate in words.
fn bytes(rate: f64) -> HumanBytes {
    // The cast saturates.
    HumanBytes(rate.round() as i64)
}

/// `rank 0`, `ranks 0-2`, `all 4 ranks`, `ranks 0, 2 and 5`.
#[must_use]
pub(super) fn on_ranks(ranks: &[u32], all: &[u32]) -> String {
    // A rank with several devices comes several times.
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    match ranks.as_slice() {
        [] => "no rank".to_owned(),
        _ if ranks.len() == all.len() && ranks.len() > 1 => format!("all {} ranks", ranks.len()),
        [only] => format!("rank {only}"),
        [first, .., last] if (last - first) as usize + 1 == ranks.len() => format!("ranks {first}-{last}"),
        [first, second] => format!("ranks {first} and {second}"),
        many => {
            let shown: Vec<String> = many.iter().take(6).map(u32::to_string).collect();
            let rest = if many.len() > 6 { format!(" and {} more", many.len() - 6) } else { String::new() };
            format!("ranks {}{rest}", shown.join(", "))
        }
    }
}

/// `remember_features (scenarios.py:47)`, with the file's name alone.
fn place(site: &Frame) -> String {
    let file = site.file.rsplit(['/', '\\']).next().unwrap_or(&site.file);
    match (file.is_empty(), site.line) {
        (true, _) => site.function.to_string(),
        (false, 0) => format!("{} ({file})", site.function),
        (false, line) => format!("{} ({file}:{line})", site.function),
    }
}

/// `about 17 epochs`, `about 3 hours`; nothing beyond a month.
fn until(epochs: Option<f64>, seconds: Option<f64>) -> Option<String> {
    if seconds.is_some_and(|seconds| seconds > FAR_SECONDS) {
        return None;
    }
    match (epochs, seconds) {
        (Some(epochs), _) if epochs < 1.0 => Some("within this epoch".to_owned()),
        (Some(epochs), _) if epochs < 10_000.0 => Some(format!("in about {epochs:.0} epochs")),
        (_, Some(seconds)) if seconds < 120.0 => Some(format!("in about {seconds:.0} seconds")),
        (_, Some(seconds)) if seconds < 7_200.0 => Some(format!("in about {:.0} minutes", seconds / 60.0)),
        (_, Some(seconds)) if seconds < 172_800.0 => Some(format!("in about {:.0} hours", seconds / 3_600.0)),
        (_, Some(seconds)) => Some(format!("in about {:.0} days", seconds / 86_400.0)),
        _ => None,
    }
}

fn median_rate(rates: impl Iterator<Item = Option<Rate>>) -> Option<Rate> {
    let mut known: Vec<Rate> = rates.flatten().collect();
    known.sort_by(|a, b| a.value.total_cmp(&b.value));
    let value = known.get(known.len() / 2)?.value;
    let low = known.iter().map(|rate| rate.low).fold(f64::INFINITY, f64::min);
    let high = known.iter().map(|rate| rate.high).fold(f64::NEG_INFINITY, f64::max);
    Some(Rate { value, low, high })
}

/// One leak, as its ranks show it. `all` are the ranks that are watched, ascending.
pub(super) fn leak(verdicts: &[Verdict], all: &[u32]) -> Finding {
    let shown = surest(verdicts);
    let confirmed = is_confirmed(verdicts);
    let mut ranks: Vec<u32> = verdicts.iter().map(|verdict| verdict.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let per_epoch = median_rate(verdicts.iter().map(|verdict| verdict.per_epoch));
    let per_step = median_rate(verdicts.iter().map(|verdict| verdict.per_step));
    let least = |times: &dyn Fn(&Verdict) -> Option<f64>| verdicts.iter().filter_map(times).min_by(f64::total_cmp);
    let epochs_to_oom = least(&|verdict| verdict.epochs_to_oom);
    let seconds_to_oom = least(&|verdict| verdict.seconds_to_oom);
    let severity = match (confirmed, seconds_to_oom) {
        (false, _) => Severity::Info,
        (true, Some(seconds)) if seconds < SOON_SECONDS => Severity::Critical,
        (true, _) => Severity::Warning,
    };
    let first = verdicts.iter().min_by_key(|verdict| verdict.first_step.unwrap_or(u64::MAX)).unwrap_or(shown);
    let most = verdicts.iter().max_by_key(|verdict| verdict.live_bytes).unwrap_or(shown);
    let growth = Words { shown, confirmed, ranks: &ranks, all, per_epoch, per_step };
    let end = until(epochs_to_oom, seconds_to_oom).filter(|_| confirmed);
    Finding {
        kind: shown.kind,
        pattern: None,
        processes: Vec::new(),
        bytes_per_minute: None,
        severity,
        confidence: confidence(shown, confirmed, ranks.len()),
        all_ranks: ranks.len() == all.len() && all.len() > 1,
        first_seen: Moment {
            epoch: first.first_epoch,
            step: first.first_step,
            time_ns: first.first_ns,
            boundary: None,
        },
        bytes_per_epoch: per_epoch,
        bytes_per_step: per_step,
        live_bytes: Some(most.live_bytes),
        live_blocks: Some(most.live_blocks),
        time_to_oom_seconds: seconds_to_oom,
        epochs_to_oom,
        site: shown.group.site.clone(),
        stack: shown.group.stack.clone(),
        subject: String::new(),
        title: growth.title(end.as_deref()),
        explanation: growth.explanation(),
        advice: growth.advice(),
        evidence: growth.evidence(),
        ranks,
    }
}

/// How sure: each rise halves the doubt of a graph and takes an eighth of that of a single site; peers that show the same
/// take half of what is left. Never certain: a cache may be larger than anybody thought.
fn confidence(verdict: &Verdict, confirmed: bool, ranks: usize) -> f64 {
    let keeps: f64 = if verdict.group.graph { 0.5 } else { 0.875 };
    let doubt = keeps.powi(verdict.rises.min(100) as i32) * if ranks > 1 { 0.5 } else { 1.0 };
    let (low, high) = if confirmed { (0.9, 0.99) } else { (0.3, 0.8) };
    (1.0 - doubt).clamp(low, high)
}

struct Words<'a> {
    shown: &'a Verdict,
    confirmed: bool,
    ranks: &'a [u32],
    all: &'a [u32],
    per_epoch: Option<Rate>,
    per_step: Option<Rate>,
}

impl Words<'_> {
    fn pace(&self) -> String {
        match (self.per_epoch, self.per_step) {
            (_, Some(rate)) if self.shown.shape == Shape::Teeth => format!("{} a step", bytes(rate.value)),
            (Some(rate), _) => format!("{} an epoch", bytes(rate.value)),
            (None, Some(rate)) => format!("{} a step", bytes(rate.value)),
            (None, None) => format!("by {}", bytes(self.shown.group.bytes_gained() as f64)),
        }
    }

    fn who(&self) -> String {
        let on = on_ranks(self.ranks, self.all);
        if self.ranks.len() == self.all.len() || self.all.len() < 2 {
            return on;
        }
        let others: Vec<u32> = self.all.iter().copied().filter(|rank| !self.ranks.contains(rank)).collect();
        let others = on_ranks(&others, self.all);
        format!("{on} (not on {})", others.trim_start_matches("ranks ").trim_start_matches("rank "))
    }

    fn at(&self) -> String {
        match &self.shown.group.site {
            Some(site) => format!(", allocated in {}", place(site)),
            None => " (no stacks were recorded)".to_owned(),
        }
    }

    fn title(&self, end: Option<&str>) -> String {
        let (pace, who, at) = (self.pace(), self.who(), self.at());
        let end = end.map_or_else(String::new, |end| format!("; out of memory {end}"));
        if !self.confirmed {
            return format!("has grown {pace} on {who}{at}; may be a cache that still fills");
        }
        match self.shown.kind {
            FindingKind::EvalGraph => format!("grows {pace} on {who}{at}; evaluation runs with gradients on{end}"),
            FindingKind::GraphKept => format!("grows {pace} on {who}{at}; the graph of each step is kept{end}"),
            FindingKind::HiddenChain => {
                format!("grows {pace} within each epoch on {who}{at}; each step's graph hangs on the one before")
            }
            _ if self.shown.shape == Shape::Larger => {
                format!("grows {pace} on {who}{at}; a tensor is replaced by a larger one each time{end}")
            }
            _ => format!("grows {pace} on {who}{at}{end}"),
        }
    }

    fn explanation(&self) -> String {
        let shown = self.shown;
        let blocks = shown.group.members.iter().fold(0, |sum: u64, member| sum.saturating_add(member.blocks_gained));
        let each = blocks / u64::from(shown.rises.max(1));
        let phase = match shown.phase {
            Some(Phase::Eval) => " in evaluation",
            Some(Phase::Forward) => " in the forward pass",
            Some(Phase::Backward) => " in the backward pass",
            Some(Phase::Optimizer) => " in the optimizer's step",
            _ => "",
        };
        let times = shown.rises;
        let seen = match shown.kind {
            FindingKind::EvalGraph => format!(
                "After each of {times} evaluations about {each} more blocks stayed alive, activations of the whole forward pass \
                 among them; without gradients these would be freed at once, so gradients are on and something keeps the result."
            ),
            FindingKind::GraphKept => format!(
                "{times} times about {each} blocks of one forward pass stayed alive together: not one tensor is kept, but the \
                 graph behind it."
            ),
            FindingKind::HiddenChain => format!(
                "In each of {} epochs about {each} blocks of every step's forward pass stay alive until the epoch ends, then all \
                 go at once: each step's graph holds the one before it.",
                shown.group.lead().teeth
            ),
            _ if shown.shape == Shape::Larger => {
                format!("{times} times a block was replaced by a larger one{phase}; none was ever given back.")
            }
            _ => {
                format!("{times} times blocks that were allocated there{phase} stayed alive; none was ever given back.")
            }
        };
        let doubt = match (self.confirmed, shown.slows) {
            (true, _) => "",
            (false, true) => " It slows down, as a cache does that fills.",
            (false, false) => " A cache that fills looks the same until it is full; memctl keeps watching.",
        };
        let weaker = match shown.group.site {
            None => " Without stacks nothing can be said about where.",
            Some(_) => "",
        };
        format!("{seen}{doubt}{weaker}")
    }

    fn advice(&self) -> String {
        let site = self.shown.group.site.as_ref().map_or_else(|| "the code that allocates it".to_owned(), place);
        match self.shown.kind {
            FindingKind::EvalGraph => format!(
                "Put the evaluation in {site} under torch.no_grad() (or torch.inference_mode()), and keep numbers instead of \
                 tensors: loss.item()."
            ),
            FindingKind::GraphKept => format!(
                "Keep loss.item() or output.detach() instead of the tensor that {site} produces; with retain_graph=True, drop it."
            ),
            FindingKind::HiddenChain => format!(
                "Detach the state that {site} hands to the next step: h = h.detach() (for an LSTM both tensors), and drop \
                 retain_graph=True."
            ),
            _ if self.shown.shape == Shape::Larger => format!(
                "Look for a tensor that is appended to in {site} (torch.cat); write into one of fixed size, or move it to the host."
            ),
            _ => format!(
                "Look for a list, dict or attribute that keeps what {site} allocates; bound it (collections.deque(maxlen=…)), \
                 clear it every epoch, or keep it on the host (.cpu())."
            ),
        }
    }

    fn evidence(&self) -> Vec<(String, EvidenceValue)> {
        let shown = self.shown;
        let pattern = match (shown.kind, shown.shape) {
            (FindingKind::Leak, Shape::Larger) => "replaced_by_larger",
            (FindingKind::Leak, _) => "tensors_kept",
            (kind, _) => kind.name(),
        };
        let mut all = vec![
            ("pattern".to_owned(), EvidenceValue::Text(pattern.to_owned())),
            ("rises".to_owned(), EvidenceValue::Count(u64::from(shown.rises))),
            ("sites".to_owned(), EvidenceValue::Count(shown.group.members.len() as u64)),
            ("gained_bytes".to_owned(), EvidenceValue::Count(shown.group.bytes_gained())),
            ("live_bytes_series".to_owned(), EvidenceValue::Series(thinned(&shown.series))),
        ];
        if let Some(phase) = shown.phase {
            all.push(("born_in".to_owned(), EvidenceValue::Text(phase.name().to_owned())));
        }
        all
    }
}

fn thinned(series: &[u64]) -> Vec<u64> {
    if series.len() <= SERIES_MAX {
        return series.to_vec();
    }
    (0..SERIES_MAX).map(|index| series[index * (series.len() - 1) / (SERIES_MAX - 1)]).collect()
}

/// What one rank holds more than its peers.
pub(super) fn skew(excess: &Excess<'_>) -> Finding {
    let matters = excess.total_bytes.is_some_and(|total| excess.bytes > total / 10);
    let severity = if matters { Severity::Warning } else { Severity::Info };
    let since = excess.first_step.map_or_else(String::new, |step| format!(" since step {step}"));
    let peers = on_ranks(&excess.peers, &[]);
    Finding {
        first_seen: Moment { epoch: excess.first_epoch, step: excess.first_step, time_ns: None, boundary: None },
        live_bytes: Some(excess.bytes + excess.peers_bytes),
        site: Some(excess.site.clone()),
        subject: format!("rank {}", excess.rank),
        title: format!(
            "rank {} holds {} more than {peers}{since}: {}",
            excess.rank,
            HumanBytes::of(excess.bytes),
            place(excess.site)
        ),
        explanation: format!(
            "Ranks that do the same work hold {} there; this rank {}, {:.0}% of what it has allocated.",
            HumanBytes::of(excess.peers_bytes),
            HumanBytes::of(excess.bytes + excess.peers_bytes),
            excess.share * 100.0
        ),
        advice: "The fullest rank decides how large a batch can be: look for work that only this rank does (logging, \
                 evaluation, checkpoints) and free it or spread it."
            .to_owned(),
        evidence: vec![
            ("excess_bytes".to_owned(), EvidenceValue::Count(excess.bytes)),
            ("peers_median_bytes".to_owned(), EvidenceValue::Count(excess.peers_bytes)),
        ],
        ..Finding::new(FindingKind::RankSkew, severity, 0.9, vec![excess.rank])
    }
}

/// Growth of a level: reserved and unused, outside the allocator, host.
pub(super) fn level(kind: FindingKind, subject: &str, ranks: &[Grown], all: usize) -> Finding {
    let most = ranks.iter().max_by_key(|grown| grown.growth.gained).unwrap_or(&ranks[0]);
    let mut numbers: Vec<u32> = ranks.iter().map(|grown| grown.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let everywhere = numbers.len() == all && all > 1;
    let on = if everywhere { format!("all {all} ranks") } else { on_ranks(&numbers, &[]) };
    let gained = HumanBytes::of(most.growth.gained);
    let (title, explanation, advice) = match kind {
        FindingKind::FragmentationGrowth => (
            format!("reserved memory that nothing uses has grown by {gained} on {on}"),
            "The cache of the allocator grows from epoch to epoch while live memory does not: freed blocks are too small or \
             too scattered for what is asked next.",
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; pad inputs to a few sizes. `memctl frag` shows what holds \
             the segments.",
        ),
        FindingKind::OutsideAllocator => (
            format!("device memory outside PyTorch's allocator has grown by {gained} on {on}"),
            "The process uses more and more of the device that its allocator did not ask for: communicators (NCCL), CUDA \
             graphs, libraries' workspaces, or an extension that calls cudaMalloc itself.",
            "Look for process groups or CUDA graphs that are made again and again, and for extensions that never free.",
        ),
        _ => (
            format!("host memory of the {subject} has grown by {gained} on {on}"),
            "Resident memory rises again and again and is not given back.",
            "Look for lists that keep tensors moved to the host, and for data sets that cache samples in every worker \
             (store arrays, not lists of objects; fewer workers; persistent_workers=False).",
        ),
    };
    Finding {
        all_ranks: everywhere,
        first_seen: Moment { epoch: most.first.0, step: most.first.1, time_ns: None, boundary: None },
        live_bytes: Some(most.now_bytes),
        subject: subject.to_owned(),
        title,
        explanation: explanation.to_owned(),
        advice: advice.to_owned(),
        evidence: vec![
            ("gained_bytes".to_owned(), EvidenceValue::Count(most.growth.gained)),
            ("rises".to_owned(), EvidenceValue::Count(u64::from(most.growth.rises))),
            ("watched_seconds".to_owned(), EvidenceValue::Number(most.seconds)),
            ("level_bytes_series".to_owned(), EvidenceValue::Series(thinned(&most.series))),
        ],
        ..Finding::new(kind, Severity::Warning, 0.8, numbers)
    }
}

/// Somebody else on a rank's device.
pub(super) fn foreign(rank: u32, foreign_bytes: u64, total_bytes: Option<u64>) -> Finding {
    let large = total_bytes.is_some_and(|total| foreign_bytes > total / 20);
    let severity = if large { Severity::Warning } else { Severity::Info };
    Finding {
        live_bytes: Some(foreign_bytes),
        subject: format!("rank {rank}"),
        title: format!("other processes use {} of rank {rank}'s device", HumanBytes::of(foreign_bytes)),
        explanation:
            "Processes that are not this rank's hold memory on its device: another job, a left-over of an earlier \
                      one, or another rank that touched the wrong device."
                .to_owned(),
        advice:
            "Look at nvidia-smi for their process ids; in the script call torch.cuda.set_device(local_rank) before \
                 anything touches CUDA."
                .to_owned(),
        evidence: vec![("foreign_used_bytes".to_owned(), EvidenceValue::Count(foreign_bytes))],
        ..Finding::new(FindingKind::ForeignProcess, severity, 0.9, vec![rank])
    }
}
