//! The results of one device's replays, as an answer.
//!
//! Guarantees: a recommendation is based on an exact replay; the figures have remarks about their limitations.
//! `memctl_replay::advice` decides what is recommended.

use memctl_model::{HumanBytes, SessionInfo, Sharing};
use memctl_replay::advice::{cautions, conclusion, conclusion_between, recommended};
use memctl_replay::{self as replay, Agreement, Limit, Outcome, Version};

use super::{Begins, NamedTrial, Running};
use crate::what_if::{At, Ended, Rank, Recommended, Recorded, Replayed, Setting};

impl NamedTrial {
    fn cautions(&self, baseline: &Outcome, outcome: &Outcome, sharing: Sharing) -> Vec<String> {
        // Garbage collection takes place only under a limit.
        let is_met = |key: &str| self.limit == Limit::None || key != "garbage_collection_threshold";
        let remarks = self.remarks.iter().filter(|remark| is_met(&remark.key));
        let remarks = remarks.map(|remark| format!("{} {}", remark.key, remark.text));
        remarks.chain(cautions(&self.conf, baseline, outcome, sharing)).collect()
    }
}

impl Running {
    /// The device's figures, and their limitations.
    pub(super) fn figures(
        self,
        session: &SessionInfo,
        (rank, device, process): (u32, u32, String),
        say: &dyn Fn(&replay::TrialFailure, u64) -> Ended,
    ) -> (Rank, Vec<String>) {
        let Self {
            map,
            replays,
            version,
            other,
            is_second,
            trials,
            differs_at,
            device_allocs,
            device_frees,
            begins,
            is_interval,
            sharing,
        } = self;
        let (follow, done) = replays.finish();
        let agreement = *follow.agreement();
        let outcomes: Vec<Outcome> = done.iter().map(|(trial, _)| trial.outcome()).collect();
        let endings = done.iter().map(|(_, ended)| ended.as_ref().map(|ended| say(ended, begins.at_event)));
        let (says, recommended) = advised(&agreement, &trials, &outcomes, is_interval);
        let baseline_of = |limit: Limit| {
            let at = trials.iter().position(|it| it.limit == limit).unwrap_or_default();
            outcomes[at]
        };
        let settings = trials.iter().zip(&outcomes).zip(endings);
        let settings = settings.map(|((it, outcome), out_of_memory)| Setting {
            allocator_conf: it.text.clone(),
            limit_bytes: it.limit.bytes(),
            peak_reserved_bytes: outcome.counts.peak_reserved_bytes,
            peak_allocated_bytes: outcome.counts.peak_allocated_bytes,
            device_allocs: outcome.counts.device_allocs,
            device_frees: outcome.counts.device_frees,
            retries: outcome.counts.retries,
            out_of_memory,
            cautions: it.cautions(&baseline_of(it.limit), outcome, sharing),
            bounds: outcome.bounds.map(Vec::from),
        });
        let counts = follow.counts();
        let peaks = map.peaks();
        let (allocator_conf, torch) = (session.settings.conf.clone(), session.framework.clone());
        let rank = Rank {
            rank,
            process,
            device,
            exact: agreement.is_exact(),
            recorded: Recorded {
                allocator_conf: allocator_conf.clone(),
                torch: torch.clone(),
                peak_reserved_bytes: peaks.reserved_bytes,
                peak_allocated_bytes: peaks.allocated_bytes,
                peak_requested_bytes: counts.peak_requested_bytes,
                device_allocs,
                device_frees,
                retries: None,
            },
            replayed: Replayed {
                allocator_conf,
                torch,
                peak_reserved_bytes: counts.peak_reserved_bytes,
                peak_allocated_bytes: counts.peak_allocated_bytes,
                peak_requested_bytes: counts.peak_requested_bytes,
                device_allocs: counts.device_allocs,
                device_frees: counts.device_frees,
                retries: counts.retries,
                differs_at: differs_at
                    .or(agreement.differs_at.map(|event| At { event: begins.at_event + event, step: None })),
            },
            settings: settings.collect(),
            recommended,
            says,
        };
        let mut remarks = remarks(&begins, &agreement);
        if other.is_some() {
            remarks.insert(0, version_remark(version, agreement.is_exact() && is_second));
        }
        (rank, remarks)
    }
}

