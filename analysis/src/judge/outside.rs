//! Device memory outside a process's allocator: contexts, libraries, communicators, and extensions that call the driver
//! themselves.
//!
//! The driver's list of processes gives this memory for each process. Where that list lacks the process (WSL, some
//! containers, MIG), or where nothing reads it, the memory of the whole device is used, without what the allocators of
//! this job's processes hold there. That memory may also be another program's, which the finding states.
//!
//! Guarantees: a figure that contradicts the allocator is not used. What is not measured is not called zero.

use super::history::{Measured, Per};
use super::levels::{MEASUREMENTS_MIN, measured, measurements};
use super::process_list::is_listed;
use super::watch::RankWatch;
use super::words::Grown;

/// The measurements that show memory outside the allocator.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The driver's figure for the process.
    Process(&'a [Measured]),
    /// The driver's figure for the device.
    Device(&'a [Measured]),
}

/// The devices whose memory outside the allocator grows: of the processes themselves, and of processes for which only
/// the whole device was measured.
pub(super) fn grown(watches: &[&RankWatch]) -> [Vec<Grown>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for &watch in watches {
        let (of, grown) = match source(watch) {
            Some(Source::Process(samples)) => (0, measured(watch, samples, of_process)),
            Some(Source::Device(samples)) => {
                let sharing = sharing(watch, watches);
                (1, measured(watch, samples, |sample| of_device(sample, &sharing)))
            }
            None => continue,
        };
        found[of].extend(grown);
    }
    found
}

/// The number of measurements of a device's memory outside the allocator while the process works, and the seconds that
/// they span; `None` if there is none.
pub(super) fn seen(watch: &RankWatch) -> Option<(usize, f64)> {
    Some(match source(watch)? {
        Source::Process(samples) => measurements(watch, samples, of_process),
        Source::Device(samples) => measurements(watch, samples, |sample| of_device(sample, &[])),
    })
}

fn source(watch: &RankWatch) -> Option<Source<'_>> {
    let (outer, own) = (watch.history.samples.all(), watch.history.own_samples.all());
    let has_process = outer.iter().any(|sample| sample.process_used_bytes.is_some());
    if has_process && is_listed(watch) {
        return Some(Source::Process(outer));
    }
    // A reader that does not see the process may not see its device's memory either.
    let outer = outer.iter().any(|sample| sample.device_used_bytes.is_some()).then_some(outer).filter(|_| !has_process);
    let own = Some(own).filter(|own| !own.is_empty());
    own.filter(|own| own.len() >= MEASUREMENTS_MIN || outer.is_none()).or(outer).map(Source::Device)
}

fn of_process(sample: &Measured) -> Option<u64> {
    Some(sample.process_used_bytes?.saturating_sub(sample.reserved_bytes?))
}

/// Memory of the device that no allocator of this job holds. A figure below that of the allocators contradicts them.
fn of_device(sample: &Measured, sharing: &[&RankWatch]) -> Option<u64> {
    let held =
        sharing.iter().fold(sample.reserved_bytes?, |held, other| held.saturating_add(held_at(other, sample.time_ns)));
    sample.device_used_bytes?.checked_sub(held)
}

/// Other processes of this job that use the same device.
fn sharing<'a>(watch: &RankWatch, watches: &[&'a RankWatch]) -> Vec<&'a RankWatch> {
    let is_same = |other: &&&RankWatch| {
        let device = watch.facts.device_id.is_some() && other.facts.device_id == watch.facts.device_id;
        device && !other.who().is_same_process(&watch.who())
    };
    watches.iter().filter(is_same).copied().collect()
}

/// The bytes that a process's allocator had reserved at a moment.
fn held_at(watch: &RankWatch, time_ns: u64) -> u64 {
    let latest = |per: Per| {
        let levels = watch.history.levels(per);
        levels[..levels.partition_point(|level| level.time_ns <= time_ns)].last()
    };
    let level = Per::ALL.into_iter().filter_map(latest).max_by_key(|level| level.time_ns);
    level.map_or(0, |level| level.counters.reserved_bytes)
}
