//! Makes findings from explained failures: one for all ranks that failed the same way at the same place.
//!
//! Guarantees: the sentence names the request, the place, and the deciding figure. The advice names what would have
//! helped, with figures. Nothing is advised that would not have helped according to the arithmetic.

use std::collections::BTreeMap;

use memctl_model::{EvidenceValue, Finding, FindingKind, Frame, Moment, Sample, Severity};

use super::demand::Accumulation;
use super::places::{Place, by_place};
use super::requests::Input;
use super::{OomCause, Report, advice};
use crate::wording::{bytes, moment, opening, place_or_none, plural, ranks, requested_in, sentence};

/// Maximum number of sites that the evidence names.
const SITES_NAMED: usize = 5;

/// One finding for each way in which ranks failed; `known` is the number of ranks that were seen in the job.
#[must_use]
pub fn findings(reports: &[Report], known: usize) -> Vec<Finding> {
    let mut alike: BTreeMap<(OomCause, Option<Frame>), Vec<&Report>> = BTreeMap::new();
    // A failure that a leak caused is reported in the leak's finding.
    for report in reports.iter().filter(|report| report.leaked.is_none()) {
        alike.entry((report.cause, report.facts.stack.site().cloned())).or_default().push(report);
    }
    alike.into_values().filter_map(|reports| finding(&reports, known)).collect()
}

/// The finding about a rank that ended by out of memory without an event that explains it. The memory may have been
/// outside the allocator, or the host's.
#[must_use]
pub fn unexplained(rank: u32, known: usize, failure: &str, time_ns: u64, last: &[(&str, Option<u64>)]) -> Finding {
    let figures: Vec<(String, EvidenceValue)> = last
        .iter()
        .filter_map(|&(name, value)| value.map(|value| (name.to_owned(), EvidenceValue::Count(value))))
        .collect();
    let said: Vec<String> = last
        .iter()
        .filter_map(|&(name, value)| {
            value.map(|value| format!("{} {}", name.trim_end_matches("_bytes").replace('_', " "), bytes(value)))
        })
        .collect();
    let last_words = if said.is_empty() {
        "Nothing was measured before".to_owned()
    } else {
        format!("The last figures: {}", said.join(", "))
    };
    Finding {
        first_seen: Moment { time_ns: Some(time_ns), ..Moment::default() },
        subject: format!("rank {rank}"),
        title: format!("{} ended because memory ran out outside PyTorch's allocator: {failure}", opening(&ranks(&[rank], known))),
        explanation: format!(
            "No request to PyTorch's allocator failed in what is stored of rank {rank}, so the memory that ran out lies outside it: device memory of a library, or host memory. {last_words}."
        ),
        advice: "Check the host's kernel log (out-of-memory killer) and the container's limit; reduce the number of DataLoader workers and what they prefetch. Libraries beside PyTorch allocate device memory on their own.".to_owned(),
        evidence: figures,
        ..Finding::new(FindingKind::Oom, Severity::Critical, 0.7, vec![rank])
    }
}

/// Why the event of a failed request is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    /// Only counters were recorded.
    NotRecorded,
    /// The events were recorded and have been removed since, by retention.
    Removed,
}

/// Failed requests that were counted and whose events are missing.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The rank.
    pub rank: u32,
    /// How many there were.
    pub ooms: u64,
    /// Why their events are missing.
    pub missing: Missing,
    /// The first measurement that counts a failed request; without one, the time alone.
    pub first: Sample,
    /// Whether the process ended because of one; `None` if it still runs or its end is unknown.
    pub ended_by_it: Option<bool>,
}

/// The findings about ranks whose allocators counted failed requests, without their events: one for all ranks that
/// failed alike. Its figures are those of the first failure. `known` is the number of ranks of the job.
#[must_use]
pub fn counted(all: &[Counted], known: usize) -> Vec<Finding> {
    let mut alike: BTreeMap<(Missing, Option<bool>), Vec<&Counted>> = BTreeMap::new();
    for counted in all {
        alike.entry((counted.missing, counted.ended_by_it)).or_default().push(counted);
    }
    alike.into_values().filter_map(|counted| counted_alike(&counted, known)).collect()
}

