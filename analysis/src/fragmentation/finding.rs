//! Combines the reports of a job's ranks into at most one finding about fragmentation.
//!
//! Guarantees: the sentence names the reserved and the used bytes or the failed request, the ranks, and the site. The
//! advice fits the cause. No allocator setting is advised, because its effect is known only after a replay.

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, Moment, Severity};

use super::judge::{FragmentationCause, Holder, RankFragmentation};
use crate::wording::{REPLAYED, byte_range, bytes, opening, place_or_none, plural, ranks, sentence};

/// The finding of these reports; `known` is the number of ranks that were seen in the job.
#[must_use]
pub fn finding(reports: &[RankFragmentation], known: usize) -> Option<Finding> {
    let severity = reports.iter().filter_map(|report| report.severity).max()?;
    let said = |report: &&RankFragmentation| report.severity.is_some();
    // Among the most severe ranks, the finding describes the one that wastes most.
    let worst = reports.iter().filter(said).max_by_key(|report| {
        (report.severity, report.cause.map_or(0, |(_, bytes)| bytes), std::cmp::Reverse(report.rank))
    })?;
    let cause = worst.cause.map(|(cause, _)| cause);
    let alike: Vec<&RankFragmentation> = reports
        .iter()
        .filter(|report| report.severity.is_some() && report.cause.map(|(cause, _)| cause) == cause)
        .collect();
    let mut numbers: Vec<u32> = alike.iter().map(|report| report.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let stack = match cause {
        Some(FragmentationCause::VaryingSizes) => worst.varying.as_ref().map(|varying| varying.stack.clone()),
        _ => worst.holders.first().map(|holder| holder.stack.clone()),
    }
    .unwrap_or_default();
    let site = stack.site().cloned();
    let on = ranks(&numbers, known);
    let confidence = if severity == Severity::Critical { 1.0 } else { 0.9 };
    Some(Finding {
        all_ranks: numbers.len() > 1 && numbers.len() == known,
        first_seen: Moment { epoch: worst.epoch, step: worst.step, time_ns: None, boundary: None },
        title: title(worst, &alike, &on, site.as_ref()),
        explanation: explanation(worst),
        advice: sentence(advice(worst)),
        evidence: evidence(worst),
        site,
        stack: stack.frames,
        ..Finding::new(FindingKind::Fragmentation, severity, confidence, numbers)
    })
}

fn title(worst: &RankFragmentation, alike: &[&RankFragmentation], on: &str, site: Option<&Frame>) -> String {
    let place = place_or_none(site);
    let picture = &worst.picture;
    let blocks = worst.holders.first().map_or(0, |holder| holder.pin.blocks);
    let between = format!("{} of {place}", plural(blocks, "live block"));
    if let (Some(Severity::Critical), Some(request)) = (worst.severity, worst.largest_request) {
        return format!(
            "A request for {} failed on {on} although {} were free in the cache, in holes of at most {} beside {between}",
            bytes(request.rounded_bytes),
            bytes(picture.free_bytes),
            bytes(worst.largest_usable_bytes),
        );
    }
    let reserved = span(alike, |report| report.picture.reserved_bytes.max(reserved(report)));
    let held = match alike.len() {
        1 => format!("{} holds {reserved}", opening(on)),
        _ => format!("{} hold {reserved} each", opening(on)),
    };
    let would_fail = match (worst.would_fit, worst.largest_request) {
        (Some(false), Some(request)) => {
            format!("; at the peak a request for {} would fail", bytes(request.rounded_bytes))
        }
        _ => String::new(),
    };
    let what = match worst.cause {
        Some((FragmentationCause::VaryingSizes, _)) => {
            let typical = span(alike, |report| report.typical_bytes.unwrap_or(0));
            let highest = span(alike, |report| report.highest_bytes);
            format!(
                "for steps of typically {typical} and at most {highest}: request sizes vary from step to step, mostly in {place}"
            )
        }
        Some((FragmentationCause::LongLivedBlocks, stranded)) => {
            format!("of which {} are idle beside {between}", bytes(stranded))
        }
        Some((FragmentationCause::Streams, idle)) => {
            format!("of which {} are idle because they belong to other streams", bytes(idle))
        }
        Some((FragmentationCause::Rounding, lost)) => format!("of which {} are lost to rounding", bytes(lost)),
        Some((FragmentationCause::Outgrown, unused)) => {
            let highest = span(alike, |report| report.highest_bytes);
            format!("although never more than {highest} were allocated at a time: {} of cache are idle", bytes(unused))
        }
        None => String::new(),
    };
    format!("{held} {what}{would_fail}")
}

fn reserved(report: &RankFragmentation) -> u64 {
    report.highest_bytes.saturating_add(report.unused_bytes.unwrap_or(0))
}

fn span(reports: &[&RankFragmentation], read: impl Fn(&RankFragmentation) -> u64) -> String {
    let all = || reports.iter().map(|report| read(report));
    byte_range(all().min().unwrap_or(0), all().max().unwrap_or(0))
}

fn explanation(report: &RankFragmentation) -> String {
    let picture = &report.picture;
    let mut text = format!(
        "On rank {}, {} were reserved and {} allocated; {} were free in empty segments, {} in {} beside live blocks (the largest {}).",
        report.rank,
        bytes(picture.reserved_bytes),
        bytes(picture.allocated_bytes),
        bytes(picture.empty_bytes),
        bytes(picture.stranded_bytes),
        plural(picture.holes, "hole"),
        bytes(picture.largest_hole_bytes),
    );
    if let (Some(typical), Some(varying), Some(share)) = (report.typical_bytes, &report.varying, report.varying_share) {
        text.push_str(&format!(
            " Over {}, a typical step reached {}, the highest {}; {:.0} % of the requested bytes came from sites whose sizes vary ({} at the one that requests most).",
            plural(report.steps, "step"),
            bytes(typical),
            bytes(report.highest_bytes),
            share * 100.0,
            byte_range(varying.smallest_bytes, varying.largest_bytes),
        ));
    }
    if let Some(request) = report.largest_request.filter(|_| report.severity != Some(Severity::Critical)) {
        text.push_str(&match (report.would_fit, report.room_bytes) {
            (Some(true), _) => format!(" A request as large as the largest of the last steps, {}, would be served.", bytes(request.rounded_bytes)),
            (Some(false), Some(room)) => format!(
                " A request as large as the largest of the last steps, {}, would find {} as the largest free block and {} of room on the device.",
                bytes(request.rounded_bytes),
                bytes(report.largest_usable_bytes),
                bytes(room.saturating_add(picture.empty_bytes)),
            ),
            _ => " How much room the device has left was not measured.".to_owned(),
        });
    }
    text
}

/// Advice that fits the cause, in the user's terms. Only a replay can show the effect of an allocator setting.
fn advice(report: &RankFragmentation) -> String {
    let failed = report.severity == Some(Severity::Critical);
    match report.cause.map(|(cause, _)| cause) {
        Some(FragmentationCause::VaryingSizes) if report.expandable => {
            "pad batches to a few fixed lengths (buckets), so that blocks fit again".to_owned()
        }
        Some(FragmentationCause::VaryingSizes) => format!(
            "pad batches to a few fixed lengths (buckets), so that freed blocks fit again; where a phase with other sizes begins, torch.cuda.empty_cache() releases what the last one left; {REPLAYED}"
        ),
        Some(FragmentationCause::Outgrown) => format!(
            "call torch.cuda.empty_cache() once, after the phase that left this cache; pad inputs to a few sizes; {REPLAYED}"
        ),
        Some(FragmentationCause::Streams) => {
            "allocate on the stream that uses the memory most; memory of another stream is reused on that stream only"
                .to_owned()
        }
        Some(FragmentationCause::Rounding) => format!("request sizes just below a block's; {REPLAYED}"),
        Some(FragmentationCause::LongLivedBlocks) | None => {
            let place = place_or_none(report.holders.first().and_then(|holder| holder.stack.site()));
            let first = if failed { "; allocate the large tensor first" } else { "" };
            format!(
                "allocate what lives long ({place}) before short-lived tensors, or in one tensor{first}; {REPLAYED}"
            )
        }
    }
}

fn evidence(report: &RankFragmentation) -> Vec<(String, EvidenceValue)> {
    let picture = &report.picture;
    let mut evidence = vec![("rank".to_owned(), EvidenceValue::Count(u64::from(report.rank)))];
    let mut count = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            evidence.push((name.to_owned(), EvidenceValue::Count(value)));
        }
    };
    count("reserved_bytes", Some(picture.reserved_bytes));
    count("active_bytes", Some(picture.active_bytes));
    count("allocated_bytes", Some(picture.allocated_bytes));
    count("requested_bytes", Some(picture.requested_bytes));
    count("empty_segment_bytes", Some(picture.empty_bytes));
    count("stranded_bytes", Some(picture.stranded_bytes));
    count("holes", Some(picture.holes));
    count("largest_free_bytes", Some(picture.largest_free_bytes));
    count("typical_step_bytes", report.typical_bytes);
    count("peak_allocated_bytes", Some(report.highest_bytes));
    count("highest_step_bytes", report.typical_bytes.map(|_| report.highest_bytes));
    count("steps", Some(report.steps));
    count("largest_request_bytes", report.largest_request.map(|request| request.rounded_bytes));
    count("largest_usable_bytes", Some(report.largest_usable_bytes));
    count("room_bytes", report.room_bytes);
    if let Some((cause, idle)) = report.cause {
        count("idle_bytes", Some(idle));
        evidence.push(("cause".to_owned(), EvidenceValue::Text(cause.name().to_owned())));
    }
    if let Some(share) = report.varying_share {
        evidence.push(("varying_share".to_owned(), EvidenceValue::Number(share)));
    }
    for (at, Holder { pin, stack }) in report.holders.iter().take(3).enumerate() {
        let place = place_or_none(stack.site());
        let words = format!("{} beside {} of {place}", bytes(pin.stranded_bytes), plural(pin.blocks, "block"));
        evidence.push((format!("stranded_{}", at + 1), EvidenceValue::Text(words)));
    }
    evidence
}
