//! The sentences of a leak.

use memctl_model::{EvidenceValue, Finding, FindingKind, Moment, Pattern, Phase, Rate, Severity};

use super::{EVEN_SHARE, SERIES_MAX, SOON_SECONDS, bytes, median_rate, place, places, thinned, until};
use crate::judge::SITES_MAX;
use crate::judge::candidate::Shape;
use crate::judge::history::Per;
use crate::judge::leak::{Leak, any_confirmed, may_slow_down, reported_kind, surest};
use crate::judge::optimizers;
use crate::judge::second_holders::BESIDE_BYTES;
use crate::judge::subjects::{self, Subject};
use crate::judge::time_to_full::TimeToFull;
use crate::wording;

/// Minimum steps between two rises from which on a rate per step is not informative.
const SELDOM_STEPS: f64 = 8.0;

/// The finding of one leak on its ranks. `all` are the watched subjects.
pub(in crate::judge) fn leak(leaks: &[Leak], all: &[&Subject]) -> Finding {
    let shown = surest(leaks);
    let confirmed = any_confirmed(leaks);
    let subjects: Vec<&Subject> = leaks.iter().map(|leak| &leak.who).collect();
    let ranks = subjects::ranks(subjects.iter().copied());
    let processes = subjects::processes(subjects.iter().copied());
    let per_epoch = median_rate(leaks.iter().map(|leak| leak.per_epoch));
    let per_step = median_rate(leaks.iter().map(|leak| leak.per_step));
    let per_minute = median_rate(leaks.iter().map(|leak| leak.per_minute));
    // The rank that is full first ends the job.
    let outlooks = leaks.iter().filter_map(|leak| leak.outlook);
    let outlook = outlooks.min_by(|a, b| a.seconds.value.total_cmp(&b.seconds.value));
    let matters = leaks.iter().any(|leak| leak.matters);
    // Growth that is not significant has no time to out of memory.
    let outlook = outlook.filter(|_| matters);
    let seconds_to_oom = outlook.map(|outlook| outlook.seconds.value);
    let epochs_to_oom = outlook.and_then(|outlook| outlook.epochs);
    let severity = match (confirmed && matters, seconds_to_oom) {
        (false, _) => Severity::Info,
        (true, Some(seconds)) if seconds < SOON_SECONDS => Severity::Critical,
        (true, _) => Severity::Warning,
    };
    let begun = |leak: &&Leak| leak.first.map_or((u64::MAX, u64::MAX), |first| (first.step, first.time_ns));
    let first = leaks.iter().min_by_key(begun).unwrap_or(shown);
    let most = leaks.iter().max_by_key(|leak| leak.live_bytes).unwrap_or(shown);
    let foresight = leaks.iter().map(|leak| leak.foresight).max().unwrap_or_default();
    let is_uneven = is_uneven(leaks);
    // The sentence about uneven ranks names the highest rate.
    let said = |of: fn(&Leak) -> Option<Rate>, median: Option<Rate>| match is_uneven {
        true => leaks.iter().filter_map(of).max_by(|a, b| a.value.total_cmp(&b.value)),
        false => median,
    };
    let growth = Words {
        shown,
        confirmed,
        on: &subjects,
        all,
        is_uneven,
        per_epoch: said(|leak| leak.per_epoch, per_epoch),
        per_step: said(|leak| leak.per_step, per_step),
        per_minute: said(|leak| leak.per_minute, per_minute),
        outlook,
    };
    let end = until(epochs_to_oom, seconds_to_oom);
    Finding {
        kind: reported_kind(shown.kind, shown.per),
        pattern: Some(shown.pattern),
        bytes_per_minute: per_minute,
        severity,
        confidence: confidence(shown, confirmed, processes.len()),
        all_ranks: subjects::are_all(&subjects, all),
        first_seen: Moment {
            epoch: first.first.map(|first| first.epoch),
            // A process without steps has no step to name.
            step: first.first.filter(|_| first.per != Per::Window).map(|first| first.step),
            time_ns: first.first.map(|first| first.time_ns),
            boundary: Some(shown.per.boundary()),
        },
        bytes_per_epoch: per_epoch,
        bytes_per_step: per_step,
        live_bytes: Some(most.live_bytes),
        live_blocks: Some(most.live_blocks),
        time_to_oom_seconds: seconds_to_oom,
        epochs_to_oom,
        site: shown.group.site.clone(),
        lines: shown.group.lines.clone(),
        stack: shown.group.stack.clone(),
        subject: String::new(),
        is_suspected: !confirmed,
        filled_device: false,
        slows: shown.slows || may_slow_down(shown.group.lead()),
        foresight,
        rises: Some(u64::from(shown.rises)),
        gained_bytes: Some(shown.group.bytes_gained()),
        title: growth.title(),
        // A chain of graphs falls back with its epoch.
        horizon: end.filter(|_| confirmed && shown.pattern != Pattern::HiddenChain).map(|end| growth.by_then(end)),
        explanation: growth.explanation(),
        advice: growth.advice(),
        evidence: growth.evidence(),
        ranks,
        processes,
        holders: None,
    }
}