fn counted_alike(counted: &[&Counted], known: usize) -> Option<Finding> {
    let &&Counted { missing, first, ended_by_it, .. } = counted.iter().min_by_key(|counted| counted.first.time_ns)?;
    let ooms = counted.iter().fold(0, |sum: u64, counted| sum.saturating_add(counted.ooms));
    let mut failed: Vec<u32> = counted.iter().map(|counted| counted.rank).collect();
    failed.sort_unstable();
    failed.dedup();
    let figures = [
        ("ooms", Some(ooms)),
        ("allocated_bytes", first.allocated_bytes),
        ("reserved_bytes", first.reserved_bytes),
        ("peak_allocated_bytes", first.peak_allocated_bytes),
        ("device_used_bytes", first.device_used_bytes),
        ("device_total_bytes", first.device_total_bytes),
    ];
    let held = first.reserved_bytes.or(first.allocated_bytes);
    let held = held.map_or(String::new(), |held| format!(" with {} in use", bytes(held)));
    let (severity, ended) = match ended_by_it {
        Some(true) => (Severity::Critical, " and ended"),
        Some(false) => (Severity::Info, ", which was caught"),
        None => (Severity::Warning, ""),
    };
    let (explanation, advice) = match missing {
        Missing::NotRecorded => (
            "Only the allocator's counters were recorded, no events: the size of the request, who made it and what was live \
             are unknown.",
            "Record events (the native allocator under `memctl run`) to see who made the request and what was live; reduce \
             the batch.",
        ),
        Missing::Removed => (
            "The events around the failed request are no longer stored: the size of the request, who made it and what was live \
             are unknown.",
            "Look at a failed job before its events expire, or let the daemon keep more bytes (`retain_bytes`, \
             `retain_bytes_per_job`).",
        ),
    };
    let on = ranks(&failed, known);
    Some(Finding {
        all_ranks: failed.len() > 1 && failed.len() == known,
        first_seen: Moment { time_ns: Some(first.time_ns), ..Moment::default() },
        title: format!("{} ran out of memory{held}{ended} ({})", opening(&on), plural(ooms, "failed request")),
        subject: on,
        explanation: explanation.to_owned(),
        advice: advice.to_owned(),
        evidence: figures
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), EvidenceValue::Count(value?))))
            .collect(),
        ..Finding::new(FindingKind::Oom, severity, 0.9, failed)
    })
}

fn finding(reports: &[&Report], known: usize) -> Option<Finding> {
    // Failures that were caught are reported only if no other failure is alike.
    let ended: Vec<&Report> = reports.iter().copied().filter(|report| !report.facts.went_on).collect();
    let (reports, severity, caught) = match ended.is_empty() {
        true => (reports, Severity::Info, ", which was caught"),
        false => (&*ended, Severity::Critical, ""),
    };
    let is_caught = ended.is_empty();
    // The finding describes the first failure, because later failures are often its consequence.
    let first = *reports.iter().min_by_key(|report| (report.facts.time_ns, report.facts.rank))?;
    let facts = &first.facts;
    let mut numbers: Vec<u32> = reports.iter().map(|report| report.facts.rank).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let on = ranks(&numbers, known);
    let site = facts.stack.site().cloned();
    let now = Moment { epoch: facts.epoch, step: facts.step, time_ns: Some(facts.time_ns), boundary: None };
    // Each report of a device counts all of the device's failed requests.
    let by_device: BTreeMap<(u32, u8), &Report> =
        reports.iter().map(|report| ((report.facts.rank, report.facts.device), *report)).collect();
    let failures = by_device.values().fold(0_u64, |sum, report| sum.saturating_add(report.facts.failures));
    let begun = by_device.values().filter_map(|report| report.facts.first_failure).min_by_key(|begun| begun.time_ns);
    Some(Finding {
        confidence: if facts.exact { 1.0 } else { 0.8 },
        all_ranks: numbers.len() > 1 && numbers.len() == known,
        first_seen: begun.filter(|_| is_caught).unwrap_or(now),
        live_bytes: Some(facts.at_request.allocated_bytes),
        title: format!(
            "Out of memory on {on}{}{caught}{}: {}",
            moment(facts.epoch, facts.step),
            repeated(failures, by_device.len(), begun),
            reason(first)
        ),
        explanation: explanation(first),
        advice: sentence(advice::of(first, &numbers)),
        evidence: [evidence(first), vec![("failed_requests".to_owned(), EvidenceValue::Count(failures))]].concat(),
        site,
        stack: facts.stack.frames.clone(),
        subject: first.cause.name().to_owned(),
        ..Finding::new(FindingKind::Oom, severity, 1.0, numbers)
    })
}

