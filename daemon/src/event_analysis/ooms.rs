//! Explains the failed requests of a device. The counts in the chunks locate them, and a replay restores the state
//! before each of them.
//!
//! The allocator releases its cache before a request fails, so the explained state is the one before this burst of
//! releases.
//!
//! Guarantees: covers the last [`FAILURES_MAX`] failed requests in the last chunk that has any. Each replay covers at
//! most the events since a keyframe and one chunk. A failure is left out for the first seconds of a process that goes on,
//! until it is known whether the program caught it.
//!
//! (Over 400 lines: one replay collects all facts about a failure.)

use std::collections::{BTreeMap, HashMap};

use memctl_analysis::classes::Shares;
use memctl_analysis::deaths::says_out_of_memory;
use memctl_analysis::fragmentation::Picture;
use memctl_analysis::fragmentation::judge::holders;
use memctl_analysis::oom::demand;
use memctl_analysis::oom::finding::Missing;
use memctl_analysis::oom::requests::{Input, Requests};
use memctl_analysis::oom::{self, Earlier, Facts, Peer, SiteUse};
use memctl_analysis::rules::PlacementRules;
use memctl_model::{
    Action, BlockUse, Event, Finding, Keyframe, KeyframeReason, Moment, Sample, SourceKind, Stack, StackId,
};
use memctl_proto::item::Content;
use memctl_proto::v1::ItemKind;

use super::classed::{Classed, Until};
use super::measured;
use crate::job_data::error::ReadError;
use crate::job_data::job::FoundJob;
use crate::job_data::mark_cursor::{MarkCursor, Passed};
use crate::job_data::replay::{Go, Replay};
use crate::job_data::stacks::{dictionary, open};
use crate::store::{ChunkRow, DeviceRow, Selection, SessionRow, Store};

/// Failed requests that are explained per device. A job that catches these errors may have thousands.
pub(crate) const FAILURES_MAX: usize = 4;
/// Steps that must have ended before a failed step is compared with them. The first ones create what stays.
const STEPS_MIN: u64 = 3;
/// Time within which a process shows whether it caught a failed request, by the next step.
const OPEN_NS: u64 = 10_000_000_000;
/// Sites named per failure.
const SITES_MAX: usize = 20;
/// Blocks that strand memory, named per failure.
const HOLDERS_MAX: usize = 10;
/// Other ranks shown per failure.
const PEERS_MAX: usize = 16;

/// The position of a failed request in a device's stream. A position is the number of preceding events.
struct FailurePosition {
    event: Event,
    /// The position before the allocator emptied its cache.
    found_at: u64,
    /// The position at the end of the preceding step.
    step_end_at: Option<u64>,
    earlier: Option<Earlier>,
    input: Option<Input>,
    reserved_after_bytes: u64,
    epoch: Option<u32>,
    step: Option<u64>,
}