/// Confidence. Each rise halves the doubt for a graph and removes an eighth of it for a single site. Other ranks with
/// the same leak halve the rest. It is never certain, because a cache may be larger than expected.
fn confidence(leak: &Leak, confirmed: bool, ranks: usize) -> f64 {
    let keeps: f64 = if leak.group.graph { 0.5 } else { 0.875 };
    let doubt = keeps.powi(leak.rises.min(100) as i32) * if ranks > 1 { 0.5 } else { 1.0 };
    let (low, high) = if confirmed { (0.9, 0.99) } else { (0.3, 0.8) };
    (1.0 - doubt).clamp(low, high)
}

/// Whether a leak grows at different rates on its ranks.
fn is_uneven(leaks: &[Leak]) -> bool {
    let rates = [|leak: &Leak| leak.per_epoch, |leak: &Leak| leak.per_step, |leak: &Leak| leak.per_minute];
    rates.into_iter().any(|of| {
        let values = || leaks.iter().filter_map(of).map(|rate| rate.value);
        let highest = values().fold(0.0, f64::max);
        values().any(|value| value < EVEN_SHARE * highest)
    })
}

struct Words<'a> {
    shown: &'a Leak,
    confirmed: bool,
    on: &'a [&'a Subject],
    all: &'a [&'a Subject],
    /// Whether the rates are the highest of several.
    is_uneven: bool,
    per_epoch: Option<Rate>,
    per_step: Option<Rate>,
    per_minute: Option<Rate>,
    outlook: Option<TimeToFull>,
}