/// ` (10 failed requests since epoch 0)`. Nothing if each of the devices had one.
fn repeated(failures: u64, devices: usize, begun: Option<Moment>) -> String {
    if failures <= devices as u64 {
        return String::new();
    }
    let since = match begun.map(|begun| (begun.epoch, begun.step)) {
        Some((Some(epoch), _)) => format!(" since epoch {epoch}"),
        Some((None, Some(step))) => format!(" since step {step}"),
        _ => String::new(),
    };
    format!(" ({}{since})", plural(failures, "failed request"))
}

/// The request and the reason why it failed. Memory that accumulated comes first, because any next request would have
/// failed.
fn reason(report: &Report) -> String {
    let facts = &report.facts;
    let (asked, place) = (bytes(facts.rounded_bytes), requested_in(&facts.stack));
    if let Some(accumulated) = report.accumulated() {
        return format!("{}; then {asked} were requested in {place}", accumulated.title());
    }
    let input = facts.input.filter(|_| report.leaked.is_none()).map_or("", Input::title);
    format!("{asked} requested in {place}, {}{input}", deciding(report))
}

/// The figure that decided the cause.
fn deciding(report: &Report) -> String {
    let facts = &report.facts;
    match report.cause {
        // The free bytes in the cache may suffice only together with the free bytes of the device.
        OomCause::Fragmentation if report.free_bytes < facts.rounded_bytes => format!(
            "{} are {} and {} in the cache, but there in {}: fragmentation",
            bytes(report.room_bytes),
            if report.limit_bytes.is_some() { "left under the process's limit" } else { "free on the device" },
            bytes(report.free_bytes),
            in_blocks(report),
        ),
        OomCause::Fragmentation => {
            format!("{} are free in the cache, but in {}: fragmentation", bytes(report.free_bytes), in_blocks(report))
        }
        OomCause::Neighbour => {
            format!("while other processes hold {} of its device", bytes(facts.others_bytes.unwrap_or(0)))
        }
        OomCause::OutsideAllocator => {
            format!("while this process uses {} outside PyTorch's allocator", bytes(report.outside_bytes.unwrap_or(0)))
        }
        OomCause::Capacity | OomCause::Leak | OomCause::Accumulation => format!(
            "with {} in use{}: {} {} too much",
            bytes(facts.at_request.active_bytes),
            of_what(report),
            // The limit is at least what was once reserved, and may be higher.
            if report.limit_bytes.is_some() { "at most" } else { "at least" },
            bytes(report.needed_bytes()),
        ),
    }
}

/// `blocks of at most 4.00 MiB`. If no block could serve the request, for example because of its pool, no size is
/// named.
pub(super) fn in_blocks(report: &Report) -> String {
    match report.largest_usable_bytes {
        0 => "blocks that could not serve it".to_owned(),
        most => format!("blocks of at most {}", bytes(most)),
    }
}

fn of_what(report: &Report) -> String {
    match (report.limit_bytes, report.facts.device_total_bytes) {
        (Some((least, _)), _) if report.facts.own_limit_bytes == Some(least) => {
            format!(" under a limit of {}", bytes(least))
        }
        (Some((_, below)), _) => format!(" under a limit below {}", bytes(below)),
        (None, Some(total)) => format!(" of {}", bytes(total)),
        (None, None) => String::new(),
    }
}