/// Reports about the last failed requests of a device, by time.
pub(crate) async fn of_device(
    store: &dyn Store,
    found: &FoundJob,
    session: &SessionRow,
    device: &DeviceRow,
) -> Result<Vec<oom::Report>, ReadError> {
    if device.ooms == 0 {
        return Ok(Vec::new());
    }
    let chunks = store.chunks(session.key, device.info.index.0, Selection::default()).await?;
    let Some(at) = chunks.iter().rposition(|chunk| chunk.levels.ooms > 0) else { return Ok(Vec::new()) };
    // The burst of releases and the step before it may begin in the preceding chunk.
    let first = &chunks[at.saturating_sub(1)];
    let last = &chunks[at];
    let reserved_peak = chunks[..at].iter().map(|chunk| chunk.levels.reserved_max).max().unwrap_or(0);
    let cursor = MarkCursor::between(store, session.key, (first.index.first_ns, last.index.last_ns)).await?;
    let stacks = dictionary(store, session.key).await?;
    let resolve = |stack: StackId| -> Stack { stacks.stack(stack) };
    let earlier_peak = chunks[..at.saturating_sub(1)].iter().map(|chunk| chunk.levels.allocated_max).max().unwrap_or(0);
    let highest = Highest { reserved: reserved_peak, allocated: earlier_peak };
    let (places, reserved_peak) = places(store, session, device, (first, last), cursor.clone(), highest).await?;
    let later = later_spans(store, session, places.first().map(|place| place.event.time_ns)).await?;
    let first_failure = first_failure(store, session, device, &chunks).await?;
    let later_failures = places.len() as u64;
    let mut reports = Vec::new();
    // The failures of one chunk are close together in time, so the other ranks are read once, for the time of the first
    // one.
    let first_ns = places.first().map_or(0, |place| place.event.time_ns);
    let peers = peers(store, found, session, first_ns).await?;
    for (number, place) in places.into_iter().enumerate() {
        let went_on = went_on(session, &later, place.event.time_ns);
        if !went_on && is_open(session, place.event.time_ns) {
            continue;
        }
        let (before, keyframe) = states(store, session, device, &place, cursor.clone()).await?;
        let moment = (place.found_at, Until::Then);
        let known = Classed::around(store, session, device.info.index.0, &chunks, moment, &stacks).await?;
        let mut classes = Shares::default();
        known.of(&keyframe).iter().for_each(|(class, block)| classes.add(*class, block.size));
        let stack = resolve(place.event.stack);
        let failed = demand::FailedRequest { bytes: place.event.size, stack: &stack };
        let demand = demand::compare(&known.stretch(place.found_at, place.step.is_some()), failed, &resolve);
        let sample = measured::before(store, session, device, place.event.time_ns).await?;
        let picture = Picture::of(&keyframe, session.info.settings.large_segment_size);
        reports.push(oom::explain(Facts {
            rank: session.info.rank,
            device: device.info.index.0,
            time_ns: place.event.time_ns,
            epoch: place.epoch.or(Some(last.index.last_epoch)),
            step: place.step,
            rounded_bytes: place.event.size,
            stream: place.event.stream,
            pool: place.event.pool,
            stack,
            device_free_bytes: place.event.addr,
            reserved_after_bytes: place.reserved_after_bytes,
            reserved_peak_bytes: reserved_peak,
            device_total_bytes: sample.as_ref().and_then(|sample| sample.device_total_bytes),
            own_limit_bytes: sample.as_ref().and_then(|sample| sample.limit_bytes),
            others_bytes: sample.as_ref().and_then(|sample| sample.foreign_used_bytes),
            classes,
            sites: sites(&keyframe, before.as_ref(), &resolve),
            stranding_blocks: holders(&picture, HOLDERS_MAX, &resolve),
            peers: peers.clone(),
            settings: session.info.settings.clone(),
            exact: last.levels.exact,
            went_on,
            failures: device.ooms.saturating_sub(later_failures - 1 - number as u64),
            first_failure,
            earlier: place.earlier,
            input: place.input,
            demand,
            at_request: picture,
        }));
    }
    Ok(reports)
}

/// The moment of the device's first failed request; `None` if only one failed, or if the first is no longer stored.
async fn first_failure(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    chunks: &[ChunkRow],
) -> Result<Option<Moment>, ReadError> {
    let stored = chunks.iter().fold(0_u64, |sum, chunk| sum.saturating_add(chunk.levels.ooms));
    let chunk = chunks.iter().find(|chunk| chunk.levels.ooms > 0);
    let Some(chunk) = chunk.filter(|_| device.ooms > 1 && stored >= device.ooms) else { return Ok(None) };
    let mut cursor = MarkCursor::between(store, session.key, (chunk.index.first_ns, chunk.index.last_ns)).await?;
    let from = chunk.index.first_event;
    let mut replay = Replay::before(store, session, device.info.index.0, &[], from).await?;
    let mut first = None;
    replay
        .run(from + chunk.index.count, |number, event, _| {
            cursor.advance(event.time_ns, |_| ());
            if event.action != Action::Oom || number <= from {
                return Go::On;
            }
            let epoch = cursor.epoch().or(Some(chunk.index.first_epoch));
            first = Some(Moment { epoch, step: cursor.step(), time_ns: Some(event.time_ns), boundary: None });
            Go::Stop
        })
        .await?;
    Ok(first)
}