impl Words<'_> {
    fn pace(&self) -> String {
        let (epoch, step) = (self.per_epoch.filter(|_| self.shown.shape != Shape::Teeth), self.per_step);
        let most = if self.is_uneven { "up to " } else { "" };
        let named = |rate: Option<Rate>, unit: &str| rate.map(|rate| format!("{most}{} {unit}", bytes(rate.value)));
        let of_marks = || named(epoch, "per epoch").or_else(|| named(step, "per step"));
        let known = match self.shown.per {
            // A rate per step is not informative if only one step in hundreds rises.
            Per::Step if epoch.is_none() && self.shown.group.lead().growth.apart >= SELDOM_STEPS => None,
            Per::Step | Per::Epoch => of_marks(),
            Per::Window => None,
        };
        let by_clock = || named(self.per_minute, "per minute");
        known
            .or_else(by_clock)
            .or_else(of_marks)
            .unwrap_or_else(|| format!("by {}", bytes(self.shown.group.bytes_gained() as f64)))
    }

    fn accelerates(&self) -> bool {
        self.shown.group.lead().growth.accelerates()
    }

    /// A time to out of memory follows from one rate, and growth that accelerates is faster later.
    fn by_then(&self, end: String) -> String {
        if self.accelerates() { format!("{end} or sooner") } else { end }
    }

    fn who(&self) -> String {
        let on = subjects::on(self.on, self.all);
        let shows = |who: &Subject| self.on.iter().any(|shown| shown.is_same_process(who));
        let others: Vec<&Subject> = self.all.iter().copied().filter(|who| !shows(who)).collect();
        if others.is_empty() { on } else { format!("{on} (not on {})", subjects::listed(&others, self.all)) }
    }

    fn at(&self) -> String {
        match &self.shown.group.site {
            Some(site) => format!(", allocated in {}", places(site, &self.shown.group.lines)),
            None if self.shown.counters => " (only counters were recorded, so no line can be named)".to_owned(),
            None if self.shown.is_beyond => format!(" (one of more than {SITES_MAX} places)"),
            None => " (no stacks were recorded)".to_owned(),
        }
    }

    fn title(&self) -> String {
        let (pace, who, at) = (self.pace(), self.who(), self.at());
        if !self.confirmed {
            return format!("Live memory has grown {pace} on {who}{at}");
        }
        let what = match self.shown.pattern {
            Pattern::EvalGraph => "; the evaluation runs with gradients enabled",
            Pattern::GraphKept => "; graphs of steps are kept",
            Pattern::HiddenChain => {
                let within = if self.shown.group.lead().is_in_epochs() { "within each epoch" } else { "repeatedly" };
                return format!(
                    "Live memory grows {pace} {within} on {who}{at}; each step's graph keeps the previous step's"
                );
            }
            Pattern::ReplacedByLarger => "; a tensor is replaced by a larger one each time",
            Pattern::HooksPileUp => "; a hook is registered repeatedly",
            Pattern::OptimizerRecreated | Pattern::OptimizerState => optimizers::TITLE_OPEN,
            Pattern::GraphsCaptured => {
                let at = at.replacen(", allocated in", ", captured in", 1);
                return format!("Private pools grow {pace} on {who}{at}");
            }
            Pattern::TensorsKept | Pattern::CacheEmptied => "",
        };
        let faster = if self.accelerates() { "; the growth accelerates" } else { "" };
        format!("Live memory grows {pace} on {who}{at}{what}{faster}")
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
        let unit = match shown.per {
            Per::Step => "steps",
            Per::Epoch => "epochs",
            Per::Window => "spans of time",
        };
        let seen = match shown.pattern {
            Pattern::EvalGraph => format!(
                "After each of {times} evaluations about {each} more blocks stayed alive, among them activations of the whole \
                 forward pass. Without gradients these would be freed at once: gradients are enabled, and something keeps the result."
            ),
            Pattern::GraphKept => format!(
                "{times} times, about {each} blocks of one forward pass stayed alive together: what is kept is not one tensor but \
                 the graph behind it."
            ),
            Pattern::HiddenChain if !shown.group.lead().is_in_epochs() => format!(
                "{} times, about {each} blocks of every step's forward pass stay alive over several steps, then all are freed at \
                 once: each step's graph keeps the previous one.",
                shown.group.lead().teeth
            ),
            Pattern::HiddenChain => format!(
                "In each of {} epochs, about {each} blocks of every step's forward pass stay alive until the epoch ends, then all \
                 are freed at once: each step's graph keeps the previous one.",
                shown.group.lead().teeth
            ),
            Pattern::ReplacedByLarger => {
                let end = self.given_back("the growth was");
                format!("A block was replaced by a larger one {times} times{phase}, and {end}.")
            }
            Pattern::HooksPileUp => self.hooks(times),
            Pattern::OptimizerRecreated | Pattern::OptimizerState => format!(
                "{times} times, about {each} more blocks of optimizer state stayed alive.{}",
                optimizers::WHY_OPEN
            ),
            Pattern::GraphsCaptured => format!(
                "{times} times, more memory was reserved for private pools (of CUDA graphs or MemPools). Pools do not share \
                 memory, and none of these was released."
            ),
            Pattern::TensorsKept | Pattern::CacheEmptied if shown.counters => {
                let end = self.given_back("it was");
                format!("Allocated memory reached a new maximum {times} times, and {end}.")
            }
            Pattern::TensorsKept | Pattern::CacheEmptied => {
                let end = self.given_back("these were");
                format!(
                    "At the end of {times} {unit}, more blocks that were allocated there{phase} had stayed alive, and {end}."
                )
            }
        };
        let doubt = match (self.confirmed, shown.slows) {
            (true, _) => "",
            (false, true) => " The growth slows down, as that of a filling cache does.",
            (false, false) => wording::CACHE_DOUBT,
        };
        let weaker = match shown.group.site {
            None if shown.counters => " Only the allocator's counters of this process are known.",
            None if shown.is_beyond => " So many places allocate that not all of them are counted separately.",
            None => " No stacks were recorded, so no line can be named.",
            Some(_) => "",
        };
        let beside = match shown.beside_bytes {
            0 => String::new(),
            bytes => format!(" Another {} live there and do not grow.", wording::bytes(bytes)),
        };
        format!("{seen}{beside}{doubt}{weaker}")
    }

    /// A sentence about hooks and their blocks per step in the first and in the last epoch.
    fn hooks(&self, times: u32) -> String {
        let calls = self.shown.hooks.map_or_else(String::new, |hooks| {
            let ((first, few), (last, many)) = (hooks.first, hooks.last);
            format!(": {few:.0} blocks per step in epoch {first}, {many:.0} in epoch {last}")
        });
        let end = self.given_back("it was");
        format!("A hook is registered repeatedly{calls}. What it allocates stayed alive {times} times, and {end}.")
    }

    /// `these were not given back`, or that they were at the end of the recording.
    fn given_back(&self, these_were: &str) -> String {
        let when = if self.shown.given_back { "given back only at the end of the recording" } else { "not given back" };
        format!("{these_were} {when}")
    }

    fn advice(&self) -> String {
        let site = self.shown.group.site.as_ref().map_or_else(|| "the code that allocates it".to_owned(), place);
        match self.shown.pattern {
            Pattern::EvalGraph => format!(
                "Run the evaluation in {site} under torch.no_grad() (or torch.inference_mode()), and keep numbers instead of \
                 tensors: loss.item()."
            ),
            Pattern::GraphKept => format!(
                "A tensor that is computed from what {site} produces is kept with its graph: keep its .item() or .detach() where it is \
                 stored, and drop retain_graph=True."
            ),
            Pattern::HiddenChain => format!(
                "Detach the state that {site} hands to the next step: h = h.detach() (for an LSTM both tensors), and drop \
                 retain_graph=True."
            ),
            Pattern::ReplacedByLarger => format!(
                "If {site} extends a tensor (torch.cat), write into one of fixed size, or move it to the host; if the program works on more \
                 each time, memory grows until that stops."
            ),
            Pattern::HooksPileUp => format!(
                "Register the hook with {site} once, or keep the handle that registering returns and call handle.remove() \
                 before the next; clear what it keeps."
            ),
            Pattern::OptimizerRecreated | Pattern::OptimizerState => optimizers::ADVICE_OPEN.to_owned(),
            Pattern::GraphsCaptured => format!(
                "Capture in {site} for a few sizes and pad to them, share one pool (torch.cuda.graph(…, pool=…)), or limit how \
                 many graphs are kept and drop the oldest."
            ),
            // Without steps, a graph that stays looks like tensors that are kept.
            Pattern::TensorsKept if self.shown.kind == FindingKind::EvalGraph => format!(
                "Run what calls {site} under torch.no_grad() (or torch.inference_mode()), unless it computes gradients: a tensor that \
                 is handed from call to call keeps the graphs of all calls. If it runs so already, look for a list, dict or \
                 attribute that keeps its results."
            ),
            Pattern::TensorsKept | Pattern::CacheEmptied => format!(
                "Look for a list, dict or attribute that keeps what {site} allocates; bound it (collections.deque(maxlen=…)), \
                 clear it every epoch, or keep it on the host (.detach().cpu())."
            ),
        }
    }

    fn evidence(&self) -> Vec<(String, EvidenceValue)> {
        let shown = self.shown;
        let mut all = vec![
            ("pattern".to_owned(), EvidenceValue::Text(shown.pattern.name().to_owned())),
            ("sites".to_owned(), EvidenceValue::Count(shown.group.members.len() as u64)),
            ("live_bytes_series".to_owned(), EvidenceValue::Series(thinned(&shown.series, SERIES_MAX))),
        ];
        if let Some(phase) = shown.phase {
            all.push(("born_in".to_owned(), EvidenceValue::Text(phase.name().to_owned())));
        }
        if shown.beside_bytes > 0 {
            all.push((BESIDE_BYTES.to_owned(), EvidenceValue::Count(shown.beside_bytes)));
        }
        if let Some(outlook) = self.outlook {
            all.push(("time_to_oom_low_seconds".to_owned(), EvidenceValue::Number(outlook.seconds.low)));
            if outlook.seconds.high < f64::MAX {
                all.push(("time_to_oom_high_seconds".to_owned(), EvidenceValue::Number(outlook.seconds.high)));
            }
        }
        all
    }
}