pub(super) fn explanation(report: &Report) -> String {
    let facts = &report.facts;
    let at_request = &facts.at_request;
    let mut text = report.accumulated().map_or_else(String::new, Accumulation::explanation);
    text.push_str(&format!(
        "Rank {} had {} reserved, of which {} were in use and {} free: ",
        facts.rank,
        bytes(at_request.reserved_bytes),
        bytes(at_request.active_bytes),
        bytes(report.free_bytes),
    ));
    text.push_str(&match (bytes(facts.rounded_bytes), report.largest_usable_bytes) {
        (asked, 0) => format!("no free block could serve {asked}."),
        (asked, largest) => format!("the largest free block that could serve {asked} was {}.", bytes(largest)),
    });
    text.push_str(&match report.flushed_bytes {
        0 => " Emptying the cache released nothing, because every segment holds live blocks.".to_owned(),
        flushed => format!(
            " Emptying the cache released {}; {} stayed beside live blocks.",
            bytes(flushed),
            bytes(report.stranded_bytes)
        ),
    });
    text.push_str(&match report.limit() {
        Some(limit) => format!(
            " The device had {} free, so the process's own limit was in force: {limit}.",
            bytes(facts.device_free_bytes)
        ),
        None => format!(" The device had {} free.", bytes(facts.device_free_bytes)),
    });
    if report.segment_bytes > facts.rounded_bytes {
        // This is the size in PyTorch's own message.
        text.push_str(&format!(" A new segment for the request takes {}.", bytes(report.segment_bytes)));
    }
    if let Some(others) = facts.others_bytes.filter(|&others| others > 0) {
        text.push_str(&format!(" Other processes held {} of it.", bytes(others)));
    }
    let filled: Vec<String> = by_place(&facts.sites)
        .into_iter()
        .take(3)
        .map(|place| format!("{} {}", bytes(place.bytes), place_or_none(place.site)))
        .collect();
    if !filled.is_empty() {
        text.push_str(&format!(" What was live: {}.", filled.join(", ")));
    }
    let places = by_place(&facts.sites);
    if let Some(grown) = places.iter().filter(|place| place.grown > 0).max_by_key(|place| place.grown) {
        text.push_str(&format!(
            " Since the last step that ended, {} grew most, by {}.",
            place_or_none(grown.site),
            bytes(grown.grown),
        ));
    }
    if let Some(input) = facts.input {
        text.push_str(&input.explanation());
    }
    if let Some(sentence) = peers(report) {
        text.push_str(&sentence);
    }
    text
}

fn peers(report: &Report) -> Option<String> {
    let free: Vec<(u32, u64)> =
        report.facts.peers.iter().filter_map(|peer| Some((peer.rank, peer.device_free_bytes?))).collect();
    let least = free.iter().min_by_key(|(_, free)| *free)?;
    Some(format!(
        " Of the other ranks, rank {} was closest to running out, with {} free on its device.",
        least.0,
        bytes(least.1)
    ))
}

pub(super) fn evidence(report: &Report) -> Vec<(String, EvidenceValue)> {
    let facts = &report.facts;
    let at_request = &facts.at_request;
    let mut evidence = vec![
        ("cause".to_owned(), EvidenceValue::Text(report.cause.name().to_owned())),
        ("rank".to_owned(), EvidenceValue::Count(u64::from(facts.rank))),
    ];
    let mut count = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            evidence.push((name.to_owned(), EvidenceValue::Count(value)));
        }
    };
    count("asked_bytes", Some(facts.rounded_bytes));
    count("segment_bytes", Some(report.segment_bytes));
    count("free_in_cache_bytes", Some(report.free_bytes));
    count("largest_usable_bytes", Some(report.largest_usable_bytes));
    count("holes", Some(at_request.holes));
    count("reserved_bytes", Some(at_request.reserved_bytes));
    count("active_bytes", Some(at_request.active_bytes));
    count("allocated_bytes", Some(at_request.allocated_bytes));
    count("flushed_bytes", Some(report.flushed_bytes));
    count("stranded_bytes", Some(report.stranded_bytes));
    count("rounded_away_bytes", Some(report.rounded_away_bytes));
    count("missing_bytes", Some(report.missing_bytes));
    let accumulated = facts.demand.accumulated.as_ref();
    count("accumulated_bytes", accumulated.map(|accumulated| accumulated.bytes));
    count("accumulated_blocks", accumulated.map(|accumulated| accumulated.blocks));
    count("leaked_bytes", report.leaked.as_ref().map(|leaked| leaked.bytes));
    count("kept_bytes", facts.earlier.map(|earlier| earlier.kept_bytes));
    count("earlier_peak_bytes", facts.earlier.map(|earlier| earlier.peak_bytes));
    count("device_free_bytes", Some(facts.device_free_bytes));
    count("device_total_bytes", facts.device_total_bytes);
    count("limit_at_least_bytes", report.limit_bytes.map(|(least, _)| least));
    count("limit_below_bytes", report.limit_bytes.map(|(_, below)| below));
    count("others_bytes", facts.others_bytes);
    count("outside_allocator_bytes", report.outside_bytes);
    for (class, bytes) in facts.classes.ranked() {
        count(&format!("{}_bytes", class.name()), Some(bytes));
    }
    for (at, Place { site, bytes: of, blocks, grown: _ }) in
        by_place(&facts.sites).into_iter().take(SITES_NAMED).enumerate()
    {
        let place = place_or_none(site);
        let words = format!("{} in {} of {place}", bytes(of), plural(blocks, "block"));
        evidence.push((format!("live_{}", at + 1), EvidenceValue::Text(words)));
    }
    evidence
}