/// Begin and end of steps and epochs since a failed request.
async fn later_spans(
    store: &dyn Store,
    session: &SessionRow,
    failed_ns: Option<u64>,
) -> Result<Vec<(u64, u64)>, ReadError> {
    let Some(failed_ns) = failed_ns else { return Ok(Vec::new()) };
    Ok(MarkCursor::between(store, session.key, (failed_ns, u64::MAX)).await?.spans())
}

/// Whether a process caught a failed request. The step that a failure leaves ends as well, so only one that began afterwards
/// shows that the process went on. `spans` are begins and ends of steps and epochs. (A snapshot has no end of its process.)
fn went_on(session: &SessionRow, spans: &[(u64, u64)], failed_ns: u64) -> bool {
    let ended_well = session.end.as_ref().is_some_and(|end| end.failure.is_none());
    (ended_well && session.info.source == SourceKind::Live) || spans.iter().any(|(begun_ns, _)| *begun_ns > failed_ns)
}

/// The highest levels of the chunks before a replay.
struct Highest {
    reserved: u64,
    allocated: u64,
}

/// Whether a process may still show that it caught a failed request. A failure that is not caught ends a process within
/// seconds.
fn is_open(session: &SessionRow, failed_ns: u64) -> bool {
    let is_young = session.heard_ns < failed_ns.saturating_add(OPEN_NS);
    session.info.source == SourceKind::Live && session.end.is_none() && is_young
}

/// Finds the failed requests of the last chunk, and the highest reserved bytes before the last of them.
async fn places(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    (first, last): (&ChunkRow, &ChunkRow),
    mut cursor: MarkCursor,
    highest: Highest,
) -> Result<(Vec<FailurePosition>, u64), ReadError> {
    let Highest { reserved: mut reserved_peak, allocated: mut allocated_peak } = highest;
    let from = first.index.first_event;
    let mut replay = Replay::before(store, session, device.info.index.0, &[], from).await?;
    let mut places: Vec<FailurePosition> = Vec::new();
    let mut allocated = 0;
    let (mut burst, mut step_end_at): (Option<u64>, Option<u64>) = (None, None);
    let rules = PlacementRules::new(&session.info.settings);
    let mut requests: HashMap<StackId, Requests> = HashMap::new();
    let (mut steps, mut earlier) = (0_u64, Earlier { kept_bytes: 0, peak_bytes: 0 });
    replay
        .run(last.index.first_event + last.index.count, |number, event, map| {
            let levels = map.levels();
            reserved_peak = reserved_peak.max(levels.reserved_bytes);
            cursor.advance(event.time_ns, |passed| {
                if passed == Passed::StepEnd {
                    step_end_at = Some(number - 1);
                    steps += 1;
                    earlier = Earlier { kept_bytes: allocated, peak_bytes: allocated_peak };
                }
            });
            allocated = levels.allocated_bytes;
            allocated_peak = allocated_peak.max(allocated);
            match event.action {
                Action::SegmentFree | Action::SegmentUnmap => {
                    burst.get_or_insert(number - 1);
                }
                // Blocks whose free waited for another stream complete while the cache is emptied.
                Action::FreeCompleted => {}
                Action::Alloc => {
                    requests.entry(event.stack).or_default().add(steps, rules.round_size(event.size));
                    burst = None;
                }
                Action::Oom if number > last.index.first_event => {
                    if places.len() == FAILURES_MAX {
                        places.remove(0);
                    }
                    places.push(FailurePosition {
                        event: *event,
                        found_at: burst.unwrap_or(number - 1),
                        step_end_at,
                        earlier: (steps >= STEPS_MIN).then_some(earlier),
                        input: requests.get(&event.stack).and_then(|of| of.explain(steps, event.size)),
                        reserved_after_bytes: map.levels().reserved_bytes,
                        epoch: cursor.epoch(),
                        step: cursor.step(),
                    });
                    burst = None;
                }
                _ => burst = None,
            }
            Go::On
        })
        .await?;
    Ok((places, reserved_peak))
}