/// The recommendation, in sentences and as data. If there are several limits, it is about the first one. If they are
/// the two ends of a known interval, the sentences consider both.
fn advised(
    agreement: &Agreement,
    trials: &[NamedTrial],
    outcomes: &[Outcome],
    is_interval: bool,
) -> (Vec<String>, Option<Recommended>) {
    let (Some((baseline, others)), Some(own)) = (outcomes.split_first(), trials.first()) else {
        return (Vec::new(), None);
    };
    if !agreement.is_exact() {
        let at = agreement.differs_at.map_or_else(
            || "the state at its beginning is not whole".to_owned(),
            |event| format!("it differs from event {event} on"),
        );
        let text = format!("No allocator setting is advised, because the replay does not repeat the recording: {at}.");
        return (vec![text], None);
    }
    let group = trials.iter().take_while(|it| it.limit == own.limit).count().saturating_sub(1);
    let (others, names) = (&others[..group], &trials[1..=group]);
    let named: Vec<(&str, Outcome)> = names.iter().map(|it| it.text.as_str()).zip(others.iter().copied()).collect();
    let says = match group_at(trials, outcomes, group + 1).filter(|_| is_interval) {
        Some(high) => conclusion_between((baseline, &named, own.limit), (high.baseline, &high.others, high.limit)),
        None => conclusion(baseline, &named, own.limit),
    };
    let recommended = recommended(baseline, others).map(|(index, saves_bytes)| {
        let allocator_conf = names[index].text.clone();
        let held = HumanBytes::of(others[index].counts.peak_reserved_bytes);
        let instead = HumanBytes::of(baseline.counts.peak_reserved_bytes);
        let fails = if baseline.out_of_memory.is_some() { ", which runs out of memory" } else { "" };
        let setting = if allocator_conf.is_empty() { "the default" } else { allocator_conf.as_str() };
        let why = format!("{setting} holds {held} at most, the recorded setting {instead}{fails}.");
        Recommended { allocator_conf, saves_bytes, why }
    });
    (says, recommended)
}

/// The trials under one limit.
struct Group<'t> {
    /// The recorded setting.
    baseline: &'t Outcome,
    /// The others.
    others: Vec<(&'t str, Outcome)>,
    limit: Limit,
}

/// The group that begins at the trial `first`.
fn group_at<'t>(trials: &'t [NamedTrial], outcomes: &'t [Outcome], first: usize) -> Option<Group<'t>> {
    let (own, others) = trials.get(first..)?.split_first()?;
    let (baseline, rest) = outcomes.get(first..)?.split_first()?;
    let rest = others.iter().zip(rest).take_while(|(it, _)| it.limit == own.limit);
    let others = rest.map(|(it, outcome)| (it.text.as_str(), *outcome)).collect();
    Some(Group { baseline, others, limit: own.limit })
}

/// States by which version's rules a session without a version was replayed.
fn version_remark(version: Version, is_second: bool) -> String {
    let rule = format!("of equally large blocks {}", version.ties().words());
    let why = if is_second { ", by which alone the recording is repeated" } else { "" };
    format!("its version of torch is not known exactly: replayed by the rules of {version} ({rule}{why})")
}

/// The limitations of the figures, as parts of sentences.
fn remarks(begins: &Begins, agreement: &Agreement) -> Vec<String> {
    let mut remarks = Vec::new();
    if begins.at_event > 0 {
        remarks.push(format!("the {} events before are not replayed", begins.at_event));
    }
    if begins.live_bytes > 0 {
        let live = HumanBytes::of(begins.live_bytes);
        remarks.push(format!(
            "the recording began with {live} in use: requested again, without what was cached beside it"
        ));
    }
    if agreement.flushes > 0 {
        let times = agreement.flushes;
        remarks.push(format!(
            "{times} times the cache was released: the replay releases it at the same moments, as torch.cuda.empty_cache() does, also where the cause was a limit"
        ));
    }
    if agreement.unknown_frees > 0 {
        remarks.push(format!("{} frees of blocks that were never seen", agreement.unknown_frees));
    }
    remarks
}
