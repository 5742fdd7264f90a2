//! Makes a recording from the parts found at the top level of a snapshot.

use memctl_analysis::boundaries::Stacks;
use memctl_model::limits::DEVICES_MAX;
use memctl_model::{DeviceIndex, SegmentState};

use super::digest::Digests;
use super::error::SnapshotFault;
use super::events::EventLog;
use super::found::ReadParts;
use super::heap::Heap;
use super::value::{Kind, Value};
use super::{DeviceRecording, Recording, keys, owners, segments, unmarked};

/// The needed content and how to get it, for an error message.
const NEEDED: &str = "the dict of torch.cuda.memory._snapshot() with `device_traces`; call torch.cuda.memory._record_memory_history() before training and torch.cuda.memory._dump_snapshot(\"rank0.pickle\") after it";

/// Makes the recording, if the top-level value of the pickle is a snapshot.
pub(crate) fn recording(heap: Heap, top: Value, digests: Digests) -> Result<Recording, SnapshotFault> {
    let not_a_snapshot = |found| SnapshotFault::NotASnapshot { found, needed: NEEDED };
    if top.kind() != Kind::Dict || heap.found.traces.is_none() {
        return Err(not_a_snapshot(heap.describe(top)));
    }
    // The memo is the larger part of the memory used for reading, so it is freed before anything else is made.
    let Heap { mut tables, found: mut found_all, memo, .. } = heap;
    drop(memo);
    let found = &mut found_all;
    let traces = found.traces.take().unwrap_or_default();
    let refused = found.traces_refused > 0 || traces.iter().skip(DEVICES_MAX).any(Option::is_some);
    if refused {
        return Err(not_a_snapshot(format!("events of more than {DEVICES_MAX} devices")));
    }
    let framework = framework(found);
    let states_pools = found.event_keys >> keys::POOL_ID & 1 != 0;
    let mut devices = devices(traces, found, states_pools);
    if tables.has_owners() {
        for DeviceRecording { events, final_segments, .. } in &mut devices {
            owners::settle(events, final_segments, &mut tables);
        }
    }
    (found.remarks.stacks_refused, found.remarks.owners_refused) = (tables.refused, tables.owners_refused);
    let times = devices
        .iter()
        .filter_map(|device| Some((device.events.first()?.time_ns, device.events.last()?.time_ns)))
        .reduce(|(first, last), (f, l)| (first.min(f), last.max(l)));
    let annotations = std::mem::take(&mut found.annotations);
    let (frames, stacks) = tables.into_stacks();
    let all = unmarked::Events { devices: &devices, times, stacks: Stacks { frames: &frames, stacks: &stacks } };
    let notes = owners::notes(&devices, &frames, &stacks);
    let (marks, boundaries) = unmarked::marks(annotations, notes, &all);
    let started_ns = marks.first().map(|mark| mark.time_ns).into_iter().chain(times.map(|(first, _)| first)).min();
    let ended_ns = marks.last().map(|mark| mark.time_ns).into_iter().chain(times.map(|(_, last)| last)).max();
    Ok(Recording {
        devices,
        marks,
        found: boundaries,
        frames,
        stacks,
        settings: found.settings.take().unwrap_or_default(),
        started_ns: started_ns.unwrap_or(0),
        ended_ns: ended_ns.unwrap_or(0),
        framework,
        digest: digests.sums,
        proof: digests.proof,
        remarks: found.remarks,
    })
}

/// Combines the events and segments of each device.
fn devices(traces: Vec<Option<Box<EventLog>>>, found: &mut ReadParts, states_pools: bool) -> Vec<DeviceRecording> {
    let mut logs: Vec<EventLog> = traces.into_iter().map(|log| log.map(|log| *log).unwrap_or_default()).collect();
    logs.truncate(DEVICES_MAX);
    let mut final_segments: Vec<Vec<SegmentState>> = Vec::new();
    for (device, mut segment) in std::mem::take(&mut found.segments) {
        let Some(device) = usize::try_from(device).ok().filter(|&device| device < DEVICES_MAX) else {
            found.remarks.malformed_entries += 1;
            continue;
        };
        found.remarks.irregular_segments += u64::from(segments::put_in_order(&mut segment));
        if final_segments.len() <= device {
            final_segments.resize_with(device + 1, Vec::new);
        }
        final_segments[device].push(segment);
    }
    let count = logs.len().max(final_segments.len());
    logs.resize_with(count, EventLog::new);
    final_segments.resize_with(count, Vec::new);
    // There are at most DEVICES_MAX = 64 devices, so the index fits.
    (0..=u8::MAX)
        .zip(logs.into_iter().zip(final_segments))
        .filter(|(_, (events, segments))| !events.is_empty() || !segments.is_empty())
        .map(|(device, (mut events, mut final_segments))| {
            final_segments.sort_by_key(|segment| segment.addr);
            if !states_pools {
                segments::derive_pools(&mut events, &final_segments);
            }
            DeviceRecording { device: DeviceIndex(device), events, final_segments }
        })
        .collect()
}

/// The oldest torch that writes the parts that were found.
fn framework(found: &ReadParts) -> Option<String> {
    let has = |key: u32| found.event_keys >> key & 1 != 0;
    let since = match () {
        () if has(keys::INTERNAL_METADATA) => "2.15",
        () if found.has_host_segments => "2.14",
        () if has(keys::POOL_ID) => "2.12",
        () if has(keys::USER_METADATA) => "2.10",
        () if has(keys::COMPILE_CONTEXT) => "2.8",
        () if found.has_annotations => "2.5",
        () if found.settings.is_some() => "2.3",
        () if has(keys::TIME_US) => "2.2",
        () if found.event_keys != 0 => "2.1",
        () => return None,
    };
    Some(format!("torch >= {since}"))
}