/// Live bytes by stack at the end of the last step, and the state before the request.
async fn states(
    store: &dyn Store,
    session: &SessionRow,
    device: &DeviceRow,
    place: &FailurePosition,
    cursor: MarkCursor,
) -> Result<(Option<BTreeMap<StackId, u64>>, Keyframe), ReadError> {
    let index = device.info.index;
    let start = place.step_end_at.unwrap_or(place.found_at).min(place.found_at);
    let mut replay = Replay::before(store, session, index.0, &[], start).await?.with_cursor(cursor);
    let mut before = None;
    if place.step_end_at.is_some() {
        replay.run(start, |_, _, _| Go::On).await?;
        let mut by_stack: BTreeMap<StackId, u64> = BTreeMap::new();
        for row in replay.map().site_rows() {
            let bytes = by_stack.entry(row.stack).or_default();
            *bytes = bytes.saturating_add(row.bytes);
        }
        before = Some(by_stack);
    }
    replay.run(place.found_at, |_, _, _| Go::On).await?;
    let keyframe = replay.map().keyframe(index, place.found_at, place.event.time_ns, KeyframeReason::OutOfMemory);
    Ok((before, keyframe))
}

fn sites(
    keyframe: &Keyframe,
    before: Option<&BTreeMap<StackId, u64>>,
    resolve: &dyn Fn(StackId) -> Stack,
) -> Vec<SiteUse> {
    let mut by_stack: BTreeMap<StackId, (u64, u64)> = BTreeMap::new();
    let blocks = keyframe.segments.iter().flat_map(|segment| &segment.blocks).chain(&keyframe.loose);
    for block in blocks.filter(|block| block.usage == BlockUse::Allocated) {
        let (bytes, count) = by_stack.entry(block.stack).or_default();
        *bytes = bytes.saturating_add(block.size);
        *count += 1;
    }
    let mut sites: Vec<(StackId, (u64, u64))> = by_stack.into_iter().collect();
    sites.sort_by_key(|&(stack, (bytes, _))| (std::cmp::Reverse(bytes), stack));
    sites.truncate(SITES_MAX);
    sites
        .into_iter()
        .map(|(stack, (bytes, blocks))| SiteUse {
            stack: resolve(stack),
            bytes,
            blocks,
            before_bytes: before.map(|before| before.get(&stack).copied().unwrap_or(0)),
        })
        .collect()
}

/// The other ranks: their levels at their latest boundary, and the free memory of their devices at that time.
async fn peers(store: &dyn Store, found: &FoundJob, own: &SessionRow, time_ns: u64) -> Result<Vec<Peer>, ReadError> {
    let mut peers = Vec::new();
    for session in found.sessions.iter().filter(|session| session.key != own.key).take(PEERS_MAX) {
        for device in found.devices_of(session.key).iter() {
            let Some(latest) = device.latest else { continue };
            let sample = measured::before(store, session, device, time_ns).await?;
            let free =
                sample.and_then(|sample| Some(sample.device_total_bytes?.saturating_sub(sample.device_used_bytes?)));
            peers.push(Peer {
                rank: session.info.rank,
                process: found.process_name(session),
                reserved_bytes: latest.counters.reserved_bytes,
                peak_allocated_bytes: latest.peaks.allocated_bytes,
                device_free_bytes: free,
            });
        }
    }
    Ok(peers)
}

