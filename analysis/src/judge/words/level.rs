//! The sentences of findings other than leaks: levels, ranks that differ, other processes, and a device that is nearly
//! full.

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, HumanBytes, Moment, Rate, Severity};

use super::{SERIES_MAX, place, thinned};
use crate::judge::growth::Growth;
use crate::judge::subjects::{self, Subject};
use crate::wording::{opening, place_or_none};

/// Growth of one quantity of one rank.
#[derive(Clone, Debug)]
pub(in crate::judge) struct Grown {
    pub who: Subject,
    pub growth: Growth,
    /// The last value before the end.
    pub now_bytes: u64,
    pub series: Vec<u64>,
    /// The first rise: epoch, step and time, as far as they are known.
    pub first: (Option<u32>, Option<u64>, Option<u64>),
    /// Growth per minute in the watched time.
    pub a_minute: f64,
    /// The same growth per epoch, if epochs are known.
    pub an_epoch: Option<f64>,
    pub seconds: f64,
    /// When its memory was first measured.
    pub since_ns: u64,
}

/// How close a rank comes to the limit of its device.
#[derive(Clone, Debug)]
pub(in crate::judge) struct Near {
    pub who: Subject,
    pub left_bytes: u64,
    pub peak_bytes: u64,
    pub outside_bytes: u64,
    pub total_bytes: u64,
    /// How often the allocator recently emptied its cache to find room.
    pub retries: u64,
    /// Whether so little is left that any change may be too much.
    pub tight: bool,
}

/// One rank's excess at one site.
pub(in crate::judge) struct Excess<'a> {
    pub who: Subject,
    pub peers: Vec<Subject>,
    pub site: &'a Frame,
    pub bytes: u64,
    pub peers_bytes: u64,
    pub share: f64,
    pub first_step: Option<u64>,
    pub first_epoch: Option<u32>,
    pub total_bytes: Option<u64>,
}

/// The finding about one rank that holds more than its peers.
pub(in crate::judge) fn skew(excess: &Excess<'_>) -> Finding {
    let matters = excess.total_bytes.is_some_and(|total| excess.bytes > total / 10);
    let severity = if matters { Severity::Warning } else { Severity::Info };
    let since = excess.first_step.map_or_else(String::new, |step| format!(" since step {step}"));
    let (name, peers) = (excess.who.name(), subjects::on(&excess.peers.iter().collect::<Vec<_>>(), &[]));
    Finding {
        first_seen: Moment { epoch: excess.first_epoch, step: excess.first_step, time_ns: None, boundary: None },
        live_bytes: Some(excess.bytes + excess.peers_bytes),
        site: Some(excess.site.clone()),
        title: format!(
            "{} holds {} more than {peers}{since}: {}",
            opening(&name),
            HumanBytes::of(excess.bytes),
            place(excess.site)
        ),
        explanation: format!(
            "Its peers hold {} there; {name} holds {}, {:.0} % of what it has allocated.",
            HumanBytes::of(excess.peers_bytes),
            HumanBytes::of(excess.bytes + excess.peers_bytes),
            excess.share * 100.0
        ),
        advice: "The fullest rank limits the batch size: look for work that only this rank does (logging, \
                 evaluation, checkpoints), and free its memory or spread it."
            .to_owned(),
        processes: vec![name.clone()],
        subject: name,
        evidence: vec![
            ("excess_bytes".to_owned(), EvidenceValue::Count(excess.bytes)),
            ("peers_median_bytes".to_owned(), EvidenceValue::Count(excess.peers_bytes)),
        ],
        ..Finding::new(FindingKind::RankSkew, severity, 0.9, vec![excess.who.rank])
    }
}

/// Names the leak of device memory in the advice about host memory of the same processes: Python objects and nodes of
/// graphs that keep device memory are host memory themselves.
pub(in crate::judge) fn name_device_leak(level: &mut Finding, leaks: &[Finding]) {
    let is_of_it = |leak: &&Finding| {
        let shares = leak.processes.iter().any(|process| level.processes.contains(process));
        leak.kind.is_leak() && leak.site.is_some() && shares
    };
    let Some(leak) = leaks.iter().find(is_of_it).filter(|_| level.kind == FindingKind::HostGrowth) else { return };
    let place = place_or_none(leak.site.as_ref());
    level.advice = format!(
        "First change {place}: what keeps its device memory keeps host memory as well, such as the nodes of a graph. \
         Otherwise: {}",
        level.advice
    );
}

/// The subject of growth of which only the whole device's memory is known.
pub(in crate::judge) const WHOLE_DEVICE: &str = "whole device";