/// Findings about ranks that died of out of memory without a failed request of the allocator.
pub(crate) async fn deaths(store: &dyn Store, found: &FoundJob) -> Result<Vec<Finding>, ReadError> {
    let mut findings = Vec::new();
    for session in &found.sessions {
        let Some((end, failure)) = session.end.as_ref().and_then(|end| Some((end, end.failure.as_ref()?))) else {
            continue;
        };
        let devices: Vec<&DeviceRow> = found.devices_of(session.key).iter().collect();
        if !says_out_of_memory(failure) || devices.iter().any(|device| device.ooms > 0) {
            continue;
        }
        // Without events no failed request is recorded; `counted` reports these.
        if devices.iter().all(|device| device.events == 0) && highest_ooms(store, session).await? > 0 {
            continue;
        }
        let sample = match devices.first() {
            Some(device) => measured::before(store, session, device, end.time_ns).await?,
            None => None,
        };
        let sample = sample.unwrap_or_default();
        let last = [
            ("device_used_bytes", sample.device_used_bytes),
            ("device_total_bytes", sample.device_total_bytes),
            ("process_used_bytes", sample.process_used_bytes),
            ("others_bytes", sample.foreign_used_bytes),
            (
                "reserved_bytes",
                devices.iter().filter_map(|device| device.latest).map(|at| at.counters.reserved_bytes).max(),
            ),
            ("host_rss_bytes", sample.host_rss_bytes),
            ("children_rss_bytes", sample.children_rss_bytes),
        ];
        let known = found.sessions.len();
        findings.push(oom::finding::unexplained(session.info.rank, known, failure, end.time_ns, &last));
    }
    Ok(findings)
}

/// Findings about ranks whose count of failed requests rose, and none of whose stored events is a failed request.
pub(crate) async fn counted(store: &dyn Store, found: &FoundJob) -> Result<Vec<Finding>, ReadError> {
    let mut all = Vec::new();
    for session in &found.sessions {
        let devices = found.devices_of(session.key);
        let recorded = devices.iter().any(|device| device.events > 0);
        let mut ooms = devices.iter().map(|device| device.ooms).sum();
        if recorded && (ooms == 0 || is_stored(store, session, devices).await?) {
            continue;
        }
        let samples = all_samples(store, session).await?;
        if !recorded {
            ooms = samples.iter().filter_map(|sample| sample.ooms).max().unwrap_or(0);
        }
        let counts = |sample: &&Sample| sample.ooms.is_some_and(|ooms| ooms > 0);
        if ooms == 0 {
            continue;
        }
        let first = samples.iter().find(counts).copied();
        // A snapshot has no end of its process.
        let end = session.end.as_ref().filter(|_| session.info.source == SourceKind::Live);
        let ended = end.map(|end| end.failure.as_deref().is_some_and(says_out_of_memory));
        let end_ns = end.map_or(session.heard_ns, |end| end.time_ns);
        all.push(oom::finding::Counted {
            rank: session.info.rank,
            ooms,
            missing: if recorded { Missing::Removed } else { Missing::NotRecorded },
            first: first.unwrap_or(Sample { time_ns: end_ns, ..Sample::default() }),
            ended_by_it: ended,
        });
    }
    Ok(oom::finding::counted(&all, found.sessions.len()))
}

/// Whether a stored chunk has a failed request.
async fn is_stored(store: &dyn Store, session: &SessionRow, devices: &[DeviceRow]) -> Result<bool, ReadError> {
    for device in devices.iter().filter(|device| device.ooms > 0) {
        let chunks = store.chunks(session.key, device.info.index.0, Selection::default()).await?;
        if chunks.iter().any(|chunk| chunk.levels.ooms > 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn highest_ooms(store: &dyn Store, session: &SessionRow) -> Result<u64, ReadError> {
    Ok(all_samples(store, session).await?.iter().filter_map(|sample| sample.ooms).max().unwrap_or(0))
}

/// The most items of samples that are read. They cover all of a run of a few hours, and the end of a longer run.
const SAMPLE_ITEMS_MAX: usize = 64;

async fn all_samples(store: &dyn Store, session: &SessionRow) -> Result<Vec<Sample>, ReadError> {
    let rows = store.items(session.key, ItemKind::Samples, None, Selection::default()).await?;
    let mut all = Vec::new();
    for row in &rows[rows.len().saturating_sub(SAMPLE_ITEMS_MAX)..] {
        if let Content::Samples(samples) = open(session.key, row)? {
            all.extend(samples);
        }
    }
    Ok(all)
}