/// The finding about a growing level: reserved and unused, outside the allocator, or host memory.
pub(in crate::judge) fn level(kind: FindingKind, subject: &str, ranks: &[Grown], all: &[&Subject]) -> Finding {
    let most = ranks.iter().max_by_key(|grown| grown.growth.gained).unwrap_or(&ranks[0]);
    let subjects: Vec<&Subject> = ranks.iter().map(|grown| &grown.who).collect();
    let on = subjects::on(&subjects, all);
    let gained = HumanBytes::of(most.growth.gained);
    let rate = |bytes: f64| Some(Rate { value: bytes, low: bytes, high: bytes });
    let (title, explanation, advice) = match kind {
        FindingKind::FragmentationGrowth => (
            format!("Reserved memory beyond the most in use at once has grown by {gained} on {on}"),
            "From epoch to epoch the allocator reserves more than was ever in use at once: freed blocks are too small or too \
             scattered for the requests that follow.",
            "Pad inputs to a few sizes. `memctl frag --job JOB` shows what pins the segments, `memctl what-if --job JOB` what \
             they would be under other allocator settings.",
        ),
        FindingKind::OutsideAllocator if subject == WHOLE_DEVICE => (
            format!("Device memory outside PyTorch's allocator has grown by {gained} on {on}{}", per_time(most)),
            "The driver does not report how much of the device this process uses, so this is the memory of the whole device \
             without what the allocators of this job hold. It is memory that the process requested without its allocator \
             (communicators, CUDA graphs, libraries' workspaces, an extension that calls cudaMalloc itself), or it is \
             another program's on the same device.",
            "nvidia-smi on the host shows which process uses it. In this job: look for process groups or CUDA graphs that are \
             created repeatedly, and for extensions that never free.",
        ),
        FindingKind::OutsideAllocator => (
            format!("Device memory outside PyTorch's allocator has grown by {gained} on {on}{}", per_time(most)),
            "The process uses more and more device memory that its allocator did not request: communicators (NCCL), CUDA \
             graphs, libraries' workspaces, or an extension that calls cudaMalloc itself.",
            "Look for process groups or CUDA graphs that are created repeatedly, and for extensions that never free.",
        ),
        _ => (
            format!("Host memory of the {subject} has grown by {gained} on {on}"),
            "Resident memory keeps rising and is not released.",
            "Look for lists that keep tensors moved to the host, and for data sets that cache samples in every worker \
             (store arrays, not lists of objects; fewer workers; persistent_workers=False).",
        ),
    };
    Finding {
        all_ranks: subjects::are_all(&subjects, all),
        processes: subjects::processes(subjects.iter().copied()),
        first_seen: Moment { epoch: most.first.0, step: most.first.1, time_ns: most.first.2, boundary: None },
        bytes_per_epoch: most.an_epoch.filter(|_| kind == FindingKind::OutsideAllocator).and_then(rate),
        bytes_per_minute: rate(most.a_minute),
        live_bytes: Some(most.now_bytes),
        rises: Some(u64::from(most.growth.rises)),
        gained_bytes: Some(most.growth.gained),
        subject: subject.to_owned(),
        title,
        explanation: explanation.to_owned(),
        advice: advice.to_owned(),
        evidence: vec![
            ("watched_seconds".to_owned(), EvidenceValue::Number(most.seconds)),
            ("level_bytes_series".to_owned(), EvidenceValue::Series(thinned(&most.series, SERIES_MAX))),
        ],
        ..Finding::new(kind, Severity::Warning, 0.8, subjects::ranks(subjects.iter().copied()))
    }
}

/// ` (512 MiB per epoch)`, or per minute without epochs.
fn per_time(grown: &Grown) -> String {
    let (bytes, unit) = grown.an_epoch.map_or((grown.a_minute, "minute"), |bytes| (bytes, "epoch"));
    format!(" ({} per {unit})", HumanBytes::of(bytes as u64))
}

/// The finding about a foreign process on a rank's device.
pub(in crate::judge) fn foreign(who: &Subject, foreign_bytes: u64, total_bytes: Option<u64>) -> Finding {
    let large = total_bytes.is_some_and(|total| foreign_bytes > total / 20);
    let severity = if large { Severity::Warning } else { Severity::Info };
    let name = who.name();
    Finding {
        live_bytes: Some(foreign_bytes),
        title: format!("Other processes use {} of {name}'s device", HumanBytes::of(foreign_bytes)),
        explanation:
            "Processes that do not belong to this job, or that were not recorded, hold memory on its device: another \
                      job, or what an earlier one left behind."
                .to_owned(),
        advice: "nvidia-smi shows their process ids. In the script, call torch.cuda.set_device(local_rank) before \
                 anything uses CUDA."
            .to_owned(),
        processes: vec![name.clone()],
        subject: name,
        evidence: vec![("foreign_used_bytes".to_owned(), EvidenceValue::Count(foreign_bytes))],
        ..Finding::new(FindingKind::ForeignProcess, severity, 0.9, vec![who.rank])
    }
}

/// The finding about a device that is nearly full although nothing grows.
pub(in crate::judge) fn near_oom(near: &Near) -> Finding {
    let (left, total) = (HumanBytes::of(near.left_bytes), HumanBytes::of(near.total_bytes));
    let name = near.who.name();
    let (severity, confidence) = if near.tight { (Severity::Warning, 0.85) } else { (Severity::Info, 0.6) };
    let retries = match near.retries {
        0 => String::new(),
        times => format!(" The allocator had to empty its cache {times} times to make room."),
    };
    Finding {
        live_bytes: Some(near.peak_bytes),
        title: format!("{} leaves {left} of its device's {total} free at its peak", opening(&name)),
        explanation: format!(
            "At the recent peak {} were allocated; {} of the device are used outside the allocator. No growth was found, but \
             a batch a little larger than usual will not fit.{retries}",
            HumanBytes::of(near.peak_bytes),
            HumanBytes::of(near.outside_bytes)
        ),
        advice:
            "Reduce the batch a little, checkpoint activations, or limit the length of inputs; `memctl sites --job JOB \
                 --peak` shows what holds most."
                .to_owned(),
        evidence: vec![
            ("left_bytes".to_owned(), EvidenceValue::Count(near.left_bytes)),
            ("peak_allocated_bytes".to_owned(), EvidenceValue::Count(near.peak_bytes)),
            ("device_total_bytes".to_owned(), EvidenceValue::Count(near.total_bytes)),
            ("alloc_retries".to_owned(), EvidenceValue::Count(near.retries)),
        ],
        processes: vec![name.clone()],
        subject: name,
        ..Finding::new(FindingKind::NearOom, severity, confidence, vec![near.who.rank])
    }
}
